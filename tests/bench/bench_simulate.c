/*
 * How fast the simulator is: token-layers a second, strategy by strategy.
 *
 *     bench_simulate TRACE|LxExK [SHARE [STRATEGY...]]
 *
 * Replays TRACE, or a synthetic one of L layers of E experts, K a token, with room for a SHARE
 * (0.3) of the experts; strategies as moe-plan takes them ("fate", "lru+cache=arc"), by default
 * every strategy that needs no statistics. Prints the best of some rounds, and the decoded tokens
 * per modelled second, which tell a faster simulator from one that decides differently.
 */
#define _DEFAULT_SOURCE /* mkstemp */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "plan/planner.h"
#include "plan/synthesis.h"

enum { ROUNDS = 3, EXPERT_BYTES = 8 << 20, BATCH = 64 };

struct bench {
    struct moe_trace *trace;
    struct moe_inventory inventory;
    struct moe_shape_fit shape;
    struct moe_pace pace;
};

/* A machine on which a layer computes for about as long as two of its experts take to load. */
static struct moe_pace make_pace(uint32_t top_k)
{
    const struct moe_line expert = {2, {1, 64}, {0.5e-3 / top_k, 8e-3 / top_k}};
    struct moe_pace p = {
        .n_variants = 2,
        .experts = {expert, expert},
        .head = 1e-3,
        .predict = 10e-6,
        .load_rate = EXPERT_BYTES / 0.5e-3,
        .host_slowdown = 8,
    };
    p.pieces[MOE_PIECE_ROUTE] = (struct moe_line){2, {1, 64}, {0.4e-3, 4e-3}};
    p.pieces[MOE_PIECE_BESIDE] = (struct moe_line){2, {1, 64}, {0.1e-3, 1e-3}};
    return p;
}

static int open_synthetic(struct bench *b, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                          struct moe_err *err)
{
    char path[] = "/tmp/moe-bench-XXXXXX";
    struct moe_routing_figures reached;
    const struct moe_synthesis synthesis = {
        .shape = {.n_layers = n_layers, .n_experts = n_experts, .top_k = top_k},
        .figures = moe_routing_figures_bundled,
        .sequences = 8,
        .prompt_tokens = 64,
        .decoded_tokens = 64,
        .seed = 1,
    };
    int fd = mkstemp(path);
    if (fd < 0)
        return moe_fail(err, MOE_ERR_IO, "no file can be made in /tmp");
    close(fd);
    int status = moe_synthesize_trace(path, &synthesis, &reached, err);
    if (status == MOE_OK)
        status = moe_trace_open(&b->trace, path, err);
    unlink(path);
    return status;
}

static int open_bench(struct bench *b, const char *what, double share, struct moe_err *err)
{
    static const char variants[2][MOE_NAME_BYTES] = {"4", "2"};
    static const uint64_t bytes[2] = {EXPERT_BYTES, EXPERT_BYTES / 2};
    uint32_t n_layers, n_experts, top_k;
    char end;
    int status;
    if (sscanf(what, "%ux%ux%u%c", &n_layers, &n_experts, &top_k, &end) == 3)
        status = open_synthetic(b, n_layers, n_experts, top_k, err);
    else
        status = moe_trace_open(&b->trace, what, err);
    if (status != MOE_OK)
        return status;
    const struct moe_trace_shape *t = moe_trace_shape(b->trace);
    status = moe_inventory_uniform(&b->inventory, t->n_layers, t->n_experts, t->top_k, variants,
                                   bytes, 2, err);
    if (status != MOE_OK)
        return status;
    b->pace = make_pace(t->top_k);
    b->shape = (struct moe_shape_fit){
        .inventory = &b->inventory,
        .has_host = true,
        .expert_memory = (uint64_t)(share * (double)moe_inventory_all_bytes(&b->inventory, 0)),
        .memory = {.batch = BATCH},
    };
    return MOE_OK;
}

static int measure(const struct bench *b, const char *text, struct moe_err *err)
{
    struct moe_strategy s;
    struct moe_trial_run t;
    uint32_t named;
    double best = 0;
    const struct moe_planner planner = {
        .inventory = &b->inventory,
        .fitter = moe_fitter_of_shape(&b->shape),
        .trace = b->trace,
        .pace = &b->pace,
        .seed = 1,
    };
    int status = moe_strategy_parse(text, &s, &named, err);
    if (status == MOE_OK)
        moe_strategy_drop_idle(&s, named);
    for (int i = 0; i < ROUNDS && status == MOE_OK; i++) {
        double began = moe_seconds();
        status = moe_planner_try(&planner, &s, 0, 0, &t, NULL, err);
        double rate = (double)t.simulated.token_layers / (moe_seconds() - began);
        best = rate > best ? rate : best;
    }
    if (status == MOE_OK)
        printf("%-40s %10.0f  %12.9g  %8.6f\n", text, best, moe_trial_tokens_per_second(&t),
               moe_trial_hit_rate(&t));
    return status;
}

/* Every strategy that can run here; one that cannot is passed over. */
static int measure_rows(const struct bench *b, struct moe_err *err)
{
    int status = MOE_OK;
    for (int i = 0; moe_strategy_name_at(i) && status == MOE_OK; i++) {
        status = measure(b, moe_strategy_name_at(i), err);
        if (status == MOE_ERR_USAGE || status == MOE_ERR_LIMIT)
            status = MOE_OK;
    }
    return status;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct moe_err err = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: bench_simulate TRACE|LxExK [SHARE [STRATEGY...]]\n");
        return 2;
    }
    int status = open_bench(&b, argv[1], argc > 2 ? atof(argv[2]) : 0.3, &err);
    if (status == MOE_OK)
        printf("%-40s %10s  %12s  %8s\n", "strategy", "t-layers/s", "tokens/s", "hit rate");
    for (int i = 3; i < argc && status == MOE_OK; i++)
        status = measure(&b, argv[i], &err);
    if (argc <= 3 && status == MOE_OK)
        status = measure_rows(&b, &err);
    moe_trace_close(b.trace);
    moe_inventory_release(&b.inventory);
    if (status != MOE_OK)
        fprintf(stderr, "bench_simulate: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
