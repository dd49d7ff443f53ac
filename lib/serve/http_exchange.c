/* Exchanges: what goes in and out between a client and the server, and responses; who clients are.
 */
#define _GNU_SOURCE /* struct ucred */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/clock.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "serve/http_internal.h"

/* ---- Clients ---- */

/* No network that is routed begins with these. */
enum { ID_ADDRESS = 1, ID_USER, ID_KEY };

static uint64_t client_id(uint64_t kind, uint32_t number)
{
    return kind << 32 | number;
}

uint64_t http_client_of_key(uint32_t n)
{
    return client_id(ID_KEY, n);
}

static uint64_t number_of(const uint8_t *bytes, int n)
{
    uint64_t number = 0;
    for (int i = 0; i < n; i++)
        number = number << 8 | bytes[i];
    return number;
}

uint64_t http_client_of_socket(int fd)
{
    struct sockaddr_storage from = {0};
    struct ucred user = {0};
    socklen_t n = sizeof from, n_user = sizeof user;
    getpeername(fd, (struct sockaddr *)&from, &n);
    if (from.ss_family == AF_INET)
        return client_id(ID_ADDRESS, ntohl(((struct sockaddr_in *)&from)->sin_addr.s_addr));
    if (from.ss_family != AF_INET6) {
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &n_user);
        return client_id(ID_USER, user.uid);
    }
    const uint8_t *bytes = ((struct sockaddr_in6 *)&from)->sin6_addr.s6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&((struct sockaddr_in6 *)&from)->sin6_addr))
        return client_id(ID_ADDRESS, (uint32_t)number_of(bytes + 12, 4));
    return number_of(bytes, 8);
}

void http_client_name(uint64_t id, char name[64])
{
    const uint32_t number = (uint32_t)id;
    struct in_addr v4 = {htonl(number)};
    struct in6_addr v6 = {0};
    for (int i = 0; i < 8; i++)
        v6.s6_addr[i] = (uint8_t)(id >> (56 - 8 * i));
    if (id >> 32 == ID_ADDRESS)
        inet_ntop(AF_INET, &v4, name, 64);
    else if (id >> 32 == ID_USER || id >> 32 == ID_KEY)
        snprintf(name, 64, "%s %u", id >> 32 == ID_USER ? "user" : "key", number);
    else if (inet_ntop(AF_INET6, &v6, name, 60))
        strcat(name, "/64");
}

struct http_client *http_client_hold(struct moe_http *h, uint64_t id)
{
    struct http_client *c = h->clients;
    while (c && c->id != id)
        c = c->next;
    if (!c && (c = calloc(1, sizeof *c)) != NULL) {
        *c = (struct http_client){.next = h->clients, .id = id};
        h->clients = c;
    }
    if (c)
        c->holders++;
    return c;
}

void http_client_release(struct moe_http *h, struct http_client *client)
{
    if (!client || --client->holders > 0)
        return;
    struct http_client **at = &h->clients;
    while (*at != client)
        at = &(*at)->next;
    *at = client->next;
    free(client);
}

/* ---- The access log ---- */

/* Writes a line of what was asked and how it was answered, and nothing of what was said. A pipe
 * that is full loses it: no client waits for a log. */
static void write_access_line(const struct exchange *x)
{
    struct moe_http *h = x->http;
    struct moe_buf line = {0};
    struct moe_emit e;
    struct moe_err err;
    struct timespec now;
    struct tm utc;
    char at[40];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(at + n, sizeof at - n, ".%03ldZ", now.tv_nsec / 1000000);
    moe_emit_begin_json(&e, &line, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "time", at);
    moe_emit_text(&e, "client", x->who);
    moe_emit_text(&e, "method", x->method);
    moe_emit_text(&e, "path", moe_http_paths[x->route].path);
    moe_emit_u64(&e, "status", x->status);
    moe_emit_u64(&e, "received_bytes", x->n_body);
    moe_emit_u64(&e, "sent_bytes", x->n_sent);
    moe_emit_fixed(&e, "seconds", 3, moe_seconds() - x->came);
    moe_emit_bool(&e, "left", x->gone_early);
    if (x->model[0]) {
        moe_emit_text(&e, "model", x->model);
        moe_emit_u64(&e, "prompt_tokens", x->n_prompt);
        moe_emit_u64(&e, "tokens", x->n_tokens);
        moe_emit_fixed(&e, "first_token_seconds", 3, x->first_seconds);
    }
    struct pollfd out = {.fd = h->options.access_log, .events = POLLOUT};
    bool whole = moe_emit_end(&e, &err) == MOE_OK && !line.failed && poll(&out, 1, 0) == 1 &&
                 write(out.fd, line.data, line.size) == (ssize_t)line.size;
    pthread_mutex_lock(&h->lock);
    h->counts.unlogged += !whole;
    pthread_mutex_unlock(&h->lock);
    moe_buf_release(&line);
}

