/*
 * Products with what follows them, or in parts, and the end of a layer with its norm, against the
 * functions that do one thing: the same bits for few rows, where they are one launch, and for more.
 */
#include "joined_fixture.h"

/* ---- Parts ---- */

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
        product.first = moe_layout_takes_floats(layout.kind) ? 0 : i * n;
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

/* ---- Products and what follows ---- */

enum { MAX_ROWS = MOE_GPU_JOINED_ROWS + 2, MAX_PRODUCTS = 4, MAX_TOP_K = 4 };

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

/* More rows' routing than a block has shared memory for; in between, just as much as it has
 * without the kernel's static variables. */
static void check_many_experts(void **state, uint32_t n_experts, uint32_t n_launches)
{
    struct twins t = {.taken = {.g = *state}, .seed = 2};
    struct moe_gpu *g = t.taken.g;
    enum { N = 4 };
    struct products p = products_new(&t, N, 1, n_experts);
    struct moe_gpu_router router[N_SIDES];
    uint64_t stride = moe_round_up(n_experts, MOE_PANEL_ROWS);
    twin_router(&t, router, N, n_experts, p.y[0], stride);
    p.list[APART][0].act = p.list[JOINED][0].act = &p.in;
    moe_gpu_matmul(g, p.list[APART], 1);
    moe_gpu_route(g, &router[APART], N);
    const struct moe_gpu_then then = {.router = &router[JOINED], .n = N};
    uint64_t before = moe_gpu_launches(g);
    moe_gpu_matmul_then(g, p.list[JOINED], 1, &then);
    assert_int_equal(moe_gpu_launches(g) - before, n_launches);
    products_free(&p);
    check_twins(&t);
}

static void test_many_experts(void **state)
{
    check_many_experts(state, 1000, 1);
    check_many_experts(state, 1024, 2);
    check_many_experts(state, 1100, 2);
}

/* ---- The end of a layer ---- */

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
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_then),
        cmocka_unit_test(test_many_experts),
        cmocka_unit_test(test_combine),
    };
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
