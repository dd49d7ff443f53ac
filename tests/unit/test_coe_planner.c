/*
 * Tasks drawn from collections, plans made for modelled machines, and systems side by side; queues
 * of 100,000 requests.
 */
#define _GNU_SOURCE
#include "../test.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#include "serve/coe_planner.h"

enum { TYPES = 60, DETECTORS = 6 };

/* A board as profiles/coe/board.sh makes it, smaller: types of falling quantity, every second goes
 * on to a detector. */
static struct moe_coe_collection *board(void)
{
    struct moe_buf text = {0};
    struct moe_coe_collection *c;
    struct moe_err err;
    moe_buf_text(&text, "format: moe-coe\nversion: 1\nexperts:\n");
    for (int i = 0; i < TYPES; i++)
        moe_buf_printf(&text, "  - {name: t%d, pack: p, architecture: big}\n", i);
    for (int i = 0; i < DETECTORS; i++)
        moe_buf_printf(&text, "  - {name: d%d, pack: p, architecture: small}\n", i);
    moe_buf_text(&text, "routes:\n");
    for (int i = 0; i < TYPES; i++)
        moe_buf_printf(&text, "  - {field: type, equals: \"%d\", expert: t%d, quantity: %g}\n", i,
                       i, 1.0 / (i + 1));
    moe_buf_text(&text, "follows:\n");
    for (int i = 0; i < TYPES; i += 2)
        moe_buf_printf(&text, "  - {after: t%d, equals: fine, expert: d%d, share: 0.9}\n", i,
                       i / 2 % DETECTORS);
    assert_ok(moe_record_parse(&moe_coe_collection_format, &c, "board", text.data, text.size, &err),
              &err);
    moe_buf_release(&text);
    return c;
}

#define COST(kind, on, times, batch, rest)                                                         \
    "  - {architecture: " kind ", processor: " on ", " times ", max_batch: " batch ", " rest "}\n"
#define KINDS "architectures:\n  - {name: big}\n  - {name: small}\n"
/* 20 experts fit the accelerator, whose largest batches take half of it; a tenth of that speed. */
static const char apart[] =
    "format: moe-coe-costs\nversion: 1\nmemory_bytes: 3000\n"
    "processors:\n  - {name: cuda, memory_bytes: 2000}\n  - {name: cpu}\n" KINDS "costs:\n" COST(
        "big", "cuda", "per_request_seconds: 0.01, per_batch_seconds: 0.02", "10",
        "load_seconds: 0.4, load_from_host_seconds: 0.05, expert_bytes: 100, request_bytes: 100")
        COST("small", "cuda", "per_request_seconds: 0.01, per_batch_seconds: 0.02", "10",
             "load_seconds: 0.2, load_from_host_seconds: 0.03, expert_bytes: 50, "
             "request_bytes: 10")
            COST("big", "cpu", "per_request_seconds: 0.1, per_batch_seconds: 0.2", "10",
                 "load_seconds: 0.4, expert_bytes: 100, request_bytes: 4")
                COST("small", "cpu", "per_request_seconds: 0.1, per_batch_seconds: 0.2", "10",
                     "load_seconds: 0.2, expert_bytes: 50, request_bytes: 4");
/* One memory; the accelerator is three times as fast, and its batches take little. */
static const char shared[] =
    "format: moe-coe-costs\nversion: 1\nmemory_bytes: 4000\n"
    "processors:\n  - {name: cuda}\n  - {name: cpu}\n" KINDS
    "costs:\n" COST("big", "cuda", "per_request_seconds: 0.01, per_batch_seconds: 0", "2",
                    "load_seconds: 0.1, expert_bytes: 100, request_bytes: 10")
        COST("small", "cuda", "per_request_seconds: 0.01, per_batch_seconds: 0", "2",
             "load_seconds: 0.1, expert_bytes: 50, request_bytes: 10")
            COST("big", "cpu", "per_request_seconds: 0.03, per_batch_seconds: 0", "2",
                 "load_seconds: 0.1, expert_bytes: 100, request_bytes: 10")
                COST("small", "cpu", "per_request_seconds: 0.03, per_batch_seconds: 0", "2",
                     "load_seconds: 0.1, expert_bytes: 50, request_bytes: 10");

