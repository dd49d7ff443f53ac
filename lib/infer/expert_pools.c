/* Sizes of an expert cache: slots, loaders, its policy, and the host tier behind a GPU. */
#include "infer/expert_pools.h"

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
    for (uint32_t key = 0; key < moe_inventory_n_keys(i); key++) {
        uint32_t v = moe_inventory_usable(i, key, variant);
        if (v == UINT32_MAX)
            continue; /* another process has it */
        const struct moe_size_class *class_ = moe_inventory_class(i, key, v);
        const uint64_t *stored = moe_inventory_stored(i, key, v);
        for (uint32_t s = 0; s < class_->n_segments; s++)
            if (stored[s] < class_->segment_bytes[s] && stored[s] > largest)
                largest = stored[s];
    }
    return largest;
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
    if (!p->disk.copy)
        p->disk.arranger = moe_pack_arranger(pack);
    if (p->disk.arranger)
        compressed = p->disk.arranger->most_bytes;
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
    o.arranger = NULL;
    o.copy = NULL;
    o.copy_bytes = 0;
    o.fault = NULL;
    return o;
}

uint64_t moe_expert_pools_beside_bytes(const struct moe_expert_pools *p)
{
    return p->policy + moe_loader_bytes(&p->loader) +
           (p->loader.gpu ? moe_loader_bytes(&p->disk) : 0);
}

uint64_t moe_expert_pools_bytes(const struct moe_expert_pools *p)
{
    return p->pools.bytes + (p->loader.gpu ? 0 : moe_expert_pools_beside_bytes(p));
}

/* ---- The host tier ---- */

static void size_host(struct moe_expert_pools *p, const struct moe_inventory *inv, uint64_t bytes)
{
    uint64_t beside = moe_expert_pools_beside_bytes(p);
    moe_host_sizes_of(&p->host, inv, &p->pools, p->high, p->low,
                      bytes > beside ? bytes - beside : 0);
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
    p->pools.loan = o->loan;
    const struct moe_follower_params choices = {inventory->n_layers, inventory->n_experts,
                                                inventory->top_k, p->pools.bytes};
    if (o->strategy)
        p->policy = moe_policy_follow_bytes(o->strategy->cache, &choices);
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

/* ---- The same for a pack whose inventory nobody has ---- */

uint64_t moe_cache_slot_bytes(const struct moe_pack *pack, uint32_t variant)
{
    struct moe_inventory inventory;
    struct moe_err err;
    uint64_t bytes = UINT64_MAX;
    if (moe_inventory_of_pack(&inventory, pack, 1, NULL, &err) == MOE_OK)
        bytes = moe_inventory_slot_bytes(&inventory, variant);
    moe_inventory_release(&inventory);
    return bytes;
}

static bool size_pools_of_pack(struct moe_expert_pools *p, const struct moe_pack *pack,
                               const struct moe_cache_options *o)
{
    struct moe_inventory inventory;
    struct moe_err err;
    bool known = moe_inventory_of_pack(&inventory, pack, o->top_k, o->config, &err) == MOE_OK;
    if (known)
        moe_expert_pools_size(p, pack, &inventory, o);
    moe_inventory_release(&inventory);
    return known;
}

uint64_t moe_cache_bytes(const struct moe_pack *pack, const struct moe_cache_options *options)
{
    struct moe_expert_pools p;
    return size_pools_of_pack(&p, pack, options) ? moe_expert_pools_bytes(&p) : UINT64_MAX;
}

void moe_cache_host_bytes(const struct moe_pack *pack, const struct moe_cache_options *options,
                          uint64_t *least, uint64_t *all)
{
    struct moe_expert_pools p;
    *least = *all = UINT64_MAX;
    if (!size_pools_of_pack(&p, pack, options))
        return;
    *all = p.host.all_bytes + moe_expert_pools_beside_bytes(&p);
    *least = options->strategy && options->strategy->needs_host
                 ? *all
                 : p.host.least_bytes + moe_expert_pools_beside_bytes(&p);
}
