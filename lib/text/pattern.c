/*
 * Translates Oniguruma's expressions to PCRE2's, and bounds the cost of matching.
 *
 * Hugging Face's tokenizers match with Oniguruma in Ruby syntax. For what tokenizers use the two
 * agree, apart from some constructs rewritten here; rarer ones that differ in meaning are refused,
 * so that no tokenizer is silently wrong.
 *
 * PCRE2 decides which characters are letters and so on, by the Unicode version it was built with.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include <ctype.h>
#include <inttypes.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "text/internal.h"

/* Unicode's White_Space. PCRE2's \s also has U+180E. */
#define WHITE                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"

/* Word characters, as \\w and [[:word:]] mean them (UTS 18, annex C, without join controls);
 * PCRE2's \w includes other numbers too, and until 10.43 no marks. */
#define WORD                                                                                       \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"                    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
/* Outside of a class \w also matches some characters of Latin-1. */
#define LOOSE_WORD WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define HEX "0-9A-Fa-f"

enum { NESTING_MAX = 8 /* for classes in classes */ };

struct scan {
    const char *at, *end;
    struct moe_buf *out;
    struct moe_err *err;
};

static int refuse_construct(const struct scan *s, const char *what)
{
    return moe_fail(s->err, MOE_ERR_UNSUPPORTED, "%s in a pattern is not implemented", what);
}

static bool looking_at(const struct scan *s, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(s->end - s->at) >= n && memcmp(s->at, text, n) == 0;
}

static void copy_pattern(struct scan *s, uint64_t n)
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
        return refuse_construct(s, "\\p without braces");
    const char *name = s->at + 3;
    if (is_script(name, (uint64_t)(close - name))) {
        moe_buf_printf(s->out, "\\%c{sc:", s->at[1]);
        s->at = name;
    }
    copy_pattern(s, (uint64_t)(close + 1 - s->at));
    return MOE_OK;
}

static int unicode_escape(struct scan *s)
{
    if (s->end - s->at < 6)
        return refuse_construct(s, "a short \\u");
    for (int i = 2; i < 6; i++) {
        if (!isxdigit((unsigned char)s->at[i]))
            return refuse_construct(s, "\\u without four digits");
    }
    moe_buf_printf(s->out, "\\x{%.4s}", s->at + 2);
    s->at += 6;
    return MOE_OK;
}

/* Escapes for several characters: their translation for PCRE2. */
static const struct shorthand {
    char letter;
    const char *outside, *inside; /* of a class; inside NULL: a separate class, as outside */
} SHORTHANDS[] = {
    {'s', "[" WHITE "]", WHITE},
    {'S', "[^" WHITE "]", NULL},
    {'w', "[" LOOSE_WORD "]", WORD},
    {'W', "[^" LOOSE_WORD "]", NULL},
    {'h', "[" HEX "]", HEX},
    {'H', "[^" HEX "]", NULL},
    {'b', "(?:(?<=[" LOOSE_WORD "])(?![" LOOSE_WORD "])|(?<![" LOOSE_WORD "])(?=[" LOOSE_WORD "]))",
     "\\x{8}"},
    {'B', "(?:(?<=[" LOOSE_WORD "])(?=[" LOOSE_WORD "])|(?<![" LOOSE_WORD "])(?![" LOOSE_WORD "]))",
     ""},
};

static const struct shorthand *find_shorthand(char letter)
{
    for (size_t i = 0; i < sizeof SHORTHANDS / sizeof *SHORTHANDS; i++)
        if (SHORTHANDS[i].letter == letter)
            return &SHORTHANDS[i];
    return NULL;
}

