#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "chat/chat.h"
#include "fmt/gguf.h"
#include "fmt/json.h"

enum { TEMPLATE_BYTES_MAX = 1 << 20, CONFIG_BYTES_MAX = 64 << 20 };

static void append_json(const json_t *value, struct moe_buf *out)
{
    char *text = json_dumps(value, JSON_COMPACT);
    moe_buf_text(out, text ? text : "");
    out->failed |= !text;
    free(text);
}

/* The template, or a list of both. */
static void join(const char *template, const char *tool_use, struct moe_buf *out)
{
    if (!tool_use || !*tool_use) {
        moe_buf_text(out, template);
        return;
    }
    json_t *list = json_pack("[{s:s,s:s},{s:s,s:s}]", "name", "default", "template", template,
                             "name", "tool_use", "template", tool_use);
    append_json(list, out);
    json_decref(list);
}

static int read_config(const char *path, struct moe_buf *out, struct moe_err *err)
{
    json_t *config;
    int status =
        moe_json_read(&config, path, CONFIG_BYTES_MAX, MOE_JSON_TOKENIZER_CONFIG_MEMORY, err);
    if (status != MOE_OK)
        return status;
    const json_t *value = json_object_get(config, "chat_template");
    if (json_is_string(value))
        moe_buf_append(out, json_string_value(value), json_string_length(value));
    else if (json_array_size(value))
        append_json(value, out);
    moe_json_free(config);
    return MOE_OK;
}

int moe_chat_read_gguf(const struct moe_gguf *gguf, struct moe_buf *out, struct moe_err *err)
{
    static const char key[] = "tokenizer.chat_template",
                      tools[] = "tokenizer.chat_template.tool_use";
    const char *template = "", *tool_use = "";
    int status = moe_gguf_get_text(gguf, key, false, &template, err);
    if (status == MOE_OK)
        status = moe_gguf_get_text(gguf, tools, false, &tool_use, err);
    if (status == MOE_OK)
        join(template, tool_use, out);
    return status;
}

/* Of newer checkpoints: a file for each template. */
static int read_files(const char *jinja, const char *dir, struct moe_buf *out, struct moe_err *err)
{
    struct moe_buf template = {0}, tool_use = {0};
    char *path = moe_path_join(dir, "additional_chat_templates/tool_use.jinja", err);
    int status =
        path ? moe_file_read_all(jinja, TEMPLATE_BYTES_MAX, &template, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK && moe_path_exists(path))
        status = moe_file_read_all(path, TEMPLATE_BYTES_MAX, &tool_use, err);
    if (status == MOE_OK)
        join(template.data ? (const char *)template.data : "", (const char *)tool_use.data, out);
    moe_buf_release(&template);
    moe_buf_release(&tool_use);
    free(path);
    return status;
}

int moe_chat_read_template(const char *dir, struct moe_buf *out, struct moe_err *err)
{
    int status = MOE_OK;
    char *jinja = moe_path_join(dir, "chat_template.jinja", err);
    char *config = jinja ? moe_path_join(dir, "tokenizer_config.json", err) : NULL;
    if (!config)
        status = MOE_ERR_MEMORY;
    else if (moe_path_exists(jinja)) /* it takes precedence */
        status = read_files(jinja, dir, out, err);
    else if (moe_path_exists(config))
        status = read_config(config, out, err);
    if (status == MOE_OK && out->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the chat template", dir);
    free(jinja);
    free(config);
    return status;
}
