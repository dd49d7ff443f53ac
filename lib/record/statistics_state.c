#include "record/statistics_state.h"

#include <stdlib.h>

#include "base/mem.h"

void moe_document_free(struct moe_statistics_document *d)
{
    if (!d)
        return;
    free(d->block);
    free(d);
}

/* Carves the largest document's arrays from an arena, which may only count. */
static void carve(struct moe_statistics_document *d, struct moe_arena *arena,
                  const struct moe_statistics_shape *shape)
{
    uint64_t slots = (uint64_t)shape->n_layers * shape->max_tokens * shape->top_k;
    uint64_t sets = (uint64_t)shape->n_layers * MOE_N_PREDICTORS, n = shape->n_experts;
    d->chosen = moe_arena_take(arena, slots, sizeof *d->chosen);
    d->weights = moe_arena_take(arena, slots, sizeof *d->weights);
    d->ids = moe_arena_take(arena, shape->max_tokens, sizeof *d->ids);
    d->before = moe_arena_take(arena, shape->max_tokens, sizeof *d->before);
    d->newest = moe_arena_take(arena, MOE_DOCUMENT_BUCKETS, sizeof *d->newest);
    d->predicted = moe_arena_take(arena, sets * n, sizeof *d->predicted);
    d->was_predicted = moe_arena_take(arena, sets, sizeof *d->was_predicted);
    d->by_token = moe_arena_take(arena, shape->n_layers, sizeof *d->by_token);
    d->counts = moe_arena_take(arena, 3 * shape->n_layers * n, sizeof *d->counts);
    d->scores = moe_arena_take(arena, n, sizeof *d->scores);
    d->order = moe_arena_take(arena, n, sizeof *d->order);
}

uint64_t moe_document_bytes(const struct moe_statistics_shape *shape)
{
    struct moe_statistics_document d;
    struct moe_arena arena = {0};
    carve(&d, &arena, shape);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

int moe_document_new(struct moe_statistics_document **out, const struct moe_statistics_shape *shape,
                     struct moe_err *err)
{
    struct moe_arena arena = {.size = moe_document_bytes(shape)};
    struct moe_statistics_document *d = moe_alloc(1, sizeof *d, err);
    if (!d || !(arena.base = d->block = moe_alloc(arena.size, 1, err))) {
        free(d);
        return MOE_ERR_MEMORY;
    }
    carve(d, &arena, shape);
    *out = d;
    return MOE_OK;
}
