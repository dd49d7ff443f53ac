/*
 * Weights out of their packed panels (quant/layout.h): where a run lies, its codes as words of four
 * bytes for integer products, its scale. A run is the columns of a block that share a scale: a
 * block of 32 or 64, or half a block of 32.
 *
 * A row's word of a unit holds the codes of 4, 8, 16 or 32 consecutive columns; unpacked, it
 * becomes 1, 2, 4 or 8 words of one byte a column, in column order: the unsigned codes, or in kinds
 * whose numbers are signed these (dev_is_signed). Where a unit has 32 columns and a scale 16, a
 * word becomes the 4 words of a run.
 */
#ifndef MOE_KERNELS_DEV_WEIGHTS_CUH
#define MOE_KERNELS_DEV_WEIGHTS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "base/float16.h"
#include "quant/layout.h"

enum { DEV_UNIT = 64 /* bytes */ };

/* ---- Geometry ---- */

/* Whether both runs of a block lie in one unit. */
static constexpr MOE_DEVICE_CODE bool dev_shares_unit(int kind)
{
    return moe_kind_plane(kind) == 1 && moe_kind_scales(kind) == 2;
}

/* Words that a row's word of a unit becomes in a run. */
static constexpr MOE_DEVICE_CODE int dev_unit_words(int kind)
{
    return dev_shares_unit(kind) ? 4 : 8 / moe_kind_plane(kind);
}

/* Columns of the block to which a run of `run` columns belongs. */
static constexpr MOE_DEVICE_CODE int dev_block_of(int kind, int run)
{
    return run * moe_kind_scales(kind);
}

/* Scales of a span; of affine kinds 1. */
static constexpr MOE_DEVICE_CODE uint32_t dev_span_scales(int kind)
{
    return moe_kind_span(kind) ? moe_kind_span_blocks(kind) * moe_kind_scales(kind) : 1;
}

/* Units of a run in the first plane. */
static constexpr MOE_DEVICE_CODE int dev_run_units(int kind, int run)
{
    return run / (4 * dev_unit_words(kind));
}

static constexpr MOE_DEVICE_CODE bool dev_is_signed(int kind)
{
    return moe_kind_zero(kind) || moe_kind_least(kind);
}

/* Where unit j of a block has its bits in the second plane: the unit there, and how far up in a
 * byte. */
static constexpr MOE_DEVICE_CODE uint32_t dev_high_unit(int kind, uint32_t j)
{
    return moe_kind_high_plane(kind) ? j * dev_unit_words(kind) * moe_kind_high_plane(kind) / 8 : 0;
}
static constexpr MOE_DEVICE_CODE uint32_t dev_high_shift(int kind, uint32_t j)
{
    return j * dev_unit_words(kind) * moe_kind_high_plane(kind) % 8;
}

/* A run within its panel. */
struct dev_run {
    const uint8_t *head;  /* of its span or, in affine kinds, its record */
    uint32_t scale;       /* its number there */
    const uint8_t *codes; /* of its block */
    uint32_t unit;        /* its first one there */
};

/* Run `i` of a panel of `blocks` blocks a row. Of affine kinds: full records have per_record
 * blocks; reciprocal: dev_reciprocal's. */
template <int KIND, int RUN>
static __device__ __forceinline__ struct dev_run dev_find_run(const uint8_t *panel, uint32_t blocks,
                                                              uint32_t per_record,
                                                              uint32_t reciprocal, uint32_t i)
{
    const uint32_t bytes = moe_kind_block_bytes(KIND, dev_block_of(KIND, RUN));
    if constexpr (moe_kind_span(KIND) > 0) {
        const uint32_t scales = moe_kind_scales(KIND), of_span = moe_kind_span_blocks(KIND);
        const uint32_t full = moe_kind_record(KIND) * of_span;
        uint32_t b = i / scales, r = b / full, in = b % full;
        const uint8_t *record = panel + r * (moe_kind_head_bytes(KIND, full) + full * bytes);
        uint32_t head = moe_kind_head_bytes(KIND, min(full, blocks - r * full));
        return {record + in / of_span * (moe_kind_head(KIND) * MOE_PANEL_ROWS),
                in % of_span * scales + i % scales, record + head + in * bytes,
                dev_shares_unit(KIND) ? 0 : i % scales * dev_run_units(KIND, RUN)};
    } else {
        const uint32_t head = moe_kind_head_bytes(KIND, 1);
        uint32_t r = per_record == 1 ? i : (uint32_t)((uint64_t)i * reciprocal >> 32);
        const uint8_t *record = panel + r * (head + per_record * bytes);
        return {record, 0, record + head + (i - r * per_record) * bytes, 0};
    }
}

