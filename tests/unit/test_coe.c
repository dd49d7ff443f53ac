/*
 * Collaboration of experts: queues, pools and dispatch by hand-counted sequences of the paper's
 * rules (CoServe 4.1 to 4.3), and whole simulations by what must hold for each.
 */
#include "../test.h"

#include <math.h>
#include <stdlib.h>

#include "serve/coe_plan.h"
#include "serve/coe_simulate.h"

/* ---- Queues ---- */

/* Takes everything out, batches of at most `most`: "0:2 1:1" says which expert, how many. */
static void drain(struct moe_coe_queue *q, uint32_t most, char *out, size_t room)
{
    uint32_t n;
    size_t at = 0;
    const struct moe_coe_request *r;
    out[0] = '\0';
    while ((r = moe_coe_queue_take(q, most, &n)) != NULL) {
        uint32_t expert = r->expert, counted = 0;
        for (; r; r = r->next, counted++)
            assert_int_equal(r->expert, expert);
        assert_int_equal(counted, n);
        at += (size_t)snprintf(out + at, room - at, "%s%u:%u", at ? " " : "", expert, n);
    }
    assert_int_equal(moe_coe_queue_length(q), 0);
}

static void check_queue(bool arrange, const char *experts, uint32_t most, const char *want)
{
    struct moe_coe_request requests[32] = {0};
    struct moe_coe_queue *q;
    struct moe_err err;
    char got[128];
    assert_ok(moe_coe_queue_open(&q, 4, arrange, &err), &err);
    for (int again = 0; again < 2; again++) { /* an emptied queue is as a new one */
        for (uint32_t i = 0; experts[i]; i++) {
            requests[i].expert = (uint32_t)(experts[i] - '0');
            assert_ok(moe_coe_queue_push(q, &requests[i], &err), &err);
            assert_true(moe_coe_queue_waits(q, requests[i].expert));
        }
        assert_int_equal(moe_coe_queue_length(q), strlen(experts));
        drain(q, most, got, sizeof got);
        assert_string_equal(got, want);
        assert_false(moe_coe_queue_waits(q, 0));
        assert_int_equal(moe_coe_queue_first(q), MOE_COE_NONE);
    }
    moe_coe_queue_close(q);
}

/* Digits: who has fewest that run comes first, then who was given least; else who came first. */
static void clients_take_turns(void **state)
{
    (void)state;
    static const char came[] = "000001122", want[] = "201201000";
    struct moe_coe_client clients[3] = {{.given = 3}, {.given = 3}, {.given = 2}};
    struct moe_coe_request requests[N_ITEMS(came) - 1] = {0}, *r;
    struct moe_coe_queue *q;
    struct moe_err err;
    uint32_t n;
    assert_ok(moe_coe_queue_open(&q, 1, true, &err), &err);
    for (uint32_t i = 0; i < N_ITEMS(requests); i++) {
        requests[i].client = &clients[came[i] - '0'];
        assert_ok(moe_coe_queue_push(q, &requests[i], &err), &err);
    }
    r = moe_coe_queue_take(q, N_ITEMS(requests), &n);
    assert_int_equal(n, N_ITEMS(requests));
    for (uint32_t i = 0; i < n; i++, r = r->next)
        assert_int_equal(r->client - clients, want[i] - '0');
    assert_null(r);
    assert_int_equal(clients[0].running, 5);
    moe_coe_queue_close(q);
}

static void requests_are_arranged_behind_their_like(void **state)
{
    (void)state;
    check_queue(true, "012010", 8, "0:3 1:2 2:1");
    check_queue(true, "0000012", 3, "0:3 0:2 1:1 2:1");
    check_queue(false, "012010", 8, "0:1 1:1 2:1 0:1 1:1 0:1");
    check_queue(false, "0011000", 2, "0:2 1:2 0:2 0:1");
    check_queue(true, "", 2, "");
}

/* ---- Pools ---- */

