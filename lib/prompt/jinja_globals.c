/* Functions of every template, and "%" formatting. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "prompt/jinja_functions.h"
#include "prompt/jinja_value.h"

enum { MAX_RANGE = 100000 }; /* as in Jinja's sandbox */

/* ---- Functions ---- */

static struct jinja_value g_range(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    jinja_at_most(run, args, 3);
    int64_t begin = jinja_whole_arg(run, args, 0, NULL, 0), end;
    int64_t step = jinja_whole_arg(run, args, 2, NULL, 1);
    if (args->n < 2) {
        end = jinja_need(run, args, 0, NULL).kind == JINJA_UNDEFINED ? 0 : begin;
        begin = 0;
    } else {
        end = jinja_whole_arg(run, args, 1, NULL, 0);
    }
    if (step == 0)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the step of a range is zero");
    struct jinja_value list = jinja_list(run, JINJA_LIST, 0);
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
        if (list.as.list->n == MAX_RANGE)
            jinja_fail(&run->heap, args->at, MOE_ERR_LIMIT, "a range has at most %d numbers",
                       MAX_RANGE);
        jinja_step(run, args->at, 1);
        jinja_append(run, list, jinja_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return list;
}

/* Adds the members of `from`, a dictionary or a list of pairs, as Python's dict() takes it. */
static void set_members(struct jinja_run *run, struct jinja_place at, struct jinja_value dict,
                        struct jinja_value from)
{
    for (uint32_t i = 0; from.kind == JINJA_DICT && i < from.as.dict->n; i++)
        jinja_set(run, at, dict, from.as.dict->entries[i].key, from.as.dict->entries[i].value);
    if (from.kind == JINJA_DICT)
        return;
    bool listed = jinja_is_sequence(from) || from.kind == JINJA_TEXT || from.kind == JINJA_STREAM;
    struct jinja_value pairs = listed ? jinja_items(run, at, from) : jinja_none();
    for (uint32_t i = 0; listed && i < pairs.as.list->n; i++) {
        struct jinja_value pair = jinja_items(run, at, pairs.as.list->items[i]);
        listed = pair.as.list->n == 2;
        if (listed)
            jinja_set(run, at, dict, pair.as.list->items[0], pair.as.list->items[1]);
    }
    if (!listed)
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT,
                   "a dictionary is made of another, of pairs, or of names and values");
}

static struct jinja_value named_members(struct jinja_run *run, const struct jinja_args *args,
                                        enum jinja_kind kind)
{
    struct jinja_value dict = jinja_dict(run, kind);
    uint32_t n = args->n - args->n_named;
    jinja_at_most(run, args, 1);
    if (n)
        set_members(run, args->at, dict, args->values[0]);
    for (uint32_t i = 0; i < args->n_named; i++)
        jinja_set_name(run, dict, args->names[i], args->values[n + i]);
    return dict;
}

static struct jinja_value g_namespace(struct jinja_run *run, const struct jinja_function *self,
                                      const struct jinja_args *args)
{
    return named_members(run, args, JINJA_NAMESPACE);
}

static struct jinja_value g_dict(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    return named_members(run, args, JINJA_DICT);
}

static struct jinja_value dict_fromkeys(struct jinja_run *run, const struct jinja_function *self,
                                        const struct jinja_args *args)
{
    struct jinja_value dict = jinja_dict(run, JINJA_DICT);
    struct jinja_value keys = jinja_items(run, args->at, jinja_need(run, args, 0, NULL));
    jinja_at_most(run, args, 2);
    for (uint32_t i = 0; i < keys.as.list->n; i++)
        jinja_set(run, args->at, dict, keys.as.list->items[i],
                  jinja_arg(args, 1, NULL, jinja_none()));
    return dict;
}

/* Handles members of `dict`. Python's dict is a type: dict[x] is dict made more exact, and Jinja
 * looks up a missing member as a subscript. So dict.from_keys(pairs), which Python lacks, does the
 * same as dict(pairs), and some templates use it. */
struct jinja_value jinja_type_item(struct jinja_run *run, struct jinja_value v)
{
    if (v.kind != JINJA_FUNCTION || v.as.function->call != g_dict ||
        v.as.function->of.kind == JINJA_FUNCTION)
        return jinja_undefined(NULL);
    return jinja_function(run, "dict", g_dict, v, NULL);
}

struct jinja_value jinja_type_member(struct jinja_run *run, struct jinja_place at,
                                     struct jinja_value v, const char *name)
{
    struct jinja_value item = jinja_type_item(run, v);
    if (item.kind == JINJA_UNDEFINED)
        return jinja_undefined(name);
    if (strcmp(name, "fromkeys") == 0)
        return jinja_function(run, "fromkeys", dict_fromkeys, jinja_none(), NULL);
    /* The type's own members are not items: its methods without a dictionary. */
    struct jinja_value method = jinja_method(run, at, jinja_dict(run, JINJA_DICT), name);
    bool own =
        method.kind != JINJA_UNDEFINED || strncmp(name, "__", 2) == 0 || strcmp(name, "mro") == 0;
    return own ? jinja_undefined(name) : item;
}

static struct jinja_value g_raise(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value text = jinja_str(run, args->at, jinja_need(run, args, 0, "message"));
    uint32_t n = text.as.text->n < 300 ? text.as.text->n : 300;
    jinja_fail(&run->heap, args->at, MOE_ERR_USAGE, "the template refuses this: %.*s", (int)n,
               text.as.text->bytes);
}

