/* Makes one plan, explains it or writes it. */
#include "planning.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cli.h"
#include "plan/planner.h"
#include "show/draw.h"
#include "show/explain.h"

/* Says which findings of the map cannot be used, before they are left out or refused. */
static void note_findings(const struct plan_inputs *in, const struct moe_strategy *strategy,
                          bool automatic)
{
    const struct plan_options *o = in->options;
    for (enum moe_finding which = 0; which < MOE_N_FINDINGS; which++) {
        struct moe_err why = {0};
        enum moe_part part = moe_finding_part(which);
        bool wanted = automatic ? !o->strategy.exact : moe_strategy_part_inexact(strategy, part);
        if (which == MOE_FOUND_ROUTING && !o->strategy.map->routing.there)
            continue; /* it is sought only where it is asked for */
        if (wanted && moe_calibration_serves(o->strategy.map, which, in->inventory, &why) != MOE_OK)
            cli_note("%s: %s", o->calibration, why.text);
    }
}

/* With a map given, a tolerance is about what that measured of loading less; without, about the
 * pack's maps. */
static int check_tolerance(const struct plan_options *o, bool automatic, struct moe_err *err)
{
    if (o->tolerance <= 0 || !o->calibration)
        return MOE_OK;
    if (!automatic)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --tolerance: it chooses the strategy's parts, none may be given");
    if (o->strategy.map->n_savings == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: does not say what loading less loses, which --tolerance goes by "
                        "(moe-calibrate --expert-memory SIZE measures it)",
                        o->calibration);
    return MOE_OK;
}

/* Says why a plan approximates nothing though it may. */
static void note_exact(const struct plan_options *o, const struct moe_plan *plan)
{
    const struct moe_map *map = o->strategy.map;
    struct moe_buf sizes = {0};
    uint64_t cache = 0;
    char text[32];
    for (uint32_t c = 0; c < plan->n_pools; c++)
        cache += plan->pools[c].n_cache * plan->pools[c].slot_bytes;
    if (o->tolerance <= 0 || !map || plan->n_losses || plan->strategy.resident)
        return;
    for (uint32_t i = 0; i < map->n_savings; i++)
        moe_buf_printf(&sizes, "%s%s", i ? ", " : "",
                       moe_format_bytes(map->savings[i].cache_bytes, text));
    moe_buf_u8(&sizes, 0);
    if (!sizes.failed)
        cli_note("nothing is approximated: no way to load less within the tolerance is faster here "
                 "(%s measured caches of %s; the plan's has %s)",
                 o->calibration, (const char *)sizes.data, moe_format_bytes(cache, text));
    moe_buf_release(&sizes);
}

/* What the cache begins with counts where its policy learns. */
static void note_learnt(const char *path, struct moe_plan *plan)
{
    const struct moe_policy_ops *cache = plan->strategy.resident ? NULL : plan->strategy.cache;
    if (!path || (cache && cache->follow))
        return;
    memset(plan->evidence.learnt, 0, sizeof plan->evidence.learnt);
    plan->evidence.learnt_tokens = 0;
    cli_note("--learn %s: the plan does not use it: %s", path,
             plan->strategy.resident ? "every expert is in memory"
                                     : "its cache is of a policy that learns nothing");
}

static int fill(const struct plan_inputs *in, const struct moe_strategy *strategy, bool automatic,
                struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_calibration calibration = {in->options->strategy.map, automatic,
                                                100 * in->options->tolerance};
    struct moe_planner planner =
        plan_planner(in, in->options->memory ? PLAN_OF_PROCESS : PLAN_OF_EXPERTS);
    struct moe_strategy best = *strategy;
    int status = MOE_OK;
    plan->pack_fingerprint = in->fingerprint;
    plan->evidence = in->evidence;
    if (in->options->strategy.kv_kind)
        snprintf(plan->kv, sizeof plan->kv, "%s", moe_kv_kind_name(in->options->strategy.kv_kind));
    snprintf(plan->pack, sizeof plan->pack, "%.*s%s", MOE_PLAN_TEXT - 32, moe_path_name(in->name),
             in->drawn ? " (drawn weights)" : "");
    if (calibration.map)
        planner.calibration = &calibration;
    if (calibration.map && calibration.tolerance <= 0)
        note_findings(in, strategy, automatic);
    if (in->config.n_experts) { /* a trace without a model has none */
        MOE_STEP(moe_planner_set_bits(&planner, &in->config, err));
    }
    MOE_STEP(moe_trials_open(&planner.trials, &planner, err));
    if (automatic)
        MOE_STEP(moe_planner_search(&planner, plan, &best, err));
    MOE_STEP(moe_planner_search_batch(&planner, &best, err));
    MOE_STEP(moe_planner_make(&planner, &best, plan, err));
    note_learnt(in->options->learn, plan);
    note_exact(in->options, plan);
out:
    moe_trials_close(planner.trials);
    plan->evidence.trace_sequences = in->evidence.trace_sequences; /* of the tokens taken */
    cli_progress_done();
    return status;
}

static int save_plan(const struct moe_plan *plan, const char *path, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_plan_write(plan, false, &text, err);
    status = cli_save(status, &text, path, err);
    struct moe_buf speed = {0};
    char first[64] = "", room[32];
    moe_explain_speed(plan, false, &speed);
    if (plan->first.decode_tokens_per_second >= 0)
        snprintf(first, sizeof first, ", a first answer %s",
                 moe_format_about(plan->first.decode_tokens_per_second, room));
    if (status == MOE_OK && !speed.failed)
        cli_note("%s: strategy %s, expected: %s%s; moe-plan --explain %s says why", path,
                 plan->strategy.name, (const char *)speed.data, first, path);
    moe_buf_release(&speed);
    return status;
}

static int show_plan(const struct moe_plan *plan, struct moe_err *err)
{
    struct moe_buf text = {0};
    moe_explain_plan_briefly(plan, cli_screen(STDOUT_FILENO), &text);
    cli_fit(STDOUT_FILENO, &text);
    return cli_print(MOE_OK, &text, err);
}

int plan_compute(struct moe_plan **out, const struct plan_options *o, struct moe_err *err)
{
    struct plan_inputs in = {0};
    struct moe_plan *plan = NULL;
    struct moe_strategy strategy;
    struct plan_options options = *o;
    struct moe_map *map = NULL;
    bool automatic = false;
    *out = NULL;
    cli_catch_termination();
    int status;
    if (o->calibration)
        MOE_STEP(moe_map_read(&map, o->calibration, err));
    options.strategy.map = map;
    MOE_STEP(strategy_options_apply(&options.strategy, &strategy, &automatic, err));
    if (!automatic)
        options.wanted = strategy;
    MOE_STEP(check_tolerance(&options, automatic, err));
    options.strategy.exact |= automatic && !map; /* what changes results must be asked for */
    MOE_STEP(plan_inputs_open(&in, &options, err));
    MOE_STEP(moe_plan_new(&plan, in.inventory->n_layers, in.inventory->n_experts,
                          in.inventory->top_k, err));
    MOE_STEP(fill(&in, &strategy, automatic, plan, err));
out:
    plan_inputs_close(&in);
    moe_map_free(map);
    if (status == MOE_OK)
        *out = plan;
    else
        moe_plan_free(plan);
    return status;
}

int plan_put(const struct moe_plan *plan, const struct plan_options *o, struct moe_err *err)
{
    return o->out ? save_plan(plan, o->out, err) : show_plan(plan, err);
}

int plan_make(const struct plan_options *o, struct moe_err *err)
{
    struct moe_plan *plan = NULL;
    int status = plan_compute(&plan, o, err);
    if (status == MOE_OK)
        status = plan_put(plan, o, err);
    moe_plan_free(plan);
    return status;
}
