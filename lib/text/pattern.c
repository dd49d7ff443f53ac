/*
 * From Oniguruma's expressions to PCRE2's.
 *
 * Hugging Face's tokenizers match with Oniguruma in Ruby syntax. In what tokenizers use the two
 * agree, apart from a few constructs rewritten here; rarer ones that differ in meaning are refused,
 * so that no tokenizer is silently wrong.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_steps.h"

/* Unicode's White_Space. PCRE2's \s also has U+180E. */
#define WHITE                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"

struct scan {
    const char *at, *end;
    struct moe_buf *out;
    struct moe_err *err;
    bool in_class;
};

static int refuse(const struct scan *s, const char *what)
{
    return moe_fail(s->err, MOE_ERR_UNSUPPORTED, "%s in a pattern is not implemented", what);
}

static bool looking_at(const struct scan *s, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(s->end - s->at) >= n && memcmp(s->at, text, n) == 0;
}

static void copy(struct scan *s, uint64_t n)
{
    moe_buf_append(s->out, s->at, n);
    s->at += n;
}

/* \p{Greek} is the script in Oniguruma, the script's extensions in PCRE2. */
static bool is_script(const char *name, uint64_t n)
{
    char text[64];
    if (n < 3 || n > 40)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        if (!isalpha((unsigned char)name[i]) && name[i] != '_')
            return false;
    }
    int length = snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)n, name);
    int code;
    PCRE2_SIZE offset;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)length, PCRE2_UTF, &code, &offset, NULL);
    pcre2_code_free(compiled);
    return compiled != NULL;
}

static int property(struct scan *s)
{
    const char *close =
        s->at + 2 < s->end && s->at[2] == '{' ? memchr(s->at, '}', (size_t)(s->end - s->at)) : NULL;
    if (!close)
        return refuse(s, "\\p without braces");
    const char *name = s->at + 3;
    if (is_script(name, (uint64_t)(close - name))) {
        moe_buf_printf(s->out, "\\%c{sc:", s->at[1]);
        s->at = name;
    }
    copy(s, (uint64_t)(close + 1 - s->at));
    return MOE_OK;
}

static int unicode_escape(struct scan *s)
{
    if (s->end - s->at < 6)
        return refuse(s, "a short \\u");
    for (int i = 2; i < 6; i++) {
        if (!isxdigit((unsigned char)s->at[i]))
            return refuse(s, "\\u without four digits");
    }
    moe_buf_printf(s->out, "\\x{%.4s}", s->at + 2);
    s->at += 6;
    return MOE_OK;
}

static int escape(struct scan *s)
{
    if (s->end - s->at < 2)
        return refuse(s, "a trailing backslash");
    char c = s->at[1], what[] = {'\\', c, '\0'};
    if (c == 's' || (c == 'S' && !s->in_class)) {
        const char *open = s->in_class ? "" : c == 's' ? "[" : "[^";
        moe_buf_printf(s->out, "%s%s%s", open, WHITE, s->in_class ? "" : "]");
        s->at += 2;
        return MOE_OK;
    }
    if (c == 'p' || c == 'P')
        return property(s);
    if (c == 'u')
        return unicode_escape(s);
    if (isalnum((unsigned char)c) && !strchr("SdDwWnrtfeabBAzZx", c))
        return refuse(s, what);
    copy(s, 2);
    return MOE_OK;
}

static int inside_class(struct scan *s)
{
    if (looking_at(s, "&&"))
        return refuse(s, "an intersection of character classes");
    if (looking_at(s, "[:")) {
        const char *close = memchr(s->at, ']', (size_t)(s->end - s->at));
        if (!close || close[-1] != ':')
            return refuse(s, "a nested character class");
        copy(s, (uint64_t)(close + 1 - s->at));
        return MOE_OK;
    }
    if (*s->at == '[')
        return refuse(s, "a nested character class");
    s->in_class = *s->at != ']';
    copy(s, 1);
    return MOE_OK;
}

static void open_class(struct scan *s)
{
    s->in_class = true;
    copy(s, 1);
    if (s->at < s->end && *s->at == '^')
        copy(s, 1);
    if (s->at < s->end && *s->at == ']')
        copy(s, 1);
}

static int group(struct scan *s)
{
    if (looking_at(s, "(*"))
        return refuse(s, "(*");
    copy(s, 1);
    if (s->at == s->end || *s->at != '?')
        return MOE_OK;
    copy(s, 1);
    if (looking_at(s, "<=") || looking_at(s, "<!")) {
        copy(s, 2);
        return MOE_OK;
    }
    /* Flags: Ruby's m lets the dot match a newline, which PCRE2 calls s. */
    while (s->at < s->end && strchr("imx-", *s->at)) {
        moe_buf_u8(s->out, *s->at == 'm' ? 's' : (uint8_t)*s->at);
        s->at++;
    }
    if (s->at == s->end || !strchr(":=!>)", *s->at))
        return refuse(s, "a group of this kind");
    copy(s, 1);
    return MOE_OK;
}

/* {n,m}: Ruby's {,m} begins at 0, and {n,m}+ repeats where PCRE2 would become possessive. */
static int braces(struct scan *s)
{
    const char *p = s->at + 1;
    while (p < s->end && (isdigit((unsigned char)*p) || *p == ','))
        p++;
    if (p == s->end || *p != '}' || p == s->at + 1)
        return refuse(s, "an unescaped {");
    if (p + 1 < s->end && p[1] == '+')
        return refuse(s, "{n,m}+");
    copy(s, 1);
    if (*s->at == ',')
        moe_buf_u8(s->out, '0');
    copy(s, (uint64_t)(p + 1 - s->at));
    return MOE_OK;
}

static int one(struct scan *s)
{
    switch (*s->at) {
    case '\\':
        return escape(s);
    case '[':
        open_class(s);
        return MOE_OK;
    case '(':
        return group(s);
    case '{':
        return braces(s);
    case '^':
    case '$':
        /* In Ruby these are the ends of a line, always. */
        moe_buf_printf(s->out, "(?m:%c)", *s->at++);
        return MOE_OK;
    default:
        copy(s, 1);
        return MOE_OK;
    }
}

int moe_pattern_translate(const char *pattern, uint64_t n, struct moe_buf *out, struct moe_err *err)
{
    struct scan s = {.at = pattern, .end = pattern + n, .out = out, .err = err};
    while (s.at < s.end) {
        int status = s.in_class && *s.at != '\\' ? inside_class(&s) : one(&s);
        if (status != MOE_OK)
            return status;
    }
    if (out->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    return MOE_OK;
}
