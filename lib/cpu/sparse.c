/*
 * Sparse attention (DeepSeek-V3.2's): an indexer scores the positions up to a row's own, and the
 * row sees the index_top best of them alone.
 *
 * The indexer has queries q_h of index_heads heads, out of the vector that attention's queries come
 * from, for each position one key k (under a layer norm of epsilon 1e-6), and for each row weights
 * w_h of its heads; of queries and keys the first rope_dim values are rotated. For a row:
 *
 *   score    of the positions' keys, as index.c defines it
 *   choice   the index_top positions of the highest scores, of equal ones the first; all where
 *            there are no more. A layer that shares a choice takes that of the last layer before it
 *            that has an indexer.
 *   result   that of attention (attention.c) over these positions by rising number, as if they were
 *            all of the text: place i of them stands for position i. So a row that sees all of its
 *            text gets what it would get without an indexer.
 *
 * A row's choice and result depend on nothing else in its pass. Rows are computed one after the
 * other, threads share each: keys and values of a row's choice are brought together first, for all
 * of its heads.
 */
#include <string.h>

#include "base/best.h"
#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"

enum { CHUNK = MOE_ATTENTION_CHUNK };

/* A layer's pass, and the row of it at work. */
struct sparse {
    struct moe_session *s;
    const struct moe_layer *l;
    const struct moe_row *rows;
    struct cpu_index *x;
    struct moe_kv kv; /* the layer's */
    uint32_t layer, row;
};

static struct sparse begin(struct moe_session *s, uint32_t layer, const struct moe_row *rows)
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
    return x->top && r->position >= x->top;
}

/* ---- Queries, keys and weights ---- */

static void finish_rows(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_config *c = &sp->s->model->config;
    const struct cpu_index *x = sp->x;
    for (int64_t i = first; i < end; i++) {
        const float *angles = sp->s->model->rope + (uint64_t)sp->rows[i].position * c->rope_dim;
        float *k = x->k + (uint64_t)i * x->k_stride;
        float *q = x->q + (uint64_t)i * x->q_stride;
        moe_kern.layer_norm(k, sp->l->index_k_norm, sp->l->index_k_norm_bias, c->index_dim, 1e-6f,
                            k);
        moe_kern.rope(k, angles, c->rope_dim);
        for (uint32_t h = 0; is_limited(x, &sp->rows[i]) && h < c->index_heads; h++)
            moe_kern.rope(q + h * c->index_dim, angles, c->rope_dim);
    }
}

void stages_cpu_index(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows)
{
    struct sparse sp = begin(s, layer, rows);
    struct cpu_work *w = s->device;
    struct cpu_index *x = sp.x;
    struct moe_inputs *from = &s->states.inputs;
    bool any = false;
    for (uint32_t i = 0; i < n_rows; i++)
        any |= is_limited(x, &rows[i]);
    struct moe_mm mm[3] = {moe_inputs_mm(from, sp.l->index_k, x->k, x->k_stride)};
    if (any) {
        mm[1] = moe_inputs_mm(from, sp.l->index_weights, x->weights, x->weights_stride);
        mm[2] = moe_inputs_mm(&w->attention.from_q_down, sp.l->index_q, x->q, x->q_stride);
    }
    moe_matmul(mm, any ? 3 : 1);
    moe_par_for(n_rows, 8, finish_rows, &sp);
}

/* ---- Scores ---- */

static void score_chunks(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_config *c = &sp->s->model->config;
    const struct moe_row *r = &sp->rows[sp->row];
    const struct moe_kv *kv = &sp->kv;
    const float *weights = sp->x->weights + sp->row * sp->x->weights_stride;
    float *products = sp->x->scratch + (uint64_t)thread * MOE_TILE * CHUNK;
    for (int64_t chunk = first; chunk < end; chunk++) {
        uint32_t base = (uint32_t)chunk * CHUNK, left = r->position + 1 - base;
        uint32_t n = left < CHUNK ? left : CHUNK;
        const uint8_t *keys = moe_kv_index_keys(kv, sp->layer, moe_kv_block(kv, r->sequence, base));
        float *scores = sp->x->scores + base;
        stages_cpu_index_scores(c, kv->layout, sp->x->tiles, weights, keys, n, products, scores);
    }
}

