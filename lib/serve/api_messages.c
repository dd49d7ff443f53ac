/* Anthropic's Messages API (/v1/messages): its requests as chats, its replies and streams. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fmt/emit.h"
#include "fmt/json.h"
#include "serve/reply_internal.h"
#include "serve/server.h"

#define REQUEST "the request"
/* What thoughts have as a signature: some clients drop thoughts that have none. */
#define SIGNATURE "unsigned"

/* ---- Requests ---- */

/* Appends {"type": "text", "text"} of a text, or of each block of text, or of a tool's name, by
 * which agents say what they found; other blocks are refused. */
static int append_texts(json_t *parts, const json_t *content, const char *where,
                        struct chat_maker *m)
{
    size_t i;
    const json_t *block;
    if (json_is_string(content))
        chat_add(m, parts, json_pack("{s:s,s:O}", "type", "text", "text", content));
    else if (content && !json_is_null(content) && !json_is_array(content))
        return moe_fail(m->err, MOE_ERR_FORMAT,
                        REQUEST ": '%s' is neither a text nor a list of blocks", where);
    json_array_foreach(content, i, block)
    {
        const char *type = chat_text_of(block, "type");
        const bool names = strcmp(type, "tool_reference") == 0;
        const json_t *text = json_object_get(block, names ? "tool_name" : "text");
        if ((!names && strcmp(type, "text") != 0) || !json_is_string(text))
            return moe_fail(m->err, MOE_ERR_FORMAT,
                            REQUEST
                            ": '%s[%zu]' is a block of type '%.40s': only text can be read there",
                            where, i, type);
        chat_add(m, parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
    }
    return MOE_OK;
}

/* Appends the text blocks collected so far as a message of this role. */
static void flush_texts(json_t *messages, const char *role, json_t *parts, struct chat_maker *m)
{
    if (json_array_size(parts))
        chat_add(m, messages, json_pack("{s:s,s:O}", "role", role, "content", parts));
}

/* System texts: those of the request, and what agents say between turns. */
static int append_system(json_t *messages, const json_t *content, const char *where,
                         struct chat_maker *m)
{
    json_t *parts = json_array();
    int status = append_texts(parts, content, where, m);
    if (status == MOE_OK)
        flush_texts(messages, "system", parts, m);
    json_decref(parts);
    return status;
}

static const struct chat_member result_members[] = {{"tool_use_id", CHAT_TEXT, true}, {NULL}};
static const struct chat_member use_members[] = {
    {"id", CHAT_TEXT, true}, {"name", CHAT_TEXT, true}, {"input", CHAT_OBJECT, false}, {NULL}};
static const struct chat_member thinking_members[] = {{"thinking", CHAT_TEXT, true}, {NULL}};

/* A user's message: results of tools are messages of their own, in the blocks' order. */
static int append_user(json_t *messages, const json_t *content, const char *where,
                       struct chat_maker *m)
{
    size_t i;
    const json_t *block;
    json_t *parts = json_array();
    int status = MOE_OK;
    if (!json_is_array(content))
        status = append_texts(parts, content, where, m);
    json_array_foreach(content, i, block)
    {
        char at[96];
        snprintf(at, sizeof at, "%.64s[%zu]", where, i);
        if (status == MOE_OK && strcmp(chat_text_of(block, "type"), "tool_result") == 0) {
            json_t *result = json_array();
            status = chat_check(m, block, at, result_members);
            strcat(at, ".content");
            flush_texts(messages, "user", parts, m);
            json_decref(parts);
            parts = json_array();
            if (status == MOE_OK)
                status = append_texts(result, json_object_get(block, "content"), at, m);
            chat_add(m, messages,
                     json_pack("{s:s,s:s,s:O}", "role", "tool", "tool_call_id",
                               chat_text_of(block, "tool_use_id"), "content", result));
            json_decref(result);
        } else if (status == MOE_OK) {
            json_t *one = json_pack("[O]", block);
            status = append_texts(parts, one, where, m);
            json_decref(one);
        }
    }
    if (status == MOE_OK)
        flush_texts(messages, "user", parts, m);
    json_decref(parts);
    return status;
}

/* A message of the model: thoughts, texts, calls. */
static int append_assistant(json_t *messages, const json_t *content, const char *where,
                            struct chat_maker *m)
{
    size_t i;
    const json_t *block;
    json_t *parts = json_array(), *calls = json_array();
    json_t *message = json_pack("{s:s,s:O}", "role", "assistant", "content", parts);
    int status = MOE_OK;
    if (!json_is_array(content))
        status = append_texts(parts, content, where, m);
    json_array_foreach(content, i, block)
    {
        const char *type = chat_text_of(block, "type");
        const bool uses = strcmp(type, "tool_use") == 0, thinks = strcmp(type, "thinking") == 0;
        char at[96];
        snprintf(at, sizeof at, "%.64s[%zu]", where, i);
        if (status == MOE_OK && (uses || thinks))
            status = chat_check(m, block, at, uses ? use_members : thinking_members);
        if (uses) {
            json_t *input = json_object_get(block, "input");
            chat_add(m, calls,
                     json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", chat_text_of(block, "id"), "type",
                               "function", "function", "name", chat_text_of(block, "name"),
                               "arguments", input ? json_incref(input) : json_object()));
        } else if (thinks) {
            chat_add_thought(m, message, json_incref(json_object_get(block, "thinking")));
        } else if (strcmp(type, "redacted_thinking") != 0 && status == MOE_OK) {
            json_t *one = json_pack("[O]", block);
            status = append_texts(parts, one, where, m);
            json_decref(one);
        }
    }
    if (json_array_size(calls))
        chat_put(m, message, "tool_calls", json_incref(calls));
    if (json_array_size(calls) && !json_array_size(parts))
        chat_put(m, message, "content", json_null());
    chat_add(m, messages, message);
    json_decref(parts);
    json_decref(calls);
    return status;
}

