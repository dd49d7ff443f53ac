/*
 * Writes the seeds of fuzz_statistics that are files: statistics of one document, of a shard with
 * all that can be measured, of none; pairs that belong together and that do not; keys of paths. Run
 * it in tests/fuzz/corpus/statistics.
 */
#include <stdio.h>

#include "base/file.h"
#include "profile/statistics.h"

enum { LAYERS = 2, EXPERTS = 2, TOP_K = 1, TOKENS = 3 };

static int count(struct moe_statistics *s, uint64_t hash, struct moe_err *err)
{
    static const uint32_t chosen[TOKENS] = {0, 1, 1};
    static const float weights[TOKENS] = {0.5f, 0.75f, 1}, cosines[TOKENS] = {0.5f, -0.25f, 1};
    static const float scores[TOKENS * EXPERTS] = {0.5f, 0.25f, 0.125f, 0.75f, 1};
    int status = moe_statistics_begin(s, hash, err);
    for (uint32_t layer = 0; layer < LAYERS && status == MOE_OK; layer++) {
        struct moe_layer_observation seen = {
            .chosen = chosen, .weights = weights, .norms = weights, .stride = EXPERTS};
        seen.predicted[MOE_PREDICT_GATE_1] = layer ? scores : NULL;
        seen.cosines[MOE_COSINE_GATE_1] = layer ? cosines : NULL;
        moe_statistics_observe(s, layer, 0, TOKENS, &seen);
    }
    return status == MOE_OK ? moe_statistics_end(s, err) : status;
}

/* What one run counted. */
struct run {
    uint32_t shard, n_shards;
    uint32_t documents; /* of all its shards */
    uint64_t texts[2];  /* the second may be 0 */
    uint64_t pack;
    uint32_t layers; /* 0: LAYERS */
    uint32_t tokens; /* 0: TOKENS */
    uint32_t left;   /* documents that an interrupted run left */
};

static int put_run(const struct run *run, struct moe_buf *text, struct moe_err *err)
{
    const struct moe_statistics_shape shape = {.n_layers = run->layers ? run->layers : LAYERS,
                                               .n_experts = EXPERTS,
                                               .top_k = TOP_K,
                                               .max_tokens = run->tokens ? run->tokens : TOKENS,
                                               .prompt_percent = 50};
    struct moe_statistics *s;
    int status = moe_statistics_new(&s, &shape, err);
    if (status == MOE_OK)
        status = moe_origins_begin(&s->origins, 2, run->shard, run->n_shards, err);
    if (status == MOE_OK) {
        struct moe_origin *o = s->origins.items;
        o->documents = run->documents;
        o->pack_fingerprint = run->pack;
        for (int i = 0; i < 2 && run->texts[i]; i++)
            o->texts[o->n_texts++] = run->texts[i];
    }
    uint64_t n = status == MOE_OK ? moe_origins_documents(&s->origins) : 0;
    for (uint64_t i = run->left; i < n && status == MOE_OK; i++)
        status = count(s, i, err);
    if (status == MOE_OK)
        status = moe_statistics_write(s, text, err);
    moe_statistics_free(s);
    return status;
}

/* One, or two to be merged (b not NULL). */
static int make(const char *path, const struct run *a, const struct run *b, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = put_run(a, &text, err);
    if (status == MOE_OK && b) {
        moe_buf_u8(&text, '\f');
        status = put_run(b, &text, err);
    }
    if (status == MOE_OK)
        status = moe_file_write_all(path, text.data, text.size, err);
    moe_buf_release(&text);
    return status;
}

/* Keys of paths that rise and fall, and come again. */
static int make_paths(const char *path, uint8_t limit, uint32_t n, struct moe_err *err)
{
    struct moe_buf keys = {0};
    moe_buf_u8(&keys, 8);
    moe_buf_u8(&keys, limit);
    for (uint32_t i = 0; i < n; i++)
        moe_buf_u16(&keys, (uint16_t)((i % 3 ? 4000 - 7 * i : 5 * i) % 4096 | (i % 4) << 12));
    int status = moe_file_write_all(path, keys.data, keys.size, err);
    moe_buf_release(&keys);
    return status;
}

/* A shard of so many of a run over texts. */
#define SHARD(shard_, n_, documents_, ...)                                                         \
    .shard = (shard_), .n_shards = (n_), .documents = (documents_), .texts = {__VA_ARGS__}

int main(void)
{
    static const struct run document = {SHARD(0, 1, 1, 7)}, empty = {SHARD(0, 1, 0, 7)},
                            shard = {SHARD(1, 3, 6, 7)};
    static const struct {
        const char *name;
        struct run a, b;
    } pairs[] = {
        {"merge-shards", {SHARD(0, 3, 6, 7)}, {SHARD(1, 3, 6, 7)}},
        {"merge-all-shards", {SHARD(0, 2, 2, 7)}, {SHARD(1, 2, 2, 7)}},
        {"merge-same-shard", {SHARD(1, 3, 6, 7)}, {SHARD(1, 3, 6, 7)}},
        {"merge-other-cut", {SHARD(0, 3, 6, 7)}, {SHARD(1, 4, 6, 7)}},
        {"merge-shard-of-many", {SHARD(40, 70, 2, 7)}, {SHARD(3, 70, 2, 7)}},
        {"merge-whole-twice", {SHARD(0, 1, 2, 7)}, {SHARD(0, 1, 2, 7)}},
        {"merge-shard-with-whole", {SHARD(0, 2, 2, 7)}, {SHARD(0, 1, 2, 7)}},
        {"merge-whole-with-shard", {SHARD(0, 1, 2, 7)}, {SHARD(0, 2, 2, 7)}},
        {"merge-texts", {SHARD(0, 1, 1, 7)}, {SHARD(0, 1, 1, 3)}},
        {"merge-text-lists", {SHARD(0, 1, 1, 7)}, {SHARD(0, 1, 1, 3, 4)}},
        {"merge-text-twice", {SHARD(0, 1, 1, 7, 8)}, {SHARD(0, 1, 1, 8, 9)}},
        {"merge-shard-of-another", {SHARD(0, 2, 2, 7)}, {SHARD(0, 1, 1, 3)}},
        {"merge-other-pack", {SHARD(0, 2, 2, 7)}, {SHARD(1, 2, 2, 7), .pack = 5}},
        {"merge-other-model", {SHARD(0, 2, 2, 7)}, {SHARD(1, 2, 2, 7), .layers = 1}},
        {"merge-other-settings", {SHARD(0, 2, 2, 7)}, {SHARD(1, 2, 2, 7), .tokens = 5}},
        {"merge-interrupted", {SHARD(0, 1, 3, 7), .left = 1}, {SHARD(0, 1, 1, 3)}},
    };
    struct moe_err err;
    int status = make("document", &document, NULL, &err);
    if (status == MOE_OK)
        status = make("shard", &shard, NULL, &err);
    if (status == MOE_OK)
        status = make("empty", &empty, NULL, &err);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && status == MOE_OK; i++)
        status = make(pairs[i].name, &pairs[i].a, &pairs[i].b, &err);
    if (status == MOE_OK)
        status = make_paths("paths", 0, 60, &err);
    if (status == MOE_OK)
        status = make_paths("paths-cut", 3, 60, &err);
    if (status != MOE_OK)
        fprintf(stderr, "make_statistics_seeds: %s\n", err.text);
    return status != MOE_OK;
}
