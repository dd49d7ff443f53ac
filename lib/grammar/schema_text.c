/* Texts of JSON schemas: lengths, formats, patterns. */
#include <string.h>

#include "grammar/schema.h"

/* ---- Formats ----
 *
 * A subset where the whole would be long: what is written is always of the format. Years have no
 * day too many; times no leap second. */
#define YEAR "( \"000\" [1-9] | \"00\" [1-9] [0-9] | \"0\" [1-9] [0-9]{2} | [1-9] [0-9]{3} )"
#define FOURTH "( \"0\" [48] | [2468] [048] | [13579] [26] )"
#define DATE                                                                                       \
    "( " YEAR " \"-\" ( ( \"0\" [13578] | \"1\" [02] ) \"-\" ( \"0\" [1-9] | [12] [0-9] | \"3\" "  \
    "[01] ) | ( \"0\" [469] | \"11\" ) \"-\" ( \"0\" [1-9] | [12] [0-9] | \"30\" ) | \"02-\" ( "   \
    "\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8] ) ) | ( [0-9]{2} " FOURTH " | " FOURTH                \
    " \"00\" ) \"-02-29\" )"
#define TIME                                                                                       \
    "( [01] [0-9] | \"2\" [0-3] ) \":\" [0-5] [0-9] \":\" [0-5] [0-9] ( \".\" [0-9]{1,6} )? ( "    \
    "\"Z\" | [-+] ( [01] [0-9] | \"2\" [0-3] ) \":\" [0-5] [0-9] )"
#define BYTE "( \"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9]{2} | [1-9] [0-9] | [0-9] )"
#define LABEL "[a-z0-9] ( [a-z0-9-]{0,30} [a-z0-9] )?"
#define HOST LABEL " ( \".\" " LABEL " ){0,3} \".\" [a-z]{2,8}"

static const struct {
    const char *name, *grammar;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE " \"T\" " TIME},
    {"uuid", "hex{8} \"-\" hex{4} \"-\" hex{4} \"-\" hex{4} \"-\" hex{12}"},
    {"ipv4", BYTE " ( \".\" " BYTE " ){3}"},
    {"ipv6", "hex{1,4} ( \":\" hex{1,4} ){7}"},
    {"email", "[a-z0-9] [a-z0-9_+-]{0,30} ( \".\" [a-z0-9_+-]{1,30} ){0,2} \"@\" " HOST},
    {"hostname", HOST},
    {"uri", "\"http\" \"s\"? \"://\" " HOST " ( \"/\" [A-Za-z0-9._~-]{0,60} ){0,8}"},
};

static int put_format_named(struct schema *s, const json_t *format, struct moe_buf *to)
{
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0) {
            moe_buf_printf(to, "\"\\\"\" %s \"\\\"\"", formats[i].grammar);
            return MOE_OK;
        }
    return schema_refuse(s, "format",
                         "'%.40s' is not supported: date, time, date-time, uuid, ipv4, ipv6, "
                         "email, hostname and uri are",
                         name ? name : "");
}

/* ---- All ---- */

int schema_string(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *format = schema_get(schema, "format"), *pattern = schema_get(schema, "pattern");
    uint64_t least = 0, most = UINT64_MAX;
    int status = schema_count(s, schema, "minLength", &least);
    if (status == MOE_OK)
        status = schema_count(s, schema, "maxLength", &most);
    if (status != MOE_OK)
        return status;
    if (least > most)
        return schema_refuse(s, "minLength", "more than there may be");
    if (format && pattern)
        return schema_refuse(s, "format", "beside a pattern it is not supported");
    if ((format || pattern) && (least > 0 || most != UINT64_MAX))
        return schema_refuse(s, least > 0 ? "minLength" : "maxLength",
                             "beside a %s it is not supported", format ? "format" : "pattern");
    if (format)
        return put_format_named(s, format, to);
    if (pattern && !json_is_string(pattern))
        return schema_refuse(s, "pattern", "a text was expected");
    if (pattern)
        return schema_pattern(s, json_string_value(pattern), to);
    if (least == 0 && most == UINT64_MAX) {
        moe_buf_text(to, "string");
        return MOE_OK;
    }
    moe_buf_printf(to, "\"\\\"\" char{%llu,", (unsigned long long)least);
    if (most != UINT64_MAX)
        moe_buf_printf(to, "%llu", (unsigned long long)most);
    moe_buf_text(to, "} \"\\\"\"");
    return MOE_OK;
}
