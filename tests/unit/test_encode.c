/*
 * Models with an encoder, as the engine runs them: greedy answers, searches with beams and pooled
 * output of the parity fixtures; conversations that remember no source; sources that do not fit.
 */
#include <jansson.h>
#include <math.h>

#include "model_fixture.h"

#include "engine/conversation.h"
#include "engine/encode.h"
#include "engine/generate.h"
#include "engine/prompt.h"
#include "tune/documents.h"

static const char *const fixtures[] = {"switch-a", "switch-b", "switch-c", "nllb-a", "nllb-b"};

enum { MOST = 256, CONTEXT = 192 };

struct encoder {
    struct fixture f;
    json_t *reference;
};

static int open_all(void **state)
{
    struct moe_err err = {0};
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    return 0;
}

static void open_fixture(struct encoder *e, const char *name, uint32_t n_sequences)
{
    struct moe_err err = {0};
    json_error_t error;
    char path[128];
    const struct moe_convert_options options = pack_options("32", 32);
    snprintf(e->f.path, sizeof e->f.path, "/tmp/moe-encode-%d.moe", (int)getpid());
    snprintf(path, sizeof path, DRAWN "/%s", name);
    make_pack(e->f.path, path, &options);
    assert_ok(moe_model_open(&e->f.model, e->f.path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&e->f.experts, e->f.model->pack, 0, NULL, NULL, &err),
              &err);
    const struct moe_session_options so = {
        .context = CONTEXT, .n_sequences = n_sequences, .n_sources = 1, .batch = 8};
    assert_ok(moe_session_open(&e->f.session, e->f.model, e->f.experts, &so, &err), &err);
    snprintf(path, sizeof path, DRAWN "/%s/reference.json", name);
    e->reference = json_load_file(path, 0, &error);
    assert_non_null(e->reference);
}

static void close_fixture(struct encoder *e)
{
    json_decref(e->reference);
    fixture_close(&e->f);
}

