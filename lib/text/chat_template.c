#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "fmt/json.h"
#include "text/chat.h"

enum { TEMPLATE_BYTES_MAX = 1 << 20, CONFIG_BYTES_MAX = 64 << 20 };

/* The template's text in a configuration, borrowed, or NULL. */
static const char *find_template(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    const char *text = json_string_value(value);
    for (size_t i = 0; !text && i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            text = json_string_value(json_object_get(item, "template"));
    }
    return text;
}

static int read_from_config(const char *path, struct moe_buf *out, struct moe_err *err)
{
    json_t *config;
    int status =
        moe_json_read(&config, path, CONFIG_BYTES_MAX, MOE_JSON_TOKENIZER_CONFIG_MEMORY, err);
    if (status != MOE_OK)
        return status;
    const char *text = find_template(config);
    if (text)
        moe_buf_text(out, text);
    moe_json_free(config);
    return MOE_OK;
}

int moe_chat_read_template(const char *dir, struct moe_buf *out, struct moe_err *err)
{
    int status = MOE_OK;
    char *jinja = moe_path_join(dir, "chat_template.jinja", err);
    char *config = jinja ? moe_path_join(dir, "tokenizer_config.json", err) : NULL;
    if (!config)
        status = MOE_ERR_MEMORY;
    else if (moe_path_exists(jinja)) /* of newer checkpoints; it takes precedence */
        status = moe_file_read_all(jinja, TEMPLATE_BYTES_MAX, out, err);
    else if (moe_path_exists(config))
        status = read_from_config(config, out, err);
    if (status == MOE_OK && out->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the chat template", dir);
    free(jinja);
    free(config);
    return status;
}
