/* Opening and closing a loader: defaults and checks of its options, its memory, its backend. */
#include <inttypes.h>

#include "base/par.h"
#include "io/loader_internal.h"

/*
 * The defaults: pieces of 512 KiB, prefetches up to four in flight. Measured with
 * tests/bench/bench_disk on a virtual disk (virtio, ext4) of 2.9 GB/s, 2 cores shared with other
 * work, medians of 5 interleaved rounds. Bandwidth as a share of the best, and how long a demand of
 * 4 MiB takes that comes after 8 prefetches of 4 MiB (13 ms if it waits for all of them, 1.4 ms
 * without them):
 *
 *     depth x piece   io_uring  threads  demand   CPU per GB (io_uring, threads)
 *      1 x 512K         0.65      0.66                60, 58 ms
 *      4 x 256K         0.75      0.67    2.0 ms      44, 136 ms
 *      4 x 512K         0.91      0.80    2.3 ms      18, 78 ms
 *      8 x 512K         0.85      0.84    3.0 ms      14, 33 ms
 *      4 x   1M         0.92      0.91    2.9 ms      11, 24 ms
 *      8 x   1M         0.89      0.89    5.6 ms      10, 21 ms
 *     32 x   4M         0.98      1.00                 5, 9 ms
 *
 * More in flight gains a tenth, but a demand then waits longer for the prefetches before it.
 * Demands without prefetches only gain by it: up to sixteen are in flight, which also keeps the
 * disk busy for the milliseconds in which the owner computes and starts nothing. Checksums (25 GB/s
 * by themselves) cost 3 to 8 % of the bandwidth and 40 ms of CPU per GB. Waits sleep (CPU in
 * moe_loader_wait: 4 % of the time at full speed, interrupts and copies of the kernel included, 2 %
 * at 200 MB/s). Through the page cache, with each range dropped after its read, a quarter of the
 * bandwidth is left.
 */
enum {
    UPLOAD_PREFETCH_DEPTH = 8, /* to a GPU: a bus empties the queue faster than a disk between two
                                  polls (estimated, not measured) */
    MAX_REQUESTS = 65535,
    MAX_QUEUE_DEPTH = 256,
    MAX_THREADS = 32, /* of the pread backend: no disk gains from more */
    MAX_PIECE_BYTES = 64 << 20,
    MAX_DECODERS = 8,
};

/* ---- Options ---- */

static struct moe_loader_options with_defaults(const struct moe_loader_options *options)
{
    struct moe_loader_options o = *options;
    if (!o.path)
        o.path = "expert file";
    if (o.queue_depth == 0)
        o.queue_depth = MOE_LINK_DEMANDS_IN_FLIGHT;
    if (o.prefetch_depth == 0)
        o.prefetch_depth = o.gpu ? UPLOAD_PREFETCH_DEPTH : MOE_LINK_PREFETCHES_IN_FLIGHT;
    if (o.piece_bytes == 0)
        o.piece_bytes = MOE_LINK_PIECE_BYTES;
    o.compressed_bytes = moe_round_up(o.compressed_bytes, MOE_LOAD_ALIGN);
    if (o.n_decoders == 0)
        o.n_decoders = (uint32_t)moe_par_threads();
    if (o.n_decoders > MAX_DECODERS)
        o.n_decoders = MAX_DECODERS;
    if (o.compressed_bytes == 0)
        o.n_decoders = 1; /* checksums keep up with any disk */
    if (o.copy || o.gpu)
        o.arranger = NULL;
    return o;
}

static const char *options_problem(const struct moe_loader_options *o)
{
    if (o->n_requests == 0 || o->n_requests > MAX_REQUESTS)
        return "the number of requests must be 1 to 65535";
    if (o->queue_depth > MAX_QUEUE_DEPTH)
        return "the queue depth must be at most 256";
    if (o->piece_bytes % MOE_LOAD_ALIGN != 0 || o->piece_bytes > MAX_PIECE_BYTES)
        return "the piece size must be a multiple of 4096 bytes, at most 64 MiB";
    if (!(o->rate >= 0))
        return "the rate must not be negative";
    if (o->lockstep && o->rate == 0)
        return "modelled loads need a rate";
    if (o->in_place && (!o->copy || o->verify))
        return "bytes that stay in place need a copy, and are not verified";
    if (o->arranger && !o->copy && !o->gpu && o->compressed_bytes < o->arranger->most_bytes)
        return "arranged bytes need room for what is read";
    if (o->gpu && (o->copy || o->verify || o->compressed_bytes))
        return "copies to a GPU have no copy of a file, and are not verified or decoded";
    return NULL;
}

