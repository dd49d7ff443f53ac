/*
 * What a reader has filled, checked, and what follows from it.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"

/* ---- Checks ---- */

static bool is_in_use(const struct moe_tokenizer *tok, uint32_t id)
{
    return id < tok->n_tokens && tok->offsets[id + 1] > tok->offsets[id];
}

static int check_tokens(const struct moe_tokenizer *tok, struct moe_err *err)
{
    if (tok->model < MOE_TOKENIZER_BYTES || tok->model > MOE_TOKENIZER_SPELLINGS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "tokenizer model %u is not known", tok->model);
    if (tok->flags & ~(unsigned)MOE_TOKENIZER_FLAGS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "tokenizer flags 0x%x are not known", tok->flags);
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint8_t flags = tok->token_flags[id];
        uint8_t needs_added = MOE_TOKEN_SPECIAL | MOE_TOKEN_LSTRIP | MOE_TOKEN_RSTRIP |
                              MOE_TOKEN_NORMALIZED | MOE_TOKEN_SINGLE_WORD;
        if ((flags && !is_in_use(tok, id)) || (flags & needs_added && !(flags & MOE_TOKEN_ADDED)))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u has flags 0x%x, which cannot be", id,
                            flags);
        uint32_t n;
        const uint8_t *text = moe_token_text(tok, id, &n);
        if (flags & MOE_TOKEN_BYTE && (moe_token_byte(text, n) < 0 || !moe_has_characters(tok)))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u is no byte token", id);
    }
    const uint32_t named[] = {tok->bos, tok->eos, tok->unk, tok->tail, tok->pad};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (named[i] != MOE_NO_TOKEN && !is_in_use(tok, named[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "bos, eos, unknown, last or padding token %u does not exist", named[i]);
    }
    if (tok->flags & MOE_TOKENIZER_ADDS_BOS && tok->bos == MOE_NO_TOKEN)
        return moe_fail(err, MOE_ERR_FORMAT, "a bos token should be added but none is named");
    return MOE_OK;
}

/* A merge whose result is not its two sides joined would change a text on its way back. */
static int check_merges(const struct moe_tokenizer *tok, struct moe_err *err)
{
    for (uint32_t i = 0; i < tok->bpe.n_merges; i++) {
        const struct moe_bpe_merge *m = &tok->bpe.merges[i];
        const uint32_t ids[] = {m->left, m->right, m->result};
        const uint8_t *text[3];
        uint32_t n[3];
        for (int j = 0; j < 3; j++) {
            if (ids[j] >= tok->n_tokens || !(tok->token_flags[ids[j]] & MOE_TOKEN_MODEL))
                return moe_fail(err, MOE_ERR_FORMAT,
                                "merge %u names token %u, which is not in "
                                "the vocabulary",
                                i, ids[j]);
            text[j] = moe_token_text(tok, ids[j], &n[j]);
        }
        if (n[2] != n[0] + n[1] || memcmp(text[2], text[0], n[0]) != 0 ||
            memcmp(text[2] + n[0], text[1], n[1]) != 0)
            return moe_fail(err, MOE_ERR_FORMAT, "merge %u: token %u is not tokens %u and %u", i,
                            ids[2], ids[0], ids[1]);
    }
    return MOE_OK;
}

/* ---- What tokens mean ---- */

static void find_byte_ids(struct moe_tokenizer *tok)
{
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        char text[16];
        if (tok->model == MOE_TOKENIZER_BYTES) {
            tok->byte_ids[b] = moe_tokenizer_lookup(tok, &byte, 1);
        } else if (tok->model == MOE_TOKENIZER_SPELLINGS) {
            int n = snprintf(text, sizeof text, "<|byte%d|>", b);
            tok->byte_ids[b] = moe_tokenizer_lookup(tok, text, (uint64_t)n);
        } else {
            snprintf(text, sizeof text, "<0x%02X>", b);
            tok->byte_ids[b] = tok->flags & MOE_TOKENIZER_BYTE_FALLBACK
                                   ? moe_tokenizer_lookup(tok, text, 6)
                                   : MOE_NO_TOKEN;
        }
    }
}

