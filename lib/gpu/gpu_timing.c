#include "gpu/gpu_timing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

struct point {
    struct moe_gpu_mark *mark;
    uint32_t layer;
    const char *part; /* text that stays; NULL: only a beginning */
};

struct gpu_timing {
    struct moe_gpu *gpu;
    struct moe_gpu_mark *origin; /* passed at origin_seconds of the processor's clock */
    double origin_seconds;
    uint32_t n, max;
    struct point *points;
};

int gpu_timing_open(struct gpu_timing **out, struct moe_gpu *gpu, uint32_t max, struct moe_err *err)
{
    *out = NULL;
    struct gpu_timing *t = moe_alloc(1, sizeof *t, err);
    if (!t)
        return MOE_ERR_MEMORY;
    t->gpu = gpu;
    t->max = max;
    t->points = moe_alloc(max, sizeof *t->points, err);
    int status = t->points ? moe_gpu_mark_open(&t->origin, gpu, true, err) : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < max && status == MOE_OK; i++)
        status = moe_gpu_mark_open(&t->points[i].mark, gpu, true, err);
    if (status == MOE_OK)
        status = moe_gpu_finish(gpu, err);
    if (status == MOE_OK) {
        moe_gpu_mark_set(t->origin, MOE_GPU_COMPUTE);
        status = moe_gpu_mark_wait(t->origin, err);
        t->origin_seconds = moe_seconds();
    }
    if (status != MOE_OK) {
        gpu_timing_close(t);
        return status;
    }
    *out = t;
    return MOE_OK;
}

void gpu_timing_close(struct gpu_timing *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; t->points && i < t->max; i++)
        moe_gpu_mark_close(t->points[i].mark);
    moe_gpu_mark_close(t->origin);
    free(t->points);
    free(t);
}

void gpu_timing_add(struct gpu_timing *t, uint32_t layer, const char *part)
{
    if (t->n == t->max)
        return;
    struct point *point = &t->points[t->n++];
    point->layer = layer;
    point->part = part;
    moe_gpu_mark_set(point->mark, MOE_GPU_COMPUTE);
}

int gpu_timing_write(struct gpu_timing *t, struct moe_timeline *timeline, struct moe_err *err)
{
    int status = moe_gpu_finish(t->gpu, err);
    double before = 0;
    for (uint32_t i = 0; i < t->n && status == MOE_OK; i++) {
        const struct point *point = &t->points[i];
        double at = t->origin_seconds + moe_gpu_mark_seconds(t->origin, point->mark);
        char name[48];
        if (point->part) {
            snprintf(name, sizeof name, "layer %u %s", point->layer, point->part);
            moe_timeline_span(timeline, MOE_TRACK_COMPUTE, name, before, at);
        }
        before = at;
    }
    t->n = 0;
    return status;
}
