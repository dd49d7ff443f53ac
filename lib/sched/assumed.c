#include "sched/assumed.h"

#include <stdbool.h>
#include <string.h>

#include "base/random.h"

static uint64_t seed_of(struct moe_assumed_of of)
{
    uint64_t state = of.sequence;
    state = moe_random_next(&state) ^ of.token;
    state = moe_random_next(&state) ^ of.layer;
    return moe_random_next(&state);
}

static bool is_chosen(const uint16_t *chosen, uint32_t top_k, uint32_t expert)
{
    bool found = false;
    for (uint32_t k = 0; k < top_k; k++)
        found |= chosen[k] == expert;
    return found;
}

/* From a drawn expert on, the first that is neither chosen nor predicted; `instead` where there is
 * none. */
static uint32_t draw_other(uint64_t *state, const uint16_t *chosen, uint32_t top_k,
                           uint32_t n_experts, const float *predicted, uint32_t instead)
{
    uint32_t first = (uint32_t)(moe_random_next(state) % n_experts);
    for (uint32_t i = 0; i < n_experts; i++) {
        uint32_t e = (first + i) % n_experts;
        if (predicted[e] == 0 && !is_chosen(chosen, top_k, e))
            return e;
    }
    return instead;
}

void moe_assumed_prediction(struct moe_assumed_of of, double accuracy, const uint16_t *chosen,
                            uint32_t top_k, uint32_t n_experts, float *probabilities)
{
    uint64_t state = seed_of(of);
    float sum = (float)top_k * (float)(top_k + 1) / 2;
    memset(probabilities, 0, n_experts * sizeof *probabilities);
    for (uint32_t k = 0; k < top_k; k++) {
        bool right = (double)(moe_random_next(&state) >> 11) * 0x1p-53 < accuracy;
        uint32_t e = right ? chosen[k]
                           : draw_other(&state, chosen, top_k, n_experts, probabilities, chosen[k]);
        probabilities[e] = (float)(top_k - k) / sum;
    }
}
