/* HTTP over libmicrohttpd: the serving thread, connections, and requests as they arrive.
 * http_routes.c decides what is answered, http_exchange.c sends it. */
#define _DEFAULT_SOURCE /* getaddrinfo */

#include "serve/http.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "serve/http_internal.h"
#include "serve/reply.h"
#include "serve/server.h"

enum {
    BACKLOG = 1024,
    OTHER_FILES = 64,           /* files of the process beside connections */
    CONNECTION_BYTES = 4 << 10, /* of libmicrohttpd and ours, beside the headers */
    RESERVE = 16,               /* connections beyond the limit, for /health and /metrics */
    LOOK_MILLISECONDS = 250,    /* between two looks for late requests and silent streams */
    SEND_BYTES = 128 << 10,     /* that the kernel holds for a client that does not read, at most */
};
#define BEGIN_SECONDS 0.25 /* a stream waits no longer for what would change its status */

void moe_http_options_default(struct moe_http_options *options)
{
    *options = (struct moe_http_options){
        .address = "127.0.0.1",
        .socket_mode = S_IRUSR | S_IWUSR,
        .listener = -1,
        .access_log = -1,
        .port = 8080,
        .max_connections = 1024,
        .max_body_bytes = 4 << 20,
        .max_header_bytes = 16 << 10,
        .buffer_bytes = 16 << 20,
        .responses_bytes = 4 << 20,
        .request_seconds = 30,
        .silence_seconds = 5,
    };
}

uint64_t moe_http_bytes(const struct moe_http_options *options)
{
    return ((uint64_t)options->max_connections + RESERVE) *
               (options->max_header_bytes + CONNECTION_BYTES) +
           options->buffer_bytes + options->responses_bytes;
}

const char *moe_http_url(const struct moe_http *h)
{
    return h->url;
}

bool moe_http_is_local(const struct moe_http *h)
{
    return h->access.loopback;
}

uint32_t moe_http_max_connections(const struct moe_http *h)
{
    return h->options.max_connections;
}

/* ---- Connections ---- */

/* A refused body is read up to this multiple of the limit, so that its client gets to the answer.
 */
enum { READ_ON = 16 };

struct http_connection {
    struct http_connection *next, **link;
    struct http_client *client; /* an address */
    int socket;
    bool waits;                /* for a complete request, which has no exchange yet */
    bool leaves;               /* it was shut down, and counts no more */
    bool reserved;             /* it was accepted beyond the limit */
    double since;              /* moe_seconds() when it began to wait */
    struct exchange *exchange; /* NULL: none */
};

static int socket_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static struct http_connection *connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* ---- Too many connections ---- */

static void let_go(struct http_connection *c)
{
    shutdown(c->socket, SHUT_RDWR);
    c->waits = false;
    c->leaves = true;
    c->client->connections--;
}

static void leave_exchange(struct exchange *x, bool count);

/* Has a connection give way to a new one. First those that wait for a request: of the address that
 * has most connections the one that has been idle longest, else of another. Then, of an address
 * that has more by two, the latest. False: none. */
static bool oust_connection(struct moe_http *h, const struct http_connection *newcomer)
{
    struct http_connection *idle = NULL, *latest = NULL;
    for (struct http_connection *c = h->connections; c; c = c->next) {
        const uint32_t has = c->client->connections;
        if (c == newcomer || c->leaves)
            continue;
        if (c->waits && (!idle || has > idle->client->connections ||
                         (has == idle->client->connections && c->since < idle->since)))
            idle = c;
        if (has > newcomer->client->connections + 1 && !c->waits &&
            (!latest || has > latest->client->connections))
            latest = c; /* the list begins with the latest */
    }
    struct http_connection *ousted = idle ? idle : latest;
    if (!ousted)
        return false;
    if (ousted->exchange)
        leave_exchange(ousted->exchange, false);
    let_go(ousted);
    h->counts.ousted++;
    return true;
}

