/*
 * Attention over the KV cache, or of a decoder's rows to the sources that an encoder computed
 * (run/source.h), each row then to all of its sequence's source. Scores are products of the key
 * matrix [positions][key_dim] with queries, outputs products of the value matrix
 * [value_dim][positions] with e to the scores: both by the kernels that multiply float weights. Up
 * to 8 queries that share keys (neighbouring rows, heads of one group) are computed together.
 *
 * A row at position p sees the positions up to p, in a layer with a window of n the last n of
 * these, or with window_chunks those from the last multiple of n on; in an encoder all of its
 * source, in a prompt with prefix_lm also all of its prefix (run/source.h). They are taken in
 * chunks: chunk c begins at position c * MOE_ATTENTION_CHUNK. So scratch memory does not grow with
 * the context, a device that computes chunks side by side gets the same bits, and chunks may lie
 * anywhere (kv.h, blocks). For a row and a head, with the query times attn_scale (each value
 * rounded):
 *
 *   score    s_p = the panel product of key p and the query: one fma chain over key_dim
 *   bias     s_p = s_p + b[head][p - position], rounded: where positions are known by buckets, in
 *            attention of a text to itself (model/positions.h)
 *   chunk    of each in which the row sees a position, over those it sees:
 *              m = the largest s_p, e_p = moe_expf(s_p - m)
 *              sum = the 16-lane sum of e_p, lane = place in the chunk % 16, by the fixed tree
 *              o[d] = fma(v_p[d], e_p, o[d]) by rising p, from 0
 *   joined   by rising c into M, S, O. The first: M = m, S = sum, O = o. Then, when m > M:
 *              a = moe_expf(M - m), M = m, S = fma(S, a, sum), O[d] = fma(O[d], a, o[d]);
 *            else: b = moe_expf(m - M), S = fma(sum, b, S), O[d] = fma(o[d], b, O[d])
 *   entries  of a layer that compresses follow, by the same rules in chunks of their own: all that
 *            the row sees, or the chosen ones, by rising number (layer/compressed.h)
 *   sink     joined last, as a chunk with m = the sink, sum = 1, o = 0
 *   result   O[d] / S
 *
 * The products run over what any row of the tile sees, with e = 0 for the rows that do not: values
 * are finite (kv.c, put_cell), so that adds nothing; it could only change the sign of an output
 * that is zero.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "cpu/attention_tile.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

uint64_t moe_attention_scratch_floats(const struct moe_config *c)
{
    uint64_t key = moe_config_cache_key(c), value = moe_config_cache_value(c);
    key = key > c->global_head_dim ? key : c->global_head_dim;
    value = moe_round_up(value > c->global_head_dim ? value : c->global_head_dim, 16);
    return MOE_TILE * (2 * CHUNK + moe_round_up(key, 16) + 2 * value) +
           moe_attend_entries_floats(c);
}

uint64_t moe_attention_max_tiles(const struct moe_config *c, uint32_t batch)
{
    /* Every run of rows of one sequence may end in a tile that is not full. */
    uint32_t heads = moe_config_cache_heads(c);
    if (c->global_kv_heads && c->global_kv_heads < heads)
        heads = c->global_kv_heads;
    return (uint64_t)batch * (c->n_heads / heads) / MOE_TILE + batch;
}

/* Whose keys a row's queries meet. */
static uint32_t keys_of(const struct attend *a, const struct moe_row *r)
{
    return a->attends ? a->attends[r->sequence] : r->sequence;
}

/* The end of the positions that a row sees. */
static uint32_t sees_up_to(const struct attend *a, const struct moe_row *r)
{
    uint32_t end = r->position + 1;
    if (a->sources)
        return a->sources[keys_of(a, r)].length;
    uint32_t more = a->encoder ? r->length : a->prompts ? a->prompts[r->sequence].prefix : 0;
    return more > end ? more : end;
}

static uint32_t sees_from(const struct attend *a, uint32_t end)
{
    if (a->window == 0 || end <= a->window)
        return 0;
    return a->window_chunks ? (end - 1) / a->window * a->window : end - a->window;
}

static void open_column(const struct attend *a, const struct moe_attn_tile *from, uint32_t kv_head,
                        uint32_t t, struct tile *tile)
{
    uint32_t row = from->first_row + (from->first + t) / a->group;
    uint32_t head = kv_head * a->group + (from->first + t) % a->group;
    uint32_t end = sees_up_to(a, &a->rows[row]), key_dim = a->kv->key_dim;
    const float *q =
        a->work->queries + (a->first + row) * a->work->stride.queries + (uint64_t)head * key_dim;
    tile->cols[t] = (struct column){.row = row, .head = head};
    tile->sees[t] = (struct span){sees_from(a, end), end};
    for (uint32_t c = 0; c < key_dim; c++)
        tile->query[c * tile->nt + t] = q[c] * a->scale;
}

static void open_tile(const struct attend *a, const struct moe_attn_tile *from, uint32_t kv_head,
                      float *scratch, struct tile *tile)
{
    const struct moe_kv *kv = a->kv;
    *tile = (struct tile){
        .n = from->n,
        .nt = 1u << moe_tile_log2(from->n),
        .sequence = keys_of(a, &a->rows[from->first_row]),
        .kv_head = kv_head,
        .scores = scratch,
        .shares = scratch + MOE_TILE * CHUNK,
        .part = scratch + MOE_TILE * 2 * CHUNK,
    };
    tile->out = tile->part + (uint64_t)MOE_TILE * kv->value_padded;
    tile->query = tile->out + (uint64_t)MOE_TILE * kv->value_padded;
    for (uint32_t t = 0; t < tile->n; t++)
        open_column(a, from, kv_head, t, tile);
    for (uint32_t t = tile->n; t < tile->nt; t++)
        for (uint32_t c = 0; c < kv->key_dim; c++)
            tile->query[c * tile->nt + t] = 0;
}

