/*
 * GPU timing: when a GPU reached the ends of the parts of a pass, by its own clock, as spans of the
 * session's timeline. Its clock is related to the processor's when recording begins.
 */
#ifndef MOE_GPU_GPU_TIMING_H
#define MOE_GPU_GPU_TIMING_H

#include "fmt/timeline.h"
#include "gpu.h"

struct gpu_timing;

/* Room for `max` points of a pass. Waits for the device. */
int gpu_timing_open(struct gpu_timing **out, struct moe_gpu *gpu, uint32_t max,
                    struct moe_err *err);
void gpu_timing_close(struct gpu_timing *t); /* NULL is fine */

/* Marks the point that the compute stream has reached; with a part, it ends a span that began at
 * the point before. */
void gpu_timing_add(struct gpu_timing *t, uint32_t layer, const char *part);
/* Waits until all points were reached, and writes their spans. */
int gpu_timing_write(struct gpu_timing *t, struct moe_timeline *timeline, struct moe_err *err);

#endif
