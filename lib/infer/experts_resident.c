/*
 * Strategy `resident`: every expert's weights in memory from the start, the host's or a GPU's.
 */
#include "infer/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gpu.h"

struct resident {
    struct moe_experts base;
    uint32_t n_experts;
    struct moe_expert_view *views; /* [n_layers][n_experts] */
    struct moe_gpu *gpu;           /* where the weights are; NULL: on the host */
    uint8_t *weights;
    uint64_t weights_bytes;
    /* The request being served. */
    const struct moe_layer_request *request;
    uint32_t n_given;
};

static int resident_begin(struct moe_experts *self, const struct moe_layer_request *request,
                          struct moe_phase_stats *phase, struct moe_err *err)
{
    struct resident *r = (struct resident *)self;
    r->request = request;
    r->n_given = 0;
    for (uint32_t i = 0; i < request->n_entries; i++) {
        phase->experts.activations += request->needs[i].n_rows;
        phase->experts.cache_hits += request->needs[i].n_rows;
    }
    return MOE_OK;
}

static int resident_next(struct moe_experts *self, uint32_t max, uint32_t *which,
                         struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct resident *r = (struct resident *)self;
    const struct moe_expert_view *layer = r->views + (uint64_t)r->request->layer * r->n_experts;
    for (*n = 0; *n < max && r->n_given < r->request->n_entries; ++*n, r->n_given++) {
        which[*n] = r->n_given;
        views[*n] = layer[r->request->needs[r->n_given].expert];
    }
    return MOE_OK;
}

static void resident_release(struct moe_experts *self, uint32_t which)
{
    (void)self;
    (void)which;
}

static void close_resident(struct moe_experts *self)
{
    struct resident *r = (struct resident *)self;
    if (r->gpu)
        moe_gpu_free(r->gpu, r->weights, r->weights_bytes);
    else
        moe_pages_free(r->weights, r->weights_bytes);
    free(r->views);
    free(r);
}

static const struct moe_experts_ops resident_ops = {
    .name = "resident",
    .begin = resident_begin,
    .next = resident_next,
    .release = resident_release,
    .close = close_resident,
};

/* ---- Opening ---- */

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

/* Measures every expert (no memory in the arena), or places it there, through `transit` where the
 * arena is the GPU's. *largest: bytes of the largest. */
static int walk_experts(struct resident *r, const struct moe_pack *pack, uint32_t variant,
                        struct moe_arena *arena, struct transit *transit, uint64_t *largest,
                        const struct moe_progress *progress, struct moe_err *err)
{
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        for (uint32_t expert = 0; expert < r->n_experts; expert++) {
            struct moe_expert_view *view = &r->views[(uint64_t)layer * r->n_experts + expert];
            uint64_t before = arena->used;
            view->layer = layer;
            view->expert = expert;
            view->variant = moe_pack_usable_variant(pack, layer, expert, variant);
            if (view->variant == UINT32_MAX)
                continue;
            struct moe_arena measured = {.used = before, .packed = true};
            MOE_TRY(moe_expert_view_read(view, pack, transit ? &measured : arena, err));
            if (transit) {
                MOE_TRY(send_expert(r, view, pack, transit, arena->base + before, err));
                arena->used = measured.used;
            }
            *largest = arena->used - before > *largest ? arena->used - before : *largest;
        }
        if (arena->base)
            moe_progress_report(progress, "loading experts", arena->used, arena->size);
        if (moe_progress_stopped(progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    if (arena->overflowed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the experts' size overflows");
    return MOE_OK;
}

static int load_weights(struct resident *r, const struct moe_pack *pack, uint32_t variant,
                        uint64_t largest, const struct moe_progress *progress, struct moe_err *err)
{
    struct transit transit = {0};
    if (r->weights_bytes == 0)
        return MOE_OK;
    r->weights = r->gpu ? moe_gpu_alloc(r->gpu, r->weights_bytes, err)
                        : moe_pages_alloc(r->weights_bytes, err);
    if (!r->weights)
        return MOE_ERR_MEMORY;
    struct moe_arena arena = {.base = r->weights, .size = r->weights_bytes, .packed = true};
    int status;
    MOE_STEP(r->gpu ? transit_open(&transit, r->gpu, largest, err) : MOE_OK);
    MOE_STEP(
        walk_experts(r, pack, variant, &arena, r->gpu ? &transit : NULL, &largest, progress, err));
out:
    int sent = r->gpu ? transit_close(&transit, r->gpu, status == MOE_OK ? err : NULL) : MOE_OK;
    return status == MOE_OK ? sent : status;
}

int moe_experts_open_resident(struct moe_experts **out, const struct moe_pack *pack,
                              uint32_t variant, struct moe_gpu *gpu,
                              const struct moe_progress *progress, struct moe_err *err)
{
    *out = NULL;
    struct resident *r = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    r->base.ops = &resident_ops;
    r->gpu = gpu;
    r->n_experts = moe_pack_n_experts(pack);
    struct moe_arena arena = {.packed = true};
    uint64_t largest = 0;
    int status = MOE_ERR_MEMORY;
    r->views = moe_alloc((uint64_t)moe_pack_n_layers(pack) * (r->n_experts ? r->n_experts : 1),
                         sizeof *r->views, err);
    if (r->views)
        status = walk_experts(r, pack, variant, &arena, NULL, &largest, NULL, err);
    r->weights_bytes = arena.used;
    if (status == MOE_OK)
        status = load_weights(r, pack, variant, largest, progress, err);
    if (status != MOE_OK) {
        close_resident(&r->base);
        return status;
    }
    r->base.resident_bytes = r->base.resident_bytes_max = r->weights_bytes;
    *out = &r->base;
    return MOE_OK;
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