static struct jinja_value g_strftime(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    char format[256], out[1024];
    const struct jinja_text *text = jinja_need_text(run, args, 0, "format");
    if (text->n + 2 > sizeof format)
        jinja_fail(&run->heap, args->at, MOE_ERR_LIMIT, "the date's format is too long");
    memcpy(format, text->bytes, text->n);
    memcpy(format + text->n, " ", 2); /* gives the result at least one byte */
    size_t n = strftime(out, sizeof out, format, &run->input->now);
    if (n == 0)
        jinja_fail(&run->heap, args->at, MOE_ERR_LIMIT, "the date is too long");
    return jinja_text(run, out, n - 1);
}

const struct jinja_named jinja_globals[] = {
    {"range", g_range},           {"namespace", g_namespace},   {"dict", g_dict},
    {"raise_exception", g_raise}, {"strftime_now", g_strftime}, {NULL, NULL},
};

/* ---- Formatting ---- */

/* One conversion of a format: flags, width, precision and letter. */
struct conversion {
    char flags[8];
    int width, precision; /* -1: none */
    char letter;
};

static uint32_t read_number(const struct jinja_text *format, uint32_t i, int *out)
{
    *out = 0;
    for (; i < format->n && format->bytes[i] >= '0' && format->bytes[i] <= '9'; i++)
        *out = *out < 1000 ? *out * 10 + (format->bytes[i] - '0') : 1000;
    return i;
}

/* Reads the conversion after a '%'; returns its end. */
static uint32_t read_conversion(const struct jinja_text *format, uint32_t i, struct conversion *c)
{
    size_t n = 0;
    *c = (struct conversion){.width = -1, .precision = -1};
    for (; i < format->n && format->bytes[i] && strchr("-+ #0", format->bytes[i]); i++)
        if (n + 1 < sizeof c->flags)
            c->flags[n++] = format->bytes[i];
    if (i < format->n && format->bytes[i] >= '1' && format->bytes[i] <= '9')
        i = read_number(format, i, &c->width);
    if (i < format->n && format->bytes[i] == '.')
        i = read_number(format, i + 1, &c->precision);
    c->letter = i < format->n ? format->bytes[i] : '\0';
    return i + 1;
}

static void add_text(struct jinja_run *run, struct jinja_builder *b, const struct conversion *c,
                     const struct jinja_text *text)
{
    uint32_t end = c->precision >= 0 ? jinja_byte_of(text, (uint64_t)c->precision) : text->n;
    int fill = c->width - (int)jinja_count(text, end);
    bool left = strchr(c->flags, '-') != NULL;
    for (int i = 0; i < fill && !left; i++)
        jinja_add_char(run, b, ' ');
    jinja_add_part(run, b, text, 0, end);
    for (int i = 0; i < fill && left; i++)
        jinja_add_char(run, b, ' ');
}

static void add_number(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                       const struct conversion *c, struct jinja_value v)
{
    char format[48], out[1600];
    bool whole = strchr("dixXo", c->letter) != NULL;
    if (!jinja_is_number(v) || (whole && strchr("xXo", c->letter) && !jinja_is_whole(v)))
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "'%%%c' needs a number, not a value of type %s",
                   c->letter, jinja_kind_name(v));
    char width[12] = "", precision[12] = "";
    if (c->width >= 0)
        snprintf(width, sizeof width, "%d", c->width);
    if (c->precision >= 0)
        snprintf(precision, sizeof precision, ".%d", c->precision);
    snprintf(format, sizeof format, "%%%s%s%s%s%c", c->flags, width, precision, whole ? "j" : "",
             c->letter);
    if (whole)
        snprintf(out, sizeof out, format,
                 (intmax_t)(v.kind == JINJA_FLOAT ? (int64_t)v.as.number : jinja_whole(v)));
    else
        snprintf(out, sizeof out, format, jinja_number(v));
    jinja_add_words(run, b, out);
}

struct jinja_value jinja_format(struct jinja_run *run, struct jinja_place at,
                                const struct jinja_text *format, struct jinja_value values)
{
    struct jinja_builder b = {0};
    struct conversion c;
    uint32_t used = 0, n = values.kind == JINJA_TUPLE ? values.as.list->n : 1;
    jinja_step(run, at, format->n);
    for (uint32_t i = 0, next; i < format->n; i = next) {
        next = i + 1;
        if (format->bytes[i] != '%') {
            jinja_add_part(run, &b, format, i, next);
            continue;
        }
        next = read_conversion(format, next, &c);
        if (c.letter == '%') {
            jinja_add_char(run, &b, '%');
            continue;
        }
        if (!c.letter || !strchr("srdixXofFeEgG", c.letter))
            jinja_fail(&run->heap, at, MOE_ERR_UNSUPPORTED, "the format has an unknown conversion");
        if (used == n)
            jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "the format wants more values");
        struct jinja_value v = values.kind == JINJA_TUPLE ? values.as.list->items[used] : values;
        used++;
        if (!strchr("sr", c.letter)) {
            add_number(run, at, &b, &c, v);
            continue;
        }
        struct jinja_builder quoted = {0};
        if (c.letter == 'r')
            jinja_print_quoted(run, at, &quoted, v);
        else
            jinja_print(run, at, &quoted, v);
        add_text(run, &b, &c, jinja_built(run, &quoted).as.text);
    }
    if (used < n && (values.kind == JINJA_TUPLE || values.kind != JINJA_DICT))
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "the format wants fewer values");
    return jinja_built(run, &b);
}
