/* Reads GBNF as llama.cpp's users write it: rules of literals, classes, groups and repetitions. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "grammar/automaton_internal.h"

struct reader {
    struct moe_grammar *g;
    const char *name;
    const char *text, *end, *at;
    const char *seen; /* a place with known line and column; NULL: none */
    uint32_t line, column;
    struct range *ranges; /* of the class being read */
    uint32_t ranges_room;
    int depth;
    struct moe_err *err;
};

static inline bool is_at(const struct reader *r, char c)
{
    return r->at < r->end && *r->at == c;
}

enum {
    MAX_DEPTH = 200, /* groups */
    MAX_REPEATS = 1 << 17,
    MAX_NAME = 256,
    MAX_RANGES = 1 << 16, /* of a class */
};

/* ---- Places in the text ---- */

/* Continues from the place looked for last, if that lies before. */
static void gbnf_place(struct reader *r, const char *at, uint32_t *line, uint32_t *column)
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

/* Fails with that place in front; gbnf_wrong: with the reader's place, or that the text ends. */
static int gbnf_fail(struct reader *r, const char *at, int status, const char *what)
{
    uint32_t line, column;
    gbnf_place(r, at, &line, &column);
    return moe_fail(r->err, status, "%s: line %u, column %u: %s", r->name, line, column, what);
}

/* Fails with that place in front; gbnf_wrong: with the reader's place, or that the text ends. */
static int gbnf_wrong(struct reader *r, const char *what)
{
    return gbnf_fail(r, r->at, MOE_ERR_FORMAT,
                     r->at < r->end ? what : "the grammar ends too early");
}

/* Skips blanks and comments; also newlines if a rule may continue after them. */
static void gbnf_skip(struct reader *r, bool newlines)
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

/* Reads a character of a literal or a class, perhaps escaped. */
static int gbnf_character(struct reader *r, uint32_t *c)
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

/* ---- Characters ---- */

static int read_literal(struct reader *r)
{
    for (r->at++; !is_at(r, '"');) {
        uint32_t c = 0;
        MOE_TRY(gbnf_character(r, &c));
        machine_add_character(r->g, c);
    }
    r->at++;
    return MOE_OK;
}

static int add_range(struct reader *r, uint32_t n, uint32_t low, uint32_t high)
{
    if (n == MAX_RANGES)
        return gbnf_wrong(r, "a class of more than 65536 characters and ranges");
    if (n == r->ranges_room) {
        uint32_t room = n ? 2 * n : 64;
        struct range *more = realloc(r->ranges, room * sizeof *more);
        if (!more)
            return moe_fail(r->err, MOE_ERR_MEMORY, "out of memory: a class of %u characters", n);
        r->ranges = more;
        r->ranges_room = room;
    }
    r->ranges[n] = (struct range){low, high};
    return MOE_OK;
}

static int read_class(struct reader *r)
{
    uint32_t n = 0;
    r->at++;
    bool negated = is_at(r, '^');
    for (r->at += negated; !is_at(r, ']'); n++) {
        uint32_t low = 0, high;
        const char *from = r->at;
        MOE_TRY(gbnf_character(r, &low));
        high = low;
        if (is_at(r, '-') && r->at + 1 < r->end && r->at[1] != ']') {
            r->at++;
            MOE_TRY(gbnf_character(r, &high));
            if (high < low)
                return gbnf_fail(r, from, MOE_ERR_FORMAT, "a range whose end is before its start");
        }
        MOE_TRY(add_range(r, n, low, high));
    }
    r->at++;
    if (moe_allowance_step(r->g->allowance, n) == MOE_OK)
        machine_add_class(r->g, r->ranges, n, negated);
    return MOE_OK;
}

/* ---- Names ---- */

static bool is_of_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static int read_name(struct reader *r, uint32_t *rule)
{
    const char *from = r->at;
    uint32_t line, column;
    while (r->at < r->end && is_of_name(*r->at))
        r->at++;
    if (r->at == from)
        return gbnf_wrong(r, "the name of a rule was expected");
    if (r->at - from > MAX_NAME)
        return gbnf_fail(r, from, MOE_ERR_FORMAT, "a name of more than 256 characters");
    uint32_t n = r->g->n_rules;
    *rule = machine_rule(r->g, from, (uint64_t)(r->at - from), 0, 0);
    if (r->g->n_rules > n) {
        gbnf_place(r, from, &line, &column);
        r->g->rules[*rule].line = line;
        r->g->rules[*rule].column = column;
    }
    return r->g->status == MOE_OK ? MOE_OK : MOE_ERR_LIMIT;
}

/* ---- Repetitions ---- */

