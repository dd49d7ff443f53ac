/* Simulates a collection, and draws tasks for it. */
#include "serve/coe_simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

/* A request and then its follow-ons, in the same memory. */
struct task {
    struct moe_coe_request request; /* first: a task is found from it */
    double at;
    const uint32_t *path; /* from the current expert on */
};

enum state { IDLE, LOADING, COMPUTING };

struct runner {
    enum state state;
    double until;      /* end of that state; IDLE: infinity */
    double since;      /* LOADING: when it began to wait */
    double prefetched; /* when the prefetched expert is there */
    uint32_t prefetched_expert;
    struct moe_coe_batch batch;
};

struct simulation {
    const struct moe_coe_options *options;
    const struct moe_coe_machine *machine;
    struct moe_coe_dispatch *dispatch;
    struct moe_coe_pool *host;    /* NULL: no such tier */
    struct runner *runners;       /* [n_executors] */
    double disk_free, *link_free; /* link: [n_processors] */
    double *compute_free;         /* [n_processors][n_executors]: of teams that compute at a time */
    struct task *tasks;           /* [n_arrivals] */
    uint32_t *evicted;            /* [all->n] of the host's tier */
    double scheduler_free, scheduled; /* when it is free; seconds that the host still owes */
    struct moe_coe_simulated *out;
};

/* ---- Loads ---- */

static bool in_host(const void *ctx, uint32_t expert)
{
    const struct simulation *s = ctx;
    return s->host && moe_coe_pool_has(s->host, expert);
}

static void keep_in_host(struct simulation *s, uint32_t expert)
{
    uint32_t n_evicted;
    if (!s->host)
        return;
    if (moe_coe_pool_has(s->host, expert))
        moe_coe_pool_use(s->host, expert);
    else
        moe_coe_pool_admit(s->host, expert, s->evicted, &n_evicted);
}

/* When a load requested now will end. */
static double load_expert(struct simulation *s, uint32_t executor, uint32_t expert, double now)
{
    const struct moe_coe_executor_options *e = &s->options->executors[executor];
    const struct moe_coe_cost *cost = &e->costs[s->options->all->experts[expert].kind];
    bool near = in_host(s, expert);
    double *busy = near ? &s->link_free[s->machine->processor_of[executor]] : &s->disk_free;
    double begins = *busy > now ? *busy : now;
    *busy = begins + (near ? cost->load_from_host : cost->load);
    s->out->switches++;
    s->out->from_host += near;
    keep_in_host(s, expert);
    return *busy;
}

/* ---- Executors ---- */

static void runner_rest(struct runner *r)
{
    r->state = IDLE;
    r->until = INFINITY;
}

/* Gives an idle executor its next batch. */
static void begin_next(struct simulation *s, uint32_t executor, double now)
{
    struct runner *r = &s->runners[executor];
    if (!moe_coe_next(s->dispatch, executor, now, &r->batch)) {
        runner_rest(r);
        return;
    }
    r->state = LOADING;
    r->since = r->until = now;
    if (r->batch.load) {
        r->until = load_expert(s, executor, r->batch.expert, now);
    } else if (r->prefetched_expert == r->batch.expert) {
        r->until = r->prefetched > now ? r->prefetched : now;
        r->prefetched_expert = MOE_COE_NONE;
    }
}

/* When the processor is free: if several executors compute at a time, the first of them. */
static double *busy_until(struct simulation *s, uint32_t processor)
{
    uint32_t n = s->options->n_executors;
    double *all = &s->compute_free[(uint64_t)processor * n], *first = all;
    uint32_t at_a_time = s->machine->at_a_time ? s->machine->at_a_time[processor] : 1;
    for (uint32_t i = 1; i < at_a_time && i < n; i++)
        first = all[i] < *first ? &all[i] : first;
    return first;
}

static void runner_compute(struct simulation *s, uint32_t executor, double now)
{
    struct runner *r = &s->runners[executor];
    const struct moe_coe_executor_options *e = &s->options->executors[executor];
    uint32_t processor = s->machine->processor_of[executor];
    double *busy = busy_until(s, processor);
    double begins = *busy > now ? *busy : now;
    double takes = moe_coe_batch_seconds(&e->costs[s->options->all->experts[r->batch.expert].kind],
                                         r->batch.n);
    struct moe_coe_batch next;
    if (processor == s->machine->host_processor) {
        takes += s->scheduled;
        s->scheduled = 0;
    }
    s->out->computed += r->batch.n;
    s->out->wait_seconds += now - r->since;
    s->out->compute_seconds += takes;
    s->out->batches++;
    r->state = COMPUTING;
    *busy = r->until = begins + takes;
    if (s->machine->prefetch && moe_coe_prefetch(s->dispatch, executor, &next)) {
        r->prefetched = load_expert(s, executor, next.expert, now);
        r->prefetched_expert = next.expert;
    }
}

