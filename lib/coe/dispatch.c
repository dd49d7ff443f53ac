#include "coe/dispatch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct executor {
    struct moe_coe_executor_options options;
    struct moe_coe_queue *queue;
    struct moe_coe_pool *pool;
    double queued;        /* predicted for those that wait */
    double busy_until;    /* predicted for the batch at hand */
    uint32_t computing;   /* its expert; MOE_COE_NONE: there is none */
    uint32_t n_computing; /* its requests */
    uint32_t prefetched;  /* held until its batch; MOE_COE_NONE: none */
};

struct moe_coe_dispatch {
    struct moe_coe_options options;
    struct executor *executors; /* [options.n_executors] */
    uint32_t turn;              /* of round-robin */
    uint32_t *evicted;          /* [all->n] */
};

static bool may_run(const struct moe_coe_options *o, const struct moe_coe_executor_options *e,
                    uint32_t expert)
{
    return !(o->all->experts[expert].not_on >> e->processor & 1);
}

static uint64_t size_of(const struct moe_coe_options *o, uint32_t executor, uint32_t expert)
{
    return o->sizes ? o->sizes[executor][expert] : o->all->experts[expert].bytes;
}

/* ---- Opening and closing ---- */

static int open_executor(struct executor *e, const struct moe_coe_options *o, uint32_t index,
                         struct moe_err *err)
{
    const struct moe_coe_executor_options *options = &o->executors[index];
    *e = (struct executor){
        .options = *options, .computing = MOE_COE_NONE, .prefetched = MOE_COE_NONE};
    for (uint32_t i = 0; i < o->all->n; i++)
        if (may_run(o, options, i) && size_of(o, index, i) > options->expert_bytes)
            return moe_fail(err, MOE_ERR_LIMIT,
                            "expert %u takes %" PRIu64 " bytes, and executor %u has %" PRIu64
                            " for experts",
                            i, size_of(o, index, i), index, options->expert_bytes);
    int status = moe_coe_queue_open(&e->queue, o->all->n, o->arrange, err);
    if (status == MOE_OK)
        status = moe_coe_pool_open(&e->pool, o->all, options->expert_bytes, o->evict, err);
    if (status == MOE_OK && o->sizes)
        moe_coe_pool_set_sizes(e->pool, o->sizes[index]);
    return status;
}

static int check_experts(const struct moe_coe_options *o, struct moe_err *err)
{
    for (uint32_t expert = 0; expert < o->all->n; expert++) {
        uint32_t i = 0;
        while (i < o->n_executors && !may_run(o, &o->executors[i], expert))
            i++;
        if (i == o->n_executors)
            return moe_fail(err, MOE_ERR_USAGE, "no executor may run expert %u", expert);
    }
    return MOE_OK;
}

int moe_coe_dispatch_open(struct moe_coe_dispatch **out, const struct moe_coe_options *options,
                          struct moe_err *err)
{
    *out = NULL;
    struct moe_coe_dispatch *d = moe_alloc(1, sizeof *d, err);
    if (!d)
        return MOE_ERR_MEMORY;
    d->options = *options;
    d->executors = moe_alloc(options->n_executors, sizeof *d->executors, err);
    d->evicted = moe_alloc(options->all->n, sizeof *d->evicted, err);
    int status = d->executors && d->evicted ? check_experts(options, err) : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < options->n_executors && status == MOE_OK; i++)
        status = open_executor(&d->executors[i], options, i, err);
    d->options.executors = NULL; /* copied */
    if (status != MOE_OK)
        moe_coe_dispatch_close(d);
    else
        *out = d;
    return status;
}

void moe_coe_dispatch_close(struct moe_coe_dispatch *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; d->executors && i < d->options.n_executors; i++) {
        moe_coe_queue_close(d->executors[i].queue);
        moe_coe_pool_close(d->executors[i].pool);
    }
    free(d->executors);
    free(d->evicted);
    free(d);
}

struct moe_coe_pool *moe_coe_pool_of(struct moe_coe_dispatch *d, uint32_t executor)
{
    return d->executors[executor].pool;
}

uint64_t moe_coe_waiting(const struct moe_coe_dispatch *d, uint32_t executor)
{
    return moe_coe_queue_length(d->executors[executor].queue);
}

/* ---- Before anything runs ---- */

int moe_coe_place(struct moe_coe_dispatch *d,
                  void (*fn)(void *ctx, uint32_t executor, uint32_t expert), void *ctx,
                  struct moe_err *err)
{
    const struct moe_coe_experts *all = d->options.all;
    uint32_t *ranked = moe_coe_rank(all, err), turn = 0, n_evicted;
    if (!ranked)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < all->n; i++)
        for (uint32_t tried = 0; tried < d->options.n_executors; tried++) {
            uint32_t executor = turn++ % d->options.n_executors;
            struct moe_coe_pool *pool = d->executors[executor].pool;
            if (!may_run(&d->options, &d->executors[executor].options, ranked[i]) ||
                moe_coe_pool_free_bytes(pool) < moe_coe_pool_size(pool, ranked[i]))
                continue;
            moe_coe_pool_admit(pool, ranked[i], d->evicted, &n_evicted);
            fn(ctx, executor, ranked[i]);
            break;
        }
    free(ranked);
    return MOE_OK;
}