/* ---- The choice ---- */

/* The row's choice, made here or by a layer before this one. */
static int find_places(struct sparse *sp, struct moe_err *err)
{
    struct cpu_index *x = sp->x;
    const struct moe_row *r = &sp->rows[sp->row];
    struct moe_row *of = &x->of[sp->row];
    if (sp->l->index_k_norm) {
        uint32_t n = r->position + 1;
        stages_cpu_index_tiles(&sp->s->model->config, x->q + sp->row * x->q_stride, x->tiles);
        moe_par_for((n - 1) / CHUNK + 1, 1, score_chunks, sp);
        moe_best_places(x->scores, n, x->top, x->places + (uint64_t)sp->row * x->top);
        *of = *r;
    }
    if (of->sequence == r->sequence && of->position == r->position)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "layer %u sees positions that layer %u chooses, where the pass must begin",
                    sp->layer, moe_config_beginning(&sp->s->model->config, sp->layer));
}

/* ---- Attention ---- */

/* Item i of `from` becomes item j of `to`. */
static void copy_item(uint32_t bytes, uint8_t *to, uint64_t j, const uint8_t *from, uint64_t i)
{
    if (bytes == sizeof(float))
        memcpy(to + j * sizeof(float), from + i * sizeof(float), sizeof(float));
    else
        memcpy(to + j * sizeof(uint16_t), from + i * sizeof(uint16_t), sizeof(uint16_t));
}

/* Keys and values of the row's positions, to the places that they have in its choice. */
static void bring_positions(void *ctx, int64_t first, int64_t end, int thread)
{
    const struct sparse *sp = ctx;
    const struct moe_kv *kv = &sp->kv, *chosen = &sp->x->chosen;
    const uint32_t *places = sp->x->places + (uint64_t)sp->row * sp->x->top;
    for (int64_t i = first; i < end; i++) {
        uint32_t block = moe_kv_block(kv, sp->rows[sp->row].sequence, places[i]);
        uint32_t to_block = moe_kv_block(chosen, 0, (uint32_t)i);
        uint64_t at = places[i] % kv->block_positions, to = (uint64_t)i % chosen->block_positions;
        const uint8_t *keys = moe_kv_keys(kv, sp->layer, block, 0);
        const uint8_t *values = moe_kv_values(kv, sp->layer, block, 0);
        uint8_t *to_keys = moe_kv_keys(chosen, sp->layer, to_block, 0);
        uint8_t *to_values = moe_kv_values(chosen, sp->layer, to_block, 0);
        for (uint64_t c = 0; c < kv->key_dim; c++)
            copy_item(kv->item_bytes, to_keys, (to / 16 * kv->key_dim + c) * 16 + to % 16, keys,
                      (at / 16 * kv->key_dim + c) * 16 + at % 16);
        for (uint64_t c = 0; c < kv->value_padded; c += MOE_PANEL_ROWS)
            memcpy(to_values + (c * chosen->block_positions + to * 16) * kv->item_bytes,
                   values + (c * kv->block_positions + at * 16) * kv->item_bytes,
                   MOE_PANEL_ROWS * (size_t)kv->item_bytes);
    }
}

int stages_cpu_attend_chosen(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                             uint32_t n_rows, struct moe_err *err)
{
    struct sparse sp = begin(s, layer, rows);
    struct cpu_index *x = sp.x;
    int status = MOE_OK;
    x->chosen.first_layer = layer;
    for (uint32_t end; sp.row < n_rows && status == MOE_OK; sp.row = end) {
        for (end = sp.row; end < n_rows && !is_limited(x, &rows[end]);)
            end++;
        if (end > sp.row) {
            moe_attention_rows(s, layer, rows + sp.row, sp.row, end - sp.row, NULL);
            continue;
        }
        end++;
        status = find_places(&sp, err);
        if (status == MOE_OK) {
            const struct moe_row last = {.position = x->top - 1};
            moe_par_for(x->top, 16, bring_positions, &sp);
            moe_attention_rows(s, layer, &last, sp.row, 1, &x->chosen);
        }
    }
    return status;
}
