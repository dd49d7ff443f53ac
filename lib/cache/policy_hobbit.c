/*
 * hobbit: evicts the lowest priority (HOBBIT 3.4, equation 3): a weighted sum of how lately, how
 * often and how often at high precision the sequence used an expert, and how soon its layer runs:
 *
 *     p = w_lru R/T + w_lfu F/T + w_lhu H/T + w_fld (1 - ((l_t - l_i + l_n) % l_n) / l_n)
 *
 * l_n counts the layers of the decoder; an encoder's expert that has run for this source leaves
 * before all others, since nothing uses it before the records are reset.
 *
 * Each sequence resets the records. The paper finds its weights on calibration texts and prints
 * none; the default is four equal ones.
 */
#include "cache/scored.h"

struct hobbit {
    struct moe_scored scored; /* first: moe_scored_close frees all */
    double weights[MOE_HOBBIT_WEIGHTS];
};

static double uses_of(const struct moe_scored *s, uint32_t key)
{
    const struct moe_usage *u = s->usage;
    const double *w = ((const struct hobbit *)s)->weights;
    return w[MOE_WEIGHT_LRU] * u->last[key] + w[MOE_WEIGHT_LFU] * u->count[key] +
           w[MOE_WEIGHT_LHU] * u->high[key];
}

static int open_hobbit(struct moe_policy **out, const struct moe_policy_ops *ops,
                       const struct moe_policy_params *params, struct moe_err *err)
{
    struct hobbit *h = moe_alloc(1, sizeof *h, err);
    if (!h)
        return MOE_ERR_MEMORY;
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        h->weights[i] = params->weights ? params->weights[i] : 1.0 / MOE_HOBBIT_WEIGHTS;
    int status = moe_scored_init(&h->scored, ops, params, err);
    if (status == MOE_OK)
        *out = &h->scored.base;
    else
        moe_scored_close(&h->scored.base);
    return status;
}

static double priority(const struct moe_scored *s, double part, uint32_t of, uint32_t layer)
{
    const struct moe_usage *u = s->usage;
    const double *w = ((const struct hobbit *)s)->weights;
    if (!moe_scored_returns(s, layer, of))
        return -1;
    uint32_t ahead = of == layer ? 0 : moe_scored_ahead(s, layer, of);
    uint32_t l_n = of < u->n_encoder ? u->n_encoder : moe_scored_round(s);
    double p = w[MOE_WEIGHT_FLD] * (1 - (double)ahead / l_n);
    return u->token ? p + part / u->token : p;
}

const struct moe_policy_ops moe_policy_hobbit = {
    .name = "hobbit",
    .describe = "evicts by a weighted sum of recency, frequency, precision and layer (HOBBIT)",
    .needs_usage = true,
    .open = open_hobbit,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = uses_of,
    .score = priority,
};
