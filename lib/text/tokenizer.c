/* Tokenizers: opening, checks, added tokens, spellings, unigram models, ids to text. */
#include "text/tokenizer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "text/internal.h"

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

/* Goes by the name: tokenizer.json marks languages as it marks "<pad>", and only some releases list
 * them in tokenizer_config.json, beside others. */
int64_t moe_tokenizer_language(const struct moe_tokenizer *tok, const char *name)
{
    static const char form[] = "aaa_Aaaa";
    for (size_t i = 0; i < sizeof form; i++) {
        const char c = name[i];
        const bool fits = form[i] == 'a'   ? c >= 'a' && c <= 'z'
                          : form[i] == 'A' ? c >= 'A' && c <= 'Z'
                                           : c == form[i];
        if (!fits)
            return -1;
    }
    const int64_t id = moe_tokenizer_find(tok, name);
    return id >= 0 && moe_tokenizer_is_special(tok, (uint32_t)id) ? id : -1;
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
    if (room - ids->n < n) /* reserves exactly what is asked for at once */
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
    MOE_TRY(moe_ids_reserve(ids, 1, err));
    ids->ids[ids->n++] = id;
    return MOE_OK;
}

/*
 * Unigram models: from the best way through a text to ids.
 */

static int unigram_prepare(struct moe_tokenizer *tok, struct moe_err *err)
{
    struct moe_unigram *u = &tok->unigram;
    if (tok->bpe.n_merges)
        return moe_fail(err, MOE_ERR_FORMAT, "a unigram model has merges");
    if (!u->scores || !(fabs(u->unknown) <= DBL_MAX))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "a unigram model has no scores, or no finite score for unknown text");
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint32_t n;
        const uint8_t *text = moe_token_text(tok, id, &n);
        if (!(fabs(u->scores[id]) <= DBL_MAX))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u has a score that is not finite", id);
        if (!(tok->token_flags[id] & MOE_TOKEN_MODEL))
            continue;
        if (n > MOE_UNIGRAM_TOKEN_MAX || !moe_utf8_valid(text, n))
            return moe_fail(err, MOE_ERR_FORMAT, "token %u is not UTF-8 or has more than %d bytes",
                            id, MOE_UNIGRAM_TOKEN_MAX);
        /* A user's words must not become special tokens. */
        if (!(tok->token_flags[id] & MOE_TOKEN_SPECIAL))
            MOE_TRY(moe_trie_add(&u->trie, text, n, id, err));
    }
    return MOE_OK;
}

/* Appends an unknown text in one piece: a token after all, its bytes, or the unknown token. */
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
    MOE_TRY(moe_unigram_best(&tok->unigram, scratch, text, n, score, err));
    for (uint64_t at = 0, end; at < n; at = end) {
        const struct moe_unigram_place *place = &scratch->places[at];
        end = place->other;
        if (place->token != MOE_UNIGRAM_UNKNOWN && place->token != tok->unk) {
            out->ids[out->n++] = place->token;
            continue;
        }
        /* Consecutive unknown tokens become one. */
        while (end < n && (scratch->places[end].token == MOE_UNIGRAM_UNKNOWN ||
                           scratch->places[end].token == tok->unk))
            end = scratch->places[end].other;
        MOE_TRY(push_unknown(tok, text + at, end - at, out, err));
    }
    return MOE_OK;
}

/*
 * GPTSAN's tokenizer (tanreinama's Japanese-BPEEncoder_V2): no merges and no scores. A token has
 * several spellings; among those found at a place of the text the smallest id wins, among equals
 * the longest. Words of up to three characters are considered, and all that begin with "<", the
 * longest first. A character without a spelling becomes a symbol or its bytes.
 */

enum { WORD_CHARACTERS = 3 };

/* ---- Spellings ---- */

/* Reads the next spelling of a token's text, "A,B,C", at *at; false at the end. A lone comma is a
 * spelling. */
static bool next_spelling(const uint8_t *text, uint32_t n, uint32_t *at, uint32_t *start,
                          uint32_t *size)
{
    if (*at > n)
        return false;
    const uint8_t *comma = n == 1 ? NULL : memchr(text + *at, ',', n - *at);
    *start = *at;
    *size = comma ? (uint32_t)(comma - text) - *at : n - *at;
    *at += *size + 1;
    return true;
}

