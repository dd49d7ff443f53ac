/* Decides which executor serves a request and which model leaves memory. */
#include "serve/coe_dispatch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* An expert's place in the list of those in the pool. */
struct place {
    uint32_t next, previous; /* towards later, earlier use (or loading); MOE_COE_NONE at the ends */
    uint32_t holds;
    uint64_t looked; /* the last look through the queue that came by it */
    bool there;
};

/* Requests that wait for one executor: neighbours that use the same expert are a group, with a lane
 * for each client. */
struct moe_coe_group {
    struct moe_coe_group *next, *previous;
    uint32_t expert;
    struct moe_coe_lane *lanes; /* by arrival of their clients */
};

struct moe_coe_lane {
    struct moe_coe_lane *next;
    struct moe_coe_group *group;
    struct moe_coe_client *client;
    struct moe_coe_request *first, *last;
};

struct moe_coe_queue {
    bool arrange;
    uint64_t n;
    struct moe_coe_group *first, *final; /* NULL: empty */
    uint32_t n_experts;
    struct moe_coe_group **of_expert; /* [n_experts] its last group; NULL: none waits */
};

struct moe_coe_pool {
    const struct moe_coe_experts *all; /* borrowed */
    const uint64_t *sizes;             /* [all->n] borrowed; NULL: the experts' own */
    const struct moe_coe_queue *queue; /* of its executor; NULL: it has none */
    uint64_t looks;                    /* through the queue */
    enum moe_coe_evict evict;
    uint64_t bytes, taken;
    uint64_t held;        /* by pinned experts */
    uint32_t first, last; /* first: the earliest */
    struct place *places; /* [all->n] */
};

int moe_coe_pool_open(struct moe_coe_pool **out, const struct moe_coe_experts *all, uint64_t bytes,
                      enum moe_coe_evict evict, struct moe_err *err)
{
    *out = NULL;
    struct moe_coe_pool *p = moe_alloc(1, sizeof *p, err);
    if (!p)
        return MOE_ERR_MEMORY;
    *p = (struct moe_coe_pool){
        .all = all, .evict = evict, .bytes = bytes, .first = MOE_COE_NONE, .last = MOE_COE_NONE};
    p->places = moe_alloc(all->n, sizeof *p->places, err);
    if (!p->places) {
        moe_coe_pool_close(p);
        return MOE_ERR_MEMORY;
    }
    *out = p;
    return MOE_OK;
}

void moe_coe_pool_set_sizes(struct moe_coe_pool *p, const uint64_t *sizes)
{
    p->sizes = sizes;
}

void moe_coe_pool_close(struct moe_coe_pool *p)
{
    if (!p)
        return;
    free(p->places);
    free(p);
}

bool moe_coe_pool_has(const struct moe_coe_pool *p, uint32_t expert)
{
    return p->places[expert].there;
}

uint64_t moe_coe_pool_free_bytes(const struct moe_coe_pool *p)
{
    return p->bytes - p->taken;
}

uint64_t moe_coe_pool_size(const struct moe_coe_pool *p, uint32_t expert)
{
    return p->sizes ? p->sizes[expert] : p->all->experts[expert].bytes;
}

uint32_t moe_coe_pool_likeliest(const struct moe_coe_pool *p)
{
    const struct moe_coe_experts *all = p->all;
    uint32_t best = MOE_COE_NONE;
    for (uint32_t i = 0; i < all->n; i++)
        if (!p->places[i].there && moe_coe_pool_size(p, i) <= moe_coe_pool_free_bytes(p) &&
            (best == MOE_COE_NONE || all->experts[i].probability > all->experts[best].probability))
            best = i;
    return best;
}

/* ---- The list of used experts ---- */

static void append_loaded(struct moe_coe_pool *p, uint32_t expert)
{
    struct place *at = &p->places[expert];
    at->next = MOE_COE_NONE;
    at->previous = p->last;
    *(p->last == MOE_COE_NONE ? &p->first : &p->places[p->last].next) = expert;
    p->last = expert;
}

