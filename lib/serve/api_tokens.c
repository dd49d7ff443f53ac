/* /tokenize and /detokenize, in the forms of llama.cpp's server and vLLM at once. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "fmt/emit.h"
#include "fmt/json.h"
#include "serve/reply_internal.h"
#include "serve/server.h"

#define REQUEST "the request"

static bool is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* ---- Requests ---- */

static const char *const tokenize_keys[] = {"model",
                                            "content",
                                            "prompt",
                                            "messages",
                                            "tools",
                                            "add_special",
                                            "with_pieces",
                                            "parse_special",
                                            "add_special_tokens",
                                            "return_token_strs",
                                            "chat_template_kwargs",
                                            NULL};

/* A text ("content" of llama.cpp, "prompt" of vLLM), or messages. */
static int tokenize_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                            struct moe_err *err)
{
    static const struct chat_member members[] = {{"content", CHAT_TEXT, false},
                                                 {"prompt", CHAT_TEXT, false},
                                                 {"messages", CHAT_LIST, false},
                                                 {"add_special", CHAT_BOOL, false},
                                                 {"add_special_tokens", CHAT_BOOL, false},
                                                 {"parse_special", CHAT_BOOL, false},
                                                 {"with_pieces", CHAT_BOOL, false},
                                                 {"return_token_strs", CHAT_BOOL, false},
                                                 {NULL}};
    static const char *const texts[] = {"content", "prompt", "messages"};
    static const char *const same[] = {"model", "messages", "tools", "chat_template_kwargs"};
    static const char *const kept[] = {"with_pieces", "return_token_strs", NULL};
    const json_t *whole = json_object_get(body, "add_special_tokens");
    json_t *chat = *out = json_object();
    struct chat_maker maker = {.err = err}, *m = &maker;
    uint32_t n = 0;
    int status = chat_check(m, body, "", members);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        n += is_given(json_object_get(body, texts[i]));
    if (status == MOE_OK && n != 1)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": one of 'content', 'prompt' and 'messages' must be there");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        chat_take(m, chat, same[i], body, same[i]);
    chat_take(m, chat, "prompt", body, "content");
    chat_take(m, chat, "prompt", body, "prompt");
    chat_keep(r, m, body, kept);
    if (is_given(json_object_get(body, "add_special")))
        whole = json_object_get(body, "add_special");
    r->task = MOE_TASK_IDS;
    r->bare = is_given(whole) ? !json_is_true(whole) : is_given(json_object_get(body, "content"));
    r->special = !json_is_false(json_object_get(body, "parse_special"));
    return chat_end(m, status);
}

static const char *const detokenize_keys[] = {"model", "tokens", NULL};

static int detokenize_to_chat(struct moe_request *r, json_t **out, const json_t *body,
                              struct moe_err *err)
{
    static const struct chat_member members[] = {{"tokens", CHAT_LIST, true}, {NULL}};
    json_t *chat = *out = json_object();
    struct chat_maker maker = {.err = err}, *m = &maker;
    const json_t *tokens = json_object_get(body, "tokens");
    int status = chat_check(m, body, "", members);
    chat_take(m, chat, "model", body, "model");
    if (json_array_size(tokens) && json_is_integer(json_array_get(tokens, 0)))
        chat_take(m, chat, "prompt", body, "tokens");
    else if (status == MOE_OK && json_array_size(tokens))
        status = moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'tokens[0]' is not a token's id");
    else
        chat_put(m, chat, "prompt", json_string(""));
    r->task = MOE_TASK_TEXT;
    r->bare = true;
    return chat_end(m, status);
}

static const char *const renamed_content[][2] = {{"prompt", "content"}, {NULL, NULL}};
static const char *const renamed_tokens[][2] = {{"prompt", "tokens"}, {NULL, NULL}};

/* ---- Replies ---- */

/* Whether the request asked for something. */
static bool asked_for(const struct moe_reply *r, const char *key)
{
    json_t *asked = json_loads(r->asked ? r->asked : "{}", 0, NULL);
    bool is = json_is_true(json_object_get(asked, key));
    json_decref(asked);
    return is;
}

/* A piece that is no text by itself is a list of its bytes, as llama.cpp writes it. */
static void put_piece(struct moe_emit *e, const uint8_t *bytes, uint32_t n)
{
    if (moe_utf8_valid(bytes, n)) {
        moe_emit_bytes(e, "piece", bytes, n);
        return;
    }
    moe_emit_open_list(e, "piece");
    for (uint32_t i = 0; i < n; i++)
        moe_emit_u64(e, NULL, bytes[i]);
    moe_emit_close(e);
}

/* Many ids with their pieces may take more than a reply may have: the loops end there. */
static bool has_room(struct moe_reply *r, const struct moe_buf *out)
{
    if (out->size > MOE_REQUEST_MAX_REPLY_BYTES) {
        moe_fail(&r->why, MOE_ERR_FORMAT,
                 REQUEST
                 ": its %llu tokens take more than %d MiB in the reply: send less at a time",
                 (unsigned long long)r->n_prompt, MOE_REQUEST_MAX_REPLY_BYTES >> 20);
        r->failed = true;
    }
    return !r->failed;
}

static void write_ids(struct moe_reply *r, struct moe_buf *out)
{
    const struct moe_server_result *result = r->choices[0].result;
    const bool pieces = asked_for(r, "with_pieces"), strings = asked_for(r, "return_token_strs");
    struct moe_emit e;
    uint32_t n;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_u64(&e, "count", result->n_prompt);
    moe_emit_u64(&e, "max_model_len", result->context);
    moe_emit_open_list(&e, "tokens");
    for (uint64_t i = 0; i < result->n_prompt && has_room(r, out); i++) {
        if (!pieces) {
            moe_emit_u64(&e, NULL, result->ids[i]);
            continue;
        }
        const uint8_t *bytes = moe_tokenizer_bytes(result->tokenizer, result->ids[i], &n);
        moe_emit_open_map(&e, NULL);
        moe_emit_u64(&e, "id", result->ids[i]);
        put_piece(&e, bytes, n);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    if (strings)
        moe_emit_open_list(&e, "token_strs");
    for (uint64_t i = 0; i < result->n_prompt && strings && has_room(r, out); i++) {
        const uint8_t *bytes = moe_tokenizer_bytes(result->tokenizer, result->ids[i], &n);
        moe_emit_bytes(&e, NULL, bytes, n);
    }
    if (strings)
        moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
    if (r->failed)
        moe_buf_release(out);
}

static void write_text(struct moe_reply *r, struct moe_buf *out)
{
    const struct moe_server_result *result = r->choices[0].result;
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_bytes(&e, "content", result->text->data, result->text->size);
    moe_emit_bytes(&e, "prompt", result->text->data, result->text->size);
    moe_emit_end_item(&e, NULL);
}

const struct moe_reply_api reply_tokenize = {
    .to_chat = tokenize_to_chat,
    .keys = tokenize_keys,
    .renamed = renamed_content,
    .id = "tok-",
    .call_id = "call_",
    .end = write_ids,
};

const struct moe_reply_api reply_detokenize = {
    .to_chat = detokenize_to_chat,
    .keys = detokenize_keys,
    .renamed = renamed_tokens,
    .id = "tok-",
    .call_id = "call_",
    .end = write_text,
};
