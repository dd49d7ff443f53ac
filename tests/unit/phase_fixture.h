/*
 * What comparisons of a run in lockstep with a simulation share: a machine's pace, and two phases
 * that must agree in every count.
 */
#ifndef TESTS_PHASE_FIXTURE_H
#define TESTS_PHASE_FIXTURE_H

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "infer/run_stats.h"
#include "plan/simulate.h"

#include "../test.h"

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

/* The decisions of a run and of its simulation, line for line. */
static inline void check_logs(const char *what, struct moe_buf *run, struct moe_buf *simulated)
{
    moe_buf_u8(run, 0);
    moe_buf_u8(simulated, 0);
    assert_false(run->failed || simulated->failed);
    const char *a = (const char *)run->data, *b = (const char *)simulated->data;
    assert_true(a[0] != 0);
    for (uint32_t line = 1; strcmp(a, b) != 0; line++) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || strncmp(a, b, n) != 0)
            fail_msg("%s: decision %u: \"%.*s\" in the run, \"%.*s\" simulated", what, line, (int)n,
                     a, (int)m, b);
        a += n + 1;
        b += n + 1;
    }
    moe_buf_release(run);
    moe_buf_release(simulated);
}

static inline void check_count(const char *what, const char *name, uint64_t run, uint64_t simulated)
{
    if (run != simulated)
        fail_msg("%s: %s: %llu in the run, %llu simulated", what, name, (unsigned long long)run,
                 (unsigned long long)simulated);
}

static inline void check_seconds(const char *what, const char *name, double run, double simulated)
{
    if (fabs(run - simulated) > 1e-9 * fmax(1e-3, run))
        fail_msg("%s: %s: %.12g s in the run, %.12g s simulated", what, name, run, simulated);
}

static inline void check_phase(const char *what, const struct moe_phase_stats *r,
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
    CHECK(substituted);
    CHECK(predicted);
    CHECK(predicted_right);
    CHECK(prefetches);
    CHECK(prefetches_used);
    CHECK(known);
    CHECK(known_prefetches);
    CHECK(loads);
    CHECK(evictions);
    CHECK(lent);
    CHECK(prefetch_wasted_bytes);
#undef CHECK
    check_count(what, "bytes", r->bytes_read, s->bytes);
    check_seconds(what, "seconds", r->seconds, s->seconds);
    check_seconds(what, "handling", r->handling_seconds, s->handling_seconds);
    check_seconds(what, "stall", r->stall_seconds, s->stall_seconds);
    check_seconds(what, "host", r->host_seconds, s->host_seconds);
    check_seconds(what, "reading", r->read_seconds, s->link_seconds);
    check_seconds(what, "parts", s->seconds,
                  s->compute_seconds + s->handling_seconds + s->stall_seconds + s->host_seconds);
}

#endif
