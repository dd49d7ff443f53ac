/*
 * GPU timing: when a GPU reached the ends of the parts of a pass, by its own clock, as spans of the
 * session's timeline. Its clock is related to the processor's when recording begins.
 */
#ifndef MOE_INFER_GPU_WORK_H
#define MOE_INFER_GPU_WORK_H

#include "base/mem.h"
#include "fmt/timeline.h"
#include "gpu.h"
#include "gpu_ops.h"
#include "gpu_states.h"
#include "infer/kv.h"
#include "infer/recurrent.h"
#include "infer/state.h"

struct gpu_timing;

/* Room for `max` points of a pass. Waits for the device. */
int gpu_timing_open(struct gpu_timing **out, struct moe_gpu *gpu, uint32_t max,
                    struct moe_err *err);
void gpu_timing_close(struct gpu_timing *t); /* NULL is fine */

/* Marks the point that the compute stream has reached; with a part, it ends a span that began at
 * the point before. */
void gpu_timing_add(struct gpu_timing *t, uint32_t layer, const char *part);
/* Waits until all points were reached, and writes their spans. */
int gpu_timing_write(struct gpu_timing *t, struct moe_timeline *timeline, struct moe_err *err);

/*
 * Working memory of a session whose stages run on a GPU (gpu_work.c): buffers of a pass, KV
 * cache, rotary angles, and what these stages remember. The session's states and
 * request, with which the host works, are page-locked.
 *
 * Pointers are the device's unless said otherwise; shapes as those of the same name in
 * cpu_stages.h.
 */

enum {
    GPU_LOGITS_ROWS = 8, /* logits at a time */
    GPU_MAX_GRAPHS = 16, /* recordings, by the context they reach */
};

struct gpu_graph {
    struct moe_gpu_graph *graph;
    uint32_t end; /* positions that it reaches */
    bool has_run; /* its kernels did, one by one */
    bool refused; /* by the device, or for lack of memory: they go on so */
};

struct gpu_attention {
    struct moe_attention_strides stride;
    float *rope;
    float *q_factors;  /* [context]; NULL: queries are not scaled by their position */
    float *q_down_raw; /* [batch][q_rank] before its norm */
    struct moe_gpu_act q_down;
    float *q, *k, *v, *queries, *attended, *out;
    float *gate;                 /* as out, where outputs have one */
    struct moe_gpu_act heads;    /* [heads * batch] inputs of k_up and v_up, head by head */
    struct moe_gpu_act from_out; /* x is out */
    void *scratch;
    uint64_t scratch_bytes;
};

/* Of a layer with a recurrent state. */
struct gpu_recurrent {
    struct moe_recurrent_strides stride;
    uint64_t low_stride;
    float *mixed, *gate, *out, *beta, *decay; /* as cpu_recurrent's */
    struct moe_gpu_act low[2];                /* what gates and decays are made of */
    struct moe_gpu_act from_values;           /* x are values in `mixed`; shares bytes with: */
    struct moe_gpu_act from_out;              /* x is out */
};

struct gpu_feed_forward {
    uint64_t router_stride;
    float *gate, *up;       /* [batch * top_k][stride], of dense layers [batch] */
    struct moe_gpu_act mid; /* x is gate */
    /* The shared expert's beside those of the chosen ones: [MOE_GPU_JOINED_ROWS] rows. */
    float *shared_gate, *shared_up;
    struct moe_gpu_act shared_mid; /* x is shared_gate */
    float *expert_out, *shared_scale;
    float *scores; /* [batch][router_stride] */
    uint32_t *chosen, *rows, *slot_of;
    float *weights;
};

/* Predictions by the routers of layers ahead. */
struct gpu_prediction {
    bool residual; /* on the residual stream instead of the gate's inputs */
    uint32_t depth;
    float *probabilities;     /* [depth][batch][router_stride] */
    float *on_host;           /* the same, of the host */
    struct moe_gpu_act input; /* the stream under the norm of a layer ahead */
    uint32_t n_layers;        /* predicted with the last router */

    enum moe_predict_on named; /* by the session's options */
    uint32_t host_rows;        /* the host computes in passes of up to this many rows; 0: never */
    double gpu_seconds, host_seconds; /* for one row, as measured; 0: there was no choice */
};

/* All experts on the device, from which its own router chooses. */
struct gpu_residents {
    struct moe_gpu_gated *table; /* [MoE layers][n_experts]; NULL: not all are there */
    struct moe_gpu_gated *like;  /* [MoE layers] of the host; where experts of a layer differ in
                                    layout, its up.data is NULL */
    uint64_t table_bytes;
    bool recordable; /* a decoded token needs nothing of the host */
    struct gpu_graph graphs[GPU_MAX_GRAPHS];
    uint32_t n_graphs;
};

struct gpu_work {
    struct moe_gpu *gpu; /* borrowed */
    uint8_t *block;      /* everything on the device but KV cache and states */
    uint64_t block_bytes;
    uint8_t *host_block; /* everything on the host, the session's states included; page-locked */
    uint64_t host_bytes;
    void *pinned; /* the session's request, page-locked here */

    struct moe_kv kv;   /* of the device, its table too */
    uint32_t *kv_table; /* [n_sequences][per_sequence] the pool's, as of the last change known */
    uint64_t n_kv_changes;
    struct moe_recurrent states; /* of the device */
    struct moe_gpu_row *rows;    /* [batch] */
    uint64_t hidden_stride;
    float *h, *sum;
    struct moe_gpu_act hidden; /* the stream's norm: x is as the states' xn */
    struct gpu_attention attention;
    struct gpu_recurrent recurrent;
    struct gpu_feed_forward ff;
    struct gpu_prediction prediction;
    struct gpu_residents residents;
    float *logits;    /* [GPU_LOGITS_ROWS][moe_logits_stride] */
    uint32_t *tokens; /* [1] */
    void *math;
    uint64_t math_bytes;

    struct moe_gpu_row *host_rows; /* [batch], of the host */
    uint32_t *host_kv_table;       /* of the host, on its way to kv_table */
    uint32_t *host_token;          /* [1], of the host */
    float *host_logits;            /* as logits, of the host */
    bool needs_rows;               /* experts are computed on the host, too */
    uint32_t n_rows, end;          /* of the pass; positions that it reaches */
    uint32_t normed_for;           /* the layer whose attention finds its norm in `hidden` */
    struct moe_gpu_mark *entered, *routed;
    struct gpu_timing *timing; /* for a timeline; NULL: nothing is recorded */
};

/* Bytes of the device that a session takes, KV cache included; UINT64_MAX on overflow. o: complete
 * (no member 0 that has a default). */
uint64_t gpu_work_bytes(const struct moe_config *config, const struct moe_session_options *o);
/* Bytes of the host beside the session's request. */
uint64_t gpu_work_host_bytes(const struct moe_config *config, const struct moe_session_options *o);

/* Sets s->device and s->states. The model's dense part lies on o->gpu, and the session's experts
 * give views there. */
int gpu_work_open(struct moe_session *s, const struct moe_session_options *o, struct moe_err *err);
void gpu_work_close(struct gpu_work *g); /* waits for the device; NULL is fine */

#endif
