/*
 * Attention over the KV cache, or of a decoder's rows to the sources that an encoder computed
 * (infer/forward.h), each row then to all of its sequence's source. Scores are products of the key
 * matrix [positions][key_dim] with queries, outputs products of the value matrix
 * [value_dim][positions] with e to the scores: both by the kernels that multiply float weights. Up
 * to 8 queries that share keys (neighbouring rows, heads of one group) are computed together.
 *
 * A row at position p sees the positions up to p, in a layer with a window of n the last n of
 * these, or with window_chunks those from the last multiple of n on; in an encoder all of its
 * source, in a block that a head drafts all of this, too, in a prompt with prefix_lm also all of
 * its prefix (infer/forward.h). They are taken in chunks: chunk c begins at position c *
 * MOE_ATTENTION_CHUNK. So scratch memory does not grow with the context, a device that computes
 * chunks side by side gets the same bits, and chunks may lie anywhere (kv.h, blocks). For a row and
 * a head, with the query times attn_scale (each value rounded):
 *
 *   score    s_p = the panel product of key p and the query: one fma chain over key_dim
 *   cap      s_p = cap * tanh(s_p * (1 / cap)), where there is one
 *   bias     s_p = s_p + b[head][p - position], rounded: where positions are known by buckets, in
 *            attention of a text to itself (model/rope.h). Where queries make their biases
 *            (Inkling), for each number r[i] of the row and head by rising i s_p = fma(r[i],
 *            profile[i][position - p], s_p), as far as profiles go
 *   chunk    of each in which the row sees a position, over those it sees:
 *              m = the largest s_p, e_p = moe_expf(s_p - m)
 *              sum = the 16-lane sum of e_p, lane = place in the chunk % 16, by the fixed tree
 *              o[d] = fma(v_p[d], e_p, o[d]) by rising p, from 0
 *   joined   by rising c into M, S, O. The first: M = m, S = sum, O = o. Then, when m > M:
 *              a = moe_expf(M - m), M = m, S = fma(S, a, sum), O[d] = fma(O[d], a, o[d]);
 *            else: b = moe_expf(m - M), S = fma(sum, b, S), O[d] = fma(o[d], b, O[d])
 *   entries  of a layer that compresses follow, by the same rules in chunks of their own: all that
 *            the row sees, or the chosen ones, by rising number (infer/compressed.h)
 *   sink     joined last, as a chunk with m = the sink, sum = 1, o = 0
 *   result   O[d] / S
 *
 * Where keys are codes of 8 or 4 bits, these are of keys turned by a Hadamard rotation (`turn` of
 * kern/kern.h), and the query is turned likewise before anything else: products are the same, and
 * no dimension is much larger than the others. Where values are codes, the result is turned back.
 *
 * The products run over what any row of the tile sees, with e = 0 for the rows that do not: values
 * are finite (kv.c), so that adds nothing; it could only change the sign of an output
 * that is zero.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "infer/cpu_stages.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

/* ---- A tile: up to 8 queries that share keys, computed chunk by chunk ---- */

enum { CHUNK = MOE_ATTENTION_CHUNK };

struct attend {
    const struct moe_kv *kv;
    const struct cpu_attention *work;
    uint64_t room_floats;  /* of a tile's room */
    float scale, cap;      /* cap 0: none */
    uint32_t layer, group; /* heads that share a kv head */
    uint32_t window;       /* 0: all positions */
    bool window_chunks;    /* it begins at its multiples */
    const float *sinks;    /* [heads] or NULL */
    bool own_sinks;        /* rows have theirs */
    const struct moe_row *rows;
    uint32_t first;                   /* the row of the pass that rows[0] is */
    bool whole;                       /* rows see all of their source, or block */
    const struct moe_prompt *prompts; /* of sequences, whose prefixes are seen; NULL: none */
    const float *bias;     /* of distance 0 and head 0, or NULL; distances lie side by side */
    uint64_t bias_stride;  /* from head to head */
    const float *profiles; /* of biases that queries make, [rel_dim][extent], or NULL */
    uint32_t rel_dim, extent;
    /* Attention to sources: the one of each sequence, whose keys they are; NULL: to the text. */
    const uint32_t *attends;
    const struct moe_encoded *sources;
    const struct moe_compressed *compressed; /* of a layer that compresses, or NULL */
    const struct cpu_entries *chosen;        /* ... rows chose some of these, or NULL */
};

