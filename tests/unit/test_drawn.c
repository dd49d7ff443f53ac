/* Drawn weights: their size, the same for any number of threads, and nothing beyond a matrix. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "base/par.h"
#include "quant/drawn.h"

static const struct {
    struct moe_layout layout;
    uint32_t rows, cols;
} cases[] = {
    {{MOE_LAYOUT_Q8, 64}, 64, 256},     {{MOE_LAYOUT_Q4, 64}, 64, 256},
    {{MOE_LAYOUT_Q4, 32}, 48, 96},      {{MOE_LAYOUT_Q3, 128}, 32, 320},
    {{MOE_LAYOUT_Q2, 64}, 33, 250},     {{MOE_LAYOUT_Q4, 0}, 32, 192},
    {{MOE_LAYOUT_Q8, 0}, 17, 100},      {{MOE_LAYOUT_Q4, 128}, 32, 64},
    {{MOE_LAYOUT_F32, 0}, 40, 70},      {{MOE_LAYOUT_F16, 0}, 40, 70},
    {{MOE_LAYOUT_BF16, 0}, 40, 70},     {{MOE_LAYOUT_Q8, 64}, 1, 2048},
    {{MOE_LAYOUT_Q8_0, 32}, 64, 96},    {{MOE_LAYOUT_Q6_K, 32}, 64, 512},
    {{MOE_LAYOUT_Q5_K, 32}, 33, 250},   {{MOE_LAYOUT_Q4_K, 32}, 32, 1408},
    {{MOE_LAYOUT_Q3_K, 32}, 64, 1312},  {{MOE_LAYOUT_Q2_K, 32}, 64, 256},
    {{MOE_LAYOUT_IQ4_XS, 32}, 64, 768}, {{MOE_LAYOUT_IQ1_KT, 32}, 64, 512},
    {{MOE_LAYOUT_IQ2_KT, 32}, 64, 288}, {{MOE_LAYOUT_IQ3_KT, 32}, 48, 1024},
    {{MOE_LAYOUT_IQ4_KS, 32}, 64, 512}, {{MOE_LAYOUT_IQ5_KS, 32}, 50, 300},
};

static uint8_t *draw(size_t i, uint64_t seed, double spread)
{
    struct moe_err err = {0};
    uint64_t bytes = moe_layout_bytes(cases[i].layout, cases[i].rows, cases[i].cols);
    uint8_t *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(out, 0, bytes);
    assert_ok(
        moe_drawn_matrix(cases[i].layout, cases[i].rows, cases[i].cols, spread, seed, out, &err),
        &err);
    return out;
}

static void weights_have_the_spread(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double sum = 0, squares = 0, n = (double)cases[i].rows * cases[i].cols;
        uint8_t *data = draw(i, 5, 0.02);
        const struct moe_mat mat = {data, cases[i].layout, cases[i].rows, cases[i].cols};
        float *row = malloc(cases[i].cols * sizeof *row);
        for (uint32_t r = 0; r < cases[i].rows; r++) {
            moe_layout_load_row(&mat, r, row);
            for (uint32_t c = 0; c < cases[i].cols; c++) {
                sum += row[c];
                squares += (double)row[c] * row[c];
            }
        }
        double spread = sqrt(squares / n);
        bool is_float = moe_layout_is_float(cases[i].layout.kind);
        assert_true(fabs(sum / n) < 5 * 0.02 / sqrt(n));
        assert_true(spread > 0.02 * (is_float ? 0.65 : 0.95) &&
                    spread < 0.02 * (is_float ? 1.55 : 1.05));
        free(row);
        free(data);
    }
}

static void seeds_decide_and_threads_do_not(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t bytes = moe_layout_bytes(cases[i].layout, cases[i].rows, cases[i].cols);
        moe_par_set_threads(1);
        uint8_t *one = draw(i, 7, 0.1), *other = draw(i, 8, 0.1);
        moe_par_set_threads(3);
        uint8_t *three = draw(i, 7, 0.1);
        moe_par_set_threads(1);
        assert_memory_equal(one, three, bytes);
        assert_memory_not_equal(one, other, bytes);
        free(one);
        free(other);
        free(three);
    }
}

/* What fills up the last panel and the last block is as an encoder leaves it: zero. */
static void edges_are_zeros(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct moe_layout layout = cases[i].layout;
        uint32_t rows = cases[i].rows, padded = moe_panels(rows) * MOE_PANEL_ROWS;
        uint8_t *data = draw(i, 9, 0.1);
        const struct moe_mat all = {data, layout, padded, cases[i].cols};
        float *row = malloc(cases[i].cols * sizeof *row);
        for (uint32_t r = rows; r < padded; r++) {
            moe_layout_load_row(&all, r, row);
            for (uint32_t c = 0; c < cases[i].cols; c++)
                assert_true(row[c] == 0);
        }
        free(row);
        if (!moe_layout_is_float(layout.kind) && layout.group == 0 && cases[i].cols % 64) {
            uint32_t whole = (cases[i].cols + 63) / 64 * 64; /* codes beyond: w = m */
            const struct moe_mat wide = {data, layout, rows, whole};
            float *values = malloc(whole * sizeof *values);
            moe_layout_load_row(&wide, 0, values);
            float least = values[0];
            for (uint32_t c = 0; c < cases[i].cols; c++)
                least = values[c] < least ? values[c] : least;
            for (uint32_t c = cases[i].cols; c < whole; c++)
                assert_true(values[c] <= least);
            free(values);
        }
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_have_the_spread),
        cmocka_unit_test(seeds_decide_and_threads_do_not),
        cmocka_unit_test(edges_are_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