static void unlink_expert(struct moe_coe_pool *p, uint32_t expert)
{
    const struct place *at = &p->places[expert];
    *(at->previous == MOE_COE_NONE ? &p->first : &p->places[at->previous].next) = at->next;
    *(at->next == MOE_COE_NONE ? &p->last : &p->places[at->next].previous) = at->previous;
}

void moe_coe_pool_use(struct moe_coe_pool *p, uint32_t expert)
{
    if (p->evict != MOE_COE_LRU)
        return;
    unlink_expert(p, expert);
    append_loaded(p, expert);
}

void moe_coe_pool_hold(struct moe_coe_pool *p, uint32_t expert)
{
    if (p->places[expert].holds++ == 0)
        p->held += moe_coe_pool_size(p, expert);
}

void moe_coe_pool_release(struct moe_coe_pool *p, uint32_t expert)
{
    if (--p->places[expert].holds == 0)
        p->held -= moe_coe_pool_size(p, expert);
}

/* ---- Eviction ---- */

/* Whether no expert that leads to it is in memory: it cannot be needed before one of them is
 * loaded. */
static bool waits_for_others(const struct moe_coe_pool *p, uint32_t expert)
{
    const struct moe_coe_expert *e = &p->all->experts[expert];
    for (uint32_t i = 0; i < e->n_before; i++)
        if (p->places[p->all->before[e->first_before + i]].there)
            return false;
    return e->n_before > 0;
}

/* Stage 1, then stage 2; the earliest loaded among equals. queue: only experts that no request in
 * it waits for, MOE_COE_NONE where all are waited for; or NULL. */
static uint32_t two_stage(const struct moe_coe_pool *p, const struct moe_coe_queue *queue)
{
    uint32_t largest = MOE_COE_NONE, rarest = MOE_COE_NONE;
    for (uint32_t e = p->first; e != MOE_COE_NONE; e = p->places[e].next) {
        if (p->places[e].holds > 0 || (queue && moe_coe_queue_waits(queue, e)))
            continue;
        if (waits_for_others(p, e) &&
            (largest == MOE_COE_NONE || moe_coe_pool_size(p, e) > moe_coe_pool_size(p, largest)))
            largest = e;
        if (rarest == MOE_COE_NONE ||
            p->all->experts[e].probability < p->all->experts[rarest].probability)
            rarest = e;
    }
    return largest != MOE_COE_NONE ? largest : rarest;
}

/* The expert that is not held and whose first request comes last; all others are waited for. */
static uint32_t needed_last(struct moe_coe_pool *p)
{
    uint32_t last = MOE_COE_NONE;
    p->looks++;
    for (const struct moe_coe_group *g = p->queue->first; g; g = g->next) {
        struct place *at = &p->places[g->expert];
        if (at->there && at->holds == 0 && at->looked != p->looks)
            last = g->expert;
        at->looked = p->looks;
    }
    return last;
}

/* The expert to evict; at least one is not held. */
static uint32_t choose_victim(struct moe_coe_pool *p)
{
    uint32_t e = MOE_COE_NONE;
    if (p->evict == MOE_COE_QUEUE && p->queue) {
        e = two_stage(p, p->queue);
        return e != MOE_COE_NONE ? e : needed_last(p);
    }
    if (p->evict == MOE_COE_TWO_STAGE || p->evict == MOE_COE_QUEUE)
        return two_stage(p, NULL);
    e = p->first;
    while (p->places[e].holds > 0)
        e = p->places[e].next;
    return e;
}

bool moe_coe_pool_admit(struct moe_coe_pool *p, uint32_t expert, uint32_t *evicted,
                        uint32_t *n_evicted)
{
    uint64_t wanted = moe_coe_pool_size(p, expert);
    *n_evicted = 0;
    if (wanted > p->bytes - p->held)
        return false;
    while (p->bytes - p->taken < wanted) {
        uint32_t e = choose_victim(p);
        unlink_expert(p, e);
        p->places[e].there = false;
        p->taken -= moe_coe_pool_size(p, e);
        evicted[(*n_evicted)++] = e;
    }
    p->places[expert].there = true;
    p->taken += wanted;
    append_loaded(p, expert);
    return true;
}

