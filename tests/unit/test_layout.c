/* Weight layouts: every byte where layout.h says, whatever the kind, group and shape. */
#include "../test.h"

#include <float.h>
#include <math.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "quant/layout.h"

static const struct moe_layout quantized[] = {
    {MOE_LAYOUT_Q8, 32}, {MOE_LAYOUT_Q8, 64}, {MOE_LAYOUT_Q8, 128}, {MOE_LAYOUT_Q8, 0},
    {MOE_LAYOUT_Q4, 32}, {MOE_LAYOUT_Q4, 64}, {MOE_LAYOUT_Q4, 128}, {MOE_LAYOUT_Q4, 0},
    {MOE_LAYOUT_Q3, 32}, {MOE_LAYOUT_Q3, 64}, {MOE_LAYOUT_Q3, 192}, {MOE_LAYOUT_Q3, 0},
    {MOE_LAYOUT_Q2, 32}, {MOE_LAYOUT_Q2, 64}, {MOE_LAYOUT_Q2, 128}, {MOE_LAYOUT_Q2, 0},
};
static const struct moe_layout floats[] = {
    {MOE_LAYOUT_F32, 0}, {MOE_LAYOUT_F16, 0}, {MOE_LAYOUT_BF16, 0}};

/* Rows and columns: full panels and groups, one short of them, one more, and single ones. */
static const uint32_t shapes[][2] = {{16, 64}, {1, 1},     {16, 31},  {17, 33},
                                     {5, 63},  {33, 65},   {16, 128}, {48, 192},
                                     {7, 200}, {31, 1000}, {16, 130}, {2, 320}};

/* A matrix of random codes and scales, kept in the plainest form. */
struct plain {
    struct moe_layout layout;
    uint32_t rows, cols, group, n_groups;
    uint8_t *codes;  /* [rows][cols] */
    uint16_t *d, *m; /* [rows][n_groups] */
    uint8_t *data;   /* in the layout */
    uint64_t bytes;
};

static void plain_make(struct plain *p, struct moe_layout layout, uint32_t rows, uint32_t cols)
{
    uint64_t seed = layout.kind * 1000u + layout.group + rows * cols;
    *p = (struct plain){.layout = layout, .rows = rows, .cols = cols};
    p->group = layout.group ? layout.group : cols;
    p->n_groups = (cols + p->group - 1) / p->group;
    p->bytes = moe_layout_bytes(layout, rows, cols);
    p->codes = moe_alloc(rows, cols, NULL);
    p->d = moe_alloc((uint64_t)rows * p->n_groups, 2, NULL);
    p->m = moe_alloc((uint64_t)rows * p->n_groups, 2, NULL);
    p->data = moe_alloc(p->bytes, 1, NULL);
    for (uint32_t i = 0; i < rows * cols; i++)
        p->codes[i] = (uint8_t)(test_random(&seed) & ((1u << moe_layout_bits(layout.kind)) - 1));
    for (uint32_t i = 0; i < rows * p->n_groups; i++) {
        p->d[i] = moe_f32_to_f16(0.1f * test_uniform(&seed));
        p->m[i] = moe_f32_to_f16(test_uniform(&seed));
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t g = 0; g < p->n_groups; g++) {
            struct moe_group_codes codes = {p->d[r * p->n_groups + g], p->m[r * p->n_groups + g],
                                            p->codes + r * cols + g * p->group};
            moe_layout_store_group(p->data, layout, cols, r, g, &codes);
        }
}

static void plain_release(struct plain *p)
{
    free(p->codes);
    free(p->d);
    free(p->m);
    free(p->data);
}

/* What the header's text says about bit `bit` of the code at column c of a block and row r:
 * returns the byte within the block, and the bit of that byte in *at. */
static uint32_t documented_place(int bits, uint32_t block, uint32_t r, uint32_t c, int bit, int *at)
{
    uint32_t j, s, k = c % 4;
    switch (bits) {
    case 8:
        *at = bit;
        return c / 4 * 64 + r * 4 + k;
    case 4:
        j = c / 8;
        *at = bit + (c - 8 * j >= 4 ? 4 : 0);
        return j * 64 + r * 4 + k;
    case 2:
    case 3:
        if (bit == 2) {
            j = c / 32, s = (c - 32 * j) / 4;
            *at = (int)s;
            return block / 16 * 64 + j * 64 + r * 4 + k;
        }
        j = c / 16, s = (c - 16 * j) / 4;
        *at = bit + 2 * (int)s;
        return j * 64 + r * 4 + k;
    default:
        fail_msg("no such kind");
        return 0;
    }
}

