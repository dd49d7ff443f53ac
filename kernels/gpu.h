/*
 * The GPU as seen from C: devices, memory, copies, marks in time. No CUDA types, so that callers
 * need no #ifdef. gpu_ops.h has its operations.
 *
 * Built with CUDA, gpu_*.cu implements this; without, gpu_none.c answers "no device". The build
 * chooses which of the two is linked (Makefile, CUDA=auto|0|1). The tests compile the same gpu_*.cu
 * for the processor (tests/shim).
 *
 * A device has two streams: one computes, one copies. Work given to a stream runs later, in order;
 * the calls return at once. Marks tell how far a stream has come. One thread makes all calls for a
 * device.
 *
 * Errors: calls that give work to a stream return nothing. The first failure is kept, all later
 * work is dropped, and the functions that wait return the failure (moe_gpu_mark_wait,
 * moe_gpu_finish, moe_gpu_status: MOE_ERR_DEVICE with the call that failed). A failed device stays
 * failed, also for those of this process that open it later: only another process can use it. An
 * error inside a running kernel is found by some later call; with MOE_GPU_SYNC=1 in the environment
 * when the device is opened, every call waits for its work, nothing is recorded, and the error
 * names the kernel.
 */
#ifndef MOE_KERNELS_GPU_H
#define MOE_KERNELS_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "none", or the CUDA version this program was built with, as "13.0". */
const char *moe_gpu_build(void);

struct moe_gpu_info {
    char name[128];
    uint64_t memory_bytes;      /* total */
    uint64_t memory_free_bytes; /* now */
    int compute_major, compute_minor;
    int n_processors; /* streaming multiprocessors */
    bool unified;     /* its memory is the host's */
};

/* How many devices the driver offers; 0 without a driver, a device, or CUDA. */
int moe_gpu_count(void);

/* Describes device `index`. 0 on success, -1 when there is no such device. */
int moe_gpu_describe(int index, struct moe_gpu_info *info);

/* Copies n_bytes from page-locked host memory to device `index`, n_runs times after a first one
 * that is not counted, and writes how long each took. 0 on success, -1 when there is no such device
 * or too little memory. */
int moe_gpu_copy_seconds(int index, uint64_t n_bytes, int n_runs, double *seconds);

struct moe_gpu;

/* Opens device `index`. MOE_ERR_DEVICE: no device, no driver, or a device that this build has no
 * code for; the text says which. */
int moe_gpu_open(struct moe_gpu **out, int index, struct moe_err *err);
void moe_gpu_close(struct moe_gpu *g); /* waits for its work; NULL is fine */
const struct moe_gpu_info *moe_gpu_info(const struct moe_gpu *g); /* as of opening */

/* ---- Memory ---- */

/* Memory of the device, 256-byte aligned, zeroed. NULL: too little is left; `err` says how much was
 * requested and how much is free. The host may calculate with these addresses, but not read through
 * them. */
void *moe_gpu_alloc(struct moe_gpu *g, uint64_t n_bytes, struct moe_err *err);
void moe_gpu_free(struct moe_gpu *g, void *p, uint64_t n_bytes); /* NULL is fine */
uint64_t moe_gpu_allocated_bytes(const struct moe_gpu *g);       /* graphs included */
/* An open device's own memory. */
enum { MOE_GPU_OWN_BYTES = 8 << 10 };

/* Page-locks the caller's memory (whole pages), so that copies of it overlap computation: piece by
 * piece, as much as the system allows. Copies of the rest go through a little page-locked memory,
 * or wait. MOE_ERR_MEMORY: the process has none left. */
int moe_gpu_pin(struct moe_gpu *g, void *p, uint64_t n_bytes, struct moe_err *err);
void moe_gpu_unpin(struct moe_gpu *g, void *p); /* NULL is fine */
uint64_t moe_gpu_unlocked_bytes(
    const struct moe_gpu *g); /* bytes that could not be page-locked, in all pinned memory */

/* ---- Streams ---- */

enum moe_gpu_stream { MOE_GPU_COMPUTE, MOE_GPU_COPY, MOE_GPU_N_STREAMS };

/* Copies between host and device, copies inside the device, and zeros. Host memory must not change
 * until the stream has passed the copy; if it is not page-locked, the call waits. */
void moe_gpu_upload(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, const void *from,
                    uint64_t n_bytes);
void moe_gpu_download(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, const void *from,
                      uint64_t n_bytes);
void moe_gpu_copy(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, const void *from,
                  uint64_t n_bytes);
void moe_gpu_zero(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, uint64_t n_bytes);

struct moe_gpu_mark;

/* timed: usable with moe_gpu_mark_seconds. */
int moe_gpu_mark_open(struct moe_gpu_mark **out, struct moe_gpu *g, bool timed,
                      struct moe_err *err);
void moe_gpu_mark_close(struct moe_gpu_mark *m); /* NULL is fine */
/* Puts the mark after all work given to the stream so far. It may be set again. */
void moe_gpu_mark_set(struct moe_gpu_mark *m, enum moe_gpu_stream stream);
/* Whether the stream has passed it; also true after the device has failed. */
bool moe_gpu_mark_passed(struct moe_gpu_mark *m);
/* Waits for it: 200 microseconds spinning, then asleep. */
int moe_gpu_mark_wait(struct moe_gpu_mark *m, struct moe_err *err);
/* Makes later work of the stream begin after the mark was passed. */
void moe_gpu_stream_after(struct moe_gpu *g, enum moe_gpu_stream stream, struct moe_gpu_mark *m);
/* Seconds between two timed marks that were passed; negative if unknown. */
double moe_gpu_mark_seconds(struct moe_gpu_mark *from, struct moe_gpu_mark *to);

/* Kernels launched so far, without cuBLAS's own; those of a recording count once, when it is made.
 */
uint64_t moe_gpu_launches(const struct moe_gpu *g);

/* Waits for a stream, or for both, like moe_gpu_mark_wait. */
int moe_gpu_wait(struct moe_gpu *g, enum moe_gpu_stream stream, struct moe_err *err);
int moe_gpu_finish(struct moe_gpu *g, struct moe_err *err);
/* The failure so far, without waiting; MOE_OK: none. */
int moe_gpu_status(const struct moe_gpu *g, struct moe_err *err);

/* ---- Graphs ----
 *
 * A list of computations that recurs with the same addresses and shapes: recorded once, started by
 * one call. */

struct moe_gpu_graph;

/* Memory counted for one recorded kernel: about the most that drivers were seen to take. (NVIDIA's
 * developer forum, thread 244901, measures 64 KB a node with driver 470; CCCL, pull request 3768,
 * finds 10 KB with later ones.) */
enum { MOE_GPU_NODE_BYTES = 64 << 10 };
/* Limits allocated memory, including graphs, to n_bytes: a graph that would exceed it is not made.
 * 0, as after opening: no limit. */
void moe_gpu_set_budget(struct moe_gpu *g, uint64_t n_bytes);

/* Between begin and end, work given to the compute stream is recorded instead of done. _end:
 * MOE_ERR_MEMORY when the device refuses to make a graph, or the budget has no room; the device
 * continues, and the caller must repeat the work call by call. */
void moe_gpu_graph_begin(struct moe_gpu *g);
int moe_gpu_graph_end(struct moe_gpu *g, struct moe_gpu_graph **out, struct moe_err *err);
void moe_gpu_graph_run(struct moe_gpu *g, struct moe_gpu_graph *graph);
void moe_gpu_graph_close(struct moe_gpu_graph *graph); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif
