#include "plan/planner_alternatives.h"

#include <stdio.h>
#include <string.h>

#include "model/shape.h"
#include "plan/planner_try.h"
#include "plan/trials.h"
#include "record/map.h"

enum { MOST_BITS = 2 /* other bitwidths that are tried */ };

/* ---- One alternative ---- */

void planner_begin_variation(struct planner_variation *v, const struct moe_planner *p,
                             const struct moe_fitted *f)
{
    *v = (struct planner_variation){.planner = *p, .pace = *p->pace, .strategy = &f->strategy};
    v->planner.pace = &v->pace;
    v->planner.lookups = NULL; /* no optimum is wanted */
}

static void scale_line(struct moe_line *line, double times)
{
    for (uint32_t i = 0; i < line->n; i++)
        line->y[i] *= times;
}

void planner_scale_computation(struct moe_pace *pace, double times)
{
    for (int i = 0; i < MOE_N_PIECES; i++)
        scale_line(&pace->pieces[i], times);
    for (uint32_t i = 0; i < pace->n_variants; i++)
        scale_line(&pace->experts[i], times);
    pace->head *= times;
    pace->predict *= times;
    pace->joint *= times;
    pace->loads.handling *= times;
    pace->loads.handling_byte *= times;
    pace->loads.wake *= times;
}

static bool does_not_run(int status)
{
    return status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE;
}

/* Tries one strategy and takes over what it finds, where that is faster than what is there. */
static int try_one(const struct planner_variation *v, const struct moe_strategy *strategy,
                   const char *name, struct moe_plan_alternative *a, struct moe_err *err)
{
    struct moe_trial_run t;
    struct moe_simulated_phase pre;
    uint32_t n_prompt;
    int status = moe_planner_try(&v->planner, strategy, v->bytes, v->load_rate, &t, NULL, err);
    if (status != MOE_OK || moe_trial_tokens_per_second(&t) <= a->decode_tokens_per_second)
        return status;
    status = moe_planner_try_prompt(&v->planner, strategy, v->bytes, v->load_rate, &t, &pre,
                                    &n_prompt, err);
    if (status != MOE_OK)
        return status;
    const struct moe_simulated_phase *d = &t.simulated.decode;
    a->decode_tokens_per_second = moe_trial_tokens_per_second(&t);
    a->prefill_tokens_per_second = pre.seconds > 0 ? (double)pre.tokens / pre.seconds : -1;
    a->hit_rate = moe_trial_hit_rate(&t);
    a->bytes_per_token = d->tokens ? (double)d->bytes / (double)d->tokens : -1;
    snprintf(a->strategy, sizeof a->strategy, "%s", name);
    return MOE_OK;
}

/* other: a strategy that is tried as well; NULL: none. */
static int add(const struct planner_variation *v, const char *other, struct moe_plan_alternative a,
               struct moe_plan *plan, struct moe_err *err)
{
    struct moe_strategy second;
    a.decode_tokens_per_second = a.prefill_tokens_per_second = a.hit_rate = a.bytes_per_token = -1;
    if (plan->n_alternatives == MOE_PLAN_MAX_ALTERNATIVES)
        return MOE_OK;
    int status = try_one(v, v->strategy, "", &a, err);
    if ((status == MOE_OK || does_not_run(status)) && other) {
        moe_strategy_find(other, &second);
        status = try_one(v, &second, other, &a, err);
    }
    if (status != MOE_OK && !does_not_run(status))
        return status;
    plan->alternatives[plan->n_alternatives++] = a;
    return MOE_OK;
}

/* ---- Memory, link, processor ---- */

/* The memory of the plan, of the process or of experts. */
static uint64_t present(const struct moe_fitted *f)
{
    const struct moe_plan_memory *m = &f->memory;
    return m->total ? m->total : f->named ? f->named : m->experts;
}

