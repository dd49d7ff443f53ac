/*
 * Sparse attention (DeepSeek-V3.2's): an indexer scores the positions up to a row's own, and the
 * row sees only the index_top best of them.
 *
 * The indexer has queries q_h of index_heads heads, out of the vector that attention's queries come
 * from or out of a layer norm of the layer's input, for each position one key k (under a layer norm
 * of epsilon 1e-6), and for each row weights w_h of its heads; of queries and keys the first
 * rope_dim values are rotated, unless the layer rotates nothing. For a row:
 *
 *   score    of the positions' keys, defined below
 *   choice   the index_top positions of the highest scores, of equal ones the first; all where
 *            there are no more. A layer that shares a choice takes that of the last layer before it
 *            that has an indexer.
 *   result   that of attention (cpu_attention.c) over these positions by rising number, as if they
 * were all of the text: place i of them stands for position i. So a row that sees all of its text
 * gets what it would get without an indexer.
 *
 * Where an indexer chooses blocks (MiniMax-M3's), the text is cut into blocks of index_block
 * positions. Queries come from the layer's input; they and keys are under a norm (rms_norm of the
 * layers' epsilon) before they are rotated. Head h of the indexer chooses for head h of keys and
 * values:
 *
 *   score    of a block: the largest panel product of q_h and a key in it, up to the row's own;
 *            infinite for the index_local last blocks
 *   choice   the index_top / index_block best blocks, of equal ones the first; so the row's own
 *            block, which may be incomplete, is always the last
 *
 * Where it chooses by means of keys (Qwen4's), with such queries and blocks:
 *
 *   key      of a complete block: the mean, from the first position on, of what its positions
 *            project, as the cache holds it, under the norm and rotated as the block's first
 *            position. It takes the cell of the block's last position.
 *   score    of a block, of all heads, as above with weights of 1
 *   choice   the best index_top / index_block complete blocks, of equal ones the first, and what
 *            follows the last complete one; the same for all heads of keys and values
 *
 * Where it pools keys (GLM-5.3's), it chooses so, too, but with queries and weights as above, which
 * nothing rotates. A cell holds a position's key, under its norm, and its gates, projected from the
 * layer's input:
 *
 *   key      of a complete block: the sum of its positions' keys, each value weighed by the
 *            softmax, over these positions, of gate and bias of the place in the block
 *
 * A row's choice and result depend on nothing else in its pass. Rows are computed one after the
 * other, threads share each: keys and values of a row's choice are brought together first, for all
 * of its heads.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "base/rank.h"
#include "infer/cpu_stages.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "model/config.h"

enum { CHUNK = MOE_ATTENTION_CHUNK };

/*
 * Indexers: which of the keys that a row may see its attention sees (DeepSeek-V3.2: of positions,
 * as above; DeepSeek-V4: of entries of groups of them). A key's score, with q_h the row's
 * queries and w_h what each head of them counts:
 *
 *   s = fma(w_h, max(d_h, 0), s) by rising h, from 0; d_h the panel product of key and q_h, one fma
 *   chain. (Descriptions divide by square roots of widths and numbers of heads, which does not
 *   change the order of the scores.)
 *
 * The index_top best are chosen, of equal scores the first; all where there are no more.
 */

static uint64_t tiles_floats(const struct moe_config *c)
{
    return moe_round_up(c->index_heads, MOE_TILE) * c->index_dim;
}

/* A row's queries side by side, eight heads at a time; zeros stand for heads there are not. */
static void index_tiles(const struct moe_config *c, const float *queries, float *tiles)
{
    for (uint32_t h = 0; h < c->index_heads; h += MOE_TILE)
        for (uint32_t i = 0; i < c->index_dim; i++)
            for (uint32_t t = 0; t < MOE_TILE; t++)
                *tiles++ = h + t < c->index_heads ? queries[(h + t) * c->index_dim + i] : 0;
}

