/* The order of loads and the modelled link: against a model written as plainly as possible. */
#include "cache/link.h"

#include <math.h>

#include "../test.h"

enum { N = 12, PIECE = 1000 };

static uint32_t order(const struct moe_link *l, uint32_t out[N])
{
    uint32_t n = 0;
    for (uint32_t i = moe_link_first(l); i != MOE_LINK_NONE; i = moe_link_after(l, i))
        out[n++] = i;
    return n;
}

#define assert_order(link, ...)                                                                    \
    do {                                                                                           \
        uint32_t want_[] = {__VA_ARGS__}, got_[N];                                                 \
        assert_int_equal(order((link), got_), N_ITEMS(want_));                                     \
        assert_memory_equal(got_, want_, sizeof want_);                                            \
    } while (0)

static void the_most_urgent_comes_first(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 0);
    assert_int_equal(moe_link_first(&l), MOE_LINK_NONE);
    moe_link_add(&l, 3, 10, MOE_LOAD_PREFETCH, 0.5f);
    moe_link_add(&l, 1, 10, MOE_LOAD_PREFETCH, 0.9f);
    moe_link_add(&l, 7, 10, MOE_LOAD_DEMAND, 0);
    moe_link_add(&l, 2, 10, MOE_LOAD_PREFETCH, 0.5f);
    moe_link_add(&l, 0, 10, MOE_LOAD_DEMAND, 99);
    moe_link_add(&l, 5, 10, MOE_LOAD_PREFETCH, NAN);
    assert_order(&l, 7, 0, 1, 3, 2, 5);
    moe_link_promote(&l, 2, MOE_LOAD_PREFETCH, 2);
    assert_order(&l, 7, 0, 2, 1, 3, 5);
    moe_link_promote(&l, 5, MOE_LOAD_DEMAND, 0); /* after the demands there are */
    moe_link_promote(&l, 7, MOE_LOAD_DEMAND, 0); /* is one already: keeps its place */
    assert_order(&l, 7, 0, 5, 2, 1, 3);
    moe_link_drop(&l, 7);
    moe_link_drop(&l, 3);
    assert_order(&l, 0, 5, 2, 1);
}

static void an_item_is_cut_into_pieces(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 0);
    moe_link_add(&l, 4, 2 * PIECE + 3, MOE_LOAD_DEMAND, 0);
    assert_int_equal(moe_link_at(&l, 4), 0);
    assert_int_equal(moe_link_start(&l, 4, UINT64_MAX), PIECE);
    assert_int_equal(moe_link_start(&l, 4, 2), 2);
    assert_int_equal(moe_link_at(&l, 4), PIECE + 2);
    assert_int_equal(moe_link_start(&l, 4, UINT64_MAX), PIECE);
    assert_int_equal(moe_link_first(&l), 4);
    assert_int_equal(moe_link_at(&l, 4), 2 * PIECE + 2);
    assert_int_equal(moe_link_start(&l, 4, UINT64_MAX), 1);
    assert_int_equal(moe_link_first(&l), MOE_LINK_NONE);
}

static void a_demand_waits_for_one_piece_only(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000); /* a second for each piece */
    moe_link_add(&l, 0, 10 * PIECE, MOE_LOAD_PREFETCH, 1);
    moe_link_advance(&l, 0.5);
    moe_link_add(&l, 1, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_wait(&l) == 2);
    assert_int_equal(moe_link_take_arrived(&l), 1);
    assert_int_equal(moe_link_take_arrived(&l), MOE_LINK_NONE);
    assert_true(moe_link_wait(&l) == 11);
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_true(moe_link_wait(&l) == 11); /* nothing under way */
    assert_true(l.busy_seconds == 11);
}

static void at_one_instant_only_urgency_counts(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    moe_link_advance(&l, 3);
    moe_link_add(&l, 0, 5 * PIECE, MOE_LOAD_PREFETCH, 1);
    moe_link_advance(&l, 0);
    moe_link_add(&l, 1, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_wait(&l) == 4);
    assert_int_equal(moe_link_take_arrived(&l), 1);
}

