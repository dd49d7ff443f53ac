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
#include "model/sampling.h"

/* A damaged model may give anything: a NaN is never chosen, an infinity is a very large number. */
static inline float moe_logit_sane(float logit)
{
    if (isnan(logit))
        return -FLT_MAX;
    return logit > FLT_MAX ? FLT_MAX : logit < -FLT_MAX ? -FLT_MAX : logit;
}

struct moe_sampler;
/* Every option is said (moe_sampling_complete). */
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
