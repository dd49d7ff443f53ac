/*
 * Routing statistics: a file, or (where the input begins with a byte below 8) documents to be
 * counted. What is accepted is used for every figure, and comes back the same after writing and
 * reading. What is counted adds up: two shards give the file of one run, and what belongs to
 * different runs is refused or added.
 */
/* Readers: record/statistics*.c record/requests.c record/origins.c record/shards.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "record/statistics.h"
#include "record/statistics_figures.h"
#include "show/explain.h"
#include "show/show_statistics.h"

static void use(const struct moe_statistics *s)
{
    struct moe_err err;
    struct moe_buf text = {0};
    float *scores = malloc(s->shape.n_experts * sizeof *scores);
    const uint32_t before[MOE_STATISTICS_MAX_TOP_K] = {0};
    if (!scores || moe_show_statistics(s, true, &text, &err) != MOE_OK ||
        moe_explain_statistics(s, false, &text, &err) != MOE_OK)
        abort();
    moe_buf_clear(&text);
    if (moe_show_statistics_json(s, &text, &err) != MOE_OK)
        abort();
    fuzz_check_json(&text);
    moe_buf_clear(&text);
    if (moe_explain_statistics_json(s, &text, &err) != MOE_OK)
        abort();
    fuzz_check_json(&text);
    moe_statistics_placement(s);
    moe_statistics_bytes(&s->shape);
    moe_statistics_check_finished(s, &err);
    for (uint32_t layer = 1; layer < s->shape.n_layers; layer++) {
        moe_path_scores(s, MOE_PREDICT_PATH, layer, 0, before, scores);
        moe_path_scores(s, MOE_PREDICT_PATH_RANK1, layer, 0, before, scores);
    }
    free(scores);
    moe_buf_release(&text);
}

static void write_text(const struct moe_statistics *s, struct moe_buf *out)
{
    struct moe_err err;
    if (moe_statistics_write(s, out, &err) != MOE_OK)
        abort();
}

static void check_round_trip(const struct moe_statistics *s)
{
    struct moe_err err;
    struct moe_buf first = {0}, second = {0};
    struct moe_statistics *again;
    write_text(s, &first);
    if (moe_statistics_read(&again, fuzz_file(first.data, first.size), &err) != MOE_OK)
        abort();
    write_text(again, &second);
    if (moe_statistics_fingerprint(again) != moe_statistics_fingerprint(s) ||
        moe_statistics_add(again, s, &err) != MOE_OK)
        abort();
    moe_statistics_free(again);
    fuzz_same(&first, &second);
}

static void read_file(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_statistics *s;
    if (moe_statistics_read(&s, fuzz_file(data, n), &err) != MOE_OK)
        return;
    if (n % 8 == 4) /* showing takes longest */
        use(s);
    check_round_trip(s);
    moe_statistics_free(s);
}

/* ---- Documents ---- */

enum { MAX_TOKENS = 40, MAX_DOCUMENTS = 4, MAX_EXPERTS = 8 };

static struct moe_statistics *new_shard(const struct moe_statistics_shape *shape, uint64_t text,
                                        uint64_t documents, uint32_t shard, uint32_t n_shards,
                                        const struct moe_statistics *prior)
{
    struct moe_err err;
    struct moe_statistics *s;
    if (moe_statistics_new(&s, shape, &err) != MOE_OK ||
        moe_origins_begin(&s->origins, 1, shard, n_shards, &err) != MOE_OK)
        abort();
    s->prior = prior;
    s->origins.items->documents = documents;
    s->origins.items->texts[s->origins.items->n_texts++] = text;
    return s;
}

