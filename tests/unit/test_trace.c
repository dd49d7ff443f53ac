/*
 * Traces: what is written comes back, in any batches; damage of every byte and cuts at every byte
 * are errors; the foreign formats, from small samples written here.
 */
#include <math.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "profile/trace_internal.h"

#include "../test.h"

static char path[128], other[128];

static int name_files(void **state)
{
    snprintf(path, sizeof path, "/tmp/moe-trace-%d", (int)getpid());
    snprintf(other, sizeof other, "/tmp/moe-trace-%d-b", (int)getpid());
    return 0;
}

static int remove_files(void **state)
{
    unlink(path);
    unlink(other);
    return 0;
}

/* ---- A random document and what must come back ---- */

struct document {
    const struct moe_trace_shape *shape;
    uint32_t n, n_prompt;
    uint32_t *chosen; /* [layers][n][k] */
    float *weights;
    float *router;    /* [layers][n][experts] probabilities */
    float *predicted; /* [layers][predictors][n][experts] scores */
};

static struct document new_document(const struct moe_trace_shape *s, uint32_t n, uint32_t n_prompt,
                                    uint64_t seed)
{
    uint64_t rows = (uint64_t)s->n_layers * n, scores = rows * s->n_experts;
    struct document d = {.shape = s, .n = n, .n_prompt = n_prompt};
    d.chosen = calloc(rows * s->top_k, sizeof *d.chosen);
    d.weights = calloc(rows * s->top_k, sizeof *d.weights);
    d.router = calloc(scores, sizeof *d.router);
    d.predicted = calloc(scores * MOE_N_PREDICTORS, sizeof *d.predicted);
    for (uint64_t i = 0; i < scores; i++)
        d.router[i] = (1 + test_uniform(&seed)) / 2;
    for (uint64_t i = 0; i < scores * MOE_N_PREDICTORS; i++)
        d.predicted[i] = 2 * test_uniform(&seed);
    for (uint64_t row = 0; row < rows; row++) {
        uint32_t first = (uint32_t)(test_random(&seed) % s->n_experts);
        for (uint32_t i = 0; i < s->top_k; i++) {
            d.chosen[row * s->top_k + i] = (first + 7 * i) % s->n_experts;
            d.weights[row * s->top_k + i] = 4 * d.router[row * s->n_experts + i];
        }
    }
    return d;
}

static void free_document(struct document *d)
{
    free(d->chosen);
    free(d->weights);
    free(d->router);
    free(d->predicted);
}

/* Whether a layer computes a token: the encoder's those of the prompt, the decoder's the others. */
static bool sees(const struct document *d, uint32_t layer, uint32_t token)
{
    uint32_t n_encoder = d->shape->n_encoder;
    return n_encoder == 0 || (layer < n_encoder) == (token < d->n_prompt);
}

/* Of all four bytes; 0 where the trace keeps none. */
static uint32_t id_of(const struct document *d, uint32_t token)
{
    return d->shape->has_ids ? (token + d->n) * 2654435761u : 0;
}

/* Writes it as one sequence in batches. */
static void put_document(struct moe_trace_writer *w, const struct document *d, uint32_t batch)
{
    struct moe_err err = {0};
    const struct moe_trace_shape *s = d->shape;
    assert_ok(moe_trace_begin(w, &err), &err);
    for (uint32_t at = 0, n; at < d->n; at += n) {
        n = d->n - at < batch ? d->n - at : batch;
        if (s->n_encoder && at < d->n_prompt && d->n_prompt - at < n)
            n = d->n_prompt - at; /* a source and a target are computed apart */
        uint32_t prompt = at >= d->n_prompt ? 0 : d->n_prompt - at < n ? d->n_prompt - at : n;
        assert_ok(moe_trace_add(w, n, prompt, &err), &err);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t id = id_of(d, at + i);
            moe_trace_put_ids(w, at + i, 1, &id);
        }
        for (uint32_t l = 0; l < s->n_layers; l++) {
            uint64_t row = (uint64_t)l * d->n + at;
            if (!sees(d, l, at))
                continue;
            struct moe_layer_observation seen = {
                .chosen = d->chosen + row * s->top_k,
                .weights = d->weights + row * s->top_k,
                .stride = s->n_experts,
            };
            for (uint64_t p = 0; p < MOE_N_PREDICTORS; p++)
                if (s->predictors & 1u << p && moe_trace_predicts(s, (enum moe_predictor)p, l))
                    seen.predicted[p] =
                        d->predicted + ((l * MOE_N_PREDICTORS + p) * d->n + at) * s->n_experts;
            moe_trace_put(w, l, at, n, &seen, d->router + row * s->n_experts, s->n_experts);
        }
    }
}

static void assert_score(float got, double wanted)
{
    assert_true(fabs((double)got - wanted) <= wanted / 2048 + 0x1p-25);
}

/* The kept are the largest, falling, with their shares of the softmax. */
static void check_prediction(const float *values, uint32_t n, uint32_t keep, const uint16_t *ids,
                             const float *scores)
{
    double sum = 0;
    for (uint32_t e = 0; e < n; e++)
        sum += exp((double)values[e]);
    for (uint32_t i = 0; i < keep; i++) {
        uint32_t better = 0;
        for (uint32_t e = 0; e < n; e++)
            better += values[e] > values[ids[i]] || (values[e] == values[ids[i]] && e < ids[i]);
        assert_int_equal(better, i);
        assert_score(scores[i], exp((double)values[ids[i]]) / sum);
    }
}

