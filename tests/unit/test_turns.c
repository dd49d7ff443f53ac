/*
 * Turns taken back, dropped and saved, on the bundled model: what a full context goes on with is
 * what a conversation without the dropped turns would compute, and a loaded conversation goes on as
 * the saved one.
 */
#define _DEFAULT_SOURCE /* mkdtemp, strdup */
#include "model_fixture.h"

#include <jansson.h>

#include "engine/conversation.h"

#include "../scratch_dir.h"

static struct fixture fixture;
static struct moe_chat *chatml;

static const char source[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static int open_all(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    fixture_open(&fixture, 4, 1, 64);
    assert_ok(
        moe_chat_open(&chatml, "test", source, strlen(source), fixture.model->tokenizer, &err),
        &err);
    return make_dir(state);
}

static int close_all(void **state)
{
    moe_chat_free(chatml);
    fixture_close(&fixture);
    return remove_dir(state);
}

/* ---- Helpers ---- */

struct talk {
    struct moe_session *session;
    struct moe_conversation c;
    struct moe_sampler *sampler;
    struct moe_buf heard;
    enum moe_stop_reason why;
};

static void begin(struct talk *t, const struct moe_chat *chat, uint32_t context, uint32_t batch,
                  double temperature)
{
    struct moe_err err = {0};
    struct moe_sampler_options sampling;
    const struct moe_session_options options = {
        .context = context, .n_sequences = 1, .batch = batch, .n_snapshots = MOE_SNAPSHOTS};
    *t = (struct talk){.why = MOE_STOP_EOS};
    assert_ok(moe_session_open(&t->session, fixture.model, fixture.experts, &options, &err), &err);
    sampling = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    sampling.temperature = temperature;
    assert_ok(moe_sampler_new(&t->sampler, &sampling, fixture.model->config.vocab, &err), &err);
    assert_ok(moe_conversation_init(&t->c, t->session, chat, &err), &err);
}

static void end(struct talk *t)
{
    moe_conversation_release(&t->c);
    moe_sampler_free(t->sampler);
    moe_session_close(t->session);
    moe_buf_release(&t->heard);
}

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    moe_buf_append(&((struct talk *)ctx)->heard, bytes, n);
    return MOE_OK;
}

static const char *say(struct talk *t, const char *text, uint64_t n, bool shifts)
{
    struct moe_err err = {0};
    const struct moe_generate_options o = {
        .max_tokens = n, .ignore_eos = true, .text = hear, .ctx = t};
    moe_buf_clear(&t->heard);
    if (shifts)
        assert_ok(moe_conversation_shifting(&t->c, text, t->sampler, &o, &t->why, &err), &err);
    else if (text)
        assert_ok(moe_conversation_ask(&t->c, text, t->sampler, &o, &t->why, &err), &err);
    else
        assert_ok(moe_conversation_continue(&t->c, t->sampler, &o, &t->why, &err), &err);
    moe_buf_u8(&t->heard, 0);
    assert_false(t->heard.failed);
    return (const char *)t->heard.data;
}

static void assert_same_context(const struct talk *a, const struct talk *b)
{
    assert_int_equal(a->c.history.n, b->c.history.n);
    assert_memory_equal(a->c.history.ids, b->c.history.ids,
                        a->c.history.n * sizeof *a->c.history.ids);
}

static const char *const QUESTIONS[] = {"Once upon a time there was a girl.", "And then?",
                                        "What did she say, and why?", "Who was there?"};

/* A pass that was stopped while it read the question is the user's doing, and is gone on with. */
static void a_pass_that_is_stopped_is_gone_on_with(void **state)
{
    volatile sig_atomic_t stop = 1;
    const struct moe_progress passes = {.stop = &stop};
    const struct moe_generate_options o = {.max_tokens = 15, .ignore_eos = true};
    struct talk a, b;
    struct moe_err err = {0};
    begin(&a, chatml, 0, 64, 0);
    begin(&b, chatml, 0, 64, 0);
    fixture.model->passes = &passes;
    assert_ok(moe_conversation_ask(&a.c, QUESTIONS[0], a.sampler, &o, &a.why, &err), &err);
    assert_int_equal(a.why, MOE_STOP_USER);
    assert_int_equal(a.session->stats.generated_tokens, 0);
    stop = 0;
    assert_string_equal(say(&a, NULL, 15, false), say(&b, QUESTIONS[0], 15, false));
    assert_same_context(&a, &b);
    fixture.model->passes = NULL;
    end(&a);
    end(&b);
}

