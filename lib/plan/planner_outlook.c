#include "plan/planner_outlook.h"

#include "plan/trials.h"

/* Adds a step, unless the strategy cannot run there. bytes 0: as asked for; amount: the step's
 * own. */
static int add_step(const struct moe_planner *p, const struct moe_strategy *s, uint64_t bytes,
                    double rate, double amount, struct moe_plan_step *steps, uint32_t *n,
                    struct moe_err *err)
{
    struct moe_trial_run t;
    int status = moe_planner_try(p, s, bytes, rate, &t, NULL, err);
    if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
        return MOE_OK;
    if (status == MOE_OK)
        steps[(*n)++] =
            (struct moe_plan_step){amount, moe_trial_tokens_per_second(&t), moe_trial_hit_rate(&t)};
    return status;
}

/* Memory from the smallest that works up to where everything fits, and is resident. */
static int set_memory_steps(const struct moe_planner *p, const struct moe_fitted *f,
                            struct moe_plan *plan, struct moe_err *err)
{
    enum { STEPS = 10 };
    const struct moe_plan_memory *m = &f->memory;
    const struct moe_fit_room all = {.bytes = UINT64_MAX / 4, .batch = p->batch};
    struct moe_fitted whole;
    struct moe_strategy resident;
    uint32_t *n = &plan->n_memory_steps;
    uint64_t now = m->total ? m->total : f->named ? f->named : m->experts;
    *n = 0;
    moe_strategy_find("resident", &resident);
    int status = p->fitter.fit(p->fitter.ctx, &resident, &all, &whole, err);
    if (status != MOE_OK)
        return status == MOE_ERR_USAGE ? MOE_OK : status;
    const struct moe_plan_memory *w = &whole.memory;
    uint64_t most = m->total ? w->program + w->dense + w->kv + w->work + w->all : w->all;
    uint64_t least = m->total ? m->floor : m->token / 4;
    uint64_t step = most > least ? (most - least) / STEPS : 0;
    bool grows = step > 0 && now < most && !f->strategy.resident;
    struct moe_trial trials[STEPS + 1];
    uint64_t sizes[STEPS];
    uint32_t n_sizes = 0;
    /* The present size takes the place of a step near it. */
    for (uint32_t i = 0; grows && i < STEPS; i++) {
        uint64_t bytes = least + i * step;
        if ((i == 0 || now >= bytes - step / 2) &&
            (i + 1 == STEPS || now < bytes + (step - step / 2)))
            bytes = now;
        sizes[n_sizes] = bytes;
        trials[n_sizes++] = moe_trial_of(p, &f->strategy, bytes == now ? 0 : bytes, 0);
    }
    trials[n_sizes] = moe_trial_of(p, &resident, most, 0);
    status = moe_trials_ahead(p, trials, n_sizes + 1, NULL, 0, 0, err);
    for (uint32_t i = 0; i < n_sizes && status == MOE_OK; i++)
        status = add_step(p, &f->strategy, trials[i].bytes, 0, (double)sizes[i], plan->memory_steps,
                          n, err);
    if (status == MOE_OK)
        status = add_step(p, &resident, most, 0, (double)most, plan->memory_steps, n, err);
    return status;
}

static int set_rate_steps(const struct moe_planner *p, const struct moe_fitted *f,
                          struct moe_plan *plan, struct moe_err *err)
{
    static const double times[] = {0.25, 0.5, 1, 2, 4, 8};
    enum { STEPS = sizeof times / sizeof times[0] };
    struct moe_trial trials[STEPS];
    plan->n_rate_steps = 0;
    for (size_t i = 0; i < STEPS; i++)
        trials[i] = moe_trial_of(p, &f->strategy, 0, p->pace->load_rate * times[i]);
    int status = moe_trials_ahead(p, trials, f->strategy.resident ? 0 : STEPS, NULL, 0, 0, err);
    for (size_t i = 0; i < STEPS && status == MOE_OK; i++) {
        double rate = p->pace->load_rate * times[i];
        if (!f->strategy.resident)
            status = add_step(p, &f->strategy, 0, rate, rate, plan->rate_steps, &plan->n_rate_steps,
                              err);
    }
    return status;
}

int planner_set_outlook(const struct moe_planner *p, const struct moe_fitted *f,
                        struct moe_plan *plan, struct moe_err *err)
{
    int status = set_memory_steps(p, f, plan, err);
    return status == MOE_OK ? set_rate_steps(p, f, plan, err) : status;
}
