/*
 * What scheduling a request of a collection costs on this machine (CoServe, figure 19):
 *
 *   bench_coe COLLECTION COSTS [REQUESTS]
 *
 * Prints a JSON object: seconds to choose an executor and queue a request (schedule_s) with 1,000,
 * 10,000, 100,000 requests queued before it, and to take a batch out and count it as done, by
 * request (take_s); bytes that 100,000 queued requests take beside themselves; then 16 tasks of
 * REQUESTS (2500) simulated with CoServe's plan: seconds of computation by request (inference_s),
 * results a second with the scheduling of this machine on the clock, and scheduled in advance. One
 * task alone says nothing: a few nanoseconds change which of two requests comes first.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "serve/coe_planner.h"

enum { QUEUED = 100000, PARTS = 20, MAX_EXECUTORS = 16, TASKS = 16 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Submits requests [first, first + n); the median of the parts' times, by request. */
static double submit(struct moe_coe_dispatch *d, struct moe_coe_request *r, uint32_t first,
                     uint32_t n)
{
    double seconds[PARTS];
    for (uint32_t part = 0; part < PARTS; part++) {
        double begins = now();
        for (uint32_t i = 0; i < n / PARTS; i++) {
            struct moe_err err;
            uint32_t executor;
            if (moe_coe_submit(d, &r[first + part * (n / PARTS) + i], 0, &executor, &err) != MOE_OK)
                exit(1);
        }
        seconds[part] = (now() - begins) / (n / PARTS);
    }
    qsort(seconds, PARTS, sizeof *seconds, by_value);
    return seconds[PARTS / 2];
}

struct world {
    struct moe_coe_collection *collection;
    struct moe_coe_costs *costs;
    struct moe_coe_experts *all;
    struct moe_coe_task tasks[TASKS], sample, many;
    struct moe_coe_plan *plan;
};

static int open_world(struct world *w, char **args, uint32_t requests, struct moe_err *err)
{
    int status = moe_coe_collection_read(&w->collection, args[1], err);
    if (status == MOE_OK)
        status = moe_coe_costs_read(&w->costs, args[2], err);
    if (status == MOE_OK)
        status = moe_coe_costs_experts(&w->all, w->costs, w->collection, NULL, err);
    if (status == MOE_OK)
        status = moe_coe_task_draw(&w->sample, w->collection, w->all, 1000, 0.004, 0, err);
    for (uint64_t i = 0; i < TASKS && status == MOE_OK; i++)
        status =
            moe_coe_task_draw(&w->tasks[i], w->collection, w->all, requests, 0.004, 1 + i, err);
    if (status == MOE_OK)
        status = moe_coe_task_draw(&w->many, w->collection, w->all, QUEUED, 0.004, 99, err);
    if (status == MOE_OK)
        status = moe_coe_plan_new(&w->plan, err);
    const struct moe_coe_planner planner = {.costs = w->costs,
                                            .all = w->all,
                                            .samples = &w->sample,
                                            .n_samples = 1,
                                            .schedule = "coserve",
                                            .evict = "two-stage",
                                            .casual = true,
                                            .cuda = UINT32_MAX,
                                            .cpu = UINT32_MAX};
    return status == MOE_OK ? moe_coe_planner_make(&planner, w->plan, err) : status;
}

/* The plan's executors, as a dispatch of its own. */
static int open_dispatch(const struct world *w, struct moe_coe_cost *tables,
                         struct moe_coe_dispatch **d, uint32_t *n, struct moe_err *err)
{
    struct moe_coe_executor_options executors[MAX_EXECUTORS];
    *n = 0;
    for (uint32_t i = 0; i < w->plan->n_executors; i++) {
        const struct moe_coe_plan_executors *e = &w->plan->executors[i];
        uint32_t on = moe_coe_costs_processor(w->costs, e->device);
        struct moe_coe_cost *table = &tables[on * w->costs->n_kinds];
        moe_coe_costs_table(w->costs, on, e->threads, table);
        for (uint32_t k = 0; k < e->number && *n < MAX_EXECUTORS; k++)
            executors[(*n)++] =
                (struct moe_coe_executor_options){table, e->expert_bytes, e->batch_bytes, on};
    }
    const struct moe_coe_options o = {.all = w->all,
                                      .n_executors = *n,
                                      .executors = executors,
                                      .arrange = true,
                                      .assign = MOE_COE_ASSIGN_LEAST,
                                      .evict = MOE_COE_TWO_STAGE};
    return moe_coe_dispatch_open(d, &o, err);
}

