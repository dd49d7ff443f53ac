/*
 * The simulator against moe-run in lockstep: the same documents, the same modelled times, and the
 * two logs of decisions must be the same, line for line, and their counts and times.
 */
#include <math.h>

#include "base/float16.h"
#include "lockstep_fixture.h"

/* Sanitized, a run takes ten times as long: fewer cells then. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { N_CELLS = 1 };
#else
enum { N_CELLS = 5 };
#endif

static struct strategies fixture;
static struct moe_trace *trace, *long_prompts, *long_texts;
static char trace_path[128];
/* Texts that reach the second block of the KV cache while they are answered. */
enum { N_LONG = 2, LONG = 280, LONG_PROMPT = 90 /* percent */, LONG_CONTEXT = 512 };
static uint32_t long_ids[N_LONG * LONG];

static int open_all(void **state)
{
    struct moe_err err = {0};
    strategies_set_up(&fixture, "lockstep", 4);
    snprintf(trace_path, sizeof trace_path, "/tmp/moe-lockstep-%d.trace", (int)getpid());
    lockstep_write_trace(&fixture, trace_path, moe_trace_default_keep(EXPERTS, TOP_K), 50);
    assert_ok(moe_trace_open(&trace, trace_path, &err), &err);
    unlink(trace_path);
    lockstep_write_trace(&fixture, trace_path, moe_trace_default_keep(EXPERTS, TOP_K), 75);
    assert_ok(moe_trace_open(&long_prompts, trace_path, &err), &err);
    unlink(trace_path);
    for (uint32_t i = 0; i < N_LONG * LONG; i++)
        long_ids[i] = fixture.ids[i / LONG][i * 7 % (N_ALL - 1)];
    lockstep_write_texts(&fixture, trace_path, moe_trace_default_keep(EXPERTS, TOP_K), LONG_PROMPT,
                         long_ids, N_LONG, LONG);
    assert_ok(moe_trace_open(&long_texts, trace_path, &err), &err);
    return 0;
}

static int close_all(void **state)
{
    moe_trace_close(trace);
    moe_trace_close(long_prompts);
    moe_trace_close(long_texts);
    unlink(trace_path);
    strategies_tear_down(&fixture);
    return 0;
}

/* ---- A run's own trace ---- */

/* What a run that approximates chose: its hidden states are not those of the resident engine. The
 * run goes on with the weights as a trace keeps them, so that no score crosses a threshold. */
struct recorder {
    struct moe_trace_writer *writer;
    uint32_t first; /* row of the pass */
};

static void record_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                          const float *gate_input, uint64_t hidden_stride,
                          const float *probabilities, uint64_t router_stride,
                          const uint32_t *chosen, const float *weights)
{
    struct recorder *r = ctx;
    struct moe_err err = {0};
    float *used = (float *)weights;
    for (uint32_t i = 0; i < n_rows * TOP_K; i++)
        used[i] = moe_round_f16(used[i]);
    const struct moe_layer_observation seen = {.chosen = chosen, .weights = weights};
    if (layer == 0) {
        r->first = rows[0].position;
        if (r->first == 0)
            assert_ok(moe_trace_begin(r->writer, &err), &err);
        assert_ok(moe_trace_add(r->writer, n_rows, r->first < N_ALL / 2 ? n_rows : 0, &err), &err);
    }
    moe_trace_put(r->writer, layer, r->first, n_rows, &seen, probabilities, router_stride);
}

static struct moe_trace *run_recorded(struct moe_engine *e, uint32_t batch)
{
    static const struct moe_trace_shape shape = {
        .n_layers = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K, .keep = 2 * TOP_K};
    struct moe_err err = {0};
    struct moe_trace *own = NULL;
    struct recorder r = {0};
    char path[160];
    snprintf(path, sizeof path, "%s.own", trace_path);
    assert_ok(moe_trace_create(&r.writer, path, &shape, &err), &err);
    e->session->observer = (struct moe_observer){.ctx = &r, .routed = record_routed};
    lockstep_run(e, &fixture, batch, N_ALL / 2);
    e->session->observer = (struct moe_observer){0};
    assert_ok(moe_trace_commit(r.writer, &err), &err);
    assert_ok(moe_trace_open(&own, path, &err), &err);
    unlink(path);
    return own;
}

