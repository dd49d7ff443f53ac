/* Chooses the kernels that this processor can run. */
#include "kern/kern_panel.h"

struct moe_kern moe_kern;

/* Before main, so that also programs of others that know nothing of levels compute as fast as this
 * processor can. */
__attribute__((constructor)) static void start_with_the_best(void)
{
    moe_kern_fill(&moe_kern, moe_cpu_detect(), NULL);
}

int moe_kern_layout_index(uint16_t kind)
{
#define INDEXED(kind) MOE_LAYOUT_##kind,
    static const uint16_t kinds[MOE_N_LAYOUTS] = {MOE_PANEL_EACH_FLOAT(INDEXED)
                                                      MOE_PANEL_EACH_QUANT(INDEXED)};
#undef INDEXED
    const int base = moe_kind_is_f8(kind) ? MOE_LAYOUT_F8 : moe_kind_base(kind);
    for (int i = 0; i < MOE_N_LAYOUTS; i++)
        if (kinds[i] == base)
            return i;
    return -1;
}

/* From low to high within an architecture: each overwrites slots of those below it. */
static const struct {
    enum moe_cpu_level level;
    void (*fill)(struct moe_kern *kern);
} variants[] = {
    {MOE_CPU_SCALAR, moe_kern_fill_ref},        {MOE_CPU_NEON, moe_kern_fill_neon},
    {MOE_CPU_NEON_DOT, moe_kern_fill_neon_dot}, {MOE_CPU_AVX2, moe_kern_fill_avx2},
    {MOE_CPU_AVX512, moe_kern_fill_avx512},
};

int moe_kern_fill(struct moe_kern *kern, enum moe_cpu_level level, struct moe_err *err)
{
    if (!moe_cpu_supports(level))
        return moe_fail(err, MOE_ERR_DEVICE, "this processor has no %s instructions",
                        moe_cpu_level_name(level));
    for (unsigned i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (variants[i].level <= level && moe_cpu_supports(variants[i].level))
            variants[i].fill(kern);
    kern->level = level;
    return MOE_OK;
}

int moe_kern_select(enum moe_cpu_level level, struct moe_err *err)
{
    return moe_kern_fill(&moe_kern, level, err);
}
