/* Error-aware rounding: moments and their factor, compensation, and whole conversions with the
 * inputs that small models see. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "kern/kern.h"
#include "pack/convert_internal.h"
#include "pack/pack.h"
#include "quant/cholesky.h"
#include "quant/gptq.h"
#include "tune/inputs_seen.h"

/* ---- Moments and factor ---- */

/* H = R D R^T with R = [1 2 3; 0 1 -1; 0 0 1] and D = diag(2, 1, 4), multiplied out by hand. */
static void test_factor_by_hand(void **state)
{
    (void)state;
    double h[9] = {42, -10, 12, 0, 5, -4, 0, 0, 4};
    const double want[9] = {2, 2, 3, 2, 1, -1, 3, -1, 4};
    assert_true(moe_cholesky(h, 3));
    for (int i = 0; i < 9; i++)
        assert_true(h[i] == want[i]);
}

static void test_factor_refuses(void **state)
{
    (void)state;
    double indefinite[4] = {1, 2, 0, 1}, infinite[1] = {INFINITY}, nothing[1] = {0};
    assert_false(moe_cholesky(indefinite, 2));
    assert_false(moe_cholesky(infinite, 1));
    assert_false(moe_cholesky(nothing, 1));
}

/* Inputs with correlated columns: neighbours share half of their values. */
static float *make_inputs(uint32_t n, uint32_t cols, uint64_t seed)
{
    float *x = moe_alloc((uint64_t)n * cols, sizeof *x, NULL);
    assert_non_null(x);
    for (uint32_t t = 0; t < n; t++) {
        float before = 0;
        for (uint32_t i = 0; i < cols; i++) {
            before = 0.9f * before + test_uniform(&seed) * (i % 17 ? 1.0f : 4.0f);
            x[(uint64_t)t * cols + i] = before;
        }
    }
    return x;
}

static double *make_moments(const float *x, uint32_t n, uint32_t cols)
{
    double *h = moe_alloc((uint64_t)cols * cols, sizeof *h, NULL);
    assert_non_null(h);
    moe_moments_add(h, cols, x, cols, NULL, n);
    moe_moments_damp(h, cols, 0.01);
    return h;
}

static double *copy_of(const double *h, uint32_t cols)
{
    uint64_t bytes = (uint64_t)cols * cols * sizeof *h;
    double *copy = moe_alloc(bytes, 1, NULL);
    assert_non_null(copy);
    return memcpy(copy, h, bytes);
}

static void test_moments(void **state)
{
    (void)state;
    enum { N = 45, COLS = 37, STRIDE = 40 };
    const uint32_t rows[3] = {44, 0, 7};
    static float x[N * STRIDE];
    double all[COLS * COLS] = {0}, some[COLS * COLS] = {0};
    uint64_t seed = 1;
    for (int i = 0; i < N * STRIDE; i++)
        x[i] = test_uniform(&seed);
    moe_moments_add(all, COLS, x, STRIDE, NULL, N);
    moe_moments_add(some, COLS, x, STRIDE, rows, 3);
    for (int i = 0; i < COLS; i++)
        for (int j = i; j < COLS; j++) {
            double want_all = 0, want_some = 0;
            for (int t = 0; t < N; t++)
                want_all += (double)x[t * STRIDE + i] * x[t * STRIDE + j];
            for (int t = 0; t < 3; t++)
                want_some += (double)x[rows[t] * STRIDE + i] * x[rows[t] * STRIDE + j];
            assert_true(fabs(all[i * COLS + j] - want_all) < 1e-5);
            assert_true(fabs(some[i * COLS + j] - want_some) < 1e-6);
        }
    /* The mean diagonal element of diag(1, 3) is 2. */
    double d[4] = {1, 0, 0, 3}, zero[4] = {0};
    moe_moments_damp(d, 2, 0.5);
    assert_true(d[0] == 2 && d[3] == 4);
    moe_moments_damp(zero, 2, 0.5);
    assert_true(zero[0] == 1 && zero[3] == 1);
}

/* Sizes around the factor's blocks: R D R^T is H again, and two threads give the same bits. */
static void test_factor_of_moments(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 63, 64, 65, 200};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint32_t n = sizes[s];
        float *x = make_inputs(50, n, n);
        double *h = make_moments(x, 50, n), *f = copy_of(h, n), *again = copy_of(h, n);
        assert_true(moe_cholesky(f, n));
        moe_par_set_threads(2);
        assert_true(moe_cholesky(again, n));
        moe_par_set_threads(1);
        assert_memory_equal(f, again, (uint64_t)n * n * sizeof *f);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = i; j < n; j++) {
                double sum = 0;
                for (uint32_t k = j; k < n; k++)
                    sum += (k == i ? 1 : f[i * n + k]) * f[k * n + k] * (k == j ? 1 : f[j * n + k]);
                assert_true(fabs(sum - h[i * n + j]) <= 1e-9 * h[0]);
                assert_true(f[i * n + j] == f[j * n + i]);
            }
        free(x);
        free(h);
        free(f);
        free(again);
    }
}

/* ---- Compensation ---- */

enum { MAX_COLS = 512 };

struct matrix {
    struct moe_layout layout;
    uint32_t rows, cols;
    float *w;
    uint8_t *data;
    struct moe_quant_error error;
};

static uint64_t bytes_of(const struct matrix *m)
{
    return moe_layout_bytes(m->layout, m->rows, m->cols);
}

/* Weights rounded by hqq. */
static struct matrix make_matrix(int bits, uint32_t group, uint32_t rows, uint32_t cols)
{
    struct moe_err err = {0};
    const struct moe_quant_method *hqq = moe_quant_method_find("hqq");
    struct matrix m = {moe_quant_layout(hqq, bits, group, MOE_LAYOUT_BF16), rows, cols,
                       .w = moe_alloc((uint64_t)rows * cols, sizeof *m.w, NULL)};
    uint64_t seed = bits + group;
    m.data = moe_alloc(bytes_of(&m), 1, NULL);
    assert_true(m.w && m.data);
    for (uint64_t i = 0; i < (uint64_t)rows * cols; i++)
        m.w[i] = (test_uniform(&seed) + test_uniform(&seed) + test_uniform(&seed)) * 0.02f;
    assert_ok(moe_quantize_matrix(hqq, m.layout, NULL, m.w, rows, cols, m.data, &m.error, &err),
              &err);
    return m;
}

