#include "plan/trials.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "plan/planner_try.h"

/* Everything that a simulation depends on, but what is the planner's for good. Compared byte by
 * byte: padding that differs costs another simulation, nothing else. */
struct key {
    struct moe_strategy strategy; /* without its name */
    struct moe_pools pools;
    struct moe_pace pace;
    uint64_t max_tokens, first, warm; /* of the excerpt, and */
    uint32_t every, cut, prompt;
    uint64_t host_bytes, seed;
    const struct moe_lookups *lookups;
    const struct moe_statistics *statistics;
    uint32_t high, low, batch, staging;
};

struct remembered {
    struct remembered *next;
    struct key key;
    struct moe_simulated simulated;
    double optimal_hit_rate;
};

struct moe_trials {
    uint64_t n_run; /* simulations */
    const struct moe_inventory *inventory;
    struct moe_trace *trace;
    int n_readers;
    struct moe_trace *readers[MOE_MAX_THREADS]; /* by thread; the first is the planner's */
    struct remembered *first;
};

int moe_trials_open(struct moe_trials **out, const struct moe_planner *p, struct moe_err *err)
{
    int status = MOE_OK, threads = moe_par_threads();
    *out = NULL;
    struct moe_trials *t = moe_alloc(1, sizeof *t, err);
    if (!t)
        return MOE_ERR_MEMORY;
    t->inventory = p->inventory;
    t->readers[t->n_readers++] = t->trace = p->trace;
    while (t->n_readers < threads && status == MOE_OK) {
        status = moe_trace_another(&t->readers[t->n_readers], p->trace, err);
        t->n_readers += status == MOE_OK;
    }
    if (status == MOE_OK)
        *out = t;
    else
        moe_trials_close(t);
    return status;
}

void moe_trials_close(struct moe_trials *t)
{
    if (!t)
        return;
    while (t->first) {
        struct remembered *r = t->first;
        t->first = r->next;
        free(r);
    }
    for (int i = 1; i < t->n_readers; i++)
        moe_trace_close(t->readers[i]);
    free(t);
}

/* ---- What was simulated ---- */

/* An inventory made for one alternative is gone after it. */
static bool is_known(const struct moe_planner *p)
{
    return p->trials && p->inventory == p->trials->inventory && p->trace == p->trials->trace;
}

static void set_key(struct key *k, const struct moe_planner *p, const struct planner_prepared *t)
{
    const struct moe_excerpt *e = &t->in.excerpt;
    memset(k, 0, sizeof *k);
    k->strategy = t->strategy;
    k->strategy.name = k->strategy.describe = NULL;
    k->pools = t->pools;
    k->pace = t->pace;
    k->max_tokens = e->max_tokens;
    k->first = e->first;
    k->warm = e->warm;
    k->every = e->every;
    k->cut = e->cut;
    k->prompt = e->prompt;
    k->host_bytes = t->in.host_bytes;
    k->seed = p->seed;
    k->lookups = p->lookups;
    k->statistics = t->in.statistics;
    k->high = t->run.fitted.high;
    k->low = t->run.fitted.low;
    k->batch = t->in.batch;
    k->staging = t->run.fitted.staging;
}

static const struct remembered *find(const struct moe_trials *trials, const struct key *key)
{
    const struct remembered *r = trials->first;
    while (r && memcmp(&r->key, key, sizeof *key) != 0)
        r = r->next;
    return r;
}

/* Whether the same was simulated before: then it sets t->run. */
static bool recall(const struct moe_planner *p, struct planner_prepared *t)
{
    struct key key;
    if (!is_known(p))
        return false;
    set_key(&key, p, t);
    const struct remembered *r = find(p->trials, &key);
    if (r) {
        t->run.simulated = r->simulated;
        t->run.optimal_hit_rate = r->optimal_hit_rate;
    }
    return r != NULL;
}

