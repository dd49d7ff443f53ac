/*
 * What the tests of strategies share: the bundled model as a pack of two precisions, statistics of
 * it, documents, an engine for any strategy in words, and a document run through it.
 */
#ifndef TESTS_STRATEGIES_FIXTURE_H
#define TESTS_STRATEGIES_FIXTURE_H

#include "base/file.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "tune/documents.h"
#include "tune/probe.h"

#include "model_fixture.h"

enum { LAYERS = 12, EXPERTS = 32, TOP_K = 4, HIDDEN = 192 };
enum { N_PROMPT = 24, N_DECODE = 8, N_ALL = N_PROMPT + N_DECODE, N_DOCUMENTS = 2 };
enum { N_CALIBRATION = 12, CALIBRATION_TOKENS = 64 };

struct strategies {
    char pack[128];
    uint8_t *copy; /* of the pack */
    uint64_t copy_bytes;
    struct moe_statistics *statistics;
    uint32_t ids[N_DOCUMENTS][N_ALL];
    uint64_t slot_bytes, token_bytes; /* of an expert; of all that a token visits */
    uint64_t logits_stride;
};

/* ---- Strategies in words, engines ---- */

/* "hobbit on-miss=load skip-below=0": a strategy, and parts that differ. */
static inline void strategies_parse(const char *words, struct moe_strategy *s)
{
    char buffer[256], *rest = buffer;
    uint32_t named = 0;
    struct moe_err err = {0};
    snprintf(buffer, sizeof buffer, "%s", words);
    const char *item = strtok_r(buffer, " ", &rest);
    if (!moe_strategy_find(item, s))
        fail_msg("%s is not a strategy", item);
    while ((item = strtok_r(NULL, " ", &rest))) {
        enum moe_part part;
        char name[32];
        size_t n = strcspn(item, "=");
        snprintf(name, sizeof name, "%.*s", (int)n, item);
        if (!moe_strategy_part_find(name, &part) || !moe_strategy_set(s, part, item + n + 1, NULL))
            fail_msg("%s is no part", item);
        named |= 1u << part;
    }
    moe_strategy_drop_idle(s, named);
    assert_ok(moe_strategy_settle(s, &err), &err);
}

/* A cache of so many times what a token visits, and loads from a copy in memory. */
static inline struct moe_engine_options strategies_options(const struct strategies *f,
                                                           const char *words, double demand)
{
    struct moe_engine_options o = {
        .statistics = f->statistics,
        .expert_memory_bytes = (uint64_t)(demand * (double)f->token_bytes),
        .pack_copy = f->copy,
        .pack_copy_bytes = f->copy_bytes,
        .session = {.context = CALIBRATION_TOKENS, .batch = CALIBRATION_TOKENS},
    };
    strategies_parse(words, &o.strategy);
    return o;
}

static inline struct moe_engine *strategies_open(const struct strategies *f,
                                                 const struct moe_engine_options *o)
{
    struct moe_err err = {0};
    struct moe_engine *e = NULL;
    assert_ok(moe_engine_open(&e, f->pack, o, NULL, &err), &err);
    return e;
}

/* The prompt in batches of `part` rows, the rest one by one; logits: [N_ALL][logits_stride], or
 * NULL. */
static inline void strategies_run(struct moe_session *s, const uint32_t *ids, uint32_t part,
                                  uint32_t n_prompt, float *logits)
{
    struct moe_err err = {0};
    struct moe_row rows[N_ALL];
    uint64_t stride = moe_logits_stride(&s->model->config);
    for (uint32_t first = 0, n; first < N_ALL; first += n) {
        bool prompt = first < n_prompt;
        n = !prompt ? 1 : first + part > n_prompt ? n_prompt - first : part;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, first + i, ids[first + i], 0};
        assert_ok(
            moe_forward(s, prompt ? MOE_PREFILL : MOE_DECODE, rows, n, 0, LAYERS, NULL, NULL, &err),
            &err);
        if (logits)
            assert_ok(moe_logits(s, 0, n, logits + first * stride, &err), &err);
    }
}

/* ---- Figures ---- */

/* Each activation is exactly one of seven. */
static inline void strategies_check_sums(const char *what, const struct moe_counts *n,
                                         uint64_t n_rows)
{
    uint64_t sum = n->cache_hits + n->prefetch_hits + n->prefetch_late + n->misses +
                   n->host_computed + n->precalculated + n->skipped;
    if (n->activations != n_rows * LAYERS * TOP_K || sum != n->activations)
        fail_msg("%s: %llu activations of %llu rows, and %llu accounted for", what,
                 (unsigned long long)n->activations, (unsigned long long)n_rows,
                 (unsigned long long)sum);
    assert_true(n->low_precision <= n->activations && n->substituted <= n->activations);
    assert_true(n->predicted_right <= n->predicted && n->predicted <= n->activations);
    assert_true(n->prefetches <= n->loads);
}

