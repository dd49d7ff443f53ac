/* Arguments and methods of texts, lists and dictionaries. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "prompt/jinja_functions.h"
#include "prompt/jinja_value.h"

/* Its index among the values; UINT32_MAX: missing. */
static uint32_t find_arg(const struct jinja_args *args, uint32_t i, const char *name)
{
    if (i < args->n - args->n_named)
        return i;
    for (uint32_t k = 0; name && k < args->n_named; k++)
        if (strcmp(args->names[k], name) == 0)
            return args->n - args->n_named + k;
    return UINT32_MAX;
}

static bool jinja_has_arg(const struct jinja_args *args, uint32_t i, const char *name)
{
    return find_arg(args, i, name) != UINT32_MAX;
}

struct jinja_value jinja_arg(const struct jinja_args *args, uint32_t i, const char *name,
                             struct jinja_value otherwise)
{
    uint32_t at = find_arg(args, i, name);
    return at == UINT32_MAX ? otherwise : args->values[at];
}

struct jinja_value jinja_need(struct jinja_run *run, const struct jinja_args *args, uint32_t i,
                              const char *name)
{
    if (!jinja_has_arg(args, i, name))
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "an argument is missing");
    return jinja_arg(args, i, name, jinja_none());
}

const struct jinja_text *jinja_need_text(struct jinja_run *run, const struct jinja_args *args,
                                         uint32_t i, const char *name)
{
    struct jinja_value v = jinja_need(run, args, i, name);
    if (v.kind != JINJA_TEXT)
        jinja_wrong(run, args, "a text", v);
    return v.as.text;
}

int64_t jinja_whole_arg(struct jinja_run *run, const struct jinja_args *args, uint32_t i,
                        const char *name, int64_t otherwise)
{
    struct jinja_value v = jinja_arg(args, i, name, jinja_int(otherwise));
    if (!jinja_is_whole(v))
        jinja_wrong(run, args, "a whole number", v);
    return jinja_whole(v);
}

void jinja_at_most(struct jinja_run *run, const struct jinja_args *args, uint32_t most)
{
    if (args->n - args->n_named > most)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there are too many arguments");
}

void jinja_wrong(struct jinja_run *run, const struct jinja_args *args, const char *what,
                 struct jinja_value v)
{
    if (v.kind == JINJA_UNDEFINED && v.as.missing)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "'%.60s' is undefined", v.as.missing);
    jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "expected %s, not a value of type %s", what,
               jinja_kind_name(v));
}

/* ---- By name ---- */

static jinja_call_fn *find_in(const struct jinja_named *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table->call;
    return NULL;
}

jinja_call_fn *jinja_find_filter(const struct jinja_run *run, const char *name)
{
    jinja_call_fn *call = find_in(run->names->filters[0], name);
    return call ? call : find_in(run->names->filters[1], name);
}

jinja_call_fn *jinja_find_test(const struct jinja_run *run, const char *name)
{
    return find_in(run->names->tests, name);
}

struct jinja_value jinja_filter(struct jinja_run *run, const char *name,
                                const struct jinja_args *args)
{
    jinja_call_fn *call = jinja_find_filter(run, name);
    if (!call)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there is no filter '%.60s'", name);
    jinja_step(run, args->at, 1);
    return call(run, NULL, args);
}

bool jinja_test(struct jinja_run *run, const char *name, const struct jinja_args *args)
{
    jinja_call_fn *call = jinja_find_test(run, name);
    if (!call)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there is no test '%.60s'", name);
    jinja_step(run, args->at, 1);
    return jinja_true(call(run, NULL, args));
}

/*
 * The methods of texts, lists and dictionaries, as in Python, without those that change a value,
 * which the templates' environment forbids.
 */

/* The object of a method. */
static const struct jinja_text *text_of(const struct jinja_function *self)
{
    return self->of.as.text;
}

static struct jinja_value as_value(const struct jinja_text *text)
{
    return (struct jinja_value){JINJA_TEXT, {.text = text}};
}

/* ---- Ends ---- */

static bool is_among(const struct jinja_text *which, uint32_t c)
{
    int length;
    for (uint32_t i = 0; i < which->n; i += (uint32_t)length)
        if (moe_utf8_decode((const uint8_t *)which->bytes + i, which->n - i, &length) == c)
            return true;
    return false;
}

