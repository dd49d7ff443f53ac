/*
 * AVX-512 (F, BW, VL, DQ, VNNI): a panel's 16 rows are the 16 lanes of one register.
 *
 * Codes times activations: vpdpbusd takes unsigned codes and signed activations, four columns at a
 * time, into exact 32-bit sums. Where a code's number is signed, it is taken as the code itself or,
 * from a table, moved up to be unsigned; the sum starts at minus what that adds.
 *
 * Measured on a Zen 4 (EPYC, tests/bench/bench_kernels): one input reads weights at 85-100% of a
 * plain streaming read per core; a tile of 8 reaches 83% of the dot product's rate from the caches
 * with blocks of 64, where the three f32 operations per block and 16 dot products allow 84%, and
 * the whole of fma's rate for float layouts. Tried and dropped, since nothing was gained or some
 * lost: two panels of codes at once that share the broadcast activations; software prefetch of
 * weights 1-8 KB ahead (25% slower than the processor's own) and of the outputs' lines. Where a
 * span is 256 columns, prefetching is needed: without it a Zen 5 reads Q4_K and Q5_K at a third of
 * the rate.
 */
#include "kern/kern_math.h"
#include "kern/kern_panel.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) &&                      \
    defined(__AVX512DQ__) && defined(__AVX512VNNI__)

#include <immintrin.h>

#include "kern/kern_x86.h"

enum { AHEAD = 4096 /* bytes */ };

/* ---- Panels ---- */

/* Column `c` of a panel of the KV cache's codes. */
MOE_TEMPLATE __m512 cell_column(int kind, const uint8_t *panel, const float *scales, uint32_t c)
{
    const __m128i *at = (const __m128i *)moe_cells_at(kind, panel, c);
    const bool keys = moe_cells_are_keys(kind);
    __m128i codes = kind == MOE_LAYOUT_VALUES_Q4 ? _mm_loadl_epi64(at) : _mm_loadu_si128(at);
    if (kind == MOE_LAYOUT_VALUES_Q4)
        codes = _mm_unpacklo_epi64(codes, _mm_srli_epi16(codes, 4));
    if (kind == MOE_LAYOUT_KEYS_Q4)
        codes = _mm_srl_epi16(codes, _mm_cvtsi32_si128((int)(c % 2) * 4));
    if (moe_cells_have_four(kind))
        codes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)moe_iq4_numbers),
                                 _mm_and_si128(codes, _mm_set1_epi8(15)));
    __m512 scale = keys ? _mm512_loadu_ps(scales + c / 32 * 16) : _mm512_set1_ps(scales[c]);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), scale);
}

/* Two columns of a scaled kind without their scales: of F8 as f16, of 4 bits in the order of rows
 * that four_bit_rows() makes. */
MOE_TEMPLATE void scaled_columns(int kind, const uint8_t *at, __m512 w[2])
{
    if (kind == MOE_LAYOUT_NF4 || kind == MOE_LAYOUT_FP4) {
        const __m512i shifts = _mm512_setr_epi64(0, 8, 16, 24, 4, 12, 20, 28);
        const __m512 numbers =
            _mm512_loadu_ps(kind == MOE_LAYOUT_NF4 ? moe_nf4_numbers : moe_fp4_numbers);
        MOE_UNROLL
        for (int i = 0; i < 2; i++) {
            int64_t codes;
            memcpy(&codes, at + 8 * i, 8);
            w[i] =
                _mm512_permutexvar_ps(/* whose lowest four bits count */
                                      _mm512_srlv_epi64(_mm512_set1_epi64(codes), shifts), numbers);
        }
    } else if (kind == MOE_LAYOUT_I8) {
        for (int i = 0; i < 2; i++)
            w[i] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen_bytes(at + 16 * i)));
    } else {
        __m512i half = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)at));
        half = _mm512_slli_epi16(half, 7);
        half = _mm512_and_si512(half, _mm512_set1_epi16((short)0xbfff));
        w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
        w[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
    }
}

/* Lanes in the order of rows, from that in which a shift by bytes of 64 bits leaves them: each has
 * a byte of the first four and the one four further. Or, the other way. */
MOE_TEMPLATE __m512 four_bit_rows(int kind, bool back, __m512 lanes)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m512i rows = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    return moe_kind_is_scaled(kind) && moe_scaled_bits(kind) == 4
               ? _mm512_permutexvar_ps(back ? rows : order, lanes)
               : lanes;
}

/* The scales of the group from column `first` on. */
MOE_TEMPLATE __m512 scaled_scale(int kind, struct moe_layout layout, const uint8_t *panel,
                                 uint32_t first)
{
    const float *at = (const float *)panel + moe_scaled_place(layout, first, 0);
    __m512 scale = layout.kind == MOE_LAYOUT_F8_B ? _mm512_set1_ps(*at) : _mm512_loadu_ps(at);
    return four_bit_rows(kind, false, _mm512_mul_ps(scale, _mm512_set1_ps(moe_scaled_unit(kind))));
}

