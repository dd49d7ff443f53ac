/* write_grammar SCHEMA: prints the GBNF that a JSON schema becomes, or why it becomes none. */
#include <stdio.h>

#include "base/buf.h"
#include "fmt/json.h"
#include "grammar/grammar.h"

int main(int argc, char **argv)
{
    struct json_t *schema = NULL;
    struct moe_buf text = {0};
    struct moe_err err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: write_grammar SCHEMA\n");
        return 2;
    }
    int status = moe_json_read(&schema, argv[1], 1 << 20, MOE_JSON_CONFIG_MEMORY, &err);
    if (status == MOE_OK)
        status = moe_grammar_write_schema(&text, argv[1], schema, &err);
    if (status == MOE_OK)
        fwrite(text.data, 1, text.size, stdout);
    else
        fprintf(stderr, "%s\n", err.text);
    moe_json_free(schema);
    moe_buf_release(&text);
    return status == MOE_OK ? 0 : 1;
}
