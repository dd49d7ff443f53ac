/*
 * AVX2 with FMA and F16C: a panel's 16 rows are two registers of 8.
 *
 * There are 16 registers, so a tile is computed in parts of at most 4 inputs. Codes times
 * activations: vpmaddubsw adds two products of an unsigned and a signed byte in 16 bits and
 * saturates. All its uses here are exact:
 *
 *   codes of up to 6 bits  as many pairs of 2 * (2^bits - 1) * 127 as 16 bits hold: 8 of 4 bits
 *                          (30480), 4 of 5 (31496), 2 of 6 (32004).
 *   e2m1                   numbers plus 12, unsigned: 4 pairs of 2 * 24 * 127 are 24384.
 *   codes of 8 bits, iq4,  as signed numbers, with their signs moved to the activations: one pair
 *   IQ5_K, IQ6_K           of 2 * 128 * 127 is 32512.
 *
 * Sums correct for what was added to numbers by multiples of the sum of the activations.
 *
 * One input: weights are prefetched 2 KB ahead. Without that, a Zen 3 (EPYC) reads them at 65-85%
 * of a plain streaming read per core, with it at 90-100%; f32, which needs the least arithmetic,
 * gets slower by it. Tried and dropped for 8 bits: low and high halves of the codes apart, in
 * 16-bit sums, which was no faster for many inputs and slower for one.
 */
#include "kern/kern_math.h"
#include "kern/kern_panel.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include "kern/kern_x86.h"

enum {
    PART = 4,     /* inputs computed at a time */
    AHEAD = 2048, /* bytes; less is too late, more is dropped */
};

/* ---- Panels ---- */

MOE_TEMPLATE __m128i eight_bytes(const uint8_t *bytes)
{
    return _mm_loadl_epi64((const __m128i *)bytes);
}

/* Rows 8h to 8h + 7 of column `c` of a panel of the KV cache's codes. */
MOE_TEMPLATE __m256 cell_column(int kind, const uint8_t *panel, const float *scales, uint32_t c,
                                int h)
{
    const uint8_t *at = moe_cells_at(kind, panel, c) + (kind == MOE_LAYOUT_VALUES_Q4 ? 0 : 8 * h);
    const bool keys = moe_cells_are_keys(kind);
    __m128i codes = _mm_loadl_epi64((const __m128i *)at);
    if (kind == MOE_LAYOUT_VALUES_Q4 && h)
        codes = _mm_srli_epi16(codes, 4);
    if (kind == MOE_LAYOUT_KEYS_Q4)
        codes = _mm_srl_epi16(codes, _mm_cvtsi32_si128((int)(c % 2) * 4));
    if (moe_cells_have_four(kind))
        codes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)moe_iq4_numbers),
                                 _mm_and_si128(codes, _mm_set1_epi8(15)));
    __m256 scale = keys ? _mm256_loadu_ps(scales + c / 32 * 16 + 8 * h) : _mm256_set1_ps(scales[c]);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale);
}

/* Bytes 0 of sixteen numbers, then their bytes 1, 2 and 3. */
MOE_TEMPLATE void byte_planes(const float *numbers, __m256i planes[4])
{
    const __m128i gather = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i four[4];
    for (int i = 0; i < 4; i++)
        four[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)numbers + i), gather);
    __m128i low = _mm_unpacklo_epi32(four[0], four[1]), high = _mm_unpacklo_epi32(four[2], four[3]);
    planes[0] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(low, high));
    planes[1] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(low, high));
    low = _mm_unpackhi_epi32(four[0], four[1]), high = _mm_unpackhi_epi32(four[2], four[3]);
    planes[2] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(low, high));
    planes[3] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(low, high));
}

/* How many columns of a kind scaled_columns() takes at a time. */
MOE_TEMPLATE int columns_at_once(int kind)
{
    return moe_kind_is_scaled(kind) && moe_scaled_bits(kind) == 4 ? 4 : 1;
}

/* Columns of a scaled kind without their scales: of F8 as f16, of 4 bits by the byte planes of the
 * kind's numbers. */
MOE_TEMPLATE void scaled_columns(int kind, const uint8_t *at, const __m256i planes[4],
                                 __m256 w[4][2])
{
    if (kind == MOE_LAYOUT_I8) {
        for (int h = 0; h < 2; h++)
            w[0][h] = _mm256_cvtepi32_ps(
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(at + 8 * h))));
        return;
    }
    if (moe_kind_is_f8(kind)) {
        __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen_bytes(at)), 7);
        half = _mm256_and_si256(half, _mm256_set1_epi16((short)0xbfff));
        w[0][0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
        w[0][1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
        return;
    }
    /* Rows 0 to 3 of all columns go to the low half, rows 4 to 7 to the high one. */
    __m256i codes = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)at),
                                                _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    MOE_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i four =
            _mm256_and_si256(h ? _mm256_srli_epi16(codes, 4) : codes, _mm256_set1_epi8(15));
        __m256i byte[4], low[2], high[2];
        MOE_UNROLL
        for (int i = 0; i < 4; i++)
            byte[i] = _mm256_shuffle_epi8(planes[i], four);
        MOE_UNROLL
        for (int i = 0; i < 2; i++) {
            low[i] = _mm256_unpacklo_epi8(byte[2 * i], byte[2 * i + 1]);
            high[i] = _mm256_unpackhi_epi8(byte[2 * i], byte[2 * i + 1]);
        }
        w[0][h] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low[0], low[1]));
        w[1][h] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low[0], low[1]));
        w[2][h] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(high[0], high[1]));
        w[3][h] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(high[0], high[1]));
    }
}

/* Rows 8h..8h+7 of the scales of the group from column `first` on. */
MOE_TEMPLATE __m256 scaled_scale(int kind, struct moe_layout layout, const uint8_t *panel,
                                 uint32_t first, int h)
{
    const float *at = (const float *)panel + moe_scaled_place(layout, first, 0);
    __m256 scale =
        layout.kind == MOE_LAYOUT_F8_B ? _mm256_set1_ps(*at) : _mm256_loadu_ps(at + 8 * h);
    return _mm256_mul_ps(scale, _mm256_set1_ps(moe_scaled_unit(kind)));
}

/* Rows 8h..8h+7 of column `c` of a float panel that is not scaled. */
MOE_TEMPLATE __m256 float_column(int kind, const uint8_t *panel, const float *scales, uint32_t c,
                                 int h)
{
    if (moe_cells_any(kind))
        return cell_column(kind, panel, scales, c, h);
    const uint8_t *at = moe_float_at(kind, panel, c, 8 * h);
    if (kind == MOE_LAYOUT_F32)
        return _mm256_loadu_ps((const float *)at);
    __m128i half = _mm_loadu_si128((const __m128i *)at);
    if (kind == MOE_LAYOUT_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Computes the first n inputs at x, in a tile of nt, with np panels, one behind the other. */
MOE_TEMPLATE void float_part(int kind, int np, int nt, int n, const uint8_t *panel,
                             struct moe_layout layout, const float *scales, uint32_t cols,
                             const float *x, float *y, uint64_t y_stride)
{
    const bool scaled = moe_kind_is_scaled(kind);
    const int columns = columns_at_once(kind), step = scaled ? 4 : 1;
    const uint64_t bytes = np > 1 ? moe_layout_panel_bytes(layout, cols) : 0;
    const uint8_t *codes = scaled ? panel + moe_scaled_front(layout, cols) : panel;
    __m256 sum[PART][2], scale[PART][2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()}};
    __m256i planes[4];
    if (kind == MOE_LAYOUT_NF4 || kind == MOE_LAYOUT_FP4)
        byte_planes(kind == MOE_LAYOUT_NF4 ? moe_nf4_numbers : moe_fp4_numbers, planes);
    MOE_UNROLL
    for (int i = 0; i < np * n; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    for (uint32_t first = 0, end; first < cols; first = end) {
        end = moe_scaled_end(kind, layout, first, cols);
        MOE_UNROLL
        for (int p = 0; scaled && p < np; p++)
            for (int h = 0; h < 2; h++)
                scale[p][h] = scaled_scale(kind, layout, panel + p * bytes, first, h);
        for (uint32_t c = first; c < end; c += step, x += step * nt) {
            MOE_UNROLL
            for (int p = 0; p < np; p++) {
                const uint8_t *of = codes + p * bytes;
                __m256 w[4][2];
                if (nt == 1 && kind != MOE_LAYOUT_F32 &&
                    !moe_cells_any(kind)) /* f32 is faster without */
                    _mm_prefetch((const char *)moe_float_at(kind, of, c, 0) + AHEAD, _MM_HINT_T0);
                MOE_UNROLL
                for (int i = 0; i < step; i++)
                    for (int h = 0; h < 2; h++) {
                        const int at = scaled ? i % columns : 0;
                        if (scaled && at == 0 && h == 0)
                            scaled_columns(kind, moe_float_at(kind, of, c + i, 0), planes, w);
                        w[at][h] = scaled ? _mm256_mul_ps(w[at][h], scale[p][h])
                                          : float_column(kind, of, scales, c, h);
                        MOE_UNROLL
                        for (int t = 0; t < n; t++)
                            sum[p * n + t][h] = _mm256_fmadd_ps(
                                w[at][h], _mm256_set1_ps(x[i * nt + t]), sum[p * n + t][h]);
                    }
            }
        }
    }
    MOE_UNROLL
    for (int i = 0; i < np * n; i++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(y + i / n * MOE_PANEL_ROWS + i % n * y_stride + 8 * h, sum[i][h]);
}

MOE_TEMPLATE void float_panel(int kind, int nt, MOE_PANEL_PARAMS)
{
    const int n = nt < PART ? nt : PART;
    for (int t = 0; t < nt; t += n)
        float_part(kind, 1, nt, n, panel, layout, tile->s, cols, tile->x + t, y + t * y_stride,
                   y_stride);
}

MOE_TEMPLATE void float_few(int kind, int nt, MOE_PANEL_PARAMS)
{
    float_part(kind, MOE_FEW_PANELS, nt, nt, panel, layout, tile->s, cols, tile->x, y, y_stride);
}

/* Whether quad() gives signed numbers (of Q8 the code less 128), or unsigned ones: codes, or
 * numbers moved up. */
MOE_TEMPLATE bool is_wide(int kind)
{
    return kind != MOE_LAYOUT_IQ2_KL && (moe_code_plane(kind) == 8 || moe_kind_least(kind) < -63);
}

/* What quad() adds to the number of a code. */
MOE_TEMPLATE int number_offset(int kind)
{
    if (is_wide(kind))
        return kind == MOE_LAYOUT_Q8 ? -128 : moe_kind_is_trellis(kind) ? 126 - 128 : 0;
    return moe_kind_zero(kind) - moe_kind_least(kind);
}

/* Numbers of codes 16 i to 16 i + 15, by the low four bits of `codes`, plus their offset. */
MOE_TEMPLATE __m256i sixteen_numbers(int kind, int i, __m256i codes)
{
    __m128i numbers = _mm_loadu_si128((const __m128i *)moe_kind_numbers(kind) + i);
    numbers = _mm_add_epi8(numbers, _mm_set1_epi8((char)number_offset(kind)));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(numbers), codes);
}

/* Of codes with that bit the second: it goes to the top of bytes. */
MOE_TEMPLATE __m256i pick_by_bit(__m256i codes, int bit, __m256i first, __m256i second)
{
    return _mm256_blendv_epi8(first, second, _mm256_slli_epi16(codes, 7 - bit));
}

/* Numbers of the codes of kinds with a table, plus their offset. */
MOE_TEMPLATE __m256i table_numbers(int kind, __m256i codes)
{
    __m256i low = sixteen_numbers(kind, 0, codes), high;
    if (moe_kind_is_iq5k(kind) || kind == MOE_LAYOUT_IQ6_K)
        low = pick_by_bit(codes, 4, low, sixteen_numbers(kind, 1, codes));
    if (kind != MOE_LAYOUT_IQ6_K)
        return low;
    high = pick_by_bit(codes, 4, sixteen_numbers(kind, 2, codes), sixteen_numbers(kind, 3, codes));
    return pick_by_bit(codes, 5, low, high);
}

/* `bits` bits from bit `from` of each byte on, moved to bit `to` of a byte. */
MOE_TEMPLATE __m256i take_bits(__m256i bytes, int bits, int from, int to)
{
    __m256i moved = from < to   ? _mm256_slli_epi16(bytes, to - from)
                    : from > to ? _mm256_srli_epi16(bytes, from - to)
                                : bytes;
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)(((1 << bits) - 1) << to)));
}

