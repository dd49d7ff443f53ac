/* AArch64 with SDOT: the quantized panels; kern_neon.c has everything else. */
#include "kern/kern_panel.h"

#if defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)

#include "kern/kern_neon.h"

enum { PART = 4 /* inputs computed at a time: 16 sums */ };

/* One quad of columns for all rows and inputs. */
MOE_TEMPLATE void dot_quad(int kind, int nt, int n, const uint8_t *step, const uint8_t *plane,
                           int s, const int8_t *q, int32x4_t sum[PART][4])
{
    int8x16_t w[4];
    MOE_UNROLL
    for (int h = 0; h < 4; h++)
        w[h] = quad(kind, step, plane, s, h);
    MOE_UNROLL
    for (int t = 0; t < n; t++) {
        int32_t word;
        memcpy(&word, q + (s * nt + t) * 4, 4);
        int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(word));
        MOE_UNROLL
        for (int h = 0; h < 4; h++)
            sum[t][h] = vdotq_s32(sum[t][h], w[h], v);
    }
}

/* Sums of the columns of scale number p of a block into sum[t][h]. */
MOE_TEMPLATE void scale_sums(int kind, int nt, int n, uint32_t block, const uint8_t *codes, int p,
                             const struct moe_tile *in, int32x4_t sum[PART][4])
{
    const int quads = moe_scale_quads(kind);
    const int8_t *q = in->q;
    const uint8_t *plane = codes + block / MOE_STEP * moe_step_bytes(kind);
    MOE_UNROLL
    for (int t = 0; t < n; t++) {
        int32x4_t start = sums_start(kind, &in->sum[t], p);
        MOE_UNROLL
        for (int h = 0; h < 4; h++)
            sum[t][h] = start;
    }
    for (uint32_t step = 0; step < block / MOE_STEP; step++) {
        MOE_UNROLL
        for (int s = p * quads; s < (p + 1) * quads; s++)
            dot_quad(kind, nt, n, codes, plane, s, q, sum);
        codes += moe_step_bytes(kind);
        plane += moe_high_step_bytes(kind);
        q += MOE_STEP * nt;
    }
}

MOE_NEON_QUANT_BODY(PART)
MOE_PANEL_BLOCKS
MOE_PANEL_QUANTS(MOE_PANEL_EACH_QUANT)

void moe_kern_fill_neon_dot(struct moe_kern *kern)
{
    fill_quant_panels(kern);
}

#else

void moe_kern_fill_neon_dot(struct moe_kern *kern)
{
    (void)kern;
}

#endif
