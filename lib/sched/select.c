#include "sched/select.h"

#include <math.h>
#include <string.h>

#include "model/config.h" /* MOE_MAX_TOP_K */
#include "sched/precision.h"

void moe_best(const float *values, uint32_t n, uint32_t k, uint32_t *best)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = found;
        while (at > 0 && values[i] > values[best[at - 1]])
            at--;
        if (at == k)
            continue;
        found += found < k;
        memmove(best + at + 1, best + at, (found - 1 - at) * sizeof *best);
        best[at] = i;
    }
}

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

void moe_tally(const float *probabilities, uint64_t stride, uint32_t n_rows, uint32_t n_experts,
               uint32_t top_k, float *scores, float *unimportance, float *scratch)
{
    bool several = n_rows > 1;
    uint32_t best[MOE_MAX_TOP_K];
    float *weights = scratch, *unimportances = scratch + top_k;
    memcpy(scores, probabilities, n_experts * sizeof *scores);
    for (uint32_t r = 1; r < n_rows; r++)
        for (uint32_t e = 0; e < n_experts; e++)
            scores[e] += probabilities[r * stride + e];
    for (uint32_t e = 0; e < n_experts; e++) {
        /* Half the mean: rounding of the sum with a count can't reach the next count. */
        scores[e] *= several ? 0.5f / (float)n_rows : 1;
        unimportance[e] = 2;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *row = probabilities + r * stride;
        moe_best(row, n_experts, top_k, best);
        for (uint32_t i = 0; i < top_k; i++)
            weights[i] = row[best[i]];
        moe_unimportance(weights, top_k, unimportances);
        for (uint32_t i = 0; i < top_k && weights[i] > 0; i++) {
            uint32_t e = best[i];
            scores[e] += several;
            unimportance[e] = fminf(unimportance[e], unimportances[i]);
        }
    }
}