/* Step by step from piece to piece the clock comes to where a wait jumps. */
static void the_next_piece_is_named(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    assert_true(moe_link_next_piece(&l) == INFINITY);
    moe_link_advance(&l, 3);
    moe_link_add(&l, 0, PIECE + PIECE / 2, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_next_piece(&l) == 1);
    moe_link_advance(&l, 0.25);
    assert_true(moe_link_next_piece(&l) == 0.75);
    moe_link_advance(&l, moe_link_next_piece(&l));
    assert_int_equal(moe_link_take_arrived(&l), MOE_LINK_NONE);
    assert_true(moe_link_next_piece(&l) == 0.5);
    moe_link_advance(&l, moe_link_next_piece(&l));
    assert_true(moe_link_next_piece(&l) == 0); /* to be taken */
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_true(moe_link_next_piece(&l) == INFINITY);
    assert_true(l.clock == 4.5);
}

static void a_dropped_item_still_takes_the_link_for_its_piece(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    moe_link_add(&l, 0, 5 * PIECE, MOE_LOAD_PREFETCH, 1);
    moe_link_advance(&l, 0.25);
    moe_link_drop(&l, 0);
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0); /* the number may be used again at once */
    assert_true(moe_link_wait(&l) == 2);
    assert_int_equal(moe_link_take_arrived(&l), 0);
    moe_link_add(&l, 1, PIECE, MOE_LOAD_DEMAND, 0);
    moe_link_advance(&l, 9);
    moe_link_drop(&l, 1); /* arrived, but nobody wants it */
    assert_int_equal(moe_link_take_arrived(&l), MOE_LINK_NONE);
}

/* ---- What loads cost beside their bytes' time ---- */

static void an_item_arrives_after_its_latency(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    l.costs.latency = 0.25;
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0);
    moe_link_add(&l, 1, PIECE, MOE_LOAD_DEMAND, 0);
    moe_link_advance(&l, 1);
    assert_int_equal(moe_link_take_arrived(&l), MOE_LINK_NONE);
    assert_true(moe_link_next_piece(&l) == 0.25);
    assert_true(moe_link_wait(&l) == 1.25);
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_true(moe_link_wait(&l) == 2.25); /* the link did not wait meanwhile */
    assert_int_equal(moe_link_take_arrived(&l), 1);
    assert_true(l.busy_seconds == 2);
}

static void handling_is_paid_before_anything_else(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    l.costs.handling = 0.125;
    l.costs.handling_byte = 0.5 / PIECE;
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0);
    moe_link_add(&l, 1, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(l.clock == 0); /* both were asked for at one instant */
    assert_true(moe_link_wait(&l) == 1 && l.worked_seconds == 0.25);
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_true(moe_link_advance(&l, 0.25) == 1.75); /* a half for the bytes that were taken */
    assert_true(l.worked_seconds == 0.75);
    assert_true(moe_link_wait(&l) == 2);
    assert_int_equal(moe_link_take_arrived(&l), 1);
    assert_true(moe_link_wait(&l) == 2.5 && l.worked_seconds == 1.25); /* nothing to sleep for */
}

/* What arrives while the thread is at work needs no sleep. */
static void work_takes_the_place_of_sleep(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    l.costs.handling = 1.5;
    l.costs.wake = 8;
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_wait(&l) == 1.5 && l.worked_seconds == 1.5);
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_true(moe_link_advance(&l, 1) == 2.5);
}