void moe_coe_pool_drop(struct moe_coe_pool *p, uint32_t expert)
{
    struct place *at = &p->places[expert];
    if (!at->there)
        return;
    p->held -= at->holds ? moe_coe_pool_size(p, expert) : 0;
    unlink_expert(p, expert);
    at->there = false;
    at->holds = 0;
    p->taken -= moe_coe_pool_size(p, expert);
}

/* ---- Queues ---- */

int moe_coe_queue_open(struct moe_coe_queue **out, uint32_t n_experts, bool arrange,
                       struct moe_err *err)
{
    *out = NULL;
    struct moe_coe_queue *q = moe_alloc(1, sizeof *q, err);
    if (!q)
        return MOE_ERR_MEMORY;
    *q = (struct moe_coe_queue){.arrange = arrange, .n_experts = n_experts};
    q->of_expert = moe_alloc(n_experts, sizeof(struct moe_coe_group *), err);
    if (!q->of_expert) {
        moe_coe_queue_close(q);
        return MOE_ERR_MEMORY;
    }
    *out = q;
    return MOE_OK;
}

void moe_coe_queue_close(struct moe_coe_queue *q)
{
    if (!q)
        return;
    while (q->first) {
        struct moe_coe_group *g = q->first;
        for (struct moe_coe_lane *lane = g->lanes, *next; lane; lane = next) {
            next = lane->next;
            free(lane);
        }
        q->first = g->next;
        free(g);
    }
    free(q->of_expert);
    free(q);
}

/* ---- Groups ---- */

static void append_group(struct moe_coe_queue *q, struct moe_coe_group *g)
{
    g->next = NULL;
    g->previous = q->final;
    *(q->final ? &q->final->next : &q->first) = g;
    q->final = g;
}

static void unlink_group(struct moe_coe_queue *q, struct moe_coe_group *g)
{
    *(g->previous ? &g->previous->next : &q->first) = g->next;
    *(g->next ? &g->next->previous : &q->final) = g->previous;
}

static struct moe_coe_group *add_group(struct moe_coe_queue *q, uint32_t expert,
                                       struct moe_err *err)
{
    struct moe_coe_group *g = moe_alloc(1, sizeof *g, err);
    if (!g)
        return NULL;
    *g = (struct moe_coe_group){.expert = expert};
    append_group(q, g);
    q->of_expert[expert] = g;
    return g;
}

/* Frees a group without lanes. */
static void drop_if_empty(struct moe_coe_queue *q, struct moe_coe_group *g)
{
    if (g->lanes)
        return;
    unlink_group(q, g);
    if (q->of_expert[g->expert] == g)
        q->of_expert[g->expert] = NULL;
    free(g);
}

/* ---- Lanes ---- */

bool moe_coe_client_before(const struct moe_coe_client *a, const struct moe_coe_client *b)
{
    static const struct moe_coe_client nobody;
    a = a ? a : &nobody;
    b = b ? b : &nobody;
    return a->running != b->running ? a->running < b->running : a->given < b->given;
}

static struct moe_coe_lane *lane_of(struct moe_coe_group *g, struct moe_coe_client *client,
                                    struct moe_err *err)
{
    struct moe_coe_lane **at = &g->lanes;
    while (*at && (*at)->client != client)
        at = &(*at)->next;
    if (!*at && (*at = moe_alloc(1, sizeof **at, err)) != NULL)
        **at = (struct moe_coe_lane){.group = g, .client = client};
    return *at;
}

/* The lane whose turn it is. */
static struct moe_coe_lane *next_lane(const struct moe_coe_group *g)
{
    struct moe_coe_lane *best = g->lanes;
    for (struct moe_coe_lane *lane = best ? best->next : NULL; lane; lane = lane->next)
        if (moe_coe_client_before(lane->client, best->client))
            best = lane;
    return best;
}

