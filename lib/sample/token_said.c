#include "sample/token_said.h"

#include <math.h>
#include <stddef.h>

#include "sample/sampler.h"

/* The n likeliest, in order: each that belongs among those found so far takes its place there. */
static uint32_t find_likeliest(const float *logits, uint32_t vocab, uint32_t n,
                               uint32_t likeliest[MOE_MAX_TOP_TOKENS])
{
    uint32_t found = 0;
    for (uint32_t id = 0; id < vocab && n > 0; id++) {
        float logit = moe_logit_sane(logits[id]);
        if (found == n && logit <= moe_logit_sane(logits[likeliest[n - 1]]))
            continue;
        uint32_t at = found < n ? found++ : n - 1;
        for (; at > 0 && moe_logit_sane(logits[likeliest[at - 1]]) < logit; at--)
            likeliest[at] = likeliest[at - 1];
        likeliest[at] = id;
    }
    return found;
}

struct moe_logit_scale moe_logit_scale_of(const float *logits, uint32_t vocab, uint32_t likeliest)
{
    struct moe_logit_scale s = {.largest = moe_logit_sane(logits[likeliest])};
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(moe_logit_sane(logits[i]) - s.largest);
    s.log_sum = log(sum);
    return s;
}

static struct moe_token_chance chance_of(const struct moe_tokenizer *tok, const float *logits,
                                         uint32_t id, struct moe_logit_scale s)
{
    struct moe_token_chance c = {
        .id = id, .log_probability = moe_logit_sane(logits[id]) - s.largest - s.log_sum};
    c.bytes = moe_tokenizer_bytes(tok, id, &c.n_bytes);
    return c;
}

void moe_token_say(struct moe_token_said *said, const struct moe_tokenizer *tok,
                   const float *logits, uint32_t vocab, uint32_t id, uint32_t n_top)
{
    uint32_t likeliest[MOE_MAX_TOP_TOKENS] = {0};
    uint32_t n = n_top < MOE_MAX_TOP_TOKENS ? n_top : MOE_MAX_TOP_TOKENS;
    uint32_t found = find_likeliest(logits, vocab, n ? n : 1, likeliest);
    struct moe_logit_scale scale = moe_logit_scale_of(logits, vocab, likeliest[0]);
    said->n_top = n ? found : 0;
    said->token = chance_of(tok, logits, id, scale);
    for (uint32_t i = 0; i < said->n_top; i++)
        said->top[i] = chance_of(tok, logits, likeliest[i], scale);
}

/* ---- As JSON ---- */

static void put_chance(struct moe_emit *e, const struct moe_token_chance *c)
{
    moe_emit_bytes(e, "token", c->bytes, c->n_bytes);
    moe_emit_rounded(e, "logprob", 9, moe_log_probability_shown(c->log_probability));
    moe_emit_open_list(e, "bytes");
    for (uint32_t i = 0; i < c->n_bytes; i++)
        moe_emit_u64(e, NULL, c->bytes[i]);
    moe_emit_close(e);
}

void moe_token_said_json(const struct moe_token_said *said, struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_chance(&e, &said->token);
    moe_emit_open_list(&e, "top_logprobs");
    for (uint32_t i = 0; i < said->n_top; i++) {
        moe_emit_open_map(&e, NULL);
        put_chance(&e, &said->top[i]);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
}
