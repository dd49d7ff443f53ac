/*
 * Cells of the KV cache on the device, laid out as infer/kv.h says: keys in panels of 16 positions,
 * values in panels of 16 dimensions, per block, layer and kv head. Reading and writing them, and
 * the rotation of what is kept as codes.
 */
#ifndef MOE_KERNELS_DEV_KV_CUH
#define MOE_KERNELS_DEV_KV_CUH

#include <cuda_runtime.h>
#include <float.h>

#include "dev_math.cuh"
#include "dev_vector.cuh"
#include "dev_weights.cuh" /* dev_f16, dev_table_four */
#include "gpu_ops.h"

enum { DEV_SCALED = 32 /* dimensions that share a scale */, DEV_TURNED = 128 };

/* One (block, layer, kv head) among all: the block that holds the sequence's position. */
static __device__ __forceinline__ uint64_t dev_kv_head(const struct moe_gpu_kv &kv, uint32_t layer,
                                                       uint32_t sequence, uint32_t position,
                                                       uint32_t head)
{
    uint32_t place = position / kv.block_positions;
    uint32_t block = kv.table[(uint64_t)sequence * kv.per_sequence + place];
    return ((uint64_t)block * kv.n_layers + layer) * kv.n_heads + head;
}

/* A head's keys, and its values. */
static __device__ __forceinline__ uint8_t *dev_kv_keys(const struct moe_gpu_kv &kv, uint64_t head)
{
    return kv.keys + head * (kv.block_positions / 16) * kv.key_bytes;
}

static __device__ __forceinline__ uint8_t *dev_kv_values(const struct moe_gpu_kv &kv, uint64_t head)
{
    return kv.values + head * (kv.block_positions / 16) * kv.value_bytes;
}

/* ---- Reading ---- */

/* Neighbouring cells or numbers, read at once. */
template <typename Cell, int N> struct alignas(N * sizeof(Cell)) together {
    Cell v[N];
};

/* N neighbouring cells as they lie in the cache. */
template <int KIND, int N> struct dev_cells;

template <int N> struct dev_cells<MOE_LAYOUT_F32, N> {
    together<float, N> x;
    __device__ __forceinline__ float number(int i) const
    {
        return x.v[i];
    }
};

template <int N> struct dev_cells<MOE_LAYOUT_F16, N> {
    together<uint16_t, N> x;
    __device__ __forceinline__ float number(int i) const
    {
        return dev_f16(x.v[i]);
    }
};

/* Codes: of keys each has a scale, values share one. */
template <int N> struct dev_cells<MOE_LAYOUT_Q8, N> {
    together<uint8_t, N> x;
    uint16_t scale[N];
    __device__ __forceinline__ float number(int i) const
    {
        return (float)(int8_t)x.v[i] * dev_f16(scale[i]);
    }
};

template <int N> struct dev_cells<MOE_LAYOUT_Q4, N> {
    together<uint8_t, N> x;
    uint16_t scale[N];
    bool high; /* half of the bytes */
    __device__ __forceinline__ float number(int i) const
    {
        uint32_t code = high ? x.v[i] >> 4 : x.v[i] & 15;
        return (float)(int8_t)dev_table_four<MOE_LAYOUT_IQ4_NL>(code) * dev_f16(scale[i]);
    }
};

static constexpr MOE_DEVICE_CODE bool dev_has_scales(int layout)
{
    return layout == MOE_LAYOUT_Q8 || layout == MOE_LAYOUT_Q4;
}

/* Bytes of a key's dimension in a panel, or with q4 of two; of a row of 16 values. */
template <int KIND> static constexpr MOE_DEVICE_CODE uint32_t dev_row_bytes(void)
{
    return KIND == MOE_LAYOUT_F32 ? 64 : KIND == MOE_LAYOUT_F16 ? 32 : 16;
}