struct world {
    struct moe_coe_collection *collection;
    struct moe_coe_costs *costs;
    struct moe_coe_experts *all;
    struct moe_coe_task task;
    struct moe_coe_planner planner;
};

static void open_world(struct world *w, const char *costs, uint32_t requests)
{
    struct moe_err err;
    w->collection = board();
    assert_ok(
        moe_record_parse(&moe_coe_costs_format, &w->costs, "costs", costs, strlen(costs), &err),
        &err);
    assert_ok(moe_coe_costs_experts(&w->all, w->costs, w->collection, NULL, &err), &err);
    assert_ok(moe_coe_task_draw(&w->task, w->collection, w->all, requests, 0.004, 1, &err), &err);
    w->planner = (struct moe_coe_planner){.costs = w->costs,
                                          .all = w->all,
                                          .samples = &w->task,
                                          .n_samples = 1,
                                          .schedule = "coserve",
                                          .evict = "two-stage",
                                          .cuda = UINT32_MAX,
                                          .cpu = UINT32_MAX};
}

static void close_world(struct world *w)
{
    moe_coe_task_release(&w->task);
    moe_coe_experts_free(w->all);
    moe_coe_costs_free(w->costs);
    moe_coe_collection_free(w->collection);
}

/* ---- Tasks ---- */

static void tasks_follow_quantities_and_shares(void **state)
{
    enum { N = 20000 };
    struct world w;
    struct moe_coe_task again;
    struct moe_err err;
    uint32_t begins[TYPES] = {0}, goes_on = 0, of_first = 0;
    (void)state;
    open_world(&w, apart, N);
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t *path = w.task.arrivals[i].path;
        assert_true(path[0] < TYPES && w.task.arrivals[i].at == i * 0.004);
        begins[path[0]]++;
        if (path[0] == 0) {
            of_first++;
            goes_on += path[1] == TYPES;
        }
        if (path[1] != MOE_COE_NONE) {
            assert_int_equal(path[0] % 2, 0);
            assert_int_equal(path[1], TYPES + path[0] / 2 % DETECTORS);
            assert_int_equal(path[2], MOE_COE_NONE);
        }
    }
    for (uint32_t i = 0; i < TYPES; i++) { /* within five standard errors */
        double p = w.all->experts[i].probability;
        assert_true(fabs(begins[i] - N * p) < 5 * sqrt(N * p * (1 - p)));
    }
    assert_true(fabs(goes_on - 0.9 * of_first) < 5 * sqrt(of_first * 0.09));
    assert_ok(moe_coe_task_draw(&again, w.collection, w.all, N, 0.004, 1, &err), &err);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(again.arrivals[i].path[0], w.task.arrivals[i].path[0]);
    moe_coe_task_release(&again);
    close_world(&w);
}

static void tasks_need_quantities_or_probabilities(void **state)
{
    static const char text[] = "format: moe-coe\nversion: 1\nexperts:\n  - {name: a, pack: p}\n"
                               "  - {name: b, pack: p}\nroutes:\n  - {expert: a}\n"
                               "follows:\n  - {after: a, equals: x, expert: b}\n";
    struct moe_coe_collection *c;
    struct moe_coe_task task;
    struct moe_err err;
    static const uint32_t before[] = {0};
    struct moe_coe_expert experts[] = {{.bytes = 1}, {.bytes = 1, .n_before = 1, .probability = 1}};
    const struct moe_coe_experts all = {2, 1, experts, before};
    (void)state;
    assert_ok(moe_record_parse(&moe_coe_collection_format, &c, "c", text, strlen(text), &err),
              &err);
    assert_fails(moe_coe_task_draw(&task, c, &all, 3, 1, 0, &err), MOE_ERR_USAGE,
                 "no task can be drawn", &err);
    experts[0].probability = 0.5;
    assert_ok(moe_coe_task_draw(&task, c, &all, 3, 1, 0, &err), &err);
    assert_int_equal(task.arrivals[2].path[0], 0);
    assert_int_equal(task.arrivals[2].path[1], 1); /* without a share: all */
    moe_coe_task_release(&task);
    moe_coe_collection_free(c);
}

