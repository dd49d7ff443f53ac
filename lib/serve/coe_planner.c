/* Plans a collection: divides memory, searches executors, slides the window, and compares systems.
 */
#include "serve/coe_planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "serve/coe_dispatch.h"

static bool runs_on(const struct moe_coe_experts *all, uint32_t expert, uint32_t on)
{
    return !(all->experts[expert].not_on >> on & 1);
}

/* A processor's part of the machine's memory, and what its experts need of it. */
struct moe_coe_share {
    uint64_t bytes;   /* of memory for experts and batches of all its executors */
    uint64_t beside;  /* ... that these take for themselves */
    uint64_t largest; /* its largest expert */
    uint64_t request; /* the most a request takes */
    uint64_t batch;   /* ... and the largest batch */
    double speed;     /* requests per second of its executors on their own */
    struct moe_coe_plan_executors *executors; /* the plan's; NULL: none */
};

struct moe_coe_shares {
    const struct moe_coe_costs *costs;
    const struct moe_coe_experts *all;
    uint64_t memory_bytes, device_bytes; /* the host's, an accelerator's; 0: as in the costs */
    struct moe_coe_share of[MOE_COE_MAX_PROCESSORS];
    uint32_t *ranked; /* experts by falling probability */
};

/* ---- Experts on processors ---- */

/* Sets what experts need of a processor with `plan->number` executors, from now on; NULL: it has
 * none. Sets how many threads each has. */
static void coe_shares_set(struct moe_coe_shares *m, uint32_t on,
                           struct moe_coe_plan_executors *plan)
{
    struct moe_coe_cost table[MOE_COE_MAX_KINDS];
    struct moe_coe_share *s = &m->of[on];
    double seconds = 0, weights = 0;
    uint32_t at_a_time;
    *s = (struct moe_coe_share){.executors = plan};
    if (!plan)
        return;
    s->beside = plan->number * m->costs->processors[on].executor_bytes;
    moe_coe_costs_teams(m->costs, on, plan->number, &plan->threads, &at_a_time);
    moe_coe_costs_table(m->costs, on, plan->threads, table);
    for (uint32_t i = 0; i < m->all->n; i++) {
        const struct moe_coe_expert *e = &m->all->experts[i];
        const struct moe_coe_cost *cost = &table[e->kind];
        if (!runs_on(m->all, i, on))
            continue;
        uint64_t batch = cost->request_bytes * cost->max_batch;
        double weight = e->probability + 1e-9; /* all may be unknown */
        s->largest = e->bytes > s->largest ? e->bytes : s->largest;
        s->request = cost->request_bytes > s->request ? cost->request_bytes : s->request;
        s->batch = batch > s->batch ? batch : s->batch;
        seconds += weight * moe_coe_batch_seconds(cost, cost->max_batch) / cost->max_batch;
        weights += weight;
    }
    s->speed = weights > 0 ? at_a_time * weights / fmax(seconds, 1e-9) : 0;
}

/* Fills in the shares from costs and all, which are set. */
static int coe_shares_open(struct moe_coe_shares *s, struct moe_err *err)
{
    s->ranked = moe_coe_rank(s->all, err);
    return s->ranked ? MOE_OK : MOE_ERR_MEMORY;
}

static void coe_shares_close(struct moe_coe_shares *s)
{
    free(s->ranked);
    s->ranked = NULL;
}

/* Bytes of the processor's n likeliest experts. */
static uint64_t coe_shares_bytes_of(const struct moe_coe_shares *s, uint32_t on, uint32_t n)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->all->n && n > 0; i++)
        if (runs_on(s->all, s->ranked[i], on)) {
            bytes += s->all->experts[s->ranked[i]].bytes;
            n--;
        }
    return bytes;
}

/* How many of its likeliest experts fit in that many bytes. */
static uint32_t coe_shares_fit(const struct moe_coe_shares *s, uint32_t on, uint64_t bytes)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->all->n; i++) {
        uint64_t wanted = s->all->experts[s->ranked[i]].bytes;
        if (!runs_on(s->all, s->ranked[i], on))
            continue;
        if (wanted > bytes)
            break;
        bytes -= wanted;
        n++;
    }
    return n;
}

/* ---- Memory ---- */

static uint64_t own_bytes(const struct moe_coe_shares *s, uint32_t on)
{
    uint64_t own = s->costs->processors[on].memory_bytes;
    return own && s->device_bytes ? s->device_bytes : own;
}

/* Two experts, one computing while the next is loaded, and a request, for each executor, beside
 * what it takes for itself. */
