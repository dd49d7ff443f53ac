/* Routing figures of choices made by hand, and synthetic traces that have them. */
#define _DEFAULT_SOURCE /* mkstemp */
#include "../test.h"

#include <math.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "plan/synthesis.h"

static char path[64], other[64];

static int set_up(void **state)
{
    strcpy(path, "/tmp/moe-test-XXXXXX");
    strcpy(other, "/tmp/moe-test-XXXXXX");
    int a = mkstemp(path), b = mkstemp(other);
    return a < 0 || b < 0 || close(a) != 0 || close(b) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    return unlink(path) + unlink(other);
}

static void within(double got, double expected, double apart)
{
    if (!(fabs(got - expected) <= apart))
        fail_msg("%.6g, expected %.6g within %g", got, expected, apart);
}

static void assert_figures(const struct moe_routing_figures *got,
                           const struct moe_routing_figures *expected, double apart)
{
    assert_int_equal(got->n_experts, expected->n_experts);
    assert_int_equal(got->top_k, expected->top_k);
    within(got->reuse, expected->reuse, apart);
    within(got->busiest, expected->busiest, apart);
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        within(got->accuracy[i], expected->accuracy[i], apart);
}

/* ---- Routing figures ---- */

static void what_is_above_chance_keeps_its_share(void **state)
{
    /* 2 of 8: chance of a match 1/4; the busiest 2 have 1/4 by chance and 2/2 at most. */
    struct moe_routing_figures m = {8, 2, 0.625, 0.4, {1, 0.25, 0.1}};
    moe_routing_figures_move(&m, 10, 5);
    /* 5 of 10: chance of a match 1/2; the busiest 3 have 3/10 by chance and 3/5 at most. */
    assert_int_equal(m.n_experts, 10);
    assert_int_equal(m.top_k, 5);
    within(m.reuse, 0.75, 1e-12);   /* half of what is possible */
    within(m.busiest, 0.36, 1e-12); /* a fifth: 0.3 + 0.2 * 0.3 */
    within(m.accuracy[0], 1, 1e-12);
    within(m.accuracy[1], 0.5, 1e-12);
    within(m.accuracy[2], 0.4, 1e-12); /* a fifth below: 0.5 - 0.2 * 0.5 */
    /* Where nothing is above chance there is nothing to move; no share falls below 0. */
    m = (struct moe_routing_figures){4, 4, 1, 0.25, {1, 1, 1}};
    moe_routing_figures_move(&m, 8, 2);
    within(m.reuse, 0.25, 1e-12);
    m = (struct moe_routing_figures){8, 4, 0, 0.25, {0, 0, 0}};
    moe_routing_figures_move(&m, 8, 1);
    assert_true(m.reuse >= 0);
    /* The same model, and figures of no other. */
    m = (struct moe_routing_figures){0, 0, 0.3, 0.4, {0.5, 0.6, 0.7}};
    moe_routing_figures_move(&m, 60, 4);
    assert_true(m.n_experts == 60 && m.top_k == 4 && m.reuse == 0.3 && m.busiest == 0.4);
    moe_routing_figures_move(&m, 60, 4);
    assert_true(m.reuse == 0.3 && m.busiest == 0.4 && m.accuracy[2] == 0.7);
}

