/*
 * KV cache: its shape and size, where keys and values lie, storing them. The same on every device.
 *
 * It is laid out as float weight panels (quant/layout.h), so that attention is two panel products:
 *   keys    a matrix [positions][key_dim]: per layer, sequence and kv head, panels of 16 positions
 *   values  a matrix [value_dim][positions]: per layer, sequence and kv head, panels of 16
 *           dimensions
 * Heads and widths are the cache's (moe_config_cache_heads and its neighbours).
 */
#ifndef MOE_RUN_KV_H
#define MOE_RUN_KV_H

#include <stdint.h>

#include "model/config.h"
#include "quant/layout.h"

struct moe_row;

struct moe_kv {
    uint8_t *keys, *values;
    struct moe_layout layout; /* f32 or f16 */
    uint32_t item_bytes;      /* of a cell: 4 or 2 */
    uint32_t n_positions;     /* context rounded up to 16 */
    uint32_t key_dim, value_dim;
    uint32_t value_padded; /* rounded up to 16 */
    uint32_t n_heads, n_sequences;
    uint64_t bytes; /* of both arrays; UINT64_MAX: it overflows */
};

/* A cache without memory. kind: MOE_LAYOUT_F32 or MOE_LAYOUT_F16. */
struct moe_kv moe_kv_shape(const struct moe_config *config, uint32_t context, uint32_t n_sequences,
                           uint16_t kind);
/* Its arrays lie in kv->bytes of memory. */
void moe_kv_place(struct moe_kv *kv, uint8_t *memory);

/* The keys, or the values, of one layer, sequence and kv head. */
uint8_t *moe_kv_keys(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t head);
uint8_t *moe_kv_values(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t head);

/* Floats from one row to the next of what attention computes on its way into the cache and out of
 * it: the products q, q_down, k and v; queries and attended as the cache's heads see them (without
 * latent attention these are q and out); its output. */
struct moe_attention_strides {
    uint64_t q, q_down, k, v, queries, attended, out;
};
struct moe_attention_strides moe_attention_strides(const struct moe_config *config);

/* What is stored for each row: [n_rows][stride], the heads side by side. */
struct moe_kv_input {
    const float *keys, *values;
    uint64_t keys_stride, values_stride;
};
/* Stores the rows' keys (after rope) and values of one layer, at their positions. */
void moe_kv_store(const struct moe_kv *kv, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, const struct moe_kv_input *in);

#endif
