/*
 * Unigram models: from the best way through a text to ids.
 */
#include <float.h>
#include <math.h>

#include "base/text.h"
#include "text/tokenizer_impl.h"

int moe_unigram_prepare(struct moe_tokenizer *tok, struct moe_err *err)
{
    struct moe_unigram *u = &tok->unigram;
    int status = MOE_OK;
    if (tok->bpe.n_merges)
        return moe_fail(err, MOE_ERR_FORMAT, "a unigram model has merges");
    if (!u->scores || !(fabs(u->unknown) <= DBL_MAX))
        return moe_fail(err, MOE_ERR_FORMAT, "a unigram model has no proper scores");
    for (uint32_t id = 0; id < tok->n_tokens && status == MOE_OK; id++) {
        uint32_t n;
        const uint8_t *text = moe_token_text(tok, id, &n);
        if (!(fabs(u->scores[id]) <= DBL_MAX))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u has no proper score", id);
        if (!(tok->token_flags[id] & MOE_TOKEN_MODEL))
            continue;
        if (n > MOE_UNIGRAM_TOKEN_MAX || !moe_utf8_valid(text, n))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u is not UTF-8 or has more than %d bytes",
                            id, MOE_UNIGRAM_TOKEN_MAX);
        /* A user's words must not become special tokens. */
        if (!(tok->token_flags[id] & MOE_TOKEN_SPECIAL))
            status = moe_trie_add(&u->trie, text, n, id, err);
    }
    return status;
}

/* What is unknown, in one piece: a token after all, its bytes, or the unknown token. */
static int push_unknown(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n,
                        struct moe_ids *out, struct moe_err *err)
{
    uint32_t id = moe_tokenizer_lookup(tok, text, n);
    if (id != MOE_NO_TOKEN && !(tok->token_flags[id] & MOE_TOKEN_SPECIAL)) {
        out->ids[out->n++] = id;
    } else if (moe_tokenizer_has_bytes(tok, text, n)) {
        for (uint64_t i = 0; i < n; i++)
            out->ids[out->n++] = tok->byte_ids[text[i]];
    } else if (tok->unk != MOE_NO_TOKEN) {
        out->ids[out->n++] = tok->unk;
    } else {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "the tokenizer has no token for byte 0x%02x",
                        text[0]);
    }
    return MOE_OK;
}

int moe_unigram_encode(const struct moe_tokenizer *tok, struct moe_unigram_scratch *scratch,
                       const uint8_t *text, uint64_t n, double *score, struct moe_ids *out,
                       struct moe_err *err)
{
    int status = moe_unigram_best(&tok->unigram, scratch, text, n, score, err);
    for (uint64_t at = 0, end; at < n && status == MOE_OK; at = end) {
        const struct moe_unigram_place *place = &scratch->places[at];
        end = place->other;
        if (place->token != MOE_UNIGRAM_UNKNOWN && place->token != tok->unk) {
            out->ids[out->n++] = place->token;
            continue;
        }
        /* Unknown tokens in a row are one. */
        while (end < n && (scratch->places[end].token == MOE_UNIGRAM_UNKNOWN ||
                           scratch->places[end].token == tok->unk))
            end = scratch->places[end].other;
        status = push_unknown(tok, text + at, end - at, out, err);
    }
    return status;
}