/* 0, 1: where requests begin; 2 follows 0, 3 follows 1, 4 follows both. */
static const uint32_t before[] = {0, 1, 0, 1};
static const struct moe_coe_expert five[] = {
    {.bytes = 10, .probability = 0.5, .kind = 0},
    {.bytes = 10, .probability = 0.4, .kind = 0},
    {.bytes = 20, .probability = 0.3, .kind = 0, .first_before = 0, .n_before = 1},
    {.bytes = 30, .probability = 0.2, .kind = 0, .first_before = 1, .n_before = 1},
    {.bytes = 10, .probability = 0.1, .kind = 0, .first_before = 2, .n_before = 2},
};
static const struct moe_coe_experts all = {5, 1, five, before};

/* Admits the experts in turn ('+': uses it, '*': holds it); who left in the order of leaving. */
static void check_pool(enum moe_coe_evict evict, uint64_t bytes, const char *script,
                       const char *left)
{
    struct moe_coe_pool *p;
    struct moe_err err;
    char got[64] = "";
    uint32_t evicted[5], n;
    assert_ok(moe_coe_pool_open(&p, &all, bytes, evict, &err), &err);
    for (; *script; script++) {
        uint32_t expert = (uint32_t)(script[*script == '+' || *script == '*'] - '0');
        if (*script == '+') {
            moe_coe_pool_use(p, expert);
            script++;
        } else if (*script == '*') {
            moe_coe_pool_hold(p, expert);
            script++;
        } else {
            assert_true(moe_coe_pool_admit(p, expert, evicted, &n));
            assert_true(moe_coe_pool_has(p, expert));
            for (uint32_t i = 0; i < n; i++) {
                assert_false(moe_coe_pool_has(p, evicted[i]));
                snprintf(got + strlen(got), 3, "%u", evicted[i]);
            }
        }
    }
    assert_string_equal(got, left);
    moe_coe_pool_close(p);
}

static void experts_leave_in_order(void **state)
{
    (void)state;
    check_pool(MOE_COE_FIFO, 40, "012+03", "012");
    check_pool(MOE_COE_LRU, 40, "012+03", "12");
    check_pool(MOE_COE_LRU, 40, "012*13", "02");
    /* Stage 1: 3 waits for 1, which is not there. */
    check_pool(MOE_COE_TWO_STAGE, 60, "0321", "3");
    /* ... and 2 and 3 without 0 and 1, the largest first, only until there is room. */
    check_pool(MOE_COE_TWO_STAGE, 60, "2341", "3");
    /* Stage 2: by rising probability, where everyone has its predecessor. */
    check_pool(MOE_COE_TWO_STAGE, 50, "01243", "42");
    /* Held ones stay in both. */
    check_pool(MOE_COE_TWO_STAGE, 60, "032*31", "2");
}

static void what_does_not_fit_changes_nothing(void **state)
{
    struct moe_coe_pool *p;
    struct moe_err err;
    uint32_t evicted[5], n = 9;
    (void)state;
    assert_ok(moe_coe_pool_open(&p, &all, 35, MOE_COE_LRU, &err), &err);
    assert_true(moe_coe_pool_admit(p, 0, evicted, &n));
    moe_coe_pool_hold(p, 0);
    assert_true(moe_coe_pool_admit(p, 1, evicted, &n));
    assert_false(moe_coe_pool_admit(p, 3, evicted, &n));
    assert_int_equal(n, 0);
    assert_true(moe_coe_pool_has(p, 1));
    assert_int_equal(moe_coe_pool_free_bytes(p), 15);
    moe_coe_pool_release(p, 0);
    assert_true(moe_coe_pool_admit(p, 3, evicted, &n));
    assert_int_equal(n, 2);
    moe_coe_pool_close(p);
}

/* A pool may say itself what experts take there; one that never fits is never named. */
static void pools_have_sizes_of_their_own(void **state)
{
    static const uint64_t sizes[] = {UINT64_MAX, 10, 15, 10, 5};
    struct moe_coe_pool *p;
    struct moe_err err;
    uint32_t evicted[5], n, expert;
    char got[8] = "";
    (void)state;
    assert_ok(moe_coe_pool_open(&p, &all, 30, MOE_COE_LRU, &err), &err);
    moe_coe_pool_set_sizes(p, sizes);
    assert_false(moe_coe_pool_admit(p, 0, evicted, &n));
    while ((expert = moe_coe_pool_likeliest(p)) != MOE_COE_NONE) {
        got[strlen(got)] = (char)('0' + expert);
        assert_true(moe_coe_pool_admit(p, expert, evicted, &n));
        assert_int_equal(n, 0);
    }
    assert_string_equal(got, "124"); /* for 3 no room is left beside the likelier ones */
    assert_int_equal(moe_coe_pool_free_bytes(p), 0);
    assert_int_equal(moe_coe_pool_size(p, 2), 15);
    moe_coe_pool_close(p);
}

/* ---- Dispatch ---- */

static const struct moe_coe_cost slow[] = {
    {.per_request = 1, .per_batch = 2, .load = 10, .max_batch = 4, .request_bytes = 5}};
static const struct moe_coe_cost fast[] = {
    {.per_request = 0.5, .per_batch = 1, .load = 8, .max_batch = 8, .request_bytes = 5}};

static void requests_go_where_they_cost_least(void **state)
{
    const struct moe_coe_executor_options executors[] = {{slow, 40, 100, 0}, {fast, 40, 100, 1}};
    const struct moe_coe_options o = {.all = &all,
                                      .n_executors = 2,
                                      .executors = executors,
                                      .arrange = true,
                                      .assign = MOE_COE_ASSIGN_LEAST,
                                      .evict = MOE_COE_TWO_STAGE};
    /* Expert, the executor it goes to, what it adds. All at time 0, nothing is loaded. */
    static const struct {
        uint32_t expert, executor;
        double added;
    } rows[] = {
        {0, 1, 9.5}, /* 13 or 9.5: the total is least on the fast one */
        {0, 1, 0.5}, /* joins */
        {1, 0, 13},  /* 13 or 10 + 9.5 */
        {0, 1, 0.5}, /* 13 in total anyway: 13 + ... or 10.5 */
        {1, 1, 9.5}, /* 13 + 1 on the slow one makes 14, 10.5 + 9.5 = 20 on the other */
    };
    struct moe_coe_request requests[N_ITEMS(rows)] = {0};
    struct moe_coe_dispatch *d;
    struct moe_err err;
    uint32_t executor;
    (void)state;
    assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        requests[i].expert = rows[i].expert;
        assert_ok(moe_coe_submit(d, &requests[i], 0, &executor, &err), &err);
        if (i == 4) { /* where it joins its like */
            assert_int_equal(executor, 0);
            assert_true(requests[i].predicted == 1);
            continue;
        }
        assert_int_equal(executor, rows[i].executor);
        assert_true(fabs(requests[i].predicted - rows[i].added) < 1e-12);
    }
    assert_int_equal(moe_coe_waiting(d, 0), 2);
    assert_int_equal(moe_coe_waiting(d, 1), 3);
    moe_coe_dispatch_close(d);
}

/* An expert is loaded once, where LEAST loads it on both executors, until the other would be done
 * four loads sooner. */
static void an_expert_has_a_home(void **state)
{
    enum { N = 66, LEAVES = 65 }; /* 9.5 + 65 * 0.5 > 9.5 + 4 * 8 */
    const struct moe_coe_executor_options executors[] = {{fast, 40, 100, 0}, {fast, 40, 100, 0}};
    struct moe_coe_options o = {.all = &all,
                                .n_executors = 2,
                                .executors = executors,
                                .arrange = true,
                                .assign = MOE_COE_ASSIGN_HOME};
    struct moe_coe_request requests[N] = {{.expert = 0}};
    struct moe_coe_dispatch *d;
    struct moe_err err;
    uint32_t executor;
    (void)state;
    assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        assert_ok(moe_coe_submit(d, &requests[i], 0, &executor, &err), &err);
        assert_int_equal(executor, i >= LEAVES);
    }
    moe_coe_dispatch_close(d);
    memset(requests, 0, sizeof requests);
    o.assign = MOE_COE_ASSIGN_LEAST;
    assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
    for (uint32_t i = 0; i < 2; i++) {
        assert_ok(moe_coe_submit(d, &requests[i], 0, &executor, &err), &err);
        assert_int_equal(executor, i);
    }
    moe_coe_dispatch_close(d);
}

/* Of 0, 1 and 4 in memory, two make room for 2, while 4 and then 0 are waited for. */
static void who_leaves_follows_the_queue(void **state)
{
    static const struct {
        enum moe_coe_evict evict;
        uint32_t left[2];
    } rows[] = {{MOE_COE_QUEUE, {1, 0}}, {MOE_COE_TWO_STAGE, {4, 1}}};
    static const uint32_t experts[] = {0, 1, 4, 2, 4, 0};
    const struct moe_coe_executor_options executor = {slow, 30, 100, 0};
    (void)state;
    for (size_t row = 0; row < N_ITEMS(rows); row++) {
        const struct moe_coe_options o = {.all = &all,
                                          .n_executors = 1,
                                          .executors = &executor,
                                          .arrange = true,
                                          .evict = rows[row].evict};
        struct moe_coe_request requests[N_ITEMS(experts)] = {{0}};
        struct moe_coe_dispatch *d;
        struct moe_coe_batch batch;
        struct moe_err err;
        uint32_t on;
        assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
        for (uint32_t i = 0; i < N_ITEMS(experts); i++) {
            requests[i].expert = experts[i];
            assert_ok(moe_coe_submit(d, &requests[i], 0, &on, &err), &err);
            if (i >= 3)
                continue;
            assert_true(moe_coe_next(d, 0, 0, &batch) && batch.n_evicted == 0);
            moe_coe_done(d, 0, 0);
        }
        assert_true(moe_coe_next(d, 0, 0, &batch));
        assert_int_equal(batch.expert, 2);
        assert_int_equal(batch.n_evicted, 2);
        assert_int_equal(batch.evicted[0], rows[row].left[0]);
        assert_int_equal(batch.evicted[1], rows[row].left[1]);
        moe_coe_dispatch_close(d);
    }
}

/* Those that are being computed count, too. */
static void requests_go_where_the_fewest_are(void **state)
{
    const struct moe_coe_executor_options executors[] = {{slow, 40, 100, 0}, {fast, 40, 100, 0}};
    const struct moe_coe_options o = {
        .all = &all, .n_executors = 2, .executors = executors, .assign = MOE_COE_ASSIGN_FEWEST};
    struct moe_coe_request requests[6] = {{.expert = 0}};
    struct moe_coe_dispatch *d;
    struct moe_coe_batch batch;
    struct moe_err err;
    uint32_t executor;
    (void)state;
    assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(moe_coe_submit(d, &requests[i], 0, &executor, &err), &err);
        assert_int_equal(executor, i % 2);
    }
    assert_true(moe_coe_next(d, 0, 0, &batch));
    assert_int_equal(batch.n, 2);
    assert_ok(moe_coe_submit(d, &requests[3], 0, &executor, &err), &err);
    assert_int_equal(executor, 1); /* 2 are computed on the other, 1 waits here */
    moe_coe_done(d, 0, 1);
    assert_ok(moe_coe_submit(d, &requests[4], 1, &executor, &err), &err);
    assert_int_equal(executor, 0);
    moe_coe_dispatch_close(d);
}

/* 3 must not run on the first processor; there it need not fit either. */
static void experts_run_where_they_may(void **state)
{
    struct moe_coe_expert some[5];
    const struct moe_coe_experts experts = {5, 1, some, before};
    const struct moe_coe_executor_options executors[] = {{fast, 20, 100, 0}, {slow, 40, 100, 1}};
    struct moe_coe_options o = {.all = &experts, .n_executors = 2, .executors = executors};
    struct moe_coe_request requests[8] = {0};
    struct moe_coe_dispatch *d;
    struct moe_err err;
    uint32_t executor;
    (void)state;
    memcpy(some, five, sizeof some);
    some[3].not_on = 1;
    for (o.assign = MOE_COE_ASSIGN_ROUND_ROBIN; o.assign <= MOE_COE_ASSIGN_LEAST; o.assign++) {
        bool elsewhere = false;
        assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
        for (uint32_t i = 0; i < 8; i++) {
            requests[i].expert = i % 2 ? 3 : 0;
            assert_ok(moe_coe_submit(d, &requests[i], 0, &executor, &err), &err);
            assert_true(i % 2 == 0 || executor == 1);
            elsewhere = elsewhere || executor == 0;
        }
        assert_true(elsewhere);
        moe_coe_dispatch_close(d);
    }
    /* Each executor has sizes of its own. */
    static const uint64_t small[] = {1, 1, 1, 30, 1}, large[] = {41, 1, 1, 30, 1};
    const uint64_t *sizes[] = {small, large};
    o.sizes = sizes;
    assert_fails(moe_coe_dispatch_open(&d, &o, &err), MOE_ERR_LIMIT,
                 "expert 0 takes 41 bytes, and executor 1 has 40", &err);
    sizes[1] = small;
    assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
    moe_coe_dispatch_close(d);
    o.sizes = NULL;
    some[3].not_on = 3;
    assert_fails(moe_coe_dispatch_open(&d, &o, &err), MOE_ERR_USAGE, "no executor may run expert 3",
                 &err);
}

