/*
 * Statistics of experts: counts against a naive recount, shards against one run, files against
 * memory, path predictions, and damaged files.
 */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../test.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "profile/statistics.h"
#include "profile/statistics_figures.h"

enum { LAYERS = 3, EXPERTS = 6, TOP_K = 2, MAX_TOKENS = 40, DOCUMENTS = 23 };

static const struct moe_statistics_shape SHAPE = {
    .n_layers = LAYERS,
    .n_experts = EXPERTS,
    .top_k = TOP_K,
    .source_fingerprint = 0x123456789abcdef0,
    .max_tokens = MAX_TOKENS,
    .prompt_percent = 50,
};

/* A document's choices and scores, the same for the same seed. */
struct document {
    uint32_t n;
    uint32_t ids[MAX_TOKENS];
    uint64_t hash;
    uint32_t chosen[LAYERS][MAX_TOKENS][TOP_K];
    float weights[LAYERS][MAX_TOKENS][TOP_K];
    float scores[LAYERS][MAX_TOKENS][EXPERTS];
    float cosines[LAYERS][MAX_TOKENS], norms[LAYERS][MAX_TOKENS][TOP_K];
};

static void make_document(struct document *d, uint64_t seed)
{
    uint64_t rng = seed * 77 + 5;
    d->n = 1 + (uint32_t)(test_random(&rng) % MAX_TOKENS);
    d->hash = moe_hash64(&seed, sizeof seed); /* no two alike */
    for (uint32_t t = 0; t < d->n; t++)       /* some share a bucket */
        d->ids[t] = (uint32_t)(test_random(&rng) % 5) << 12 | (uint32_t)(test_random(&rng) % 2);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = 0; t < d->n; t++) {
            uint32_t a = (uint32_t)(test_random(&rng) % EXPERTS);
            uint32_t b = (a + 1 + (uint32_t)(test_random(&rng) % (EXPERTS - 1))) % EXPERTS;
            if (l > 0 && test_random(&rng) % 2) { /* some order, for the paths */
                a = (d->chosen[l - 1][t][0] + 1) % EXPERTS;
                b = (a + 1) % EXPERTS;
            }
            float w = 0.5f + (float)(test_random(&rng) % 400) / 1000;
            d->chosen[l][t][0] = a;
            d->chosen[l][t][1] = b;
            d->weights[l][t][0] = w;
            d->weights[l][t][1] = 1 - w;
            d->cosines[l][t] = (float)(test_random(&rng) % 2000) / 1000 - 1;
            for (int e = 0; e < EXPERTS; e++)
                d->scores[l][t][e] = (float)(test_random(&rng) % 1000);
            for (int i = 0; i < TOP_K; i++)
                d->norms[l][t][i] = d->weights[l][t][i] * 2.5f;
        }
}

static void feed(struct moe_statistics *s, const struct document *d, uint32_t batch)
{
    struct moe_err err = {0};
    assert_ok(moe_statistics_begin(s, d->hash, &err), &err);
    for (uint32_t t = 0; t < d->n; t += batch) {
        uint32_t n = d->n - t < batch ? d->n - t : batch;
        for (uint32_t l = 0; l < LAYERS; l++) {
            struct moe_layer_observation seen = {
                .chosen = d->chosen[l][t],
                .weights = d->weights[l][t],
                .ids = &d->ids[t],
                .stride = EXPERTS,
                .norms = d->norms[l][t],
            };
            if (l > 0) {
                seen.predicted[MOE_PREDICT_GATE_1] = d->scores[l][t];
                seen.cosines[MOE_COSINE_GATE_1] = &d->cosines[l][t];
            }
            moe_statistics_observe(s, l, t, n, &seen);
        }
    }
    assert_ok(moe_statistics_end(s, &err), &err);
}

static void set_origin(struct moe_statistics *s, uint64_t text, uint32_t shard, uint32_t n)
{
    struct moe_err err = {0};
    assert_ok(moe_origins_begin(&s->origins, 1, shard, n, &err), &err);
    s->origins.items->documents = DOCUMENTS;
    s->origins.items->pack_fingerprint = 99;
    s->origins.items->texts[s->origins.items->n_texts++] = text;
}