/* Keys in panels; a position's cell may hold more behind its key. */
struct keys {
    const uint8_t *panels;
    struct moe_layout layout;
    uint32_t cell;
};

/* Products of the first n <= CHUNK keys and eight heads: [MOE_TILE][CHUNK]. */
static void index_products(const struct moe_config *c, const struct keys *keys, const float *tile,
                           uint32_t n, float *products)
{
    const struct moe_layout layout = keys->layout;
    int form = moe_kern_layout_index(layout.kind);
    uint64_t item = moe_layout_bits(layout.kind) / 8;
    const struct moe_tile in = {.x = tile};
    for (uint32_t i = 0; i < n; i += MOE_PANEL_ROWS)
        moe_kern.panel[form][MOE_N_TILES - 1](keys->panels + (uint64_t)i * keys->cell * item,
                                              layout, c->index_dim, &in, products + i, CHUNK);
}

/* weights NULL: all 1. products: scratch, as above. */
static void index_scores(const struct moe_config *c, const struct keys *keys, const float *tiles,
                         const float *weights, uint32_t n, float *products, float *scores)
{
    memset(scores, 0, n * sizeof *scores);
    for (uint32_t h = 0; h < c->index_heads; h += MOE_TILE) {
        index_products(c, keys, tiles + (uint64_t)h * c->index_dim, n, products);
        for (uint32_t t = 0; t < MOE_TILE && h + t < c->index_heads; t++) {
            float *of = products + t * CHUNK;
            moe_kern.relu(of, n, of);
            moe_kern.axpy(weights ? weights[h + t] : 1, of, n, scores);
        }
    }
}

/* Entries of one kind, or keys of blocks: where in a position's floats they come from, and how wide
 * one is. */
struct kind {
    uint64_t values, gates;
    const float *bias, *norm;
    uint32_t width;
};

/* 16 values of an entry, or fewer: `first` on. Of n sources the last `ratio` are the group's own,
 * others those of the group before. */
static void weigh(const struct kind *k, const float *const *from, uint32_t n, uint32_t ratio,
                  bool overlap, uint32_t first, float *entry)
{
    uint32_t wide = k->width - first < 16 ? k->width - first : 16;
    float largest[16], sum[16] = {0}, all[16] = {0};
    for (int again = 0; again < 2; again++)
        for (uint32_t i = 0; i < n; i++) {
            uint64_t at = first + (overlap && i + ratio >= n ? k->width : 0);
            const float *x = from[i] + k->values + at, *g = from[i] + k->gates + at;
            const float *b = k->bias + (uint64_t)(i % ratio) * k->width * (overlap ? 2 : 1) + at;
            for (uint32_t d = 0; d < wide; d++) {
                float gate = g[d] + b[d];
                if (again == 0) {
                    largest[d] = i == 0 || gate > largest[d] ? gate : largest[d];
                    continue;
                }
                float share = moe_math_exp(gate - largest[d]);
                sum[d] += share;
                all[d] = fmaf(share, x[d], all[d]);
            }
        }
    for (uint32_t d = 0; d < wide; d++)
        entry[first + d] = all[d] / sum[d];
}

/* A layer's pass, and the row of it at work. */
struct sparse {
    struct moe_session *s;
    const struct moe_layer *l;
    const struct moe_row *rows;
    struct cpu_index *x;
    struct moe_kv kv; /* the layer's */
    uint32_t layer, row;
};

static struct sparse begin_sparse(struct moe_session *s, uint32_t layer, const struct moe_row *rows)
{
    struct cpu_work *w = s->device;
    return (struct sparse){
        .s = s,
        .l = &s->model->layers[layer],
        .rows = rows,
        .x = &w->index,
        .kv = moe_kv_of_layer(&w->kv, layer),
        .layer = layer,
    };
}

/* Whether a row at this position sees less than all. */
static bool is_limited(const struct cpu_index *x, const struct moe_row *r)
{
    return x->top && r->position >= x->seen;
}

