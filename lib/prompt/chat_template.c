/* Chat templates: parsing and rendering. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "fmt/json.h"
#include "prompt/chat_answer.h"
#include "prompt/chat_internal.h"

enum {
    OWN_VARIABLES = 7,
    /* Limits of a render: a template's own work, and copies of its input. */
    MEMORY = 16 << 20,
    COPIES = 16,
    PROBE_STEPS = 1000 * 1000,
    PROBE_MEMORY = 64 << 20,
    PROBE_OUTPUT = 1 << 20,
    MAX_SCHEMA_DEPTH = 32,
};

/* ---- Parsing ---- */

static const json_t *template_named(const json_t *list, const char *name)
{
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item)
    {
        const char *own = json_string_value(json_object_get(item, "name"));
        if (own && strcmp(own, name) == 0)
            return json_object_get(item, "template");
    }
    return NULL;
}

static int parse_text(struct moe_chat *chat, const json_t *text, struct moe_jinja **out,
                      struct moe_err *err)
{
    return moe_jinja_parse(out, chat->name, json_string_value(text), json_string_length(text), err);
}

/* Parses a list of templates, or a configuration that has one or a list. */
static int parse_json(struct moe_chat *chat, const json_t *json, struct moe_err *err)
{
    const json_t *value = json_is_array(json) ? json : json_object_get(json, "chat_template");
    const json_t *plain = json_is_string(value) ? value : template_named(value, "default");
    const json_t *tools = template_named(value, "tool_use");
    if (!plain)
        plain = json_object_get(json_array_get(value, 0), "template");
    if (!json_is_string(plain))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: there is no chat template in it", chat->name);
    MOE_TRY(parse_text(chat, plain, &chat->plain, err));
    if (json_is_string(tools) && tools != plain)
        MOE_TRY(parse_text(chat, tools, &chat->with_tools, err));
    return MOE_OK;
}

/* Tells JSON from Jinja, which begin alike only in texts like "[INST]". */
static bool looks_like_json(const char *source, uint64_t n)
{
    uint64_t i = 0;
    while (i < n && strchr(" \t\r\n", source[i]) && source[i])
        i++;
    if (i == n || (source[i] != '{' && source[i] != '['))
        return false;
    i++;
    while (i < n && strchr(" \t\r\n", source[i]) && source[i])
        i++;
    return i < n && (source[i] == '"' || source[i] == '{') &&
           !(i > 0 && source[i - 1] == '{' && source[i] == '{');
}

int chat_parse(struct moe_chat *chat, const char *source, uint64_t n, struct moe_err *err)
{
    json_t *json = NULL;
    struct moe_err no_json;
    if (looks_like_json(source, n) &&
        moe_json_parse(&json, chat->name, source, n, MOE_JSON_TOKENIZER_CONFIG_MEMORY, &no_json) ==
            MOE_ERR_MEMORY)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", chat->name);
    int status = json ? parse_json(chat, json, err)
                      : moe_jinja_parse(&chat->plain, chat->name, source, n, err);
    moe_json_free(json);
    return status;
}

/* ---- Rendering ---- */

/* What templates call the wish for a thought. */
static const char *const thoughts[] = {"enable_thinking", "thinking", "reasoning"};
enum { N_THOUGHTS = sizeof thoughts / sizeof thoughts[0] };

bool moe_chat_no_thought(const json_t *variables)
{
    const char *effort = json_string_value(json_object_get(variables, "reasoning_effort"));
    bool none = effort && strcmp(effort, "none") == 0;
    for (int i = 0; i < N_THOUGHTS; i++)
        none |= json_is_false(json_object_get(variables, thoughts[i]));
    return none;
}

static void put_variable(struct moe_jinja_input *in, struct moe_jinja_variable *list,
                         const char *name, const json_t *value, bool caller)
{
    list[in->n_variables++] = (struct moe_jinja_variable){name, value, caller};
}

