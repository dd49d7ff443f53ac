/*
 * Metrics: a server's counts in Prometheus' text format (version 0.0.4). Names begin with "moe_";
 * man/moe-serve.1 lists them.
 */
#ifndef MOE_SERVE_METRICS_H
#define MOE_SERVE_METRICS_H

#include <stdint.h>

#include "base/buf.h"
#include "serve/http_paths.h"

struct moe_server;

/* The HTTP statuses that are answered, and counted. */
#define MOE_HTTP_STATUSES                                                                          \
    {                                                                                              \
        200, 204, 400, 401, 403, 404, 405, 413, 415, 429, 500, 503                                 \
    }
enum { MOE_HTTP_N_STATUSES = 12 };

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
