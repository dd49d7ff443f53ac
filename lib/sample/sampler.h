/*
 * Sampler: from logits to the next token. Deterministic: the same logits, history, options and seed
 * give the same token (own random generator, xoshiro256++ seeded by splitmix64).
 */
#ifndef MOE_SAMPLE_SAMPLER_H
#define MOE_SAMPLE_SAMPLER_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_sampler_options {
    double temperature;     /* 0: greedy (lowest id wins a tie); default 0.8 */
    uint32_t top_k;         /* keep the k likeliest; 0: all */
    double top_p;           /* keep the smallest set with this share; 1: all */
    double min_p;           /* keep those with at least this share of the likeliest's; 0: all */
    double repeat_penalty;  /* > 1 makes tokens of the recent context less likely; 1: off */
    uint32_t repeat_window; /* how many recent tokens count; 64 */
    uint64_t seed;
};
void moe_sampler_options_default(struct moe_sampler_options *options);

/* A damaged model may give anything: a NaN is never chosen, an infinity is a very large number. */
static inline float moe_logit_sane(float logit)
{
    if (isnan(logit))
        return -FLT_MAX;
    return logit > FLT_MAX ? FLT_MAX : logit < -FLT_MAX ? -FLT_MAX : logit;
}

struct moe_sampler;
int moe_sampler_new(struct moe_sampler **out, const struct moe_sampler_options *options,
                    uint32_t vocab, struct moe_err *err);
void moe_sampler_free(struct moe_sampler *s);
/* Memory that one takes. */
uint64_t moe_sampler_bytes(uint32_t vocab);

/* Where its random draws stand: a sampler that gets them goes on as the one that they are of. Not
 * all of them are 0. */
struct moe_sampler_draws {
    uint64_t random[4];
};
struct moe_sampler_draws moe_sampler_get_draws(const struct moe_sampler *s);
void moe_sampler_set_draws(struct moe_sampler *s, const struct moe_sampler_draws *draws);

/* Whether the next token is the largest logit's, the lowest of equals. */
bool moe_sampler_is_greedy(const struct moe_sampler *s);

/* Order of the steps: repeat penalty, temperature, top-k, top-p, min-p, draw. `logits` (n = vocab)
 * is left as it is; `recent` are the last n_recent ids of the context, oldest first. */
uint32_t moe_sampler_next(struct moe_sampler *s, const float *logits, const uint32_t *recent,
                          uint64_t n_recent);
static inline bool moe_is_allowed(const uint64_t *allowed, uint32_t id)
{
    return allowed[id / 64] >> id % 64 & 1;
}
/* The same as if there were no tokens but those whose bit (id % 64 of word id / 64) is set in
 * `allowed` (NULL: all are), one at least: every step sees these alone. Where a damaged
 * model gives none of them more than any, it is the lowest. */
uint32_t moe_sampler_next_allowed(struct moe_sampler *s, const float *logits,
                                  const uint64_t *allowed, const uint32_t *recent,
                                  uint64_t n_recent);

#endif