/* Shares are of all results: two halves leave nothing that is final. */
static void rules_share_all_results(void **state)
{
    static const char text[] =
        "format: moe-coe\nversion: 1\nexperts:\n  - {name: a, pack: p}\n"
        "  - {name: b, pack: p}\n  - {name: c, pack: p}\nroutes:\n  - {expert: a, quantity: 1}\n"
        "follows:\n  - {after: a, equals: x, expert: b, share: 0.5}\n"
        "  - {after: a, equals: y, expert: c, share: 0.5}\n";
    struct moe_coe_collection *c;
    struct moe_coe_task task;
    struct moe_err err;
    struct moe_coe_expert experts[3] = {{.bytes = 1}, {.bytes = 1}, {.bytes = 1}};
    const struct moe_coe_experts all = {3, 1, experts, NULL};
    uint32_t to[3] = {0};
    (void)state;
    assert_ok(moe_record_parse(&moe_coe_collection_format, &c, "c", text, strlen(text), &err),
              &err);
    assert_ok(moe_coe_task_draw(&task, c, &all, 1000, 1, 0, &err), &err);
    for (int i = 0; i < 1000; i++) {
        assert_true(task.arrivals[i].path[1] < 3);
        to[task.arrivals[i].path[1]]++;
    }
    assert_in_range(to[1], 420, 580);
    assert_int_equal(to[1] + to[2], 1000);
    moe_coe_task_release(&task);
    moe_coe_collection_free(c);
}

/* ---- Plans ---- */

static struct moe_coe_plan *make(const struct world *w)
{
    struct moe_coe_plan *plan, *again;
    struct moe_buf text = {0};
    struct moe_err err;
    assert_ok(moe_coe_plan_new(&plan, &err), &err);
    assert_ok(moe_coe_planner_make(&w->planner, plan, &err), &err);
    /* What is planned can be written and read. */
    assert_ok(moe_coe_plan_write(plan, false, &text, &err), &err);
    assert_ok(moe_record_parse(&moe_coe_plan_format, &again, "made", text.data, text.size, &err),
              &err);
    moe_coe_plan_free(again);
    moe_buf_release(&text);
    return plan;
}

static const struct moe_coe_plan_executors *on(const struct moe_coe_plan *plan, const char *device)
{
    for (uint32_t i = 0; i < plan->n_executors; i++)
        if (strcmp(plan->executors[i].device, device) == 0)
            return &plan->executors[i];
    return NULL;
}

/* Memory that a plan gives away is there. */
static void check_memory(const struct moe_coe_plan *plan, uint64_t device, uint64_t host)
{
    uint64_t on_host = plan->host_bytes, on_device = 0;
    for (uint32_t i = 0; i < plan->n_executors; i++) {
        const struct moe_coe_plan_executors *e = &plan->executors[i];
        uint64_t bytes = e->number * (e->expert_bytes + e->batch_bytes);
        *(device && strcmp(e->device, "cuda") == 0 ? &on_device : &on_host) += bytes;
    }
    assert_true(on_device <= device && on_host <= host);
    assert_int_equal(plan->memory_bytes, device + host);
}

