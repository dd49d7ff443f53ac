/*
 * What the machine can do at most: bytes read per second, and multiply-adds per second of loops
 * that touch registers only. The yardsticks of the benchmarks; included by each of them, which is
 * one file.
 */
#ifndef TESTS_BENCH_BENCH_PEAKS_H
#define TESTS_BENCH_BENCH_PEAKS_H

#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/par.h"
#include "tune/device_bench.h"

struct bench_peaks {
    double fma; /* f32 multiply-adds per second, all threads together; 0 unknown */
    double dot; /* multiply-adds of bytes into exact sums */
};

enum { PEAK_ROUNDS = 1 << 20, PEAK_SUMS = 10 /* independent chains: more than the latency */ };

static volatile uint64_t bench_sink; /* results go here so that they are computed */

/* ---- Streaming read ---- */

/* One timed pass over the bytes (a multiple of 256), in bytes per second. */
static double bench_read_rate(uint8_t *data, uint64_t bytes, int threads)
{
    int before = moe_par_threads();
    moe_par_set_threads(threads);
    double rate = moe_read_rate(data, bytes);
    moe_par_set_threads(before);
    return rate;
}

/* ---- Arithmetic ---- */

#if defined(__x86_64__)
#include <immintrin.h>

/* The empty asm keeps a sum in a register and from being computed in advance. */
#define BENCH_PEAK_LOOP(NAME, TARGET, TYPE, ZERO, STEP)                                            \
    __attribute__((target(TARGET))) static void NAME(void *ctx, int64_t begin, int64_t end,        \
                                                     int thread)                                   \
    {                                                                                              \
        TYPE x = ZERO, y = x, all = x, sum[PEAK_SUMS];                                             \
        (void)ctx, (void)begin, (void)end, (void)thread;                                           \
        __asm__("" : "+v"(x), "+v"(y));                                                            \
        _Pragma("GCC unroll 16") for (int k = 0; k < PEAK_SUMS; k++) sum[k] = ZERO;                \
        for (int i = 0; i < PEAK_ROUNDS; i++) {                                                    \
            _Pragma("GCC unroll 16") for (int k = 0; k < PEAK_SUMS; k++)                           \
            {                                                                                      \
                STEP;                                                                              \
                __asm__("" : "+v"(sum[k]), "+v"(x));                                               \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int k = 0; k < PEAK_SUMS; k++) all += sum[k];                \
        bench_sink = (uint64_t)all[0];                                                             \
    }

#define BENCH_512 "avx512f,avx512bw,avx512vl,avx512vnni"
BENCH_PEAK_LOOP(bench_fma_512, BENCH_512, __m512, _mm512_setzero_ps(),
                sum[k] = _mm512_fmadd_ps(x, y, sum[k]))
BENCH_PEAK_LOOP(bench_dot_512, BENCH_512, __m512i, _mm512_setzero_si512(),
                sum[k] = _mm512_dpbusd_epi32(sum[k], x, y))
BENCH_PEAK_LOOP(bench_fma_256, "avx2,fma", __m256, _mm256_setzero_ps(),
                sum[k] = _mm256_fmadd_ps(x, y, sum[k]))
BENCH_PEAK_LOOP(bench_dot_256, "avx2,fma", __m256i, _mm256_setzero_si256(),
                sum[k] = _mm256_add_epi16(sum[k], _mm256_maddubs_epi16(x, y)))

static double bench_peak_rate(void (*loop)(void *, int64_t, int64_t, int), int macs, int threads)
{
    int before = moe_par_threads();
    moe_par_set_threads(threads);
    double start = moe_seconds();
    moe_par_for(threads, 1, loop, NULL);
    double seconds = moe_seconds() - start;
    moe_par_set_threads(before);
    return (double)threads * PEAK_ROUNDS * PEAK_SUMS * macs / seconds;
}

/* One short run of both loops with the instructions of `level`. */
static struct bench_peaks bench_peaks(enum moe_cpu_level level, int threads)
{
    if (level == MOE_CPU_AVX512)
        return (struct bench_peaks){bench_peak_rate(bench_fma_512, 16, threads),
                                    bench_peak_rate(bench_dot_512, 64, threads)};
    return (struct bench_peaks){bench_peak_rate(bench_fma_256, 8, threads),
                                bench_peak_rate(bench_dot_256, 32, threads)};
}

#else

static struct bench_peaks bench_peaks(enum moe_cpu_level level, int threads)
{
    (void)level, (void)threads;
    return (struct bench_peaks){0, 0};
}

#endif
#endif
