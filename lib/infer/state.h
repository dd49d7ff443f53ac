/*
 * A session's state: what the stages of every device (infer/stages.h) see of a forward pass. It is
 * opened, and the pass driven, by infer/session.h.
 */
#ifndef MOE_INFER_STATE_H
#define MOE_INFER_STATE_H

#include <stdint.h>

#include "base/err.h"
#include "fmt/timeline.h"
#include "infer/experts.h"
#include "infer/kv.h"
#include "infer/model.h"
#include "infer/run_stats.h"
#include "kern/matmul.h"
#include "sched/pass.h"

struct moe_row {
    uint32_t sequence; /* 0..n_sequences-1 */
    uint32_t position; /* 0..context-1; positions of a sequence are computed in order, without gaps;
                          recomputing from an earlier position on is allowed, with recurrent states
                          only from 0 */
    uint32_t token;    /* 0..vocab-1 */
    /* Positions of the text that the row is computed for, above its own position, at most the
     * context: with LongRoPE they choose the frequencies, so that all rows of a text must say the
     * same. In an encoder: positions of the source. 0: position + 1, which will do for any other
     * model. */
    uint32_t length;
};

/*
 * Assigning precision: calibration says, activation by activation, at which of a pack's variants an
 * expert is computed. Entries of a request are then per expert and variant, so that one pass can
 * hold rows under different rules; a row's result is the same as in a pass of its own.
 */
struct moe_assigner {
    void *ctx;
    /* The router of a MoE layer has chosen for n_rows rows. variants: [n_rows][top_k] out, below
     * the session's n_variants or MOE_LEFT_OUT; chosen and weights as the observer sees them. An
     * expert that is not stored at a variant is computed at the best it has. */
    void (*assign)(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants);
};

/* In the place of a variant: the activation adds nothing; the other weights stay (HOBBIT 3.2). */
enum { MOE_LEFT_OUT = 0xff };

/* What the pass shows of itself, for tests, statistics and traces: on the processor, only
 * `computed` on other devices, too. Any member may be NULL. */
struct moe_observer {
    void *ctx;
    /* After the router of a layer, and its attention: for each of n_rows rows, in the order of the
     * batch, the gate's input (with router_early the experts': the gate took in the stream before
     * attention) [n_rows][hidden_stride], the softmax of its scores over all experts
     * [n_rows][router_stride], the chosen experts [n_rows][top_k] by falling score, and the weights
     * used. A choice beyond its expert's capacity (expert_capacity), which the model leaves out, is
     * there with the weight 0; no other has it. Borrowed for the call. */
    void (*routed)(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                   uint64_t router_stride, const uint32_t *chosen, const float *weights);
    /* Before attention: the normalized input of a layer's attention [n_rows][stride]. */
    void (*attending)(void *ctx, uint32_t layer, uint32_t n_rows, const float *input,
                      uint64_t stride);
    /* Between a layer's attention and its feed-forward: the input of the attention's output
     * projection [n_rows][output_stride] (NULL: a recurrent state takes its place), and the
     * norm of the residual stream [n_rows][norm_stride]. */
    void (*attended)(void *ctx, uint32_t layer, const float *output, uint64_t output_stride,
                     const float *norm, uint64_t norm_stride);
    /* When all experts of a layer are computed: the output of activation i (row i / top_k, in the
     * order of `chosen`) is outputs[slots[i] * stride]. */
    void (*computed)(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                     uint64_t stride, const uint32_t *slots);
};

/* Rows of sequence 0 that a pass through all layers has left in the states. */
struct moe_passed {
    uint32_t first, n; /* positions; n 0: the states are something else's */
};

struct moe_gpu;
struct moe_ranks;

/* Where a session on a GPU asks the routers of layers ahead. */
enum moe_predict_on {
    MOE_PREDICT_ON_AUTO, /* one row where it was measured to be faster; several rows on the GPU */
    MOE_PREDICT_ON_GPU,
    MOE_PREDICT_ON_HOST,
};

enum { MOE_SNAPSHOTS = 4 /* that programs ask for, for each text at a time */ };

