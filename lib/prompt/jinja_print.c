/* Values as text, as Python's str, repr and json.dumps write them. */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "prompt/jinja_value.h"

/* ---- Numbers ---- */

/* The shortest digits of a positive number that identify it, "d.ddd", and its exponent. */
static int shortest(double number, char digits[32])
{
    char text[40];
    int precision = 0;
    do
        snprintf(text, sizeof text, "%.*e", precision, number);
    while (strtod(text, NULL) != number && ++precision < 17);
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1), n = 0;
    for (char *p = text; p < e; p++)
        if (*p != '.')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    return exponent;
}

/* Writes a float like Python: all digits from 1e-4 up to 1e16, with an exponent beyond. */
static void write_float(double number, const char *infinity, const char *nan, char out[64])
{
    char digits[32];
    const char *sign = signbit(number) ? "-" : "";
    if (isnan(number) || isinf(number)) {
        snprintf(out, 64, "%s%s", isnan(number) ? "" : sign, isnan(number) ? nan : infinity);
        return;
    }
    if (number == 0) {
        snprintf(out, 64, "%s0.0", sign);
        return;
    }
    int exponent = shortest(fabs(number), digits), n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16)
        snprintf(out, 64, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(out, 64, "%s0.%.*s%s", sign, -exponent - 1, "000", digits);
    else if (n <= exponent + 1)
        snprintf(out, 64, "%s%s%.*s.0", sign, digits, exponent + 1 - n, "0000000000000000");
    else
        snprintf(out, 64, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
}

static void print_number(struct jinja_run *run, struct jinja_builder *b, struct jinja_value v,
                         const char *infinity, const char *nan)
{
    char text[64];
    if (v.kind == JINJA_FLOAT)
        write_float(v.as.number, infinity, nan, text);
    else
        snprintf(text, sizeof text, "%" PRId64, v.as.whole);
    jinja_add_words(run, b, text);
}

/* ---- Python's str and repr ---- */

static void print_character(struct jinja_run *run, struct jinja_builder *b,
                            const struct jinja_text *text, uint32_t i, int length, char quote)
{
    char escape[16];
    uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
    if (c == (unsigned char)quote || c == '\\')
        snprintf(escape, sizeof escape, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (jinja_is_printable(c)) {
        jinja_add_part(run, b, text, i, i + (uint32_t)length);
        return;
    } else {
        const char *format = c < 0x100     ? "\\x%02" PRIx32
                             : c < 0x10000 ? "\\u%04" PRIx32
                                           : "\\U%08" PRIx32;
        snprintf(escape, sizeof escape, format, c);
    }
    jinja_add(run, b, escape, strlen(escape), jinja_is_callers(text, i));
}

static void print_quoted_text(struct jinja_run *run, struct jinja_builder *b,
                              const struct jinja_text *text)
{
    bool single = memchr(text->bytes, '\'', text->n), twice = memchr(text->bytes, '"', text->n);
    char quote = single && !twice ? '"' : '\'';
    int length;
    jinja_add_char(run, b, quote);
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        print_character(run, b, text, i, length, quote);
    }
    jinja_add_char(run, b, quote);
}

static void print_list(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                       struct jinja_value v)
{
    bool tuple = v.kind == JINJA_TUPLE;
    jinja_add_char(run, b, tuple ? '(' : '[');
    for (uint32_t i = 0; i < v.as.list->n; i++) {
        if (i)
            jinja_add_words(run, b, ", ");
        jinja_print_quoted(run, at, b, v.as.list->items[i]);
    }
    if (tuple && v.as.list->n == 1)
        jinja_add_char(run, b, ',');
    jinja_add_char(run, b, tuple ? ')' : ']');
}

static void print_dict(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                       const struct jinja_dict *dict)
{
    jinja_add_char(run, b, '{');
    for (uint32_t i = 0; i < dict->n; i++) {
        if (i)
            jinja_add_words(run, b, ", ");
        jinja_print_quoted(run, at, b, dict->entries[i].key);
        jinja_add_words(run, b, ": ");
        jinja_print_quoted(run, at, b, dict->entries[i].value);
    }
    jinja_add_char(run, b, '}');
}

void jinja_print_quoted(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                        struct jinja_value v)
{
    jinja_enter(run, at);
    jinja_step(run, at, 1);
    switch (v.kind) {
    case JINJA_UNDEFINED:
        jinja_add_words(run, b, "Undefined");
        break;
    case JINJA_NONE:
        jinja_add_words(run, b, "None");
        break;
    case JINJA_BOOL:
        jinja_add_words(run, b, v.as.truth ? "True" : "False");
        break;
    case JINJA_INT:
    case JINJA_FLOAT:
        print_number(run, b, v, "inf", "nan");
        break;
    case JINJA_LARGE:
        jinja_add_text(run, b, v.as.text);
        break;
    case JINJA_TEXT:
        print_quoted_text(run, b, v.as.text);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        print_list(run, at, b, v);
        break;
    case JINJA_DICT:
        print_dict(run, at, b, v.as.dict);
        break;
    case JINJA_NAMESPACE:
        jinja_add_words(run, b, "<Namespace ");
        print_dict(run, at, b, v.as.dict);
        jinja_add_char(run, b, '>');
        break;
    case JINJA_LOOP:
    case JINJA_FUNCTION:
    case JINJA_STREAM:
        jinja_add_char(run, b, '<');
        jinja_add_words(run, b, jinja_kind_name(v));
        jinja_add_char(run, b, '>');
        break;
    }
    jinja_leave(run);
}

void jinja_print(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                 struct jinja_value v)
{
    if (v.kind == JINJA_TEXT)
        jinja_add_text(run, b, v.as.text);
    else if (v.kind != JINJA_UNDEFINED)
        jinja_print_quoted(run, at, b, v);
}

struct jinja_value jinja_str(struct jinja_run *run, struct jinja_place at, struct jinja_value v)
{
    struct jinja_builder b = {0};
    if (v.kind == JINJA_TEXT)
        return v;
    jinja_print(run, at, &b, v);
    return jinja_built(run, &b);
}

/* ---- JSON ---- */

struct json_writer {
    struct jinja_run *run;
    struct jinja_place at;
    struct jinja_builder *b;
    const struct jinja_json_style *style;
    uint32_t level;
};

static void json_value(struct json_writer *w, struct jinja_value v);

static void json_line(struct json_writer *w)
{
    if (!w->style->indent)
        return;
    jinja_step(w->run, w->at, w->level);
    jinja_add_char(w->run, w->b, '\n');
    for (uint32_t i = 0; i < w->level; i++)
        jinja_add_words(w->run, w->b, w->style->indent);
}

static void json_escape(struct json_writer *w, uint32_t c, char out[16])
{
    static const char plain[] = "\"\\\n\r\t\b\f", escaped[] = "\"\\nrtbf";
    const char *at = c && c < 0x80 ? strchr(plain, (int)c) : NULL;
    if (at)
        snprintf(out, 16, "\\%c", escaped[at - plain]);
    else if (c < 0x20 || (w->style->ascii && c >= 0x7f && c < 0x10000))
        snprintf(out, 16, "\\u%04" PRIx32, c);
    else if (w->style->ascii && c >= 0x10000)
        snprintf(out, 16, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + ((c - 0x10000) >> 10),
                 0xdc00 + ((c - 0x10000) & 0x3ff));
    else
        out[0] = '\0';
    if (c == 0x7f)
        out[0] = '\0';
}

static void json_text(struct json_writer *w, const struct jinja_text *text)
{
    uint32_t plain = 0; /* start of a run copied unchanged */
    int length;
    char escape[16];
    bool caller = text->n_parts > 0;
    jinja_add_char(w->run, w->b, '"');
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        json_escape(w, c, escape);
        if (!escape[0])
            continue;
        jinja_add_part(w->run, w->b, text, plain, i);
        jinja_add(w->run, w->b, escape, strlen(escape), caller);
        plain = i + (uint32_t)length;
    }
    jinja_add_part(w->run, w->b, text, plain, text->n);
    jinja_add_char(w->run, w->b, '"');
}

