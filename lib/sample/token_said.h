/*
 * Token said: a token of an answer with its log probability and those of the likeliest in its
 * place, for who asks (moe_generate_options). They are of the model's own distribution: the softmax
 * of its logits, before repeat penalty, temperature, top-k, top-p and min-p change it. A NaN counts
 * as the lowest logit, an infinite one as the largest number.
 */
#ifndef MOE_SAMPLE_TOKEN_SAID_H
#define MOE_SAMPLE_TOKEN_SAID_H

#include <stdint.h>

#include "fmt/emit.h"
#include "text/tokenizer.h"

enum { MOE_MAX_TOP_TOKENS = 20 };

struct moe_token_chance {
    uint32_t id, n_bytes;
    const uint8_t *bytes; /* borrowed of the tokenizer */
    double log_probability;
};

struct moe_token_said {
    struct moe_token_chance token;
    uint32_t n_top; /* likeliest first, the lowest id of equals; may hold the token itself */
    struct moe_token_chance top[MOE_MAX_TOP_TOKENS];
};

/* What makes a log probability of a logit: the largest of them all, by which nothing overflows, and
 * the logarithm of the sum of exp(logit - largest). */
struct moe_logit_scale {
    double largest, log_sum;
};
/* Of the logits [vocab], of which `likeliest` is the largest. */
struct moe_logit_scale moe_logit_scale_of(const float *logits, uint32_t vocab, uint32_t likeliest);

/* What is said of `id` by the logits [vocab] that it was drawn from, with n_top (at most
 * MOE_MAX_TOP_TOKENS) likeliest beside it. */
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
