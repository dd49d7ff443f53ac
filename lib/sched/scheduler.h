/*
 * Scheduler: which of a layer's experts are taken from where and at what precision, which are
 * loaded, in which order, and which are prefetched. All decisions of a strategy are made here, on
 * top of the store (store.h). A channel moves the bytes: the runner's loader, or the simulator's
 * modelled link. Whatever could decide differently between the two is here, so that it cannot.
 *
 *     open, fill, then for each sequence begin_sequence, and for each of its passes
 *         begin_tokens
 *         known       of each layer with static routing: what it will ask for
 *         expected    of other layers: what it may ask for, by its tokens
 *         predicted   what the first layers may need, by the same
 *         for each MoE layer in order
 *             predicted   (by attention, before it)
 *             request     the router has chosen: what becomes of each expert; loads begin
 *             predicted   what later layers may need; prefetches begin
 *             poll        now and then
 *             next, complete, release   until every entry in a slot is computed
 *         end_tokens
 *
 * Where routers come before attention, a layer's request comes before its attention is computed,
 * and predictions for later layers follow it.
 *
 * Layers are MoE layers, numbered from 0: those of an encoder first, whose passes are over sources,
 * then the decoder's. An encoder's layers choose for a whole source at once, so that each of their
 * experts loads once for it, in the order of the request (EdgeMoE III-C2, "re-batching"); nothing
 * is predicted from the encoder's into the decoder's. One thread; nothing is allocated after
 * opening.
 */
#ifndef MOE_SCHED_SCHEDULER_H
#define MOE_SCHED_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "cache/link.h" /* enum moe_load_priority */
#include "cache/store.h"
#include "cache/usage.h"
#include "sched/inventory.h"
#include "sched/select.h"
#include "sched/strategy.h"

/* What became of activations, and of predictions and loads. The hits, misses, host_computed,
 * precalculated, skipped and elsewhere add up to the activations. */
struct moe_counts {
    uint64_t activations;
    uint64_t cache_hits, prefetch_hits, prefetch_late, misses;
    uint64_t host_computed, precalculated, skipped;
    uint64_t elsewhere;       /* computed by another process (ranks/ranks.h) */
    uint64_t low_precision;   /* of the activations: computed below the best precision */
    uint64_t substituted;     /* of the activations: not the router's choice */
    uint64_t predicted;       /* activations for which a prediction had been made */
    uint64_t predicted_right; /* ... and which were in the predicted set */
    uint64_t prefetches, prefetches_used; /* loads begun by predictions; of these, used later */
    /* Of the activations, those of layers with static routing, whose experts were asked for when
     * the pass began; of the prefetches, those that followed. */
    uint64_t known, known_prefetches;
    uint64_t loads, evictions;
    uint64_t lent; /* slots, when passes or the KV cache borrowed their memory */
    uint64_t prefetch_wasted_bytes;
};

/* ---- The channel ---- */

/* A segment that has ended. */
struct moe_arrival {
    uint32_t slot, segment;
    int status; /* MOE_OK, or why its bytes are not there */
};

/* What moves bytes; `ctx` comes first in each call. */
struct moe_channel {
    void *ctx;
    /* Begins to load a segment of the expert that the slot is for (moe_store_slot), as a demand or
     * a prefetch of this score; *handle names it until it has ended. */
    int (*submit)(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                  float score, uint32_t *handle, struct moe_err *err);
    void (*promote)(void *ctx, uint32_t handle); /* a prefetch has become a demand */
    /* Cancels one. True: nothing of it is under way; false: it will be reported as failed. */
    bool (*cancel)(void *ctx, uint32_t handle);
    /* What has ended, at most max; wait: sleeps until something has. 0 after a wait: nothing
     * is under way. */
    uint32_t (*reap)(void *ctx, bool wait, struct moe_arrival *done, uint32_t max);
    /* All loads of a slot have ended. May be NULL. */
    void (*loaded)(void *ctx, uint32_t slot);
    /* Why a load failed that an entry waits for: fills `err`, returns its status. */
    int (*failure)(void *ctx, struct moe_err *err);
    /* Loads that are submitted while it holds them begin together when it lets go. May be NULL. */
    void (*hold)(void *ctx, bool holds);
    /* Limits the prefetched bytes in flight when a demand comes, to about `bytes`. May be NULL. */
    void (*limit_prefetches)(void *ctx, double bytes);
    /* The memory of a slot is lent, or is the slot's again. May be NULL. */
    void (*lend)(void *ctx, uint32_t slot, bool lent);
};

