/* Statistics of what experts do: counting documents, merging, tables of paths. */
#include "profile/statistics.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/rank.h"
#include "profile/statistics_internal.h"

static const char *const predictor_names[MOE_N_PREDICTORS] = {
    [MOE_PREDICT_PREVIOUS] = "previous",     [MOE_PREDICT_GATE_1] = "gate-1",
    [MOE_PREDICT_GATE_2] = "gate-2",         [MOE_PREDICT_GATE_3] = "gate-3",
    [MOE_PREDICT_ATTN] = "attention",        [MOE_PREDICT_ATTN_1] = "attention-1",
    [MOE_PREDICT_RESIDUAL_1] = "residual-1", [MOE_PREDICT_RESIDUAL_2] = "residual-2",
    [MOE_PREDICT_RESIDUAL_3] = "residual-3", [MOE_PREDICT_PATH] = "path",
    [MOE_PREDICT_PATH_RANK1] = "path-rank1", [MOE_PREDICT_TOKEN] = "token",
};

static const char *const series_names[MOE_N_SERIES] = {
    [MOE_S_ACTIVATIONS] = "activations",
    [MOE_S_DECODED] = "decode_activations",
    [MOE_S_RANK1] = "rank1",
    [MOE_S_WEIGHTS] = "weight_sums_30bit",
    [MOE_S_WEIGHT_BINS] = "weight_histogram",
    [MOE_S_SCORE_BINS] = "score_histogram",
    [MOE_S_COSINES] = "cosine_sums_30bit",
    [MOE_S_COSINE_NUMBERS] = "cosine_numbers",
    [MOE_S_CORRELATION] = "weight_norm_sums",
    [MOE_S_REUSE] = "reuse",
    [MOE_S_POPULARITY] = "popularity_sums_30bit",
    [MOE_S_SKEW] = "skew_sums_30bit",
    [MOE_S_PAIRS] = "pairs",
    [MOE_S_ACCURACY] = "accuracy",
    [MOE_S_TOKEN_ACCURACY] = "token_accuracy",
};

const char *moe_predictor_name(enum moe_predictor predictor)
{
    return predictor_names[predictor];
}

const char *moe_series_name(enum moe_series series)
{
    return series_names[series];
}

uint64_t moe_series_length(const struct moe_statistics_shape *shape, enum moe_series series)
{
    switch (series) {
    case MOE_S_ACTIVATIONS:
    case MOE_S_DECODED:
    case MOE_S_RANK1:
        return shape->n_experts;
    case MOE_S_WEIGHTS:
        return shape->top_k;
    case MOE_S_WEIGHT_BINS:
        return MOE_WEIGHT_BINS;
    case MOE_S_SCORE_BINS:
        return MOE_SCORE_BINS;
    case MOE_S_COSINES:
    case MOE_S_COSINE_NUMBERS:
        return MOE_N_COSINES;
    case MOE_S_CORRELATION:
        return MOE_N_CORRELATIONS;
    case MOE_S_REUSE:
        return MOE_N_REUSES;
    case MOE_S_POPULARITY:
        return 1 + MOE_POPULARITY_POINTS;
    case MOE_S_SKEW:
        return 2;
    case MOE_S_PAIRS:
        return (uint64_t)shape->n_experts * shape->n_experts;
    case MOE_S_ACCURACY:
        return MOE_PREDICT_TOKEN * MOE_N_ACCURACIES;
    case MOE_S_TOKEN_ACCURACY:
        return MOE_N_ACCURACIES;
    case MOE_N_SERIES:
        break;
    }
    return 0;
}

bool moe_statistics_has_decoded(const struct moe_statistics *s)
{
    /* Alike in every layer that decodes. */
    const uint64_t *decoded = moe_series_at(s, MOE_S_DECODED, s->shape.n_encoder);
    for (uint32_t e = 0; e < s->shape.n_experts; e++)
        if (decoded[e])
            return true;
    return false;
}

const uint64_t *moe_statistics_placement(const struct moe_statistics *s)
{
    return s->series[moe_statistics_has_decoded(s) ? MOE_S_DECODED : MOE_S_ACTIVATIONS];
}

/* ---- Making and merging ---- */

static uint64_t n_numbers(const struct moe_statistics_shape *shape)
{
    uint64_t n = 0;
    for (int i = 0; i < MOE_N_SERIES; i++)
        n += shape->n_layers * moe_series_length(shape, i);
    return n;
}

uint64_t moe_statistics_bytes(const struct moe_statistics_shape *shape)
{
    uint64_t sum;
    uint64_t own =
        n_numbers(shape) * sizeof(uint64_t) + moe_requests_bytes(shape->n_layers, shape->n_experts);
    return moe_add_u64(own, moe_document_bytes(shape), &sum) ? sum : UINT64_MAX;
}

/* Bytes for n_paths and n_whole keys, and for the text that has all numbers. */
static uint64_t paths_bytes(const struct moe_statistics_shape *shape, uint64_t n_paths,
                            uint64_t n_whole)
{
    enum { KEY_TEXT = 48, NUMBER_TEXT = 16 }; /* bytes of a line, of a number, at most */
    uint64_t e = shape->n_experts, few = shape->n_layers, limit = 2 * MOE_WHOLE_PATHS;
    bool known =
        moe_mul_u64(few, e, &few) && moe_mul_u64(few, e, &few) && moe_mul_u64(few, e, &few);
    n_paths = known && few < n_paths ? few : n_paths; /* there are no more */
    n_whole = n_whole < limit ? n_whole : limit;
    uint64_t lines = n_paths + (n_whole < MOE_WHOLE_PATHS ? n_whole : MOE_WHOLE_PATHS);
    uint64_t requests = moe_requests_bytes(shape->n_layers, shape->n_experts) / sizeof(uint32_t);
    return moe_path_table_bytes(n_paths) + moe_path_table_bytes(n_whole) +
           moe_buf_room(lines * KEY_TEXT + (n_numbers(shape) + requests) * NUMBER_TEXT);
}