/* The bytes of a matrix by the documentation alone, bit by bit. */
static uint8_t *documented_bytes(const struct plain *p, uint64_t *n_bytes)
{
    int bits = moe_layout_bits(p->layout.kind);
    uint32_t block = p->layout.group == 32 ? 32 : 64;
    uint64_t block_bytes = 16 * block * (unsigned)bits / 8, panel_bytes = 0;
    uint64_t *record = moe_alloc(p->n_groups, sizeof *record, NULL);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t n = p->cols - g * p->group < p->group ? p->cols - g * p->group : p->group;
        record[g] = panel_bytes;
        panel_bytes += 64 + (n + block - 1) / block * block_bytes;
    }
    *n_bytes = (p->rows + 15) / 16 * panel_bytes;
    uint8_t *bytes = moe_alloc(*n_bytes, 1, NULL);
    for (uint32_t row = 0; row < p->rows; row++)
        for (uint32_t col = 0; col < p->cols; col++) {
            uint32_t g = col / p->group, in_group = col % p->group, r = row % 16;
            uint8_t *at = bytes + row / 16 * panel_bytes + record[g];
            moe_put_u16(at + 2 * r, p->d[row * p->n_groups + g]);
            moe_put_u16(at + 32 + 2 * r, p->m[row * p->n_groups + g]);
            at += 64 + in_group / block * block_bytes;
            for (int bit = 0; bit < bits; bit++) {
                int shift = 0;
                uint32_t byte = documented_place(bits, block, r, in_group % block, bit, &shift);
                at[byte] |= (uint8_t)((p->codes[row * p->cols + col] >> bit & 1) << shift);
            }
        }
    free(record);
    return bytes;
}

static void test_bytes_are_where_documented(void **state)
{
    for (size_t l = 0; l < N_ITEMS(quantized); l++)
        for (size_t s = 0; s < N_ITEMS(shapes); s++) {
            struct plain p;
            uint64_t n_bytes;
            plain_make(&p, quantized[l], shapes[s][0], shapes[s][1]);
            uint8_t *expected = documented_bytes(&p, &n_bytes);
            assert_int_equal(p.bytes, n_bytes);
            assert_memory_equal(p.data, expected, n_bytes);
            free(expected);
            plain_release(&p);
        }
}

static void test_codes_round_trip(void **state)
{
    for (size_t l = 0; l < N_ITEMS(quantized); l++)
        for (size_t s = 0; s < N_ITEMS(shapes); s++) {
            struct plain p;
            plain_make(&p, quantized[l], shapes[s][0], shapes[s][1]);
            struct moe_mat mat = {p.data, p.layout, p.rows, p.cols};
            float *out = malloc(p.cols * sizeof *out);
            for (uint32_t r = 0; r < p.rows; r++) {
                moe_layout_load_row(&mat, r, out);
                for (uint32_t c = 0; c < p.cols; c++) {
                    float d = moe_f16_to_f32(p.d[r * p.n_groups + c / p.group]);
                    float m = moe_f16_to_f32(p.m[r * p.n_groups + c / p.group]);
                    assert_true(out[c] == d * (float)p.codes[r * p.cols + c] + m);
                }
            }
            free(out);
            plain_release(&p);
        }
}

static void test_sizes(void **state)
{
    for (size_t l = 0; l < N_ITEMS(quantized); l++)
        for (size_t s = 0; s < N_ITEMS(shapes); s++) {
            uint32_t rows = shapes[s][0], cols = shapes[s][1];
            uint64_t panel = moe_layout_panel_bytes(quantized[l], cols);
            assert_int_equal(panel % 64, 0);
            assert_int_equal(moe_layout_block_bytes(quantized[l]) % 64, 0);
            assert_int_equal(moe_layout_bytes(quantized[l], rows, cols), panel * moe_panels(rows));
        }
    /* 4 bits and 4 bytes of scales per 64 columns: 4.5 bits a weight. */
    struct moe_layout q4 = {MOE_LAYOUT_Q4, 64};
    assert_int_equal(moe_layout_bytes(q4, 2048, 1408), 2048ull * 1408 * 9 / 16);
    /* The largest matrix does not overflow. */
    struct moe_layout mxfp4 = {MOE_LAYOUT_MXFP4, 32};
    assert_int_equal(moe_layout_bytes(mxfp4, 5760, 2880),
                     5760ull * 2880 / 2 + 5760ull * 4 * 23); /* 22.5 records of 128 columns */
    struct moe_layout f32 = {MOE_LAYOUT_F32, 0}, q2 = {MOE_LAYOUT_Q2, 32};
    assert_int_equal(moe_layout_bytes(f32, MOE_MAX_DIM, MOE_MAX_DIM), 1ull << 50);
    assert_int_equal(moe_layout_bytes(q2, MOE_MAX_DIM, MOE_MAX_DIM), 3ull << 45);
    assert_int_equal(moe_layout_bytes(f32, 3, 5), 16 * 5 * 4);
}