/* ---- Opening ---- */

struct moe_scheduler_options {
    const struct moe_inventory *inventory; /* borrowed while the scheduler is open */
    const struct moe_strategy *strategy;   /* settled and fitted; copied */
    uint32_t high, low;                    /* variants: the one to use, and the lower one */
    /* Slots. Without per_layer they are divided among layers as the strategy says. */
    const struct moe_pools *pools;
    const uint64_t *frequency; /* [layer][expert] of a profile; NULL: none */
    const uint64_t *placement; /* likewise: what slots and first contents go by; NULL: frequency */
    /* What the cache holds at the start, in this order: layer * n_experts + expert. NULL: as the
     * strategy's --init says. */
    const uint32_t *contents;
    uint32_t n_contents;
    double layer_seconds, load_seconds; /* T and t_expert (Fate 4.3) until they are measured */
    uint32_t n_requests;                /* segments under way at most */
    uint64_t seed;
    struct moe_channel channel;
};

struct moe_scheduler;

/* The initial contents are not loaded yet: moe_scheduler_fill. */
int moe_scheduler_open(struct moe_scheduler **out, const struct moe_scheduler_options *options,
                       struct moe_err *err);
void moe_scheduler_close(struct moe_scheduler *s); /* NULL is fine */

struct moe_store *moe_scheduler_store(struct moe_scheduler *s);
/* The variant at which an expert is used unless something lowers it. */
uint32_t moe_scheduler_variant(const struct moe_scheduler *s, uint32_t layer, uint32_t expert);
const struct moe_usage *moe_scheduler_usage(const struct moe_scheduler *s);

/* Loads the initial contents of the cache. */
int moe_scheduler_fill(struct moe_scheduler *s, const struct moe_progress *progress,
                       struct moe_err *err);

/* ---- Passes ---- */

void moe_scheduler_begin_sequence(struct moe_scheduler *s);
/* A sequence of n tokens has ended, and others have not. */
void moe_scheduler_end_sequence(struct moe_scheduler *s, uint32_t n);
/* n further tokens; counts receives what becomes of them, prefill or decode. Slots whose memory
 * such a pass borrows (the pools' loan) are empty from here on, and others come back: the pass
 * before is over, and what it borrowed is given back, but for what this one borrows too. */
void moe_scheduler_begin_tokens(struct moe_scheduler *s, uint32_t n, bool prefill,
                                struct moe_counts *counts);
/* Before the counts of the last tokens go away: what happens until the next ones is theirs no more.
 */
void moe_scheduler_leave_counts(struct moe_scheduler *s);
/* Between passes: n blocks of the KV cache (of more than there are: all) take memory, for which
 * slots are lent as the loan says, from the next pass on, or now. */
void moe_scheduler_set_blocks(struct moe_scheduler *s, uint32_t n, bool now);
/* The pass is over and took `seconds`; the computing threads waited `stalled` seconds of these for
 * loads; at least one load was active for `reading` seconds, and `loads` loads were begun. measure:
 * T and t_expert may be learnt from it (decoded tokens, but for the first). */
void moe_scheduler_end_tokens(struct moe_scheduler *s, bool measure, double seconds, double stalled,
                              double reading, uint64_t loads);

/* ---- Requests ---- */

/* One expert of a request. */
struct moe_need {
    uint32_t expert, n_rows; /* rows of the pass that use it */
    float unimportance;      /* least score s of equation 2 (select.h) over these rows */
    bool precalculated;      /* computed already, on the host (DAOP IV-C) */
    bool elsewhere;          /* another process has the expert */
};

