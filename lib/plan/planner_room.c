/* The search for batch and staging, with the cache that they leave. */
#include "plan/planner.h"
#include "plan/trials.h"

/* One batch and staging: seconds of a prompt and of the trace's answers; 0: it cannot run. */
struct timed {
    double prompt, answers;
    double computing; /* of the prompt's */
    uint32_t n_prompt;
    struct moe_fitted fitted;
};

struct room_search {
    struct moe_planner *planner; /* takes over the best so far */
    struct moe_planner now;      /* what is being tried */
    const struct moe_strategy *strategy;
    struct timed own; /* by the fitter's choice */
    double best;      /* the sum of both times over the fitter's */
};

/* 0: those of the trace. */
static uint32_t tokens_of_prompt(const struct moe_planner *p, const struct moe_fitted *f)
{
    uint32_t context = f->memory.context, n = p->prompt_tokens ? p->prompt_tokens : context;
    if (p->inventory->n_encoder)
        return 0;
    if (context && n > context)
        n = context;
    return n < MOE_PLANNER_PROMPT ? n : MOE_PLANNER_PROMPT;
}

int moe_planner_try_prompt(const struct moe_planner *p, const struct moe_strategy *strategy,
                           uint64_t bytes, double load_rate, const struct moe_trial_run *whole,
                           struct moe_simulated_phase *out, uint32_t *n_tokens, struct moe_err *err)
{
    struct moe_planner of_prompt = *p;
    struct moe_trial_run t;
    *out = whole->simulated.prefill;
    *n_tokens = of_prompt.excerpt.prompt = tokens_of_prompt(p, &whole->fitted);
    if (*n_tokens == 0)
        return MOE_OK;
    of_prompt.lookups = NULL;
    int status = moe_planner_try(&of_prompt, strategy, bytes, load_rate, &t, NULL, err);
    *out = t.simulated.prefill;
    return status;
}

static int time_room(const struct moe_planner *p, const struct moe_strategy *strategy,
                     struct timed *out, struct moe_err *err)
{
    struct moe_trial_run t;
    struct moe_simulated_phase prompt;
    int status = moe_planner_try(p, strategy, 0, 0, &t, NULL, err);
    *out = (struct timed){0};
    if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
        return MOE_OK;
    if (status == MOE_OK)
        status = moe_planner_try_prompt(p, strategy, 0, 0, &t, &prompt, &out->n_prompt, err);
    if (status != MOE_OK)
        return status;
    out->prompt = prompt.seconds;
    out->answers = t.simulated.decode.seconds;
    out->computing = prompt.compute_seconds;
    out->fitted = t.fitted;
    return MOE_OK;
}

/* Times s->now's batch with each number of slots for prefetches, from the given one on; the
 * fitter's is number 0, whose time goes to *first. */
static int time_batch(struct room_search *s, size_t from, struct timed *first, struct moe_err *err)
{
    static const uint32_t times[] = {0, 2, 4}; /* top_k; 0: the fitter's */
    enum { MOST = sizeof times / sizeof *times };
    struct moe_planner *p = &s->now;
    struct moe_trial trials[2 * MOST] = {0};
    bool stages = s->own.fitted.staging > 0 && !s->own.fitted.strategy.stream;
    const size_t n = stages ? MOST : 1;
    uint32_t n_trials = 0;
    for (size_t i = from; i < n; i++) {
        struct moe_trial t = moe_trial_of(p, s->strategy, 0, 0);
        t.staging = times[i] * p->inventory->top_k;
        trials[n_trials++] = t;
        t.excerpt.prompt = s->own.n_prompt;
        trials[n_trials++] = t;
    }
    int status = moe_trials_ahead(p, trials, n_trials, NULL, 0, 0, err);
    for (size_t i = from; i < n && status == MOE_OK; i++) {
        struct timed t;
        p->staging = times[i] * p->inventory->top_k;
        status = time_room(p, s->strategy, &t, err);
        if (i == 0)
            *first = t;
        double prompt = s->own.prompt > 0 ? t.prompt / s->own.prompt : 1;
        double answers = s->own.answers > 0 ? t.answers / s->own.answers : 1;
        if (status == MOE_OK && t.prompt + t.answers > 0 && prompt <= 1 && answers <= 1 &&
            prompt + answers < s->best) {
            s->best = prompt + answers;
            s->planner->batch = p->batch;
            s->planner->staging = p->staging;
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
    struct room_search s = {.planner = p, .now = *p, .strategy = strategy, .best = 2};
    struct timed now;
    s.now.lookups = NULL;
    s.now.batch = s.now.staging = p->batch = p->staging = 0;
    int status = time_room(&s.now, strategy, &s.own, err);
    if (status != MOE_OK || s.own.prompt + s.own.answers <= 0 || !s.own.fitted.memory.total)
        return status;
    status = time_batch(&s, 1, &now, err);
    const uint32_t own = s.own.fitted.memory.batch, n = s.own.n_prompt;
    const uint32_t least = n && n < own ? n : own;
    double computing = s.own.computing;
    for (size_t i = 0; !p->batch_named && i <= sizeof batches / sizeof *batches; i++) {
        s.now.batch = i == 0 ? least : batches[i - 1];
        if (s.now.batch < least || s.now.batch == own || (i > 0 && s.now.batch == least))
            continue;
        if (status == MOE_OK)
            status = time_batch(&s, 0, &now, err);
        /* A prompt that stands in one pass gains nothing from more room for it. */
        if (status != MOE_OK || now.prompt + now.answers <= 0 || now.computing == computing)
            break;
        computing = now.computing;
    }
    return status;
}
