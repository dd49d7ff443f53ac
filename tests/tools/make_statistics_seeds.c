/*
 * Writes the seeds of fuzz_statistics that are files: statistics of one document, of a shard with
 * all that can be measured, of none. Run it in tests/fuzz/corpus/statistics.
 */
#include <stdio.h>

#include "base/file.h"
#include "record/statistics.h"

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

static int make(const char *path, uint32_t n_shards, uint32_t documents, struct moe_err *err)
{
    const struct moe_statistics_shape shape = {.n_layers = LAYERS,
                                               .n_experts = EXPERTS,
                                               .top_k = TOP_K,
                                               .max_tokens = TOKENS,
                                               .prompt_percent = 50};
    struct moe_buf text = {0};
    struct moe_statistics *s;
    int status = moe_statistics_new(&s, &shape, err);
    if (status == MOE_OK && n_shards)
        status = moe_origins_begin(&s->origins, 1, 1, n_shards, err);
    if (status == MOE_OK && n_shards) {
        s->origins.items->documents = (uint64_t)n_shards * documents;
        s->origins.items->texts[s->origins.items->n_texts++] = 7;
    }
    for (uint32_t i = 0; i < documents && status == MOE_OK; i++)
        status = count(s, i, err);
    if (status == MOE_OK)
        status = moe_statistics_write(s, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(path, text.data, text.size, err);
    moe_buf_release(&text);
    moe_statistics_free(s);
    return status;
}

int main(void)
{
    struct moe_err err;
    if (make("document", 0, 1, &err) != MOE_OK || make("shard", 3, 2, &err) != MOE_OK ||
        make("empty", 0, 0, &err) != MOE_OK) {
        fprintf(stderr, "make_statistics_seeds: %s\n", err.text);
        return 1;
    }
    return 0;
}
