/*
 * Switch Transformers and NLLB-MoE against their public implementation: the parity fixtures
 * switch-* and nllb-* (what they hold: fixtures/make_encdec.py), converted from their directories
 * at full precision. The encoder's output and its experts with the rows that their capacity leaves
 * out, the decoder's logits and experts, the tokens that it likes best; one source after the other
 * or side by side, experts in memory or behind caches of a few slots.
 */
#include <jansson.h>
#include <math.h>

#include "infer/forward.h"
#include "infer/pass_ops.h"
#include "model_fixture.h"

enum { MAX_SOURCES = 8, MAX_LENGTH = 256, STEPS = 32, MAX_MOE_LAYERS = 8 };

/* What one way to compute gives of a source. */
struct outcome {
    float *encoded; /* [length][hidden] */
    float *logits;  /* [STEPS][stride] */
};

struct source {
    const json_t *reference;
    uint32_t ids[MAX_LENGTH], n;
    uint32_t text[STEPS + 1]; /* the decoder's: its first token, then the greedy ones */
    struct outcome first;     /* resident, alone, token by token: what the reference has */
};

struct switch_fixture {
    struct fixture run;
    json_t *reference;
    uint32_t n_sources;
    struct source sources[MAX_SOURCES];
    /* While the first way computes. */
    const struct source *at;
    uint32_t n_compared, n_dropped;
    double worst_weight, worst_output, worst_logit; /* absolute; relative to the largest */
};

static uint64_t stride_of(const struct switch_fixture *f)
{
    return moe_logits_stride(&f->run.model->config);
}

static void read_sources(struct switch_fixture *f)
{
    const json_t *list = json_object_get(f->reference, "sources");
    f->n_sources = (uint32_t)json_array_size(list);
    assert_true(f->n_sources >= 4 && f->n_sources <= MAX_SOURCES);
    for (uint32_t i = 0; i < f->n_sources; i++) {
        struct source *s = &f->sources[i];
        s->reference = json_array_get(list, i);
        const json_t *ids = json_object_get(s->reference, "ids");
        const json_t *greedy = json_object_get(s->reference, "greedy");
        s->n = (uint32_t)json_array_size(ids);
        assert_true(s->n <= MAX_LENGTH && json_array_size(greedy) == STEPS);
        for (uint32_t k = 0; k < s->n; k++)
            s->ids[k] = (uint32_t)json_integer_value(json_array_get(ids, k));
        s->text[0] = f->run.model->config.decoder_start;
        for (uint32_t k = 0; k < STEPS; k++)
            s->text[k + 1] = (uint32_t)json_integer_value(json_array_get(greedy, k));
    }
}

static void set_up_fixture(struct switch_fixture *f, const char *name)
{
    struct moe_err err = {0};
    json_error_t error;
    char from[128];
    *f = (struct switch_fixture){0};
    snprintf(from, sizeof from, DRAWN "/%s", name);
    snprintf(f->run.path, sizeof f->run.path, "/tmp/moe-switch-%d.moe", (int)getpid());
    const struct moe_convert_options options = pack_options("32", 32);
    make_pack(f->run.path, from, &options);
    snprintf(from, sizeof from, DRAWN "/%s/reference.json", name);
    f->reference = json_load_file(from, 0, &error);
    assert_non_null(f->reference);
    assert_ok(moe_model_open(&f->run.model, f->run.path, MAX_LENGTH, NULL, &err), &err);
    read_sources(f);
}

/* ---- Experts ---- */

static bool lists(const json_t *list, uint32_t position)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == position)
            return true;
    return false;
}

static void check_experts(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                          const float *gate_input, uint64_t hidden_stride,
                          const float *probabilities, uint64_t router_stride,
                          const uint32_t *chosen, const float *weights)
{
    struct switch_fixture *f = ctx;
    const struct moe_config *c = &f->run.model->config;
    bool encoder = moe_config_in_encoder(c, layer);
    uint32_t number = c->layers[layer].moe_index;
    number -= encoder ? 0 : c->layers[c->n_encoder].moe_index;
    const json_t *wanted = json_array_get(
        json_object_get(f->at->reference, encoder ? "encoder_experts" : "decoder_experts"), number);
    const json_t *dropped =
        encoder ? json_array_get(json_object_get(f->at->reference, "dropped"), number) : NULL;
    for (uint32_t i = 0; i < n_rows; i++) {
        const json_t *pairs = json_array_get(wanted, rows[i].position);
        assert_int_equal(json_array_size(pairs), c->top_k);
        for (uint32_t k = 0; k < c->top_k; k++) {
            const json_t *pair = json_array_get(pairs, k);
            double weight = json_number_value(json_array_get(pair, 1));
            float got = weights[i * c->top_k + k];
            assert_int_equal(chosen[i * c->top_k + k], json_integer_value(json_array_get(pair, 0)));
            f->n_compared++;
            if (lists(dropped, rows[i].position)) {
                assert_true(got == 0);
                f->n_dropped++;
                continue;
            }
            assert_true(got > 0);
            f->worst_weight = fmax(f->worst_weight, fabs((double)got - weight));
        }
    }
}

