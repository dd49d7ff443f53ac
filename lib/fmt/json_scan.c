/* Reads JSON in place, value by value. */
#include "fmt/json_scan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

void moe_json_scan_begin(struct moe_json_scan *s, const char *name, const void *text, uint64_t n,
                         bool python, struct moe_err *err)
{
    const uint8_t *at = n ? text : (const void *)"";
    *s = (struct moe_json_scan){
        .err = err, .name = name, .text = at, .at = at, .end = at + n, .python = python};
}

int moe_json_scan_fail(struct moe_json_scan *s, const char *format, ...)
{
    char what[256];
    uint64_t line = 1, column = 1;
    va_list args;
    if (s->status != MOE_OK)
        return s->status;
    for (const uint8_t *p = s->text; p < s->at; p++) {
        if (*p == '\n') {
            line++;
            column = 1;
        } else if ((*p & 0xc0) != 0x80) { /* not within a character */
            column++;
        }
    }
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    s->status = moe_fail(s->err, MOE_ERR_FORMAT, "%s: line %" PRIu64 " column %" PRIu64 ": %s",
                         s->name, line, column, what);
    return s->status;
}

/* The next byte that is not blank, 0 at the end and after an error. */
static uint8_t peek_byte(struct moe_json_scan *s)
{
    if (s->status != MOE_OK)
        return 0;
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
    return s->at < s->end ? *s->at : 0;
}

/* Fails with "X was expected" and what is there instead. */
static void expected(struct moe_json_scan *s, const char *what)
{
    if (s->at == s->end)
        moe_json_scan_fail(s, "the text ends where %s was expected", what);
    else if (*s->at > 0x20 && *s->at < 0x7f)
        moe_json_scan_fail(s, "%s was expected, not '%c'", what, *s->at);
    else
        moe_json_scan_fail(s, "%s was expected, not byte 0x%02x", what, *s->at);
}

int moe_json_scan_end(struct moe_json_scan *s)
{
    peek_byte(s);
    if (s->status == MOE_OK && s->at < s->end)
        expected(s, "the end");
    return s->status;
}

/* ---- Texts ---- */

