/* Values of JSON schemas as GBNF: texts, numbers, objects and lists. */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "grammar/automaton_internal.h"
#include "grammar/schema.h"

/* Texts that are a match of a pattern. */
static int whole_pattern(struct schema *s, const char *pattern, uint32_t *out)
{
    struct moe_buf whole = {0};
    moe_buf_printf(&whole, "^(?:%s)$", pattern);
    moe_buf_u8(&whole, 0);
    int status = whole.failed ? moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a pattern")
                              : schema_pattern(s, (const char *)whole.data, out);
    moe_buf_release(&whole);
    return status;
}

/* ---- Formats ----
 *
 * A subset where the whole would be long: what is written always has the format. No month has a day
 * too many; times have no leap second. */
#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define FOURTH "(0[48]|[2468][048]|[13579][26])"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-"   \
    "(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}" FOURTH "|" FOURTH "00)-02-29)"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]|[0-9])"
#define HEX "[0-9A-Fa-f]"
#define LABEL "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,3}\\.[a-z]{2,8}"

static const struct {
    const char *name, *pattern;
    const char *counted; /* instead, where lengths are counted beside it; NULL: the same */
} formats[] = {
    {"date", DATE, NULL},
    {"time", TIME, NULL},
    {"date-time", DATE "T" TIME, NULL},
    {"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}", NULL},
    {"ipv4", BYTE "(\\." BYTE "){3}", NULL},
    {"ipv6", HEX "{1,4}(:" HEX "{1,4}){7}", NULL},
    {"email", "[a-z0-9][a-z0-9_+-]{0,30}(\\.[a-z0-9_+-]{1,30})?@" HOST, NULL},
    {"hostname", HOST, NULL},
    {"uri", "https?://" HOST "(/[A-Za-z0-9._~-]{0,60}){0,8}",
     "https?://" HOST "(/[A-Za-z0-9._~-]*)*"},
};

/* The texts of a format that is known; *known: whether it is. Others are annotations. */
static int format_texts(struct schema *s, const json_t *format, uint64_t least, uint64_t most,
                        bool *known, uint32_t *out)
{
    const char *name = json_string_value(format);
    uint64_t shortest, longest;
    size_t i = 0;
    while (i < sizeof formats / sizeof formats[0] && strcmp(name ? name : "", formats[i].name) != 0)
        i++;
    *known = i < sizeof formats / sizeof formats[0];
    if (!*known)
        return MOE_OK;
    MOE_TRY(whole_pattern(s, formats[i].pattern, out));
    texts_lengths(s, *out, &shortest, &longest);
    return formats[i].counted && (shortest < least || longest > most)
               ? whole_pattern(s, formats[i].counted, out)
               : MOE_OK;
}

/* ---- Texts ---- */

static int number_texts(struct schema *s, const json_t *value, uint32_t *out);

enum {
    /* Beyond it, a length that is counted beside what may be in a text is not kept to the
     * character. */
    MOST_COUNTED = 4096,
    FAR = 256,
    MOST_BESIDE = 64, /* characters of a format that are counted beside a pattern */
};

/* All texts that may stand without quotes before what ends them: they do not hold it; where they
 * are counted far, so that each state costs much, not even its first two characters. */
static int texts_before_end(struct schema *s, bool far, uint32_t *out)
{
    size_t n = schema_end_length(s), most = 0;
    int length;
    for (int i = 0; i < 2 && most < n; i++, most += (size_t)length)
        moe_utf8_decode((const uint8_t *)s->until + most, n - most, &length);
    char *mark = moe_strndup(s->until, far ? most : n, s->err);
    if (!mark)
        return MOE_ERR_MEMORY;
    const uint32_t any = texts_any(s);
    *out =
        n == 0 ? any : texts_not(s, texts_cat(s, any, texts_cat(s, texts_literal(s, mark), any)));
    free(mark);
    return MOE_OK;
}

/* Takes the texts of the values that "not" lists out, or their numbers. */
static int leave_out(struct schema *s, const json_t *denied, bool numbers, uint32_t *out)
{
    const json_t *list = json_object_get(denied, "enum"), *one = json_object_get(denied, "const");
    const size_t n = one ? 1 : json_array_size(list);
    uint32_t *texts = moe_alloc(n + 1, sizeof *texts, s->err), n_texts = 0;
    int status = texts ? MOE_OK : MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const json_t *value = one ? one : json_array_get(list, i);
        status = schema_step(s, NULL, 1);
        if (!numbers && json_is_string(value))
            texts[n_texts++] = texts_literal(s, json_string_value(value));
        else if (status == MOE_OK && numbers && json_is_number(value))
            status = number_texts(s, value, &texts[n_texts++]);
    }
    if (status == MOE_OK && n_texts > 0)
        *out = texts_and(s, *out, texts_not(s, texts_one_of(s, texts, n_texts)));
    free(texts);
    return status;
}

