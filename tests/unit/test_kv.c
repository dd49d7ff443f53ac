/*
 * Blocks of the KV cache: whose they are, what happens when there are no more, and that a
 * sequence's logits do not depend on which it has.
 */
#include "model_fixture.h"

enum { N_SEQUENCES = 4, LONG = 300, SHORT = 40 };

/* ---- The pool alone ---- */

/* Every block is free or one sequence's, and none is both. */
static void check_owners(const struct moe_kv_pool *p)
{
    uint32_t seen[64] = {0}, taken = 0;
    assert_true(p->n_blocks <= 64);
    for (uint32_t i = 0; i < p->n_free; i++)
        seen[p->free[i]]++;
    for (uint32_t s = 0; s < p->n_sequences; s++)
        for (uint32_t i = 0; i < p->n_taken[s]; i++, taken++)
            seen[p->table[s * p->per_sequence + i]]++;
    assert_int_equal(p->n_free + taken, p->n_blocks);
    for (uint32_t i = 0; i < p->n_blocks; i++)
        assert_int_equal(seen[i], 1);
}

static void blocks_have_one_owner(void **state)
{
    const struct moe_session_options o = {
        .context = 2000, .n_sequences = N_SEQUENCES, .kv_blocks = 11};
    struct moe_arena arena = {0};
    struct moe_kv_pool p;
    struct moe_err err;
    uint64_t random = 3;
    uint32_t n_full = 0;
    (void)state;
    moe_kv_pool_carve(&p, &arena, &o);
    uint8_t *memory = calloc(1, arena.used);
    assert_non_null(memory);
    arena = (struct moe_arena){.base = memory, .size = arena.used};
    moe_kv_pool_carve(&p, &arena, &o);
    assert_int_equal(p.n_free, 11);
    assert_int_equal(p.per_sequence, 8);
    for (int i = 0; i < 2000; i++) {
        uint32_t s = (uint32_t)(test_random(&random) % N_SEQUENCES), had = p.n_taken[s];
        uint32_t first = had ? p.table[s * p.per_sequence] : 0, n_free = p.n_free;
        if (test_random(&random) % 4 == 0) {
            moe_kv_give_back(&p, s);
            assert_int_equal(p.n_free, n_free + had);
        } else {
            uint32_t positions = 1 + (uint32_t)(test_random(&random) % 2000);
            uint32_t wanted = (positions - 1) / p.block_positions + 1;
            int status = moe_kv_take(&p, s, positions, &err);
            bool fits = wanted <= had || wanted - had <= n_free;
            assert_int_equal(status, fits ? MOE_OK : MOE_ERR_LIMIT);
            n_full += !fits;
            assert_int_equal(p.n_taken[s], fits && wanted > had ? wanted : had);
            assert_true(!had || p.table[s * p.per_sequence] == first);
        }
        check_owners(&p);
    }
    assert_true(n_full > 100);
    free(memory);
}

/* ---- A session whose cache is smaller than its sequences could become ---- */

static struct fixture f;
static uint32_t ids[LONG];

static int open_model(void **state)
{
    struct moe_err err = {0};
    uint64_t random = 7;
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    fixture_open(&f, 4, N_SEQUENCES, 64);
    for (int i = 0; i < LONG; i++)
        ids[i] = (uint32_t)(test_random(&random) % 4000);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    fixture_close(&f);
    return 0;
}

/* Computes ids [shift, shift + n) as the sequence's text; the logits of the last. */
static int compute(struct moe_session *s, uint32_t sequence, uint32_t shift, uint32_t n,
                   float *logits, struct moe_err *err)
{
    struct moe_row rows[64];
    uint32_t some = 0;
    for (uint32_t first = 0; first < n; first += some) {
        some = n - first < 64 ? n - first : 64;
        for (uint32_t i = 0; i < some; i++)
            rows[i] = (struct moe_row){sequence, first + i, ids[shift + first + i], n};
        int status =
            moe_forward(s, MOE_PREFILL, rows, some, 0, s->model->config.n_layers, NULL, NULL, err);
        if (status != MOE_OK)
            return status;
    }
    return moe_logits(s, some - 1, 1, logits, err);
}

static void sequences_end_and_make_room(void **state)
{
    const struct moe_session_options o = {
        .context = 512, .n_sequences = N_SEQUENCES, .batch = 64, .kv_blocks = 3};
    uint64_t n = moe_logits_stride(&f.model->config);
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    struct moe_session *s;
    struct moe_err err;
    (void)state;
    assert_true(want && got);
    assert_ok(compute(f.session, 0, 5, LONG - 5, want, &err), &err);
    assert_ok(moe_session_open(&s, f.model, f.experts, &o, &err), &err);
    assert_int_equal(
        moe_session_kv_bytes(&f.model->config, &o) * 8,
        moe_session_kv_bytes(&f.model->config,
                             &(struct moe_session_options){.context = 512, .n_sequences = 4}) *
            3);
    assert_ok(compute(s, 2, 0, LONG, got, &err), &err);
    assert_ok(compute(s, 1, 0, SHORT, got, &err), &err);
    assert_fails(compute(s, 3, 5, LONG - 5, got, &err), MOE_ERR_LIMIT, "the KV cache is full",
                 &err);
    assert_fails(moe_sequence_reserve(s, 1, 257, &err), MOE_ERR_LIMIT, "0 of 3 are free", &err);
    assert_fails(moe_sequence_reserve(s, N_SEQUENCES, 1, &err), MOE_ERR_USAGE, "out of range",
                 &err);
    moe_sequence_end(s, 2);
    assert_ok(compute(s, 3, 5, LONG - 5, got, &err), &err);
    assert_memory_equal(got, want, f.model->config.vocab * sizeof *got);
    moe_session_close(s);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_have_one_owner),
        cmocka_unit_test(sequences_end_and_make_room),
    };
    return cmocka_run_group_tests_name("kv", tests, open_model, close_model);
}