/* ---- Saved ---- */

static void a_loaded_conversation_goes_on(void **state)
{
    struct talk a, b;
    struct moe_err err = {0};
    begin(&a, chatml, 0, 64, 0.9);
    begin(&b, chatml, 300, 5, 0.9);
    assert_ok(moe_conversation_system(&a.c, "Be kind", &err), &err);
    say(&a, QUESTIONS[0], 15, false);
    say(&a, QUESTIONS[1], 12, false);
    assert_ok(moe_conversation_save(&a.c, a.sampler, "", in_dir("c"), &err), &err);
    say(&b, "Another conversation", 4, false);
    moe_par_set_threads(1);
    assert_ok(moe_conversation_load(&b.c, b.sampler, "", in_dir("c"), &err), &err);
    assert_true(json_equal(a.c.messages, b.c.messages));
    uint64_t computed = b.session->stats.prompt_tokens, before = b.c.history.n;
    for (size_t i = 2; i < N_ITEMS(QUESTIONS); i++) {
        assert_string_equal(say(&a, QUESTIONS[i], 14, false), say(&b, QUESTIONS[i], 14, false));
        assert_same_context(&a, &b);
        assert_string_equal(say(&a, NULL, 3, false), say(&b, NULL, 3, false));
    }
    assert_true(b.session->stats.prompt_tokens - computed < b.c.history.n - before);
    moe_par_set_threads(2);
    end(&a);
    end(&b);
}

/* A turn that is taken back and asked again computes little: a snapshot stands before its answer.
 */
static void turns_go_back_to_snapshots(void)
{
    struct talk a;
    struct moe_chat *chat;
    struct moe_err err = {0};
    char first[256];
    assert_ok(moe_chat_open(&chat, "test", source, strlen(source), fixture.model->tokenizer, &err),
              &err);
    begin(&a, chat, 256, 64, 0);
    say(&a, QUESTIONS[0], 6, false);
    snprintf(first, sizeof first, "%s", say(&a, QUESTIONS[1], 6, false));
    uint64_t computed = a.session->stats.prompt_tokens;
    assert_true(moe_conversation_undo(&a.c, NULL));
    assert_string_equal(say(&a, QUESTIONS[1], 6, false), first);
    assert_in_range(a.session->stats.prompt_tokens - computed, 1, 2);
    end(&a);
    moe_chat_free(chat);
}

/* The same of a model with recurrent states, which stand behind its last token alone. */
static void states_go_on_too(void **state)
{
    struct fixture bundled = fixture;
    struct moe_err err = {0};
    struct talk a, b;
    const struct moe_convert_options options = pack_options("8", 8);
    snprintf(fixture.path, sizeof fixture.path, "%s", in_dir("states.moe"));
    make_pack(fixture.path, DRAWN "/qwen3-next-a", &options);
    assert_ok(moe_model_open(&fixture.model, fixture.path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&fixture.experts, fixture.model->pack, 0, NULL, NULL, &err),
              &err);
    fixture.session = NULL;
    begin(&a, NULL, 0, 64, 0.9);
    begin(&b, NULL, 200, 5, 0.9);
    say(&a, QUESTIONS[0], 15, false);
    say(&a, NULL, 4, false);
    assert_ok(moe_conversation_save(&a.c, a.sampler, "", in_dir("c"), &err), &err);
    say(&b, "Another conversation", 4, false);
    uint64_t computed = b.session->stats.prompt_tokens;
    assert_ok(moe_conversation_load(&b.c, b.sampler, "", in_dir("c"), &err), &err);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(say(&a, NULL, 14, false), say(&b, NULL, 14, false));
        assert_same_context(&a, &b);
    }
    assert_in_range(b.session->stats.prompt_tokens - computed, 1, 4);
    end(&a);
    end(&b);
    turns_go_back_to_snapshots();
    fixture_close(&fixture);
    fixture = bundled;
}

