/*
 * What follows from a whole document's choices: frequencies, paths, reuse, popularity, its matrix
 * of activations, and the similarity of its prompt and the rest.
 */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "record/statistics_state.h"

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

static bool holds(const uint16_t *list, uint32_t n, uint16_t expert)
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
        again += holds(before, k, now[i]);
    reuse[MOE_REUSE_TOKENS]++;
    reuse[MOE_REUSE_ACTIVE] += again;
    reuse[MOE_REUSE_BEST] += holds(now, k, before[0]);
    reuse[MOE_REUSE_ANY] += again > 0;
    reuse[MOE_REUSE_WAS] += holds(before, k, now[0]);
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
    int status = MOE_OK;
    for (uint32_t l = first; l < s->shape.n_layers && status == MOE_OK; l++) {
        uint16_t best = moe_document_chosen(s, l, token)[0];
        hash = moe_hash64_chain(hash, &best, sizeof best);
        if (l == first || s->document->by_token[l])
            continue;
        uint16_t before2 = l > first + 1 ? moe_document_chosen(s, l - 2, token)[0] : MOE_NO_EXPERT;
        uint16_t before1 = moe_document_chosen(s, l - 1, token)[0];
        status = moe_path_table_add(s->paths, moe_path_key(l, before2, before1, best), 1, err);
    }
    return status == MOE_OK ? moe_path_table_add(s->whole, hash, 1, err) : status;
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
    /* Not beside texts of an earlier version, of which they are not known. */
    bool counts_decoded = s->totals[MOE_TOTAL_TOKENS] == 0 || moe_statistics_has_decoded(s);
    s->totals[MOE_TOTAL_DOCUMENTS]++;
    s->totals[MOE_TOTAL_TOKENS] += s->document->n_tokens;
    s->totals[MOE_TOTAL_SOURCE] += s->document->n_source;
    s->totals[MOE_TOTAL_HASH] += s->document->hash;
    uint32_t *request = moe_requests_add(&s->requests, s->document->hash);
    for (uint32_t l = 0; l < s->shape.n_layers; l++) {
        uint64_t *counts = s->document->counts;
        uint32_t n = moe_document_tokens(s, l);
        bool decodes = counts_decoded && l >= s->shape.n_encoder;
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