static void release(struct matrix *m)
{
    free(m->w);
    free(m->data);
}

/* What row r of the matrix stands for. */
static void load(const struct matrix *m, uint32_t r, float *out)
{
    const struct moe_mat mat = {m->data, m->layout, m->rows, m->cols};
    moe_layout_load_row(&mat, r, out);
}

/* e H e^T of row r, of H's upper half; *squared: e e^T. */
static double row_error(const struct matrix *m, const double *h, uint32_t r, double *squared)
{
    double sum = 0, e[MAX_COLS];
    float values[MAX_COLS];
    load(m, r, values);
    *squared = 0;
    for (uint32_t i = 0; i < m->cols; i++) {
        e[i] = (double)m->w[(uint64_t)r * m->cols + i] - values[i];
        *squared += e[i] * e[i];
    }
    for (uint32_t i = 0; i < m->cols; i++)
        for (uint32_t j = i; j < m->cols; j++)
            sum += (i == j ? 1 : 2) * e[i] * h[i * m->cols + j] * e[j];
    return sum;
}

/* Every bitwidth and kind of group, with rows and columns that fill no panel and no group: each
 * row's output error, multiplied out, falls or stays; the reported sums are those; two threads give
 * the same bytes. */
static void test_improves(void **state)
{
    (void)state;
    static const struct {
        int bits;
        uint32_t group, rows, cols;
    } cases[] = {{2, 64, 19, 200}, {3, 64, 16, 192}, {4, 64, 33, 100},
                 {2, 32, 5, 90},   {2, 0, 18, 160},  {8, 128, 17, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct moe_err err = {0};
        struct matrix m = make_matrix(cases[i].bits, cases[i].group, cases[i].rows, cases[i].cols);
        struct matrix twin =
            make_matrix(cases[i].bits, cases[i].group, cases[i].rows, cases[i].cols);
        float *x = make_inputs(300, m.cols, i);
        double *h = make_moments(x, 300, m.cols), *factor = copy_of(h, m.cols);
        double before[64], plain = 0, improved = 0, squared = 0, one;
        assert_true(moe_cholesky(factor, m.cols));
        for (uint32_t r = 0; r < m.rows; r++)
            plain += before[r] = row_error(&m, h, r, &one);
        assert_ok(moe_gptq_improve(m.layout, factor, m.w, m.rows, m.cols, m.data, &m.error, &err),
                  &err);
        for (uint32_t r = 0; r < m.rows; r++) {
            double after = row_error(&m, h, r, &one);
            assert_true(after <= before[r] * (1 + 1e-9));
            improved += after;
            squared += one;
        }
        assert_true(improved < 0.7 * plain);
        assert_true(fabs(m.error.output_plain - plain) < 1e-6 * plain);
        assert_true(fabs(m.error.output_improved - improved) < 1e-6 * plain);
        assert_true(fabs(m.error.sum_squared_error - squared) < 1e-6 * squared);
        moe_par_set_threads(2);
        assert_ok(moe_gptq_improve(m.layout, factor, twin.w, m.rows, m.cols, twin.data, NULL, &err),
                  &err);
        moe_par_set_threads(1);
        assert_memory_equal(m.data, twin.data, bytes_of(&m));
        release(&m);
        release(&twin);
        free(x);
        free(h);
        free(factor);
    }
}

/* One column's error is made up for by the next, as worked by hand: with R_01 = -1, w_1 is rounded
 * as if it were w_1 - e_0. Levels are 0, 1, 2, 3 in both groups of the row. */
static void test_carries(void **state)
{
    (void)state;
    enum { COLS = 64, AT = 40 };
    struct moe_err err = {0};
    float w[COLS], values[COLS];
    static double factor[COLS * COLS];
    for (uint32_t i = 0; i < COLS; i++) {
        w[i] = (float)(i % 4);
        factor[i * COLS + i] = 1;
    }
    w[0] = 1.4f;  /* column 0 becomes 1, with an error of 0.4 */
    w[AT] = 1.3f; /* would become 1; as 1.3 + 0.4 it becomes 2 */
    factor[AT] = factor[AT * COLS] = 1;
    struct matrix m = {moe_quant_layout(moe_quant_method_find("rtn"), 2, 32, MOE_LAYOUT_BF16), 1,
                       COLS, .w = w};
    m.data = moe_alloc(bytes_of(&m), 1, NULL);
    assert_non_null(m.data);
    assert_ok(moe_quantize_matrix(moe_quant_method_find("rtn"), m.layout, NULL, w, 1, COLS, m.data,
                                  &m.error, &err),
              &err);
    load(&m, 0, values);
    assert_true(fabsf(values[0] - 1) < 1e-3f && fabsf(values[AT] - 1) < 1e-3f);
    assert_ok(moe_gptq_improve(m.layout, factor, w, 1, COLS, m.data, &m.error, &err), &err);
    load(&m, 0, values);
    assert_true(fabsf(values[0] - 1) < 0.05f && fabsf(values[AT] - 2) < 0.05f);
    /* By hand, with errors of 0.4, then of 1.3 - 1 + 0.4 and 1.3 - 2 + 0.4. */
    assert_true(fabs(m.error.output_plain - (0.16 + 0.49)) < 1e-3);
    assert_true(m.error.output_improved <= 0.16 + 0.09 + 1e-3);
    free(m.data);
}

/* With a diagonal H there is nothing to make up for: each weight has the nearest of the values that
 * occur in its group. */
static void test_diagonal(void **state)
{
    (void)state;
    enum { COLS = 128, GROUP = 64 };
    struct moe_err err = {0};
    struct matrix m = make_matrix(2, GROUP, 16, COLS);
    static double factor[COLS * COLS];
    float values[COLS];
    for (uint32_t i = 0; i < COLS; i++)
        factor[i * COLS + i] = 1 + i % 5;
    assert_ok(moe_gptq_improve(m.layout, factor, m.w, m.rows, COLS, m.data, NULL, &err), &err);
    for (uint32_t r = 0; r < m.rows; r++) {
        load(&m, r, values);
        for (uint32_t i = 0; i < COLS; i++)
            for (uint32_t j = i / GROUP * GROUP; j < (i / GROUP + 1) * GROUP; j++) {
                float w = m.w[r * COLS + i];
                assert_true(fabsf(w - values[i]) <= fabsf(w - values[j]) + 1e-6f);
            }
    }
    release(&m);
}

/* ---- Trellis ---- */

/* Weights of a row of zeros and others near to normal ones, by method trellis, those of a column
 * ten times as large (cols: of none). factor: NULL, or of the inputs' moments. */
static struct matrix make_trellis(int bits, uint32_t rows, uint32_t cols, uint32_t outlier,
                                  const double *factor)
{
    struct moe_err err = {0};
    const struct moe_quant_method *best = moe_quant_method_find("best");
    struct matrix m = {moe_quant_layout(best, bits, 64, MOE_LAYOUT_BF16), rows, cols,
                       .w = moe_alloc((uint64_t)rows * cols, sizeof *m.w, NULL)};
    uint64_t seed = 7;
    m.data = moe_alloc(bytes_of(&m), 1, NULL);
    assert_true(m.w && m.data);
    for (uint64_t i = cols; i < (uint64_t)rows * cols; i++)
        for (int k = 0; k < 8; k++)
            m.w[i] += test_uniform(&seed) * 0.02f;
    for (uint32_t r = 0; r < rows && outlier < cols; r++)
        m.w[(uint64_t)r * cols + outlier] *= 10;
    assert_ok(moe_quantize_matrix(best, m.layout, factor, m.w, rows, cols, m.data, &m.error, &err),
              &err);
    return m;
}

/* Each kind, with rows and columns that fill no panel, no scale and no span: what is left of the
 * variance is what so many numbers for a group can leave (0.133 to 0.0014 over wide
 * rows); knowing the inputs lowers the outputs' errors below those of weights that are rounded by
 * themselves; the reported sums are those; zeros stay; two threads give the same bytes. */
static void test_trellis(void **state)
{
    (void)state;
    static const struct {
        int bits;
        uint32_t rows, cols;
        double most;
    } cases[] = {{1, 18, 40, 0.14},
                 {2, 35, 72, 0.09},
                 {3, 5, 270, 0.026},
                 {4, 17, 68, 0.0065},
                 {5, 18, 40, 0.0018}};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const uint32_t rows = cases[i].rows, cols = cases[i].cols;
        float *x = make_inputs(600, cols, i), values[MAX_COLS];
        double *h = make_moments(x, 600, cols), *factor = copy_of(h, cols);
        assert_true(moe_cholesky(factor, cols));
        struct matrix plain = make_trellis(cases[i].bits, rows, cols, cols, NULL);
        struct matrix aware = make_trellis(cases[i].bits, rows, cols, cols, factor);
        moe_par_set_threads(3);
        struct matrix twin = make_trellis(cases[i].bits, rows, cols, cols, factor);
        moe_par_set_threads(1);
        double of_plain = 0, of_aware = 0, squared = 0, one;
        for (uint32_t r = 0; r < rows; r++) {
            of_plain += row_error(&plain, h, r, &one);
            squared += one;
            of_aware += row_error(&aware, h, r, &one);
        }
        assert_int_equal(moe_layout_bits(plain.layout.kind), cases[i].bits);
        assert_true(fabs(plain.error.sum_squared_error - squared) < 1e-6 * squared);
        assert_true(squared < cases[i].most * plain.error.sum_squared_weight);
        assert_true(of_aware < 0.6 * of_plain);
        load(&aware, 0, values);
        for (uint32_t c = 0; c < cols; c++)
            assert_true(values[c] == 0);
        assert_memory_equal(aware.data, twin.data, bytes_of(&aware));
        assert_memory_equal(&aware.error, &twin.error, sizeof aware.error);
        release(&plain);
        release(&aware);
        release(&twin);
        free(x);
        free(h);
        free(factor);
    }
}

