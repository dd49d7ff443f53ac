/*
 * Queries, keys and values between their products and attention or the KV cache, as in
 * infer/cpu_projections.c, each in one launch. In ordinary attention the attention kernel itself
 * finishes those of a decoded row (gpu_attention.cu).
 *
 * Ordinary attention: a block takes the queries, the keys or the values of a row, a warp a head (up
 * to 32 at a time), a thread a rotated pair. The block computes norms over all heads, a warp the
 * norm of its head. A block per row and head would spread a single row further, but repeat the norm
 * over all heads in each. Latent attention: one block for a row's cache cells, one for its queries,
 * more for the byte forms of k_up's inputs. Cells of neighbouring dimensions lie 16 apart in the
 * keys: these writes do not coalesce, but are few.
 */
#include "dev_heads.cuh"
#include "dev_kv.cuh"
#include "gpu_context.cuh"

/* ---- Codes ---- */

enum { CODE_THREADS = 128, CODE_WARPS = CODE_THREADS / DEV_WARP };

/* Rows of keys, or of values, that are finished; dimension 0 is number `begin` of a head's. */
struct coded_from {
    const float *x;
    uint64_t stride;
    uint32_t n_heads, dim, begin;
};

/* Codes of a row's keys or values into the cache, by a warp a run of dimensions. */
static __global__ void __launch_bounds__(CODE_THREADS)
    store_codes_kernel(struct moe_gpu_kv kv, uint32_t layer, const struct moe_gpu_row *rows,
                       struct coded_from keys, struct coded_from values)
{
    const struct moe_gpu_row at = rows[blockIdx.x];
    const struct coded_from from = blockIdx.y ? values : keys;
    const uint32_t runs = (from.dim + DEV_TURNED - 1) / DEV_TURNED, lane = threadIdx.x % DEV_WARP;
    for (uint32_t item = threadIdx.x / DEV_WARP; item < from.n_heads * runs; item += CODE_WARPS) {
        uint32_t head = item / runs, first = item % runs * DEV_TURNED;
        uint32_t n = min(from.dim - first, (uint32_t)DEV_TURNED);
        const float *x = from.x + blockIdx.x * from.stride + (uint64_t)head * from.dim;
        uint64_t cells = dev_kv_head(kv, layer, at.sequence, at.position, head);
        struct dev_run_of r;
#pragma unroll
        for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++) {
            uint32_t d = j * DEV_WARP + lane;
            r.x[j] = d < n ? x[(first + d + from.begin) % from.dim] : 0;
        }
        dev_turn(&r, n);
        if (blockIdx.y)
            dev_code_value(kv, cells, at.position, first, n, r);
        else
            dev_code_key(kv, cells, at.position, first, n, r);
    }
}

/* Where the cache has codes: of what was finished in place. */
static void store_codes(struct moe_gpu *g, const struct moe_gpu_kv *kv, uint32_t layer,
                        const struct moe_gpu_row *rows, uint32_t n, struct coded_from keys,
                        struct coded_from values)
{
    if (dev_has_scales(kv->keys_as))
        MOE_LAUNCH(g, store_codes_kernel, dim3(n, 2), CODE_THREADS, 0, *kv, layer, rows, keys,
                   values);
}

/* ---- Ordinary attention ---- */

enum { HEADS_THREADS = 1024 };

static __global__ void __launch_bounds__(HEADS_THREADS) finish_heads_kernel(struct moe_gpu_heads h)
{
    __shared__ struct dev_stage stage;
    int kind = (int)blockIdx.y;
    const struct moe_gpu_row at = h.rows[blockIdx.x];
    uint32_t n_heads = kind == DEV_QUERIES ? h.n_heads : h.n_kv_heads;
    float r = dev_norm_heads(h, kind, blockIdx.x, &stage);
    for (uint32_t head = threadIdx.x / DEV_WARP; head < n_heads; head += blockDim.x / DEV_WARP) {
        float *q = h.q + blockIdx.x * h.q_stride + (uint64_t)head * h.head_dim;
        float *k = h.k + blockIdx.x * h.k_stride + (uint64_t)head * h.head_dim;
        float *own = kind == DEV_QUERIES ? q
                     : kind == DEV_KEYS
                         ? k
                         : h.v + blockIdx.x * h.v_stride + (uint64_t)head * h.head_dim;
        uint64_t cells = dev_kv_head(h.kv, h.layer, at.sequence, at.position, head);
        dev_finish_head(h, kind, blockIdx.x, head, r, [&](uint32_t d, float v) {
            if (kind == DEV_QUERIES || dev_has_scales(h.kv.keys_as))
                own[d] = v;
            else if (kind == DEV_KEYS)
                dev_put_key(h.kv, cells, at.position, d, v);
            else
                dev_put_value(h.kv, cells, at.position, d, v);
        });
    }
}

