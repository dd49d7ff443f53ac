/* Requests: the texts of the body. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "chat/chat.h"
#include "fmt/json.h"
#include "serve/request_parts.h"

int request_copy_text(char **out, const json_t *value, const char *where, struct moe_err *err)
{
    if (!json_is_string(value))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": %s is not a text", where);
    size_t n = json_string_length(value);
    if (memchr(json_string_value(value), 0, n))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": %s has a NUL character inside", where);
    *out = moe_strndup(json_string_value(value), n, err);
    return *out ? MOE_OK : MOE_ERR_MEMORY;
}

static bool is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* ---- Messages ---- */

/* A copy of a value in the body. */
static int take(struct moe_request *r, json_t **out, const json_t *value, struct moe_err *err)
{
    r->chat_bytes += moe_json_bytes(value);
    return moe_json_copy(out, value, err);
}

/* A text of a message. */
static int check_text(const json_t *text, const char *where, struct moe_err *err)
{
    if (!json_is_string(text))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": %s is not a text", where);
    if (memchr(json_string_value(text), 0, json_string_length(text)))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": %s has a NUL character inside", where);
    return MOE_OK;
}

static int check_part(const json_t *part, size_t i, size_t k, struct moe_err *err)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    char where[80];
    snprintf(where, sizeof where, "'messages[%zu].content[%zu].text'", i, k);
    if (!type || strcmp(type, "text") != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'messages[%zu].content[%zu]' is a part of type %s: parts are "
                                "texts here",
                        i, k, type ? type : "unknown");
    return check_text(json_object_get(part, "text"), where, err);
}

/* A text, or parts; with calls of tools perhaps neither. */
static int check_content(const json_t *message, size_t i, struct moe_err *err)
{
    static const char *const others[] = {"function_call", "audio", "refusal"};
    const json_t *content = json_object_get(message, "content"), *part;
    char where[48];
    size_t k;
    int status = MOE_OK;
    for (k = 0; k < sizeof others / sizeof others[0]; k++)
        if (is_given(json_object_get(message, others[k])))
            return moe_fail(err, MOE_ERR_FORMAT,
                            REQUEST ": 'messages[%zu].%s': messages are texts here", i, others[k]);
    if (!is_given(content) && json_array_size(json_object_get(message, "tool_calls")))
        return MOE_OK;
    snprintf(where, sizeof where, "'messages[%zu].content'", i);
    if (!json_is_array(content))
        return check_text(content, where, err);
    json_array_foreach(content, k, part)
    {
        if (status == MOE_OK)
            status = check_part(part, i, k, err);
    }
    return status;
}

/* What routing rules look at. */
static int copy_question(struct moe_request *r, struct moe_err *err)
{
    const json_t *last = NULL, *message;
    struct moe_buf text = {0};
    size_t i;
    json_array_foreach(r->messages, i, message)
    {
        if (moe_chat_has_role(message, "user"))
            last = message;
    }
    if (!last)
        return MOE_OK;
    moe_chat_append_content(last, &text);
    if (!text.failed)
        r->question = moe_strndup((const char *)text.data, text.size, err);
    else
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    moe_buf_release(&text);
    return r->question ? MOE_OK : MOE_ERR_MEMORY;
}

static int read_messages(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *messages = json_object_get(body, "messages"), *message;
    size_t i;
    int status = moe_chat_check_messages(REQUEST, messages, err);
    json_array_foreach(messages, i, message)
    {
        if (status == MOE_OK)
            status = check_content(message, i, err);
    }
    if (status == MOE_OK)
        status = take(r, &r->messages, messages, err);
    return status == MOE_OK ? copy_question(r, err) : status;
}

/* ---- What templates see beside messages ---- */

static int read_tools(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *tools = json_object_get(body, "tools");
    const json_t *choice = json_object_get(body, "tool_choice");
    const char *how = is_given(choice) ? json_string_value(choice) : "auto";
    if (!how || (strcmp(how, "auto") != 0 && strcmp(how, "none") != 0))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice' can be auto or none: what the model writes is its "
                                "own choice");
    if (is_given(tools) && !json_is_array(tools))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'tools' is not a list");
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!json_is_object(json_array_get(tools, i)))
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'tools[%zu]' is not an object", i);
    if (json_array_size(tools) == 0 || strcmp(how, "none") == 0)
        return MOE_OK;
    return take(r, &r->tools, tools, err);
}

