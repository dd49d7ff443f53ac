/* Ollama's API (/api/chat, /api/generate): its requests as chats or texts, its replies and streams
 * of JSON lines. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fmt/emit.h"
#include "fmt/json.h"
#include "serve/reply_internal.h"
#include "serve/server.h"

#define REQUEST "the request"

static bool is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* ---- Requests: what chats and texts share ---- */

/* Options: those of sampling; others, which say how a model is loaded, have no effect. */
static int put_options(struct moe_request *r, json_t *to, const json_t *options,
                       struct chat_maker *m)
{
    json_t *value;
    const char *key;
    json_object_foreach((json_t *)options, key, value)
    {
        if (chat_says_draws(key) || strcmp(key, "seed") == 0 || strcmp(key, "stop") == 0 ||
            strcmp(key, "tfs_z") == 0)
            chat_take(m, to, key, options, key);
        else if (strcmp(key, "num_predict") != 0)
            moe_request_ignore(r->ignored, "options.", key);
        else if (json_is_number(value) && json_number_value(value) >= 0)
            chat_take(m, to, "max_tokens", options, key);
        else if (!json_is_number(value)) /* below 0: without a limit */
            return moe_fail(m->err, MOE_ERR_FORMAT,
                            REQUEST ": 'options.num_predict' is not a whole number");
    }
    return MOE_OK;
}

/* "json", or a schema. */
static int put_format(json_t *to, const json_t *format, struct chat_maker *m)
{
    if (json_is_object(format))
        chat_put(m, to, "response_format",
                 json_pack("{s:s,s:O}", "type", "json_object", "schema", format));
    else if (json_is_string(format) && strcmp(json_string_value(format), "json") == 0)
        chat_put(m, to, "response_format", json_pack("{s:s}", "type", "json_object"));
    else if (is_given(format) && json_string_length(format) + !json_is_string(format) > 0)
        return moe_fail(m->err, MOE_ERR_FORMAT,
                        REQUEST ": 'format' is neither \"json\" nor a schema");
    return MOE_OK;
}

/* true, false, or how much: "low", "medium", "high". */
static int put_think(json_t *to, const json_t *think, struct chat_maker *m)
{
    if (!is_given(think))
        return MOE_OK;
    if (!json_is_boolean(think) && !json_is_string(think))
        return moe_fail(m->err, MOE_ERR_FORMAT, REQUEST ": 'think' is neither a switch nor a text");
    chat_put(m, to, "chat_template_kwargs",
             json_pack("{s:b}", "enable_thinking", !json_is_false(think)));
    if (json_is_string(think))
        chat_put(m, to, "reasoning_effort", json_incref((json_t *)think));
    return MOE_OK;
}

static int refuse_images(const json_t *object, const char *where, struct chat_maker *m)
{
    const json_t *images = json_object_get(object, "images");
    if (!is_given(images) || (json_is_array(images) && !json_array_size(images)))
        return MOE_OK;
    return moe_fail(m->err, MOE_ERR_FORMAT, REQUEST ": '%simages': only texts can be read", where);
}

/* What both routes have; a stream is what a request means that does not say. */
static int put_shared(struct moe_request *r, json_t *to, const json_t *body, struct chat_maker *m)
{
    static const struct chat_member members[] = {{"model", CHAT_TEXT, true},
                                                 {"stream", CHAT_BOOL, false},
                                                 {"options", CHAT_OBJECT, false},
                                                 {NULL}};
    MOE_TRY(chat_check(m, body, "", members));
    chat_take(m, to, "model", body, "model");
    chat_put(m, to, "stream", json_boolean(!json_is_false(json_object_get(body, "stream"))));
    MOE_TRY(put_options(r, to, json_object_get(body, "options"), m));
    MOE_TRY(put_format(to, json_object_get(body, "format"), m));
    return put_think(to, json_object_get(body, "think"), m);
}

