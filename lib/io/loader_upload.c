/*
 * The backend that copies pieces from memory to a GPU, on the copy stream, with a mark after each.
 * Pieces end in the order in which they began. Once the device has failed, every piece ends at
 * once, without its bytes.
 */
#include "io/loader_backend.h"

#include <errno.h>

#include "gpu.h"

struct uploads {
    struct loader_backend backend;
    const struct loader_fault *fault;
    struct moe_gpu *gpu;
    /* A ring of `depth` pieces, n of them in flight from `first` on, and the mark of each. */
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

/* May take longer than `seconds`, by one piece at most: those are short. */
static void upload_wait(struct loader_backend *b, double seconds)
{
    struct uploads *u = (struct uploads *)b;
    if (u->n > 0)
        moe_gpu_mark_wait(u->marks[u->first], NULL); /* a failure shows when it is reaped */
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
