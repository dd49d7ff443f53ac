/* The search for batch and staging, with the cache that they leave. */
#include "plan/planner.h"
#include "plan/trials.h"

/* Of one batch and staging: seconds of the trace's prompts and answers, 0 where it cannot run, and
 * of these those that computing prompts takes. */
struct timed {
    double seconds, prompts;
    struct moe_fitted fitted;
};

static int time_room(const struct moe_planner *p, const struct moe_strategy *strategy,
                     struct timed *out, struct moe_err *err)
{
    struct moe_trial_run t;
    int status = moe_planner_try(p, strategy, 0, 0, &t, NULL, err);
    *out = (struct timed){0};
    if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
        return MOE_OK;
    *out = (struct timed){t.simulated.prefill.seconds + t.simulated.decode.seconds,
                          t.simulated.prefill.compute_seconds, t.fitted};
    return status;
}

/* Times p's batch with each number of slots for prefetches, from the given one on; *first: with the
 * fitter's, which is number 0. The fastest so far goes to `best`, with its time in *least. */
static int time_batch(struct moe_planner *p, const struct moe_strategy *strategy, bool stages,
                      size_t from, struct timed *first, double *least, struct moe_planner *best,
                      struct moe_err *err)
{
    static const uint32_t times[] = {0, 2, 4}; /* top_k; 0: the fitter's */
    struct moe_trial trials[sizeof times / sizeof *times];
    const size_t n = stages ? sizeof times / sizeof *times : 1;
    for (size_t i = 0; i < n; i++) {
        trials[i] = moe_trial_of(p, strategy, 0, 0);
        trials[i].staging = times[i] * p->inventory->top_k;
    }
    int status =
        moe_trials_ahead(p, trials + from, (uint32_t)(n > from ? n - from : 0), NULL, 0, 0, err);
    for (size_t i = from; i < n && status == MOE_OK; i++) {
        struct timed t;
        p->staging = times[i] * p->inventory->top_k;
        status = time_room(p, strategy, &t, err);
        if (i == 0)
            *first = t;
        if (status == MOE_OK && t.seconds > 0 && t.seconds < *least) {
            *least = t.seconds;
            best->batch = p->batch;
            best->staging = p->staging;
        }
        if (status == MOE_OK && moe_progress_stopped(p->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return status;
}

int moe_planner_search_room(struct moe_planner *p, const struct moe_strategy *strategy,
                            struct moe_err *err)
{
    static const uint32_t batches[] = {16, 32, 64, 96, 128, 192, 256, 512};
    struct moe_planner t = *p;
    struct timed own, now;
    double least, prompts = -1;
    t.lookups = NULL;
    t.batch = t.staging = 0;
    p->batch = p->staging = 0;
    int status = time_room(&t, strategy, &own, err);
    if (status != MOE_OK || own.seconds <= 0 || !own.fitted.memory.total)
        return status;
    bool stages = own.fitted.staging > 0 && !own.fitted.strategy.stream;
    least = own.seconds;
    status = time_batch(&t, strategy, stages, 1, &own, &least, p, err);
    for (size_t i = 0; !p->batch_named && i < sizeof batches / sizeof *batches; i++) {
        if (status != MOE_OK)
            break;
        t.batch = batches[i];
        status = time_batch(&t, strategy, stages, 0, &now, &least, p, err);
        /* Prompts that stand in one pass gain nothing from more room for it. */
        if (now.seconds <= 0 || now.prompts == prompts)
            break;
        prompts = now.prompts;
    }
    return status;
}
