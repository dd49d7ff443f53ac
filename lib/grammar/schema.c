#include "grammar/schema.h"

#include <string.h>

#include "base/file.h"
#include "fmt/json.h"
#include "grammar/grammar.h"

/* ---- What is common to schemas ----
 *
 * Blanks are few, so that a model cannot go on with them for ever; so are digits. Of the ways to
 * write a character by its number those of halves of pairs, and of NUL, are left out. */
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

/* The rule of a reference, made at its first use: so schemas may refer to themselves. */
static int refer(struct schema *s, const char *reference, struct moe_buf *to)
{
    const json_t *known = json_object_get(s->references, reference), *target;
    struct moe_buf expression = {0}, path = s->path;
    if (known) {
        moe_buf_printf(to, "ref%lld", (long long)json_integer_value(known));
        return MOE_OK;
    }
    if (!(target = schema_find(s, reference)))
        return schema_refuse(s, "$ref", "'%.100s' is nothing in this schema", reference);
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

/* Keywords that no answer depends on. Those that JSON schema does not know depend on nothing. */
static const char *const refused[] = {
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "contentSchema",
    "extends",
    "disallow",
};

static int check_keywords(const struct schema *s, const json_t *schema)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (json_object_get(schema, refused[i]))
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
        return schema_refuse(s, "$ref", "'%.100s' is nothing in this schema", reference);
    int status = schema_without(s, schema, "$ref", &rest);
    if (status == MOE_OK)
        status = schema_merge_kept(s, target, rest, &rest);
    return status == MOE_OK ? s->value(s, rest, to) : status;
}

/* ---- Types ---- */

static int by_types(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    unsigned types;
    struct moe_buf all = {0};
    int status = schema_types(s, schema, &types);
    if (status != MOE_OK)
        return status;
    if (types == TYPE_ALL) { /* those that its keywords are about */
        unsigned wanted = 0;
        for (size_t i = 0; schema_about[i].key; i++)
            wanted |= schema_get(schema, schema_about[i].key) ? schema_about[i].types : 0;
        types = wanted ? wanted : types;
    }
    if (types == TYPE_ALL) {
        moe_buf_text(to, "value");
        return MOE_OK;
    }
    for (unsigned t = 1; t < TYPE_ALL && status == MOE_OK; t *= 2) {
        if (!(types & t) || (t == TYPE_INTEGER && types & TYPE_NUMBER))
            continue;
        moe_buf_text(&all, all.size ? " | " : "");
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
    if (status == MOE_OK && all.size == 0)
        status = schema_refuse(s, "type", "no type is taken here");
    if (status == MOE_OK) {
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
    if (reference && !schema_says_more(schema, "$ref"))
        return refer(s, reference, to);
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

static int value(struct schema *s, const json_t *schema, struct moe_buf *to)
{
    if (++s->n_steps > SCHEMA_MAX_STEPS || s->depth >= SCHEMA_MAX_DEPTH ||
        s->rules.size > MOE_GRAMMAR_MAX_BYTES)
        return schema_refuse(s, NULL,
                             "the schema is too large: %d schemas within each other, %d in all, or "
                             "a grammar of %d MiB",
                             SCHEMA_MAX_DEPTH, SCHEMA_MAX_STEPS, MOE_GRAMMAR_MAX_BYTES >> 20);
    if (json_is_true(schema)) {
        moe_buf_text(to, "value");
        return MOE_OK;
    }
    if (json_is_false(schema))
        return schema_refuse(s, NULL, "false: no value is taken here");
    if (!json_is_object(schema))
        return schema_refuse(s, NULL, "a schema was expected: an object, true or false");
    int status = check_keywords(s, schema);
    s->depth++;
    if (status == MOE_OK)
        status = value_of(s, schema, to);
    s->depth--;
    return status;
}

/* ---- All ---- */

int moe_grammar_write_schema(struct moe_buf *out, const char *name, const struct json_t *schema,
                             struct moe_err *err)
{
    struct schema s = {.name = name, .root = schema, .value = value, .err = err};
    struct moe_buf root = {0};
    s.kept = json_array();
    s.references = json_object();
    int status =
        s.kept && s.references ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "out of memory: a schema");
    if (status == MOE_OK)
        status = value(&s, schema, &root);
    if (status == MOE_OK) {
        moe_buf_text(out, "root ::= ");
        moe_buf_append(out, root.data, root.size);
        moe_buf_text(out, "\n");
        moe_buf_append(out, s.rules.data, s.rules.size);
        moe_buf_text(out, common);
        if (out->failed || root.failed || s.rules.failed || s.path.failed)
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the grammar of a schema");
    }
    moe_buf_release(&root);
    moe_buf_release(&s.rules);
    moe_buf_release(&s.path);
    json_decref(s.kept);
    json_decref(s.references);
    return status;
}

int moe_grammar_of_schema(struct moe_grammar **out, const char *name, const struct json_t *schema,
                          struct moe_err *err)
{
    struct moe_buf text = {0};
    *out = NULL;
    int status = moe_grammar_write_schema(&text, name, schema, err);
    if (status == MOE_OK) {
        status = moe_grammar_parse(out, name, text.data, text.size, err);
        if (status == MOE_ERR_UNSUPPORTED)
            status = moe_fail(err, status,
                              "%s: a $ref comes back to itself with nothing between: no value can "
                              "be written for it",
                              name);
        else if (status == MOE_ERR_LIMIT)
            status = moe_fail(err, status,
                              "%s: the schema is too large: its counts (minLength, maxItems and "
                              "their like) or its properties become more than %d states",
                              name, MOE_GRAMMAR_MAX_STATES);
    }
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
                             : moe_grammar_parse(out, "JSON", text.data, text.size, err);
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
        status = moe_grammar_of_schema(out, path, schema, err);
    moe_json_free(schema);
    return status;
}
