/*
 * Routing a row by a warp, as infer/router.c defines it.
 *
 * A row has 8 to a few hundred scores, so the barriers of a larger block would cost more than its
 * threads gain. The best k are found in k rounds of a maximum over the warp (128 experts: 4 scores
 * a thread); counting for each expert those that beat it needs no rounds, but as many
 * comparisons as the square of the experts.
 */
#ifndef MOE_KERNELS_DEV_ROUTE_CUH
#define MOE_KERNELS_DEV_ROUTE_CUH

#include "dev_vector.cuh"
#include "gpu_ops.h"

/* router.c's LEAST_SUM. */
#define ROUTE_LEAST_SUM 1e-20f

enum { ROUTE_BATCH = 8 }; /* scores that a lane loads at a time */

/* ---- A warp's tools ---- */

/* A row at work. All three lie in shared memory: three floats an expert, 48 KiB at 4096 experts. */
struct route_row {
    float *p;        /* [n_experts] scores, then probabilities or sigmoids */
    float *aside;    /* [n_experts] */
    uint32_t *ranks; /* [n_experts] of those that can still be chosen; else 0 */
    uint32_t lane;
};

/* kern.h's softmax. */
static __device__ void route_softmax(float *x, uint32_t n, uint32_t lane)
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
static __device__ uint32_t route_take_best(const struct route_row *w, uint32_t n)
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

/* ---- Choices ---- */

/* router.c's group_value and rank_values: writes each group's value to aside, then the experts'
 * ranks; experts outside the best groups rank below all others. */
static __device__ float route_value(const struct moe_gpu_router *r, const struct route_row *w,
                                    uint32_t e)
{
    return r->choice_bias ? w->p[e] + r->choice_bias[e] : w->p[e];
}

static __device__ void route_rank(const struct moe_gpu_router *r, const struct route_row *w)
{
    uint32_t size = r->n_groups ? r->n_experts / r->n_groups : r->n_experts;
    float *best = w->aside;
    for (uint32_t g = w->lane; g < r->n_groups; g += DEV_WARP) {
        float first = route_value(r, w, g * size), second = -INFINITY;
        for (uint32_t e = g * size + 1; e < (g + 1) * size; e++) {
            float v = route_value(r, w, e);
            second = v > first ? first : v > second ? v : second;
            first = v > first ? v : first;
        }
        best[g] = r->kind == MOE_ROUTER_SIGMOID ? first + second : first;
    }
    __syncwarp();
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP) {
        uint32_t g = e / size, n_better = 0;
        for (uint32_t i = 0; i < r->n_groups; i++)
            n_better += best[i] > best[g] || (best[i] == best[g] && i < g);
        bool can_be = r->n_groups == 0 || n_better < r->top_groups;
        w->ranks[e] = dev_rank(can_be ? route_value(r, w, e) : -INFINITY);
    }
}

/* The best k and their values in p; these go into aside. */
static __device__ void route_choose_best(const struct moe_gpu_router *r, const struct route_row *w,
                                         uint32_t *chosen)
{
    for (uint32_t k = 0; k < r->top_k; k++) {
        uint32_t e = route_take_best(w, r->n_experts);
        if (w->lane == 0) {
            chosen[k] = e;
            w->aside[k] = w->p[e];
        }
    }
    __syncwarp();
}

/* Sorts the chosen experts by falling value, the lower number first among equals; uses ranks as
 * scratch. */
static __device__ void route_order_chosen(const struct moe_gpu_router *r, const struct route_row *w,
                                          uint32_t *chosen)
{
    for (uint32_t k = w->lane; k < r->top_k; k += DEV_WARP)
        w->ranks[k] = chosen[k];
    __syncwarp();
    for (uint32_t k = w->lane; k < r->top_k; k += DEV_WARP) {
        uint32_t e = w->ranks[k], rank = dev_rank(w->p[e]), at = 0;
        for (uint32_t i = 0; i < r->top_k; i++) {
            uint32_t other = w->ranks[i], its = dev_rank(w->p[other]);
            at += its > rank || (its == rank && other < e);
        }
        chosen[at] = e;
        w->aside[at] = w->p[e];
    }
    __syncwarp();
}

static __device__ void route_choose_by_softmax(const struct moe_gpu_router *r,
                                               const struct route_row *w, uint32_t *chosen)
{
    route_softmax(w->p, r->n_experts, w->lane);
    route_rank(r, w);
    route_choose_best(r, w, chosen);
    if (r->choice_bias)
        route_order_chosen(r, w, chosen);
}

