/*
 * Numbers of JSON schemas: what lies between two bounds, digit by digit. With j digits behind the
 * point a number is a whole one of 10^-j, so that bounds are always those of whole numbers.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

enum {
    MAX_DIGITS = 15, /* in all: so many a double tells apart */
    MAX_PART = 9,    /* of them behind the point of a bound */
    USUAL_PART = 4,  /* that are written where bounds have fewer */
};

static const int64_t largest = 999999999999999; /* of MAX_DIGITS digits */

/* ---- Digits ---- */

/* Alternatives, begun by " |" but for the first. */
static void put_or(struct moe_buf *to, bool *any)
{
    moe_buf_text(to, *any ? " |" : "");
    *any = true;
}

/* Any n digits, the last `part` of which stand behind the point. */
static void put_any(struct moe_buf *to, size_t n, size_t part)
{
    if (n > part)
        moe_buf_printf(to, " [0-9]{%zu}", n - part);
    if (part > 0 && n >= part)
        moe_buf_text(to, " \".\"");
    if (part > 0 && n > 0)
        moe_buf_printf(to, " [0-9]{%zu}", n < part ? n : part);
}

/* n digits from low to high: the first that differs says which are the larger, and smaller. */
static void put_between(struct moe_buf *to, const char *low, const char *high, size_t n,
                        size_t part)
{
    static const char zeros[] = "0000000000000000", nines[] = "9999999999999999";
    bool any = false;
    for (; n > 0 && *low == *high; low++, high++, n--) {
        if (n == part)
            moe_buf_text(to, " \".\"");
        moe_buf_printf(to, " \"%c\"", *low);
    }
    if (n == 0)
        return;
    bool from_zero = strspn(low + 1, "0") >= n - 1, to_nine = strspn(high + 1, "9") >= n - 1;
    char first = (char)(*low + !from_zero), last = (char)(*high - !to_nine);
    if (n == part)
        moe_buf_text(to, " \".\"");
    moe_buf_text(to, " (");
    if (!from_zero) {
        put_or(to, &any);
        moe_buf_printf(to, " \"%c\"", *low);
        put_between(to, low + 1, nines, n - 1, part);
    }
    if (first <= last) {
        put_or(to, &any);
        moe_buf_printf(to, " [%c-%c]", first, last);
        put_any(to, n - 1, part);
    }
    if (!to_nine) {
        put_or(to, &any);
        moe_buf_printf(to, " \"%c\"", *high);
        put_between(to, zeros, high + 1, n - 1, part);
    }
    moe_buf_text(to, " )");
}

/* The numbers from low to high, not negative, of 10^-part: before the point no needless zeros. */
static void put_unsigned(struct moe_buf *to, int64_t low, int64_t high, size_t part, bool negative,
                         bool *any)
{
    char from[24], until[24];
    size_t n_low = (size_t)snprintf(from, sizeof from, "%0*" PRId64, (int)part + 1, low);
    size_t n_high = (size_t)snprintf(until, sizeof until, "%0*" PRId64, (int)part + 1, high);
    for (size_t n = n_low; n <= n_high; n++) {
        char least[24], most[24];
        memset(least, '0', n);
        memset(most, '9', n);
        least[0] = n > part + 1 ? '1' : '0';
        put_or(to, any);
        moe_buf_text(to, negative ? " \"-\"" : "");
        put_between(to, n == n_low ? from : least, n == n_high ? until : most, n, part);
    }
}

/* ---- Bounds ---- */

struct bound {
    bool is_there, exclusive;
    int64_t digits; /* the number is digits * 10^-part */
    int part;
};

