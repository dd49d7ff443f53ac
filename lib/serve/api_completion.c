/* llama.cpp's own API (/completion, /infill), which plugins of editors speak: its requests as
 * texts, its replies and streams. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/emit.h"
#include "fmt/json.h"
#include "serve/reply_internal.h"
#include "serve/server.h"

#define REQUEST "the request"

/* ---- Requests ---- */

/* What both routes have. */
static int put_shared(struct moe_request *r, json_t *to, const json_t *body, struct chat_maker *m)
{
    static const struct chat_member members[] = {
        {"stream", CHAT_BOOL, false}, {"response_fields", CHAT_LIST, false}, {NULL}};
    static const char *const same[] = {"model",   "stream",      "stop",       "seed",
                                       "grammar", "json_schema", "ignore_eos", "draft"};
    static const char *const not_done[] = {"n_probs", "return_tokens", "lora"};
    static const char *const kept[] = {"response_fields", NULL};
    const json_t *fields = json_object_get(body, "response_fields"), *field;
    size_t at;
    MOE_TRY(chat_check(m, body, "", members));
    json_array_foreach(fields, at, field)
    {
        if (!json_is_string(field))
            return moe_fail(m->err, MOE_ERR_FORMAT,
                            REQUEST ": 'response_fields[%zu]' is not a text", at);
    }
    for (size_t i = 0; i < sizeof not_done / sizeof not_done[0]; i++) {
        const json_t *value = json_object_get(body, not_done[i]);
        if (json_is_true(value) || json_array_size(value) || json_number_value(value) > 0)
            return moe_fail(m->err, MOE_ERR_FORMAT,
                            REQUEST ": '%s' is not supported by this server; leave it out",
                            not_done[i]);
    }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        chat_take(m, to, same[i], body, same[i]);
    chat_put(m, to, "n_predict", json_integer(-1));
    chat_take(m, to, "n_predict", body, "n_predict");
    if (json_is_false(json_object_get(body, "cache_prompt")))
        moe_request_ignore(r->ignored, "", "cache_prompt");
    chat_keep(r, m, body, kept);
    return MOE_OK;
}

static const char *const completion_keys[] = {
    "model",         "prompt",      "stream",          "n_predict", "stop",    "seed",
    "grammar",       "json_schema", "ignore_eos",      "draft",     "n_probs", "cache_prompt",
    "return_tokens", "lora",        "response_fields", NULL};

static int completion_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                              struct moe_err *err)
{
    const json_t *prompt = json_object_get(body, "prompt"), *first = json_array_get(prompt, 0);
    json_t *text = *out = json_object();
    struct chat_maker maker = {.err = err}, *m = &maker;
    int status = put_shared(r, text, body, m);
    if (status == MOE_OK && (!prompt || json_is_null(prompt)))
        status = moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt' is missing");
    if (status == MOE_OK && json_array_size(prompt) > 1 && !json_is_integer(first))
        status =
            moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt' has %zu texts: send one at a time",
                     json_array_size(prompt));
    chat_take(m, text, "prompt", body, "prompt");
    return chat_end(m, status);
}

static const char *const infill_keys[] = {
    "model",     "prompt",  "input_prefix", "input_suffix",  "input_extra", "stream",
    "n_predict", "stop",    "seed",         "grammar",       "json_schema", "ignore_eos",
    "draft",     "n_probs", "cache_prompt", "return_tokens", "lora",        "response_fields",
    NULL};

