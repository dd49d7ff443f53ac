/* Products: decoding against the device's own copies, prompts against cuBLAS. Of bench_gpu.c. */
#ifndef TESTS_BENCH_GPU_PRODUCTS_H
#define TESTS_BENCH_GPU_PRODUCTS_H

#include "gpu_bench.h"

enum { MAX_MATRICES = 16 };

static const struct moe_layout bench_layouts[] = {
    {MOE_LAYOUT_BF16, 0},
    {MOE_LAYOUT_Q8, 64},
    {MOE_LAYOUT_Q4, 64},
    {MOE_LAYOUT_Q3, 64},
    {MOE_LAYOUT_Q2, 64},
    {MOE_LAYOUT_MXFP4, 32},
    /* of files, one of each way to decode */
    {MOE_LAYOUT_Q4_0, 32},
    {MOE_LAYOUT_Q4_K, 32},
    {MOE_LAYOUT_Q6_K, 32},
    {MOE_LAYOUT_IQ4_XS, 32},
    {MOE_LAYOUT_IQ2_XXS, 32},
    {MOE_LAYOUT_IQ3_S, 32},
    {MOE_LAYOUT_IQ2_KT, 32},
    {MOE_LAYOUT_IQ4_K, 32},
    {MOE_LAYOUT_NVFP4, 32},
    {MOE_LAYOUT_F8_B, 128},
};
enum { N_LAYOUTS = sizeof bench_layouts / sizeof *bench_layouts, N_SMOKE_LAYOUTS = 7 };

/* With tiny shapes those of our own, and one of files. */
static int n_layouts(const struct bench *b)
{
    return b->smoke ? N_SMOKE_LAYOUTS : N_LAYOUTS;
}

/* One launch after the other, with other weights each time. */
struct products {
    const struct product_shape *shape;
    struct moe_layout layout;
    struct moe_gpu_act in;
    uint32_t n; /* inputs */
    const uint8_t *weights;
    uint64_t n_launches;
    float *out; /* [matrices][n][rows rounded up to a panel] */
};

static void ask_products(struct bench *b, const void *ctx)
{
    const struct products *p = ctx;
    const struct product_shape *s = p->shape;
    uint64_t matrix = moe_layout_bytes(p->layout, s->rows, s->cols);
    uint64_t out_stride = (uint64_t)moe_panels(s->rows) * MOE_PANEL_ROWS;
    struct moe_gpu_product list[MAX_MATRICES];
    const uint8_t *data = p->weights;
    for (uint64_t launch = 0; launch < p->n_launches; launch++) {
        for (uint32_t i = 0; i < s->n_matrices; i++, data += matrix)
            list[i] = (struct moe_gpu_product){
                .w = {data, p->layout, s->rows, s->cols},
                .act = &p->in,
                .n = p->n,
                .y = p->out + i * p->n * out_stride,
                .y_stride = out_stride,
            };
        moe_gpu_matmul(b->gpu, list, s->n_matrices);
    }
}

static float *take_results(struct bench *b, const struct product_shape *s, uint32_t n)
{
    return take(b,
                (uint64_t)s->n_matrices * n * moe_panels(s->rows) * MOE_PANEL_ROWS * sizeof(float));
}

static void print_layout(struct moe_layout layout)
{
    printf("  %-7s g%-3u", moe_layout_name(layout.kind), layout.group);
}

/* ---- Decoding ---- */

static void decode_shape(struct bench *b, const struct product_shape *s)
{
    static const uint32_t inputs[] = {1, 2, 4, 8};
    enum { N_INPUTS = sizeof inputs / sizeof *inputs };
    uint64_t most = b->cold_bytes;
    for (int i = 0; i < n_layouts(b); i++)
        if (product_bytes(s, bench_layouts[i]) > most)
            most = product_bytes(s, bench_layouts[i]);
    struct products p = {.shape = s, .weights = take_random(b, most)};
    p.in = take_inputs(b, inputs[N_INPUTS - 1], s->cols);
    p.out = take_results(b, s, inputs[N_INPUTS - 1]);
    printf("%s: %u of %u x %u a launch\n", s->name, s->n_matrices, s->rows, s->cols);
    for (int i = 0; i < n_layouts(b) && well(b); i++) {
        p.layout = bench_layouts[i];
        uint64_t bytes = product_bytes(s, p.layout);
        p.n_launches = pieces_in_turn(most, bytes);
        print_layout(p.layout);
        for (int k = 0; k < N_INPUTS; k++) {
            p.n = inputs[k];
            struct moe_bench_figure t = time_work(b, &(struct work){ask_products, &p, true});
            double rate = figure(b, (double)(bytes * p.n_launches) / t.median);
            printf(" | %8.1f %4.0f%% +-%2.0f%%", rate * 1e-9, figure(b, 100 * rate / b->copy_rate),
                   spread(t));
        }
        printf("\n");
    }
    give_back(b);
}

