/*
 * Products of float layouts with many inputs: one fma chain per (row, input) through all columns,
 * whose order the results' bits depend on. So neither tensor cores nor sums shared among threads
 * help; what counts is that the chains never wait for memory. A block computes 64 rows times 64
 * inputs, a thread 4 x 4 chains.
 */
#include "dev_product.cuh"
#include "dev_weights.cuh"
#include "gpu_products.cuh"

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
    const struct dev_product p = dev_this_product(all, dev_this_index(all));
    uint32_t panels = moe_panels(p.rows), first = blockIdx.z * INPUTS;
    if (blockIdx.x * PANELS >= panels || first >= p.n)
        return;
    /* Loads: four rows of a column of a panel; four columns of an input. */
    uint32_t in_panel = threadIdx.x / (THREADS / PANELS), column = threadIdx.x / 4 % DEPTH;
    uint32_t quad = threadIdx.x % 4 * 4, input = threadIdx.x / 4;
    uint32_t panel = blockIdx.x * PANELS + in_panel;
    const auto weights = dev_find_floats<KIND>(p.data + min(panel, panels - 1) * p.panel_bytes,
                                               p.kind, p.per_record, p.cols);
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
                next_w[i] = c + column < p.cols
                                ? dev_float_weight<KIND>(weights, c + column, quad + i)
                                : 0.0f;
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

void gpu_gemm_floats(struct moe_gpu *g, const struct dev_products *list)
{
    dim3 grid((gpu_most_panels(list) + PANELS - 1) / PANELS, dev_products_height(list),
              (gpu_most_inputs(list) + INPUTS - 1) / INPUTS);
#define START(kind, block) MOE_LAUNCH(g, many_floats<kind>, grid, THREADS, 0, *list)
    DEV_BY_FLOAT(list->list[0].kind, START);
#undef START
}
