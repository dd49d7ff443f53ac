/*
 * The GPU's stages for its table (stages_gpu.c): attention (stages_gpu_attention.c), routers
 * (stages_gpu_route.c), feed-forward (stages_gpu_experts.c). Internal to these, but for
 * predict_device.c; those of the table are described in run/stages.h.
 */
#ifndef MOE_RUN_STAGES_GPU_H
#define MOE_RUN_STAGES_GPU_H

#include "run/gpu_work.h"
#include "run/stages.h"

/* The norm of the stream into `out`. */
struct moe_gpu_norm stages_gpu_norm(const struct moe_session *s, const float *weights,
                                    const float *bias, struct moe_gpu_act out);
/* w times n inputs. */
struct moe_gpu_product stages_gpu_product(struct moe_mat w, const struct moe_gpu_act *act,
                                          uint32_t n, float *y, uint64_t y_stride);

int stages_gpu_attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_err *err);
/* The norm of the stream that the attention of the next layer wants, for who makes the stream;
 * NULL: there is none. It is taken for done then. */
const struct moe_gpu_norm *stages_gpu_next_norm(struct moe_session *s, uint32_t layer,
                                                struct moe_gpu_norm *norm);

/* The norm of the stream as the feed-forward's products of a layer want it; what goes into
 * gpu_work.hidden. */
struct moe_gpu_act stages_gpu_ffn_inputs(const struct moe_session *s, uint32_t layer);
/* The products that routing needs, of the router and perhaps of the shared expert's gate, which is
 * a row more of the same kind as a rule. Returns how many. */
uint32_t stages_gpu_list_routers(const struct moe_session *s, uint32_t layer,
                                 const struct moe_gpu_act *in, uint32_t n_rows,
                                 struct moe_gpu_product list[2]);
/* What is done with the layer's scores: chosen and weights, on the device. */
struct moe_gpu_router stages_gpu_router(const struct moe_session *s, uint32_t layer);
int stages_gpu_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_err *err);
/* What is asked of the layers ahead with a router; a part of stages_gpu_route, by itself where that
 * is timed. */
void stages_gpu_look_ahead(struct moe_session *s, uint32_t layer, uint32_t n_rows);
void stages_gpu_look(struct moe_session *s, uint32_t n, uint32_t n_rows, float *probabilities,
                     uint64_t layer_stride);

/* The shared expert; its gate goes with the router. */
void stages_gpu_run_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows);
int stages_gpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
bool stages_gpu_alone(struct moe_session *s, uint32_t layer, uint32_t n_rows);
void stages_gpu_grouped(struct moe_session *s, uint32_t n_rows);
int stages_gpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
uint32_t stages_gpu_at_once(const struct moe_session *s, uint32_t n_rows);
int stages_gpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, struct moe_err *err);
void stages_gpu_take(struct moe_session *s, uint32_t which);
int stages_gpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

#endif
