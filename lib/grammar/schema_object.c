/* Objects and lists of JSON schemas. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "grammar/schema.h"

enum { MAX_NAME_DEPTH = 60 /* characters; groups of the grammar within each other */ };

/* ---- Objects ---- */

struct object {
    const json_t *properties; /* in their order; may be NULL */
    const json_t *required;   /* a list, or NULL */
    const json_t *more;       /* of others; NULL: there are none */
    uint64_t n, n_more;       /* UINT64_MAX: as many as one likes */
    bool some;                /* one property at least */
    uint32_t rule;            /* number of its rules */
};

static bool is_required(const struct object *o, const char *name)
{
    for (size_t i = 0; i < json_array_size(o->required); i++) {
        const char *text = json_string_value(json_array_get(o->required, i));
        if (text && strcmp(text, name) == 0)
            return true;
    }
    return false;
}

/* The character of a name at a byte of it; 0 at its end. */
static uint32_t character(const char *name, size_t at, int *length)
{
    size_t n = strlen(name + at);
    *length = 0;
    return n ? moe_utf8_decode((const uint8_t *)name + at, n, length) : 0;
}

/* The rest of the names of other properties: none of the given, which are sorted, and of which
 * `at` bytes are written. They part from each of these at some character; until there no escapes
 * are written, which could spell the same. */
