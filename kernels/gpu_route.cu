/*
 * Routing as run/router.c defines it, and softmax of rows.
 *
 * A warp routes a row: a row has 8 to a few hundred scores, so that barriers of a larger block
 * would cost more than its threads bring. The best k are found in k rounds of a maximum over the
 * warp (128 experts: 4 scores a thread); counting for each expert those that beat it needs no
 * rounds, but the square of the experts. Neither has run on a GPU yet: no figures.
 */
#include "dev_vector.cuh"
#include "gpu_context.cuh"

/* ---- A warp's tools ----------------------------------------------------------------------------
 */

/* A row in work. All three lie in shared memory: three floats an expert, 48 KiB at 4096 experts. */
struct routing {
    float *p;        /* [n_experts] scores, then probabilities */
    float *aside;    /* [n_experts] */
    uint32_t *ranks; /* [n_experts] of those that can still be chosen; else 0 */
    uint32_t lane;
};

/* kern.h's softmax. */
static __device__ void softmax(float *x, uint32_t n, uint32_t lane)
{
    float largest = -INFINITY, sum = 0;
    __syncwarp();
    for (uint32_t i = lane; i < n; i += DEV_WARP)
        largest = x[i] > largest ? x[i] : largest;
    largest = dev_warp_max(largest);
    for (uint32_t i = lane; i < n; i += DEV_WARP)
        x[i] = moe_math_exp(x[i] - largest);
    __syncwarp();
    for (uint32_t i = lane; lane < MOE_LANES && i < n; i += MOE_LANES)
        sum += x[i];
    sum = dev_warp_join(sum);
    for (uint32_t i = lane; i < n; i += DEV_WARP)
        x[i] /= sum;
    __syncwarp();
}

/* The expert of the highest rank, which is set to 0. */
static __device__ uint32_t take_best(const struct routing *w, uint32_t n)
{
    uint32_t rank = 0, index = UINT32_MAX;
    __syncwarp();
    for (uint32_t e = w->lane; e < n; e += DEV_WARP)
        dev_keep_better(&rank, &index, w->ranks[e], e);
    dev_warp_best(&rank, &index);
    if (w->lane == 0)
        w->ranks[index] = 0;
    return index;
}

/* ---- Choices -----------------------------------------------------------------------------------
 */

/* The best of each group into aside, then the ranks of the experts whose group is among the best.
 * Others are worth -1, as in router.c: less than any probability. */
static __device__ void rank_groups(const struct moe_gpu_router *r, const struct routing *w)
{
    uint32_t size = r->n_experts / r->n_groups;
    float *best = w->aside;
    for (uint32_t g = w->lane; g < r->n_groups; g += DEV_WARP) {
        float most = w->p[g * size];
        for (uint32_t e = g * size + 1; e < (g + 1) * size; e++)
            most = w->p[e] > most ? w->p[e] : most;
        best[g] = most;
    }
    __syncwarp();
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP) {
        uint32_t g = e / size, n_better = 0;
        for (uint32_t i = 0; i < r->n_groups; i++)
            n_better += best[i] > best[g] || (best[i] == best[g] && i < g);
        w->ranks[e] = dev_rank(n_better < r->top_groups ? w->p[e] : -1.0f);
    }
}

/* The best k and their values in p; these go into aside. */
static __device__ void choose_best(const struct moe_gpu_router *r, const struct routing *w,
                                   uint32_t *chosen)
{
    for (uint32_t k = 0; k < r->top_k; k++) {
        uint32_t e = take_best(w, r->n_experts);
        if (w->lane == 0) {
            chosen[k] = e;
            w->aside[k] = w->p[e];
        }
    }
    __syncwarp();
}

static __device__ void choose_by_softmax(const struct moe_gpu_router *r, const struct routing *w,
                                         uint32_t *chosen)
{
    softmax(w->p, r->n_experts, w->lane);
    if (r->n_groups)
        rank_groups(r, w);
    for (uint32_t e = w->lane; !r->n_groups && e < r->n_experts; e += DEV_WARP)
        w->ranks[e] = dev_rank(w->p[e]);
    choose_best(r, w, chosen);
}

static __device__ void choose_by_score(const struct moe_gpu_router *r, const struct routing *w,
                                       uint32_t *chosen)
{
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP)
        w->ranks[e] = dev_rank(w->p[e]);
    choose_best(r, w, chosen);
    softmax(w->aside, r->top_k, w->lane);
    softmax(w->p, r->n_experts, w->lane);
}