/* Positions [begin, end), or places in a chunk; empty: 0, 0. */
struct span {
    uint32_t begin, end;
};

/* A head of a row, and its chunks joined so far. */
struct column {
    uint32_t row, head;
    float largest, sum; /* M, S; sum 0: no chunk yet */
};

/* Columns that share keys, at work. */
struct tile {
    uint32_t n, nt; /* columns; with those that fill it up and see nothing */
    struct column cols[MOE_TILE];
    struct span sees[MOE_TILE]; /* positions */
    uint32_t sequence, kv_head;
    float *query;  /* [key_dim][nt] */
    float *scores; /* [nt][CHUNK] */
    float *shares; /* [CHUNK][nt] e, from the first panel that a column sees on; nt > 1 */
    float *part;   /* [nt][value_padded] a chunk's o */
    float *out;    /* [nt][value_padded] O */
    float *room;   /* scales of codes (kv.h) */
};

/* A chunk's keys and values: those from place `first` on. */
struct chunk {
    struct moe_kv_cells cells;
    uint32_t first;
};

/* The logarithm of the smallest power of two that is at least n. */
static int tile_log2(uint32_t n)
{
    int log2 = 0;
    while (1u << log2 < n)
        log2++;
    return log2;
}

/* The smallest span that covers those that are not empty. */
static struct span span_hull(const struct span *spans, uint32_t n)
{
    struct span all = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        if (spans[i].end == 0)
            continue;
        all.begin = all.end == 0 || spans[i].begin < all.begin ? spans[i].begin : all.begin;
        all.end = spans[i].end > all.end ? spans[i].end : all.end;
    }
    return all;
}

/* The part of `sees` in the chunk that starts at position `base`, as places in it. */
static struct span span_in_chunk(struct span sees, uint32_t base)
{
    uint32_t begin = sees.begin > base ? sees.begin - base : 0;
    uint32_t end = sees.end > base ? sees.end - base : 0;
    end = end < CHUNK ? end : CHUNK;
    return begin < end ? (struct span){begin, end} : (struct span){0, 0};
}

/* Joins a chunk of a column, its o at `part`, to what was joined to `out` before. */
static void attend_join(struct column *col, float largest, float sum, float *part, uint32_t n,
                        float *out)
{
    if (col->sum == 0) {
        memcpy(out, part, n * sizeof *out);
        col->sum = sum;
        col->largest = largest;
    } else if (largest > col->largest) {
        float a = moe_expf(col->largest - largest);
        moe_kern.axpy(a, out, n, part);
        memcpy(out, part, n * sizeof *out);
        col->sum = fmaf(col->sum, a, sum);
        col->largest = largest;
    } else {
        float b = moe_expf(largest - col->largest);
        moe_kern.axpy(b, part, n, out);
        col->sum = fmaf(sum, b, col->sum);
    }
}

/* Replaces the scores that a column sees by e, those that only others see by 0; returns the sum. */
static float exp_seen(float *scores, struct span seen, struct span any, float *largest)
{
    if (seen.end == 0) {
        memset(scores + any.begin, 0, (any.end - any.begin) * sizeof *scores);
        return 0;
    }
    memset(scores + any.begin, 0, (seen.begin - any.begin) * sizeof *scores);
    memset(scores + seen.end, 0, (any.end - seen.end) * sizeof *scores);
    return moe_kern.exp_sum(scores, seen.begin, seen.end, largest);
}

/* Adds the bias to the scores that a column sees in the chunk at `base`. */
static void add_bias(const struct attend *a, const struct column *col, uint32_t base,
                     struct span seen, float *scores)
{
    int64_t distance = (int64_t)base + seen.begin - a->rows[col->row].position;
    const float *bias = a->bias + col->head * a->bias_stride + distance;
    moe_kern.add(bias, seen.end - seen.begin, scores + seen.begin);
}

/* The same of biases that the column's query makes, where its profiles reach. */
static void add_own_bias(const struct attend *a, const struct column *col, uint32_t base,
                         struct span seen, float *scores)
{
    uint32_t end = a->rows[col->row].position + 1, first = end > a->extent ? end - a->extent : 0;
    uint32_t begin = first > base + seen.begin ? first - base : seen.begin;
    const float *numbers = a->work->rel + (a->first + (uint64_t)col->row) * a->work->rel_stride +
                           (uint64_t)col->head * a->rel_dim;
    const float *profile = a->profiles + (base + begin + a->extent - end);
    for (uint32_t i = 0; begin < seen.end && i < a->rel_dim; i++, profile += a->extent)
        moe_kern.axpy(numbers[i], profile, seen.end - begin, scores + begin);
}