static int add_spellings(struct moe_tokenizer *tok, uint32_t id, struct moe_err *err)
{
    uint32_t n, at = 0, start, size;
    const uint8_t *text = moe_token_text(tok, id, &n);
    if (n > MOE_UNIGRAM_TOKEN_MAX || !moe_utf8_valid(text, n))
        return moe_fail(err, MOE_ERR_FORMAT, "token %u is not UTF-8 or has more than %d bytes", id,
                        MOE_UNIGRAM_TOKEN_MAX);
    while (next_spelling(text, n, &at, &start, &size)) {
        if (size)
            MOE_TRY(moe_trie_add(&tok->spellings, text + start, size, id, err));
    }
    return MOE_OK;
}

/* ---- What tokens show ---- */

static bool is_like(const uint8_t *text, uint32_t n, const char *begin)
{
    size_t size = strlen(begin);
    return n >= size + 2 && memcmp(text, begin, size) == 0 && memcmp(text + n - 2, "|>", 2) == 0;
}

/* The byte of "<|byteN|>", or -1. */
static int byte_of(const uint8_t *text, uint32_t n)
{
    int byte = 0;
    if (!is_like(text, n, "<|byte") || n > 11 || n == 8)
        return -1;
    for (uint32_t i = 6; i < n - 2; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        byte = byte * 10 + text[i] - '0';
    }
    return byte < 256 ? byte : -1;
}

/* The emoji of a token "<|emojiN|>", or nothing, from the normalizer's pairs. */
static const char *emoji_of(const struct moe_tokenizer *tok, const uint8_t *text, uint32_t n)
{
    const char *token, *emoji;
    for (uint32_t i = 0; i < tok->normalizer.n; i++) {
        const struct moe_step *step = &tok->normalizer.steps[i];
        for (uint64_t at = 0; step->kind == MOE_STEP_REPLACE_PAIRS &&
                              moe_step_pair(&step->other, &at, &token, &emoji);)
            if (strlen(token) == n && memcmp(token, text, n) == 0)
                return emoji;
    }
    return "";
}

static void show(struct moe_tokenizer *tok, uint32_t id)
{
    static const char *const shown[][2] = {{"<SP>", " "},         {"<BR>", "\n"},
                                           {"<TAB>", "\t"},       {"<BLOCK>", "\u2580"},
                                           {"<KIGOU>", "\u01c0"}, {"<U2000U2BFF>", "\u2016"}};
    uint32_t n, at = 0, start = 0, size = 0;
    const uint8_t *text = moe_token_text(tok, id, &n);
    if (tok->token_flags[id] & MOE_TOKEN_SPECIAL) {
        moe_buf_append(&tok->shown, text, n);
        return;
    }
    next_spelling(text, n, &at, &start, &size); /* the first one */
    if (byte_of(text, size) >= 0) {
        moe_buf_u8(&tok->shown, (uint8_t)byte_of(text, size));
        return;
    }
    if (is_like(text, size, "<|emoji"))
        moe_buf_text(&tok->shown, emoji_of(tok, text, size));
    if (is_like(text, size, "<|"))
        return;
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        if (strlen(shown[i][0]) == size && memcmp(shown[i][0], text, size) == 0) {
            moe_buf_text(&tok->shown, shown[i][1]);
            return;
        }
    }
    moe_buf_append(&tok->shown, text, size);
}

static bool spellings_is_byte(const struct moe_tokenizer *tok, uint32_t id)
{
    uint32_t n;
    const uint8_t *text = moe_token_text(tok, id, &n);
    return byte_of(text, n) >= 0;
}

static bool spellings_is_bag(const struct moe_tokenizer *tok, uint32_t id)
{
    static const char bag[] = "<|bagoftoken|>";
    uint32_t n;
    const uint8_t *text = moe_token_text(tok, id, &n);
    return n == sizeof bag - 1 && memcmp(text, bag, n) == 0;
}

