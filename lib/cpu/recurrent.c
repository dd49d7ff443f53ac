/*
 * A layer with a recurrent state (gated DeltaNet) on the processor: products make queries, keys,
 * values, gates and two numbers for each head; a causal convolution over the last tokens and silu;
 * queries and keys become unit vectors; the state takes a step for each token; a norm, the gate,
 * the output's product.
 *
 * Defined token by token: every sum runs over what a row has, in one order, and states are changed
 * row after row, so that the same bits come of any batch. Channels, and panels of the state, do not
 * know each other: threads share these and not the rows.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
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

/* ---- The convolution ---- */

/* A part of a row of the convolution: queries, keys or values. */
struct part {
    uint64_t at;       /* in a row */
    uint32_t first, n; /* channels */
};

static struct part part_of(const struct pass *p, int i)
{
    uint32_t keys = p->c->state_key_heads * p->c->state_key_dim;
    const struct part parts[3] = {
        {0, 0, keys},
        {p->r->keys_at, keys, keys},
        {p->r->values_at, 2 * keys, p->c->state_heads * p->c->state_value_dim},
    };
    return parts[i];
}

static uint32_t chunks_of(uint32_t n)
{
    return (n + CHUNK - 1) / CHUNK;
}

/* n channels of all rows, from `at` on in a row; channel: the first one's number. */
static void convolve_chunk(const struct pass *p, uint64_t at, uint32_t channel, uint32_t n)
{
    uint32_t channels = moe_config_state_channels(p->c), n_taps = p->r->n_taps;
    const float *weights = p->layer->state_conv + channel;
    float sum[CHUNK];
    for (uint32_t i = 0; i < p->n_rows; i++) {
        float *x = p->w->mixed + i * p->r->stride + at;
        float *taps = moe_recurrent_taps(p->r, p->rows[i].sequence, p->state) + at;
        memset(sum, 0, sizeof sum);
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
    const struct pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        int64_t chunk = i;
        struct part part = part_of(p, 0);
        for (int k = 1; chunk >= chunks_of(part.n); part = part_of(p, k++))
            chunk -= chunks_of(part.n);
        uint32_t from = (uint32_t)chunk * CHUNK, left = part.n - from;
        convolve_chunk(p, part.at + from, part.first + from, left < CHUNK ? left : CHUNK);
    }
}

/* ---- Before and after the state ---- */

static void make_unit(float *x, uint32_t n, float factor)
{
    moe_kern.scale(factor / sqrtf(moe_kern.dot(x, x, n) + 1e-6f), n, x);
}

static void prepare_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct pass *p = ctx;
    const struct moe_config *c = p->c;
    float factor = 1.0f / sqrtf((float)c->state_key_dim);
    for (int64_t i = begin; i < end; i++) {
        float *x = p->w->mixed + (uint64_t)i * p->r->stride;
        float *beta = p->w->beta + (uint64_t)i * p->w->heads_stride;
        float *decay = p->w->decay + (uint64_t)i * p->w->heads_stride;
        for (uint32_t head = 0; head < c->state_key_heads; head++) {
            make_unit(x + head * c->state_key_dim, c->state_key_dim, factor);
            make_unit(x + p->r->keys_at + head * c->state_key_dim, c->state_key_dim, 1);
        }
        for (uint32_t head = 0; head < c->state_heads; head++) {
            float step = moe_math_softplus(decay[head] + p->layer->state_step[head]);
            beta[head] = moe_math_sigmoid(beta[head]);
            decay[head] = moe_math_exp(-(moe_math_exp(p->layer->state_rate[head]) * step));
        }
    }
}

static void finish_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct pass *p = ctx;
    uint32_t n = p->c->state_value_dim;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t head = 0; head < p->c->state_heads; head++) {
            uint64_t at = (uint64_t)i * p->w->values_stride + head * n;
            float *out = p->w->out + at;
            moe_kern.rms_norm(out, p->layer->state_norm, n, p->c->norm_eps, out);
            moe_kern.swiglu(p->w->gate + at, out, n, out);
        }
}

/* ---- The state ---- */

/* All rows of one panel of a head's values. */
static void step_panel(const struct pass *p, uint32_t head, uint32_t panel)
{
    const struct moe_config *c = p->c;
    uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
    uint32_t keys = head / (c->state_heads / c->state_key_heads) * c->state_key_dim;
    uint64_t values = head * c->state_value_dim + first;
    n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *x = p->w->mixed + i * p->r->stride;
        const uint64_t at = i * p->w->heads_stride + head;
        float *state = moe_recurrent_panel(p->r, p->rows[i].sequence, p->state, head, panel);
        float y[MOE_PANEL_ROWS] = {0};
        if (p->rows[i].position == 0)
            memset(state, 0, p->r->panel * sizeof *state);
        memcpy(y, x + p->r->values_at + values, n * sizeof *y);
        moe_kern.delta_step(state, x + p->r->keys_at + keys, x + keys, y, c->state_key_dim,
                            p->w->decay[at], p->w->beta[at], y);
        memcpy(p->w->out + i * p->w->values_stride + values, y, n * sizeof *y);
    }
}

static void step_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct pass *p = ctx;
    for (int64_t i = begin; i < end; i++)
        step_panel(p, (uint32_t)(i / p->r->n_panels), (uint32_t)(i % p->r->n_panels));
}

/* ---- The whole ---- */

void stages_cpu_recurrent(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_work *work = s->device;
    struct cpu_recurrent *w = &work->recurrent;
    const struct moe_recurrent *r = &work->states;
    struct moe_inputs *from = &s->states.inputs;
    struct pass p = {c, l, r, w, rows, n_rows, moe_config_recurrent_layers(c, layer)};
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, n_rows, c->hidden);
    struct moe_mm in[] = {
        moe_inputs_mm(from, l->state_q, w->mixed, r->stride),
        moe_inputs_mm(from, l->state_k, w->mixed + r->keys_at, r->stride),
        moe_inputs_mm(from, l->state_v, w->mixed + r->values_at, r->stride),
        moe_inputs_mm(from, l->state_z, w->gate, w->values_stride),
        moe_inputs_mm(from, l->state_beta, w->beta, w->heads_stride),
        moe_inputs_mm(from, l->state_decay, w->decay, w->heads_stride),
    };
    moe_matmul(in, sizeof in / sizeof in[0]);
    uint32_t n_chunks = 0;
    for (int i = 0; i < 3; i++)
        n_chunks += chunks_of(part_of(&p, i).n);
    moe_par_for(n_chunks, 1, convolve, &p);
    moe_par_for(n_rows, 1, prepare_rows, &p);
    moe_par_for((int64_t)c->state_heads * r->n_panels, 1, step_panels, &p);
    moe_par_for(n_rows, 1, finish_rows, &p);
    moe_inputs_set(&w->from_out, w->out, w->values_stride, NULL, n_rows, l->state_o.cols);
    struct moe_mm out = moe_inputs_mm(&w->from_out, l->state_o, work->sum, s->states.stride);
    moe_matmul(&out, 1);
    moe_recurrent_passed(s, layer, rows, n_rows);
}