/* Column `c` of a float panel that is not scaled. */
MOE_TEMPLATE __m512 float_column(int kind, const uint8_t *panel, const float *scales, uint32_t c)
{
    if (moe_cells_any(kind))
        return cell_column(kind, panel, scales, c);
    const uint8_t *at = moe_float_at(kind, panel, c, 0);
    if (kind == MOE_LAYOUT_F32)
        return _mm512_loadu_ps(at);
    __m256i half = _mm256_loadu_si256((const __m256i *)at);
    if (kind == MOE_LAYOUT_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* np panels, one behind the other, times nt inputs. */
MOE_TEMPLATE void float_panels(int kind, int np, int nt, MOE_PANEL_PARAMS)
{
    const float *x = tile->x;
    const bool scaled = moe_kind_is_scaled(kind);
    const int step = scaled ? 4 : 1;
    const uint64_t bytes = np > 1 ? moe_layout_panel_bytes(layout, cols) : 0;
    const uint8_t *codes = scaled ? panel + moe_scaled_front(layout, cols) : panel;
    __m512 sum[MOE_TILE], scale[MOE_FEW_PANELS] = {_mm512_setzero_ps()};
    MOE_UNROLL
    for (int i = 0; i < np * nt; i++)
        sum[i] = _mm512_setzero_ps();
    for (uint32_t first = 0, end; first < cols; first = end) {
        end = moe_scaled_end(kind, layout, first, cols);
        MOE_UNROLL
        for (int p = 0; scaled && p < np; p++)
            scale[p] = scaled_scale(kind, layout, panel + p * bytes, first);
        for (uint32_t c = first; c < end; c += step, x += step * nt) {
            MOE_UNROLL
            for (int p = 0; p < np; p++) {
                const uint8_t *of = codes + p * bytes;
                __m512 w[4];
                if (np > 1)
                    _mm_prefetch((const char *)moe_float_at(kind, of, c, 0) + AHEAD, _MM_HINT_T0);
                MOE_UNROLL
                for (int i = 0; i < step; i++) {
                    if (!scaled)
                        w[i] = float_column(kind, of, tile->s, c);
                    else if (i % 2 == 0)
                        scaled_columns(kind, moe_float_at(kind, of, c + i, 0), w + i);
                    w[i] = scaled ? _mm512_mul_ps(w[i], scale[p]) : w[i];
                    MOE_UNROLL
                    for (int t = 0; t < nt; t++)
                        sum[p * nt + t] =
                            _mm512_fmadd_ps(w[i], _mm512_set1_ps(x[i * nt + t]), sum[p * nt + t]);
                }
            }
        }
    }
    MOE_UNROLL
    for (int i = 0; i < np * nt; i++)
        _mm512_storeu_ps(y + i / nt * MOE_PANEL_ROWS + i % nt * y_stride,
                         four_bit_rows(kind, true, sum[i]));
}

MOE_TEMPLATE void float_panel(int kind, int nt, MOE_PANEL_PARAMS)
{
    float_panels(kind, 1, nt, MOE_PANEL_ARGS);
}

MOE_TEMPLATE void float_few(int kind, int nt, MOE_PANEL_PARAMS)
{
    float_panels(kind, MOE_FEW_PANELS, nt, MOE_PANEL_ARGS);
}

/* What quad() adds to the number of a code. */
MOE_TEMPLATE int number_offset(int kind)
{
    return moe_kind_zero(kind) - moe_kind_least(kind);
}

/* Numbers of codes 16 i to 16 i + 15, by the low four bits of `codes`, plus their offset. */
MOE_TEMPLATE __m512i sixteen_numbers(int kind, int i, __m512i codes)
{
    __m128i numbers = _mm_loadu_si128((const __m128i *)moe_kind_numbers(kind) + i);
    numbers = _mm_add_epi8(numbers, _mm_set1_epi8((char)number_offset(kind)));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(numbers), codes);
}

/* Of codes with that bit the second. */
MOE_TEMPLATE __m512i pick_by_bit(__m512i codes, int bit, __m512i first, __m512i second)
{
    return _mm512_mask_mov_epi8(
        first, _mm512_test_epi8_mask(codes, _mm512_set1_epi8((char)(1 << bit))), second);
}

/* Numbers of the codes of kinds with a table, plus their offset. */
MOE_TEMPLATE __m512i table_numbers(int kind, __m512i codes)
{
    __m512i low = sixteen_numbers(kind, 0, codes), high;
    if (moe_kind_is_iq5k(kind) || kind == MOE_LAYOUT_IQ6_K)
        low = pick_by_bit(codes, 4, low, sixteen_numbers(kind, 1, codes));
    if (kind != MOE_LAYOUT_IQ6_K)
        return low;
    high = pick_by_bit(codes, 4, sixteen_numbers(kind, 2, codes), sixteen_numbers(kind, 3, codes));
    return pick_by_bit(codes, 5, low, high);
}

/* `bits` bits from bit `from` of each byte on, moved to bit `to` of a byte. Shifts move bits across
 * bytes within 16 bits; the mask drops those. */
MOE_TEMPLATE __m512i take_bits(__m512i bytes, int bits, int from, int to)
{
    __m512i moved = from < to   ? _mm512_slli_epi16(bytes, to - from)
                    : from > to ? _mm512_srli_epi16(bytes, from - to)
                                : bytes;
    return _mm512_and_si512(moved, _mm512_set1_epi8((char)(((1 << bits) - 1) << to)));
}

/* Quad `s` (columns 4s..4s+3) of a step: a byte per code. */
MOE_TEMPLATE __m512i quad(int kind, const uint8_t *step, const uint8_t *plane, int s)
{
    const int bits = moe_code_plane(kind), n = 8 / bits; /* quads in a unit */
    const int more = moe_code_high_plane(kind);
    __m512i codes = _mm512_loadu_si512(step + s / n * MOE_UNIT);
    if (bits < 8)
        codes = take_bits(codes, bits, s % n * bits, 0);
    if (more) {
        const int columns = 8 / more;
        __m512i high = _mm512_loadu_si512(plane + s / columns * MOE_UNIT);
        codes = _mm512_or_si512(codes,
                                take_bits(high, more, s % columns * more, moe_code_high_at(kind)));
    }
    return moe_kind_numbers(kind) ? table_numbers(kind, codes) : codes;
}

MOE_TEMPLATE __m512i four_activations(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, 4);
    return _mm512_set1_epi32(word);
}

/* What the starts of a block's groups have beside the bits of its units: IQ1_KT's second bytes,
 * that of group g as byte g. */
MOE_TEMPLATE __m512i trellis_more(int kind, const uint8_t *head, const uint8_t *codes, uint32_t b)
{
    if (kind == MOE_LAYOUT_IQ1_KT) {
        const uint8_t *h = head + (8 + 2 * b) * MOE_PANEL_ROWS;
        __m512i last = _mm512_cvtepu8_epi32(sixteen_bytes(head + b * MOE_PANEL_ROWS));
        __m512i four = _mm512_cvtepu8_epi32(sixteen_bytes(h + MOE_PANEL_ROWS));
        four = _mm512_slli_epi32(four, 16);
        four = _mm512_or_si512(four, _mm512_cvtepu8_epi32(sixteen_bytes(h)));
        last = _mm512_mullo_epi32(_mm512_srli_epi32(last, 4), _mm512_set1_epi32(0x2040810));
        /* From two nibbles in every other byte, and four bits 7 apart. */
        four = _mm512_or_si512(
            _mm512_and_si512(four, _mm512_set1_epi32(0x000f000f)),
            _mm512_and_si512(_mm512_slli_epi32(four, 4), _mm512_set1_epi32(0x0f000f00)));
        last = _mm512_and_si512(last, _mm512_set1_epi8(16));
        return _mm512_add_epi8(_mm512_or_si512(four, last), _mm512_set1_epi8(4096 >> 8));
    }
    if (kind == MOE_LAYOUT_IQ4_KT)
        return _mm512_and_si512(_mm512_srli_epi32(_mm512_loadu_si512(codes), 15),
                                _mm512_set1_epi32(0x8000));
    return _mm512_setzero_si512();
}

/* Starts of group g. */
MOE_TEMPLATE __m512i trellis_start(int kind, const uint8_t *codes, __m512i more, int g)
{
    const int bits = kind == MOE_LAYOUT_IQ4_KT ? 15 : 16;
    __m512i start = _mm512_loadu_si512(codes + (kind == MOE_LAYOUT_IQ1_KT ? 0 : g / 2) * MOE_UNIT);
    if (kind == MOE_LAYOUT_IQ1_KT) {
        const int one = (int)0x80808000 + g, two = (int)0x80800080 + (g << 8);
        const __m512i first = _mm512_set4_epi32(one + 12, one + 8, one + 4, one);
        const __m512i second = _mm512_set4_epi32(two + 0xc00, two + 0x800, two + 0x400, two);
        return _mm512_or_si512(_mm512_shuffle_epi8(start, first),
                               _mm512_shuffle_epi8(more, second));
    }
    start = _mm512_srli_epi32(start, (unsigned)(g % 2 * bits));
    start = _mm512_and_si512(start, _mm512_set1_epi32((1 << bits) - 1));
    return _mm512_add_epi32(_mm512_or_si512(start, more), _mm512_set1_epi32(4096));
}

/* The bytes whose sum is the number of column c of a group. */
MOE_TEMPLATE __m512i trellis_bytes(__m512i start, int c)
{
    static const uint32_t powers[8] = MOE_TRELLIS_POWERS;
    return _mm512_and_si512(_mm512_mullo_epi32(start, _mm512_set1_epi32((int)powers[c])),
                            _mm512_set1_epi8(0x3f));
}

/* moe_trellis_units, with one instruction for the sum of a number's bytes, put below those of the
 * columns after it. */
MOE_TEMPLATE void trellis_units(int kind, const uint8_t *head, const uint8_t *codes, uint32_t b,
                                struct moe_code_units *units)
{
    const int quads = (int)moe_trellis_columns(kind) / 4;
    const __m512i most = _mm512_set1_epi8((char)252), more = trellis_more(kind, head, codes, b);
    __m512i start = more;
    MOE_UNROLL
    for (int s = 0; s < MOE_STEP_QUADS; s++) {
        __m512i quad = _mm512_setzero_si512();
        if (s % quads == 0)
            start = trellis_start(kind, codes, more, s / quads);
        MOE_UNROLL
        for (int k = 3; k >= 0; k--)
            quad =
                _mm512_dpbusd_epi32(_mm512_slli_epi32(quad, 8),
                                    trellis_bytes(start, s % quads * 4 + k), _mm512_set1_epi8(1));
        if (kind == MOE_LAYOUT_IQ3_KT) {
            quad = _mm512_max_epu8(quad, _mm512_sub_epi8(most, quad));
            __mmask64 negative = _mm512_test_epi8_mask(_mm512_loadu_si512(codes + 2 * MOE_UNIT),
                                                       _mm512_set1_epi8((char)(1 << s)));
            quad = _mm512_mask_sub_epi8(quad, negative, most, quad);
        }
        _mm512_storeu_si512(units->word[s], quad);
    }
}

/* Sums of block b of a record times a single input, of trellis kinds without signs of their own: a
 * number is the sum of four bytes less 126, so all four meet the column's activation. */