/* Connections that were not shut down. */
static uint32_t n_connections(const struct moe_http *h)
{
    uint32_t n = 0;
    for (const struct http_client *c = h->clients; c; c = c->next)
        n += c->connections;
    return n;
}

static void begin_connection(struct moe_http *h, struct MHD_Connection *connection,
                             struct http_connection **out)
{
    int fd = socket_of(connection);
    struct http_client *client = http_client_hold(h, http_client_of_socket(fd));
    struct http_connection *c = client ? calloc(1, sizeof *c) : NULL;
    *out = c;
    if (!c) { /* it could not be closed for being late */
        http_client_release(h, client);
        shutdown(fd, SHUT_RDWR);
        return;
    }
    *c = (struct http_connection){.next = h->connections,
                                  .link = &h->connections,
                                  .client = client,
                                  .socket = fd,
                                  .waits = true,
                                  .since = moe_seconds()};
    if (c->next)
        c->next->link = &c->next;
    h->connections = c;
    client->connections++;
    c->reserved = n_connections(h) > h->options.max_connections && !oust_connection(h, c);
}

static void end_connection(struct moe_http *h, struct http_connection *c)
{
    if (!c)
        return;
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    if (!c->leaves)
        c->client->connections--;
    http_client_release(h, c->client);
    free(c);
}

static void on_connection(void *ctx, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct moe_http *h = ctx;
    bool begun = code == MHD_CONNECTION_NOTIFY_STARTED;
    pthread_mutex_lock(&h->lock);
    h->counts.accepted += begun;
    h->counts.connections += begun ? 1 : (uint64_t)-1;
    pthread_mutex_unlock(&h->lock);
    if (begun) {
        begin_connection(h, connection, (struct http_connection **)context);
    } else {
        end_connection(h, *context);
        *context = NULL;
    }
}

