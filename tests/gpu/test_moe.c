/*
 * A MoE layer at once against its operations one by one: the same bits, in five launches.
 */
#include "joined_fixture.h"

enum { MAX_EXPERTS = 9, MAX_TOP_K = 4, MAX_ROWS = MOE_GPU_JOINED_ROWS };

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
        e[side] = (struct moe_gpu_experts){
            .in = &l->in,
            .activation = {l->ff % 2 ? MOE_ACT_SWIGLU_CLAMPED : MOE_ACT_SWIGLU, 1.702f, 0.5f},
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
    for (int round = 0; round < (SANITIZED ? 12 : 24); round++) {
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
            assert_int_equal(compute_joined(&t, &l), 5);
        }
        layer_close(&t, &l);
    }
}

/* More activations than there are counters: the activation has a launch of its own. */
static void test_wide_moe(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 4};
    struct layer l = {.n = 1, .hidden = 20, .n_experts = 1, .has_norm = true};
    l.ff = MOE_GPU_OWN_BYTES / 4 * 64 + 1;
    layer_open(&t, &l);
    compute_apart(&t, &l);
    assert_int_equal(compute_joined(&t, &l), 6);
    layer_close(&t, &l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe),
        cmocka_unit_test(test_wide_moe),
    };
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
