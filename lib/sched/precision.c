#include "sched/precision.h"

#include <string.h>

#include "model/config.h" /* MOE_MAX_TOP_K */

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
