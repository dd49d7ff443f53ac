/*
 * Selection against examples worked by hand (Fate 4.2 and fig. 6), and tallies against an obvious
 * recomputation.
 */
#include "sched/select.h"

#include <math.h>

#include "../test.h"
#include "base/rank.h"
#include "profile/trace.h"

enum { MAX_EXPERTS = 64, MAX_ROWS = 40 };

/* ---- The k best ---- */

static void test_best(void **state)
{
    static const float values[] = {3, 7, 1, 7, 5, 3};
    uint32_t best[6];
    moe_best(values, 6, 4, best);
    assert_memory_equal(best, ((const uint32_t[]){1, 3, 4, 0}), 4 * sizeof *best);
    moe_best(values, 6, 6, best);
    assert_memory_equal(best, ((const uint32_t[]){1, 3, 4, 0, 5, 2}), 6 * sizeof *best);
}

/* Against ranks counted one by one; what is not a number must not lead to the same one twice. */
static void test_best_against_ranks(void **state)
{
    uint64_t random = 4;
    for (int round = 0; round < 3000; round++) {
        float values[MAX_EXPERTS];
        uint32_t best[MAX_EXPERTS], n = 1 + (uint32_t)(test_random(&random) % MAX_EXPERTS);
        uint32_t k = 1 + (uint32_t)(test_random(&random) % n);
        bool numbers = round % 3, chosen[MAX_EXPERTS] = {false};
        for (uint32_t i = 0; i < n; i++)
            values[i] = (float)(test_random(&random) % 20);
        for (uint32_t i = 0; i < n && !numbers; i++)
            values[i] = test_random(&random) % 2 ? NAN : values[i] > 10 ? INFINITY : values[i];
        moe_best(values, n, k, best);
        for (uint32_t i = 0; i < k; i++) {
            uint32_t rank = 0;
            assert_true(best[i] < n);
            assert_false(chosen[best[i]]);
            chosen[best[i]] = true;
            for (uint32_t j = 0; j < n; j++)
                rank +=
                    values[j] > values[best[i]] || (values[j] == values[best[i]] && j < best[i]);
            assert_true(!numbers || rank == i);
        }
    }
}

/* The same ones in rising order, where values are numbers; both zeros are equal. */
static void test_best_places(void **state)
{
    uint64_t random = 5;
    for (int round = 0; round < 3000; round++) {
        float values[MAX_EXPERTS];
        uint32_t best[MAX_EXPERTS], places[MAX_EXPERTS];
        uint32_t n = 2 + (uint32_t)(test_random(&random) % (MAX_EXPERTS - 1));
        uint32_t k = 1 + (uint32_t)(test_random(&random) % (n - 1)), at = 0;
        for (uint32_t i = 0; i < n; i++) {
            values[i] = ((float)(test_random(&random) % 20) - 9) * (round % 2 ? 1e-3f : 1e30f);
            if (values[i] == 0 && test_random(&random) % 2)
                values[i] = -0.0f;
        }
        moe_best(values, n, k, best);
        moe_best_places(values, n, k, places);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < k; j++)
                if (best[j] == i)
                    assert_int_equal(places[at++], i);
        assert_int_equal(at, k);
    }
}

/* ---- Selecting ---- */

static const struct moe_prefetch_limits above_75 = {.percentile = 75};
static const struct moe_prefetch_limits only_best = {.top_k = true};

static uint32_t select_of_one(const struct moe_prefetch_limits *limits, const float *scores,
                              uint32_t n, uint32_t top_k, uint32_t *experts)
{
    struct moe_prediction p = {.n_rows = 1, .scores = scores};
    return moe_select(limits, &p, n, top_k, experts);
}

/* Above the 75th percentile lie 15 of 60 experts, 8 of 32, 1 of 4, and none of 3. */
static void test_percentile_is_nearest_rank(void **state)
{
    static const struct {
        uint32_t n;
        double percentile;
        uint32_t n_selected;
    } cases[] = {{60, 75, 15}, {32, 75, 8}, {64, 75, 16}, {8, 75, 2},   {5, 75, 1},   {4, 75, 1},
                 {3, 75, 0},   {1, 75, 0},  {60, 90, 6},  {60, 55, 27}, {60, 100, 0}, {60, 1, 59}};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t n = cases[i].n, experts[MAX_EXPERTS];
        float scores[MAX_EXPERTS];
        struct moe_prefetch_limits limits = {.percentile = cases[i].percentile};
        for (uint32_t e = 0; e < n; e++)
            scores[e] = (float)(1 + e) / 100;
        assert_int_equal(select_of_one(&limits, scores, n, 1, experts), cases[i].n_selected);
        for (uint32_t r = 0; r < cases[i].n_selected; r++)
            assert_int_equal(experts[r], n - 1 - r);
    }
}

