/*
 * Routers ahead, asked on the device or by the host: the same predictions to the bit as those of
 * the processor's sessions, the same logits and counts of whole strategies, and a choice that goes
 * by what was measured or named.
 */
#define _GNU_SOURCE /* setenv */
#include "../unit/strategies_fixture.h"

#include "engine_fixture.h"
#include "infer/gpu_work.h"
#include "infer/layer_predictor.h"
#include "infer/router.h"
#include "infer/stages.h"

enum { DEPTH = 2, ROWS = 5 };
enum { PROMPT = 9, STEPS = 24 }; /* rows of a run */

static struct strategies fixture;

/* ---- Predictions ---- */

/* The processor's session predicts when a layer's router has chosen: its stream goes on. */
struct asker {
    struct moe_layer_predictor *predictor;
    uint32_t layer, n;
    const struct moe_prediction *predictions;
};

static void ask(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct asker *t = ctx;
    if (layer == t->layer)
        t->n = moe_predict_layers(t->predictor, layer, n_rows, DEPTH, &t->predictions);
}

static void pass(struct side *s, const struct moe_row *rows, uint32_t n_rows, uint32_t layer)
{
    struct moe_err err = {0};
    assert_ok(moe_forward(s->session, MOE_PREFILL, rows, n_rows, 0, layer + 1, NULL, NULL, &err),
              &err);
}

/* After every layer, for n_rows rows: by the device, where a softmax predicts what the routers do,
 * then by the host for it. */
static void compare_layers(struct pair *p, struct moe_layer_predictor *const *f, uint32_t n_rows)
{
    const struct moe_config *c = &p->sides[CPU].model->config;
    struct moe_session *device = p->sides[GPU].session;
    const struct moe_prediction *got;
    struct moe_row rows[ROWS];
    pair_rows(p, rows, 0, 0, n_rows);
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        struct asker t = {.predictor = f[CPU], .layer = layer};
        p->sides[CPU].session->observer = (struct moe_observer){.ctx = &t, .routed = ask};
        pass(&p->sides[CPU], rows, n_rows, layer);
        for (int on_host = !moe_router_is_softmax(c); on_host < 2 && c->layers[layer].moe;
             on_host++) {
            ((struct gpu_work *)device->device)->prediction.host_rows =
                on_host ? n_rows : n_rows - 1;
            pass(&p->sides[GPU], rows, n_rows, layer);
            assert_int_equal(moe_predict_layers(f[GPU], layer, n_rows, DEPTH, &got), t.n);
            for (uint32_t d = 0; d < t.n; d++) {
                const struct moe_prediction *want = &t.predictions[d];
                assert_int_equal(got[d].layer, want->layer);
                same_rows(got[d].scores, want->scores, 0, 1, c->n_experts, "scores");
                same_rows(got[d].unimportance, want->unimportance, 0, 1, c->n_experts,
                          "unimportance");
                p->n_compared++;
            }
        }
    }
}

/* The device predicts by a softmax: where routers do otherwise the host is asked, and nobody else.
 */
static void check_choice(struct moe_session *device, struct moe_layer_predictor *predictor)
{
    struct moe_err err = {0};
    struct gpu_prediction *p = &((struct gpu_work *)device->device)->prediction;
    if (moe_router_is_softmax(&device->model->config))
        return;
    p->named = MOE_PREDICT_ON_AUTO;
    assert_ok(device->stages->choose_predict_device(device, predictor, &err), &err);
    assert_int_equal(p->host_rows, UINT32_MAX);
    p->named = MOE_PREDICT_ON_GPU;
    assert_fails(device->stages->choose_predict_device(device, predictor, &err), MOE_ERR_USAGE,
                 "only the host predicts", &err);
}

static void compare_predictions(struct pair *p, struct moe_strategy *strategy, bool needs_rows)
{
    struct moe_err err = {0};
    struct moe_layer_predictor *f[N_SIDES];
    pair_experts(p, true);
    pair_sessions(p, (struct moe_session_options){
                         .context = 32,
                         .batch = ROWS,
                         .predict_depth = DEPTH,
                         .predict_residual = strategy->predict == MOE_PREDICT_BY_RESIDUAL,
                         .needs_rows = needs_rows,
                     });
    for (int i = 0; i < N_SIDES; i++)
        assert_ok(moe_layer_predictor_open(&f[i], p->sides[i].session, strategy, NULL, &err), &err);
    check_choice(p->sides[GPU].session, f[GPU]);
    compare_layers(p, f, 1);
    compare_layers(p, f, ROWS);
    for (int i = 0; i < N_SIDES; i++)
        moe_layer_predictor_close(f[i]);
    pair_close_sessions(p);
    pair_close_experts(p);
}

