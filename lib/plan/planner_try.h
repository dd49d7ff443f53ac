/*
 * What a trial (planner_try.c), trials side by side (trials.c) and the plan made of them
 * (planner.c) have in common. Internal to the planner.
 */
#ifndef MOE_PLAN_PLANNER_TRY_H
#define MOE_PLAN_PLANNER_TRY_H

#include "plan/planner.h"

/* Slots that keep experts, of all pools. */
uint32_t planner_n_cached(const struct moe_pools *pools);
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
/* Reads the trace by the reader in t->in. layers: [n_layers] or NULL. */
int planner_run(const struct moe_planner *p, struct planner_prepared *t,
                struct moe_simulated_layer *layers, struct moe_err *err);

#endif
