/* Filters and tests. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "prompt/jinja_functions.h"
#include "prompt/jinja_value.h"

/* The value that a filter is applied to. */
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

/* Cuts the text to a length, at a word's end unless `killwords`. */
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
    struct jinja_value v = value_of(args);
    if (v.kind == JINJA_STREAM) /* a list, as llama.cpp has it */
        v = jinja_items(run, args->at, v);
    jinja_print_json(run, args->at, &b, v, &style);
    return jinja_built(run, &b);
}

/* ---- Numbers ---- */

/* Parses a number that fills the whole text but for white space; false: it is not one. */
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

/* Rounds a whole number to the nearest multiple of ten to the `places`, halves to the even one. */
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
    if (value_of(args).kind == JINJA_DICT) /* its members are not attributes */
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

/* Filters of lists and dictionaries. */

static struct jinja_value items_of(struct jinja_run *run, const struct jinja_args *args)
{
    return jinja_items(run, args->at, args->values[0]);
}

/* ---- Members by path ---- */

/* item.a.b or item[0], named by "a.b" or a number. */
static struct jinja_value by_path(struct jinja_run *run, struct jinja_place at,
                                  struct jinja_value item, struct jinja_value path)
{
    if (path.kind != JINJA_TEXT)
        return jinja_subscript(run, at, item, path);
    const struct jinja_text *text = path.as.text;
    for (uint32_t i = 0, end; i <= text->n; i = end + 1) {
        const char *dot = i < text->n ? memchr(text->bytes + i, '.', text->n - i) : NULL;
        end = dot ? (uint32_t)(dot - text->bytes) : text->n;
        struct jinja_value key = jinja_part_of(run, text, i, end);
        char *rest, *name = jinja_take(&run->heap, key.as.text->n + 1, 1);
        memcpy(name, key.as.text->bytes, key.as.text->n);
        long number = strtol(name, &rest, 10);
        if (name[0] && !*rest)
            key = jinja_int(number);
        item = jinja_subscript(run, at, item, key);
    }
    return item;
}

/* The sort key of an item: itself, or its member named by the argument. */
static struct jinja_value sort_key_of(struct jinja_run *run, const struct jinja_args *args,
                                      struct jinja_value item, struct jinja_value attribute)
{
    return attribute.kind == JINJA_NONE ? item : by_path(run, args->at, item, attribute);
}

/* ---- Filters over all items ---- */

static struct jinja_value f_length(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return jinja_int(jinja_length(run, args->at, args->values[0]));
}

static struct jinja_value f_list(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value from = items_of(run, args);
    struct jinja_value list = jinja_list(run, JINJA_LIST, from.as.list->n);
    for (uint32_t i = 0; i < from.as.list->n; i++)
        jinja_append(run, list, from.as.list->items[i]);
    return list;
}

static struct jinja_value f_first(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args);
    return list.as.list->n ? list.as.list->items[0] : jinja_undefined("the first item of nothing");
}

static struct jinja_value f_last(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args);
    uint32_t n = list.as.list->n;
    return n ? list.as.list->items[n - 1] : jinja_undefined("the last item of nothing");
}

static struct jinja_value f_join(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), texts = jinja_list(run, JINJA_LIST, 0);
    struct jinja_value between = jinja_arg(args, 1, "d", jinja_words(run, ""));
    struct jinja_value attribute = jinja_arg(args, 2, "attribute", jinja_none());
    between = jinja_str(run, args->at, between);
    for (uint32_t i = 0; i < list.as.list->n; i++)
        jinja_append(
            run, texts,
            jinja_str(run, args->at, sort_key_of(run, args, list.as.list->items[i], attribute)));
    return jinja_join(run, args->at, texts, between.as.text);
}

static struct jinja_value as_given(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return args->values[0];
}

static struct jinja_value f_reverse(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), back = jinja_list(run, JINJA_LIST, 0);
    bool text = args->values[0].kind == JINJA_TEXT;
    for (uint32_t i = list.as.list->n; i > 0; i--)
        jinja_append(run, back, list.as.list->items[i - 1]);
    if (text)
        return jinja_join(run, args->at, back, jinja_words(run, "").as.text);
    struct jinja_value *one = jinja_take(&run->heap, 1, sizeof *one);
    *one = back;
    return jinja_stream(run, as_given, &(struct jinja_args){args->at, 1, 0, one, NULL});
}