struct jinja_value jinja_strip(struct jinja_run *run, const struct jinja_text *text,
                               const struct jinja_text *which, enum jinja_side sides)
{
    const uint8_t *bytes = (const uint8_t *)text->bytes;
    uint32_t begin = 0, end = text->n;
    int length;
    while ((sides & JINJA_LEFT) && begin < end) {
        uint32_t c = moe_utf8_decode(bytes + begin, end - begin, &length);
        if (!(which ? is_among(which, c) : jinja_is_space(c)))
            break;
        begin += (uint32_t)length;
    }
    while ((sides & JINJA_RIGHT) && end > begin) {
        uint32_t last = end - 1;
        while (last > begin && (bytes[last] & 0xc0) == 0x80)
            last--;
        uint32_t c = moe_utf8_decode(bytes + last, end - last, &length);
        if (!(which ? is_among(which, c) : jinja_is_space(c)))
            break;
        end = last;
    }
    return jinja_part_of(run, text, begin, end);
}

static struct jinja_value strip_method(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args, enum jinja_side sides)
{
    struct jinja_value which = jinja_arg(args, 0, NULL, jinja_none());
    jinja_at_most(run, args, 1);
    if (which.kind != JINJA_TEXT && which.kind != JINJA_NONE)
        jinja_wrong(run, args, "a text", which);
    jinja_step(run, args->at, text_of(self)->n / 64);
    return jinja_strip(run, text_of(self), which.kind == JINJA_TEXT ? which.as.text : NULL, sides);
}

static struct jinja_value m_strip(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    return strip_method(run, self, args, JINJA_BOTH);
}

static struct jinja_value m_lstrip(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return strip_method(run, self, args, JINJA_LEFT);
}

static struct jinja_value m_rstrip(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return strip_method(run, self, args, JINJA_RIGHT);
}

static bool begins_with(const struct jinja_text *text, const struct jinja_text *what)
{
    return what->n <= text->n && (what->n == 0 || memcmp(text->bytes, what->bytes, what->n) == 0);
}

static bool ends_with(const struct jinja_text *text, const struct jinja_text *what)
{
    return what->n <= text->n &&
           (what->n == 0 || memcmp(text->bytes + text->n - what->n, what->bytes, what->n) == 0);
}

/* Whether one of the given texts, or the only one, is at that end. */
static struct jinja_value has_end(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args,
                                  bool (*is)(const struct jinja_text *, const struct jinja_text *))
{
    struct jinja_value what = jinja_need(run, args, 0, NULL);
    if (what.kind != JINJA_TUPLE)
        return jinja_bool(is(text_of(self), jinja_need_text(run, args, 0, NULL)));
    for (uint32_t i = 0; i < what.as.list->n; i++)
        if (what.as.list->items[i].kind == JINJA_TEXT &&
            is(text_of(self), what.as.list->items[i].as.text))
            return jinja_bool(true);
    return jinja_bool(false);
}

static struct jinja_value m_startswith(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    return has_end(run, self, args, begins_with);
}

static struct jinja_value m_endswith(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    return has_end(run, self, args, ends_with);
}

static struct jinja_value m_removeprefix(struct jinja_run *run, const struct jinja_function *self,
                                         const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self), *what = jinja_need_text(run, args, 0, NULL);
    return begins_with(text, what) ? jinja_part_of(run, text, what->n, text->n) : self->of;
}

static struct jinja_value m_removesuffix(struct jinja_run *run, const struct jinja_function *self,
                                         const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self), *what = jinja_need_text(run, args, 0, NULL);
    return ends_with(text, what) ? jinja_part_of(run, text, 0, text->n - what->n) : self->of;
}

/* ---- Splitting and joining ---- */

/* Where white space begins (space true) or ends from byte i on. */
static uint32_t skip_space(const struct jinja_text *text, uint32_t i, bool space)
{
    int length;
    for (; i < text->n; i += (uint32_t)length)
        if (jinja_is_space(
                moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length)) != space)
            break;
    return i;
}

