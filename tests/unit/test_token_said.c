/* Log probabilities of tokens: against sums and sorting done here, alone and side by side, whatever
 * the sampler makes of the logits; and asking for them changes no answer. */
#include "model_fixture.h"

#include <math.h>

#include "engine/generate.h"

enum { N_TOKENS = 12, N_TOP = 7, N_TEXTS = 3, BATCH = 16 };

static struct fixture model;

static int open_model(void **state)
{
    struct moe_err err;
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    fixture_open(&model, 4, N_TEXTS, BATCH);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    fixture_close(&model);
    return 0;
}

/* ---- The reference ---- */

/* The natural logarithm of id's share in the sum of exp(logit). */
static double reference(const float *logits, uint32_t vocab, uint32_t id)
{
    long double sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += expl((long double)logits[i] - (long double)logits[id]);
    return (double)-logl(sum);
}

/* Whether `a` comes before `b` among the likeliest. */
static bool is_before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

static void check_against(const struct moe_token_said *said, const float *logits, uint32_t vocab,
                          uint32_t n_top)
{
    assert_int_equal(said->n_top, n_top);
    assert_true(fabs(said->token.log_probability - reference(logits, vocab, said->token.id)) <
                1e-9);
    for (uint32_t i = 0; i < n_top; i++) {
        const struct moe_token_chance *c = &said->top[i];
        uint32_t better = 0;
        for (uint32_t k = 0; k < vocab; k++)
            better += is_before(logits, k, c->id);
        assert_int_equal(better, i);
        assert_true(fabs(c->log_probability - reference(logits, vocab, c->id)) < 1e-9);
    }
}

/* ---- Answers ---- */

struct heard {
    struct moe_buf text;
    struct moe_token_said said[N_TOKENS];
    uint64_t n_said;
    bool fails, ended;
    int status;
};

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    moe_buf_append(&((struct heard *)ctx)->text, bytes, n);
    return MOE_OK;
}

static int hear_token(void *ctx, const struct moe_token_said *said)
{
    struct heard *h = ctx;
    uint32_t n;
    const uint8_t *bytes = moe_tokenizer_bytes(model.model->tokenizer, said->token.id, &n);
    assert_int_equal(said->token.n_bytes, n);
    assert_ptr_equal(said->token.bytes, bytes);
    /* Text that came before is of tokens that were said before. */
    h->said[h->n_said++] = *said;
    return h->fails ? MOE_ERR_IO : MOE_OK;
}

static void end(void *ctx, const struct moe_generate_result *result)
{
    struct heard *h = ctx;
    h->ended = true;
    h->status = result->status;
}

static const struct {
    uint32_t prompt[4];
    double temperature, repeat_penalty;
} texts[N_TEXTS] = {{{5, 17, 300, 4}, 0, 1}, {{9, 9, 9, 9}, 0.7, 1.3}, {{100, 2, 3, 4}, 1, 1}};

static struct moe_sampler *sampler_of(int i)
{
    struct moe_sampler_options o;
    struct moe_sampler *s;
    struct moe_err err;
    o = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    o.temperature = texts[i].temperature;
    o.repeat_penalty = texts[i].repeat_penalty;
    o.top_p = 0.9;
    o.seed = 3;
    assert_ok(moe_sampler_new(&s, &o, model.model->config.vocab, &err), &err);
    return s;
}

static struct moe_generate_options options_of(struct heard *h, bool says)
{
    return (struct moe_generate_options){.max_tokens = N_TOKENS,
                                         .ignore_eos = true,
                                         .text = hear,
                                         .token = says ? hear_token : NULL,
                                         .n_top = N_TOP,
                                         .ctx = h};
}

static int ask_alone(int i, struct heard *h, bool says, struct moe_ids *history)
{
    struct moe_err err;
    struct moe_sampler *sampler = sampler_of(i);
    struct moe_generate_options options = options_of(h, says);
    enum moe_stop_reason why;
    for (int k = 0; k < 4; k++)
        assert_ok(moe_ids_push(history, texts[i].prompt[k], &err), &err);
    int status = moe_generate(model.session, sampler, history, &options, &why, &err);
    moe_sampler_free(sampler);
    return status;
}

static void log_probabilities_are_those_of_the_model(void **state)
{
    (void)state;
    struct moe_err err;
    uint32_t vocab = model.model->config.vocab;
    uint64_t stride = moe_logits_stride(&model.model->config);
    float *logits = calloc(BATCH * stride, sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < N_TEXTS; i++) {
        struct heard h = {0}, silent = {0};
        struct moe_ids history = {0}, same = {0};
        struct moe_row rows[BATCH];
        assert_int_equal(ask_alone(i, &h, true, &history), MOE_OK);
        assert_int_equal(ask_alone(i, &silent, false, &same), MOE_OK);
        assert_int_equal(h.n_said, N_TOKENS);
        assert_int_equal(silent.n_said, 0);
        assert_int_equal(history.n, same.n);
        assert_memory_equal(history.ids, same.ids, same.n * sizeof *same.ids);
        assert_int_equal(h.text.size, silent.text.size);
        /* The whole text in one pass: row k has the logits of id k + 1. */
        uint32_t n_rows = (uint32_t)history.n - 1;
        for (uint32_t k = 0; k < n_rows; k++)
            rows[k] = (struct moe_row){0, k, history.ids[k], n_rows};
        assert_ok(moe_forward(model.session, MOE_PREFILL, rows, n_rows, 0,
                              model.model->config.n_layers, NULL, NULL, &err),
                  &err);
        assert_ok(moe_logits(model.session, 0, n_rows, logits, &err), &err);
        for (uint32_t k = 0; k < N_TOKENS; k++) {
            assert_int_equal(h.said[k].token.id, history.ids[4 + k]);
            check_against(&h.said[k], logits + (3 + k) * stride, vocab, N_TOP);
        }
        moe_ids_release(&history);
        moe_ids_release(&same);
        moe_buf_release(&h.text);
        moe_buf_release(&silent.text);
    }
    free(logits);
}