static void json_separator(struct json_writer *w, uint32_t i)
{
    if (i)
        jinja_add_text(w->run, w->b, w->style->item_separator);
    json_line(w);
}

static void json_list(struct json_writer *w, const struct jinja_list *list)
{
    jinja_add_char(w->run, w->b, '[');
    w->level++;
    for (uint32_t i = 0; i < list->n; i++) {
        json_separator(w, i);
        json_value(w, list->items[i]);
    }
    w->level--;
    if (list->n)
        json_line(w);
    jinja_add_char(w->run, w->b, ']');
}

static void json_key(struct json_writer *w, struct jinja_value key)
{
    struct jinja_builder b = {0};
    struct json_writer as_text = *w;
    as_text.b = &b;
    if (key.kind != JINJA_TEXT && !jinja_is_number(key) && key.kind != JINJA_NONE)
        jinja_fail(&w->run->heap, w->at, MOE_ERR_FORMAT, "a %s cannot be a key in JSON",
                   jinja_kind_name(key));
    if (key.kind != JINJA_TEXT) {
        json_value(&as_text, key);
        key = jinja_built(w->run, &b);
    }
    json_text(w, key.as.text);
    jinja_add_text(w->run, w->b, w->style->key_separator);
}

static void json_dict(struct json_writer *w, const struct jinja_dict *dict)
{
    const struct jinja_entry *entries = dict->entries;
    if (w->style->sorted)
        entries = jinja_sorted_entries(w->run, w->at, dict, false, false);
    jinja_add_char(w->run, w->b, '{');
    w->level++;
    for (uint32_t i = 0; i < dict->n; i++) {
        json_separator(w, i);
        json_key(w, entries[i].key);
        json_value(w, entries[i].value);
    }
    w->level--;
    if (dict->n)
        json_line(w);
    jinja_add_char(w->run, w->b, '}');
}

static void json_value(struct json_writer *w, struct jinja_value v)
{
    jinja_enter(w->run, w->at);
    jinja_step(w->run, w->at, 1);
    switch (v.kind) {
    case JINJA_NONE:
        jinja_add_words(w->run, w->b, "null");
        break;
    case JINJA_BOOL:
        jinja_add_words(w->run, w->b, v.as.truth ? "true" : "false");
        break;
    case JINJA_INT:
    case JINJA_FLOAT:
        print_number(w->run, w->b, v, "Infinity", "NaN");
        break;
    case JINJA_LARGE:
        jinja_add_text(w->run, w->b, v.as.text);
        break;
    case JINJA_TEXT:
        json_text(w, v.as.text);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        json_list(w, v.as.list);
        break;
    case JINJA_DICT:
        json_dict(w, v.as.dict);
        break;
    default:
        jinja_fail(&w->run->heap, w->at, MOE_ERR_FORMAT, "JSON has nothing for a %s",
                   jinja_kind_name(v));
    }
    jinja_leave(w->run);
}

void jinja_print_json(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                      struct jinja_value v, const struct jinja_json_style *style)
{
    struct json_writer w = {run, at, b, style, 0};
    json_value(&w, v);
}
