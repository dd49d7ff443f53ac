/* --simulate: a table of strategies by sizes of memory. */
#include "planning.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli.h"
#include "fmt/emit.h"
#include "plan/planner.h"
#include "sched/exactness.h"
#include "sched/strategy.h"

enum { MAX_STRATEGIES = 64, MAX_SIZES = 32 };
#define DEFAULT_SIZES "5%,10%,25%,50%"

struct size {
    char text[32];
    double times_token, share; /* of all experts; 0: bytes are given */
    bool of_experts;           /* the bytes are of experts, not of the process */
    uint64_t bytes;
};

struct result {
    const char *strategy;
    const struct size *size;
    struct moe_trial_run run;
    bool exact;        /* results cannot change */
    double load_bytes; /* of one expert */
    const struct moe_pace *pace;
};

struct table {
    struct moe_strategy strategies[MAX_STRATEGIES];
    char names[MAX_STRATEGIES][MOE_STRATEGY_BRIEF];
    struct size sizes[MAX_SIZES + 1];
    uint32_t n_strategies, n_sizes;
    int width; /* of the longest name */
    bool json;
    bool assumes;                            /* one of them predicts (--assume-prediction) */
    uint32_t n_results, n_inexact;           /* printed */
    struct moe_buf held;                     /* lines before the next result: the head, refusals */
    struct moe_err refusals[MAX_STRATEGIES]; /* the last one of each strategy */
    uint32_t n_refusals;                     /* that were said */
};

/* ---- Lists ---- */

/* An assumed accuracy is that of the strategies that predict. */
static int add_strategy(struct table *t, const char *text, const struct strategy_options *o,
                        struct moe_err *err)
{
    struct strategy_options one = *o;
    bool automatic;
    one.strategy = text;
    one.parts[MOE_PART_ASSUME_PREDICTION] = NULL;
    if (t->n_strategies == MAX_STRATEGIES)
        return moe_fail(err, MOE_ERR_USAGE, "option --strategy: at most %d", MAX_STRATEGIES);
    MOE_TRY(strategy_options_apply(&one, &t->strategies[t->n_strategies], &automatic, err));
    if (t->strategies[t->n_strategies].predict && o->parts[MOE_PART_ASSUME_PREDICTION]) {
        one.parts[MOE_PART_ASSUME_PREDICTION] = o->parts[MOE_PART_ASSUME_PREDICTION];
        t->assumes = true;
        MOE_TRY(strategy_options_apply(&one, &t->strategies[t->n_strategies], &automatic, err));
    }
    if (automatic)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --strategy: auto is for plans; --simulate takes names");
    char *name = t->names[t->n_strategies];
    moe_strategy_brief(&t->strategies[t->n_strategies++], name);
    const int width = (int)strlen(name) + 1; /* a mark may follow */
    t->width = width > t->width ? width : t->width;
    return MOE_OK;
}

static int parse_strategies(struct table *t, const char *list, const struct strategy_options *o,
                            struct moe_err *err)
{
    char item[MOE_STRATEGY_BRIEF + 1];
    for (int i = 0; !list && moe_strategy_name_at(i); i++)
        MOE_TRY(add_strategy(t, moe_strategy_name_at(i), o, err));
    while (list) {
        size_t n = strcspn(list, ",");
        snprintf(item, sizeof item, "%.*s", (int)n, list);
        MOE_TRY(add_strategy(t, item, o, err));
        list = list[n] ? list + n + 1 : NULL;
    }
    if (o->parts[MOE_PART_ASSUME_PREDICTION] && !t->assumes)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --assume-prediction has no effect here: none of the strategies "
                        "predicts");
    return MOE_OK;
}

/* "2x" or "10%": a number before the unit. */
static bool parse_factor(const char *text, char unit, double *out)
{
    char number[32];
    size_t n = strlen(text);
    if (n < 2 || n > sizeof number || text[n - 1] != unit)
        return false;
    snprintf(number, sizeof number, "%.*s", (int)(n - 1), text);
    return moe_parse_double(number, out) && *out > 0;
}

static bool parse_size(struct size *s)
{
    if (parse_factor(s->text, 'x', &s->times_token))
        return s->times_token < 1e6;
    if (parse_factor(s->text, '%', &s->share))
        return (s->share /= 100) <= 1;
    return moe_parse_bytes(s->text, &s->bytes);
}