static uint64_t least_bytes(const struct moe_coe_share *s)
{
    return s->executors->number * (2 * s->largest + s->request) + s->beside;
}

/* Divides the memory among processors with executors. A processor gets its own memory whole;
 * host memory is split in proportion to speed, and the shares of processors with their own memory
 * form the tier of experts above the disk. *tier: its bytes; *whole: the total. */
static void coe_shares_divide(struct moe_coe_shares *m, uint64_t *tier, uint64_t *whole)
{
    uint64_t host = m->memory_bytes ? m->memory_bytes : m->costs->memory_bytes;
    uint64_t left = host, needed = 0;
    double speed = 0;
    bool apart = false;
    *whole = host;
    for (uint32_t on = 0; on < m->costs->n_processors; on++) {
        struct moe_coe_share *s = &m->of[on];
        s->bytes = s->executors ? own_bytes(m, on) : 0;
        *whole += s->bytes;
        apart = apart || s->bytes;
        speed += s->executors ? s->speed : 0;
        needed += s->executors && !s->bytes ? least_bytes(s) : 0;
    }
    for (uint32_t on = 0; on < m->costs->n_processors; on++) {
        struct moe_coe_share *s = &m->of[on];
        if (!s->executors || s->bytes)
            continue;
        uint64_t least = least_bytes(s), others = needed - least;
        uint64_t part = (uint64_t)((double)host * (s->speed / speed));
        part = part < least ? least : part;
        s->bytes = host >= others + part ? part : host > others ? host - others : 0;
        left -= s->bytes < left ? s->bytes : left;
    }
    *tier = apart ? left : 0;
    for (uint32_t on = 0; on < m->costs->n_processors; on++)
        m->of[on].bytes -= m->of[on].beside < m->of[on].bytes ? m->of[on].beside : m->of[on].bytes;
}

/* Divides a processor's memory between experts and batches: `expert_bytes` for experts, at least
 * its largest one for each executor. */
static void coe_shares_split(struct moe_coe_shares *m, uint32_t on, uint64_t expert_bytes)
{
    struct moe_coe_share *s = &m->of[on];
    struct moe_coe_plan_executors *e = s->executors;
    e->expert_bytes = (expert_bytes + e->number - 1) / e->number;
    if (e->expert_bytes < s->largest)
        e->expert_bytes = s->largest;
    uint64_t taken = e->expert_bytes * e->number;
    e->batch_bytes = taken < s->bytes ? (s->bytes - taken) / e->number : 0;
    e->experts = coe_shares_fit(m, on, taken);
}

/* ---- Search ---- */

enum {
    MOST_CUDA = 6, /* executors to try */
    MOST_CPU = 3,
    MOST_TEAMS = 8,    /* ... on a processor with divided threads */
    CASUAL_CUDA = 3,   /* 5.2 */
    CASUAL_SHARED = 2, /* ... where the accelerator shares the host's memory */
    CASUAL_CPU = 1,
};
#define LITTLE                                                                                     \
    0.25 /* of a processor's memory: a largest batch within this share is placed first             \
          */

/* Executors of the accelerator and of the processor, and how memory is divided at first. */
struct setting {
    uint32_t cuda, cpu;
    uint32_t resident; /* experts in the memory where they are counted; 0: not set */
    bool casual;       /* accelerators get MOE_COE_CASUAL */
};

struct making {
    const struct moe_coe_planner *p;
    struct moe_coe_plan *plan;
    struct moe_coe_shares shares;
    struct setting now;
    uint32_t window; /* the processor whose experts the window counts; MOE_COE_NONE */
    struct {         /* what gave the most results a second so far */
        struct setting setting;
        struct moe_coe_plan_executors executors[MOE_COE_MAX_PROCESSORS];
        double throughput; /* below 0: nothing was measured */
        uint64_t switches;
    } best;
    struct moe_err *err;
};

/* ---- Trials ---- */

/* Whether the largest batch is small and is placed first (4.4). */
static bool batch_first(const struct moe_coe_share *s)
{
    return (double)s->batch * s->executors->number <= LITTLE * (double)s->bytes;
}

/* Whether a number of experts in memory is one in this processor's: in an accelerator's, or in the
 * only processor's. */
static bool experts_count(const struct moe_coe_costs *c, uint32_t on)
{
    return c->n_processors == 1 || strcmp(c->processors[on].name, "cuda") == 0;
}