static void the_casual_setting_is_the_papers(void **state)
{
    struct world w;
    (void)state;
    open_world(&w, apart, 300);
    w.planner.casual = true;
    struct moe_coe_plan *plan = make(&w);
    assert_int_equal(on(plan, "cuda")->number, 3);
    assert_int_equal(on(plan, "cuda")->expert_bytes, 500); /* 75% of 2000, of three */
    assert_int_equal(on(plan, "cuda")->batch_bytes, 166);
    assert_int_equal(on(plan, "cpu")->number, 1);
    /* 3000 * 1/11; its largest batch, 40 bytes, comes first. */
    assert_int_equal(on(plan, "cpu")->batch_bytes, 40);
    assert_int_equal(on(plan, "cpu")->expert_bytes, 272 - 40);
    assert_int_equal(plan->host_bytes, 3000 - 272);
    assert_string_equal(plan->window.device, "");
    assert_int_equal(plan->n_trials, 0);
    check_memory(plan, 2000, 3000);
    moe_coe_plan_free(plan);
    /* An eleventh of little is too little: two experts and a request are the least. */
    w.planner.memory_bytes = 1000;
    plan = make(&w);
    assert_int_equal(on(plan, "cpu")->expert_bytes + on(plan, "cpu")->batch_bytes, 204);
    assert_int_equal(plan->host_bytes, 1000 - 204);
    check_memory(plan, 2000, 1000);
    moe_coe_plan_free(plan);
    /* What executors take for themselves is none of experts and batches: 1400 and 204 are left. */
    w.planner.memory_bytes = 3000;
    w.costs->processors[0].executor_bytes = 200;
    w.costs->processors[1].executor_bytes = 102;
    plan = make(&w);
    assert_int_equal(on(plan, "cuda")->expert_bytes, 350);
    assert_int_equal(on(plan, "cpu")->expert_bytes + on(plan, "cpu")->batch_bytes, 306 - 102);
    assert_int_equal(plan->host_bytes, 3000 - 306);
    check_memory(plan, 2000, 3000);
    moe_coe_plan_free(plan);
    close_world(&w);
}

static void where_batches_are_large_the_window_slides(void **state)
{
    struct world w;
    struct moe_err err;
    (void)state;
    open_world(&w, apart, 600);
    w.planner.cuda = 2;
    w.planner.cpu = 1;
    w.planner.window.first = 8;
    struct moe_coe_plan *plan = make(&w);
    const struct moe_coe_plan_executors *cuda = on(plan, "cuda");
    assert_string_equal(plan->window.device, "cuda");
    assert_true(plan->n_points >= 2 && plan->points[0].experts == 8);
    assert_in_range(plan->window.chosen, plan->window.lower + 1, plan->window.upper);
    for (uint32_t i = 0; i < plan->n_points; i++)
        assert_true(plan->throughput >= plan->points[i].throughput);
    for (uint32_t i = 0; i < plan->n_batches; i++) /* 100 bytes each */
        if (strcmp(plan->batches[i].architecture, "big") == 0 &&
            strcmp(plan->batches[i].device, "cuda") == 0)
            assert_int_equal(plan->batches[i].requests, cuda->batch_bytes / 100);
    check_memory(plan, 2000, 3000);
    moe_coe_plan_free(plan);
    w.planner.resident = 7; /* by hand */
    plan = make(&w);
    assert_int_equal(on(plan, "cuda")->experts, 7);
    assert_int_equal(plan->n_points, 0);
    moe_coe_plan_free(plan);
    w.planner.resident = 40; /* more than 2000 bytes */
    assert_ok(moe_coe_plan_new(&plan, &err), &err);
    assert_fails(moe_coe_planner_make(&w.planner, plan, &err), MOE_ERR_LIMIT, "choose fewer", &err);
    moe_coe_plan_free(plan);
    close_world(&w);
}

/* Whatever memory, load times and task are, of all that was measured the best is planned, and
 * nothing that runs is left out: the casual setting, points of the window, other executors. The
 * throughput that a plan says is what its settings give. */
