/* Filters of texts, numbers and of any value. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "jinja/functions.h"
#include "jinja/letters.h"
#include "jinja/print.h"

/* What a filter stands behind. */
static struct jinja_value value_of(const struct jinja_args *args)
{
    return args->values[0];
}

/* ... as a text. */
static const struct jinja_text *text_of(struct jinja_run *run, const struct jinja_args *args)
{
    struct jinja_value v = jinja_str(run, args->at, value_of(args));
    jinja_step(run, args->at, v.as.text->n / 16);
    return v.as.text;
}

/* ---- Texts ---- */

static struct jinja_value f_upper(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    return jinja_upper(run, text_of(run, args));
}

static struct jinja_value f_lower(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    return jinja_lower(run, text_of(run, args));
}

static struct jinja_value f_title(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    return jinja_title(run, text_of(run, args), true);
}

static struct jinja_value f_capitalize(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    return jinja_capitalize(run, text_of(run, args));
}

static struct jinja_value f_trim(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value which = jinja_arg(args, 1, "chars", jinja_none());
    return jinja_strip(run, text_of(run, args), which.kind == JINJA_TEXT ? which.as.text : NULL,
                       JINJA_BOTH);
}

static struct jinja_value f_string(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return jinja_str(run, args->at, value_of(args));
}

static struct jinja_value f_replace(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value from = jinja_str(run, args->at, jinja_need(run, args, 1, "old"));
    struct jinja_value to = jinja_str(run, args->at, jinja_need(run, args, 2, "new"));
    struct jinja_value most = jinja_arg(args, 3, "count", jinja_none());
    return jinja_replace(run, args->at, text_of(run, args), from.as.text, to.as.text,
                         jinja_is_whole(most) ? jinja_whole(most) : -1);
}

static struct jinja_value f_indent(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    struct jinja_value width = jinja_arg(args, 1, "width", jinja_int(4));
    bool first = jinja_true(jinja_arg(args, 2, "first", jinja_bool(false)));
    bool blank = jinja_true(jinja_arg(args, 3, "blank", jinja_bool(false)));
    const struct jinja_text *text = text_of(run, args);
    struct jinja_builder b = {0}, by = {0};
    for (int64_t i = 0; jinja_is_whole(width) && i < jinja_whole(width); i++) {
        jinja_step(run, args->at, 1);
        jinja_add_char(run, &by, ' ');
    }
    struct jinja_value indent = width.kind == JINJA_TEXT ? width : jinja_built(run, &by);
    for (uint32_t i = 0, end; i <= text->n; i = end + 1) {
        const char *found = i < text->n ? memchr(text->bytes + i, '\n', text->n - i) : NULL;
        end = found ? (uint32_t)(found - text->bytes) : text->n;
        if ((i > 0 || first) && (end > i || blank))
            jinja_add_text(run, &b, indent.as.text);
        jinja_add_part(run, &b, text, i, found ? end + 1 : end);
    }
    return jinja_built(run, &b);
}

static struct jinja_value f_center(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    struct jinja_value width = jinja_arg(args, 1, "width", jinja_int(80));
    struct jinja_value of = jinja_str(run, args->at, value_of(args));
    struct jinja_value center = jinja_method(run, args->at, of, "center");
    return jinja_call(run, center, &(struct jinja_args){args->at, 1, 0, &width, NULL});
}

static struct jinja_value f_wordcount(struct jinja_run *run, const struct jinja_function *self,
                                      const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(run, args);
    int64_t n = 0;
    bool inside = false;
    int length;
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        bool word = jinja_is_alpha(c) || jinja_is_numeric(c) || c == '_';
        n += word && !inside;
        inside = word;
    }
    return jinja_int(n);
}

static struct jinja_value f_forceescape(struct jinja_run *run, const struct jinja_function *self,
                                        const struct jinja_args *args)
{
    return jinja_escape(run, text_of(run, args));
}

static struct jinja_value f_escape(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(run, args);
    return text->safe ? value_of(args) : jinja_escape(run, text);
}

static struct jinja_value f_safe(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_builder b = {0};
    jinja_add_text(run, &b, text_of(run, args));
    return jinja_built_safe(run, &b);
}

static struct jinja_value f_urlencode(struct jinja_run *run, const struct jinja_function *self,
                                      const struct jinja_args *args)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~/";
    static const char digits[] = "0123456789ABCDEF";
    const struct jinja_text *text = text_of(run, args);
    struct jinja_builder b = {0};
    for (uint32_t i = 0; i < text->n; i++) {
        unsigned char c = (unsigned char)text->bytes[i];
        if (c && strchr(plain, c)) {
            jinja_add_part(run, &b, text, i, i + 1);
            continue;
        }
        jinja_add_char(run, &b, '%');
        jinja_add_char(run, &b, digits[c >> 4]);
        jinja_add_char(run, &b, digits[c & 15]);
    }
    return jinja_built(run, &b);
}