MOE_TEMPLATE __m512i trellis_sum(int kind, const struct moe_record *record, uint32_t b,
                                 const struct moe_tile *in)
{
    const int quads = (int)moe_trellis_columns(kind) / 4;
    const uint8_t *head = moe_record_scale(kind, record, b, 0).head;
    const __m512i more = trellis_more(kind, head, record->codes, b % 8);
    __m512i part[4] = {_mm512_set1_epi32(moe_scale_less(kind, in->sum, 0, 126))}, start = more;
    MOE_UNROLL
    for (int i = 1; i < 4; i++)
        part[i] = _mm512_setzero_si512();
    MOE_UNROLL
    for (int s = 0; s < MOE_STEP_QUADS; s++) {
        if (s % quads == 0)
            start = trellis_start(kind, record->codes, more, s / quads);
        MOE_UNROLL
        for (int k = 0; k < 4; k++)
            part[k] = _mm512_dpbusd_epi32(part[k], trellis_bytes(start, s % quads * 4 + k),
                                          _mm512_set1_epi8(in->q[4 * s + k]));
    }
    return _mm512_add_epi32(_mm512_add_epi32(part[0], part[1]), _mm512_add_epi32(part[2], part[3]));
}

/* moe_pairs_units: first numbers of all rows' four pairs by one table, second ones by another. */
MOE_TEMPLATE void pairs_units(const uint8_t *head, const uint8_t *codes, uint32_t b,
                              struct moe_code_units *units)
{
    const __m512i low_byte = _mm512_set1_epi16(255), low_four = _mm512_set1_epi8(15);
    __m512i tables[2][2];
    MOE_UNROLL
    for (int i = 0; i < 4; i++) {
        __m128i table = sixteen_bytes((const uint8_t *)moe_iq2kl_numbers + 16 * i);
        table = _mm_add_epi8(table, _mm_set1_epi8((char)moe_kind_zero(MOE_LAYOUT_IQ2_KL)));
        tables[i / 2][i % 2] = _mm512_broadcast_i32x4(table);
    }
    MOE_UNROLL
    for (int i = 0; i < 4; i++) { /* units, halves of bytes */
        const int j = i / 2, n = i % 2;
        __m512i more =
            _mm512_cvtepu8_epi32(sixteen_bytes(head + (6 + 2 * b + (uint32_t)j) * MOE_PANEL_ROWS));
        __m512i four = _mm512_loadu_si512(codes + j * MOE_UNIT), of[2];
        more = _mm512_mullo_epi32(more, _mm512_set1_epi32(0x01010101));
        const __m512i bits = _mm512_set1_epi32((int)(0x08040201u << 4 * n));
        const __mmask64 high = _mm512_test_epi8_mask(more, bits);
        four = _mm512_and_si512(n ? _mm512_srli_epi16(four, 4) : four, low_four);
        MOE_UNROLL
        for (int k = 0; k < 2; k++)
            of[k] = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(tables[k][0], four), high,
                                             tables[k][1], four);
        _mm512_storeu_si512(
            units->word[4 * j + 2 * n],
            _mm512_or_si512(_mm512_and_si512(of[0], low_byte), _mm512_slli_epi16(of[1], 8)));
        _mm512_storeu_si512(
            units->word[4 * j + 2 * n + 1],
            _mm512_or_si512(_mm512_srli_epi16(of[0], 8), _mm512_andnot_si512(low_byte, of[1])));
    }
}

/* moe_ternary_units: the highest digit of a byte is its product with 3 / 256. */
MOE_TEMPLATE void ternary_units(const uint8_t *head, const uint8_t *codes, uint32_t b,
                                struct moe_code_units *units)
{
    const __m512i one = _mm512_set1_epi8(1), high_byte = _mm512_set1_epi16((short)0xff00);
    __m512i x = _mm512_loadu_si512(codes), all = x;
    MOE_UNROLL
    for (uint32_t s = 0; s < MOE_STEP_QUADS; s++) {
        if (s >= 5) {
            const uint32_t i = 3 * b + s - 5;
            const __m512i power = _mm512_set1_epi16(ternary_power(i % 5));
            x = _mm512_loadu_si512(head + 2 * MOE_PANEL_ROWS + i / 5 * MOE_UNIT);
            x = _mm512_or_si512(_mm512_andnot_si512(high_byte, _mm512_mullo_epi16(x, power)),
                                _mm512_mullo_epi16(_mm512_and_si512(high_byte, x), power));
        }
        __m512i digit = _mm512_min_epu8(one, _mm512_subs_epu8(x, _mm512_set1_epi8(85)));
        digit = _mm512_add_epi8(
            digit, _mm512_min_epu8(one, _mm512_subs_epu8(x, _mm512_set1_epi8((char)170))));
        digit = _mm512_slli_epi16(digit, s % 4 * 2);
        all = s % 4 ? _mm512_or_si512(all, digit) : digit;
        if (s % 4 == 3)
            _mm512_storeu_si512(units->word[s / 4], all);
        x = _mm512_add_epi8(x, _mm512_add_epi8(x, x));
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

/* ---- Products of panels ---- */

/* Sums of the columns of scale number p of a block into sum[t]. Few inputs keep several sums each,
 * so that a dot product need not wait for the one before; integers add up in any order. */
MOE_TEMPLATE void scale_sums(int kind, int nt, uint32_t block, const uint8_t *codes, int p,
                             const struct moe_tile *in, __m512i sum[MOE_TILE])
{
    const int split = nt == 1 ? 4 : nt == 2 ? 2 : 1, quads = moe_scale_quads(kind);
    const uint32_t steps = block / MOE_STEP;
    const uint8_t *plane = codes + steps * moe_step_bytes(kind);
    const int8_t *q = in->q;
    __m512i part[MOE_TILE];
    MOE_UNROLL
    for (int i = 0; i < nt * split; i++)
        part[i] = number_offset(kind) && i % split == 0
                      ? _mm512_set1_epi32(
                            moe_scale_less(kind, &in->sum[i / split], p, number_offset(kind)))
                      : _mm512_setzero_si512();
    for (uint32_t step = 0; step < steps; step++) {
        MOE_UNROLL
        for (int s = p * quads; s < (p + 1) * quads; s++) {
            __m512i w = quad(kind, codes, plane, s);
            MOE_UNROLL
            for (int t = 0; t < nt; t++) {
                int i = t * split + s % split;
                part[i] = _mm512_dpbusd_epi32(part[i], w, four_activations(q + (s * nt + t) * 4));
            }
        }
        codes += moe_step_bytes(kind);
        plane += moe_high_step_bytes(kind);
        q += MOE_STEP * nt;
    }
    MOE_UNROLL
    for (int t = 0; t < nt; t++) {
        sum[t] = part[t * split];
        MOE_UNROLL
        for (int i = 1; i < split; i++)
            sum[t] = _mm512_add_epi32(sum[t], part[t * split + i]);
    }
}

MOE_TEMPLATE __m512 half_scales(const uint8_t *f16)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)f16));
}

/* moe_kind_packed_number of all rows. */
MOE_TEMPLATE __m512i packed_number(int kind, const uint8_t *numbers, uint32_t i)
{
    const int more = moe_kind_packed_high(kind);
    __m128i low = sixteen_bytes(moe_packed_low(numbers, i));
    low = _mm_srl_epi16(low, _mm_cvtsi32_si128((int)(i % 2 * 4)));
    low = _mm_and_si128(low, _mm_set1_epi8(15));
    if (more) {
        __m128i high = sixteen_bytes(moe_packed_more(kind, numbers, i));
        high = _mm_srl_epi16(high, _mm_cvtsi32_si128(moe_packed_more_at(kind, i)));
        high = _mm_and_si128(_mm_slli_epi16(high, 4), _mm_set1_epi8(more == 2 ? 0x30 : 0x10));
        low = _mm_or_si128(low, high);
    }
    return _mm512_cvtepu8_epi32(low);
}

