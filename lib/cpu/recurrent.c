/*
 * A layer with a recurrent state on the processor: products make queries, keys, values, gates and
 * numbers for each head; what becomes of them the kind of state says (state_delta.c, state_scan.c,
 * state_select.c, short_conv.c; state_parts.c is what these share); the output's product.
 *
 * Defined token by token: every sum runs over what a row has, in one order, and states are changed
 * row after row, so that the same bits come of any batch. Channels, and panels of the state, do not
 * know each other: threads share these and not the rows.
 */
#include "cpu/stages_cpu.h"

/* What the layer makes of the states' xn, by those of the matrices that it has. */
static void project_in(struct moe_session *s, const struct cpu_state_pass *p)
{
    struct moe_inputs *from = &s->states.inputs;
    const struct moe_layer *l = p->layer;
    struct cpu_recurrent *w = p->w;
    bool low = l->state_z_down.data != NULL, select = p->c->state_kind == MOE_STATE_SELECT;
    const struct {
        const struct moe_mat *mat;
        float *to;
        uint64_t stride;
        bool of_values; /* in Mamba */
    } all[] = {
        {&l->state_q, w->mixed, p->r->stride, true},
        {&l->state_k, w->mixed + p->r->keys_at, p->r->stride, true},
        {&l->state_v, w->mixed + p->r->values_at, p->r->stride, false},
        {low ? &l->state_z_down : &l->state_z, low ? w->low[0] : w->gate,
         low ? w->low_stride : w->values_stride, false},
        {&l->state_scale, w->out, w->values_stride, false},
        {&l->state_beta, w->beta, w->heads_stride, false},
        {low ? &l->state_decay_down : &l->state_decay, low ? w->low[1] : w->decay,
         low ? w->low_stride : w->decay_stride, true},
    };
    struct moe_mm in[sizeof all / sizeof all[0]];
    int n = 0;
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, p->n_rows, p->c->hidden);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].mat->data && !(select && all[i].of_values))
            in[n++] = moe_inputs_mm(from, *all[i].mat, all[i].to, all[i].stride);
    moe_matmul(in, n);
    for (int i = 0; i < 2 && low; i++) {
        const struct moe_mat *mat = i == 0 ? &l->state_z : &l->state_decay;
        moe_inputs_set(&w->from_low[i], w->low[i], w->low_stride, NULL, p->n_rows, mat->cols);
        in[i] = moe_inputs_mm(&w->from_low[i], *mat, i == 0 ? w->gate : w->decay,
                              i == 0 ? w->values_stride : w->decay_stride);
    }
    if (low)
        moe_matmul(in, 2);
}

void stages_cpu_recurrent(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows)
{
    static void (*const kinds[])(struct cpu_state_pass * p) = {
        [MOE_STATE_DELTA] = stages_cpu_state_delta,   [MOE_STATE_KDA] = stages_cpu_state_delta,
        [MOE_STATE_CONV] = stages_cpu_short_conv,     [MOE_STATE_SCAN] = stages_cpu_state_scan,
        [MOE_STATE_SELECT] = stages_cpu_state_select,
    };
    const struct moe_config *c = &s->model->config;
    struct cpu_work *work = s->device;
    struct cpu_recurrent *w = &work->recurrent;
    struct cpu_state_pass p = {.c = c,
                               .layer = &s->model->layers[layer],
                               .r = &work->states,
                               .w = w,
                               .rows = rows,
                               .n_rows = n_rows,
                               .state = moe_config_recurrent_layers(c, layer)};
    project_in(s, &p);
    kinds[c->state_kind](&p);
    moe_inputs_set(&w->from_out, w->out, w->values_stride, NULL, n_rows, p.layer->state_o.cols);
    struct moe_mm out = moe_inputs_mm(&w->from_out, p.layer->state_o, work->sum, s->states.stride);
    moe_matmul(&out, 1);
    moe_recurrent_passed(s, layer, rows, n_rows);
}
