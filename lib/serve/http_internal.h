/*
 * Exchange: one request on its way through the front door, and its answer. Owned by its connection
 * and, once submitted, by the server too: the last of them frees it.
 *
 * One lock (moe_http.lock) guards everything that executors touch; it is held no longer than a copy
 * takes. Members not under "Shared" belong to the serving thread.
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
#include "serve/kept_responses.h"
#include "serve/metrics.h"
#include "serve/request.h"

/* A body that has not gone on for so long gives way to others, and is answered if it is refused. */
#define STALLED_SECONDS 1.0

struct completion;

enum exchange_stage {
    EXCHANGE_RECEIVING, /* its body */
    EXCHANGE_WAITING,   /* for the server */
    EXCHANGE_SENDING,
};

/* Who has connections (then it is an address) or requests (then it may be a key). */
struct http_client {
    struct http_client *next;
    uint64_t id;
    uint32_t holders;
    uint32_t connections;
    uint64_t body_bytes; /* of requests that are received */
};

struct exchange {
    struct moe_http *http;
    struct MHD_Connection *connection; /* NULL: it has ended; changed with the lock held */
    enum moe_http_route route;
    enum exchange_stage stage; /* other threads read it with the lock held */
    int refused;               /* HTTP status of `why`, sent once the body has been read; 0: none */
    struct moe_err why;
    /* For the access log. */
    double came;
    char method[16], who[64];   /* who: its client */
    char item[160];             /* of a path with {id}: what is there, decoded */
    enum moe_request_kind form; /* in whose form errors are */
    unsigned status;            /* 0: it was not answered */
    char model[64];             /* that answered; shared, as all that follows */
    uint64_t n_prompt, n_tokens, n_sent;
    double first_seconds; /* to the first token; 0: there was none */

    struct http_client *client; /* NULL once its connection has ended */
    uint64_t owner;             /* of its prompt (serve/request.h) */
    struct moe_buf body;
    double received_at;   /* the last of it, kept or not */
    uint64_t n_receiving; /* of an unfinished body, in its client's account */
    uint64_t n_body;      /* bytes received, also of a refused body */
    int watched;          /* descriptor in `poll` that reports the client's leaving, or -1 */
    bool foreign;         /* from a page of another, allowed origin */
    bool reserved;        /* its connection is one of the reserve */
    bool old;             /* of HTTP/1.0 */
    bool faulty;          /* its head breaks HTTP's rules: nothing further is read */
    enum { CODING_NONE, CODING_ZSTD, CODING_GZIP } coding; /* of its body */
    struct completion *completion;                         /* http_routes.c's; NULL: none */
    void (*free_completion)(struct completion *c);
    uint64_t id; /* the server's, for a completion */

    /* Shared. */
    struct exchange *next, **link; /* all exchanges */
    struct exchange *next_told;
    int holders;
    uint64_t booked;     /* its part of http->buffered */
    struct moe_buf out;  /* for the client */
    uint64_t taken;      /* bytes of `out` already sent */
    double put_at;       /* when `out` last got something, or the exchange began */
    bool streams, lines; /* its answer is sent as it comes; as JSON lines, not as events */
    bool done;           /* `out` is complete */
    bool suspended;      /* its connection, until exchange_tell */
    bool told;           /* it is in the list http->told */
    bool cut;            /* it took too much memory */
    bool gone;           /* its client left */
    bool gone_early;     /* ... before it had its answer */
};

struct moe_http {
    struct moe_server *server;
    struct kept_responses *kept;
    struct moe_http_options options;
    struct moe_access access;
    struct MHD_Daemon *daemon;
    struct http_connection *connections;
    struct http_client *clients; /* the serving thread's */
    uint64_t body_bytes;         /* of all of these */
    int listener, poll, wake;    /* descriptors, -1: none */
    char url[128];
    bool has_path; /* of its socket, to remove at the end */
    pthread_t thread;
    bool threaded; /* `thread` runs */

    /* Shared. */
    pthread_mutex_t lock;
    pthread_cond_t fewer; /* exchanges */
    struct exchange *exchanges, *told;
    uint64_t buffered; /* bytes of bodies and answers */
    bool closing;      /* accepts nothing new */
    bool end;
    struct moe_http_counts counts;
};

/* ---- http_exchange.c ---- */

/* The client with an id, made if need be; NULL: out of memory. It stays until it is released. */
struct http_client *http_client_hold(struct moe_http *h, uint64_t id);
void http_client_release(struct moe_http *h, struct http_client *client);
/* Ids: of who is at the other end of a socket, an address, of IPv6 its network, of a local socket
 * the user; and of the n-th key's holder. */
