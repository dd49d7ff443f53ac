/*
 * The probe on the bundled model: its counts against those recomputed from the reference's expert
 * ids, the cosines and predictions against a plain computation, and no trace left in the results.
 */
#include <math.h>

#include "profile/statistics_figures.h"
#include "reference_fixture.h"
#include "tune/probe.h"

enum { LAYERS = 12, EXPERTS = 32, TOP_K = 4, MAX_IDS = 256 };

static int open_all(void **state)
{
    moe_par_set_threads(2);
    return open_reference(state);
}

static struct moe_statistics *new_statistics(void)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    struct moe_statistics_shape shape = moe_model_statistics_shape(fixture.model);
    shape.max_tokens = MAX_IDS;
    shape.prompt_percent = 50;
    assert_int_equal(shape.n_layers, LAYERS);
    assert_int_equal(shape.n_experts, EXPERTS);
    assert_int_equal(shape.top_k, TOP_K);
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    return s;
}

static uint32_t ids_of(const json_t *prompt, uint32_t *ids)
{
    const json_t *list = json_object_get(prompt, "ids");
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

/* The k-th expert of a prompt's position as reference.json has it. */
static uint32_t expert_of(const json_t *prompt, uint32_t layer, uint32_t position, uint32_t k)
{
    const json_t *at = json_array_get(json_object_get(prompt, "experts"), layer);
    at = json_array_get(json_array_get(at, position), k);
    return (uint32_t)json_integer_value(json_array_get(at, 0));
}

struct recount {
    uint64_t active[LAYERS][EXPERTS], best[LAYERS][EXPERTS];
    uint64_t pairs[LAYERS][EXPERTS][EXPERTS];
    uint64_t again[LAYERS], pairs_of_tokens;
};

static void recount(struct recount *r, const json_t *prompt, uint32_t n)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t i = 0; i < TOP_K; i++) {
                uint32_t e = expert_of(prompt, l, t, i);
                r->active[l][e]++;
                r->best[l][e] += i == 0;
                for (uint32_t j = 0; j < TOP_K; j++) {
                    if (l > 0)
                        r->pairs[l][expert_of(prompt, l - 1, t, j)][e]++;
                    else if (t > 0)
                        r->pairs[0][expert_of(prompt, LAYERS - 1, t - 1, j)][e]++;
                    r->again[l] += t > 0 && expert_of(prompt, l, t - 1, j) == e;
                }
            }
    r->pairs_of_tokens += n - 1;
}

static void counts_equal_the_reference(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = new_statistics();
    struct moe_probe *probe = NULL;
    struct recount *r = calloc(1, sizeof *r);
    const json_t *prompt;
    size_t i;
    uint64_t tokens = 0;
    assert_ok(moe_probe_open(&probe, fixture.session, s, &err), &err);
    json_array_foreach(json_object_get(reference, "prompts"), i, prompt)
    {
        uint32_t ids[MAX_IDS], n = ids_of(prompt, ids);
        assert_ok(moe_probe_document(probe, ids, n, &err), &err);
        recount(r, prompt, n);
        tokens += n;
    }
    moe_probe_close(probe);
    assert_int_equal(s->totals[MOE_TOTAL_TOKENS], tokens);
    assert_int_equal(s->totals[MOE_TOTAL_DOCUMENTS], 8);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_memory_equal(moe_series_at(s, MOE_S_ACTIVATIONS, l), r->active[l],
                            sizeof r->active[l]);
        assert_memory_equal(moe_series_at(s, MOE_S_RANK1, l), r->best[l], sizeof r->best[l]);
        assert_memory_equal(moe_series_at(s, MOE_S_PAIRS, l), r->pairs[l], sizeof r->pairs[l]);
        assert_int_equal(moe_series_at(s, MOE_S_REUSE, l)[MOE_REUSE_ACTIVE], r->again[l]);
        assert_int_equal(moe_series_at(s, MOE_S_REUSE, l)[MOE_REUSE_TOKENS], r->pairs_of_tokens);
    }
    free(r);
    moe_statistics_free(s);
}

/* ---- Predictions, the slow way ---- */

/* Inputs of every layer for one token at a time, as an observer of its own sees them. */
struct watch {
    float gate[LAYERS][192], attention[LAYERS][192], residual[LAYERS][192];
    uint32_t chosen[LAYERS][TOP_K];
};

static void watch_attention(void *ctx, uint32_t layer, uint32_t n_rows, const float *input,
                            uint64_t stride)
{
    struct watch *w = ctx;
    assert_int_equal(n_rows, 1);
    memcpy(w->attention[layer], input, sizeof w->attention[layer]);
}

static void watch_router(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                         const float *gate_input, uint64_t hidden_stride,
                         const float *probabilities, uint64_t router_stride, const uint32_t *chosen,
                         const float *weights)
{
    struct watch *w = ctx;
    memcpy(w->gate[layer], gate_input, sizeof w->gate[layer]);
    memcpy(w->residual[layer], fixture.session->states.h, sizeof w->residual[layer]);
    memcpy(w->chosen[layer], chosen, sizeof w->chosen[layer]);
}

