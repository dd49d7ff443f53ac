/*
 * Prefix language models (GPTSAN): prompts whose rows see each other, norms after blocks, learnt
 * positions, the bypass, rows that pass experts without room. On random small models what is
 * computed is what the description means (naive_model.h), bit for bit however.
 */
#include "model_fixture.h"
#include "run/source.h"

#include "naive_model.h"

enum { N_MODELS = 100, N_COMPUTED = 40, N_TEXTS = 3, N_IDS = 40 };

static char path[128];
static uint32_t ids[N_TEXTS][N_IDS], n_prompt[N_TEXTS], prefix[N_TEXTS];

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(path, sizeof path, "/tmp/moe-prefix-%d.moe", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    unlink(path);
    return 0;
}

static void draw(struct random_model *m, uint64_t seed)
{
    uint64_t random = seed + 1000;
    random_prefix_draw(m, seed);
    for (int t = 0; t < N_TEXTS; t++) {
        n_prompt[t] = 1 + random_below(&random, N_IDS);
        prefix[t] = random_below(&random, n_prompt[t] + 1);
        for (uint32_t i = 0; i < N_IDS; i++)
            ids[t][i] = random_below(&random, m->c.vocab);
    }
}

static void open_all(struct fixture *f, uint32_t context)
{
    struct moe_err err = {0};
    snprintf(f->path, sizeof f->path, "%s", path);
    assert_ok(moe_model_open(&f->model, path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&f->experts, f->model->pack, 0, NULL, NULL, &err), &err);
    const struct moe_session_options options = {
        .context = context, .n_sequences = N_TEXTS, .batch = N_TEXTS * N_IDS};
    assert_ok(moe_session_open(&f->session, f->model, f->experts, &options, &err), &err);
}

/* Rows [first, first + n) of the texts [begin, end) in one pass. */
static void pass(struct moe_session *s, int begin, int end, const uint32_t *first,
                 const uint32_t *n, float *logits[N_TEXTS])
{
    struct moe_err err = {0};
    const struct moe_config *c = &s->model->config;
    struct moe_row rows[N_TEXTS * N_IDS] = {{0}};
    uint32_t n_rows = 0, at = 0;
    for (int t = begin; t < end; t++)
        for (uint32_t i = first[t]; i < first[t] + n[t]; i++)
            rows[n_rows++] = (struct moe_row){(uint32_t)t, i, ids[t][i], 0};
    if (n_rows == 0)
        return;
    assert_ok(moe_forward(s, n_rows > 1 ? MOE_PREFILL : MOE_DECODE, rows, n_rows, 0, c->n_layers,
                          NULL, NULL, &err),
              &err);
    for (int t = begin; t < end; at += n[t++])
        if (n[t] > 0)
            assert_ok(moe_logits(s, at, n[t], logits[t] + first[t] * moe_logits_stride(c), &err),
                      &err);
}

/* The prompts, then the rest in passes of `part` rows, of all texts side by side or of one after
 * the other. */
static void compute(struct moe_session *s, bool together, uint32_t part, float *logits[N_TEXTS])
{
    for (int t = 0; t < N_TEXTS; t++) {
        logits[t] = calloc(N_IDS * moe_logits_stride(&s->model->config), sizeof(float));
        moe_sequence_end(s, (uint32_t)t);
        moe_sequence_prompt(s, (uint32_t)t, n_prompt[t], prefix[t]);
    }
    for (int begin = 0; begin < N_TEXTS; begin += together ? N_TEXTS : 1) {
        uint32_t first[N_TEXTS] = {0}, n[N_TEXTS], n_rows;
        int end = together ? N_TEXTS : begin + 1;
        memcpy(n, n_prompt, sizeof n);
        do {
            pass(s, begin, end, first, n, logits);
            n_rows = 0;
            for (int t = begin; t < end; t++) {
                first[t] += n[t];
                n[t] = N_IDS - first[t] < part ? N_IDS - first[t] : part;
                n_rows += n[t];
            }
        } while (n_rows);
    }
}

