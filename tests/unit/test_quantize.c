/* Quantizers: error bounds of every method on every kind of weights, and the whole matrix. */
#include "../test.h"

#include <math.h>

#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "quant/bits.h"
#include "quant/blocks.h"
#include "quant/quantize.h"

enum { MAX_N = 5000 };

static const int all_bits[] = {8, 4, 3, 2};

/* ---- Weights of all sorts ---- */

static float gauss(uint64_t *seed)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += test_uniform(seed);
    return sum / 2;
}

enum sort { UNIFORM, GAUSS, HEAVY, OFFSET, FAR, TINY, SUBNORMAL, LARGE, CONSTANT, ZERO, ONE, TWO };
enum { N_SORTS = TWO + 1 };

static float weight_of(enum sort sort, uint32_t i, uint64_t *seed)
{
    float g = gauss(seed);
    switch (sort) {
    case UNIFORM:
        return test_uniform(seed);
    case GAUSS:
        return 0.02f * g;
    case HEAVY: /* most weights small, few large: cubed */
        return 0.02f * g * g * g;
    case OFFSET:
        return 0.3f + 0.02f * g;
    case FAR: /* the offset's rounding to f16 is coarser than the spread */
        return -1000.3f + 0.02f * g;
    case TINY: /* the scale is a subnormal f16 */
        return 1e-6f * g;
    case SUBNORMAL: /* below all f16 */
        return 1e-30f * g;
    case LARGE:
        return 30000 * test_uniform(seed);
    case CONSTANT:
        return 0.0371f;
    case ZERO:
        return i % 2 ? 0.0f : -0.0f;
    case ONE:
        return i == 7 ? -0.25f : 0;
    default:
        return i % 3 ? 0.125f : -0.375f;
    }
}

static void fill(float *w, uint32_t n, enum sort sort, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = weight_of(sort, i, &seed);
}

/* A group fitted, with its codes decoded. */
struct fitted {
    uint16_t d_bits, m_bits;
    float d, m;
    uint8_t codes[MAX_N];
    float decoded[MAX_N];
    double mean_error;
};

static void fit(struct fitted *f, const char *method, const float *w, uint32_t n, int bits)
{
    memset(f->codes, 0xee, sizeof f->codes);
    moe_quant_method_find(method)->fit(w, n, bits, &f->d_bits, &f->m_bits, f->codes);
    f->d = moe_f16_to_f32(f->d_bits);
    f->m = moe_f16_to_f32(f->m_bits);
    f->mean_error = 0;
    assert_true(isfinite(f->d) && f->d >= 0 && isfinite(f->m));
    for (uint32_t i = 0; i < n; i++) {
        assert_in_range(f->codes[i], 0, (1 << bits) - 1);
        f->decoded[i] = f->d * (float)f->codes[i] + f->m;
        assert_true(isfinite(f->decoded[i]));
        f->mean_error += fabs((double)f->decoded[i] - w[i]) / n;
    }
    if (n < MAX_N)
        assert_int_equal(f->codes[n], 0xee); /* nothing after the group is written */
}

static const uint32_t lengths[] = {64, 32, 128, 1, 2, 31, 33, 63, 65, 200, MAX_N};

/* Calls check for every sort, length and width. */
static void for_all(void (*check)(const float *w, uint32_t n, int bits, enum sort sort))
{
    static float w[MAX_N];
    for (int sort = 0; sort < N_SORTS; sort++)
        for (size_t l = 0; l < N_ITEMS(lengths); l++)
            for (size_t b = 0; b < N_ITEMS(all_bits); b++) {
                fill(w, lengths[l], (enum sort)sort, (uint64_t)sort * 77 + l);
                check(w, lengths[l], all_bits[b], (enum sort)sort);
            }
}

/* ---- Fits ---- */

/* Rounding of single-precision arithmetic on numbers as large as w. */
static double slack(double w, double m)
{
    return 4e-7 * (fabs(w) + fabs(m));
}

