/*
 * Precision against the examples of HOBBIT 3.2 and Fate 4.5, worked by hand.
 */
#include "sched/select.h"

#include <math.h>
#include <stdbool.h>

#include "../test.h"

static const double t1 = 0.6, t2 = 0.9; /* HOBBIT's for Mixtral */

static void assert_scores(const float *weights, uint32_t k, const float *want)
{
    float scores[16];
    moe_unimportance(weights, k, scores);
    for (uint32_t i = 0; i < k; i++)
        assert_true(fabsf(scores[i] - want[i]) <= 1e-6f); /* cmocka's own lets NaN pass */
}

/* Mixtral: the first of two scores 0, the second the first's normalized weight. */
static void test_two_experts(void **state)
{
    static const float even[] = {0.55f, 0.45f}, uneven[] = {0.7f, 0.3f}, alone[] = {0.95f, 0.05f};
    static const float unscaled[] = {2.8f, 1.2f};
    float s[2];
    moe_unimportance(even, 2, s);
    assert_true(s[0] == 0);
    assert_int_equal(moe_importance_of(s[0], t1, t2), MOE_IMPORTANT);
    assert_int_equal(moe_importance_of(s[1], t1, t2), MOE_IMPORTANT);
    moe_unimportance(uneven, 2, s);
    assert_float_equal(s[1], 0.7, 1e-6);
    assert_int_equal(moe_importance_of(s[1], t1, t2), MOE_LESS_IMPORTANT);
    moe_unimportance(alone, 2, s);
    assert_int_equal(moe_importance_of(s[1], t1, t2), MOE_UNIMPORTANT);
    assert_scores(unscaled, 2, (const float[]){0, 0.7f});
}

/* Weights of 30, 20, 15, 10, 10, 5, 5 and 5 percent. */
static void test_eight_experts(void **state)
{
    static const float weights[] = {30, 20, 15, 10, 10, 5, 5, 5};
    static const float want[] = {0, 0.3f, 0.5f, 0.65f, 0.75f, 0.85f, 0.9f, 0.95f};
    static const enum moe_importance classes[] = {
        MOE_IMPORTANT,      MOE_IMPORTANT,      MOE_IMPORTANT,      MOE_LESS_IMPORTANT,
        MOE_LESS_IMPORTANT, MOE_LESS_IMPORTANT, MOE_LESS_IMPORTANT, MOE_UNIMPORTANT};
    float scores[8];
    moe_unimportance(weights, 8, scores);
    assert_scores(weights, 8, want);
    for (int i = 0; i < 8; i++)
        assert_int_equal(moe_importance_of(scores[i], t1, t2), classes[i]);
}

/* "If s <= T1 ...": what scores just the threshold still belongs to the better class. */
static void test_thresholds_belong_to_the_better_class(void **state)
{
    static const float at_t1[] = {0.6f, 0.4f}, at_t2[] = {0.9f, 0.1f};
    float s[2];
    moe_unimportance(at_t1, 2, s);
    assert_int_equal(moe_importance_of(s[1], t1, t2), MOE_IMPORTANT);
    moe_unimportance(at_t2, 2, s);
    assert_int_equal(moe_importance_of(s[1], t1, t2), MOE_LESS_IMPORTANT);
    assert_int_equal(moe_importance_of(0.8f, t1, 0.8), MOE_LESS_IMPORTANT); /* 0.8f > 0.8 */
    assert_int_equal(moe_importance_of(0.61f, t1, t2), MOE_LESS_IMPORTANT);
    assert_int_equal(moe_importance_of(0.91f, t1, t2), MOE_UNIMPORTANT);
    assert_int_equal(moe_importance_of(1, t1, 1), MOE_LESS_IMPORTANT);
}

/* "We always treat the first expert as important". */
static void test_best_expert_is_always_important(void **state)
{
    assert_int_equal(moe_importance_of(0, 0, 0), MOE_IMPORTANT);
    assert_int_equal(moe_importance_of(0, -1, -1), MOE_IMPORTANT);
    assert_int_equal(moe_importance_of(0.01f, 0, 0), MOE_UNIMPORTANT);
}

static void test_any_order_and_equal_weights(void **state)
{
    static const float unsorted[] = {0.1f, 0.6f, 0.3f}, equal[] = {2, 2, 2, 2};
    assert_scores(unsorted, 3, (const float[]){0.9f, 0, 0.6f});
    assert_scores(equal, 4, (const float[]){0, 0.25f, 0.5f, 0.75f});
}

static void test_zero_weights(void **state)
{
    static const float none[] = {0, 0, 0}, one[] = {0, 0.4f, 0};
    assert_scores(none, 3, (const float[]){0, 0, 0});
    assert_scores(one, 3, (const float[]){1, 0, 1});
}

