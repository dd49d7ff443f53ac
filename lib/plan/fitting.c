#include "plan/fitting.h"

#include <stdio.h>

#include "sched/exactness.h"

enum { WORKING_SLOTS = 2 /* beside a cache that holds a layer's experts */ };

struct moe_slots moe_slots_of(const struct moe_strategy *s, uint64_t bytes, bool named,
                              uint64_t slot_bytes, uint32_t top_k, uint32_t staging)
{
    struct moe_slots slots = {.working = top_k};
    uint64_t n = bytes / slot_bytes;
    if (moe_strategy_has(s, MOE_PART_PREFETCH))
        slots.staging = staging ? staging : top_k;
    else if (s->stream) /* half of the slots; the others keep the first layers */
        slots.staging = staging ? staging : UINT32_MAX;
    if (!named && s->cache && n >= (uint64_t)top_k + WORKING_SLOTS)
        slots.working = WORKING_SLOTS;
    uint64_t most = n / 2; /* of the slots; unless bytes are named, working slots must fit, too */
    if (!named && most + slots.working > n)
        most = n > slots.working ? n - slots.working : 0;
    if (slots.staging > most)
        slots.staging = (uint32_t)most;
    slots.working += slots.staging;
    if (s->cache && named)
        slots.cache_bytes = bytes - slots.staging * slot_bytes;
    return slots;
}

/* ---- Models without weights ---- */

/* Settles the strategy and fits it to this model, its variants and its machine. */
static int resolve(const struct moe_shape_fit *f, bool fits, struct moe_fitted *out,
                   struct moe_err *err)
{
    const struct moe_inventory *inv = f->inventory;
    struct moe_strategy *s = &out->strategy;
    int status = moe_strategy_settle(s, err);
    if (status != MOE_OK || s->resident)
        return status;
    moe_strategy_fit(s, inv->n_layers - inv->n_encoder, f->statistics);
    if (f->exact)
        moe_strategy_make_exact(s);
    if (s->cache_bits && !fits) {
        char name[16];
        snprintf(name, sizeof name, "%u", s->cache_bits);
        uint32_t v = moe_inventory_variant(inv, name);
        out->high = v < inv->n_variants && !moe_inventory_is_best(inv, v) ? v : 0;
    }
    out->low = f->low ? moe_inventory_variant(inv, f->low) : inv->n_variants - 1;
    if (out->low == inv->n_variants)
        return moe_fail(err, MOE_ERR_USAGE, "no variant '%s'", f->low);
    if (!s->needs_low && out->low <= out->high)
        moe_strategy_fall_back(s);
    if (s->needs_low && out->low <= out->high)
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s uses a lower precision, and there is none below '%s'", s->name,
                        inv->variants[out->high]);
    if (out->low > out->high && s->prefill == MOE_PREFILL_HYBRID) {
        s->prefill_falls_back = false;
        status = moe_strategy_settle(s, err);
    }
    if (out->low < out->high)
        out->low = out->high;
    if (status == MOE_OK && s->needs_host && !f->has_host)
        moe_strategy_load_instead(s);
    if (status == MOE_OK && s->needs_host && !f->has_host)
        status = moe_fail(err, MOE_ERR_USAGE,
                          "strategy %s computes experts beside the device, and there is nothing "
                          "beside it",
                          s->name);
    if (status == MOE_OK && s->needs_profile && !f->statistics)
        status = moe_fail(err, MOE_ERR_USAGE,
                          "strategy %s goes by what experts do: it needs statistics", s->name);
    if (status == MOE_OK && f->exact) {
        const struct moe_terms terms = moe_terms_of(s, inv, out->high);
        status = moe_exactness_check(&terms, err);
    }
    return status;
}

/* Buffers of a pass grow with its rows. */
static void set_batch(struct moe_plan_memory *m, uint32_t batch)
{
    if (m->batch)
        m->work = (uint64_t)((double)m->work * batch / m->batch);
    m->batch = batch;
}

static int fit_shape(void *ctx, const struct moe_strategy *wanted, const struct moe_fit_room *room,
                     struct moe_fitted *out, struct moe_err *err)
{
    static const struct moe_fit_room as_asked;
    const struct moe_shape_fit *f = ctx;
    const struct moe_inventory *inv = f->inventory;
    *out = (struct moe_fitted){.strategy = *wanted, .memory = f->memory};
    struct moe_plan_memory *m = &out->memory;
    room = room ? room : &as_asked;
    const uint64_t bytes = room->bytes, asked_work = m->work;
    if (room->batch)
        set_batch(m, room->batch);
    uint64_t fixed = m->program + m->dense + m->kv + m->work, experts = f->expert_memory;
    if (bytes && m->total)
        m->total = bytes;
    else if (bytes)
        experts = bytes;
    m->all = moe_inventory_all_bytes(inv, 0);
    m->token =
        (uint64_t)(inv->n_layers - inv->n_encoder) * inv->top_k * moe_inventory_mean_bytes(inv, 0);
    if (m->total && m->total < fixed)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the budget is smaller than everything but the experts");
    uint64_t available = experts ? experts : m->total - fixed;
    bool named = experts > 0;
    out->named = experts;
    bool fits = available >= m->all && (!m->total || m->total - fixed >= m->all);
    int status = resolve(f, fits, out, err);
    if (status != MOE_OK)
        return status;
    uint64_t slot_bytes = moe_inventory_slot_bytes(inv, out->high);
    const struct moe_follower_params choices = {inv->n_layers, inv->n_experts, inv->top_k};
    uint64_t policy = moe_policy_follow_bytes(out->strategy.cache, &choices);
    if (out->strategy.resident) {
        m->experts = m->all;
        m->floor = fixed - m->work + asked_work + m->all;
        return fits ? MOE_OK : moe_fail(err, MOE_ERR_LIMIT, "not all experts fit into the memory");
    }
    if (!named)
        available = available > policy ? available - policy : 0;
    struct moe_slots slots = moe_slots_of(&out->strategy, available, named, slot_bytes, inv->top_k,
                                          room->staging ? room->staging : f->staging);
    uint64_t working = slots.working * slot_bytes;
    if (!named && out->strategy.cache && available > working)
        slots.cache_bytes = available - working;
    moe_pools_size(&out->pools, inv, &out->strategy, out->high, out->low, slots.cache_bytes,
                   slots.working);
    out->staging = slots.staging;
    m->experts = out->pools.bytes + policy;
    uint64_t least = named ? m->experts : inv->top_k * slot_bytes + policy;
    m->floor = fixed - m->work + asked_work + least;
    if (m->total && m->total < fixed + least)
        return moe_fail(err, MOE_ERR_LIMIT,
                        named ? "the budget has no room for the memory that is named for experts"
                              : "the budget leaves no room for a layer's experts");
    return MOE_OK;
}

struct moe_fitter moe_fitter_of_shape(const struct moe_shape_fit *shape)
{
    return (struct moe_fitter){(void *)shape, fit_shape};
}