/* Bytes from a block's codes to its second plane. */
template <int KIND, int RUN> static constexpr MOE_DEVICE_CODE uint32_t dev_high_plane()
{
    return dev_block_of(KIND, RUN) / 32 * moe_kind_plane(KIND) * DEV_UNIT;
}

/* The factor that divides numbers of blocks (below 2^19) by per_record (up to 2^10, or all). */
static inline uint32_t dev_reciprocal(uint32_t per_record, uint32_t blocks)
{
    return per_record < 2 || per_record >= blocks
               ? 0
               : (uint32_t)(((UINT64_C(1) << 32) + per_record - 1) / per_record);
}

/* ---- Numbers ---- */

static __device__ __forceinline__ float dev_f16(uint16_t h)
{
#ifdef __CUDA_ARCH__
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
#else
    return moe_f16_to_f32(h);
#endif
}

/* Pieces of 16 bytes of a head that a scale takes: d, m, then numbers, or the unit of signs that
 * they stand in, and bits e. */
static constexpr MOE_DEVICE_CODE int dev_first_pieces(int kind)
{
    return (moe_kind_has_d(kind) ? 2 : 0) + (moe_kind_has_min(kind) ? 2 : 0);
}
static constexpr MOE_DEVICE_CODE int dev_packed_pieces(int kind)
{
    return moe_kind_packed_high(kind) ? 2 : 1;
}
static constexpr MOE_DEVICE_CODE bool dev_has_shifts(int kind)
{
    return moe_kind_shift(kind) && !moe_kind_scale_has_e(kind);
}
static constexpr MOE_DEVICE_CODE int dev_scale_pieces(int kind)
{
    const bool one =
        moe_kind_is_e2m1(kind) || moe_kind_byte_scales(kind) || moe_kind_scale_unit(kind) > 0;
    return dev_first_pieces(kind) +
           (moe_kind_signs_have_scale(kind) ? DEV_UNIT / 16
            : kind == MOE_LAYOUT_IQ4_KT     ? 4 * DEV_UNIT / 16
            : moe_kind_packed(kind) ? dev_packed_pieces(kind) * (moe_kind_has_min(kind) ? 2 : 1)
            : moe_kind_is_iq1(kind) ? 2
            : one                   ? 1
                                    : 0) +
           (dev_has_shifts(kind) ? 1 : 0);
}

/* Piece k of those that a run's scale takes. */
template <int KIND>
static __device__ __forceinline__ const uint8_t *dev_scale_piece(const struct dev_run &run,
                                                                 uint32_t k)
{
    const int first = dev_first_pieces(KIND), behind = (int)k - first;
    const uint32_t packed = moe_kind_packed(KIND), each = dev_packed_pieces(KIND);
    if (behind < 0)
        return run.head + 16 * k;
    uint32_t at = run.scale;
    if (packed) {
        uint32_t i = run.scale + (uint32_t)behind / each * 8;
        at = (uint32_t)behind % each ? packed / 2 + i * (uint32_t)moe_kind_packed_high(KIND) / 8
                                     : i / 2;
    }
    if (dev_has_shifts(KIND) && (int)k == dev_scale_pieces(KIND) - 1)
        at = (uint32_t)moe_kind_shifts_at(KIND) + run.scale / 8;
    if (KIND == MOE_LAYOUT_IQ4_KT)
        return run.codes + 16 * behind;
    if (moe_kind_signs_have_scale(KIND))
        return run.codes + moe_kind_plane(KIND) * DEV_UNIT + 16 * behind;
    if (KIND == MOE_LAYOUT_IQ1_S)
        at = 2 * run.scale + (uint32_t)behind;
    else if (KIND == MOE_LAYOUT_IQ1_M)
        at = behind ? 4 + run.scale / 8 : run.scale / 4;
    else if (moe_kind_scale_unit(KIND) > 0)
        at = run.scale / 2;
    return run.head + 16 * ((uint32_t)first + at);
}

