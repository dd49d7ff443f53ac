/*
 * Replays a trace through one LRU cache of all experts: replay_lru TRACE BYTES.
 *
 * Prints the hit rate twice. "batched": the tokens of a prompt go through a layer together, so that
 * each distinct expert of them is one lookup, as in engines that compute prompts in a batch;
 * "by token": every activation is one. Sizes are those of the trace's first variant.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "sched/policy.h"
#include "sched/trace.h"

struct cache {
    const struct moe_trace_shape *shape;
    struct moe_policy *policy;
    bool *resident;                   /* [layers * experts] */
    uint64_t capacity, used;          /* bytes */
    uint64_t lookups[2], hits[2];     /* decode, prompt */
    bool *in_prompt;                  /* [layers * experts] */
    bool batched, prompt_is_gathered; /* something waits in in_prompt */
};

static bool may_leave(void *ctx, uint32_t key)
{
    return true;
}

static uint64_t bytes_of(const struct cache *c, uint32_t key)
{
    return moe_trace_expert_bytes(c->shape, 0, key / c->shape->n_experts,
                                  key % c->shape->n_experts);
}

static void look_up(struct cache *c, uint32_t key, bool prompt)
{
    c->lookups[prompt]++;
    if (c->resident[key]) {
        c->hits[prompt]++;
        c->policy->ops->use(c->policy, key);
        return;
    }
    if (c->policy->ops->miss)
        c->policy->ops->miss(c->policy, key);
    while (c->used + bytes_of(c, key) > c->capacity) {
        int64_t victim = c->policy->ops->victim(c->policy, key, may_leave, NULL);
        if (victim == MOE_NO_KEY)
            return; /* larger than the cache */
        c->policy->ops->drop(c->policy, (uint32_t)victim);
        c->resident[victim] = false;
        c->used -= bytes_of(c, (uint32_t)victim);
    }
    c->policy->ops->admit(c->policy, key);
    c->resident[key] = true;
    c->used += bytes_of(c, key);
}

static void look_up_prompt(struct cache *c)
{
    for (uint32_t key = 0; key < c->shape->n_layers * c->shape->n_experts; key++) {
        if (c->in_prompt[key])
            look_up(c, key, true);
        c->in_prompt[key] = false;
    }
    c->prompt_is_gathered = false;
}

static void take_token(struct cache *c, const struct moe_trace *t,
                       const struct moe_trace_token *token)
{
    bool gather = token->prompt && c->batched;
    if (c->prompt_is_gathered && (!gather || token->index == 0))
        look_up_prompt(c);
    for (uint32_t layer = 0; layer < c->shape->n_layers; layer++) {
        struct moe_trace_step step = moe_trace_step(t, layer);
        for (uint32_t i = 0; step.experts && i < c->shape->top_k; i++) {
            uint32_t key = layer * c->shape->n_experts + step.experts[i];
            if (gather)
                c->in_prompt[key] = true;
            else
                look_up(c, key, token->prompt);
        }
    }
    c->prompt_is_gathered = gather;
}

static int replay(struct moe_trace *t, uint64_t capacity, bool batched, struct moe_err *err)
{
    const struct moe_trace_token *token;
    uint32_t n_keys = moe_trace_shape(t)->n_layers * moe_trace_shape(t)->n_experts;
    struct cache c = {.shape = moe_trace_shape(t), .capacity = capacity, .batched = batched};
    const struct moe_policy_params params = {.n_keys = n_keys, .capacity = n_keys};
    if (c.shape->n_variants == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the trace has no sizes of experts");
    c.resident = moe_alloc(n_keys, sizeof *c.resident, err);
    c.in_prompt = moe_alloc(n_keys, sizeof *c.in_prompt, err);
    int status = c.resident && c.in_prompt ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_policy_lru.open(&c.policy, &params, err);
    moe_trace_rewind(t);
    while (status == MOE_OK && (status = moe_trace_next(t, &token, err)) == MOE_OK && token)
        take_token(&c, t, token);
    if (c.prompt_is_gathered)
        look_up_prompt(&c);
    uint64_t lookups = c.lookups[0] + c.lookups[1], hits = c.hits[0] + c.hits[1];
    if (status == MOE_OK)
        printf("%s: %" PRIu64 " of %" PRIu64 " lookups hit: %.2f%% (decode %" PRIu64 " of %" PRIu64
               ")\n",
               batched ? "batched" : "by token", hits, lookups,
               lookups ? 100 * (double)hits / (double)lookups : 0, c.hits[0], c.lookups[0]);
    moe_policy_close(c.policy);
    free(c.resident);
    free(c.in_prompt);
    return status;
}

int main(int argc, char **argv)
{
    struct moe_err err;
    struct moe_trace *t = NULL;
    uint64_t capacity;
    if (argc != 3 || !moe_parse_bytes(argv[2], &capacity)) {
        fprintf(stderr, "replay_lru TRACE BYTES\n");
        return 2;
    }
    int status = moe_trace_open(&t, argv[1], &err);
    for (int batched = 1; batched >= 0 && status == MOE_OK; batched--)
        status = replay(t, capacity, batched, &err);
    moe_trace_close(t);
    if (status != MOE_OK)
        fprintf(stderr, "replay_lru: %s\n", err.text);
    return status != MOE_OK;
}
