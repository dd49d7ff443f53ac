/*
 * A plan's outlook: what more or less memory, or a faster or slower link, would give. Internal to
 * the planner.
 */
#ifndef MOE_PLAN_PLANNER_OUTLOOK_H
#define MOE_PLAN_PLANNER_OUTLOOK_H

#include "plan/planner.h"

/* Fills the plan's steps for what was fitted. */
int planner_look_around(const struct moe_planner *p, const struct moe_fitted *f,
                        struct moe_plan *plan, struct moe_err *err);

#endif