/* ---- Queries, keys and weights ---- */

/* What queries are made of where that is no vector of attention's. */
static void norm_inputs(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_config *c = &sp->s->model->config;
    const struct moe_states *states = &sp->s->states;
    const struct cpu_attention *a = &((struct cpu_work *)sp->s->device)->attention;
    for (int64_t i = first; i < end; i++)
        moe_kern.layer_norm(states->xn + (uint64_t)i * states->stride, sp->l->index_q_norm,
                            sp->l->index_q_norm_bias, c->hidden, c->index_eps,
                            a->q_down + (uint64_t)i * a->stride.q_down);
}

static void finish_rows(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_config *c = &sp->s->model->config;
    const struct cpu_index *x = sp->x;
    const struct moe_model *m = sp->s->model;
    const float *rope = moe_config_is_global(c, sp->layer) ? m->global_rope : m->rope;
    uint32_t rotated = c->index_pooled ? 0 : moe_config_rotated(c, sp->layer);
    bool plain = moe_config_index_plain(c);
    for (int64_t i = first; i < end; i++) {
        const float *angles = rotated ? rope + (uint64_t)sp->rows[i].position * c->rope_dim : NULL;
        float *k = x->k + (uint64_t)i * x->k_stride;
        float *q = x->q + (uint64_t)i * x->q_stride;
        if (plain && !c->index_means)
            moe_kern.rms_norm(k, sp->l->index_k_norm, c->index_dim, c->norm_eps, k);
        else if (!plain)
            moe_kern.layer_norm(k, sp->l->index_k_norm, sp->l->index_k_norm_bias, c->index_dim,
                                c->index_eps, k);
        if (rotated && !c->index_means)
            moe_kern.rope(k, angles, rotated);
        if (c->index_pooled)
            memmove(k + c->index_dim, k + moe_padded(c->index_dim), c->index_dim * sizeof *k);
        if (!is_limited(x, &sp->rows[i]))
            continue;
        for (uint32_t h = 0; plain && h < c->index_heads; h++)
            moe_kern.rms_norm(q + h * c->index_dim, sp->l->index_head_norm, c->index_dim,
                              c->norm_eps, q + h * c->index_dim);
        if (sp->l->index_slope)
            stages_cpu_temper(sp->l->index_slope, sp->l->index_base, c->index_heads, c->index_dim,
                              sp->rows[i].position, q);
        for (uint32_t h = 0; rotated && h < c->index_heads; h++)
            moe_kern.rope(q + h * c->index_dim, angles, rotated);
    }
}

void stages_cpu_index(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows)
{
    struct sparse sp = begin_sparse(s, layer, rows);
    struct cpu_work *w = s->device;
    struct cpu_index *x = sp.x;
    struct moe_inputs *from = &s->states.inputs;
    bool any = false;
    for (uint32_t i = 0; i < n_rows; i++)
        any |= is_limited(x, &rows[i]);
    const struct moe_config *c = &s->model->config;
    struct moe_mm mm[4] = {moe_inputs_mm(from, sp.l->index_k, x->k, x->k_stride)};
    int n = 1;
    if (c->index_pooled)
        mm[n++] =
            moe_inputs_mm(from, sp.l->index_gate, x->k + moe_padded(c->index_dim), x->k_stride);
    if (any && moe_config_index_plain(c)) {
        mm[n++] = moe_inputs_mm(from, sp.l->index_q, x->q, x->q_stride);
    } else if (any) {
        struct cpu_attention *a = &w->attention;
        if (sp.l->index_q_norm)
            moe_par_for(n_rows, 8, norm_inputs, &sp);
        if (sp.l->index_q_norm || c->q_twice) /* attention's queries take others */
            moe_inputs_set(&a->from_q_down, a->q_down, a->stride.q_down, NULL, n_rows,
                           sp.l->index_q.cols);
        mm[n++] = moe_inputs_mm(from, sp.l->index_weights, x->weights, x->weights_stride);
        mm[n++] = moe_inputs_mm(&w->attention.from_q_down, sp.l->index_q, x->q, x->q_stride);
    }
    moe_matmul(mm, n);
    moe_par_for(n_rows, 8, finish_rows, &sp);
}

