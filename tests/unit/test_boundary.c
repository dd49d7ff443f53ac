/*
 * The boundary between shallow and deep layers: splits worked by hand, and against the sums of
 * squares taken the long way; accuracies and thresholds out of statistics.
 */
#include <math.h>

#include "sched/strategy.h"

#include "../test.h"

static void by_hand(void **state)
{
    static const struct {
        double accuracy[8];
        uint32_t n, boundary;
    } examples[] = {
        {{0}, 0, 0},
        {{0.9}, 1, 0},
        {{-1, -1, -1, -1}, 4, 0},
        {{0.9, 0.9, 0.9, 0.9}, 4, 0},
        {{0.9, 0.8, 0.7, 0.6}, 4, 0},
        {{0.1, 0.9}, 2, 1},
        {{0.2, 0.4, 0.9, 1.0}, 4, 2}, /* squares left: 0.02 + 0.005; of 1 and 3: 0.207, 0.26 */
        /* Like Fate's figure 7: the first cannot be predicted, two badly. */
        {{-1, 0.5, 0.6, 0.95, 0.97, 0.97, 0.96, 0.98}, 8, 3},
        /* One that cannot be predicted, and the others alike: it is the shallow one. */
        {{-1, 0.9, 0.9, 0.9, 0.9, 0.9}, 6, 1},
        /* The bundled model: the second is so much worse that it is shallow, too. */
        {{-1, 0.57, 0.75, 0.71, 0.73, 0.80, 0.79, 0.83}, 8, 2},
        {{0, 1, 0, 1}, 4, 1},    /* 1 and 3 leave 2/3 both: the smaller one */
        {{0.5, 0.9, 0.1}, 3, 0}, /* 0.5 and 0.5, 0.7 and 0.1: none rises */
        /* 5 leaves least (0.513), but falls; 1 (0.94) is all that rises. */
        {{0.1, 1.0, 0.8, 0.9, 0.8, 0.1, 0.0}, 7, 1},
    };
    for (size_t i = 0; i < N_ITEMS(examples); i++)
        assert_int_equal(moe_boundary(examples[i].accuracy, examples[i].n), examples[i].boundary);
}

/* Sums that do not come out even are no step. */
static void rounding_is_no_step(void **state)
{
    double accuracy[64];
    for (uint32_t n = 1; n <= N_ITEMS(accuracy); n++)
        for (int percent = 0; percent <= 100; percent++) {
            for (uint32_t i = 0; i < n; i++)
                accuracy[i] = percent / 100.0;
            assert_int_equal(moe_boundary(accuracy, n), 0);
        }
}

static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] < 0 ? 0 : x[i];
    return sum / n;
}

static double squares(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += pow((x[i] < 0 ? 0 : x[i]) - mean(x, n), 2);
    return sum;
}

static void leaves_the_least_squares(void **state)
{
    uint64_t rng = 1;
    uint32_t with = 0, without = 0;
    for (int round = 0; round < 2000; round++) {
        double x[12], least = INFINITY;
        uint32_t n = 2 + (uint32_t)(test_random(&rng) % (N_ITEMS(x) - 1)), boundary = 0;
        for (uint32_t i = 0; i < n; i++)
            x[i] = (double)test_uniform(&rng) + (round % 2 ? 0.1 * i : 0.5);
        x[0] = fabs(x[0]); /* known */
        for (uint32_t at = 1; at < n; at++) {
            double left = squares(x, at) + squares(x + at, n - at);
            if (mean(x, at) < mean(x + at, n - at) && left < least) {
                least = left;
                boundary = at;
            }
        }
        assert_int_equal(moe_boundary(x, n), boundary);
        with += boundary > 0;
        without += boundary == 0;
    }
    assert_true(with > 100 && without > 10);
}

static void accuracies_of_statistics(void **state)
{
    static const struct moe_statistics_shape shape = {
        .n_layers = 4, .n_experts = 8, .top_k = 2, .max_tokens = 16, .prompt_percent = 50};
    static const struct {
        uint64_t tokens, in_k;
    } counted[] = {{0, 0}, {10, 5}, {10, 15}, {8, 16}};
    struct moe_statistics *s = NULL;
    struct moe_err err = {0};
    double accuracy[4];
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    for (uint32_t layer = 0; layer < 4; layer++) {
        uint64_t *n = moe_accuracy_at(s, layer, MOE_PREDICT_GATE_1);
        n[MOE_ACC_TOKENS] = counted[layer].tokens;
        n[MOE_ACC_IN_K] = counted[layer].in_k;
        n[MOE_ACC_TOP1] = n[MOE_ACC_IN_2K] = 1;
    }
    moe_layer_accuracies(s, MOE_PREDICT_GATE_1, accuracy);
    assert_true(accuracy[0] == -1 && accuracy[1] == 0.25 && accuracy[2] == 0.75 &&
                accuracy[3] == 1);
    assert_int_equal(moe_boundary(accuracy, 4), 2);
    assert_int_equal(moe_boundary_of_statistics(s), 2);
    moe_layer_accuracies(s, MOE_PREDICT_GATE_2, accuracy);
    for (int layer = 0; layer < 4; layer++)
        assert_true(accuracy[layer] == -1);
    moe_statistics_free(s);
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    assert_int_equal(moe_boundary_of_statistics(s), UINT32_MAX); /* nothing was predicted */
    moe_statistics_free(s);
}

