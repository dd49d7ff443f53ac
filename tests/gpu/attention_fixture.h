/*
 * A layer's attention on a device, with what comes before it and after it: random queries, keys and
 * values, a full cache, room for byte forms. The same seed makes the same again.
 */
#ifndef TESTS_GPU_ATTENTION_FIXTURE_H
#define TESTS_GPU_ATTENTION_FIXTURE_H

#include "gpu_fixture.h"

#include "base/float16.h"
#include "kern/kern.h"
#include "shim_kernels.h"

struct shape {
    uint32_t n_kv_heads, group, head_dim, rope_dim;
    uint32_t kv_rank; /* > 0: latent; nothing comes before it here */
    enum moe_qk_norm qk_norm;
    bool biases, sinks, f16, by_head, no_scratch;
    float clip;
    uint32_t window, context, n_rows, end; /* end 0: just after the last position */
};

enum { LAYER = 1, N_LAYERS = 2, N_SEQUENCES = 2, MAX_ROWS = 5, MAX_BLOCKS = 130, GAP = 5 };

/* A layer's attention on the device: what is asked for, and its memory. */
struct layer {
    struct gpu_taken taken;
    uint64_t random;
    struct shape p;
    struct moe_gpu_heads heads;
    struct moe_gpu_attention a;
    struct moe_gpu_act out;
    struct moe_gpu_row host_rows[MAX_ROWS];
    struct moe_gpu_row *rows;
    uint64_t q_floats, key_bytes, value_bytes;
};

static inline uint32_t below(struct layer *l, uint32_t n)
{
    return (uint32_t)(test_random(&l->random) % n);
}

static inline float *floats(struct layer *l, uint64_t n, float size)
{
    float *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = size * test_uniform(&l->random);
    float *at = gpu_take(&l->taken, x, n * sizeof *x);
    free(x);
    return at;
}

static inline uint8_t *cells(struct layer *l, uint64_t n, uint64_t *n_bytes)
{
    if (!l->p.f16) {
        *n_bytes = n * sizeof(float);
        return (uint8_t *)floats(l, n, 1);
    }
    uint16_t *x = calloc(n, sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = moe_f32_to_f16(test_uniform(&l->random));
    *n_bytes = n * sizeof *x;
    uint8_t *at = gpu_take(&l->taken, x, *n_bytes);
    free(x);
    return at;
}

static inline struct moe_gpu_kv cache(struct layer *l)
{
    const struct shape *p = &l->p;
    uint32_t positions = (p->context + 15) / 16 * 16, table[N_SEQUENCES * MAX_BLOCKS];
    struct moe_gpu_kv kv = {
        .keys_as = p->f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_F32,
        .values_as = p->f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_F32,
        .block_positions = positions < MOE_ATTENTION_CHUNK ? positions : MOE_ATTENTION_CHUNK,
        .key_dim = p->kv_rank ? p->rope_dim + p->kv_rank : p->head_dim,
        .value_dim = p->kv_rank ? p->kv_rank : p->head_dim,
        .n_heads = p->n_kv_heads,
        .n_layers = N_LAYERS,
    };
    kv.per_sequence = (positions + kv.block_positions - 1) / kv.block_positions;
    uint32_t n_blocks = N_SEQUENCES * kv.per_sequence;
    assert_true(kv.per_sequence <= MAX_BLOCKS);
    for (uint32_t i = 0; i < n_blocks; i++) { /* in no order */
        uint32_t k = below(l, i + 1);
        table[i] = table[k];
        table[k] = i;
    }
    kv.table = gpu_take(&l->taken, table, n_blocks * sizeof *table);
    uint64_t columns = (uint64_t)n_blocks * N_LAYERS * kv.n_heads * kv.block_positions;
    kv.value_padded = (kv.value_dim + 15) / 16 * 16;
    kv.key_bytes = (uint64_t)kv.key_dim * (p->f16 ? 32 : 64);
    kv.value_bytes = (uint64_t)kv.value_padded * (p->f16 ? 32 : 64);
    kv.keys = cells(l, columns * kv.key_dim, &l->key_bytes);
    kv.values = cells(l, columns * kv.value_padded, &l->value_bytes);
    return kv;
}

/* Rows at different places: runs, and jumps. The first has the highest position. */
static inline void choose_rows(struct layer *l)
{
    const struct shape *p = &l->p;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        struct moe_gpu_row *row = &l->host_rows[i];
        bool taken = true;
        row->token = 0;
        for (uint32_t tries = 0; taken; tries++) {
            row->sequence = below(l, N_SEQUENCES);
            row->position = i == 0 ? p->context - 1 : below(l, p->context);
            if (i > 1 && tries == 0) { /* beside the one before */
                row->sequence = row[-1].sequence;
                row->position = (row[-1].position + 1) % p->context;
            }
            taken = false;
            for (uint32_t k = 0; k < i; k++)
                taken = taken || (l->host_rows[k].sequence == row->sequence &&
                                  l->host_rows[k].position == row->position);
        }
    }
}

/* Room for the byte forms of n inputs of `cols` columns, one form or both. */
static inline struct moe_gpu_act room(struct layer *l, uint32_t cols, uint32_t n, uint32_t forms)
{
    static const uint32_t widths[MOE_GPU_N_BLOCKS] = {32, 64};
    struct moe_gpu_act act = {.cols = cols};
    for (int b = 0; b < MOE_GPU_N_BLOCKS; b++) {
        uint64_t blocks = (uint64_t)n * ((cols + widths[b] - 1) / widths[b]);
        if (!(forms >> b & 1))
            continue;
        act.bytes[b].q = gpu_take(&l->taken, NULL, blocks * widths[b]);
        act.bytes[b].s = gpu_take(&l->taken, NULL, blocks * sizeof(float));
        act.bytes[b].z = gpu_take(&l->taken, NULL, blocks * sizeof(float));
    }
    return act;
}