static struct moe_statistics *run(uint32_t shard, uint32_t n_shards, uint32_t batch,
                                  const struct moe_statistics *prior)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    struct document d;
    assert_ok(moe_statistics_new(&s, &SHAPE, &err), &err);
    set_origin(s, 1, shard, n_shards);
    s->prior = prior;
    for (uint32_t i = shard; i < DOCUMENTS; i += n_shards) {
        make_document(&d, i);
        feed(s, &d, batch);
    }
    return s;
}

static void write_text(const struct moe_statistics *s, struct moe_buf *out)
{
    struct moe_err err = {0};
    assert_ok(moe_statistics_write(s, out, &err), &err);
}

static bool chose(const struct document *d, uint32_t l, uint32_t t, uint32_t e)
{
    return d->chosen[l][t][0] == e || d->chosen[l][t][1] == e;
}

static void counts_equal_a_naive_recount(void **state)
{
    struct moe_statistics *s = run(0, 1, 7, NULL);
    uint64_t tokens = 0, active[LAYERS][EXPERTS] = {{0}}, best[LAYERS][EXPERTS] = {{0}};
    uint64_t decoded[LAYERS][EXPERTS] = {{0}};
    uint64_t pairs[LAYERS][EXPERTS][EXPERTS] = {{{0}}}, reuse[LAYERS][MOE_N_REUSES] = {{0}};
    uint64_t acc[LAYERS][5] = {{0}}, by_token[LAYERS][5] = {{0}}, n_gate = 0;
    double cosines = 0, xx = 0, xy = 0;
    struct document d;
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        make_document(&d, i);
        tokens += d.n;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t t = 0; t < d.n; t++) {
                best[l][d.chosen[l][t][0]]++;
                for (uint32_t e = 0; e < EXPERTS; e++) {
                    active[l][e] += chose(&d, l, t, e);
                    decoded[l][e] += t >= d.n * SHAPE.prompt_percent / 100 && chose(&d, l, t, e);
                    for (uint32_t p = 0; p < EXPERTS; p++)
                        if (l > 0 || t > 0)
                            pairs[l][p][e] +=
                                chose(&d, l > 0 ? l - 1 : LAYERS - 1, l > 0 ? t : t - 1, p) &&
                                chose(&d, l, t, e);
                }
                if (t > 0) {
                    uint32_t again = 0;
                    for (uint32_t e = 0; e < EXPERTS; e++)
                        again += chose(&d, l, t, e) && chose(&d, l, t - 1, e);
                    reuse[l][MOE_REUSE_TOKENS]++;
                    reuse[l][MOE_REUSE_ACTIVE] += again;
                    reuse[l][MOE_REUSE_BEST] += chose(&d, l, t, d.chosen[l][t - 1][0]);
                    reuse[l][MOE_REUSE_ANY] += again > 0;
                    reuse[l][MOE_REUSE_WAS] += chose(&d, l, t - 1, d.chosen[l][t][0]);
                    uint32_t last = t - 1;
                    for (uint32_t earlier = 0; earlier < t; earlier++)
                        last = d.ids[earlier] == d.ids[t] ? earlier : last;
                    by_token[l][MOE_ACC_TOKENS]++;
                    by_token[l][MOE_ACC_TOP1] += d.chosen[l][last][0] == d.chosen[l][t][0];
                    for (uint32_t k = 0; k < TOP_K; k++)
                        by_token[l][MOE_ACC_IN_K] += chose(&d, l, last, d.chosen[l][t][k]);
                }
                if (l == 0)
                    continue;
                n_gate++;
                cosines += (double)d.cosines[l][t];
                for (uint32_t k = 0; k < TOP_K; k++) {
                    uint32_t e = d.chosen[l][t][k], rank = 0;
                    for (uint32_t o = 0; o < EXPERTS; o++)
                        rank += d.scores[l][t][o] > d.scores[l][t][e] ||
                                (d.scores[l][t][o] == d.scores[l][t][e] && o < e);
                    acc[l][MOE_ACC_TOP1] += k == 0 && rank == 0;
                    acc[l][MOE_ACC_IN_K] += rank < 2;
                    acc[l][MOE_ACC_IN_2K] += rank < 4;
                    acc[l][MOE_ACC_IN_P75] += rank < 2; /* a quarter of six, rounded up */
                    double w = (double)d.weights[l][t][k];
                    xx += w * w;
                    xy += w * (double)d.norms[l][t][k];
                }
            }
    }
    assert_int_equal(s->totals[MOE_TOTAL_DOCUMENTS], DOCUMENTS);
    assert_int_equal(s->totals[MOE_TOTAL_TOKENS], tokens);
    assert_int_equal(s->requests.n, DOCUMENTS); /* so few that all are kept by themselves */
    double got_cosines = 0, got_xx = 0, got_xy = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_memory_equal(moe_series_at(s, MOE_S_ACTIVATIONS, l), active[l], sizeof active[l]);
        assert_memory_equal(moe_series_at(s, MOE_S_DECODED, l), decoded[l], sizeof decoded[l]);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            for (uint32_t i = 0; i < DOCUMENTS; i++)
                active[l][e] -= moe_requests_at(&s->requests, i, l)[e];
            assert_int_equal(active[l][e], 0);
        }
        assert_memory_equal(moe_series_at(s, MOE_S_RANK1, l), best[l], sizeof best[l]);
        assert_memory_equal(moe_series_at(s, MOE_S_PAIRS, l), pairs[l], sizeof pairs[l]);
        assert_memory_equal(moe_series_at(s, MOE_S_REUSE, l), reuse[l], sizeof reuse[l]);
        for (int m = MOE_ACC_TOP1; m <= MOE_ACC_IN_P75; m++)
            assert_int_equal(moe_accuracy_at(s, l, MOE_PREDICT_GATE_1)[m], acc[l][m]);
        for (int m = MOE_ACC_TOKENS; m <= MOE_ACC_IN_K; m++)
            assert_int_equal(moe_accuracy_at(s, l, MOE_PREDICT_TOKEN)[m], by_token[l][m]);
        assert_int_equal(moe_accuracy_at(s, l, MOE_PREDICT_GATE_1)[MOE_ACC_TOKENS], l ? tokens : 0);
        got_cosines += (double)(int64_t)moe_series_at(s, MOE_S_COSINES, l)[MOE_COSINE_GATE_1];
        const uint64_t *corr = moe_series_at(s, MOE_S_CORRELATION, l);
        if (l == 0)
            continue;
        got_xx += ldexp((double)corr[MOE_CORR_XX], -32);
        got_xy += (double)corr[MOE_CORR_XY_HI] + ldexp((double)corr[MOE_CORR_XY_LO], -32);
    }
    double right = 0, of = 0, own = moe_figure_accuracy(s, 1, MOE_PREDICT_TOKEN).in_k;
    for (uint32_t l = 0; l < LAYERS; l++) {
        right += (double)by_token[l][MOE_ACC_IN_K];
        of += (double)by_token[l][MOE_ACC_TOKENS] * TOP_K;
    }
    assert_true(fabs(own * of / LAYERS - (double)by_token[1][MOE_ACC_IN_K]) < 1e-6);
    double all = moe_figure_accuracy(s, MOE_ALL_LAYERS, MOE_PREDICT_TOKEN).in_k;
    assert_true(fabs(all * of - right) < 1e-6);
    assert_true(fabs(ldexp(got_cosines, -30) - cosines) < 1e-5);
    assert_true(n_gate > 500 && fabs(got_xx - xx) < 1e-4 && fabs(got_xy - xy) < 1e-4);
    moe_statistics_free(s);
}

