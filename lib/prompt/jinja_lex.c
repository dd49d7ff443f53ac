/* Splits a template into tokens. */
#include "prompt/jinja_parse.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

struct lexer {
    struct jinja_heap *heap;
    const char *source; /* line ends are '\n' */
    uint64_t n, i;
    struct jinja_place at;
    uint64_t counted; /* bytes already counted in `at` */
    struct jinja_token *tokens;
    uint64_t n_tokens, room;
    bool trim; /* the next text begins without white space, as the tag before asked */
};

/* ---- Small things ---- */

/* Line and column of byte i, which is not before those asked for earlier. */
static struct jinja_place lex_place(struct lexer *l, uint64_t i)
{
    for (; l->counted < i; l->counted++) {
        l->at.column = l->source[l->counted] == '\n' ? 1 : l->at.column + 1;
        l->at.line += l->source[l->counted] == '\n';
    }
    return l->at;
}

static bool has(const struct lexer *l, uint64_t i, const char *what)
{
    size_t n = strlen(what);
    return l->n - i >= n && i <= l->n && memcmp(l->source + i, what, n) == 0;
}

static struct jinja_token *lex_push(struct lexer *l, enum jinja_token_kind kind, uint64_t at)
{
    if (l->n_tokens == l->room) {
        l->room = l->room ? 2 * l->room : 256;
        l->tokens = jinja_grow(l->heap, l->tokens, l->n_tokens, l->room, sizeof *l->tokens);
    }
    struct jinja_token *t = &l->tokens[l->n_tokens++];
    *t = (struct jinja_token){.kind = kind, .at = lex_place(l, at), .text = ""};
    return t;
}

static char *lex_copy(struct lexer *l, const char *from, uint64_t n)
{
    char *to = jinja_take(l->heap, n + 1, 1);
    memcpy(to, from, n);
    return to;
}