/* Numbers of the codes and of the scales as the OCP specification gives them. */
static double mxfp4_number(uint8_t e, uint8_t code)
{
    int exponent = code >> 1 & 3, mantissa = code & 1;
    double v = exponent ? ldexp(1 + 0.5 * mantissa, exponent - 1) : 0.5 * mantissa;
    return ldexp(code & 8 ? -v : v, e - 127);
}

struct mx_plain {
    uint32_t rows, cols, blocks;
    uint8_t *codes, *e; /* [rows][cols], [rows][blocks] */
    uint8_t *data;
    uint64_t bytes;
};

static void mx_make(struct mx_plain *p, uint32_t rows, uint32_t cols)
{
    uint64_t seed = rows * 7u + cols;
    *p = (struct mx_plain){.rows = rows, .cols = cols, .blocks = (cols + 31) / 32};
    p->bytes = moe_layout_bytes((struct moe_layout){MOE_LAYOUT_MXFP4, 32}, rows, cols);
    p->codes = moe_alloc(rows, cols, NULL);
    p->e = moe_alloc(rows, p->blocks, NULL);
    p->data = moe_alloc(p->bytes, 1, NULL);
    for (uint32_t i = 0; i < rows * cols; i++)
        p->codes[i] = (uint8_t)(test_random(&seed) % 16);
    for (uint32_t i = 0; i < rows * p->blocks; i++)
        p->e[i] = (uint8_t)(test_random(&seed) % 255);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t b = 0; b < p->blocks; b++)
            assert_true(moe_layout_store_mxfp4(p->data, cols, r, b, p->e[r * p->blocks + b],
                                               p->codes + r * cols + b * 32));
}

static void mx_release(struct mx_plain *p)
{
    free(p->codes);
    free(p->e);
    free(p->data);
}

static void test_mxfp4_bytes_are_where_documented(void **state)
{
    for (size_t s = 0; s < N_ITEMS(shapes); s++) {
        struct mx_plain p;
        mx_make(&p, shapes[s][0], shapes[s][1]);
        uint64_t panel = p.blocks * 256 + (p.blocks + 3) / 4 * 64;
        assert_int_equal(p.bytes, (p.rows + 15) / 16 * panel);
        uint8_t *expected = moe_alloc(p.bytes, 1, NULL);
        for (uint32_t row = 0; row < p.rows; row++)
            for (uint32_t col = 0; col < p.cols; col++) {
                uint32_t r = row % 16, c = col % 32, b = col / 32;
                uint8_t *record = expected + row / 16 * panel + b / 4 * (64 + 4 * 256);
                record[b % 4 * 16 + r] = p.e[row * p.blocks + b];
                record[64 + b % 4 * 256 + c / 8 * 64 + r * 4 + c % 4] |=
                    (uint8_t)(p.codes[row * p.cols + col] << (c % 8 < 4 ? 0 : 4));
            }
        assert_memory_equal(p.data, expected, p.bytes);
        free(expected);
        mx_release(&p);
    }
}

static void test_mxfp4_is_exact(void **state)
{
    for (size_t s = 0; s < N_ITEMS(shapes); s++) {
        struct mx_plain p;
        mx_make(&p, shapes[s][0], shapes[s][1]);
        struct moe_mat mat = {p.data, {MOE_LAYOUT_MXFP4, 32}, p.rows, p.cols};
        float *out = malloc(p.cols * sizeof *out);
        for (uint32_t r = 0; r < p.rows; r++) {
            moe_layout_load_row(&mat, r, out);
            for (uint32_t c = 0; c < p.cols; c++) {
                double v = mxfp4_number(p.e[r * p.blocks + c / 32], p.codes[r * p.cols + c]);
                assert_true(fabs(v) > FLT_MAX ? isinf(out[c]) && (out[c] > 0) == (v > 0)
                                              : (double)out[c] == v);
            }
        }
        free(out);
        mx_release(&p);
    }
}

/* Every scale there is with every code; the one that is no number is refused. */
static void test_mxfp4_scales(void **state)
{
    uint8_t codes[32], data[64 + 4 * 64] = {0}, clear[sizeof data] = {0};
    float out[32];
    for (int c = 0; c < 32; c++)
        codes[c] = (uint8_t)(c % 16);
    assert_false(moe_layout_store_mxfp4(data, 32, 3, 0, 255, codes));
    assert_memory_equal(data, clear, sizeof data);
    for (int e = 0; e < 255; e++) {
        memset(data, 0, sizeof data);
        assert_true(moe_layout_store_mxfp4(data, 32, 3, 0, (uint8_t)e, codes));
        struct moe_mat mat = {data, {MOE_LAYOUT_MXFP4, 32}, 16, 32};
        moe_layout_load_row(&mat, 3, out);
        for (int c = 0; c < 32; c++) {
            double v = mxfp4_number((uint8_t)e, codes[c]);
            assert_true(fabs(v) > FLT_MAX ? isinf(out[c]) : (double)out[c] == v);
        }
        assert_true((double)moe_mxfp4_scale((uint8_t)e) == ldexp(1, e - 128));
    }
    assert_true(isinf(moe_mxfp4_scale(255)));
}