/* Without memory for it, it is forgotten. */
static void remember(const struct moe_planner *p, const struct planner_prepared *t)
{
    struct moe_err ignored;
    struct remembered *r = is_known(p) ? moe_alloc(1, sizeof *r, &ignored) : NULL;
    if (!r)
        return;
    set_key(&r->key, p, t);
    r->simulated = t->run.simulated;
    r->optimal_hit_rate = t->run.optimal_hit_rate;
    r->next = p->trials->first;
    p->trials->first = r;
}

int moe_planner_try(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct moe_trial_run *out,
                    struct moe_simulated_layer *layers, struct moe_err *err)
{
    struct planner_prepared t;
    int status = planner_prepare(p, strategy, bytes, load_rate, &t, err);
    if (status == MOE_OK && (layers || !recall(p, &t))) {
        status = planner_run(p, &t, layers, err);
        if (status == MOE_OK)
            remember(p, &t);
        if (p->what && p->trials)
            moe_progress_report(p->progress, p->what, ++p->trials->n_run, 0);
    }
    *out = t.run;
    return status;
}

/* ---- Side by side ---- */

struct side {
    struct moe_planner planner;
    struct planner_prepared prepared;
    struct key key;
    int status;
    struct moe_err err;
};

struct crowd {
    struct side *sides;
    struct moe_trials *trials;
    const struct moe_progress *progress;
    const char *what;
    uint64_t done, total;
};

static void run_sides(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct crowd *c = ctx;
    for (int64_t i = begin; i < end; i++) {
        struct side *s = &c->sides[i];
        s->prepared.in.trace = c->trials->readers[thread];
        s->status = planner_run(&s->planner, &s->prepared, NULL, &s->err);
        uint64_t done = __atomic_add_fetch(&c->done, 1, __ATOMIC_RELAXED);
        if (thread == 0 && c->what) /* that which the planner runs on */
            moe_progress_report(c->progress, c->what, done, c->total);
        else if (thread == 0 && s->planner.what)
            moe_progress_report(c->progress, s->planner.what, c->trials->n_run + done, 0);
    }
}

/* Sets a side to what is not simulated yet; false: it is, cannot run, or an earlier one is it. */
static bool set_side(struct side *sides, uint32_t n, const struct moe_planner *p,
                     const struct moe_trial *trial)
{
    struct side *s = &sides[n];
    struct moe_err ignored;
    s->planner = *p;
    s->planner.excerpt = trial->excerpt;
    s->planner.batch = trial->batch;
    s->planner.staging = trial->staging;
    if (planner_prepare(&s->planner, trial->strategy, trial->bytes, trial->load_rate, &s->prepared,
                        &ignored) != MOE_OK)
        return false;
    set_key(&s->key, &s->planner, &s->prepared);
    bool known = find(p->trials, &s->key) != NULL;
    for (uint32_t i = 0; i < n && !known; i++)
        known = memcmp(&sides[i].key, &s->key, sizeof s->key) == 0;
    return !known;
}

int moe_trials_ahead(const struct moe_planner *p, const struct moe_trial *trials, uint32_t n,
                     const char *what, uint64_t done, uint64_t total, struct moe_err *err)
{
    int status = MOE_OK;
    uint32_t n_sides = 0;
    if (!is_known(p) || p->trials->n_readers < 2 || n < 2)
        return MOE_OK;
    struct side *sides = moe_alloc(n, sizeof *sides, err);
    if (!sides)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        n_sides += set_side(sides, n_sides, p, &trials[i]);
    struct crowd crowd = {sides, p->trials, p->progress, what, done, total};
    int before = moe_par_set_team(p->trials->n_readers);
    moe_par_for(n_sides, 1, run_sides, &crowd);
    moe_par_set_team(before);
    p->trials->n_run += n_sides;
    for (uint32_t i = 0; i < n_sides && status == MOE_OK; i++)
        if (sides[i].status == MOE_OK) {
            remember(&sides[i].planner, &sides[i].prepared);
        } else if (sides[i].status != MOE_ERR_USAGE && sides[i].status != MOE_ERR_LIMIT) {
            *err = sides[i].err;
            status = sides[i].status;
        }
    free(sides);
    return status;
}
