#include "run/expert_pools.h"

#include <string.h>

#include "base/mem.h"

enum { MAX_REQUESTS = 4096 /* loads under way; more wait for them in their turn */ };

static uint64_t class_slot_bytes(const struct moe_expert_class *class_)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < class_->n_segments; i++)
        bytes += moe_round_up(class_->segment_bytes[i], MOE_PACK_ALIGN);
    return bytes;
}

/* Calls for every expert that has a variant to be used instead of `variant`. */
static void each_expert(const struct moe_pack *pack, uint32_t variant,
                        void (*fn)(void *ctx, const struct moe_pack *pack,
                                   const struct moe_expert_extent *x),
                        void *ctx)
{
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            uint32_t v = moe_pack_usable_variant(pack, layer, e, variant);
            if (v != UINT32_MAX)
                fn(ctx, pack, moe_pack_expert(pack, layer, e, v));
        }
    }
}

static void take_largest(void *ctx, const struct moe_pack *pack, const struct moe_expert_extent *x)
{
    uint64_t *most = ctx, bytes = class_slot_bytes(moe_pack_class_at(pack, x->class_index));
    *most = bytes > *most ? bytes : *most;
}

uint64_t moe_cache_slot_bytes(const struct moe_pack *pack, uint32_t variant)
{
    uint64_t most = 0;
    each_expert(pack, variant, take_largest, &most);
    return most;
}

static void count_class(void *ctx, const struct moe_pack *pack, const struct moe_expert_extent *x)
{
    uint64_t *n_of_class = ctx;
    n_of_class[x->class_index]++;
}

static void take_compressed(void *ctx, const struct moe_pack *pack,
                            const struct moe_expert_extent *x)
{
    uint64_t *largest = ctx;
    const struct moe_expert_class *class_ = moe_pack_class_at(pack, x->class_index);
    for (uint32_t i = 0; i < class_->n_segments; i++)
        if (x->segments[i].stored_bytes < x->segments[i].raw_bytes &&
            x->segments[i].stored_bytes > *largest)
            *largest = x->segments[i].stored_bytes;
}

static bool uses_low(const struct moe_cache_options *o)
{
    return o->strategy && o->strategy->needs_low && o->low != o->high;
}

/* Bytes of all experts that n_of_class counts. */
static double all_bytes(const struct moe_expert_pools *p, const uint64_t *n_of_class)
{
    double sum = 0;
    for (uint32_t c = 0; c < p->n_classes; c++)
        sum += (double)n_of_class[c] * (double)p->class_bytes[c];
    return sum;
}

static void share_out(struct moe_expert_pools *p, const struct moe_pack *pack,
                      const struct moe_cache_options *o)
{
    uint64_t high[MOE_CACHE_MAX_CLASSES] = {0}, low[MOE_CACHE_MAX_CLASSES] = {0};
    each_expert(pack, o->high, count_class, high);
    if (uses_low(o))
        each_expert(pack, o->low, count_class, low);
    double low_share = uses_low(o) ? o->strategy->low_pool : 0;
    double all_high = all_bytes(p, high), all_low = all_bytes(p, low);
    for (uint32_t c = 0; c < p->n_classes; c++) {
        double slots = 0;
        if (high[c])
            slots += (double)o->cache_bytes * (1 - low_share) * (double)high[c] / all_high;
        if (low[c])
            slots += (double)o->cache_bytes * low_share * (double)low[c] / all_low;
        uint64_t most = high[c] + low[c];
        p->pools[c].n_cache = slots < (double)most ? (uint32_t)slots : (uint32_t)most;
        if (most)
            p->pools[c].n_working = o->n_working ? o->n_working : 1;
        p->n_slots += p->pools[c].n_cache + p->pools[c].n_working;
        p->bytes += (p->pools[c].n_cache + p->pools[c].n_working) * p->class_bytes[c];
    }
}

int moe_expert_pools_size(struct moe_expert_pools *p, const struct moe_pack *pack,
                          const struct moe_cache_options *o, struct moe_err *err)
{
    uint64_t compressed = 0;
    *p = (struct moe_expert_pools){.n_classes = moe_pack_n_classes(pack), .loader = o->loader};
    if (p->n_classes > MOE_CACHE_MAX_CLASSES)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: more than %d classes of experts",
                        moe_pack_path(pack), MOE_CACHE_MAX_CLASSES);
    for (uint32_t c = 0; c < p->n_classes; c++)
        p->class_bytes[c] = class_slot_bytes(moe_pack_class_at(pack, c));
    share_out(p, pack, o);
    each_expert(pack, o->high, take_compressed, &compressed);
    if (uses_low(o))
        each_expert(pack, o->low, take_compressed, &compressed);
    p->loader.fd = moe_pack_fd(pack);
    p->loader.path = moe_pack_path(pack);
    p->loader.n_requests = p->n_slots < MAX_REQUESTS / MOE_PACK_MAX_SEGMENTS
                               ? p->n_slots * MOE_PACK_MAX_SEGMENTS
                               : MAX_REQUESTS;
    if (compressed)
        p->loader.compressed_bytes = 4 * moe_round_up(compressed, MOE_PACK_ALIGN);
    /* A rehearsed link moves bytes without the processor, as a real one does. */
    p->loader.in_place = p->loader.copy && !compressed;
    p->loader.verify &= !p->loader.in_place;
    return MOE_OK;
}

uint64_t moe_cache_bytes(const struct moe_pack *pack, const struct moe_cache_options *options)
{
    struct moe_expert_pools p;
    struct moe_err err = {0};
    if (moe_expert_pools_size(&p, pack, options, &err) != MOE_OK)
        return UINT64_MAX;
    return p.bytes + moe_loader_bytes(&p.loader);
}
