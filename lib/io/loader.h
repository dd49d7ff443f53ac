/*
 * Loader: moves bytes from a pack into memory, or from memory to a GPU, most urgent first, while
 * the owner computes.
 *
 * A request is one extent (an expert's segment) and where its raw bytes go. The loader cuts it into
 * pieces, keeps a bounded number of piece reads in flight, and always starts the pieces of the most
 * urgent request next (cache/link.h has the order): a demand load never waits for a whole prefetch,
 * only for the pieces already in flight (HOBBIT 3.3 calls the longer wait inherent; it is not).
 * When the last piece is in, the stored bytes are verified and, if the extent is compressed,
 * decoded; then the request is done.
 *
 * Threads: one thread owns a loader and makes all calls. Nothing here runs on its own: the io_uring
 * backend is submitted and reaped by the owner inside moe_loader_poll and _wait, so that on a
 * two-core machine no I/O thread takes a core from computation. Where io_uring is not available,
 * a few threads call pread (they sleep in the kernel); the interface is the same. Verification
 * and decoding need a core, and the cores belong to computation: poll, called between pieces of
 * it, does one step of them and returns (about 50 us); wait, called when there is nothing to
 * compute, lets all computing threads decode (base/par.h), each its own request, while reads go on.
 *
 * Direct I/O is used where the file system allows it: the page cache is neither used nor filled.
 * Otherwise reads are buffered and the range is dropped from the page cache afterwards.
 *
 * Faults: reads that were interrupted, short or refused for lack of resources are continued, a read
 * with an I/O error is tried twice more, and an extent with a wrong checksum is read once more
 * (page cache and transfers can fail, too). A ring that stops working is done without. A request
 * that still fails ends with an error, never with wrong bytes. Nothing is allocated after
 * moe_loader_open.
 *
 * To a GPU: with a device in its options a loader copies from the memory that each load names to
 * the device's, on the device's copy stream, by the same rules; nothing is read, verified or
 * decoded. Work that is given to the device after a load is reported done finds its bytes there. If
 * the memory is page-locked, copies overlap with computation. When the device fails, its loads fail
 * with the device's error.
 */
#ifndef MOE_IO_LOADER_H
#define MOE_IO_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/link.h" /* enum moe_load_priority */

enum { MOE_LOAD_ALIGN = 4096 }; /* alignment of offsets in the file and of addresses in memory */

struct moe_gpu; /* gpu.h */

enum moe_load_backend {
    MOE_LOAD_AUTO = 0, /* io_uring where it is available, else pread */
    MOE_LOAD_URING,    /* fails to open without io_uring */
    MOE_LOAD_PREAD,
};