static void check_step(const struct document *d, const struct moe_trace_step *step, uint32_t layer,
                       uint32_t token)
{
    const struct moe_trace_shape *s = d->shape;
    uint64_t row = (uint64_t)layer * d->n + token;
    const float *router = d->router + row * s->n_experts;
    assert_int_equal(step->experts != NULL, sees(d, layer, token));
    if (!step->experts)
        return;
    for (uint32_t i = 0; i < s->top_k; i++) {
        assert_int_equal(step->experts[i], d->chosen[row * s->top_k + i]);
        assert_score(step->weights[i], (double)d->weights[row * s->top_k + i]);
    }
    assert_true((step->scores != NULL) == (s->keep > 0));
    for (uint32_t i = 0; i < s->keep; i++)
        assert_score(step->scores[i], (double)router[step->experts[i]]);
    for (uint32_t i = s->top_k + 1; i < s->keep; i++)
        assert_true(router[step->experts[i]] <= router[step->experts[i - 1]]);
    for (uint64_t p = 0; p < MOE_N_PREDICTORS; p++) {
        bool kept = s->predictors & 1u << p && moe_trace_predicts(s, (enum moe_predictor)p, layer);
        assert_true((step->predicted[p].experts != NULL) == kept);
        if (kept)
            check_prediction(
                d->predicted + ((layer * MOE_N_PREDICTORS + p) * d->n + token) * s->n_experts,
                s->n_experts, s->keep, step->predicted[p].experts, step->predicted[p].scores);
    }
}

/* Everything in it, twice. */
static void check_documents(struct moe_trace *t, const struct document *d, uint32_t n_documents)
{
    struct moe_err err = {0};
    const struct moe_trace_token *token;
    for (int time = 0; time < 2; time++) {
        for (uint32_t i = 0; i < n_documents; i++)
            for (uint32_t at = 0; at < d[i].n; at++) {
                assert_ok(moe_trace_next(t, &token, &err), &err);
                assert_non_null(token);
                assert_int_equal(token->sequence, i);
                assert_int_equal(token->index, at);
                assert_int_equal(token->prompt, at < d[i].n_prompt);
                assert_int_equal(token->id, id_of(&d[i], at));
                for (uint32_t l = 0; l < d[i].shape->n_layers; l++) {
                    struct moe_trace_step step = moe_trace_step(t, l);
                    check_step(&d[i], &step, l, at);
                }
            }
        for (int again = 0; again < 2; again++) {
            assert_ok(moe_trace_next(t, &token, &err), &err);
            assert_null(token);
        }
        moe_trace_rewind(t);
    }
}

static uint64_t *new_sizes(const struct moe_trace_shape *s)
{
    uint64_t n = (uint64_t)s->n_variants * s->n_layers * s->n_experts;
    uint64_t *sizes = calloc(n + 1, sizeof *sizes);
    for (uint64_t i = 0; i < n; i++)
        sizes[i] = i * 4096;
    return sizes;
}

static void write_documents(const char *to, const struct moe_trace_shape *s,
                            const struct document *d, uint32_t n, uint32_t batch)
{
    struct moe_err err = {0};
    struct moe_trace_writer *w = NULL;
    assert_ok(moe_trace_create(&w, to, s, &err), &err);
    for (uint32_t i = 0; i < n; i++)
        put_document(w, &d[i], batch);
    assert_ok(moe_trace_commit(w, &err), &err);
}

/* What is kept is not read again: all of it with room for that, after which the file may be
 * damaged; else as much as there is room for. Closes t. */
static void check_kept(struct moe_trace *t, const struct document *d, uint32_t n_documents,
                       bool all)
{
    struct moe_err err = {0};
    struct moe_trace *again = NULL;
    const struct moe_trace_token *token;
    uint64_t n = 0;
    assert_ok(moe_trace_keep(t, all ? 1 << 26 : 30000, &err), &err);
    moe_trace_want(t, 0, 1, 2); /* of the others the heads */
    while (moe_trace_next(t, &token, &err) == MOE_OK && token)
        n++;
    assert_int_equal(n, d[1].n);
    moe_trace_rewind(t);
    check_documents(t, d, n_documents);
    assert_ok(moe_trace_another(&again, t, &err), &err);
    const uint64_t at = t->first_tokens_at;
    moe_trace_close(t);
    if (all) {
        FILE *f = fopen(path, "r+");
        assert_non_null(f);
        assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
        for (int i = 0; i < 100; i++)
            assert_int_equal(fputc(0, f), 0);
        assert_int_equal(fclose(f), 0);
    }
    check_documents(again, d, n_documents);
    moe_trace_close(again);
}

enum { SOME = 1 << MOE_PREDICT_GATE_2 | 1 << MOE_PREDICT_ATTN };