/* Keys of neighbouring positions from a place in a block on. */
template <int KIND> struct dev_keys {
    const uint8_t *at, *scales;

    __device__ __forceinline__ void open(const struct moe_gpu_kv &kv, uint64_t head, uint32_t place)
    {
        const uint32_t rows = KIND == MOE_LAYOUT_Q4 ? (kv.key_dim + 1) / 2 : kv.key_dim;
        const uint8_t *panel = dev_kv_keys(kv, head) + place / 16 * kv.key_bytes;
        at = panel + place % 16 * (dev_row_bytes<KIND>() / 16);
        scales = panel + rows * 16 + place % 16 * 2;
    }

    /* Dimension d of N of them. */
    template <int N> __device__ __forceinline__ dev_cells<KIND, N> read(uint32_t d) const
    {
        dev_cells<KIND, N> cells;
        const uint32_t row = KIND == MOE_LAYOUT_Q4 ? d / 2 : d;
        cells.x = *(const decltype(cells.x) *)(at + (uint64_t)row * dev_row_bytes<KIND>());
        if constexpr (KIND == MOE_LAYOUT_Q8 || KIND == MOE_LAYOUT_Q4) {
            auto by = *(const together<uint16_t, N> *)(scales + d / DEV_SCALED * 32);
#pragma unroll
            for (int i = 0; i < N; i++)
                cells.scale[i] = by.v[i];
        }
        if constexpr (KIND == MOE_LAYOUT_Q4)
            cells.high = d % 2;
        return cells;
    }
};

/* Values of neighbouring dimensions from d on, which lie in one half of 16. */
template <int KIND> struct dev_values {
    const uint8_t *at, *scales;
    bool high;

    __device__ __forceinline__ void open(const struct moe_gpu_kv &kv, uint64_t head, uint32_t d)
    {
        const uint32_t bytes = KIND == MOE_LAYOUT_Q4 ? 8 : dev_row_bytes<KIND>();
        const uint8_t *all = dev_kv_values(kv, head);
        at = all + (uint64_t)(d / 16) * kv.block_positions * bytes +
             (KIND == MOE_LAYOUT_Q4 ? d % 8 : d % 16 * (bytes / 16));
        scales = all + (uint64_t)kv.value_padded / 16 * kv.block_positions * bytes +
                 (uint64_t)(d / DEV_SCALED) * kv.block_positions * 2;
        high = d % 16 >= 8;
    }

    /* N of them at a place. */
    template <int N> __device__ __forceinline__ dev_cells<KIND, N> read(uint32_t place) const
    {
        const uint32_t bytes = KIND == MOE_LAYOUT_Q4 ? 8 : dev_row_bytes<KIND>();
        dev_cells<KIND, N> cells;
        cells.x = *(const decltype(cells.x) *)(at + (uint64_t)place * bytes);
        if constexpr (KIND == MOE_LAYOUT_Q8 || KIND == MOE_LAYOUT_Q4) {
            uint16_t by = *(const uint16_t *)(scales + (uint64_t)place * 2);
#pragma unroll
            for (int i = 0; i < N; i++)
                cells.scale[i] = by;
        }
        if constexpr (KIND == MOE_LAYOUT_Q4)
            cells.high = high;
        return cells;
    }
};

/* ---- Writing floats ---- */

/* Writes cell `c` of keys or values, kept finite: an infinity in a cell that a row masks would
 * still make 0 * infinity there. */
static __device__ __forceinline__ void dev_put_cell(uint16_t layout, uint8_t *cells, uint64_t c,
                                                    float v)
{
    const bool f16 = layout == MOE_LAYOUT_F16;
    float most = f16 ? 65504.0f : FLT_MAX;
    v = v > most ? most : v < -most ? -most : v;
    if (f16)
        ((uint16_t *)cells)[c] = moe_f32_to_f16(v);
    else
        ((float *)cells)[c] = v;
}

/* Dimension d of a position's key, or value; head as from dev_kv_head of that position. */
static __device__ __forceinline__ void dev_put_key(const struct moe_gpu_kv &kv, uint64_t head,
                                                   uint32_t position, uint32_t d, float v)
{
    uint32_t place = position % kv.block_positions;
    dev_put_cell(kv.keys_as, dev_kv_keys(kv, head) + place / 16 * kv.key_bytes,
                 (uint64_t)d * 16 + place % 16, v);
}

