/*
 * Backends: how the loader gets a piece read. One small interface, four implementations (io_uring,
 * threads in pread, a copy in memory, copies to a GPU).
 *
 * A piece belongs to the backend from start() until reap() returns it with a result. The loader
 * never gives it more than queue_depth pieces, so no backend has to refuse one. The loader's owner
 * makes all calls. Backends are carved out of the loader's arena (on a counting arena the carve
 * functions return NULL) and allocate nothing after open.
 */
#ifndef MOE_IO_LOADER_INTERNAL_H
#define MOE_IO_LOADER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <zstd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "io/loader.h"
#include "io/scratch.h"

struct loader_piece {
    /* The request: all that the backend looks at. */
    uint64_t offset;     /* in the file */
    const uint8_t *from; /* in memory; NULL: in the file */
    uint8_t *to;
    uint32_t n_bytes;
    uint32_t wanted_bytes; /* the part of n_bytes needed; the rest is padding, which a file may lack
                              at its end */
    uint32_t file;         /* of the loader's files */
    int fd;                /* one of its descriptors */

    /* The outcome. */
    int32_t result; /* bytes read, or a negative errno */
    int32_t fault;  /* from the test hook; 0: none */

    /* For the loader only. */
    enum {
        PIECE_FREE = 0,
        PIECE_AT_BACKEND,
        PIECE_IN_HAND, /* back from the backend, being examined */
        PIECE_HELD,    /* read earlier than the rate allows */
        PIECE_AGAIN,   /* waits to be read again */
    } state;
    uint32_t request;
    uint16_t n_errors, n_stalls; /* failed tries; tries without error that moved nothing */
    double started, waited;      /* when it started, and how long the owner had waited by then */
    double due;                  /* the earliest end by the rate */
    double not_before;           /* the earliest time of the next try */
};

/* The test hook of moe_loader_options, as backends use it. */
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

/* Sets the piece's result to what the read returned, damaged as the hook asked. */
void loader_fault_apply(struct loader_piece *piece, int32_t got);

struct loader_backend;

struct loader_backend_ops {
    /* Accepts the piece; the read begins now or with the next reap or wait. */
    void (*start)(struct loader_backend *b, struct loader_piece *piece);
    /* Returns finished pieces, at most max, without waiting. */
    uint32_t (*reap)(struct loader_backend *b, struct loader_piece **pieces, uint32_t max);
    /* Sleeps until a piece can be reaped or `seconds` are over (negative: no limit; there is a
     * piece then). May return early. */
    void (*wait)(struct loader_backend *b, double seconds);
    /* Called only without pieces. */
    void (*close)(struct loader_backend *b);
};

/* First member of every backend. */
struct loader_backend {
    const struct loader_backend_ops *ops;
};

/* Carve, then open: a failed open leaves nothing to close. Errors say why, without the path. */
struct loader_backend *loader_uring_carve(struct moe_arena *arena, uint32_t queue_depth);
/* *in_use: set, and cleared when the ring stops working. */
int loader_uring_open(struct loader_backend *b, uint32_t queue_depth,
                      const struct loader_fault *fault, bool *in_use, struct moe_err *err);

struct loader_backend *loader_pread_carve(struct moe_arena *arena, uint32_t queue_depth);
int loader_pread_open(struct loader_backend *b, uint32_t queue_depth,
                      const struct loader_fault *fault, struct moe_err *err);
/* Stack bytes that its threads touch. */
uint64_t loader_pread_stack_bytes(uint32_t queue_depth);
/* Reads, on the calling thread, a piece for which the test hook has been called. */
void loader_pread_piece(struct loader_piece *piece);

struct loader_backend *loader_copy_carve(struct moe_arena *arena, uint32_t queue_depth);
void loader_copy_open(struct loader_backend *b, const void *copy, uint64_t copy_bytes,
                      bool in_place, const struct loader_fault *fault);

struct loader_backend *loader_upload_carve(struct moe_arena *arena, uint32_t queue_depth);
int loader_upload_open(struct loader_backend *b, struct moe_gpu *gpu, uint32_t queue_depth,
                       const struct loader_fault *fault, struct moe_err *err);

/* Sleeps; for backends with nothing to wait for. */
void loader_nap(double seconds);

/*
 * Rate limit: rehearses a link of a given speed by the clock and says when a transfer ends.
 *
 * Transfers are charged whole, one after the other. Unlike a bucket of tokens that fills up, this
 * gives no credit for idle time: the first transfer after a pause takes its full time, as on a real
 * link. In any window at most rate * (window + LATE) bytes plus one transfer complete.
 */

struct token_bucket {
    double rate; /* bytes per second; 0: no limit */
    double due;  /* when the last charged transfer ends, in seconds of the caller's clock */
};

/* How far a transfer may be backdated, at most to the moment it was requested, if the owner was
 * busy computing and let the link fall idle: a real link would not have waited for the owner. */
#define TOKEN_BUCKET_LATE 0.010
/* How long before the link is free the next read starts, so that the disk's latency does not add to
 * the link's time. */
#define TOKEN_BUCKET_AHEAD 0.002

/*
 * The loader's own descriptors of the file: one that bypasses the page cache, where the file system
 * allows it, and one through it.
 */

struct loader_file {
    int buffered_fd; /* -1: none */
    int direct_fd;   /* -1: direct I/O is not available */
    bool owned;      /* buffered_fd is ours to close, not the caller's */
};

/* Opens the file of `fd` again. page: 4096 bytes, 4096-aligned, for a trial read. MOE_ERR_IO when
 * neither way can read it; errors name `path`. */
int loader_file_open(struct loader_file *f, int fd, const char *path, bool want_direct, void *page,
                     struct moe_err *err);
