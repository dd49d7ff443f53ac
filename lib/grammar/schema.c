/* Turns JSON schemas into GBNF: types, references, alternatives, merging. */
#include "grammar/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "grammar/automaton_internal.h"
#include "grammar/grammar.h"

enum { MAX_EXCLUDE_DEPTH = 4 };

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

/* 0: no such type. */
static unsigned type_of_name(const json_t *name)
{
    const char *text = json_string_value(name);
    for (size_t i = 0; text && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, text) == 0)
            return names[i].types;
    return 0;
}

/* 0: the keyword is not understood. */
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

/* The types it accepts by "type"; TYPE_ALL: it names none; 0: none is left where schemas were
 * merged. */
static int schema_types(const struct schema *s, const json_t *schema, unsigned *types)
{
    const json_t *type = json_object_get(schema, "type");
    *types = types_of(schema);
    return *types || (json_is_array(type) && json_array_size(type) == 0)
               ? MOE_OK
               : schema_refuse(s, "type", "there is no such type");
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

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return moe_json_digits(value) ? TYPE_INTEGER : TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOLEAN;
    }
}

/* Whether two values are the same, as json_equal, in steps of the allowance; not if these are
 * spent, which the next schema_step refuses. */
static bool is_same(const struct schema *s, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *item;
    size_t i;
    if (a == b)
        return true;
    if (moe_allowance_step(s->allowance, 1 + json_string_length(a) / 16) != MOE_OK || !a || !b ||
        json_typeof(a) != json_typeof(b) || json_object_size(a) != json_object_size(b) ||
        json_array_size(a) != json_array_size(b))
        return false;
    json_array_foreach(a, i, item)
    {
        if (!is_same(s, item, json_array_get(b, i)))
            return false;
    }
    json_object_foreach((json_t *)a, key, item)
    {
        if (!is_same(s, item, json_object_get(b, key)))
            return false;
    }
    return json_is_array(a) || json_is_object(a) || json_equal(a, b);
}

/* as JSON schemas compare: 1 equals 1.0 */
static bool schema_equal(const struct schema *s, const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return moe_allowance_step(s->allowance, 1) == MOE_OK &&
               json_number_value(a) == json_number_value(b);
    return is_same(s, a, b);
}

static bool list_has(const struct schema *s, const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (schema_equal(s, json_array_get(list, i), value))
            return true;
    return false;
}

/* A text that two values have in common exactly if they compare equal; free() it. NULL: no memory.
 */
static char *value_key(const json_t *value)
{
    char number[40];
    if (!json_is_number(value))
        return moe_json_text(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
    snprintf(number, sizeof number, "%.17g", json_number_value(value));
    return moe_strndup(number, strlen(number), NULL);
}

/* Notes the values of a list in an object, under their keys. *twice: the number of an earlier list
 * that has one of them too, or `number` if there is none. Fails for lack of memory or steps. */
static int note_values(struct schema *s, json_t *seen, const json_t *list, size_t number,
                       size_t *twice)
{
    json_t *value;
    size_t i;
    *twice = number;
    json_array_foreach(list, i, value)
    {
        char *key = value_key(value);
        const json_t *there = key ? json_object_get(seen, key) : NULL;
        int status = schema_step(s, NULL, 8 + (key ? strlen(key) / 8 : 0));
        if (there && (size_t)json_integer_value(there) != number)
            *twice = (size_t)json_integer_value(there);
        else if (!key || json_object_set_new(seen, key, json_integer((json_int_t)number)) != 0)
            status = moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: values of a schema");
        moe_allowance_take(s->allowance, SCHEMA_MEMBER + (key ? strlen(key) : 0));
        free(key);
        MOE_TRY(status);
    }
    return MOE_OK;
}

/* ---- Keywords ---- */

const struct schema_keyword schema_about[] = {
    {"properties", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"additionalProperties", TYPE_OBJECT},
    {"patternProperties", TYPE_OBJECT},
    {"propertyNames", TYPE_OBJECT},
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

/* Keywords that are refused: answers depend on them. JSON schema ignores unknown ones. */
static const char *const refused[] = {
    "contains",    "minContains",   "maxContains", "unevaluatedItems", "unevaluatedProperties",
    "$dynamicRef", "$recursiveRef", "extends",     "disallow",         NULL,
};

/* Keywords of all values. */
static const char *const of_all[] = {"type",
                                     "enum",
                                     "const",
                                     "$ref",
                                     "anyOf",
                                     "oneOf",
                                     "allOf",
                                     "not",
                                     "if",
                                     "then",
                                     "else",
                                     "dependentRequired",
                                     "dependentSchemas",
                                     "dependencies",
                                     SCHEMA_PATTERNS,
                                     SCHEMA_CHOICES,
                                     NULL};

static bool is_listed(const char *const *list, const char *key)
{
    while (*list && strcmp(*list, key) != 0)
        list++;
    return *list;
}

/* Whether answers depend on it. */
static bool is_keyword(const char *key)
{
    size_t i = 0;
    while (schema_about[i].key && strcmp(schema_about[i].key, key) != 0)
        i++;
    return schema_about[i].key || is_listed(of_all, key) || is_listed(refused, key);
}

static bool has_other_keyword(const json_t *schema, const char *but)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (is_keyword(key) && strcmp(key, but) != 0)
            return true;
    }
    return false;
}

/* Whether any keyword but the named one restricts values. */
static bool schema_says_more(const json_t *schema, const char *but)
{
    for (size_t i = 0; schema_about[i].key; i++)
        if (schema_get(schema, schema_about[i].key))
            return true;
    for (size_t i = 0; of_all[i]; i++)
        if (strcmp(of_all[i], but) != 0 && json_object_get(schema, of_all[i]))
            return true;
    return false;
}

/* ---- Kept until the end ---- */