/* Rows 8h..8h+7 of quad `s` (columns 4s..4s+3) of a step: a byte per code. */
MOE_TEMPLATE __m256i quad(int kind, const uint8_t *step, const uint8_t *plane, int s, int h)
{
    if (moe_kind_scale_unit(kind) > 0) /* grid_panel() has made numbers of them */
        return _mm256_loadu_si256((const __m256i *)step + 2 * s + h);
    const int bits = moe_code_plane(kind), n = 8 / bits; /* quads in a unit */
    const int more = moe_code_high_plane(kind);
    __m256i codes = _mm256_loadu_si256((const __m256i *)(step + s / n * MOE_UNIT) + h);
    if (bits == 8)
        return is_wide(kind) ? _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) : codes;
    codes = take_bits(codes, bits, s % n * bits, 0);
    if (more) {
        const int columns = 8 / more;
        __m256i high = _mm256_loadu_si256((const __m256i *)(plane + s / columns * MOE_UNIT) + h);
        codes = _mm256_or_si256(codes,
                                take_bits(high, more, s % columns * more, moe_code_high_at(kind)));
    }
    return moe_kind_numbers(kind) ? table_numbers(kind, codes) : codes;
}

MOE_TEMPLATE __m256i four_activations(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, 4);
    return _mm256_set1_epi32(word);
}

/* Hides how a sum was made, by an empty asm: otherwise the compiler turns all additions of a step
 * into a tree, which needs more registers than there are. */
MOE_TEMPLATE __m256i so_far(__m256i sum)
{
    __asm__("" : "+x"(sum));
    return sum;
}

/* With a single input, prefetches the weights AHEAD bytes after quad `s`: reading is then the
 * limit, and the processor's own prefetcher does not look far enough ahead. */
MOE_TEMPLATE void read_ahead(int kind, int nt, const uint8_t *step, int s)
{
    const int quads = MOE_STEP_QUADS * MOE_UNIT / (int)moe_step_bytes(kind); /* of a unit */
    if (nt == 1 && s % quads == 0 && !moe_kind_is_grouped(kind))
        _mm_prefetch((const char *)step + s / quads * MOE_UNIT + AHEAD, _MM_HINT_T0);
}

/* The same for what lies behind the first plane of block b of a record, or of grouped kinds for all
 * of it, from which codes are made elsewhere; and for large heads. */
MOE_TEMPLATE void read_rest_ahead(int kind, int nt, uint32_t block, const struct moe_record *record,
                                  uint32_t b)
{
    const uint32_t plane = moe_kind_is_grouped(kind) ? 0 : block / MOE_STEP * moe_step_bytes(kind);
    if (nt > 1)
        return;
    if (b == 0 && moe_kind_span(kind) == MOE_MAX_SPAN)
        fetch_lines(record->head + AHEAD, full_head_bytes(kind));
    fetch_lines(record->codes + plane + AHEAD, moe_kind_block_bytes(kind, block) - plane);
}

/* Adds quads [begin, end) of a step of unsigned numbers to sum[t][h]. */
MOE_TEMPLATE void step_narrow(int kind, int nt, int n, const uint8_t *step, const uint8_t *plane,
                              int begin, int end, const int8_t *q, __m256i sum[PART][2])
{
    const int largest = moe_kind_least(kind)
                            ? -2 * moe_kind_least(kind)
                            : (1 << (moe_code_plane(kind) + moe_code_high_plane(kind))) - 1;
    const int fit = largest <= 15   ? 8
                    : largest <= 31 ? 4
                    : largest <= 64 ? 2
                                    : 1; /* into 16 bits */
    const int rounds = fit < end - begin ? fit : end - begin;
    const __m256i ones = _mm256_set1_epi16(1);
    MOE_UNROLL
    for (int first = begin; first < end; first += rounds) {
        __m256i pairs[PART][2];
        MOE_UNROLL
        for (int t = 0; t < n; t++)
            pairs[t][0] = pairs[t][1] = _mm256_setzero_si256();
        MOE_UNROLL
        for (int s = first; s < first + rounds; s++) {
            read_ahead(kind, nt, step, s);
            __m256i w0 = quad(kind, step, plane, s, 0);
            __m256i w1 = quad(kind, step, plane, s, 1);
            MOE_UNROLL
            for (int t = 0; t < n; t++) {
                __m256i v = four_activations(q + (s * nt + t) * 4);
                pairs[t][0] = so_far(_mm256_add_epi16(pairs[t][0], _mm256_maddubs_epi16(w0, v)));
                pairs[t][1] = so_far(_mm256_add_epi16(pairs[t][1], _mm256_maddubs_epi16(w1, v)));
            }
        }
        MOE_UNROLL
        for (int t = 0; t < n; t++)
            for (int h = 0; h < 2; h++)
                sum[t][h] = _mm256_add_epi32(sum[t][h], _mm256_madd_epi16(pairs[t][h], ones));
    }
}

/* The same of signed numbers. */
MOE_TEMPLATE void step_wide(int kind, int nt, int n, const uint8_t *step, const uint8_t *plane,
                            int begin, int end, const int8_t *q, __m256i sum[PART][2])
{
    const __m256i ones = _mm256_set1_epi16(1);
    MOE_UNROLL
    for (int s = begin; s < end; s++) {
        read_ahead(kind, nt, step, s);
        __m256i w[2], magnitude[2];
        MOE_UNROLL
        for (int h = 0; h < 2; h++) {
            w[h] = quad(kind, step, plane, s, h);
            magnitude[h] = _mm256_abs_epi8(w[h]);
        }
        MOE_UNROLL
        for (int t = 0; t < n; t++) {
            __m256i v = four_activations(q + (s * nt + t) * 4);
            MOE_UNROLL
            for (int h = 0; h < 2; h++) {
                __m256i pairs = _mm256_maddubs_epi16(magnitude[h], _mm256_sign_epi8(v, w[h]));
                sum[t][h] = so_far(_mm256_add_epi32(sum[t][h], _mm256_madd_epi16(pairs, ones)));
            }
        }
    }
}

/* Sums of the columns of scale number p of a block into sum[t][h]. */
MOE_TEMPLATE void scale_sums(int kind, int nt, int n, uint32_t block, const uint8_t *codes, int p,
                             const struct moe_tile *in, __m256i sum[PART][2])
{
    const uint8_t *plane = codes + block / MOE_STEP * moe_step_bytes(kind);
    const int quads = moe_scale_quads(kind);
    const int8_t *q = in->q;
    MOE_UNROLL
    for (int t = 0; t < n; t++)
        sum[t][0] = sum[t][1] =
            number_offset(kind)
                ? _mm256_set1_epi32(moe_scale_less(kind, &in->sum[t], p, number_offset(kind)))
                : _mm256_setzero_si256();
    for (uint32_t step = 0; step < block / MOE_STEP; step++) {
        if (is_wide(kind))
            step_wide(kind, nt, n, codes, plane, p * quads, (p + 1) * quads, q, sum);
        else
            step_narrow(kind, nt, n, codes, plane, p * quads, (p + 1) * quads, q, sum);
        if (block > MOE_STEP) {
            codes += moe_step_bytes(kind);
            plane += moe_high_step_bytes(kind);
        }
        q += MOE_STEP * nt;
    }
}

MOE_TEMPLATE __m256 half_scales(const uint8_t *f16)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)f16));
}

/* moe_kind_packed_number of the rows whose bytes begin at `numbers`. */
MOE_TEMPLATE __m256i packed_number(int kind, const uint8_t *numbers, uint32_t i)
{
    const int more = moe_kind_packed_high(kind);
    __m128i low = eight_bytes(moe_packed_low(numbers, i));
    low = _mm_srl_epi16(low, _mm_cvtsi32_si128((int)(i % 2 * 4)));
    low = _mm_and_si128(low, _mm_set1_epi8(15));
    if (more) {
        __m128i high = eight_bytes(moe_packed_more(kind, numbers, i));
        high = _mm_srl_epi16(high, _mm_cvtsi32_si128(moe_packed_more_at(kind, i)));
        high = _mm_and_si128(_mm_slli_epi16(high, 4), _mm_set1_epi8(more == 2 ? 0x30 : 0x10));
        low = _mm_or_si128(low, high);
    }
    return _mm256_cvtepu8_epi32(low);
}

