/*
 * What the parts of bench_gpu.c share: the device, its memory, clocks, and the count of figures.
 * Included by bench_gpu.c, which is one file.
 *
 * The first failure is kept in bench.err; afterwards nothing more is done or printed.
 */
#ifndef TESTS_BENCH_GPU_BENCH_H
#define TESTS_BENCH_GPU_BENCH_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gpu_figures.h"
#include "gpu_ops.h"
#include "tune/bench.h"

enum {
    MAX_TAKEN = 64,
    MAX_RUNS = 16,
    RANDOM_BYTES = 1 << 20,
    MIN_MICROSECONDS = 5000, /* of a run: a mark's clock counts half microseconds */
    N_MARKS = 5,
};

struct bench {
    struct moe_gpu *gpu;
    struct moe_err err;
    bool smoke;
    uint32_t n_runs;
    uint64_t cold_bytes; /* more than any device's cache has */
    struct moe_gpu_mark *marks[N_MARKS];
    double copy_rate; /* bytes per second through the device's memory, of its own copies */
    uint8_t *random;  /* [RANDOM_BYTES] of the host */
    int n_taken;
    struct {
        void *at;
        uint64_t n_bytes;
    } taken[MAX_TAKEN];
    uint32_t n_sections, n_figures, n_wrong;
};

static bool well(struct bench *b)
{
    return b->err.status == MOE_OK && moe_gpu_status(b->gpu, &b->err) == MOE_OK;
}

/* ---- Figures ---- */

/* A figure on its way to be printed: all are positive numbers, or something was not measured. */
static double figure(struct bench *b, double value)
{
    b->n_figures++;
    b->n_wrong += !(value > 0 && isfinite(value));
    return value;
}

static void section(struct bench *b, const char *title)
{
    b->n_sections++;
    printf("\n== %s\n", title);
}

/* Of a median, how far its runs lie apart: half the way between the ends, in percent. */
static double spread(struct moe_bench_figure f)
{
    return f.median > 0 ? 50 * (f.max - f.min) / f.median : 0;
}

/* ---- Memory ---- */

/* Zeroed memory of the device until give_back. NULL: b->err says why. */
static void *take(struct bench *b, uint64_t n_bytes)
{
    if (!well(b))
        return NULL;
    void *p = moe_gpu_alloc(b->gpu, n_bytes, &b->err);
    if (!p)
        return NULL;
    b->taken[b->n_taken].at = p;
    b->taken[b->n_taken++].n_bytes = n_bytes;
    return p;
}

static void give_back(struct bench *b)
{
    moe_gpu_finish(b->gpu, &b->err);
    for (; b->n_taken > 0; b->n_taken--)
        moe_gpu_free(b->gpu, b->taken[b->n_taken - 1].at, b->taken[b->n_taken - 1].n_bytes);
}

/* Random bits without bit 6 of each byte, so that no float, scale or exponent among them is huge,
 * infinite or no number. */
static void draw_random(uint8_t *bytes, uint64_t n)
{
    uint64_t state = 1;
    for (uint64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(state >> 56) & 0xbf;
    }
}

/* Taken, and filled with them. */
static void *take_random(struct bench *b, uint64_t n_bytes)
{
    uint8_t *p = take(b, n_bytes);
    for (uint64_t at = 0, n; p && at < n_bytes; at += n) {
        n = n_bytes - at < RANDOM_BYTES ? n_bytes - at : RANDOM_BYTES;
        moe_gpu_upload(b->gpu, MOE_GPU_COMPUTE, p + at, b->random, n);
    }
    return p;
}

/* ---- Time ---- */

/* Something asked of the compute stream. */
struct work {
    void (*ask)(struct bench *b, const void *ctx);
    const void *ctx;
    /* As a recorded graph: what the host takes to ask is left out. */
    bool recorded;
};

static void ask_often(struct bench *b, const struct work *w, struct moe_gpu_graph *graph,
                      uint64_t times)
{
    for (uint64_t i = 0; i < times; i++)
        if (graph)
            moe_gpu_graph_run(b->gpu, graph);
        else
            w->ask(b, w->ctx);
}

static double time_once(struct bench *b, const struct work *w, struct moe_gpu_graph *graph,
                        uint64_t times)
{
    moe_gpu_mark_set(b->marks[0], MOE_GPU_COMPUTE);
    ask_often(b, w, graph, times);
    moe_gpu_mark_set(b->marks[1], MOE_GPU_COMPUTE);
    moe_gpu_mark_wait(b->marks[1], &b->err);
    return moe_gpu_mark_seconds(b->marks[0], b->marks[1]) / (double)times;
}

static struct moe_gpu_graph *record(struct bench *b, const struct work *w)
{
    struct moe_gpu_graph *graph = NULL;
    moe_gpu_graph_begin(b->gpu);
    w->ask(b, w->ctx);
    moe_gpu_graph_end(b->gpu, &graph, &b->err);
    return graph;
}

/* Seconds of the work by the device's clock, after two times that do not count. */
static struct moe_bench_figure time_work(struct bench *b, const struct work *w)
{
    double seconds[MAX_RUNS] = {0};
    struct moe_gpu_graph *graph = NULL;
    if (!well(b))
        return (struct moe_bench_figure){0};
    w->ask(b, w->ctx);
    if (w->recorded && well(b))
        graph = record(b, w);
    double once = well(b) ? time_once(b, w, graph, 1) : 0;
    uint64_t times = !b->smoke && once > 0 ? (uint64_t)(1e-6 * MIN_MICROSECONDS / once) + 1 : 1;
    for (uint32_t i = 0; i < b->n_runs && well(b); i++)
        seconds[i] = time_once(b, w, graph, times);
    moe_gpu_graph_close(graph);
    return moe_bench_summarize(seconds, b->n_runs);
}

/* ---- Inputs of products ---- */

/* n inputs of `cols` columns in all forms. */
static struct moe_gpu_act take_inputs(struct bench *b, uint32_t n, uint32_t cols)
{
    struct moe_gpu_act act = {.cols = cols, .x_stride = cols};
    act.x = take_random(b, (uint64_t)n * cols * sizeof *act.x);
    for (int form = 0; form < MOE_GPU_N_BLOCKS; form++) {
        uint64_t block = form == MOE_GPU_BLOCK_32 ? 32 : 64, blocks = (cols + block - 1) / block;
        act.bytes[form].q = take(b, n * blocks * block);
        act.bytes[form].s = take(b, n * blocks * sizeof(float));
        act.bytes[form].z = take(b, n * blocks * sizeof(float));
    }
    if (well(b))
        moe_gpu_prepare(b->gpu, act.x, cols, n, 1, 0, &act);
    return act;
}

#endif
