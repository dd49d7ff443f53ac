/* Kernels for the tests of the shim and of device functions. */
#include "shim_kernels.h"

#include "dev_copy.cuh"
#include "dev_integer.cuh"
#include "dev_math.cuh"
#include "gpu_context.cuh"

static const unsigned ALL = 0xffffffffu;

static __global__ void block_sum(const int32_t *in, int32_t *out)
{
    MOE_DYNAMIC_SHARED(int32_t, sums);
    unsigned n = blockDim.x, t = threadIdx.x;
    sums[t] = in[blockIdx.x * n + t];
    __syncthreads();
    for (unsigned half = n / 2; half > 0; half /= 2) {
        if (t < half)
            sums[t] += sums[t + half];
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = sums[0];
}

void try_block_sum(struct moe_gpu *g, const int32_t *in, uint32_t n_blocks, uint32_t n,
                   int32_t *out)
{
    MOE_LAUNCH(g, block_sum, n_blocks, n, n * sizeof(int32_t), in, out);
}

static __global__ void shuffles(int32_t *out)
{
    int t = (int)threadIdx.x, lane = t % 32, mine = 100 + lane;
    out[t] = __shfl_xor_sync(ALL, mine, 5);
    out[64 + t] = __shfl_down_sync(ALL, mine, 3);
    out[128 + t] = __shfl_up_sync(ALL, mine, 3);
    out[192 + t] = __shfl_sync(ALL, mine, 7);
    float sum = (float)(lane * lane);
    for (int half = 16; half > 0; half /= 2)
        sum += __shfl_xor_sync(ALL, sum, half);
    __syncwarp();
    out[256 + t] = (int32_t)sum;
}

void try_shuffles(struct moe_gpu *g, int32_t *out)
{
    MOE_LAUNCH(g, shuffles, 1, 64, 0, out);
}

static __global__ void ragged(int32_t *out, uint32_t n)
{
    uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    uint32_t i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    if (i >= n)
        return;
    out[i] += 1;
}

void try_ragged(struct moe_gpu *g, int32_t *out, uint32_t n)
{
    uint32_t n_blocks = (n + 32 * 3 * 2 - 1) / (32 * 3 * 2);
    MOE_LAUNCH(g, ragged, dim3((n_blocks + 5) / 6, 3, 2), dim3(32, 3, 2), 0, out, n);
}

static __global__ void atomics(uint32_t *out)
{
    atomicAdd(&out[0], 1u);
    atomicMax(&out[1], blockIdx.x * blockDim.x + threadIdx.x);
}

void try_atomics(struct moe_gpu *g, uint32_t *out, uint32_t n_blocks, uint32_t n)
{
    MOE_LAUNCH(g, atomics, n_blocks, n, 0, out);
}

static __global__ void mma(const uint8_t *a, const int8_t *b, int32_t *c, bool a_signed)
{
#if DEV_HAS_MMA
    int row = (int)threadIdx.x / 4, quad = (int)threadIdx.x % 4;
    uint32_t fa[4], fb[2] = {0, 0};
    int32_t fc[4];
    for (int i = 0; i < 4; i++) {
        fa[i] = *(const uint32_t *)(a + (row + i % 2 * 8) * 32 + i / 2 * 16 + quad * 4);
        fc[i] = c[(row + i / 2 * 8) * 8 + quad * 2 + i % 2];
    }
    for (int i = 0; i < 8; i++)
        fb[i / 4] |= (uint32_t)(uint8_t)b[(i / 4 * 16 + quad * 4 + i % 4) * 8 + row] << i % 4 * 8;
    if (a_signed)
        dev_mma_s8s8(fc, fa, fb);
    else
        dev_mma_u8s8(fc, fa, fb);
    for (int i = 0; i < 4; i++)
        c[(row + i / 2 * 8) * 8 + quad * 2 + i % 2] = fc[i];
#endif
}

void try_mma(struct moe_gpu *g, const uint8_t *a, const int8_t *b, int32_t *c, bool a_signed)
{
    MOE_LAUNCH(g, mma, 1, 32, 0, a, b, c, a_signed);
}

static __global__ void dp4a(uint32_t a, int32_t b, int32_t c, int32_t *out)
{
    out[0] = dev_dp4a(a, b, c);
    out[1] = dev_dp4a_ss((int32_t)a, b, c);
}

void try_dp4a(struct moe_gpu *g, uint32_t a, int32_t b, int32_t c, int32_t *out)
{
    MOE_LAUNCH(g, dp4a, 1, 1, 0, a, b, c, out);
}

static __global__ void join16(const float *in, float *out)
{
    out[threadIdx.x] = dev_join16(in[threadIdx.x]);
}

void try_join16(struct moe_gpu *g, const float *in, float *out)
{
    MOE_LAUNCH(g, join16, 1, 32, 0, in, out);
}

static __global__ void reverse(const int32_t *in, int32_t *out, bool barrier)
{
    __shared__ int32_t kept[1024];
    unsigned n = blockDim.x, t = threadIdx.x;
    kept[t] = in[t];
    if (barrier)
        __syncthreads();
    out[t] = kept[n - 1 - t];
}

void try_reverse(struct moe_gpu *g, const int32_t *in, int32_t *out, uint32_t n, bool barrier)
{
    MOE_LAUNCH(g, reverse, 1, n, 0, in, out, barrier);
}

static __global__ void copies(const int32_t *in, int32_t *out, bool wait)
{
    MOE_DYNAMIC_SHARED(int32_t, kept);
    unsigned n = blockDim.x, t = threadIdx.x;
    out += blockIdx.x * 2 * n;
    for (unsigned i = t; i < 2 * n; i += n) {
        dev_copy<4>(&kept[i], in + i);
        dev_copies_end();
    }
    if (wait)
        dev_copies_wait<1>();
    __syncthreads();
    out[t] = kept[n - 1 - t];
    dev_copies_wait<0>();
    __syncthreads();
    out[n + t] = kept[2 * n - 1 - t];
}

void try_copies(struct moe_gpu *g, const int32_t *in, int32_t *out, uint32_t n, bool wait)
{
    MOE_LAUNCH(g, copies, 2, n, 2 * n * sizeof(int32_t), in, out, wait);
}

uint32_t try_arrivals(struct moe_gpu *g)
{
    static uint32_t counters[GPU_ARRIVALS];
    uint32_t n = 0;
    moe_gpu_download(g, MOE_GPU_COMPUTE, counters, g->arrivals, sizeof counters);
    if (moe_gpu_finish(g, NULL) != MOE_OK)
        return GPU_ARRIVALS;
    for (uint32_t i = 0; i < GPU_ARRIVALS; i++)
        n += counters[i] != 0;
    return n;
}

static __global__ void broken(enum try_fault fault, int32_t *out)
{
    MOE_DYNAMIC_SHARED(int32_t, shared);
    int t = (int)threadIdx.x;
    switch (fault) {
    case TRY_ENDED_BEFORE_BARRIER:
        if (t == 5)
            return;
        __syncthreads();
        break;
    case TRY_OTHER_BARRIER:
        if (t == 5)
            __syncthreads();
        else
            __syncthreads();
        break;
    case TRY_LANES_ABSENT:
        if (t == 40)
            return;
        out[t] = __shfl_xor_sync(ALL, t, 1);
        break;
    case TRY_PART_OF_A_WARP:
        out[t] = __shfl_xor_sync(0xffff, t, 1);
        break;
    case TRY_BARRIER_AND_SHUFFLE:
        if (t % 32 == 31)
            __syncthreads();
        else
            out[t] = __shfl_xor_sync(ALL, t, 1);
        break;
    case TRY_COPY_LEFT:
        if (t == 5)
            dev_copy<4>(shared, out);
        break;
    case TRY_OVERRUN:
        shared[t] = t;
        break;
    case TRY_WILD_WRITE:
        out[t] = t;
        break;
    }
}

void try_fault(struct moe_gpu *g, enum try_fault fault, int32_t *out)
{
    MOE_LAUNCH(g, broken, 1, 64, 63 * sizeof(int32_t), fault, out);
}
