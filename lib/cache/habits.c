/* Counts which experts follow which, from token to token. */
#include "cache/habits.h"

#include <string.h>

static const float BELIEF = 4; /* tokens after which counts weigh as much as the mean frequency */

void moe_habits_carve(struct moe_habits *h, struct moe_arena *a,
                      const struct moe_follower_params *p)
{
    uint64_t n_keys = (uint64_t)p->n_layers * p->n_experts;
    uint64_t n_before = (uint64_t)p->n_layers * MOE_HABITS_SEQUENCES;
    *h = (struct moe_habits){.n_layers = p->n_layers, .n_experts = p->n_experts, .top_k = p->top_k};
    h->followed = moe_arena_take(a, n_keys * p->n_experts, sizeof *h->followed);
    h->tokens = moe_arena_take(a, n_keys, sizeof *h->tokens);
    h->count = moe_arena_take(a, n_keys, sizeof *h->count);
    h->runs = moe_arena_take(a, p->n_layers, sizeof *h->runs);
    h->before = moe_arena_take(a, n_before * p->top_k, sizeof *h->before);
    h->follows = moe_arena_take(a, n_before, sizeof *h->follows);
    h->in_pass = moe_arena_take(a, MOE_HABITS_SEQUENCES, sizeof *h->in_pass);
}

void moe_habits_begin_sequence(struct moe_habits *h)
{
    memset(h->follows, 0, (uint64_t)h->n_layers * MOE_HABITS_SEQUENCES);
}

/* Counts that a token which used `key` is followed by one that uses `chosen`. */
static void count_pair(struct moe_habits *h, uint32_t key, const uint32_t *chosen)
{
    uint16_t *followed = h->followed + (uint64_t)key * h->n_experts;
    if (h->tokens[key] == UINT16_MAX) {
        h->tokens[key] /= 2;
        for (uint32_t e = 0; e < h->n_experts; e++)
            followed[e] /= 2;
    }
    h->tokens[key]++;
    for (uint32_t i = 0; i < h->top_k; i++)
        followed[chosen[i]]++;
}

void moe_habits_row(struct moe_habits *h, uint32_t layer, uint32_t sequence, const uint32_t *chosen)
{
    uint64_t at = (uint64_t)layer * MOE_HABITS_SEQUENCES + sequence % MOE_HABITS_SEQUENCES;
    uint16_t *before = h->before + at * h->top_k;
    for (uint32_t i = 0; h->follows[at] && i < h->top_k; i++)
        count_pair(h, layer * h->n_experts + before[i], chosen);
    for (uint32_t i = 0; i < h->top_k; i++) {
        before[i] = (uint16_t)chosen[i];
        h->count[layer * h->n_experts + chosen[i]]++;
    }
    h->follows[at] = 1;
    h->runs[layer]++;
}

void moe_habits_ratios(struct moe_habits *h, const struct moe_choices *c, float *ratio,
                       float *share)
{
    uint32_t n_experts = h->n_experts, n = 0, first = c->layer * n_experts;
    float beside = 0;
    memset(h->in_pass, 0, MOE_HABITS_SEQUENCES);
    memset(ratio, 0, n_experts * sizeof *ratio);
    memset(share, 0, n_experts * sizeof *share);
    for (uint32_t row = c->n_rows; row-- > 0;) {
        uint32_t sequence = (c->sequences ? c->sequences[row] : 0) % MOE_HABITS_SEQUENCES;
        const uint32_t *chosen = c->chosen + (uint64_t)row * h->top_k;
        for (uint32_t i = 0; !h->in_pass[sequence] && i < h->top_k; i++) {
            uint32_t key = first + chosen[i];
            const uint16_t *followed = h->followed + (uint64_t)key * n_experts;
            float believed = 1.0f / ((float)h->tokens[key] + BELIEF);
            beside += BELIEF * believed;
            for (uint32_t e = 0; e < n_experts; e++)
                ratio[e] += (float)followed[e] * believed;
            share[chosen[i]]++;
            n++;
        }
        h->in_pass[sequence] = 1;
        if (!c->sequences)
            break;
    }
    const uint32_t *count = h->count + first;
    float half = 0.5f * (float)h->top_k / (float)n_experts;
    float per = ((float)h->runs[c->layer] + 0.5f) / (float)n; /* 1 / (b's denominator n) */
    beside /= (float)n;
    float text = (float)h->top_k / (float)n;
    for (uint32_t e = 0; e < n_experts; e++)
        share[e] *= text;
    for (uint32_t e = 0; e < n_experts; e++)
        ratio[e] = ratio[e] * per / ((float)(int32_t)count[e] + half) + beside;
}
