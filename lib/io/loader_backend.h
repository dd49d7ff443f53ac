/*
 * How the loader gets a piece read: one small interface, four implementations (io_uring, threads
 * in pread, a copy in memory, copies to a GPU). Internal to io/.
 *
 * A piece belongs to the backend from start() until reap() hands it back with a result. The loader
 * never gives it more than queue_depth pieces, so no backend has to refuse one. All calls are made
 * by the loader's owner. Backends are carved out of the loader's arena (on a counting arena the
 * carve functions return NULL) and allocate nothing after open.
 */
#ifndef MOE_IO_LOADER_BACKEND_H
#define MOE_IO_LOADER_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/loader.h"

struct loader_piece {
    /* What to read: all that the backend looks at. */
    uint64_t offset;     /* in the file */
    const uint8_t *from; /* in memory; NULL: in the file */
    uint8_t *to;
    uint32_t n_bytes;
    uint32_t wanted_bytes; /* of n_bytes; the rest is padding, which a file may lack at its end */
    int fd;

    /* The outcome. */
    int32_t result; /* bytes read, or a negative errno */
    int32_t fault;  /* from the test hook; 0: none */

    /* The loader's own. */
    enum {
        PIECE_FREE = 0,
        PIECE_AT_BACKEND,
        PIECE_IN_HAND, /* back, being examined */
        PIECE_HELD,    /* read earlier than the rate allows */
        PIECE_AGAIN,   /* waits to be read again */
    } state;
    uint32_t request;
    uint16_t n_errors, n_stalls; /* tries that failed; tries without error that moved nothing */
    double started, waited;      /* when it started, and how long the owner had waited by then */
    double due;                  /* by the rate: it is not over before */
    double not_before;           /* when it may be tried again */
};

/* The test hook of moe_loader_options, as backends need it. */
struct loader_fault {
    int (*hook)(void *ctx, uint64_t offset, uint64_t n_bytes);
    void *ctx;
};

static inline void loader_fault_ask(const struct loader_fault *f, struct loader_piece *piece)
{
    piece->fault = f->hook ? f->hook(f->ctx, piece->offset, piece->n_bytes) : 0;
}

/* Whether the hook makes this read fail. */
static inline bool loader_fault_refuses(const struct loader_piece *piece)
{
    return piece->fault < 0 && piece->fault != INT32_MIN;
}

/* Sets the piece's result from what the read returned, damaged as the hook said. */
void loader_fault_apply(struct loader_piece *piece, int32_t got);

struct loader_backend;

struct loader_backend_ops {
    /* Takes the piece; the read begins now or with the next reap or wait. */
    void (*start)(struct loader_backend *b, struct loader_piece *piece);
    /* Hands back finished pieces, at most max, without waiting. */
    uint32_t (*reap)(struct loader_backend *b, struct loader_piece **pieces, uint32_t max);
    /* Sleeps until a piece can be reaped or `seconds` are over (negative: no limit; there then is a
     * piece to wait for). May return early. */
    void (*wait)(struct loader_backend *b, double seconds);
    /* Only when it has no piece. */
    void (*close)(struct loader_backend *b);
};

/* First member of every backend. */
struct loader_backend {
    const struct loader_backend_ops *ops;
};

/* Carve, then open: an open that fails leaves nothing to close. Errors say why, without the path.
 */
struct loader_backend *loader_uring_carve(struct moe_arena *arena, uint32_t queue_depth);
/* *in_use: set, and cleared when the ring stops working. */
int loader_uring_open(struct loader_backend *b, uint32_t queue_depth,
                      const struct loader_fault *fault, bool *in_use, struct moe_err *err);

struct loader_backend *loader_pread_carve(struct moe_arena *arena, uint32_t queue_depth);
int loader_pread_open(struct loader_backend *b, uint32_t queue_depth,
                      const struct loader_fault *fault, struct moe_err *err);
/* Bytes of their stacks that its threads touch. */
uint64_t loader_pread_stack_bytes(uint32_t queue_depth);
/* Reads a piece about which the test hook has been asked; on the calling thread. */
void loader_pread_piece(struct loader_piece *piece);

struct loader_backend *loader_copy_carve(struct moe_arena *arena, uint32_t queue_depth);
void loader_copy_open(struct loader_backend *b, const void *copy, uint64_t copy_bytes,
                      bool in_place, const struct loader_fault *fault);

struct loader_backend *loader_upload_carve(struct moe_arena *arena, uint32_t queue_depth);
int loader_upload_open(struct loader_backend *b, struct moe_gpu *gpu, uint32_t queue_depth,
                       const struct loader_fault *fault, struct moe_err *err);

/* Sleeps; for backends with nothing to wait for. */
void loader_nap(double seconds);

#endif
