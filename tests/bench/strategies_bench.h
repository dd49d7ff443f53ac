/*
 * What bench_strategies.c is about: the run, its cells, what a strategy did in one, and the
 * documents that all of them compute. Included by bench_strategies.c, which is one file.
 */
#ifndef TESTS_BENCH_STRATEGIES_BENCH_H
#define TESTS_BENCH_STRATEGIES_BENCH_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "profile/device.h"
#include "profile/trace.h"
#include "sched/strategy.h"
#include "tune/documents.h"

enum {
    MAX_CANDIDATES = 64,
    MAX_SIZES = 16,
    MAX_ROUNDS = 64,
    MAX_DOCUMENTS = 4096,
    MIN_DOCUMENTS = 3,
    MIN_TOKENS = 8,
    ROUND_STEP = 7, /* documents from where a round begins to where the next one does */
};

struct bench {
    const char *pack, *statistics_path, *texts, *strategies_text, *device_path, *calib_path;
    double demand[MAX_SIZES], loads[MAX_SIZES], speed, seconds;
    uint32_t n_demand, n_loads;
    uint64_t n_prompt, n_decode, rounds;
    struct moe_statistics *statistics;
    void *copy;
    uint64_t copy_bytes;
    uint32_t *ids; /* [n_documents][n_prompt + n_decode + 1] */
    uint32_t n_documents;
    bool joins;        /* a text's documents are joined where they are short */
    uint64_t n_joined; /* tokens of the next document so far */
    double token_bytes, slot_bytes, layer_seconds; /* of a decoded token */
    double link_unit;                              /* seconds of loads=1 */
    bool of_prompt;
    uint32_t n_layers;
    /* For predictions: the machine, and the documents in the order of the rounds as a trace. */
    struct moe_device *device;
    struct moe_trace *calib, *traced;
    uint64_t n_traced; /* sequences of it; documents beyond are not run */
};

struct cell {
    double demand, loads;
};

struct candidate {
    char text[MOE_STRATEGY_BRIEF];
    bool automatic; /* found by the search; runs under --exact */
};

/* Documents that a strategy went through in a round, the first of them not counted; of each so many
 * tokens were decoded. */
struct span {
    uint64_t first, n_documents;
    uint32_t n_decoded;
};

/* What one strategy did in a cell, all rounds together. */
struct result {
    char why[256]; /* it cannot run */
    bool exact;
    struct moe_stats stats;
    double
        *nats; /* [MAX_DOCUMENTS] of each document's decoded tokens, the first time; 0: not run */
    double speeds[MAX_ROUNDS];
    struct span spans[MAX_ROUNDS];
    uint32_t n_rounds;
};

static struct moe_engine_options engine_options(const struct bench *b, struct cell cell)
{
    struct moe_engine_options o = {
        .statistics = b->statistics,
        .expert_memory_bytes = (uint64_t)(cell.demand * b->token_bytes + 0.5),
        .pack_copy = b->copy,
        .pack_copy_bytes = b->copy_bytes,
        .link_rate = b->slot_bytes / (cell.loads * b->link_unit),
        .session = {.context = (uint32_t)(b->n_prompt + b->n_decode + 1),
                    .batch = (uint32_t)b->n_prompt},
    };
    if (b->speed > 0) {
        o.device =
            (struct moe_device_choice){.test = true, .speed = b->speed, .link_rate = o.link_rate};
        o.link_rate = 0;
    }
    return o;
}

static int parse_strategy(const char *text, struct moe_strategy *s, struct moe_err *err)
{
    uint32_t named = 0;
    int status = moe_strategy_parse(text, s, &named, err);
    if (status == MOE_OK)
        moe_strategy_drop_idle(s, named);
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts them. */
static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

/* ---- Documents ---- */

static const uint32_t *document_ids(const struct bench *b, uint64_t document)
{
    return b->ids + document * (b->n_prompt + b->n_decode + 1);
}

static int take_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct bench *b = ctx;
    uint64_t length = b->n_prompt + b->n_decode + 1;
    if (b->n_documents == MAX_DOCUMENTS || (n < length && !b->joins))
        return MOE_OK;
    uint64_t taken = n < length - b->n_joined ? n : length - b->n_joined;
    memcpy(b->ids + b->n_documents * length + b->n_joined, ids, taken * sizeof *ids);
    b->n_joined += taken;
    if (b->n_joined == length) {
        b->n_documents++;
        b->n_joined = 0;
    }
    return MOE_OK;
}