static struct jinja_value f_format(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    struct jinja_value values = jinja_list(run, JINJA_TUPLE, args->n);
    for (uint32_t i = 1; i < args->n; i++)
        jinja_append(run, values, args->values[i]);
    return jinja_format(run, args->at, text_of(run, args), values);
}

/* The text cut to a length, at a word's end unless `killwords`. */
static struct jinja_value f_truncate(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(run, args);
    int64_t most = jinja_whole_arg(run, args, 1, "length", 255);
    bool kill = jinja_true(jinja_arg(args, 2, "killwords", jinja_bool(false)));
    struct jinja_value end = jinja_arg(args, 3, "end", jinja_words(run, "..."));
    struct jinja_value leeway = jinja_arg(args, 4, "leeway", jinja_none());
    int64_t spare = jinja_is_whole(leeway) ? jinja_whole(leeway) : 5;
    struct jinja_builder b = {0};
    if (end.kind != JINJA_TEXT)
        jinja_wrong(run, args, "a text", end);
    int64_t room = most - jinja_count(end.as.text, end.as.text->n);
    if (jinja_count(text, text->n) <= most + spare)
        return value_of(args);
    if (room < 0)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the length is below that of its end");
    uint32_t cut = jinja_byte_of(text, (uint64_t)room);
    for (uint32_t i = cut; !kill && i > 0; i--)
        if (text->bytes[i - 1] == ' ') {
            cut = i - 1;
            break;
        }
    jinja_add_part(run, &b, text, 0, cut);
    jinja_add_text(run, &b, end.as.text);
    return jinja_built(run, &b);
}

/* ---- JSON ---- */

static struct jinja_value f_tojson(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    struct jinja_value indent = jinja_arg(args, 2, "indent", jinja_none());
    struct jinja_value separators = jinja_arg(args, 3, "separators", jinja_none());
    struct jinja_builder b = {0}, by = {0};
    bool lines = indent.kind != JINJA_NONE;
    struct jinja_json_style style = {
        .ascii = jinja_true(jinja_arg(args, 1, "ensure_ascii", jinja_bool(false))),
        .sorted = jinja_true(jinja_arg(args, 4, "sort_keys", jinja_bool(false))),
        .item_separator = jinja_words(run, lines ? "," : ", ").as.text,
        .key_separator = jinja_words(run, ": ").as.text,
    };
    if (jinja_is_whole(indent))
        for (int64_t i = 0; i < jinja_whole(indent) && i < 64; i++)
            jinja_add_char(run, &by, ' ');
    else if (indent.kind == JINJA_TEXT)
        jinja_add_text(run, &by, indent.as.text);
    jinja_add_char(run, &by, '\0');
    style.indent = lines ? by.bytes : NULL;
    if (jinja_is_sequence(separators) && separators.as.list->n == 2 &&
        separators.as.list->items[0].kind == JINJA_TEXT &&
        separators.as.list->items[1].kind == JINJA_TEXT) {
        style.item_separator = separators.as.list->items[0].as.text;
        style.key_separator = separators.as.list->items[1].as.text;
    }
    jinja_print_json(run, args->at, &b, value_of(args), &style);
    return jinja_built(run, &b);
}

/* ---- Numbers ---- */

/* The number that a text spells, and nothing else but white space; false: it does not. */
static bool parse_number(struct jinja_run *run, const struct jinja_text *text, double *out)
{
    char copy[64];
    struct jinja_value bare = jinja_strip(run, text, NULL, JINJA_BOTH);
    if (bare.as.text->n == 0 || bare.as.text->n >= sizeof copy)
        return false;
    memcpy(copy, bare.as.text->bytes, bare.as.text->n);
    copy[bare.as.text->n] = '\0';
    if (strpbrk(copy, "xXpP"))
        return false;
    char *end;
    *out = strtod(copy, &end);
    return *end == '\0';
}

static struct jinja_value f_int(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    struct jinja_value v = value_of(args), otherwise = jinja_arg(args, 1, "default", jinja_int(0));
    int64_t base = jinja_whole_arg(run, args, 2, "base", 10);
    char copy[72], *end;
    double number = NAN;
    if (jinja_is_whole(v))
        return jinja_int(jinja_whole(v));
    if (v.kind == JINJA_UNDEFINED)
        jinja_wrong(run, args, "a number", v);
    if (v.kind == JINJA_TEXT && base >= 2 && base <= 36) {
        struct jinja_value bare = jinja_strip(run, v.as.text, NULL, JINJA_BOTH);
        if (bare.as.text->n > 0 && bare.as.text->n < sizeof copy) {
            memcpy(copy, bare.as.text->bytes, bare.as.text->n);
            copy[bare.as.text->n] = '\0';
            errno = 0;
            long long whole = strtoll(copy, &end, (int)base);
            if (*end == '\0' && errno == 0)
                return jinja_int(whole);
        }
        if (!parse_number(run, v.as.text, &number))
            return otherwise;
    } else if (v.kind == JINJA_FLOAT) {
        number = v.as.number;
    }
    return fabs(number) < 9.2e18 ? jinja_int((int64_t)number) : otherwise;
}

