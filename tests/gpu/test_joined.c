/*
 * Functions that do several things against those that do one: the same bits in everything written,
 * for few rows, where they are one launch, and for more; and how many launches they are.
 */
#include "products_fixture.h"

/* ---- Twins -------------------------------------------------------------------------------------
 * What is written exists twice: by the functions one after the other, and at once.
 */

enum { APART, JOINED, N_SIDES };

struct pair {
    void *at[N_SIDES];
    uint64_t n_bytes;
};

struct twins {
    struct gpu_taken taken;
    uint64_t seed;
    struct pair pairs[64];
    int n_pairs;
};

/* n_bytes filled from `from` on both sides, or with guard bytes. */
static struct pair twin(struct twins *t, const void *from, uint64_t n_bytes)
{
    struct pair p = {.n_bytes = n_bytes};
    for (int side = 0; side < N_SIDES; side++)
        p.at[side] = gpu_take(&t->taken, from, n_bytes);
    assert_true(t->n_pairs < (int)N_ITEMS(t->pairs));
    t->pairs[t->n_pairs++] = p;
    return p;
}

static struct pair twin_floats(struct twins *t, uint64_t n, uint32_t cols, uint64_t stride)
{
    float *x = draw_rows((uint32_t)n, cols, stride, &t->seed, ORDINARY);
    struct pair p = twin(t, x, n * stride * sizeof *x);
    free(x);
    return p;
}

static void check_twins(struct twins *t)
{
    for (int i = 0; i < t->n_pairs; i++) {
        const struct pair *p = &t->pairs[i];
        uint8_t *bytes[N_SIDES];
        for (int side = 0; side < N_SIDES; side++) {
            bytes[side] = take(p->n_bytes ? p->n_bytes : 1, 1);
            gpu_get(t->taken.g, bytes[side], p->at[side], p->n_bytes);
        }
        for (uint64_t k = 0; k < p->n_bytes; k++)
            if (bytes[APART][k] != bytes[JOINED][k])
                fail_msg("byte %llu of %llu of array %d differs", (unsigned long long)k,
                         (unsigned long long)p->n_bytes, i);
        for (int side = 0; side < N_SIDES; side++)
            free(bytes[side]);
    }
    t->n_pairs = 0;
    gpu_give_back(&t->taken);
}

static const float *constants(struct twins *t, uint32_t n)
{
    float *x = draw_rows(1, n, n, &t->seed, ORDINARY);
    const float *at = gpu_take(&t->taken, x, n * sizeof *x);
    free(x);
    return at;
}

/* Room for n inputs on both sides. */
static void twin_act(struct twins *t, struct moe_gpu_act act[N_SIDES], uint32_t n, uint32_t cols,
                     struct pair x, uint64_t x_stride)
{
    struct pair q, s, z;
    for (int side = 0; side < N_SIDES; side++)
        act[side] = (struct moe_gpu_act){.cols = cols, .x = x.at[side], .x_stride = x_stride};
    for (int form = 0; form < MOE_GPU_N_BLOCKS; form++) {
        uint64_t block = form == MOE_GPU_BLOCK_32 ? 32 : 64, blocks = (cols + block - 1) / block;
        q = twin(t, NULL, n * blocks * block);
        s = twin(t, NULL, n * blocks * sizeof(float));
        z = twin(t, NULL, n * blocks * sizeof(float));
        for (int side = 0; side < N_SIDES; side++)
            act[side].bytes[form] = (struct moe_gpu_bytes){q.at[side], s.at[side], z.at[side]};
    }
}

/* ---- Parts -------------------------------------------------------------------------------------
 */

