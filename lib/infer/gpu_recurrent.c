/*
 * A layer with a recurrent state on a GPU, as infer/cpu_recurrent.c: products make queries, keys,
 * values, gates and numbers for each head; the states take their steps; what they give is normed
 * and gated.
 */
#include "infer/gpu_stages.h"

/* A pass through such a layer. */
struct pass {
    struct moe_session *s;
    const struct moe_config *c;
    const struct moe_layer *l;
    struct gpu_work *g;
    struct gpu_recurrent *w;
    uint32_t n_rows;
};

static struct moe_gpu_product times(const struct pass *p, const struct moe_mat *mat,
                                    const struct moe_gpu_act *in, float *to, uint64_t stride)
{
    return stages_gpu_product(*mat, in, p->n_rows, to, stride);
}

/* The inputs that lie at room->x, in the forms that two matrices want (NULL: one). */
static struct moe_gpu_act inputs_of(const struct moe_gpu_act *room, const struct moe_mat *a,
                                    const struct moe_mat *b)
{
    struct moe_gpu_act in = gpu_act_plain(room, a->cols);
    gpu_act_want(&in, room, a->layout);
    if (b)
        gpu_act_want(&in, room, b->layout);
    return in;
}

/* What the layer makes of its input, by those of the matrices that it has. */
static void project_in(const struct pass *p, const struct moe_gpu_act *in)
{
    const struct moe_layer *l = p->l;
    const struct gpu_recurrent *w = p->w;
    const struct moe_recurrent *r = &p->g->states;
    bool low = l->state_z_down.data != NULL, select = p->c->state_kind == MOE_STATE_SELECT;
    uint64_t values = w->stride.values;
    const struct moe_gpu_product all[] = {
        times(p, &l->state_v, in, w->mixed + r->values_at, r->stride),
        low ? times(p, &l->state_z_down, in, w->low[0].x, w->low_stride)
            : times(p, &l->state_z, in, w->gate, values),
        times(p, &l->state_scale, in, w->out, values),
        times(p, &l->state_beta, in, w->beta, w->stride.heads),
        /* Of Mamba out of values (project_values). */
        times(p, &l->state_q, in, w->mixed, r->stride),
        times(p, &l->state_k, in, w->mixed + r->keys_at, r->stride),
        low ? times(p, &l->state_decay_down, in, w->low[1].x, w->low_stride)
            : times(p, &l->state_decay, in, w->decay, w->stride.decay),
    };
    enum { N_ALL = sizeof all / sizeof *all, N_OF_VALUES = 3 };
    struct moe_gpu_product list[N_ALL];
    uint32_t n = 0;
    for (int i = 0; i < (select ? N_ALL - N_OF_VALUES : N_ALL); i++)
        if (all[i].w.data)
            list[n++] = all[i];
    moe_gpu_matmul(p->g->gpu, list, n);
}

/* Gates and decays out of their vectors (KDA). */
static void project_low(const struct pass *p)
{
    const struct gpu_recurrent *w = p->w;
    const struct moe_mat *mats[2] = {&p->l->state_z, &p->l->state_decay};
    struct moe_gpu_act in[2];
    for (int i = 0; i < 2; i++) {
        in[i] = inputs_of(&w->low[i], mats[i], NULL);
        moe_gpu_prepare(p->g->gpu, in[i].x, in[i].x_stride, p->n_rows, 1, 0, &in[i]);
    }
    const struct moe_gpu_product list[2] = {
        times(p, mats[0], &in[0], w->gate, w->stride.values),
        times(p, mats[1], &in[1], w->decay, w->stride.decay),
    };
    moe_gpu_matmul(p->g->gpu, list, 2);
}

static void norm(const struct pass *p, float *x, uint64_t stride, const float *weights,
                 uint32_t cols)
{
    const struct moe_gpu_norm_parts parts = {.x = x,
                                             .stride = stride,
                                             .n_parts = 1,
                                             .cols = cols,
                                             .weights = weights,
                                             .eps = p->c->norm_eps};
    moe_gpu_norm_parts(p->g->gpu, &parts, p->n_rows);
}