static void batches_are_split_and_the_next_is_fetched(void **state)
{
    const struct moe_coe_executor_options executors[] = {
        {slow, 30, 16, 0}}; /* 3 requests at a time */
    const struct moe_coe_options o = {
        .all = &all, .n_executors = 1, .executors = executors, .arrange = true};
    struct moe_coe_request requests[6] = {0};
    struct moe_coe_dispatch *d;
    struct moe_coe_batch batch;
    struct moe_err err;
    uint32_t executor;
    (void)state;
    assert_ok(moe_coe_dispatch_open(&d, &o, &err), &err);
    for (uint32_t i = 0; i < 6; i++) { /* 0 1 0 2 0 0 */
        requests[i].expert = i == 1 ? 1 : i == 3 ? 2 : 0;
        assert_ok(moe_coe_submit(d, &requests[i], 0, &executor, &err), &err);
    }
    assert_true(moe_coe_next(d, 0, 0, &batch));
    assert_true(batch.expert == 0 && batch.n == 3 && batch.load && batch.n_evicted == 0);
    /* The group of 0 goes on: 1 is after it. */
    assert_true(moe_coe_prefetch(d, 0, &batch));
    assert_true(batch.expert == 1 && batch.n_evicted == 0);
    assert_false(moe_coe_prefetch(d, 0, &batch));
    moe_coe_done(d, 0, 15);
    assert_true(moe_coe_next(d, 0, 15, &batch));
    assert_true(batch.expert == 0 && batch.n == 1 && !batch.load);
    moe_coe_done(d, 0, 18);
    assert_true(moe_coe_next(d, 0, 18, &batch));
    assert_true(batch.expert == 1 && batch.n == 1 && !batch.load);
    /* 2 takes 20 bytes: 0 leaves, 1 computes. */
    assert_true(moe_coe_prefetch(d, 0, &batch));
    assert_true(batch.expert == 2 && batch.n_evicted == 1 && batch.evicted[0] == 0);
    moe_coe_done(d, 0, 21);
    assert_true(moe_coe_next(d, 0, 21, &batch));
    assert_true(batch.expert == 2 && !batch.load);
    moe_coe_done(d, 0, 24);
    assert_false(moe_coe_next(d, 0, 24, &batch));
    moe_coe_dispatch_close(d);

    const struct moe_coe_executor_options small[] = {{slow, 29, 16, 0}};
    const struct moe_coe_options too_small = {.all = &all, .n_executors = 1, .executors = small};
    assert_fails(moe_coe_dispatch_open(&d, &too_small, &err), MOE_ERR_LIMIT, "expert 3 takes 30",
                 &err);
}

/* ---- Simulations ---- */

