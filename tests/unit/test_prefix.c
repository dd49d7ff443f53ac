/*
 * Prefix language models (GPTSAN): prompts whose rows see each other, norms after blocks, learnt
 * positions, the bypass, rows that pass experts without room. On random small models what is
 * computed is what the description means (naive_model.h), bit for bit however.
 */
#include "engine/generate.h"
#include "infer/forward.h"

#include "random_fixture.h"

enum { N_MODELS = SANITIZED ? 60 : 100, N_COMPUTED = SANITIZED ? 12 : 40, N_TEXTS = 3, N_IDS = 40 };

static uint32_t ids[N_TEXTS][N_IDS], n_prompt[N_TEXTS], prefix[N_TEXTS];

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

static void open_all(struct opened *o, uint32_t context)
{
    const struct moe_session_options options = {
        .context = context, .n_sequences = N_TEXTS, .batch = N_TEXTS * N_IDS};
    open_pack(o, 0, &options);
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
        moe_sequence_rewind(s, (uint32_t)t, 0);
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

static void agrees_with_the_naive_model(void **state)
{
    uint32_t n_compared = 0, n_over = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= N_MODELS; seed++) {
        struct random_model m;
        struct naive want[N_TEXTS];
        struct opened f;
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
                fail_msg("%s: logits differ by %g, %u choices", describe(&m.c, seed),
                         most / largest, w.n_differing);
            assert_int_equal(f.session->stats.prefill.over_capacity +
                                 f.session->stats.decode.over_capacity,
                             over);
        }
        free_all(logits);
        for (int t = 0; t < N_TEXTS; t++)
            naive_free(&want[t]);
        close_opened(&f);
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
            fail_msg("%s: %s: text %d differs", describe(&m->c, seed), what, t);
    free_all(got);
}

static void nothing_else_changes_a_result(void **state)
{
    static const int bits[] = {32, 8, 4};
    struct moe_err err = {0};
    for (uint64_t seed = 1; seed <= N_COMPUTED; seed++) {
        struct random_model m;
        struct opened f;
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
        close_opened(&f);
        random_model_free(&m);
    }
}

static void prompts_stand_in_one_pass(void **state)
{
    struct moe_err err = {0};
    struct random_model m;
    struct opened f;
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
    assert_int_equal(moe_sequence_known(s, 0, ids[0], 12), 0);
    assert_ok(moe_sequence_sync(s, 1, ids[0], 12, 12, &n_known, &err), &err);
    assert_int_equal(n_known, 0);
    moe_sequence_rewind(s, 0, 0); /* has no prompt any more */
    assert_ok(moe_forward(s, MOE_PREFILL, rows, 7, 0, m.c.n_layers, NULL, NULL, &err), &err);
    close_opened(&f);
    random_model_free(&m);
}

/* ---- Side by side ---- */

enum { LONG = 600, N_ASKED = 12, MOST_PROMPT = 200, MOST_ANSWER = 330 };

/* A request, and the ids of its answer: of the batch, and of the session alone. */
struct asked {
    uint32_t prompt[MOST_PROMPT], n_prompt, got[MOST_ANSWER], n_got, want[MOST_ANSWER], n_want;
    struct moe_generate_options options;
    bool drawn, ended;
};

static int hear(void *ctx, const struct moe_token_said *said)
{
    struct asked *a = ctx;
    a->got[a->n_got++] = said->token.id;
    return MOE_OK;
}

static void end(void *ctx, const struct moe_generate_result *result)
{
    struct asked *a = ctx;
    assert_int_equal(result->status, MOE_OK);
    assert_int_equal(result->n_cached, 0);
    a->ended = true;
}

static struct moe_sampler *sampler_of(const struct asked *a, uint32_t vocab)
{
    struct moe_err err = {0};
    struct moe_sampler *sampler;
    struct moe_sampler_options how;
    how = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    how.temperature = a->drawn ? 0.9 : 0;
    how.seed = a->n_prompt;
    assert_ok(moe_sampler_new(&sampler, &how, vocab, &err), &err);
    return sampler;
}

/* Of a model whose context has several blocks of the KV cache. */
static void ask(struct asked *asked, struct random_model *m, uint64_t seed)
{
    uint64_t random = seed;
    *m = (struct random_model){0};
    random_prefix_config(&m->c, &random);
    m->c.context_max = LONG;
    random_model_fill(m, random);
    random_model_write(m, 8, path);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        struct asked *a = &asked[i];
        *a = (struct asked){.n_prompt = 1 + random_below(&random, i % 4 ? 40 : MOST_PROMPT)};
        for (uint32_t k = 0; k < a->n_prompt; k++)
            a->prompt[k] = random_below(&random, m->c.vocab);
        if (i % 4 == 3) { /* begins as another does, which is no help */
            memcpy(a->prompt, a[-1].prompt, sizeof a->prompt);
            a->n_prompt = a[-1].n_prompt;
        }
        a->drawn = i % 2;
        a->options = (struct moe_generate_options){
            .max_tokens = i % 3 ? 20 : MOST_ANSWER, .ignore_eos = true, .token = hear, .ctx = a};
    }
}

