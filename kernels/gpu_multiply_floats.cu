/*
 * Products of float layouts: one fma chain per (row, input) through all columns, whose order the
 * results' bits depend on. So neither tensor cores nor sums shared among threads are of use; what
 * counts is that the chains never wait for memory.
 *
 * Up to eight inputs: as for quantized layouts (gpu_multiply_few.cu), four warps bring sections of
 * 128 columns of one panel into shared memory, as floats, in two buffers taking turns; the chains
 * run beside them. A chain takes four cycles a column: with 4096 columns it is the chain that a
 * matrix waits for, unless it is large.
 *
 * More: 64 rows times 64 inputs a block, 4 x 4 chains a thread.
 *
 * Not measured: it has run on no GPU yet.
 */
#include "dev_product.cuh"
#include "dev_weights.cuh"

/* ---- Few inputs --------------------------------------------------------------------------------
 */

enum { COLUMNS = DEV_READERS }; /* of a section: a reading thread has one of each input */

/* A reading thread's share of a section. */
template <int KIND, int NT> struct few_floats {
    uint4 weights[KIND == MOE_LAYOUT_F32 ? 4 : 2];
    float x[NT];
};

template <int KIND, int NT>
static __device__ __forceinline__ void
few_read_floats(const struct dev_product &p, const uint8_t *panel, const float *const in[NT],
                uint32_t first, struct few_floats<KIND, NT> *to)
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
static __device__ __forceinline__ void few_keep_floats(const struct few_floats<KIND, NT> &from,
                                                       float (*w)[MOE_PANEL_ROWS],
                                                       float (*x)[COLUMNS])
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

template <int KIND, int NT>
static __global__ void __launch_bounds__(dev_few_threads(NT))
    few_floats_kernel(struct dev_products all)
{
    __shared__ __align__(16) float w[2][COLUMNS][MOE_PANEL_ROWS], x[2][NT][COLUMNS];

    const struct dev_product p = dev_this_product(all);
    if (blockIdx.x >= moe_panels(p.rows))
        return;
    const uint8_t *panel = p.data + blockIdx.x * p.panel_bytes;
    uint32_t sections = (p.cols + COLUMNS - 1) / COLUMNS;
    bool reads = threadIdx.x < DEV_READERS;

    /* Of a reading thread. */
    const float *in[NT] = {};
    struct few_floats<KIND, NT> next = {
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
        few_read_floats<KIND, NT>(p, panel, in, 0, &next);
    }
    for (uint32_t k = 0; k <= sections; k++) {
        if (reads && k < sections) {
            const struct few_floats<KIND, NT> now = next;
            if (k + 1 < sections)
                few_read_floats<KIND, NT>(p, panel, in, (k + 1) * COLUMNS, &next);
            few_keep_floats<KIND, NT>(now, w[k & 1], x[k & 1]);
        } else if (adds && k > 0) {
            uint32_t n = min(p.cols - (k - 1) * COLUMNS, (uint32_t)COLUMNS);
#pragma unroll 16
            for (uint32_t c = 0; c < n; c++)
                y = fmaf(w[(k - 1) & 1][c][row], x[(k - 1) & 1][t][c], y);
        }
        __syncthreads();
    }
    if (adds && t < p.n)
        dev_store_result(p, t, blockIdx.x * MOE_PANEL_ROWS + row, y);
}

/* ---- Many inputs -------------------------------------------------------------------------------
 */

enum {
    THREADS = 256,
    PANELS = 4,  /* of a block */
    INPUTS = 64, /* likewise */
    ROWS = PANELS * MOE_PANEL_ROWS,
    DEPTH = 16,            /* columns in shared memory at a time */
    X_STRIDE = INPUTS + 4, /* apart, so that a column's stores touch several banks */
    SIDE = 4               /* rows and inputs of a thread */
};

