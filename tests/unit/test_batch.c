/*
 * Answers side by side: each is what it would be alone, whatever runs beside it, however little
 * room there is, wherever experts are; and what ends one does not end others.
 */
#include "model_fixture.h"

#include "engine/engine.h"
#include "engine/generate.h"
#include "infer/experts_cached.h"

/* Under sanitizers every third way of batching. */
enum { OF_WAYS = SANITIZED ? 3 : 1 };
enum { N = 14, CONTEXT = 320, MOST_PROMPT = 300, SEED = 11 };

static char pack[128];

struct asked {
    uint32_t prompt[MOST_PROMPT];
    uint32_t n_prompt;
    double temperature;
    uint64_t max_tokens;
    const char *stops[2];
    bool refuses;        /* takes no text */
    struct moe_buf text; /* of the batch */
    struct moe_generate_result result;
    struct moe_err err;
    uint64_t id;
    bool ended;
};

static struct asked asked[N];

static int open_all(void **state)
{
    struct moe_err err;
    uint64_t random = SEED;
    static const char *const stops[] = {NULL, "the", "a b", "."};
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    fixture_pack(pack, 4);
    for (int i = 0; i < N; i++) {
        struct asked *a = &asked[i];
        a->n_prompt = 1 + (uint32_t)(test_random(&random) % (i % 3 ? 20 : MOST_PROMPT));
        if (i % 5 == 3) /* grows into another block */
            a->n_prompt = 250;
        for (uint32_t k = 0; k < a->n_prompt; k++)
            a->prompt[k] = (uint32_t)(test_random(&random) % 4000);
        a->temperature = i % 2 ? 0.9 : 0;
        a->max_tokens = i == 5 ? 0 : i == 6 ? UINT64_MAX : 1 + test_random(&random) % 60;
        a->stops[0] = stops[i % 4];
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    unlink(pack);
    return 0;
}

/* ---- Asking ---- */

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    struct asked *a = ctx;
    moe_buf_append(&a->text, bytes, n);
    return a->refuses ? MOE_ERR_IO : MOE_OK;
}

static void end(void *ctx, const struct moe_generate_result *result)
{
    struct asked *a = ctx;
    assert_false(a->ended);
    a->ended = true;
    a->result = *result;
    if (result->err)
        a->err = *result->err;
}

static struct moe_sampler *sampler_of(const struct asked *a, uint32_t vocab)
{
    struct moe_sampler_options o;
    struct moe_sampler *sampler;
    struct moe_err err;
    o = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    o.temperature = a->temperature;
    o.seed = (uint64_t)(a - asked);
    o.repeat_penalty = 1.2;
    assert_ok(moe_sampler_new(&sampler, &o, vocab, &err), &err);
    return sampler;
}

static struct moe_generate_options options_of(struct asked *a)
{
    return (struct moe_generate_options){
        .max_tokens = a->max_tokens, .stop_texts = a->stops, .text = hear, .ctx = a};
}

static void add(struct moe_generator *b, struct asked *a, uint32_t vocab)
{
    const struct moe_generate_request request = {
        .prompt = a->prompt,
        .n_prompt = a->n_prompt,
        .sampler = sampler_of(a, vocab),
        .options = options_of(a),
        .ended = end,
    };
    struct moe_err err;
    a->ended = false;
    moe_buf_clear(&a->text);
    assert_ok(moe_generator_add(b, &request, &a->id, &err), &err);
}

struct alone {
    struct moe_buf text;
    enum moe_stop_reason why;
    uint64_t n_tokens;
};

static struct moe_engine *open_engine(uint64_t expert_memory, uint32_t n_sequences,
                                      uint32_t kv_blocks)
{
    const struct moe_engine_options o = {
        .expert_memory_bytes = expert_memory,
        .session = {.context = CONTEXT,
                    .n_sequences = n_sequences,
                    .batch = 64,
                    .kv_blocks = kv_blocks},
    };
    struct moe_engine *e;
    struct moe_err err;
    assert_ok(moe_engine_open(&e, pack, &o, NULL, &err), &err);
    return e;
}

static bool idle(const struct moe_generator *b)
{
    return moe_generator_state(b)->n_running == 0 && moe_generator_state(b)->n_waiting == 0;
}

