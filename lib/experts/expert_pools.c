#include "experts/expert_pools.h"

#include "base/mem.h"

enum { MAX_REQUESTS = 4096 /* loads under way; further ones wait their turn */ };

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

uint32_t moe_expert_low_variant(const struct moe_inventory *i, uint32_t layer, uint32_t expert,
                                uint32_t high, uint32_t low)
{
    uint32_t at_high = moe_inventory_usable(i, layer, expert, high);
    uint32_t at_low = moe_inventory_usable(i, layer, expert, low);
    return at_high != UINT32_MAX && at_low > at_high ? at_low : UINT32_MAX;
}

/* ---- The loaders ---- */

static void size_disk(struct moe_expert_pools *p, const struct moe_pack *pack,
                      const struct moe_inventory *inventory, uint32_t n_requests)
{
    uint64_t compressed = largest_compressed(inventory, p->high), low = 0;
    if (p->low != p->high)
        low = largest_compressed(inventory, p->low);
    compressed = low > compressed ? low : compressed;
    p->disk.fd = moe_pack_fd(pack);
    p->disk.path = moe_pack_path(pack);
    p->disk.n_requests = n_requests;
    if (compressed)
        p->disk.compressed_bytes = 4 * moe_round_up(compressed, MOE_PACK_ALIGN);
}

/* The loader that copies to the GPU: like the one that reads, but for decoded bytes. */
static struct moe_loader_options uploads(const struct moe_loader_options *disk, struct moe_gpu *gpu)
{
    struct moe_loader_options o = *disk;
    o.gpu = gpu;
    o.verify = false;
    o.compressed_bytes = 0;
    o.n_decoders = 0;
    o.copy = NULL;
    o.copy_bytes = 0;
    o.fault = NULL;
    return o;
}

uint64_t moe_expert_pools_loader_bytes(const struct moe_expert_pools *p)
{
    return moe_loader_bytes(&p->loader) + (p->loader.gpu ? moe_loader_bytes(&p->disk) : 0);
}

/* ---- The host tier ---- */

/* How many experts of each class are in use. */
static void count_used(const struct moe_expert_pools *p, const struct moe_inventory *inv,
                       uint32_t used[MOE_MAX_CLASSES])
{
    for (uint32_t layer = 0; layer < inv->n_layers; layer++) {
        for (uint32_t e = 0; e < inv->n_experts; e++) {
            const uint32_t variants[2] = {
                moe_inventory_usable(inv, layer, e, p->high),
                moe_expert_low_variant(inv, layer, e, p->high, p->low),
            };
            for (int i = 0; i < 2; i++)
                if (variants[i] != UINT32_MAX)
                    used[moe_inventory_class(inv, layer, e, variants[i]) - inv->classes]++;
        }
    }
}

/* As many places of each class as it has working slots; the rest of `room` is divided in proportion
 * to the experts' bytes, and what then remains goes to the first class that can use it. */
static void share_places(struct moe_expert_pools *p, const struct moe_inventory *inv,
                         const uint32_t *used, uint64_t room)
{
    uint64_t left = room > p->least_bytes ? room - p->least_bytes : 0, shared = left;
    for (int round = 0; round < 2; round++) {
        for (uint32_t c = 0; c < inv->n_classes; c++) {
            uint64_t slot_bytes = inv->classes[c].slot_bytes;
            double share = (double)shared * used[c] / (double)p->all_bytes;
            uint64_t n = round == 0 ? (uint64_t)share : left / slot_bytes;
            uint32_t missing = used[c] - p->n_host[c];
            n = n < missing ? n : missing;
            p->n_host[c] += (uint32_t)n;
            left -= n * slot_bytes;
        }
    }
}

static void size_host(struct moe_expert_pools *p, const struct moe_inventory *inv, uint64_t bytes)
{
    uint32_t used[MOE_MAX_CLASSES] = {0};
    uint64_t loaders = moe_expert_pools_loader_bytes(p);
    count_used(p, inv, used);
    for (uint32_t c = 0; c < inv->n_classes; c++) {
        uint32_t n_working = p->pools.pools[c].n_working ? p->pools.pools[c].n_working : 1;
        p->n_host[c] = n_working < used[c] ? n_working : used[c];
        p->least_bytes += p->n_host[c] * inv->classes[c].slot_bytes;
        p->all_bytes += used[c] * inv->classes[c].slot_bytes;
    }
    share_places(p, inv, used, bytes > loaders ? bytes - loaders : 0);
    p->host_whole = true;
    for (uint32_t c = 0; c < inv->n_classes; c++) {
        p->host_bytes += p->n_host[c] * inv->classes[c].slot_bytes;
        p->host_whole &= p->n_host[c] == used[c];
    }
}

/* ---- The interface ---- */

void moe_expert_pools_size(struct moe_expert_pools *p, const struct moe_pack *pack,
                           const struct moe_inventory *inventory, const struct moe_cache_options *o)
{
    static const struct moe_strategy plain = {0};
    *p = (struct moe_expert_pools){.disk = o->loader, .high = o->high};
    p->low = uses_low(o) ? o->low : o->high;
    if (o->pools)
        p->pools = *o->pools;
    else
        moe_pools_size(&p->pools, inventory, o->strategy ? o->strategy : &plain, o->high, o->low,
                       o->cache_bytes, o->n_working);
    uint32_t n_slots = p->pools.n_slots;
    size_disk(p, pack, inventory,
              n_slots < MAX_REQUESTS / MOE_PACK_MAX_SEGMENTS ? n_slots * MOE_PACK_MAX_SEGMENTS
                                                             : MAX_REQUESTS);
    if (o->gpu) {
        p->loader = uploads(&p->disk, o->gpu);
        if (o->disk_rate > 0 || !o->loader.lockstep)
            p->disk.rate = o->disk_rate;
        size_host(p, inventory, o->host_bytes);
        return;
    }
    /* A rehearsed link moves bytes without using the processor, as a real one does. */
    p->disk.in_place = p->disk.copy && !p->disk.compressed_bytes;
    p->disk.verify &= !p->disk.in_place;
    p->loader = p->disk;
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
        bytes = p.pools.bytes + (options->gpu ? 0 : moe_expert_pools_loader_bytes(&p));
    }
    moe_inventory_release(&inventory);
    return bytes;
}

void moe_cache_host_bytes(const struct moe_pack *pack, const struct moe_cache_options *options,
                          uint64_t *least, uint64_t *all)
{
    struct moe_inventory inventory;
    struct moe_expert_pools p;
    struct moe_err err;
    *least = *all = UINT64_MAX;
    if (moe_inventory_of_pack(&inventory, pack, 1, &err) == MOE_OK) {
        moe_expert_pools_size(&p, pack, &inventory, options);
        *all = p.all_bytes + moe_expert_pools_loader_bytes(&p);
        *least = p.least_bytes + moe_expert_pools_loader_bytes(&p);
        if (options->strategy && options->strategy->needs_host)
            *least = *all;
    }
    moe_inventory_release(&inventory);
}
