/*
 * The backend that serves a file from a copy in memory: with the loader's rate it rehearses a disk
 * or bus faster than this machine's disk. A piece is copied when it starts; with in_place nothing
 * is copied and only time passes, as if a device wrote into this memory by itself.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include <errno.h>
#include <string.h>
#include <time.h>

#include "gpu.h"
#include "io/loader_internal.h"

struct copies {
    struct loader_backend backend;
    const struct loader_fault *fault;
    const uint8_t *copy;
    uint64_t copy_bytes;
    bool in_place;
    struct loader_piece **over; /* copied, not yet reaped */
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

/*
 * The backend that copies pieces from memory to a GPU, on the copy stream, with a mark after each.
 * Pieces end in the order they began. After a device failure every piece ends at once, without its
 * bytes.
 */

struct uploads {
    struct loader_backend backend;
    const struct loader_fault *fault;
    struct moe_gpu *gpu;
    /* A ring of `depth` pieces; n of them are in flight from `first` on, each with a mark. */
    struct loader_piece **pieces;
    struct moe_gpu_mark **marks;
    uint32_t depth, first, n;
};

static void upload_start(struct loader_backend *b, struct loader_piece *piece)
{
    struct uploads *u = (struct uploads *)b;
    uint32_t at = (u->first + u->n++) % u->depth;
    u->pieces[at] = piece;
    loader_fault_ask(u->fault, piece);
    if (!loader_fault_refuses(piece))
        moe_gpu_upload(u->gpu, MOE_GPU_COPY, piece->to, piece->from, piece->n_bytes);
    moe_gpu_mark_set(u->marks[at], MOE_GPU_COPY);
}

static uint32_t upload_reap(struct loader_backend *b, struct loader_piece **pieces, uint32_t max)
{
    struct uploads *u = (struct uploads *)b;
    uint32_t n = 0;
    for (; n < max && u->n > 0 && moe_gpu_mark_passed(u->marks[u->first]); u->n--) {
        struct loader_piece *piece = u->pieces[u->first];
        if (loader_fault_refuses(piece))
            piece->result = piece->fault;
        else if (moe_gpu_status(u->gpu, NULL) != MOE_OK)
            piece->result = -ENODEV;
        else
            piece->result = (int32_t)piece->n_bytes;
        pieces[n++] = piece;
        u->first = (u->first + 1) % u->depth;
    }
    return n;
}

/* May take longer than `seconds`, by one short piece at most. */
static void upload_wait(struct loader_backend *b, double seconds)
{
    struct uploads *u = (struct uploads *)b;
    if (u->n > 0)
        moe_gpu_mark_wait(u->marks[u->first], NULL); /* reaping reports a failure */
    else
        loader_nap(seconds);
}

static void upload_close(struct loader_backend *b)
{
    struct uploads *u = (struct uploads *)b;
    for (uint32_t i = 0; i < u->depth; i++)
        moe_gpu_mark_close(u->marks[i]);
}

struct loader_backend *loader_upload_carve(struct moe_arena *arena, uint32_t queue_depth)
{
    struct uploads *u = moe_arena_take(arena, 1, sizeof *u);
    struct loader_piece **pieces = moe_arena_take(arena, queue_depth, sizeof *pieces);
    struct moe_gpu_mark **marks = moe_arena_take(arena, queue_depth, sizeof *marks);
    if (!u || !pieces || !marks)
        return NULL;
    u->pieces = pieces;
    u->marks = marks;
    return &u->backend;
}

int loader_upload_open(struct loader_backend *b, struct moe_gpu *gpu, uint32_t queue_depth,
                       const struct loader_fault *fault, struct moe_err *err)
{
    static const struct loader_backend_ops ops = {upload_start, upload_reap, upload_wait,
                                                  upload_close};
    struct uploads *u = (struct uploads *)b;
    int status = MOE_OK;
    u->backend.ops = &ops;
    u->fault = fault;
    u->gpu = gpu;
    for (; u->depth < queue_depth && status == MOE_OK; u->depth += status == MOE_OK)
        status = moe_gpu_mark_open(&u->marks[u->depth], gpu, false, err);
    if (status != MOE_OK)
        upload_close(b);
    return status;
}
