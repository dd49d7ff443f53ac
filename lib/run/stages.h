/*
 * Stages: what a forward pass asks of the device that computes it. The pass itself (forward.c,
 * feed_forward.c) is one for all devices: it decides what is computed in which order and where
 * experts come from; a device is one table of these functions.
 *
 * A pass goes: enter; for each layer attend, then dense or the MoE layer's stages in the order in
 * which they stand here; leave. What lies on the host afterwards is said at each stage; the rest is
 * the device's. Devices differ in where they compute and not in what: kern/kern.h and run/attention
 * define it for all of them.
 */
#ifndef MOE_RUN_STAGES_H
#define MOE_RUN_STAGES_H

#include "run/session.h"

struct moe_stages_ops {
    const char *name;

    /* The rows' states: hidden_in [n_rows][hidden], or NULL: the embeddings of their tokens. */
    int (*enter)(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                 const float *hidden_in, struct moe_err *err);
    /* Computes the layers as they were computed for a row before, with nothing asked of the host:
     * false where that cannot be, and the pass goes through them one by one. May be NULL. */
    bool (*replay)(struct moe_session *s, uint32_t n_rows, uint32_t layer_begin,
                   uint32_t layer_end);
    /* The stream receives the attention's output; then its norm for the feed-forward. */
    int (*attend)(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err);
    /* The stream receives the feed-forward of a layer without experts. */
    int (*dense)(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

    /* A MoE layer whose experts all lie on the device: the whole feed-forward without asking the
     * host; false where that cannot be. May be NULL. */
    bool (*alone)(struct moe_session *s, uint32_t layer, uint32_t n_rows);
    /* work->chosen and work->weights of the layer's router (and what observers see). */
    int (*route)(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                 struct moe_err *err);
    /* The activations were grouped by expert: work->expert_rows, slot_of, weights are final. May be
     * NULL. */
    void (*grouped)(struct moe_session *s, uint32_t n_rows);
    /* What does not depend on the router: the shared expert and its gate. */
    int (*beside)(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
    /* How many ready experts it wants to be given at a time, at most MOE_MAX_TOP_K. */
    uint32_t (*at_once)(const struct moe_session *s, uint32_t n_rows);
    /* Experts of the request: each for the rows that want it. Asks the provider to complete them
     * before their last matrix is needed. */
    int (*experts)(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                   const struct moe_expert_view *views, uint32_t n, struct moe_err *err);
    /* The outputs of entry `which` were computed elsewhere and lie in work->expert_out, or it was
     * left out and its outputs become zeros. NULL: they are read where they lie. */
    void (*take)(struct moe_session *s, uint32_t which);
    /* The stream receives the weighted outputs, the shared expert's too. */
    int (*combine)(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

    /* For the timeline: all that was asked for so far ends `part` of a layer; NULL: the layer
     * begins. Spans are recorded then, or with leave. */
    void (*reached)(struct moe_session *s, uint32_t layer, const char *part);
    /* The end of a pass. hidden_out: the states, [n_rows][hidden], or NULL. */
    int (*leave)(struct moe_session *s, uint32_t n_rows, float *hidden_out, struct moe_err *err);
    /* As moe_logits. */
    int (*logits)(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
                  struct moe_err *err);
    /* The token of row `row` with the largest logit, the first of equals. NULL: whoever wants it
     * takes the logits. */
    int (*greedy)(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err);

    /* Probabilities of n_rows rows by the routers of the n MoE layers after the one that was routed
     * last, as the session's options look ahead: layer d's begin at probabilities + d *
     * layer_stride. NULL, or a pass of no more rows than predict_device.host_rows:
     * work->from_hidden or work->h, as the options want, lies on the host, where whoever wants to
     * know computes. */
    void (*look)(struct moe_session *s, uint32_t n, uint32_t n_rows, float *probabilities,
                 uint64_t layer_stride);
    void (*close)(struct moe_session *s);
};

extern const struct moe_stages_ops moe_stages_cpu;
extern const struct moe_stages_ops moe_stages_gpu; /* with a gpu in the session's options */

#endif
