/*
 * Session: the state of computing with a model. KV cache for one or more sequences, scratch memory,
 * the forward pass.
 *
 * The forward pass takes rows of (sequence, position, token) and a range of layers. One function
 * serves prompt batches, single tokens, several sequences at once, and re-runs from a layer on with
 * given hidden states. A row's result depends on the rows before it in its own sequence only: not
 * on the batch, the thread count, or where experts came from.
 */
#ifndef MOE_RUN_SESSION_H
#define MOE_RUN_SESSION_H

#include <stdint.h>

#include "base/err.h"
#include "experts/experts.h"
#include "fmt/timeline.h"
#include "plan/pace.h"
#include "run/assign.h"
#include "run/model.h"
#include "run/stats.h"

struct moe_row {
    uint32_t sequence; /* 0..n_sequences-1 */
    uint32_t position; /* 0..context-1; positions of a sequence are computed in order, without gaps;
                          recomputing from an earlier position on is allowed */
    uint32_t token;    /* 0..vocab-1 */
};

/* What the pass shows of itself, for tests, statistics and traces. Any member may be NULL. */
struct moe_observer {
    void *ctx;
    /* After the router of a layer: for each of n_rows rows, in the order of the batch, the gate's
     * input [n_rows][hidden_stride], the softmax of its scores over all experts
     * [n_rows][router_stride], the chosen experts [n_rows][top_k] by falling score, and the weights
     * used. Borrowed for the call. */
    void (*routed)(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                   uint64_t router_stride, const uint32_t *chosen, const float *weights);
    /* Before attention: the normalised input of a layer's attention [n_rows][stride]. */
    void (*attending)(void *ctx, uint32_t layer, uint32_t n_rows, const float *input,
                      uint64_t stride);
    /* Between a layer's attention and its feed-forward: the residual stream and its norm are done.
     */
    void (*attended)(void *ctx, uint32_t layer);
    /* When all experts of a layer are computed: the output of activation i (row i / top_k, in the
     * order of `chosen`) is outputs[slots[i] * stride]. */
    void (*computed)(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                     uint64_t stride, const uint32_t *slots);
};

struct moe_gpu;

/* Where a session on a gpu asks the routers of layers ahead. */
enum moe_predict_on {
    MOE_PREDICT_ON_AUTO, /* where one row measures faster; more rows on the gpu */
    MOE_PREDICT_ON_GPU,
    MOE_PREDICT_ON_HOST,
};

/* The choice, and what it went by (run/predict_device.h). */
struct moe_predict_device {
    enum moe_predict_on named;        /* as the options say */
    uint32_t host_rows;               /* passes of up to so many rows are the host's; 0: none */
    double gpu_seconds, host_seconds; /* for one row; 0: there was nothing to choose */
};

struct moe_session_options {
    uint32_t context;     /* positions per sequence; 0: the model's context_max */
    uint32_t n_sequences; /* 1 */
    uint32_t batch;       /* most rows per pass; 0: 256 */
    uint16_t kv_kind;     /* MOE_LAYOUT_F32, or MOE_LAYOUT_F16: half the KV cache's memory, results
                             differ in the fourth digit; 0: F32 */
    uint32_t n_variants;  /* of the pack, where an assigner will say at which one each activation is
                             computed (assign.h); 0: none will */
    struct moe_gpu *gpu;  /* computes the stages, and holds the model's dense part, the experts'
                             views and the KV cache; borrowed. NULL: the processor */
    bool gpu_bf16;        /* prompts by bf16 products (gpu_ops.h, MOE_GPU_MATH_BF16) */
    bool needs_rows;      /* of a gpu: gate inputs come to the host, and outputs of experts that
                             were computed there go back */
    uint32_t look_depth;  /* of a gpu: routers so many MoE layers ahead are asked with each */
    bool look_residual;   /* ... on the stream instead of the gate's inputs */
    enum moe_predict_on predict_on; /* ... and there, or by the host: room is made for either */
};

struct moe_session {
    struct moe_model *model;             /* borrowed */
    struct moe_experts *experts;         /* borrowed */
    const struct moe_stages_ops *stages; /* the device's (run/stages.h) */
    uint32_t context, n_sequences, batch;
    int n_threads; /* as when it was opened: scratch memory is per thread */
    struct moe_stats stats;
    struct moe_phase_stats *phase; /* of the last pass, in stats; its logits' time goes there too */
    struct moe_observer observer;
    struct moe_timeline *timeline;       /* borrowed; NULL: nobody records */
    const struct moe_assigner *assigner; /* borrowed; NULL: the provider chooses the precision */
    struct moe_pass_strategy
        *strategy;               /* borrowed; NULL: nothing is done ahead (run/pass_strategy.h) */
    const struct moe_pace *pace; /* borrowed; what computing takes on the modelled clock of a
                                    lockstep run; NULL: nothing */
    struct moe_workspace *work;  /* buffers and KV cache; session.c */
    struct gpu_work *gpu_work;   /* the device's, private to its stages; NULL: the processor's */
    struct moe_gpu *pinned_by;   /* page-locks `work` */
    bool needs_rows, look_residual; /* as the options say */
    uint32_t look_depth;
    struct moe_predict_device predict_device;
};

/* Bytes of host memory that a session with these options allocates: the same code sizes and
 * allocates. */
uint64_t moe_session_bytes(const struct moe_config *config,
                           const struct moe_session_options *options);
/* The KV cache, which grows into its room as positions are filled: of these bytes, or with a gpu of
 * its own. */
uint64_t moe_session_kv_bytes(const struct moe_config *config,
                              const struct moe_session_options *options);
/* Bytes of the gpu's memory, KV cache included; 0 without one. */
uint64_t moe_session_gpu_bytes(const struct moe_config *config,
                               const struct moe_session_options *options);
int moe_session_open(struct moe_session **out, struct moe_model *model, struct moe_experts *experts,
                     const struct moe_session_options *options, struct moe_err *err);
void moe_session_close(struct moe_session *s);

enum moe_phase { MOE_PREFILL, MOE_DECODE };

/*
 * Computes rows (n_rows <= batch) through layers [layer_begin, layer_end).
 * hidden_in: states [n_rows][hidden] to start from; NULL: the embedding of the rows' tokens.
 * hidden_out: if not NULL, receives the states after layer_end - 1, [n_rows][hidden].
 * Statistics go to the named phase.
 */
int moe_forward(struct moe_session *s, enum moe_phase phase, const struct moe_row *rows,
                uint32_t n_rows, uint32_t layer_begin, uint32_t layer_end, const float *hidden_in,
                float *hidden_out, struct moe_err *err);

/* Floats from one row of logits to the next: the vocabulary rounded up to whole panels. */
uint64_t moe_logits_stride(const struct moe_config *config);

/* Logits of rows [first, first + n) of the last moe_forward, which must have ended with the last
 * layer: logits[i * moe_logits_stride + token]. Fails where a device does. */
int moe_logits(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
               struct moe_err *err);

#endif
