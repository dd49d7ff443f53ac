#define _DEFAULT_SOURCE /* getentropy */
#include "serve/http_respond.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "serve/page.h"
#include "serve/reply.h"

/* A piece of a stream that is handed on at once. */
enum { STREAM_PIECE = 16 << 10 };

const char *http_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* Queues the response, which may be NULL: there was no memory for it. */
static enum MHD_Result queue(struct exchange *x, unsigned status, struct MHD_Response *response,
                             const char *type)
{
    struct moe_http *h = x->http;
    if (!response)
        return MHD_NO;
    pthread_mutex_lock(&h->lock);
    x->stage = EXCHANGE_SENDING;
    bool closing = h->closing;
    moe_http_count(&h->counts, x->route, status);
    pthread_mutex_unlock(&h->lock);
    if (type)
        MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (closing)
        MHD_add_response_header(response, "Connection", "close");
    if (h->options.origins)
        MHD_add_response_header(response, "Vary", "Origin");
    if (x->foreign) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", http_header(x, "Origin"));
        MHD_add_response_header(response, "Access-Control-Expose-Headers", "Retry-After");
    }
    enum MHD_Result result = MHD_queue_response(x->connection, status, response);
    MHD_destroy_response(response); /* the connection has its own hold */
    return result;
}

static struct MHD_Response *whole(struct exchange *x)
{
    return MHD_create_response_from_buffer(x->out.size, x->out.data, MHD_RESPMEM_PERSISTENT);
}

enum MHD_Result http_respond(struct exchange *x, unsigned status, const char *type)
{
    struct MHD_Response *response = x->out.failed ? NULL : whole(x);
    if (response)
        MHD_add_response_header(response, "Cache-Control", "no-store");
    return queue(x, status, response, type);
}

/* Names of headers as a browser lists them. */
static bool is_list_of_names(const char *text)
{
    return strlen(text) < 1024 &&
           text[strspn(text, "abcdefghijklmnopqrstuvwxyz"
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ")] == 0;
}

enum MHD_Result http_respond_preflight(struct exchange *x)
{
    struct MHD_Response *response = whole(x);
    const char *names = http_header(x, "Access-Control-Request-Headers");
    if (response && x->foreign) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
        MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                names && is_list_of_names(names) ? names
                                                                 : "Authorization, Content-Type");
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    return queue(x, MHD_HTTP_NO_CONTENT, response, NULL);
}

/* Asking again makes sense when an answer has ended: as long as they took so far. */
static void add_retry_after(struct exchange *x, struct MHD_Response *response)
{
    struct moe_http *h = x->http;
    char seconds[16];
    pthread_mutex_lock(&h->lock);
    double mean = h->counts.whole.n ? h->counts.whole.sum / (double)h->counts.whole.n : 1;
    pthread_mutex_unlock(&h->lock);
    snprintf(seconds, sizeof seconds, "%.0f", mean < 1 ? 1 : mean > 60 ? 60 : mean);
    MHD_add_response_header(response, "Retry-After", seconds);
}

enum MHD_Result http_respond_error(struct exchange *x, unsigned status, const struct moe_err *why)
{
    moe_buf_release(&x->out);
    moe_reply_error(&x->out, status, why);
    struct MHD_Response *response = x->out.failed ? NULL : whole(x);
    if (response && (status == MHD_HTTP_TOO_MANY_REQUESTS || status == 503))
        add_retry_after(x, response);
    if (response && status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (response && status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow",
                                x->route == MOE_HTTP_CHAT || x->route == MOE_HTTP_TEXT
                                    ? "POST, OPTIONS"
                                    : "GET, HEAD, OPTIONS");
    return queue(x, status, response, "application/json");
}

/* ---- Streams ---- */

static ssize_t take(void *ctx, uint64_t at, char *to, size_t n)
{
    (void)at;
    struct exchange *x = ctx;
    bool done;
    int64_t took = exchange_take(x, to, n, &done);
    if (took < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (done)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (took == 0)
        MHD_suspend_connection(x->connection);
    return (ssize_t)took;
}

static void taken(void *ctx)
{
    exchange_release(ctx);
}

enum MHD_Result http_respond_stream(struct exchange *x)
{
    exchange_hold(x);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_PIECE, take, x, taken);
    if (!response) {
        exchange_release(x);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* proxies hand it on at once */
    return queue(x, MHD_HTTP_OK, response, "text/event-stream");
}

/* ---- The page ---- */

static void append_page(struct moe_buf *out, const char *nonce)
{
    const char *from = moe_page, *place;
    while ((place = strstr(from, MOE_PAGE_NONCE))) {
        moe_buf_append(out, from, (uint64_t)(place - from));
        moe_buf_text(out, nonce);
        from = place + sizeof MOE_PAGE_NONCE - 1;
    }
    moe_buf_text(out, from);
}

enum MHD_Result http_respond_page(struct exchange *x)
{
    uint64_t random[2];
    char nonce[40], policy[400];
    if (getentropy(random, sizeof random) != 0)
        return MHD_NO;
    snprintf(nonce, sizeof nonce, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             nonce, nonce);
    append_page(&x->out, nonce);
    struct MHD_Response *response = x->out.failed ? NULL : whole(x);
    if (response) {
        MHD_add_response_header(response, "Content-Security-Policy", policy);
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    return queue(x, MHD_HTTP_OK, response, "text/html; charset=utf-8");
}