/* An empty request loads its model, or wants it unloaded, which is the server's to decide. */
static void only_load(struct moe_request *r, json_t *to, const json_t *body, struct chat_maker *m)
{
    static const char *const kept[] = {"keep_alive", NULL};
    json_object_del(to, "messages");
    chat_put(m, to, "prompt", json_string(""));
    chat_keep(r, m, body, kept);
    r->task = MOE_TASK_IDS;
}

static const char *const renamed[][2] = {
    {"max_tokens", "options.num_predict"},
    {"response_format", "format"},
    {"reasoning_effort", "think"},
    {NULL, NULL},
};

/* ---- Requests: /api/chat ---- */

/* A message's calls; results follow them in order, and are told apart by it. */
static int put_calls(json_t *message, const json_t *calls, size_t *n_calls, const char *where,
                     struct chat_maker *m)
{
    static const struct chat_member members[] = {
        {"name", CHAT_TEXT, true}, {"arguments", CHAT_OBJECT, false}, {NULL}};
    size_t i;
    const json_t *call;
    json_t *list = json_array();
    int status = MOE_OK;
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        json_t *arguments = json_object_get(function, "arguments");
        char at[128], id[32];
        snprintf(at, sizeof at, "%stool_calls[%zu].function", where, i);
        snprintf(id, sizeof id, "call_%zu", ++*n_calls);
        if (status == MOE_OK)
            status = chat_check(m, function, at, members);
        chat_add(m, list,
                 json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function",
                           "name", chat_text_of(function, "name"), "arguments",
                           arguments ? json_incref(arguments) : json_object()));
    }
    if (json_array_size(list))
        chat_put(m, message, "tool_calls", json_incref(list));
    json_decref(list);
    return status;
}

static int append_messages(json_t *messages, const json_t *list, struct chat_maker *m)
{
    static const struct chat_member members[] = {{"role", CHAT_TEXT, true},
                                                 {"content", CHAT_TEXT, false},
                                                 {"thinking", CHAT_TEXT, false},
                                                 {"tool_calls", CHAT_LIST, false},
                                                 {"tool_name", CHAT_TEXT, false},
                                                 {"tool_call_id", CHAT_TEXT, false},
                                                 {NULL}};
    size_t i, n_calls = 0, n_results = 0;
    const json_t *from;
    json_array_foreach(list, i, from)
    {
        const char *role = chat_text_of(from, "role");
        char where[48], id[32];
        snprintf(where, sizeof where, "messages[%zu]", i);
        MOE_TRY(chat_check(m, from, where, members));
        strcat(where, ".");
        MOE_TRY(refuse_images(from, where, m));
        json_t *message =
            json_pack("{s:s,s:s}", "role", role, "content", chat_text_of(from, "content"));
        chat_add(m, messages, message);
        chat_take(m, message, "reasoning_content", from, "thinking");
        MOE_TRY(put_calls(message, json_object_get(from, "tool_calls"), &n_calls, where, m));
        if (strcmp(role, "tool") != 0)
            continue;
        snprintf(id, sizeof id, "call_%zu", ++n_results);
        chat_put(m, message, "tool_call_id", json_string(id));
        chat_take(m, message, "tool_call_id", from, "tool_call_id");
        chat_take(m, message, "name", from, "tool_name");
    }
    return MOE_OK;
}

static const char *const chat_keys[] = {"model",   "messages", "tools",    "format", "stream",
                                        "options", "think",    "truncate", NULL};

static int chat_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                        struct moe_err *err)
{
    static const struct chat_member members[] = {{"messages", CHAT_LIST, false},
                                                 {"tools", CHAT_LIST, false},
                                                 {"truncate", CHAT_BOOL, false},
                                                 {NULL}};
    json_t *chat = *out = json_object(), *messages = json_array();
    struct chat_maker maker = {.err = err}, *m = &maker;
    int status = chat_check(m, body, "", members);
    if (status == MOE_OK)
        status = put_shared(r, chat, body, m);
    if (status == MOE_OK)
        status = append_messages(messages, json_object_get(body, "messages"), m);
    chat_put(m, chat, "messages", messages);
    chat_take(m, chat, "tools", body, "tools");
    r->truncates = json_is_true(json_object_get(body, "truncate"));
    if (status == MOE_OK && !json_array_size(json_object_get(body, "messages")))
        only_load(r, chat, body, m);
    return chat_end(m, status);
}

