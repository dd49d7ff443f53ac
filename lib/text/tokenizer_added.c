/*
 * Added tokens: an index over their texts, and looking them up in a text.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "text/tokenizer_impl.h"

static int compare_added(const void *a, const void *b)
{
    const struct moe_added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* Appends a token's text as the normalizer changes it. */
static int normalize_added(struct moe_tokenizer *tok, uint32_t id, struct moe_buf *scratch,
                           uint32_t *size, struct moe_err *err)
{
    const char *normal;
    uint64_t normal_n;
    uint32_t n;
    const char *text = (const char *)moe_token_text(tok, id, &n);
    if (!moe_utf8_valid((const uint8_t *)text, n))
        return moe_fail(err, MOE_ERR_FORMAT, "added token %u is not UTF-8", id);
    int status = moe_normalize(&tok->normalizer, text, n, scratch, &normal, &normal_n, err);
    if (status != MOE_OK)
        return status;
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
    for (uint32_t id = 0; id < tok->n_tokens && status == MOE_OK; id++) {
        uint8_t flags = tok->token_flags[id];
        if (!(flags & MOE_TOKEN_ADDED) || normalized != !!(flags & MOE_TOKEN_NORMALIZED))
            continue;
        struct moe_added_token *token = &added->tokens[added->n++];
        token->id = id;
        token->text = moe_token_text(tok, id, &token->n);
        if (normalized)
            status = normalize_added(tok, id, &scratch, &token->n, err);
    }
    if (status == MOE_OK && tok->normalized.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
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
    int status = added->tokens ? collect_added(tok, normalized, added, err) : MOE_ERR_MEMORY;
    if (status != MOE_OK)
        return status;
    /* From here on the normalized texts stay at their addresses. */
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

int moe_added_index(struct moe_tokenizer *tok, struct moe_err *err)
{
    int status = index_added(tok, false, &tok->added[0], err);
    return status == MOE_OK ? index_added(tok, true, &tok->added[1], err) : status;
}

/* Where tokens in [low, high), alike in `depth` bytes, have a byte of at least `byte` next. */
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
