#include "sched/prefer.h"

#include <math.h>
#include <string.h>

#include "base/float16.h"
#include "trace/trace.h"

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
static double score(struct moe_preference *p, uint32_t layer)
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
    double raise = p->lambda * score(p, layer);
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
