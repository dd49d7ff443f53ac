/*
 * Encoder and decoder, on random small models: what is computed is what the description means
 * (naive_model.h), the same bit for bit however it is computed, and nothing is taken over between
 * texts that attend to different sources.
 */
#include "infer/forward.h"
#include "infer/pass_ops.h"

#include "random_fixture.h"

enum { N_MODELS = 100, N_COMPUTED = 30, N_SOURCES = 3, N_IDS = 24, CONTEXT = 48, LONGEST = 40 };

/* Of the model at work: sources, which the decoders' texts attend to, one each. */
static uint32_t source_ids[N_SOURCES][LONGEST], n_source[N_SOURCES], ids[N_SOURCES][N_IDS];

static void draw(struct random_model *m, uint64_t seed)
{
    uint64_t random = seed + 1000;
    random_stacks_draw(m, seed);
    for (int s = 0; s < N_SOURCES; s++) {
        n_source[s] = 1 + random_below(&random, LONGEST);
        for (uint32_t i = 0; i < n_source[s]; i++)
            source_ids[s][i] = random_below(&random, m->c.vocab);
        for (uint32_t i = 0; i < N_IDS; i++)
            ids[s][i] = i ? random_below(&random, m->c.vocab) : m->c.decoder_start;
    }
}

static const struct moe_session_options options = {.context = CONTEXT,
                                                   .n_sequences = 2 * N_SOURCES,
                                                   .batch = N_SOURCES * LONGEST,
                                                   .n_sources = N_SOURCES};

static void open_resident(struct opened *o, uint16_t kv_kind)
{
    struct moe_session_options how = options;
    how.kv_kind = kv_kind;
    open_pack(o, 0, &how);
}

/* Appends the rows of source s as source `as`. */
static uint32_t put_source(struct moe_row *rows, uint32_t n, int s, uint32_t as)
{
    for (uint32_t i = 0; i < n_source[s]; i++)
        rows[n++] = (struct moe_row){as, i, source_ids[s][i], n_source[s]};
    return n;
}

/* ---- What a session computes ---- */

/* All outputs of a model: of its sources, and of the texts that attend to them. */
struct results {
    float *encoded[N_SOURCES], *logits[N_SOURCES];
};

static void free_results(struct results *r)
{
    for (int s = 0; s < N_SOURCES; s++) {
        free(r->encoded[s]);
        free(r->logits[s]);
    }
}

static uint64_t encoded_floats(const struct moe_config *c, int s)
{
    return (uint64_t)n_source[s] * c->hidden;
}

/* Ways to compute the same. */
struct how {
    const char *name;
    bool one_pass; /* all sources in one pass, in falling order; else each in its own */
    uint32_t part; /* rows of a text in a pass */
    bool together; /* the texts side by side; else one after the other */
    bool shared;   /* by two sequences each, the second with other ids; else by one */
};

static void encode(struct moe_session *s, bool one_pass, struct results *r)
{
    struct moe_err err = {0};
    const struct moe_config *c = &s->model->config;
    struct moe_row rows[N_SOURCES * LONGEST];
    float *out = calloc((uint64_t)N_SOURCES * LONGEST * c->hidden, sizeof *out), *from = out;
    uint32_t n = 0;
    for (int i = N_SOURCES - 1; i >= 0; i--) {
        n = put_source(rows, n, i, (uint32_t)i);
        if (one_pass && i > 0)
            continue;
        assert_ok(moe_encode(s, rows, n, out, &err), &err);
        n = 0;
        if (one_pass)
            break;
        memcpy(r->encoded[i] = calloc(encoded_floats(c, i), sizeof *out), out,
               encoded_floats(c, i) * sizeof *out);
    }
    for (int i = N_SOURCES - 1; one_pass && i >= 0; i--) {
        memcpy(r->encoded[i] = calloc(encoded_floats(c, i), sizeof *out), from,
               encoded_floats(c, i) * sizeof *out);
        from += encoded_floats(c, i);
    }
    free(out);
}

