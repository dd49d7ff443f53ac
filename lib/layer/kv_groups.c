/* Keys and values of a sequence outside of the cache, in groups of positions (kv.h). */
#include <string.h>

#include "base/bytes.h"
#include "layer/kv.h"
#include "layer/session.h"

uint64_t moe_kv_group_bytes(const struct moe_kv *kv)
{
    uint64_t cells = (uint64_t)kv->n_heads * (kv->key_dim + kv->value_padded), global = 0;
    cells += kv->index_dim;
    if (kv->config->global_head_dim)
        global = kv->config->global_kv_heads *
                 (kv->config->global_head_dim + moe_padded(kv->config->global_head_dim));
    return MOE_KV_GROUP * (cells > global ? cells : global) * kv->item_bytes;
}

/* Where a group lies in the cache: of each head a run of keys, and of values one for every 16
 * dimensions; of an indexer a run of keys. */
struct group {
    uint32_t layer, block, place; /* its first position's place in the block */
};

static struct group group_at(const struct moe_kv *kv, uint32_t layer, uint32_t sequence,
                             uint32_t at)
{
    return (struct group){layer, moe_kv_block(kv, sequence, at), at % kv->block_positions};
}

/* Heads, the indexer's among them, and runs of each. */
static uint32_t n_heads(const struct moe_kv *kv)
{
    return kv->n_heads + (kv->index_dim > 0);
}
static uint32_t n_runs(const struct moe_kv *kv, uint32_t head)
{
    return head < kv->n_heads ? 1 + kv->value_padded / MOE_PANEL_ROWS : 1;
}

static uint8_t *run_of(const struct moe_kv *kv, struct group g, uint32_t head, uint32_t run,
                       uint64_t *bytes)
{
    uint64_t item = kv->item_bytes;
    if (run == 0) {
        uint64_t dim = head < kv->n_heads ? kv->key_dim : kv->index_dim;
        *bytes = MOE_KV_GROUP * dim * item;
        return moe_kv_keys(kv, g.layer, g.block, head) + g.place * dim * item;
    }
    uint64_t row = (run - 1) * (uint64_t)kv->block_positions + g.place;
    *bytes = MOE_KV_GROUP * MOE_PANEL_ROWS * item;
    return moe_kv_values(kv, g.layer, g.block, head) + row * MOE_PANEL_ROWS * item;
}

/* Of a run only its first n positions stay: keys have them innermost, values outermost. */
static void clear_rest(uint8_t *cells, uint64_t bytes, bool keys, uint32_t n, uint32_t item)
{
    for (uint64_t i = 0; i < bytes / item; i++)
        if ((keys ? i % MOE_KV_GROUP : i / MOE_PANEL_ROWS) >= n)
            memset(cells + i * item, 0, item);
}

void moe_kv_group_get(const struct moe_kv *all, uint32_t layer, uint32_t sequence, uint32_t at,
                      uint32_t n, uint8_t *to)
{
    const struct moe_kv of = moe_kv_of_layer(all, layer), *kv = &of;
    struct group g = group_at(kv, layer, sequence, at);
    memset(to, 0, moe_kv_group_bytes(all));
    for (uint32_t head = 0; head < n_heads(kv); head++)
        for (uint32_t run = 0; run < n_runs(kv, head); run++) {
            uint64_t bytes;
            const uint8_t *cells = run_of(kv, g, head, run, &bytes);
            memcpy(to, cells, bytes);
            if (n < MOE_KV_GROUP)
                clear_rest(to, bytes, run == 0, n, kv->item_bytes);
            to += bytes;
        }
}

bool moe_kv_all_finite(uint16_t kind, const uint8_t *cells, uint64_t n)
{
    bool finite = true;
    for (uint64_t i = 0; i < n; i++)
        finite &= kind == MOE_LAYOUT_F32 ? (moe_get_u32(cells + 4 * i) & 0x7f800000) != 0x7f800000
                                         : (moe_get_u16(cells + 2 * i) & 0x7c00) != 0x7c00;
    return finite;
}

bool moe_kv_group_put(const struct moe_kv *all, uint32_t layer, uint32_t sequence, uint32_t at,
                      const uint8_t *from)
{
    const struct moe_kv of = moe_kv_of_layer(all, layer), *kv = &of;
    struct group g = group_at(kv, layer, sequence, at);
    if (!moe_kv_all_finite(all->layout.kind, from, moe_kv_group_bytes(all) / all->item_bytes))
        return false;
    if (g.block == MOE_NO_BLOCK)
        return true;
    for (uint32_t head = 0; head < n_heads(kv); head++)
        for (uint32_t run = 0; run < n_runs(kv, head); run++) {
            uint64_t bytes;
            uint8_t *cells = run_of(kv, g, head, run, &bytes);
            memcpy(cells, from, bytes);
            from += bytes;
        }
    return true;
}
