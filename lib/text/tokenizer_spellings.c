/*
 * GPTSAN's tokenizer (tanreinama's Japanese-BPEEncoder_V2): no merges and no scores. A token has
 * several spellings, and of those that stand at a place of the text the one with the smallest id is
 * taken, among equals the longest; words of up to three characters are looked at, but of those that
 * begin with "<" all, the longest first. What has no spelling is a symbol of some kind or its
 * bytes.
 */
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "text/tokenizer_impl.h"

enum { WORD_CHARACTERS = 3 };

/* ---- Spellings ---- */

/* The next spelling of a token's text, "A,B,C", at *at; false at the end. A comma alone is one. */
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
    int status = MOE_OK;
    if (n > MOE_UNIGRAM_TOKEN_MAX || !moe_utf8_valid(text, n))
        return moe_fail(err, MOE_ERR_FORMAT, "token %u is not UTF-8 or has more than %d bytes", id,
                        MOE_UNIGRAM_TOKEN_MAX);
    while (status == MOE_OK && next_spelling(text, n, &at, &start, &size))
        if (size)
            status = moe_trie_add(&tok->spellings, text + start, size, id, err);
    return status;
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

/* The emoji of a token "<|emojiN|>", or nothing: the normalizer's pairs know the way back. */
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
    next_spelling(text, n, &at, &start, &size); /* the first */
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

bool moe_spellings_is_byte(const struct moe_tokenizer *tok, uint32_t id)
{
    uint32_t n;
    const uint8_t *text = moe_token_text(tok, id, &n);
    return byte_of(text, n) >= 0;
}

bool moe_spellings_is_bag(const struct moe_tokenizer *tok, uint32_t id)
{
    static const char bag[] = "<|bagoftoken|>";
    uint32_t n;
    const uint8_t *text = moe_token_text(tok, id, &n);
    return n == sizeof bag - 1 && memcmp(text, bag, n) == 0;
}

int moe_spellings_prepare(struct moe_tokenizer *tok, struct moe_err *err)
{
    int status = MOE_OK;
    tok->shown_offsets = moe_alloc((uint64_t)tok->n_tokens + 1, sizeof *tok->shown_offsets, err);
    if (!tok->shown_offsets)
        return MOE_ERR_MEMORY;
    if (tok->bpe.n_merges)
        return moe_fail(err, MOE_ERR_FORMAT, "a model of spellings has merges");
    for (uint32_t id = 0; id < tok->n_tokens && status == MOE_OK; id++) {
        uint8_t flags = tok->token_flags[id];
        /* A user's words must not become special tokens. */
        if (flags & MOE_TOKEN_MODEL && !(flags & MOE_TOKEN_SPECIAL))
            status = add_spellings(tok, id, err);
        show(tok, id);
        tok->shown_offsets[id + 1] = (uint32_t)tok->shown.size;
    }
    if (status == MOE_OK && tok->shown.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    return status;
}

/* ---- Encoding ---- */

/* The token at the beginning of n > 0 bytes, and how many of them it takes. */
static uint32_t choose(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n,
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
        /* Of tags longer than two characters the longest counts, whatever its id. */
        if (token == MOE_TRIE_NONE || (token > best && !(tag && characters > 2)))
            continue;
        best = token;
        *taken = i + 1;
    }
    return best;
}

/* The token for a character without a spelling, or MOE_NO_TOKEN: its bytes stand for it. */
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
    int status = MOE_OK, length;
    for (uint64_t at = 0, taken; at < n && status == MOE_OK; at += taken) {
        uint32_t id = choose(tok, text + at, n - at, &taken);
        if (id != MOE_NO_TOKEN) {
            out->ids[out->n++] = id;
            continue;
        }
        moe_utf8_decode(text + at, n - at, &length);
        taken = (uint64_t)length;
        const char *symbol = symbol_of(text + at, length);
        if (symbol)
            status = push_or_unknown(tok, moe_tokenizer_lookup(tok, symbol, strlen(symbol)),
                                     text[at], out, err);
        for (int i = 0; !symbol && i < length && status == MOE_OK; i++)
            status = push_or_unknown(tok, tok->byte_ids[text[at + (uint64_t)i]],
                                     text[at + (uint64_t)i], out, err);
    }
    return status;
}
