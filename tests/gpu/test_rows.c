/* What is computed row by row (gpu_embed.cu, gpu_rows.cu, gpu_logits.cu) against the processor's
 * kernels: the same bits. */
#include "gpu_fixture.h"

#include <math.h>

#include "kern/kern.h"

struct world {
    struct gpu_taken taken;
    uint64_t random;
};

static struct world world_of(void **state, uint64_t seed)
{
    return (struct world){.taken = {.g = *state}, .random = seed};
}

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)(test_random(&w->random) % n);
}

static float *floats(uint64_t n)
{
    float *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static float *random_floats(struct world *w, uint64_t n, float size)
{
    float *x = floats(n);
    for (uint64_t i = 0; i < n; i++)
        x[i] = size * test_uniform(&w->random);
    return x;
}

static void *on_device(struct world *w, const float *x, uint64_t n)
{
    return gpu_take(&w->taken, x, n * sizeof *x);
}

/* Compares n floats of the device with what they should be. */
static void check_floats(struct world *w, const float *at, const float *want, uint64_t n)
{
    float *got = floats(n);
    gpu_get(w->taken.g, got, at, n * sizeof *got);
    assert_same_floats(got, want, n);
    free(got);
}

/* ---- Embedding ---- */

static void check_embed(struct world *w, struct moe_layout layout, uint32_t vocab, uint32_t cols,
                        float scale)
{
    enum { N = 5, PAD = 3 };
    uint64_t bytes = moe_layout_bytes(layout, vocab, cols), stride = cols + PAD;
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)test_random(&w->random);
    struct moe_mat mat = {data, layout, vocab, cols};
    struct moe_gpu_row rows[N];
    float *want = random_floats(w, N * stride, 1);
    float *h = on_device(w, want, N * stride);
    for (uint32_t i = 0; i < N; i++) {
        rows[i] = (struct moe_gpu_row){0, i, i ? below(w, vocab) : vocab - 1, 0};
        moe_layout_load_row(&mat, rows[i].token, want + i * stride);
        moe_kern.scale(scale, cols, want + i * stride);
    }
    mat.data = gpu_take(&w->taken, data, bytes);
    moe_gpu_embed(w->taken.g, &mat, gpu_take(&w->taken, rows, sizeof rows), N, scale, h, stride);
    check_floats(w, h, want, N * stride);
    gpu_give_back(&w->taken);
    free(want);
    free(data);
}

static void test_embed(void **state)
{
    static const struct moe_layout layouts[] = {
        {MOE_LAYOUT_F32, 0},     {MOE_LAYOUT_F16, 0},      {MOE_LAYOUT_BF16, 0},
        {MOE_LAYOUT_Q8, 0},      {MOE_LAYOUT_Q8, 32},      {MOE_LAYOUT_Q8, 128},
        {MOE_LAYOUT_Q4, 0},      {MOE_LAYOUT_Q4, 32},      {MOE_LAYOUT_Q4, 64},
        {MOE_LAYOUT_Q3, 0},      {MOE_LAYOUT_Q3, 32},      {MOE_LAYOUT_Q3, 192},
        {MOE_LAYOUT_Q2, 0},      {MOE_LAYOUT_Q2, 32},      {MOE_LAYOUT_Q2, 64},
        {MOE_LAYOUT_MXFP4, 32},  {MOE_LAYOUT_Q5, 32},      {MOE_LAYOUT_Q5, 64},
        {MOE_LAYOUT_Q5, 0},      {MOE_LAYOUT_Q4_0, 32},    {MOE_LAYOUT_Q5_0, 32},
        {MOE_LAYOUT_Q6_0, 32},   {MOE_LAYOUT_Q8_0, 32},    {MOE_LAYOUT_IQ4_NL, 32},
        {MOE_LAYOUT_Q2_K, 32},   {MOE_LAYOUT_Q3_K, 32},    {MOE_LAYOUT_Q4_K, 32},
        {MOE_LAYOUT_Q5_K, 32},   {MOE_LAYOUT_Q6_K, 32},    {MOE_LAYOUT_IQ4_XS, 32},
        {MOE_LAYOUT_NVFP4, 32},  {MOE_LAYOUT_TQ2_0, 32},   {MOE_LAYOUT_IQ1_S, 32},
        {MOE_LAYOUT_IQ1_M, 32},  {MOE_LAYOUT_IQ2_XXS, 32}, {MOE_LAYOUT_IQ2_XS, 32},
        {MOE_LAYOUT_IQ2_S, 32},  {MOE_LAYOUT_IQ3_XXS, 32}, {MOE_LAYOUT_IQ3_S, 32},
        {MOE_LAYOUT_Q1_0, 32},   {MOE_LAYOUT_Q2_0, 32},    {MOE_LAYOUT_TQ1_0, 32},
        {MOE_LAYOUT_Q8_Z, 64},   {MOE_LAYOUT_Q4_Z, 128},   {MOE_LAYOUT_NVFP4_T, 32},
        {MOE_LAYOUT_IQ2_K, 32},  {MOE_LAYOUT_IQ1_KT, 32},  {MOE_LAYOUT_IQ2_KT, 32},
        {MOE_LAYOUT_IQ3_KT, 32}, {MOE_LAYOUT_IQ4_KT, 32},  {MOE_LAYOUT_IQ2_KL, 32},
        {MOE_LAYOUT_IQ2_KS, 32}, {MOE_LAYOUT_IQ3_K, 32},   {MOE_LAYOUT_IQ3_KS, 32},
        {MOE_LAYOUT_IQ4_K, 32},  {MOE_LAYOUT_IQ4_KS, 32},  {MOE_LAYOUT_IQ5_K, 32},
        {MOE_LAYOUT_IQ5_KS, 32}, {MOE_LAYOUT_IQ6_K, 32},   {MOE_LAYOUT_F8, 0},
        {MOE_LAYOUT_F8_B, 128},  {MOE_LAYOUT_I8, 32},      {MOE_LAYOUT_NF4, 64},
        {MOE_LAYOUT_FP4, 0},
    };
    static const uint32_t widths[] = {1, 31, 64, 100, 128, 257, 448};
    struct world w = world_of(state, 1);
    for (size_t i = 0; i < N_ITEMS(layouts); i++)
        for (size_t j = 0; j < N_ITEMS(widths); j++)
            check_embed(&w, layouts[i], 1 + below(&w, 50), widths[j], j % 2 ? 1 : 12.5f);
}