static void computing_is_slower_while_pieces_move_and_after_sleep(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    l.costs.slowdown = 2;
    l.costs.wake = 0.25;
    assert_true(moe_link_advance(&l, 1) == 1);
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_advance(&l, 0.25) == 1.5); /* all of it while the piece moves */
    assert_true(moe_link_advance(&l, 1) == 2.75);   /* of it 0.5, as 0.25 */
    assert_int_equal(moe_link_take_arrived(&l), 0);
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_wait(&l) == 3.75);
    assert_true(moe_link_advance(&l, 1) == 5); /* once */
    assert_true(moe_link_advance(&l, 1) == 6);
}

/* Others have the thread's processor for half of its time, but for what it slept. */
static void sleep_makes_up_for_interruptions(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, PIECE * 1024.0);
    l.costs.late = 1.0 / 1024;
    l.costs.interruptions = 2;
    assert_true(moe_link_advance(&l, 1) == 2);
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0);
    moe_link_add(&l, 1, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_wait(&l) == 2 + 2.0 / 1024); /* it wakes as the second has come, too */
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_int_equal(moe_link_take_arrived(&l), 1);
    assert_true(moe_link_advance(&l, 1.0 / 1024) == 2 + 3.0 / 1024);
    assert_true(moe_link_advance(&l, 3.0 / 1024) == 2 + 8.0 / 1024); /* 1 of it is made up for */
    moe_link_add(&l, 0, 1024 * PIECE, MOE_LOAD_DEMAND, 0);
    double from = moe_link_wait(&l); /* a long sleep counts as a slice */
    assert_true(fabs(moe_link_advance(&l, 1) - from - 2 + 2 * MOE_LINK_MOST_CREDIT) < 1e-9);
}

/* Waiting for something else takes its time and no more; a load comes meanwhile. */
static void sleep_is_not_interrupted(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, PIECE);
    l.costs.interruptions = 2;
    l.costs.slowdown = 2;
    l.costs.handling = 0.25;
    l.costs.wake = 0.5;
    moe_link_add(&l, 0, PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_sleep(&l, 3) == 2.5); /* handling, twice as long, comes first */
    assert_true(l.clock == 3 && l.worked_seconds == 0.5);
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_true(moe_link_sleep(&l, 2) == 0); /* it is later */
    assert_true(l.clock == 3);
    /* 1.5 with waking, twice as long but for a slice that others had before */
    assert_true(fabs(moe_link_advance(&l, 1) - 6 + 2 * MOE_LINK_MOST_CREDIT) < 1e-9);
}

/* Two demands of two pieces each and a prefetch, three pieces at a time, prefetches while they are
 * two. */
static void pieces_in_flight_arrive_together(void **state)
{
    struct moe_link_item items[N];
    struct moe_link l;
    moe_link_init(&l, items, N, PIECE, 1000);
    l.costs.demands_in_flight = 3;
    l.costs.prefetches_in_flight = 2;
    moe_link_add(&l, 2, 2 * PIECE, MOE_LOAD_PREFETCH, 1);
    moe_link_add(&l, 0, 2 * PIECE, MOE_LOAD_DEMAND, 0);
    moe_link_add(&l, 1, 2 * PIECE, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_next_piece(&l) == 3);
    assert_true(moe_link_wait(&l) == 3); /* both of the first, one of the second */
    assert_int_equal(moe_link_take_arrived(&l), 0);
    assert_int_equal(moe_link_take_arrived(&l), MOE_LINK_NONE);
    assert_true(moe_link_next_piece(&l) == 2); /* the second's other one, and one of the prefetch */
    assert_true(moe_link_wait(&l) == 5);
    assert_int_equal(moe_link_take_arrived(&l), 1);
    assert_true(moe_link_advance(&l, 0.5) == 5.5);
    moe_link_drop(&l, 2); /* its last piece still takes its time */
    moe_link_add(&l, 2, PIECE / 2, MOE_LOAD_DEMAND, 0);
    assert_true(moe_link_wait(&l) == 6.5);
    assert_int_equal(moe_link_take_arrived(&l), 2);
    assert_true(l.busy_seconds == 6.5);
}

/* On a slow link a demand waits for one small piece of a prefetch, not for as many large ones as
 * are in flight on a fast link; demands keep their pieces. */