/* One product of heads against one for each; byte forms lie head by head, floats side by side. */
static void check_parts(struct twins *t, struct moe_layout layout, uint32_t n)
{
    struct moe_gpu *g = t->taken.g;
    uint32_t n_parts = draw_up_to(&t->seed, 40), cols = draw_up_to(&t->seed, 150);
    uint32_t rows = MOE_PANEL_ROWS * draw_up_to(&t->seed, 3), y_part = rows + n % 3;
    uint64_t x_stride = (uint64_t)n_parts * cols + 3, y_stride = (uint64_t)n_parts * y_part;
    struct matrix m = matrix_new(&t->taken, layout, n_parts * rows, cols, &t->seed, ORDINARY);
    float *x = draw_rows(n, (uint32_t)x_stride, x_stride, &t->seed, ORDINARY);
    float *device_x = gpu_take(&t->taken, x, n * x_stride * sizeof *x);
    struct moe_gpu_act all = act_room(&t->taken, n_parts * n, cols, device_x, x_stride);
    moe_gpu_prepare(g, device_x, x_stride, n, n_parts, cols, &all);
    struct pair y = twin(t, NULL, n * y_stride * sizeof(float));
    struct moe_gpu_product product = {.w = m.device, .act = &all, .n = n, .y_stride = y_stride};
    product.w.rows = rows;
    product.y = y.at[JOINED];
    product.n_parts = n_parts;
    product.in_part = cols;
    product.y_part = y_part;
    uint64_t before = moe_gpu_launches(g);
    moe_gpu_matmul(g, &product, 1);
    assert_int_equal(moe_gpu_launches(g) - before, 1);
    product.n_parts = 0;
    product.y = y.at[APART];
    for (uint32_t i = 0; i < n_parts; i++) {
        product.first = moe_layout_is_float(layout.kind) ? 0 : i * n;
        moe_gpu_matmul(g, &product, 1);
        product.w.data += moe_layout_bytes(layout, rows, cols);
        product.y += y_part;
        all.x += cols;
    }
    free(m.data);
    free(x);
    check_twins(t);
}

static void test_parts(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 6};
    for (size_t i = 0; i < N_ITEMS(layouts); i++) {
        check_parts(&t, layouts[i], draw_up_to(&t.seed, 8));
        check_parts(&t, layouts[i], 9 + i % 4);
    }
}

/* ---- Norms and routers to follow ---------------------------------------------------------------
 */

/* h += 0.5 add, then its norm. add NULL: h alone. */
static void twin_norm(struct twins *t, struct moe_gpu_norm norm[N_SIDES], uint32_t n, uint32_t cols,
                      uint64_t stride, struct pair h, const struct pair *add)
{
    struct moe_gpu_act out[N_SIDES];
    twin_act(t, out, n, cols, twin(t, NULL, n * stride * sizeof(float)), stride);
    bool layer = test_random(&t->seed) % 3 == 0;
    const struct moe_gpu_norm common = {
        .h_stride = stride,
        .cols = cols,
        .add_stride = stride,
        .add_bias = test_random(&t->seed) % 2 ? constants(t, cols) : NULL,
        .add_scale = 0.5f,
        .layer = layer,
        .weights = constants(t, cols),
        .bias = layer ? constants(t, cols) : NULL,
        .eps = 1e-5f,
    };
    for (int side = 0; side < N_SIDES; side++) {
        norm[side] = common;
        norm[side].h = h.at[side];
        norm[side].add = add ? add->at[side] : NULL;
        norm[side].out = out[side];
    }
}

static void twin_router(struct twins *t, struct moe_gpu_router router[N_SIDES], uint32_t n,
                        uint32_t n_experts, struct pair scores, uint64_t stride)
{
    uint32_t top_k = draw_up_to(&t->seed, n_experts < 4 ? n_experts : 4);
    struct pair chosen = twin(t, NULL, (uint64_t)n * top_k * sizeof(uint32_t));
    struct pair weights = twin(t, NULL, (uint64_t)n * top_k * sizeof(float));
    const struct moe_gpu_router common = {
        .kind = test_random(&t->seed) % 2 ? MOE_GPU_ROUTER_SOFTMAX : MOE_GPU_ROUTER_TOPK_SOFTMAX,
        .n_experts = n_experts,
        .top_k = top_k,
        .norm_topk = test_random(&t->seed) % 2,
        .routed_scale = 1.5f,
        .bias = test_random(&t->seed) % 2 ? constants(t, n_experts) : NULL,
        .stride = stride,
    };
    for (int side = 0; side < N_SIDES; side++) {
        router[side] = common;
        router[side].scores = scores.at[side];
        router[side].chosen = chosen.at[side];
        router[side].weights = weights.at[side];
    }
}

/* ---- Products and what follows -----------------------------------------------------------------
 */

