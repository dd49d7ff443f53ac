/*
 * Cells of the KV cache on the device, laid out as in infer/kv.c: keys in panels of 16 positions,
 * values in panels of 16 dimensions, per block, layer and kv head.
 */
#ifndef MOE_KERNELS_DEV_KV_CUH
#define MOE_KERNELS_DEV_KV_CUH

#include <cuda_runtime.h>
#include <float.h>

#include "dev_weights.cuh" /* dev_f16 */
#include "gpu_ops.h"

/* One (block, layer, kv head) among all: the block that holds the sequence's position. */
static __device__ __forceinline__ uint64_t dev_kv_head(const struct moe_gpu_kv &kv, uint32_t layer,
                                                       uint32_t sequence, uint32_t position,
                                                       uint32_t head)
{
    uint32_t place = position / kv.block_positions;
    uint32_t block = kv.table[(uint64_t)sequence * kv.per_sequence + place];
    return ((uint64_t)block * kv.n_layers + layer) * kv.n_heads + head;
}

/* Cells in front of a head's keys, and of its values. */
static __device__ __forceinline__ uint64_t dev_kv_keys(const struct moe_gpu_kv &kv, uint64_t head)
{
    return head * kv.block_positions * kv.key_dim;
}

static __device__ __forceinline__ uint64_t dev_kv_values(const struct moe_gpu_kv &kv, uint64_t head)
{
    return head * kv.block_positions * kv.value_padded;
}

/* By place in the block: dimension 0 of a key among its head's cells, the next are 16 cells apart;
 * of dimension d the cell of place 0, the next are 16 apart. */
static __device__ __forceinline__ uint64_t dev_key_cell(const struct moe_gpu_kv &kv, uint32_t place)
{
    return (uint64_t)(place / 16) * kv.key_dim * 16 + place % 16;
}

static __device__ __forceinline__ uint64_t dev_value_cell(const struct moe_gpu_kv &kv, uint32_t d)
{
    return (uint64_t)(d / 16) * kv.block_positions * 16 + d % 16;
}

/* A cell as a number. */
static __device__ __forceinline__ float dev_cell(float cell)
{
    return cell;
}

static __device__ __forceinline__ float dev_cell(uint16_t cell)
{
    return dev_f16(cell);
}

/* Writes cell `c` of keys or values, kept finite: an infinity in a cell that a row masks would
 * still make 0 * infinity there. */
static __device__ __forceinline__ void dev_put_cell(const struct moe_gpu_kv &kv, uint8_t *cells,
                                                    uint64_t c, float v)
{
    float most = kv.f16 ? 65504.0f : FLT_MAX;
    v = v > most ? most : v < -most ? -most : v;
    if (kv.f16)
        ((uint16_t *)cells)[c] = moe_f32_to_f16(v);
    else
        ((float *)cells)[c] = v;
}

/* Dimension d of a position's key, or value; head as from dev_kv_head of that position. */
static __device__ __forceinline__ void dev_put_key(const struct moe_gpu_kv &kv, uint64_t head,
                                                   uint32_t position, uint32_t d, float v)
{
    uint64_t c =
        dev_kv_keys(kv, head) + dev_key_cell(kv, position % kv.block_positions) + (uint64_t)d * 16;
    dev_put_cell(kv, kv.keys, c, v);
}

static __device__ __forceinline__ void dev_put_value(const struct moe_gpu_kv &kv, uint64_t head,
                                                     uint32_t position, uint32_t d, float v)
{
    uint64_t c = dev_kv_values(kv, head) + dev_value_cell(kv, d) +
                 (uint64_t)(position % kv.block_positions) * 16;
    dev_put_cell(kv, kv.values, c, v);
}

#endif
