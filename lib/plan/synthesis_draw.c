#include "plan/synthesis_draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"

/* Both as in the bundled model on the texts that routing_figures.c names. The share of the
 * correlation between tokens that lasts for the whole document: 53% of a document's activations are
 * then on its own busiest quarter (in the model 52.5%). */
#define TOPIC_SHARE 0.5
/* Standard deviation of scores before softmax: the best expert's probability is then 0.36 on
 * average (in the model 0.35). */
#define SPREAD 2.0

/* ---- Numbers ---- */

/* Independent streams. */
enum stream { POPULAR, SCORES, NOISE };

static uint64_t stream_of(const struct draw *d, enum stream stream, uint64_t document,
                          uint64_t layer)
{
    const uint64_t key[] = {d->seed, stream, document, layer};
    return moe_hash64(key, sizeof key);
}

/* Nearly normal, mean 0 and variance 1: the sum of four uniform numbers, of 16 bits each. */
static float normal(uint64_t *random)
{
    const float deviation = 37837.23f; /* sqrt(4 * (2^32 - 1) / 12) */
    uint64_t z = moe_random_next(random);
    int32_t sum = (int32_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return (float)(sum - 2 * 0xffff) / deviation;
}

/* The p-quantile of the normal distribution. */
static float quantile(double p)
{
    double low = -8, high = 8;
    for (int i = 0; i < 48; i++) {
        double middle = (low + high) / 2;
        if (erfc(-middle / sqrt(2)) / 2 < p)
            low = middle;
        else
            high = middle;
    }
    return (float)low;
}

/* A draw of all experts together: evenly spaced quantiles in random order. Independent draws would
 * make one layer of few experts much more uneven than the next. */
static void shuffle(const struct draw *d, uint64_t *random, float *out)
{
    memcpy(out, d->quantiles, d->n_experts * sizeof *out);
    for (uint32_t i = d->n_experts - 1; i > 0; i--) {
        uint32_t j = (uint32_t)((moe_random_next(random) >> 32) * (i + 1) >> 32);
        float swapped = out[i];
        out[i] = out[j];
        out[j] = swapped;
    }
}

/* ---- Scores ---- */

int draw_init(struct draw *d, uint32_t n_layers, uint32_t n_experts, uint64_t seed,
              struct moe_err *err)
{
    *d = (struct draw){.n_layers = n_layers, .n_experts = n_experts, .seed = seed};
    d->quantiles = moe_alloc(n_experts, sizeof *d->quantiles, err);
    d->layers = moe_alloc(n_layers, sizeof *d->layers, err);
    d->block = moe_alloc((uint64_t)n_layers * n_experts, 3 * sizeof *d->block, err);
    if (!d->quantiles || !d->layers || !d->block)
        return MOE_ERR_MEMORY;
    for (uint32_t e = 0; e < n_experts; e++)
        d->quantiles[e] = quantile((e + 0.5) / n_experts);
    for (uint32_t l = 0; l < n_layers; l++) {
        struct draw_layer *layer = &d->layers[l];
        uint64_t random = stream_of(d, POPULAR, 0, l);
        layer->popular = d->block + 3 * (uint64_t)l * n_experts;
        layer->document = layer->popular + n_experts;
        layer->state = layer->document + n_experts;
        shuffle(d, &random, layer->popular);
    }
    return MOE_OK;
}

void draw_release(struct draw *d)
{
    free(d->quantiles);
    free(d->layers);
    free(d->block);
    *d = (struct draw){0};
}

void draw_begin(struct draw *d, uint32_t n_layers, uint64_t document)
{
    for (uint32_t l = 0; l < n_layers; l++) {
        struct draw_layer *layer = &d->layers[l];
        layer->random = stream_of(d, SCORES, document, l);
        layer->random_noise = stream_of(d, NOISE, document, l);
        layer->n_tokens = 0;
        shuffle(d, &layer->random, layer->document);
    }
}

void draw_token(struct draw *d, uint32_t l, float *scores, float *predicted, uint64_t stride)
{
    struct draw_layer *layer = &d->layers[l];
    /* Apart from popularity a score has variance 1: one part lasts, the other drifts. */
    double lasting = TOPIC_SHARE * d->sizes.correlation, drifting = 1 - lasting;
    double keep = layer->n_tokens++ ? (d->sizes.correlation - lasting) / drifting : 0;
    double scale = SPREAD / sqrt(1 + d->sizes.skew * d->sizes.skew);
    float of_state = (float)keep, of_new = (float)sqrt(1 - keep * keep);
    float of_popular = (float)(scale * d->sizes.skew), of_document = (float)(scale * sqrt(lasting)),
          of_drift = (float)(scale * sqrt(drifting));
    for (uint32_t e = 0; e < d->n_experts; e++) {
        layer->state[e] = of_state * layer->state[e] + of_new * normal(&layer->random);
        scores[e] = of_popular * layer->popular[e] + of_document * layer->document[e] +
                    of_drift * layer->state[e];
    }
    for (int i = 0; predicted && i < MOE_FIGURES_AHEAD; i++) {
        /* Predictions are as confident as the router. */
        double noise = d->sizes.noise[i], shrink = 1 / sqrt(1 + noise * noise);
        float of_score = (float)shrink, of_noise = (float)(SPREAD * noise * shrink);
        for (uint32_t e = 0; e < d->n_experts; e++)
            predicted[i * stride + e] =
                of_score * scores[e] + of_noise * normal(&layer->random_noise);
    }
}
