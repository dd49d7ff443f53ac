/*
 * A plan's outlook: what to expect with more or less memory, or of a faster or slower link.
 * Internal to the planner.
 */
#ifndef MOE_PLAN_PLANNER_OUTLOOK_H
#define MOE_PLAN_PLANNER_OUTLOOK_H

#include "plan/planner.h"

/* Fills the plan's steps of memory and rate. f: how the strategy fits the memory of the plan. */
int planner_set_outlook(const struct moe_planner *p, const struct moe_fitted *f,
                        struct moe_plan *plan, struct moe_err *err);

#endif