static int append_messages(json_t *messages, const json_t *list, struct chat_maker *m)
{
    size_t i;
    const json_t *message;
    if (!json_array_size(list))
        return moe_fail(m->err, MOE_ERR_FORMAT, REQUEST ": 'messages' is empty");
    json_array_foreach(list, i, message)
    {
        const char *role = chat_text_of(message, "role");
        const json_t *content = json_object_get(message, "content");
        char where[48];
        snprintf(where, sizeof where, "messages[%zu].content", i);
        const bool none = !content || json_is_null(content),
                   empty = json_is_array(content) && !json_array_size(content);
        if ((none || empty) && strcmp(role, "user") == 0)
            return moe_fail(m->err, MOE_ERR_FORMAT, REQUEST ": '%s' is %s", where,
                            none ? "missing" : "empty");
        if (strcmp(role, "user") == 0)
            MOE_TRY(append_user(messages, content, where, m));
        else if (strcmp(role, "assistant") == 0)
            MOE_TRY(append_assistant(messages, content, where, m));
        else if (strcmp(role, "system") == 0)
            MOE_TRY(append_system(messages, content, where, m));
        else
            return moe_fail(m->err, MOE_ERR_FORMAT,
                            REQUEST ": 'messages[%zu].role' is none of user, assistant, system", i);
    }
    return MOE_OK;
}

/* Tools of the client; those that Anthropic's servers run are refused. */
static int put_tools(json_t *chat, const json_t *tools, struct chat_maker *m)
{
    static const struct chat_member members[] = {
        {"type", CHAT_TEXT, false},        {"name", CHAT_TEXT, true},
        {"description", CHAT_TEXT, false}, {"input_schema", CHAT_OBJECT, false},
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
        const char *type = chat_text_of(tool, "type");
        json_t *schema = json_object_get(tool, "input_schema"), *function;
        if (status == MOE_OK && *type && strcmp(type, "custom") != 0)
            status = moe_fail(
                m->err, MOE_ERR_FORMAT,
                REQUEST ": 'tools[%zu]' is of type '%.40s', which no model here can run", i, type);
        function = json_pack("{s:s,s:s,s:o}", "name", chat_text_of(tool, "name"), "description",
                             chat_text_of(tool, "description"), "parameters",
                             schema ? json_incref(schema) : json_object());
        if (json_is_true(json_object_get(tool, "strict")))
            chat_put(m, function, "strict", json_true());
        chat_add(m, list, json_pack("{s:s,s:o}", "type", "function", "function", function));
    }
    if (json_array_size(list))
        chat_put(m, chat, "tools", json_incref(list));
    json_decref(list);
    return status;
}

