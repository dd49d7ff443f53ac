#include "serve/dispatching.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "serve/host_tier.h"
#include "serve/memory.h"

/* Where nothing is measured yet: their proportions are those of a small model on an SSD. */
#define FIRST_K 0.2     /* seconds for each request */
#define FIRST_B 0.1     /* ... and for each batch */
#define FIRST_RATE 1e9  /* bytes a second that a load reads */
#define HOST_RATE 1e10  /* ... from main memory, onto a GPU */
#define LEARN_SHARE 0.2 /* of what was seen last in what is predicted */

static const char *const processors[] = {"cpu", "cuda"};
enum { N_PROCESSORS = sizeof processors / sizeof *processors };

static uint32_t processor_of(const struct executor *x)
{
    return x->options.device.cuda ? 1 : 0;
}

/* ---- Costs ---- */

/* Costs of the server's own kinds, as long as nothing is measured. */
static int guess_costs(const struct moe_server *s, struct moe_coe_costs **out, struct moe_err *err)
{
    struct moe_coe_costs *c = moe_alloc(1, sizeof *c, err);
    *out = c;
    if (!c)
        return MOE_ERR_MEMORY;
    uint32_t n_kinds = s->n_kinds;
    c->processors = moe_alloc(N_PROCESSORS, sizeof *c->processors, err);
    c->kinds = moe_alloc(n_kinds, sizeof *c->kinds, err);
    c->costs = moe_alloc((uint64_t)n_kinds * N_PROCESSORS, sizeof *c->costs, err);
    c->models = moe_alloc(s->n_models, sizeof *c->models, err);
    if (!c->processors || !c->kinds || !c->costs || !c->models)
        return MOE_ERR_MEMORY;
    for (; c->n_processors < N_PROCESSORS; c->n_processors++)
        snprintf(c->processors[c->n_processors].name, sizeof c->processors[0].name, "%s",
                 processors[c->n_processors]);
    for (; c->n_kinds < n_kinds; c->n_kinds++) {
        snprintf(c->kinds[c->n_kinds].name, sizeof c->kinds[0].name, "kind-%u", c->n_kinds);
        for (uint32_t on = 0; on < N_PROCESSORS; on++)
            c->costs[c->n_costs++] = (struct moe_coe_kind_cost){
                .cost = {.per_request = FIRST_K, .per_batch = FIRST_B, .max_batch = UINT32_MAX},
                .kind = c->n_kinds,
                .on = on};
    }
    for (; c->n_models < s->n_models; c->n_models++) {
        const struct model *m = &s->models[c->n_models];
        struct moe_coe_model_cost *to = &c->models[c->n_models];
        *to = (struct moe_coe_model_cost){.probability = -1, .kind = m->kind};
        snprintf(to->name, sizeof to->name, "%s", m->name);
        snprintf(to->architecture, sizeof to->architecture, "kind-%u", m->kind);
        for (uint32_t on = 0; on < N_PROCESSORS; on++) {
            struct moe_coe_cost *cost = &c->costs[m->kind * N_PROCESSORS + on].cost;
            double seconds = (double)m->file_bytes / FIRST_RATE;
            cost->load = seconds > cost->load ? seconds : cost->load;
            cost->load_from_host = cost->load * FIRST_RATE / HOST_RATE;
        }
    }
    return MOE_OK;
}

/* Threads of its executors, which are alike; 0: there are none. */
static uint32_t team_on(const struct moe_server *s, uint32_t processor)
{
    uint32_t i = 0;
    while (i < s->n_executors && processor_of(&s->executors[i]) != processor)
        i++;
    return i < s->n_executors ? (uint32_t)s->executors[i].options.n_threads : 0;
}

/* What a model counts for on an executor: on a GPU no more models are there at a time than main
 * memory has room for beside. */
static uint64_t size_of(const struct executor *x, const struct model *m)
{
    uint64_t bytes = memory_of_model(x, m);
    uint64_t least = x->most_models ? x->expert_bytes / x->most_models : 0;
    return bytes > least ? bytes : least;
}

