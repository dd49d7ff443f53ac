/*
 * The bundled model against the reference results of its training framework (reference.json): ids,
 * logits, experts, greedy continuations and nats per token, at 16 bits.
 */
#include <math.h>

#include "tune/perplexity.h"

#include "reference_fixture.h"

enum { N_GREEDY = 32, MAX_IDS = 512 };

/* The observer watches one test only, however that ends. */
static int stop_watching(void **state)
{
    fixture.session->observer.routed = NULL;
    return 0;
}

static int open_all(void **state)
{
    moe_par_set_threads(1); /* their number changes no bit: test_forward, test_cached */
    return open_reference(state);
}

static uint32_t ids_of(const json_t *array, uint32_t *ids)
{
    size_t i;
    json_t *item;
    json_array_foreach(array, i, item) ids[i] = (uint32_t)json_integer_value(item);
    return (uint32_t)json_array_size(array);
}

static void forward(const uint32_t *ids, uint32_t first, uint32_t n)
{
    struct moe_err err = {0};
    struct moe_row rows[MAX_IDS];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, first + i, ids[first + i], 0};
    assert_ok(moe_forward(fixture.session, MOE_PREFILL, rows, n, 0, fixture.model->config.n_layers,
                          NULL, NULL, &err),
              &err);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* ---- Experts ---- */

struct expert_check {
    const json_t *experts; /* [layer][position] of one prompt */
    uint32_t compared, ties;
    float worst_weight;
};

/* The reference's weight of an expert at a position, or a bound for those it does not list. */
static void check_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                         const float *gate_input, uint64_t hidden_stride,
                         const float *probabilities, uint64_t router_stride, const uint32_t *chosen,
                         const float *weights)
{
    struct expert_check *check = ctx;
    const json_t *positions = json_array_get(check->experts, layer);
    for (uint32_t i = 0; i < n_rows; i++) {
        const json_t *listed = json_array_get(positions, rows[i].position);
        const float *p = probabilities + i * router_stride;
        assert_int_equal(json_array_size(listed), 4);
        for (uint32_t k = 0; k < 4; k++) {
            const json_t *pair = json_array_get(listed, k);
            uint32_t expert = (uint32_t)json_integer_value(json_array_get(pair, 0));
            float weight = (float)json_number_value(json_array_get(pair, 1));
            check->compared++;
            check->worst_weight = fmaxf(check->worst_weight, fabsf(p[expert] - weight));
            if (chosen[i * 4 + k] == expert)
                continue;
            /* Another choice is accepted only where both were equally likely to within 1e-3. */
            check->ties++;
            if (fabsf(p[chosen[i * 4 + k]] - weight) > 1e-3f)
                fail_msg("layer %u position %u rank %u: expert %u (%g) instead of %u (%g, here %g)",
                         layer, rows[i].position, k, chosen[i * 4 + k],
                         (double)p[chosen[i * 4 + k]], expert, (double)weight, (double)p[expert]);
        }
    }
}

static void experts_are_the_references(void **state)
{
    json_t *prompt;
    size_t i;
    struct expert_check check = {0};
    fixture.session->observer.ctx = &check;
    fixture.session->observer.routed = check_routed;
    json_array_foreach(json_object_get(reference, "prompts"), i, prompt)
    {
        uint32_t ids[MAX_IDS], n = ids_of(json_object_get(prompt, "ids"), ids);
        check.experts = json_object_get(prompt, "experts");
        forward(ids, 0, n);
    }
    print_message("# %u choices compared, %u ties, weights within %g\n", check.compared, check.ties,
                  (double)check.worst_weight);
    assert_true(check.compared > 8 * 12 * 4);
    assert_true(check.worst_weight < 5e-3f);
}

/* ---- Logits and greedy tokens ---- */

static void logits_and_greedy_tokens_are_the_references(void **state)
{
    struct moe_err err = {0};
    uint32_t vocab = fixture.model->config.vocab;
    float *logits = calloc(moe_logits_stride(&fixture.model->config), sizeof *logits);
    float worst = 0;
    json_t *prompt;
    size_t i;
    json_array_foreach(json_object_get(reference, "prompts"), i, prompt)
    {
        uint32_t ids[MAX_IDS], greedy[MAX_IDS], n = ids_of(json_object_get(prompt, "ids"), ids);
        assert_int_equal(ids_of(json_object_get(prompt, "greedy"), greedy), N_GREEDY);
        forward(ids, 0, n);
        assert_ok(moe_logits(fixture.session, n - 1, 1, logits, &err), &err);
        for (size_t k = 0; k < 10; k++) {
            const json_t *pair = json_array_get(json_object_get(prompt, "top10"), k);
            size_t id = (size_t)json_integer_value(json_array_get(pair, 0));
            float want = (float)json_number_value(json_array_get(pair, 1));
            worst = fmaxf(worst, fabsf(logits[id] - want));
        }
        for (uint32_t k = 0; k < N_GREEDY; k++) {
            uint32_t id = argmax(logits, vocab);
            if (id != greedy[k])
                fail_msg("prompt %zu, step %u: token %u instead of %u", i, k, id, greedy[k]);
            ids[n++] = id;
            forward(ids, n - 1, 1);
            assert_ok(moe_logits(fixture.session, 0, 1, logits, &err), &err);
        }
    }
    print_message("# top-10 logits within %g\n", (double)worst);
    assert_true(worst < 2e-2f);
    free(logits);
}

/* ---- Perplexity ---- */

static void check_nll(const char *path, const json_t *want)
{
    struct moe_err err = {0};
    struct moe_perplexity_options options = {.max_doc_tokens = 256, .max_windows = 1};
    struct moe_perplexity got;
    assert_ok(moe_perplexity(fixture.session, path, &options, &got, &err), &err);
    double nll = json_number_value(json_object_get(want, "nll"));
    print_message("# %s: %.4f nats/token, reference %.4f\n", path, got.nll, nll);
    assert_int_equal(got.n_tokens, json_integer_value(json_object_get(want, "tokens")));
    assert_int_equal(got.n_documents, json_integer_value(json_object_get(want, "docs")));
    assert_true(fabs(got.nll - nll) < 0.002);
}

static void perplexity_of_generated_texts(void **state)
{
    json_error_t error;
    json_t *all = json_load_file("tests/data/nll.json", 0, &error), *want;
    assert_non_null(all);
    const char *name;
    json_object_foreach(all, name, want)
    {
        char path[128];
        snprintf(path, sizeof path, "tests/data/%s.txt", name);
        check_nll(path, want);
    }
    json_decref(all);
}

/* Other people's texts are not part of the project: measured where they lie beside it. */
static void perplexity_of_real_texts(void **state)
{
    const char *dir = getenv("MOE_REAL_TEXTS"), *name;
    json_t *want;
    dir = dir ? dir : "../shared/data/real";
    json_object_foreach(json_object_get(reference, "nll"), name, want)
    {
        char path[256];
        snprintf(path, sizeof path, "%s/%s.valid.txt", dir, name);
        if (access(path, R_OK) != 0)
            skip();
        check_nll(path, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(experts_are_the_references, stop_watching),
        cmocka_unit_test(logits_and_greedy_tokens_are_the_references),
        cmocka_unit_test(perplexity_of_generated_texts),
        cmocka_unit_test(perplexity_of_real_texts),
    };
    return cmocka_run_group_tests_name("reference", tests, open_all, close_reference);
}