static void batches_and_shards_make_no_difference(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *prior = run(0, 2, 5, NULL);
    struct moe_statistics *whole = run(0, 1, MAX_TOKENS, prior);
    struct moe_statistics *single = run(0, 1, 1, prior), *sum = NULL;
    struct moe_buf a = {0}, b = {0}, c = {0};
    assert_ok(moe_statistics_new(&sum, &SHAPE, &err), &err);
    for (int i = 6; i >= 0; i--) { /* in any order */
        struct moe_statistics *part = run((uint32_t)i, 7, 3, prior);
        assert_ok(moe_statistics_merge(sum, part, &err), &err);
        moe_statistics_free(part);
    }
    write_text(whole, &a);
    write_text(single, &b);
    write_text(sum, &c);
    assert_true(a.size == b.size && memcmp(a.data, b.data, a.size) == 0);
    assert_true(a.size == c.size && memcmp(a.data, c.data, a.size) == 0);
    assert_true(moe_accuracy_at(whole, 1, MOE_PREDICT_PATH)[MOE_ACC_TOKENS] > 0);
    moe_buf_release(&a);
    moe_buf_release(&b);
    moe_buf_release(&c);
    moe_statistics_free(whole);
    moe_statistics_free(single);
    moe_statistics_free(sum);
    moe_statistics_free(prior);
}