static int read_number(struct reader *r, uint32_t *n)
{
    const char *from = r->at;
    *n = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        *n = *n * 10 + (uint32_t)(*r->at - '0');
        if (*n > MAX_REPEATS)
            return gbnf_fail(r, from, MOE_ERR_LIMIT, "more than 131072 repetitions");
    }
    return r->at > from ? MOE_OK : gbnf_wrong(r, "a number of repetitions was expected");
}

/* Reads {m}, {m,} or {m,n}; most: UINT32_MAX without an end. */
static int read_counts(struct reader *r, bool newlines, uint32_t *least, uint32_t *most)
{
    const char *from = r->at++;
    gbnf_skip(r, newlines);
    MOE_TRY(read_number(r, least));
    *most = *least;
    gbnf_skip(r, newlines);
    if (is_at(r, ',')) {
        r->at++;
        gbnf_skip(r, newlines);
        *most = UINT32_MAX;
        if (!is_at(r, '}'))
            MOE_TRY(read_number(r, most));
        gbnf_skip(r, newlines);
    }
    if (!is_at(r, '}'))
        return gbnf_wrong(r, "'}' was expected");
    if (*most < *least)
        return gbnf_fail(r, from, MOE_ERR_FORMAT,
                         "repetitions whose maximum is below their minimum");
    r->at++;
    return MOE_OK;
}

/* Repeats the states from `first`, a jump to the next state, to the end. */
static void repeat_states(struct moe_grammar *g, uint32_t first, uint32_t least, uint32_t most)
{
    uint32_t body = first + 1, end = g->n_states, n = end - body;
    if (g->status != MOE_OK)
        return;
    if (most == 0 || n == 0) { /* nothing, however often */
        g->n_states = first;
        return;
    }
    for (uint32_t i = 1; i < least && g->status == MOE_OK; i++)
        machine_copy(g, body, end);
    if (most == UINT32_MAX && least > 0) { /* repeats the last one, or continues */
        uint32_t last = g->n_states - n;
        machine_add(g, STATE_SPLIT, last, g->n_states + 1);
    } else if (most == UINT32_MAX) {
        machine_add(g, STATE_JUMP, first, 0);
        if (g->status == MOE_OK)
            g->states[first] = (struct state){STATE_SPLIT, body, g->n_states};
    }
    if (most == UINT32_MAX)
        return;
    uint32_t optional = g->n_states; /* each of these continues, or leaves for the end of all */
    for (uint32_t i = least ? least : 1; i < most && g->status == MOE_OK; i++) {
        machine_add(g, STATE_SPLIT, g->n_states + 1, 0);
        machine_copy(g, body, end);
    }
    if (g->status != MOE_OK)
        return;
    for (uint32_t at = optional; at < g->n_states; at += n + 1)
        g->states[at].b = g->n_states;
    if (least == 0)
        g->states[first] = (struct state){STATE_SPLIT, body, g->n_states};
}

/* ---- Sequences ---- */

static int read_alternatives(struct reader *r, bool in_group);

static int read_group(struct reader *r)
{
    const char *from = r->at++;
    if (++r->depth > MAX_DEPTH)
        return gbnf_fail(r, from, MOE_ERR_LIMIT, "more than 200 nested groups");
    gbnf_skip(r, true);
    MOE_TRY(read_alternatives(r, true));
    if (!is_at(r, ')'))
        return gbnf_wrong(r, "')' was expected");
    r->depth--;
    r->at++;
    return MOE_OK;
}

static int read_rule_use(struct reader *r)
{
    uint32_t rule = 0;
    MOE_TRY(read_name(r, &rule));
    machine_add(r->g, STATE_CALL, rule, 0);
    return MOE_OK;
}

/* Reads one item of a sequence, without its repetition. */
static int read_item(struct reader *r)
{
    switch (*r->at) {
    case '"':
        return read_literal(r);
    case '[':
        return read_class(r);
    case '(':
        return read_group(r);
    case '.':
        r->at++;
        machine_add_class(r->g, NULL, 0, true);
        return MOE_OK;
    case '<':
    case '!':
        return gbnf_fail(r, r->at, MOE_ERR_UNSUPPORTED,
                         "tokens by name or number are not supported; write their text");
    case '*':
    case '+':
    case '?':
    case '{':
        return gbnf_wrong(r, "there is nothing to repeat");
    default:
        return read_rule_use(r);
    }
}

static bool is_repetition(char c)
{
    return c == '*' || c == '+' || c == '?' || c == '{';
}

/* Reads the repetitions of the item that begins at `first`, if any. */
static int read_repetitions(struct reader *r, uint32_t first, bool in_group)
{
    uint32_t least = is_at(r, '+'), most = is_at(r, '?') ? 1 : UINT32_MAX;
    if (r->at == r->end || !is_repetition(*r->at))
        return MOE_OK;
    if (*r->at == '{')
        MOE_TRY(read_counts(r, in_group, &least, &most));
    else
        r->at++;
    repeat_states(r->g, first, least, most);
    gbnf_skip(r, in_group);
    if (r->at < r->end && is_repetition(*r->at))
        return gbnf_wrong(r, "a repetition is repeated: put it into a group");
    return MOE_OK;
}