/* Whether its client sends no more, and all that it sent was read. */
static bool has_said_all(const struct http_connection *c)
{
    char byte;
    return recv(c->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Answers a refused request whose body does not come: libmicrohttpd would wait for it. */
static void answer_stalled(struct moe_http *h, struct http_connection *c)
{
    struct exchange *x = c->exchange;
    struct moe_buf body = {0}, all = {0};
    moe_reply_error(&body, moe_request_api(x->form), (unsigned)x->refused, &x->why);
    moe_buf_printf(&all,
                   "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %llu\r\n"
                   "Connection: close\r\n\r\n",
                   x->refused, MHD_get_reason_phrase_for((unsigned)x->refused),
                   (unsigned long long)body.size);
    moe_buf_append(&all, body.data, body.size);
    if (!all.failed && !body.failed)
        send(c->socket, all.data, all.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    x->status = (unsigned)x->refused;
    x->n_sent = body.size;
    pthread_mutex_lock(&h->lock);
    moe_http_count(&h->counts, x->route, x->status);
    pthread_mutex_unlock(&h->lock);
    moe_buf_release(&body);
    moe_buf_release(&all);
}

/* Closes connections whose requests do not become complete: those that take too long, and those
 * whose clients left within one. libmicrohttpd 0.9.75 does not notice who leaves at once after
 * sending a part. */
static void http_close_late(struct moe_http *h)
{
    const double now = moe_seconds(), before = now - h->options.request_seconds;
    uint64_t late = 0;
    for (struct http_connection *c = h->connections; c; c = c->next) {
        const bool is_late = c->since < before;
        const struct exchange *x = c->exchange;
        const bool is_stalled = x && x->refused && now - x->received_at >= STALLED_SECONDS;
        if (!c->waits || (!is_late && !is_stalled &&
                          (now - c->since < LOOK_MILLISECONDS * 1e-3 || !has_said_all(c))))
            continue;
        if (is_stalled)
            answer_stalled(h, c);
        let_go(c);
        late += is_late && !is_stalled;
    }
    pthread_mutex_lock(&h->lock);
    h->counts.late += late;
    pthread_mutex_unlock(&h->lock);
}

/* Its connection waits for a complete request, or not. */
static void set_waiting(struct MHD_Connection *connection, bool waits)
{
    struct http_connection *c = connection_of(connection);
    if (!c || c->leaves)
        return;
    c->waits = waits;
    c->since = moe_seconds();
}

/* ---- Requests ---- */

/* The announced length of the body; 0 if there is none. */
static uint64_t announced(const struct exchange *x)
{
    const char *text = http_header(x, "Content-Length");
    uint64_t n = 0;
    return text && moe_parse_u64(text, &n) ? n : 0;
}

static void refuse_large(struct exchange *x)
{
    char limit[32];
    x->refused = MHD_HTTP_CONTENT_TOO_LARGE;
    moe_fail(&x->why, MOE_ERR_LIMIT, "the request's body is larger than %s",
             moe_format_bytes(x->http->options.max_body_bytes, limit));
}

/* Begins an exchange when the headers are there. Refuses at once if the client waits for leave to
 * send its body, or if the body would be too much to read. */
static enum MHD_Result begin_exchange(struct moe_http *h, struct MHD_Connection *connection,
                                      const char *url, const char *method, const char *version,
                                      void **context)
{
    struct http_connection *c = connection_of(connection);
    struct exchange *x = c ? exchange_new(h, connection) : NULL;
    if (!x)
        return MHD_NO;
    *context = x;
    c->exchange = x;
    x->reserved = c->reserved;
    x->client = http_client_hold(h, c->client->id); /* it is there */
    http_route(x, url, method, version);
    uint64_t n = announced(x);
    if (!x->refused && n > h->options.max_body_bytes)
        refuse_large(x);
    if (x->faulty || (x->refused && n > 0 &&
                      (n / READ_ON > h->options.max_body_bytes || http_header(x, "Expect")))) {
        set_waiting(connection, false);
        return http_respond_error(x, (unsigned)x->refused, &x->why);
    }
    return MHD_YES;
}

static enum MHD_Result receive(struct exchange *x, const char *bytes, size_t n)
{
    uint64_t limit = x->http->options.max_body_bytes;
    x->n_body += n;
    x->received_at = moe_seconds();
    if (x->n_body / READ_ON > limit)
        return MHD_NO;
    if (!x->refused && x->n_body > limit)
        refuse_large(x);
    if (!x->refused && !exchange_receive(x, bytes, n)) {
        x->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
        moe_fail(&x->why, MOE_ERR_MEMORY, "too many requests are being received");
    }
    if (x->refused)
        exchange_drop_body(x);
    return MHD_YES;
}

/* Has a complete body decompressed, or refuses it. */
static void decompress(struct exchange *x)
{
    const int status = exchange_decompress(x, x->http->options.max_body_bytes, &x->why);
    if (status == MOE_ERR_LIMIT)
        refuse_large(x);
    else if (status != MOE_OK)
        x->refused = status == MOE_ERR_MEMORY ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_BAD_REQUEST;
    if (x->refused)
        exchange_drop_body(x);
}

/* Makes the loop notice when the client closes its connection. */
static void watch_client(struct exchange *x)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = x};
    int fd = socket_of(x->connection);
    if (x->watched < 0 && fd >= 0 && epoll_ctl(x->http->poll, EPOLL_CTL_ADD, fd, &event) == 0)
        x->watched = fd;
}

/* Answers a complete request, or continues one that was suspended. */
static enum MHD_Result continue_exchange(struct exchange *x, const char *method)
{
    struct moe_http *h = x->http;
    if (x->stage == EXCHANGE_RECEIVING) {
        set_waiting(x->connection, false);
        exchange_received(x);
        if (x->coding && !x->refused && x->body.size)
            decompress(x);
        http_route_late(x);
    }
    enum MHD_Result result = http_answer(x, method);
    if (result != MHD_YES || x->stage != EXCHANGE_WAITING)
        return result;
    watch_client(x);
    pthread_mutex_lock(&h->lock);
    x->suspended = true; /* if it was told meanwhile, it continues in the next round */
    pthread_mutex_unlock(&h->lock);
    MHD_suspend_connection(x->connection);
    return MHD_YES;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *bytes,
                                  size_t *n_bytes, void **context)
{
    struct exchange *x = *context;
    if (!x)
        return begin_exchange(ctx, connection, url, method, version, context);
    if (*n_bytes == 0)
        return continue_exchange(x, method);
    size_t n = *n_bytes;
    *n_bytes = 0;
    return receive(x, bytes, n);
}

/* Cancels what the server still computes for it. */
static void cancel_exchange(struct exchange *x)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool wanted = x->completion && !x->done;
    pthread_mutex_unlock(&h->lock);
    if (wanted)
        moe_server_cancel(h->server, x->id);
}