extern "C" void moe_gpu_finish_heads(struct moe_gpu *g, const struct moe_gpu_heads *h, uint32_t n)
{
    uint32_t threads = h->n_heads * DEV_WARP;
    if (n == 0)
        return;
    MOE_LAUNCH(g, finish_heads_kernel, dim3(n, DEV_HEADS_KINDS),
               threads < HEADS_THREADS ? threads : (uint32_t)HEADS_THREADS, 0, *h);
    store_codes(g, &h->kv, h->layer, h->rows, n, {h->k, h->k_stride, h->n_kv_heads, h->head_dim, 0},
                {h->v, h->v_stride, h->n_kv_heads, h->head_dim, 0});
}

/* ---- Latent attention ---- */

enum { LATENT_THREADS = 256, LATENT_WARPS = LATENT_THREADS / DEV_WARP };

/* Rotates a pair by the angle of pair i; angles NULL: not at all. */
static __device__ __forceinline__ void turn(float *a, float *b, const float *angles, uint32_t i)
{
    if (angles)
        moe_math_rotate(a, b, angles[2 * i], angles[2 * i + 1]);
}

/* The cache's cells of a row. */
static __device__ void store_latent(const struct moe_gpu_latent &l, const struct moe_gpu_row &at,
                                    const float *angles)
{
    __shared__ struct dev_stage stage;
    float *latent = l.v + blockIdx.x * l.v_stride, *shared = latent + l.kv_rank;
    const bool coded = dev_has_scales(l.kv.keys_as);
    uint64_t cells = dev_kv_head(l.kv, l.layer, at.sequence, at.position, 0);
    float squares = dev_block_sum<true>(
        &stage, l.kv_rank, [&](uint32_t i) { return latent[i]; },
        [](uint32_t, float v) { return v; });
    float r = moe_math_rms_scale(squares, l.kv_rank, l.eps);
    for (uint32_t d = threadIdx.x; d < l.kv_rank; d += blockDim.x) {
        float v = latent[d] * r * l.kv_norm[d];
        if (coded) {
            latent[d] = v;
            continue;
        }
        dev_put_key(l.kv, cells, at.position, l.rope_dim + d, v);
        dev_put_value(l.kv, cells, at.position, d, v);
    }
    for (uint32_t i = threadIdx.x; i < l.rope_dim / 2; i += blockDim.x) {
        float a = shared[i], b = shared[i + l.rope_dim / 2];
        turn(&a, &b, angles, i);
        if (coded) {
            shared[i] = a;
            shared[i + l.rope_dim / 2] = b;
            continue;
        }
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
        turn(&a, &b, angles, i);
        to[i] = a;
        to[i + half] = b;
    }
}

/* Prepares byte forms of the queries' other parts, by block `block` among these blocks; act.cols
 * columns each. */
static __device__ void prepare_queries(const struct moe_gpu_latent &l,
                                       const struct moe_gpu_act &act, uint32_t block)
{
    uint32_t chunks = dev_prepare_chunks(act.cols);
    uint32_t item = block * LATENT_WARPS + threadIdx.x / DEV_WARP, head = item / chunks;
    if (head >= l.n_heads)
        return; /* a whole warp */
    const float *x = l.q + blockIdx.x * l.q_stride + (uint64_t)head * l.head_dim + l.rope_dim;
    dev_prepare_chunk(x, item % chunks, act, (uint64_t)head * gridDim.x + blockIdx.x);
}

static __global__ void __launch_bounds__(LATENT_THREADS)
    finish_latent_kernel(struct moe_gpu_latent l, struct moe_gpu_act nope)
{
    const struct moe_gpu_row at = l.rows[blockIdx.x];
    const float *angles = l.rope ? dev_angles(l.rope, l.rope_dim, l.rope_original, at) : NULL;
    if (blockIdx.y == 0)
        store_latent(l, at, angles);
    else if (blockIdx.y == 1)
        rotate_queries(l, angles);
    else
        prepare_queries(l, nope, blockIdx.y - 2);
}

extern "C" void moe_gpu_finish_latent(struct moe_gpu *g, const struct moe_gpu_latent *l, uint32_t n)
{
    struct moe_gpu_act nope = {};
    uint32_t blocks = 2;
    if (l->nope && dev_prepare_wanted(*l->nope)) {
        nope = *l->nope;
        blocks += (l->n_heads * dev_prepare_chunks(nope.cols) + LATENT_WARPS - 1) / LATENT_WARPS;
    }
    if (n == 0)
        return;
    MOE_LAUNCH(g, finish_latent_kernel, dim3(n, blocks), LATENT_THREADS, 0, *l, nope);
    store_codes(g, &l->kv, l->layer, l->rows, n,
                {l->v, l->v_stride, 1, l->rope_dim + l->kv_rank, l->kv_rank},
                {l->v, l->v_stride, 1, l->kv_rank, 0});
}
