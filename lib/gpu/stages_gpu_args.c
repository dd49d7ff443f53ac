/*
 * What several of the GPU's stages ask of its kernels, as kernels/gpu_ops.h describes it: forms of
 * inputs, norms, products, routers.
 */
#include "gpu/stages_gpu.h"
#include "kern/matmul.h"

/* ---- Forms of inputs ---- */

struct moe_gpu_act gpu_act_plain(const struct moe_gpu_act *room, uint32_t cols)
{
    return (struct moe_gpu_act){.cols = cols, .x = room->x, .x_stride = room->x_stride};
}

void gpu_act_want(struct moe_gpu_act *act, const struct moe_gpu_act *room, struct moe_layout layout)
{
    uint32_t block = layout.kind == MOE_LAYOUT_NONE ? 0 : moe_act_block_for(layout);
    int form = block == 32 ? MOE_GPU_BLOCK_32 : MOE_GPU_BLOCK_64;
    if (block)
        act->bytes[form] = room->bytes[form];
}

void gpu_act_want_experts(struct moe_gpu_act *act, const struct moe_gpu_act *room,
                          const struct moe_pack *pack, bool down)
{
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++) {
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, i);
        for (uint32_t k = 0; k < class_->n_matrices; k++) {
            uint16_t role = class_->matrices[k].role;
            if (down ? role == MOE_ROLE_DOWN : role == MOE_ROLE_GATE || role == MOE_ROLE_UP)
                gpu_act_want(act, room, class_->matrices[k].layout);
        }
    }
}

/* ---- Products and norms ---- */

struct moe_gpu_product stages_gpu_product(struct moe_mat w, const struct moe_gpu_act *act,
                                          uint32_t n, float *y, uint64_t y_stride)
{
    return (struct moe_gpu_product){.w = w, .act = act, .n = n, .y = y, .y_stride = y_stride};
}

struct moe_gpu_norm stages_gpu_norm(const struct moe_session *s, const float *weights,
                                    const float *bias, struct moe_gpu_act out)
{
    const struct gpu_work *g = s->device;
    const struct moe_config *c = &s->model->config;
    return (struct moe_gpu_norm){
        .h = g->h,
        .h_stride = g->hidden_stride,
        .cols = c->hidden,
        .layer = c->norm_kind == MOE_NORM_LAYER,
        .weights = weights,
        .bias = bias,
        .eps = c->norm_eps,
        .out = out,
    };
}

struct moe_gpu_norm stages_gpu_attention_norm(const struct moe_session *s, uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    const struct moe_gpu_act *room = &gpu_work_of(s)->hidden;
    const struct moe_mat *const of_states[] = {
        &l->state_q,    &l->state_k,          &l->state_v,     &l->state_z,    &l->state_z_down,
        &l->state_beta, &l->state_decay_down, &l->state_scale, &l->state_decay};
    struct moe_gpu_act in = gpu_act_plain(room, c->hidden);
    if (c->layer_no_attention[layer])
        return stages_gpu_norm(s, l->ffn_norm, l->ffn_norm_bias, stages_gpu_ffn_inputs(s, layer));
    gpu_act_want(&in, room, l->q_down.layout);
    gpu_act_want(&in, room, l->kv_down.layout);
    if (!c->q_rank)
        gpu_act_want(&in, room, l->q.layout);
    gpu_act_want(&in, room, l->k.layout);
    gpu_act_want(&in, room, l->v.layout);
    gpu_act_want(&in, room, l->attn_gate.layout);
    for (size_t i = 0; c->layer_is_recurrent[layer] && i < sizeof of_states / sizeof *of_states;
         i++)
        gpu_act_want(&in, room, of_states[i]->layout);
    return stages_gpu_norm(s, l->attn_norm, l->attn_norm_bias, in);
}

const struct moe_gpu_norm *stages_gpu_next_norm(struct moe_session *s, uint32_t layer,
                                                struct moe_gpu_norm *norm)
{
    if (layer + 1 >= s->model->config.n_layers)
        return NULL;
    *norm = stages_gpu_attention_norm(s, layer + 1);
    gpu_work_of(s)->normed_for = layer + 1;
    return norm;
}

/* ---- Routers ---- */

uint32_t stages_gpu_layers_ahead(const struct moe_session *s, uint32_t layer, uint32_t *ahead)
{
    const struct moe_config *c = &s->model->config;
    uint32_t n = 0, depth = gpu_work_of(s)->prediction.depth;
    for (uint32_t l = layer + 1; l < c->n_layers && n < depth; l++)
        if (c->layer_is_moe[l])
            ahead[n++] = l;
    return n;
}

struct moe_gpu_act stages_gpu_ffn_inputs(const struct moe_session *s, uint32_t layer)
{
    const struct moe_model *m = s->model;
    const struct moe_layer *l = &m->layers[layer];
    const struct moe_gpu_act *room = &gpu_work_of(s)->hidden;
    struct moe_gpu_act act = gpu_act_plain(room, m->config.hidden);
    uint32_t ahead[MOE_MAX_DEPTH],
        n = gpu_work_of(s)->prediction.residual ? 0 : stages_gpu_layers_ahead(s, layer, ahead);
    gpu_act_want(&act, room, l->gate.layout);
    gpu_act_want(&act, room, l->up.layout);
    if (l->is_moe) {
        gpu_act_want(&act, room, l->router.layout);
        gpu_act_want(&act, room, l->shared_gate.layout);
        gpu_act_want_experts(&act, room, m->pack, false);
    }
    for (uint32_t i = 0; l->is_moe && i < n; i++)
        gpu_act_want(&act, room, m->layers[ahead[i]].router.layout);
    return act;
}

struct moe_gpu_router stages_gpu_router(const struct moe_session *s, uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    const struct gpu_feed_forward *g = &gpu_work_of(s)->ff;
    return (struct moe_gpu_router){
        .kind = c->router_kind,
        .n_experts = c->n_experts,
        .top_k = c->top_k,
        .n_groups = c->n_groups,
        .top_groups = c->top_groups,
        .norm_topk = c->norm_topk,
        .topk_eps = c->topk_eps,
        .routed_scale = c->routed_scale,
        .jitter = c->router_jitter,
        .bias = s->model->layers[layer].router_bias,
        .choice_bias = s->model->layers[layer].choice_bias,
        .scores = g->scores,
        .stride = g->router_stride,
        .chosen = g->chosen,
        .weights = g->weights,
    };
}

uint32_t stages_gpu_list_routers(const struct moe_session *s, uint32_t layer,
                                 const struct moe_gpu_act *in, uint32_t n_rows,
                                 struct moe_gpu_product list[2])
{
    const struct gpu_feed_forward *g = &gpu_work_of(s)->ff;
    const struct moe_layer *l = &s->model->layers[layer];
    list[0] = stages_gpu_product(l->router, in, n_rows, g->scores, g->router_stride);
    list[1] = stages_gpu_product(l->shared_gate, in, n_rows, g->shared_scale, MOE_PANEL_ROWS);
    return l->shared_gate.data ? 2 : 1;
}