static int submit_task(struct simulation *s, struct task *t, double now, struct moe_err *err)
{
    uint32_t executor;
    t->request.expert = *t->path;
    s->scheduled += s->machine->schedule_seconds;
    MOE_TRY(moe_coe_submit(s->dispatch, &t->request, now, &executor, err));
    if (s->runners[executor].state == IDLE)
        begin_next(s, executor, now);
    return MOE_OK;
}

static int runner_finish(struct simulation *s, uint32_t executor, double now, struct moe_err *err)
{
    struct runner *r = &s->runners[executor];
    moe_coe_done(s->dispatch, executor, now);
    runner_rest(r);
    for (struct moe_coe_request *q = r->batch.requests, *next; q; q = next) {
        struct task *t = (struct task *)(void *)q;
        next = q->next;
        if (*++t->path == MOE_COE_NONE) {
            s->out->results++;
            s->out->latency_seconds += now - t->at;
            continue;
        }
        s->scheduler_free = fmax(now, s->scheduler_free) + s->machine->schedule_seconds;
        MOE_TRY(submit_task(s, t, now, err));
    }
    if (r->state == IDLE)
        begin_next(s, executor, now);
    return MOE_OK;
}

/* ---- Time ---- */

static int run_simulation(struct simulation *s, const struct moe_coe_arrival *arrivals,
                          uint64_t n_arrivals, struct moe_err *err)
{
    uint64_t arrived = 0;
    int status = MOE_OK;
    double now = 0;
    while (status == MOE_OK) {
        uint32_t first = 0;
        for (uint32_t i = 1; i < s->options->n_executors; i++)
            if (s->runners[i].until < s->runners[first].until)
                first = i;
        double event = s->runners[first].until;
        double comes = arrived < n_arrivals ? fmax(arrivals[arrived].at, s->scheduler_free) +
                                                  s->machine->schedule_seconds
                                            : INFINITY;
        bool arrives = arrived < n_arrivals && comes <= event;
        if (!arrives && isinf(event))
            break;
        now = arrives ? comes : event;
        if (arrives) {
            struct task *t = &s->tasks[arrived];
            *t = (struct task){.at = arrivals[arrived].at, .path = arrivals[arrived].path};
            s->scheduler_free = now;
            arrived++;
            status = submit_task(s, t, now, err);
        } else if (s->runners[first].state == LOADING) {
            runner_compute(s, first, now);
        } else {
            status = runner_finish(s, first, now, err);
        }
    }
    s->out->seconds = n_arrivals ? now - arrivals[0].at : 0;
    if (s->out->results)
        s->out->latency_seconds /= (double)s->out->results;
    return status;
}

static void placed(void *ctx, uint32_t executor, uint32_t expert)
{
    (void)executor;
    keep_in_host(ctx, expert);
}

/* Fills the rest of the host's tier with the likeliest experts that are in no pool. */
static void fill_host(struct simulation *s)
{
    uint32_t best, n_evicted;
    while ((best = moe_coe_pool_likeliest(s->host)) != MOE_COE_NONE)
        moe_coe_pool_admit(s->host, best, s->evicted, &n_evicted);
}

int moe_coe_simulate(const struct moe_coe_options *options, const struct moe_coe_machine *machine,
                     const struct moe_coe_arrival *arrivals, uint64_t n_arrivals,
                     struct moe_coe_simulated *out, struct moe_err *err)
{
    struct moe_coe_options own = *options;
    struct simulation s = {.options = options, .machine = machine, .out = out};
    own.in_host = in_host;
    own.ctx = &s;
    *out = (struct moe_coe_simulated){0};
    s.runners = moe_alloc(options->n_executors, sizeof *s.runners, err);
    s.link_free = moe_alloc(machine->n_processors, sizeof *s.link_free, err);
    s.compute_free = moe_alloc((uint64_t)machine->n_processors * options->n_executors,
                               sizeof *s.compute_free, err);
    s.tasks = moe_alloc(n_arrivals, sizeof *s.tasks, err);
    s.evicted = moe_alloc(options->all->n, sizeof *s.evicted, err);
    int status;
    MOE_STEP(s.runners && s.link_free && s.compute_free && s.tasks && s.evicted ? MOE_OK
                                                                                : MOE_ERR_MEMORY);
    for (uint32_t i = 0; i < options->n_executors; i++) {
        s.runners[i].prefetched_expert = MOE_COE_NONE;
        runner_rest(&s.runners[i]);
    }
    MOE_STEP(moe_coe_dispatch_open(&s.dispatch, &own, err));
    if (machine->host_bytes)
        MOE_STEP(moe_coe_pool_open(&s.host, options->all, machine->host_bytes, machine->host_evict,
                                   err));
    if (machine->place)
        MOE_STEP(moe_coe_place(s.dispatch, placed, &s, err));
    if (machine->place && s.host)
        fill_host(&s);
    MOE_STEP(run_simulation(&s, arrivals, n_arrivals, err));
out:
    moe_coe_dispatch_close(s.dispatch);
    moe_coe_pool_close(s.host);
    free(s.runners);
    free(s.link_free);
    free(s.compute_free);
    free(s.tasks);
    free(s.evicted);
    return status;
}

/* ---- Tasks ---- */

/* Where requests begin: running sums of weights, and the expert of each. */
struct beginnings {
    uint32_t n;
    double *sums;
    uint32_t *experts;
};

static double draw(uint64_t *random)
{
    return (double)(moe_random_next(random) >> 11) * 0x1p-53;
}

static void add_beginning(struct beginnings *b, uint32_t expert, double weight)
{
    if (weight <= 0)
        return;
    b->sums[b->n] = weight + (b->n ? b->sums[b->n - 1] : 0);
    b->experts[b->n++] = expert;
}

static int find_beginnings(struct beginnings *b, const struct moe_coe_collection *c,
                           const struct moe_coe_experts *all, struct moe_err *err)
{
    uint64_t most = (uint64_t)c->n_routes + all->n;
    bool quantities = c->n_scores == 0;
    b->sums = moe_alloc(most, sizeof *b->sums, err);
    b->experts = moe_alloc(most, sizeof *b->experts, err);
    if (!b->sums || !b->experts)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < c->n_routes; i++)
        quantities = quantities && c->routes[i].quantity >= 0;
    for (uint32_t i = 0; i < c->n_routes && quantities; i++)
        add_beginning(b, c->routes[i].to, c->routes[i].quantity);
    for (uint32_t i = 0; i < all->n && !quantities; i++)
        if (!moe_coe_follows(all, i))
            add_beginning(b, i, all->experts[i].probability);
    return b->n ? MOE_OK
                : moe_fail(err, MOE_ERR_USAGE,
                           "no task can be drawn: some routes have no quantity, and some experts "
                           "no probability");
}

static uint32_t draw_beginning(const struct beginnings *b, uint64_t *random)
{
    double x = draw(random) * b->sums[b->n - 1];
    uint32_t low = 0, high = b->n - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (x < b->sums[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return b->experts[low];
}

static uint32_t draw_next_expert(const struct moe_coe_collection *c, uint32_t expert,
                                 uint64_t *random)
{
    double x = draw(random);
    for (uint32_t i = 0; i < c->n_follows; i++) {
        const struct moe_coe_follow *f = &c->follows[i];
        if (f->from != expert)
            continue;
        if (f->share < 0 || x < f->share)
            return f->to;
        x -= f->share;
    }
    return MOE_COE_NONE;
}

/* Draws all paths; without `steps` only counts their length. */
static uint64_t draw_paths(struct moe_coe_task *t, const struct beginnings *b,
                           const struct moe_coe_collection *c, uint64_t seed)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->steps)
            t->arrivals[i].path = &t->steps[at];
        for (uint32_t expert = draw_beginning(b, &seed);;
             expert = draw_next_expert(c, expert, &seed)) {
            if (t->steps)
                t->steps[at] = expert;
            at++;
            if (expert == MOE_COE_NONE)
                break;
        }
    }
    return at;
}

int moe_coe_task_draw(struct moe_coe_task *t, const struct moe_coe_collection *c,
                      const struct moe_coe_experts *all, uint32_t n, double interval, uint64_t seed,
                      struct moe_err *err)
{
    struct beginnings b = {0};
    *t = (struct moe_coe_task){.n = n};
    int status;
    MOE_STEP(find_beginnings(&b, c, all, err));
    uint64_t steps = draw_paths(t, &b, c, seed);
    t->arrivals = moe_alloc(n, sizeof *t->arrivals, err);
    t->steps = moe_alloc(steps, sizeof *t->steps, err);
    MOE_STEP(t->arrivals && t->steps ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t i = 0; i < n; i++)
        t->arrivals[i].at = i * interval;
out:
    if (status == MOE_OK)
        draw_paths(t, &b, c, seed);
    else
        moe_coe_task_release(t);
    free(b.sums);
    free(b.experts);
    return status;
}

void moe_coe_task_release(struct moe_coe_task *t)
{
    free(t->arrivals);
    free(t->steps);
    *t = (struct moe_coe_task){0};
}
