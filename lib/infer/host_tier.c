/* The host tier: experts in page-locked memory, and how it is filled. */
#include "infer/host_tier.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int moe_host_tier_open(struct moe_host_tier *t, const struct moe_pack *pack,
                       const struct moe_inventory *inventory, const struct moe_expert_pools *pools,
                       struct moe_gpu *gpu, struct moe_err *err)
{
    uint32_t n_copies = moe_inventory_n_keys(inventory) * inventory->n_variants;
    *t = (struct moe_host_tier){.pack = pack,
                                .inventory = inventory,
                                .gpu = gpu,
                                .whole = pools->host.whole,
                                .bytes = pools->host.bytes};
    MOE_TRY(moe_host_places_open(&t->places, n_copies, pools->host.n, inventory->n_classes, err));
    t->place_at = moe_alloc(t->places.n_places, sizeof *t->place_at, err);
    t->memory = moe_pages_alloc(t->bytes, err);
    if (!t->place_at || !t->memory)
        return MOE_ERR_MEMORY;
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->places.n_places; i++) {
        t->place_at[i] = at;
        at += inventory->classes[t->places.places[i].class_index].slot_bytes;
    }
    MOE_TRY(moe_gpu_pin(gpu, t->memory, t->bytes, err));
    t->pinned = true;
    return MOE_OK;
}

void moe_host_tier_close(struct moe_host_tier *t)
{
    if (t->pinned)
        moe_gpu_unpin(t->gpu, t->memory);
    moe_pages_free(t->memory, t->bytes);
    free(t->place_at);
    moe_host_places_close(&t->places);
}

struct moe_expert_segment moe_host_tier_segment(const struct moe_host_tier *t, uint32_t copy,
                                                uint32_t segment)
{
    uint32_t n_variants = t->inventory->n_variants;
    return moe_expert_segment_of(t->inventory, copy / n_variants, copy % n_variants, segment);
}

static const struct moe_size_class *class_at(const struct moe_host_tier *t, uint32_t place)
{
    return &t->inventory->classes[t->places.places[place].class_index];
}

uint8_t *moe_host_tier_at(const struct moe_host_tier *t, uint32_t place, uint32_t segment)
{
    return t->memory + t->place_at[place] + moe_size_class_offset(class_at(t, place), segment);
}

/* ---- First contents ---- */

struct filling {
    struct moe_host_tier *tier;
    struct moe_loader *loader;
    const struct moe_progress *progress;
    uint32_t n_requests, n_in_flight;
    uint64_t bytes, done; /* to load, loaded */
};

/* Takes in what has been loaded, after a wait for it. */
static int take_some(struct filling *f, struct moe_err *err)
{
    enum { AT_ONCE = 32 };
    struct moe_load_done done[AT_ONCE];
    struct moe_host_tier *t = f->tier;
    uint32_t n = moe_loader_wait(f->loader, done, AT_ONCE);
    f->n_in_flight -= n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = moe_tag_slot(done[i].tag);
        uint32_t segment = moe_tag_segment(done[i].tag);
        struct moe_host_place *x = &t->places.places[place];
        struct moe_expert_segment which = moe_host_tier_segment(t, x->copy, segment);
        if (done[i].status != MOE_OK)
            return moe_expert_load_failed(err, done[i].status, t->pack, &which,
                                          moe_loader_error(f->loader));
        x->arrived |= 1u << segment;
        f->done += class_at(t, place)->segment_bytes[segment];
    }
    moe_progress_report(f->progress, "loading experts", f->done, f->bytes);
    if (moe_progress_stopped(f->progress))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    return MOE_OK;
}

static int load_place(struct filling *f, uint32_t place, uint32_t copy, struct moe_err *err)
{
    struct moe_host_tier *t = f->tier;
    for (uint32_t s = 0; s < class_at(t, place)->n_segments; s++) {
        const struct moe_expert_segment which = moe_host_tier_segment(t, copy, s);
        struct moe_load load = moe_expert_load(t->pack, &which);
        uint32_t handle;
        load.to = moe_host_tier_at(t, place, s);
        load.tag = moe_load_tag(place, s);
        while (f->n_in_flight == f->n_requests)
            MOE_TRY(take_some(f, err));
        MOE_TRY(moe_loader_submit(f->loader, &load, &handle, err));
        f->n_in_flight++;
    }
    return MOE_OK;
}

int moe_host_tier_fill(struct moe_host_tier *t, struct moe_loader *loader, uint32_t n_requests,
                       uint32_t high, uint32_t low, const uint64_t *frequency,
                       const struct moe_progress *progress, struct moe_err *err)
{
    const struct moe_inventory *inv = t->inventory;
    struct filling f = {t, loader, progress, n_requests, .bytes = t->bytes};
    struct moe_host_wish *wishes =
        moe_alloc(2 * (uint64_t)inv->n_layers * inv->n_experts, sizeof *wishes, err);
    if (!wishes)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    uint32_t n = moe_host_places_assign(&t->places, inv, high, low, frequency, wishes);
    for (uint32_t i = 0; i < n; i++)
        MOE_STEP(
            load_place(&f, moe_host_places_find(&t->places, wishes[i].copy), wishes[i].copy, err));
    while (f.n_in_flight > 0)
        MOE_STEP(take_some(&f, err));
    moe_host_places_settle(&t->places, wishes, n);
out:
    free(wishes);
    return status;
}
