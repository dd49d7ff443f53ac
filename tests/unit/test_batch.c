/*
 * Answers side by side: each is what it would be alone, whatever runs beside it, however little
 * room there is, wherever experts are; and what ends one does not end others.
 */
#include "model_fixture.h"

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/generate.h"

enum { N = 14, CONTEXT = 512, MOST_PROMPT = 300, SEED = 11 };

static char pack[128];

struct asked {
    uint32_t prompt[MOST_PROMPT];
    uint32_t n_prompt;
    double temperature;
    uint64_t max_tokens;
    const char *stops[2];
    bool refuses;        /* takes no text */
    struct moe_buf text; /* of the batch */
    struct moe_batch_result result;
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

static void end(void *ctx, const struct moe_batch_result *result)
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
    moe_sampler_options_default(&o);
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

static void add(struct moe_batch *b, struct asked *a, uint32_t vocab)
{
    const struct moe_batch_request request = {
        .prompt = a->prompt,
        .n_prompt = a->n_prompt,
        .sampler = sampler_of(a, vocab),
        .options = options_of(a),
        .ended = end,
    };
    struct moe_err err;
    a->ended = false;
    moe_buf_clear(&a->text);
    assert_ok(moe_batch_add(b, &request, &a->id, &err), &err);
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

static bool idle(const struct moe_batch *b)
{
    return moe_batch_state(b)->n_running == 0 && moe_batch_state(b)->n_waiting == 0;
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
        uint64_t n_done = 0, before = e->session->stats.generated_tokens;
        for (uint32_t k = 0; k < a->n_prompt; k++)
            assert_ok(moe_ids_push(&history, a->prompt[k], &err), &err);
        moe_buf_clear(&a->text);
        assert_ok(moe_generate(e->session, sampler, &history, &n_done, &options, &out[i].why, &err),
                  &err);
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
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        struct moe_engine *e =
            open_engine(ways[w].expert_memory, ways[w].n_sequences, ways[w].kv_blocks);
        struct moe_batch *b;
        struct moe_err err;
        uint32_t most = 0;
        int added = 0, steps = 0;
        assert_ok(moe_batch_open(&b, e->session, ways[w].prompt_rows, &err), &err);
        const struct moe_batch_state *now = moe_batch_state(b);
        while (added < N || !idle(b)) {
            for (; added < N && added <= 2 * steps; added++) /* they come over time */
                add(b, &asked[added], e->model->config.vocab);
            moe_batch_step(b);
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
        moe_batch_close(b);
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
    struct moe_batch *b;
    struct moe_err err;
    (void)state;
    ask_alone(want);
    assert_ok(moe_batch_open(&b, e->session, 16, &err), &err);
    asked[6].refuses = true;
    for (int i = 0; i < N; i++)
        add(b, &asked[i], vocab);
    moe_batch_step(b);
    moe_batch_cancel(b, asked[0].id);     /* runs */
    moe_batch_cancel(b, asked[N - 1].id); /* waits, as the last */
    moe_batch_cancel(b, 12345);           /* nobody */
    add(b, &asked[N - 1], vocab);
    moe_batch_cancel(b, asked[4].id);
    while (!idle(b))
        moe_batch_step(b);
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
    moe_batch_step(b);
    moe_batch_close(b); /* with one that runs */
    moe_buf_release(&asked[1].text);
    assert_int_equal(e->session->kv_pool.n_free, e->session->kv_pool.n_blocks);
    moe_engine_close(e);
}

static void what_cannot_run_is_refused(void **state)
{
    struct moe_engine *e = open_engine(0, 2, 1);
    struct moe_sampler *sampler = sampler_of(&asked[0], e->model->config.vocab);
    uint32_t ids[CONTEXT + 1] = {0};
    struct moe_batch_request request = {.prompt = ids, .sampler = sampler};
    struct moe_batch *b;
    struct moe_err err;
    uint64_t id;
    (void)state;
    assert_ok(moe_batch_open(&b, e->session, 0, &err), &err);
    assert_fails(moe_batch_add(b, &request, &id, &err), MOE_ERR_USAGE, "empty", &err);
    request.n_prompt = 257;
    assert_fails(moe_batch_add(b, &request, &id, &err), MOE_ERR_LIMIT, "context of 256", &err);
    request.n_prompt = 2;
    ids[1] = e->model->config.vocab;
    assert_fails(moe_batch_add(b, &request, &id, &err), MOE_ERR_FORMAT, "token", &err);
    assert_true(idle(b));
    moe_batch_close(b);
    moe_sampler_free(sampler);
    moe_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_as_alone),
        cmocka_unit_test(some_end_early_and_others_do_not),
        cmocka_unit_test(what_cannot_run_is_refused),
    };
    return cmocka_run_group_tests_name("batch", tests, open_all, close_all);
}
