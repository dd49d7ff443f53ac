/*
 * What a trial (planner_try.c) and the plan made of it (planner.c) have in common. Internal to the
 * planner.
 */
#ifndef MOE_PLAN_PLANNER_TRY_H
#define MOE_PLAN_PLANNER_TRY_H

#include "plan/planner.h"

/* Slots that keep experts, of all pools. */
uint32_t planner_n_cached(const struct moe_pools *pools);
/* Seconds of a load that waits for nothing: Fate's t_expert. */
double planner_load_seconds(const struct moe_planner *p, const struct moe_pace *pace,
                            uint32_t variant);

#endif