/* e of a scale, of those rows, where it is in one(n). */
MOE_TEMPLATE __m256i shift_bit(int kind, const uint8_t *numbers, uint32_t i)
{
    __m128i bits =
        eight_bytes(numbers + ((uint32_t)moe_kind_shifts_at(kind) + i / 8) * MOE_PANEL_ROWS);
    bits = _mm_srl_epi16(bits, _mm_cvtsi32_si128((int)(i % 8)));
    return _mm256_cvtepu8_epi32(_mm_and_si128(bits, _mm_set1_epi8(1)));
}

/* d and m of a scale, of rows 8h..8h+7: moe_kind_scale. */
MOE_TEMPLATE void read_scale(int kind, struct moe_place at, int h, __m256 *d, __m256 *m)
{
    const uint8_t *numbers = moe_place_numbers(kind, at) + 8 * h;
    const bool k_min = moe_kind_span(kind) && moe_kind_has_min(kind);
    const int step = moe_kind_scale_step(kind), zero = moe_kind_scale_zero(kind);
    __m256i s, t = _mm256_setzero_si256();
    if (moe_kind_is_e2m1(kind)) {
        s = _mm256_cvtepu8_epi32(eight_bytes(at.head + at.i * MOE_PANEL_ROWS + 8 * h));
        if (kind == MOE_LAYOUT_MXFP4) {
            s = _mm256_max_epu32(_mm256_slli_epi32(s, 23), _mm256_set1_epi32(1 << 22));
            *d = _mm256_mul_ps(_mm256_castsi256_ps(s), _mm256_set1_ps(0.5f));
        } else {
            const __m256i bits =
                _mm256_add_epi32(_mm256_slli_epi32(s, 20), _mm256_set1_epi32(119 << 23));
            const __m256 few = _mm256_mul_ps(_mm256_cvtepi32_ps(s), _mm256_set1_ps(0x1p-10f));
            *d = _mm256_blendv_ps(_mm256_castsi256_ps(bits), few,
                                  _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), s)));
        }
        return;
    }
    *d = moe_kind_has_d(kind) ? half_scales(at.head + 16 * h) : _mm256_set1_ps(1);
    if (moe_kind_has_min(kind))
        *m = half_scales(at.head + 2 * MOE_PANEL_ROWS + 16 * h);
    if (moe_kind_shift(kind) && !moe_kind_scale_has_e(kind))
        t = shift_bit(kind, numbers, at.i);
    if (moe_kind_packed(kind)) {
        s = packed_number(kind, numbers, at.i);
        if (k_min)
            t = packed_number(kind, numbers, 8 + at.i);
    } else if (kind == MOE_LAYOUT_IQ1_KT) {
        s = _mm256_cvtepu8_epi32(eight_bytes(numbers + at.i * MOE_PANEL_ROWS));
        s = _mm256_and_si256(s, _mm256_set1_epi32(15));
    } else if (kind == MOE_LAYOUT_IQ4_KT) {
        s = _mm256_setzero_si256();
        MOE_UNROLL
        for (int j = 3; j >= 0; j--) {
            __m256i word = _mm256_loadu_si256((const __m256i *)(at.codes + j * MOE_UNIT) + h);
            s = _mm256_or_si256(_mm256_slli_epi32(s, 2), _mm256_srli_epi32(word, 30));
        }
        s = _mm256_srli_epi32(s, 1);
    } else if (moe_kind_scale_has_e(kind)) {
        s = _mm256_cvtepu8_epi32(eight_bytes(numbers + at.i * MOE_PANEL_ROWS));
        t = _mm256_and_si256(s, _mm256_set1_epi32(1));
        s = _mm256_srli_epi32(s, 1);
    } else if (kind == MOE_LAYOUT_Q6_K || kind == MOE_LAYOUT_IQ6_K) {
        s = _mm256_cvtepi8_epi32(eight_bytes(numbers + at.i * MOE_PANEL_ROWS));
    } else if (kind == MOE_LAYOUT_Q2_K) {
        s = _mm256_cvtepu8_epi32(eight_bytes(numbers + at.i * MOE_PANEL_ROWS));
        t = _mm256_srli_epi32(s, 4);
        s = _mm256_and_si256(s, _mm256_set1_epi32(15));
    } else {
        return;
    }
    if (kind == MOE_LAYOUT_IQ1_KT ||
        kind == MOE_LAYOUT_IQ2_KT) { /* a table's, of the lowest bytes */
        __m128i table = sixteen_bytes((const uint8_t *)moe_iq4_numbers);
        s = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), s);
        s = _mm256_srai_epi32(_mm256_slli_epi32(s, 24), 24);
    }
    if (step == 2)
        s = _mm256_add_epi32(s, s);
    if (zero)
        s = _mm256_sub_epi32(s, _mm256_set1_epi32(zero));
    *d = _mm256_mul_ps(*d, _mm256_cvtepi32_ps(s));
    if (moe_kind_shift(kind))
        *m = _mm256_mul_ps(
            *d, _mm256_cvtepi32_ps(_mm256_mullo_epi32(t, _mm256_set1_epi32(moe_kind_shift(kind)))));
    else if (k_min)
        *m = _mm256_xor_ps(_mm256_mul_ps(*m, _mm256_cvtepi32_ps(t)), _mm256_set1_ps(-0.0f));
}

/* Makes d and m of the head's d and its zero points, of rows 8h..8h+7: moe_zero_scales. */
MOE_TEMPLATE void read_zeros(const uint8_t *head, int h, __m256 *d, __m256 *m)
{
    const uint8_t *words = head + 2 * MOE_PANEL_ROWS + 16 * h;
    __m256i word = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)words));
    __m256i power = _mm256_sub_epi32(_mm256_set1_epi32(127), _mm256_srli_epi32(word, 9));
    __m256 zero = _mm256_cvtepi32_ps(_mm256_and_si256(word, _mm256_set1_epi32(511)));
    *d = _mm256_mul_ps(*d, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
    *m = _mm256_xor_ps(_mm256_mul_ps(*d, zero), _mm256_set1_ps(-0.0f));
}

/* Starts of groups of rows 8h.., from their word of a unit, and what they have beside it. */
MOE_TEMPLATE __m256i trellis_start(int kind, __m256i word, __m256i more, int g)
{
    const int bits = kind == MOE_LAYOUT_IQ4_KT ? 15 : 16;
    if (kind == MOE_LAYOUT_IQ1_KT) {
        __m256i high = _mm256_srli_epi32(_mm256_slli_epi32(more, 28 - 4 * g), 28);
        __m256i last = _mm256_and_si256(_mm256_srli_epi32(more, 4 + g), _mm256_set1_epi32(1 << 12));
        word = _mm256_srli_epi32(_mm256_slli_epi32(word, 24 - 8 * g), 24);
        more = _mm256_or_si256(_mm256_slli_epi32(high, 8), last);
    } else {
        word = _mm256_srli_epi32(word, g % 2 * bits);
        word = _mm256_and_si256(word, _mm256_set1_epi32((1 << bits) - 1));
    }
    return _mm256_add_epi32(_mm256_or_si256(word, more), _mm256_set1_epi32(4096));
}

/* Sums of the bytes of two columns' numbers, from `powers` on: in the low half of each word of 32
 * bits, two of its quarters apart, which the high half has the rest of. */
MOE_TEMPLATE __m256i trellis_pair(__m256i start, const uint32_t *powers)
{
    __m256i of[2];
    MOE_UNROLL
    for (int k = 0; k < 2; k++) {
        of[k] = _mm256_mullo_epi32(start, _mm256_set1_epi32((int)powers[k]));
        of[k] = _mm256_and_si256(of[k], _mm256_set1_epi8(0x3f));
        of[k] = _mm256_maddubs_epi16(of[k], _mm256_set1_epi8(1));
    }
    return _mm256_add_epi32(of[0], _mm256_slli_epi32(of[1], 8));
}

static const uint32_t trellis_powers[8] = MOE_TRELLIS_POWERS;

/* What the starts of a block's groups have beside the bits of its units, of rows 8h... */
MOE_TEMPLATE __m256i trellis_more(int kind, const uint8_t *head, const uint8_t *codes, uint32_t b,
                                  int h)
{
    __m256i more = _mm256_setzero_si256();
    if (kind == MOE_LAYOUT_IQ1_KT) {
        const uint8_t *at = head + (8 + 2 * b) * MOE_PANEL_ROWS + 8 * h;
        more = _mm256_cvtepu8_epi32(eight_bytes(head + b * MOE_PANEL_ROWS + 8 * h));
        more = _mm256_slli_epi32(_mm256_srli_epi32(more, 4), 16);
        more = _mm256_or_si256(more, _mm256_cvtepu8_epi32(eight_bytes(at)));
        __m256i second = _mm256_cvtepu8_epi32(eight_bytes(at + MOE_PANEL_ROWS));
        more = _mm256_or_si256(more, _mm256_slli_epi32(second, 8));
    } else if (kind == MOE_LAYOUT_IQ4_KT) {
        more = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)codes + h), 15);
        more = _mm256_and_si256(more, _mm256_set1_epi32(0x8000));
    }
    return more;
}

/* moe_trellis_units. */
MOE_TEMPLATE void trellis_units(int kind, const uint8_t *head, const uint8_t *codes, uint32_t b,
                                struct moe_code_units *units)
{
    const int quads = (int)moe_trellis_columns(kind) / 4;
    const __m256i most = _mm256_set1_epi8((char)252);
    MOE_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256i *words = (const __m256i *)codes + h;
        __m256i more = trellis_more(kind, head, codes, b, h), signs = more, start = more;
        if (kind == MOE_LAYOUT_IQ3_KT)
            signs = _mm256_loadu_si256(words + 4);
        MOE_UNROLL
        for (int s = 0; s < MOE_STEP_QUADS; s++) {
            const int g = s / quads, unit = kind == MOE_LAYOUT_IQ1_KT ? 0 : g / 2;
            const uint32_t *of = trellis_powers + s % quads * 4;
            if (s % quads == 0)
                start = trellis_start(kind, _mm256_loadu_si256(words + 2 * unit), more, g);
            __m256i low = trellis_pair(start, of), high = trellis_pair(start, of + 2);
            low = _mm256_add_epi8(low, _mm256_srli_epi32(low, 16));
            high = _mm256_add_epi8(high, _mm256_slli_epi32(high, 16));
            low = _mm256_blend_epi16(low, high, 0xaa);
            if (kind == MOE_LAYOUT_IQ3_KT) {
                low = _mm256_max_epu8(low, _mm256_sub_epi8(most, low));
                low = pick_by_bit(signs, s, low, _mm256_sub_epi8(most, low));
            }
            _mm256_storeu_si256((__m256i *)units->word[s] + h, low);
        }
    }
}

