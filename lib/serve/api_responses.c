/* OpenAI's Responses API (/v1/responses): its requests as chats, its replies and streams. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "fmt/json.h"
#include "serve/reply_internal.h"

#define REQUEST "the request"
#define REFERENCE                                                                                  \
    "item_reference" /* a type of items, and the role that they have until they are read */

/* ---- Requests ---- */

/* *parts: the texts of a content. */
static int read_content(json_t **parts, const json_t *content, size_t i, struct chat_maker *m)
{
    size_t k;
    const json_t *part;
    *parts = json_array();
    if (json_is_string(content))
        chat_add(m, *parts, json_pack("{s:s,s:O}", "type", "text", "text", content));
    json_array_foreach(content, k, part)
    {
        const char *type = chat_text_of(part, "type");
        const json_t *text =
            json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
        if ((!moe_ends_with(type, "text") && strcmp(type, "refusal") != 0) || !json_is_string(text))
            return moe_fail(
                m->err, MOE_ERR_FORMAT,
                REQUEST
                ": 'input[%zu].content[%zu]' is of type '%.40s': only text can be read there",
                i, k, type);
        chat_add(m, *parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
    }
    return MOE_OK;
}

/* The model's message that goes on: calls and thoughts are items beside the text. */
static json_t *assistant(json_t *messages, struct chat_maker *m)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (strcmp(chat_text_of(last, "role"), "assistant") == 0)
        return last;
    chat_add(m, messages, json_pack("{s:s,s:n}", "role", "assistant", "content"));
    return json_array_get(messages, json_array_size(messages) - 1);
}

static void append_call(json_t *messages, const json_t *item, struct chat_maker *m)
{
    json_t *message = assistant(messages, m), *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        chat_put(m, message, "tool_calls", json_array());
        calls = json_object_get(message, "tool_calls");
    }
    chat_add(m, calls,
             json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", chat_text_of(item, "call_id"), "type",
                       "function", "function", "name", chat_text_of(item, "name"), "arguments",
                       chat_text_of(item, "arguments")));
}

static void append_thought(json_t *messages, const json_t *item, struct chat_maker *m)
{
    struct moe_buf text = {0};
    static const char *const lists[] = {"content", "summary"};
    for (int l = 0; l < 2 && !text.size; l++) {
        size_t i;
        const json_t *part;
        json_array_foreach(json_object_get(item, lists[l]), i, part)
            moe_buf_text(&text, chat_text_of(part, "text"));
    }
    m->failed |= text.failed;
    if (text.size && !text.failed)
        chat_add_thought(m, assistant(messages, m),
                         json_stringn((const char *)text.data, text.size));
    moe_buf_release(&text);
}

static int append_message(json_t *messages, const json_t *item, size_t i, struct chat_maker *m)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = chat_text_of(item, "role");
    json_t *parts = NULL;
    int status = MOE_ERR_FORMAT;
    for (size_t k = 0; k < sizeof roles / sizeof roles[0]; k++)
        if (strcmp(role, roles[k]) == 0)
            status = MOE_OK;
    if (status != MOE_OK)
        return moe_fail(m->err, status,
                        REQUEST ": 'input[%zu].role' is none of user, assistant, system, developer",
                        i);
    MOE_STEP(read_content(&parts, json_object_get(item, "content"), i, m));
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (strcmp(role, "assistant") == 0 && json_is_null(json_object_get(last, "content")) &&
        !json_object_get(last, "tool_calls")) {
        chat_put(m, last, "content", json_incref(parts)); /* after its thought */
    } else {
        chat_add(m, messages, json_pack("{s:s,s:O}", "role", role, "content", parts));
    }
out:
    json_decref(parts);
    return status;
}

static int append_result(json_t *messages, const json_t *item, size_t i, struct chat_maker *m)
{
    json_t *parts = NULL;
    int status = read_content(&parts, json_object_get(item, "output"), i, m);
    if (status == MOE_OK)
        chat_add(m, messages,
                 json_pack("{s:s,s:s,s:O}", "role", "tool", "tool_call_id",
                           chat_text_of(item, "call_id"), "content", parts));
    json_decref(parts);
    return status;
}

/* What items must have. */
static const struct {
    const char *type;
    struct chat_member members[4];
} items[] = {
    {"message", {{"role", CHAT_TEXT, true}, {"content", CHAT_TEXT_OR_LIST, true}}},
    {"function_call",
     {{"call_id", CHAT_TEXT, true}, {"name", CHAT_TEXT, true}, {"arguments", CHAT_TEXT, true}}},
    {"function_call_output", {{"call_id", CHAT_TEXT, true}, {"output", CHAT_TEXT_OR_LIST, true}}},
    {"reasoning", {{"summary", CHAT_LIST, false}, {"content", CHAT_LIST, false}}},
    {REFERENCE, {{"id", CHAT_TEXT, true}}},
};