static int read_sequence(struct reader *r, bool in_group)
{
    while (r->at < r->end && !memchr("|)\n\r", *r->at, 4)) {
        uint32_t first = machine_add(r->g, STATE_JUMP, r->g->n_states + 1, 0);
        MOE_TRY(read_item(r));
        gbnf_skip(r, in_group);
        MOE_TRY(read_repetitions(r, first, in_group));
        if (r->g->status != MOE_OK)
            return MOE_ERR_LIMIT; /* machine_finish reports it */
    }
    return MOE_OK;
}

static int read_alternatives(struct reader *r, bool in_group)
{
    struct moe_grammar *g = r->g;
    uint32_t jumps = UINT32_MAX; /* to the end, chained */
    for (;;) {
        uint32_t split = machine_add(g, STATE_JUMP, g->n_states + 1, 0);
        MOE_TRY(read_sequence(r, in_group));
        if (!is_at(r, '|'))
            break;
        r->at++;
        gbnf_skip(r, true);
        jumps = machine_add(g, STATE_JUMP, jumps, 0);
        if (g->status == MOE_OK)
            g->states[split] = (struct state){STATE_SPLIT, split + 1, g->n_states};
    }
    while (jumps != UINT32_MAX && g->status == MOE_OK) {
        uint32_t next = g->states[jumps].a;
        g->states[jumps].a = g->n_states;
        jumps = next;
    }
    return MOE_OK;
}

/* ---- Rules ---- */

static int read_rule(struct reader *r)
{
    const char *from = r->at;
    uint32_t rule = 0, line, column;
    MOE_TRY(read_name(r, &rule));
    gbnf_skip(r, false);
    if (r->end - r->at < 3 || memcmp(r->at, "::=", 3) != 0)
        return gbnf_wrong(r, "'::=' was expected");
    if (r->g->rules[rule].defined)
        return gbnf_fail(r, from, MOE_ERR_FORMAT, "this rule is defined already");
    gbnf_place(r, from, &line, &column);
    r->g->rules[rule].defined = true;
    r->g->rules[rule].start = r->g->n_states;
    r->g->rules[rule].line = line;
    r->g->rules[rule].column = column;
    r->at += 3;
    gbnf_skip(r, true);
    MOE_TRY(read_alternatives(r, false));
    machine_add(r->g, STATE_END, 0, 0);
    if (r->at < r->end && *r->at != '\n' && *r->at != '\r')
        return gbnf_wrong(r, "a new line was expected after the rule");
    gbnf_skip(r, true);
    return MOE_OK;
}

int machine_read(struct moe_grammar **out, const char *name, const void *text, uint64_t n,
                 bool must_end, struct moe_allowance *allowance, struct moe_err *err)
{
    struct moe_allowance usual = moe_allowance_usual();
    *out = NULL;
    struct moe_grammar *g = moe_alloc(1, sizeof *g, err);
    if (!g)
        return MOE_ERR_MEMORY;
    g->allowance = allowance ? allowance : &usual;
    g->must_end = must_end;
    struct reader r = {.g = g, .name = name, .text = text, .at = text, .err = err};
    r.end = r.text + n;
    int status = MOE_OK;
    gbnf_skip(&r, true);
    while (r.at < r.end && status == MOE_OK && g->status == MOE_OK)
        status = read_rule(&r);
    if (status == MOE_OK || g->status != MOE_OK)
        status = machine_finish(g, name, err);
    free(r.ranges);
    g->allowance = NULL;
    if (status == MOE_OK)
        *out = g;
    else
        moe_grammar_free(g);
    return status;
}

int moe_grammar_parse(struct moe_grammar **out, const char *name, const void *text, uint64_t n,
                      struct moe_allowance *allowance, struct moe_err *err)
{
    *out = NULL;
    return n > MOE_GRAMMAR_MAX_BYTES
               ? moe_fail(err, MOE_ERR_LIMIT, "%s: a grammar of more than %d MiB", name,
                          MOE_GRAMMAR_MAX_BYTES >> 20)
               : machine_read(out, name, text, n, false, allowance, err);
}

int moe_grammar_read(struct moe_grammar **out, const char *path, struct moe_err *err)
{
    struct moe_buf text = {0};
    *out = NULL;
    int status = moe_file_read_all(path, MOE_GRAMMAR_MAX_BYTES, &text, err);
    if (status == MOE_OK)
        status = moe_grammar_parse(out, path, text.data, text.size, NULL, err);
    moe_buf_release(&text);
    return status;
}
