/*
 * The pread backend: a few threads that sleep in pread, for systems without io_uring.
 *
 * Pieces pass through two rings under one lock. There is one thread for each read that may be in
 * flight; they compute nothing, so on a machine with two cores they cost wake-ups, not a core.
 */
#define _GNU_SOURCE /* pthread_condattr_setclock and pread in C11 mode */
#include "io/loader_internal.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum {
    STACK_BYTES = 128 * 1024,        /* address space; pread needs almost nothing */
    STACK_TOUCHED_BYTES = 16 * 1024, /* measured: 8 to 12 KiB, including glibc's part */
};

/* Pieces in order of arrival; never more than queue_depth. */
struct ring {
    struct loader_piece **pieces;
    uint32_t first, n;
};

struct preads {
    struct loader_backend backend;
    const struct loader_fault *fault;
    uint32_t queue_depth, n_threads;
    pthread_t *threads;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work, done;
    struct ring waiting, over;
    bool stop;
};

static void ring_put(struct ring *r, uint32_t room, struct loader_piece *piece)
{
    r->pieces[(r->first + r->n++) % room] = piece;
}

static struct loader_piece *ring_get(struct ring *r, uint32_t room)
{
    struct loader_piece *piece = r->pieces[r->first];
    r->first = (r->first + 1) % room;
    r->n--;
    return piece;
}

void loader_pread_piece(struct loader_piece *piece)
{
    ssize_t got = 0;
    if (!loader_fault_refuses(piece)) {
        got = pread(piece->fd, piece->to, piece->n_bytes, (off_t)piece->offset);
        if (got < 0)
            got = -errno;
    }
    loader_fault_apply(piece, (int32_t)got);
}

static void *serve_reads(void *ctx)
{
    struct preads *p = ctx;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->waiting.n == 0 && !p->stop)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->waiting.n == 0)
            break;
        struct loader_piece *piece = ring_get(&p->waiting, p->queue_depth);
        pthread_mutex_unlock(&p->lock);
        loader_fault_ask(p->fault, piece);
        loader_pread_piece(piece);
        pthread_mutex_lock(&p->lock);
        ring_put(&p->over, p->queue_depth, piece);
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pread_start(struct loader_backend *b, struct loader_piece *piece)
{
    struct preads *p = (struct preads *)b;
    pthread_mutex_lock(&p->lock);
    ring_put(&p->waiting, p->queue_depth, piece);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static uint32_t pread_reap(struct loader_backend *b, struct loader_piece **pieces, uint32_t max)
{
    struct preads *p = (struct preads *)b;
    uint32_t n = 0;
    pthread_mutex_lock(&p->lock);
    while (n < max && p->over.n > 0)
        pieces[n++] = ring_get(&p->over, p->queue_depth);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void pread_wait(struct loader_backend *b, double seconds)
{
    struct preads *p = (struct preads *)b;
    struct timespec until;
    if (seconds >= 0) {
        double whole = floor(seconds);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (time_t)whole;
        until.tv_nsec += (long)((seconds - whole) * 1e9);
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
    }
    int got = 0;
    pthread_mutex_lock(&p->lock);
    while (p->over.n == 0 && got == 0)
        got = seconds < 0 ? pthread_cond_wait(&p->done, &p->lock)
                          : pthread_cond_timedwait(&p->done, &p->lock, &until);
    pthread_mutex_unlock(&p->lock);
}

static void stop_threads(struct preads *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
}

static void pread_close(struct loader_backend *b)
{
    stop_threads((struct preads *)b);
}

/* Starts as many threads as the system allows, up to the depth; returns the last error. The threads
 * block all signals, which stay with the program's own threads. */
static int start_threads(struct preads *p)
{
    pthread_attr_t attr;
    sigset_t all, before;
    int got = pthread_attr_init(&attr);
    if (got != 0)
        return got;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (got == 0 && p->n_threads < p->queue_depth) {
        got = pthread_create(&p->threads[p->n_threads], &attr, serve_reads, p);
        if (got == EINVAL) /* the program's thread-local data need a larger stack */
            got = pthread_create(&p->threads[p->n_threads], NULL, serve_reads, p);
        p->n_threads += got == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return got;
}

struct loader_backend *loader_pread_carve(struct moe_arena *arena, uint32_t queue_depth)
{
    struct preads *p = moe_arena_take(arena, 1, sizeof *p);
    pthread_t *threads = moe_arena_take(arena, queue_depth, sizeof *threads);
    struct loader_piece **pieces = moe_arena_take(arena, 2 * (uint64_t)queue_depth, sizeof *pieces);
    if (!p || !threads || !pieces)
        return NULL;
    p->threads = threads;
    p->waiting.pieces = pieces;
    p->over.pieces = pieces + queue_depth;
    return &p->backend;
}

int loader_pread_open(struct loader_backend *b, uint32_t queue_depth,
                      const struct loader_fault *fault, struct moe_err *err)
{
    static const struct loader_backend_ops ops = {pread_start, pread_reap, pread_wait, pread_close};
    struct preads *p = (struct preads *)b;
    pthread_condattr_t attr;
    char text[128];
    p->backend.ops = &ops;
    p->fault = fault;
    p->queue_depth = queue_depth;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->done, &attr);
    pthread_condattr_destroy(&attr);
    int got = start_threads(p);
    if (p->n_threads > 0)
        return MOE_OK;
    stop_threads(p);
    return moe_fail(err, MOE_ERR_MEMORY, "cannot start a thread for reading: %s",
                    moe_errno_text(got, text, sizeof text));
}

uint64_t loader_pread_stack_bytes(uint32_t queue_depth)
{
    return (uint64_t)queue_depth * STACK_TOUCHED_BYTES;
}
