/*
 * DAOP's Algorithm 1 and graceful degradation against examples worked by hand, and what must hold
 * of every outcome.
 */
#include "sched/placement.h"

#include "base/rank.h"

#include "../test.h"

enum { MAX_EXPERTS = 40 };

/* ---- Swaps (IV-B) ---- */

static void assert_swaps(const uint32_t *rows, const uint8_t *on_device, uint32_t n,
                         const struct moe_swap *want, uint32_t n_want)
{
    struct moe_swap swaps[MAX_EXPERTS / 2];
    uint32_t order[MAX_EXPERTS];
    uint32_t n_swaps = moe_swaps(rows, on_device, n, MOE_SWAP_FACTOR, swaps, order);
    assert_int_equal(n_swaps, n_want);
    for (uint32_t i = 0; i < n_want; i++) {
        assert_int_equal(swaps[i].in, want[i].in);
        assert_int_equal(swaps[i].out, want[i].out);
    }
}

/* Host by falling rows: 0 (40), 2 (22), 5 (22), 6 (3). Device by rising rows: 3 (1), 1 (20),
 * 7 (21), 4 (50). 40 > 1.05 and 22 > 21 swap; 22 < 22.05 and 3 < 52.5 don't. */
static void test_pairs(void **state)
{
    static const uint32_t rows[] = {40, 20, 22, 1, 50, 22, 3, 21};
    static const uint8_t on_device[] = {0, 1, 0, 1, 1, 0, 0, 1};
    assert_swaps(rows, on_device, 8, (const struct moe_swap[]){{0, 3}, {2, 1}}, 2);
}

/* 21 does not exceed 20 * 1.05; 22 does. */
static void test_factor_is_exclusive(void **state)
{
    static const uint8_t on_device[] = {1, 0};
    assert_swaps((const uint32_t[]){20, 21}, on_device, 2, NULL, 0);
    assert_swaps((const uint32_t[]){20, 22}, on_device, 2, (const struct moe_swap[]){{1, 0}}, 1);
    assert_swaps((const uint32_t[]){0, 1}, on_device, 2, (const struct moe_swap[]){{1, 0}}, 1);
    assert_swaps((const uint32_t[]){0, 0}, on_device, 2, NULL, 0);
}

/* Among equals the lower number comes first, on both sides. */
static void test_pairs_of_equals(void **state)
{
    static const uint32_t rows[] = {2, 9, 2, 9, 9, 2};
    static const uint8_t on_device[] = {1, 0, 1, 0, 0, 1};
    assert_swaps(rows, on_device, 6, (const struct moe_swap[]){{1, 0}, {3, 2}, {4, 5}}, 3);
}

static void test_one_side_alone(void **state)
{
    static const uint32_t rows[] = {5, 6, 7};
    assert_swaps(rows, (const uint8_t[]){1, 1, 1}, 3, NULL, 0);
    assert_swaps(rows, (const uint8_t[]){0, 0, 0}, 3, NULL, 0);
    assert_swaps(rows, (const uint8_t[]){0, 1, 0}, 3, (const struct moe_swap[]){{2, 1}}, 1);
}

/* Each swap pays, no expert moves twice, and pairing again finds less to gain than the factor. */
static void test_every_swap(void **state)
{
    uint64_t random = 6;
    for (int round = 0; round < 2000; round++) {
        uint32_t n = 2 + (uint32_t)(test_random(&random) % (MAX_EXPERTS - 2));
        uint32_t rows[MAX_EXPERTS], order[MAX_EXPERTS];
        uint8_t on_device[MAX_EXPERTS];
        struct moe_swap swaps[MAX_EXPERTS / 2];
        for (uint32_t e = 0; e < n; e++) {
            rows[e] = (uint32_t)(test_random(&random) % 30);
            on_device[e] = test_random(&random) % 2;
        }
        uint32_t n_swaps = moe_swaps(rows, on_device, n, MOE_SWAP_FACTOR, swaps, order);
        for (uint32_t i = 0; i < n_swaps; i++) {
            assert_true(rows[swaps[i].in] * 100 > rows[swaps[i].out] * 105);
            assert_false(on_device[swaps[i].in]);
            assert_true(on_device[swaps[i].out]);
            on_device[swaps[i].in] = 1;
            on_device[swaps[i].out] = 0;
        }
        assert_int_equal(moe_swaps(rows, on_device, n, MOE_SWAP_FACTOR, swaps, order), 0);
    }
}

