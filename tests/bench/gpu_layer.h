/* A layer of decoding without its attention, in the launches that a model makes. Of bench_gpu.c. */
#ifndef TESTS_BENCH_GPU_LAYER_H
#define TESTS_BENCH_GPU_LAYER_H

#include "gpu_bench.h"

/* Attention's matrices at 8 bits, experts at 4, the router in f32. */
struct layer_shape {
    const char *name;
    uint32_t hidden, q_rows, kv_rows, n_experts, top_k, ff;
};

/* Layers of the same weights' memory: each has other parts of it, experts in another order. */
struct layers {
    const struct layer_shape *shape;
    uint32_t n;
    bool qkv, o, router, moe; /* which launches */
    const uint8_t *attention, *router_weights;
    struct moe_gpu_gated *table, like; /* [n][n_experts] */
    struct moe_gpu_act in, attended, mid;
    float *q, *sum, *scores, *gate, *up, *out, *h, *norm_weights, *weights;
    uint32_t *chosen;
};

static const struct moe_layout eight_bits = {MOE_LAYOUT_Q8, 64}, four_bits = {MOE_LAYOUT_Q4, 64},
                               full = {MOE_LAYOUT_F32, 0};

static uint64_t attention_matrices_bytes(const struct layer_shape *s)
{
    return moe_layout_bytes(eight_bits, s->q_rows + 2 * s->kv_rows, s->hidden) +
           moe_layout_bytes(eight_bits, s->hidden, s->q_rows);
}

static struct moe_gpu_product layer_product(const uint8_t *data, struct moe_layout layout,
                                            uint32_t rows, const struct moe_gpu_act *act, float *y)
{
    return (struct moe_gpu_product){
        .w = {data, layout, rows, act->cols}, .act = act, .n = 1, .y = y, .y_stride = rows};
}

static void ask_layer(struct bench *b, const struct layers *l, uint32_t i)
{
    const struct layer_shape *s = l->shape;
    const uint8_t *q = l->attention + i * attention_matrices_bytes(s);
    const uint8_t *k = q + moe_layout_bytes(eight_bits, s->q_rows, s->hidden);
    const uint8_t *v = k + moe_layout_bytes(eight_bits, s->kv_rows, s->hidden);
    const uint8_t *o = v + moe_layout_bytes(eight_bits, s->kv_rows, s->hidden);
    struct moe_gpu_norm norm = {
        .h = l->h,
        .cols = s->hidden,
        .add = l->sum,
        .add_scale = 1,
        .weights = l->norm_weights,
        .eps = 1e-6f,
        .out = l->in,
    };
    const struct moe_gpu_product qkv[] = {
        layer_product(q, eight_bits, s->q_rows, &l->in, l->q),
        layer_product(k, eight_bits, s->kv_rows, &l->in, l->q + s->q_rows),
        layer_product(v, eight_bits, s->kv_rows, &l->in, l->q + s->q_rows + s->kv_rows),
    };
    const struct moe_gpu_product last =
        layer_product(o, eight_bits, s->hidden, &l->attended, l->sum);
    const struct moe_gpu_product router =
        layer_product(l->router_weights + i * moe_layout_bytes(full, s->n_experts, s->hidden), full,
                      s->n_experts, &l->in, l->scores);
    const struct moe_gpu_router choice = {
        .kind = MOE_ROUTER_SOFTMAX,
        .n_experts = s->n_experts,
        .top_k = s->top_k,
        .norm_topk = true,
        .routed_scale = 1,
        .scores = l->scores,
        .stride = s->n_experts,
        .chosen = l->chosen,
        .weights = l->weights,
    };
    const struct moe_gpu_experts experts = {
        .in = &l->in,
        .activation = {.kind = MOE_ACT_SWIGLU},
        .gate = l->gate,
        .up = l->up,
        .ff_stride = s->ff,
        .mid = &l->mid,
        .out = l->out,
        .out_stride = s->hidden,
    };
    const struct moe_gpu_combine combine = {
        .outputs = l->out,
        .out_stride = s->hidden,
        .weights = l->weights,
        .top_k = s->top_k,
        .cols = s->hidden,
        .h = l->h,
        .residual_scale = 1,
    };
    struct moe_gpu_norm next = norm;
    next.add = NULL;
    const struct moe_gpu_moe moe = {
        .routers = &router,
        .n_routers = 1,
        .router = &choice,
        .routed = &experts,
        .table = l->table + i * s->n_experts,
        .like = &l->like,
        .combine = &combine,
        .norm = &next,
    };
    if (l->qkv)
        moe_gpu_matmul(b->gpu, qkv, 3);
    if (l->o) {
        moe_gpu_matmul(b->gpu, &last, 1);
        moe_gpu_add_norm(b->gpu, &norm, 1);
    }
    if (l->router) {
        moe_gpu_matmul(b->gpu, &router, 1);
        moe_gpu_route(b->gpu, &choice, 1);
    }
    if (l->moe)
        moe_gpu_moe(b->gpu, &moe, 1);
}

