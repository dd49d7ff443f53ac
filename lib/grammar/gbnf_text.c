#include "grammar/gbnf_text.h"

#include <string.h>

#include "base/text.h"

/* ---- Where ---- */

/* Goes on from the place that was looked for last, where that lies before. */
void gbnf_place(struct reader *r, const char *at, uint32_t *line, uint32_t *column)
{
    if (!r->seen || r->seen > at) {
        r->seen = r->text;
        r->line = r->column = 1;
    }
    for (; r->seen < at; r->seen++) {
        if (*r->seen == '\n') {
            r->line++;
            r->column = 1;
        } else if (((uint8_t)*r->seen & 0xc0) != 0x80) {
            r->column++;
        }
    }
    *line = r->line;
    *column = r->column;
}

int gbnf_fail(struct reader *r, const char *at, int status, const char *what)
{
    uint32_t line, column;
    gbnf_place(r, at, &line, &column);
    return moe_fail(r->err, status, "%s: line %u, column %u: %s", r->name, line, column, what);
}

int gbnf_wrong(struct reader *r, const char *what)
{
    return gbnf_fail(r, r->at, MOE_ERR_FORMAT,
                     r->at < r->end ? what : "the grammar ends too early");
}

void gbnf_skip(struct reader *r, bool newlines)
{
    while (r->at < r->end) {
        if (*r->at == '#')
            while (r->at < r->end && *r->at != '\n' && *r->at != '\r')
                r->at++;
        else if (*r->at == ' ' || *r->at == '\t' ||
                 (newlines && (*r->at == '\n' || *r->at == '\r')))
            r->at++;
        else
            break;
    }
}

/* ---- Characters ---- */

static int read_hex(struct reader *r, int digits, uint32_t *c)
{
    *c = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        char d = r->at < r->end ? *r->at : 0;
        uint32_t v = d >= '0' && d <= '9'   ? (uint32_t)(d - '0')
                     : d >= 'a' && d <= 'f' ? (uint32_t)(d - 'a' + 10)
                     : d >= 'A' && d <= 'F' ? (uint32_t)(d - 'A' + 10)
                                            : 16;
        if (v > 15)
            return gbnf_wrong(r, "a hexadecimal digit was expected");
        *c = *c << 4 | v;
    }
    if (*c > 0x10ffff || (*c >= 0xd800 && *c <= 0xdfff))
        return gbnf_fail(r, r->at - digits, MOE_ERR_FORMAT, "there is no such character");
    return MOE_OK;
}

int gbnf_character(struct reader *r, uint32_t *c)
{
    static const char escapes[] = "t\tr\rn\n\\\\\"\"[[]]--";
    int length;
    if (r->at == r->end)
        return gbnf_wrong(r, "");
    if (*r->at != '\\') {
        *c = moe_utf8_decode((const uint8_t *)r->at, (uint64_t)(r->end - r->at), &length);
        if (*c == 0xfffd && length == 1)
            return gbnf_wrong(r, "a byte that is no UTF-8");
        r->at += length;
        return MOE_OK;
    }
    if (++r->at == r->end)
        return gbnf_wrong(r, "");
    char kind = *r->at++;
    if (kind == 'x' || kind == 'u' || kind == 'U')
        return read_hex(r, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, c);
    for (const char *e = escapes; *e; e += 2)
        if (*e == kind) {
            *c = (uint32_t)e[1];
            return MOE_OK;
        }
    return gbnf_fail(r, r->at - 2, MOE_ERR_FORMAT,
                     "an escape that is none of \\x \\u \\U \\t \\r \\n \\\\ \\\" \\[ \\] \\-");
}