static int split_first(struct making *m, uint32_t on)
{
    const struct moe_coe_share *s = &m->shares.of[on];
    const struct moe_coe_costs *c = m->p->costs;
    uint64_t bytes = (uint64_t)(MOE_COE_CASUAL * (double)s->bytes);
    uint64_t requests = s->executors->number * s->request;
    char has[32], needs[32];
    if (m->now.resident && experts_count(c, on)) {
        bytes = coe_shares_bytes_of(&m->shares, on, m->now.resident);
        if (bytes + requests > s->bytes)
            return moe_fail(m->err, MOE_ERR_LIMIT,
                            "%u experts and a request for each executor on '%s' take %s, and %s "
                            "are there: choose fewer",
                            m->now.resident, s->executors->device,
                            moe_format_bytes(bytes + requests, needs),
                            moe_format_bytes(s->bytes, has));
    } else if (batch_first(s) && !(m->now.casual && strcmp(c->processors[on].name, "cuda") == 0)) {
        bytes = s->bytes - s->batch * s->executors->number;
    }
    coe_shares_split(&m->shares, on, bytes);
    return MOE_OK;
}

static int set_executors(struct making *m, struct setting setting)
{
    struct moe_coe_plan *plan = m->plan;
    m->now = setting;
    plan->n_executors = 0;
    for (uint32_t on = 0; on < m->p->costs->n_processors; on++) {
        const char *name = m->p->costs->processors[on].name;
        uint32_t n = strcmp(name, "cuda") == 0 ? setting.cuda : setting.cpu;
        struct moe_coe_plan_executors *e = &plan->executors[plan->n_executors];
        *e = (struct moe_coe_plan_executors){.number = n};
        memcpy(e->device, name, sizeof e->device);
        coe_shares_set(&m->shares, on, n ? e : NULL);
        plan->n_executors += n > 0;
    }
    if (plan->n_executors == 0)
        return moe_fail(m->err, MOE_ERR_USAGE, "there are no executors");
    coe_shares_divide(&m->shares, &plan->host_bytes, &plan->memory_bytes);
    for (uint32_t on = 0; on < m->p->costs->n_processors; on++) {
        const struct moe_coe_share *s = &m->shares.of[on];
        char has[32], needs[32];
        if (s->executors && s->bytes < s->executors->number * (s->largest + s->request))
            return moe_fail(m->err, MOE_ERR_LIMIT,
                            "%s is not enough for %u executor%s on '%s': each needs %s for its "
                            "largest expert and a request",
                            moe_format_bytes(s->bytes, has), s->executors->number,
                            s->executors->number == 1 ? "" : "s", s->executors->device,
                            moe_format_bytes(s->largest + s->request, needs));
        if (s->executors)
            MOE_TRY(split_first(m, on));
    }
    return MOE_OK;
}

/* Measures the plan as it is on the samples, and notes it where nothing was better. */
static int simulate(struct making *m)
{
    const struct moe_coe_planner *p = m->p;
    struct moe_coe_plan *plan = m->plan;
    uint64_t results = 0, switches = 0;
    double seconds = 0;
    for (uint32_t i = 0; i < p->n_samples; i++) {
        struct moe_coe_simulated got;
        MOE_TRY(moe_coe_plan_simulate(plan, p->costs, p->all, &p->samples[i], 0, &got, m->err));
        results += got.results;
        switches += got.switches;
        seconds += got.seconds;
    }
    plan->throughput = seconds > 0 ? (double)results / seconds : 0;
    plan->switches = (switches + p->n_samples / 2) / p->n_samples;
    if (plan->throughput > m->best.throughput) {
        m->best.setting = m->now;
        memcpy(m->best.executors, plan->executors, plan->n_executors * sizeof *plan->executors);
        m->best.throughput = plan->throughput;
        m->best.switches = plan->switches;
    }
    return MOE_OK;
}

/* The plan as it was measured best. */
static int take_best(struct making *m)
{
    struct moe_coe_plan *plan = m->plan;
    MOE_TRY(set_executors(m, m->best.setting));
    memcpy(plan->executors, m->best.executors, plan->n_executors * sizeof *plan->executors);
    plan->throughput = m->best.throughput;
    plan->switches = m->best.switches;
    return MOE_OK;
}

static bool was_tried(const struct making *m, const struct setting *s)
{
    for (uint32_t i = 0; i < m->plan->n_trials; i++) {
        const struct moe_coe_plan_trial *t = &m->plan->trials[i];
        if (t->cuda == s->cuda && t->cpu == s->cpu && t->experts == s->resident)
            return true;
    }
    return false;
}