/* Reads four hexadecimal digits after \u; -1: missing. */
static int32_t read_code_unit(struct moe_json_scan *s)
{
    int32_t unit = 0;
    if (s->end - s->at < 6 || s->at[0] != '\\' || s->at[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        uint8_t c = s->at[i], lower = c | 0x20;
        if (c >= '0' && c <= '9')
            unit = unit * 16 + c - '0';
        else if (lower >= 'a' && lower <= 'f')
            unit = unit * 16 + lower - 'a' + 10;
        else
            return -1;
    }
    s->at += 6;
    return unit;
}

/* Reads the character after the backslash; -1: an error. */
static int32_t read_escape(struct moe_json_scan *s)
{
    static const char signs[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *sign = s->end - s->at >= 2 && s->at[1] ? strchr(signs, s->at[1]) : NULL;
    if (sign) {
        s->at += 2;
        return (uint8_t)meant[sign - signs];
    }
    const uint8_t *start = s->at;
    int32_t high = read_code_unit(s);
    if (high >= 0xd800 && high < 0xdc00) {
        int32_t low = read_code_unit(s);
        high =
            low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00) : -1;
    } else if (high >= 0xdc00 && high < 0xe000) {
        high = -1;
    }
    if (high < 0) {
        s->at = start;
        moe_json_scan_fail(s, "an escape that JSON does not have, or half a character");
    }
    return high;
}

/* Moves past a text's plain characters; false: none. */
static bool pass_plain(struct moe_json_scan *s)
{
    const uint8_t *start = s->at;
    while (s->at < s->end && *s->at >= 0x20 && *s->at != '"' && *s->at != '\\') {
        int length = 1;
        if (*s->at >= 0x80 &&
            moe_utf8_decode(s->at, (uint64_t)(s->end - s->at), &length) == 0xfffd && length == 1) {
            moe_json_scan_fail(s, "a text that is not UTF-8");
            return false;
        }
        s->at += length;
    }
    return s->at > start;
}

static void put_text(struct moe_json_scan *s, struct moe_buf *out, const void *bytes, uint64_t n)
{
    if (!out || s->status != MOE_OK)
        return;
    if (out->size + n > MOE_JSON_SCAN_TEXT_MAX) {
        moe_json_scan_fail(s, "a text of more than %d bytes", MOE_JSON_SCAN_TEXT_MAX);
        return;
    }
    moe_buf_append(out, bytes, n);
    if (out->failed)
        s->status = moe_fail(s->err, MOE_ERR_MEMORY, "%s: out of memory", s->name);
}

/* Reads the next text, in quotes; into `out` unless NULL. */
static void read_text(struct moe_json_scan *s, struct moe_buf *out, bool is_key)
{
    if (peek_byte(s) != '"') {
        expected(s, is_key ? "a key" : "a text");
        return;
    }
    if (out)
        moe_buf_clear(out);
    put_text(s, out, "", 0);
    s->at++;
    while (s->status == MOE_OK && s->at < s->end && *s->at != '"') {
        const uint8_t *start = s->at;
        if (pass_plain(s)) {
            put_text(s, out, start, (uint64_t)(s->at - start));
        } else if (s->status == MOE_OK && *s->at == '\\') {
            uint8_t bytes[4];
            int32_t c = read_escape(s);
            if (c == 0 && is_key)
                moe_json_scan_fail(s, "a key with a NUL character inside");
            if (c >= 0)
                put_text(s, out, bytes, (uint64_t)moe_utf8_encode((uint32_t)c, bytes));
        } else if (s->status == MOE_OK) {
            moe_json_scan_fail(s, "a text with control character 0x%02x", *s->at);
        }
    }
    if (s->status != MOE_OK)
        return;
    if (s->at == s->end)
        moe_json_scan_fail(s, "the text ends within quotes");
    else
        s->at++;
}

/* ---- Numbers and words ---- */

static bool is_digit(const struct moe_json_scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static void pass_digits(struct moe_json_scan *s)
{
    if (!is_digit(s))
        expected(s, "a digit");
    while (is_digit(s))
        s->at++;
}

/* *whole: without fraction and exponent. */
static void read_number(struct moe_json_scan *s, bool *whole)
{
    const uint8_t *start = s->at;
    if (*s->at == '-')
        s->at++;
    const uint8_t *digits = s->at;
    pass_digits(s);
    if (s->at - digits > 1 && *digits == '0') {
        s->at = start;
        moe_json_scan_fail(s, "a number that begins with 0");
    }
    *whole = true;
    if (s->status == MOE_OK && s->at < s->end && *s->at == '.') {
        s->at++;
        pass_digits(s);
        *whole = false;
    }
    if (s->status == MOE_OK && s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            s->at++;
        pass_digits(s);
        *whole = false;
    }
}

static bool looking_at(const struct moe_json_scan *s, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(s->end - s->at) >= n && memcmp(s->at, word, n) == 0;
}

static const struct {
    const char *word;
    enum moe_json_kind kind;
} words[] = {
    {"true", MOE_JSON_TRUTH},          {"false", MOE_JSON_TRUTH},
    {"null", MOE_JSON_NULL},           {"NaN", MOE_JSON_NOT_FINITE},
    {"Infinity", MOE_JSON_NOT_FINITE}, {"-Infinity", MOE_JSON_NOT_FINITE},
};

/* The number of the next word; -1: none of them. */
static int find_word(const struct moe_json_scan *s)
{
    for (int i = 0; i < (int)(sizeof words / sizeof words[0]); i++)
        if (looking_at(s, words[i].word) && (words[i].kind != MOE_JSON_NOT_FINITE || s->python))
            return i;
    return -1;
}

/* ---- Values ---- */

enum moe_json_kind moe_json_scan_peek(struct moe_json_scan *s)
{
    uint8_t c = peek_byte(s);
    int word = s->status == MOE_OK ? find_word(s) : -1;
    if (word >= 0)
        return words[word].kind;
    if (c == '{')
        return MOE_JSON_OBJECT;
    if (c == '[')
        return MOE_JSON_ARRAY;
    if (c == '"')
        return MOE_JSON_TEXT;
    if (c == '-' || (c >= '0' && c <= '9'))
        return MOE_JSON_NUMBER;
    if (s->status == MOE_OK)
        expected(s, "a value");
    return MOE_JSON_NONE;
}

const char *moe_json_kind_name(enum moe_json_kind kind)
{
    static const char *const names[] = {
        [MOE_JSON_NONE] = "nothing",    [MOE_JSON_OBJECT] = "an object",
        [MOE_JSON_ARRAY] = "an array",  [MOE_JSON_TEXT] = "a text",
        [MOE_JSON_NUMBER] = "a number", [MOE_JSON_TRUTH] = "a truth value",
        [MOE_JSON_NULL] = "null",       [MOE_JSON_NOT_FINITE] = "no finite number",
    };
    return names[kind];
}

void moe_json_scan_enter(struct moe_json_scan *s)
{
    bool object = peek_byte(s) == '{';
    if (s->status != MOE_OK)
        return;
    if (s->depth == MOE_JSON_SCAN_DEPTH) {
        moe_json_scan_fail(s, "nested more than %d deep", MOE_JSON_SCAN_DEPTH);
        return;
    }
    uint8_t bit = (uint8_t)(1U << s->depth % 8);
    if (object)
        s->objects[s->depth / 8] |= bit;
    else
        s->objects[s->depth / 8] &= (uint8_t)~bit;
    s->depth++;
    s->first = true;
    s->at++;
}

bool moe_json_scan_next(struct moe_json_scan *s, struct moe_buf *key)
{
    if (s->status != MOE_OK || s->depth == 0)
        return false;
    uint32_t level = s->depth - 1;
    bool object = s->objects[level / 8] >> level % 8 & 1, first = s->first;
    uint8_t c = peek_byte(s);
    s->first = false;
    if (c == (object ? '}' : ']')) {
        s->at++;
        s->depth--;
        return false;
    }
    if (!first && c != ',') {
        expected(s, object ? "',' or '}'" : "',' or ']'");
        return false;
    }
    if (!first)
        s->at++;
    if (object) {
        read_text(s, key, true);
        if (peek_byte(s) == ':')
            s->at++;
        else if (s->status == MOE_OK)
            expected(s, "':'");
    }
    return s->status == MOE_OK;
}

/* Reads past a value, or past the opening of an object or array. */
static void skip_one(struct moe_json_scan *s)
{
    bool whole;
    switch (moe_json_scan_peek(s)) {
    case MOE_JSON_NONE:
        break;
    case MOE_JSON_OBJECT:
    case MOE_JSON_ARRAY:
        moe_json_scan_enter(s);
        break;
    case MOE_JSON_TEXT:
        read_text(s, NULL, false);
        break;
    case MOE_JSON_NUMBER:
        read_number(s, &whole);
        break;
    case MOE_JSON_TRUTH:
    case MOE_JSON_NULL:
    case MOE_JSON_NOT_FINITE:
        s->at += strlen(words[find_word(s)].word);
        break;
    }
}

void moe_json_scan_skip(struct moe_json_scan *s)
{
    uint32_t depth = s->depth;
    skip_one(s);
    while (s->status == MOE_OK && s->depth > depth)
        if (moe_json_scan_next(s, NULL))
            skip_one(s);
}

const char *moe_json_scan_raw(struct moe_json_scan *s, uint64_t *n)
{
    moe_json_scan_peek(s);
    const uint8_t *start = s->at;
    moe_json_scan_skip(s);
    *n = (uint64_t)(s->at - start);
    return (const char *)start;
}

bool moe_json_is_sound(const void *text, uint64_t n)
{
    struct moe_json_scan s;
    moe_json_scan_begin(&s, "", text, n, false, NULL);
    moe_json_scan_skip(&s);
    return moe_json_scan_end(&s) == MOE_OK;
}

void moe_json_scan_text(struct moe_json_scan *s, struct moe_buf *out)
{
    read_text(s, out, false);
}

bool moe_json_scan_u64(struct moe_json_scan *s, uint64_t *out)
{
    bool whole = false;
    uint64_t value = 0;
    if (moe_json_scan_peek(s) != MOE_JSON_NUMBER)
        return false;
    const uint8_t *p = s->at;
    read_number(s, &whole);
    if (s->status != MOE_OK || !whole)
        return false;
    bool negative = *p == '-';
    for (p += negative; p < s->at; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > ((uint64_t)INT64_MAX - digit) / 10)
            return false;
        value = 10 * value + digit;
    }
    *out = value;
    return !negative || value == 0;
}
