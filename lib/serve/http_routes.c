/* Routes: what is refused, what is answered at once, and completions, whose answers come as the
 * server's events. */
#define _DEFAULT_SOURCE /* getentropy */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "fmt/json.h"
#include "prompt/chat_answer.h"
#include "serve/http_internal.h"
#include "serve/reply.h"
#include "serve/server.h"

/* The version of Ollama whose API this is: clients refuse older ones. */
#define OLLAMA_VERSION "0.12.6"

static const char *const no_store[][2] = {{"Cache-Control", "no-store"}, {NULL}};

static bool is_closing(struct moe_http *h)
{
    pthread_mutex_lock(&h->lock);
    bool closing = h->closing;
    pthread_mutex_unlock(&h->lock);
    return closing;
}

static bool is_get(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* ---- Heads that RFC 9112 wants refused ---- */

/*
 * libmicrohttpd 0.9.75 refuses lines without a colon, lengths that are not numbers, malformed
 * chunks and other versions. What it lets through is found here, except for what it hides: it takes
 * a line feed alone as the end of a line, joins folded lines, ends a line at a NUL byte and skips
 * further spaces before the target.
 */
struct head {
    uint32_t hosts, lengths, codings;
    bool chunked;   /* a coding is */
    bool malformed; /* a name is not a token, or a value has control characters */
};

static enum MHD_Result look_at_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                      const char *value)
{
    (void)kind;
    struct head *head = ctx;
    size_t n = strspn(name, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                            "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    head->malformed |= n == 0 || name[n];
    for (const char *c = value; c && *c; c++)
        head->malformed |= ((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f;
    head->hosts += strcasecmp(name, "Host") == 0;
    head->lengths += strcasecmp(name, "Content-Length") == 0;
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        head->codings++;
        head->chunked |= value && strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

/* What is wrong with a head, or NULL. */
static const char *head_fault(const struct head *head, bool old)
{
    if (head->malformed)
        return "a header has characters that it may not have";
    if (head->hosts > 1)
        return "there is more than one Host header";
    if (head->hosts == 0 && !old)
        return "there is no Host header";
    if (head->lengths > 1)
        return "there is more than one Content-Length";
    if (head->lengths && head->codings)
        return "there is both a Content-Length and a Transfer-Encoding";
    if (head->codings && (head->codings > 1 || !head->chunked || old))
        return "the only Transfer-Encoding that is understood is 'chunked', once, with HTTP/1.1";
    return NULL;
}

enum { MAX_AUTHORITY = 264 };

/* Splits a target into its path and, if it is whole ("http://HOST/PATH"), the host. NULL: it is
 * neither. */
static const char *target_path(const char *url, char host[MAX_AUTHORITY])
{
    host[0] = 0;
    const char *from = strncasecmp(url, "http://", 7) == 0    ? url + 7
                       : strncasecmp(url, "https://", 8) == 0 ? url + 8
                                                              : NULL;
    if (!from)
        return url[0] == '/' || strcmp(url, "*") == 0 ? url : NULL;
    size_t n = strcspn(from, "/");
    if (n >= MAX_AUTHORITY)
        return NULL;
    memcpy(host, from, n);
    host[n] = 0;
    return from[n] ? from + n : "/";
}

/* Finds the request's path and host (NULL: it names none) in its head. False: refuse it,
 * and its connection closed. */
static bool read_head(struct exchange *x, const char *url, const char **path, const char **host,
                      char authority[MAX_AUTHORITY])
{
    struct head head = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, look_at_header, &head);
    const char *fault = head_fault(&head, x->old);
    *path = target_path(url, authority);
    *host = authority[0] ? authority : http_header(x, "Host");
    if (!fault && (!*path || strchr(*path, ' ')))
        fault = "its target is not a path";
    if (!fault && *host && !moe_access_host_is_valid(*host))
        fault = "its Host is malformed";
    if (fault)
        moe_fail(&x->why, MOE_ERR_USAGE, "not an HTTP request that can be answered: %s", fault);
    return !fault;
}

/* ---- What is refused ---- */

/* Its client is the holder of the n-th key. */
static void http_name_client(struct exchange *x, uint32_t n)
{
    struct moe_http *h = x->http;
    struct http_client *named = http_client_hold(h, http_client_of_key(n));
    x->owner = moe_access_key_owner(h->access.keys, n);
    if (!named)
        return; /* its address will do */
    http_client_release(h, x->client);
    x->client = named;
}

/* The number of the key that the request has; 0: none, or no keys are needed. */
static uint32_t find_key(struct exchange *x)
{
    const struct moe_access_keys *keys = x->http->access.keys;
    uint32_t key = keys ? moe_access_key_find(keys, http_header(x, "Authorization"), "Bearer ") : 0;
    return keys && !key ? moe_access_key_find(keys, http_header(x, "x-api-key"), "") : key;
}

static bool http_posts(const struct exchange *x)
{
    return moe_http_paths[x->route].how == MOE_HTTP_ANSWER ||
           moe_http_paths[x->route].how == MOE_HTTP_SHOW;
}

/* The HTTP status that refuses the request, and why; 0: it is accepted. */
static int refusal(struct exchange *x, const char *path, const char *host, const char *method,
                   struct moe_err *why)
{
    struct moe_http *h = x->http;
    const char *origin = http_header(x, "Origin");
    bool known = x->route != MOE_HTTP_ELSEWHERE, asks = strcmp(method, "OPTIONS") == 0;
    if (!moe_access_host_fits(&h->access, host)) {
        moe_fail(why, MOE_ERR_USAGE,
                 "this server does not answer to '%.200s': to allow that name, start it with "
                 "--allow-host %.*s",
                 host, (int)(*host == '[' ? strlen(host) : strcspn(host, ":")), host);
        return 403;
    }
    if (!moe_access_origin_fits(&h->access, origin, host, &x->foreign)) {
        x->foreign = false;
        moe_fail(why, MOE_ERR_USAGE,
                 "pages of '%.200s' may not use this server: to allow them, start it with "
                 "--allow-origin %.200s",
                 origin, origin);
        return 403;
    }
    if (asks && (known || strcmp(path, "*") == 0))
        return 0;
    uint32_t key = find_key(x);
    if (key)
        http_name_client(x, key);
    if (h->access.keys && !key && !(known && moe_http_paths[x->route].open)) {
        moe_fail(why, MOE_ERR_USAGE,
                 "a key is needed: an Authorization header with \"Bearer \" "
                 "and one of the server's keys, or an x-api-key header with one");
        return 401;
    }
    if (!known) {
        moe_http_refuse(path, why);
        return 404;
    }
    const bool posts = http_posts(x), kept = moe_http_paths[x->route].how == MOE_HTTP_KEPT;
    if (posts ? strcmp(method, "POST") != 0
              : !is_get(method) && !(kept && strcmp(method, "DELETE") == 0)) {
        if (kept && strcmp(method, "POST") == 0 && *x->item != '/' &&
            moe_ends_with(x->item, "/cancel")) {
            moe_fail(why, MOE_ERR_USAGE,
                     "responses are not computed in the background, so none can be cancelled");
            return MHD_HTTP_BAD_REQUEST;
        }
        moe_fail(why, MOE_ERR_USAGE, "'%s' takes %s, not %.20s", path, posts ? "POST" : "GET",
                 method);
        return 405;
    }
    if (x->reserved && x->route != MOE_HTTP_HEALTH && x->route != MOE_HTTP_METRICS) {
        moe_fail(why, MOE_ERR_LIMIT, "all of the server's connections are taken: try again later");
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    const char *coding = http_header(x, "Content-Encoding");
    x->coding = !coding                             ? CODING_NONE
                : strcasecmp(coding, "zstd") == 0   ? CODING_ZSTD
                : strcasecmp(coding, "gzip") == 0   ? CODING_GZIP
                : strcasecmp(coding, "x-gzip") == 0 ? CODING_GZIP
                                                    : CODING_NONE;
    if (posts && coding && *coding && !x->coding && strcasecmp(coding, "identity") != 0) {
        moe_fail(why, MOE_ERR_USAGE,
                 "the request's body is encoded as '%.40s': send it as it is, or compressed by "
                 "'gzip' or 'zstd'",
                 coding);
        return MHD_HTTP_UNSUPPORTED_MEDIA_TYPE;
    }
    return 0;
}

void http_route_late(struct exchange *x)
{
    if (x->refused || !is_closing(x->http) || x->route == MOE_HTTP_METRICS)
        return;
    x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    moe_fail(&x->why, MOE_ERR_USAGE, "the server is closing");
}

void http_route(struct exchange *x, const char *url, const char *method, const char *version)
{
    const char *path, *host;
    char authority[MAX_AUTHORITY];
    snprintf(x->method, sizeof x->method, "%s", method);
    x->old = strcmp(version, "HTTP/1.0") == 0;
    x->faulty = !read_head(x, url, &path, &host, authority);
    x->route = x->faulty ? MOE_HTTP_ELSEWHERE : moe_http_find(path, x->item, sizeof x->item);
    x->form = x->route != MOE_HTTP_ELSEWHERE ? moe_http_paths[x->route].kind
              : x->faulty                    ? MOE_REQUEST_CHAT
                                             : moe_http_form_of(path);
    x->refused = x->faulty ? MHD_HTTP_BAD_REQUEST : refusal(x, path, host, method, &x->why);
    http_client_name(x->client->id, x->who);
    http_route_late(x);
}

/* ---- Errors ---- */

/* Seconds after which a client should try again: as long as answers took on average. */
static void retry_after(struct exchange *x, char seconds[16])
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    double mean = h->counts.whole.n ? h->counts.whole.sum / (double)h->counts.whole.n : 1;
    pthread_mutex_unlock(&h->lock);
    snprintf(seconds, 16, "%.0f", mean < 1 ? 1 : mean > 60 ? 60 : mean);
}

enum MHD_Result http_respond_error(struct exchange *x, unsigned status, const struct moe_err *why)
{
    bool later = status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE;
    char seconds[16];
    retry_after(x, seconds);
    moe_buf_release(&x->out);
    moe_reply_error(&x->out, moe_request_api(x->form), status, why);
    const char *const headers[][2] = {
        {"Retry-After", later ? seconds : NULL},
        {"Accept-Encoding", status == MHD_HTTP_UNSUPPORTED_MEDIA_TYPE ? "gzip, zstd" : NULL},
        {"WWW-Authenticate", status == MHD_HTTP_UNAUTHORIZED ? "Bearer" : NULL},
        {"Allow", status != MHD_HTTP_METHOD_NOT_ALLOWED           ? NULL
                  : http_posts(x)                                 ? "POST, OPTIONS"
                  : moe_http_paths[x->route].how == MOE_HTTP_KEPT ? "GET, HEAD, DELETE, OPTIONS"
                                                                  : "GET, HEAD, OPTIONS"},
        {NULL}};
    return http_respond(x, status, "application/json", headers);
}

/* ---- Completions ---- */

/* Rough bytes of a log probability in an answer. */
enum { SAID_BYTES = 96 };

/* A completion that the server computes. Until it is done, all but its constant members belong to
 * the server's threads, which call back for one event of a request at a time. */
struct completion {
    uint32_t n_choices, n_ended;
    struct moe_reply *reply; /* NULL: the request was not read */
    unsigned refused;        /* HTTP status of `why`; 0: it was accepted */
    struct moe_err why;
    /* Under the server's lock: keys of the request, and messages that did not fit. */
    char ignored[MOE_REQUEST_IGNORED];
    uint32_t n_left_out;
    char *conversation; /* of a response to keep, as it was asked; NULL: of others */
    uint32_t n_asked;   /* messages of it */
};

static void free_completion(struct completion *c)
{
    moe_reply_free(c->reply);
    free(c->conversation);
    free(c);
}

/* ---- Events of the server ---- */

static void on_begun(void *ctx, uint64_t n_prompt, uint32_t n_left_out, const char *notes)
{
    struct exchange *x = ctx;
    moe_reply_begun(x->completion->reply, n_prompt, n_left_out);
    pthread_mutex_lock(&x->http->lock);
    x->completion->n_left_out = n_left_out;
    if (notes && !strstr(x->completion->ignored, "schema ")) /* once for all choices */
        moe_request_ignore(x->completion->ignored, "schema ", notes);
    pthread_mutex_unlock(&x->http->lock);
}

static void on_part(void *ctx, uint32_t choice, const struct moe_answer_part *part)
{
    struct exchange *x = ctx;
    struct moe_http *h = x->http;
    struct moe_buf event = {0};
    moe_reply_part(x->completion->reply, choice, part, &event);
    pthread_mutex_lock(&h->lock);
    if (x->streams)
        exchange_put(x, &event);
    else
        exchange_book(x, part->n);
    pthread_mutex_unlock(&h->lock);
    moe_buf_release(&event);
}

static void on_token(void *ctx, uint32_t choice, const struct moe_token_said *said)
{
    struct exchange *x = ctx;
    struct moe_http *h = x->http;
    if (!moe_reply_token(x->completion->reply, choice, said))
        return;
    pthread_mutex_lock(&h->lock);
    exchange_book(x, SAID_BYTES * (1 + said->n_top));
    pthread_mutex_unlock(&h->lock);
}

/* Turns an answer that only the closing server has stopped into a failure. */
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

/* Keeps a response whose answer is complete, if that is wanted. */
static void keep_response(struct exchange *x)
{
    const struct completion *c = x->completion;
    struct moe_buf response = {0}, conversation = {0};
    if (c->conversation && moe_reply_keep(c->reply, c->conversation, &response, &conversation))
        kept_responses_put(x->http->kept, moe_reply_id(c->reply), x->owner, &response,
                           &conversation, c->n_asked);
    moe_buf_release(&response);
    moe_buf_release(&conversation);
}

static void on_end(void *ctx, uint32_t choice, const struct moe_server_result *result)
{
    struct exchange *x = ctx;
    struct moe_http *h = x->http;
    struct completion *c = x->completion;
    struct moe_err err;
    struct moe_buf rest = {0};
    const struct moe_server_result told = end_to_tell(result, &err);
    moe_reply_ended(c->reply, choice, &told, &rest);
    keep_response(x);
    bool last = ++c->n_ended == c->n_choices, failed = moe_reply_failed(c->reply) != NULL;
    pthread_mutex_lock(&h->lock);
    count_end(&h->counts, &told);
    snprintf(x->model, sizeof x->model, "%s", result->model);
    x->n_prompt = moe_reply_prompt_tokens(c->reply);
    x->n_tokens += result->n_tokens;
    if (result->n_tokens && (x->first_seconds == 0 || result->ttft_seconds < x->first_seconds))
        x->first_seconds = result->ttft_seconds;
    /* A stream that has not begun reports a failure by its status instead. */
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

/* Puts the conversation of the response that a request goes on from before it. */
static int continue_response(struct exchange *x, struct moe_request *r, struct moe_err *err)
{
    struct moe_buf before = {0};
    int status = MOE_OK;
    if (!kept_responses_get(x->http->kept, r->before, x->owner, NULL, &before, NULL))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "the request: 'previous_response_id': there is no response '%.100s' here "
                          "(any more): send the whole conversation",
                          r->before);
    else if (before.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the earlier response");
    else
        status = moe_request_go_on(r, before.data, before.size, err);
    moe_buf_release(&before);
    return status;
}

static bool find_item(void *ctx, const char *item, struct moe_buf *response)
{
    struct exchange *x = ctx;
    return kept_responses_with_item(x->http->kept, item, x->owner, response);
}

static int on_read(void *ctx, struct moe_request *r, struct moe_err *err)
{
    struct exchange *x = ctx;
    struct completion *c = x->completion;
    const char *model = r->model ? r->model : moe_server_model(x->http->server, 0);
    if (r->before)
        MOE_TRY(continue_response(x, r, err));
    if (r->refers)
        MOE_TRY(moe_request_refer(r, find_item, x, err));
    if (r->keeps && x->http->options.responses_bytes)
        c->conversation = moe_request_conversation(r, &c->n_asked);
    MOE_TRY(moe_reply_new(&c->reply, r, model ? model : "", err));
    c->n_choices = r->n;
    memcpy(c->ignored, r->ignored, sizeof c->ignored);
    pthread_mutex_lock(&x->http->lock);
    x->streams = r->stream;
    x->lines = moe_reply_is_lines(c->reply);
    x->put_at = moe_seconds();
    pthread_mutex_unlock(&x->http->lock);
    return MOE_OK;
}

static void on_refused(void *ctx, const struct moe_err *why)
{
    struct exchange *x = ctx;
    struct completion *c = x->completion;
    c->why = *why;
    c->refused =
        why->status == MOE_ERR_LIMIT ? MHD_HTTP_TOO_MANY_REQUESTS : moe_reply_http_status(why);
    pthread_mutex_lock(&x->http->lock);
    x->streams = false;
    x->done = true;
    exchange_tell(x);
    pthread_mutex_unlock(&x->http->lock);
    exchange_release(x);
}

/* ---- Submitting ---- */

/* Hands the body to the server, which reads it in a thread of its own. */
static enum MHD_Result begin_completion(struct exchange *x)
{
    const struct moe_server_events events = {.ctx = x,
                                             .read = on_read,
                                             .refused = on_refused,
                                             .begun = on_begun,
                                             .part = on_part,
                                             .token = on_token,
                                             .ended = on_end,
                                             .client = x->client->id,
                                             .owner =
                                                 x->http->options.share_prompts ? 0 : x->owner};
    struct moe_err err;
    struct moe_buf body = exchange_take_body(x);
    int status = MOE_ERR_MEMORY;
    if (!(x->completion = calloc(1, sizeof *x->completion))) {
        moe_fail(&err, status, "out of memory: the request");
    } else {
        x->free_completion = free_completion;
        exchange_set_stage(x, EXCHANGE_WAITING);
        exchange_hold(x); /* for the server, until its last event */
        status = moe_server_submit_body(x->http->server, moe_http_paths[x->route].kind, &body,
                                        &events, &x->id, &err);
    }
    moe_buf_release(&body);
    if (status == MOE_OK)
        return MHD_YES;
    if (x->completion) {
        exchange_set_stage(x, EXCHANGE_RECEIVING);
        exchange_release(x);
    }
    free(x->completion);
    x->completion = NULL;
    return http_respond_error(x, status == MOE_ERR_LIMIT ? 429 : moe_reply_http_status(&err), &err);
}

/* ---- Sending ---- */

static enum MHD_Result refuse_cut(struct exchange *x)
{
    struct moe_err err;
    moe_fail(&err, MOE_ERR_LIMIT,
             "the current answers take more memory than the server's buffers have");
    return http_respond_error(x, 503, &err);
}

static enum MHD_Result complete(struct exchange *x)
{
    if (x->stage == EXCHANGE_RECEIVING)
        return begin_completion(x);
    struct moe_http *h = x->http;
    const struct completion *c = x->completion;
    pthread_mutex_lock(&h->lock);
    bool some = x->out.size > 0, is_cut = x->cut, is_gone = x->gone;
    const uint32_t n_left_out = c->n_left_out;
    if ((is_cut || x->done || (x->streams && some)) && !is_gone)
        x->stage = EXCHANGE_SENDING;
    pthread_mutex_unlock(&h->lock);
    if (x->stage != EXCHANGE_SENDING)
        return is_gone ? MHD_NO : MHD_YES;
    if (is_cut)
        return refuse_cut(x);
    if (!some) {
        const struct moe_err *why = c->refused ? &c->why : moe_reply_failed(c->reply);
        return http_respond_error(x, c->refused ? c->refused : moe_reply_http_status(why), why);
    }
    char left_out[16];
    snprintf(left_out, sizeof left_out, "%u", n_left_out);
    const char *const headers[][2] = {
        {"Cache-Control", x->streams ? "no-cache" : "no-store"},
        {"X-Moe-Ignored", c->ignored[0] ? c->ignored : NULL},
        {"X-Moe-Left-Out", n_left_out ? left_out : NULL},
        {NULL},
    };
    const char *type = x->lines ? "application/x-ndjson" : "text/event-stream";
    return x->streams ? http_respond_stream(x, type, headers)
                      : http_respond(x, MHD_HTTP_OK, "application/json", headers);
}

/* ---- The page ---- */

/* The assembler includes page.html, relative to the directory in which make runs. */
__asm__(".section .rodata\n"
        "page:\n"
        ".incbin \"lib/serve/page.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char page[];

/* Stands in the page for a number drawn for each response: browsers run only scripts and styles
 * that carry it. */
#define NONCE "NONCE-OF-THIS-RESPONSE"

static void append_page(struct moe_buf *out, const char *nonce)
{
    const char *from = page, *place;
    while ((place = strstr(from, NONCE))) {
        moe_buf_append(out, from, (uint64_t)(place - from));
        moe_buf_text(out, nonce);
        from = place + sizeof NONCE - 1;
    }
    moe_buf_text(out, from);
}

static enum MHD_Result respond_page(struct exchange *x)
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
    const char *const headers[][2] = {{"Content-Security-Policy", policy},
                                      {"Referrer-Policy", "no-referrer"},
                                      {"Cache-Control", "no-store"},
                                      {NULL}};
    return exchange_book_whole(x)
               ? http_respond(x, MHD_HTTP_OK, "text/html; charset=utf-8", headers)
               : refuse_cut(x);
}

/* ---- Answers at once ---- */

/* Whether the text is a list of header names as browsers send it. */
static bool is_list_of_names(const char *text)
{
    return strlen(text) < 1024 &&
           text[strspn(text, "abcdefghijklmnopqrstuvwxyz"
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ")] == 0;
}

static enum MHD_Result respond_preflight(struct exchange *x)
{
    const char *names = http_header(x, "Access-Control-Request-Headers");
    const char *const foreign[][2] = {
        {"Access-Control-Allow-Methods", "GET, POST, DELETE"},
        {"Access-Control-Allow-Headers",
         names && is_list_of_names(names) ? names : "Authorization, Content-Type"},
        {"Access-Control-Max-Age", "600"},
        {NULL}};
    return http_respond(x, MHD_HTTP_NO_CONTENT, NULL, x->foreign ? foreign : &foreign[3]);
}

static void write_metrics(struct exchange *x)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    struct moe_http_counts counts = h->counts;
    counts.buffered = h->buffered;
    pthread_mutex_unlock(&h->lock);
    moe_metrics_write(&counts, h->server, &x->out);
}

static enum MHD_Result respond_json(struct exchange *x)
{
    return exchange_book_whole(x) ? http_respond(x, MHD_HTTP_OK, "application/json", no_store)
                                  : refuse_cut(x);
}

/* The model of this name, as one API or Ollama's shows it. */
static enum MHD_Result respond_model(struct exchange *x, const char *name)
{
    struct moe_server_model m;
    struct moe_err err;
    const bool one = x->route == MOE_HTTP_MODEL;
    if (moe_server_describe_name(x->http->server, name, one, &m, &err) != MOE_OK)
        return http_respond_error(x, MHD_HTTP_NOT_FOUND, &err);
    if (one)
        http_write_model(&m, &x->out);
    else
        http_write_show(x->http->server, &m, &x->out);
    return respond_json(x);
}

enum { SHOW_MEMORY = 64 << 10 }; /* for the values of a body */

/* {"model": "NAME"}, or "name". */
static enum MHD_Result respond_show(struct exchange *x)
{
    struct moe_err err;
    struct json_t *asked = NULL;
    struct moe_buf body = exchange_take_body(x);
    const char *name = NULL;
    int status = moe_json_parse(&asked, "the request", body.data ? (const void *)body.data : "",
                                body.size, SHOW_MEMORY, &err);
    if (status == MOE_OK)
        status = moe_json_get_text("the request", asked, "name", false, &name, &err);
    if (status == MOE_OK)
        status = moe_json_get_text("the request", asked, "model", name == NULL, &name, &err);
    enum MHD_Result result = status == MOE_OK
                                 ? respond_model(x, name)
                                 : http_respond_error(x, moe_reply_http_status(&err), &err);
    moe_json_free(asked);
    moe_buf_release(&body);
    return result;
}

/* Shows a kept response, or forgets it. */
static enum MHD_Result respond_kept(struct exchange *x)
{
    struct moe_err err;
    const bool drops = strcmp(x->method, "DELETE") == 0;
    struct kept_responses *kept = x->http->kept;
    if (drops ? !kept_responses_drop(kept, x->item, x->owner)
              : !kept_responses_get(kept, x->item, x->owner, &x->out, NULL, NULL)) {
        moe_fail(&err, MOE_ERR_USAGE, "the response '%.100s' is not kept here", x->item);
        return http_respond_error(x, MHD_HTTP_NOT_FOUND, &err);
    }
    if (drops)
        moe_buf_printf(&x->out, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}\n",
                       x->item);
    return respond_json(x);
}

/* An argument behind the path's question mark, or "". */
static const char *argument(const struct exchange *x, const char *name)
{
    const char *value = MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
    return value ? value : "";
}

/* The items that a kept response answers: those of one page. */
static enum MHD_Result respond_items(struct exchange *x)
{
    struct moe_err err;
    struct moe_buf conversation = {0};
    uint32_t n_asked = 0;
    uint64_t limit = 20;
    const char *order = argument(x, "order");
    int status = MOE_OK;
    if (*argument(x, "limit") &&
        (!moe_parse_u64(argument(x, "limit"), &limit) || limit < 1 || limit > 100))
        status =
            moe_fail(&err, MOE_ERR_FORMAT, "the request: 'limit' is '%.40s', expected 1 to 100",
                     argument(x, "limit"));
    else if (*order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        status = moe_fail(&err, MOE_ERR_FORMAT,
                          "the request: 'order' is '%.40s', expected asc or desc", order);
    else if (!kept_responses_get(x->http->kept, x->item, x->owner, NULL, &conversation, &n_asked))
        status = moe_fail(&err, MOE_ERR_USAGE, "the response '%.100s' is not kept here", x->item);
    else
        status = moe_reply_items(&x->out, &conversation, n_asked, x->item,
                                 strcmp(order, "asc") == 0, argument(x, "after"), limit, &err);
    moe_buf_release(&conversation);
    return status == MOE_OK
               ? respond_json(x)
               : http_respond_error(
                     x, status == MOE_ERR_USAGE ? MHD_HTTP_NOT_FOUND : moe_reply_http_status(&err),
                     &err);
}

static enum MHD_Result answer_whole(struct exchange *x)
{
    struct moe_server *server = x->http->server;
    switch (x->route) {
    case MOE_HTTP_PAGE:
        return respond_page(x);
    case MOE_HTTP_HEALTH:
        moe_buf_text(&x->out, "{\"status\":\"ok\"}\n");
        return respond_json(x);
    case MOE_HTTP_METRICS:
        write_metrics(x);
        return http_respond(x, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", no_store);
    case MOE_HTTP_MODELS:
        http_write_models(server, &x->out);
        return respond_json(x);
    case MOE_HTTP_MODEL:
        return respond_model(x, x->item);
    case MOE_HTTP_RESPONSE:
        return respond_kept(x);
    case MOE_HTTP_RESPONSE_ITEMS:
        return respond_items(x);
    case MOE_HTTP_PROPS:
        http_write_props(server, &x->out);
        return respond_json(x);
    case MOE_HTTP_SLOTS:
        return http_write_slots(server, &x->out) || !*argument(x, "fail_on_no_slot")
                   ? respond_json(x)
                   : http_respond(x, MHD_HTTP_SERVICE_UNAVAILABLE, "application/json", no_store);
    case MOE_HTTP_STUDIO_MODELS:
        http_write_studio_models(server, &x->out);
        return respond_json(x);
    case MOE_HTTP_OLLAMA_TAGS:
    case MOE_HTTP_OLLAMA_PS:
        http_write_tags(server, x->route == MOE_HTTP_OLLAMA_PS, &x->out);
        return respond_json(x);
    case MOE_HTTP_OLLAMA_SHOW:
        return respond_show(x);
    case MOE_HTTP_OLLAMA_VERSION:
        moe_buf_text(&x->out,
                     "{\"version\":\"" OLLAMA_VERSION "\",\"moe_toolkit\":\"" MOE_VERSION "\"}\n");
        return respond_json(x);
    default: /* models answer these, or nobody */
        return MHD_NO;
    }
}

enum MHD_Result http_answer(struct exchange *x, const char *method)
{
    if (x->refused)
        return http_respond_error(x, (unsigned)x->refused, &x->why);
    if (strcmp(method, "OPTIONS") == 0)
        return respond_preflight(x);
    return moe_http_paths[x->route].how == MOE_HTTP_ANSWER ? complete(x) : answer_whole(x);
}
