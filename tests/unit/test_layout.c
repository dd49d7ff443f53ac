/* Weight layouts: every byte where layout.h says, whatever the kind, group and shape. */
#include "../test.h"

#include <float.h>
#include <math.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "quant/ggml.h"
#include "quant/layout.h"

static const struct moe_layout quantized[] = {
    {MOE_LAYOUT_Q8, 32},   {MOE_LAYOUT_Q8, 64},    {MOE_LAYOUT_Q8, 128},  {MOE_LAYOUT_Q8, 0},
    {MOE_LAYOUT_Q5, 32},   {MOE_LAYOUT_Q5, 64},    {MOE_LAYOUT_Q5, 128},  {MOE_LAYOUT_Q5, 0},
    {MOE_LAYOUT_Q4, 32},   {MOE_LAYOUT_Q4, 64},    {MOE_LAYOUT_Q4, 128},  {MOE_LAYOUT_Q4, 0},
    {MOE_LAYOUT_Q3, 32},   {MOE_LAYOUT_Q3, 64},    {MOE_LAYOUT_Q3, 192},  {MOE_LAYOUT_Q3, 0},
    {MOE_LAYOUT_Q2, 32},   {MOE_LAYOUT_Q2, 64},    {MOE_LAYOUT_Q2, 128},  {MOE_LAYOUT_Q2, 0},
    {MOE_LAYOUT_Q8_Z, 32}, {MOE_LAYOUT_Q4_Z, 128}, {MOE_LAYOUT_Q3_Z, 64}, {MOE_LAYOUT_Q2_Z, 0},
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
    case 5:
    case 6:
        j = c / 8;
        *at = bit + (c - 8 * j >= 4 ? 4 : 0);
        if (bit < 4)
            return j * 64 + r * 4 + k;
        j = bits == 5 ? c / 32 : c / 16;
        *at = bits == 5 ? (int)(c - 32 * j) / 4 : bit - 4 + 2 * (int)((c - 16 * j) / 4);
        return block / 8 * 64 + j * 64 + r * 4 + k;
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
    case 1:
        *at = (int)c / 4;
        return r * 4 + k;
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
                    uint16_t word = p.m[r * p.n_groups + c / p.group];
                    int code = p.codes[r * p.cols + c];
                    if (moe_kind_has_zeros(p.layout.kind)) /* exact in f32 */
                        assert_true((double)out[c] ==
                                    ldexp((double)d * (code - word % 512), -(word / 512)));
                    else
                        assert_true(out[c] == d * (float)code + moe_f16_to_f32(word));
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

/* ---- Layouts of checkpoints' types ---- */

/* The table of layout.h: how a head's numbers lie. */
static const struct form {
    uint16_t kind;
    int bits, scales;            /* of a span */
    uint32_t span, head, record; /* columns, bytes for a panel, spans of a full record */
    enum { ONLY_D, ONLY_S, FOURS, FIVES, SIXES, BYTES, NIBBLES, WITH_E } numbers;
    bool offset;
    int32_t zero; /* -1: e2m1; -2: iq4; -3: 2q - 1; -4: the kind's table */
    int k;        /* what e adds to numbers */
    bool row;     /* d is a factor of the row */
} forms[] = {
    {MOE_LAYOUT_MXFP4, 4, 1, 32, 16, 4, ONLY_S, false, -1, 0, false},
    {MOE_LAYOUT_Q4_0, 4, 1, 32, 32, 2, ONLY_D, false, 8, 0, false},
    {MOE_LAYOUT_Q5_0, 5, 1, 32, 32, 2, ONLY_D, false, 16, 0, false},
    {MOE_LAYOUT_Q6_0, 6, 1, 32, 32, 2, ONLY_D, false, 32, 0, false},
    {MOE_LAYOUT_Q8_0, 8, 1, 32, 32, 2, ONLY_D, false, 128, 0, false},
    {MOE_LAYOUT_IQ4_NL, 4, 1, 32, 32, 2, ONLY_D, false, -2, 0, false},
    {MOE_LAYOUT_NVFP4, 4, 4, 64, 64, 1, ONLY_S, false, -1, 0, false},
    {MOE_LAYOUT_NVFP4_T, 4, 4, 64, 64, 1, ONLY_S, false, -1, 0, false}, /* behind 16 factors */
    {MOE_LAYOUT_TQ2_0, 2, 8, 256, 32, 2, ONLY_D, false, 1, 0, false},
    {MOE_LAYOUT_Q1_0, 1, 4, 128, 32, 2, ONLY_D, false, -3, 0, false},
    {MOE_LAYOUT_Q2_0, 2, 2, 64, 32, 2, ONLY_D, false, 1, 0, false},
    {MOE_LAYOUT_IQ4_XS, 4, 8, 256, 128, 1, SIXES, false, -2, 0, false},
    {MOE_LAYOUT_Q3_K, 3, 16, 256, 224, 2, SIXES, false, 4, 0, false},
    {MOE_LAYOUT_Q6_K, 6, 16, 256, 288, 2, BYTES, false, 32, 0, false},
    {MOE_LAYOUT_Q4_K, 4, 8, 256, 256, 1, SIXES, true, 0, 0, false},
    {MOE_LAYOUT_Q5_K, 5, 8, 256, 256, 1, SIXES, true, 0, 0, false},
    {MOE_LAYOUT_Q2_K, 2, 16, 256, 320, 1, NIBBLES, true, 0, 0, false},
    {MOE_LAYOUT_IQ2_K, 2, 16, 256, 192, 1, FOURS, false, -4, 5, false},
    {MOE_LAYOUT_IQ2_KS, 2, 8, 256, 96, 2, FIVES, false, -4, 5, true},
    {MOE_LAYOUT_IQ3_K, 3, 16, 256, 224, 2, FIVES, false, -4, 4, false},
    {MOE_LAYOUT_IQ3_KS, 3, 8, 256, 96, 2, FIVES, false, -4, 4, true},
    {MOE_LAYOUT_IQ4_K, 4, 16, 256, 256, 1, SIXES, false, -2, 4, false},
    {MOE_LAYOUT_IQ4_KS, 4, 8, 256, 128, 1, WITH_E, false, -2, 4, true},
    {MOE_LAYOUT_IQ5_K, 5, 16, 256, 256, 1, SIXES, false, -4, 2, false},
    {MOE_LAYOUT_IQ5_KS, 5, 8, 256, 128, 1, WITH_E, false, -4, 2, true},
    {MOE_LAYOUT_IQ6_K, 6, 16, 256, 320, 1, BYTES, false, -4, 1, false},
};

static uint32_t most_numbers(const struct form *f)
{
    return f->numbers == SIXES                      ? 64
           : f->numbers == FIVES                    ? 32
           : f->numbers == WITH_E                   ? 128
           : f->numbers == NIBBLES                  ? 16
           : f->numbers == FOURS                    ? 16
           : f->numbers == ONLY_S && f->scales == 4 ? 127
                                                    : 255;
}

static struct moe_span_codes draw_span(const struct form *f, uint64_t *seed)
{
    struct moe_span_codes span = {0};
    if (f->numbers != ONLY_S && !f->row)
        span.d = moe_f32_to_f16(test_uniform(seed));
    if (f->offset)
        span.m = moe_f32_to_f16(test_uniform(seed));
    for (int i = 0; i < f->scales && f->numbers != ONLY_D; i++) {
        span.s[i] = (uint8_t)(test_random(seed) % most_numbers(f));
        span.t[i] = f->offset ? (uint8_t)(test_random(seed) % most_numbers(f))
                    : f->k    ? (uint8_t)(test_random(seed) % 2)
                              : 0;
    }
    for (uint32_t c = 0; c < f->span; c++)
        span.codes[c] = (uint8_t)(test_random(seed) % (1u << f->bits));
    return span;
}

/* Number i of 4 to 6 bits of row r into n of them. */
static void put_packed(const struct form *f, uint8_t *at, int n, int i, uint32_t r, uint8_t number)
{
    at[i / 2 * 16 + (int)r] |= (uint8_t)((number % 16) << (i % 2 ? 4 : 0));
    at += n / 2 * 16;
    if (f->numbers == SIXES)
        at[i / 4 * 16 + (int)r] |= (uint8_t)(number / 16 << 2 * (i % 4));
    else if (f->numbers == FIVES)
        at[i / 8 * 16 + (int)r] |= (uint8_t)(number / 16 << i % 8);
}

static void put_head(const struct form *f, uint8_t *head, uint32_t r,
                     const struct moe_span_codes *span)
{
    const uint32_t ones = f->head - (uint32_t)f->scales * 2; /* where the bits e begin */
    for (int i = 0; f->k && f->numbers != WITH_E && i < f->scales; i++)
        head[ones + (uint32_t)i / 8 * 16 + r] |= (uint8_t)(span->t[i] << i % 8);
    if (f->numbers != ONLY_S && !f->row) {
        moe_put_u16(head + 2 * r, span->d);
        head += 32;
    }
    if (f->offset) {
        moe_put_u16(head + 2 * r, span->m);
        head += 32;
    }
    for (int i = 0; i < f->scales; i++)
        if (f->numbers == SIXES && f->offset) {
            put_packed(f, head, 16, i, r, span->s[i]);
            put_packed(f, head, 16, 8 + i, r, span->t[i]);
        } else if (f->numbers == SIXES || f->numbers == FIVES || f->numbers == FOURS) {
            put_packed(f, head, f->scales, i, r, span->s[i]);
        } else if (f->numbers == WITH_E) {
            head[i * 16 + (int)r] = (uint8_t)(2 * span->s[i] + span->t[i]);
        } else if (f->numbers == BYTES) {
            head[i * 16 + (int)r] = span->s[i];
        } else if (f->numbers != ONLY_D) {
            head[i * 16 + (int)r] = (uint8_t)(span->s[i] | span->t[i] << 4);
        }
}

static double number_of(const struct form *f, uint8_t code)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
    return f->zero == -1   ? 2 * mxfp4_number(127, code)
           : f->zero == -2 ? iq4[code]
           : f->zero == -3 ? 2 * code - 1
           : f->zero == -4 ? moe_layout_number(f->kind, code)
                           : code - f->zero;
}

