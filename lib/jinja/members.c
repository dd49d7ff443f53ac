/* Members, subscripts, slices and calls of values. */
#include <string.h>

#include "jinja/functions.h"

_Noreturn static void undefined(struct jinja_run *run, struct jinja_place at, struct jinja_value v)
{
    jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "'%.60s' is undefined",
               v.as.missing ? v.as.missing : "the value");
}

struct jinja_value jinja_member(struct jinja_run *run, struct jinja_place at, struct jinja_value v,
                                const char *name)
{
    const struct jinja_value *there = NULL;
    if (v.kind == JINJA_UNDEFINED)
        undefined(run, at, v);
    if (v.kind == JINJA_NAMESPACE || v.kind == JINJA_LOOP) {
        there = jinja_find_name(v.as.dict, name);
        return there ? *there : jinja_undefined(name);
    }
    if (v.kind == JINJA_FUNCTION)
        return jinja_type_member(run, at, v, name);
    struct jinja_value method = jinja_method(run, at, v, name);
    if (method.kind != JINJA_UNDEFINED)
        return method;
    if (v.kind == JINJA_DICT) {
        jinja_step(run, at, v.as.dict->n / 8);
        there = jinja_find_name(v.as.dict, name);
    }
    return there ? *there : jinja_undefined(name);
}

/* The name of a text, for errors. */
static const char *name_of(struct jinja_run *run, struct jinja_value key)
{
    if (key.kind != JINJA_TEXT)
        return NULL;
    char *name = jinja_take(&run->heap, key.as.text->n + 1, 1);
    memcpy(name, key.as.text->bytes, key.as.text->n);
    return name;
}

static struct jinja_value item_of_text(struct jinja_run *run, struct jinja_place at,
                                       const struct jinja_text *text, int64_t i)
{
    jinja_step(run, at, text->n / 64 + 1);
    int64_t place = jinja_index(i, jinja_count(text, text->n));
    if (place < 0)
        return jinja_undefined(NULL);
    uint32_t begin = jinja_byte_of(text, (uint64_t)place);
    const struct jinja_text rest = {.bytes = text->bytes + begin, .n = text->n - begin};
    return jinja_part_of(run, text, begin, begin + jinja_byte_of(&rest, 1));
}

struct jinja_value jinja_subscript(struct jinja_run *run, struct jinja_place at,
                                   struct jinja_value v, struct jinja_value key)
{
    const struct jinja_value *there = NULL;
    struct jinja_value item;
    int64_t i;
    switch (v.kind) {
    case JINJA_UNDEFINED:
        undefined(run, at, v);
    case JINJA_DICT:
        there = jinja_find(run, at, v.as.dict, key);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        i = jinja_is_whole(key) ? jinja_index(jinja_whole(key), v.as.list->n) : -1;
        there = i < 0 ? NULL : &v.as.list->items[i];
        break;
    case JINJA_TEXT:
        if (jinja_is_whole(key))
            return item_of_text(run, at, v.as.text, jinja_whole(key));
        break;
    case JINJA_FUNCTION:
        item = jinja_type_item(run, v);
        there = item.kind == JINJA_UNDEFINED ? NULL : &item;
        break;
    default:
        break;
    }
    if (there || key.kind != JINJA_TEXT)
        return there ? *there : jinja_undefined(NULL);
    const char *name = name_of(run, key);
    if (v.kind == JINJA_DICT) { /* only a method is left */
        struct jinja_value method = jinja_method(run, at, v, name);
        return method.kind == JINJA_UNDEFINED ? jinja_undefined(name) : method;
    }
    return jinja_member(run, at, v, name);
}

/* ---- Slices ---- */

static int64_t bound(struct jinja_run *run, struct jinja_place at, struct jinja_value v, int64_t n,
                     int64_t low, int64_t high, int64_t otherwise)
{
    if (v.kind == JINJA_NONE)
        return otherwise;
    if (!jinja_is_whole(v))
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a slice has whole numbers");
    int64_t i = jinja_whole(v);
    i = i < 0 ? i + n : i;
    return i < low ? low : i > high ? high : i;
}

/* Item i as often as the slice takes it, of a text or a list. */
struct slice {
    int64_t begin, end, step;
};

static struct jinja_value slice_text(struct jinja_run *run, struct jinja_place at,
                                     const struct jinja_text *text, const struct slice *s)
{
    struct jinja_builder b = {0};
    if (s->step == 1) {
        uint32_t begin = jinja_byte_of(text, (uint64_t)s->begin);
        uint32_t end = s->end > s->begin ? jinja_byte_of(text, (uint64_t)s->end) : begin;
        return jinja_part_of(run, text, begin, end);
    }
    struct jinja_value all = jinja_items(run, at, (struct jinja_value){JINJA_TEXT, {.text = text}});
    for (int64_t i = s->begin; s->step > 0 ? i < s->end : i > s->end; i += s->step)
        jinja_add_text(run, &b, all.as.list->items[i].as.text);
    return jinja_built(run, &b);
}

struct jinja_value jinja_slice(struct jinja_run *run, struct jinja_place at, struct jinja_value v,
                               struct jinja_value begin, struct jinja_value end,
                               struct jinja_value step)
{
    if (v.kind == JINJA_UNDEFINED)
        undefined(run, at, v);
    if (v.kind != JINJA_TEXT && !jinja_is_sequence(v)) /* unlike a subscript: Python slices it */
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a value of type %s has no slices",
                   jinja_kind_name(v));
    int64_t n = jinja_length(run, at, v), by = 1;
    jinja_step(run, at, (uint64_t)n / 8 + 1);
    if (step.kind != JINJA_NONE)
        by = bound(run, at, step, 0, INT32_MIN, INT32_MAX, 1);
    if (by == 0)
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "the step of a slice is zero");
    int64_t low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
    struct slice s = {.begin = bound(run, at, begin, n, low, high, by > 0 ? low : high),
                      .end = bound(run, at, end, n, low, high, by > 0 ? high : low),
                      .step = by};
    if (v.kind == JINJA_TEXT)
        return slice_text(run, at, v.as.text, &s);
    struct jinja_value list = jinja_list(run, v.kind, 0);
    for (int64_t i = s.begin; by > 0 ? i < s.end : i > s.end; i += by)
        jinja_append(run, list, v.as.list->items[i]);
    return list;
}

/* ---- Calls ---- */

struct jinja_value jinja_call(struct jinja_run *run, struct jinja_value function,
                              const struct jinja_args *args)
{
    const struct jinja_function *f = NULL;
    if (function.kind == JINJA_FUNCTION)
        f = function.as.function;
    else if (function.kind == JINJA_LOOP)
        f = function.as.dict->calls;
    if (function.kind == JINJA_UNDEFINED)
        undefined(run, args->at, function);
    if (!f)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "a value of type %s cannot be called",
                   jinja_kind_name(function));
    jinja_enter(run, args->at);
    jinja_step(run, args->at, 1);
    struct jinja_value result = f->call(run, f, args);
    jinja_leave(run);
    return result;
}
