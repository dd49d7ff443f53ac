#include "serve/http_connection.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/text.h"
#include "serve/http_respond.h"
#include "serve/http_routes.h"
#include "serve/server.h"

/* A body that is refused is read on, so that its client gets to the answer: so many times the
 * limit. */
enum { READ_ON = 16 };

struct http_connection {
    struct http_connection *next, **link;
    int socket;
    bool waits;   /* for a whole request, which is none of ours yet */
    double since; /* ... moe_seconds() */
};

/* ---- Connections ---- */

static int socket_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static struct http_connection *of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void begun_or_ended(void *ctx, struct MHD_Connection *connection, void **context,
                           enum MHD_ConnectionNotificationCode code)
{
    struct moe_http *h = ctx;
    struct http_connection *c = *context;
    bool begun = code == MHD_CONNECTION_NOTIFY_STARTED;
    pthread_mutex_lock(&h->lock);
    h->counts.accepted += begun;
    h->counts.connections += begun ? 1 : (uint64_t)-1;
    pthread_mutex_unlock(&h->lock);
    if (begun) {
        c = *context = calloc(1, sizeof *c); /* NULL: it is not closed when it is late */
        if (!c)
            return;
        *c = (struct http_connection){.next = h->connections,
                                      .link = &h->connections,
                                      .socket = socket_of(connection),
                                      .waits = true,
                                      .since = moe_seconds()};
        if (c->next)
            c->next->link = &c->next;
        h->connections = c;
    } else if (c) {
        *c->link = c->next;
        if (c->next)
            c->next->link = c->link;
        free(c);
        *context = NULL;
    }
}

void http_close_late(struct moe_http *h)
{
    double before = moe_seconds() - h->options.request_seconds;
    uint64_t late = 0;
    for (struct http_connection *c = h->connections; c; c = c->next)
        if (c->waits && c->since < before) {
            shutdown(c->socket, SHUT_RDWR);
            c->waits = false;
            late++;
        }
    pthread_mutex_lock(&h->lock);
    h->counts.late += late;
    pthread_mutex_unlock(&h->lock);
}

static void waits(struct MHD_Connection *connection, bool waits)
{
    struct http_connection *c = of(connection);
    if (!c)
        return;
    c->waits = waits;
    c->since = moe_seconds();
}

/* ---- Requests ---- */

/* The announced length of the body; 0 where none is. */
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

/* The headers are there. What is refused anyway is answered at once where the client waits for
 * leave to send its body, or where that would be too much to read. */
static enum MHD_Result begin(struct moe_http *h, struct MHD_Connection *connection, const char *url,
                             const char *method, void **context)
{
    struct exchange *x = exchange_new(h, connection);
    if (!x)
        return MHD_NO;
    *context = x;
    http_route(x, url, method);
    uint64_t n = announced(x);
    if (!x->refused && n > h->options.max_body_bytes)
        refuse_large(x);
    if (x->refused && n > 0 &&
        (n / READ_ON > h->options.max_body_bytes || http_header(x, "Expect"))) {
        waits(connection, false);
        return http_respond_error(x, (unsigned)x->refused, &x->why);
    }
    return MHD_YES;
}

static enum MHD_Result receive(struct exchange *x, const char *bytes, size_t n)
{
    uint64_t limit = x->http->options.max_body_bytes;
    x->n_body += n;
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

/* Sees to it that the loop hears of its client's leaving. */
static void watch(struct exchange *x)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = x};
    int fd = socket_of(x->connection);
    if (x->watched < 0 && fd >= 0 && epoll_ctl(x->http->poll, EPOLL_CTL_ADD, fd, &event) == 0)
        x->watched = fd;
}

/* The request is whole, or goes on after it was suspended. */
static enum MHD_Result go_on(struct exchange *x, const char *method)
{
    struct moe_http *h = x->http;
    if (x->stage == EXCHANGE_RECEIVING) {
        waits(x->connection, false);
        http_route_late(x);
    }
    enum MHD_Result result = http_answer(x, method);
    if (result != MHD_YES || x->stage != EXCHANGE_WAITING)
        return result;
    watch(x);
    pthread_mutex_lock(&h->lock);
    x->suspended = true; /* if it was told meanwhile, it goes on in the next round */
    pthread_mutex_unlock(&h->lock);
    MHD_suspend_connection(x->connection);
    return MHD_YES;
}

static enum MHD_Result request(void *ctx, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *bytes,
                               size_t *n_bytes, void **context)
{
    (void)version;
    struct exchange *x = *context;
    if (!x)
        return begin(ctx, connection, url, method, context);
    if (*n_bytes == 0)
        return go_on(x, method);
    size_t n = *n_bytes;
    *n_bytes = 0;
    return receive(x, bytes, n);
}

/* What the server still computes for it is computed for nobody. */
static void cancel(struct exchange *x)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool wanted = x->completion && !x->done;
    pthread_mutex_unlock(&h->lock);
    if (wanted)
        moe_server_cancel(h->server, x->id);
}

/* Its client is gone, or is to be. */
static void leave(struct exchange *x, bool count)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool news = !x->gone, has_all = x->done && x->taken == x->out.size;
    x->gone = true;
    h->counts.gone += news && count && !has_all && !x->cut && !h->end;
    exchange_tell(x);
    pthread_mutex_unlock(&h->lock);
    if (news)
        cancel(x);
}

void http_client_left(struct exchange *x)
{
    leave(x, true);
}

static void completed(void *ctx, struct MHD_Connection *connection, void **context,
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
    pthread_mutex_unlock(&h->lock);
    leave(x, code != MHD_REQUEST_TERMINATED_COMPLETED_OK && x->stage != EXCHANGE_RECEIVING);
    waits(connection, true);
    exchange_release(x);
}

void http_take_told(struct moe_http *h)
{
    struct exchange *x;
    bool suspended;
    while ((x = exchange_next_told(h, &suspended))) {
        if (x->cut)
            cancel(x);
        if (x->cut && x->stage == EXCHANGE_SENDING && x->connection)
            shutdown(socket_of(x->connection), SHUT_RDWR);
        if (suspended)
            MHD_resume_connection(x->connection);
        exchange_release(x);
    }
}

void http_leave_all(struct moe_http *h)
{
    for (;;) {
        pthread_mutex_lock(&h->lock);
        struct exchange *x = h->exchanges;
        while (x && (!x->connection || x->gone))
            x = x->next;
        pthread_mutex_unlock(&h->lock);
        if (!x)
            break;
        leave(x, false); /* its connection holds it */
    }
    http_take_told(h);
}

/* ---- libmicrohttpd ---- */

static void say_nothing(void *ctx, const char *format, va_list args)
{
    (void)ctx, (void)format, (void)args;
}

int http_start(struct moe_http *h, struct moe_err *err)
{
    const struct moe_http_options *o = &h->options;
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, request, h,
        MHD_OPTION_EXTERNAL_LOGGER, say_nothing, NULL, MHD_OPTION_LISTEN_SOCKET, h->listener,
        MHD_OPTION_CONNECTION_LIMIT, o->max_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)o->max_header_bytes, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(o->request_seconds + 1), MHD_OPTION_NOTIFY_COMPLETED, completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, begun_or_ended, h, MHD_OPTION_END);
    return h->daemon ? MOE_OK : moe_fail(err, MOE_ERR_IO, "%s: libmicrohttpd cannot serve", h->url);
}
