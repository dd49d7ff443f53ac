/*
 * A layer with a short convolution (LFM2) on the processor: a product makes values, what scales
 * them and a gate; the scaled values go through a causal convolution over the last tokens; the gate
 * scales what comes out, before the output's product.
 *
 * Defined token by token, as recurrent.c: a channel's sum runs over its taps, the oldest first, and
 * channels do not know each other, so that the same bits come of any batch and thread count.
 */
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "layer/recurrent.h"

enum { CHUNK = 256 }; /* channels */

struct pass {
    const struct moe_config *c;
    const struct moe_layer *layer;
    const struct moe_recurrent *r;
    const struct cpu_recurrent *w;
    const struct moe_row *rows;
    uint32_t n_rows, state; /* its number among recurrent layers */
};

/* n channels of a row, from `at` on: out, where the scales were, becomes what the layer gives. */
static void convolve_row(const struct pass *p, uint32_t row, uint32_t at, uint32_t n)
{
    uint32_t channels = p->c->hidden, n_taps = p->r->n_taps;
    uint64_t stride = p->r->stride, here = row * p->w->values_stride + at;
    const float *weights = p->layer->state_conv + at;
    float *taps = moe_recurrent_taps(p->r, p->rows[row].sequence, p->state) + at;
    float *out = p->w->out + here;
    float x[CHUNK] = {0}, sum[CHUNK] = {0};
    moe_kern.mul_add(out, p->w->mixed + row * stride + at, n, x);
    for (uint32_t t = 0; t < n_taps; t++) {
        if (p->rows[row].position == 0)
            memset(taps + t * stride, 0, n * sizeof *taps);
        moe_kern.mul_add(weights + (uint64_t)t * channels, taps + t * stride, n, sum);
    }
    moe_kern.mul_add(weights + (uint64_t)n_taps * channels, x, n, sum);
    for (uint32_t t = 0; t < n_taps; t++)
        memcpy(taps + t * stride, t + 1 < n_taps ? taps + (t + 1) * stride : x, n * sizeof *x);
    memset(out, 0, n * sizeof *out);
    moe_kern.mul_add(p->w->gate + here, sum, n, out);
}

static void convolve(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        uint32_t at = (uint32_t)i * CHUNK, left = p->c->hidden - at;
        for (uint32_t row = 0; row < p->n_rows; row++)
            convolve_row(p, row, at, left < CHUNK ? left : CHUNK);
    }
}

void stages_cpu_short_conv(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_work *work = s->device;
    struct cpu_recurrent *w = &work->recurrent;
    struct moe_inputs *from = &s->states.inputs;
    struct pass p = {
        .c = c, .layer = l, .r = &work->states, .w = w, .rows = rows, .n_rows = n_rows};
    p.state = moe_config_recurrent_layers(c, layer);
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, n_rows, c->hidden);
    struct moe_mm in[] = {
        moe_inputs_mm(from, l->state_v, w->mixed, work->states.stride),
        moe_inputs_mm(from, l->state_z, w->gate, w->values_stride),
        moe_inputs_mm(from, l->state_scale, w->out, w->values_stride),
    };
    moe_matmul(in, sizeof in / sizeof in[0]);
    moe_par_for((c->hidden + CHUNK - 1) / CHUNK, 1, convolve, &p);
    moe_inputs_set(&w->from_out, w->out, w->values_stride, NULL, n_rows, l->state_o.cols);
    struct moe_mm out = moe_inputs_mm(&w->from_out, l->state_o, work->sum, s->states.stride);
    moe_matmul(&out, 1);
    moe_recurrent_passed(s, layer, rows, n_rows);
}