/* A column of outliers, as embeddings and projections of many models have, keeps its size: scales
 * reach as far as it does, and its neighbours lose resolution instead. */
static void outliers_are_not_cut_off(void **state)
{
    (void)state;
    static const double most[] = {0.0165, 0.004, 0.001}; /* of 3 bits and more */
    enum { ROWS = 64, COLS = 96, OUTLIER = 37 };
    for (int bits = 3; bits <= 5; bits++) {
        struct matrix m = make_trellis(bits, ROWS, COLS, OUTLIER, NULL);
        float values[MAX_COLS];
        double error = 0, all = 0;
        for (uint32_t r = 0; r < ROWS; r++) {
            load(&m, r, values);
            const double w = m.w[r * COLS + OUTLIER], off = values[OUTLIER] - w;
            error += off * off;
            all += w * w;
        }
        assert_true(error < most[bits - 3] * all);
        release(&m);
    }
}

/* ---- Conversion ---- */

static int tear_down(void **state)
{
    moe_par_set_threads(1);
    return remove_empty_dir(state);
}

static const char *const math = "tests/data/math.calib.txt";

static struct moe_convert_options options_of(const char *method, int dense)
{
    return (struct moe_convert_options){.experts = {{4, 4}, {2, 4}},
                                        .n_experts = 2,
                                        .dense_bits = dense,
                                        .method = moe_quant_method_find(method),
                                        .group = 32};
}

