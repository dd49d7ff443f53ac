/*
 * What the planner says of the strategies that bench_strategies.c measures: speed and hits in the
 * simulator over the very documents that a strategy went through, and the strategy that the search
 * takes on a trace of other texts. Included by bench_strategies.c, which is one file.
 */
#ifndef TESTS_BENCH_STRATEGIES_PREDICT_H
#define TESTS_BENCH_STRATEGIES_PREDICT_H

#include <unistd.h>

#include "base/par.h"
#include "engine/memory.h"
#include "plan/planner.h"
#include "strategies_bench.h"
#include "tune/probe.h"

/* Decoded tokens; what is not known is 0. */
struct prediction {
    double prefill, decode, hit_rate; /* tokens/s, tokens/s, 0 to 1 */
};

/* ---- The documents as a trace ---- */

/* Sequences that the rounds can reach: with all in memory a strategy decodes so fast, and few are
 * faster. */
static uint64_t sequences_needed(const struct bench *b)
{
    double seconds = b->layer_seconds * b->n_layers * (double)b->n_decode;
    return (b->rounds - 1) * ROUND_STEP + MIN_DOCUMENTS + (uint64_t)(2 * b->seconds / seconds);
}

/* Each sequence a document, its prompt of n_prompt tokens. The session holds all experts. */
static int write_sequences(const struct bench *b, struct moe_session *session,
                           struct moe_trace_writer *w, struct moe_err *err)
{
    struct moe_statistics *counted = NULL;
    struct moe_probe *probe = NULL;
    uint32_t n = (uint32_t)(b->n_prompt + b->n_decode);
    struct moe_statistics_shape shape = moe_model_statistics_shape(session->model);
    shape.max_tokens = n;
    shape.prompt_percent = (uint32_t)((100 * b->n_prompt + n - 1) / n);
    if (moe_prompt_tokens(&shape, n) != b->n_prompt)
        return moe_fail(err, MOE_ERR_USAGE,
                        "a prompt of %llu of %u tokens is no whole percentage: choose other "
                        "prompt= and decode=",
                        (unsigned long long)b->n_prompt, n);
    int status = moe_statistics_new(&counted, &shape, err);
    if (status == MOE_OK)
        status = moe_probe_open(&probe, session, counted, err);
    if (status == MOE_OK)
        moe_probe_set_trace(probe, w);
    for (uint64_t i = 0; i < b->n_traced && status == MOE_OK; i++)
        status = moe_probe_document(probe, document_ids(b, i % b->n_documents), n, err);
    moe_probe_close(probe);
    moe_statistics_free(counted);
    return status;
}

/* Records documents in the order in which rounds take them: b->traced. */
static int trace_documents(struct bench *b, struct moe_session *session, struct moe_err *err)
{
    char path[512];
    const char *dir = getenv("TMPDIR");
    const struct moe_statistics_shape model = moe_model_statistics_shape(session->model);
    const struct moe_trace_shape shape = {
        .n_layers = model.n_layers,
        .n_experts = model.n_experts,
        .top_k = model.top_k,
        .keep = moe_trace_default_keep(model.n_experts, model.top_k),
        .predictors = MOE_TRACE_PREDICTORS,
        .source_fingerprint = model.source_fingerprint,
    };
    struct moe_trace_writer *w = NULL;
    snprintf(path, sizeof path, "%s/bench-strategies-%ld.trace", dir ? dir : "/tmp",
             (long)getpid());
    b->n_traced = sequences_needed(b);
    int status = moe_trace_create(&w, path, &shape, err);
    if (status == MOE_OK && (status = write_sequences(b, session, w, err)) != MOE_OK)
        moe_trace_abort(w);
    else if (status == MOE_OK)
        status = moe_trace_commit(w, err);
    if (status == MOE_OK)
        status = moe_trace_open(&b->traced, path, err);
    unlink(path);
    return status;
}

static int read_device(struct bench *b, struct moe_err *err)
{
    int status = moe_device_read(&b->device, b->device_path, err);
    if (status != MOE_OK)
        return status;
    double threads = b->device->host.threads.value;
    if (threads > 0 && threads != moe_par_threads())
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: was measured with %.0f threads, and here there are %d (moe-profile "
                        "--device PACK -t %d -o FILE)",
                        b->device_path, threads, moe_par_threads(), moe_par_threads());
    return MOE_OK;
}

/* ---- Asking the planner ---- */

