/*
 * Levels of instruction sets, and which of them this processor supports.
 */
#ifndef MOE_BASE_CPU_H
#define MOE_BASE_CPU_H

#include <stdbool.h>

/* Rising order on each architecture; a level includes those below it on the same one. */
enum moe_cpu_level {
    MOE_CPU_SCALAR = 0, /* plain C */
    MOE_CPU_NEON,       /* AArch64 baseline */
    MOE_CPU_NEON_DOT,   /* AArch64 with the dot-product extension (SDOT) */
    MOE_CPU_AVX2,       /* AVX2, FMA, F16C */
    MOE_CPU_AVX512,     /* AVX-512 F, BW, VL, DQ and VNNI */
    MOE_CPU_N_LEVELS
};

/* The highest level this machine supports. */
enum moe_cpu_level moe_cpu_detect(void);
/* True when this machine can run code of `level`. */
bool moe_cpu_supports(enum moe_cpu_level level);
/* "scalar", "neon", "neon-dot", "avx2", "avx512"; never NULL. */
const char *moe_cpu_level_name(enum moe_cpu_level level);
/* The level of that name, or -1. */
int moe_cpu_level_parse(const char *name);

/* Put before a function: also compiles it for wider vectors; the loader picks one. Results are
 * bit-identical where every lane does the same operations in the same order and nothing is
 * contracted. Sanitizers start too late for the loader's choice. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) &&                        \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MOE_CLONES
#endif

#endif
