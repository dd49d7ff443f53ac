/* Two schemas in one, and two that exclude each other. */
#include <string.h>

#include "grammar/schema.h"

enum { MAX_REFERENCES = 64 /* that lead to each other */, MAX_EXCLUDE_DEPTH = 4 };

/* ---- Types ---- */

static const struct {
    const char *name;
    unsigned types;
} names[] = {
    {"null", TYPE_NULL},
    {"boolean", TYPE_BOOLEAN},
    {"object", TYPE_OBJECT},
    {"array", TYPE_ARRAY},
    {"string", TYPE_STRING},
    {"integer", TYPE_INTEGER},
    {"number", TYPE_INTEGER | TYPE_NUMBER},
};

/* 0: there is no type of that name. */
static unsigned type_of_name(const json_t *name)
{
    const char *text = json_string_value(name);
    for (size_t i = 0; text && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, text) == 0)
            return names[i].types;
    return 0;
}

/* 0 where the keyword is not understood. */
static unsigned types_of(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned types = 0;
    if (!type)
        return TYPE_ALL;
    if (!json_is_array(type))
        return type_of_name(type);
    for (size_t i = 0; i < json_array_size(type); i++) {
        unsigned one = type_of_name(json_array_get(type, i));
        if (!one)
            return 0;
        types |= one;
    }
    return types;
}

int schema_types(const struct schema *s, const json_t *schema, unsigned *types)
{
    *types = types_of(schema);
    return *types ? MOE_OK : schema_refuse(s, "type", "there is no such type");
}

static json_t *list_of_types(unsigned types)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof names[0] && list; i++)
        if ((types & names[i].types) == names[i].types &&
            !(names[i].types == TYPE_INTEGER && types & TYPE_NUMBER))
            json_array_append_new(list, json_string(names[i].name));
    return list;
}

/* ---- Values ---- */

bool schema_equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool list_has(const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (schema_equal(json_array_get(list, i), value))
            return true;
    return false;
}

/* ---- Both ---- */

/* What both members say, where they are not the same; NULL: that is not known. A new reference. */
static json_t *merge_member(const char *key, const json_t *a, const json_t *b)
{
    bool least = strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
    bool most = strncmp(key, "max", 3) == 0 || strcmp(key, "exclusiveMaximum") == 0;
    json_t *both = NULL;
    if ((least || most) && json_is_number(a) && json_is_number(b))
        return json_copy(
            (json_t *)((json_number_value(a) > json_number_value(b)) == least ? a : b));
    if (strcmp(key, "required") == 0 && json_is_array(a) && json_is_array(b)) {
        both = json_copy((json_t *)a);
        for (size_t i = 0; both && i < json_array_size(b); i++)
            if (!list_has(a, json_array_get(b, i)))
                json_array_append(both, json_array_get(b, i));
    } else if (strcmp(key, "enum") == 0 && json_is_array(a)) {
        both = json_array();
        for (size_t i = 0; both && i < json_array_size(a); i++)
            if (list_has(b, json_array_get(a, i)))
                json_array_append(both, json_array_get(a, i));
    } else if (strcmp(key, "properties") == 0 && json_is_object(a) && json_is_object(b)) {
        const char *name;
        json_t *value;
        both = json_copy((json_t *)a);
        json_object_foreach((json_t *)b, name, value)
        {
            json_t *other = json_object_get(a, name);
            if (!other)
                json_object_set(both, name, value);
            else if (!json_equal(other, value))
                json_object_set_new(both, name, json_pack("{s:[O,O]}", "allOf", other, value));
        }
    } else if (strcmp(key, "items") == 0) {
        both = json_pack("{s:[O,O]}", "allOf", a, b);
    }
    return both;
}

/* Properties of the one that the other, which takes none but its own, does not know. */
static const char *closed_out(const json_t *closed, const json_t *other)
{
    const json_t *more = json_object_get(closed, "additionalProperties");
    const char *name;
    json_t *value;
    if (!more || json_is_true(more))
        return NULL;
    json_object_foreach(
        json_object_get(other, "properties"), name,
        value) if (!json_object_get(json_object_get(closed, "properties"), name)) return name;
    return NULL;
}

/* What a reference leads to, again and again; alone, or with what stands beside it. */
static int resolve(struct schema *s, const json_t **schema)
{
    for (int i = 0; i < MAX_REFERENCES; i++) {
        const char *reference = json_string_value(json_object_get(*schema, "$ref"));
        if (!reference)
            return MOE_OK;
        const json_t *target = schema_find(s, reference);
        if (!target)
            return schema_refuse(s, "$ref", "'%.100s' is nothing in this schema", reference);
        json_t *rest = json_copy((json_t *)*schema), *both = NULL;
        if (!rest || json_array_append_new(s->kept, rest) != 0)
            return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
        json_object_del(rest, "$ref");
        if (json_object_size(rest) > 0 && !json_object_get(target, "$ref")) {
            int status = schema_merge(s, target, rest, &both);
            if (status == MOE_OK && json_array_append_new(s->kept, both) != 0)
                status = moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
            *schema = both;
            return status;
        }
        *schema = target;
    }
    return schema_refuse(s, "$ref", "it leads back to itself");
}

