/* moe-run --messages and --show-prompt. */
#include "messages.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "cli.h"
#include "engine/prompt.h"
#include "fmt/json.h"

enum { JSON_MEMORY = 256 << 20 };

int messages_take(struct moe_conversation *talk, const char *file, const struct moe_buf *text,
                  json_t **json, struct moe_err *err)
{
    *json = NULL;
    MOE_TRY(moe_json_parse(json, file, text->data, text->size - 1, JSON_MEMORY, err));
    bool whole = json_is_object(*json);
    const json_t *messages = whole ? json_object_get(*json, "messages") : *json;
    const json_t *tools = whole ? json_object_get(*json, "tools") : NULL;
    const json_t *variables = whole ? json_object_get(*json, "chat_template_kwargs") : NULL;
    MOE_TRY(moe_chat_check_messages(file, messages, err));
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'tools' is not a list", file);
    if (variables && !json_is_null(variables) && !json_is_object(variables))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'chat_template_kwargs' is not an object", file);
    MOE_TRY(moe_conversation_set(talk, messages, err));
    talk->tools = tools;
    talk->variables = variables;
    return MOE_OK;
}

/* What would be fed, with the question where there is one. */
static int preview(struct moe_conversation *talk, const char *text, struct moe_buf *out,
                   struct moe_ids *ids, struct moe_err *err)
{
    if (!talk->chat) {
        moe_buf_text(out, text);
        return moe_prompt_prefixed(talk->session->model, talk->prefix, text, strlen(text), ids,
                                   err);
    }
    json_t *question = text ? moe_chat_message("user", text, strlen(text), err) : NULL;
    if (text && !question)
        return MOE_ERR_MEMORY;
    if (question && json_array_append_new(talk->messages, question) != 0)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    return moe_conversation_preview(talk, out, ids, err);
}

int messages_show_prompt(struct moe_conversation *talk, const char *text, struct moe_err *err)
{
    struct moe_buf out = {0};
    struct moe_ids ids = {0};
    int status = preview(talk, text, &out, &ids, err);
    moe_buf_u8(&out, '\n');
    for (uint64_t i = 0; i < ids.n; i++)
        moe_buf_printf(&out, "%s%" PRIu32, i ? " " : "", ids.ids[i]);
    moe_buf_u8(&out, '\n');
    if (status == MOE_OK && out.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the prompt");
    if (status == MOE_OK) {
        cli_write(out.data, out.size);
        status = cli_flush(err);
    }
    moe_buf_release(&out);
    moe_ids_release(&ids);
    return status;
}
