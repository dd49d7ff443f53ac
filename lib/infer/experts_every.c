/*
 * Every expert at every variant, for calibration: kept in memory from the last layer down as far as
 * they fit; of the layers before, the experts of a request are read into room for one layer and
 * stay until another layer needs it.
 */
#include "infer/experts.h"

#include <stdlib.h>

#include "base/mem.h"

struct every {
    struct moe_experts base;
    const struct moe_pack *pack; /* borrowed */
    uint32_t n_layers, n_experts, n_variants;
    uint32_t first_kept;           /* layers from here on stay in memory */
    struct moe_expert_view *views; /* [n_layers][n_experts][n_variants] */
    uint64_t *places;              /* the same: offset in its block */
    uint8_t *kept, *room;          /* of the kept layers; of one of the others */
    uint64_t kept_bytes, room_bytes;
    uint32_t in_room; /* the layer whose experts it holds; UINT32_MAX: none */
    uint8_t *there;   /* [n_experts][n_variants] of that layer */
    const struct moe_layer_request *request;
    uint32_t n_given;
};

static uint64_t index_of(const struct every *e, uint32_t layer, uint32_t expert, uint32_t variant)
{
    return ((uint64_t)layer * e->n_experts + expert) * e->n_variants + variant;
}

/* ---- Sizes ---- */

/* Bytes of a layer in all its variants; places (may be NULL) get where each begins. */
static uint64_t measure_layer(const struct moe_pack *pack, uint32_t layer, uint64_t *places)
{
    struct moe_arena arena = {0};
    uint32_t n_variants = moe_pack_n_variants(pack);
    for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++)
        for (uint32_t v = 0; v < n_variants; v++) {
            const struct moe_expert_extent *extent = moe_pack_expert(pack, layer, e, v);
            if (places)
                places[(uint64_t)e * n_variants + v] = arena.used;
            for (uint32_t s = 0; extent->present && s < MOE_PACK_MAX_SEGMENTS; s++)
                if (extent->segments[s].raw_bytes)
                    moe_arena_take(&arena, extent->segments[s].raw_bytes, 1);
        }
    return arena.overflowed ? UINT64_MAX : arena.used;
}

void moe_experts_every_bytes(const struct moe_pack *pack, uint64_t *least, uint64_t *all)
{
    *least = *all = 0;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        uint64_t bytes = measure_layer(pack, layer, NULL);
        *least = bytes > *least ? bytes : *least;
        if (!moe_add_u64(*all, bytes, all))
            *all = UINT64_MAX;
    }
}

/* ---- Reading ---- */

/* Reads an expert to `to`; *moved (may be NULL) grows by what that took. */
static int read_one(struct every *e, uint32_t layer, uint32_t expert, uint32_t variant, uint8_t *to,
                    uint64_t *moved, struct moe_err *err)
{
    struct moe_expert_view *view = &e->views[index_of(e, layer, expert, variant)];
    const struct moe_expert_extent *extent = moe_pack_expert(e->pack, layer, expert, variant);
    struct moe_arena arena = {.base = to, .size = UINT64_MAX >> 1};
    *view = (struct moe_expert_view){.layer = layer, .expert = expert, .variant = variant};
    for (uint32_t s = 0; moved && s < MOE_PACK_MAX_SEGMENTS; s++)
        *moved += extent->segments[s].stored_bytes;
    return moe_expert_view_read(view, e->pack, &arena, err);
}