static int append_items(json_t *messages, const json_t *input, struct chat_maker *m)
{
    size_t i;
    const json_t *item;
    if (json_is_string(input))
        chat_add(m, messages, json_pack("{s:s,s:O}", "role", "user", "content", input));
    json_array_foreach(input, i, item)
    {
        static const struct chat_member any[] = {{"type", CHAT_TEXT, false}, {NULL}};
        char at[32];
        snprintf(at, sizeof at, "input[%zu]", i);
        MOE_TRY(chat_check(m, item, at, any));
        /* An id without anything else refers to the item. */
        const char *type =
            json_is_string(json_object_get(item, "type")) ? chat_text_of(item, "type")
            : json_is_string(json_object_get(item, "id")) && !json_object_get(item, "role")
                ? REFERENCE
                : "message";
        for (size_t k = 0; k < sizeof items / sizeof items[0]; k++)
            if (strcmp(type, items[k].type) == 0)
                MOE_TRY(chat_check(m, item, at, items[k].members));
        if (strcmp(type, "message") == 0)
            MOE_TRY(append_message(messages, item, i, m));
        else if (strcmp(type, "function_call") == 0)
            append_call(messages, item, m);
        else if (strcmp(type, "function_call_output") == 0)
            MOE_TRY(append_result(messages, item, i, m));
        else if (strcmp(type, "reasoning") == 0)
            append_thought(messages, item, m);
        else if (strcmp(type, REFERENCE) == 0)
            chat_add(
                m, messages,
                json_pack("{s:s,s:s}", "role", REFERENCE, "content", chat_text_of(item, "id")));
        else
            return moe_fail(m->err, MOE_ERR_FORMAT,
                            REQUEST
                            ": 'input[%zu]' is an item of type '%.40s', which is not read here",
                            i, type);
    }
    return MOE_OK;
}

/* Appends a message behind an item that was referred to; one of the model goes on with it. */
static void join_message(json_t *messages, json_t *message, struct chat_maker *m)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1),
           *content = json_object_get(message, "content"),
           *calls = json_object_get(message, "tool_calls"), *had;
    const bool goes_on = strcmp(chat_text_of(message, "role"), "assistant") == 0 &&
                         strcmp(chat_text_of(last, "role"), "assistant") == 0,
               new_text = content && !json_is_null(content);
    if (!goes_on || (new_text && (!json_is_null(json_object_get(last, "content")) ||
                                  json_object_get(last, "tool_calls")))) {
        chat_add(m, messages, json_incref(message));
        return;
    }
    json_t *thought = json_object_get(message, "reasoning_content");
    if (thought)
        chat_add_thought(m, last, json_incref(thought));
    if (new_text)
        chat_put(m, last, "content", json_incref(content));
    if (calls && (had = json_object_get(last, "tool_calls")))
        m->failed |= json_array_extend(had, calls) != 0;
    else
        chat_take(m, last, "tool_calls", message, "tool_calls");
}

static const json_t *item_of(const json_t *response, const char *id)
{
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(response, "output"), i, item)
    {
        if (strcmp(chat_text_of(item, "id"), id) == 0)
            return item;
    }
    return NULL;
}

/* Items that one response has are looked for in it once; reading responses takes time that others
 * wait for. */