static void the_best_of_everything_is_planned(void **state)
{
    uint32_t by_casual = 0, beyond = 0, by_home = 0, by_papers = 0, prefetching = 0;
    (void)state;
    for (uint32_t way = 0; way < 24; way++) {
        struct moe_coe_simulated got[2];
        struct moe_coe_task tasks[2];
        struct world w;
        struct moe_err err;
        double most = 0;
        open_world(&w, way % 2 ? shared : apart, 100 + 100 * (way / 2 % 3));
        for (int i = 0; i < 2; i++)
            assert_ok(
                moe_coe_task_draw(&tasks[i], w.collection, w.all, w.task.n, 0.004, way + i, &err),
                &err);
        w.planner.samples = tasks;
        w.planner.n_samples = 2;
        w.planner.prefetch = way / 6 % 2;
        w.planner.memory_bytes = way < 12 ? 1500 : 4000;
        w.planner.cuda = way % 4 ? UINT32_MAX : 3 - way % 3;
        w.planner.window.seed = way;
        w.planner.cpu = way % 4 ? UINT32_MAX : 1;
        w.planner.window.first = way % 4 ? 0 : 50; /* the first point has all memory */
        struct moe_coe_plan *plan = make(&w);
        for (int i = 0; i < 2; i++)
            assert_ok(moe_coe_plan_simulate(plan, w.costs, w.all, &tasks[i], 0, &got[i], &err),
                      &err);
        assert_true(plan->throughput ==
                    (got[0].results + got[1].results) / (got[0].seconds + got[1].seconds));
        for (uint32_t i = 0; i < plan->n_points; i++)
            most = fmax(most, plan->points[i].throughput);
        for (uint32_t i = 0; i < plan->n_trials; i++)
            most = fmax(most, plan->trials[i].throughput);
        assert_true(plan->throughput >= most);
        w.planner.prefetch = false;
        struct moe_coe_plan *without = make(&w);
        w.planner.schedule = w.planner.evict = NULL; /* the best of four ways */
        w.planner.prefetch = true;
        struct moe_coe_plan *better = make(&w);
        assert_true(!without->prefetch && better->throughput >= without->throughput);
        moe_coe_plan_free(without);
        prefetching += better->prefetch;
        assert_true(better->throughput >= plan->throughput);
        by_home += strcmp(better->schedule, "home") == 0 && strcmp(better->evict, "queue") == 0;
        by_papers += strcmp(better->schedule, "coserve") == 0;
        moe_coe_plan_free(better);
        w.planner.schedule = "coserve";
        w.planner.evict = "two-stage";
        w.planner.prefetch = way / 6 % 2;
        w.planner.casual = true;
        struct moe_coe_plan *casual = make(&w);
        assert_int_equal(on(casual, "cuda")->number, way % 4 == 0 ? 3 - way % 3
                                                     : way % 2    ? 2
                                                                  : 3); /* 5.2 */
        assert_true(plan->throughput >= casual->throughput);
        by_casual += plan->throughput == casual->throughput;
        for (uint32_t i = 0; i < plan->n_reasons; i++)
            beyond += strcmp(plan->reasons[i].about, "the best") == 0;
        moe_coe_plan_free(casual);
        moe_coe_plan_free(plan);
        for (int i = 0; i < 2; i++)
            moe_coe_task_release(&tasks[i]);
        close_world(&w);
    }
    assert_true(beyond >= 8 && by_casual >= 1 && by_casual < beyond);
    assert_true(by_home >= 8 && by_papers >= 1);
    assert_int_equal(by_home + by_papers, 24);
    assert_true(prefetching >= 8 && prefetching < 24);
}

