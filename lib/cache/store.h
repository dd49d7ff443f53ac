/*
 * Store of experts: which slot holds what, in which state, and who may not leave.
 *
 * Pure bookkeeping: slots are numbers, the bytes behind them belong to whoever drives the store
 * (the runner keeps memory, the simulator nothing). Slots of one size class form a pool; a pool's
 * slots hold cached experts (watched by a policy), staged ones (prefetched, not yet used: no policy
 * knows them) and transient ones (in use now, gone at release: what a full or absent cache lets
 * through).
 *
 *     absent --acquire--> loading --ready--> ready --evicted or released--> absent
 *
 * A pinned slot never leaves. All calls come from one thread. No allocation after opening.
 */
#ifndef MOE_CACHE_STORE_H
#define MOE_CACHE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/policy.h"

enum { MOE_NO_SLOT = UINT32_MAX, MOE_STORE_MAX_VARIANTS = 8 };

/* One pool: the slots of one size class. */
struct moe_pool_params {
    uint32_t n_cache;   /* slots that cached experts may fill; 0: nothing is kept */
    uint32_t n_working; /* further slots for staged and transient experts */
    /* Slots of n_cache for each layer [n_layers]; NULL: all layers share them (global). */
    const uint32_t *per_layer;
};

struct moe_store_params {
    uint32_t n_layers, n_experts, n_variants;
    uint32_t n_classes;                  /* and pools */
    const struct moe_pool_params *pools; /* [n_classes] */
    /* Class of [layer][expert][variant]; UINT32_MAX: the expert has no such variant. */
    const uint32_t *class_of;
    const uint64_t *class_bytes; /* [n_classes] of a slot; NULL: bytes are not counted */
    const struct moe_policy_ops *policy;
    const struct moe_usage *usage; /* for the policies, borrowed; NULL: none */
    const double *weights;         /* likewise */
    uint64_t seed;
};

enum moe_slot_state { MOE_SLOT_FREE = 0, MOE_SLOT_LOADING, MOE_SLOT_READY };
enum moe_slot_use { MOE_SLOT_CACHED = 0, MOE_SLOT_STAGED, MOE_SLOT_TRANSIENT };

struct moe_slot {
    enum moe_slot_state state;
    enum moe_slot_use use;
    uint32_t class_index;
    uint32_t layer, expert, variant; /* of what it holds */
    uint32_t pins;                   /* computations that use or await it */
    bool prefetched;                 /* came by a prefetch, and nobody has used it since */
    uint32_t next_free;              /* private */
};

struct moe_store;

int moe_store_open(struct moe_store **out, const struct moe_store_params *params,
                   struct moe_err *err);
void moe_store_close(struct moe_store *s);

uint32_t moe_store_n_slots(const struct moe_store *s);
/* Slots of pool `class_index` are the numbers [first, first + n). */
uint32_t moe_store_pool_first(const struct moe_store *s, uint32_t class_index);
const struct moe_slot *moe_store_slot(const struct moe_store *s, uint32_t slot);

/* The slot that holds or awaits the expert at `variant` or a better one (a lower index is better);
 * MOE_NO_SLOT when there is none. */
uint32_t moe_store_find(const struct moe_store *s, uint32_t layer, uint32_t expert,
                        uint32_t variant);

/* The router asked for what lies (or is on its way) in `slot`: tells the policy, admits a staged
 * one to the cache (which may evict), and pins it. */
void moe_store_use(struct moe_store *s, uint32_t slot);

/* The router asked for an absent expert: finds a slot, evicting where the policy says so; the slot
 * is loading and pinned. MOE_NO_SLOT when every slot of the pool is pinned or loading: release
 * something and ask again (the policy is told of the miss once: pass again = true then). */
uint32_t moe_store_miss(struct moe_store *s, uint32_t layer, uint32_t expert, uint32_t variant,
                        bool again);

/* The router of a layer has spoken: what is staged for this layer or one before, or since before
 * the token began, is stale. (A token has begun when the layer is not above the last one.) */
void moe_store_begin_layer(struct moe_store *s, uint32_t layer);

/* A slot in the working part for an expert that may be wanted: loading, staged, not pinned. Gives
 * MOE_NO_SLOT rather than evict a cached expert; stale ones make room, the oldest first, when
 * `replace`. (A miss takes any staged one, stale ones first.) */
uint32_t moe_store_stage(struct moe_store *s, uint32_t layer, uint32_t expert, uint32_t variant,
                         bool replace);

/* Fills the cache before the first token: a slot of the cached part, admitted, loading, not pinned.
 * MOE_NO_SLOT when the domain is full. */
uint32_t moe_store_fill(struct moe_store *s, uint32_t layer, uint32_t expert, uint32_t variant);

/* Takes a cached expert `out` of the layer out and gives its room to `in`: loading, admitted, not
 * pinned. MOE_NO_SLOT, and nothing happens, when `out` is not in the pool of that variant's class,
 * not ready or pinned, or `in` has a slot there already. */
uint32_t moe_store_replace(struct moe_store *s, uint32_t layer, uint32_t out, uint32_t in,
                           uint32_t variant);

/* A protected expert is not evicted, as if it were pinned (HOBBIT 3.3 "mask"). */
void moe_store_protect(struct moe_store *s, uint32_t layer, uint32_t expert, bool protect);

void moe_store_ready(struct moe_store *s, uint32_t slot);  /* its bytes are there */
void moe_store_failed(struct moe_store *s, uint32_t slot); /* its load failed or was given up:
                                                              forgotten, pins and all */
/* One pin less. A transient slot without pins is free again; given up while still loading it turns
 * into a staged one, for somebody is still writing to it. */
void moe_store_release(struct moe_store *s, uint32_t slot);

/* Counters since opening. */
struct moe_store_counts {
    uint64_t evictions;     /* cached experts that left */
    uint64_t staged_unused; /* staged experts that left without having been used */
    uint64_t staged_unused_bytes;
    uint64_t staged_used; /* staged experts that were asked for */
};
const struct moe_store_counts *moe_store_counts(const struct moe_store *s);

/* Checks every invariant (tests and debug builds); false with a reason. */
bool moe_store_check(const struct moe_store *s, struct moe_err *err);

#endif
