#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "text/tokenizer_impl.h"

/* ---- Making one ---- */

struct moe_tokenizer *moe_tokenizer_new(struct moe_err *err)
{
    struct moe_tokenizer *tok = moe_alloc(1, sizeof *tok, err);
    if (tok)
        tok->bos = tok->eos = tok->unk = tok->separator = MOE_NO_TOKEN;
    return tok;
}

int moe_tokenizer_allocate(struct moe_tokenizer *tok, uint32_t n, struct moe_err *err)
{
    if (n == 0 || n > MOE_TOKENS_MAX)
        return moe_fail(err, MOE_ERR_FORMAT, "%u tokens (1 to %u can be)", n, MOE_TOKENS_MAX);
    tok->n_tokens = n;
    tok->offsets = moe_alloc((uint64_t)n + 1, sizeof *tok->offsets, err);
    tok->token_flags = moe_alloc(n, 1, err);
    return tok->offsets && tok->token_flags ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_tokenizer_free(struct moe_tokenizer *tok)
{
    if (!tok)
        return;
    free(tok->offsets);
    free(tok->token_flags);
    moe_buf_release(&tok->text);
    moe_bpe_release(&tok->bpe);
    moe_steps_release(&tok->normalizer);
    moe_steps_release(&tok->pre_tokenizer);
    free(tok->vocabulary);
    free(tok->added[0].tokens);
    free(tok->added[1].tokens);
    moe_buf_release(&tok->normalized);
    free(tok->shown_offsets);
    moe_buf_release(&tok->shown);
    free(tok);
}

static bool is_in_use(const struct moe_tokenizer *tok, uint32_t id)
{
    return id < tok->n_tokens && tok->offsets[id + 1] > tok->offsets[id];
}

int moe_token_byte(const void *token, uint64_t n)
{
    const uint8_t *text = token;
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    const char *high = memchr(digits, text[3], 16), *low = memchr(digits, text[4], 16);
    return high && low ? (int)((high - digits) << 4 | (low - digits)) : -1;
}

static int check_tokens(const struct moe_tokenizer *tok, struct moe_err *err)
{
    if (tok->model != MOE_TOKENIZER_BYTES && tok->model != MOE_TOKENIZER_CHARS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "tokenizer model %u is not known", tok->model);
    if (tok->flags & ~(unsigned)MOE_TOKENIZER_FLAGS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "tokenizer flags 0x%x are not known", tok->flags);
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint8_t flags = tok->token_flags[id];
        uint8_t needs_added =
            MOE_TOKEN_SPECIAL | MOE_TOKEN_LSTRIP | MOE_TOKEN_RSTRIP | MOE_TOKEN_NORMALIZED;
        if (flags & 0x80 || (flags && !is_in_use(tok, id)) ||
            (flags & needs_added && !(flags & MOE_TOKEN_ADDED)))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u has flags 0x%x, which cannot be", id,
                            flags);
        uint32_t n;
        const uint8_t *text = moe_token_text(tok, id, &n);
        if (flags & MOE_TOKEN_BYTE &&
            (moe_token_byte(text, n) < 0 || tok->model != MOE_TOKENIZER_CHARS))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u is no byte token", id);
    }
    const uint32_t named[] = {tok->bos, tok->eos, tok->unk};
    for (int i = 0; i < 3; i++) {
        if (named[i] != MOE_NO_TOKEN && !is_in_use(tok, named[i]))
            return moe_fail(err, MOE_ERR_FORMAT, "bos, eos or unknown token %u does not exist",
                            named[i]);
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

int moe_tokenizer_index(struct moe_tokenizer *tok, struct moe_err *err)
{
    uint64_t n_slots = 16;
    while (n_slots * 3 < (uint64_t)tok->n_tokens * 4)
        n_slots *= 2;
    tok->vocabulary = moe_alloc(n_slots, sizeof *tok->vocabulary, err);
    if (!tok->vocabulary)
        return MOE_ERR_MEMORY;
    tok->mask = (uint32_t)(n_slots - 1);
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        if (!(tok->token_flags[id] & MOE_TOKEN_MODEL))
            continue;
        uint32_t n, other_n;
        const uint8_t *text = moe_token_text(tok, id, &n);
        uint32_t at = (uint32_t)moe_hash64(text, n) & tok->mask;
        for (; tok->vocabulary[at]; at = (at + 1) & tok->mask) {
            const uint8_t *other = moe_token_text(tok, tok->vocabulary[at] - 1, &other_n);
            if (n == other_n && memcmp(text, other, n) == 0)
                return moe_fail(err, MOE_ERR_FORMAT, "tokens %u and %u have the same text",
                                tok->vocabulary[at] - 1, id);
        }
        tok->vocabulary[at] = id + 1;
    }
    return MOE_OK;
}