static int read_bound(const struct schema *s, const char *key, const json_t *value, bool exclusive,
                      struct bound *b)
{
    char text[48];
    double number = json_number_value(value);
    if (!json_is_number(value))
        return schema_refuse(s, key, "a number was expected");
    snprintf(text, sizeof text, "%.*e", MAX_DIGITS - 1, number);
    char *e = strchr(text, 'e');
    if (!e || strtod(text, NULL) != number)
        return schema_refuse(s, key, "more than %d digits", MAX_DIGITS);
    int exponent = atoi(e + 1);
    int64_t digits = 0;
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digits = digits * 10 + (*p - '0');
    int part = MAX_DIGITS - 1 - exponent;
    for (; digits && digits % 10 == 0 && part > 0; part--)
        digits /= 10;
    if (digits == 0)
        part = 0;
    if (part < 0 || part > MAX_PART)
        return schema_refuse(s, key, "more than %d digits, or %d behind the point", MAX_DIGITS,
                             MAX_PART);
    *b = (struct bound){true, exclusive, number < 0 ? -digits : digits, part};
    return MOE_OK;
}

/* The bound of numbers of 10^-part: the least (or the most) that may be. */
static int64_t scaled(const struct bound *b, int part, bool least)
{
    int64_t unit = 1, whole;
    if (!b->is_there)
        return least ? -largest : largest;
    for (int i = b->part; i < part; i++)
        if (llabs(b->digits) > largest / (unit *= 10))
            return b->digits < 0 ? -largest : largest;
    if (part >= b->part) {
        whole = b->digits * unit;
        return b->exclusive ? whole + (least ? 1 : -1) : whole;
    }
    for (int i = part; i < b->part; i++)
        unit *= 10;
    whole = b->digits / unit; /* towards zero */
    if (b->digits % unit == 0)
        return b->exclusive ? whole + (least ? 1 : -1) : whole;
    return least ? whole + (b->digits > 0) : whole - (b->digits < 0);
}

/* minimum and exclusiveMinimum (or the like of maximum): the one that leaves less. The latter was
 * a switch of the former before 2019. */
static int read_bounds(const struct schema *s, const json_t *schema, bool least, struct bound *b)
{
    const char *key = least ? "minimum" : "maximum";
    const char *other = least ? "exclusiveMinimum" : "exclusiveMaximum";
    const json_t *value = schema_get(schema, key), *exclusive = schema_get(schema, other);
    int status = MOE_OK;
    struct bound second = {0};
    if (value)
        status = read_bound(s, key, value, json_is_true(exclusive), b);
    if (status == MOE_OK && exclusive && !json_is_boolean(exclusive))
        status = read_bound(s, other, exclusive, true, &second);
    if (status != MOE_OK || !second.is_there)
        return status;
    double a = json_number_value(value), c = json_number_value(exclusive);
    if (!b->is_there || (least ? c >= a : c <= a))
        *b = second;
    return MOE_OK;
}

/* ---- All ---- */

int schema_number(struct schema *s, const json_t *schema, bool integer, struct moe_buf *to)
{
    struct bound low = {0}, high = {0};
    const json_t *multiple = schema_get(schema, "multipleOf");
    bool any = false;
    int status = read_bounds(s, schema, true, &low);
    if (status == MOE_OK)
        status = read_bounds(s, schema, false, &high);
    if (status != MOE_OK)
        return status;
    if (multiple && json_number_value(multiple) != 1)
        return schema_refuse(s, "multipleOf", "only 1 is supported");
    integer = integer || multiple;
    if (!low.is_there && !high.is_there) {
        moe_buf_text(to, integer ? "integer" : "number");
        return MOE_OK;
    }
    int part = low.part > high.part ? low.part : high.part;
    part = integer ? 0 : part > USUAL_PART ? part : USUAL_PART;
    moe_buf_text(to, "(");
    for (int j = 0; j <= part; j++) {
        int64_t least = scaled(&low, j, true), most = scaled(&high, j, false);
        least = least < -largest ? -largest : least;
        most = most > largest ? largest : most;
        if (least < 0 && least <= most)
            put_unsigned(to, most < 0 ? -most : 1, -least, (size_t)j, true, &any);
        if (most >= 0 && least <= most)
            put_unsigned(to, least > 0 ? least : 0, most, (size_t)j, false, &any);
    }
    moe_buf_text(to, " )");
    if (!any)
        return schema_refuse(s, low.is_there ? "minimum" : "maximum",
                             "no number lies between the bounds");
    return MOE_OK;
}
