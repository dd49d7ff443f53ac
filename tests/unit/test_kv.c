/*
 * Blocks of the KV cache: whose they are, what happens when there are no more, and that a
 * sequence's logits do not depend on which it has.
 */
#include "base/mem.h"
#include "model_fixture.h"

enum { N_SEQUENCES = 4, LONG = 300, SHORT = 40 };

/* ---- The pool alone ---- */

/* Every block is free or has as many users as there are sequences with it, and free ones are in one
 * list. */
static void check_owners(const struct moe_kv_pool *p)
{
    uint32_t users[64] = {0}, n_free = 0, before = MOE_NO_BLOCK;
    assert_true(p->n_blocks <= 64);
    for (uint32_t s = 0; s < p->n_sequences; s++)
        for (uint32_t i = 0; i < p->n_taken[s]; i++)
            users[p->table[s * p->per_sequence + i]]++;
    for (uint32_t b = p->oldest; b != MOE_NO_BLOCK; b = p->blocks[b].newer, n_free++) {
        assert_true(n_free < p->n_blocks && users[b] == 0);
        assert_int_equal(p->blocks[b].older, before);
        before = b;
    }
    assert_int_equal(p->newest, before);
    assert_int_equal(p->n_free, n_free);
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        assert_int_equal(p->blocks[i].n_users, users[i]);
        n_free += users[i] > 0;
    }
    assert_int_equal(n_free, p->n_blocks);
}

/* A pool of this shape, whose arrays lie in *memory. */
static struct moe_kv_pool new_pool(struct moe_kv_pool shape, uint8_t **memory)
{
    struct moe_arena arena = {0};
    moe_kv_pool_carve(&shape, &arena);
    *memory = calloc(1, arena.used);
    assert_non_null(*memory);
    arena = (struct moe_arena){.base = *memory, .size = arena.used};
    moe_kv_pool_carve(&shape, &arena);
    return shape;
}