void loader_file_close(struct loader_file *f);

/*
 * Verifies the stored bytes of one request and, if compressed, decodes them in small steps, so that
 * the caller can do other work in between.
 *
 * A step is CHECK_HASH_BYTES of checksum or one block of a zstd frame: 32 KiB of raw bytes in our
 * packs, at most 128 KiB by the format (about 40 and 150 microseconds). Blocks are decoded directly
 * to their place, without a second copy. Checks share nothing: different threads may step different
 * checks.
 */

enum {
    CHECK_HASH_BYTES = 256 * 1024,
    /* zstd 1.5: 94 KiB of tables, 128 KiB of input buffer, and the rest. */
    CHECK_DECODER_BYTES = 288 * 1024,
};

struct loader_check {
    struct moe_hasher *hasher;
    ZSTD_DCtx *decoder; /* NULL: no compressed requests */

    /* The current request. */
    const uint8_t *stored;
    uint64_t stored_bytes, raw_bytes, checksum;
    void *to;
    bool verifying, decoding;            /* not finished */
    const struct moe_arranger *arranger; /* the next kind of decoding; NULL: none */
    const struct loader_ranges *ranges;  /* what was read for it */
    uint64_t name;
    uint32_t step;
    struct moe_err failure; /* `problem` may be its text */
    uint64_t hashed;
    ZSTD_inBuffer in;
    ZSTD_outBuffer out;
    size_t wanted; /* bytes of input that the decoder wants next */

    /* The result. */
    const char *problem; /* NULL: none so far */
    double verify_seconds, decode_seconds;
};

/* What an arranged request reads, one range after the other. */
struct loader_ranges {
    uint32_t n;
    struct moe_file_range at[MOE_MAX_RANGES];
};

/* decodes: whether compressed requests will come. MOE_ERR_MEMORY. Later calls allocate nothing. */
int loader_check_open(struct loader_check *c, bool decodes, struct moe_err *err);
void loader_check_close(struct loader_check *c);

/*
 * The loader's state, shared by loader_open.c and loader.c.
 *
 * A request goes from READING (its pieces are queued, read, tried again) over READY (all reads have
 * ended, well or not) to CHECKING (a job verifies and decodes it) and is FREE again once it is
 * reported. In lockstep it is MODELLED first.
 */

struct loader_request {
    struct moe_load load;
    enum {
        REQUEST_FREE = 0,
        REQUEST_MODELLED,
        REQUEST_READING,
        REQUEST_READY,
        REQUEST_CHECKING
    } state;
    uint16_t generation; /* the handle's generation: an old handle must not touch a new request */
    uint8_t n_rereads;   /* reads repeated after wrong checksums */
    bool given_up;       /* cancelled or failed: bytes that still arrive do not matter */
    int status;          /* why it was given up; else MOE_OK */
    uint32_t n_pieces;   /* in flight */
    uint32_t next;       /* in the free list or among the ready; MOE_LINK_NONE */
    uint8_t *stored;     /* where the stored bytes go; NULL: staged, no room yet */
    uint64_t read_bytes; /* in all */
    uint64_t bytes_in;   /* read so far */
    double since;        /* when its reads were queued */
};

/* Verifies and decodes one request. */
struct loader_job {
    struct loader_check check;
    uint32_t item; /* MOE_LINK_NONE: none */
};

struct moe_loader {
    struct moe_loader_options options; /* defaults filled in */
    void *block;                       /* all memory, including this struct */
    uint64_t block_bytes;

    const struct moe_arranger *arranger; /* options', unless these make it idle */
    struct loader_ranges *ranges;        /* with it, of each request */
    struct loader_file *files;           /* the arranger's, or the pack's */
    uint32_t n_files;
    struct loader_fault fault;
    struct loader_backend *backend;
    struct token_bucket bucket;
    struct loader_job *jobs;
    uint32_t n_jobs, n_busy; /* jobs with a request */
    struct staging staging;

    struct loader_request *requests; /* options.n_requests; a request's number is that of its item
                                        in the links below */
    uint32_t free_request;
    uint32_t n_requests;              /* unfinished */
    struct moe_link queue;            /* order of reads */
    struct moe_link model;            /* lockstep: when requests complete */
    uint32_t first_ready, last_ready; /* in the order they became ready */

    struct loader_piece *pieces;  /* options.queue_depth */
    uint32_t *free_pieces;        /* the numbers of n_free_pieces pieces */
    struct loader_piece **reaped; /* room for queue_depth */
    uint32_t n_free_pieces, n_at_backend;
    uint32_t n_put_by; /* pieces in PIECE_HELD and PIECE_AGAIN */

    bool held;            /* submitted requests start no reads */
    double reading_since; /* when the first of the current pieces started */
    double waited;        /* seconds inside moe_loader_wait, without the current call */
    double waiting_since; /* when the current call began; 0: none */
    struct moe_loader_stats stats;
    struct moe_err error;
};

/* Whether what is read of it first goes to the room for compressed bytes. */
static inline bool loader_is_staged(const struct moe_loader *l, const struct moe_load *load)
{
    return l->arranger || load->stored_bytes != load->raw_bytes;
}

/* Seconds the owner has waited until `now`. */
static inline double loader_waited(const struct moe_loader *l, double now)
{
    return l->waited + (l->waiting_since > 0 ? now - l->waiting_since : 0);
}

/* Starts no further reads of a request and drops those that have not reached the backend. False:
 * some are still there; the request becomes READY when they are back. */
bool loader_read_abandon(struct moe_loader *l, uint32_t item);
/* Waits until the backend has no pieces. */
void loader_read_drain(struct moe_loader *l);

#endif
