#include "run/expert_pools.h"

#include "base/mem.h"

enum { MAX_REQUESTS = 4096 /* loads under way; more wait for them in their turn */ };

static bool uses_low(const struct moe_cache_options *o)
{
    return o->strategy && o->strategy->needs_low && o->low != o->high;
}

/* Stored bytes of the largest compressed segment of experts at `variant`; 0: none is. */
static uint64_t largest_compressed(const struct moe_inventory *i, uint32_t variant)
{
    uint64_t largest = 0;
    for (uint32_t layer = 0; layer < i->n_layers; layer++) {
        for (uint32_t e = 0; e < i->n_experts; e++) {
            uint32_t v = moe_inventory_usable(i, layer, e, variant);
            const struct moe_size_class *class_ = moe_inventory_class(i, layer, e, v);
            const uint64_t *stored = moe_inventory_stored(i, layer, e, v);
            for (uint32_t s = 0; s < class_->n_segments; s++)
                if (stored[s] < class_->segment_bytes[s] && stored[s] > largest)
                    largest = stored[s];
        }
    }
    return largest;
}

void moe_expert_pools_size(struct moe_expert_pools *p, const struct moe_pack *pack,
                           const struct moe_inventory *inventory, const struct moe_cache_options *o)
{
    static const struct moe_strategy plain = {0};
    *p = (struct moe_expert_pools){.loader = o->loader};
    if (o->pools)
        p->pools = *o->pools;
    else
        moe_pools_size(&p->pools, inventory, o->strategy ? o->strategy : &plain, o->high, o->low,
                       o->cache_bytes, o->n_working);
    uint64_t compressed = largest_compressed(inventory, o->high), low = 0;
    if (uses_low(o))
        low = largest_compressed(inventory, o->low);
    compressed = low > compressed ? low : compressed;
    uint32_t n_slots = p->pools.n_slots;
    p->loader.fd = moe_pack_fd(pack);
    p->loader.path = moe_pack_path(pack);
    p->loader.n_requests = n_slots < MAX_REQUESTS / MOE_PACK_MAX_SEGMENTS
                               ? n_slots * MOE_PACK_MAX_SEGMENTS
                               : MAX_REQUESTS;
    if (compressed)
        p->loader.compressed_bytes = 4 * moe_round_up(compressed, MOE_PACK_ALIGN);
    /* A rehearsed link moves bytes without the processor, as a real one does. */
    p->loader.in_place = p->loader.copy && !compressed;
    p->loader.verify &= !p->loader.in_place;
}

uint64_t moe_cache_slot_bytes(const struct moe_pack *pack, uint32_t variant)
{
    struct moe_inventory inventory;
    struct moe_err err;
    uint64_t bytes = UINT64_MAX;
    if (moe_inventory_of_pack(&inventory, pack, 1, &err) == MOE_OK)
        bytes = moe_inventory_slot_bytes(&inventory, variant);
    moe_inventory_release(&inventory);
    return bytes;
}

uint64_t moe_cache_bytes(const struct moe_pack *pack, const struct moe_cache_options *options)
{
    struct moe_inventory inventory;
    struct moe_expert_pools p;
    struct moe_err err;
    uint64_t bytes = UINT64_MAX;
    if (moe_inventory_of_pack(&inventory, pack, 1, &err) == MOE_OK) {
        moe_expert_pools_size(&p, pack, &inventory, options);
        bytes = p.pools.bytes + moe_loader_bytes(&p.loader);
    }
    moe_inventory_release(&inventory);
    return bytes;
}