static void other_settings_are_not_merged(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *a = run(0, 9, 4, NULL), *b = NULL;
    struct moe_statistics_shape other = SHAPE;
    other.max_tokens++;
    assert_ok(moe_statistics_new(&b, &other, &err), &err);
    assert_int_equal(moe_statistics_merge(a, b, &err), MOE_ERR_USAGE);
    b->shape.max_tokens--;
    b->shape.source_fingerprint++;
    assert_int_equal(moe_statistics_merge(a, b, &err), MOE_ERR_USAGE);
    assert_non_null(strstr(err.text, "another model"));
    moe_statistics_free(a);
    moe_statistics_free(b);
}

static int read_text(struct moe_statistics **out, const char *text, uint64_t n, struct moe_err *err)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/moe-test-stats-%d.yaml", (int)getpid());
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    int status = moe_statistics_read(out, path, err);
    unlink(path);
    return status;
}

static void a_file_gives_the_numbers_back(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = run(0, 1, 8, NULL), *back = NULL;
    struct moe_buf a = {0}, b = {0};
    write_text(s, &a);
    assert_ok(read_text(&back, (const char *)a.data, a.size, &err), &err);
    write_text(back, &b);
    assert_true(a.size == b.size && memcmp(a.data, b.data, a.size) == 0);
    moe_buf_release(&a);
    moe_buf_release(&b);
    moe_statistics_free(s);
    moe_statistics_free(back);
}

/* Statistics of a larger model with many paths. */
static struct moe_statistics *run_large(uint32_t documents)
{
    enum { N = 256, K = 2 };
    static uint32_t chosen[N][K], ids[N];
    static float weights[N][K];
    const struct moe_layer_observation seen = {
        .chosen = chosen[0], .weights = weights[0], .ids = ids};
    struct moe_statistics *s;
    struct moe_err err = {0};
    const struct moe_statistics_shape shape = {
        .n_layers = 24, .n_experts = 64, .top_k = K, .max_tokens = N, .prompt_percent = 50};
    uint64_t rng = 3;
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    set_origin(s, 1, 0, 1);
    s->origins.items->documents = documents;
    for (uint32_t d = 0; d < documents; d++) {
        assert_ok(moe_statistics_begin(s, d, &err), &err);
        for (uint32_t l = 0; l < shape.n_layers; l++) {
            for (uint32_t t = 0; t < N; t++) {
                chosen[t][0] = (uint32_t)(test_random(&rng) % shape.n_experts);
                chosen[t][1] = (chosen[t][0] + 1) % shape.n_experts;
            }
            moe_statistics_observe(s, l, 0, N, &seen);
        }
        assert_ok(moe_statistics_end(s, &err), &err);
    }
    return s;
}