/* One executor, no prefetching: 0 then 2 (its follow-on), and 1, all at once. */
static void a_simulation_by_hand(void **state)
{
    const struct moe_coe_executor_options executors[] = {{slow, 30, 16, 0}};
    const struct moe_coe_options o = {
        .all = &all, .n_executors = 1, .executors = executors, .arrange = true};
    const uint32_t processor_of[] = {0};
    static const uint32_t paths[][3] = {{0, 2, MOE_COE_NONE}, {1, MOE_COE_NONE}, {0, MOE_COE_NONE}};
    const struct moe_coe_arrival arrivals[] = {{1, paths[0]}, {1, paths[1]}, {1, paths[2]}};
    struct moe_coe_machine m = {
        .n_processors = 1, .processor_of = processor_of, .host_processor = MOE_COE_NONE};
    struct moe_coe_simulated got;
    struct moe_err err;
    (void)state;
    assert_ok(moe_coe_simulate(&o, &m, arrivals, 3, &got, &err), &err);
    /* 0 (10 + 3), 1 (10 + 3), the other request for 0 (3), 2 (10 + 3). */
    assert_true(fabs(got.seconds - 42) < 1e-9);
    assert_int_equal(got.results, 3);
    assert_int_equal(got.switches, 3);
    assert_int_equal(got.batches, 4);
    assert_int_equal(got.computed, 4);
    assert_true(fabs(got.wait_seconds - 30) < 1e-9);
    m.prefetch = true;
    assert_ok(moe_coe_simulate(&o, &m, arrivals, 3, &got, &err), &err);
    assert_true(got.seconds < 42 && got.results == 3);
    /* Scheduling takes 1: the first request is computed from 1 on, and the others wait for it: 13 +
     * 1, 13, 3, 13. On the host the four seconds of scheduling are computed, too: that of the first
     * before it, those of the two that came meanwhile before the second, of the follow-on after. */
    m.prefetch = false;
    m.schedule_seconds = 1;
    assert_ok(moe_coe_simulate(&o, &m, arrivals, 3, &got, &err), &err);
    assert_true(fabs(got.seconds - 43) < 1e-9);
    m.host_processor = 0;
    assert_ok(moe_coe_simulate(&o, &m, arrivals, 3, &got, &err), &err);
    assert_true(fabs(got.seconds - 47) < 1e-9);
}

/* Every request gets its result, whatever the rules, and the same rules give the same figures. */
static void every_request_is_served(void **state)
{
    enum { N = 400 };
    struct moe_coe_arrival arrivals[N];
    const uint32_t processor_of[] = {0, 0, 1};
    uint64_t random = 5;
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t first = (uint32_t)(test_random(&random) % 2);
        static const uint32_t paths[2][4][4] = {
            {{0, MOE_COE_NONE}, {0, MOE_COE_NONE}, {0, 2, MOE_COE_NONE}, {0, 4, MOE_COE_NONE}},
            {{1, MOE_COE_NONE}, {1, MOE_COE_NONE}, {1, 3, MOE_COE_NONE}, {1, 3, 4, MOE_COE_NONE}}};
        arrivals[i] = (struct moe_coe_arrival){0.7 * i, paths[first][test_random(&random) % 4]};
    }
    for (int way = 0; way < 128; way++) {
        const struct moe_coe_executor_options executors[] = {
            {fast, 30 + 10 * (way % 2), 30, 0}, {fast, 40, 30, 0}, {slow, 40, 5, 1}};
        const struct moe_coe_options o = {.all = &all,
                                          .n_executors = 3,
                                          .executors = executors,
                                          .arrange = way & 1,
                                          .assign = way / 2 % 4,
                                          .evict = way / 8 % 4};
        const struct moe_coe_machine m = {.n_processors = 2,
                                          .processor_of = processor_of,
                                          .host_bytes = way & 32 ? 50 : 0,
                                          .host_evict = o.evict,
                                          .prefetch = way & 64,
                                          .place = way % 3};
        struct moe_coe_simulated got, again;
        struct moe_err err;
        assert_ok(moe_coe_simulate(&o, &m, arrivals, N, &got, &err), &err);
        assert_int_equal(got.results, N);
        assert_true(got.from_host <= got.switches && (m.host_bytes || !got.from_host));
        assert_true(got.seconds >= arrivals[N - 1].at && got.latency_seconds > 0);
        assert_ok(moe_coe_simulate(&o, &m, arrivals, N, &again, &err), &err);
        assert_memory_equal(&got, &again, sizeof got);
    }
}

/* ---- The window ---- */

/* Rises by a tenth an expert up to `top`, then falls. */
static int peak(void *ctx, uint32_t n, double *throughput, struct moe_err *err)
{
    uint32_t top = *(const uint32_t *)ctx;
    (void)err;
    *throughput = n <= top ? 20 + 0.1 * n : 20 + 0.1 * top - 0.3 * (n - top);
    return MOE_OK;
}