uint64_t moe_statistics_held_bytes(const struct moe_statistics *s)
{
    enum { OWN = 4 << 10 }; /* itself and its origins */
    return OWN + n_numbers(&s->shape) * sizeof(uint64_t) +
           moe_requests_bytes(s->shape.n_layers, s->shape.n_experts) +
           moe_path_table_held(s->paths) + moe_path_table_held(s->whole) +
           (s->document ? moe_document_bytes(&s->shape) : 0);
}

uint64_t moe_statistics_paths_bytes(const struct moe_statistics_shape *shape, uint64_t n_tokens)
{
    uint64_t most = UINT64_C(1) << 40; /* larger ones are too large as well */
    n_tokens = n_tokens < most ? n_tokens : most;
    return paths_bytes(shape, n_tokens * (shape->n_layers - 1), n_tokens);
}

uint64_t moe_statistics_paths_bytes_with(const struct moe_statistics *s, uint64_t n_tokens)
{
    return paths_bytes(&s->shape,
                       moe_path_table_used(s->paths) + n_tokens * (s->shape.n_layers - 1),
                       moe_path_table_used(s->whole) + n_tokens);
}

int moe_statistics_new(struct moe_statistics **out, const struct moe_statistics_shape *shape,
                       struct moe_err *err)
{
    *out = NULL;
    if (shape->n_layers == 0 || shape->n_encoder >= shape->n_layers || shape->n_experts == 0 ||
        shape->top_k == 0 || shape->top_k > shape->n_experts ||
        shape->top_k > MOE_STATISTICS_MAX_TOP_K || shape->n_experts >= MOE_NO_EXPERT)
        return moe_fail(err, MOE_ERR_USAGE,
                        "there are no statistics of %" PRIu32 " MoE layers with %" PRIu32
                        " experts, %" PRIu32 " of them for a token",
                        shape->n_layers, shape->n_experts, shape->top_k);
    struct moe_statistics *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->shape = *shape;
    uint64_t *numbers = moe_alloc(n_numbers(shape), sizeof *numbers, err);
    s->series[0] = numbers;
    for (int i = 0; numbers && i < MOE_N_SERIES; i++) {
        s->series[i] = numbers;
        numbers += shape->n_layers * moe_series_length(shape, i);
    }
    int status;
    MOE_STEP(s->series[0] ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(moe_path_table_new(&s->paths, 0, err));
    MOE_STEP(moe_path_table_new(&s->whole, MOE_WHOLE_PATHS, err));
    MOE_STEP(moe_requests_init(&s->requests, shape->n_layers, shape->n_experts, err));
out:
    if (status != MOE_OK) {
        moe_statistics_free(s);
        return status;
    }
    *out = s;
    return MOE_OK;
}

void moe_statistics_free(struct moe_statistics *s)
{
    if (!s)
        return;
    moe_document_free(s->document);
    moe_origins_release(&s->origins);
    moe_path_table_free(s->paths);
    moe_path_table_free(s->whole);
    moe_requests_release(&s->requests);
    free(s->series[0]);
    free(s);
}

static int merge_paths(struct moe_path_table *sum, const struct moe_path_table *part,
                       struct moe_err *err)
{
    uint64_t n;
    struct moe_path_count *list = moe_path_table_sorted(part, &n, err);
    int status = list ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++)
        status = moe_path_table_add(sum, list[i].key, list[i].n, err);
    if (moe_path_table_sampled(part))
        moe_path_table_set_sampled(sum);
    free(list);
    return status;
}

uint64_t moe_statistics_fingerprint(const struct moe_statistics *s)
{
    uint64_t totals = moe_hash64(s->totals, sizeof s->totals);
    return moe_hash64_chain(totals, s->series[0], n_numbers(&s->shape) * sizeof *s->series[0]);
}

int moe_statistics_check_finished(const struct moe_statistics *s, struct moe_err *err)
{
    uint64_t there = s->totals[MOE_TOTAL_DOCUMENTS], all = moe_origins_documents(&s->origins);
    if (there == all)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "was left by an interrupted run, with %" PRIu64 " of %" PRIu64
                    " documents; --resume finishes it",
                    there, all);
}

bool moe_statistics_same_model(const struct moe_statistics_shape *a,
                               const struct moe_statistics_shape *b)
{
    return a->n_layers == b->n_layers && a->n_encoder == b->n_encoder &&
           a->n_experts == b->n_experts && a->top_k == b->top_k &&
           a->source_fingerprint == b->source_fingerprint;
}

static int check_shapes(const struct moe_statistics_shape *a, const struct moe_statistics_shape *b,
                        struct moe_err *err)
{
    if (!moe_statistics_same_model(a, b))
        return moe_fail(err, MOE_ERR_USAGE, "statistics of another model cannot be added");
    if (a->max_tokens != b->max_tokens || a->prompt_percent != b->prompt_percent)
        return moe_fail(err, MOE_ERR_USAGE,
                        "statistics with other settings cannot be added: documents of %" PRIu32
                        " tokens, %" PRIu32 "%% of them prompt, against %" PRIu32 " and %" PRIu32
                        "%%",
                        a->max_tokens, a->prompt_percent, b->max_tokens, b->prompt_percent);
    return MOE_OK;
}