template <int KIND>
static __global__ void __launch_bounds__(THREADS) many_floats(struct dev_products all)
{
    __shared__ __align__(16) float w[2][DEPTH][ROWS], x[2][DEPTH][X_STRIDE];
    const struct dev_product p = dev_this_product(all);
    uint32_t panels = moe_panels(p.rows), first = blockIdx.z * INPUTS;
    if (blockIdx.x * PANELS >= panels || first >= p.n)
        return;
    /* Brings: four rows of a column of a panel; four columns of an input. */
    uint32_t in_panel = threadIdx.x / (THREADS / PANELS), column = threadIdx.x / 4 % DEPTH;
    uint32_t quad = threadIdx.x % 4 * 4, input = threadIdx.x / 4;
    uint32_t panel = blockIdx.x * PANELS + in_panel;
    const uint8_t *weights = p.data + min(panel, panels - 1) * p.panel_bytes;
    const float *in = (const float *)p.inputs + dev_input_of(p, first + input) * p.in_stride;
    /* Computes: rows and inputs from here on. */
    uint32_t row = threadIdx.x % (ROWS / SIDE) * SIDE, to = threadIdx.x / (ROWS / SIDE) * SIDE;

    float y[SIDE][SIDE] = {}; /* [input][row] */
    float next_w[4] = {}, next_x[4] = {};
    uint32_t chunks = (p.cols + DEPTH - 1) / DEPTH;
    for (uint32_t k = 0; k <= chunks; k++) {
        if (k < chunks) {
            uint32_t c = k * DEPTH;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint64_t at = (uint64_t)(c + column) * MOE_PANEL_ROWS + quad + i;
                next_w[i] = c + column < p.cols ? dev_float_weight<KIND>(weights, at) : 0.0f;
                next_x[i] = c + quad + i < p.cols ? __ldg(in + c + quad + i) : 0.0f;
            }
        }
        if (k > 0) {
            uint32_t n = min(p.cols - (k - 1) * DEPTH, (uint32_t)DEPTH);
#pragma unroll 4
            for (uint32_t c = 0; c < n; c++) {
                float4 wv = *(const float4 *)&w[(k - 1) & 1][c][row];
                float4 xv = *(const float4 *)&x[(k - 1) & 1][c][to];
                const float ws[SIDE] = {wv.x, wv.y, wv.z, wv.w},
                            xs[SIDE] = {xv.x, xv.y, xv.z, xv.w};
#pragma unroll
                for (int i = 0; i < SIDE; i++)
#pragma unroll
                    for (int r = 0; r < SIDE; r++)
                        y[i][r] = fmaf(ws[r], xs[i], y[i][r]);
            }
        }
        if (k < chunks) {
            *(float4 *)&w[k & 1][column][in_panel * MOE_PANEL_ROWS + quad] =
                make_float4(next_w[0], next_w[1], next_w[2], next_w[3]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[k & 1][quad + i][input] = next_x[i];
        }
        __syncthreads();
    }

    uint32_t first_row = blockIdx.x * ROWS + row;
    for (uint32_t i = 0; i < SIDE && first + to + i < p.n; i++)
        for (uint32_t r = 0; r < SIDE && first_row + r < panels * MOE_PANEL_ROWS; r++)
            dev_store_result(p, first + to + i, first_row + r, y[i][r]);
}

/* ---- Starting ----------------------------------------------------------------------------------
 */

template <int KIND>
static void start(struct moe_gpu *g, const struct dev_products *list, uint32_t max_panels,
                  uint32_t max_n)
{
    dim3 grid(max_panels, dev_products_height(list));
    if (max_n > GPU_FEW_ROWS) {
        grid.x = (max_panels + PANELS - 1) / PANELS;
        grid.z = (max_n + INPUTS - 1) / INPUTS;
        MOE_LAUNCH(g, many_floats<KIND>, grid, THREADS, 0, *list);
        return;
    }
#define START(nt) MOE_LAUNCH(g, (few_floats_kernel<KIND, nt>), grid, dev_few_threads(nt), 0, *list)
    DEV_BY_TILE(max_n, START);
#undef START
}

void gpu_multiply_floats(struct moe_gpu *g, uint16_t kind, const struct dev_products *list,
                         uint32_t max_panels, uint32_t max_n)
{
    if (kind == MOE_LAYOUT_F32)
        start<MOE_LAYOUT_F32>(g, list, max_panels, max_n);
    else if (kind == MOE_LAYOUT_F16)
        start<MOE_LAYOUT_F16>(g, list, max_panels, max_n);
    else
        start<MOE_LAYOUT_BF16>(g, list, max_panels, max_n);
}