/* Notes that its client is gone, or must go. */
static void leave_exchange(struct exchange *x, bool count)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool news = !x->gone, has_all = x->done && x->taken == x->out.size;
    x->gone = true;
    bool early = news && count && !has_all && !x->cut && !h->end;
    x->gone_early |= early;
    h->counts.gone += early;
    exchange_tell(x);
    pthread_mutex_unlock(&h->lock);
    if (news)
        cancel_exchange(x);
}

/* The client has closed its connection, or the half of it that sends. Which, only sending tells: it
 * answers with an error if nobody is there. */
static void hear_client(struct exchange *x, uint32_t events)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n"; /* clients leave it out */
    struct moe_http *h = x->http;
    if (events & (EPOLLERR | EPOLLHUP) || x->old) {
        leave_exchange(x, true);
        return;
    }
    pthread_mutex_lock(&h->lock);
    if (x->streams)
        exchange_put_comment(x);
    else if (x->stage == EXCHANGE_WAITING)
        send(x->watched, go_on, sizeof go_on - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    pthread_mutex_unlock(&h->lock);
}

static void on_completed(void *ctx, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct moe_http *h = ctx;
    struct exchange *x = *context;
    if (!x)
        return;
    *context = NULL;
    if (x->watched >= 0)
        epoll_ctl(h->poll, EPOLL_CTL_DEL, x->watched, NULL);
    pthread_mutex_lock(&h->lock);
    x->connection = NULL;
    if (x->done) { /* though an executor may hold it for another moment */
        h->buffered -= x->booked;
        x->booked = 0;
    }
    pthread_mutex_unlock(&h->lock);
    leave_exchange(x,
                   code != MHD_REQUEST_TERMINATED_COMPLETED_OK && x->stage != EXCHANGE_RECEIVING);
    set_waiting(connection, true);
    struct http_connection *c = connection_of(connection);
    if (c)
        c->exchange = NULL;
    exchange_received(x);
    http_client_release(h, x->client);
    x->client = NULL;
    exchange_release(x);
}

static void http_take_told(struct moe_http *h)
{
    struct exchange *x;
    bool suspended, is_cut;
    while ((x = exchange_next_told(h, &suspended, &is_cut))) {
        if (is_cut)
            cancel_exchange(x);
        if (is_cut && x->stage == EXCHANGE_SENDING && x->connection)
            shutdown(socket_of(x->connection), SHUT_RDWR);
        if (suspended)
            MHD_resume_connection(x->connection);
        exchange_release(x);
    }
}

static void http_leave_all(struct moe_http *h)
{
    for (;;) {
        pthread_mutex_lock(&h->lock);
        struct exchange *x = h->exchanges;
        while (x && (!x->connection || x->gone))
            x = x->next;
        pthread_mutex_unlock(&h->lock);
        if (!x)
            break;
        leave_exchange(x, false); /* its connection holds it */
    }
    http_take_told(h);
}

/* ---- libmicrohttpd ---- */