static struct jinja_value split_at_space(struct jinja_run *run, const struct jinja_text *text,
                                         int64_t most)
{
    struct jinja_value list = jinja_list(run, JINJA_LIST, 0);
    uint32_t i = skip_space(text, 0, true);
    while (i < text->n) {
        uint32_t end = skip_space(text, i, false);
        if (most >= 0 && list.as.list->n == most) {
            struct jinja_value rest = jinja_part_of(run, text, i, text->n);
            jinja_append(run, list, jinja_strip(run, rest.as.text, NULL, JINJA_RIGHT));
            break;
        }
        jinja_append(run, list, jinja_part_of(run, text, i, end));
        i = skip_space(text, end, true);
    }
    return list;
}

static struct jinja_value m_split(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self), *by;
    struct jinja_value separator = jinja_arg(args, 0, "sep", jinja_none());
    int64_t most = jinja_whole_arg(run, args, 1, "maxsplit", -1), found;
    uint32_t begin = 0;
    jinja_at_most(run, args, 2);
    jinja_step(run, args->at, text->n);
    if (separator.kind == JINJA_NONE)
        return split_at_space(run, text, most);
    if (separator.kind != JINJA_TEXT || separator.as.text->n == 0)
        jinja_wrong(run, args, "a separator", separator);
    by = separator.as.text;
    struct jinja_value list = jinja_list(run, JINJA_LIST, 0);
    for (; most != 0 && (found = jinja_find_text(text, begin, by)) >= 0; most--) {
        jinja_append(run, list, jinja_part_of(run, text, begin, (uint32_t)found));
        begin = (uint32_t)found + by->n;
    }
    jinja_append(run, list, jinja_part_of(run, text, begin, text->n));
    return list;
}

static struct jinja_value m_rsplit(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self), *by;
    struct jinja_value separator = jinja_arg(args, 0, "sep", jinja_none());
    int64_t most = jinja_whole_arg(run, args, 1, "maxsplit", -1), found;
    uint32_t end = text->n;
    if (most < 0 || separator.kind == JINJA_NONE)
        return m_split(run, self, args);
    jinja_step(run, args->at, text->n);
    if (separator.kind != JINJA_TEXT || separator.as.text->n == 0)
        jinja_wrong(run, args, "a separator", separator);
    by = separator.as.text;
    struct jinja_value back = jinja_list(run, JINJA_LIST, 0), list;
    for (; most != 0 && (found = jinja_find_last(text, end, by)) >= 0; most--) {
        jinja_append(run, back, jinja_part_of(run, text, (uint32_t)found + by->n, end));
        end = (uint32_t)found;
    }
    jinja_append(run, back, jinja_part_of(run, text, 0, end));
    list = jinja_list(run, JINJA_LIST, back.as.list->n);
    for (uint32_t i = back.as.list->n; i > 0; i--)
        jinja_append(run, list, back.as.list->items[i - 1]);
    return list;
}

static struct jinja_value m_splitlines(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self);
    bool keep = jinja_true(jinja_arg(args, 0, "keepends", jinja_bool(false)));
    struct jinja_value list = jinja_list(run, JINJA_LIST, 0);
    uint32_t begin = 0, i = 0;
    int length;
    jinja_step(run, args->at, text->n);
    while (i < text->n) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        uint32_t end = i;
        i += (uint32_t)length;
        if (!jinja_ends_line(c))
            continue;
        if (c == '\r' && i < text->n && text->bytes[i] == '\n')
            i++;
        jinja_append(run, list, jinja_part_of(run, text, begin, keep ? i : end));
        begin = i;
    }
    if (begin < text->n)
        jinja_append(run, list, jinja_part_of(run, text, begin, text->n));
    return list;
}

/* Returns the text before, the separator, and the text after. */
static struct jinja_value partition_at(struct jinja_run *run, const struct jinja_text *text,
                                       int64_t found, uint32_t n, bool last)
{
    struct jinja_value tuple = jinja_list(run, JINJA_TUPLE, 3), none = jinja_words(run, "");
    uint32_t at = (uint32_t)found;
    if (found < 0) {
        jinja_append(run, tuple, last ? none : as_value(text));
        jinja_append(run, tuple, none);
        jinja_append(run, tuple, last ? as_value(text) : none);
        return tuple;
    }
    jinja_append(run, tuple, jinja_part_of(run, text, 0, at));
    jinja_append(run, tuple, jinja_part_of(run, text, at, at + n));
    jinja_append(run, tuple, jinja_part_of(run, text, at + n, text->n));
    return tuple;
}