/* The best expert but `without`, and its share among those near it. */
static __device__ uint32_t mix_winner(const struct moe_gpu_router *r, const struct routing *w,
                                      uint32_t without, float *weight)
{
    const float *scores = w->p;
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP)
        w->ranks[e] = e == without ? 0 : dev_rank(scores[e]);
    uint32_t winner = take_best(w, r->n_experts);
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP) {
        float size = fabsf(scores[e]) > scores[winner] ? fabsf(scores[e]) : scores[winner];
        bool far = (scores[winner] - scores[e]) / size > 2 * r->jitter;
        w->aside[e] = far || e == without ? -INFINITY : scores[e];
    }
    softmax(w->aside, r->n_experts, w->lane);
    *weight = w->aside[winner];
    __syncwarp();
    return winner;
}

static __device__ void choose_by_mixer(const struct moe_gpu_router *r, const struct routing *w,
                                       uint32_t *chosen)
{
    float weights[2];
    uint32_t first = mix_winner(r, w, UINT32_MAX, &weights[0]);
    uint32_t second = mix_winner(r, w, first, &weights[1]);
    if (w->lane == 0) {
        chosen[0] = first;
        chosen[1] = second;
        w->aside[0] = weights[0];
        w->aside[1] = weights[1];
    }
    softmax(w->p, r->n_experts, w->lane);
}

static __global__ void __launch_bounds__(DEV_WARP) route_kernel(struct moe_gpu_router r)
{
    MOE_DYNAMIC_SHARED(float, shared);
    const struct routing w = {shared, shared + r.n_experts, (uint32_t *)(shared + 2 * r.n_experts),
                              threadIdx.x};
    uint64_t row = blockIdx.x;
    float *scores = r.scores + row * r.stride, *weights = r.weights + row * r.top_k, sum = 0;
    uint32_t *chosen = r.chosen + row * r.top_k;
    for (uint32_t e = w.lane; e < r.n_experts; e += DEV_WARP)
        w.p[e] = r.bias ? scores[e] + r.bias[e] : scores[e];

    if (r.kind == MOE_GPU_ROUTER_SOFTMAX)
        choose_by_softmax(&r, &w, chosen);
    else if (r.kind == MOE_GPU_ROUTER_TOPK_SOFTMAX)
        choose_by_score(&r, &w, chosen);
    else
        choose_by_mixer(&r, &w, chosen);

    for (uint32_t e = w.lane; e < r.n_experts; e += DEV_WARP)
        scores[e] = w.p[e];
    for (uint32_t k = 0; k < r.top_k; k++)
        sum += w.aside[k];
    for (uint32_t k = w.lane; k < r.top_k; k += DEV_WARP)
        weights[k] = (r.norm_topk ? w.aside[k] / sum : w.aside[k]) * r.routed_scale;
}

extern "C" void moe_gpu_route(struct moe_gpu *g, const struct moe_gpu_router *r, uint32_t n)
{
    if (n > 0)
        MOE_LAUNCH(g, route_kernel, n, DEV_WARP, 3 * r->n_experts * sizeof(float), *r);
}

/* ---- Softmax of rows ---------------------------------------------------------------------------
 */

enum { SOFTMAX_THREADS = 256 };

static __global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_kernel(float *rows, uint64_t stride, uint32_t cols, const float *bias)
{
    __shared__ struct dev_stage stage;
    float *x = rows + blockIdx.x * stride, largest = -INFINITY;
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x) {
        float v = bias ? x[i] + bias[i] : x[i];
        x[i] = v;
        largest = v > largest ? v : largest;
    }
    largest = dev_block_max(&stage, largest);
    float sum = dev_block_sum<false>(
        &stage, cols, [&](uint32_t i) { return x[i] = moe_math_exp(x[i] - largest); });
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x)
        x[i] /= sum;
}

extern "C" void moe_gpu_softmax(struct moe_gpu *g, float *x, uint64_t stride, uint32_t n,
                                uint32_t cols, const float *bias)
{
    if (n > 0)
        MOE_LAUNCH(g, softmax_kernel, n, SOFTMAX_THREADS, 0, x, stride, cols, bias);
}
