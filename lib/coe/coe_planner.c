#include "coe/coe_planner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coe/coe_shares.h"

enum {
    MOST_CUDA = 6, /* executors that are tried */
    MOST_CPU = 3,
    MOST_TEAMS = 8,  /* ... of a processor whose threads are divided */
    CASUAL_CUDA = 3, /* 5.2 */
    CASUAL_CPU = 1,
};
#define LITTLE 0.25 /* of a processor's memory: a largest batch that takes no more comes first */
#define MIB (1 << 20)

struct making {
    const struct moe_coe_planner *p;
    struct moe_coe_plan *plan;
    struct moe_coe_shares shares;
    uint32_t window; /* the processor whose experts the window counts; MOE_COE_NONE */
    struct moe_err *err;
};

/* ---- Trials ---- */

/* 4.4: whether the largest batch takes little, and so comes first. */
static bool batch_first(const struct moe_coe_share *s)
{
    return (double)s->batch * s->executors->number <= LITTLE * (double)s->bytes;
}

static void split_simply(struct making *m, uint32_t on)
{
    struct moe_coe_share *s = &m->shares.of[on];
    bool accelerator = strcmp(m->p->costs->processors[on].name, "cuda") == 0;
    if (batch_first(s) && !(m->p->casual && accelerator))
        moe_coe_shares_split(&m->shares, on, s->bytes - s->batch * s->executors->number);
    else
        moe_coe_shares_split(&m->shares, on, (uint64_t)(MOE_COE_CASUAL * (double)s->bytes));
}

static int set_executors(struct making *m, uint32_t cuda, uint32_t cpu)
{
    struct moe_coe_plan *plan = m->plan;
    plan->n_executors = 0;
    for (uint32_t on = 0; on < m->p->costs->n_processors; on++) {
        const char *name = m->p->costs->processors[on].name;
        uint32_t n = strcmp(name, "cuda") == 0 ? cuda : cpu;
        struct moe_coe_plan_executors *e = &plan->executors[plan->n_executors];
        *e = (struct moe_coe_plan_executors){.number = n};
        memcpy(e->device, name, sizeof e->device);
        moe_coe_shares_set(&m->shares, on, n ? e : NULL);
        plan->n_executors += n > 0;
    }
    if (plan->n_executors == 0)
        return moe_fail(m->err, MOE_ERR_USAGE, "there are no executors");
    moe_coe_shares_divide(&m->shares, &plan->host_bytes, &plan->memory_bytes);
    for (uint32_t on = 0; on < m->p->costs->n_processors; on++) {
        const struct moe_coe_share *s = &m->shares.of[on];
        if (s->executors && s->bytes < s->executors->number * (s->largest + s->request))
            return moe_fail(m->err, MOE_ERR_LIMIT,
                            "%" PRIu64 " MiB are too little for %u executors on '%s': each needs "
                            "%" PRIu64 " MiB for its largest expert and a request",
                            s->bytes / MIB, s->executors->number, s->executors->device,
                            (s->largest + s->request) / MIB + 1);
        if (s->executors)
            split_simply(m, on);
    }
    return MOE_OK;
}

static int simulate(struct making *m, struct moe_coe_simulated *out)
{
    const struct moe_coe_planner *p = m->p;
    int status = moe_coe_plan_simulate(m->plan, p->costs, p->all, p->sample, 0, out, m->err);
    if (status == MOE_OK) {
        m->plan->throughput = out->seconds > 0 ? (double)out->results / out->seconds : 0;
        m->plan->switches = out->switches;
    }
    return status;
}

/* One combination; memory that does not suffice for it makes it 0. */
static int try_executors(struct making *m, uint32_t cuda, uint32_t cpu, double *throughput)
{
    struct moe_coe_simulated got;
    *throughput = 0;
    int status = set_executors(m, cuda, cpu);
    if (status == MOE_OK)
        status = simulate(m, &got);
    if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
        return MOE_OK;
    if (status != MOE_OK)
        return status;
    *throughput = m->plan->throughput;
    if (m->plan->n_trials < MOE_COE_MAX_TRIALS)
        m->plan->trials[m->plan->n_trials++] = (struct moe_coe_plan_trial){cuda, cpu, *throughput};
    return MOE_OK;
}

/* Teams of one thread are the smallest; more executors than that share threads. */
static uint32_t most_cpu(const struct moe_coe_costs *c)
{
    uint32_t on = moe_coe_costs_processor(c, "cpu");
    uint32_t threads = on == MOE_COE_NONE ? 0 : c->processors[on].threads;
    return threads <= MOST_CPU ? MOST_CPU : threads < MOST_TEAMS ? threads : MOST_TEAMS;
}