/* Every request by itself. */
static void ask_alone(struct alone out[N])
{
    struct moe_engine *e = open_engine(0, 1, 0);
    struct moe_err err;
    for (int i = 0; i < N; i++) {
        struct asked *a = &asked[i];
        struct moe_generate_options options = options_of(a);
        struct moe_sampler *sampler = sampler_of(a, e->model->config.vocab);
        struct moe_ids history = {0};
        uint64_t before = e->session->stats.generated_tokens;
        for (uint32_t k = 0; k < a->n_prompt; k++)
            assert_ok(moe_ids_push(&history, a->prompt[k], &err), &err);
        moe_buf_clear(&a->text);
        assert_ok(moe_generate(e->session, sampler, &history, &options, &out[i].why, &err), &err);
        out[i].text = a->text;
        a->text = (struct moe_buf){0};
        out[i].n_tokens = e->session->stats.generated_tokens - before;
        moe_ids_release(&history);
        moe_sampler_free(sampler);
    }
    moe_engine_close(e);
}

static void check(const struct asked *a, const struct alone *want)
{
    assert_true(a->ended);
    assert_int_equal(a->result.status, MOE_OK);
    assert_int_equal(a->result.why, want->why);
    assert_int_equal(a->result.n_tokens, want->n_tokens);
    assert_int_equal(a->result.n_prompt, a->n_prompt);
    assert_int_equal(a->text.size, want->text.size);
    if (a->text.size)
        assert_memory_equal(a->text.data, want->text.data, a->text.size);
}

/* ---- Tests ---- */

static void answers_are_as_alone(void **state)
{
    static const struct {
        uint64_t expert_memory;
        uint32_t n_sequences, kv_blocks, prompt_rows;
    } ways[] = {{0, 1, 0, 0}, {0, 3, 0, 16}, {0, 8, 0, 7}, {0, 8, 5, 64}, {4 << 20, 8, 4, 16}};
    struct alone want[N] = {0};
    bool kinds[5] = {false};
    (void)state;
    ask_alone(want);
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w += OF_WAYS) {
        struct moe_engine *e =
            open_engine(ways[w].expert_memory, ways[w].n_sequences, ways[w].kv_blocks);
        struct moe_generator *b;
        struct moe_err err;
        uint32_t most = 0;
        int added = 0, steps = 0;
        assert_ok(
            moe_generator_open(&b, e->session, e->session->n_sequences, ways[w].prompt_rows, &err),
            &err);
        const struct moe_generator_state *now = moe_generator_state(b);
        while (added < N || !idle(b)) {
            for (; added < N && added <= 2 * steps; added++) /* they come over time */
                add(b, &asked[added], e->model->config.vocab);
            moe_generator_step(b);
            steps++;
            most = now->n_running > most ? now->n_running : most;
        }
        uint32_t n = ways[w].n_sequences, blocks = ways[w].kv_blocks; /* each has one at least */
        assert_int_equal(most, blocks && blocks < n ? blocks : n);
        assert_true((now->n_preempted > 0) == (blocks > 0));
        for (int i = 0; i < N; i++) {
            check(&asked[i], &want[i]);
            kinds[want[i].why] = true;
        }
        assert_int_equal(e->session->kv_pool.n_free, e->session->kv_pool.n_blocks);
        moe_generator_close(b);
        moe_engine_close(e);
    }
    assert_true(kinds[MOE_STOP_LENGTH] && kinds[MOE_STOP_TEXT] && kinds[MOE_STOP_CONTEXT]);
    for (int i = 0; i < N; i++) {
        moe_buf_release(&want[i].text);
        moe_buf_release(&asked[i].text);
    }
}

static void some_end_early_and_others_do_not(void **state)
{
    struct moe_engine *e = open_engine(0, 3, 0);
    const uint32_t vocab = e->model->config.vocab;
    struct alone want[N] = {0};
    struct moe_generator *b;
    struct moe_err err;
    (void)state;
    ask_alone(want);
    assert_ok(moe_generator_open(&b, e->session, e->session->n_sequences, 16, &err), &err);
    asked[6].refuses = true;
    for (int i = 0; i < N; i++)
        add(b, &asked[i], vocab);
    moe_generator_step(b);
    moe_generator_cancel(b, asked[0].id);     /* runs */
    moe_generator_cancel(b, asked[N - 1].id); /* waits, as the last */
    moe_generator_cancel(b, 12345);           /* nobody */
    add(b, &asked[N - 1], vocab);
    moe_generator_cancel(b, asked[4].id);
    while (!idle(b))
        moe_generator_step(b);
    asked[6].refuses = false;
    for (int i = 0; i < N; i++) {
        if (i == 0 || i == 4) {
            assert_true(asked[i].ended);
            assert_int_equal(asked[i].result.why, MOE_STOP_USER);
        } else if (i == 6) {
            assert_true(asked[i].ended);
            assert_int_equal(asked[i].result.status, MOE_ERR_IO);
        } else {
            check(&asked[i], &want[i]);
        }
        moe_buf_release(&want[i].text);
        moe_buf_release(&asked[i].text);
    }
    add(b, &asked[1], vocab);
    moe_generator_step(b);
    moe_generator_close(b); /* with one that runs */
    moe_buf_release(&asked[1].text);
    assert_int_equal(e->session->kv_pool.n_free, e->session->kv_pool.n_blocks);
    moe_engine_close(e);
}