static struct jinja_value f_sum(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args);
    struct jinja_value attribute = jinja_arg(args, 1, "attribute", jinja_none());
    struct jinja_value sum = jinja_arg(args, 2, "start", jinja_int(0));
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value v = sort_key_of(run, args, list.as.list->items[i], attribute);
        int64_t whole;
        if (!jinja_is_number(v) || !jinja_is_number(sum))
            jinja_wrong(run, args, "a number", jinja_is_number(v) ? sum : v);
        if (!jinja_is_whole(v) || !jinja_is_whole(sum))
            sum = jinja_float(jinja_number(sum) + jinja_number(v));
        else if (__builtin_add_overflow(jinja_whole(sum), jinja_whole(v), &whole))
            jinja_fail(&run->heap, args->at, MOE_ERR_LIMIT, "the number is too large");
        else
            sum = jinja_int(whole);
    }
    return sum;
}

static struct jinja_value extreme(struct jinja_run *run, const struct jinja_args *args, int sign)
{
    struct jinja_value list = items_of(run, args);
    bool fold = !jinja_true(jinja_arg(args, 1, "case_sensitive", jinja_bool(false)));
    struct jinja_value attribute = jinja_arg(args, 2, "attribute", jinja_none()), best_key, best;
    if (list.as.list->n == 0)
        return jinja_undefined("the extreme of nothing");
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value key = sort_key_of(run, args, list.as.list->items[i], attribute);
        key = fold ? jinja_folded(run, key) : key;
        if (i > 0 && sign * jinja_compare(run, args->at, key, best_key) <= 0)
            continue;
        best_key = key;
        best = list.as.list->items[i];
    }
    return best;
}

static struct jinja_value f_max(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    return extreme(run, args, 1);
}

static struct jinja_value f_min(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    return extreme(run, args, -1);
}

static struct jinja_value f_sort(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), sorted = jinja_list(run, JINJA_LIST, 0);
    bool reverse = jinja_true(jinja_arg(args, 1, "reverse", jinja_bool(false)));
    bool fold = !jinja_true(jinja_arg(args, 2, "case_sensitive", jinja_bool(false)));
    struct jinja_value attribute = jinja_arg(args, 3, "attribute", jinja_none());
    uint32_t n = list.as.list->n;
    struct jinja_entry *order = jinja_take(&run->heap, n, sizeof *order);
    for (uint32_t i = 0; i < n; i++)
        order[i] = (struct jinja_entry){sort_key_of(run, args, list.as.list->items[i], attribute),
                                        list.as.list->items[i]};
    jinja_sort(run, args->at, order, n, fold, reverse);
    for (uint32_t i = 0; i < n; i++)
        jinja_append(run, sorted, order[i].value);
    return sorted;
}

static struct jinja_value unique_now(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), kept = jinja_list(run, JINJA_LIST, 0);
    struct jinja_value keys = jinja_list(run, JINJA_LIST, 0);
    bool fold = !jinja_true(jinja_arg(args, 1, "case_sensitive", jinja_bool(false)));
    struct jinja_value attribute = jinja_arg(args, 2, "attribute", jinja_none());
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value key = sort_key_of(run, args, list.as.list->items[i], attribute);
        key = fold ? jinja_folded(run, key) : key;
        if (jinja_contains(run, args->at, keys, key))
            continue;
        jinja_append(run, keys, key);
        jinja_append(run, kept, list.as.list->items[i]);
    }
    return kept;
}

/* ---- Groups ---- */

static struct jinja_value batch_now(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), rows = jinja_list(run, JINJA_LIST, 0), row;
    int64_t n = jinja_whole_arg(run, args, 1, "linecount", 0);
    struct jinja_value fill = jinja_arg(args, 2, "fill_with", jinja_none());
    if (n < 1)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "a batch has at least one item");
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        if (i % n == 0)
            jinja_append(run, rows, row = jinja_list(run, JINJA_LIST, 0));
        jinja_append(run, row, list.as.list->items[i]);
    }
    while (fill.kind != JINJA_NONE && list.as.list->n && row.as.list->n < n) {
        jinja_step(run, args->at, 1);
        jinja_append(run, row, fill);
    }
    return rows;
}

static struct jinja_value slice_now(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), rows = jinja_list(run, JINJA_LIST, 0);
    int64_t n = jinja_whole_arg(run, args, 1, "slices", 0), from = 0;
    struct jinja_value fill = jinja_arg(args, 2, "fill_with", jinja_none());
    if (n < 1)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there is at least one slice");
    jinja_step(run, args->at, (uint64_t)n);
    int64_t each = list.as.list->n / n, more = list.as.list->n % n;
    for (int64_t k = 0; k < n; k++) {
        struct jinja_value row = jinja_list(run, JINJA_LIST, 0);
        int64_t take = each + (k < more);
        for (int64_t i = 0; i < take; i++)
            jinja_append(run, row, list.as.list->items[from + i]);
        from += take;
        if (fill.kind != JINJA_NONE && k >= more && more)
            jinja_append(run, row, fill);
        jinja_append(run, rows, row);
    }
    return rows;
}

