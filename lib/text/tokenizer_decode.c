/*
 * Whole answers: what their tokens show in a row.
 */
#include "text/tokenizer_impl.h"

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
    return tok->model == MOE_TOKENIZER_SPELLINGS && id < tok->n_tokens &&
           moe_spellings_is_bag(tok, id);
}

int moe_tokenizer_decode(const struct moe_tokenizer *tok, const uint32_t *ids, uint64_t n,
                         struct moe_buf *out, struct moe_err *err)
{
    bool first = true, in_bytes = false;
    uint64_t last = out->size; /* where what a token shows begins, or that of bytes in a row */
    for (uint64_t i = 0; i < n && !out->failed; i++) {
        uint32_t n_bytes;
        const uint8_t *bytes = moe_tokenizer_said(tok, ids[i], &first, &n_bytes);
        if (moe_tokenizer_is_special(tok, ids[i]))
            continue;
        uint64_t size = out->size - last;
        if (moe_tokenizer_repeats(tok, ids[i])) {
            moe_buf_reserve(out, 3 * size); /* the text to be repeated lies in the buffer itself */
            for (int times = 0; times < 3 && !out->failed; times++)
                moe_buf_append(out, out->data + last, size);
            last = out->size - size;
            in_bytes = false;
            continue;
        }
        bool is_byte = tok->model == MOE_TOKENIZER_SPELLINGS && moe_spellings_is_byte(tok, ids[i]);
        if (!is_byte || !in_bytes)
            last = out->size;
        in_bytes = is_byte;
        moe_buf_append(out, bytes, n_bytes);
    }
    return out->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text") : MOE_OK;
}