static int broken(void *ctx, uint32_t n, double *throughput, struct moe_err *err)
{
    (void)ctx;
    *throughput = 1;
    return n > 20 ? moe_fail(err, MOE_ERR_IO, "no") : MOE_OK;
}

/* By experts: steep, then flatter, then falling by little at a time. */
static int curve(void *ctx, uint32_t n, double *throughput, struct moe_err *err)
{
    (void)ctx;
    (void)err;
    *throughput = n <= 28   ? 20 + 0.1 * n
                  : n <= 56 ? 22.8 + 0.01 * (n - 28)
                            : 23.08 - 0.15 * (n - 56);
    return MOE_OK;
}

/* f(N + 1) follows the N points before it (4.5): a trend of long ago, from which 48 would lie 7%
 * below, does not stop the window; a fall that goes on does, though each step is small. */
static void the_trend_rolls(void **state)
{
    struct moe_coe_window_options o = {.most = 90};
    struct moe_coe_window w;
    struct moe_err err;
    (void)state;
    assert_ok(moe_coe_slide(&o, curve, NULL, &w, &err), &err);
    assert_int_equal(w.experts[3], 48);
    assert_int_equal(w.lower, 63); /* 21.28 at 68, after 23.08 and 22.03 */
    assert_int_equal(w.upper, 68);
}

static void the_window_stops_where_throughput_falls(void **state)
{
    uint32_t top = 33;
    struct moe_coe_window_options o = {.most = 300};
    struct moe_coe_window w;
    struct moe_err err;
    bool seen[40] = {false};
    (void)state;
    /* The paper's windows for task A (5.3): 15, 28 and 39, the last is taken. */
    for (o.seed = 0; o.seed < 200; o.seed++) {
        assert_ok(moe_coe_slide(&o, peak, &top, &w, &err), &err);
        assert_int_equal(w.n_points, 3);
        assert_int_equal(w.experts[0], 15);
        assert_int_equal(w.lower, 28);
        assert_int_equal(w.upper, 39);
        assert_true(fabs(w.expected - 23.9) < 1e-9); /* measured: 21.5, 10% below */
        assert_in_range(w.chosen, 29, 39);
        seen[w.chosen] = true;
    }
    for (int n = 29; n <= 39; n++)
        assert_true(seen[n]);
    o.margin = 0.11;
    assert_ok(moe_coe_slide(&o, peak, &top, &w, &err), &err);
    assert_int_equal(w.lower, 39);
    top = 1000; /* always rising: as many as there is room for */
    assert_ok(moe_coe_slide(&o, peak, &top, &w, &err), &err);
    assert_int_equal(w.experts[w.n_points - 1], w.upper);
    assert_true(w.upper == 300 || w.n_points == MOE_COE_MAX_POINTS);
    o.most = 1;
    assert_ok(moe_coe_slide(&o, peak, &top, &w, &err), &err);
    assert_int_equal(w.chosen, 1);
    o.most = 40;
    assert_fails(moe_coe_slide(&o, broken, NULL, &w, &err), MOE_ERR_IO, "no", &err);
    o.first = 100;
    assert_fails(moe_coe_slide(&o, peak, &top, &w, &err), MOE_ERR_USAGE, "does not decay", &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_take_turns),
        cmocka_unit_test(requests_are_arranged_behind_their_like),
        cmocka_unit_test(experts_leave_in_order),
        cmocka_unit_test(what_does_not_fit_changes_nothing),
        cmocka_unit_test(pools_have_sizes_of_their_own),
        cmocka_unit_test(requests_go_where_they_cost_least),
        cmocka_unit_test(an_expert_has_a_home),
        cmocka_unit_test(who_leaves_follows_the_queue),
        cmocka_unit_test(requests_go_where_the_fewest_are),
        cmocka_unit_test(experts_run_where_they_may),
        cmocka_unit_test(batches_are_split_and_the_next_is_fetched),
        cmocka_unit_test(a_simulation_by_hand),
        cmocka_unit_test(every_request_is_served),
        cmocka_unit_test(the_trend_rolls),
        cmocka_unit_test(the_window_stops_where_throughput_falls),
    };
    return cmocka_run_group_tests_name("coe", tests, NULL, NULL);
}
