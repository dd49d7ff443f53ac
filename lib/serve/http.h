/*
 * HTTP: the server's front door. The routes of OpenAI's API that a server of answers needs, figures
 * for Prometheus, and a chat page.
 *
 *   GET  /                       the chat page
 *   GET  /health                 {"status": "ok"}; 503 while it closes
 *   GET  /metrics                Prometheus' text format
 *   GET  /v1/models              the experts of the collection
 *   POST /v1/chat/completions    an answer, whole or (with "stream") as server-sent events
 *   POST /v1/completions         the same for a text or ids
 *
 * One thread does all of it, over libmicrohttpd: connections that wait for an answer are suspended
 * and cost a few KiB. Executors append output to a buffer of the request and never wait for a
 * client; a client that reads so slowly that its buffer exceeds a bound is cut off, and one that
 * leaves has its request cancelled at once. One that closes only the sending half of its connection
 * gets its answer. A stream begins soon whether or not it has anything to say, and breaks longer
 * silences by comments, so that proxies do not take it for dead.
 *
 * Clients share what there is: a client is a key, or before one is known an address (of IPv6 its
 * network of 64 bits, of a local socket the user). Where connections or buffers run out, who has
 * most of them gives way to who has less: first the request that is unfinished and has been idle
 * longest. A reserve of connections is left to /health and /metrics.
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
    const char *address;  /* "127.0.0.1", "::1", "0.0.0.0", ... or "localhost"; "unix:PATH" */
    uint32_t socket_mode; /* of PATH */
    int listener;         /* a socket that listens already, in place of these; -1: none */
    int access_log;       /* gets a line for each request, borrowed; -1: none */
    uint16_t port;        /* 0: any free one */
    const struct moe_access_keys *keys;        /* borrowed; NULL: no key is needed */
    const char *const *origins, *const *hosts; /* borrowed; as in struct moe_access */
    bool share_prompts;                        /* what was computed of prompts, also between keys */
    uint32_t max_connections;                  /* beyond it who has most gives way */
    uint64_t max_body_bytes;                   /* of a request */
    uint64_t max_header_bytes;                 /* of a request's headers with its first line */
    /* Bodies and answers in memory, all together; one answer gets at most a quarter. */
    uint64_t buffer_bytes;
    uint64_t responses_bytes; /* responses that are kept (kept_responses.h); 0: none */
    double request_seconds;   /* for a whole request to arrive; also the longest idle time of a
                                 connection */
    double silence_seconds;   /* after which a stream sends a comment */
};
void moe_http_options_default(struct moe_http_options *options);
/* Upper bound of its memory, apart from requests being read (serve/request.h). */
uint64_t moe_http_bytes(const struct moe_http_options *options);

struct moe_http;

/* Begins to listen and answer. Borrows the server. MOE_ERR_IO: the address or the port is not
 * available. */
int moe_http_open(struct moe_http **out, struct moe_server *server,
                  const struct moe_http_options *options, struct moe_err *err);
/* "http://127.0.0.1:8080"; "unix:PATH" */
const char *moe_http_url(const struct moe_http *h);
bool moe_http_is_local(const struct moe_http *h); /* it listens on a loopback address */
/* Connections that it can hold: fewer than asked for if the process may not open as many files. */
uint32_t moe_http_max_connections(const struct moe_http *h);

/* Stops accepting requests and waits until the current ones have been answered and sent, at most
 * `seconds`, or until *now is set. Returns how many were not. */
uint32_t moe_http_finish(struct moe_http *h, double seconds, const volatile sig_atomic_t *now);
/* The listening socket for a program that is executed in place of this one: connections wait there
 * meanwhile. The caller closes it; -1: it has none to give. Call it before moe_http_finish. */
int moe_http_share_listener(struct moe_http *h);
/* Cancels all requests, waits until the server has reported their ends, and frees. Call it before
 * the server is closed. NULL is fine. */
void moe_http_close(struct moe_http *h);

#endif
