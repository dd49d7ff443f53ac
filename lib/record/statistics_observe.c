/*
 * What is counted while a document runs: the routers' choices, how well they were predicted, the
 * likeness of inputs. The choices are kept for the document's end.
 */
#include <math.h>
#include <string.h>

#include "base/best.h"
#include "base/par.h"
#include "record/statistics_state.h"

int moe_statistics_begin(struct moe_statistics *s, uint64_t hash, struct moe_err *err)
{
    uint64_t sets = (uint64_t)s->shape.n_layers * MOE_N_PREDICTORS;
    int status = s->document ? MOE_OK : moe_document_new(&s->document, &s->shape, err);
    if (status != MOE_OK)
        return status;
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

/* Where the token was used last, or without that the token before, which there is. */
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