/* One document, its choices, weights and predictions as the bytes say. */
static void count(struct moe_statistics *s, struct moe_cursor at, uint64_t hash)
{
    uint32_t k = s->shape.top_k, n_experts = s->shape.n_experts;
    uint32_t n = moe_cursor_u8(&at) % (s->shape.max_tokens + 1);
    struct moe_err err;
    if (moe_statistics_begin(s, hash, &err) != MOE_OK)
        abort();
    for (uint32_t token = 0; token < n; token++)
        for (uint32_t layer = 0; layer < s->shape.n_layers; layer++) {
            uint32_t chosen[MAX_EXPERTS];
            float weights[MAX_EXPERTS], norms[MAX_EXPERTS], scores[MAX_EXPERTS], cosine;
            uint32_t first = moe_cursor_u8(&at);
            for (uint32_t i = 0; i < k; i++) {
                chosen[i] = (first + i) % n_experts;
                weights[i] = (float)(first >> 4) / (float)(1 + i) / 16;
                norms[i] = weights[i] * (float)(first % 7);
            }
            for (uint32_t e = 0; e < n_experts; e++)
                scores[e] = (float)((first * (e + 3)) % 11);
            cosine = (float)first / 128 - 1;
            struct moe_layer_observation seen = {
                .chosen = chosen, .weights = weights, .stride = n_experts, .norms = norms};
            for (int p = MOE_PREDICT_GATE_1; layer && p <= MOE_PREDICT_RESIDUAL_3; p++)
                seen.predicted[p] = first & 1u << p % 8 ? scores : NULL;
            for (int c = 0; layer && c < MOE_N_COSINES; c++)
                seen.cosines[c] = first & 2u << c ? &cosine : NULL;
            moe_statistics_observe(s, layer, token, 1, &seen);
        }
    if (moe_statistics_end(s, &err) != MOE_OK)
        abort();
}

static void count_documents(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_cursor at = moe_cursor_over(data, n);
    uint8_t sizes = moe_cursor_u8(&at);
    struct moe_statistics_shape shape = {.n_layers = 1 + sizes % 4,
                                         .n_experts = 1 + moe_cursor_u8(&at) % MAX_EXPERTS,
                                         .max_tokens = 1 + moe_cursor_u8(&at) % MAX_TOKENS,
                                         .prompt_percent = moe_cursor_u8(&at) % 101};
    shape.top_k = 1 + moe_cursor_u8(&at) % shape.n_experts;
    uint64_t n_documents = moe_cursor_u8(&at) % (MAX_DOCUMENTS + 1), text = moe_cursor_u8(&at);
    struct moe_statistics *prior = new_shard(&shape, 0, 1, 0, 1, NULL);
    count(prior, at, 1);
    struct moe_statistics *whole = new_shard(&shape, text, n_documents, 0, 1, prior);
    struct moe_statistics *odd = new_shard(&shape, text, n_documents, 1, 2, prior);
    struct moe_statistics *even = new_shard(&shape, text, n_documents, 0, 2, prior);
    for (uint64_t i = 0; i < n_documents; i++) {
        struct moe_cursor here = at;
        uint64_t left = moe_cursor_left(&at), share = left / (n_documents - i);
        moe_cursor_take(&at, share);
        count(whole, here, i * 3 % 8);
        count(i % 2 ? odd : even, here, i * 3 % 8);
    }
    if (n % 8 == 4)
        use(whole);
    check_round_trip(odd);
    struct moe_buf one = {0}, sum = {0};
    write_text(whole, &one);
    if (moe_statistics_merge(odd, even, &err) != MOE_OK ||
        moe_origins_check(&odd->origins, false, &err) != MOE_OK)
        abort();
    write_text(odd, &sum);
    fuzz_same(&one, &sum);
    /* Whole runs over other texts add up; anything else is refused. */
    struct moe_statistics *other =
        new_shard(&shape, text + data[n / 2] % 2, 1, 0, 1 + data[n - 1] % 3, NULL);
    if (moe_statistics_merge(odd, other, &err) == MOE_OK)
        moe_origins_check(&odd->origins, true, &err);
    moe_statistics_merge(other, even, &err);
    moe_statistics_free(other);
    moe_statistics_free(prior);
    moe_statistics_free(whole);
    moe_statistics_free(odd);
    moe_statistics_free(even);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n && data[0] < 8)
        count_documents(data, n);
    else
        read_file(data, n);
    return 0;
}

FUZZ_MUTATE_TEXT