static void free_all(float *logits[N_TEXTS])
{
    for (int t = 0; t < N_TEXTS; t++)
        free(logits[t]);
}

/* ---- Right ---- */

struct watched {
    const struct naive *want;
    uint32_t n_differing;
};

static void compare_choices(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                            const float *gate_input, uint64_t hidden_stride,
                            const float *probabilities, uint64_t router_stride,
                            const uint32_t *chosen, const float *weights)
{
    struct watched *w = ctx;
    const struct moe_config *c = &w->want->m->c;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct naive *t = &w->want[rows[i].sequence];
        const struct naive_choice *want = &t->choices[layer * t->n + rows[i].position];
        for (uint32_t k = 0; k < c->top_k; k++) {
            float weight = weights[i * c->top_k + k];
            w->n_differing += chosen[i * c->top_k + k] != want->experts[k] ||
                              fabs((double)weight - want->weights[k]) > 1e-4 ||
                              (weight == 0) != (want->weights[k] == 0);
        }
    }
}

static void agrees_with_the_naive_model(void **state)
{
    uint32_t n_compared = 0, n_over = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= N_MODELS; seed++) {
        struct random_model m;
        struct naive want[N_TEXTS];
        struct fixture f = {.path = ""};
        float *logits[N_TEXTS];
        double margin = 1, most = 0, largest = 0;
        uint32_t over = 0;
        draw(&m, seed);
        random_model_write(&m, 32, path);
        open_all(&f, N_IDS);
        for (int t = 0; t < N_TEXTS; t++) {
            naive_prompted(&want[t], &m, ids[t], N_IDS, n_prompt[t], prefix[t]);
            margin = fmin(margin, want[t].margin);
            over += want[t].n_over;
        }
        struct watched w = {.want = want};
        f.session->observer.ctx = &w;
        f.session->observer.routed = compare_choices;
        compute(f.session, seed % 2, 7, logits);
        for (int t = 0; t < N_TEXTS; t++)
            for (uint32_t i = 0; i < N_IDS * m.c.vocab; i++) {
                uint64_t at = i / m.c.vocab * moe_logits_stride(&m.c) + i % m.c.vocab;
                most = fmax(most, fabs(want[t].logits[i] - (double)logits[t][at]));
                largest = fmax(largest, fabs(want[t].logits[i]));
            }
        if (margin > 1e-5) { /* else rounding may have chosen another expert */
            n_compared++;
            n_over += over;
            worst = fmax(worst, most / largest);
            if (!(most / largest < 1e-4) || w.n_differing)
                fail_msg("seed %llu: logits differ by %g, %u choices", (unsigned long long)seed,
                         most / largest, w.n_differing);
            assert_int_equal(f.session->stats.prefill.over_capacity +
                                 f.session->stats.decode.over_capacity,
                             over);
        }
        free_all(logits);
        for (int t = 0; t < N_TEXTS; t++)
            naive_free(&want[t]);
        fixture_close(&f);
        random_model_free(&m);
    }
    print_message("# %u of %d models compared, largest relative difference %.2g, %u choices beyond "
                  "a capacity\n",
                  n_compared, N_MODELS, worst, n_over);
    assert_true(n_compared > N_MODELS / 2 && n_over > 100);
}

/* ---- The same however it is computed ---- */

static void assert_same(const struct random_model *m, uint64_t seed, float *want[N_TEXTS],
                        float *got[N_TEXTS], const char *what)
{
    uint64_t n = N_IDS * moe_logits_stride(&m->c);
    for (int t = 0; t < N_TEXTS; t++)
        if (memcmp(want[t], got[t], n * sizeof(float)) != 0)
            fail_msg("seed %llu: %s: text %d differs", (unsigned long long)seed, what, t);
    free_all(got);
}

