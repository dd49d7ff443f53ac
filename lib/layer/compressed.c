#include "layer/compressed.h"

#include <string.h>

#include "base/mem.h"
#include "layer/session.h"
#include "model/config_states.h"

/* Bytes of each part of a sequence's, in their order. */
struct sizes {
    uint64_t kept, index, keys, values;
};

static struct sizes sizes_of(const struct moe_compressed *c, uint32_t layer,
                             struct moe_compressed_part *part)
{
    const struct moe_config *m = c->config;
    bool chooses = m->layer_compresses[layer] == MOE_COMPRESS_CHOSEN;
    part->ratio = moe_config_ratio(m, layer);
    part->n_kept = part->ratio * (chooses ? 2 : 1);
    part->n_entries = (uint32_t)moe_padded(c->context / part->ratio + 1);
    uint64_t n = part->n_entries, kept = part->n_kept * moe_compressed_row(m, layer).stride;
    return (struct sizes){
        .kept = moe_round_up(kept * sizeof(float), MOE_ALIGN),
        .index = chooses ? moe_round_up(n * m->index_dim * sizeof(float), MOE_ALIGN) : 0,
        .keys = moe_round_up(n * m->head_dim * c->item_bytes, MOE_ALIGN),
        .values = moe_round_up(n * moe_padded(m->head_dim) * c->item_bytes, MOE_ALIGN),
    };
}

static uint64_t layer_bytes(const struct moe_compressed *c, uint32_t layer)
{
    struct moe_compressed_part part;
    if (c->config->layer_compresses[layer] == MOE_COMPRESS_NOT)
        return 0;
    struct sizes s = sizes_of(c, layer, &part);
    return s.kept + s.index + s.keys + s.values;
}

struct moe_compressed moe_compressed_shape(const struct moe_config *config,
                                           const struct moe_session_options *o)
{
    struct moe_compressed c = {.config = config,
                               .layout = {o->kv_kind, 0},
                               .item_bytes = (uint32_t)moe_layout_bits(o->kv_kind) / 8,
                               .context = o->context};
    for (uint32_t layer = 0; layer < config->n_layers; layer++)
        c.sequence += layer_bytes(&c, layer);
    if (!moe_mul_u64(c.sequence, (uint64_t)o->n_sequences * (1 + o->takes_back), &c.bytes))
        c.bytes = UINT64_MAX;
    return c;
}

struct moe_compressed_row moe_compressed_row(const struct moe_config *c, uint32_t layer)
{
    bool chooses = c->layer_compresses[layer] == MOE_COMPRESS_CHOSEN;
    uint64_t entry = moe_padded((uint64_t)c->head_dim * (chooses ? 2 : 1));
    uint64_t index = chooses ? moe_padded(2 * (uint64_t)c->index_dim) : 0;
    return (struct moe_compressed_row){
        .gate = entry,
        .index_entry = 2 * entry,
        .index_gate = 2 * entry + index,
        .stride = 2 * (entry + index),
    };
}

struct moe_compressed_part moe_compressed_at(const struct moe_compressed *c, uint32_t sequence,
                                             uint32_t layer)
{
    struct moe_compressed_part part;
    uint8_t *at = c->memory + sequence * c->sequence;
    for (uint32_t before = 0; before < layer; before++)
        at += layer_bytes(c, before);
    struct sizes s = sizes_of(c, layer, &part);
    part.kept = (float *)(void *)at;
    part.index = s.index ? (float *)(void *)(at + s.kept) : NULL;
    part.keys = at + s.kept + s.index;
    part.values = part.keys + s.keys;
    return part;
}

void moe_compressed_copy(const struct moe_compressed *c, uint32_t from, uint32_t to, bool entries)
{
    uint64_t at = 0;
    for (uint32_t layer = 0; c->bytes && layer < c->config->n_layers; layer++) {
        struct moe_compressed_part part;
        uint64_t all = layer_bytes(c, layer);
        if (all == 0)
            continue;
        uint64_t n = entries ? all : sizes_of(c, layer, &part).kept;
        memcpy(c->memory + to * c->sequence + at, c->memory + from * c->sequence + at, n);
        at += all;
    }
}