/* ---- Requests ---- */

static const struct moe_coe_cost *cost_of(const struct moe_coe_dispatch *d,
                                          const struct executor *e, uint32_t expert)
{
    return &e->options.costs[d->options.all->experts[expert].kind];
}

static double load_seconds(const struct moe_coe_dispatch *d, const struct executor *e,
                           uint32_t expert)
{
    const struct moe_coe_cost *cost = cost_of(d, e, expert);
    bool near = d->options.in_host && d->options.in_host(d->options.ctx, expert);
    return near ? cost->load_from_host : cost->load;
}

/* What a request would add to the executor's queue: K, for the first of a group K + B and the time
 * of loading, unless the expert is there or on its way. */
static double added_latency(const struct moe_coe_dispatch *d, const struct executor *e,
                            uint32_t expert)
{
    const struct moe_coe_cost *cost = cost_of(d, e, expert);
    if (moe_coe_queue_waits(e->queue, expert))
        return cost->per_request;
    double switching = moe_coe_pool_has(e->pool, expert) ? 0 : load_seconds(d, e, expert);
    return cost->per_request + cost->per_batch + switching;
}

static double total_seconds(const struct executor *e, double now)
{
    return e->queued + (e->busy_until > now ? e->busy_until - now : 0);
}

/* The executor that leaves the longest queue shortest; of these where the request adds least; of
 * these the first. */
static uint32_t least(const struct moe_coe_dispatch *d, uint32_t expert, double now)
{
    uint32_t n = d->options.n_executors, best = MOE_COE_NONE;
    double best_total = 0, best_added = 0, longest = 0;
    for (uint32_t i = 0; i < n; i++) {
        double total = total_seconds(&d->executors[i], now);
        longest = total > longest ? total : longest;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!may_run(&d->options, &d->executors[i].options, expert))
            continue;
        double added = added_latency(d, &d->executors[i], expert);
        double total = total_seconds(&d->executors[i], now) + added;
        total = total > longest ? total : longest;
        if (best != MOE_COE_NONE &&
            (total > best_total || (total == best_total && added >= best_added)))
            continue;
        best = i;
        best_total = total;
        best_added = added;
    }
    return best;
}

/* ... of those that may run it. */
static uint32_t round_robin(struct moe_coe_dispatch *d, uint32_t expert)
{
    uint32_t i;
    do
        i = d->turn++ % d->options.n_executors;
    while (!may_run(&d->options, &d->executors[i].options, expert));
    return i;
}

static uint32_t fewest(const struct moe_coe_dispatch *d, uint32_t expert)
{
    uint32_t best = MOE_COE_NONE;
    uint64_t best_length = 0;
    for (uint32_t i = 0; i < d->options.n_executors; i++) {
        const struct executor *e = &d->executors[i];
        uint64_t length = moe_coe_queue_length(e->queue) + e->n_computing;
        if (!may_run(&d->options, &e->options, expert) ||
            (best != MOE_COE_NONE && length >= best_length))
            continue;
        best = i;
        best_length = length;
    }
    return best;
}

static uint32_t assign(struct moe_coe_dispatch *d, uint32_t expert, double now)
{
    switch (d->options.assign) {
    case MOE_COE_ASSIGN_FEWEST:
        return fewest(d, expert);
    case MOE_COE_ASSIGN_LEAST:
        return least(d, expert, now);
    default:
        return round_robin(d, expert);
    }
}

int moe_coe_submit(struct moe_coe_dispatch *d, struct moe_coe_request *r, double now,
                   uint32_t *executor, struct moe_err *err)
{
    *executor = assign(d, r->expert, now);
    struct executor *e = &d->executors[*executor];
    r->predicted = added_latency(d, e, r->expert);
    int status = moe_coe_queue_push(e->queue, r, err);
    if (status == MOE_OK)
        e->queued += r->predicted;
    return status;
}

/* ---- Batches ---- */

/* The largest batch: of the profile, and of the memory that there is. */
static uint32_t most_requests(const struct moe_coe_dispatch *d, const struct executor *e,
                              uint32_t expert)
{
    const struct moe_coe_cost *cost = cost_of(d, e, expert);
    uint64_t fit = cost->request_bytes ? e->options.batch_bytes / cost->request_bytes : UINT64_MAX;
    uint64_t most = fit < cost->max_batch ? fit : cost->max_batch;
    return most > 0 ? (uint32_t)most : 1;
}