/* Keeps a new intermediate schema (NULL: there was no memory). */
static int keep_schema(struct schema *s, json_t *schema)
{
    moe_allowance_take(s->allowance, SCHEMA_MEMORY + json_object_size(schema) * SCHEMA_MEMBER);
    if (!schema || json_array_append_new(s->kept, schema) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    return schema_step(s, NULL, 8 + json_object_size(schema));
}

/* The schema without a keyword, as a copy. */
static int schema_without(struct schema *s, const json_t *schema, const char *key, json_t **out)
{
    MOE_TRY(keep_schema(s, *out = json_copy((json_t *)schema)));
    json_object_del(*out, key);
    return MOE_OK;
}

/* ---- Both ---- */

/* The member of a merged schema, to be changed: what others hold too is copied first. */
static json_t *own_member(struct schema *s, json_t *merged, const char *key)
{
    json_t *member = json_object_get(merged, key);
    size_t n = json_object_size(member) + json_array_size(member);
    if (member->refcount == 1)
        return member;
    moe_allowance_step(s->allowance, n);
    moe_allowance_take(s->allowance, SCHEMA_MEMORY + n * SCHEMA_MEMBER);
    json_object_set_new(merged, key, json_copy(member));
    return json_object_get(merged, key);
}

/* Lets the member of an object be what it is and `other` too: one more of a list that it has had
 * made, or such a list. False: no memory. */
static bool add_both(struct schema *s, json_t *object, const char *key, json_t *other)
{
    json_t *there = json_object_get(object, key), *list = json_object_get(there, "allOf");
    moe_allowance_take(s->allowance, 2 * SCHEMA_MEMORY);
    if (there->refcount == 1 && json_object_size(there) == 1 && list && list->refcount == 1)
        return json_array_append(list, other) == 0;
    return json_object_set_new(object, key, json_pack("{s:[O,O]}", "allOf", there, other)) == 0;
}

static bool add_list(struct schema *s, json_t *merged, const char *key, const json_t *list)
{
    json_t *own = own_member(s, merged, key);
    moe_allowance_step(s->allowance, json_array_size(list));
    moe_allowance_take(s->allowance, json_array_size(list) * sizeof(void *));
    return own && json_array_extend(own, (json_t *)list) == 0;
}

static bool add_properties(struct schema *s, json_t *merged, const json_t *more)
{
    json_t *own = own_member(s, merged, "properties"), *value;
    const char *name;
    bool added = own;
    json_object_foreach((json_t *)more, name, value)
    {
        const json_t *there = json_object_get(own, name);
        moe_allowance_step(s->allowance, 4);
        moe_allowance_take(s->allowance, SCHEMA_MEMBER);
        if (!there)
            added = added && json_object_set(own, name, value) == 0;
        else if (!is_same(s, there, value))
            added = added && add_both(s, own, name, value);
    }
    return added;
}

/* The values of list a that b has too; a new list. */
static json_t *common_values(struct schema *s, const json_t *a, const json_t *b)
{
    json_t *both = json_array(), *seen = json_object(), *value;
    size_t i, twice;
    bool known = both && seen && note_values(s, seen, b, 0, &twice) == MOE_OK;
    json_array_foreach(a, i, value)
    {
        char *key = known ? value_key(value) : NULL;
        known = key && moe_allowance_step(s->allowance, 8) == MOE_OK;
        if (known && json_object_get(seen, key))
            json_array_append(both, value);
        free(key);
    }
    moe_allowance_take(s->allowance, SCHEMA_MEMORY + json_array_size(both) * sizeof(void *));
    json_decref(seen);
    return both;
}

/* The given values, as a list that is borrowed or (const) new in *made; NULL: any. */
static const json_t *given(const json_t *schema, json_t **made)
{
    const json_t *constant = json_object_get(schema, "const");
    *made = constant ? json_pack("[O]", constant) : NULL;
    return *made ? *made : json_object_get(schema, "enum");
}

/* Whether a "not" tests properties, as an "if" does. */
static bool tests_properties(const json_t *denied)
{
    return json_object_get(denied, "properties") || json_object_get(denied, "required");
}

/* Whether a "not" is one of values: of an enum, a const or types. */
static bool leaves_out_values(const json_t *denied)
{
    const bool values = json_is_array(json_object_get(denied, "enum"));
    const char *const but = values ? "enum" : "const", *key;
    bool only = json_is_object(denied) && types_of(denied) != 0;
    json_t *ignored;
    json_object_foreach((json_t *)denied, key, ignored) only &=
        !is_keyword(key) || strcmp(key, but) == 0 || strcmp(key, "type") == 0;
    return only;
}

static bool names_values(const json_t *denied)
{
    return leaves_out_values(denied) &&
           (json_object_get(denied, "enum") || json_object_get(denied, "const"));
}

/* Leaves out what another "not" does too. */
static bool add_left_out(struct schema *s, json_t *merged, const json_t *other)
{
    json_t *made_a, *made_b, *both = json_array(), *denied = json_object();
    const json_t *a = given(json_object_get(merged, "not"), &made_a), *b = given(other, &made_b);
    moe_allowance_step(s->allowance, json_array_size(a) + json_array_size(b));
    moe_allowance_take(s->allowance, 2 * SCHEMA_MEMORY + (json_array_size(a) + json_array_size(b)) *
                                                             sizeof(void *));
    bool added = both && denied && json_array_extend(both, (json_t *)a) == 0 &&
                 json_array_extend(both, (json_t *)b) == 0 &&
                 json_object_set(denied, "enum", both) == 0 &&
                 json_object_set(merged, "not", denied) == 0;
    json_decref(made_a);
    json_decref(made_b);
    json_decref(both);
    json_decref(denied);
    return added;
}

/* Merges another schema's member into a merged one that has another; false: unknown how. */
static bool merge_member(struct schema *s, json_t *merged, const char *key, json_t *b)
{
    json_t *a = json_object_get(merged, key);
    bool least = strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
    bool most = strncmp(key, "max", 3) == 0 || strcmp(key, "exclusiveMaximum") == 0;
    bool lists = json_is_array(a) && json_is_array(b);
    double of_a, of_b;
    if ((least || most) && moe_json_number(a, &of_a) && moe_json_number(b, &of_b))
        return (of_a > of_b) == least || json_object_set(merged, key, b) == 0;
    if (lists && (strcmp(key, "required") == 0 || strcmp(key, "allOf") == 0 ||
                  strcmp(key, SCHEMA_CHOICES) == 0 || strcmp(key, SCHEMA_PATTERNS) == 0))
        return add_list(s, merged, key, b);
    if ((strcmp(key, "pattern") == 0 || strcmp(key, "format") == 0) && json_is_string(a) &&
        json_is_string(b)) {
        json_t *more = json_pack("[{s:O}]", key, b);
        moe_allowance_take(s->allowance, 2 * SCHEMA_MEMORY);
        if (!json_object_get(merged, SCHEMA_PATTERNS))
            return json_object_set_new(merged, SCHEMA_PATTERNS, more) == 0;
        bool added = add_list(s, merged, SCHEMA_PATTERNS, more);
        json_decref(more);
        return added;
    }
    if (strcmp(key, "not") == 0 && names_values(a) && names_values(b))
        return add_left_out(s, merged, b);
    if (strcmp(key, "const") == 0) /* both cannot be */
        return schema_equal(s, a, b) || json_object_set_new(merged, "enum", json_array()) == 0;
    if (lists && strcmp(key, "enum") == 0)
        return json_object_set_new(merged, key, common_values(s, a, b)) == 0;
    if (strcmp(key, "properties") == 0 && json_is_object(a) && json_is_object(b))
        return add_properties(s, merged, b);
    if (strcmp(key, "additionalProperties") == 0 && (json_is_boolean(a) || json_is_boolean(b)))
        return json_object_set(merged, key, json_is_false(a) || json_is_true(b) ? a : b) == 0;
    return (strcmp(key, "items") == 0 || strcmp(key, "additionalProperties") == 0) &&
           add_both(s, merged, key, b);
}

/* Whether it says what properties may be that it does not describe. */
static bool closes(const json_t *schema)
{
    const json_t *more = json_object_get(schema, "additionalProperties");
    return more && !json_is_true(more);
}

/* Lets the properties that another schema does not describe be what it says of these. */
static int add_additional(struct schema *s, json_t *merged, const json_t *one, const json_t *other)
{
    json_t *more = json_object_get(other, "additionalProperties"), *value;
    const json_t *described = json_object_get(other, "properties");
    const char *name;
    if (!closes(other))
        return MOE_OK;
    json_object_foreach(json_object_get(one, "properties"), name, value)
    {
        MOE_TRY(schema_step(s, NULL, 4));
        if (json_object_get(described, name))
            continue;
        if (json_object_get(other, "patternProperties"))
            return schema_refuse(s, "patternProperties",
                                 "combined with schemas that describe more, as '%.60s', it is not "
                                 "supported",
                                 name);
        json_t *own = own_member(s, merged, "properties");
        if (!own || json_object_set_new(own, name,
                                        json_is_false(more)
                                            ? json_false()
                                            : json_pack("{s:[O,O]}", "allOf", value, more)) != 0)
            return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
        moe_allowance_take(s->allowance, 2 * SCHEMA_MEMORY);
    }
    return MOE_OK;
}

static int merge_with(struct schema *s, json_t **merged, const json_t *b);
static int list_choices(struct schema *s, const json_t **schema);

/* Follows references repeatedly; merges the keywords beside them. */
static int resolve_references(struct schema *s, const json_t **schema)
{
    for (int i = 0; i < SCHEMA_MAX_REFERENCES; i++) {
        const char *reference = json_string_value(json_object_get(*schema, "$ref"));
        if (!reference)
            return MOE_OK;
        const json_t *target = schema_find(s, reference);
        if (!target)
            return schema_refuse(s, "$ref", "'%.100s' does not exist in this schema", reference);
        MOE_TRY(schema_step(s, NULL, 8 + strlen(reference)));
        if (has_other_keyword(*schema, "$ref")) {
            json_t *rest;
            if (s->depth >= SCHEMA_MAX_DEPTH)
                break;
            MOE_TRY(schema_without(s, *schema, "$ref", &rest));
            s->depth++;
            MOE_TRY(merge_with(s, &rest, target));
            s->depth--;
            *schema = rest;
            return MOE_OK;
        }
        *schema = target;
    }
    return schema_refuse(s, "$ref", "it leads back to itself");
}

/* Merges b into a schema that is the caller's own, so that it accepts what both accept. Keywords
 * that say nothing of values are left out. */
static int merge_with(struct schema *s, json_t **merged, const json_t *b)
{
    const char *key;
    json_t *value;
    unsigned types, others;
    MOE_TRY(schema_step(s, NULL, 8));
    MOE_TRY(resolve_references(s, &b));
    MOE_TRY(list_choices(s, &b));
    if (json_is_false(b) || json_is_false(*merged)) {
        *merged = json_false();
        return MOE_OK;
    }
    if (json_is_true(b))
        return MOE_OK;
    if (!json_is_object(b))
        return schema_refuse(s, NULL, "a schema was expected: an object, true or false");
    json_t *a = NULL; /* as it was, where one of them says what others may be */
    if (closes(*merged) || closes(b))
        MOE_TRY(keep_schema(s, a = json_copy(*merged)));
    json_object_foreach((json_t *)b, key, value)
    {
        const json_t *there = json_object_get(*merged, key);
        bool done = true;
        MOE_TRY(schema_step(s, NULL, 4));
        if (!is_keyword(key))
            continue;
        if (!there)
            done = json_object_set(*merged, key, value) == 0;
        else if (strcmp(key, "type") == 0) {
            MOE_TRY(schema_types(s, *merged, &types));
            MOE_TRY(schema_types(s, b, &others));
            done = json_object_set_new(*merged, key, list_of_types(types & others)) == 0;
        } else if (!is_same(s, there, value))
            done = merge_member(s, *merged, key, value);
        moe_allowance_take(s->allowance, SCHEMA_MEMBER);
        MOE_TRY(schema_step(s, NULL, 0));
        if (!done)
            return schema_refuse(s, key, "two different ones cannot be combined");
    }
    if (a)
        MOE_TRY(add_additional(s, *merged, b, a));
    return a ? add_additional(s, *merged, a, b) : MOE_OK;
}

/* ---- Apart ---- */

/* Whether no value written for one is accepted by the other, as far as can be told. */
static bool schemas_exclude(const struct schema *s, const json_t *a, const json_t *b, int depth);

static bool values_differ(const struct schema *s, const json_t *a, const json_t *b)
{
    json_t *made_a, *made_b;
    const json_t *of_a = given(a, &made_a), *of_b = given(b, &made_b);
    bool differ = of_a && of_b;
    for (size_t i = 0; differ && i < json_array_size(of_a); i++)
        differ = !list_has(s, of_b, json_array_get(of_a, i));
    json_decref(made_a);
    json_decref(made_b);
    return differ;
}

static bool is_closed(const json_t *schema)
{
    return json_is_false(json_object_get(schema, "additionalProperties")) &&
           !json_object_get(schema, "patternProperties");
}

/* Whether the other accepts no object written for the one. Where a schema does not mention further
 * properties, none are written (schema_object). */
static bool object_is_not(const struct schema *s, const json_t *one, const json_t *other, int depth)
{
    const json_t *required = json_object_get(one, "required");
    const json_t *own = json_object_get(one, "properties");
    const json_t *others = json_object_get(other, "properties");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        const json_t *mine = name ? json_object_get(own, name) : NULL;
        const json_t *theirs = name ? json_object_get(others, name) : NULL;
        if ((mine && theirs && schemas_exclude(s, mine, theirs, depth + 1)) ||
            (name && !theirs && is_closed(other)))
            return true;
    }
    const json_t *more = json_object_get(one, "additionalProperties");
    bool writes_no_more = own && (!more || json_is_false(more));
    required = json_object_get(other, "required");
    for (size_t i = 0; i < json_array_size(required) && writes_no_more; i++) {
        const json_t *name = json_array_get(required, i);
        if (json_is_string(name) && !json_object_get(own, json_string_value(name)) &&
            !list_has(s, json_object_get(one, "required"), name))
            return true;
    }
    return false;
}

