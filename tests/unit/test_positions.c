/*
 * Where tokens stand: the buckets of distances are those of transformers 5.23, and the table of
 * biases has each distance's where attention looks for it.
 */
#include "model/rope.h"

#include "../test.h"

enum { FARTHEST = 2000 };

/* From this distance on it is that bucket. */
struct change {
    int distance;
    uint32_t bucket;
};

/* What SwitchTransformersAttention._relative_position_bucket says of all distances from -FARTHEST
 * to FARTHEST (a whole tensor of them, and one at a time). */
static const struct change c32_128_both[] = {
    {-2000, 15}, {-90, 14}, {-63, 13}, {-45, 12}, {-31, 11}, {-22, 10}, {-15, 9}, {-11, 8},
    {-7, 7},     {-6, 6},   {-5, 5},   {-4, 4},   {-3, 3},   {-2, 2},   {-1, 1},  {0, 0},
    {1, 17},     {2, 18},   {3, 19},   {4, 20},   {5, 21},   {6, 22},   {7, 23},  {8, 24},
    {12, 25},    {16, 26},  {23, 27},  {32, 28},  {46, 29},  {64, 30},  {91, 31}};
static const struct change c32_128_back[] = {
    {-2000, 31}, {-112, 30}, {-98, 29}, {-86, 28}, {-76, 27}, {-66, 26}, {-58, 25}, {-51, 24},
    {-45, 23},   {-39, 22},  {-34, 21}, {-30, 20}, {-26, 19}, {-23, 18}, {-20, 17}, {-18, 16},
    {-15, 15},   {-14, 14},  {-13, 13}, {-12, 12}, {-11, 11}, {-10, 10}, {-9, 9},   {-8, 8},
    {-7, 7},     {-6, 6},    {-5, 5},   {-4, 4},   {-3, 3},   {-2, 2},   {-1, 1},   {0, 0}};
static const struct change c33_40_both[] = {
    {-2000, 15}, {-32, 14}, {-26, 13}, {-21, 12}, {-17, 11}, {-14, 10}, {-11, 9}, {-9, 8},
    {-7, 7},     {-6, 6},   {-5, 5},   {-4, 4},   {-3, 3},   {-2, 2},   {-1, 1},  {0, 0},
    {1, 17},     {2, 18},   {3, 19},   {4, 20},   {5, 21},   {6, 22},   {7, 23},  {8, 24},
    {10, 25},    {12, 26},  {15, 27},  {18, 28},  {22, 29},  {27, 30},  {33, 31}};
static const struct change c33_40_back[] = {
    {-2000, 32}, {-37, 31}, {-35, 30}, {-34, 29}, {-32, 28}, {-30, 27}, {-28, 26},
    {-27, 25},   {-25, 24}, {-24, 23}, {-23, 22}, {-22, 21}, {-20, 20}, {-19, 19},
    {-18, 18},   {-17, 17}, {-16, 16}, {-15, 15}, {-14, 14}, {-13, 13}, {-12, 12},
    {-11, 11},   {-10, 10}, {-9, 9},   {-8, 8},   {-7, 7},   {-6, 6},   {-5, 5},
    {-4, 4},     {-3, 3},   {-2, 2},   {-1, 1},   {0, 0}};
static const struct change c8_20_both[] = {{-2000, 3}, {-6, 2}, {-1, 1}, {0, 0},
                                           {1, 5},     {2, 6},  {7, 7}};
static const struct change c8_20_back[] = {{-2000, 7}, {-13, 6}, {-8, 5}, {-5, 4},
                                           {-3, 3},    {-2, 2},  {-1, 1}, {0, 0}};