static void cap_scores(float cap, uint32_t n, float *scores)
{
    moe_kern.scale(1 / cap, n, scores);
    moe_kern.tanh(scores, n, scores);
    moe_kern.scale(cap, n, scores);
}

/* Stores n columns' e side by side, position by position: the writes are contiguous. */
static inline void put_shares(const struct tile *tile, struct span any, uint32_t n)
{
    const float *from = tile->scores + any.begin, *end = tile->scores + any.end;
    for (float *share = tile->shares; from < end; from++, share += n)
        for (uint32_t t = 0; t < n; t++)
            share[t] = from[t * CHUNK];
}

/* Joins a chunk to what the columns of the tile have. base: the position of its first place; seen:
 * [nt] the places that each column sees. */
static void attend_one_chunk(const struct attend *a, struct tile *tile, const struct chunk *chunk,
                             uint32_t base, const struct span *seen)
{
    const struct moe_kv *kv = a->kv;
    const struct moe_layout keys = {kv->keys_as, 0}, values = {kv->values_as, 0};
    int log2 = tile_log2(tile->nt);
    moe_panel_fn *const times_keys = moe_kv_key_product(kv, log2);
    moe_panel_fn *const times_values = moe_kv_value_product(kv, log2);
    float largest[MOE_TILE], sum[MOE_TILE];
    struct span any = span_hull(seen, tile->n);
    if (any.end == 0)
        return;
    any.begin -= any.begin % MOE_PANEL_ROWS;

    struct moe_tile in = {.x = tile->query, .s = tile->room};
    for (uint32_t p = any.begin; p < any.end; p += MOE_PANEL_ROWS)
        times_keys(moe_kv_key_panel(kv, &chunk->cells, chunk->first + p, tile->room), keys,
                   kv->key_dim, &in, tile->scores + p, CHUNK);

    for (uint32_t t = 0; t < tile->nt; t++) {
        float *s = tile->scores + t * CHUNK;
        if (a->cap > 0)
            cap_scores(a->cap, any.end - any.begin, s + any.begin);
        if (a->bias && seen[t].end)
            add_bias(a, &tile->cols[t], base, seen[t], s);
        if (a->profiles && t < tile->n && seen[t].end)
            add_own_bias(a, &tile->cols[t], base, seen[t], s);
        sum[t] = exp_seen(s, seen[t], any, &largest[t]);
    }
    if (tile->nt == MOE_TILE) /* a number that the compiler knows: it shuffles registers */
        put_shares(tile, any, MOE_TILE);
    else if (tile->nt > 1)
        put_shares(tile, any, tile->nt);

    in.x = tile->nt > 1 ? tile->shares : tile->scores + any.begin;
    const uint32_t n = any.end - any.begin;
    for (uint32_t c = 0; c < kv->value_padded; c += MOE_PANEL_ROWS)
        times_values(
            moe_kv_value_panel(kv, &chunk->cells, c, chunk->first + any.begin, n, tile->room),
            values, n, &in, tile->part + c, kv->value_padded);
    for (uint32_t t = 0; t < tile->n; t++)
        if (seen[t].end)
            attend_join(&tile->cols[t], largest[t], sum[t], tile->part + t * kv->value_padded,
                        kv->value_padded, tile->out + t * kv->value_padded);
}

/* ---- Entries of layers that compress: chunks that follow those of the KV cache ----
 * Where rows choose, each row's entries are put together first. */

static uint64_t attend_entries_floats(const struct moe_config *c)
{
    return c->index_top ? CHUNK * (moe_padded(c->head_dim) + moe_padded(c->value_dim)) : 0;
}

static struct moe_kv_cells cells_of(const struct moe_compressed_part *part)
{
    return (struct moe_kv_cells){part->keys, part->values, part->n_entries};
}

static void attend_all(const struct attend *a, struct tile *tile,
                       const struct moe_compressed_part *part)
{
    struct span sees[MOE_TILE] = {{0, 0}}, seen[MOE_TILE];
    uint32_t n = 0;
    for (uint32_t t = 0; t < tile->n; t++) {
        sees[t].end = moe_compressed_seen(part->ratio, a->rows[tile->cols[t].row].position);
        n = sees[t].end > n ? sees[t].end : n;
    }
    for (uint32_t base = 0; base < n; base += CHUNK) {
        const struct chunk chunk = {cells_of(part), base};
        for (uint32_t t = 0; t < tile->nt; t++)
            seen[t] = span_in_chunk(sees[t], base);
        attend_one_chunk(a, tile, &chunk, base, seen);
    }
}

