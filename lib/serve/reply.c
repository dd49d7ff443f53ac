/* Replies in the forms of OpenAI's API: choices, streams, log probabilities, errors. */
#define _DEFAULT_SOURCE /* getentropy */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "prompt/chat_answer.h"
#include "serve/reply_internal.h"
#include "serve/server.h"

/* ---- Log probabilities ---- */

enum { N_LISTS = 4, TOKENS = 0, TOKEN_LOGPROBS, TOP_LOGPROBS, OFFSETS };

static const char *const list_names[N_LISTS] = {"tokens", "token_logprobs", "top_logprobs",
                                                "text_offset"};

/* Begins the next item of a list. */
static struct moe_buf *next_item(struct moe_buf *list)
{
    moe_buf_text(list, list->size ? "," : "[");
    return list;
}

/* ---- /v1/completions ---- */

/* A token's name: its text, or "bytes:\xe2\x80" if it is not text; NUL-terminated. */
static void name_token(const struct moe_token_chance *c, struct moe_buf *name)
{
    moe_buf_clear(name);
    bool is_text =
        moe_utf8_valid(c->bytes, c->n_bytes) && !(c->n_bytes && memchr(c->bytes, 0, c->n_bytes));
    if (is_text) {
        moe_buf_append(name, c->bytes, c->n_bytes);
    } else {
        moe_buf_text(name, "bytes:");
        for (uint32_t i = 0; i < c->n_bytes; i++)
            moe_buf_printf(name, "\\x%02x", c->bytes[i]);
    }
    moe_buf_append(name, "", 1);
}

static void put_named(struct moe_emit *e, const struct moe_token_chance *c, struct moe_buf *name)
{
    name_token(c, name);
    if (!name->failed)
        moe_emit_rounded(e, (const char *)name->data, 9,
                         moe_log_probability_shown(c->log_probability));
}

/* Two tokens with the same bytes share a name: the likelier one is shown. */
static bool has_name_before(const struct moe_token_said *said, uint32_t n,
                            const struct moe_token_chance *c)
{
    for (uint32_t i = 0; i < n; i++)
        if (said->top[i].n_bytes == c->n_bytes &&
            (c->n_bytes == 0 || memcmp(said->top[i].bytes, c->bytes, c->n_bytes) == 0))
            return true;
    return false;
}

static void add_top(struct reply_logprobs *p, const struct moe_token_said *said,
                    struct moe_buf *name)
{
    struct moe_emit e;
    struct moe_buf *list = next_item(&p->lists[TOP_LOGPROBS]);
    moe_emit_begin_json(&e, list, MOE_EMIT_COMPACT);
    for (uint32_t i = 0; i < said->n_top; i++)
        if (!has_name_before(said, i, &said->top[i]))
            put_named(&e, &said->top[i], name);
    if (!has_name_before(said, said->n_top, &said->token))
        put_named(&e, &said->token, name);
    moe_emit_end_item(&e, NULL);
}

static void add_to_text(struct reply_logprobs *p, const struct moe_token_said *said)
{
    struct moe_buf name = {0};
    name_token(&said->token, &name);
    if (!name.failed)
        moe_scalar_bytes(next_item(&p->lists[TOKENS]), name.data, name.size - 1);
    p->lists[TOKENS].failed |= name.failed;
    bool drawn = !isnan(said->token.log_probability); /* nothing draws a prompt's first token */
    moe_buf_printf(next_item(&p->lists[TOKEN_LOGPROBS]), drawn ? "%.9g" : "null",
                   moe_log_probability_shown(said->token.log_probability));
    moe_buf_printf(next_item(&p->lists[OFFSETS]), "%llu", (unsigned long long)p->offset);
    if (p->with_top && drawn)
        add_top(p, said, &name);
    else if (p->with_top)
        moe_buf_text(next_item(&p->lists[TOP_LOGPROBS]), "null");
    for (uint32_t i = 0; i < said->token.n_bytes && !said->hidden; i++)
        p->offset += (said->token.bytes[i] & 0xc0) != 0x80; /* not within a character */
    moe_buf_release(&name);
}

/* ---- Both ---- */

static void reply_logprobs_begin(struct reply_logprobs *p, const struct moe_request *r)
{
    *p = (struct reply_logprobs){.kind = r->kind, .with_top = r->top_logprobs > 0};
}

static void reply_logprobs_add(struct reply_logprobs *p, const struct moe_token_said *said)
{
    if (p->kind == MOE_REQUEST_CHAT)
        moe_token_said_json(said, next_item(&p->lists[0]));
    else
        add_to_text(p, said);
}