int moe_statistics_add(struct moe_statistics *sum, const struct moe_statistics *part,
                       struct moe_err *err)
{
    MOE_TRY(check_shapes(&sum->shape, &part->shape, err));
    for (int i = 0; i < MOE_N_TOTALS; i++)
        sum->totals[i] += part->totals[i];
    for (uint64_t i = 0; i < n_numbers(&sum->shape); i++)
        sum->series[0][i] += part->series[0][i];
    moe_requests_merge(&sum->requests, &part->requests);
    MOE_TRY(merge_paths(sum->paths, part->paths, err));
    return merge_paths(sum->whole, part->whole, err);
}

int moe_statistics_merge(struct moe_statistics *sum, const struct moe_statistics *part,
                         struct moe_err *err)
{
    MOE_TRY(check_shapes(&sum->shape, &part->shape, err));
    MOE_TRY(moe_origins_join(&sum->origins, &part->origins, err));
    return moe_statistics_add(sum, part, err);
}

/* ---- Path predictions ---- */

/* scores += P(expert | `before` in the layer before), or the layer's frequencies where `before` was
 * never seen. */
static void add_pair_scores(const struct moe_statistics *s, uint32_t layer, uint32_t before,
                            float *scores)
{
    uint32_t n_experts = s->shape.n_experts;
    const uint64_t *row = moe_series_at(s, MOE_S_PAIRS, layer) + (uint64_t)before * n_experts;
    uint64_t seen = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        seen += row[e];
    if (seen == 0) {
        row = moe_series_at(s, MOE_S_ACTIVATIONS, layer);
        for (uint32_t e = 0; e < n_experts; e++)
            seen += row[e];
    }
    for (uint32_t e = 0; e < n_experts && seen; e++)
        scores[e] += (float)((double)row[e] / (double)seen);
}

void moe_path_scores(const struct moe_statistics *s, enum moe_predictor predictor, uint32_t layer,
                     uint16_t before2, const uint32_t *before, float *scores)
{
    memset(scores, 0, s->shape.n_experts * sizeof *scores);
    if (predictor == MOE_PREDICT_PATH) {
        for (uint32_t k = 0; k < s->shape.top_k; k++)
            add_pair_scores(s, layer, before[k], scores);
        return;
    }
    uint64_t seen = 0;
    for (uint32_t e = 0; e < s->shape.n_experts; e++) {
        uint64_t n = moe_path_table_get(
            s->paths, moe_path_key(layer, layer == s->shape.n_encoder + 1 ? MOE_NO_EXPERT : before2,
                                   before[0], e));
        scores[e] = (float)n;
        seen += n;
    }
    if (seen == 0)
        add_pair_scores(s, layer, before[0], scores);
}

/* ---- Memory ---- */

void moe_document_free(struct moe_statistics_document *d)
{
    if (!d)
        return;
    free(d->block);
    free(d);
}

/* Places the arrays of the largest document in an arena, which may only count. */
static void place_document(struct moe_statistics_document *d, struct moe_arena *arena,
                           const struct moe_statistics_shape *shape)
{
    uint64_t slots = (uint64_t)shape->n_layers * shape->max_tokens * shape->top_k;
    uint64_t sets = (uint64_t)shape->n_layers * MOE_N_PREDICTORS, n = shape->n_experts;
    d->chosen = moe_arena_take(arena, slots, sizeof *d->chosen);
    d->weights = moe_arena_take(arena, slots, sizeof *d->weights);
    d->ids = moe_arena_take(arena, shape->max_tokens, sizeof *d->ids);
    d->before = moe_arena_take(arena, shape->max_tokens, sizeof *d->before);
    d->newest = moe_arena_take(arena, MOE_DOCUMENT_BUCKETS, sizeof *d->newest);
    d->predicted = moe_arena_take(arena, sets * n, sizeof *d->predicted);
    d->was_predicted = moe_arena_take(arena, sets, sizeof *d->was_predicted);
    d->by_token = moe_arena_take(arena, shape->n_layers, sizeof *d->by_token);
    d->counts = moe_arena_take(arena, 3 * shape->n_layers * n, sizeof *d->counts);
    d->scores = moe_arena_take(arena, n, sizeof *d->scores);
    d->order = moe_arena_take(arena, n, sizeof *d->order);
}

uint64_t moe_document_bytes(const struct moe_statistics_shape *shape)
{
    struct moe_statistics_document d;
    struct moe_arena arena = {0};
    place_document(&d, &arena, shape);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

static int new_document(struct moe_statistics_document **out,
                        const struct moe_statistics_shape *shape, struct moe_err *err)
{
    struct moe_arena arena = {.size = moe_document_bytes(shape)};
    struct moe_statistics_document *d = moe_alloc(1, sizeof *d, err);
    if (!d || !(arena.base = d->block = moe_alloc(arena.size, 1, err))) {
        free(d);
        return MOE_ERR_MEMORY;
    }
    place_document(d, &arena, shape);
    *out = d;
    return MOE_OK;
}

/*
 * What is counted while a document runs: the routers' choices, how well they were predicted, how
 * similar inputs were. The choices are kept for the document's end.
 */

int moe_statistics_begin(struct moe_statistics *s, uint64_t hash, struct moe_err *err)
{
    uint64_t sets = (uint64_t)s->shape.n_layers * MOE_N_PREDICTORS;
    if (!s->document)
        MOE_TRY(new_document(&s->document, &s->shape, err));
    s->document->n_tokens = s->document->n_source = 0;
    s->document->hash = hash;
    memset(s->document->predicted, 0, sets * s->shape.n_experts);
    memset(s->document->was_predicted, 0, sets * sizeof *s->document->was_predicted);
    return MOE_OK;
}

/* Rank of expert e: how many have a larger score, or as large a one and a lower number. */
static uint32_t rank_of(const float *scores, uint32_t n_experts, uint32_t e)
{
    float own = scores[e];
    uint32_t rank = 0;
    for (uint32_t i = 0; i < e; i++)
        rank += scores[i] >= own;
    for (uint32_t i = e + 1; i < n_experts; i++)
        rank += scores[i] > own;
    return rank;
}

/* Marks the `k` experts of the highest scores. */
static void mark_best(const float *scores, uint32_t n_experts, uint32_t k, uint8_t *marks)
{
    uint32_t best[MOE_STATISTICS_MAX_TOP_K];
    moe_best(scores, n_experts, k, best);
    for (uint32_t i = 0; i < k; i++)
        marks[best[i]] = 1;
}

/* One token's prediction against its choice. */
static void count_prediction(struct moe_statistics *s, uint32_t layer, enum moe_predictor predictor,
                             const float *scores, const uint16_t *chosen)
{
    struct moe_statistics_document *d = s->document;
    uint32_t n_experts = s->shape.n_experts, k = s->shape.top_k;
    uint32_t quarter = (n_experts + 3) / 4;
    uint64_t *acc = moe_accuracy_at(s, layer, predictor);
    acc[MOE_ACC_TOKENS]++;
    for (uint32_t i = 0; i < k; i++) {
        uint32_t rank = rank_of(scores, n_experts, chosen[i]);
        acc[MOE_ACC_TOP1] += i == 0 && rank == 0;
        acc[MOE_ACC_IN_K] += rank < k;
        acc[MOE_ACC_IN_2K] += rank < 2 * k;
        acc[MOE_ACC_IN_P75] += rank < quarter;
    }
    uint64_t set = (uint64_t)layer * MOE_N_PREDICTORS + predictor;
    d->was_predicted[set] = true;
    mark_best(scores, n_experts, k, d->predicted + set * n_experts);
}

/* ---- Tokens ---- */

static void take_ids(struct moe_statistics_document *d, uint32_t first, uint32_t n,
                     const uint32_t *ids)
{
    if (first == 0)
        memset(d->newest, 0, MOE_DOCUMENT_BUCKETS * sizeof *d->newest);
    d->has_ids = ids && (first == 0 || d->has_ids);
    for (uint32_t t = 0; d->has_ids && t < n; t++) {
        uint32_t *newest = &d->newest[ids[t] % MOE_DOCUMENT_BUCKETS];
        d->ids[first + t] = ids[t];
        d->before[first + t] = *newest;
        *newest = first + t + 1;
    }
}

/* Finds where the token was last used, or else the token before. */
static uint32_t last_use(const struct moe_statistics_document *d, uint32_t token)
{
    uint32_t at = d->before[token];
    while (at && d->ids[at - 1] != d->ids[token])
        at = d->before[at - 1];
    return at ? at - 1 : token - 1;
}

/* A token's experts are predicted to be those of an earlier one. */
static void predict_as(struct moe_statistics *s, uint32_t layer, enum moe_predictor predictor,
                       uint32_t earlier, const uint16_t *chosen)
{
    const uint16_t *before = moe_document_chosen(s, layer, earlier);
    uint32_t k = s->shape.top_k;
    float *scores = s->document->scores;
    memset(scores, 0, s->shape.n_experts * sizeof *scores);
    for (uint32_t i = 0; i < k; i++)
        scores[before[i]] = (float)(k - i);
    count_prediction(s, layer, predictor, scores, chosen);
}

/* The predictions that follow from choices: earlier tokens, and paths of another text. */
static void predict_from_choices(struct moe_statistics *s, uint32_t layer, uint32_t token)
{
    struct moe_statistics_document *d = s->document;
    const uint16_t *chosen = moe_document_chosen(s, layer, token);
    uint32_t k = s->shape.top_k;
    if (token > 0)
        predict_as(s, layer, MOE_PREDICT_PREVIOUS, token - 1, chosen);
    if (token > 0 && d->has_ids)
        predict_as(s, layer, MOE_PREDICT_TOKEN, last_use(d, token), chosen);
    uint32_t first = s->shape.n_encoder;
    if (!s->prior || layer <= first)
        return;
    uint32_t before[MOE_STATISTICS_MAX_TOP_K];
    uint16_t before2 =
        layer > first + 1 ? moe_document_chosen(s, layer - 2, token)[0] : MOE_NO_EXPERT;
    for (uint32_t i = 0; i < k; i++)
        before[i] = moe_document_chosen(s, layer - 1, token)[i];
    for (int p = MOE_PREDICT_PATH; p <= MOE_PREDICT_PATH_RANK1; p++) {
        moe_path_scores(s->prior, p, layer, before2, before, d->scores);
        count_prediction(s, layer, p, d->scores, chosen);
    }
}

static uint64_t to_fixed(double x, int bits, double largest)
{
    x = x > largest ? largest : x;
    return x > 0 ? (uint64_t)(ldexp(x, bits) + 0.5) : 0;
}

/* A product with 32 fractional bits into two limbs. */
static void add_limbs(double x, uint64_t *high)
{
    uint64_t fixed = to_fixed(x, 32, 4294967295.0);
    high[0] += fixed >> 32;
    high[1] += fixed & 0xffffffff;
}

static void count_weight_and_norm(uint64_t *sums, double x, double y)
{
    sums[MOE_CORR_N]++;
    sums[MOE_CORR_X] += to_fixed(x, 32, 1e3);
    sums[MOE_CORR_Y] += to_fixed(y, 16, 1e9);
    sums[MOE_CORR_XX] += to_fixed(x * x, 32, 1e6);
    add_limbs(x * y, &sums[MOE_CORR_XY_HI]);
    add_limbs(y * y, &sums[MOE_CORR_YY_HI]);
}

struct counting {
    struct moe_statistics *s;
    const struct moe_layer_observation *seen;
    uint32_t layer, first_token, n;
};

/* Predictors side by side: each has counters of its own. */
static void count_predictors(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct counting *c = ctx;
    (void)thread;
    for (int64_t p = begin; p < end; p++)
        for (uint32_t t = 0; c->seen->predicted[p] && t < c->n; t++)
            count_prediction(c->s, c->layer, (enum moe_predictor)p,
                             c->seen->predicted[p] + t * c->seen->stride,
                             moe_document_chosen(c->s, c->layer, c->first_token + t));
}

void moe_statistics_observe(struct moe_statistics *s, uint32_t layer, uint32_t first_token,
                            uint32_t n, const struct moe_layer_observation *seen)
{
    uint32_t k = s->shape.top_k;
    uint64_t *cosines = moe_series_at(s, MOE_S_COSINES, layer);
    uint64_t *numbers = moe_series_at(s, MOE_S_COSINE_NUMBERS, layer);
    uint64_t *correlation = moe_series_at(s, MOE_S_CORRELATION, layer);
    struct counting counting = {s, seen, layer, first_token, n};
    s->document->by_token[layer] = seen->by_token;
    if (layer == moe_first_of_stack(&s->shape, layer))
        take_ids(s->document, first_token, n, seen->ids);
    for (uint32_t t = 0; t < n; t++) {
        uint16_t *chosen = moe_document_chosen(s, layer, first_token + t);
        for (uint32_t i = 0; i < k; i++)
            chosen[i] = (uint16_t)seen->chosen[(uint64_t)t * k + i];
        memcpy(moe_document_weights(s, layer, first_token + t), seen->weights + (uint64_t)t * k,
               k * sizeof *seen->weights);
    }
    moe_par_for(MOE_N_PREDICTORS, 1, count_predictors, &counting);
    for (uint32_t t = 0; t < n; t++) {
        if (!seen->by_token)
            predict_from_choices(s, layer, first_token + t);
        for (int c = 0; c < MOE_N_COSINES; c++) {
            if (!seen->cosines[c])
                continue;
            cosines[c] += (uint64_t)moe_fixed((double)seen->cosines[c][t]);
            numbers[c]++;
        }
        for (uint32_t i = 0; seen->norms && i < k; i++)
            count_weight_and_norm(correlation, (double)seen->weights[(uint64_t)t * k + i],
                                  (double)seen->norms[(uint64_t)t * k + i]);
    }
    if (layer == s->shape.n_encoder)
        s->document->n_tokens = first_token + n;
    else if (layer == 0)
        s->document->n_source = first_token + n;
}

/*
 * What follows from a whole document's choices: frequencies, paths, reuse, popularity, its matrix
 * of activations, and the similarity of its prompt and the rest.
 */

/* Counts of one layer's experts over tokens [begin, end). */
static void count_experts(const struct moe_statistics *s, uint32_t layer, uint32_t begin,
                          uint32_t end, uint64_t *counts)
{
    memset(counts, 0, s->shape.n_experts * sizeof *counts);
    for (uint32_t t = begin; t < end; t++)
        for (uint32_t i = 0; i < s->shape.top_k; i++)
            counts[moe_document_chosen(s, layer, t)[i]]++;
}

static void count_weights(struct moe_statistics *s, uint32_t layer, const float *weights)
{
    uint32_t k = s->shape.top_k;
    uint64_t *bins = moe_series_at(s, MOE_S_WEIGHT_BINS, layer);
    uint64_t *scores = moe_series_at(s, MOE_S_SCORE_BINS, layer);
    uint64_t *sums = moe_series_at(s, MOE_S_WEIGHTS, layer);
    double all = 0, before = 0;
    for (uint32_t i = 0; i < k; i++)
        all += (double)weights[i];
    for (uint32_t i = 0; i < k; i++) {
        double w = (double)weights[i];
        int bin = (int)(w * MOE_WEIGHT_BINS);
        sums[i] += (uint64_t)moe_fixed(w);
        bins[bin < 0 ? 0 : bin < MOE_WEIGHT_BINS ? bin : MOE_WEIGHT_BINS - 1]++;
        /* HOBBIT, equation 2: the share of those before it. */
        if (i > 0 && all > 0) {
            bin = (int)(before / all * MOE_SCORE_BINS);
            scores[bin < MOE_SCORE_BINS ? bin : MOE_SCORE_BINS - 1]++;
        }
        before += w;
    }
}

static bool list_holds(const uint16_t *list, uint32_t n, uint16_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == expert)
            return true;
    return false;
}

