/*
 * Patterns of JSON schemas: regular expressions as sets of texts. Classes are those that ECMAScript
 * and Python agree on, so letters and digits are ASCII's; where what must not follow is described,
 * all that either of them has. Of texts without quotes, a class lacks the character that may end
 * them. Back references, Unicode properties and what looks behind are refused.
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
    int depth;
    bool started; /* there may be characters before */
    bool began;   /* the text begins here */
    bool wide;    /* of texts that are left out: classes have what they may have */
    bool negated; /* within [^...] */
    struct range ranges[MAX_RANGES];
    uint32_t n;
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

/* The class that was read. Of texts without quotes it lacks the character that may end them, unless
 * it is a character that the pattern names. */
static uint32_t class_of(struct pattern *p, bool negated, uint32_t most)
{
    const char *until = p->s->until;
    const bool single = !negated && p->n == 1 && p->ranges[0].low == p->ranges[0].high;
    int length;
    const uint32_t class = texts_class(p->s, p->ranges, p->n, negated, most);
    p->n = 0;
    if (!until || single || p->wide)
        return class;
    struct range end;
    end.low = end.high = moe_utf8_decode((const uint8_t *)until, strlen(until), &length);
    return texts_and(p->s, class, texts_class(p->s, &end, 1, true, 0x10ffff));
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
    const char *backslash = p->at;
    char name = *++p->at;
    *c = UINT32_MAX;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (classes[i].name == name) {
            p->at++;
            for (int k = 0; k < classes[i].n; k++)
                MOE_TRY(add_range(p, classes[i].ranges[k].low, classes[i].ranges[k].high));
            return p->wide && !p->negated ? add_range(p, 0x80, 0x10ffff) : MOE_OK;
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
        (name >= 'A' && name <= 'Z')) {
        p->at = backslash;
        return pattern_refuse(p, "this escape is not supported");
    }
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

static int read_class(struct pattern *p, uint32_t *out)
{
    bool negated = *++p->at == '^', shorthand = false;
    p->at += negated;
    p->n = 0;
    p->negated = negated;
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
    p->negated = false;
    /* Implementations disagree on what \w and the like exclude beyond ASCII. */
    *out = class_of(p, negated, shorthand && !p->wide ? 0x7f : 0x10ffff);
    return MOE_OK;
}

/* ---- Sequences ---- */

static int read_alternatives(struct pattern *p, uint32_t *out);

/* Reads a group; one that looks ahead stands for no characters. */
static int read_group(struct pattern *p, uint32_t *out)
{
    const bool looks = p->at[1] == '?' && (p->at[2] == '=' || p->at[2] == '!');
    const bool lacks = looks && p->at[2] == '!', started = p->started, began = p->began;
    const char *name = p->at[1] == '?' && p->at[2] == 'P' ? p->at + 3 : p->at + 2;
    bool fails = false;
    if (p->at[1] == '?' && *name == '<' && name[1] != '=' && name[1] != '!')
        p->at = name + strcspn(name, ">") + (strchr(name, '>') != NULL);
    else if (p->at[1] == '?' && p->at[2] != ':' && !looks)
        return pattern_refuse(p, "looking behind, options and other groups than (?:, (?=, (?! and "
                                 "(?<name> are not supported");
    else
        p->at += p->at[1] == '?' ? 3 : 1;
    if (++p->depth > MAX_DEPTH)
        return pattern_refuse(p, "too many nested groups");
    p->wide ^= lacks;
    MOE_TRY(read_alternatives(p, out));
    p->wide ^= lacks;
    p->depth--;
    if (*p->at != ')')
        return pattern_refuse(p, "')' was expected");
    p->at++;
    if (looks) {
        p->started = started;
        p->began = began;
        *out = texts_looking(p->s, !lacks, *out, &fails);
    }
    return fails ? pattern_refuse(p, "^ is only supported where a text begins, and what looks "
                                     "ahead not in what is repeated")
                 : MOE_OK;
}

static int read_item(struct pattern *p, uint32_t *out)
{
    uint32_t c;
    p->n = 0;
    switch (*p->at) {
    case '(':
        return read_group(p, out);
    case '[':
        p->started = true;
        return read_class(p, out);
    case '.':
        p->started = true;
        p->at++;
        MOE_TRY(add_range(p, '\n', '\n'));
        if (!p->wide) {
            MOE_TRY(add_range(p, '\r', '\r'));
            MOE_TRY(add_range(p, 0x2028, 0x2029));
        }
        *out = class_of(p, true, 0x10ffff);
        return MOE_OK;
    case '^':
        if (p->started)
            return pattern_refuse(p, "^ is only supported where a text begins");
        p->at++;
        *out = p->began ? TEXTS_EMPTY : texts_at_end(p->s, false);
        p->began = true;
        return MOE_OK;
    case '$':
        p->at++;
        *out = texts_at_end(p->s, true);
        return MOE_OK;
    case '*':
    case '+':
    case '?':
    case '{':
        return pattern_refuse(p, "there is nothing to repeat");
    }
    p->started = true;
    MOE_TRY(read_one(p, &c));
    if (c != UINT32_MAX)
        MOE_TRY(add_range(p, c, c));
    *out = class_of(p, false, 0x10ffff);
    return MOE_OK;
}

/* Reads repetitions; lazy or not, the texts are the same. */
static int read_repetition(struct pattern *p, uint32_t *item)
{
    uint64_t least, most;
    if (*p->at == '{') {
        char *end;
        bool starts = p->at[1] >= '0' && p->at[1] <= '9', comma;
        least = most = strtoul(p->at + 1, &end, 10);
        comma = *end == ',';
        if (comma && end[1] >= '0' && end[1] <= '9')
            most = strtoul(end + 1, &end, 10);
        else if (comma)
            most = UINT64_MAX, end++;
        if (!starts || *end != '}' || least > most || least > SCHEMA_MAX_COUNT ||
            (most > SCHEMA_MAX_COUNT && most < UINT64_MAX))
            return pattern_refuse(p, "{m}, {m,} or {m,n} with counts up to 100000 was expected");
        p->at = end + 1;
    } else if (*p->at == '*' || *p->at == '+' || *p->at == '?') {
        least = *p->at == '+';
        most = *p->at == '?' ? 1 : UINT64_MAX;
        p->at++;
    } else {
        return MOE_OK;
    }
    *item = texts_repeat(p->s, *item, least, most);
    if (*p->at == '+')
        return pattern_refuse(p, "possessive repetitions are not supported");
    p->at += *p->at == '?';
    return MOE_OK;
}

static int read_sequence(struct pattern *p, uint32_t *out)
{
    struct moe_buf items = {0};
    int status = MOE_OK;
    while (*p->at && *p->at != '|' && *p->at != ')' && status == MOE_OK) {
        uint32_t item = TEXTS_NONE;
        status = read_item(p, &item);
        if (status == MOE_OK)
            status = read_repetition(p, &item);
        moe_buf_append(&items, &item, sizeof item);
        if (status == MOE_OK)
            status = schema_step(p->s, &items, 1);
    }
    *out = TEXTS_EMPTY;
    for (uint64_t i = items.failed ? 0 : items.size / sizeof *out; i-- > 0 && status == MOE_OK;) {
        uint32_t item;
        memcpy(&item, items.data + i * sizeof item, sizeof item);
        *out = texts_cat(p->s, item, *out);
    }
    if (items.failed)
        status = moe_fail(p->s->err, MOE_ERR_MEMORY, "out of memory: a pattern");
    moe_buf_release(&items);
    return status;
}

static int read_alternatives(struct pattern *p, uint32_t *out)
{
    const bool started = p->started, began = p->began;
    bool ended = false; /* one has characters */
    struct moe_buf list = {0};
    int status = MOE_OK;
    for (bool more = true; more && status == MOE_OK;) {
        p->started = started;
        p->began = began;
        status = read_sequence(p, out);
        ended |= p->started;
        moe_buf_append(&list, out, sizeof *out);
        more = *p->at == '|';
        p->at += more && status == MOE_OK;
    }
    p->started = ended;
    if (list.failed)
        status = moe_fail(p->s->err, MOE_ERR_MEMORY, "out of memory: a pattern");
    if (status == MOE_OK)
        *out = texts_one_of(p->s, (const uint32_t *)(const void *)list.data,
                            (uint32_t)(list.size / sizeof *out));
    moe_buf_release(&list);
    return status;
}

int schema_pattern(struct schema *s, const char *pattern, uint32_t *out)
{
    struct pattern p = {.s = s, .at = pattern, .end = pattern + strlen(pattern)};
    bool fails = false;
    MOE_TRY(read_alternatives(&p, out));
    if (*p.at)
        return pattern_refuse(&p, "')' without '('");
    *out = texts_that_match(s, *out, texts_repeat(s, class_of(&p, true, 0x10ffff), 0, UINT64_MAX),
                            &fails);
    return fails ? pattern_refuse(&p, "^ is only supported where a text begins, and what looks "
                                      "ahead not in what is repeated")
                 : schema_step(s, NULL, 0);
}