/* ---- Texts that begin alike ---- */

enum { SHARED = 280, TAIL = 15, BEGINNINGS = 2 };

/* Texts of a few beginnings, cut anywhere, with ends of their own. */
static void begin_alike(uint64_t seed)
{
    static uint32_t beginnings[BEGINNINGS][SHARED];
    for (int k = 0; k < BEGINNINGS; k++)
        for (uint32_t i = 0; i < SHARED; i++)
            beginnings[k][i] =
                k && i < 100 ? beginnings[0][i] : (uint32_t)(test_random(&seed) % 4000);
    for (int i = 0; i < N; i++) {
        struct asked *a = &asked[i];
        const uint32_t *from = beginnings[test_random(&seed) % BEGINNINGS];
        uint32_t alike = 1 + (uint32_t)(test_random(&seed) % SHARED);
        a->n_prompt = alike + (uint32_t)(test_random(&seed) % TAIL);
        for (uint32_t k = 0; k < a->n_prompt; k++)
            a->prompt[k] = k < alike ? from[k] : (uint32_t)(test_random(&seed) % 4000);
        if (i % 4 == 3) { /* the same once more */
            memcpy(a->prompt, a[-1].prompt, sizeof a->prompt);
            a->n_prompt = a[-1].n_prompt;
        }
        a->max_tokens = 1 + test_random(&seed) % 12;
        a->stops[0] = NULL;
    }
}

static uint64_t rows_computed(const struct moe_engine *e)
{
    return e->session->stats.prefill.tokens + e->session->stats.decode.tokens;
}

/* Every request, some of them cancelled and asked again, as often as `rounds`; the answers are
 * `want`. */
static void ask_alike(const struct alone want[N], uint64_t expert_memory, uint32_t n_sequences,
                      uint32_t kv_blocks, int rounds)
{
    struct moe_engine *e = open_engine(expert_memory, n_sequences, kv_blocks);
    struct moe_generator *b;
    struct moe_err err;
    uint64_t random = 99, n_rows = 0, n_cached = 0;
    const uint32_t vocab = e->model->config.vocab;
    assert_ok(moe_generator_open(&b, e->session, e->session->n_sequences, 32, &err), &err);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < N; i++) {
            add(b, &asked[i], vocab);
            for (uint64_t steps = test_random(&random) % 6; steps > 0; steps--)
                moe_generator_step(b);
            if (test_random(&random) % 3 == 0 && !asked[i].ended) {
                moe_generator_cancel(b, asked[i].id);
                add(b, &asked[i], vocab);
            }
        }
        while (!idle(b))
            moe_generator_step(b);
        for (int i = 0; i < N; i++) {
            check(&asked[i], &want[i]);
            assert_true(asked[i].result.n_cached < asked[i].n_prompt);
            n_cached += asked[i].result.n_cached;
            n_rows += asked[i].n_prompt + want[i].n_tokens;
        }
    }
    assert_true(n_cached > 0);
    if (!kv_blocks)
        assert_true(rows_computed(e) < n_rows * 3 / 4);
    assert_int_equal(e->session->kv_pool.n_free, e->session->kv_pool.n_blocks);
    assert_true(kv_blocks || moe_generator_state(b)->n_preempted == 0);
    moe_generator_close(b);
    moe_engine_close(e);
}

static void what_is_taken_over_changes_nothing(void **state)
{
    struct alone want[N] = {0};
    (void)state;
    begin_alike(4);
    ask_alone(want);
    if (!SANITIZED)
        ask_alike(want, 0, 8, 6, 1);
    ask_alike(want, 0, 4, 0, 1);
    ask_alike(want, 4 << 20, 5, 3, 1);
    for (int i = 0; i < N; i++) {
        moe_buf_release(&want[i].text);
        moe_buf_release(&asked[i].text);
    }
}

/* One request by itself: how many rows were computed for it. */
static uint64_t rows_for(struct moe_engine *e, struct moe_generator *b, struct asked *a)
{
    uint64_t before = rows_computed(e);
    add(b, a, e->model->config.vocab);
    while (!idle(b))
        moe_generator_step(b);
    assert_true(a->ended && a->result.status == MOE_OK);
    moe_buf_release(&a->text);
    return rows_computed(e) - before;
}