/* The chunk of the KV cache that starts at position `base`. */
static void attend_cached(const struct attend *a, struct tile *tile, uint32_t base)
{
    const struct moe_kv *kv = a->kv;
    struct span seen[MOE_TILE];
    for (uint32_t t = 0; t < tile->nt; t++)
        seen[t] = moe_span_in_chunk(tile->sees[t], base);
    if (moe_span_hull(seen, tile->n).end == 0) /* rows far apart, with a window */
        return;
    uint32_t block = moe_kv_block(kv, tile->sequence, base);
    const struct chunk chunk = {
        .keys = moe_kv_keys(kv, a->layer, block, tile->kv_head),
        .values = moe_kv_values(kv, a->layer, block, tile->kv_head),
        .value_stride = (uint64_t)kv->block_positions * MOE_PANEL_ROWS * kv->item_bytes,
    };
    moe_attend_chunk(a, tile, &chunk, base, seen);
}

/* Joins the sink and divides. */
static void close_column(const struct attend *a, struct tile *tile, uint32_t t)
{
    struct column *col = &tile->cols[t];
    uint32_t n = a->kv->value_dim;
    float *part = tile->part + (uint64_t)t * a->kv->value_padded;
    float *out = tile->out + (uint64_t)t * a->kv->value_padded;
    if (a->sinks) {
        memset(part, 0, n * sizeof *part);
        moe_attend_join(col, a->sinks[col->head], 1, part, n, out);
    }
    uint64_t row = (uint64_t)a->first + col->row;
    float *to = a->work->attended + row * a->work->stride.attended + (uint64_t)col->head * n;
    for (uint32_t d = 0; d < n; d++)
        to[d] = out[d] / col->sum;
}

static void attend_tile(const struct attend *a, const struct moe_attn_tile *from, uint32_t kv_head,
                        float *scratch)
{
    struct tile tile;
    open_tile(a, from, kv_head, scratch, &tile);
    struct span all = moe_span_hull(tile.sees, tile.n);
    for (uint32_t base = all.begin / CHUNK * CHUNK; base < all.end; base += CHUNK)
        attend_cached(a, &tile, base);
    if (a->compressed)
        moe_attend_entries(a, &tile, tile.query + (uint64_t)MOE_TILE * moe_padded(a->kv->key_dim));
    for (uint32_t t = 0; t < tile.n; t++)
        close_column(a, &tile, t);
}

static void attend_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct attend *a = ctx;
    uint32_t n_heads = a->kv->n_heads;
    for (int64_t i = begin; i < end; i++)
        attend_tile(a, &a->work->tiles[i / n_heads], (uint32_t)(i % n_heads),
                    a->work->scratch + (uint64_t)thread * a->work->scratch_floats);
}

/* Cuts the batch into runs of rows that share keys, and these into tiles. */
static uint32_t make_tiles(const struct attend *a, uint32_t n_rows)
{
    struct moe_attn_tile *tiles = a->work->tiles;
    const struct moe_row *rows = a->rows;
    uint32_t n = 0;
    for (uint32_t first = 0, end; first < n_rows; first = end) {
        for (end = first + 1; end < n_rows && keys_of(a, &rows[end]) == keys_of(a, &rows[first]);)
            end++;
        uint32_t columns = (end - first) * a->group;
        for (uint32_t c = 0; c < columns; c += MOE_TILE)
            tiles[n++] = (struct moe_attn_tile){
                .first_row = first,
                .first = c,
                .n = columns - c < MOE_TILE ? columns - c : MOE_TILE,
            };
    }
    return n;
}

static void run(const struct attend *a, uint32_t n_rows)
{
    uint32_t n_tiles = make_tiles(a, n_rows);
    moe_par_for((int64_t)n_tiles * a->kv->n_heads, 1, attend_range, (void *)a);
}

void moe_attention_rows(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                        uint32_t first, uint32_t n_rows, const struct moe_kv *chosen)
{
    const struct moe_model *m = s->model;
    const struct moe_config *c = &m->config;
    const struct cpu_work *w = s->device;
    bool encoder = moe_config_in_encoder(c, layer);
    const struct moe_kv all = moe_kv_of_layer(encoder ? &w->source_kv : &w->kv, layer);
    const struct moe_kv kv = chosen ? *chosen : all;
    struct attend a = {
        .kv = &kv,
        .work = &w->attention,
        .scale = c->attn_scale,
        .layer = encoder ? c->n_encoder : layer,
        .group = c->n_heads / kv.n_heads,
        .window = c->layer_is_windowed[layer] ? c->window : 0,
        .window_chunks = c->window_chunks,
        .sinks = m->layers[layer].sinks,
        .rows = rows,
        .first = first,
        .encoder = encoder,
        .prompts = s->prompts,
        .compressed = c->layer_compresses[layer] ? &w->compressed : NULL,
        .chosen = c->layer_compresses[layer] == MOE_COMPRESS_CHOSEN ? &w->entries : NULL,
    };
    a.bias = moe_model_position_bias(m, layer, &a.bias_stride);
    run(&a, n_rows);
}

void moe_attention_cross(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct cpu_work *w = s->device;
    const struct attend a = {
        .kv = &w->source_kv,
        .work = &w->attention,
        .scale = c->attn_scale,
        .layer = layer,
        .group = c->n_heads / w->source_kv.n_heads,
        .rows = rows,
        .attends = s->attends,
        .sources = s->sources,
    };
    run(&a, n_rows);
}