/* Takes out a request that waits; frees a lane and a group that it leaves empty. */
static void coe_queue_remove(struct moe_coe_queue *q, struct moe_coe_request *r)
{
    struct moe_coe_lane *lane = r->lane;
    struct moe_coe_group *g = lane->group;
    *(r->previous ? &r->previous->next : &lane->first) = r->next;
    *(r->next ? &r->next->previous : &lane->last) = r->previous;
    r->next = r->previous = NULL;
    q->n--;
    if (lane->first)
        return;
    struct moe_coe_lane **at = &g->lanes;
    while (*at != lane)
        at = &(*at)->next;
    *at = lane->next;
    free(lane);
    drop_if_empty(q, g);
}

/* The first group goes behind all others. */
static void coe_queue_rotate(struct moe_coe_queue *q)
{
    struct moe_coe_group *g = q->first;
    if (!g || !g->next)
        return;
    unlink_group(q, g);
    append_group(q, g);
}

/* ---- Requests ---- */

int moe_coe_queue_push(struct moe_coe_queue *q, struct moe_coe_request *r, struct moe_err *err)
{
    struct moe_coe_group *g = q->of_expert[r->expert];
    if (!g || (!q->arrange && g != q->final))
        g = add_group(q, r->expert, err);
    struct moe_coe_lane *lane = g ? lane_of(g, r->client, err) : NULL;
    if (g && !lane)
        drop_if_empty(q, g);
    if (!lane)
        return MOE_ERR_MEMORY;
    r->lane = lane;
    r->next = NULL;
    r->previous = lane->last;
    *(lane->last ? &lane->last->next : &lane->first) = r;
    lane->last = r;
    q->n++;
    return MOE_OK;
}

static struct moe_coe_request *take_from_group(struct moe_coe_queue *q, struct moe_coe_group *g,
                                               uint32_t most, uint32_t *n)
{
    struct moe_coe_request *all = NULL, **end = &all;
    bool some = g != NULL;
    for (*n = 0; some && *n < most; ++*n) {
        struct moe_coe_lane *lane = next_lane(g);
        struct moe_coe_request *r = lane->first;
        some = lane->next || g->lanes != lane || r->next; /* g is gone after its last one */
        coe_queue_remove(q, r);
        if (r->client)
            r->client->running++;
        *end = r;
        end = &r->next;
    }
    return all;
}

struct moe_coe_request *moe_coe_queue_take(struct moe_coe_queue *q, uint32_t most, uint32_t *n)
{
    return take_from_group(q, q->first, most, n);
}

/* Where the expert's requests that come next wait: behind the first group only where requests are
 * arranged. NULL: none waits there. */
static struct moe_coe_group *coe_queue_group(const struct moe_coe_queue *q, uint32_t expert)
{
    struct moe_coe_group *g = q->arrange ? q->of_expert[expert] : q->first;
    return g && g->expert == expert ? g : NULL;
}

/* ---- Looking ahead ---- */

bool moe_coe_queue_waits(const struct moe_coe_queue *q, uint32_t expert)
{
    return q->of_expert[expert] != NULL;
}

uint32_t moe_coe_queue_first(const struct moe_coe_queue *q)
{
    return q->first ? q->first->expert : MOE_COE_NONE;
}

static uint32_t coe_queue_second(const struct moe_coe_queue *q)
{
    return q->first && q->first->next ? q->first->next->expert : MOE_COE_NONE;
}

/* The first request of the first group that is another expert's; NULL: none. */
static const struct moe_coe_request *coe_queue_other(const struct moe_coe_queue *q, uint32_t expert)
{
    const struct moe_coe_group *g = q->first;
    while (g && g->expert == expert)
        g = g->next;
    return g ? g->lanes->first : NULL;
}

uint64_t moe_coe_queue_length(const struct moe_coe_queue *q)
{
    return q->n;
}