static void where_batches_are_small_they_come_first(void **state)
{
    struct world w;
    (void)state;
    open_world(&w, shared, 300);
    w.planner.cuda = 2;
    w.planner.cpu = 1;
    struct moe_coe_plan *plan = make(&w);
    /* One memory, divided three to one; a batch takes 20. */
    assert_int_equal(on(plan, "cuda")->batch_bytes, 20);
    assert_in_range(on(plan, "cuda")->expert_bytes, 1479, 1480);
    assert_int_equal(on(plan, "cpu")->batch_bytes, 20);
    assert_in_range(on(plan, "cpu")->expert_bytes, 979, 980);
    assert_int_equal(plan->host_bytes, 0);
    assert_int_equal(plan->n_points, 0);
    check_memory(plan, 0, 4000);
    moe_coe_plan_free(plan);
    close_world(&w);
}

static void the_best_of_the_executors_is_taken(void **state)
{
    struct world w;
    (void)state;
    open_world(&w, shared, 400);
    struct moe_coe_plan *plan = make(&w);
    double most = 0, taken = -1;
    uint32_t cuda = on(plan, "cuda")->number, cpu = on(plan, "cpu") ? on(plan, "cpu")->number : 0;
    assert_true(plan->n_trials >= 8);
    for (uint32_t i = 0; i < plan->n_trials; i++) {
        most = fmax(most, plan->trials[i].throughput);
        if (plan->trials[i].cuda == cuda && plan->trials[i].cpu == cpu)
            taken = plan->trials[i].throughput;
    }
    assert_true(taken == most);
    moe_coe_plan_free(plan);
    close_world(&w);
}

/* A processor of two threads: a second one makes requests a sixth cheaper, so that two teams of one
 * compute 1.7 times as many. Where threads are not divided, or a team of two is twice as fast, one
 * executor is better: it has all the memory. */
#define TEAMS(threads, k1)                                                                         \
    "format: moe-coe-costs\nversion: 1\nmemory_bytes: 9000\nprocessors:\n  - {name: cpu" threads   \
    "}\n" KINDS "costs:\n" COST("big", "cpu", "per_request_seconds: 0.1, per_batch_seconds: 0",    \
                                "2", "load_seconds: 0.01, expert_bytes: 100, request_bytes: 10")   \
        COST("small", "cpu", "per_request_seconds: 0.1, per_batch_seconds: 0", "2",                \
             "load_seconds: 0.01, expert_bytes: 50, request_bytes: 10") k1
#define OF_ONE(kind, k)                                                                            \
    COST(kind, "cpu", "threads: 1, per_request_seconds: " k ", per_batch_seconds: 0", "2",         \
         "load_seconds: 0.01, expert_bytes: 100, request_bytes: 10")

static void teams_compute_side_by_side(void **state)
{
    static const struct {
        const char *costs;
        uint32_t best;
        double least, most; /* how much faster two executors are than one */
    } rows[] = {
        {TEAMS(", threads: 2", OF_ONE("big", "0.12") OF_ONE("small", "0.12")), 2, 1.6, 1.69},
        {TEAMS(", threads: 2", OF_ONE("big", "0.2") OF_ONE("small", "0.2")), 1, 0.9, 1.01},
        {TEAMS(", threads: 2", ""), 1, 0.9, 1.01}, /* one thread is not measured: half as fast */
        {TEAMS("", ""), 1, 0.9, 1.01},             /* written before there were teams */
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        struct world w;
        open_world(&w, rows[i].costs, 400);
        w.planner.prefetch = true; /* so that no executor waits for the first load alone */
        struct moe_coe_plan *plan = make(&w);
        assert_true(plan->n_trials >= 2 && plan->trials[0].cpu == 1 && plan->trials[1].cpu == 2);
        double faster = plan->trials[1].throughput / plan->trials[0].throughput;
        if (faster < rows[i].least || faster > rows[i].most)
            fail_msg("row %zu: two executors are %g times as fast as one", i, faster);
        if (rows[i].best == 2)
            assert_int_equal(on(plan, "cpu")->number, 2);
        assert_int_equal(on(plan, "cpu")->threads,
                         w.costs->processors[0].threads / on(plan, "cpu")->number);
        moe_coe_plan_free(plan);
        close_world(&w);
    }
}

