/*
 * Kernels against the limits of this machine, all from one run.
 *
 * Decode (one input) is bounded by reading the weights: its rate is given in bytes of weights per
 * second and as a share of a plain streaming read. Prefill (many inputs) is bounded by arithmetic:
 * multiply-adds per second and the share of what a loop over registers alone reaches. Each figure
 * is the best of several interleaved rounds, since other work on the machine only ever slows.
 *
 *     bench_kernels [THREADS [MEGABYTES [ROUNDS [INPUTS]]]]
 */
#include "bench_peaks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "kern/kern.h"
#include "kern/matmul.h"

enum { COLS = 2048, PREFILL_ROWS = 4096, PREFILL_INPUTS = 128, N_KINDS = 62 };

static const struct moe_layout layouts[N_KINDS] = {
    {MOE_LAYOUT_F32, 0},      {MOE_LAYOUT_F16, 0},      {MOE_LAYOUT_BF16, 0},
    {MOE_LAYOUT_Q8, 32},      {MOE_LAYOUT_Q8, 64},      {MOE_LAYOUT_Q8, 0},
    {MOE_LAYOUT_Q4, 32},      {MOE_LAYOUT_Q4, 64},      {MOE_LAYOUT_Q3, 64},
    {MOE_LAYOUT_Q2, 64},      {MOE_LAYOUT_MXFP4, 32},   {MOE_LAYOUT_Q5, 32},
    {MOE_LAYOUT_Q4_0, 32},    {MOE_LAYOUT_Q5_0, 32},    {MOE_LAYOUT_Q6_0, 32},
    {MOE_LAYOUT_Q8_0, 32},    {MOE_LAYOUT_IQ4_NL, 32},  {MOE_LAYOUT_Q2_K, 32},
    {MOE_LAYOUT_Q3_K, 32},    {MOE_LAYOUT_Q4_K, 32},    {MOE_LAYOUT_Q5_K, 32},
    {MOE_LAYOUT_Q6_K, 32},    {MOE_LAYOUT_IQ4_XS, 32},  {MOE_LAYOUT_NVFP4, 32},
    {MOE_LAYOUT_TQ2_0, 32},   {MOE_LAYOUT_Q3, 32},      {MOE_LAYOUT_IQ1_S, 32},
    {MOE_LAYOUT_IQ1_M, 32},   {MOE_LAYOUT_IQ2_XXS, 32}, {MOE_LAYOUT_IQ2_XS, 32},
    {MOE_LAYOUT_IQ2_S, 32},   {MOE_LAYOUT_IQ3_XXS, 32}, {MOE_LAYOUT_IQ3_S, 32},
    {MOE_LAYOUT_Q1_0, 32},    {MOE_LAYOUT_Q2_0, 32},    {MOE_LAYOUT_TQ1_0, 32},
    {MOE_LAYOUT_Q8, 128},     {MOE_LAYOUT_Q4, 128},     {MOE_LAYOUT_Q8_Z, 128},
    {MOE_LAYOUT_Q4_Z, 128},   {MOE_LAYOUT_Q4_Z, 32},    {MOE_LAYOUT_Q3_Z, 64},
    {MOE_LAYOUT_NVFP4_T, 32}, {MOE_LAYOUT_IQ2_K, 32},   {MOE_LAYOUT_IQ2_KS, 32},
    {MOE_LAYOUT_IQ3_K, 32},   {MOE_LAYOUT_IQ3_KS, 32},  {MOE_LAYOUT_IQ4_K, 32},
    {MOE_LAYOUT_IQ4_KS, 32},  {MOE_LAYOUT_IQ5_K, 32},   {MOE_LAYOUT_IQ5_KS, 32},
    {MOE_LAYOUT_IQ6_K, 32},   {MOE_LAYOUT_IQ1_KT, 32},  {MOE_LAYOUT_IQ2_KT, 32},
    {MOE_LAYOUT_IQ3_KT, 32},  {MOE_LAYOUT_IQ4_KT, 32},  {MOE_LAYOUT_IQ2_KL, 32},
    {MOE_LAYOUT_F8, 0},       {MOE_LAYOUT_F8_B, 128},   {MOE_LAYOUT_I8, 0},
    {MOE_LAYOUT_NF4, 64},     {MOE_LAYOUT_FP4, 64}};

/* Best rates so far. */
struct result {
    double decode_bytes, prefill_macs; /* per second */
};

static uint32_t prefill_inputs = PREFILL_INPUTS;
static uint8_t *weights;
static uint64_t weight_bytes;
static float *inputs, *outputs;
static struct moe_act act;

static void better(double *best, double value)
{
    if (value > *best)
        *best = value;
}

/* Any bytes serve as codes; scales should be ordinary numbers. 0x21 in every byte is 0.01 in f16.
 */
static void fill(void)
{
    memset(weights, 0x21, weight_bytes);
    for (int i = 0; i < PREFILL_INPUTS * COLS; i++)
        inputs[i] = (float)(i * 7919 % 1000) * 0.001f - 0.5f;
}

