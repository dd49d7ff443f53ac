/*
 * Metrics: a server's counts in Prometheus' text format (version 0.0.4). Names begin with "moe_";
 * man/moe-serve.1 lists them.
 */
#ifndef MOE_SERVE_METRICS_H
#define MOE_SERVE_METRICS_H

#include <stdint.h>

#include "base/buf.h"

struct moe_server;

enum moe_http_route {
    MOE_HTTP_PAGE,
    MOE_HTTP_HEALTH,
    MOE_HTTP_METRICS,
    MOE_HTTP_MODELS,
    MOE_HTTP_MODEL,
    MOE_HTTP_CHAT,
    MOE_HTTP_TEXT,
    MOE_HTTP_MESSAGES,
    MOE_HTTP_COUNT,
    MOE_HTTP_RESPONSES,
    MOE_HTTP_RESPONSE_ITEMS,
    MOE_HTTP_RESPONSE,
    MOE_HTTP_TOKENIZE,
    MOE_HTTP_DETOKENIZE,
    MOE_HTTP_PROPS,
    MOE_HTTP_SLOTS,
    MOE_HTTP_OLLAMA_CHAT,
    MOE_HTTP_OLLAMA_GENERATE,
    MOE_HTTP_EMBEDDINGS,
    MOE_HTTP_OLLAMA_EMBED,
    MOE_HTTP_OLLAMA_EMBEDDINGS,
    MOE_HTTP_OLLAMA_TAGS,
    MOE_HTTP_OLLAMA_PS,
    MOE_HTTP_OLLAMA_SHOW,
    MOE_HTTP_OLLAMA_VERSION,
    MOE_HTTP_STUDIO_MODELS,
    MOE_HTTP_ELSEWHERE, /* no route */
    MOE_HTTP_ROUTES,
};
/* Their paths, "other" for none; {id} is any text there. */
extern const char *const moe_http_paths[MOE_HTTP_ROUTES];

/* The HTTP statuses that are answered, and counted. */
#define MOE_HTTP_STATUSES                                                                          \
    {                                                                                              \
        200, 204, 400, 401, 403, 404, 405, 413, 429, 500, 503                                      \
    }
enum { MOE_HTTP_N_STATUSES = 11 };

/* A distribution of seconds: counts up to each of the bounds of metrics.c. */
enum { MOE_SECONDS_BOUNDS = 14 };
struct moe_seconds_counted {
    uint64_t buckets[MOE_SECONDS_BOUNDS];
    uint64_t n;
    double sum;
};
void moe_seconds_count(struct moe_seconds_counted *c, double seconds);

struct moe_http_counts {
    uint64_t answered[MOE_HTTP_ROUTES][MOE_HTTP_N_STATUSES];
    uint64_t accepted, connections; /* in all; now */
    uint64_t late;   /* connections closed because their request took too long to arrive */
    uint64_t gone;   /* clients that left before their answer's end */
    uint64_t ousted; /* connections that gave way to those of clients with fewer, or to requests */
    uint64_t unlogged; /* requests that the access log has no line of */
    uint64_t cut;      /* clients cut off because they read too slowly */
    uint64_t buffered, buffer_bytes;
    struct moe_seconds_counted first_token, whole; /* of answers */
};
void moe_http_count(struct moe_http_counts *c, enum moe_http_route route, unsigned status);

/* Appends the whole page. */
void moe_metrics_write(const struct moe_http_counts *http, struct moe_server *server,
                       struct moe_buf *out);

#endif
