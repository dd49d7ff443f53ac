/*
 * infinity: evicts what this sequence has seldom chosen, late layers first (MoE-Infinity, arXiv
 * 2401.14361, its cache): the lowest
 *
 *     p = (n[l][e] / sum over e of n[l][e] + epsilon) (1 - l / L)
 *
 * where n is the sequence's activation matrix: the tokens that chose expert e in layer l so far.
 * Early layers count more because predictions reach late ones. An encoder's expert that has run for
 * this source does not return in this sequence: its p is 0.
 */
#include "cache/scored.h"

static const double EPSILON = 1e-6; /* orders experts that the sequence has not used, by layer */

static double count_of(const struct moe_scored *s, uint32_t key)
{
    return s->usage->count[key];
}

static double ratio(const struct moe_scored *s, double count, uint32_t of, uint32_t layer)
{
    const struct moe_usage *u = s->usage;
    if (!moe_scored_returns(s, layer, of))
        return 0;
    /* Layers after the current one have not seen the tokens of this pass. */
    uint32_t tokens = of > layer ? u->token - u->pass : u->token;
    double share = tokens ? count / ((double)tokens * u->top_k) : 0;
    return (share + EPSILON) * (1 - (double)of / u->n_layers);
}

const struct moe_policy_ops moe_policy_infinity = {
    .name = "infinity",
    .describe = "evicts what the text chose seldom, late layers first (MoE-Infinity)",
    .needs_usage = true,
    .open = moe_scored_open,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = count_of,
    .score = ratio,
};
