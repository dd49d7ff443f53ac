/*
 * Shared keys (DeepSeek-V4): one vector is key and value of all heads, and rotated in its last
 * values. So outputs are sums of rotated values; turned back by their row's angles they depend on
 * distances alone. They go through a low-rank matrix, one block for each group of heads, and one
 * for all.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

struct shared {
    struct moe_session *s;
    const struct moe_row *rows;
    const struct moe_layer *layer;
    struct cpu_attention *w;
    uint32_t number; /* the layer's */
};

const float *stages_cpu_shared_angles(const struct moe_session *s, uint32_t layer,
                                      uint32_t position)
{
    const struct moe_model *m = s->model;
    const float *table = m->config.layer_compresses[layer] ? m->global_rope : m->rope;
    return table + (uint64_t)position * m->config.rope_dim;
}

void stages_cpu_turn(const struct moe_config *c, const float *angles, bool back, uint32_t width,
                     float *x)
{
    float *pair = x + width - c->rope_dim;
    for (uint32_t i = 0; i < c->rope_dim; i += 2)
        moe_math_rotate(&pair[i], &pair[i + 1], angles[i], back ? -angles[i + 1] : angles[i + 1]);
}

static void norm_q_down_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shared *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        float *x = p->w->q_down + (uint64_t)i * p->w->stride.q_down;
        moe_kern.rms_norm(x, p->layer->q_down_norm, c->q_rank, c->norm_eps, x);
    }
}

static void finish_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shared *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    const struct cpu_attention *w = p->w;
    for (int64_t i = begin; i < end; i++) {
        const float *angles = stages_cpu_shared_angles(p->s, p->number, p->rows[i].position);
        float *q = w->q + (uint64_t)i * w->stride.q, *k = w->k + (uint64_t)i * w->stride.k;
        for (uint32_t head = 0; head < c->n_heads; head++, q += c->head_dim) {
            float lane[MOE_LANES] = {0};
            for (uint32_t d = 0; d < c->head_dim; d++)
                lane[d % MOE_LANES] = fmaf(q[d], q[d], lane[d % MOE_LANES]);
            moe_kern.scale(moe_math_rms_scale(moe_math_join(lane), c->head_dim, c->norm_eps),
                           c->head_dim, q);
            stages_cpu_turn(c, angles, false, c->head_dim, q);
        }
        moe_kern.rms_norm(k, p->layer->k_norm, c->head_dim, c->norm_eps, k);
        stages_cpu_turn(c, angles, false, c->head_dim, k);
        memcpy(w->v + (uint64_t)i * w->stride.v, k, c->head_dim * sizeof *k);
    }
}

void stages_cpu_shared_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    struct moe_inputs *from = &s->states.inputs;
    struct shared p = {s, rows, l, w, layer};
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, n_rows, c->hidden);
    struct moe_mm mm[2] = {moe_inputs_mm(from, l->q_down, w->q_down, w->stride.q_down),
                           moe_inputs_mm(from, l->k, w->k, w->stride.k)};
    moe_matmul(mm, 2);
    moe_par_for(n_rows, 16, norm_q_down_rows, &p);
    moe_inputs_set(&w->from_q_down, w->q_down, w->stride.q_down, NULL, n_rows, c->q_rank);
    mm[0] = moe_inputs_mm(&w->from_q_down, l->q, w->q, w->stride.q);
    moe_matmul(mm, 1);
    moe_par_for(n_rows, 8, finish_rows, &p);
}

static void turn_back_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shared *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        const float *angles = stages_cpu_shared_angles(p->s, p->number, p->rows[i].position);
        float *out = p->w->out + (uint64_t)i * p->w->stride.out;
        for (uint32_t head = 0; head < c->n_heads; head++, out += c->head_dim)
            stages_cpu_turn(c, angles, true, c->head_dim, out);
    }
}

void stages_cpu_shared_out(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_work *work = s->device;
    struct cpu_attention *w = &work->attention;
    struct shared p = {s, rows, l, w, layer};
    moe_par_for(n_rows, 8, turn_back_rows, &p);
    stages_cpu_multiply_blocks(w, &l->out_down, c->out_groups, n_rows, w->out, w->stride.out,
                               l->out_down.cols, w->low, w->low_stride, c->out_rank);
    moe_inputs_set(&w->from_low, w->low, w->low_stride, NULL, n_rows, l->o.cols);
    struct moe_mm mm = moe_inputs_mm(&w->from_low, l->o, work->sum, s->states.stride);
    moe_matmul(&mm, 1);
}
