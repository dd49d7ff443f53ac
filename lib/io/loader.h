/*
 * Loader: bytes from a pack into memory, or from memory onto a GPU, asked for ahead of time, most
 * urgent first.
 *
 * A request is one extent (an expert's segment) and where its raw bytes go. The loader cuts it into
 * pieces, keeps a bounded number of piece reads in flight, and always starts the pieces of the most
 * urgent request next (cache/link.h has the order): a demand load never waits for a whole prefetch
 * in front of it, only for the pieces already in flight (HOBBIT 3.3 calls that wait inherent; it is
 * not). When the last piece is in, the stored bytes are verified and, where the extent is
 * compressed, decoded; then the request is done.
 *
 * Threads: one thread owns a loader and makes all calls. Nothing here runs on its own: the io_uring
 * backend is submitted and reaped by the owner inside moe_loader_poll and _wait, so that on a
 * two-core machine no I/O thread takes a core from computation. Where io_uring is not to be had,
 * a few threads sit in pread (they sleep in the kernel); the interface is the same. Verification
 * and decoding need a core, and the cores belong to computation: poll, called between pieces of
 * it, does a step of them and returns (some 50 us); wait, called when there is nothing to compute,
 * has all computing threads decode (base/par.h), each a request of its own, while reads go on.
 *
 * Direct I/O is used where the file system allows it: the page cache then neither helps nor is
 * thrashed. Otherwise reads are buffered and the range is dropped from the page cache afterwards.
 *
 * Faults: reads that were interrupted, came short or found no resources go on, an I/O error is
 * tried twice more, and an extent whose checksum is wrong is read once more (page cache and
 * transfers can fail, too); what still fails then ends the request with an error, never with wrong
 * bytes. Nothing is allocated after moe_loader_open.
 *
 * To a GPU: with a device in its options a loader copies from the memory that each load names to
 * the device's, on the device's copying stream, by the same rules; nothing is read, verified or
 * decoded. A load that is reported done is on the device, for whatever is asked of it from then on.
 * Where the memory is page-locked the copies run beside computation. When the device fails, so do
 * its loads, with the device's own words.
 */
#ifndef MOE_IO_LOADER_H
#define MOE_IO_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/link.h" /* enum moe_load_priority */

enum { MOE_LOAD_ALIGN = 4096 }; /* of places in the file and in memory */

struct moe_gpu; /* gpu.h */

enum moe_load_backend {
    MOE_LOAD_AUTO = 0, /* io_uring where it can be had, else pread */
    MOE_LOAD_URING,    /* or fail to open */
    MOE_LOAD_PREAD,
};

struct moe_loader_options {
    int fd;           /* of the pack; borrowed; used for buffered reads and to reopen */
    const char *path; /* of the pack, for errors; borrowed */
    enum moe_load_backend backend;
    bool buffered;           /* do not try direct I/O */
    bool verify;             /* checksums; off leaves them to moe-quantize --verify */
    uint32_t n_requests;     /* most requests at a time, up to 65535 */
    uint32_t queue_depth;    /* most piece reads in flight, up to 256; 0: the default */
    uint32_t prefetch_depth; /* no piece of a prefetch starts while so many are in flight: a demand
                                that comes then finds a short queue; 0: the default */
    uint32_t piece_bytes;    /* multiple of 4096, up to 64 MiB; 0: the default */
    uint64_t compressed_bytes; /* room for the stored bytes (each rounded up to 4096) of compressed
                                  requests in flight; more of them wait for each other. 0 when the
                                  pack has none */
    uint32_t n_decoders;       /* compressed requests decoded at a time; 0: as many as there are
                                  computing threads now, up to 8 */
    double rate; /* bytes per second at most; 0: as fast as it goes. Time is charged as on a link of
                    that speed: a piece is over no sooner than its bytes / rate after the one before
                    it, and time when nothing was asked for is not saved up. Where the owner comes
                    by too rarely to keep such a link busy, up to 10 ms are caught up on. */
    const void *copy;    /* the whole file in memory, to be served from there at `rate`; borrowed.
                            NULL: read the file. fd and backend are then ignored. */
    uint64_t copy_bytes; /* bytes at `copy` */
    bool in_place; /* of a copy: loads take their time on the link, but nothing is written to `to`:
                      the owner looks into the copy, for whoever rehearses a link that moves bytes
                      without the processor. Needs verify off and no compressed requests */
    struct moe_gpu *gpu; /* copies from memory to this device; NULL: none. Borrowed; needs verify
                            off, no copy and no compressed requests. fd and backend are ignored */
    /* Completes loads in modelled order and time instead of measured: see moe_loader_advance.
     * Needs a rate. */
    bool lockstep;
    /* For tests: called before each piece read with its offset; a negative errno makes the read
     * fail, a positive number makes it short by so many bytes, INT_MIN: flip a bit (not on a GPU:
     * its bytes are out of reach). May sleep. With the pread backend it is called on the reading
     * threads, several at a time. */
    int (*fault)(void *ctx, uint64_t offset, uint64_t n_bytes);
    void *fault_ctx;
};

