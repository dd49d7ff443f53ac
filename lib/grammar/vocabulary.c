#include "grammar/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { LONGEST = 4096 /* bytes of a token; longer ones are never allowed */ };

struct token {
    const uint8_t *bytes;
    uint32_t n, id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    uint32_t n = x->n < y->n ? x->n : y->n;
    int order = memcmp(x->bytes, y->bytes, n);
    if (order == 0)
        order = (x->n > y->n) - (x->n < y->n);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static uint16_t shared_bytes(const struct token *a, const struct token *b)
{
    uint16_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

uint64_t moe_vocabulary_bytes(uint32_t n_logits)
{
    return sizeof(struct moe_vocabulary) +
           (uint64_t)n_logits * (2 * sizeof(struct token) + sizeof(uint32_t) + sizeof(uint16_t));
}

int moe_vocabulary_new(struct moe_vocabulary **out, const struct moe_tokenizer *tokenizer,
                       uint32_t n_logits, struct moe_err *err)
{
    struct moe_vocabulary *v = *out = NULL;
    uint32_t n_ids = moe_tokenizer_n_tokens(tokenizer);
    n_ids = n_ids < n_logits ? n_ids : n_logits;
    struct token *tokens = moe_alloc(n_ids, sizeof *tokens, err);
    if (tokens && (v = moe_alloc(1, sizeof *v, err))) {
        v->ids = moe_alloc(n_ids, sizeof *v->ids, err);
        v->shared = moe_alloc(n_ids, sizeof *v->shared, err);
    }
    if (!v || !v->ids || !v->shared) {
        moe_vocabulary_free(v);
        free(tokens);
        return MOE_ERR_MEMORY;
    }
    v->tokenizer = tokenizer;
    v->n_logits = n_logits;
    for (uint32_t id = 0; id < n_ids; id++) {
        struct token t = {.id = id};
        t.bytes = moe_tokenizer_bytes(tokenizer, id, &t.n);
        if (t.n > 0 && t.n <= LONGEST && !moe_tokenizer_is_special(tokenizer, id))
            tokens[v->n++] = t;
    }
    qsort(tokens, v->n, sizeof *tokens, by_bytes);
    for (uint32_t i = 0; i < v->n; i++) {
        v->ids[i] = tokens[i].id;
        v->shared[i] = i ? shared_bytes(&tokens[i - 1], &tokens[i]) : 0;
        v->longest = tokens[i].n > v->longest ? tokens[i].n : v->longest;
    }
    free(tokens);
    *out = v;
    return MOE_OK;
}

void moe_vocabulary_free(struct moe_vocabulary *v)
{
    if (!v)
        return;
    free(v->ids);
    free(v->shared);
    free(v);
}