/* One pass over the next rows of the texts [first_text, end_text), which have n_done. */
static void decode_part(struct moe_session *s, const struct how *how, int first_text, int end_text,
                        uint32_t n_done, struct results *r)
{
    struct moe_err err = {0};
    const struct moe_config *c = &s->model->config;
    uint64_t stride = moe_logits_stride(c);
    struct moe_row rows[2 * N_SOURCES * N_IDS];
    uint32_t n = N_IDS - n_done < how->part ? N_IDS - n_done : how->part, n_rows = 0;
    float *logits = calloc(2ull * N_SOURCES * N_IDS * stride, sizeof *logits);
    for (int t = first_text; t < end_text; t++)
        for (uint32_t i = n_done; i < n_done + n; i++) {
            rows[n_rows++] = (struct moe_row){(uint32_t)t, i, ids[t][i], 0};
            if (how->shared)
                rows[n_rows++] =
                    (struct moe_row){N_SOURCES + (uint32_t)t, i, ids[t][N_IDS - 1 - i], 0};
        }
    assert_ok(moe_forward(s, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n_rows, c->n_encoder,
                          c->n_layers, NULL, NULL, &err),
              &err);
    assert_ok(moe_logits(s, 0, n_rows, logits, &err), &err);
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i].sequence < N_SOURCES)
            memcpy(r->logits[rows[i].sequence] + rows[i].position * stride, logits + i * stride,
                   stride * sizeof *logits);
    free(logits);
}

static void compute(struct moe_session *s, const struct how *how, struct results *r)
{
    uint64_t stride = moe_logits_stride(&s->model->config);
    encode(s, how->one_pass, r);
    for (int t = 0; t < N_SOURCES; t++) {
        r->logits[t] = calloc(N_IDS * stride, sizeof(float));
        moe_sequence_attend(s, N_SOURCES + (uint32_t)t, (uint32_t)t);
    }
    for (int t = 0; t < (how->together ? 1 : N_SOURCES); t++)
        for (uint32_t n_done = 0; n_done < N_IDS; n_done += how->part)
            decode_part(s, how, t, how->together ? N_SOURCES : t + 1, n_done, r);
}

/* ---- Right ---- */

static double difference(const double *want, uint64_t want_stride, const float *got,
                         uint64_t got_stride, uint32_t n_rows, uint32_t width)
{
    double most = 0, largest = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < width; i++) {
            double w = want[r * want_stride + i];
            most = fmax(most, fabs(w - (double)got[r * got_stride + i]));
            largest = fmax(largest, fabs(w));
        }
    return most / largest;
}

static void agrees_with_the_naive_model(void **state)
{
    const struct how how = {.one_pass = true, .part = N_IDS - 1, .together = true};
    uint32_t n_compared = 0, n_over = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= N_MODELS; seed++) {
        struct random_model m;
        struct naive encoders[N_SOURCES], decoders[N_SOURCES];
        struct opened o;
        struct results r;
        double margin = 1, most = 0;
        uint32_t over = 0;
        draw(&m, seed);
        random_model_write(&m, 32, path);
        for (int s = 0; s < N_SOURCES; s++) {
            naive_encode(&encoders[s], &m, source_ids[s], n_source[s]);
            naive_decode(&decoders[s], &m, &encoders[s], ids[s], N_IDS);
            margin = fmin(margin, fmin(encoders[s].margin, decoders[s].margin));
            over += encoders[s].n_over;
        }
        open_resident(&o, MOE_LAYOUT_F32);
        struct watched w = {.want = encoders, .decoders = decoders};
        o.session->observer.ctx = &w;
        o.session->observer.routed = compare_choices;
        compute(o.session, &how, &r);
        for (int s = 0; s < N_SOURCES; s++) {
            most = fmax(most, difference(encoders[s].x, m.c.hidden, r.encoded[s], m.c.hidden,
                                         n_source[s], m.c.hidden));
            most = fmax(most, difference(decoders[s].logits, m.c.vocab, r.logits[s],
                                         moe_logits_stride(&m.c), N_IDS, m.c.vocab));
        }
        if (margin > 1e-5) { /* else rounding may have chosen another expert */
            const struct moe_stats *stats = &o.session->stats;
            n_compared++;
            n_over += over;
            worst = fmax(worst, most);
            if (!(most < 1e-4) || w.n_differing)
                fail_msg("%s: results differ by %g, %u choices", describe(&m.c, seed), most,
                         w.n_differing);
            assert_int_equal(w.n_over, over);
            assert_int_equal(stats->encode.over_capacity, over);
            assert_int_equal(stats->encode.experts.activations + over,
                             (uint64_t)(n_source[0] + n_source[1] + n_source[2]) * m.c.top_k *
                                 m.c.layers[m.c.n_encoder].moe_index);
            assert_int_equal(stats->encode.tokens, n_source[0] + n_source[1] + n_source[2]);
            assert_int_equal(stats->prefill.over_capacity + stats->decode.over_capacity, 0);
            assert_int_equal(stats->prefill.tokens + stats->decode.tokens, N_SOURCES * N_IDS);
            assert_true(moe_stats_exact(stats));
        }
        free_results(&r);
        close_opened(&o);
        for (int s = 0; s < N_SOURCES; s++) {
            naive_free(&encoders[s]);
            naive_free(&decoders[s]);
        }
        random_model_free(&m);
    }
    print_message("# %u of %d models compared, largest relative difference %.2g, %u choices beyond "
                  "a capacity\n",
                  n_compared, N_MODELS, worst, n_over);
    assert_true(n_compared > N_MODELS / 2 && n_over > 100);
}