/* router.c's choose_by_sigmoid. */
static __device__ void route_choose_by_sigmoid(const struct moe_gpu_router *r,
                                               const struct route_row *w, uint32_t *chosen)
{
    float sum = 0;
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP)
        w->p[e] = 1 / (1 + moe_math_exp(-w->p[e]));
    __syncwarp();
    route_rank(r, w);
    route_choose_best(r, w, chosen);
    if (r->choice_bias)
        route_order_chosen(r, w, chosen);
    for (uint32_t e = w->lane; w->lane < MOE_LANES && e < r->n_experts; e += MOE_LANES)
        sum += w->p[e];
    sum = dev_warp_join(sum) + ROUTE_LEAST_SUM;
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP)
        w->p[e] /= sum;
    __syncwarp();
}

static __device__ void route_choose_by_score(const struct moe_gpu_router *r,
                                             const struct route_row *w, uint32_t *chosen)
{
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP)
        w->ranks[e] = dev_rank(w->p[e]);
    route_choose_best(r, w, chosen);
    route_softmax(w->aside, r->top_k, w->lane);
    route_softmax(w->p, r->n_experts, w->lane);
}

/* The best expert except `without`, and its share among those near it. */
static __device__ uint32_t route_mix_winner(const struct moe_gpu_router *r,
                                            const struct route_row *w, uint32_t without,
                                            float *weight)
{
    const float *scores = w->p;
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP)
        w->ranks[e] = e == without ? 0 : dev_rank(scores[e]);
    uint32_t winner = route_take_best(w, r->n_experts);
    for (uint32_t e = w->lane; e < r->n_experts; e += DEV_WARP) {
        float size = fabsf(scores[e]) > scores[winner] ? fabsf(scores[e]) : scores[winner];
        bool far = (scores[winner] - scores[e]) / size > 2 * r->jitter;
        w->aside[e] = far || e == without ? -INFINITY : scores[e];
    }
    route_softmax(w->aside, r->n_experts, w->lane);
    *weight = w->aside[winner];
    __syncwarp();
    return winner;
}

static __device__ void route_choose_by_mixer(const struct moe_gpu_router *r,
                                             const struct route_row *w, uint32_t *chosen)
{
    float weights[2];
    uint32_t first = route_mix_winner(r, w, UINT32_MAX, &weights[0]);
    uint32_t second = route_mix_winner(r, w, first, &weights[1]);
    if (w->lane == 0) {
        chosen[0] = first;
        chosen[1] = second;
        w->aside[0] = weights[0];
        w->aside[1] = weights[1];
    }
    route_softmax(w->p, r->n_experts, w->lane);
}

/* ---- A row ---- */

/* Shared memory that a warp needs for a row. */
static inline __host__ __device__ uint32_t dev_route_bytes(uint32_t n_experts)
{
    return 3 * n_experts * (uint32_t)sizeof(float);
}

/* Routes row `row` by the calling warp, which owns `shared`. */
static __device__ void dev_route_row(const struct moe_gpu_router &router, uint64_t row,
                                     float *shared)
{
    const struct moe_gpu_router r =
        router; /* a copy that stores cannot change: r may lie in memory */
    const struct route_row w = {shared, shared + r.n_experts,
                                (uint32_t *)(shared + 2 * r.n_experts), threadIdx.x % DEV_WARP};
    float *scores = r.scores + row * r.stride, *weights = r.weights + row * r.top_k, sum = 0;
    uint32_t *chosen = r.chosen + row * r.top_k;
    for (uint32_t first = w.lane; first < r.n_experts; first += ROUTE_BATCH * DEV_WARP) {
        float batch[ROUTE_BATCH] = {};
#pragma unroll
        for (uint32_t k = 0, e = first; k < ROUTE_BATCH && e < r.n_experts; k++, e += DEV_WARP)
            batch[k] = r.bias ? scores[e] + r.bias[e] : scores[e];
#pragma unroll
        for (uint32_t k = 0, e = first; k < ROUTE_BATCH && e < r.n_experts; k++, e += DEV_WARP)
            w.p[e] = batch[k];
    }

    if (r.kind == MOE_ROUTER_SOFTMAX)
        route_choose_by_softmax(&r, &w, chosen);
    else if (r.kind == MOE_ROUTER_TOPK_SOFTMAX)
        route_choose_by_score(&r, &w, chosen);
    else if (r.kind == MOE_ROUTER_SPARSEMIXER)
        route_choose_by_mixer(&r, &w, chosen);
    else
        route_choose_by_sigmoid(&r, &w, chosen);

    for (uint32_t e = w.lane; e < r.n_experts; e += DEV_WARP)
        scores[e] = w.p[e];
    for (uint32_t k = 0; k < r.top_k; k++)
        sum += w.aside[k];
    if (r.kind == MOE_ROUTER_SIGMOID)
        sum += r.topk_eps > 0 ? r.topk_eps : ROUTE_LEAST_SUM;
    for (uint32_t k = w.lane; k < r.top_k; k += DEV_WARP)
        weights[k] = (r.norm_topk ? w.aside[k] / sum : w.aside[k]) * r.routed_scale;
    __syncwarp();
}

#endif