static void memory_that_is_too_small_is_refused(void **state)
{
    struct world w;
    struct moe_coe_plan *plan;
    struct moe_err err;
    (void)state;
    open_world(&w, apart, 10);
    w.planner.device_bytes = 150;
    w.planner.cuda = 1;
    w.planner.cpu = 0;
    assert_ok(moe_coe_plan_new(&plan, &err), &err);
    assert_fails(moe_coe_planner_make(&w.planner, plan, &err), MOE_ERR_LIMIT, "not enough", &err);
    w.planner.device_bytes = 250; /* which would do, if the executor took none of it */
    w.costs->processors[0].executor_bytes = 100;
    assert_fails(moe_coe_planner_make(&w.planner, plan, &err), MOE_ERR_LIMIT, "not enough", &err);
    w.costs->processors[0].executor_bytes = 300;
    assert_fails(moe_coe_planner_make(&w.planner, plan, &err), MOE_ERR_LIMIT, "not enough", &err);
    w.costs->processors[0].executor_bytes = 0;
    assert_ok(moe_coe_planner_make(&w.planner, plan, &err), &err);
    w.planner.cuda = 0;
    assert_fails(moe_coe_planner_make(&w.planner, plan, &err), MOE_ERR_USAGE, "no executors", &err);
    w.planner.cpu = 1;
    w.planner.schedule = "lifo";
    assert_fails(moe_coe_planner_make(&w.planner, plan, &err), MOE_ERR_USAGE, "schedule 'lifo'",
                 &err);
    close_world(&w);
    open_world(&w, TEAMS("", ""), 10); /* has no accelerator */
    w.planner.cuda = 2;
    w.planner.cpu = 1;
    assert_fails(moe_coe_planner_make(&w.planner, plan, &err), MOE_ERR_USAGE,
                 "2 executors on 'cuda': the costs have no such processor", &err);
    moe_coe_plan_free(plan);
    close_world(&w);
}

/* ---- Systems ---- */

static void coserve_is_ahead_of_every_baseline(void **state)
{
    const char *const worlds[] = {apart, shared};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct moe_coe_simulated got[MOE_COE_SYSTEMS];
        struct world w;
        struct moe_err err;
        open_world(&w, worlds[i], 2000);
        w.planner.cuda = 2;
        w.planner.cpu = 1;
        w.planner.device_bytes = i == 0 ? 1500 : 0;
        w.planner.memory_bytes = i == 1 ? 2500 : 0;
        struct moe_coe_plan *best = make(&w);
        for (int s = 0; s < MOE_COE_SYSTEMS; s++) {
            assert_ok(moe_coe_compare(&moe_coe_systems[s], &w.planner, best, &w.task, &got[s], NULL,
                                      &err),
                      &err);
            assert_int_equal(got[s].results, 2000);
        }
        for (int s = 0; s < 3; s++) { /* the baselines */
            assert_true(got[7].seconds < got[s].seconds);
            assert_true(got[7].switches < got[s].switches);
        }
        assert_true(got[5].switches < got[4].switches && got[4].switches < got[3].switches);
        moe_coe_plan_free(best);
        close_world(&w);
    }
}

/* ---- Many requests ---- */

/* The cheapest of ten tenths of the requests from `first` on: other processes only make some of
 * them dearer. */
static double submit_seconds(struct moe_coe_dispatch *d, struct moe_coe_request *requests,
                             uint32_t first, uint32_t n)
{
    double best = INFINITY;
    for (uint32_t part = 0; part < 10; part++) {
        double begins = test_cpu_seconds();
        for (uint32_t i = first + part * (n / 10); i < first + (part + 1) * (n / 10); i++) {
            struct moe_err err;
            uint32_t executor;
            if (moe_coe_submit(d, &requests[i], 0, &executor, &err) != MOE_OK)
                fail_msg("%s", err.text);
        }
        best = fmin(best, test_cpu_seconds() - begins);
    }
    return best / (n / 10);
}

