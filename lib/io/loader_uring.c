/*
 * The io_uring backend: the loader's owner submits and reaps reads; no thread is needed.
 *
 * Plain setup, without polling threads or registered buffers: these save a fraction of a
 * microsecond of the hundreds that a read takes, and registered buffers count against
 * RLIMIT_MEMLOCK.
 *
 * A working ring may stop working: a sandbox forbids the call, the kernel lacks memory for good.
 * From then on the owner calls pread for pieces that the kernel has not accepted, one each time it
 * looks: slow, but the bytes are the same. Pieces that the kernel has accepted end by themselves.
 */
#define _GNU_SOURCE /* liburing.h */
#include "io/loader_internal.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "base/clock.h"

/* How long a ring may refuse everything for lack of resources; as long as the loader repeats a read
 * (MAX_REFUSALS). */
#define PATIENCE_SECONDS 4.0

struct uring {
    struct loader_backend backend;
    struct io_uring ring;
    const struct loader_fault *fault;
    struct loader_piece **waiting; /* pieces the kernel has not accepted yet, in order */
    uint32_t n_waiting;
    double refused_since; /* 0: the last call was not refused */
    bool *in_use;         /* the ring works */
};

static void uring_start(struct loader_backend *b, struct loader_piece *piece)
{
    struct uring *u = (struct uring *)b;
    loader_fault_ask(u->fault, piece);
    u->waiting[u->n_waiting++] = piece;
    if (!*u->in_use)
        return;
    /* Never NULL: the ring has an entry for each piece that the loader may start, even if the
     * kernel has refused all submissions so far (EAGAIN). */
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (loader_fault_refuses(piece))
        io_uring_prep_nop(sqe);
    else
        io_uring_prep_read(sqe, piece->fd, piece->to, piece->n_bytes, piece->offset);
    io_uring_sqe_set_data(sqe, piece);
}

/* Removes the first n waiting pieces, which the kernel has accepted. */
static void take_waiting(struct uring *u, uint32_t n)
{
    u->n_waiting -= n;
    memmove(u->waiting, u->waiting + n, u->n_waiting * sizeof *u->waiting);
}

/* Evaluates `got`, the result of a call of the kernel: what it has accepted, and whether the ring
 * still works. False: it refused for lack of some resource, and may accept more later. */
static bool handle_submitted(struct uring *u, int got)
{
    uint32_t n_taken = u->n_waiting - io_uring_sq_ready(&u->ring);
    take_waiting(u, n_taken);
    if (got >= 0 || got == -ETIME || got == -EINTR || n_taken > 0) {
        u->refused_since = 0;
        return true;
    }
    double now = moe_seconds();
    if (u->refused_since == 0)
        u->refused_since = now;
    bool lacks = got == -EAGAIN || got == -EBUSY || got == -ENOMEM;
    *u->in_use = lacks && now - u->refused_since < PATIENCE_SECONDS;
    return !lacks;
}

static uint32_t uring_reap(struct loader_backend *b, struct loader_piece **pieces, uint32_t max)
{
    struct uring *u = (struct uring *)b;
    struct io_uring_cqe *cqe;
    uint32_t n = 0;
    if (*u->in_use && u->n_waiting > 0)
        handle_submitted(u, io_uring_submit(&u->ring)); /* refused pieces go with the next call */
    while (n < max && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        struct loader_piece *piece = io_uring_cqe_get_data(cqe);
        loader_fault_apply(piece, cqe->res);
        io_uring_cqe_seen(&u->ring, cqe);
        pieces[n++] = piece;
    }
    if (!*u->in_use && u->n_waiting > 0 && n < max) {
        loader_pread_piece(u->waiting[0]);
        pieces[n++] = u->waiting[0];
        take_waiting(u, 1);
    }
    return n;
}

static void uring_wait(struct loader_backend *b, double seconds)
{
    struct uring *u = (struct uring *)b;
    struct io_uring_cqe *cqe;
    int got;
    if (!*u->in_use) {
        if (u->n_waiting == 0)
            loader_nap(seconds < 0 || seconds > 1e-3 ? 1e-3 : seconds);
        return;
    }
    if (seconds < 0) {
        got = io_uring_submit_and_wait(&u->ring, 1);
    } else {
        struct __kernel_timespec limit = {.tv_sec = (long long)seconds};
        limit.tv_nsec = (long long)((seconds - (double)limit.tv_sec) * 1e9);
        got = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &limit, NULL);
    }
    if (!handle_submitted(u, got))
        loader_nap(200e-6); /* avoids a busy loop */
}

static void uring_close(struct loader_backend *b)
{
    io_uring_queue_exit(&((struct uring *)b)->ring);
}

struct loader_backend *loader_uring_carve(struct moe_arena *arena, uint32_t queue_depth)
{
    struct uring *u = moe_arena_take(arena, 1, sizeof *u);
    struct loader_piece **waiting = moe_arena_take(arena, queue_depth, sizeof *waiting);
    if (!u || !waiting)
        return NULL;
    u->waiting = waiting;
    return &u->backend;
}

/* Tries one operation: a container may allow a ring to be created but not used. */
static int try_ring(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int got = io_uring_submit_and_wait(ring, 1);
    if (got >= 0)
        got = io_uring_peek_cqe(ring, &cqe);
    if (got == 0)
        io_uring_cqe_seen(ring, cqe);
    return got;
}

int loader_uring_open(struct loader_backend *b, uint32_t queue_depth,
                      const struct loader_fault *fault, bool *in_use, struct moe_err *err)
{
    static const struct loader_backend_ops ops = {uring_start, uring_reap, uring_wait, uring_close};
    struct uring *u = (struct uring *)b;
    char text[128];
    int got = io_uring_queue_init(queue_depth, &u->ring, 0);
    if (got == 0) {
        /* Waiting with a time limit came with Linux 5.11, plain reads before that. */
        got = u->ring.features & IORING_FEAT_EXT_ARG ? try_ring(&u->ring) : -ENOSYS;
        if (got != 0)
            io_uring_queue_exit(&u->ring);
    }
    if (got != 0)
        return moe_fail(err, MOE_ERR_IO, "io_uring cannot be used: %s",
                        moe_errno_text(-got, text, sizeof text));
    u->backend.ops = &ops;
    u->fault = fault;
    u->in_use = in_use;
    *in_use = true;
    return MOE_OK;
}