static void count_reuse(struct moe_statistics *s, uint32_t layer, uint32_t token)
{
    uint32_t k = s->shape.top_k, again = 0;
    const uint16_t *now = moe_document_chosen(s, layer, token);
    const uint16_t *before = moe_document_chosen(s, layer, token - 1);
    uint64_t *reuse = moe_series_at(s, MOE_S_REUSE, layer);
    for (uint32_t i = 0; i < k; i++)
        again += list_holds(before, k, now[i]);
    reuse[MOE_REUSE_TOKENS]++;
    reuse[MOE_REUSE_ACTIVE] += again;
    reuse[MOE_REUSE_BEST] += list_holds(now, k, before[0]);
    reuse[MOE_REUSE_ANY] += again > 0;
    reuse[MOE_REUSE_WAS] += list_holds(before, k, now[0]);
}

static void count_pairs(struct moe_statistics *s, uint32_t layer, uint32_t token)
{
    uint32_t k = s->shape.top_k, last = s->shape.n_layers - 1;
    uint32_t first = s->shape.n_encoder;
    if (layer < first || (layer == first && token == 0))
        return;
    const uint16_t *before = layer > first ? moe_document_chosen(s, layer - 1, token)
                                           : moe_document_chosen(s, last, token - 1);
    const uint16_t *now = moe_document_chosen(s, layer, token);
    uint64_t *pairs = moe_series_at(s, MOE_S_PAIRS, layer);
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = 0; j < k; j++)
            pairs[(uint64_t)before[i] * s->shape.n_experts + now[j]]++;
}

