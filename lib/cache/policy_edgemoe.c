/*
 * edgemoe: evicts the smallest f/d (EdgeMoE III-C2): f counts how often an expert was used; d is
 * the number of layers until its layer i runs again, 1 for the next one and S, all layers, for the
 * current layer I. Experts that are used seldom and not soon leave first.
 *
 * The paper's text says just that ("those whose layers are farther away from the current block"),
 * but prints the denominator (S - i + I) mod S, the layers since i ran: read literally it protects
 * the layers just run and gives up those about to run. edgemoe-literal does so, for comparison.
 * Both count a remainder of 0 as S, otherwise they would divide by 0; a cache of one layer is then
 * ordered by frequency.
 *
 * S is the number of MoE layers of the decoder, and i and I are counted among them; while an
 * encoder runs, I is the one before the decoder's first. "For the experts within the encoder, we
 * set the frequency to 0. The reason is these experts are loaded only once": they leave before all
 * others, also before those of the decoder that were never used. The formula makes them all equal,
 * so the text above decides between them, "those whose layers are farther away" first: layers that
 * have run for this source, which run again no sooner than for the next one, the last layer first;
 * then layers still to run, the last one first. Both policies do so, since the printed formula says
 * nothing else.
 */
#include "cache/scored.h"

/* A score below every f/d, for an encoder's expert: ordered by the layers until it runs, for this
 * source or else for the next one. */
static double of_encoder(const struct moe_scored *s, uint32_t of, uint32_t layer)
{
    double ahead = (double)of - layer;
    return moe_scored_returns(s, layer, of) ? -ahead : -ahead - 2 * (double)s->usage->n_layers;
}

static double frequency_of(const struct moe_scored *s, uint32_t key)
{
    return (double)s->usage->frequency[key];
}

static double by_layers_to_come(const struct moe_scored *s, double f, uint32_t of, uint32_t layer)
{
    return of < s->usage->n_encoder ? of_encoder(s, of, layer) : f / moe_scored_ahead(s, layer, of);
}

static double by_layers_gone(const struct moe_scored *s, double f, uint32_t of, uint32_t layer)
{
    uint32_t n_encoder = s->usage->n_encoder;
    if (of < n_encoder)
        return of_encoder(s, of, layer);
    /* Before the decoder's first layer, the current one is its last, of the previous token. */
    uint32_t at = layer < n_encoder ? s->usage->n_layers - 1 : layer;
    return f / moe_scored_ahead(s, of, at);
}

const struct moe_policy_ops moe_policy_edgemoe = {
    .name = "edgemoe",
    .describe = "evicts experts used seldom, in layers that run again late (EdgeMoE)",
    .needs_usage = true,
    .open = moe_scored_open,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = frequency_of,
    .score = by_layers_to_come,
};

const struct moe_policy_ops moe_policy_edgemoe_literal = {
    .name = "edgemoe-literal",
    .describe = "EdgeMoE's formula as printed, for comparison",
    .needs_usage = true,
    .open = moe_scored_open,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = frequency_of,
    .score = by_layers_gone,
};