/* Tries one combination, unless it was tried; memory may not suffice for it. */
static int try_executors(struct making *m, struct setting s)
{
    struct moe_coe_plan *plan = m->plan;
    if (was_tried(m, &s))
        return MOE_OK;
    int status = set_executors(m, s);
    if (status == MOE_OK)
        status = simulate(m);
    if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
        return MOE_OK;
    if (status == MOE_OK && plan->n_trials < MOE_COE_MAX_TRIALS)
        plan->trials[plan->n_trials++] =
            (struct moe_coe_plan_trial){s.cuda, s.cpu, s.resident, plan->throughput};
    return status;
}

/* Upper bound on host executors worth trying: more would share threads. */
static uint32_t most_cpu(const struct moe_coe_costs *c)
{
    uint32_t on = moe_coe_costs_processor(c, "cpu");
    uint32_t threads = on == MOE_COE_NONE ? 0 : c->processors[on].threads;
    return threads <= MOST_CPU ? MOST_CPU : threads < MOST_TEAMS ? threads : MOST_TEAMS;
}

/* Searches the accelerator's executors, then, with the best number of these, the host's (5.3), and
 * so on in turn until nothing gets better. *at: where it begins, and what it comes to. */
static int search_executors(struct making *m, struct setting *at)
{
    const struct moe_coe_planner *p = m->p;
    bool cuda = moe_coe_costs_processor(p->costs, "cuda") != MOE_COE_NONE && p->cuda == UINT32_MAX;
    bool cpu = moe_coe_costs_processor(p->costs, "cpu") != MOE_COE_NONE && p->cpu == UINT32_MAX;
    double before;
    do {
        before = m->best.throughput;
        for (uint32_t n = 1; n <= MOST_CUDA && cuda; n++)
            MOE_TRY(try_executors(m, (struct setting){n, at->cpu, at->resident, false}));
        if (m->best.throughput > before)
            *at = m->best.setting;
        for (uint32_t n = 0; n <= most_cpu(p->costs) && cpu; n++)
            MOE_TRY(try_executors(m, (struct setting){at->cuda, n, at->resident, false}));
        if (m->best.throughput > before)
            *at = m->best.setting;
    } while (m->best.throughput > before);
    return MOE_OK;
}

/* Checks that executors asked for have a measured processor. */
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

/* The paper's casual setting (5.2), but for executors that are asked for. */
static struct setting casual_setting(const struct moe_coe_planner *p)
{
    uint32_t on = moe_coe_costs_processor(p->costs, "cuda");
    uint32_t cuda = on == MOE_COE_NONE                          ? 0
                    : p->costs->processors[on].memory_bytes > 0 ? CASUAL_CUDA
                                                                : CASUAL_SHARED;
    return (struct setting){.cuda = p->cuda != UINT32_MAX ? p->cuda : cuda,
                            .cpu = p->cpu != UINT32_MAX ? p->cpu : CASUAL_CPU,
                            .casual = true};
}

static int choose_executors(struct making *m)
{
    const struct moe_coe_planner *p = m->p;
    bool has_cuda = moe_coe_costs_processor(p->costs, "cuda") != MOE_COE_NONE;
    struct setting at = {.cuda = p->cuda != UINT32_MAX ? p->cuda : has_cuda,
                         .cpu = p->cpu != UINT32_MAX ? p->cpu : !has_cuda,
                         .resident = p->resident};
    MOE_TRY(check_named(m, "cuda", p->cuda));
    MOE_TRY(check_named(m, "cpu", p->cpu));
    if (p->casual)
        at = casual_setting(p);
    else
        MOE_TRY(search_executors(m, &at));
    MOE_TRY(set_executors(m, at));
    if (m->plan->n_trials > 0)
        moe_coe_plan_because(m->plan, "executors",
                             "%u on the accelerator and %u on the processor were the best of %u "
                             "combinations tried on the sample",
                             at.cuda, at.cpu, m->plan->n_trials);
    else
        moe_coe_plan_because(m->plan, "executors", "%u on the accelerator, %u on the processor: %s",
                             at.cuda, at.cpu, p->casual ? "the casual setting" : "as asked for");
    return MOE_OK;
}

/* ---- The window ---- */

static int measure(void *ctx, uint32_t n_experts, double *throughput, struct moe_err *err)
{
    struct making *m = ctx;
    (void)err; /* the same as m->err */
    m->now.resident = experts_count(m->p->costs, m->window) ? n_experts : 0;
    coe_shares_split(&m->shares, m->window, coe_shares_bytes_of(&m->shares, m->window, n_experts));
    MOE_TRY(simulate(m));
    *throughput = m->plan->throughput;
    return MOE_OK;
}