static int spellings_prepare(struct moe_tokenizer *tok, struct moe_err *err)
{
    tok->shown_offsets = moe_alloc((uint64_t)tok->n_tokens + 1, sizeof *tok->shown_offsets, err);
    if (!tok->shown_offsets)
        return MOE_ERR_MEMORY;
    if (tok->bpe.n_merges)
        return moe_fail(err, MOE_ERR_FORMAT, "a model of spellings has merges");
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint8_t flags = tok->token_flags[id];
        /* A user's words must not become special tokens. */
        if (flags & MOE_TOKEN_MODEL && !(flags & MOE_TOKEN_SPECIAL))
            MOE_TRY(add_spellings(tok, id, err));
        show(tok, id);
        tok->shown_offsets[id + 1] = (uint32_t)tok->shown.size;
    }
    if (tok->shown.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    return MOE_OK;
}

/* ---- Encoding ---- */

/* Chooses the token at the beginning of n > 0 bytes, and how many of them it takes. */
static uint32_t choose_token(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n,
                             uint64_t *taken)
{
    uint32_t best = MOE_NO_TOKEN, node = 0, characters = 0;
    bool tag = text[0] == '<';
    for (uint64_t i = 0; i < n; i++) {
        characters += (text[i] & 0xc0) != 0x80;
        if (!tag && characters > WORD_CHARACTERS)
            break;
        node = moe_trie_child(&tok->spellings, node, text[i]);
        if (node == 0)
            break;
        uint32_t token = moe_trie_token(&tok->spellings, node);
        /* Among tags longer than two characters the longest wins, whatever its id. */
        if (token == MOE_TRIE_NONE || (token > best && !(tag && characters > 2)))
            continue;
        best = token;
        *taken = i + 1;
    }
    return best;
}

/* The token for a character without a spelling; MOE_NO_TOKEN: encoded as bytes. */
static const char *symbol_of(const uint8_t *text, int length)
{
    uint32_t bytes = 0;
    for (int i = 0; i < length; i++)
        bytes = bytes << 8 | text[i];
    if ((bytes >= 0xc2a1 && bytes <= 0xc2bf) || (bytes >= 0xc780 && bytes <= 0xc783) ||
        (bytes >= 0xcab9 && bytes <= 0xcbbf) || (bytes >= 0xcc80 && bytes <= 0xcda2))
        return "<KIGOU>";
    return bytes >= 0xe28080 && bytes <= 0xe2b07f ? "<U2000U2BFF>" : NULL;
}

static int push_or_unknown(const struct moe_tokenizer *tok, uint32_t id, uint8_t byte,
                           struct moe_ids *out, struct moe_err *err)
{
    id = id == MOE_NO_TOKEN ? tok->unk : id;
    if (id == MOE_NO_TOKEN)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "the tokenizer has no token for byte 0x%02x",
                        byte);
    out->ids[out->n++] = id;
    return MOE_OK;
}

int moe_spellings_encode(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n,
                         struct moe_ids *out, struct moe_err *err)
{
    int length;
    for (uint64_t at = 0, taken; at < n; at += taken) {
        uint32_t id = choose_token(tok, text + at, n - at, &taken);
        if (id != MOE_NO_TOKEN) {
            out->ids[out->n++] = id;
            continue;
        }
        moe_utf8_decode(text + at, n - at, &length);
        taken = (uint64_t)length;
        const char *symbol = symbol_of(text + at, length);
        if (symbol)
            MOE_TRY(push_or_unknown(tok, moe_tokenizer_lookup(tok, symbol, strlen(symbol)),
                                    text[at], out, err));
        for (int i = 0; !symbol && i < length; i++)
            MOE_TRY(push_or_unknown(tok, tok->byte_ids[text[at + (uint64_t)i]],
                                    text[at + (uint64_t)i], out, err));
    }
    return MOE_OK;
}

/*
 * Added tokens: an index of their texts, and searching them in a text.
 */