static __device__ __forceinline__ void dev_put_value(const struct moe_gpu_kv &kv, uint64_t head,
                                                     uint32_t position, uint32_t d, float v)
{
    uint64_t place = position % kv.block_positions;
    dev_put_cell(kv.values_as, dev_kv_values(kv, head),
                 ((uint64_t)(d / 16) * kv.block_positions + place) * 16 + d % 16, v);
}

/* ---- Codes ---- */

/* Up to DEV_TURNED numbers of a warp: lane l has numbers l, l + 32, l + 64, l + 96. */
struct dev_run_of {
    float x[DEV_TURNED / DEV_WARP];
};

/* Turns n numbers as moe_kern.turn does. Their pieces of 32 or more take whole x[j] of all lanes;
 * the smaller ones share one, each at a multiple of its size. */
static __device__ __forceinline__ void dev_turn(struct dev_run_of *r, uint32_t n)
{
    const uint32_t lane = threadIdx.x % DEV_WARP, full = n / DEV_WARP;
    uint32_t piece[DEV_TURNED / DEV_WARP], small = 0;
    for (uint32_t at = 0, end = n % DEV_WARP; at < end && lane >= at; at += small)
        small = moe_math_turn_piece(end - at);
#pragma unroll
    for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++)
        piece[j] = j >= full ? small : full == 4 ? 128 : j < (full & 2) ? 64 : 32;
    for (uint32_t s = 1; s < DEV_WARP; s *= 2)
#pragma unroll
        for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++) {
            float other = __shfl_xor_sync(DEV_FULL_MASK, r->x[j], s);
            if (s < piece[j])
                r->x[j] = lane & s ? other - r->x[j] : r->x[j] + other;
        }
#pragma unroll
    for (uint32_t s = 1; s < DEV_TURNED / DEV_WARP; s *= 2)
#pragma unroll
        for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++)
            if (!(j & s) && s * DEV_WARP < piece[j] && j + s < full) {
                float a = r->x[j], b = r->x[j + s];
                r->x[j] = a + b;
                r->x[j + s] = a - b;
            }
#pragma unroll
    for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++)
        r->x[j] *= moe_math_turn_scale(piece[j] ? piece[j] : 1);
}

/* The code of each lane's number among the n first of a group, and the group's scale, as in
 * infer/kv.c; x: 0 behind these. */
static __device__ __forceinline__ uint16_t dev_code_group(uint16_t layout, float x, uint32_t n,
                                                          int *code)
{
    const uint32_t lane = threadIdx.x % DEV_WARP, size = moe_f32_bits(x) & 0x7fffffffu;
    uint32_t largest = size, who = lane; /* of equal ones the first */
    for (int by = DEV_WARP / 2; by > 0; by /= 2) {
        uint32_t other = __shfl_xor_sync(DEV_FULL_MASK, largest, by);
        uint32_t whose = __shfl_xor_sync(DEV_FULL_MASK, who, by);
        if (other > largest || (other == largest && whose < who)) {
            largest = other;
            who = whose;
        }
    }
    float m = __shfl_sync(DEV_FULL_MASK, x, (int)who);
    m = largest ? m : 0;
    if (layout == MOE_LAYOUT_Q8) {
        uint16_t half = moe_math_cell_scale(8, m, 0);
        *code = moe_math_cell_code(8, x, moe_f16_to_f32(half));
        return half;
    }
    uint16_t halves[MOE_CELL_SCALES];
    int codes[MOE_CELL_SCALES];
    float errors[MOE_CELL_SCALES];
#pragma unroll
    for (int i = 0; i < MOE_CELL_SCALES; i++) {
        halves[i] = moe_math_cell_scale(4, m, i);
        float scale = moe_f16_to_f32(halves[i]);
        codes[i] = moe_math_cell_code(4, x, scale);
        float number = (float)(int8_t)dev_table_four<MOE_LAYOUT_IQ4_NL>((uint32_t)codes[i]);
        float error = lane < n ? fmaf(-number, scale, x) : 0;
        float above = __shfl_down_sync(DEV_FULL_MASK, error, MOE_LANES);
        float sum = fmaf(error, error, 0.0f);
        errors[i] = dev_join16(lane < MOE_LANES ? fmaf(above, above, sum) : 0);
    }
    int second = __shfl_sync(DEV_FULL_MASK, (int)(errors[1] < errors[0]), 0);
    *code = codes[second];
    return halves[second];
}