int moe_request_refer(struct moe_request *r,
                      bool (*find)(void *ctx, const char *item, struct moe_buf *response),
                      void *ctx, struct moe_err *err)
{
    enum { MOST_RESPONSES = 64 };
    struct chat_maker maker = {.err = err}, *m = &maker;
    json_t *all = json_array(), *response = NULL, *message;
    uint64_t bytes = 0;
    uint32_t n_read = 0;
    bool referred = false; /* the one before it */
    size_t i;
    int status = MOE_OK;
    json_array_foreach(r->messages, i, message)
    {
        struct moe_buf text = {0};
        const char *id = chat_text_of(message, "content");
        const bool refers = strcmp(chat_text_of(message, "role"), REFERENCE) == 0;
        if (!refers && referred)
            join_message(all, message, m);
        else if (!refers)
            chat_add(m, all, json_incref(message));
        referred = refers;
        if (!refers)
            continue;
        const json_t *item = item_of(response, id);
        if (!item && n_read == MOST_RESPONSES)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              REQUEST ": 'input' refers to items of more than %d responses",
                              MOST_RESPONSES);
        else if (!item && find(ctx, id, &text)) {
            moe_json_free(response);
            response = NULL;
            n_read++;
            status = text.failed
                         ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: an earlier response")
                         : moe_json_parse(&response, "the earlier response", text.data, text.size,
                                          MOE_REQUEST_MEMORY, err);
            item = item_of(response, id);
        }
        moe_buf_release(&text);
        if (status == MOE_OK && !item)
            status =
                moe_fail(err, MOE_ERR_FORMAT,
                         REQUEST ": 'input': there is no item '%.60s' here (any more): send the "
                                 "item itself",
                         id);
        bytes += item ? moe_json_bytes(item) : 0;
        if (status == MOE_OK && bytes > MOE_REQUEST_MEMORY / 8)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              REQUEST ": the items that 'input' refers to take too much memory");
        json_t *one = status == MOE_OK ? json_pack("[O]", item) : NULL;
        if (one)
            status = append_items(all, one, m);
        json_decref(one);
        if (status != MOE_OK)
            break;
    }
    moe_json_free(response);
    chat_join_thoughts(m, all);
    r->chat_bytes += moe_json_bytes(all);
    moe_json_free(r->messages);
    r->messages = all;
    return chat_end(m, status);
}

/* Functions; tools that OpenAI's servers run are not shown to the model. */
static int put_tools(struct moe_request *r, json_t *chat, const json_t *tools, struct chat_maker *m)
{
    static const char *const kept[] = {"name", "description", "parameters", "strict"};
    static const struct chat_member members[] = {
        {"type", CHAT_TEXT, true},         {"name", CHAT_TEXT, false},
        {"description", CHAT_TEXT, false}, {"parameters", CHAT_OBJECT, false},
        {"strict", CHAT_BOOL, false},      {NULL}};
    size_t i;
    const json_t *tool;
    json_t *list = json_array();
    int status = MOE_OK;
    json_array_foreach(tools, i, tool)
    {
        char at[32];
        snprintf(at, sizeof at, "tools[%zu]", i);
        if (status == MOE_OK)
            status = chat_check(m, tool, at, members);
        if (strcmp(chat_text_of(tool, "type"), "function") != 0) {
            moe_request_ignore(r->ignored, "", at);
            continue;
        }
        json_t *function = json_object();
        for (size_t k = 0; k < sizeof kept / sizeof kept[0]; k++)
            chat_take(m, function, kept[k], tool, kept[k]);
        chat_add(m, list, json_pack("{s:s,s:o}", "type", "function", "function", function));
    }
    if (json_array_size(list))
        chat_put(m, chat, "tools", json_incref(list));
    json_decref(list);
    return status;
}

/* Which tools may be called; what is none of these forms the chat's reader refuses. */
static void put_tool_choice(json_t *chat, json_t *choice, struct chat_maker *m)
{
    if (strcmp(chat_text_of(choice, "type"), "function") == 0)
        chat_put(m, chat, "tool_choice",
                 json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name",
                           chat_text_of(choice, "name")));
    else if (strcmp(chat_text_of(choice, "type"), "allowed_tools") == 0)
        chat_put(m, chat, "tool_choice",
                 json_pack("{s:s,s:O}", "type", "allowed_tools", "allowed_tools", choice));
    else if (choice)
        chat_put(m, chat, "tool_choice", json_incref(choice));
}

static int put_format(struct moe_request *r, json_t *chat, const json_t *text, struct chat_maker *m)
{
    static const struct chat_member members[] = {
        {"type", CHAT_TEXT, true}, {"schema", CHAT_OBJECT, false}, {NULL}};
    static const char *const known[] = {"format", NULL};
    const json_t *format = json_object_get(text, "format");
    const char *type = chat_text_of(format, "type");
    chat_ignore_others(r, text, "text.", known);
    if (!format || json_is_null(format))
        return MOE_OK;
    MOE_TRY(chat_check(m, format, "text.format", members));
    if (strcmp(type, "json_schema") == 0)
        chat_put(m, chat, "response_format",
                 json_pack("{s:s,s:{s:s,s:O?}}", "type", type, "json_schema", "name",
                           chat_text_of(format, "name"), "schema",
                           json_object_get(format, "schema")));
    else
        chat_put(m, chat, "response_format", json_pack("{s:s}", "type", type));
    return MOE_OK;
}

