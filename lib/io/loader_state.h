/*
 * The loader's state, shared by its files: loader_open.c and loader.c (the interface),
 * loader_finish.c (what happens to a request whose reads are over), loader_read.c (pieces in and
 * out) and, below these two, loader_request.c (the states of a request). Internal to io/.
 *
 * A request goes from READING (its pieces are queued, read, tried again) over READY (all reads have
 * ended, well or not) to CHECKING (a job verifies and decodes it) and is FREE again once it is
 * reported. In lockstep it is MODELLED first.
 */
#ifndef MOE_IO_LOADER_STATE_H
#define MOE_IO_LOADER_STATE_H

#include "io/loader.h"
#include "io/loader_backend.h"
#include "io/loader_check.h"
#include "io/loader_file.h"
#include "io/staging.h"
#include "io/token_bucket.h"

struct loader_request {
    struct moe_load load;
    enum {
        REQUEST_FREE = 0,
        REQUEST_MODELLED,
        REQUEST_READING,
        REQUEST_READY,
        REQUEST_CHECKING
    } state;
    uint16_t generation; /* of the handle: an old one must not touch a new request */
    uint8_t n_rereads;   /* after wrong checksums */
    bool given_up;       /* cancelled or failed: bytes that still come in do not matter */
    int status;          /* why it was given up; else MOE_OK */
    uint32_t n_pieces;   /* in flight */
    uint32_t next;       /* in the free list or among the ready; MOE_LINK_NONE */
    uint8_t *stored;     /* where the stored bytes go; NULL: compressed, no room yet */
    uint64_t bytes_in;   /* read so far */
    double since;        /* when its reads were queued */
};

/* A request that is being verified and decoded. */
struct loader_job {
    struct loader_check check;
    uint32_t item; /* MOE_LINK_NONE: none */
};

struct moe_loader {
    struct moe_loader_options options; /* defaults filled in */
    void *block;                       /* all memory, this struct included */
    uint64_t block_bytes;

    struct loader_file file;
    struct loader_fault fault;
    struct loader_backend *backend;
    struct token_bucket bucket;
    struct loader_job *jobs;
    uint32_t n_jobs, n_busy; /* with a request */
    struct staging staging;

    struct loader_request *requests; /* options.n_requests; a request's number is that of its item
                                        in the links below */
    uint32_t free_request;
    uint32_t n_requests;              /* under way */
    struct moe_link queue;            /* order of reads */
    struct moe_link model;            /* lockstep: when requests complete */
    uint32_t first_ready, last_ready; /* in the order they became ready */

    struct loader_piece *pieces;  /* options.queue_depth */
    uint32_t *free_pieces;        /* numbers of n_free_pieces of them */
    struct loader_piece **reaped; /* room for queue_depth */
    uint32_t n_free_pieces, n_at_backend;
    uint32_t n_put_by; /* PIECE_HELD and PIECE_AGAIN */

    bool held;            /* submitted requests start no reads */
    double reading_since; /* when the first of the pieces under way was started */
    double waited;        /* seconds inside moe_loader_wait, without the present call */
    double waiting_since; /* when the present call began; 0: none */
    struct moe_loader_stats stats;
    struct moe_err error;
};

static inline bool loader_is_compressed(const struct moe_load *load)
{
    return load->stored_bytes != load->raw_bytes;
}

static inline uint64_t loader_read_bytes(const struct moe_load *load)
{
    return moe_round_up(load->stored_bytes, MOE_LOAD_ALIGN);
}

/* Seconds the owner has waited until `now`. */
static inline double loader_waited(const struct moe_loader *l, double now)
{
    return l->waited + (l->waiting_since > 0 ? now - l->waiting_since : 0);
}

/* ---- loader_request.c ---- */

/* Queues all of a request's reads: it is READING. */
void loader_request_read(struct moe_loader *l, uint32_t item, double now);
/* Its reads are over: it is the last of the READY. */
void loader_request_ready(struct moe_loader *l, uint32_t item);
/* Takes it out of the READY. */
void loader_request_unready(struct moe_loader *l, uint32_t item);
/* It is FREE, and so is the room for its compressed bytes. */
void loader_request_free(struct moe_loader *l, uint32_t item);

/* ---- loader_read.c ---- */

/* Takes finished reads in, repeats those that should be, starts new ones. Does not wait. */
void loader_read_pump(struct moe_loader *l);
/* Sleeps until loader_read_pump has something to do, or until that time (INFINITY: none). */
void loader_read_sleep(struct moe_loader *l, double until);
/* Starts no further reads of a request and drops those that have not reached the backend. False:
 * some are still there; the request becomes READY when they are back. */
bool loader_read_abandon(struct moe_loader *l, uint32_t item);
/* Waits until the backend has no piece left. */
void loader_read_drain(struct moe_loader *l);

/* ---- loader_finish.c ---- */

/* Gives up a READY or CHECKING request, which then is not reported. */
void loader_finish_abandon(struct moe_loader *l, uint32_t item);
/* Whether a request is to be verified, decoded or reported. */
bool loader_finish_pending(const struct moe_loader *l);
/* Works on ready requests, demands first, for about `seconds`: together with the other computing
 * threads, or the owner alone. Writes at most `max` completions to done[]; returns how many. */
uint32_t loader_finish_some(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                            double seconds, bool together);

#endif
