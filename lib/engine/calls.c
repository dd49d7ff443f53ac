/* The grammar of answers that call tools: the form's rules, and those of each tool's schema under
 * names of their own. */
#include "engine/calls.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/allowance.h"
#include "grammar/grammar.h"

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_of_name(char c)
{
    return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Appends rules with a prefix before each name. */
static void append_renamed(struct moe_buf *out, const char *rules, const char *prefix)
{
    char within = 0; /* the end of a literal or a class */
    for (const char *at = rules; *at; at++) {
        if (within && *at == '\\' && at[1])
            moe_buf_u8(out, (uint8_t)*at++);
        else if (within && *at == within)
            within = 0;
        else if (!within && (*at == '"' || *at == '['))
            within = *at == '"' ? '"' : ']';
        else if (!within && is_letter(*at) && (at == rules || !is_of_name(at[-1])))
            moe_buf_text(out, prefix);
        moe_buf_u8(out, (uint8_t)*at);
    }
}

/* Which values of a schema become a rule (grammar/grammar.h). */
struct part {
    enum moe_schema_values values;
    const char *until;
};

/* Appends the rule `rule` for a schema's values; where the schema cannot be held to and `otherwise`
 * is not NULL, for that schema's. `name` begins errors. */
static int append_schema(struct moe_buf *out, const char *rule, const char *name, struct part part,
                         const json_t *schema, const json_t *otherwise, struct moe_buf *notes,
                         struct moe_allowance *allowance, struct moe_err *err)
{
    struct moe_buf rules = {0}, own = {0};
    char prefix[64];
    struct moe_err why;
    snprintf(prefix, sizeof prefix, "of-%s-", rule);
    int status = moe_grammar_write_schema(&rules, name, schema, part.values, part.until, &own,
                                          allowance, &why);
    if (status != MOE_OK && status != MOE_ERR_MEMORY && allowance->status == MOE_OK && otherwise) {
        moe_buf_clear(&rules);
        moe_buf_clear(&own);
        moe_buf_printf(&own, "any values are taken, since %s", why.text);
        status = moe_grammar_write_schema(&rules, name, otherwise, part.values, part.until, NULL,
                                          allowance, &why);
    }
    moe_buf_u8(&rules, 0);
    if (status == MOE_OK) {
        moe_buf_printf(out, "%s ::= %sroot\n", rule, prefix);
        append_renamed(out, (const char *)rules.data, prefix);
        if (part.until)
            moe_buf_printf(out, "%sany ::= any\n", prefix);
        if (own.size)
            moe_buf_printf(notes, "%s%s: %.*s", notes->size ? "; " : "", name, (int)own.size,
                           (const char *)own.data);
    } else if (err) {
        *err = why;
    }
    moe_buf_release(&own);
    moe_buf_release(&rules);
    return status;
}

/* The property with what its references may lead to. NULL: memory is short. */
static json_t *property_schema(const json_t *parameters, const json_t *property)
{
    static const char *const shared[] = {"$defs", "definitions"};
    json_t *schema = json_copy((json_t *)property);
    for (int i = 0; i < 2 && json_is_object(schema); i++) {
        json_t *definitions = json_object_get(parameters, shared[i]);
        if (definitions && json_object_set(schema, shared[i], definitions) != 0) {
            json_decref(schema);
            return NULL;
        }
    }
    return schema;
}

static int append_properties(struct moe_buf *out, const struct moe_chat *chat, size_t tool,
                             const char *tool_name, const json_t *parameters, const json_t *any,
                             struct moe_buf *notes, struct moe_allowance *allowance,
                             struct moe_err *err)
{
    json_t *properties = json_object_get(parameters, "properties"), *property;
    const char *key;
    uint32_t j = 0;
    int status = MOE_OK;
    json_object_foreach(properties, key, property)
    {
        const struct moe_chat_parameter as = moe_chat_parameter(chat, parameters, property);
        const struct part texts = {MOE_SCHEMA_TEXTS, moe_chat_text_ends(chat)},
                          others = {as.text ? MOE_SCHEMA_OTHERS : MOE_SCHEMA_ALL, NULL};
        const char *fault = moe_chat_key_fault(chat, key);
        char rule[48], name[200];
        snprintf(name, sizeof name, "%s: '%.60s'", tool_name, key);
        if (status == MOE_OK && fault)
            status =
                moe_fail(err, MOE_ERR_UNSUPPORTED,
                         "%s is no name that this model's form of calls can have: %s", name, fault);
        json_t *schema = property_schema(parameters, property);
        if (!schema)
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: a tool's parameters");
        snprintf(rule, sizeof rule, "bare-%zu-%u", tool, j);
        if (status == MOE_OK && as.held)
            status = append_schema(out, rule, name, texts, schema, any, notes, allowance, err);
        snprintf(rule, sizeof rule, "value-%zu-%u", tool, j++);
        if (status == MOE_OK && as.json)
            status = append_schema(out, rule, name, others, schema, any, notes, allowance, err);
        json_decref(schema);
    }
    return status;
}

/* Whether the parameters' types, where they name some, have objects, which arguments are. */
static bool take_objects(const json_t *parameters)
{
    const json_t *type = json_object_get(parameters, "type"), *one;
    bool take = !type || strcmp(json_is_string(type) ? json_string_value(type) : "", "object") == 0;
    size_t i;
    json_array_foreach(type, i, one)
    {
        take |= json_is_string(one) && strcmp(json_string_value(one), "object") == 0;
    }
    return take;
}

static int append_tool(struct moe_buf *out, const struct moe_chat *chat,
                       const struct moe_calls_wanted *wanted, size_t i, const json_t *tool,
                       struct moe_buf *notes, struct moe_allowance *allowance, struct moe_err *err)
{
    const json_t *function = moe_chat_function(tool),
                 *parameters = json_object_get(function, "parameters");
    bool strict = wanted->must || json_is_true(json_object_get(function, "strict"));
    json_t *object = json_pack("{s:s}", "type", "object"), *any = json_true();
    json_t *nothing = json_pack("{s:s,s:b}", "type", "object", "additionalProperties", 0);
    const char *function_name = json_string_value(json_object_get(function, "name"));
    char rule[48], name[120];
    snprintf(rule, sizeof rule, "arguments-%zu", i);
    snprintf(name, sizeof name, "the parameters of '%.64s'", function_name ? function_name : "");
    int status = MOE_ERR_MEMORY;
    if (!object || !nothing)
        moe_fail(err, status, "out of memory: a tool's parameters");
    else if (!take_objects(parameters))
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s must be an object, which their 'type' leaves out", name);
    else if (moe_chat_text_ends(chat))
        status = append_properties(out, chat, i, name, parameters, strict ? NULL : any, notes,
                                   allowance, err);
    else
        status = append_schema(out, rule, name, (struct part){MOE_SCHEMA_ALL, NULL},
                               json_is_object(parameters) ? parameters : nothing,
                               strict ? NULL : object, notes, allowance, err);
    json_decref(object);
    json_decref(nothing);
    return status;
}

int moe_calls_grammar(struct moe_grammar **out, const struct moe_chat *chat,
                      const struct moe_calls_wanted *wanted, struct moe_allowance *allowance,
                      struct moe_err *err)
{
    struct moe_buf rules = {0}, notes = {0};
    size_t i;
    const json_t *tool;
    int status = MOE_OK;
    *out = NULL;
    bool held = moe_chat_write_calls(chat, wanted, &rules);
    if (!held && wanted->must && !rules.failed)
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "the template has no form for calls that an answer could be held to: "
                          "leave out 'tool_choice'");
    json_array_foreach(wanted->tools, i, tool)
    {
        if (held && status == MOE_OK)
            status = append_tool(&rules, chat, wanted, i, tool, &notes, allowance, err);
    }
    if (rules.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the grammar of calls");
    if (status == MOE_OK && held)
        status =
            moe_grammar_parse(out, "the grammar of calls", rules.data, rules.size, allowance, err);
    if (*out)
        moe_grammar_note(*out, &notes);
    moe_buf_release(&notes);
    moe_buf_release(&rules);
    return status;
}
