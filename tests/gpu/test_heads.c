/* From the products of a layer's input to queries and cache (gpu_heads.cu) against
 * infer/cpu_projections.c and the storing of infer/cpu_attention.c: the same bits. */
#include "session_fixture.h"

#include <math.h>

#include "kern/kern.h"
#include "shim_kernels.h"

struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, rope_dim, kv_rank; /* kv_rank > 0: latent */
    enum moe_qk_norm qk_norm;
    bool biases;
    float clip;
    uint16_t kv_kind;
};

enum { LAYER = 1, N_ROWS = 7, CONTEXT = 37, ORIGINAL = 20, N_SEQUENCES = 2, HIDDEN = 20 };

static void make_layer(struct forged *f, const struct shape *p)
{
    struct moe_layer *l = &f->layers[LAYER];
    uint32_t q = p->n_heads * p->head_dim, kv = p->n_kv_heads * p->head_dim;
    bool full = p->qk_norm == MOE_QK_NORM_FULL;
    l->q = forged_matrix(f, q, HIDDEN);
    if (p->kv_rank) {
        l->kv_down = forged_matrix(f, p->kv_rank + p->rope_dim, HIDDEN);
        l->kv_down_norm = forged_floats(f, p->kv_rank, 2);
        l->k_up = forged_matrix(f, p->n_heads * p->kv_rank, p->head_dim - p->rope_dim);
        return;
    }
    l->k = forged_matrix(f, kv, HIDDEN);
    l->v = forged_matrix(f, kv, HIDDEN);
    l->q_norm = forged_floats(f, full ? q : p->head_dim, 2);
    l->k_norm = forged_floats(f, full ? kv : p->head_dim, 2);
    if (p->biases) {
        l->q_bias = forged_floats(f, q, 1);
        l->k_bias = forged_floats(f, kv, 1);
        l->v_bias = forged_floats(f, kv, 1);
        if (p->n_kv_heads > 1) { /* what the cache must bound */
            ((float *)l->v_bias)[0] = INFINITY;
            ((float *)l->v_bias)[p->head_dim + 1] = -70000;
            ((float *)l->v_bias)[p->head_dim] = -INFINITY;
        }
    }
}

static void open_shape(struct forged *f, const struct shape *p)
{
    struct moe_config *c = &f->model.config;
    moe_config_init(c);
    c->hidden = HIDDEN;
    c->vocab = 16;
    c->n_heads = p->n_heads;
    c->n_kv_heads = p->n_kv_heads;
    c->head_dim = p->head_dim;
    c->rope_dim = p->rope_dim;
    c->kv_rank = p->kv_rank;
    c->value_dim = p->kv_rank ? 16 : p->head_dim;
    c->qk_norm = p->qk_norm;
    c->clip_qkv = p->clip;
    c->norm_eps = 1e-6f;
    c->attn_scale = 1;
    c->rope_original = ORIGINAL;
    const struct moe_session_options o = {
        .context = CONTEXT,
        .n_sequences = N_SEQUENCES,
        .batch = N_ROWS,
        .kv_kind = p->kv_kind,
    };
    forged_open(f, &o);
    make_layer(f, p);
    struct moe_states *states = &f->s->states;
    for (uint32_t i = 0; i < N_ROWS; i++)
        f->rows[i] = (struct moe_row){i % 3 == 2, i * 5 % CONTEXT, 0, i % 2 ? 0 : CONTEXT};
    for (uint64_t i = 0; i < N_ROWS * states->stride; i++)
        states->xn[i] = 2 * test_uniform(&f->random);
}

/* A product of the layer's input as it is before anything is done to it, on the device. */
static float *product(struct forged *f, struct moe_mat m, uint64_t stride)
{
    struct moe_states *states = &f->s->states;
    float *y = forged_floats(f, N_ROWS * stride, 1);
    moe_inputs_set(&states->inputs, states->xn, states->stride, NULL, N_ROWS, HIDDEN);
    struct moe_mm mm = moe_inputs_mm(&states->inputs, m, y, stride);
    moe_matmul(&mm, 1);
    return on_device(f, y, N_ROWS * stride);
}

/* The processor's queries, keys and values of the layer, and these in its cache. */
static void project(struct forged *f)
{
    moe_project_in(f->s, LAYER, f->rows, N_ROWS);
    stages_cpu_store(f->s, LAYER, f->rows, N_ROWS);
}

/* Rows of n floats; what lies between them does not count. */
static void check_rows(struct forged *f, const float *at, const float *want, uint64_t stride,
                       uint32_t n)
{
    for (uint32_t i = 0; i < N_ROWS; i++)
        check_floats(f, at + i * stride, want + i * stride, n);
}