/* Of rows that complete a block: its key. */
static void mean_rows(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_config *c = &sp->s->model->config;
    const struct moe_model *m = sp->s->model;
    const float *rope = moe_config_is_global(c, sp->layer) ? m->global_rope : m->rope;
    uint32_t width = c->index_block, cell = sp->kv.index_dim;
    const struct kind pooled = {0, c->index_dim, sp->l->index_bias, NULL, c->index_dim};
    float *cells = sp->x->cells + (uint64_t)thread * width * cell, *last = cells;
    const float *from[MOE_MAX_RATIO];
    for (uint32_t at = 0; at < width; at++)
        from[at] = last = cells + (uint64_t)at * cell;
    for (int64_t i = first; i < end; i++) {
        const struct moe_row *r = &sp->rows[i];
        uint32_t begin = r->position / width * width;
        if (r->position != begin + width - 1)
            continue;
        for (uint32_t at = 0; at < width; at++)
            moe_kv_index_get(&sp->kv, sp->layer, r->sequence, begin + at, cells + at * cell);
        for (uint32_t d = 0; c->index_pooled && d < c->index_dim; d += 16)
            weigh(&pooled, from, width, width, false, d, last);
        if (!c->index_pooled) {
            for (uint32_t at = 1; at < width; at++)
                moe_kern.add(from[at], c->index_dim, cells);
            for (uint32_t d = 0; d < c->index_dim; d++)
                last[d] = cells[d] / (float)width;
            moe_kern.rms_norm(last, sp->l->index_k_norm, c->index_dim, c->norm_eps, last);
            if (moe_config_rotated(c, sp->layer))
                moe_kern.rope(last, rope + (uint64_t)begin * c->rope_dim,
                              moe_config_rotated(c, sp->layer));
        }
        moe_kv_index_put(&sp->kv, sp->layer, r->sequence, r->position, last);
    }
}

void stages_cpu_index_means(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                            uint32_t n_rows)
{
    struct sparse sp = begin_sparse(s, layer, rows);
    moe_par_for(n_rows, 8, mean_rows, &sp);
}

/* ---- Scores ---- */

/* Products of keys and each head's queries: scores [index_heads][stride]. */
static void score_heads(const struct moe_config *c, const struct keys *keys, const float *tiles,
                        uint32_t n, float *products, uint64_t stride, float *scores)
{
    for (uint32_t h = 0; h < c->index_heads; h += MOE_TILE) {
        index_products(c, keys, tiles + (uint64_t)h * c->index_dim, n, products);
        for (uint32_t t = 0; t < MOE_TILE && h + t < c->index_heads; t++)
            memcpy(scores + (h + t) * stride, products + t * CHUNK, n * sizeof *scores);
    }
}

static void score_chunks(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_config *c = &sp->s->model->config;
    const struct moe_row *r = &sp->rows[sp->row];
    const struct moe_kv *kv = &sp->kv;
    bool plain = moe_config_index_plain(c);
    const float *weights = plain ? NULL : sp->x->weights + sp->row * sp->x->weights_stride;
    float *products = sp->x->scratch + (uint64_t)thread * MOE_TILE * CHUNK;
    for (int64_t chunk = first; chunk < end; chunk++) {
        uint32_t base = (uint32_t)chunk * CHUNK, left = r->position + 1 - base;
        uint32_t n = left < CHUNK ? left : CHUNK;
        uint32_t block = moe_kv_block(kv, r->sequence, base);
        const struct keys keys = {
            moe_kv_index_keys(kv, sp->layer, block), {kv->index_as, 0}, kv->index_dim};
        float *scores = sp->x->scores + base;
        if (c->index_block && !c->index_means)
            score_heads(c, &keys, sp->x->tiles, n, products, sp->x->scores_stride, scores);
        else
            index_scores(c, &keys, sp->x->tiles, weights, n, products, scores);
    }
}

