/*
 * Mamba on the processor (recurrent.c): values alone are convolved; products of them make keys,
 * queries and, through a vector, the steps of each value. Every cell of the state decays by a
 * number of its own and takes its value in, scaled by the step; what queries read of it, and a part
 * of the values themselves, are gated.
 */
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    const struct moe_config *c = p->c;
    for (int64_t i = begin; i < end; i++) {
        float *query = p->w->mixed + (uint64_t)i * p->r->stride, *key = query + p->r->keys_at;
        float *low = p->w->low[1] + (uint64_t)i * p->w->low_stride;
        moe_kern.rms_norm(query, p->layer->state_q_norm, c->state_key_dim, c->norm_eps, query);
        moe_kern.rms_norm(key, p->layer->state_k_norm, c->state_key_dim, c->norm_eps, key);
        moe_kern.rms_norm(low, p->layer->state_decay_norm, c->state_step_rank, c->norm_eps, low);
    }
}

/* Keys, queries and steps out of values. */
static void project_values(struct cpu_state_pass *p)
{
    const struct moe_layer *l = p->layer;
    struct cpu_recurrent *w = p->w;
    uint64_t stride = p->r->stride;
    moe_inputs_set(&w->from_out, w->mixed + p->r->values_at, stride, NULL, p->n_rows,
                   l->state_k.cols);
    struct moe_mm in[] = {
        moe_inputs_mm(&w->from_out, l->state_q, w->mixed, stride),
        moe_inputs_mm(&w->from_out, l->state_k, w->mixed + p->r->keys_at, stride),
        moe_inputs_mm(&w->from_out, l->state_decay_down, w->low[1], w->low_stride),
    };
    moe_matmul(in, sizeof in / sizeof in[0]);
    moe_par_for(p->n_rows, 4, norm_rows, p);
    moe_inputs_set(&w->from_low[1], w->low[1], w->low_stride, NULL, p->n_rows, l->state_decay.cols);
    in[0] = moe_inputs_mm(&w->from_low[1], l->state_decay, w->decay, w->decay_stride);
    moe_matmul(in, 1);
}

/* All rows of one panel of values. */
static void step_panel(const struct cpu_state_pass *p, uint32_t panel)
{
    const struct moe_config *c = p->c;
    const struct moe_layer *l = p->layer;
    uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
    float rates[MOE_MAX_SELECTED * MOE_PANEL_ROWS] = {0}, steps[MOE_PANEL_ROWS] = {0};
    n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
    for (uint32_t k = 0; k < c->state_key_dim; k++)
        memcpy(rates + k * MOE_PANEL_ROWS, l->state_rate + (uint64_t)k * c->state_value_dim + first,
               n * sizeof *rates);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *x = p->w->mixed + i * p->r->stride, *value = x + p->r->values_at + first;
        const float *decay = p->w->decay + i * p->w->decay_stride + first;
        uint64_t at = i * p->w->values_stride + first;
        float y[MOE_PANEL_ROWS] = {0};
        for (uint32_t r = 0; r < n; r++) {
            steps[r] = moe_math_softplus(decay[r] + l->state_step[first + r]);
            y[r] = value[r] * steps[r];
        }
        moe_kern.select_step(stages_cpu_state_panel(p, i, 0, panel), rates, steps,
                             x + p->r->keys_at, x, y, c->state_key_dim, y);
        moe_kern.mul_add(l->state_skip + first, value, n, y);
        moe_kern.swiglu(p->w->gate + at, y, n, p->w->out + at);
    }
}

static void step_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    for (int64_t i = begin; i < end; i++)
        step_panel(ctx, (uint32_t)i);
}

void stages_cpu_state_select(struct cpu_state_pass *p)
{
    stages_cpu_convolve(p);
    project_values(p);
    moe_par_for(p->r->n_panels, 4, step_panels, p);
}
