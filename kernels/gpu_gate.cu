/*
 * Between a block's output and its last product: norms of heads, gates.
 *
 * A block computes a norm, as in gpu_rows.cu; a warp computes a gate's 64 columns of a row, and
 * their byte forms.
 */
#include "dev_vector.cuh"
#include "gpu_context.cuh"
#include "gpu_states.h"

/* ---- Norms of parts ---- */

enum { PARTS_THREADS = 128 };

static __global__ void __launch_bounds__(PARTS_THREADS)
    norm_parts_kernel(struct moe_gpu_norm_parts p)
{
    __shared__ struct dev_stage stage;
    float *x = p.x + blockIdx.x * p.stride + (uint64_t)blockIdx.y * p.cols;
    const float *weights = p.weights + (p.weights_of_parts ? (uint64_t)blockIdx.y * p.cols : 0);
    float squares = dev_block_sum<true>(
        &stage, p.cols, [&](uint32_t i) { return x[i]; }, [](uint32_t, float v) { return v; });
    float r = moe_math_rms_scale(squares, p.cols, p.eps);
    for (uint32_t i = threadIdx.x; i < p.cols; i += PARTS_THREADS)
        x[i] = x[i] * r * weights[i];
}

extern "C" void moe_gpu_norm_parts(struct moe_gpu *g, const struct moe_gpu_norm_parts *p,
                                   uint32_t n)
{
    if (n > 0)
        MOE_LAUNCH(g, norm_parts_kernel, dim3(n, p->n_parts), PARTS_THREADS, 0, *p);
}

/* ---- Gates ---- */

enum { GATE_WARPS = 4 };

static __global__ void gate_kernel(struct moe_gpu_gate g)
{
    uint32_t chunk = blockIdx.y * GATE_WARPS + threadIdx.x / DEV_WARP;
    if (chunk >= dev_prepare_chunks(g.act.cols))
        return; /* a whole warp */
    float *x = g.x + blockIdx.x * g.x_stride, values[2];
    const float *gate = g.gate + blockIdx.x * g.gate_stride;
    for (int half = 0; half < 2; half++) {
        uint32_t i = chunk * DEV_PREPARE_CHUNK + half * DEV_PREPARE_HALF + threadIdx.x % DEV_WARP;
        values[half] = 0;
        if (i < g.act.cols)
            x[i] = values[half] =
                g.silu ? moe_math_swiglu(gate[i], x[i]) : x[i] * moe_math_sigmoid(gate[i]);
    }
    dev_prepare_values(values, chunk, g.act, blockIdx.x);
}

extern "C" void moe_gpu_gate(struct moe_gpu *g, const struct moe_gpu_gate *gate, uint32_t n)
{
    uint32_t chunks = dev_prepare_chunks(gate->act.cols);
    if (n > 0 && chunks > 0)
        MOE_LAUNCH(g, gate_kernel, dim3(n, (chunks + GATE_WARPS - 1) / GATE_WARPS),
                   GATE_WARPS * DEV_WARP, 0, *gate);
}