static int slide(struct making *m, uint32_t on)
{
    struct moe_coe_plan *plan = m->plan;
    const struct moe_coe_share *s = &m->shares.of[on];
    struct moe_coe_window_options o = m->p->window;
    struct moe_coe_window found;
    char size[32];
    m->window = on;
    o.most = coe_shares_fit(&m->shares, on, s->bytes - s->executors->number * s->request);
    MOE_TRY(moe_coe_slide(&o, measure, m, &found, m->err));
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
    m->now.resident = experts_count(m->p->costs, on) ? found.chosen : 0;
    coe_shares_split(&m->shares, on, coe_shares_bytes_of(&m->shares, on, found.chosen));
    const double last = found.throughput[found.n_points - 1];
    char stop[160];
    if (found.expected > 0 && last < (1 - plan->window.margin) * found.expected)
        snprintf(stop, sizeof stop,
                 "between %u and %u throughput fell below its trend (%.4g a second instead of "
                 "%.4g)",
                 found.lower, found.upper, last, found.expected);
    else
        snprintf(stop, sizeof stop, "up to %u, its end, throughput did not fall below its trend",
                 found.upper);
    moe_coe_plan_because(plan, s->executors->device,
                         "its largest batches would take %.0f%% of %s, so the number of experts in "
                         "memory was searched with a sliding window; %s, and %u was picked at "
                         "random from the window's last range",
                         100 * (double)s->batch * s->executors->number / (double)s->bytes,
                         moe_format_bytes(s->bytes, size), stop, found.chosen);
    return MOE_OK;
}

static int divide(struct making *m, uint32_t on)
{
    const struct moe_coe_share *s = &m->shares.of[on];
    const struct moe_coe_planner *p = m->p;
    bool accelerator = strcmp(p->costs->processors[on].name, "cuda") == 0;
    char size[32];
    if (!s->executors)
        return MOE_OK;
    if (p->casual && accelerator) {
        moe_coe_plan_because(m->plan, s->executors->device,
                             "%.0f%% of %s for experts, the rest for batches: the "
                             "casual setting",
                             100 * MOE_COE_CASUAL, moe_format_bytes(s->bytes, size));
    } else if (p->resident && experts_count(p->costs, on)) {
        moe_coe_plan_because(m->plan, s->executors->device, "%u experts, as asked for",
                             p->resident);
    } else if (batch_first(s)) {
        moe_coe_plan_because(m->plan, s->executors->device,
                             "the largest batches take %.1f%% of %s, so these come "
                             "first, and experts get the rest",
                             100 * (double)s->batch * s->executors->number / (double)s->bytes,
                             moe_format_bytes(s->bytes, size));
    } else if (m->plan->window.device[0]) {
        moe_coe_plan_because(m->plan, s->executors->device,
                             "%.0f%% of %s for experts, the rest for batches, "
                             "refined with a sliding window",
                             100 * MOE_COE_CASUAL, moe_format_bytes(s->bytes, size));
    } else {
        return slide(m, on);
    }
    return MOE_OK;
}

/* ---- The best of all that was measured ---- */

/* Looks where the paper's search does not: other executors with the best number of experts in
 * memory, and the casual setting. Says so where something measured was better than what that search
 * came to, which is in the plan. */
static int look_further(struct making *m)
{
    struct moe_coe_plan *plan = m->plan;
    double searched = plan->throughput;
    struct setting at = m->best.setting;
    char text[sizeof plan->reasons->text] = "";
    if (m->window != MOE_COE_NONE && experts_count(m->p->costs, m->window)) {
        for (uint32_t i = 0; i < plan->n_executors && !at.resident; i++)
            if (strcmp(m->best.executors[i].device, plan->window.device) == 0)
                at.resident = m->best.executors[i].experts;
        MOE_TRY(search_executors(m, &at));
    }
    int status = set_executors(m, casual_setting(m->p));
    status = status == MOE_OK ? simulate(m) : status;
    if (status != MOE_OK && status != MOE_ERR_LIMIT && status != MOE_ERR_USAGE)
        return status;
    MOE_TRY(take_best(m));
    for (uint32_t i = 0; i < plan->n_executors; i++) {
        const struct moe_coe_plan_executors *e = &plan->executors[i];
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u on %s with %u expert%s",
                 i ? " and " : "", e->number, e->device, e->experts, e->experts == 1 ? "" : "s");
    }
    if (plan->throughput > searched)
        moe_coe_plan_because(
            plan, "the best",
            "of everything that was measured, %s in memory%s gave the most results "
            "a second, %.4g against %.4g of that search: it is planned",
            text, m->best.setting.casual ? " (the casual setting)" : "", plan->throughput,
            searched);
    return MOE_OK;
}

