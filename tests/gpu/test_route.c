/* Routing and softmax of rows (gpu_route.cu) against infer/router.c: the same bits, the same
 * experts.
 */
#include "session_fixture.h"

#include <math.h>

#include "infer/router.h"
#include "kern/kern.h"

struct shape {
    enum moe_router_kind kind;
    uint32_t n_experts, top_k, n_groups, top_groups;
    bool norm_topk, bias;
    float scale;
    uint32_t n;
    bool choice_bias;
};

/* Scores are the rows of work->xn themselves: the router is the identity. */
static void open_shape(struct forged *f, const struct shape *p)
{
    struct moe_config *c = &f->model.config;
    moe_config_init(c);
    c->hidden = p->n_experts;
    c->vocab = 16;
    c->n_heads = c->n_kv_heads = 1;
    c->head_dim = c->rope_dim = c->value_dim = 2;
    c->n_experts = p->n_experts;
    c->top_k = p->top_k;
    c->expert_ff = 16;
    c->router_kind = p->kind;
    c->router_jitter = 0.01f;
    c->norm_topk = p->norm_topk;
    c->routed_scale = p->scale;
    c->n_groups = p->n_groups;
    c->top_groups = p->top_groups;
    const struct moe_session_options o = {.context = 4, .batch = p->n};
    forged_open(f, &o);
    struct moe_mat router = forged_matrix(f, p->n_experts, p->n_experts);
    float *row = forged_floats(f, p->n_experts, 0);
    for (uint32_t e = 0; e < p->n_experts; e++) {
        row[e] = 1;
        moe_layout_store_row((uint8_t *)router.data, router.layout, p->n_experts, e, row);
        row[e] = 0;
    }
    f->layers[0].router = router;
    f->layers[0].router_bias = p->bias ? forged_floats(f, p->n_experts, 1) : NULL;
    f->layers[0].choice_bias = p->choice_bias ? forged_floats(f, p->n_experts, 1) : NULL;
    c->choice_bias = p->choice_bias;
}

/* Ordinary rows, rows of few different values, rows far from zero. */
static void choose_scores(struct forged *f, const struct shape *p)
{
    struct moe_states *states = &f->s->states;
    for (uint32_t i = 0; i < p->n; i++) {
        float *x = states->xn + i * states->stride, offset = below(f, 4) ? 0 : 30;
        uint32_t n_values = below(f, 3) ? 0 : 1 + below(f, 4);
        for (uint32_t e = 0; e < p->n_experts; e++)
            x[e] = n_values ? (float)below(f, n_values) : offset + 4 * test_uniform(&f->random);
    }
}

struct routed {
    struct moe_gpu_router r;
    uint64_t n_scores, n_pairs;
};

/* Routes on the device the rows that are in the states' xn. */
static struct routed route(struct forged *f, const struct shape *p)
{
    struct moe_states *states = &f->s->states;
    struct cpu_feed_forward *w = cpu_feed_forward(f->s);
    struct routed d = {.n_scores = p->n * w->router_stride, .n_pairs = p->n * p->top_k};
    const float *bias = f->layers[0].router_bias;
    f->layers[0].router_bias = NULL;
    moe_inputs_set(&states->inputs, states->xn, states->stride, NULL, p->n, p->n_experts);
    const struct moe_router_use use = {
        .layer = &f->layers[0],
        .act = moe_inputs_for(&states->inputs, f->layers[0].router.layout),
        .scores = w->probabilities,
    };
    moe_router_scores(&f->s->model->config, &use, 1, w->router_stride);
    f->layers[0].router_bias = bias;
    d.r = (struct moe_gpu_router){
        .kind = p->kind,
        .n_experts = p->n_experts,
        .top_k = p->top_k,
        .n_groups = p->n_groups,
        .top_groups = p->top_groups,
        .norm_topk = p->norm_topk,
        .routed_scale = p->scale,
        .jitter = 0.01f,
        .bias = on_device(f, bias, p->n_experts),
        .choice_bias = on_device(f, f->layers[0].choice_bias, p->n_experts),
        .scores = on_device(f, w->probabilities, d.n_scores),
        .stride = w->router_stride,
        .chosen = gpu_take(&f->taken, NULL, d.n_pairs * sizeof(uint32_t)),
        .weights = gpu_take(&f->taken, NULL, d.n_pairs * sizeof(float)),
    };
    moe_gpu_route(f->taken.g, &d.r, p->n);
    return d;
}