/* The sixth of eight scores from below is the percentile: what equals it stays below. */
static void test_percentile_of_equal_scores(void **state)
{
    static const float two_above[] = {1, 5, 1, 1, 2, 1, 1, 4};
    static const float one_above[] = {1, 2, 1, 2, 3, 1, 1, 1},
                       all_equal[] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t experts[8];
    assert_int_equal(select_of_one(&above_75, two_above, 8, 2, experts), 2);
    assert_memory_equal(experts, ((const uint32_t[]){1, 7}), 2 * sizeof *experts);
    assert_int_equal(select_of_one(&above_75, one_above, 8, 2, experts), 1);
    assert_int_equal(experts[0], 4);
    assert_int_equal(select_of_one(&above_75, all_equal, 8, 2, experts), 0);
}

static void test_limits_combine(void **state)
{
    static const float scores[] = {0.1f, 0.3f, 0.05f, 0.2f, 0.02f, 0.2f, 0.08f, 0.05f};
    static const struct moe_prefetch_limits both = {.percentile = 50, .top_k = true};
    static const struct moe_prefetch_limits none = {0};
    uint32_t experts[8];
    assert_int_equal(select_of_one(&only_best, scores, 8, 2, experts), 2);
    assert_memory_equal(experts, ((const uint32_t[]){1, 3}), 2 * sizeof *experts);
    assert_int_equal(select_of_one(&both, scores, 8, 2, experts), 2);
    assert_memory_equal(experts, ((const uint32_t[]){1, 3}), 2 * sizeof *experts);
    assert_int_equal(select_of_one(&both, scores, 8, 6, experts), 4);
    assert_memory_equal(experts, ((const uint32_t[]){1, 3, 5, 0}), 4 * sizeof *experts);
    assert_int_equal(select_of_one(&none, scores, 8, 2, experts), 8);
    assert_memory_equal(experts, ((const uint32_t[]){1, 3, 5, 0, 6, 2, 7, 4}), 8 * sizeof *experts);
}

/* The token before chose experts 2 and 5: no other has a score. */
static void test_score_0_is_no_candidate(void **state)
{
    static const float scores[8] = {[2] = 1, [5] = 1};
    static const struct moe_prefetch_limits none = {0};
    uint32_t experts[8];
    assert_int_equal(select_of_one(&none, scores, 8, 2, experts), 2);
    assert_int_equal(select_of_one(&above_75, scores, 8, 2, experts), 2);
    assert_int_equal(select_of_one(&only_best, scores, 8, 4, experts), 2);
    assert_memory_equal(experts, ((const uint32_t[]){2, 5}), 2 * sizeof *experts);
}

static void test_what_is_not_a_number_is_no_candidate(void **state)
{
    static const float scores[4] = {NAN, NAN, NAN, NAN};
    uint32_t experts[4];
    assert_int_equal(select_of_one(&above_75, scores, 4, 2, experts), 0);
    assert_int_equal(select_of_one(&only_best, scores, 4, 2, experts), 0);
}

/* ---- Several rows ---- */

/* Fate, fig. 6: experts 2 and 4 are there, 3, 1 and 5 are transferred in this order, by falling
 * popularity. Four tokens that choose two each: 3 is chosen by three, 1 by two, 2, 4 and 5 once. */
static void test_popularity_of_fig_6(void **state)
{
    static const float rows[4][6] = {{0, 0.3f, 0, 0.4f, 0.2f, 0.1f},
                                     {0, 0.4f, 0.1f, 0.5f, 0, 0},
                                     {0, 0.05f, 0.25f, 0.6f, 0.1f, 0},
                                     {0, 0.1f, 0, 0.2f, 0.3f, 0.4f}};
    static const bool there[6] = {[2] = true, [4] = true};
    float scores[6], unimportance[6], scratch[4];
    uint32_t experts[6], loads[6], n_loads = 0;
    moe_tally(rows[0], 6, 4, 6, 2, scores, unimportance, scratch);
    struct moe_prediction p = {.n_rows = 4, .scores = scores, .unimportance = unimportance};
    assert_int_equal(moe_select(&only_best, &p, 6, 2, experts), 5); /* expert 0: in no best two */
    for (int i = 0; i < 5; i++)
        if (!there[experts[i]])
            loads[n_loads++] = experts[i];
    assert_int_equal(n_loads, 3);
    assert_memory_equal(loads, ((const uint32_t[]){3, 1, 5}), 3 * sizeof *loads);
    assert_float_equal(scores[3], 3 + 1.7 / 8, 1e-4); /* three rows, and half the mean */
    /* First in the third row, second to 0.4 and 0.5 in the others: 0.5 / 0.9 at most. */
    assert_true(unimportance[3] == 0);
    assert_float_equal(unimportance[1], 0.5 / 0.9, 1e-6);
    assert_true(unimportance[0] > 1);
}

