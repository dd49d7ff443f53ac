#include "run/kv.h"

#include <float.h>

#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "run/session.h"

struct moe_kv moe_kv_shape(const struct moe_config *c, uint32_t context, uint32_t n_sequences,
                           uint16_t kind)
{
    struct moe_kv kv = {
        .n_positions = (uint32_t)moe_padded(context),
        .key_dim = moe_config_cache_key(c),
        .value_dim = moe_config_cache_value(c),
        .value_padded = (uint32_t)moe_padded(moe_config_cache_value(c)),
        .n_heads = moe_config_cache_heads(c),
        .n_sequences = n_sequences,
        .layout = {kind, 0},
        .item_bytes = (uint32_t)moe_layout_bits(kind) / 8,
    };
    uint64_t heads = (uint64_t)c->n_layers * n_sequences * kv.n_heads;
    uint64_t per_head = (uint64_t)kv.n_positions * (kv.key_dim + kv.value_padded) * kv.item_bytes;
    if (!moe_mul_u64(heads, per_head, &kv.bytes))
        kv.bytes = UINT64_MAX;
    return kv;
}

void moe_kv_place(struct moe_kv *kv, uint8_t *memory)
{
    kv->keys = memory;
    kv->values = memory + kv->bytes / (kv->key_dim + kv->value_padded) * kv->key_dim;
}

/* Index of one (layer, sequence, kv head) among all. */
static uint64_t head_index(const struct moe_kv *kv, uint32_t layer, uint32_t sequence,
                           uint32_t head)
{
    return ((uint64_t)layer * kv->n_sequences + sequence) * kv->n_heads + head;
}

uint8_t *moe_kv_keys(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t head)
{
    uint64_t index = head_index(kv, layer, sequence, head);
    return kv->keys + index * kv->n_positions * kv->key_dim * kv->item_bytes;
}

uint8_t *moe_kv_values(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t head)
{
    uint64_t index = head_index(kv, layer, sequence, head);
    return kv->values + index * kv->n_positions * kv->value_padded * kv->item_bytes;
}

struct moe_attention_strides moe_attention_strides(const struct moe_config *c)
{
    uint32_t heads = moe_config_cache_heads(c);
    return (struct moe_attention_strides){
        .q = moe_padded(c->n_heads * c->head_dim),
        .q_down = moe_padded(c->q_rank),
        .k = moe_padded(heads * moe_config_cache_key(c)),
        /* kv_down's output goes there, too */
        .v = moe_padded(c->kv_rank ? c->kv_rank + c->rope_dim : heads * moe_config_cache_value(c)),
        .queries = moe_padded(c->n_heads * moe_config_cache_key(c)),
        .attended = moe_padded(c->n_heads * moe_config_cache_value(c)),
        .out = moe_padded(c->n_heads * c->value_dim),
    };
}

/* ---- Storing ---- */

struct store {
    const struct moe_kv *kv;
    uint32_t layer;
    const struct moe_row *rows;
    const struct moe_kv_input *in;
};

/* Writes cell `c` of a head's keys or values. It is kept finite: an infinity in a cell that a row
 * masks would still make 0 * infinity there. */
static void put_cell(const struct moe_kv *kv, uint8_t *cells, uint64_t c, float v)
{
    if (kv->layout.kind == MOE_LAYOUT_F32)
        ((float *)(void *)cells)[c] = v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
    else
        ((uint16_t *)(void *)cells)[c] = moe_f32_to_f16(v > 65504.0f    ? 65504.0f
                                                        : v < -65504.0f ? -65504.0f
                                                                        : v);
}

static void store_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct store *st = ctx;
    const struct moe_kv *kv = st->kv;
    for (int64_t i = begin; i < end; i++) {
        uint64_t position = st->rows[i].position;
        uint32_t sequence = st->rows[i].sequence;
        for (uint32_t head = 0; head < kv->n_heads; head++) {
            const float *k = st->in->keys + (uint64_t)i * st->in->keys_stride + head * kv->key_dim;
            const float *v =
                st->in->values + (uint64_t)i * st->in->values_stride + head * kv->value_dim;
            uint8_t *keys = moe_kv_keys(kv, st->layer, sequence, head);
            uint8_t *values = moe_kv_values(kv, st->layer, sequence, head);
            for (uint32_t c = 0; c < kv->key_dim; c++)
                put_cell(kv, keys, (position / 16 * kv->key_dim + c) * 16 + position % 16, k[c]);
            for (uint32_t c = 0; c < kv->value_dim; c++)
                put_cell(kv, values, (c / 16 * (uint64_t)kv->n_positions + position) * 16 + c % 16,
                         v[c]);
        }
    }
}

void moe_kv_store(const struct moe_kv *kv, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, const struct moe_kv_input *in)
{
    struct store st = {kv, layer, rows, in};
    moe_par_for(n_rows, 8, store_rows, &st);
}
