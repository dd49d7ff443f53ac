/*
 * A tokenizer of bytes: token b is the byte b.
 */
#include <stdlib.h>

#include "text/tokenizer_impl.h"
#include "vocab/vocab.h"

enum { BYTES = 256 };

int moe_tokenizer_of_bytes(struct moe_tokenizer **out, struct moe_err *err)
{
    *out = NULL;
    struct moe_tokenizer *tok = moe_tokenizer_new(err);
    if (!tok)
        return MOE_ERR_MEMORY;
    tok->model = MOE_TOKENIZER_BYTES;
    int status = moe_tokenizer_allocate(tok, BYTES, err);
    for (int b = 0; b < BYTES && status == MOE_OK; b++) {
        moe_buf_u8(&tok->text, (uint8_t)b);
        tok->offsets[b + 1] = (uint32_t)b + 1;
        tok->token_flags[b] = MOE_TOKEN_MODEL;
    }
    if (status == MOE_OK && tok->text.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    if (status == MOE_OK)
        status = moe_tokenizer_prepare(tok, err);
    if (status == MOE_OK)
        *out = tok;
    else
        moe_tokenizer_free(tok);
    return status;
}