static void what_is_written_comes_back(void **state)
{
    static const struct moe_trace_shape shapes[] = {
        {3, 8, 2, 4, MOE_TRACE_PREDICTORS, 2, {"8", "4d8"}, NULL, 7, 0, {0}, false, {0}},
        {5, 32, 4, 0, 0, 1, {"4"}, NULL, 8, 0, {0}, false, {0}},
        {4, 300, 6, 75, SOME, 0, {""}, NULL, 9, 0, {0}, true, {0}},
        {7, 8, 1, 4, MOE_TRACE_PREDICTORS, 0, {""}, NULL, 10, 3, {0}, false, {0}},
        {5, 300, 2, 75, MOE_TRACE_PREDICTORS, 1, {"4"}, NULL, 11, 4, {0}, true, {0}},
        {1, 16, 8, 2, MOE_TRACE_PREDICTORS, 0, {""}, NULL, 0, 0, {0}, false, {0}},
        {2, 6, 6, 6, SOME, 1, {"16"}, NULL, 1, 0, {0}, false, {0}},
        {5, 8, 2, 4, MOE_TRACE_PREDICTORS, 2, {"8", "4"}, NULL, 12, 0, {1, 0, 0, 1, 0}, false, {0}},
        {4, 8, 1, 4, MOE_TRACE_PREDICTORS, 0, {""}, NULL, 13, 2, {1, 1, 0, 1}, true, {0}},
        {7, 8, 2, 4, MOE_TRACE_PREDICTORS, 1, {"4"}, NULL, 14, 0, {0}, true, {1, 2, 2}},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++) {
        struct moe_err err = {0};
        struct moe_trace_shape s = shapes[i];
        struct moe_trace *t = NULL;
        struct moe_buf first = {0}, file = {0};
        uint64_t *sizes = new_sizes(&s);
        s.expert_bytes = sizes;
        struct document d[] = {new_document(&s, 300, 150, i), new_document(&s, 1, 0, i + 1),
                               new_document(&s, 270, 270, i + 2)};
        for (uint32_t batch = 300; batch > 0; batch /= 17) {
            write_documents(path, &s, d, 3, batch);
            moe_buf_clear(&file);
            assert_ok(moe_file_read_all(path, 1 << 30, &file, &err), &err);
            if (first.size == 0)
                moe_buf_append(&first, file.data, file.size);
            assert_true(first.size == file.size && memcmp(first.data, file.data, file.size) == 0);
        }
        assert_true(moe_trace_is(path));
        assert_ok(moe_trace_open(&t, path, &err), &err);
        assert_int_equal(moe_trace_totals(t)->sequences, 3);
        assert_int_equal(moe_trace_totals(t)->tokens, 571);
        assert_int_equal(moe_trace_totals(t)->prompt_tokens, 420);
        assert_int_equal(moe_trace_shape(t)->source_fingerprint, s.source_fingerprint);
        assert_int_equal(moe_trace_shape(t)->keep, s.keep);
        assert_memory_equal(&moe_trace_shape(t)->loop, &s.loop, sizeof s.loop);
        for (uint32_t v = 0; v < s.n_variants; v++) {
            assert_string_equal(moe_trace_shape(t)->variants[v], s.variants[v]);
            uint32_t l = s.n_layers - 1, e = s.n_experts - 1;
            assert_int_equal(moe_trace_expert_bytes(moe_trace_shape(t), v, l, e),
                             moe_trace_expert_bytes(&s, v, l, e));
        }
        check_documents(t, d, 3);
        check_kept(t, d, 3, i % 2);
        moe_buf_release(&first);
        moe_buf_release(&file);
        for (int k = 0; k < 3; k++)
            free_document(&d[k]);
        free(sizes);
    }
}

/* Continues the file at `path` after its first sequence of n tokens. */
static int continue_trace(struct moe_trace_writer **w, const struct moe_trace_shape *s, uint64_t n,
                          struct moe_err *err)
{
    const struct moe_trace_totals until = {.sequences = 1, .tokens = n};
    struct moe_trace *t = NULL;
    int status = moe_trace_open_part(&t, path, err);
    if (status == MOE_OK)
        status = moe_trace_continue(w, t, s, &until, err);
    moe_trace_close(t);
    return status;
}

/* Whatever lies behind the sequences that are known to be there: nothing, a sequence, half of one,
 * anything. */
static void a_part_is_continued(void **state)
{
    struct moe_err err = {0};
    struct moe_trace_shape s = {3, 8, 2, 4, SOME, 0, {""}, NULL, 7, 0, {0}, true, {0}};
    struct document d[] = {new_document(&s, 20, 10, 1), new_document(&s, 30, 10, 2)};
    struct moe_trace_writer *w = NULL, *none;
    struct moe_trace *t = NULL;
    struct moe_buf whole = {0}, part = {0}, again = {0};
    write_documents(path, &s, d, 2, 100);
    assert_ok(moe_file_read_all(path, 1 << 30, &whole, &err), &err);
    for (uint64_t behind = 0; behind < 8; behind++) {
        unlink(path);
        assert_ok(moe_trace_create(&w, path, &s, &err), &err);
        put_document(w, &d[0], 100);
        assert_ok(moe_trace_save(w, &err), &err);
        moe_buf_clear(&part);
        assert_ok(moe_file_read_all(path, 1 << 30, &part, &err), &err);
        assert_ok(moe_trace_open(&t, path, &err), &err); /* a whole trace at every save */
        moe_trace_close(t);
        assert_int_equal(continue_trace(&none, &s, 20, &err), MOE_ERR_IO); /* being written */
        if (behind & 1)
            put_document(w, &d[1], 100);
        if (behind & 2)
            assert_ok(moe_trace_save(w, &err), &err);
        moe_trace_abort(w);
        if (behind & 4) {
            FILE *f = fopen(path, "ab");
            assert_true(f && fwrite(whole.data, 1, 77, f) == 77 && fclose(f) == 0);
        }
        assert_ok(continue_trace(&w, &s, 20, &err), &err);
        put_document(w, &d[1], 100);
        assert_ok(moe_trace_commit(w, &err), &err);
        moe_buf_clear(&again);
        assert_ok(moe_file_read_all(path, 1 << 30, &again, &err), &err);
        assert_true(whole.size == again.size && memcmp(whole.data, again.data, whole.size) == 0);
    }
    assert_int_equal(continue_trace(&w, &s, 19, &err), MOE_ERR_USAGE); /* another document */
    assert_int_equal(continue_trace(&w, &s, 51, &err), MOE_ERR_USAGE); /* fewer tokens */
    s.keep = 5;
    assert_int_equal(continue_trace(&w, &s, 20, &err), MOE_ERR_USAGE);
    s.keep = 4;
    part.data[part.size - 1] ^= 1;
    assert_ok(moe_file_write_all(path, part.data, part.size, &err), &err);
    assert_int_equal(continue_trace(&w, &s, 20, &err), MOE_ERR_FORMAT);
    moe_buf_release(&whole);
    moe_buf_release(&part);
    moe_buf_release(&again);
    free_document(&d[0]);
    free_document(&d[1]);
}

