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
#include "run/experts.h"
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
     * input [n_rows][hidden_stride], its probabilities [n_rows][n_experts], the chosen experts
     * [n_rows][top_k] by falling weight, and the weights used. */
    void (*routed)(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                   const uint32_t *chosen, const float *weights);
};

struct moe_session_options {
    uint32_t context;     /* positions per sequence; 0: the model's context_max */
    uint32_t n_sequences; /* 1 */
    uint32_t batch;       /* most rows per pass; 0: 256 */
};

struct moe_session {
    struct moe_model *model;     /* borrowed */
    struct moe_experts *experts; /* borrowed */
    uint32_t context, n_sequences, batch;
    struct moe_stats stats;
    struct moe_observer observer;
    struct moe_workspace *work; /* buffers and KV cache; session.c */
};

/* Bytes that a session with these options allocates: the same code sizes and allocates. */
uint64_t moe_session_bytes(const struct moe_config *config,
                           const struct moe_session_options *options);
int moe_session_open(struct moe_session **out, struct moe_model *model, struct moe_experts *experts,
                     const struct moe_session_options *options, struct moe_err *err);
void moe_session_close(struct moe_session *s);

enum moe_phase { MOE_PREFILL, MOE_DECODE };

/*
 * Computes rows (n_rows <= batch) through layers [layer_begin, layer_end).
 *   layer_begin == 0: hidden states start from the embedding of the rows' tokens, else from
 *     hidden[n_rows][hidden].
 *   hidden, if not NULL, receives the states after layer_end - 1.
 *   logits, if not NULL and layer_end == n_layers: for each row i with want_logits[i] (NULL: the
 *     last row only), the next [vocab] floats of `logits`, in the order of the rows.
 * Statistics go to the named phase.
 */
int moe_forward(struct moe_session *s, enum moe_phase phase, const struct moe_row *rows,
                uint32_t n_rows, uint32_t layer_begin, uint32_t layer_end, float *hidden,
                const uint8_t *want_logits, float *logits, struct moe_err *err);

#endif
