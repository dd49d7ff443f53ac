/*
 * GPTSAN against its public implementation: the fixture gptsan-a (what it holds:
 * fixtures/make_gptsan.py). Prompts with and without a prefix whose rows see each other, rows
 * beyond an expert's capacity, the tokens that it likes best.
 */
#define _DEFAULT_SOURCE
#include <jansson.h>
#include <math.h>

#include "engine/conversation.h"
#include "engine/generate.h"
#include "engine/prompt.h"
#include "infer/forward.h"
#include "model_fixture.h"

#include "../scratch_dir.h"

struct gptsan {
    struct fixture run;
    const json_t *prompt;
    uint32_t n_compared, n_dropped;
    double worst_weight, worst_logit;
};

static void check_experts(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                          const float *gate_input, uint64_t hidden_stride,
                          const float *probabilities, uint64_t router_stride,
                          const uint32_t *chosen, const float *weights)
{
    struct gptsan *g = ctx;
    const json_t *wanted = json_array_get(json_object_get(g->prompt, "experts"), layer);
    const json_t *dropped = json_array_get(json_object_get(g->prompt, "dropped"), layer);
    for (uint32_t i = 0; i < n_rows && rows[i].position < json_array_size(wanted); i++) {
        const json_t *pair = json_array_get(json_array_get(wanted, rows[i].position), 0);
        bool over = false;
        for (size_t k = 0; k < json_array_size(dropped); k++)
            over |= json_integer_value(json_array_get(dropped, k)) == rows[i].position;
        assert_int_equal(chosen[i], json_integer_value(json_array_get(pair, 0)));
        assert_int_equal(over, weights[i] == 0);
        double weight = over ? 0 : json_number_value(json_array_get(pair, 1));
        g->worst_weight = fmax(g->worst_weight, fabs((double)weights[i] - weight));
        g->n_dropped += over;
        g->n_compared++;
    }
}

static void check_prompt(struct gptsan *g)
{
    struct moe_err err = {0};
    const struct moe_config *c = &g->run.model->config;
    struct moe_session *s = g->run.session;
    const json_t *id_list = json_object_get(g->prompt, "ids");
    const json_t *want = json_object_get(g->prompt, "logits");
    const json_t *greedy = json_object_get(g->prompt, "greedy");
    struct moe_row rows[128];
    uint32_t n = (uint32_t)json_array_size(id_list);
    float *logits = calloc(moe_logits_stride(c), sizeof *logits);
    for (uint32_t i = 0; i < n; i++)
        rows[i] =
            (struct moe_row){0, i, (uint32_t)json_integer_value(json_array_get(id_list, i)), 0};
    moe_sequence_rewind(s, 0, 0);
    moe_sequence_prompt(s, 0, n,
                        (uint32_t)json_integer_value(json_object_get(g->prompt, "prefix")));
    assert_ok(moe_forward(s, MOE_PREFILL, rows, n, 0, c->n_layers, NULL, NULL, &err), &err);
    assert_ok(moe_logits(s, n - 1, 1, logits, &err), &err);
    double worst = 0, largest = 0;
    assert_int_equal(json_array_size(want), c->vocab);
    for (uint32_t i = 0; i < c->vocab; i++) {
        double w = json_number_value(json_array_get(want, i));
        worst = fmax(worst, fabs((double)logits[i] - w));
        largest = fmax(largest, fabs(w));
    }
    g->worst_logit = fmax(g->worst_logit, worst / largest);
    for (size_t k = 0; k < json_array_size(greedy); k++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < c->vocab; i++)
            best = logits[i] > logits[best] ? i : best;
        assert_int_equal(best, json_integer_value(json_array_get(greedy, k)));
        const struct moe_row next = {0, n + (uint32_t)k, best, 0};
        assert_ok(moe_forward(s, MOE_DECODE, &next, 1, 0, c->n_layers, NULL, NULL, &err), &err);
        assert_ok(moe_logits(s, 0, 1, logits, &err), &err);
    }
    free(logits);
}

/* The tokens of an answer as they come. */
struct heard {
    uint32_t ids[64], n;
};

static int hear(void *ctx, const struct moe_token_said *said)
{
    struct heard *h = ctx;
    h->ids[h->n++] = said->token.id;
    return MOE_OK;
}

/* What moe-run answers to a prompt that is all prefix: without the separator all of it is one. */
static bool check_answer(struct gptsan *g)
{
    struct moe_err err = {0};
    const json_t *id_list = json_object_get(g->prompt, "ids");
    const json_t *greedy = json_object_get(g->prompt, "greedy");
    struct heard heard = {.n = 0};
    struct moe_sampler *sampler;
    struct moe_sampler_options how;
    struct moe_ids history = {0};
    enum moe_stop_reason why;
    if (json_integer_value(json_object_get(g->prompt, "prefix")) !=
        (json_int_t)json_array_size(id_list))
        return false;
    for (size_t i = 0; i < json_array_size(id_list); i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(id_list, i));
        assert_ok(moe_ids_push(&history, id, &err), &err);
    }
    how = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    how.temperature = 0;
    assert_ok(moe_sampler_new(&sampler, &how, g->run.model->config.vocab, &err), &err);
    const struct moe_generate_options o = {
        .max_tokens = json_array_size(greedy), .ignore_eos = true, .token = hear, .ctx = &heard};
    assert_ok(moe_generate(g->run.session, sampler, &history, &o, &why, &err), &err);
    assert_int_equal(heard.n, json_array_size(greedy));
    for (uint32_t k = 0; k < heard.n; k++)
        assert_int_equal(heard.ids[k], json_integer_value(json_array_get(greedy, k)));
    moe_sampler_free(sampler);
    moe_ids_release(&history);
    return true;
}

