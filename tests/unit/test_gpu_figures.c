/* What bench_gpu's figures count (tests/bench/gpu_figures.h), against sums done by hand. */
#include "../test.h"

#include "../bench/gpu_figures.h"

static const struct product_shape experts = {"gate and up of 8 experts", 16, 1408, 2048};

/* 1408 x 2048 weights are 88 panels of 32 groups of 64 columns. */
static void test_weights(void **state)
{
    const uint64_t n = 16, groups = 88 * 32;
    assert_int_equal(product_bytes(&experts, (struct moe_layout){MOE_LAYOUT_BF16, 0}),
                     n * 1408 * 2048 * 2);
    /* Of 16 rows: two f16 a row, then the codes. */
    assert_int_equal(product_bytes(&experts, (struct moe_layout){MOE_LAYOUT_Q8, 64}),
                     n * groups * (64 + 16 * 64));
    assert_int_equal(product_bytes(&experts, (struct moe_layout){MOE_LAYOUT_Q4, 64}),
                     n * groups * (64 + 16 * 32));
    assert_int_equal(product_bytes(&experts, (struct moe_layout){MOE_LAYOUT_Q3, 64}),
                     n * groups * (64 + 16 * 24));
    assert_int_equal(product_bytes(&experts, (struct moe_layout){MOE_LAYOUT_Q2, 64}),
                     n * groups * (64 + 16 * 16));
    /* 16 records of 128 columns: four exponents a row, and the codes. */
    assert_int_equal(product_bytes(&experts, (struct moe_layout){MOE_LAYOUT_MXFP4, 32}),
                     n * 88 * 16 * (64 + 16 * 64));
}

static void test_operations(void **state)
{
    const struct product_shape square = {"", 1, 2048, 2048};
    assert_float_equal(product_operations(&square, 512), 4294967296.0,
                       0); /* 2 * 2^11 * 2^11 * 2^9 */
    assert_float_equal(product_operations(&experts, 1), 16 * 5767168.0, 0);
}

static void test_attention(void **state)
{
    /* 4 heads of 128 + 128 values of 2 bytes at 8192 positions; latent: one of 576 + 512. */
    const struct attention_shape grouped = {"", 32, 4, 128, 128}, latent = {"", 16, 1, 576, 512};
    assert_int_equal(attention_bytes(&grouped, 8192, 2), 16777216);
    assert_int_equal(attention_bytes(&grouped, 8192, 4), 33554432);
    assert_int_equal(attention_bytes(&latent, 1024, 2), 2228224);
    /* Rows that see 3 and 4 positions. */
    assert_true(attention_operations(&grouped, 4, 2) == 2 * 7 * 32 * 256);
}

static void test_shares(void **state)
{
    assert_int_equal(copied_bytes(512), 1024);
    /* 512 MiB of matrices of 2,359,296 bytes (2048 x 2048 at 4 bits): 227 and a rest. */
    assert_int_equal(pieces_in_turn(512 << 20, 2359296), 227);
    assert_int_equal(pieces_in_turn(512 << 20, 622329856), 1);
    /* 3 ms and 5 ms: together in 5, in 8, in 6.5. */
    assert_float_equal(hidden_share(3e-3, 5e-3, 5e-3), 1, 1e-12);
    assert_float_equal(hidden_share(5e-3, 3e-3, 8e-3), 0, 1e-12);
    assert_float_equal(hidden_share(3e-3, 5e-3, 6.5e-3), 0.5, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
