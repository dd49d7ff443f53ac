/* In which order experts give up bits: against examples worked by hand and exhaustive search. */
#include <math.h>
#include <stdbool.h>

#include "../test.h"
#include "plan/tuning.h"

struct wanted {
    uint32_t expert, variant;
    double loss, bytes;
};

static void assert_steps(const struct moe_stairs *s, const struct wanted *wanted, size_t n_wanted)
{
    struct moe_err err = {0};
    struct moe_step *steps;
    uint64_t n;
    assert_ok(moe_steps_make(&steps, &n, s, &err), &err);
    assert_int_equal(n, n_wanted);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(steps[i].expert, wanted[i].expert);
        assert_int_equal(steps[i].variant, wanted[i].variant);
        assert_true(steps[i].loss == wanted[i].loss);
        assert_true(steps[i].bytes == wanted[i].bytes);
    }
    free(steps);
}

/* ---- Worked by hand ---- */

/* Bytes 8, 4, 2. Expert 0: slopes 1/4 then 7/2. Expert 1: variant 1 lies above the line from 8 to 2
 * (slope 3/4 to it, 4/6 past it), so it takes one step. Expert 2: 2/4, then 1/2: equal ones. */
static const uint64_t plain_bytes[] = {8, 4, 2, 8, 4, 2, 8, 4, 2};
static const double plain_loss[] = {0, 1, 8, 0, 3, 4, 0, 2, 3};

static void test_three_experts(void **state)
{
    struct moe_stairs s = {3, 3, 0, plain_bytes, plain_loss, NULL};
    static const struct wanted wanted[] = {
        {0, 1, 1, 4}, {2, 1, 2, 4}, {2, 2, 1, 2}, {1, 2, 4, 6}, {0, 2, 7, 2},
    };
    assert_steps(&s, wanted, N_ITEMS(wanted));

    struct moe_err err = {0};
    struct moe_step *steps;
    uint64_t n;
    uint8_t variants[3];
    assert_ok(moe_steps_make(&steps, &n, &s, &err), &err);
    assert_true(moe_steps_take(steps, 0, 0, 3, variants) == 0);
    assert_memory_equal(variants, ((uint8_t[]){0, 0, 0}), 3);
    assert_true(moe_steps_take(steps, 2, 0, 3, variants) == 3);
    assert_memory_equal(variants, ((uint8_t[]){1, 0, 1}), 3);
    assert_true(moe_steps_take(steps, 4, 0, 3, variants) == 8);
    assert_memory_equal(variants, ((uint8_t[]){1, 2, 2}), 3);
    assert_true(moe_steps_take(steps, 5, 0, 3, variants) == 15);
    assert_memory_equal(variants, ((uint8_t[]){2, 2, 2}), 3);
    free(steps);
}

/* Expert 1's bytes count sixfold: its slope is now 4/36, the least; 2's count half: 2/2 and 1/1. */
static void test_weights(void **state)
{
    static const double weight[] = {1, 6, 0.5};
    struct moe_stairs s = {3, 3, 0, plain_bytes, plain_loss, weight};
    static const struct wanted wanted[] = {
        {1, 2, 4, 36}, {0, 1, 1, 4}, {2, 1, 2, 2}, {2, 2, 1, 1}, {0, 2, 7, 2},
    };
    assert_steps(&s, wanted, N_ITEMS(wanted));
}

/* From variant 1 on: what variants 0 and 1 are said to lose counts nothing. Slopes 8/2, 4/2, 3/2.
 */
static void test_lower_upper(void **state)
{
    static const double loss[] = {NAN, NAN, 8, NAN, NAN, 4, NAN, NAN, 3};
    struct moe_stairs s = {3, 3, 1, plain_bytes, loss, NULL};
    static const struct wanted wanted[] = {{2, 2, 3, 2}, {1, 2, 4, 2}, {0, 2, 8, 2}};
    assert_steps(&s, wanted, N_ITEMS(wanted));
    s.upper = 2;
    assert_steps(&s, NULL, 0);
}

/* Equal experts go by number; an expert's own equal steps stay together in their order. */
static void test_equal_slopes(void **state)
{
    static const double loss[] = {0, 4, 6, 0, 4, 6, 0, 4, 6};
    struct moe_stairs s = {3, 3, 0, plain_bytes, loss, NULL};
    static const struct wanted wanted[] = {
        {0, 1, 4, 4}, {0, 2, 2, 2}, {1, 1, 4, 4}, {1, 2, 2, 2}, {2, 1, 4, 4}, {2, 2, 2, 2},
    };
    assert_steps(&s, wanted, N_ITEMS(wanted));
}

