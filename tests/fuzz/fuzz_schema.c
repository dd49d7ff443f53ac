/*
 * Any JSON as a schema: its values, its texts without quotes or all others become a grammar, or are
 * refused with a sentence; what they become is GBNF that is read, unless it is too large or comes
 * back to itself.
 */
/* Readers: grammar/schema*.c */
#define _GNU_SOURCE
#include "fuzz.h"
#include "grammar/grammar.h"

static void write_and_read(const struct json_t *schema, enum moe_schema_values values,
                           const char *until)
{
    struct moe_buf text = {0};
    struct moe_grammar *g = NULL;
    struct moe_err err = {0};
    struct moe_allowance few = {.max_steps = 200 * 1000, .max_bytes = 16 << 20}; /* more inputs */
    int status =
        FUZZ_TRY(moe_grammar_write_schema(&text, "fuzz", schema, values, until, NULL, &few, &err));
    if (status != MOE_OK && !err.text[0])
        abort();
    if (status == MOE_OK) {
        if (until) /* left to the caller */
            moe_buf_text(&text, "any ::= [^<]*\n");
        status = moe_grammar_parse(&g, "fuzz", text.data, text.size, NULL, &err);
        if (status != MOE_OK && status != MOE_ERR_UNSUPPORTED && status != MOE_ERR_LIMIT &&
            !fuzz_failed) {
            fprintf(stderr, "%s\n%.*s\n", err.text, (int)text.size, (const char *)text.data);
            abort();
        }
    }
    moe_grammar_free(g);
    moe_buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct json_t *schema;
    struct moe_err err = {0};
    n = fuzz_begin(data, n);
    if (moe_json_parse(&schema, "fuzz", data, n, 1 << 24, &err) != MOE_OK)
        return 0;
    write_and_read(schema, MOE_SCHEMA_ALL, NULL);
    write_and_read(schema, MOE_SCHEMA_TEXTS, "</p>");
    write_and_read(schema, MOE_SCHEMA_OTHERS, NULL);
    moe_json_free(schema);
    return 0;
}