/* Copies an escape that PCRE2 understands alike, or one that names a character. */
static int plain_escape(struct scan *s, const char *letters)
{
    char c = s->at[1], what[] = {'\\', c, '\0'};
    if (c == 'p' || c == 'P')
        return property(s);
    if (c == 'u')
        return unicode_escape(s);
    const char *close = c == 'x' && s->at + 2 < s->end && s->at[2] == '{'
                            ? memchr(s->at, '}', (size_t)(s->end - s->at))
                            : NULL;
    if (close) {
        copy_pattern(s, (uint64_t)(close + 1 - s->at));
        return MOE_OK;
    }
    if (isalnum((unsigned char)c) && !strchr(letters, c))
        return refuse_construct(s, what);
    copy_pattern(s, 2);
    return MOE_OK;
}

static int escape(struct scan *s)
{
    if (s->end - s->at < 2)
        return refuse_construct(s, "a trailing backslash");
    const struct shorthand *known = find_shorthand(s->at[1]);
    if (!known)
        return plain_escape(s, "dDnrtfeaAzZx");
    moe_buf_text(s->out, known->outside);
    s->at += 2;
    return MOE_OK;
}

/* ---- Classes ---- */

/* The part of a class between "&&" and "&&": its own contents, and the classes in it. */
struct operand {
    struct moe_buf flat, nested; /* nested: alternatives, "|" after each */
};

static void operand_release(struct operand *o)
{
    moe_buf_release(&o->flat);
    moe_buf_release(&o->nested);
}

/* Appends an expression for one character of the operand. */
static void write_operand(const struct operand *o, bool negated, struct moe_buf *out)
{
    uint64_t n = o->nested.size;
    if (n == 0) {
        moe_buf_text(out, negated ? "[^" : "[");
        moe_buf_append(out, o->flat.data, o->flat.size);
        moe_buf_text(out, "]");
        return;
    }
    moe_buf_text(out, negated ? "(?:(?!" : "(?:");
    if (o->flat.size) {
        moe_buf_text(out, "[");
        moe_buf_append(out, o->flat.data, o->flat.size);
        moe_buf_text(out, "]|");
    }
    moe_buf_append(out, o->nested.data, n - 1);
    moe_buf_text(out, negated ? ")(?s:.))" : ")");
}