/* A weight as ggml defines it. */
static double weight_of(const struct form *f, const struct moe_span_codes *span, uint32_t c)
{
    uint32_t i = c / (f->span / (uint32_t)f->scales), s = span->s[i];
    double d = f->row ? (double)span->factor : (double)moe_f16_to_f32(span->d);
    double v = number_of(f, span->codes[c]) + f->k * span->t[i];
    if (f->kind == MOE_LAYOUT_MXFP4)
        return mxfp4_number((uint8_t)s, span->codes[c]);
    if (f->numbers == ONLY_S)
        return v / 2 * (s < 8 ? ldexp(s, -9) : ldexp(1 + s % 8 / 8.0, (int)s / 8 - 7)) *
               (f->kind == MOE_LAYOUT_NVFP4_T ? (double)span->factor : 1);
    double scale = f->numbers == ONLY_D                ? 1
                   : f->numbers == SIXES && !f->offset ? (double)s - 32
                   : f->numbers == FOURS               ? (double)s - 8
                   : f->numbers == FIVES && f->row     ? (double)s - 16
                   : f->numbers == FIVES               ? 2.0 * s - 31
                   : f->numbers == WITH_E              ? 2.0 * s - 127
                   : f->numbers == BYTES               ? (int8_t)s
                                                       : (double)s;
    return d * scale * v - (f->offset ? (double)moe_f16_to_f32(span->m) * span->t[i] : 0);
}