static void check_rtn(const float *w, uint32_t n, int bits, enum sort sort)
{
    static struct fitted f;
    fit(&f, "rtn", w, n, bits);
    float low = w[0], high = w[0];
    for (uint32_t i = 0; i < n; i++) {
        low = w[i] < low ? w[i] : low;
        high = w[i] > high ? w[i] : high;
        double error = fabs((double)f.decoded[i] - w[i]);
        assert_true(error <= f.d / 2 + slack(w[i], f.m));
    }
    /* The scale is no coarser than the range asks for, but for f16's own grid. */
    double ulp_m = fmax(fabs((double)low) * 0x1p-10, 0x1p-24), top = (1 << bits) - 1;
    assert_true(f.d <= ((double)high - low + ulp_m) / top * (1 + 0x1p-10) + 0x1p-24);
    assert_true(f.m <= low && f.m >= low - ulp_m);
}

static void test_rtn_error_bound(void **state)
{
    for_all(check_rtn);
}

static void check_linear(const float *w, uint32_t n, int bits, enum sort sort)
{
    static struct fitted f;
    if (sort == LARGE && bits == 2)
        return; /* -2d may exceed f16; a case of its own below */
    fit(&f, "linear", w, n, bits);
    int zero = 1 << (bits - 1);
    assert_true(f.m == (float)-zero * f.d);
    float largest = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fabsf(w[i]) > largest ? fabsf(w[i]) : largest;
    for (uint32_t i = 0; i < n; i++) {
        double error = fabs((double)f.decoded[i] - w[i]);
        assert_true(error <= f.d / 2 + slack(w[i], f.m));
        assert_true(f.codes[i] >= (f.d > 0 ? 1 : zero));
        if (w[i] == 0)
            assert_true(f.decoded[i] == 0);
        /* The largest magnitude takes the last level, unless the scale is lost in f16. */
        if (fabsf(w[i]) == largest && f.d >= 0x1p-14f)
            assert_int_equal(abs(f.codes[i] - zero), zero - 1);
    }
}

static void test_linear_is_symmetric(void **state)
{
    for_all(check_linear);
    static float w[64], negated[64];
    static struct fitted f, g;
    for (size_t b = 0; b < N_ITEMS(all_bits); b++) {
        fill(w, 64, GAUSS, 5);
        for (int i = 0; i < 64; i++)
            negated[i] = -w[i];
        fit(&f, "linear", w, 64, all_bits[b]);
        fit(&g, "linear", negated, 64, all_bits[b]);
        for (int i = 0; i < 64; i++)
            assert_true(f.decoded[i] == -g.decoded[i]);
    }
}

static void check_hqq(const float *w, uint32_t n, int bits, enum sort sort)
{
    static struct fitted rtn, hqq;
    fit(&rtn, "rtn", w, n, bits);
    fit(&hqq, "hqq", w, n, bits);
    assert_int_equal(hqq.d_bits, rtn.d_bits);
    assert_true(hqq.mean_error <= rtn.mean_error * (1 + 1e-5) + slack(w[0], rtn.m));
    /* Every code is the nearest under the d and m chosen. */
    for (uint32_t i = 0; i < n; i++) {
        double error = fabs((double)hqq.decoded[i] - w[i]);
        bool last = hqq.codes[i] == 0 || hqq.codes[i] == (1 << bits) - 1;
        assert_true(last || error <= hqq.d / 2 + slack(w[i], hqq.m));
    }
}

static void test_hqq_is_never_worse_than_rtn(void **state)
{
    for_all(check_hqq);
}

/* Mean errors over many groups of 64. */
static double mean_error(const char *method, enum sort sort, int bits)
{
    static struct fitted f;
    float w[64];
    double sum = 0;
    for (uint64_t g = 0; g < 500; g++) {
        fill(w, 64, sort, g);
        fit(&f, method, w, 64, bits);
        sum += f.mean_error;
    }
    return sum;
}

static void test_hqq_gains(void **state)
{
    static const struct {
        enum sort sort;
        int bits;
        double at_most; /* of rtn's mean absolute error; 0.65, 0.53, 0.41, 0.955, 0.956 measured */
    } cases[] = {
        {HEAVY, 4, 0.70}, {HEAVY, 3, 0.60}, {HEAVY, 2, 0.50}, {GAUSS, 4, 0.97}, {GAUSS, 2, 0.97},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        double rtn = mean_error("rtn", cases[i].sort, cases[i].bits);
        double hqq = mean_error("hqq", cases[i].sort, cases[i].bits);
        print_message("# sort %d, %d bits: hqq / rtn %.4f\n", cases[i].sort, cases[i].bits,
                      hqq / rtn);
        assert_true(hqq <= cases[i].at_most * rtn);
    }
}