static void prefetches_are_cut_finer_on_a_slow_link(void **state)
{
    enum { LARGE = 512 * 1024, SMALL = 100 * 1024, RATE = LARGE };
    struct moe_link_item items[N];
    static const struct {
        double limit, waits;
        uint32_t prefetch;
    } cases[] = {{INFINITY, 4, LARGE},
                 {1.5 * LARGE, 2, LARGE},
                 {SMALL, (double)SMALL / RATE, SMALL},
                 {1, (double)MOE_LINK_LEAST_PIECE_BYTES / RATE, MOE_LINK_LEAST_PIECE_BYTES}};
    for (uint32_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_link l;
        moe_link_init(&l, items, N, LARGE, RATE);
        l.costs.demands_in_flight = 16;
        l.costs.prefetches_in_flight = 4;
        moe_link_limit_prefetches(&l, cases[i].limit);
        moe_link_add(&l, 0, 64 * LARGE, MOE_LOAD_PREFETCH, 1);
        moe_link_advance(&l, 1e-9); /* its pieces have begun */
        moe_link_add(&l, 1, LARGE, MOE_LOAD_DEMAND, 0);
        assert_true(fabs(moe_link_next_piece(&l) - cases[i].waits) < 1e-6);
        assert_int_equal(moe_link_start(&l, 0, UINT64_MAX), cases[i].prefetch);
        moe_link_promote(&l, 0, MOE_LOAD_DEMAND, 0);
        assert_int_equal(moe_link_start(&l, 0, UINT64_MAX), LARGE);
    }
}

/* ---- The plain model: everything looked at again for every piece ---- */

struct plain_item {
    bool there;
    uint64_t left, order;
    enum moe_load_priority priority;
    float score;
};

struct plain {
    struct plain_item items[N];
    uint64_t next_order;
    double clock, free_at;
    uint32_t demands, prefetches;  /* in flight together */
    uint32_t moving[64], n_moving; /* whose pieces; N: of an item that was dropped */
    uint32_t arrived[N], n_arrived;
};

static int64_t plain_choice(const struct plain *m)
{
    int64_t best = -1;
    for (int i = 0; i < N; i++) {
        const struct plain_item *x = &m->items[i], *y = &m->items[best < 0 ? i : best];
        if (!x->there || x->left == 0)
            continue;
        bool better = best < 0 || x->priority < y->priority;
        if (!better && x->priority == y->priority && x->priority == MOE_LOAD_PREFETCH)
            better = x->score > y->score || (x->score == y->score && x->order < y->order);
        else if (!better && x->priority == y->priority)
            better = x->order < y->order;
        if (better)
            best = i;
    }
    return best;
}

/* One event before `until`: pieces end, or begin. */
static bool plain_step(struct plain *m, double until)
{
    if (m->n_moving > 0) {
        if (m->free_at > until)
            return false;
        for (uint32_t i = 0; i < m->n_moving; i++) {
            uint32_t item = m->moving[i];
            bool last = true;
            for (uint32_t k = i + 1; k < m->n_moving; k++)
                last &= m->moving[k] != item;
            if (item < N && last && m->items[item].left == 0)
                m->arrived[m->n_arrived++] = item;
        }
        m->n_moving = 0;
        return true;
    }
    double from = m->free_at > m->clock ? m->free_at : m->clock;
    for (int64_t next; from < until && (next = plain_choice(m)) >= 0;) {
        struct plain_item *x = &m->items[next];
        uint32_t most = x->priority == MOE_LOAD_DEMAND ? m->demands : m->prefetches;
        if (m->n_moving > 0 && m->n_moving >= most)
            break;
        uint64_t n = x->left < PIECE ? x->left : PIECE;
        x->left -= n;
        m->free_at = (m->n_moving ? m->free_at : from) + (double)n / 1024;
        m->moving[m->n_moving++] = (uint32_t)next;
    }
    return m->n_moving > 0;
}