/* The scale of a row; piece(k) is where piece k lies, in the device's memory or in shared memory.
 * own: the layout's kind, KIND or a variation of it. */
template <int KIND, bool SHARED, typename PIECE>
static __device__ __forceinline__ struct moe_scales dev_scale_of(int own, PIECE piece,
                                                                 uint32_t scale, uint32_t row)
{
    const int first = dev_first_pieces(KIND);
    auto byte = [&](int k) { return SHARED ? piece(k)[row] : __ldg(piece(k) + row); };
    auto word = [&](int k) {
        const uint16_t *h = (const uint16_t *)piece(k + (int)(row / 8)) + row % 8;
        return SHARED ? *h : __ldg(h);
    };
    auto packed = [&](int k) {
        const uint32_t more = moe_kind_packed_high(KIND);
        uint32_t number = byte(k) >> scale % 2 * 4 & 15;
        if (more)
            number |= (byte(k + 1) >> scale * more % 8 & ((1u << more) - 1)) << 4;
        return (uint8_t)number;
    };
    float d = 0, m = 0;
    uint8_t s = 0, t = 0;
    if constexpr (moe_kind_has_d(KIND))
        d = dev_f16(word(0));
    if constexpr (moe_kind_has_min(KIND)) {
        if (moe_kind_span(KIND) == 0 && moe_kind_has_zeros(own))
            return moe_zero_scales(d, word(2));
        m = dev_f16(word(2));
    }
    if constexpr (dev_has_shifts(KIND))
        t = byte(dev_scale_pieces(KIND) - 1) >> scale % 8 & 1;
    if constexpr (moe_kind_packed(KIND) > 0) {
        s = packed(first);
        if constexpr (moe_kind_has_min(KIND))
            t = packed(first + 2);
    } else if constexpr (moe_kind_signs_have_scale(KIND)) {
        const uint8_t *last = piece(first + (int)(row / 4)) + row % 4 * 4 + 3;
        s = moe_signs_scale((uint32_t)(SHARED ? *last : __ldg(last)) << 24);
    } else if constexpr (KIND == MOE_LAYOUT_IQ4_KT) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint8_t *last = piece(4 * j + (int)(row / 4)) + row % 4 * 4 + 3;
            s |= (uint8_t)((SHARED ? *last : __ldg(last)) >> 6 << 2 * j);
        }
    } else if constexpr (KIND == MOE_LAYOUT_IQ1_S) {
        s = (uint8_t)((byte(first) >> 3 & 1) | (byte(first) >> 6 & 2) | (byte(first + 1) >> 1 & 4));
    } else if constexpr (KIND == MOE_LAYOUT_IQ1_M) {
        s = (uint8_t)((byte(first) >> scale % 4 * 2 & 3) | (byte(first + 1) >> scale % 8 & 1) << 2);
    } else if constexpr (moe_kind_scale_unit(KIND) > 0) {
        s = byte(first) >> scale % 2 * 4 & 15;
    } else if constexpr (dev_scale_pieces(KIND) > dev_first_pieces(KIND)) {
        s = byte(first);
        if constexpr (KIND == MOE_LAYOUT_Q2_K) {
            t = s >> 4;
            s &= 15;
        } else if constexpr (moe_kind_scale_has_e(KIND)) {
            t = s & 1;
            s >>= 1;
        }
    }
    return moe_kind_scales_of(KIND, d, m, s, t);
}

template <int KIND>
static __device__ __forceinline__ struct moe_scales
dev_run_scale(int own, const struct dev_run &run, uint32_t row)
{
    return dev_scale_of<KIND, false>(
        own, [&](int k) { return dev_scale_piece<KIND>(run, (uint32_t)k); }, run.scale, row);
}

/* ---- Kinds that take floats ----
 * Kernels are compiled for F32, F16, BF16, F8, which stands for I8 too, and NF4, for FP4 too. */

/* A panel of one: its scales, if it has some, and behind them its values. */
struct dev_float_panel {
    const float *scales;
    const uint8_t *values;
    struct moe_layout own;
};

