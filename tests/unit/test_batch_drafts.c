/*
 * Drafts of answers side by side: greedy, drawn and held by a grammar, each is what it would be
 * alone and without drafts, whatever runs beside it, with how little room; and what was drafted is
 * counted.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../make_pack.h"
#include "../scratch_dir.h"

#include "base/par.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "grammar/constraint.h"
#include "grammar/grammar.h"
#include "kern/kern.h"

/* Under sanitizers, which slow this down, every other way of batching. */
#ifdef __SANITIZE_ADDRESS__
enum { OF_WAYS = 2 };
#else
enum { OF_WAYS = 1 };
#endif
enum { N = 6, MOST_PROMPT = 230, PROMPT_ROWS = 16 };

struct asked {
    uint32_t prompt[MOST_PROMPT];
    uint32_t n_prompt;
    uint64_t max_tokens;
    double temperature;
    struct moe_grammar *grammar;
    struct moe_constraint *constraint;
    struct moe_buf text, want; /* now; without drafts and alone */
    struct moe_generate_result result, wanted;
};

static struct asked asked[N];

/* A model, and who drafts for it. */
struct drafter {
    const char *checkpoint;
    int bits;
    uint32_t context;
    bool ahead;
};

struct way {
    uint32_t n_sequences, kv_blocks, batch;
};

static int open_all(void **state)
{
    struct moe_err err;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(1);
    return make_dir(state);
}

/* way NULL: alone, without drafts. */
static struct moe_engine *open_engine(const char *pack, const struct drafter *how,
                                      const struct way *way)
{
    const struct moe_engine_options o = {
        .ahead = way && how->ahead,
        .session = {.context = how->context,
                    .n_sequences = way ? way->n_sequences : 1,
                    .batch = way ? way->batch : 64,
                    .kv_blocks = way ? way->kv_blocks : 0,
                    .takes_back = way != NULL},
    };
    struct moe_engine *e;
    struct moe_err err;
    assert_ok(moe_engine_open(&e, pack, &o, NULL, &err), &err);
    return e;
}

/* Texts that repeat themselves, some of them long enough to grow into another block. */
static void make_requests(uint32_t vocab)
{
    static const char words[] = "root ::= ([a-z] | \" \" | \".\")*";
    uint64_t random = 5;
    struct moe_err err;
    for (int i = 0; i < N; i++) {
        struct asked *a = &asked[i];
        uint32_t period = 3 + (uint32_t)(test_random(&random) % 6);
        *a = (struct asked){.temperature = i % 2 ? 0.7 : 0};
        a->n_prompt = i == 2 ? MOST_PROMPT : 2 + (uint32_t)(test_random(&random) % 20);
        for (uint32_t k = 0; k < a->n_prompt; k++)
            a->prompt[k] = k < period
                               ? (uint32_t)(test_random(&random) % (vocab < 4000 ? vocab : 4000))
                               : a->prompt[k - period];
        a->max_tokens = i == 2 ? UINT64_MAX : 40 + test_random(&random) % 60;
        if (i % 3 == 0)
            assert_ok(moe_grammar_parse(&a->grammar, "words", words, strlen(words), NULL, &err),
                      &err);
    }
}

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    moe_buf_append(&((struct asked *)ctx)->text, bytes, n);
    return MOE_OK;
}

static void end(void *ctx, const struct moe_generate_result *result)
{
    struct asked *a = ctx;
    a->result = *result;
    moe_constraint_free(a->constraint);
    a->constraint = NULL;
}

/* how NULL: without drafts. */
static void add(struct moe_generator *b, struct moe_engine *e, struct asked *a,
                const struct drafter *how)
{
    struct moe_sampler_options so;
    struct moe_generate_request request = {
        .prompt = a->prompt, .n_prompt = a->n_prompt, .ended = end};
    struct moe_err err;
    uint64_t id;
    so = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    so.temperature = a->temperature;
    so.seed = (uint64_t)(a - asked);
    assert_ok(moe_sampler_new(&request.sampler, &so, e->model->config.vocab, &err), &err);
    moe_buf_clear(&a->text);
    if (a->grammar)
        assert_ok(moe_engine_constrain(e, a->grammar, NULL, &a->constraint, &err), &err);
    request.options = (struct moe_generate_options){
        .constraint = a->constraint,
        .max_tokens = a->max_tokens,
        .ignore_eos = true,
        /* One of them goes without, beside the others. */
        .draft = how && a != &asked[3] ? MOE_DRAFT_MOST : 0,
        .draft_ahead = how && how->ahead,
        .text = hear,
        .ctx = a,
    };
    assert_ok(moe_generator_add(b, &request, &id, &err), &err);
}

static bool idle(const struct moe_generator *b)
{
    return moe_generator_state(b)->n_running == 0 && moe_generator_state(b)->n_waiting == 0;
}