static void test_scaling_by_powers_of_two_keeps_codes(void **state)
{
    static float w[MAX_N], scaled[MAX_N];
    static struct fitted f, g;
    fill(w, 200, GAUSS, 1);
    for (uint32_t i = 0; i < 200; i++)
        scaled[i] = w[i] * 16;
    for (int k = 0; moe_quant_method_at(k); k++)
        for (size_t b = 0; b < N_ITEMS(all_bits); b++) {
            fit(&f, moe_quant_method_at(k)->name, w, 200, all_bits[b]);
            fit(&g, moe_quant_method_at(k)->name, scaled, 200, all_bits[b]);
            assert_memory_equal(f.codes, g.codes, 200);
            assert_true(g.d == 16 * f.d && g.m == 16 * f.m);
        }
}

/* Weights that came out of a quantized file go into the same levels: no second rounding. */
static void test_own_levels_are_kept(void **state)
{
    static float w[64];
    static struct fitted f;
    for (size_t b = 0; b < N_ITEMS(all_bits); b++)
        for (uint64_t seed = 0; seed < 300; seed++) {
            uint64_t random = seed;
            uint32_t top = (1u << all_bits[b]) - 1;
            uint16_t d = moe_f32_to_f16(0.01f + 0.009f * test_uniform(&random));
            uint16_t m = moe_f32_to_f16(test_uniform(&random));
            uint8_t codes[64] = {0, (uint8_t)top};
            for (uint32_t i = 0; i < 64; i++) {
                if (i > 1)
                    codes[i] = (uint8_t)(test_random(&random) % (top + 1));
                w[i] = moe_f16_to_f32(d) * (float)codes[i] + moe_f16_to_f32(m);
            }
            fit(&f, seed % 2 ? "rtn" : "hqq", w, 64, all_bits[b]);
            assert_int_equal(f.d_bits, d);
            assert_int_equal(f.m_bits, m);
            assert_memory_equal(f.codes, codes, 64);
        }
}

static void test_constant_groups(void **state)
{
    static const float values[] = {0, 1, -1, 0.1f, -0.1f, 1e-9f, -1e-9f, 3000.3f, 65504, -65504};
    static float w[40];
    static struct fitted f;
    for (size_t v = 0; v < N_ITEMS(values); v++)
        for (size_t b = 0; b < N_ITEMS(all_bits); b++)
            for (int k = 0; moe_quant_method_at(k); k++) {
                for (int i = 0; i < 40; i++)
                    w[i] = values[v];
                if (moe_quant_method_at(k)->per_row && fabsf(values[v]) > 30000)
                    continue;
                fit(&f, moe_quant_method_at(k)->name, w, 40, all_bits[b]);
                double error = fabs((double)f.decoded[0] - w[0]);
                assert_true(error <= fabs((double)w[0]) * 0x1p-10 + 0x1p-25);
            }
}

/* ---- Blocks ---- */

static const uint16_t block_kinds[] = {MOE_LAYOUT_Q8_0, MOE_LAYOUT_Q6_K,   MOE_LAYOUT_Q5_K,
                                       MOE_LAYOUT_Q4_K, MOE_LAYOUT_IQ4_XS, MOE_LAYOUT_Q3_K,
                                       MOE_LAYOUT_Q2_K};

/* Fits n weights span by span; the squared errors of what comes back, each times its weight's size.
 */
static double fit_blocks(uint16_t kind, const float *w, uint32_t n)
{
    const uint32_t columns = moe_kind_span(kind);
    float stored[MOE_MAX_SPAN];
    double error = 0;
    for (uint32_t first = 0; first < n; first += columns) {
        const uint32_t here = n - first < columns ? n - first : columns;
        struct moe_span_codes span;
        moe_blocks_fit(kind, w + first, here, &span);
        moe_layout_span_weights(kind, &span, here, stored);
        for (uint32_t i = 0; i < here; i++)
            error += pow((double)stored[i] - w[first + i], 2) * fabs((double)w[first + i]);
    }
    return error;
}