/* Reading takes no more than it says, also of a table that is nearly full. */
static void reading_takes_what_it_says(void **state)
{
    enum { DOCUMENTS_OF_PATHS = 45, SPARE = 1 << 20 };
    struct moe_err err = {0};
    struct moe_statistics *s, *back;
    struct moe_buf text = {0};
    int status;
    if (SANITIZED)
        skip();
    s = run_large(DOCUMENTS_OF_PATHS);
    assert_in_range(moe_path_table_used(s->paths), 240000, 1 << 18);
    write_text(s, &text);
    moe_statistics_free(s);
    pid_t child = fork(); /* whose peak is its own */
    assert_true(child >= 0);
    if (child == 0) {
        char path[64];
        snprintf(path, sizeof path, "/tmp/moe-test-stats-%d.yaml", (int)getpid());
        if (moe_file_write_all(path, text.data, text.size, &err) != MOE_OK)
            _exit(2);
        moe_buf_release(&text);
        moe_heap_trim();
        const uint64_t before = moe_rss_bytes();
        if (moe_statistics_read(&back, path, &err) != MOE_OK)
            _exit(3);
        unlink(path);
        _exit(moe_peak_rss_bytes() - before >
              back->read_bytes + moe_statistics_held_bytes(back) + SPARE);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    moe_buf_release(&text);
}

/* Experts are placed by decoded tokens, or by all where there are none. */
static void decoded_tokens_place_experts(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = run(0, 2, 8, NULL), *prompts = NULL;
    struct moe_statistics_shape shape = SHAPE;
    struct document d;
    uint64_t bytes = LAYERS * EXPERTS * sizeof(uint64_t);
    assert_true(moe_statistics_has_decoded(s));
    assert_memory_equal(moe_statistics_placement(s), s->series[MOE_S_DECODED], bytes);
    shape.prompt_percent = 100;
    assert_ok(moe_statistics_new(&prompts, &shape, &err), &err);
    make_document(&d, 1);
    feed(prompts, &d, 5);
    assert_false(moe_statistics_has_decoded(prompts));
    assert_memory_equal(moe_statistics_placement(prompts), prompts->series[MOE_S_ACTIVATIONS],
                        bytes);
    moe_statistics_free(prompts);
    moe_statistics_free(s);
}

/* ---- What they were made from ---- */

static void merge_and_free(struct moe_statistics *sum, struct moe_statistics *part)
{
    struct moe_err err = {0};
    assert_ok(moe_statistics_merge(sum, part, &err), &err);
    moe_statistics_free(part);
}

static void same_files(const struct moe_statistics *s, const struct moe_statistics *t)
{
    struct moe_buf a = {0}, b = {0};
    write_text(s, &a);
    write_text(t, &b);
    assert_true(a.size == b.size && memcmp(a.data, b.data, a.size) == 0);
    moe_buf_release(&a);
    moe_buf_release(&b);
}

static void shards_merge_once_and_to_the_whole(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *whole = run(0, 1, 8, NULL), *back = NULL;
    struct moe_statistics *sum = run(3, 4, 8, NULL), *some = run(2, 4, 8, NULL),
                          *part = run(2, 4, 8, NULL);
    struct moe_buf text = {0};
    merge_and_free(some, run(0, 4, 8, NULL));
    assert_fails(moe_origins_check(&some->origins, false, &err), MOE_ERR_USAGE,
                 "shards 2, 4 of 4 are missing", &err);
    write_text(some, &text); /* what is merged in part knows what it holds */
    assert_non_null(strstr((char *)text.data, "shards: {of: 4, held: [1, 3]}"));
    assert_ok(read_text(&back, (char *)text.data, text.size, &err), &err);
    assert_fails(moe_statistics_merge(back, part, &err), MOE_ERR_USAGE, "shard 3 of 4", &err);
    merge_and_free(sum, some);
    merge_and_free(sum, run(1, 4, 8, NULL));
    assert_ok(moe_origins_check(&sum->origins, false, &err), &err);
    same_files(sum, whole);
    assert_fails(moe_statistics_merge(sum, whole, &err), MOE_ERR_USAGE, "would count twice", &err);
    moe_buf_release(&text);
    moe_statistics_free(back);
    moe_statistics_free(part);
    moe_statistics_free(sum);
    moe_statistics_free(whole);
}

static void an_unfinished_run_is_told(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = run(0, 1, 8, NULL);
    assert_ok(moe_statistics_check_finished(s, &err), &err);
    s->origins.items->documents++;
    assert_fails(moe_statistics_check_finished(s, &err), MOE_ERR_USAGE,
                 "by an interrupted run, with 23 of 24 documents", &err);
    moe_statistics_free(s);
}

/* The file's line `from` replaced. */
static void origin_refused(const char *from, const char *to, const char *words)
{
    struct moe_err err = {0};
    struct moe_statistics *s = run(1, 5, 8, NULL), *back = NULL;
    struct moe_buf text = {0}, damaged = {0};
    write_text(s, &text);
    const char *at = strstr((char *)text.data, from);
    assert_non_null(at);
    moe_buf_append(&damaged, text.data, (uint64_t)(at - (char *)text.data));
    moe_buf_text(&damaged, to);
    moe_buf_text(&damaged, at + strlen(from));
    assert_fails(read_text(&back, (char *)damaged.data, damaged.size, &err), MOE_ERR_FORMAT, words,
                 &err);
    moe_buf_release(&text);
    moe_buf_release(&damaged);
    moe_statistics_free(s);
}

static void damaged_origins_are_named(void **state)
{
    static const char shards[] = "{of: 5, held: [2]}";
    origin_refused(shards, "{of: 5, held: [2, 2]}", "'held' must be rising");
    origin_refused(shards, "{of: 5, held: [0]}", "'held' counts shards from 1");
    origin_refused(shards, "{of: 5, held: [6]}", "from 0 to 5");
    origin_refused(shards, "{of: 5, held: []}", "'held' must have 1 to 5 items");
    origin_refused(shards, "{of: 0, held: [1]}", "'of' must be from 1 to 1048576");
    origin_refused(shards, "{of: 1048577, held: [1]}",
                   "'of' must be a whole number from 0 to 1048576");
    origin_refused(shards, "{of: 5}", "'held' is missing");
    origin_refused("    shards: {of: 5, held: [2]}\n", "", "'shards' is missing");
    origin_refused("documents: 23", "documents: 18", "5 documents, its shards have 4");
    origin_refused("documents: 23", "documents: 1e15", "'documents' must be");
    origin_refused("\"0000000000000001\"", "", "'texts' must have 1 to 65536 items");
    origin_refused("0000000000000001", "1", "an item must have 16 hexadecimal digits");
}

/* Every line dropped, every line cut short: an error with the place, or (a comment, a number cut to
 * one that still adds up) the file is read. Never a crash. */
static void damaged_files_are_refused(void **state)
{
    struct moe_statistics *s = run(0, 5, 8, NULL);
    struct moe_buf text = {0};
    uint32_t refused = 0, tried = 0;
    write_text(s, &text);
    const char *all = (const char *)text.data;
    for (uint64_t at = 0; at < text.size;) {
        const char *end = memchr(all + at, '\n', text.size - at);
        uint64_t next = (uint64_t)(end - all) + 1;
        for (int kind = 0; kind < 2; kind++) {
            struct moe_buf damaged = {0};
            struct moe_statistics *back = NULL;
            struct moe_err err = {0};
            moe_buf_append(&damaged, all, at);
            if (kind == 1) {
                moe_buf_append(&damaged, all + at, (next - at) / 2);
                moe_buf_text(&damaged, "\n");
            }
            moe_buf_append(&damaged, all + next, text.size - next);
            int status = read_text(&back, (const char *)damaged.data, damaged.size, &err);
            tried++;
            refused += status != MOE_OK;
            if (status != MOE_OK)
                assert_true(err.text[0] != '\0' && back == NULL);
            moe_statistics_free(back);
            moe_buf_release(&damaged);
        }
        at = next;
    }
    print_message("# %u of %u damaged files refused\n", refused, tried);
    assert_true(refused + 10 > tried);
    moe_buf_release(&text);
    moe_statistics_free(s);
}

static void paths_predict_what_follows(void **state)
{
    struct moe_statistics *s = run(0, 1, 8, NULL);
    float pair[EXPERTS], rank1[EXPERTS];
    uint32_t right = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const uint32_t before[TOP_K] = {e, (e + 1) % EXPERTS};
        moe_path_scores(s, MOE_PREDICT_PATH, 1, MOE_NO_EXPERT, before, pair);
        moe_path_scores(s, MOE_PREDICT_PATH_RANK1, 1, MOE_NO_EXPERT, before, rank1);
        float sum = 0, most = 0;
        for (uint32_t i = 0; i < EXPERTS; i++) {
            sum += pair[i];
            most = rank1[i] > most ? rank1[i] : most;
        }
        assert_true(fabs((double)sum - TOP_K) < 1e-5);
        right += rank1[(e + 1) % EXPERTS] == most; /* half the documents' tokens follow that rule */
    }
    assert_true(right >= EXPERTS - 1);
    /* A key that was never seen falls back on pairs. */
    struct moe_statistics *few = run(0, DOCUMENTS, 8, NULL);
    const uint32_t before[TOP_K] = {0, 1};
    moe_path_scores(few, MOE_PREDICT_PATH_RANK1, 2, 0, before, rank1);
    float sum = 0;
    for (uint32_t i = 0; i < EXPERTS; i++)
        sum += rank1[i];
    assert_true(sum > 0);
    moe_statistics_free(few);
    moe_statistics_free(s);
}