static int put_tool_choice(json_t *chat, const json_t *choice, struct chat_maker *m)
{
    static const struct chat_member members[] = {{"type", CHAT_TEXT, true},
                                                 {"name", CHAT_TEXT, false},
                                                 {"disable_parallel_tool_use", CHAT_BOOL, false},
                                                 {NULL}};
    const char *type = chat_text_of(choice, "type");
    if (!choice || json_is_null(choice))
        return MOE_OK;
    MOE_TRY(chat_check(m, choice, "tool_choice", members));
    if (strcmp(type, "tool") == 0)
        chat_put(m, chat, "tool_choice",
                 json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name",
                           chat_text_of(choice, "name")));
    else if (strcmp(type, "any") == 0)
        chat_put(m, chat, "tool_choice", json_string("required"));
    else if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)
        chat_put(m, chat, "tool_choice", json_string(type));
    else
        return moe_fail(m->err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice.type' is '%.40s', expected auto, any, tool or none",
                        type);
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        chat_put(m, chat, "parallel_tool_calls", json_false());
    return MOE_OK;
}

/* What the answer's text must be: {"format": {"type": "json_schema", "schema"}}. */
static int put_output(json_t *chat, const json_t *body, struct chat_maker *m)
{
    static const struct chat_member members[] = {
        {"type", CHAT_TEXT, true}, {"schema", CHAT_OBJECT, true}, {NULL}};
    const json_t *config = json_object_get(body, "output_config");
    const json_t *format = json_object_get(config, "format");
    if (json_object_get(body, "output_format"))
        format = json_object_get(body, "output_format");
    chat_take(m, chat, "reasoning_effort", config, "effort");
    if (!format || json_is_null(format))
        return MOE_OK;
    MOE_TRY(chat_check(m, format, "output_config.format", members));
    if (strcmp(chat_text_of(format, "type"), "json_schema") != 0)
        return moe_fail(m->err, MOE_ERR_FORMAT,
                        REQUEST ": 'output_config.format.type' is not json_schema");
    chat_put(
        m, chat, "response_format",
        json_pack("{s:s,s:O}", "type", "json_schema", "schema", json_object_get(format, "schema")));
    return MOE_OK;
}

static int put_thinking(struct moe_request *r, json_t *chat, const json_t *thinking,
                        struct chat_maker *m)
{
    static const struct chat_member members[] = {{"type", CHAT_TEXT, true}, {NULL}};
    static const char *const known[] = {"type", "budget_tokens", NULL};
    if (!thinking || json_is_null(thinking))
        return MOE_OK;
    MOE_TRY(chat_check(m, thinking, "thinking", members));
    chat_ignore_others(r, thinking, "thinking.", known);
    chat_put(m, chat, "thinking", json_incref((json_t *)thinking));
    return MOE_OK;
}

static const char *const keys[] = {
    "model",       "max_tokens",    "messages",      "system",      "stop_sequences", "stream",
    "temperature", "top_p",         "top_k",         "seed",        "tools",          "tool_choice",
    "thinking",    "output_config", "output_format", "mcp_servers", "container",      NULL};

static const char *const renamed[][2] = {
    {"stop", "stop_sequences"},
    {"].function.parameters", "].input_schema"},
    {"].function.", "]."},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {NULL, NULL},
};

