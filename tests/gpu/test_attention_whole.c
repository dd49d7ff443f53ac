/* Attention asked for together with what comes before it and after it (gpu_attention.cu) against
 * the same functions called one after the other: the same bits in fewer launches. */
#include "attention_fixture.h"

/* n_launches 0: as many as it takes. */
static void check(void **state, uint64_t seed, const struct shape *p, uint64_t n_launches)
{
    struct layer whole, steps;
    open_layer(&whole, *state, seed, p);
    open_layer(&steps, *state, seed, p);
    uint64_t launches = ask_whole(&whole);
    ask_one_by_one(&steps);
    check_same(&whole, &steps);
    if (n_launches)
        assert_int_equal(launches, n_launches);
    gpu_give_back(&whole.taken);
    gpu_give_back(&steps.taken);
}

#define HEAD MOE_QK_NORM_HEAD
#define FULL MOE_QK_NORM_FULL

/* A decoded row is one launch, at the ends of chunks, too. */
static void test_decode(void **state)
{
    static const struct shape shapes[] = {
        {.n_kv_heads = 4, .group = 8, .head_dim = 128, .rope_dim = 128, .qk_norm = HEAD},
        {.n_kv_heads = 2,
         .group = 4,
         .head_dim = 64,
         .rope_dim = 64,
         .biases = true,
         .sinks = true,
         .f16 = true},
        {.n_kv_heads = 2,
         .group = 8,
         .head_dim = 64,
         .rope_dim = 64,
         .biases = true,
         .sinks = true,
         .f16 = true,
         .window = 128},
        {.n_kv_heads = 16,
         .group = 1,
         .head_dim = 128,
         .rope_dim = 128,
         .qk_norm = FULL,
         .clip = 1.5f},
        {.n_kv_heads = 2, .group = 6, .head_dim = 128, .rope_dim = 128, .clip = 2, .f16 = true},
        {.n_kv_heads = 2, .group = 16, .head_dim = 256, .rope_dim = 64, .qk_norm = HEAD},
        /* Narrow heads whose tiles still are whole chunks of columns. */
        {.n_kv_heads = 2, .group = 8, .head_dim = 16, .rope_dim = 8, .qk_norm = HEAD},
        {.n_kv_heads = 1, .group = 3, .head_dim = 20, .rope_dim = 8, .biases = true},
        /* Latent. */
        {.n_kv_heads = 1,
         .group = 16,
         .head_dim = 48,
         .rope_dim = 16,
         .kv_rank = 512,
         .by_head = true,
         .f16 = true},
        {.n_kv_heads = 1,
         .group = 5,
         .head_dim = 48,
         .rope_dim = 16,
         .kv_rank = 80,
         .by_head = true},
    };
    static const uint32_t contexts[] = {1, 255, 256, 257, 512, 700};
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        for (size_t c = 0; c < N_ITEMS(contexts); c++) {
            struct shape p = shapes[i];
            p.n_rows = 1;
            p.context = contexts[c];
            check(state, 100 * i + c, &p, 1);
        }
}

/* What does not go into one launch. */
static void test_apart(void **state)
{
    static const struct {
        struct shape p;
        uint64_t n_launches;
    } cases[] = {
        /* Heads wider than a tile keeps. */
        {{.n_kv_heads = 1,
          .group = 2,
          .head_dim = 260,
          .rope_dim = 260,
          .context = 300,
          .n_rows = 1,
          .qk_norm = FULL},
         2},
        /* Tiles that end within 64 columns. */
        {{.n_kv_heads = 2, .group = 3, .head_dim = 20, .rope_dim = 10, .context = 300, .n_rows = 1},
         2},
        /* More than the last block should join. */
        {{.n_kv_heads = 1,
          .group = 8,
          .head_dim = 128,
          .rope_dim = 128,
          .context = 33100,
          .n_rows = 1,
          .f16 = true,
          .sinks = true},
         2},
        {{.n_kv_heads = 1, .group = 1, .head_dim = 2, .rope_dim = 2, .context = 33100, .n_rows = 1},
         1},
        /* Chunks after each other. */
        {{.n_kv_heads = 2,
          .group = 5,
          .head_dim = 64,
          .rope_dim = 32,
          .context = 900,
          .n_rows = 1,
          .no_scratch = true,
          .qk_norm = HEAD},
         1},
        /* Several rows. */
        {{.n_kv_heads = 2, .group = 4, .head_dim = 64, .rope_dim = 64, .context = 600, .n_rows = 4},
         2},
        {{.n_kv_heads = 1, .group = 3, .head_dim = 20, .rope_dim = 20, .context = 250, .n_rows = 4},
         2},
        {{.n_kv_heads = 2, .group = 3, .head_dim = 20, .rope_dim = 20, .context = 250, .n_rows = 4},
         3},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++)
        check(state, 2000 + i, &cases[i].p, cases[i].n_launches);
}

