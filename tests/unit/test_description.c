/*
 * Every switch of a model's description, on random small models: what is computed is what the
 * description means (naive_model.h), and it is the same bit for bit however it is computed.
 */
#include "engine/engine.h"
#include "engine/generate.h"

#include "random_fixture.h"

enum { N_IDS = 40, N_MODELS = 150, BATCH = 64 };

static uint32_t ids[N_IDS];

static void draw_ids(const struct moe_config *c, uint64_t seed)
{
    uint64_t random = seed + 1000;
    for (int i = 0; i < N_IDS; i++)
        ids[i] = random_below(&random, c->vocab);
}

/* Logits of all ids, in passes of `part` rows. */
static float *run(struct moe_session *s, uint32_t part)
{
    struct moe_err err = {0};
    uint64_t stride = moe_logits_stride(&s->model->config);
    float *logits = calloc(N_IDS * stride, sizeof *logits);
    for (uint32_t first = 0; first < N_IDS; first += part) {
        struct moe_row rows[N_IDS];
        uint32_t n = N_IDS - first < part ? N_IDS - first : part;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, first + i, ids[first + i], N_IDS};
        assert_ok(moe_forward(s, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n, 0,
                              s->model->config.n_layers, NULL, NULL, &err),
                  &err);
        assert_ok(moe_logits(s, 0, n, logits + first * stride, &err), &err);
    }
    return logits;
}

/* The same with a row of another sequence, at another position, before each. */
static float *run_in_company(struct moe_session *s, uint32_t part)
{
    struct moe_err err = {0};
    const struct moe_config *c = &s->model->config;
    uint64_t stride = moe_logits_stride(c);
    float *logits = calloc(N_IDS * stride, sizeof *logits);
    float *both = calloc(2 * N_IDS * stride, sizeof *both);
    for (uint32_t first = 0; first < N_IDS; first += part) {
        struct moe_row rows[2 * N_IDS];
        uint32_t n = N_IDS - first < part ? N_IDS - first : part;
        for (uint32_t i = 0; i < n; i++) {
            rows[2 * i] = (struct moe_row){0, i, ids[N_IDS - 1 - i], 0};
            rows[2 * i + 1] = (struct moe_row){1, first + i, ids[first + i], N_IDS};
        }
        assert_ok(moe_forward(s, MOE_PREFILL, rows, 2 * n, 0, c->n_layers, NULL, NULL, &err), &err);
        assert_ok(moe_logits(s, 0, 2 * n, both, &err), &err);
        for (uint32_t i = 0; i < n; i++)
            memcpy(logits + (first + i) * stride, both + (2 * i + 1) * stride,
                   stride * sizeof *both);
    }
    free(both);
    return logits;
}

static void open_resident(struct opened *o, uint32_t context, uint16_t kv_kind)
{
    const struct moe_session_options options = {
        .context = N_IDS, .n_sequences = 2, .batch = BATCH, .kv_kind = kv_kind};
    open_pack(o, context, &options);
}

/* ---- Right ---- */

/* The largest difference, relative to the largest logit. */
static double largest_difference(const struct naive *want, const float *logits)
{
    const struct moe_config *c = &want->m->c;
    double difference = 0, largest = 0;
    for (uint32_t p = 0; p < want->n; p++)
        for (uint32_t i = 0; i < c->vocab; i++) {
            double w = want->logits[p * c->vocab + i];
            difference = fmax(difference, fabs(w - (double)logits[p * moe_logits_stride(c) + i]));
            largest = fmax(largest, fabs(w));
        }
    return difference / largest;
}

