/*
 * A plan's alternatives (half and twice the memory, other bits, ...) and its doubts (what becomes
 * of it when an assumption does not hold; planner_doubts.c). Internal to the planner.
 */
#ifndef MOE_PLAN_PLANNER_ALTERNATIVES_H
#define MOE_PLAN_PLANNER_ALTERNATIVES_H

#include "plan/planner.h"

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
/* All that the processor does takes so many times as long, handling loads too. */
void planner_scale_computation(struct moe_pace *pace, double times);

/* Simulates each and adds it to the plan, whose figures and evidence are there. f: how the strategy
 * fits the memory of the plan. */
int planner_set_alternatives(const struct moe_planner *p, const struct moe_fitted *f,
                             struct moe_plan *plan, struct moe_err *err);
int planner_set_doubts(const struct moe_planner *p, const struct moe_fitted *f,
                       struct moe_plan *plan, struct moe_err *err);

#endif