static void plain_drop(struct plain *m, uint32_t item)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_arrived; i++)
        if (m->arrived[i] != item)
            m->arrived[n++] = m->arrived[i];
    m->n_arrived = n;
    m->items[item].there = false;
    for (uint32_t i = 0; i < m->n_moving; i++)
        if (m->moving[i] == item)
            m->moving[i] = N;
}

static void equals_the_plain_model(uint32_t demands, uint32_t prefetches)
{
    struct moe_link_item items[N];
    struct moe_link l;
    struct plain m = {.demands = demands, .prefetches = prefetches};
    uint64_t random = 4;
    moe_link_init(&l, items, N, PIECE, 1024);
    l.costs.demands_in_flight = demands;
    l.costs.prefetches_in_flight = prefetches;
    for (int step = 0; step < 200000; step++) {
        uint64_t r = test_random(&random);
        uint32_t item = (uint32_t)(r >> 8) % N;
        enum moe_load_priority priority = r >> 20 & 1 ? MOE_LOAD_DEMAND : MOE_LOAD_PREFETCH;
        float score = (float)(r >> 21 & 3);
        struct plain_item *x = &m.items[item];
        switch (r % 8) {
        case 0:
        case 1:
        case 2:
            if (x->there)
                break;
            *x = (struct plain_item){true, 1 + (r >> 32) % (5 * PIECE), m.next_order++, priority,
                                     score};
            moe_link_add(&l, item, x->left, priority, score);
            break;
        case 3:
            if (!x->there)
                break;
            if (priority == MOE_LOAD_DEMAND && x->priority != MOE_LOAD_DEMAND)
                x->order = m.next_order++;
            x->priority = priority;
            x->score = score;
            moe_link_promote(&l, item, priority, score);
            break;
        case 4:
            if (r >> 22 & 3 || !x->there)
                break;
            plain_drop(&m, item);
            moe_link_drop(&l, item);
            break;
        case 5:
        case 6: {
            double seconds = (double)((r >> 32) % 4096) / 1024;
            while (plain_step(&m, m.clock + seconds))
                ;
            m.clock += seconds;
            assert_true(moe_link_advance(&l, seconds) == m.clock);
            break;
        }
        default:
            while (m.n_arrived == 0 && plain_step(&m, INFINITY))
                if (m.n_arrived > 0)
                    m.clock = m.free_at;
            assert_true(moe_link_wait(&l) == m.clock);
            if (m.n_arrived > 0) {
                uint32_t first = m.arrived[0];
                assert_int_equal(moe_link_take_arrived(&l), first);
                plain_drop(&m, first);
            }
        }
    }
    assert_true(m.clock > 1000);
}

static void random_runs_equal_the_plain_model(void **state)
{
    equals_the_plain_model(0, 0);
    equals_the_plain_model(5, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_urgent_comes_first),
        cmocka_unit_test(an_item_is_cut_into_pieces),
        cmocka_unit_test(a_demand_waits_for_one_piece_only),
        cmocka_unit_test(at_one_instant_only_urgency_counts),
        cmocka_unit_test(the_next_piece_is_named),
        cmocka_unit_test(an_item_arrives_after_its_latency),
        cmocka_unit_test(handling_is_paid_before_anything_else),
        cmocka_unit_test(work_takes_the_place_of_sleep),
        cmocka_unit_test(computing_is_slower_while_pieces_move_and_after_sleep),
        cmocka_unit_test(sleep_makes_up_for_interruptions),
        cmocka_unit_test(sleep_is_not_interrupted),
        cmocka_unit_test(pieces_in_flight_arrive_together),
        cmocka_unit_test(prefetches_are_cut_finer_on_a_slow_link),
        cmocka_unit_test(a_dropped_item_still_takes_the_link_for_its_piece),
        cmocka_unit_test(random_runs_equal_the_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