/* ---- Adding and norm ---- */

struct norm_case {
    uint32_t n, cols;
    bool add, bias, norm, layer, in_place, blocks_32, blocks_64;
};

/* One row of the residual stream and its norm, by the processor. sum is used up. */
static void norm_row(const struct norm_case *c, float scale, float *sum, const float *add_bias,
                     const float *weights, const float *bias, float *h, float *x)
{
    if (c->bias)
        moe_kern.add(add_bias, c->cols, sum);
    if (c->add)
        moe_kern.axpy(scale, sum, c->cols, h);
    if (c->norm && c->layer)
        moe_kern.layer_norm(h, weights, bias, c->cols, 1e-5f, x);
    else if (c->norm)
        moe_kern.rms_norm(h, weights, c->cols, 1e-5f, x);
}

struct byte_form {
    uint32_t block, padded, blocks; /* of a row: bytes, blocks */
    struct moe_gpu_bytes dev;
};

static struct byte_form take_form(struct world *w, uint32_t n, uint32_t cols, uint32_t block)
{
    struct byte_form f = {.block = block, .blocks = (cols + block - 1) / block};
    f.padded = f.blocks * block;
    f.dev.q = gpu_take(&w->taken, NULL, (uint64_t)n * f.padded);
    f.dev.s = gpu_take(&w->taken, NULL, (uint64_t)n * f.blocks * sizeof(float));
    f.dev.z = gpu_take(&w->taken, NULL, (uint64_t)n * f.blocks * sizeof(float));
    return f;
}

static void check_form(struct world *w, const struct byte_form *f, uint32_t i, const float *x,
                       uint32_t cols)
{
    int8_t *q = calloc(2, f->padded), *got = q + f->padded;
    float *s = floats(2 * f->blocks), *z = s + f->blocks;
    struct moe_sums *sum = calloc(f->blocks, sizeof *sum);
    assert_true(q && sum);
    moe_kern.quantize(x, cols, f->block, 1, 0, q, s, z, sum);
    gpu_get(w->taken.g, got, f->dev.q + (uint64_t)i * f->padded, f->padded);
    assert_memory_equal(got, q, f->padded);
    check_floats(w, f->dev.s + (uint64_t)i * f->blocks, s, f->blocks);
    check_floats(w, f->dev.z + (uint64_t)i * f->blocks, z, f->blocks);
    free(sum);
    free(s);
    free(q);
}

