#include "fmt/scalar.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* A word that every YAML reader takes for a text. */
static bool is_plain(const char *text)
{
    static const char *const taken[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n",
                                        "Null", "True", "False", "Yes", "No", "On", "Off", "Y", "N",
                                        "NULL", "TRUE", "FALSE", "YES", "NO", "ON", "OFF"};
    if (!((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z')))
        return false;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strcmp(text, taken[i]) == 0)
            return false;
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") ==
           strlen(text);
}

/* Characters that YAML takes as they are and that do not end a line; JSON that our programs wrote
 * must be YAML too. */
static bool is_shown(uint32_t c)
{
    return c >= 0x20 && c != 0x7f && (c < 0x80 || c >= 0xa0) && c != 0x2028 && c != 0x2029 &&
           c != 0xfeff && c != 0xfffe && c != 0xffff;
}

/* `other` stands for a byte that is no UTF-8. */
static void put_quoted(struct moe_buf *out, const uint8_t *p, uint64_t left, bool json,
                       const char *other)
{
    int n;
    moe_buf_text(out, "\"");
    for (; left; p += n, left -= (uint64_t)n) {
        uint32_t c = moe_utf8_decode(p, left, &n);
        if (c == '"' || c == '\\')
            moe_buf_printf(out, "\\%c", (int)c);
        else if (c == 0xfffd && n == 1)
            moe_buf_text(out, other);
        else if (is_shown(c))
            moe_buf_append(out, p, (uint64_t)n);
        else
            moe_buf_printf(out, json || c >= 0x100 ? "\\u%04" PRIx32 : "\\x%02" PRIx32, c);
    }
    moe_buf_text(out, "\"");
}

void moe_scalar_text(struct moe_buf *out, const char *text, bool json)
{
    if (!json && is_plain(text))
        moe_buf_text(out, text);
    else
        put_quoted(out, (const uint8_t *)text, strlen(text), json, "?");
}

void moe_scalar_bytes(struct moe_buf *out, const void *bytes, uint64_t n)
{
    put_quoted(out, bytes, n, true, "\xef\xbf\xbd");
}

void moe_scalar_double(struct moe_buf *out, double value)
{
    char text[40];
    /* Fewest digits would make 1e+01 of ten. */
    bool is_small_whole = fabs(value) < 1e6 && value == floor(value);
    for (int digits = is_small_whole ? 6 : 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    moe_buf_text(out, text);
}