/* ---- Dispatch ---- */

struct executor {
    struct moe_coe_executor_options options;
    struct moe_coe_queue *queue;
    struct moe_coe_pool *pool;
    double queued;        /* predicted for waiting requests */
    double busy_until;    /* predicted for the current batch */
    uint32_t computing;   /* its expert; MOE_COE_NONE: none */
    uint32_t n_computing; /* its requests */
    uint32_t prefetched;  /* held until its batch; MOE_COE_NONE: none */
};

struct moe_coe_dispatch {
    struct moe_coe_options options;
    struct executor *executors; /* [options.n_executors] */
    uint32_t turn;              /* for round-robin */
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
    MOE_TRY(moe_coe_queue_open(&e->queue, o->all->n, o->arrange, err));
    MOE_TRY(moe_coe_pool_open(&e->pool, o->all, options->expert_bytes, o->evict, err));
    e->pool->queue = e->queue;
    if (o->sizes)
        moe_coe_pool_set_sizes(e->pool, o->sizes[index]);
    return MOE_OK;
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

/* The latency that a request adds to the executor's queue: K, for the first of a group K + B and
 * the loading time, unless the expert is there or on its way. */
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

/* The executor for which the longest queue stays shortest; among these the one with the least added
 * latency, then the first. */
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

/* A second copy of an expert costs its load, later that of what leaves for it, and time of a disk
 * that others wait for: it pays where a request is done this many loads sooner. Of 0, 1, 2, 4, 8
 * and 16 the best in the simulator, over skews, machines and executors. */
#define HOME_LOADS 4

/* The executor where the expert is or is waited for, of several the one that is done first; where
 * there is none, or one without it is done much sooner, as above. */
static uint32_t home(const struct moe_coe_dispatch *d, uint32_t expert, double now)
{
    uint32_t at = MOE_COE_NONE;
    double soonest = 0, elsewhere = INFINITY;
    for (uint32_t i = 0; i < d->options.n_executors; i++) {
        const struct executor *e = &d->executors[i];
        if (!may_run(&d->options, &e->options, expert))
            continue;
        double total = total_seconds(e, now) + added_latency(d, e, expert);
        if (!moe_coe_pool_has(e->pool, expert) && !moe_coe_queue_waits(e->queue, expert)) {
            total += HOME_LOADS * load_seconds(d, e, expert);
            elsewhere = total < elsewhere ? total : elsewhere;
        } else if (at == MOE_COE_NONE || total < soonest) {
            at = i;
            soonest = total;
        }
    }
    return at != MOE_COE_NONE && soonest <= elsewhere ? at : least(d, expert, now);
}

/* The next executor in turn that may run it. */
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

static uint32_t assign_executor(struct moe_coe_dispatch *d, uint32_t expert, double now)
{
    switch (d->options.assign) {
    case MOE_COE_ASSIGN_FEWEST:
        return fewest(d, expert);
    case MOE_COE_ASSIGN_LEAST:
        return least(d, expert, now);
    case MOE_COE_ASSIGN_HOME:
        return home(d, expert, now);
    default:
        return round_robin(d, expert);
    }
}

int moe_coe_submit(struct moe_coe_dispatch *d, struct moe_coe_request *r, double now,
                   uint32_t *executor, struct moe_err *err)
{
    *executor = assign_executor(d, r->expert, now);
    struct executor *e = &d->executors[*executor];
    r->predicted = added_latency(d, e, r->expert);
    MOE_TRY(moe_coe_queue_push(e->queue, r, err));
    e->queued += r->predicted;
    return MOE_OK;
}

/* ---- Batches ---- */

/* The largest batch, limited by the profile and by memory. */
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

/* Subtracts requests that no longer wait. */
static void forget_predicted(struct executor *e, const struct moe_coe_request *list)
{
    for (const struct moe_coe_request *r = list; r; r = r->next)
        e->queued -= r->predicted;
    if (moe_coe_queue_length(e->queue) == 0)
        e->queued = 0; /* without rounding errors */
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

void moe_coe_forget(struct moe_coe_dispatch *d, uint32_t executor, uint32_t expert)
{
    moe_coe_pool_drop(d->executors[executor].pool, expert);
}

bool moe_coe_is_placed(const struct moe_coe_dispatch *d, uint32_t expert)
{
    for (uint32_t i = 0; i < d->options.n_executors; i++)
        if (moe_coe_pool_has(d->executors[i].pool, expert))
            return true;
    return false;
}

struct moe_coe_request *moe_coe_more(struct moe_coe_dispatch *d, uint32_t executor, uint32_t most,
                                     uint32_t *n)
{
    struct executor *e = &d->executors[executor];
    struct moe_coe_group *group = coe_queue_group(e->queue, e->computing);
    struct moe_coe_request *all = take_from_group(e->queue, group, most, n);
    forget_predicted(e, all);
    return all;
}

bool moe_coe_more_of(const struct moe_coe_dispatch *d, uint32_t executor,
                     const struct moe_coe_client **client)
{
    const struct executor *e = &d->executors[executor];
    const struct moe_coe_group *group = coe_queue_group(e->queue, e->computing);
    *client = group ? next_lane(group)->client : NULL;
    return group != NULL;
}

void moe_coe_withdraw(struct moe_coe_dispatch *d, uint32_t executor, struct moe_coe_request *r)
{
    struct executor *e = &d->executors[executor];
    coe_queue_remove(e->queue, r);
    forget_predicted(e, r);
}

const struct moe_coe_request *moe_coe_other(const struct moe_coe_dispatch *d, uint32_t executor,
                                            uint32_t expert)
{
    return coe_queue_other(d->executors[executor].queue, expert);
}

void moe_coe_give_way(struct moe_coe_dispatch *d, uint32_t executor)
{
    coe_queue_rotate(d->executors[executor].queue);
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
        expert = coe_queue_second(e->queue);
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

/* ---- Names ---- */

static const struct moe_coe_schedule schedules[] = {
    {"fcfs", MOE_COE_ASSIGN_FEWEST, false,
     "in order of arrival, each where the fewest requests wait"},
    {"round-robin", MOE_COE_ASSIGN_ROUND_ROBIN, false,
     "in order of arrival, to each executor in turn"},
    {"arrange", MOE_COE_ASSIGN_ROUND_ROBIN, true,
     "to each executor in turn, and there behind requests for the same expert"},
    {"coserve", MOE_COE_ASSIGN_LEAST, true,
     "where all executors are done soonest, and there behind requests for the same expert"},
    {"home", MOE_COE_ASSIGN_HOME, true,
     "where their expert is or is waited for, unless another executor is done much sooner, and "
     "there "
     "behind requests for the same expert"},
};
static const char *const evictions[] = {[MOE_COE_LRU] = "lru",
                                        [MOE_COE_FIFO] = "fifo",
                                        [MOE_COE_TWO_STAGE] = "two-stage",
                                        [MOE_COE_QUEUE] = "queue"};

const struct moe_coe_schedule *moe_coe_schedule_at(uint32_t i)
{
    return i < sizeof schedules / sizeof *schedules ? &schedules[i] : NULL;
}

const char *moe_coe_evict_at(uint32_t i)
{
    return i < sizeof evictions / sizeof *evictions ? evictions[i] : NULL;
}

const struct moe_coe_schedule *moe_coe_schedule_find(const char *name)
{
    const struct moe_coe_schedule *s;
    for (uint32_t i = 0; (s = moe_coe_schedule_at(i)) != NULL; i++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

bool moe_coe_evict_find(const char *name, enum moe_coe_evict *out)
{
    const char *s;
    for (uint32_t i = 0; (s = moe_coe_evict_at(i)) != NULL; i++)
        if (strcmp(s, name) == 0) {
            *out = (enum moe_coe_evict)i;
            return true;
        }
    return false;
}
