/* Attention over the cache (gpu_attention.cu) against infer/cpu_attention.c: the same bits. */
#include "session_fixture.h"

#include <math.h>

#include "kern/kern.h"

struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, kv_rank; /* kv_rank > 0: latent */
    uint32_t rope_dim, window;
    enum { F32, F16, Q8, Q4, Q8_Q4, N_KINDS } kv;
    bool sinks;
    uint32_t context, n_sequences, n_rows;
};

enum { LAYER = 1 };

static const char *const kinds[N_KINDS] = {"f32", "f16", "q8", "q4", "q8,q4"};

/* Any finite cells: attention does not ask where they come from. Halves are codes, too. */
static void fill_cache(struct forged *f)
{
    struct moe_kv *kv = &cpu_of(f)->kv;
    bool f16 = kv->keys_as != MOE_LAYOUT_F32;
    for (uint64_t i = 0; i < kv->bytes / (f16 ? sizeof(uint16_t) : sizeof(float)); i++) {
        float v = test_uniform(&f->random);
        if (f16)
            ((uint16_t *)(void *)kv->whole.keys)[i] = moe_f32_to_f16(v);
        else
            ((float *)(void *)kv->whole.keys)[i] = v;
    }
}

/* Runs of neighbouring rows and jumps, among positions and sequences. The first row has the highest
 * position that there is. */
static void choose_rows(struct forged *f, const struct shape *p)
{
    for (uint32_t i = 0; i < p->n_rows; i++) {
        struct moe_row *row = &f->rows[i];
        bool jump = i == 0 || below(f, 5) == 0;
        row->sequence = jump ? below(f, p->n_sequences) : f->rows[i - 1].sequence;
        row->position = (jump ? below(f, p->context) : f->rows[i - 1].position + 1) % p->context;
    }
    f->rows[0].position = p->context - 1;
}

static void open_shape(struct forged *f, const struct shape *p)
{
    struct moe_config *c = &f->model.config;
    moe_config_init(c);
    c->hidden = 16;
    c->vocab = 16;
    c->n_heads = p->n_heads;
    c->n_kv_heads = p->n_kv_heads;
    c->head_dim = p->head_dim;
    c->rope_dim = p->rope_dim;
    c->kv_rank = p->kv_rank;
    c->value_dim = p->kv_rank ? 16 : p->head_dim;
    c->attn_scale = 0.7f;
    c->window = p->window;
    c->layers[LAYER].windowed = p->window > 0;
    const struct moe_session_options o = {
        .context = p->context,
        .n_sequences = p->n_sequences,
        .batch = p->n_rows,
        .kv_kind = moe_kv_kind_find(kinds[p->kv]),
    };
    forged_open(f, &o);
    if (p->sinks)
        f->layers[LAYER].sinks = forged_floats(f, p->n_heads, 4);
    fill_cache(f);
    choose_rows(f, p);
}