static void matches_are_counted(void **state)
{
    static const uint16_t a[] = {0, 1}, b[] = {1, 2}, wrong[] = {4, 5}, half[] = {2, 5};
    const uint16_t *none[MOE_FIGURES_AHEAD] = {NULL}, *some[MOE_FIGURES_AHEAD] = {b, half, NULL},
                   *bad[MOE_FIGURES_AHEAD] = {wrong, NULL, NULL};
    struct moe_err err = {0};
    struct moe_routing_figures_tally t;
    assert_ok(moe_routing_figures_tally_init(&t, 2, 8, 2, &err), &err);
    moe_routing_figures_tally_add(&t, 0, a, NULL, none, 2);
    struct moe_routing_figures m = moe_routing_figures_of_tally(&t);
    assert_true(isnan(m.reuse) && isnan(m.accuracy[0]) && m.busiest == 1);
    moe_routing_figures_tally_add(&t, 0, b, a, some, 2);
    moe_routing_figures_tally_add(&t, 1, b, b, bad, 2);
    moe_routing_figures_tally_add(&t, 1, b, NULL, some, 1); /* one expert predicted of two */
    m = moe_routing_figures_of_tally(&t);
    within(m.reuse, 3 / 4.0, 1e-12);
    within(m.busiest, 7 / 8.0, 1e-12); /* 1 2 1 of 4, and 2 2 of 4 */
    within(m.accuracy[0], (2 + 0 + 1) / 6.0, 1e-12);
    within(m.accuracy[1], (1 + 1) / 4.0, 1e-12);
    assert_true(isnan(m.accuracy[2]));
    moe_routing_figures_tally_clear(&t);
    assert_true(isnan(moe_routing_figures_of_tally(&t).busiest));
    moe_routing_figures_tally_release(&t);
}

static void statistics_have_figures(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s;
    const struct moe_statistics_shape shape = {
        .n_layers = 2, .n_experts = 8, .top_k = 2, .max_tokens = 16, .prompt_percent = 50};
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    struct moe_routing_figures m, expected = moe_routing_figures_bundled;
    moe_routing_figures_move(&expected, 8, 2);
    moe_routing_figures_of_statistics(&m, s); /* of nothing: the bundled model's */
    assert_figures(&m, &expected, 1e-12);

    for (uint32_t l = 0; l < 2; l++) {
        moe_series_at(s, MOE_S_REUSE, l)[MOE_REUSE_TOKENS] = 5;
        moe_series_at(s, MOE_S_REUSE, l)[MOE_REUSE_ACTIVE] = 4;
        moe_series_at(s, MOE_S_ACTIVATIONS, l)[0] = 6;
        moe_series_at(s, MOE_S_ACTIVATIONS, l)[l + 1] = 4;
        moe_series_at(s, MOE_S_ACTIVATIONS, l)[7] = 2;
    }
    moe_accuracy_at(s, 1, MOE_PREDICT_GATE_1)[MOE_ACC_TOKENS] = 5;
    moe_accuracy_at(s, 1, MOE_PREDICT_GATE_1)[MOE_ACC_IN_K] = 7;
    moe_routing_figures_of_statistics(&m, s);
    expected.reuse = 8 / 20.0;
    expected.busiest = 20 / 24.0;
    expected.accuracy[0] = 0.7; /* the others as before */
    assert_figures(&m, &expected, 1e-12);
    moe_statistics_free(s);
}

/* One sequence of choices [n][layers][2]; an expert of 99: the layer was not computed. */
static void put_choices(struct moe_trace_writer *w, const uint32_t (*chosen)[2][2], uint32_t n)
{
    static const float weights[2] = {0.75f, 0.25f};
    struct moe_err err = {0};
    assert_ok(moe_trace_begin(w, &err), &err);
    assert_ok(moe_trace_add(w, n, 1, &err), &err);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t l = 0; l < 2; l++) {
            struct moe_layer_observation seen = {.chosen = chosen[t][l], .weights = weights};
            if (chosen[t][l][0] != 99)
                moe_trace_put(w, l, t, 1, &seen, NULL, 0);
        }
}