/* Everything out again; the median of the parts' times, by request. */
static double take(struct moe_coe_dispatch *d, uint32_t n_executors)
{
    double seconds[PARTS], begins = now();
    struct moe_coe_batch batch;
    uint32_t taken = 0, n_parts = 0;
    for (uint32_t i = 0; i < n_executors; i++)
        while (moe_coe_next(d, i, 0, &batch)) {
            taken += batch.n;
            moe_coe_done(d, i, 0);
            if (taken >= QUEUED / PARTS && n_parts < PARTS) {
                seconds[n_parts++] = (now() - begins) / taken;
                taken = 0;
                begins = now();
            }
        }
    qsort(seconds, n_parts, sizeof *seconds, by_value);
    return n_parts ? seconds[n_parts / 2] : 0;
}

/* All tasks with so many seconds of scheduling for each request, added up. */
static int simulate(const struct world *w, double schedule_seconds, struct moe_coe_simulated *sum,
                    struct moe_err *err)
{
    *sum = (struct moe_coe_simulated){0};
    for (uint32_t i = 0; i < TASKS; i++) {
        struct moe_coe_simulated got;
        int status = moe_coe_plan_simulate(w->plan, w->costs, w->all, &w->tasks[i],
                                           schedule_seconds, &got, err);
        if (status != MOE_OK)
            return status;
        sum->seconds += got.seconds;
        sum->results += got.results;
        sum->computed += got.computed;
        sum->compute_seconds += got.compute_seconds;
    }
    return MOE_OK;
}

int main(int argc, char **argv)
{
    static struct moe_coe_request requests[QUEUED];
    struct world w = {0};
    struct moe_err err = {0};
    struct moe_coe_dispatch *d = NULL;
    struct moe_coe_simulated with, advance;
    uint32_t n;
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: bench_coe COLLECTION COSTS [REQUESTS]\n");
        return 2;
    }
    int status = open_world(&w, argv, argc > 3 ? (uint32_t)atoi(argv[3]) : 2500, &err);
    struct moe_coe_cost *tables =
        calloc(MOE_COE_MAX_PROCESSORS * (status == MOE_OK ? w.costs->n_kinds : 1), sizeof *tables);
    if (status == MOE_OK && tables)
        status = open_dispatch(&w, tables, &d, &n, &err);
    if (status != MOE_OK || !tables) {
        fprintf(stderr, "bench_coe: %s\n", err.text);
        return 1;
    }
    for (uint32_t i = 0; i < QUEUED; i++)
        requests[i].expert = w.many.arrivals[i].path[0];
    size_t before = mallinfo2().uordblks;
    double at_1000 = submit(d, requests, 0, 2000);
    double at_10000 = submit(d, requests, 2000, 16000);
    submit(d, requests, 18000, 72000);
    double at_100000 = submit(d, requests, 90000, 10000);
    size_t bytes = mallinfo2().uordblks - before;
    double taking = take(d, n);
    status = simulate(&w, 0, &advance, &err);
    if (status == MOE_OK)
        status = simulate(&w, at_100000 + taking, &with, &err);
    if (status == MOE_OK)
        printf("{\"schedule_s\": [%.3g, %.3g, %.3g], \"take_s\": %.3g, \"queue_bytes\": %zu, "
               "\"inference_s\": %.5g, \"per_s\": %.5g, \"per_s_in_advance\": %.5g}\n",
               at_1000, at_10000, at_100000, taking, bytes,
               advance.compute_seconds / (double)advance.computed,
               (double)with.results / with.seconds, (double)advance.results / advance.seconds);
    moe_coe_dispatch_close(d);
    moe_coe_plan_free(w.plan);
    for (uint32_t i = 0; i < TASKS; i++)
        moe_coe_task_release(&w.tasks[i]);
    moe_coe_task_release(&w.sample);
    moe_coe_task_release(&w.many);
    moe_coe_experts_free(w.all);
    moe_coe_costs_free(w.costs);
    moe_coe_collection_free(w.collection);
    free(tables);
    return status == MOE_OK ? 0 : 1;
}