static int parse_sizes(struct table *t, const char *list, struct moe_err *err)
{
    for (list = list ? list : DEFAULT_SIZES; list;) {
        struct size *s = &t->sizes[t->n_sizes];
        size_t n = strcspn(list, ",");
        if (t->n_sizes++ == MAX_SIZES)
            return moe_fail(err, MOE_ERR_USAGE, "option --memory: at most %d sizes", MAX_SIZES);
        snprintf(s->text, sizeof s->text, "%.*s", (int)n, list);
        if (!parse_size(s))
            return moe_fail(err, MOE_ERR_USAGE,
                            "option --memory: '%s' is not a size (4G), a share of all experts "
                            "(10%%) or a multiple of one token's experts (2x)",
                            s->text);
        list = list[n] ? list + n + 1 : NULL;
    }
    return MOE_OK;
}

/* Turns shares and multiples into bytes of this model. */
static void resolve_size(const struct plan_inputs *in, struct size *s)
{
    const struct moe_inventory *inventory = in->inventory;
    double all = (double)moe_inventory_all_bytes(inventory, 0);
    double token =
        (double)moe_inventory_mean_bytes(inventory, 0) * inventory->n_layers * inventory->top_k;
    bool relative = s->times_token > 0 || s->share > 0;
    if (relative)
        s->bytes = (uint64_t)(s->times_token * token + s->share * all);
    s->bytes = s->bytes ? s->bytes : 1;
    s->of_experts = relative || (!in->options->pack && !in->options->shape);
}

/* ---- Results ---- */

static double share(double part, double of)
{
    return of > 0 ? part / of : 0;
}

static double hit_rate(const struct moe_counts *n)
{
    return share((double)(n->cache_hits + n->prefetch_hits), (double)n->activations);
}

/* Upper limit of tokens per second for loading on demand: the slower of this strategy's computation
 * and of the loads that the optimum still needs. */
static double bound(const struct result *r)
{
    const struct moe_simulated_phase *d = &r->run.simulated.decode;
    double tokens = (double)d->tokens, optimal = r->run.optimal_hit_rate;
    double link = optimal >= 0 ? (1 - optimal) * (double)d->experts.activations * r->load_bytes /
                                     r->pace->load_rate
                               : 0;
    return share(tokens, fmax(link, d->compute_seconds));
}

/* How the layers share the cache here, and what decided L of "shallow:L", T1 and T2 where the
 * strategy leaves them open. */
static void put_decided(struct moe_emit *e, const struct moe_strategy *s)
{
    char alloc[MOE_PART_TEXT_BYTES], on_miss[MOE_PART_TEXT_BYTES], skip_below[MOE_PART_TEXT_BYTES];
    const char *from = moe_strategy_boundary_from(s);
    moe_strategy_part_text(s, MOE_PART_ALLOC, alloc);
    moe_emit_text(e, "alloc", s->cache ? alloc : "none");
    if (from)
        moe_emit_text(e, "boundary_from", from);
    from = moe_strategy_thresholds_from(s);
    if (!from)
        return;
    moe_strategy_part_text(s, MOE_PART_ON_MISS, on_miss);
    moe_strategy_part_text(s, MOE_PART_SKIP_BELOW, skip_below);
    moe_emit_text(e, "on_miss", on_miss);
    moe_emit_text(e, "skip_below", skip_below);
    moe_emit_text(e, "thresholds_from", from);
}

