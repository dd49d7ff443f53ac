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

/* The types it accepts by "type", "enum" or "const"; TYPE_ALL: it names none. */
static int schema_types(const struct schema *s, const json_t *schema, unsigned *types)
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
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "contentSchema",
    "extends",
    "disallow",
    NULL,
};

/* Keywords of all values. */
static const char *const of_all[] = {"type",  "enum",  "const", "$ref",
                                     "anyOf", "oneOf", "allOf", NULL};

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
    if (lists && (strcmp(key, "required") == 0 || strcmp(key, "allOf") == 0))
        return add_list(s, merged, key, b);
    if (lists && strcmp(key, "enum") == 0)
        return json_object_set_new(merged, key, common_values(s, a, b)) == 0;
    if (strcmp(key, "properties") == 0 && json_is_object(a) && json_is_object(b))
        return add_properties(s, merged, b);
    return strcmp(key, "items") == 0 && add_both(s, merged, key, b);
}

/* A property that the other schema, which accepts only its own, does not have. */
static const char *closed_out(const struct schema *s, const json_t *closed, const json_t *other)
{
    const json_t *more = json_object_get(closed, "additionalProperties");
    const char *name;
    json_t *value;
    if (!more || json_is_true(more))
        return NULL;
    moe_allowance_step(s->allowance, json_object_size(json_object_get(other, "properties")));
    json_object_foreach(
        json_object_get(other, "properties"), name,
        value) if (!json_object_get(json_object_get(closed, "properties"), name)) return name;
    return NULL;
}

static int merge_with(struct schema *s, json_t **merged, const json_t *b);