static struct jinja_value m_partition(struct jinja_run *run, const struct jinja_function *self,
                                      const struct jinja_args *args)
{
    const struct jinja_text *by = jinja_need_text(run, args, 0, "sep");
    return partition_at(run, text_of(self), jinja_find_text(text_of(self), 0, by), by->n, false);
}

static struct jinja_value m_rpartition(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    const struct jinja_text *by = jinja_need_text(run, args, 0, "sep");
    return partition_at(run, text_of(self), jinja_find_last(text_of(self), text_of(self)->n, by),
                        by->n, true);
}

struct jinja_value jinja_join(struct jinja_run *run, struct jinja_place at, struct jinja_value list,
                              const struct jinja_text *between)
{
    struct jinja_builder b = {0};
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        if (i)
            jinja_add_text(run, &b, between);
        if (list.as.list->items[i].kind != JINJA_TEXT)
            jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a text is joined of texts, not of a %s",
                       jinja_kind_name(list.as.list->items[i]));
        jinja_add_text(run, &b, list.as.list->items[i].as.text);
    }
    return jinja_built(run, &b);
}

static struct jinja_value m_join(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value list = jinja_items(run, args->at, jinja_need(run, args, 0, NULL));
    return jinja_join(run, args->at, list, text_of(self));
}

struct jinja_value jinja_replace(struct jinja_run *run, struct jinja_place at,
                                 const struct jinja_text *text, const struct jinja_text *from,
                                 const struct jinja_text *to, int64_t most)
{
    struct jinja_builder b = {0};
    uint32_t begin = 0;
    int64_t found;
    jinja_step(run, at, text->n / 16 + 1);
    if (from->n == 0) { /* between all characters */
        int length;
        for (; begin < text->n && most != 0; begin += (uint32_t)length, most--) {
            moe_utf8_decode((const uint8_t *)text->bytes + begin, text->n - begin, &length);
            jinja_add_text(run, &b, to);
            jinja_add_part(run, &b, text, begin, begin + (uint32_t)length);
        }
        if (begin == text->n && most != 0)
            jinja_add_text(run, &b, to);
    }
    for (; from->n && most != 0 && (found = jinja_find_text(text, begin, from)) >= 0; most--) {
        jinja_add_part(run, &b, text, begin, (uint32_t)found);
        jinja_add_text(run, &b, to);
        begin = (uint32_t)found + from->n;
    }
    jinja_add_part(run, &b, text, begin, text->n);
    return jinja_built(run, &b);
}

static struct jinja_value m_replace(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    return jinja_replace(run, args->at, text_of(self), jinja_need_text(run, args, 0, "old"),
                         jinja_need_text(run, args, 1, "new"),
                         jinja_whole_arg(run, args, 2, "count", -1));
}

/* The value of a replacement field: a number, nothing (the next one) or a name. */
static struct jinja_value field_value(struct jinja_run *run, const struct jinja_args *args,
                                      const struct jinja_text *field, uint32_t *next)
{
    char name[64] = "";
    if (field->n >= sizeof name)
        jinja_fail(&run->heap, args->at, MOE_ERR_UNSUPPORTED, "the format's field is too long");
    memcpy(name, field->bytes, field->n);
    if (strpbrk(name, "!:.["))
        jinja_fail(&run->heap, args->at, MOE_ERR_UNSUPPORTED,
                   "'{%s}' of a format is not implemented", name);
    bool counted = strspn(name, "0123456789") == field->n;
    uint32_t i = !counted ? UINT32_MAX : field->n ? (uint32_t)strtoul(name, NULL, 10) : (*next)++;
    if (!jinja_has_arg(args, i, counted ? NULL : name))
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the format wants more values");
    return jinja_arg(args, i, counted ? NULL : name, jinja_none());
}