static void check_form(const struct form *f, uint32_t rows, uint32_t cols)
{
    const struct moe_layout layout = {f->kind, 32};
    uint64_t seed = f->kind * 100u + rows + cols, block_bytes = 16u * 32 * (unsigned)f->bits / 8;
    uint32_t spans = (cols + f->span - 1) / f->span;
    const uint64_t front = f->kind == MOE_LAYOUT_NVFP4_T || f->row ? 64 : 0;
    uint64_t panel = front, *record = moe_alloc(spans + 1, sizeof *record, NULL);
    uint64_t *head_bytes = moe_alloc(spans + 1, sizeof *head_bytes, NULL);
    for (uint32_t first = 0, i = 0; first < cols; first += f->record * f->span, i++) {
        uint32_t n = cols - first < f->record * f->span ? cols - first : f->record * f->span;
        record[i] = panel;
        head_bytes[i] = (((n + f->span - 1) / f->span) * f->head + 63) / 64 * 64;
        panel += head_bytes[i] + (n + 31) / 32 * block_bytes;
    }
    assert_int_equal(moe_layout_bytes(layout, rows, cols), (rows + 15) / 16 * panel);
    uint8_t *data = moe_alloc((rows + 15) / 16 * panel, 1, NULL);
    uint8_t *expected = moe_alloc((rows + 15) / 16 * panel, 1, NULL);
    float *out = malloc(cols * sizeof *out);
    for (uint32_t row = 0; row < rows; row++) {
        double *weights = malloc(cols * sizeof *weights);
        const float factor = test_uniform(&seed);
        if (front)
            moe_put_u32(expected + row / 16 * panel + 4 * (row % 16), moe_f32_bits(factor));
        for (uint32_t i = 0; i < spans; i++) {
            struct moe_span_codes span = draw_span(f, &seed);
            span.factor = factor;
            uint8_t *at = expected + row / 16 * panel + record[i / f->record];
            moe_layout_store_span(data, layout, cols, row, i, &span);
            put_head(f, at + i % f->record * f->head, row % 16, &span);
            at += head_bytes[i / f->record] + i % f->record * (f->span / 32) * block_bytes;
            for (uint32_t c = 0; c < f->span && i * f->span + c < cols; c++) {
                for (int bit = 0; bit < f->bits; bit++) {
                    int shift = 0;
                    uint32_t byte = documented_place(f->bits, 32, row % 16, c % 32, bit, &shift);
                    at[c / 32 * block_bytes + byte] |=
                        (uint8_t)((span.codes[c] >> bit & 1) << shift);
                }
                weights[i * f->span + c] = weight_of(f, &span, c);
            }
        }
        struct moe_mat mat = {data, layout, rows, cols};
        moe_layout_load_row(&mat, row, out);
        for (uint32_t c = 0; c < cols; c++)
            if (out[c] != (float)weights[c])
                fail_msg("%s: row %u column %u: %a, should be %a", moe_layout_name(f->kind), row, c,
                         (double)out[c], weights[c]);
        free(weights);
    }
    assert_memory_equal(data, expected, (rows + 15) / 16 * panel);
    free(record);
    free(head_bytes);
    free(data);
    free(expected);
    free(out);
}