/* ---- The choice ---- */

/* Of the row: what it chooses. */
static uint32_t *places_of(const struct sparse *sp)
{
    return sp->x->places + sp->row * sp->x->places_stride;
}

/* Of heads: the blocks that they choose, [index_heads][top / index_block]. */
static void choose_blocks(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_config *c = &sp->s->model->config;
    struct cpu_index *x = sp->x;
    uint32_t width = c->index_block, top = x->top / width;
    uint32_t n = sp->rows[sp->row].position + 1, n_blocks = (n - 1) / width + 1;
    for (int64_t h = first; h < end; h++) {
        float *scores = x->scores + (uint64_t)h * x->scores_stride; /* of blocks in place of keys */
        for (uint32_t b = 0; b < n_blocks; b++) {
            float best = scores[b * width];
            for (uint32_t i = b * width; i < n && i < (b + 1) * width; i++)
                best = scores[i] > best ? scores[i] : best;
            scores[b] = b + c->index_local >= n_blocks ? INFINITY : best;
        }
        moe_best_places(scores, n_blocks, top, places_of(sp) + (uint64_t)h * top);
    }
}

/* Of all heads: complete blocks and the one behind them. */
static void choose_means(const struct sparse *sp)
{
    struct cpu_index *x = sp->x;
    uint32_t width = sp->s->model->config.index_block, top = x->top / width;
    uint32_t n_blocks = (sp->rows[sp->row].position + 1) / width;
    for (uint32_t b = 0; b < n_blocks; b++)
        x->scores[b] = x->scores[(b + 1) * width - 1];
    moe_best_places(x->scores, n_blocks, top, places_of(sp));
    places_of(sp)[top] = n_blocks;
}

/* The row's choice, made here or by a layer before this one. */
static int find_places(struct sparse *sp, struct moe_err *err)
{
    struct cpu_index *x = sp->x;
    const struct moe_config *c = &sp->s->model->config;
    const struct moe_row *r = &sp->rows[sp->row];
    struct moe_row *of = &x->of[sp->row];
    if (sp->l->index_k_norm) {
        uint32_t n = r->position + 1;
        index_tiles(c, x->q + sp->row * x->q_stride, x->tiles);
        moe_par_for((n - 1) / CHUNK + 1, 1, score_chunks, sp);
        if (c->index_means)
            choose_means(sp);
        else if (c->index_block)
            moe_par_for(c->index_heads, 1, choose_blocks, sp);
        else
            moe_best_places(x->scores, n, x->top, places_of(sp));
        *of = *r;
    }
    if (of->sequence == r->sequence && of->position == r->position)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "layer %u sees positions that layer %u chooses, where the pass must begin",
                    sp->layer, moe_config_beginning(&sp->s->model->config, sp->layer));
}

/* ---- Attention ---- */

/* The position that is number i of those that the row's head sees. */
static uint32_t chosen_position(const struct sparse *sp, uint32_t head, uint32_t i)
{
    const struct cpu_index *x = sp->x;
    const struct moe_config *c = &sp->s->model->config;
    uint32_t width = c->index_block;
    if (!width)
        return places_of(sp)[i];
    head = c->index_means ? 0 : head;
    return places_of(sp)[head * (x->top / width) + i / width] * width + i % width;
}