/* ---- The same however it is computed ---- */

static void assert_same(const struct random_model *m, uint64_t seed, const struct results *want,
                        struct results *got, const char *what)
{
    for (int s = 0; s < N_SOURCES; s++) {
        if (memcmp(want->encoded[s], got->encoded[s], encoded_floats(&m->c, s) * sizeof(float)))
            fail_msg("%s: %s: source %d differs", describe(&m->c, seed), what, s);
        if (memcmp(want->logits[s], got->logits[s],
                   N_IDS * moe_logits_stride(&m->c) * sizeof(float)))
            fail_msg("%s: %s: logits differ", describe(&m->c, seed), what);
    }
    free_results(got);
}

static struct {
    uint64_t misses, predicted, known;
} n_cached; /* of all caches */

/* Of a text of random choices: strategies need some. */
static struct moe_statistics *some_statistics(const struct moe_model *model, uint64_t seed)
{
    enum { N = 16 };
    struct moe_err err = {0};
    struct moe_statistics *statistics = NULL;
    struct moe_statistics_shape shape = moe_model_statistics_shape(model);
    uint64_t random = seed;
    uint32_t chosen[N * 2];
    const float weights[N * 2] = {0};
    shape.max_tokens = N;
    assert_ok(moe_statistics_new(&statistics, &shape, &err), &err);
    assert_ok(moe_statistics_begin(statistics, seed, &err), &err);
    for (uint32_t layer = 0; layer < shape.n_layers; layer++) {
        for (uint32_t i = 0; i < N * shape.top_k; i++)
            chosen[i] = i % shape.top_k ? (chosen[i - 1] + 1) % shape.n_experts
                                        : random_below(&random, shape.n_experts);
        const struct moe_layer_observation seen = {.chosen = chosen, .weights = weights};
        moe_statistics_observe(statistics, layer, 0, N, &seen);
    }
    assert_ok(moe_statistics_end(statistics, &err), &err);
    return statistics;
}

/* Computes behind a cache of a few slots, with what the strategy predicts. */
static void compute_cached(struct opened *o, const char *name, const struct how *how,
                           const struct moe_session_options *session, struct results *r)
{
    struct moe_err err = {0};
    struct moe_strategy s;
    struct moe_statistics *statistics = NULL;
    assert_true(moe_strategy_find(name, &s));
    if (strcmp(name, "lru") != 0)
        statistics = some_statistics(o->model, 7);
    assert_ok(moe_strategy_settle(&s, &err), &err);
    const struct moe_cache_options cache = {
        .strategy = &s,
        .statistics = statistics,
        .cache_bytes = 4 * moe_cache_slot_bytes(o->model->pack, 0),
        .n_working = 4,
        .n_staging = 2,
        .config = &o->model->config,
        .loader = {.verify = true},
    };
    moe_session_close(o->session);
    moe_experts_close(o->experts);
    assert_ok(moe_experts_open_cached(&o->experts, o->model->pack, o->model->config.top_k, &cache,
                                      NULL, &err),
              &err);
    open_session(o, session);
    assert_ok(moe_session_take_strategy(o->session, &s, statistics, 0, 0, &err), &err);
    compute(o->session, how, r);
    assert_true(moe_stats_exact(&o->session->stats));
    const struct moe_phase_stats all = moe_stats_all(&o->session->stats);
    n_cached.misses += all.experts.misses;
    n_cached.predicted += all.experts.predicted;
    n_cached.known += all.experts.known_prefetches;
    moe_session_drop_strategy(o->session);
    moe_statistics_free(statistics);
}