/* Bytes where the table says, weights as ggml defines them, to the last bit. */
static void test_types_of_checkpoints(void **state)
{
    static const uint32_t widths[] = {1, 32, 96, 256, 257, 512, 768};
    for (size_t i = 0; i < N_ITEMS(forms); i++) {
        for (size_t w = 0; w < N_ITEMS(widths); w++) {
            check_form(&forms[i], 16, widths[w]);
            check_form(&forms[i], 19, widths[w]);
        }
        const struct form *f = &forms[i];
        if (f->kind >= MOE_LAYOUT_Q8_Z)
            continue; /* of no GGUF file */
        /* As many bytes as a file has, but for what fills up the last record. */
        const struct moe_ggml_type *type = NULL;
        for (uint32_t number = 2; number < 200 && !type; number++) {
            type = moe_ggml_find(number);
            type = type && type->kind == f->kind ? type : NULL;
        }
        assert_non_null(type);
        uint64_t file = 2048 / type->items * (type->bytes - (f->row ? 4u : 0)) * 16ull;
        file += f->row ? 64 : 0;
        assert_int_equal(moe_layout_panel_bytes((struct moe_layout){f->kind, 32}, 2048), file);
    }
}

/* Blocks of rows that are carried over together lie as those that come one by one; which row is the
 * first with weights that are not finite is told. */
static void test_rows_together(void **state)
{
    enum { ROWS = 11, FIRST = 3, COLS = 768 };
    uint64_t seed = 7;
    (void)state;
    for (uint32_t number = 2; number < 200; number++) {
        const struct moe_ggml_type *type = moe_ggml_find(number);
        if (!type || !type->read)
            continue;
        const uint64_t panel = moe_layout_panel_bytes(moe_ggml_layout(type, 8), COLS);
        const uint32_t n = COLS / type->items;
        uint8_t *blocks = moe_alloc(ROWS * n, type->bytes, NULL);
        uint8_t *together = moe_alloc(panel, 1, NULL), *single = moe_alloc(panel, 1, NULL);
        const uint8_t *rows[ROWS], *rest;
        for (uint32_t i = 0; i < ROWS * n * type->bytes; i++)
            blocks[i] = test_random(&seed) & 0x3b;              /* no scale is large */
        for (uint32_t b = 0; type->factor && b < ROWS * n; b++) /* that of the row */
            moe_put_u32(blocks + (b + 1) * type->bytes - 4, 0x3f000000 + b / n);
        for (uint32_t r = 0; r < ROWS; r++) {
            rows[r] = blocks + (uint64_t)r * n * type->bytes;
            rest = rows[r] + type->bytes;
            assert_int_equal(
                moe_ggml_carry_blocks(type, &rest, 1, 1, n - 1, COLS, FIRST + r, single), 1);
            assert_int_equal(
                moe_ggml_carry_blocks(type, &rows[r], 1, 0, 1, COLS, FIRST + r, single), 1);
        }
        assert_int_equal(moe_ggml_carry_blocks(type, rows, ROWS, 0, n, COLS, FIRST, together),
                         ROWS);
        assert_memory_equal(together, single, panel);
        if (number == MOE_GGML_Q8_0) {
            moe_put_u16(blocks + (5 * n + 2) * type->bytes, 0x7c00);
            assert_int_equal(moe_ggml_carry_blocks(type, rows, ROWS, 0, n, COLS, FIRST, together),
                             5);
        }
        free(blocks);
        free(together);
        free(single);
    }
}

/* ---- Grouped kinds ----
 * Random bytes, read by the letter of layout.h: a panel of at most 512 columns. */