static void other_names(struct moe_buf *to, const char **names, size_t n, size_t at, int depth)
{
    size_t first = 0;
    int length;
    while (first < n && !names[first][at])
        first++;
    moe_buf_text(to, "( [^\"\\\\\\x00-\\x1F");
    for (size_t i = first; i < n; i++)
        moe_buf_printf(to, "\\U%08X", character(names[i], at, &length));
    moe_buf_text(to, first ? "] rest" : "] rest | \"\\\"\"");
    for (size_t i = first; i < n;) {
        size_t from = i;
        uint32_t c = character(names[i], at, &length);
        while (i < n && character(names[i], at, &length) == c)
            i++;
        if (c == '"' || c == '\\' || c < 0x20 || depth == MAX_NAME_DEPTH)
            continue; /* would be written with escapes, or is long enough to be left out */
        character(names[from], at, &length);
        moe_buf_printf(to, " | \"\\U%08X\" ", c);
        other_names(to, names + from, i - from, at + (size_t)length, depth + 1);
    }
    moe_buf_text(to, " )");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A name and a value that is none of the given properties, as a rule. */
static int other_property(struct schema *s, const struct object *o)
{
    struct moe_buf value = {0};
    size_t n = json_object_size(o->properties), i = 0;
    const char **names = malloc((n + 1) * sizeof *names), *name;
    json_t *ignored;
    if (!names)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: names of properties");
    json_object_foreach((json_t *)o->properties, name, ignored) names[i++] = name;
    qsort(names, n, sizeof *names, by_text);
    uint64_t from = schema_enter(s, "additionalProperties");
    int status = s->value(s, o->more, &value);
    schema_leave(s, from);
    moe_buf_printf(&s->rules, "more%u ::= \"\\\"\" ", o->rule);
    other_names(&s->rules, names, n, 0, 0);
    moe_buf_text(&s->rules, " ws \":\" ws ");
    moe_buf_append(&s->rules, value.data, value.size);
    moe_buf_text(&s->rules, "\n");
    s->rules.failed |= value.failed;
    moe_buf_release(&value);
    free(names);
    return status;
}

/* Names and values of the given properties, each as a rule. */
static int own_properties(struct schema *s, const struct object *o)
{
    int status = MOE_OK;
    struct moe_buf value = {0};
    const char *name;
    json_t *property;
    uint64_t i = 0, from = schema_enter(s, "properties");
    json_object_foreach((json_t *)o->properties, name, property)
    {
        uint64_t at = schema_enter(s, name);
        json_t *text = json_string(name);
        moe_buf_clear(&value);
        if (status == MOE_OK)
            status = s->value(s, property, &value);
        moe_buf_printf(&s->rules, "own%u-%llu ::= ", o->rule, (unsigned long long)i++);
        if (status == MOE_OK)
            status = schema_json(s, text, &s->rules);
        moe_buf_text(&s->rules, " ws \":\" ws ");
        moe_buf_append(&s->rules, value.data, value.size);
        moe_buf_text(&s->rules, "\n");
        s->rules.failed |= value.failed;
        json_decref(text);
        schema_leave(s, at);
    }
    schema_leave(s, from);
    moe_buf_release(&value);
    return status;
}

/* Rules for what may come from property i on: where none was written (first), and where one was
 * (next). Behind the last come others. */
static void put_order(struct schema *s, const struct object *o)
{
    struct moe_buf *to = &s->rules;
    unsigned long long more = o->n_more, i = 0;
    const char *name;
    json_t *ignored;
    json_object_foreach((json_t *)o->properties, name, ignored)
    {
        bool required = is_required(o, name), last = i + 1 == o->n;
        moe_buf_printf(to, "first%u-%llu ::= own%u-%llu ws next%u-%llu", o->rule, i, o->rule, i,
                       o->rule, i + 1);
        if (!required && !(last && o->some && !o->n_more))
            moe_buf_printf(to, " | first%u-%llu", o->rule, i + 1);
        moe_buf_printf(to, "\nnext%u-%llu ::= \",\" ws own%u-%llu ws next%u-%llu", o->rule, i,
                       o->rule, i, o->rule, i + 1);
        if (!required)
            moe_buf_printf(to, " | next%u-%llu", o->rule, i + 1);
        moe_buf_text(to, "\n");
        i++;
    }
    moe_buf_printf(to, "next%u-%llu ::= ", o->rule, i);
    if (more == UINT64_MAX)
        moe_buf_printf(to, "( \",\" ws more%u ws )*", o->rule);
    else if (more > 0)
        moe_buf_printf(to, "( \",\" ws more%u ws ){0,%llu}", o->rule, more);
    else
        moe_buf_text(to, "\"\"");
    moe_buf_printf(to, "\nfirst%u-%llu ::= ", o->rule, i);
    if (more > 0) {
        moe_buf_printf(to, "( more%u ws ", o->rule);
        if (more == UINT64_MAX)
            moe_buf_printf(to, "( \",\" ws more%u ws )*", o->rule);
        else
            moe_buf_printf(to, "( \",\" ws more%u ws ){0,%llu}", o->rule, more - 1);
        moe_buf_text(to, o->some ? " )\n" : " )?\n");
    } else {
        moe_buf_text(to, "\"\"\n");
    }
}

/* Properties that are required, but not described, are what others are. */
static int describe_required(struct schema *s, struct object *o)
{
    json_t *all = o->properties ? json_copy((json_t *)o->properties) : json_object();
    if (!all || json_array_append_new(s->kept, all) != 0)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a schema");
    for (size_t i = 0; i < json_array_size(o->required); i++) {
        const char *name = json_string_value(json_array_get(o->required, i));
        if (!name)
            return schema_refuse(s, "required", "a list of names was expected");
        if (json_object_get(all, name))
            continue;
        if (json_is_false(o->more))
            return schema_refuse(s, "required", "'%.60s' is no property that may be there", name);
        json_object_set(all, name, o->more ? (json_t *)o->more : json_true());
    }
    o->properties = all;
    o->n = json_object_size(all);
    return MOE_OK;
}

/* How many properties there may be: what the order of rules can keep. */
static int count_properties(struct schema *s, const json_t *schema, struct object *o)
{
    uint64_t least = 0, most = UINT64_MAX, n_required = 0;
    const char *name;
    json_t *ignored;
    int status = schema_count(s, schema, "minProperties", &least);
    if (status == MOE_OK)
        status = schema_count(s, schema, "maxProperties", &most);
    if (status != MOE_OK)
        return status;
    json_object_foreach((json_t *)o->properties, name, ignored) n_required += is_required(o, name);
    if (least > n_required && least > 1)
        return schema_refuse(s, "minProperties",
                             "more than 1 is supported up to the number that is required");
    if (most < o->n)
        return schema_refuse(s, "maxProperties",
                             "it is supported from the number of the properties on");
    o->some = least > 0;
    o->n_more = !o->more ? 0 : most == UINT64_MAX ? most : most - o->n;
    if (o->some && o->n == 0 && o->n_more == 0)
        return schema_refuse(s, "minProperties", "there is no property that may be there");
    return MOE_OK;
}

int schema_object(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    struct object o = {.properties = schema_get(schema, "properties"),
                       .required = schema_get(schema, "required"),
                       .more = schema_get(schema, "additionalProperties"),
                       .rule = s->n_rules++};
    bool free_form = !o.properties && !o.more;
    if (o.properties && !json_is_object(o.properties))
        return schema_refuse(s, "properties", "an object was expected");
    if (o.required && !json_is_array(o.required))
        return schema_refuse(s, "required", "a list was expected");
    int status = describe_required(s, &o);
    if (free_form) /* nothing is said of properties: any */
        o.more = json_true();
    if (json_is_false(o.more))
        o.more = NULL;
    if (status == MOE_OK)
        status = count_properties(s, schema, &o);
    if (status == MOE_OK)
        status = own_properties(s, &o);
    if (status == MOE_OK && o.n_more > 0)
        status = other_property(s, &o);
    if (status != MOE_OK)
        return status;
    put_order(s, &o);
    moe_buf_printf(to, "\"{\" ws first%u-0 \"}\"", o.rule);
    return MOE_OK;
}

/* ---- Lists ---- */

/* The values of one item. */
static int item(struct schema *s, const json_t *schema, const char *key, int64_t i,
                struct moe_buf *to)
{
    uint64_t from = i < 0 ? schema_enter(s, key) : schema_enter_item(s, key, (unsigned long long)i);
    int status = s->value(s, schema, to);
    schema_leave(s, from);
    return status;
}

/* The items behind the first: least to most of them, each after a comma but for the very first. */
static void put_rest(struct moe_buf *to, const struct moe_buf *rest, uint64_t least, uint64_t most,
                     bool comma)
{
    if (most == 0)
        return;
    if (!comma) {
        moe_buf_text(to, least ? " " : " ( ");
        moe_buf_append(to, rest->data, rest->size);
        moe_buf_text(to, " ws");
    }
    uint64_t before = comma ? 0 : 1;
    moe_buf_text(to, " ( \",\" ws ");
    moe_buf_append(to, rest->data, rest->size);
    moe_buf_printf(to, " ws ){%llu,", (unsigned long long)(least > before ? least - before : 0));
    if (most != UINT64_MAX)
        moe_buf_printf(to, "%llu", (unsigned long long)(most - before));
    moe_buf_text(to, comma || least ? "}" : "} )?");
}

int schema_array(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    const json_t *items = schema_get(schema, "items"), *first = schema_get(schema, "prefixItems");
    const char *rest_key = "items", *first_key = "prefixItems";
    uint64_t least = 0, most = UINT64_MAX, n_first;
    struct moe_buf rest = {0};
    if (json_is_true(schema_get(schema, "uniqueItems")))
        return schema_refuse(s, "uniqueItems", "it is not supported");
    if (!first && json_is_array(items)) { /* as it was written before 2020 */
        first = items;
        first_key = "items";
        rest_key = "additionalItems";
        items = schema_get(schema, rest_key);
    }
    if (first && !json_is_array(first))
        return schema_refuse(s, first_key, "a list was expected");
    int status = schema_count(s, schema, "minItems", &least);
    if (status == MOE_OK)
        status = schema_count(s, schema, "maxItems", &most);
    if (status != MOE_OK)
        return status;
    n_first = json_array_size(first) < most ? json_array_size(first) : most;
    if (json_is_false(items) || (first && !items && least <= n_first))
        most = n_first; /* what is said of no other item is not written */
    if (least > most)
        return schema_refuse(s, "minItems", "more than there may be");
    moe_buf_text(to, "\"[\" ws");
    for (uint64_t i = 0; i < n_first && status == MOE_OK; i++) {
        moe_buf_text(to, i ? " \",\" ws " : " ");
        status = item(s, json_array_get(first, i), first_key, (int64_t)i, to);
        moe_buf_text(to, " ws");
    }
    if (status == MOE_OK && most > n_first) {
        status = item(s, items ? items : json_true(), rest_key, -1, &rest);
        put_rest(to, &rest, least > n_first ? least - n_first : 0,
                 most == UINT64_MAX ? most : most - n_first, n_first > 0);
    }
    moe_buf_text(to, " \"]\"");
    to->failed |= rest.failed;
    moe_buf_release(&rest);
    return status;
}