enum { MAX_ROWS = MOE_GPU_JOINED_ROWS + 2, MAX_PRODUCTS = 4 };

struct products {
    struct matrix matrices[MAX_PRODUCTS];
    struct moe_gpu_act in;
    struct moe_gpu_product list[N_SIDES][MAX_PRODUCTS];
    struct pair y[MAX_PRODUCTS];
    uint32_t n_list;
    float *x;
};

/* Several products of n inputs, of one layout or of many. */
static struct products products_new(struct twins *t, uint32_t n, uint32_t n_list, uint32_t rows)
{
    struct products p = {.n_list = n_list};
    uint32_t cols = draw_up_to(&t->seed, 200);
    struct moe_layout layout = draw_layout(&t->seed);
    p.x = draw_rows(n, cols, cols, &t->seed, ORDINARY);
    p.in = act_new(&t->taken, p.x, n, cols, cols);
    for (uint32_t i = 0; i < n_list; i++) {
        uint64_t stride = moe_round_up(rows, MOE_PANEL_ROWS);
        p.matrices[i] = matrix_new(&t->taken, layout, rows, cols, &t->seed, ORDINARY);
        p.y[i] = twin(t, NULL, n * stride * sizeof(float));
        for (int side = 0; side < N_SIDES; side++)
            p.list[side][i] = (struct moe_gpu_product){.w = p.matrices[i].device,
                                                       .act = NULL,
                                                       .n = n,
                                                       .y = p.y[i].at[side],
                                                       .y_stride = stride};
        rows = draw_up_to(&t->seed, 60);
        if (test_random(&t->seed) % 2)
            layout = draw_layout(&t->seed);
    }
    return p;
}

static void products_free(struct products *p)
{
    for (uint32_t i = 0; i < p->n_list; i++)
        free(p->matrices[i].data);
    free(p->x);
}

/* kind 0: a router; 1: a norm; 2: both, the router's scores first. */
static void check_then(struct twins *t, uint32_t n, int kind)
{
    struct moe_gpu *g = t->taken.g;
    uint32_t rows = draw_up_to(&t->seed, kind == 2 ? 40 : 150);
    struct products p = products_new(t, n, draw_up_to(&t->seed, MAX_PRODUCTS), rows);
    uint64_t stride = moe_round_up(rows, MOE_PANEL_ROWS);
    struct moe_gpu_router router[N_SIDES];
    struct moe_gpu_norm norm[N_SIDES];
    struct pair h = twin_floats(t, n, rows, stride);
    twin_router(t, router, n, rows, p.y[0], stride);
    twin_norm(t, norm, n, rows, stride, h, &p.y[0]);
    for (int side = 0; side < N_SIDES; side++)
        for (uint32_t i = 0; i < p.n_list; i++)
            p.list[side][i].act = &p.in;
    for (int round = 0; round < 2; round++) { /* counters are as they were */
        moe_gpu_matmul(g, p.list[APART], p.n_list);
        if (kind != 1)
            moe_gpu_route(g, &router[APART], n);
        if (kind != 0)
            moe_gpu_add_norm(g, &norm[APART], n);
        const struct moe_gpu_then then = {kind != 1 ? &router[JOINED] : NULL,
                                          kind != 0 ? &norm[JOINED] : NULL, n};
        uint64_t before = moe_gpu_launches(g);
        moe_gpu_matmul_then(g, p.list[JOINED], p.n_list, &then);
        if (n <= MOE_GPU_JOINED_ROWS)
            assert_int_equal(moe_gpu_launches(g) - before, kind == 2 ? 2 : 1);
    }
    products_free(&p);
    check_twins(t);
}

static void test_then(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 1};
    for (uint32_t n = 1; n <= MAX_ROWS; n++)
        for (int kind = 0; kind < 3; kind++)
            for (int round = 0; round < 3; round++)
                check_then(&t, n, kind);
}