/* Joins the chosen entries of one row, whose columns in the tile are [first, end). */
static void attend_chosen(const struct attend *a, struct tile *tile,
                          const struct moe_compressed_part *part, uint32_t first, uint32_t end,
                          uint32_t top, float *scratch)
{
    uint32_t row = tile->cols[first].row, n = a->chosen->n_chosen[row];
    const uint32_t *chosen = a->chosen->chosen + (uint64_t)row * top;
    uint8_t *values = (uint8_t *)(scratch + CHUNK * moe_padded(a->kv->key_dim));
    const struct chunk chunk = {{(uint8_t *)scratch, values, CHUNK}, 0};
    const struct moe_kv_cells all = cells_of(part);
    for (uint32_t base = 0; base < n; base += CHUNK) {
        struct span seen[MOE_TILE] = {{0, 0}};
        uint32_t count = n - base < CHUNK ? n - base : CHUNK;
        for (uint32_t i = 0; i < count; i++)
            moe_kv_copy(a->kv, &all, chosen[base + i], &chunk.cells, i);
        for (uint32_t t = first; t < end; t++)
            seen[t].end = count;
        attend_one_chunk(a, tile, &chunk, base, seen);
    }
}

/* Joins the entries that rows of a layer that compresses see. scratch: of attend_entries_floats. */
static void attend_entries(const struct attend *a, struct tile *tile, float *scratch)
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

/* ---- Layers ---- */

uint64_t moe_attention_scratch_floats(const struct moe_config *c, uint16_t kv_kind)
{
    uint64_t key = 0, value = 0;
    for (uint32_t layer = 0; layer <= c->n_layers; layer++) { /* the last: one that drafts */
        key = moe_larger(key, moe_config_cache_key(c, layer));
        value = moe_larger(value, moe_round_up(moe_config_cache_value(c, layer), 16));
    }
    return MOE_TILE * (2 * CHUNK + moe_round_up(key, 16) + 2 * value) +
           moe_kv_room_floats(kv_kind, (uint32_t)key) + attend_entries_floats(c);
}

uint64_t moe_attention_max_tiles(const struct moe_config *c, uint32_t batch)
{
    /* Every run of rows of one sequence may end in a tile that is not full. */
    uint32_t group = 1;
    for (uint32_t layer = 0; layer <= c->n_layers; layer++)
        group = (uint32_t)moe_larger(group,
                                     moe_config_heads(c, layer) / moe_config_cache_heads(c, layer));
    return (uint64_t)batch * group / MOE_TILE + batch;
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
    uint32_t more = a->whole ? r->length : a->prompts ? a->prompts[r->sequence].prefix : 0;
    return more > end ? more : end;
}

static uint32_t sees_from(const struct attend *a, const struct moe_row *r)
{
    const uint32_t end = r->position + 1;
    if (a->window == 0 || end <= a->window)
        return 0;
    return a->window_chunks ? (end - 1) / a->window * a->window : end - a->window;
}

static void open_column(const struct attend *a, const struct moe_attn_tile *from, uint32_t kv_head,
                        uint32_t t, struct tile *tile)
{
    uint32_t row = from->first_row + (from->first + t) / a->group;
    uint32_t head = kv_head * a->group + (from->first + t) % a->group;
    uint32_t key_dim = a->kv->key_dim;
    const float *q =
        a->work->queries + (a->first + row) * a->work->stride.queries + (uint64_t)head * key_dim;
    tile->cols[t] = (struct column){.row = row, .head = head};
    tile->sees[t] = (struct span){sees_from(a, &a->rows[row]), sees_up_to(a, &a->rows[row])};
    if (moe_kv_has_scales(a->kv->keys_as)) {
        memcpy(tile->room, q, key_dim * sizeof *q);
        moe_kern.turn(tile->room, key_dim);
        q = tile->room;
    }
    for (uint32_t c = 0; c < key_dim; c++)
        tile->query[c * tile->nt + t] = q[c] * a->scale;
}