/* A sketch keeps the smallest keys, whatever the order and the shards. */
static void a_sketch_does_not_depend_on_order(void **state)
{
    struct moe_err err = {0};
    struct moe_path_table *all = NULL, *a = NULL, *b = NULL;
    uint64_t rng = 9;
    uint64_t n_all, n_sum;
    assert_ok(moe_path_table_new(&all, 100, &err), &err);
    assert_ok(moe_path_table_new(&a, 100, &err), &err);
    assert_ok(moe_path_table_new(&b, 100, &err), &err);
    for (int i = 0; i < 20000; i++) {
        uint64_t key = (test_random(&rng) % 2000) * 977;
        assert_ok(moe_path_table_add(all, key, 1, &err), &err);
        assert_ok(moe_path_table_add(i % 3 ? a : b, key, 1, &err), &err);
    }
    struct moe_path_count *part = moe_path_table_sorted(b, &n_sum, &err);
    for (uint64_t i = 0; i < n_sum; i++)
        assert_ok(moe_path_table_add(a, part[i].key, part[i].n, &err), &err);
    free(part);
    struct moe_path_count *x = moe_path_table_sorted(all, &n_all, &err);
    struct moe_path_count *y = moe_path_table_sorted(a, &n_sum, &err);
    assert_int_equal(n_all, 100);
    assert_int_equal(n_sum, 100);
    assert_memory_equal(x, y, 100 * sizeof *x);
    assert_true(moe_path_table_sampled(all) && moe_path_table_sampled(a));
    free(x);
    free(y);
    moe_path_table_free(all);
    moe_path_table_free(a);
    moe_path_table_free(b);
}

