#include "text/tokenizer.h"

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
        tok->bos = tok->eos = tok->unk = tok->tail = tok->pad = tok->separator = MOE_NO_TOKEN;
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
    moe_unigram_release(&tok->unigram);
    moe_trie_release(&tok->spellings);
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

uint64_t moe_tokenizer_held_bytes(const struct moe_tokenizer *tok)
{
    const uint64_t n = tok->n_tokens, offsets = (n + 1) * sizeof *tok->offsets;
    uint64_t bytes = sizeof *tok + offsets + n + tok->text.room + tok->normalized.room;
    bytes += tok->vocabulary ? ((uint64_t)tok->mask + 1) * sizeof *tok->vocabulary : 0;
    bytes += moe_bpe_bytes(&tok->bpe);
    bytes += tok->unigram.scores ? n * sizeof *tok->unigram.scores : 0;
    bytes += moe_trie_bytes(&tok->unigram.trie) + moe_trie_bytes(&tok->spellings);
    bytes += tok->shown_offsets ? offsets + tok->shown.room : 0;
    for (int i = 0; i < 2; i++)
        bytes += tok->added[i].n * sizeof *tok->added[i].tokens;
    return bytes;
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

bool moe_token_is_sentinel(const char *token, uint64_t n)
{
    static const char begin[] = "<extra_id_";
    uint64_t at = sizeof begin - 1;
    if (n < at + 2 || memcmp(token, begin, at) != 0)
        return false;
    while (at < n - 1 && token[at] >= '0' && token[at] <= '9')
        at++;
    return at == n - 1 && token[at] == '>';
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

bool moe_tokenizer_has_bytes(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n)
{
    bool has = true;
    for (uint64_t i = 0; i < n; i++)
        has = has && tok->byte_ids[text[i]] != MOE_NO_TOKEN;
    return has;
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

int64_t moe_tokenizer_tail(const struct moe_tokenizer *tok)
{
    return or_none(tok->tail);
}

bool moe_tokenizer_ends_answer(const struct moe_tokenizer *tok, uint32_t id)
{
    return id != MOE_NO_TOKEN && (id == tok->eos || id == tok->separator || id == tok->pad);
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