static void open_tile(const struct attend *a, const struct moe_attn_tile *from, uint32_t kv_head,
                      float *scratch, struct tile *tile)
{
    const struct moe_kv *kv = a->kv;
    *tile = (struct tile){
        .n = from->n,
        .nt = 1u << tile_log2(from->n),
        .sequence = keys_of(a, &a->rows[from->first_row]),
        .kv_head = kv_head,
        .scores = scratch,
        .shares = scratch + MOE_TILE * CHUNK,
        .part = scratch + MOE_TILE * 2 * CHUNK,
    };
    tile->out = tile->part + (uint64_t)MOE_TILE * kv->value_padded;
    tile->query = tile->out + (uint64_t)MOE_TILE * kv->value_padded;
    tile->room = tile->query + (uint64_t)MOE_TILE * moe_padded(kv->key_dim);
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
        seen[t] = span_in_chunk(tile->sees[t], base);
    if (span_hull(seen, tile->n).end == 0) /* rows far apart, with a window */
        return;
    uint32_t block = moe_kv_block(kv, tile->sequence, base);
    const struct chunk chunk = {moe_kv_cells(kv, a->layer, block, tile->kv_head), 0};
    attend_one_chunk(a, tile, &chunk, base, seen);
}

/* Joins the sink and divides. */
static void close_column(const struct attend *a, struct tile *tile, uint32_t t)
{
    struct column *col = &tile->cols[t];
    uint32_t n = a->kv->value_dim;
    float *part = tile->part + (uint64_t)t * a->kv->value_padded;
    float *out = tile->out + (uint64_t)t * a->kv->value_padded;
    uint64_t row = (uint64_t)a->first + col->row;
    const float *sinks = a->own_sinks ? a->work->own_sinks + row * a->work->sinks_stride : a->sinks;
    if (sinks) {
        memset(part, 0, n * sizeof *part);
        attend_join(col, sinks[col->head], 1, part, n, out);
    }
    float *to = a->work->attended + row * a->work->stride.attended + (uint64_t)col->head * n;
    for (uint32_t d = 0; d < n; d++)
        to[d] = out[d] / col->sum;
    if (moe_kv_has_scales(a->kv->values_as))
        moe_kern.turn(to, n);
}

static void attend_tile(const struct attend *a, const struct moe_attn_tile *from, uint32_t kv_head,
                        float *scratch)
{
    struct tile tile;
    open_tile(a, from, kv_head, scratch, &tile);
    struct span all = span_hull(tile.sees, tile.n);
    for (uint32_t base = all.begin / CHUNK * CHUNK; base < all.end; base += CHUNK)
        attend_cached(a, &tile, base);
    if (a->compressed)
        attend_entries(a, &tile, tile.room + a->room_floats);
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
    const uint32_t kept = s->first_layer + layer;
    const struct moe_kv all = moe_kv_of_layer(encoder ? &w->source_kv : &w->kv, kept);
    struct cpu_attention work = w->attention;
    if (!c->kv_rank) { /* a head that drafts may do without what its model has */
        work.queries = work.q;
        work.attended = work.out;
        work.stride.queries = work.stride.q;
        work.stride.attended = work.stride.out;
    }
    const struct moe_kv kv = chosen ? *chosen : all;
    struct attend a = {
        .kv = &kv,
        .work = &work,
        .room_floats = moe_kv_room_floats(s->kv_kind, kv.key_dim),
        .scale = (c->global_kv_rank || c->rel_dim) && moe_config_is_global(c, layer)
                     ? c->global_attn_scale
                     : c->attn_scale,
        .cap = c->attn_cap,
        .layer = encoder ? c->n_encoder : kept,
        .group = moe_config_heads(c, layer) / kv.n_heads,
        .window = c->layers[layer].windowed ? c->window : 0,
        .window_chunks = c->window_chunks,
        .sinks = m->layers[layer].sinks,
        .own_sinks = c->own_sinks,
        .rows = rows,
        .first = first,
        .profiles = m->layers[layer].profiles,
        .rel_dim = c->rel_dim,
        .extent = moe_config_rel_extent(c, layer),
        .whole = encoder || moe_config_sees_block(c, layer),
        .prompts = s->prompts,
        .compressed = c->layers[layer].compression ? &w->compressed : NULL,
        .chosen = c->layers[layer].compression == MOE_COMPRESS_CHOSEN ? &w->entries : NULL,
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

/*
 * Shared keys (DeepSeek-V4): one vector is key and value of all heads, and rotated in its last
 * values. So outputs are sums of rotated values; turned back by their row's angles they depend
 * only on distances. They go through a low-rank matrix, one block for each group of heads, and one
 * for all.
 */

struct shared {
    struct moe_session *s;
    const struct moe_row *rows;
    const struct moe_layer *layer;
    struct cpu_attention *w;
    uint32_t number; /* the layer's */
};

const float *stages_cpu_shared_angles(const struct moe_session *s, uint32_t layer,
                                      uint32_t position)
{
    const struct moe_model *m = s->model;
    const float *table = m->config.layers[layer].compression ? m->global_rope : m->rope;
    return table + (uint64_t)position * m->config.rope_dim;
}

void stages_cpu_turn(const struct moe_config *c, const float *angles, bool back, uint32_t width,
                     float *x)
{
    float *pair = x + width - c->rope_dim;
    for (uint32_t i = 0; i < c->rope_dim; i += 2)
        moe_math_rotate(&pair[i], &pair[i + 1], angles[i], back ? -angles[i + 1] : angles[i + 1]);
}

static void norm_q_down_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shared *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        float *x = p->w->q_down + (uint64_t)i * p->w->stride.q_down;
        moe_kern.rms_norm(x, p->layer->q_down_norm, c->q_rank, c->norm_eps, x);
    }
}