/* ---- Runs ---- */

enum replay { REPLAY_RESIDENT = 0, REPLAY_OWN, REPLAY_LONG };

/* The long texts through an engine. */
static void run_long(struct moe_engine *e, uint32_t batch)
{
    struct moe_err err = {0};
    struct moe_row rows[CALIBRATION_TOKENS];
    for (uint32_t i = 0, n; i < N_LONG * LONG; i += n) {
        const uint32_t at = i % LONG, n_prompt = LONG * LONG_PROMPT / 100;
        n = at >= n_prompt ? 1 : at + batch > n_prompt ? n_prompt - at : batch;
        for (uint32_t k = 0; k < n; k++)
            rows[k] = (struct moe_row){0, at + k, long_ids[i + k], 0};
        assert_ok(moe_forward(e->session, at < n_prompt ? MOE_PREFILL : MOE_DECODE, rows, n, 0,
                              LAYERS, NULL, NULL, &err),
                  &err);
    }
}

/* One strategy in one memory at one ratio of a load to a layer. demand: tokens' experts; below 0,
 * MiB beside the program of a whole budget, in which prompts borrow slots. */
static void compare_at(const char *words, double demand, double ratio, uint32_t batch,
                       bool test_device, enum replay replay, const struct moe_link_costs *costs)
{
    char what[256];
    struct moe_err err = {0};
    struct moe_pack_fit *fit = NULL;
    struct moe_fitted fitted;
    struct moe_simulated simulated;
    struct moe_buf logs[2] = {0};
    struct moe_engine_options o = strategies_options(&fixture, words, demand);
    struct moe_pace pace = lockstep_pace((double)fixture.slot_bytes, ratio);
    if (costs) {
        pace.loads = *costs;
        pace.attend = 3e-6;
    }
    snprintf(what, sizeof what, "%s, demand %g, load %g, batch %u", words, demand, ratio, batch);
    if (demand < 0) {
        o.expert_memory_bytes = 0;
        o.statistics = NULL; /* which would take of the run's budget, and not of its plan's */
        o.memory_bytes = moe_program_bytes(false) + (uint64_t)(-demand * (1 << 20));
    }
    o.lockstep = true;
    o.link_rate = pace.load_rate;
    o.pace = &pace;
    o.session.batch = demand < 0 ? 4 * batch : batch; /* a loan for a few rows is none */
    if (replay == REPLAY_LONG)
        o.session.context = LONG_CONTEXT;
    o.seed = 5;
    if (test_device)
        o.device = (struct moe_device_choice){
            .test = true, .speed = pace.host_slowdown, .link_rate = pace.load_rate};

    struct moe_engine *e = strategies_open(&fixture, &o);
    struct moe_trace *own = NULL;
    e->session->pass.log = &logs[0];
    if (replay == REPLAY_OWN)
        own = run_recorded(e, batch);
    else if (replay == REPLAY_LONG)
        run_long(e, batch);
    else
        lockstep_run(e, &fixture, batch, demand < 0 ? N_PROMPT : N_ALL / 2);

    assert_ok(moe_pack_fit_open(&fit, fixture.pack, &o, &err), &err);
    const struct moe_fitter fitter = moe_pack_fit_fitter(fit);
    assert_ok(fitter.fit(fitter.ctx, &o.strategy, NULL, &fitted, &err), &err);
    const struct moe_simulation in = {
        .trace = own                     ? own
                 : replay == REPLAY_LONG ? long_texts
                 : demand < 0            ? long_prompts
                                         : trace,
        .scheduler = {.inventory = moe_pack_fit_inventory(fit),
                      .strategy = &fitted.strategy,
                      .high = fitted.high,
                      .low = fitted.low,
                      .pools = &fitted.pools,
                      .frequency = o.statistics ? o.statistics->series[MOE_S_ACTIVATIONS] : NULL,
                      .placement = o.statistics ? moe_statistics_placement(o.statistics) : NULL,
                      .seed = o.seed},
        .statistics = o.statistics,
        .pace = &pace,
        .batch = batch,
        .log = &logs[1],
    };
    assert_ok(moe_simulate(&in, &simulated, NULL, &err), &err);
    check_logs(what, &logs[0], &logs[1]);
    struct moe_phase_stats *prefill = &e->session->stats.prefill;
    struct moe_phase_stats *decode = &e->session->stats.decode;
    /* The engine counts evictions with the pass after them. */
    e->experts->ops->begin_tokens(e->experts, 0, false, &(struct moe_phase_stats){0});
    check_phase(what, prefill, &simulated.prefill);
    check_phase(what, decode, &simulated.decode);
    if ((replay != REPLAY_LONG && (prefill->experts.lent > 0) != (demand < 0)) ||
        (decode->experts.lent > 0) != (replay == REPLAY_LONG))
        fail_msg("%s: %d slots were lent to prompts, %d to answers", what,
                 (int)prefill->experts.lent, (int)decode->experts.lent);
    moe_trace_close(own);
    moe_pack_fit_close(fit);
    moe_engine_close(e);
}