static void nothing_else_changes_a_result(void **state)
{
    static const int bits[] = {32, 8, 4};
    struct moe_err err = {0};
    for (uint64_t seed = 1; seed <= N_COMPUTED; seed++) {
        struct random_model m;
        struct fixture f = {.path = ""};
        float *want[N_TEXTS], *logits[N_TEXTS];
        draw(&m, seed);
        random_model_write(&m, bits[seed % N_ITEMS(bits)], path);
        open_all(&f, N_IDS);
        compute(f.session, false, N_IDS, want);
        compute(f.session, true, N_IDS, logits);
        assert_same(&m, seed, want, logits, "side by side");
        compute(f.session, true, 1, logits);
        assert_same(&m, seed, want, logits, "side by side, token by token");
        moe_par_set_threads(1);
        compute(f.session, false, 5, logits);
        assert_same(&m, seed, want, logits, "one thread");
        moe_par_set_threads(2);
        assert_ok(moe_kern_select(MOE_CPU_SCALAR, &err), &err);
        compute(f.session, true, 7, logits);
        assert_same(&m, seed, want, logits, "reference kernels");
        assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
        moe_session_close(f.session);
        moe_experts_close(f.experts);
        const struct moe_cache_options cache = {
            .cache_bytes = 2 * moe_cache_slot_bytes(f.model->pack, 0),
            .n_working = 2,
            .loader = {.verify = true},
        };
        assert_ok(moe_experts_open_cached(&f.experts, f.model->pack, m.c.top_k, &cache, NULL, &err),
                  &err);
        const struct moe_session_options options = {.context = 64, .n_sequences = N_TEXTS};
        assert_ok(moe_session_open(&f.session, f.model, f.experts, &options, &err), &err);
        compute(f.session, false, 1, logits);
        assert_same(&m, seed, want, logits, "behind a cache, in a larger context");
        free_all(want);
        fixture_close(&f);
        random_model_free(&m);
    }
}

static void prompts_stand_in_one_pass(void **state)
{
    struct moe_err err = {0};
    struct random_model m;
    struct fixture f = {.path = ""};
    struct moe_row rows[12];
    uint32_t n_known;
    draw(&m, 1);
    random_model_write(&m, 32, path);
    open_all(&f, N_IDS);
    struct moe_session *s = f.session;
    for (uint32_t i = 0; i < 12; i++)
        rows[i] = (struct moe_row){0, i, ids[0][i], 0};
    moe_sequence_prompt(s, 0, 8, 3);
    assert_fails(moe_forward(s, MOE_PREFILL, rows, 7, 0, m.c.n_layers, NULL, NULL, &err),
                 MOE_ERR_USAGE, "prompt of 8 positions of sequence 0", &err);
    assert_fails(moe_forward(s, MOE_PREFILL, rows + 1, 11, 0, m.c.n_layers, NULL, NULL, &err),
                 MOE_ERR_USAGE, "whole and in order", &err);
    assert_ok(moe_forward(s, MOE_PREFILL, rows, 12, 0, m.c.n_layers, NULL, NULL, &err), &err);
    assert_ok(moe_forward(s, MOE_DECODE, rows + 8, 1, 0, m.c.n_layers, NULL, NULL, &err), &err);
    /* Nothing is taken over from such a text: its keys and values depend on all of the prefix. */
    moe_sequence_computed(s, rows, 12);
    assert_int_equal(moe_sequence_known(s, ids[0], 12), 0);
    assert_ok(moe_sequence_begin(s, 1, ids[0], 12, 12, &n_known, &err), &err);
    assert_int_equal(n_known, 0);
    moe_sequence_end(s, 0); /* has no prompt any more */
    assert_ok(moe_forward(s, MOE_PREFILL, rows, 7, 0, m.c.n_layers, NULL, NULL, &err), &err);
    fixture_close(&f);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_naive_model),
        cmocka_unit_test(nothing_else_changes_a_result),
        cmocka_unit_test(prompts_stand_in_one_pass),
    };
    return cmocka_run_group_tests_name("prefix", tests, set_up, tear_down);
}
