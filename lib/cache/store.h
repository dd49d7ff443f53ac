/*
 * Store of experts: which slot holds what, in which state, and who may not leave.
 *
 * Pure bookkeeping: slots are numbers, their bytes belong to the store's user (the runner keeps
 * memory, the simulator nothing). Slots of one size class form a pool; a pool's
 * slots hold cached experts (watched by a policy), staged ones (prefetched, not yet used: no policy
 * knows them) and transient ones (in use now, gone at release: what passes through a full or
 * absent cache).
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
    double half_life;              /* likewise */
    uint64_t seed;
};

enum moe_slot_state { MOE_SLOT_FREE = 0, MOE_SLOT_LOADING, MOE_SLOT_READY };
enum moe_slot_use { MOE_SLOT_CACHED = 0, MOE_SLOT_STAGED, MOE_SLOT_TRANSIENT };

struct moe_slot {
    enum moe_slot_state state;
    enum moe_slot_use use;
    uint32_t class_index;
    uint32_t layer, expert, variant; /* of what it holds */
    uint32_t pins;                   /* computations that use it or wait for it */
    bool prefetched;                 /* came by a prefetch, and was not used since */
    uint32_t next_free;              /* private */
};

struct moe_store;

int moe_store_open(struct moe_store **out, const struct moe_store_params *params,
                   struct moe_err *err);
void moe_store_close(struct moe_store *s);

uint32_t moe_store_n_slots(const struct moe_store *s);
const struct moe_slot *moe_store_slot(const struct moe_store *s, uint32_t slot);

/* The slot that holds, or will hold, the expert at `variant` or a better one (a lower index is
 * better); MOE_NO_SLOT when there is none. */
uint32_t moe_store_find(const struct moe_store *s, uint32_t layer, uint32_t expert,
                        uint32_t variant);

/* The router chose the expert that is, or soon will be, in `slot`: informs the policy, admits a
 * staged one to the cache (which may evict), and pins it. */
void moe_store_use(struct moe_store *s, uint32_t slot);

/* The router chose an absent expert: finds a slot, evicting where the policy says so; the slot is
 * loading and pinned. MOE_NO_SLOT when every slot of the pool is pinned or loading: release
 * something and call again, with again = true (the policy hears of a miss once). */
uint32_t moe_store_miss(struct moe_store *s, uint32_t layer, uint32_t expert, uint32_t variant,
                        bool again);

/* A token, or a pass over several, begins: what is staged is stale. */
void moe_store_begin_token(struct moe_store *s);
/* The router of a layer has chosen: what is staged for this layer or one before, or since before
 * the token began, is stale. (A token has begun when the layer is not above the last one.) */
void moe_store_begin_layer(struct moe_store *s, uint32_t layer);

/* A slot in the working part for a predicted expert: loading, staged, not pinned. Stale ones make
 * room, the oldest first, when `replace`. (A miss takes the slot of any staged one, stale ones
 * first.) Where there is none, the cache lends one of its slots, at most `lend` of them and half of
 * the pool's: one that it has not filled, or that of an expert which the policy evicts among the
 * layers up to the one whose router chose last, the last of them first: these run again latest.
 * Else MOE_NO_SLOT. */
uint32_t moe_store_stage(struct moe_store *s, uint32_t layer, uint32_t expert, uint32_t variant,
                         bool replace, uint32_t lend);

/* Whether the working part of the pool has a slot for a staged expert, free or of a stale one,
 * beside `keep` others, or half of the part where that is less. */
bool moe_store_has_spare(const struct moe_store *s, uint32_t layer, uint32_t expert,
                         uint32_t variant, uint32_t keep);

/* Gives lent slots back to the cache: as many staged experts leave, the oldest first, as far as
 * they can. */
void moe_store_take_back(struct moe_store *s);

/* Fills the cache before the first token: a slot of the cached part, admitted, loading, not pinned.
 * MOE_NO_SLOT when the domain is full. */
uint32_t moe_store_fill(struct moe_store *s, uint32_t layer, uint32_t expert, uint32_t variant);

/* Evicts a cached expert `out` of the layer and gives its slot to `in`: loading, admitted, not
 * pinned. MOE_NO_SLOT, and nothing happens, when `out` is not in the pool of that variant's class,
 * not ready or pinned, or `in` has a slot there already. */
uint32_t moe_store_replace(struct moe_store *s, uint32_t layer, uint32_t out, uint32_t in,
                           uint32_t variant);

/* A protected expert is not evicted, as if it were pinned (HOBBIT 3.3 "mask"). */
void moe_store_protect(struct moe_store *s, uint32_t layer, uint32_t expert, bool protect);

void moe_store_ready(struct moe_store *s, uint32_t slot);  /* its bytes are there */
void moe_store_failed(struct moe_store *s, uint32_t slot); /* its load failed or was given up:
                                                              forgotten, with its pins */
/* One pin less. A transient slot without pins is free again; given up while still loading it
 * becomes a staged one, for it is still being written. */
void moe_store_release(struct moe_store *s, uint32_t slot);

/* Counters since opening. */
struct moe_store_counts {
    uint64_t evictions;     /* cached experts that left */
    uint64_t staged_unused; /* staged experts that left without having been used */
    uint64_t staged_unused_bytes;
    uint64_t staged_used; /* staged experts that the router chose */
};
const struct moe_store_counts *moe_store_counts(const struct moe_store *s);

/* Checks every invariant (tests and debug builds); false with a reason. */
bool moe_store_check(const struct moe_store *s, struct moe_err *err);

#endif