struct moe_load {
    uint64_t offset;       /* in the file, a multiple of 4096 */
    uint64_t stored_bytes; /* as they lie there; above 0. Padding up to a multiple of 4096 is read
                              with them unless the file ends before */
    uint64_t raw_bytes;    /* more than stored_bytes exactly when those are one zstd frame */
    uint64_t checksum;     /* of the stored bytes (base/hash.h) */
    const void *from;      /* to a GPU: where the bytes lie, rounded up to 4096, until the request
                              is over; then `offset` only names them. Else NULL */
    void *to;              /* raw bytes; 4096-aligned, with room for raw_bytes rounded up to 4096.
                              To a GPU: any place of its memory with that room */
    enum moe_load_priority priority;
    float score;  /* among prefetches: higher first; demands: first come, first served */
    uint64_t tag; /* the caller's, comes back with the completion */
};

/* A finished request. */
struct moe_load_done {
    uint64_t tag;
    int status; /* MOE_OK, or why not (then nothing is known about the bytes at `to`) */
};

struct moe_loader_stats {
    uint64_t requests, pieces;           /* submitted; piece reads started, retries not counted */
    uint64_t bytes_read;                 /* from the file (or memory), padding included */
    uint64_t cancelled, cancelled_bytes; /* requests given up; bytes read for them */
    uint64_t retries;                    /* reads made again or continued */
    uint64_t rereads;                    /* requests read again because a checksum was wrong */
    double read_seconds;                 /* time with at least one read in flight, as the owner saw
                                            it (lockstep: modelled) */
    double wait_seconds;                 /* time the owner slept in moe_loader_wait (lockstep: the
                                            clock's jumps there) */
    double wait_bytes; /* bytes read during moe_loader_wait, sleep or not: a piece that was
                          under way before or after counts by its time inside */
    double verify_seconds, decode_seconds; /* over all threads */
    double longest_poll_seconds;           /* by the clock, with whatever came in between */
    bool direct, uring; /* what is in use; false: buffered, threads (or no file) */
};

struct moe_loader;

/* MOE_ERR_USAGE for options that make no sense, MOE_ERR_IO when the file cannot be read at all (or
 * io_uring was insisted on and cannot be had), MOE_ERR_MEMORY. */
int moe_loader_open(struct moe_loader **out, const struct moe_loader_options *options,
                    struct moe_err *err);
/* Waits for reads in flight, drops the rest. NULL is fine. */
void moe_loader_close(struct moe_loader *l);

/* Memory that a loader with these options takes, staging for compressed bytes, decoder and threads
 * included. */
uint64_t moe_loader_bytes(const struct moe_loader_options *options);

/* Takes a request; *handle (never 0) names it until it is reported done. Starts reads if there is
 * room in the queue. MOE_ERR_LIMIT when n_requests are under way, MOE_ERR_USAGE for a request that
 * can never be served (alignment, more compressed than there is room). Never blocks, never
 * allocates. */
int moe_loader_submit(struct moe_loader *l, const struct moe_load *load, uint32_t *handle,
                      struct moe_err *err);

/* Changes the urgency of a request under way (a prefetch that is now demanded). No effect on a
 * handle that has been reported done. */
void moe_loader_promote(struct moe_loader *l, uint32_t handle, enum moe_load_priority priority,
                        float score);

/* Gives a request up: pieces not yet started are not read. If nothing of it is in flight it is gone
 * at once (true) and `to` is free; else (false) it will be reported done with
 * MOE_ERR_INTERRUPTED, and `to` must stay until then. In lockstep always true, though the modelled
 * link is still taken by the piece under way. True, too, for a handle reported done already. */
bool moe_loader_cancel(struct moe_loader *l, uint32_t handle);

/* Reaps what has been read and starts what can start, without waiting; verifies and decodes for a
 * moment (see above), demands first; at most `max` completions into done[]; returns how many. Cheap
 * when nothing happened: call it between pieces of computation. 0 does not mean that nothing more
 * is there to be finished. */
uint32_t moe_loader_poll(struct moe_loader *l, struct moe_load_done *done, uint32_t max);

/* The same, but stays until at least one request is done, asleep or decoding. 0 only when none is
 * under way (or max is 0). */
uint32_t moe_loader_wait(struct moe_loader *l, struct moe_load_done *done, uint32_t max);

/* The same for no longer than about `seconds`, for whoever waits for several loaders at a time;
 * longer by at most one step of decoding or one piece on its way to a GPU. 0 seconds: only decodes,
 * with all computing threads. In lockstep it is moe_loader_poll. */
uint32_t moe_loader_wait_for(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                             double seconds);

/* Error text of the last failed request (offset, what happened); "" when none has failed. */
const char *moe_loader_error(const struct moe_loader *l);

/* Brought up to date by poll and wait. */
const struct moe_loader_stats *moe_loader_stats(const struct moe_loader *l);

/* Lockstep: the virtual clock moves on by `seconds` of (modelled) computation; requests complete at
 * modelled times (stored bytes rounded up to 4096, over rate, one piece after the other, urgency
 * decides between pieces: cache/link.h), whatever the disk does: the real bytes are read, without
 * throttling, when poll or wait report the completion; verification and decoding take no modelled
 * time. moe_loader_wait jumps to the next completion. Returns the clock; `seconds` 0 only asks. */
double moe_loader_advance(struct moe_loader *l, double seconds);
/* Lockstep: modelled seconds until the piece under way is over, before which nothing completes;
 * INFINITY when nothing is under way. */
double moe_loader_next_piece(const struct moe_loader *l);

#endif
