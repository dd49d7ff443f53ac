/*
 * The entries of layers that compress, as layer/compressed.h defines them. Rows of a pass see each
 * other's, so all are made before attention: first from the pass and what was kept before it, then
 * the pass is kept. A sum over places goes by rising place, sum and result by fma and one division.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "model/config_states.h"

struct compress {
    struct moe_session *s;
    const struct moe_config *c;
    const struct moe_layer *l;
    struct cpu_work *w;
    struct moe_compressed_row row;
    const struct moe_row *rows;
    uint32_t layer;
};

/* Entries of one kind: where in a position's floats they come from, and how wide one is. */
struct kind {
    uint64_t values, gates;
    const float *bias, *norm;
    uint32_t width;
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

static void make_entry(const struct compress *p, const struct kind *k, const float *const *from,
                       uint32_t n, uint32_t ratio, uint32_t number, float *entry)
{
    bool overlap = p->c->layer_compresses[p->layer] == MOE_COMPRESS_CHOSEN;
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
        moe_kv_put(&p->w->kv, part.keys, part.values, part.n_entries, number, entry, entry);
        if (!part.index)
            continue;
        make_entry(p, &index, from, n, part.ratio, number, entry);
        float *panel = part.index + (uint64_t)(number / 16) * 16 * index.width + number % 16;
        for (uint32_t d = 0; d < index.width; d++)
            panel[d * 16] = entry[d];
    }
}

static void keep(const struct compress *p, uint32_t n_rows)
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
    keep(&p, n_rows);
    moe_recurrent_passed(s, layer, rows, n_rows);
    if (c->layer_compresses[layer] == MOE_COMPRESS_CHOSEN)
        stages_cpu_choose_entries(s, layer, rows, n_rows);
}