/* e of a scale, of all rows, where it is in one(n). */
MOE_TEMPLATE __m512i shift_bit(int kind, const uint8_t *numbers, uint32_t i)
{
    __m128i bits =
        sixteen_bytes(numbers + ((uint32_t)moe_kind_shifts_at(kind) + i / 8) * MOE_PANEL_ROWS);
    bits = _mm_srl_epi16(bits, _mm_cvtsi32_si128((int)(i % 8)));
    return _mm512_cvtepu8_epi32(_mm_and_si128(bits, _mm_set1_epi8(1)));
}

/* d and m of a scale, of all rows: moe_kind_scale. */
MOE_TEMPLATE void read_scale(int kind, struct moe_place at, __m512 *d, __m512 *m)
{
    const uint8_t *numbers = moe_place_numbers(kind, at);
    const bool k_min = moe_kind_span(kind) && moe_kind_has_min(kind);
    const int step = moe_kind_scale_step(kind), zero = moe_kind_scale_zero(kind);
    __m512i s, t = _mm512_setzero_si512();
    if (moe_kind_is_e2m1(kind)) {
        s = _mm512_cvtepu8_epi32(sixteen_bytes(at.head + at.i * MOE_PANEL_ROWS));
        if (kind == MOE_LAYOUT_MXFP4) {
            s = _mm512_max_epu32(_mm512_slli_epi32(s, 23), _mm512_set1_epi32(1 << 22));
            *d = _mm512_mul_ps(_mm512_castsi512_ps(s), _mm512_set1_ps(0.5f));
        } else {
            const __mmask16 few = _mm512_cmplt_epu32_mask(s, _mm512_set1_epi32(8));
            const __m512i bits =
                _mm512_add_epi32(_mm512_slli_epi32(s, 20), _mm512_set1_epi32(119 << 23));
            *d = _mm512_mask_mul_ps(_mm512_castsi512_ps(bits), few, _mm512_cvtepi32_ps(s),
                                    _mm512_set1_ps(0x1p-10f));
        }
        return;
    }
    *d = moe_kind_has_d(kind) ? half_scales(at.head) : _mm512_set1_ps(1);
    if (moe_kind_has_min(kind))
        *m = half_scales(at.head + 2 * MOE_PANEL_ROWS);
    if (moe_kind_shift(kind) && !moe_kind_scale_has_e(kind))
        t = shift_bit(kind, numbers, at.i);
    if (moe_kind_packed(kind)) {
        s = packed_number(kind, numbers, at.i);
        if (k_min)
            t = packed_number(kind, numbers, 8 + at.i);
    } else if (kind == MOE_LAYOUT_IQ1_KT) {
        s = _mm512_cvtepu8_epi32(sixteen_bytes(numbers + at.i * MOE_PANEL_ROWS));
        s = _mm512_and_si512(s, _mm512_set1_epi32(15));
    } else if (kind == MOE_LAYOUT_IQ4_KT) {
        s = _mm512_setzero_si512();
        MOE_UNROLL
        for (int j = 3; j >= 0; j--) {
            __m512i word = _mm512_loadu_si512(at.codes + j * MOE_UNIT);
            s = _mm512_or_si512(_mm512_slli_epi32(s, 2), _mm512_srli_epi32(word, 30));
        }
        s = _mm512_srli_epi32(s, 1);
    } else if (moe_kind_scale_has_e(kind)) {
        s = _mm512_cvtepu8_epi32(sixteen_bytes(numbers + at.i * MOE_PANEL_ROWS));
        t = _mm512_and_si512(s, _mm512_set1_epi32(1));
        s = _mm512_srli_epi32(s, 1);
    } else if (kind == MOE_LAYOUT_Q6_K || kind == MOE_LAYOUT_IQ6_K) {
        s = _mm512_cvtepi8_epi32(sixteen_bytes(numbers + at.i * MOE_PANEL_ROWS));
    } else if (kind == MOE_LAYOUT_Q2_K) {
        s = _mm512_cvtepu8_epi32(sixteen_bytes(numbers + at.i * MOE_PANEL_ROWS));
        t = _mm512_srli_epi32(s, 4);
        s = _mm512_and_si512(s, _mm512_set1_epi32(15));
    } else {
        return;
    }
    if (kind == MOE_LAYOUT_IQ1_KT ||
        kind == MOE_LAYOUT_IQ2_KT) { /* a table's, of the lowest bytes */
        __m128i table = sixteen_bytes((const uint8_t *)moe_iq4_numbers);
        s = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), s);
        s = _mm512_srai_epi32(_mm512_slli_epi32(s, 24), 24);
    }
    if (step == 2)
        s = _mm512_add_epi32(s, s);
    if (zero)
        s = _mm512_sub_epi32(s, _mm512_set1_epi32(zero));
    *d = _mm512_mul_ps(*d, _mm512_cvtepi32_ps(s));
    if (moe_kind_shift(kind))
        *m = _mm512_mul_ps(
            *d, _mm512_cvtepi32_ps(_mm512_mullo_epi32(t, _mm512_set1_epi32(moe_kind_shift(kind)))));
    else if (k_min)
        *m = _mm512_xor_ps(_mm512_mul_ps(*m, _mm512_cvtepi32_ps(t)), _mm512_set1_ps(-0.0f));
}

/* Makes d and m of the head's d and its zero points: moe_zero_scales. */
MOE_TEMPLATE void read_zeros(const uint8_t *head, __m512 *d, __m512 *m)
{
    const uint8_t *words = head + 2 * MOE_PANEL_ROWS;
    __m512i word = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)words));
    __m512i power = _mm512_sub_epi32(_mm512_set1_epi32(127), _mm512_srli_epi32(word, 9));
    __m512 zero = _mm512_cvtepi32_ps(_mm512_and_si512(word, _mm512_set1_epi32(511)));
    *d = _mm512_mul_ps(*d, _mm512_castsi512_ps(_mm512_slli_epi32(power, 23)));
    *m = _mm512_xor_ps(_mm512_mul_ps(*d, zero), _mm512_set1_ps(-0.0f));
}

/* With a single input, prefetches the weights AHEAD bytes after block b of a record, and after its
 * head, in kinds whose heads lie so far apart that the processor's own prefetcher loses the trail.
 */
MOE_TEMPLATE void read_ahead(int kind, int nt, const struct moe_record *record, uint32_t b)
{
    if (nt > 1 || moe_kind_span(kind) != MOE_MAX_SPAN)
        return;
    if (b == 0)
        fetch_lines(record->head + AHEAD, full_head_bytes(kind));
    fetch_lines(record->codes + AHEAD, moe_kind_block_bytes(kind, 32));
}

MOE_TEMPLATE void quant_body(int kind, int nt, uint32_t block, MOE_PANEL_PARAMS)
{
    struct moe_tile in = *tile;
    const uint8_t *front = panel;
    const bool direct = nt == 1 && moe_kind_is_trellis(kind) && kind != MOE_LAYOUT_IQ3_KT;
    __m512 d = _mm512_setzero_ps(), m = d, out[MOE_TILE];
    struct moe_code_units units;
    panel += moe_kind_front(layout.kind);
    MOE_UNROLL
    for (int t = 0; t < nt; t++)
        out[t] = _mm512_setzero_ps();
    for (uint32_t first = 0; first < cols;) {
        struct moe_record rec = moe_record_next(kind, layout.group, block, cols, &panel, &first);
        if (!moe_kind_span(kind))
            read_scale(kind, moe_record_scale(kind, &rec, 0, 0), &d, &m);
        if (!moe_kind_span(kind) && moe_kind_has_zeros(layout.kind))
            read_zeros(rec.head, &d, &m);
        for (uint32_t b = 0; b < rec.blocks; b++) {
            const uint8_t *codes = direct ? NULL : record_codes(kind, &rec, b, &units);
            read_ahead(kind, nt, &rec, b);
            MOE_UNROLL
            for (int p = 0; p < moe_kind_scales(kind); p++) {
                __m512i sum[MOE_TILE];
                if (moe_kind_span(kind))
                    read_scale(kind, moe_record_scale(kind, &rec, b, (uint32_t)p), &d, &m);
                if (direct)
                    sum[0] = trellis_sum(kind, &rec, b, &in);
                else
                    scale_sums(kind, nt, block, codes, p, &in, sum);
                MOE_UNROLL
                for (int t = 0; t < nt; t++) {
                    __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(in.s[t]));
                    out[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[t]), out[t]);
                    if (moe_kind_has_offset(kind))
                        out[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(moe_scale_z(kind, &in, t, p)),
                                                 out[t]);
                }
            }
            rec.codes += moe_kind_block_bytes(kind, block);
            moe_tile_step(&in, nt, block);
        }
    }
    MOE_UNROLL
    for (int t = 0; t < nt; t++) {
        if (moe_kind_may_have_front(kind) && moe_kind_front(layout.kind))
            out[t] = _mm512_mul_ps(out[t], _mm512_loadu_ps(front));
        _mm512_storeu_ps(y + t * y_stride, out[t]);
    }
}

