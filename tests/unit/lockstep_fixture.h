/*
 * What tests of the simulator share: a trace of the strategies' documents (strategies_fixture.h),
 * and a run of an engine over them, to be compared with a replay.
 */
#ifndef TESTS_LOCKSTEP_FIXTURE_H
#define TESTS_LOCKSTEP_FIXTURE_H

#include "engine/fit_pack.h"
#include "plan/simulate.h"

#include "strategies_fixture.h"

/* A trace of all documents, as the resident engine computes them; half of each is its prompt. */
static inline void lockstep_write_trace(const struct strategies *f, const char *path, uint32_t keep)
{
    struct moe_err err = {0};
    struct moe_statistics *counted = NULL;
    struct moe_probe *probe = NULL;
    struct moe_trace_writer *w = NULL;
    const struct moe_trace_shape shape = {.n_layers = LAYERS,
                                          .n_experts = EXPERTS,
                                          .top_k = TOP_K,
                                          .keep = keep,
                                          .predictors = MOE_TRACE_PREDICTORS};
    const struct moe_engine_options o = strategies_options(f, "resident", 0);
    struct moe_engine *e = strategies_open(f, &o);
    assert_ok(moe_statistics_new(&counted, &f->statistics->shape, &err), &err);
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    assert_ok(moe_probe_open(&probe, e->session, counted, &err), &err);
    moe_probe_set_trace(probe, w);
    for (int i = 0; i < N_DOCUMENTS; i++)
        assert_ok(moe_probe_document(probe, f->ids[i], N_ALL, &err), &err);
    moe_probe_close(probe);
    assert_ok(moe_trace_commit(w, &err), &err);
    moe_statistics_free(counted);
    moe_engine_close(e);
}

/* A machine on which a layer takes about a millisecond, a quarter of it for each of its experts
 * together, and a load of one expert `ratio` times a layer. */
static inline struct moe_pace lockstep_pace(double slot_bytes, double ratio)
{
    struct moe_pace p = {.n_variants = 2, .head = 0.4e-3, .predict = 7e-6, .host_slowdown = 6};
    const double rows[3] = {1, 16, 256};
    const double seconds[MOE_N_PIECES][3] = {
        [MOE_PIECE_ROUTE] = {0.31e-3, 1.1e-3, 14e-3},
        [MOE_PIECE_BESIDE] = {0.2e-3, 0.9e-3, 11e-3},
        [MOE_PIECE_COMBINE] = {0.02e-3, 0.1e-3, 1.3e-3},
    };
    for (int piece = 0; piece < MOE_PIECE_DENSE; piece++) {
        p.pieces[piece].n = 3;
        memcpy(p.pieces[piece].x, rows, sizeof rows);
        memcpy(p.pieces[piece].y, seconds[piece], sizeof seconds[piece]);
    }
    for (int v = 0; v < 2; v++)
        p.experts[v] = (struct moe_line){2, {1, 32}, {0.11e-3 - v * 0.04e-3, 1.7e-3}};
    p.load_rate = slot_bytes / (ratio * 1e-3);
    return p;
}

/* The documents through an engine, prompts of N_ALL / 2 tokens in passes of `batch` rows. */
static inline void lockstep_run(struct moe_engine *e, const struct strategies *f, uint32_t batch)
{
    for (int d = 0; d < N_DOCUMENTS; d++)
        strategies_run(e->session, f->ids[d], batch, N_ALL / 2, NULL);
}

#endif