template <int KIND>
static __device__ __forceinline__ struct dev_float_panel
dev_find_floats(const uint8_t *panel, uint8_t kind, uint32_t group, uint32_t cols)
{
    const struct moe_layout own = {kind, group};
    uint64_t front = moe_kind_is_scaled(KIND) ? moe_scaled_front(own, cols) : 0;
    return {(const float *)panel, panel + front, own};
}

template <int KIND> static constexpr MOE_DEVICE_CODE uint32_t dev_column_bytes()
{
    return MOE_PANEL_ROWS / 8 *
           (KIND == MOE_LAYOUT_F32     ? 32
            : moe_kind_is_scaled(KIND) ? moe_scaled_bits(KIND)
                                       : 16);
}

/* The scale of a row in column c; 1 where there is none. */
template <int KIND>
static __device__ __forceinline__ float dev_float_scale(const struct dev_float_panel &p, uint32_t c,
                                                        uint32_t row)
{
    return moe_kind_is_scaled(KIND) ? __ldg(p.scales + moe_scaled_place(p.own, c, row)) : 1.0f;
}

/* Value number `i` of a panel's, without its scale, in the device's memory or in shared memory. */
template <int KIND, bool SHARED = false>
static __device__ __forceinline__ float dev_float_value(int own, const uint8_t *data, uint64_t i)
{
    if (moe_kind_is_scaled(KIND)) {
        const bool four = KIND == MOE_LAYOUT_NF4;
        const uint32_t r = i % MOE_PANEL_ROWS;
        const uint8_t *byte = data + (four ? i / MOE_PANEL_ROWS * (MOE_PANEL_ROWS / 2) + r % 8 : i);
        uint32_t code = SHARED ? *byte : __ldg(byte);
        if (four)
            return moe_scaled_number(own, (uint8_t)(code >> r / 8 * 4 & 15));
        return own == MOE_LAYOUT_I8
                   ? (float)(int8_t)code
                   : dev_f16((uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7)) * 256;
    }
    if (KIND == MOE_LAYOUT_F32) {
        const float *w = (const float *)data + i;
        return SHARED ? *w : __ldg(w);
    }
    const uint16_t *half = (const uint16_t *)data + i;
    uint16_t bits = SHARED ? *half : __ldg(half);
    return KIND == MOE_LAYOUT_F16 ? dev_f16(bits) : moe_bf16_to_f32(bits);
}

/* The weight of a row in column c. */
template <int KIND>
static __device__ __forceinline__ float dev_float_weight(const struct dev_float_panel &p,
                                                         uint32_t c, uint32_t row)
{
    return dev_float_value<KIND>(p.own.kind, p.values, (uint64_t)c * MOE_PANEL_ROWS + row) *
           dev_float_scale<KIND>(p, c, row);
}

/* ---- Codes ---- */

/* Bytes of the eight of (low, high) that the four lowest digits of `digits` name, by three bits
 * each. */
static __device__ __forceinline__ uint32_t dev_pick_bytes(uint32_t low, uint32_t high,
                                                          uint32_t digits)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, digits & 0x7777u);