static void traces_of_choices_have_figures(void **state)
{
    static const uint32_t first[3][2][2] = {{{0, 1}, {3, 4}}, {{1, 2}, {99, 99}}, {{2, 1}, {3, 4}}};
    static const uint32_t second[1][2][2] = {{{0, 1}, {3, 4}}};
    const struct moe_trace_shape shape = {.n_layers = 2, .n_experts = 8, .top_k = 2};
    struct moe_err err = {0};
    struct moe_trace_writer *w;
    struct moe_trace *t;
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    put_choices(w, first, 3);
    put_choices(w, second, 1);
    assert_ok(moe_trace_commit(w, &err), &err);

    struct moe_routing_figures m, expected = moe_routing_figures_bundled;
    bool known = true;
    moe_routing_figures_move(&expected, 8, 2);
    /* Used again: 1 of 2, then 2 of 2; of the layer that was left out once nothing is known, nor
     * of what a sequence begins with. Busiest 2: 6 of 8 and 6 of 6. */
    expected.reuse = 3 / 4.0;
    expected.busiest = 12 / 14.0;
    assert_ok(moe_trace_open(&t, path, &err), &err);
    for (int twice = 0; twice < 2; twice++) {
        assert_ok(moe_routing_figures_of_trace(&m, &known, t, &err), &err);
        assert_false(known);
        assert_figures(&m, &expected, 1e-12);
    }
    moe_trace_close(t);
}

/* ---- Synthesis ---- */

static struct moe_synthesis of_shape(uint32_t n_layers, uint32_t n_experts, uint32_t top_k)
{
    return (struct moe_synthesis){
        .shape = {.n_layers = n_layers, .n_experts = n_experts, .top_k = top_k},
        .figures = moe_routing_figures_bundled,
        .sequences = 8,
        .prompt_tokens = 24,
        .decoded_tokens = 48,
        .seed = 7,
    };
}

static void synthesize(const char *to, const struct moe_synthesis *in,
                       struct moe_routing_figures *reached)
{
    struct moe_err err = {0};
    assert_ok(moe_synthesize_trace(to, in, reached, &err), &err);
}

static struct moe_routing_figures figures_of(const char *from)
{
    struct moe_err err = {0};
    struct moe_trace *t;
    struct moe_routing_figures m;
    bool known = false;
    assert_ok(moe_trace_open(&t, from, &err), &err);
    assert_ok(moe_routing_figures_of_trace(&m, &known, t, &err), &err);
    assert_true(known);
    moe_trace_close(t);
    return m;
}