static int messages_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                            struct moe_err *err)
{
    static const char *const same[] = {"model", "max_tokens", "stream", "temperature",
                                       "top_p", "top_k",      "seed",   NULL};
    static const struct chat_member members[] = {
        {"system", CHAT_TEXT_OR_LIST, false},  {"messages", CHAT_LIST, true},
        {"stop_sequences", CHAT_LIST, false},  {"tools", CHAT_LIST, false},
        {"tool_choice", CHAT_OBJECT, false},   {"thinking", CHAT_OBJECT, false},
        {"output_config", CHAT_OBJECT, false}, {NULL}};
    static const char *const not_done[] = {"mcp_servers", "container"};
    json_t *chat = *out = json_object(), *messages = json_array();
    struct chat_maker maker = {.err = err}, *m = &maker;
    int status = chat_check(m, body, "", members);
    for (const char *const *key = same; *key; key++)
        chat_take(m, chat, *key, body, *key);
    chat_take(m, chat, "stop", body, "stop_sequences");
    for (size_t i = 0; i < sizeof not_done / sizeof not_done[0] && status == MOE_OK; i++) {
        const json_t *value = json_object_get(body, not_done[i]);
        if (value && !json_is_null(value) && !(json_is_array(value) && !json_array_size(value)))
            status = moe_fail(err, MOE_ERR_FORMAT,
                              REQUEST ": '%s' is not supported by this server; leave it out",
                              not_done[i]);
    }
    if (status == MOE_OK && !json_object_get(chat, "max_tokens"))
        status = moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'max_tokens' is missing");
    if (status == MOE_OK)
        status = append_system(messages, json_object_get(body, "system"), "system", m);
    if (status == MOE_OK)
        status = append_messages(messages, json_object_get(body, "messages"), m);
    chat_join_thoughts(m, messages);
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (strcmp(chat_text_of(last, "role"), "assistant") == 0 &&
        !json_object_get(last, "tool_calls"))
        chat_put(m, chat, "continue_final_message", json_true());
    chat_put(m, chat, "messages", json_incref(messages));
    if (status == MOE_OK)
        status = put_tools(chat, json_object_get(body, "tools"), m);
    if (status == MOE_OK)
        status = put_tool_choice(chat, json_object_get(body, "tool_choice"), m);
    if (status == MOE_OK)
        status = put_output(chat, body, m);
    if (status == MOE_OK)
        status = put_thinking(r, chat, json_object_get(body, "thinking"), m);
    json_decref(messages);
    return chat_end(m, status);
}

/* ---- Replies ---- */

static const char *stop_reason(const struct moe_reply *r)
{
    const struct choice *c = &r->choices[0];
    return c->why == MOE_STOP_LENGTH || c->why == MOE_STOP_CONTEXT ? "max_tokens"
           : c->n_whole                                            ? "tool_use"
           : c->result->stop_text                                  ? "stop_sequence"
                                                                   : "end_turn";
}

/* Until the end nobody knows what was cached. */
static void put_usage(const struct moe_reply *r, struct moe_emit *e)
{
    moe_emit_open_map(e, "usage");
    moe_emit_u64(e, "input_tokens", (r->n_prompt ? r->n_prompt : r->n_begun) - r->n_cached);
    moe_emit_u64(e, "cache_creation_input_tokens", 0);
    moe_emit_u64(e, "cache_read_input_tokens", r->n_cached);
    moe_emit_u64(e, "output_tokens", r->n_tokens);
    moe_emit_close(e);
}

static void put_stop(const struct moe_reply *r, struct moe_emit *e, bool ended)
{
    if (ended)
        moe_emit_text(e, "stop_reason", stop_reason(r));
    else
        moe_emit_null(e, "stop_reason");
    if (ended && r->choices[0].result->stop_text)
        moe_emit_text(e, "stop_sequence", r->choices[0].result->stop_text);
    else
        moe_emit_null(e, "stop_sequence");
}

static void put_head(const struct moe_reply *r, struct moe_emit *e)
{
    moe_emit_text(e, "id", r->id);
    moe_emit_text(e, "type", "message");
    moe_emit_text(e, "role", "assistant");
    moe_emit_text(e, "model", r->model);
}

static void put_text_block(struct moe_emit *e, const char *key, const char *type,
                           const uint8_t *text, uint64_t n)
{
    moe_emit_open_map(e, key);
    moe_emit_text(e, "type", type);
    moe_emit_bytes(e, type, text, n);
    if (strcmp(type, "thinking") == 0)
        moe_emit_text(e, "signature", text ? SIGNATURE : "");
    moe_emit_close(e);
}

