/*
 * Figures that the explanation of a plan gives: each follows from the plan by the formulas here.
 * Seconds are per decoded token.
 */
#ifndef MOE_SHOW_EXPLAIN_FIGURES_H
#define MOE_SHOW_EXPLAIN_FIGURES_H

#include "plan/plan.h"

/* The memory of the plan: the budget, or what was named for experts. */
double moe_plan_budget(const struct moe_plan *plan);
/* Whether experts that are not where they are computed come over a bus, not from the disk. */
bool moe_plan_over_bus(const struct moe_plan *plan);

/* What keeps a token from being faster. */
enum moe_bound {
    MOE_BOUND_COMPUTATION = 0, /* it would take so long with every expert in memory */
    MOE_BOUND_LINK,            /* what even a cache that knows the future must load takes longer:
                                  link_limit_seconds - compute_limit_seconds, not below 0 */
    MOE_BOUND_PREDICTION,      /* the rest: what knowing the future would save */
    MOE_N_BOUNDS
};
struct moe_plan_bounds {
    double total;                 /* compute + handling + stall + host seconds */
    double seconds[MOE_N_BOUNDS]; /* add up to the total */
    enum moe_bound largest;
};
struct moe_plan_bounds moe_plan_bounds(const struct moe_plan *plan);

/* The first step above `amount` (by more than a thousandth); NULL: none. */
const struct moe_plan_step *moe_plan_next_step(const struct moe_plan_step *steps, uint32_t n,
                                               double amount);

/* What would make decoding faster, all else as planned: one of the plan's alternatives. */
struct moe_advice {
    enum moe_alternative what;
    double amount, times; /* as an alternative has them */
    const char *precision;
    double gain; /* share by which tokens/s grow */
};
#define MOE_ADVICE_GAIN 0.01 /* a smaller gain is no advice */
/* The largest gain first; returns how many. */
uint32_t moe_plan_advice(const struct moe_plan *plan,
                         struct moe_advice out[MOE_PLAN_MAX_ALTERNATIVES]);
/* Of tokens/s, in place of the plan's; NAN where either is not known. */
double moe_plan_gain(const struct moe_plan *plan, double tokens_per_second);

/* What a plan assumes, the weakest first: by how much the speed moves where the simulator was asked
 * (its doubts), the others behind in the order of the enumeration. */
uint32_t moe_plan_assumptions(const struct moe_plan *plan,
                              enum moe_assumption out[MOE_N_ASSUMPTIONS]);

/* What the simulator made of one; NULL: it was not asked. */
const struct moe_plan_doubt *moe_plan_doubt_of(const struct moe_plan *plan,
                                               enum moe_assumption what);

/* Slots of all pools. */
struct moe_plan_slots {
    uint64_t n_cache, n_working, cache_bytes, working_bytes;
    uint64_t n_experts; /* of all layers */
    double share;       /* n_cache / n_experts */
    double tokens;      /* cache_bytes / bytes of the experts that one token visits */
};
struct moe_plan_slots moe_plan_slots(const struct moe_plan *plan);

/* Layers [first, first + n): sums of slots, of experts loaded before the first token and of stalls;
 * means of the shares that are known (below 0: none is). */
struct moe_plan_span {
    bool own_slots; /* some pool shares its slots out among layers */
    uint64_t slots, filled;
    double hit_rate, accuracy, stall_seconds;
};
struct moe_plan_span moe_plan_span(const struct moe_plan *plan, uint32_t first, uint32_t n);

#endif