/* moe_pairs_units: first numbers of eight rows' four pairs by one table, second ones by another. */
MOE_TEMPLATE void pairs_units(const uint8_t *head, const uint8_t *codes, uint32_t b,
                              struct moe_code_units *units)
{
    const __m256i low_byte = _mm256_set1_epi16(255), low_four = _mm256_set1_epi8(15);
    const __m128i to_four = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m256i tables[2][2];
    MOE_UNROLL
    for (int i = 0; i < 4; i++) {
        __m128i table = sixteen_bytes((const uint8_t *)moe_iq2kl_numbers + 16 * i);
        table = _mm_add_epi8(table, _mm_set1_epi8((char)moe_kind_zero(MOE_LAYOUT_IQ2_KL)));
        tables[i / 2][i % 2] = _mm256_broadcastsi128_si256(table);
    }
    MOE_UNROLL
    for (int i = 0; i < 8; i++) { /* units, halves of rows, halves of bytes */
        const int j = i / 4, h = i / 2 % 2, n = i % 2;
        const __m128i more = eight_bytes(head + (6 + 2 * b + (uint32_t)j) * MOE_PANEL_ROWS + 8 * h);
        __m256i high = _mm256_set_m128i(_mm_shuffle_epi8(_mm_srli_si128(more, 4), to_four),
                                        _mm_shuffle_epi8(more, to_four));
        __m256i four = _mm256_loadu_si256((const __m256i *)(codes + j * MOE_UNIT) + h), of[2];
        const __m256i bits = _mm256_set1_epi32((int)(0x08040201u << 4 * n));
        four = _mm256_and_si256(n ? _mm256_srli_epi16(four, 4) : four, low_four);
        high = _mm256_cmpeq_epi8(_mm256_and_si256(high, bits), bits);
        MOE_UNROLL
        for (int k = 0; k < 2; k++)
            of[k] = _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[k][0], four),
                                       _mm256_shuffle_epi8(tables[k][1], four), high);
        _mm256_storeu_si256(
            (__m256i *)units->word[4 * j + 2 * n] + h,
            _mm256_or_si256(_mm256_and_si256(of[0], low_byte), _mm256_slli_epi16(of[1], 8)));
        _mm256_storeu_si256(
            (__m256i *)units->word[4 * j + 2 * n + 1] + h,
            _mm256_or_si256(_mm256_srli_epi16(of[0], 8), _mm256_andnot_si256(low_byte, of[1])));
    }
}

/* moe_ternary_units: the highest digit of a byte is its product with 3 / 256. */
MOE_TEMPLATE void ternary_units(const uint8_t *head, const uint8_t *codes, uint32_t b,
                                struct moe_code_units *units)
{
    const __m256i one = _mm256_set1_epi8(1), high_byte = _mm256_set1_epi16((short)0xff00);
    MOE_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i x = _mm256_loadu_si256((const __m256i *)codes + h), all = x;
        MOE_UNROLL
        for (uint32_t s = 0; s < MOE_STEP_QUADS; s++) {
            if (s >= 5) {
                const uint32_t i = 3 * b + s - 5;
                const __m256i power = _mm256_set1_epi16(ternary_power(i % 5));
                const uint8_t *unit = head + 2 * MOE_PANEL_ROWS + i / 5 * MOE_UNIT;
                x = _mm256_loadu_si256((const __m256i *)unit + h);
                x = _mm256_or_si256(_mm256_andnot_si256(high_byte, _mm256_mullo_epi16(x, power)),
                                    _mm256_mullo_epi16(_mm256_and_si256(high_byte, x), power));
            }
            __m256i digit = _mm256_min_epu8(one, _mm256_subs_epu8(x, _mm256_set1_epi8(85)));
            digit = _mm256_add_epi8(
                digit, _mm256_min_epu8(one, _mm256_subs_epu8(x, _mm256_set1_epi8((char)170))));
            digit = _mm256_slli_epi16(digit, s % 4 * 2);
            all = s % 4 ? _mm256_or_si256(all, digit) : digit;
            if (s % 4 == 3)
                _mm256_storeu_si256((__m256i *)units->word[s / 4] + h, all);
            x = _mm256_add_epi8(x, _mm256_add_epi8(x, x));
        }
    }
}

/* moe_record_codes. */
MOE_TEMPLATE const uint8_t *record_codes(int kind, const struct moe_record *record, uint32_t b,
                                         struct moe_code_units *units)
{
    const uint8_t *head = moe_record_scale(kind, record, b, 0).head;
    if (kind == MOE_LAYOUT_IQ2_KL)
        pairs_units(head, record->codes, b % 8, units);
    else if (moe_kind_is_trellis(kind))
        trellis_units(kind, head, record->codes, b % 8, units);
    else if (kind == MOE_LAYOUT_TQ1_0)
        ternary_units(head, record->codes, b % 8, units);
    else
        return record->codes;
    return (const uint8_t *)units->word;
}

/* Sums of block b of a record times a single input, of trellis kinds without signs of their own: a
 * number is the sum of four bytes less 126, so all four meet the column's activation. Those of two
 * columns fit into 16 bits: 4 * 63 * 127 is 32004. */
MOE_TEMPLATE void trellis_sums(int kind, const struct moe_record *record, uint32_t b,
                               const struct moe_tile *in, __m256i sum[2])
{
    const int quads = (int)moe_trellis_columns(kind) / 4;
    const uint8_t *head = moe_record_scale(kind, record, b, 0).head;
    __m256i more[2], start[2];
    MOE_UNROLL
    for (int h = 0; h < 2; h++) {
        more[h] = start[h] = trellis_more(kind, head, record->codes, b % 8, h);
        sum[h] = _mm256_set1_epi32(moe_scale_less(kind, in->sum, 0, 126));
    }
    MOE_UNROLL
    for (int c = 0; c < MOE_STEP; c += 2) {
        const int g = c / 4 / quads, unit = kind == MOE_LAYOUT_IQ1_KT ? 0 : g / 2;
        const __m256i four = four_activations(in->q + c / 4 * 4);
        const __m256i q[2] = {_mm256_shuffle_epi8(four, _mm256_set1_epi8((char)(c % 4))),
                              _mm256_shuffle_epi8(four, _mm256_set1_epi8((char)(c % 4 + 1)))};
        MOE_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i *words = (const __m256i *)record->codes + 2 * unit + h;
            __m256i pairs = _mm256_setzero_si256();
            if (c % (4 * quads) == 0)
                start[h] = trellis_start(kind, _mm256_loadu_si256(words), more[h], g);
            MOE_UNROLL
            for (int k = 0; k < 2; k++) {
                const int power = (int)trellis_powers[(c + k) % (4 * quads)];
                __m256i bytes = _mm256_mullo_epi32(start[h], _mm256_set1_epi32(power));
                bytes = _mm256_and_si256(bytes, _mm256_set1_epi8(0x3f));
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(bytes, q[k]));
            }
            sum[h] =
                so_far(_mm256_add_epi32(sum[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
        }
    }
}

/* Computes the first n inputs at `tile`, a tile of nt. */
MOE_TEMPLATE void quant_part(int kind, int nt, int n, uint32_t block, MOE_PANEL_PARAMS)
{
    const float *front = (const float *)panel;
    const bool zeros = !moe_kind_span(kind) && moe_kind_has_zeros(layout.kind);
    const bool direct = nt == 1 && moe_kind_is_trellis(kind) && kind != MOE_LAYOUT_IQ3_KT;
    struct moe_tile in = *tile;
    __m256 out[PART][2], d[2], m[2];
    struct moe_code_units units;
    panel += moe_kind_front(layout.kind);
    MOE_UNROLL
    for (int t = 0; t < n; t++)
        out[t][0] = out[t][1] = _mm256_setzero_ps();
    for (uint32_t first = 0; first < cols;) {
        struct moe_record rec = moe_record_next(kind, layout.group, block, cols, &panel, &first);
        for (uint32_t b = 0; b < rec.blocks; b++) {
            const uint8_t *codes = direct ? NULL : record_codes(kind, &rec, b, &units);
            read_rest_ahead(kind, nt, block, &rec, b);
            MOE_UNROLL
            for (int p = 0; p < moe_kind_scales(kind); p++) {
                __m256i sum[PART][2];
                if (direct)
                    trellis_sums(kind, &rec, b, &in, sum[0]);
                else
                    scale_sums(kind, nt, n, block, codes, p, &in, sum);
                for (int h = 0; h < 2; h++) {
                    read_scale(kind, moe_record_scale(kind, &rec, b, (uint32_t)p), h, &d[h], &m[h]);
                    if (zeros)
                        read_zeros(rec.head, h, &d[h], &m[h]);
                }
                MOE_UNROLL
                for (int t = 0; t < n; t++)
                    for (int h = 0; h < 2; h++) {
                        __m256 scale = _mm256_mul_ps(d[h], _mm256_set1_ps(in.s[t]));
                        out[t][h] =
                            _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[t][h]), out[t][h]);
                        if (moe_kind_has_offset(kind))
                            out[t][h] = _mm256_fmadd_ps(
                                m[h], _mm256_set1_ps(moe_scale_z(kind, &in, t, p)), out[t][h]);
                    }
            }
            rec.codes += moe_kind_block_bytes(kind, block);
            moe_tile_step(&in, nt, block);
        }
    }
    MOE_UNROLL
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 2; h++) {
            if (moe_kind_may_have_front(kind) && moe_kind_front(layout.kind))
                out[t][h] = _mm256_mul_ps(out[t][h], _mm256_loadu_ps(front + 8 * h));
            _mm256_storeu_ps(y + t * y_stride + 8 * h, out[t][h]);
        }
}