static void test_percentile_of_several_rows(void **state)
{
    static const float rows[2][4] = {{0.7f, 0.2f, 0.1f, 0}, {0.1f, 0.8f, 0.1f, 0}};
    static const struct moe_prefetch_limits none = {0};
    float scores[4], unimportance[4], scratch[2];
    uint32_t experts[4];
    moe_tally(rows[0], 4, 2, 4, 1, scores, unimportance, scratch);
    struct moe_prediction p = {.n_rows = 2, .scores = scores, .unimportance = unimportance};
    assert_int_equal(moe_select(&above_75, &p, 4, 1, experts), 2); /* though that is half of them */
    assert_memory_equal(experts, ((const uint32_t[]){1, 0}), 2 * sizeof *experts);
    /* Traces would keep two of each row: expert 2 is in neither. */
    assert_int_equal(moe_select(&none, &p, 4, 1, experts), 2);
    assert_memory_equal(experts, ((const uint32_t[]){1, 0}), 2 * sizeof *experts);
}

static bool in_best(const float *row, uint32_t n, uint32_t k, uint32_t e)
{
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; i++)
        rank += row[i] > row[e] || (row[i] == row[e] && i < e);
    return rank < k && row[e] > 0;
}

static float score_in_row(const float *row, uint32_t n, uint32_t k, uint32_t e)
{
    double before = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!in_best(row, n, k, i))
            continue;
        sum += row[i];
        before += row[i] > row[e] || (row[i] == row[e] && i < e) ? row[i] : 0;
    }
    return (float)(before / sum);
}

static void test_tally_against_counting(void **state)
{
    static float rows[MAX_ROWS * MAX_EXPERTS];
    uint64_t random = 5;
    for (int round = 0; round < 300; round++) {
        uint32_t n = 2 + (uint32_t)(test_random(&random) % (MAX_EXPERTS - 4)), stride = n + 3;
        uint32_t k = 1 + (uint32_t)(test_random(&random) % (n < 8 ? n : 8));
        uint32_t n_rows = 1 + (uint32_t)(test_random(&random) % MAX_ROWS);
        float scores[MAX_EXPERTS], unimportance[MAX_EXPERTS], scratch[16];
        for (uint32_t i = 0; i < n_rows * stride; i++) {
            uint64_t r = test_random(&random); /* some are 0, some equal */
            rows[i] = r % 4 ? (float)(r >> 8 & 255) / 256 : (float)(r >> 8 & 1) / 2;
        }
        moe_tally(rows, stride, n_rows, n, k, scores, unimportance, scratch);
        for (uint32_t e = 0; e < n; e++) {
            uint32_t count = 0;
            double sum = 0, least = INFINITY;
            for (uint32_t r = 0; r < n_rows; r++) {
                const float *row = rows + r * stride;
                if (in_best(row, n, moe_trace_default_keep(n, k), e))
                    sum += row[e];
                if (!in_best(row, n, k, e))
                    continue;
                count++;
                least = fmin(least, score_in_row(row, n, k, e));
            }
            if (n_rows == 1)
                assert_true(scores[e] == rows[e]);
            else
                assert_float_equal(scores[e], count + sum / n_rows / 2, 5e-4);
            if (count > 0)
                assert_float_equal(unimportance[e], least, 1e-6);
            else
                assert_true(unimportance[e] > 1);
        }
    }
}

/* Even where every probability is 1, the fraction never makes a count look like the next one. */
static void test_fraction_stays_below_1(void **state)
{
    enum { N_ROWS = 5000 };
    static float rows[N_ROWS][2];
    float scores[2], unimportance[2], scratch[2];
    for (int r = 0; r < N_ROWS; r++)
        rows[r][0] = rows[r][1] = 1; /* expert 0 is the best of each row */
    moe_tally(rows[0], 2, N_ROWS, 2, 1, scores, unimportance, scratch);
    assert_true(scores[0] >= N_ROWS && scores[0] < N_ROWS + 1);
    assert_true(scores[1] > 0 && scores[1] < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_best_against_ranks),
        cmocka_unit_test(test_best_places),
        cmocka_unit_test(test_percentile_is_nearest_rank),
        cmocka_unit_test(test_percentile_of_equal_scores),
        cmocka_unit_test(test_limits_combine),
        cmocka_unit_test(test_score_0_is_no_candidate),
        cmocka_unit_test(test_what_is_not_a_number_is_no_candidate),
        cmocka_unit_test(test_popularity_of_fig_6),
        cmocka_unit_test(test_percentile_of_several_rows),
        cmocka_unit_test(test_tally_against_counting),
        cmocka_unit_test(test_fraction_stays_below_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