int schema_texts_of(struct schema *s, const json_t *schema, uint32_t *out, const char **key)
{
    const json_t *format = schema_get(schema, "format"), *pattern = schema_get(schema, "pattern");
    const json_t *more = json_object_get(schema, SCHEMA_PATTERNS),
                 *denied = schema_get(schema, "not");
    uint64_t least = 0, most = UINT64_MAX, shortest, longest;
    uint32_t other = TEXTS_NONE;
    bool known = false, both = true;
    MOE_TRY(schema_count(s, schema, "minLength", &least));
    MOE_TRY(schema_count(s, schema, "maxLength", &most));
    if (least > most)
        return schema_refuse_all(s, "minLength", "more than there may be");
    if (pattern && !json_is_string(pattern))
        return schema_refuse(s, "pattern", "a text was expected");
    *key = pattern ? "pattern" : "format";
    *out = texts_any(s);
    if (pattern)
        MOE_TRY(schema_pattern(s, json_string_value(pattern), out));
    if (format)
        MOE_TRY(format_texts(s, format, least, most, &known, &other));
    if (known && pattern) {
        texts_lengths(s, other, &shortest, &longest);
        const bool keeps_lengths = shortest >= least && longest <= most;
        both = keeps_lengths || longest <= MOST_BESIDE;
        other = both ? texts_and(s, *out, other) : other;
        if (both)
            MOE_TRY(texts_are_there(s, other, &both));
        if (both && keeps_lengths) {
            least = 0;
            most = UINT64_MAX;
        } else if (!both) {
            schema_note(s, "format", "beside this pattern only the pattern is kept");
        }
    }
    *out = known && both ? other : *out;
    for (size_t i = 0; i < json_array_size(more); i++) {
        const json_t *one = json_array_get(more, i), *text = json_object_get(one, "pattern");
        bool other_known;
        other = texts_any(s);
        if (json_is_string(text))
            MOE_TRY(schema_pattern(s, json_string_value(text), &other));
        else
            MOE_TRY(
                format_texts(s, json_object_get(one, "format"), least, most, &other_known, &other));
        *out = texts_and(s, *out, other);
    }
    *key = pattern || known ? *key : denied ? "not" : most < UINT64_MAX ? "maxLength" : "minLength";
    const bool any = *out == texts_any(s);
    const bool bare = any && s->until && (least > 0 || most < UINT64_MAX || denied);
    if (bare)
        MOE_TRY(texts_before_end(s, most > FAR && most <= MOST_COUNTED, out));
    MOE_TRY(leave_out(s, denied, false, out));
    texts_lengths(s, *out, &shortest, &longest);
    if (most > MOST_COUNTED && longest > most && !texts_counts_itself(s, *out))
        most = bare ? UINT64_MAX : least > MOST_COUNTED ? least : MOST_COUNTED;
    *out = texts_and(s, *out, texts_of_length(s, least, most));
    return schema_step(s, NULL, 0);
}

int schema_string(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    uint32_t texts;
    const char *key;
    MOE_TRY(schema_texts_of(s, schema, &texts, &key));
    if (texts == texts_any(s)) {
        moe_buf_text(to, s->until ? "any" : "string");
        return MOE_OK;
    }
    schema_quote(s, to);
    moe_buf_text(to, " ");
    MOE_TRY(schema_texts(s, texts, key,
                         "no text follows it and what else is said of texts here: pattern, format, "
                         "lengths, not",
                         to));
    moe_buf_text(to, " ");
    schema_quote(s, to);
    return MOE_OK;
}

/*
 * Numbers of JSON schemas: those between two bounds, digit by digit, as a regular expression. A
 * number with j digits after the point is a whole one of 10^-j, so bounds are always whole numbers.
 */

enum {
    MAX_DIGITS = 15, /* in all: a double distinguishes as many */
    MAX_PART = 9,    /* after the point of a bound */
    USUAL_PART = 4,  /* written if bounds have fewer */
    MAX_MULTIPLE = 1000,
};

static const int64_t largest = 999999999999999; /* of MAX_DIGITS digits */

/* ---- Digits ---- */

/* Separates alternatives. */
static void put_or(struct moe_buf *to, bool *any)
{
    moe_buf_text(to, *any ? "|" : "");
    *any = true;
}

/* Writes any n digits, the last `part` of them after the point. */
static void put_any(struct moe_buf *to, size_t n, size_t part)
{
    if (n > part)
        moe_buf_printf(to, "[0-9]{%zu}", n - part);
    if (part > 0 && n >= part)
        moe_buf_text(to, "\\.");
    if (part > 0 && n > 0)
        moe_buf_printf(to, "[0-9]{%zu}", n < part ? n : part);
}

/* Writes n digits from low to high: the first that differs decides which are larger or smaller. */
static void put_between(struct moe_buf *to, const char *low, const char *high, size_t n,
                        size_t part)
{
    static const char zeros[] = "0000000000000000", nines[] = "9999999999999999";
    bool any = false;
    for (; n > 0 && *low == *high; low++, high++, n--) {
        if (n == part)
            moe_buf_text(to, "\\.");
        moe_buf_u8(to, (uint8_t)*low);
    }
    if (n == 0)
        return;
    bool from_zero = strspn(low + 1, "0") >= n - 1, to_nine = strspn(high + 1, "9") >= n - 1;
    char first = (char)(*low + !from_zero), last = (char)(*high - !to_nine);
    moe_buf_text(to, n == part ? "\\.(" : "(");
    if (!from_zero) {
        put_or(to, &any);
        moe_buf_u8(to, (uint8_t)*low);
        put_between(to, low + 1, nines, n - 1, part);
    }
    if (first <= last) {
        put_or(to, &any);
        moe_buf_printf(to, "[%c-%c]", first, last);
        put_any(to, n - 1, part);
    }
    if (!to_nine) {
        put_or(to, &any);
        moe_buf_u8(to, (uint8_t)*high);
        put_between(to, zeros, high + 1, n - 1, part);
    }
    moe_buf_text(to, ")");
}