static struct jinja_value f_float(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value v = value_of(args),
                       otherwise = jinja_arg(args, 1, "default", jinja_float(0));
    double number;
    if (v.kind == JINJA_UNDEFINED)
        jinja_wrong(run, args, "a number", v);
    if (jinja_is_number(v))
        return jinja_float(jinja_number(v));
    if (v.kind == JINJA_TEXT && parse_number(run, v.as.text, &number))
        return jinja_float(number);
    return otherwise;
}

static struct jinja_value f_abs(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    struct jinja_value v = value_of(args);
    if (!jinja_is_number(v))
        jinja_wrong(run, args, "a number", v);
    if (v.kind == JINJA_FLOAT)
        return jinja_float(fabs(v.as.number));
    if (jinja_whole(v) == INT64_MIN)
        jinja_fail(&run->heap, args->at, MOE_ERR_LIMIT, "the number is too large");
    return jinja_int(llabs(jinja_whole(v)));
}

/* A whole number to the nearest multiple of ten to the `places`, halves to the even one. */
static int64_t round_whole(int64_t v, int64_t places)
{
    int64_t unit = 1;
    for (int64_t i = 0; i < places; i++)
        if (__builtin_mul_overflow(unit, (int64_t)10, &unit))
            return 0;
    int64_t rest = v % unit, down = v - rest, half = unit / 2;
    bool up = llabs(rest) > half || (llabs(rest) == half && unit > 1 && down / unit % 2 != 0);
    return up ? down + (rest < 0 ? -unit : unit) : down;
}

static struct jinja_value f_round(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value v = value_of(args),
                       method = jinja_arg(args, 2, "method", jinja_words(run, "common"));
    int64_t digits = jinja_whole_arg(run, args, 1, "precision", 0);
    if (!jinja_is_number(v))
        jinja_wrong(run, args, "a number", v);
    if (digits < -300 || digits > 300)
        return jinja_float(jinja_number(v));
    double scale = pow(10, (double)digits), scaled = jinja_number(v) * scale;
    if (jinja_is_name(method, "ceil"))
        return jinja_float(ceil(scaled) / scale);
    if (jinja_is_name(method, "floor"))
        return jinja_float(floor(scaled) / scale);
    if (jinja_is_whole(v))
        return jinja_int(digits < 0 ? round_whole(jinja_whole(v), -digits) : jinja_whole(v));
    /* As Python's round: by the decimal digits of the number itself, halves to even. */
    if (digits >= 0) {
        char text[400];
        snprintf(text, sizeof text, "%.*f", (int)(digits > 80 ? 80 : digits), jinja_number(v));
        return jinja_float(strtod(text, NULL));
    }
    return jinja_float(nearbyint(scaled) / scale);
}

/* ---- Any value ---- */

static struct jinja_value f_default(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value v = value_of(args);
    bool falsy = jinja_true(jinja_arg(args, 2, "boolean", jinja_bool(false)));
    if (v.kind == JINJA_UNDEFINED || (falsy && !jinja_true(v)))
        return jinja_arg(args, 1, "default_value", jinja_words(run, ""));
    return v;
}

static struct jinja_value f_attr(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    const struct jinja_text *name = jinja_need_text(run, args, 1, "name");
    char *copy = jinja_take(&run->heap, name->n + 1, 1);
    memcpy(copy, name->bytes, name->n);
    if (value_of(args).kind == JINJA_DICT) /* its members are no attributes */
        return jinja_method(run, args->at, value_of(args), copy);
    return jinja_member(run, args->at, value_of(args), copy);
}

const struct jinja_named jinja_filters_of_values[] = {
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"capitalize", f_capitalize},
    {"trim", f_trim},
    {"string", f_string},
    {"replace", f_replace},
    {"indent", f_indent},
    {"center", f_center},
    {"wordcount", f_wordcount},
    {"escape", f_escape},
    {"e", f_escape},
    {"forceescape", f_forceescape},
    {"urlencode", f_urlencode},
    {"format", f_format},
    {"truncate", f_truncate},
    {"tojson", f_tojson},
    {"int", f_int},
    {"float", f_float},
    {"abs", f_abs},
    {"round", f_round},
    {"default", f_default},
    {"d", f_default},
    {"safe", f_safe},
    {"attr", f_attr},
    {NULL, NULL},
};
