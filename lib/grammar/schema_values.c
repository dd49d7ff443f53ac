/* Values of JSON schemas as GBNF: texts, numbers, objects and lists. */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "fmt/json.h"
#include "grammar/schema.h"

/* ---- Formats ----
 *
 * A subset where the whole would be long: what is written always has the format. No month has a day
 * too many; times have no leap second. */
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
    uint64_t least, most; /* characters */
} formats[] = {
    {"date", DATE, 10, 10},
    {"time", TIME, 9, 21},
    {"date-time", DATE " \"T\" " TIME, 20, 32},
    {"uuid", "hex{8} \"-\" hex{4} \"-\" hex{4} \"-\" hex{4} \"-\" hex{12}", 36, 36},
    {"ipv4", BYTE " ( \".\" " BYTE " ){3}", 7, 15},
    {"ipv6", "hex{1,4} ( \":\" hex{1,4} ){7}", 15, 39},
    {"email", "[a-z0-9] [a-z0-9_+-]{0,30} ( \".\" [a-z0-9_+-]{1,30} ){0,2} \"@\" " HOST, 6, 234},
    {"hostname", HOST, 4, 140},
    {"uri", "\"http\" \"s\"? \"://\" " HOST " ( \"/\" [A-Za-z0-9._~-]{0,60} ){0,8}", 11, 636},
};

/* Writes a format that is known; *known: whether it is. Others are annotations. */
static int put_format(struct schema *s, const json_t *format, uint64_t least, uint64_t most,
                      bool *known, struct moe_buf *to)
{
    const char *name = json_string_value(format);
    *known = false;
    for (size_t i = 0; name && i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i].name, name) != 0)
            continue;
        *known = true;
        if (formats[i].least < least || formats[i].most > most)
            return schema_refuse(s, formats[i].least < least ? "minLength" : "maxLength",
                                 "a %s has %llu to %llu characters here", name,
                                 (unsigned long long)formats[i].least,
                                 (unsigned long long)formats[i].most);
        schema_quote(s, to);
        moe_buf_printf(to, " %s ", formats[i].grammar);
        schema_quote(s, to);
    }
    return MOE_OK;
}

/* ---- All ---- */

enum { MOST_COUNTED = 4096 }; /* characters of a text without quotes */

/* Writes rules that count the characters of a text without quotes: those behind the first character
 * of what it must not hold (b), and all others (a). */
static int put_counted(struct schema *s, uint64_t least, uint64_t most, struct moe_buf *to)
{
    int length = 0;
    uint64_t n = strlen(s->until), end = most;
    const uint8_t *until = (const uint8_t *)s->until;
    const uint32_t first = moe_utf8_decode(until, n, &length), rule = s->n_rules++;
    const bool single = (uint64_t)length == n;
    const uint32_t second =
        single ? first : moe_utf8_decode(until + length, n - (uint64_t)length, &length);
    if (most > MOST_COUNTED) {
        most = UINT64_MAX;
        end = least;
    }
    MOE_TRY(schema_step(s, to, 8 * end));
    for (uint64_t i = 0; i <= end; i++)
        for (char state = 'a'; state <= (single ? 'a' : 'b'); state++) {
            const unsigned long long next = i + 1;
            moe_buf_printf(&s->rules, "r%u-%llu%c ::=", rule, next - 1, state);
            if (i == end && most == UINT64_MAX) {
                moe_buf_text(&s->rules, state == 'a' ? " any" : " more");
            } else if (i == end) {
                moe_buf_text(&s->rules, " \"\"");
            } else {
                moe_buf_printf(&s->rules, " %s[^\\x00\\U%08X", i >= least ? "\"\" | " : "", first);
                if (state == 'b')
                    moe_buf_printf(&s->rules, "\\U%08X", second);
                moe_buf_printf(&s->rules, "] r%u-%llua", rule, next);
                if (!single)
                    moe_buf_printf(&s->rules, " | [\\U%08X] r%u-%llub", first, rule, next);
            }
            moe_buf_text(&s->rules, "\n");
        }
    moe_buf_printf(to, "r%u-0a", rule);
    return MOE_OK;
}