/* ---- Exchanges ---- */

/* The part of all buffers that one answer may take. */
enum { ANSWER_PART = 4 };
/* ... and all bodies together: that many quarters. */
enum { BODY_QUARTERS = 3 };
/* The most that an empty buffer keeps; an answer for which there is always room. */
enum { KEPT_BYTES = 16 << 10, SMALL_BYTES = 8 << 10 };

struct exchange *exchange_new(struct moe_http *h, struct MHD_Connection *connection)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    *x = (struct exchange){
        .http = h, .connection = connection, .route = MOE_HTTP_ELSEWHERE, .watched = -1};
    x->holders = 1;
    x->put_at = x->came = x->received_at = moe_seconds();
    pthread_mutex_lock(&h->lock);
    x->next = h->exchanges;
    x->link = &h->exchanges;
    if (x->next)
        x->next->link = &x->next;
    h->exchanges = x;
    pthread_mutex_unlock(&h->lock);
    return x;
}

void exchange_hold(struct exchange *x)
{
    pthread_mutex_lock(&x->http->lock);
    x->holders++;
    pthread_mutex_unlock(&x->http->lock);
}

void exchange_release(struct exchange *x)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool last = --x->holders == 0;
    pthread_mutex_unlock(&h->lock);
    if (!last)
        return;
    if (h->options.access_log >= 0)
        write_access_line(x);
    pthread_mutex_lock(&h->lock);
    *x->link = x->next;
    if (x->next)
        x->next->link = x->link;
    h->buffered -= x->booked;
    pthread_cond_broadcast(&h->fewer);
    pthread_mutex_unlock(&h->lock);
    if (x->completion)
        x->free_completion(x->completion);
    moe_buf_release(&x->body);
    moe_buf_release(&x->out);
    free(x);
}

void exchange_set_stage(struct exchange *x, enum exchange_stage stage)
{
    pthread_mutex_lock(&x->http->lock);
    x->stage = stage;
    pthread_mutex_unlock(&x->http->lock);
}

void exchange_wake(struct moe_http *h)
{
    uint64_t one = 1;
    ssize_t put = write(h->wake, &one, sizeof one);
    (void)put; /* full: it is already awake */
}

void exchange_tell(struct exchange *x)
{
    struct moe_http *h = x->http;
    if (x->told || !x->connection)
        return;
    x->holders++;
    if (!h->told)
        exchange_wake(h);
    x->told = true;
    x->next_told = h->told;
    h->told = x;
}

struct exchange *exchange_next_told(struct moe_http *h, bool *suspended, bool *is_cut)
{
    pthread_mutex_lock(&h->lock);
    struct exchange *x = h->told;
    if (x) {
        h->told = x->next_told;
        x->told = false;
        *suspended = x->suspended;
        *is_cut = x->cut;
        x->suspended = false;
    }
    pthread_mutex_unlock(&h->lock);
    return x;
}

static void exchange_cut(struct exchange *x)
{
    struct moe_http *h = x->http;
    if (x->cut)
        return;
    x->cut = true;
    h->counts.cut++;
    h->buffered -= x->booked;
    x->booked = 0;
    if (x->stage == EXCHANGE_WAITING) /* else it may be in use: its connection frees it */
        moe_buf_release(&x->out);
    exchange_tell(x);
}

void exchange_book(struct exchange *x, uint64_t n)
{
    struct moe_http *h = x->http;
    if (x->cut)
        return;
    x->booked += n;
    h->buffered += n;
    if (x->booked > h->options.buffer_bytes / ANSWER_PART)
        exchange_cut(x);
    while (h->buffered > h->options.buffer_bytes) {
        struct exchange *most = NULL;
        for (struct exchange *other = h->exchanges; other; other = other->next)
            if (!other->cut && (!most || other->booked > most->booked))
                most = other;
        exchange_cut(most);
    }
}

