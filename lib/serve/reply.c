#define _DEFAULT_SOURCE /* getentropy */
#include "serve/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "fmt/emit.h"
#include "serve/reply_logprobs.h"
#include "serve/server.h"

struct choice {
    struct moe_buf text; /* not sent yet */
    struct reply_logprobs logprobs;
    bool begun;         /* something of it was sent */
    const char *finish; /* NULL: it goes on */
};

struct moe_reply {
    enum moe_request_kind kind;
    bool stream, stream_usage, logprobs;
    char id[40], *model, *echo;
    int64_t created;
    uint64_t n_prompt, n_tokens, n_cached, n_drafted, n_accepted;
    uint32_t n, n_ended;
    bool failed;
    struct moe_err why;
    struct choice choices[];
};

/* ---- Opening ---- */

static void draw_id(struct moe_reply *r)
{
    uint64_t random[2];
    if (getentropy(random, sizeof random) != 0)
        random[0] = random[1] = (uint64_t)(moe_seconds() * 1e9) ^ (uintptr_t)r;
    snprintf(r->id, sizeof r->id, "%s-%016" PRIx64 "%08" PRIx64,
             r->kind == MOE_REQUEST_CHAT ? "chatcmpl" : "cmpl", random[0], random[1] >> 32);
}

int moe_reply_new(struct moe_reply **out, const struct moe_request *request, const char *model,
                  struct moe_err *err)
{
    const char *name = request->model ? request->model : model;
    struct moe_reply *r = moe_alloc(1, sizeof *r + request->n * sizeof(struct choice), err);
    *out = NULL;
    if (!r)
        return MOE_ERR_MEMORY;
    r->kind = request->kind;
    r->stream = request->stream;
    r->stream_usage = request->stream_usage;
    r->logprobs = request->logprobs;
    r->n = request->n;
    r->created = (int64_t)time(NULL);
    draw_id(r);
    r->model = moe_strndup(name, strlen(name), err);
    if (request->echo)
        r->echo = moe_strndup(request->prompt, request->n_prompt, err);
    if (!r->model || (request->echo && !r->echo)) {
        moe_reply_free(r);
        return MOE_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        struct choice *c = &r->choices[i];
        reply_logprobs_begin(&c->logprobs, request);
        if (r->echo)
            moe_buf_text(&c->text, r->echo);
    }
    *out = r;
    return MOE_OK;
}

void moe_reply_free(struct moe_reply *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n; i++) {
        moe_buf_release(&r->choices[i].text);
        reply_logprobs_release(&r->choices[i].logprobs);
    }
    free(r->model);
    free(r->echo);
    free(r);
}

const char *moe_reply_id(const struct moe_reply *r)
{
    return r->id;
}

const struct moe_err *moe_reply_failed(const struct moe_reply *r)
{
    return r->failed ? &r->why : NULL;
}

/* ---- Pieces ---- */

static void open_reply(const struct moe_reply *r, struct moe_emit *e, struct moe_buf *out)
{
    const char *object = r->kind == MOE_REQUEST_TEXT ? "text_completion"
                         : r->stream                 ? "chat.completion.chunk"
                                                     : "chat.completion";
    moe_emit_begin_json(e, out, MOE_EMIT_COMPACT);
    moe_emit_text(e, "id", r->id);
    moe_emit_text(e, "object", object);
    moe_emit_i64(e, "created", r->created);
    moe_emit_text(e, "model", r->model);
    moe_emit_text(e, "system_fingerprint", "moe-toolkit-" MOE_VERSION);
    moe_emit_open_list(e, "choices");
}