static void what_is_known_is_not_computed_again(void **state)
{
    struct moe_engine *e = open_engine(0, 4, 0);
    struct moe_generator *b;
    struct moe_err err;
    uint64_t seed = 8, before;
    struct asked *first = &asked[0], *second = &asked[1];
    (void)state;
    assert_ok(moe_generator_open(&b, e->session, e->session->n_sequences, 0, &err), &err);
    for (int i = 0; i < N; i++)
        asked[i] = (struct asked){.n_prompt = 280, .max_tokens = 3};
    for (uint32_t i = 0; i < 280; i++)
        first->prompt[i] = (uint32_t)(test_random(&seed) % 4000);
    assert_int_equal(rows_for(e, b, first), 280 + 2);
    assert_int_equal(first->result.n_cached, 0);
    assert_int_equal(rows_for(e, b, first), 1 + 2); /* the last token's logits are needed */
    assert_int_equal(first->result.n_cached, 279);
    memcpy(second->prompt, first->prompt, sizeof first->prompt);
    second->prompt[275] ^= 1;
    assert_int_equal(rows_for(e, b, second), 280 - 275 + 2);
    assert_int_equal(second->result.n_cached, 275);
    second->prompt[260] ^= 1; /* four positions of a block: computed anew */
    assert_int_equal(rows_for(e, b, second), 280 - 256 + 2);
    assert_int_equal(second->result.n_cached, 256);
    second->prompt[0] ^= 1;
    assert_int_equal(rows_for(e, b, second), 280 + 2);
    second->prompt[1] ^= 1; /* a longer text, then a choice of four of it at once */
    second->n_prompt = 300;
    before = rows_computed(e);
    for (int i = 1; i < 5; i++) {
        memcpy(asked[i].prompt, second->prompt, sizeof second->prompt);
        asked[i].n_prompt = 300;
        add(b, &asked[i], e->model->config.vocab);
    }
    moe_generator_step(b);
    assert_int_equal(moe_generator_state(b)->n_running, 1); /* the others wait for its text */
    uint32_t n_used = e->session->kv_pool.n_blocks - e->session->kv_pool.n_free;
    for (int i = 0; i < 5; i++)
        moe_generator_step(b);
    assert_int_equal(n_used, 2);
    assert_int_equal(moe_generator_state(b)->n_running, 4);
    n_used = e->session->kv_pool.n_blocks - e->session->kv_pool.n_free;
    assert_int_equal(n_used, 1 + 4); /* the first block is one for all */
    while (!idle(b))
        moe_generator_step(b);
    assert_int_equal(rows_computed(e) - before, 300 + 3 * 1 + 4 * 2);
    for (int i = 1; i < 5; i++) {
        assert_int_equal(asked[i].result.n_cached, i == 1 ? 0 : 299);
        moe_buf_release(&asked[i].text);
    }
    moe_generator_close(b);
    moe_engine_close(e);
}

/* ---- Records of use ---- */

static const struct moe_usage *usage_of(const struct moe_engine *e)
{
    return moe_scheduler_usage(e->experts->scheduler);
}

/* A sequence that begins or ends takes no other's records away. */
static void records_are_of_all_that_run(void **state)
{
    const char *const names[] = {"hobbit", "infinity"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct moe_engine_options o = {
            .expert_memory_bytes = 4 << 20,
            .session = {.context = CONTEXT, .n_sequences = 3, .batch = 64},
        };
        struct moe_engine *e;
        struct moe_generator *b;
        struct moe_err err;
        uint64_t most = 0;
        moe_strategy_find("lru", &o.strategy);
        o.strategy.cache = moe_policy_find(names[k]);
        assert_ok(moe_engine_open(&e, pack, &o, NULL, &err), &err);
        const struct moe_session *s = e->session;
        assert_ok(moe_generator_open(&b, e->session, e->session->n_sequences, 0, &err), &err);
        for (int i = 0; i < 8; i++) {
            asked[i] = (struct asked){.n_prompt = 40, .max_tokens = i ? 3 : 60};
            for (uint32_t n = 0; n < 40; n++)
                asked[i].prompt[n] = (uint32_t)(i * 40) + n;
            add(b, &asked[i], e->model->config.vocab);
        }
        while (!idle(b)) {
            uint64_t recorded = 0;
            moe_generator_step(b);
            for (uint32_t i = 0; i < s->n_sequences; i++)
                recorded += s->sequences[i].n_recorded;
            assert_int_equal(usage_of(e)->token, recorded);
            most = recorded > most ? recorded : most;
            if (!asked[0].ended) /* whatever became of the others */
                assert_true(recorded >= 40 + asked[0].text.size / 16);
        }
        assert_int_equal(usage_of(e)->token, 0);
        assert_true(most >= 3 * 40);
        moe_generator_close(b);
        moe_engine_close(e);
        for (int i = 0; i < 8; i++)
            moe_buf_release(&asked[i].text);
    }
}