void exchange_put(struct exchange *x, const struct moe_buf *bytes)
{
    if (x->cut || x->gone || (!bytes->size && !bytes->failed))
        return;
    moe_buf_append(&x->out, bytes->data, bytes->size);
    x->put_at = moe_seconds();
    exchange_book(x, bytes->size);
    if (x->out.failed || bytes->failed)
        exchange_cut(x);
    exchange_tell(x);
}

void exchange_put_comment(struct exchange *x)
{
    const char *comment = x->lines ? " " : ": \n\n";
    const struct moe_buf bytes = {.data = (uint8_t *)comment, .size = strlen(comment)};
    exchange_put(x, &bytes);
}

void exchange_break_silences(struct moe_http *h, double first, double seconds)
{
    pthread_mutex_lock(&h->lock);
    double now = moe_seconds();
    for (struct exchange *x = h->exchanges; x; x = x->next)
        if (x->streams && !x->done && x->stage != EXCHANGE_RECEIVING &&
            now - x->put_at >= (x->stage == EXCHANGE_WAITING ? first : seconds))
            exchange_put_comment(x);
    pthread_mutex_unlock(&h->lock);
}

/* The unfinished body that gives way to n more bytes of x: of who has most, the one that has been
 * idle longest. NULL: x has to. */
static struct exchange *find_stalled(const struct exchange *x, uint64_t n)
{
    double now = moe_seconds();
    struct exchange *best = NULL;
    for (struct exchange *o = x->http->exchanges; o; o = o->next) {
        if (o == x || o->n_receiving == 0)
            continue;
        if (o->client == x->client ? now - o->received_at < STALLED_SECONDS
                                   : o->client->body_bytes <= x->client->body_bytes + n)
            continue;
        if (!best || o->client->body_bytes > best->client->body_bytes ||
            (o->client == best->client && o->received_at < best->received_at))
            best = o;
    }
    return best;
}

bool exchange_receive(struct exchange *x, const char *bytes, uint64_t n)
{
    struct moe_http *h = x->http;
    const uint64_t most = h->options.buffer_bytes / 4 * BODY_QUARTERS;
    bool fits = false;
    for (struct exchange *other = x; other && !fits;) {
        pthread_mutex_lock(&h->lock);
        fits = !x->cut && h->buffered + n <= h->options.buffer_bytes && h->body_bytes + n <= most;
        if (fits) {
            h->buffered += n;
            x->booked += n;
        }
        other = fits || x->cut ? NULL : find_stalled(x, n);
        pthread_mutex_unlock(&h->lock);
        if (other) {
            other->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
            moe_fail(&other->why, MOE_ERR_MEMORY,
                     "too many requests are being received, and this one did not go on");
            exchange_drop_body(other);
        }
    }
    if (!fits)
        return false;
    moe_buf_append(&x->body, bytes, n);
    x->n_receiving += n;
    h->body_bytes += n;
    x->client->body_bytes += n;
    return !x->body.failed;
}

void exchange_received(struct exchange *x)
{
    x->http->body_bytes -= x->n_receiving;
    x->client->body_bytes -= x->n_receiving;
    x->n_receiving = 0;
}

void exchange_drop_body(struct exchange *x)
{
    struct moe_buf body = exchange_take_body(x);
    moe_buf_release(&body);
}

struct moe_buf exchange_take_body(struct exchange *x)
{
    struct moe_http *h = x->http;
    struct moe_buf body = x->body;
    exchange_received(x);
    pthread_mutex_lock(&h->lock);
    if (!x->cut) {
        h->buffered -= x->body.size;
        x->booked -= x->body.size;
    }
    pthread_mutex_unlock(&h->lock);
    x->body = (struct moe_buf){0};
    return body;
}

