/*
 * Exchange: one request on its way through the front door, and what executors have for its client.
 * It belongs to its connection and, once submitted, to the server too: the last of them frees it.
 *
 * One lock (moe_http.lock) guards all that executors touch; it is held for no longer than a copy.
 * What is not under "shared" belongs to the thread that serves.
 */
#ifndef MOE_SERVE_HTTP_INTERNAL_H
#define MOE_SERVE_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "serve/http.h"
#include "serve/http_access.h"
#include "serve/metrics.h"

struct MHD_Connection;
struct MHD_Daemon;
struct completion;

enum exchange_stage {
    EXCHANGE_RECEIVING, /* its body */
    EXCHANGE_WAITING,   /* for the server */
    EXCHANGE_SENDING,
};

struct exchange {
    struct moe_http *http;
    struct MHD_Connection *connection; /* NULL: it has ended; changed with the lock held */
    enum moe_http_route route;
    enum exchange_stage stage; /* others read it with the lock held */
    int refused;               /* HTTP status of `why`, which is sent when the body has passed; 0 */
    struct moe_err why;        /* ... */
    struct moe_buf body;       /* as far as it is wanted */
    uint64_t n_body;           /* bytes that came */
    int watched;               /* descriptor by which its client's leaving is seen, or -1 */
    bool foreign;              /* a page of another, allowed origin asks */
    struct completion *completion; /* http_routes.c's; NULL: none was asked for */
    void (*free_completion)(struct completion *c);
    uint64_t id; /* the server's, of a completion */

    /* Shared. */
    struct exchange *next, **link; /* of all */
    struct exchange *next_told;
    int holders;
    uint64_t booked;    /* bytes of http->buffered that are on its account */
    struct moe_buf out; /* for the client */
    uint64_t taken;     /* of these */
    bool done;          /* nothing more will come */
    bool suspended;     /* its connection is, until told */
    bool told;          /* it is in the list of those to be looked at */
    bool cut;           /* it took too much memory */
    bool gone;          /* its client is */
};

struct moe_http {
    struct moe_server *server;
    struct moe_http_options options;
    struct moe_access access;
    struct MHD_Daemon *daemon;
    struct http_connection *connections;
    int listener, poll, wake; /* descriptors, -1: none */
    char url[96];
    pthread_t thread;
    bool threaded; /* there is one */

    /* Shared. */
    pthread_mutex_t lock;
    pthread_cond_t fewer; /* exchanges */
    struct exchange *exchanges, *told;
    uint64_t buffered; /* bytes of bodies and answers */
    bool closing;      /* nothing new is accepted */
    bool end;
    struct moe_http_counts counts;
};

/* NULL: out of memory. */
struct exchange *exchange_new(struct moe_http *h, struct MHD_Connection *connection);
/* One holder less. */
void exchange_release(struct exchange *x);
void exchange_hold(struct exchange *x);
void exchange_set_stage(struct exchange *x, enum exchange_stage stage);

/* Has the serving thread look at it, and resume its connection. With the lock held. */
void exchange_tell(struct exchange *x);
/* Appends to what goes out, if it is anything, and tells. Cuts off a client whose answer
 * takes too much. With the lock held. */
void exchange_put(struct exchange *x, const struct moe_buf *bytes);
/* Books n bytes beside `out` on its account, or cuts as above. With the lock held. */
void exchange_book(struct exchange *x, uint64_t n);
/* Appends to the body. False: there is no room for it now. */
bool exchange_receive(struct exchange *x, const char *bytes, uint64_t n);
void exchange_drop_body(struct exchange *x);
/* Copies at most n bytes that go out; with none, *done tells whether that was all, or else it is
 * suspended until told. Negative: it ends unfinished. */
int64_t exchange_take(struct exchange *x, char *to, uint64_t n, bool *done);
/* The next to be looked at, which the caller releases; NULL: none. *suspended: it was, and is no
 * more. *is_cut: it took too much memory. */
struct exchange *exchange_next_told(struct moe_http *h, bool *suspended, bool *is_cut);
void exchange_wake(struct moe_http *h);

/* Connections: requests as libmicrohttpd tells of them, their time and their size. */

/* Starts libmicrohttpd on h->listener, without a thread of its own. */
int http_start(struct moe_http *h, struct moe_err *err);
/* Closes connections whose request has taken too long to arrive. */
void http_close_late(struct moe_http *h);
/* Looks at exchanges that executors had something to tell of. */
void http_take_told(struct moe_http *h);
/* The client of an exchange has left. */
void http_client_left(struct exchange *x);
/* Ends all exchanges that have connections, so that these can be closed. */
void http_leave_all(struct moe_http *h);

/* What is sent back: headers, errors, streams. Each returns libmicrohttpd's result. */

/* The headers of the request by name; NULL: not there. */
const char *http_header(const struct exchange *x, const char *name);

/* Sends x->out, which is whole. */
enum MHD_Result http_respond(struct exchange *x, unsigned status, const char *type);
/* Sends nothing but the status, and the headers that tell a browser what it may ask. */
enum MHD_Result http_respond_preflight(struct exchange *x);
/* Sends an error in the API's form. */
enum MHD_Result http_respond_error(struct exchange *x, unsigned status, const struct moe_err *why);
/* Sends what comes into x->out, until it is done. */
enum MHD_Result http_respond_stream(struct exchange *x);
/* The chat page. */
enum MHD_Result http_respond_page(struct exchange *x);

/* Routes: which request is answered by what. */

/* Looks at a request whose headers are there: sets its route, and why it is refused if it is. */
void http_route(struct exchange *x, const char *url, const char *method);
/* Looks again when its body is there. */
void http_route_late(struct exchange *x);
/* Answers a request that is whole or, after it was suspended, has something to send. */
enum MHD_Result http_answer(struct exchange *x, const char *method);

/* Completions: a request to the server, and its answer on the way out. */

/* Submits a request whose body is there (then its stage is EXCHANGE_WAITING, and its connection is
 * to be suspended), or begins to send what there is of its answer, or waits on. */
enum MHD_Result http_complete(struct exchange *x);

#endif