/* Of the cubes of normal weights' sizes no more is left than these shares; of hqq's errors less. */
static void test_blocks_of_normal_weights(void **state)
{
    static const double most[] = {1.07e-5, 1.26e-4, 5.8e-4, 0.00235, 0.0034, 0.0102, 0.034};
    static float w[4096];
    static struct fitted f;
    fill(w, N_ITEMS(w), GAUSS, 21);
    double weight = 0;
    for (size_t i = 0; i < N_ITEMS(w); i++)
        weight += pow(fabs((double)w[i]), 3);
    for (size_t b = 0; b < N_ITEMS(block_kinds); b++) {
        const double error = fit_blocks(block_kinds[b], w, N_ITEMS(w));
        const int bits = moe_layout_bits(block_kinds[b]);
        double by_hqq = 0;
        assert_true(error < most[b] * weight);
        if (!moe_layout_kind_of_bits(bits))
            continue;
        for (size_t first = 0; first < N_ITEMS(w); first += 64) {
            fit(&f, "hqq", w + first, 64, bits);
            for (size_t i = 0; i < 64; i++)
                by_hqq += pow((double)f.decoded[i] - w[first + i], 2) * fabs((double)w[first + i]);
        }
        assert_true(error < by_hqq);
    }
}

/* Spans of any length and weights: never worse than zeros, and exact to f16's digits where all are
 * the same. */
static void test_blocks_of_all_sorts(void **state)
{
    static const uint32_t columns[] = {256, 200, 40, 1};
    static float w[256];
    for (size_t b = 0; b < N_ITEMS(block_kinds); b++) {
        for (int sort = 0; sort < N_SORTS; sort++)
            for (size_t l = 0; l < N_ITEMS(columns); l++) {
                double weight = 0;
                fill(w, 256, (enum sort)sort, 31);
                for (uint32_t i = 0; i < columns[l]; i++)
                    weight += pow(fabs((double)w[i]), 3);
                assert_true(fit_blocks(block_kinds[b], w, columns[l]) <= weight);
            }
        for (int sign = -1; sign <= 1; sign += 2) {
            for (uint32_t i = 0; i < 256; i++)
                w[i] = (float)sign * 0.371f;
            assert_true(fit_blocks(block_kinds[b], w, 256) <=
                        256 * 0.371 * pow(0.371 * 0x1p-10, 2));
        }
    }
}

/* ---- Layouts of methods ---- */