/* Seconds of one product of `rows` rows with n inputs, their preparation included. */
static double timed_product(struct moe_layout layout, uint32_t rows, uint32_t n)
{
    double start = moe_seconds();
    moe_act_prepare(&act, inputs, COLS, NULL, n, COLS, moe_act_block_for(layout));
    struct moe_mm mm = {{weights, layout, rows, COLS}, &act, outputs, rows};
    moe_matmul(&mm, 1);
    return moe_seconds() - start;
}

static void measure(struct moe_layout layout, struct result *r)
{
    uint64_t panel = moe_layout_panel_bytes(layout, COLS), panels = weight_bytes / panel;
    double decode = timed_product(layout, (uint32_t)panels * MOE_PANEL_ROWS, 1);
    double prefill = timed_product(layout, PREFILL_ROWS, prefill_inputs);
    better(&r->decode_bytes, (double)(panels * panel) / decode);
    better(&r->prefill_macs, (double)PREFILL_ROWS * COLS * prefill_inputs / prefill);
}

static int allocate(uint64_t bytes, struct moe_err *err)
{
    uint64_t most_rows = 0;
    for (int k = 0; k < N_KINDS; k++) {
        uint64_t rows = bytes / moe_layout_panel_bytes(layouts[k], COLS) * MOE_PANEL_ROWS;
        most_rows = rows > most_rows ? rows : most_rows;
    }
    weight_bytes = bytes;
    weights = moe_pages_alloc(bytes, err);
    inputs = moe_alloc(PREFILL_INPUTS * COLS, sizeof *inputs, err);
    outputs = moe_alloc(most_rows + PREFILL_ROWS * PREFILL_INPUTS, sizeof *outputs, err);
    struct moe_arena arena = {0};
    moe_act_carve(&act, &arena, PREFILL_INPUTS, COLS);
    arena = (struct moe_arena){.base = moe_alloc(1, arena.used, err), .size = arena.used};
    moe_act_carve(&act, &arena, PREFILL_INPUTS, COLS);
    return weights && inputs && outputs && arena.base ? MOE_OK : MOE_ERR_MEMORY;
}

static void print_level(enum moe_cpu_level level, const struct result *results, double bandwidth,
                        const struct bench_peaks *peaks)
{
    printf("\n%s: registers alone %.0f GMAC/s f32, %.0f GMAC/s 8-bit\n", moe_cpu_level_name(level),
           peaks->fma * 1e-9, peaks->dot * 1e-9);
    printf("               decode GB/s  of read   prefill GMAC/s  of peak\n");
    for (int k = 0; k < N_KINDS; k++) {
        const struct result *r = &results[k];
        double peak = moe_layout_takes_floats(layouts[k].kind) ? peaks->fma : peaks->dot;
        printf("  %-7s g%-3u %13.1f %7.0f%% %16.0f %7.0f%%\n", moe_layout_name(layouts[k].kind),
               layouts[k].group, r->decode_bytes * 1e-9, 100 * r->decode_bytes / bandwidth,
               r->prefill_macs * 1e-9, peak > 0 ? 100 * r->prefill_macs / peak : 0.0);
    }
}

int main(int argc, char **argv)
{
    static struct result results[MOE_CPU_N_LEVELS][N_KINDS];
    int threads = argc > 1 ? atoi(argv[1]) : moe_cores_available();
    uint64_t megabytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 512;
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    prefill_inputs = argc > 4 ? (uint32_t)atoi(argv[4]) : PREFILL_INPUTS;
    if (prefill_inputs == 0 || prefill_inputs > PREFILL_INPUTS) {
        fprintf(stderr, "bench_kernels: INPUTS is 1 to %d\n", PREFILL_INPUTS);
        return 2;
    }
    struct bench_peaks peaks[MOE_CPU_N_LEVELS] = {{0, 0}};
    struct moe_err err = {0};
    double read_one = 0, read_all = 0;

    if (allocate(megabytes << 20, &err) != MOE_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 1;
    }
    moe_par_set_threads(threads);
    fill();
    for (int round = 0; round < rounds; round++)
        for (int level = MOE_CPU_SCALAR + 1; level < MOE_CPU_N_LEVELS; level++) {
            if (moe_kern_select((enum moe_cpu_level)level, NULL) != MOE_OK)
                continue;
            better(&read_one, bench_read_rate(weights, weight_bytes, 1));
            better(&read_all, bench_read_rate(weights, weight_bytes, threads));
            struct bench_peaks now = bench_peaks((enum moe_cpu_level)level, threads);
            better(&peaks[level].fma, now.fma);
            better(&peaks[level].dot, now.dot);
            for (int k = 0; k < N_KINDS; k++)
                measure(layouts[k], &results[level][k]);
        }
    printf("streaming read: %.1f GB/s with 1 thread, %.1f GB/s with %d\n", read_one * 1e-9,
           read_all * 1e-9, threads);
    for (int level = MOE_CPU_SCALAR + 1; level < MOE_CPU_N_LEVELS; level++)
        if (results[level][0].decode_bytes > 0)
            print_level((enum moe_cpu_level)level, results[level], read_all, &peaks[level]);
    return 0;
}