static void test_random_shapes(void **state)
{
    uint64_t random = 11;
    for (uint32_t i = 0; i < 150; i++) {
        bool latent = test_random(&random) % 5 == 0;
        uint32_t head_dim = 2 * (1 + (uint32_t)(test_random(&random) % (i % 3 ? 40 : 140)));
        if (test_random(&random) % 3 == 0)
            head_dim = (head_dim + 15) / 16 * 16;
        struct shape p = {
            .n_kv_heads = latent ? 1 : 1 + (uint32_t)(test_random(&random) % 3),
            .group = 1 + (uint32_t)(test_random(&random) % 16),
            .head_dim = head_dim,
            .rope_dim = 2 * (1 + (uint32_t)(test_random(&random) % (head_dim / 2))),
            .kv_rank = latent ? 16 * (1 + (uint32_t)(test_random(&random) % 20)) : 0,
            .qk_norm = (enum moe_qk_norm)(test_random(&random) % 3),
            .biases = test_random(&random) % 2,
            .sinks = test_random(&random) % 2,
            .f16 = test_random(&random) % 2,
            .by_head = latent || test_random(&random) % 4 == 0,
            .no_scratch = test_random(&random) % 6 == 0,
            .clip = test_random(&random) % 2 ? 0 : 0.8f,
            .window = test_random(&random) % 3 ? 0 : 1 + (uint32_t)(test_random(&random) % 600),
            .context = 6 + (uint32_t)(test_random(&random) % 900),
            .n_rows = i % 2 ? 1 : 1 + (uint32_t)(test_random(&random) % MAX_ROWS),
        };
        check(state, 3000 + i, &p, 0);
    }
}

/* Recorded once, one row after the other goes through, and is in the cache for the next. */
static void test_recorded(void **state)
{
    static const struct shape shapes[] = {
        {.n_kv_heads = 2,
         .group = 4,
         .head_dim = 32,
         .rope_dim = 16,
         .qk_norm = FULL,
         .biases = true,
         .context = 800,
         .n_rows = 1},
        {.n_kv_heads = 2,
         .group = 9,
         .head_dim = 64,
         .rope_dim = 64,
         .f16 = true,
         .sinks = true,
         .window = 300,
         .context = 800,
         .n_rows = 1},
    };
    static const uint32_t positions[] = {0,   1,   254, 255, 256, 257, 258, 299, 300,
                                         301, 511, 512, 513, 600, 797, 799, 3};
    for (size_t i = 0; i < N_ITEMS(shapes); i++) {
        struct layer whole, steps;
        struct moe_gpu_graph *graph = NULL;
        struct moe_err err;
        open_layer(&whole, *state, 4000 + i, &shapes[i]);
        open_layer(&steps, *state, 4000 + i, &shapes[i]);
        uint64_t q_bytes = whole.q_floats * sizeof(float);
        float *q = malloc(q_bytes);
        assert_non_null(q);
        moe_gpu_graph_begin(*state);
        ask_whole(&whole);
        assert_ok(moe_gpu_graph_end(*state, &graph, &err), &err);
        for (size_t at = 0; at < N_ITEMS(positions); at++) {
            struct moe_gpu_row row = {(uint32_t)i, positions[at], 0, 0};
            for (uint64_t k = 0; k < whole.q_floats; k++)
                q[k] = test_uniform(&whole.random);
            gpu_put(*state, whole.heads.q, q, q_bytes);
            gpu_put(*state, steps.heads.q, q, q_bytes);
            gpu_put(*state, whole.rows, &row, sizeof row);
            gpu_put(*state, steps.rows, &row, sizeof row);
            moe_gpu_graph_run(*state, graph);
            ask_one_by_one(&steps);
            check_same(&whole, &steps);
        }
        moe_gpu_graph_close(graph);
        free(q);
        gpu_give_back(&whole.taken);
        gpu_give_back(&steps.taken);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_recorded),
    };
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
