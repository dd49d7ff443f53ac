/*
 * Strategy `resident`: every expert's weights in memory from the start.
 */
#include "run/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct resident {
    struct moe_experts base;
    uint32_t n_experts;
    struct moe_expert_view *views; /* [n_layers][n_experts] */
    uint8_t *weights;
    uint64_t weights_bytes;
    /* The request being served. */
    struct moe_expert_request request;
    uint32_t n_given;
};

static int begin(struct moe_experts *self, const struct moe_expert_request *request,
                 struct moe_phase_stats *phase, struct moe_err *err)
{
    struct resident *r = (struct resident *)self;
    r->request = *request;
    r->n_given = 0;
    for (uint32_t i = 0; i < request->n; i++) {
        phase->experts.activations += request->needs[i].n_rows;
        phase->experts.cache_hits += request->needs[i].n_rows;
    }
    return MOE_OK;
}

static int next(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct resident *r = (struct resident *)self;
    const struct moe_expert_view *layer = r->views + (uint64_t)r->request.layer * r->n_experts;
    for (*n = 0; *n < max && r->n_given < r->request.n; ++*n, r->n_given++) {
        which[*n] = r->n_given;
        views[*n] = layer[r->request.needs[r->n_given].expert];
    }
    return MOE_OK;
}

static int complete(struct moe_experts *self, uint32_t which, struct moe_err *err)
{
    return MOE_OK;
}

static void release(struct moe_experts *self, uint32_t which)
{
    (void)self;
    (void)which;
}

static void close_resident(struct moe_experts *self)
{
    struct resident *r = (struct resident *)self;
    moe_pages_free(r->weights, r->weights_bytes);
    free(r->views);
    free(r);
}

static const struct moe_experts_ops resident_ops = {
    .name = "resident",
    .begin = begin,
    .next = next,
    .complete = complete,
    .release = release,
    .close = close_resident,
};

/* Measures (no memory in the arena) or loads every expert. */
static int walk_experts(struct resident *r, const struct moe_pack *pack, uint32_t variant,
                        struct moe_arena *arena, const struct moe_progress *progress,
                        struct moe_err *err)
{
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        for (uint32_t expert = 0; expert < r->n_experts; expert++) {
            struct moe_expert_view *view = &r->views[(uint64_t)layer * r->n_experts + expert];
            view->layer = layer;
            view->expert = expert;
            view->variant = moe_pack_usable_variant(pack, layer, expert, variant);
            int status = MOE_OK;
            if (view->variant != UINT32_MAX)
                status = moe_expert_view_read(view, pack, arena, err);
            if (status != MOE_OK)
                return status;
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

int moe_experts_open_resident(struct moe_experts **out, const struct moe_pack *pack,
                              uint32_t variant, const struct moe_progress *progress,
                              struct moe_err *err)
{
    *out = NULL;
    struct resident *r = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    r->base.ops = &resident_ops;
    r->n_experts = moe_pack_n_experts(pack);
    struct moe_arena arena = {0};
    int status = MOE_ERR_MEMORY;
    r->views = moe_alloc((uint64_t)moe_pack_n_layers(pack) * (r->n_experts ? r->n_experts : 1),
                         sizeof *r->views, err);
    if (!r->views)
        goto fail;
    status = walk_experts(r, pack, variant, &arena, NULL, err);
    if (status != MOE_OK)
        goto fail;
    r->weights_bytes = arena.used;
    r->weights = moe_pages_alloc(arena.used, err);
    status = MOE_ERR_MEMORY;
    if (!r->weights)
        goto fail;
    arena = (struct moe_arena){.base = r->weights, .size = r->weights_bytes};
    status = walk_experts(r, pack, variant, &arena, progress, err);
    if (status != MOE_OK)
        goto fail;
    r->base.resident_bytes = r->base.resident_bytes_max = r->weights_bytes;
    *out = &r->base;
    return MOE_OK;
fail:
    close_resident(&r->base);
    return status;
}