/* ---- Requests: /api/generate ---- */

static const char *const generate_keys[] = {"model",  "prompt",  "suffix",  "images",   "format",
                                            "system", "raw",     "options", "template", "stream",
                                            "think",  "context", NULL};

static int generate_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                            struct moe_err *err)
{
    static const struct chat_member members[] = {
        {"prompt", CHAT_TEXT, false}, {"suffix", CHAT_TEXT, false},   {"system", CHAT_TEXT, false},
        {"raw", CHAT_BOOL, false},    {"template", CHAT_TEXT, false}, {NULL}};
    const char *prompt = chat_text_of(body, "prompt"), *system = chat_text_of(body, "system"),
               *suffix = chat_text_of(body, "suffix");
    json_t *chat = *out = json_object(), *messages = json_array();
    struct chat_maker maker = {.err = err}, *m = &maker;
    int status = chat_check(m, body, "", members);
    if (status == MOE_OK)
        status = put_shared(r, chat, body, m);
    if (status == MOE_OK)
        status = refuse_images(body, "", m);
    if (status == MOE_OK && *chat_text_of(body, "template"))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'template' is not supported by this server: with 'raw' the "
                                  "prompt is taken as it is");
    if (status == MOE_OK && json_array_size(json_object_get(body, "context")))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'context' is not supported by this server: send the "
                                  "conversation to /api/chat");
    if (*system)
        chat_add(m, messages, json_pack("{s:s,s:s}", "role", "system", "content", system));
    chat_add(m, messages, json_pack("{s:s,s:s}", "role", "user", "content", prompt));
    if (!*prompt && !*suffix) {
        only_load(r, chat, body, m);
    } else if (json_is_true(json_object_get(body, "raw")) || *suffix) {
        if (!json_object_get(chat, "max_tokens")) /* no few tokens as /v1/completions has it */
            chat_put(m, chat, "max_tokens", json_integer(UINT32_MAX));
        json_object_del(chat, "chat_template_kwargs");
        chat_take(m, chat, "prompt", body, "prompt");
        chat_take(m, chat, "suffix", body, "suffix");
    } else {
        chat_put(m, chat, "messages", json_incref(messages));
    }
    json_decref(messages);
    return chat_end(m, status);
}

/* ---- Replies ---- */

static void put_head(const struct moe_reply *r, struct moe_emit *e)
{
    char at[40];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    size_t n = strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
    snprintf(at + n, sizeof at - n, ".%06ldZ", now.tv_nsec / 1000);
    moe_emit_text(e, "model", r->model);
    moe_emit_text(e, "created_at", at);
}

static bool is_chat(const struct moe_reply *r)
{
    return r->api == &reply_ollama_chat;
}

/* Writes what there is of the answer, and clears it. */
static void put_said(const struct moe_reply *r, struct moe_emit *e, struct choice *c)
{
    const bool chat = is_chat(r);
    if (chat) {
        moe_emit_open_map(e, "message");
        moe_emit_text(e, "role", "assistant");
    }
    moe_emit_bytes(e, chat ? "content" : "response", c->text.data, c->text.size);
    if (c->thought.size)
        moe_emit_bytes(e, "thinking", c->thought.data, c->thought.size);
    bool opened = false;
    for (uint32_t i = 0; i < c->n_calls; i++) {
        struct call *call = &c->calls[i];
        if (call->fails || !call->id[0] || !call->arguments.size)
            continue;
        if (!opened)
            moe_emit_open_list(e, "tool_calls");
        opened = true;
        moe_emit_open_map(e, NULL);
        moe_emit_text(e, "id", call->id);
        moe_emit_open_map(e, "function");
        moe_emit_u64(e, "index", i);
        moe_emit_bytes(e, "name", call->name.data, call->name.size);
        moe_emit_json(e, "arguments", call->arguments.data, call->arguments.size);
        moe_emit_close(e);
        moe_emit_close(e);
        call->id[0] = 0;
    }
    if (opened)
        moe_emit_close(e);
    if (chat)
        moe_emit_close(e);
    moe_buf_clear(&c->text);
    moe_buf_clear(&c->thought);
}

