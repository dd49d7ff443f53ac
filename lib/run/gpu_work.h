/*
 * Working memory of a session whose stages run on a GPU (stages_gpu*.c): buffers of a pass, KV
 * cache, rotary angles, and what it keeps to itself. Private to run/. The host's part of a pass
 * (choices, groups of rows) stays in the session's workspace, page-locked.
 *
 * Pointers are the device's unless said otherwise; shapes as those of the same name in workspace.h.
 */
#ifndef MOE_RUN_GPU_WORK_H
#define MOE_RUN_GPU_WORK_H

#include "base/mem.h"
#include "gpu_ops.h"
#include "run/session.h"

enum {
    GPU_LOGITS_ROWS = 8, /* logits at a time */
    GPU_MAX_GRAPHS = 16, /* recordings, by the context they reach */
};

struct gpu_graph {
    struct moe_gpu_graph *graph;
    uint32_t end; /* positions that it reaches */
    bool has_run; /* its kernels did, one by one */
};

struct gpu_work {
    struct moe_gpu *gpu; /* borrowed */
    uint8_t *block;      /* all below that is the device's, but the KV cache */
    uint64_t block_bytes;
    struct moe_gpu_kv kv;
    uint64_t kv_bytes;

    uint64_t hidden_stride, q_stride, q_down_stride, k_stride, v_stride, queries_stride;
    uint64_t attended_stride, attn_stride, ff_stride, router_stride, logits_stride;
    struct moe_gpu_row *rows; /* [batch] */
    float *rope;
    float *h, *sum;
    struct moe_gpu_act hidden; /* the stream's norm: x is work->xn */
    float *q_down_raw;         /* [batch][q_rank] before its norm */
    struct moe_gpu_act q_down;
    float *q, *k, *v, *queries, *attended, *attn;
    struct moe_gpu_act heads;     /* [heads * batch] inputs of k_up and v_up, head by head */
    struct moe_gpu_act from_attn; /* x is attn */
    void *attention;              /* scratch */
    uint64_t attention_bytes;
    float *gate, *up;       /* [batch * top_k][ff_stride], of dense layers [batch] */
    struct moe_gpu_act mid; /* x is gate */
    /* The shared expert's beside those of the chosen ones: [MOE_GPU_JOINED_ROWS] rows. */
    float *shared_gate, *shared_up;
    struct moe_gpu_act shared_mid; /* x is shared_gate */
    float *expert_out, *shared_scale;
    float *scores; /* [batch][router_stride] */
    uint32_t *chosen, *expert_rows, *slot_of;
    float *weights;
    float *looks;            /* [MOE_MAX_DEPTH][batch][router_stride] */
    struct moe_gpu_act look; /* the stream under the norm of a layer ahead */
    float *logits;           /* [GPU_LOGITS_ROWS][logits_stride] */
    uint32_t *tokens;        /* [1] */
    void *math;
    uint64_t math_bytes;

    /* All experts on the device: what its own router chooses from. */
    struct moe_gpu_gated *table; /* [MoE layers][n_experts] on the device; NULL: not all are */
    struct moe_gpu_gated *like;  /* [MoE layers] of the host; where experts of a layer differ in
                                    layout, its gate.data is NULL */
    uint64_t table_bytes;
    bool recordable; /* a decode step needs nothing of the host */
    struct gpu_graph graphs[GPU_MAX_GRAPHS];
    uint32_t n_graphs;

    struct moe_gpu_mark *entered, *routed;
    struct gpu_timing *moments; /* for a timeline; NULL: nobody records */
    /* Of the host, page-locked. */
    uint8_t *host_block;
    uint64_t host_bytes;
    struct moe_gpu_row *host_rows; /* [batch] */
    float *host_looks;             /* as looks */
    uint32_t *host_token;          /* [1] */
    uint32_t n_rows, end;          /* of the pass; positions that it reaches */
    uint32_t n_looks;              /* layers ahead that were looked at with the last router */
    uint32_t normed_for;           /* the layer whose attention finds its norm in `hidden` */
};

/* Device memory that a session's buffers and KV cache take; UINT64_MAX on overflow. */
uint64_t gpu_work_bytes(const struct moe_config *config, const struct moe_session_options *o);

/* Host memory beside the session's workspace. */
uint64_t gpu_work_host_bytes(const struct moe_config *config, const struct moe_session_options *o);

/* o: complete (no member 0 that has a default). The model's dense part lies on o->gpu, and
 * `experts` give views there. */
int gpu_work_open(struct gpu_work **out, const struct moe_model *model,
                  const struct moe_experts *experts, const struct moe_session_options *o,
                  struct moe_err *err);
void gpu_work_close(struct gpu_work *g); /* waits for the device; NULL is fine */

/* The plain form of `room`, for `cols` columns; and what it takes besides so that matrices of a
 * layout can be multiplied with it. */
struct moe_gpu_act gpu_act_plain(const struct moe_gpu_act *room, uint32_t cols);
void gpu_act_want(struct moe_gpu_act *act, const struct moe_gpu_act *room,
                  struct moe_layout layout);
/* The same for all experts of a pack: the layouts of their gate and up, or of their down matrices.
 */
void gpu_act_want_experts(struct moe_gpu_act *act, const struct moe_gpu_act *room,
                          const struct moe_pack *pack, bool down);

#endif
