/* Detects the instruction sets of this processor. */
#include "base/cpu.h"

#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>

/* clang's __builtin_cpu_supports does not know "f16c". */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

bool moe_cpu_supports(enum moe_cpu_level level)
{
    switch (level) {
    case MOE_CPU_SCALAR:
        return true;
#if defined(__x86_64__)
    case MOE_CPU_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case MOE_CPU_AVX512:
        return moe_cpu_supports(MOE_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
    case MOE_CPU_NEON:
        return true;
    case MOE_CPU_NEON_DOT:
#if defined(__linux__)
        return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
        return false;
#endif
#endif
    default:
        return false;
    }
}

enum moe_cpu_level moe_cpu_detect(void)
{
    for (int level = MOE_CPU_N_LEVELS - 1; level > MOE_CPU_SCALAR; level--)
        if (moe_cpu_supports((enum moe_cpu_level)level))
            return (enum moe_cpu_level)level;
    return MOE_CPU_SCALAR;
}

static const char *const level_names[MOE_CPU_N_LEVELS] = {"scalar", "neon", "neon-dot", "avx2",
                                                          "avx512"};

const char *moe_cpu_level_name(enum moe_cpu_level level)
{
    return (unsigned)level < MOE_CPU_N_LEVELS ? level_names[level] : "?";
}

int moe_cpu_level_parse(const char *name)
{
    for (int i = 0; i < MOE_CPU_N_LEVELS; i++)
        if (strcmp(name, level_names[i]) == 0)
            return i;
    return -1;
}