static int count_paths(struct moe_statistics *s, uint32_t token, struct moe_err *err)
{
    uint64_t hash = 0;
    uint32_t first = s->shape.n_encoder;
    for (uint32_t l = first; l < s->shape.n_layers; l++) {
        uint16_t best = moe_document_chosen(s, l, token)[0];
        hash = moe_hash64_chain(hash, &best, sizeof best);
        if (l == first || s->document->by_token[l])
            continue;
        uint16_t before2 = l > first + 1 ? moe_document_chosen(s, l - 2, token)[0] : MOE_NO_EXPERT;
        uint16_t before1 = moe_document_chosen(s, l - 1, token)[0];
        MOE_TRY(moe_path_table_add(s->paths, moe_path_key(l, before2, before1, best), 1, err));
    }
    return moe_path_table_add(s->whole, hash, 1, err);
}

/* Experts in the order of rising counts. Insertion sort: once per layer and document. */
static void sort_experts(const uint64_t *counts, uint32_t n, uint16_t *order)
{
    for (uint32_t e = 0; e < n; e++) {
        uint32_t at = e;
        for (; at > 0 && counts[order[at - 1]] > counts[e]; at--)
            order[at] = order[at - 1];
        order[at] = (uint16_t)e;
    }
}

/* Fate fig. 9: what the least popular of the active experts cover; and the share on the busiest
 * quarter of all. */
static void count_popularity(struct moe_statistics *s, uint32_t layer, const uint64_t *counts)
{
    uint32_t n = s->shape.n_experts, first = 0, quarter = (n + 3) / 4;
    uint16_t *order = s->document->order;
    uint64_t *curve = moe_series_at(s, MOE_S_POPULARITY, layer);
    uint64_t *skew = moe_series_at(s, MOE_S_SKEW, layer);
    double all = 0, busiest = 0;
    sort_experts(counts, n, order);
    while (first < n && counts[order[first]] == 0)
        first++;
    for (uint32_t i = 0; i < n; i++) {
        all += (double)counts[order[i]];
        busiest += i >= n - quarter ? (double)counts[order[i]] : 0;
    }
    curve[0]++;
    skew[0]++;
    skew[1] += (uint64_t)moe_fixed(busiest / all);
    for (int p = 1; p <= MOE_POPULARITY_POINTS; p++) {
        double want = (double)(n - first) * p / MOE_POPULARITY_POINTS, covered = 0;
        for (uint32_t i = 0; i < n - first && i < want; i++) {
            double part = want - i < 1 ? want - i : 1; /* of the expert at the edge */
            covered += part * (double)counts[order[first + i]];
        }
        curve[p] += (uint64_t)moe_fixed(covered / all);
    }
}

