/* Weights that arrive: in which order items are read, by whom, and what becomes of those that
 * cannot be read. */
#include "infer/arrivals.h"

#include <semaphore.h>
#include <signal.h>
#include <string.h>

#include "../test.h"

enum { N = 10, BROKEN = 7 };

enum { HELD = 0, STOPS_AT = 3 };

static struct script {
    uint64_t order[4 * N]; /* items as they were read */
    uint64_t n;
    int failures;        /* left, of item BROKEN */
    bool holds;          /* item HELD is being read until it is let go, and STOPS_AT sets `stop` */
    bool heeds;          /* `stop` */
    uint64_t stops_told; /* at which report `stop` is set; 0: none */
    sem_t held, let_go;
    volatile sig_atomic_t stop;
    uint64_t n_told;
} script;

static int read_item(void *ctx, uint64_t which, uint64_t *bytes, struct moe_err *err)
{
    struct script *s = ctx;
    if (s->holds && which == HELD) {
        sem_post(&s->held);
        sem_wait(&s->let_go);
    }
    if (s->heeds && __atomic_load_n(&s->stop, __ATOMIC_RELAXED))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    if (s->holds && which == STOPS_AT)
        __atomic_store_n(&s->stop, 1, __ATOMIC_RELAXED);
    s->order[s->n++] = which;
    *bytes += 100 + which;
    return which == BROKEN && s->failures && s->failures--
               ? moe_fail(err, MOE_ERR_FORMAT, "item %d is damaged", BROKEN)
               : MOE_OK;
}

static struct moe_arrivals *open_items(int failures)
{
    struct moe_arrivals *a;
    struct moe_err err = {0};
    script = (struct script){.failures = failures};
    assert_ok(moe_arrivals_open(&a, N, read_item, &script, &err), &err);
    return a;
}

static void assert_read(const char *digits)
{
    assert_int_equal(script.n, strlen(digits));
    for (uint64_t i = 0; i < script.n; i++)
        assert_int_equal(script.order[i], digits[i] - '0');
}

static void who_waits_reads_what_is_needed_and_no_more(void **state)
{
    struct moe_err err = {0};
    struct moe_arrivals *a = open_items(0);
    moe_arrivals_leave_out(a, 4);
    assert_ok(moe_arrivals_await(a, 3, 6, &err), &err);
    assert_read("35");
    assert_ok(moe_arrivals_await(a, 2, 4, &err), &err);
    assert_read("352");
    assert_int_equal(moe_arrivals_bytes(a), 310);
    assert_true(moe_arrivals_has(a, 2) && moe_arrivals_has(a, 4) && !moe_arrivals_has(a, 1));
    assert_false(moe_arrivals_complete(a));
    moe_arrivals_close(a);
}

static void what_is_asked_for_comes_first(void **state)
{
    const uint64_t asked[] = {8, 2};
    struct moe_err err = {0};
    struct moe_arrivals *a = open_items(0);
    moe_arrivals_ask(a, asked, 2);
    assert_ok(moe_arrivals_read(a, 1, NULL, "reading", 0, &err), &err);
    assert_read("8201345679");
    assert_true(moe_arrivals_complete(a));
    assert_ok(moe_arrivals_await(a, 0, N, &err), &err);
    assert_ok(moe_arrivals_await_any(a, asked, 2, &err), &err);
    assert_int_equal(script.n, N);
    moe_arrivals_close(a);
}

static void who_needs_a_damaged_item_is_told(void **state)
{
    const uint64_t broken = BROKEN;
    struct moe_err err = {0};
    struct moe_arrivals *a = open_items(3);
    assert_fails(moe_arrivals_await(a, 6, 9, &err), MOE_ERR_FORMAT, "item 7 is damaged", &err);
    assert_read("67");
    assert_fails(moe_arrivals_await_any(a, &broken, 1, &err), MOE_ERR_FORMAT, "item 7 is damaged",
                 &err);
    assert_ok(moe_arrivals_await(a, 0, 6, &err), &err); /* nobody else is */
    assert_fails(moe_arrivals_await(a, 6, 9, &err), MOE_ERR_FORMAT, "item 7 is damaged", &err);
    assert_ok(moe_arrivals_await(a, 6, 9, &err), &err);
    assert_ok(moe_arrivals_await(a, 0, N, &err), &err);
    assert_true(moe_arrivals_complete(a));
    moe_arrivals_close(a);
}

