/* Predicted experts. */
#include "sched/select.h"

#include <math.h>
#include <string.h>

#include "base/float16.h"
#include "base/rank.h"
#include "model/config.h"  /* MOE_MAX_TOP_K */
#include "profile/trace.h" /* moe_trace_default_keep */

void moe_unimportance(const float *weights, uint32_t k, float *scores)
{
    double sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += weights[i];
    for (uint32_t i = 0; i < k; i++) {
        double before = 0;
        for (uint32_t j = 0; j < k; j++)
            if (weights[j] > weights[i] || (weights[j] == weights[i] && j < i))
                before += weights[j];
        scores[i] = sum > 0 ? (float)(before / sum) : 0;
    }
}

void moe_gate_below(float *weights, uint32_t k, double share)
{
    float scores[MOE_MAX_TOP_K];
    double all = 0, kept = 0;
    moe_unimportance(weights, k, scores);
    for (uint32_t i = 0; i < k; i++) {
        all += weights[i];
        if (scores[i] > 0 && scores[i] > (float)(1 - share))
            weights[i] = 0;
        kept += weights[i];
    }
    for (uint32_t i = 0; kept < all && i < k; i++)
        weights[i] = (float)(weights[i] * (all / kept));
}

enum moe_importance moe_importance_of(float score, double t1, double t2)
{
    /* As floats: a score of 0.6 is not above a threshold of 0.6. */
    if (score == 0 || score <= (float)t1)
        return MOE_IMPORTANT;
    return score <= (float)t2 ? MOE_LESS_IMPORTANT : MOE_UNIMPORTANT;
}

void moe_least_popular(const uint32_t *rows, uint32_t n, double share, uint8_t *low)
{
    /* 0.29 is slightly less in binary: 0.29 of 100 experts must still be 29. */
    uint32_t n_low = (uint32_t)(share * n + 1e-6);
    memset(low, 0, n * sizeof *low);
    for (; n_low > 0; n_low--) {
        uint32_t least = n;
        for (uint32_t i = 0; i < n; i++)
            if (!low[i] && (least == n || rows[i] <= rows[least]))
                least = i;
        low[least] = 1;
    }
}

void moe_least_unimportance(const uint32_t *chosen, const float *weights, uint32_t n_rows,
                            uint32_t k, float *least)
{
    float scores[MOE_MAX_TOP_K];
    for (uint64_t r = 0; r < n_rows; r++) {
        moe_unimportance(weights + r * k, k, scores);
        for (uint32_t i = 0; i < k; i++)
            if (scores[i] < least[chosen[r * k + i]])
                least[chosen[r * k + i]] = scores[i];
    }
}

/* ---- Predicted experts ---- */

_Static_assert(MOE_MAX_EXPERTS / 4 >= 2 * MOE_MAX_TOP_K, "room for all that a trace keeps");

uint32_t moe_select(const struct moe_prefetch_limits *limits, const struct moe_prediction *p,
                    uint32_t n_experts, uint32_t top_k, uint32_t *experts)
{
    bool one_row = p->n_rows == 1, has_percentile = one_row && limits->percentile > 0;
    bool some_best = !one_row && (limits->percentile > 0 || limits->top_k);
    uint32_t most = one_row && limits->top_k ? top_k : n_experts, n_ranked = most, n = 0;
    float above = 0; /* what scores more is a candidate */
    uint32_t n_candidates = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        n_candidates += p->scores[e] > above;
    if (has_percentile) {
        uint32_t n_below = (uint32_t)ceil(limits->percentile * n_experts / 100);
        n_ranked = n_experts - n_below + 1; /* the last of them is the percentile itself */
        has_percentile = n_ranked <= n_candidates;
    }
    n_ranked = n_ranked < n_candidates ? n_ranked : n_candidates;
    moe_best(p->scores, n_experts, n_ranked, experts);
    if (has_percentile)
        above = p->scores[experts[n_ranked - 1]];
    for (uint32_t i = 0; i < n_ranked && n < most; i++) {
        uint32_t e = experts[i];
        if (p->scores[e] > above && (!some_best || p->unimportance[e] <= 1))
            experts[n++] = e;
    }
    return n;
}

/* Adds a row's part of the means, over its n_best best experts, and lists its top_k best. A row
 * with no others, as replayed rows are, needs no further ranking. */
static void add_means(const float *row, uint32_t n_rows, uint32_t n_experts, uint32_t n_best,
                      uint32_t top_k, float *scores, uint32_t *best)
{
    float part = 0.5f / (float)n_rows; /* half: rounding of the sum with a count can't reach the
                                          next count */
    uint32_t n_above = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        n_above += row[e] != 0;
    moe_best(row, n_experts, n_above > n_best ? n_best : top_k, best);
    for (uint32_t i = 0; n_above > n_best && i < n_best; i++)
        scores[best[i]] += moe_round_f16(row[best[i]]) * part;
    for (uint32_t e = 0; n_above <= n_best && e < n_experts; e++)
        if (row[e] != 0)
            scores[e] += moe_round_f16(row[e]) * part;
}