/* Slopes that are equal but for rounding: 0.1 / 5, then (0.3 - 0.1) / 10, which comes out lower. */
static void test_rounding(void **state)
{
    static const uint64_t bytes[] = {16, 11, 1};
    static const double loss[] = {0, 0.1, 0.3};
    struct moe_stairs s = {1, 3, 0, bytes, loss, NULL};
    assert_true((loss[2] - loss[1]) / 10 < loss[1] / 5);
    static const struct wanted wanted[] = {{0, 1, 0.1, 5}, {0, 2, 0.3 - 0.1, 10}};
    assert_steps(&s, wanted, N_ITEMS(wanted));
}

/* Measured gains come first, the largest per byte before all. Expert 0: -8/4, then 2/2; expert 1:
 * -3/6 past variant 1; expert 2: free, then 5/2. */
static void test_gains(void **state)
{
    static const double loss[] = {0, -8, -6, 0, -1, -3, 0, 0, 5};
    struct moe_stairs s = {3, 3, 0, plain_bytes, loss, NULL};
    static const struct wanted wanted[] = {
        {0, 1, -8, 4}, {1, 2, -3, 6}, {2, 1, 0, 4}, {0, 2, 2, 2}, {2, 2, 5, 2},
    };
    assert_steps(&s, wanted, N_ITEMS(wanted));
}

/* Not stored, no smaller than a better one, never loaded: no step. */
static void test_variants_not_taken(void **state)
{
    static const uint64_t bytes[] = {
        8, 0, 2, /* variant 1 is not there: one step */
        8, 8, 8, /* nothing to save */
        0, 4, 2, /* does not have the upper variant */
        8, 2, 4, /* variant 2 takes more than 1 and loses more */
        8, 2, 4, /* ... more bytes, but loses less: a corner, after which 1 would be a step up */
        8, 4, 2, /* counts nothing */
    };
    static const double loss[] = {0, NAN, 6, 0, 1, 2, 0, 1, 2, 0, -2, -1.5, 0, 6, 1, 0, 1, 2};
    static const double weight[] = {1, 1, 1, 1, 1, 0};
    struct moe_stairs s = {6, 3, 0, bytes, loss, weight};
    static const struct wanted wanted[] = {{3, 1, -2, 6}, {4, 2, 1, 4}, {0, 2, 6, 6}};
    assert_steps(&s, wanted, N_ITEMS(wanted));
}

/* ---- Against exhaustive search ---- */

enum { EXPERTS = 5, VARIANTS = 4, CHOICES = 1024 /* VARIANTS to the EXPERTS */ };

struct random_stairs {
    uint64_t bytes[EXPERTS * VARIANTS];
    double loss[EXPERTS * VARIANTS], weight[EXPERTS];
};

/* Integers, so that sums are exact and ties happen; bytes fall with the variants. */
static struct moe_stairs draw(struct random_stairs *r, uint64_t *seed)
{
    for (int e = 0; e < EXPERTS; e++) {
        uint64_t bytes = 1;
        for (int v = VARIANTS; v-- > 0;) {
            bytes += 1 + test_random(seed) % 4;
            r->bytes[e * VARIANTS + v] = bytes;
            r->loss[e * VARIANTS + v] = (double)(test_random(seed) % 12) - 2;
        }
        r->weight[e] = (double)(1 + test_random(seed) % 3);
    }
    return (struct moe_stairs){EXPERTS,  VARIANTS, (uint32_t)(test_random(seed) % 2),
                               r->bytes, r->loss,  r->weight};
}

/* Loss and weighted bytes of a choice; false when it has a variant better than upper. */
static bool sum_up(const struct moe_stairs *s, const uint8_t *variants, double *loss, double *bytes)
{
    *loss = *bytes = 0;
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t v = variants[e];
        if (v < s->upper)
            return false;
        *loss += v == s->upper ? 0 : s->loss[e * s->n_variants + v];
        *bytes += s->weight[e] * (double)s->bytes[e * s->n_variants + v];
    }
    return true;
}

/* The pair of expert and lower variant with the least loss per byte saved; then the lower expert,
 * the smaller saving. False when nothing is left to save. */
static bool greedy_step(const struct moe_stairs *s, uint8_t *variants)
{
    uint32_t expert = 0, variant = 0;
    double slope = 0, saved = 0;
    for (uint32_t e = 0; e < s->n_experts; e++)
        for (uint32_t v = variants[e] + 1u; v < s->n_variants; v++) {
            const double *loss = s->loss + e * s->n_variants;
            const uint64_t *bytes = s->bytes + e * s->n_variants;
            double before = variants[e] == s->upper ? 0 : loss[variants[e]];
            double saves = s->weight[e] * (double)(bytes[variants[e]] - bytes[v]);
            double here = (loss[v] - before) / saves;
            if (saved == 0 || here < slope || (here == slope && expert == e && saves < saved)) {
                expert = e;
                variant = v;
                slope = here;
                saved = saves;
            }
        }
    variants[expert] = saved > 0 ? (uint8_t)variant : variants[expert];
    return saved > 0;
}

