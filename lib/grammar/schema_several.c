/* JSON schemas put together: allOf, anyOf, oneOf, and given values. */
#include <string.h>

#include "grammar/schema.h"

/* ---- Keywords ---- */

const struct schema_keyword schema_about[] = {
    {"properties", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"additionalProperties", TYPE_OBJECT},
    {"minProperties", TYPE_OBJECT},
    {"maxProperties", TYPE_OBJECT},
    {"items", TYPE_ARRAY},
    {"prefixItems", TYPE_ARRAY},
    {"additionalItems", TYPE_ARRAY},
    {"minItems", TYPE_ARRAY},
    {"maxItems", TYPE_ARRAY},
    {"uniqueItems", TYPE_ARRAY},
    {"minLength", TYPE_STRING},
    {"maxLength", TYPE_STRING},
    {"pattern", TYPE_STRING},
    {"format", TYPE_STRING},
    {"minimum", TYPE_NUMBER | TYPE_INTEGER},
    {"maximum", TYPE_NUMBER | TYPE_INTEGER},
    {"exclusiveMinimum", TYPE_NUMBER | TYPE_INTEGER},
    {"exclusiveMaximum", TYPE_NUMBER | TYPE_INTEGER},
    {"multipleOf", TYPE_NUMBER | TYPE_INTEGER},
    {NULL, 0},
};

/* Whether anything but the named keyword says what values are taken. */
bool schema_says_more(const json_t *schema, const char *but)
{
    static const char *const others[] = {"type",  "enum",  "const", "$ref",
                                         "anyOf", "oneOf", "allOf"};
    for (size_t i = 0; schema_about[i].key; i++)
        if (schema_get(schema, schema_about[i].key))
            return true;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i], but) != 0 && json_object_get(schema, others[i]))
            return true;
    return false;
}

/* The schema without a keyword, kept until the end. */
int schema_without(struct schema *s, const json_t *schema, const char *key, json_t **out)
{
    *out = json_copy((json_t *)schema);
    if (!*out || json_array_append_new(s->kept, *out) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    json_object_del(*out, key);
    return MOE_OK;
}

int schema_merge_kept(struct schema *s, const json_t *a, const json_t *b, json_t **out)
{
    int status = schema_merge(s, a, b, out);
    if (status == MOE_OK && json_array_append_new(s->kept, *out) != 0)
        status = moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    return status;
}

/* ---- Several schemas ---- */

int schema_all_of(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *parts = json_object_get(schema, "allOf");
    json_t *all;
    if (!json_is_array(parts))
        return schema_refuse(s, "allOf", "a list was expected");
    int status = schema_without(s, schema, "allOf", &all);
    for (size_t i = 0; i < json_array_size(parts) && status == MOE_OK; i++) {
        uint64_t from = schema_enter_item(s, "allOf", i);
        status = schema_merge_kept(s, all, json_array_get(parts, i), &all);
        schema_leave(s, from);
    }
    return status == MOE_OK ? s->value(s, all, to) : status;
}

/* Of oneOf's alternatives a value may be one's alone. */
static int check_apart(const struct schema *s, const json_t *alternatives)
{
    size_t n = json_array_size(alternatives);
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            if (!schema_exclude(s, json_array_get(alternatives, i),
                                json_array_get(alternatives, k)))
                return schema_refuse(s, "oneOf",
                                     "that %zu and %zu exclude each other is not seen: give them "
                                     "types or constants that differ, or write anyOf",
                                     i, k);
    return MOE_OK;
}

int schema_any_of(struct schema *s, const json_t *schema, const char *key, struct moe_buf *to)
{
    const json_t *parts = json_object_get(schema, key);
    json_t *rest = NULL, *merged = json_array();
    struct moe_buf all = {0};
    size_t n = json_array_size(parts);
    int status = merged ? MOE_OK : moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    if (status == MOE_OK && (!json_is_array(parts) || n == 0 || n > 1000))
        status = schema_refuse(s, key, "a list of 1 to 1000 schemas was expected");
    if (status == MOE_OK)
        status = schema_without(s, schema, key, &rest);
    bool more = status == MOE_OK && schema_says_more(rest, key);
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        json_t *part = json_array_get(parts, i);
        uint64_t from = schema_enter_item(s, key, i);
        moe_buf_text(&all, i ? " | " : "");
        if (more)
            status = schema_merge_kept(s, rest, part, &part);
        if (status == MOE_OK && json_array_append(merged, part) != 0)
            status = moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
        if (status == MOE_OK)
            status = s->value(s, part, &all);
        schema_leave(s, from);
    }
    if (status == MOE_OK && strcmp(key, "oneOf") == 0)
        status = check_apart(s, merged);
    if (status == MOE_OK) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
    moe_buf_release(&all);
    json_decref(merged);
    return status;
}

/* ---- Given values ---- */

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == (double)(json_int_t)json_real_value(value) ? TYPE_INTEGER
                                                                                    : TYPE_NUMBER;
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOLEAN;
    }
}

int schema_given(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    unsigned types = TYPE_ALL;
    struct moe_buf all = {0};
    json_t *type_only = json_object();
    int status = type_only ? MOE_OK : moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; schema_about[i].key && status == MOE_OK; i++)
        if (schema_get(schema, schema_about[i].key))
            status =
                schema_refuse(s, schema_about[i].key, "beside enum or const it is not supported");
    if (status == MOE_OK && values && !json_is_array(values))
        status = schema_refuse(s, "enum", "a list was expected");
    if (status == MOE_OK && json_object_get(schema, "type")) {
        json_object_set(type_only, "type", json_object_get(schema, "type"));
        status = schema_types(s, type_only, &types);
    }
    json_decref(type_only);
    size_t n = values ? json_array_size(values) : 1;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const json_t *value = values ? json_array_get(values, i) : constant;
        if (!(type_of(value) & types) || (constant && !schema_equal(value, constant)))
            continue;
        moe_buf_text(&all, all.size ? " | " : "");
        status = schema_json(s, value, &all);
    }
    if (status == MOE_OK && all.size == 0)
        status = schema_refuse(s, values ? "enum" : "const", "no value is taken here");
    if (status == MOE_OK) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
    moe_buf_release(&all);
    return status;
}