static void check_norm(struct world *w, const struct norm_case *c)
{
    enum { PAD = 5 };
    uint64_t stride = c->cols + PAD, all = c->n * stride;
    float *h = random_floats(w, all, 3), *sum = random_floats(w, all, 2),
          *x = random_floats(w, all, 1);
    float *weights = random_floats(w, c->cols, 2), *bias = random_floats(w, c->cols, 1);
    float *add_bias = random_floats(w, c->cols, 1), scale = 0.37f;
    if (c->n > 2) { /* numbers that are none */
        h[stride + below(w, c->cols)] = INFINITY;
        h[2 * stride + below(w, c->cols)] = NAN;
    }
    struct byte_form f32 = take_form(w, c->n, c->cols, 32), f64 = take_form(w, c->n, c->cols, 64);
    struct moe_gpu_norm norm = {
        .h = on_device(w, h, all),
        .h_stride = stride,
        .cols = c->cols,
        .add = c->add ? on_device(w, sum, all) : NULL,
        .add_stride = stride,
        .add_bias = c->bias ? on_device(w, add_bias, c->cols) : NULL,
        .add_scale = scale,
        .layer = c->layer,
        .weights = c->norm ? on_device(w, weights, c->cols) : NULL,
        .bias = c->layer ? on_device(w, bias, c->cols) : NULL,
        .eps = 1e-5f,
        .out = {.cols = c->cols, .x_stride = stride},
    };
    norm.out.x = c->in_place ? norm.h : on_device(w, x, all);
    if (c->blocks_32)
        norm.out.bytes[MOE_GPU_BLOCK_32] = f32.dev;
    if (c->blocks_64)
        norm.out.bytes[MOE_GPU_BLOCK_64] = f64.dev;
    moe_gpu_add_norm(w->taken.g, &norm, c->n);

    for (uint32_t i = 0; i < c->n; i++) {
        float *row = c->in_place ? h : x;
        norm_row(c, scale, sum + i * stride, add_bias, weights, bias, h + i * stride,
                 row + i * stride);
        if (c->norm && c->blocks_32)
            check_form(w, &f32, i, row + i * stride, c->cols);
        if (c->norm && c->blocks_64)
            check_form(w, &f64, i, row + i * stride, c->cols);
    }
    check_floats(w, norm.h, h, all);
    check_floats(w, norm.out.x, c->in_place ? h : x, all);
    gpu_give_back(&w->taken);
    free(add_bias);
    free(bias);
    free(weights);
    free(x);
    free(sum);
    free(h);
}

static void test_add_norm(void **state)
{
    static const uint32_t widths[] = {1, 15, 64, 100, 576, 2048, 2049, 5000};
    struct world w = world_of(state, 2);
    for (size_t i = 0; i < 4 * N_ITEMS(widths); i++) {
        struct norm_case c = {
            .n = i % 2 ? 1 : 4,
            .cols = widths[i % N_ITEMS(widths)],
            .add = below(&w, 4) > 0,
            .norm = i % 7 > 0,
            .layer = below(&w, 2),
            .in_place = below(&w, 3) == 0,
            .blocks_32 = below(&w, 2),
            .blocks_64 = below(&w, 2),
        };
        c.bias = c.add && below(&w, 2);
        c.layer = c.layer && c.norm;
        c.in_place = c.in_place && c.norm;
        check_norm(&w, &c);
    }
}

/* ---- The end of a MoE layer ---- */

static void check_combine(struct world *w, uint32_t n, uint32_t cols, uint32_t top_k, bool mixed,
                          bool shared, bool gated)
{
    uint64_t stride = cols + 7, all = n * stride, pairs = (uint64_t)n * top_k;
    float *outputs = random_floats(w, pairs * stride, 2), *weights = random_floats(w, pairs, 1);
    float *sum = random_floats(w, all, 2), *gates = random_floats(w, 16 * (uint64_t)n, 8);
    float *h = random_floats(w, all, 3), *acc = floats(cols);
    uint32_t *slot_of = calloc(pairs, sizeof *slot_of);
    assert_non_null(slot_of);
    for (uint32_t i = 0; i < pairs; i++) /* some order or other */
        slot_of[i] = (uint32_t)((i + 3) * (uint64_t)(mixed ? pairs - 1 : pairs + 1) % pairs);
    struct moe_gpu_combine c = {
        .outputs = on_device(w, outputs, pairs * stride),
        .out_stride = stride,
        .slot_of = mixed ? gpu_take(&w->taken, slot_of, pairs * sizeof *slot_of) : NULL,
        .weights = on_device(w, weights, pairs),
        .top_k = top_k,
        .cols = cols,
        .shared = shared ? on_device(w, sum, all) : NULL,
        .shared_stride = stride,
        .shared_scale = gated ? on_device(w, gates, 16 * (uint64_t)n) : NULL,
        .h = on_device(w, h, all),
        .h_stride = stride,
        .residual_scale = 0.22f,
    };
    moe_gpu_combine(w->taken.g, &c, NULL, n);
    for (uint32_t i = 0; i < n; i++) {
        memset(acc, 0, cols * sizeof *acc);
        for (uint32_t k = 0; k < top_k; k++) {
            uint32_t at = i * top_k + k;
            moe_kern.axpy(weights[at], outputs + (mixed ? slot_of[at] : at) * stride, cols, acc);
        }
        if (shared)
            moe_kern.axpy(gated ? 1 / (1 + moe_expf(-gates[16 * i])) : 1, sum + i * stride, cols,
                          acc);
        moe_kern.axpy(0.22f, acc, cols, h + i * stride);
    }
    check_floats(w, c.h, h, all);
    gpu_give_back(&w->taken);
    free(slot_of);
    free(acc);
    free(h);
    free(gates);
    free(sum);
    free(weights);
    free(outputs);
}

