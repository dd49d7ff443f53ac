/* Text: numbers, sizes, UTF-8, and lines fitted through points. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Parses a number; strtod also takes hexadecimal, "inf", "nan" and leading blanks, which users do
 * not mean. */
static bool parse_number(const char *text, double *value, const char **end)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '.' && text[0] != '-' && text[0] != '+')
        return false;
    const char *digits = text + (text[0] == '-' || text[0] == '+');
    if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X'))
        return false;
    char *stop;
    double v = strtod(text, &stop);
    if (stop == text || !isfinite(v))
        return false;
    *value = v;
    *end = stop;
    return true;
}

/* The factor of a unit of `n` letters, 0 for an unknown one. */
static double unit_factor(const char *unit, size_t n)
{
    static const char prefixes[] = "KMGTP";
    if (n == 0 || (n == 1 && toupper((unsigned char)unit[0]) == 'B'))
        return 1;
    const char *prefix = strchr(prefixes, toupper((unsigned char)unit[0]));
    if (!prefix)
        return 0;
    double power = (double)(prefix - prefixes + 1);
    if (n == 1 || (n == 3 && strncasecmp(unit + 1, "iB", 2) == 0))
        return pow(1024, power);
    if (n == 2 && toupper((unsigned char)unit[1]) == 'B')
        return pow(1000, power);
    return 0;
}

bool moe_parse_bytes(const char *text, uint64_t *out)
{
    double value;
    const char *unit;
    if (!parse_number(text, &value, &unit))
        return false;
    double bytes = value * unit_factor(unit, strlen(unit));
    if (!(bytes >= 1 && bytes <= 9e18))
        return false;
    *out = (uint64_t)bytes;
    return true;
}

bool moe_parse_rate(const char *text, double *out)
{
    double value;
    const char *unit;
    if (!parse_number(text, &value, &unit))
        return false;
    size_t n = strlen(unit);
    if (n >= 2 && strcmp(unit + n - 2, "/s") == 0)
        n -= 2;
    double factor = unit_factor(unit, n);
    if (factor == 0 || !(value * factor > 0) || !isfinite(value * factor))
        return false;
    *out = value * factor;
    return true;
}

bool moe_parse_share(const char *text, double *out)
{
    double value;
    const char *end;
    if (!parse_number(text, &value, &end) || value < 0)
        return false;
    if (strcmp(end, "%") == 0)
        value /= 100;
    else if (*end)
        return false;
    *out = value;
    return true;
}

bool moe_parse_u64(const char *text, uint64_t *out)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end || errno)
        return false;
    *out = v;
    return true;
}

bool moe_parse_double(const char *text, double *out)
{
    const char *end;
    double value;
    if (!parse_number(text, &value, &end) || *end)
        return false;
    *out = value;
    return true;
}

/* to: rounds hundredths of a unit. */
static char *format_bytes(uint64_t bytes, double (*to)(double), char out[32])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(out, 32, "%u B", (unsigned)bytes);
        return out;
    }
    double value = (double)bytes / 1024;
    int unit = 0;
    while (value >= 1023.995 && unit < 5) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, "%.2f %s", to ? to(100 * value) / 100 : value, units[unit]);
    return out;
}

char *moe_format_bytes(uint64_t bytes, char out[32])
{
    return format_bytes(bytes, NULL, out);
}

char *moe_format_at_least(uint64_t bytes, char out[32])
{
    return format_bytes(bytes, ceil, out);
}

char *moe_format_at_most(uint64_t bytes, char out[32])
{
    return format_bytes(bytes, floor, out);
}

/* The length that a character's first byte announces; 0 if it starts none. */
static int announced_length(uint8_t first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first < 0xe0)
        return 2;
    if ((first & 0xf0) == 0xe0)
        return 3;
    return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

/* Whether `second` may follow `first`: rules out overlong forms, surrogates and planes above 16. */
static bool second_allowed(uint8_t first, uint8_t second)
{
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return second >= low && second <= high;
}