struct moe_loader_options {
    int fd;           /* the pack's file; borrowed; used for buffered reads and to reopen */
    const char *path; /* the pack's path, for errors; borrowed */
    enum moe_load_backend backend;
    bool buffered;           /* do not try direct I/O */
    bool verify;             /* checksums; off leaves them to moe-quantize --verify */
    uint32_t n_requests;     /* most requests at a time, up to 65535 */
    uint32_t queue_depth;    /* most piece reads in flight, up to 256; 0: the default */
    uint32_t prefetch_depth; /* no piece of a prefetch starts while this many pieces are in flight,
                                so that a demand finds a short queue; 0: the default */
    uint32_t piece_bytes;    /* multiple of 4096, up to 64 MiB; 0: the default */
    uint64_t compressed_bytes; /* room for the stored bytes (rounded up to 4096 per request) of
                                  compressed requests in flight; others wait for room. 0 if the pack
                                  has none */
    uint32_t n_decoders;       /* compressed requests decoded at a time; 0: the number of computing
                                  threads when opened, up to 8 */
    double rate; /* most bytes per second; 0: no limit. Time is charged as on a link of that speed:
                    a piece ends at the earliest bytes / rate after the one before it, and idle time
                    gives no credit. If the owner polls too rarely to keep such a link busy, up to
                    10 ms are caught up on. */
    /* Every load is arranged: its offset is a name of bytes that are made of ranges of other files
     * (base/file.h). It takes room of compressed_bytes, is not verified, and takes modelled time
     * as if it were in the file. Borrowed; NULL: none. With a copy or a GPU it does not matter. */
    const struct moe_arranger *arranger;
    const void *copy;    /* the whole file in memory, from which loads are served at `rate`;
                            borrowed. fd and backend are then ignored. NULL: read the file */
    uint64_t copy_bytes; /* bytes at `copy` */
    bool in_place; /* with a copy: loads take their time on the link, but nothing is written to
                      `to`; the owner reads the copy itself. Rehearses a link that moves bytes
                      without the processor. Needs verify off and no compressed requests */
    struct moe_gpu *gpu; /* copies from memory to this device; NULL: none. Borrowed; needs verify
                            off, no copy and no compressed requests. fd and backend are ignored */
    /* Completes loads in modelled order and time instead of real ones: see moe_loader_advance.
     * Needs a rate. */
    bool lockstep;
    struct moe_link_costs costs; /* lockstep: costs of modelled loads */
    /* For tests: called before each piece read with its offset; a negative errno makes the read
     * fail, a positive number shortens it by that many bytes, INT_MIN flips a bit (not on a GPU,
     * whose memory it cannot write). May sleep. The pread backend calls it on several reading
     * threads at a time. */
    int (*fault)(void *ctx, uint64_t offset, uint64_t n_bytes);
    void *fault_ctx;
};

struct moe_load {
    uint64_t offset;       /* in the file, a multiple of 4096 */
    uint64_t stored_bytes; /* in the file; above 0. Padding up to a multiple of 4096 is read as well
                              unless the file ends before */
    uint64_t raw_bytes;    /* larger than stored_bytes exactly when these are one zstd frame */
    uint64_t checksum;     /* of the stored bytes (base/hash.h) */
    const void *from;      /* to a GPU: the bytes in memory, rounded up to 4096, unchanged until the
                              request is over; `offset` is then only a name. Else NULL */
    void *to;              /* raw bytes; 4096-aligned, with room for raw_bytes rounded up to 4096.
                              To a GPU: any address in its memory with that room */
    enum moe_load_priority priority;
    float score;  /* among prefetches: higher first; demands: first come, first served */
    uint64_t tag; /* the caller's; returned with the completion */
};

/* A finished request. */
struct moe_load_done {
    uint64_t tag;
    int status; /* if not MOE_OK, the bytes at `to` are undefined */
};

struct moe_loader_stats {
    uint64_t requests, pieces;           /* submitted; piece reads started, retries not counted */
    uint64_t bytes_read;                 /* from the file (or memory), padding included */
    uint64_t cancelled, cancelled_bytes; /* cancelled requests; bytes read for them */
    uint64_t retries;                    /* reads repeated or continued */
    uint64_t rereads;                    /* requests read again after a wrong checksum */
    double read_seconds;                 /* time with at least one read in flight, as seen by the
                                            owner (lockstep: modelled) */
    double wait_seconds;                 /* time the owner slept in moe_loader_wait (lockstep: the
                                            clock's jumps there) */
    double wait_bytes; /* bytes read during moe_loader_wait, asleep or not; a piece that was also in
                          flight before or after counts by its share of time inside */
    double work_seconds; /* time of the owner in submit, cancel, poll and wait, awake: asking,
                            reaping, checking, copying, decoding (lockstep: modelled) */
    double verify_seconds, decode_seconds; /* over all threads */
    double longest_poll_seconds;           /* wall-clock time, preemption included */
    bool direct, uring;                    /* in use; false: buffered reads, threads (or no file) */
};

struct moe_loader;

/* MOE_ERR_USAGE for options that make no sense, MOE_ERR_IO when the file cannot be read at all (or
 * io_uring was required and is not available), MOE_ERR_MEMORY. */