/* ---- Computing ---- */

static uint32_t put_source(const struct source *s, uint32_t number, struct moe_row *rows)
{
    for (uint32_t i = 0; i < s->n; i++)
        rows[i] = (struct moe_row){number, i, s->ids[i], s->n};
    return s->n;
}

static void encode_alone(struct switch_fixture *f, uint32_t number, struct outcome *o)
{
    struct moe_err err = {0};
    struct moe_row rows[MAX_LENGTH];
    uint32_t n = put_source(&f->sources[number], number, rows);
    o->encoded = calloc((uint64_t)n * f->run.model->config.hidden, sizeof(float));
    assert_ok(moe_encode(f->run.session, rows, n, o->encoded, &err), &err);
}

/* All of them in one pass. */
static void encode_together(struct switch_fixture *f, struct outcome *o)
{
    struct moe_err err = {0};
    uint32_t hidden = f->run.model->config.hidden, n = 0;
    struct moe_row rows[MAX_SOURCES * MAX_LENGTH];
    float *out = calloc((uint64_t)MAX_SOURCES * MAX_LENGTH * hidden, sizeof *out);
    for (uint32_t i = 0; i < f->n_sources; i++)
        n += put_source(&f->sources[i], i, rows + n);
    assert_ok(moe_encode(f->run.session, rows, n, out, &err), &err);
    for (uint32_t i = 0, at = 0; i < f->n_sources; at += f->sources[i++].n) {
        uint64_t floats = (uint64_t)f->sources[i].n * hidden;
        o[i].encoded = calloc(floats, sizeof *out);
        memcpy(o[i].encoded, out + (uint64_t)at * hidden, floats * sizeof *out);
    }
    free(out);
}

/* Rows [first, first + n) of the texts on sources [begin, end) in one pass. */
static void decode(struct switch_fixture *f, uint32_t begin, uint32_t end, uint32_t first,
                   uint32_t n, struct outcome *o)
{
    struct moe_err err = {0};
    const struct moe_config *c = &f->run.model->config;
    struct moe_row rows[MAX_SOURCES * STEPS] = {{0}};
    uint32_t n_rows = 0;
    for (uint32_t s = begin; s < end; s++)
        for (uint32_t i = first; i < first + n; i++)
            rows[n_rows++] = (struct moe_row){s, i, f->sources[s].text[i], 0};
    assert_ok(moe_forward(f->run.session, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n_rows,
                          c->n_encoder, c->n_layers, NULL, NULL, &err),
              &err);
    for (uint32_t s = begin; s < end; s++)
        assert_ok(moe_logits(f->run.session, (s - begin) * n, n, o[s].logits + first * stride_of(f),
                             &err),
                  &err);
}

static void open_session(struct switch_fixture *f)
{
    struct moe_err err = {0};
    const struct moe_session_options options = {.context = STEPS,
                                                .n_sequences = f->n_sources,
                                                .batch = MAX_SOURCES * MAX_LENGTH,
                                                .source_context = MAX_LENGTH};
    assert_ok(moe_session_open(&f->run.session, f->run.model, f->run.experts, &options, &err),
              &err);
}

static void close_session(struct switch_fixture *f)
{
    moe_session_close(f->run.session);
    moe_experts_close(f->run.experts);
    f->run.session = NULL;
    f->run.experts = NULL;
}

static void allocate(const struct switch_fixture *f, struct outcome *o)
{
    for (uint32_t i = 0; i < f->n_sources; i++)
        o[i].logits = calloc(STEPS * stride_of(f), sizeof(float));
}

/* ---- Right ---- */

static double worst_row(const json_t *want, const float *got, uint32_t n)
{
    double worst = 0, largest = 0;
    assert_int_equal(json_array_size(want), n);
    for (uint32_t i = 0; i < n; i++) {
        double w = json_number_value(json_array_get(want, i));
        largest = fmax(largest, fabs(w));
        worst = fmax(worst, fabs((double)got[i] - w));
    }
    assert_true(largest > 0.1);
    return worst / largest;
}

