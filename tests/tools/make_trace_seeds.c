/*
 * Writes the binary seeds of fuzz_trace, in the form that target wants: a small trace with scores
 * and sizes, one of choices alone, some of shards, one with tokens' ids and a layer that chooses by
 * them. Run it in tests/fuzz/corpus/trace.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "profile/trace_internal.h"

enum { LAYERS = 2, EXPERTS = 4, TOP_K = 2, TOKENS = 3 };
enum { SHAPE_AT = 16, SHAPE_BYTES = 68 }; /* as fuzz_trace.c says */

/* Replaces the trace by the header's shape and its frames before compression. */
static int squeeze(const char *path, struct moe_err *err)
{
    static uint8_t raw[1 << 16];
    struct moe_buf trace = {0}, seed = {0};
    int status = moe_file_read_all(path, 1 << 20, &trace, err);
    if (status == MOE_OK)
        moe_buf_append(&seed, trace.data + SHAPE_AT, SHAPE_BYTES);
    for (uint64_t at = TRACE_HEADER_BYTES; status == MOE_OK && at < trace.size;) {
        uint32_t stored = moe_get_u32(trace.data + at + 8);
        at += TRACE_FRAME_HEAD_BYTES;
        size_t n = ZSTD_decompress(raw, sizeof raw, trace.data + at, stored);
        moe_buf_u32(&seed, (uint32_t)n);
        moe_buf_append(&seed, raw, n);
        at += stored;
    }
    if (status == MOE_OK)
        status = moe_file_write_all(path, seed.data, seed.size, err);
    moe_buf_release(&trace);
    moe_buf_release(&seed);
    return status;
}

static int make(const char *path, uint32_t keep, uint32_t predictors, uint32_t n_variants,
                uint32_t n_shards, uint64_t documents, bool has_ids, struct moe_err *err)
{
    static const uint32_t ids[TOKENS] = {7, 70000, 7};
    static const uint64_t sizes[2 * LAYERS * EXPERTS] = {64, 64, 64, 64, 32};
    static const float scores[TOKENS * EXPERTS] = {0.5f, 0.25f, 0.125f, 0.125f, 1};
    static const uint32_t chosen[TOKENS * TOP_K] = {0, 1, 3, 2, 1, 3};
    const struct moe_trace_shape shape = {.n_layers = LAYERS,
                                          .n_experts = EXPERTS,
                                          .top_k = TOP_K,
                                          .keep = keep,
                                          .predictors = predictors,
                                          .n_variants = n_variants,
                                          .variants = {"8", "2"},
                                          .expert_bytes = sizes,
                                          .is_static = {has_ids},
                                          .has_ids = has_ids};
    struct moe_layer_observation seen = {.chosen = chosen, .weights = scores, .stride = EXPERTS};
    struct moe_trace_writer *w;
    uint64_t texts[] = {1, 2};
    uint32_t held[] = {1, 2};
    struct moe_origin origin = {
        .documents = documents, .n_texts = 2, .texts = texts, .shards = {n_shards, 2, held}};
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        seen.predicted[i] = scores;
    int status = moe_trace_create(&w, path, &shape, err);
    if (status != MOE_OK)
        return status;
    if (n_shards)
        status = moe_trace_set_origins(w, &(struct moe_origins){1, &origin}, err);
    for (int sequence = 0; sequence < 2 && status == MOE_OK; sequence++) {
        status = moe_trace_begin(w, err);
        if (status == MOE_OK)
            status = moe_trace_add(w, TOKENS, 1, err);
        if (status == MOE_OK)
            moe_trace_put_ids(w, 0, TOKENS, ids);
        for (uint32_t layer = 0; layer < LAYERS && status == MOE_OK; layer++)
            moe_trace_put(w, layer, 0, TOKENS, &seen, scores, EXPERTS);
    }
    if (status != MOE_OK) {
        moe_trace_abort(w);
        return status;
    }
    status = moe_trace_commit(w, err);
    return status == MOE_OK ? squeeze(path, err) : status;
}

int main(void)
{
    struct moe_err err;
    const uint32_t predictors = 1 << MOE_PREDICT_GATE_1 | 1 << MOE_PREDICT_ATTN;
    if (make("choices", 0, 0, 0, 0, 0, false, &err) != MOE_OK ||
        make("shards", 0, 0, 0, 3, 6, false, &err) != MOE_OK || /* left by an interrupted run */
        make("finished", 0, 0, 0, 3, 3, false, &err) != MOE_OK ||
        make("scores", 3, predictors, 2, 0, 0, false, &err) != MOE_OK ||
        make("ids", 3, predictors, 2, 0, 0, true, &err) != MOE_OK) {
        fprintf(stderr, "make_trace_seeds: %s\n", err.text);
        return 1;
    }
    return 0;
}