/* Decompresses a body into `room` bytes. MOE_ERR_LIMIT: it has more. */
static int unpack_zstd(const struct moe_buf *body, uint8_t *to, uint64_t room, uint64_t *n,
                       struct moe_err *err)
{
    *n = ZSTD_decompress(to, room, body->data, body->size);
    if (!ZSTD_isError(*n))
        return MOE_OK;
    const ZSTD_ErrorCode why = ZSTD_getErrorCode(*n);
    return moe_fail(err,
                    why == ZSTD_error_memory_allocation  ? MOE_ERR_MEMORY
                    : why == ZSTD_error_dstSize_tooSmall ? MOE_ERR_LIMIT
                                                         : MOE_ERR_FORMAT,
                    "the request's body cannot be decompressed: zstd: %s", ZSTD_getErrorName(*n));
}

/* ... of one or more members; to NULL: nowhere, *n is how many there are. */
static int unpack_gzip(const struct moe_buf *body, uint8_t *to, uint64_t room, uint64_t *n,
                       struct moe_err *err)
{
    enum { GZIP_ONLY = 16 };
    uint8_t nowhere[16 << 10];
    z_stream z = {.next_in = body->data,
                  .avail_in = (uInt)(body->size < UINT32_MAX ? body->size : UINT32_MAX)};
    int done = inflateInit2(&z, MAX_WBITS + GZIP_ONLY);
    *n = 0;
    while (done == Z_OK && *n <= room) {
        const uint64_t most = to ? room - *n : sizeof nowhere;
        const uInt more = (uInt)(most < UINT32_MAX ? most : UINT32_MAX);
        z.next_out = to ? to + *n : nowhere;
        z.avail_out = more;
        done = inflate(&z, Z_NO_FLUSH);
        *n += more - z.avail_out;
        if (done == Z_STREAM_END && z.avail_in > 0)
            done = inflateReset(&z);
    }
    const char *why = z.msg ? z.msg : "it ends too early";
    int status = MOE_OK;
    if (done == Z_MEM_ERROR)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request's body");
    else if (*n > room)
        status = moe_fail(err, MOE_ERR_LIMIT, "the request's body is too large, decompressed");
    else if (done != Z_STREAM_END)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "the request's body cannot be decompressed: gzip: %s", why);
    inflateEnd(&z);
    return status;
}

int exchange_decompress(struct exchange *x, uint64_t most, struct moe_err *err)
{
    struct moe_http *h = x->http;
    struct moe_buf plain = {0};
    uint64_t n = 0, kept = 0;
    int status = MOE_OK;
    uint64_t told = 0;
    bool whole = true; /* told is all of it */
    if (x->coding == CODING_GZIP) {
        MOE_TRY(unpack_gzip(&x->body, NULL, most, &told, err));
    } else { /* what a frame says of its size; that of several frames shows only in the end */
        told = ZSTD_getFrameContentSize(x->body.data, x->body.size);
        whole = ZSTD_findFrameCompressedSize(x->body.data, x->body.size) == x->body.size;
    }
    const uint64_t room = whole && told < most ? told : most;
    if (told > most && told < ZSTD_CONTENTSIZE_ERROR)
        return moe_fail(err, MOE_ERR_LIMIT, "the request's body is too large, decompressed");
    pthread_mutex_lock(&h->lock);
    const bool fits = !x->cut && h->buffered + room <= h->options.buffer_bytes;
    if (fits) {
        h->buffered += room;
        x->booked += room;
    }
    pthread_mutex_unlock(&h->lock);
    if (!fits || (room && !moe_buf_reserve(&plain, room)))
        status = moe_fail(err, MOE_ERR_MEMORY, "too many requests are being received");
    else
        status = (x->coding == CODING_GZIP ? unpack_gzip : unpack_zstd)(&x->body, plain.data, room,
                                                                        &n, err);
    if (status == MOE_ERR_LIMIT && room < most) /* more than it says */
        status = MOE_ERR_FORMAT;
    if (status == MOE_OK) {
        exchange_drop_body(x);
        moe_buf_append(&x->body, plain.data, n);
        kept = x->body.size;
        if (x->body.failed)
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request's body");
    }
    pthread_mutex_lock(&h->lock);
    if (fits && !x->cut) {
        h->buffered -= room - kept;
        x->booked -= room - kept;
    }
    pthread_mutex_unlock(&h->lock);
    moe_buf_release(&plain);
    return status;
}