/* scratch: room for spread chunks; without, they are taken one after the other. */
static void check_with(struct forged *f, const struct shape *p, bool scratch, uint32_t end)
{
    struct cpu_attention *w = &cpu_of(f)->attention;
    uint64_t all = p->n_rows * w->stride.attended;
    uint64_t scratch_bytes =
        moe_gpu_attention_bytes(p->n_heads, cpu_of(f)->kv.value_dim, (p->context + 15) / 16 * 16);
    float *before = calloc(all, sizeof *before);
    assert_non_null(before);
    /* What lies between the rows belongs to nobody. */
    for (uint64_t i = 0; i < all; i++)
        before[i] = w->attended[i] = test_uniform(&f->random);
    const struct moe_gpu_attention a = {
        .queries = on_device(f, w->queries, p->n_rows * w->stride.queries),
        .attended = on_device(f, before, all),
        .queries_stride = w->stride.queries,
        .attended_stride = w->stride.attended,
        .kv = kv_on_device(f),
        .layer = LAYER,
        .n_heads = p->n_heads,
        .scale = f->model.config.attn_scale,
        .window = p->window,
        .sinks = on_device(f, f->layers[LAYER].sinks, p->n_heads),
        .rows = rows_on_device(f, p->n_rows),
        .end = end,
        .scratch = scratch ? gpu_take(&f->taken, NULL, scratch_bytes) : NULL,
        .scratch_bytes = scratch ? scratch_bytes : 0,
    };
    moe_gpu_attention(f->taken.g, &a, p->n_rows);
    moe_attention(f->s, LAYER, f->rows, p->n_rows);
    check_floats(f, a.attended, w->attended, all);
    for (uint32_t i = 0; i < p->n_rows * p->n_heads && p->kv >= Q8; i++)
        moe_kern.turn(w->queries + i / p->n_heads * w->stride.queries +
                          i % p->n_heads * cpu_of(f)->kv.key_dim,
                      cpu_of(f)->kv.key_dim);
    check_floats(f, a.queries, w->queries, p->n_rows * w->stride.queries);
    check_kv(f, &a.kv);
    gpu_give_back(&f->taken);
    free(before);
}

static void check(void **state, uint64_t seed, const struct shape *p, float size)
{
    struct forged f = {.taken = {.g = *state}, .random = seed};
    open_shape(&f, p);
    struct cpu_attention *w = &cpu_of(&f)->attention;
    for (uint64_t i = 0; i < p->n_rows * w->stride.queries; i++)
        w->queries[i] = size * test_uniform(&f.random);
    check_with(&f, p, true, p->context);
    if (p->n_rows <= MOE_GPU_SPLIT_ROWS) {
        check_with(&f, p, false, p->context);
        check_with(&f, p, true, (p->context + 15) / 16 * 16);
    }
    forged_close(&f);
}