static uint32_t read_ids(const json_t *list, uint32_t ids[MOST])
{
    size_t n = json_array_size(list);
    assert_in_range(n, 1, MOST);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

/* ---- Answers ---- */

/* Generates from a source and compares with the ids that are wanted, of which the last may be one
 * that ends; behind a language's token, if there is one (0: not). */
static void check_answer(struct moe_session *s, struct moe_generate_options *o, uint32_t language,
                         struct moe_sampler *sampler, const json_t *wanted)
{
    const struct moe_config *c = &s->model->config;
    uint32_t want[MOST], n = read_ids(wanted, want);
    enum moe_stop_reason why;
    struct moe_err err = {0};
    struct moe_ids history = {0};
    bool ended = !o->ignore_eos && moe_config_is_eos(c, want[n - 1]);
    s->stats = (struct moe_stats){0};
    assert_ok(moe_ids_push(&history, c->decoder_start, &err), &err);
    if (language)
        assert_ok(moe_ids_push(&history, language, &err), &err);
    const uint64_t given = history.n;
    assert_ok(moe_generate(s, sampler, &history, o, &why, &err), &err);
    assert_int_equal(history.n - given, n - ended);
    assert_memory_equal(history.ids + given, want, (n - ended) * sizeof *want);
    assert_int_equal(why, ended ? MOE_STOP_EOS : MOE_STOP_LENGTH);
    assert_int_equal(s->stats.prompt_tokens, o->n_source);
    assert_int_equal(s->stats.encode.tokens, o->n_source);
    assert_int_equal(s->stats.prefill.tokens, language ? 2 : 0);
    moe_ids_release(&history);
}

static void check_beams(struct moe_session *s, const json_t *search, const uint32_t *source,
                        uint32_t n_source, uint32_t language)
{
    const json_t *early = json_object_get(search, "early_stopping");
    struct moe_generate_options o = {
        .source = source,
        .n_source = n_source,
        .beams = {.n = (uint32_t)json_integer_value(json_object_get(search, "num_beams")),
                  .length_penalty = json_number_value(json_object_get(search, "length_penalty")),
                  .early = json_is_true(early)     ? MOE_EARLY_YES
                           : json_is_string(early) ? MOE_EARLY_NEVER
                                                   : MOE_EARLY_NO},
        .max_tokens = (uint64_t)json_integer_value(json_object_get(search, "max_new_tokens")),
    };
    double score = json_number_value(json_array_get(json_object_get(search, "scores"), 0));
    check_answer(s, &o, language, NULL, json_array_get(json_object_get(search, "sequences"), 0));
    if (fabs(s->stats.beam_score - score) > 1e-4 * fmax(1, fabs(score)))
        fail_msg("a score of %g instead of %g", s->stats.beam_score, score);
}

static struct moe_sampler *greedy(const struct moe_model *m)
{
    struct moe_err err = {0};
    struct moe_sampler *sampler;
    struct moe_sampler_options o;
    o = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    o.temperature = 0;
    assert_ok(moe_sampler_new(&sampler, &o, m->config.vocab, &err), &err);
    return sampler;
}

static void answers_are_those_of_transformers(void **state)
{
    uint32_t ids[MOST];
    (void)state;
    for (size_t k = 0; k < N_ITEMS(fixtures); k++) {
        struct encoder e;
        open_fixture(&e, fixtures[k], 4);
        struct moe_sampler *sampler = greedy(e.f.model);
        const json_t *source, *search;
        size_t i, j, n_searches = 0;
        json_array_foreach(json_object_get(e.reference, "sources"), i, source)
        {
            uint32_t n = read_ids(json_object_get(source, "ids"), ids);
            const json_t *wanted = json_object_get(source, "greedy");
            struct moe_generate_options o = {.source = ids,
                                             .n_source = n,
                                             .ignore_eos = true,
                                             .max_tokens = json_array_size(wanted)};
            check_answer(e.f.session, &o, 0, sampler, wanted);
            json_array_foreach(json_object_get(source, "beams"), j, search)
            {
                check_beams(e.f.session, search, ids, n, 0);
                n_searches++;
            }
            const json_t *translated = json_object_get(source, "translated");
            if (!translated)
                continue;
            uint32_t to = (uint32_t)json_integer_value(json_object_get(translated, "language"));
            wanted = json_object_get(translated, "greedy");
            o.max_tokens = json_array_size(wanted);
            check_answer(e.f.session, &o, to, sampler, wanted);
            json_array_foreach(json_object_get(translated, "beams"), j, search)
                check_beams(e.f.session, search, ids, n, to);
        }
        assert_true(n_searches > 20);
        moe_sampler_free(sampler);
        close_fixture(&e);
    }
}

/* The languages of a pair stand in its ids; the last line has one that there is not. */
struct wanted_languages {
    const struct moe_tokenizer *tok;
    uint32_t start; /* of an answer in no language */
};
static int check_languages(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    const struct wanted_languages *w = ctx;
    const struct moe_tokenizer *tok = w->tok;
    (void)err;
    bool said = pair->n_source == 7; /* "the thing" */
    assert_int_equal(pair->source[0], moe_tokenizer_find(tok, said ? "fra_Latn" : "eng_Latn"));
    assert_int_equal(pair->target[0], 2);
    assert_int_equal(pair->target[1], said ? moe_tokenizer_find(tok, "zho_Hans") : w->start);
    return MOE_OK;
}

static void pairs_are_in_their_languages(const struct moe_model *m, uint32_t answer_start)
{
    struct wanted_languages w = {m->tokenizer, answer_start};
    char path[64];
    struct moe_err err = {0};
    snprintf(path, sizeof path, "/tmp/moe-encode-%d.jsonl", (int)getpid());
    FILE *f = fopen(path, "w");
    fputs("{\"source\": \"the thing\", \"target\": \"in\", \"source_language\": \"fra_Latn\", "
          "\"target_language\": \"zho_Hans\"}\n{\"source\": \"the\", \"target\": \"in\"}\n"
          "{\"source\": \"the\", \"target\": \"in\", \"source_language\": null, "
          "\"target_language\": null}\n"
          "{\"source\": \"the\", \"target\": \"in\", \"target_language\": \"</s>\"}\n",
          f);
    assert_int_equal(fclose(f), 0);
    const struct moe_documents d = {.tokenizer = m->tokenizer,
                                    .max_tokens = 64,
                                    .pairs = true,
                                    .decoder_start = m->config.decoder_start,
                                    .answer_start = answer_start};
    if (!answer_start)
        w.start = (uint32_t)moe_tokenizer_find(m->tokenizer, "eng_Latn");
    assert_fails(moe_pairs_each(&d, path, check_languages, &w, &err), MOE_ERR_FORMAT,
                 "pair 4: '</s>' is no language of the model", &err);
    unlink(path);
}

/* A source's language stands where the tokenizer's files have their own. */
static void sources_are_in_their_language(void **state)
{
    struct encoder e;
    struct moe_err err = {0};
    struct moe_ids ids = {0};
    uint32_t want[MOST], target, id;
    const json_t *text;
    size_t i;
    (void)state;
    open_fixture(&e, "nllb-a", 1);
    const struct moe_model *m = e.f.model;
    json_array_foreach(json_object_get(e.reference, "texts"), i, text)
    {
        const char *said = json_string_value(json_object_get(text, "text"));
        const struct moe_languages languages = {
            json_string_value(json_object_get(text, "language")), i % 2 ? "zho_Hans" : NULL};
        uint32_t n = read_ids(json_object_get(text, "ids"), want);
        ids.n = 0;
        assert_ok(moe_prompt_source(m, &languages, said, strlen(said), &ids, &target, &err), &err);
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.ids, want, n * sizeof *want);
        assert_int_equal(target, i % 2 ? moe_tokenizer_find(m->tokenizer, "zho_Hans") : 0);
    }
    assert_int_equal(i, 6);
    pairs_are_in_their_languages(m, 0);
    pairs_are_in_their_languages(m, (uint32_t)moe_tokenizer_find(m->tokenizer, "deu_Latn"));
    static const char *const none[] = {"the",    "fra", "</s>",      "<pad>",    "<unk>",
                                       "<mask>", "<s>", "fra_Latn ", "fra_Cyrl", ""};
    for (i = 0; i < sizeof none / sizeof *none; i++) {
        assert_fails(moe_prompt_language(m, none[i], &id, &err), MOE_ERR_USAGE,
                     "the model has no language '", &err);
        assert_non_null(strstr(err.text, none[i]));
    }
    moe_ids_release(&ids);
    close_fixture(&e);
    open_fixture(&e, "switch-a", 1);
    assert_fails(moe_prompt_language(e.f.model, "eng_Latn", &id, &err), MOE_ERR_UNSUPPORTED,
                 "texts begin with no language", &err);
    close_fixture(&e);
}