static void answer_alone(struct moe_session *s, struct asked *a)
{
    struct moe_err err = {0};
    struct moe_sampler *sampler = sampler_of(a, s->model->config.vocab);
    struct moe_ids history = {0};
    enum moe_stop_reason why;
    for (uint32_t k = 0; k < a->n_prompt; k++)
        assert_ok(moe_ids_push(&history, a->prompt[k], &err), &err);
    assert_ok(moe_generate(s, sampler, &history, &a->options, &why, &err), &err);
    memcpy(a->want, a->got, sizeof a->got);
    a->n_want = a->n_got;
    assert_int_equal(a->n_want, a->options.max_tokens);
    moe_ids_release(&history);
    moe_sampler_free(sampler);
}

static void check_batch(struct moe_session *s, struct asked *asked, uint32_t prompt_rows,
                        uint64_t *n_preempted)
{
    struct moe_err err = {0};
    struct moe_generator *b;
    uint64_t id;
    uint32_t n_added = 0;
    assert_ok(moe_generator_open(&b, s, s->n_sequences, prompt_rows, &err), &err);
    const struct moe_generator_state *now = moe_generator_state(b);
    while (n_added < N_ASKED || now->n_running + now->n_waiting > 0) {
        for (int i = 0; i < 2 && n_added < N_ASKED; i++) { /* they come over time */
            struct asked *a = &asked[n_added++];
            const struct moe_generate_request request = {.prompt = a->prompt,
                                                         .n_prompt = a->n_prompt,
                                                         .sampler =
                                                             sampler_of(a, s->model->config.vocab),
                                                         .options = a->options,
                                                         .ended = end};
            a->ended = false;
            a->n_got = 0;
            assert_ok(moe_generator_add(b, &request, &id, &err), &err);
        }
        moe_generator_step(b);
    }
    for (int i = 0; i < N_ASKED; i++) {
        assert_true(asked[i].ended);
        assert_int_equal(asked[i].n_got, asked[i].n_want);
        assert_memory_equal(asked[i].got, asked[i].want, asked[i].n_want * sizeof *asked[i].want);
    }
    *n_preempted += now->n_preempted;
    moe_generator_close(b);
}

/* A prompt too long is refused as alone; one that fills the context is not. */
static void check_limits(struct moe_session *s, uint32_t vocab)
{
    static uint32_t prompt[LONG + 1];
    struct asked a = {.n_prompt = LONG + 1};
    struct moe_err err = {0};
    struct moe_generator *b;
    struct moe_generate_request request = {.prompt = prompt,
                                           .n_prompt = LONG + 1,
                                           .sampler = sampler_of(&a, vocab),
                                           .options = {.ctx = &a},
                                           .ended = end};
    uint64_t id;
    assert_ok(moe_generator_open(&b, s, s->n_sequences, 16, &err), &err);
    assert_fails(moe_generator_add(b, &request, &id, &err), MOE_ERR_LIMIT,
                 "the prompt of 601 tokens does not fit the context of 600", &err);
    request.n_prompt = LONG;
    assert_ok(moe_generator_add(b, &request, &id, &err), &err);
    while (!a.ended)
        moe_generator_step(b);
    moe_generator_close(b);
}

/* However many run, in pieces of whatever size, also where their blocks are taken away and prompt
 * and answer are computed again. */
static void answers_side_by_side_are_those_alone(void **state)
{
    static const struct {
        uint32_t n_sequences, kv_blocks, prompt_rows;
        bool cached;
    } ways[] = {{1, 0, 0, false},
                {3, 0, 16, false},
                {5, 6, 7, false},
                {N_ASKED, 4, 0, false},
                {4, 5, 50, true}};
    static struct asked asked[N_ASKED];
    struct moe_err err = {0};
    uint64_t n_preempted = 0;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct random_model m;
        struct opened f;
        const struct moe_session_options alone = {.context = LONG};
        ask(asked, &m, seed);
        open_pack(&f, 0, &alone);
        for (int i = 0; i < N_ASKED; i++)
            answer_alone(f.session, &asked[i]);
        check_limits(f.session, m.c.vocab);
        for (size_t w = 0; w < N_ITEMS(ways); w++) {
            const struct moe_session_options how = {.context = LONG,
                                                    .n_sequences = ways[w].n_sequences,
                                                    .kv_blocks = ways[w].kv_blocks,
                                                    .batch = 32};
            const struct moe_cache_options cache = {
                .cache_bytes = 2 * moe_cache_slot_bytes(f.model->pack, 0),
                .n_working = 2,
                .loader = {.verify = true},
            };
            const struct moe_pack *pack = f.model->pack;
            moe_session_close(f.session);
            moe_experts_close(f.experts);
            assert_ok(ways[w].cached
                          ? moe_experts_open_cached(&f.experts, pack, m.c.top_k, &cache, NULL, &err)
                          : moe_experts_open_resident(&f.experts, pack, 0, NULL, NULL, &err),
                      &err);
            open_session(&f, &how);
            check_batch(f.session, asked, ways[w].prompt_rows, &n_preempted);
        }
        close_opened(&f);
        random_model_free(&m);
    }
    assert_true(n_preempted > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_naive_model),
        cmocka_unit_test(nothing_else_changes_a_result),
        cmocka_unit_test(prompts_stand_in_one_pass),
        cmocka_unit_test(answers_side_by_side_are_those_alone),
    };
    return cmocka_run_group_tests_name("prefix", tests, set_up, tear_down);
}