/* Writes the non-negative numbers of 10^-part from low to high, without needless zeros before the
 * point. */
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
        moe_buf_text(to, negative ? "-" : "");
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
    double number;
    if (!moe_json_number(value, &number))
        return schema_refuse(s, key, "a number was expected");
    if ((strstr(key, "inimum") ? -number : number) > (double)largest)
        return MOE_OK; /* beyond what is written */
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
        return schema_refuse(s, key, "more than %d digits, or %d after the point", MAX_DIGITS,
                             MAX_PART);
    *b = (struct bound){true, exclusive, number < 0 ? -digits : digits, part};
    return MOE_OK;
}

/* The bound in units of 10^-part: the least (or the most) allowed. */
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

/* Reads minimum and exclusiveMinimum (or those of maximum) and takes the narrower. The latter was a
 * switch of the former before 2019. */
static int read_bounds(const struct schema *s, const json_t *schema, bool least, struct bound *b)
{
    const char *key = least ? "minimum" : "maximum";
    const char *other = least ? "exclusiveMinimum" : "exclusiveMaximum";
    const json_t *value = schema_get(schema, key), *exclusive = schema_get(schema, other);
    struct bound second = {0};
    if (value)
        MOE_TRY(read_bound(s, key, value, json_is_true(exclusive), b));
    if (exclusive && !json_is_boolean(exclusive))
        MOE_TRY(read_bound(s, other, exclusive, true, &second));
    if (!second.is_there)
        return MOE_OK;
    double a = json_number_value(value), c = json_number_value(exclusive);
    if (!b->is_there || (least ? c >= a : c <= a))
        *b = second;
    return MOE_OK;
}

/* ---- All ---- */

int schema_number_fits(struct schema *s, const json_t *schema, const json_t *value, bool *fits)
{
    const json_t *multiple = schema_get(schema, "multipleOf");
    const double number = json_number_value(value), of = json_number_value(multiple);
    struct bound low = {0}, high = {0};
    MOE_TRY(read_bounds(s, schema, true, &low));
    MOE_TRY(read_bounds(s, schema, false, &high));
    const double least = (double)low.digits / pow(10, low.part);
    const double most = (double)high.digits / pow(10, high.part);
    *fits = (!low.is_there || (low.exclusive ? number > least : number >= least)) &&
            (!high.is_there || (high.exclusive ? number < most : number <= most)) &&
            (of == 0 || fabs(number / of - round(number / of)) < 1e-9);
    return MOE_OK;
}

/* The multiples of a number above 0. */
static int multiples_of(struct schema *s, const struct bound *of, uint32_t *out)
{
    uint64_t whole = (uint64_t)of->digits, zeros = 0;
    for (; of->part == 0 && whole % 10 == 0; zeros++)
        whole /= 10;
    if (whole > MAX_MULTIPLE)
        return schema_refuse(
            s, "multipleOf",
            "multiples are kept of 1 to %d and these times powers of ten: leave it "
            "out, or list the values in an enum",
            MAX_MULTIPLE);
    *out = texts_any(s);
    if (whole > 1 || zeros > 0) {
        const uint32_t zero = texts_literal(s, "0");
        *out = texts_cat(s, texts_multiple(s, (uint32_t)whole, (uint32_t)of->part),
                         texts_repeat(s, zero, zeros, zeros));
        *out = zeros > 0 ? texts_or(s, *out, zero) : *out;
    }
    return MOE_OK;
}

/* All ways to write a number; none for one that is beyond what is written. */
static int number_texts(struct schema *s, const json_t *value, uint32_t *out)
{
    struct bound b = {0};
    char digits[24], pattern[64];
    *out = TEXTS_NONE;
    MOE_TRY(read_bound(s, "not", value, false, &b));
    if (!b.is_there)
        return MOE_OK;
    const int whole = snprintf(digits, sizeof digits, "%0*" PRId64, b.part + 1,
                               b.digits < 0 ? -b.digits : b.digits) -
                      b.part;
    snprintf(pattern, sizeof pattern, b.part ? "%s%.*s\\.%s0*" : "%s%.*s(\\.0+)?%s",
             b.digits < 0 ? "-" : "", whole, digits, digits + whole);
    return whole_pattern(s, pattern, out);
}