static void check_bits(uint64_t seed)
{
    static const struct how ways[] = {
        {.name = "sources in one pass", .one_pass = true, .part = N_IDS},
        {.name = "token by token", .part = 1},
        {.name = "texts side by side", .one_pass = true, .part = 5, .together = true},
        {.name = "side by side, token by token", .part = 1, .together = true},
        {.name = "two sequences on a source", .part = 7, .together = true, .shared = true},
    };
    static const int bits[] = {32, 16, 8, 4};
    const struct how first = {.part = N_IDS};
    struct moe_err err = {0};
    struct random_model m;
    struct opened o;
    struct results want, r;
    draw(&m, seed);
    uint16_t kv_kind = seed % 3 ? MOE_LAYOUT_F32 : MOE_LAYOUT_F16;
    random_model_write(&m, bits[seed % N_ITEMS(bits)], path);
    open_resident(&o, kv_kind);
    compute(o.session, &first, &want);
    for (unsigned i = 0; i < N_ITEMS(ways); i++) {
        compute(o.session, &ways[i], &r);
        assert_same(&m, seed, &want, &r, ways[i].name);
    }
    moe_par_set_threads(1);
    compute(o.session, &ways[2], &r);
    assert_same(&m, seed, &want, &r, "one thread");
    moe_par_set_threads(2);
    assert_ok(moe_kern_select(MOE_CPU_SCALAR, &err), &err);
    compute(o.session, &ways[0], &r);
    assert_same(&m, seed, &want, &r, "reference kernels");
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    struct moe_session_options how = options;
    how.kv_kind = kv_kind;
    how.context = N_IDS; /* with other blocks, and smaller tables */
    how.source_context = LONGEST;
    moe_session_close(o.session);
    open_session(&o, &how);
    compute(o.session, &ways[1], &r);
    assert_same(&m, seed, &want, &r, "another context");
    static const char *const strategies[] = {"lru", "edgemoe", "prefetch"};
    uint32_t n_encoder = m.c.layers[m.c.n_encoder].moe_index;
    uint32_t n_decoder = m.c.n_moe_layers - n_encoder;
    /* There are statistics of decoders with experts alone. */
    uint32_t n_ways = n_decoder ? N_ITEMS(strategies) : n_encoder ? 1 : 0;
    for (uint32_t i = 0; i < n_ways; i++) {
        compute_cached(&o, strategies[i], &ways[1 + i], &how, &r);
        assert_same(&m, seed, &want, &r, strategies[i]);
    }
    free_results(&want);
    close_opened(&o);
    random_model_free(&m);
}

static void nothing_else_changes_a_result(void **state)
{
    for (uint64_t seed = 1; seed <= N_COMPUTED; seed++)
        check_bits(seed);
    assert_true(n_cached.misses > 1000 && n_cached.predicted > 1000 && n_cached.known > 200);
}

/* The encoder through some of its layers, and on from there. */
static void an_encoder_goes_on_from_its_states(void **state)
{
    struct moe_err err = {0};
    for (uint64_t seed = 1, n = 0; n < 5; seed++) {
        struct random_model m;
        struct opened o;
        struct moe_row rows[LONGEST];
        draw(&m, seed);
        if (m.c.n_encoder < 2) {
            random_model_free(&m);
            continue;
        }
        n++;
        random_model_write(&m, 32, path);
        open_resident(&o, MOE_LAYOUT_F32);
        float *want = calloc(encoded_floats(&m.c, 0), sizeof *want);
        float *states = calloc(encoded_floats(&m.c, 0), sizeof *states);
        uint32_t n_rows = put_source(rows, 0, 0, 0);
        assert_ok(moe_encode(o.session, rows, n_rows, want, &err), &err);
        assert_ok(moe_forward(o.session, MOE_ENCODE, rows, n_rows, 0, 1, NULL, states, &err), &err);
        const struct moe_row decoded = {0, 0, m.c.decoder_start, 0};
        assert_fails(moe_forward(o.session, MOE_DECODE, &decoded, 1, m.c.n_encoder, m.c.n_layers,
                                 NULL, NULL, &err),
                     MOE_ERR_USAGE, "not encoded", &err);
        assert_ok(
            moe_forward(o.session, MOE_ENCODE, rows, n_rows, 1, m.c.n_encoder, states, NULL, &err),
            &err);
        assert_ok(moe_encode_keep(o.session, rows, n_rows, states, &err), &err);
        assert_memory_equal(want, states, encoded_floats(&m.c, 0) * sizeof *want);
        assert_ok(moe_forward(o.session, MOE_DECODE, &decoded, 1, m.c.n_encoder, m.c.n_layers, NULL,
                              NULL, &err),
                  &err);
        free(want);
        free(states);
        close_opened(&o);
        random_model_free(&m);
    }
}