static void figures_are_reached(void **state)
{
    static const uint32_t shapes[][3] = {{12, 32, 4}, {8, 60, 4}, {4, 8, 2}};
    static const struct moe_routing_figures others[] = {
        {8, 2, 0.385, 0.331, {0.8, 0.73, 0.67}}, /* about as the bundled one */
        {8, 2, 0.65, 0.5, {0.9, 0.5, 0.95}},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        for (size_t j = 0; j < N_ITEMS(others); j++) {
            struct moe_synthesis in = of_shape(shapes[i][0], shapes[i][1], shapes[i][2]);
            struct moe_routing_figures reached, wanted = in.figures = others[j];
            in.sequences = 32; /* a few documents alone are uneven by their topics */
            in.prompt_tokens = 8;
            in.decoded_tokens = 16;
            synthesize(path, &in, &reached);
            moe_routing_figures_move(&wanted, shapes[i][1], shapes[i][2]);
            assert_figures(&reached, &wanted, 0.03);
            struct moe_routing_figures read = figures_of(path);
            assert_figures(&read, &reached, 1e-12);
        }
}

static void the_same_seed_gives_the_same_bytes(void **state)
{
    struct moe_err err = {0};
    struct moe_buf a = {0}, b = {0}, c = {0};
    struct moe_synthesis in = of_shape(4, 8, 2);
    struct moe_routing_figures first, second;
    synthesize(path, &in, &first);
    synthesize(other, &in, &second);
    assert_memory_equal(&first, &second, sizeof first);
    assert_ok(moe_file_read_all(path, 1 << 24, &a, &err), &err);
    assert_ok(moe_file_read_all(other, 1 << 24, &b, &err), &err);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    in.seed++;
    synthesize(other, &in, &second);
    assert_ok(moe_file_read_all(other, 1 << 24, &c, &err), &err);
    assert_true(a.size != c.size || memcmp(a.data, c.data, a.size) != 0);
    moe_buf_release(&a);
    moe_buf_release(&b);
    moe_buf_release(&c);
}

static void check_layer(const struct moe_trace *t, uint32_t layer)
{
    const struct moe_trace_shape *s = moe_trace_shape(t);
    struct moe_trace_step step = moe_trace_step(t, layer);
    float sum = 0;
    assert_non_null(step.experts);
    for (uint32_t i = 0; i < s->top_k; i++)
        sum += step.weights[i];
    within((double)sum, 1, 2e-3);
    for (uint32_t i = 1; i < s->keep; i++)
        assert_true(step.scores[i] <= step.scores[i - 1]);
    for (uint32_t back = 1; back <= MOE_FIGURES_AHEAD; back++) {
        uint32_t predictor = MOE_PREDICT_GATE_1 + back - 1;
        assert_int_equal(step.predicted[predictor].experts != NULL, layer >= back);
        for (uint32_t i = 1; layer >= back && i < s->keep; i++)
            assert_true(step.predicted[predictor].scores[i] <=
                        step.predicted[predictor].scores[i - 1]);
    }
    assert_null(step.predicted[MOE_PREDICT_ATTN].experts);
}

static void what_is_written_is_a_trace(void **state)
{
    static const uint64_t bytes[3 * 16] = {100, 200};
    struct moe_err err = {0};
    struct moe_trace *t;
    const struct moe_trace_token *token;
    struct moe_synthesis in = of_shape(3, 16, 2);
    struct moe_routing_figures reached;
    in.shape.n_variants = 1;
    strcpy(in.shape.variants[0], "4");
    in.shape.expert_bytes = bytes;
    in.prompt_tokens = 100; /* more than is drawn at once */
    synthesize(path, &in, &reached);
    /* Nothing is three layers before one of these: that figure is the trial's. */
    within(reached.accuracy[2], 0.63, 0.1);
    assert_ok(moe_trace_open(&t, path, &err), &err);
    const struct moe_trace_shape *s = moe_trace_shape(t);
    assert_int_equal(s->keep, moe_trace_default_keep(16, 2));
    assert_int_equal(s->n_variants, 1);
    assert_int_equal(moe_trace_expert_bytes(s, 0, 0, 1), 200);
    assert_int_equal(moe_trace_totals(t)->sequences, 8);
    assert_int_equal(moe_trace_totals(t)->tokens, 8 * 148);
    assert_int_equal(moe_trace_totals(t)->prompt_tokens, 8 * 100);
    for (uint32_t i = 0; i < 8 * 148; i++) {
        assert_ok(moe_trace_next(t, &token, &err), &err);
        assert_int_equal(token->sequence, i / 148);
        assert_int_equal(token->index, i % 148);
        assert_int_equal(token->prompt, i % 148 < 100);
        for (uint32_t layer = 0; layer < 3; layer++)
            check_layer(t, layer);
    }
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_null(token);
    moe_trace_close(t);
}

static void what_cannot_be_comes_near(void **state)
{
    struct moe_synthesis in = of_shape(4, 16, 2);
    struct moe_routing_figures reached;
    /* Popular experts that are never used twice in a row. */
    in.figures = (struct moe_routing_figures){0, 0, 0, 0.7, {1, 0, 0.125}};
    synthesize(path, &in, &reached);
    within(reached.busiest, 0.7, 0.03);
    assert_true(reached.reuse > 0.15 && reached.reuse < 0.4);
    within(reached.accuracy[0], 1, 0.01);
    within(reached.accuracy[1], 0.125, 0.05); /* chance */
    /* As many as there are: always the same. */
    in = of_shape(2, 4, 4);
    synthesize(path, &in, &reached);
    assert_true(reached.reuse == 1 && reached.busiest == 0.25 && reached.accuracy[0] == 1);
    /* A single token. */
    in = of_shape(1, 1, 1);
    in.sequences = in.decoded_tokens = 1;
    in.prompt_tokens = 0;
    synthesize(path, &in, &reached);
    assert_true(reached.busiest == 1 && isnan(reached.reuse));
}

/* Of the same model, other texts: as busy, and counted whole. */
static void statistics_are_of_other_texts(void **state)
{
    struct moe_err err = {0};
    struct moe_routing_figures reached, counted;
    const struct moe_statistics_shape shape = {
        .n_layers = 4, .n_experts = 32, .top_k = 4, .max_tokens = 64, .prompt_percent = 25};
    struct moe_synthesis synthesis = {
        .shape = {.n_layers = 4, .n_experts = 32, .top_k = 4},
        .figures = moe_routing_figures_bundled,
        .sequences = 12,
        .prompt_tokens = 16,
        .decoded_tokens = 48,
        .seed = 3,
    };
    struct moe_statistics *s = NULL, *again = NULL;
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    synthesis.statistics = s;
    assert_ok(moe_synthesize_trace(path, &synthesis, &reached, &err), &err);
    assert_int_equal(s->totals[MOE_TOTAL_DOCUMENTS], 12);
    assert_int_equal(s->totals[MOE_TOTAL_TOKENS], 12 * 64);
    assert_true(moe_statistics_has_decoded(s));
    moe_routing_figures_of_statistics(&counted, s);
    within(counted.busiest, reached.busiest, 0.03);
    within(counted.accuracy[0], reached.accuracy[0], 0.03);
    assert_ok(moe_statistics_new(&again, &shape, &err), &err);
    synthesis.statistics = again;
    assert_ok(moe_synthesize_trace(path, &synthesis, &reached, &err), &err);
    assert_true(moe_statistics_fingerprint(again) == moe_statistics_fingerprint(s));
    moe_statistics_free(s);
    moe_statistics_free(again);
}

static void nonsense_is_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_routing_figures reached;
    struct moe_synthesis in = of_shape(4, 8, 9);
    assert_fails(moe_synthesize_trace(path, &in, &reached, &err), MOE_ERR_USAGE,
                 "the number of experts chosen is beyond those there are", &err);
    in = of_shape(4, 8, 2);
    in.figures.reuse = 1.5;
    assert_fails(moe_synthesize_trace(path, &in, &reached, &err), MOE_ERR_USAGE,
                 "needs shares between 0 and 1", &err);
    in.figures.reuse = 0.5;
    in.figures.accuracy[2] = (double)NAN;
    assert_fails(moe_synthesize_trace(path, &in, &reached, &err), MOE_ERR_USAGE,
                 "needs shares between 0 and 1", &err);
    in = of_shape(4, 8, 2);
    in.figures.top_k = 33;
    assert_fails(moe_synthesize_trace(path, &in, &reached, &err), MOE_ERR_USAGE,
                 "the figures of no model: 32 experts, 33 per token", &err);
    in = of_shape(4, 8, 2);
    in.sequences = 0;
    assert_fails(moe_synthesize_trace(path, &in, &reached, &err), MOE_ERR_USAGE,
                 "at least one sequence, of 1 to 4294967295 tokens", &err);
    in = of_shape(4, 8, 2);
    in.prompt_tokens = in.decoded_tokens = 0;
    assert_fails(moe_synthesize_trace(path, &in, &reached, &err), MOE_ERR_USAGE, "of 1 to", &err);
    in.prompt_tokens = in.decoded_tokens = UINT32_MAX;
    assert_fails(moe_synthesize_trace(path, &in, &reached, &err), MOE_ERR_USAGE, "of 1 to", &err);
    in = of_shape(4, 8, 2);
    assert_fails(moe_synthesize_trace("/nowhere/x", &in, &reached, &err), MOE_ERR_IO, "/nowhere/x",
                 &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_above_chance_keeps_its_share),
        cmocka_unit_test(matches_are_counted),
        cmocka_unit_test(statistics_have_figures),
        cmocka_unit_test(traces_of_choices_have_figures),
        cmocka_unit_test(figures_are_reached),
        cmocka_unit_test(the_same_seed_gives_the_same_bytes),
        cmocka_unit_test(what_is_written_is_a_trace),
        cmocka_unit_test(what_cannot_be_comes_near),
        cmocka_unit_test(statistics_are_of_other_texts),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