/* How many bytes of text[0..n) continue the character at its start, up to its announced length. */
static int fitting(const uint8_t *text, uint64_t n, int length)
{
    int i = 1;
    if (length > 1 && n > 1 && second_allowed(text[0], text[1]))
        for (i = 2; i < length && (uint64_t)i < n && (text[i] & 0xc0) == 0x80;)
            i++;
    return i;
}

uint32_t moe_utf8_decode(const uint8_t *text, uint64_t n, int *length)
{
    int want = announced_length(text[0]);
    if (want == 0 || (uint64_t)want > n || fitting(text, n, want) != want) {
        *length = 1;
        return 0xfffd;
    }
    *length = want;
    if (want == 1)
        return text[0];
    uint32_t c = text[0] & (0xffu >> (want + 1));
    for (int i = 1; i < want; i++)
        c = c << 6 | (text[i] & 0x3f);
    return c;
}

int moe_utf8_encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)(c | (0xf00u >> length & 0xff));
    return length;
}

uint64_t moe_utf8_complete(const uint8_t *text, uint64_t n)
{
    /* Only the last three bytes can belong to an unfinished character. */
    for (uint64_t back = 1; back <= 3 && back <= n; back++) {
        const uint8_t *start = text + n - back;
        int length = announced_length(*start);
        if (length > (int)back && fitting(start, back, length) == (int)back)
            return n - back;
        if (length)
            break;
    }
    return n;
}

bool moe_utf8_valid(const uint8_t *text, uint64_t n)
{
    for (uint64_t i = 0; i < n;) {
        int length;
        if (moe_utf8_decode(text + i, n - i, &length) == 0xfffd && length == 1)
            return false;
        i += (uint64_t)length;
    }
    return true;
}

int moe_text_visible(const uint8_t *text, uint64_t n, int *length, uint8_t out[MOE_VISIBLE_BYTES])
{
    static const char digits[] = "0123456789ABCDEF";
    uint32_t c = moe_utf8_decode(text, n, length);
    bool no_text = c == 0xfffd && *length == 1;
    if (no_text)
        c = text[0];
    if (!no_text && c != 0x7f && (c >= 0xa0 || (c >= 0x20 && c < 0x80) || c == '\n' || c == '\t')) {
        memcpy(out, text, (size_t)*length);
        return *length;
    }
    memcpy(out, (const uint8_t[]){'<', (uint8_t)digits[c >> 4], (uint8_t)digits[c & 15], '>'}, 4);
    return 4;
}

/* ---- A line through points ---- */

bool moe_ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

bool moe_all_blank(const char *text, uint64_t n)
{
    uint64_t i = 0;
    while (i < n && moe_is_blank(text[i]))
        i++;
    return i == n;
}

int moe_compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void moe_line_add(struct moe_line *line, double x, double y)
{
    if (!(y > 0) || !(x > 0) || line->n == MOE_LINE_POINTS ||
        (line->n > 0 && !(x > line->x[line->n - 1])))
        return;
    line->x[line->n] = x;
    line->y[line->n++] = y;
}

double moe_line_at(const struct moe_line *line, double at)
{
    const double *x = line->x, *y = line->y;
    if (line->n == 0)
        return NAN;
    if (at <= x[0])
        return y[0];
    if (line->n == 1)
        return y[0] * at / x[0];
    uint32_t i = 1;
    while (i + 1 < line->n && at > x[i])
        i++;
    double slope = (y[i] - y[i - 1]) / (x[i] - x[i - 1]);
    if (at > x[i] && slope < 0)
        slope = 0;
    return at > x[i] ? y[i] + slope * (at - x[i]) : y[i - 1] + slope * (at - x[i - 1]);
}

void moe_line_stretch(struct moe_line *line, double by)
{
    for (uint32_t i = 0; i < line->n; i++)
        line->y[i] *= by;
}