/* ---- Shards ---- */

enum { SHARDS = 3, ALL_DOCUMENTS = 8 };

/* A trace of the documents of a shard; text: what they are told to be. */
static void write_shard(const char *to, const struct document *d, uint32_t shard, uint32_t n,
                        uint64_t text)
{
    struct moe_err err = {0};
    struct moe_trace_writer *w = NULL;
    struct moe_origins origins;
    assert_ok(moe_origins_begin(&origins, 1, shard, n, &err), &err);
    origins.items->documents = ALL_DOCUMENTS;
    origins.items->texts[origins.items->n_texts++] = text;
    assert_ok(moe_trace_create(&w, to, d->shape, &err), &err);
    assert_ok(moe_trace_set_origins(w, &origins, &err), &err);
    for (uint32_t i = shard; i < ALL_DOCUMENTS; i += n)
        put_document(w, &d[i], 100);
    assert_ok(moe_trace_commit(w, &err), &err);
    moe_origins_release(&origins);
}

static void assert_same_file(const char *a, const char *b)
{
    struct moe_err err = {0};
    struct moe_buf x = {0}, y = {0};
    assert_ok(moe_file_read_all(a, 1 << 30, &x, &err), &err);
    assert_ok(moe_file_read_all(b, 1 << 30, &y, &err), &err);
    assert_true(x.size == y.size && memcmp(x.data, y.data, x.size) == 0);
    moe_buf_release(&x);
    moe_buf_release(&y);
}

/* Documents of one frame, of exactly one, of several, of one token. */
static void shards_merge_to_the_trace_of_one_run(void **state)
{
    static const uint32_t lengths[ALL_DOCUMENTS] = {20, 256, 300, 1, 512, 700, 3, 40};
    static const struct moe_trace_shape s = {3, 8, 2, 4, SOME, 0, {""}, NULL, 7, 0, {0}, true, {0}};
    struct moe_err err = {0};
    struct document d[ALL_DOCUMENTS];
    char part[SHARDS][160], some[160], sum[160];
    for (uint32_t i = 0; i < ALL_DOCUMENTS; i++)
        d[i] = new_document(&s, lengths[i], lengths[i] / 2, i);
    assert_true(trace_layout_of(&s).frame_tokens == 256);
    for (uint32_t i = 0; i < SHARDS; i++) {
        snprintf(part[i], sizeof part[i], "%s-%u", path, i);
        write_shard(part[i], d, i, SHARDS, 5);
    }
    snprintf(some, sizeof some, "%s-some", path);
    snprintf(sum, sizeof sum, "%s-sum", path);
    write_shard(path, d, 0, 1, 5);
    const char *all[] = {part[2], part[0], part[1]}, *last[] = {part[1], some};
    assert_ok(moe_trace_merge(all, 3, sum, false, &err), &err);
    assert_same_file(sum, path);
    assert_fails(moe_trace_merge(all, 2, some, false, &err), MOE_ERR_USAGE,
                 "shard 2 of 3 is missing", &err);
    assert_ok(moe_trace_merge(all, 2, some, true, &err), &err);
    assert_ok(moe_trace_merge(last, 2, sum, false, &err), &err);
    assert_same_file(sum, path);
    const char *twice[] = {part[0], some};
    assert_fails(moe_trace_merge(twice, 2, sum, true, &err), MOE_ERR_USAGE,
                 "-some: would count twice: shard 1 of 3", &err);
    /* A run over other texts comes before or after, whatever the order of names. */
    write_shard(other, d, 0, 1, 4);
    const char *two[] = {path, other}, *turned[] = {other, path};
    assert_ok(moe_trace_merge(two, 2, sum, false, &err), &err);
    assert_ok(moe_trace_merge(turned, 2, some, false, &err), &err);
    assert_same_file(sum, some);
    struct moe_trace *t = NULL;
    assert_ok(moe_trace_open(&t, sum, &err), &err);
    assert_int_equal(moe_trace_totals(t)->sequences, 2 * ALL_DOCUMENTS);
    moe_trace_close(t);
    for (uint32_t i = 0; i < SHARDS; i++)
        unlink(part[i]);
    unlink(some);
    unlink(sum);
    for (uint32_t i = 0; i < ALL_DOCUMENTS; i++)
        free_document(&d[i]);
}

