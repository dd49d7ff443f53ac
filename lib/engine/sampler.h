/*
 * Sampler: from logits to the next token. Deterministic: the same logits, history, options and seed
 * give the same token (own random generator, xoshiro256++ seeded by splitmix64).
 */
#ifndef MOE_ENGINE_SAMPLER_H
#define MOE_ENGINE_SAMPLER_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "fmt/emit.h"
#include "model/sampling.h"
#include "text/tokenizer.h"

/* A damaged model may give anything: a NaN is never chosen, an infinity is a very large number. */
static inline float moe_logit_sane(float logit)
{
    if (isnan(logit))
        return -FLT_MAX;
    return logit > FLT_MAX ? FLT_MAX : logit < -FLT_MAX ? -FLT_MAX : logit;
}

struct moe_sampler;
/* All options are given (moe_sampling_complete). */
int moe_sampler_new(struct moe_sampler **out, const struct moe_sampler_options *options,
                    uint32_t vocab, struct moe_err *err);
void moe_sampler_free(struct moe_sampler *s);
const struct moe_sampler_options *moe_sampler_asked(const struct moe_sampler *s);
/* Memory that one takes. */
uint64_t moe_sampler_bytes(uint32_t vocab);

/* Where its random draws go on: a sampler that gets them continues like the one they come from. */
struct moe_sampler_draws {
    uint64_t random[4]; /* not all of them are 0 */
    double surprise;    /* mirostat's limit; 0: where it begins */
};
struct moe_sampler_draws moe_sampler_get_draws(const struct moe_sampler *s);
void moe_sampler_set_draws(struct moe_sampler *s, const struct moe_sampler_draws *draws);

/* Whether the next token is the largest logit's, the lowest of equals. */
bool moe_sampler_is_greedy(const struct moe_sampler *s);

static inline bool moe_is_allowed(const uint64_t *allowed, uint32_t id)
{
    return allowed[id / 64] >> id % 64 & 1;
}

/* What a token is drawn after, and among. */
struct moe_drawn_after {
    const uint32_t *recent; /* [n_recent] the last ids of the context, oldest first */
    uint64_t n_recent;
    const struct moe_tokenizer *tokenizer; /* to look for DRY's breakers; NULL: there are none */
    /* Only those whose bit (id % 64 of word id / 64) is set, one at least; NULL: all. */
    const uint64_t *allowed;
    const struct moe_ids *without; /* ... but not these, unless others are missing; NULL: none */
};

/*
 * Draws. The steps are llama.cpp's, in their usual order: biases, penalties, DRY; then what is not
 * allowed is left out, as if there were no such tokens; top-n-sigma, top-k, typical, top-p, min-p,
 * XTC, temperature, draw. With mirostat it is temperature, mirostat, draw after the penalties.
 * `logits` [vocab] is left as it is. Where a damaged model gives none of the allowed more than any,
 * it is the lowest of these.
 */
uint32_t moe_sampler_draw(struct moe_sampler *s, const float *logits,
                          const struct moe_drawn_after *after);

/*
 * Token said: a token of an answer with its log probability and those of the likeliest in its
 * place, on request (moe_generate_options). They are of the model's own distribution: the softmax
 * of its logits, before repeat penalty, temperature, top-k, top-p and min-p change it. A NaN counts
 * as the lowest logit, an infinite one as the largest number.
 */

enum { MOE_MAX_TOP_TOKENS = 20 };

struct moe_token_chance {
    uint32_t id, n_bytes;
    const uint8_t *bytes; /* borrowed of the tokenizer */
    double log_probability;
};

struct moe_token_said {
    struct moe_token_chance token;
    bool hidden;    /* special: no text shows it */
    uint32_t n_top; /* likeliest first, the lowest id of equals; may hold the token itself */
    struct moe_token_chance top[MOE_MAX_TOP_TOKENS];
};

/* What makes a log probability of a logit: the largest of them all, by which nothing overflows, and
 * the logarithm of the sum of exp(logit - largest). */
struct moe_logit_scale {
    double largest, log_sum;
};
/* The scale of logits [vocab] whose largest is that of `likeliest`. */
struct moe_logit_scale moe_logit_scale_of(const float *logits, uint32_t vocab, uint32_t likeliest);

/* What is said of `id` by the logits [vocab] that it was drawn from, with n_top (at most
 * MOE_MAX_TOP_TOKENS) likeliest beside it. logits NULL: nothing drew it, and its log probability is
 * no number. */
void moe_token_say(struct moe_token_said *said, const struct moe_tokenizer *tok,
                   const float *logits, uint32_t vocab, uint32_t id, uint32_t n_top);

/* What is below this is shown as this, as OpenAI's API does: the lowest figure of every reply. */
enum { MOE_LOWEST_LOG_PROBABILITY = -9999 };
static inline double moe_log_probability_shown(double log_probability)
{
    return log_probability < MOE_LOWEST_LOG_PROBABILITY ? MOE_LOWEST_LOG_PROBABILITY
                                                        : log_probability;
}
/* Appends it as a JSON object without a line's end, as OpenAI's chat completions have it: token,
 * logprob, bytes, top_logprobs. Out of memory shows in the buffer. */
void moe_token_said_json(const struct moe_token_said *said, struct moe_buf *out);

#endif
