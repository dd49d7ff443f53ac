/*
 * Following a trace: its choices are computed and none else, and in lockstep the simulator decides
 * the same, also with predictions of an assumed accuracy.
 */
#include <math.h>

#include "lockstep_fixture.h"
#include "sched/replay.h"
#include "tune/followed_run.h"

enum { TOKENS = 42 }; /* of a trace in lockstep: a text and the beginning of the next */

static struct strategies fixture;
static struct moe_trace *trace;
static char trace_path[128];

static int open_all(void **state)
{
    struct moe_err err = {0};
    strategies_set_up(&fixture, "follow", 4);
    snprintf(trace_path, sizeof trace_path, "/tmp/moe-follow-%d.trace", (int)getpid());
    lockstep_write_trace(&fixture, trace_path, moe_trace_default_keep(EXPERTS, TOP_K), 50);
    assert_ok(moe_trace_open(&trace, trace_path, &err), &err);
    return 0;
}

static int close_all(void **state)
{
    moe_trace_close(trace);
    unlink(trace_path);
    strategies_tear_down(&fixture);
    return 0;
}

/* ---- Choices ---- */

/* A trace of what a session computes. */
struct recorder {
    struct moe_trace_writer *writer;
    uint32_t first;
};

static void record_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                          const float *gate_input, uint64_t hidden_stride,
                          const float *probabilities, uint64_t router_stride,
                          const uint32_t *chosen, const float *weights)
{
    struct recorder *r = ctx;
    struct moe_err err = {0};
    const struct moe_layer_observation seen = {.chosen = chosen, .weights = weights};
    if (layer == 0) {
        r->first = rows[0].position;
        if (r->first == 0)
            assert_ok(moe_trace_begin(r->writer, &err), &err);
        assert_ok(moe_trace_add(r->writer, n_rows, n_rows > 1 ? n_rows : 0, &err), &err);
    }
    moe_trace_put(r->writer, layer, r->first, n_rows, &seen, NULL, 0);
}

static void follow(struct moe_engine *e, struct moe_trace *which, uint64_t tokens)
{
    struct moe_err err = {0};
    const struct moe_followed f = {.trace = which,
                                   .excerpt = {.max_tokens = tokens},
                                   .strategy = &e->strategy,
                                   .statistics = e->statistics};
    assert_ok(moe_bench_follow(e->session, &f, &err), &err);
}

/* Made trace: any tokens in any layers, k of them. A layer of `gap` is not there. */
static struct moe_trace *make_trace(const char *path, uint32_t k, uint32_t gap)
{
    struct moe_err err = {0};
    struct moe_trace_writer *w;
    struct moe_trace *out;
    const struct moe_trace_shape shape = {.n_layers = LAYERS, .n_experts = EXPERTS, .top_k = k};
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    for (uint32_t sequence = 0; sequence < 3; sequence++) {
        assert_ok(moe_trace_begin(w, &err), &err);
        for (uint32_t t = 0; t < 20; t++) {
            assert_ok(moe_trace_add(w, 1, t < 7, &err), &err);
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                uint32_t chosen[EXPERTS];
                float weights[EXPERTS];
                for (uint32_t i = 0; i < k; i++) {
                    chosen[i] = (sequence * 7 + t * t + layer * 5 + i * 3) % EXPERTS;
                    weights[i] = 1 / (float)k;
                }
                const struct moe_layer_observation seen = {.chosen = chosen, .weights = weights};
                if (layer != gap)
                    moe_trace_put(w, layer, t, 1, &seen, NULL, 0);
            }
        }
    }
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_trace_open(&out, path, &err), &err);
    return out;
}

static void check_same_choices(struct moe_trace *a, struct moe_trace *b, uint32_t k)
{
    struct moe_err err = {0};
    const struct moe_trace_token *x, *y;
    moe_trace_rewind(a);
    moe_trace_rewind(b);
    do {
        assert_ok(moe_trace_next(a, &x, &err), &err);
        assert_ok(moe_trace_next(b, &y, &err), &err);
        assert_int_equal(!x, !y);
        for (uint32_t layer = 0; x && layer < LAYERS; layer++) {
            const struct moe_trace_step p = moe_trace_step(a, layer), q = moe_trace_step(b, layer);
            assert_int_equal(x->prompt, y->prompt);
            assert_memory_equal(p.experts, q.experts, k * sizeof *p.experts);
            assert_memory_equal(p.weights, q.weights, k * sizeof *p.weights);
        }
    } while (x);
}

