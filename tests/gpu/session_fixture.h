/*
 * A session of the processor without a pack: a model that is nothing but a description, and a layer
 * or two whose weights a test makes. With it the stages of run/ are called one by one, as the
 * reference that the device's are compared with.
 */
#ifndef TESTS_GPU_SESSION_FIXTURE_H
#define TESTS_GPU_SESSION_FIXTURE_H

#include "gpu_fixture.h"

#include "../kv_fixture.h"

#include "infer/cpu_stages.h"

enum { FORGED_LAYERS = 2 };

struct forged {
    struct gpu_taken taken;
    uint64_t random;
    struct moe_model model;
    struct moe_layer layers[FORGED_LAYERS];
    struct moe_session *s;
    struct moe_row *rows; /* [batch] */
    int n_owned;
    void *owned[64]; /* memory of the layers' weights */
};

static inline uint32_t below(struct forged *f, uint32_t n)
{
    return (uint32_t)(test_random(&f->random) % n);
}

/* n floats from -size to size, which live as long as the forged model. */
static inline float *forged_floats(struct forged *f, uint64_t n, float size)
{
    float *x = calloc(n ? n : 1, sizeof *x);
    assert_true(x && f->n_owned < (int)N_ITEMS(f->owned));
    f->owned[f->n_owned++] = x;
    for (uint64_t i = 0; i < n; i++)
        x[i] = size * test_uniform(&f->random);
    return x;
}

/* A matrix of f32 weights, likewise. */
static inline struct moe_mat forged_matrix(struct forged *f, uint32_t rows, uint32_t cols)
{
    struct moe_layout layout = {MOE_LAYOUT_F32, 0};
    uint64_t n = moe_layout_bytes(layout, rows, cols) / sizeof(float);
    float *row = forged_floats(f, cols, 1), *data = forged_floats(f, n + 16, 0);
    data += (64 - (uintptr_t)data % 64) / sizeof *data % 16;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++)
            row[c] = test_uniform(&f->random);
        moe_layout_store_row((uint8_t *)data, layout, cols, r, row);
    }
    return (struct moe_mat){(uint8_t *)data, layout, rows, cols};
}

/* Opens f->s for f->model.config: layers, norms and rope (up to `context`) are filled in where the
 * config alone says what they are. */
static inline void forged_open(struct forged *f, const struct moe_session_options *o)
{
    struct moe_err err;
    struct moe_config *c = &f->model.config;
    c->n_layers = FORGED_LAYERS;
    moe_config_number_layers(c);
    f->model.layers = f->layers;
    f->model.rope = forged_floats(f, (uint64_t)moe_model_rope_rows(c, o->context) * c->rope_dim, 1);
    f->model.rope_positions = o->context;
    assert_ok(moe_session_open(&f->s, &f->model, NULL, o, &err), &err);
    scatter_blocks(f->s, &f->random);
    f->rows = calloc(o->batch, sizeof *f->rows);
    assert_non_null(f->rows);
}

/* Also without a session. */
static inline void forged_close(struct forged *f)
{
    gpu_give_back(&f->taken);
    moe_session_close(f->s);
    free(f->rows);
    while (f->n_owned > 0)
        free(f->owned[--f->n_owned]);
}

/* Floats, or NULL where there are none, as the device has them. */
static inline void *on_device(struct forged *f, const float *x, uint64_t n)
{
    return x ? gpu_take(&f->taken, x, n * sizeof *x) : NULL;
}

static inline void *rows_on_device(struct forged *f, uint32_t n)
{
    struct moe_gpu_row *rows = calloc(n, sizeof *rows);
    assert_non_null(rows);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_gpu_row){f->rows[i].sequence, f->rows[i].position, f->rows[i].token,
                                       f->rows[i].length};
    void *dev = gpu_take(&f->taken, rows, n * sizeof *rows);
    free(rows);
    return dev;
}

static inline void check_floats(struct forged *f, const float *at, const float *want, uint64_t n)
{
    float *got = calloc(n ? n : 1, sizeof *got);
    assert_non_null(got);
    gpu_get(f->taken.g, got, at, n * sizeof *got);
    assert_same_floats(got, want, n);
    free(got);
}

static inline struct cpu_work *cpu_of(const struct forged *f)
{
    return f->s->device;
}

/* Bytes of the cache's keys, and of its values. */
static inline uint64_t key_bytes(const struct forged *f)
{
    const struct moe_kv *kv = &cpu_of(f)->kv;
    return (uint64_t)(kv->whole.values - kv->whole.keys);
}

static inline uint64_t value_bytes(const struct forged *f)
{
    return cpu_of(f)->kv.bytes - key_bytes(f);
}

/* The session's cache as it is, on the device. */
static inline struct moe_gpu_kv kv_on_device(struct forged *f)
{
    const struct moe_kv *kv = &cpu_of(f)->kv;
    return (struct moe_gpu_kv){
        .keys = gpu_take(&f->taken, kv->whole.keys, key_bytes(f)),
        .values = gpu_take(&f->taken, kv->whole.values, value_bytes(f)),
        .keys_as = kv->keys_as,
        .values_as = kv->values_as,
        .key_bytes = kv->key_bytes,
        .value_bytes = kv->value_bytes,
        .table = gpu_take(&f->taken, kv->table,
                          (uint64_t)f->s->n_sequences * kv->per_sequence * sizeof *kv->table),
        .block_positions = kv->block_positions,
        .per_sequence = kv->per_sequence,
        .key_dim = kv->key_dim,
        .value_dim = kv->value_dim,
        .value_padded = kv->value_padded,
        .n_heads = kv->n_heads,
        .n_layers = kv->n_layers,
    };
}

/* That the device's cache holds what the session's does. */
static inline void check_kv(struct forged *f, const struct moe_gpu_kv *kv)
{
    uint8_t *got = malloc(cpu_of(f)->kv.bytes);
    assert_non_null(got);
    gpu_get(f->taken.g, got, kv->keys, key_bytes(f));
    assert_memory_equal(got, cpu_of(f)->kv.whole.keys, key_bytes(f));
    gpu_get(f->taken.g, got, kv->values, value_bytes(f));
    assert_memory_equal(got, cpu_of(f)->kv.whole.values, value_bytes(f));
    free(got);
}

#endif
