/* Entries of compressed attention: their memory, and making a group's from its positions. */
#include "infer/compressed.h"

#include <string.h>

#include "base/mem.h"
#include "infer/kv.h"
#include "infer/state.h"
#include "model/config.h"

enum { PANEL_FLOATS = MOE_PANEL_ROWS * sizeof(float) };

/* Bytes of each part of a sequence's, in their order. */
struct sizes {
    uint64_t kept, index, keys, values;
};

static struct sizes sizes_of(const struct moe_compressed *c, uint32_t layer,
                             struct moe_compressed_part *part)
{
    const struct moe_config *m = c->config;
    bool chooses = m->layers[layer].compression == MOE_COMPRESS_CHOSEN;
    part->ratio = moe_config_ratio(m, layer);
    part->n_kept = part->ratio * (chooses ? 2 : 1);
    part->n_entries = (uint32_t)moe_padded(c->context / part->ratio + 1);
    uint64_t n = part->n_entries, kept = part->n_kept * moe_compressed_row(m, layer).stride;
    return (struct sizes){
        .kept = moe_round_up(kept * sizeof(float), MOE_ALIGN),
        .index = chooses ? moe_round_up(n * m->index_dim * sizeof(float), MOE_ALIGN) : 0,
        .keys = moe_round_up(n / MOE_PANEL_ROWS * c->kv.key_bytes, MOE_ALIGN),
        .values = moe_round_up(n / MOE_PANEL_ROWS * c->kv.value_bytes, MOE_ALIGN),
    };
}

static uint64_t layer_bytes(const struct moe_compressed *c, uint32_t layer)
{
    struct moe_compressed_part part;
    if (c->config->layers[layer].compression == MOE_COMPRESS_NOT ||
        c->config->layers[layer].elsewhere)
        return 0;
    struct sizes s = sizes_of(c, layer, &part);
    return s.kept + s.index + s.keys + s.values;
}

struct moe_compressed moe_compressed_shape(const struct moe_config *config,
                                           const struct moe_session_options *o)
{
    struct moe_compressed c = {
        .config = config, .kv = moe_kv_chosen_shape(config, o, 1), .context = o->context};
    for (uint32_t layer = 0; layer < config->n_layers; layer++)
        c.sequence += layer_bytes(&c, layer);
    if (!moe_mul_u64(c.sequence, moe_session_states(o), &c.bytes))
        c.bytes = UINT64_MAX;
    return c;
}

struct moe_compressed_row moe_compressed_row(const struct moe_config *c, uint32_t layer)
{
    bool chooses = c->layers[layer].compression == MOE_COMPRESS_CHOSEN;
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

/* ---- Pieces ---- */

/* Of an entry group: bytes of both kinds. */
struct group {
    uint64_t entries, index;
};

static struct group group_of(const struct moe_compressed *c, const struct moe_compressed_part *part)
{
    struct group g = {.entries = c->kv.key_bytes};
    g.index = part->index ? MOE_PANEL_ROWS * c->config->index_dim * sizeof(float) : 0;
    return g;
}

struct moe_compressed_pieces moe_compressed_pieces(const struct moe_compressed *c, uint32_t layer,
                                                   uint32_t n)
{
    if (c->config->layers[layer].compression == MOE_COMPRESS_NOT)
        return (struct moe_compressed_pieces){0};
    const struct moe_compressed_part part = moe_compressed_at(c, 0, layer);
    const struct group g = group_of(c, &part);
    uint32_t before = part.index && n >= part.ratio ? part.ratio : 0; /* groups overlap */
    return (struct moe_compressed_pieces){
        .n_groups = moe_padded(n / part.ratio) / MOE_PANEL_ROWS,
        .group_bytes = g.entries + g.index,
        .n_rows = n % part.ratio + before,
        .row_bytes = moe_compressed_row(c->config, layer).stride * sizeof(float),
    };
}

/* The floats of the position that a piece behind those of entries is of. */
static float *row_of(const struct moe_compressed_part *part,
                     const struct moe_compressed_pieces *all, uint32_t n, uint32_t piece)
{
    uint64_t position = n - all->n_rows + (piece - all->n_groups);
    return part->kept + position % part->n_kept * (all->row_bytes / sizeof(float));
}

void moe_compressed_piece_get(const struct moe_compressed *c, uint32_t sequence, uint32_t layer,
                              uint32_t n, uint32_t piece, uint8_t *to)
{
    const struct moe_compressed_part part = moe_compressed_at(c, sequence, layer);
    const struct moe_compressed_pieces all = moe_compressed_pieces(c, layer, n);
    const struct group g = group_of(c, &part);
    if (piece >= all.n_groups) {
        memcpy(to, row_of(&part, &all, n, piece), all.row_bytes);
        return;
    }
    uint32_t left = n / part.ratio - piece * MOE_PANEL_ROWS;
    uint32_t count = left < MOE_PANEL_ROWS ? left : MOE_PANEL_ROWS;
    memcpy(to, part.keys + piece * g.entries, g.entries);
    moe_kv_clear_keys(c->kv.keys_as, c->kv.key_dim, count, to);
    if (!part.index)
        return;
    memcpy(to + g.entries, (const uint8_t *)part.index + piece * g.index, g.index);
    moe_kv_clear_keys(MOE_LAYOUT_F32, c->config->index_dim, count, to + g.entries);
}

bool moe_compressed_piece_put(const struct moe_compressed *c, uint32_t sequence, uint32_t layer,
                              uint32_t n, uint32_t piece, const uint8_t *from)
{
    const struct moe_compressed_part part = moe_compressed_at(c, sequence, layer);
    const struct moe_compressed_pieces all = moe_compressed_pieces(c, layer, n);
    const struct group g = group_of(c, &part);
    if (piece >= all.n_groups) {
        if (!moe_kv_keys_finite(MOE_LAYOUT_F32, (uint32_t)(all.row_bytes / PANEL_FLOATS), from))
            return false;
        memcpy(row_of(&part, &all, n, piece), from, all.row_bytes);
        return true;
    }
    if (!moe_kv_keys_finite(c->kv.keys_as, c->kv.key_dim, from) ||
        (part.index && !moe_kv_keys_finite(MOE_LAYOUT_F32, c->config->index_dim, from + g.entries)))
        return false;
    const struct moe_kv_cells cells = {part.keys, part.values, part.n_entries};
    memcpy(part.keys + piece * g.entries, from, g.entries);
    for (uint32_t i = 0; i < MOE_PANEL_ROWS; i++)
        moe_kv_value_of_key(&c->kv, &cells, piece * MOE_PANEL_ROWS + i);
    if (part.index)
        memcpy((uint8_t *)part.index + piece * g.index, from + g.entries, g.index);
    return true;
}
