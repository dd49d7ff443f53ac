/*
 * One expert computed on one thread, away from the session's buffers: inputs in, weights of a view,
 * outputs. Its results are bit for bit those of the session's own path (a row's result does not
 * depend on how it is computed beside others).
 */
#ifndef MOE_RUN_EXPERT_COMPUTE_H
#define MOE_RUN_EXPERT_COMPUTE_H

#include "run/experts.h"
#include "run/model.h"

struct moe_expert_compute; /* scratch for a number of rows */

int moe_expert_compute_open(struct moe_expert_compute **out, const struct moe_config *config,
                            uint32_t max_rows, struct moe_err *err);
void moe_expert_compute_close(struct moe_expert_compute *c); /* NULL is fine */

/* out[i] = expert(x[rows[i]]) for i < n <= max_rows; rows NULL: x[i]. Strides in floats; rows of
 * out have room for whole panels (16). Runs on the calling thread alone. */
void moe_expert_compute(struct moe_expert_compute *c, const struct moe_expert_view *view,
                        const float *x, uint64_t x_stride, const uint32_t *rows, uint32_t n,
                        float *out, uint64_t out_stride);

#endif
