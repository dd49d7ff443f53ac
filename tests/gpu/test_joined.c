/*
 * Products in parts, and the end of a layer with its norm, against the functions that do one thing:
 * the same bits in one launch.
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

/* ---- The end of a layer ---- */

enum { MAX_ROWS = 6, MAX_TOP_K = 9 };

static void test_combine(void **state)
{
    struct twins t = {.taken = {.g = *state}, .seed = 5};
    struct moe_gpu *g = t.taken.g;
    for (uint32_t n = 1; n <= MAX_ROWS; n++)
        for (int round = 0; round < 3; round++) {
            uint32_t top_k = draw_up_to(&t.seed, MAX_TOP_K), cols = draw_up_to(&t.seed, 3000);
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
            assert_int_equal(moe_gpu_launches(g) - before, 1);
            check_twins(&t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_combine),
    };
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
