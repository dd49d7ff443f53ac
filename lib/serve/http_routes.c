#include "serve/http_routes.h"

#include <string.h>

#include "serve/http_completion.h"
#include "serve/http_respond.h"
#include "serve/reply.h"
#include "serve/server.h"

static const struct route {
    const char *path;
    bool post, open; /* without a key */
} routes[] = {
    [MOE_HTTP_PAGE] = {"/", .open = true},
    [MOE_HTTP_HEALTH] = {"/health", .open = true},
    [MOE_HTTP_METRICS] = {"/metrics"},
    [MOE_HTTP_MODELS] = {"/v1/models"},
    [MOE_HTTP_CHAT] = {"/v1/chat/completions", .post = true},
    [MOE_HTTP_TEXT] = {"/v1/completions", .post = true},
};

static enum moe_http_route find(const char *url)
{
    for (int i = 0; i < MOE_HTTP_ELSEWHERE; i++)
        if (strcmp(routes[i].path, url) == 0)
            return (enum moe_http_route)i;
    return MOE_HTTP_ELSEWHERE;
}

static bool is_closing(struct moe_http *h)
{
    pthread_mutex_lock(&h->lock);
    bool closing = h->closing;
    pthread_mutex_unlock(&h->lock);
    return closing;
}

static bool reads(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* The HTTP status with which it is refused, and why; 0: it is not. */
static int refusal(struct exchange *x, const char *url, const char *method, struct moe_err *why)
{
    struct moe_http *h = x->http;
    const char *host = http_header(x, "Host"), *origin = http_header(x, "Origin");
    bool known = x->route != MOE_HTTP_ELSEWHERE;
    if (!moe_access_host_fits(&h->access, host)) {
        moe_fail(why, MOE_ERR_USAGE,
                 "this server answers to localhost only, not to '%.200s': if that name is meant, "
                 "start it with --allow-origin http://%.200s",
                 host, host);
        return 403;
    }
    if (!moe_access_origin_fits(&h->access, origin, host, &x->foreign)) {
        x->foreign = false;
        moe_fail(why, MOE_ERR_USAGE,
                 "pages of '%.200s' may not use this server: --allow-origin would allow them",
                 origin);
        return 403;
    }
    if (strcmp(method, "OPTIONS") == 0 && known)
        return 0;
    if (h->access.keys && !(known && routes[x->route].open) &&
        !moe_access_key_fits(h->access.keys, http_header(x, "Authorization"))) {
        moe_fail(why, MOE_ERR_USAGE,
                 "a key is needed: an Authorization header with \"Bearer \" "
                 "and one of the server's keys");
        return 401;
    }
    if (!known) {
        moe_fail(why, MOE_ERR_USAGE, "there is nothing at '%.200s'", url);
        return 404;
    }
    if (routes[x->route].post ? strcmp(method, "POST") != 0 : !reads(method)) {
        moe_fail(why, MOE_ERR_USAGE, "'%s' takes %s, not %.20s", url,
                 routes[x->route].post ? "POST" : "GET", method);
        return 405;
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

void http_route(struct exchange *x, const char *url, const char *method)
{
    x->route = find(url);
    x->refused = refusal(x, url, method, &x->why);
    http_route_late(x);
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

static enum MHD_Result answer_whole(struct exchange *x)
{
    switch (x->route) {
    case MOE_HTTP_PAGE:
        return http_respond_page(x);
    case MOE_HTTP_HEALTH:
        moe_buf_text(&x->out, "{\"status\":\"ok\"}\n");
        return http_respond(x, MHD_HTTP_OK, "application/json");
    case MOE_HTTP_METRICS:
        write_metrics(x);
        return http_respond(x, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8");
    default:
        moe_reply_models(&x->out, x->http->server);
        return http_respond(x, MHD_HTTP_OK, "application/json");
    }
}

enum MHD_Result http_answer(struct exchange *x, const char *method)
{
    if (x->refused)
        return http_respond_error(x, (unsigned)x->refused, &x->why);
    if (strcmp(method, "OPTIONS") == 0)
        return http_respond_preflight(x);
    if (x->route == MOE_HTTP_CHAT || x->route == MOE_HTTP_TEXT)
        return http_complete(x);
    return answer_whole(x);
}