/* The types of its values, including given values. */
static unsigned all_types(const struct schema *s, const json_t *schema)
{
    json_t *made;
    const json_t *values = given(schema, &made);
    unsigned types = 0;
    moe_allowance_step(s->allowance, json_array_size(values));
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

static bool schemas_exclude(const struct schema *s, const json_t *a, const json_t *b, int depth)
{
    a = schema_follow(s, a);
    b = schema_follow(s, b);
    if (depth > MAX_EXCLUDE_DEPTH || !json_is_object(a) || !json_is_object(b) ||
        moe_allowance_step(s->allowance, 16) != MOE_OK)
        return false;
    const json_t *pair[2] = {a, b};
    struct schema_apart *known =
        &s->apart[(moe_hash64(pair, sizeof pair) + (unsigned)depth) % SCHEMA_APART];
    if (known->a == a && known->b == b && known->depth == depth)
        return known->apart;
    unsigned both = all_types(s, a) & all_types(s, b);
    bool apart =
        both == 0 || values_differ(s, a, b) ||
        (both == TYPE_OBJECT && object_is_not(s, a, b, depth) && object_is_not(s, b, a, depth));
    *known = (struct schema_apart){a, b, depth, apart};
    return apart;
}

/* ---- Choices ----
 *
 * if/then/else, and what depends on properties, where each test is of what a few properties are: a
 * property is one of the values that are tested, another one, or not there. Each way to combine
 * these becomes an alternative with what follows in its case. */

enum { MAX_TESTED = 4, MAX_CASES = 300, MAX_FEW = 5000 };

static bool few_values(struct schema *s, const json_t *schema, json_t *list, int depth)
{
    enum { MAX_DEPTH = 16 };
    json_t *made = NULL, *part;
    size_t i, twice;
    const char *key;
    schema = schema_follow(s, schema);
    const json_t *values = json_is_object(schema) ? given(schema, &made) : NULL;
    const json_t *parts = json_object_get(schema, "anyOf");
    parts = parts ? parts : json_object_get(schema, "oneOf");
    const json_t *type = json_object_get(schema, "type");
    const unsigned types = json_is_object(schema) ? types_of(schema) : 0;
    json_t *all = json_array(), *seen = json_object();
    bool few = all && seen && types && depth < MAX_DEPTH &&
               moe_allowance_step(s->allowance, 8 + json_array_size(values)) == MOE_OK;
    json_object_foreach((json_t *)schema, key, part)
    {
        const bool known = strcmp(key, "type") == 0 || strcmp(key, "enum") == 0 ||
                           strcmp(key, "const") == 0 || strcmp(key, "anyOf") == 0 ||
                           strcmp(key, "oneOf") == 0;
        few &= known || !is_keyword(key);
    }
    few &= (values != NULL) + (parts != NULL) <= 1;
    if (few && values) {
        json_array_foreach(values, i, part)
        {
            if (type_of(part) & types)
                json_array_append(all, part);
        }
    } else if (few && parts) {
        json_array_foreach(parts, i, part) few = few && few_values(s, part, all, depth + 1);
    } else if (few && type && !(types & ~(unsigned)(TYPE_BOOLEAN | TYPE_NULL))) {
        if (types & TYPE_BOOLEAN) {
            json_array_append_new(all, json_true());
            json_array_append_new(all, json_false());
        }
        if (types & TYPE_NULL)
            json_array_append_new(all, json_null());
    } else {
        few = false;
    }
    for (size_t n = json_array_size(list); few && n > 0; n = 0)
        few = note_values(s, seen, list, 0, &twice) == MOE_OK;
    json_array_foreach(all, i, part)
    {
        char *text = few ? value_key(part) : NULL;
        few = text && json_array_size(list) < MAX_FEW;
        if (few && !json_object_get(seen, text)) {
            json_object_set_new(seen, text, json_true());
            json_array_append(list, part);
        }
        free(text);
    }
    moe_allowance_take(s->allowance, json_array_size(list) * sizeof(void *));
    json_decref(made);
    json_decref(all);
    json_decref(seen);
    return few;
}

static bool has_choices(const json_t *schema)
{
    return json_object_get(schema, "if") || tests_properties(json_object_get(schema, "not")) ||
           json_object_get(schema, "dependentRequired") ||
           json_object_get(schema, "dependentSchemas") || json_object_get(schema, "dependencies");
}

/* Replaces if/then/else, and what depends on properties, by a list of choices. */
static int list_choices(struct schema *s, const json_t **schema)
{
    static const char *const keys[] = {"dependentRequired", "dependentSchemas", "dependencies"};
    static const char *const parts[] = {"if", "then", "else"};
    json_t *own, *list, *one, *value, *branch = NULL;
    const json_t *test = schema_follow(s, json_object_get(*schema, "if"));
    const bool never = schema_is_nothing(test);
    const char *name;
    if (!has_choices(*schema))
        return MOE_OK;
    MOE_TRY(keep_schema(s, own = json_copy((json_t *)*schema)));
    list = json_object_get(own, SCHEMA_CHOICES) ? json_copy(json_object_get(own, SCHEMA_CHOICES))
                                                : json_array();
    MOE_TRY(keep_schema(s, list));
    if (never || json_is_true(test) || (json_is_object(test) && !has_other_keyword(test, ""))) {
        branch = json_object_get(*schema, never ? "else" : "then");
    } else if (json_object_get(own, "if")) {
        MOE_TRY(keep_schema(s, one = json_object()));
        for (int i = 0; i < 3; i++)
            if (json_object_get(own, parts[i]))
                json_object_set(one, parts[i], json_object_get(own, parts[i]));
        json_array_append(list, one);
    }
    if (tests_properties(json_object_get(own, "not"))) {
        one = json_pack("{s:O,s:b}", "if", json_object_get(own, "not"), "then", 0);
        MOE_TRY(keep_schema(s, one));
        json_array_append(list, one);
        json_object_del(own, "not");
    }
    for (int k = 0; k < 3; k++)
        json_object_foreach(json_object_get(*schema, keys[k]), name, value)
        {
            one = json_is_array(value)
                      ? json_pack("{s:{s:[s]},s:{s:O}}", "if", "required", name, "then", "required",
                                  value)
                      : json_pack("{s:{s:[s]},s:O}", "if", "required", name, "then", value);
            MOE_TRY(keep_schema(s, one));
            json_array_append(list, one);
        }
    for (int i = 0; i < 3; i++) {
        json_object_del(own, keys[i]);
        json_object_del(own, parts[i]);
    }
    if (json_array_size(list))
        json_object_set(own, SCHEMA_CHOICES, list);
    if (branch)
        MOE_TRY(keep_schema(s, own = json_pack("{s:[O,O]}", "allOf", own, branch)));
    *schema = own;
    return MOE_OK;
}

/* What a property is in a case. */
struct tested {
    const char *name;
    json_t *values; /* that are tested: an array of arrays, those that every test takes alike */
    json_t *said;   /* what is said of it; NULL: nothing */
    json_t *schema; /* what it may be otherwise */
    size_t n, at;   /* values[at]; n: another value; n + 1: not there */
};

/* Whether the test of a property takes a value; NULL: one that no test has. */
static bool test_takes(const struct schema *s, const json_t *test, const json_t *value)
{
    json_t *made;
    const json_t *denied = json_object_get(test, "not");
    const json_t *list = given(denied ? denied : test, &made);
    const bool takes = !list || (value ? list_has(s, list, value) : false) != (denied != NULL);
    json_decref(made);
    return takes;
}

static bool all_tests_take(const struct schema *s, const json_t *choice,
                           const struct tested *tested, size_t n)
{
    const json_t *test = schema_follow(s, json_object_get(choice, "if"));
    const json_t *properties = json_object_get(test, "properties");
    const json_t *required = json_object_get(test, "required");
    bool all = !json_is_false(test);
    for (size_t i = 0; i < n && all; i++) {
        const struct tested *t = &tested[i];
        const json_t *one = schema_follow(s, json_object_get(properties, t->name));
        json_t *name = json_string(t->name);
        if (t->at == t->n + 1)
            all = !list_has(s, required, name);
        else if (one)
            all = test_takes(
                s, one, t->at == t->n ? NULL : json_array_get(json_array_get(t->values, t->at), 0));
        json_decref(name);
    }
    return all;
}

/* Adds a property to those that are tested. */
static int add_tested(struct schema *s, struct tested *tested, size_t *n, const char *name,
                      struct tested **out)
{
    size_t i = 0;
    while (i < *n && strcmp(tested[i].name, name) != 0)
        i++;
    if (i == MAX_TESTED)
        return schema_refuse(s, "if", "tests of more than %d properties are not supported",
                             MAX_TESTED);
    if (i == *n) {
        tested[(*n)++] = (struct tested){.name = name, .values = json_array()};
        MOE_TRY(keep_schema(s, tested[i].values));
    }
    *out = &tested[i];
    return MOE_OK;
}

/* Reads the properties that the choices test, and the values that each is compared with. */
static int read_tests(struct schema *s, const json_t *choices, struct tested *tested, size_t *n)
{
    static const char *const known[] = {"properties", "required", "type", NULL};
    static const char why[] = "only tests of what properties are, by const or enum, and of which "
                              "are there are supported";
    json_t *choice, *property, *made = NULL, *value;
    size_t i, k;
    const char *name;
    *n = 0;
    json_array_foreach(choices, i, choice)
    {
        const json_t *test = schema_follow(s, json_object_get(choice, "if")), *required;
        struct tested *t;
        if (!json_is_object(test) && !json_is_boolean(test))
            return schema_refuse(s, "if", "a schema was expected: an object, true or false");
        json_object_foreach((json_t *)test, name, property)
        {
            if (is_keyword(name) && !is_listed(known, name))
                return schema_refuse(s, "if", "%s", why);
        }
        if (json_object_get(test, "type") && types_of(test) != TYPE_OBJECT)
            return schema_refuse(s, "if", "%s", why);
        required = json_object_get(test, "required");
        for (k = 0; k < json_array_size(required); k++)
            if ((name = json_string_value(json_array_get(required, k))))
                MOE_TRY(add_tested(s, tested, n, name, &t));
        json_object_foreach(json_object_get(test, "properties"), name, property)
        {
            const json_t *one = schema_follow(s, property);
            const json_t *denied = json_object_get(one, "not");
            const json_t *list = json_is_object(one) ? given(denied ? denied : one, &made) : NULL;
            MOE_TRY(add_tested(s, tested, n, name, &t));
            int status = MOE_OK;
            if (list ? !names_values(denied ? denied : one) || (denied && json_object_size(one) > 1)
                     : !json_is_true(one) && (!json_is_object(one) || has_other_keyword(one, "")))
                status = schema_refuse(s, "if", "%s", why);
            json_array_foreach(list, k, value)
            {
                if (status == MOE_OK)
                    status = schema_step(s, NULL, 1 + json_array_size(t->values));
                if (status == MOE_OK && !list_has(s, t->values, value))
                    json_array_append(t->values, value);
            }
            if (list)
                json_decref(made);
            MOE_TRY(status);
        }
    }
    return MOE_OK;
}

/* Puts values together that every test takes alike, and leaves out those that the property never
 * has. */
static int group_values(struct schema *s, const json_t *choices, struct tested *t,
                        const json_t *base)
{
    json_t *groups = json_object(), *few = json_array(), *value, *choice, *list = json_array();
    json_t *others = json_array();
    json_t *one = json_object_get(json_object_get(base, "properties"), t->name);
    size_t i, k;
    const char *key;
    struct moe_buf taken = {0};
    int status = schema_follow_patterns(s, schema_get(base, "patternProperties"), t->name, &one);
    one = one ? one : (json_t *)schema_get(base, "additionalProperties");
    t->said = one;
    const bool is_nothing = one && schema_is_nothing(schema_follow(s, one));
    const bool is_few = one && few_values(s, one, few, 0);
    const unsigned types = json_is_object(one) ? all_types(s, schema_follow(s, one)) : TYPE_ALL;
    const json_t *all = is_few || is_nothing ? few : t->values;
    json_array_foreach(all, i, value)
    {
        if (!list_has(s, t->values, value)) {
            json_array_append(others, value);
            continue;
        }
        if (!(type_of(value) & types))
            continue;
        moe_buf_clear(&taken);
        json_array_foreach(choices, k, choice)
        {
            const json_t *test = schema_follow(s, json_object_get(choice, "if"));
            test = schema_follow(s, json_object_get(json_object_get(test, "properties"), t->name));
            moe_buf_u8(&taken, test && test_takes(s, test, value) ? '1' : '0');
        }
        moe_buf_u8(&taken, 0);
        if (status == MOE_OK && !taken.failed)
            status = schema_step(s, NULL, json_array_size(choices) + json_array_size(t->values));
        if (status != MOE_OK || taken.failed)
            break;
        key = (const char *)taken.data;
        if (!json_object_get(groups, key))
            json_object_set_new(groups, key, json_array());
        json_array_append(json_object_get(groups, key), value);
    }
    json_object_foreach(groups, key, value) json_array_append(list, value);
    /* Another value than those that are tested. */
    if (is_nothing)
        t->schema = NULL;
    else if (is_few)
        t->schema = json_array_size(others) ? json_pack("{s:O}", "enum", others) : NULL;
    else
        t->schema = json_pack("{s:[O,{s:{s:O}}]}", "allOf", one ? one : json_true(), "not", "enum",
                              t->values);
    if (!json_array_size(t->values) && !is_few && one && !is_nothing) {
        json_decref(t->schema);
        t->schema = json_incref(one);
    }
    t->values = list;
    t->n = json_array_size(list);
    moe_allowance_take(s->allowance, 4 * SCHEMA_MEMORY);
    if (status == MOE_OK && (taken.failed || json_array_append_new(s->kept, list) != 0 ||
                             (t->schema && json_array_append_new(s->kept, t->schema) != 0)))
        status = moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    moe_buf_release(&taken);
    json_decref(groups);
    json_decref(others);
    json_decref(few);
    return status;
}

/* The schema in the case that each tested property is at; *out NULL: there is none. */
static int case_of(struct schema *s, const json_t *base, const json_t *choices,
                   const struct tested *tested, size_t n, json_t **out)
{
    json_t *all, *properties, *required, *choice;
    const json_t *given_required = json_object_get(base, "required");
    size_t k;
    *out = NULL;
    MOE_TRY(keep_schema(s, all = json_copy((json_t *)base)));
    MOE_TRY(keep_schema(s, properties = json_object_get(base, "properties")
                                            ? json_copy(json_object_get(base, "properties"))
                                            : json_object()));
    MOE_TRY(keep_schema(s, required = json_is_array(given_required)
                                          ? json_copy((json_t *)given_required)
                                          : json_array()));
    for (size_t i = 0; i < n; i++) {
        const struct tested *t = &tested[i];
        json_t *name = json_string(t->name), *of = json_array_get(t->values, t->at);
        const bool must = list_has(s, required, name);
        if (t->at < t->n && t->said && schema_says_more(schema_follow(s, t->said), "enum"))
            of = json_pack("{s:[O,{s:O}]}", "allOf", t->said, "enum", of);
        else if (t->at < t->n)
            of = json_pack("{s:O}", "enum", of);
        else
            of = json_incref(t->at == t->n ? t->schema : json_false());
        if (t->at <= t->n)
            json_array_append(required, name);
        json_object_set_new(properties, t->name, of);
        json_decref(name);
        if (t->at > t->n && must)
            return MOE_OK;
    }
    json_object_set(all, "properties", properties);
    if (json_array_size(required))
        json_object_set(all, "required", required);
    json_object_set_new(all, "type", json_string("object"));
    json_array_foreach(choices, k, choice)
    {
        const char *key = all_tests_take(s, choice, tested, n) ? "then" : "else";
        json_t *then = json_object_get(choice, key);
        if (!then)
            continue;
        uint64_t from = schema_enter(s, key);
        MOE_TRY(merge_with(s, &all, then));
        schema_leave(s, from);
        if (json_is_false(all))
            return MOE_OK;
    }
    *out = all;
    return schema_step(s, NULL, 8);
}

static int schema_choices(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *choices = json_object_get(schema, SCHEMA_CHOICES);
    struct tested tested[MAX_TESTED];
    struct moe_buf all = {0}, one = {0};
    json_t *base, *alternative;
    size_t n, n_cases = 1;
    bool none;
    int status;
    if (json_object_get(schema, "type") && types_of(schema) != TYPE_OBJECT)
        return schema_refuse(s, "if", "it is supported for type object only");
    if (!json_is_array(choices))
        return schema_refuse(s, "if", "a schema was expected");
    MOE_TRY(schema_without(s, schema, SCHEMA_CHOICES, &base));
    MOE_TRY(read_tests(s, choices, tested, &n));
    for (size_t i = 0; i < n; i++) {
        MOE_TRY(group_values(s, choices, &tested[i], base));
        n_cases *= tested[i].n + 2;
        tested[i].at = 0;
        if (n_cases > MAX_CASES)
            return schema_refuse(s, "if", "its tests make more than %d cases", MAX_CASES);
    }
    for (size_t number = 0; number < n_cases; number++) {
        bool there = true;
        size_t rest = number;
        for (size_t i = 0; i < n; i++) {
            tested[i].at = rest % (tested[i].n + 2);
            rest /= tested[i].n + 2;
            there &= tested[i].at != tested[i].n || tested[i].schema;
        }
        if (!there)
            continue;
        MOE_STEP(case_of(s, base, choices, tested, n, &alternative));
        if (!alternative)
            continue;
        moe_buf_clear(&one);
        MOE_STEP(schema_if_any(s, alternative, &none, &one));
        moe_buf_text(&all, all.size && one.size ? " | " : "");
        moe_buf_append(&all, one.data, one.size);
        all.failed |= one.failed;
    }
    if (all.size == 0 && s->types & TYPE_OBJECT)
        MOE_STEP(schema_refuse_all(s, "if", "no case allows a value"));
    if (all.size) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
    status = MOE_OK;
out:
    moe_buf_release(&one);
    moe_buf_release(&all);
    return status;
}

/* Combined JSON schemas: allOf, anyOf, oneOf, and given values. */

/* ---- Several schemas ---- */

static int schema_all_of(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *parts = json_object_get(schema, "allOf");
    json_t *all;
    if (!json_is_array(parts))
        return schema_refuse(s, "allOf", "a list was expected");
    int status = schema_without(s, schema, "allOf", &all);
    for (size_t i = 0; i < json_array_size(parts) && status == MOE_OK; i++) {
        uint64_t from = schema_enter_item(s, "allOf", i);
        status = merge_with(s, &all, json_array_get(parts, i));
        schema_leave(s, from);
    }
    return status == MOE_OK ? s->value(s, all, to) : status;
}

/* Notes alternatives of oneOf that may share a value: what only one of them may take is then taken
 * from any. */
static int check_apart(struct schema *s, const json_t *alternatives)
{
    size_t n = json_array_size(alternatives), first = n, second = 0;
    json_t *seen = json_object(), *made;
    int status = seen ? MOE_OK : moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; i < n && first == n && status == MOE_OK; i++) {
        const json_t *values = given(json_array_get(alternatives, i), &made);
        size_t twice = i;
        second = i;
        if (json_is_array(values))
            status = note_values(s, seen, values, i, &twice);
        first = twice < i ? twice : n;
        for (size_t k = 0; k < i && first == n && status == MOE_OK; k++) {
            const json_t *other = json_array_get(alternatives, k);
            bool noted = json_is_array(values) && (json_object_get(other, "const") ||
                                                   json_is_array(json_object_get(other, "enum")));
            if (!noted && !schemas_exclude(s, other, json_array_get(alternatives, i), 0))
                first = k;
            status = schema_step(s, NULL, 1);
        }
        json_decref(made);
    }
    json_decref(seen);
    if (status == MOE_OK && first < n)
        schema_note(s, "oneOf", "kept as anyOf: %zu and %zu may both take a value", first, second);
    return status;
}

