/*
 * Indexers: which of the keys that a row may see its attention sees (DeepSeek-V3.2: of positions,
 * sparse.c; DeepSeek-V4: of entries of groups of them). A key's score, with q_h the row's queries
 * and w_h what each head of them counts:
 *
 *   s = fma(w_h, max(d_h, 0), s) by rising h, from 0; d_h the panel product of key and q_h, one fma
 *   chain. (Descriptions divide by square roots of widths and numbers of heads, which does not
 *   change the order of the scores.)
 *
 * The index_top best are chosen, of equal scores the first; all where there are no more.
 */
#include <string.h>

#include "base/best.h"
#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"

enum { CHUNK = MOE_ATTENTION_CHUNK };

/* ---- Scores ---- */

static uint64_t tiles_floats(const struct moe_config *c)
{
    return moe_round_up(c->index_heads, MOE_TILE) * c->index_dim;
}

void stages_cpu_index_tiles(const struct moe_config *c, const float *queries, float *tiles)
{
    for (uint32_t h = 0; h < c->index_heads; h += MOE_TILE)
        for (uint32_t i = 0; i < c->index_dim; i++)
            for (uint32_t t = 0; t < MOE_TILE; t++)
                *tiles++ = h + t < c->index_heads ? queries[(h + t) * c->index_dim + i] : 0;
}

void stages_cpu_index_scores(const struct moe_config *c, struct moe_layout layout,
                             const float *tiles, const float *weights, const uint8_t *keys,
                             uint32_t n, float *products, float *scores)
{
    int form = moe_kern_layout_index(layout.kind);
    uint64_t item = moe_layout_bits(layout.kind) / 8;
    memset(scores, 0, n * sizeof *scores);
    for (uint32_t h = 0; h < c->index_heads; h += MOE_TILE) {
        const struct moe_tile in = {.x = tiles + (uint64_t)h * c->index_dim};
        for (uint32_t i = 0; i < n; i += MOE_PANEL_ROWS)
            moe_kern.panel[form][MOE_N_TILES - 1](keys + (uint64_t)i * c->index_dim * item, layout,
                                                  c->index_dim, &in, products + i, CHUNK);
        for (uint32_t t = 0; t < MOE_TILE && h + t < c->index_heads; t++) {
            float *of = products + t * CHUNK;
            moe_kern.relu(of, n, of);
            moe_kern.axpy(weights[h + t], of, n, scores);
        }
    }
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
    stages_cpu_index_scores(p->c, (struct moe_layout){.kind = MOE_LAYOUT_F32}, tiles,
                            p->e->weights + row * p->e->weights_stride,
                            (const uint8_t *)(part.index + (uint64_t)base * p->c->index_dim),
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
        stages_cpu_index_tiles(p->c, p->e->queries + row * p->e->queries_stride, s.tiles);
        for (uint32_t chunk = 0; chunk * CHUNK < n; chunk++)
            score_chunk(p, row, chunk, s.tiles, s.products, s.scores);
        choose(p, row, s.scores);
    }
}

/* Of the only row: threads share its entries, and the first one's tiles and scores. */
static void score_chunks(void *ctx, int64_t begin, int64_t end, int thread)
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
    stages_cpu_index_tiles(c, p.e->queries, first.tiles);
    if (n_seen(&p, 0) > c->index_top)
        moe_par_for((n_seen(&p, 0) - 1) / CHUNK + 1, 1, score_chunks, &p);
    choose(&p, 0, first.scores);
}