static inline void open_layer(struct layer *l, struct moe_gpu *g, uint64_t seed,
                              const struct shape *p)
{
    *l = (struct layer){.taken = {.g = g}, .random = seed, .p = *p};
    uint32_t n_heads = p->n_kv_heads * p->group, n = p->n_rows;
    struct moe_gpu_kv kv = cache(l);
    uint32_t q = n_heads * kv.key_dim, k = p->n_kv_heads * kv.key_dim;
    bool full = p->qk_norm == MOE_QK_NORM_FULL;
    choose_rows(l);
    l->rows = gpu_take(&l->taken, l->host_rows, n * sizeof *l->rows);
    l->q_floats = (uint64_t)n * (q + GAP);
    l->heads = (struct moe_gpu_heads){
        .q = floats(l, l->q_floats, 2),
        .k = floats(l, n * (k + GAP), 2),
        .v = floats(l, n * (k + GAP), 2),
        .q_stride = q + GAP,
        .k_stride = k + GAP,
        .v_stride = k + GAP,
        .q_bias = p->biases ? floats(l, q, 1) : NULL,
        .k_bias = p->biases ? floats(l, k, 1) : NULL,
        .v_bias = p->biases ? floats(l, k, 1e5f) : NULL, /* more than f16 has */
        .qk_norm = p->qk_norm,
        .q_norm = floats(l, full ? q : p->head_dim, 2),
        .k_norm = floats(l, full ? k : p->head_dim, 2),
        .eps = 1e-6f,
        .clip = p->clip,
        .rope = floats(l, (uint64_t)p->context * p->rope_dim, 1),
        .rope_dim = p->rope_dim,
        .n_heads = n_heads,
        .n_kv_heads = p->n_kv_heads,
        .head_dim = p->head_dim,
        .rows = l->rows,
        .kv = kv,
        .layer = LAYER,
    };
    uint32_t parts = p->by_head ? n_heads : 1;
    l->out = room(l, n_heads / parts * kv.value_dim, n * parts, 1 + below(l, 3));
    uint32_t end = p->end ? p->end : p->context;
    uint64_t scratch_bytes = moe_gpu_attention_bytes(n_heads, kv.value_dim, end);
    l->a = (struct moe_gpu_attention){
        .queries = l->heads.q,
        .queries_stride = q + GAP,
        .attended_stride = n_heads * kv.value_dim + GAP,
        .kv = kv,
        .layer = LAYER,
        .n_heads = n_heads,
        .scale = 0.3f,
        .window = p->window,
        .sinks = p->sinks ? floats(l, n_heads, 4) : NULL,
        .rows = l->rows,
        .end = end,
        .scratch = p->no_scratch ? NULL : gpu_take(&l->taken, NULL, scratch_bytes),
        .scratch_bytes = p->no_scratch ? 0 : scratch_bytes,
    };
    l->a.attended = floats(l, n * l->a.attended_stride, 1);
}

/* All at once; returns launches. */
static inline uint64_t ask_whole(struct layer *l)
{
    struct moe_gpu_attention a = l->a;
    uint64_t before = moe_gpu_launches(l->taken.g);
    a.fresh = l->p.kv_rank ? NULL : &l->heads;
    a.out = &l->out;
    a.out_parts = l->p.by_head ? a.n_heads : 1;
    moe_gpu_attention(l->taken.g, &a, l->p.n_rows);
    return moe_gpu_launches(l->taken.g) - before;
}

static inline void ask_one_by_one(struct layer *l)
{
    struct moe_gpu *g = l->taken.g;
    const struct moe_gpu_attention *a = &l->a;
    uint32_t n = l->p.n_rows;
    if (!l->p.kv_rank)
        moe_gpu_finish_heads(g, &l->heads, n);
    moe_gpu_attention(g, a, n);
    moe_gpu_prepare(g, a->attended, a->attended_stride, n, l->p.by_head ? a->n_heads : 1,
                    a->kv.value_dim, &l->out);
}

/* Everything but the queries. */
static inline void check_same(struct layer *got, struct layer *want)
{
    static const uint32_t widths[MOE_GPU_N_BLOCKS] = {32, 64};
    const struct moe_gpu_attention *a = &got->a;
    uint64_t n_floats = got->p.n_rows * a->attended_stride;
    gpu_same(got->taken.g, a->attended, want->taken.g, want->a.attended, n_floats * sizeof(float));
    gpu_same(got->taken.g, a->kv.keys, want->taken.g, want->a.kv.keys, got->key_bytes);
    gpu_same(got->taken.g, a->kv.values, want->taken.g, want->a.kv.values, got->value_bytes);
    for (int b = 0; b < MOE_GPU_N_BLOCKS; b++) {
        const struct moe_gpu_bytes *x = &got->out.bytes[b], *y = &want->out.bytes[b];
        uint64_t blocks = (got->out.cols + widths[b] - 1) / widths[b];
        blocks *= got->p.n_rows * (got->p.by_head ? a->n_heads : 1);
        if (!x->q)
            continue;
        gpu_same(got->taken.g, x->q, want->taken.g, y->q, blocks * widths[b]);
        gpu_same(got->taken.g, x->s, want->taken.g, y->s, blocks * sizeof(float));
        gpu_same(got->taken.g, x->z, want->taken.g, y->z, blocks * sizeof(float));
    }
    assert_int_equal(try_arrivals(got->taken.g), 0);
}

#endif