/* "{} {0} {name}".format(...), without conversions. */
static struct jinja_value m_format(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self);
    struct jinja_builder b = {0};
    uint32_t next = 0;
    jinja_step(run, args->at, text->n);
    for (uint32_t i = 0; i < text->n; i++) {
        char c = text->bytes[i];
        bool twice = i + 1 < text->n && text->bytes[i + 1] == c;
        if ((c == '{' || c == '}') && twice)
            i++;
        else if (c == '}')
            jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the format has a single '}'");
        if (c != '{' || twice) {
            jinja_add_part(run, &b, text, i, i + 1);
            continue;
        }
        const char *end = memchr(text->bytes + i, '}', text->n - i);
        if (!end)
            jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the format has a single '{'");
        uint32_t close = (uint32_t)(end - text->bytes);
        struct jinja_value field = jinja_part_of(run, text, i + 1, close);
        jinja_print(run, args->at, &b, field_value(run, args, field.as.text, &next));
        i = close;
    }
    return jinja_built(run, &b);
}

/* ---- Finding ---- */

static struct jinja_value in_characters(const struct jinja_text *text, int64_t byte)
{
    return jinja_int(byte < 0 ? -1 : (int64_t)jinja_count(text, (uint32_t)byte));
}

static struct jinja_value m_find(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    jinja_at_most(run, args, 1);
    jinja_step(run, args->at, text_of(self)->n / 16);
    return in_characters(text_of(self),
                         jinja_find_text(text_of(self), 0, jinja_need_text(run, args, 0, NULL)));
}

static struct jinja_value m_rfind(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    jinja_at_most(run, args, 1);
    jinja_step(run, args->at, text_of(self)->n / 16);
    return in_characters(text_of(self), jinja_find_last(text_of(self), text_of(self)->n,
                                                        jinja_need_text(run, args, 0, NULL)));
}

static struct jinja_value m_index(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value found = m_find(run, self, args);
    if (found.as.whole < 0)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the text has no such part");
    return found;
}

static struct jinja_value m_count(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self), *what = jinja_need_text(run, args, 0, NULL);
    int64_t n = 0, found;
    jinja_step(run, args->at, text->n / 16);
    if (what->n == 0)
        return jinja_int((int64_t)jinja_count(text, text->n) + 1);
    for (uint32_t at = 0; (found = jinja_find_text(text, at, what)) >= 0; n++)
        at = (uint32_t)found + what->n;
    return jinja_int(n);
}

/* ---- Case, width and kind ---- */

static struct jinja_value m_upper(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    jinja_step(run, args->at, text_of(self)->n);
    return jinja_upper(run, text_of(self));
}

static struct jinja_value m_lower(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    jinja_step(run, args->at, text_of(self)->n);
    return jinja_lower(run, text_of(self));
}

static struct jinja_value m_title(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    jinja_step(run, args->at, text_of(self)->n);
    return jinja_title(run, text_of(self), false);
}

static struct jinja_value m_capitalize(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    jinja_step(run, args->at, text_of(self)->n);
    return jinja_capitalize(run, text_of(self));
}

/* Whether there are characters, all of one kind. */
static struct jinja_value all_are(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args, bool (*is)(uint32_t))
{
    const struct jinja_text *text = text_of(self);
    int length;
    jinja_step(run, args->at, text->n / 16);
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length)
        if (!is(moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length)))
            return jinja_bool(false);
    return jinja_bool(text->n > 0);
}

static struct jinja_value m_isdigit(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    return all_are(run, self, args, jinja_is_digit);
}

static struct jinja_value m_isalpha(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    return all_are(run, self, args, jinja_is_alpha);
}

static bool is_alnum(uint32_t c)
{
    return jinja_is_alpha(c) || jinja_is_numeric(c);
}

static struct jinja_value m_isalnum(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    return all_are(run, self, args, is_alnum);
}

static struct jinja_value m_isspace(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    return all_are(run, self, args, jinja_is_space);
}

/* Whether some characters are of a case and none of the other. */
static struct jinja_value of_case(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args, bool (*is)(uint32_t),
                                  bool (*is_other)(uint32_t))
{
    const struct jinja_text *text = text_of(self);
    bool any = false;
    int length;
    jinja_step(run, args->at, text->n / 16);
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        if (is_other(c))
            return jinja_bool(false);
        any |= is(c);
    }
    return jinja_bool(any);
}

