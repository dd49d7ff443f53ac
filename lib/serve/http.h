/*
 * HTTP: the server's front door. The routes of OpenAI's API that a server of answers needs, figures
 * for Prometheus, and a chat page.
 *
 *   GET  /                       the chat page
 *   GET  /health                 {"status": "ok"}; 503 while it closes
 *   GET  /metrics                Prometheus' text format
 *   GET  /v1/models              the experts of the collection
 *   POST /v1/chat/completions    an answer, whole or (with "stream") as server-sent events
 *   POST /v1/completions         ... to a text or ids
 *
 * One thread of its own does all of it, over libmicrohttpd: connections that wait for an answer are
 * suspended and cost a few KiB. Executors append what goes out to a buffer of the request and never
 * wait for a client; a client that reads so slowly that its buffer grows beyond a bound is cut off,
 * and one that goes away has its request cancelled at once. Closing only the sending half of a
 * connection counts as going away.
 */
#ifndef MOE_SERVE_HTTP_H
#define MOE_SERVE_HTTP_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "serve/http_access.h"

struct moe_server;

struct moe_http_options {
    const char *address;                /* "127.0.0.1", "::1", "0.0.0.0", ... or "localhost" */
    uint16_t port;                      /* 0: one that is free */
    const struct moe_access_keys *keys; /* borrowed; NULL: none are asked for */
    const char *const *origins;         /* borrowed; of struct moe_access */
    uint32_t max_connections;           /* further ones wait to be accepted */
    uint64_t max_body_bytes;            /* of a request */
    uint64_t max_header_bytes;          /* ... with its first line */
    /* Bodies and answers that are under way, all together; an answer gets a quarter at most. */
    uint64_t buffer_bytes;
    double request_seconds; /* for a whole request to arrive; a connection idles as long */
};
void moe_http_options_default(struct moe_http_options *options);
/* What it takes in memory at most, apart from requests being read (serve/request.h). */
uint64_t moe_http_bytes(const struct moe_http_options *options);

struct moe_http;

/* Listens and answers from now on. The server is borrowed. MOE_ERR_IO: the address or the port
 * cannot be had. */
int moe_http_open(struct moe_http **out, struct moe_server *server,
                  const struct moe_http_options *options, struct moe_err *err);
/* "http://127.0.0.1:8080" */
const char *moe_http_url(const struct moe_http *h);
bool moe_http_is_local(const struct moe_http *h); /* it listens on a loopback address */
/* Connections that it can hold: fewer than asked for where the process may not open so many files.
 */
uint32_t moe_http_max_connections(const struct moe_http *h);

/* Accepts nothing new and waits until what is under way has been answered and sent, at most so
 * long, or until *now is set. Returns how many were not. */
uint32_t moe_http_finish(struct moe_http *h, double seconds, const volatile sig_atomic_t *now);
/* Cancels what is under way, waits for the server to have told the ends, and frees. Before the
 * server is closed. NULL is fine. */
void moe_http_close(struct moe_http *h);

#endif