MOE_PANEL_BLOCKS
MOE_PANEL_FLOATS
MOE_PANEL_FEW
MOE_PANEL_QUANTS(MOE_PANEL_EACH_CODES)

/* ---- Many inputs ---- */

MOE_TEMPLATE const uint8_t *unpack(int kind, const uint8_t *panel, uint32_t cols,
                                   struct moe_unpacked *to)
{
    const __m512i more = _mm512_set1_epi8((char)(128 - number_offset(kind)));
    struct moe_code_units units;
    __m512 d = _mm512_setzero_ps(), m = d;
    for (uint32_t first = 0; first < cols;) {
        struct moe_record rec = moe_record_next(kind, 32, 32, cols, &panel, &first);
        for (uint32_t b = 0; b < rec.blocks; b++, to++) {
            const uint8_t *codes = record_codes(kind, &rec, b, &units);
            MOE_UNROLL
            for (int p = 0; p < moe_kind_scales(kind); p++) {
                read_scale(kind, moe_record_scale(kind, &rec, b, (uint32_t)p), &d, &m);
                _mm512_storeu_ps(to->d[p], d);
                _mm512_storeu_ps(to->m[p], m);
            }
            MOE_UNROLL
            for (int s = 0; s < MOE_STEP_QUADS; s++)
                _mm512_storeu_si512(
                    to->codes[s],
                    _mm512_add_epi8(quad(kind, codes, codes + moe_step_bytes(kind), s), more));
            rec.codes += moe_kind_block_bytes(kind, 32);
        }
    }
    return panel;
}

MOE_TEMPLATE void unpacked(int scales, int nt, MOE_UNPACKED_PARAMS)
{
    const int quads = MOE_STEP_QUADS / scales;
    struct moe_tile in = *tile;
    __m512 out[MOE_TILE];
    MOE_UNROLL
    for (int t = 0; t < nt; t++)
        out[t] = _mm512_loadu_ps(y + t * y_stride);
    for (uint32_t b = 0; b < n; b++, blocks++) {
        MOE_UNROLL
        for (int p = 0; p < scales; p++) {
            const __m512 d = _mm512_loadu_ps(blocks->d[p]), m = _mm512_loadu_ps(blocks->m[p]);
            __m512i sum[MOE_TILE];
            MOE_UNROLL
            for (int t = 0; t < nt; t++)
                sum[t] = _mm512_set1_epi32(in.sum[t].less[scales == 1 ? 0 : 1 + p]);
            MOE_UNROLL
            for (int s = p * quads; s < (p + 1) * quads; s++) {
                const __m512i w = _mm512_loadu_si512(blocks->codes[s]);
                MOE_UNROLL
                for (int t = 0; t < nt; t++)
                    sum[t] =
                        _mm512_dpbusd_epi32(sum[t], w, four_activations(in.q + (s * nt + t) * 4));
            }
            MOE_UNROLL
            for (int t = 0; t < nt; t++) {
                const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(in.s[t]));
                out[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[t]), out[t]);
            }
            if (numbers.offsets) {
                MOE_UNROLL
                for (int t = 0; t < nt; t++)
                    out[t] = _mm512_fmadd_ps(
                        m, _mm512_set1_ps(scales == 1 ? in.z[t] : in.sum[t].z[p]), out[t]);
            }
        }
        moe_tile_step(&in, nt, 32);
    }
    MOE_UNROLL
    for (int t = 0; t < nt; t++)
        _mm512_storeu_ps(y + t * y_stride, out[t]);
}

MOE_UNPACK_EACH(MOE_UNPACK_ONE)
MOE_UNPACK_ONE(IQ4_NL)
MOE_UNPACKED_ALL

/* ---- Kinds with a grid, where the processor has VBMI; else AVX2 computes them ----
 * Two registers hold 128 entries' bytes, and one instruction looks 64 up: all numbers of a unit. An
 * entry is two bytes: the codes of the first half of its columns and those of the other half.
 * Reading the tables is what limits. */

#define VBMI __attribute__((target("avx512vbmi")))

enum { N_GRIDS = 6, MOST_ENTRIES = 2048, IQ1_BIN = 16 };

/* What fill_grid_tables() makes of grids.h: an entry's two bytes; of kinds with signs the numbers
 * of codes that begin at bit p + 1 of six, with the sign at bit p, plus their offset. */
static struct grid_tables {
    uint8_t half[2][MOST_ENTRIES], numbers[3][64];
} grid_tables[N_GRIDS] __attribute__((aligned(64)));

/* The grid of IQ1 is sorted by the codes of the columns behind: of 16 entries only the first ones
 * and, from a number of them on, the others can differ. Both of each 16, and that number. */
static uint8_t iq1_behind[3][MOST_ENTRIES / IQ1_BIN] __attribute__((aligned(64)));

MOE_TEMPLATE struct grid_tables *tables_of(int kind)
{
    return &grid_tables[kind > MOE_LAYOUT_IQ1_M ? kind - MOE_LAYOUT_IQ1_M : 0];
}

/* Bits of a code in an entry's bytes. */
MOE_TEMPLATE int grid_code_bits(int kind)
{
    return moe_kind_is_iq3(kind) ? 4 : 2;
}

static void fill_grid_tables(void)
{
    for (int kind = MOE_LAYOUT_IQ1_M; kind <= MOE_LAYOUT_IQ3_S; kind++) {
        struct grid_tables *of = tables_of(kind);
        const int bits = grid_code_bits(kind), n = 256 << moe_group_bits(kind);
        const int sign = bits == 4 ? 8 : 4; /* of an index of the kind's numbers */
        for (int i = 0; i < 2 * n; i++) {
            const uint32_t entry = moe_kind_grid(kind)[i / 2] >> (bits == 4 ? 16 : 2) * (i % 2);
            uint32_t half = 0;
            for (int c = 0; c < 8 / bits; c++)
                half |= (entry >> 8 * c & ((1u << bits) - 1)) << bits * c;
            of->half[i % 2][i / 2] = (uint8_t)half;
        }
        for (int i = 0; i < 3 * 64; i++) {
            const int index = i % 64 >> i / 64;
            const int code = (index >> 1 & (sign - 1)) | (index & 1 ? sign : 0);
            of->numbers[i / 64][i % 64] =
                (uint8_t)(moe_kind_numbers(kind)[code] - moe_kind_least(kind));
        }
    }
    for (int i = 0; i < MOST_ENTRIES / IQ1_BIN; i++) {
        const uint8_t *behind = grid_tables[0].half[1] + IQ1_BIN * i;
        uint8_t same = 0;
        while (same < IQ1_BIN && behind[same] == behind[0])
            same++;
        iq1_behind[0][i] = behind[0];
        iq1_behind[1][i] = behind[IQ1_BIN - 1];
        iq1_behind[2][i] = same;
    }
}

/* 64 of 128 bytes. */
VBMI MOE_TEMPLATE __m512i look_128_up(const uint8_t *table, __m512i numbers)
{
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), numbers,
                                    _mm512_load_si512(table + 64));
}