static void test_every_prefix(void **state)
{
    uint64_t seed = 8;
    for (int round = 0; round < 300; round++) {
        struct random_stairs r;
        struct moe_stairs s = draw(&r, &seed);
        struct moe_err err = {0};
        struct moe_step *steps;
        uint64_t n;
        uint8_t variants[EXPERTS], greedy[EXPERTS], before[EXPERTS];
        assert_ok(moe_steps_make(&steps, &n, &s, &err), &err);
        memset(greedy, (int)s.upper, sizeof greedy);
        memset(before, (int)s.upper, sizeof before);
        for (uint64_t k = 0; k <= n; k++) {
            double loss, bytes, saved = 0, all_loss, all_bytes;
            double taken = moe_steps_take(steps, k, s.upper, EXPERTS, variants);
            for (uint64_t i = 0; i < k; i++)
                saved += steps[i].bytes;
            assert_true(sum_up(&s, variants, &loss, &bytes));
            assert_true(taken == loss);
            assert_true(sum_up(&s, before, &all_loss, &all_bytes));
            assert_true(all_bytes - saved == bytes);
            assert_memory_equal(variants, greedy, EXPERTS);
            /* When all gains are taken, no other choice with as few bytes loses less. */
            for (uint32_t c = 0; c < CHOICES && (k == n || steps[k].loss >= 0); c++) {
                uint8_t other[EXPERTS];
                double other_loss, other_bytes;
                for (uint32_t e = 0, rest = c; e < EXPERTS; e++, rest /= VARIANTS)
                    other[e] = (uint8_t)(rest % VARIANTS);
                if (sum_up(&s, other, &other_loss, &other_bytes) && other_bytes <= bytes)
                    assert_true(other_loss >= loss);
            }
            assert_int_equal(greedy_step(&s, greedy), k < n);
        }
        free(steps);
    }
}

/* Whatever bytes and losses are, an expert only goes down, each step saves, and slopes rise. */
static void test_never_up(void **state)
{
    uint64_t seed = 80;
    for (int round = 0; round < 2000; round++) {
        struct random_stairs r;
        struct moe_stairs s = draw(&r, &seed);
        for (int i = 0; i < EXPERTS * VARIANTS; i++) {
            r.bytes[i] = test_random(&seed) % 6;
            r.loss[i] = test_uniform(&seed);
        }
        struct moe_err err = {0};
        struct moe_step *steps;
        uint64_t n;
        uint32_t at[EXPERTS] = {0};
        double slope = -INFINITY;
        assert_ok(moe_steps_make(&steps, &n, &s, &err), &err);
        for (uint64_t i = 0; i < n; i++) {
            uint32_t e = steps[i].expert, v = steps[i].variant;
            assert_true(v > at[e] && v > s.upper && r.bytes[e * VARIANTS + v] > 0);
            assert_true(steps[i].bytes > 0);
            assert_true(steps[i].loss / steps[i].bytes >= slope - 1e-12);
            slope = steps[i].loss / steps[i].bytes;
            at[e] = v;
            for (uint32_t u = s.upper; u < v; u++) { /* nothing better is as small and as good */
                double loss_u = u == s.upper ? 0 : r.loss[e * VARIANTS + u];
                uint64_t bytes_u = r.bytes[e * VARIANTS + u];
                assert_true(bytes_u == 0 || bytes_u > r.bytes[e * VARIANTS + v] ||
                            loss_u > r.loss[e * VARIANTS + v]);
            }
        }
        free(steps);
    }
}

static void test_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_step *steps;
    uint64_t n;
    static const double weight[] = {1, -1, 1}, nan_loss[] = {0, 1, NAN, 0, 1, 2, 0, 1, 2};
    struct moe_stairs s = {3, 3, 3, plain_bytes, plain_loss, NULL};
    assert_fails(moe_steps_make(&steps, &n, &s, &err), MOE_ERR_USAGE, "variant 3 of 3", &err);
    s.upper = 0;
    s.weight = weight;
    assert_fails(moe_steps_make(&steps, &n, &s, &err), MOE_ERR_USAGE, "expert 1: a weight", &err);
    s.weight = NULL;
    s.loss = nan_loss;
    assert_fails(moe_steps_make(&steps, &n, &s, &err), MOE_ERR_USAGE, "expert 0: its loss", &err);
    assert_null(steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_experts),      cmocka_unit_test(test_weights),
        cmocka_unit_test(test_lower_upper),        cmocka_unit_test(test_equal_slopes),
        cmocka_unit_test(test_rounding),           cmocka_unit_test(test_gains),
        cmocka_unit_test(test_variants_not_taken), cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_never_up),           cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