/* A queue of 100,000 takes no longer for a request than one of 10,000, and no memory for it but a
 * group for each expert. */
static void a_long_queue_costs_no_more(void **state)
{
    enum { N = 100000 };
    struct moe_coe_request *requests = calloc(N, sizeof *requests);
    struct world w;
    struct moe_coe_cost table[2];
    struct moe_coe_dispatch *d;
    struct moe_err err;
    (void)state;
    open_world(&w, apart, N);
    moe_coe_costs_table(w.costs, 0, 0, table);
    const struct moe_coe_executor_options executors[] = {{table, 700, 300, 0},
                                                         {table, 700, 300, 0}};
    const struct moe_coe_options o = {.all = w.all,
                                      .n_executors = 2,
                                      .executors = executors,
                                      .arrange = true,
                                      .assign = MOE_COE_ASSIGN_LEAST,
                                      .evict = MOE_COE_TWO_STAGE};
    assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
    for (uint32_t i = 0; i < N; i++)
        requests[i].expert = w.task.arrivals[i].path[0];
    double early = submit_seconds(d, requests, 0, 10000);
    size_t before = mallinfo2().uordblks;
    submit_seconds(d, requests, 10000, 80000);
    double late = submit_seconds(d, requests, 90000, 10000);
    assert_true(mallinfo2().uordblks <= before + 2 * TYPES * 64);
    assert_int_equal(moe_coe_waiting(d, 0) + moe_coe_waiting(d, 1), N);
    if (late > 3 * early + 1e-6)
        fail_msg("%g s a request at 10,000, %g s at 100,000", early, late);
    moe_coe_dispatch_close(d);
    free(requests);
    close_world(&w);
}

/* Scheduling, with all of the simulator's own work, below 3% of the time that is simulated. */
static void scheduling_is_a_small_part(void **state)
{
    struct world w;
    struct moe_coe_simulated got, advance;
    struct moe_err err;
    (void)state;
    open_world(&w, apart, 100000);
    w.planner.casual = true;
    struct moe_coe_plan *plan = make(&w);
    double begins = test_cpu_seconds();
    assert_ok(moe_coe_plan_simulate(plan, w.costs, w.all, &w.task, 0, &advance, &err), &err);
    double took = test_cpu_seconds() - begins;
    assert_int_equal(advance.results, 100000);
    assert_true(took < 0.03 * advance.seconds);
    /* The same with what scheduling takes on the clock, against a run scheduled in advance (5.3).
     */
    assert_ok(moe_coe_plan_simulate(plan, w.costs, w.all, &w.task, took / (double)advance.computed,
                                    &got, &err),
              &err);
    assert_true(fabs(got.seconds - advance.seconds) < 0.03 * advance.seconds);
    moe_coe_plan_free(plan);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_follow_quantities_and_shares),
        cmocka_unit_test(tasks_need_quantities_or_probabilities),
        cmocka_unit_test(rules_share_all_results),
        cmocka_unit_test(the_casual_setting_is_the_papers),
        cmocka_unit_test(where_batches_are_large_the_window_slides),
        cmocka_unit_test(the_best_of_everything_is_planned),
        cmocka_unit_test(where_batches_are_small_they_come_first),
        cmocka_unit_test(the_best_of_the_executors_is_taken),
        cmocka_unit_test(teams_compute_side_by_side),
        cmocka_unit_test(memory_that_is_too_small_is_refused),
        cmocka_unit_test(coserve_is_ahead_of_every_baseline),
        cmocka_unit_test(a_long_queue_costs_no_more),
        cmocka_unit_test(scheduling_is_a_small_part),
    };
    return cmocka_run_group_tests_name("coe_planner", tests, NULL, NULL);
}
