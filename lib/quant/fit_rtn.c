#include "quant/fit.h"
#include "quant/quantize.h"

/* m is rounded down and d up, so that every weight lies between the first and the last level and
 * no error exceeds d / 2. Levels that f16 holds exactly are recovered. */
void moe_quant_fit_rtn(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                       uint8_t *codes)
{
    float low, high, top = (float)((1 << bits) - 1);
    moe_fit_range(w, n, &low, &high);
    *m = moe_f16_down(low);
    *d = moe_fit_scale(high - moe_f16_to_f32(*m), top);
    moe_fit_codes(w, n, moe_f16_to_f32(*d), moe_f16_to_f32(*m), 0, top, codes);
}