/* First those of the accelerator, then, with the best number of these, those of the host (5.3). */
static int search_executors(struct making *m, uint32_t *cuda, uint32_t *cpu)
{
    const struct moe_coe_planner *p = m->p;
    bool has_cuda = moe_coe_costs_processor(p->costs, "cuda") != MOE_COE_NONE;
    bool has_cpu = moe_coe_costs_processor(p->costs, "cpu") != MOE_COE_NONE;
    bool fixed_cuda = p->cuda != UINT32_MAX, fixed_cpu = p->cpu != UINT32_MAX;
    uint32_t first = has_cuda ? 1 : 0, most = has_cuda ? MOST_CUDA : 0;
    double best = 0, got;
    int status = MOE_OK;
    *cuda = fixed_cuda ? p->cuda : first;
    *cpu = fixed_cpu ? p->cpu : has_cpu && !has_cuda;
    for (uint32_t n = first; n <= most && has_cuda && !fixed_cuda && status == MOE_OK; n++) {
        status = try_executors(m, n, *cpu, &got);
        if (got > best) {
            best = got;
            *cuda = n;
        }
    }
    /* Without an accelerator, or where experts run on the host alone. */
    for (uint32_t n = 0; n <= most_cpu(p->costs) && has_cpu && !fixed_cpu && status == MOE_OK;
         n++) {
        if (n == 0 && best > 0)
            continue; /* tried above */
        status = try_executors(m, *cuda, n, &got);
        if (got > best) {
            best = got;
            *cpu = n;
        }
    }
    return status;
}

/* Executors that are asked for need a processor that was measured. */
static int check_named(const struct making *m, const char *processor, uint32_t n)
{
    if (n == 0 || n == UINT32_MAX ||
        moe_coe_costs_processor(m->p->costs, processor) != MOE_COE_NONE)
        return MOE_OK;
    return moe_fail(m->err, MOE_ERR_USAGE,
                    "%u executors on '%s': the costs have no such processor (moe-profile --coe "
                    "measures where there is one)",
                    n, processor);
}

static int choose_executors(struct making *m)
{
    const struct moe_coe_planner *p = m->p;
    uint32_t cuda = p->cuda, cpu = p->cpu;
    bool has_cuda = moe_coe_costs_processor(p->costs, "cuda") != MOE_COE_NONE;
    int status = check_named(m, "cuda", cuda);
    if (status == MOE_OK)
        status = check_named(m, "cpu", cpu);
    if (status != MOE_OK)
        return status;
    if (p->casual) {
        cuda = cuda != UINT32_MAX ? cuda : has_cuda ? CASUAL_CUDA : 0;
        cpu = cpu != UINT32_MAX ? cpu : CASUAL_CPU;
    } else if (cuda == UINT32_MAX || cpu == UINT32_MAX) {
        status = search_executors(m, &cuda, &cpu);
    }
    if (status == MOE_OK)
        status = set_executors(m, cuda, cpu);
    if (status != MOE_OK)
        return status;
    if (m->plan->n_trials > 0)
        moe_coe_plan_because(m->plan, "executors",
                             "%u on the accelerator and %u on the processor gave the most of %u "
                             "combinations that were tried on the sample",
                             cuda, cpu, m->plan->n_trials);
    else
        moe_coe_plan_because(m->plan, "executors", "%u on the accelerator, %u on the processor: %s",
                             cuda, cpu, p->casual ? "the casual setting" : "as asked for");
    return MOE_OK;
}

/* ---- The window ---- */

static int measure(void *ctx, uint32_t n_experts, double *throughput, struct moe_err *err)
{
    struct making *m = ctx;
    struct moe_coe_simulated got;
    (void)err; /* it is m->err */
    moe_coe_shares_split(&m->shares, m->window,
                         moe_coe_shares_bytes_of(&m->shares, m->window, n_experts));
    int status = simulate(m, &got);
    *throughput = m->plan->throughput;
    return status;
}

static int slide(struct making *m, uint32_t on)
{
    struct moe_coe_plan *plan = m->plan;
    const struct moe_coe_share *s = &m->shares.of[on];
    struct moe_coe_window_options o = m->p->window;
    struct moe_coe_window found;
    m->window = on;
    o.most = moe_coe_shares_fit(&m->shares, on, s->bytes - s->executors->number * s->request);
    int status = moe_coe_slide(&o, measure, m, &found, m->err);
    if (status != MOE_OK)
        return status;
    plan->window = (struct moe_coe_plan_window){.first = o.first ? o.first : 15,
                                                .fitted = o.fitted ? o.fitted : 2,
                                                .margin = o.margin > 0 ? o.margin : 0.05,
                                                .seed = o.seed,
                                                .lower = found.lower,
                                                .upper = found.upper,
                                                .expected = found.expected,
                                                .chosen = found.chosen};
    memcpy(plan->window.device, s->executors->device, sizeof plan->window.device);
    for (uint32_t i = 0; i < found.n_points; i++)
        plan->points[plan->n_points++] =
            (struct moe_coe_plan_point){found.experts[i], found.throughput[i]};
    moe_coe_shares_split(&m->shares, on, moe_coe_shares_bytes_of(&m->shares, on, found.chosen));
    moe_coe_plan_because(
        plan, s->executors->device,
        "its largest batches would take %.0f%% of %" PRIu64
        " MiB, so a window slid over the number "
        "of experts in memory; from %u to %u throughput no longer rose as before (%.4g a second, "
        "the trend said %.4g), and %u were drawn from these",
        100 * (double)s->batch * s->executors->number / (double)s->bytes, s->bytes / MIB,
        found.lower, found.upper, found.throughput[found.n_points - 1], found.expected,
        found.chosen);
    return MOE_OK;
}