/* What would change the answer, and is not done, unless it has the value that asks for nothing. */
static int refuse_what_is_not_done(const json_t *body, struct chat_maker *m)
{
    static const char *const not_done[] = {"background", "conversation", "prompt", "top_logprobs",
                                           "max_tool_calls"};
    for (size_t i = 0; i < sizeof not_done / sizeof not_done[0]; i++) {
        const json_t *value = json_object_get(body, not_done[i]);
        if (value && !json_is_null(value) && !json_is_false(value) &&
            !(json_is_number(value) && json_number_value(value) == 0) &&
            !(json_is_string(value) && !*json_string_value(value)))
            return moe_fail(m->err, MOE_ERR_FORMAT,
                            REQUEST ": '%s' is not supported by this server; leave it out",
                            not_done[i]);
    }
    return MOE_OK;
}

static int read_truncation(struct moe_request *r, const json_t *how, struct chat_maker *m)
{
    const char *text = json_string_value(how);
    r->truncates = text && strcmp(text, "auto") == 0;
    return r->truncates || !how || json_is_null(how) || (text && strcmp(text, "disabled") == 0)
               ? MOE_OK
               : moe_fail(m->err, MOE_ERR_FORMAT,
                          REQUEST ": 'truncation' is neither auto nor disabled");
}

static const char *const keys[] = {"model",
                                   "input",
                                   "instructions",
                                   "stream",
                                   "temperature",
                                   "top_p",
                                   "seed",
                                   "tools",
                                   "tool_choice",
                                   "parallel_tool_calls",
                                   "reasoning",
                                   "text",
                                   "metadata",
                                   "background",
                                   "max_output_tokens",
                                   "conversation",
                                   "prompt",
                                   "top_logprobs",
                                   "truncation",
                                   "previous_response_id",
                                   "max_tool_calls",
                                   "store",
                                   NULL};

static const char *const renamed[][2] = {
    {"max_tokens", "max_output_tokens"},
    {"messages", "input"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"].function.", "]."},
    {"tool_choice.allowed_tools.", "tool_choice."},
    {NULL, NULL},
};

static int responses_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                             struct moe_err *err)
{
    static const char *const same[] = {"model", "stream",   "temperature",         "top_p",
                                       "seed",  "metadata", "parallel_tool_calls", NULL};
    /* ... and what a reply gives back. */
    static const char *const kept[] = {"instructions",
                                       "max_output_tokens",
                                       "metadata",
                                       "parallel_tool_calls",
                                       "previous_response_id",
                                       "reasoning",
                                       "temperature",
                                       "text",
                                       "tool_choice",
                                       "tools",
                                       "top_p",
                                       "store",
                                       "truncation",
                                       NULL};
    static const struct chat_member members[] = {{"input", CHAT_TEXT_OR_LIST, true},
                                                 {"instructions", CHAT_TEXT, false},
                                                 {"tools", CHAT_LIST, false},
                                                 {"reasoning", CHAT_OBJECT, false},
                                                 {"text", CHAT_OBJECT, false},
                                                 {"metadata", CHAT_OBJECT, false},
                                                 {"previous_response_id", CHAT_TEXT, false},
                                                 {NULL}};
    static const char *const of_reasoning[] = {"effort", NULL};
    const json_t *before = json_object_get(body, "previous_response_id");
    json_t *chat = *out = json_object(), *messages = json_array();
    struct chat_maker maker = {.err = err}, *m = &maker;
    int status = chat_check(m, body, "", members);
    if (status == MOE_OK)
        status = refuse_what_is_not_done(body, m);
    for (const char *const *key = same; *key; key++)
        chat_take(m, chat, *key, body, *key);
    chat_take(m, chat, "max_tokens", body, "max_output_tokens");
    chat_take(m, chat, "reasoning_effort", json_object_get(body, "reasoning"), "effort");
    chat_ignore_others(r, json_object_get(body, "reasoning"), "reasoning.", of_reasoning);
    chat_keep(r, m, body, kept);
    if (status == MOE_OK && json_is_string(before)) {
        r->before = moe_strndup(json_string_value(before), json_string_length(before), err);
        status = r->before ? MOE_OK : MOE_ERR_MEMORY;
    }
    r->keeps = !json_is_false(json_object_get(body, "store"));
    if (status == MOE_OK)
        status = read_truncation(r, json_object_get(body, "truncation"), m);
    r->n_instructions = *chat_text_of(body, "instructions") != 0;
    if (r->n_instructions)
        chat_add(m, messages,
                 json_pack("{s:s,s:s}", "role", "system", "content",
                           chat_text_of(body, "instructions")));
    if (status == MOE_OK)
        status = append_items(messages, json_object_get(body, "input"), m);
    chat_join_thoughts(m, messages);
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i, message) r->refers |=
        strcmp(chat_text_of(message, "role"), REFERENCE) == 0;
    chat_put(m, chat, "messages", json_incref(messages));
    if (status == MOE_OK)
        status = put_tools(r, chat, json_object_get(body, "tools"), m);
    put_tool_choice(chat, json_object_get(body, "tool_choice"), m);
    if (status == MOE_OK)
        status = put_format(r, chat, json_object_get(body, "text"), m);
    json_decref(messages);
    return chat_end(m, status);
}