enum moe_entry_kind {
    MOE_ENTRY_SLOT = 0,      /* computed from a slot */
    MOE_ENTRY_HOST,          /* computed on the host, at `variant` */
    MOE_ENTRY_PRECALCULATED, /* has been computed */
    MOE_ENTRY_SKIPPED,       /* not computed at all */
    MOE_ENTRY_ELSEWHERE,     /* computed by another process */
};
enum moe_entry_state {
    MOE_ENTRY_WANTS_SLOT = 0, /* every slot is taken: comes later */
    MOE_ENTRY_HAS_SLOT,       /* ready or loading */
    MOE_ENTRY_DONE,           /* released, or needs no slot */
};
/* What becomes of a need, in the request's order. */
struct moe_entry {
    struct moe_need need;
    enum moe_entry_kind kind;
    enum moe_entry_state state;
    uint32_t variant, slot; /* slot: MOE_NO_SLOT while there is none */
    bool policy_knows;      /* private: the policy was told of the miss */
    bool given;             /* private: moe_scheduler_next has named it */
};

/* What the router of a layer has chosen, row by row, for the cache's policy: before the request. */
void moe_scheduler_chosen(struct moe_scheduler *s, const struct moe_choices *choices);
/* The router of `layer` has chosen. What an earlier request (one that ended in an error) still
 * holds is released. Fails with what the channel fails with. */
int moe_scheduler_request(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                          uint32_t n, struct moe_err *err);
/* The entries of the request under way: entry i is need i. */
const struct moe_entry *moe_scheduler_entries(const struct moe_scheduler *s, uint32_t *n);
/* The order in which they should be computed where several can be: indices into the entries. */
const uint32_t *moe_scheduler_order(const struct moe_scheduler *s);

/* Takes in what has arrived and begins what there is room for, without waiting. */
int moe_scheduler_poll(struct moe_scheduler *s, struct moe_err *err);
/* Entries whose first segments (all but the last) are there, each once over all calls: at least
 * one (waits when there is none), at most max. */
int moe_scheduler_next(struct moe_scheduler *s, uint32_t max, uint32_t *which, uint32_t *n,
                       struct moe_err *err);
/* Waits until all segments of an entry are there. */
int moe_scheduler_complete(struct moe_scheduler *s, uint32_t which, struct moe_err *err);
/* The entry is computed. */
void moe_scheduler_release(struct moe_scheduler *s, uint32_t which);

/* ---- Predictions ---- */

/* How many layers ahead of `layer`'s router (or, for predictions by attention, of its attention)
 * predictions are useful now: 0 where nothing predicts, or prefetching is switched off. */
uint32_t moe_scheduler_wants_prediction(const struct moe_scheduler *s, uint32_t layer);
/* ... and, before a pass, of how many layers from its first on: those that tokens predict. */
uint32_t moe_scheduler_wants_first(const struct moe_scheduler *s, uint32_t first);
/* Predictions for the next n layers, nearest first. */
int moe_scheduler_predicted(struct moe_scheduler *s, const struct moe_prediction *predictions,
                            uint32_t n, struct moe_err *err);

/* The pass that has begun will ask for these experts in a layer with static routing, as its tokens
 * say: `needs` are those of the request to come. Called for such layers in their order, before the
 * first request. Where the strategy prefetches what it predicts, what is absent is prefetched in
 * the order of the layers, as far as staging has room, and what is cached stays until it is used
 * (EdgeMoE III-A); else nothing happens. */
int moe_scheduler_known(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                        uint32_t n, struct moe_err *err);

/* The pass that has begun may ask for the marked experts ([n_experts], 0 or 1) in a layer: with
 * --protect-tokens those are not evicted before the layer's request. */
void moe_scheduler_expected(struct moe_scheduler *s, uint32_t layer, const uint8_t *marks);

/* Which experts of a layer the cache keeps at the variant in use, as its policy has decided, though
 * their loads may be under way: [n_experts], 0 or 1. What is prefetched and has not been used since
 * does not count: whether it is there is a matter of time. */
void moe_scheduler_cached(const struct moe_scheduler *s, uint32_t layer, uint8_t *cached);
/* Which experts of a layer are ready in slots: [n_experts], 0 or 1. */
void moe_scheduler_present(const struct moe_scheduler *s, uint32_t layer, uint8_t *present);

#endif