/* ---- Encoder and decoder ---- */

enum { ENCODER = 2 };

/* Tokens [0, d->n) of one document go through the layers from `first` on. */
static void feed_stack(struct moe_statistics *s, uint32_t first, uint32_t n_layers,
                       const struct document *d)
{
    for (uint32_t l = 0; l < n_layers; l++) {
        struct moe_layer_observation seen = {
            .chosen = d->chosen[l][0],
            .weights = d->weights[l][0],
            .ids = d->ids,
            .stride = EXPERTS,
        };
        if (l > 0)
            seen.predicted[MOE_PREDICT_GATE_1] = d->scores[l][0];
        moe_statistics_observe(s, first + l, 0, d->n, &seen);
    }
}

/* Pairs: the sources have two layers, the targets three. ENCODER 0: the targets alone. */
static struct moe_statistics *run_pairs(uint32_t n_encoder, const struct moe_statistics *prior)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    struct document d;
    struct moe_statistics_shape shape = SHAPE;
    shape.n_encoder = n_encoder;
    shape.n_layers = n_encoder + LAYERS;
    shape.prompt_percent = n_encoder ? 50 : 0; /* a target has no prompt in any case */
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    set_origin(s, 1, 0, 1);
    s->prior = prior;
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        make_document(&d, i);
        assert_ok(moe_statistics_begin(s, d.hash, &err), &err);
        struct document source;
        make_document(&source, 100 + i);
        if (n_encoder)
            feed_stack(s, 0, n_encoder, &source);
        feed_stack(s, n_encoder, LAYERS, &d);
        assert_ok(moe_statistics_end(s, &err), &err);
    }
    return s;
}

/* The decoder's layers, their pairs and paths included, are those of the targets run through a
 * decoder alone: nothing crosses the border. */
