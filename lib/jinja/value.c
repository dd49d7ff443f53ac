/* The values of templates: what each kind prints, compares and counts as. */
#include "jinja/value.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "jinja/builder.h"

void jinja_step(struct jinja_run *run, struct jinja_place at, uint64_t n)
{
    if (run->steps_left < n)
        jinja_fail(&run->heap, at, MOE_ERR_LIMIT, "the template computes without an end in sight");
    run->steps_left -= n;
}

void jinja_enter(struct jinja_run *run, struct jinja_place at)
{
    if (run->depth_left == 0)
        jinja_fail(&run->heap, at, MOE_ERR_LIMIT, "calls within calls are nested too deep");
    run->depth_left--;
}

void jinja_leave(struct jinja_run *run)
{
    run->depth_left++;
}

/* ---- Making values ---- */

struct jinja_value jinja_text(struct jinja_run *run, const char *bytes, uint64_t n)
{
    struct jinja_text *text = jinja_take(&run->heap, 1, sizeof *text);
    char *copy = jinja_take(&run->heap, n, 1);
    if (n)
        memcpy(copy, bytes, n);
    *text = (struct jinja_text){.bytes = copy, .n = (uint32_t)n};
    return (struct jinja_value){JINJA_TEXT, {.text = text}};
}

struct jinja_value jinja_words(struct jinja_run *run, const char *text)
{
    return jinja_text(run, text, strlen(text));
}

struct jinja_value jinja_list(struct jinja_run *run, enum jinja_kind kind, uint32_t room)
{
    struct jinja_list *list = jinja_take(&run->heap, 1, sizeof *list);
    list->room = room;
    list->items = room ? jinja_take(&run->heap, room, sizeof *list->items) : NULL;
    return (struct jinja_value){kind, {.list = list}};
}

void jinja_append(struct jinja_run *run, struct jinja_value to, struct jinja_value item)
{
    struct jinja_list *list = to.as.list;
    if (list->n == list->room) {
        list->room = list->room ? 2 * list->room : 8;
        list->items = jinja_grow(&run->heap, list->items, list->n, list->room, sizeof *list->items);
    }
    list->items[list->n++] = item;
}

struct jinja_value jinja_dict(struct jinja_run *run, enum jinja_kind kind)
{
    return (struct jinja_value){kind,
                                {.dict = jinja_take(&run->heap, 1, sizeof(struct jinja_dict))}};
}

static void add_entry(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                      struct jinja_value value)
{
    if (dict->n == dict->room) {
        dict->room = dict->room ? 2 * dict->room : 8;
        dict->entries =
            jinja_grow(&run->heap, dict->entries, dict->n, dict->room, sizeof *dict->entries);
    }
    dict->entries[dict->n++] = (struct jinja_entry){key, value};
}

void jinja_set(struct jinja_run *run, struct jinja_place at, struct jinja_value to,
               struct jinja_value key, struct jinja_value value)
{
    if (key.kind == JINJA_LIST || key.kind == JINJA_DICT)
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s cannot be a key", jinja_kind_name(key));
    const struct jinja_value *there = jinja_find(run, at, to.as.dict, key);
    if (there)
        *(struct jinja_value *)there = value;
    else
        add_entry(run, to.as.dict, key, value);
}

void jinja_set_name(struct jinja_run *run, struct jinja_value dict, const char *name,
                    struct jinja_value value)
{
    const struct jinja_value *there = jinja_find_name(dict.as.dict, name);
    if (there)
        *(struct jinja_value *)there = value;
    else
        add_entry(run, dict.as.dict, jinja_words(run, name), value);
}

struct jinja_value jinja_function(struct jinja_run *run, const char *name, jinja_call_fn *call,
                                  struct jinja_value of, const void *data)
{
    struct jinja_function *f = jinja_take(&run->heap, 1, sizeof *f);
    *f = (struct jinja_function){.name = name, .call = call, .of = of, .data = data};
    return (struct jinja_value){JINJA_FUNCTION, {.function = f}};
}

struct jinja_value jinja_stream(struct jinja_run *run, jinja_call_fn *items,
                                const struct jinja_args *args)
{
    struct jinja_stream *s = jinja_take(&run->heap, 1, sizeof *s);
    *s = (struct jinja_stream){.items = items, .args = *args};
    return (struct jinja_value){JINJA_STREAM, {.stream = s}};
}

static struct jinja_value text_from_json(struct jinja_run *run, const json_t *json, bool caller)
{
    struct jinja_builder b = {0};
    jinja_add(run, &b, json_string_value(json), json_string_length(json), caller);
    return jinja_built(run, &b);
}

struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json, bool caller)
{
    const char *key;
    json_t *item;
    size_t i;
    struct jinja_value v;
    switch (json_typeof(json)) {
    case JSON_NULL:
        return jinja_none();
    case JSON_TRUE:
    case JSON_FALSE:
        return jinja_bool(json_is_true(json));
    case JSON_INTEGER:
        return jinja_int(json_integer_value(json));
    case JSON_REAL:
        return jinja_float(json_real_value(json));
    case JSON_STRING:
        return text_from_json(run, json, caller);
    case JSON_ARRAY:
        v = jinja_list(run, JINJA_LIST, (uint32_t)json_array_size(json));
        json_array_foreach(json, i, item) jinja_append(run, v, jinja_from_json(run, item, caller));
        return v;
    case JSON_OBJECT:
        v = jinja_dict(run, JINJA_DICT);
        json_object_foreach((json_t *)json, key, item)
        {
            struct jinja_builder b = {0}; /* keys of an object are apart */
            jinja_add(run, &b, key, strlen(key), caller);
            add_entry(run, v.as.dict, jinja_built(run, &b), jinja_from_json(run, item, caller));
        }
        return v;
    }
    return jinja_none();
}

/* ---- Looking at values ---- */

const char *jinja_kind_name(struct jinja_value v)
{
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "undefined value",
        [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_FLOAT] = "float",
        [JINJA_TEXT] = "str",
        [JINJA_LIST] = "list",
        [JINJA_TUPLE] = "tuple",
        [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "Namespace",
        [JINJA_LOOP] = "LoopContext",
        [JINJA_FUNCTION] = "function",
        [JINJA_STREAM] = "generator",
    };
    return names[v.kind];
}

bool jinja_true(struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.as.truth;
    case JINJA_INT:
        return v.as.whole != 0;
    case JINJA_FLOAT:
        return v.as.number != 0;
    case JINJA_TEXT:
        return v.as.text->n > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.as.list->n > 0;
    case JINJA_DICT:
        return v.as.dict->n > 0;
    case JINJA_NAMESPACE:
    case JINJA_LOOP:
    case JINJA_FUNCTION:
    case JINJA_STREAM:
        return true;
    }
    return false;
}

int64_t jinja_whole(struct jinja_value v)
{
    return v.kind == JINJA_BOOL ? v.as.truth : v.as.whole;
}

double jinja_number(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.as.number : (double)jinja_whole(v);
}

bool jinja_is_name(struct jinja_value v, const char *name)
{
    return v.kind == JINJA_TEXT && v.as.text->n == strlen(name) &&
           memcmp(v.as.text->bytes, name, v.as.text->n) == 0;
}

static int compare_numbers(struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_whole(a) && jinja_is_whole(b)) {
        int64_t x = jinja_whole(a), y = jinja_whole(b);
        return (x > y) - (x < y);
    }
    double x = jinja_number(a), y = jinja_number(b);
    return (x > y) - (x < y);
}

static int compare_texts(const struct jinja_text *a, const struct jinja_text *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->bytes, b->bytes, n) : 0;
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static bool lists_equal(struct jinja_run *run, struct jinja_place at, const struct jinja_list *a,
                        const struct jinja_list *b)
{
    bool equal = a->n == b->n;
    jinja_enter(run, at);
    for (uint32_t i = 0; equal && i < a->n; i++)
        equal = jinja_equal(run, at, a->items[i], b->items[i]);
    jinja_leave(run);
    return equal;
}

static bool dicts_equal(struct jinja_run *run, struct jinja_place at, const struct jinja_dict *a,
                        const struct jinja_dict *b)
{
    bool equal = a->n == b->n;
    jinja_enter(run, at);
    for (uint32_t i = 0; equal && i < a->n; i++) {
        const struct jinja_value *other = jinja_find(run, at, b, a->entries[i].key);
        equal = other && jinja_equal(run, at, a->entries[i].value, *other);
    }
    jinja_leave(run);
    return equal;
}

bool jinja_same(struct jinja_value a, struct jinja_value b)
{
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case JINJA_BOOL:
        return a.as.truth == b.as.truth;
    case JINJA_INT:
        return a.as.whole == b.as.whole;
    case JINJA_FLOAT:
        return a.as.number == b.as.number;
    case JINJA_TEXT:
        return a.as.text == b.as.text;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return a.as.list == b.as.list;
    case JINJA_DICT:
    case JINJA_NAMESPACE:
    case JINJA_LOOP:
        return a.as.dict == b.as.dict;
    case JINJA_FUNCTION:
        return a.as.function == b.as.function;
    case JINJA_STREAM:
        return a.as.stream == b.as.stream;
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        break;
    }
    return true;
}

bool jinja_equal(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                 struct jinja_value b)
{
    jinja_step(run, at, 1);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (!(jinja_is_whole(a) && jinja_is_whole(b)) &&
            (isnan(jinja_number(a)) || isnan(jinja_number(b))))
            return false;
        return compare_numbers(a, b) == 0;
    }
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case JINJA_TEXT:
        return compare_texts(a.as.text, b.as.text) == 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return lists_equal(run, at, a.as.list, b.as.list);
    case JINJA_DICT:
        return dicts_equal(run, at, a.as.dict, b.as.dict);
    default:
        return jinja_same(a, b);
    }
}