/* Whatever the weights are: the ranked scores rise from 0 and none is above 1. */
static void test_scores_rise_as_weights_fall(void **state)
{
    uint64_t random = 1;
    for (int round = 0; round < 2000; round++) {
        float weights[16], scores[16];
        uint32_t k = 1 + (uint32_t)(test_random(&random) % 16), n_first = 0;
        for (uint32_t i = 0; i < k; i++)
            weights[i] = 1e-3f + (1 + test_uniform(&random)) * (round % 2 ? 1e-6f : 1e6f);
        moe_unimportance(weights, k, scores);
        for (uint32_t i = 0; i < k; i++) {
            assert_true(scores[i] >= 0 && scores[i] <= 1);
            n_first += scores[i] == 0;
            for (uint32_t j = 0; j < k; j++)
                assert_true(!(weights[i] > weights[j]) || scores[i] <= scores[j]);
        }
        assert_int_equal(n_first, 1);
    }
}

static uint32_t count(const uint8_t *marks, uint32_t n)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += marks[i];
    return sum;
}

/* Qwen1.5-MoE: of 56 active experts a quarter, 14, at the low precision. */
static void test_least_popular_quarter(void **state)
{
    uint32_t rows[56];
    uint8_t low[56];
    for (uint32_t i = 0; i < 56; i++)
        rows[i] = 1 + i * 37 % 56; /* 1 to 56, each once */
    moe_least_popular(rows, 56, 0.25, low);
    for (uint32_t i = 0; i < 56; i++)
        assert_int_equal(low[i], rows[i] <= 14);
}

static void test_least_popular_among_equals(void **state)
{
    static const uint32_t rows[] = {5, 1, 9, 1, 1, 7}, equal[] = {3, 3, 3, 3};
    uint8_t low[6];
    moe_least_popular(rows, 6, 0.34, low); /* 2 of 6 */
    assert_memory_equal(low, ((const uint8_t[]){0, 0, 0, 1, 1, 0}), 6);
    moe_least_popular(rows, 6, 0.67, low); /* 4 of 6 */
    assert_memory_equal(low, ((const uint8_t[]){1, 1, 0, 1, 1, 0}), 6);
    moe_least_popular(equal, 4, 0.5, low);
    assert_memory_equal(low, ((const uint8_t[]){0, 0, 1, 1}), 4);
}

static void test_least_popular_share_is_rounded_down(void **state)
{
    static uint32_t rows[100];
    uint8_t low[100];
    static const struct {
        uint32_t n;
        double share;
        uint32_t n_low;
    } cases[] = {
        {4, 0.25, 1}, {3, 0.25, 0}, {7, 0.25, 1},    {60, 0.25, 15},  {6, 0, 0},
        {6, 1, 6},    {1, 0.99, 0}, {100, 0.29, 29}, {100, 0.57, 57}, {0, 0.5, 0},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        moe_least_popular(rows, cases[i].n, cases[i].share, low);
        assert_int_equal(count(low, cases[i].n), cases[i].n_low);
    }
}

/* AdapMoE: of two experts the second goes where its weight is below the threshold; of several as
 * many as weigh less together. The sum stays, whatever it is. */
static void test_the_gate_gives_weights_to_the_best(void **state)
{
    static const struct {
        float weights[4];
        uint32_t k;
        double share;
        float want[4];
    } cases[] = {
        {{0.7f, 0.3f}, 2, 0.31, {1, 0}},
        {{0.7f, 0.3f}, 2, 0.29, {0.7f, 0.3f}},
        {{0.3f, 0.7f}, 2, 0.31, {0, 1}},                               /* in any order */
        {{0.28f, 0.12f}, 2, 0.31, {0.4f, 0}},                          /* not of sum 1 */
        {{0.4f, 0.3f, 0.2f, 0.1f}, 4, 0.35, {4.f / 7, 3.f / 7, 0, 0}}, /* 0.2 + 0.1 below 0.35 */
        {{0.4f, 0.3f, 0.2f, 0.1f}, 4, 0.25, {4.f / 9, 3.f / 9, 2.f / 9, 0}},
        {{0.4f, 0.3f, 0.2f, 0.1f}, 4, 0.05, {0.4f, 0.3f, 0.2f, 0.1f}},
        {{0.4f, 0.3f, 0.2f, 0.1f}, 4, 1, {1, 0, 0, 0}}, /* the first stays */
        {{0, 0}, 2, 0.5, {0, 0}},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        float weights[4], scores[4];
        memcpy(weights, cases[i].weights, sizeof weights);
        moe_gate_below(weights, cases[i].k, cases[i].share);
        moe_unimportance(weights, cases[i].k, scores);
        for (uint32_t k = 0; k < cases[i].k; k++) {
            assert_true(fabsf(weights[k] - cases[i].want[k]) <= 1e-6f);
            /* The score says who was left out. */
            bool out = cases[i].weights[k] > 0 && cases[i].want[k] == 0;
            assert_int_equal(scores[k] == 1, out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_experts),
        cmocka_unit_test(test_eight_experts),
        cmocka_unit_test(test_thresholds_belong_to_the_better_class),
        cmocka_unit_test(test_best_expert_is_always_important),
        cmocka_unit_test(test_any_order_and_equal_weights),
        cmocka_unit_test(test_zero_weights),
        cmocka_unit_test(test_scores_rise_as_weights_fall),
        cmocka_unit_test(test_least_popular_quarter),
        cmocka_unit_test(test_least_popular_among_equals),
        cmocka_unit_test(test_least_popular_share_is_rounded_down),
        cmocka_unit_test(test_the_gate_gives_weights_to_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