/* ---- Items of a reply ---- */

static void put_text_part(struct moe_emit *e, const char *key, int kind, const struct moe_buf *text)
{
    moe_emit_open_map(e, key);
    moe_emit_text(e, "type", kind == MOE_PART_THOUGHT ? "reasoning_text" : "output_text");
    moe_emit_bytes(e, "text", text->data, text->size);
    if (kind == MOE_PART_CONTENT) {
        moe_emit_open_line_list(e, "annotations");
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* Whether the answer, and with it its last item, was cut off: known at its end. */
static bool was_cut(const struct choice *c)
{
    return c->why == MOE_STOP_LENGTH || c->why == MOE_STOP_CONTEXT;
}

/* The open item; ended: with all of its text. */
static void put_item(const struct moe_reply *r, struct moe_emit *e, const char *key, bool ended)
{
    const struct choice *c = &r->choices[0];
    moe_emit_open_map(e, key);
    moe_emit_text(e, "id", r->item_id);
    if (r->open == MOE_PART_CALL) {
        const struct call *call = &c->calls[c->n_calls - 1];
        moe_emit_text(e, "type", "function_call");
        moe_emit_text(e, "call_id", call->id);
        moe_emit_bytes(e, "name", call->name.data, call->name.size);
        moe_emit_bytes(e, "arguments", r->item.data, ended ? r->item.size : 0);
    } else {
        moe_emit_text(e, "type", r->open == MOE_PART_THOUGHT ? "reasoning" : "message");
        if (r->open == MOE_PART_CONTENT)
            moe_emit_text(e, "role", "assistant");
        else {
            moe_emit_open_line_list(e, "summary");
            moe_emit_close(e);
        }
        moe_emit_open_list(e, "content");
        if (ended)
            put_text_part(e, NULL, r->open, &r->item);
        moe_emit_close(e);
    }
    const bool cut = r->open == MOE_PART_CALL ? c->calls[c->n_calls - 1].fails : was_cut(c);
    moe_emit_text(e, "status", !ended ? "in_progress" : cut ? "incomplete" : "completed");
    moe_emit_close(e);
}

static void begin_event(struct moe_reply *r, struct moe_emit *e, struct moe_buf *out,
                        const char *name)
{
    reply_begin_event(e, out, name);
    moe_emit_u64(e, "sequence_number", r->n_events++);
}

/* Begins an event of the open item. */
static void begin_item_event(struct moe_reply *r, struct moe_emit *e, struct moe_buf *out,
                             const char *name)
{
    begin_event(r, e, out, name);
    moe_emit_text(e, "item_id", r->item_id);
    moe_emit_u64(e, "output_index", r->n_items);
    if (r->open != MOE_PART_CALL)
        moe_emit_u64(e, "content_index", 0);
}

/* ---- Whole replies ---- */

/* Gives back what was asked, and what is meant where nothing was. */
static void put_asked(const struct moe_reply *r, struct moe_emit *e)
{
    static const struct {
        const char *key, *unasked;
    } members[] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"previous_response_id", "null"},
        {"reasoning", "null"},
        {"temperature", "null"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_p", "null"},
        {"store", "true"},
        {"truncation", "\"disabled\""},
    };
    const char *text_asked = r->asked ? r->asked : "{}";
    json_t *asked;
    moe_json_parse(&asked, REQUEST, text_asked, strlen(text_asked), MOE_REQUEST_MEMORY, NULL);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const json_t *value = json_object_get(asked, members[i].key);
        char *text = value ? moe_json_text(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        const char *put = text ? text : members[i].unasked;
        moe_emit_json(e, members[i].key, put, strlen(put));
        free(text);
    }
    json_decref(asked);
    if (r->n_left_out) {
        char text[128];
        snprintf(text, sizeof text,
                 "the conversation and its answer do not fit the context: its %u oldest messages "
                 "are left out",
                 r->n_left_out);
        moe_emit_open_list(e, "warnings");
        moe_emit_text(e, NULL, text);
        moe_emit_close(e);
    }
    moe_emit_bool(e, "background", false);
}

static void put_response(struct moe_reply *r, struct moe_emit *e, const char *status)
{
    const struct choice *c = &r->choices[0];
    bool ended = strcmp(status, "in_progress") != 0;
    moe_emit_text(e, "id", r->id);
    moe_emit_text(e, "object", "response");
    moe_emit_i64(e, "created_at", r->created);
    moe_emit_text(e, "status", status);
    moe_emit_text(e, "model", r->model);
    moe_emit_open_list(e, "output");
    if (ended && r->items.size)
        moe_emit_json(e, NULL, r->items.data, r->items.size);
    moe_emit_close(e);
    if (r->failed) {
        moe_emit_open_map(e, "error");
        moe_emit_text(e, "code", "server_error");
        moe_emit_text(e, "message", r->why.text);
        moe_emit_close(e);
    } else {
        moe_emit_null(e, "error");
    }
    if (strcmp(status, "incomplete") == 0) {
        moe_emit_open_map(e, "incomplete_details");
        moe_emit_text(e, "reason",
                      c->why == MOE_STOP_LENGTH ? "max_output_tokens" : "context_length");
        moe_emit_close(e);
    } else {
        moe_emit_null(e, "incomplete_details");
    }
    put_asked(r, e);
    if (!ended || r->failed) {
        moe_emit_null(e, "usage");
        return;
    }
    moe_emit_open_map(e, "usage");
    moe_emit_u64(e, "input_tokens", r->n_prompt);
    moe_emit_open_map(e, "input_tokens_details");
    moe_emit_u64(e, "cached_tokens", r->n_cached);
    moe_emit_close(e);
    moe_emit_u64(e, "output_tokens", r->n_tokens);
    moe_emit_open_map(e, "output_tokens_details");
    moe_emit_u64(e, "reasoning_tokens", 0); /* not counted apart */
    moe_emit_close(e);
    moe_emit_u64(e, "total_tokens", r->n_prompt + r->n_tokens);
    moe_emit_close(e);
}

/* ---- Streams, and the items that both have ---- */

static void write_response_event(struct moe_reply *r, struct moe_buf *out, const char *name,
                                 const char *status)
{
    struct moe_emit e;
    begin_event(r, &e, out, name);
    moe_emit_open_map(&e, "response");
    put_response(r, &e, status);
    moe_emit_close(&e);
    reply_end_event(&e, out);
}

static void begin_stream(struct moe_reply *r, struct moe_buf *out)
{
    if (r->begun || !r->stream)
        return;
    r->begun = true;
    write_response_event(r, out, "response.created", "in_progress");
    write_response_event(r, out, "response.in_progress", "in_progress");
}

/* Names of a kind's events. */
static const struct {
    const char *delta, *done, *text;
} events[] = {
    [MOE_PART_THOUGHT] = {"response.reasoning_text.delta", "response.reasoning_text.done", "text"},
    [MOE_PART_CONTENT] = {"response.output_text.delta", "response.output_text.done", "text"},
    [MOE_PART_CALL] = {"response.function_call_arguments.delta",
                       "response.function_call_arguments.done", "arguments"},
};

static void write_part_event(struct moe_reply *r, struct moe_buf *out, const char *name)
{
    struct moe_emit e;
    if (r->open != MOE_PART_CONTENT)
        return;
    begin_item_event(r, &e, out, name);
    put_text_part(&e, "part", r->open, &r->item);
    reply_end_event(&e, out);
}

static void close_item(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    if (r->open < 0)
        return;
    if (r->stream) {
        begin_item_event(r, &e, out, events[r->open].done);
        moe_emit_bytes(&e, events[r->open].text, r->item.data, r->item.size);
        reply_end_event(&e, out);
        write_part_event(r, out, "response.content_part.done");
        begin_event(r, &e, out, "response.output_item.done");
        moe_emit_u64(&e, "output_index", r->n_items);
        put_item(r, &e, "item", true);
        reply_end_event(&e, out);
    }
    struct moe_buf list = {0};
    reply_begin_item(&e, &list);
    put_item(r, &e, NULL, true);
    reply_end_item(r, &e, &list);
    r->n_items++;
    r->open = -1;
}

static void open_item(struct moe_reply *r, int kind, struct moe_buf *out)
{
    struct moe_emit e;
    if (r->open == kind && kind != MOE_PART_CALL)
        return;
    close_item(r, out);
    r->open = kind;
    moe_buf_clear(&r->item);
    reply_draw_id(r->item_id, kind == MOE_PART_CALL      ? "fc_"
                              : kind == MOE_PART_CONTENT ? "msg_"
                                                         : "rs_");
    if (!r->stream)
        return;
    begin_event(r, &e, out, "response.output_item.added");
    moe_emit_u64(&e, "output_index", r->n_items);
    put_item(r, &e, "item", false);
    reply_end_event(&e, out);
    write_part_event(r, out, "response.content_part.added");
}

static void write_part(struct moe_reply *r, const struct moe_answer_part *part, struct moe_buf *out)
{
    struct choice *c = &r->choices[0];
    const bool fails = part->kind == MOE_PART_CALL_FAILS;
    int kind = part->kind == MOE_PART_ARGUMENTS ? MOE_PART_CALL
               : fails                          ? MOE_PART_CONTENT
                                                : (int)part->kind;
    begin_stream(r, out);
    if (part->kind == MOE_PART_CALL_ENDS || (fails && r->stream)) {
        close_item(r, out);
        return;
    }
    if (fails) /* it is text */
        r->open = -1;
    if (fails && !part->n)
        return;
    if (part->kind != MOE_PART_ARGUMENTS)
        open_item(r, kind, out);
    if (part->kind != MOE_PART_CALL) {
        moe_buf_append(&r->item, part->bytes, part->n);
        if (r->stream) {
            struct moe_emit e;
            begin_item_event(r, &e, out, events[r->open].delta);
            moe_emit_bytes(&e, "delta", part->bytes, part->n);
            reply_end_event(&e, out);
        }
    }
    moe_buf_clear(&c->text);
    moe_buf_clear(&c->thought);
    if (c->n_calls)
        moe_buf_clear(&c->calls[c->n_calls - 1].arguments);
}

static void write_end(struct moe_reply *r, struct moe_buf *out)
{
    const struct choice *c = &r->choices[0];
    bool cut = was_cut(c);
    const char *status = cut ? "incomplete" : "completed";
    struct moe_emit e;
    begin_stream(r, out);
    if (r->n_items == 0 && r->open < 0)
        open_item(r, MOE_PART_CONTENT, out);
    close_item(r, out);
    if (r->stream) {
        write_response_event(r, out, cut ? "response.incomplete" : "response.completed", status);
        return;
    }
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_response(r, &e, status);
    moe_emit_end_item(&e, NULL);
}

static void write_error(struct moe_buf *out, unsigned http_status, const struct moe_err *why)
{
    moe_reply_error(out, NULL, http_status, why);
}

static void fail_stream(struct moe_reply *r, struct moe_buf *out)
{
    begin_stream(r, out);
    write_response_event(r, out, "response.failed", "failed");
}

/* ---- Kept responses ---- */

static bool keep_response(struct moe_reply *r, const char *conversation, struct moe_buf *response,
                          struct moe_buf *out)
{
    const struct choice *c = &r->choices[0];
    struct moe_err err;
    struct chat_maker maker = {.err = &err};
    struct moe_emit e;
    struct moe_buf list = {0};
    json_t *messages, *said = NULL;
    moe_json_parse(&messages, REQUEST, conversation, strlen(conversation), MOE_REQUEST_MEMORY,
                   NULL);
    bool cut = c->why == MOE_STOP_LENGTH || c->why == MOE_STOP_CONTEXT;
    moe_emit_begin_json(&e, response, MOE_EMIT_COMPACT);
    put_response(r, &e, cut ? "incomplete" : "completed");
    moe_emit_end_item(&e, NULL);
    moe_buf_u8(&list, '[');
    moe_buf_append(&list, r->items.data, r->items.size);
    moe_buf_u8(&list, ']');
    if (!list.failed)
        moe_json_parse(&said, REQUEST, list.data, list.size, MOE_REQUEST_MEMORY, NULL);
    bool whole = messages && said && append_items(messages, said, &maker) == MOE_OK;
    chat_join_thoughts(&maker, messages);
    whole &= !maker.failed;
    char *text = whole ? moe_json_text(messages, JSON_COMPACT) : NULL;
    if (text)
        moe_buf_text(out, text);
    free(text);
    json_decref(said);
    json_decref(messages);
    moe_buf_release(&list);
    return text && !out->failed && !response->failed;
}

/* ---- What a kept response answers ---- */

/* The texts of a message, each as a part of this type. */
static json_t *parts_of(const json_t *message, const char *type, struct chat_maker *m)
{
    json_t *parts = json_array();
    const json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    if (json_is_string(content))
        chat_add(m, parts, json_pack("{s:s,s:O}", "type", type, "text", content));
    json_array_foreach(content, i, part) chat_add(
        m, parts, json_pack("{s:s,s:O}", "type", type, "text", json_object_get(part, "text")));
    return parts;
}

/* Appends an item, with an id of its place. */
static void append_item(json_t *list, json_t *item, const char *prefix, const char *response,
                        struct chat_maker *m)
{
    char id[80];
    const char *own = strchr(response, '_');
    snprintf(id, sizeof id, "%s_%.48s_%zu", prefix, own ? own + 1 : "", json_array_size(list));
    chat_put(m, item, "id", json_string(id));
    chat_put(m, item, "status", json_string("completed"));
    chat_add(m, list, item);
}

static void append_items_of(json_t *list, const json_t *message, const char *id,
                            struct chat_maker *m)
{
    const char *role = chat_text_of(message, "role");
    const bool own = strcmp(role, "assistant") == 0;
    const json_t *thought = json_object_get(message, "reasoning_content"), *call;
    json_t *parts = parts_of(message, own ? "output_text" : "input_text", m);
    size_t i;
    if (json_is_string(thought))
        append_item(list,
                    json_pack("{s:s,s:[],s:[{s:s,s:O}]}", "type", "reasoning", "summary", "content",
                              "type", "reasoning_text", "text", thought),
                    "rs", id, m);
    if (strcmp(role, "tool") == 0)
        append_item(list,
                    json_pack("{s:s,s:s,s:O}", "type", "function_call_output", "call_id",
                              chat_text_of(message, "tool_call_id"), "output", parts),
                    "fco", id, m);
    else if (!own || json_array_size(parts))
        append_item(list,
                    json_pack("{s:s,s:s,s:O}", "type", "message", "role", role, "content", parts),
                    "msg", id, m);
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        const json_t *function = json_object_get(call, "function");
        append_item(list,
                    json_pack("{s:s,s:s,s:s,s:s}", "type", "function_call", "call_id",
                              chat_text_of(call, "id"), "name", chat_text_of(function, "name"),
                              "arguments", chat_text_of(function, "arguments")),
                    "fc", id, m);
    }
    json_decref(parts);
}