static struct jinja_value f_groupby(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), groups = jinja_list(run, JINJA_LIST, 0);
    struct jinja_value attribute = jinja_need(run, args, 1, "attribute");
    struct jinja_value otherwise = jinja_arg(args, 2, "default", jinja_none());
    uint32_t n = list.as.list->n;
    struct jinja_entry *order = jinja_take(&run->heap, n, sizeof *order);
    for (uint32_t i = 0; i < n; i++) {
        struct jinja_value key = by_path(run, args->at, list.as.list->items[i], attribute);
        key = key.kind == JINJA_UNDEFINED ? otherwise : key;
        order[i] = (struct jinja_entry){key, list.as.list->items[i]};
    }
    jinja_sort(run, args->at, order, n, false, false);
    for (uint32_t i = 0; i < n;) {
        struct jinja_value group = jinja_list(run, JINJA_TUPLE, 2);
        struct jinja_value members = jinja_list(run, JINJA_LIST, 0), key = order[i].key;
        for (; i < n && jinja_equal(run, args->at, order[i].key, key); i++)
            jinja_append(run, members, order[i].value);
        jinja_append(run, group, key);
        jinja_append(run, group, members);
        jinja_append(run, groups, group);
    }
    return groups;
}

static struct jinja_value items_now(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value v = args->values[0];
    if (v.kind == JINJA_UNDEFINED)
        return jinja_list(run, JINJA_LIST, 0);
    if (v.kind != JINJA_DICT)
        jinja_wrong(run, args, "a dictionary", v);
    return jinja_call(run, jinja_method(run, args->at, v, "items"),
                      &(struct jinja_args){args->at, 0, 0, NULL, NULL});
}

static struct jinja_value f_dictsort(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    struct jinja_value v = args->values[0], list = jinja_list(run, JINJA_LIST, 0);
    bool fold = !jinja_true(jinja_arg(args, 1, "case_sensitive", jinja_bool(false)));
    struct jinja_value by = jinja_arg(args, 2, "by", jinja_words(run, "key"));
    if (v.kind != JINJA_DICT)
        jinja_wrong(run, args, "a dictionary", v);
    const struct jinja_entry *sorted =
        jinja_sorted_entries(run, args->at, v.as.dict, jinja_is_name(by, "value"), fold);
    bool reverse = jinja_true(jinja_arg(args, 3, "reverse", jinja_bool(false)));
    for (uint32_t i = 0; i < v.as.dict->n; i++) {
        const struct jinja_entry *entry = &sorted[reverse ? v.as.dict->n - 1 - i : i];
        struct jinja_value pair = jinja_list(run, JINJA_TUPLE, 2);
        jinja_append(run, pair, entry->key);
        jinja_append(run, pair, entry->value);
        jinja_append(run, list, pair);
    }
    return list;
}

/* ---- Each item through a filter or a test ---- */

/* The arguments after number `first`, to be applied to an item. */
static struct jinja_args item_args(struct jinja_run *run, const struct jinja_args *args,
                                   uint32_t first, struct jinja_value item)
{
    uint32_t n = args->n > first ? args->n - first : 0;
    struct jinja_value *values = jinja_take(&run->heap, n + 1, sizeof *values);
    values[0] = item;
    if (n)
        memcpy(values + 1, args->values + first, n * sizeof *values);
    return (struct jinja_args){args->at, n + 1, args->n_named, values, args->names};
}

/* The items of a true value; none of any other, None included. */
static struct jinja_value items_if_any(struct jinja_run *run, const struct jinja_args *args)
{
    return jinja_true(args->values[0]) ? items_of(run, args) : jinja_list(run, JINJA_LIST, 0);
}

/* The name of a filter or test, argument number i. */
static const char *name_at(struct jinja_run *run, const struct jinja_args *args, uint32_t i)
{
    const struct jinja_text *text = jinja_need_text(run, args, i, NULL);
    char *name = jinja_take(&run->heap, text->n + 1, 1);
    memcpy(name, text->bytes, text->n);
    return name;
}