static void compare(const char *words, double demand, double ratio, uint32_t batch,
                    bool test_device, enum replay replay)
{
    compare_at(words, demand, ratio, batch, test_device, replay, NULL);
}

static const char *const exact[] = {
    "ondemand",
    "lru",
    "lru cache=random",
    "lru cache=fifo alloc=per-layer",
    "lru cache=arc alloc=shallow:2",
    "lru cache=hobbit alloc=frequency init=frequency",
    "lru cache=edgemoe init=layerwise",
    "lru cache=transition alloc=per-layer",
    "prefetch cache=transition",
    "lru cache=learned init=frequency",
    "prefetch cache=learned alloc=shallow:2",
    "prefetch",
    "prefetch predict=gate-ahead:3",
    "prefetch predict=gate-residual:2 prefetch=percentile:75",
    "prefetch predict=gate-attention",
    "prefetch predict=gate-attention-before prefetch=percentile:75",
    "prefetch predict=previous",
    "prefetch predict=token",
    "prefetch predict=gate-next,token",
    "lru predict=gate-next,token prefetch=percentile:75 protect-tokens=on",
    "prefetch predict=token:4 prefetch=percentile:75 protect-tokens=on",
    "lru protect-tokens=on",
    "prefetch protect=on protect-tokens=on",
    "prefetch predict=path prefetch=all",
    "prefetch predict=keys prefetch=count:2",
    "sti",
    "moe-infinity",
    "moe-offloading",
    "prefetch protect=on",
    "prefetch prefetch=percentile:75,slack",
    "prefetch prefetch=all,measured",
    "prefetch prefetch=until-router,all",
    "eap prefill=popularity",
    "edgemoe",
    "fate prefill=popularity",
    "hobbit on-miss=load skip-below=0 low-pool=0",
};

static void decisions_are_the_same(void **state)
{
    static const struct {
        double demand, ratio;
        uint32_t batch;
    } cells[] = {{1, 0.1, 5}, {2.5, 1.5, 16}, {0.5, 0.3, 16}, {1, 1.5, 16}, {2.5, 0.3, 5}};
    for (size_t i = 0; i < N_ITEMS(exact); i++)
        for (size_t c = 0; c < N_CELLS; c++)
            compare(exact[i], cells[c].demand, cells[c].ratio, cells[c].batch, false,
                    REPLAY_RESIDENT);
}

/* Loads take their share of the processor, and computing goes by where a text is. */
static void costs_of_loads_are_the_same(void **state)
{
    static const struct moe_link_costs costs = {.latency = 90e-6,
                                                .handling = 11e-6,
                                                .handling_byte = 3e-9,
                                                .slowdown = 1.25,
                                                .demands_in_flight = 3,
                                                .prefetches_in_flight = 2,
                                                .wake = 40e-6,
                                                .late = 120e-6,
                                                .interruptions = 1.75};
    static const char *const words[] = {"ondemand", "lru", "prefetch predict=gate-ahead:2",
                                        "prefetch prefetch=until-router,all",
                                        "fate prefill=popularity"};
    for (size_t i = 0; i < N_ITEMS(words); i++) {
        compare_at(words[i], 1, 0.3, 5, false, REPLAY_RESIDENT, &costs);
        compare_at(words[i], 2.5, 1.5, 16, false, REPLAY_RESIDENT, &costs);
    }
}