/* What cannot be merged: no origin, another shape, documents that are missing. */
static void what_does_not_belong_is_not_merged(void **state)
{
    struct moe_err err = {0};
    struct moe_trace_shape s = {3, 8, 2, 4, SOME, 0, {""}, NULL, 7, 0, {0}, false, {0}}, more = s;
    struct document d[ALL_DOCUMENTS], e[ALL_DOCUMENTS];
    more.keep = 5;
    for (uint32_t i = 0; i < ALL_DOCUMENTS; i++) {
        d[i] = new_document(&s, 2, 1, i);
        e[i] = new_document(&more, 2, 1, i);
    }
    const char *both[] = {path, other};
    write_shard(path, d, 0, 2, 5);
    write_documents(other, &s, d, 2, 9);
    assert_fails(moe_trace_merge(both, 2, path, false, &err), MOE_ERR_USAGE,
                 "does not say which texts it is from", &err);
    write_shard(other, e, 1, 2, 5);
    assert_fails(moe_trace_merge(both, 2, path, false, &err), MOE_ERR_USAGE,
                 "has other scores or sizes of experts", &err);
    struct moe_trace_writer *w = NULL;
    struct moe_origins origins;
    assert_ok(moe_origins_begin(&origins, 1, 1, 2, &err), &err);
    origins.items->documents = ALL_DOCUMENTS;
    origins.items->texts[origins.items->n_texts++] = 5;
    assert_ok(moe_trace_create(&w, other, &s, &err), &err);
    assert_ok(moe_trace_set_origins(w, &origins, &err), &err);
    put_document(w, &d[1], 9);
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_fails(moe_trace_merge(both, 2, path, false, &err), MOE_ERR_USAGE,
                 "by an interrupted run, with 1 of 4 documents", &err);
    moe_origins_release(&origins);
    for (uint32_t i = 0; i < ALL_DOCUMENTS; i++) {
        free_document(&d[i]);
        free_document(&e[i]);
    }
}

/* Values that are not numbers still give a trace that can be read. */
static void odd_scores_are_written(void **state)
{
    struct moe_err err = {0};
    struct moe_trace_shape s = {1, 4,   2,     4,  1 << MOE_PREDICT_ATTN, 0, {""}, NULL, 7,
                                0, {0}, false, {0}};
    const uint32_t chosen[] = {3, 1};
    const float weights[] = {1e9f, -1}, router[] = {NAN, INFINITY, -INFINITY, 0};
    const float scores[] = {NAN, 0, INFINITY, NAN};
    struct moe_layer_observation seen = {.chosen = chosen, .weights = weights, .stride = 4};
    struct moe_trace_writer *w = NULL;
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    seen.predicted[MOE_PREDICT_ATTN] = scores;
    assert_ok(moe_trace_create(&w, path, &s, &err), &err);
    assert_ok(moe_trace_begin(w, &err), &err);
    assert_ok(moe_trace_add(w, 2, 0, &err), &err);
    assert_int_equal(moe_trace_add(w, 1, 1, &err), MOE_ERR_USAGE);
    moe_trace_put(w, 0, 1, 1, &seen, router, 4);
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_trace_open(&t, path, &err), &err);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_null(moe_trace_step(t, 0).experts);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    struct moe_trace_step step = moe_trace_step(t, 0);
    assert_int_equal(step.experts[0], 3);
    assert_true(step.weights[0] == 65504 && step.weights[1] == 0);
    moe_trace_close(t);
}

/* ---- Damage ---- */

/* Opens and reads it all; the status, with a text that names the file when it failed. */
static int read_all(void)
{
    struct moe_err err = {0};
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token = NULL;
    int status = moe_trace_open(&t, path, &err);
    while (status == MOE_OK && (status = moe_trace_next(t, &token, &err)) == MOE_OK && token)
        for (uint32_t l = 0; l < moe_trace_shape(t)->n_layers; l++)
            (void)moe_trace_step(t, l);
    if (status != MOE_OK)
        assert_true(strncmp(err.text, path, strlen(path)) == 0);
    moe_trace_close(t);
    return status;
}

static int read_bytes(const void *data, uint64_t n)
{
    struct moe_err err = {0};
    assert_ok(moe_file_write_all(path, data, n, &err), &err);
    return read_all();
}

/* A small trace of two sequences. */
static struct moe_buf small_trace(void)
{
    struct moe_err err = {0};
    struct moe_trace_shape s = {2, 8, 2, 3, SOME, 1, {"4"}, NULL, 7, 0, {0}, false, {0}};
    struct document d[] = {new_document(&s, 3, 1, 1), new_document(&s, 2, 1, 2)};
    struct moe_buf file = {0};
    uint64_t *sizes = new_sizes(&s);
    s.expert_bytes = sizes;
    write_documents(path, &s, d, 2, 2);
    assert_ok(moe_file_read_all(path, 1 << 20, &file, &err), &err);
    free_document(&d[0]);
    free_document(&d[1]);
    free(sizes);
    return file;
}

static void a_cut_at_any_byte_is_an_error(void **state)
{
    struct moe_buf file = small_trace();
    assert_int_equal(read_all(), MOE_OK);
    for (uint64_t n = 0; n < file.size; n++)
        assert_int_equal(read_bytes(file.data, n), MOE_ERR_FORMAT);
    moe_buf_u8(&file, 0);
    assert_int_equal(read_bytes(file.data, file.size), MOE_ERR_FORMAT);
    moe_buf_release(&file);
}

static void damage_of_any_byte_is_an_error(void **state)
{
    struct moe_buf file = small_trace();
    for (uint64_t at = 0; at < file.size; at++) {
        file.data[at] ^= (uint8_t)(1 << at % 8);
        int status = read_bytes(file.data, file.size);
        bool version = at >= 4 && at < 8;
        assert_int_equal(status, version ? MOE_ERR_VERSION : MOE_ERR_FORMAT);
        file.data[at] ^= (uint8_t)(1 << at % 8);
    }
    moe_buf_release(&file);
}

