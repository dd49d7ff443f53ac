#include "quant/fit.h"
#include "quant/quantize.h"

/* The code of zero is 2^(bits-1) and m = -2^(bits-1) * d, exact in f16 because a power of two
 * only moves the exponent: a weight of zero stays exactly zero. The lowest code is never used,
 * which makes the levels symmetric. */
void moe_quant_fit_linear(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                          uint8_t *codes)
{
    float low, high, zero = (float)(1 << (bits - 1));
    moe_fit_range(w, n, &low, &high);
    float largest = high > -low ? high : -low;
    *d = moe_fit_scale(largest, zero - 1);
    float scale = moe_f16_to_f32(*d);
    *m = *d ? moe_f32_to_f16(-zero * scale) : 0;
    /* Where every weight is zero, d is zero too, and the codes stay those of zero. */
    moe_fit_codes(w, n, scale, -zero * scale, *d ? 1 : zero, 2 * zero - 1, codes);
}
