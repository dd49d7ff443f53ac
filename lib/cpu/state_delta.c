/*
 * Gated DeltaNet, and KDA with a decay for each key, on the processor (recurrent.c): after the
 * convolution queries and keys become unit vectors; the state takes a step for each token; a norm,
 * and the gate.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

/* ---- Before and after the state ---- */

static void make_unit(float *x, uint32_t n, float factor)
{
    moe_kern.scale(factor / sqrtf(moe_kern.dot(x, x, n) + 1e-6f), n, x);
}

/* Of a head: one, or of KDA one for each key. */
static uint32_t decays_of(const struct moe_config *c)
{
    return c->state_kind == MOE_STATE_KDA ? c->state_key_dim : 1;
}

static void prepare_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    const struct moe_config *c = p->c;
    uint32_t each = decays_of(c);
    float factor = 1.0f / sqrtf((float)c->state_key_dim);
    for (int64_t i = begin; i < end; i++) {
        float *x = p->w->mixed + (uint64_t)i * p->r->stride;
        float *beta = p->w->beta + (uint64_t)i * p->w->heads_stride;
        float *decay = p->w->decay + (uint64_t)i * p->w->decay_stride;
        for (uint32_t head = 0; head < c->state_key_heads; head++) {
            make_unit(x + head * c->state_key_dim, c->state_key_dim, factor);
            make_unit(x + p->r->keys_at + head * c->state_key_dim, c->state_key_dim, 1);
        }
        for (uint32_t head = 0; head < c->state_heads; head++) {
            float rate = moe_math_exp(p->layer->state_rate[head]);
            beta[head] = moe_math_sigmoid(beta[head]);
            for (uint32_t k = head * each; k < (head + 1) * each; k++)
                decay[k] =
                    moe_math_exp(-(rate * moe_math_softplus(decay[k] + p->layer->state_step[k])));
        }
    }
}

static void finish_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    uint32_t n = p->c->state_value_dim;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t head = 0; head < p->c->state_heads; head++) {
            uint64_t at = (uint64_t)i * p->w->values_stride + head * n;
            float *out = p->w->out + at;
            moe_kern.rms_norm(out, p->layer->state_norm, n, p->c->norm_eps, out);
            if (p->c->state_kind == MOE_STATE_DELTA)
                moe_kern.swiglu(p->w->gate + at, out, n, out);
            for (uint32_t r = 0; p->c->state_kind == MOE_STATE_KDA && r < n; r++)
                out[r] *= moe_math_sigmoid(p->w->gate[at + r]);
        }
}

/* ---- The state ---- */

/* All rows of one panel of a head's values. */
static void step_panel(const struct cpu_state_pass *p, uint32_t head, uint32_t panel)
{
    const struct moe_config *c = p->c;
    uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
    uint32_t keys = moe_config_state_key_head(c, head) * c->state_key_dim;
    uint64_t values = head * c->state_value_dim + first;
    uint32_t each = decays_of(c);
    float same[MOE_MAX_HEAD_DIM];
    n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *x = p->w->mixed + i * p->r->stride;
        const uint64_t at = i * p->w->heads_stride + head;
        const float *decay = p->w->decay + i * p->w->decay_stride + head * each;
        float y[MOE_PANEL_ROWS] = {0};
        for (uint32_t k = 0; each == 1 && k < c->state_key_dim; k++)
            same[k] = *decay;
        memcpy(y, x + p->r->values_at + values, n * sizeof *y);
        moe_kern.delta_step(stages_cpu_state_panel(p, i, head, panel), x + p->r->keys_at + keys,
                            x + keys, y, c->state_key_dim, each == 1 ? same : decay, p->w->beta[at],
                            y);
        memcpy(p->w->out + i * p->w->values_stride + values, y, n * sizeof *y);
    }
}

static void step_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++)
        step_panel(p, (uint32_t)(i / p->r->n_panels), (uint32_t)(i % p->r->n_panels));
}

void stages_cpu_state_delta(struct cpu_state_pass *p)
{
    stages_cpu_convolve(p);
    moe_par_for(p->n_rows, 1, prepare_rows, p);
    moe_par_for((int64_t)p->c->state_heads * p->r->n_panels, 1, step_panels, p);
    moe_par_for(p->n_rows, 1, finish_rows, p);
}
