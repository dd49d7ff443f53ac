/*
 * A panel of a matrix of floats times up to eight inputs, by a block of threads: as with quantized
 * layouts (dev_matvec_bytes.cuh), four warps bring sections of 128 columns into shared memory, as
 * floats, in two buffers taking turns; the chains run beside them. A chain takes four cycles a
 * column: with 4096 columns the chain is what a matrix waits for, unless it is large.
 */
#ifndef MOE_KERNELS_DEV_MATVEC_FLOATS_CUH
#define MOE_KERNELS_DEV_MATVEC_FLOATS_CUH

#include "dev_product.cuh"
#include "dev_weights.cuh"

enum { MATVEC_COLUMNS = DEV_READERS }; /* of a section: a reading thread has one of each input */

/* A reading thread's share of a section. */
template <int KIND, int NT> struct matvec_floats {
    uint4 weights[KIND == MOE_LAYOUT_F32 ? 4 : 2];
    float x[NT];
};

template <int KIND, int NT>
static __device__ __forceinline__ void
matvec_read_floats(const struct dev_product &p, const uint8_t *panel, const float *const in[NT],
                   uint32_t first, struct matvec_floats<KIND, NT> *to)
{
    const int loads = KIND == MOE_LAYOUT_F32 ? 4 : 2, size = KIND == MOE_LAYOUT_F32 ? 4 : 2;
    uint64_t at = (uint64_t)first * (MOE_PANEL_ROWS * size) + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < loads; i++, at += DEV_READERS * 16)
        to->weights[i] =
            at < p.panel_bytes ? __ldg((const uint4 *)(panel + at)) : make_uint4(0, 0, 0, 0);
    uint32_t column = first + threadIdx.x;
#pragma unroll
    for (int t = 0; t < NT; t++)
        to->x[t] = column < p.cols ? __ldg(in[t] + column) : 0.0f;
}

template <int KIND, int NT>
static __device__ __forceinline__ void
matvec_keep_floats(const struct matvec_floats<KIND, NT> &from, float (*w)[MOE_PANEL_ROWS],
                   float (*x)[MATVEC_COLUMNS])
{
    const int loads = KIND == MOE_LAYOUT_F32 ? 4 : 2, per_word = KIND == MOE_LAYOUT_F32 ? 1 : 2;
    float *to = &w[0][0] + threadIdx.x * (4 * per_word);
#pragma unroll
    for (int i = 0; i < loads; i++, to += DEV_READERS * 4 * per_word) {
        const uint4 &v = from.weights[i];
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
        float f[4 * per_word];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (KIND == MOE_LAYOUT_F32)
                f[k] = moe_bits_f32(words[k]);
            else
                dev_two_weights<KIND>(words[k], f + k * per_word);
#pragma unroll
        for (int k = 0; k < per_word; k++)
            ((float4 *)to)[k] = make_float4(f[4 * k], f[4 * k + 1], f[4 * k + 2], f[4 * k + 3]);
    }
#pragma unroll
    for (int t = 0; t < NT; t++)
        x[t][threadIdx.x] = from.x[t];
}

template <int NT> struct matvec_floats_stage {
    __align__(16) float w[2][MATVEC_COLUMNS][MOE_PANEL_ROWS], x[2][NT][MATVEC_COLUMNS];
};

/* The block's panel, blockIdx.x; shared: a matvec_floats_stage. */
template <int KIND, int NT>
static __device__ __forceinline__ void matvec_floats_panel(const struct dev_product &p,
                                                           float *shared)
{
    struct matvec_floats_stage<NT> *stage = (struct matvec_floats_stage<NT> *)shared;
    float(*w)[MATVEC_COLUMNS][MOE_PANEL_ROWS] = stage->w, (*x)[NT][MATVEC_COLUMNS] = stage->x;
    const uint8_t *panel = p.data + blockIdx.x * p.panel_bytes;
    uint32_t sections = (p.cols + MATVEC_COLUMNS - 1) / MATVEC_COLUMNS;
    bool reads = threadIdx.x < DEV_READERS;

    /* Of a reading thread. */
    const float *in[NT] = {};
    struct matvec_floats<KIND, NT> next = {
    };
    /* Of a chain's. */
    uint32_t row = threadIdx.x % MOE_PANEL_ROWS;
    uint32_t t = (threadIdx.x - DEV_READERS) / MOE_PANEL_ROWS;
    bool adds = !reads && t < NT;
    float y = 0;

    if (reads) {
#pragma unroll
        for (int k = 0; k < NT; k++)
            in[k] = (const float *)p.inputs + dev_input_of(p, k) * p.in_stride;
        matvec_read_floats<KIND, NT>(p, panel, in, 0, &next);
    }
    for (uint32_t k = 0; k <= sections; k++) {
        if (reads && k < sections) {
            const struct matvec_floats<KIND, NT> now = next;
            if (k + 1 < sections)
                matvec_read_floats<KIND, NT>(p, panel, in, (k + 1) * MATVEC_COLUMNS, &next);
            matvec_keep_floats<KIND, NT>(now, w[k & 1], x[k & 1]);
        } else if (adds && k > 0) {
            uint32_t n = min(p.cols - (k - 1) * MATVEC_COLUMNS, (uint32_t)MATVEC_COLUMNS);
#pragma unroll 16
            for (uint32_t c = 0; c < n; c++)
                y = fmaf(w[(k - 1) & 1][c][row], x[(k - 1) & 1][t][c], y);
        }
        __syncthreads();
    }
    if (adds && t < p.n)
        dev_store_result(p, t, blockIdx.x * MOE_PANEL_ROWS + row, y);
}

#endif
