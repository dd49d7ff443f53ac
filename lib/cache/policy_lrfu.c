/*
 * lrfu: evicts the lowest combined recency and frequency (Lee et al., IEEE Transactions on
 * Computers 50(12), 2001): a use is worth 1 and halves with each half-life; C is the remaining
 * worth of all uses, including those before an eviction. A short half-life orders as lru does, an
 * infinite one as an lfu that forgets nothing. Decisions are the same on every machine
 * (exact_math.h).
 *
 * Each layer has its own time, the tokens up to its router's last choice: otherwise the layers
 * about to run, whose last uses are nearly a token ago, would always look older than those just
 * run. Until a layer runs again its experts fade further, by d/S of a token (policy_edgemoe.c), so
 * that among equals the one needed first stays; S counts the layers of the decoder, and an
 * encoder's uses for a source are worth nothing until the next one. Uses by the tokens of one pass
 * count as spread evenly over them.
 *
 * The half-life does not follow the ratio of cache to demand. On replayed traces
 * (tests/tools/replay_trace) the best one grows with the cache, from 4 to 20 tokens at half a
 * token's demand to 12 to 32 at six, by model; but choosing it by the ratio gains less than 0.2
 * points of hit rate over one for all, since models disagree more than sizes do
 * (tests/bench/CACHES.md).
 */
#include <math.h>

#include "cache/exact_math.h"
#include "cache/scored.h"

static const double DEFAULT_HALF_LIFE = 12; /* tokens */

struct lrfu {
    struct moe_scored scored;
    double half_life; /* tokens */
    double *value;    /* [n_keys] log2 of C, brought to time 0: it changes only with uses */
    uint64_t *seen;   /* [n_keys] the part of usage->frequency already in `value` */
    uint64_t *time;   /* [n_layers] usage->tokens when the layer's router chose last */
};

static void close_lrfu(struct moe_policy *p)
{
    struct lrfu *f = (struct lrfu *)p;
    moe_scored_release(&f->scored);
    free(f->value);
    free(f->seen);
    free(f->time);
    free(f);
}

/* Allocates and begins the records: uses before opening, from a profile, do not count. */
static int lrfu_begin(struct lrfu *f, uint32_t n_keys, struct moe_err *err)
{
    const struct moe_usage *u = f->scored.usage;
    f->value = moe_alloc(n_keys, sizeof *f->value, err);
    f->seen = moe_alloc(n_keys, sizeof *f->seen, err);
    f->time = moe_alloc(u->n_layers, sizeof *f->time, err);
    if (!f->value || !f->seen || !f->time)
        return MOE_ERR_MEMORY;
    for (uint32_t key = 0; key < n_keys; key++) {
        f->value[key] = -INFINITY;
        f->seen[key] = u->frequency[key];
    }
    for (uint32_t layer = 0; layer < u->n_layers; layer++)
        f->time[layer] = u->tokens;
    return MOE_OK;
}

static double value_of(const struct moe_scored *s, uint32_t key)
{
    return ((const struct lrfu *)s)->value[key];
}

static int open_lrfu(struct moe_policy **out, const struct moe_policy_ops *ops,
                     const struct moe_policy_params *params, struct moe_err *err)
{
    struct lrfu *f = moe_alloc(1, sizeof *f, err);
    if (!f)
        return MOE_ERR_MEMORY;
    f->half_life = params->half_life > 0 ? params->half_life : DEFAULT_HALF_LIFE;
    int status;
    MOE_STEP(moe_scored_init(&f->scored, ops, params, err));
    MOE_STEP(lrfu_begin(f, params->n_keys, err));
out:
    if (status == MOE_OK)
        *out = &f->scored.base;
    else
        close_lrfu(&f->scored.base);
    return status;
}

/* Handles a router's choice of a key, resident or not. */
static void ask(struct moe_policy *p, uint32_t key)
{
    struct lrfu *f = (struct lrfu *)p;
    const struct moe_usage *u = f->scored.usage;
    uint32_t layer = key / u->n_experts;
    uint64_t uses = u->frequency[key] - f->seen[key];
    f->seen[key] = u->frequency[key];
    f->time[layer] = u->tokens;
    if (uses > u->pass) /* some were noted without a call, as those of a late profile */
        uses = u->pass;
    if (uses == 0)
        return;
    /* One use by each of the n tokens is worth 1 + 2^(-1/h) + ... + 2^(-(n-1)/h). */
    double h = f->half_life, now = (double)u->tokens / h, n = u->pass;
    double whole = (1 - moe_exact_exp2_double(-n / h)) / (1 - moe_exact_exp2_double(-1 / h));
    double before = moe_exact_exp2_double(f->value[key] - now);
    f->value[key] = moe_exact_log2_double((double)uses / n * whole + before) + now;
    moe_scored_use(p, key); /* rounding may have lowered it */
}

/* log2 of C when the layer runs next. */
static double combined(const struct moe_scored *s, double value, uint32_t of, uint32_t layer)
{
    const struct lrfu *f = (const struct lrfu *)s;
    if (!moe_scored_returns(s, layer, of))
        return -INFINITY;
    const uint64_t time = f->time[moe_loop_owner(&s->usage->loop, of)];
    return value - ((double)time + moe_scored_wait(s, of, layer)) / f->half_life;
}

const struct moe_policy_ops moe_policy_lrfu = {
    .name = "lrfu",
    .describe = "evicts by recency and frequency, as uses that fade (LRFU)",
    .needs_usage = true,
    .open = open_lrfu,
    .close = close_lrfu,
    .use = ask,
    .miss = ask,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = value_of,
    .score = combined,
};