static void check_heads(void **state, uint64_t seed, const struct shape *p)
{
    struct forged f = {.taken = {.g = *state}, .random = seed};
    open_shape(&f, p);
    const struct cpu_attention *w = &cpu_of(&f)->attention;
    const struct moe_layer *l = &f.layers[LAYER];
    uint32_t q = p->n_heads * p->head_dim, kv = p->n_kv_heads * p->head_dim;
    bool full = p->qk_norm == MOE_QK_NORM_FULL;
    const struct moe_gpu_heads h = {
        .q = product(&f, l->q, w->stride.q),
        .k = product(&f, l->k, w->stride.k),
        .v = product(&f, l->v, w->stride.v),
        .q_stride = w->stride.q,
        .k_stride = w->stride.k,
        .v_stride = w->stride.v,
        .q_bias = on_device(&f, l->q_bias, q),
        .k_bias = on_device(&f, l->k_bias, kv),
        .v_bias = on_device(&f, l->v_bias, kv),
        .qk_norm = p->qk_norm,
        .q_norm = on_device(&f, l->q_norm, full ? q : p->head_dim),
        .k_norm = on_device(&f, l->k_norm, full ? kv : p->head_dim),
        .eps = f.model.config.norm_eps,
        .clip = p->clip,
        .rope = on_device(&f, f.model.rope, (ORIGINAL + CONTEXT) * p->rope_dim),
        .rope_dim = p->rope_dim,
        .rope_original = ORIGINAL,
        .n_heads = p->n_heads,
        .n_kv_heads = p->n_kv_heads,
        .head_dim = p->head_dim,
        .rows = rows_on_device(&f, N_ROWS),
        .kv = kv_on_device(&f),
        .layer = LAYER,
    };
    moe_gpu_finish_heads(f.taken.g, &h, N_ROWS);
    project(&f);
    check_rows(&f, h.q, w->queries, w->stride.q, q);
    check_kv(&f, &h.kv);
    forged_close(&f);
}