static int read_with_header(struct moe_buf *file, uint32_t at, uint32_t value)
{
    uint32_t before = moe_get_u32(file->data + at);
    moe_put_u32(file->data + at, value);
    moe_put_u64(file->data + TRACE_CHECKSUM_AT, moe_hash64(file->data, TRACE_CHECKSUM_AT));
    int status = read_bytes(file->data, file->size);
    moe_put_u32(file->data + at, before);
    return status;
}

/* A header that lies with a right checksum. */
static void forged_headers_are_errors(void **state)
{
    struct moe_buf file = small_trace();
    assert_int_equal(read_with_header(&file, 24, 2), MOE_OK);
    for (uint32_t at = 24; at < TRACE_CHECKSUM_AT; at += 4)
        for (int i = 0; i < 6; i++) {
            static const uint32_t values[] = {0, 1, 9, 1 << 20, INT32_MAX, UINT32_MAX};
            if (values[i] != moe_get_u32(file.data + at))
                assert_int_equal(read_with_header(&file, at, values[i]), MOE_ERR_FORMAT);
        }
    moe_buf_release(&file);
}

/* The border: no layer of the decoder for a source, none of the encoder for a target. */
static void tokens_of_the_wrong_layers_are_errors(void **state)
{
    struct moe_trace_shape shape = {4, 8, 1, 0, 0, 0, {""}, NULL, 7, 0, {0}, false, {0}};
    struct document d = new_document(&shape, 5, 3, 1);
    struct moe_buf file = {0};
    struct moe_err err = {0};
    write_documents(path, &shape, &d, 1, 2); /* every layer, every token */
    assert_ok(moe_file_read_all(path, 1 << 20, &file, &err), &err);
    assert_int_equal(read_bytes(file.data, file.size), MOE_OK);
    assert_int_equal(read_with_header(&file, 76, 2), MOE_ERR_FORMAT);
    /* Loops: of layer 1, visited again as 2, of one layer beyond the last, of none, once. */
    assert_int_equal(read_with_header(&file, 84, 1 | 1 << 10 | 2 << 20), MOE_OK);
    assert_int_equal(read_with_header(&file, 84, 1 | 2 << 10 | 2 << 20), MOE_ERR_FORMAT);
    assert_int_equal(read_with_header(&file, 84, 1 | 2 << 20), MOE_ERR_FORMAT);
    assert_int_equal(read_with_header(&file, 84, 1 | 1 << 10 | 1 << 20), MOE_ERR_FORMAT);
    moe_buf_release(&file);
    shape.n_encoder = 2;
    write_documents(path, &shape, &d, 1, 2);
    assert_ok(moe_file_read_all(path, 1 << 20, &file, &err), &err);
    assert_int_equal(read_with_header(&file, 76, 2), MOE_OK);
    assert_int_equal(read_with_header(&file, 76, 1), MOE_ERR_FORMAT);
    assert_int_equal(read_with_header(&file, 76, 3), MOE_ERR_FORMAT);
    assert_int_equal(read_with_header(&file, 76, 4), MOE_ERR_FORMAT);
    moe_buf_release(&file);
    free_document(&d);
}

/* Frames that are sound one by one but do not follow each other. */
static void frames_out_of_order_are_errors(void **state)
{
    struct moe_buf file = small_trace(), swapped = {0};
    uint64_t first = TRACE_HEADER_BYTES, second, end = file.size;
    first += TRACE_FRAME_HEAD_BYTES + moe_get_u32(file.data + first + 8); /* sizes */
    second = first + TRACE_FRAME_HEAD_BYTES + moe_get_u32(file.data + first + 8);
    moe_buf_append(&swapped, file.data, first);
    moe_buf_append(&swapped, file.data + second, end - second);
    moe_buf_append(&swapped, file.data + first, second - first);
    assert_int_equal(read_bytes(swapped.data, swapped.size), MOE_ERR_FORMAT);
    moe_buf_release(&file);
    moe_buf_release(&swapped);
}

/* Origins that lie in a sound frame. */
static void forged_origins_are_errors(void **state)
{
    static const struct moe_trace_shape s = {2, 8, 2, 0, 0, 0, {""}, NULL, 7, 0, {0}, false, {0}};
    struct moe_err err = {0};
    uint64_t text = 3;
    uint32_t held[] = {0, 2, 2};
    struct moe_origin o = {.documents = 3, .n_texts = 1, .texts = &text, .shards = {3, 2, held}};
    const struct moe_origins origins = {1, &o};
    struct moe_trace *t = NULL;
    for (int kind = 0; kind < 9; kind++) {
        struct moe_trace_writer *w = NULL;
        struct document d[] = {new_document(&s, 2, 1, 1), new_document(&s, 2, 1, 2)};
        o.shards = (struct moe_shards){3, 2, held};
        o.documents = 3;
        o.n_texts = 1;
        held[0] = 0;
        switch (kind) {
        case 1:
            o.shards.n_held = 3; /* one of them twice */
            break;
        case 2:
            o.shards.n = 2; /* the third of two */
            break;
        case 3:
            o.shards.n = 0;
            break;
        case 4:
            o.shards.n = MOE_MAX_SHARDS + 1;
            break;
        case 5:
            held[0] = UINT32_MAX; /* number 0 in the file */
            break;
        case 6:
            o.documents = 1; /* and two sequences */
            break;
        case 7:
            o.documents = MOE_MAX_ORIGIN_DOCUMENTS + 1;
            break;
        case 8:
            o.n_texts = 0;
            break;
        }
        assert_ok(moe_trace_create(&w, path, &s, &err), &err);
        assert_ok(moe_trace_set_origins(w, &origins, &err), &err);
        put_document(w, &d[0], 9);
        put_document(w, &d[1], 9);
        assert_ok(moe_trace_commit(w, &err), &err);
        assert_int_equal(moe_trace_open(&t, path, &err), kind ? MOE_ERR_FORMAT : MOE_OK);
        if (kind)
            assert_non_null(strstr(err.text, "frame at byte 123: "));
        moe_trace_close(t);
        free_document(&d[0]);
        free_document(&d[1]);
    }
}