/* 64 entries of a table of n bytes: the numbers' low 8 bits, and where each higher one is 1. */
VBMI MOE_TEMPLATE __m512i look_up(const uint8_t *table, int n, __m512i numbers,
                                  const __mmask64 higher[3])
{
    const __mmask64 seventh = _mm512_movepi8_mask(numbers);
    __m512i found[8];
    MOE_UNROLL
    for (int i = 0; i < n / 256; i++)
        found[i] = _mm512_mask_mov_epi8(look_128_up(table + 256 * i, numbers), seventh,
                                        look_128_up(table + 256 * i + 128, numbers));
    MOE_UNROLL
    for (int i = 0; 256 << i < n; i++)
        for (int k = 0; k < n / 512 >> i; k++)
            found[k] = _mm512_mask_mov_epi8(found[2 * k], higher[i], found[2 * k + 1]);
    return found[0];
}

/* The second halves of 64 entries of IQ1: the numbers' low 8 bits, and the higher ones. */
VBMI MOE_TEMPLATE __m512i look_iq1_behind(__m512i numbers, __m512i higher)
{
    const __m512i four = _mm512_set1_epi8(IQ1_BIN - 1);
    __m512i bins = _mm512_or_si512(_mm512_and_si512(four, _mm512_srli_epi16(numbers, 4)),
                                   _mm512_andnot_si512(four, _mm512_slli_epi16(higher, 4)));
    __mmask64 others =
        _mm512_cmpge_epu8_mask(_mm512_and_si512(numbers, four), look_128_up(iq1_behind[2], bins));
    return _mm512_mask_mov_epi8(look_128_up(iq1_behind[0], bins), others,
                                look_128_up(iq1_behind[1], bins));
}

/* Eight bits from each of eight places in both words of a quarter of a register: `from` and, for
 * the next byte, `step` bits further up. */
VBMI MOE_TEMPLATE __m512i bytes_from(__m512i words, int from, int step)
{
    uint64_t places = 0;
    for (int i = 0; i < 8; i++)
        places |= (uint64_t)((i / 4 * 32 + from + i % 4 * step) & 63) << 8 * i;
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)places), words);
}

/* A block of a kind with a grid: a row's word has the entries of two groups, 16 bits each; its
 * signs, also three and six bits further down, or in IQ1 four bits for each group: bit 3 says what
 * is subtracted. */
struct grid_block {
    __m512i entries[4], signs[3];
};

/* moe_signs_whole of all rows. */
MOE_TEMPLATE __m512i whole_signs(int kind, __m512i signs)
{
    if (kind == MOE_LAYOUT_IQ2_S || kind == MOE_LAYOUT_IQ3_S)
        return signs;
    __m512i known = _mm512_and_si512(signs, _mm512_set1_epi32(0x55ffffff));
    __m512i odd = _mm512_xor_si512(known, _mm512_srli_epi32(known, 8));
    odd = _mm512_xor_si512(odd, _mm512_srli_epi32(odd, 16));
    odd = _mm512_xor_si512(odd, _mm512_srli_epi32(odd, 1));
    odd = _mm512_slli_epi32(_mm512_and_si512(odd, _mm512_set1_epi32(0x55)), 25);
    return _mm512_or_si512(known, odd);
}

/* The four bits of each group of a block of IQ1. */
MOE_TEMPLATE __m512i four_bits(int kind, const uint8_t *numbers, uint32_t b)
{
    numbers += ((kind == MOE_LAYOUT_IQ1_M ? 6 : 0) + 2 * b) * MOE_PANEL_ROWS;
    __m512i low = _mm512_cvtepu8_epi32(sixteen_bytes(numbers));
    __m512i high = _mm512_cvtepu8_epi32(sixteen_bytes(numbers + MOE_PANEL_ROWS));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 8));
}

/* The numbers' higher bits of the groups of unit `unit`, in the low bits of a byte each; `signs` as
 * they lie, or IQ1's four bits. */
VBMI MOE_TEMPLATE __m512i higher_bits(int kind, const uint8_t *numbers, uint32_t b, int unit,
                                      __m512i signs)
{
    if (kind == MOE_LAYOUT_IQ2_XS)
        return bytes_from(signs, 25, 2);
    if (moe_kind_is_iq1(kind))
        return bytes_from(signs, 0, 4);
    const int before = kind == MOE_LAYOUT_IQ2_S ? 8 : 4, step = moe_group_stride(kind);
    const uint8_t *bytes = numbers + ((uint32_t)before + b) * MOE_PANEL_ROWS;
    return bytes_from(_mm512_cvtepu8_epi32(sixteen_bytes(bytes)), 4 * unit, step);
}

/* Block b of a span whose numbers lie at `numbers`. */
VBMI MOE_TEMPLATE void read_block(int kind, const uint8_t *numbers, const uint8_t *codes,
                                  uint32_t b, struct grid_block *block)
{
    const struct grid_tables *tables = tables_of(kind);
    const int units = moe_kind_plane(kind), n = 256 << moe_group_bits(kind);
    const bool one = moe_kind_is_iq1(kind);
    __m512i signs =
        one ? four_bits(kind, numbers, b) : _mm512_loadu_si512(codes + units * MOE_UNIT);
    MOE_UNROLL
    for (int unit = 0; unit < units; unit++) {
        __mmask64 bits[3] = {0, 0, 0};
        __m512i of = _mm512_loadu_si512(codes + unit * MOE_UNIT);
        __m512i higher =
            n > 256 ? higher_bits(kind, numbers, b, unit, signs) : _mm512_setzero_si512();
        MOE_UNROLL
        for (int i = 0; 256 << i < n; i++)
            bits[i] = _mm512_test_epi8_mask(higher, _mm512_set1_epi8((char)(1 << i)));
        __m512i lows = look_up(tables->half[0], n, of, bits);
        __m512i highs = one ? look_iq1_behind(of, higher) : look_up(tables->half[1], n, of, bits);
        /* Rows 0, 1, 4, 5, ... and 2, 3, 6, 7, ..., all groups of a row side by side. */
        __m512 first = _mm512_castsi512_ps(_mm512_unpacklo_epi8(lows, highs));
        __m512 second = _mm512_castsi512_ps(_mm512_unpackhi_epi8(lows, highs));
        block->entries[2 * unit] = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88));
        block->entries[2 * unit + 1] = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0xdd));
    }
    block->signs[0] = one ? signs : whole_signs(kind, signs);
    block->signs[1] = _mm512_srli_epi16(block->signs[0], 3);
    block->signs[2] = _mm512_srli_epi16(block->signs[0], 6);
}

/* Numbers of quad s of a block, plus their offset; of IQ1 4 c and, in IQ1_M, 1 where nothing is
 * subtracted in the group. A number is twice that less 9, or less 7 in IQ1_S's other groups. */
VBMI MOE_TEMPLATE __m512i grid_quad(int kind, const struct grid_block *block, int s)
{
    const int columns = moe_kind_is_iq3(kind) ? 4 : 8, group = s * 4 / columns;
    const int bits = grid_code_bits(kind);
    const int at = moe_kind_is_iq1(kind) ? 2 : s % 3 + 1; /* where codes shall begin */
    __m512i codes =
        bytes_from(block->entries[group / 2], group % 2 * 16 + s * 4 % columns * 2 - at, bits);
    if (moe_kind_is_iq1(kind)) {
        __mmask16 more =
            _mm512_testn_epi32_mask(block->signs[0], _mm512_set1_epi32(8 << 4 * group));
        codes = _mm512_and_si512(codes, _mm512_set1_epi8(12));
        return kind == MOE_LAYOUT_IQ1_S
                   ? codes
                   : _mm512_or_si512(codes, _mm512_maskz_set1_epi32(more, 0x01010101));
    }
    /* 64 entries, of whose numbers only 3 or 4 bits say something. */
    const __m512i of_code = _mm512_set1_epi8((char)((bits == 4 ? 7 : 3) << at));
    codes = _mm512_ternarylogic_epi32(of_code, codes, block->signs[s / 3], 0xca);
    return _mm512_permutexvar_epi8(codes, _mm512_load_si512(tables_of(kind)->numbers[s % 3]));
}

