#include "run/gpu_timing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

struct moment {
    struct moe_gpu_mark *mark;
    uint32_t layer;
    const char *part; /* text that stays; NULL: only a beginning */
};

struct gpu_timing {
    struct moe_gpu *gpu;
    struct moe_gpu_mark *origin; /* passed at origin_seconds of the processor's clock */
    double origin_seconds;
    uint32_t n, max;
    struct moment *moments;
};

int gpu_timing_open(struct gpu_timing **out, struct moe_gpu *gpu, uint32_t max, struct moe_err *err)
{
    *out = NULL;
    struct gpu_timing *m = moe_alloc(1, sizeof *m, err);
    if (!m)
        return MOE_ERR_MEMORY;
    m->gpu = gpu;
    m->max = max;
    m->moments = moe_alloc(max, sizeof *m->moments, err);
    int status = m->moments ? moe_gpu_mark_open(&m->origin, gpu, true, err) : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < max && status == MOE_OK; i++)
        status = moe_gpu_mark_open(&m->moments[i].mark, gpu, true, err);
    if (status == MOE_OK)
        status = moe_gpu_finish(gpu, err);
    if (status == MOE_OK) {
        moe_gpu_mark_set(m->origin, MOE_GPU_COMPUTE);
        status = moe_gpu_mark_wait(m->origin, err);
        m->origin_seconds = moe_seconds();
    }
    if (status != MOE_OK) {
        gpu_timing_close(m);
        return status;
    }
    *out = m;
    return MOE_OK;
}

void gpu_timing_close(struct gpu_timing *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; m->moments && i < m->max; i++)
        moe_gpu_mark_close(m->moments[i].mark);
    moe_gpu_mark_close(m->origin);
    free(m->moments);
    free(m);
}

void gpu_timing_add(struct gpu_timing *m, uint32_t layer, const char *part)
{
    if (m->n == m->max)
        return;
    struct moment *moment = &m->moments[m->n++];
    moment->layer = layer;
    moment->part = part;
    moe_gpu_mark_set(moment->mark, MOE_GPU_COMPUTE);
}

int gpu_timing_write(struct gpu_timing *m, struct moe_timeline *timeline, struct moe_err *err)
{
    int status = moe_gpu_finish(m->gpu, err);
    double before = 0;
    for (uint32_t i = 0; i < m->n && status == MOE_OK; i++) {
        const struct moment *moment = &m->moments[i];
        double at = m->origin_seconds + moe_gpu_mark_seconds(m->origin, moment->mark);
        char name[48];
        if (moment->part) {
            snprintf(name, sizeof name, "layer %u %s", moment->layer, moment->part);
            moe_timeline_span(timeline, MOE_TRACK_COMPUTE, name, before, at);
        }
        before = at;
    }
    m->n = 0;
    return status;
}
