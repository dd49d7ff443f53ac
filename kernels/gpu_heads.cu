/*
 * Queries, keys and values on their way from their products to attention and the KV cache: what
 * run/projections.c does to them, each as one launch.
 *
 * Ordinary attention: a block takes the queries, the keys or the values of a row, a warp of it a
 * head (up to 32 at a time), a thread a rotated pair. Norms over all heads are the block's, norms
 * of heads their warp's. A block per row and head would spread a single row further, but repeat the
 * norm over all heads in each. Latent attention: a block for a row's cache cells, one for its
 * queries. Cells of neighbouring dimensions lie 16 apart in the keys: these writes do not coalesce,
 * and are few. It has run on no GPU yet: no figures.
 */
#include "dev_kv.cuh"
#include "dev_vector.cuh"
#include "gpu_context.cuh"

/* ---- Ordinary attention ------------------------------------------------------------------------
 */

enum { HEADS_THREADS = 1024 };
enum part_kind { PART_Q, PART_K, PART_V, N_PARTS };

/* The queries, the keys or the values of one row. */
struct part {
    const float *x, *bias, *norm; /* norm NULL: none */
    uint32_t n_heads;
};

static __device__ struct part part_of(const struct moe_gpu_heads &h, uint64_t row, int kind)
{
    bool normed = h.qk_norm != MOE_GPU_QK_NORM_NONE;
    if (kind == PART_Q)
        return {h.q + row * h.q_stride, h.q_bias, normed ? h.q_norm : NULL, h.n_heads};
    if (kind == PART_K)
        return {h.k + row * h.k_stride, h.k_bias, normed ? h.k_norm : NULL, h.n_kv_heads};
    return {h.v + row * h.v_stride, h.v_bias, NULL, h.n_kv_heads};
}

static __device__ __forceinline__ float biased(const struct part &p, uint32_t i)
{
    return p.bias ? p.x[i] + p.bias[i] : p.x[i];
}

/* One head by one warp: r scales what is normed by the weights `norm`. */
static __device__ void finish_head(const struct moe_gpu_heads &h, const struct part &p, int kind,
                                   uint32_t head, float r, const float *norm)
{
    uint32_t lane = threadIdx.x % DEV_WARP, first = head * h.head_dim;
    uint32_t rotated = kind == PART_V ? 0 : h.rope_dim, half = rotated / 2;
    const struct moe_gpu_row at = h.rows[blockIdx.x];
    const float *angles = h.rope + (uint64_t)at.position * h.rope_dim;
    float *q = h.q + blockIdx.x * h.q_stride + first;
    uint64_t cells = dev_kv_head(h.kv, h.layer, at.sequence, head);

    auto value = [&](uint32_t d) {
        float v = biased(p, first + d);
        v = norm ? v * r * norm[d] : v;
        return h.clip > 0 ? moe_math_clamp(v, h.clip) : v;
    };
    auto put = [&](uint32_t d, float v) {
        if (kind == PART_Q)
            q[d] = v;
        else if (kind == PART_K)
            dev_put_key(h.kv, cells, at.position, d, v);
        else
            dev_put_value(h.kv, cells, at.position, d, v);
    };
    for (uint32_t i = lane; i < half; i += DEV_WARP) {
        float a = value(i), b = value(i + half);
        moe_math_rotate(&a, &b, angles[2 * i], angles[2 * i + 1]);
        put(i, a);
        put(i + half, b);
    }
    for (uint32_t d = rotated + lane; d < h.head_dim; d += DEV_WARP)
        put(d, value(d));
}