static void put_call_block(struct moe_emit *e, const char *key, const struct call *call,
                           const struct moe_buf *input)
{
    moe_emit_open_map(e, key);
    moe_emit_text(e, "type", "tool_use");
    moe_emit_text(e, "id", call->id);
    moe_emit_bytes(e, "name", call->name.data, call->name.size);
    moe_emit_json(e, "input", input && input->size ? (const char *)input->data : "{}",
                  input && input->size ? input->size : 2);
    moe_emit_close(e);
}

/* Keeps the open text, and then a call (NULL: none), as blocks. */
static void keep_blocks(struct moe_reply *r, const struct call *call)
{
    struct moe_buf list = {0};
    struct moe_emit e;
    if (r->open >= 0) {
        reply_begin_item(&e, &list);
        put_text_block(&e, NULL, r->open == MOE_PART_THOUGHT ? "thinking" : "text", r->item.data,
                       r->item.size);
        reply_end_item(r, &e, &list);
    }
    moe_buf_clear(&r->item);
    r->open = -1;
    if (!call)
        return;
    reply_begin_item(&e, &list);
    put_call_block(&e, NULL, call, &call->arguments);
    reply_end_item(r, &e, &list);
}

/* Keeps a part for the whole reply; a call that fails is text. */
static void keep_part(struct moe_reply *r, const struct moe_answer_part *part)
{
    const int kind = part->kind == MOE_PART_CALL_FAILS ? MOE_PART_CONTENT : (int)part->kind;
    struct choice *c = &r->choices[0];
    if (kind == MOE_PART_CALL_ENDS)
        keep_blocks(r, c->n_calls ? &c->calls[c->n_calls - 1] : NULL);
    if ((kind != MOE_PART_THOUGHT && kind != MOE_PART_CONTENT) || !part->n)
        return;
    if (r->open != kind || part->kind == MOE_PART_CALL_FAILS)
        keep_blocks(r, NULL);
    r->open = kind;
    moe_buf_append(&r->item, part->bytes, part->n);
    moe_buf_clear(&c->text);
    moe_buf_clear(&c->thought);
}

static void write_whole(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    if (r->open < 0 && !r->items.size)
        r->open = MOE_PART_CONTENT; /* an empty one */
    keep_blocks(r, NULL);
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_head(r, &e);
    moe_emit_open_list(&e, "content");
    if (r->items.size)
        moe_emit_json(&e, NULL, r->items.data, r->items.size);
    moe_emit_close(&e);
    put_stop(r, &e, true);
    put_usage(r, &e);
    moe_emit_end_item(&e, NULL);
}

/* ---- Streams ---- */

static void begin_stream(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    if (r->begun)
        return;
    r->begun = true;
    reply_begin_event(&e, out, "message_start");
    moe_emit_open_map(&e, "message");
    put_head(r, &e);
    moe_emit_open_list(&e, "content");
    moe_emit_close(&e);
    put_stop(r, &e, false);
    put_usage(r, &e);
    moe_emit_close(&e);
    reply_end_event(&e, out);
}

static void write_delta(struct moe_reply *r, const char *type, const char *key,
                        const struct moe_answer_part *part, struct moe_buf *out)
{
    struct moe_emit e;
    reply_begin_event(&e, out, "content_block_delta");
    moe_emit_u64(&e, "index", r->n_items);
    moe_emit_open_map(&e, "delta");
    moe_emit_text(&e, "type", type);
    moe_emit_bytes(&e, key, part->bytes, part->n);
    moe_emit_close(&e);
    reply_end_event(&e, out);
}

static void close_block(struct moe_reply *r, struct moe_buf *out)
{
    const struct moe_answer_part signature = {.bytes = SIGNATURE, .n = strlen(SIGNATURE)};
    struct moe_emit e;
    if (r->open < 0)
        return;
    if (r->open == MOE_PART_THOUGHT)
        write_delta(r, "signature_delta", "signature", &signature, out);
    reply_begin_event(&e, out, "content_block_stop");
    moe_emit_u64(&e, "index", r->n_items++);
    reply_end_event(&e, out);
    r->open = -1;
}