struct moe_session_options {
    uint32_t context;     /* positions per sequence; 0: the model's context_max */
    uint32_t n_sequences; /* 0: 1 */
    uint32_t batch;       /* most rows per pass; 0: 256; raised to what must be in one: a source,
                             and with prefix_lm the context */
    uint32_t own_rows;    /* on the processor, passes of more rows borrow memory of the experts'
                             slots (sched/inventory.h, struct moe_loan), and give it back before the
                             next one with fewer; 0: all memory is the session's own */
    /* With an encoder, else they do not matter: */
    uint32_t source_context; /* positions per source; 0: as context */
    uint32_t n_sources;      /* kept at a time; 0: as n_sequences */
    uint32_t
        kv_blocks; /* of the KV cache (infer/kv.h); 0: enough for all sequences at full context */
    bool kv_grows; /* on the processor, its blocks take memory while a text needs them, as slots
                      lend it (sched/inventory.h, struct moe_loan) */
    uint32_t kv_keeps;  /* ... and so many of ended texts keep theirs, for texts that begin alike */
    bool whole_windows; /* layers with a window keep all keys and values (infer/kv_pool.h) */
    bool takes_back;    /* sequences can go back to where their recurrent states were kept
                           (moe_sequence_keep): each has them twice */
    uint32_t n_snapshots; /* of recurrent states, that texts to come can begin from
                             (moe_sequence_snapshot); 0: they reuse nothing of others. Engines and
                             servers make as many of these as memory has room for */
    uint16_t kv_kind;     /* how keys and values are kept (infer/kv.h); 0: F32 */
    uint32_t n_variants;  /* of the pack, where an assigner will say at which one each activation is
                             computed (struct moe_assigner); 0: there is no
                             assigner */

    /* Computes the stages, and holds the model's dense part, the experts' views and the KV cache;
     * borrowed. NULL: the processor, and the options below do not matter. */
    struct moe_gpu *gpu;
    bool gpu_bf16;          /* prefill by bf16 products (gpu_ops.h, MOE_GPU_MATH_BF16) */
    bool needs_rows;        /* experts are computed on the host, too: gate inputs come there, and
                               outputs go back */
    uint32_t predict_depth; /* how many MoE layers ahead routers are asked, with each */
    bool predict_residual;  /* ... on the residual stream instead of the gate's inputs */
    enum moe_predict_on predict_on; /* ... there, or by the host: room is made for either */
};

/* Recurrent states of a session with these options (complete): of its sequences, then with
 * takes_back one that is kept of each, then the snapshots. */
static inline uint32_t moe_session_states(const struct moe_session_options *o)
{
    return o->n_sequences * (1 + o->takes_back) + o->n_snapshots;
}

/* Rows of a pass where the processor sees them: all of these where it computes the stages; beside a
 * GPU those that predictions and experts on the host need. The others are NULL. */
struct moe_states {
    uint64_t stride;   /* floats from one row to the next */
    float *h;          /* [batch][stride] residual stream */
    float *xn;         /* [batch][stride] normalized: inputs of attention, then of the gate */
    float *expert_out; /* [batch * top_k][stride] a row per activation, by slot_of */
    struct moe_inputs inputs; /* xn, prepared for products */
    float *expert_in; /* [batch][stride] what routed experts take in: xn, or with expert_dim a
                         product of it, prepared in narrow_inputs */
    struct moe_inputs narrow_inputs;
    float
        *routed; /* [batch][stride], with router_dim: what the last router made of the rows; NULL */
};

/* What a session has of a source (infer/forward.h). */
struct moe_encoded {
    uint32_t length;  /* positions whose keys and values are kept; 0: none */
    uint32_t pending; /* positions of the last pass over it, until they are kept */
    uint64_t number;  /* of this encoding: no other source of the session has it, before or after */
};

/* A sequence: a text as far as it is computed (infer/session.h). Its ids are in its blocks of the
 * KV cache (infer/kv_pool.h). */
struct moe_sequence {
    uint32_t n;          /* positions of the text */
    uint32_t n_alike;    /* ... that were known when it began, also where it could not go on from
                            them */
    uint32_t n_recorded; /* tokens that the experts' records have of it */
    bool far;            /* its rows were computed for a text beyond rope_original */
    uint64_t owner;      /* whose text it is: the sequence's until another is named */
};

