/*
 * What must not change a result: threads, batch splits, other sequences in the batch, cuts of the
 * layer range, the instruction set. All bit for bit, on logits, at 16 bits and at 4.
 */
#include "base/clock.h"
#include "infer/stages.h"
#include "model_fixture.h"

enum { N_IDS = 45, N_SEQUENCES = 3, BATCH = 64 };

static struct fixture fixtures[2]; /* 16 bits, 4 bits */
static uint32_t ids[N_SEQUENCES][N_IDS];

static int open_all(void **state)
{
    struct moe_err err = {0};
    uint64_t random = 7;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    fixture_open(&fixtures[0], 16, N_SEQUENCES, BATCH);
    fixture_open(&fixtures[1], 4, N_SEQUENCES, BATCH);
    for (int s = 0; s < N_SEQUENCES; s++)
        for (int i = 0; i < N_IDS; i++)
            ids[s][i] = (uint32_t)(test_random(&random) % 4000);
    return 0;
}

static int close_all(void **state)
{
    fixture_close(&fixtures[0]);
    fixture_close(&fixtures[1]);
    return 0;
}

static float *new_logits(const struct fixture *f)
{
    return calloc(N_IDS * moe_logits_stride(&f->model->config), sizeof(float));
}

/* Logits of every position of sequence `seq`, computed in parts of `part` rows. */
static void run(struct fixture *f, uint32_t seq, uint32_t part, float *logits)
{
    struct moe_err err = {0};
    uint64_t stride = moe_logits_stride(&f->model->config);
    for (uint32_t first = 0; first < N_IDS; first += part) {
        struct moe_row rows[N_IDS];
        uint32_t n = N_IDS - first < part ? N_IDS - first : part;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){seq, first + i, ids[seq][first + i], 0};
        assert_ok(moe_forward(f->session, MOE_PREFILL, rows, n, 0, f->model->config.n_layers, NULL,
                              NULL, &err),
                  &err);
        assert_ok(moe_logits(f->session, 0, n, logits + first * stride, &err), &err);
    }
}

static void assert_same(const struct fixture *f, const float *a, const float *b, const char *what)
{
    uint64_t n = N_IDS * moe_logits_stride(&f->model->config);
    if (memcmp(a, b, n * sizeof *a) != 0)
        fail_msg("%s: logits differ", what);
    for (uint64_t i = 0; i < n; i++)
        if (a[i] != 0)
            return;
    fail_msg("%s: all logits are zero", what);
}

static void batch_split_changes_nothing(void **state)
{
    static const uint32_t parts[] = {1, 2, 3, 7, 8, 13, 44};
    for (int k = 0; k < 2; k++) {
        struct fixture *f = &fixtures[k];
        float *whole = new_logits(f), *split = new_logits(f);
        run(f, 0, N_IDS, whole);
        for (size_t i = 0; i < N_ITEMS(parts); i++) {
            run(f, 0, parts[i], split);
            assert_same(f, whole, split, "batch split");
        }
        free(whole);
        free(split);
    }
}

static void thread_count_changes_nothing(void **state)
{
    for (int k = 0; k < 2; k++) {
        struct fixture *f = &fixtures[k];
        float *two = new_logits(f), *other = new_logits(f);
        run(f, 0, 20, two);
        moe_par_set_threads(1);
        run(f, 0, 20, other);
        moe_par_set_threads(2);
        assert_same(f, two, other, "one thread");
        free(two);
        free(other);
    }
}

/* The higher levels are compared with the reference kernels, which every machine has. */
static void instruction_set_changes_nothing(void **state)
{
    struct moe_err err = {0};
    for (int k = 0; k < 2; k++) {
        struct fixture *f = &fixtures[k];
        float *best = new_logits(f), *other = new_logits(f);
        run(f, 0, N_IDS, best);
        for (int level = 0; level < (int)moe_cpu_detect(); level++) {
            if (!moe_cpu_supports(level))
                continue;
            assert_ok(moe_kern_select(level, &err), &err);
            run(f, 0, N_IDS, other);
            assert_same(f, best, other, moe_cpu_level_name(level));
        }
        assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
        free(best);
        free(other);
    }
}

/* Rows of three sequences interleaved in one batch, each at another position. */
static void other_sequences_change_nothing(void **state)
{
    struct moe_err err = {0};
    for (int k = 0; k < 2; k++) {
        struct fixture *f = &fixtures[k];
        uint64_t stride = moe_logits_stride(&f->model->config);
        float *alone = new_logits(f), *mixed = new_logits(f), *part = new_logits(f);
        run(f, 1, N_IDS, alone);
        for (uint32_t first = 0; first < N_IDS; first += 5) {
            struct moe_row rows[3 * 5];
            uint32_t n = 0, of_one[5], n_of_one = 0;
            for (uint32_t i = 0; i < 5; i++) {
                uint32_t p = first + i;
                rows[n++] = (struct moe_row){0, p, ids[0][p], 0};
                of_one[n_of_one++] = n;
                rows[n++] = (struct moe_row){1, p, ids[1][p], 0};
                rows[n++] = (struct moe_row){2, p, ids[2][N_IDS - 1 - p], 0};
            }
            assert_ok(moe_forward(f->session, MOE_PREFILL, rows, n, 0, f->model->config.n_layers,
                                  NULL, NULL, &err),
                      &err);
            assert_ok(moe_logits(f->session, 0, n, part, &err), &err);
            for (uint32_t i = 0; i < 5; i++)
                memcpy(mixed + (first + i) * stride, part + of_one[i] * stride,
                       stride * sizeof *mixed);
        }
        assert_same(f, alone, mixed, "other sequences in the batch");
        free(alone);
        free(mixed);
        free(part);
    }
}