static void pooled_output_is_that_of_transformers(void **state)
{
    uint32_t ids[MOST];
    float mean[MOST], first[MOST], last[MOST];
    struct moe_err err = {0};
    (void)state;
    for (size_t k = 0; k < N_ITEMS(fixtures); k++) {
        struct encoder e;
        open_fixture(&e, fixtures[k], 1);
        struct moe_session *s = e.f.session;
        const json_t *source;
        size_t i;
        json_array_foreach(json_object_get(e.reference, "sources"), i, source)
        {
            uint32_t n = read_ids(json_object_get(source, "ids"), ids);
            const json_t *pooled = json_object_get(source, "pooled");
            const json_t *rows = json_object_get(source, "encoder");
            const json_t *which = json_object_get(source, "rows");
            size_t n_rows = json_array_size(rows), width = json_array_size(pooled);
            assert_int_equal(width, s->model->config.hidden);
            assert_int_equal(json_integer_value(json_array_get(which, n_rows - 1)), n - 1);
            assert_ok(moe_encode_pooled(s, ids, n, MOE_POOL_MEAN, mean, &err), &err);
            assert_ok(moe_encode_pooled(s, ids, n, MOE_POOL_FIRST, first, &err), &err);
            assert_ok(moe_encode_pooled(s, ids, n, MOE_POOL_LAST, last, &err), &err);
            for (size_t x = 0; x < width; x++) {
                const struct {
                    float got;
                    const json_t *row;
                } pairs[] = {{mean[x], pooled},
                             {first[x], json_array_get(rows, 0)},
                             {last[x], json_array_get(rows, n_rows - 1)}};
                for (size_t p = 0; p < N_ITEMS(pairs); p++) {
                    double want = json_number_value(json_array_get(pairs[p].row, x));
                    if (fabs((double)pairs[p].got - want) > 2e-4)
                        fail_msg("%s: %g instead of %g", fixtures[k], (double)pairs[p].got, want);
                }
            }
        }
        close_fixture(&e);
    }
}