static void note_told(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct script *s = ctx;
    assert_string_equal(what, "loading");
    assert_in_range(done, 0, total);
    if (++s->n_told == s->stops_told)
        __atomic_store_n(&s->stop, 1, __ATOMIC_RELAXED);
}

/* One thread is held by its first item; who waits reads the others until it is stopped. */
static void who_waits_is_told_and_can_be_stopped(void **state)
{
    const uint64_t held = HELD;
    const struct moe_progress progress = {note_told, &script, &script.stop};
    struct moe_err err = {0};
    struct moe_arrivals *a = open_items(0);
    sem_init(&script.held, 0, 0);
    sem_init(&script.let_go, 0, 0);
    script.holds = true;
    assert_ok(moe_arrivals_begin(a, 1, &progress, "loading", 100 * N, &err), &err);
    sem_wait(&script.held);
    assert_fails(moe_arrivals_await(a, 1, N, &err), MOE_ERR_INTERRUPTED, "stopped", &err);
    assert_read("123");
    assert_int_equal(script.n_told, 4);
    assert_fails(moe_arrivals_await(a, HELD, 1, &err), MOE_ERR_INTERRUPTED, "stopped", &err);
    assert_fails(moe_arrivals_await_any(a, &held, 1, &err), MOE_ERR_INTERRUPTED, "stopped", &err);
    script.stop = 0;
    sem_post(&script.let_go);
    assert_ok(moe_arrivals_await_any(a, &held, 1, &err), &err);
    assert_ok(moe_arrivals_await(a, HELD, 1, &err), &err);
    moe_arrivals_close(a);
    sem_destroy(&script.held);
    sem_destroy(&script.let_go);
}

/* The thread has the only item that is missing when who waits for it is stopped; then it is itself,
 * and reads the item again once another pass is on its way. */
static void waiting_ends_while_an_item_is_being_read(void **state)
{
    const struct moe_progress progress = {note_told, &script, &script.stop};
    struct moe_err err = {0};
    struct moe_arrivals *a = open_items(0);
    for (uint64_t i = 1; i < N; i++)
        moe_arrivals_leave_out(a, i);
    sem_init(&script.held, 0, 0);
    sem_init(&script.let_go, 0, 0);
    script.holds = script.heeds = true;
    script.stops_told = 2;
    assert_ok(moe_arrivals_begin(a, 1, &progress, "loading", 100 * N, &err), &err);
    sem_wait(&script.held);
    assert_fails(moe_arrivals_await(a, HELD, 1, &err), MOE_ERR_INTERRUPTED, "stopped", &err);
    sem_post(&script.let_go);
    assert_fails(moe_arrivals_await(a, HELD, 1, &err), MOE_ERR_INTERRUPTED, "stopped", &err);
    assert_false(moe_arrivals_complete(a));
    sem_post(&script.let_go); /* whoever reads it again */
    __atomic_store_n(&script.stop, 0, __ATOMIC_RELAXED);
    assert_ok(moe_arrivals_await(a, HELD, 1, &err), &err);
    assert_true(moe_arrivals_complete(a));
    moe_arrivals_close(a);
    sem_destroy(&script.held);
    sem_destroy(&script.let_go);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_reads_what_is_needed_and_no_more),
        cmocka_unit_test(what_is_asked_for_comes_first),
        cmocka_unit_test(who_needs_a_damaged_item_is_told),
        cmocka_unit_test(who_waits_is_told_and_can_be_stopped),
        cmocka_unit_test(waiting_ends_while_an_item_is_being_read),
    };
    return cmocka_run_group_tests_name("arrivals", tests, NULL, NULL);
}
