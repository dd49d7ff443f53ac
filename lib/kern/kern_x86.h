/* What the AVX2 and the AVX-512 variant have in common: prefetching; powers of TQ1_0; scales of
 * kinds with a grid, of 16 rows. */
#ifndef MOE_KERN_KERN_X86_H
#define MOE_KERN_KERN_X86_H

#include <immintrin.h>

#include "kern/kern_panel.h"

MOE_TEMPLATE __m128i sixteen_bytes(const uint8_t *bytes)
{
    return _mm_loadu_si128((const __m128i *)bytes);
}

/* Prefetches the lines of `bytes` bytes. */
MOE_TEMPLATE void fetch_lines(const uint8_t *from, uint32_t bytes)
{
    MOE_UNROLL
    for (uint32_t at = 0; at < bytes; at += MOE_UNIT)
        _mm_prefetch((const char *)from + at, _MM_HINT_T0);
}

/* Bytes of the head of a full record. */
MOE_TEMPLATE uint32_t full_head_bytes(int kind)
{
    return moe_kind_head_bytes(kind, moe_kind_record(kind) * moe_kind_span_blocks(kind));
}

/* What a byte of TQ1_0 is multiplied by to begin with its digit k. */
MOE_TEMPLATE int16_t ternary_power(uint32_t k)
{
    return k == 0 ? 1 : k == 1 ? 3 : k == 2 ? 9 : k == 3 ? 27 : 81;
}

/* moe_grid_scale of all rows, in kinds that have it in the head: scale number p of block b of a
 * span whose numbers lie at `numbers`. */
MOE_TEMPLATE __m128i grid_scale_bytes(int kind, const uint8_t *numbers, uint32_t b, int p)
{
    const __m128i one = _mm_set1_epi8(1), two = _mm_set1_epi8(2), four = _mm_set1_epi8(4);
    __m128i s, high;
    if (kind == MOE_LAYOUT_IQ1_S) {
        s = sixteen_bytes(numbers + 2 * b * MOE_PANEL_ROWS);
        high = sixteen_bytes(numbers + (2 * b + 1) * MOE_PANEL_ROWS);
        s = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(s, 3), one),
                         _mm_and_si128(_mm_srli_epi16(s, 6), two));
        return _mm_or_si128(s, _mm_and_si128(_mm_srli_epi16(high, 1), four));
    }
    if (kind == MOE_LAYOUT_IQ1_M) {
        s = sixteen_bytes(numbers + b / 2 * MOE_PANEL_ROWS);
        high = sixteen_bytes(numbers + (4 + b / 4) * MOE_PANEL_ROWS);
        s = _mm_srl_epi16(s, _mm_cvtsi32_si128((int)(b % 2) * 4 + 2 * p));
        high = _mm_srl_epi16(high, _mm_cvtsi32_si128((int)(b % 4) * 2 + p));
        return _mm_or_si128(_mm_and_si128(s, _mm_or_si128(one, two)),
                            _mm_and_si128(_mm_slli_epi16(high, 2), four));
    }
    if (kind == MOE_LAYOUT_IQ3_S) {
        s = sixteen_bytes(numbers + b / 2 * MOE_PANEL_ROWS);
        s = _mm_srl_epi16(s, _mm_cvtsi32_si128((int)(b % 2) * 4));
    } else {
        s = _mm_srli_epi16(sixteen_bytes(numbers + b * MOE_PANEL_ROWS), 4 * p);
    }
    return _mm_and_si128(s, _mm_set1_epi8(15));
}

#endif