/* More rows' routing than a block has shared memory for. */
static void test_many_experts(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 2};
    struct moe_gpu *g = t.taken.g;
    enum { N = 4, N_EXPERTS = 1100 };
    struct products p = products_new(&t, N, 1, N_EXPERTS);
    struct moe_gpu_router router[N_SIDES];
    uint64_t stride = moe_round_up(N_EXPERTS, MOE_PANEL_ROWS);
    twin_router(&t, router, N, N_EXPERTS, p.y[0], stride);
    p.list[APART][0].act = p.list[JOINED][0].act = &p.in;
    moe_gpu_matmul(g, p.list[APART], 1);
    moe_gpu_route(g, &router[APART], N);
    const struct moe_gpu_then then = {.router = &router[JOINED], .n = N};
    moe_gpu_matmul_then(g, p.list[JOINED], 1, &then);
    products_free(&p);
    check_twins(&t);
}

/* ---- A MoE layer -------------------------------------------------------------------------------
 */

enum { MAX_EXPERTS = 9, MAX_TOP_K = 4 };

struct layer {
    uint32_t hidden, ff, shared_ff, n_experts, n;
    uint64_t stride;
    struct matrix matrices[3 * (MAX_EXPERTS + 1) + 2];
    uint32_t n_matrices;
    struct moe_gpu_gated experts[MAX_EXPERTS], shared;
    struct moe_gpu_act in, mid[N_SIDES], shared_mid[N_SIDES];
    struct moe_gpu_experts routed[N_SIDES], beside[N_SIDES];
    struct moe_gpu_router router[N_SIDES];
    struct moe_gpu_product routers[N_SIDES][2];
    struct moe_gpu_combine combine[N_SIDES];
    struct moe_gpu_norm norm[N_SIDES];
    bool has_shared, has_gate, has_norm;
    float *x;
};

static struct moe_mat matrix_of(struct twins *t, struct layer *l, struct moe_layout layout,
                                uint32_t rows, uint32_t cols)
{
    struct matrix *m = &l->matrices[l->n_matrices++];
    *m = matrix_new(&t->taken, layout, rows, cols, &t->seed, ORDINARY);
    return m->device;
}

static struct moe_gpu_gated gated_of(struct twins *t, struct layer *l,
                                     const struct moe_layout kinds[3], uint32_t ff, bool biased)
{
    struct moe_gpu_gated e = {.gate = matrix_of(t, l, kinds[0], ff, l->hidden),
                              .up = matrix_of(t, l, kinds[1], ff, l->hidden),
                              .down = matrix_of(t, l, kinds[2], l->hidden, ff)};
    if (biased) {
        e.gate_bias = constants(t, ff);
        e.up_bias = constants(t, ff);
        e.down_bias = constants(t, l->hidden);
    }
    return e;
}

/* Room for activations of a feed-forward, with results in out. */
static void room_of(struct twins *t, struct layer *l, struct moe_gpu_experts e[N_SIDES],
                    struct moe_gpu_act mid[N_SIDES], uint32_t n, uint32_t ff)
{
    uint64_t stride = moe_round_up(ff, MOE_PANEL_ROWS);
    struct pair gate = twin(t, NULL, n * stride * sizeof(float));
    struct pair up = twin(t, NULL, n * stride * sizeof(float));
    struct pair out = twin(t, NULL, n * l->stride * sizeof(float));
    twin_act(t, mid, n, ff, gate, stride);
    for (int side = 0; side < N_SIDES; side++)
        e[side] = (struct moe_gpu_experts){.in = &l->in,
                                           .activation = {.clamped = l->ff % 2, 1.702f, 0.5f},
                                           .gate = gate.at[side],
                                           .up = up.at[side],
                                           .ff_stride = stride,
                                           .mid = &mid[side],
                                           .out = out.at[side],
                                           .out_stride = l->stride};
}

static void draw_kinds(uint64_t *seed, struct moe_layout kinds[3])
{
    kinds[0] = draw_layout(seed);
    kinds[1] = test_random(seed) % 2 ? kinds[0] : draw_layout(seed);
    kinds[2] = test_random(seed) % 2 ? kinds[0] : draw_layout(seed);
}