static void agrees_with_the_naive_model(void **state)
{
    uint32_t n_compared = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= N_MODELS; seed++) {
        struct random_model m;
        struct naive want;
        struct opened o;
        random_static_draw(&m, seed);
        draw_ids(&m.c, seed);
        random_model_write(&m, 32, path);
        naive_run(&want, &m, ids, N_IDS);
        open_resident(&o, 0, MOE_LAYOUT_F32);
        struct watched w = {.want = &want};
        o.session->observer.ctx = &w;
        o.session->observer.routed = compare_choices;
        float *logits = run(o.session, N_IDS - 1); /* the last one alone */
        double difference = largest_difference(&want, logits);
        if (want.margin > 1e-5) { /* else rounding may have chosen another expert */
            n_compared++;
            worst = fmax(worst, difference);
            if (!(difference < 1e-4) || w.n_differing)
                fail_msg("%s: logits differ by %g, %u weights or probabilities",
                         describe(&m.c, seed), difference, w.n_differing);
        }
        free(logits);
        close_opened(&o);
        naive_free(&want);
        random_model_free(&m);
    }
    print_message("# %u of %d models compared, largest relative difference %.2g\n", n_compared,
                  N_MODELS, worst);
    assert_true(n_compared > N_MODELS / 2);
}

/* ---- LongRoPE ---- */

/* Draws a model with two sets of rotary frequencies, and its pack; *seed is the next to be tried.
 * No expert is chosen by a margin that rounding could turn around. */
static void draw_long_rope(struct random_model *m, uint64_t *seed, uint32_t original)
{
    for (;; ++*seed) {
        struct naive t;
        random_model_draw(m, *seed);
        draw_ids(&m->c, *seed);
        if (m->c.rope_original) {
            m->c.rope_original = original;
            naive_run(&t, m, ids, N_IDS);
            bool clear = t.margin > 1e-4;
            naive_free(&t);
            if (clear)
                break;
        }
        random_model_free(m);
    }
    random_model_write(m, 32, path);
    ++*seed;
}

/* On either side of the text's length, whatever context there is room for. */
static void length_chooses_the_rotary_set(void **state)
{
    uint64_t seed = 1;
    for (int i = 0; i < 8; i++) {
        struct random_model m;
        struct naive want;
        draw_long_rope(&m, &seed, i % 2 ? N_IDS : N_IDS - 1);
        naive_run(&want, &m, ids, N_IDS);
        float *first = NULL;
        for (uint32_t context = N_IDS; context <= N_IDS + 1; context++) {
            struct opened o;
            open_resident(&o, context, MOE_LAYOUT_F32);
            float *logits = run(o.session, context == N_IDS ? N_IDS : 3);
            assert_true(largest_difference(&want, logits) < 1e-4);
            if (!first) {
                first = logits;
            } else {
                assert_memory_equal(first, logits,
                                    N_IDS * moe_logits_stride(&m.c) * sizeof *logits);
                free(logits);
            }
            close_opened(&o);
        }
        free(first);
        naive_free(&want);
        random_model_free(&m);
    }
}

/* The likeliest token after a text; *by: its lead over the next one, relative to the largest. */
static uint32_t likeliest(const struct random_model *m, const uint32_t *text, uint32_t n,
                          double *by)
{
    struct naive t;
    uint32_t best = 0;
    double largest = 0, second = -INFINITY;
    naive_run(&t, m, text, n);
    const double *logits = t.logits + (uint64_t)(n - 1) * m->c.vocab;
    for (uint32_t i = 0; i < m->c.vocab; i++) {
        largest = fmax(largest, fabs(logits[i]));
        best = logits[i] > logits[best] ? i : best;
    }
    for (uint32_t i = 0; i < m->c.vocab; i++)
        if (i != best)
            second = fmax(second, logits[i]);
    *by = (logits[best] - second) / largest;
    naive_free(&t);
    return best;
}

/* Greedy tokens from a text on. */
static void generate(struct moe_session *s, struct moe_ids *text, uint32_t n_new)
{
    struct moe_err err = {0};
    struct moe_sampler *sampler = NULL;
    const struct moe_sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    const struct moe_generate_options options = {.max_tokens = n_new, .ignore_eos = true};
    enum moe_stop_reason why;
    assert_ok(moe_sampler_new(&sampler, &greedy, s->model->config.vocab, &err), &err);
    assert_ok(moe_generate(s, sampler, text, &options, &why, &err), &err);
    assert_int_equal(why, MOE_STOP_LENGTH);
    moe_sampler_free(sampler);
}