/* Routers with biases, norms with biases, dense layers in between, every form of inputs. */
static void both_predict_what_the_processor_does(void **state)
{
    static const struct {
        const char *fixture;
        int dense;
    } cases[] = {
        {"qwen3-moe-a", 8},   {"gpt-oss-a", 16}, {"phimoe-short", 32}, /* sparsemixers */
        {"deepseek-v2-b", 8}, {"deepseek", 4},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct pair p = {.random = 11};
        char path[128];
        snprintf(path, sizeof path, DRAWN "/%s", cases[i].fixture);
        pair_pack(&p, path, (struct moe_bits){4, 4}, cases[i].dense);
        pair_load(&p, gpu, 32);
        struct moe_strategy strategy = {.depth = DEPTH, .predict = MOE_PREDICT_BY_GATE};
        compare_predictions(&p, &strategy, false);
        compare_predictions(&p, &strategy, true);
        strategy.predict = MOE_PREDICT_BY_RESIDUAL;
        compare_predictions(&p, &strategy, false);
        assert_true(p.n_compared >= (moe_router_is_softmax(&p.sides[CPU].model->config) ? 12 : 6));
        pair_close(&p);
    }
}

/* ---- Whole strategies ---- */

static struct moe_engine_options on_gpu(const char *words, enum moe_predict_on place)
{
    struct moe_engine_options o = strategies_options(&fixture, words, 1);
    o.device.cuda = true;
    o.session.predict_on = place;
    return o;
}

/* In lockstep, without a limit that goes by measured times, decisions repeat. */
static struct moe_stats run(const char *words, enum moe_predict_on place, float *logits)
{
    struct moe_err err = {0};
    struct moe_engine_options o = on_gpu(words, place);
    o.strategy.prefetch.slack = false;
    o.lockstep = true;
    o.link_rate = 2e9;
    struct moe_engine *e = strategies_open(&fixture, &o);
    for (uint32_t first = 0, n; first < STEPS; first += n) {
        struct moe_row rows[STEPS];
        n = first < PROMPT ? PROMPT : 1;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, first + i, fixture.ids[0][first + i], 0};
        assert_ok(moe_forward(e->session, first < PROMPT ? MOE_PREFILL : MOE_DECODE, rows, n, 0,
                              e->model->config.n_layers, NULL, NULL, &err),
                  &err);
        assert_ok(moe_logits(e->session, n - 1, 1, logits + first * fixture.logits_stride, &err),
                  &err);
    }
    struct moe_stats stats = e->session->stats;
    moe_engine_finish_stats(e, &stats);
    moe_engine_close(e);
    return stats;
}

static void strategies_do_the_same(void **state)
{
    static const char *const words[] = {"fate", "hobbit", "daop",
                                        "prefetch predict=gate-residual:2"};
    uint64_t n_bytes = STEPS * fixture.logits_stride * sizeof(float);
    float *a = calloc(1, n_bytes), *b = calloc(1, n_bytes);
    assert_true(a && b);
    for (size_t i = 0; i < N_ITEMS(words); i++) {
        struct moe_stats there = run(words[i], MOE_PREDICT_ON_GPU, a);
        struct moe_stats here = run(words[i], MOE_PREDICT_ON_HOST, b);
        assert_string_equal(there.predict_on, "gpu");
        assert_string_equal(here.predict_on, "host");
        assert_memory_equal(a, b, n_bytes);
        assert_memory_equal(&there.prefill.experts, &here.prefill.experts,
                            sizeof there.prefill.experts);
        assert_memory_equal(&there.decode.experts, &here.decode.experts,
                            sizeof there.decode.experts);
        assert_int_equal(there.prefill.bytes_uploaded, here.prefill.bytes_uploaded);
        assert_int_equal(there.decode.bytes_uploaded, here.decode.bytes_uploaded);
        const struct moe_counts *n = &here.decode.experts;
        assert_true(n->predicted_right > 0 || n->precalculated > 0);
    }
    free(a);
    free(b);
}

/* ---- The choice ---- */

static void the_faster_one_or_the_named(void **state)
{
    static const char *const names[] = {
        [MOE_PREDICT_ON_GPU] = "gpu", [MOE_PREDICT_ON_HOST] = "host"};
    for (enum moe_predict_on named = MOE_PREDICT_ON_AUTO; named <= MOE_PREDICT_ON_HOST; named++) {
        const struct moe_engine_options o = on_gpu("hobbit", named);
        struct moe_engine *e = strategies_open(&fixture, &o);
        const struct gpu_work *work = e->session->device;
        struct moe_stats stats = {0};
        moe_engine_finish_stats(e, &stats);
        assert_true(stats.predict_gpu_seconds > 0 && stats.predict_host_seconds > 0);
        bool host = stats.predict_host_seconds < stats.predict_gpu_seconds;
        uint32_t rows[] = {host, 0, UINT32_MAX};
        assert_int_equal(work->prediction.host_rows, rows[named]);
        assert_string_equal(stats.predict_on, named ? names[named] : host ? "host" : "gpu");
        moe_engine_close(e);
    }
}