/* A line of a stream: a thought, text, or a whole call; a call that is malformed is text. */
static void write_part(struct moe_reply *r, const struct moe_answer_part *part, struct moe_buf *out)
{
    struct choice *c = &r->choices[0];
    struct moe_emit e;
    if (!r->stream || part->kind == MOE_PART_CALL || part->kind == MOE_PART_ARGUMENTS)
        return;
    if (part->kind == MOE_PART_CALL_FAILS)
        reply_put_failed(c, part);
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_head(r, &e);
    put_said(r, &e, c);
    moe_emit_bool(&e, "done", false);
    moe_emit_end_item(&e, NULL);
    moe_buf_u8(out, '\n');
}

static uint64_t nanoseconds(double seconds)
{
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

/* Whether the request wanted its model unloaded: "keep_alive" is 0. */
static bool was_to_unload(const struct moe_reply *r)
{
    json_t *asked = json_loads(r->asked, 0, NULL);
    const json_t *keep = json_object_get(asked, "keep_alive");
    bool is = json_is_string(keep) ? json_string_value(keep)[0] == '0'
                                   : json_is_number(keep) && json_number_value(keep) == 0;
    json_decref(asked);
    return is;
}

static void write_end(struct moe_reply *r, struct moe_buf *out)
{
    struct choice *c = &r->choices[0];
    const struct moe_server_result *result = c->result;
    const bool loaded = r->asked != NULL;
    const double begun = result->ttft_seconds > 0 ? result->ttft_seconds : result->seconds;
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_head(r, &e);
    put_said(r, &e, c);
    moe_emit_bool(&e, "done", true);
    moe_emit_text(&e, "done_reason",
                  loaded ? was_to_unload(r) ? "unload" : "load"
                  : c->why == MOE_STOP_LENGTH || c->why == MOE_STOP_CONTEXT ? "length"
                                                                            : "stop");
    if (!loaded) {
        moe_emit_u64(&e, "total_duration", nanoseconds(result->seconds));
        moe_emit_u64(&e, "load_duration", nanoseconds(result->queue_seconds));
        moe_emit_u64(&e, "prompt_eval_count", r->n_prompt);
        moe_emit_u64(&e, "prompt_eval_duration", nanoseconds(begun - result->queue_seconds));
        moe_emit_u64(&e, "eval_count", r->n_tokens);
        moe_emit_u64(&e, "eval_duration", nanoseconds(result->seconds - begun));
    }
    moe_emit_end_item(&e, NULL);
    moe_buf_u8(out, '\n');
}

void reply_ollama_error(struct moe_buf *out, unsigned http_status, const struct moe_err *why)
{
    struct moe_emit e;
    (void)http_status;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "error", why->text);
    moe_emit_end_item(&e, NULL);
    moe_buf_u8(out, '\n');
}

static void fail_stream(struct moe_reply *r, struct moe_buf *out)
{
    reply_ollama_error(out, 0, &r->why);
}

const struct moe_reply_api reply_ollama_chat = {
    .to_chat = chat_to_chat,
    .keys = chat_keys,
    .renamed = renamed,
    .id = "chat-",
    .call_id = "call_",
    .lines = true,
    .part = write_part,
    .end = write_end,
    .error = reply_ollama_error,
    .fail = fail_stream,
};

const struct moe_reply_api reply_ollama_generate = {
    .to_chat = generate_to_chat,
    .keys = generate_keys,
    .renamed = renamed,
    .id = "gen-",
    .call_id = "call_",
    .lines = true,
    .part = write_part,
    .end = write_end,
    .error = reply_ollama_error,
    .fail = fail_stream,
};