static void drop_prefetched(struct executor *e)
{
    if (e->prefetched != MOE_COE_NONE)
        moe_coe_pool_release(e->pool, e->prefetched);
    e->prefetched = MOE_COE_NONE;
}

/* They wait no more. */
static void forget_predicted(struct executor *e, const struct moe_coe_request *list)
{
    for (const struct moe_coe_request *r = list; r; r = r->next)
        e->queued -= r->predicted;
    if (moe_coe_queue_length(e->queue) == 0)
        e->queued = 0; /* without what rounding leaves */
}

bool moe_coe_next(struct moe_coe_dispatch *d, uint32_t executor, double now,
                  struct moe_coe_batch *batch)
{
    struct executor *e = &d->executors[executor];
    uint32_t expert = moe_coe_queue_first(e->queue);
    *batch = (struct moe_coe_batch){.expert = expert, .evicted = d->evicted};
    if (expert == MOE_COE_NONE)
        return false;
    batch->load = !moe_coe_pool_has(e->pool, expert);
    double loading = batch->load ? load_seconds(d, e, expert) : 0;
    if (batch->load && !moe_coe_pool_admit(e->pool, expert, d->evicted, &batch->n_evicted)) {
        drop_prefetched(e); /* its turn has not come */
        moe_coe_pool_admit(e->pool, expert, d->evicted, &batch->n_evicted);
    }
    moe_coe_pool_use(e->pool, expert);
    moe_coe_pool_hold(e->pool, expert);
    e->computing = expert;
    batch->requests = moe_coe_queue_take(e->queue, most_requests(d, e, expert), &batch->n);
    e->n_computing = batch->n;
    forget_predicted(e, batch->requests);
    if (e->prefetched == expert ||
        (e->prefetched != MOE_COE_NONE && !moe_coe_queue_waits(e->queue, e->prefetched)))
        drop_prefetched(e);
    e->busy_until = now + loading + moe_coe_batch_seconds(cost_of(d, e, expert), batch->n);
    return true;
}

void moe_coe_done(struct moe_coe_dispatch *d, uint32_t executor, double now)
{
    struct executor *e = &d->executors[executor];
    moe_coe_pool_release(e->pool, e->computing);
    e->computing = MOE_COE_NONE;
    e->n_computing = 0;
    e->busy_until = now;
}

void moe_coe_failed(struct moe_coe_dispatch *d, uint32_t executor, double now)
{
    struct executor *e = &d->executors[executor];
    uint32_t expert = e->computing;
    moe_coe_done(d, executor, now);
    if (e->prefetched == expert)
        drop_prefetched(e);
    moe_coe_pool_drop(e->pool, expert);
}

struct moe_coe_request *moe_coe_more(struct moe_coe_dispatch *d, uint32_t executor, uint32_t most,
                                     uint32_t *n)
{
    struct executor *e = &d->executors[executor];
    struct moe_coe_request *all = moe_coe_queue_take_of(e->queue, e->computing, most, n);
    forget_predicted(e, all);
    return all;
}

void moe_coe_withdraw(struct moe_coe_dispatch *d, uint32_t executor, struct moe_coe_request *r)
{
    struct executor *e = &d->executors[executor];
    moe_coe_queue_remove(e->queue, r);
    forget_predicted(e, r);
}

const struct moe_coe_request *moe_coe_other(const struct moe_coe_dispatch *d, uint32_t executor,
                                            uint32_t expert)
{
    return moe_coe_queue_other(d->executors[executor].queue, expert);
}

void moe_coe_give_way(struct moe_coe_dispatch *d, uint32_t executor)
{
    moe_coe_queue_rotate(d->executors[executor].queue);
}

uint32_t moe_coe_first(const struct moe_coe_dispatch *d, uint32_t executor)
{
    return moe_coe_queue_first(d->executors[executor].queue);
}

bool moe_coe_prefetch(struct moe_coe_dispatch *d, uint32_t executor, struct moe_coe_batch *what)
{
    struct executor *e = &d->executors[executor];
    uint32_t expert = moe_coe_queue_first(e->queue);
    if (expert != MOE_COE_NONE && expert == e->computing)
        expert = moe_coe_queue_second(e->queue);
    if (expert == MOE_COE_NONE || e->prefetched != MOE_COE_NONE || e->computing == MOE_COE_NONE ||
        moe_coe_pool_has(e->pool, expert))
        return false;
    *what = (struct moe_coe_batch){.expert = expert, .load = true, .evicted = d->evicted};
    if (!moe_coe_pool_admit(e->pool, expert, d->evicted, &what->n_evicted))
        return false;
    moe_coe_pool_hold(e->pool, expert);
    e->prefetched = expert;
    return true;
}