static void check_encoded(struct switch_fixture *f, const struct source *s)
{
    uint32_t hidden = f->run.model->config.hidden;
    const json_t *rows = json_object_get(s->reference, "rows");
    const json_t *outputs = json_object_get(s->reference, "encoder");
    const json_t *lengths = json_object_get(s->reference, "lengths");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        uint64_t at = (uint64_t)json_integer_value(json_array_get(rows, i));
        f->worst_output = fmax(f->worst_output, worst_row(json_array_get(outputs, i),
                                                          s->first.encoded + at * hidden, hidden));
    }
    assert_int_equal(json_array_size(lengths), s->n);
    for (uint32_t p = 0; p < s->n; p++) {
        double sum = 0, want = json_number_value(json_array_get(lengths, p));
        for (uint32_t i = 0; i < hidden; i++) {
            double x = (double)s->first.encoded[(uint64_t)p * hidden + i];
            sum += x * x;
        }
        f->worst_output = fmax(f->worst_output, fabs(sqrt(sum) - want) / want);
    }
}

static void check_logits(struct switch_fixture *f, const struct source *s)
{
    const struct moe_config *c = &f->run.model->config;
    const json_t *steps = json_object_get(s->reference, "steps");
    const json_t *logits = json_object_get(s->reference, "logits");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        uint64_t at = (uint64_t)json_integer_value(json_array_get(steps, i));
        f->worst_logit =
            fmax(f->worst_logit, worst_row(json_array_get(logits, i),
                                           s->first.logits + at * stride_of(f), c->vocab));
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        const float *row = s->first.logits + step * stride_of(f);
        uint32_t best = 0;
        for (uint32_t i = 1; i < c->vocab; i++)
            best = row[i] > row[best] ? i : best;
        assert_int_equal(best, s->text[step + 1]);
    }
}

/* The layers that have experts, as the reference says. */
static void check_kinds(const struct switch_fixture *f)
{
    const struct moe_config *c = &f->run.model->config;
    const json_t *kinds = json_object_get(f->reference, "layers");
    char text[2 * MOE_MAX_LAYERS];
    snprintf(text, sizeof text, "%s%s", json_string_value(json_array_get(kinds, 0)),
             json_string_value(json_array_get(kinds, 1)));
    assert_int_equal(strlen(text), c->n_layers);
    assert_int_equal(strlen(json_string_value(json_array_get(kinds, 0))), c->n_encoder);
    for (uint32_t i = 0; i < c->n_layers; i++)
        assert_int_equal(c->layers[i].moe, text[i] == 'M');
}

static void check_first(struct switch_fixture *f, const char *name)
{
    struct outcome o[MAX_SOURCES] = {{0}};
    struct moe_err err = {0};
    uint64_t n_dropped = 0;
    assert_ok(moe_experts_open_resident(&f->run.experts, f->run.model->pack, 0, NULL, NULL, &err),
              &err);
    open_session(f);
    f->run.session->observer.ctx = f;
    f->run.session->observer.routed = check_experts;
    allocate(f, o);
    for (uint32_t i = 0; i < f->n_sources; i++) {
        struct source *s = &f->sources[i];
        const json_t *layer;
        size_t l;
        f->at = s;
        encode_alone(f, i, &o[i]);
        for (uint32_t step = 0; step < STEPS; step++)
            decode(f, i, i + 1, step, 1, o);
        s->first = o[i];
        check_encoded(f, s);
        check_logits(f, s);
        json_array_foreach(json_object_get(s->reference, "dropped"), l, layer) n_dropped +=
            json_array_size(layer);
    }
    assert_int_equal(f->n_dropped, n_dropped);
    assert_int_equal(f->run.session->stats.encode.over_capacity, n_dropped);
    assert_true(moe_stats_exact(&f->run.session->stats));
    close_session(f);
    print_message("# %s: encoder within %.2g, logits within %.2g of the largest; %u choices, %u of "
                  "them beyond a capacity, weights within %.2g\n",
                  name, f->worst_output, f->worst_logit, f->n_compared, f->n_dropped,
                  f->worst_weight);
    assert_true(f->worst_output < 1e-4 && f->worst_logit < 1e-4 && f->worst_weight < 1e-5);
    assert_true(f->n_compared > 150);
}

/* ---- The same however it is computed ---- */

