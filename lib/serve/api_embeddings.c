/* Embeddings: /v1/embeddings, and Ollama's /api/embed and /api/embeddings. A text's vector is the
 * mean of its tokens' last states, or the last of them, of length 1. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/emit.h"
#include "fmt/json.h"
#include "serve/reply_internal.h"
#include "serve/server.h"

#define REQUEST "the request"

/* ---- Requests ---- */

static int read_ids(struct moe_request_input *to, const json_t *list, const char *where,
                    struct moe_err *err)
{
    size_t i;
    const json_t *id;
    if (!(to->ids = moe_alloc(json_array_size(list), sizeof *to->ids, err)))
        return MOE_ERR_MEMORY;
    json_array_foreach(list, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > UINT32_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' has no token's id at %zu", where,
                            i);
        to->ids[to->n++] = (uint32_t)json_integer_value(id);
    }
    return MOE_OK;
}

static int read_input(struct moe_request *r, const json_t *from, const char *where,
                      struct moe_err *err)
{
    struct moe_request_input *to = &r->inputs[r->n_inputs++];
    if (json_is_array(from) && json_array_size(from))
        return read_ids(to, from, where, err);
    if (!json_is_string(from) || json_string_length(from) == 0)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' is %s", where,
                        json_is_string(from) || json_is_array(from)
                            ? "empty"
                            : "neither a text nor a list of ids");
    to->n = json_string_length(from);
    to->text = moe_strndup(json_string_value(from), to->n, err);
    return to->text ? MOE_OK : MOE_ERR_MEMORY;
}

/* A text, a list of ids, or a list of these. */
static int read_inputs(struct moe_request *r, const json_t *input, const char *key,
                       struct moe_err *err)
{
    const json_t *first = json_array_get(input, 0);
    const bool several = json_is_array(input) && !json_is_integer(first);
    const size_t n = several ? json_array_size(input) : 1;
    int status = MOE_OK;
    if (!input || json_is_null(input))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' is missing", key);
    if (n == 0 || n > MOE_REQUEST_MAX_INPUTS)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' has %zu texts, 1 to %d are allowed",
                        key, n, MOE_REQUEST_MAX_INPUTS);
    if (!(r->inputs = moe_alloc(n, sizeof *r->inputs, err)))
        return MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        char where[48];
        snprintf(where, sizeof where, several ? "%s[%zu]" : "%s", key, i);
        status = read_input(r, several ? json_array_get(input, i) : input, where, err);
    }
    return status;
}

/* Reads what all three routes have; `kept` members are for the reply. */
static int to_body(struct moe_request *r, json_t **out, const json_t *body, const char *input,
                   struct moe_err *err)
{
    static const char *const kept[] = {"encoding_format", "dimensions", NULL};
    static const struct chat_member members[] = {
        {"encoding_format", CHAT_TEXT, false}, {"pooling", CHAT_TEXT, false}, {NULL}};
    const char *format = chat_text_of(body, "encoding_format"),
               *pooling = chat_text_of(body, "pooling");
    uint32_t dimensions;
    json_t *chat = *out = json_object();
    struct chat_maker maker = {.err = err}, *m = &maker;
    int status = chat_check(m, body, "", members);
    chat_take(m, chat, "model", body, "model");
    chat_put(m, chat, "prompt", json_string(""));
    chat_keep(r, m, body, kept);
    r->task = strcmp(pooling, "last") == 0 ? MOE_TASK_LAST : MOE_TASK_MEAN;
    if (status == MOE_OK && *format && strcmp(format, "float") != 0 &&
        strcmp(format, "base64") != 0)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'encoding_format' is neither float nor base64");
    if (status == MOE_OK && *pooling && strcmp(pooling, "mean") != 0 &&
        strcmp(pooling, "last") != 0)
        status = moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'pooling' is neither mean nor last");
    if (status == MOE_OK)
        status = moe_json_get_between(REQUEST, body, "dimensions", 1, UINT32_MAX, false,
                                      &dimensions, err);
    if (status == MOE_OK)
        status = read_inputs(r, json_object_get(body, input), input, err);
    return chat_end(m, status);
}

static const char *const keys[] = {"model",      "input",   "encoding_format",
                                   "dimensions", "pooling", NULL};

static int read_embeddings(struct moe_request *r, json_t **out, const json_t *body,
                           struct moe_err *err)
{
    return to_body(r, out, body, "input", err);
}

static const char *const ollama_keys[] = {"model", "input", "dimensions", "pooling", NULL};
static const char *const old_keys[] = {"model", "prompt", "pooling", NULL};

static int read_prompt(struct moe_request *r, json_t **out, const json_t *body, struct moe_err *err)
{
    return to_body(r, out, body, "prompt", err);
}

static const char *const renamed[][2] = {{NULL, NULL}};