#else
    uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t picked = 0;
    for (int i = 0; i < 4; i++)
        picked |= (uint32_t)(bytes >> (digits >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return picked;
#endif
}

/* Numbers of the four codes in the low digits of `digits`, in their order: of the table's halves,
 * codes 0 to 7 and 8 to 15, by three bits of the code; then of each pair the one by its fourth bit.
 */
template <int KIND> static __device__ __forceinline__ uint32_t dev_table_four(uint32_t digits)
{
    const bool e2m1 = moe_kind_is_e2m1(KIND);
    uint32_t low = e2m1 ? dev_pick_bytes(0x03020100u, 0x0c080604u, digits)
                        : dev_pick_bytes(0xbfad9881u, 0xf6eaddcfu, digits);
    uint32_t high = e2m1 ? dev_pick_bytes(0xfdfeff00u, 0xf4f8fafcu, digits)
                         : dev_pick_bytes(0x26190d01u, 0x71594535u, digits);
    return dev_pick_bytes(low, high, 0x3210u | (digits >> 1 & 0x4444u));
}

/* Word i of the table of ik_llama.cpp's kinds of 2, 3, 5 and 6 bits: four numbers. */
template <int KIND> static constexpr MOE_DEVICE_CODE uint32_t dev_numbers_word(int i)
{
    constexpr int8_t two[8] = {MOE_IQ2K_NUMBERS}, three[8] = {MOE_IQ3K_NUMBERS};
    constexpr int8_t five[32] = {MOE_IQ5K_NUMBERS}, six[64] = {MOE_IQ6K_NUMBERS};
    uint32_t word = 0;
    for (int k = 0; k < 4; k++) {
        const int8_t number = moe_kind_is_iq2k(KIND)   ? two[4 * i + k]
                              : moe_kind_is_iq3k(KIND) ? three[4 * i + k]
                              : moe_kind_is_iq5k(KIND) ? five[4 * i + k]
                                                       : six[4 * i + k];
        word |= (uint32_t)(uint8_t)number << 8 * k;
    }
    return word;
}

/* Digits of 4 bits, from four bytes. */
static __device__ __forceinline__ uint32_t dev_digits(uint32_t bytes)
{
    uint32_t pairs = (bytes | bytes >> 4) & 0x00ff00ffu;
    return (pairs | pairs >> 8) & 0xffffu;
}

/* Numbers of four codes of those kinds: of eight codes each, by three bits, then by one bit after
 * the other the half that has it. */
template <int KIND> static __device__ __forceinline__ uint32_t dev_numbers_of(uint32_t codes)
{
    const int bits = moe_kind_plane(KIND) + moe_kind_high_plane(KIND);
    const int n = bits < 4 ? 1 : 1 << (bits - 3);
    const uint32_t digits = dev_digits(codes & 0x07070707u);
    uint32_t found[n];
#pragma unroll
    for (int i = 0; i < n; i++)
        found[i] = dev_pick_bytes(dev_numbers_word<KIND>(2 * i), dev_numbers_word<KIND>(2 * i + 1),
                                  digits);
#pragma unroll
    for (int bit = 3; bit < bits; bit++) {
        const uint32_t halves = 0x3210u | dev_digits(codes >> bit & 0x01010101u) << 2;
#pragma unroll
        for (int i = 0; i < n >> (bit - 2); i++)
            found[i] = dev_pick_bytes(found[2 * i], found[2 * i + 1], halves);
    }
    return found[0];
}

/* The first N words of a row's word of a unit. high: its bits of the second plane, moved down so
 * that the first word's are the lowest of each byte. */
template <int KIND, int N>
static __device__ __forceinline__ void dev_unpack(uint32_t word, uint32_t high, uint32_t codes[N])
{
    if constexpr (moe_kind_is_e2m1(KIND) || moe_kind_is_iq4(KIND)) {
        uint32_t first = dev_table_four<KIND>(word), second = dev_table_four<KIND>(word >> 16);
        codes[0] = dev_pick_bytes(first, second, 0x6420u);
        codes[1] = dev_pick_bytes(first, second, 0x7531u);
    } else {
        const uint32_t ones = 0x01010101u, top = 0x80808080u;
        const int bits = moe_kind_plane(KIND), more = moe_kind_high_plane(KIND);
#pragma unroll
        for (int s = 0; s < N; s++) {
            codes[s] = word >> (bits < 8 ? bits * s : 0) & ones * ((1u << bits) - 1);
            if (more)
                codes[s] |= (high >> more * s & ones * ((1u << more) - 1)) << bits;
            if constexpr (moe_kind_shift(KIND) > 0) /* none of iq4 */
                codes[s] = dev_numbers_of<KIND>(codes[s]);
            else if (bits == 8 && moe_kind_zero(KIND))
                codes[s] ^= top;
            else if (KIND == MOE_LAYOUT_Q1_0)
                codes[s] = ((2 * codes[s] | top) - ones) ^ top;
            else if (moe_kind_zero(KIND)) /* no byte borrows of the next */
                codes[s] = ((codes[s] | top) - ones * (uint32_t)moe_kind_zero(KIND)) ^ top;
        }
    }
}

/* ---- Grouped kinds ---- */

/* Words of signed numbers of four codes each. */
template <int KIND>
static __device__ __forceinline__ uint32_t dev_grid_numbers(uint32_t codes, uint32_t second)
{
    const uint32_t ones = 0x01010101u, top = 0x80808080u;
    second &= ones;
    if constexpr (moe_kind_is_iq1(KIND))
        return ((8 * codes | top) - 7 * ones - 2 * second) ^ top;
    uint32_t numbers = 2 * codes + ones; /* of IQ3_S */
    if constexpr (KIND == MOE_LAYOUT_IQ3_XXS)
        numbers = 8 * codes + 4 * ones + 2 * (codes & codes >> 1 & codes >> 2 & ones);
    else if constexpr (moe_kind_is_iq2(KIND))
        numbers = 17 * codes + 8 * ones + (codes >> 1 & ones);
    return (numbers ^ second * 255) + second; /* none is 0: no carry */
}

/* N words of a row of the block that a run belongs to, from columns 8 `first` on: `word` is that of
 * the unit with their groups, `signs` that of the second plane. */
template <int KIND, int N>
static __device__ __forceinline__ void dev_unpack_groups(const struct dev_run &run, uint32_t row,
                                                         uint32_t word, uint32_t signs,
                                                         uint32_t first, uint32_t codes[N])
{
    const uint32_t b = run.scale / moe_kind_scales(KIND), ones = 0x01010101u;
    if constexpr (KIND == MOE_LAYOUT_TQ1_0) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            codes[i] = moe_ternary_quad(run.head, b, row, word, 2 * first + i);
            codes[i] = ((codes[i] | 0x80 * ones) - ones) ^ 0x80 * ones;
        }
    } else if constexpr (KIND == MOE_LAYOUT_IQ2_KL) {
        const uint32_t more = moe_pairs_more(run.head, b, first / 2, row);
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            codes[i] = moe_pairs_quad(word, more, 2 * first + i, 0);
    } else if constexpr (moe_kind_is_trellis(KIND)) {
        const uint32_t more = moe_trellis_more(KIND, run.head, run.codes, b, row);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t quads = moe_trellis_columns(KIND) / 4, s = 2 * first + i;
            const uint32_t start = moe_trellis_start(KIND, word, more, s / quads);
            codes[i] = moe_trellis_quad(KIND, start, s % quads * 4, signs >> s, 0);
        }
    } else {
        const uint32_t more = moe_group_more(KIND, run.head, b, row, signs);
        signs = moe_signs_whole(KIND, signs);
#pragma unroll
        for (uint32_t i = 0; i < N / 2; i++) {
            uint32_t g = first + i, pair[2];
            if constexpr (moe_kind_is_iq3(KIND)) {
                uint32_t numbers = word >> 16 * (g % 2);
                pair[0] = moe_group_entry(KIND, numbers & 255, more, 2 * g);
                pair[1] = moe_group_entry(KIND, numbers >> 8 & 255, more, 2 * g + 1);
            } else {
                uint32_t entry = moe_group_entry(KIND, word >> 8 * g & 255, more, g);
                pair[0] = entry & 3 * ones;
                pair[1] = entry >> 2 & 3 * ones;
            }
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                uint32_t second = KIND == MOE_LAYOUT_IQ1_S   ? (more >> 15) * ones
                                  : KIND == MOE_LAYOUT_IQ1_M ? (more >> (4 * g + 3) & 1) * ones
                                                             : signs >> (2 * g + k);
                codes[2 * i + k] = dev_grid_numbers<KIND>(pair[k], second);
            }
        }
    }
}

/* The first eight columns of unit j of a run, in eights. */
template <int KIND>
static __device__ __forceinline__ uint32_t dev_first_eight(const struct dev_run &run, uint32_t j)
{
    return dev_shares_unit(KIND) ? run.scale % 2 * 2 : j * 4 / moe_kind_plane(KIND);
}

/* A row's words of unit j of a run, and of the signs. */
template <int KIND>
static __device__ __forceinline__ uint32_t dev_group_word(const struct dev_run &run, uint32_t row,
                                                          uint32_t j)
{
    return __ldg((const uint32_t *)(run.codes + j * DEV_UNIT) + row);
}
template <int KIND>
static __device__ __forceinline__ uint32_t dev_signs_word(const struct dev_run &run, uint32_t row)
{
    return moe_kind_high_plane(KIND) ? dev_group_word<KIND>(run, row, moe_kind_plane(KIND)) : 0;
}

#endif
