/*
 * The GPU's stages, as its table (infer/stages.h) describes them: attention (gpu_attention.c),
 * recurrent states (gpu_recurrent.c), routers and feed-forward (gpu_stages.c), predictions
 * (gpu_predict.c).
 */
#ifndef MOE_INFER_GPU_STAGES_H
#define MOE_INFER_GPU_STAGES_H

#include "infer/gpu_work.h"
#include "infer/stages.h"

/* ---- What kernels are asked with (gpu_work.c) ---- */

extern const struct moe_stages_ops moe_stages_gpu; /* with a gpu in the session's options */

static inline struct gpu_work *gpu_work_of(const struct moe_session *s)
{
    return s->device;
}

static inline struct moe_gpu *gpu_of(const struct moe_session *s)
{
    return gpu_work_of(s)->gpu;
}

/* The plain form of `room`, for `cols` columns; and what it needs in addition so that matrices of a
 * layout can be multiplied with it. */
struct moe_gpu_act gpu_act_plain(const struct moe_gpu_act *room, uint32_t cols);
void gpu_act_want(struct moe_gpu_act *act, const struct moe_gpu_act *room,
                  struct moe_layout layout);
/* The same for all experts of a pack: the layouts of their gate and up, or of their down matrices.
 */
void gpu_act_want_experts(struct moe_gpu_act *act, const struct moe_gpu_act *room,
                          const struct moe_pack *pack, bool down);

/* w times n inputs. */
struct moe_gpu_product stages_gpu_product(struct moe_mat w, const struct moe_gpu_act *act,
                                          uint32_t n, float *y, uint64_t y_stride);
/* The norm of the stream into `out`. */
struct moe_gpu_norm stages_gpu_norm(const struct moe_session *s, const float *weights,
                                    const float *bias, struct moe_gpu_act out);
/* The norm in front of a layer's attention, or of its feed-forward where it has nothing else. */
struct moe_gpu_norm stages_gpu_attention_norm(const struct moe_session *s, uint32_t layer);
/* That of the next layer, for the kernel that completes the stream; NULL: there is none. It counts
 * as done then. */
const struct moe_gpu_norm *stages_gpu_next_norm(struct moe_session *s, uint32_t layer,
                                                struct moe_gpu_norm *norm);

/* MoE layers after `layer`, at most as many as are predicted. */
uint32_t stages_gpu_layers_ahead(const struct moe_session *s, uint32_t layer, uint32_t *ahead);
/* The norm of the stream as the feed-forward's products of a layer want it; what goes into
 * gpu_work.hidden. */
struct moe_gpu_act stages_gpu_ffn_inputs(const struct moe_session *s, uint32_t layer);
/* The products that routing needs, of the router and perhaps of the shared expert's gate, which is
 * one more row of the same kind as a rule. Returns how many. */
uint32_t stages_gpu_list_routers(const struct moe_session *s, uint32_t layer,
                                 const struct moe_gpu_act *in, uint32_t n_rows,
                                 struct moe_gpu_product list[2]);
/* What is done with the layer's scores: chosen and weights, on the device. */
struct moe_gpu_router stages_gpu_router(const struct moe_session *s, uint32_t layer);

/* ---- Stages ---- */

/* What a layer with a recurrent state makes of its input, up to its last product, whose inputs are
 * returned. */
struct moe_gpu_act stages_gpu_recurrent(struct moe_session *s, uint32_t layer,
                                        const struct moe_gpu_act *in, uint32_t n_rows);

int stages_gpu_attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_err *err);
int stages_gpu_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_err *err);

/* What is asked with a layer's router so that `predict` can answer; a part of stages_gpu_route, by
 * itself where that is timed. */
void stages_gpu_ask_ahead(struct moe_session *s, uint32_t layer, uint32_t n_rows);
bool stages_gpu_predict(struct moe_session *s, uint32_t n, uint32_t n_rows, float *probabilities,
                        uint64_t layer_stride);
int stages_gpu_choose_predict_device(struct moe_session *s, struct moe_layer_predictor *predictor,
                                     struct moe_err *err);
void stages_gpu_add_stats(const struct moe_session *s, struct moe_stats *stats);

/* The shared expert; its gate goes with the router. */
void stages_gpu_run_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows);
int stages_gpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
bool stages_gpu_alone(struct moe_session *s, uint32_t layer, uint32_t n_rows);
void stages_gpu_grouped(struct moe_session *s, uint32_t n_rows);
int stages_gpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
uint32_t stages_gpu_at_once(const struct moe_session *s, uint32_t n_rows);
int stages_gpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, bool last,
                       struct moe_err *err);
void stages_gpu_take(struct moe_session *s, uint32_t which);
int stages_gpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

#endif