static void put_usage(const struct moe_reply *r, struct moe_emit *e)
{
    moe_emit_open_map(e, "usage");
    moe_emit_u64(e, "prompt_tokens", r->n_prompt);
    moe_emit_u64(e, "completion_tokens", r->n_tokens);
    moe_emit_u64(e, "total_tokens", r->n_prompt + r->n_tokens);
    moe_emit_open_map(e, "prompt_tokens_details");
    moe_emit_u64(e, "cached_tokens", r->n_cached);
    moe_emit_close(e);
    if (r->n_drafted) { /* the API's names, of texts that clients expect */
        moe_emit_open_map(e, "completion_tokens_details");
        moe_emit_u64(e, "accepted_prediction_tokens", r->n_accepted);
        moe_emit_u64(e, "rejected_prediction_tokens", r->n_drafted - r->n_accepted);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* What there is of a choice, which is empty afterwards: a whole one, or a piece of a stream. */
static void put_choice(struct moe_reply *r, struct moe_emit *e, uint32_t i)
{
    struct choice *c = &r->choices[i];
    moe_emit_open_map(e, NULL);
    if (r->kind == MOE_REQUEST_TEXT)
        moe_emit_bytes(e, "text", c->text.data, c->text.size);
    moe_emit_u64(e, "index", i);
    if (r->kind == MOE_REQUEST_CHAT) {
        moe_emit_open_map(e, r->stream ? "delta" : "message");
        if (!c->begun)
            moe_emit_text(e, "role", "assistant");
        if (!c->begun || c->text.size)
            moe_emit_bytes(e, "content", c->text.data, c->text.size);
        if (!r->stream)
            moe_emit_null(e, "refusal");
        moe_emit_close(e);
    }
    if (r->logprobs)
        reply_logprobs_put(&c->logprobs, e);
    else
        moe_emit_null(e, "logprobs");
    if (c->finish)
        moe_emit_text(e, "finish_reason", c->finish);
    else
        moe_emit_null(e, "finish_reason");
    moe_emit_close(e);
    c->begun = true;
    moe_buf_clear(&c->text);
}

/* ---- Events of a stream ---- */

static void begin_event(struct moe_buf *out)
{
    moe_buf_text(out, "data: ");
}

static void end_event(struct moe_emit *e, struct moe_buf *out)
{
    moe_emit_end_item(e, NULL);
    moe_buf_text(out, "\n\n");
}

static void send_choice(struct moe_reply *r, uint32_t i, struct moe_buf *out)
{
    struct moe_emit e;
    begin_event(out);
    open_reply(r, &e, out);
    put_choice(r, &e, i);
    moe_emit_close(&e);
    if (r->stream_usage)
        moe_emit_null(&e, "usage");
    end_event(&e, out);
}

static void send_usage(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    begin_event(out);
    open_reply(r, &e, out);
    moe_emit_close(&e);
    put_usage(r, &e);
    end_event(&e, out);
}

static void send_error(struct moe_reply *r, struct moe_buf *out)
{
    begin_event(out);
    moe_reply_error(out, moe_reply_http_status(&r->why), &r->why);
    moe_buf_text(out, "\n\n");
}

/* ---- What the server tells ---- */

void moe_reply_token(struct moe_reply *r, uint32_t choice, const struct moe_token_said *said)
{
    if (r->logprobs && !r->failed)
        reply_logprobs_add(&r->choices[choice].logprobs, said);
}

void moe_reply_text(struct moe_reply *r, uint32_t choice, const char *bytes, uint64_t n,
                    struct moe_buf *out)
{
    if (r->failed)
        return;
    moe_buf_append(&r->choices[choice].text, bytes, n);
    if (r->stream)
        send_choice(r, choice, out);
}

static const char *finish_reason(enum moe_stop_reason why)
{
    return why == MOE_STOP_LENGTH || why == MOE_STOP_CONTEXT ? "length" : "stop";
}

static void note_model(struct moe_reply *r, const char *model)
{
    char *name = model ? moe_strndup(model, strlen(model), NULL) : NULL;
    if (!name)
        return;
    free(r->model);
    r->model = name;
}

/* Memory that was short anywhere in what a whole reply is made of. */
static bool is_short(const struct moe_reply *r)
{
    bool failed = false;
    for (uint32_t i = 0; i < r->n; i++)
        failed |= r->choices[i].text.failed || reply_logprobs_failed(&r->choices[i].logprobs);
    return failed;
}

static void put_whole(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    open_reply(r, &e, out);
    for (uint32_t i = 0; i < r->n; i++)
        put_choice(r, &e, i);
    moe_emit_close(&e);
    put_usage(r, &e);
    moe_emit_end_item(&e, NULL);
}

static void end_last(struct moe_reply *r, struct moe_buf *out)
{
    if (!r->stream) {
        put_whole(r, out);
        return;
    }
    if (r->stream_usage)
        send_usage(r, out);
    moe_buf_text(out, "data: [DONE]\n\n");
}

void moe_reply_ended(struct moe_reply *r, uint32_t choice, const struct moe_server_result *result,
                     struct moe_buf *out)
{
    struct choice *c = &r->choices[choice];
    r->n_ended++;
    if (r->failed)
        return;
    if (result->status != MOE_OK) {
        r->why = *result->err;
    } else {
        c->finish = finish_reason(result->why);
        r->n_prompt = result->n_prompt;
        r->n_cached = result->n_cached > r->n_cached ? result->n_cached : r->n_cached;
        r->n_tokens += result->n_tokens;
        r->n_drafted += result->n_drafted;
        r->n_accepted += result->n_accepted;
        note_model(r, result->model);
    }
    r->failed = result->status != MOE_OK;
    if (!r->failed && is_short(r)) {
        moe_fail(&r->why, MOE_ERR_MEMORY, "out of memory: the answer's text");
        r->failed = true;
    }
    if (r->failed && r->stream)
        send_error(r, out);
    if (r->failed)
        return;
    if (r->stream)
        send_choice(r, choice, out);
    if (r->n_ended == r->n)
        end_last(r, out);
}

void moe_reply_emit_changes(struct moe_emit *e, const struct moe_changes *changes)
{
    moe_emit_u64(e, "activations", changes->activations);
    for (int i = 0; i < MOE_N_CHANGES; i++)
        moe_emit_u64(e, moe_change_key(i), changes->of[i]);
}