/* Decodes a target in its place where that changes nothing: an encoded slash is not a slash. */
static size_t decode_target(void *ctx, struct MHD_Connection *connection, char *text)
{
    (void)ctx, (void)connection;
    char *to = text;
    for (const char *from = text; *from; from++) {
        unsigned code;
        bool escaped = *from == '%' && isxdigit((unsigned char)from[1]) &&
                       isxdigit((unsigned char)from[2]) && sscanf(from + 1, "%2x", &code) == 1;
        if (escaped && code > ' ' && code < 0x7f &&
            (isalnum((int)code) || strchr("-._~", (int)code))) {
            *to++ = (char)code;
            from += 2;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
    return (size_t)(to - text);
}

static void say_nothing(void *ctx, const char *format, va_list args)
{
    (void)ctx, (void)format, (void)args;
}

static int http_start(struct moe_http *h, struct moe_err *err)
{
    const struct moe_http_options *o = &h->options;
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, h,
        MHD_OPTION_EXTERNAL_LOGGER, say_nothing, NULL, MHD_OPTION_UNESCAPE_CALLBACK, decode_target,
        NULL, MHD_OPTION_LISTEN_SOCKET, h->listener, MHD_OPTION_CONNECTION_LIMIT,
        o->max_connections + RESERVE, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)o->max_header_bytes, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(o->request_seconds + 1), MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_END);
    return h->daemon ? MOE_OK : moe_fail(err, MOE_ERR_IO, "%s: libmicrohttpd cannot serve", h->url);
}

/* ---- The thread ---- */

static int milliseconds_to_wait(struct moe_http *h)
{
    MHD_UNSIGNED_LONG_LONG due;
    if (MHD_get_timeout(h->daemon, &due) == MHD_YES && due < LOOK_MILLISECONDS)
        return (int)due;
    return LOOK_MILLISECONDS;
}

static void take_events(struct moe_http *h)
{
    enum { EVENTS = 64 };
    struct epoll_event events[EVENTS];
    uint64_t woken;
    int n = epoll_wait(h->poll, events, EVENTS, milliseconds_to_wait(h));
    for (int i = 0; i < n; i++) {
        void *what = events[i].data.ptr;
        if (what == &h->wake) {
            ssize_t got = read(h->wake, &woken, sizeof woken);
            (void)got;
        } else if (what != h->daemon) {
            hear_client(what, events[i].events);
        }
    }
}

static bool has_ended(struct moe_http *h)
{
    pthread_mutex_lock(&h->lock);
    bool end = h->end;
    pthread_mutex_unlock(&h->lock);
    return end;
}

/* Stops accepting connections once the server closes. */
static void stop_listening(struct moe_http *h)
{
    pthread_mutex_lock(&h->lock);
    bool stop = h->closing && h->listener >= 0;
    pthread_mutex_unlock(&h->lock);
    if (!stop)
        return;
    int fd = MHD_quiesce_daemon(h->daemon);
    if (fd >= 0)
        close(fd);
    h->listener = -1;
}

static void *http_serve(void *ctx)
{
    struct moe_http *h = ctx;
    double looked = moe_seconds();
    while (!has_ended(h)) {
        take_events(h);
        stop_listening(h);
        http_take_told(h);
        MHD_run(h->daemon);
        if (moe_seconds() - looked > LOOK_MILLISECONDS * 1e-3) {
            http_close_late(h);
            exchange_break_silences(h, BEGIN_SECONDS, h->options.silence_seconds);
            looked = moe_seconds();
        }
    }
    http_leave_all(h);
    MHD_run(h->daemon);
    MHD_stop_daemon(h->daemon);
    return NULL;
}

/* ---- Opening ---- */

/* Allows no more connections than the process may have files. */
static void limit_connections(struct moe_http_options *o)
{
    struct rlimit files;
    rlim_t wanted = (rlim_t)o->max_connections + RESERVE + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted)
        return;
    files.rlim_cur = wanted < files.rlim_max ? wanted : files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < wanted)
        o->max_connections =
            files.rlim_cur > 2 * OTHER_FILES ? (uint32_t)files.rlim_cur - OTHER_FILES : OTHER_FILES;
}

#define LOCAL "unix:"

