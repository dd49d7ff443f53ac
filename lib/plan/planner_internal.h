/*
 * What trials (planner_search.c) and the plan made of them (planner.c) have in common.
 */
#ifndef MOE_PLAN_PLANNER_INTERNAL_H
#define MOE_PLAN_PLANNER_INTERNAL_H

#include "plan/planner.h"

/* Slots that keep experts, of all pools. */
uint32_t planner_n_cached(const struct moe_pools *pools);
uint64_t planner_cache_bytes(const struct moe_planner *p, const struct moe_pools *pools);
/* Seconds of a load that waits for nothing: Fate's t_expert. */
double planner_load_seconds(const struct moe_planner *p, const struct moe_pace *pace,
                            uint32_t variant);

/* A trial about to be simulated. It points into itself: it stays where it is. */
struct planner_prepared {
    struct moe_trial_run run; /* how it fits; filled in by planner_run */
    struct moe_strategy strategy;
    struct moe_pools pools;
    struct moe_pace pace;
    struct moe_simulation in;
};
/* MOE_ERR_USAGE, MOE_ERR_LIMIT: as of moe_planner_try. */
int planner_prepare(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct planner_prepared *out,
                    struct moe_err *err);
/* The tokens of the trace for trials that only compare. */
struct moe_excerpt planner_excerpt(const struct moe_planner *p);
/* Steps of making a plan, in order, for progress: choosing a batch, the plan itself, texts
 * apart from each other, boundaries, other memory, links, alternatives, doubts. */
enum planner_step {
    PLANNER_BATCH,
    PLANNER_PLAN,
    PLANNER_TEXTS,
    PLANNER_BOUNDARIES,
    PLANNER_MEMORY,
    PLANNER_LINKS,
    PLANNER_ALTERNATIVES,
    PLANNER_DOUBTS,
    PLANNER_N_STEPS,
};
void planner_begin_step(const struct moe_planner *p, enum planner_step step);

/* Reads the trace by the reader in t->in. layers: [n_layers] or NULL. */
int planner_run(const struct moe_planner *p, struct planner_prepared *t,
                struct moe_simulated_layer *layers, struct moe_err *err);

/*
 * A plan's alternatives (half and twice the memory, other bits, ...) and its doubts (what becomes
 * of it when an assumption does not hold; planner.c). The planner seeks no optimum (lookups).
 */

/* What is simulated in place of the plan: a changed planner, strategy, size and rate. */
struct planner_variation {
    struct moe_planner planner;
    struct moe_pace pace; /* the planner's, once begun */
    const struct moe_strategy *strategy;
    uint64_t bytes; /* 0: as asked for */
    double load_rate;
};
/* As planned; it stays where it is, and borrows from both. */
void planner_begin_variation(struct planner_variation *v, const struct moe_planner *p,
                             const struct moe_fitted *f);

/* Simulates each and adds it to the plan, whose figures and evidence are there. f: how the strategy
 * fits the memory of the plan. */
int planner_set_alternatives(const struct moe_planner *p, const struct moe_fitted *f,
                             struct moe_plan *plan, struct moe_err *err);
int planner_set_doubts(const struct moe_planner *p, const struct moe_fitted *f,
                       struct moe_plan *plan, struct moe_err *err);

/*
 * A plan's outlook: what to expect with more or less memory, or of a faster or slower link.
 */

/* Fills the plan's steps of memory and rate. f: how the strategy fits the memory of the plan. */
int planner_set_outlook(const struct moe_planner *p, const struct moe_fitted *f,
                        struct moe_plan *plan, struct moe_err *err);

#endif
