/* A line of figures for each of several budgets. */
#include "planning.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "cli.h"
#include "plan/planner.h"

enum {
    MAX_BUDGETS = 32,
    TOKEN_LAYERS = 60000, /* of the trace, for each trial */
};

/* Without --strategy the fastest of these is taken: a search for each size would take minutes. */
static const char *const candidates[] = {"resident", "lru", "lru+cache=learned", "prefetch",
                                         "moe-offloading"};
enum { N_CANDIDATES = sizeof candidates / sizeof candidates[0] };

struct choice {
    struct moe_strategy strategies[N_CANDIDATES];
    uint32_t n; /* 1: it was named */
};

struct budget {
    char text[32];
    uint64_t bytes;
    struct moe_trial_run run; /* where it fits */
};

static int parse(struct budget *all, uint32_t *n, const char *list, struct moe_err *err)
{
    while (list) {
        struct budget *b = &all[*n];
        size_t length = strcspn(list, ",");
        if ((*n)++ == MAX_BUDGETS)
            return moe_fail(err, MOE_ERR_USAGE, "option --memory: at most %d sizes", MAX_BUDGETS);
        snprintf(b->text, sizeof b->text, "%.*s", (int)length, list);
        if (!moe_parse_bytes(b->text, &b->bytes))
            return moe_fail(err, MOE_ERR_USAGE,
                            "option --memory: '%s' is not a size like 512M or 4GiB", b->text);
        list = list[length] ? list + length + 1 : NULL;
    }
    return MOE_OK;
}

/* The width of a column for the variants' names. */
static int bits_width(const struct moe_inventory *inv)
{
    int width = 5;
    for (uint32_t v = 0; v < inv->n_variants; v++)
        if ((int)strlen(inv->variants[v]) > width)
            width = (int)strlen(inv->variants[v]);
    return width;
}

static void say_head(const struct plan_inputs *in)
{
    const struct moe_shape_file *s = &in->shape;
    char whole[32], dense[MOE_WIDTH_BYTES];
    moe_format_bytes(in->bytes.dense + moe_inventory_all_bytes(in->inventory, 0), whole);
    cli_say("%s: %.4gB parameters, %s with experts at %s%s and the rest at %s; context %u; %s\n",
            s->name[0] ? s->name : moe_path_name(in->name), 1e-9 * (double)in->bytes.parameters,
            whole, in->options->expert_bits, moe_bits_unit(in->options->expert_bits),
            moe_format_width(in->options->dense_bits, dense),
            in->shapes[PLAN_OF_PROCESS].memory.context, in->evidence.device);
    if (!s->runs)
        cli_say("moe-run cannot run it yet: %s\n", s->why);
    cli_say("%-8s %-*s %-40s %9s %9s\n", "memory", bits_width(in->inventory), "bits", "cache",
            "tokens/s", "MB/token");
}

static void say_line(const struct plan_inputs *in, const struct budget *b)
{
    const struct moe_trial_run *t = &b->run;
    const struct moe_simulated_phase *d = &t->simulated.decode;
    char cache[MOE_STRATEGY_BRIEF + 64], name[MOE_STRATEGY_BRIEF];
    double all = (double)moe_inventory_all_bytes(in->inventory, t->fitted.high);
    moe_strategy_brief(&t->fitted.strategy, name);
    if (t->fitted.strategy.resident)
        snprintf(cache, sizeof cache, "all in memory");
    else if ((double)t->fitted.pools.bytes < 0.01 * all)
        snprintf(cache, sizeof cache, "below 1%% of the experts, %s", name);
    else
        snprintf(cache, sizeof cache, "%.0f%% of the experts, %s",
                 100 * (double)t->fitted.pools.bytes / all, name);
    cli_say("%-8s %-*s %-40s %9.2f %9.1f\n", b->text, bits_width(in->inventory),
            in->inventory->variants[t->fitted.high], cache, moe_trial_tokens_per_second(t),
            d->tokens ? 1e-6 * (double)d->bytes / (double)d->tokens : 0);
}

