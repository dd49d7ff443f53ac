/* Parallel loops and the crews that help with them. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../test.h"
#include "base/clock.h"
#include "base/par.h"

enum { THREADS = 4, ITEMS = 257 };

struct count {
    atomic_int times[ITEMS];   /* that each item was visited */
    atomic_int users[THREADS]; /* of each thread's number at the moment */
    atomic_int wrong,
        n_inside; /* ranges that break a rule; loops started inside, items of theirs */
};

static void visit(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct count *c = ctx;
    if (thread < 0 || thread >= THREADS || begin >= end)
        atomic_fetch_add(&c->wrong, 1);
    else if (atomic_fetch_add(&c->users[thread], 1) != 0)
        atomic_fetch_add(&c->wrong, 1); /* two with one number */
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&c->times[i], 1);
    if (thread >= 0 && thread < THREADS)
        atomic_fetch_sub(&c->users[thread], 1);
}

static int all_once(const struct count *c, int n)
{
    for (int i = 0; i < ITEMS; i++)
        if (c->times[i] != (i < n))
            return 0;
    return 1;
}

/* Loops of every size, one after the other and after pauses that send helpers to sleep; returns how
 * many went wrong. */
static int run_loops(int rounds)
{
    struct count *c = malloc(sizeof *c);
    int wrong = 0;
    for (int r = 0; r < rounds; r++) {
        int n = r % ITEMS + 1;
        memset(c, 0, sizeof *c);
        moe_par_for(n, 1 + r % 3, visit, c);
        wrong += !all_once(c, n) || c->wrong;
        if (r % 500 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    free(c);
    return wrong;
}

static void each_item_is_visited_once(void **state)
{
    moe_par_set_threads(THREADS);
    assert_int_equal(run_loops(5000), 0);
    moe_par_set_threads(1);
    assert_int_equal(run_loops(100), 0);
}

static void *loops_of_a_thread(void *arg)
{
    *(int *)arg = run_loops(2000);
    return NULL;
}

/* Each has helpers of its own, which end with it. */
static void threads_run_loops_side_by_side(void **state)
{
    moe_par_set_threads(THREADS);
    pthread_t threads[3];
    int wrong[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, loops_of_a_thread, &wrong[i]), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(wrong[i], 0);
    }
}

static void count_inside(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct count *c = ctx;
    atomic_fetch_add(&c->n_inside, (int)(end - begin));
    if (thread != 0 || begin != 0 || end != ITEMS)
        atomic_fetch_add(&c->wrong, 1);
}

static void start_inside(void *ctx, int64_t begin, int64_t end, int thread)
{
    for (int64_t i = begin; i < end; i++)
        moe_par_for(ITEMS, 1, count_inside, ctx);
}

static void a_loop_inside_another_runs_on_its_thread(void **state)
{
    struct count *c = calloc(1, sizeof *c);
    moe_par_set_threads(THREADS);
    moe_par_for(50, 1, start_inside, c);
    assert_int_equal(c->n_inside, 50 * ITEMS);
    assert_int_equal(c->wrong, 0);
    bool before = moe_par_alone(true);
    moe_par_for(ITEMS, 1, count_inside, c);
    assert_int_equal(c->wrong, 0);
    moe_par_alone(before);
    free(c);
}

/* The cores that a helper may run on; 0 as long as none has come. */
static atomic_int helper_cores;

static void count_cores(void *ctx, int64_t begin, int64_t end, int thread)
{
    if (thread > 0)
        helper_cores = moe_cores_available();
    for (double until = moe_seconds() + 1e-3; moe_seconds() < until;)
        ;
}

enum { FEW = 4 }; /* cores: loops below have ranges for one thread more */

struct search {
    int kept_off; /* cores that a helper may not run on */
    bool found;   /* such a helper has come */
};

/* Loops on a few cores, after pauses that send helpers to sleep. */
static void *search_helper(void *arg)
{
    struct search *s = arg;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (size_t i = 0, n = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set) && n++ >= FEW)
                CPU_CLR(i, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    for (int i = 0; i < 200 && !s->found; i++) {
        helper_cores = 0;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        moe_par_for(8, 1, count_cores, NULL);
        s->found = helper_cores == moe_cores_available() - s->kept_off;
    }
    return NULL;
}

/* As many threads as there are cores: each helper runs where the caller does not. One more, and
 * they may run anywhere. */
static void helpers_keep_off_the_callers_core(void **state)
{
    int cores = moe_cores_available() < FEW ? moe_cores_available() : FEW;
    for (int more = 0; more < 2 && cores > 1; more++) {
        struct search search = {.kept_off = 1 - more};
        pthread_t thread; /* a crew of its own, of so many */
        moe_par_set_threads(cores + more);
        assert_int_equal(pthread_create(&thread, NULL, search_helper, &search), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(search.found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_item_is_visited_once),
        cmocka_unit_test(threads_run_loops_side_by_side),
        cmocka_unit_test(a_loop_inside_another_runs_on_its_thread),
        cmocka_unit_test(helpers_keep_off_the_callers_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