/* Every answer, as they come over time. The statistics are those of all. */
static struct moe_stats ask(const char *pack, const struct drafter *how, const struct way *way,
                            bool *preempted)
{
    struct moe_engine *e = open_engine(pack, how, way);
    struct moe_generator *b;
    struct moe_err err;
    assert_ok(moe_generator_open(&b, e->session, e->session->n_sequences, PROMPT_ROWS, &err), &err);
    for (int added = 0, steps = 0; added < N || !idle(b); steps++) {
        for (; added < N && added <= 2 * steps; added++)
            add(b, e, &asked[added], way ? how : NULL);
        moe_generator_step(b);
    }
    const struct moe_stats stats = e->session->stats;
    *preempted = moe_generator_state(b)->n_preempted > 0;
    assert_int_equal(e->session->kv_pool.n_free, e->session->kv_pool.n_blocks);
    moe_generator_close(b);
    moe_engine_close(e);
    return stats;
}

static void check(uint64_t *drafted, uint64_t *accepted)
{
    *drafted = *accepted = 0;
    for (int i = 0; i < N; i++) {
        struct asked *a = &asked[i];
        assert_int_equal(a->result.status, MOE_OK);
        assert_int_equal(a->result.why, a->wanted.why);
        assert_int_equal(a->result.n_tokens, a->wanted.n_tokens);
        assert_int_equal(a->text.size, a->want.size);
        if (a->text.size)
            assert_memory_equal(a->text.data, a->want.data, a->text.size);
        assert_true(a->result.n_accepted <= a->result.n_drafted);
        *drafted += a->result.n_drafted;
        *accepted += a->result.n_accepted;
    }
    assert_int_equal(asked[3].result.n_drafted, 0);
}

static void answers_are_the_same(const struct drafter *how)
{
    static const struct way ways[] = {{1, 0, 64}, {6, 0, 64}, {5, 3, 16}, {6, 0, 6}};
    struct moe_convert_options options = pack_options(how->bits == 32 ? "32" : "4", how->bits);
    const char *pack = in_dir("model.moe");
    bool preempted;
    make_pack(pack, how->checkpoint, &options);
    struct moe_engine *e = open_engine(pack, how, NULL);
    make_requests(e->model->config.vocab);
    moe_engine_close(e);
    const struct moe_stats plain = ask(pack, how, NULL, &preempted);
    assert_int_equal(plain.drafted_tokens, 0);
    for (int i = 0; i < N; i++) {
        asked[i].want = asked[i].text;
        asked[i].wanted = asked[i].result;
        asked[i].text = (struct moe_buf){0};
    }
    for (size_t w = 0; w < N_ITEMS(ways); w += OF_WAYS) {
        uint64_t drafted, accepted;
        const struct moe_stats s = ask(pack, how, &ways[w], &preempted);
        check(&drafted, &accepted);
        assert_int_equal(s.drafted_tokens, drafted);
        assert_int_equal(s.accepted_tokens, accepted);
        assert_int_equal(s.generated_tokens, plain.generated_tokens);
        /* Where the context is a block, nobody grows beyond it. */
        assert_true(preempted == (ways[w].kv_blocks > 0 && how->context > 256));
        /* Texts are computed again as prompts; and a prompt's last token, where it is a pass. */
        if (!preempted && ways[w].batch >= PROMPT_ROWS)
            assert_int_equal(s.decode.tokens, plain.decode.tokens);
        print_message("# %s: %u side by side: %d of %d drafted are right\n", how->checkpoint,
                      ways[w].n_sequences, (int)accepted, (int)drafted);
        assert_true(ways[w].batch == ways[w].n_sequences || (accepted > 0 && accepted < drafted));
    }
    for (int i = 0; i < N; i++) {
        moe_buf_release(&asked[i].text);
        moe_buf_release(&asked[i].want);
        moe_grammar_free(asked[i].grammar);
    }
    unlink(pack);
}

static void by_what_stood_before(void **state)
{
    (void)state;
    answers_are_the_same(&(struct drafter){TINY_MOE, 4, 300, false});
}

static void by_a_layer(void **state)
{
    (void)state;
    answers_are_the_same(&(struct drafter){DRAWN "/ahead-deepseek", 32, 256, true});
}

/* Of recurrent states, too. */
static void states_are_taken_back(void **state)
{
    (void)state;
    answers_are_the_same(&(struct drafter){DRAWN "/ahead-qwen3-next", 32, 256, false});
    answers_are_the_same(&(struct drafter){DRAWN "/ahead-qwen3-next", 32, 256, true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_what_stood_before),
        cmocka_unit_test(by_a_layer),
        cmocka_unit_test(states_are_taken_back),
    };
    return cmocka_run_group_tests(tests, open_all, remove_dir);
}