/* Keeps the memory of sent bytes from growing. */
static void drop_taken(struct exchange *x)
{
    uint64_t left = x->out.size - x->taken;
    if (left > x->taken)
        return;
    memmove(x->out.data, x->out.data + x->taken, left);
    x->out.size = left;
    x->taken = 0;
    if (left == 0 && x->out.room > KEPT_BYTES)
        moe_buf_release(&x->out);
}

/* ---- Responses ---- */

/* The largest piece of a stream passed on at once. */
enum { STREAM_PIECE = 16 << 10 };

const char *http_header(const struct exchange *x, const char *name)
{
    const char *value = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
    /* libmicrohttpd leaves the blanks behind a value, which are none of it, in memory of the
     * connection's own. */
    for (size_t n = value ? strlen(value) : 0; n && moe_is_blank(value[n - 1]); n--)
        ((char *)(uintptr_t)value)[n - 1] = 0;
    return value;
}

/* Queues the response, which is NULL if memory was short. */
static enum MHD_Result queue_response(struct exchange *x, unsigned status,
                                      struct MHD_Response *response, const char *type)
{
    struct moe_http *h = x->http;
    if (!response)
        return MHD_NO;
    pthread_mutex_lock(&h->lock);
    x->stage = EXCHANGE_SENDING;
    x->status = status;
    bool closing = h->closing;
    moe_http_count(&h->counts, x->route, status);
    pthread_mutex_unlock(&h->lock);
    if (type)
        MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (closing || x->faulty || x->reserved)
        MHD_add_response_header(response, "Connection", "close");
    if (h->options.origins)
        MHD_add_response_header(response, "Vary", "Origin");
    if (x->foreign) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", http_header(x, "Origin"));
        MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                "Retry-After, X-Moe-Ignored");
    }
    enum MHD_Result result = MHD_queue_response(x->connection, status, response);
    MHD_destroy_response(response); /* the connection holds it */
    return result;
}

static void add_headers(struct MHD_Response *response, const char *const headers[][2])
{
    for (size_t i = 0; response && headers[i][0]; i++)
        if (headers[i][1])
            MHD_add_response_header(response, headers[i][0], headers[i][1]);
}

bool exchange_book_whole(struct exchange *x)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    const uint64_t more = x->out.size > x->booked ? x->out.size - x->booked : 0;
    const bool fits = more <= SMALL_BYTES || (h->buffered + more <= h->options.buffer_bytes &&
                                              x->out.size <= h->options.buffer_bytes / ANSWER_PART);
    x->booked += fits ? more : 0;
    h->buffered += fits ? more : 0;
    pthread_mutex_unlock(&h->lock);
    return fits;
}

enum MHD_Result http_respond(struct exchange *x, unsigned status, const char *type,
                             const char *const headers[][2])
{
    struct MHD_Response *response =
        x->out.failed
            ? NULL
            : MHD_create_response_from_buffer(x->out.size, x->out.data, MHD_RESPMEM_PERSISTENT);
    add_headers(response, headers);
    x->n_sent = x->out.size;
    return queue_response(x, status, response, type);
}

/* Copies at most n bytes of the answer. Without any, the connection is suspended until told. */
static ssize_t read_stream(void *ctx, uint64_t at, char *to, size_t n)
{
    (void)at;
    struct exchange *x = ctx;
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool broken = x->cut || x->gone;
    uint64_t left = broken ? 0 : x->out.size - x->taken;
    if (left < n)
        n = left;
    bool more = !broken && !x->done;
    if (n > 0) {
        memcpy(to, x->out.data + x->taken, n);
        x->taken += n;
        x->n_sent += n;
        x->booked -= n;
        h->buffered -= n;
        drop_taken(x);
    } else if (more) {
        x->suspended = true;
    }
    pthread_mutex_unlock(&h->lock);
    if (broken)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0 && !more)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0)
        MHD_suspend_connection(x->connection);
    return (ssize_t)n;
}

static void end_stream(void *ctx)
{
    exchange_release(ctx);
}

enum MHD_Result http_respond_stream(struct exchange *x, const char *type,
                                    const char *const headers[][2])
{
    exchange_hold(x);
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_PIECE, read_stream, x, end_stream);
    if (!response) {
        exchange_release(x);
        return MHD_NO;
    }
    add_headers(response, headers);
    MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* proxies must not buffer it */
    return queue_response(x, MHD_HTTP_OK, response, type);
}