/* key: anyOf or oneOf. */
static int schema_any_of(struct schema *s, const json_t *schema, const char *key,
                         struct moe_buf *to)
{
    const json_t *parts = json_object_get(schema, key);
    json_t *rest = NULL, *merged = json_array();
    struct moe_buf all = {0}, one = {0};
    size_t n = json_array_size(parts);
    bool none;
    int status;
    MOE_STEP(merged ? MOE_OK : moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema"));
    if (!json_is_array(parts) || n == 0 || n > 1000)
        MOE_STEP(schema_refuse(s, key, "a list of 1 to 1000 schemas was expected"));
    MOE_STEP(schema_without(s, schema, key, &rest));
    bool more = schema_says_more(rest, key);
    for (size_t i = 0; i < n; i++) {
        json_t *part = json_array_get(parts, i);
        if (schema_is_nothing(part))
            continue;
        uint64_t from = schema_enter_item(s, key, i);
        moe_buf_clear(&one);
        if (more) {
            const json_t *other = part;
            MOE_STEP(keep_schema(s, part = json_copy(rest)));
            MOE_STEP(merge_with(s, &part, other));
        }
        MOE_STEP(schema_if_any(s, part, &none, &one));
        if (!none && json_array_append(merged, part) != 0)
            MOE_STEP(moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema"));
        moe_buf_text(&all, all.size && one.size ? " | " : "");
        moe_buf_append(&all, one.data, one.size);
        all.failed |= one.failed;
        schema_leave(s, from);
    }
    if (all.size == 0 && s->types == TYPE_ALL)
        MOE_STEP(schema_refuse_all(s, key, "none of them allows a value"));
    if (strcmp(key, "oneOf") == 0)
        MOE_STEP(check_apart(s, merged));
    if (all.size) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
out:
    moe_buf_release(&one);
    moe_buf_release(&all);
    json_decref(merged);
    return status;
}

/* ---- Given values ---- */

/* Writes one of n texts, in any order and perhaps more than once. */
static int put_choice(struct schema *s, char **texts, size_t n, struct moe_buf *to)
{
    size_t kept = 1;
    qsort(texts, n, sizeof *texts, moe_compare_texts);
    for (size_t i = 1; i < n; i++) {
        char *text = texts[i];
        if (strcmp(text, texts[kept - 1]) == 0)
            continue;
        texts[i] = texts[kept]; /* all are kept for the caller */
        texts[kept++] = text;
    }
    return schema_choice(s, texts, kept, 0, 0, to);
}

/* Whether a text holds what ends it. */
static bool holds_end(const struct schema *s, const char *text)
{
    const size_t n = schema_end_length(s);
    for (; n > 0 && *text; text++)
        if (strncmp(text, s->until, n) == 0)
            return true;
    return false;
}

/* Whether the keywords about a given value's type take it. */
static int value_fits(struct schema *s, const json_t *schema, const json_t *value, bool *fits)
{
    const unsigned type = type_of(value);
    uint32_t texts;
    const char *key;
    *fits = true;
    for (size_t i = 0; schema_about[i].key; i++) {
        if (!(schema_about[i].types & type) || !schema_get(schema, schema_about[i].key))
            continue;
        if (type & (TYPE_OBJECT | TYPE_ARRAY))
            return schema_refuse(s, schema_about[i].key,
                                 "not supported beside an enum or const of objects or lists");
        if (type != TYPE_STRING)
            return schema_number_fits(s, schema, value, fits);
        MOE_TRY(schema_texts_of(s, schema, &texts, &key));
        *fits = texts_take(s, texts, json_string_value(value));
        return schema_step(s, NULL, 4);
    }
    return MOE_OK;
}

/* enum, const. */
static int schema_given(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    unsigned types = TYPE_ALL;
    size_t n_ends = 0;
    struct moe_buf all = {0};
    json_t *made;
    const json_t *left_out = given(schema_get(schema, "not"), &made);
    json_t *type_only = json_object();
    int status = type_only ? MOE_OK : moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    if (status == MOE_OK && values && !json_is_array(values))
        status = schema_refuse(s, "enum", "a list was expected");
    if (status == MOE_OK && json_object_get(schema, "type")) {
        json_object_set(type_only, "type", json_object_get(schema, "type"));
        status = schema_types(s, type_only, &types);
    }
    json_decref(type_only);
    types &= s->types;
    size_t n = values ? json_array_size(values) : 1, n_texts = 0;
    char **texts = moe_alloc(n, sizeof *texts, s->err);
    status = texts ? status : MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const json_t *value = values ? json_array_get(values, i) : constant;
        if (!(type_of(value) & types) || (constant && !schema_equal(s, value, constant)) ||
            list_has(s, left_out, value))
            continue;
        bool fits = true;
        status = value_fits(s, schema, value, &fits);
        if (status != MOE_OK || !fits)
            continue;
        if (s->until && holds_end(s, json_string_value(value))) {
            n_ends++;
            continue;
        }
        status = schema_step(s, NULL, 4);
        texts[n_texts] =
            s->until ? moe_strndup(json_string_value(value), json_string_length(value), NULL)
                     : moe_json_text(value, JSON_ENCODE_ANY | JSON_COMPACT);
        if (!texts[n_texts])
            status = moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a value of a schema");
        else
            moe_allowance_take(s->allowance, strlen(texts[n_texts++]) + 32);
    }
    if (status == MOE_OK && n_texts > 0)
        status = put_choice(s, texts, n_texts, &all);
    if (n_texts > 0 && all.size == 0)
        moe_buf_text(&all, "\"\""); /* the empty text alone */
    if (status == MOE_OK && n_ends == n)
        status =
            schema_refuse_all(s, values ? "enum" : "const",
                              n ? "every text holds what ends a text" : "no value is taken here");
    if (status == MOE_OK && all.size == 0 && s->types == TYPE_ALL)
        status = schema_refuse_all(s, values ? "enum" : "const", "no value is taken here");
    if (status == MOE_OK && all.size) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
    while (n_texts > 0)
        free(texts[--n_texts]);
    free(texts);
    json_decref(made);
    moe_buf_release(&all);
    return status;
}

/* ---- Rules common to schemas ----
 *
 * Blanks are limited, so that a model cannot continue with them for ever; so are digits. Among the
 * ways to write a character by its number, those for halves of pairs and for NUL are left out. */
static const char common[] =
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"
    "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" unit )\n"
    "hex ::= [0-9A-Fa-f]\n"
    "unit ::= [1-9A-CEFa-cef] hex{3} | \"0\" ( [1-9A-Fa-f] hex{2} | \"0\" ( [1-9A-Fa-f] hex |"
    " \"0\" [1-9A-Fa-f] ) ) | [Dd] ( [0-7] hex{2} | [89ABab] hex{2} \"\\\\u\" [Dd] [C-Fc-f] hex{2} "
    ")"
    "\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "integer ::= \"0\" | \"-\"? [1-9] [0-9]{0,14}\n"
    "number ::= \"-\"? ( \"0\" | [1-9] [0-9]{0,14} ) ( \".\" [0-9]{1,16} )?"
    " ( [eE] [-+]? [0-9] [0-9]? )?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "value ::= object | array | string | number | boolean | \"null\"\n"
    "object ::= \"{\" ws ( string ws \":\" ws value ws ( \",\" ws string ws \":\" ws value ws )* )?"
    " \"}\"\n"
    "array ::= \"[\" ws ( value ws ( \",\" ws value ws )* )? \"]\"\n";

