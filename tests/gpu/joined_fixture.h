/*
 * For the tests of functions that do several things: everything is computed twice, by functions
 * that do one thing each and by one that does all. Both must write the same bits.
 */
#ifndef TESTS_GPU_JOINED_FIXTURE_H
#define TESTS_GPU_JOINED_FIXTURE_H

#include "products_fixture.h"

/* ---- Twins ----
 * What is written exists twice: by the functions one after the other, and at once.
 */

enum { APART, JOINED, N_SIDES };

struct pair {
    void *at[N_SIDES];
    uint64_t n_bytes;
};

struct twins {
    struct gpu_taken taken;
    uint64_t seed;
    struct pair pairs[64];
    int n_pairs;
};

/* n_bytes filled from `from` on both sides, or with guard bytes. */
static inline struct pair twin(struct twins *t, const void *from, uint64_t n_bytes)
{
    struct pair p = {.n_bytes = n_bytes};
    for (int side = 0; side < N_SIDES; side++)
        p.at[side] = gpu_take(&t->taken, from, n_bytes);
    assert_true(t->n_pairs < (int)N_ITEMS(t->pairs));
    t->pairs[t->n_pairs++] = p;
    return p;
}

static inline struct pair twin_floats(struct twins *t, uint64_t n, uint32_t cols, uint64_t stride)
{
    float *x = draw_rows((uint32_t)n, cols, stride, &t->seed, ORDINARY);
    struct pair p = twin(t, x, n * stride * sizeof *x);
    free(x);
    return p;
}

static inline void check_twins(struct twins *t)
{
    for (int i = 0; i < t->n_pairs; i++) {
        const struct pair *p = &t->pairs[i];
        uint8_t *bytes[N_SIDES];
        for (int side = 0; side < N_SIDES; side++) {
            bytes[side] = take(p->n_bytes ? p->n_bytes : 1, 1);
            gpu_get(t->taken.g, bytes[side], p->at[side], p->n_bytes);
        }
        for (uint64_t k = 0; k < p->n_bytes; k++)
            if (bytes[APART][k] != bytes[JOINED][k])
                fail_msg("byte %llu of %llu of array %d differs", (unsigned long long)k,
                         (unsigned long long)p->n_bytes, i);
        for (int side = 0; side < N_SIDES; side++)
            free(bytes[side]);
    }
    t->n_pairs = 0;
    gpu_give_back(&t->taken);
}

static inline const float *constants(struct twins *t, uint32_t n)
{
    float *x = draw_rows(1, n, n, &t->seed, ORDINARY);
    const float *at = gpu_take(&t->taken, x, n * sizeof *x);
    free(x);
    return at;
}

/* Room for n inputs on both sides. */
static inline void twin_act(struct twins *t, struct moe_gpu_act act[N_SIDES], uint32_t n,
                            uint32_t cols, struct pair x, uint64_t x_stride)
{
    struct pair q, s, z;
    for (int side = 0; side < N_SIDES; side++)
        act[side] = (struct moe_gpu_act){.cols = cols, .x = x.at[side], .x_stride = x_stride};
    for (int form = 0; form < MOE_GPU_N_BLOCKS; form++) {
        uint64_t block = form == MOE_GPU_BLOCK_32 ? 32 : 64, blocks = (cols + block - 1) / block;
        q = twin(t, NULL, n * blocks * block);
        s = twin(t, NULL, n * blocks * sizeof(float));
        z = twin(t, NULL, n * blocks * sizeof(float));
        for (int side = 0; side < N_SIDES; side++)
            act[side].bytes[form] = (struct moe_gpu_bytes){q.at[side], s.at[side], z.at[side]};
    }
}

/* ---- Norms and routers to follow ---- */

/* h += 0.5 add, then its norm. add NULL: h alone. */
static inline void twin_norm(struct twins *t, struct moe_gpu_norm norm[N_SIDES], uint32_t n,
                             uint32_t cols, uint64_t stride, struct pair h, const struct pair *add)
{
    struct moe_gpu_act out[N_SIDES];
    twin_act(t, out, n, cols, twin(t, NULL, n * stride * sizeof(float)), stride);
    bool layer = test_random(&t->seed) % 3 == 0;
    const struct moe_gpu_norm common = {
        .h_stride = stride,
        .cols = cols,
        .add_stride = stride,
        .add_bias = test_random(&t->seed) % 2 ? constants(t, cols) : NULL,
        .add_scale = 0.5f,
        .layer = layer,
        .weights = constants(t, cols),
        .bias = layer ? constants(t, cols) : NULL,
        .eps = 1e-5f,
    };
    for (int side = 0; side < N_SIDES; side++) {
        norm[side] = common;
        norm[side].h = h.at[side];
        norm[side].add = add ? add->at[side] : NULL;
        norm[side].out = out[side];
    }
}

static inline void twin_router(struct twins *t, struct moe_gpu_router router[N_SIDES], uint32_t n,
                               uint32_t n_experts, struct pair scores, uint64_t stride)
{
    uint32_t top_k = draw_up_to(&t->seed, n_experts < 4 ? n_experts : 4);
    struct pair chosen = twin(t, NULL, (uint64_t)n * top_k * sizeof(uint32_t));
    struct pair weights = twin(t, NULL, (uint64_t)n * top_k * sizeof(float));
    const struct moe_gpu_router common = {
        .kind = test_random(&t->seed) % 2 ? MOE_ROUTER_SOFTMAX : MOE_ROUTER_TOPK_SOFTMAX,
        .n_experts = n_experts,
        .top_k = top_k,
        .norm_topk = test_random(&t->seed) % 2,
        .routed_scale = 1.5f,
        .bias = test_random(&t->seed) % 2 ? constants(t, n_experts) : NULL,
        .stride = stride,
    };
    for (int side = 0; side < N_SIDES; side++) {
        router[side] = common;
        router[side].scores = scores.at[side];
        router[side].chosen = chosen.at[side];
        router[side].weights = weights.at[side];
    }
}

#endif
