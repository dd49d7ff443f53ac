/*
 * Texts run through the pack "x.moe" of the test's directory, in lockstep, and simulated from their
 * trace: both must agree in every count.
 */
#ifndef TESTS_SIMULATED_FIXTURE_H
#define TESTS_SIMULATED_FIXTURE_H

#include "../make_pack.h"
#include "../scratch_dir.h"

#include "base/par.h"
#include "engine/engine.h"
#include "engine/memory.h"
#include "infer/forward.h"
#include "kern/kern.h"
#include "tune/probe.h"

#include "phase_fixture.h"
#include "random_model.h"

enum { N_IDS = 24 };

static inline void draw_ids(const struct moe_config *c, uint64_t seed, uint32_t ids[N_IDS])
{
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = random_below(&seed, c->vocab);
}

/* Logits of all ids: half of them a prompt, in passes of `part` rows, the rest one by one. */
static inline float *run(struct moe_session *s, const uint32_t *ids, uint32_t part)
{
    struct moe_err err = {0};
    struct moe_row rows[N_IDS];
    uint64_t stride = moe_logits_stride(&s->model->config);
    float *logits = calloc(N_IDS * stride, sizeof *logits);
    for (uint32_t first = 0, n; first < N_IDS; first += n) {
        bool prompt = first < N_IDS / 2;
        n = !prompt ? 1 : first + part > N_IDS / 2 ? N_IDS / 2 - first : part;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, first + i, ids[first + i], N_IDS};
        assert_ok(moe_forward(s, prompt ? MOE_PREFILL : MOE_DECODE, rows, n, 0,
                              s->model->config.n_layers, NULL, NULL, &err),
                  &err);
        assert_ok(moe_logits(s, 0, n, logits + first * stride, &err), &err);
    }
    return logits;
}

static inline struct moe_engine *open_engine(const char *strategy, uint64_t expert_bytes,
                                             uint32_t staging)
{
    struct moe_err err = {0};
    struct moe_engine_options o = {.expert_memory_bytes = expert_bytes, .staging = staging};
    struct moe_engine *e = NULL;
    uint32_t named;
    assert_ok(moe_strategy_parse(strategy, &o.strategy, &named, &err), &err);
    moe_strategy_drop_idle(&o.strategy, named);
    assert_ok(moe_strategy_settle(&o.strategy, &err), &err);
    assert_ok(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), &err);
    return e;
}

/* That the model's logits, written at `bits`, are the same bits with each strategy, in caches and
 * passes of several sizes and with both numbers of threads, as with all experts in memory. seen:
 * called with the statistics of strategy k, NULL: nobody looks. */
static inline void check_same_bits(const struct random_model *m, uint64_t seed, int bits,
                                   const char *const *strategies, size_t n,
                                   void (*seen)(void *ctx, size_t k, const struct moe_stats *),
                                   void *ctx)
{
    uint32_t ids[N_IDS];
    draw_ids(&m->c, seed, ids);
    random_model_write(m, bits, in_dir("x.moe"));
    struct moe_engine *e = open_engine("resident", 0, 0);
    uint64_t slot = moe_cache_slot_bytes(e->model->pack, 0);
    uint64_t n_logits = N_IDS * moe_logits_stride(&m->c);
    float *want = run(e->session, ids, N_IDS);
    moe_engine_close(e);
    for (size_t k = 0; k < n; k++) {
        uint32_t size = (uint32_t)(k + seed) % 3;
        moe_par_set_threads(1 + (int)size % 2);
        e = open_engine(strategies[k], (1 + 3 * size) * m->c.top_k * slot, size * 5);
        float *got = run(e->session, ids, 1 + (k * 5) % N_IDS);
        if (memcmp(want, got, n_logits * sizeof *want))
            fail_msg("seed %llu, %s, size %u: logits differ", (unsigned long long)seed,
                     strategies[k], size);
        assert_true(moe_stats_exact(&e->session->stats));
        if (seen)
            seen(ctx, k, &e->session->stats);
        free(got);
        moe_engine_close(e);
    }
    moe_par_set_threads(2);
    free(want);
}