static const struct grouped {
    uint16_t kind;
    uint32_t head, first, scales; /* bytes for a row, units of the first plane, scales of a block */
    uint32_t file;                /* bytes of 256 columns in a file */
} grouped[] = {
    {MOE_LAYOUT_IQ1_S, 18, 1, 1, 50},  {MOE_LAYOUT_IQ1_M, 24, 1, 2, 56},
    {MOE_LAYOUT_IQ2_XXS, 2, 1, 1, 66}, {MOE_LAYOUT_IQ2_XS, 10, 1, 2, 74},
    {MOE_LAYOUT_IQ2_S, 18, 1, 2, 82},  {MOE_LAYOUT_IQ3_XXS, 2, 2, 1, 98},
    {MOE_LAYOUT_IQ3_S, 14, 2, 1, 110}, {MOE_LAYOUT_TQ1_0, 22, 1, 1, 54},
};

/* Byte r of the i-th 16 bytes of a head behind d. */
static uint32_t head_byte(const uint8_t *head, uint32_t i, uint32_t r)
{
    return head[32 + 16 * i + r];
}

/* 2s + 1 times the unit, of column c of block b. */
static double grid_scale_of(const struct grouped *g, const uint8_t *head, const uint8_t *codes,
                            uint32_t b, uint32_t r, uint32_t c)
{
    uint32_t s = 0, i = b * g->scales + c * g->scales / 32;
    switch (g->kind) {
    case MOE_LAYOUT_IQ1_S:
        for (uint32_t k = 0; k < 3; k++)
            s |= (head_byte(head, 2 * b + k / 2, r) >> (k % 2 * 4 + 3) & 1) << k;
        break;
    case MOE_LAYOUT_IQ1_M:
        s = head_byte(head, i / 4, r) >> i % 4 * 2 & 3;
        s |= (head_byte(head, 4 + i / 8, r) >> i % 8 & 1) << 2;
        break;
    case MOE_LAYOUT_IQ2_XXS:
    case MOE_LAYOUT_IQ3_XXS:
        for (uint32_t k = 0; k < 4; k++)
            s |= (uint32_t)(codes[64 * g->first + 4 * r + 3] >> (2 * k + 1) & 1) << k;
        break;
    case MOE_LAYOUT_TQ1_0:
        return 1;
    default:
        s = head_byte(head, i / 2, r) >> i % 2 * 4 & 15;
    }
    return (2 * s + 1) / (g->kind == MOE_LAYOUT_IQ3_S ? 1.0 : g->first == 2 ? 4.0 : 8.0);
}

static double ternary_of(const uint8_t *head, const uint8_t *codes, uint32_t b, uint32_t r,
                         uint32_t c)
{
    uint32_t i = c / 4, byte = codes[4 * r + c % 4];
    if (i >= 5) {
        i = 3 * b + i - 5;
        byte = head[32 + i / 5 * 64 + 4 * r + c % 4];
        i %= 5;
    }
    for (; i > 0; i--)
        byte = byte * 3 % 256;
    return (double)(byte * 3 / 256) - 1;
}

/* v of column c of block b. */
static double grouped_number(const struct grouped *g, const uint8_t *head, const uint8_t *codes,
                             uint32_t b, uint32_t r, uint32_t c)
{
    static const int two[] = {8, 25, 43}, three[] = {4, 12, 20, 28, 36, 44, 52, 62};
    const uint32_t columns = g->first == 2 ? 4 : 8, group = c / columns;
    const uint8_t *signs = codes + 64 * g->first + 4 * r;
    uint32_t number = codes[group / 4 * 64 + 4 * r + group % 4], negative = 0;
    if (g->kind == MOE_LAYOUT_TQ1_0)
        return ternary_of(head, codes, b, r, c);
    if (g->kind == MOE_LAYOUT_IQ1_S || g->kind == MOE_LAYOUT_IQ1_M) {
        uint32_t at = (g->kind == MOE_LAYOUT_IQ1_M ? 6 : 0) + 2 * b;
        uint32_t four = head_byte(head, at + group / 2, r) >> group % 2 * 4;
        uint32_t last = head_byte(head, at + 1, r) >> 7;
        uint32_t entry = moe_grid_iq1[number | (four & 7) << 8] >> 8 * (c % 4) >> c / 4 % 2 * 2;
        bool minus = g->kind == MOE_LAYOUT_IQ1_M ? four >> 3 & 1 : last;
        return 8 * ((double)(entry & 3) - 1) + (minus ? -1 : 1);
    }
    if (c % 8 < 7 || g->kind == MOE_LAYOUT_IQ2_S || g->kind == MOE_LAYOUT_IQ3_S)
        negative = signs[c % 4] >> c / 4 & 1;
    else
        for (uint32_t k = c - 7; k < c; k++)
            negative ^= signs[k % 4] >> k / 4 & 1;
    double sign = negative ? -1 : 1;
    if (g->kind == MOE_LAYOUT_IQ3_S) {
        number |= (head_byte(head, 4 + b, r) >> group & 1) << 8;
        return sign * (2 * (moe_grid_iq3_s[number] >> 8 * (c % 4) & 7) + 1);
    }
    if (g->kind == MOE_LAYOUT_IQ3_XXS)
        return sign * three[moe_grid_iq3_xxs[number] >> 8 * (c % 4) & 7];
    uint32_t entry = moe_grid_iq2_xxs[number];
    if (g->kind == MOE_LAYOUT_IQ2_XS)
        entry = moe_grid_iq2_xs[number | (signs[3] >> (2 * group + 1) & 1u) << 8];
    else if (g->kind == MOE_LAYOUT_IQ2_S)
        entry = moe_grid_iq2_s[number | (head_byte(head, 8 + b, r) >> 2 * group & 3) << 8];
    return sign * two[entry >> 8 * (c % 4) >> c / 4 % 2 * 2 & 3];
}

