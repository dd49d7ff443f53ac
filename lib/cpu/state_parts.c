/*
 * What kinds of recurrent states share on the processor (recurrent.c): the causal convolution of
 * queries, keys and values, and where panels of a state lie.
 */
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"

enum { CHUNK = 256 }; /* channels */

/* ---- The convolution ---- */

/* A part of a row of the convolution: queries, keys or values. */
struct part {
    uint64_t at;          /* in a row */
    uint32_t n, channels; /* of the part; of all whose weights lie together: */
    const float *weights, *bias;
};

static struct part part_of(const struct cpu_state_pass *p, int i)
{
    const struct moe_layer *l = p->layer;
    uint32_t keys = p->c->state_key_heads * p->c->state_key_dim;
    if (p->c->state_kind == MOE_STATE_SELECT)
        keys = 0; /* are not convolved */
    uint32_t values = p->c->state_heads * p->c->state_value_dim, all = 2 * keys + values;
    bool scan = p->c->state_kind == MOE_STATE_SCAN; /* values, keys, queries */
    const uint32_t first[3] = {scan ? values + keys : 0, scan ? values : keys, scan ? 0 : 2 * keys};
    const struct part parts[3] = {
        {0, keys, keys, l->state_conv_q, NULL},
        {p->r->keys_at, keys, keys, l->state_conv_k, NULL},
        {p->r->values_at, values, values, l->state_conv, NULL},
    };
    struct part part = parts[i];
    if (!l->state_conv_q) { /* one convolution for all three */
        part.channels = all;
        part.weights = l->state_conv + first[i];
        part.bias = l->state_conv_bias ? l->state_conv_bias + first[i] : NULL;
    }
    return part;
}

static uint32_t chunks_of(uint32_t n)
{
    return (n + CHUNK - 1) / CHUNK;
}

/* n channels of a part, from `first` on, of all rows. */
static void convolve_chunk(const struct cpu_state_pass *p, const struct part *part, uint32_t first,
                           uint32_t n)
{
    uint32_t channels = part->channels, n_taps = p->r->n_taps;
    uint64_t at = part->at + first;
    const float *weights = part->weights + first, *bias = part->bias;
    float sum[CHUNK];
    for (uint32_t i = 0; i < p->n_rows; i++) {
        float *x = p->w->mixed + i * p->r->stride + at;
        float *taps = moe_recurrent_taps(p->r, p->rows[i].sequence, p->state) + at;
        memset(sum, 0, sizeof sum);
        if (bias)
            memcpy(sum, bias + first, n * sizeof *sum);
        for (uint32_t t = 0; t < n_taps; t++) {
            float *tap = taps + t * p->r->stride;
            if (p->rows[i].position == 0)
                memset(tap, 0, n * sizeof *tap);
            moe_kern.mul_add(weights + (uint64_t)t * channels, tap, n, sum);
        }
        moe_kern.mul_add(weights + (uint64_t)n_taps * channels, x, n, sum);
        for (uint32_t t = 0; t < n_taps; t++)
            memcpy(taps + t * p->r->stride, t + 1 < n_taps ? taps + (t + 1) * p->r->stride : x,
                   n * sizeof *x);
        moe_kern.silu(sum, n, x);
    }
}

static void convolve(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        int64_t chunk = i;
        struct part part = part_of(p, 0);
        for (int k = 1; chunk >= chunks_of(part.n); part = part_of(p, k++))
            chunk -= chunks_of(part.n);
        uint32_t from = (uint32_t)chunk * CHUNK, left = part.n - from;
        convolve_chunk(p, &part, from, left < CHUNK ? left : CHUNK);
    }
}

void stages_cpu_convolve(struct cpu_state_pass *p)
{
    uint32_t n_chunks = 0;
    for (int i = 0; i < 3; i++)
        n_chunks += chunks_of(part_of(p, i).n);
    moe_par_for(n_chunks, 1, convolve, p);
}

/* ---- Panels of the state ---- */

float *stages_cpu_state_panel(const struct cpu_state_pass *p, uint32_t row, uint32_t head,
                              uint32_t panel)
{
    float *state = moe_recurrent_panel(p->r, p->rows[row].sequence, p->state, head, panel);
    if (p->rows[row].position == 0)
        memset(state, 0, p->r->panel * sizeof *state);
    return state;
}