int schema_string(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *format = schema_get(schema, "format"), *pattern = schema_get(schema, "pattern");
    uint64_t least = 0, most = UINT64_MAX;
    MOE_TRY(schema_count(s, schema, "minLength", &least));
    MOE_TRY(schema_count(s, schema, "maxLength", &most));
    if (least > most)
        return schema_refuse(s, "minLength", "more than there may be");
    if (pattern && !json_is_string(pattern))
        return schema_refuse(s, "pattern", "a text was expected");
    bool known = false;
    if (format && !pattern)
        MOE_TRY(put_format(s, format, least, most, &known, to));
    if (known)
        return MOE_OK;
    if (pattern)
        return schema_pattern(s, json_string_value(pattern), least, most, to);
    if (least == 0 && most == UINT64_MAX) {
        moe_buf_text(to, s->until ? "any" : "string");
        return MOE_OK;
    }
    if (s->until)
        return put_counted(s, least, most, to);
    moe_buf_printf(to, "\"\\\"\" char{%llu,", (unsigned long long)least);
    if (most != UINT64_MAX)
        moe_buf_printf(to, "%llu", (unsigned long long)most);
    moe_buf_text(to, "} \"\\\"\"");
    return MOE_OK;
}

/*
 * Numbers of JSON schemas: those between two bounds, digit by digit. A number with j digits after
 * the point is a whole one of 10^-j, so bounds are always whole numbers.
 */

enum {
    MAX_DIGITS = 15, /* in all: a double distinguishes as many */
    MAX_PART = 9,    /* after the point of a bound */
    USUAL_PART = 4,  /* written if bounds have fewer */
};

static const int64_t largest = 999999999999999; /* of MAX_DIGITS digits */

/* ---- Digits ---- */

/* Separates alternatives by " |". */
static void put_or(struct moe_buf *to, bool *any)
{
    moe_buf_text(to, *any ? " |" : "");
    *any = true;
}

/* Writes any n digits, the last `part` of them after the point. */
static void put_any(struct moe_buf *to, size_t n, size_t part)
{
    if (n > part)
        moe_buf_printf(to, " [0-9]{%zu}", n - part);
    if (part > 0 && n >= part)
        moe_buf_text(to, " \".\"");
    if (part > 0 && n > 0)
        moe_buf_printf(to, " [0-9]{%zu}", n < part ? n : part);
}

/* Writes n digits from low to high: the first that differs decides which are larger or smaller. */
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

