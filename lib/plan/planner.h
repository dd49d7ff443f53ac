/*
 * Planner: tries strategies in the simulator and writes the best into a plan, with what a person
 * wants to know of it. Pure but for the trace it reads.
 */
#ifndef MOE_PLAN_PLANNER_H
#define MOE_PLAN_PLANNER_H

#include "base/progress.h"
#include "plan/fitting.h"
#include "plan/optimal.h"
#include "plan/plan.h"
#include "plan/simulate.h"
#include "sched/calibration.h"
#include "sched/strategy.h"

struct moe_planner {
    const struct moe_inventory *inventory;
    struct moe_fitter fitter;
    struct moe_trace *trace;
    struct moe_excerpt excerpt;              /* of the trace; {0}: all */
    const struct moe_lookups *lookups;       /* of the same tokens; NULL: no optimum */
    const struct moe_statistics *statistics; /* paths, frequencies, accuracies; NULL: none */
    const struct moe_pace *pace;
    bool exact;                                /* only what cannot change results */
    const struct moe_calibration *calibration; /* NULL: none */
    uint64_t seed;
    const struct moe_progress *progress;
};

struct moe_trial_run {
    struct moe_fitted fitted;
    struct moe_simulated simulated;
    double optimal_hit_rate; /* below 0: not known (optimal.h); of a row that loads before the first
                                token, prefetches or takes a lower precision it is no bound */
};

/* Of decoded tokens; 0 where none were decoded. */
double moe_trial_tokens_per_second(const struct moe_trial_run *t);
double moe_trial_hit_rate(const struct moe_trial_run *t);

/* One strategy, as it stands, in `bytes` of memory (0: as asked for), at load_rate (0: the pace's).
 * layers: [n_layers] or NULL. MOE_ERR_USAGE: it cannot run here, may change results where `exact`
 * is asked for, or does not go with the calibration. */
int moe_planner_try(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct moe_trial_run *out,
                    struct moe_simulated_layer *layers, struct moe_err *err);

/* Searches the rows of the table and their parts for the fastest decoding (--strategy auto): every
 * row that can run here without statistics at hand, then from the two best of them one part after
 * the other, as long as that gains; with a calibration, also what that found. On as many sequences
 * of the trace that a search takes a minute or less. Everything tried goes to plan->tried, the
 * fastest first. MOE_ERR_LIMIT: nothing can run here. */
int moe_planner_search(const struct moe_planner *p, struct moe_plan *plan,
                       struct moe_strategy *best, struct moe_err *err);

/* Fills the plan for one strategy: slots, contents, boundaries, T and n, expectations, steps. What
 * the caller knows better stays: names, fingerprint, evidence of files, what was tried. */
int moe_planner_make(const struct moe_planner *p, const struct moe_strategy *strategy,
                     struct moe_plan *plan, struct moe_err *err);

#endif
