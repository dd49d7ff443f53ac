/*
 * SentencePiece's BPE merges the pair that makes the token with the best score. A table of merges
 * does the same; Hugging Face's conversion of such a vocabulary writes it (generate_merges in
 * transformers).
 */
#include <stdlib.h>

#include "base/text.h"
#include "vocab/gguf.h"
#include "vocab/store.h"

enum { SPLIT_BYTES_MAX = 1024 }; /* every place in a token is tried: bounds the work */

struct candidate {
    float score;
    uint32_t left_n, right_n; /* characters */
    struct moe_bpe_merge merge;
};

static int higher_first(uint32_t a, uint32_t b)
{
    return (a < b) - (a > b);
}

/* The best score first, then the longest left side, then the order of the ids. */
static int compare(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    int order = (x->score < y->score) - (x->score > y->score);
    if (!order)
        order = higher_first(x->left_n, y->left_n);
    if (!order)
        order = higher_first(x->right_n, y->right_n);
    if (!order)
        order = higher_first(y->merge.result, x->merge.result);
    return order ? order : higher_first(y->merge.left, x->merge.left);
}

static uint32_t count_characters(const uint8_t *text, uint64_t n)
{
    uint32_t count = 0;
    int length;
    for (uint64_t at = 0; at < n; at += (uint64_t)length, count++)
        moe_utf8_decode(text + at, n - at, &length);
    return count;
}

/* Appends every pair that makes token `id`. */
static void add_splits(const struct moe_tokenizer *tok, uint32_t id, float score,
                       struct moe_buf *out)
{
    uint32_t n, left_n = 0;
    int length;
    const uint8_t *text = moe_token_text(tok, id, &n);
    uint32_t characters = count_characters(text, n);
    moe_utf8_decode(text, n, &length);
    for (uint32_t at = (uint32_t)length; at < n; at += (uint32_t)length) {
        struct candidate c = {.score = score, .left_n = ++left_n};
        c.right_n = characters - left_n;
        c.merge.left = moe_tokenizer_lookup(tok, text, at);
        c.merge.right = moe_tokenizer_lookup(tok, text + at, n - at);
        c.merge.result = id;
        if (c.merge.left != MOE_NO_TOKEN && c.merge.right != MOE_NO_TOKEN)
            moe_buf_append(out, &c, sizeof c);
        moe_utf8_decode(text + at, n - at, &length);
    }
}

/* Some converters write one score for all: there the order of the ids is that of the scores. */
static bool all_alike(const struct moe_tokenizer *tok, const float *scores)
{
    uint32_t first = MOE_NO_TOKEN;
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        if (tok->token_flags[id] != MOE_TOKEN_MODEL)
            continue;
        if (first == MOE_NO_TOKEN)
            first = id;
        if (scores[id] != scores[first])
            return false;
    }
    return true;
}

static int collect(const struct moe_tokenizer *tok, const char *file, const float *scores,
                   struct moe_buf *found, struct moe_err *err)
{
    bool by_id = all_alike(tok, scores);
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint32_t n;
        moe_token_text(tok, id, &n);
        if (!(tok->token_flags[id] & MOE_TOKEN_MODEL))
            continue;
        if (n > SPLIT_BYTES_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: token %u has %u bytes", file, id, n);
        add_splits(tok, id, by_id ? -(float)id : scores[id], found);
        if (found->size / sizeof(struct candidate) > 2 * (uint64_t)MOE_TOKENS_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: the tokens make more merges than can be",
                            file);
    }
    return found->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

int moe_gguf_merges_by_score(struct moe_tokenizer *tok, const char *file, const float *scores,
                             struct moe_err *err)
{
    struct moe_buf found = {0};
    int status = collect(tok, file, scores, &found, err);
    uint64_t n = found.size / sizeof(struct candidate);
    struct candidate *candidates = (struct candidate *)found.data;
    if (status == MOE_OK)
        status = moe_vocab_reserve_merges(tok, file, n, err);
    if (status == MOE_OK && n)
        qsort(candidates, n, sizeof *candidates, compare);
    for (uint64_t i = 0; status == MOE_OK && i < n; i++)
        tok->bpe.merges[i] = candidates[i].merge;
    moe_buf_release(&found);
    return status;
}