static void check_same(struct switch_fixture *f, struct outcome *o, const char *what)
{
    uint64_t hidden = f->run.model->config.hidden;
    for (uint32_t i = 0; i < f->n_sources; i++) {
        const struct source *s = &f->sources[i];
        if (memcmp(o[i].encoded, s->first.encoded, s->n * hidden * sizeof(float)))
            fail_msg("%s: the output of source %u differs", what, i);
        if (memcmp(o[i].logits, s->first.logits, STEPS * stride_of(f) * sizeof(float)))
            fail_msg("%s: logits on source %u differ", what, i);
        free(o[i].encoded);
        free(o[i].logits);
    }
}

/* Sources in one pass, texts side by side, `part` tokens at a time. */
static void check_side_by_side(struct switch_fixture *f, uint32_t part, const char *what)
{
    struct outcome o[MAX_SOURCES] = {{0}};
    allocate(f, o);
    encode_together(f, o);
    for (uint32_t step = 0; step < STEPS; step += part)
        decode(f, 0, f->n_sources, step, part, o);
    check_same(f, o, what);
}

static struct moe_statistics *statistics_of(const struct switch_fixture *f)
{
    struct moe_err err = {0};
    struct moe_statistics *statistics = NULL;
    struct moe_statistics_shape shape = moe_model_statistics_shape(f->run.model);
    uint32_t chosen[2 * STEPS];
    const float weights[2 * STEPS] = {0};
    shape.max_tokens = STEPS;
    assert_ok(moe_statistics_new(&statistics, &shape, &err), &err);
    assert_ok(moe_statistics_begin(statistics, 1, &err), &err);
    for (uint32_t layer = 0; layer < shape.n_layers; layer++) {
        for (uint32_t i = 0; i < shape.top_k * STEPS; i++)
            chosen[i] = i * (layer + 3) % shape.n_experts;
        const struct moe_layer_observation seen = {.chosen = chosen, .weights = weights};
        moe_statistics_observe(statistics, layer, 0, STEPS, &seen);
    }
    assert_ok(moe_statistics_end(statistics, &err), &err);
    return statistics;
}

/* Room for two experts and those at work, as many as a row has. */
static void check_cached(struct switch_fixture *f, const char *name)
{
    struct moe_err err = {0};
    struct moe_strategy strategy;
    struct moe_statistics *statistics = statistics_of(f);
    const struct moe_pack *pack = f->run.model->pack;
    assert_true(moe_strategy_find(name, &strategy));
    assert_ok(moe_strategy_settle(&strategy, &err), &err);
    const struct moe_cache_options cache = {
        .strategy = &strategy,
        .statistics = statistics,
        .cache_bytes = 2 * moe_cache_slot_bytes(pack, 0),
        .n_working = 1 + f->run.model->config.top_k,
        .n_staging = 1,
        .loader = {.verify = true},
    };
    assert_ok(moe_experts_open_cached(&f->run.experts, pack, 1, &cache, NULL, &err), &err);
    open_session(f);
    assert_ok(moe_session_take_strategy(f->run.session, &strategy, statistics, 0, 0, &err), &err);
    check_side_by_side(f, 1, name);
    const struct moe_phase_stats all = moe_stats_all(&f->run.session->stats);
    assert_true(all.experts.misses > 50 && moe_stats_exact(&f->run.session->stats));
    close_session(f);
    moe_statistics_free(statistics);
}

static void fixture_equals_its_reference(void **state)
{
    const char *name = *state;
    struct switch_fixture f;
    struct moe_err err = {0};
    set_up_fixture(&f, name);
    check_kinds(&f);
    check_first(&f, name);
    assert_ok(moe_experts_open_resident(&f.run.experts, f.run.model->pack, 0, NULL, NULL, &err),
              &err);
    open_session(&f);
    check_side_by_side(&f, STEPS, "side by side, all tokens at once");
    check_side_by_side(&f, 1, "side by side, token by token");
    close_session(&f);
    check_cached(&f, "lru");
    check_cached(&f, "edgemoe");
    for (uint32_t i = 0; i < f.n_sources; i++) {
        free(f.sources[i].first.encoded);
        free(f.sources[i].first.logits);
    }
    json_decref(f.reference);
    fixture_close(&f.run);
}

static char *names[] = {"switch-a", "switch-b", "switch-c", "nllb-a", "nllb-b"};

int main(void)
{
    struct CMUnitTest tests[N_ITEMS(names)];
    char titles[N_ITEMS(names)][64];
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(names); i++) {
        snprintf(titles[i], sizeof titles[i], "%s equals its reference", names[i]);
        tests[i] = (struct CMUnitTest){.name = titles[i],
                                       .test_func = fixture_equals_its_reference,
                                       .initial_state = names[i]};
    }
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return cmocka_run_group_tests_name("switch", tests, NULL, NULL);
}