/* ---- Making a plan ---- */

/* Why the largest batch is a single request, where it is. */
static void explain_single(struct making *m, const struct moe_coe_plan_executors *e,
                           const char *kind, uint64_t request_bytes)
{
    char has[32], needs[32];
    moe_coe_plan_because(m->plan, e->device,
                         "each executor's memory for batches, %s, has %s request of %s, which "
                         "takes %s, so these are computed one by one",
                         moe_format_bytes(e->batch_bytes, has),
                         e->batch_bytes < request_bytes ? "no room for a whole"
                                                        : "room for a single",
                         kind, moe_format_bytes(request_bytes, needs));
}

static void list_batches(struct making *m)
{
    const struct moe_coe_costs *c = m->p->costs;
    struct moe_coe_cost table[MOE_COE_MAX_KINDS];
    char single[sizeof m->plan->batches->architecture] = "";
    for (uint32_t on = 0; on < c->n_processors; on++) {
        const struct moe_coe_plan_executors *e = m->shares.of[on].executors;
        if (!e)
            continue;
        moe_coe_costs_table(c, on, e->threads, table);
        uint64_t largest = 0; /* request of which only one fits */
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
            if (fits <= 1 && fits < cost->max_batch && cost->request_bytes > largest) {
                largest = cost->request_bytes;
                memcpy(single, b->architecture, sizeof single);
            }
        }
        if (largest)
            explain_single(m, e, single, largest);
    }
}

static void explain_host(struct making *m)
{
    const struct moe_coe_plan *plan = m->plan;
    char size[32];
    if (plan->host_bytes)
        moe_coe_plan_because(m->plan, "host",
                             "%s of the host's memory hold experts above the disk, "
                             "for processors with memory of their own",
                             moe_format_bytes(plan->host_bytes, size));
    else
        moe_coe_plan_because(m->plan, "host", "no tier of experts above the disk: %s",
                             m->shares.of[0].bytes && plan->n_executors > 1
                                 ? "the processors share one memory"
                                 : "no executor has memory of its own");
}

static int make_plan(const struct moe_coe_planner *p, struct moe_coe_plan *plan,
                     struct moe_err *err)
{
    struct making m = {
        .p = p, .plan = plan, .window = MOE_COE_NONE, .best.throughput = -1, .err = err};
    snprintf(plan->schedule, sizeof plan->schedule, "%s", p->schedule);
    snprintf(plan->evict, sizeof plan->evict, "%s", p->evict);
    plan->prefetch = p->prefetch;
    m.shares.costs = p->costs;
    m.shares.all = p->all;
    m.shares.memory_bytes = p->memory_bytes;
    m.shares.device_bytes = p->device_bytes;
    int status;
    MOE_STEP(coe_shares_open(&m.shares, err));
    MOE_STEP(choose_executors(&m));
    for (uint32_t on = 0; on < p->costs->n_processors; on++)
        MOE_STEP(divide(&m, on));
    MOE_STEP(simulate(&m));
    if (!p->casual && !p->resident)
        MOE_STEP(look_further(&m));
    MOE_STEP(take_best(&m));
    list_batches(&m);
    explain_host(&m);
out:
    coe_shares_close(&m.shares);
    return status;
}

/* Puts the lists and settings of one plan into the other's place; what they were made for stays. */
static void swap_plans(struct moe_coe_plan *a, struct moe_coe_plan *b)
{
    struct moe_coe_plan was = *a;
    *a = *b;
    *b = was;
    memcpy(a->machine, was.machine, sizeof a->machine);
    memcpy(a->collection, was.collection, sizeof a->collection);
    memcpy(a->costs, was.costs, sizeof a->costs);
}