static void test_floats_are_exact(void **state)
{
    for (size_t l = 0; l < N_ITEMS(floats); l++)
        for (size_t s = 0; s < N_ITEMS(shapes); s++) {
            uint32_t rows = shapes[s][0], cols = shapes[s][1];
            uint32_t item = (uint32_t)moe_layout_bits(floats[l].kind) / 8;
            uint64_t seed = rows * cols, bytes = moe_layout_bytes(floats[l], rows, cols);
            uint8_t *data = moe_alloc(bytes, 1, NULL);
            float *w = malloc((size_t)rows * cols * sizeof *w), *out = malloc(cols * sizeof *out);
            /* bf16 with five bits of exponent to spare is exact in all three. */
            for (uint32_t i = 0; i < rows * cols; i++)
                w[i] = moe_bf16_to_f32(moe_f32_to_bf16(test_uniform(&seed) + 2));
            for (uint32_t r = rows; r-- > 0;)
                moe_layout_store_row(data, floats[l], cols, r, w + (size_t)r * cols);
            struct moe_mat mat = {data, floats[l], rows, cols};
            for (uint32_t r = 0; r < rows; r++) {
                moe_layout_load_row(&mat, r, out);
                assert_memory_equal(out, w + (size_t)r * cols, cols * sizeof *out);
            }
            /* Position: column after column, 16 rows each. */
            const uint8_t *last = data + (rows - 1) / 16 * (16ull * cols * item) +
                                  ((uint64_t)(cols - 1) * 16 + (rows - 1) % 16) * item;
            float v = w[(size_t)rows * cols - 1];
            if (item == 4)
                assert_int_equal(moe_get_u32(last), moe_f32_bits(v));
            else
                assert_int_equal(moe_get_u16(last), floats[l].kind == MOE_LAYOUT_F16
                                                        ? moe_f32_to_f16(v)
                                                        : moe_f32_to_bf16(v));
            free(data);
            free(w);
            free(out);
        }
}

static void test_validity(void **state)
{
    static const struct {
        struct moe_layout layout;
        bool valid;
    } cases[] = {
        {{MOE_LAYOUT_NONE, 0}, false},
        {{MOE_LAYOUT_F32, 0}, true},
        {{MOE_LAYOUT_F32, 64}, false},
        {{MOE_LAYOUT_BF16, 0}, true},
        {{4, 0}, false},
        {{MOE_LAYOUT_Q8, 0}, true},
        {{MOE_LAYOUT_Q8, 16}, false},
        {{MOE_LAYOUT_Q4, 32}, true},
        {{MOE_LAYOUT_Q4, 96}, false},
        {{MOE_LAYOUT_Q3, 192}, true},
        {{MOE_LAYOUT_Q2, 65536}, true},
        {{MOE_LAYOUT_Q2, 65600}, false},
        {{MOE_LAYOUT_MXFP4, 32}, true},
        {{MOE_LAYOUT_MXFP4, 64}, false},
        {{MOE_LAYOUT_MXFP4, 0}, false},
        {{21, 64}, false},
        {{65535, 64}, false},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++)
        assert_int_equal(moe_layout_valid(cases[i].layout), cases[i].valid);
    for (int bits = 0; bits <= 32; bits++) {
        uint16_t kind = moe_layout_kind_of_bits(bits);
        if (kind != MOE_LAYOUT_NONE)
            assert_int_equal(moe_layout_bits(kind), bits);
    }
    assert_string_equal(moe_layout_name(MOE_LAYOUT_Q3), "q3");
    assert_string_equal(moe_layout_name(MOE_LAYOUT_MXFP4), "mxfp4");
    assert_string_equal(moe_layout_name(99), "?");
    assert_int_equal(moe_layout_kind_of_bits(moe_layout_bits(MOE_LAYOUT_MXFP4)), MOE_LAYOUT_Q4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_where_documented),
        cmocka_unit_test(test_codes_round_trip),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_mxfp4_bytes_are_where_documented),
        cmocka_unit_test(test_mxfp4_is_exact),
        cmocka_unit_test(test_mxfp4_scales),
        cmocka_unit_test(test_floats_are_exact),
        cmocka_unit_test(test_validity),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