/* Recorded by a run, followed by another, recorded again. */
static void choices_are_the_traces(void **state)
{
    static const uint32_t ks[] = {TOP_K, 3, 6};
    struct moe_err err = {0};
    char made[160], again[160];
    snprintf(made, sizeof made, "%s.made", trace_path);
    snprintf(again, sizeof again, "%s.again", trace_path);
    for (size_t i = 0; i < N_ITEMS(ks); i++) {
        struct moe_trace *first = make_trace(made, ks[i], UINT32_MAX), *second;
        struct moe_engine_options o = strategies_options(&fixture, "lru", 2.5);
        struct recorder r = {0};
        o.follows = moe_trace_shape(first);
        o.follows_name = made;
        o.statistics = NULL;
        struct moe_engine *e = strategies_open(&fixture, &o);
        const struct moe_trace_shape shape = {
            .n_layers = LAYERS, .n_experts = EXPERTS, .top_k = ks[i]};
        assert_ok(moe_trace_create(&r.writer, again, &shape, &err), &err);
        e->session->observer = (struct moe_observer){.ctx = &r, .routed = record_routed};
        follow(e, first, 0);
        assert_ok(moe_trace_commit(r.writer, &err), &err);
        assert_ok(moe_trace_open(&second, again, &err), &err);
        check_same_choices(first, second, ks[i]);
        const struct moe_phase_stats *d = &e->session->stats.decode;
        assert_int_equal(d->tokens, 3 * 13);
        assert_int_equal(d->experts.activations, 3 * 13 * LAYERS * ks[i]);
        moe_engine_close(e);
        moe_trace_close(first);
        moe_trace_close(second);
    }
    unlink(made);
    unlink(again);
}

/* ---- Lockstep ---- */

static void compare(struct moe_trace *which, const char *words, double demand, double ratio,
                    uint32_t batch)
{
    char what[256];
    struct moe_err err = {0};
    struct moe_pack_fit *fit = NULL;
    struct moe_fitted fitted;
    struct moe_simulated simulated;
    struct moe_buf logs[2] = {0};
    struct moe_engine_options o = strategies_options(&fixture, words, demand);
    const struct moe_pace pace = lockstep_pace((double)fixture.slot_bytes, ratio);
    snprintf(what, sizeof what, "%s, demand %g, load %g, batch %u", words, demand, ratio, batch);
    o.lockstep = true;
    o.link_rate = pace.load_rate;
    o.pace = &pace;
    o.session.batch = batch;
    o.seed = 5;
    o.follows = moe_trace_shape(which);
    o.follows_name = trace_path;
    if (moe_trace_shape(which)->top_k != TOP_K)
        o.statistics = NULL;
    struct moe_engine *e = strategies_open(&fixture, &o);
    e->session->pass.log = &logs[0];
    follow(e, which, TOKENS);

    assert_ok(moe_pack_fit_open(&fit, fixture.pack, &o, &err), &err);
    const struct moe_fitter fitter = moe_pack_fit_fitter(fit);
    assert_ok(fitter.fit(fitter.ctx, &o.strategy, NULL, &fitted, &err), &err);
    const struct moe_simulation in = {
        .trace = which,
        .excerpt = {.max_tokens = TOKENS},
        .scheduler = {.inventory = moe_pack_fit_inventory(fit),
                      .strategy = &fitted.strategy,
                      .high = fitted.high,
                      .low = fitted.low,
                      .pools = &fitted.pools,
                      .frequency = fixture.statistics->series[MOE_S_ACTIVATIONS],
                      .placement = moe_statistics_placement(fixture.statistics),
                      .seed = o.seed},
        .statistics = o.statistics,
        .pace = &pace,
        .batch = batch,
        .log = &logs[1],
    };
    assert_ok(moe_simulate(&in, &simulated, NULL, &err), &err);
    check_logs(what, &logs[0], &logs[1]);
    e->experts->ops->begin_tokens(e->experts, 0, false, &(struct moe_phase_stats){0});
    check_phase(what, &e->session->stats.prefill, &simulated.prefill);
    check_phase(what, &e->session->stats.decode, &simulated.decode);
    moe_pack_fit_close(fit);
    moe_engine_close(e);
}

