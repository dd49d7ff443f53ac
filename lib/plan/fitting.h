/*
 * Fitting: how a strategy would run in a given memory: what becomes of its parts with the variants
 * and devices there are, and how many slots it has. The planner asks this for every candidate;
 * engine/memory.h answers for a pack, this file for models without weights.
 */
#ifndef MOE_PLAN_FITTING_H
#define MOE_PLAN_FITTING_H

#include "plan/plan.h"
#include "sched/inventory.h"

/* A strategy as it will run. */
struct moe_resolved {
    struct moe_strategy strategy; /* settled and fitted */
    const char *fallback;         /* which part is replaced here, and why; NULL: none */
    uint32_t high, low;           /* variants that it uses; low is high where it uses one */
};

/* What a strategy is fitted to: a pack or a model without weights, on a machine. */
struct moe_fit_facts {
    const char *name; /* of the pack, for errors; NULL: a model without weights */
    const struct moe_inventory *inventory;
    const char *low;       /* variant; NULL: the last */
    bool all_fit;          /* all experts at their best variant have room */
    bool exact;            /* refuse what may change results */
    bool has_host;         /* something computes beside what runs the model */
    bool needs_statistics; /* the strategy needs them, and there are none */
};

/* Chooses the variants of r->strategy, which is settled, not resident, and fitted to statistics.
 * MOE_ERR_USAGE: it needs one that there is not. */
int moe_fit_variants(struct moe_resolved *r, const struct moe_fit_facts *facts,
                     struct moe_err *err);
/* Checks that what it needs beside the model is there; where it allows that, missing experts are
 * loaded instead of computed on a host. */
int moe_fit_needs(struct moe_resolved *r, const struct moe_fit_facts *facts, struct moe_err *err);

struct moe_fitted {
    struct moe_strategy strategy;  /* settled and fitted */
    uint32_t high, low;            /* variants */
    struct moe_pools pools;        /* n_classes 0: everything is resident */
    uint32_t staging;              /* of the working slots, those for prefetched experts */
    struct moe_plan_memory memory; /* where the slots are */
    struct moe_plan_memory host;   /* behind a GPU's (plan.h); total 0: as the planner has it */
    uint64_t host_bytes;           /* ... of it, for experts */
    uint64_t named; /* bytes that were named for the experts; 0: a whole budget was, or nothing */
};

/* What takes the place of what was asked for; 0: as asked for, and where that says nothing as the
 * engine chooses. */
struct moe_fit_room {
    uint64_t bytes; /* of memory */
    uint32_t batch; /* rows of a pass */
};

/* room NULL: everything as asked for. The floor of the memory is that of the batch that was asked
 * for, whatever room->batch is. MOE_ERR_USAGE: the strategy cannot run there. MOE_ERR_LIMIT: the
 * memory is too small. */
struct moe_fitter {
    void *ctx;
    int (*fit)(void *ctx, const struct moe_strategy *wanted, const struct moe_fit_room *room,
               struct moe_fitted *out, struct moe_err *err);
};

/* A model without weights. */
struct moe_shape_fit {
    const struct moe_inventory *inventory;
    const struct moe_statistics *statistics; /* NULL: none */
    bool has_host;
    bool exact;                    /* refuse what may change results */
    const char *low;               /* variant; NULL: the last */
    uint32_t staging;              /* slots for prefetched experts; 0: the cache's, or top_k */
    uint64_t expert_memory;        /* of the experts; 0: what total leaves */
    struct moe_plan_memory memory; /* total (0: none), program, dense, kv, work, context, batch */
    struct moe_loan kv; /* its blocks, where slots can lend them their memory; bytes 0: none can */
};

struct moe_fitter moe_fitter_of_shape(const struct moe_shape_fit *shape);

/* Slots beside the cache, out of `bytes` of memory for experts: `working` in all, of which
 * `staging` are for prefetched experts (one rule for packs and for shapes). named: the user named
 * the bytes of the cache; working slots then come on top of them. */
struct moe_slots {
    uint32_t working, staging;
    uint64_t cache_bytes; /* if named, or 0 without a cache */
};
struct moe_slots moe_slots_of(const struct moe_strategy *s, uint64_t bytes, bool named,
                              uint64_t slot_bytes, uint32_t top_k, uint32_t staging);

#endif