/* Strategies that ask none have nothing to choose, and nothing more in memory. */
static void nothing_to_choose(void **state)
{
    struct moe_err err = {0};
    struct moe_engine *e;
    struct moe_engine_options o = on_gpu("lru", MOE_PREDICT_ON_AUTO);
    struct moe_stats stats = {0};
    e = strategies_open(&fixture, &o);
    moe_engine_finish_stats(e, &stats);
    assert_string_equal(stats.predict_on, "");
    uint64_t without = e->budget.host.dense;
    moe_engine_close(e);
    for (enum moe_predict_on named = MOE_PREDICT_ON_GPU; named <= MOE_PREDICT_ON_HOST; named++) {
        o = on_gpu("lru", named);
        assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_USAGE,
                     "option --predict-on: strategy lru asks no routers", &err);
        err = (struct moe_err){0};
        o = on_gpu("eap", named);
        assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_USAGE,
                     "option --predict-on: strategy eap asks no routers", &err);
        err = (struct moe_err){0};
        o = on_gpu("fate", named);
        e = strategies_open(&fixture, &o);
        uint64_t copies = moe_host_routers_bytes(e->model);
        const struct moe_config *c = &e->model->config;
        assert_true(copies > (uint64_t)c->n_layers * c->n_experts * c->hidden * 2); /* of 16 bits */
        assert_int_equal(e->budget.host.dense, without + copies);
        moe_engine_close(e);
    }
    o = on_gpu("fate", MOE_PREDICT_ON_HOST); /* there is no other place */
    o.device.cuda = false;
    e = strategies_open(&fixture, &o);
    assert_null(e->session->stages->predict);
    moe_engine_close(e);
}

/* The first kernel of all is one that is timed. */
static void a_device_lost_while_it_is_timed(void **state)
{
    struct moe_gpu_info info;
    struct moe_err err = {0};
    struct moe_engine *e = NULL;
    if (moe_gpu_describe(0, &info) != 0 || strncmp(info.name, "shim", 4) != 0)
        skip();
    const struct moe_engine_options o = on_gpu("fate", MOE_PREDICT_ON_AUTO);
    setenv("MOE_SHIM_FAIL", "cudaLaunchKernel:1", 1);
    int status = moe_engine_open(&e, fixture.pack, &o, NULL, &err);
    unsetenv("MOE_SHIM_FAIL");
    assert_int_equal(status, MOE_ERR_DEVICE);
    assert_null(e);
}

/* A small model in two precisions, and statistics of random tokens. */
static void open_fixture(void)
{
    struct moe_err err = {0};
    struct moe_probe *probe;
    uint64_t random = 3;
    const struct moe_convert_options options = pack_options("4,2", 16);
    snprintf(fixture.pack, sizeof fixture.pack, "/tmp/moe-predict-%d.moe", (int)getpid());
    make_pack(fixture.pack, DRAWN "/qwen3-moe-a", &options);
    const struct moe_engine_options o = strategies_options(&fixture, "resident", 0);
    struct moe_engine *e = strategies_open(&fixture, &o);
    const struct moe_config *c = &e->model->config;
    fixture.token_bytes = moe_cache_slot_bytes(e->model->pack, 0) * c->n_layers * c->top_k;
    fixture.logits_stride = moe_logits_stride(c);
    for (uint32_t i = 0; i < STEPS; i++)
        fixture.ids[0][i] = (uint32_t)(test_random(&random) % c->vocab);
    struct moe_statistics_shape shape = moe_model_statistics_shape(e->model);
    shape.max_tokens = STEPS;
    shape.prompt_percent = 50;
    assert_ok(moe_statistics_new(&fixture.statistics, &shape, &err), &err);
    assert_ok(moe_probe_open(&probe, e->session, fixture.statistics, &err), &err);
    assert_ok(moe_probe_document(probe, fixture.ids[0], STEPS, &err), &err);
    moe_probe_close(probe);
    moe_engine_close(e);
}

static int open_all(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    open_fixture();
    assert_ok(moe_gpu_open(&gpu, 0, &err), &err);
    return 0;
}

static int close_all(void **state)
{
    moe_gpu_close(gpu);
    strategies_tear_down(&fixture);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_predict_what_the_processor_does),
        cmocka_unit_test(strategies_do_the_same),
        cmocka_unit_test(the_faster_one_or_the_named),
        cmocka_unit_test(nothing_to_choose),
        cmocka_unit_test(a_device_lost_while_it_is_timed),
    };
    return cmocka_run_group_tests_name("predict device", tests, open_all, close_all);
}