int moe_coe_planner_make(const struct moe_coe_planner *p, struct moe_coe_plan *plan,
                         struct moe_err *err)
{
    static const char *const names[2][2] = {{"home", "queue"}, {"coserve", "two-stage"}};
    const int n_named = p->schedule && p->evict ? 1 : 2, n_loading = p->prefetch ? 2 : 1;
    struct moe_coe_plan *other = NULL;
    char tried[sizeof plan->reasons->text] = "";
    int status = MOE_OK;
    for (int i = 0; i < n_named * n_loading; i++) {
        struct moe_coe_planner way = *p;
        size_t end = strlen(tried);
        way.schedule = p->schedule ? p->schedule : names[i / n_loading][0];
        way.evict = p->evict ? p->evict : names[i / n_loading][1];
        way.prefetch = p->prefetch && i % n_loading == 0;
        MOE_STEP(moe_coe_plan_new(&other, err));
        MOE_STEP(make_plan(&way, other, err));
        if (i % n_loading == 0)
            snprintf(tried + end, sizeof tried - end, "%s%s with eviction by %s %.4g",
                     i ? "; " : "", way.schedule, way.evict, other->throughput);
        else
            snprintf(tried + end, sizeof tried - end, ", %.4g without prefetching",
                     other->throughput);
        if (i == 0 || other->throughput > plan->throughput)
            swap_plans(plan, other);
        moe_coe_plan_free(other);
        other = NULL;
    }
    if (n_named * n_loading > 1)
        moe_coe_plan_because(plan, "schedule",
                             "results a second of the samples, each with the executors and the "
                             "memory that are best for it: %s",
                             tried);
out:
    moe_coe_plan_free(other);
    return status;
}

/* A plan's executors in the simulator. */

static int find_ways(const struct moe_coe_plan *plan, struct moe_coe_options *o,
                     struct moe_err *err)
{
    const struct moe_coe_schedule *schedule = moe_coe_schedule_find(plan->schedule);
    if (!schedule || !moe_coe_evict_find(plan->evict, &o->evict))
        return moe_fail(err, MOE_ERR_USAGE, "there is no %s '%s'",
                        schedule ? "eviction" : "schedule",
                        schedule ? plan->evict : plan->schedule);
    o->assign = schedule->assign;
    o->arrange = schedule->arrange;
    return MOE_OK;
}

/* tables: [n_processors * n_kinds]; at_a_time: [n_processors]. */
static int add_executors(const struct moe_coe_plan *plan, const struct moe_coe_costs *costs,
                         struct moe_coe_cost *tables, uint32_t *at_a_time,
                         struct moe_coe_executor_options *executors, uint32_t *processor_of,
                         uint32_t *n, struct moe_err *err)
{
    for (uint32_t i = 0; i < plan->n_executors; i++) {
        const struct moe_coe_plan_executors *e = &plan->executors[i];
        uint32_t on = moe_coe_costs_processor(costs, e->device);
        uint32_t threads;
        if (on == MOE_COE_NONE)
            return moe_fail(err, MOE_ERR_USAGE, "the costs have no processor '%s'", e->device);
        moe_coe_costs_teams(costs, on, e->number, &threads, &at_a_time[on]);
        if (e->threads && threads) { /* as the plan says */
            uint32_t all = costs->processors[on].threads;
            threads = e->threads < all ? e->threads : all;
            at_a_time[on] = all / threads;
        }
        moe_coe_costs_table(costs, on, threads, &tables[on * costs->n_kinds]);
        for (uint32_t k = 0; k < e->number; k++, ++*n) {
            executors[*n] = (struct moe_coe_executor_options){&tables[on * costs->n_kinds],
                                                              e->expert_bytes, e->batch_bytes, on};
            processor_of[*n] = on;
        }
    }
    return MOE_OK;
}

int moe_coe_plan_simulate(const struct moe_coe_plan *plan, const struct moe_coe_costs *costs,
                          const struct moe_coe_experts *all, const struct moe_coe_task *task,
                          double schedule_seconds, struct moe_coe_simulated *out,
                          struct moe_err *err)
{
    struct moe_coe_executor_options executors[MOE_COE_MAX_PROCESSORS * MOE_COE_MAX_EXECUTORS];
    uint32_t processor_of[MOE_COE_MAX_PROCESSORS * MOE_COE_MAX_EXECUTORS];
    uint32_t at_a_time[MOE_COE_MAX_PROCESSORS] = {0};
    struct moe_coe_options o = {.all = all, .executors = executors};
    struct moe_coe_cost *tables =
        moe_alloc((uint64_t)costs->n_processors * costs->n_kinds, sizeof *tables, err);
    int status;
    MOE_STEP(tables ? find_ways(plan, &o, err) : MOE_ERR_MEMORY);
    MOE_STEP(add_executors(plan, costs, tables, at_a_time, executors, processor_of, &o.n_executors,
                           err));
    const struct moe_coe_machine machine = {.n_processors = costs->n_processors,
                                            .processor_of = processor_of,
                                            .at_a_time = at_a_time,
                                            .host_bytes = plan->host_bytes,
                                            .host_evict = o.evict,
                                            .prefetch = plan->prefetch,
                                            .place = true,
                                            .schedule_seconds = schedule_seconds,
                                            .host_processor =
                                                moe_coe_costs_processor(costs, "cpu")};
    MOE_STEP(moe_coe_simulate(&o, &machine, task->arrivals, task->n, out, err));
out:
    free(tables);
    return status;
}