/* Copies keys and values of the row's positions to their places in its choice. */
static void bring_positions(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_kv *kv = &sp->kv, *chosen = &sp->x->chosen;
    for (int64_t i = first; i < end; i++) {
        uint32_t to_block = moe_kv_block(chosen, 0, (uint32_t)i);
        for (uint32_t head = 0; head < kv->n_heads; head++) {
            uint32_t at = chosen_position(sp, head, (uint32_t)i);
            uint32_t block = moe_kv_block(kv, sp->rows[sp->row].sequence, at);
            const struct moe_kv_cells from = moe_kv_cells(kv, sp->layer, block, head);
            const struct moe_kv_cells to = moe_kv_cells(chosen, sp->layer, to_block, head);
            moe_kv_copy(kv, &from, at % kv->block_positions, &to,
                        (uint64_t)i % chosen->block_positions);
        }
    }
}

int stages_cpu_attend_chosen(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                             uint32_t n_rows, struct moe_err *err)
{
    struct sparse sp = begin_sparse(s, layer, rows);
    struct cpu_index *x = sp.x;
    x->chosen.first_layer = layer;
    for (uint32_t end; sp.row < n_rows; sp.row = end) {
        for (end = sp.row; end < n_rows && !is_limited(x, &rows[end]);)
            end++;
        if (end > sp.row) {
            moe_attention_rows(s, layer, rows + sp.row, sp.row, end - sp.row, NULL);
            continue;
        }
        end++;
        MOE_TRY(find_places(&sp, err));
        uint32_t width = s->model->config.index_block, n = x->top;
        if (s->model->config.index_means)
            n += (rows[sp.row].position + 1) % width;
        else if (width) /* the row's own block may be incomplete */
            n -= width - 1 - rows[sp.row].position % width;
        const struct moe_row last = {.position = n - 1};
        moe_par_for(n, 16, bring_positions, &sp);
        moe_attention_rows(s, layer, &last, sp.row, 1, &x->chosen);
    }
    return MOE_OK;
}

/* ---- Entries ---- */

struct choose {
    const struct moe_session *s;
    const struct moe_config *c;
    const struct moe_row *rows;
    struct cpu_entries *e;
    uint32_t layer;
};

/* A thread's scratch: tiles, products and scores. */
struct scratch {
    float *tiles, *products, *scores;
};

uint64_t moe_index_scratch_floats(const struct moe_config *c, uint64_t n_entries)
{
    return moe_padded(tiles_floats(c)) + MOE_TILE * CHUNK + moe_padded(n_entries);
}

static struct scratch scratch_of(const struct choose *p, int thread)
{
    float *at = p->e->scratch + (uint64_t)thread * p->e->scratch_stride;
    float *products = at + moe_padded(tiles_floats(p->c));
    return (struct scratch){at, products, products + MOE_TILE * CHUNK};
}

static uint32_t n_seen(const struct choose *p, uint32_t row)
{
    return moe_compressed_seen(p->c->chosen_ratio, p->rows[row].position);
}

/* Chunk `chunk` of the entries that the row sees, of `tiles`. */
static void score_chunk(const struct choose *p, uint32_t row, uint32_t chunk, const float *tiles,
                        float *products, float *scores)
{
    const struct cpu_work *w = p->s->device;
    const struct moe_compressed_part part =
        moe_compressed_at(&w->compressed, p->rows[row].sequence, p->layer);
    uint32_t base = chunk * CHUNK, left = n_seen(p, row) - base;
    const struct keys keys = {(const uint8_t *)(part.index + (uint64_t)base * p->c->index_dim),
                              {.kind = MOE_LAYOUT_F32},
                              p->c->index_dim};
    index_scores(p->c, &keys, tiles, p->e->weights + row * p->e->weights_stride,
                 left < CHUNK ? left : CHUNK, products, scores + base);
}

static void choose(const struct choose *p, uint32_t row, const float *scores)
{
    uint32_t top = p->c->index_top, n = n_seen(p, row);
    uint32_t *chosen = p->e->chosen + (uint64_t)row * top;
    p->e->n_chosen[row] = n < top ? n : top;
    for (uint32_t i = 0; n <= top && i < n; i++)
        chosen[i] = i;
    if (n > top)
        moe_best_places(scores, n, top, chosen);
}