int jinja_compare(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                  struct jinja_value b)
{
    jinja_step(run, at, 1);
    if (jinja_is_number(a) && jinja_is_number(b))
        return compare_numbers(a, b);
    if (a.kind == JINJA_TEXT && b.kind == JINJA_TEXT)
        return compare_texts(a.as.text, b.as.text);
    if (a.kind != b.kind || !jinja_is_sequence(a))
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s and a %s have no order",
                   jinja_kind_name(a), jinja_kind_name(b));
    const struct jinja_list *x = a.as.list, *y = b.as.list;
    uint32_t i = 0, n = x->n < y->n ? x->n : y->n;
    int order = 0;
    jinja_enter(run, at);
    while (i < n && jinja_equal(run, at, x->items[i], y->items[i]))
        i++;
    if (i < n)
        order = jinja_compare(run, at, x->items[i], y->items[i]);
    jinja_leave(run);
    return i < n ? order : (x->n > y->n) - (x->n < y->n);
}

const struct jinja_value *jinja_find(struct jinja_run *run, struct jinja_place at,
                                     const struct jinja_dict *dict, struct jinja_value key)
{
    for (uint32_t i = 0; i < dict->n; i++)
        if (jinja_equal(run, at, dict->entries[i].key, key))
            return &dict->entries[i].value;
    return NULL;
}

const struct jinja_value *jinja_find_name(const struct jinja_dict *dict, const char *name)
{
    for (uint32_t i = 0; i < dict->n; i++)
        if (jinja_is_name(dict->entries[i].key, name))
            return &dict->entries[i].value;
    return NULL;
}

bool jinja_contains(struct jinja_run *run, struct jinja_place at, struct jinja_value b,
                    struct jinja_value a)
{
    switch (b.kind) {
    case JINJA_TEXT:
        if (a.kind != JINJA_TEXT)
            jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s cannot be in a text",
                       jinja_kind_name(a));
        jinja_step(run, at, b.as.text->n / 64 + 1);
        return jinja_find_text(b.as.text, 0, a.as.text) >= 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        for (uint32_t i = 0; i < b.as.list->n; i++)
            if (jinja_equal(run, at, b.as.list->items[i], a))
                return true;
        return false;
    case JINJA_DICT:
        return jinja_find(run, at, b.as.dict, a) != NULL;
    case JINJA_STREAM:
        return jinja_contains(run, at, jinja_items(run, at, b), a);
    case JINJA_UNDEFINED:
        return false;
    default:
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "nothing can be in a %s", jinja_kind_name(b));
    }
}

static struct jinja_value characters(struct jinja_run *run, const struct jinja_text *text)
{
    struct jinja_value list = jinja_list(run, JINJA_LIST, text->n);
    int length;
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        jinja_append(run, list, jinja_part_of(run, text, i, i + (uint32_t)length));
    }
    return list;
}

struct jinja_value jinja_items(struct jinja_run *run, struct jinja_place at, struct jinja_value v)
{
    struct jinja_value list;
    switch (v.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        jinja_step(run, at, v.as.list->n);
        return v;
    case JINJA_TEXT:
        jinja_step(run, at, v.as.text->n);
        return characters(run, v.as.text);
    case JINJA_DICT:
        jinja_step(run, at, v.as.dict->n);
        list = jinja_list(run, JINJA_LIST, v.as.dict->n);
        for (uint32_t i = 0; i < v.as.dict->n; i++)
            jinja_append(run, list, v.as.dict->entries[i].key);
        return list;
    case JINJA_STREAM:
        if (v.as.stream->spent)
            return jinja_list(run, JINJA_LIST, 0);
        v.as.stream->spent = true;
        jinja_enter(run, at);
        list = v.as.stream->items(run, NULL, &v.as.stream->args);
        jinja_leave(run);
        return list;
    case JINJA_UNDEFINED:
        return jinja_list(run, JINJA_LIST, 0);
    default:
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s has no items", jinja_kind_name(v));
    }
}

uint32_t jinja_length(struct jinja_run *run, struct jinja_place at, struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.as.list->n;
    case JINJA_TEXT:
        jinja_step(run, at, v.as.text->n / 64);
        return jinja_count(v.as.text, v.as.text->n);
    case JINJA_DICT:
        return v.as.dict->n;
    case JINJA_UNDEFINED:
        return 0;
    default:
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a %s has no length", jinja_kind_name(v));
    }
}

int64_t jinja_index(int64_t i, uint32_t n)
{
    i = i < 0 ? i + n : i;
    return i >= 0 && i < n ? i : -1;
}