/* Later variables hide earlier ones. */
static int write_with(const struct moe_chat *chat, const struct moe_chat_input *input,
                      struct moe_jinja_variable *list, const struct moe_jinja_limits *limits,
                      struct moe_buf *out, struct moe_buf *words, struct moe_err *err)
{
    struct moe_jinja_input in = {.variables = list, .now = input->now};
    bool has_tools = json_array_size(input->tools) > 0;
    const char *name;
    json_t *value;
    const struct moe_allowance *allowance = input->allowance;
    in.limits.memory =
        MEMORY + COPIES * (moe_json_bytes(input->messages) + moe_json_bytes(input->tools));
    if (allowance && in.limits.memory > allowance->max_bytes / 2) /* and what it becomes */
        in.limits.memory = allowance->max_bytes / 2;
    if (allowance)
        in.limits.steps = allowance->max_steps;
    in.limits.cancelled = allowance ? allowance->cancelled : NULL;
    if (limits)
        in.limits = *limits;
    put_variable(&in, list, "bos_token", chat->bos, false);
    put_variable(&in, list, "eos_token", chat->eos, false);
    put_variable(&in, list, "documents", json_null(), false);
    for (int i = 0; i < N_THOUGHTS && moe_chat_no_thought(input->variables); i++)
        put_variable(&in, list, thoughts[i], json_false(), false);
    json_object_foreach((json_t *)input->variables, name, value)
        put_variable(&in, list, name, value, true);
    put_variable(&in, list, "messages", input->messages, true);
    json_t *none = chat->forms.lists_tools ? json_array() : json_null();
    put_variable(&in, list, "tools", has_tools ? input->tools : none, true);
    put_variable(&in, list, "add_generation_prompt",
                 input->add_generation_prompt ? json_true() : json_false(), false);
    const struct moe_jinja *t = has_tools && chat->with_tools ? chat->with_tools : chat->plain;
    int status = none ? moe_jinja_render(t, &in, out, words, err)
                      : moe_fail(err, MOE_ERR_MEMORY, "out of memory: the tools");
    json_decref(none);
    return status;
}

static int write_once(const struct moe_chat *chat, const struct moe_chat_input *input,
                      const struct moe_jinja_limits *limits, struct moe_buf *out,
                      struct moe_buf *words, struct moe_err *err)
{
    size_t n = OWN_VARIABLES + N_THOUGHTS + json_object_size(input->variables);
    struct moe_jinja_variable *list = moe_alloc(n, sizeof *list, err);
    if (!list)
        return MOE_ERR_MEMORY;
    int status = write_with(chat, input, list, limits, out, words, err);
    free(list);
    return status;
}

/* ---- What some templates cannot do without ---- */

const json_t *moe_chat_function(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    return json_is_object(function) ? function : tool;
}

static bool set_missing(json_t *object, const char *key, json_t *value)
{
    if (!json_object_get(object, key))
        return json_object_set_new(object, key, value) == 0;
    json_decref(value);
    return true;
}

/* Takes null from a schema's types, which some templates spell letter by letter without an end.
 * False: memory is short. */
static bool drop_null(json_t *schema)
{
    json_t *type = json_object_get(schema, "type"), *null = json_string("null");
    bool done = null != NULL;
    for (size_t i = json_array_size(type); i-- > 0;)
        if (json_equal(json_array_get(type, i), null))
            json_array_remove(type, i);
    if (json_equal(type, null) || (json_is_array(type) && json_array_size(type) == 0))
        json_object_del(schema, "type");
    else if (json_array_size(type) == 1)
        done = json_object_set(schema, "type", json_array_get(type, 0)) == 0 && done;
    json_decref(null);
    return done;
}

/* What stands for a schema that is true or false; NULL: it is neither, or memory is short. */
static json_t *object_for(const json_t *schema)
{
    return json_is_true(schema)    ? json_object()
           : json_is_false(schema) ? json_pack("{s:{}}", "not")
                                   : NULL;
}

/* Gives a schema and those in it what it may leave out and what goes without saying, in the words
 * that templates know. False: memory is short. */
static bool complete_schema(json_t *schema, int depth)
{
    static const char *const within[] = {"properties", "$defs", "definitions", "anyOf",
                                         "oneOf",      "allOf", "prefixItems"};
    json_t *one, *object;
    const char *key;
    size_t i;
    if (!json_is_object(schema) || depth > MAX_SCHEMA_DEPTH)
        return true;
    object = object_for(json_object_get(schema, "items"));
    bool done = (!object || json_object_set_new(schema, "items", object) == 0) &&
                drop_null(schema) && set_missing(schema, "description", json_string("")) &&
                set_missing(schema, "additionalProperties", json_true()) &&
                complete_schema(json_object_get(schema, "items"), depth + 1) &&
                complete_schema(json_object_get(schema, "additionalProperties"), depth + 1);
    for (size_t w = 0; w < sizeof within / sizeof within[0]; w++) {
        json_t *all = json_object_get(schema, within[w]);
        json_object_foreach(all, key, one)
        {
            if ((object = object_for(one)) != NULL)
                done = json_object_set_new(all, key, object) == 0 && done;
            done = done && complete_schema(json_object_get(all, key), depth + 1);
        }
        json_array_foreach(all, i, one)
        {
            if ((object = object_for(one)) != NULL)
                done = json_array_set_new(all, i, object) == 0 && done;
            done = done && complete_schema(json_array_get(all, i), depth + 1);
        }
    }
    return done;
}