/* l: n, hidden, ff, n_experts and has_... are filled in. */
static void layer_open(struct twins *t, struct layer *l)
{
    struct moe_layout kinds[3], shared_kinds[3], router_kind = draw_layout(&t->seed);
    uint64_t n_scores = moe_round_up(l->n_experts, MOE_PANEL_ROWS);
    struct pair scores = twin(t, NULL, l->n * n_scores * sizeof(float));
    struct pair gates = twin(t, NULL, l->n * (uint64_t)MOE_PANEL_ROWS * sizeof(float));
    l->stride = moe_round_up(l->hidden, MOE_PANEL_ROWS);
    l->x = draw_rows(l->n, l->hidden, l->stride, &t->seed, ORDINARY);
    l->in = act_new(&t->taken, l->x, l->n, l->hidden, l->stride);
    draw_kinds(&t->seed, kinds);
    draw_kinds(&t->seed, shared_kinds);
    bool biased = test_random(&t->seed) % 2;
    for (uint32_t e = 0; e < l->n_experts; e++)
        l->experts[e] = gated_of(t, l, kinds, l->ff, biased);
    twin_router(t, l->router, l->n, l->n_experts, scores, n_scores);
    uint32_t top_k = l->router[0].top_k;
    room_of(t, l, l->routed, l->mid, l->n * top_k, l->ff);
    if (l->has_shared) {
        l->shared = gated_of(t, l, shared_kinds, l->shared_ff, false);
        room_of(t, l, l->beside, l->shared_mid, l->n, l->shared_ff);
    }
    struct moe_gpu_product router = {.w = matrix_of(t, l, router_kind, l->n_experts, l->hidden),
                                     .act = &l->in,
                                     .n = l->n,
                                     .y_stride = n_scores};
    struct moe_gpu_product gate = router;
    gate.w = matrix_of(t, l, router_kind, 1, l->hidden);
    gate.y_stride = MOE_PANEL_ROWS;
    struct pair h = twin_floats(t, l->n, l->hidden, l->stride);
    twin_norm(t, l->norm, l->n, l->hidden, l->stride, h, NULL);
    for (int side = 0; side < N_SIDES; side++) {
        l->routers[side][0] = router;
        l->routers[side][0].y = scores.at[side];
        l->routers[side][1] = gate;
        l->routers[side][1].y = gates.at[side];
        l->combine[side] = (struct moe_gpu_combine){
            .outputs = l->routed[side].out,
            .out_stride = l->stride,
            .weights = l->router[side].weights,
            .top_k = top_k,
            .cols = l->hidden,
            .shared = l->has_shared ? l->beside[side].out : NULL,
            .shared_stride = l->stride,
            .shared_scale = l->has_gate ? gates.at[side] : NULL,
            .h = h.at[side],
            .h_stride = l->stride,
            .residual_scale = 0.22f,
        };
    }
}

static void layer_close(struct twins *t, struct layer *l)
{
    for (uint32_t i = 0; i < l->n_matrices; i++)
        free(l->matrices[i].data);
    free(l->x);
    check_twins(t);
}

/* By jobs of an activation each, as the host knows them. */
static void compute_apart(struct twins *t, const struct layer *l)
{
    struct moe_gpu *g = t->taken.g;
    uint32_t top_k = l->router[0].top_k, n = l->n * top_k;
    uint32_t chosen[MAX_ROWS * MAX_TOP_K], rows[MAX_ROWS * MAX_TOP_K];
    struct moe_gpu_job jobs[MAX_ROWS * MAX_TOP_K];
    struct moe_gpu_experts routed = l->routed[APART];
    moe_gpu_matmul(g, l->routers[APART], l->has_gate ? 2 : 1);
    moe_gpu_route(g, &l->router[APART], l->n);
    if (l->has_shared) {
        struct moe_gpu_job job = {l->shared, 0, l->n};
        moe_gpu_experts_in(g, &l->beside[APART], &job, 1);
        moe_gpu_experts_out(g, &l->beside[APART], &job, 1);
    }
    gpu_get(g, chosen, l->router[APART].chosen, n * sizeof *chosen);
    for (uint32_t a = 0; a < n; a++) {
        rows[a] = a / top_k;
        jobs[a] = (struct moe_gpu_job){l->experts[chosen[a]], a, 1};
    }
    routed.rows = gpu_take(&t->taken, rows, n * sizeof *rows);
    moe_gpu_experts_in(g, &routed, jobs, n);
    moe_gpu_experts_out(g, &routed, jobs, n);
    moe_gpu_combine(g, &l->combine[APART], NULL, l->n);
    if (l->has_norm)
        moe_gpu_add_norm(g, &l->norm[APART], l->n);
}