/* The place of an item's id in the list, or its length. */
static size_t place_of(const json_t *list, const char *id)
{
    size_t i = 0;
    while (i < json_array_size(list) &&
           strcmp(chat_text_of(json_array_get(list, i), "id"), id) != 0)
        i++;
    return i;
}

int moe_reply_items(struct moe_buf *out, const struct moe_buf *conversation, uint32_t n_asked,
                    const char *id, bool ascending, const char *after, uint64_t limit,
                    struct moe_err *err)
{
    struct chat_maker maker = {.err = err}, *m = &maker;
    json_t *messages = NULL;
    if (!conversation->failed)
        moe_json_parse(&messages, REQUEST, conversation->data, conversation->size,
                       MOE_REQUEST_MEMORY, NULL);
    json_t *list = json_array(), *page = json_array();
    for (uint32_t i = 0; i < n_asked; i++)
        append_items_of(list, json_array_get(messages, i), id, m);
    const size_t n = json_array_size(list), from = place_of(list, after);
    size_t at = !*after ? 0 : ascending ? from + 1 : n - from; /* of the order wanted */
    for (; at < n && json_array_size(page) < limit; at++)
        chat_add(m, page, json_incref(json_array_get(list, ascending ? at : n - 1 - at)));
    const size_t last = json_array_size(page);
    json_t *reply = json_pack("{s:s,s:O,s:s?,s:s?,s:b}", "object", "list", "data", page, "first_id",
                              last ? chat_text_of(json_array_get(page, 0), "id") : NULL, "last_id",
                              last ? chat_text_of(json_array_get(page, last - 1), "id") : NULL,
                              "has_more", at < n);
    char *text = reply ? moe_json_text(reply, JSON_COMPACT) : NULL;
    m->failed |= !messages || !text;
    int status = chat_end(m, MOE_OK);
    if (status == MOE_OK && *after && from == n)
        status = moe_fail(err, MOE_ERR_USAGE, "'after': the response has no item '%.100s'", after);
    if (status == MOE_OK)
        moe_buf_printf(out, "%s\n", text);
    free(text);
    json_decref(reply);
    json_decref(page);
    json_decref(list);
    json_decref(messages);
    return status;
}

const struct moe_reply_api reply_responses = {
    .apart = true,
    .to_chat = responses_to_chat,
    .keys = keys,
    .renamed = renamed,
    .id = "resp_",
    .call_id = "call_",
    .part = write_part,
    .end = write_end,
    .error = write_error,
    .fail = fail_stream,
    .keep = keep_response,
};
