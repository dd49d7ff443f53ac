/*
 * The loader's state, shared by its three files: loader.c (the interface), loader_read.c (pieces in
 * and out) and loader_finish.c (what happens to a request whose reads are over). Internal to io/.
 *
 * A request passes through READING (its pieces are queued, read, tried again) to READY (all reads
 * are over, well or not) and is FREE again once it is reported. In lockstep it is MODELLED first.
 */
#ifndef MOE_IO_LOADER_STATE_H
#define MOE_IO_LOADER_STATE_H

#include <zstd.h>

#include "io/loader.h"
#include "io/loader_backend.h"
#include "io/loader_file.h"
#include "io/staging.h"
#include "io/token_bucket.h"

struct loader_request {
    struct moe_load load;
    enum { REQUEST_FREE = 0, REQUEST_MODELLED, REQUEST_READING, REQUEST_READY } state;
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

struct moe_loader {
    struct moe_loader_options options; /* defaults filled in */
    void *block;                       /* all memory, this struct included */
    uint64_t block_bytes;

    struct loader_file file;
    struct loader_fault fault;
    struct loader_backend *backend;
    struct token_bucket bucket;
    ZSTD_DCtx *decoder; /* NULL: no compressed requests */
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

/* ---- loader_read.c --------------------------------------------------------------------------- */

/* Queues all of a request's reads. */
void loader_read_begin(struct moe_loader *l, uint32_t item, double now);
/* Takes in what has been read, tries again what should be, starts what can start. Does not wait. */
void loader_read_pump(struct moe_loader *l);
/* Sleeps until loader_read_pump has something to do. */
void loader_read_sleep(struct moe_loader *l);
/* No further reads for a request, and drops those that have not reached the backend. False: some
 * are still there; the request becomes READY when they are back. */
bool loader_read_abandon(struct moe_loader *l, uint32_t item);
/* Waits until the backend has no piece left. */
void loader_read_drain(struct moe_loader *l);

/* ---- loader_finish.c ------------------------------------------------------------------------- */

void loader_ready_put(struct moe_loader *l, uint32_t item);
void loader_ready_remove(struct moe_loader *l, uint32_t item);
/* Verifies, decodes and frees a READY request, then *done is filled. False: its bytes were damaged
 * and are being read again. */
bool loader_finish(struct moe_loader *l, uint32_t item, struct moe_load_done *done);
/* Finishes ready requests: demands if there are any, else others; at most one compressed one.
 * Returns how many. */
uint32_t loader_finish_some(struct moe_loader *l, struct moe_load_done *done, uint32_t max);
/* The request is no more: its room and its number are free. */
void loader_forget(struct moe_loader *l, uint32_t item);

#endif