static void side_by_side_they_are_the_same(void **state)
{
    (void)state;
    struct moe_err err;
    struct heard alone[N_TEXTS] = {0}, heard[N_TEXTS] = {0};
    struct moe_generator *b;
    for (int i = 0; i < N_TEXTS; i++) {
        struct moe_ids history = {0};
        assert_int_equal(ask_alone(i, &alone[i], true, &history), MOE_OK);
        moe_ids_release(&history);
    }
    assert_ok(moe_generator_open(&b, model.session, model.session->n_sequences, 0, &err), &err);
    for (int i = 0; i < N_TEXTS; i++) {
        uint64_t id;
        const struct moe_generate_request request = {.prompt = texts[i].prompt,
                                                     .n_prompt = 4,
                                                     .sampler = sampler_of(i),
                                                     .options = options_of(&heard[i], true),
                                                     .ended = end};
        assert_ok(moe_generator_add(b, &request, &id, &err), &err);
    }
    while (moe_generator_state(b)->n_running + moe_generator_state(b)->n_waiting > 0)
        moe_generator_step(b);
    moe_generator_close(b);
    for (int i = 0; i < N_TEXTS; i++) {
        assert_true(heard[i].ended);
        assert_int_equal(heard[i].status, MOE_OK);
        assert_int_equal(heard[i].n_said, N_TOKENS);
        for (int k = 0; k < N_TOKENS; k++) {
            const struct moe_token_said *one = &alone[i].said[k], *other = &heard[i].said[k];
            assert_int_equal(one->token.id, other->token.id);
            assert_true(one->token.log_probability == other->token.log_probability);
            for (int t = 0; t < N_TOP; t++)
                assert_true(one->top[t].id == other->top[t].id &&
                            one->top[t].log_probability == other->top[t].log_probability);
        }
        moe_buf_release(&heard[i].text);
        moe_buf_release(&alone[i].text);
    }
}

/* Who does not take a token ends the answer before its text. */
static void a_token_that_is_not_taken_ends_the_answer(void **state)
{
    (void)state;
    struct heard h = {.fails = true};
    struct moe_ids history = {0};
    assert_int_equal(ask_alone(0, &h, true, &history), MOE_ERR_IO);
    assert_int_equal(h.n_said, 1);
    assert_int_equal(h.text.size, 0);
    moe_ids_release(&history);
}

static void any_logits_give_finite_figures(void **state)
{
    (void)state;
    static const float logits[][5] = {
        {0, 0, 0, 0, 0},
        {NAN, 1, NAN, 1, -2},
        {NAN, NAN, NAN, NAN, NAN},
        {INFINITY, 3, -INFINITY, INFINITY, 0},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {3e38f, -3e38f, 0, 1, 2},
    };
    static const uint32_t first[][3] = {{0, 1, 2}, {1, 3, 4}, {0, 1, 2},
                                        {0, 3, 1}, {0, 1, 2}, {0, 4, 3}};
    for (size_t i = 0; i < N_ITEMS(logits); i++)
        for (uint32_t id = 0; id < 5; id++) {
            struct moe_token_said said;
            moe_token_say(&said, model.model->tokenizer, logits[i], 5, id, 3);
            assert_true(isfinite(said.token.log_probability) && said.token.log_probability <= 0);
            assert_int_equal(said.n_top, 3);
            for (int k = 0; k < 3; k++) {
                assert_int_equal(said.top[k].id, first[i][k]);
                assert_true(isfinite(said.top[k].log_probability));
            }
            moe_token_say(&said, model.model->tokenizer, logits[i], 5, id, 0);
            assert_int_equal(said.n_top, 0);
            moe_token_say(&said, model.model->tokenizer, logits[i], 5, id, MOE_MAX_TOP_TOKENS + 1);
            assert_int_equal(said.n_top, 5);
        }
    struct moe_token_said said;
    moe_token_say(&said, model.model->tokenizer, logits[0], 5, 2, 1);
    assert_true(fabs(said.token.log_probability + log(5)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_are_those_of_the_model),
        cmocka_unit_test(side_by_side_they_are_the_same),
        cmocka_unit_test(a_token_that_is_not_taken_ends_the_answer),
        cmocka_unit_test(any_logits_give_finite_figures),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
