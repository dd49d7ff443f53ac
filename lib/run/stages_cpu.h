/*
 * The processor's stages of a feed-forward (stages_cpu_experts.c), for its table (stages_cpu.c).
 * Internal to these; each as in run/stages.h.
 */
#ifndef MOE_RUN_STAGES_CPU_H
#define MOE_RUN_STAGES_CPU_H

#include "run/stages.h"

/* work->h += residual_scale * work->sum, for the first n_rows rows. */
void stages_cpu_add_to_stream(struct moe_session *s, uint32_t n_rows);

int stages_cpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
int stages_cpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
uint32_t stages_cpu_at_once(const struct moe_session *s, uint32_t n_rows);
int stages_cpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, struct moe_err *err);
int stages_cpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

#endif
