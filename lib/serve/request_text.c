/* Requests: the texts of the body. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
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

static const struct {
    const char *name;
    enum moe_chat_role role;
} roles[] = {
    {"system", MOE_CHAT_SYSTEM},
    {"developer", MOE_CHAT_SYSTEM},
    {"user", MOE_CHAT_USER},
    {"assistant", MOE_CHAT_ASSISTANT},
};

static int read_role(const json_t *message, size_t i, enum moe_chat_role *role, struct moe_err *err)
{
    const char *name = json_string_value(json_object_get(message, "role"));
    for (size_t k = 0; name && k < sizeof roles / sizeof roles[0]; k++)
        if (strcmp(name, roles[k].name) == 0) {
            *role = roles[k].role;
            return MOE_OK;
        }
    return moe_fail(err, MOE_ERR_FORMAT,
                    REQUEST ": 'messages[%zu].role' is %s%s; system, developer, user and assistant "
                            "are known",
                    i, name ? "" : "no text", name ? name : "");
}

/* The texts of a list of parts, one behind the other. */
static int join_parts(char **out, const json_t *parts, size_t i, struct moe_err *err)
{
    struct moe_buf all = {0};
    int status = MOE_OK;
    for (size_t k = 0; k < json_array_size(parts) && status == MOE_OK; k++) {
        const json_t *part = json_array_get(parts, k);
        const char *type = json_string_value(json_object_get(part, "type"));
        char where[80], *text = NULL;
        snprintf(where, sizeof where, "'messages[%zu].content[%zu].text'", i, k);
        if (!type || strcmp(type, "text") != 0)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              REQUEST ": 'messages[%zu].content[%zu]' is a part of type %s: parts "
                                      "are texts here",
                              i, k, type ? type : "unknown");
        else
            status = request_copy_text(&text, json_object_get(part, "text"), where, err);
        if (status == MOE_OK)
            moe_buf_text(&all, text);
        free(text);
    }
    moe_buf_append(&all, "", 1);
    if (status == MOE_OK && all.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    if (status == MOE_OK && !(*out = moe_strndup((const char *)all.data, all.size - 1, err)))
        status = MOE_ERR_MEMORY;
    moe_buf_release(&all);
    return status;
}

static int read_content(char **out, const json_t *message, size_t i, struct moe_err *err)
{
    static const char *const others[] = {"tool_calls", "function_call", "audio", "refusal"};
    const json_t *content = json_object_get(message, "content");
    char where[40];
    for (size_t k = 0; k < sizeof others / sizeof others[0]; k++)
        if (is_given(json_object_get(message, others[k])))
            return moe_fail(err, MOE_ERR_FORMAT,
                            REQUEST ": 'messages[%zu].%s': messages are texts here", i, others[k]);
    if (json_is_array(content))
        return join_parts(out, content, i, err);
    snprintf(where, sizeof where, "'messages[%zu].content'", i);
    return request_copy_text(out, content, where, err);
}

/* The first turns' system texts are one. */
static int join_system(struct moe_chat_turn *first, const char *text, struct moe_err *err)
{
    struct moe_buf both = {0};
    moe_buf_printf(&both, "%s\n\n%s", first->text, text);
    char *joined = both.failed ? NULL : moe_strndup((const char *)both.data, both.size, err);
    if (both.failed)
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    moe_buf_release(&both);
    if (!joined)
        return MOE_ERR_MEMORY;
    free((char *)first->text);
    first->text = joined;
    return MOE_OK;
}

static int read_message(struct moe_request *r, const json_t *message, size_t i, struct moe_err *err)
{
    enum moe_chat_role role = MOE_CHAT_USER;
    char *text = NULL;
    int status = read_role(message, i, &role, err);
    if (status == MOE_OK)
        status = read_content(&text, message, i, err);
    if (status != MOE_OK)
        return status;
    bool system = role == MOE_CHAT_SYSTEM;
    if (system && r->n_turns == 1 && r->turns[0].role == MOE_CHAT_SYSTEM) {
        status = join_system(&r->turns[0], text, err);
    } else if (system && r->n_turns > 0) {
        status = moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'messages[%zu]' is a system text behind a question or answer, "
                                  "where models have no place for it",
                          i);
    } else {
        r->turns[r->n_turns++] = (struct moe_chat_turn){role, text};
        text = NULL;
    }
    free(text);
    return status;
}

static int read_messages(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *messages = json_object_get(body, "messages");
    size_t n = json_array_size(messages);
    if (n == 0)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'messages' is %s",
                        json_is_array(messages) ? "empty"
                        : is_given(messages)    ? "not a list"
                                                : "missing");
    if (!(r->turns = moe_alloc(n, sizeof *r->turns, err)))
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++)
        status = read_message(r, json_array_get(messages, i), i, err);
    return status;
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
    int status =
        r->kind == MOE_REQUEST_CHAT ? read_messages(r, body, err) : read_prompt(r, body, err);
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