void moe_tally(const float *probabilities, uint64_t stride, uint32_t n_rows, uint32_t n_experts,
               uint32_t top_k, float *scores, float *unimportance, float *scratch)
{
    bool several = n_rows > 1;
    uint32_t best[MOE_MAX_EXPERTS / 4], n_rows_of[MOE_MAX_EXPERTS]; /* rows whose best k hold it */
    uint32_t n_best = moe_trace_default_keep(n_experts, top_k);
    float *weights = scratch, *unimportances = scratch + top_k;
    for (uint32_t e = 0; e < n_experts; e++) {
        scores[e] = several ? 0 : probabilities[e];
        unimportance[e] = 2;
        n_rows_of[e] = 0;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *row = probabilities + r * stride;
        if (several)
            add_means(row, n_rows, n_experts, n_best, top_k, scores, best);
        else
            moe_best(row, n_experts, top_k, best);
        for (uint32_t i = 0; i < top_k; i++)
            weights[i] = row[best[i]];
        moe_unimportance(weights, top_k, unimportances);
        for (uint32_t i = 0; i < top_k && weights[i] > 0; i++) {
            unimportance[best[i]] = fminf(unimportance[best[i]], unimportances[i]);
            n_rows_of[best[i]]++;
        }
    }
    /* One at a time: adding the number at once would round differently. */
    for (uint32_t e = 0; several && e < n_experts; e++)
        for (uint32_t r = 0; r < n_rows_of[e]; r++)
            scores[e] += 1;
}

/* ---- Cached experts that are preferred ---- */

/* The least probability above 0 that a trace can keep. */
#define LEAST_PROBABILITY 0x1p-24f

uint32_t moe_preference_reach(uint32_t n_experts, uint32_t top_k)
{
    return moe_trace_default_keep(n_experts, top_k);
}

void moe_preference_carve(struct moe_preference *p, struct moe_arena *arena, uint32_t n_layers,
                          uint32_t n_experts, uint32_t top_k)
{
    uint32_t reach = moe_preference_reach(n_experts, top_k);
    p->n_layers = n_layers;
    p->n_experts = n_experts;
    p->top_k = top_k;
    p->reach = reach;
    p->spread = moe_arena_take(arena, n_layers, sizeof *p->spread);
    p->seen = moe_arena_take(arena, n_layers, sizeof *p->seen);
    p->experts = moe_arena_take(arena, reach, sizeof *p->experts);
    p->probabilities = moe_arena_take(arena, reach, sizeof *p->probabilities);
    p->cached = moe_arena_take(arena, n_experts, 1);
    p->scores = moe_arena_take(arena, reach, sizeof *p->scores);
    p->taken = moe_arena_take(arena, reach, 1);
}

void moe_preference_begin_sequence(struct moe_preference *p)
{
    memset(p->spread, 0, p->n_layers * sizeof *p->spread);
    memset(p->seen, 0, p->n_layers * sizeof *p->seen);
}

/* Scores the experts; returns the layer's spread with them. */
static double score_experts(struct moe_preference *p, uint32_t layer)
{
    double most = -INFINITY, least = INFINITY;
    for (uint32_t i = 0; i < p->n; i++) {
        float rounded = moe_round_f16(p->probabilities[i]);
        p->scores[i] = log(rounded > LEAST_PROBABILITY ? rounded : LEAST_PROBABILITY);
        most = fmax(most, p->scores[i]);
        least = fmin(least, p->scores[i]);
    }
    p->seen[layer] += p->seen[layer] < MOE_PREFER_SPAN;
    p->spread[layer] += (most - least - p->spread[layer]) / p->seen[layer];
    return p->spread[layer];
}

/* The best that is not taken yet; of equals the one that the router ranks higher. */
static uint32_t best_left(const struct moe_preference *p)
{
    uint32_t best = p->n;
    for (uint32_t i = 0; i < p->n; i++)
        if (!p->taken[i] && (best == p->n || p->scores[i] > p->scores[best]))
            best = i;
    return best;
}

uint32_t moe_preference_choose(struct moe_preference *p, uint32_t layer, uint32_t *chosen)
{
    double raise = p->lambda * score_experts(p, layer);
    uint32_t n_others = 0, n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        p->scores[i] += p->cached[p->experts[i]] ? raise : 0;
        p->taken[i] = i < p->keeps && i < p->top_k;
    }
    for (uint32_t k = p->keeps; k < p->top_k; k++)
        p->taken[best_left(p)] = 1;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!p->taken[i])
            continue;
        n_others += i >= p->top_k;
        chosen[n++] = p->experts[i];
    }
    return n_others;
}