/* A text that grows beyond the original context goes on as one that was never shorter, and a short
 * one after it as one that was never longer: by batches of all sizes. */
static void text_grows_beyond_its_original_context(void **state)
{
    enum { PROMPT = 14, ORIGINAL = 17, NEW = 8 };
    static const uint32_t batches[] = {BATCH, 1, 5};
    uint64_t seed = 100;
    struct moe_err err = {0};
    for (int i = 0; i < 6; i++) {
        struct random_model m;
        struct moe_ids text = {0};
        draw_long_rope(&m, &seed, ORIGINAL);
        struct opened o;
        open_resident(&o, 0, MOE_LAYOUT_F32);
        moe_session_close(o.session);
        const struct moe_session_options options = {.context = N_IDS,
                                                    .batch = batches[i % N_ITEMS(batches)]};
        assert_ok(moe_session_open(&o.session, o.model, o.experts, &options, &err), &err);
        for (uint32_t t = 0; t < PROMPT; t++)
            assert_ok(moe_ids_push(&text, ids[t], &err), &err);
        for (int turn = 0; turn < 2; turn++) {
            generate(o.session, &text, NEW);
            assert_int_equal(text.n, PROMPT + NEW);
            for (uint32_t n = PROMPT; n < PROMPT + NEW; n++) {
                double by;
                uint32_t best = likeliest(&m, text.ids, n, &by);
                if (by > 1e-3)
                    assert_int_equal(text.ids[n], best);
            }
            text.n = PROMPT; /* the cache has all of it, as of a longer text */
        }
        moe_ids_release(&text);
        close_opened(&o);
        random_model_free(&m);
    }
}

/* ---- The same however it is computed ---- */

static void assert_same(const struct random_model *m, uint64_t seed, const float *want, float *got,
                        const char *what)
{
    if (memcmp(want, got, N_IDS * moe_logits_stride(&m->c) * sizeof *want) != 0)
        fail_msg("%s: %s: logits differ", describe(&m->c, seed), what);
    free(got);
}

/* Behind a cache that never holds a layer's experts. */
static float *run_cached(const struct opened *o, uint32_t part, uint16_t kv_kind)
{
    struct moe_err err = {0};
    struct moe_experts *experts = NULL;
    struct moe_session *s = NULL;
    const struct moe_session_options options = {
        .context = N_IDS, .batch = BATCH, .kv_kind = kv_kind};
    const struct moe_cache_options cache = {
        .cache_bytes = 2 * moe_cache_slot_bytes(o->model->pack, 0),
        .n_working = 1,
        .loader = {.verify = true},
    };
    assert_ok(moe_experts_open_cached(&experts, o->model->pack, o->model->config.top_k, &cache,
                                      NULL, &err),
              &err);
    assert_ok(moe_session_open(&s, o->model, experts, &options, &err), &err);
    float *logits = run(s, part);
    moe_session_close(s);
    moe_experts_close(experts);
    return logits;
}

static void check_bits(uint64_t seed)
{
    static const int bits[] = {32, 16, 8, 4};
    static const uint32_t parts[] = {1, 3, 8, 17};
    struct moe_err err = {0};
    uint64_t random = seed;
    struct random_model m;
    struct opened o;
    uint16_t kv_kind = random_chance(&random, 3) ? MOE_LAYOUT_F16 : MOE_LAYOUT_F32;
    uint32_t part = parts[random_below(&random, N_ITEMS(parts))];
    random_static_draw(&m, seed);
    draw_ids(&m.c, seed);
    random_model_write(&m, bits[random_below(&random, N_ITEMS(bits))], path);
    open_resident(&o, 0, kv_kind);
    float *want = run(o.session, N_IDS);
    for (uint64_t i = 0; i < N_IDS * moe_logits_stride(&m.c); i++)
        assert_true(isfinite(want[i]));

    assert_same(&m, seed, want, run(o.session, part), "batch split");
    assert_same(&m, seed, want, run_in_company(o.session, part), "other sequences in the batch");
    moe_par_set_threads(1);
    assert_same(&m, seed, want, run(o.session, 13), "one thread");
    moe_par_set_threads(2);
    assert_ok(moe_kern_select(MOE_CPU_SCALAR, &err), &err);
    assert_same(&m, seed, want, run(o.session, N_IDS), "reference kernels");
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    if (m.c.n_experts)
        assert_same(&m, seed, want, run_cached(&o, part, kv_kind), "behind a cache");
    free(want);
    close_opened(&o);
    random_model_free(&m);
}