/* Sums of the columns of scale number p of a block into sum[t]. */
VBMI MOE_TEMPLATE void grid_sums(int kind, int nt, const struct grid_block *block, int p,
                                 const struct moe_tile *in, __m512i sum[MOE_TILE])
{
    const int quads = moe_scale_quads(kind);
    const bool one = moe_kind_is_iq1(kind);
    const __mmask16 less = _mm512_test_epi32_mask(block->signs[0], _mm512_set1_epi32(0x8000));
    __m512i start[MOE_TILE], second = _mm512_setzero_si512(); /* of a single input */
    MOE_UNROLL
    for (int t = 0; t < nt; t++) {
        const struct moe_sums *sums = &in->sum[t];
        start[t] = _mm512_set1_epi32(moe_scale_less(kind, sums, p, -moe_kind_least(kind)));
        if (kind == MOE_LAYOUT_IQ1_S)
            start[t] = _mm512_mask_mov_epi32(_mm512_set1_epi32(moe_scale_less(kind, sums, p, 7)),
                                             less, start[t]);
        sum[t] = one ? second : start[t];
    }
    MOE_UNROLL
    for (int s = p * quads; s < (p + 1) * quads; s++) {
        __m512i w = grid_quad(kind, block, s);
        if (nt == 1 && s % 2) {
            second = _mm512_dpbusd_epi32(second, w, four_activations(in->q + s * 4));
            continue;
        }
        MOE_UNROLL
        for (int t = 0; t < nt; t++)
            sum[t] = _mm512_dpbusd_epi32(sum[t], w, four_activations(in->q + (s * nt + t) * 4));
    }
    if (nt == 1)
        sum[0] = _mm512_add_epi32(sum[0], second);
    MOE_UNROLL
    for (int t = 0; one && t < nt; t++)
        sum[t] = _mm512_add_epi32(_mm512_add_epi32(sum[t], sum[t]), start[t]);
}

/* moe_grid_scale of all rows: scale number p of block b of a span, whose signs lie at `signs`. */
MOE_TEMPLATE __m512i grid_scale(int kind, const uint8_t *numbers, const uint8_t *signs, uint32_t b,
                                int p)
{
    if (!moe_kind_signs_have_scale(kind))
        return _mm512_cvtepu8_epi32(grid_scale_bytes(kind, numbers, b, p));
    __m512i word = _mm512_loadu_si512(signs);
    word = _mm512_and_si512(_mm512_srli_epi32(word, 25), _mm512_set1_epi32(0x55));
    word = _mm512_or_si512(word, _mm512_srli_epi32(word, 1));
    word = _mm512_and_si512(word, _mm512_set1_epi32(0x33));
    word = _mm512_or_si512(word, _mm512_srli_epi32(word, 2));
    return _mm512_and_si512(word, _mm512_set1_epi32(15));
}

VBMI MOE_TEMPLATE void grid_panel(int kind, int nt, MOE_PANEL_PARAMS)
{
    struct moe_tile in = *tile;
    __m512 out[MOE_TILE], unit = _mm512_setzero_ps();
    MOE_UNROLL
    for (int t = 0; t < nt; t++)
        out[t] = unit;
    for (uint32_t first = 0; first < cols;) {
        struct moe_record rec = moe_record_next(kind, layout.group, 32, cols, &panel, &first);
        for (uint32_t i = 0; i < rec.blocks; i++) {
            const struct moe_place at = moe_record_scale(kind, &rec, i, 0);
            const uint8_t *numbers = moe_place_numbers(kind, at);
            const uint8_t *signs = rec.codes + moe_kind_plane(kind) * MOE_UNIT;
            const uint32_t b = i % moe_kind_span_blocks(kind);
            struct grid_block block = {0};
            if (b == 0)
                unit =
                    _mm512_mul_ps(half_scales(at.head), _mm512_set1_ps(moe_kind_scale_unit(kind)));
            read_block(kind, numbers, rec.codes, b, &block);
            read_ahead(kind, nt, &rec, i);
            MOE_UNROLL
            for (int p = 0; p < moe_kind_scales(kind); p++) {
                __m512i sum[MOE_TILE];
                __m512 d = _mm512_cvtepi32_ps(grid_scale(kind, numbers, signs, b, p));
                d = _mm512_fmadd_ps(d, _mm512_set1_ps(2), _mm512_set1_ps(1));
                d = _mm512_mul_ps(unit, d); /* exact in any order */
                grid_sums(kind, nt, &block, p, &in, sum);
                MOE_UNROLL
                for (int t = 0; t < nt; t++)
                    out[t] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(in.s[t])),
                                             _mm512_cvtepi32_ps(sum[t]), out[t]);
            }
            rec.codes += moe_kind_block_bytes(kind, 32);
            moe_tile_step(&in, nt, 32);
        }
    }
    MOE_UNROLL
    for (int t = 0; t < nt; t++)
        _mm512_storeu_ps(y + t * y_stride, out[t]);
}

#define GRID_PANEL(kind, nt)                                                                       \
    VBMI static void grid_panel_##kind##_##nt(MOE_PANEL_PARAMS)                                    \
    {                                                                                              \
        grid_panel(MOE_LAYOUT_##kind, nt, MOE_PANEL_ARGS);                                         \
    }
#define GRID_PANELS(kind)                                                                          \
    GRID_PANEL(kind, 1) GRID_PANEL(kind, 2) GRID_PANEL(kind, 4) GRID_PANEL(kind, 8)
MOE_PANEL_GRIDS(GRID_PANELS)

/* Quantizes the `block` values at x into quads that lie `stride` bytes apart. */
static void quantize_block(const float *x, uint32_t block, uint32_t stride, int8_t *q, float *s,
                           float *z, struct moe_sums *sum)
{
    __m512i largest = _mm512_setzero_si512(), sums = largest, half = largest;
    for (uint32_t c = 0; c < block; c += 16) {
        __m512i magnitude =
            _mm512_and_si512(_mm512_loadu_si512(x + c), _mm512_set1_epi32(0x7fffffff));
        largest = _mm512_max_epu32(largest, magnitude);
    }
    uint32_t bits = _mm512_reduce_max_epu32(largest);
    __m512 inverse = _mm512_set1_ps(moe_math_quant_inverse(bits));
    /* A block that is not finite must give zeros, not what the conversion makes of a NaN. */
    __mmask16 finite = bits < 0x7f800000u ? 0xffff : 0;
    for (uint32_t c = 0; c < block; c += 16) {
        half = c == block / 2 ? sums : half;
        __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + c), inverse);
        __m512i code = _mm512_maskz_cvtps_epi32(finite, scaled);
        sums = _mm512_add_epi32(sums, code);
        int8_t bytes[16];
        _mm_storeu_si128((__m128i *)bytes, _mm512_cvtepi32_epi8(code));
        for (int i = 0; i < 4; i++, q += stride)
            memcpy(q, bytes + 4 * i, 4);
    }
    const int32_t all = _mm512_reduce_add_epi32(sums);
    moe_math_quant_scale(bits, all, s, z);
    *sum = moe_sums_of(all, _mm512_reduce_add_epi32(half), *s);
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

/* ---- Vectors: the last round goes under a mask, whose missing elements read as 0 ---- */

static inline __mmask16 mask_for(uint32_t left)
{
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

static float join(__m512 lanes)
{
    float lane[MOE_LANES];
    _mm512_storeu_ps(lane, lanes);
    return moe_math_join(lane);
}

/* The steps of moe_math_exp. The order of min's and max's operands lets a NaN through. */
static inline __m512 exp16(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(MOE_EXP_LOW), x);
    x = _mm512_min_ps(_mm512_set1_ps(MOE_EXP_HIGH), x);
    __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(MOE_EXP_LOG2E)));
    __m512 n = _mm512_cvtepi32_ps(i);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-MOE_EXP_LN2_HIGH), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-MOE_EXP_LN2_LOW), r);
    __m512 p = _mm512_set1_ps(MOE_EXP_C6);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MOE_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MOE_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MOE_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MOE_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(i, 23));
    return _mm512_castsi512_ps(bits);
}

static float dot(const float *x, const float *y, uint32_t n)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 a = _mm512_maskz_loadu_ps(k, x + i), b = _mm512_maskz_loadu_ps(k, y + i);
        sum = _mm512_mask3_fmadd_ps(a, b, sum, k);
    }
    return join(sum);
}