static int read_variables(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *given = json_object_get(body, "chat_template_kwargs");
    const json_t *effort = json_object_get(body, "reasoning_effort");
    if (is_given(given) && !json_is_object(given))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'chat_template_kwargs' is not an object");
    if (json_object_size(given) > MOE_REQUEST_MAX_VARIABLES)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'chat_template_kwargs' has %zu keys, %d at most fit",
                        json_object_size(given), MOE_REQUEST_MAX_VARIABLES);
    if (is_given(effort) && !json_is_string(effort))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'reasoning_effort' is not a text");
    if (json_object_size(given) == 0 && !is_given(effort))
        return MOE_OK;
    json_t *none = is_given(given) ? NULL : json_object();
    int status = take(r, &r->variables, is_given(given) ? given : none, err);
    json_decref(none);
    if (status == MOE_OK && is_given(effort) &&
        json_object_set_new(r->variables, "reasoning_effort",
                            json_string(json_string_value(effort))) != 0)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request");
    return status;
}

static int read_chat(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    int status = read_messages(r, body, err);
    if (status == MOE_OK)
        status = read_tools(r, body, err);
    return status == MOE_OK ? read_variables(r, body, err) : status;
}

/* ---- Prompts ---- */

static int read_ids(struct moe_request *r, const json_t *list, struct moe_err *err)
{
    size_t n = json_array_size(list);
    if (!(r->ids = moe_alloc(n, sizeof *r->ids, err)))
        return MOE_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > UINT32_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt[%zu]' is not a token's id", i);
        r->ids[r->n_ids++] = (uint32_t)json_integer_value(id);
    }
    return MOE_OK;
}

static int read_prompt(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *prompt = json_object_get(body, "prompt");
    if (json_array_size(json_object_get(body, "tools")))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'tools' goes with messages");
    const json_t *first = json_array_get(prompt, 0);
    if (json_is_array(prompt) && json_array_size(prompt) == 0)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt' is an empty list");
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(prompt) > 1)
            return moe_fail(err, MOE_ERR_FORMAT,
                            REQUEST ": 'prompt' has %zu prompts: one to a request is done",
                            json_array_size(prompt));
        prompt = first;
    }
    if (!is_given(prompt))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt' is missing");
    if (json_is_array(prompt))
        return read_ids(r, prompt, err);
    int status = request_copy_text(&r->prompt, prompt, "'prompt'", err);
    r->n_prompt = status == MOE_OK ? strlen(r->prompt) : 0;
    return status;
}

static int read_prefix(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *prefix = json_object_get(body, "prefix_text");
    if (!is_given(prefix))
        return MOE_OK;
    if (!r->prompt)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'prefix_text' goes with a prompt that is text");
    return request_copy_text(&r->prefix_text, prefix, "'prefix_text'", err);
}

int request_read_text(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    int status = r->kind == MOE_REQUEST_CHAT ? read_chat(r, body, err) : read_prompt(r, body, err);
    if (status == MOE_OK)
        status = read_prefix(r, body, err);
    if (status == MOE_OK && r->echo && !r->prompt)
        status = moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'echo' goes with a prompt that is text");
    return status;
}

/* ---- Stop texts and fields ---- */

int request_read_stops(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *stop = json_object_get(body, "stop");
    bool one = json_is_string(stop);
    size_t n = one ? 1 : json_array_size(stop);
    int status = MOE_OK;
    if (is_given(stop) && !one && !json_is_array(stop))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'stop' is neither a text nor a list");
    if (n > MOE_REQUEST_MAX_STOPS)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'stop' has %zu texts, %d at most are taken",
                        n, MOE_REQUEST_MAX_STOPS);
    if (!(r->stops = moe_alloc(n + 1, sizeof *r->stops, err)))
        return MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        char *text = NULL, where[24];
        snprintf(where, sizeof where, "'stop[%zu]'", i);
        status = request_copy_text(&text, one ? stop : json_array_get(stop, i),
                                   one ? "'stop'" : where, err);
        if (status == MOE_OK && text[0])
            r->stops[r->n_stops++] = text;
        else
            free(text);
    }
    return status;
}

int request_read_fields(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    json_t *metadata = json_object_get(body, "metadata"), *value;
    const char *key;
    size_t n = json_object_size(metadata);
    if (is_given(metadata) && !json_is_object(metadata))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'metadata' is not an object");
    if (n > MOE_REQUEST_MAX_FIELDS)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'metadata' has %zu keys, %d at most fit", n,
                        MOE_REQUEST_MAX_FIELDS);
    if (n && !(r->fields = moe_alloc(n, sizeof *r->fields, err)))
        return MOE_ERR_MEMORY;
    json_object_foreach(metadata, key, value)
    {
        struct moe_request_field *f = &r->fields[r->n_fields++];
        char where[64];
        snprintf(where, sizeof where, "'metadata.%.40s'", key);
        if (!(f->name = moe_strndup(key, strlen(key), err)))
            return MOE_ERR_MEMORY;
        int status = request_copy_text(&f->text, value, where, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}