static struct jinja_value map_now(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value list = items_if_any(run, args), mapped = jinja_list(run, JINJA_LIST, 0);
    bool positional = args->n - args->n_named > 1;
    struct jinja_value attribute = jinja_arg(args, UINT32_MAX, "attribute", jinja_none());
    struct jinja_value otherwise = jinja_arg(args, UINT32_MAX, "default", jinja_undefined(NULL));
    const char *filter = positional ? name_at(run, args, 1) : NULL;
    if (!positional && attribute.kind == JINJA_NONE)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "map needs a filter or an attribute");
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value item = list.as.list->items[i];
        if (filter) {
            struct jinja_args inner = item_args(run, args, 2, item);
            item = jinja_filter(run, filter, &inner);
        } else {
            item = by_path(run, args->at, item, attribute);
            item = item.kind == JINJA_UNDEFINED ? otherwise : item;
        }
        jinja_append(run, mapped, item);
    }
    return mapped;
}

/* The items for which a test, of a member (attribute) or of themselves, gives `wanted`. */
static struct jinja_value select_items(struct jinja_run *run, const struct jinja_args *args,
                                       bool attribute, bool wanted)
{
    struct jinja_value list = items_if_any(run, args), kept = jinja_list(run, JINJA_LIST, 0);
    uint32_t at = attribute ? 2 : 1;
    const char *test = args->n - args->n_named > at ? name_at(run, args, at) : NULL;
    struct jinja_value path = attribute ? jinja_need(run, args, 1, "attribute") : jinja_none();
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value item = sort_key_of(run, args, list.as.list->items[i], path);
        bool is = jinja_true(item);
        if (test) {
            struct jinja_args inner = item_args(run, args, at + 1, item);
            is = jinja_test(run, test, &inner);
        }
        if (is == wanted)
            jinja_append(run, kept, list.as.list->items[i]);
    }
    return kept;
}

static struct jinja_value select_now(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    return select_items(run, args, false, true);
}

static struct jinja_value reject_now(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    return select_items(run, args, false, false);
}

static struct jinja_value selectattr_now(struct jinja_run *run, const struct jinja_function *self,
                                         const struct jinja_args *args)
{
    return select_items(run, args, true, true);
}

static struct jinja_value rejectattr_now(struct jinja_run *run, const struct jinja_function *self,
                                         const struct jinja_args *args)
{
    return select_items(run, args, true, false);
}

/* Filters that are generators in Jinja: nothing is computed, or fails, before an item is asked for.
 */