/* A planner for a cell, and what it borrows. */
struct oracle {
    struct moe_pack_fit *fit;
    struct moe_pace pace;
    struct moe_planner planner;
};

static int open_oracle(struct oracle *o, const struct bench *b, struct cell cell,
                       struct moe_trace *trace, bool exact, struct moe_err *err)
{
    struct moe_engine_options options = engine_options(b, cell);
    options.exact = exact;
    *o = (struct oracle){0};
    int status = moe_pack_fit_open(&o->fit, b->pack, &options, err);
    if (status != MOE_OK)
        return status;
    const struct moe_inventory *inventory = moe_pack_fit_inventory(o->fit);
    bool beside = options.device.test;
    status = moe_pace_of_device(&o->pace, b->device, inventory->variants, inventory->n_variants,
                                beside ? options.device.link_rate : options.link_rate, err);
    o->pace.host_slowdown = b->speed;
    o->planner = (struct moe_planner){
        .inventory = inventory,
        .fitter = moe_pack_fit_fitter(o->fit),
        .trace = trace,
        .statistics = b->statistics,
        .pace = &o->pace,
        .exact = exact,
        .seed = options.seed,
    };
    return status;
}

static void close_oracle(struct oracle *o)
{
    moe_pack_fit_close(o->fit);
}

static double rate_of(const struct moe_simulated_phase *p)
{
    return p->seconds > 0 ? (double)p->tokens / p->seconds : 0;
}

static int simulate_rounds(const struct bench *b, struct cell cell,
                           const struct candidate *candidate, const struct result *r,
                           struct prediction *out, struct moe_err *err)
{
    struct oracle o;
    struct moe_strategy s;
    double prefill[MAX_ROUNDS], decode[MAX_ROUNDS];
    uint64_t hits = 0, activations = 0;
    int status = open_oracle(&o, b, cell, b->traced, candidate->automatic, err);
    if (status == MOE_OK)
        status = parse_strategy(candidate->text, &s, err);
    for (uint32_t i = 0; i < r->n_rounds && status == MOE_OK; i++) {
        struct moe_trial_run t;
        const struct span *span = &r->spans[i];
        uint32_t cut = (uint32_t)b->n_prompt + span->n_decoded;
        o.planner.excerpt = (struct moe_excerpt){
            .first = span->first, .cut = cut, .max_tokens = span->n_documents * cut, .warm = 1};
        /* resident takes all it needs, whatever the cell has. */
        status = moe_planner_try(&o.planner, &s, s.resident ? UINT64_MAX : 0, 0, &t, NULL, err);
        const struct moe_simulated_phase *d = &t.simulated.decode;
        prefill[i] = rate_of(&t.simulated.prefill);
        decode[i] = rate_of(d);
        hits += d->experts.cache_hits + d->experts.prefetch_hits;
        activations += d->experts.activations;
    }
    if (status == MOE_OK)
        *out = (struct prediction){median(prefill, r->n_rounds), median(decode, r->n_rounds),
                                   activations ? (double)hits / (double)activations : 0};
    close_oracle(&o);
    return status;
}

/* What the simulator says of what the strategy did, round by round; of the rounds the median. What
 * it cannot replay has no prediction, and stderr says why. */
static struct prediction predict(const struct bench *b, struct cell cell,
                                 const struct candidate *candidate, const struct result *r)
{
    struct prediction p = {0};
    struct moe_err err = {0};
    if (simulate_rounds(b, cell, candidate, r, &p, &err) != MOE_OK)
        fprintf(stderr, "bench_strategies: %s: no prediction: %s\n", candidate->text, err.text);
    return p;
}

/* The strategy that --strategy auto takes for the cell on the calibration's trace. */
static int find_automatic(const struct bench *b, struct cell cell, struct candidate *out,
                          struct moe_err *err)
{
    struct oracle o;
    struct moe_plan *plan = NULL;
    struct moe_strategy best;
    int status = open_oracle(&o, b, cell, b->calib, true, err);
    if (status == MOE_OK) {
        const struct moe_inventory *i = o.planner.inventory;
        status = moe_plan_new(&plan, i->n_layers, i->n_experts, i->top_k, err);
    }
    if (status == MOE_OK)
        status = moe_planner_search(&o.planner, plan, &best, err);
    if (status == MOE_OK) {
        moe_strategy_brief(&best, out->text);
        out->automatic = true;
    }
    moe_plan_free(plan);
    close_oracle(&o);
    return status;
}

#endif
