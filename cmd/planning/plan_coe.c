/* Plans of collections made and simulated. */
#include "planning.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli.h"
#include "fmt/emit.h"
#include "serve/coe_planner.h"
#include "show/explain.h"

/* Samples that a plan is tried on, and their requests. One alone decides by chance where settings
 * differ by a few percent. */
enum { SAMPLES = 4, SAMPLE_REQUESTS = 1000 };

struct inputs {
    struct moe_coe_collection *collection;
    struct moe_coe_costs *costs;
    struct moe_coe_experts *all;
    struct moe_coe_task samples[SAMPLES];
    struct moe_coe_planner planner;
};

/* ---- Inputs ---- */

/* "cuda:3,cpu:1"; a processor that is not named gets none. */
static int parse_executors(const char *list, struct moe_coe_planner *p, struct moe_err *err)
{
    p->cuda = p->cpu = list ? 0 : UINT32_MAX;
    while (list) {
        char item[32];
        uint64_t n = 0;
        size_t length = strcspn(list, ",");
        snprintf(item, sizeof item, "%.*s", (int)length, list);
        char *colon = strchr(item, ':');
        if (colon)
            *colon = '\0';
        uint32_t *to = strcmp(item, "cuda") == 0  ? &p->cuda
                       : strcmp(item, "cpu") == 0 ? &p->cpu
                                                  : NULL;
        if (!colon || !to || !moe_parse_u64(colon + 1, &n) || n < 1 || n > MOE_COE_MAX_EXECUTORS)
            return moe_fail(err, MOE_ERR_USAGE,
                            "option --executors: '%s' is not a list like cuda:3,cpu:1 (1 to %d of "
                            "each)",
                            list, MOE_COE_MAX_EXECUTORS);
        *to = (uint32_t)n;
        list = list[length] ? list + length + 1 : NULL;
    }
    return MOE_OK;
}

static void close_inputs(struct inputs *in)
{
    for (uint32_t i = 0; i < SAMPLES; i++)
        moe_coe_task_release(&in->samples[i]);
    moe_coe_experts_free(in->all);
    moe_coe_costs_free(in->costs);
    moe_coe_collection_free(in->collection);
}

/* requests: of each sample, where the options do not say. */
static int open_inputs(struct inputs *in, const struct plan_coe_options *o, uint32_t requests,
                       struct moe_err *err)
{
    bool probable;
    uint64_t seed = o->seed;
    MOE_TRY(parse_executors(o->executors, &in->planner, err));
    MOE_TRY(moe_coe_collection_read(&in->collection, o->collection, err));
    MOE_TRY(moe_coe_costs_read(&in->costs, o->costs, err));
    MOE_TRY(moe_coe_costs_experts(&in->all, in->costs, in->collection, &probable, err));
    if (!probable)
        cli_note("not all experts' probabilities are known: those of the others count as 0");
    for (uint32_t i = 0; i < SAMPLES; i++)
        MOE_TRY(moe_coe_task_draw(&in->samples[i], in->collection, in->all,
                                  o->requests ? o->requests : requests, o->interval, seed++, err));
    struct moe_coe_planner *p = &in->planner;
    p->costs = in->costs;
    p->all = in->all;
    p->samples = in->samples;
    p->n_samples = SAMPLES;
    p->schedule = o->schedule;
    p->evict = o->evict;
    p->prefetch = !o->no_prefetch;
    p->casual = o->casual;
    p->memory_bytes = o->memory;
    p->device_bytes = o->device_memory;
    p->resident = o->resident;
    p->window = (struct moe_coe_window_options){
        .first = o->window, .fitted = o->fitted, .margin = o->margin, .seed = o->seed};
    return MOE_OK;
}

static void name_inputs(struct moe_coe_plan *plan, const struct plan_coe_options *o,
                        const struct inputs *in)
{
    snprintf(plan->machine, sizeof plan->machine, "%s", in->costs->machine);
    snprintf(plan->collection, sizeof plan->collection, "%.319s", o->collection);
    snprintf(plan->costs, sizeof plan->costs, "%.319s", o->costs);
}

