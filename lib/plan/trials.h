/*
 * Trials of a planner side by side, and those it made before: what the planner will try is
 * simulated ahead by as many threads as loops have, each with a reader of the trace of its own, and
 * remembered; the planner then decides in its own order, one after the other, by what is
 * remembered. So a plan is the same for every number of threads.
 */
#ifndef MOE_PLAN_TRIALS_H
#define MOE_PLAN_TRIALS_H

#include "plan/planner.h"

/* What the planner will ask moe_planner_try for, with the same planner and no layers. */
struct moe_trial {
    const struct moe_strategy *strategy;
    uint64_t bytes;
    double load_rate;
    struct moe_excerpt excerpt; /* the planner's, or another of its trace */
    uint32_t batch, staging;
};

/* Of a planner that tries these on its trace, with moe_par_threads() threads; set p->trials to it.
 * What the planner borrows stays as it is until it is closed. */
int moe_trials_open(struct moe_trials **out, const struct moe_planner *p, struct moe_err *err);
void moe_trials_close(struct moe_trials *t); /* NULL is fine */

/* As moe_planner_try would be asked for it with p's own excerpt, batch and staging. */
static inline struct moe_trial moe_trial_of(const struct moe_planner *p,
                                            const struct moe_strategy *strategy, uint64_t bytes,
                                            double load_rate)
{
    return (struct moe_trial){strategy, bytes, load_rate, p->excerpt, p->batch, p->staging};
}

/* Simulates those of n that were not yet, and remembers them. What cannot run here is left for
 * moe_planner_try to say. Reports `what` on the way, from `done` of `total` on; NULL: nothing.
 * Without p->trials, or with one thread, it does nothing. MOE_ERR_INTERRUPTED, MOE_ERR_MEMORY. */
int moe_trials_ahead(const struct moe_planner *p, const struct moe_trial *trials, uint32_t n,
                     const char *what, uint64_t done, uint64_t total, struct moe_err *err);

#endif
