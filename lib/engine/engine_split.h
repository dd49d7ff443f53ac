/*
 * The split of an engine's memory, decided before anything is loaded, in three steps: what becomes
 * of the strategy here (engine_strategy.h), what everything but the experts takes (engine_size.h),
 * and how many slots the rest gives (engine_split.c). Each is a function from what it is given to
 * its result. Internal to the engine and to the planner's view of it (engine/fit_pack.h).
 */
#ifndef MOE_ENGINE_ENGINE_SPLIT_H
#define MOE_ENGINE_ENGINE_SPLIT_H

#include "engine/engine.h"
#include "experts/expert_pools.h"

/* What is asked for, a plan's word before the options', and what there is. */
struct moe_split_inputs {
    const struct moe_model *model;            /* its directory is open */
    struct moe_gpu *gpu;                      /* NULL: none computes */
    const struct moe_engine_options *options; /* but for what follows */

    struct moe_strategy strategy;       /* not settled */
    bool automatic;                     /* none was named: resident where everything fits */
    struct moe_session_options session; /* its context is decided; batch 0: still open */

    /* Bytes. */
    uint64_t total, gpu_total;      /* the budgets; UINT64_MAX: not known */
    bool memory_named;              /* the user or a plan named the host's */
    uint64_t expert_memory;         /* for the expert cache alone; 0: what the budget leaves */
    uint64_t program;               /* the process with the model's directory open */
    bool grown;                     /* ... is larger than is computed */
    uint64_t all, token;            /* all experts at their best variant; those one token visits */
    struct moe_inventory inventory; /* empty where the model has no experts */
};

/* What becomes of the strategy on this pack and device. */
struct moe_resolved {
    struct moe_strategy strategy; /* settled and fitted */
    const char *fallback;         /* which part is replaced here, and why; NULL: none */
    uint32_t high, low;           /* variants that it uses; low is high where it uses one */
    struct moe_exactness exactness;
};

/* Not to be copied: it points into itself. */
struct moe_split {
    struct moe_resolved resolved;
    struct moe_budget budget;
    bool memory_named;
    struct moe_session_options session; /* complete */
    struct moe_cache_options cache;     /* of a strategy that is not resident; complete */
    struct moe_pools planned;           /* of a plan, for `cache` */
    struct moe_expert_pools pools;      /* what `cache` comes to; zero: everything is resident */
};

/* Whether a strategy takes part in passes: predicts, or computes beside the device. */
bool moe_engine_takes_part(const struct moe_strategy *s);

/* Threads that compute experts on the host, where a strategy does. */
uint32_t moe_engine_host_threads(bool on_gpu);

/* gpu: borrowed; NULL: none. MOE_ERR_LIMIT when the budget is too small, MOE_ERR_USAGE where the
 * strategy cannot run, MOE_ERR_FORMAT when the plan is another pack's. */
int moe_engine_split(struct moe_split *out, const struct moe_model *model, struct moe_gpu *gpu,
                     const struct moe_engine_options *options, struct moe_err *err);

#endif