static bool reply_logprobs_failed(const struct reply_logprobs *p)
{
    bool failed = false;
    for (int i = 0; i < N_LISTS; i++)
        failed |= p->lists[i].failed;
    return failed;
}

static void put_list(struct moe_emit *e, const char *key, struct moe_buf *list)
{
    moe_buf_text(list, list->size ? "]" : "[]");
    moe_emit_json(e, key, list->data, list->size);
    moe_buf_clear(list);
}

/* Writes "logprobs": everything added since the last time. */
static void reply_logprobs_put(struct reply_logprobs *p, struct moe_emit *e)
{
    moe_emit_open_map(e, "logprobs");
    if (p->kind == MOE_REQUEST_CHAT) {
        put_list(e, "content", &p->lists[0]);
        moe_emit_null(e, "refusal");
    }
    for (int i = 0; i < N_LISTS && p->kind == MOE_REQUEST_TEXT; i++)
        if (i == TOP_LOGPROBS && !p->with_top)
            moe_emit_null(e, list_names[i]);
        else
            put_list(e, list_names[i], &p->lists[i]);
    moe_emit_close(e);
}

static void reply_logprobs_release(struct reply_logprobs *p)
{
    for (int i = 0; i < N_LISTS; i++)
        moe_buf_release(&p->lists[i]);
}

/* ---- Opening ---- */

void reply_draw_id(char id[40], const char *prefix)
{
    uint64_t random[2];
    if (getentropy(random, sizeof random) != 0)
        random[0] = random[1] = (uint64_t)(moe_seconds() * 1e9) ^ (uintptr_t)id;
    snprintf(id, 40, "%s%016" PRIx64 "%08" PRIx64, prefix, random[0], random[1] >> 32);
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
    r->n_each = request->n_each;
    r->n_shown = request->n_shown;
    r->created = (int64_t)time(NULL);
    r->open = -1;
    r->api = request->api;
    reply_draw_id(r->id, r->api ? r->api->id : r->kind == MOE_REQUEST_CHAT ? "chatcmpl-" : "cmpl-");
    r->model = moe_strndup(name, strlen(name), err);
    if (request->asked)
        r->asked = moe_strndup(request->asked, strlen(request->asked), err);
    if (!r->model || (request->asked && !r->asked)) {
        moe_reply_free(r);
        return MOE_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        struct choice *c = &r->choices[i];
        reply_logprobs_begin(&c->logprobs, request);
        const struct moe_request_input *echo =
            request->echo ? &request->inputs[i / r->n_each] : NULL;
        if (echo && echo->text) /* ids have texts where the model is known */
            moe_buf_append(&c->text, echo->text, echo->n);
    }
    *out = r;
    return MOE_OK;
}

static void release_choice(struct choice *c)
{
    moe_buf_release(&c->text);
    moe_buf_release(&c->thought);
    for (uint32_t i = 0; i < c->n_calls; i++) {
        moe_buf_release(&c->calls[i].name);
        moe_buf_release(&c->calls[i].arguments);
    }
    free(c->calls);
}

void moe_reply_free(struct moe_reply *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n; i++) {
        release_choice(&r->choices[i]);
        reply_logprobs_release(&r->choices[i].logprobs);
    }
    moe_buf_release(&r->item);
    moe_buf_release(&r->items);
    free(r->model);
    free(r->asked);
    free(r);
}

bool moe_reply_keep(struct moe_reply *r, const char *conversation, struct moe_buf *response,
                    struct moe_buf *out)
{
    return r->api && r->api->keep && !r->failed && r->api->keep(r, conversation, response, out);
}

bool moe_reply_is_lines(const struct moe_reply *r)
{
    return r->api && r->api->lines;
}

const char *moe_reply_id(const struct moe_reply *r)
{
    return r->id;
}