static int divide(struct making *m, uint32_t on)
{
    const struct moe_coe_share *s = &m->shares.of[on];
    const struct moe_coe_planner *p = m->p;
    bool accelerator = strcmp(p->costs->processors[on].name, "cuda") == 0;
    if (!s->executors)
        return MOE_OK;
    if (p->casual && accelerator) {
        moe_coe_plan_because(m->plan, s->executors->device,
                             "%.0f%% of %" PRIu64 " MiB for experts, the rest for batches: the "
                             "casual setting",
                             100 * MOE_COE_CASUAL, s->bytes / MIB);
    } else if (p->resident && (accelerator || p->costs->n_processors == 1)) {
        moe_coe_shares_split(&m->shares, on, moe_coe_shares_bytes_of(&m->shares, on, p->resident));
        moe_coe_plan_because(m->plan, s->executors->device, "%u experts, as asked for",
                             p->resident);
    } else if (batch_first(s)) {
        moe_coe_plan_because(m->plan, s->executors->device,
                             "the largest batches take %.1f%% of %" PRIu64 " MiB, so these come "
                             "first, and experts get the rest",
                             100 * (double)s->batch * s->executors->number / (double)s->bytes,
                             s->bytes / MIB);
    } else if (m->plan->window.device[0]) {
        moe_coe_plan_because(m->plan, s->executors->device,
                             "%.0f%% of %" PRIu64 " MiB for experts, the rest for batches: one "
                             "window is slid",
                             100 * MOE_COE_CASUAL, s->bytes / MIB);
    } else {
        return slide(m, on);
    }
    return MOE_OK;
}

/* ---- Making a plan ---- */

static void list_batches(struct making *m)
{
    const struct moe_coe_costs *c = m->p->costs;
    struct moe_coe_cost table[MOE_COE_MAX_KINDS];
    for (uint32_t on = 0; on < c->n_processors; on++) {
        const struct moe_coe_plan_executors *e = m->shares.of[on].executors;
        if (!e)
            continue;
        moe_coe_costs_table(c, on, e->threads, table);
        for (uint32_t kind = 0; kind < c->n_kinds; kind++) {
            const struct moe_coe_cost *cost = &table[kind];
            uint64_t fits = cost->request_bytes ? e->batch_bytes / cost->request_bytes : UINT64_MAX;
            if (cost->max_batch == 0) /* it cannot run there */
                continue;
            struct moe_coe_plan_batch *b = &m->plan->batches[m->plan->n_batches++];
            *b = (struct moe_coe_plan_batch){0};
            memcpy(b->architecture, c->kinds[kind].name, sizeof b->architecture);
            memcpy(b->device, c->processors[on].name, sizeof b->device);
            b->requests = fits < cost->max_batch ? (uint32_t)fits : cost->max_batch;
            b->requests = b->requests ? b->requests : 1;
        }
    }
}

static void explain_host(struct making *m)
{
    const struct moe_coe_plan *plan = m->plan;
    if (plan->host_bytes)
        moe_coe_plan_because(m->plan, "host",
                             "%" PRIu64 " MiB of the host's memory hold experts above the disk, "
                             "for processors with memory of their own",
                             plan->host_bytes / MIB);
    else
        moe_coe_plan_because(m->plan, "host", "no tier of experts above the disk: %s",
                             m->shares.of[0].bytes && plan->n_executors > 1
                                 ? "the processors share one memory"
                                 : "nothing runs that has memory of its own");
}

int moe_coe_planner_make(const struct moe_coe_planner *p, struct moe_coe_plan *plan,
                         struct moe_err *err)
{
    struct making m = {.p = p, .plan = plan, .window = MOE_COE_NONE, .err = err};
    struct moe_coe_simulated got;
    snprintf(plan->schedule, sizeof plan->schedule, "%s", p->schedule);
    snprintf(plan->evict, sizeof plan->evict, "%s", p->evict);
    plan->prefetch = p->prefetch;
    m.shares.costs = p->costs;
    m.shares.all = p->all;
    m.shares.memory_bytes = p->memory_bytes;
    m.shares.device_bytes = p->device_bytes;
    int status = moe_coe_shares_open(&m.shares, err);
    if (status == MOE_OK)
        status = choose_executors(&m);
    for (uint32_t on = 0; on < p->costs->n_processors && status == MOE_OK; on++)
        status = divide(&m, on);
    if (status == MOE_OK)
        status = simulate(&m, &got);
    if (status == MOE_OK) {
        list_batches(&m);
        explain_host(&m);
    }
    moe_coe_shares_close(&m.shares);
    return status;
}