static void check_grouped(const struct grouped *g, uint32_t cols)
{
    const struct moe_layout layout = {g->kind, 32};
    const bool iq2_or_3 = g->file >= 66;
    const uint32_t spans = (cols + 255) / 256, block = 64 * (g->first + iq2_or_3);
    const bool apart = g->head % 4 == 0; /* spans are records */
    const uint32_t head = ((apart ? 1 : spans) * g->head * 16 + 63) / 64 * 64;
    const uint32_t blocks = (cols + 31) / 32, span = apart ? head + 8 * block : g->head * 16;
    uint64_t seed = g->kind + cols, bytes = moe_layout_panel_bytes(layout, cols);
    uint8_t data[4096];
    float out[512];
    assert_int_equal(bytes, (apart ? spans : 1) * head + blocks * block);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)test_random(&seed);
    for (uint32_t i = 0; i < spans; i++)
        for (uint32_t r = 0; r < 16; r++)
            moe_put_u16(data + i * span + 2 * r, moe_f32_to_f16(test_uniform(&seed)));
    const struct moe_mat mat = {data, layout, 16, cols};
    for (uint32_t r = 0; r < 16; r++) {
        moe_layout_load_row(&mat, r, out);
        for (uint32_t c = 0; c < cols; c++) {
            const uint8_t *of_span = data + c / 256 * span;
            const uint8_t *codes =
                (apart ? of_span + head : data + head + c / 256 * 8 * block) + c % 256 / 32 * block;
            double d = moe_f16_to_f32(moe_get_u16(of_span + 2 * r));
            d *= grid_scale_of(g, of_span, codes, c / 32 % 8, r, c % 32);
            double v = grouped_number(g, of_span, codes, c / 32 % 8, r, c % 32);
            if (out[c] != (float)(d * v))
                fail_msg("%s: row %u column %u: %a, should be %a", moe_layout_name(g->kind), r, c,
                         (double)out[c], d * v);
        }
    }
}

static void test_grouped_kinds(void **state)
{
    for (size_t i = 0; i < N_ITEMS(grouped); i++) {
        static const uint32_t widths[] = {1, 32, 96, 256, 257, 512};
        for (size_t w = 0; w < N_ITEMS(widths); w++)
            check_grouped(&grouped[i], widths[w]);
        assert_int_equal(moe_layout_panel_bytes((struct moe_layout){grouped[i].kind, 32}, 2048),
                         2048 / 256 * grouped[i].file * 16);
    }
}

/* ---- Trellis kinds ---- */

/* x of group g of block b, by the letter of layout.h. */
static uint32_t trellis_number(uint16_t kind, const uint8_t *head, const uint8_t *codes, uint32_t b,
                               uint32_t r, uint32_t g)
{
    const uint8_t *unit = codes + g / 2 * 64 + 4 * r;
    if (kind == MOE_LAYOUT_IQ1_KT) {
        const uint32_t four = head[(8 + 2 * b + g / 2) * 16 + r] >> g % 2 * 4 & 15;
        return codes[4 * r + g] + 256 * four + 4096 * (head[b * 16 + r] >> (4 + g) & 1u);
    }
    if (kind != MOE_LAYOUT_IQ4_KT)
        return unit[g % 2 * 2] + 256u * unit[g % 2 * 2 + 1];
    const uint32_t x = moe_get_u32(unit) >> g % 2 * 15 & 0x7fff;
    return x + (codes[4 * r + 3] & 0x40 ? 32768 : 0);
}

static int trellis_scale(uint16_t kind, const uint8_t *head, const uint8_t *codes, uint32_t b,
                         uint32_t r)
{
    int s = 0;
    if (kind == MOE_LAYOUT_IQ1_KT)
        return moe_iq4_numbers[head[b * 16 + r] & 15];
    for (uint32_t j = 0; kind == MOE_LAYOUT_IQ4_KT && j < 4; j++)
        s += (codes[64 * j + 4 * r + 3] >> 6) << 2 * j;
    if (kind == MOE_LAYOUT_IQ4_KT)
        return s / 2 - 64;
    s = head[b / 2 * 16 + r] >> b % 2 * 4 & 15;
    return kind == MOE_LAYOUT_IQ3_KT ? s : moe_iq4_numbers[s];
}