/* A list of layers that choose by the token that is none. */
static void forged_lists_of_static_layers_are_errors(void **state)
{
    static const uint8_t lists[][3] = {{1, 0, 1}, {0, 0, 0}, {1, 2, 0}};
    for (size_t i = 0; i < N_ITEMS(lists); i++) {
        struct moe_trace_shape s = {3, 8, 2, 4, SOME, 0, {""}, NULL, 7, 0, {0}, false, {0}};
        struct moe_buf file = {0};
        struct moe_err err = {0};
        memcpy(s.is_static, lists[i], 3);
        struct document d = new_document(&s, 5, 3, 1);
        write_documents(path, &s, &d, 1, 2);
        assert_ok(moe_file_read_all(path, 1 << 20, &file, &err), &err);
        assert_int_equal(read_with_header(&file, 24, 3), i < 2 ? MOE_OK : MOE_ERR_FORMAT);
        moe_buf_release(&file);
        free_document(&d);
    }
}

static void other_versions_are_refused(void **state)
{
    struct moe_buf file = small_trace();
    assert_int_equal(read_with_header(&file, 4, MOE_TRACE_VERSION), MOE_OK);
    assert_int_equal(read_with_header(&file, 4, 0), MOE_ERR_VERSION);
    assert_int_equal(read_with_header(&file, 4, MOE_TRACE_VERSION + 1), MOE_ERR_VERSION);
    moe_buf_release(&file);
}

/* ---- Other engines' traces ---- */

#define CSV_HEAD                                                                                   \
    "# route_trace v1\n# model=m arch=a n_layer=3 n_expert=4 n_expert_used=2\n"                    \
    "# layer=1 expert_bytes=100 dense_bytes=7\n# layer=2 expert_bytes=50 dense_bytes=7\n"          \
    "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
#define CSV_PROMPT                                                                                 \
    "0,0,0,1,0,3,0.75,0,100\n0,0,0,1,1,0,0.25,0,100\n0,0,1,1,0,2,0.6,0,100\n"                      \
    "0,0,1,1,1,1,0.4,0,100\n0,0,1,2,0,2,0.6,0,50\n0,0,1,2,1,1,0.4,0,50\n"
#define CSV_DECODE                                                                                 \
    "0,1,2,1,0,3,0.75,0,100\n0,1,2,1,1,0,0.25,0,100\n0,1,2,2,0,2,0.6,0,50\n0,1,2,2,1,1,0.4,0,50\n"
#define CSV_TURN "7,0,9,1,0,3,0.75,0,100\n7,0,9,1,1,0,0.25,0,100\n"

static int import(const char *text)
{
    struct moe_err err = {0};
    unlink(path);
    assert_ok(moe_file_write_all(other, text, strlen(text), &err), &err);
    int status = moe_trace_import(other, path, &err);
    if (status != MOE_OK) {
        assert_true(strncmp(err.text, other, strlen(other)) == 0);
        assert_false(moe_path_exists(path));
    }
    return status;
}

static void a_csv_is_imported(void **state)
{
    struct moe_err err = {0};
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    assert_int_equal(import(CSV_HEAD CSV_PROMPT CSV_DECODE CSV_TURN), MOE_OK);
    assert_ok(moe_trace_open(&t, path, &err), &err);
    const struct moe_trace_shape *s = moe_trace_shape(t);
    assert_true(s->n_layers == 2 && s->n_experts == 4 && s->top_k == 2 && s->keep == 0);
    assert_int_equal(moe_trace_expert_bytes(s, 0, 0, 3), 100);
    assert_int_equal(moe_trace_expert_bytes(s, 0, 1, 0), 50);
    assert_int_equal(moe_trace_totals(t)->sequences, 2);
    assert_int_equal(moe_trace_totals(t)->tokens, 4);
    assert_int_equal(moe_trace_totals(t)->prompt_tokens, 3);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_true(token->prompt);
    struct moe_trace_step step = moe_trace_step(t, 0);
    assert_true(step.experts[0] == 3 && step.experts[1] == 0 && step.weights[0] == 0.75f);
    assert_null(step.scores);
    assert_null(moe_trace_step(t, 1).experts); /* the last layer of a prompt's inner token */
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_int_equal(moe_trace_step(t, 1).experts[0], 2);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_true(!token->prompt && token->index == 2);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_true(token->sequence == 1 && token->index == 0 && token->prompt);
    moe_trace_close(t);
    assert_int_equal(read_all(), MOE_OK);
}

