/*
 * Mamba-2 on the processor (recurrent.c): after the convolution a head's state decays by a number
 * of the token's and takes its values in, scaled by the same number's step, along the token's keys;
 * what queries read of it, and a part of the values themselves, go through the gate and a norm over
 * the heads that share keys.
 *
 * transformers' prompts take no step below "time_step_min" of some configurations, its single
 * tokens do, as other implementations' all: so do these.
 */
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

/* beta = the token's steps, decay = what they leave of a state. */
static void prepare_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        float *step = p->w->beta + (uint64_t)i * p->w->heads_stride;
        float *decay = p->w->decay + (uint64_t)i * p->w->decay_stride;
        for (uint32_t head = 0; head < p->c->state_heads; head++) {
            step[head] = moe_math_softplus(decay[head] + p->layer->state_step[head]);
            decay[head] = moe_math_exp(-(moe_math_exp(p->layer->state_rate[head]) * step[head]));
        }
    }
}

/* All rows of one panel of a head's values. */
static void step_panel(const struct cpu_state_pass *p, uint32_t head, uint32_t panel)
{
    const struct moe_config *c = p->c;
    uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
    uint32_t keys = moe_config_state_key_head(c, head) * c->state_key_dim;
    uint64_t values = head * c->state_value_dim + first;
    float skip = p->layer->state_skip[head];
    n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *x = p->w->mixed + i * p->r->stride, *value = x + p->r->values_at + values;
        const uint64_t at = i * p->w->heads_stride + head;
        float y[MOE_PANEL_ROWS] = {0};
        memcpy(y, value, n * sizeof *y);
        moe_kern.scale(p->w->beta[at], n, y);
        moe_kern.scan_step(stages_cpu_state_panel(p, i, head, panel), x + p->r->keys_at + keys,
                           x + keys, y, c->state_key_dim,
                           p->w->decay[i * p->w->decay_stride + head], y);
        moe_kern.axpy(skip, value, n, y);
        memcpy(p->w->out + i * p->w->values_stride + values, y, n * sizeof *y);
    }
}

static void step_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++)
        step_panel(p, (uint32_t)(i / p->r->n_panels), (uint32_t)(i % p->r->n_panels));
}

static void finish_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    uint32_t values = p->c->state_heads * p->c->state_value_dim;
    uint32_t n = values / p->c->state_key_heads;
    for (int64_t i = begin; i < end; i++) {
        float *out = p->w->out + (uint64_t)i * p->w->values_stride;
        moe_kern.swiglu(p->w->gate + (uint64_t)i * p->w->values_stride, out, values, out);
        for (uint32_t at = 0; at < values; at += n)
            moe_kern.rms_norm(out + at, p->layer->state_norm + at, n, p->c->norm_eps, out + at);
    }
}

void stages_cpu_state_scan(struct cpu_state_pass *p)
{
    stages_cpu_convolve(p);
    moe_par_for(p->n_rows, 1, prepare_rows, p);
    moe_par_for((int64_t)p->c->state_heads * p->r->n_panels, 1, step_panels, p);
    moe_par_for(p->n_rows, 1, finish_rows, p);
}