static void nothing_else_changes_a_result(void **state)
{
    for (uint64_t seed = 1; seed <= N_MODELS; seed++)
        check_bits(seed);
}

/* ---- Models without experts ---- */

static void dense_models_run_under_every_strategy(void **state)
{
    struct moe_err err = {0};
    struct random_model m;
    uint64_t seed = 1;
    for (random_model_draw(&m, seed); m.c.n_experts; random_model_draw(&m, ++seed))
        random_model_free(&m);
    draw_ids(&m.c, seed);
    random_model_write(&m, 8, path);
    float *want = NULL;
    for (int i = -1; i < 0 || moe_strategy_name_at(i); i++) { /* -1: the engine chooses */
        struct moe_engine_options options = {.expert_memory_bytes = 4096};
        if (i >= 0)
            assert_true(moe_strategy_find(moe_strategy_name_at(i), &options.strategy));
        struct moe_engine *e = NULL;
        assert_ok(moe_engine_open(&e, path, &options, NULL, &err), &err);
        assert_true(e->strategy.resident);
        assert_int_equal(e->budget.all, 0);
        float *logits = run(e->session, 7);
        if (want)
            assert_same(&m, seed, want, logits, i < 0 ? "auto" : moe_strategy_name_at(i));
        else
            want = logits;
        moe_engine_close(e);
    }
    const struct moe_engine_options small = {.memory_bytes = 1 << 20};
    struct moe_engine *e = NULL;
    assert_fails(moe_engine_open(&e, path, &small, NULL, &err), MOE_ERR_LIMIT,
                 "the smallest that works", &err);
    free(want);
    random_model_free(&m);
}

/* ---- Packs that are not what they say ---- */

/* The first model that has biases on its experts, written as one without, and the reverse. */
static void biases_and_description_must_agree(void **state)
{
    struct moe_err err = {0};
    for (int biased = 0; biased < 2; biased++) {
        struct random_model m;
        struct moe_model *model = NULL;
        uint64_t seed = 1;
        for (random_model_draw(&m, seed); !m.c.n_experts || m.c.expert_bias != biased;
             random_model_draw(&m, ++seed))
            random_model_free(&m);
        struct random_model lie = m;
        lie.c.expert_bias = !biased;
        for (int e = 0; !biased && e < RANDOM_MAX_EXPERTS; e++)
            for (uint32_t layer = 0; layer < m.c.n_layers; layer++)
                for (int part = MOE_E_GATE_BIAS; part < MOE_E_N_PARTS; part++)
                    lie.expert[layer][e][part] = lie.expert[layer][e][MOE_E_UP];
        random_model_write_as(&lie, &m.c, 32, path);
        assert_fails(moe_model_open_directory(&model, path, &err), MOE_ERR_FORMAT, "expert class",
                     &err);
        random_model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_naive_model),
        cmocka_unit_test(length_chooses_the_rotary_set),
        cmocka_unit_test(text_grows_beyond_its_original_context),
        cmocka_unit_test(nothing_else_changes_a_result),
        cmocka_unit_test(dense_models_run_under_every_strategy),
        cmocka_unit_test(biases_and_description_must_agree),
    };
    return cmocka_run_group_tests_name("description", tests, set_up, tear_down);
}