static void wrong_csv_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "turn,phase\n",
        "# route_trace v1\n",
        "# route_trace v1\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n",
        "# route_trace v1\n# n_layer=9 n_expert=99999 n_expert_used=2\n",
        "# route_trace v1\n# n_layer=1 n_expert=2 n_expert_used=3\n",
        "# route_trace v1\n# layer=0 expert_bytes=1\n# layer=0 expert_bytes=1\n",
        "# route_trace v1\n# layer=5000 expert_bytes=1\n",
        CSV_HEAD "0,0,0,1,0,3\n",
        CSV_HEAD "0,2,0,1,0,3,0.5,0,0\n",                      /* phase */
        CSV_HEAD "0,0,0,0,0,3,0.5,0,0\n",                      /* a dense layer */
        CSV_HEAD "0,0,0,9,0,3,0.5,0,0\n",                      /* no such layer */
        CSV_HEAD "0,0,0,1,2,3,0.5,0,0\n",                      /* slot */
        CSV_HEAD "0,0,0,1,0,4,0.5,0,0\n",                      /* expert */
        CSV_HEAD "0,0,0,1,0,3,-1,0,0\n",                       /* weight */
        CSV_HEAD "0,0,0,1,0,3,nan,0,0\n",                      /* weight */
        CSV_HEAD "0,0,0,1,0,3,0.5,0,0\n",                      /* an expert missing */
        CSV_HEAD CSV_PROMPT "0,0,1,1,0,2,0.6,0,100\n",         /* twice */
        CSV_HEAD CSV_PROMPT "0,0,4,1,0,2,0.6,0,100\n",         /* steps left out */
        CSV_HEAD CSV_PROMPT "0,1,1,1,0,2,0.6,0,100\n",         /* both phases */
        CSV_HEAD CSV_DECODE "0,0,3,1,0,2,0.6,0,100\n",         /* a prompt at the end */
        CSV_HEAD CSV_DECODE "0,1,1,1,0,2,0.6,0,100\n",         /* before the first */
        CSV_HEAD "0,0,0,1,0,3,0.5,0,0\n0,0,0,1,1,3,0.5,0,0\n", /* an expert twice */
    };
    for (size_t i = 0; i < N_ITEMS(texts); i++)
        assert_int_equal(import(texts[i]), MOE_ERR_FORMAT);
}

static void json_lines_are_imported(void **state)
{
    struct moe_err err = {0};
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    assert_int_equal(import("{\"tok\": 1, \"layers\": [[0, 2], [5, 1]]}\n"
                            "{\"tok\": 2, \"layers\": [[3, 2], [4, 6]]}\n\n"
                            "{\"tok\": 1, \"layers\": [[3, 2], [4, 1]]}"),
                     MOE_OK);
    assert_ok(moe_trace_open(&t, path, &err), &err);
    const struct moe_trace_shape *s = moe_trace_shape(t);
    assert_true(s->n_layers == 2 && s->n_experts == 7 && s->top_k == 2 && s->n_variants == 0);
    assert_int_equal(moe_trace_totals(t)->sequences, 2);
    assert_int_equal(moe_trace_totals(t)->tokens, 3);
    assert_int_equal(moe_trace_totals(t)->prompt_tokens, 0);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_true(!token->prompt && token->index == 1);
    struct moe_trace_step step = moe_trace_step(t, 1);
    assert_true(step.experts[0] == 4 && step.experts[1] == 6 && step.weights[1] == 0.5f);
    moe_trace_close(t);
}

static void wrong_json_is_refused(void **state)
{
    static const char *const texts[] = {
        "{",
        "{\"tok\": 1}\n",
        "{\"layers\": [[1]]}\n",
        "{\"tok\": 1, \"layers\": []}\n",
        "{\"tok\": 1, \"layers\": [[]]}\n",
        "{\"tok\": 1, \"layers\": [[1], [1, 2]]}\n",
        "{\"tok\": 1, \"layers\": [[1, 1]]}\n",
        "{\"tok\": 1, \"layers\": [[-1]]}\n",
        "{\"tok\": 1, \"layers\": [[1.5]]}\n",
        "{\"tok\": 1, \"layers\": [[4096]]}\n",
        "{\"tok\": 1, \"layers\": [[1]]}\n{\"tok\": 3, \"layers\": [[1]]}\n",
        "{\"tok\": 1, \"layers\": [[1]]}\n{\"tok\": 2, \"layers\": [[1], [2]]}\n",
        "{\"tok\": 1, \"layers\": [[1]]}\n[]\n",
    };
    for (size_t i = 0; i < N_ITEMS(texts); i++)
        assert_int_equal(import(texts[i]), MOE_ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(a_part_is_continued),
        cmocka_unit_test(shards_merge_to_the_trace_of_one_run),
        cmocka_unit_test(what_does_not_belong_is_not_merged),
        cmocka_unit_test(odd_scores_are_written),
        cmocka_unit_test(a_cut_at_any_byte_is_an_error),
        cmocka_unit_test(damage_of_any_byte_is_an_error),
        cmocka_unit_test(forged_headers_are_errors),
        cmocka_unit_test(tokens_of_the_wrong_layers_are_errors),
        cmocka_unit_test(frames_out_of_order_are_errors),
        cmocka_unit_test(forged_origins_are_errors),
        cmocka_unit_test(forged_lists_of_static_layers_are_errors),
        cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(a_csv_is_imported),
        cmocka_unit_test(wrong_csv_is_refused),
        cmocka_unit_test(json_lines_are_imported),
        cmocka_unit_test(wrong_json_is_refused),
    };
    return cmocka_run_group_tests_name("trace", tests, name_files, remove_files);
}