static void test_combine(void **state)
{
    struct world w = world_of(state, 3);
    for (int i = 0; i < 24; i++)
        check_combine(&w, 1 + below(&w, 5), 1 + below(&w, 400), 1 + below(&w, 9), i % 2, i % 3,
                      i % 3 == 2);
}

/* ---- Logits ---- */

static void test_finish_logits(void **state)
{
    struct world w = world_of(state, 4);
    for (int i = 0; i < 12; i++) {
        uint32_t n = 1 + below(&w, 3), vocab = 1 + below(&w, 2000);
        uint64_t stride = vocab + 9;
        float *x = random_floats(&w, n * stride, 20), *bias = random_floats(&w, vocab, 2);
        float scale = i % 3 ? 1.0f / 16 : 1;
        float *dev = on_device(&w, x, n * stride);
        moe_gpu_finish_logits(w.taken.g, dev, stride, n, vocab,
                              i % 2 ? on_device(&w, bias, vocab) : NULL, scale);
        for (uint32_t row = 0; row < n; row++) {
            if (i % 2)
                moe_kern.add(bias, vocab, x + row * stride);
            moe_kern.scale(scale, vocab, x + row * stride);
        }
        check_floats(&w, dev, x, n * stride);
        gpu_give_back(&w.taken);
        free(bias);
        free(x);
    }
}

static uint32_t largest_of(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return UINT32_MAX;
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static void test_argmax(void **state)
{
    enum { N = 9 };
    static const uint32_t vocabs[] = {1, 2, 33, 1000, 1024, 5000, 70000, 300000};
    struct world w = world_of(state, 5);
    for (size_t v = 0; v < N_ITEMS(vocabs); v++) {
        uint32_t vocab = vocabs[v], want[N], got[N];
        uint64_t stride = vocab + 4;
        float *x = random_floats(&w, N * stride, 5);
        for (uint32_t i = 0; i < vocab; i++) {
            x[1 * stride + i] = (float)below(&w, 3);              /* equals */
            x[2 * stride + i] = -INFINITY;                        /* nothing else */
            x[3 * stride + i] = below(&w, 2) ? 0.0f : -0.0f;      /* equals, too */
            x[4 * stride + i] = -1 - fabsf(x[4 * stride + i]);    /* below zero */
            x[5 * stride + i] = below(&w, 9) ? -1e-42f : -1e-44f; /* subnormal */
        }
        x[6 * stride + below(&w, vocab)] = INFINITY;
        x[7 * stride + below(&w, vocab)] = NAN;
        x[8 * stride + below(&w, vocab)] = -NAN;
        for (uint32_t i = 0; i < N; i++)
            want[i] = largest_of(x + i * stride, vocab);
        uint32_t *ids = gpu_take(&w.taken, NULL, sizeof got);
        /* Many rows have a block each, few are spread over more. */
        const float *logits = on_device(&w, x, N * stride);
        for (uint32_t n = N; n >= 1; n = n > 5 ? n - 4 : n - 1) {
            moe_gpu_argmax(w.taken.g, logits + (N - n) * stride, stride, n, vocab, ids);
            gpu_get(w.taken.g, got, ids, n * sizeof *got);
            for (uint32_t i = 0; i < n; i++)
                assert_int_equal(got[i], want[N - n + i]);
        }
        gpu_give_back(&w.taken);
        free(x);
    }
}

int main(void)
{
    struct moe_err err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),   cmocka_unit_test(test_add_norm),
        cmocka_unit_test(test_combine), cmocka_unit_test(test_finish_logits),
        cmocka_unit_test(test_argmax),
    };
    if (moe_kern_select(moe_cpu_detect(), &err) != MOE_OK)
        return 1;
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