static void choose_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct choose *p = ctx;
    const struct scratch s = scratch_of(p, thread);
    for (uint32_t row = (uint32_t)begin; row < (uint32_t)end; row++) {
        uint32_t n = n_seen(p, row) > p->c->index_top ? n_seen(p, row) : 0;
        index_tiles(p->c, p->e->queries + row * p->e->queries_stride, s.tiles);
        for (uint32_t chunk = 0; chunk * CHUNK < n; chunk++)
            score_chunk(p, row, chunk, s.tiles, s.products, s.scores);
        choose(p, row, s.scores);
    }
}

/* Of the only row: threads share its entries, and the first one's tiles and scores. */
static void score_indexed_chunks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct choose *p = ctx;
    const struct scratch first = scratch_of(p, 0), own = scratch_of(p, thread);
    for (int64_t chunk = begin; chunk < end; chunk++)
        score_chunk(p, 0, (uint32_t)chunk, first.tiles, own.products, first.scores);
}

static void turn_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct choose *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        const float *angles = stages_cpu_shared_angles(p->s, p->layer, p->rows[i].position);
        float *query = p->e->queries + (uint64_t)i * p->e->queries_stride;
        for (uint32_t h = 0; h < p->c->index_heads; h++, query += p->c->index_dim)
            stages_cpu_turn(p->c, angles, false, p->c->index_dim, query);
    }
}

void stages_cpu_choose_entries(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                               uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_work *w = s->device;
    struct choose p = {s, c, rows, &w->entries, layer};
    struct moe_mm mm[2] = {
        moe_inputs_mm(&w->attention.from_q_down, l->index_q, p.e->queries, p.e->queries_stride),
        moe_inputs_mm(&s->states.inputs, l->index_weights, p.e->weights, p.e->weights_stride),
    };
    moe_matmul(mm, 2);
    moe_par_for(n_rows, 8, turn_rows, &p);
    if (n_rows > 1) {
        moe_par_for(n_rows, 1, choose_rows, &p);
        return;
    }
    const struct scratch first = scratch_of(&p, 0);
    index_tiles(c, p.e->queries, first.tiles);
    if (n_seen(&p, 0) > c->index_top)
        moe_par_for((n_seen(&p, 0) - 1) / CHUNK + 1, 1, score_indexed_chunks, &p);
    choose(&p, 0, first.scores);
}

/*
 * The entries of layers that compress, as infer/compressed.h defines them. Rows of a pass see each
 * other's, so all are made before attention: first from the pass and what was kept before it, then
 * the pass is kept. A sum over places goes by rising place, sum and result by fma and one division.
 */

struct compress {
    struct moe_session *s;
    const struct moe_config *c;
    const struct moe_layer *l;
    struct cpu_work *w;
    struct moe_compressed_row row;
    const struct moe_row *rows;
    uint32_t layer;
};

static void project(struct compress *p)
{
    struct moe_inputs *from = &p->s->states.inputs;
    const struct cpu_entries *e = &p->w->entries;
    struct moe_mm mm[4] = {
        moe_inputs_mm(from, p->l->entry, e->made, e->made_stride),
        moe_inputs_mm(from, p->l->entry_gate, e->made + p->row.gate, e->made_stride),
    };
    int n = 2;
    if (p->l->index_entry.data) {
        mm[n++] =
            moe_inputs_mm(from, p->l->index_entry, e->made + p->row.index_entry, e->made_stride);
        mm[n++] =
            moe_inputs_mm(from, p->l->index_gate, e->made + p->row.index_gate, e->made_stride);
    }
    moe_matmul(mm, n);
}

/* The floats of the n positions up to the row's: of the pass as far back as it has them, then kept
 * ones. */
