/*
 * Strategy `resident`: every expert's weights in memory, the host's or a GPU's. On the host they
 * may arrive behind the first passes, layer by layer, but first what a pass waits for.
 */
#include "infer/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "gpu.h"
#include "infer/arrivals.h"

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
    struct moe_arrivals *arrivals; /* of the views; NULL on a GPU */
    uint64_t *asked;               /* [n_experts] the request's experts, which are read first */
    uint64_t bytes_counted;        /* in statistics */
};

static int read_expert(void *ctx, uint64_t which, uint64_t *bytes, struct moe_err *err)
{
    struct resident *r = ctx;
    const uint64_t at = r->places[which];
    struct moe_arena arena = {
        .base = r->weights + at, .size = r->weights_bytes - at, .packed = true};
    MOE_TRY(moe_expert_view_read(&r->views[which], r->pack, &arena, err));
    *bytes += arena.used;
    return MOE_OK;
}

/* ---- Requests ---- */

static uint64_t view_of_entry(const struct resident *r, uint32_t entry)
{
    return (uint64_t)r->request->layer * r->n_experts + r->request->needs[entry].expert;
}

static bool complete(const struct resident *r)
{
    return !r->arrivals || moe_arrivals_complete(r->arrivals);
}

static void count_read(struct resident *r)
{
    const uint64_t bytes = moe_arrivals_bytes(r->arrivals);
    r->phase->bytes_read += bytes - r->bytes_counted;
    r->bytes_counted = bytes;
}

/* Has the entries that are left read first. */
static void ask_left(struct resident *r)
{
    moe_arrivals_ask(r->arrivals, NULL, 0); /* the list changes */
    for (uint32_t i = 0; i < r->n_left; i++)
        r->asked[i] = view_of_entry(r, r->left[i]);
    moe_arrivals_ask(r->arrivals, r->asked, r->n_left);
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
    if (!r->arrivals || (complete(r) && r->bytes_counted == moe_arrivals_bytes(r->arrivals)))
        return MOE_OK;
    count_read(r);
    ask_left(r);
    return MOE_OK;
}

/* Gives the entries that are there. */
static void give_entries(struct resident *r, uint32_t max, uint32_t *which,
                         struct moe_expert_view *views, uint32_t *n)
{
    const bool all = complete(r);
    uint32_t n_kept = 0;
    *n = 0;
    for (uint32_t i = 0; i < r->n_left; i++) {
        const uint64_t view = view_of_entry(r, r->left[i]);
        if (*n < max && (all || moe_arrivals_has(r->arrivals, view))) {
            which[*n] = r->left[i];
            views[(*n)++] = r->views[view];
        } else {
            r->left[n_kept++] = r->left[i];
        }
    }
    r->n_left = n_kept;
}

static int resident_next(struct moe_experts *self, uint32_t max, uint32_t *which,
                         struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct resident *r = (struct resident *)self;
    give_entries(r, max, which, views, n);
    if (*n > 0 || r->n_left == 0)
        return MOE_OK;
    const double began = moe_seconds();
    ask_left(r);
    int status = moe_arrivals_await_any(r->arrivals, r->asked, r->n_left, err);
    give_entries(r, max, which, views, n);
    r->phase->stall_seconds += moe_seconds() - began;
    count_read(r);
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
    moe_arrivals_close(r->arrivals);
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
        if (r->views[i].variant == UINT32_MAX)
            continue; /* there is none */
        MOE_STEP(send_expert(r, &r->views[i], r->pack, &transit, r->weights + r->places[i], err));
        moe_progress_report(progress, "loading experts", r->places[i], r->weights_bytes);
        MOE_STEP(moe_progress_stopped(progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                                : MOE_OK);
    }
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
        if (view->variant == UINT32_MAX)
            continue; /* there is none */
        MOE_TRY(moe_expert_view_read(view, r->pack, &arena, err));
        const uint64_t bytes = arena.used - r->places[i];
        r->largest_bytes = bytes > r->largest_bytes ? bytes : r->largest_bytes;
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
    if (r->weights_bytes == 0)
        return MOE_OK;
    r->weights = r->gpu ? moe_gpu_alloc(r->gpu, r->weights_bytes, err)
                        : moe_pages_alloc(r->weights_bytes, err);
    if (!r->weights)
        return MOE_ERR_MEMORY;
    if (r->gpu)
        return send_all(r, progress, err);
    const int threads = moe_pack_is_compressed(r->pack) ? 1 : moe_par_threads();
    MOE_TRY(moe_arrivals_open(&r->arrivals, r->n_views, read_expert, r, err));
    for (uint64_t i = 0; i < r->n_views; i++)
        if (r->views[i].variant == UINT32_MAX)
            moe_arrivals_leave_out(r->arrivals, i);
    static const char what[] = "loading experts";
    if (behind)
        return moe_arrivals_begin(r->arrivals, threads, progress, what, r->weights_bytes, err);
    MOE_TRY(moe_arrivals_read(r->arrivals, threads, progress, what, r->weights_bytes, err));
    r->bytes_counted = moe_arrivals_bytes(r->arrivals);
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

int moe_experts_open_arriving(struct moe_experts **out, struct moe_pack *pack, uint32_t variant,
                              const struct moe_progress *passes, struct moe_err *err)
{
    moe_pack_stop_with(pack, passes ? passes->stop : NULL);
    return open_resident(out, pack, variant, NULL, true, passes, err);
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