/* Everything but the experts, and those of a layer for one token. */
static uint64_t floor_of(const struct plan_inputs *in)
{
    const struct moe_plan_memory *m = &in->shapes[PLAN_OF_PROCESS].memory;
    return m->program + m->dense + m->kv + m->work +
           in->inventory->top_k * moe_inventory_slot_bytes(in->inventory, 0);
}

/* The fastest of the choice that can run in a budget. remembered: trials of the same inputs. */
static int run_budget(struct plan_inputs *in, const struct choice *choice,
                      struct moe_trials *remembered, struct budget *b, struct moe_err *err)
{
    struct moe_trial_run t;
    bool fits = false;
    int status;
    in->shapes[PLAN_OF_PROCESS].memory.total = b->bytes;
    struct moe_planner planner = plan_planner(in, PLAN_OF_PROCESS);
    planner.lookups = NULL;
    planner.trials = remembered;
    struct moe_trial trials[N_CANDIDATES];
    for (uint32_t i = 0; i < choice->n; i++)
        trials[i] = moe_trial_of(&planner, &choice->strategies[i], 0, 0);
    status = moe_trials_ahead(&planner, trials, choice->n, NULL, 0, 0, err);
    for (uint32_t i = 0; i < choice->n && status == MOE_OK; i++) {
        status = moe_planner_try(&planner, &choice->strategies[i], 0, 0, &t, NULL, err);
        cli_progress_done();
        if (status == MOE_OK &&
            (!fits || moe_trial_tokens_per_second(&t) > moe_trial_tokens_per_second(&b->run))) {
            b->run = t;
            fits = true;
        }
        if (choice->n > 1 && (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE))
            status = MOE_OK;
    }
    return status != MOE_OK || fits ? status : MOE_ERR_LIMIT;
}

static int run_all(struct plan_inputs *in, const struct choice *choice, struct budget *all,
                   uint32_t n, struct moe_err *err)
{
    const struct moe_planner planner = plan_planner(in, PLAN_OF_PROCESS);
    struct moe_trials *remembered;
    struct moe_err why = {0};
    uint32_t fit = 0;
    char least[32];
    int status = moe_trials_open(&remembered, &planner, err);
    say_head(in);
    moe_format_at_least(floor_of(in), least);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        status = run_budget(in, choice, remembered, &all[i], err);
        if (status == MOE_OK) {
            say_line(in, &all[i]);
            fit++;
        } else if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE) {
            why = *err;
            if (all[i].bytes < floor_of(in))
                cli_say("%-8s does not fit: the smallest that works is %s\n", all[i].text, least);
            else
                cli_say("%-8s does not fit: %s\n", all[i].text, err->text);
            status = MOE_OK;
        }
    }
    moe_trials_close(remembered);
    if (status == MOE_OK && fit == 0)
        return moe_fail(err, why.status, "%s: fits none of these budgets", in->name);
    return status;
}

static int choose_strategies(struct choice *choice, const struct plan_options *o,
                             struct moe_err *err)
{
    bool automatic = false;
    MOE_TRY(
        strategy_options_apply(&o->strategy, &choice->strategies[choice->n++], &automatic, err));
    if (!automatic)
        return MOE_OK;
    for (choice->n = 0; choice->n < N_CANDIDATES;) {
        struct strategy_options one = o->strategy;
        one.strategy = candidates[choice->n];
        MOE_TRY(strategy_options_apply(&one, &choice->strategies[choice->n++], &automatic, err));
    }
    return MOE_OK;
}

int plan_budgets(const struct plan_options *o, const char *budgets, struct moe_err *err)
{
    static struct budget all[MAX_BUDGETS + 1]; /* too large for the stack */
    static struct plan_inputs in;
    static struct choice choice;
    struct plan_options options = *o;
    uint32_t n = 0;
    cli_catch_termination();
    options.memory = 1; /* of the process: each line sets its own */
    int status;
    MOE_STEP(parse(all, &n, budgets, err));
    MOE_STEP(choose_strategies(&choice, o, err));
    MOE_STEP(plan_inputs_open(&in, &options, err));
    if (!cli_given("max-tokens"))
        in.excerpt = moe_excerpt_of(in.trace, TOKEN_LAYERS / in.inventory->n_layers + 1);
    MOE_STEP(run_all(&in, &choice, all, n, err));
out:
    plan_inputs_close(&in);
    return status;
}
