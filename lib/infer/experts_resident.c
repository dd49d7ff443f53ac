/*
 * Strategy `resident`: every expert's weights in memory, the host's or a GPU's. On the host they
 * may arrive behind the first passes: threads read layer by layer, but first what a pass waits for.
 */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */

#include "infer/experts.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "gpu.h"

enum arrival { EXPECTED, BEING_READ, ARRIVED, FAILED };

struct resident {
    struct moe_experts base;
    const struct moe_pack *pack; /* borrowed */
    uint64_t n_views;
    uint32_t n_experts;
    struct moe_expert_view *views; /* [n_layers][n_experts] */
    uint64_t *places;              /* the same: where its weights begin in `weights` */
    struct moe_gpu *gpu;           /* where the weights are; NULL: on the host */
    uint8_t *weights;
    uint64_t weights_bytes, largest_bytes; /* of all, of one expert */
    /* The request being served. */
    const struct moe_layer_request *request;
    struct moe_phase_stats *phase;
    uint32_t *left; /* [n_experts] its entries that were not given */
    uint32_t n_left;
    /* Reading on the host. */
    const struct moe_progress *progress; /* while opening waits for all; NULL: none */
    bool behind;                         /* `reader` reads; else opening waits for all */
    pthread_t reader;
    atomic_bool complete; /* every expert has arrived: what follows changes no more */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t arrived;
    uint8_t *states; /* [n_layers][n_experts] an enum arrival */
    uint64_t *asked; /* [n_experts] the request's experts, which are read first */
    uint32_t n_asked, n_taken;
    uint64_t next;                      /* all before it have begun */
    uint64_t n_missing;                 /* experts that have not arrived */
    uint64_t bytes_read, bytes_counted; /* so far; in statistics */
    bool ends;                          /* no further one begins */
};

/* ---- Reading ---- */

/* With the lock: which expert to read next; false: none. */
static bool take_next(struct resident *r, uint64_t *which)
{
    bool found = false;
    while (!found && !r->ends && (r->n_taken < r->n_asked || r->next < r->n_views)) {
        *which = r->n_taken < r->n_asked ? r->asked[r->n_taken++] : r->next++;
        found = r->states[*which] == EXPECTED;
    }
    return found;
}

/* With the lock, which is open while it reads. */
static int read_expert(struct resident *r, uint64_t which, struct moe_err *err)
{
    const uint64_t at = r->places[which];
    struct moe_arena arena = {
        .base = r->weights + at, .size = r->weights_bytes - at, .packed = true};
    r->states[which] = BEING_READ;
    pthread_mutex_unlock(&r->lock);
    int status = moe_expert_view_read(&r->views[which], r->pack, &arena, err);
    pthread_mutex_lock(&r->lock);
    r->states[which] = status == MOE_OK ? ARRIVED : FAILED;
    r->bytes_read += status == MOE_OK ? arena.used : 0;
    r->n_missing -= status == MOE_OK;
    atomic_store(&r->complete, r->n_missing == 0);
    pthread_cond_broadcast(&r->arrived);
    return status;
}