/* ---- Predicted experts (IV-C) ---- */

#define ALL UINT32_MAX /* but the strongest */

static const float scores[] = {0.05f, 0.3f, 0.1f, 0.25f, 0.1f, 0.08f, 0.02f, 0.1f};

static struct moe_predicted predict(const uint8_t *on_device, uint32_t k, uint32_t replaces)
{
    struct moe_predicted f;
    uint32_t barred[8];
    moe_best(scores, 8, k, f.experts);
    moe_predicted_choice(scores, on_device, 8, k, replaces, &f, barred);
    assert_int_equal(f.n, k);
    for (uint32_t i = 0; i < k; i++) {
        assert_true(f.scores[i] == scores[f.experts[i]]);
        assert_int_equal(f.on_host[i], !on_device[f.experts[i]]);
    }
    return f;
}

#define assert_predicted(f, n_substituted, ...)                                                    \
    do {                                                                                           \
        const uint32_t want_[] = {__VA_ARGS__};                                                    \
        assert_int_equal((f).substituted, (n_substituted));                                        \
        assert_memory_equal((f).experts, want_, sizeof want_);                                     \
    } while (0)

/* Experts 1 and 3 are predicted, both on the host: 3 is replaced by the best on the device. */
static void test_weaker_of_two_is_replaced(void **state)
{
    static const uint8_t on_device[] = {1, 0, 0, 0, 1, 1, 1, 1};
    struct moe_predicted f = predict(on_device, 2, ALL);
    assert_predicted(f, 1, 1, 4); /* 4 and 7 are equal, 2 is on the host */
    assert_true(f.on_host[0]);
    f = predict(on_device, 2, 0);
    assert_predicted(f, 0, 1, 3);
    assert_true(f.on_host[0] && f.on_host[1]);
}

static void test_one_on_the_host_stays(void **state)
{
    assert_predicted(predict((const uint8_t[]){1, 1, 1, 0, 1, 1, 1, 1}, 2, ALL), 0, 1, 3);
    assert_predicted(predict((const uint8_t[]){1, 0, 1, 1, 1, 1, 1, 1}, 2, ALL), 0, 1, 3);
    assert_predicted(predict((const uint8_t[]){1, 0, 0, 0, 0, 0, 0, 0}, 1, ALL), 0, 1);
}

/* "If no suitable alternative is available, the original selection is maintained". */
static void test_nothing_to_replace_with(void **state)
{
    struct moe_predicted f = predict((const uint8_t[]){0, 0, 0, 0, 0, 0, 0, 0}, 2, ALL);
    assert_predicted(f, 0, 1, 3);
    /* Of 1, 3, 2 and 4 only 2 is on the device, and 6 beside them: 4 is replaced, 3 not. */
    f = predict((const uint8_t[]){0, 0, 1, 0, 0, 0, 1, 0}, 4, ALL);
    assert_predicted(f, 1, 1, 3, 2, 6);
}

/* Of 1, 3, 2 and 4 on the host: 4, then 2, then 3 take 7, 5 and 0, the best there are. */
static void test_four_experts(void **state)
{
    struct moe_predicted f = predict((const uint8_t[]){1, 0, 0, 0, 0, 1, 1, 1}, 4, ALL);
    assert_predicted(f, 3, 1, 0, 5, 7);
    f = predict((const uint8_t[]){1, 0, 0, 0, 0, 1, 1, 1}, 4, 2);
    assert_predicted(f, 2, 1, 3, 5, 7);
    f = predict((const uint8_t[]){1, 0, 0, 0, 0, 1, 1, 1}, 4, 1);
    assert_predicted(f, 1, 1, 3, 2, 7);
    f = predict((const uint8_t[]){1, 1, 0, 0, 1, 1, 1, 1}, 4, ALL); /* 3 stays, 2 takes 7 */
    assert_predicted(f, 1, 1, 3, 7, 4);
}