static void a_second_device_is_modelled(void **state)
{
    compare("host", 1, 0.3, 16, true, REPLAY_RESIDENT);
    compare("host", 3, 1.5, 16, true, REPLAY_RESIDENT);
    compare("host prefill-swap=on", 2, 0.3, 3, true, REPLAY_RESIDENT);
    compare("daop precalculate=off degrade=off", 2, 1.5, 5, true, REPLAY_RESIDENT);
    compare("prefetch on-miss=compute-host", 2, 0.3, 5, true, REPLAY_RESIDENT);
    compare("prefetch", 2, 0.3, 5, true, REPLAY_RESIDENT);
}

/* Low precision by the score, wherever an absent expert is computed. */
static void precisions_are_the_same(void **state)
{
    static const char *const words[] = {
        "hobbit predict=none",
        "hobbit predict=previous prefetch=all",
        "lru on-miss=emergency",
        "lru on-miss=load-low:0.4 low-pool=20%",
    };
    static const char *const beside[] = {
        "hobbit predict=none on-miss=compute-host,load-low",
        "hobbit predict=previous prefetch=all on-miss=compute-host,load-low",
        "hobbit predict=none host-decodes-only=off on-miss=compute-host,load-low:0.3",
        "lru on-miss=compute-host,emergency init=layerwise",
        "lru on-miss=compute-host,load-low:0.4 low-pool=20% init=layerwise",
    };
    for (size_t i = 0; i < N_ITEMS(words); i++) {
        compare(words[i], 1, 0.3, 5, false, REPLAY_OWN);
        compare(words[i], 2.5, 1.5, 16, false, REPLAY_OWN);
    }
    for (size_t i = 0; i < N_ITEMS(beside); i++) {
        compare(beside[i], 1, 0.3, 5, true, REPLAY_OWN);
        compare(beside[i], 2.5, 1.5, 16, true, REPLAY_OWN);
    }
}

/* Cache-aware routing: what is in the cache decides which experts are used, in both alike. */
static void preferences_are_the_same(void **state)
{
    static const char *const words[] = {
        "lru prefer-cached=0.1",
        "lru cache=lrfu alloc=per-layer prefer-cached=0.5:2",
        "prefetch predict=previous prefetch=all prefer-cached=0.2",
        "hobbit predict=none skip-below=0 on-miss=load-low:0.4 prefer-cached=0.2",
    };
    for (size_t i = 0; i < N_ITEMS(words); i++) {
        compare(words[i], 1, 0.3, 5, false, REPLAY_OWN);
        compare(words[i], 2.5, 1.5, 16, false, REPLAY_OWN);
    }
}

enum { LENDING = 16 };
/* Slots that prompts borrow leave and come back in both alike. */
static void loans_are_the_same(void **state)
{
    static const char *const words[] = {"lru",
                                        "lru cache=arc alloc=shallow:2",
                                        "prefetch",
                                        "prefetch cache=learned",
                                        "lru alloc=per-layer",
                                        "moe-infinity",
                                        "prefetch protect=on protect-tokens=on"};
    for (size_t i = 0; i < N_ITEMS(words); i++) {
        compare(words[i], -LENDING, 0.3, 24, false, REPLAY_RESIDENT);
        compare(words[i], -LENDING, 1.5, 20, false, REPLAY_RESIDENT);
    }
}

/* ... and those that the KV cache borrows as a text grows: its second block comes with a token of
 * the answer, and the next text begins with one. */
static void growing_texts_are_the_same(void **state)
{
    compare("lru", -LENDING, 0.3, 24, false, REPLAY_LONG);
    compare("prefetch cache=learned", -LENDING, 1.5, 60, false, REPLAY_LONG);
    compare("lru cache=arc alloc=per-layer", -LENDING, 0.3, 60, false, REPLAY_LONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions_are_the_same),
        cmocka_unit_test(costs_of_loads_are_the_same),
        cmocka_unit_test(a_second_device_is_modelled),
        cmocka_unit_test(precisions_are_the_same),
        cmocka_unit_test(preferences_are_the_same),
        cmocka_unit_test(loans_are_the_same),
        cmocka_unit_test(growing_texts_are_the_same),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