static void test_shapes(void **state)
{
    static const struct shape shapes[] = {
        /* One position, one chunk, its ends, more. */
        {1, 1, 8, 0, 8, 0, F32, false, 1, 1, 1},
        {2, 2, 18, 0, 8, 0, F32, false, 17, 1, 3},
        {4, 2, 32, 0, 8, 0, F16, false, 255, 1, 5},
        {4, 1, 32, 0, 8, 0, F32, true, 256, 2, 4},
        {4, 4, 64, 0, 8, 0, F16, true, 257, 2, 9},
        {8, 1, 128, 0, 8, 0, F16, false, 700, 2, 2},
        {8, 1, 128, 0, 8, 0, F32, false, 700, 3, 13},
        {16, 2, 64, 0, 8, 0, F32, true, 600, 2, 3},
        {16, 2, 64, 0, 8, 0, F16, true, 600, 3, 20},
        /* Groups that do not divide tiles. */
        {6, 2, 20, 0, 8, 0, F32, false, 520, 2, 11},
        {6, 2, 20, 0, 8, 0, F16, true, 520, 2, 4},
        {12, 1, 24, 0, 8, 0, F32, false, 300, 2, 7},
        {10, 1, 70, 0, 8, 0, F32, true, 300, 2, 1},
        {5, 1, 16, 0, 8, 0, F16, false, 530, 1, 2},
        /* Windows: narrower than a chunk, across two, wider than what there is. */
        {4, 2, 16, 0, 8, 1, F32, false, 300, 1, 6},
        {4, 2, 16, 0, 8, 100, F16, true, 900, 2, 4},
        {4, 2, 16, 0, 8, 100, F32, false, 900, 2, 19},
        {8, 2, 64, 0, 8, 256, F16, true, 1000, 2, 12},
        {8, 2, 64, 0, 8, 1000, F32, false, 600, 2, 3},
        /* Latent, also with keys wider than what is staged. */
        {4, 4, 24, 32, 8, 0, F32, false, 300, 2, 3},
        {16, 16, 24, 64, 10, 0, F16, false, 520, 2, 2},
        {16, 16, 24, 64, 10, 0, F32, false, 520, 2, 6},
        {3, 3, 40, 512, 16, 0, F32, false, 270, 1, 4},
        {9, 9, 40, 272, 16, 0, F16, false, 270, 2, 5},
        /* Codes: heads that end in whole groups and within them, one row and several, latent. */
        {4, 2, 64, 0, 8, 0, Q8, false, 300, 2, 1},
        {4, 2, 64, 0, 8, 0, Q4, true, 300, 2, 5},
        {8, 1, 128, 0, 8, 0, Q8_Q4, false, 700, 2, 2},
        {6, 2, 7, 0, 2, 100, Q4, false, 300, 2, 3},
        {6, 2, 111, 0, 8, 0, Q8, true, 40, 1, 9},
        {3, 3, 40, 272, 16, 0, Q4, false, 270, 2, 5},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        check(state, 100 + i, &shapes[i], 1);
}

/* Prompts with more tiles of 32 columns than most devices have processors. */
static void test_prompts(void **state)
{
    static const struct shape shapes[] = {
        {64, 16, 16, 0, 8, 0, F32, false, 400, 1, 330},
        {128, 32, 8, 0, 8, 0, F16, true, 600, 3, 150},
        {32, 8, 68, 0, 8, 300, F16, false, 700, 2, 290},
        {16, 16, 80, 0, 8, 0, F32, true, 270, 1, 400},
        {16, 16, 24, 96, 10, 0, F32, false, 300, 2, 300},
        {16, 16, 24, 80, 10, 0, F16, false, 530, 1, 290},
        {64, 16, 16, 0, 8, 0, Q4, false, 150, 1, 130},
        {32, 8, 68, 0, 8, 100, Q8, false, 300, 2, 160},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        check(state, 150 + i, &shapes[i], 1);
}

static void test_many_chunks(void **state)
{
    /* More chunks than a block joins at a time. */
    static const struct shape shapes[] = {
        {1, 1, 2, 0, 2, 0, F16, false, 33000, 1, 1},
        {2, 1, 4, 0, 2, 32900, F32, true, 33100, 1, 2},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        check(state, 200 + i, &shapes[i], 3);
}

static void test_sharp(void **state)
{
    /* Scores so far apart that shares reach moe_expf's ends, and rising and falling maxima. */
    static const struct shape shapes[] = {
        {4, 2, 64, 0, 8, 0, F32, true, 1100, 2, 3},
        {4, 2, 64, 0, 8, 0, F16, true, 1100, 2, 10},
    };
    for (size_t i = 0; i < N_ITEMS(shapes); i++) {
        check(state, 300 + i, &shapes[i], 100);
        check(state, 310 + i, &shapes[i], 1e30f);
    }
}

/* A query that is not a number spoils its row's head and nothing else. */
static void test_not_numbers(void **state)
{
    static const struct shape shapes[] = {
        {4, 2, 32, 0, 8, 0, F32, true, 600, 1, 3},
        {4, 2, 32, 0, 8, 0, F16, false, 600, 1, 9},
    };
    for (size_t n = 0; n < N_ITEMS(shapes); n++) {
        struct forged f = {.taken = {.g = *state}, .random = 400 + n};
        open_shape(&f, &shapes[n]);
        struct cpu_attention *w = &cpu_of(&f)->attention;
        for (uint64_t i = 0; i < shapes[n].n_rows * w->stride.queries; i++)
            w->queries[i] = test_uniform(&f.random);
        w->queries[0] = NAN;
        w->queries[w->stride.queries + 40] = INFINITY;
        w->queries[2 * w->stride.queries + 70] = -INFINITY;
        check_with(&f, &shapes[n], true, 600);
        check_with(&f, &shapes[n], false, 600);
        forged_close(&f);
    }
}

/* What is recorded once serves rows at any position below `end`. */
static void test_recorded(void **state)
{
    static const struct shape p = {8, 2, 40, 0, 8, 300, F16, true, 1000, 2, 2};
    static const uint32_t positions[] = {0, 255, 256, 511, 830, 999};
    struct forged f = {.taken = {.g = *state}, .random = 450};
    struct moe_gpu_graph *graph = NULL;
    struct moe_err err;
    open_shape(&f, &p);
    struct cpu_attention *w = &cpu_of(&f)->attention;
    uint64_t all = p.n_rows * w->stride.attended, n_queries = p.n_rows * w->stride.queries;
    uint64_t scratch_bytes =
        moe_gpu_attention_bytes(p.n_heads, cpu_of(&f)->kv.value_dim, p.context);
    for (uint64_t i = 0; i < n_queries; i++)
        w->queries[i] = test_uniform(&f.random);
    struct moe_gpu_row *rows = gpu_take(&f.taken, NULL, p.n_rows * sizeof *rows);
    const struct moe_gpu_attention a = {
        .queries = on_device(&f, w->queries, n_queries),
        .attended = on_device(&f, w->attended, all),
        .queries_stride = w->stride.queries,
        .attended_stride = w->stride.attended,
        .kv = kv_on_device(&f),
        .layer = LAYER,
        .n_heads = p.n_heads,
        .scale = f.model.config.attn_scale,
        .window = p.window,
        .sinks = on_device(&f, f.layers[LAYER].sinks, p.n_heads),
        .rows = rows,
        .end = p.context,
        .scratch = gpu_take(&f.taken, NULL, scratch_bytes),
        .scratch_bytes = scratch_bytes,
    };
    moe_gpu_graph_begin(f.taken.g);
    moe_gpu_attention(f.taken.g, &a, p.n_rows);
    assert_ok(moe_gpu_graph_end(f.taken.g, &graph, &err), &err);
    for (size_t i = 0; i < N_ITEMS(positions); i++) {
        struct moe_gpu_row now[2];
        for (uint32_t k = 0; k < p.n_rows; k++) {
            f.rows[k] = (struct moe_row){k, positions[k ? i : N_ITEMS(positions) - 1 - i], 0, 0};
            now[k] = (struct moe_gpu_row){f.rows[k].sequence, f.rows[k].position, 0, 0};
        }
        gpu_put(f.taken.g, rows, now, sizeof now);
        moe_gpu_graph_run(f.taken.g, graph);
        moe_attention(f.s, LAYER, f.rows, p.n_rows);
        check_floats(&f, a.attended, w->attended, all);
    }
    moe_gpu_graph_close(graph);
    forged_close(&f);
}

static void test_random_shapes(void **state)
{
    uint64_t random = 7;
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t kv_heads = 1 + (uint32_t)(test_random(&random) % 3);
        struct shape p = {
            .n_kv_heads = kv_heads,
            .n_heads = kv_heads * (1 + (uint32_t)(test_random(&random) % 9)),
            .head_dim = 2 + (uint32_t)(test_random(&random) % 80),
            .rope_dim = 2,
            .window = test_random(&random) % 3 ? 0 : 1 + (uint32_t)(test_random(&random) % 600),
            .kv = test_random(&random) % N_KINDS,
            .sinks = test_random(&random) % 2,
            .context = 1 + (uint32_t)(test_random(&random) % 800),
            .n_sequences = 1 + (uint32_t)(test_random(&random) % 3),
            .n_rows = 1 + (uint32_t)(test_random(&random) % (i % 2 ? 4 : 24)),
        };
        check(state, 500 + i, &p, 2);
    }
}

int main(void)
{
    struct moe_err err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_many_chunks),   cmocka_unit_test(test_sharp),
        cmocka_unit_test(test_not_numbers),   cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_random_shapes),
    };
    if (moe_kern_select(moe_cpu_detect(), &err) != MOE_OK)
        return 1;
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