static void others_conversations_are_refused(void **state)
{
    struct talk a, plain, narrow;
    struct moe_err err = {0};
    begin(&a, chatml, 0, 64, 0);
    begin(&plain, NULL, 0, 64, 0);
    begin(&narrow, chatml, 32, 64, 0);
    say(&a, QUESTIONS[0], 15, false);
    assert_ok(moe_conversation_save(&a.c, NULL, "", in_dir("c"), &err), &err);
    assert_fails(moe_conversation_load(&plain.c, NULL, "", in_dir("c"), &err), MOE_ERR_USAGE,
                 "is a chat, and here plain text", &err);
    assert_fails(moe_conversation_load(&narrow.c, NULL, "", in_dir("c"), &err), MOE_ERR_LIMIT,
                 "does not fit the context of 32", &err);
    assert_fails(moe_conversation_load(&a.c, NULL, "skip", in_dir("c"), &err), MOE_ERR_USAGE,
                 "computed exactly", &err);
    /* A file that ends too early, or is damaged: the conversation goes on, computed again. */
    struct moe_buf file = {0};
    char *want = strdup(say(&a, QUESTIONS[1], 9, false));
    assert_true(moe_conversation_undo(&a.c, NULL));
    assert_ok(moe_file_read_all(in_dir("c"), 1 << 24, &file, &err), &err);
    file.data[file.size - 9] ^= 1;
    assert_ok(moe_file_write_all(in_dir("d"), file.data, file.size, &err), &err);
    assert_fails(moe_conversation_load(&a.c, NULL, "", in_dir("d"), &err), MOE_ERR_FORMAT,
                 "damaged", &err);
    assert_string_equal(say(&a, QUESTIONS[1], 9, false), want);
    moe_buf_release(&file);
    free(want);
    end(&a);
    end(&plain);
    end(&narrow);
}

/* ---- Taken back ---- */

static void an_undone_turn_leaves_nothing(void **state)
{
    struct talk a, b;
    struct moe_err err = {0};
    struct moe_buf question = {0};
    const struct moe_generate_options o = {.max_tokens = 3, .text = hear, .ctx = &a};
    begin(&a, chatml, 0, 64, 0);
    begin(&b, chatml, 0, 64, 0);
    say(&a, QUESTIONS[0], 10, false);
    say(&b, QUESTIONS[0], 10, false);
    say(&a, QUESTIONS[1], 10, false);
    assert_true(moe_conversation_undo(&a.c, &question));
    assert_int_equal(question.size, strlen(QUESTIONS[1]));
    assert_memory_equal(question.data, QUESTIONS[1], question.size);
    assert_true(json_equal(a.c.messages, b.c.messages));
    assert_string_equal(say(&a, QUESTIONS[2], 10, false), say(&b, QUESTIONS[2], 10, false));
    assert_same_context(&a, &b);
    while (moe_conversation_undo(&a.c, NULL))
        ;
    assert_int_equal(moe_conversation_n(&a.c), 0);
    assert_fails(moe_conversation_continue(&a.c, a.sampler, &o, &a.why, &err), MOE_ERR_USAGE,
                 "nothing to continue", &err);
    moe_buf_release(&question);
    end(&a);
    end(&b);
}

/* ---- Dropped ---- */

/* The next logits of a context are those of its tokens computed from nothing. */
static void assert_computed(const struct talk *t)
{
    struct moe_err err = {0};
    struct talk fresh;
    const struct moe_config *c = &fixture.model->config;
    uint64_t stride = moe_logits_stride(c), n = moe_sequence_length(t->session, 0);
    struct moe_row rows[64];
    float *want = calloc(2 * stride, sizeof *want), *got = want + stride;
    begin(&fresh, chatml, 0, 64, 0);
    assert_true(n <= 64);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, i, t->c.history.ids[i], 0};
    assert_ok(moe_forward(fresh.session, MOE_PREFILL, rows, (uint32_t)n, 0, c->n_layers, NULL, NULL,
                          &err),
              &err);
    assert_ok(moe_logits(fresh.session, (uint32_t)n - 1, 1, want, &err), &err);
    assert_ok(
        moe_forward(t->session, MOE_DECODE, &rows[n - 1], 1, 0, c->n_layers, NULL, NULL, &err),
        &err);
    assert_ok(moe_logits(t->session, 0, 1, got, &err), &err);
    assert_memory_equal(want, got, c->vocab * sizeof *want);
    free(want);
    end(&fresh);
}

/* A question that does not fit has the oldest turns dropped, never the system's text; the answer is
 * that of a conversation without them. */