/* Codes of a warp's n numbers, dimensions from `first` on of a position's key. */
static __device__ __forceinline__ void dev_code_key(const struct moe_gpu_kv &kv, uint64_t head,
                                                    uint32_t position, uint32_t first, uint32_t n,
                                                    const struct dev_run_of &r)
{
    const bool four = kv.keys_as == MOE_LAYOUT_Q4;
    const uint32_t lane = threadIdx.x % DEV_WARP, place = position % kv.block_positions;
    uint8_t *panel = dev_kv_keys(kv, head) + place / 16 * kv.key_bytes;
    uint8_t *scales = panel + (uint64_t)(four ? (kv.key_dim + 1) / 2 : kv.key_dim) * 16;
#pragma unroll
    for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++) {
        const uint32_t d = first + j * DEV_WARP + lane, at = j * DEV_WARP;
        int code;
        if (at >= n)
            break; /* the whole warp */
        bool mine = at + lane < n;
        uint16_t half = dev_code_group(kv.keys_as, mine ? r.x[j] : 0, n - at, &code);
        int next = __shfl_down_sync(DEV_FULL_MASK, code, 1);
        next = at + lane + 1 < n && lane + 1 < DEV_WARP ? next : 0;
        if (mine && !four)
            panel[(uint64_t)d * 16 + place % 16] = (uint8_t)(int8_t)code;
        else if (mine && d % 2 == 0)
            panel[(uint64_t)(d / 2) * 16 + place % 16] = (uint8_t)(code | next << 4);
        if (lane == 0)
            ((uint16_t *)scales)[d / DEV_SCALED * 16 + place % 16] = half;
    }
}

/* The same of a position's value; cells up to value_padded have code 0. */
static __device__ __forceinline__ void dev_code_value(const struct moe_gpu_kv &kv, uint64_t head,
                                                      uint32_t position, uint32_t first, uint32_t n,
                                                      const struct dev_run_of &r)
{
    const bool four = kv.values_as == MOE_LAYOUT_Q4;
    const uint32_t lane = threadIdx.x % DEV_WARP, bytes = four ? 8 : 16;
    const uint64_t place = position % kv.block_positions;
    uint8_t *values = dev_kv_values(kv, head);
    uint8_t *scales = values + (uint64_t)kv.value_padded / 16 * kv.block_positions * bytes;
#pragma unroll
    for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++) {
        const uint32_t d = first + j * DEV_WARP + lane, at = j * DEV_WARP;
        int code;
        if (at >= n)
            break; /* the whole warp */
        bool mine = at + lane < n;
        uint16_t half = dev_code_group(kv.values_as, mine ? r.x[j] : 0, n - at, &code);
        code = mine ? code : 0;
        int above = __shfl_down_sync(DEV_FULL_MASK, code, 8);
        uint8_t *row = values + ((uint64_t)(d / 16) * kv.block_positions + place) * bytes;
        if (d < kv.value_padded && !four)
            row[d % 16] = (uint8_t)(int8_t)code;
        else if (d < kv.value_padded && d % 16 < 8)
            row[d % 8] = (uint8_t)(code | above << 4);
        if (lane == 0)
            ((uint16_t *)scales)[(uint64_t)(d / DEV_SCALED) * kv.block_positions + place] = half;
    }
}

#endif
