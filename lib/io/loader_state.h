/*
 * The loader's state, shared by its three files: loader.c (the interface), loader_read.c (pieces in
 * and out) and loader_finish.c (what happens to a request whose reads are over). Internal to io/.
 *
 * A request passes through READING (its pieces are queued, read, tried again) and READY (all reads
 * are over, well or not) to CHECKING (a job verifies and decodes it) and is FREE again once it is
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
    bool given_up;       /* cancelled or failed: what still comes in does not matter */
    int status;          /* why, MOE_OK otherwise */
    uint32_t n_pieces;   /* started and not over */
    uint32_t next;       /* in the free list or among the ready; MOE_LINK_NONE */
    uint8_t *stored;     /* where the stored bytes go; NULL: compressed, no room yet */
    uint64_t bytes_in;   /* read so far */
    double since;        /* when it was asked for */
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

    struct loader_request *requests; /* options.n_requests; a request's number is its item's in the
                                        links below */
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

    double reading_since; /* when the first of the pieces under way was started */
    double waited;        /* seconds inside moe_loader_wait, the present call not included */
    double waiting_since; /* when that began; 0: none */
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

/* ---- loader_read.c ---- */

/* Queues all of a request's reads. */
void loader_read_begin(struct moe_loader *l, uint32_t item, double now);
/* Takes in what has been read, tries again what should be, starts what can start. Does not wait. */
void loader_read_pump(struct moe_loader *l);
/* Sleeps until loader_read_pump has something to do, or until that time (INFINITY: none). */
void loader_read_sleep(struct moe_loader *l, double until);
/* No further reads for a request, and drops those that have not reached the backend. False: some
 * are still there; the request becomes READY when they are back. */
bool loader_read_abandon(struct moe_loader *l, uint32_t item);
/* Waits until the backend has no piece left. */
void loader_read_drain(struct moe_loader *l);

/* ---- loader_finish.c ---- */

void loader_ready_put(struct moe_loader *l, uint32_t item);
/* Gives up a READY or CHECKING request, which is then not reported. */
void loader_finish_abandon(struct moe_loader *l, uint32_t item);
/* Whether a request is to be verified, decoded or reported. */
bool loader_finish_pending(const struct moe_loader *l);
/* Goes on with ready requests, demands first, for about `seconds`: together with the other
 * computing threads, or the owner alone. Then fills in done[], at most max; returns how many. */
uint32_t loader_finish_some(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                            double seconds, bool together);
/* The request is no more: its room and its number are free. */
void loader_forget(struct moe_loader *l, uint32_t item);

#endif