static int add_memory(const struct moe_planner *p, const struct moe_fitted *f, double times,
                      struct moe_plan *plan, struct moe_err *err)
{
    struct planner_variation v;
    planner_begin_variation(&v, p, f);
    v.bytes = (uint64_t)((double)present(f) * times);
    /* More may be enough for everything; of what was all in memory less needs a cache. */
    const char *other = times > 1 && !f->strategy.resident  ? "resident"
                        : times < 1 && f->strategy.resident ? "lru"
                                                            : NULL;
    return v.bytes
               ? add(&v, other,
                     (struct moe_plan_alternative){
                         .what = MOE_ALTERNATIVE_MEMORY, .amount = (double)v.bytes, .times = times},
                     plan, err)
               : MOE_OK;
}

static int add_link(const struct moe_planner *p, const struct moe_fitted *f, double times,
                    struct moe_plan *plan, struct moe_err *err)
{
    struct planner_variation v;
    planner_begin_variation(&v, p, f);
    v.load_rate = p->pace->load_rate * times;
    return add(&v, NULL,
               (struct moe_plan_alternative){
                   .what = MOE_ALTERNATIVE_LINK, .amount = v.load_rate, .times = times},
               plan, err);
}

static int add_processor(const struct moe_planner *p, const struct moe_fitted *f, double times,
                         struct moe_plan *plan, struct moe_err *err)
{
    struct planner_variation v;
    planner_begin_variation(&v, p, f);
    planner_scale_computation(&v.pace, 1 / times);
    return add(&v, NULL,
               (struct moe_plan_alternative){
                   .what = MOE_ALTERNATIVE_PROCESSOR, .amount = times, .times = times},
               plan, err);
}

/* ---- Context and batch ---- */

/* Half the context: what it leaves is for experts. */
static int add_context(const struct moe_planner *p, const struct moe_fitted *f,
                       struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_plan_memory *m = &f->memory;
    const struct moe_plan_alternative a = {
        .what = MOE_ALTERNATIVE_CONTEXT, .amount = m->context / 2, .times = 0.5};
    struct planner_variation v;
    if (!m->total || m->context < 2)
        return MOE_OK;
    planner_begin_variation(&v, p, f);
    v.bytes = m->total + m->kv / 2;
    return add(&v, NULL, a, plan, err);
}

static int add_batch(const struct moe_planner *p, const struct moe_fitted *f, double times,
                     struct moe_plan *plan, struct moe_err *err)
{
    uint32_t other = (uint32_t)((double)f->memory.batch * times);
    const struct moe_plan_alternative a = {
        .what = MOE_ALTERNATIVE_BATCH, .amount = other, .times = times};
    struct planner_variation v;
    if (!f->memory.total || other < 1)
        return MOE_OK;
    planner_begin_variation(&v, p, f);
    v.planner.batch = other;
    return add(&v, NULL, a, plan, err);
}

/* ---- Other bits ---- */

struct bits {
    char name[MOE_PACK_NAME_BYTES];
    double bytes; /* of an expert */
};

static bool is_known(const struct bits *all, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return true;
    return false;
}

/* How many times as large experts are here as their bits alone say: pages, other groups. */
static double size_here(const struct moe_planner *p, uint32_t high)
{
    const struct moe_inventory *inv = p->inventory;
    for (uint32_t i = 0; i < p->n_bits && i < MOE_PLANNER_BITS; i++)
        if (strcmp(p->bits[i].name, inv->variants[high]) == 0 && p->bits[i].bytes > 0)
            return (double)moe_inventory_mean_bytes(inv, high) / p->bits[i].bytes;
    return 1;
}