static const struct change c64_256_both[] = {
    {-2000, 31}, {-215, 30}, {-181, 29}, {-152, 28}, {-127, 27}, {-107, 26}, {-90, 25}, {-76, 24},
    {-63, 23},   {-53, 22},  {-45, 21},  {-38, 20},  {-31, 19},  {-26, 18},  {-22, 17}, {-19, 16},
    {-15, 15},   {-14, 14},  {-13, 13},  {-12, 12},  {-11, 11},  {-10, 10},  {-9, 9},   {-8, 8},
    {-7, 7},     {-6, 6},    {-5, 5},    {-4, 4},    {-3, 3},    {-2, 2},    {-1, 1},   {0, 0},
    {1, 33},     {2, 34},    {3, 35},    {4, 36},    {5, 37},    {6, 38},    {7, 39},   {8, 40},
    {9, 41},     {10, 42},   {11, 43},   {12, 44},   {13, 45},   {14, 46},   {15, 47},  {16, 48},
    {20, 49},    {23, 50},   {27, 51},   {32, 52},   {39, 53},   {46, 54},   {54, 55},  {64, 56},
    {77, 57},    {91, 58},   {108, 59},  {128, 60},  {153, 61},  {182, 62},  {216, 63}};
static const struct change c64_256_back[] = {
    {-2000, 63}, {-239, 62}, {-224, 61}, {-210, 60}, {-197, 59}, {-184, 58}, {-173, 57}, {-162, 56},
    {-152, 55},  {-142, 54}, {-133, 53}, {-125, 52}, {-117, 51}, {-109, 50}, {-103, 49}, {-96, 48},
    {-90, 47},   {-84, 46},  {-79, 45},  {-74, 44},  {-69, 43},  {-65, 42},  {-61, 41},  {-57, 40},
    {-53, 39},   {-50, 38},  {-47, 37},  {-44, 36},  {-41, 35},  {-38, 34},  {-36, 33},  {-34, 32},
    {-31, 31},   {-30, 30},  {-29, 29},  {-28, 28},  {-27, 27},  {-26, 26},  {-25, 25},  {-24, 24},
    {-23, 23},   {-22, 22},  {-21, 21},  {-20, 20},  {-19, 19},  {-18, 18},  {-17, 17},  {-16, 16},
    {-15, 15},   {-14, 14},  {-13, 13},  {-12, 12},  {-11, 11},  {-10, 10},  {-9, 9},    {-8, 8},
    {-7, 7},     {-6, 6},    {-5, 5},    {-4, 4},    {-3, 3},    {-2, 2},    {-1, 1},    {0, 0}};
static const struct change c16_1000_both[] = {{-2000, 7}, {-251, 6}, {-63, 5}, {-15, 4}, {-3, 3},
                                              {-2, 2},    {-1, 1},   {0, 0},   {1, 9},   {2, 10},
                                              {3, 11},    {4, 12},   {16, 13}, {64, 14}, {252, 15}};
static const struct change c16_1000_back[] = {
    {-2000, 15}, {-546, 14}, {-299, 13}, {-163, 12}, {-89, 11}, {-48, 10}, {-26, 9}, {-14, 8},
    {-7, 7},     {-6, 6},    {-5, 5},    {-4, 4},    {-3, 3},   {-2, 2},   {-1, 1},  {0, 0}};
static const struct change c4_3_both[] = {{-2000, 1}, {0, 0}, {1, 3}};
static const struct change c4_3_back[] = {{-2000, 3}, {-2, 2}, {-1, 1}, {0, 0}};

static const struct {
    uint32_t n_buckets, bucket_distance;
    bool both_ways;
    const struct change *changes;
    size_t n_changes;
    uint32_t hash; /* of all: hash = 31 * hash + bucket, by rising distance */
} cases[] = {
    {32, 128, true, c32_128_both, N_ITEMS(c32_128_both), 4154621970u},
    {32, 128, false, c32_128_back, N_ITEMS(c32_128_back), 1216340204u},
    {33, 40, true, c33_40_both, N_ITEMS(c33_40_both), 4137724944u},
    {33, 40, false, c33_40_back, N_ITEMS(c33_40_back), 3587210031u},
    {8, 20, true, c8_20_both, N_ITEMS(c8_20_both), 2554187778u},
    {8, 20, false, c8_20_back, N_ITEMS(c8_20_back), 1987063812u},
    {64, 256, true, c64_256_both, N_ITEMS(c64_256_both), 4214347810u},
    {64, 256, false, c64_256_back, N_ITEMS(c64_256_back), 2760544032u},
    {16, 1000, true, c16_1000_both, N_ITEMS(c16_1000_both), 2726353930u},
    {16, 1000, false, c16_1000_back, N_ITEMS(c16_1000_back), 2019956615u},
    {4, 3, true, c4_3_both, N_ITEMS(c4_3_both), 4017084928u},
    {4, 3, false, c4_3_back, N_ITEMS(c4_3_back), 4228573953u},
    {320, 800, true, NULL, 0, 984249504u},
    {320, 800, false, NULL, 0, 3988532324u},
};