static void a_decoder_counts_as_one_alone(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *prior = run_pairs(ENCODER, NULL), *prior_alone = run_pairs(0, NULL);
    struct moe_statistics *both = run_pairs(ENCODER, prior), *alone = run_pairs(0, prior_alone);
    struct moe_statistics *read = NULL;
    uint64_t sources = 0, n_both, n_alone;
    struct document d;
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        make_document(&d, 100 + i);
        sources += d.n;
    }
    assert_int_equal(both->totals[MOE_TOTAL_SOURCE], sources);
    assert_int_equal(both->totals[MOE_TOTAL_TOKENS], alone->totals[MOE_TOTAL_TOKENS]);
    assert_int_not_equal(sources, both->totals[MOE_TOTAL_TOKENS]);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (int i = 0; i < MOE_N_SERIES; i++)
            assert_memory_equal(moe_series_at(both, i, ENCODER + l), moe_series_at(alone, i, l),
                                moe_series_length(&SHAPE, i) * sizeof(uint64_t));
    for (uint32_t l = 0; l < ENCODER; l++) {
        for (uint64_t i = 0; i < EXPERTS * EXPERTS; i++)
            assert_int_equal(moe_series_at(both, MOE_S_PAIRS, l)[i], 0);
        for (uint32_t e = 0; e < EXPERTS; e++)
            assert_int_equal(moe_series_at(both, MOE_S_DECODED, l)[e], 0);
        assert_int_equal(moe_accuracy_at(both, l, MOE_PREDICT_PATH)[MOE_ACC_TOKENS], 0);
    }
    assert_true(moe_statistics_has_decoded(both));
    struct moe_path_count *paths = moe_path_table_sorted(both->paths, &n_both, &err);
    struct moe_path_count *paths_alone = moe_path_table_sorted(alone->paths, &n_alone, &err);
    assert_int_equal(n_both, n_alone);
    for (uint64_t i = 0; i < n_both; i++) {
        assert_int_equal(paths[i].key - ((uint64_t)ENCODER << 48), paths_alone[i].key);
        assert_int_equal(paths[i].n, paths_alone[i].n);
    }
    for (int p = MOE_PREDICT_PATH; p <= MOE_PREDICT_PATH_RANK1; p++) {
        float scores[EXPERTS], scores_alone[EXPERTS];
        const uint32_t before[TOP_K] = {2, 3};
        for (uint32_t l = 1; l < LAYERS; l++) {
            moe_path_scores(both, p, ENCODER + l, 1, before, scores);
            moe_path_scores(alone, p, l, 1, before, scores_alone);
            assert_memory_equal(scores, scores_alone, sizeof scores);
        }
    }
    struct moe_buf text = {0}, again = {0};
    write_text(both, &text);
    assert_ok(read_text(&read, (const char *)text.data, text.size, &err), &err);
    assert_int_equal(read->shape.n_encoder, ENCODER);
    write_text(read, &again);
    assert_int_equal(again.size, text.size);
    assert_memory_equal(again.data, text.data, text.size);
    assert_fails(moe_statistics_add(both, alone, &err), MOE_ERR_USAGE, "another model", &err);
    moe_buf_release(&text);
    moe_buf_release(&again);
    free(paths);
    free(paths_alone);
    moe_statistics_free(read);
    moe_statistics_free(both);
    moe_statistics_free(alone);
    moe_statistics_free(prior);
    moe_statistics_free(prior_alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_equal_a_naive_recount),
        cmocka_unit_test(a_decoder_counts_as_one_alone),
        cmocka_unit_test(batches_and_shards_make_no_difference),
        cmocka_unit_test(other_settings_are_not_merged),
        cmocka_unit_test(a_file_gives_the_numbers_back),
        cmocka_unit_test(reading_takes_what_it_says),
        cmocka_unit_test(decoded_tokens_place_experts),
        cmocka_unit_test(shards_merge_once_and_to_the_whole),
        cmocka_unit_test(an_unfinished_run_is_told),
        cmocka_unit_test(damaged_origins_are_named),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(paths_predict_what_follows),
        cmocka_unit_test(a_sketch_does_not_depend_on_order),
    };
    return cmocka_run_group_tests_name("statistics", tests, NULL, NULL);
}