int schema_number(struct schema *s, const json_t *schema, bool integer, struct moe_buf *to)
{
    struct bound low = {0}, high = {0}, of = {0};
    const json_t *multiple = schema_get(schema, "multipleOf"), *denied = schema_get(schema, "not");
    struct moe_buf pattern = {0};
    uint32_t numbers = TEXTS_NONE, multiples = texts_any(s);
    bool any = false;
    MOE_TRY(read_bounds(s, schema, true, &low));
    MOE_TRY(read_bounds(s, schema, false, &high));
    if (multiple)
        MOE_TRY(read_bound(s, "multipleOf", multiple, false, &of));
    if (multiple && of.digits <= 0)
        return schema_refuse(s, "multipleOf", "a number from 1e-9 to 1e15 was expected");
    if (multiple)
        MOE_TRY(multiples_of(s, &of, &multiples));
    integer = integer || (multiple && of.part == 0);
    if (!low.is_there && !high.is_there && multiples == texts_any(s) && (integer || !multiple) &&
        !denied) {
        moe_buf_text(to, integer ? "integer" : "number");
        return MOE_OK;
    }
    int part = low.part > high.part ? low.part : high.part;
    part = integer ? 0 : multiple ? of.part : part > USUAL_PART ? part : USUAL_PART;
    for (int j = 0; j <= part; j++) {
        int64_t least = scaled(&low, j, true), most = scaled(&high, j, false);
        least = least < -largest ? -largest : least;
        most = most > largest ? largest : most;
        if (least < 0 && least <= most)
            put_unsigned(&pattern, most < 0 ? -most : 1, -least, (size_t)j, true, &any);
        if (most >= 0 && least <= most)
            put_unsigned(&pattern, least > 0 ? least : 0, most, (size_t)j, false, &any);
    }
    moe_buf_u8(&pattern, 0);
    int status = pattern.failed ? moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a number")
                 : any          ? whole_pattern(s, (const char *)pattern.data, &numbers)
                                : MOE_OK;
    moe_buf_release(&pattern);
    numbers = texts_and(s, numbers, multiples);
    if (status == MOE_OK && denied)
        status = leave_out(s, denied, true, &numbers);
    const char *key = multiple        ? "multipleOf"
                      : low.is_there  ? "minimum"
                      : high.is_there ? "maximum"
                                      : "not";
    return status == MOE_OK ? schema_texts(s, numbers, key,
                                           any && multiple ? "no multiple lies between the bounds"
                                                           : "no number lies between the bounds",
                                           to)
                            : status;
}

/* Objects and lists of JSON schemas. */

enum {
    MAX_NAME_DEPTH = 60, /* characters; nested groups of the grammar */
    MAX_NAME = 64,       /* characters of other properties' names, where these are described */
    MAX_OTHER_NAME = 40, /* characters behind the one that tells a name from all others */
    MAX_PATTERNS = 8,    /* patternProperties */
    MAX_IN_ROW = 4000,   /* below the automaton's ways */
};

/* ---- Objects ---- */

struct object {
    json_t *properties;     /* in order, own from describe_properties on; may be NULL */
    const json_t *required; /* a list, or NULL */
    json_t *names;          /* ... of names, as an object */
    const json_t *more;     /* schema of other properties; NULL: none allowed */
    const json_t *patterns; /* patternProperties, or NULL */
    const json_t *taken;    /* properties that no other one is named like */
    uint32_t allowed;       /* texts that names may be */
    uint64_t n, n_more;     /* UINT64_MAX: no limit */
    bool closed;            /* others are forbidden, not only not described */
    bool some;              /* at least one property */
    uint32_t rule;          /* number of its rules */
};

/* The character of a name at a byte; 0 at its end. */
static uint32_t character(const char *name, size_t at, int *length)
{
    size_t n = strnlen(name + at, 4);
    *length = 0;
    return n ? moe_utf8_decode((const uint8_t *)name + at, n, length) : 0;
}

/* The rest of names of other properties: none of the given ones, which are sorted and share `at`
 * bytes that were read. They depart from each of these at some character; until there no escapes
 * are written, which could spell the same name. */
static int other_names(struct schema *s, const char **names, size_t n, size_t at, int depth,
                       uint32_t *out)
{
    struct range *ranges = moe_alloc(n + 1, sizeof *ranges, s->err);
    size_t first = 0;
    uint32_t n_ranges = 0, rest;
    int length, status = ranges ? schema_step(s, NULL, n + 1) : MOE_ERR_MEMORY;
    while (first < n && !names[first][at])
        first++;
    *out = first ? TEXTS_NONE : TEXTS_EMPTY;
    for (size_t i = first, from; i < n && status == MOE_OK && depth < MAX_NAME_DEPTH;) {
        const uint32_t c = character(names[i], at, &length);
        for (from = i; i < n && character(names[i], at, &length) == c;)
            i++;
        ranges[n_ranges].low = ranges[n_ranges].high = c;
        character(names[from], at, &length);
        status = other_names(s, names + from, i - from, at + (size_t)length, depth + 1, &rest);
        rest = texts_cat(s, texts_class(s, &ranges[n_ranges++], 1, false, 0x10ffff), rest);
        *out = texts_or(s, *out, rest);
    }
    if (status == MOE_OK && depth < MAX_NAME_DEPTH)
        *out = texts_or(s, *out,
                        texts_cat(s, texts_class(s, ranges, n_ranges, true, 0x10ffff),
                                  texts_of_length(s, 0, MAX_OTHER_NAME)));
    free(ranges);
    return status;
}

/* Writes an alternative of other properties, if there is one: a name of these, and a value. */
static int other_property(struct schema *s, uint32_t names, const json_t *value, const char *key,
                          struct moe_buf *to)
{
    struct moe_buf all = {0};
    bool any, none = false;
    MOE_TRY(texts_are_there(s, names, &any));
    if (!any || schema_is_nothing(value))
        return MOE_OK;
    uint64_t from = schema_enter(s, key);
    moe_buf_text(&all, "\"\\\"\" ");
    int status = schema_texts(s, names, NULL, "", &all);
    moe_buf_text(&all, " \"\\\"\" ws \":\" ws ");
    if (status == MOE_OK)
        status = schema_if_any(s, value, &none, &all);
    schema_leave(s, from);
    moe_buf_text(to, to->size && !none ? " | " : "");
    moe_buf_append(to, all.data, none ? 0 : all.size);
    to->failed |= all.failed;
    moe_buf_release(&all);
    return status;
}