/* Experts 1 and 3 are predicted; the router chose 1 and 2. */
static void test_a_prediction_pays_beside_the_host(void **state)
{
    static const uint32_t chosen[] = {1, 2};
    static const struct {
        uint8_t on_device[8];
        bool pays;
    } cases[] = {
        {{1, 1, 1, 1, 1, 1, 1, 1}, false}, {{0, 1, 1, 1, 0, 0, 0, 0}, false}, /* no other counts */
        {{1, 1, 1, 0, 1, 1, 1, 1}, true},                                     /* a predicted one */
        {{1, 1, 0, 1, 1, 1, 1, 1}, true},                                     /* a chosen one */
        {{1, 0, 1, 1, 1, 1, 1, 1}, true},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const struct moe_predicted f = predict(cases[i].on_device, 2, ALL);
        assert_int_equal(moe_predicted_pays(&f, chosen, 2, cases[i].on_device), cases[i].pays);
    }
    const struct moe_predicted none = {0};
    assert_false(moe_predicted_pays(&none, chosen, 2, cases[2].on_device));
}

static void test_every_prediction(void **state)
{
    uint64_t random = 7;
    for (int round = 0; round < 3000; round++) {
        float p[MAX_EXPERTS];
        uint8_t on_device[MAX_EXPERTS];
        uint32_t n = 1 + (uint32_t)(test_random(&random) % MAX_EXPERTS), barred[MAX_EXPERTS];
        uint32_t k = 1 + (uint32_t)(test_random(&random) % n), n_host = 0, n_free = 0;
        struct moe_predicted plain, f;
        bool chosen[MAX_EXPERTS] = {false};
        for (uint32_t e = 0; e < n; e++) {
            p[e] = (float)(test_random(&random) % 50) / 50;
            on_device[e] = test_random(&random) % 3 == 0;
            n_free += on_device[e];
        }
        moe_best(p, n, k, plain.experts);
        moe_best(p, n, k, f.experts);
        moe_predicted_choice(p, on_device, n, k, 0, &plain, barred);
        uint32_t most = test_random(&random) % 2 ? ALL : (uint32_t)(test_random(&random) % (k + 1));
        moe_predicted_choice(p, on_device, n, k, most, &f, barred);
        for (uint32_t i = 0; i < k; i++) {
            n_host += plain.on_host[i];
            n_free -= !plain.on_host[i];
        }
        uint32_t n_weaker = n_host > 0 ? n_host - 1 : 0, n_changed = 0;
        n_weaker = n_weaker < most ? n_weaker : most;
        assert_int_equal(f.substituted, n_weaker < n_free ? n_weaker : n_free);
        for (uint32_t i = 0; i < k; i++) {
            assert_false(chosen[f.experts[i]]);
            chosen[f.experts[i]] = true;
            assert_int_equal(f.on_host[i], !on_device[f.experts[i]]);
            if (f.experts[i] == plain.experts[i])
                continue;
            n_changed++;
            assert_true(plain.on_host[i] && !f.on_host[i] && f.scores[i] <= plain.scores[i]);
        }
        assert_int_equal(n_changed, f.substituted);
        for (uint32_t i = 0, seen = 0; i < k && seen == 0; i++) /* the strongest on the host */
            if (plain.on_host[i]) {
                assert_int_equal(f.experts[i], plain.experts[i]);
                seen = 1;
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_factor_is_exclusive),
        cmocka_unit_test(test_pairs_of_equals),
        cmocka_unit_test(test_one_side_alone),
        cmocka_unit_test(test_every_swap),
        cmocka_unit_test(test_weaker_of_two_is_replaced),
        cmocka_unit_test(test_one_on_the_host_stays),
        cmocka_unit_test(test_nothing_to_replace_with),
        cmocka_unit_test(test_four_experts),
        cmocka_unit_test(test_a_prediction_pays_beside_the_host),
        cmocka_unit_test(test_every_prediction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
