/*
 * Weights out of their packed panels (quant/layout.h): where a block lies, its codes as words of
 * four bytes for integer products, its scales.
 *
 * A row's word of a unit holds the codes of 4, 8 or 16 consecutive columns; unpacked, it becomes 1,
 * 2 or 4 words of one code a byte, in column order: unsigned codes for affine layouts, signed v for
 * MXFP4.
 */
#ifndef MOE_KERNELS_DEV_WEIGHTS_CUH
#define MOE_KERNELS_DEV_WEIGHTS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "base/float16.h"
#include "quant/layout.h"

enum { DEV_UNIT = 64, DEV_HEAD = 64 /* bytes of a unit, of a record's head */ };

/* ---- Geometry ---- */

/* Words that a row's word of a unit becomes. */
static constexpr MOE_DEVICE_CODE int dev_unit_words(int kind)
{
    return kind == MOE_LAYOUT_Q8 ? 1 : kind == MOE_LAYOUT_Q4 || kind == MOE_LAYOUT_MXFP4 ? 2 : 4;
}

/* Units of a block, without Q3's plane of high bits. */
static constexpr MOE_DEVICE_CODE int dev_block_units(int kind, int block)
{
    return block / (4 * dev_unit_words(kind));
}

static constexpr MOE_DEVICE_CODE int dev_block_bytes(int kind, int block)
{
    return DEV_UNIT * (dev_block_units(kind, block) + (kind == MOE_LAYOUT_Q3 ? block / 32 : 0));
}

/* A block within its panel. */
struct dev_block {
    const uint8_t *head;  /* d[16] and m[16] of its record; for MXFP4 its own e[16] */
    const uint8_t *codes; /* its first unit */
};

/* Block `b` of a panel whose full records have per_record blocks; reciprocal: dev_reciprocal's. */
template <int KIND, int BLOCK>
static __device__ __forceinline__ struct dev_block
dev_find_block(const uint8_t *panel, uint32_t per_record, uint32_t reciprocal, uint32_t b)
{
    const uint32_t bytes = dev_block_bytes(KIND, BLOCK);
    if (KIND == MOE_LAYOUT_MXFP4) {
        const uint32_t full = MOE_MX_RECORD / MOE_MX_BLOCK;
        const uint8_t *record = panel + b / full * (DEV_HEAD + full * bytes);
        return {record + b % full * MOE_PANEL_ROWS, record + DEV_HEAD + b % full * bytes};
    }
    uint32_t r = per_record == 1 ? b : (uint32_t)((uint64_t)b * reciprocal >> 32);
    const uint8_t *record = panel + r * (DEV_HEAD + per_record * bytes);
    return {record, record + DEV_HEAD + (b - r * per_record) * bytes};
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

struct dev_scales {
    float d, m;
};

/* Of a row of a block whose head lies in the device's memory, or in shared memory. */
template <int KIND, bool SHARED = false>
static __device__ __forceinline__ struct dev_scales dev_block_scales(const uint8_t *head,
                                                                     uint32_t row)
{
    if (KIND == MOE_LAYOUT_MXFP4)
        return {moe_mxfp4_scale(SHARED ? head[row] : __ldg(head + row)), 0.0f};
    const uint16_t *d = (const uint16_t *)head + row, *m = d + MOE_PANEL_ROWS;
    return {dev_f16(SHARED ? *d : __ldg(d)), dev_f16(SHARED ? *m : __ldg(m))};
}

/* Weight number `i` of an array in a float layout, in the device's memory or in shared memory. */
template <int KIND, bool SHARED = false>
static __device__ __forceinline__ float dev_float_weight(const uint8_t *data, uint64_t i)
{
    if (KIND == MOE_LAYOUT_F32) {
        const float *w = (const float *)data + i;
        return SHARED ? *w : __ldg(w);
    }
    const uint16_t *half = (const uint16_t *)data + i;
    uint16_t bits = SHARED ? *half : __ldg(half);
    return KIND == MOE_LAYOUT_F16 ? dev_f16(bits) : moe_bf16_to_f32(bits);
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

/* v of the four codes in the low digits of `digits`, in their order: the table's halves, without
 * and with a sign, by three bits of the code; then of each pair the one by its fourth bit. */
static __device__ __forceinline__ uint32_t dev_mxfp4_four(uint32_t digits)
{
    uint32_t plus = dev_pick_bytes(0x03020100u, 0x0c080604u, digits);
    uint32_t minus = dev_pick_bytes(0xfdfeff00u, 0xf4f8fafcu, digits);
    return dev_pick_bytes(plus, minus, 0x3210u | (digits >> 1 & 0x4444u));
}

/* The first N words of a row's word of a unit. plane: Q3's high bits, shifted so that the first
 * word's are the lowest of each byte. */
template <int KIND, int N>
static __device__ __forceinline__ void dev_unpack(uint32_t word, uint32_t plane, uint32_t codes[N])
{
    if constexpr (KIND == MOE_LAYOUT_MXFP4) {
        uint32_t first = dev_mxfp4_four(word), second = dev_mxfp4_four(word >> 16);
        codes[0] = dev_pick_bytes(first, second, 0x6420u);
        codes[1] = dev_pick_bytes(first, second, 0x7531u);
    } else {
#pragma unroll
        for (int s = 0; s < N; s++) {
            if (KIND == MOE_LAYOUT_Q8)
                codes[s] = word;
            else if (KIND == MOE_LAYOUT_Q4)
                codes[s] = word >> 4 * s & 0x0f0f0f0fu;
            else
                codes[s] = word >> 2 * s & 0x03030303u;
            if (KIND == MOE_LAYOUT_Q3)
                codes[s] |= (plane >> s & 0x01010101u) << 2;
        }
    }
}

#endif