/* ---- Conversations ---- */

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    moe_buf_append(ctx, bytes, n);
    return MOE_OK;
}

/* A text's ids in the decoder after asking, and perhaps continuing. */
static struct moe_ids ask(struct moe_conversation *talk, struct moe_sampler *sampler,
                          const char *text, uint64_t n)
{
    struct moe_err err = {0};
    struct moe_buf heard = {0};
    struct moe_ids copy = {0};
    enum moe_stop_reason why;
    const struct moe_generate_options o = {
        .max_tokens = n, .ignore_eos = true, .text = hear, .ctx = &heard};
    if (text)
        assert_ok(moe_conversation_ask(talk, text, sampler, &o, &why, &err), &err);
    else
        assert_ok(moe_conversation_continue(talk, sampler, &o, &why, &err), &err);
    for (uint64_t i = 0; i < talk->history.n; i++)
        assert_ok(moe_ids_push(&copy, talk->history.ids[i], &err), &err);
    moe_buf_release(&heard);
    return copy;
}

static void assert_same(const struct moe_ids *a, const struct moe_ids *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
}

static void no_source_is_remembered(void **state)
{
    struct encoder e;
    struct moe_conversation talk;
    struct moe_err err = {0};
    enum moe_stop_reason why;
    const struct moe_generate_options o = {.max_tokens = 4};
    (void)state;
    open_fixture(&e, "switch-b", 1);
    struct moe_sampler *sampler = greedy(e.f.model);
    assert_ok(moe_conversation_init(&talk, e.f.session, NULL, &err), &err);
    struct moe_ids whole = ask(&talk, sampler, "one text", 12);
    struct moe_ids other = ask(&talk, sampler, "quite another, and longer", 12);
    struct moe_ids begun = ask(&talk, sampler, "one text", 7);
    struct moe_ids again = ask(&talk, sampler, NULL, 5);
    assert_int_equal(begun.n, 8);
    assert_same(&whole, &again);
    assert_false(other.n == whole.n &&
                 memcmp(other.ids, whole.ids, whole.n * sizeof *whole.ids) == 0);
    char text[2 * CONTEXT];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_fails(moe_conversation_ask(&talk, text, sampler, &o, &why, &err), MOE_ERR_LIMIT,
                 "tokens does not fit the context of 192", &err);
    assert_fails(moe_encode_pooled(e.f.session, NULL, 0, MOE_POOL_MEAN, NULL, &err), MOE_ERR_USAGE,
                 "the source is empty", &err);
    moe_ids_release(&whole);
    moe_ids_release(&other);
    moe_ids_release(&begun);
    moe_ids_release(&again);
    moe_conversation_release(&talk);
    moe_sampler_free(sampler);
    close_fixture(&e);
}

/* ---- Side by side ---- */

struct asked {
    uint32_t ids[MOST], n;
    struct moe_buf text;
    struct moe_generate_result result;
    bool ended;
};

static int hear_asked(void *ctx, const char *bytes, uint64_t n)
{
    return hear(&((struct asked *)ctx)->text, bytes, n);
}