int moe_planner_set_bits(struct moe_planner *p, const struct moe_config *config,
                         struct moe_err *err)
{
    static const int widths[MOE_PLANNER_BITS] = {8, 4, 3, 2};
    enum { DENSE_BITS = 8, GROUP = 64 /* columns that share a scale, as moe-quantize has it */ };
    int status = MOE_OK;
    p->n_bits = 0;
    for (int i = 0; i < MOE_PLANNER_BITS && status == MOE_OK; i++) {
        struct moe_shape_bytes bytes;
        const struct moe_bits bits = {widths[i], widths[i]};
        status = moe_shape_bytes(&bytes, config, bits, DENSE_BITS, GROUP, err);
        if (status != MOE_OK)
            break;
        struct moe_planner_bits *to = &p->bits[p->n_bits++];
        snprintf(to->name, sizeof to->name, "%d", widths[i]);
        to->bytes = (double)bytes.expert;
    }
    return status;
}

/* The next lower bitwidths: what the model has them stored at, and what it could have; the largest
 * first. */
static uint32_t lower_bits(const struct moe_planner *p, uint32_t high, struct bits out[MOST_BITS])
{
    const struct moe_inventory *inv = p->inventory;
    double now = (double)moe_inventory_mean_bytes(inv, high), size = size_here(p, high);
    struct bits all[MOE_PACK_MAX_VARIANTS + MOE_PLANNER_BITS];
    uint32_t n = 0, kept = 0;
    for (uint32_t v = high + 1; v < inv->n_variants; v++) {
        memcpy(all[n].name, inv->variants[v], sizeof all[n].name);
        all[n++].bytes = (double)moe_inventory_mean_bytes(inv, v);
    }
    for (uint32_t i = 0; i < p->n_bits && i < MOE_PLANNER_BITS; i++) {
        if (is_known(all, n, p->bits[i].name) ||
            moe_inventory_variant(inv, p->bits[i].name) <= high)
            continue;
        memcpy(all[n].name, p->bits[i].name, sizeof all[n].name);
        all[n++].bytes = p->bits[i].bytes * size;
    }
    for (double below = 0.97 * now; kept < MOST_BITS; kept++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (all[i].bytes > 0 && all[i].bytes < below &&
                (best == n || all[i].bytes > all[best].bytes))
                best = i;
        if (best == n)
            break;
        out[kept] = all[best];
        below = all[best].bytes;
    }
    return kept;
}

/* What the map measured with all experts at these bits. */
static void set_loss(const struct moe_planner *p, struct moe_plan_alternative *a)
{
    const struct moe_map *map = p->calibration ? p->calibration->map : NULL;
    for (uint32_t i = 0; map && i < map->n_uniform; i++) {
        const struct moe_uniform *u = &map->uniform[i];
        if (strcmp(u->experts, a->precision) != 0 || u->dense_bits != map->pack_dense_bits)
            continue;
        a->loss_tokens = u->loss.tokens;
        a->loss_percent = u->loss.nll_percent;
        a->loss_error = u->loss.nll_error;
    }
}

/* An inventory of the same layers whose experts all have so many bytes. */
static int other_inventory(const struct moe_inventory *inv, const struct bits *bits,
                           struct moe_inventory *out, struct moe_err *err)
{
    const uint64_t bytes = (uint64_t)bits->bytes;
    int status = moe_inventory_uniform(out, inv->n_layers, inv->n_experts, inv->top_k, &bits->name,
                                       &bytes, 1, err);
    if (status != MOE_OK)
        return status;
    memcpy(out->model_layer, inv->model_layer, inv->n_layers * sizeof *inv->model_layer);
    memcpy(out->is_static, inv->is_static, inv->n_layers * sizeof *inv->is_static);
    out->routes_early = inv->routes_early;
    out->n_encoder = inv->n_encoder;
    out->n_model_layers = inv->n_model_layers;
    out->n_model_encoder = inv->n_model_encoder;
    return MOE_OK;
}

/* Experts of other bits take as long to compute as reading their bytes does, where the machine was
 * not measured with them. */
