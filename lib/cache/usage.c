/* The record of use that policies judge by. */
#include "cache/usage.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int moe_usage_init(struct moe_usage *u, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                   struct moe_err *err)
{
    uint64_t n = (uint64_t)n_layers * n_experts;
    *u = (struct moe_usage){.n_layers = n_layers, .n_experts = n_experts, .top_k = top_k};
    u->last = moe_alloc(n, sizeof *u->last, err);
    u->count = moe_alloc(n, sizeof *u->count, err);
    u->high = moe_alloc(n, sizeof *u->high, err);
    u->frequency = moe_alloc(n, sizeof *u->frequency, err);
    u->last_ever = moe_alloc(n, sizeof *u->last_ever, err);
    bool all = u->last && u->count && u->high && u->frequency && u->last_ever;
    return all ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_usage_release(struct moe_usage *u)
{
    free(u->last);
    free(u->count);
    free(u->high);
    free(u->frequency);
    free(u->last_ever);
    free(u->follower);
    *u = (struct moe_usage){0};
}

void moe_usage_chosen(struct moe_usage *u, const struct moe_choices *choices)
{
    u->layer = choices->layer;
    if (u->follower && choices->n_rows)
        u->follower->chosen(u->follower, choices);
}

void moe_usage_begin_sequence(struct moe_usage *u)
{
    uint64_t n = (uint64_t)u->n_layers * u->n_experts;
    memset(u->last, 0, n * sizeof *u->last);
    memset(u->count, 0, n * sizeof *u->count);
    memset(u->high, 0, n * sizeof *u->high);
    u->token = 0;
    u->sequences++;
}

void moe_usage_end_sequence(struct moe_usage *u, uint32_t n)
{
    uint64_t n_keys = (uint64_t)u->n_layers * u->n_experts;
    if (n >= u->token) {
        moe_usage_begin_sequence(u);
        return;
    }
    for (uint64_t key = 0; key < n_keys; key++) {
        u->last[key] -= n < u->last[key] ? n : u->last[key];
        u->count[key] -= (uint32_t)((uint64_t)u->count[key] * n / u->token);
        u->high[key] -= (uint32_t)((uint64_t)u->high[key] * n / u->token);
    }
    u->token -= n;
    u->sequences++;
}

void moe_usage_begin_tokens(struct moe_usage *u, uint32_t n)
{
    u->pass = n;
    u->token += n;
    u->tokens += n;
}

void moe_usage_is_source(struct moe_usage *u)
{
    u->token -= u->pass;
}

void moe_usage_note(struct moe_usage *u, uint32_t key, uint32_t n, bool high)
{
    if (moe_loop_owner(&u->loop, u->layer) != key / u->n_experts)
        u->layer = key / u->n_experts;
    u->last[key] = u->token;
    u->last_ever[key] = u->tokens;
    u->count[key] += n;
    u->high[key] += high ? n : 0;
    u->frequency[key] += n;
}