static void convert_aware(const char *source, const char *path, uint32_t max_tokens, int dense,
                          struct moe_convert_report *report, struct moe_buf *note)
{
    struct moe_err err = {0};
    const struct moe_convert_options options = options_of("gptq", dense);
    const struct moe_inputs_options inputs = {&math, 1, max_tokens, 1, NULL, NULL, false};
    assert_ok(moe_convert_error_aware(source, true, path, &options, &inputs, report, note, &err),
              &err);
}

static uint8_t *contents(const char *path, uint64_t *n)
{
    struct moe_err err = {0};
    struct moe_buf buf = {0};
    assert_ok(moe_file_read_all(path, 1 << 26, &buf, &err), &err);
    *n = buf.size;
    return buf.data;
}

/* Dense layers, shared experts, latent attention, biases, no experts at all: all parts improve, and
 * two threads give the same bytes. */
static void test_families(void **state)
{
    (void)state;
    static const char *const sources[] = {DRAWN "/deepseek", DRAWN "/deepseek-v2-a",
                                          DRAWN "/gpt-oss-a", DRAWN "/qwen2-moe-a", DRAWN "/llama"};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        char a[96], b[96];
        struct moe_convert_report report;
        uint64_t n_a, n_b;
        snprintf(a, sizeof a, "%s/a.moe", dir);
        snprintf(b, sizeof b, "%s/b.moe", dir);
        convert_aware(sources[i], a, 12, 4, &report, NULL);
        assert_true(report.dense_error.output_improved < 0.95 * report.dense_error.output_plain);
        for (int v = 0; v < 2 && i + 1 < sizeof sources / sizeof sources[0]; v++)
            assert_true(report.error[v].output_improved < 0.95 * report.error[v].output_plain);
        moe_par_set_threads(2);
        convert_aware(sources[i], b, 12, 4, &report, NULL);
        moe_par_set_threads(1);
        uint8_t *of_a = contents(a, &n_a), *of_b = contents(b, &n_b);
        assert_int_equal(n_a, n_b);
        assert_memory_equal(of_a, of_b, n_a);
        free(of_a);
        free(of_b);
        unlink(a);
        unlink(b);
    }
}

static bool same_expert(const struct moe_pack *a, const struct moe_pack *b, uint32_t layer,
                        uint32_t expert)
{
    const struct moe_expert_extent *x = moe_pack_expert(a, layer, expert, 1);
    const struct moe_expert_extent *y = moe_pack_expert(b, layer, expert, 1);
    return x->segments[0].checksum == y->segments[0].checksum &&
           x->segments[1].checksum == y->segments[1].checksum;
}

