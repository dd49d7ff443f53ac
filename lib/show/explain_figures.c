/* The figures that a plan's explanation gives (explain_figures.h). */
#include "show/explain_figures.h"

#include <math.h>

double moe_plan_budget(const struct moe_plan *plan)
{
    return (double)(plan->memory.total ? plan->memory.total : plan->memory.experts);
}

bool moe_plan_over_bus(const struct moe_plan *plan)
{
    return plan->evidence.loads_over_bus || plan->host.total || plan->pace.storage_rate > 0;
}

/* `x` where it is known and above zero. */
static double known(double x)
{
    return x > 0 ? x : 0;
}

struct moe_plan_bounds moe_plan_bounds(const struct moe_plan *plan)
{
    const struct moe_plan_expected *e = &plan->expected;
    double total = known(e->compute_seconds) + known(e->handling_seconds) +
                   known(e->stall_seconds) + known(e->host_seconds);
    double computation = fmin(known(e->compute_limit_seconds), total);
    double limit = fmin(fmax(known(e->link_limit_seconds), computation), total);
    struct moe_plan_bounds b = {
        .total = total,
        .seconds = {computation, limit - computation, total - limit},
    };
    for (enum moe_bound i = 0; i < MOE_N_BOUNDS; i++)
        if (b.seconds[i] > b.seconds[b.largest])
            b.largest = i;
    return b;
}

const struct moe_plan_step *moe_plan_next_step(const struct moe_plan_step *steps, uint32_t n,
                                               double amount)
{
    for (uint32_t i = 0; i < n; i++)
        if (steps[i].amount > 1.001 * amount)
            return &steps[i];
    return NULL;
}

/* ---- Advice ---- */

double moe_plan_gain(const struct moe_plan *plan, double tokens_per_second)
{
    double now = plan->expected.decode_tokens_per_second;
    return now > 0 && tokens_per_second >= 0 ? tokens_per_second / now - 1 : NAN;
}

/* Inserts it, the largest gain first; among equals the one found first. */
static void advise(struct moe_advice *out, uint32_t *n, struct moe_advice advice)
{
    uint32_t at = *n;
    if (!(advice.gain >= MOE_ADVICE_GAIN) || at == MOE_PLAN_MAX_ALTERNATIVES)
        return;
    for (; at > 0 && out[at - 1].gain < advice.gain; at--)
        out[at] = out[at - 1];
    out[at] = advice;
    ++*n;
}

uint32_t moe_plan_advice(const struct moe_plan *plan,
                         struct moe_advice out[MOE_PLAN_MAX_ALTERNATIVES])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &plan->alternatives[i];
        advise(out, &n,
               (struct moe_advice){a->what, a->amount, a->times, a->precision,
                                   moe_plan_gain(plan, a->decode_tokens_per_second)});
    }
    return n;
}

/* ---- Assumptions ---- */

const struct moe_plan_doubt *moe_plan_doubt_of(const struct moe_plan *plan,
                                               enum moe_assumption what)
{
    for (uint32_t i = 0; i < plan->n_doubts; i++)
        if (plan->doubts[i].what == what)
            return &plan->doubts[i];
    return NULL;
}

uint32_t moe_plan_assumptions(const struct moe_plan *plan,
                              enum moe_assumption out[MOE_N_ASSUMPTIONS])
{
    const struct moe_plan_evidence *e = &plan->evidence;
    bool synthetic = !e->trace[0];
    bool holds[MOE_N_ASSUMPTIONS] = {
        [MOE_ASSUME_ROUTING] = synthetic && !e->manner_known,
        [MOE_ASSUME_BANDWIDTH] = !e->times_measured && !e->times_stated,
        [MOE_ASSUME_NOMINAL] = e->link_stated && plan->n_pools > 0,
        [MOE_ASSUME_FIGURES] = synthetic && e->manner_known,
        [MOE_ASSUME_QUIET] = e->times_spread > MOE_QUIET_SPREAD,
        [MOE_ASSUME_FEW_TOKENS] = moe_plan_hit_rate_error(plan) > MOE_FEW_TOKENS_ERROR,
        [MOE_ASSUME_NO_STATISTICS] = !e->statistics[0],
        [MOE_ASSUME_ALIKE] = true,
    };
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_doubts; i++) {
        out[n++] = plan->doubts[i].what;
        holds[plan->doubts[i].what] = false;
    }
    for (enum moe_assumption i = 0; i < MOE_N_ASSUMPTIONS; i++)
        if (holds[i])
            out[n++] = i;
    return n;
}

struct moe_plan_slots moe_plan_slots(const struct moe_plan *plan)
{
    const uint32_t n_layers = plan->n_layers - plan->n_repeated;
    struct moe_plan_slots s = {.n_experts = (uint64_t)n_layers * plan->n_experts};
    for (uint32_t i = 0; i < plan->n_pools; i++) {
        const struct moe_plan_pool *pool = &plan->pools[i];
        s.n_cache += pool->n_cache;
        s.n_working += pool->n_working;
        s.cache_bytes += pool->n_cache * pool->slot_bytes;
        s.working_bytes += pool->n_working * pool->slot_bytes;
    }
    s.share = s.n_experts ? (double)s.n_cache / (double)s.n_experts : 0;
    s.tokens = plan->memory.token ? (double)s.cache_bytes / (double)plan->memory.token : 0;
    return s;
}

/* Adds x, where it is known, to a mean. */
static void mean_add(double x, double *sum, uint32_t *n)
{
    if (!(x >= 0))
        return;
    *sum += x;
    ++*n;
}

struct moe_plan_span moe_plan_span(const struct moe_plan *plan, uint32_t first, uint32_t n)
{
    struct moe_plan_span l = {0};
    uint32_t n_hit = 0, n_accuracy = 0, n_stall = 0;
    for (uint32_t i = 0; i < plan->n_pools; i++)
        for (uint32_t k = 0; k < n && plan->pools[i].per_layer; k++) {
            l.own_slots = true;
            l.slots += plan->pools[i].per_layer[first + k];
        }
    for (uint32_t i = 0; i < plan->n_contents; i++) {
        uint32_t layer = plan->contents[i] / plan->n_experts;
        l.filled += layer >= first && layer < first + n;
    }
    for (uint32_t k = 0; k < n; k++) {
        mean_add(plan->layers[first + k].hit_rate, &l.hit_rate, &n_hit);
        mean_add(plan->layers[first + k].accuracy, &l.accuracy, &n_accuracy);
        mean_add(plan->layers[first + k].stall_seconds, &l.stall_seconds, &n_stall);
    }
    l.hit_rate = n_hit ? l.hit_rate / n_hit : -1;
    l.accuracy = n_accuracy ? l.accuracy / n_accuracy : -1;
    return l;
}