/* The meaning of a character model's tokens: U+2581 is a space, "<0xNN>" a byte. */
static int spell_out(struct moe_tokenizer *tok, struct moe_err *err)
{
    if (!moe_has_characters(tok))
        return MOE_OK;
    tok->shown_offsets = moe_alloc((uint64_t)tok->n_tokens + 1, sizeof *tok->shown_offsets, err);
    if (!tok->shown_offsets)
        return MOE_ERR_MEMORY;
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint32_t n;
        const uint8_t *text = moe_token_text(tok, id, &n);
        bool as_is = !(tok->token_flags[id] & MOE_TOKEN_MODEL);
        if (tok->token_flags[id] & MOE_TOKEN_BYTE) {
            moe_buf_u8(&tok->shown, (uint8_t)moe_token_byte(text, n));
            n = 0;
        }
        for (uint32_t at = 0; at < n;) {
            bool space = !as_is && moe_is_metaspace(text + at, n - at);
            moe_buf_u8(&tok->shown, space ? ' ' : text[at]);
            at += space ? 3 : 1;
        }
        tok->shown_offsets[id + 1] = (uint32_t)tok->shown.size;
    }
    return tok->shown.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

/* Whether U+2581 is a token and no token has it after another character: then a piece may be cut
 * before every such U+2581 without losing a merge, or a token of the best scores. */
static bool are_words_apart(const struct moe_tokenizer *tok)
{
    uint32_t alone = moe_tokenizer_lookup(tok, "\xe2\x96\x81", 3);
    if (!moe_has_characters(tok) || alone == MOE_NO_TOKEN || alone == tok->unk ||
        tok->token_flags[alone] & MOE_TOKEN_SPECIAL)
        return false;
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint32_t n;
        const uint8_t *text = moe_token_text(tok, id, &n);
        bool in_word = false;
        for (uint32_t at = 0; at < n && tok->token_flags[id] & MOE_TOKEN_MODEL;) {
            bool space = moe_is_metaspace(text + at, n - at);
            if (space && in_word)
                return false;
            in_word = !space;
            at += space ? 3 : 1;
        }
    }
    return true;
}

/* Chat checkpoints name the end of a turn as eos, but documents are separated by the end of text.
 */
static uint32_t find_separator(const struct moe_tokenizer *tok)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                        "<\xef\xbd\x9c"
                                        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t id = moe_tokenizer_find(tok, names[i]);
        if (id >= 0 && moe_tokenizer_is_special(tok, (uint32_t)id))
            return (uint32_t)id;
    }
    return tok->eos;
}

int moe_tokenizer_prepare(struct moe_tokenizer *tok, struct moe_err *err)
{
    int status = check_tokens(tok, err);
    if (status == MOE_OK)
        status = check_merges(tok, err);
    if (status == MOE_OK && !tok->vocabulary)
        status = moe_tokenizer_index(tok, err);
    if (status == MOE_OK)
        status = spell_out(tok, err);
    if (status == MOE_OK)
        status = moe_steps_prepare(&tok->normalizer, true, err);
    if (status == MOE_OK)
        status = moe_steps_prepare(&tok->pre_tokenizer, false, err);
    if (status == MOE_OK)
        status = moe_added_index(tok, err);
    /* Merging must not produce special tokens from a user's words. */
    if (status == MOE_OK)
        status = moe_bpe_index(&tok->bpe, tok->token_flags, MOE_TOKEN_SPECIAL, err);
    if (status == MOE_OK && tok->model == MOE_TOKENIZER_UNIGRAM)
        status = moe_unigram_prepare(tok, err);
    if (status == MOE_OK && tok->model == MOE_TOKENIZER_SPELLINGS)
        status = moe_spellings_prepare(tok, err);
    if (status != MOE_OK)
        return status;
    find_byte_ids(tok);
    tok->separator = find_separator(tok);
    tok->words_apart = are_words_apart(tok);
    return MOE_OK;
}