/* ---- Texts that begin alike ---- */

/* Computes the first N_IDS - 1 of text 0 as a sequence; how many were known. */
static uint32_t begin(struct moe_session *s, uint32_t sequence, uint32_t source)
{
    struct moe_err err = {0};
    const struct moe_config *c = &s->model->config;
    struct moe_row rows[N_IDS];
    uint32_t n_known;
    moe_sequence_rewind(s, sequence, 0);
    moe_sequence_attend(s, sequence, source);
    assert_int_equal(moe_sequence_known(s, 0, ids[0], N_IDS), 0);
    assert_ok(moe_sequence_sync(s, sequence, ids[0], N_IDS, N_IDS, &n_known, &err), &err);
    for (uint32_t i = n_known; i < N_IDS; i++)
        rows[i - n_known] = (struct moe_row){sequence, i, ids[0][i], N_IDS};
    assert_ok(moe_forward(s, MOE_PREFILL, rows, N_IDS - n_known, c->n_encoder, c->n_layers, NULL,
                          NULL, &err),
              &err);
    return n_known;
}

static void texts_are_known_to_those_on_the_same_encoding(void **state)
{
    struct moe_err err = {0};
    struct random_model m;
    struct opened o;
    struct results r;
    struct moe_row rows[LONGEST];
    draw(&m, 1);
    random_model_write(&m, 32, path);
    open_resident(&o, MOE_LAYOUT_F32);
    struct moe_session *s = o.session;
    encode(s, true, &r);
    assert_int_equal(begin(s, 0, 0), 0);
    assert_int_equal(begin(s, 1, 1), 0); /* another source, the same ids */
    assert_int_equal(begin(s, 2, 0), N_IDS - 1);
    assert_int_equal(begin(s, 3, 1), N_IDS - 1);
    /* Encoded anew, even if it is the same again. */
    assert_ok(moe_encode(s, rows, put_source(rows, 0, 1, 0), NULL, &err), &err);
    assert_int_equal(begin(s, 4, 0), 0);
    assert_int_equal(begin(s, 5, 0), N_IDS - 1);
    assert_int_equal(begin(s, 3, 1), N_IDS - 1);
    free(r.encoded[0]);
    free(r.encoded[1]);
    free(r.encoded[2]);
    close_opened(&o);
    random_model_free(&m);
}

/* ---- Refused ---- */