uint64_t http_client_of_socket(int fd);
uint64_t http_client_of_key(uint32_t n);
/* What people call it: "192.0.2.1", "2001:db8::/64", "user 1000", "key 2". */
void http_client_name(uint64_t id, char name[64]);

/* NULL: out of memory. */
struct exchange *exchange_new(struct moe_http *h, struct MHD_Connection *connection);
void exchange_hold(struct exchange *x);
void exchange_release(struct exchange *x);
void exchange_set_stage(struct exchange *x, enum exchange_stage stage);
/* Appends to the body. False: there is no room for it now, though others that had more, or had not
 * gone on, gave theirs. */
bool exchange_receive(struct exchange *x, const char *bytes, uint64_t n);
/* Its body has been read, and counts no more as one that is received. */
void exchange_received(struct exchange *x);
void exchange_drop_body(struct exchange *x);
/* Puts what a body received is compressed from in its place. MOE_ERR_LIMIT: it is more than `most`
 * bytes; MOE_ERR_MEMORY: there is no room for it now; MOE_ERR_FORMAT: it is damaged. */
int exchange_decompress(struct exchange *x, uint64_t most, struct moe_err *err);
/* Hands over the body, which the exchange then has no more. */
struct moe_buf exchange_take_body(struct exchange *x);

/* Makes the serving thread look at the exchange and resume its connection. With the lock held. */
void exchange_tell(struct exchange *x);
/* Appends bytes, if any, to `out` and tells. Cuts off a client whose answer takes too much memory.
 * With the lock held. */
void exchange_put(struct exchange *x, const struct moe_buf *bytes);
/* Puts what clients leave out: a comment, or before a JSON line a blank. With the lock held. */
void exchange_put_comment(struct exchange *x);
/* Has streams that have been silent say so: those that have not begun after `first` seconds, others
 * after `seconds`. */
void exchange_break_silences(struct moe_http *h, double first, double seconds);
/* Books n bytes beside `out` on its account, or cuts it off as above. With the lock held. */
void exchange_book(struct exchange *x, uint64_t n);
/* Books an answer that is whole and was not booked as it came: of a kept response, of models, the
 * page. False: there is no room for it now. */
bool exchange_book_whole(struct exchange *x);
/* The next exchange that was told, which the caller releases; NULL: none. *suspended: its
 * connection was, and is no more. *is_cut: it took too much memory. */
struct exchange *exchange_next_told(struct moe_http *h, bool *suspended, bool *is_cut);
void exchange_wake(struct moe_http *h); /* the serving thread */

/* A header of the request; NULL if missing. */
const char *http_header(const struct exchange *x, const char *name);

/* Sends `out`, which is complete. headers: names and values (NULL: left out), ended by a NULL name;
 * type may be NULL. */
enum MHD_Result http_respond(struct exchange *x, unsigned status, const char *type,
                             const char *const headers[][2]);
/* Sends everything put into `out`, as it comes, until it is done; as above. */
enum MHD_Result http_respond_stream(struct exchange *x, const char *type,
                                    const char *const headers[][2]);

/* ---- http_routes.c ---- */

/* Sends an error in the API's form. */
enum MHD_Result http_respond_error(struct exchange *x, unsigned status, const struct moe_err *why);

/* Finds the route of a request whose headers are there, and why it is refused, if it is. */
void http_route(struct exchange *x, const char *url, const char *method, const char *version);
/* Decides again once the body is there. */
void http_route_late(struct exchange *x);
/* Answers a complete request, or one that was suspended and may have something to send. If its
 * stage is EXCHANGE_WAITING afterwards, its connection must be suspended. */
enum MHD_Result http_answer(struct exchange *x, const char *method);

/* ---- http_models.c: what is said of models ---- */

struct moe_server_model;

/* /v1/models and /v1/models/{id}: a list, a model, in the forms of several APIs at once. */
void http_write_models(struct moe_server *s, struct moe_buf *out);
void http_write_model(const struct moe_server_model *m, struct moe_buf *out);
/* llama.cpp's /props, of the first model, and /slots; false: none is free. */
void http_write_props(struct moe_server *s, struct moe_buf *out);
bool http_write_slots(struct moe_server *s, struct moe_buf *out);
/* LM Studio's /api/v0/models. */
void http_write_studio_models(struct moe_server *s, struct moe_buf *out);
/* Ollama's /api/tags, with only_loaded /api/ps, and /api/show. */
void http_write_tags(struct moe_server *s, bool only_loaded, struct moe_buf *out);
void http_write_show(struct moe_server *s, const struct moe_server_model *m, struct moe_buf *out);

#endif
