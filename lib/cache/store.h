/*
 * Store of experts: which slot holds what, in which state, and what may not leave.
 *
 * Pure bookkeeping: slots are numbers, their bytes belong to the store's user (the runner keeps
 * memory, the simulator nothing). Slots of one size class form a pool; a pool's slots hold cached
 * experts (watched by a policy), staged ones (prefetched, not yet used, unknown to policies) and
 * transient ones (in use now, gone at release: what passes through a full or absent cache).
 *
 *     absent --miss, stage or fill--> loading --ready--> ready --evicted or released--> absent
 *
 * A pinned slot never leaves. All calls come from one thread. No allocation after opening.
 */
#ifndef MOE_CACHE_STORE_H
#define MOE_CACHE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/loop.h"
#include "cache/policy.h"

/*
 * Names of experts. An expert's key is the one name by which caches, schedules and plans know it,
 * of the layer that owns it (base/loop.h); its copies, one for each variant that it is stored at,
 * are entries of tables.
 */
static inline uint32_t moe_expert_key(uint32_t n_experts, uint32_t owner, uint32_t expert)
{
    return owner * n_experts + expert;
}
static inline uint32_t moe_expert_copy(uint32_t n_variants, uint32_t key, uint32_t variant)
{
    return key * n_variants + variant;
}

enum { MOE_NO_SLOT = UINT32_MAX, MOE_STORE_MAX_VARIANTS = 8 };

/* One pool: the slots of one size class. */
struct moe_pool_params {
    uint32_t n_cache;   /* slots that cached experts may fill; 0: nothing is kept */
    uint32_t n_working; /* further slots for staged and transient experts */
    /* n_cache split by layer [n_layers]; NULL: all layers share them (global). */
    const uint32_t *per_layer;
};

struct moe_store_params {
    uint32_t n_layers, n_experts, n_variants;
    struct moe_loop loop;
    uint32_t n_classes;                  /* also the number of pools */
    const struct moe_pool_params *pools; /* [n_classes] */
    /* Class of [layer][expert][variant]; UINT32_MAX: the expert has no such variant. */
    const uint32_t *class_of;
    const uint64_t *class_bytes; /* [n_classes] bytes of a slot; NULL: bytes are not counted */
    const struct moe_policy_ops *policy;
    const struct moe_usage *usage; /* for the policies, borrowed; NULL: none */
    const double *weights;         /* likewise */
    double half_life;              /* likewise */
    uint64_t seed;
};

enum moe_slot_state {
    MOE_SLOT_FREE = 0,
    MOE_SLOT_LOADING,
    MOE_SLOT_READY,
    MOE_SLOT_WITHDRAWN, /* its memory serves for something else (moe_store_withdraw) */
};
enum moe_slot_use { MOE_SLOT_CACHED = 0, MOE_SLOT_STAGED, MOE_SLOT_TRANSIENT };

struct moe_slot {
    enum moe_slot_state state;
    enum moe_slot_use use;
    uint32_t class_index;
    uint32_t key, variant; /* what it holds */
    uint32_t pins;         /* computations that use it or wait for it */
    bool prefetched;       /* prefetched, and not used since */
    uint32_t next_free;    /* private */
};

struct moe_store;

int moe_store_open(struct moe_store **out, const struct moe_store_params *params,
                   struct moe_err *err);
void moe_store_close(struct moe_store *s);

uint32_t moe_store_n_slots(const struct moe_store *s);
const struct moe_slot *moe_store_slot(const struct moe_store *s, uint32_t slot);

/* The slot that holds, or will hold, the expert at `variant` or a better one (lower indices are
 * better); MOE_NO_SLOT: none. */
uint32_t moe_store_find(const struct moe_store *s, uint32_t key, uint32_t variant);

/* Notes that the router chose the expert that is, or soon will be, in `slot`: informs the policy,
 * admits a staged one to the cache (which may evict), and pins it. */
void moe_store_use(struct moe_store *s, uint32_t slot);

/* Finds a slot for an absent expert that the router chose, evicting where the policy says so; the
 * slot is loading and pinned. MOE_NO_SLOT when every slot of the pool is pinned or loading: release
 * something and call again with again = true (the policy counts one miss). */
uint32_t moe_store_miss(struct moe_store *s, uint32_t key, uint32_t variant, bool again);

/* Begins a token, or a pass over several: all staged experts become stale. */
void moe_store_begin_token(struct moe_store *s);
/* Notes that a layer's router has chosen: experts staged for this layer or one before, or since
 * before the token began, become stale. (A layer not above the last one begins a token.) */
void moe_store_begin_layer(struct moe_store *s, uint32_t layer);

/* Reserves a slot of the working part for a predicted expert: loading, staged, not pinned. With
 * `replace` it may take a stale one's, the oldest first. (A miss may take any staged one's, stale
 * ones first.) Otherwise, with `lend`, the cache lends a slot, at most half of the pool's: one it
 * has not filled, or that of an expert the policy evicts among the layers up to the one whose
 * router chose last, the highest layer first: it is needed again last. Else MOE_NO_SLOT. What may
 * be lent a slot without `replace` takes none of the working part. */
uint32_t moe_store_stage(struct moe_store *s, uint32_t key, uint32_t variant, bool replace,
                         bool lend);

/* Whether the working part of the pool has a slot for a staged expert, free or stale, beyond `keep`
 * others (or half of the part if that is less). */
bool moe_store_has_spare(const struct moe_store *s, uint32_t key, uint32_t variant, uint32_t keep);

/* Returns lent slots to the cache: as many staged experts leave, the oldest first, as far as
 * possible. */
void moe_store_take_back(struct moe_store *s);

/* Fills the cache before the first token: a slot of the cached part, admitted, loading, not pinned.
 * MOE_NO_SLOT when the domain is full. */
uint32_t moe_store_fill(struct moe_store *s, uint32_t key, uint32_t variant);

/* Evicts the cached expert `out` of the layer and gives its slot to `in`: loading, admitted, not
 * pinned. MOE_NO_SLOT, and nothing changes, when `out` is not in the pool of that variant's class,
 * is not ready or is pinned, or `in` already has a slot there. */
uint32_t moe_store_replace(struct moe_store *s, uint32_t out, uint32_t in, uint32_t variant);

/* Between passes, takes a slot away from the cache, whose capacity shrinks by it: of the pool, and
 * of its layers' shares, that has kept most of its slots, one that is not filled, else that of the
 * expert which the policy evicts. MOE_NO_SLOT when there is none now: all are loading or pinned. */
uint32_t moe_store_withdraw(struct moe_store *s);
/* The one that was withdrawn last; MOE_NO_SLOT: none is. */
uint32_t moe_store_withdrawn(const struct moe_store *s);
/* Gives that one back, which there must be. */
void moe_store_restore(struct moe_store *s);

/* Protects an expert from eviction, as if it were pinned (HOBBIT 3.3 "mask"). */
void moe_store_protect(struct moe_store *s, uint32_t key, bool protect);

void moe_store_ready(struct moe_store *s, uint32_t slot); /* its bytes are there */
void moe_store_failed(
    struct moe_store *s,
    uint32_t slot); /* its load failed or was given up: forgotten, with its pins */
/* Removes one pin. A transient slot without pins becomes free; one given up while still loading
 * becomes staged, since it is still being written. */
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
