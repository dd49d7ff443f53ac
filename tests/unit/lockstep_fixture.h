/*
 * What tests of the simulator share: a trace of the strategies' documents (strategies_fixture.h),
 * and a run of an engine over them, to be compared with a replay.
 */
#ifndef TESTS_LOCKSTEP_FIXTURE_H
#define TESTS_LOCKSTEP_FIXTURE_H

#include "engine/memory.h"

#include "phase_fixture.h"
#include "strategies_fixture.h"

/* A trace of texts of n tokens, one after the other in `ids`, as the resident engine computes them;
 * so much of each is its prompt. */
static inline void lockstep_write_texts(const struct strategies *f, const char *path, uint32_t keep,
                                        uint32_t prompt_percent, const uint32_t *ids,
                                        uint32_t n_texts, uint32_t n)
{
    struct moe_err err = {0};
    struct moe_statistics *counted = NULL;
    struct moe_probe *probe = NULL;
    struct moe_trace_writer *w = NULL;
    const struct moe_trace_shape shape = {.n_layers = LAYERS,
                                          .n_experts = EXPERTS,
                                          .top_k = TOP_K,
                                          .keep = keep,
                                          .predictors = MOE_TRACE_PREDICTORS,
                                          .has_ids = true};
    struct moe_engine_options o = strategies_options(f, "resident", 0);
    o.session.context = n > CALIBRATION_TOKENS ? n : CALIBRATION_TOKENS;
    struct moe_engine *e = strategies_open(f, &o);
    struct moe_statistics_shape counts = f->statistics->shape;
    counts.prompt_percent = prompt_percent;
    counts.max_tokens = o.session.context;
    assert_ok(moe_statistics_new(&counted, &counts, &err), &err);
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    assert_ok(moe_probe_open(&probe, e->session, counted, &err), &err);
    moe_probe_set_trace(probe, w);
    for (uint32_t i = 0; i < n_texts; i++)
        assert_ok(moe_probe_document(probe, ids + i * n, n, &err), &err);
    moe_probe_close(probe);
    assert_ok(moe_trace_commit(w, &err), &err);
    moe_statistics_free(counted);
    moe_engine_close(e);
}

/* ... of all documents. */
static inline void lockstep_write_trace(const struct strategies *f, const char *path, uint32_t keep,
                                        uint32_t prompt_percent)
{
    lockstep_write_texts(f, path, keep, prompt_percent, f->ids[0], N_DOCUMENTS, N_ALL);
}

/* The documents through an engine, their prompts in passes of `batch` rows. */
static inline void lockstep_run(struct moe_engine *e, const struct strategies *f, uint32_t batch,
                                uint32_t n_prompt)
{
    for (int d = 0; d < N_DOCUMENTS; d++)
        strategies_run(e->session, f->ids[d], batch, n_prompt, NULL);
}

#endif