#define LATER(name)                                                                                \
    static struct jinja_value f_##name(struct jinja_run *run, const struct jinja_function *self,   \
                                       const struct jinja_args *args)                              \
    {                                                                                              \
        return jinja_stream(run, name##_now, args);                                                \
    }
LATER(batch)
LATER(slice)
LATER(unique)
LATER(items)
LATER(map)
LATER(select)
LATER(reject)
LATER(selectattr)
LATER(rejectattr)

const struct jinja_named jinja_filters_of_lists[] = {
    {"length", f_length},
    {"count", f_length},
    {"list", f_list},
    {"first", f_first},
    {"last", f_last},
    {"join", f_join},
    {"reverse", f_reverse},
    {"sum", f_sum},
    {"max", f_max},
    {"min", f_min},
    {"sort", f_sort},
    {"unique", f_unique},
    {"batch", f_batch},
    {"slice", f_slice},
    {"groupby", f_groupby},
    {"items", f_items},
    {"dictsort", f_dictsort},
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {NULL, NULL},
};

/* Tests, used after "is". */

#define TEST(name, expression)                                                                     \
    static struct jinja_value name(struct jinja_run *run, const struct jinja_function *self,       \
                                   const struct jinja_args *args)                                  \
    {                                                                                              \
        struct jinja_value v = args->values[0];                                                    \
        return jinja_bool(expression);                                                             \
    }

/* The value that v is compared with. */
static struct jinja_value compared_value(struct jinja_run *run, const struct jinja_args *args)
{
    return jinja_need(run, args, 1, NULL);
}

static int64_t remainder_of(struct jinja_run *run, const struct jinja_args *args, int64_t by)
{
    struct jinja_value v = args->values[0];
    if (!jinja_is_whole(v) || by == 0)
        jinja_wrong(run, args, "a whole number", v);
    return by == -1 ? 0 : jinja_whole(v) % by;
}

static bool has_name(const struct jinja_run *run, struct jinja_value v,
                     jinja_call_fn *(*find)(const struct jinja_run *, const char *))
{
    char name[64] = "";
    if (v.kind != JINJA_TEXT || v.as.text->n >= sizeof name)
        return false;
    memcpy(name, v.as.text->bytes, v.as.text->n);
    return find(run, name) != NULL;
}

static bool all_of_case(struct jinja_run *run, const struct jinja_args *args, const char *method)
{
    struct jinja_value v = args->values[0];
    if (v.kind != JINJA_TEXT)
        jinja_wrong(run, args, "a text", v);
    return jinja_true(jinja_call(run, jinja_method(run, args->at, v, method),
                                 &(struct jinja_args){args->at, 0, 0, NULL, NULL}));
}

TEST(t_defined, v.kind != JINJA_UNDEFINED)
TEST(t_undefined, v.kind == JINJA_UNDEFINED)
TEST(t_none, v.kind == JINJA_NONE)
TEST(t_boolean, v.kind == JINJA_BOOL)
TEST(t_true, v.kind == JINJA_BOOL && v.as.truth)
TEST(t_false, v.kind == JINJA_BOOL && !v.as.truth)
TEST(t_integer, v.kind == JINJA_INT || v.kind == JINJA_LARGE)
TEST(t_float, v.kind == JINJA_FLOAT)
TEST(t_number, jinja_is_number(v) || v.kind == JINJA_LARGE)
TEST(t_string, v.kind == JINJA_TEXT)
TEST(t_mapping, v.kind == JINJA_DICT)
TEST(t_sequence, v.kind == JINJA_TEXT || jinja_is_sequence(v) || v.kind == JINJA_DICT ||
                     v.kind == JINJA_UNDEFINED)
TEST(t_iterable, v.kind == JINJA_TEXT || jinja_is_sequence(v) || v.kind == JINJA_DICT ||
                     v.kind == JINJA_UNDEFINED || v.kind == JINJA_LOOP || v.kind == JINJA_STREAM)
TEST(t_callable, v.kind == JINJA_FUNCTION || (v.kind == JINJA_LOOP && v.as.dict->calls))
TEST(t_escaped, false && v.kind)
TEST(t_even, v.kind != JINJA_UNDEFINED && remainder_of(run, args, 2) == 0)
TEST(t_odd, v.kind != JINJA_UNDEFINED && remainder_of(run, args, 2) != 0)
TEST(t_divisibleby, v.kind != JINJA_UNDEFINED &&
                        remainder_of(run, args, jinja_whole_arg(run, args, 1, "num", 0)) == 0)
TEST(t_eq, jinja_equal(run, args->at, v, compared_value(run, args)))
TEST(t_ne, !jinja_equal(run, args->at, v, compared_value(run, args)))
TEST(t_lt, jinja_compare(run, args->at, v, compared_value(run, args)) < 0)
TEST(t_le, jinja_compare(run, args->at, v, compared_value(run, args)) <= 0)
TEST(t_gt, jinja_compare(run, args->at, v, compared_value(run, args)) > 0)
TEST(t_ge, jinja_compare(run, args->at, v, compared_value(run, args)) >= 0)
TEST(t_in, jinja_contains(run, args->at, compared_value(run, args), v))
TEST(t_sameas, jinja_same(v, compared_value(run, args)))
TEST(t_filter, has_name(run, v, jinja_find_filter))
TEST(t_test, has_name(run, v, jinja_find_test))
TEST(t_upper, v.kind != JINJA_UNDEFINED && all_of_case(run, args, "isupper"))
TEST(t_lower, v.kind != JINJA_UNDEFINED && all_of_case(run, args, "islower"))

const struct jinja_named jinja_test_table[] = {
    {"defined", t_defined},
    {"undefined", t_undefined},
    {"none", t_none},
    {"boolean", t_boolean},
    {"true", t_true},
    {"false", t_false},
    {"integer", t_integer},
    {"float", t_float},
    {"number", t_number},
    {"string", t_string},
    {"mapping", t_mapping},
    {"sequence", t_sequence},
    {"iterable", t_iterable},
    {"callable", t_callable},
    {"escaped", t_escaped},
    {"even", t_even},
    {"odd", t_odd},
    {"divisibleby", t_divisibleby},
    {"eq", t_eq},
    {"==", t_eq},
    {"equalto", t_eq},
    {"ne", t_ne},
    {"!=", t_ne},
    {"lt", t_lt},
    {"<", t_lt},
    {"lessthan", t_lt},
    {"le", t_le},
    {"<=", t_le},
    {"gt", t_gt},
    {">", t_gt},
    {"greaterthan", t_gt},
    {"ge", t_ge},
    {">=", t_ge},
    {"in", t_in},
    {"sameas", t_sameas},
    {"filter", t_filter},
    {"test", t_test},
    {"upper", t_upper},
    {"lower", t_lower},
    {NULL, NULL},
};
