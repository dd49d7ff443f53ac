#include "sched/select.h"

#include <math.h>
#include <string.h>

#include "base/best.h"
#include "base/float16.h"
#include "model/config.h" /* MOE_MAX_EXPERTS */
#include "sched/precision.h"
#include "trace/trace.h" /* moe_trace_default_keep */

_Static_assert(MOE_MAX_EXPERTS / 4 >= 2 * MOE_MAX_TOP_K, "room for all that a trace keeps");

uint32_t moe_select(const struct moe_prefetch_limits *limits, const struct moe_prediction *p,
                    uint32_t n_experts, uint32_t top_k, uint32_t *experts)
{
    bool one_row = p->n_rows == 1, has_percentile = one_row && limits->percentile > 0;
    bool some_best = !one_row && (limits->percentile > 0 || limits->top_k);
    uint32_t most = one_row && limits->top_k ? top_k : n_experts, n_ranked = most, n = 0;
    float above = 0; /* what scores more is a candidate */
    if (has_percentile) {
        uint32_t n_below = (uint32_t)ceil(limits->percentile * n_experts / 100);
        n_ranked = n_experts - n_below + 1; /* the last of them is the percentile itself */
    }
    moe_best(p->scores, n_experts, n_ranked, experts);
    if (has_percentile)
        above = fmaxf(above, p->scores[experts[n_ranked - 1]]);
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