static void test_finish_heads(void **state)
{
    static const struct shape shapes[] = {
        {1, 1, 2, 2, 0, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F32},
        {4, 2, 16, 16, 0, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F32},
        {4, 2, 24, 8, 0, MOE_QK_NORM_NONE, true, 0, MOE_LAYOUT_F16},
        {4, 4, 100, 50, 0, MOE_QK_NORM_NONE, false, 0.5f, MOE_LAYOUT_F32},
        {6, 3, 64, 64, 0, MOE_QK_NORM_HEAD, false, 0, MOE_LAYOUT_F16},
        {6, 3, 20, 10, 0, MOE_QK_NORM_HEAD, true, 1, MOE_LAYOUT_F32},
        {6, 1, 130, 128, 0, MOE_QK_NORM_HEAD, true, 0, MOE_LAYOUT_F32},
        {4, 2, 32, 32, 0, MOE_QK_NORM_FULL, false, 0, MOE_LAYOUT_F32},
        {4, 2, 18, 6, 0, MOE_QK_NORM_FULL, true, 0.25f, MOE_LAYOUT_F16},
        /* More heads than warps, more values than are staged. */
        {40, 20, 64, 64, 0, MOE_QK_NORM_FULL, false, 0, MOE_LAYOUT_F32},
        {70, 35, 34, 34, 0, MOE_QK_NORM_HEAD, false, 2, MOE_LAYOUT_F16},
        /* Codes: of whole groups, of less, of heads that fill up the last byte. */
        {4, 2, 64, 32, 0, MOE_QK_NORM_HEAD, false, 0, MOE_LAYOUT_Q8},
        {4, 1, 130, 128, 0, MOE_QK_NORM_FULL, true, 0, MOE_LAYOUT_Q4},
        {6, 3, 21, 10, 0, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_Q8 | MOE_LAYOUT_Q4 << 8},
        {4, 2, 111, 2, 0, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_Q4},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        check_heads(state, 100 + i, &shapes[i]);
}

/* Room for the byte forms of what k_up multiplies: bit b of `forms` asks for form b. */
static struct moe_gpu_act nope_room(struct forged *f, const struct shape *p, uint32_t forms)
{
    struct moe_gpu_act act = {.cols = p->head_dim - p->rope_dim};
    for (int b = 0; b < MOE_GPU_N_BLOCKS; b++) {
        uint64_t blocks =
            (uint64_t)N_ROWS * p->n_heads * ((act.cols + 32 * b + 31) / (32 * b + 32));
        if (!(forms >> b & 1))
            continue;
        act.bytes[b].q = gpu_take(&f->taken, NULL, blocks * (32 * b + 32));
        act.bytes[b].s = gpu_take(&f->taken, NULL, blocks * sizeof(float));
        act.bytes[b].z = gpu_take(&f->taken, NULL, blocks * sizeof(float));
    }
    return act;
}

/* The byte forms that came with the rest, against those of moe_gpu_prepare. */
static void check_nope(struct forged *f, const struct shape *p, const struct moe_gpu_latent *l,
                       uint32_t forms)
{
    struct moe_gpu_act want = nope_room(f, p, forms);
    moe_gpu_prepare(f->taken.g, l->q + l->rope_dim, l->q_stride, N_ROWS, l->n_heads, l->head_dim,
                    &want);
    for (int b = 0; b < MOE_GPU_N_BLOCKS; b++) {
        const struct moe_gpu_bytes *x = &l->nope->bytes[b], *y = &want.bytes[b];
        uint64_t blocks =
            (uint64_t)N_ROWS * p->n_heads * ((want.cols + 32 * b + 31) / (32 * b + 32));
        if (!x->q)
            continue;
        gpu_same(f->taken.g, x->q, f->taken.g, y->q, blocks * (32 * b + 32));
        gpu_same(f->taken.g, x->s, f->taken.g, y->s, blocks * sizeof(float));
        gpu_same(f->taken.g, x->z, f->taken.g, y->z, blocks * sizeof(float));
    }
}

/* forms: byte forms to come with it; 0: none are asked for. */
static void check_latent(void **state, uint64_t seed, const struct shape *p, uint32_t forms)
{
    struct forged f = {.taken = {.g = *state}, .random = seed};
    open_shape(&f, p);
    const struct cpu_attention *w = &cpu_of(&f)->attention;
    const struct moe_layer *l = &f.layers[LAYER];
    uint32_t key = cpu_of(&f)->kv.key_dim;
    uint64_t n_queries = N_ROWS * w->stride.queries;
    const float *q = product(&f, l->q, w->stride.q);
    float *v = product(&f, l->kv_down, w->stride.v);
    struct moe_gpu_kv kv = kv_on_device(&f);
    project(&f);
    /* What k_up makes is there already; the rotated parts are not. */
    float *queries = forged_floats(&f, n_queries, 1);
    memcpy(queries, w->queries, n_queries * sizeof *queries);
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (uint32_t head = 0; head < p->n_heads; head++)
            for (uint32_t c = 0; c < p->rope_dim; c++)
                queries[i * w->stride.queries + head * key + c] = 7;
    const struct moe_gpu_act nope = nope_room(&f, p, forms);
    const struct moe_gpu_latent latent = {
        .q = q,
        .v = v,
        .queries = on_device(&f, queries, n_queries),
        .q_stride = w->stride.q,
        .v_stride = w->stride.v,
        .queries_stride = w->stride.queries,
        .kv_norm = on_device(&f, l->kv_down_norm, p->kv_rank),
        .eps = f.model.config.norm_eps,
        .rope = on_device(&f, f.model.rope, (ORIGINAL + CONTEXT) * p->rope_dim),
        .rope_dim = p->rope_dim,
        .rope_original = ORIGINAL,
        .n_heads = p->n_heads,
        .head_dim = p->head_dim,
        .kv_rank = p->kv_rank,
        .rows = rows_on_device(&f, N_ROWS),
        .kv = kv,
        .layer = LAYER,
        .nope = forms ? &nope : NULL,
    };
    uint64_t launches = moe_gpu_launches(f.taken.g);
    moe_gpu_finish_latent(f.taken.g, &latent, N_ROWS);
    assert_int_equal(moe_gpu_launches(f.taken.g) - launches, moe_kv_has_scales(kv.keys_as) ? 2 : 1);
    check_floats(&f, latent.queries, w->queries, n_queries);
    check_kv(&f, &latent.kv);
    if (forms)
        check_nope(&f, p, &latent, forms);
    forged_close(&f);
}

static void test_finish_latent(void **state)
{
    static const struct shape shapes[] = {
        {1, 1, 4, 2, 16, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F32},
        {4, 4, 24, 8, 32, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F16},
        {16, 16, 192, 64, 512, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F32},
        {5, 5, 40, 30, 272, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F16},
        {2, 2, 20, 4, 2560, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F32},
        {9, 9, 134, 4, 16, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_F16},
        {5, 5, 40, 30, 272, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_Q8},
        {5, 5, 40, 30, 272, MOE_QK_NORM_NONE, false, 0, MOE_LAYOUT_Q4},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        for (uint32_t forms = 0; forms < 1 << MOE_GPU_N_BLOCKS; forms++)
            check_latent(state, 200 + i, &shapes[i], forms);
}

int main(void)
{
    struct moe_err err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finish_heads),
        cmocka_unit_test(test_finish_latent),
    };
    if (moe_kern_select(moe_cpu_detect(), &err) != MOE_OK)
        return 1;
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