MOE_TEMPLATE void quant_body(int kind, int nt, uint32_t block, MOE_PANEL_PARAMS)
{
    const int n = nt < PART ? nt : PART;
    struct moe_tile part = *tile;
    for (int t = 0; t < nt; t += n, y += n * y_stride) {
        quant_part(kind, nt, n, block, panel, layout, cols, &part, y, y_stride);
        part.q += 4 * n;
        part.s += n;
        part.z += n;
        part.sum += n;
    }
}

MOE_PANEL_BLOCKS
MOE_PANEL_FLOATS
MOE_PANEL_FEW
MOE_PANEL_QUANTS(MOE_PANEL_EACH_CODES)

/* ---- Kinds with a grid ----
 * An entry is one load: the numbers without signs of a group's eight columns, or four. How many
 * instructions there are is what limits. */

enum { N_GRIDS = 6, MOST_ENTRIES = 2048, ROWS_AT_ONCE = 4 };

/* What fill_grid_tables() makes of grids.h: a byte for each column, in IQ1 4 c + 1. */
static union grid_table {
    uint64_t eight[MOST_ENTRIES];
    uint32_t four[MOST_ENTRIES / 4];
} grid_tables[N_GRIDS];

MOE_TEMPLATE union grid_table *table_of(int kind)
{
    return &grid_tables[kind > MOE_LAYOUT_IQ1_M ? kind - MOE_LAYOUT_IQ1_M : 0];
}

static void fill_grid_tables(void)
{
    for (int kind = MOE_LAYOUT_IQ1_M; kind <= MOE_LAYOUT_IQ3_S; kind++) {
        union grid_table *table = table_of(kind);
        const bool four = moe_kind_is_iq3(kind);
        for (int i = 0; i < 256 << moe_group_bits(kind); i++) {
            uint64_t numbers = 0;
            for (int c = 0; c < (four ? 4 : 8); c++) {
                uint32_t code = moe_kind_grid(kind)[i] >> 8 * (c % 4) >> c / 4 * 2 & (four ? 7 : 3);
                code = moe_kind_is_iq1(kind) ? 4 * code + 1 : (uint8_t)moe_kind_numbers(kind)[code];
                numbers |= (uint64_t)code << 8 * c;
            }
            if (four)
                table->four[i] = (uint32_t)numbers;
            else
                table->eight[i] = numbers;
        }
    }
}

/* A block of a kind with a grid. */
struct grid_block {
    const uint8_t *codes;
    uint16_t numbers[2][2][MOE_PANEL_ROWS][2]; /* of more than 8 bits: of group 4 i + 2 k + j of row
                                                  r at [i][j][r][k] */
    /* As they lie, of rows 8i..; of eight columns those of group_numbers()' rows, and again moved
     * down by a bit; in IQ1 four bits of each group, twice. */
    __m256i signs[4];
};

/* moe_group_more of rows 8h.. of block b of a span whose numbers lie at `numbers`. */
MOE_TEMPLATE __m256i group_more(int kind, const uint8_t *numbers, uint32_t b, int h, __m256i signs)
{
    if (kind == MOE_LAYOUT_IQ2_XS)
        return _mm256_srli_epi32(signs, 25);
    numbers += 8 * h;
    if (kind == MOE_LAYOUT_IQ2_S || kind == MOE_LAYOUT_IQ3_S)
        return _mm256_cvtepu8_epi32(
            eight_bytes(numbers + ((kind == MOE_LAYOUT_IQ2_S ? 8 : 4) + b) * MOE_PANEL_ROWS));
    numbers += ((kind == MOE_LAYOUT_IQ1_M ? 6 : 0) + 2 * b) * MOE_PANEL_ROWS;
    __m256i high = _mm256_cvtepu8_epi32(eight_bytes(numbers + MOE_PANEL_ROWS));
    return _mm256_or_si256(_mm256_cvtepu8_epi32(eight_bytes(numbers)), _mm256_slli_epi32(high, 8));
}

/* Two numbers of each row: their low 8 bits are bits 0 and 16 of `words` on, the higher ones `bits`
 * bits of `more` each, from bit `first` and bit `second` on. */
MOE_TEMPLATE __m256i two_numbers(__m256i words, __m256i more, int bits, int first, int second)
{
    const __m256i mask = _mm256_set1_epi32(((1 << bits) - 1) << 8);
    __m256i one =
        first < 8 ? _mm256_slli_epi32(more, 8 - first) : _mm256_srli_epi32(more, first - 8);
    __m256i two =
        second < 8 ? _mm256_slli_epi32(more, 8 - second) : _mm256_srli_epi32(more, second - 8);
    two = _mm256_slli_epi32(_mm256_and_si256(two, mask), 16);
    words = _mm256_and_si256(words, _mm256_set1_epi32(0x00ff00ff));
    return _mm256_or_si256(words, _mm256_or_si256(_mm256_and_si256(one, mask), two));
}

/* moe_signs_whole of eight rows. */
MOE_TEMPLATE __m256i whole_signs(int kind, __m256i signs)
{
    if (kind == MOE_LAYOUT_IQ2_S || kind == MOE_LAYOUT_IQ3_S)
        return signs;
    __m256i known = _mm256_and_si256(signs, _mm256_set1_epi32(0x55ffffff));
    __m256i odd = _mm256_xor_si256(known, _mm256_srli_epi32(known, 8));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi32(odd, 16));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi32(odd, 1));
    odd = _mm256_slli_epi32(_mm256_and_si256(odd, _mm256_set1_epi32(0x55)), 25);
    return _mm256_or_si256(known, odd);
}

/* Opens block b of a record, whose codes lie at `codes`. */
MOE_TEMPLATE void open_block(int kind, const struct moe_record *rec, uint32_t b,
                             const uint8_t *codes, struct grid_block *block)
{
    const uint8_t *numbers = moe_place_numbers(kind, moe_record_scale(kind, rec, b, 0));
    const int units = moe_kind_plane(kind), bits = moe_group_bits(kind);
    const int step = moe_group_stride(kind);
    const bool one = moe_kind_is_iq1(kind);
    block->codes = codes;
    MOE_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256i *words = (const __m256i *)codes + h;
        __m256i signs = one ? _mm256_setzero_si256() : _mm256_loadu_si256(words + 2 * units);
        __m256i more =
            bits ? group_more(kind, numbers, b % moe_kind_span_blocks(kind), h, signs) : signs;
        signs = one ? more : whole_signs(kind, signs);
        __m256i again = one ? signs : _mm256_srli_epi16(signs, 1);
        if (moe_kind_is_iq3(kind)) {
            block->signs[h] = signs;
        } else {
            block->signs[2 * h] = _mm256_unpacklo_epi32(signs, again);
            block->signs[2 * h + 1] = _mm256_unpackhi_epi32(signs, again);
        }
        MOE_UNROLL
        for (int u = 0; bits && u < units; u++) {
            const int at = 4 * u * step;
            __m256i word = _mm256_loadu_si256(words + 2 * u);
            _mm256_storeu_si256((__m256i *)block->numbers[u][0] + h,
                                two_numbers(word, more, bits, at, at + 2 * step));
            word = _mm256_srli_epi16(word, 8);
            _mm256_storeu_si256((__m256i *)block->numbers[u][1] + h,
                                two_numbers(word, more, bits, at + step, at + 3 * step));
        }
    }
}

MOE_TEMPLATE uint32_t group_number(int kind, const struct grid_block *block, int group, int r)
{
    const int unit = group / 4, g = group % 4;
    return moe_group_bits(kind) ? block->numbers[unit][g % 2][r][g / 2]
                                : block->codes[unit * MOE_UNIT + 4 * r + g];
}

/* Numbers without signs of group `group`: four columns of rows 8i.., or eight of rows 0, 1, 4, 5 of
 * rows 8 (i / 2).., of odd i 2, 3, 6, 7. Each entry is loaded into all lanes and blended into its
 * own. Of IQ1 the number plus 9, halved. */
MOE_TEMPLATE __m256i group_numbers(int kind, const struct grid_block *block, int group, int i)
{
    const union grid_table *table = table_of(kind);
    __m256i row[8];
    if (moe_kind_is_iq3(kind)) {
        MOE_UNROLL
        for (int r = 0; r < 8; r++)
            row[r] =
                _mm256_set1_epi32((int)table->four[group_number(kind, block, group, 8 * i + r)]);
        MOE_UNROLL
        for (int r = 0; r < 8; r += 2)
            row[r] = _mm256_blend_epi32(row[r], row[r + 1], 0xaa);
        row[0] = _mm256_blend_epi32(row[0], row[2], 0xcc);
        row[4] = _mm256_blend_epi32(row[4], row[6], 0xcc);
        return _mm256_blend_epi32(row[0], row[4], 0xf0);
    }
    MOE_UNROLL
    for (int k = 0; k < ROWS_AT_ONCE; k++) {
        const int r = i / 2 * 8 + i % 2 * 2 + k / 2 * 4 + k % 2;
        row[k] = _mm256_set1_epi64x((long long)table->eight[group_number(kind, block, group, r)]);
    }
    row[0] = _mm256_blend_epi32(row[0], row[1], 0x0c);
    row[0] = _mm256_blend_epi32(row[0], _mm256_blend_epi32(row[2], row[3], 0xc0), 0xf0);
    if (moe_kind_is_iq1(kind)) {
        const int bit = kind == MOE_LAYOUT_IQ1_S ? 15 : 4 * group + 3;
        __m256i less = _mm256_srai_epi32(_mm256_slli_epi32(block->signs[i], 31 - bit), 31);
        row[0] = _mm256_add_epi8(row[0], less);
    }
    return row[0];
}

/* Bytes whose highest bits are the signs of these. */
MOE_TEMPLATE __m256i group_signs(int kind, const struct grid_block *block, int group, int i)
{
    return _mm256_slli_epi16(block->signs[i], 7 - group * (moe_kind_is_iq3(kind) ? 1 : 2));
}

