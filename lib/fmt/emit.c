/* Writes JSON and YAML, value by value. */
#include "fmt/emit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Whether every YAML reader takes the word for a text. */
static bool is_plain(const char *text)
{
    static const char *const taken[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n",
                                        "Null", "True", "False", "Yes", "No", "On", "Off", "Y", "N",
                                        "NULL", "TRUE", "FALSE", "YES", "NO", "ON", "OFF"};
    if (!((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z')))
        return false;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strcmp(text, taken[i]) == 0)
            return false;
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") ==
           strlen(text);
}

/* Whether YAML accepts the character as it is, within a line; JSON that our programs write must be
 * YAML too. */
static bool is_shown(uint32_t c)
{
    return c >= 0x20 && c != 0x7f && (c < 0x80 || c >= 0xa0) && c != 0x2028 && c != 0x2029 &&
           c != 0xfeff && c != 0xfffe && c != 0xffff;
}

/* Writes text in quotes; `other` replaces a byte that is not UTF-8. */
static void put_quoted(struct moe_buf *out, const uint8_t *p, uint64_t left, bool json,
                       const char *other)
{
    int n;
    moe_buf_text(out, "\"");
    for (; left; p += n, left -= (uint64_t)n) {
        uint32_t c = moe_utf8_decode(p, left, &n);
        if (c == '"' || c == '\\')
            moe_buf_printf(out, "\\%c", (int)c);
        else if (c == 0xfffd && n == 1)
            moe_buf_text(out, other);
        else if (is_shown(c))
            moe_buf_append(out, p, (uint64_t)n);
        else
            moe_buf_printf(out, json || c >= 0x100 ? "\\u%04" PRIx32 : "\\x%02" PRIx32, c);
    }
    moe_buf_text(out, "\"");
}

void moe_scalar_text(struct moe_buf *out, const char *text, bool json)
{
    if (!json && is_plain(text))
        moe_buf_text(out, text);
    else
        put_quoted(out, (const uint8_t *)text, strlen(text), json, "?");
}

void moe_scalar_bytes(struct moe_buf *out, const void *bytes, uint64_t n)
{
    put_quoted(out, bytes, n, true, "\xef\xbf\xbd");
}

void moe_scalar_double(struct moe_buf *out, double value)
{
    char text[40];
    /* The fewest digits would make 1e+01 of ten. */
    bool is_small_whole = fabs(value) < 1e6 && value == floor(value);
    for (int digits = is_small_whole ? 6 : 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    moe_buf_text(out, text);
}

/* ---- Objects, arrays, members ---- */

/* Whether YAML is being written, outside of a line. */
static bool in_block(const struct moe_emit *e)
{
    return !e->json && !e->line;
}

/* Begins a new line in indented JSON, `depth` levels deep. */
static void break_line(struct moe_emit *e, int depth)
{
    moe_buf_printf(e->out, "\n%*s", 2 * depth, "");
}

/* Writes what precedes a member's value; `after`: between key and value in YAML. */
static void lead(struct moe_emit *e, const char *key, const char *after)
{
    bool broken = e->spaced && !e->line;
    if (in_block(e) && !e->dashed) {
        for (int i = 0; i < e->depth; i++)
            moe_buf_text(e->out, "  ");
    } else if (!in_block(e) && !e->first) {
        moe_buf_text(e->out, broken || (e->json && !e->spaced) ? "," : ", ");
    }
    if (broken)
        break_line(e, e->depth + 1);
    if (key) {
        e->key = key;
        moe_scalar_text(e->out, key, e->json);
        moe_buf_text(e->out, !e->json ? after : e->spaced ? ": " : ":");
    } else if (in_block(e)) {
        moe_buf_text(e->out, "- ");
    }
    e->first = e->dashed = false;
}

static void end_value(struct moe_emit *e)
{
    if (in_block(e))
        moe_buf_text(e->out, "\n");
}

static void emit_open(struct moe_emit *e, const char *key, const char *brackets, bool in_line)
{
    if (e->depth == MOE_EMIT_MAX_DEPTH)
        abort(); /* none of our documents is so deep */
    in_line |= e->line > 0;
    lead(e, key, in_line ? ": " : ":\n");
    e->dashed = !key && in_block(e) && !in_line;
    e->closing[e->depth++] = brackets[1];
    if (in_line && !e->line)
        e->line = e->depth;
    if (!in_block(e))
        moe_buf_append(e->out, brackets, 1);
    e->first = true;
}

void moe_emit_open_map(struct moe_emit *e, const char *key)
{
    emit_open(e, key, "{}", false);
}

void moe_emit_open_list(struct moe_emit *e, const char *key)
{
    emit_open(e, key, "[]", false);
}

void moe_emit_open_line_map(struct moe_emit *e, const char *key)
{
    emit_open(e, key, "{}", true);
}

void moe_emit_open_line_list(struct moe_emit *e, const char *key)
{
    emit_open(e, key, "[]", true);
}

void moe_emit_close(struct moe_emit *e)
{
    bool ends_line = e->line == e->depth;
    e->depth--;
    if (e->spaced && !e->line && !e->first)
        break_line(e, e->depth + 1);
    if (!in_block(e))
        moe_buf_append(e->out, &e->closing[e->depth], 1);
    if (ends_line) {
        e->line = 0;
        end_value(e);
    }
    e->first = false;
}

void moe_emit_text(struct moe_emit *e, const char *key, const char *text)
{
    lead(e, key, ": ");
    moe_scalar_text(e->out, text, e->json);
    end_value(e);
}

void moe_emit_bytes(struct moe_emit *e, const char *key, const void *bytes, uint64_t n)
{
    lead(e, key, ": ");
    moe_scalar_bytes(e->out, bytes, n);
    end_value(e);
}

void moe_emit_u64(struct moe_emit *e, const char *key, uint64_t value)
{
    lead(e, key, ": ");
    moe_buf_printf(e->out, "%" PRIu64, value);
    end_value(e);
}

void moe_emit_i64(struct moe_emit *e, const char *key, int64_t value)
{
    lead(e, key, ": ");
    moe_buf_printf(e->out, "%" PRId64, value);
    end_value(e);
}

void moe_emit_double(struct moe_emit *e, const char *key, double value)
{
    lead(e, key, ": ");
    if (!isfinite(value))
        e->not_finite = e->key;
    moe_scalar_double(e->out, isfinite(value) ? value : 0);
    end_value(e);
}

void moe_emit_fixed(struct moe_emit *e, const char *key, int decimals, double value)
{
    lead(e, key, ": ");
    moe_buf_printf(e->out, "%.*f", decimals, value);
    end_value(e);
}

void moe_emit_rounded(struct moe_emit *e, const char *key, int digits, double value)
{
    lead(e, key, ": ");
    if (isfinite(value))
        moe_buf_printf(e->out, "%.*g", digits, value);
    else
        moe_buf_text(e->out, "null");
    end_value(e);
}

void moe_emit_real(struct moe_emit *e, const char *key, int digits, double value)
{
    char text[40];
    if (!isfinite(value)) {
        moe_emit_null(e, key);
        return;
    }
    snprintf(text, sizeof text, "%.*g", digits < 17 ? digits : 17, value);
    char *exponent = strchr(text, 'e'), *from = exponent ? exponent + 1 : NULL;
    if (exponent) { /* without a plus and leading zeros */
        char *to = exponent + 1;
        if (*from == '-')
            to++;
        from++;
        from += strspn(from, "0");
        memmove(to, from, strlen(from) + 1);
    } else if (!strchr(text, '.')) {
        strcat(text, ".0");
    }
    lead(e, key, ": ");
    moe_buf_text(e->out, text);
    end_value(e);
}

void moe_emit_null(struct moe_emit *e, const char *key)
{
    lead(e, key, ": ");
    moe_buf_text(e->out, "null");
    end_value(e);
}

void moe_emit_json(struct moe_emit *e, const char *key, const void *json, uint64_t n)
{
    const uint8_t *p = json;
    uint64_t copied = 0;
    int length;
    lead(e, key, ": ");
    for (uint64_t at = 0; at < n; at += (uint64_t)length) {
        uint32_t c = moe_utf8_decode(p + at, n - at, &length);
        if (c < 0x7f || is_shown(c)) /* below 0x20 there are but blanks, outside of texts */
            continue;
        moe_buf_append(e->out, p + copied, at - copied);
        moe_buf_printf(e->out, "\\u%04" PRIx32, c);
        copied = at + (uint64_t)length;
    }
    moe_buf_append(e->out, p + copied, n - copied);
    end_value(e);
}

void moe_emit_bool(struct moe_emit *e, const char *key, bool value)
{
    lead(e, key, ": ");
    moe_buf_text(e->out, value ? "true" : "false");
    end_value(e);
}

void moe_emit_fingerprint(struct moe_emit *e, const char *key, uint64_t value)
{
    lead(e, key, ": ");
    moe_buf_printf(e->out, "\"%016" PRIx64 "\"", value);
    end_value(e);
}

void moe_emit_u32s(struct moe_emit *e, const char *key, const uint32_t *values, uint32_t n)
{
    moe_emit_open_line_list(e, key);
    for (uint32_t i = 0; i < n; i++)
        moe_emit_u64(e, NULL, values[i]);
    moe_emit_close(e);
}

void moe_emit_doubles(struct moe_emit *e, const char *key, const double *values, uint32_t n)
{
    moe_emit_open_line_list(e, key);
    for (uint32_t i = 0; i < n; i++)
        moe_emit_double(e, NULL, values[i]);
    moe_emit_close(e);
}

void moe_emit_begin(struct moe_emit *e, struct moe_buf *out, bool json, const char *comment,
                    const char *format, uint32_t version)
{
    *e = (struct moe_emit){.out = out, .json = json, .first = true};
    if (json)
        moe_buf_text(out, "{");
    else
        moe_buf_printf(out, "# %s\n", comment);
    moe_emit_text(e, "format", format);
    moe_emit_u64(e, "version", version);
}

void moe_emit_begin_json(struct moe_emit *e, struct moe_buf *out, enum moe_emit_style style)
{
    *e = (struct moe_emit){.out = out,
                           .json = true,
                           .spaced = style != MOE_EMIT_COMPACT,
                           .line = style == MOE_EMIT_LINE ? -1 : 0,
                           .first = true};
    moe_buf_text(out, "{");
}

int moe_emit_end_item(struct moe_emit *e, struct moe_err *err)
{
    if (e->spaced && !e->line && !e->first)
        break_line(e, 0);
    moe_buf_text(e->out, e->json ? "}" : "");
    if (e->not_finite)
        return moe_fail(err, MOE_ERR_USAGE, "a number of '%s' is not finite", e->not_finite);
    return e->out->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

int moe_emit_end(struct moe_emit *e, struct moe_err *err)
{
    int status = moe_emit_end_item(e, err);
    moe_buf_text(e->out, e->json ? "\n" : "");
    return status == MOE_OK && e->out->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                                              : status;
}
