/*
 * The backend that serves a file from a copy in memory: with the loader's rate it rehearses a disk
 * or bus faster than this machine's disk. A piece is copied when it starts; in place, nothing is
 * copied and only time passes, as if a device wrote into this memory by itself.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "io/loader_backend.h"

#include <string.h>
#include <time.h>

struct copies {
    struct loader_backend backend;
    const struct loader_fault *fault;
    const uint8_t *copy;
    uint64_t copy_bytes;
    bool in_place;
    struct loader_piece **over; /* copied, not reaped */
    uint32_t n_over;
};

static void copy_start(struct loader_backend *b, struct loader_piece *piece)
{
    struct copies *c = (struct copies *)b;
    uint64_t left = piece->offset < c->copy_bytes ? c->copy_bytes - piece->offset : 0;
    uint32_t n = left < piece->n_bytes ? (uint32_t)left : piece->n_bytes;
    loader_fault_ask(c->fault, piece);
    if (n > 0 && !loader_fault_refuses(piece) && !c->in_place)
        memcpy(piece->to, c->copy + piece->offset, n);
    loader_fault_apply(piece, (int32_t)n);
    c->over[c->n_over++] = piece;
}

static uint32_t copy_reap(struct loader_backend *b, struct loader_piece **pieces, uint32_t max)
{
    struct copies *c = (struct copies *)b;
    uint32_t n = c->n_over < max ? c->n_over : max;
    if (n > 0) {
        c->n_over -= n;
        memcpy(pieces, c->over, n * sizeof *pieces);
        memmove(c->over, c->over + n, c->n_over * sizeof *c->over);
    }
    return n;
}

static void copy_wait(struct loader_backend *b, double seconds)
{
    if (((struct copies *)b)->n_over == 0)
        loader_nap(seconds);
}

void loader_nap(double seconds)
{
    if (seconds <= 0)
        return;
    struct timespec length = {.tv_sec = (time_t)seconds};
    length.tv_nsec = (long)((seconds - (double)length.tv_sec) * 1e9);
    nanosleep(&length, NULL);
}

static void copy_close(struct loader_backend *b)
{
}

struct loader_backend *loader_copy_carve(struct moe_arena *arena, uint32_t queue_depth)
{
    struct copies *c = moe_arena_take(arena, 1, sizeof *c);
    struct loader_piece **over = moe_arena_take(arena, queue_depth, sizeof *over);
    if (!c || !over)
        return NULL;
    c->over = over;
    return &c->backend;
}

void loader_copy_open(struct loader_backend *b, const void *copy, uint64_t copy_bytes,
                      bool in_place, const struct loader_fault *fault)
{
    static const struct loader_backend_ops ops = {copy_start, copy_reap, copy_wait, copy_close};
    struct copies *c = (struct copies *)b;
    c->backend.ops = &ops;
    c->fault = fault;
    c->copy = copy;
    c->copy_bytes = copy_bytes;
    c->in_place = in_place;
}