int plan_coe_make(const struct plan_coe_options *o, struct moe_err *err)
{
    struct inputs in = {0};
    struct moe_coe_plan *plan = NULL;
    struct moe_buf text = {0};
    int status;
    MOE_STEP(open_inputs(&in, o, SAMPLE_REQUESTS, err));
    MOE_STEP(moe_coe_plan_new(&plan, err));
    name_inputs(plan, o, &in);
    MOE_STEP(moe_coe_planner_make(&in.planner, plan, err));
    if (o->out) {
        status = moe_coe_plan_write(plan, false, &text, err);
        MOE_STEP(cli_save(status, &text, o->out, err));
        cli_note("%s: %.4g results/s expected; moe-plan --explain %s says why", o->out,
                 plan->throughput, o->out);
    } else {
        moe_explain_coe_plan(plan, cli_screen(STDOUT_FILENO), &text);
        cli_fit(STDOUT_FILENO, &text);
        status = cli_print(MOE_OK, &text, err);
    }
out:
    moe_coe_plan_free(plan);
    close_inputs(&in);
    return status;
}

/* ---- Systems side by side ---- */

static double per_second(const struct moe_coe_simulated *s)
{
    return s->seconds > 0 ? (double)s->results / s->seconds : 0;
}

static void put_json(struct moe_buf *out, const struct moe_coe_system *system,
                     const struct moe_coe_plan *plan, const struct moe_coe_simulated *s)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_LINE);
    moe_emit_text(&e, "system", system->name);
    moe_emit_text(&e, "schedule", plan->schedule);
    moe_emit_text(&e, "evict", plan->evict);
    moe_emit_bool(&e, "prefetch", plan->prefetch);
    for (uint32_t i = 0; i < plan->n_executors; i++)
        moe_emit_u64(&e, plan->executors[i].device, plan->executors[i].number);
    moe_emit_rounded(&e, "results_per_s", 9, per_second(s));
    moe_emit_u64(&e, "results", s->results);
    moe_emit_rounded(&e, "seconds", 9, s->seconds);
    moe_emit_u64(&e, "switches", s->switches);
    moe_emit_u64(&e, "from_host", s->from_host);
    moe_emit_u64(&e, "computed", s->computed);
    moe_emit_u64(&e, "batches", s->batches);
    moe_emit_rounded(&e, "latency_s", 9, s->latency_seconds);
    moe_emit_rounded(&e, "waiting_s", 9, s->wait_seconds);
    moe_emit_rounded(&e, "computing_s", 9, s->compute_seconds);
    moe_emit_end_item(&e, NULL);
}

static void put_line(struct moe_buf *out, const struct moe_coe_system *system,
                     const struct moe_coe_simulated *s)
{
    moe_buf_printf(out, "%-15s %9.2f %9" PRIu64 " %9" PRIu64 " %9.2f %9.1f %9.1f\n", system->name,
                   per_second(s), s->switches, s->from_host,
                   s->batches ? (double)s->computed / (double)s->batches : 0, s->latency_seconds,
                   s->wait_seconds);
}

int plan_coe_simulate(const struct plan_coe_options *o, uint32_t n, bool json, struct moe_err *err)
{
    struct inputs in = {0};
    struct moe_coe_plan *best = NULL;
    struct moe_coe_task task = {0};
    struct moe_buf out = {0};
    int status;
    MOE_STEP(open_inputs(&in, o, n, err));
    /* Not the sample's requests. */
    MOE_STEP(moe_coe_task_draw(&task, in.collection, in.all, n, o->interval, ~o->seed, err));
    in.planner.schedule = "coserve";
    in.planner.evict = "two-stage";
    in.planner.prefetch = false;
    MOE_STEP(moe_coe_plan_new(&best, err));
    MOE_STEP(moe_coe_planner_make(&in.planner, best, err));
    if (!json)
        moe_buf_printf(&out, "%u requests, one each %g s\n%-15s %9s %9s %9s %9s %9s %9s\n", n,
                       o->interval, "", "results/s", "switches", "from host", "batch", "latency s",
                       "waiting s");
    for (uint32_t i = 0; i < MOE_COE_SYSTEMS; i++) {
        struct moe_coe_simulated got;
        struct moe_coe_plan *plan = NULL;
        MOE_STEP(moe_coe_compare(&moe_coe_systems[i], &in.planner, best, &task, &got, &plan, err));
        if (json) {
            moe_buf_text(&out, i ? ",\n " : "[");
            put_json(&out, &moe_coe_systems[i], plan, &got);
        } else {
            put_line(&out, &moe_coe_systems[i], &got);
        }
        moe_coe_plan_free(plan);
    }
out:
    if (json)
        moe_buf_text(&out, "]\n");
    status = cli_print(status, &out, err);
    moe_coe_plan_free(best);
    moe_coe_task_release(&task);
    close_inputs(&in);
    return status;
}
