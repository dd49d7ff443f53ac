/*
 * transition: keeps what was used lately and often and what usually follows the current token:
 * evicts the lowest
 *
 *     log2 C(e) - w/8 + log2 ratio(e)
 *
 * C(e) is the remaining worth of all uses of e (policy_lrfu.c), with a half-life of 8 tokens; w the
 * wait until e's layer runs again, in tokens: from 1/S to 1, S counting the layers of the decoder;
 * ratio how much oftener than on average the next token uses e, given the router's latest choice
 * (habits.h). Nothing is learnt but these counts. Each layer has its own time, the tokens that its
 * router has chosen for.
 */
#include "cache/exact_math.h"
#include "cache/habits.h"
#include "cache/scored.h"

static const float KEEPS =
    0.917004043f;                  /* what remains of a use's worth from token to token: 2^(-1/8) */
static const double HALF_LIFE = 8; /* tokens */
static const float LEAST = 0x1p-100f; /* the least worth of uses, also of experts never used */

struct transition {
    struct moe_follower base;
    struct moe_habits habits;
    float *worth;           /* [layer][expert] C */
    float *ratios, *shares; /* [n_experts] scratch */
};

static void begin_sequence(struct moe_follower *f)
{
    moe_habits_begin_sequence(&((struct transition *)f)->habits);
}

static void fade(float *worth, uint32_t n)
{
    for (uint32_t e = 0; e < n; e++) {
        float left = worth[e] * KEEPS;
        worth[e] = left > LEAST ? left : LEAST;
    }
}

static void chosen(struct moe_follower *f, const struct moe_choices *c)
{
    struct transition *t = (struct transition *)f;
    uint32_t n_experts = t->habits.n_experts, top_k = t->habits.top_k;
    float *worth = t->worth + c->layer * n_experts, *scores = f->scores + c->layer * n_experts;
    for (uint32_t row = 0; row < c->n_rows; row++) {
        const uint32_t *of = c->chosen + (uint64_t)row * top_k;
        fade(worth, n_experts);
        for (uint32_t i = 0; i < top_k; i++)
            worth[of[i]] += 1;
        moe_habits_row(&t->habits, c->layer, c->sequences ? c->sequences[row] : 0, of);
    }
    moe_habits_ratios(&t->habits, c, t->ratios, t->shares);
    for (uint32_t e = 0; e < n_experts; e++)
        scores[e] = moe_exact_log2(worth[e]) + moe_exact_log2(t->ratios[e]);
    f->version[c->layer]++;
}

static struct moe_follower *follow(struct moe_arena *a, const struct moe_follower_params *p)
{
    uint32_t n_keys = p->n_layers * p->n_experts;
    struct transition *at = moe_arena_take(a, 1, sizeof *at);
    struct transition t = {.base = {.chosen = chosen, .begin_sequence = begin_sequence}};
    moe_habits_carve(&t.habits, a, p);
    t.base.scores = moe_arena_take(a, n_keys, sizeof *t.base.scores);
    t.base.version = moe_arena_take(a, p->n_layers, sizeof *t.base.version);
    t.worth = moe_arena_take(a, n_keys, sizeof *t.worth);
    t.ratios = moe_arena_take(a, p->n_experts, sizeof *t.ratios);
    t.shares = moe_arena_take(a, p->n_experts, sizeof *t.shares);
    if (!at)
        return NULL;
    for (uint32_t key = 0; key < n_keys; key++) {
        t.worth[key] = LEAST;
        t.base.scores[key] = -100; /* log2 of LEAST */
    }
    *at = t;
    return &at->base;
}

static double worth_then(const struct moe_scored *s, double part, uint32_t of, uint32_t layer)
{
    if (!moe_scored_returns(s, layer, of))
        return -INFINITY;
    return part - moe_scored_wait(s, of, layer) / HALF_LIFE;
}

const struct moe_policy_ops moe_policy_transition = {
    .name = "transition",
    .describe = "evicts by uses that fade, and by what usually follows the experts just chosen",
    .needs_usage = true,
    .follow = follow,
    .open = moe_scored_open,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = moe_scored_followed,
    .score = worth_then,
};