/* [{"filename", "text"}]: other files, the nearest last. */
static int take_files(struct moe_request *r, const json_t *files, struct chat_maker *m)
{
    static const struct chat_member members[] = {
        {"filename", CHAT_TEXT, false}, {"text", CHAT_TEXT, true}, {NULL}};
    const json_t *file;
    size_t i;
    if (json_array_size(files) > MOE_REQUEST_MAX_FILES)
        return moe_fail(m->err, MOE_ERR_FORMAT,
                        REQUEST ": 'input_extra' has %zu files, %d at most are allowed",
                        json_array_size(files), MOE_REQUEST_MAX_FILES);
    if (json_array_size(files) &&
        !(r->files = moe_alloc(json_array_size(files), sizeof *r->files, m->err)))
        return MOE_ERR_MEMORY;
    json_array_foreach(files, i, file)
    {
        char where[48];
        snprintf(where, sizeof where, "input_extra[%zu]", i);
        MOE_TRY(chat_check(m, file, where, members));
        const char *name = chat_text_of(file, "filename"), *text = chat_text_of(file, "text");
        struct moe_request_file *f = &r->files[r->n_files++];
        f->name = moe_strndup(*name ? name : "tmp", strlen(*name ? name : "tmp"), m->err);
        f->text = moe_strndup(text, strlen(text), m->err);
        if (!f->name || !f->text)
            return MOE_ERR_MEMORY;
    }
    return MOE_OK;
}

/* What is between two texts; the prompt is what was begun of it. */
static int infill_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                          struct moe_err *err)
{
    static const struct chat_member members[] = {{"input_prefix", CHAT_TEXT, true},
                                                 {"input_suffix", CHAT_TEXT, true},
                                                 {"input_extra", CHAT_LIST, false},
                                                 {"prompt", CHAT_TEXT, false},
                                                 {NULL}};
    const char *suffix = chat_text_of(body, "input_suffix");
    json_t *text = *out = json_object();
    struct chat_maker maker = {.err = err}, *m = &maker;
    int status = chat_check(m, body, "", members);
    if (status == MOE_OK)
        status = put_shared(r, text, body, m);
    if (status == MOE_OK)
        status = take_files(r, json_object_get(body, "input_extra"), m);
    if (status == MOE_OK && !(r->suffix = moe_strndup(suffix, strlen(suffix), err)))
        status = MOE_ERR_MEMORY;
    chat_put(m, text, "prompt",
             json_pack("s+", chat_text_of(body, "input_prefix"), chat_text_of(body, "prompt")));
    return chat_end(m, status);
}

static const char *const renamed[][2] = {{NULL, NULL}};

/* ---- Replies ---- */

static void put_timing(struct moe_emit *e, const char *what, uint64_t n, double seconds)
{
    char key[40];
    snprintf(key, sizeof key, "%s_n", what);
    moe_emit_u64(e, key, n);
    snprintf(key, sizeof key, "%s_ms", what);
    moe_emit_fixed(e, key, 3, seconds * 1e3);
    snprintf(key, sizeof key, "%s_per_token_ms", what);
    moe_emit_fixed(e, key, 3, n ? seconds * 1e3 / (double)n : 0);
    snprintf(key, sizeof key, "%s_per_second", what);
    moe_emit_fixed(e, key, 3, seconds > 0 ? (double)n / seconds : 0);
}

/* Writes what there is of the answer, and clears it. */
static void put_said(struct moe_emit *e, struct choice *c)
{
    moe_emit_u64(e, "index", 0);
    moe_emit_bytes(e, "content", c->text.data, c->text.size);
    moe_emit_open_list(e, "tokens");
    moe_emit_close(e);
    moe_emit_i64(e, "id_slot", 0);
    moe_emit_bool(e, "stop", c->finish != NULL);
    moe_buf_clear(&c->text);
}