/* Follows references repeatedly; merges the keywords beside them. */
static int resolve_references(struct schema *s, const json_t **schema)
{
    for (int i = 0; i < MAX_REFERENCES; i++) {
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
    MOE_TRY(schema_step(s, NULL, 8));
    MOE_TRY(resolve_references(s, &b));
    if (json_is_false(b) || json_is_false(*merged)) {
        *merged = json_false();
        return MOE_OK;
    }
    if (json_is_true(b))
        return MOE_OK;
    if (!json_is_object(b))
        return schema_refuse(s, NULL, "a schema was expected: an object, true or false");
    const char *out_of = closed_out(s, *merged, b);
    out_of = out_of ? out_of : closed_out(s, b, *merged);
    if (out_of)
        return schema_refuse(s, "additionalProperties",
                             "one of the combined schemas allows '%.60s', another "
                             "leaves it out",
                             out_of);
    json_object_foreach((json_t *)b, key, value)
    {
        const json_t *there = json_object_get(*merged, key);
        bool done = true;
        MOE_TRY(schema_step(s, NULL, 4));
        if (!is_keyword(key))
            continue;
        if (!there)
            done = json_object_set(*merged, key, value) == 0;
        else if (strcmp(key, "type") == 0)
            done = json_object_set_new(*merged, key,
                                       list_of_types(types_of(*merged) & types_of(b))) == 0;
        else if (!is_same(s, there, value))
            done = merge_member(s, *merged, key, value);
        moe_allowance_take(s->allowance, SCHEMA_MEMBER);
        MOE_TRY(schema_step(s, NULL, 0));
        if (!done)
            return schema_refuse(s, key, "two different ones cannot be combined");
    }
    return MOE_OK;
}

/* ---- Apart ---- */

/* Whether no value written for one is accepted by the other, as far as can be told. */
static bool schemas_exclude(const struct schema *s, const json_t *a, const json_t *b, int depth);

/* The given values, as a list that is borrowed or (const) new in *made; NULL: any. */
static const json_t *given(const json_t *schema, json_t **made)
{
    const json_t *constant = json_object_get(schema, "const");
    *made = constant ? json_pack("[O]", constant) : NULL;
    return *made ? *made : json_object_get(schema, "enum");
}

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

static const json_t *follow_references(const struct schema *s, const json_t *schema)
{
    for (int i = 0; i < MAX_REFERENCES && schema; i++) {
        const char *reference = json_string_value(json_object_get(schema, "$ref"));
        if (!reference)
            break;
        schema = schema_find(s, reference);
    }
    return schema;
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
    a = follow_references(s, a);
    b = follow_references(s, b);
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

/* Refuses alternatives of oneOf that may share a value. */
static int check_apart(struct schema *s, const json_t *alternatives)
{
    size_t n = json_array_size(alternatives), first = n, second;
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
    return status != MOE_OK || first == n
               ? status
               : schema_refuse(s, "oneOf",
                               "that %zu and %zu exclude each other is not seen: give them "
                               "types or constants that differ, or write anyOf",
                               first, second);
}

/* key: anyOf or oneOf. */
static int schema_any_of(struct schema *s, const json_t *schema, const char *key,
                         struct moe_buf *to)
{
    const json_t *parts = json_object_get(schema, key);
    json_t *rest = NULL, *merged = json_array();
    struct moe_buf all = {0}, one = {0};
    size_t n = json_array_size(parts);
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
        if (json_array_append(merged, part) != 0)
            MOE_STEP(moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema"));
        MOE_STEP(s->value(s, part, &one));
        moe_buf_text(&all, all.size && one.size ? " | " : "");
        moe_buf_append(&all, one.data, one.size);
        all.failed |= one.failed;
        schema_leave(s, from);
    }
    if (all.size == 0 && s->types == TYPE_ALL)
        MOE_STEP(schema_refuse(s, key, "none of them allows a value"));
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

/* Whether a text holds what ends it, but for blanks, which may be those before the end itself. */
static bool holds_end(const struct schema *s, const char *text)
{
    size_t n = s->until ? strcspn(s->until, "\1\2\3\4\5\6") : 0;
    while (n > 0 && strchr(" \t\r\n", s->until[n - 1]))
        n--;
    for (; n > 0 && *text; text++)
        if (strncmp(text, s->until, n) == 0)
            return true;
    return false;
}

/* enum, const. */
static int schema_given(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *values = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    unsigned types = TYPE_ALL;
    size_t n_ends = 0;
    struct moe_buf all = {0};
    json_t *type_only = json_object();
    int status = type_only ? MOE_OK : moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; schema_about[i].key && status == MOE_OK; i++)
        if (schema_get(schema, schema_about[i].key))
            status = schema_refuse(s, schema_about[i].key, "not supported beside enum or const");
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
        if (!(type_of(value) & types) || (constant && !schema_equal(s, value, constant)))
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
        status = schema_refuse(s, values ? "enum" : "const",
                               n ? "every text holds what ends a text" : "no value is taken here");
    if (status == MOE_OK && all.size == 0 && s->types == TYPE_ALL)
        status = schema_refuse(s, values ? "enum" : "const", "no value is taken here");
    if (status == MOE_OK && all.size) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
    while (n_texts > 0)
        free(texts[--n_texts]);
    free(texts);
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
    "rest ::= char{0,40} \"\\\"\"\n" /* of a name */
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
    const json_t *known = json_object_get(s->references, reference), *target;
    struct moe_buf expression = {0}, path = s->path;
    if (known) {
        moe_buf_printf(to, "ref%lld", (long long)json_integer_value(known));
        return MOE_OK;
    }
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
    moe_buf_printf(&s->rules, "ref%zu ::= ", number);
    moe_buf_append(&s->rules, expression.data, expression.size);
    moe_buf_text(&s->rules, "\n");
    s->rules.failed |= expression.failed;
    moe_buf_release(&expression);
    moe_buf_printf(to, "ref%zu", number);
    return status;
}

/* ---- What keywords ask for ---- */

static int check_keywords(const struct schema *s, const json_t *schema)
{
    if (schema_is_nothing(schema))
        return schema_refuse(s, NULL, "no value is allowed here");
    for (size_t i = 0; refused[i]; i++)
        if (json_object_get(schema, refused[i]) && strcmp(refused[i], "unevaluatedProperties") != 0)
            return schema_refuse(s, refused[i], "this keyword is not supported");
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
    if (types == TYPE_ALL) {
        moe_buf_text(to, "value");
        return MOE_OK;
    }
    const unsigned here = s->types;
    for (unsigned t = 1; t < TYPE_ALL && status == MOE_OK; t *= 2) {
        if (!(types & t) || (t == TYPE_INTEGER && types & TYPE_NUMBER))
            continue;
        moe_buf_text(&all, all.size ? " | " : "");
        s->types = TYPE_ALL;
        if (t == TYPE_NULL)
            moe_buf_text(&all, "\"null\"");
        else if (t == TYPE_BOOLEAN)
            moe_buf_text(&all, "boolean");
        else if (t == TYPE_OBJECT)
            status = schema_object(s, schema, &all);
        else if (t == TYPE_ARRAY)
            status = schema_array(s, schema, &all);
        else if (t == TYPE_STRING)
            status = schema_string(s, schema, &all);
        else
            status = schema_number(s, schema, t == TYPE_INTEGER, &all);
    }
    s->types = here;
    if (status == MOE_OK && all.size == 0 && here == TYPE_ALL)
        status = schema_refuse(s, "type", "no type is taken here");
    if (status == MOE_OK && all.size) {
        schema_make_rule(s, &all);
        moe_buf_append(to, all.data, all.size);
    }
    moe_buf_release(&all);
    return status;
}

static int value_of(struct schema *s, const json_t *schema, struct moe_buf *to)
{
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
        return schema_refuse(s, NULL, "false: no value is allowed here");
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
                       struct moe_allowance *allowance, struct moe_err *err)
{
    struct schema s = {.name = name,
                       .root = schema,
                       .allowance = allowance,
                       .value = write_value,
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
    MOE_STEP(write_value(&s, schema, &root));
    moe_buf_text(out, "root ::= ");
    moe_buf_append(out, root.data, root.size);
    moe_buf_text(out, root.size ? "\n" : "[]\n");
    moe_buf_append(out, s.rules.data, s.rules.size);
    if (s.until) {
        int length;
        moe_buf_printf(out, "plain ::= [^\\x00\\U%08X]\n",
                       moe_utf8_decode((const uint8_t *)s.until, strlen(s.until), &length));
    }
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
                             struct moe_allowance *allowance, struct moe_err *err)
{
    struct moe_allowance usual = moe_allowance_usual();
    struct moe_grammar *g = NULL;
    uint64_t from = out->size, held;
    bool refers;
    allowance = allowance ? allowance : &usual;
    int status = write_rules(out, name, schema, values, until, &refers, allowance, err);
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
    struct moe_buf text = {0};
    struct moe_allowance usual = moe_allowance_usual();
    bool refers;
    allowance = allowance ? allowance : &usual;
    *out = NULL;
    int status = write_rules(&text, name, schema, MOE_SCHEMA_ALL, NULL, &refers, allowance, err);
    moe_allowance_take(allowance, text.room);
    if (status == MOE_OK)
        status = read_rules(out, name, text.data, text.size, refers, allowance, err);
    allowance->bytes -= text.room;
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