static void add_data(struct lexer *l, uint64_t begin, uint64_t end)
{
    if (begin >= end)
        return;
    struct jinja_token *t = lex_push(l, JINJA_T_DATA, begin);
    t->n = end - begin;
    t->text = lex_copy(l, l->source + begin, t->n);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* ---- Text between tags ---- */

/* The beginning of the next tag, or n. */
static uint64_t next_tag(const struct lexer *l, uint64_t i)
{
    for (; i + 1 < l->n; i++)
        if (l->source[i] == '{' && strchr("{%#", l->source[i + 1]) && l->source[i + 1])
            return i;
    return l->n;
}

/* The end of the text before the tag at `tag`: a '-' removes white space; without a '+', the
 * indentation of a block or comment that begins its line goes too. */
static uint64_t end_before(const struct lexer *l, uint64_t begin, uint64_t tag)
{
    uint64_t end = tag;
    char mark = tag + 2 < l->n ? l->source[tag + 2] : '\0';
    if (mark == '-') {
        while (end > begin && is_space(l->source[end - 1]))
            end--;
        return end;
    }
    if (l->source[tag + 1] == '{' || mark == '+')
        return tag;
    while (end > begin && is_space(l->source[end - 1]) && l->source[end - 1] != '\n')
        end--;
    bool line_begins =
        end > begin ? l->source[end - 1] == '\n' : begin == 0 || l->source[begin - 1] == '\n';
    return line_begins ? end : tag;
}

/* Trims after a tag: a '-' drops all white space, a block or comment one line end. */
static void trim_after(struct lexer *l, char mark, bool block)
{
    if (mark == '-')
        while (l->i < l->n && is_space(l->source[l->i]))
            l->i++;
    else if (block && mark != '+' && l->i < l->n && l->source[l->i] == '\n')
        l->i++;
}

static void skip_comment(struct lexer *l)
{
    uint64_t begin = l->i;
    for (l->i += 2; l->i + 1 < l->n; l->i++)
        if (has(l, l->i, "#}")) {
            char mark = l->i > begin + 2 ? l->source[l->i - 1] : '\0';
            l->i += 2;
            trim_after(l, mark, true);
            return;
        }
    jinja_fail(l->heap, lex_place(l, begin), MOE_ERR_FORMAT, "the comment has no end");
}

/* The end of a "{% NAME %}" that begins at i; 0: something else. *mark: the trim mark of its end,
 * *first: of its beginning. */
static uint64_t simple_block(const struct lexer *l, uint64_t i, const char *name, char *mark)
{
    if (!has(l, i, "{%"))
        return 0;
    i += 2;
    if (i < l->n && (l->source[i] == '-' || l->source[i] == '+'))
        i++;
    while (i < l->n && is_space(l->source[i]))
        i++;
    if (!has(l, i, name))
        return 0;
    i += strlen(name);
    while (i < l->n && is_space(l->source[i]))
        i++;
    *mark = i < l->n ? l->source[i] : '\0';
    if (*mark == '-' || *mark == '+')
        i++;
    return has(l, i, "%}") ? i + 2 : 0;
}

/* Reads {% raw %} ... {% endraw %} at i as plain text. False: none begins there. */
static bool take_raw(struct lexer *l)
{
    char mark;
    uint64_t opened = l->i, end = simple_block(l, l->i, "raw", &mark);
    if (!end)
        return false;
    l->i = end;
    trim_after(l, mark, false);
    uint64_t begin = l->i;
    for (; l->i < l->n; l->i++)
        if ((end = simple_block(l, l->i, "endraw", &mark)) != 0) {
            add_data(l, begin, end_before(l, begin, l->i));
            l->i = end;
            trim_after(l, mark, true);
            return true;
        }
    jinja_fail(l->heap, lex_place(l, opened), MOE_ERR_FORMAT, "the raw block has no end");
}

/* ---- Inside tags ---- */

static void lex_name(struct lexer *l)
{
    uint64_t begin = l->i;
    while (l->i < l->n && (isalnum((unsigned char)l->source[l->i]) || l->source[l->i] == '_' ||
                           (l->source[l->i] & 0x80)))
        l->i++;
    struct jinja_token *t = lex_push(l, JINJA_T_NAME, begin);
    t->n = l->i - begin;
    t->text = lex_copy(l, l->source + begin, t->n);
}

/* Digits with single underscores between them. */
static void lex_digits(struct lexer *l, char *out, size_t room, size_t *n)
{
    while (l->i < l->n && (isdigit((unsigned char)l->source[l->i]) ||
                           (l->source[l->i] == '_' && l->i + 1 < l->n &&
                            isdigit((unsigned char)l->source[l->i + 1])))) {
        if (l->source[l->i] != '_' && *n + 1 < room)
            out[(*n)++] = l->source[l->i];
        l->i++;
    }
}

static bool digit_at(const struct lexer *l, uint64_t i)
{
    return i < l->n && isdigit((unsigned char)l->source[i]);
}

static void lex_number(struct lexer *l)
{
    char text[400];
    size_t n = 0;
    uint64_t begin = l->i;
    bool real = false;
    lex_digits(l, text, sizeof text, &n);
    if (l->i < l->n && l->source[l->i] == '.' && digit_at(l, l->i + 1)) {
        real = true;
        text[n++] = '.';
        l->i++;
        lex_digits(l, text, sizeof text - 8, &n);
    }
    if (l->i < l->n && (l->source[l->i] | 0x20) == 'e') {
        bool sign = l->i + 1 < l->n && strchr("+-", l->source[l->i + 1]) && l->source[l->i + 1];
        if (digit_at(l, l->i + 1 + sign)) {
            real = true;
            text[n++] = 'e';
            if (sign)
                text[n++] = l->source[l->i + 1];
            l->i += 1 + sign;
            lex_digits(l, text, sizeof text, &n);
        }
    }
    text[n] = '\0';
    struct jinja_token *t = lex_push(l, real ? JINJA_T_FLOAT : JINJA_T_INT, begin);
    errno = 0;
    if (real)
        t->number = strtod(text, NULL);
    else
        t->whole = strtoll(text, NULL, 10);
    if (!real && errno == ERANGE)
        jinja_fail(l->heap, t->at, MOE_ERR_LIMIT, "the number is too large");
}

/* Reads `digits` hexadecimal digits at i; fails if there are fewer. */
static uint32_t hexadecimal(struct lexer *l, uint64_t i, int digits)
{
    uint32_t value = 0;
    for (int k = 0; k < digits; k++) {
        char c = i + (uint64_t)k < l->n ? l->source[i + (uint64_t)k] : ' ';
        if (!isxdigit((unsigned char)c))
            jinja_fail(l->heap, lex_place(l, l->i), MOE_ERR_FORMAT, "the escape lacks digits");
        value = value * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
}

/* Decodes one Python escape at l->i, a backslash, into out. Returns bytes written; moves on. */
static int lex_escape(struct lexer *l, char *out)
{
    static const char plain[] = "\\'\"abfnrtv", means[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->i + 1 < l->n ? l->source[l->i + 1] : '\0';
    const char *known = c ? strchr(plain, c) : NULL;
    uint32_t value = 0;
    uint64_t end = l->i + 2;
    if (known) {
        out[0] = means[known - plain];
        l->i = end;
        return 1;
    }
    if (c == '\n') {
        l->i = end;
        return 0;
    }
    if (c >= '0' && c <= '7') {
        for (end = l->i + 1;
             end < l->n && end < l->i + 4 && l->source[end] >= '0' && l->source[end] <= '7'; end++)
            value = value * 8 + (uint32_t)(l->source[end] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        value = hexadecimal(l, end, digits);
        end += (uint64_t)digits;
    } else { /* not an escape: both characters stay */
        out[0] = '\\';
        l->i++;
        return 1;
    }
    if (value >= 0x110000 || (value >= 0xd800 && value < 0xe000))
        jinja_fail(l->heap, lex_place(l, l->i), MOE_ERR_FORMAT, "the escape is no character");
    l->i = end;
    return moe_utf8_encode(value, (uint8_t *)out);
}

static void lex_string(struct lexer *l)
{
    char quote = l->source[l->i];
    uint64_t begin = l->i, end = l->i + 1;
    while (end < l->n && l->source[end] != quote)
        end += l->source[end] == '\\' ? 2 : 1;
    if (end >= l->n)
        jinja_fail(l->heap, lex_place(l, begin), MOE_ERR_FORMAT, "the string has no end");
    struct jinja_token *t = lex_push(l, JINJA_T_STRING, begin);
    char *text = jinja_take(l->heap, end - begin + 4, 1);
    for (l->i = begin + 1; l->i < end;) {
        if (l->source[l->i] == '\\')
            t->n += (uint64_t)lex_escape(l, text + t->n);
        else
            text[t->n++] = l->source[l->i++];
    }
    text[t->n] = '\0';
    t->text = text;
    l->i = end + 1;
}

static void lex_operator(struct lexer *l, char nesting[], uint32_t *depth, uint32_t room)
{
    static const char *const operators[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "*",
                                            "/",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            "<",  ">",  "=",  ".",  ":",  "|",  ",", ";"};
    static const char open[] = "([{", close[] = ")]}";
    for (size_t k = 0; k < sizeof operators / sizeof operators[0]; k++) {
        if (!has(l, l->i, operators[k]))
            continue;
        struct jinja_token *t = lex_push(l, JINJA_T_OPERATOR, l->i);
        const char *opens = strchr(open, operators[k][0]);
        const char *closes = strchr(close, operators[k][0]);
        if (opens && *depth == room)
            jinja_fail(l->heap, t->at, MOE_ERR_LIMIT, "brackets are nested too deep");
        if (opens)
            nesting[(*depth)++] = close[opens - open];
        if (closes && (*depth == 0 || nesting[--*depth] != *closes))
            jinja_fail(l->heap, t->at, MOE_ERR_FORMAT, "'%c' closes nothing", *closes);
        t->text = operators[k];
        t->n = strlen(operators[k]);
        l->i += t->n;
        return;
    }
    jinja_fail(l->heap, lex_place(l, l->i), MOE_ERR_FORMAT, "unexpected character '%c'",
               l->source[l->i] < 0x20 || l->source[l->i] & 0x80 ? '?' : l->source[l->i]);
}

/* Reads a tag from "{%" or "{{" to its end. */
static void lex_tag(struct lexer *l)
{
    enum { NESTING = 200 };
    char nesting[NESTING];
    uint32_t depth = 0;
    uint64_t begin = l->i;
    bool block = l->source[l->i + 1] == '%';
    const char *end = block ? "%}" : "}}";
    lex_push(l, block ? JINJA_T_BLOCK_BEGIN : JINJA_T_PRINT_BEGIN, l->i);
    l->i += 2;
    if (l->i < l->n && (l->source[l->i] == '-' || l->source[l->i] == '+'))
        l->i++;
    while (l->i < l->n) {
        char c = l->source[l->i];
        bool marked = (c == '-' || (c == '+' && block)) && has(l, l->i + 1, end);
        if (depth == 0 && (marked || has(l, l->i, end))) {
            lex_push(l, block ? JINJA_T_BLOCK_END : JINJA_T_PRINT_END, l->i);
            l->i += marked ? 3 : 2;
            trim_after(l, marked ? c : '\0', block);
            return;
        }
        if (is_space(c))
            l->i++;
        else if (isdigit((unsigned char)c))
            lex_number(l);
        else if (isalpha((unsigned char)c) || c == '_' || (c & 0x80))
            lex_name(l);
        else if (c == '"' || c == '\'')
            lex_string(l);
        else
            lex_operator(l, nesting, &depth, NESTING);
    }
    jinja_fail(l->heap, lex_place(l, begin), MOE_ERR_FORMAT, "the tag has no end");
}

/* ---- The whole ---- */

/* Turns line ends into '
 * ', without the last one. */
static void normalize(struct lexer *l, const char *source, uint64_t n)
{
    char *to = jinja_take(l->heap, n + 1, 1);
    uint64_t k = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n')
            continue;
        to[k++] = source[i] == '\r' ? '\n' : source[i];
    }
    l->source = to;
    l->n = k > 0 && to[k - 1] == '\n' ? k - 1 : k;
}

struct jinja_token *jinja_lex(struct jinja_heap *heap, const char *source, uint64_t n)
{
    struct lexer l = {.heap = heap, .at = {1, 1}};
    normalize(&l, source, n);
    while (l.i < l.n) {
        uint64_t begin = l.i, tag = next_tag(&l, begin);
        add_data(&l, begin, tag < l.n ? end_before(&l, begin, tag) : tag);
        l.i = tag;
        if (tag >= l.n)
            break;
        if (l.source[tag + 1] == '#')
            skip_comment(&l);
        else if (!take_raw(&l))
            lex_tag(&l);
    }
    lex_push(&l, JINJA_T_END, l.n);
    return l.tokens;
}