uint64_t moe_reply_prompt_tokens(const struct moe_reply *r)
{
    return r->n_prompt;
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
    if (r->n_drafted) { /* the API's names, which clients expect */
        moe_emit_open_map(e, "completion_tokens_details");
        moe_emit_u64(e, "accepted_prediction_tokens", r->n_accepted);
        moe_emit_u64(e, "rejected_prediction_tokens", r->n_drafted - r->n_accepted);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* ---- Calls of tools ---- */

static struct call *begin_call(const struct moe_reply *r, struct choice *c)
{
    struct call *more = realloc(c->calls, (c->n_calls + 1) * sizeof *more);
    c->short_of_memory |= !more;
    if (!more)
        return NULL;
    c->calls = more;
    more += c->n_calls++;
    *more = (struct call){0};
    reply_draw_id(more->id, r->api ? r->api->call_id : "call_");
    return more;
}

/* Writes "tool_calls": the calls, or what a stream has new of them. */
static void put_calls(struct moe_reply *r, struct moe_emit *e, struct choice *c)
{
    moe_emit_open_list(e, "tool_calls");
    for (uint32_t i = 0; i < c->n_calls; i++) {
        struct call *call = &c->calls[i];
        if (call->fails || (!call->id[0] && !call->arguments.size))
            continue;
        moe_emit_open_map(e, NULL);
        if (r->stream)
            moe_emit_u64(e, "index", i);
        if (call->id[0]) {
            moe_emit_text(e, "id", call->id);
            moe_emit_text(e, "type", "function");
        }
        moe_emit_open_map(e, "function");
        if (call->id[0])
            moe_emit_bytes(e, "name", call->name.data, call->name.size);
        moe_emit_bytes(e, "arguments", call->arguments.data, call->arguments.size);
        moe_emit_close(e);
        moe_emit_close(e);
        call->id[0] = 0;
        moe_buf_clear(&call->arguments);
    }
    moe_emit_close(e);
}

static bool has_new_calls(const struct choice *c)
{
    for (uint32_t i = 0; i < c->n_calls; i++)
        if (!c->calls[i].fails && (c->calls[i].id[0] || c->calls[i].arguments.size))
            return true;
    return false;
}

/* Writes "warnings": the calls that are malformed, or were cut off. */
static void put_warnings(const struct moe_reply *r, struct moe_emit *e, const struct choice *c)
{
    if (c->n_whole == c->n_calls && !c->cut_call)
        return;
    moe_emit_open_list(e, "warnings");
    for (uint32_t i = 0; i < c->n_calls; i++)
        if (c->calls[i].fails) {
            char text[192];
            const bool ended = i + 1 == c->n_calls && strcmp(c->finish, "length") == 0;
            snprintf(text, sizeof text, "the call of '%.*s' is %s%s", (int)c->calls[i].name.size,
                     c->calls[i].name.data ? (const char *)c->calls[i].name.data : "",
                     ended ? "cut off" : "malformed",
                     r->stream || c->calls[i].left_out ? "" : ": its text is content");
            moe_emit_text(e, NULL, text);
        }
    if (c->cut_call)
        moe_emit_text(e, NULL, "a call is cut off: its text is content");
    moe_emit_close(e);
}

/* Writes the message of a chat, or what a stream has new of it. */
static void put_message(struct moe_reply *r, struct moe_emit *e, struct choice *c)
{
    moe_emit_open_map(e, r->stream ? "delta" : "message");
    if (!c->begun)
        moe_emit_text(e, "role", "assistant");
    if (c->thought.size)
        moe_emit_bytes(e, "reasoning_content", c->thought.data, c->thought.size);
    if (!c->begun && !c->text.size && has_new_calls(c))
        moe_emit_null(e, "content");
    else if ((!c->begun && !(r->stream && c->thought.size)) || c->text.size)
        moe_emit_bytes(e, "content", c->text.data, c->text.size);
    if (has_new_calls(c))
        put_calls(r, e, c);
    if (!r->stream)
        moe_emit_null(e, "refusal");
    moe_emit_close(e);
    moe_buf_clear(&c->thought);
}

/* The bytes of a text that can be sent: a stream's next piece ends with a whole character. An
 * echoed prompt of ids may end within one. */
static uint64_t text_ready(const struct moe_reply *r, const struct choice *c)
{
    return r->kind == MOE_REQUEST_TEXT && r->stream && !c->finish
               ? moe_utf8_complete(c->text.data, c->text.size)
               : c->text.size;
}

/* Writes a choice's pending part, which is empty afterwards, as number i: the whole of it, or a
 * piece of a stream. */
static void put_choice(struct moe_reply *r, struct moe_emit *e, struct choice *c, uint32_t i)
{
    const uint64_t ready = text_ready(r, c);
    moe_emit_open_map(e, NULL);
    if (r->kind == MOE_REQUEST_TEXT)
        moe_emit_bytes(e, "text", c->text.data, ready);
    moe_emit_u64(e, "index", i);
    if (r->kind == MOE_REQUEST_CHAT)
        put_message(r, e, c);
    if (r->logprobs)
        reply_logprobs_put(&c->logprobs, e);
    else
        moe_emit_null(e, "logprobs");
    if (c->finish)
        moe_emit_text(e, "finish_reason", c->finish);
    else
        moe_emit_null(e, "finish_reason");
    if (c->finish)
        put_warnings(r, e, c);
    moe_emit_close(e);
    c->begun = true;
    if (ready)
        memmove(c->text.data, c->text.data + ready, c->text.size - ready);
    c->text.size -= ready;
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
    put_choice(r, &e, &r->choices[i], i);
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
    if (r->api) {
        r->api->fail(r, out);
        return;
    }
    begin_event(out);
    moe_reply_error(out, NULL, moe_reply_http_status(&r->why), &r->why);
    moe_buf_text(out, "\n\n");
}

/* ---- What the server tells ---- */

bool moe_reply_token(struct moe_reply *r, uint32_t choice, const struct moe_token_said *said)
{
    struct choice *c = &r->choices[choice];
    c->log_sum += said->token.log_probability;
    c->n_said++;
    const bool keeps = r->logprobs && !r->failed;
    if (keeps)
        reply_logprobs_add(&c->logprobs, said);
    return keeps;
}

void moe_reply_begun(struct moe_reply *r, uint64_t n_prompt, uint32_t n_left_out)
{
    r->n_begun = n_prompt;
    r->n_left_out = n_left_out;
}

void reply_put_failed(struct choice *c, const struct moe_answer_part *part)
{
    moe_buf_text(&c->text, c->has_text && part->n ? "\n\n" : "");
    moe_buf_append(&c->text, part->bytes, part->n);
    c->has_text |= part->n > 0;
}

void moe_reply_part(struct moe_reply *r, uint32_t choice, const struct moe_answer_part *part,
                    struct moe_buf *out)
{
    struct choice *c = &r->choices[choice];
    if (r->failed || (part->joins && r->api && r->api->apart && r->open != (int)part->kind))
        return;
    struct call *call = part->kind == MOE_PART_CALL ? begin_call(r, c)
                        : c->n_calls                ? &c->calls[c->n_calls - 1]
                                                    : NULL;
    switch (part->kind) {
    case MOE_PART_THOUGHT:
        moe_buf_append(&c->thought, part->bytes, part->n);
        break;
    case MOE_PART_CONTENT:
        moe_buf_append(&c->text, part->bytes, part->n);
        c->has_text |= part->n > 0;
        c->cut_call |= part->cut_call;
        break;
    case MOE_PART_CALL:
        if (call)
            moe_buf_append(&call->name, part->bytes, part->n);
        break;
    case MOE_PART_ARGUMENTS:
        if (call)
            moe_buf_append(&call->arguments, part->bytes, part->n);
        break;
    case MOE_PART_CALL_ENDS:
        c->n_whole++;
        if (!r->api)
            return;
        break;
    case MOE_PART_CALL_FAILS:
        if (call) {
            call->fails = true;
            call->left_out = !part->n;
        }
        if (!r->stream) /* a stream has sent it as a call */
            reply_put_failed(c, part);
        break;
    }
    if (r->api && r->api->part)
        r->api->part(r, part, out);
    else if (r->stream && (c->text.size == 0 || text_ready(r, c)))
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

void reply_begin_event(struct moe_emit *e, struct moe_buf *out, const char *name)
{
    moe_buf_printf(out, "event: %s\ndata: ", name);
    moe_emit_begin_json(e, out, MOE_EMIT_COMPACT);
    moe_emit_text(e, "type", name);
}

void reply_end_event(struct moe_emit *e, struct moe_buf *out)
{
    end_event(e, out);
}

void reply_begin_item(struct moe_emit *e, struct moe_buf *list)
{
    moe_emit_begin_json(e, list, MOE_EMIT_COMPACT);
    moe_emit_open_list(e, "x");
}

void reply_end_item(struct moe_reply *r, struct moe_emit *e, struct moe_buf *list)
{
    moe_emit_close(e);
    moe_emit_end_item(e, NULL);
    if (r->items.size)
        moe_buf_u8(&r->items, ',');
    if (!list->failed) /* without the list's brackets */
        moe_buf_append(&r->items, list->data + strlen("{\"x\":["),
                       list->size - strlen("{\"x\":[]}"));
    r->items.failed |= list->failed;
    moe_buf_release(list);
}

static bool choice_failed(const struct choice *c)
{
    bool failed = c->short_of_memory || c->text.failed || c->thought.failed;
    for (uint32_t i = 0; i < c->n_calls; i++)
        failed |= c->calls[i].name.failed || c->calls[i].arguments.failed;
    return failed;
}

/* Whether memory was short anywhere in a whole reply. */
static bool is_short(const struct moe_reply *r)
{
    bool failed = r->item.failed || r->items.failed;
    for (uint32_t i = 0; i < r->n; i++)
        failed |= choice_failed(&r->choices[i]) || reply_logprobs_failed(&r->choices[i].logprobs);
    return failed;
}

/* The choice of a prompt that comes next: in order, or if not all are shown the likeliest that was
 * not written, by the mean of its tokens' log probabilities. */
static struct choice *next_shown(struct moe_reply *r, uint32_t prompt)
{
    struct choice *next = NULL;
    double best = 0;
    for (uint32_t i = prompt * r->n_each; i < (prompt + 1) * r->n_each; i++) {
        struct choice *c = &r->choices[i];
        const double mean = c->n_said ? c->log_sum / (double)c->n_said : -INFINITY;
        if (!c->begun && (!next || (r->n_shown < r->n_each && mean > best))) {
            next = c;
            best = mean;
        }
    }
    return next;
}

static void put_whole(struct moe_reply *r, struct moe_buf *out)
{
    struct moe_emit e;
    open_reply(r, &e, out);
    for (uint32_t i = 0; i < r->n / r->n_each * r->n_shown; i++)
        put_choice(r, &e, next_shown(r, i / r->n_shown), i);
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
        c->why = result->why;
        c->result = result;
        if (c->n_whole && strcmp(c->finish, "stop") == 0)
            c->finish = "tool_calls";
        r->n_prompt += choice % r->n_each == 0 ? result->n_prompt : 0;
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
    if (r->api && r->api->choice)
        r->api->choice(r, c);
    if (r->api) {
        if (r->n_ended == r->n && !r->failed)
            r->api->end(r, out);
        return;
    }
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

/* Replies: errors. */

/* How error texts about a request begin (request.c), and one about its model. */
#define OF_REQUEST "the request: '"
#define OF_MODEL "the model '"
/* What they say where a prompt is too long (engine/prompt.c, encode.c). */
#define TOO_LONG " does not fit the context of "

static bool begins_with(const char *text, const char *words)
{
    return strncmp(text, words, strlen(words)) == 0;
}

unsigned moe_reply_http_status(const struct moe_err *why)
{
    switch (why->status) {
    case MOE_ERR_USAGE:
        return begins_with(why->text, OF_MODEL) ? 404 : 400;
    case MOE_ERR_FORMAT:
    case MOE_ERR_UNSUPPORTED:
    case MOE_ERR_LIMIT:
        return 400;
    case MOE_ERR_MEMORY:
    case MOE_ERR_DEVICE: /* the server begins anew */
    case MOE_ERR_INTERRUPTED:
        return 503;
    default:
        return 500;
    }
}

static const struct {
    unsigned http_status;
    const char *type, *code;
} kinds[] = {
    {401, "invalid_request_error", "invalid_api_key"},
    {403, "permission_error", NULL},
    {404, "invalid_request_error", "not_found"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_exceeded"},
};

static void put_or_null(struct moe_emit *e, const char *key, const char *text)
{
    if (text)
        moe_emit_text(e, key, text);
    else
        moe_emit_null(e, key);
}

void moe_reply_emit_error(struct moe_emit *e, unsigned http_status, const struct moe_err *why)
{
    const char *type = http_status < 500 ? "invalid_request_error" : "server_error", *code = NULL;
    char param[64] = "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].http_status == http_status) {
            type = kinds[i].type;
            code = kinds[i].code;
        }
    if (begins_with(why->text, OF_REQUEST)) {
        const char *key = why->text + strlen(OF_REQUEST);
        size_t n = strcspn(key, "'");
        memcpy(param, key, n < sizeof param ? n : 0);
    } else if (http_status == 404 && begins_with(why->text, OF_MODEL)) {
        strcpy(param, "model");
        code = "model_not_found";
    } else if (why->status == MOE_ERR_UNSUPPORTED && begins_with(why->text, OF_MODEL)) {
        code = "no_chat_template"; /* models lack nothing else (job.c) */
    } else if (why->status == MOE_ERR_LIMIT && strstr(why->text, TOO_LONG)) {
        code = "context_length_exceeded";
    }
    moe_emit_open_map(e, "error");
    moe_emit_text(e, "message", why->text);
    moe_emit_text(e, "type", type);
    put_or_null(e, "param", param[0] ? param : NULL);
    put_or_null(e, "code", code);
    moe_emit_close(e);
}

void moe_reply_error(struct moe_buf *out, const struct moe_reply_api *api, unsigned http_status,
                     const struct moe_err *why)
{
    struct moe_emit e;
    if (api && api->error) {
        api->error(out, http_status, why);
        return;
    }
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_reply_emit_error(&e, http_status, why);
    moe_emit_end_item(&e, NULL);
}