/* The device's choices; n_pairs of them, freed by the caller. */
static uint32_t *chosen_of(struct forged *f, const struct routed *d)
{
    uint32_t *chosen = calloc(d->n_pairs, sizeof *chosen);
    assert_non_null(chosen);
    gpu_get(f->taken.g, chosen, d->r.chosen, d->n_pairs * sizeof *chosen);
    return chosen;
}

static void check(void **state, uint64_t seed, const struct shape *p)
{
    struct forged f = {.taken = {.g = *state}, .random = seed};
    struct moe_err err;
    open_shape(&f, p);
    choose_scores(&f, p);
    const struct moe_layer_request *request = &f.s->request;
    struct routed d = route(&f, p);
    assert_ok(moe_route(f.s, 0, f.rows, p->n, &err), &err);
    uint32_t *chosen = chosen_of(&f, &d);
    for (uint64_t i = 0; i < d.n_pairs; i++)
        assert_int_equal(chosen[i], request->chosen[i]);
    check_floats(&f, d.r.weights, request->weights, d.n_pairs);
    check_floats(&f, d.r.scores, cpu_feed_forward(f.s)->probabilities, d.n_scores);
    free(chosen);
    forged_close(&f);
}

static void test_kinds(void **state)
{
    static const struct shape shapes[] = {
        {MOE_ROUTER_SOFTMAX, 1, 1, 0, 0, true, false, 1, 2, false},
        {MOE_ROUTER_SOFTMAX, 8, 2, 0, 0, true, false, 1, 9, false},
        {MOE_ROUTER_SOFTMAX, 60, 4, 0, 0, false, true, 1, 9, false},
        {MOE_ROUTER_SOFTMAX, 64, 8, 0, 0, false, false, 1, 9, false},
        {MOE_ROUTER_SOFTMAX, 128, 8, 0, 0, true, false, 2.5f, 9, false},
        {MOE_ROUTER_SOFTMAX, 300, 64, 0, 0, true, true, 16, 5, false},
        {MOE_ROUTER_SOFTMAX, 33, 33, 0, 0, true, false, 1, 5, false},
        {MOE_ROUTER_SOFTMAX, 64, 6, 8, 3, false, false, 1, 20, false},
        {MOE_ROUTER_SOFTMAX, 160, 6, 8, 3, false, true, 16, 20, false},
        {MOE_ROUTER_SOFTMAX, 36, 4, 36, 4, true, false, 1, 9, false},
        {MOE_ROUTER_SOFTMAX, 40, 10, 4, 1, true, false, 1, 9, false},
        {MOE_ROUTER_TOPK_SOFTMAX, 8, 2, 0, 0, false, false, 1, 9, false},
        {MOE_ROUTER_TOPK_SOFTMAX, 32, 4, 0, 0, false, true, 1, 20, false},
        {MOE_ROUTER_TOPK_SOFTMAX, 72, 10, 0, 0, false, true, 0.5f, 9, false},
        {MOE_ROUTER_TOPK_SOFTMAX, 128, 40, 0, 0, true, true, 1, 9, false},
        {MOE_ROUTER_SPARSEMIXER, 2, 2, 0, 0, false, false, 1, 9, false},
        {MOE_ROUTER_SPARSEMIXER, 16, 2, 0, 0, false, false, 1, 30, false},
        {MOE_ROUTER_SPARSEMIXER, 67, 2, 0, 0, false, true, 1, 30, false},
        {MOE_ROUTER_SIGMOID, 64, 6, 0, 0, true, false, 2.446f, 20, true},
        {MOE_ROUTER_SIGMOID, 256, 8, 8, 4, true, false, 2.5f, 20, true},
        {MOE_ROUTER_SIGMOID, 160, 40, 5, 3, false, false, 1, 20, true},
        {MOE_ROUTER_SIGMOID, 33, 33, 0, 0, false, true, 1, 9, false},
        {MOE_ROUTER_SIGMOID, 40, 10, 4, 1, true, false, 1, 9, false},
        {MOE_ROUTER_SOFTMAX, 64, 6, 0, 0, true, false, 1, 20, true},
        {MOE_ROUTER_SOFTMAX, 72, 6, 8, 3, false, false, 16, 20, true},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        check(state, 100 + i, &shapes[i]);
}

/* The largest model that a description can have: shared memory's limit. */
static void test_many_experts(void **state)
{
    struct forged f = {.taken = {.g = *state}, .random = 3};
    enum { N = 2, EXPERTS = 4096, TOP_K = 64 };
    float *p = forged_floats(&f, N * EXPERTS, 5), weights[N * TOP_K];
    uint32_t *got = calloc(N * TOP_K, sizeof *got);
    assert_non_null(got);
    const struct moe_gpu_router r = {
        .kind = MOE_ROUTER_SOFTMAX,
        .n_experts = EXPERTS,
        .top_k = TOP_K,
        .n_groups = EXPERTS,
        .top_groups = EXPERTS,
        .routed_scale = 1,
        .scores = on_device(&f, p, N * EXPERTS),
        .stride = EXPERTS,
        .chosen = gpu_take(&f.taken, NULL, N * TOP_K * sizeof(uint32_t)),
        .weights = gpu_take(&f.taken, NULL, sizeof weights),
    };
    moe_gpu_route(f.taken.g, &r, N);
    gpu_get(f.taken.g, got, r.chosen, N * TOP_K * sizeof *got);
    for (uint32_t i = 0; i < N; i++) {
        float *row = p + i * EXPERTS;
        moe_kern.softmax(row, EXPERTS);
        for (uint32_t k = 0; k < TOP_K; k++) {
            uint32_t e = got[i * TOP_K + k], n_better = 0;
            for (uint32_t o = 0; o < EXPERTS; o++)
                n_better += row[o] > row[e] || (row[o] == row[e] && o < e);
            assert_int_equal(n_better, k);
            weights[i * TOP_K + k] = row[e];
        }
    }
    check_floats(&f, r.scores, p, N * EXPERTS);
    check_floats(&f, r.weights, weights, N * TOP_K);
    free(got);
    forged_close(&f);
}

/* Scores that are not numbers: the processor refuses the pass; the device's weights say so, and its
 * choices are experts that there are, each once. */
static void test_not_numbers(void **state)
{
    static const struct shape shapes[] = {
        {MOE_ROUTER_SOFTMAX, 40, 5, 0, 0, true, false, 1, 4, false},
        {MOE_ROUTER_SOFTMAX, 40, 5, 4, 2, true, false, 1, 4, false},
        {MOE_ROUTER_TOPK_SOFTMAX, 40, 5, 0, 0, true, false, 1, 4, false},
        {MOE_ROUTER_SPARSEMIXER, 40, 2, 0, 0, true, false, 1, 4, false},
        {MOE_ROUTER_SIGMOID, 40, 5, 4, 2, true, false, 1, 4, true},
    };
    for (size_t s = 0; s < N_ITEMS(shapes); s++) {
        const struct shape *p = &shapes[s];
        struct forged f = {.taken = {.g = *state}, .random = 50 + s};
        struct moe_err err;
        open_shape(&f, p);
        choose_scores(&f, p);
        struct moe_states *states = &f.s->states;
        for (uint32_t i = 0; i < p->n; i++) /* a product with one makes all scores of a row NaN */
            states->xn[i * states->stride + below(&f, 40)] = i % 2 ? NAN : INFINITY;
        struct routed d = route(&f, p);
        assert_fails(moe_route(f.s, 0, f.rows, p->n, &err), MOE_ERR_FORMAT, "not numbers", &err);
        check_floats(&f, d.r.weights, f.s->request.weights, d.n_pairs);
        uint32_t *chosen = chosen_of(&f, &d);
        for (uint64_t i = 0; i < d.n_pairs; i++) {
            assert_true(chosen[i] < 40);
            for (uint64_t k = i - i % p->top_k; k < i; k++)
                assert_true(chosen[k] != chosen[i]);
        }
        free(chosen);
        forged_close(&f);
    }
}

/* One bad score among the others, which a router of products does not make, but a bias may. */
static void test_one_not_a_number(void **state)
{
    static const struct shape p = {MOE_ROUTER_TOPK_SOFTMAX, 40, 5, 0, 0, false, true, 1, 3, false};
    struct forged f = {.taken = {.g = *state}, .random = 60};
    open_shape(&f, &p);
    choose_scores(&f, &p);
    ((float *)f.layers[0].router_bias)[17] = NAN;
    struct routed d = route(&f, &p);
    float weights[15];
    uint32_t *chosen = chosen_of(&f, &d);
    gpu_get(f.taken.g, weights, d.r.weights, sizeof weights);
    for (uint32_t i = 0; i < 15; i++) {
        assert_true(isnan(weights[i]));
        assert_true(i % 5 ? chosen[i] < 40 && chosen[i] != chosen[i - 1] : chosen[i] == 17);
    }
    free(chosen);
    forged_close(&f);
}

/* Scores of -infinity, by the bias: never chosen before others, a share of nearly nothing. */
static void test_minus_infinity(void **state)
{
    static const struct shape shapes[] = {
        {MOE_ROUTER_SOFTMAX, 24, 5, 0, 0, true, true, 1, 3, false},
        {MOE_ROUTER_TOPK_SOFTMAX, 24, 5, 0, 0, true, true, 1, 3, false},
        {MOE_ROUTER_SPARSEMIXER, 24, 2, 0, 0, false, true, 1, 3, false},
        {MOE_ROUTER_SIGMOID, 24, 5, 0, 0, true, true, 1, 3, true},
    };
    for (size_t s = 0; s < N_ITEMS(shapes); s++) {
        const struct shape *p = &shapes[s];
        struct forged f = {.taken = {.g = *state}, .random = 70 + s};
        struct moe_err err;
        open_shape(&f, p);
        choose_scores(&f, p);
        for (uint32_t e = 3; e < 24; e++)
            ((float *)f.layers[0].router_bias)[e] = -INFINITY;
        struct routed d = route(&f, p);
        assert_ok(moe_route(f.s, 0, f.rows, p->n, &err), &err);
        uint32_t *chosen = chosen_of(&f, &d);
        assert_memory_equal(chosen, f.s->request.chosen, d.n_pairs * sizeof *chosen);
        check_floats(&f, d.r.weights, f.s->request.weights, d.n_pairs);
        check_floats(&f, d.r.scores, cpu_feed_forward(f.s)->probabilities, d.n_scores);
        free(chosen);
        forged_close(&f);
    }
}

static void test_softmax(void **state)
{
    struct forged f = {.taken = {.g = *state}, .random = 9};
    static const uint32_t widths[] = {1, 2, 15, 16, 17, 255, 256, 300, 2048, 2049, 5000};
    enum { N = 3 };
    for (size_t i = 0; i < 2 * N_ITEMS(widths); i++) {
        uint32_t cols = widths[i / 2];
        uint64_t stride = cols + 6;
        float *x = forged_floats(&f, N * stride, i % 4 ? 3 : 200);
        float *bias = i % 2 ? forged_floats(&f, cols, 3) : NULL;
        x[stride] = -INFINITY;
        x[2 * stride + below(&f, cols)] = NAN;
        if (cols == 1)
            x[stride] = 0;
        float *dev = on_device(&f, x, N * stride);
        moe_gpu_softmax(f.taken.g, dev, stride, N, cols, on_device(&f, bias, cols));
        for (uint32_t row = 0; row < N; row++) {
            if (bias)
                moe_kern.add(bias, cols, x + row * stride);
            moe_kern.softmax(x + row * stride, cols);
        }
        check_floats(&f, dev, x, N * stride);
        gpu_give_back(&f.taken);
    }
    forged_close(&f);
}

int main(void)
{
    struct moe_err err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),          cmocka_unit_test(test_many_experts),
        cmocka_unit_test(test_not_numbers),    cmocka_unit_test(test_one_not_a_number),
        cmocka_unit_test(test_minus_infinity), cmocka_unit_test(test_softmax),
    };
    if (moe_kern_select(moe_cpu_detect(), &err) != MOE_OK)
        return 1;
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