/* Makes numbers plus their offset of a block: quad s of rows 8h.. at 2 s + h. */
MOE_TEMPLATE void block_numbers(int kind, const struct grid_block *block,
                                __m256i bytes[2 * MOE_STEP_QUADS])
{
    const int groups = moe_kind_is_iq3(kind) ? 8 : 4, parts = 16 / groups;
    const __m256i offset = _mm256_set1_epi8((char)number_offset(kind));
    MOE_UNROLL
    for (int g = 0; g < groups; g++) {
        __m256i part[4];
        MOE_UNROLL
        for (int i = 0; i < parts; i++) {
            part[i] = group_numbers(kind, block, g, i);
            if (moe_kind_is_iq1(kind)) {
                part[i] = _mm256_add_epi8(part[i], part[i]);
                continue;
            }
            __m256i negative =
                _mm256_cmpgt_epi8(_mm256_setzero_si256(), group_signs(kind, block, g, i));
            part[i] = _mm256_sub_epi8(_mm256_xor_si256(part[i], negative),
                                      _mm256_sub_epi8(negative, offset));
        }
        MOE_UNROLL
        for (int h = 0; h < 2; h++) {
            if (groups == 8) {
                bytes[2 * g + h] = part[h];
                continue;
            }
            __m256 one = _mm256_castsi256_ps(part[2 * h]);
            __m256 two = _mm256_castsi256_ps(part[2 * h + 1]);
            bytes[4 * g + h] = _mm256_castps_si256(_mm256_shuffle_ps(one, two, 0x88));
            bytes[4 * g + 2 + h] = _mm256_castps_si256(_mm256_shuffle_ps(one, two, 0xdd));
        }
    }
}

/* Sums of scale number p of a block times a single input, which has the signs here. */
MOE_TEMPLATE void grid_sums(int kind, const struct grid_block *block, int p,
                            const struct moe_tile *in, __m256i sum[2])
{
    const bool four = moe_kind_is_iq3(kind), one = moe_kind_is_iq1(kind);
    const int groups = (four ? 8 : 4) / moe_kind_scales(kind), parts = four ? 2 : 4;
    const int fit = one || kind == MOE_LAYOUT_IQ3_S ? groups : 2; /* of at most 62 into 16 bits */
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i all[4];
    MOE_UNROLL
    for (int i = 0; i < parts; i++) {
        all[i] = _mm256_setzero_si256();
        MOE_UNROLL
        for (int first = p * groups; first < (p + 1) * groups; first += fit) {
            __m256i pairs = _mm256_setzero_si256();
            MOE_UNROLL
            for (int g = first; g < first + fit; g++) {
                int64_t eight = 0;
                memcpy(&eight, in->q + g * (four ? 4 : 8), four ? 4 : 8);
                __m256i v = four ? _mm256_set1_epi32((int)eight) : _mm256_set1_epi64x(eight);
                __m256i w = group_numbers(kind, block, g, i);
                if (!one)
                    v = _mm256_sign_epi8(
                        v, _mm256_or_si256(group_signs(kind, block, g, i), _mm256_set1_epi8(1)));
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w, v));
            }
            all[i] = _mm256_add_epi32(all[i], _mm256_madd_epi16(pairs, ones));
        }
    }
    MOE_UNROLL
    for (int h = 0; h < 2; h++) {
        sum[h] = four ? all[h] : _mm256_hadd_epi32(all[2 * h], all[2 * h + 1]);
        if (one)
            sum[h] = _mm256_add_epi32(_mm256_add_epi32(sum[h], sum[h]),
                                      _mm256_set1_epi32(moe_scale_less(kind, in->sum, p, 9)));
    }
}

/* d of rows 8h..: scale number p of block b of a record, at `at`; `unit` is d of the head times
 * moe_kind_scale_unit. */
MOE_TEMPLATE __m256 grid_scale(int kind, struct moe_place at, uint32_t b, int p, int h, __m256 unit)
{
    __m256i s;
    if (moe_kind_signs_have_scale(kind)) {
        s = _mm256_loadu_si256((const __m256i *)(at.codes + moe_kind_plane(kind) * MOE_UNIT) + h);
        s = _mm256_and_si256(_mm256_srli_epi32(s, 25), _mm256_set1_epi32(0x55));
        s = _mm256_or_si256(s, _mm256_srli_epi32(s, 1));
        s = _mm256_and_si256(s, _mm256_set1_epi32(0x33));
        s = _mm256_or_si256(s, _mm256_srli_epi32(s, 2));
        s = _mm256_and_si256(s, _mm256_set1_epi32(15));
    } else {
        __m128i all =
            grid_scale_bytes(kind, moe_place_numbers(kind, at), b % moe_kind_span_blocks(kind), p);
        s = _mm256_cvtepu8_epi32(h ? _mm_srli_si128(all, 8) : all);
    }
    __m256 d = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_set1_ps(2), _mm256_set1_ps(1));
    return _mm256_mul_ps(unit, d); /* exact in any order */
}

MOE_TEMPLATE __m256 grid_unit(int kind, struct moe_place at, int h)
{
    return _mm256_mul_ps(half_scales(at.head + 16 * h), _mm256_set1_ps(moe_kind_scale_unit(kind)));
}

MOE_TEMPLATE void grid_panel(int kind, int nt, MOE_PANEL_PARAMS)
{
    const int n = nt < PART ? nt : PART;
    struct moe_tile in = *tile;
    __m256 out[MOE_TILE][2], unit[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256i bytes[2 * MOE_STEP_QUADS]; /* of several inputs */
    struct grid_block blocks[2]; /* the next one, too: what is stored as vectors is read later */
    for (int t = 0; t < nt; t++)
        out[t][0] = out[t][1] = _mm256_setzero_ps();
    for (uint32_t first = 0; first < cols;) {
        struct moe_record rec = moe_record_next(kind, layout.group, 32, cols, &panel, &first);
        open_block(kind, &rec, 0, rec.codes, &blocks[0]);
        for (uint32_t i = 0; i < rec.blocks; i++) {
            const struct moe_place at = moe_record_scale(kind, &rec, i, 0);
            const struct grid_block *block = &blocks[i % 2];
            for (int h = 0; i % moe_kind_span_blocks(kind) == 0 && h < 2; h++)
                unit[h] = grid_unit(kind, at, h);
            if (i + 1 < rec.blocks)
                open_block(kind, &rec, i + 1, rec.codes + moe_kind_block_bytes(kind, 32),
                           &blocks[(i + 1) % 2]);
            if (nt > 1)
                block_numbers(kind, block, bytes);
            read_rest_ahead(kind, nt, 32, &rec, i);
            MOE_UNROLL
            for (int p = 0; p < moe_kind_scales(kind); p++) {
                __m256 d[2];
                MOE_UNROLL
                for (int h = 0; h < 2; h++)
                    d[h] = grid_scale(kind, at, i, p, h, unit[h]);
                for (int of = 0; of < nt; of += n) {
                    struct moe_tile part = {NULL, in.q + 4 * of, in.s + of, in.z + of, in.sum + of};
                    __m256i sum[PART][2];
                    if (nt == 1)
                        grid_sums(kind, block, p, &part, sum[0]);
                    else
                        scale_sums(kind, nt, n, 32, (const uint8_t *)bytes, p, &part, sum);
                    MOE_UNROLL
                    for (int t = 0; t < n; t++)
                        for (int h = 0; h < 2; h++)
                            out[of + t][h] =
                                _mm256_fmadd_ps(_mm256_mul_ps(d[h], _mm256_set1_ps(part.s[t])),
                                                _mm256_cvtepi32_ps(sum[t][h]), out[of + t][h]);
                }
            }
            rec.codes += moe_kind_block_bytes(kind, 32);
            moe_tile_step(&in, nt, 32);
        }
    }
    for (int t = 0; t < nt; t++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(y + t * y_stride + 8 * h, out[t][h]);
}

#define GRID_PANELS(kind) MOE_PANEL_TILES(grid_panel, kind)
MOE_PANEL_GRIDS(GRID_PANELS)

static uint32_t largest_magnitude(const float *x, uint32_t n)
{
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t c = 0; c < n; c += 8) {
        __m256i bits = _mm256_loadu_si256((const __m256i *)(x + c));
        largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    uint32_t lane[8], result = 0;
    _mm256_storeu_si256((__m256i *)lane, largest);
    for (int i = 0; i < 8; i++)
        result = lane[i] > result ? lane[i] : result;
    return result;
}

/* ---- Many inputs ---- */

MOE_TEMPLATE const uint8_t *unpack(int kind, const uint8_t *panel, uint32_t cols,
                                   struct moe_unpacked *to)
{
    const bool grid = moe_kind_scale_unit(kind) > 0;
    const __m256i more = _mm256_set1_epi8((char)(128 - number_offset(kind)));
    struct moe_code_units units;
    struct grid_block block;
    __m256i bytes[2 * MOE_STEP_QUADS];
    for (uint32_t first = 0; first < cols;) {
        struct moe_record rec = moe_record_next(kind, 32, 32, cols, &panel, &first);
        for (uint32_t b = 0; b < rec.blocks; b++, to++) {
            const uint8_t *codes =
                grid ? (const uint8_t *)bytes : record_codes(kind, &rec, b, &units);
            if (grid) {
                open_block(kind, &rec, b, rec.codes, &block);
                block_numbers(kind, &block, bytes);
            }
            MOE_UNROLL
            for (int i = 0; i < 2 * moe_kind_scales(kind); i++) {
                const int p = i / 2, h = i % 2;
                const struct moe_place at = moe_record_scale(kind, &rec, b, (uint32_t)p);
                __m256 d = _mm256_setzero_ps(), m = d;
                if (grid)
                    d = grid_scale(kind, at, b, p, h, grid_unit(kind, at, h));
                else
                    read_scale(kind, at, h, &d, &m);
                _mm256_storeu_ps(to->d[p] + 8 * h, d);
                _mm256_storeu_ps(to->m[p] + 8 * h, m);
            }
            MOE_UNROLL
            for (int i = 0; i < 2 * MOE_STEP_QUADS; i++) {
                __m256i w = quad(kind, codes, codes + moe_step_bytes(kind), i / 2, i % 2);
                _mm256_storeu_si256((__m256i *)to->codes[i / 2] + i % 2, _mm256_add_epi8(w, more));
            }
            rec.codes += moe_kind_block_bytes(kind, 32);
        }
    }
    return panel;
}

/* Adds quads [begin, end) of a block to sum[t][h]. Numbers become unsigned, less `zero`, and `fit`
 * pairs of products fit into 16 bits; or signed where fit is 0. */
MOE_TEMPLATE void unpacked_sums(int fit, int nt, const struct moe_unpacked *block, int begin,
                                int end, __m256i zero, const int8_t *q, __m256i sum[PART][2])
{
    const int rounds = fit == 0 ? 1 : fit < end - begin ? fit : end - begin;
    MOE_UNROLL
    for (int first = begin; first < end; first += rounds) {
        __m256i pairs[PART][2];
        MOE_UNROLL
        for (int s = first; s < first + rounds; s++) {
            __m256i w[2], size[2];
            MOE_UNROLL
            for (int h = 0; h < 2; h++) {
                w[h] = _mm256_loadu_si256((const __m256i *)block->codes[s] + h);
                w[h] = _mm256_sub_epi8(w[h], zero);
                size[h] = fit ? w[h] : _mm256_abs_epi8(w[h]);
            }
            MOE_UNROLL
            for (int t = 0; t < PART; t++) {
                const __m256i v = four_activations(q + (s * nt + t) * 4);
                MOE_UNROLL
                for (int h = 0; h < 2; h++) {
                    __m256i pair =
                        _mm256_maddubs_epi16(size[h], fit ? v : _mm256_sign_epi8(v, w[h]));
                    pairs[t][h] = s == first ? pair : so_far(_mm256_add_epi16(pairs[t][h], pair));
                }
            }
        }
        MOE_UNROLL
        for (int t = 0; t < PART; t++)
            for (int h = 0; h < 2; h++)
                sum[t][h] = so_far(_mm256_add_epi32(
                    sum[t][h], _mm256_madd_epi16(pairs[t][h], _mm256_set1_epi16(1))));
    }
}

/* Computes the first PART inputs at `tile`, a tile of nt. */
MOE_TEMPLATE void unpacked_part(int fit, int scales, int nt, MOE_UNPACKED_PARAMS)
{
    const int quads = MOE_STEP_QUADS / scales, least = fit ? numbers.least : 0;
    const __m256i zero = _mm256_set1_epi8((char)(128 + least));
    struct moe_tile in = *tile;
    __m256 out[PART][2];
    MOE_UNROLL
    for (int t = 0; t < PART; t++)
        for (int h = 0; h < 2; h++)
            out[t][h] = _mm256_loadu_ps(y + t * y_stride + 8 * h);
    for (uint32_t b = 0; b < n; b++, blocks++) {
        MOE_UNROLL
        for (int p = 0; p < scales; p++) {
            __m256i sum[PART][2];
            MOE_UNROLL
            for (int t = 0; t < PART; t++)
                sum[t][0] = sum[t][1] =
                    _mm256_set1_epi32((in.sum[t].less[scales == 1 ? 0 : 1 + p] >> 7) * -least);
            unpacked_sums(fit, nt, blocks, p * quads, (p + 1) * quads, zero, in.q, sum);
            MOE_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256 d = _mm256_loadu_ps(blocks->d[p] + 8 * h);
                const __m256 m = _mm256_loadu_ps(blocks->m[p] + 8 * h);
                MOE_UNROLL
                for (int t = 0; t < PART; t++) {
                    const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(in.s[t]));
                    out[t][h] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[t][h]), out[t][h]);
                }
                if (numbers.offsets) {
                    MOE_UNROLL
                    for (int t = 0; t < PART; t++)
                        out[t][h] = _mm256_fmadd_ps(
                            m, _mm256_set1_ps(scales == 1 ? in.z[t] : in.sum[t].z[p]), out[t][h]);
                }
            }
        }
        moe_tile_step(&in, nt, 32);
    }
    MOE_UNROLL
    for (int t = 0; t < PART; t++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(y + t * y_stride + 8 * h, out[t][h]);
}