/* Whether the router of `layer`, applied to x, puts the true best first. */
static bool says_best(uint32_t layer, const double *x, const uint32_t *chosen)
{
    const struct moe_layer *l = &fixture.model->layers[layer];
    float row[192];
    double best = -INFINITY;
    uint32_t at = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        double sum = 0;
        moe_layout_load_row(&l->router, e, row);
        for (int i = 0; i < 192; i++)
            sum += (double)row[i] * x[i];
        if (sum > best) {
            best = sum;
            at = e;
        }
    }
    return at == chosen[0];
}

static double cosine(const float *a, const float *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < 192; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

static void widen(const float *x, double *out)
{
    for (int i = 0; i < 192; i++)
        out[i] = (double)x[i];
}

static void under_norm(const float *h, uint32_t layer, double *out)
{
    double sum = 0;
    for (int i = 0; i < 192; i++)
        sum += (double)h[i] * (double)h[i];
    for (int i = 0; i < 192; i++)
        out[i] = (double)h[i] / sqrt(sum / 192 + 1e-6) *
                 (double)fixture.model->layers[layer].ffn_norm[i];
}

static void predictions_equal_a_plain_computation(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = new_statistics();
    struct moe_probe *probe = NULL;
    struct watch *w = calloc(1, sizeof *w);
    const json_t *prompt = json_array_get(json_object_get(reference, "prompts"), 1);
    uint32_t ids[MAX_IDS], n = ids_of(prompt, ids), gate3 = 0, residual2 = 0, attn = 0, attn1 = 0;
    double sum = 0, x[192];
    assert_ok(moe_probe_open(&probe, fixture.session, s, &err), &err);
    assert_ok(moe_probe_document(probe, ids, n, &err), &err);
    moe_probe_close(probe);
    assert_null(fixture.session->observer.routed);
    fixture.session->observer =
        (struct moe_observer){.ctx = w, .routed = watch_router, .attending = watch_attention};
    for (uint32_t t = 0; t < n; t++) {
        struct moe_row row = {0, t, ids[t], 0};
        assert_ok(moe_forward(fixture.session, MOE_PREFILL, &row, 1, 0, LAYERS, NULL, NULL, &err),
                  &err);
        for (uint32_t l = 0; l < LAYERS; l++) {
            widen(w->attention[l], x);
            attn += says_best(l, x, w->chosen[l]);
            if (l >= 1) {
                widen(w->attention[l - 1], x);
                attn1 += says_best(l, x, w->chosen[l]);
            }
            if (l >= 2) {
                under_norm(w->residual[l - 2], l, x);
                residual2 += says_best(l, x, w->chosen[l]);
                sum += cosine(w->gate[l], w->gate[l - 2]);
            }
            if (l >= 3) {
                widen(w->gate[l - 3], x);
                gate3 += says_best(l, x, w->chosen[l]);
            }
        }
    }
    fixture.session->observer = (struct moe_observer){0};
    const struct {
        enum moe_predictor predictor;
        uint32_t right, first;
    } wanted[] = {{MOE_PREDICT_ATTN, attn, 0},
                  {MOE_PREDICT_ATTN_1, attn1, 1},
                  {MOE_PREDICT_RESIDUAL_2, residual2, 2},
                  {MOE_PREDICT_GATE_3, gate3, 3}};
    for (size_t i = 0; i < 4; i++) {
        uint64_t right = 0, tokens = 0;
        for (uint32_t l = 0; l < LAYERS; l++) {
            right += moe_accuracy_at(s, l, wanted[i].predictor)[MOE_ACC_TOP1];
            tokens += moe_accuracy_at(s, l, wanted[i].predictor)[MOE_ACC_TOKENS];
        }
        assert_int_equal(tokens, n * (LAYERS - wanted[i].first));
        assert_int_equal(right, wanted[i].right);
    }
    double mean = sum / (n * (LAYERS - 2));
    assert_true(fabs(moe_figure_cosine(s, MOE_ALL_LAYERS, MOE_COSINE_GATE_2) - mean) < 1e-6);
    double correlation = moe_figure_correlation(s, MOE_ALL_LAYERS);
    assert_true(correlation > 0.3 && correlation < 1);
    free(w);
    moe_statistics_free(s);
}

/* In batches of any size the same numbers, and watching changes no result. */
static void batches_make_no_difference(void **state)
{
    struct moe_err err = {0};
    struct moe_session *small = NULL;
    struct moe_statistics *a = new_statistics(), *b = new_statistics();
    struct moe_probe *probe = NULL;
    struct moe_buf x = {0}, y = {0};
    const struct moe_session_options options = {.batch = 7};
    const json_t *prompt = json_array_get(json_object_get(reference, "prompts"), 2);
    uint32_t ids[MAX_IDS], n = ids_of(prompt, ids), vocab = fixture.model->config.vocab;
    float *seen = calloc(moe_logits_stride(&fixture.model->config), sizeof *seen);
    float *alone = calloc(moe_logits_stride(&fixture.model->config), sizeof *alone);
    struct moe_row rows[MAX_IDS];
    assert_ok(moe_probe_open(&probe, fixture.session, a, &err), &err);
    assert_ok(moe_probe_document(probe, ids, n, &err), &err);
    assert_ok(moe_logits(fixture.session, n - 1, 1, seen, &err), &err);
    moe_probe_close(probe);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, i, ids[i], 0};
    assert_ok(moe_forward(fixture.session, MOE_PREFILL, rows, n, 0, LAYERS, NULL, NULL, &err),
              &err);
    assert_ok(moe_logits(fixture.session, n - 1, 1, alone, &err), &err);
    assert_memory_equal(seen, alone, vocab * sizeof *seen);
    assert_ok(moe_session_open(&small, fixture.model, fixture.experts, &options, &err), &err);
    assert_ok(moe_probe_open(&probe, small, b, &err), &err);
    assert_ok(moe_probe_document(probe, ids, n, &err), &err);
    moe_probe_close(probe);
    moe_session_close(small);
    assert_ok(moe_statistics_write(a, &x, &err), &err);
    assert_ok(moe_statistics_write(b, &y, &err), &err);
    assert_true(x.size == y.size && memcmp(x.data, y.data, x.size) == 0);
    moe_buf_release(&x);
    moe_buf_release(&y);
    free(seen);
    free(alone);
    moe_statistics_free(a);
    moe_statistics_free(b);
}

