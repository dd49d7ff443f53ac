#include "serve/http_completion.h"

#include <stdlib.h>
#include <string.h>

#include "serve/http_respond.h"
#include "serve/reply.h"
#include "serve/server.h"

/* What a log probability takes in an answer, about. */
enum { SAID_BYTES = 96 };

/* What is known of a request that the server has. Until it is done, its members but the constant
 * ones belong to the server's threads, which tell of one request never two things at once. */
struct completion {
    bool stream;        /* constant */
    uint32_t n_choices; /* constant */
    uint32_t n_ended;
    struct moe_reply *reply;
};

static void free_completion(struct completion *c)
{
    moe_reply_free(c->reply);
    free(c);
}

/* ---- What executors tell ---- */

static void hear_text(void *ctx, uint32_t choice, const char *bytes, uint64_t n)
{
    struct exchange *x = ctx;
    struct moe_http *h = x->http;
    struct moe_buf event = {0};
    moe_reply_text(x->completion->reply, choice, bytes, n, &event);
    pthread_mutex_lock(&h->lock);
    if (x->completion->stream)
        exchange_put(x, &event);
    else
        exchange_book(x, n);
    pthread_mutex_unlock(&h->lock);
    moe_buf_release(&event);
}

static void hear_token(void *ctx, uint32_t choice, const struct moe_token_said *said)
{
    struct exchange *x = ctx;
    struct moe_http *h = x->http;
    moe_reply_token(x->completion->reply, choice, said);
    pthread_mutex_lock(&h->lock);
    exchange_book(x, SAID_BYTES * (1 + said->n_top));
    pthread_mutex_unlock(&h->lock);
}

/* What a client is told of its answer's end: one that nobody but we have stopped is a failure. */
static struct moe_server_result end_to_tell(const struct moe_server_result *result,
                                            struct moe_err *err)
{
    struct moe_server_result told = *result;
    if (told.status == MOE_OK && told.why == MOE_STOP_USER) {
        told.status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped: the server is closing");
        told.err = err;
    }
    return told;
}

static void count_end(struct moe_http_counts *counts, const struct moe_server_result *result)
{
    if (result->status != MOE_OK)
        return;
    moe_seconds_count(&counts->whole, result->seconds);
    if (result->n_tokens)
        moe_seconds_count(&counts->first_token, result->ttft_seconds);
}

static void hear_end(void *ctx, uint32_t choice, const struct moe_server_result *result)
{
    struct exchange *x = ctx;
    struct moe_http *h = x->http;
    struct completion *c = x->completion;
    struct moe_err err;
    struct moe_buf rest = {0};
    const struct moe_server_result told = end_to_tell(result, &err);
    moe_reply_ended(c->reply, choice, &told, &rest);
    bool last = ++c->n_ended == c->n_choices, failed = moe_reply_failed(c->reply) != NULL;
    pthread_mutex_lock(&h->lock);
    count_end(&h->counts, &told);
    /* A stream that has not begun tells a failure by its status instead. */
    if (!failed || x->stage == EXCHANGE_SENDING || x->out.size > 0)
        exchange_put(x, &rest);
    if (last) {
        x->done = true;
        exchange_tell(x);
    }
    pthread_mutex_unlock(&h->lock);
    moe_buf_release(&rest);
    if (last)
        exchange_release(x);
}

/* ---- Submitting ---- */

static enum MHD_Result refuse(struct exchange *x, unsigned status, const struct moe_err *why)
{
    exchange_drop_body(x);
    return http_respond_error(x, status, why);
}

static int make_completion(struct exchange *x, const struct moe_request *r, struct moe_err *err)
{
    struct completion *c = calloc(1, sizeof *c);
    if (!c)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request");
    c->stream = r->stream;
    c->n_choices = r->n;
    const char *model = r->model ? r->model : moe_server_model(x->http->server, 0);
    int status = moe_reply_new(&c->reply, r, model ? model : "", err);
    if (status != MOE_OK) {
        free(c);
        return status;
    }
    x->completion = c;
    x->free_completion = free_completion;
    return MOE_OK;
}

/* On failure the request is still ours. */
static int submit(struct exchange *x, struct moe_request *r, struct moe_err *err)
{
    const struct moe_server_events events = {
        .ctx = x, .text = hear_text, .token = r->logprobs ? hear_token : NULL, .ended = hear_end};
    int status = make_completion(x, r, err);
    if (status != MOE_OK)
        return status;
    exchange_set_stage(x, EXCHANGE_WAITING);
    exchange_hold(x); /* for the server, until it has told the last end */
    status = moe_server_submit(x->http->server, r, &events, &x->id, err);
    if (status != MOE_OK) {
        free_completion(x->completion);
        x->completion = NULL;
        exchange_set_stage(x, EXCHANGE_RECEIVING);
        exchange_release(x);
    }
    return status;
}

static enum MHD_Result begin(struct exchange *x)
{
    struct moe_err err;
    struct moe_request *r;
    const enum moe_request_kind kind =
        x->route == MOE_HTTP_CHAT ? MOE_REQUEST_CHAT : MOE_REQUEST_TEXT;
    int status = moe_request_parse(&r, kind, x->body.data, x->body.size, &err);
    if (status != MOE_OK)
        return refuse(x, moe_reply_http_status(&err), &err);
    status = submit(x, r, &err);
    if (status == MOE_OK) {
        exchange_drop_body(x);
        return MHD_YES;
    }
    moe_request_free(r);
    return refuse(x, status == MOE_ERR_LIMIT ? 429 : moe_reply_http_status(&err), &err);
}

/* ---- Sending ---- */

static enum MHD_Result refuse_cut(struct exchange *x)
{
    struct moe_err err;
    moe_fail(&err, MOE_ERR_LIMIT,
             "the answers under way take more memory than the server's buffers have");
    return http_respond_error(x, 503, &err);
}

enum MHD_Result http_complete(struct exchange *x)
{
    if (x->stage == EXCHANGE_RECEIVING)
        return begin(x);
    struct moe_http *h = x->http;
    const struct completion *c = x->completion;
    pthread_mutex_lock(&h->lock);
    bool some = x->out.size > 0, ready = x->cut || x->done || (c->stream && some);
    if (ready && !x->gone)
        x->stage = EXCHANGE_SENDING;
    pthread_mutex_unlock(&h->lock);
    if (x->stage != EXCHANGE_SENDING)
        return x->gone ? MHD_NO : MHD_YES;
    if (x->cut)
        return refuse_cut(x);
    if (!some) {
        const struct moe_err *why = moe_reply_failed(c->reply);
        return http_respond_error(x, moe_reply_http_status(why), why);
    }
    return c->stream ? http_respond_stream(x) : http_respond(x, MHD_HTTP_OK, "application/json");
}