static void rms_norm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    __m512 r = _mm512_set1_ps(moe_math_rms_scale(dot(x, x, n), n, eps));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), r);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(k, w + i)));
    }
}

/* Rounds of lanes, the first and the last under a mask. */
static float exp_sum(float *x, uint32_t begin, uint32_t end, float *largest)
{
    const uint32_t first = begin - begin % MOE_LANES;
    const __mmask16 front = (__mmask16)(0xffffu << (begin - first));
    __m512 most = _mm512_set1_ps(x[begin]), sum = _mm512_setzero_ps();
    for (uint32_t i = first; i < end; i += 16) {
        __mmask16 k = mask_for(end - i) & (i == first ? front : 0xffff);
        most = _mm512_max_ps(most, _mm512_mask_loadu_ps(most, k, x + i));
    }
    *largest = _mm512_reduce_max_ps(most);
    most = _mm512_set1_ps(*largest);
    for (uint32_t i = first; i < end; i += 16) {
        __mmask16 k = mask_for(end - i) & (i == first ? front : 0xffff);
        __m512 e = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), most));
        sum = _mm512_mask_add_ps(sum, k, sum, e);
        _mm512_mask_storeu_ps(x + i, k, e);
    }
    return join(sum);
}

static void softmax(float *x, uint32_t n)
{
    float largest;
    __m512 sum = _mm512_set1_ps(exp_sum(x, 0, n, &largest));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        _mm512_mask_storeu_ps(x + i, k, _mm512_div_ps(_mm512_maskz_loadu_ps(k, x + i), sum));
    }
}

static inline __m512 silu16(__m512 v)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    return _mm512_div_ps(v, _mm512_add_ps(one, exp16(_mm512_xor_ps(v, sign))));
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, gate + i), u = _mm512_maskz_loadu_ps(k, up + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(silu16(v), u));
    }
}

static void silu(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        _mm512_mask_storeu_ps(y + i, k, silu16(_mm512_maskz_loadu_ps(k, x + i)));
    }
}

/* The order of max's operands lets a NaN and a negative zero through. */
static void relu(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, x + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_max_ps(_mm512_setzero_ps(), v));
    }
}

static void tanh_of(const float *x, uint32_t n, float *y)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, x + i), size = _mm512_andnot_ps(sign, v);
        __m512 t = exp16(_mm512_mul_ps(_mm512_set1_ps(-2.0f), size));
        __m512 r = _mm512_div_ps(_mm512_sub_ps(one, t), _mm512_add_ps(one, t));
        _mm512_mask_storeu_ps(y + i, k, _mm512_or_ps(r, _mm512_and_ps(sign, v)));
    }
}

static void axpy(float a, const float *x, uint32_t n, float *y)
{
    __m512 factor = _mm512_set1_ps(a);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, x + i), old = _mm512_maskz_loadu_ps(k, y + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_fmadd_ps(factor, v, old));
    }
}

static void vec_add(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, x + i), old = _mm512_maskz_loadu_ps(k, y + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_add_ps(old, v));
    }
}

static void mul_add(const float *a, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 u = _mm512_maskz_loadu_ps(k, a + i), v = _mm512_maskz_loadu_ps(k, x + i);
        __m512 old = _mm512_maskz_loadu_ps(k, y + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_fmadd_ps(u, v, old));
    }
}

static void rope(float *x, const float *cs, uint32_t n)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    uint32_t half = n / 2, i = 0;
    for (; i + 16 <= half; i += 16) {
        __m512 front = _mm512_loadu_ps(cs + 2 * i), back = _mm512_loadu_ps(cs + 2 * i + 16);
        __m512 c = _mm512_permutex2var_ps(front, even, back);
        __m512 s = _mm512_permutex2var_ps(front, odd, back);
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + half + i);
        _mm512_storeu_ps(x + i, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_storeu_ps(x + half + i, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
    for (; i < half; i++)
        moe_math_rotate(&x[i], &x[i + half], cs[2 * i], cs[2 * i + 1]);
}

static void delta_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                       const float *decay, float beta, float *y)
{
    __m512 m = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i++) {
        float *at = state + (uint64_t)i * 16;
        __m512 s = _mm512_mul_ps(_mm512_loadu_ps(at), _mm512_set1_ps(decay[i]));
        _mm512_storeu_ps(at, s);
        m = _mm512_fmadd_ps(s, _mm512_set1_ps(k[i]), m);
    }
    __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(v), m), _mm512_set1_ps(beta));
    for (uint32_t i = 0; i < n; i++) {
        float *at = state + (uint64_t)i * 16;
        __m512 s = _mm512_fmadd_ps(_mm512_set1_ps(k[i]), d, _mm512_loadu_ps(at));
        _mm512_storeu_ps(at, s);
        sum = _mm512_fmadd_ps(s, _mm512_set1_ps(q[i]), sum);
    }
    _mm512_storeu_ps(y, sum);
}

static void scan_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                      float decay, float *y)
{
    __m512 value = _mm512_loadu_ps(v), sum = _mm512_setzero_ps(), keep = _mm512_set1_ps(decay);
    for (uint32_t i = 0; i < n; i++) {
        float *at = state + (uint64_t)i * 16;
        __m512 kept = _mm512_mul_ps(_mm512_loadu_ps(at), keep);
        __m512 s = _mm512_fmadd_ps(_mm512_set1_ps(k[i]), value, kept);
        _mm512_storeu_ps(at, s);
        sum = _mm512_fmadd_ps(s, _mm512_set1_ps(q[i]), sum);
    }
    _mm512_storeu_ps(y, sum);
}

static void select_step(float *state, const float *rates, const float *steps, const float *k,
                        const float *q, const float *v, uint32_t n, float *y)
{
    __m512 value = _mm512_loadu_ps(v), sum = _mm512_setzero_ps();
    __m512 step = _mm512_xor_ps(_mm512_loadu_ps(steps), _mm512_set1_ps(-0.0f));
    for (uint32_t i = 0; i < n; i++) {
        float *at = state + (uint64_t)i * 16;
        __m512 rate = _mm512_loadu_ps(rates + (uint64_t)i * 16);
        __m512 kept = _mm512_mul_ps(_mm512_loadu_ps(at), exp16(_mm512_mul_ps(rate, step)));
        __m512 s = _mm512_fmadd_ps(_mm512_set1_ps(k[i]), value, kept);
        _mm512_storeu_ps(at, s);
        sum = _mm512_fmadd_ps(s, _mm512_set1_ps(q[i]), sum);
    }
    _mm512_storeu_ps(y, sum);
}

static void f32_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, x + i);
        _mm256_mask_storeu_epi16(y + i, k,
                                 _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

static void f16_to_f32(const uint16_t *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = mask_for(n - i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, x + i)));
    }
}

void moe_kern_fill_avx512(struct moe_kern *kern)
{
    fill_float_panels(kern);
    fill_few_panels(kern);
    fill_quant_panels(kern);
    fill_unpacked(kern);
    MOE_UNPACK_EACH(MOE_UNPACK_ENTER)
    MOE_UNPACK_ENTER(IQ4_NL)
    MOE_UNPACK_LEAVE(MXFP4)
    if (__builtin_cpu_supports("avx512vbmi")) {
        fill_grid_tables();
        fill_grid_panels(kern);
        MOE_PANEL_EACH_GRID(MOE_UNPACK_LEAVE) /* panels are as fast as what AVX2 unpacks */
    }
    kern->quantize = quantize;
    kern->rms_norm = rms_norm;
    kern->exp_sum = exp_sum;
    kern->softmax = softmax;
    kern->swiglu = swiglu;
    kern->silu = silu;
    kern->relu = relu;
    kern->tanh = tanh_of;
    kern->axpy = axpy;
    kern->add = vec_add;
    kern->mul_add = mul_add;
    kern->rope = rope;
    kern->dot = dot;
    kern->delta_step = delta_step;
    kern->scan_step = scan_step;
    kern->select_step = select_step;
    kern->f32_to_f16 = f32_to_f16;
    kern->f16_to_f32 = f16_to_f32;
}

#else

void moe_kern_fill_avx512(struct moe_kern *kern)
{
    (void)kern;
}

#endif