/* ---- Memory ---- */

/* The loader's parts in memory. On a counting arena carving only adds up: nothing may be touched.
 */
struct parts {
    void *staging; /* first: page-aligned */
    void *page;    /* second: so is this */
    struct moe_loader *loader;
    struct loader_request *requests;
    struct moe_link_item *queue_items, *model_items;
    struct staging_range *ranges;
    struct loader_ranges *arranged;
    struct loader_file *files;
    struct loader_piece *pieces, **reaped;
    uint32_t *free_pieces;
    struct loader_job *jobs;
    struct loader_backend *uring, *pread, *copy, *upload;
};

static uint32_t n_files(const struct moe_loader_options *o)
{
    return o->arranger ? o->arranger->n_files : 1;
}

static struct parts carve_loader(struct moe_arena *arena, const struct moe_loader_options *o)
{
    struct parts p = {0};
    p.staging = moe_arena_take(arena, o->compressed_bytes, 1);
    p.page = moe_arena_take(arena, MOE_LOAD_ALIGN, 1);
    p.loader = moe_arena_take(arena, 1, sizeof *p.loader);
    p.requests = moe_arena_take(arena, o->n_requests, sizeof *p.requests);
    p.queue_items = moe_arena_take(arena, o->n_requests, sizeof *p.queue_items);
    p.model_items = moe_arena_take(arena, o->lockstep ? o->n_requests : 0, sizeof *p.model_items);
    p.ranges = moe_arena_take(arena, o->compressed_bytes ? o->n_requests : 0, sizeof *p.ranges);
    p.arranged = moe_arena_take(arena, o->arranger ? o->n_requests : 0, sizeof *p.arranged);
    p.files = moe_arena_take(arena, n_files(o), sizeof *p.files);
    p.pieces = moe_arena_take(arena, o->queue_depth, sizeof *p.pieces);
    p.reaped = moe_arena_take(arena, o->queue_depth, sizeof(struct loader_piece *));
    p.free_pieces = moe_arena_take(arena, o->queue_depth, sizeof *p.free_pieces);
    p.jobs = moe_arena_take(arena, o->n_decoders, sizeof *p.jobs);
    p.uring = loader_uring_carve(arena, o->queue_depth);
    p.pread = loader_pread_carve(arena, o->queue_depth);
    p.copy = loader_copy_carve(arena, o->queue_depth);
    if (o->gpu)
        p.upload = loader_upload_carve(arena, o->queue_depth);
    return p;
}

uint64_t moe_loader_bytes(const struct moe_loader_options *options)
{
    struct moe_loader_options o = with_defaults(options);
    struct moe_arena arena = {0};
    carve_loader(&arena, &o);
    uint64_t threads =
        o.copy || o.gpu || o.backend == MOE_LOAD_URING
            ? 0
            : loader_pread_stack_bytes(o.queue_depth < MAX_THREADS ? o.queue_depth : MAX_THREADS);
    return moe_round_up(arena.used, MOE_LOAD_ALIGN) + threads +
           (o.compressed_bytes ? (uint64_t)o.n_decoders * CHECK_DECODER_BYTES : 0);
}

static void link_parts(struct moe_loader *l, const struct parts *p)
{
    const struct moe_loader_options *o = &l->options;
    l->requests = p->requests;
    l->pieces = p->pieces;
    l->reaped = p->reaped;
    l->free_pieces = p->free_pieces;
    l->jobs = p->jobs;
    l->fault = (struct loader_fault){o->fault, o->fault_ctx};
    l->arranger = o->arranger;
    l->ranges = p->arranged;
    l->files = p->files;
    for (; l->n_files < n_files(o); l->n_files++)
        l->files[l->n_files] = (struct loader_file){.buffered_fd = -1, .direct_fd = -1};
    l->bucket.rate = o->lockstep ? 0 : o->rate;
    l->first_ready = l->last_ready = l->free_request = MOE_LINK_NONE;
    moe_link_init(&l->queue, p->queue_items, o->n_requests, o->piece_bytes, 0);
    if (o->lockstep) {
        moe_link_init(&l->model, p->model_items, o->n_requests, o->piece_bytes, o->rate);
        l->model.costs = o->costs;
    }
    staging_init(&l->staging, p->staging, o->compressed_bytes, p->ranges);
    for (uint32_t i = o->n_requests; i-- > 0;) {
        l->requests[i].next = l->free_request;
        l->free_request = i;
    }
    for (; l->n_free_pieces < o->queue_depth; l->n_free_pieces++)
        l->free_pieces[l->n_free_pieces] = l->n_free_pieces;
}