/* The experts of dispatch, their sizes on each executor, and costs for each processor. */
static int describe_models(struct moe_server *s, const struct moe_coe_costs *c, struct moe_err *err)
{
    int status = moe_coe_costs_experts(&s->all, c, s->collection, NULL, err);
    if (status != MOE_OK)
        return status;
    s->sizes = moe_alloc((uint64_t)s->n_executors * s->n_models, sizeof *s->sizes, err);
    if (!s->sizes)
        return MOE_ERR_MEMORY;
    for (uint32_t k = 0; k < s->n_executors; k++) {
        uint64_t *sizes = s->sizes + (uint64_t)k * s->n_models;
        for (uint32_t i = 0; i < s->n_models; i++)
            sizes[i] = size_of(&s->executors[k], &s->models[i]);
        s->size_rows[k] = sizes;
    }
    for (uint32_t p = 0; p < N_PROCESSORS; p++) {
        s->costs[p] = moe_alloc(s->all->n_kinds, sizeof *s->costs[p], err);
        if (!s->costs[p])
            return MOE_ERR_MEMORY;
        s->processors[p] = moe_coe_costs_processor(c, processors[p]);
        if (s->processors[p] != MOE_COE_NONE)
            moe_coe_costs_table(c, s->processors[p], team_on(s, p), s->costs[p]);
    }
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (s->processors[processor_of(&s->executors[i])] == MOE_COE_NONE)
            return moe_fail(err, MOE_ERR_USAGE, "the costs have no processor '%s'",
                            processors[processor_of(&s->executors[i])]);
    return MOE_OK;
}

/* Batches no larger than the sessions that there is memory for. */
static int limit_batches(struct moe_server *s, struct moe_err *err)
{
    for (uint32_t i = 0; i < s->n_executors && !s->whole; i++)
        for (uint32_t m = 0; m < s->n_models; m++) {
            struct moe_session_options o;
            struct moe_coe_cost *cost =
                &s->costs[processor_of(&s->executors[i])][s->all->experts[m].kind];
            uint32_t on = s->processors[processor_of(&s->executors[i])];
            if (s->models[m].broken || s->all->experts[m].not_on >> on & 1)
                continue;
            int status = memory_session(&s->executors[i], &s->models[m], &o, err);
            if (status != MOE_OK)
                return status;
            cost->max_batch = o.n_sequences < cost->max_batch ? o.n_sequences : cost->max_batch;
        }
    return MOE_OK;
}

/* ---- Opening ---- */

static bool in_host(const void *ctx, uint32_t model)
{
    return host_tier_has(ctx, model);
}

static int open_dispatch(struct moe_server *s, struct moe_err *err)
{
    const struct moe_coe_schedule *schedule = s->options.schedule;
    struct moe_coe_executor_options executors[MOE_SERVER_MAX_EXECUTORS] = {0};
    for (uint32_t i = 0; i < s->n_executors; i++) {
        const struct executor *x = &s->executors[i];
        executors[i] = (struct moe_coe_executor_options){
            .costs = s->costs[processor_of(x)],
            .expert_bytes = x->expert_bytes,
            .batch_bytes = x->batch_bytes,
            .processor = s->processors[processor_of(x)],
        };
    }
    const struct moe_coe_options o = {
        .all = s->all,
        .n_executors = s->n_executors,
        .executors = executors,
        .sizes = s->size_rows,
        .in_host = in_host,
        .ctx = s,
        .arrange = schedule->arrange,
        .assign = schedule->assign,
        .evict = s->options.evict,
    };
    return moe_coe_dispatch_open(&s->dispatch, &o, err);
}

int dispatching_open(struct moe_server *s, struct moe_err *err)
{
    struct moe_coe_costs *guessed = NULL;
    int status = s->options.costs ? MOE_OK : guess_costs(s, &guessed, err);
    if (status == MOE_OK)
        status = describe_models(s, guessed ? guessed : s->options.costs, err);
    if (status == MOE_OK)
        status = limit_batches(s, err);
    if (status == MOE_OK)
        status = open_dispatch(s, err);
    moe_coe_costs_free(guessed);
    return status;
}

void dispatching_close(struct moe_server *s)
{
    moe_coe_dispatch_close(s->dispatch);
    moe_coe_experts_free(s->all);
    free(s->sizes);
    for (uint32_t p = 0; p < N_PROCESSORS; p++)
        free(s->costs[p]);
}

/* ---- Learning ---- */

static void learn(double *value, double seen)
{
    *value += LEARN_SHARE * (seen - *value);
}

static struct moe_coe_cost *cost_of(struct executor *x, uint32_t model)
{
    struct moe_server *s = x->server;
    return &s->costs[processor_of(x)][s->all->experts[model].kind];
}

void dispatching_learn_batch(struct executor *x, uint32_t model, uint32_t n, double seconds)
{
    struct moe_coe_cost *cost = cost_of(x, model);
    double each = n ? (seconds - cost->per_batch) / n : 0;
    if (!x->server->options.costs && each > 0)
        learn(&cost->per_request, each);
}

void dispatching_learn_load(struct executor *x, uint32_t model, double seconds)
{
    struct moe_coe_cost *cost = cost_of(x, model);
    if (!x->server->options.costs)
        learn(x->loaded[model].from_host ? &cost->load_from_host : &cost->load, seconds);
}