static double cosine(const uint64_t *a, const uint64_t *b, uint32_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (uint32_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

/* DAOP's equation 1 between two tables of counts [layers][E]: counts of one phase differ from its
 * probabilities by a factor only, which the cosine does not see. */
static double similarity(const struct moe_statistics *s, const uint64_t *a, const uint64_t *b)
{
    double sum = 0;
    for (uint32_t l = 0; l < s->shape.n_layers; l++)
        sum += cosine(a + (uint64_t)l * s->shape.n_experts, b + (uint64_t)l * s->shape.n_experts,
                      s->shape.n_experts);
    return sum / s->shape.n_layers;
}

static void count_phase(const struct moe_statistics *s, uint32_t begin, uint32_t end,
                        uint64_t *table)
{
    for (uint32_t l = 0; l < s->shape.n_layers; l++)
        count_experts(s, l, begin, end, table + (uint64_t)l * s->shape.n_experts);
}

static void count_similarity(struct moe_statistics *s)
{
    uint64_t size = (uint64_t)s->shape.n_layers * s->shape.n_experts;
    uint32_t n = s->document->n_tokens;
    uint32_t prompt = moe_prompt_tokens(&s->shape, n);
    uint64_t *table = s->document->counts, *now = table + size, *before = now + size;
    if (prompt == 0 || prompt >= n)
        return;
    count_phase(s, 0, prompt, table);
    count_phase(s, prompt, n, now);
    s->totals[MOE_TOTAL_SIMILAR_N]++;
    s->totals[MOE_TOTAL_SIMILAR] += (uint64_t)moe_fixed(similarity(s, table, now));
    for (uint32_t t = prompt; t + MOE_DRIFT_WINDOW <= n; t += MOE_DRIFT_WINDOW) {
        count_phase(s, t, t + MOE_DRIFT_WINDOW, now);
        s->totals[MOE_TOTAL_DRIFT_N]++;
        s->totals[MOE_TOTAL_DRIFT] += (uint64_t)moe_fixed(similarity(s, table, now));
        if (t > prompt) {
            s->totals[MOE_TOTAL_NEXT_N]++;
            s->totals[MOE_TOTAL_NEXT] += (uint64_t)moe_fixed(similarity(s, before, now));
        }
        memcpy(before, now, size * sizeof *before);
    }
}

/* Predictions of the document as a prompt: its distinct experts against all that were predicted. */
static void count_predicted(struct moe_statistics *s, uint32_t layer, const uint64_t *counts)
{
    for (int p = 0; p < MOE_N_PREDICTORS; p++) {
        uint64_t set = (uint64_t)layer * MOE_N_PREDICTORS + (uint64_t)p;
        if (!s->document->was_predicted[set])
            continue;
        uint64_t *acc = moe_accuracy_at(s, layer, p);
        const uint8_t *predicted = s->document->predicted + set * s->shape.n_experts;
        for (uint32_t e = 0; e < s->shape.n_experts; e++) {
            acc[MOE_ACC_PROMPT_TRUE] += counts[e] > 0;
            acc[MOE_ACC_PROMPT_FOUND] += counts[e] > 0 && predicted[e];
        }
    }
}

int moe_statistics_end(struct moe_statistics *s, struct moe_err *err)
{
    uint32_t prompt = moe_prompt_tokens(&s->shape, s->document->n_tokens);
    int status = MOE_OK;
    if (s->document->n_tokens == 0 || (s->shape.n_encoder && s->document->n_source == 0))
        return MOE_OK;
    s->totals[MOE_TOTAL_DOCUMENTS]++;
    s->totals[MOE_TOTAL_TOKENS] += s->document->n_tokens;
    s->totals[MOE_TOTAL_SOURCE] += s->document->n_source;
    s->totals[MOE_TOTAL_HASH] += s->document->hash;
    uint32_t *request = moe_requests_add(&s->requests, s->document->hash);
    for (uint32_t l = 0; l < s->shape.n_layers; l++) {
        uint64_t *counts = s->document->counts;
        uint32_t n = moe_document_tokens(s, l);
        bool decodes = l >= s->shape.n_encoder;
        uint64_t *activations = moe_series_at(s, MOE_S_ACTIVATIONS, l);
        count_experts(s, l, 0, n, counts);
        for (uint32_t e = 0; e < s->shape.n_experts; e++)
            activations[e] += counts[e];
        for (uint32_t e = 0; request && e < s->shape.n_experts; e++)
            *request++ = (uint32_t)counts[e];
        count_popularity(s, l, counts);
        count_predicted(s, l, counts);
        count_experts(s, l, decodes ? prompt : n, n, counts);
        for (uint32_t e = 0; e < s->shape.n_experts; e++)
            moe_series_at(s, MOE_S_DECODED, l)[e] += counts[e];
        for (uint32_t t = 0; t < n; t++) {
            moe_series_at(s, MOE_S_RANK1, l)[moe_document_chosen(s, l, t)[0]]++;
            count_weights(s, l, moe_document_weights(s, l, t));
            count_pairs(s, l, t);
            if (t > 0)
                count_reuse(s, l, t);
        }
    }
    for (uint32_t t = 0; t < s->document->n_tokens && status == MOE_OK; t++)
        status = count_paths(s, t, err);
    count_similarity(s);
    return status;
}

/* ---- Paths ---- */

/* Open addressing; n == 0 marks a free place. */
struct moe_path_table {
    struct moe_path_count *places;
    uint64_t room, used; /* room: a power of two */
    uint64_t limit;
    uint64_t largest; /* keys above it are dropped */
    bool sampled;
};

int moe_path_table_new(struct moe_path_table **out, uint64_t limit, struct moe_err *err)
{
    struct moe_path_table *table = moe_alloc(1, sizeof *table, err);
    *out = table;
    if (!table)
        return MOE_ERR_MEMORY;
    table->limit = limit;
    table->largest = UINT64_MAX;
    return MOE_OK;
}

void moe_path_table_free(struct moe_path_table *table)
{
    if (!table)
        return;
    free(table->places);
    free(table);
}

static struct moe_path_count *place_of(const struct moe_path_table *table, uint64_t key)
{
    uint64_t mask = table->room - 1, i = moe_hash64(&key, sizeof key) & mask;
    while (table->places[i].n && table->places[i].key != key)
        i = (i + 1) & mask;
    return &table->places[i];
}

/* Moves all keys up to `largest` into a table with `room` places. */
static int rebuild_table(struct moe_path_table *table, uint64_t room, struct moe_err *err)
{
    struct moe_path_table old = *table;
    table->places = moe_alloc(room, sizeof *table->places, err);
    if (!table->places) {
        table->places = old.places;
        return MOE_ERR_MEMORY;
    }
    table->room = room;
    table->used = 0;
    for (uint64_t i = 0; i < old.room; i++) {
        if (!old.places[i].n || old.places[i].key > table->largest)
            continue;
        *place_of(table, old.places[i].key) = old.places[i];
        table->used++;
    }
    free(old.places);
    return MOE_OK;
}

int moe_path_table_reserve(struct moe_path_table *table, uint64_t n_keys, struct moe_err *err)
{
    uint64_t room = 64;
    if (table->limit && n_keys > 2 * table->limit)
        n_keys = 2 * table->limit;
    while (room < 2 * n_keys)
        room *= 2;
    return room > table->room ? rebuild_table(table, room, err) : MOE_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const struct moe_path_count *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

struct moe_path_count *moe_path_table_sorted(const struct moe_path_table *table, uint64_t *n,
                                             struct moe_err *err)
{
    *n = 0;
    struct moe_path_count *list = moe_alloc(table->used ? table->used : 1, sizeof *list, err);
    if (!list)
        return NULL;
    for (uint64_t i = 0; i < table->room; i++)
        if (table->places[i].n)
            list[(*n)++] = table->places[i];
    qsort(list, *n, sizeof *list, compare_keys);
    /* Between two cuts the table holds more than the limit; the surplus is not returned. */
    if (table->limit && *n > table->limit)
        *n = table->limit;
    return list;
}

/* Drops all but the `limit` smallest keys. */
static int cut_to_limit(struct moe_path_table *table, struct moe_err *err)
{
    uint64_t n;
    struct moe_path_count *list = moe_path_table_sorted(table, &n, err);
    if (!list)
        return MOE_ERR_MEMORY;
    table->largest = list[n - 1].key;
    table->sampled = true;
    free(list);
    return rebuild_table(table, table->room, err);
}

int moe_path_table_add(struct moe_path_table *table, uint64_t key, uint64_t n, struct moe_err *err)
{
    if (n == 0)
        return MOE_OK;
    if (key > table->largest) {
        table->sampled = true;
        return MOE_OK;
    }
    if (table->limit && table->used >= 2 * table->limit)
        MOE_TRY(cut_to_limit(table, err));
    if (2 * (table->used + 1) > table->room)
        MOE_TRY(rebuild_table(table, table->room ? 2 * table->room : 64, err));
    if (key > table->largest)
        return MOE_OK;
    struct moe_path_count *place = place_of(table, key);
    table->used += place->n == 0;
    place->key = key;
    place->n += n;
    return MOE_OK;
}

uint64_t moe_path_table_used(const struct moe_path_table *table)
{
    return table->used;
}

uint64_t moe_path_table_held(const struct moe_path_table *table)
{
    return table->room * sizeof *table->places;
}

uint64_t moe_path_table_bytes(uint64_t n_keys)
{
    uint64_t room = 64;
    while (room < 2 * (n_keys + 1))
        room *= 2;
    /* The table and the half as large one before it; the list, and qsort's copy of it. */
    return (room + room / 2 + 2 * n_keys) * sizeof(struct moe_path_count);
}

uint64_t moe_path_table_total(const struct moe_path_table *table, uint64_t *layers)
{
    uint64_t all = 0;
    for (uint64_t i = 0; i < table->room; i++) {
        const struct moe_path_count *place = &table->places[i];
        all += place->n;
        if (layers && place->n)
            layers[place->key >> 48] += place->n;
    }
    return all;
}

uint64_t moe_path_table_get(const struct moe_path_table *table, uint64_t key)
{
    return table->room ? place_of(table, key)->n : 0;
}

bool moe_path_table_sampled(const struct moe_path_table *table)
{
    return table->sampled || (table->limit && table->used > table->limit);
}

void moe_path_table_set_sampled(struct moe_path_table *table)
{
    table->sampled = true;
}

/* ---- Requests ---- */

static uint64_t numbers_of_one(const struct moe_requests *r)
{
    return (uint64_t)r->n_layers * r->n_experts;
}

uint64_t moe_requests_bytes(uint32_t n_layers, uint32_t n_experts)
{
    return MOE_REQUESTS_KEPT *
           (sizeof(uint64_t) + (uint64_t)n_layers * n_experts * sizeof(uint32_t));
}

int moe_requests_init(struct moe_requests *r, uint32_t n_layers, uint32_t n_experts,
                      struct moe_err *err)
{
    *r = (struct moe_requests){.n_layers = n_layers, .n_experts = n_experts};
    r->hashes = moe_alloc(MOE_REQUESTS_KEPT, sizeof *r->hashes, err);
    r->counts = moe_alloc(MOE_REQUESTS_KEPT * numbers_of_one(r), sizeof *r->counts, err);
    return r->hashes && r->counts ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_requests_release(struct moe_requests *r)
{
    free(r->hashes);
    free(r->counts);
    *r = (struct moe_requests){0};
}

uint32_t *moe_requests_add(struct moe_requests *r, uint64_t hash)
{
    uint32_t at = r->n;
    if (r->n == MOE_REQUESTS_KEPT && hash >= r->hashes[r->n - 1])
        return NULL;
    while (at > 0 && r->hashes[at - 1] > hash)
        at--;
    if (r->n < MOE_REQUESTS_KEPT)
        r->n++;
    uint64_t one = numbers_of_one(r), behind = r->n - 1 - at;
    memmove(r->hashes + at + 1, r->hashes + at, behind * sizeof *r->hashes);
    memmove(r->counts + (at + 1) * one, r->counts + at * one, behind * one * sizeof *r->counts);
    r->hashes[at] = hash;
    return memset(r->counts + at * one, 0, one * sizeof *r->counts);
}

void moe_requests_merge(struct moe_requests *sum, const struct moe_requests *part)
{
    for (uint32_t i = 0; i < part->n; i++) {
        uint32_t *to = moe_requests_add(sum, part->hashes[i]);
        if (to)
            memcpy(to, moe_requests_at(part, i, 0), numbers_of_one(part) * sizeof *to);
    }
}