/* ---- References ---- */

/* Refers to the rule of a reference, made at its first use: so schemas may refer to themselves. */
static int write_reference(struct schema *s, const char *reference, struct moe_buf *to)
{
    enum { NONE = -1 }; /* its target has no values */
    const json_t *known = json_object_get(s->references, reference), *target;
    struct moe_buf expression = {0}, path = s->path;
    if (known && json_integer_value(known) != NONE) {
        moe_buf_printf(to, "ref%lld", (long long)json_integer_value(known));
        return MOE_OK;
    }
    if (known)
        return schema_refuse_all(s, "$ref", "no value is allowed here");
    if (!(target = schema_find(s, reference)))
        return schema_refuse(s, "$ref", "'%.100s' does not exist in this schema", reference);
    size_t number = json_object_size(s->references);
    if (json_object_set_new(s->references, reference, json_integer((json_int_t)number)) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: references of a schema");
    s->path = (struct moe_buf){0};
    moe_buf_text(&s->path, reference + 1);
    int status = s->value(s, target, &expression);
    moe_buf_release(&s->path);
    s->path = path;
    if (status != MOE_OK && s->none) { /* rules that nothing leads to may refer to it */
        moe_buf_clear(&expression);
        moe_buf_text(&expression, "\"\"");
        json_object_set_new(s->references, reference, json_integer(NONE));
    }
    moe_buf_printf(&s->rules, "ref%zu ::= ", number);
    moe_buf_append(&s->rules, expression.data, expression.size);
    moe_buf_text(&s->rules, "\n");
    s->rules.failed |= expression.failed;
    moe_buf_release(&expression);
    moe_buf_printf(to, "ref%zu", number);
    return status;
}

/* ---- What keywords ask for ---- */

static int check_keywords(struct schema *s, const json_t *schema)
{
    if (schema_is_nothing(schema))
        return schema_refuse_all(s, NULL, "no value is allowed here");
    for (size_t i = 0; refused[i]; i++)
        if (json_object_get(schema, refused[i]) && strcmp(refused[i], "unevaluatedProperties") != 0)
            return schema_refuse(s, refused[i], "this keyword is not supported");
    const json_t *denied = schema_get(schema, "not");
    if (denied && !json_is_false(denied) && !leaves_out_values(denied) && !tests_properties(denied))
        return schema_refuse(s, "not",
                             "only of types, an enum, a const or everything is supported");
    const json_t *evaluated = schema_get(schema, "unevaluatedProperties");
    if (evaluated && !json_is_boolean(evaluated))
        return schema_refuse(s, "unevaluatedProperties", "only true and false are supported");
    return MOE_OK;
}

static int reference_and_more(struct schema *s, const json_t *schema, const char *reference,
                              struct moe_buf *to)
{
    const json_t *target = schema_find(s, reference);
    json_t *rest;
    if (!target)
        return schema_refuse(s, "$ref", "'%.100s' does not exist in this schema", reference);
    MOE_TRY(schema_without(s, schema, "$ref", &rest));
    MOE_TRY(merge_with(s, &rest, target));
    return s->value(s, rest, to);
}

/* ---- Types ---- */

static int by_types(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    unsigned types;
    struct moe_buf all = {0};
    int status = schema_types(s, schema, &types);
    if (status != MOE_OK)
        return status;
    if (types == TYPE_ALL) { /* the types that its keywords are about */
        unsigned wanted = 0;
        for (size_t i = 0; schema_about[i].key; i++)
            wanted |= schema_get(schema, schema_about[i].key) ? schema_about[i].types : 0;
        types = wanted ? wanted : types;
    }
    types &= s->types;
    json_t *made, *value;
    const json_t *denied = schema_get(schema, "not");
    unsigned left_out = 0; /* types of which some values are */
    size_t i;
    if (denied &&
        !names_values(denied)) /* numbers are not told from integers where these are left out */
        types &=
            ~(types_of(denied) & TYPE_INTEGER ? types_of(denied) | TYPE_NUMBER : types_of(denied));
    denied = given(denied, &made);
    json_array_foreach(denied, i, value) left_out |= type_of(value);
    const bool no_true = list_has(s, denied, json_true()),
               no_false = list_has(s, denied, json_false());
    json_decref(made);
    if (types & left_out & (TYPE_OBJECT | TYPE_ARRAY))
        return schema_refuse(s, "not", "of objects and lists it is not supported");
    if (left_out & TYPE_NULL)
        types &= ~(unsigned)TYPE_NULL;
    if (no_true && no_false)
        types &= ~(unsigned)TYPE_BOOLEAN;
    if (types == TYPE_ALL && !left_out) {
        moe_buf_text(to, "value");
        return MOE_OK;
    }
    const unsigned here = s->types;
    const uint64_t path = s->path.size;
    const uint32_t depth = s->depth;
    int none = MOE_OK;
    for (unsigned t = 1; t < TYPE_ALL && status == MOE_OK; t *= 2) {
        if (!(types & t) || (t == TYPE_INTEGER && types & TYPE_NUMBER))
            continue;
        const uint64_t size = all.size;
        moe_buf_text(&all, all.size ? " | " : "");
        s->types = TYPE_ALL;
        if (t == TYPE_NULL)
            moe_buf_text(&all, "\"null\"");
        else if (t == TYPE_BOOLEAN)
            moe_buf_text(&all, no_true ? "\"false\"" : no_false ? "\"true\"" : "boolean");
        else if (t == TYPE_OBJECT)
            status = schema_object(s, schema, &all);
        else if (t == TYPE_ARRAY)
            status = schema_array(s, schema, &all);
        else if (t == TYPE_STRING)
            status = schema_string(s, schema, &all);
        else
            status = schema_number(s, schema, t == TYPE_INTEGER, &all);
        if (status != MOE_OK && s->none) { /* another type may have some */
            none = status;
            s->none = false;
            s->path.size = path;
            s->depth = depth;
            all.size = size;
            status = schema_step(s, NULL, 1);
        }
    }
    s->types = here;
    if (status == MOE_OK && all.size == 0 && none != MOE_OK) {
        s->none = true; /* as the sentence of the last one says */
        status = none;
    }
    if (status == MOE_OK && all.size == 0 && here == TYPE_ALL)
        status = schema_refuse_all(s, "type", "no type is taken here");
    if (status == MOE_OK && all.size) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
    moe_buf_release(&all);
    return status;
}

static int value_of(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    MOE_TRY(list_choices(s, &schema));
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (json_object_get(schema, "$ref") && !reference)
        return schema_refuse(s, "$ref", "a text was expected");
    if (reference && !schema_says_more(schema, "$ref") && s->types == TYPE_ALL)
        return write_reference(s, reference, to);
    if (reference)
        return reference_and_more(s, schema, reference, to);
    if (json_object_get(schema, "allOf"))
        return schema_all_of(s, schema, to);
    if (json_object_get(schema, "anyOf"))
        return schema_any_of(s, schema, "anyOf", to);
    if (json_object_get(schema, "oneOf"))
        return schema_any_of(s, schema, "oneOf", to);
    if (json_object_get(schema, SCHEMA_CHOICES))
        return schema_choices(s, schema, to);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return schema_given(s, schema, to);
    return by_types(s, schema, to);
}

static int write_value(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    MOE_TRY(schema_step(s, to, 20 + json_object_size(schema)));
    if (s->depth >= SCHEMA_MAX_DEPTH)
        return schema_refuse(s, NULL, "the schema is too large: more than %d nested schemas",
                             SCHEMA_MAX_DEPTH);
    if (json_is_true(schema) && s->types == TYPE_ALL) {
        moe_buf_text(to, "value");
        return MOE_OK;
    }
    if (json_is_false(schema))
        return schema_refuse_all(s, NULL, "false: no value is allowed here");
    if ((!json_is_object(schema) && !json_is_true(schema)) || moe_json_digits(schema))
        return schema_refuse(s, NULL, "a schema was expected: an object, true or false");
    int status = check_keywords(s, schema);
    s->depth++;
    if (status == MOE_OK)
        status = value_of(s, schema, to);
    s->depth--;
    return status;
}

/* ---- All ---- */

/* Appends the schema's GBNF (moe_grammar_write_schema). *refers: it has references, which may lead
 * back to themselves. */
static int write_rules(struct moe_buf *out, const char *name, const json_t *schema,
                       enum moe_schema_values values, const char *until, bool *refers,
                       struct moe_buf *notes, struct moe_allowance *allowance, struct moe_err *err)
{
    struct schema s = {.name = name,
                       .root = schema,
                       .notes = notes,
                       .allowance = allowance,
                       .value = write_value,
                       .few_values = few_values,
                       .types = values == MOE_SCHEMA_ALL     ? TYPE_ALL
                                : values == MOE_SCHEMA_TEXTS ? TYPE_STRING
                                                             : TYPE_ALL & ~TYPE_STRING,
                       .until = values == MOE_SCHEMA_TEXTS ? until : NULL,
                       .err = err};
    struct moe_buf root = {0};
    uint64_t held = s.allowance->bytes;
    s.kept = json_array();
    s.references = json_object();
    s.written = json_object();
    s.apart = moe_alloc(SCHEMA_APART, sizeof *s.apart, err);
    int status;
    MOE_STEP(s.kept && s.references && s.written && s.apart
                 ? MOE_OK
                 : moe_fail(err, MOE_ERR_MEMORY, "out of memory: a schema"));
    MOE_STEP(texts_begin(&s));
    MOE_STEP(write_value(&s, schema, &root));
    moe_buf_text(out, "root ::= ");
    moe_buf_append(out, root.data, root.size);
    moe_buf_text(out, root.size ? "\n" : "[]\n");
    moe_buf_append(out, s.rules.data, s.rules.size);
    moe_buf_text(out, common);
    if (out->failed || root.failed || s.rules.failed || s.path.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory: the grammar of a schema"));
out:
    *refers = json_object_size(s.references) > 0;
    moe_buf_release(&root);
    moe_buf_release(&s.rules);
    moe_buf_release(&s.path);
    json_decref(s.kept);
    json_decref(s.references);
    json_decref(s.written);
    free(s.apart);
    texts_end(&s);
    s.allowance->bytes = held;
    return status;
}

static int read_rules(struct moe_grammar **out, const char *name, const void *rules, uint64_t n,
                      bool refers, struct moe_allowance *allowance, struct moe_err *err)
{
    int status = machine_read(out, name, rules, n, refers, allowance, err);
    if (status == MOE_ERR_UNSUPPORTED)
        return moe_fail(err, status,
                        "%s: a $ref leads back to itself at once or always, so that no value would "
                        "end: let the property that holds it be left out, or be null",
                        name);
    if (status == MOE_ERR_LIMIT && allowance->status == MOE_OK)
        return moe_fail(err, status,
                        "%s: the schema is too large: its counts (minLength, maxItems and "
                        "the like) or its properties become more than %d states",
                        name, MOE_GRAMMAR_MAX_STATES);
    return status;
}

int moe_grammar_write_schema(struct moe_buf *out, const char *name, const struct json_t *schema,
                             enum moe_schema_values values, const char *until,
                             struct moe_buf *notes, struct moe_allowance *allowance,
                             struct moe_err *err)
{
    struct moe_allowance usual = moe_allowance_usual();
    struct moe_grammar *g = NULL;
    uint64_t from = out->size, held;
    bool refers;
    allowance = allowance ? allowance : &usual;
    int status = write_rules(out, name, schema, values, until, &refers, notes, allowance, err);
    held = allowance->bytes;
    if (status == MOE_OK && refers)
        status = read_rules(&g, name, out->data + from, out->size - from, true, allowance, err);
    moe_grammar_free(g);
    allowance->bytes = held;
    return status;
}

int moe_grammar_of_schema(struct moe_grammar **out, const char *name, const struct json_t *schema,
                          struct moe_allowance *allowance, struct moe_err *err)
{
    struct moe_buf text = {0}, notes = {0};
    struct moe_allowance usual = moe_allowance_usual();
    bool refers;
    allowance = allowance ? allowance : &usual;
    *out = NULL;
    int status =
        write_rules(&text, name, schema, MOE_SCHEMA_ALL, NULL, &refers, &notes, allowance, err);
    moe_allowance_take(allowance, text.room);
    if (status == MOE_OK)
        status = read_rules(out, name, text.data, text.size, refers, allowance, err);
    if (status == MOE_OK)
        moe_grammar_note(*out, &notes);
    allowance->bytes -= text.room;
    moe_buf_release(&notes);
    moe_buf_release(&text);
    return status;
}

int moe_grammar_of_objects(struct moe_grammar **out, struct moe_err *err)
{
    struct moe_buf text = {0};
    moe_buf_text(&text, "root ::= object\n");
    moe_buf_text(&text, common);
    *out = NULL;
    int status = text.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: a grammar")
                             : moe_grammar_parse(out, "JSON", text.data, text.size, NULL, err);
    moe_buf_release(&text);
    return status;
}

int moe_grammar_read_schema(struct moe_grammar **out, const char *path, struct moe_err *err)
{
    struct json_t *schema;
    *out = NULL;
    int status =
        moe_json_read(&schema, path, MOE_GRAMMAR_MAX_BYTES, MOE_JSON_TOKENIZER_CONFIG_MEMORY, err);
    if (status == MOE_OK)
        status = moe_grammar_of_schema(out, path, schema, NULL, err);
    moe_json_free(schema);
    return status;
}
