/*
 * Loader: bytes from a pack into memory, asked for ahead of time, most urgent first.
 *
 * A request is one extent (an expert's segment) and where its raw bytes go. The loader cuts it into
 * pieces, keeps a bounded number of piece reads in flight, and always starts the pieces of the most
 * urgent request next: a demand load never waits for a whole prefetch in front of it, only for the
 * pieces already in flight (HOBBIT 3.3 calls that wait inherent; it is not). When the last piece is
 * in, the stored bytes are verified and, where the extent is compressed, decoded; then the request
 * is done.
 *
 * Threads: one thread owns a loader and makes all calls. Nothing here runs on its own: the io_uring
 * backend is submitted and reaped by the owner inside moe_loader_poll and _wait, so that on a
 * two-core machine no I/O thread takes a core from computation. Where io_uring is not to be had,
 * a few threads sit in pread (they sleep in the kernel); the interface is the same.
 *
 * Direct I/O is used where the file system allows it: the page cache then neither helps nor is
 * thrashed. Otherwise reads are buffered and the range is dropped from the page cache afterwards.
 */
#ifndef MOE_IO_LOADER_H
#define MOE_IO_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum moe_load_priority {
    MOE_LOAD_DEMAND = 0, /* somebody waits, or will as soon as it has finished what is here */
    MOE_LOAD_PREFETCH,   /* ordered among each other by score */
};

enum moe_load_backend { MOE_LOAD_AUTO = 0, MOE_LOAD_URING, MOE_LOAD_PREAD };

struct moe_loader_options {
    int fd;           /* of the pack; borrowed; used for buffered reads and to reopen */
    const char *path; /* of the pack, for O_DIRECT and for errors; borrowed */
    enum moe_load_backend backend;
    bool buffered;             /* do not try direct I/O */
    bool verify;               /* checksums; off leaves them to moe-quantize --verify */
    uint32_t n_requests;       /* most requests at a time */
    uint32_t queue_depth;      /* most piece reads in flight; 0: the default */
    uint32_t piece_bytes;      /* multiple of 4096; 0: the default */
    uint64_t compressed_bytes; /* room for the stored bytes of compressed requests in flight; 0 when
                                  the pack has none */
    double rate;      /* bytes per second at most, by a token bucket; 0: as fast as it goes */
    const void *copy; /* the whole file in memory, to be served from there at `rate`; NULL:
                         read the file */
    /* Completes loads in modelled order and time instead of measured: see moe_loader_advance. */
    bool lockstep;
    /* For tests: called before each piece read with its offset; a negative errno makes the read
     * fail, a positive number makes it short by so many bytes, INT_MIN: flip a bit. May sleep. */
    int (*fault)(void *ctx, uint64_t offset, uint64_t n_bytes);
    void *fault_ctx;
};

struct moe_load {
    uint64_t offset;       /* in the file, a multiple of 4096 */
    uint64_t stored_bytes; /* as they lie there; the file has padding up to a multiple of 4096 */
    uint64_t raw_bytes;
    uint64_t checksum; /* of the stored bytes (base/hash.h) */
    void *to;          /* raw bytes; 4096-aligned, with room for raw_bytes rounded up to 4096 */
    enum moe_load_priority priority;
    float score;  /* among prefetches: higher first; demands: lower `order` first */
    uint64_t tag; /* the caller's, comes back with the completion */
};

/* A finished request. */
struct moe_load_done {
    uint64_t tag;
    int status; /* MOE_OK, or why not (then nothing is known about the bytes at `to`) */
};

struct moe_loader_stats {
    uint64_t requests, pieces, bytes_read; /* bytes as read from the file, padding included */
    uint64_t cancelled, cancelled_bytes;   /* read for requests that were cancelled */
    uint64_t retries;
    double read_seconds; /* time with at least one read in flight */
    double wait_seconds; /* time the owner slept in moe_loader_wait */
    double verify_seconds, decode_seconds;
    bool direct, uring;
};

struct moe_loader;

/* MOE_ERR_IO when the file cannot be read at all, MOE_ERR_MEMORY. */
int moe_loader_open(struct moe_loader **out, const struct moe_loader_options *options,
                    struct moe_err *err);
/* Waits for reads in flight, drops the rest. */
void moe_loader_close(struct moe_loader *l);

/* Memory that a loader with these options takes, staging for compressed bytes included. */
uint64_t moe_loader_bytes(const struct moe_loader_options *options);

/* Takes a request; *handle names it until it is reported done. Starts reads if there is room in
 * the queue. MOE_ERR_LIMIT when n_requests are under way. Never blocks, never allocates. */
int moe_loader_submit(struct moe_loader *l, const struct moe_load *load, uint32_t *handle,
                      struct moe_err *err);

/* Changes the urgency of a request under way (a prefetch that is now demanded). */
void moe_loader_promote(struct moe_loader *l, uint32_t handle, enum moe_load_priority priority,
                        float score);

/* Gives a request up: pieces not yet started are not read. If nothing of it is in flight it is gone
 * at once (true) and `to` is free; else (false) it will be reported done with
 * MOE_ERR_INTERRUPTED, and `to` must stay until then. */
bool moe_loader_cancel(struct moe_loader *l, uint32_t handle);

/* Reaps what has finished and starts what can start, without waiting; at most `max` completions
 * into done[]; returns how many. Cheap when nothing happened: call it between pieces of
 * computation. */
uint32_t moe_loader_poll(struct moe_loader *l, struct moe_load_done *done, uint32_t max);

/* The same, but sleeps until at least one request is done. 0 only when none is under way. */
uint32_t moe_loader_wait(struct moe_loader *l, struct moe_load_done *done, uint32_t max);

/* Error text of the last failed request (offset, what happened). */
const char *moe_loader_error(const struct moe_loader *l);

const struct moe_loader_stats *moe_loader_stats(const struct moe_loader *l);

/* Lockstep: the virtual clock moves on by `seconds` of (modelled) computation; requests complete at
 * modelled times (bytes / rate, one piece after the other, urgency decides between pieces),
 * whatever the disk does: the real bytes are read when a completion is due. Returns the clock. */
double moe_loader_advance(struct moe_loader *l, double seconds);

#endif
