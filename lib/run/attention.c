/*
 * Attention over the KV cache. Scores are the product of the key matrix [positions][key_dim] with
 * queries, the output the product of the value matrix [value_dim][positions] with the shares: both
 * by the kernels that multiply float weights. Up to 8 queries that share keys (neighbouring rows,
 * heads of one group) go through together.
 *
 * A row at position p sees the positions up to p, in a layer with a window of n the last n of
 * these. The softmax of a row runs over exactly what it sees; the products run over what any row of
 * the tile sees, with shares of 0 for the others, which adds nothing.
 */
#include <float.h>
#include <string.h>

#include "base/float16.h"
#include "run/workspace.h"

/* Index of one (layer, sequence, kv head) among all. */
static uint64_t head_index(const struct moe_kv *kv, uint32_t layer, uint32_t sequence,
                           uint32_t head)
{
    return ((uint64_t)layer * kv->n_sequences + sequence) * kv->n_heads + head;
}

static uint8_t *head_keys(const struct moe_kv *kv, uint64_t index)
{
    return kv->keys + index * kv->n_positions * kv->key_dim * kv->item_bytes;
}

static uint8_t *head_values(const struct moe_kv *kv, uint64_t index)
{
    return kv->values + index * kv->n_positions * kv->value_padded * kv->item_bytes;
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
        for (uint32_t head = 0; head < kv->n_heads; head++) {
            const float *k = w->k + (uint64_t)i * w->k_stride + head * kv->key_dim;
            const float *v = w->v + (uint64_t)i * w->v_stride + head * kv->value_dim;
            uint64_t index = head_index(kv, st->layer, st->rows[i].sequence, head);
            uint8_t *keys = head_keys(kv, index), *values = head_values(kv, index);
            for (uint32_t c = 0; c < kv->key_dim; c++)
                put_cell(kv, keys, (position / 16 * kv->key_dim + c) * 16 + position % 16, k[c]);
            for (uint32_t c = 0; c < kv->value_dim; c++)
                put_cell(kv, values, (c / 16 * (uint64_t)kv->n_positions + position) * 16 + c % 16,
                         v[c]);
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

/* Scores of one query: a position each, and room for a sink. */
static uint64_t scores_stride(uint64_t n_positions)
{
    return n_positions + MOE_PANEL_ROWS;
}

uint64_t moe_attention_scratch_floats(const struct moe_config *c, uint32_t context)
{
    uint64_t positions = moe_round_up(context, 16);
    uint64_t query = moe_round_up(moe_config_cache_key(c), 16);
    uint64_t out = moe_round_up(moe_config_cache_value(c), 16);
    return MOE_TILE * (scores_stride(positions) + positions + query + out);
}

uint64_t moe_attention_max_tiles(const struct moe_config *c, uint32_t batch)
{
    /* Every run of rows of one sequence may end in a tile that is not full. */
    return (uint64_t)batch * (c->n_heads / moe_config_cache_heads(c)) / MOE_TILE + batch;
}

struct attend {
    struct moe_session *s;
    uint32_t layer, group; /* heads that share a kv head */
    uint32_t window;       /* 0: all positions */
    const float *sinks;    /* [heads] or NULL */
    const struct moe_row *rows;
};

/* Smallest power of two that holds n; its logarithm. */
static int tile_log2(uint32_t n)
{
    int log2 = 0;
    while (1u << log2 < n)
        log2++;
    return log2;
}

/* Where column t of a tile comes from and what it sees: positions [begin, end). */
struct column {
    uint32_t row, head, begin, end;
};

static struct column column_at(const struct attend *a, const struct moe_attn_tile *tile,
                               uint32_t kv_head, uint32_t t)
{
    struct column col = {
        .row = tile->first_row + (tile->first + t) / a->group,
        .head = kv_head * a->group + (tile->first + t) % a->group,
    };
    col.end = a->rows[col.row].position + 1;
    col.begin = a->window && col.end > a->window ? col.end - a->window : 0;
    return col;
}

/* The shares of what the column sees, in place of its scores. A sink takes one and is dropped. */
static void share(const struct attend *a, const struct column *col, float *scores)
{
    uint32_t n = col->end - col->begin;
    if (a->sinks)
        scores[col->end] = a->sinks[col->head];
    moe_kern.softmax(scores + col->begin, n + (a->sinks ? 1 : 0));
}

static void attend_tile(const struct attend *a, const struct moe_attn_tile *tile, uint32_t kv_head,
                        float *scratch)
{
    struct moe_workspace *w = a->s->work;
    const struct moe_kv *kv = &w->kv;
    float scale = a->s->model->config.attn_scale;
    int form = moe_kern_layout_index(kv->layout.kind), log2 = tile_log2(tile->n);
    uint32_t nt = 1u << log2, first = UINT32_MAX, last = 0; /* what any column sees */
    uint64_t index = head_index(kv, a->layer, a->rows[tile->first_row].sequence, kv_head);
    uint64_t stride = scores_stride(kv->n_positions);
    float *scores = scratch, *shares = scores + MOE_TILE * stride;
    float *query = shares + (uint64_t)MOE_TILE * kv->n_positions;
    float *out = query + MOE_TILE * moe_round_up(kv->key_dim, 16);
    struct column cols[MOE_TILE] = {{0}};

    for (uint32_t t = 0; t < nt; t++) {
        const float *q = NULL;
        if (t < tile->n) {
            cols[t] = column_at(a, tile, kv_head, t);
            q = w->queries + cols[t].row * w->queries_stride + cols[t].head * kv->key_dim;
            first = cols[t].begin < first ? cols[t].begin : first;
            last = cols[t].end > last ? cols[t].end : last;
        }
        for (uint32_t c = 0; c < kv->key_dim; c++)
            query[c * nt + t] = q ? q[c] * scale : 0;
    }
    first -= first % MOE_PANEL_ROWS;

    const uint8_t *keys = head_keys(kv, index);
    struct moe_tile in = {.x = query};
    for (uint32_t p = first; p < last; p += 16)
        moe_kern.panel[form][log2](keys + (uint64_t)p * kv->key_dim * kv->item_bytes, kv->layout,
                                   kv->key_dim, &in, scores + p, stride);
    for (uint32_t t = 0; t < nt; t++) {
        float *s = scores + t * stride;
        if (t < tile->n)
            share(a, &cols[t], s);
        for (uint32_t p = first; p < last; p++)
            shares[(p - first) * nt + t] = p >= cols[t].begin && p < cols[t].end ? s[p] : 0;
    }

    const uint8_t *values = head_values(kv, index);
    in.x = shares;
    for (uint32_t c = 0; c < kv->value_padded; c += 16)
        moe_kern.panel[form][log2](values + ((uint64_t)c * kv->n_positions + (uint64_t)first * 16) *
                                                kv->item_bytes,
                                   kv->layout, last - first, &in, out + c, kv->value_padded);
    for (uint32_t t = 0; t < tile->n; t++)
        memcpy(w->attended + cols[t].row * w->attended_stride + cols[t].head * kv->value_dim,
               out + t * kv->value_padded, kv->value_dim * sizeof(float));
}

static void attend_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct attend *a = ctx;
    const struct moe_workspace *w = a->s->work;
    for (int64_t i = begin; i < end; i++)
        attend_tile(a, &w->tiles[i / w->kv.n_heads], (uint32_t)(i % w->kv.n_heads),
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
        .group = c->n_heads / s->work->kv.n_heads,
        .window = c->layer_is_windowed[layer] ? c->window : 0,
        .sinks = s->model->layers[layer].sinks,
        .rows = rows,
    };
    uint32_t n_tiles = make_tiles(s->work->tiles, rows, n_rows, a.group);
    moe_par_for((int64_t)n_tiles * s->work->kv.n_heads, 1, attend_range, &a);
}