static void misuse_is_refused(void **state)
{
    struct moe_err err = {0};
    struct random_model m;
    struct opened o;
    struct moe_row rows[2 * LONGEST];
    uint64_t seed = 1;
    for (draw(&m, seed); n_source[0] < 3; draw(&m, ++seed))
        random_model_free(&m);
    random_model_write(&m, 32, path);
    open_resident(&o, MOE_LAYOUT_F32);
    struct moe_session *s = o.session;
    uint32_t n_encoder = m.c.n_encoder, n_layers = m.c.n_layers, n = put_source(rows, 0, 0, 0);

    assert_fails(moe_forward(s, MOE_PREFILL, rows, n, 0, n_layers, NULL, NULL, &err), MOE_ERR_USAGE,
                 "are not the decoder's", &err);
    assert_fails(moe_forward(s, MOE_ENCODE, rows, n, 0, n_layers, NULL, NULL, &err), MOE_ERR_USAGE,
                 "are not the encoder's", &err);
    assert_fails(moe_forward(s, MOE_DECODE, rows, 1, n_encoder, n_layers, NULL, NULL, &err),
                 MOE_ERR_USAGE, "attends to source 0, which is not encoded", &err);
    assert_fails(moe_encode(s, rows, n - 1, NULL, &err), MOE_ERR_USAGE, "whole and in order", &err);
    assert_fails(moe_encode(s, rows + 1, n - 1, NULL, &err), MOE_ERR_USAGE, "whole and in order",
                 &err);
    uint32_t twice = put_source(rows, n, 0, 0);
    assert_fails(moe_encode(s, rows, twice, NULL, &err), MOE_ERR_USAGE, "once", &err);
    struct moe_row swapped = rows[1];
    rows[1] = rows[2];
    rows[2] = swapped;
    assert_fails(moe_encode(s, rows, n, NULL, &err), MOE_ERR_USAGE, "whole and in order", &err);
    rows[2] = rows[1];
    rows[1] = swapped;
    rows[1].length = n + 1;
    assert_fails(moe_encode(s, rows, n, NULL, &err), MOE_ERR_USAGE, "whole and in order", &err);
    rows[1].length = n;
    rows[0].sequence = N_SOURCES;
    assert_fails(moe_encode(s, rows, n, NULL, &err), MOE_ERR_USAGE, "source 3", &err);
    rows[0].sequence = 0;
    assert_ok(moe_encode(s, rows, n, NULL, &err), &err);
    assert_ok(moe_forward(s, MOE_DECODE, rows, 1, n_encoder, n_layers, NULL, NULL, &err), &err);
    assert_fails(moe_encode(s, rows, n - 1, NULL, &err), MOE_ERR_USAGE, "whole", &err);
    /* What is refused changes nothing. */
    assert_ok(moe_forward(s, MOE_DECODE, rows, 1, n_encoder, n_layers, NULL, NULL, &err), &err);
    close_opened(&o);
    random_model_free(&m);
}

static void options_fit_the_model(void **state)
{
    struct moe_err err = {0};
    struct random_model m;
    struct opened o = {0};
    draw(&m, 1);
    random_model_write(&m, 32, path);
    assert_ok(moe_model_open(&o.model, path, 0, NULL, &err), &err);
    struct moe_session_options how = {.context = 8, .batch = 4, .source_context = 17};
    assert_ok(moe_experts_open_resident(&o.experts, o.model->pack, 0, NULL, NULL, &err), &err);
    open_session(&o, &how);
    assert_int_equal(o.session->batch, 17); /* a source stands in one pass */
    assert_int_equal(o.session->n_sources, 1);
    moe_session_close(o.session);
    how.source_context = 0;
    how.n_sequences = 5;
    open_session(&o, &how);
    assert_int_equal(o.session->source_context, 8);
    assert_int_equal(o.session->n_sources, 5);

    uint64_t few = moe_session_bytes(&m.c, &how), kv = moe_session_kv_bytes(&m.c, &how);
    how.n_sources = 500;
    uint64_t more = moe_session_kv_bytes(&m.c, &how) - kv;
    uint64_t positions = (uint64_t)(m.c.n_layers - m.c.n_encoder) * m.c.n_kv_heads * 16 * 495;
    assert_int_equal(more, positions * (m.c.head_dim + moe_padded(m.c.head_dim)) * sizeof(float));
    assert_true(moe_session_bytes(&m.c, &how) >= few + more);
    moe_session_close(o.session);
    o.session = NULL;
    how.source_context = m.c.context_max + 1;
    assert_fails(moe_session_open(&o.session, o.model, o.experts, &how, &err), MOE_ERR_USAGE,
                 "more than the model's 64", &err);
    how.source_context = 0;
    how.gpu = (struct moe_gpu *)&m; /* which nobody looks at */
    assert_fails(moe_session_open(&o.session, o.model, o.experts, &how, &err), MOE_ERR_UNSUPPORTED,
                 "--device cpu", &err);
    close_opened(&o);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_naive_model),
        cmocka_unit_test(nothing_else_changes_a_result),
        cmocka_unit_test(an_encoder_goes_on_from_its_states),
        cmocka_unit_test(texts_are_known_to_those_on_the_same_encoding),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(options_fit_the_model),
    };
    return cmocka_run_group_tests_name("encoder", tests, set_up, tear_down);
}