static void test_layout_of_method(void **state)
{
    const struct moe_quant_method *hqq = moe_quant_method_find("hqq");
    const struct moe_quant_method *linear = moe_quant_method_find("linear");
    assert_null(moe_quant_method_find("awq"));
    assert_null(moe_quant_method_find(""));
    assert_null(moe_quant_method_at(-1));
    assert_ptr_equal(moe_quant_method_at(2), hqq);
    const struct moe_quant_method *blocks = moe_quant_method_find("blocks");
    static const struct {
        const char *method, *bits;
        uint32_t cols;
        uint16_t kind;
    } named[] = {
        {"blocks", "4", 255, MOE_LAYOUT_Q4},      {"blocks", "4", 256, MOE_LAYOUT_Q4_K},
        {"blocks", "5", 64, MOE_LAYOUT_Q5_K},     {"linear", "4", 64, MOE_LAYOUT_Q4},
        {"blocks", "iq4_xs", 255, MOE_LAYOUT_Q4}, {"best", "iq4_xs", 256, MOE_LAYOUT_IQ4_XS},
        {"hqq", "q6_k", 64, MOE_LAYOUT_Q6_K},     {"linear", "iq3_kt", 64, MOE_LAYOUT_IQ3_KT},
    };
    for (size_t i = 0; i < N_ITEMS(named); i++) {
        const struct moe_layout layout =
            moe_quant_layout_of(moe_quant_method_find(named[i].method),
                                moe_parse_width(named[i].bits), named[i].cols, 64, MOE_LAYOUT_BF16);
        assert_int_equal(layout.kind, named[i].kind);
        assert_true(moe_layout_valid(layout));
    }
    assert_ptr_equal(moe_quant_method_of(hqq, moe_parse_width("iq4_ks")),
                     moe_quant_method_find("trellis"));
    assert_ptr_equal(moe_quant_method_of(hqq, moe_parse_width("q2_k")), blocks);
    assert_ptr_equal(moe_quant_method_of(hqq, 2), hqq);
    assert_int_equal(moe_quant_layout(blocks, 6, 64, MOE_LAYOUT_BF16).kind, MOE_LAYOUT_Q6_K);
    assert_int_equal(moe_quant_layout(blocks, 1, 64, MOE_LAYOUT_BF16).kind, MOE_LAYOUT_NONE);
    static const struct {
        int bits;
        uint32_t group;
        uint16_t float16_kind, kind, linear_kind;
    } cases[] = {
        {32, 64, MOE_LAYOUT_BF16, MOE_LAYOUT_F32, MOE_LAYOUT_F32},
        {16, 64, MOE_LAYOUT_BF16, MOE_LAYOUT_BF16, MOE_LAYOUT_BF16},
        {16, 64, MOE_LAYOUT_F16, MOE_LAYOUT_F16, MOE_LAYOUT_F16},
        {16, 64, MOE_LAYOUT_F32, MOE_LAYOUT_NONE, MOE_LAYOUT_NONE},
        {4, 64, MOE_LAYOUT_BF16, MOE_LAYOUT_Q4, MOE_LAYOUT_Q4},
        {4, 48, MOE_LAYOUT_BF16, MOE_LAYOUT_NONE, MOE_LAYOUT_Q4},
        {2, 32, MOE_LAYOUT_BF16, MOE_LAYOUT_Q2, MOE_LAYOUT_Q2},
        {5, 64, MOE_LAYOUT_BF16, MOE_LAYOUT_NONE, MOE_LAYOUT_NONE},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_layout a =
            moe_quant_layout(hqq, cases[i].bits, cases[i].group, cases[i].float16_kind);
        struct moe_layout b =
            moe_quant_layout(linear, cases[i].bits, cases[i].group, cases[i].float16_kind);
        assert_int_equal(a.kind, cases[i].kind);
        assert_int_equal(a.group, cases[i].bits <= 8 && a.kind ? cases[i].group : 0);
        assert_int_equal(b.kind, cases[i].linear_kind);
        assert_int_equal(b.group, 0);
    }
}

/* ---- Whole matrices ---- */

enum { ROWS = 83, COLS = 200 };

/* Quantizes ROWS x COLS weights over `threads`; the bytes are the caller's to free. */
static uint8_t *encode(const struct moe_quant_method *method, struct moe_layout layout,
                       const float *w, int threads, struct moe_quant_error *error)
{
    struct moe_err err = {0};
    uint8_t *out = moe_alloc(moe_layout_bytes(layout, ROWS, COLS), 1, NULL);
    moe_par_set_threads(threads);
    assert_ok(moe_quantize_matrix(method, layout, NULL, w, ROWS, COLS, out, error, &err), &err);
    moe_par_set_threads(1);
    return out;
}

static void check_matrix(const struct moe_quant_method *method, struct moe_layout layout,
                         const float *w)
{
    struct moe_quant_error one, many;
    uint64_t bytes = moe_layout_bytes(layout, ROWS, COLS);
    uint8_t *a = encode(method, layout, w, 1, &one), *b = encode(method, layout, w, 7, &many);
    assert_memory_equal(a, b, bytes);
    assert_memory_equal(&one, &many, sizeof one);
    struct moe_mat mat = {a, layout, ROWS, COLS};
    float out[COLS];
    double error = 0, weight = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        moe_layout_load_row(&mat, r, out);
        for (uint32_t c = 0; c < COLS; c++) {
            error += pow((double)out[c] - w[r * COLS + c], 2);
            weight += pow(w[r * COLS + c], 2);
        }
    }
    assert_true(fabs(one.sum_squared_error - error) <= 1e-9 * error);
    assert_true(fabs(one.sum_squared_weight - weight) <= 1e-9 * weight);
    assert_true(error < weight);
    free(a);
    free(b);
}