static struct jinja_value m_isupper(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    return of_case(run, self, args, jinja_is_upper, jinja_is_lower);
}

static struct jinja_value m_islower(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    return of_case(run, self, args, jinja_is_lower, jinja_is_upper);
}

/* Pads to a width, with the text at the left, in the middle or at the right. */
static struct jinja_value pad_text(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args, int place)
{
    const struct jinja_text *text = text_of(self);
    int64_t width = jinja_whole_arg(run, args, 0, "width", 0);
    int64_t n = (int64_t)jinja_count(text, text->n), left = 0;
    struct jinja_value with = jinja_arg(args, 1, NULL, jinja_words(run, " "));
    struct jinja_builder b = {0};
    if (with.kind != JINJA_TEXT)
        jinja_wrong(run, args, "a text", with);
    if (width <= n)
        return self->of;
    jinja_step(run, args->at, (uint64_t)(width - n));
    if (place == 1)
        left = (width - n) / 2 + ((width - n) & width & 1);
    else if (place == 2)
        left = width - n;
    for (int64_t i = 0; i < left; i++)
        jinja_add_text(run, &b, with.as.text);
    jinja_add_text(run, &b, text);
    for (int64_t i = left; i < width - n; i++)
        jinja_add_text(run, &b, with.as.text);
    return jinja_built(run, &b);
}

static struct jinja_value m_ljust(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    return pad_text(run, self, args, 0);
}

static struct jinja_value m_center(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return pad_text(run, self, args, 1);
}

static struct jinja_value m_rjust(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    return pad_text(run, self, args, 2);
}

static struct jinja_value m_zfill(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    const struct jinja_text *text = text_of(self);
    int64_t width = jinja_whole_arg(run, args, 0, NULL, 0), n = jinja_count(text, text->n);
    uint32_t sign = text->n && strchr("+-", text->bytes[0]) ? 1 : 0;
    struct jinja_builder b = {0};
    jinja_step(run, args->at, width > n ? (uint64_t)(width - n) : 0);
    jinja_add_part(run, &b, text, 0, sign);
    for (int64_t i = n; i < width; i++)
        jinja_add_char(run, &b, '0');
    jinja_add_part(run, &b, text, sign, text->n);
    return jinja_built(run, &b);
}

/* ---- Lists and dictionaries ---- */

static struct jinja_value m_list_index(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    const struct jinja_list *list = self->of.as.list;
    struct jinja_value what = jinja_need(run, args, 0, NULL);
    for (uint32_t i = 0; i < list->n; i++)
        if (jinja_equal(run, args->at, list->items[i], what))
            return jinja_int(i);
    jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the list has no such item");
}

static struct jinja_value m_list_count(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    const struct jinja_list *list = self->of.as.list;
    struct jinja_value what = jinja_need(run, args, 0, NULL);
    int64_t n = 0;
    for (uint32_t i = 0; i < list->n; i++)
        n += jinja_equal(run, args->at, list->items[i], what);
    return jinja_int(n);
}

static struct jinja_value m_copy(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    jinja_at_most(run, args, 0);
    if (!jinja_is_sequence(self->of))
        return self->of; /* which cannot be changed */
    struct jinja_value list = jinja_list(run, self->of.kind, self->of.as.list->n);
    jinja_step(run, args->at, self->of.as.list->n);
    for (uint32_t i = 0; i < self->of.as.list->n; i++)
        jinja_append(run, list, self->of.as.list->items[i]);
    return list;
}

static struct jinja_value m_refused(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT,
               "'%s' would change a value, which templates cannot", self->name);
}

/* Templates change lists that they made themselves, but not what they are given. */
static struct jinja_list *own_list(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    if (self->of.kind != JINJA_LIST || self->of.as.list->given)
        m_refused(run, self, args);
    return self->of.as.list;
}

static struct jinja_value m_append(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    own_list(run, self, args);
    jinja_at_most(run, args, 1);
    jinja_append(run, self->of, jinja_need(run, args, 0, NULL));
    return jinja_none();
}