/* ---- Replies ---- */

static void put_base64(struct moe_buf *out, const uint8_t *bytes, uint64_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (uint64_t i = 0; i < n; i += 3) {
        uint32_t three = (uint32_t)bytes[i] << 16;
        three |= i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0;
        three |= i + 2 < n ? bytes[i + 2] : 0;
        moe_buf_u8(out, (uint8_t)digits[three >> 18]);
        moe_buf_u8(out, (uint8_t)digits[three >> 12 & 63]);
        moe_buf_u8(out, (uint8_t)(i + 1 < n ? digits[three >> 6 & 63] : '='));
        moe_buf_u8(out, (uint8_t)(i + 2 < n ? digits[three & 63] : '='));
    }
}

/* Notes a choice's vector as JSON: the first `dimensions` of its state, of length 1 together. */
static void note_vector(struct moe_reply *r, struct choice *c)
{
    const double *state = c->result->state;
    json_t *asked = json_loads(r->asked, 0, NULL);
    const json_t *wanted = json_object_get(asked, "dimensions");
    const bool base64 = strcmp(chat_text_of(asked, "encoding_format"), "base64") == 0;
    const double dimensions = json_number_value(wanted);
    uint32_t n = c->result->n_state;
    double squares = 0;
    if (dimensions > n) {
        moe_fail(&r->why, MOE_ERR_FORMAT,
                 REQUEST ": 'dimensions' is %.0f, but the model's states have %u", dimensions, n);
        r->failed = true;
    }
    n = dimensions > 0 && dimensions < n ? (uint32_t)dimensions : n;
    for (uint32_t i = 0; i < n; i++)
        squares += state[i] * state[i];
    moe_buf_u8(&c->text, base64 ? '"' : '[');
    for (uint32_t i = 0; i < n; i++) {
        const float x = squares > 0 ? (float)(state[i] / sqrt(squares)) : 0;
        if (base64)
            moe_buf_append(&c->thought, &x, sizeof x);
        else
            moe_buf_printf(&c->text, "%s%.9g", i ? "," : "", (double)x);
    }
    put_base64(&c->text, c->thought.data, c->thought.size);
    moe_buf_u8(&c->text, base64 ? '"' : ']');
    moe_buf_release(&c->thought);
    json_decref(asked);
    r->n_vectors_bytes += c->text.size;
    if (!r->failed && r->n_vectors_bytes > MOE_REQUEST_MAX_REPLY_BYTES) {
        moe_fail(&r->why, MOE_ERR_FORMAT,
                 "the vectors of %u texts take more than %d MiB: send fewer at a time", r->n,
                 MOE_REQUEST_MAX_REPLY_BYTES >> 20);
        r->failed = true;
    }
}

static void write_list(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "object", "list");
    moe_emit_open_list(&e, "data");
    for (uint32_t i = 0; i < r->n; i++) {
        moe_emit_open_map(&e, NULL);
        moe_emit_text(&e, "object", "embedding");
        moe_emit_u64(&e, "index", i);
        moe_emit_json(&e, "embedding", r->choices[i].text.data, r->choices[i].text.size);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_text(&e, "model", r->model);
    moe_emit_open_map(&e, "usage");
    moe_emit_u64(&e, "prompt_tokens", r->n_prompt);
    moe_emit_u64(&e, "total_tokens", r->n_prompt);
    moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
}

static void write_ollama(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "model", r->model);
    moe_emit_open_list(&e, "embeddings");
    for (uint32_t i = 0; i < r->n; i++)
        moe_emit_json(&e, NULL, r->choices[i].text.data, r->choices[i].text.size);
    moe_emit_close(&e);
    moe_emit_u64(&e, "prompt_eval_count", r->n_prompt);
    moe_emit_end_item(&e, NULL);
}

static void write_one(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_json(&e, "embedding", r->choices[0].text.data, r->choices[0].text.size);
    moe_emit_end_item(&e, NULL);
}

const struct moe_reply_api reply_embeddings = {
    .to_chat = read_embeddings,
    .keys = keys,
    .renamed = renamed,
    .id = "embd-",
    .call_id = "call_",
    .choice = note_vector,
    .end = write_list,
};

const struct moe_reply_api reply_ollama_embed = {
    .to_chat = read_embeddings,
    .keys = ollama_keys,
    .renamed = renamed,
    .id = "embd-",
    .call_id = "call_",
    .choice = note_vector,
    .end = write_ollama,
    .error = reply_ollama_error,
};

const struct moe_reply_api reply_ollama_embeddings = {
    .to_chat = read_prompt,
    .keys = old_keys,
    .renamed = renamed,
    .id = "embd-",
    .call_id = "call_",
    .choice = note_vector,
    .end = write_one,
    .error = reply_ollama_error,
};