static void put_whole(struct moe_reply *r, struct moe_emit *e)
{
    struct choice *c = &r->choices[0];
    const struct moe_server_result *result = c->result;
    const double begun = result->ttft_seconds > 0 ? result->ttft_seconds : result->seconds;
    put_said(e, c);
    moe_emit_text(e, "model", r->model);
    moe_emit_u64(e, "tokens_predicted", r->n_tokens);
    moe_emit_u64(e, "tokens_evaluated", r->n_prompt);
    moe_emit_u64(e, "tokens_cached", r->n_cached);
    moe_emit_bool(e, "truncated", c->why == MOE_STOP_CONTEXT);
    moe_emit_text(e, "stop_type",
                  c->why == MOE_STOP_LENGTH || c->why == MOE_STOP_CONTEXT ? "limit"
                  : result->stop_text                                     ? "word"
                                                                          : "eos");
    moe_emit_text(e, "stopping_word", result->stop_text ? result->stop_text : "");
    moe_emit_open_map(e, "timings");
    put_timing(e, "prompt", r->n_prompt - r->n_cached, begun - result->queue_seconds);
    put_timing(e, "predicted", r->n_tokens, result->seconds - begun);
    moe_emit_close(e);
}

static void write_part(struct moe_reply *r, const struct moe_answer_part *part, struct moe_buf *out)
{
    struct moe_emit e;
    (void)part;
    if (!r->stream)
        return;
    moe_buf_text(out, "data: ");
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_said(&e, &r->choices[0]);
    reply_end_event(&e, out);
}

/* Of a reply those members that "response_fields" names, each under its path: "timings/prompt_n".
 */
static bool pick_fields(const struct moe_reply *r, struct moe_buf *whole)
{
    json_t *asked = NULL, *all = NULL, *picked = json_object();
    const json_t *path;
    size_t i;
    char *text = NULL;
    bool failed =
        !picked || whole->failed ||
        moe_json_parse(&asked, REQUEST, r->asked, strlen(r->asked), MOE_REQUEST_MEMORY, NULL) !=
            MOE_OK ||
        moe_json_parse(&all, REQUEST, whole->data, whole->size, MOE_REQUEST_MEMORY, NULL) != MOE_OK;
    const json_t *fields = json_object_get(asked, "response_fields");
    json_array_foreach(fields, i, path)
    {
        const char *at = json_string_value(path);
        json_t *value = *at ? all : NULL;
        char key[64];
        for (int n = 0; value && sscanf(at, "%63[^/]%n", key, &n) == 1;
             at += n + (at[n] == '/' && at[n + 1]))
            value = json_object_get(value, key);
        if (value && !*at)
            failed |= json_object_set(picked, json_string_value(path), value) != 0;
    }
    if (json_array_size(fields)) {
        failed = failed || !(text = moe_json_text(picked, JSON_COMPACT));
        moe_buf_clear(whole);
        moe_buf_text(whole, text ? text : "{}");
    }
    free(text);
    json_decref(asked);
    json_decref(all);
    json_decref(picked);
    return !failed && !whole->failed;
}

static void write_end(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_buf whole = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &whole, MOE_EMIT_COMPACT);
    put_whole(r, &e);
    moe_emit_end_item(&e, NULL);
    const bool made = pick_fields(r, &whole);
    moe_buf_text(out, r->stream ? "data: " : "");
    if (made)
        moe_buf_append(out, whole.data, whole.size);
    moe_buf_text(out, r->stream ? "\n\n" : "\n");
    out->failed |= !made;
    moe_buf_release(&whole);
}

static void fail_stream(struct moe_reply *r, struct moe_buf *out)
{
    moe_buf_text(out, "data: ");
    moe_reply_error(out, NULL, moe_reply_http_status(&r->why), &r->why);
    moe_buf_text(out, "\n\n");
}

const struct moe_reply_api reply_completion = {
    .to_chat = completion_to_chat,
    .keys = completion_keys,
    .renamed = renamed,
    .id = "cmpl-",
    .call_id = "call_",
    .part = write_part,
    .end = write_end,
    .fail = fail_stream,
};

const struct moe_reply_api reply_infill = {
    .to_chat = infill_to_chat,
    .keys = infill_keys,
    .renamed = renamed,
    .id = "cmpl-",
    .call_id = "call_",
    .part = write_part,
    .end = write_end,
    .fail = fail_stream,
};