/* ---- The trace ---- */

/* What the statistics count of a predictor, from a trace with every score. */
static void count_step(const struct moe_trace_step *step, uint64_t n[][MOE_N_ACCURACIES])
{
    for (int p = 0; p < MOE_N_PREDICTORS; p++) {
        const uint16_t *list = step->predicted[p].experts;
        if (!list)
            continue;
        n[p][MOE_ACC_TOKENS]++;
        n[p][MOE_ACC_TOP1] += list[0] == step->experts[0];
        for (uint32_t i = 0; i < EXPERTS; i++)
            for (uint32_t k = 0; k < TOP_K; k++) {
                bool is = list[i] == step->experts[k];
                n[p][MOE_ACC_IN_K] += is && i < TOP_K;
                n[p][MOE_ACC_IN_2K] += is && i < 2 * TOP_K;
                n[p][MOE_ACC_IN_P75] += is && i < EXPERTS / 4;
            }
    }
}

static void check_trace(const char *path, const json_t *prompt, uint32_t n_ids,
                        const struct moe_statistics *s)
{
    static uint64_t counted[LAYERS][MOE_N_PREDICTORS][MOE_N_ACCURACIES];
    struct moe_err err = {0};
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    assert_ok(moe_trace_open(&t, path, &err), &err);
    for (uint32_t at = 0; at < n_ids; at++) {
        assert_ok(moe_trace_next(t, &token, &err), &err);
        assert_non_null(token);
        assert_int_equal(token->prompt, at < n_ids / 2);
        for (uint32_t l = 0; l < LAYERS; l++) {
            struct moe_trace_step step = moe_trace_step(t, l);
            double sum = 0;
            for (uint32_t k = 0; k < TOP_K; k++)
                assert_int_equal(step.experts[k], expert_of(prompt, l, at, k));
            for (uint32_t e = 0; e < EXPERTS; e++)
                sum += (double)step.scores[e];
            assert_true(fabs(sum - 1) < 1e-3);
            count_step(&step, counted[l]);
        }
    }
    moe_trace_close(t);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (int p = 0; p < MOE_N_PREDICTORS; p++)
            for (int a = MOE_ACC_TOKENS; a <= MOE_ACC_IN_P75; a++)
                if (MOE_TRACE_PREDICTORS & 1 << p)
                    assert_int_equal(counted[l][p][a], moe_accuracy_at(s, l, p)[a]);
}

static void the_trace_agrees_with_the_statistics(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = new_statistics();
    struct moe_probe *probe = NULL;
    struct moe_trace_writer *w = NULL;
    const json_t *prompt = json_array_get(json_object_get(reference, "prompts"), 2);
    uint32_t ids[MAX_IDS], n = ids_of(prompt, ids);
    const struct moe_trace_shape shape = {.n_layers = LAYERS,
                                          .n_experts = EXPERTS,
                                          .top_k = TOP_K,
                                          .keep = EXPERTS,
                                          .predictors = MOE_TRACE_PREDICTORS};
    char path[128];
    snprintf(path, sizeof path, "/tmp/moe-probe-%d.trace", (int)getpid());
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    assert_ok(moe_probe_open(&probe, fixture.session, s, &err), &err);
    moe_probe_set_trace(probe, w);
    assert_ok(moe_probe_document(probe, ids, n, &err), &err);
    moe_probe_close(probe);
    assert_ok(moe_trace_commit(w, &err), &err);
    check_trace(path, prompt, n, s);
    unlink(path);
    moe_statistics_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_equal_the_reference),
        cmocka_unit_test(predictions_equal_a_plain_computation),
        cmocka_unit_test(batches_make_no_difference),
        cmocka_unit_test(the_trace_agrees_with_the_statistics),
    };
    return cmocka_run_group_tests_name("probe", tests, open_all, close_reference);
}