/* Translates "[:name:]" inside a class; PCRE2's own names cover fewer characters. */
static int posix(struct scan *s, struct moe_buf *flat)
{
    static const char *const names[][2] = {{"[:alpha:]", "\\p{Alphabetic}"},
                                           {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
                                           {"[:punct:]", "\\p{P}\\p{S}"},
                                           {"[:upper:]", "\\p{Uppercase}"},
                                           {"[:lower:]", "\\p{Lowercase}"},
                                           {"[:space:]", WHITE},
                                           {"[:blank:]", "\\x{9}\\p{Zs}"},
                                           {"[:digit:]", "\\p{Nd}"},
                                           {"[:word:]", WORD},
                                           {"[:cntrl:]", "\\p{Cc}"},
                                           {"[:xdigit:]", HEX}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (looking_at(s, names[i][0])) {
            moe_buf_text(flat, names[i][1]);
            s->at += strlen(names[i][0]);
            return MOE_OK;
        }
    }
    return refuse_construct(s, "a named class of this kind");
}

/* Treats "-" after several characters as itself. */
static int no_range(struct scan *s, struct moe_buf *flat)
{
    if (s->end - s->at < 2 || *s->at != '-')
        return MOE_OK;
    if (s->at[1] != ']')
        return refuse_construct(s, "a range that begins with a class");
    moe_buf_text(flat, "\\-");
    s->at++;
    return MOE_OK;
}

/* Translates an escape inside a class. */
static int class_escape(struct scan *s, struct operand *o)
{
    if (s->end - s->at < 2)
        return refuse_construct(s, "a trailing backslash");
    char letter = s->at[1];
    const struct shorthand *known = find_shorthand(letter);
    if (known && known->inside && !*known->inside)
        return refuse_construct(s, "\\B in a class");
    if (known) {
        s->at += 2;
        moe_buf_text(known->inside ? &o->flat : &o->nested,
                     known->inside ? known->inside : known->outside);
        if (!known->inside)
            moe_buf_text(&o->nested, "|");
        return letter == 'b' ? MOE_OK : no_range(s, &o->flat);
    }
    struct scan flat = *s;
    flat.out = &o->flat;
    int status = plain_escape(&flat, "dDnrtfeax");
    s->at = flat.at;
    return status == MOE_OK && strchr("dDpP", letter) ? no_range(s, &o->flat) : status;
}

static int class_at(struct scan *s, int depth, struct moe_buf *out);

/* Translates one item of a class. */
static int class_item(struct scan *s, int depth, struct operand *o)
{
    if (*s->at == '\\')
        return class_escape(s, o);
    if (looking_at(s, "[:")) {
        MOE_TRY(posix(s, &o->flat));
        return no_range(s, &o->flat);
    }
    if (*s->at == '[') {
        MOE_TRY(class_at(s, depth + 1, &o->nested));
        moe_buf_text(&o->nested, "|");
        return MOE_OK;
    }
    if (*s->at == '^') /* would negate at the beginning of an operand */
        moe_buf_u8(&o->flat, '\\');
    moe_buf_append(&o->flat, s->at++, 1);
    return MOE_OK;
}

/*
 * Translates a class from "[" to its "]". PCRE2 has no classes in classes and no "&&": a union
 * becomes alternatives, an intersection lookaheads before its last operand, "^" a negative one.
 * Each matches one character.
 */
static int class_at(struct scan *s, int depth, struct moe_buf *out)
{
    struct operand o = {{0}, {0}};
    bool negated = s->at + 1 < s->end && s->at[1] == '^', several = false;
    int status = depth < NESTING_MAX ? MOE_OK : refuse_construct(s, "so deep a nesting of classes");
    struct moe_buf before = {0}; /* the operands so far */
    s->at += negated ? 2 : 1;
    if (s->at < s->end && *s->at == ']')
        moe_buf_append(&o.flat, s->at++, 1);
    while (status == MOE_OK && s->at < s->end && *s->at != ']') {
        bool both = looking_at(s, "&&");
        s->at += both ? 2 : 0;
        several = several || both;
        if (!both) {
            status = class_item(s, depth, &o);
            continue;
        }
        if (o.flat.size + o.nested.size == 0) {
            status = refuse_construct(s, "an intersection with nothing");
            continue;
        }
        moe_buf_text(&before, "(?=");
        write_operand(&o, false, &before);
        moe_buf_text(&before, ")");
        moe_buf_clear(&o.flat);
        moe_buf_clear(&o.nested);
    }
    if (status == MOE_OK && s->at == s->end)
        status = refuse_construct(s, "a class without an end");
    if (status == MOE_OK && o.flat.size + o.nested.size == 0)
        status = refuse_construct(s, "an empty class");
    s->at++; /* "]" */
    if (status == MOE_OK && several) {
        moe_buf_text(out, negated ? "(?:(?!" : "(?:");
        moe_buf_append(out, before.data, before.size);
        write_operand(&o, false, out);
        moe_buf_text(out, negated ? ")(?s:.))" : ")");
    } else if (status == MOE_OK) {
        write_operand(&o, negated, out);
    }
    if (status == MOE_OK && (o.flat.failed || o.nested.failed || before.failed))
        status = moe_fail(s->err, MOE_ERR_MEMORY, "out of memory");
    moe_buf_release(&before);
    operand_release(&o);
    return status;
}

/* ---- Groups, repeats ---- */

static int group(struct scan *s)
{
    if (looking_at(s, "(*"))
        return refuse_construct(s, "(*");
    copy_pattern(s, 1);
    if (s->at == s->end || *s->at != '?')
        return MOE_OK;
    copy_pattern(s, 1);
    if (looking_at(s, "<=") || looking_at(s, "<!")) {
        copy_pattern(s, 2);
        return MOE_OK;
    }
    /* Flags: Ruby's m lets the dot match a newline, as PCRE2's s does. */
    while (s->at < s->end && strchr("imx-", *s->at)) {
        moe_buf_u8(s->out, *s->at == 'm' ? 's' : (uint8_t)*s->at);
        s->at++;
    }
    if (s->at == s->end || !strchr(":=!>)", *s->at))
        return refuse_construct(s, "a group of this kind");
    copy_pattern(s, 1);
    return MOE_OK;
}

/* Translates {n,m}: Ruby's {,m} begins at 0, and {n,m}+ repeats where PCRE2's would be possessive.
 */
static int braces(struct scan *s)
{
    const char *p = s->at + 1;
    while (p < s->end && (isdigit((unsigned char)*p) || *p == ','))
        p++;
    if (p == s->end || *p != '}' || p == s->at + 1)
        return refuse_construct(s, "an unescaped {");
    if (p + 1 < s->end && p[1] == '+')
        return refuse_construct(s, "{n,m}+");
    copy_pattern(s, 1);
    if (*s->at == ',')
        moe_buf_u8(s->out, '0');
    copy_pattern(s, (uint64_t)(p + 1 - s->at));
    return MOE_OK;
}

static int translate_item(struct scan *s)
{
    switch (*s->at) {
    case '\\':
        return escape(s);
    case '[':
        return class_at(s, 0, s->out);
    case '(':
        return group(s);
    case '{':
        return braces(s);
    case '^':
    case '$':
        /* Ruby always takes these as the ends of a line. */
        moe_buf_printf(s->out, "(?m:%c)", *s->at++);
        return MOE_OK;
    default:
        copy_pattern(s, 1);
        return MOE_OK;
    }
}

int moe_pattern_translate(const char *pattern, uint64_t n, struct moe_buf *out, struct moe_err *err)
{
    struct scan s = {.at = pattern, .end = pattern + n, .out = out, .err = err};
    while (s.at < s.end) {
        MOE_TRY(translate_item(&s));
    }
    if (out->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    return MOE_OK;
}

/* ---- Matches in a text ---- */

/*
 * Bounds the cost of matching. PCRE2 does not report a match's cost, and its own limit ignores
 * characters that a repeat passes. So a search covers a view of few bytes with few tries, which
 * bound it. Where a match may extend beyond the view, or the tries run out, the places concerned
 * are tried one by one with the pattern compiled to call out before each of its items: each call is
 * a step, and so is every byte moved since the last one. The steps of a text are bounded in
 * proportion to its length, whatever the pattern.
 *
 * The patterns of GPT-2, Qwen2, Llama 3, o200k and a DeepSeek model take up to 0.1 steps a byte on
 * English, code and mathematics, and at most 4 on a megabyte of blanks, of one letter, digit or
 * line end, of Chinese, of marks or emoji.
 */
enum {
    VIEW_BYTES = 1024,
    TRIES = 4 * VIEW_BYTES,
    STEPS = 50 * 1000 * 1000, /* for a text: a second or less ... */
    STEPS_PER_BYTE = 64,      /* ... plus these for each byte */
    HEAP_LIMIT_KIB = 256 * 1024,
};

void moe_pretokenizer_release(struct moe_pretokenizer *p)
{
    for (int i = 0; i < MOE_STEPS_MAX; i++) {
        pcre2_match_data_free(p->match[i]);
        p->match[i] = NULL;
    }
    pcre2_match_context_free(p->limits);
    p->limits = NULL;
}

/* PCRE2's callout: spends the steps since the last call. */
static int spend(pcre2_callout_block *at, void *ctx)
{
    struct moe_pretokenizer *p = ctx;
    uint64_t now = at->current_position, before = p->position;
    uint64_t steps = 1 + (now > before ? now - before : before - now);
    p->position = now;
    if (steps > p->steps_left) {
        p->steps_left = 0;
        return PCRE2_ERROR_MATCHLIMIT;
    }
    p->steps_left -= steps;
    return 0;
}

static int prepare_match(struct moe_pretokenizer *p, uint32_t i, struct moe_err *err)
{
    if (!p->limits) {
        p->limits = pcre2_match_context_create(NULL);
        if (!p->limits)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KIB);
        pcre2_set_callout(p->limits, spend, p);
    }
    if (!p->match[i])
        p->match[i] = pcre2_match_data_create(1, NULL);
    return p->match[i] ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "out of memory");
}

