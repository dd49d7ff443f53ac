/*
 * Stages: what a forward pass asks of the device that computes it. The pass itself (forward.c, with
 * the driver in sched/pass.c) is one for all devices: it decides what is computed in which order
 * and where experts come from; a device is one table of these functions.
 *
 * A pass goes: enter; for each layer attend, then dense or the MoE layer's stages in the order in
 * which they stand here (where routers stand before attention, choose comes first of all); leave.
 * Each stage says what lies in memory of the processor afterwards (the session's states and
 * request); the rest is the device's. Devices differ in where they compute and not in what:
 * kern/kern.h and infer/cpu_attention.c define it for all of them.
 */
#ifndef MOE_INFER_STAGES_H
#define MOE_INFER_STAGES_H

#include "infer/state.h"

struct moe_layer_predictor;
struct moe_recurrent;
struct moe_compressed;

struct moe_stages_ops {
    const char *name;

    /* Bytes that open takes of the processor's memory, and of the device's own (NULL: it has none);
     * UINT64_MAX: they overflow. o: complete, no member 0 that has a default. */
    uint64_t (*host_bytes)(const struct moe_config *config, const struct moe_session_options *o);
    uint64_t (*device_bytes)(const struct moe_config *config, const struct moe_session_options *o);
    /* Sets s->device and s->states. */
    int (*open)(struct moe_session *s, const struct moe_session_options *o, struct moe_err *err);
    /* A pass of n_rows comes: gives memory back that larger ones have borrowed (own_rows of the
     * session's options). NULL: nothing is borrowed. */
    void (*give_back)(struct moe_session *s, uint32_t n_rows);
    /* A block of the KV cache takes memory, or gives its memory back (kv_grows of the session's
     * options). NULL: that is not possible. */
    void (*hold_block)(struct moe_session *s, uint32_t block, bool held);
    void (*close)(struct moe_session *s); /* s->device is not NULL */

    /* The KV cache. NULL: it lies in the device's own memory. */
    const struct moe_kv *(*kv)(const struct moe_session *s);
    /* What sequences have beside it (infer/recurrent.h). NULL: it lies in the device's own memory.
     */
    void (*states)(const struct moe_session *s, const struct moe_recurrent **states,
                   const struct moe_compressed **compressed);
    /* A sequence receives the recurrent states of another. NULL: not for models with such. */
    void (*copy_states)(struct moe_session *s, uint32_t from, uint32_t to);
    /* A block of the KV cache receives all cells of another. */
    void (*copy_block)(struct moe_session *s, uint32_t from, uint32_t to);
    /* The rows' states: hidden_in [n_rows][moe_config_state_width], or NULL: the embeddings of
     * their tokens. */
    int (*enter)(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                 const float *hidden_in, struct moe_err *err);
    /* The first n_rows states become what a layer that drafts makes of the states of rows from[i]
     * (infer/forward.h); of a head that drafts blocks keys and values of all its layers are made.
     * NULL: not for such layers. */
    int (*join)(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                const uint32_t *from, struct moe_err *err);
    /* Computes the layers as they were recorded for a row before, without the host; false where
     * that cannot be, and the pass goes through them one by one. May be NULL. */
    bool (*replay)(struct moe_session *s, uint32_t n_rows, uint32_t layer_begin,
                   uint32_t layer_end);
    /* With router_early, of a layer with experts: the request's chosen and weights, by the stream
     * as it comes into the layer; route then only shows observers what it was. NULL: not for such
     * models. */
    int (*choose)(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err);
    /* The stream receives the attention's output, and in a decoder with an encoder then that of
     * attention to the rows' sources; then its norm for the feed-forward. */
    int (*attend)(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err);
    /* The stream receives the feed-forward of a layer without experts. */
    int (*dense)(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

    /* A MoE layer whose experts all lie on the device: the whole feed-forward without the host;
     * false where that cannot be. May be NULL. */
    bool (*alone)(struct moe_session *s, uint32_t layer, uint32_t n_rows);
    /* The request's chosen and weights by the layer's router (and what observers see). */
    int (*route)(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                 struct moe_err *err);
    /* The activations were grouped by expert: the request's rows, slot_of and weights are final.
     * May be NULL. */
    void (*grouped)(struct moe_session *s, uint32_t n_rows);
    /* What does not depend on the router: the shared expert and its gate. */
    int (*beside)(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
    /* How many ready experts it takes at a time, at most MOE_MAX_TOP_K. */
    uint32_t (*at_once)(const struct moe_session *s, uint32_t n_rows);
    /* Experts of the request, each for the rows that want it: their matrices up to the last, down;
     * then, for the same experts, that (last). */
    int (*experts)(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                   const struct moe_expert_view *views, uint32_t n, bool last, struct moe_err *err);
    /* The outputs of entry `which` were computed elsewhere and lie in the states' expert_out, or it
     * was left out and its outputs become zeros. NULL: they are read where they lie. */
    void (*take)(struct moe_session *s, uint32_t which);
    /* The stream receives the weighted outputs, the shared expert's too. */
    int (*combine)(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

    /* For the timeline: all that was asked for so far ends `part` of a layer; NULL: the layer
     * begins. Spans are recorded then, or with leave. */
    void (*reached)(struct moe_session *s, uint32_t layer, const char *part);
    /* The rows of the last pass are an encoder's states: their norm goes to output,
     * [n_rows][hidden] or NULL, and its keys and values in the decoder's layers into the sources'
     * cache. NULL: not for models with an encoder. */
    int (*keep_sources)(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        float *output, struct moe_err *err);
    /* The end of a pass. hidden_out: the states, as wide, or NULL. */
    int (*leave)(struct moe_session *s, uint32_t n_rows, float *hidden_out, struct moe_err *err);
    /* As moe_logits. */
    int (*logits)(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
                  struct moe_err *err);
    /* As moe_ahead_follow. NULL: not for such heads. */
    int (*follow)(struct moe_session *s, uint32_t token, float *logits, struct moe_err *err);
    /* As moe_last_state. NULL: the states lie in the device's own memory. */
    const float *(*last)(struct moe_session *s, uint32_t row);
    /* The token of row `row` with the largest logit, the first of equals. NULL: the caller takes
     * the logits. */
    int (*greedy)(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err);

    /* Probabilities of n_rows rows by the routers of the n MoE layers after the one that was routed
     * last, as the session's options predict: layer d's begin at probabilities + d * layer_stride.
     * False, or NULL: the routers' inputs (states' inputs or h, as the options want) lie in memory
     * of the processor, where the caller computes. */
    bool (*predict)(struct moe_session *s, uint32_t n, uint32_t n_rows, float *probabilities,
                    uint64_t layer_stride);
    /* Decides where `predict` computes: by time, or by the session's options. The session has
     * computed nothing yet. NULL: there is no choice. */
    int (*choose_predict_device)(struct moe_session *s, struct moe_layer_predictor *predictor,
                                 struct moe_err *err);
    /* Adds to the statistics what it measured for that. May be NULL. */
    void (*add_stats)(const struct moe_session *s, struct moe_stats *stats);
};

#endif