static void ask_layers(struct bench *b, const void *ctx)
{
    const struct layers *l = ctx;
    for (uint32_t i = 0; i < l->n; i++)
        ask_layer(b, l, i);
}

/* Experts in GPU memory, and their table: that of layer i begins top_k experts further on. */
static void take_experts(struct bench *b, struct layers *l)
{
    const struct layer_shape *s = l->shape;
    uint64_t one = moe_layout_bytes(four_bits, s->ff, s->hidden);
    uint64_t down = moe_layout_bytes(four_bits, s->hidden, s->ff), each = 2 * one + down;
    const uint8_t *data = take_random(b, s->n_experts * each);
    uint64_t n = (uint64_t)l->n * s->n_experts;
    struct moe_gpu_gated *table = well(b) ? moe_alloc(n, sizeof *table, &b->err) : NULL;
    l->table = take(b, n * sizeof *table);
    for (uint64_t i = 0; table && i < n; i++) {
        const uint8_t *at =
            data + (i % s->n_experts + i / s->n_experts * s->top_k) % s->n_experts * each;
        table[i] = (struct moe_gpu_gated){.gate = {at, four_bits, s->ff, s->hidden},
                                          .up = {at + one, four_bits, s->ff, s->hidden},
                                          .down = {at + 2 * one, four_bits, s->hidden, s->ff}};
    }
    if (table)
        l->like = table[0];
    if (table && well(b))
        moe_gpu_upload(b->gpu, MOE_GPU_COMPUTE, l->table, table, n * sizeof *table);
    if (table)
        moe_gpu_finish(b->gpu, &b->err);
    free(table);
}

static struct moe_gpu_act take_wanted(struct bench *b, uint32_t n, uint32_t cols)
{
    struct moe_gpu_act act = take_inputs(b, n, cols);
    act.bytes[MOE_GPU_BLOCK_32] = (struct moe_gpu_bytes){0};
    return act;
}

static void take_layers(struct bench *b, struct layers *l)
{
    const struct layer_shape *s = l->shape;
    l->n = s->n_experts / s->top_k;
    l->attention = take_random(b, l->n * attention_matrices_bytes(s));
    l->router_weights = take_random(b, l->n * moe_layout_bytes(full, s->n_experts, s->hidden));
    take_experts(b, l);
    l->in = take_wanted(b, 1, s->hidden);
    l->attended = take_wanted(b, 1, s->q_rows);
    l->mid = take_wanted(b, s->top_k, s->ff);
    l->q = take(b, (s->q_rows + 2 * s->kv_rows) * sizeof(float));
    l->sum = take(b, s->hidden * sizeof(float));
    l->scores = take(b, (uint64_t)moe_panels(s->n_experts) * MOE_PANEL_ROWS * sizeof(float));
    l->gate = l->mid.x;
    l->up = take(b, (uint64_t)s->top_k * s->ff * sizeof(float));
    l->out = take(b, (uint64_t)s->top_k * s->hidden * sizeof(float));
    l->h = take_random(b, s->hidden * sizeof(float));
    l->norm_weights = take_random(b, s->hidden * sizeof(float));
    l->weights = take(b, s->top_k * sizeof(float));
    l->chosen = take(b, s->top_k * sizeof(uint32_t));
}

static void bench_layer(struct bench *b)
{
    static const struct layer_shape real = {
        "hidden 2048, 8 of 128 experts of 768", 2048, 4096, 512, 128, 8, 768};
    static const struct layer_shape tiny = {
        "hidden 128, 2 of 8 experts of 64", 128, 64, 32, 8, 2, 64};
    static const struct {
        const char *name;
        bool qkv, o, router, moe;
    } parts[] = {
        {"queries, keys and values", true, false, false, false},
        {"output, then the norm", false, true, false, false},
        {"router and its choice", false, false, true, false},
        {"router; gate and up; down, sum, norm", false, false, false, true},
        {"all of these", true, true, false, true},
    };
    struct layers l = {.shape = b->smoke ? &tiny : &real};
    section(b, "layer: of decoding, without attention over the cache, microseconds");
    take_layers(b, &l);
    printf("%s\n", l.shape->name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && well(b); i++) {
        l.qkv = parts[i].qkv;
        l.o = parts[i].o;
        l.router = parts[i].router;
        l.moe = parts[i].moe;
        struct moe_bench_figure t = time_work(b, &(struct work){ask_layers, &l, true});
        printf("  %-38s %8.2f +-%2.0f%%\n", parts[i].name, figure(b, 1e6 * t.median / l.n),
               spread(t));
    }
    give_back(b);
}

#endif