MOE_TEMPLATE void unpacked(int scales, int nt, MOE_UNPACKED_PARAMS)
{
    struct moe_tile part = *tile;
    tile = &part;
    for (int t = 0; t < nt; t += PART, y += PART * y_stride) {
        if (numbers.span <= 15)
            unpacked_part(8, scales, nt, MOE_UNPACKED_ARGS);
        else if (numbers.span <= 31)
            unpacked_part(4, scales, nt, MOE_UNPACKED_ARGS);
        else if (numbers.span <= 64)
            unpacked_part(2, scales, nt, MOE_UNPACKED_ARGS);
        else if (numbers.span <= 129)
            unpacked_part(1, scales, nt, MOE_UNPACKED_ARGS);
        else
            unpacked_part(0, scales, nt, MOE_UNPACKED_ARGS);
        part.q += 4 * PART;
        part.s += PART;
        part.z += PART;
        part.sum += PART;
    }
}

MOE_UNPACK_EACH(MOE_UNPACK_ONE)
MOE_UNPACK_ONE(MXFP4)
MOE_PANEL_EACH_GRID(MOE_UNPACK_ONE)
MOE_UNPACKED_ALL

/* Quantizes the `block` values at x into quads that lie `stride` bytes apart. */
static void quantize_block(const float *x, uint32_t block, uint32_t stride, int8_t *q, float *s,
                           float *z, struct moe_sums *sum)
{
    uint32_t bits = largest_magnitude(x, block);
    __m256 inverse = _mm256_set1_ps(moe_math_quant_inverse(bits));
    /* A block that is not finite must give zeros, not what the conversion makes of a NaN. */
    __m256i finite = _mm256_set1_epi32(bits < 0x7f800000u ? -1 : 0), sums = _mm256_setzero_si256();
    __m256i half = sums;
    for (uint32_t c = 0; c < block; c += 8) {
        half = c == block / 2 ? sums : half;
        __m256i code = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + c), inverse));
        code = _mm256_and_si256(code, finite);
        sums = _mm256_add_epi32(sums, code);
        for (int i = 0; i < 2; i++, q += stride) {
            __m128i quarter = i ? _mm256_extracti128_si256(code, 1) : _mm256_castsi256_si128(code);
            __m128i words = _mm_packs_epi32(quarter, quarter);
            int32_t bytes = _mm_cvtsi128_si32(_mm_packs_epi16(words, words));
            memcpy(q, &bytes, 4);
        }
    }
    int32_t lane[2][8], total[2] = {0, 0};
    _mm256_storeu_si256((__m256i *)lane[0], sums);
    _mm256_storeu_si256((__m256i *)lane[1], half);
    for (int i = 0; i < 16; i++)
        total[i / 8] += lane[i / 8][i % 8];
    moe_math_quant_scale(bits, total[0], s, z);
    *sum = moe_sums_of(total[0], total[1], *s);
}

static void quantize(const float *x, uint32_t cols, uint32_t block, int nt, int t, int8_t *q,
                     float *s, float *z, struct moe_sums *sum)
{
    const uint32_t stride = 4 * (uint32_t)nt;
    q += 4 * t, s += t, z += t, sum += t;
    for (; cols >= block; cols -= block, x += block, q += block * nt, s += nt, z += nt, sum += nt)
        quantize_block(x, block, stride, q, s, z, sum);
    if (cols > 0) {
        float last[64] = {0};
        memcpy(last, x, cols * sizeof *x);
        quantize_block(last, block, stride, q, s, z, sum);
    }
}

/* ---- Vectors: the last few elements by the scalar forms ---- */

/* The steps of moe_math_exp. The order of min's and max's operands lets a NaN through. */
static inline __m256 exp8(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(MOE_EXP_LOW), x);
    x = _mm256_min_ps(_mm256_set1_ps(MOE_EXP_HIGH), x);
    __m256i i = _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(MOE_EXP_LOG2E)));
    __m256 n = _mm256_cvtepi32_ps(i);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MOE_EXP_LN2_HIGH), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MOE_EXP_LN2_LOW), r);
    __m256 p = _mm256_set1_ps(MOE_EXP_C6);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MOE_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MOE_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MOE_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MOE_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(i, 23));
    return _mm256_castsi256_ps(bits);
}

static float dot(const float *x, const float *y, uint32_t n)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        low = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), low);
        high = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(y + i + 8), high);
    }
    float lane[MOE_LANES];
    _mm256_storeu_ps(lane, low);
    _mm256_storeu_ps(lane + 8, high);
    for (; i < n; i++)
        lane[i % MOE_LANES] = fmaf(x[i], y[i], lane[i % MOE_LANES]);
    return moe_math_join(lane);
}

static void rms_norm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    float r = moe_math_rms_scale(dot(x, x, n), n, eps);
    __m256 factor = _mm256_set1_ps(r);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++)
        y[i] = x[i] * r * w[i];
}

static void layer_norm(const float *x, const float *w, const float *b, uint32_t n, float eps,
                       float *y)
{
    float lane[MOE_LANES];
    __m256 low = _mm256_setzero_ps(), high = low;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        low = _mm256_add_ps(low, _mm256_loadu_ps(x + i));
        high = _mm256_add_ps(high, _mm256_loadu_ps(x + i + 8));
    }
    _mm256_storeu_ps(lane, low);
    _mm256_storeu_ps(lane + 8, high);
    for (; i < n; i++)
        lane[i % MOE_LANES] += x[i];
    float mean = moe_math_join(lane) / (float)n;

    const __m256 middle = _mm256_set1_ps(mean);
    low = high = _mm256_setzero_ps();
    for (i = 0; i + 16 <= n; i += 16) {
        __m256 d0 = _mm256_sub_ps(_mm256_loadu_ps(x + i), middle);
        __m256 d1 = _mm256_sub_ps(_mm256_loadu_ps(x + i + 8), middle);
        low = _mm256_fmadd_ps(d0, d0, low);
        high = _mm256_fmadd_ps(d1, d1, high);
    }
    _mm256_storeu_ps(lane, low);
    _mm256_storeu_ps(lane + 8, high);
    for (; i < n; i++)
        lane[i % MOE_LANES] = fmaf(x[i] - mean, x[i] - mean, lane[i % MOE_LANES]);
    float r = moe_math_rms_scale(moe_math_join(lane), n, eps);

    const __m256 factor = _mm256_set1_ps(r);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x + i), middle);
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_mul_ps(d, factor), _mm256_loadu_ps(w + i),
                                                _mm256_loadu_ps(b + i)));
    }
    for (; i < n; i++)
        y[i] = fmaf((x[i] - mean) * r, w[i], b[i]);
}