static int read_kept(struct every *e, const struct moe_progress *progress, struct moe_err *err)
{
    uint64_t layer_at = 0;
    for (uint32_t layer = e->first_kept; layer < e->n_layers; layer++) {
        uint64_t bytes = measure_layer(e->pack, layer, &e->places[index_of(e, layer, 0, 0)]);
        for (uint32_t x = 0; x < e->n_experts; x++)
            for (uint32_t v = 0; v < e->n_variants; v++) {
                if (!moe_pack_expert(e->pack, layer, x, v)->present)
                    continue;
                uint8_t *to = e->kept + layer_at + e->places[index_of(e, layer, x, v)];
                MOE_TRY(read_one(e, layer, x, v, to, NULL, err));
            }
        layer_at += bytes;
        moe_progress_report(progress, "loading experts", layer_at, e->kept_bytes);
        if (moe_progress_stopped(progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return MOE_OK;
}

/* The variant that an assigner chose for an entry. */
static uint32_t wanted_variant(const struct moe_layer_request *r, uint32_t entry)
{
    return r->n_classes > 1 ? r->classes[entry] : 0;
}

/* The experts that the request names, into the room where they are not kept. */
static int fetch(struct every *e, struct moe_phase_stats *phase, struct moe_err *err)
{
    uint32_t layer = e->request->layer;
    if (layer >= e->first_kept)
        return MOE_OK;
    if (e->in_room != layer)
        for (uint64_t i = 0; i < (uint64_t)e->n_experts * e->n_variants; i++)
            e->there[i] = 0;
    e->in_room = layer;
    for (uint32_t i = 0; i < e->request->n_entries; i++) {
        uint32_t expert = e->request->needs[i].expert;
        uint32_t wanted = wanted_variant(e->request, i);
        if (e->request->kinds[i] == MOE_ENTRY_SKIPPED)
            continue;
        uint32_t variant = moe_pack_usable_variant(e->pack, layer, expert, wanted);
        uint8_t *there = &e->there[(uint64_t)expert * e->n_variants + variant];
        uint8_t *to = e->room + e->places[index_of(e, layer, expert, variant)];
        if (!*there)
            MOE_TRY(read_one(e, layer, expert, variant, to, &phase->bytes_read, err));
        *there = 1;
    }
    return MOE_OK;
}

/* ---- The provider ---- */

static int every_begin(struct moe_experts *self, const struct moe_layer_request *request,
                       struct moe_phase_stats *phase, struct moe_err *err)
{
    struct every *e = (struct every *)self;
    e->request = request;
    e->n_given = 0;
    for (uint32_t i = 0; i < request->n_entries; i++) {
        phase->experts.activations += request->needs[i].n_rows;
        if (request->kinds[i] == MOE_ENTRY_SKIPPED)
            phase->experts.skipped += request->needs[i].n_rows;
        else
            phase->experts.cache_hits += request->needs[i].n_rows;
    }
    return fetch(e, phase, err);
}

static int every_next(struct moe_experts *self, uint32_t max, uint32_t *which,
                      struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct every *e = (struct every *)self;
    for (*n = 0; *n < max && e->n_given < e->request->n_entries; e->n_given++) {
        uint32_t i = e->n_given, expert = e->request->needs[i].expert;
        if (e->request->kinds[i] == MOE_ENTRY_SKIPPED)
            continue;
        uint32_t wanted = wanted_variant(e->request, i);
        uint32_t variant = moe_pack_usable_variant(e->pack, e->request->layer, expert, wanted);
        which[*n] = i;
        views[(*n)++] = e->views[index_of(e, e->request->layer, expert, variant)];
    }
    return MOE_OK;
}

static void every_release(struct moe_experts *self, uint32_t which)
{
}

static void close_every(struct moe_experts *self)
{
    struct every *e = (struct every *)self;
    moe_pages_free(e->kept, e->kept_bytes);
    moe_pages_free(e->room, e->room_bytes);
    free(e->views);
    free(e->places);
    free(e->there);
    free(e);
}

static const struct moe_experts_ops every_ops = {
    .name = "every",
    .begin = every_begin,
    .next = every_next,
    .release = every_release,
    .close = close_every,
};

/* Chooses the layers that stay, and how large the room for one of the others must be. */
static int share_out(struct every *e, uint64_t bytes, struct moe_err *err)
{
    uint64_t all, least;
    moe_experts_every_bytes(e->pack, &least, &all);
    e->first_kept = 0;
    e->kept_bytes = all;
    if (bytes == 0 || all <= bytes)
        return MOE_OK;
    if (least > bytes)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "%s: one layer's experts in all their variants take %llu bytes, but "
                        "only %llu are free",
                        moe_pack_path(e->pack), (unsigned long long)least,
                        (unsigned long long)bytes);
    e->room_bytes = least;
    e->kept_bytes = 0;
    e->first_kept = e->n_layers;
    while (e->first_kept > 0) {
        uint64_t layer = measure_layer(e->pack, e->first_kept - 1, NULL);
        if (layer > bytes - least - e->kept_bytes)
            break;
        e->kept_bytes += layer;
        e->first_kept--;
    }
    for (uint32_t layer = 0; layer < e->first_kept; layer++)
        measure_layer(e->pack, layer, &e->places[index_of(e, layer, 0, 0)]);
    return MOE_OK;
}

static int allocate_every(struct every *e, struct moe_err *err)
{
    e->kept = moe_pages_alloc(e->kept_bytes, err);
    e->room = moe_pages_alloc(e->room_bytes, err);
    return e->kept && e->room ? MOE_OK : MOE_ERR_MEMORY;
}

int moe_experts_open_every(struct moe_experts **out, const struct moe_pack *pack, uint64_t bytes,
                           const struct moe_progress *progress, struct moe_err *err)
{
    struct every *e = moe_alloc(1, sizeof *e, err);
    *out = NULL;
    if (!e)
        return MOE_ERR_MEMORY;
    e->base.ops = &every_ops;
    e->pack = pack;
    e->n_layers = moe_pack_n_layers(pack);
    e->n_experts = moe_pack_n_experts(pack);
    e->n_variants = moe_pack_n_variants(pack);
    e->in_room = UINT32_MAX;
    uint64_t entries = (uint64_t)e->n_layers * e->n_experts * e->n_variants;
    e->views = moe_alloc(entries, sizeof *e->views, err);
    e->places = moe_alloc(entries, sizeof *e->places, err);
    e->there = moe_alloc((uint64_t)e->n_experts * e->n_variants, 1, err);
    int status;
    MOE_STEP(e->views && e->places && e->there ? share_out(e, bytes, err) : MOE_ERR_MEMORY);
    MOE_STEP(allocate_every(e, err));
    MOE_STEP(read_kept(e, progress, err));
out:
    if (status != MOE_OK) {
        close_every(&e->base);
        return status;
    }
    e->base.resident_bytes = e->base.resident_bytes_max = e->kept_bytes + e->room_bytes;
    *out = &e->base;
    return MOE_OK;
}