/* On one of the threads that read: until nothing is left or, where opening waits, one fails. */
static void read_some(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct resident *r = ctx;
    uint64_t which;
    pthread_mutex_lock(&r->lock);
    while (take_next(r, &which)) {
        int status = read_expert(r, which, NULL);
        if (r->behind)
            continue;
        if (thread == 0)
            moe_progress_report(r->progress, "loading experts", r->bytes_read, r->weights_bytes);
        r->ends |= status != MOE_OK || moe_progress_stopped(r->progress);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Of what is compressed only one expert at a time has room beside its place. */
static void *read_all(void *ctx)
{
    struct resident *r = ctx;
    bool compressed = !moe_pack_arranger(r->pack) && moe_pack_staging_bytes(r->pack) > 0;
    moe_par_for(compressed ? 1 : moe_par_threads(), 1, read_some, r);
    return NULL;
}

/* The first expert that could not be read is read again, for its error. */
static int read_at_once(struct resident *r, struct moe_err *err)
{
    int status = MOE_OK;
    while (status == MOE_OK && !atomic_load(&r->complete)) {
        uint64_t which = 0;
        r->ends = false;
        read_all(r);
        while (which < r->n_views && r->states[which] != FAILED)
            which++;
        pthread_mutex_lock(&r->lock);
        if (which < r->n_views)
            status = read_expert(r, which, err);
        else if (r->ends)
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        pthread_mutex_unlock(&r->lock);
    }
    return status;
}

/* Signals stay with the program's own threads. Without a thread for it all is read at once. */
static int read_behind(struct resident *r, struct moe_err *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r->behind = true;
    bool started = pthread_create(&r->reader, NULL, read_all, r) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        return MOE_OK;
    r->behind = false;
    return read_at_once(r, err);
}

/* ---- Requests ---- */

static uint64_t view_of_entry(const struct resident *r, uint32_t entry)
{
    return (uint64_t)r->request->layer * r->n_experts + r->request->needs[entry].expert;
}

/* With the lock. */
static void count_read(struct resident *r)
{
    r->phase->bytes_read += r->bytes_read - r->bytes_counted;
    r->bytes_counted = r->bytes_read;
}

static int resident_begin(struct moe_experts *self, const struct moe_layer_request *request,
                          struct moe_phase_stats *phase, struct moe_err *err)
{
    struct resident *r = (struct resident *)self;
    r->request = request;
    r->phase = phase;
    r->n_left = 0;
    for (uint32_t i = 0; i < request->n_entries; i++) {
        const bool here = !request->needs[i].elsewhere;
        if (here)
            r->left[r->n_left++] = i;
        phase->experts.activations += request->needs[i].n_rows;
        *(here ? &phase->experts.cache_hits : &phase->experts.elsewhere) +=
            request->needs[i].n_rows;
    }
    if (atomic_load(&r->complete) && r->bytes_counted == r->bytes_read)
        return MOE_OK;
    pthread_mutex_lock(&r->lock);
    count_read(r);
    r->n_asked = r->n_left;
    r->n_taken = 0;
    for (uint32_t i = 0; i < r->n_left; i++)
        r->asked[i] = view_of_entry(r, r->left[i]);
    pthread_mutex_unlock(&r->lock);
    return MOE_OK;
}

/* Gives the entries that are there. */
static void give_entries(struct resident *r, uint32_t max, bool complete, uint32_t *which,
                         struct moe_expert_view *views, uint32_t *n)
{
    uint32_t n_kept = 0;
    *n = 0;
    for (uint32_t i = 0; i < r->n_left; i++) {
        const uint64_t view = view_of_entry(r, r->left[i]);
        if (*n < max && (complete || r->states[view] == ARRIVED)) {
            which[*n] = r->left[i];
            views[(*n)++] = r->views[view];
        } else {
            r->left[n_kept++] = r->left[i];
        }
    }
    r->n_left = n_kept;
}

/* With the lock: waits until one of the entries left has arrived; one that could not be read is
 * read again here, for its error. */
static int wait_for_one(struct resident *r, struct moe_err *err)
{
    for (uint32_t i = 0; i < r->n_left; i++)
        if (r->states[view_of_entry(r, r->left[i])] == FAILED)
            return read_expert(r, view_of_entry(r, r->left[i]), err);
    pthread_cond_wait(&r->arrived, &r->lock);
    return MOE_OK;
}

static int resident_next(struct moe_experts *self, uint32_t max, uint32_t *which,
                         struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct resident *r = (struct resident *)self;
    int status = MOE_OK;
    if (atomic_load(&r->complete)) {
        give_entries(r, max, true, which, views, n);
        return MOE_OK;
    }
    pthread_mutex_lock(&r->lock);
    give_entries(r, max, false, which, views, n);
    if (*n == 0 && r->n_left > 0) {
        const double began = moe_seconds();
        do {
            status = wait_for_one(r, err);
            give_entries(r, max, false, which, views, n);
        } while (*n == 0 && status == MOE_OK);
        r->phase->stall_seconds += moe_seconds() - began;
        count_read(r);
    }
    pthread_mutex_unlock(&r->lock);
    return status;
}

static void resident_release(struct moe_experts *self, uint32_t which)
{
    (void)self;
    (void)which;
}

static void close_resident(struct moe_experts *self)
{
    struct resident *r = (struct resident *)self;
    pthread_mutex_lock(&r->lock);
    r->ends = true;
    pthread_mutex_unlock(&r->lock);
    if (r->behind)
        pthread_join(r->reader, NULL);
    pthread_cond_destroy(&r->arrived);
    pthread_mutex_destroy(&r->lock);
    if (r->gpu)
        moe_gpu_free(r->gpu, r->weights, r->weights_bytes);
    else
        moe_pages_free(r->weights, r->weights_bytes);
    free(r->views); /* the first of its block */
    free(r);
}

static const struct moe_experts_ops resident_ops = {
    .name = "resident",
    .begin = resident_begin,
    .next = resident_next,
    .release = resident_release,
    .close = close_resident,
};

/* ---- To a GPU ---- */

/* Two buffers on the host for experts on their way to the GPU: one is read while the other is
 * copied. */
struct transit {
    uint8_t *memory;         /* page-locked */
    uint64_t bytes, n_turns; /* of each of the two; experts so far */
    bool pinned;
    struct moe_gpu_mark *copied[2]; /* after the last copy from each */
};

static int transit_open(struct transit *t, struct moe_gpu *gpu, uint64_t expert_bytes,
                        struct moe_err *err)
{
    t->bytes = moe_round_up(expert_bytes, MOE_PACK_ALIGN);
    t->memory = moe_pages_alloc(2 * t->bytes, err);
    if (!t->memory)
        return MOE_ERR_MEMORY;
    MOE_TRY(moe_gpu_pin(gpu, t->memory, 2 * t->bytes, err));
    t->pinned = true;
    for (int i = 0; i < 2; i++)
        MOE_TRY(moe_gpu_mark_open(&t->copied[i], gpu, false, err));
    return MOE_OK;
}

/* Waits for the copies under way. */
static int transit_close(struct transit *t, struct moe_gpu *gpu, struct moe_err *err)
{
    int status = t->memory ? moe_gpu_finish(gpu, err) : MOE_OK;
    for (int i = 0; i < 2; i++)
        moe_gpu_mark_close(t->copied[i]);
    if (t->pinned)
        moe_gpu_unpin(gpu, t->memory);
    moe_pages_free(t->memory, 2 * t->bytes);
    return status;
}

/* Reads the expert and copies it to `at` on the GPU, where the view then points. */
static int send_expert(struct resident *r, struct moe_expert_view *view,
                       const struct moe_pack *pack, struct transit *t, uint8_t *at,
                       struct moe_err *err)
{
    uint64_t turn = t->n_turns++ % 2;
    struct moe_arena arena = {
        .base = t->memory + turn * t->bytes, .size = t->bytes, .packed = true};
    if (t->n_turns > 2)
        MOE_TRY(moe_gpu_mark_wait(t->copied[turn], err));
    MOE_TRY(moe_expert_view_read(view, pack, &arena, err));
    moe_gpu_upload(r->gpu, MOE_GPU_COPY, at, arena.base, arena.used);
    moe_gpu_mark_set(t->copied[turn], MOE_GPU_COPY);

    const struct moe_expert_extent *x =
        moe_pack_expert(pack, view->layer, view->expert, view->variant);
    const struct moe_expert_class *class_ = moe_pack_class_at(pack, x->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    for (uint32_t i = 0; i < class_->n_segments; i++) {
        segments[i] = at;
        at += moe_round_up(class_->segment_bytes[i], MOE_ALIGN);
    }
    moe_expert_view_set(view, class_, segments);
    return MOE_OK;
}

static int send_all(struct resident *r, const struct moe_progress *progress, struct moe_err *err)
{
    struct transit transit = {0};
    int status;
    MOE_STEP(transit_open(&transit, r->gpu, r->largest_bytes, err));
    for (uint64_t i = 0; i < r->n_views; i++) {
        if (r->states[i] == ARRIVED)
            continue;
        MOE_STEP(send_expert(r, &r->views[i], r->pack, &transit, r->weights + r->places[i], err));
        moe_progress_report(progress, "loading experts", r->places[i], r->weights_bytes);
        MOE_STEP(moe_progress_stopped(progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                                : MOE_OK);
    }
    atomic_store(&r->complete, true);
out:
    int sent = transit_close(&transit, r->gpu, status == MOE_OK ? err : NULL);
    return status == MOE_OK ? sent : status;
}

/* ---- Opening ---- */

/* NULL base: only measures. */
static void carve_tables(struct resident *r, struct moe_arena *arena)
{
    r->views = moe_arena_take(arena, r->n_views, sizeof *r->views);
    r->places = moe_arena_take(arena, r->n_views, sizeof *r->places);
    r->states = moe_arena_take(arena, r->n_views, sizeof *r->states);
    r->asked = moe_arena_take(arena, r->n_experts, sizeof *r->asked);
    r->left = moe_arena_take(arena, r->n_experts, sizeof *r->left);
}

/* Gives each expert its place. */
static int place_experts(struct resident *r, uint32_t variant, struct moe_err *err)
{
    struct moe_arena arena = {.packed = true};
    for (uint64_t i = 0; i < r->n_views; i++) {
        struct moe_expert_view *view = &r->views[i];
        view->layer = (uint32_t)(i / r->n_experts);
        view->expert = (uint32_t)(i % r->n_experts);
        view->variant = moe_pack_usable_variant(r->pack, view->layer, view->expert, variant);
        r->places[i] = arena.used;
        r->states[i] = view->variant == UINT32_MAX ? ARRIVED : EXPECTED;
        if (r->states[i] == ARRIVED)
            continue; /* there is none */
        MOE_TRY(moe_expert_view_read(view, r->pack, &arena, err));
        const uint64_t bytes = arena.used - r->places[i];
        r->largest_bytes = bytes > r->largest_bytes ? bytes : r->largest_bytes;
        r->n_missing++;
    }
    r->weights_bytes = arena.used;
    return arena.overflowed
               ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: the experts' size overflows")
               : MOE_OK;
}

static int open_weights(struct resident *r, uint32_t variant, bool behind,
                        const struct moe_progress *progress, struct moe_err *err)
{
    MOE_TRY(place_experts(r, variant, err));
    r->base.resident_bytes = r->base.resident_bytes_max = r->weights_bytes;
    atomic_store(&r->complete, r->n_missing == 0);
    if (r->n_missing == 0)
        return MOE_OK;
    r->weights = r->gpu ? moe_gpu_alloc(r->gpu, r->weights_bytes, err)
                        : moe_pages_alloc(r->weights_bytes, err);
    if (!r->weights)
        return MOE_ERR_MEMORY;
    if (r->gpu)
        return send_all(r, progress, err);
    if (behind)
        return read_behind(r, err);
    r->progress = progress;
    MOE_TRY(read_at_once(r, err));
    r->bytes_counted = r->bytes_read;
    return MOE_OK;
}

static int open_resident(struct moe_experts **out, const struct moe_pack *pack, uint32_t variant,
                         struct moe_gpu *gpu, bool behind, const struct moe_progress *progress,
                         struct moe_err *err)
{
    struct moe_arena tables = {0};
    *out = NULL;
    struct resident *r = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    r->base.ops = &resident_ops;
    r->pack = pack;
    r->gpu = gpu;
    r->n_experts = moe_pack_n_experts(pack);
    r->n_views = (uint64_t)moe_pack_n_layers(pack) * r->n_experts;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->arrived, NULL);
    carve_tables(r, &tables);
    tables =
        (struct moe_arena){.base = moe_alloc(tables.overflowed ? UINT64_MAX : tables.used, 1, err),
                           .size = tables.used};
    carve_tables(r, &tables);
    int status = tables.base ? open_weights(r, variant, behind, progress, err) : MOE_ERR_MEMORY;
    if (status != MOE_OK) {
        close_resident(&r->base);
        return status;
    }
    *out = &r->base;
    return MOE_OK;
}

int moe_experts_open_resident(struct moe_experts **out, const struct moe_pack *pack,
                              uint32_t variant, struct moe_gpu *gpu,
                              const struct moe_progress *progress, struct moe_err *err)
{
    return open_resident(out, pack, variant, gpu, false, progress, err);
}

int moe_experts_open_arriving(struct moe_experts **out, const struct moe_pack *pack,
                              uint32_t variant, struct moe_err *err)
{
    return open_resident(out, pack, variant, NULL, true, NULL, err);
}

uint64_t moe_experts_resident_host_bytes(const struct moe_pack *pack)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++) {
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, i);
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < class_->n_segments; k++)
            bytes += moe_round_up(class_->segment_bytes[k], MOE_ALIGN);
        largest = bytes > largest ? bytes : largest;
    }
    return 2 * largest;
}

const struct moe_expert_view *moe_experts_resident_views(const struct moe_experts *experts)
{
    return experts->ops == &resident_ops ? ((const struct resident *)experts)->views : NULL;
}
