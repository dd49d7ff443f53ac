/*
 * Scheduler: which of a layer's experts are taken from where and at what precision, which are
 * loaded, in which order, and which are fetched ahead. All decisions of a strategy are made here,
 * on top of the store (store.h); bytes are moved by whoever drives it: the runner's loader, or the
 * simulator's modelled link. Pure, one thread, no allocation after opening.
 *
 *     begin_sequence, then for each pass: begin_tokens; for each MoE layer in order
 *         request      the router has spoken: what becomes of each expert; loads begin
 *         foresee      what may be wanted in layers to come; prefetches begin
 *         (arrived, feed)* as loads end; release each entry when it is computed
 *
 * Layers are MoE layers, numbered from 0.
 */
#ifndef MOE_SCHED_SCHEDULER_H
#define MOE_SCHED_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/link.h" /* enum moe_load_priority */
#include "cache/store.h"
#include "cache/usage.h"
#include "sched/select.h"
#include "sched/strategy.h"

/* What became of activations (contract, section 4: they add up), and of predictions and loads. */
struct moe_counts {
    uint64_t activations;
    uint64_t cache_hits, prefetch_hits, prefetch_late, misses;
    uint64_t host_computed, precalculated, skipped;
    uint64_t low_precision;   /* of the activations: computed below the best precision */
    uint64_t substituted;     /* of the activations: not the router's choice */
    uint64_t predicted;       /* activations for which a prediction had been made */
    uint64_t predicted_right; /* ... and which were in the predicted set */
    uint64_t prefetches, prefetches_used; /* loads begun ahead; of these, asked for later */
    uint64_t loads, evictions;
    uint64_t prefetch_wasted_bytes;
};

/* One expert of a request. */
struct moe_need {
    uint32_t expert, n_rows; /* rows of the pass that want it */
    float unimportance;      /* least score s of equation 2 (precision.h) over these rows */
    bool precalculated;      /* computed already, on the host (DAOP IV-C) */
};

enum moe_entry_kind {
    MOE_ENTRY_SLOT = 0,      /* computed from a slot */
    MOE_ENTRY_HOST,          /* computed on the host, at `variant` */
    MOE_ENTRY_PRECALCULATED, /* has been */
    MOE_ENTRY_SKIPPED,       /* not at all */
};
enum moe_entry_state {
    MOE_ENTRY_WANTS_SLOT = 0, /* every slot is taken: comes later */
    MOE_ENTRY_HAS_SLOT,       /* ready or loading */
    MOE_ENTRY_DONE,           /* released, or needs no slot */
};
/* What became of a need, in the request's order. */
struct moe_entry {
    struct moe_need need;
    enum moe_entry_kind kind;
    enum moe_entry_state state;
    uint32_t variant, slot; /* slot: MOE_NO_SLOT while there is none */
    bool told;              /* private: the policy knows of the miss */
};

/* Moves bytes for the scheduler; `ctx` comes first in each call. */
struct moe_mover {
    void *ctx;
    /* Begins to fill a slot with what the store says it is to hold (moe_store_slot). A demand, or a
     * prefetch of this score. An error ends the request. */
    int (*load)(void *ctx, uint32_t slot, enum moe_load_priority priority, float score,
                struct moe_err *err);
    /* A prefetch under way is wanted now. */
    void (*promote)(void *ctx, uint32_t slot);
    /* Gives a prefetch up. True: nothing of it is under way, the slot is free at once; false: it
     * will be reported with moe_scheduler_arrived as failed. */
    bool (*cancel)(void *ctx, uint32_t slot);
    /* Whether one more load can be taken now. */
    bool (*has_room)(void *ctx);
};

struct moe_scheduler_params {
    uint32_t n_layers, n_experts, top_k, n_variants;
    uint32_t n_classes;
    const struct moe_pool_params *pools; /* [n_classes]; per_layer is by MoE layer */
    const uint32_t *class_of;            /* [layer][expert][variant]; UINT32_MAX: no such variant */
    const uint64_t *class_bytes;         /* [n_classes] of a slot */
    /* [layer][expert] variants: the best there is, the high one to be used, and the low one (the
     * same as the high one where there is none). */
    const uint32_t *best, *high, *low;
    const struct moe_strategy *strategy; /* settled; copied */
    const uint64_t *frequency;           /* [layer][expert] of a profile; NULL: none */
    uint64_t seed;
    struct moe_mover mover;
};

struct moe_scheduler;

int moe_scheduler_open(struct moe_scheduler **out, const struct moe_scheduler_params *params,
                       struct moe_err *err);
void moe_scheduler_close(struct moe_scheduler *s); /* NULL is fine */

struct moe_store *moe_scheduler_store(struct moe_scheduler *s);
const struct moe_usage *moe_scheduler_usage(const struct moe_scheduler *s);

/* Fills the cache with an expert before the first token: its slot, a demand load under way, or
 * MOE_NO_SLOT when there is no room (or it is there already). */
uint32_t moe_scheduler_fill(struct moe_scheduler *s, uint32_t layer, uint32_t expert,
                            struct moe_err *err);

void moe_scheduler_begin_sequence(struct moe_scheduler *s);
/* n further tokens; counts receives what becomes of them, prefill or decode. */
void moe_scheduler_begin_tokens(struct moe_scheduler *s, uint32_t n, bool prefill,
                                struct moe_counts *counts);

/* The router of `layer` has spoken. What an earlier request (one that ended in an error) still
 * holds is let go. Fails with what the mover fails with. */
int moe_scheduler_request(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                          uint32_t n, struct moe_err *err);
/* The entries of the request under way: entry i is need i. */
const struct moe_entry *moe_scheduler_entries(const struct moe_scheduler *s, uint32_t *n);
/* The order in which they should be computed where several can be: indices into the entries. */
const uint32_t *moe_scheduler_order(const struct moe_scheduler *s);
/* Finds slots for entries that still want one, and begins queued prefetches, as far as there is
 * room. To be called after arrived and release. */
int moe_scheduler_feed(struct moe_scheduler *s, struct moe_err *err);
/* The entry is computed. */
void moe_scheduler_release(struct moe_scheduler *s, uint32_t entry);

/* The loads of a slot have ended; ok: its bytes are there. A failed slot that an entry holds stays
 * its own until it is released. */
void moe_scheduler_arrived(struct moe_scheduler *s, uint32_t slot, bool ok);

/* A part of a slot's load has failed and the rest is under way: nobody should wait for it any more.
 * moe_scheduler_arrived follows when the rest has ended. */
void moe_scheduler_spoiled(struct moe_scheduler *s, uint32_t slot);

/* How many layers ahead of `layer`'s router predictions are of use now: 0 where nobody predicts, or
 * prefetching is switched off. */
uint32_t moe_scheduler_wants_prediction(const struct moe_scheduler *s, uint32_t layer);
/* Predictions for the next n layers, nearest first. */
int moe_scheduler_predicted(struct moe_scheduler *s, const struct moe_prediction *predictions,
                            uint32_t n, struct moe_err *err);

/* Which experts of a layer lie ready in slots: [n_experts], 0 or 1. */
void moe_scheduler_present(const struct moe_scheduler *s, uint32_t layer, uint8_t *present);

/* For the parts that measure. A decoded token took `seconds`; computing a layer takes so long, a
 * load of one expert so long (0: not known yet). */
void moe_scheduler_tell_token(struct moe_scheduler *s, double seconds);
void moe_scheduler_tell_times(struct moe_scheduler *s, double layer_seconds, double load_seconds);

#endif