uint32_t moe_tokenizer_lookup(const struct moe_tokenizer *tok, const void *text, uint64_t n)
{
    uint32_t at = (uint32_t)moe_hash64(text, n) & tok->mask;
    for (; tok->vocabulary[at]; at = (at + 1) & tok->mask) {
        uint32_t other_n, id = tok->vocabulary[at] - 1;
        const uint8_t *other = moe_token_text(tok, id, &other_n);
        if (n == other_n && memcmp(text, other, n) == 0)
            return id;
    }
    return MOE_NO_TOKEN;
}

static void find_byte_ids(struct moe_tokenizer *tok)
{
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        char text[8];
        if (tok->model == MOE_TOKENIZER_BYTES) {
            tok->byte_ids[b] = moe_tokenizer_lookup(tok, &byte, 1);
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
    if (tok->model != MOE_TOKENIZER_CHARS)
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
 * before every such U+2581 without losing a merge. */
static bool are_words_apart(const struct moe_tokenizer *tok)
{
    if (tok->model != MOE_TOKENIZER_CHARS ||
        moe_tokenizer_lookup(tok, "\xe2\x96\x81", 3) == MOE_NO_TOKEN)
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
    if (status != MOE_OK)
        return status;
    find_byte_ids(tok);
    tok->separator = find_separator(tok);
    tok->words_apart = are_words_apart(tok);
    return MOE_OK;
}

/* ---- Queries ---- */

uint32_t moe_tokenizer_n_tokens(const struct moe_tokenizer *tok)
{
    return tok->n_tokens;
}

const uint8_t *moe_tokenizer_bytes(const struct moe_tokenizer *tok, uint32_t id, uint32_t *n)
{
    *n = 0;
    if (id >= tok->n_tokens)
        return (const uint8_t *)"";
    if (!tok->shown_offsets)
        return moe_token_text(tok, id, n);
    *n = tok->shown_offsets[id + 1] - tok->shown_offsets[id];
    return tok->shown.data + tok->shown_offsets[id];
}

bool moe_tokenizer_is_special(const struct moe_tokenizer *tok, uint32_t id)
{
    return id < tok->n_tokens && tok->token_flags[id] & MOE_TOKEN_SPECIAL;
}

static int64_t find_added(const struct moe_tokenizer *tok, const char *text, uint64_t n)
{
    for (int level = 0; level < 2; level++) {
        for (uint32_t i = 0; i < tok->added[level].n; i++) {
            uint32_t other_n, id = tok->added[level].tokens[i].id;
            const uint8_t *other = moe_token_text(tok, id, &other_n);
            if (n == other_n && memcmp(text, other, n) == 0)
                return id;
        }
    }
    return -1;
}

int64_t moe_tokenizer_find(const struct moe_tokenizer *tok, const char *text)
{
    uint64_t n = strlen(text);
    if (n == 0 || n > MOE_TOKEN_BYTES_MAX)
        return -1;
    int64_t added = find_added(tok, text, n);
    uint32_t id = added < 0 ? moe_tokenizer_lookup(tok, text, n) : MOE_NO_TOKEN;
    return added >= 0 || id == MOE_NO_TOKEN ? added : (int64_t)id;
}

static int64_t or_none(uint32_t id)
{
    return id == MOE_NO_TOKEN ? -1 : (int64_t)id;
}

int64_t moe_tokenizer_bos(const struct moe_tokenizer *tok)
{
    return or_none(tok->bos);
}

bool moe_tokenizer_adds_bos(const struct moe_tokenizer *tok)
{
    return tok->flags & MOE_TOKENIZER_ADDS_BOS;
}

int64_t moe_tokenizer_eos(const struct moe_tokenizer *tok)
{
    return or_none(tok->eos);
}

int64_t moe_tokenizer_separator(const struct moe_tokenizer *tok)
{
    return or_none(tok->separator);
}

/* ---- Lists of ids ---- */

void moe_ids_release(struct moe_ids *ids)
{
    free(ids->ids);
    *ids = (struct moe_ids){0};
}

int moe_ids_reserve(struct moe_ids *ids, uint64_t n, struct moe_err *err)
{
    if (n <= ids->room - ids->n)
        return MOE_OK;
    uint64_t room = ids->room ? 2 * ids->room : 32;
    if (room - ids->n < n) /* what is reserved at once is taken exactly */
        room = ids->n + n;
    uint32_t *grown = realloc(ids->ids, room * sizeof *grown);
    if (!grown)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: %llu token ids",
                        (unsigned long long)room);
    ids->ids = grown;
    ids->room = room;
    return MOE_OK;
}

int moe_ids_push(struct moe_ids *ids, uint32_t id, struct moe_err *err)
{
    int status = moe_ids_reserve(ids, 1, err);
    if (status == MOE_OK)
        ids->ids[ids->n++] = id;
    return status;
}
