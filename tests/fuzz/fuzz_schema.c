/*
 * Any JSON as a schema: it becomes a grammar, or is refused with a sentence; what it becomes is
 * GBNF that is read, unless it is too large or comes back to itself.
 */
/* Readers: grammar/schema*.c */
#define _GNU_SOURCE
#include "fuzz.h"
#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct json_t *schema;
    struct moe_buf text = {0};
    struct moe_grammar *g = NULL;
    struct moe_err err = {0};
    n = fuzz_begin(data, n);
    if (moe_json_parse(&schema, "fuzz", data, n, 1 << 24, &err) != MOE_OK)
        return 0;
    int status = FUZZ_TRY(moe_grammar_write_schema(&text, "fuzz", schema, NULL, &err));
    if (status != MOE_OK && !err.text[0])
        abort();
    if (status == MOE_OK) {
        status = moe_grammar_parse(&g, "fuzz", text.data, text.size, NULL, &err);
        if (status != MOE_OK && status != MOE_ERR_UNSUPPORTED && status != MOE_ERR_LIMIT &&
            !fuzz_failed) {
            fprintf(stderr, "%s\n%.*s\n", err.text, (int)text.size, (const char *)text.data);
            abort();
        }
    }
    moe_grammar_free(g);
    moe_buf_release(&text);
    moe_json_free(schema);
    return 0;
}