/* Documents of all texts in turn. */
static int read_documents(struct bench *b, const struct moe_model *m, struct moe_err *err)
{
    char paths[4096], *rest = paths, *path;
    uint64_t length = b->n_prompt + b->n_decode + 1;
    uint32_t first[16] = {0}, n_texts = 0;
    snprintf(paths, sizeof paths, "%s", b->texts);
    uint32_t *all = moe_alloc(MAX_DOCUMENTS * length, sizeof *all, err);
    b->ids = moe_alloc(MAX_DOCUMENTS * length, sizeof *b->ids, err);
    int status = all && b->ids ? MOE_OK : MOE_ERR_MEMORY;
    while (status == MOE_OK && n_texts < 15 && (path = strsep(&rest, ","))) {
        const struct moe_documents d = {
            .tokenizer = m->tokenizer, .max_tokens = (uint32_t)length, .max_windows = 1};
        b->n_joined = 0;
        status = moe_documents_each(&d, path, take_document, b, err);
        first[++n_texts] = b->n_documents;
    }
    if (status == MOE_OK && b->n_documents < MIN_DOCUMENTS)
        status = moe_fail(err, MOE_ERR_USAGE, "too few documents of %llu tokens",
                          (unsigned long long)length);
    if (status == MOE_OK) {
        uint32_t n = 0;
        memcpy(all, b->ids, b->n_documents * length * sizeof *all);
        for (uint32_t i = 0; n < b->n_documents; i++)
            for (uint32_t t = 0; t < n_texts; t++)
                if (first[t] + i < first[t + 1])
                    memcpy(b->ids + n++ * length, all + (first[t] + i) * length,
                           length * sizeof *all);
    }
    free(all);
    return status;
}

static double cost(const float *logits, uint32_t n, uint32_t target)
{
    float most = logits[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) - ((double)logits[target] - most);
}

/* One document: its prompt at once, then *n_decode tokens one by one, or as many as `limit` seconds
 * of decoding give, at least MIN_TOKENS: *n_decode becomes what they were. Each pass ends with the
 * head, as an answer's do. *nats: of a document that was decoded to its end; else 0. */
static int run_document(struct moe_session *s, const struct bench *b, uint64_t document,
                        double limit, uint32_t *n_decode, double *nats, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const uint32_t *ids = document_ids(b, document);
    struct moe_row rows[512];
    float *logits = moe_alloc(moe_logits_stride(c), sizeof *logits, err);
    int status = logits ? MOE_OK : MOE_ERR_MEMORY;
    uint32_t n_prompt = (uint32_t)b->n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        rows[i] = (struct moe_row){0, i, ids[i], 0};
    if (status == MOE_OK)
        status = moe_forward(s, MOE_PREFILL, rows, n_prompt, 0, c->n_layers, NULL, NULL, err);
    if (status == MOE_OK)
        status = moe_logits(s, n_prompt - 1, 1, logits, err);
    *nats = 0;
    for (uint32_t n = 0; n < *n_decode && status == MOE_OK; n++) {
        if (s->stats.decode.seconds > limit && n >= MIN_TOKENS) {
            *n_decode = n;
            break;
        }
        uint32_t i = n_prompt + n;
        const struct moe_row row = {0, i, ids[i], 0};
        status = moe_forward(s, MOE_DECODE, &row, 1, 0, c->n_layers, NULL, NULL, err);
        if (status == MOE_OK)
            status = moe_logits(s, 0, 1, logits, err);
        if (status == MOE_OK)
            *nats += cost(logits, c->vocab, ids[i + 1]);
    }
    if (*n_decode < b->n_decode)
        *nats = 0;
    free(logits);
    return status;
}

#endif