/* The path of "unix:PATH", or NULL. */
static const char *local_path(const struct moe_http_options *o)
{
    return strncmp(o->address, LOCAL, sizeof LOCAL - 1) == 0 ? o->address + sizeof LOCAL - 1 : NULL;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static int fail_to_listen(struct moe_http *h, int code, struct moe_err *err)
{
    char text[64];
    if (local_path(&h->options))
        return moe_fail(err, MOE_ERR_IO, "%s: cannot listen there: %s", h->options.address,
                        moe_errno_text(code, text, sizeof text));
    return moe_fail(err, MOE_ERR_IO, "%s, port %u: cannot listen there: %s", h->options.address,
                    h->options.port, moe_errno_text(code, text, sizeof text));
}

static void write_url(struct moe_http *h, const struct sockaddr *address, socklen_t n)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (address->sa_family == AF_UNIX) {
        snprintf(h->url, sizeof h->url, LOCAL "%.*s", (int)(n - sizeof address->sa_family),
                 ((const struct sockaddr_un *)address)->sun_path);
        return;
    }
    if (getnameinfo(address, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        strcpy(host, "?"), strcpy(port, "?");
    snprintf(h->url, sizeof h->url, strchr(host, ':') ? "http://[%.60s]:%s" : "http://%.60s:%s",
             host, port);
}

/* Listens at an address; NULL: the listener does already. */
static int listen_at(struct moe_http *h, const struct sockaddr *at, socklen_t n_at,
                     struct moe_err *err)
{
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    int on = 1, send_bytes = SEND_BYTES;
    if (at)
        h->listener = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->listener < 0)
        return fail_to_listen(h, errno, err);
    /* Connections inherit it; else the kernel holds megabytes of each, outside our buffers. */
    setsockopt(h->listener, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    if (at && at->sa_family == AF_UNIX) {
        fchmod(h->listener, h->options.socket_mode); /* from its first moment on */
    } else if (at) {
        setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        setsockopt(h->listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    if ((at && (bind(h->listener, at, n_at) != 0 || listen(h->listener, BACKLOG) != 0)) ||
        getsockname(h->listener, (struct sockaddr *)&bound, &n) != 0)
        return fail_to_listen(h, errno, err);
    h->access.local_socket = bound.ss_family == AF_UNIX;
    h->access.loopback = h->access.local_socket || is_loopback((struct sockaddr *)&bound);
    write_url(h, (struct sockaddr *)&bound, n);
    return MOE_OK;
}

/* Removes a socket that a server has left which is no more. */
static void remove_stale(const struct sockaddr_un *at)
{
    struct stat file;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && lstat(at->sun_path, &file) == 0 && S_ISSOCK(file.st_mode) &&
        connect(fd, (const struct sockaddr *)at, sizeof *at) != 0 && errno == ECONNREFUSED)
        unlink(at->sun_path);
    if (fd >= 0)
        close(fd);
}

static int listen_locally(struct moe_http *h, const char *path, struct moe_err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof at.sun_path)
        return moe_fail(err, MOE_ERR_USAGE, "'%s': a socket's path has 1 to %zu bytes", path,
                        sizeof at.sun_path - 1);
    strcpy(at.sun_path, path);
    remove_stale(&at);
    MOE_TRY(listen_at(h, (const struct sockaddr *)&at, sizeof at, err));
    h->has_path = true;
    if (chmod(path, h->options.socket_mode) != 0) /* whatever the umask took */
        return fail_to_listen(h, errno, err);
    return MOE_OK;
}

static int start_listening(struct moe_http *h, struct moe_err *err)
{
    const char *address = h->options.address, *path = local_path(&h->options);
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *at = NULL;
    char port[8];
    h->listener = h->options.listener;
    if (h->listener >= 0)
        return listen_at(h, NULL, 0, err);
    if (path)
        return listen_locally(h, path, err);
    snprintf(port, sizeof port, "%u", h->options.port);
    if (strcmp(address, "localhost") == 0)
        address = "127.0.0.1";
    if (getaddrinfo(address, port, &hints, &at) != 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "'%s' is not an address to listen at: 127.0.0.1, ::1, 0.0.0.0, another of "
                        "this machine or unix:PATH is wanted",
                        address);
    int status = listen_at(h, at->ai_addr, at->ai_addrlen, err);
    freeaddrinfo(at);
    return status;
}

static int add_to_poll(struct moe_http *h, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    return epoll_ctl(h->poll, EPOLL_CTL_ADD, fd, &event);
}

static int start_thread(struct moe_http *h, struct moe_err *err)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    h->poll = epoll_create1(EPOLL_CLOEXEC);
    h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!info || h->poll < 0 || h->wake < 0 || add_to_poll(h, h->wake, &h->wake) != 0 ||
        add_to_poll(h, info->epoll_fd, h->daemon) != 0)
        return fail_to_listen(h, errno, err);
    int code = pthread_create(&h->thread, NULL, http_serve, h);
    h->threaded = code == 0;
    return code ? fail_to_listen(h, code, err) : MOE_OK;
}

