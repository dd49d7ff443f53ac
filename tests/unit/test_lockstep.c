/*
 * The simulator against moe-run in lockstep: the same documents, the same modelled times, and every
 * decision must be the same, hit for hit and load for load.
 */
#include <math.h>

#include "lockstep_fixture.h"

/* Sanitized, a run takes ten times as long: fewer cells then. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { N_CELLS = 2 };
#else
enum { N_CELLS = 5 };
#endif

static struct strategies fixture;
static struct moe_trace *trace;
static char trace_path[128];

static int open_all(void **state)
{
    struct moe_err err = {0};
    strategies_set_up(&fixture, "lockstep");
    snprintf(trace_path, sizeof trace_path, "/tmp/moe-lockstep-%d.trace", (int)getpid());
    lockstep_write_trace(&fixture, trace_path, moe_trace_default_keep(EXPERTS, TOP_K));
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

static void check_count(const char *what, const char *name, uint64_t run, uint64_t simulated)
{
    if (run != simulated)
        fail_msg("%s: %s: %llu in the run, %llu simulated", what, name, (unsigned long long)run,
                 (unsigned long long)simulated);
}

static void check_seconds(const char *what, const char *name, double run, double simulated)
{
    if (fabs(run - simulated) > 1e-9 * fmax(1e-3, run))
        fail_msg("%s: %s: %.12g s in the run, %.12g s simulated", what, name, run, simulated);
}

static void check_phase(const char *what, const struct moe_phase_stats *r,
                        const struct moe_simulated_phase *s)
{
#define CHECK(name) check_count(what, #name, r->experts.name, s->experts.name)
    check_count(what, "tokens", r->tokens, s->tokens);
    CHECK(activations);
    CHECK(cache_hits);
    CHECK(prefetch_hits);
    CHECK(prefetch_late);
    CHECK(misses);
    CHECK(host_computed);
    CHECK(precalculated);
    CHECK(skipped);
    CHECK(low_precision);
    CHECK(predicted);
    CHECK(predicted_right);
    CHECK(prefetches);
    CHECK(prefetches_used);
    CHECK(loads);
    CHECK(evictions);
    CHECK(prefetch_wasted_bytes);
#undef CHECK
    check_count(what, "bytes", r->bytes_read, s->bytes);
    check_seconds(what, "seconds", r->seconds, s->seconds);
    check_seconds(what, "stall", r->stall_seconds, s->stall_seconds);
    check_seconds(what, "host", r->host_seconds, s->host_seconds);
    check_seconds(what, "reading", r->read_seconds, s->link_seconds);
    check_seconds(what, "parts", s->seconds,
                  s->compute_seconds + s->stall_seconds + s->host_seconds);
}

/* One strategy in one memory at one ratio of a load to a layer. */
static void compare(const char *words, double demand, double ratio, uint32_t batch,
                    bool test_device)
{
    char what[256];
    struct moe_err err = {0};
    struct moe_pack_fit *fit = NULL;
    struct moe_fitted fitted;
    struct moe_simulated simulated;
    struct moe_engine_options o = strategies_options(&fixture, words, demand);
    const struct moe_pace pace = lockstep_pace((double)fixture.slot_bytes, ratio);
    snprintf(what, sizeof what, "%s, demand %g, load %g, batch %u", words, demand, ratio, batch);
    o.lockstep = true;
    o.link_rate = pace.load_rate;
    o.pace = &pace;
    o.session.batch = batch;
    o.seed = 5;
    if (test_device)
        o.device = (struct moe_device_choice){
            .test = true, .speed = pace.host_slowdown, .link_rate = pace.load_rate};

    struct moe_engine *e = strategies_open(&fixture, &o);
    lockstep_run(e, &fixture, batch);

    assert_ok(moe_pack_fit_open(&fit, fixture.pack, &o, &err), &err);
    const struct moe_fitter fitter = moe_pack_fit_fitter(fit);
    assert_ok(fitter.fit(fitter.ctx, &o.strategy, 0, &fitted, &err), &err);
    const struct moe_simulation in = {
        .trace = trace,
        .scheduler = {.inventory = moe_pack_fit_inventory(fit),
                      .strategy = &fitted.strategy,
                      .high = fitted.high,
                      .low = fitted.low,
                      .pools = &fitted.pools,
                      .frequency = fixture.statistics->series[MOE_S_ACTIVATIONS],
                      .placement = moe_statistics_placement(fixture.statistics),
                      .seed = o.seed},
        .statistics = fixture.statistics,
        .pace = &pace,
        .batch = batch,
    };
    assert_ok(moe_simulate(&in, &simulated, NULL, &err), &err);
    struct moe_phase_stats *prefill = &e->session->stats.prefill;
    struct moe_phase_stats *decode = &e->session->stats.decode;
    /* The engine counts evictions with the pass after them. */
    e->experts->ops->begin_tokens(e->experts, 0, false, &(struct moe_phase_stats){0});
    check_phase(what, prefill, &simulated.prefill);
    check_phase(what, decode, &simulated.decode);
    moe_pack_fit_close(fit);
    moe_engine_close(e);
}

static const char *const exact[] = {
    "ondemand",
    "lru",
    "lru cache=random",
    "lru cache=fifo alloc=per-layer",
    "lru cache=arc alloc=shallow:2",
    "lru cache=hobbit alloc=frequency init=frequency",
    "lru cache=edgemoe init=layerwise",
    "prefetch",
    "prefetch predict=gate-ahead:3",
    "prefetch predict=gate-residual:2 prefetch=percentile:75",
    "prefetch predict=previous",
    "prefetch predict=path prefetch=all",
    "prefetch predict=keys prefetch=count:2",
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
            compare(exact[i], cells[c].demand, cells[c].ratio, cells[c].batch, false);
}

static void a_second_device_is_modelled(void **state)
{
    compare("host", 1, 0.3, 16, true);
    compare("host", 3, 1.5, 16, true);
    compare("host prefill-swap=on", 2, 0.3, 3, true);
    compare("daop precalculate=off degrade=off", 2, 1.5, 5, true);
    compare("prefetch on-miss=compute-host", 2, 0.3, 5, true);
    compare("prefetch", 2, 0.3, 5, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions_are_the_same),
        cmocka_unit_test(a_second_device_is_modelled),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