/* Of a sequence, with prefix_lm (infer/forward.h). */
struct moe_prompt {
    uint32_t n, prefix; /* positions; 0: there is none */
};

struct moe_session {
    struct moe_model *model;             /* borrowed; while a head drafts it is the head */
    uint32_t first_layer;                /* of `model` in the KV cache: 0, or behind the model's */
    struct moe_experts *experts;         /* borrowed */
    const struct moe_stages_ops *stages; /* the device's (infer/stages.h) */
    void *device;                        /* ... and its own state, private to them */
    uint32_t context, n_sequences, batch;
    uint32_t source_context, n_sources; /* 0 without an encoder */
    uint16_t kv_kind;                   /* of the KV cache's cells */
    int n_threads;                      /* as when it was opened: scratch memory is per thread */
    struct moe_stats stats;
    struct moe_phase_stats *phase; /* of the last pass, in stats; its logits' time goes there too */
    struct moe_passed passed;
    bool drafts; /* the states are those of a layer that drafts (infer/forward.h) */
    struct moe_observer observer;
    struct moe_timeline *timeline;       /* borrowed; NULL: nothing is recorded */
    struct moe_energy *energy;           /* borrowed; NULL: none is measured */
    const struct moe_assigner *assigner; /* borrowed; NULL: the provider chooses the precision */
    struct moe_strategy_work *strategy;  /* NULL: nothing beside the device's own work */
    struct moe_ranks *ranks;             /* borrowed; NULL: this process has all experts */
    bool led; /* of another rank than 0, which decides which text has which blocks and states, and
                 computes layers of rows that it is told */
    float *passing; /* [batch][moe_config_state_width] rows on their way from rank to rank; NULL:
                       this process has all layers */
    /* The driver of passes. It borrows a replay, to compute the replay's present pass (on the
     * processor: routers are asked, but the replay's choices and predictions are used, and layers
     * that it lacks are left out), and a pace, for a modelled clock. */
    struct moe_pass pass;
    struct moe_layer_request request;
    const struct moe_row *rows; /* [n_rows] of the pass at work */
    uint32_t n_rows;
    struct moe_expert_view views[MOE_MAX_TOP_K]; /* of the experts at work */
    uint32_t *moe_layers;                        /* [pass.shape.n_listed] the arrays of its shape */
    uint8_t *static_layers;
    struct moe_states states;
    float *router_row; /* borrowed, [router stride]: receives the scores that a layer's router gives
                          a pass's only row; NULL: nobody wants them */
    struct moe_kv_pool kv_pool;
    bool kv_grows;                  /* as in the options */
    uint32_t kv_keeps;              /* likewise */
    struct moe_sequence *sequences; /* [n_sequences] */
    struct moe_encoded *sources;    /* [n_sources] */
    uint32_t *attends;              /* [n_sequences] the source that each attends to */
    uint64_t n_encoded;             /* sources so far */
    struct moe_prompt *prompts;     /* [n_sequences], with prefix_lm */
    /* [n_sequences][layers that keep states] positions that each recurrent state has taken in;
     * NULL: there are none */
    uint32_t *state_ends;
    /* [n_sequences] positions that the kept states have taken in; MOE_NO_STATE: none are kept.
     * NULL: there is no room for them, or no recurrent state. */
    uint32_t *kept_ends;
    bool begins;            /* a sequence has a new text since the last pass */
    uint8_t *request_block; /* holds the arrays of both */
    uint64_t request_bytes;
};

enum moe_phase { MOE_PREFILL, MOE_DECODE, MOE_ENCODE };

/* n floats rounded up to whole panels, which kernels may write. */
static inline uint64_t moe_padded(uint64_t n)
{
    return moe_round_up(n, MOE_PANEL_ROWS);
}

/* Floats from one row of logits to the next: the vocabulary rounded up to whole panels. */
static inline uint64_t moe_logits_stride(const struct moe_config *config)
{
    return moe_padded(config->vocab);
}

#endif