/* Experts that few tokens visit are rounded by hqq, bit for bit, and named; the others are not. */
static void test_rare_experts(void **state)
{
    (void)state;
    char a[96], b[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_buf note = {0};
    struct moe_pack *aware, *plain;
    const struct moe_convert_options hqq = options_of("hqq", 8);
    snprintf(a, sizeof a, "%s/a.moe", dir);
    snprintf(b, sizeof b, "%s/b.moe", dir);
    convert_aware(DRAWN "/deepseek", a, 2, 8, &report, &note);
    assert_ok(moe_convert_checkpoint(DRAWN "/deepseek", b, &hqq, &report, &err), &err);
    assert_ok(moe_pack_open(&aware, a, &err), &err);
    assert_ok(moe_pack_open(&plain, b, &err), &err);
    assert_int_equal(moe_pack_source_fingerprint(aware), moe_pack_source_fingerprint(plain));
    assert_string_equal(moe_pack_variant_at(aware, 1)->method, "gptq");

    uint64_t n;
    const char *text = (const char *)moe_pack_section(aware, MOE_PACK_PROVENANCE, &n);
    json_t *json = json_loadb(text, n, 0, NULL);
    const json_t *rare = json_object_get(json_object_get(json, "inputs"), "rare");
    size_t n_rare = json_array_size(rare), n_same = 0, n_experts = 0;
    for (uint32_t layer = 1; layer < 3; layer++) /* the first is dense */
        for (uint32_t e = 0; e < moe_pack_n_experts(aware); e++, n_experts++)
            n_same += same_expert(aware, plain, layer, e);
    assert_true(n_rare > 0 && n_rare < n_experts);
    assert_int_equal(n_rare, n_same);
    for (size_t i = 0; i < n_rare; i++) {
        const json_t *one = json_array_get(rare, i);
        uint32_t layer = (uint32_t)json_integer_value(json_array_get(one, 0));
        uint32_t expert = (uint32_t)json_integer_value(json_array_get(one, 1));
        char name[64];
        snprintf(name, sizeof name, "layer %u expert %u", layer, expert);
        assert_true(same_expert(aware, plain, layer, expert));
        assert_true(json_integer_value(json_array_get(one, 2)) < MOE_LEAST_INPUTS);
        moe_buf_u8(&note, 0);
        assert_non_null(strstr((const char *)note.data, name));
        note.size--;
    }
    json_decref(json);
    moe_pack_close(aware);
    moe_pack_close(plain);
    moe_buf_release(&note);
    unlink(a);
    unlink(b);
}

/* Packs: variants made by another method are made again from something better, or refused. */
static void test_packs(void **state)
{
    (void)state;
    char a[96], b[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    const struct moe_inputs_options inputs = {&math, 1, 8, 1, NULL, NULL, false};
    struct moe_convert_options options = options_of("hqq", 16);
    struct moe_pack *pack;
    snprintf(a, sizeof a, "%s/a.moe", dir);
    snprintf(b, sizeof b, "%s/b.moe", dir);
    options.experts[0] = (struct moe_bits){8, 8};
    options.experts[1] = (struct moe_bits){2, 2};
    assert_ok(moe_convert_checkpoint(DRAWN "/qwen2-moe-a", a, &options, &report, &err), &err);
    options = options_of("gptq", 0);
    options.n_experts = 1;
    options.experts[0] = (struct moe_bits){2, 2};
    assert_ok(moe_convert_error_aware(a, false, b, &options, &inputs, &report, NULL, &err), &err);
    assert_true(report.error[0].output_improved < report.error[0].output_plain);
    assert_ok(moe_pack_open(&pack, b, &err), &err);
    assert_int_equal(moe_pack_n_variants(pack), 1);
    assert_string_equal(moe_pack_variant_at(pack, 0)->method, "gptq");
    moe_pack_close(pack);
    options.experts[0] = (struct moe_bits){8, 8};
    assert_int_equal(moe_convert_error_aware(a, false, b, &options, &inputs, &report, NULL, &err),
                     MOE_ERR_USAGE);
    unlink(a);
    unlink(b);
}

/* With a map each expert is what the pack of its bits alone has, improved for its inputs. */
static void test_maps(void **state)
{
    (void)state;
    static const struct moe_bits kinds[] = {{16, 16}, {4, 4}, {2, 2}};
    static struct moe_bits bits[64];
    const char *source = DRAWN "/qwen2-moe-a";
    char a[96], b[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_pack *plain, *mixed;
    const struct moe_inputs_options inputs = {&math, 1, 8, 1, NULL, NULL, false};
    struct moe_convert_options options = options_of("gptq", 8);
    uint64_t seed = 3;
    snprintf(a, sizeof a, "%s/a.moe", dir);
    snprintf(b, sizeof b, "%s/b.moe", dir);
    memcpy(options.experts, kinds, sizeof kinds);
    options.n_experts = N_ITEMS(kinds);
    assert_ok(moe_convert_error_aware(source, true, a, &options, &inputs, &report, NULL, &err),
              &err);
    assert_ok(moe_pack_open(&plain, a, &err), &err);
    struct moe_expert_map map = {.name = "map.yaml",
                                 .source_fingerprint = moe_pack_source_fingerprint(plain),
                                 .n_layers = moe_pack_n_layers(plain),
                                 .n_experts = moe_pack_n_experts(plain),
                                 .bits = bits};
    assert_true(map.n_layers * map.n_experts <= N_ITEMS(bits));
    uint32_t of[N_ITEMS(bits)];
    for (uint32_t i = 0; i < map.n_layers * map.n_experts; i++) {
        of[i] = i < N_ITEMS(kinds) ? i : (uint32_t)(test_random(&seed) % N_ITEMS(kinds));
        if (moe_pack_usable_variant(plain, i / map.n_experts, 0, 0) != UINT32_MAX)
            bits[i] = kinds[of[i]];
    }
    options.experts[0] = (struct moe_bits){0};
    options.n_experts = 1;
    options.map = &map;
    assert_ok(moe_convert_error_aware(source, true, b, &options, &inputs, &report, NULL, &err),
              &err);
    assert_true(report.error[0].output_improved < 0.95 * report.error[0].output_plain);
    assert_ok(moe_pack_open(&mixed, b, &err), &err);
    assert_string_equal(moe_pack_variant_at(mixed, 0)->method, "gptq");
    for (uint32_t i = 0; i < map.n_layers * map.n_experts; i++) {
        uint32_t layer = i / map.n_experts, expert = i % map.n_experts;
        if (bits[i].down == 0)
            continue;
        const struct moe_expert_extent *x = moe_pack_expert(plain, layer, expert, of[i]);
        const struct moe_expert_extent *y = moe_pack_expert(mixed, layer, expert, 0);
        assert_true(x->present && y->present);
        for (int s = 0; s < 2; s++)
            assert_int_equal(x->segments[s].checksum, y->segments[s].checksum);
    }
    moe_pack_close(plain);
    moe_pack_close(mixed);
    unlink(a);
    unlink(b);
}

/* The mean bits of a weight of a pack's experts; *different: these are not all of one class. */
static double mean_bits(const char *path, bool *different)
{
    struct moe_err err = {0};
    struct moe_pack *pack;
    uint64_t bytes = 0, weights = 0;
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    *different = moe_pack_n_classes(pack) > 1;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, 0);
            const struct moe_expert_class *class_ = moe_pack_class_at(pack, x->class_index);
            for (uint32_t i = 0; x->present && i < class_->n_matrices; i++) {
                const struct moe_class_matrix *m = &class_->matrices[i];
                bytes += moe_layout_bytes(m->layout, m->rows, m->cols);
                weights += (uint64_t)m->rows * m->cols;
            }
        }
    moe_pack_close(pack);
    return 8 * (double)bytes / (double)weights;
}

/* A mean of bits: no more than are asked for, nearly as many, and not the same for all experts;
 * fewer than the fewest are refused. */
static void test_mean_bits(void **state)
{
    (void)state;
    const char *source = DRAWN "/qwen2-moe-a";
    char a[96];
    bool different;
    double fewest;
    struct moe_err err = {0};
    struct moe_convert_report report;
    const struct moe_inputs_options inputs = {&math, 1, 12, 1, NULL, NULL, false};
    struct moe_convert_options options = options_of("best", 8);
    snprintf(a, sizeof a, "%s/a.moe", dir);
    options.mean_bits = 1;
    assert_fails(moe_convert_error_aware(source, true, a, &options, &inputs, &report, NULL, &err),
                 MOE_ERR_USAGE, "a weight at least, 1.00 are asked for", &err);
    assert_int_equal(sscanf(strstr(err.text, "experts take"), "experts take %lf", &fewest), 1);
    options.mean_bits = 1.5 * fewest;
    assert_ok(moe_convert_error_aware(source, true, a, &options, &inputs, &report, NULL, &err),
              &err);
    const double mean = mean_bits(a, &different);
    assert_true(mean <= options.mean_bits && mean > options.mean_bits - 0.5);
    assert_true(different);
    unlink(a);
}

/* The checksums of a pack's tensors and experts, and how many of these are of quantized kinds;
 * free() *sums. */
static uint32_t checksums(const char *path, uint64_t **sums, uint32_t *n_quantized)
{
    struct moe_err err = {0};
    struct moe_pack *pack;
    uint32_t n = 0;
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    *sums = moe_alloc(1024, sizeof **sums, NULL);
    *n_quantized = 0;
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        *n_quantized += !moe_layout_is_float(t->layout.kind);
        (*sums)[n++] = t->extent.checksum;
    }
    for (uint32_t i = 0; i < moe_pack_n_layers(pack) * moe_pack_n_experts(pack); i++) {
        const struct moe_expert_extent *x =
            moe_pack_expert(pack, i / moe_pack_n_experts(pack), i % moe_pack_n_experts(pack), 0);
        *n_quantized +=
            !moe_layout_is_float(moe_pack_class_at(pack, x->class_index)->matrices[0].layout.kind);
        for (int s = 0; s < 2; s++)
            (*sums)[n++] = x->segments[s].checksum;
    }
    assert_true(n <= 1024);
    moe_pack_close(pack);
    return n;
}