static float largest_of(const float *x, uint32_t n)
{
    float lane[8], largest = x[0];
    __m256 eight = _mm256_set1_ps(x[0]);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        eight = _mm256_max_ps(eight, _mm256_loadu_ps(x + i));
    for (; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    _mm256_storeu_ps(lane, eight);
    for (int k = 0; k < 8; k++)
        largest = lane[k] > largest ? lane[k] : largest;
    return largest;
}

/* Whole rounds of lanes lie between a partial one at each end. */
static float exp_sum(float *x, uint32_t begin, uint32_t end, float *largest)
{
    float lane[MOE_LANES] = {0};
    uint32_t i = begin + (MOE_LANES - begin % MOE_LANES) % MOE_LANES;
    i = i < end ? i : end;
    *largest = largest_of(x + begin, end - begin);
    moe_math_exp_lanes(x, begin, i, *largest, lane);
    __m256 shift = _mm256_set1_ps(*largest);
    __m256 low = _mm256_loadu_ps(lane), high = _mm256_loadu_ps(lane + 8);
    for (; i + 16 <= end; i += 16) {
        __m256 e0 = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), shift));
        __m256 e1 = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), shift));
        low = _mm256_add_ps(low, e0);
        high = _mm256_add_ps(high, e1);
        _mm256_storeu_ps(x + i, e0);
        _mm256_storeu_ps(x + i + 8, e1);
    }
    _mm256_storeu_ps(lane, low);
    _mm256_storeu_ps(lane + 8, high);
    moe_math_exp_lanes(x, i, end, *largest, lane);
    return moe_math_join(lane);
}

static void softmax(float *x, uint32_t n)
{
    float largest, sum = exp_sum(x, 0, n, &largest);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_div_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(sum)));
    for (; i < n; i++)
        x[i] /= sum;
}

static inline __m256 silu8(__m256 v)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    return _mm256_div_ps(v, _mm256_add_ps(one, exp8(_mm256_xor_ps(v, sign))));
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(gate + i), u = _mm256_loadu_ps(up + i);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(silu8(v), u));
    }
    for (; i < n; i++)
        y[i] = moe_math_swiglu(gate[i], up[i]);
}

static void silu(const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, silu8(_mm256_loadu_ps(x + i)));
    for (; i < n; i++)
        y[i] = moe_math_silu(x[i]);
}

/* The order of max's operands lets a NaN and a negative zero through. */
static void relu(const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_max_ps(_mm256_setzero_ps(), _mm256_loadu_ps(x + i)));
    for (; i < n; i++)
        y[i] = moe_math_relu(x[i]);
}

/* The order of min's and max's operands lets a NaN through. */
static inline __m256 clamp8(__m256 x, __m256 limit)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_max_ps(_mm256_xor_ps(limit, sign), _mm256_min_ps(limit, x));
}

static void swiglu_clamped(const float *gate, const float *up, uint32_t n, float alpha, float limit,
                           float *y)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    const __m256 most = _mm256_set1_ps(limit), steep = _mm256_set1_ps(alpha);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_min_ps(most, _mm256_loadu_ps(gate + i));
        __m256 u = clamp8(_mm256_loadu_ps(up + i), most);
        __m256 below = _mm256_add_ps(one, exp8(_mm256_xor_ps(_mm256_mul_ps(steep, g), sign)));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_div_ps(g, below), _mm256_add_ps(u, one)));
    }
    for (; i < n; i++)
        y[i] = moe_math_swiglu_clamped(gate[i], up[i], alpha, limit);
}

static void tanh_of(const float *x, uint32_t n, float *y)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), size = _mm256_andnot_ps(sign, v);
        __m256 t = exp8(_mm256_mul_ps(_mm256_set1_ps(-2.0f), size));
        __m256 r = _mm256_div_ps(_mm256_sub_ps(one, t), _mm256_add_ps(one, t));
        _mm256_storeu_ps(y + i, _mm256_or_ps(r, _mm256_and_ps(sign, v)));
    }
    for (; i < n; i++)
        y[i] = moe_math_tanh(x[i]);
}

static void axpy(float a, const float *x, uint32_t n, float *y)
{
    __m256 factor = _mm256_set1_ps(a);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static void vec_add(const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++)
        y[i] += x[i];
}

static void mul_add(const float *a, const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(x + i),
                                                _mm256_loadu_ps(y + i)));
    for (; i < n; i++)
        y[i] = fmaf(a[i], x[i], y[i]);
}

static void scale(float a, uint32_t n, float *y)
{
    __m256 factor = _mm256_set1_ps(a);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), factor));
    for (; i < n; i++)
        y[i] *= a;
}

static void clamp(float limit, uint32_t n, float *y)
{
    const __m256 most = _mm256_set1_ps(limit);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, clamp8(_mm256_loadu_ps(y + i), most));
    for (; i < n; i++)
        y[i] = moe_math_clamp(y[i], limit);
}

static void rope(float *x, const float *cs, uint32_t n)
{
    uint32_t half = n / 2, i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 front = _mm256_loadu_ps(cs + 2 * i), back = _mm256_loadu_ps(cs + 2 * i + 8);
        /* Shuffles work within 128 bits: pairs come out as 0 1 4 5 2 3 6 7, then are reordered. */
        __m256d c4 = _mm256_castps_pd(_mm256_shuffle_ps(front, back, 0x88));
        __m256d s4 = _mm256_castps_pd(_mm256_shuffle_ps(front, back, 0xdd));
        __m256 c = _mm256_castpd_ps(_mm256_permute4x64_pd(c4, 0xd8));
        __m256 s = _mm256_castpd_ps(_mm256_permute4x64_pd(s4, 0xd8));
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++)
        moe_math_rotate(&x[i], &x[i + half], cs[2 * i], cs[2 * i + 1]);
}

static void delta_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                       const float *decay, float beta, float *y)
{
    __m256 m[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, d[2];
    for (uint32_t i = 0; i < n; i++) {
        __m256 key = _mm256_set1_ps(k[i]), keep = _mm256_set1_ps(decay[i]);
        for (int half = 0; half < 2; half++) {
            float *at = state + (uint64_t)i * 16 + 8 * half;
            __m256 s = _mm256_mul_ps(_mm256_loadu_ps(at), keep);
            _mm256_storeu_ps(at, s);
            m[half] = _mm256_fmadd_ps(s, key, m[half]);
        }
    }
    for (int half = 0; half < 2; half++)
        d[half] = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(v + 8 * half), m[half]),
                                _mm256_set1_ps(beta));
    for (uint32_t i = 0; i < n; i++) {
        __m256 key = _mm256_set1_ps(k[i]), query = _mm256_set1_ps(q[i]);
        for (int half = 0; half < 2; half++) {
            float *at = state + (uint64_t)i * 16 + 8 * half;
            __m256 s = _mm256_fmadd_ps(key, d[half], _mm256_loadu_ps(at));
            _mm256_storeu_ps(at, s);
            sum[half] = _mm256_fmadd_ps(s, query, sum[half]);
        }
    }
    for (int half = 0; half < 2; half++)
        _mm256_storeu_ps(y + 8 * half, sum[half]);
}

static void scan_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                      float decay, float *y)
{
    __m256 value[2] = {_mm256_loadu_ps(v), _mm256_loadu_ps(v + 8)}, keep = _mm256_set1_ps(decay);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < n; i++) {
        __m256 key = _mm256_set1_ps(k[i]), query = _mm256_set1_ps(q[i]);
        for (int half = 0; half < 2; half++) {
            float *at = state + (uint64_t)i * 16 + 8 * half;
            __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(at), keep);
            __m256 s = _mm256_fmadd_ps(key, value[half], kept);
            _mm256_storeu_ps(at, s);
            sum[half] = _mm256_fmadd_ps(s, query, sum[half]);
        }
    }
    for (int half = 0; half < 2; half++)
        _mm256_storeu_ps(y + 8 * half, sum[half]);
}

static void select_step(float *state, const float *rates, const float *steps, const float *k,
                        const float *q, const float *v, uint32_t n, float *y)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int half = 0; half < 16; half += 8) {
        __m256 value = _mm256_loadu_ps(v + half), sum = _mm256_setzero_ps();
        __m256 step = _mm256_xor_ps(_mm256_loadu_ps(steps + half), sign);
        for (uint32_t i = 0; i < n; i++) {
            float *at = state + (uint64_t)i * 16 + half;
            __m256 rate = _mm256_loadu_ps(rates + (uint64_t)i * 16 + half);
            __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(at), exp8(_mm256_mul_ps(rate, step)));
            __m256 s = _mm256_fmadd_ps(_mm256_set1_ps(k[i]), value, kept);
            _mm256_storeu_ps(at, s);
            sum = _mm256_fmadd_ps(s, _mm256_set1_ps(q[i]), sum);
        }
        _mm256_storeu_ps(y + half, sum);
    }
}

static void f32_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        y[i] = moe_f32_to_f16(x[i]);
}

static void f16_to_f32(const uint16_t *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    for (; i < n; i++)
        y[i] = moe_f16_to_f32(x[i]);
}

void moe_kern_fill_avx2(struct moe_kern *kern)
{
    fill_float_panels(kern);
    fill_few_panels(kern);
    fill_quant_panels(kern);
    fill_grid_tables();
    fill_grid_panels(kern);
    fill_unpacked(kern);
    MOE_UNPACK_EACH(MOE_UNPACK_ENTER)
    MOE_UNPACK_ENTER(MXFP4)
    MOE_PANEL_EACH_GRID(MOE_UNPACK_ENTER)
    kern->quantize = quantize;
    kern->rms_norm = rms_norm;
    kern->layer_norm = layer_norm;
    kern->exp_sum = exp_sum;
    kern->softmax = softmax;
    kern->swiglu = swiglu;
    kern->swiglu_clamped = swiglu_clamped;
    kern->silu = silu;
    kern->relu = relu;
    kern->tanh = tanh_of;
    kern->axpy = axpy;
    kern->add = vec_add;
    kern->mul_add = mul_add;
    kern->scale = scale;
    kern->clamp = clamp;
    kern->rope = rope;
    kern->dot = dot;
    kern->delta_step = delta_step;
    kern->scan_step = scan_step;
    kern->select_step = select_step;
    kern->f32_to_f16 = f32_to_f16;
    kern->f16_to_f32 = f16_to_f32;
}

#else

void moe_kern_fill_avx2(struct moe_kern *kern)
{
    (void)kern;
}

#endif