static void what_cannot_run_is_refused(void **state)
{
    struct moe_engine *e = open_engine(0, 2, 1);
    struct moe_sampler *sampler = sampler_of(&asked[0], e->model->config.vocab);
    uint32_t ids[CONTEXT + 1] = {0};
    struct moe_generate_request request = {.prompt = ids, .sampler = sampler};
    struct moe_generator *b;
    struct moe_err err;
    uint64_t id;
    (void)state;
    assert_ok(moe_generator_open(&b, e->session, e->session->n_sequences, 0, &err), &err);
    assert_fails(moe_generator_add(b, &request, &id, &err), MOE_ERR_USAGE, "empty", &err);
    request.n_prompt = 257;
    assert_fails(moe_generator_add(b, &request, &id, &err), MOE_ERR_LIMIT, "context of 256", &err);
    request.n_prompt = 2;
    ids[1] = e->model->config.vocab;
    assert_fails(moe_generator_add(b, &request, &id, &err), MOE_ERR_FORMAT, "token", &err);
    assert_true(idle(b));
    moe_generator_close(b);
    moe_sampler_free(sampler);
    moe_engine_close(e);
}

/* ---- States of prompts ---- */

struct states {
    uint32_t hidden, n;
    const float *want; /* [n][hidden] */
    double worst;
};

static void compare_state(void *ctx, uint32_t position, const float *state)
{
    struct states *s = ctx;
    assert_int_equal(position, s->n);
    for (uint32_t i = 0; i < s->hidden; i++) {
        double off = fabs((double)state[i] - s->want[s->n * s->hidden + i]);
        s->worst = off > s->worst ? off : s->worst;
    }
    s->n++;
}

/* A prompt's states are those behind the last norm, in order, all of them also where what was
 * computed before could be taken over, and in however small pieces. */
static void prompts_give_their_states(void **state)
{
    enum { TOKENS = 40, PIECE = 7 };
    struct fixture f;
    struct moe_err err;
    struct moe_generator *b;
    uint32_t ids[TOKENS];
    struct moe_row rows[TOKENS];
    (void)state;
    fixture_open(&f, 4, 2, TOKENS);
    const struct moe_config *c = &f.model->config;
    float *want = moe_alloc((uint64_t)TOKENS * c->hidden, sizeof *want, &err);
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = i * 37 % 4000;
        rows[i] = (struct moe_row){1, i, ids[i], TOKENS};
    }
    assert_ok(moe_forward(f.session, MOE_PREFILL, rows, TOKENS, 0, c->n_layers, NULL, want, &err),
              &err);
    for (uint32_t row = 0; row < TOKENS; row++) {
        float *h = want + (uint64_t)row * c->hidden;
        double squares = 0;
        for (uint32_t i = 0; i < c->hidden; i++)
            squares += (double)h[i] * h[i];
        for (uint32_t i = 0; i < c->hidden; i++)
            h[i] = (float)(h[i] / sqrt(squares / c->hidden + c->norm_eps) * f.model->final_norm[i]);
    }
    assert_ok(moe_generator_open(&b, f.session, 2, PIECE, &err), &err);
    for (int again = 0; again < 2; again++) {
        struct states s = {.hidden = c->hidden, .want = want};
        struct asked a = {.prompt = {0}};
        struct moe_generate_request request = {.prompt = ids,
                                               .n_prompt = TOKENS,
                                               .sampler = sampler_of(&asked[0], c->vocab),
                                               .options = {.state = compare_state, .ctx = &s}};
        assert_ok(moe_generator_add(b, &request, &a.id, &err), &err);
        while (moe_generator_state(b)->n_running || moe_generator_state(b)->n_waiting)
            moe_generator_step(b);
        assert_int_equal(s.n, TOKENS);
        assert_true(s.worst < 1e-4);
    }
    moe_generator_close(b);
    free(want);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_as_alone),
        cmocka_unit_test(some_end_early_and_others_do_not),
        cmocka_unit_test(what_is_taken_over_changes_nothing),
        cmocka_unit_test(what_is_known_is_not_computed_again),
        cmocka_unit_test(records_are_of_all_that_run),
        cmocka_unit_test(what_cannot_run_is_refused),
        cmocka_unit_test(prompts_give_their_states),
    };
    return cmocka_run_group_tests_name("batch", tests, open_all, close_all);
}