static void blocks_have_one_owner(void **state)
{
    const struct moe_session_options o = {
        .context = 2000, .n_sequences = N_SEQUENCES, .kv_blocks = 11};
    uint8_t *memory;
    const struct moe_config none = {0};
    struct moe_kv_pool p = new_pool(moe_kv_pool_shape(&none, &o), &memory);
    struct moe_err err;
    uint64_t random = 3;
    uint32_t n_full = 0;
    (void)state;
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

/* ---- Texts that begin alike, with cells that say what was computed ---- */

enum { EACH = 20, PER_SEQUENCE = 6, MOST_BLOCKS = 24, LENGTH = EACH * PER_SEQUENCE };

struct alike {
    struct moe_kv_pool p;
    uint64_t cells[MOST_BLOCKS][EACH]; /* of all ids up to there */
    uint32_t ids[N_SEQUENCES][LENGTH], n[N_SEQUENCES], n_done[N_SEQUENCES];
    bool far[N_SEQUENCES];
    uint64_t random;
    uint64_t n_shared, n_copied, n_taken_over, n_full, n_computed, n_begun;
};

static uint32_t draw(struct alike *a, uint32_t n)
{
    return (uint32_t)(test_random(&a->random) % n);
}

static uint64_t cell_of(const struct alike *a, uint32_t s, uint32_t position)
{
    uint64_t h = a->far[s] ? 77 : 5;
    for (uint32_t i = 0; i <= position; i++)
        h = (h ^ a->ids[s][i]) * 0x9e3779b97f4a7c15u + i;
    return h;
}

static uint64_t *cell_at(struct alike *a, uint32_t s, uint32_t position)
{
    return &a->cells[a->p.table[s * a->p.per_sequence + position / EACH]][position % EACH];
}

/* A text that begins like others, of few words. */
static void begin_text(struct alike *a, uint32_t s)
{
    uint32_t from = draw(a, N_SEQUENCES), alike = draw(a, a->n[from] + 1);
    struct moe_kv_begun begun;
    struct moe_err err;
    a->n[s] = 2 + draw(a, LENGTH - 2);
    memmove(a->ids[s], a->ids[from], sizeof a->ids[s]);
    for (uint32_t i = alike; i < a->n[s]; i++)
        a->ids[s][i] = draw(a, 8) ? 1 : draw(a, 3);
    a->far[s] = draw(a, 8) == 0;
    const struct moe_kv_text text = {a->ids[s], a->n[s] - 1, a->far[s]};
    uint32_t found = moe_kv_find(&a->p, &text), n_free = a->p.n_free;
    a->n_done[s] = 0;
    if (moe_kv_begin(&a->p, s, &text, a->n[s], &begun, &err) != MOE_OK) {
        assert_int_equal(err.status, MOE_ERR_LIMIT);
        assert_int_equal(a->p.n_taken[s], 0);
        assert_int_equal(a->p.n_free, n_free);
        a->n[s] = 0;
        a->n_full++;
        return;
    }
    assert_true(begun.n_known <= found && found - begun.n_known < 16);
    if (begun.copy_to != MOE_NO_BLOCK) {
        assert_int_equal(a->p.blocks[begun.copy_to].n_users, 1);
        memcpy(a->cells[begun.copy_to], a->cells[begun.copy_from], sizeof a->cells[0]);
        a->n_copied++;
    }
    a->n_done[s] = begun.n_known;
    a->n_begun += begun.n_known;
    for (uint32_t i = 0; i < begun.n_known; i++)
        assert_true(*cell_at(a, s, i) == cell_of(a, s, i));
    for (uint32_t i = 0; i < begun.n_known / EACH; i++)
        a->n_shared += a->p.blocks[a->p.table[s * a->p.per_sequence + i]].n_users > 1;
    a->n_taken_over += begun.n_known % EACH && begun.copy_to == MOE_NO_BLOCK;
}

static void go_on(struct alike *a, uint32_t s)
{
    for (uint32_t n = draw(a, 40); n > 0 && a->n_done[s] < a->n[s]; n--, a->n_done[s]++) {
        uint32_t i = a->n_done[s];
        uint32_t block = a->p.table[s * a->p.per_sequence + i / EACH];
        assert_int_equal(a->p.blocks[block].n_users, 1);
        *cell_at(a, s, i) = cell_of(a, s, i);
        moe_kv_know(&a->p, s, i, a->ids[s][i], a->far[s]);
        a->n_computed++;
    }
}

static void what_is_known_is_what_would_be_computed(void **state)
{
    static const uint32_t sizes[] = {MOST_BLOCKS, 9, PER_SEQUENCE};
    (void)state;
    for (int size = 0; size < 3; size++) {
        struct alike *a = calloc(1, sizeof *a);
        uint8_t *memory;
        assert_non_null(a);
        a->random = 5 + (uint64_t)size;
        a->p = new_pool((struct moe_kv_pool){.n_sequences = N_SEQUENCES,
                                             .n_blocks = sizes[size],
                                             .block_positions = EACH,
                                             .per_sequence = PER_SEQUENCE},
                        &memory);
        for (int i = 0; i < 20000; i++) {
            uint32_t s = draw(a, N_SEQUENCES);
            if (a->p.n_taken[s] == 0) {
                begin_text(a, s);
            } else if (draw(a, 8) == 0) {
                moe_kv_give_back(&a->p, s);
            } else {
                go_on(a, s);
            }
            check_owners(&a->p);
        }
        assert_true(a->n_shared > 50 && a->n_copied > 50 && a->n_taken_over > 50);
        assert_true((a->n_full > 100) == (size > 0));
        assert_true(a->n_begun > a->n_computed / 10);
        free(memory);
        free(a);
    }
}

static void the_longest_unused_text_goes_first_and_its_end_before_its_beginning(void **state)
{
    uint8_t *memory;
    uint32_t ids[2][3 * EACH], n_known;
    struct moe_kv_begun begun;
    struct moe_err err;
    struct moe_kv_pool p = new_pool(
        (struct moe_kv_pool){
            .n_sequences = 2, .n_blocks = 6, .block_positions = EACH, .per_sequence = 6},
        &memory);
    (void)state;
    for (uint32_t s = 0; s < 2; s++) {
        const struct moe_kv_text text = {ids[s], 3 * EACH, false};
        for (uint32_t i = 0; i < 3 * EACH; i++)
            ids[s][i] = 100 * s + i;
        assert_ok(moe_kv_begin(&p, s, &text, 3 * EACH, &begun, &err), &err);
        assert_int_equal(begun.n_known, 0);
        for (uint32_t i = 0; i < 3 * EACH; i++)
            moe_kv_know(&p, s, i, ids[s][i], false);
    }
    moe_kv_give_back(&p, 1);
    moe_kv_give_back(&p, 0);
    for (uint32_t taken = 1; taken <= 6; taken++) {
        static const uint32_t left[7][2] = {{3, 3}, {3, 2}, {3, 1}, {3, 0}, {2, 0}, {1, 0}, {0, 0}};
        assert_ok(moe_kv_take(&p, 1, taken * EACH, &err), &err);
        for (uint32_t s = 0; s < 2; s++) {
            n_known = moe_kv_find(&p, &(struct moe_kv_text){ids[s], 3 * EACH, false});
            assert_int_equal(n_known, left[taken][s] * EACH);
        }
    }
    assert_int_equal(moe_kv_find(&p, &(struct moe_kv_text){ids[0], 0, false}), 0);
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
    moe_sequence_rewind(s, 2, 0);
    assert_ok(compute(s, 3, 5, LONG - 5, got, &err), &err);
    assert_memory_equal(got, want, f.model->config.vocab * sizeof *got);
    moe_session_close(s);
    free(want);
    free(got);
}

/* Brings a sequence to the first LONG ids, others from `change` on, and computes what it lacks; the
 * last one's logits. Returns how many positions were there. */
static uint32_t turn_to(struct moe_session *s, uint32_t sequence, uint32_t change, float *logits)
{
    struct moe_err err;
    uint32_t text[LONG], n_done, n;
    for (uint32_t i = 0; i < LONG; i++)
        text[i] = i < change ? ids[i] : ids[i] ^ 1;
    assert_ok(moe_sequence_sync(s, sequence, text, LONG, LONG, &n_done, &err), &err);
    assert_int_equal(moe_sequence_length(s, sequence), n_done);
    for (uint32_t at = n_done; at < LONG; at += n) {
        struct moe_row rows[64];
        n = LONG - at < 64 ? LONG - at : 64;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){sequence, at + i, text[at + i], LONG};
        assert_ok(
            moe_forward(s, MOE_PREFILL, rows, n, 0, s->model->config.n_layers, NULL, NULL, &err),
            &err);
        assert_ok(moe_logits(s, n - 1, 1, logits, &err), &err);
    }
    assert_int_equal(moe_sequence_common(s, sequence, text, LONG), LONG);
    return n_done;
}