static inline void write_trace(const char *path, struct moe_statistics **counted,
                               const uint32_t *ids)
{
    struct moe_err err = {0};
    struct moe_probe *probe = NULL;
    struct moe_trace_writer *w = NULL;
    struct moe_engine *e = open_engine("resident", 0, 0);
    const struct moe_config *c = &e->model->config;
    struct moe_statistics_shape counts = moe_model_statistics_shape(e->model);
    counts.max_tokens = N_IDS;
    counts.prompt_percent = 50;
    struct moe_trace_shape shape = {.n_layers = counts.n_layers,
                                    .n_encoder = counts.n_encoder,
                                    .n_experts = counts.n_experts,
                                    .top_k = counts.top_k,
                                    .keep = counts.n_experts,
                                    .predictors = MOE_TRACE_PREDICTORS};
    moe_config_static_layers(c, shape.is_static);
    assert_ok(moe_statistics_new(counted, &counts, &err), &err);
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    assert_ok(moe_probe_open(&probe, e->session, *counted, &err), &err);
    moe_probe_set_trace(probe, w);
    if (c->n_encoder)
        assert_ok(moe_probe_pair(probe, ids, N_IDS, ids, N_IDS, &err), &err);
    else
        assert_ok(moe_probe_document(probe, ids, N_IDS, &err), &err);
    moe_probe_close(probe);
    assert_ok(moe_trace_commit(w, &err), &err);
    moe_engine_close(e);
}

/* In lockstep, the trace's text as the simulator replays it. */
static inline void run_text(struct moe_session *s, const uint32_t *ids, uint32_t batch)
{
    struct moe_err err = {0};
    const struct moe_config *c = &s->model->config;
    struct moe_row rows[N_IDS];
    if (!c->n_encoder) {
        free(run(s, ids, batch));
        return;
    }
    for (uint32_t i = 0; i < N_IDS; i++)
        rows[i] = (struct moe_row){0, i, ids[i], N_IDS};
    assert_ok(moe_encode(s, rows, N_IDS, NULL, &err), &err);
    for (uint32_t i = 0; i + 1 < N_IDS; i++) { /* what a target predicts */
        rows[i].length = 0;
        assert_ok(
            moe_forward(s, MOE_DECODE, &rows[i], 1, c->n_encoder, c->n_layers, NULL, NULL, &err),
            &err);
        float *logits = calloc(moe_logits_stride(c), sizeof *logits);
        assert_ok(moe_logits(s, 0, 1, logits, &err), &err);
        free(logits);
    }
}

/* Both, with this strategy, so many slots, and loads of `ratio` times a layer. Returns what was
 * simulated. */
static inline struct moe_simulated compare(const char *words, double slots, double ratio,
                                           const uint32_t *ids,
                                           const struct moe_statistics *statistics,
                                           struct moe_trace *trace)
{
    char what[160];
    struct moe_err err = {0};
    struct moe_pack_fit *fit = NULL;
    struct moe_fitted fitted;
    struct moe_simulated simulated;
    struct moe_buf logs[2] = {0};
    uint32_t named;
    struct moe_engine *e = open_engine("resident", 0, 0);
    uint64_t slot = moe_cache_slot_bytes(e->model->pack, 0);
    moe_engine_close(e);
    struct moe_pace pace = lockstep_pace((double)slot, ratio);
    struct moe_engine_options o = {.statistics = statistics,
                                   .expert_memory_bytes = (uint64_t)(slots * (double)slot),
                                   .lockstep = true,
                                   .link_rate = pace.load_rate,
                                   .pace = &pace,
                                   .session = {.batch = N_IDS}};
    pace.n_variants = 1;
    snprintf(what, sizeof what, "%s, %g slots, load %g", words, slots, ratio);
    assert_ok(moe_strategy_parse(words, &o.strategy, &named, &err), &err);
    moe_strategy_drop_idle(&o.strategy, named);
    assert_ok(moe_strategy_settle(&o.strategy, &err), &err);
    assert_ok(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), &err);
    e->session->pass.log = &logs[0];
    run_text(e->session, ids, 5);
    e->experts->ops->begin_tokens(e->experts, 0, false, &(struct moe_phase_stats){0});
    assert_ok(moe_pack_fit_open(&fit, in_dir("x.moe"), &o, &err), &err);
    const struct moe_fitter fitter = moe_pack_fit_fitter(fit);
    assert_ok(fitter.fit(fitter.ctx, &o.strategy, NULL, &fitted, &err), &err);
    moe_trace_rewind(trace);
    const struct moe_simulation in = {
        .trace = trace,
        .scheduler = {.inventory = moe_pack_fit_inventory(fit),
                      .strategy = &fitted.strategy,
                      .high = fitted.high,
                      .low = fitted.low,
                      .pools = &fitted.pools,
                      .frequency = statistics->series[MOE_S_ACTIVATIONS],
                      .placement = moe_statistics_placement(statistics)},
        .statistics = statistics,
        .pace = &pace,
        .batch = 5,
        .log = &logs[1],
    };
    assert_ok(moe_simulate(&in, &simulated, NULL, &err), &err);
    check_logs(what, &logs[0], &logs[1]);
    const struct moe_stats *stats = &e->session->stats;
    check_phase(what, stats->encode.tokens ? &stats->encode : &stats->prefill, &simulated.prefill);
    check_phase(what, &stats->decode, &simulated.decode);
    moe_pack_fit_close(fit);
    moe_engine_close(e);
    return simulated;
}

#endif