static void open_block(struct moe_reply *r, int kind, struct moe_buf *out)
{
    const struct choice *c = &r->choices[0];
    struct moe_emit e;
    if (r->open == kind && kind != MOE_PART_CALL)
        return;
    close_block(r, out);
    r->open = kind;
    reply_begin_event(&e, out, "content_block_start");
    moe_emit_u64(&e, "index", r->n_items);
    if (kind == MOE_PART_CALL)
        put_call_block(&e, "content_block", &c->calls[c->n_calls - 1], NULL);
    else
        put_text_block(&e, "content_block", kind == MOE_PART_THOUGHT ? "thinking" : "text", NULL,
                       0);
    reply_end_event(&e, out);
}

static void write_part(struct moe_reply *r, const struct moe_answer_part *part, struct moe_buf *out)
{
    struct choice *c = &r->choices[0];
    if (!r->stream) {
        keep_part(r, part);
        return;
    }
    begin_stream(r, out);
    switch (part->kind) {
    case MOE_PART_THOUGHT:
        open_block(r, MOE_PART_THOUGHT, out);
        write_delta(r, "thinking_delta", "thinking", part, out);
        break;
    case MOE_PART_CALL:
        open_block(r, MOE_PART_CALL, out);
        break;
    case MOE_PART_ARGUMENTS:
        write_delta(r, "input_json_delta", "partial_json", part, out);
        break;
    case MOE_PART_CALL_ENDS:
    case MOE_PART_CALL_FAILS: /* what there is of it is sent */
        close_block(r, out);
        break;
    case MOE_PART_CONTENT:
        open_block(r, MOE_PART_CONTENT, out);
        write_delta(r, "text_delta", "text", part, out);
    }
    moe_buf_clear(&c->text);
    moe_buf_clear(&c->thought);
    if (c->n_calls)
        moe_buf_clear(&c->calls[c->n_calls - 1].arguments);
}

static void write_end(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    if (!r->stream) {
        write_whole(r, out);
        return;
    }
    begin_stream(r, out);
    close_block(r, out);
    reply_begin_event(&e, out, "message_delta");
    moe_emit_open_map(&e, "delta");
    put_stop(r, &e, true);
    moe_emit_close(&e);
    put_usage(r, &e);
    reply_end_event(&e, out);
    reply_begin_event(&e, out, "message_stop");
    reply_end_event(&e, out);
}

/* ---- Errors ---- */

static void put_error(struct moe_emit *e, unsigned http_status, const struct moe_err *why)
{
    static const struct {
        unsigned status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {413, "request_too_large"},
                 {429, "rate_limit_error"},     {503, "overloaded_error"}};
    const char *type = http_status < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].status == http_status)
            type = types[i].type;
    moe_emit_open_map(e, "error");
    moe_emit_text(e, "type", type);
    moe_emit_text(e, "message", why->text);
    moe_emit_close(e);
}

static void write_error(struct moe_buf *out, unsigned http_status, const struct moe_err *why)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "type", "error");
    put_error(&e, http_status, why);
    moe_emit_end_item(&e, NULL);
}

static void fail_stream(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    reply_begin_event(&e, out, "error");
    put_error(&e, moe_reply_http_status(&r->why), &r->why);
    reply_end_event(&e, out);
}

const struct moe_reply_api reply_messages = {
    .apart = true,
    .to_chat = messages_to_chat,
    .keys = keys,
    .renamed = renamed,
    .id = "msg_",
    .call_id = "toolu_",
    .part = write_part,
    .end = write_end,
    .error = write_error,
    .fail = fail_stream,
};

/* ---- Counting ---- */

/* The same request, but for what is said of the answer. */
static int count_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                         struct moe_err *err)
{
    json_t *whole = json_copy((json_t *)body);
    struct chat_maker maker = {.err = err};
    r->task = MOE_TASK_IDS;
    chat_put(&maker, whole, "max_tokens", json_integer(1));
    int status = messages_to_chat(r, out, whole, err);
    json_decref(whole);
    return status;
}

static void write_count(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_u64(&e, "input_tokens", r->n_prompt);
    moe_emit_end_item(&e, NULL);
}

const struct moe_reply_api reply_count = {
    .to_chat = count_to_chat,
    .keys = keys,
    .renamed = renamed,
    .id = "msg_",
    .call_id = "toolu_",
    .end = write_count,
    .error = write_error,
};