static __global__ void __launch_bounds__(HEADS_THREADS) finish_heads_kernel(struct moe_gpu_heads h)
{
    __shared__ struct dev_stage stage;
    int kind = (int)blockIdx.y;
    struct part p = part_of(h, blockIdx.x, kind);
    bool full = h.qk_norm == MOE_GPU_QK_NORM_FULL;
    float r = 0;
    if (p.norm && full) {
        uint32_t width = p.n_heads * h.head_dim;
        float squares =
            dev_block_sum<true>(&stage, width, [&](uint32_t i) { return biased(p, i); });
        r = moe_math_rms_scale(squares, width, h.eps);
    }
    for (uint32_t head = threadIdx.x / DEV_WARP; head < p.n_heads; head += blockDim.x / DEV_WARP) {
        uint32_t first = head * h.head_dim;
        if (p.norm && !full) {
            float squares =
                dev_warp_squares(h.head_dim, [&](uint32_t d) { return biased(p, first + d); });
            r = moe_math_rms_scale(squares, h.head_dim, h.eps);
        }
        finish_head(h, p, kind, head, r, p.norm && full ? p.norm + first : p.norm);
    }
}

extern "C" void moe_gpu_finish_heads(struct moe_gpu *g, const struct moe_gpu_heads *h, uint32_t n)
{
    uint32_t threads = h->n_heads * DEV_WARP;
    if (n > 0)
        MOE_LAUNCH(g, finish_heads_kernel, dim3(n, N_PARTS),
                   threads < HEADS_THREADS ? threads : (uint32_t)HEADS_THREADS, 0, *h);
}

/* ---- Latent attention --------------------------------------------------------------------------
 */

enum { LATENT_THREADS = 256 };

/* The cache's cells of a row. */
static __device__ void store_latent(const struct moe_gpu_latent &l, const struct moe_gpu_row &at,
                                    const float *angles)
{
    __shared__ struct dev_stage stage;
    const float *latent = l.v + blockIdx.x * l.v_stride, *shared = latent + l.kv_rank;
    uint64_t cells = dev_kv_head(l.kv, l.layer, at.sequence, 0);
    float squares = dev_block_sum<true>(&stage, l.kv_rank, [&](uint32_t i) { return latent[i]; });
    float r = moe_math_rms_scale(squares, l.kv_rank, l.eps);
    for (uint32_t d = threadIdx.x; d < l.kv_rank; d += blockDim.x) {
        float v = latent[d] * r * l.kv_norm[d];
        dev_put_key(l.kv, cells, at.position, l.rope_dim + d, v);
        dev_put_value(l.kv, cells, at.position, d, v);
    }
    for (uint32_t i = threadIdx.x; i < l.rope_dim / 2; i += blockDim.x) {
        float a = shared[i], b = shared[i + l.rope_dim / 2];
        moe_math_rotate(&a, &b, angles[2 * i], angles[2 * i + 1]);
        dev_put_key(l.kv, cells, at.position, i, a);
        dev_put_key(l.kv, cells, at.position, i + l.rope_dim / 2, b);
    }
}

static __device__ void rotate_queries(const struct moe_gpu_latent &l, const float *angles)
{
    uint32_t half = l.rope_dim / 2;
    for (uint32_t item = threadIdx.x; item < l.n_heads * half; item += blockDim.x) {
        uint32_t head = item / half, i = item % half;
        const float *from = l.q + blockIdx.x * l.q_stride + (uint64_t)head * l.head_dim;
        float *to = l.queries + blockIdx.x * l.queries_stride + (uint64_t)head * l.kv.key_dim;
        float a = from[i], b = from[i + half];
        moe_math_rotate(&a, &b, angles[2 * i], angles[2 * i + 1]);
        to[i] = a;
        to[i + half] = b;
    }
}

static __global__ void __launch_bounds__(LATENT_THREADS)
    finish_latent_kernel(struct moe_gpu_latent l)
{
    const struct moe_gpu_row at = l.rows[blockIdx.x];
    const float *angles = l.rope + (uint64_t)at.position * l.rope_dim;
    if (blockIdx.y == 0)
        store_latent(l, at, angles);
    else
        rotate_queries(l, angles);
}

extern "C" void moe_gpu_finish_latent(struct moe_gpu *g, const struct moe_gpu_latent *l, uint32_t n)
{
    if (n > 0)
        MOE_LAUNCH(g, finish_latent_kernel, dim3(n, 2), LATENT_THREADS, 0, *l);
}