/* Returns how many launches it took. */
static uint64_t compute_joined(struct twins *t, const struct layer *l)
{
    struct moe_gpu *g = t->taken.g;
    struct moe_gpu_gated like = l->experts[0];
    like.gate.data = like.up.data = like.down.data = NULL;
    like.gate_bias = like.up_bias = like.down_bias = NULL;
    uint64_t n_bytes = l->n_experts * sizeof l->experts[0];
    const struct moe_gpu_moe moe = {
        .routers = l->routers[JOINED],
        .n_routers = l->has_gate ? 2 : 1,
        .router = &l->router[JOINED],
        .shared = l->has_shared ? &l->beside[JOINED] : NULL,
        .shared_weights = &l->shared,
        .routed = &l->routed[JOINED],
        .table = gpu_take(&t->taken, l->experts, n_bytes),
        .like = &like,
        .combine = &l->combine[JOINED],
        .norm = l->has_norm ? &l->norm[JOINED] : NULL,
    };
    uint64_t before = moe_gpu_launches(g);
    moe_gpu_moe(g, &moe, l->n);
    return moe_gpu_launches(g) - before;
}

static void test_moe(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 3};
    for (int round = 0; round < 24; round++) {
        struct layer l = {
            .n = round % 3 ? 1 : draw_up_to(&t.seed, MOE_GPU_JOINED_ROWS),
            .hidden = draw_up_to(&t.seed, 150),
            .ff = draw_up_to(&t.seed, 150),
            .shared_ff = draw_up_to(&t.seed, 150),
            .n_experts = draw_up_to(&t.seed, MAX_EXPERTS),
            .has_shared = round % 4 != 0,
            .has_gate = round % 4 > 1,
            .has_norm = round % 5 != 0,
        };
        layer_open(&t, &l);
        for (int again = 0; again < 2; again++) {
            compute_apart(&t, &l);
            assert_int_equal(compute_joined(&t, &l), 3);
        }
        layer_close(&t, &l);
    }
}

/* More activations than there are counters: the activation has a launch of its own. */
static void test_wide_moe(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 4};
    struct layer l = {.n = 1, .hidden = 20, .n_experts = 1, .has_norm = true};
    l.ff = MOE_GPU_OWN_BYTES / 4 * 64;
    layer_open(&t, &l);
    compute_apart(&t, &l);
    assert_true(compute_joined(&t, &l) > 3);
    layer_close(&t, &l);
}

/* ---- The end of a layer ------------------------------------------------------------------------
 */

static void test_combine(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 5};
    struct moe_gpu *g = t.taken.g;
    for (uint32_t n = 1; n <= MAX_ROWS; n++)
        for (int round = 0; round < 3; round++) {
            uint32_t top_k = draw_up_to(&t.seed, MAX_TOP_K), cols = draw_up_to(&t.seed, 400);
            uint64_t stride = cols + 5;
            struct pair h = twin_floats(&t, n, cols, stride);
            struct moe_gpu_norm norm[N_SIDES];
            twin_norm(&t, norm, n, cols, stride, h, NULL);
            struct moe_gpu_combine c = {
                .outputs = constants(&t, (uint32_t)(n * top_k * stride)),
                .out_stride = stride,
                .weights = constants(&t, n * top_k),
                .top_k = top_k,
                .cols = cols,
                .h = h.at[APART],
                .h_stride = stride,
                .residual_scale = 1,
            };
            moe_gpu_combine(g, &c, NULL, n);
            moe_gpu_add_norm(g, &norm[APART], n);
            c.h = h.at[JOINED];
            uint64_t before = moe_gpu_launches(g);
            moe_gpu_combine(g, &c, &norm[JOINED], n);
            assert_int_equal(moe_gpu_launches(g) - before, n <= MOE_GPU_JOINED_ROWS ? 1 : 2);
            check_twins(&t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),        cmocka_unit_test(test_then),
        cmocka_unit_test(test_many_experts), cmocka_unit_test(test_moe),
        cmocka_unit_test(test_wide_moe),     cmocka_unit_test(test_combine),
    };
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
