/* Stores vocabularies as readers find them. */
#include "text/vocab_store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/internal.h"
#include "text/vocab.h"

/* ---- Spelling ---- */

/* Printable ASCII reads the same in GPT-2's alphabet. */
static bool means_itself(const char *text, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (text[i] < 33 || text[i] > 126)
            return false;
    }
    return true;
}

/* ---- Tokens ---- */

/* Appends the text of an entry and returns its flags. */
static uint8_t store_entry(struct moe_tokenizer *tok, const struct moe_vocab_entry *e)
{
    bool byte_level = tok->model == MOE_TOKENIZER_BYTES;
    uint8_t flags = e->flags;
    bool spelled = byte_level && !(flags & MOE_TOKEN_ADDED);
    if (spelled && moe_alphabet_read(e->text, e->n, &tok->text))
        return flags;
    moe_buf_append(&tok->text, e->text, e->n);
    /* No merge makes a token outside the alphabet: it only decodes, unless it is added. */
    if (byte_level && !means_itself(e->text, e->n))
        flags &= (uint8_t)~MOE_TOKEN_MODEL;
    return flags;
}

int moe_vocab_store(struct moe_tokenizer *tok, const char *name,
                    const struct moe_vocab_entry *entries, struct moe_err *err)
{
    struct moe_err why = {0};
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        const struct moe_vocab_entry *e = &entries[id];
        if (e->n > MOE_TOKEN_BYTES_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: token %u has %llu bytes", name, id,
                            (unsigned long long)e->n);
        tok->token_flags[id] = e->n ? store_entry(tok, e) : 0;
        if (tok->text.size > UINT32_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: tokens of more than 4 GiB", name);
        tok->offsets[id + 1] = (uint32_t)tok->text.size;
    }
    if (tok->text.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    int status = moe_tokenizer_index(tok, &why);
    return status == MOE_OK ? MOE_OK : moe_fail(err, status, "%s: %s", name, why.text);
}

double moe_vocab_score(double score)
{
    enum { DIGITS_MIN = 15, DIGITS_MAX = 17 };
    char text[32];
    /* As files write it: with the fewest digits that identify it. */
    for (int n = DIGITS_MIN; n <= DIGITS_MAX; n++) {
        snprintf(text, sizeof text, "%.*e", n - 1, fabs(score));
        if (strtod(text, NULL) == fabs(score))
            break;
    }
    const char *mark = strchr(text, 'e');
    long exponent = mark ? strtol(mark + 1, NULL, 10) + 1 : 0;
    uint64_t digits = 0, zeros = 0;
    for (const char *c = text; mark && c < mark; c++) {
        if (*c < '0' || *c > '9')
            continue;
        exponent--;
        zeros = *c == '0' ? zeros + 1 : 0;
        digits = digits * 10 + (uint64_t)(*c - '0');
    }
    for (; zeros && digits; zeros--, exponent++)
        digits /= 10;
    if (digits == 0 || labs(exponent) > 308)
        return score;
    snprintf(text, sizeof text, "1e%ld", labs(exponent));
    double power = strtod(text, NULL);
    double value = exponent < 0 ? (double)digits / power : (double)digits * power;
    return score < 0 ? -value : value;
}

/* ---- Merges ---- */

int moe_vocab_reserve_merges(struct moe_tokenizer *tok, const char *name, uint64_t n,
                             struct moe_err *err)
{
    if (n > 2 * (uint64_t)MOE_TOKENS_MAX)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %llu merges are more than can be", name,
                        (unsigned long long)n);
    tok->bpe.merges = moe_alloc(n, sizeof *tok->bpe.merges, err);
    if (!tok->bpe.merges)
        return MOE_ERR_MEMORY;
    tok->bpe.n_merges = (uint32_t)n;
    return MOE_OK;
}

bool moe_vocab_merge(const struct moe_tokenizer *tok, const char *left, uint64_t left_n,
                     const char *right, uint64_t right_n, struct moe_buf *scratch,
                     struct moe_bpe_merge *out)
{
    moe_buf_clear(scratch);
    if (tok->model == MOE_TOKENIZER_BYTES) {
        if (!moe_alphabet_read(left, left_n, scratch))
            return false;
        left_n = scratch->size;
        if (!moe_alphabet_read(right, right_n, scratch))
            return false;
    } else {
        moe_buf_append(scratch, left, left_n);
        moe_buf_append(scratch, right, right_n);
    }
    if (scratch->failed || left_n == 0 || scratch->size == left_n)
        return false;
    out->left = moe_tokenizer_lookup(tok, scratch->data, left_n);
    out->right = moe_tokenizer_lookup(tok, scratch->data + left_n, scratch->size - left_n);
    out->result = moe_tokenizer_lookup(tok, scratch->data, scratch->size);
    return out->left != MOE_NO_TOKEN && out->right != MOE_NO_TOKEN && out->result != MOE_NO_TOKEN;
}

bool moe_vocab_merge_line(const struct moe_tokenizer *tok, const char *line, uint64_t n,
                          struct moe_buf *scratch, struct moe_bpe_merge *out)
{
    const char *space = memchr(line, ' ', n);
    uint64_t left_n = space ? (uint64_t)(space - line) : 0;
    if (!space || memchr(space + 1, ' ', n - left_n - 1))
        return false;
    return moe_vocab_merge(tok, line, left_n, space + 1, n - left_n - 1, scratch, out);
}

int moe_vocab_no_merge(const char *name, uint64_t i, const struct moe_buf *scratch,
                       struct moe_err *err)
{
    if (scratch->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    return moe_fail(err, MOE_ERR_FORMAT, "%s: merge %llu is no pair of tokens that make a token",
                    name, (unsigned long long)i);
}

/*
 * A tokenizer of bytes: token b is the byte b.
 */

enum { BYTES = 256 };

int moe_tokenizer_of_bytes(struct moe_tokenizer **out, struct moe_err *err)
{
    *out = NULL;
    struct moe_tokenizer *tok = moe_tokenizer_new(err);
    if (!tok)
        return MOE_ERR_MEMORY;
    tok->model = MOE_TOKENIZER_BYTES;
    int status;
    MOE_STEP(moe_tokenizer_allocate(tok, BYTES, err));
    for (int b = 0; b < BYTES; b++) {
        moe_buf_u8(&tok->text, (uint8_t)b);
        tok->offsets[b + 1] = (uint32_t)b + 1;
        tok->token_flags[b] = MOE_TOKEN_MODEL;
    }
    if (tok->text.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory"));
    MOE_STEP(moe_tokenizer_prepare(tok, err));
out:
    if (status == MOE_OK)
        *out = tok;
    else
        moe_tokenizer_free(tok);
    return status;
}