static void a_question_drops_old_turns(void **state)
{
    struct talk a, b;
    struct moe_err err = {0};
    begin(&a, chatml, 64, 64, 0);
    begin(&b, chatml, 0, 64, 0);
    assert_ok(moe_conversation_system(&a.c, "Be kind", &err), &err);
    assert_ok(moe_conversation_system(&b.c, "Be kind", &err), &err);
    say(&a, QUESTIONS[0], 14, true);
    assert_int_equal(a.session->stats.context_shifts, 0);
    say(&a, QUESTIONS[2], 4, true);
    const char *got = say(&a, QUESTIONS[3], 4, true);
    assert_true(a.session->stats.context_shifts > 0);
    assert_true(a.session->stats.dropped_tokens > 0);
    assert_string_equal(moe_conversation_system_text(&a.c), "Be kind");
    assert_true(moe_conversation_n(&a.c) < 7);
    /* The other asks what is left, with the same answers. */
    json_t *left = json_deep_copy(a.c.messages);
    json_array_remove(left, json_array_size(left) - 1);
    assert_ok(moe_conversation_set(&b.c, left, &err), &err);
    const struct moe_generate_options o = {
        .max_tokens = 4, .ignore_eos = true, .text = hear, .ctx = &b};
    assert_ok(moe_conversation_answer(&b.c, b.sampler, &o, &b.why, &err), &err);
    moe_buf_u8(&b.heard, 0);
    assert_string_equal(got, (const char *)b.heard.data);
    json_decref(left);
    assert_computed(&a);
    end(&a);
    end(&b);
}

/* An answer of any length; what is in the context then is what would be computed of it. */
static void an_answer_outlives_the_context(void **state)
{
    static const uint32_t contexts[] = {40, 64};
    for (size_t i = 0; i < N_ITEMS(contexts); i++)
        for (int chat = 0; chat < 2; chat++) {
            struct talk a;
            begin(&a, chat ? chatml : NULL, contexts[i], 16, 0);
            say(&a, QUESTIONS[1], 5, true);
            say(&a, QUESTIONS[0], 80, true);
            assert_int_equal(a.why, MOE_STOP_LENGTH);
            assert_int_equal(a.session->stats.generated_tokens, 85);
            assert_true(a.session->stats.context_shifts > 0);
            assert_true(a.c.history.n <= contexts[i] + 1);
            assert_computed(&a);
            if (chat) {
                assert_int_equal(moe_conversation_n(&a.c), 2);
                const char *kept = moe_chat_text(json_array_get(a.c.messages, 1));
                assert_string_equal(kept, (const char *)a.heard.data);
            }
            say(&a, NULL, 12, true); /* and further */
            assert_int_equal(a.why, MOE_STOP_LENGTH);
            assert_computed(&a);
            end(&a);
        }
}

/* Without the option it ends as before, and a question that fits no context is refused. */
static void nothing_is_dropped_unasked(void **state)
{
    struct talk a;
    struct moe_err err = {0};
    const struct moe_generate_options o = {.max_tokens = 3, .text = hear, .ctx = &a};
    begin(&a, chatml, 40, 16, 0);
    say(&a, QUESTIONS[0], 50, false);
    assert_int_equal(a.why, MOE_STOP_CONTEXT);
    assert_int_equal(a.session->stats.context_shifts, 0);
    assert_fails(moe_conversation_ask(&a.c, QUESTIONS[1], a.sampler, &o, &a.why, &err),
                 MOE_ERR_LIMIT, "does not fit the context of 40", &err);
    assert_int_equal(moe_conversation_n(&a.c), 2);
    char *whole = strdup(moe_chat_text(json_array_get(a.c.messages, 1)));
    say(&a, NULL, 5, true); /* asked for, the answer goes on */
    assert_int_equal(a.why, MOE_STOP_LENGTH);
    assert_int_equal(a.session->stats.context_shifts, 1);
    moe_buf_release(&a.heard);
    const char *kept = moe_chat_text(json_array_get(a.c.messages, 1));
    assert_true(strlen(kept) > strlen(whole) && strncmp(kept, whole, strlen(whole)) == 0);
    free(whole);
    char question[600];
    memset(question, 'z', sizeof question);
    question[sizeof question - 1] = 0;
    assert_fails(moe_conversation_shifting(&a.c, question, a.sampler, &o, &a.why, &err),
                 MOE_ERR_LIMIT, "does not fit", &err);
    assert_int_equal(moe_conversation_n(&a.c), 2);
    say(&a, QUESTIONS[1], 3, true);
    assert_int_equal(moe_conversation_n(&a.c), 2);
    end(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pass_that_is_stopped_is_gone_on_with),
        cmocka_unit_test(a_loaded_conversation_goes_on),
        cmocka_unit_test(states_go_on_too),
        cmocka_unit_test(others_conversations_are_refused),
        cmocka_unit_test(an_undone_turn_leaves_nothing),
        cmocka_unit_test(a_question_drops_old_turns),
        cmocka_unit_test(an_answer_outlives_the_context),
        cmocka_unit_test(nothing_is_dropped_unasked),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