/* ---- Opening ---- */

static int open_jobs(struct moe_loader *l, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < l->options.n_decoders && status == MOE_OK; i++) {
        struct loader_job *job = &l->jobs[i];
        job->item = MOE_LINK_NONE;
        status = loader_check_open(&job->check, l->options.compressed_bytes > 0, err);
        l->n_jobs += status == MOE_OK;
    }
    return status;
}

static int open_files(struct moe_loader *l, void *page, struct moe_err *err)
{
    const struct moe_loader_options *o = &l->options;
    l->stats.direct = true;
    for (uint32_t i = 0; i < l->n_files; i++) {
        const char *path = o->path;
        int fd = l->arranger ? l->arranger->fd(l->arranger->ctx, i, &path) : o->fd;
        MOE_TRY(loader_file_open(&l->files[i], fd, path, !o->buffered, page, err));
        l->stats.direct &= l->files[i].direct_fd >= 0;
    }
    return MOE_OK;
}

static int open_backend(struct moe_loader *l, const struct parts *p, struct moe_err *err)
{
    struct moe_loader_options *o = &l->options;
    if (o->copy) {
        loader_copy_open(p->copy, o->copy, o->copy_bytes, o->in_place, &l->fault);
        l->backend = p->copy;
        return MOE_OK;
    }
    int status;
    if (o->gpu) {
        status = loader_upload_open(p->upload, o->gpu, o->queue_depth, &l->fault, err);
        if (status == MOE_OK)
            l->backend = p->upload;
        return status;
    }
    MOE_TRY(open_files(l, p->page, err));
    if (o->backend != MOE_LOAD_PREAD) {
        struct moe_err why;
        status = loader_uring_open(p->uring, o->queue_depth, &l->fault, &l->stats.uring, &why);
        if (status == MOE_OK) {
            l->backend = p->uring;
            return MOE_OK;
        }
        if (o->backend == MOE_LOAD_URING)
            return moe_fail(err, status, "%s: %s", o->path, why.text);
    }
    if (o->queue_depth > MAX_THREADS) /* a piece without a thread could not be overtaken */
        l->n_free_pieces = o->queue_depth = MAX_THREADS;
    status = loader_pread_open(p->pread, o->queue_depth, &l->fault, err);
    if (status == MOE_OK)
        l->backend = p->pread;
    return status;
}

int moe_loader_open(struct moe_loader **out, const struct moe_loader_options *options,
                    struct moe_err *err)
{
    struct moe_loader_options o = with_defaults(options);
    const char *problem = options_problem(&o);
    if (problem)
        return moe_fail(err, MOE_ERR_USAGE, "%s: %s", o.path, problem);
    struct moe_arena arena = {0};
    carve_loader(&arena, &o);
    if (arena.overflowed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: %" PRIu64 " bytes for reading",
                        o.path, o.compressed_bytes);
    arena = (struct moe_arena){.size = arena.used, .base = moe_pages_alloc(arena.used, err)};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct parts p = carve_loader(&arena, &o);
    struct moe_loader *l = p.loader;
    *l = (struct moe_loader){.options = o, .block = arena.base, .block_bytes = arena.size};
    link_parts(l, &p);
    int status;
    MOE_STEP(open_backend(l, &p, err));
    MOE_STEP(open_jobs(l, err));
out:
    if (status == MOE_OK)
        *out = l;
    else
        moe_loader_close(l);
    return status;
}

void moe_loader_close(struct moe_loader *l)
{
    if (!l)
        return;
    for (uint32_t i = 0; i < l->options.n_requests; i++)
        if (l->requests[i].state == REQUEST_READING)
            loader_read_abandon(l, i);
    if (l->backend) {
        loader_read_drain(l);
        l->backend->ops->close(l->backend);
    }
    for (uint32_t i = 0; i < l->n_files; i++)
        loader_file_close(&l->files[i]);
    for (uint32_t i = 0; i < l->n_jobs; i++)
        loader_check_close(&l->jobs[i].check);
    moe_pages_free(l->block, l->block_bytes);
}
