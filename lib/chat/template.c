#include "chat/template.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/json.h"

enum {
    OWN_VARIABLES = 7,
    /* What a render may take: a template's own work, and copies of what it is given. */
    MEMORY = 64 << 20,
    COPIES = 32,
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

/* A list of templates, or a configuration that has one or a list. */
static int parse_json(struct moe_chat *chat, const json_t *json, struct moe_err *err)
{
    const json_t *value = json_is_array(json) ? json : json_object_get(json, "chat_template");
    const json_t *plain = json_is_string(value) ? value : template_named(value, "default");
    const json_t *tools = template_named(value, "tool_use");
    if (!plain)
        plain = json_object_get(json_array_get(value, 0), "template");
    if (!json_is_string(plain))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: there is no chat template in it", chat->name);
    int status = parse_text(chat, plain, &chat->plain, err);
    if (status == MOE_OK && json_is_string(tools) && tools != plain)
        status = parse_text(chat, tools, &chat->with_tools, err);
    return status;
}

/* What may be JSON and is none is Jinja: the two begin alike only in texts like "[INST]". */
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

static void put(struct moe_jinja_input *in, struct moe_jinja_variable *list, const char *name,
                const json_t *value, bool caller)
{
    list[in->n_variables++] = (struct moe_jinja_variable){name, value, caller};
}

/* What is set later hides what was set before. */
static int write_with(const struct moe_chat *chat, const struct moe_chat_input *input,
                      struct moe_jinja_variable *list, const struct moe_jinja_limits *limits,
                      struct moe_buf *out, struct moe_buf *words, struct moe_err *err)
{
    struct moe_jinja_input in = {.variables = list, .now = input->now};
    bool has_tools = json_array_size(input->tools) > 0;
    const char *name;
    json_t *value;
    in.limits.memory =
        MEMORY + COPIES * (moe_json_bytes(input->messages) + moe_json_bytes(input->tools));
    if (limits)
        in.limits = *limits;
    put(&in, list, "bos_token", chat->bos, false);
    put(&in, list, "eos_token", chat->eos, false);
    put(&in, list, "documents", json_null(), false);
    json_object_foreach((json_t *)input->variables, name, value)
        put(&in, list, name, value, strcmp(name, "documents") == 0);
    put(&in, list, "messages", input->messages, true);
    put(&in, list, "tools", has_tools ? input->tools : json_null(), true);
    put(&in, list, "add_generation_prompt",
        input->add_generation_prompt ? json_true() : json_false(), false);
    const struct moe_jinja *t = has_tools && chat->with_tools ? chat->with_tools : chat->plain;
    return moe_jinja_render(t, &in, out, words, err);
}

int chat_write(const struct moe_chat *chat, const struct moe_chat_input *input,
               const struct moe_jinja_limits *limits, struct moe_buf *out, struct moe_buf *words,
               struct moe_err *err)
{
    size_t n = OWN_VARIABLES + json_object_size(input->variables);
    struct moe_jinja_variable *list = moe_alloc(n, sizeof *list, err);
    if (!list)
        return MOE_ERR_MEMORY;
    int status = write_with(chat, input, list, limits, out, words, err);
    free(list);
    return status;
}
