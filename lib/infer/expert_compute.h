/*
 * One expert computed away from the session's buffers: inputs in, weights of a view,
 * outputs. Its results are bit for bit those of the session's own path (a row's result does not
 * depend on how it is computed beside others).
 */
#ifndef MOE_INFER_EXPERT_COMPUTE_H
#define MOE_INFER_EXPERT_COMPUTE_H

#include "infer/experts.h"
#include "model/config.h"

struct moe_expert_compute; /* scratch for a number of rows */

int moe_expert_compute_open(struct moe_expert_compute **out, const struct moe_config *config,
                            uint32_t max_rows, struct moe_err *err);
uint64_t moe_expert_compute_bytes(const struct moe_config *config, uint32_t max_rows);
void moe_expert_compute_close(struct moe_expert_compute *c); /* NULL is fine */

/* The parts of an expert that are not matrix products; the session's own path uses them too. */

/* gate[0..width) = the layer's activation of one row of gate and up; where the activation has no
 * gate, only of up (gate is then only written). view: the expert that they belong to, whose biases
 * are added first; NULL: a dense layer's or the shared expert's, so without biases and with their
 * activation (config->dense_act). scale: what both are multiplied by before (weigh_inputs), or
 * NULL. up is scratch afterwards. */
void moe_activate_row(const struct moe_config *config, uint32_t layer,
                      const struct moe_expert_view *view, uint32_t width, const float *scale,
                      float *gate, float *up);
/* Adds the expert's down bias, where it has one, to n rows of out. */
void moe_add_down_bias(const struct moe_expert_view *view, uint32_t n, float *out, uint64_t stride);

/* out[i] = expert(x[rows[i]]) for i < n <= max_rows; rows NULL: x[i]; scales: [n] as above, or
 * NULL. Strides in floats; rows of out have room for whole panels (16). On all threads of the
 * calling one (par.h). */
void moe_expert_compute(struct moe_expert_compute *c, const struct moe_expert_view *view,
                        const float *x, uint64_t x_stride, const uint32_t *rows,
                        const float *scales, uint32_t n, float *out, uint64_t out_stride);

#endif