/* A quantized checkpoint's own codes are the top of the ladder: with room for all of them a pack of
 * a target has the same matrices as one that keeps everything; and a matrix that has no more bits
 * than are asked for keeps them, texts or not. */
static void test_own_codes(void **state)
{
    (void)state;
    const char *source = "tests/fixtures/gguf/mixtral.gguf";
    char a[96], b[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    uint64_t *of_a, *of_b;
    uint32_t n_quantized, some;
    const struct moe_inputs_options inputs = {&math, 1, 12, 1, NULL, NULL, false};
    struct moe_convert_options options = options_of("best", 8);
    snprintf(a, sizeof a, "%s/a.moe", dir);
    snprintf(b, sizeof b, "%s/b.moe", dir);
    options.own_experts = options.own_dense = true;
    assert_ok(moe_convert_checkpoint(source, a, &options, &report, &err), &err);
    const uint32_t n = checksums(a, &of_a, &n_quantized);
    assert_true(n_quantized >= 8 + 7);

    options.own_experts = options.own_dense = false;
    options.dense_bits = 0;
    options.target_bytes = report.pack_bytes + (64 << 10);
    assert_ok(moe_convert_error_aware(source, true, b, &options, &inputs, &report, NULL, &err),
              &err);
    assert_int_equal(checksums(b, &of_b, &some), n);
    assert_memory_equal(of_a, of_b, n * sizeof *of_a);
    assert_int_equal(report.requantized, 0);
    free(of_b);

    source = "tests/fixtures/gguf/qwen2moe.gguf"; /* of Q8_0, too */
    options = options_of("best", 5);
    options.experts[0] = (struct moe_bits){5, 4};
    options.n_experts = 1;
    assert_ok(moe_convert_error_aware(source, true, b, &options, &inputs, &report, NULL, &err),
              &err);
    const uint64_t carried = report.carried, again = report.requantized;
    const uint32_t n_all = checksums(b, &of_b, &some);
    options.method = moe_quant_method_find("blocks");
    assert_ok(moe_convert_checkpoint(source, a, &options, &report, &err), &err);
    assert_int_equal(carried, report.carried);
    assert_int_equal(again, report.requantized);
    assert_true(carried > 0 && again > 0);
    free(of_a);
    checksums(a, &of_a, &some);
    uint32_t same = 0;
    for (uint32_t i = 0; i < n_all; i++)
        same += of_a[i] == of_b[i];
    assert_true(same > n_all / 2 && same < n_all);
    free(of_a);
    free(of_b);
    unlink(a);
    unlink(b);
}

/* Room is used as far as rungs allow: where no more matrices fit by one price for all, those that
 * do fit get more, the most worth their bytes first. */
static void test_room_is_used(void **state)
{
    (void)state;
    enum { N = 60 };
    struct convert_sharer sharers[N];
    uint64_t seed = 7;
    for (int round = 0; round < 200; round++) {
        uint64_t fewest = 0, all = 0;
        for (int i = 0; i < N; i++) {
            const uint64_t pages = 1 + test_random(&seed) % (i % 20 ? 4 : 400);
            struct convert_sharer *s = &sharers[i];
            *s = (struct convert_sharer){.there = i % 9, .of = 1, .weight = i % 3 ? 1 : 1.5};
            for (int rung = 0; s->there && rung < CONVERT_RUNGS; rung++) {
                s->lost[rung] = exp2(-2 * rung);
                s->bytes[rung] = pages * (uint64_t)(2 + rung) * MOE_PACK_ALIGN;
                s->lacks[rung] = i % 7 == 0 && rung == 4;
            }
            fewest += s->bytes[0];
            all += s->bytes[CONVERT_RUNGS - 1];
        }
        const uint64_t most = fewest + test_random(&seed) % (all - fewest);
        const uint64_t takes = convert_share_out(sharers, N, (double)most);
        uint64_t bytes = 0;
        for (int i = 0; i < N; i++)
            bytes += sharers[i].bytes[sharers[i].rung];
        assert_int_equal(takes, bytes);
        assert_true(takes <= most);
        for (int i = 0; i < N; i++)
            for (int rung = sharers[i].rung + 1; sharers[i].there && rung < CONVERT_RUNGS; rung++)
                assert_true(sharers[i].lacks[rung] ||
                            takes - sharers[i].bytes[sharers[i].rung] + sharers[i].bytes[rung] >
                                most);
        for (int i = 0; i < N; i++)
            assert_false(sharers[i].lacks[sharers[i].rung]);
    }
}

/* Sizes of packs: the one that is said to be the least is taken, and is no more than a page
 * above what the pack then has; a little less is refused; none is exceeded, with a dense part of
 * given bits, with layers that draft, biases and a source's own codes. */
static void test_targets(void **state)
{
    (void)state;
    static const char *const sources[] = {DRAWN "/deepseek", DRAWN "/ahead-qwen3-next",
                                          DRAWN "/gpt-oss-a", DRAWN "/olmo2",
                                          "tests/fixtures/gguf/mixtral.gguf"};
    const struct moe_inputs_options inputs = {&math, 1, 12, 1, NULL, NULL, false};
    char a[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    snprintf(a, sizeof a, "%s/a.moe", dir);
    for (size_t i = 0; i < 2 * N_ITEMS(sources); i++) {
        const char *source = sources[i / 2];
        const bool dense = i % 2;
        struct moe_convert_options options = options_of("best", dense ? 4 : 0);
        double least;
        options.target_bytes = 10 << 10;
        if (dense && strcmp(source, DRAWN "/olmo2") == 0) {
            assert_fails(
                moe_convert_error_aware(source, true, a, &options, &inputs, &report, NULL, &err),
                MOE_ERR_USAGE,
                DRAWN "/olmo2: has no experts to share bits among; leave out --dense", &err);
            continue;
        }
        assert_fails(
            moe_convert_error_aware(source, true, a, &options, &inputs, &report, NULL, &err),
            MOE_ERR_USAGE, " at least, more than the 10.00 KiB of --target", &err);
        assert_int_equal(strncmp(err.text, source, strlen(source)), 0);
        assert_int_equal(sscanf(strstr(err.text, "takes"), "takes %lf KiB", &least), 1);
        const uint64_t targets[] = {1024 * (uint64_t)least, 1024 * (uint64_t)least + 9999, 1 << 20};
        for (size_t t = 0; t < N_ITEMS(targets); t++) {
            options.target_bytes = targets[t];
            assert_ok(
                moe_convert_error_aware(source, true, a, &options, &inputs, &report, NULL, &err),
                &err);
            assert_true(report.pack_bytes <= targets[t]);
            if (t == 0)
                assert_true(report.pack_bytes + (4 << 10) >= targets[t]);
        }
        options.target_bytes = targets[0] - 1;
        assert_fails(
            moe_convert_error_aware(source, true, a, &options, &inputs, &report, NULL, &err),
            MOE_ERR_USAGE, " at least, more than ", &err);
    }
    unlink(a);
}

/* The size of a pack that has all of its bits is enough to get them again, and so is what is said
 * to be the least, of a pack of one variant and of one with as many as there can be: only what is
 * written is counted. */
static void test_targets_of_variants(void **state)
{
    (void)state;
    static const struct moe_bits all[] = {{16, 16}, {8, 8}, {8, 4}, {4, 8},
                                          {4, 4},   {4, 3}, {3, 3}, {2, 2}};
    const struct moe_inputs_options inputs = {&math, 1, 12, 1, NULL, NULL, false};
    char from[96], a[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    uint64_t sizes[2][3];
    snprintf(from, sizeof from, "%s/from.moe", dir);
    snprintf(a, sizeof a, "%s/a.moe", dir);
    for (int several = 0; several < 2; several++) {
        struct moe_convert_options options = options_of("best", 16);
        double least;
        memcpy(options.experts, all, sizeof all);
        options.n_experts = several ? N_ITEMS(all) : 1;
        options.method = moe_quant_method_find("hqq");
        assert_ok(moe_convert_checkpoint(DRAWN "/deepseek", from, &options, &report, &err), &err);
        options = options_of("best", 0);
        uint64_t targets[3] = {1 << 30, 0, 10 << 10};
        for (size_t t = 0; t < 3; t++) {
            options.target_bytes = targets[t];
            if (t == 2) {
                assert_fails(
                    moe_convert_error_aware(from, false, a, &options, &inputs, &report, NULL, &err),
                    MOE_ERR_USAGE, " at least, more than the 10.00 KiB of --target", &err);
                assert_int_equal(sscanf(strstr(err.text, "takes"), "takes %lf KiB", &least), 1);
                options.target_bytes = 1024 * (uint64_t)least;
            }
            assert_ok(
                moe_convert_error_aware(from, false, a, &options, &inputs, &report, NULL, &err),
                &err);
            sizes[several][t] = report.pack_bytes;
            targets[1] = report.pack_bytes;
        }
        assert_int_equal(sizes[several][1], sizes[several][0]);
        assert_int_equal(sizes[several][2], 1024 * (uint64_t)least);
    }
    assert_memory_equal(sizes[0], sizes[1], sizeof sizes[0]);
    unlink(from);
    unlink(a);
}

/* How often bits are chosen before a run is stopped, and how often they were. */
struct stopped {
    int left, looked;
    volatile sig_atomic_t stop;
};

static void stop_choosing(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct stopped *s = ctx;
    const bool chooses = strncmp(what, "choosing bits", 13) == 0;
    assert_true(done <= total || !chooses);
    s->looked += chooses;
    s->stop = chooses && --s->left <= 0;
}

/* What the texts say of matrices is kept: a run that is stopped while bits are chosen, again and
 * again, looks at each once, and writes the pack of one run; with other texts or windows of them it
 * does not go on. */
static void test_choosing_resumes(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        uint64_t target;
        double mean;
    } cases[] = {{DRAWN "/ahead-qwen3-next", 416 << 10, 0},
                 {DRAWN "/deepseek", 0, 8.2},
                 {"tests/fixtures/gguf/mixtral.gguf", 177 << 10, 0}};
    char a[96], b[96], kept[112];
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct stopped stopped;
    struct stat about;
    const struct moe_progress progress = {
        .ctx = &stopped, .report = stop_choosing, .stop = &stopped.stop};
    snprintf(a, sizeof a, "%s/a.moe", dir);
    snprintf(b, sizeof b, "%s/b.moe", dir);
    snprintf(kept, sizeof kept, "%s.kept", b);
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_inputs_options inputs = {&math, 1, 24, 2, NULL, NULL, false};
        struct moe_convert_options options = options_of("best", 0);
        struct moe_buf of_a = {0}, of_b = {0};
        int n_runs = 0, n_looks = 0;
        options.progress = &progress;
        options.target_bytes = cases[i].target;
        options.mean_bits = cases[i].mean;
        stopped = (struct stopped){.left = INT_MAX};
        assert_ok(moe_convert_error_aware(cases[i].source, true, a, &options, &inputs, &report,
                                          NULL, &err),
                  &err);
        const int n_all = stopped.looked;
        assert_true(n_all >= 12);
        options.keeps = true;
        for (int status = MOE_ERR_INTERRUPTED; status != MOE_OK; n_runs++) {
            stopped = (struct stopped){.left = 5};
            status = moe_convert_error_aware(cases[i].source, true, b, &options, &inputs, &report,
                                             NULL, &err);
            assert_true(status == MOE_OK || status == MOE_ERR_INTERRUPTED);
            n_looks += stopped.looked;
            if (n_runs != 1)
                continue;
            stopped = (struct stopped){.left = INT_MAX};
            for (int other = 0; other < 3; other++) {
                inputs.max_tokens = other == 0 ? 25 : 24;
                inputs.max_windows = other == 1 ? 1 : 2;
                options.no_ahead = other == 2;
                assert_fails(moe_convert_error_aware(cases[i].source, true, b, &options, &inputs,
                                                     &report, NULL, &err),
                             MOE_ERR_USAGE, "with other options or texts", &err);
            }
            options.no_ahead = false;
            assert_int_equal(stat(kept, &about), 0);
            assert_int_equal(truncate(kept, about.st_size - 1), 0); /* the last one is lost */
        }
        assert_int_equal(n_looks, n_all + 1);
        assert_int_equal(n_runs, n_looks / 5 + 1);
        assert_ok(moe_file_read_all(a, 1 << 20, &of_a, &err), &err);
        assert_ok(moe_file_read_all(b, 1 << 20, &of_b, &err), &err);
        assert_int_equal(of_a.size, of_b.size);
        assert_memory_equal(of_a.data, of_b.data, of_a.size);
        moe_buf_release(&of_a);
        moe_buf_release(&of_b);
        unlink(a);
        unlink(b);
    }
}

/* What a conversion says of how far it is: of its last step. */
struct told {
    char what[32];
    uint64_t done, total;
    uint32_t n_steps, n_back; /* steps that began, times that it went back or beyond the total */
};

static void tell(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct told *t = ctx;
    const bool begins = strcmp(what, t->what) != 0;
    t->n_steps += begins;
    t->n_back += done > total || (!begins && done < t->done);
    snprintf(t->what, sizeof t->what, "%s", what);
    t->done = done;
    t->total = total;
}

/* Rounding is one step from its first matrix to its last expert, so that the time left can be told,
 * and ends where it said; matrices that take long count for it. */
static void test_progress(void **state)
{
    (void)state;
    char a[96], b[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct told told = {{0}, 0, 0, 0, 0};
    const struct moe_progress progress = {.ctx = &told, .report = tell};
    struct moe_convert_options options = options_of("hqq", 16);
    const struct moe_inputs_options inputs = {&math, 1, 8, 1, NULL, NULL, false};
    snprintf(a, sizeof a, "%s/a.moe", dir);
    snprintf(b, sizeof b, "%s/b.moe", dir);
    options.experts[0] = (struct moe_bits){16, 16};
    options.n_experts = 1;
    assert_ok(moe_convert_checkpoint(DRAWN "/qwen2-moe-a", a, &options, &report, &err), &err);
    options = options_of("best", 8);
    options.progress = &progress;
    assert_ok(moe_convert_error_aware(a, false, b, &options, &inputs, &report, NULL, &err), &err);
    assert_string_equal(told.what, "rounding");
    assert_int_equal(told.n_steps, 1);
    assert_int_equal(told.n_back, 0);
    assert_int_equal(told.done, told.total);
    assert_true(told.total > 32 * report.source_bytes);
    unlink(a);
    unlink(b);
}

/* Failures leave nothing behind: tear_down finds the directory empty. */
static void test_failures(void **state)
{
    (void)state;
    char a[96];
    struct moe_err err = {0};
    struct moe_convert_report report;
    const char *none = "tests/data/none.txt";
    volatile sig_atomic_t stop = 1;
    const struct moe_progress progress = {.stop = &stop};
    const struct moe_convert_options options = options_of("gptq", 8);
    struct moe_inputs_options inputs = {&none, 1, 8, 1, NULL, NULL, false};
    snprintf(a, sizeof a, "%s/a.moe", dir);
    assert_int_equal(
        moe_convert_error_aware(DRAWN "/deepseek", true, a, &options, &inputs, &report, NULL, &err),
        MOE_ERR_IO);
    inputs = (struct moe_inputs_options){&math, 1, 8, 1, &progress, NULL, false};
    assert_int_equal(
        moe_convert_error_aware(DRAWN "/deepseek", true, a, &options, &inputs, &report, NULL, &err),
        MOE_ERR_INTERRUPTED);
    inputs.progress = NULL;
    assert_int_not_equal(moe_convert_error_aware("tests/fixtures/none", true, a, &options, &inputs,
                                                 &report, NULL, &err),
                         MOE_OK);
}

int main(void)
{
    struct moe_err err;
    moe_kern_select(moe_cpu_detect(), &err);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factor_by_hand),
        cmocka_unit_test(test_factor_refuses),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_factor_of_moments),
        cmocka_unit_test(test_improves),
        cmocka_unit_test(test_carries),
        cmocka_unit_test(test_diagonal),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_rare_experts),
        cmocka_unit_test(test_packs),
        cmocka_unit_test(test_maps),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_trellis),
        cmocka_unit_test(outliers_are_not_cut_off),
        cmocka_unit_test(test_mean_bits),
        cmocka_unit_test(test_own_codes),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_targets_of_variants),
        cmocka_unit_test(test_choosing_resumes),
        cmocka_unit_test(test_room_is_used),
    };
    return cmocka_run_group_tests(tests, make_dir, tear_down);
}
