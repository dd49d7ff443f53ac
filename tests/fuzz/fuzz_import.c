/* A routing trace of another engine. What is imported is a trace whose tokens can all be read. */
/* Readers: profile/trace_import.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "profile/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char to[96];
    struct moe_err err;
    struct moe_trace *t;
    const struct moe_trace_token *token;
    fuzz_path("to", to);
    n = fuzz_begin(data, n);
    if (FUZZ_TRY(moe_trace_import(fuzz_file(data, n), to, &err)) != MOE_OK)
        return 0;
    if (moe_trace_open(&t, to, &err) != MOE_OK)
        abort();
    do
        if (moe_trace_next(t, &token, &err) != MOE_OK)
            abort();
    while (token);
    moe_trace_close(t);
    unlink(to);
    return 0;
}

FUZZ_MUTATE_TEXT