/* Makes a rule of a name and value that is none of the given properties. A name that follows two
 * patterns is not written. */
static int other_properties(struct schema *s, struct object *o)
{
    struct moe_buf all = {0};
    size_t n = json_object_size(o->taken), i = 0;
    const char **names = moe_alloc(n + 1, sizeof *names, s->err), *name;
    uint32_t allowed = TEXTS_NONE, rest, one, other;
    json_t *value, *ignored;
    const char *key;
    if (!names)
        return MOE_ERR_MEMORY;
    json_object_foreach((json_t *)o->taken, name, ignored) names[i++] = name;
    qsort(names, n, sizeof *names, moe_compare_texts);
    int status;
    MOE_STEP(other_names(s, names, n, 0, 0, &allowed));
    /* Names by a pattern may be long; others only as long as they are told from the given ones. */
    if (n == 0 && (o->patterns || o->allowed != texts_any(s)))
        allowed = texts_of_length(s, 0, MAX_NAME);
    allowed = texts_and(s, allowed, o->allowed);
    rest = allowed;
    json_object_foreach((json_t *)o->patterns, name, value)
    {
        MOE_STEP(schema_pattern(s, name, &one));
        rest = texts_and(s, rest, texts_not(s, one));
        one = texts_and(s, allowed, one);
        json_object_foreach((json_t *)o->patterns, key, ignored)
        {
            if (strcmp(key, name) == 0)
                continue;
            MOE_STEP(schema_pattern(s, key, &other));
            one = texts_and(s, one, texts_not(s, other));
        }
        MOE_STEP(other_property(s, one, value, "patternProperties", &all));
    }
    if (o->more)
        MOE_STEP(other_property(s, rest, o->more, "additionalProperties", &all));
    if (all.size == 0)
        o->n_more = 0;
    else
        moe_buf_printf(&s->rules, "more%u ::= ", o->rule);
    moe_buf_append(&s->rules, all.data, all.size);
    moe_buf_text(&s->rules, all.size ? "\n" : "");
    s->rules.failed |= all.failed;
out:
    moe_buf_release(&all);
    free(names);
    return status;
}

/* Makes a rule of the name and value of each given property. Leaves out what has no value. */
static int own_properties(struct schema *s, struct object *o)
{
    int status = MOE_OK;
    struct moe_buf value = {0};
    const char *name;
    json_t *property;
    void *next;
    uint64_t i = 0, from = schema_enter(s, "properties");
    json_object_foreach_safe(o->properties, next, name, property)
    {
        uint64_t at = schema_enter(s, name);
        json_t *text = json_string(name);
        bool none = false;
        moe_buf_clear(&value);
        status = schema_json(s, text, &value);
        json_decref(text);
        if (status == MOE_OK)
            status = schema_step(s, NULL, 20 + strlen(name) / 8);
        moe_buf_text(&value, " ws \":\" ws ");
        if (status == MOE_OK)
            status = json_object_get(o->names, name) ? s->value(s, property, &value)
                                                     : schema_if_any(s, property, &none, &value);
        MOE_STEP(status);
        schema_leave(s, at);
        if (none) {
            json_object_del(o->properties, name);
            o->n--;
            continue;
        }
        moe_buf_printf(&s->rules, "own%u-%llu ::= ", o->rule, (unsigned long long)i++);
        moe_buf_append(&s->rules, value.data, value.size);
        moe_buf_text(&s->rules, "\n");
        s->rules.failed |= value.failed;
    }
    schema_leave(s, from);
out:
    moe_buf_release(&value);
    return status;
}

/* Any of those that follow each other and may be left out can be the next, each a way of its own.
 */
static int check_left_out(const struct schema *s, const struct object *o)
{
    uint64_t in_row = 0;
    const char *name;
    json_t *ignored;
    json_object_foreach(o->properties, name, ignored)
    {
        in_row = json_object_get(o->names, name) ? 0 : in_row + 1;
        if (in_row > MAX_IN_ROW)
            return schema_refuse(s, "properties",
                                 "more than %d in a row may be left out: require some", MAX_IN_ROW);
    }
    return MOE_OK;
}

/* Writes rules for properties from i on: where none was written yet (first), and where one was
 * (next). Others follow the last. */
static void put_order(struct schema *s, const struct object *o)
{
    struct moe_buf *to = &s->rules;
    unsigned long long more = o->n_more, i = 0;
    const char *name;
    json_t *ignored;
    json_object_foreach(o->properties, name, ignored)
    {
        bool required = json_object_get(o->names, name), last = i + 1 == o->n;
        moe_buf_printf(to, "first%u-%llu ::= own%u-%llu ws next%u-%llu", o->rule, i, o->rule, i,
                       o->rule, i + 1);
        if (!required && !(last && o->some && !o->n_more))
            moe_buf_printf(to, " | first%u-%llu", o->rule, i + 1);
        moe_buf_printf(to, "\nnext%u-%llu ::= \",\" ws own%u-%llu ws next%u-%llu", o->rule, i,
                       o->rule, i, o->rule, i + 1);
        if (!required)
            moe_buf_printf(to, " | next%u-%llu", o->rule, i + 1);
        moe_buf_text(to, "\n");
        i++;
    }
    moe_buf_printf(to, "next%u-%llu ::= ", o->rule, i);
    if (more == UINT64_MAX)
        moe_buf_printf(to, "( \",\" ws more%u ws )*", o->rule);
    else if (more > 0)
        moe_buf_printf(to, "( \",\" ws more%u ws ){0,%llu}", o->rule, more);
    else
        moe_buf_text(to, "\"\"");
    moe_buf_printf(to, "\nfirst%u-%llu ::= ", o->rule, i);
    if (more > 0) {
        moe_buf_printf(to, "( more%u ws ", o->rule);
        if (more == UINT64_MAX)
            moe_buf_printf(to, "( \",\" ws more%u ws )*", o->rule);
        else
            moe_buf_printf(to, "( \",\" ws more%u ws ){0,%llu}", o->rule, more - 1);
        moe_buf_text(to, o->some ? " )\n" : " )?\n");
    } else {
        moe_buf_text(to, "\"\"\n");
    }
}