static void end(void *ctx, const struct moe_generate_result *result)
{
    struct asked *a = ctx;
    assert_false(a->ended);
    a->ended = true;
    a->result = *result;
}

/* Answers to sources are those that they get alone, also where sequences wait, and where their
 * blocks are taken away and they are encoded again. */
static void answers_side_by_side_are_those_alone(void **state)
{
    enum { TIMES = 3, N = 5 * TIMES };
    static struct asked asked[N];
    struct encoder e;
    struct moe_err err = {0};
    struct moe_generator *b;
    uint64_t id;
    (void)state;
    open_fixture(&e, "switch-b", 1);
    const json_t *sources = json_object_get(e.reference, "sources");
    assert_int_equal(json_array_size(sources), N / TIMES);
    /* A block has 256 positions: two sequences have room to the end, the third has not. */
    const struct moe_session_options so = {
        .context = 300, .n_sequences = 3, .kv_blocks = 4, .batch = 16};
    struct moe_session *s;
    assert_ok(moe_session_open(&s, e.f.model, e.f.experts, &so, &err), &err);
    assert_ok(moe_generator_open(&b, s, s->n_sequences, 0, &err), &err);
    for (int i = 0; i < N; i++) {
        struct asked *a = &asked[i];
        a->n = read_ids(json_object_get(json_array_get(sources, (size_t)i % 5), "ids"), a->ids);
        const struct moe_generate_request request = {
            .prompt = a->ids,
            .n_prompt = a->n,
            .sampler = greedy(e.f.model),
            .options = {.max_tokens = i < 6 ? 270 : 20,
                        .ignore_eos = true,
                        .text = hear_asked,
                        .ctx = a},
            .ended = end,
        };
        assert_ok(moe_generator_add(b, &request, &id, &err), &err);
    }
    while (moe_generator_state(b)->n_running + moe_generator_state(b)->n_waiting > 0)
        moe_generator_step(b);
    assert_true(moe_generator_state(b)->n_preempted > 0);
    for (int i = 0; i < N; i++) {
        struct asked *a = &asked[i];
        struct moe_buf alone = {0};
        struct moe_ids history = {0};
        struct moe_sampler *sampler = greedy(e.f.model);
        enum moe_stop_reason why;
        const struct moe_generate_options o = {.source = a->ids,
                                               .n_source = a->n,
                                               .max_tokens = i < 6 ? 270 : 20,
                                               .ignore_eos = true,
                                               .text = hear,
                                               .ctx = &alone};
        assert_true(a->ended && a->result.status == MOE_OK);
        assert_int_equal(a->result.n_prompt, a->n);
        assert_int_equal(a->result.n_tokens, o.max_tokens);
        assert_ok(moe_ids_push(&history, e.f.model->config.decoder_start, &err), &err);
        assert_ok(moe_generate(s, sampler, &history, &o, &why, &err), &err);
        assert_int_equal(alone.size, a->text.size);
        assert_memory_equal(alone.data, a->text.data, alone.size);
        moe_buf_release(&alone);
        moe_buf_release(&a->text);
        moe_ids_release(&history);
        moe_sampler_free(sampler);
    }
    struct moe_sampler *sampler = greedy(e.f.model);
    uint32_t many[301] = {0};
    const struct moe_generate_request request = {
        .prompt = many, .n_prompt = 301, .sampler = sampler};
    assert_fails(moe_generator_add(b, &request, &id, &err), MOE_ERR_LIMIT,
                 "the source of 301 tokens does not fit the context of 300", &err);
    moe_sampler_free(sampler);
    moe_generator_close(b);
    moe_session_close(s);
    close_fixture(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_transformers),
        cmocka_unit_test(sources_are_in_their_language),
        cmocka_unit_test(pooled_output_is_that_of_transformers),
        cmocka_unit_test(no_source_is_remembered),
        cmocka_unit_test(answers_side_by_side_are_those_alone),
    };
    return cmocka_run_group_tests(tests, open_all, NULL);
}