static bool is_annotation(const char *key)
{
    static const char *const keys[] = {"title",      "description", "default",   "examples",
                                       "deprecated", "readOnly",    "writeOnly", "$comment",
                                       "$id",        "$schema",     "$defs",     "definitions"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

int schema_merge(struct schema *s, const json_t *a, const json_t *b, json_t **out)
{
    const char *key;
    json_t *value;
    *out = NULL;
    int status = ++s->n_steps > SCHEMA_MAX_STEPS
                     ? schema_refuse(s, NULL, "too many schemas are put together")
                     : resolve(s, &a);
    if (status == MOE_OK)
        status = resolve(s, &b);
    if (status != MOE_OK)
        return status;
    if (json_is_boolean(a) || json_is_boolean(b)) {
        const json_t *one = json_is_true(a) || json_is_false(b) ? b : a;
        *out = json_copy((json_t *)one);
        return *out ? MOE_OK : moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    }
    if (!json_is_object(a) || !json_is_object(b))
        return schema_refuse(s, NULL, "a schema was expected: an object, true or false");
    const char *out_of = closed_out(a, b) ? closed_out(a, b) : closed_out(b, a);
    if (out_of)
        return schema_refuse(s, "additionalProperties",
                             "one of the schemas that are put together takes '%.60s', another "
                             "leaves it out",
                             out_of);
    json_t *both = json_copy((json_t *)a);
    if (!both)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    json_object_foreach((json_t *)b, key, value)
    {
        const json_t *there = json_object_get(a, key);
        json_t *one = NULL;
        if (there && strcmp(key, "type") == 0)
            one = list_of_types(types_of(a) & types_of(b));
        else if (!there || json_equal(there, value) || is_annotation(key))
            one = json_incref(there ? (json_t *)there : value);
        else
            one = merge_member(key, there, value);
        if (!one) {
            json_decref(both);
            return schema_refuse(s, key, "two that differ cannot be put together");
        }
        json_object_set_new(both, key, one);
    }
    *out = both;
    return MOE_OK;
}

/* ---- Apart ---- */

static bool exclude(const struct schema *s, const json_t *a, const json_t *b, int depth);

/* The values that are given, as a list that is borrowed or (const) new in *made; NULL: any. */
static const json_t *given(const json_t *schema, json_t **made)
{
    const json_t *constant = json_object_get(schema, "const");
    *made = constant ? json_pack("[O]", constant) : NULL;
    return *made ? *made : json_object_get(schema, "enum");
}

static bool values_differ(const json_t *a, const json_t *b)
{
    json_t *made_a, *made_b;
    const json_t *of_a = given(a, &made_a), *of_b = given(b, &made_b);
    bool differ = of_a && of_b;
    for (size_t i = 0; differ && i < json_array_size(of_a); i++)
        differ = !list_has(of_b, json_array_get(of_a, i));
    json_decref(made_a);
    json_decref(made_b);
    return differ;
}

static bool is_closed(const json_t *schema)
{
    return json_is_false(json_object_get(schema, "additionalProperties"));
}

/* Whether no object that is written for the one is taken by the other. Where a schema does not say
 * that there may be other properties than its own, none are written (schema_object). */
static bool object_is_not(const struct schema *s, const json_t *one, const json_t *other, int depth)
{
    const json_t *required = json_object_get(one, "required");
    const json_t *own = json_object_get(one, "properties");
    const json_t *others = json_object_get(other, "properties");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        const json_t *mine = name ? json_object_get(own, name) : NULL;
        const json_t *theirs = name ? json_object_get(others, name) : NULL;
        if ((mine && theirs && exclude(s, mine, theirs, depth + 1)) ||
            (name && !theirs && is_closed(other)))
            return true;
    }
    const json_t *more = json_object_get(one, "additionalProperties");
    bool writes_no_more = own && (!more || json_is_false(more));
    required = json_object_get(other, "required");
    for (size_t i = 0; i < json_array_size(required) && writes_no_more; i++) {
        const json_t *name = json_array_get(required, i);
        if (json_is_string(name) && !json_object_get(own, json_string_value(name)) &&
            !list_has(json_object_get(one, "required"), name))
            return true;
    }
    return false;
}

static const json_t *follow(const struct schema *s, const json_t *schema)
{
    for (int i = 0; i < MAX_REFERENCES && schema; i++) {
        const char *reference = json_string_value(json_object_get(schema, "$ref"));
        if (!reference)
            break;
        schema = schema_find(s, reference);
    }
    return schema;
}

/* The types that values of it have, those of given values too. */
static unsigned all_types(const json_t *schema)
{
    json_t *made;
    const json_t *values = given(schema, &made);
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        types |= json_is_object(v)    ? TYPE_OBJECT
                 : json_is_array(v)   ? TYPE_ARRAY
                 : json_is_string(v)  ? TYPE_STRING
                 : json_is_number(v)  ? TYPE_NUMBER | TYPE_INTEGER
                 : json_is_boolean(v) ? TYPE_BOOLEAN
                                      : TYPE_NULL;
    }
    json_decref(made);
    return (values ? types : TYPE_ALL) & types_of(schema);
}

static bool exclude(const struct schema *s, const json_t *a, const json_t *b, int depth)
{
    a = follow(s, a);
    b = follow(s, b);
    if (depth > MAX_EXCLUDE_DEPTH || !json_is_object(a) || !json_is_object(b))
        return false;
    unsigned both = all_types(a) & all_types(b);
    return both == 0 || values_differ(a, b) ||
           (both == TYPE_OBJECT && object_is_not(s, a, b, depth) && object_is_not(s, b, a, depth));
}

bool schema_exclude(const struct schema *s, const json_t *a, const json_t *b)
{
    return exclude(s, a, b, 0);
}
