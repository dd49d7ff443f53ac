/*
 * The GPU, as seen from C: devices, memory, copies, marks in time. No CUDA types, so that callers
 * need no #ifdef. What it computes is in gpu_ops.h.
 *
 * Built with CUDA the functions are in gpu_*.cu; without, gpu_none.c answers with "no device".
 * Which of the two is linked is the build's choice (Makefile, CUDA=auto|0|1). The tests compile the
 * same gpu_*.cu for the processor (tests/shim).
 *
 * A device has two streams: one computes, one copies. What is asked of a stream happens in order
 * and later; the calls return at once. Marks tell how far a stream has come. One thread makes all
 * calls of a device.
 *
 * Errors: what goes into a stream returns nothing. The first failure is kept, everything asked for
 * afterwards is dropped, and the functions that wait return it (moe_gpu_mark_wait, moe_gpu_finish,
 * moe_gpu_status: MOE_ERR_DEVICE with the call that failed). A device that failed stays so. What a
 * kernel does wrong while it runs is found by whatever call comes next; with MOE_GPU_SYNC=1 in the
 * environment when the device is opened, everything asked of a stream is waited for, nothing is
 * recorded, and the error names the kernel.
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
    uint64_t memory_bytes;      /* in all */
    uint64_t memory_free_bytes; /* now */
    int compute_major, compute_minor;
    int n_processors; /* streaming multiprocessors */
    bool unified;     /* its memory is the host's */
};

/* How many devices the driver offers; 0 without a driver, a device, or CUDA. */
int moe_gpu_count(void);

/* Describes device `index`. 0 on success, -1 when there is no such device. */
int moe_gpu_describe(int index, struct moe_gpu_info *info);

/* Copies n_bytes from page-locked host memory to device `index`, n_runs times after one that does
 * not count, and writes what each took. 0 on success, -1 when there is no such device or too little
 * memory. */
int moe_gpu_copy_seconds(int index, uint64_t n_bytes, int n_runs, double *seconds);

struct moe_gpu;

/* Opens device `index`. MOE_ERR_DEVICE: none, no driver, or one that this build has no code for;
 * the text says which. */
int moe_gpu_open(struct moe_gpu **out, int index, struct moe_err *err);
void moe_gpu_close(struct moe_gpu *g); /* waits for what is under way; NULL is fine */
const struct moe_gpu_info *moe_gpu_info(const struct moe_gpu *g); /* as it was when opened */

/* ---- Memory ---- */

/* Memory of the device, 256-byte aligned, zeroed. NULL: too little is left; `err` says how much was
 * asked for and is free. The host may calculate with these addresses, but not read through them. */
void *moe_gpu_alloc(struct moe_gpu *g, uint64_t n_bytes, struct moe_err *err);
void moe_gpu_free(struct moe_gpu *g, void *p, uint64_t n_bytes); /* NULL is fine */
uint64_t moe_gpu_allocated_bytes(const struct moe_gpu *g);       /* graphs included */
/* What an open device takes for itself. */
enum { MOE_GPU_OWN_BYTES = 8 << 10 };

/* Page-locks memory of the caller's (whole pages), so that copies of it overlap computation: piece
 * by piece, as much as the system allows. Copies of the rest go by way of a little memory that is
 * page-locked, or wait. MOE_ERR_MEMORY: the process has none left. */
int moe_gpu_pin(struct moe_gpu *g, void *p, uint64_t n_bytes, struct moe_err *err);
void moe_gpu_unpin(struct moe_gpu *g, void *p);           /* NULL is fine */
uint64_t moe_gpu_unlocked_bytes(const struct moe_gpu *g); /* the rest, of all that is pinned now */

/* ---- Streams ---- */

enum moe_gpu_stream { MOE_GPU_COMPUTE, MOE_GPU_COPY, MOE_GPU_N_STREAMS };

/* Copies between host and device, inside the device, and zeros. Host memory must not change until
 * the stream has come past; if it is not page-locked, the call waits. */
void moe_gpu_upload(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, const void *from,
                    uint64_t n_bytes);
void moe_gpu_download(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, const void *from,
                      uint64_t n_bytes);
void moe_gpu_copy(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, const void *from,
                  uint64_t n_bytes);
void moe_gpu_zero(struct moe_gpu *g, enum moe_gpu_stream stream, void *to, uint64_t n_bytes);

struct moe_gpu_mark;

/* timed: for moe_gpu_mark_seconds. */
int moe_gpu_mark_open(struct moe_gpu_mark **out, struct moe_gpu *g, bool timed,
                      struct moe_err *err);
void moe_gpu_mark_close(struct moe_gpu_mark *m); /* NULL is fine */
/* Puts the mark after all that was asked of the stream so far. It may be set again. */
void moe_gpu_mark_set(struct moe_gpu_mark *m, enum moe_gpu_stream stream);
/* Whether the stream has come past it; true, too, when the device has failed. */
bool moe_gpu_mark_passed(struct moe_gpu_mark *m);
/* Waits for it: 200 microseconds awake, then asleep. */
int moe_gpu_mark_wait(struct moe_gpu_mark *m, struct moe_err *err);
/* What is asked of the stream from now on begins after the mark was passed. */
void moe_gpu_stream_after(struct moe_gpu *g, enum moe_gpu_stream stream, struct moe_gpu_mark *m);
/* Seconds between two timed marks that were passed; negative when they are unknown. */
double moe_gpu_mark_seconds(struct moe_gpu_mark *from, struct moe_gpu_mark *to);

/* Kernels launched so far, without cuBLAS's own; those of a recording count when it is made. */
uint64_t moe_gpu_launches(const struct moe_gpu *g);

/* Waits for a stream, for both, as moe_gpu_mark_wait does. */
int moe_gpu_wait(struct moe_gpu *g, enum moe_gpu_stream stream, struct moe_err *err);
int moe_gpu_finish(struct moe_gpu *g, struct moe_err *err);
/* What went wrong so far, without waiting; MOE_OK: nothing. */
int moe_gpu_status(const struct moe_gpu *g, struct moe_err *err);

/* ---- Graphs ----
 *
 * A list of computations that is asked for again and again with the same addresses and shapes:
 * recorded once, started by one call.
 */

struct moe_gpu_graph;

/* What one recorded kernel counts for: about the most that drivers were seen to take of a device's
 * memory for it. (NVIDIA's developer forum, thread 244901, measures 64 KB a node with driver 470;
 * CCCL, pull request 3768, finds 10 KB with later ones.) */
enum { MOE_GPU_NODE_BYTES = 64 << 10 };
/* Graphs count as allocated memory. One that would take more than is left of so many bytes, beside
 * what is allocated, is not made. 0, as when the device was opened: no limit. */
void moe_gpu_set_budget(struct moe_gpu *g, uint64_t n_bytes);

/* What is asked of the compute stream until _end is recorded instead of done. _end: MOE_ERR_MEMORY
 * when the device refuses to make a graph of it, or the budget has no room; the device goes on, and
 * the work is to be asked for again, one by one. */
void moe_gpu_graph_begin(struct moe_gpu *g);
int moe_gpu_graph_end(struct moe_gpu *g, struct moe_gpu_graph **out, struct moe_err *err);
void moe_gpu_graph_run(struct moe_gpu *g, struct moe_gpu_graph *graph);
void moe_gpu_graph_close(struct moe_gpu_graph *graph); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif
