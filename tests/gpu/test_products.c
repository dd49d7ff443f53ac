/*
 * The GPU's products against the processor's: the same bits, over all layouts, odd shapes, gathered
 * inputs, mixed lists; with tensor cores and without. Products rounded to bf16 against double
 * precision.
 */
#include "products_fixture.h"

#include "kern/matmul.h"

/* ---- Inputs ---- */

static void check_form(struct moe_gpu *g, const struct moe_gpu_act *act, int form, const float *x,
                       uint32_t n)
{
    uint32_t block = form == MOE_GPU_BLOCK_32 ? 32 : 64;
    uint64_t blocks = (act->cols + block - 1) / block, padded = blocks * block;
    int8_t *q = take(n * padded, 1), *want_q = take(padded, 1);
    float *s = take(n * blocks, sizeof *s), *z = take(n * blocks, sizeof *z);
    float *want_s = take(blocks, sizeof *s), *want_z = take(blocks, sizeof *z);
    struct moe_sums *sum = take(blocks, sizeof *sum);
    gpu_get(g, q, act->bytes[form].q, n * padded);
    gpu_get(g, s, act->bytes[form].s, n * blocks * sizeof *s);
    gpu_get(g, z, act->bytes[form].z, n * blocks * sizeof *z);
    for (uint32_t i = 0; i < n; i++) {
        moe_kern.quantize(x + (uint64_t)i * act->cols, act->cols, block, 1, 0, want_q, want_s,
                          want_z, sum);
        assert_memory_equal(q + i * padded, want_q, padded);
        assert_same_floats(s + i * blocks, want_s, blocks);
        assert_same_floats(z + i * blocks, want_z, blocks);
    }
    free(q);
    free(want_q);
    free(s);
    free(z);
    free(want_s);
    free(want_z);
    free(sum);
}

/* Rows of parts that lie side by side, with something between the rows. */
static void test_prepare(void **state)
{
    struct gpu_taken t = {.g = *state};
    uint64_t seed = 1;
    for (int round = 0; round < 40; round++) {
        uint32_t cols = draw_up_to(&seed, 300), n = draw_up_to(&seed, 5);
        uint32_t n_parts = draw_up_to(&seed, 3), part_stride = cols + draw_up_to(&seed, 3) - 1;
        uint64_t stride = (uint64_t)n_parts * part_stride + round % 5;
        float *x = draw_rows(n, (uint32_t)stride, stride, &seed, round % N_FLAVOURS);
        float *parts = take((uint64_t)n * n_parts * cols, sizeof *parts);
        for (uint32_t k = 0; k < n * n_parts; k++)
            memcpy(parts + (uint64_t)k * cols, x + k % n * stride + (uint64_t)(k / n) * part_stride,
                   cols * sizeof *parts);
        struct moe_gpu_act act = act_room(&t, n * n_parts, cols, NULL, 0);
        if (round % 3)
            act.bytes[round % 3 - 1].q = NULL;
        moe_gpu_prepare(t.g, gpu_take(&t, x, n * stride * sizeof *x), stride, n, n_parts,
                        part_stride, &act);
        for (int form = 0; form < MOE_GPU_N_BLOCKS; form++)
            if (act.bytes[form].q)
                check_form(t.g, &act, form, parts, n * n_parts);
        gpu_give_back(&t);
        free(x);
        free(parts);
    }
}

/* ---- Products ---- */

/* A product, what it should give, and the host memory of both. */
struct trial {
    struct moe_gpu_product product;
    struct moe_gpu_act act;
    struct matrix w;
    uint32_t n_inputs, *rows;
    float *x, *bias, *want; /* want: [n][y_stride] */
    uint64_t x_stride;
};

static struct moe_act *act_of_host(const struct trial *tr)
{
    struct moe_arena arena = {0};
    struct moe_act *act = take(1, sizeof *act);
    moe_act_carve(act, &arena, tr->product.n, tr->w.host.cols);
    arena = (struct moe_arena){.base = take(arena.used, 1), .size = arena.used};
    moe_act_carve(act, &arena, tr->product.n, tr->w.host.cols);
    moe_act_prepare(act, tr->x, tr->x_stride, tr->rows, tr->product.n, tr->w.host.cols,
                    moe_act_block_for(tr->w.host.layout));
    return act;
}

static void multiply_on_host(struct trial *tr)
{
    const struct moe_gpu_product *p = &tr->product;
    struct moe_act *act = act_of_host(tr);
    struct moe_mm mm = {tr->w.host, act, tr->want, p->y_stride};
    moe_matmul(&mm, 1);
    for (uint32_t i = 0; tr->bias && i < p->n; i++)
        moe_kern.add(tr->bias, p->w.rows, tr->want + i * p->y_stride);
    free(act->x); /* the first of its block */
    free(act);
}

static struct trial trial_new(struct gpu_taken *t, struct moe_layout layout, uint32_t rows,
                              uint32_t cols, uint32_t n, uint64_t *seed, enum flavour flavour)
{
    cols = fitting_cols(layout, cols);
    struct trial tr = {.w = matrix_new(t, layout, rows, cols, seed, flavour)};
    struct moe_gpu_product *p = &tr.product;
    tr.x_stride = cols + test_random(seed) % 3;
    tr.n_inputs = 2 * n + draw_up_to(seed, 3);
    tr.x = draw_rows(tr.n_inputs, cols, tr.x_stride, seed, flavour);
    tr.act = act_new(t, tr.x, tr.n_inputs, cols, tr.x_stride);
    tr.rows = take(n, sizeof *tr.rows);
    *p = (struct moe_gpu_product){.w = tr.w.device, .n = n};
    p->first = (uint32_t)(test_random(seed) % 3);
    bool gathered = test_random(seed) % 2;
    for (uint32_t i = 0; i < n; i++)
        tr.rows[i] = gathered ? (uint32_t)(test_random(seed) % tr.n_inputs) : p->first + i;
    if (gathered)
        p->rows = gpu_take(t, tr.rows, n * sizeof *tr.rows);
    if (test_random(seed) % 2) {
        tr.bias = draw_rows(1, rows, rows, seed, ORDINARY);
        p->bias = gpu_take(t, tr.bias, rows * sizeof *tr.bias);
    }
    p->y_stride = moe_panels(rows) * MOE_PANEL_ROWS + test_random(seed) % 3;
    p->y = gpu_take(t, NULL, n * p->y_stride * sizeof *p->y);
    tr.want = take(n * p->y_stride, sizeof *tr.want);
    memset(tr.want, GPU_GUARD_BYTE, n * p->y_stride * sizeof *tr.want);
    return tr;
}

static float *trial_result(struct gpu_taken *t, const struct trial *tr)
{
    uint64_t n = tr->product.n * tr->product.y_stride;
    float *y = take(n, sizeof *y);
    gpu_get(t->g, y, tr->product.y, n * sizeof *y);
    return y;
}

static void trial_check(struct gpu_taken *t, const struct trial *tr, const char *what)
{
    const struct moe_gpu_product *p = &tr->product;
    float *y = trial_result(t, tr);
    int64_t at = floats_differ(y, tr->want, p->n * p->y_stride);
    if (at >= 0)
        fail_msg("%s: %s group %u, %u x %u, %u inputs: row %llu of input %llu is %a, should be %a",
                 what, moe_layout_name(p->w.layout.kind), p->w.layout.group, p->w.rows, p->w.cols,
                 p->n, (unsigned long long)((uint64_t)at % p->y_stride),
                 (unsigned long long)((uint64_t)at / p->y_stride), (double)y[at],
                 (double)tr->want[at]);
    free(y);
}

static void trial_free(struct trial *tr)
{
    free(tr->w.data);
    free(tr->rows);
    free(tr->x);
    free(tr->bias);
    free(tr->want);
}

enum { MAX_TRIALS = 6 };

/* Computes the trials in one list and compares, twice: as the device does it by itself, and without
 * tensor cores. */
static void run_trials(struct gpu_taken *t, struct trial *trials, uint32_t n)
{
    struct moe_gpu_product list[MAX_TRIALS];
    struct moe_err err;
    for (uint32_t i = 0; i < n; i++) {
        trials[i].product.act = &trials[i].act;
        multiply_on_host(&trials[i]);
        list[i] = trials[i].product;
    }
    for (int portable = 0; portable < 2; portable++) {
        enum moe_gpu_math math = portable ? MOE_GPU_MATH_PORTABLE : MOE_GPU_MATH_EXACT;
        assert_ok(moe_gpu_set_math(t->g, math, NULL, 0, &err), &err);
        moe_gpu_matmul(t->g, list, n);
        for (uint32_t i = 0; i < n; i++) {
            const struct moe_gpu_product *p = &list[i];
            uint64_t bytes = p->n * p->y_stride * sizeof *p->y;
            trial_check(t, &trials[i], portable ? "portable" : "exact");
            uint8_t *guard = take(bytes, 1);
            memset(guard, GPU_GUARD_BYTE, bytes);
            gpu_put(t->g, p->y, guard, bytes);
            assert_ok(moe_gpu_finish(t->g, &err), &err);
            free(guard);
        }
    }
    assert_ok(moe_gpu_set_math(t->g, MOE_GPU_MATH_EXACT, NULL, 0, &err), &err);
    gpu_give_back(t);
    for (uint32_t i = 0; i < n; i++)
        trial_free(&trials[i]);
}

/* Every layout with every tile of inputs, over several sections of columns and panels. */
static void test_layouts(void **state)
{
    static const uint32_t n_inputs[] = {1, 2, 3, 8, 9, 16, 40, 65};
    struct gpu_taken t = {.g = *state};
    uint64_t seed = 2;
    for (size_t k = 0; k < N_ITEMS(layouts); k++)
        for (size_t i = SANITIZED ? k % 2 : 0; i < N_ITEMS(n_inputs); i += 1 + SANITIZED) {
            enum flavour flavour = (k + i) % N_FLAVOURS;
            uint32_t rows = draw_up_to(&seed, n_inputs[i] > 8 ? 90 : 40);
            uint32_t cols = draw_up_to(&seed, i % 3 ? 700 : 2600);
            struct trial trial = trial_new(&t, layouts[k], rows, cols, n_inputs[i], &seed, flavour);
            run_trials(&t, &trial, 1);
        }
}

/* The smallest shapes: where records and blocks end. */
static void test_edges(void **state)
{
    static const uint32_t cols[] = {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 193, 256, 257};
    struct gpu_taken t = {.g = *state};
    uint64_t seed = 3;
    for (size_t k = 0; k < N_ITEMS(layouts); k++)
        for (size_t c = 0; c < N_ITEMS(cols); c++) {
            uint32_t n = c % 2 ? 1 + (uint32_t)k % 8 : 9 + (uint32_t)k;
            uint32_t rows = c % 3 ? draw_up_to(&seed, 17) : 16;
            struct trial trial =
                trial_new(&t, layouts[k], rows, cols[c], n, &seed, (k + c) % N_FLAVOURS);
            run_trials(&t, &trial, 1);
        }
}

static void test_lists(void **state)
{
    struct gpu_taken t = {.g = *state};
    uint64_t seed = 4;
    for (int round = 0; round < (SANITIZED ? 20 : 40); round++) {
        struct trial trials[MAX_TRIALS];
        uint32_t n = draw_up_to(&seed, MAX_TRIALS);
        struct moe_layout common = draw_layout(&seed);
        for (uint32_t i = 0; i < n; i++) {
            struct moe_layout layout = test_random(&seed) % 2 ? common : draw_layout(&seed);
            uint32_t n_inputs = draw_up_to(&seed, test_random(&seed) % 3 ? 8 : 40);
            trials[i] = trial_new(&t, layout, draw_up_to(&seed, 70), draw_up_to(&seed, 400),
                                  n_inputs, &seed, ORDINARY);
        }
        run_trials(&t, trials, n);
    }
}

/* More products than a launch and than a list inside of the backend take. */
static void test_long_list(void **state)
{
    enum { N = 75 };
    struct gpu_taken t = {.g = *state};
    uint64_t seed = 5;
    struct trial one =
        trial_new(&t, (struct moe_layout){MOE_LAYOUT_Q4, 64}, 20, 70, 3, &seed, ORDINARY);
    struct moe_gpu_product list[N];
    float *y[N];
    one.product.act = &one.act;
    multiply_on_host(&one);
    for (int i = 0; i < N; i++) {
        list[i] = one.product;
        y[i] = list[i].y = gpu_take(&t, NULL, 3 * one.product.y_stride * sizeof(float));
    }
    moe_gpu_matmul(t.g, list, N);
    for (int i = 0; i < N; i++) {
        one.product.y = y[i];
        trial_check(&t, &one, "long list");
    }
    gpu_give_back(&t);
    trial_free(&one);
}

/* ---- bf16 ---- */

/* Two factors rounded to 8 significant bits, each by at most 2^-8, one sum in f32 in any order. */
static void check_bf16(struct gpu_taken *t, const struct trial *tr)
{
    const struct moe_gpu_product *p = &tr->product;
    uint32_t cols = p->w.cols;
    float *y = trial_result(t, tr), *w = take(cols, sizeof *w);
    double tolerance = 1.01 * 0x1p-7 + cols * 0x1p-23;
    for (uint32_t r = 0; r < moe_panels(p->w.rows) * MOE_PANEL_ROWS; r++) {
        if (r < p->w.rows)
            moe_layout_load_row(&tr->w.host, r, w);
        for (uint32_t i = 0; i < p->n; i++) {
            const float *x = tr->x + tr->rows[i] * tr->x_stride;
            double sum = 0, size = 0, got = (double)y[i * p->y_stride + r];
            for (uint32_t c = 0; r < p->w.rows && c < cols; c++) {
                sum += (double)w[c] * (double)x[c];
                size += fabs((double)w[c] * (double)x[c]);
            }
            sum += r < p->w.rows && tr->bias ? (double)tr->bias[r] : 0;
            if (!(fabs(got - sum) <= tolerance * size + fabs(sum) * 0x1p-23))
                fail_msg("%s: row %u of input %u is %g, should be %g +- %g",
                         moe_layout_name(p->w.layout.kind), r, i, got, sum, tolerance * size);
        }
    }
    free(y);
    free(w);
}

enum { FROM_ROWS = 16 };

static void test_bf16(void **state)
{
    struct gpu_taken t = {.g = *state};
    struct moe_err err;
    uint64_t seed = 6, counted = moe_gpu_bf16_rows(t.g);
    for (size_t k = 0; k < N_ITEMS(layouts); k++) {
        uint32_t rows = draw_up_to(&seed, 60);
        uint32_t cols = fitting_cols(layouts[k], draw_up_to(&seed, 300));
        uint32_t n = FROM_ROWS + draw_up_to(&seed, 20) - 1;
        uint64_t work = (uint64_t)n * rows * cols;
        struct trial tr = trial_new(&t, layouts[k], rows, cols, n, &seed, ORDINARY);
        uint64_t bytes = moe_gpu_math_bytes((uint64_t)rows * cols, (uint64_t)n * cols);
        tr.product.act = &tr.act;
        moe_gpu_set_bf16_rule(t.g, FROM_ROWS, work);
        assert_ok(moe_gpu_set_math(t.g, MOE_GPU_MATH_BF16, gpu_take(&t, NULL, bytes), bytes, &err),
                  &err);
        moe_gpu_matmul(t.g, &tr.product, 1);
        check_bf16(&t, &tr);
        counted += n;
        assert_int_equal(moe_gpu_bf16_rows(t.g), counted);

        /* Fewer inputs, less work, or less room: exact. */
        multiply_on_host(&tr);
        if (k % 3 == 0)
            tr.product.n = FROM_ROWS - 1;
        else if (k % 3 == 1)
            moe_gpu_set_bf16_rule(t.g, FROM_ROWS, work + 1);
        else
            assert_ok(moe_gpu_set_math(t.g, MOE_GPU_MATH_BF16, NULL, 0, &err), &err);
        moe_gpu_matmul(t.g, &tr.product, 1);
        trial_check(&t, &tr, "not bf16");
        assert_int_equal(moe_gpu_bf16_rows(t.g), counted);
        assert_ok(moe_gpu_set_math(t.g, MOE_GPU_MATH_EXACT, NULL, 0, &err), &err);
        gpu_give_back(&t);
        trial_free(&tr);
    }
    moe_gpu_set_bf16_rule(t.g, MOE_GPU_BF16_ROWS, MOE_GPU_BF16_WORK);
}

/* The rule as users have it: many inputs of a small matrix stay exact, and so do few of a large
 * one. */
static void test_bf16_rule(void **state)
{
    static const struct {
        uint32_t n, rows, cols;
        bool bf16;
    } cases[] = {{128, 1024, 2048, true},
                 {127, 1024, 2080, false},
                 {128, 1024, 2047, false},
                 {16, 1024, 2048, false},
                 {512, 128, 512, false}};
    struct gpu_taken t = {.g = *state};
    struct moe_err err;
    const struct moe_layout layout = {.kind = MOE_LAYOUT_Q4, .group = 64};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t n = cases[i].n, rows = cases[i].rows, cols = cases[i].cols;
        uint64_t weights_bytes = moe_layout_bytes(layout, rows, cols), before;
        uint64_t bytes = moe_gpu_math_bytes((uint64_t)rows * cols, (uint64_t)n * cols);
        uint8_t *weights = calloc(1, weights_bytes);
        float *x = calloc((uint64_t)n * cols, sizeof *x);
        assert_true(weights && x);
        struct moe_gpu_act act = act_new(&t, x, n, cols, cols);
        const struct moe_gpu_product p = {
            .w = {.data = gpu_take(&t, weights, weights_bytes),
                  .rows = rows,
                  .cols = cols,
                  .layout = layout},
            .act = &act,
            .n = n,
            .y = gpu_take(&t, NULL, (uint64_t)n * rows * sizeof(float)),
            .y_stride = rows,
        };
        assert_ok(moe_gpu_set_math(t.g, MOE_GPU_MATH_BF16, gpu_take(&t, NULL, bytes), bytes, &err),
                  &err);
        before = moe_gpu_bf16_rows(t.g);
        moe_gpu_matmul(t.g, &p, 1);
        assert_int_equal(moe_gpu_bf16_rows(t.g) - before, cases[i].bf16 ? n : 0);
        assert_ok(moe_gpu_set_math(t.g, MOE_GPU_MATH_EXACT, NULL, 0, &err), &err);
        gpu_give_back(&t);
        free(weights);
        free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prepare),   cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_edges),     cmocka_unit_test(test_lists),
        cmocka_unit_test(test_long_list), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_bf16_rule),
    };
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