/* ---- Comparison ---- */

/* 5.1 for the baselines, 5.3 for the parts. Rows of what is not in the paper have names with a plus
 * sign after "coserve" or "next": the next expert loads while the present one computes; an expert
 * is loaded on one executor; who leaves follows the queue. */
const struct moe_coe_system moe_coe_systems[MOE_COE_SYSTEMS] = {
    {"samba", "Samba-CoE: one executor, first come first served, LRU", "fcfs", "lru", false,
     MOE_COE_ONE_EXECUTOR},
    {"samba-fifo", "... with FIFO", "fcfs", "fifo", false, MOE_COE_ONE_EXECUTOR},
    {"samba-parallel", "... on as many executors as CoServe, in turn", "round-robin", "lru", false,
     MOE_COE_AT_BEST},
    {"none", "CoServe without its parts: FIFO, executors in turn", "round-robin", "fifo", false,
     MOE_COE_AT_BEST},
    {"em", "... with expert management", "round-robin", "two-stage", false, MOE_COE_AT_BEST},
    {"em+ra", "... and request arranging", "arrange", "two-stage", false, MOE_COE_AT_BEST},
    {"casual", "CoServe at its casual setting", "coserve", "two-stage", false, MOE_COE_CASUALLY},
    {"coserve", "CoServe at its best setting: arranging and assigning", "coserve", "two-stage",
     false, MOE_COE_AT_BEST},
    {"coserve+next", "... and the next expert loads meanwhile", "coserve", "two-stage", true,
     MOE_COE_OWN},
    {"next+home", "... and an expert is loaded on one executor", "home", "two-stage", true,
     MOE_COE_OWN},
    {"next+queue", "coserve+next, and who leaves follows the queue", "coserve", "queue", true,
     MOE_COE_OWN},
    {"next+both", "coserve+next with both", "home", "queue", true, MOE_COE_OWN},
    {"planned", "the best of the ways that a plan tries, on its samples", NULL, NULL, true,
     MOE_COE_PLANNED},
    {"fcfs+two-stage", "expert management alone, one executor", "fcfs", "two-stage", false,
     MOE_COE_ONE_EXECUTOR},
};

/* Copies CoServe's executors and memory for another schedule. */
static void copy_executors(const struct moe_coe_plan *best, struct moe_coe_plan *plan)
{
    memcpy(plan->executors, best->executors, best->n_executors * sizeof *best->executors);
    plan->n_executors = best->n_executors;
    plan->memory_bytes = best->memory_bytes;
    plan->host_bytes = best->host_bytes;
}

int moe_coe_compare(const struct moe_coe_system *system, const struct moe_coe_planner *p,
                    const struct moe_coe_plan *best, const struct moe_coe_task *task,
                    struct moe_coe_simulated *out, struct moe_coe_plan **plan, struct moe_err *err)
{
    struct moe_coe_planner own = *p;
    struct moe_coe_plan *made;
    bool has_cuda = moe_coe_costs_processor(p->costs, "cuda") != MOE_COE_NONE;
    own.schedule = system->schedule;
    own.evict = system->evict;
    own.prefetch = system->prefetch;
    if (system->setting == MOE_COE_ONE_EXECUTOR || system->setting == MOE_COE_CASUALLY) {
        bool alone = system->setting == MOE_COE_ONE_EXECUTOR;
        own.casual = true;
        own.resident = 0;
        own.cuda = alone ? has_cuda : UINT32_MAX;
        own.cpu = alone ? !has_cuda : UINT32_MAX;
    }
    int status;
    MOE_STEP(moe_coe_plan_new(&made, err));
    if (system->setting == MOE_COE_AT_BEST) {
        copy_executors(best, made);
        snprintf(made->schedule, sizeof made->schedule, "%s", system->schedule);
        snprintf(made->evict, sizeof made->evict, "%s", system->evict);
        made->prefetch = system->prefetch;
    } else if (system->setting == MOE_COE_PLANNED) {
        MOE_STEP(moe_coe_planner_make(&own, made, err));
    } else {
        MOE_STEP(make_plan(&own, made, err));
    }
    MOE_STEP(moe_coe_plan_simulate(made, p->costs, p->all, task, 0, out, err));
out:
    if (plan && status == MOE_OK)
        *plan = made;
    else
        moe_coe_plan_free(made);
    return status;
}
