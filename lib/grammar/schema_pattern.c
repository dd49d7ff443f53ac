/*
 * Patterns of JSON schemas: regular expressions as GBNF, in quotation marks and with JSON's
 * escapes, or as they are, where a class then lacks the character that may end the text. Classes
 * are those that ECMAScript and Python agree on, so letters and digits are ASCII's. Lookaround,
 * back references and Unicode properties are refused.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "grammar/automaton_internal.h"
#include "grammar/schema.h"

enum { MAX_DEPTH = 60, MAX_RANGES = 512 };

struct pattern {
    struct schema *s;
    const char *at, *end;
    struct moe_buf *to;
    int depth;
    uint64_t least, most; /* characters that what was read last may have; UINT64_MAX: any number */
    /* The last item's repetitions, and their place in `to`; items of the whole pattern. */
    uint64_t repetition_at, repeat_least, repeat_most;
    uint32_t n_items;
    struct range ranges[MAX_RANGES];
    uint32_t n;
    bool single; /* a class of one character, which the pattern names */
};

static int pattern_refuse(const struct pattern *p, const char *what)
{
    return schema_refuse(p->s, "pattern", "%s (at '%.20s')", what, p->at);
}

/* ---- Characters ---- */

static int add_range(struct pattern *p, uint32_t low, uint32_t high)
{
    if (p->n == MAX_RANGES)
        return pattern_refuse(p, "a class of too many characters");
    p->ranges[p->n++] = (struct range){low, high};
    return MOE_OK;
}

