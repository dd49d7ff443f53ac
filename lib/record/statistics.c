#include "record/statistics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "record/statistics_state.h"

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

bool moe_statistics_has_tokens(const struct moe_statistics *s)
{
    bool any = false;
    for (uint32_t l = 0; l < s->shape.n_layers; l++)
        any |= moe_accuracy_at(s, l, MOE_PREDICT_TOKEN)[MOE_ACC_TOKENS] > 0;
    return any;
}

const uint64_t *moe_statistics_placement(const struct moe_statistics *s)
{
    return s->series[moe_statistics_has_decoded(s) ? MOE_S_DECODED : MOE_S_ACTIVATIONS];
}

/* ---- Making and merging ---- */

_Static_assert(MOE_S_TOKEN_ACCURACY == MOE_N_SERIES - 1, "fingerprints leave it out by its place");

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

/* Of so many keys of paths and of whole paths; the numbers beside them are in the text, too. */
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
    int status = s->series[0] ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_path_table_new(&s->paths, 0, err);
    if (status == MOE_OK)
        status = moe_path_table_new(&s->whole, MOE_WHOLE_PATHS, err);
    if (status == MOE_OK)
        status = moe_requests_init(&s->requests, shape->n_layers, shape->n_experts, err);
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

/* Whether none of its decoded tokens were left out of MOE_S_DECODED. */
static bool has_all_decoded(const struct moe_statistics *s)
{
    return s->totals[MOE_TOTAL_TOKENS] == 0 || moe_statistics_has_decoded(s);
}

uint64_t moe_statistics_fingerprint(const struct moe_statistics *s)
{
    /* Without an encoder as before there were any. */
    uint64_t n_totals = s->shape.n_encoder ? MOE_N_TOTALS : MOE_TOTAL_SOURCE;
    uint64_t totals = moe_hash64(s->totals, n_totals * sizeof *s->totals);
    uint64_t n = n_numbers(&s->shape);
    if (!moe_statistics_has_tokens(s)) /* as before that was counted: it is the last series */
        n -= s->shape.n_layers * moe_series_length(&s->shape, MOE_S_TOKEN_ACCURACY);
    return moe_hash64_chain(totals, s->series[0], n * sizeof *s->series[0]);
}

int moe_statistics_check_finished(const struct moe_statistics *s, struct moe_err *err)
{
    uint64_t there = s->totals[MOE_TOTAL_DOCUMENTS], all = moe_origins_documents(&s->origins);
    if (s->origins.n == 0 || there == all)
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
    int status = check_shapes(&sum->shape, &part->shape, err);
    if (status != MOE_OK)
        return status;
    bool all_decoded = has_all_decoded(sum) && has_all_decoded(part);
    for (int i = 0; i < MOE_N_TOTALS; i++)
        sum->totals[i] += part->totals[i];
    for (uint64_t i = 0; i < n_numbers(&sum->shape); i++)
        sum->series[0][i] += part->series[0][i];
    for (uint32_t l = 0; l < sum->shape.n_layers && !all_decoded; l++)
        memset(moe_series_at(sum, MOE_S_DECODED, l), 0, sum->shape.n_experts * sizeof(uint64_t));
    moe_requests_merge(&sum->requests, &part->requests);
    status = merge_paths(sum->paths, part->paths, err);
    return status == MOE_OK ? merge_paths(sum->whole, part->whole, err) : status;
}

int moe_statistics_merge(struct moe_statistics *sum, const struct moe_statistics *part,
                         struct moe_err *err)
{
    int status = check_shapes(&sum->shape, &part->shape, err);
    if (sum->origins.n == 0 || part->origins.n == 0)
        moe_origins_release(&sum->origins);
    else if (status == MOE_OK)
        status = moe_origins_join(&sum->origins, &part->origins, err);
    return status == MOE_OK ? moe_statistics_add(sum, part, err) : status;
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