static struct jinja_value m_pop(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    struct jinja_list *list = own_list(run, self, args);
    struct jinja_value which = jinja_arg(args, 0, NULL, jinja_int(-1));
    int64_t i = jinja_is_whole(which) ? jinja_index(jinja_whole(which), list->n) : -1;
    jinja_at_most(run, args, 1);
    if (i < 0)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "the list has no such item");
    jinja_step(run, args->at, list->n);
    struct jinja_value item = list->items[i];
    list->n--;
    memmove(list->items + i, list->items + i + 1, (list->n - (size_t)i) * sizeof *list->items);
    return item;
}

static struct jinja_value m_get(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    const struct jinja_value *there =
        jinja_find(run, args->at, self->of.as.dict, jinja_need(run, args, 0, NULL));
    jinja_at_most(run, args, 2);
    return there ? *there : jinja_arg(args, 1, NULL, jinja_none());
}

static struct jinja_value m_keys(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    return jinja_items(run, args->at, self->of);
}

static struct jinja_value m_values(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    const struct jinja_dict *dict = self->of.as.dict;
    struct jinja_value list = jinja_list(run, JINJA_LIST, dict->n);
    jinja_step(run, args->at, dict->n);
    for (uint32_t i = 0; i < dict->n; i++)
        jinja_append(run, list, dict->entries[i].value);
    return list;
}

static struct jinja_value m_items(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    const struct jinja_dict *dict = self->of.as.dict;
    struct jinja_value list = jinja_list(run, JINJA_LIST, dict->n);
    jinja_step(run, args->at, dict->n);
    for (uint32_t i = 0; i < dict->n; i++) {
        struct jinja_value pair = jinja_list(run, JINJA_TUPLE, 2);
        jinja_append(run, pair, dict->entries[i].key);
        jinja_append(run, pair, dict->entries[i].value);
        jinja_append(run, list, pair);
    }
    return list;
}

/* ---- By name ---- */

static const struct jinja_named of_text[] = {
    {"strip", m_strip},
    {"lstrip", m_lstrip},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"rsplit", m_rsplit},
    {"splitlines", m_splitlines},
    {"partition", m_partition},
    {"rpartition", m_rpartition},
    {"startswith", m_startswith},
    {"endswith", m_endswith},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix},
    {"replace", m_replace},
    {"join", m_join},
    {"format", m_format},
    {"find", m_find},
    {"rfind", m_rfind},
    {"index", m_index},
    {"count", m_count},
    {"upper", m_upper},
    {"lower", m_lower},
    {"casefold", m_lower},
    {"title", m_title},
    {"capitalize", m_capitalize},
    {"isdigit", m_isdigit},
    {"isdecimal", m_isdigit},
    {"isnumeric", m_isdigit},
    {"isalpha", m_isalpha},
    {"isalnum", m_isalnum},
    {"isspace", m_isspace},
    {"isupper", m_isupper},
    {"islower", m_islower},
    {"ljust", m_ljust},
    {"center", m_center},
    {"rjust", m_rjust},
    {"zfill", m_zfill},
    {NULL, NULL},
};
static const struct jinja_named of_list[] = {
    {"index", m_list_index}, {"count", m_list_count}, {"copy", m_copy},     {"append", m_append},
    {"extend", m_refused},   {"insert", m_refused},   {"pop", m_pop},       {"remove", m_refused},
    {"reverse", m_refused},  {"sort", m_refused},     {"clear", m_refused}, {NULL, NULL},
};
static const struct jinja_named of_dict[] = {
    {"get", m_get},       {"items", m_items},     {"keys", m_keys},
    {"values", m_values}, {"copy", m_copy},       {"update", m_refused},
    {"pop", m_refused},   {"popitem", m_refused}, {"setdefault", m_refused},
    {"clear", m_refused}, {NULL, NULL},
};

struct jinja_value jinja_method(struct jinja_run *run, struct jinja_place at, struct jinja_value v,
                                const char *name)
{
    const struct jinja_named *table = v.kind == JINJA_TEXT   ? of_text
                                      : jinja_is_sequence(v) ? of_list
                                      : v.kind == JINJA_DICT ? of_dict
                                                             : NULL;
    jinja_step(run, at, 1);
    for (; table && table->name; table++)
        if (strcmp(table->name, name) == 0)
            return jinja_function(run, table->name, table->call, v, NULL);
    return jinja_undefined(name);
}