int schema_follow_patterns(struct schema *s, const json_t *patterns, const char *name,
                           json_t **value)
{
    const char *pattern;
    json_t *one;
    json_object_foreach((json_t *)patterns, pattern, one)
    {
        uint32_t texts;
        MOE_TRY(schema_pattern(s, pattern, &texts));
        if (!texts_take(s, texts, name))
            continue;
        json_t *both = *value ? json_pack("{s:[O,O]}", "allOf", *value, one) : json_incref(one);
        moe_allowance_take(s->allowance, 2 * SCHEMA_MEMORY);
        if (!both || json_array_append_new(s->kept, both) != 0)
            return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
        *value = both;
    }
    return MOE_OK;
}

/* Describes each property by all that is said of it: also those that are required but not
 * described, as others are. Leaves out what no value is allowed for, or whose name is not. */
static int describe_properties(struct schema *s, struct object *o)
{
    uint64_t n = json_object_size(o->properties) + 2 * json_array_size(o->required);
    MOE_TRY(schema_step(s, NULL, 4 * n));
    moe_allowance_take(s->allowance, 3 * SCHEMA_MEMORY + 2 * n * SCHEMA_MEMBER);
    json_t *all = o->properties ? json_copy(o->properties) : json_object(), *value;
    if (!all || json_array_append_new(s->kept, all) != 0 ||
        json_array_append_new(s->kept, o->names = json_object()) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; i < json_array_size(o->required); i++) {
        const char *name = json_string_value(json_array_get(o->required, i));
        if (!name)
            return schema_refuse(s, "required", "a list of names was expected");
        json_object_set_new(o->names, name, json_true());
        if (!json_object_get(all, name))
            json_object_set_new(all, name, json_null());
    }
    json_t *taken = json_copy(all);
    const char *key;
    void *next;
    if (!taken || json_array_append_new(s->kept, taken) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    json_object_foreach_safe(all, next, key, value)
    {
        const bool described = !json_is_null(value), required = json_object_get(o->names, key);
        json_t *said = described ? value : NULL;
        const bool allowed = o->allowed == texts_any(s) || texts_take(s, o->allowed, key);
        MOE_TRY(schema_follow_patterns(s, o->patterns, key, &said));
        if (!said && o->more)
            said = (json_t *)o->more;
        if (!allowed || (!said && o->closed) || (said && schema_is_nothing(said))) {
            if (required)
                return schema_refuse_all(s, "required", "'%.60s' is not an allowed property", key);
            json_object_del(all, key);
        } else if (said != value) {
            json_object_set(all, key, said ? said : json_true());
        }
    }
    MOE_TRY(schema_step(s, NULL, 1));
    o->properties = all;
    o->taken = taken;
    o->n = json_object_size(all);
    return MOE_OK;
}

/* Reads how many properties are allowed, as far as the order of rules can guarantee it. */
static int count_properties(struct schema *s, const json_t *schema, struct object *o)
{
    uint64_t least = 0, most = UINT64_MAX, n_required = 0;
    const char *name;
    json_t *ignored;
    MOE_TRY(schema_count(s, schema, "minProperties", &least));
    MOE_TRY(schema_count(s, schema, "maxProperties", &most));
    json_object_foreach(o->properties, name, ignored) n_required +=
        json_object_get(o->names, name) != NULL;
    if (least > n_required && least > 1)
        return schema_refuse(s, "minProperties",
                             "above 1 it is supported up to the number of required properties");
    if (most < o->n)
        return schema_refuse(s, "maxProperties",
                             "it is supported from the number of properties on");
    o->some = least > 0;
    o->n_more = !o->more && !o->patterns ? 0 : most == UINT64_MAX ? most : most - o->n;
    return MOE_OK;
}

/* Which names properties may have. Those of a list are properties themselves. */
static int name_properties(struct schema *s, const json_t *schema, struct object *o)
{
    const json_t *names = schema_follow(s, schema_get(schema, "propertyNames"));
    const json_t *list = json_object_get(names, "enum"), *one = json_object_get(names, "const");
    const json_t *type = json_object_get(names, "type");
    static const char *const refused[] = {"anyOf", "oneOf", "allOf", "not", "if"};
    const char *key;
    uint64_t from = schema_enter(s, "propertyNames");
    o->allowed = names && schema_is_nothing(names) ? TEXTS_NONE : texts_any(s);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (o->allowed != TEXTS_NONE && json_object_get(names, refused[i]))
            return schema_refuse(s, refused[i],
                                 "of names only a pattern, a format, lengths, an enum and a const "
                                 "are supported");
    if (type && strcmp(json_string_value(type) ? json_string_value(type) : "", "string") != 0)
        return schema_refuse(s, "type", "names are of type string");
    if (json_is_object(names) && o->allowed != TEXTS_NONE)
        MOE_TRY(schema_texts_of(s, names, &o->allowed, &key));
    schema_leave(s, from);
    if (!list && !one)
        return MOE_OK;
    const size_t n = list ? json_array_size(list) : 1;
    json_t *all = o->properties ? json_copy(o->properties) : json_object(), *value;
    json_t *given = json_object();
    moe_allowance_take(s->allowance, 2 * SCHEMA_MEMORY + 3 * n * SCHEMA_MEMBER);
    if (!all || json_array_append_new(s->kept, all) != 0 || !given ||
        json_array_append_new(s->kept, given) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(list ? json_array_get(list, i) : one);
        json_t *said = name ? json_object_get(all, name) : NULL;
        MOE_TRY(schema_step(s, NULL, 8));
        if (!name || (one && !json_equal(one, list ? json_array_get(list, i) : one)))
            continue;
        json_object_set_new(given, name, json_true());
        MOE_TRY(schema_follow_patterns(s, o->patterns, name, &said));
        if (said || o->more || !o->closed)
            json_object_set(all, name, said ? said : o->more ? (json_t *)o->more : json_true());
    }
    void *next;
    json_object_foreach_safe(all, next, key, value)
    {
        if (!json_object_get(given, key))
            json_object_set_new(all, key, json_false());
    }
    o->properties = all;
    o->more = NULL;
    o->closed = true;
    o->patterns = NULL;
    return MOE_OK;
}

int schema_object(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    struct object o = {.properties = (json_t *)schema_get(schema, "properties"),
                       .required = schema_get(schema, "required"),
                       .more = schema_get(schema, "additionalProperties"),
                       .patterns = schema_get(schema, "patternProperties"),
                       .rule = s->n_rules++};
    if (o.properties && !json_is_object(o.properties))
        return schema_refuse(s, "properties", "an object was expected");
    if (o.required && !json_is_array(o.required))
        return schema_refuse(s, "required", "a list was expected");
    if (o.patterns && (!json_is_object(o.patterns) || json_object_size(o.patterns) > MAX_PATTERNS))
        return schema_refuse(s, "patternProperties",
                             "an object of at most %d patterns was expected", MAX_PATTERNS);
    o.closed = o.more && schema_is_nothing(o.more);
    o.more = o.closed ? NULL : o.more;
    MOE_TRY(name_properties(s, schema, &o));
    bool free_form = !o.properties && !o.more && !o.closed && !o.patterns;
    MOE_TRY(describe_properties(s, &o));
    if (free_form) /* says nothing of properties: any */
        o.more = json_true();
    MOE_TRY(count_properties(s, schema, &o));
    MOE_TRY(check_left_out(s, &o));
    MOE_TRY(own_properties(s, &o));
    if (o.n_more > 0)
        MOE_TRY(other_properties(s, &o));
    if (o.some && o.n == 0 && o.n_more == 0)
        return schema_refuse_all(s, "minProperties", "no property is allowed");
    put_order(s, &o);
    moe_buf_printf(to, "\"{\" ws first%u-0 \"}\"", o.rule);
    return MOE_OK;
}

/* ---- Lists ---- */

/* Writes the values of one item; *none: it has none, and nothing is written. */
static int item(struct schema *s, const json_t *schema, const char *key, int64_t i, bool *none,
                struct moe_buf *to)
{
    uint64_t from = i < 0 ? schema_enter(s, key) : schema_enter_item(s, key, (unsigned long long)i);
    MOE_TRY(schema_if_any(s, schema, none, to));
    schema_leave(s, from);
    return MOE_OK;
}

/* Writes the items after the first ones: least to most of them, each after a comma unless it is the
 * very first. */
static void put_rest(struct moe_buf *to, const struct moe_buf *rest, uint64_t least, uint64_t most,
                     bool comma)
{
    if (most == 0)
        return;
    if (!comma) {
        moe_buf_text(to, least ? " " : " ( ");
        moe_buf_append(to, rest->data, rest->size);
        moe_buf_text(to, " ws");
    }
    uint64_t before = comma ? 0 : 1;
    moe_buf_text(to, " ( \",\" ws ");
    moe_buf_append(to, rest->data, rest->size);
    moe_buf_printf(to, " ws ){%llu,", (unsigned long long)(least > before ? least - before : 0));
    if (most != UINT64_MAX)
        moe_buf_printf(to, "%llu", (unsigned long long)(most - before));
    moe_buf_text(to, comma || least ? "}" : "} )?");
}

enum {
    ANY_ORDER = 8,      /* values: 2^8 sets of those that are written already */
    MAX_UNIQUE = 20000, /* rules of more values, which are written in their order */
};

/* Writes a state of a list of values that differ: which of them may follow (any order: `from` has a
 * bit of each written one; else: those from that one on), and after how many. */
static void put_unique_state(struct schema *s, const struct moe_buf *values, size_t n,
                             uint64_t least, uint64_t most, uint32_t rule, uint32_t from,
                             uint64_t written)
{
    struct moe_buf *to = &s->rules;
    const bool any_order = n <= ANY_ORDER;
    bool any = written >= least;
    moe_buf_printf(to, "r%u-%u-%llu ::=%s", rule, from, (unsigned long long)written,
                   any ? " \"\"" : "");
    for (uint32_t i = any_order ? 0 : from; i < n && written < most; i++) {
        const uint32_t next = any_order ? from | 1u << i : i + 1;
        if (any_order ? from >> i & 1 : i > from || least > written + n - i)
            continue;
        moe_buf_text(to, any ? " | " : " ");
        any = true;
        moe_buf_text(to, written ? "\",\" ws " : "");
        moe_buf_append(to, values[i].data, values[i].size);
        moe_buf_printf(to, " ws r%u-%u-%llu", rule, next, (unsigned long long)written + 1);
    }
    if (!any_order && from + 1 < n && written < most && least <= written + n - from - 1)
        moe_buf_printf(to, " | r%u-%u-%llu", rule, from + 1, (unsigned long long)written);
    moe_buf_text(to, any ? "\n" : " []\n");
}

/* Writes lists of values that differ. */
static int put_unique(struct schema *s, const json_t *values, uint64_t least, uint64_t most,
                      struct moe_buf *to)
{
    const size_t n = json_array_size(values);
    const uint32_t rule = s->n_rules++;
    most = most < n ? most : n;
    if (least > n)
        return schema_refuse_all(s, "minItems", "only %zu values differ", n);
    if (n > ANY_ORDER && (n + 1) * (most + 1) > MAX_UNIQUE)
        return schema_refuse(s, "uniqueItems", "of %zu values only few may be taken: give maxItems",
                             n);
    struct moe_buf *texts = moe_alloc(n + 1, sizeof *texts, s->err);
    int status = texts ? MOE_OK : MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        status = schema_json(s, json_array_get(values, i), &texts[i]);
        if (texts[i].size > 24)
            schema_make_rule(s, &texts[i]);
        s->rules.failed |= texts[i].failed;
    }
    const uint32_t states = n <= ANY_ORDER ? 1u << n : (uint32_t)n + 1;
    for (uint32_t from = 0; from < states && status == MOE_OK; from++) {
        const uint64_t bits = (uint64_t)__builtin_popcount(from);
        uint64_t written = n <= ANY_ORDER ? bits : 0;
        const uint64_t last = n <= ANY_ORDER ? bits : from < most ? from : most;
        for (; written <= last && written <= most && status == MOE_OK; written++) {
            put_unique_state(s, texts, n, least, most, rule, from, written);
            status = schema_step(s, NULL, 4 + (n <= ANY_ORDER ? n : 2));
        }
    }
    for (size_t i = 0; texts && i < n; i++)
        moe_buf_release(&texts[i]);
    free(texts);
    moe_buf_printf(to, "\"[\" ws r%u-0-0 \"]\"", rule);
    return status;
}

