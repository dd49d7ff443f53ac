/*
 * Cache policies: which expert should leave a full pool.
 *
 * Pure bookkeeping: no memory of experts, no clock but the order of calls; the runner and the
 * simulator drive the same code. A policy watches one domain, a set of slots of one size class (all
 * layers together, or one layer each: the allocation decides). Keys are layer * n_experts + expert.
 * A policy is one file and one entry of a table (policy.c); options of its own are read in
 * sched/strategy.c.
 *
 * The protocol, once the router has chosen (Fate 4.1: lists change only then):
 *   hit:  use(key)
 *   miss: miss(key); while no slot is free: v = victim(key), drop(v); admit(key), or without a
 *         victim the key passes through
 * A prefetched expert is in staging, outside every policy; when the router chooses it, the policy
 * sees a miss, but nothing is loaded. So wrong predictions never reach a policy.
 *
 * Policies with needs_usage judge by the scheduler's record of use, which must have an activation
 * before the policy is told of it. Those with `follow` judge by their own record of all router
 * choices; the scheduler opens it beside the record of use and adds each layer's choices before the
 * first call about them.
 *
 * Sources: ARC: Megiddo and Modha, FAST 2003, fig. 4; its use per layer: Fate 4.4. edgemoe: EdgeMoE
 * III-C2; hobbit: HOBBIT 3.4; infinity: MoE-Infinity, arXiv 2401.14361; lrfu: Lee et al., IEEE
 * Transactions on Computers 50(12), 2001; transition, learned: this project's own.
 */
#ifndef MOE_CACHE_POLICY_H
#define MOE_CACHE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "cache/usage.h"

enum { MOE_NO_KEY = -1 };

/* The weighted parts of `hobbit`'s priority (HOBBIT 3.4, equation 3). */
enum moe_hobbit_weight {
    MOE_WEIGHT_LRU = 0,
    MOE_WEIGHT_LFU,
    MOE_WEIGHT_LHU,
    MOE_WEIGHT_FLD,
    MOE_HOBBIT_WEIGHTS
};

struct moe_policy_params {
    uint32_t n_keys;   /* keys are 0..n_keys-1 */
    uint32_t capacity; /* slots of the domain, at least 1 */
    uint64_t seed;     /* for `random` */
    /* The record of use; borrowed for the policy's life. NULL: none. */
    const struct moe_usage *usage;
    const double
        *weights;     /* [MOE_HOBBIT_WEIGHTS] of `hobbit`: lru, lfu, lhu, fld; NULL: its defaults */
    double half_life; /* of `lrfu`, in tokens; 0: its default */
};

/* Whether a key may leave now (no computation has pinned it). */
typedef bool (*moe_evictable_fn)(void *ctx, uint32_t key);

struct moe_policy;

struct moe_scored;
struct moe_policy_ops {
    const char *name;
    const char *describe; /* one line: what a full cache does */
    bool needs_usage;     /* does not open without params->usage */
    bool passes;          /* a scored policy that compares the incoming key, too */
    /* Carves and begins the policy's own record of all choices (moe_policy_follow), itself first;
     * NULL from an arena that only counts. A NULL pointer here: it keeps none. */
    struct moe_follower *(*follow)(struct moe_arena *arena,
                                   const struct moe_follower_params *params);
    int (*open)(struct moe_policy **out, const struct moe_policy_ops *ops,
                const struct moe_policy_params *params, struct moe_err *err);
    void (*close)(struct moe_policy *p);
    void (*use)(struct moe_policy *p, uint32_t key);   /* the router chose a resident key */
    void (*miss)(struct moe_policy *p, uint32_t key);  /* ... an absent one; may be NULL */
    void (*admit)(struct moe_policy *p, uint32_t key); /* an absent key becomes resident */
    void (*drop)(struct moe_policy *p, uint32_t key);  /* a resident key leaves */
    /* The resident key that should leave for `incoming` (MOE_NO_KEY: for anything), among those
     * that may; MOE_NO_KEY when none may, or, of a policy with `passes`, when `incoming` is worth
     * no more than any of them and may pass through. Changes nothing but a random generator. */
    int64_t (*victim)(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx);
    /* Scored policies (scored.h): a key's own part of its score, and the score of a part in layer
     * `of` while `layer` is running. */
    double (*part)(const struct moe_scored *s, uint32_t key);
    double (*score)(const struct moe_scored *s, double part, uint32_t of, uint32_t layer);
};

/* First member of every policy. */
struct moe_policy {
    const struct moe_policy_ops *ops;
};

const struct moe_policy_ops *moe_policy_find(const char *name); /* NULL: unknown */
const struct moe_policy_ops *moe_policy_at(int i);              /* NULL past the end */
/* Opens the policy's own record of choices, if it keeps one, as part of the record of use, beside
 * slots of `beside` bytes (0: any). */
int moe_policy_follow(const struct moe_policy_ops *ops, struct moe_usage *u, uint64_t beside,
                      struct moe_err *err);
/* The bytes of that record; ops NULL: none. */
uint64_t moe_policy_follow_bytes(const struct moe_policy_ops *ops,
                                 const struct moe_follower_params *params);

static inline int moe_policy_open(struct moe_policy **out, const struct moe_policy_ops *ops,
                                  const struct moe_policy_params *params, struct moe_err *err)
{
    return ops->open(out, ops, params, err);
}

static inline void moe_policy_close(struct moe_policy *p)
{
    if (p)
        p->ops->close(p);
}

extern const struct moe_policy_ops moe_policy_random, moe_policy_fifo, moe_policy_lru,
    moe_policy_lfu, moe_policy_arc, moe_policy_pinned, moe_policy_edgemoe,
    moe_policy_edgemoe_literal, moe_policy_hobbit, moe_policy_infinity, moe_policy_lrfu,
    moe_policy_transition, moe_policy_learned;

#endif