int schema_number(struct schema *s, const json_t *schema, bool integer, struct moe_buf *to)
{
    struct bound low = {0}, high = {0};
    const json_t *multiple = schema_get(schema, "multipleOf");
    bool any = false;
    int digits = -1; /* after the point, at most; -1: as many as usual */
    MOE_TRY(read_bounds(s, schema, true, &low));
    MOE_TRY(read_bounds(s, schema, false, &high));
    for (double unit = 1; multiple && digits < MAX_PART; unit /= 10) {
        digits++;
        if (fabs(json_number_value(multiple) - unit) < unit * 1e-9)
            break;
        if (digits == MAX_PART)
            return schema_refuse(s, "multipleOf", "only 1, 0.1, 0.01 and so on are supported");
    }
    integer = integer || digits == 0;
    if (!low.is_there && !high.is_there && !integer && digits > 0) {
        moe_buf_printf(to, "\"-\"? ( \"0\" | [1-9] [0-9]{0,%d} ) ( \".\" [0-9]{1,%d} )?",
                       MAX_DIGITS - digits - 1, digits);
        return MOE_OK;
    }
    if (!low.is_there && !high.is_there) {
        moe_buf_text(to, integer ? "integer" : "number");
        return MOE_OK;
    }
    int part = low.part > high.part ? low.part : high.part;
    part = integer ? 0 : digits >= 0 ? digits : part > USUAL_PART ? part : USUAL_PART;
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

/* Objects and lists of JSON schemas. */

enum {
    MAX_NAME_DEPTH = 60, /* characters; nested groups of the grammar */
    MAX_IN_ROW = 4000,   /* below the automaton's ways */
};

/* ---- Objects ---- */

struct object {
    const json_t *properties; /* in order; may be NULL */
    const json_t *required;   /* a list, or NULL */
    json_t *names;            /* ... of names, as an object */
    const json_t *more;       /* schema of other properties; NULL: none allowed */
    const char *pattern;      /* that the names of these follow; NULL: any */
    uint64_t n, n_more;       /* UINT64_MAX: no limit */
    bool some;                /* at least one property */
    uint32_t rule;            /* number of its rules */
};

/* The character of a name at a byte; 0 at its end. */
static uint32_t character(const char *name, size_t at, int *length)
{
    size_t n = strnlen(name + at, 4);
    *length = 0;
    return n ? moe_utf8_decode((const uint8_t *)name + at, n, length) : 0;
}

/* Writes the rest of names of other properties: none of the given ones, which are sorted and share
 * `at` written bytes. They depart from each of these at some character; until there no escapes are
 * written, which could spell the same name. */
static int other_names(struct schema *s, const char **names, size_t n, size_t at, int depth)
{
    struct moe_buf *to = &s->rules;
    size_t first = 0;
    int length;
    MOE_TRY(schema_step(s, to, n + 1));
    while (first < n && !names[first][at])
        first++;
    moe_buf_text(to, "( [^\"\\\\\\x00-\\x1F");
    for (size_t i = first; i < n; i++)
        moe_buf_printf(to, "\\U%08X", character(names[i], at, &length));
    moe_buf_text(to, first ? "] rest" : "] rest | \"\\\"\"");
    for (size_t i = first; i < n;) {
        size_t from = i;
        uint32_t c = character(names[i], at, &length);
        while (i < n && character(names[i], at, &length) == c)
            i++;
        if (c == '"' || c == '\\' || c < 0x20 || depth == MAX_NAME_DEPTH)
            continue; /* would be written with escapes, or is long enough to leave out */
        character(names[from], at, &length);
        moe_buf_printf(to, " | \"\\U%08X\" ", c);
        MOE_TRY(other_names(s, names + from, i - from, at + (size_t)length, depth + 1));
    }
    moe_buf_text(to, " )");
    return MOE_OK;
}

/* Makes a rule of a name and value that is none of the given properties. */
static int other_property(struct schema *s, const struct object *o)
{
    struct moe_buf value = {0};
    size_t n = json_object_size(o->properties), i = 0;
    const char **names = malloc((n + 1) * sizeof *names), *name;
    json_t *ignored;
    if (!names)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: names of properties");
    json_object_foreach((json_t *)o->properties, name, ignored) names[i++] = name;
    qsort(names, n, sizeof *names, moe_compare_texts);
    uint64_t from = schema_enter(s, o->pattern ? "patternProperties" : "additionalProperties");
    int status = s->value(s, o->more, &value);
    schema_leave(s, from);
    moe_buf_printf(&s->rules, "more%u ::= ", o->rule);
    if (status == MOE_OK && o->pattern)
        status = schema_pattern(s, o->pattern, 0, UINT64_MAX, &s->rules);
    if (!o->pattern)
        moe_buf_text(&s->rules, "\"\\\"\" ");
    if (status == MOE_OK && !o->pattern)
        status = other_names(s, names, n, 0, 0);
    moe_buf_text(&s->rules, " ws \":\" ws ");
    moe_buf_append(&s->rules, value.data, value.size);
    moe_buf_text(&s->rules, "\n");
    s->rules.failed |= value.failed;
    moe_buf_release(&value);
    free(names);
    return status;
}

/* Makes a rule of the name and value of each given property. */
static int own_properties(struct schema *s, const struct object *o)
{
    int status = MOE_OK;
    struct moe_buf value = {0};
    const char *name;
    json_t *property;
    uint64_t i = 0, from = schema_enter(s, "properties");
    json_object_foreach((json_t *)o->properties, name, property)
    {
        uint64_t at = schema_enter(s, name);
        json_t *text = json_string(name);
        moe_buf_clear(&value);
        if (status == MOE_OK)
            status = schema_step(s, NULL, 20 + strlen(name) / 8);
        if (status == MOE_OK)
            status = s->value(s, property, &value);
        moe_buf_printf(&s->rules, "own%u-%llu ::= ", o->rule, (unsigned long long)i++);
        if (status == MOE_OK)
            status = schema_json(s, text, &s->rules);
        moe_buf_text(&s->rules, " ws \":\" ws ");
        moe_buf_append(&s->rules, value.data, value.size);
        moe_buf_text(&s->rules, "\n");
        s->rules.failed |= value.failed;
        json_decref(text);
        schema_leave(s, at);
    }
    schema_leave(s, from);
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
    json_object_foreach((json_t *)o->properties, name, ignored)
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
    json_object_foreach((json_t *)o->properties, name, ignored)
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

/* Describes properties that are required but not described as others are. */
static int describe_required(struct schema *s, struct object *o)
{
    uint64_t n = json_object_size(o->properties) + 2 * json_array_size(o->required);
    MOE_TRY(schema_step(s, NULL, 4 * n));
    moe_allowance_take(s->allowance, 2 * SCHEMA_MEMORY + n * SCHEMA_MEMBER);
    json_t *all = o->properties ? json_copy((json_t *)o->properties) : json_object();
    if (!all || json_array_append_new(s->kept, all) != 0 ||
        json_array_append_new(s->kept, o->names = json_object()) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; i < json_array_size(o->required); i++) {
        const char *name = json_string_value(json_array_get(o->required, i));
        if (!name)
            return schema_refuse(s, "required", "a list of names was expected");
        json_object_set_new(o->names, name, json_true());
        if (json_object_get(all, name))
            continue;
        if (json_is_false(o->more))
            return schema_refuse(s, "required", "'%.60s' is not an allowed property", name);
        json_object_set(all, name, o->more ? (json_t *)o->more : json_true());
    }
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(all, next, key, value)
    {
        if (schema_is_nothing(value) && !json_object_get(o->names, key))
            json_object_del(all, key);
    }
    o->properties = all;
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
    json_object_foreach((json_t *)o->properties, name, ignored) n_required +=
        json_object_get(o->names, name) != NULL;
    if (least > n_required && least > 1)
        return schema_refuse(s, "minProperties",
                             "above 1 it is supported up to the number of required properties");
    if (most < o->n)
        return schema_refuse(s, "maxProperties",
                             "it is supported from the number of properties on");
    o->some = least > 0;
    o->n_more = !o->more ? 0 : most == UINT64_MAX ? most : most - o->n;
    if (o->some && o->n == 0 && o->n_more == 0)
        return schema_refuse(s, "minProperties", "no property is allowed");
    return MOE_OK;
}

/* Names of properties: any text; one of a list, which then are the properties; or, where none are
 * named, those that follow a pattern. */
static int name_properties(struct schema *s, const json_t *schema, struct object *o)
{
    const json_t *names = schema_get(schema, "propertyNames"),
                 *list = json_object_get(names, "enum");
    const json_t *patterns = schema_get(schema, "patternProperties");
    bool any_text = json_is_true(names) || json_object_size(names) == 0;
    const json_t *type = json_object_get(names, "type");
    any_text |= json_object_size(names) == 1 && json_string_length(type) == 6;
    if (names && !any_text && (!json_is_array(list) || o->properties || patterns))
        return schema_refuse(s, "propertyNames",
                             "only a type or, where none are described, an enum "
                             "is supported");
    if (patterns && (o->properties || json_object_size(patterns) != 1))
        return schema_refuse(s, "patternProperties",
                             "only one is supported, and no properties beside it");
    if (patterns) {
        o->pattern = json_object_iter_key(json_object_iter((json_t *)patterns));
        o->more = json_object_get(patterns, o->pattern);
    }
    if (!names || any_text)
        return MOE_OK;
    json_t *all = json_object();
    moe_allowance_take(s->allowance, json_array_size(list) * SCHEMA_MEMBER);
    if (!all || json_array_append_new(s->kept, all) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        MOE_TRY(schema_step(s, NULL, 8));
        if (name)
            json_object_set(all, name, o->more ? (json_t *)o->more : json_true());
    }
    o->properties = all;
    o->more = json_false();
    return MOE_OK;
}

int schema_object(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    struct object o = {.properties = schema_get(schema, "properties"),
                       .required = schema_get(schema, "required"),
                       .more = schema_get(schema, "additionalProperties"),
                       .rule = s->n_rules++};
    if (o.properties && !json_is_object(o.properties))
        return schema_refuse(s, "properties", "an object was expected");
    if (o.required && !json_is_array(o.required))
        return schema_refuse(s, "required", "a list was expected");
    MOE_TRY(name_properties(s, schema, &o));
    if (o.more && schema_is_nothing(o.more))
        o.more = json_false();
    bool free_form = !o.properties && !o.more;
    MOE_TRY(describe_required(s, &o));
    if (free_form) /* says nothing of properties: any */
        o.more = json_true();
    if (json_is_false(o.more))
        o.more = NULL;
    MOE_TRY(count_properties(s, schema, &o));
    MOE_TRY(check_left_out(s, &o));
    MOE_TRY(own_properties(s, &o));
    if (o.n_more > 0)
        MOE_TRY(other_property(s, &o));
    put_order(s, &o);
    moe_buf_printf(to, "\"{\" ws first%u-0 \"}\"", o.rule);
    return MOE_OK;
}

/* ---- Lists ---- */

/* Writes the values of one item. */
static int item(struct schema *s, const json_t *schema, const char *key, int64_t i,
                struct moe_buf *to)
{
    uint64_t from = i < 0 ? schema_enter(s, key) : schema_enter_item(s, key, (unsigned long long)i);
    MOE_TRY(s->value(s, schema, to));
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

int schema_array(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *items = schema_get(schema, "items"), *first = schema_get(schema, "prefixItems");
    const char *rest_key = "items", *first_key = "prefixItems";
    uint64_t least = 0, most = UINT64_MAX, n_first;
    struct moe_buf rest = {0};
    MOE_TRY(schema_count(s, schema, "maxItems", &most));
    if (json_is_true(schema_get(schema, "uniqueItems")) && most > 1)
        return schema_refuse(s, "uniqueItems", "it is not supported for more than one item");
    if (!first && json_is_array(items)) { /* as written before 2020 */
        first = items;
        first_key = "items";
        rest_key = "additionalItems";
        items = schema_get(schema, rest_key);
    }
    if (first && !json_is_array(first))
        return schema_refuse(s, first_key, "a list was expected");
    int status = schema_count(s, schema, "minItems", &least);
    if (status != MOE_OK)
        return status;
    n_first = json_array_size(first) < most ? json_array_size(first) : most;
    if ((items && schema_is_nothing(items)) || (first && !items && least <= n_first))
        most = n_first; /* other items are not described and not written */
    if (least > most)
        return schema_refuse(s, "minItems", "more than there may be");
    moe_buf_text(to, "\"[\" ws");
    for (uint64_t i = 0; i < n_first && status == MOE_OK; i++) {
        moe_buf_text(to, i ? " \",\" ws " : " ");
        status = item(s, json_array_get(first, i), first_key, (int64_t)i, to);
        moe_buf_text(to, " ws");
    }
    if (status == MOE_OK && most > n_first) {
        status = item(s, items ? items : json_true(), rest_key, -1, &rest);
        put_rest(to, &rest, least > n_first ? least - n_first : 0,
                 most == UINT64_MAX ? most : most - n_first, n_first > 0);
    }
    moe_buf_text(to, " \"]\"");
    to->failed |= rest.failed;
    moe_buf_release(&rest);
    return status;
}