int schema_array(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *items = schema_get(schema, "items"), *first = schema_get(schema, "prefixItems");
    const char *rest_key = "items", *first_key = "prefixItems";
    uint64_t least = 0, most = UINT64_MAX, n_first;
    struct moe_buf rest = {0};
    MOE_TRY(schema_count(s, schema, "maxItems", &most));
    MOE_TRY(schema_count(s, schema, "minItems", &least));
    if (least > most)
        return schema_refuse_all(s, "minItems", "more than there may be");
    if (json_is_true(schema_get(schema, "uniqueItems")) && most > 1) {
        json_t *values = json_array();
        if (!values || json_array_append_new(s->kept, values) != 0)
            return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
        if (!first && s->few_values(s, items, values, 0))
            return put_unique(s, values, least, most, to);
        if (s->allowance->status == MOE_OK)
            return schema_refuse(s, "uniqueItems",
                                 "that items differ is kept where they are an enum, constants or "
                                 "booleans: list the values, or leave it out");
    }
    if (!first && json_is_array(items)) { /* as written before 2020 */
        first = items;
        first_key = "items";
        rest_key = "additionalItems";
        items = schema_get(schema, rest_key);
    }
    if (first && !json_is_array(first))
        return schema_refuse(s, first_key, "a list was expected");
    n_first = json_array_size(first) < most ? json_array_size(first) : most;
    if ((items && schema_is_nothing(items)) || (first && !items && least <= n_first))
        most = n_first; /* other items are not described and not written */
    if (least > most)
        return schema_refuse_all(s, "minItems", "more than there may be");
    int status = MOE_OK;
    bool none = false;
    moe_buf_text(to, "\"[\" ws");
    for (uint64_t i = 0; i < n_first && status == MOE_OK; i++) {
        const uint64_t size = to->size;
        moe_buf_text(to, i ? " \",\" ws " : " ");
        status = item(s, json_array_get(first, i), first_key, (int64_t)i, &none, to);
        if (none) { /* the list ends before it */
            to->size = size;
            most = n_first = i;
        } else {
            moe_buf_text(to, " ws");
        }
    }
    if (status == MOE_OK && most > n_first) {
        status = item(s, items ? items : json_true(), rest_key, -1, &none, &rest);
        most = none ? n_first : most;
    }
    if (status == MOE_OK && most < least)
        status = schema_refuse_all(s, "minItems", "more than there may be");
    if (status == MOE_OK)
        put_rest(to, &rest, least > n_first ? least - n_first : 0,
                 most == UINT64_MAX ? most : most - n_first, n_first > 0);
    moe_buf_text(to, " \"]\"");
    to->failed |= rest.failed;
    moe_buf_release(&rest);
    return status;
}