static void find_sources(const struct compress *p, const struct moe_compressed_part *part,
                         uint32_t row, uint32_t n, const float **from)
{
    const struct cpu_entries *e = &p->w->entries;
    uint32_t position = p->rows[row].position;
    int64_t at = row;
    for (uint32_t i = n; i-- > 0; position--) {
        while (at >= 0 && p->rows[at].sequence != p->rows[row].sequence)
            at--;
        if (at >= 0 && p->rows[at].position == position)
            from[i] = e->made + (uint64_t)at-- * e->made_stride;
        else
            from[i] = part->kept + position % part->n_kept * p->row.stride;
    }
}

static void make_entry(const struct compress *p, const struct kind *k, const float *const *from,
                       uint32_t n, uint32_t ratio, uint32_t number, float *entry)
{
    bool overlap = p->c->layers[p->layer].compression == MOE_COMPRESS_CHOSEN;
    for (uint32_t first = 0; first < k->width; first += 16)
        weigh(k, from, n, ratio, overlap, first, entry);
    moe_kern.rms_norm(entry, k->norm, k->width, p->c->norm_eps, entry);
    stages_cpu_turn(p->c, stages_cpu_shared_angles(p->s, p->layer, number * ratio), false, k->width,
                    entry);
}

/* Rows that complete a group. */
static void complete_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct compress *p = ctx;
    const float *from[2 * MOE_MAX_RATIO];
    float entry[MOE_MAX_HEAD_DIM];
    for (int64_t i = begin; i < end; i++) {
        uint32_t row = p->w->entries.completed[i];
        const struct moe_compressed_part part =
            moe_compressed_at(&p->w->compressed, p->rows[row].sequence, p->layer);
        uint32_t number = p->rows[row].position / part.ratio;
        uint32_t n = part.index && number > 0 ? 2 * part.ratio : part.ratio;
        const struct kind main = {0, p->row.gate, p->l->entry_bias, p->l->entry_norm,
                                  p->c->head_dim};
        const struct kind index = {p->row.index_entry, p->row.index_gate, p->l->index_bias,
                                   p->l->index_norm, p->c->index_dim};
        find_sources(p, &part, row, n, from);
        make_entry(p, &main, from, n, part.ratio, number, entry);
        const struct moe_kv_cells cells = {part.keys, part.values, part.n_entries};
        moe_kv_put(&p->w->kv, &cells, number, entry, entry);
        if (!part.index)
            continue;
        make_entry(p, &index, from, n, part.ratio, number, entry);
        float *panel = part.index + (uint64_t)(number / 16) * 16 * index.width + number % 16;
        for (uint32_t d = 0; d < index.width; d++)
            panel[d * 16] = entry[d];
    }
}

static void keep_open_groups(const struct compress *p, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct moe_compressed_part part =
            moe_compressed_at(&p->w->compressed, p->rows[i].sequence, p->layer);
        memcpy(part.kept + p->rows[i].position % part.n_kept * p->row.stride,
               p->w->entries.made + i * p->w->entries.made_stride, p->row.stride * sizeof(float));
    }
}

void stages_cpu_compress(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    struct cpu_work *w = s->device;
    struct compress p = {s,    c,    &s->model->layers[layer], w, moe_compressed_row(c, layer),
                         rows, layer};
    uint32_t n = 0, ratio = moe_config_ratio(c, layer);
    project(&p);
    for (uint32_t i = 0; i < n_rows; i++)
        if ((rows[i].position + 1) % ratio == 0)
            w->entries.completed[n++] = i;
    moe_par_for(n, 1, complete_rows, &p);
    keep_open_groups(&p, n_rows);
    moe_recurrent_advance(s, layer, rows, n_rows);
    if (c->layers[layer].compression == MOE_COMPRESS_CHOSEN)
        stages_cpu_choose_entries(s, layer, rows, n_rows);
}