/* Random bytes of a panel of 512 columns. */
static void test_trellis_kinds(void **state)
{
    static const uint32_t heads[] = {24, 4, 4, 0}, units[] = {1, 2, 3, 4};
    for (uint32_t k = 0; k < 4; k++) {
        const uint16_t kind = (uint16_t)(MOE_LAYOUT_IQ1_KT + k);
        const uint32_t span = heads[k] * 16 + 8 * 64 * units[k];
        uint8_t data[64 + 2 * (64 + 32 * 64)];
        uint64_t seed = kind;
        float out[512];
        const struct moe_mat mat = {data, {kind, 32}, 16, 512};
        assert_int_equal(moe_layout_panel_bytes(mat.layout, 512), 64 + 2 * span);
        for (uint32_t i = 0; i < 64 + 2 * span; i++)
            data[i] = (uint8_t)test_random(&seed);
        for (uint32_t r = 0; r < 16; r++)
            moe_put_u32(data + 4 * r, moe_f32_bits(test_uniform(&seed)));
        for (uint32_t r = 0; r < 16; r++) {
            const float f = moe_bits_f32(moe_get_u32(data + 4 * r));
            moe_layout_load_row(&mat, r, out);
            for (uint32_t c = 0; c < 512; c++) {
                const uint32_t b = c / 32 % 8, columns = k == 3 ? 4 : 8;
                const uint8_t *head = data + 64 + c / 256 * span;
                const uint8_t *codes = head + heads[k] * 16 + b * 64 * units[k];
                uint32_t x = trellis_number(kind, head, codes, b, r, c % 32 / columns) + 4096;
                for (uint32_t i = 0; i <= c % columns; i++)
                    x *= 0xcbac1fed;
                int v = -126;
                for (int i = 0; i < 4; i++)
                    v += x >> 8 * i & 63;
                if (kind == MOE_LAYOUT_IQ3_KT)
                    v = codes[128 + 4 * r + c % 4] >> c % 32 / 4 & 1 ? -abs(v) : abs(v);
                assert_true(out[c] == (float)(trellis_scale(kind, head, codes, b, r) * v) * f);
            }
        }
    }
}

/* Random bytes of a panel of 512 columns, by the letter of layout.h. */
static void test_pairs(void **state)
{
    enum { HEAD = 22 * 16, UNITS = 2 * 64 };
    uint8_t data[64 + 2 * (HEAD + 8 * UNITS)];
    const struct moe_mat mat = {data, {MOE_LAYOUT_IQ2_KL, 32}, 16, 512};
    uint64_t seed = 5;
    float out[512];
    assert_int_equal(moe_layout_panel_bytes(mat.layout, 512), sizeof data);
    for (uint32_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)test_random(&seed);
    for (uint32_t r = 0; r < 16; r++)
        moe_put_u32(data + 4 * r, moe_f32_bits(test_uniform(&seed)));
    for (uint32_t r = 0; r < 16; r++) {
        moe_layout_load_row(&mat, r, out);
        for (uint32_t c = 0; c < 512; c++) {
            const uint32_t b = c / 32 % 8, j = c % 32 / 16, n = c % 16 / 8;
            const uint32_t k = c % 8 / 4 + c % 4 / 2 * 2;
            const uint8_t *head = data + 64 + c / 256 * HEAD + r;
            const uint8_t *codes = data + 64 + 2 * HEAD + (c / 256 * 8 + b) * UNITS;
            const uint32_t x = (codes[64 * j + 4 * r + k] >> 4 * n & 15) +
                               16 * (head[16 * (6 + 2 * b + j)] >> (4 * n + k) & 1u);
            const int s = (head[b / 2 * 16] >> b % 2 * 4 & 15) +
                          16 * (head[(4 + b / 4) * 16] >> b % 4 * 2 & 3);
            const float f = moe_bits_f32(moe_get_u32(data + 4 * r));
            assert_true(out[c] == (float)((s - 32) * moe_iq2kl_numbers[c % 2][x]) * f);
        }
    }
}