static void bench_decode(struct bench *b)
{
    static const struct product_shape real[] = {
        {"gate and up of 8 experts", 16, 1408, 2048},
        {"attention's projection", 1, 2048, 2048},
        {"output head", 1, 151936, 2048},
    };
    static const struct product_shape tiny[] = {
        {"gate and up of 8 experts", 16, 24, 128},
        {"attention's projection", 1, 32, 128},
        {"output head", 1, 200, 128},
    };
    const struct product_shape *shapes = b->smoke ? tiny : real;
    section(b, "decode: weights read for 1, 2, 4 and 8 inputs, GB/s and share of copies' rate");
    for (int i = 0; i < 3 && well(b); i++)
        decode_shape(b, &shapes[i]);
}

/* ---- Prompts ---- */

static const enum moe_gpu_math maths[] = {MOE_GPU_MATH_EXACT, MOE_GPU_MATH_PORTABLE,
                                          MOE_GPU_MATH_BF16};
enum { N_MATHS = sizeof maths / sizeof *maths };

static void prompt_shape(struct bench *b, const struct product_shape *s, uint32_t n)
{
    uint64_t n_weights = (uint64_t)s->rows * s->cols;
    uint64_t scratch_bytes = moe_gpu_math_bytes(n_weights, (uint64_t)n * s->cols);
    void *scratch = take(b, scratch_bytes);
    struct products p = {.shape = s, .n = n, .n_launches = 1};
    p.weights = take_random(b, n_weights * sizeof(uint16_t));
    p.in = take_inputs(b, n, s->cols);
    p.out = take_results(b, s, n);
    printf("%u inputs, %s (%u x %u)\n", n, s->name, s->rows, s->cols);
    for (int i = 0; i < n_layouts(b) && well(b); i++) {
        struct moe_bench_figure t[N_MATHS];
        p.layout = bench_layouts[i];
        uint64_t through_blas = moe_gpu_bf16_rows(b->gpu);
        for (int m = 0; m < N_MATHS; m++) {
            moe_gpu_set_math(b->gpu, maths[m], scratch, scratch_bytes, &b->err);
            moe_gpu_set_bf16_rule(b->gpu, 0, 0);
            t[m] = time_work(b, &(struct work){ask_products, &p, false});
        }
        figure(b, (double)(moe_gpu_bf16_rows(b->gpu) - through_blas)); /* so it did go there */
        print_layout(p.layout);
        for (int m = 0; m < N_MATHS; m++)
            printf(" | %8.2f +-%2.0f%%", figure(b, product_operations(s, n) / t[m].median) * 1e-12,
                   spread(t[m]));
        printf(" | %6.1f%%\n", figure(b, 100 * t[N_MATHS - 1].median / t[0].median));
    }
    moe_gpu_set_math(b->gpu, MOE_GPU_MATH_EXACT, NULL, 0, &b->err);
    give_back(b);
}

/* What no budget counts: cuBLAS's code, and what it allocates in spite of the workspace it is
 * given. */
static void print_blas_memory(struct bench *b)
{
    struct moe_gpu_info before, after;
    if (!well(b) || moe_gpu_describe(0, &before) != 0)
        return;
    moe_gpu_set_math(b->gpu, MOE_GPU_MATH_BF16, NULL, 0, &b->err);
    if (well(b) && moe_gpu_describe(0, &after) == 0)
        printf("cuBLAS takes %.1f MiB of the device beside its workspace\n",
               ((double)before.memory_free_bytes - (double)after.memory_free_bytes) / (1 << 20));
    moe_gpu_set_math(b->gpu, MOE_GPU_MATH_EXACT, NULL, 0, &b->err);
}

static void bench_prompts(struct bench *b)
{
    static const struct product_shape real[] = {{"attention's projection", 1, 2048, 2048},
                                                {"an expert's gate", 1, 1408, 2048}};
    static const struct product_shape tiny[] = {{"attention's projection", 1, 32, 128},
                                                {"an expert's gate", 1, 24, 128}};
    const struct product_shape *shapes = b->smoke ? tiny : real;
    section(b, "prompts: TFLOP/s, exact | exact without tensor cores | bf16 by cuBLAS, weights "
               "and inputs rounded first | exact's share of bf16's rate");
    print_blas_memory(b);
    for (int i = 0; i < 2 && well(b); i++) {
        if (i == 1) /* what an expert of 128 has of 512 tokens that use 8 each */
            prompt_shape(b, &shapes[i], b->smoke ? 9 : 32);
        prompt_shape(b, &shapes[i], b->smoke ? 16 : 512);
        prompt_shape(b, &shapes[i], b->smoke ? 40 : 2048);
    }
}

#endif