/* An encoder's layers before the decoder's change nothing: L counts the decoder's. */
static void the_boundary_is_the_decoder_s(void **state)
{
    static const uint64_t right[] = {0, 20, 0, 5, 15, 16};
    static const struct moe_statistics_shape shape = {.n_layers = 6,
                                                      .n_encoder = 2,
                                                      .n_experts = 8,
                                                      .top_k = 2,
                                                      .max_tokens = 16,
                                                      .prompt_percent = 50};
    struct moe_statistics *s = NULL;
    struct moe_err err = {0};
    struct moe_strategy fate, daop;
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    for (uint32_t layer = 0; layer < 6; layer++) {
        uint64_t *n = moe_accuracy_at(s, layer, MOE_PREDICT_GATE_1);
        n[MOE_ACC_TOKENS] = right[layer] ? 10 : 0;
        n[MOE_ACC_IN_K] = right[layer];
    }
    assert_int_equal(moe_boundary_of_statistics(s), 2);
    assert_true(moe_strategy_find("fate", &fate) && moe_strategy_find("daop", &daop));
    moe_strategy_fit(&fate, 4, s);
    assert_int_equal(fate.boundary, 2);
    assert_int_equal(fate.boundary_from, MOE_DECIDED_BY_STATISTICS);
    moe_strategy_fit(&daop, 4, s);
    assert_int_equal(daop.precalculate_from, 1);
    moe_statistics_free(s);
}

/* HOBBIT 3.2: of 400 activations, four a token, the 100 best and 168 others lie up to T1, 120 more
 * up to T2; a strategy that skips none goes on so, and what is named stays, before the other.
 * Without scores both are Mixtral's. */
static void thresholds_split_the_scores(void **state)
{
    static const struct moe_statistics_shape shape = {
        .n_layers = 2, .n_experts = 8, .top_k = 4, .max_tokens = 16, .prompt_percent = 50};
    enum {
        BY_NAME = MOE_DECIDED_BY_NAME,
        SCORED = MOE_DECIDED_BY_STATISTICS,
        MIXTRALS = MOE_DECIDED_BY_PAPER
    };
    static const struct {
        const char *on_miss, *skip_below;
        double t1, skips, t1_without, skips_without; /* with these scores, without any */
        int from, from_without;
    } cases[] = {{"load-low:auto", "auto", 0.42, 0.1, 0.6, 0.1, SCORED, MIXTRALS},
                 {"load-low:auto", "0", 0.42, 0, 0.6, 0, SCORED, MIXTRALS},
                 {"load-low:auto", "25%", 0.42, 0.25, 0.6, 0.25, SCORED, MIXTRALS},
                 {"load-low:auto", "75%", 0.25, 0.75, 0.25, 0.75, SCORED, MIXTRALS},
                 {"load-low:0.5", "auto", 0.5, 0.1, 0.5, 0.1, SCORED, MIXTRALS},
                 {"load-low:0.75", "auto", 0.75, 0.1, 0.75, 0.1, SCORED, MIXTRALS},
                 {"load-low:1", "auto", 1, 0, 1, 0, SCORED, MIXTRALS},
                 {"load", "auto", 0, 0.1, 0, 0.1, SCORED, MIXTRALS},
                 {"load-low:0.5", "10%", 0.5, 0.1, 0.5, 0.1, BY_NAME, BY_NAME}};
    struct moe_statistics *s = NULL, *without_scores = NULL;
    struct moe_err err = {0};
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    assert_ok(moe_statistics_new(&without_scores, &shape, &err), &err);
    uint64_t *a = moe_series_at(s, MOE_S_SCORE_BINS, 0), *b = moe_series_at(s, MOE_S_SCORE_BINS, 1);
    a[30] = 100;
    b[41] = 68;
    a[89] = 120;
    b[95] = 12;
    const struct moe_statistics *known[] = {s, NULL, without_scores};
    for (uint32_t i = 0; i < N_ITEMS(cases) * N_ITEMS(known); i++) {
        struct moe_strategy hobbit;
        char text[MOE_PART_TEXT_BYTES];
        bool scored = i % N_ITEMS(known) == 0;
        const struct moe_statistics *statistics = known[i % N_ITEMS(known)];
        uint32_t n = i / N_ITEMS(known);
        assert_true(moe_strategy_find("hobbit", &hobbit));
        assert_true(moe_strategy_set(&hobbit, MOE_PART_ON_MISS, cases[n].on_miss, NULL));
        assert_true(moe_strategy_set(&hobbit, MOE_PART_SKIP_BELOW, cases[n].skip_below, NULL));
        moe_strategy_part_text(&hobbit, MOE_PART_ON_MISS, text);
        assert_string_equal(text, cases[n].on_miss);
        moe_strategy_part_text(&hobbit, MOE_PART_SKIP_BELOW, text);
        assert_string_equal(text, cases[n].skip_below);
        assert_ok(moe_strategy_settle(&hobbit, &err), &err);
        assert_false(hobbit.needs_profile);
        moe_strategy_fit(&hobbit, 2, statistics);
        assert_true(hobbit.high_up_to == (scored ? cases[n].t1 : cases[n].t1_without));
        assert_true(hobbit.skip_below == (scored ? cases[n].skips : cases[n].skips_without));
        assert_int_equal(hobbit.thresholds_from, scored ? cases[n].from : cases[n].from_without);
        assert_true(!moe_strategy_thresholds_from(&hobbit) == (cases[n].from == BY_NAME));
        assert_ok(moe_strategy_settle(&hobbit, &err), &err);
        moe_strategy_part_text(&hobbit, MOE_PART_ON_MISS, text);
        assert_null(strstr(text, "auto"));
        moe_strategy_part_text(&hobbit, MOE_PART_SKIP_BELOW, text);
        assert_null(strstr(text, "auto"));
    }
    moe_statistics_free(without_scores);
    moe_statistics_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(rounding_is_no_step),
        cmocka_unit_test(leaves_the_least_squares),
        cmocka_unit_test(accuracies_of_statistics),
        cmocka_unit_test(the_boundary_is_the_decoder_s),
        cmocka_unit_test(thresholds_split_the_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