/* States taken out after layer 4 and put in again: calibration re-runs from a layer on. */
static void cut_of_the_layers_changes_nothing(void **state)
{
    struct moe_err err = {0};
    for (int k = 0; k < 2; k++) {
        struct fixture *f = &fixtures[k];
        float *whole = new_logits(f), *cut = new_logits(f);
        float *hidden = calloc(N_IDS * f->model->config.hidden, sizeof *hidden);
        struct moe_row rows[N_IDS];
        for (uint32_t i = 0; i < N_IDS; i++)
            rows[i] = (struct moe_row){2, i, ids[2][i], 0};
        run(f, 2, N_IDS, whole);
        assert_ok(moe_forward(f->session, MOE_PREFILL, rows, N_IDS, 0, 5, NULL, hidden, &err),
                  &err);
        run(f, 0, N_IDS, cut); /* something else in between */
        assert_ok(moe_forward(f->session, MOE_PREFILL, rows, N_IDS, 5, f->model->config.n_layers,
                              hidden, NULL, &err),
                  &err);
        assert_ok(moe_logits(f->session, 0, N_IDS, cut, &err), &err);
        assert_same(f, whole, cut, "cut after layer 4");
        free(whole);
        free(cut);
        free(hidden);
    }
}

static void misuse_is_refused(void **state)
{
    struct moe_err err = {0};
    struct fixture *f = &fixtures[0];
    uint32_t n_layers = f->model->config.n_layers;
    struct moe_row row = {N_SEQUENCES, 0, 0, 0};
    assert_fails(moe_forward(f->session, MOE_DECODE, &row, 1, 0, n_layers, NULL, NULL, &err),
                 MOE_ERR_USAGE, "out of range", &err);
    row = (struct moe_row){0, f->session->context, 0, 0};
    assert_fails(moe_forward(f->session, MOE_DECODE, &row, 1, 0, n_layers, NULL, NULL, &err),
                 MOE_ERR_USAGE, "out of range", &err);
    row = (struct moe_row){0, 3, 0, 3};
    assert_fails(moe_forward(f->session, MOE_DECODE, &row, 1, 0, n_layers, NULL, NULL, &err),
                 MOE_ERR_USAGE, "out of range", &err);
    row = (struct moe_row){0, 0, f->model->config.vocab, 0};
    assert_fails(moe_forward(f->session, MOE_DECODE, &row, 1, 0, n_layers, NULL, NULL, &err),
                 MOE_ERR_FORMAT, "the text has token", &err);
    assert_fails(moe_forward(f->session, MOE_DECODE, &row, 0, 0, n_layers, NULL, NULL, &err),
                 MOE_ERR_USAGE, "1 to 64 rows", &err);
}

/* A device that takes its time over the likeliest token. */
static int slow_greedy(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err)
{
    double since = moe_seconds();
    while (moe_seconds() < since + 0.02)
        ;
    *token = row;
    return MOE_OK;
}

static void time_of_the_likeliest_token_counts(void **state)
{
    struct moe_err err = {0};
    struct moe_session *s = fixtures[0].session;
    const struct moe_stages_ops *stages = s->stages;
    struct moe_stages_ops slow = *stages;
    slow.greedy = slow_greedy;
    struct moe_row row = {0, 0, ids[0][0], 0};
    assert_ok(moe_forward(s, MOE_DECODE, &row, 1, 0, s->model->config.n_layers, NULL, NULL, &err),
              &err);
    double before = s->stats.decode.seconds;
    uint32_t token = 1;
    s->stages = &slow;
    int status = moe_greedy(s, 0, &token, &err);
    s->stages = stages;
    assert_ok(status, &err);
    assert_int_equal(token, 0);
    assert_true(s->stats.decode.seconds >= before + 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_split_changes_nothing),
        cmocka_unit_test(thread_count_changes_nothing),
        cmocka_unit_test(instruction_set_changes_nothing),
        cmocka_unit_test(other_sequences_change_nothing),
        cmocka_unit_test(cut_of_the_layers_changes_nothing),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(time_of_the_likeliest_token_counts),
    };
    return cmocka_run_group_tests_name("forward", tests, open_all, close_all);
}
