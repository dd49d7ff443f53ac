/*
 * Attention over the KV cache. Scores are the product of the key matrix [positions][head_dim] with
 * queries, the output the product of the value matrix [head_dim][positions] with the shares: both
 * by the kernels that multiply float weights. Up to 8 queries that share keys (neighbouring rows,
 * heads of one group) go through together.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/float16.h"
#include "run/workspace.h"

/* Index of one (layer, sequence, kv head) among all. */
static uint64_t head_index(const struct moe_kv *kv, uint32_t layer, uint32_t sequence,
                           uint32_t head)
{
    return ((uint64_t)layer * kv->n_sequences + sequence) * kv->n_kv_heads + head;
}

static uint8_t *head_keys(const struct moe_kv *kv, uint64_t index)
{
    return kv->keys + index * kv->n_positions * kv->head_dim * kv->item_bytes;
}

static uint8_t *head_values(const struct moe_kv *kv, uint64_t index)
{
    return kv->values + index * kv->n_positions * kv->head_padded * kv->item_bytes;
}

/* ---- Storing ----------------------------------------------------------------------------------
 */

struct store {
    struct moe_session *s;
    uint32_t layer;
    const struct moe_row *rows;
};

/* Writes cell `c` of a head's keys or values: kept finite, for an infinity in a cell that a row
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
    const struct moe_workspace *w = st->s->work;
    const struct moe_kv *kv = &w->kv;
    for (int64_t i = begin; i < end; i++) {
        uint64_t position = st->rows[i].position;
        for (uint32_t head = 0; head < kv->n_kv_heads; head++) {
            const float *k = w->k + (uint64_t)i * w->kv_stride + head * kv->head_dim;
            const float *v = w->v + (uint64_t)i * w->kv_stride + head * kv->head_dim;
            uint64_t index = head_index(kv, st->layer, st->rows[i].sequence, head);
            uint8_t *keys = head_keys(kv, index), *values = head_values(kv, index);
            for (uint32_t c = 0; c < kv->head_dim; c++) {
                put_cell(kv, keys, (position / 16 * kv->head_dim + c) * 16 + position % 16, k[c]);
                put_cell(kv, values, (c / 16 * (uint64_t)kv->n_positions + position) * 16 + c % 16,
                         v[c]);
            }
        }
    }
}

void moe_kv_store(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows)
{
    struct store st = {s, layer, rows};
    moe_par_for(n_rows, 8, store_rows, &st);
}

/* ---- Attending ---------------------------------------------------------------------------------
 */

uint64_t moe_attention_scratch_floats(const struct moe_config *c, uint32_t context)
{
    uint64_t positions = moe_round_up(context, 16), head = moe_round_up(c->head_dim, 16);
    return MOE_TILE * (2 * positions + 2 * head);
}

uint64_t moe_attention_max_tiles(const struct moe_config *c, uint32_t batch)
{
    /* Every run of rows of one sequence may end in a tile that is not full. */
    return (uint64_t)batch * (c->n_heads / c->n_kv_heads) / MOE_TILE + batch;
}

struct attend {
    struct moe_session *s;
    uint32_t layer, group; /* heads that share a kv head */
    const struct moe_row *rows;
    float scale;
};

/* Smallest power of two that holds n; its logarithm. */
static int tile_log2(uint32_t n)
{
    int log2 = 0;
    while (1u << log2 < n)
        log2++;
    return log2;
}

static void attend_tile(const struct attend *a, const struct moe_attn_tile *tile, uint32_t kv_head,
                        float *scratch)
{
    struct moe_workspace *w = a->s->work;
    const struct moe_kv *kv = &w->kv;
    int form = moe_kern_layout_index(kv->layout.kind), log2 = tile_log2(tile->n);
    uint32_t nt = 1u << log2, longest = 0;
    uint64_t index = head_index(kv, a->layer, a->rows[tile->first_row].sequence, kv_head);
    uint64_t stride = kv->n_positions;
    float *scores = scratch, *shares = scores + MOE_TILE * stride;
    float *query = shares + MOE_TILE * stride, *out = query + MOE_TILE * kv->head_padded;
    uint32_t length[MOE_TILE] = {0};

    for (uint32_t t = 0; t < nt; t++) {
        uint32_t row = tile->first_row + (tile->first + t) / a->group;
        uint32_t head = kv_head * a->group + (tile->first + t) % a->group;
        const float *q = w->q + row * w->q_stride + head * kv->head_dim;
        bool real = t < tile->n;
        for (uint32_t c = 0; c < kv->head_dim; c++)
            query[c * nt + t] = real ? q[c] * a->scale : 0;
        length[t] = real ? a->rows[row].position + 1 : 0;
        if (length[t] > longest)
            longest = length[t];
    }

    const uint8_t *keys = head_keys(kv, index);
    struct moe_tile in = {.x = query};
    for (uint32_t p = 0; p < longest; p += 16)
        moe_kern.panel[form][log2](keys + (uint64_t)p * kv->head_dim * kv->item_bytes, kv->layout,
                                   kv->head_dim, &in, scores + p, stride);
    for (uint32_t t = 0; t < nt; t++) {
        float *s = scores + t * stride;
        if (length[t])
            moe_kern.softmax(s, length[t]);
        for (uint32_t p = 0; p < longest; p++)
            shares[p * nt + t] = p < length[t] ? s[p] : 0;
    }

    const uint8_t *values = head_values(kv, index);
    in.x = shares;
    for (uint32_t c = 0; c < kv->head_padded; c += 16)
        moe_kern.panel[form][log2](values + (uint64_t)c * kv->n_positions * kv->item_bytes,
                                   kv->layout, longest, &in, out + c, kv->head_padded);
    for (uint32_t t = 0; t < tile->n; t++) {
        uint32_t row = tile->first_row + (tile->first + t) / a->group;
        uint32_t head = kv_head * a->group + (tile->first + t) % a->group;
        memcpy(w->attn + row * w->q_stride + head * kv->head_dim, out + t * kv->head_padded,
               kv->head_dim * sizeof(float));
    }
}

static void attend_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct attend *a = ctx;
    const struct moe_workspace *w = a->s->work;
    for (int64_t i = begin; i < end; i++)
        attend_tile(a, &w->tiles[i / w->kv.n_kv_heads], (uint32_t)(i % w->kv.n_kv_heads),
                    w->scratch + (uint64_t)thread * w->scratch_floats);
}

/* Cuts the batch into runs of rows of one sequence, and these into tiles. */
static uint32_t make_tiles(struct moe_attn_tile *tiles, const struct moe_row *rows, uint32_t n_rows,
                           uint32_t group)
{
    uint32_t n = 0;
    for (uint32_t first = 0, end; first < n_rows; first = end) {
        for (end = first + 1; end < n_rows && rows[end].sequence == rows[first].sequence;)
            end++;
        uint32_t columns = (end - first) * group;
        for (uint32_t c = 0; c < columns; c += MOE_TILE)
            tiles[n++] = (struct moe_attn_tile){
                .first_row = first,
                .first = c,
                .n = columns - c < MOE_TILE ? columns - c : MOE_TILE,
            };
    }
    return n;
}

void moe_attention(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                   uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    struct attend a = {
        .s = s,
        .layer = layer,
        .group = c->n_heads / c->n_kv_heads,
        .rows = rows,
        .scale = 1.0f / sqrtf((float)c->head_dim),
    };
    uint32_t n_tiles = make_tiles(s->work->tiles, rows, n_rows, a.group);
    moe_par_for((int64_t)n_tiles * c->n_kv_heads, 1, attend_range, &a);
}