static int match_at(struct moe_pretokenizer *p, uint32_t i, const void *code, const char *text,
                    uint64_t n, uint64_t from, uint32_t options)
{
    options |= PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, options, p->match[i], p->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, options | PCRE2_NO_JIT, p->match[i],
                         p->limits);
    return rc;
}

/* Searches the bytes [from, end); PCRE2_ERROR_PARTIAL if the match would look beyond them, with the
 * match's start where that begins. */
static int search_view(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                       uint64_t from, uint64_t end)
{
    pcre2_set_match_limit(p->limits, TRIES);
    return match_at(p, i, p->steps->steps[i].code, text, end, from,
                    end < n ? PCRE2_PARTIAL_HARD : 0);
}

/* Tries to match at each place in [from, end), counting steps. */
static int try_places(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                      uint64_t from, uint64_t end)
{
    int rc = PCRE2_ERROR_NOMATCH, length;
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    for (uint64_t at = from; at < end && rc == PCRE2_ERROR_NOMATCH; at += (uint64_t)length) {
        p->position = at;
        rc = match_at(p, i, p->steps->steps[i].counted, text, n, at, 0);
        moe_utf8_decode((const uint8_t *)text + at, n - at, &length);
    }
    return rc;
}

/* Returns PCRE2_ERROR_MATCHLIMIT when no steps are left. */
static int search_from(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                       uint64_t from)
{
    int rc = PCRE2_ERROR_NOMATCH;
    if (p->steps->steps[i].flags & MOE_STEP_LITERAL) /* needs no tries */
        return match_at(p, i, p->steps->steps[i].code, text, n, from, 0);
    for (uint64_t at = from, end; at < n && rc == PCRE2_ERROR_NOMATCH; at = end) {
        end = n - at <= VIEW_BYTES ? n : at + VIEW_BYTES;
        while (end < n && ((uint8_t)text[end] & 0xc0) == 0x80)
            end++; /* up to the character's end */
        rc = search_view(p, i, text, n, at, end);
        if (rc == PCRE2_ERROR_PARTIAL) {
            int length;
            at = pcre2_get_ovector_pointer(p->match[i])[0];
            moe_utf8_decode((const uint8_t *)text + at, n - at, &length);
            end = at + (uint64_t)length;
        } else if (rc != PCRE2_ERROR_MATCHLIMIT) {
            continue;
        }
        rc = try_places(p, i, text, n, at, end);
    }
    return rc;
}

int moe_pretokenizer_find(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                          uint64_t from, uint64_t *start, uint64_t *end, struct moe_err *err)
{
    MOE_TRY(prepare_match(p, i, err));
    int rc = search_from(p, i, text, n, from);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc == PCRE2_ERROR_MATCHLIMIT)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "pre-tokenizer pattern '%.100s' takes too many steps on a text of %" PRIu64
                        " bytes",
                        (const char *)p->steps->steps[i].text.data, p->text_bytes);
    if (rc < 0) {
        char why[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return moe_fail(err, MOE_ERR_LIMIT, "pre-tokenizer pattern '%.100s' failed on a text: %s",
                        (const char *)p->steps->steps[i].text.data, why);
    }
    const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(p->match[i]);
    *start = ovector[0];
    *end = ovector[1];
    if (*start < from || *end < *start)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "pre-tokenizer pattern moves its match's start");
    return 1;
}

void moe_pretokenizer_allow(struct moe_pretokenizer *p, uint64_t n)
{
    p->steps_left += (p->text_bytes ? 0 : STEPS) + STEPS_PER_BYTE * n;
    p->text_bytes += n;
}