static int add_bits(const struct moe_planner *p, const struct moe_fitted *f,
                    const struct bits *bits, struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_inventory *inv = p->inventory;
    double times = bits->bytes / (double)moe_inventory_mean_bytes(inv, f->high);
    struct moe_plan_alternative a = {
        .what = MOE_ALTERNATIVE_EXPERTS, .amount = bits->bytes, .times = times};
    struct moe_inventory other = {0};
    struct planner_variation v;
    int status = other_inventory(inv, bits, &other, err);
    if (status == MOE_OK) {
        const struct moe_plan_memory *m = &f->memory;
        const struct moe_shape_fit shape = {
            .inventory = &other,
            .statistics = p->statistics,
            .has_host = p->pace->host_slowdown > 0,
            .exact = p->exact,
            .staging = f->staging,
            .expert_memory = f->named,
            .memory = *m,
        };
        uint32_t known = moe_inventory_variant(inv, bits->name);
        planner_begin_variation(&v, p, f);
        v.pace.n_variants = 1;
        v.pace.experts[0] = p->pace->experts[known < inv->n_variants ? known : f->high];
        if (known == inv->n_variants)
            scale_line(&v.pace.experts[0], times);
        v.planner.inventory = &other;
        v.planner.fitter = moe_fitter_of_shape(&shape);
        if (f->host.total)
            v.planner.host_bytes = f->host_bytes;
        v.planner.calibration = NULL; /* it speaks of the model's own precisions */
        snprintf(a.precision, sizeof a.precision, "%s", bits->name);
        set_loss(p, &a);
        status = add(&v, f->strategy.resident ? NULL : "resident", a, plan, err);
    }
    moe_inventory_release(&other);
    return status;
}

/* Those that need nothing but another size, rate or batch, side by side. */
static int simulate_ahead(const struct moe_planner *p, const struct moe_fitted *f,
                          struct moe_err *err)
{
    const struct moe_plan_memory *m = &f->memory;
    const struct moe_strategy *s = &f->strategy;
    struct moe_planner without = *p;
    without.lookups = NULL;
    struct moe_trial trials[] = {
        moe_trial_of(&without, s, 2 * present(f), 0),
        moe_trial_of(&without, s, (uint64_t)((double)present(f) * 0.5), 0),
        moe_trial_of(&without, s, 0, p->pace->load_rate * 2),
        moe_trial_of(&without, s, m->total + m->kv / 2, 0),
        moe_trial_of(&without, s, 0, 0),
        moe_trial_of(&without, s, 0, 0),
    };
    const uint32_t all = sizeof trials / sizeof *trials;
    trials[all - 2].batch = m->batch / 2;
    trials[all - 1].batch = m->batch * 2;
    const uint32_t n = m->total && m->batch > 1 ? all : 3;
    return s->resident ? MOE_OK : moe_trials_ahead(&without, trials, n, NULL, 0, 0, err);
}

int planner_set_alternatives(const struct moe_planner *p, const struct moe_fitted *f,
                             struct moe_plan *plan, struct moe_err *err)
{
    struct bits bits[MOST_BITS];
    uint32_t n_bits = lower_bits(p, f->high, bits);
    plan->n_alternatives = 0;
    int status = simulate_ahead(p, f, err);
    if (status == MOE_OK)
        status = add_memory(p, f, 2, plan, err);
    if (status == MOE_OK)
        status = add_memory(p, f, 0.5, plan, err);
    if (status == MOE_OK && !f->strategy.resident)
        status = add_link(p, f, 2, plan, err);
    if (status == MOE_OK)
        status = add_processor(p, f, 2, plan, err);
    for (uint32_t i = 0; i < n_bits && status == MOE_OK; i++)
        status = add_bits(p, f, &bits[i], plan, err);
    if (status == MOE_OK)
        status = add_context(p, f, plan, err);
    if (status == MOE_OK)
        status = add_batch(p, f, 0.5, plan, err);
    if (status == MOE_OK)
        status = add_batch(p, f, 2, plan, err);
    return status;
}