static void test_matrix(void **state)
{
    static float w[ROWS * COLS];
    static const uint32_t groups[] = {0, 32, 64, 128, 256};
    fill(w, ROWS * COLS, GAUSS, 11);
    for (int k = 0; moe_quant_method_at(k); k++)
        for (size_t b = 0; b < N_ITEMS(all_bits); b++)
            for (size_t g = 0; g < N_ITEMS(groups); g++) {
                const struct moe_quant_method *method = moe_quant_method_at(k);
                struct moe_layout layout =
                    moe_quant_layout(method, all_bits[b], groups[g], MOE_LAYOUT_BF16);
                assert_int_not_equal(layout.kind, MOE_LAYOUT_NONE);
                check_matrix(method, layout, w);
            }
    for (uint16_t kind = MOE_LAYOUT_F32; kind <= MOE_LAYOUT_BF16; kind++)
        check_matrix(NULL, (struct moe_layout){.kind = kind}, w);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *method;
        int bits;
        float value;
        const char *words; /* NULL: accepted */
    } cases[] = {
        {"hqq", 4, NAN, "row 37, column 150 is not a number"},
        {"rtn", 2, -NAN, "row 37, column 150 is not a number"},
        {"linear", 8, -INFINITY, "row 37, column 150 is infinite"},
        {"hqq", 32, INFINITY, "row 37, column 150 is infinite"},
        {"hqq", 16, NAN, "row 37, column 150 is not a number"},
        {"hqq", 4, 65505, "row 37, column 150 is 65505, too large to be stored as q4"},
        {"hqq", 4, -65504, NULL},
        {"blocks", 4, 65505, "row 37, column 150 is 65505, too large to be stored as q4_k"},
        {"blocks", 3, 65504, NULL},
        {"blocks", 8, -65504, NULL},
        {"rtn", 2, 65504, NULL},
        {"linear", 2, 40000, "row 37, column 150 is 40000, too large to be stored as q2"},
        {"linear", 8, -65504, "row 37, column 150 is -65504, too large"},
        {"linear", 8, 64000, NULL},
        {"hqq", 16, 65520, "row 37, column 150 is 65520, too large to be stored as f16"},
        {"hqq", 16, 65519, NULL},
        {"hqq", 32, 3e38f, NULL},
    };
    static float w[ROWS * COLS];
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const struct moe_quant_method *method = moe_quant_method_find(cases[i].method);
        struct moe_layout layout = moe_quant_layout(method, cases[i].bits, 64, MOE_LAYOUT_F16);
        uint8_t *out = moe_alloc(moe_layout_bytes(layout, ROWS, COLS), 1, NULL);
        struct moe_err err = {0};
        fill(w, ROWS * COLS, GAUSS, 12);
        w[37 * COLS + 150] = cases[i].value;
        w[81 * COLS + 3] = cases[i].words ? INFINITY : 0; /* the first panel's is named */
        moe_par_set_threads(5);
        int status = moe_quantize_matrix(method, layout, NULL, w, ROWS, COLS, out, NULL, &err);
        moe_par_set_threads(1);
        if (cases[i].words)
            assert_fails(status, MOE_ERR_FORMAT, cases[i].words, &err);
        else
            assert_ok(status, &err);
        free(out);
    }
    struct moe_err err = {0};
    struct moe_layout wrong = {MOE_LAYOUT_Q4, 48}, q4 = {MOE_LAYOUT_Q4, 64};
    struct moe_layout mxfp4 = {MOE_LAYOUT_MXFP4, 32};
    assert_fails(
        moe_quantize_matrix(moe_quant_method_find("rtn"), wrong, NULL, w, 1, 1, NULL, NULL, &err),
        MOE_ERR_USAGE, "layout", &err);
    assert_fails(moe_quantize_matrix(NULL, q4, NULL, w, 1, 1, NULL, NULL, &err), MOE_ERR_USAGE,
                 "layout", &err);
    assert_fails(
        moe_quantize_matrix(moe_quant_method_find("rtn"), mxfp4, NULL, w, 1, 1, NULL, NULL, &err),
        MOE_ERR_USAGE, "mxfp4", &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rtn_error_bound),
        cmocka_unit_test(test_linear_is_symmetric),
        cmocka_unit_test(test_hqq_is_never_worse_than_rtn),
        cmocka_unit_test(test_hqq_gains),
        cmocka_unit_test(test_scaling_by_powers_of_two_keeps_codes),
        cmocka_unit_test(test_own_levels_are_kept),
        cmocka_unit_test(test_constant_groups),
        cmocka_unit_test(test_blocks_of_normal_weights),
        cmocka_unit_test(test_blocks_of_all_sorts),
        cmocka_unit_test(test_layout_of_method),
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("quantize", tests, NULL, NULL);
}
