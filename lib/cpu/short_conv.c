/*
 * A short convolution (LFM2) on the processor (recurrent.c): values that were scaled value by value
 * go through a causal convolution over the last tokens; the gate scales what comes out. A channel's
 * sum runs over its taps, the oldest first.
 */
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"

enum { CHUNK = 256 }; /* channels */

/* n channels of a row, from `at` on: out, where the scales were, becomes what the layer gives. */
static void convolve_row(const struct cpu_state_pass *p, uint32_t row, uint32_t at, uint32_t n)
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
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        uint32_t at = (uint32_t)i * CHUNK, left = p->c->hidden - at;
        for (uint32_t row = 0; row < p->n_rows; row++)
            convolve_row(p, row, at, left < CHUNK ? left : CHUNK);
    }
}

void stages_cpu_short_conv(struct cpu_state_pass *p)
{
    moe_par_for((p->c->hidden + CHUNK - 1) / CHUNK, 1, convolve, p);
}