/* The tools with whole schemas, and variables with those that templates take for granted: Command
 * wants a description of every parameter, firefunction the functions as a text and the time. */
static bool complete_input(const struct moe_chat_input *input, json_t *tools, json_t *variables)
{
    char time[32];
    json_t *functions = json_array(), *tool;
    size_t i;
    bool done = true;
    strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", &input->now);
    json_array_foreach(tools, i, tool)
    {
        json_t *function = (json_t *)moe_chat_function(tool);
        done = done && json_array_append(functions, function) == 0;
    }
    char *text = moe_json_text(functions, JSON_INDENT(4));
    done = done && text && set_missing(variables, "functions", json_string(text)) &&
           set_missing(variables, "datetime", json_string(time));
    json_array_foreach(tools, i, tool)
    {
        json_t *function = (json_t *)moe_chat_function(tool);
        done = done && set_missing(function, "description", json_string("")) &&
               complete_schema(json_object_get(function, "parameters"), 0);
    }
    free(text);
    json_decref(functions);
    return done;
}

int chat_write(const struct moe_chat *chat, const struct moe_chat_input *input,
               const struct moe_jinja_limits *limits, struct moe_buf *out, struct moe_buf *words,
               struct moe_err *err)
{
    struct moe_err again;
    struct moe_chat_input whole = *input;
    json_t *tools = NULL, *variables = NULL;
    int status = write_once(chat, input, limits, out, words, err);
    const bool endless = status == MOE_ERR_LIMIT && !limits && json_array_size(input->tools);
    if (status != MOE_ERR_FORMAT && !endless)
        return status;
    const bool copied =
        (!input->tools || moe_json_copy(&tools, input->tools, &again) == MOE_OK) &&
        (input->variables ? moe_json_copy(&variables, input->variables, &again) == MOE_OK
                          : (variables = json_object()) != NULL);
    whole.tools = tools;
    whole.variables = variables;
    if (!copied || !complete_input(input, tools, variables))
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", chat->name);
    else if (write_once(chat, &whole, limits, out, words, &again) == MOE_OK)
        status = MOE_OK; /* else what it said first is right */
    json_decref(tools);
    json_decref(variables);
    return status;
}

/* ---- Probes ---- */

bool probe_write(struct chat_probe *p, json_t *messages, json_t *tools, bool prompt,
                 struct moe_buf *out)
{
    static const struct moe_jinja_limits limits = {
        .steps = PROBE_STEPS, .memory = PROBE_MEMORY, .output = PROBE_OUTPUT};
    json_t *wishes = p->thinks ? json_object() : NULL;
    for (int i = 0; i < N_THOUGHTS && p->thinks; i++)
        p->short_of_memory |= json_object_set_new(wishes, thoughts[i], json_true()) != 0;
    const struct moe_chat_input in = {.messages = messages,
                                      .tools = tools,
                                      .variables = wishes,
                                      .add_generation_prompt = prompt,
                                      .now = {.tm_year = 126, .tm_mday = 1}};
    struct moe_err refused;
    moe_buf_clear(out);
    int status = messages ? chat_write(p->chat, &in, &limits, out, NULL, &refused) : MOE_ERR_MEMORY;
    moe_buf_u8(out, 0);
    p->short_of_memory |= status == MOE_ERR_MEMORY || out->failed;
    json_decref(wishes);
    json_decref(messages);
    json_decref(tools);
    return status == MOE_OK && !out->failed;
}

json_t *probe_content(const struct chat_probe *p, const char *text)
{
    return p->chat->forms.parts_only ? json_pack("[{s:s,s:s}]", "type", "text", "text", text)
                                     : json_string(text);
}