/* What moe-run answers to a text behind a prefix. */
static void check_prefixed(const struct gptsan *g, const json_t *want)
{
    struct moe_err err = {0};
    const char *prefix = json_string_value(json_object_get(want, "prefix"));
    const char *text = json_string_value(json_object_get(want, "text"));
    const json_t *id_list = json_object_get(want, "ids"), *greedy = json_object_get(want, "greedy");
    const struct moe_sampler_options how = {.top_p = 1, .repeat_penalty = 1};
    struct moe_conversation talk;
    struct moe_sampler *sampler;
    struct moe_ids ids = {0};
    struct heard heard = {.n = 0};
    const struct moe_generate_options o = {
        .max_tokens = json_array_size(greedy), .ignore_eos = true, .token = hear, .ctx = &heard};
    enum moe_stop_reason why;
    assert_ok(moe_prompt_prefixed(g->run.model, prefix, text, strlen(text), &ids, &err), &err);
    assert_int_equal(ids.n, json_array_size(id_list));
    for (uint64_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.ids[i], json_integer_value(json_array_get(id_list, i)));
    assert_ok(moe_sampler_new(&sampler, &how, g->run.model->config.vocab, &err), &err);
    assert_ok(moe_conversation_init(&talk, g->run.session, NULL, &err), &err);
    talk.prefix = prefix;
    assert_ok(moe_conversation_ask(&talk, text, sampler, &o, &why, &err), &err);
    assert_int_equal(heard.n, json_array_size(greedy));
    for (uint32_t k = 0; k < heard.n; k++)
        assert_int_equal(heard.ids[k], json_integer_value(json_array_get(greedy, k)));
    moe_conversation_release(&talk);
    moe_sampler_free(sampler);
    moe_ids_release(&ids);
}

static void gptsan_equals_its_reference(void **state)
{
    struct moe_err err = {0};
    struct gptsan g = {.n_compared = 0};
    json_error_t error;
    size_t i;
    uint32_t n_answers = 0;
    const struct moe_convert_options how = pack_options("32", 32);
    snprintf(g.run.path, sizeof g.run.path, "%s", in_dir("pack.moe"));
    make_pack(g.run.path, DRAWN "/gptsan-a", &how);
    json_t *reference = json_load_file(DRAWN "/gptsan-a/reference.json", 0, &error);
    assert_non_null(reference);
    assert_ok(moe_model_open(&g.run.model, g.run.path, 0, NULL, &err), &err);
    for (int cached = 0; cached < 2; cached++) {
        const struct moe_cache_options cache = {
            .cache_bytes = 2 * moe_cache_slot_bytes(g.run.model->pack, 0),
            .n_working = 2,
            .loader = {.verify = true},
        };
        const struct moe_pack *pack = g.run.model->pack;
        assert_ok(cached ? moe_experts_open_cached(&g.run.experts, pack, 1, &cache, NULL, &err)
                         : moe_experts_open_resident(&g.run.experts, pack, 0, NULL, NULL, &err),
                  &err);
        assert_ok(moe_session_open(&g.run.session, g.run.model, g.run.experts, NULL, &err), &err);
        g.run.session->observer.ctx = &g;
        g.run.session->observer.routed = check_experts;
        json_array_foreach(json_object_get(reference, "prompts"), i, g.prompt)
        {
            check_prompt(&g);
            n_answers += check_answer(&g);
        }
        g.run.session->observer.routed = NULL;
        const json_t *answers = json_object_get(reference, "answers");
        assert_true(json_array_size(answers) >= 3);
        for (i = 0; i < json_array_size(answers); i++)
            check_prefixed(&g, json_array_get(answers, i));
        moe_session_close(g.run.session);
        moe_experts_close(g.run.experts);
    }
    g.run.session = NULL;
    g.run.experts = NULL;
    print_message("# logits within %.2g of the largest; %u choices, %u of them beyond a capacity, "
                  "weights within %.2g\n",
                  g.worst_logit, g.n_compared, g.n_dropped, g.worst_weight);
    assert_true(g.worst_logit < 1e-4 && g.worst_weight < 1e-5);
    assert_int_equal(n_answers, 2 * 2);
    assert_true(g.n_compared > 1000 && g.n_dropped > 20);
    json_decref(reference);
    fixture_close(&g.run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gptsan_equals_its_reference),
    };
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return cmocka_run_group_tests_name("gptsan", tests, make_dir, remove_dir);
}