static int print_json(const struct table *t, const struct result *r, struct moe_err *err)
{
    const struct moe_simulated *s = &r->run.simulated;
    const struct moe_simulated_phase *d = &s->decode;
    const struct moe_counts *n = &d->experts;
    double tokens = (double)d->tokens;
    struct moe_buf out = {0};
    struct moe_emit e;
    moe_buf_text(&out, t->n_results ? ",\n " : "[");
    moe_emit_begin_json(&e, &out, MOE_EMIT_LINE);
    moe_emit_text(&e, "strategy", r->strategy);
    moe_emit_text(&e, "memory", r->size->text);
    moe_emit_u64(&e, "memory_bytes", r->size->bytes);
    if (r->run.fitted.host.total) /* behind the GPU's */
        moe_emit_u64(&e, "host_memory_bytes", r->run.fitted.host.total);
    moe_emit_u64(&e, "expert_bytes", r->run.fitted.pools.bytes);
    moe_emit_u64(&e, "slots", r->run.fitted.pools.n_slots);
    moe_emit_bool(&e, "exact", r->exact);
    put_decided(&e, &r->run.fitted.strategy);
    moe_emit_rounded(&e, "hit_rate", 9, hit_rate(n));
    moe_emit_rounded(&e, "optimal_hit_rate", 9,
                     r->run.optimal_hit_rate >= 0 ? r->run.optimal_hit_rate : NAN);
    moe_emit_rounded(&e, "stall_s", 9, d->stall_seconds);
    moe_emit_rounded(&e, "handling_s", 9, d->handling_seconds);
    moe_emit_rounded(&e, "decode_tokens_per_s", 9, share(tokens, d->seconds));
    moe_emit_rounded(&e, "bound_tokens_per_s", 9, bound(r));
    moe_emit_rounded(&e, "prefill_tokens_per_s", 9,
                     share((double)s->prefill.tokens, s->prefill.seconds));
    moe_emit_u64(&e, "prefill_tokens", s->prefill.tokens);
    moe_emit_u64(&e, "decode_tokens", d->tokens);
    moe_emit_rounded(&e, "decode_s", 9, d->seconds);
    moe_emit_rounded(&e, "compute_s", 9, d->compute_seconds);
    moe_emit_rounded(&e, "host_s", 9, d->host_seconds);
    moe_emit_rounded(&e, "link_s", 9, d->link_seconds);
    moe_emit_rounded(&e, "bytes_per_token", 9, share((double)d->bytes, tokens));
    moe_emit_u64(&e, "expert_activations", n->activations);
    moe_emit_u64(&e, "cache_hits", n->cache_hits);
    moe_emit_u64(&e, "prefetch_hits", n->prefetch_hits);
    moe_emit_u64(&e, "prefetch_late", n->prefetch_late);
    moe_emit_u64(&e, "misses", n->misses);
    moe_emit_u64(&e, "host_computed", n->host_computed);
    moe_emit_u64(&e, "precalculated", n->precalculated);
    moe_emit_u64(&e, "skipped", n->skipped);
    if (n->known) {
        moe_emit_u64(&e, "known", n->known);
        moe_emit_u64(&e, "known_prefetches", n->known_prefetches);
    }
    moe_emit_u64(&e, "loads", n->loads);
    moe_emit_u64(&e, "evictions", n->evictions);
    moe_emit_rounded(&e, "prefetch_accuracy", 9,
                     share((double)n->predicted_right, (double)n->predicted));
    return cli_print(moe_emit_end_item(&e, err), &out, err);
}

static int print_line(struct table *t, const struct result *r, struct moe_err *err)
{
    const struct moe_simulated_phase *d = &r->run.simulated.decode;
    char optimal[16] = "-", name[MOE_STRATEGY_BRIEF + 1];
    MOE_TRY(cli_print(MOE_OK, &t->held, err));
    snprintf(name, sizeof name, "%s%s", r->strategy, r->exact ? "" : "*");
    if (r->run.optimal_hit_rate >= 0)
        snprintf(optimal, sizeof optimal, "%.1f%%", 100 * r->run.optimal_hit_rate);
    cli_say(
        "%-*s %9s %6.1f%% %7s %6.1f%% %6.1f%% %9.2f %9.2f\n", t->width, name, r->size->text,
        100 * hit_rate(&d->experts), optimal, 100 * fmax(0, share(d->stall_seconds, d->seconds)),
        100 * share(d->link_seconds, d->seconds), share((double)d->tokens, d->seconds), bound(r));
    return MOE_OK;
}

/* Says what a strategy was refused for, with the size where that is the reason, and not again where
 * it is the same at the next size: of one that is too small, the smallest that works was said. */
static void refuse(struct table *t, uint32_t strategy, const struct size *size,
                   const struct moe_err *err)
{
    struct moe_err *last = &t->refusals[strategy];
    const bool again = last->status == err->status &&
                       (err->status == MOE_ERR_LIMIT || strcmp(last->text, err->text) == 0);
    *last = *err;
    if (again)
        return;
    t->n_refusals++;
    moe_buf_printf(&t->held, "%-*s %9s  %s\n", t->width, t->names[strategy],
                   err->status == MOE_ERR_LIMIT ? size->text : "", err->text);
}

