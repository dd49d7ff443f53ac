/*
 * Model families against their public implementation: the parity fixtures in tests/fixtures, at
 * full precision (32 bits), prompts and single tokens alike.
 */
#include <jansson.h>
#include <math.h>

#include "model_fixture.h"

enum { MAX_POSITIONS = 256 };

struct family_fixture {
    struct fixture run;
    json_t *reference;
    /* The prompt being compared. */
    const json_t *experts; /* [MoE layer][position] */
    uint32_t n_compared;
};

static void open_fixture(struct family_fixture *f, const char *dir)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    char path[300];
    json_error_t error;
    *f = (struct family_fixture){0};
    snprintf(f->run.path, sizeof f->run.path, "/tmp/moe-family-%d.moe", (int)getpid());
    const struct moe_convert_options options = {
        .experts = {{32, 32}},
        .n_experts = 1,
        .dense_bits = 32,
        .method = moe_quant_method_find("rtn"),
        .group = 64,
    };
    assert_ok(moe_convert_checkpoint(dir, f->run.path, &options, &report, &err), &err);
    assert_ok(moe_model_open(&f->run.model, f->run.path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&f->run.experts, f->run.model->pack, 0, NULL, &err), &err);
    assert_ok(moe_session_open(&f->run.session, f->run.model, f->run.experts, NULL, &err), &err);
    snprintf(path, sizeof path, "%s/reference.json", dir);
    f->reference = json_load_file(path, 0, &error);
    assert_non_null(f->reference);
}

static void close_fixture(struct family_fixture *f)
{
    json_decref(f->reference);
    fixture_close(&f->run);
}

static void check_experts(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                          const float *gate_input, uint64_t hidden_stride,
                          const float *probabilities, uint64_t router_stride,
                          const uint32_t *chosen, const float *weights)
{
    struct family_fixture *f = ctx;
    const struct moe_config *c = &f->run.model->config;
    uint32_t moe_layer = 0;
    for (uint32_t i = 0; i < layer; i++)
        moe_layer += c->layer_is_moe[i];
    for (uint32_t i = 0; f->experts && i < n_rows; i++) {
        const json_t *want =
            json_array_get(json_array_get(f->experts, moe_layer), rows[i].position);
        assert_int_equal(json_array_size(want), c->top_k);
        for (uint32_t k = 0; k < c->top_k; k++) {
            const json_t *pair = json_array_get(want, k);
            assert_int_equal(chosen[i * c->top_k + k], json_integer_value(json_array_get(pair, 0)));
            double weight = json_number_value(json_array_get(pair, 1));
            assert_true(fabs((double)weights[i * c->top_k + k] - weight) < 1e-4);
            f->n_compared++;
        }
    }
}

/* Computes ids[first..n) in one pass; logits of the last. */
static void forward(struct family_fixture *f, const uint32_t *ids, uint32_t first, uint32_t n,
                    float *logits)
{
    struct moe_err err = {0};
    struct moe_row rows[MAX_POSITIONS];
    for (uint32_t i = first; i < n; i++)
        rows[i - first] = (struct moe_row){0, i, ids[i]};
    assert_ok(moe_forward(f->run.session, MOE_PREFILL, rows, n - first, 0,
                          f->run.model->config.n_layers, NULL, NULL, &err),
              &err);
    moe_logits(f->run.session, n - first - 1, 1, logits);
}

static double compare_logits(const float *got, const json_t *want, uint32_t vocab)
{
    double worst = 0, largest = 0;
    assert_int_equal(json_array_size(want), vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        double w = json_number_value(json_array_get(want, i));
        largest = fmax(largest, fabs(w));
        worst = fmax(worst, fabs((double)got[i] - w));
    }
    assert_true(largest > 0.1);
    return worst / largest;
}

static void check_prompt(struct family_fixture *f, const json_t *prompt, double *worst)
{
    const struct moe_config *c = &f->run.model->config;
    const json_t *id_list = json_object_get(prompt, "ids");
    const json_t *greedy = json_object_get(prompt, "greedy");
    uint32_t ids[MAX_POSITIONS], n = (uint32_t)json_array_size(id_list);
    float *logits = calloc(moe_logits_stride(c), sizeof *logits);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(id_list, i));
    f->experts = json_object_get(prompt, "experts");
    for (uint32_t i = 0; i < n; i++) /* a token at a time, then all at once */
        forward(f, ids, i, i + 1, logits);
    *worst = fmax(*worst, compare_logits(logits, json_object_get(prompt, "logits"), c->vocab));
    forward(f, ids, 0, n, logits);
    *worst = fmax(*worst, compare_logits(logits, json_object_get(prompt, "logits"), c->vocab));
    f->experts = NULL;
    for (size_t k = 0; k < json_array_size(greedy); k++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < c->vocab; i++)
            best = logits[i] > logits[best] ? i : best;
        assert_int_equal(best, json_integer_value(json_array_get(greedy, k)));
        ids[n++] = best;
        forward(f, ids, n - 1, n, logits);
    }
    free(logits);
}

static void fixture_equals_its_reference(void **state)
{
    struct family_fixture f;
    char dir[256];
    double worst = 0;
    const json_t *prompt;
    size_t i;
    snprintf(dir, sizeof dir, "tests/fixtures/%s", (const char *)*state);
    open_fixture(&f, dir);
    f.run.session->observer.ctx = &f;
    f.run.session->observer.routed = check_experts;
    json_array_foreach(json_object_get(f.reference, "prompts"), i, prompt)
        check_prompt(&f, prompt, &worst);
    print_message("# %s: logits within %.2g of the largest, %u expert choices\n",
                  (const char *)*state, worst, f.n_compared);
    assert_true(worst < 1e-3);
    assert_true(f.n_compared > 100);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(fixture_equals_its_reference, "qwen2-moe-a"),
        cmocka_unit_test_prestate(fixture_equals_its_reference, "qwen2-moe-b"),
    };
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