/* Keys, queries and steps out of values (Mamba). */
static void project_values(const struct pass *p)
{
    const struct moe_layer *l = p->l;
    const struct gpu_recurrent *w = p->w;
    const struct moe_recurrent *r = &p->g->states;
    struct moe_gpu_act in = inputs_of(&w->from_values, &l->state_q, &l->state_k);
    gpu_act_want(&in, &w->from_values, l->state_decay_down.layout);
    moe_gpu_prepare(p->g->gpu, in.x, in.x_stride, p->n_rows, 1, 0, &in);
    const struct moe_gpu_product list[] = {
        times(p, &l->state_q, &in, w->mixed, r->stride),
        times(p, &l->state_k, &in, w->mixed + r->keys_at, r->stride),
        times(p, &l->state_decay_down, &in, w->low[1].x, w->low_stride),
    };
    moe_gpu_matmul(p->g->gpu, list, 3);
    norm(p, w->mixed, r->stride, l->state_q_norm, p->c->state_key_dim);
    norm(p, w->mixed + r->keys_at, r->stride, l->state_k_norm, p->c->state_key_dim);
    norm(p, w->low[1].x, w->low_stride, l->state_decay_norm, p->c->state_step_rank);
    in = inputs_of(&w->low[1], &l->state_decay, NULL);
    moe_gpu_prepare(p->g->gpu, in.x, in.x_stride, p->n_rows, 1, 0, &in);
    const struct moe_gpu_product decay = times(p, &l->state_decay, &in, w->decay, w->stride.decay);
    moe_gpu_matmul(p->g->gpu, &decay, 1);
}

static struct moe_gpu_recurrent states_of(const struct pass *p, uint32_t layer)
{
    const struct moe_config *c = p->c;
    const struct moe_layer *l = p->l;
    const struct gpu_recurrent *w = p->w;
    const struct moe_recurrent *r = &p->g->states;
    return (struct moe_gpu_recurrent){
        .kind = c->state_kind,
        .n_heads = c->state_heads,
        .n_key_heads = c->state_key_heads,
        .key_dim = c->state_key_dim,
        .value_dim = c->state_value_dim,
        .keys_in_turn = c->state_keys_in_turn,
        .states = {r->memory, r->n_taps, r->n_panels, r->keys_at, r->values_at, r->stride, r->panel,
                   r->layer, r->sequence},
        .layer = c->layers[layer].recurrent_index,
        .rows = p->g->rows,
        .mixed = w->mixed,
        .gate = w->gate,
        .out = w->out,
        .beta = w->beta,
        .decay = w->decay,
        .values_stride = w->stride.values,
        .heads_stride = w->stride.heads,
        .decay_stride = w->stride.decay,
        .conv = l->state_conv,
        .conv_bias = l->state_conv_bias,
        .conv_q = l->state_conv_q,
        .conv_k = l->state_conv_k,
        .step = l->state_step,
        .rate = l->state_rate,
        .skip = l->state_skip,
    };
}

/* out, gated and normed as its kind has it, and its byte forms. */
static void finish_states(const struct pass *p, const struct moe_gpu_act *out)
{
    const struct moe_config *c = p->c;
    const struct gpu_recurrent *w = p->w;
    bool scan = c->state_kind == MOE_STATE_SCAN;
    uint32_t values = c->state_heads * c->state_value_dim;
    struct moe_gpu_gate gate = {.x = w->out,
                                .gate = w->gate,
                                .x_stride = w->stride.values,
                                .gate_stride = w->stride.values,
                                .silu = c->state_kind != MOE_STATE_KDA,
                                .act = *out};
    const struct moe_gpu_norm_parts norms = {
        .x = w->out,
        .stride = w->stride.values,
        .n_parts = scan ? c->state_key_heads : c->state_heads,
        .cols = scan ? values / c->state_key_heads : c->state_value_dim,
        .weights = p->l->state_norm,
        .weights_of_parts = scan,
        .eps = c->norm_eps,
    };
    bool gated = c->state_kind == MOE_STATE_CONV || c->state_kind == MOE_STATE_SELECT;
    if (scan) {
        gate.act = gpu_act_plain(out, values);
        moe_gpu_gate(p->g->gpu, &gate, p->n_rows);
    }
    if (!gated)
        moe_gpu_norm_parts(p->g->gpu, &norms, p->n_rows);
    if (!gated && !scan)
        moe_gpu_gate(p->g->gpu, &gate, p->n_rows);
    else
        moe_gpu_prepare(p->g->gpu, w->out, w->stride.values, p->n_rows, 1, 0, out);
}

struct moe_gpu_act stages_gpu_recurrent(struct moe_session *s, uint32_t layer,
                                        const struct moe_gpu_act *in, uint32_t n_rows)
{
    struct gpu_work *g = s->device;
    const struct moe_config *c = &s->model->config;
    const struct pass p = {s, c, &s->model->layers[layer], g, &g->recurrent, n_rows};
    const struct moe_gpu_recurrent states = states_of(&p, layer);
    const struct moe_gpu_act out = inputs_of(&g->recurrent.from_out, &p.l->state_o, NULL);
    project_in(&p, in);
    if (c->state_kind == MOE_STATE_KDA)
        project_low(&p);
    moe_gpu_convolve(g->gpu, &states, n_rows);
    if (c->state_kind == MOE_STATE_SELECT)
        project_values(&p);
    if (c->state_kind != MOE_STATE_CONV)
        moe_gpu_step_states(g->gpu, &states, n_rows);
    finish_states(&p, &out);
    return out;
}