static void buckets_are_those_of_the_reference(void **state)
{
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t hash = 0, at = 0;
        for (int d = -FARTHEST; d <= FARTHEST; d++) {
            uint32_t bucket = moe_position_bucket(d, cases[i].both_ways, cases[i].n_buckets,
                                                  cases[i].bucket_distance);
            hash = 31 * hash + bucket;
            if (!cases[i].changes)
                continue;
            at += at + 1 < cases[i].n_changes && cases[i].changes[at + 1].distance == d;
            if (bucket != cases[i].changes[at].bucket)
                fail_msg("%u buckets to %u%s: distance %d is in bucket %u, not %u",
                         cases[i].n_buckets, cases[i].bucket_distance,
                         cases[i].both_ways ? ", both ways" : "", d, bucket,
                         cases[i].changes[at].bucket);
        }
        if (hash != cases[i].hash)
            fail_msg("%u buckets to %u: another hash", cases[i].n_buckets,
                     cases[i].bucket_distance);
    }
}

/* Farther than any text is long. */
static void the_last_bucket_goes_on(void **state)
{
    assert_int_equal(moe_position_bucket(-(1 << 24), false, 32, 128), 31);
    assert_int_equal(moe_position_bucket(-(1 << 24), true, 32, 128), 15);
    assert_int_equal(moe_position_bucket(1 << 24, true, 32, 128), 31);
    assert_int_equal(moe_position_bucket(1 << 24, false, 32, 128), 0);
}

static void tables_have_every_distance(void **state)
{
    enum { POSITIONS = 50, BUCKETS = 12, HEADS = 3 };
    float weights[BUCKETS * HEADS], table[HEADS * (2 * POSITIONS - 1)];
    struct moe_config c;
    moe_config_init(&c);
    c.n_heads = HEADS;
    c.n_buckets = BUCKETS;
    c.bucket_distance = 30;
    c.positions = MOE_POSITIONS_BUCKETS;
    c.n_encoder = 1;
    c.n_layers = 2;
    for (int i = 0; i < BUCKETS * HEADS; i++)
        weights[i] = (float)i;
    for (int encoder = 0; encoder < 2; encoder++) {
        uint64_t stride = moe_position_bias_stride(encoder, &c, POSITIONS);
        assert_int_equal(stride, encoder ? 2 * POSITIONS - 1 : POSITIONS);
        assert_int_equal(moe_position_bias_floats(encoder, &c, POSITIONS), HEADS * stride);
        moe_position_bias_fill(encoder, &c, POSITIONS, weights, table);
        for (int head = 0; head < HEADS; head++)
            for (int d = 1 - POSITIONS; d < (encoder ? POSITIONS : 1); d++)
                assert_true(
                    table[head * (int)stride + (int)moe_position_bias_zero(POSITIONS) + d] ==
                    weights[moe_position_bucket(d, encoder, BUCKETS, 30) * HEADS + (uint32_t)head]);
    }
    c.n_encoder = 0;
    assert_int_equal(moe_position_bias_floats(true, &c, POSITIONS), 0);
    c.positions = MOE_POSITIONS_ROTARY;
    assert_int_equal(moe_position_bias_floats(false, &c, POSITIONS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_those_of_the_reference),
        cmocka_unit_test(the_last_bucket_goes_on),
        cmocka_unit_test(tables_have_every_distance),
    };
    return cmocka_run_group_tests_name("positions", tests, NULL, NULL);
}