int moe_loader_open(struct moe_loader **out, const struct moe_loader_options *options,
                    struct moe_err *err);
/* Waits for reads in flight, drops the rest. NULL is fine. */
void moe_loader_close(struct moe_loader *l);

/* Memory of a loader with these options, including staging for compressed bytes, decoder and
 * threads. */
uint64_t moe_loader_bytes(const struct moe_loader_options *options);

/* Adds a request; *handle (never 0) names it until it is reported done. Starts reads if the queue
 * has room, unless they are held. MOE_ERR_LIMIT when n_requests are unfinished, MOE_ERR_USAGE for a
 * request that can never be served (misaligned, or more compressed bytes than the room for them),
 * MOE_ERR_IO where a file that it is arranged from has changed.
 * Never blocks, never allocates. */
int moe_loader_submit(struct moe_loader *l, const struct moe_load *load, uint32_t *handle,
                      struct moe_err *err);

/* Between hold and release, submitted requests start no reads. The requests of a layer, which come
 * one by one, then go to the kernel in one call and to the disk with one notice (in a virtual
 * machine each is a call of its host), the most urgent first. poll and wait start them at any time.
 */
void moe_loader_hold(struct moe_loader *l);
void moe_loader_let_go(struct moe_loader *l);

/* Changes the urgency of an unfinished request (a prefetch that becomes a demand). No effect on a
 * request that was reported done. */
void moe_loader_promote(struct moe_loader *l, uint32_t handle, enum moe_load_priority priority,
                        float score);

/* Cancels a request: pieces not yet started are not read. True: none was in flight, the request is
 * gone and `to` may be reused. False: it will be reported done with MOE_ERR_INTERRUPTED, and `to`
 * must stay until then. In lockstep always true, though the modelled link finishes the piece it
 * moves. Also true for a request that was reported done. */
bool moe_loader_cancel(struct moe_loader *l, uint32_t handle);

/* Limits what of prefetches is in flight when a demand comes (moe_link_limit_prefetches), within
 * prefetch_depth. */
void moe_loader_limit_prefetches(struct moe_loader *l, double bytes);

/* Reaps finished reads and starts new ones, without waiting; verifies and decodes for a moment (see
 * above), demands first. Writes at most `max` completions to done[] and returns how many. Cheap
 * when nothing happened: call it between pieces of computation. After it returns 0 there may still
 * be bytes to verify and decode. */
uint32_t moe_loader_poll(struct moe_loader *l, struct moe_load_done *done, uint32_t max);

/* The same, but sleeps or decodes until at least one request is done. Returns 0 only when there is
 * no unfinished request (or max is 0). */
uint32_t moe_loader_wait(struct moe_loader *l, struct moe_load_done *done, uint32_t max);

/* The same for about `seconds` at most, for an owner of several loaders; may take longer by one
 * step of decoding or one piece copied to a GPU. 0 seconds: only decodes, with all computing
 * threads. In lockstep it is moe_loader_poll. */
uint32_t moe_loader_wait_for(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                             double seconds);

/* Error text of the last failed request (offset, what happened); "" when none has failed. */
const char *moe_loader_error(const struct moe_loader *l);

/* Counters, updated by poll and wait. */
const struct moe_loader_stats *moe_loader_stats(const struct moe_loader *l);

/* Lockstep: advances the virtual clock by `seconds` of (modelled) computation. Requests complete at
 * modelled times, whatever the disk does: stored bytes rounded up to 4096, over rate, one piece
 * after the other, urgency deciding between pieces (cache/link.h). The real bytes are read, without
 * throttling, when poll or wait report the completion; verification and decoding take no modelled
 * time. moe_loader_wait jumps to the next completion. Returns the clock; 0 seconds only asks. */
double moe_loader_advance(struct moe_loader *l, double seconds);
/* Lockstep: modelled seconds until the current piece ends; nothing completes before. INFINITY when
 * there is nothing to move. */
double moe_loader_next_piece(const struct moe_loader *l);

#endif