int moe_http_open(struct moe_http **out, struct moe_server *server,
                  const struct moe_http_options *options, struct moe_err *err)
{
    *out = NULL;
    struct moe_http *h = calloc(1, sizeof *h);
    if (!h)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the HTTP server");
    h->server = server;
    h->options = *options;
    h->access = (struct moe_access){
        .keys = options->keys, .origins = options->origins, .hosts = options->hosts};
    h->listener = h->poll = h->wake = -1;
    h->counts.buffer_bytes = options->buffer_bytes;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->fewer, NULL);
    limit_connections(&h->options);
    int status;
    MOE_STEP(kept_responses_open(&h->kept, options->responses_bytes, err));
    MOE_STEP(start_listening(h, err));
    MOE_STEP(http_start(h, err));
    MOE_STEP(start_thread(h, err));
out:
    if (status == MOE_OK)
        *out = h;
    else
        moe_http_close(h);
    return status;
}

/* ---- The end ---- */

/* Waits until no exchange is left; every change wakes it, and it checks `now` in between. */
static uint32_t wait_for_all(struct moe_http *h, double seconds, const volatile sig_atomic_t *now)
{
    double end = moe_seconds() + seconds;
    uint32_t n;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        n = 0;
        for (const struct exchange *x = h->exchanges; x; x = x->next)
            n += x->stage != EXCHANGE_RECEIVING;
        if (n == 0 || moe_seconds() >= end || (now && *now))
            break;
        moe_wait_at_most(&h->fewer, &h->lock, 50);
    }
    pthread_mutex_unlock(&h->lock);
    return n;
}

uint32_t moe_http_finish(struct moe_http *h, double seconds, const volatile sig_atomic_t *now)
{
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    pthread_mutex_unlock(&h->lock);
    exchange_wake(h);
    moe_server_refuse_unread(h->server);
    return wait_for_all(h, seconds, now);
}

int moe_http_share_listener(struct moe_http *h)
{
    pthread_mutex_lock(&h->lock);
    int fd = h->listener >= 0 ? fcntl(h->listener, F_DUPFD, STDERR_FILENO + 1) : -1;
    pthread_mutex_unlock(&h->lock);
    h->has_path = h->has_path && fd < 0;
    return fd;
}

void moe_http_close(struct moe_http *h)
{
    if (!h)
        return;
    if (h->threaded) {
        pthread_mutex_lock(&h->lock);
        h->closing = h->end = true;
        pthread_mutex_unlock(&h->lock);
        exchange_wake(h);
        pthread_join(h->thread, NULL);
        http_take_told(h);
        pthread_mutex_lock(&h->lock);
        while (h->exchanges) /* executors still hold them */
            pthread_cond_wait(&h->fewer, &h->lock);
        pthread_mutex_unlock(&h->lock);
    } else if (h->daemon) {
        MHD_stop_daemon(h->daemon);
    }
    const int open[] = {h->listener, h->poll, h->wake};
    for (int i = 0; i < 3; i++)
        if (open[i] >= 0)
            close(open[i]);
    if (h->has_path)
        unlink(local_path(&h->options));
    pthread_cond_destroy(&h->fewer);
    pthread_mutex_destroy(&h->lock);
    kept_responses_close(h->kept);
    free(h);
}