static void put_head(struct table *t, const struct plan_inputs *in)
{
    const struct moe_plan_evidence *e = &in->evidence;
    moe_buf_printf(&t->held,
                   "%" PRIu64 " tokens (%" PRIu64 " of prompts) in %" PRIu64 " texts; %s\n",
                   e->trace_tokens, e->trace_prompt_tokens, e->trace_sequences, e->device);
    moe_buf_printf(&t->held, "%-*s %9s %7s %7s %7s %7s %9s %9s\n", t->width, "", "memory", "found",
                   "optimum", "waiting", "link", "tokens/s", "at most");
}

/* Strategies that cannot run at this size say why and are left out; other errors end the table. */
static int run_size(struct table *t, const struct plan_inputs *in, const struct size *size,
                    struct moe_err *err)
{
    struct moe_planner planner =
        plan_planner(in, size->of_experts ? PLAN_OF_EXPERTS : PLAN_OF_PROCESS);
    struct moe_trial trials[MAX_STRATEGIES];
    for (uint32_t i = 0; i < t->n_strategies; i++)
        trials[i] = moe_trial_of(&planner, &t->strategies[i], size->bytes, 0);
    int status = moe_trials_open(&planner.trials, &planner, err);
    if (status == MOE_OK)
        status = moe_trials_ahead(&planner, trials, t->n_strategies, NULL, 0, 0, err);
    for (uint32_t i = 0; i < t->n_strategies && status == MOE_OK; i++) {
        struct result r = {.strategy = t->names[i], .size = size, .pace = &in->pace};
        status = moe_planner_try(&planner, &t->strategies[i], size->bytes, 0, &r.run, NULL, err);
        cli_progress_done();
        if (status == MOE_ERR_USAGE || status == MOE_ERR_LIMIT || status == MOE_ERR_UNSUPPORTED) {
            refuse(t, i, size, err);
            status = MOE_OK;
        } else if (status == MOE_OK) {
            const struct moe_fitted *f = &r.run.fitted;
            const struct moe_terms terms = moe_terms_of(&f->strategy, planner.inventory, f->high);
            r.load_bytes = moe_inventory_mean_load(planner.inventory, f->high);
            r.exact = moe_exactness_of(&terms).exact;
            t->n_inexact += !r.exact;
            status = t->json ? print_json(t, &r, err) : print_line(t, &r, err);
            t->n_results++;
        }
    }
    moe_trials_close(planner.trials);
    return status;
}

/* Nothing could run: one refusal is the error, of several each was said. */
static int refuse_all(struct table *t, struct moe_err *err)
{
    const struct moe_err last = t->refusals[t->n_strategies - 1];
    *err = last;
    if (t->n_refusals < 2 || t->json)
        return last.status;
    MOE_TRY(cli_print(MOE_OK, &t->held, err));
    return moe_fail(err, last.status, "none of these strategies can run here");
}

int plan_simulate(const struct plan_options *o, const char *strategies, const char *sizes,
                  bool json, struct moe_err *err)
{
    static struct table t; /* too large for the stack */
    struct plan_inputs in = {0};
    t.json = json;
    t.width = 8;
    cli_catch_termination(); /* a drawn trace must not remain */
    int status;
    MOE_STEP(parse_strategies(&t, strategies, &o->strategy, err));
    MOE_STEP(parse_sizes(&t, sizes, err));
    MOE_STEP(plan_inputs_open(&in, o, err));
    for (uint32_t i = 0; i < t.n_sizes; i++)
        resolve_size(&in, &t.sizes[i]);
    put_head(&t, &in);
    for (uint32_t i = 0; i < t.n_sizes; i++)
        MOE_STEP(run_size(&t, &in, &t.sizes[i], err));
    if (t.n_results == 0)
        MOE_STEP(refuse_all(&t, err));
    if (t.n_inexact && !json)
        moe_buf_text(&t.held, "* may change what the model says\n");
    if (json)
        printf("]\n");
    else
        MOE_STEP(cli_print(MOE_OK, &t.held, err));
out:
    moe_buf_release(&t.held);
    plan_inputs_close(&in);
    return status;
}