static int compare_added(const void *a, const void *b)
{
    const struct moe_added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* Appends a token's text after normalization. */
static int normalize_added(struct moe_tokenizer *tok, uint32_t id, struct moe_buf *scratch,
                           uint32_t *size, struct moe_err *err)
{
    const char *normal;
    uint64_t normal_n;
    uint32_t n;
    const char *text = (const char *)moe_token_text(tok, id, &n);
    if (!moe_utf8_valid((const uint8_t *)text, n))
        return moe_fail(err, MOE_ERR_FORMAT, "added token %u is not UTF-8", id);
    MOE_TRY(moe_normalize(&tok->normalizer, text, n, scratch, &normal, &normal_n, err));
    if (normal_n == 0 || normal_n > MOE_TOKEN_BYTES_MAX)
        return moe_fail(err, MOE_ERR_FORMAT, "added token %u has %llu bytes when normalized", id,
                        (unsigned long long)normal_n);
    moe_buf_append(&tok->normalized, normal, normal_n);
    *size = (uint32_t)normal_n;
    return MOE_OK;
}

/* Collects added tokens of one level with the lengths of their texts. */
static int collect_added(struct moe_tokenizer *tok, bool normalized, struct moe_added *added,
                         struct moe_err *err)
{
    struct moe_buf scratch = {0};
    int status = MOE_OK;
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint8_t flags = tok->token_flags[id];
        if (!(flags & MOE_TOKEN_ADDED) || normalized != !!(flags & MOE_TOKEN_NORMALIZED))
            continue;
        struct moe_added_token *token = &added->tokens[added->n++];
        token->id = id;
        token->text = moe_token_text(tok, id, &token->n);
        if (normalized)
            MOE_STEP(normalize_added(tok, id, &scratch, &token->n, err));
    }
    if (tok->normalized.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory"));
out:
    moe_buf_release(&scratch);
    return status;
}

static int index_added(struct moe_tokenizer *tok, bool normalized, struct moe_added *added,
                       struct moe_err *err)
{
    uint32_t most = 0;
    for (uint32_t id = 0; id < tok->n_tokens; id++)
        most += tok->token_flags[id] & MOE_TOKEN_ADDED ? 1 : 0;
    added->tokens = moe_alloc(most, sizeof *added->tokens, err);
    if (!added->tokens)
        return MOE_ERR_MEMORY;
    MOE_TRY(collect_added(tok, normalized, added, err));
    /* From here on the normalized texts keep their addresses. */
    const uint8_t *text = tok->normalized.data;
    for (uint32_t i = 0; normalized && i < added->n; i++) {
        added->tokens[i].text = text;
        text += added->tokens[i].n;
    }
    if (added->n)
        qsort(added->tokens, added->n, sizeof *added->tokens, compare_added);
    for (uint32_t i = 0; i < added->n; i++) {
        if (i > 0 && compare_added(&added->tokens[i - 1], &added->tokens[i]) == 0)
            return moe_fail(err, MOE_ERR_FORMAT, "added tokens %u and %u have the same text",
                            added->tokens[i - 1].id, added->tokens[i].id);
        added->first[added->tokens[i].text[0] + 1]++;
    }
    for (int b = 0; b < 256; b++)
        added->first[b + 1] += added->first[b];
    return MOE_OK;
}

/* Fills tok->added; call after the normalizer is prepared. */
static int added_index(struct moe_tokenizer *tok, struct moe_err *err)
{
    MOE_TRY(index_added(tok, false, &tok->added[0], err));
    return index_added(tok, true, &tok->added[1], err);
}

/* The first token in [low, high), alike in `depth` bytes, whose next byte is at least `byte`. */
static uint32_t narrow(const struct moe_added_token *tokens, uint32_t low, uint32_t high,
                       uint32_t depth, unsigned byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tokens[middle].text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct moe_added_token *moe_added_longest(const struct moe_tokenizer *tok,
                                                const struct moe_added *added, const uint8_t *text,
                                                uint64_t n, uint64_t special_n)
{
    uint32_t low = added->first[text[0]], high = added->first[text[0] + 1];
    const struct moe_added_token *tokens = added->tokens, *best = NULL;
    for (uint32_t depth = 1; low < high; depth++) {
        if (tokens[low].n == depth) { /* sorted: the shortest comes first, and only once */
            const struct moe_added_token *token = &tokens[low++];
            if (depth <= special_n || !(tok->token_flags[token->id] & MOE_TOKEN_SPECIAL))
                best = token;
        }
        if (depth == n)
            break;
        low = narrow(tokens, low, high, depth, text[depth]);
        high = narrow(tokens, low, high, depth, text[depth] + 1u);
    }
    return best;
}

/*
 * Checks what a reader has filled in, and derives the rest.
 */

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
            return moe_fail(err, MOE_ERR_FORMAT, "token %u has flags 0x%x, which are impossible",
                            id, flags);
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

/* Refuses merges whose result is not their two sides joined: decoding would change the text. */
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

/* Sets the meaning of a character model's tokens: U+2581 is a space, "<0xNN>" a byte. */
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

/* Finds the token that separates documents: chat checkpoints use eos for the end of a turn. */
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
    MOE_TRY(check_tokens(tok, err));
    MOE_TRY(check_merges(tok, err));
    if (!tok->vocabulary)
        MOE_TRY(moe_tokenizer_index(tok, err));
    MOE_TRY(spell_out(tok, err));
    MOE_TRY(moe_steps_prepare(&tok->normalizer, true, err));
    MOE_TRY(moe_steps_prepare(&tok->pre_tokenizer, false, err));
    MOE_TRY(added_index(tok, err));
    /* Merging must not produce special tokens from a user's words. */
    MOE_TRY(moe_bpe_index(&tok->bpe, tok->token_flags, MOE_TOKEN_SPECIAL, err));
    if (tok->model == MOE_TOKENIZER_UNIGRAM)
        MOE_TRY(unigram_prepare(tok, err));
    if (tok->model == MOE_TOKENIZER_SPELLINGS)
        MOE_TRY(spellings_prepare(tok, err));
    find_byte_ids(tok);
    tok->separator = find_separator(tok);
    tok->words_apart = are_words_apart(tok);
    return MOE_OK;
}

/*
 * Whole answers: decodes a sequence of tokens.
 */

const uint8_t *moe_tokenizer_said(const struct moe_tokenizer *tok, uint32_t id, bool *first,
                                  uint32_t *n)
{
    const uint8_t *bytes = moe_tokenizer_bytes(tok, id, n);
    if (moe_tokenizer_is_special(tok, id))
        *n = 0;
    if (*n == 0 || !*first)
        return bytes;
    *first = false;
    uint32_t most = tok->flags & MOE_TOKENIZER_DROPS_SPACES  ? *n
                    : tok->flags & MOE_TOKENIZER_DROPS_SPACE ? 1
                                                             : 0;
    for (; most && *n && *bytes == ' '; most--) {
        bytes++;
        --*n;
    }
    return bytes;
}

bool moe_tokenizer_repeats(const struct moe_tokenizer *tok, uint32_t id)
{
    return tok->model == MOE_TOKENIZER_SPELLINGS && id < tok->n_tokens && spellings_is_bag(tok, id);
}

int moe_tokenizer_decode(const struct moe_tokenizer *tok, const uint32_t *ids, uint64_t n,
                         struct moe_buf *out, struct moe_err *err)
{
    bool first = true, in_bytes = false;
    uint64_t last = out->size; /* where the last token's text, or a run of bytes, begins */
    for (uint64_t i = 0; i < n && !out->failed; i++) {
        uint32_t n_bytes;
        const uint8_t *bytes = moe_tokenizer_said(tok, ids[i], &first, &n_bytes);
        if (moe_tokenizer_is_special(tok, ids[i]))
            continue;
        uint64_t size = out->size - last;
        if (moe_tokenizer_repeats(tok, ids[i])) {
            moe_buf_reserve(out, 3 * size); /* the repeated text lies in the buffer itself */
            for (int times = 0; times < 3 && !out->failed; times++)
                moe_buf_append(out, out->data + last, size);
            last = out->size - size;
            in_bytes = false;
            continue;
        }
        bool is_byte = tok->model == MOE_TOKENIZER_SPELLINGS && spellings_is_byte(tok, ids[i]);
        if (!is_byte || !in_bytes)
            last = out->size;
        in_bytes = is_byte;
        moe_buf_append(out, bytes, n_bytes);
    }
    return out->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text") : MOE_OK;
}