/* Room for 64 whole contexts is asked for, and only blocks that texts reach become memory. */
static void blocks_become_memory_as_they_are_needed(void **state)
{
    const struct moe_session_options o = {.context = 512, .n_sequences = 64, .batch = 64};
    const uint64_t all = moe_session_kv_bytes(&f.model->config, &o), before = moe_rss_bytes();
    float *logits = calloc(moe_logits_stride(&f.model->config), sizeof *logits);
    struct moe_session *s;
    struct moe_err err;
    (void)state;
    assert_non_null(logits);
    assert_ok(moe_session_open(&s, f.model, f.experts, &o, &err), &err);
    assert_ok(compute(s, 40, 0, SHORT, logits, &err), &err);
    uint64_t one = moe_rss_bytes() - before;
    for (uint32_t i = 0; i < 16; i++)
        assert_ok(compute(s, i, 0, LONG, logits, &err), &err);
    uint64_t many = moe_rss_bytes() - before;
    print_message("# of %llu KiB, one text takes %llu, 16 long ones %llu\n",
                  (unsigned long long)all / 1024, (unsigned long long)one / 1024,
                  (unsigned long long)many / 1024);
    assert_true(one < all / 8);
    assert_true(many > all / 8 && many < all / 2);
    moe_session_close(s);
    free(logits);
}

/* A sequence keeps what it has of a text, and writes into no block that is another's too. */
static void a_sequence_turns_to_other_texts(void **state)
{
    enum { CHANGE = 100, BACK = 120 };
    const struct moe_session_options o = {.context = 512, .n_sequences = 2, .batch = 64};
    uint64_t n = moe_logits_stride(&f.model->config);
    uint64_t bytes = f.model->config.vocab * sizeof(float);
    float *want = calloc(3 * n, sizeof *want), *other = want + n, *got = want + 2 * n;
    struct moe_session *s;
    struct moe_err err;
    (void)state;
    assert_non_null(want);
    assert_ok(moe_session_open(&s, f.model, f.experts, &o, &err), &err);
    assert_int_equal(turn_to(s, 0, CHANGE, other), 0);
    moe_session_close(s);
    assert_ok(moe_session_open(&s, f.model, f.experts, &o, &err), &err);
    assert_int_equal(turn_to(s, 0, LONG, want), 0);
    assert_int_equal(turn_to(s, 1, LONG, got), LONG - 1); /* the last one's logits are wanted */
    assert_memory_equal(got, want, bytes);
    assert_int_equal(turn_to(s, 1, CHANGE, got), CHANGE); /* in a copy of the block */
    assert_memory_equal(got, other, bytes);
    assert_int_equal(turn_to(s, 0, LONG, got), LONG - 1);
    assert_memory_equal(got, want, bytes);
    assert_int_equal(moe_sequence_rewind(s, 0, BACK), BACK);
    assert_int_equal(moe_sequence_common(s, 0, ids, LONG), BACK);
    assert_int_equal(turn_to(s, 0, LONG, got), BACK);
    assert_memory_equal(got, want, bytes);
    assert_int_equal(moe_sequence_rewind(s, 0, 0), 0);
    assert_int_equal(turn_to(s, 0, LONG, got), LONG - 1); /* found where it was */
    assert_memory_equal(got, want, bytes);
    moe_session_close(s);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_have_one_owner),
        cmocka_unit_test(what_is_known_is_what_would_be_computed),
        cmocka_unit_test(the_longest_unused_text_goes_first_and_its_end_before_its_beginning),
        cmocka_unit_test(sequences_end_and_make_room),
        cmocka_unit_test(blocks_become_memory_as_they_are_needed),
        cmocka_unit_test(a_sequence_turns_to_other_texts),
    };
    return cmocka_run_group_tests_name("kv", tests, open_model, close_model);
}