static void finish_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shared *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    const struct cpu_attention *w = p->w;
    for (int64_t i = begin; i < end; i++) {
        const float *angles = stages_cpu_shared_angles(p->s, p->number, p->rows[i].position);
        float *q = w->q + (uint64_t)i * w->stride.q, *k = w->k + (uint64_t)i * w->stride.k;
        for (uint32_t head = 0; head < c->n_heads; head++, q += c->head_dim) {
            float lane[MOE_LANES] = {0};
            for (uint32_t d = 0; d < c->head_dim; d++)
                lane[d % MOE_LANES] = fmaf(q[d], q[d], lane[d % MOE_LANES]);
            moe_kern.scale(moe_math_rms_scale(moe_math_join(lane), c->head_dim, c->norm_eps),
                           c->head_dim, q);
            stages_cpu_turn(c, angles, false, c->head_dim, q);
        }
        moe_kern.rms_norm(k, p->layer->k_norm, c->head_dim, c->norm_eps, k);
        stages_cpu_turn(c, angles, false, c->head_dim, k);
        memcpy(w->v + (uint64_t)i * w->stride.v, k, c->head_dim * sizeof *k);
    }
}

void stages_cpu_shared_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    struct moe_inputs *from = &s->states.inputs;
    struct shared p = {s, rows, l, w, layer};
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, n_rows, c->hidden);
    struct moe_mm mm[2] = {moe_inputs_mm(from, l->q_down, w->q_down, w->stride.q_down),
                           moe_inputs_mm(from, l->k, w->k, w->stride.k)};
    moe_matmul(mm, 2);
    moe_par_for(n_rows, 16, norm_q_down_rows, &p);
    moe_inputs_set(&w->from_q_down, w->q_down, w->stride.q_down, NULL, n_rows, c->q_rank);
    mm[0] = moe_inputs_mm(&w->from_q_down, l->q, w->q, w->stride.q);
    moe_matmul(mm, 1);
    moe_par_for(n_rows, 8, finish_rows, &p);
}

static void turn_back_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shared *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        const float *angles = stages_cpu_shared_angles(p->s, p->number, p->rows[i].position);
        float *out = p->w->out + (uint64_t)i * p->w->stride.out;
        for (uint32_t head = 0; head < c->n_heads; head++, out += c->head_dim)
            stages_cpu_turn(c, angles, true, c->head_dim, out);
    }
}

void stages_cpu_shared_out(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_work *work = s->device;
    struct cpu_attention *w = &work->attention;
    struct shared p = {s, rows, l, w, layer};
    moe_par_for(n_rows, 8, turn_back_rows, &p);
    stages_cpu_multiply_blocks(w, &l->out_down, c->out_groups, n_rows, w->out, w->stride.out,
                               l->out_down.cols, w->low, w->low_stride, c->out_rank);
    moe_inputs_set(&w->from_low, w->low, w->low_stride, NULL, n_rows, l->o.cols);
    struct moe_mm mm = moe_inputs_mm(&w->from_low, l->o, work->sum, s->states.stride);
    moe_matmul(&mm, 1);
}