/* Heads with zero points hold every bf16 up to f16's largest number, and every f16. */
static void test_heads_with_zero_points(void **state)
{
    for (uint32_t bits = 0; bits < 0x8000; bits++) {
        float scales[2] = {moe_bf16_to_f32((uint16_t)bits), moe_f16_to_f32((uint16_t)bits)};
        for (int i = 0; i < 2; i++) {
            uint16_t d, word;
            bool held = moe_zero_head(scales[i], bits % 257, &d, &word);
            assert_int_equal(held, scales[i] <= 65504);
            if (!held)
                continue;
            struct moe_scales s = moe_zero_scales(moe_f16_to_f32(d), word);
            assert_true(s.d == scales[i] && s.m == -(scales[i] * (float)(bits % 257)));
        }
    }
    uint16_t d, word;
    assert_false(moe_zero_head(0x1.002p0f + 0x1p-20f, 8, &d, &word));
    assert_false(moe_zero_head(1, 512, &d, &word));
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

/* Scales in front, codes column by column, weights a number times a scale. */
static void test_scaled_kinds(void **state)
{
    enum { ROWS = 33, COLS = 96, GROUP = 32 };
    static const struct {
        struct moe_layout layout;
        uint32_t front, column; /* bytes */
    } cases[] = {
        {{MOE_LAYOUT_F8, 0}, 64, 16},       {{MOE_LAYOUT_F8, GROUP}, 192, 16},
        {{MOE_LAYOUT_F8_B, GROUP}, 64, 16}, {{MOE_LAYOUT_I8, 0}, 64, 16},
        {{MOE_LAYOUT_NF4, GROUP}, 192, 8},  {{MOE_LAYOUT_FP4, GROUP}, 192, 8},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const struct moe_layout layout = cases[i].layout;
        const bool four = cases[i].column == 8, by_panel = layout.kind == MOE_LAYOUT_F8_B;
        const uint64_t panel = cases[i].front + COLS * cases[i].column;
        uint64_t seed = i + 1;
        assert_int_equal(moe_layout_bytes(layout, ROWS, COLS), 3 * panel);
        uint8_t *data = moe_alloc(3, panel, NULL), codes[ROWS][COLS];
        float scales[ROWS][COLS / GROUP], row[COLS];
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t g = 0; g < COLS / GROUP; g++) {
                struct moe_span_codes span = {.factor = 1 + test_uniform(&seed)};
                if (by_panel && r % 16)
                    span.factor = scales[r - 1][g];
                if (layout.group == 0 && g)
                    span.factor = scales[r][0];
                scales[r][g] = span.factor;
                for (uint32_t c = 0; c < GROUP; c++)
                    codes[r][g * GROUP + c] = span.codes[c] =
                        (uint8_t)(test_random(&seed) % (four ? 16 : 127));
                moe_layout_store_span(data, layout, COLS, r, g, &span);
            }
        for (uint32_t r = 0; r < ROWS; r++) {
            const struct moe_mat mat = {data, layout, ROWS, COLS};
            const uint8_t *at = data + r / 16 * panel;
            moe_layout_load_row(&mat, r, row);
            for (uint32_t c = 0; c < COLS; c++) {
                uint32_t g = layout.group ? c / GROUP : 0;
                uint32_t place = by_panel ? g : 16 * g + r % 16, code = codes[r][c];
                const uint8_t *byte = at + cases[i].front + c * cases[i].column;
                float number = code < 8 ? (float)code * 0x1p-9f
                                        : ldexpf((float)(8 + code % 8), (int)(code / 8) - 10);
                assert_int_equal(moe_get_u32(at + 4 * place), moe_f32_bits(scales[r][g]));
                assert_int_equal(four ? byte[r % 8] >> (r % 16 < 8 ? 0 : 4) & 15 : byte[r % 16],
                                 code);
                number = layout.kind == MOE_LAYOUT_I8    ? (float)code
                         : layout.kind == MOE_LAYOUT_NF4 ? moe_nf4_numbers[code]
                         : layout.kind == MOE_LAYOUT_FP4 ? moe_fp4_numbers[code]
                                                         : number;
                assert_true(row[c] == number * scales[r][g]);
            }
        }
        free(data);
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
        {{MOE_LAYOUT_Q5, 64}, true},
        {{MOE_LAYOUT_Q4_K, 32}, true},
        {{MOE_LAYOUT_Q4_K, 64}, false},
        {{MOE_LAYOUT_Q4_K, 0}, false},
        {{MOE_LAYOUT_F8_B, 128}, true},
        {{MOE_LAYOUT_NF4, 96}, false},
        {{MOE_LAYOUT_I8, 0}, true},
        {{22, 64}, false},
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
        cmocka_unit_test(test_types_of_checkpoints),
        cmocka_unit_test(test_rows_together),
        cmocka_unit_test(test_grouped_kinds),
        cmocka_unit_test(test_trellis_kinds),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_heads_with_zero_points),
        cmocka_unit_test(test_mxfp4_scales),
        cmocka_unit_test(test_floats_are_exact),
        cmocka_unit_test(test_scaled_kinds),
        cmocka_unit_test(test_validity),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