/* ---- Opening ---- */

struct strategies_taker {
    struct moe_probe *probe;
    uint32_t *ids; /* of the first document that is long enough; NULL: all are probed */
    uint32_t n;
};

static inline int strategies_take(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct strategies_taker *t = ctx;
    if (t->ids && t->n == 0 && n == N_ALL) {
        memcpy(t->ids, ids, N_ALL * sizeof *ids);
        t->n++;
    } else if (!t->ids && t->n < N_CALIBRATION) {
        t->n++;
        return moe_probe_document(t->probe, ids, (uint32_t)n, err);
    }
    return MOE_OK;
}

static inline void strategies_calibrate(struct strategies *f, struct moe_engine *e)
{
    struct moe_err err = {0};
    struct strategies_taker t = {0};
    struct moe_statistics_shape shape = moe_model_statistics_shape(e->model);
    shape.max_tokens = CALIBRATION_TOKENS;
    shape.prompt_percent = 50;
    assert_ok(moe_statistics_new(&f->statistics, &shape, &err), &err);
    assert_ok(moe_probe_open(&t.probe, e->session, f->statistics, &err), &err);
    const struct moe_documents d = {
        .tokenizer = e->model->tokenizer, .max_tokens = CALIBRATION_TOKENS, .max_windows = 1};
    for (const char *const *text = (const char *const[]){"stories", "math", "code", NULL}; *text;
         text++) {
        char path[64];
        snprintf(path, sizeof path, "tests/data/%s.calib.txt", *text);
        t.n = 0;
        assert_ok(moe_documents_each(&d, path, strategies_take, &t, &err), &err);
        assert_int_equal(t.n, N_CALIBRATION);
    }
    moe_probe_close(t.probe);
}

static inline void strategies_read_documents(struct strategies *f, const struct moe_model *m)
{
    static const char *const texts[N_DOCUMENTS] = {"stories", "code"};
    struct moe_err err = {0};
    const struct moe_documents d = {
        .tokenizer = m->tokenizer, .max_tokens = N_ALL, .max_windows = 1};
    for (int i = 0; i < N_DOCUMENTS; i++) {
        char path[64];
        struct strategies_taker t = {.ids = f->ids[i]};
        snprintf(path, sizeof path, "tests/data/%s.valid.txt", texts[i]);
        assert_ok(moe_documents_each(&d, path, strategies_take, &t, &err), &err);
        assert_int_equal(t.n, 1);
    }
}

/* With that number of bits for all but experts. */
static inline void strategies_set_up(struct strategies *f, const char *name, int dense_bits)
{
    struct moe_err err = {0};
    const struct moe_convert_options options = pack_options("4,2", dense_bits);
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(f->pack, sizeof f->pack, "/tmp/moe-%s-%d.moe", name, (int)getpid());
    bundled_pack(f->pack, &options);
    const struct moe_engine_options resident = strategies_options(f, "resident", 0);
    struct moe_engine *e = strategies_open(f, &resident);
    assert_int_equal(e->model->config.n_layers, LAYERS);
    assert_int_equal(e->model->config.n_experts, EXPERTS);
    assert_int_equal(e->model->config.top_k, TOP_K);
    assert_int_equal(e->model->config.hidden, HIDDEN);
    f->slot_bytes = moe_cache_slot_bytes(e->model->pack, 0);
    f->token_bytes = f->slot_bytes * LAYERS * TOP_K;
    f->logits_stride = moe_logits_stride(&e->model->config);
    f->copy_bytes = moe_pack_file_bytes(e->model->pack);
    f->copy = moe_pages_alloc(f->copy_bytes, &err);
    assert_ok(moe_file_pread(moe_pack_fd(e->model->pack), f->pack, f->copy, f->copy_bytes, 0, &err),
              &err);
    strategies_calibrate(f, e);
    strategies_read_documents(f, e->model);
    moe_engine_close(e);
}

static inline void strategies_tear_down(struct strategies *f)
{
    moe_statistics_free(f->statistics);
    moe_pages_free(f->copy, f->copy_bytes);
    unlink(f->pack);
}

#endif