static void decisions_are_the_simulators(void **state)
{
    static const char *const words[] = {
        "lru cache=lrfu alloc=per-layer",
        "prefetch predict=previous",
        "prefetch predict=token:3 protect-tokens=on",
        "prefetch predict=gate-next,token",
        "fate prefill=popularity",
        "prefetch assume-prediction=100% predict=gate-ahead:3",
        "prefetch assume-prediction=50% predict=gate-attention",
        "prefetch assume-prediction=80% predict=path prefetch=count:2",
    };
    for (size_t i = 0; i < N_ITEMS(words); i++)
        compare(trace, words[i], i % 2 ? 2.5 : 1, i % 2 ? 1.5 : 0.3, i % 2 ? 5 : 16);
}

/* Another number of experts a token, and a layer that the trace does not have. */
static void imported_traces_are_followed(void **state)
{
    char path[160];
    snprintf(path, sizeof path, "%s.gap", trace_path);
    struct moe_trace *made = make_trace(path, 3, 4);
    compare(made, "prefetch assume-prediction=80%", 2, 1.5, 5);
    moe_trace_close(made);
    made = make_trace(path, 6, UINT32_MAX);
    compare(made, "prefetch assume-prediction=80%", 2, 1.5, 16);
    moe_trace_close(made);
    unlink(path);
}

/* ---- Assumptions ---- */

static void assumed_predictions_are_as_accurate(void **state)
{
    static const double accuracies[] = {0, 0.5, 0.8, 1};
    for (size_t a = 0; a < N_ITEMS(accuracies); a++) {
        uint32_t right = 0, n = 0;
        for (uint32_t token = 0; token < 2000; token++) {
            const struct moe_assumed_of of = {1, token, 3};
            uint16_t chosen[TOP_K];
            float p[EXPERTS], again[EXPERTS], sum = 0;
            uint32_t predicted = 0;
            for (uint32_t k = 0; k < TOP_K; k++)
                chosen[k] = (uint16_t)((token * 5 + k * 9) % EXPERTS);
            moe_assumed_prediction(of, accuracies[a], chosen, TOP_K, EXPERTS, p);
            moe_assumed_prediction(of, accuracies[a], chosen, TOP_K, EXPERTS, again);
            assert_memory_equal(p, again, sizeof p);
            for (uint32_t e = 0; e < EXPERTS; e++) {
                predicted += p[e] > 0;
                sum += p[e];
            }
            assert_int_equal(predicted, TOP_K);
            assert_true(fabsf(sum - 1) < 1e-5f);
            for (uint32_t k = 0; k < TOP_K; k++)
                right += p[chosen[k]] > 0;
            n += TOP_K;
        }
        assert_true(fabs((double)right / n - accuracies[a]) < 0.02);
    }
}

/* All experts chosen: there is no other to name. */
static void nothing_is_spoilt_without_others(void **state)
{
    const struct moe_assumed_of of = {0, 0, 0};
    uint16_t chosen[4] = {2, 0, 3, 1};
    float p[4];
    moe_assumed_prediction(of, 0, chosen, 4, 4, p);
    for (int e = 0; e < 4; e++)
        assert_true(p[e] > 0);
    assert_true(p[2] > p[0] && p[0] > p[3] && p[3] > p[1]);
}

static void other_traces_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_engine *e;
    struct moe_engine_options o = strategies_options(&fixture, "lru", 2.5);
    struct moe_trace_shape shape = {.n_layers = LAYERS - 1, .n_experts = EXPERTS, .top_k = TOP_K};
    o.follows = &shape;
    o.follows_name = "x.trace";
    assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_USAGE,
                 "x.trace: a trace of 11 layers of 32 experts", &err);
    o = strategies_options(&fixture, "prefetch assume-prediction=80%", 2.5);
    assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_USAGE,
                 "--assume-prediction", &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_the_traces),
        cmocka_unit_test(decisions_are_the_simulators),
        cmocka_unit_test(imported_traces_are_followed),
        cmocka_unit_test(assumed_predictions_are_as_accurate),
        cmocka_unit_test(nothing_is_spoilt_without_others),
        cmocka_unit_test(other_traces_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
