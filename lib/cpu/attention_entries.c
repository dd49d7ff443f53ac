/* Attention to the entries of layers that compress: chunks that follow those of the KV cache
 * (attention.c). Where rows choose, each row's entries are put together first. */
#include <string.h>

#include "cpu/attention_tile.h"

uint64_t moe_attend_entries_floats(const struct moe_config *c)
{
    return c->index_top ? CHUNK * (moe_padded(c->head_dim) + moe_padded(c->value_dim)) : 0;
}

static void attend_all(const struct attend *a, struct tile *tile,
                       const struct moe_compressed_part *part)
{
    struct span sees[MOE_TILE] = {{0, 0}}, seen[MOE_TILE];
    uint64_t panel = (uint64_t)MOE_PANEL_ROWS * a->kv->item_bytes;
    uint32_t n = 0;
    for (uint32_t t = 0; t < tile->n; t++) {
        sees[t].end = moe_compressed_seen(part->ratio, a->rows[tile->cols[t].row].position);
        n = sees[t].end > n ? sees[t].end : n;
    }
    for (uint32_t base = 0; base < n; base += CHUNK) {
        const struct chunk chunk = {
            .keys = part->keys + (uint64_t)base * a->kv->key_dim * a->kv->item_bytes,
            .values = part->values + base * panel,
            .value_stride = part->n_entries * panel,
        };
        for (uint32_t t = 0; t < tile->nt; t++)
            seen[t] = moe_span_in_chunk(sees[t], base);
        moe_attend_chunk(a, tile, &chunk, base, seen);
    }
}

/* Entry `from` of the part becomes entry `to` of a chunk. */
static void copy_entry(const struct moe_kv *kv, const struct moe_compressed_part *part,
                       uint32_t from, uint32_t to, uint8_t *keys, uint8_t *values)
{
    uint64_t item = kv->item_bytes, panel = MOE_PANEL_ROWS * item;
    const uint8_t *key = part->keys + from / 16 * kv->key_dim * panel + from % 16 * item;
    uint8_t *to_key = keys + to / 16 * kv->key_dim * panel + to % 16 * item;
    for (uint32_t c = 0; c < kv->key_dim; c++)
        memcpy(to_key + c * panel, key + c * panel, item);
    for (uint32_t c = 0; c < kv->value_padded / MOE_PANEL_ROWS; c++)
        memcpy(values + ((uint64_t)c * CHUNK + to) * panel,
               part->values + ((uint64_t)c * part->n_entries + from) * panel, panel);
}

/* Of one row, the tile's columns [first, end). */
static void attend_chosen(const struct attend *a, struct tile *tile,
                          const struct moe_compressed_part *part, uint32_t first, uint32_t end,
                          uint32_t top, float *scratch)
{
    uint32_t row = tile->cols[first].row, n = a->chosen->n_chosen[row];
    const uint32_t *chosen = a->chosen->chosen + (uint64_t)row * top;
    uint8_t *keys = (uint8_t *)scratch;
    uint8_t *values = (uint8_t *)(scratch + CHUNK * moe_padded(a->kv->key_dim));
    const struct chunk chunk = {keys, values, (uint64_t)CHUNK * 16 * a->kv->item_bytes};
    for (uint32_t base = 0; base < n; base += CHUNK) {
        struct span seen[MOE_TILE] = {{0, 0}};
        uint32_t count = n - base < CHUNK ? n - base : CHUNK;
        for (uint32_t i = 0; i < count; i++)
            copy_entry(a->kv, part, chosen[base + i], i, keys, values);
        for (uint32_t t = first; t < end; t++)
            seen[t].end = count;
        moe_attend_chunk(a, tile, &chunk, base, seen);
    }
}

void moe_attend_entries(const struct attend *a, struct tile *tile, float *scratch)
{
    const struct moe_compressed_part part =
        moe_compressed_at(a->compressed, tile->sequence, a->layer);
    if (!a->chosen) {
        attend_all(a, tile, &part);
        return;
    }
    for (uint32_t first = 0, end; first < tile->n; first = end) {
        for (end = first + 1; end < tile->n && tile->cols[end].row == tile->cols[first].row;)
            end++;
        attend_chosen(a, tile, &part, first, end, a->compressed->config->index_top, scratch);
    }
}