static int by_low(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* Writes the characters from low to high as in JSON: some need escapes, a few have short ones. */
static void put_escaped(struct moe_buf *to, uint32_t low, uint32_t high, bool *any)
{
    static const char shorts[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    for (; low <= high && (low < 0x20 || low == '"' || low == '\\'); low++) {
        const char *e = shorts;
        while (*e && (uint32_t)*e != low)
            e += 2;
        moe_buf_text(to, *any ? " | " : "");
        if (*e)
            moe_buf_printf(to, "\"\\\\\\U%08X\"", (unsigned)e[1]);
        else if (low > 0)
            moe_buf_printf(to, "\"\\\\u00%02X\"", low);
        else
            moe_buf_text(to, "[]"); /* NUL is never written */
        *any = true;
    }
    if (low > high)
        return;
    uint32_t end = low < '"' && high >= '"'     ? '"' - 1
                   : low < '\\' && high >= '\\' ? '\\' - 1
                                                : high;
    moe_buf_text(to, *any ? " | " : "");
    moe_buf_printf(to, "[\\U%08X-\\U%08X]", low, end);
    *any = true;
    if (end < high)
        put_escaped(to, end + 1, high, any);
}

/* Writes them as they are, but for NUL and `out`. */
static void put_bare(struct moe_buf *to, uint32_t low, uint32_t high, uint32_t out, bool *any)
{
    if (low <= out && out <= high) {
        if (out > low)
            put_bare(to, low, out - 1, UINT32_MAX, any);
        if (out < high)
            put_bare(to, out + 1, high, UINT32_MAX, any);
        return;
    }
    low += low == 0;
    if (low > high)
        return;
    moe_buf_text(to, *any ? " | " : "");
    moe_buf_printf(to, "[\\U%08X-\\U%08X]", low, high);
    *any = true;
}

static void put_range(const struct pattern *p, uint32_t low, uint32_t high, bool *any)
{
    const char *until = p->s->until;
    int length;
    if (!until)
        put_escaped(p->to, low, high, any);
    else
        put_bare(p->to, low, high,
                 p->single ? UINT32_MAX
                           : moe_utf8_decode((const uint8_t *)until, strlen(until), &length),
                 any);
}

/* Leaves out surrogates: a range ends before them and continues after. */
static void put_characters(const struct pattern *p, uint32_t low, uint32_t high, bool *any)
{
    if (low < 0xd800)
        put_range(p, low, high < 0xd800 ? high : 0xd7ff, any);
    if (high > 0xdfff)
        put_range(p, low > 0xdfff ? low : 0xe000, high, any);
}

/* Writes a choice of the class's characters. */
static void put_class(struct pattern *p, bool negated, uint32_t most)
{
    bool any = false;
    uint32_t next = 0;
    p->single = !negated && p->n == 1 && p->ranges[0].low == p->ranges[0].high;
    qsort(p->ranges, p->n, sizeof *p->ranges, by_low);
    moe_buf_text(p->to, "( ");
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t low = p->ranges[i].low > next ? p->ranges[i].low : next;
        if (negated && p->ranges[i].low > next)
            put_characters(p, next, p->ranges[i].low - 1, &any);
        if (!negated && p->ranges[i].high >= low)
            put_characters(p, low, p->ranges[i].high, &any);
        next = p->ranges[i].high >= next ? p->ranges[i].high + 1 : next;
    }
    if (negated && next <= most)
        put_characters(p, next, most, &any);
    moe_buf_text(p->to, any ? " )" : "[] )");
}

/* ---- Escapes ---- */

static const struct {
    char name;
    struct range ranges[8];
    int n;
} classes[] = {
    {'d', {{'0', '9'}}, 1},
    {'w', {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, 4},
    {'s', {{'\t', '\r'}, {' ', ' '}}, 2},
    {'D', {{1, '0' - 1}, {'9' + 1, 0x7f}}, 2},
    {'W', {{1, '0' - 1}, {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'`', '`'}, {'z' + 1, 0x7f}}, 5},
    {'S',
     {{1, 8},
      {14, 0x1b},
      {'!', 0x7e},
      {0xa1, 0x167f},
      {0x2030, 0x205e},
      {0x3001, 0xfefe},
      {0xff00, 0x10ffff}},
     7},
};

static int read_hex(struct pattern *p, int digits, uint32_t *c)
{
    char text[9] = "", *end;
    strncat(text, p->at, (size_t)digits);
    *c = (uint32_t)strtoul(text, &end, 16);
    if ((int)strlen(text) < digits || *end || strspn(text, "0123456789abcdefABCDEF") < strlen(text))
        return pattern_refuse(p, "hexadecimal digits were expected");
    p->at += digits;
    return *c >= 0xd800 && *c <= 0xdfff ? pattern_refuse(p, "half of a pair of units") : MOE_OK;
}

/* Reads what follows a backslash: a character in *c, or a class, which is added; *c is then
 * UINT32_MAX. */
static int read_escape(struct pattern *p, uint32_t *c)
{
    static const char simple[] = "t\tn\nr\rf\fv\v";
    char name = *++p->at;
    *c = UINT32_MAX;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (classes[i].name == name) {
            p->at++;
            for (int k = 0; k < classes[i].n; k++)
                MOE_TRY(add_range(p, classes[i].ranges[k].low, classes[i].ranges[k].high));
            return MOE_OK;
        }
    for (const char *e = simple; *e; e += 2)
        if (*e == name) {
            p->at++;
            *c = (uint32_t)e[1];
            return MOE_OK;
        }
    if (name == 'x' || name == 'u') {
        p->at++;
        return read_hex(p, name == 'x' ? 2 : 4, c);
    }
    if (!name || (name >= '0' && name <= '9') || (name >= 'a' && name <= 'z') ||
        (name >= 'A' && name <= 'Z'))
        return pattern_refuse(p, "this escape is not supported");
    int length;
    *c = moe_utf8_decode((const uint8_t *)p->at, (uint64_t)(p->end - p->at), &length);
    p->at += length;
    return MOE_OK;
}

static int read_one(struct pattern *p, uint32_t *c)
{
    int length;
    if (*p->at == '\\')
        return read_escape(p, c);
    if (!*p->at)
        return pattern_refuse(p, "it ends too early");
    *c = moe_utf8_decode((const uint8_t *)p->at, (uint64_t)(p->end - p->at), &length);
    p->at += length;
    return MOE_OK;
}

static int read_class(struct pattern *p)
{
    bool negated = *++p->at == '^', shorthand = false;
    p->at += negated;
    p->n = 0;
    while (*p->at != ']') {
        uint32_t low, high;
        if (*p->at == '[' && p->at[1] == ':')
            return pattern_refuse(p, "named classes are not supported");
        MOE_TRY(read_one(p, &low));
        shorthand |= low == UINT32_MAX;
        if (low == UINT32_MAX)
            continue;
        high = low;
        if (*p->at == '-' && p->at[1] && p->at[1] != ']') {
            p->at++;
            MOE_TRY(read_one(p, &high));
            if (high == UINT32_MAX || high < low)
                return pattern_refuse(p, "a range whose end is not a character after its start");
        }
        MOE_TRY(add_range(p, low, high));
    }
    p->at++;
    /* Implementations disagree on what \w and the like exclude beyond ASCII. */
    put_class(p, negated, shorthand ? 0x7f : 0x10ffff);
    p->least = p->most = 1;
    return MOE_OK;
}

/* ---- Sequences ---- */

static int read_alternatives(struct pattern *p, bool outermost);

static int read_group(struct pattern *p)
{
    if (p->at[1] == '?' && p->at[2] != ':')
        return pattern_refuse(p, "lookaround, named groups and options are not supported");
    p->at += p->at[1] == '?' ? 3 : 1;
    if (++p->depth > MAX_DEPTH)
        return pattern_refuse(p, "too many nested groups");
    moe_buf_text(p->to, "( ");
    MOE_TRY(read_alternatives(p, false));
    moe_buf_text(p->to, " )");
    p->depth--;
    if (*p->at != ')')
        return pattern_refuse(p, "')' was expected");
    p->at++;
    return MOE_OK;
}

static int read_item(struct pattern *p)
{
    uint32_t c;
    p->n = 0;
    p->least = p->most = 1;
    switch (*p->at) {
    case '(':
        return read_group(p);
    case '[':
        return read_class(p);
    case '.':
        p->at++;
        p->ranges[p->n++] = (struct range){'\n', '\n'};
        p->ranges[p->n++] = (struct range){'\r', '\r'};
        p->ranges[p->n++] = (struct range){0x2028, 0x2029};
        put_class(p, true, 0x10ffff);
        return MOE_OK;
    case '^':
    case '$':
        return pattern_refuse(p, "^ and $ are only supported at the ends of the pattern");
    case '*':
    case '+':
    case '?':
    case '{':
        return pattern_refuse(p, "there is nothing to repeat");
    }
    MOE_TRY(read_one(p, &c));
    if (c != UINT32_MAX)
        MOE_TRY(add_range(p, c, c));
    put_class(p, false, 0x10ffff);
    return MOE_OK;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    return a == 0 || b == 0                                                     ? 0
           : a == UINT64_MAX || b == UINT64_MAX || !moe_mul_u64(a, b, &product) ? UINT64_MAX
                                                                                : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Notes how often the item is there that was read last. */
static void note_repetition(struct pattern *p, uint64_t least, uint64_t most)
{
    p->repeat_least = least;
    p->repeat_most = most;
    p->least = times(p->least, least);
    p->most = times(p->most, most);
}

/* Writes repetitions in GBNF; lazy or not, the texts are the same. */
static int read_repetition(struct pattern *p)
{
    p->repetition_at = p->to->size;
    p->repeat_least = p->repeat_most = 1;
    if (*p->at == '{') {
        char *end;
        unsigned long least = strtoul(p->at + 1, &end, 10), most = least;
        bool starts = p->at[1] >= '0' && p->at[1] <= '9', comma = *end == ',';
        if (comma && end[1] >= '0' && end[1] <= '9')
            most = strtoul(end + 1, &end, 10);
        else if (comma)
            most = SCHEMA_MAX_COUNT, end++;
        if (!starts || *end != '}' || least > most || most > SCHEMA_MAX_COUNT)
            return pattern_refuse(p, "{m}, {m,} or {m,n} with counts up to 100000 was expected");
        moe_buf_append(p->to, p->at, (uint64_t)(end + 1 - p->at));
        p->at = end + 1;
        note_repetition(p, least, comma && end[-1] == ',' ? UINT64_MAX : most);
    } else if (*p->at == '*' || *p->at == '+' || *p->at == '?') {
        note_repetition(p, *p->at == '+', *p->at == '?' ? 1 : UINT64_MAX);
        moe_buf_append(p->to, p->at++, 1);
    } else {
        return MOE_OK;
    }
    if (*p->at == '+')
        return pattern_refuse(p, "possessive repetitions are not supported");
    p->at += *p->at == '?';
    return MOE_OK;
}

/* A pattern that is not anchored may have any text beside it. */
static int read_sequence(struct pattern *p, bool outermost)
{
    bool from_start = outermost && *p->at == '^', to_end = false;
    uint64_t least = 0, most = outermost && !from_start ? UINT64_MAX : 0;
    p->at += from_start;
    const char *beside = p->s->until ? "plain* " : "char* ";
    moe_buf_text(p->to, outermost && !from_start ? beside : "");
    while (*p->at && *p->at != '|' && *p->at != ')') {
        to_end = outermost && *p->at == '$' && (!p->at[1] || p->at[1] == '|');
        p->at += to_end;
        if (to_end)
            break;
        MOE_TRY(schema_step(p->s, p->to, 1));
        MOE_TRY(read_item(p));
        MOE_TRY(read_repetition(p));
        p->n_items++;
        least = plus(least, p->least);
        most = plus(most, p->most);
        moe_buf_text(p->to, " ");
    }
    moe_buf_text(p->to, outermost && !to_end ? beside : "");
    p->least = least;
    p->most = outermost && !to_end ? UINT64_MAX : most;
    return MOE_OK;
}

static int read_alternatives(struct pattern *p, bool outermost)
{
    MOE_TRY(read_sequence(p, outermost));
    uint64_t least = p->least, most = p->most;
    while (*p->at == '|') {
        p->at++;
        moe_buf_text(p->to, " | ");
        MOE_TRY(read_sequence(p, outermost));
        least = p->least < least ? p->least : least;
        most = p->most > most ? p->most : most;
        p->n_items += 2; /* more than one in any case */
    }
    p->least = least;
    p->most = most;
    return MOE_OK;
}

/* Holds a pattern that was read to a length: as it is, or by the repetitions of its only item. */
static int hold_length(struct pattern *p, const char *pattern, uint64_t least, uint64_t most)
{
    if (p->least >= least && p->most <= most)
        return MOE_OK;
    size_t n = strlen(pattern);
    bool anchored = n > 1 && pattern[0] == '^' && pattern[n - 1] == '$';
    least = least > p->repeat_least ? least : p->repeat_least;
    most = most < p->repeat_most ? most : p->repeat_most;
    /* One item of one character: its repetitions are the length. */
    if (!anchored || p->n_items != 1 || p->least != p->repeat_least || p->most != p->repeat_most ||
        least > most)
        return schema_refuse(p->s, "pattern",
                             "that it keeps the length is not seen: write lengths into it, as "
                             "{1,64}");
    p->to->size = p->repetition_at;
    moe_buf_printf(p->to, "{%llu,", (unsigned long long)least);
    if (most != UINT64_MAX)
        moe_buf_printf(p->to, "%llu", (unsigned long long)most);
    moe_buf_text(p->to, "} ");
    return MOE_OK;
}

int schema_pattern(struct schema *s, const char *pattern, uint64_t least, uint64_t most,
                   struct moe_buf *to)
{
    struct pattern p = {.s = s, .at = pattern, .end = pattern + strlen(pattern), .to = to};
    schema_quote(s, to);
    moe_buf_text(to, " ( ");
    int status = read_alternatives(&p, true);
    if (status == MOE_OK && !*p.at)
        status = hold_length(&p, pattern, least, most);
    moe_buf_text(to, " ) ");
    schema_quote(s, to);
    if (status == MOE_OK && *p.at)
        status = pattern_refuse(&p, "')' without '('");
    return status;
}
