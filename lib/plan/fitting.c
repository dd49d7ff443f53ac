/* Fitting of strategies: to a pack or a model without weights, its variants and its machine. */
#include "plan/fitting.h"

#include <stdio.h>

#include "sched/exactness.h"
#include "sched/history.h"

enum { WORKING_SLOTS = 2 /* beside a cache that holds a layer's experts */ };

struct moe_slots moe_slots_of(const struct moe_strategy *s, uint64_t bytes, bool named,
                              uint64_t slot_bytes, uint32_t top_k, uint32_t staging)
{
    struct moe_slots slots = {.working = top_k};
    uint64_t n = bytes / slot_bytes;
    /* What is prefetched is lent slots of the cache (sched/scheduler.c): one that is kept free for
     * it holds nothing while a slow link has no time for predictions. */
    if (moe_strategy_has(s, MOE_PART_PREFETCH))
        slots.staging = staging || s->cache ? staging : top_k;
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

/* ---- What becomes of a strategy ---- */

/* The variant that the cache keeps: the best, or (Fate 4.5) the first of as many bits as are asked
 * for where memory is short. */
static uint32_t choose_high(const struct moe_strategy *s, const struct moe_fit_facts *facts)
{
    const struct moe_inventory *inv = facts->inventory;
    uint32_t variant = 0;
    if (!s->cache_bits || facts->all_fit)
        return 0;
    while (variant < inv->n_variants && !moe_bits_are(inv->variants[variant], (int)s->cache_bits))
        variant++;
    return variant < inv->n_variants && !moe_inventory_is_best(inv, variant) ? variant : 0;
}

int moe_fit_variants(struct moe_resolved *r, const struct moe_fit_facts *facts, struct moe_err *err)
{
    const struct moe_inventory *inv = facts->inventory;
    struct moe_strategy *s = &r->strategy;
    const char *name = facts->name ? facts->name : "the model";
    if (facts->exact)
        r->fallback = moe_strategy_make_exact(s);
    r->high = choose_high(s, facts);
    r->low = facts->low ? moe_inventory_variant(inv, facts->low) : inv->n_variants - 1;
    if (r->low == inv->n_variants)
        return moe_fail(err, MOE_ERR_USAGE, "%s: no variant '%s' (see moe-quantize --list)", name,
                        facts->low);
    if (!s->needs_low && s->prefill != MOE_PREFILL_HYBRID)
        return MOE_OK;
    if (r->low > r->high) {
        s->prefill_falls_back = false;
        return moe_strategy_settle(s, err);
    }
    r->low = r->high;
    if (s->needs_low)
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s uses a lower precision, and %s has none below '%s' "
                        "(moe-quantize --experts 4,2 stores two)",
                        s->name, name, inv->variants[r->high]);
    moe_strategy_fall_back(s);
    r->fallback = "prompts at one precision: the pack has no second one";
    return MOE_OK;
}

/* The part that goes by statistics. */
static enum moe_part needing_statistics(const struct moe_strategy *s)
{
    return moe_predicts_from_paths(s->predict)                            ? MOE_PART_PREDICT
           : s->init == MOE_INIT_FREQUENCY || s->init == MOE_INIT_ENCODER ? MOE_PART_INIT
                                                                          : MOE_PART_ALLOC;
}

int moe_fit_needs(struct moe_resolved *r, const struct moe_fit_facts *facts, struct moe_err *err)
{
    struct moe_strategy *s = &r->strategy;
    if (facts->needs_statistics) {
        const enum moe_part part = needing_statistics(s);
        char value[MOE_PART_TEXT_BYTES];
        moe_strategy_part_text(s, part, value);
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s has --%s %s, which goes by what experts do: it needs "
                        "statistics (moe-profile PACK --text FILE -o FILE makes them)",
                        s->name, moe_strategy_part_at(part)->name, value);
    }
    if (!s->needs_host || facts->has_host)
        return MOE_OK;
    /* Fiddler's idea with one processor: what is missing is computed from a working slot. */
    if (!s->precalculate && moe_strategy_load_instead(s)) {
        r->fallback = "missing experts pass through a working slot: there is one processor";
        return MOE_OK;
    }
    return moe_fail(err, MOE_ERR_USAGE,
                    "strategy %s computes experts beside the device: the plain CPU has nothing "
                    "beside it (--device cuda computes on a GPU, --device test:SPEED,LINK "
                    "rehearses a second device)",
                    s->name);
}

/* ---- Models without weights ---- */

/* Settles the strategy and fits it to this model, its variants and its machine. */
static int resolve_on_shape(const struct moe_shape_fit *f, bool all_fit, struct moe_fitted *out,
                            struct moe_err *err)
{
    const struct moe_inventory *inv = f->inventory;
    struct moe_resolved r = {.strategy = out->strategy};
    struct moe_strategy *s = &r.strategy;
    int status;
    MOE_STEP(moe_strategy_settle(s, err));
    if (!s->resident) {
        moe_strategy_fit(s, inv->n_layers - inv->n_encoder, f->statistics);
        const struct moe_fit_facts facts = {
            .inventory = inv,
            .low = f->low,
            .all_fit = all_fit,
            .exact = f->exact,
            .has_host = f->has_host,
            .needs_statistics = s->needs_profile && !f->statistics,
        };
        MOE_STEP(moe_fit_variants(&r, &facts, err));
        MOE_STEP(moe_fit_needs(&r, &facts, err));
    }
    if (f->exact) {
        const struct moe_terms terms = moe_terms_of(s, inv, r.high);
        MOE_STEP(moe_exactness_check(&terms, err));
    }
out:
    out->strategy = r.strategy;
    out->high = r.high;
    out->low = r.low < r.high ? r.high : r.low;
    return status;
}

/* Buffers of a pass grow with its rows. */
static void set_batch(struct moe_plan_memory *m, uint32_t batch)
{
    if (m->batch)
        m->work = (uint64_t)((double)m->work * batch / m->batch);
    m->batch = batch;
}

/* Bytes of what the policy keeps of choices, beside slots of `beside` bytes. */
static uint64_t policy_bytes(const struct moe_strategy *s, const struct moe_inventory *inv,
                             uint64_t beside)
{
    const struct moe_follower_params choices = {inv->n_layers, inv->n_experts, inv->top_k, beside};
    return moe_policy_follow_bytes(s->cache, &choices);
}

/* Slots in what is available and in `blocks` blocks of the KV cache, until texts need them. Returns
 * whether the slots can be lent back. */
static bool lend_blocks(struct moe_fitted *out, const struct moe_inventory *inv,
                        const struct moe_loan *kv, uint64_t available,
                        const struct moe_slots *slots, uint32_t blocks)
{
    const struct moe_strategy *s = &out->strategy;
    const uint64_t lent = blocks * kv->block_bytes;
    const uint64_t others = (kv->n_blocks - 1 - blocks) * kv->block_bytes;
    available += lent + policy_bytes(s, inv, available) - policy_bytes(s, inv, available + lent);
    const uint64_t working = slots->working * moe_inventory_slot_bytes(inv, out->high);
    moe_pools_size(&out->pools, inv, s, out->high, out->low,
                   available > working ? available - working : 0, slots->working);
    out->pools.loan = *kv;
    const uint64_t used = out->pools.bytes, unused = available > used ? available - used : 0;
    out->memory.kv_lent = moe_loan_settle(&out->pools.loan, others + unused);
    return moe_pools_can_lend(&out->pools, inv, 0);
}

/* Adds what the blocks of the KV cache but one leave to slots: as many as slots that keep experts
 * can be made of, which near the floor are fewer than all. */
static void add_blocks(struct moe_fitted *out, const struct moe_inventory *inv,
                       const struct moe_loan *kv, uint64_t available, const struct moe_slots *slots)
{
    const struct moe_fitted before = *out;
    const struct moe_strategy *s = &out->strategy;
    if (!kv->block_bytes || !s->cache || s->cache == &moe_policy_pinned)
        return;
    uint32_t low = 0, high = kv->n_blocks - 1;
    if (lend_blocks(out, inv, kv, available, slots, high))
        low = high;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (middle > low && lend_blocks(out, inv, kv, available, slots, middle))
            low = middle;
        else
            high = middle;
    }
    if (low == 0 || !lend_blocks(out, inv, kv, available, slots, low))
        *out = before;
    out->memory.kv -= out->memory.kv_lent;
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
    const uint64_t left = m->total > fixed ? m->total - fixed : 0;
    uint64_t available = experts ? experts : left;
    bool named = experts > 0;
    out->named = experts;
    bool fits = available >= m->all && (!m->total || left >= m->all);
    MOE_TRY(resolve_on_shape(f, fits, out, err));
    uint64_t slot_bytes = moe_inventory_slot_bytes(inv, out->high);
    const uint64_t policy = policy_bytes(&out->strategy, inv, available);
    if (out->strategy.resident) {
        m->experts = m->all;
        m->floor = fixed - m->work + asked_work + m->all;
        return fits ? MOE_OK : moe_fail(err, MOE_ERR_LIMIT, "not all experts fit into the memory");
    }
    if (!named)
        available = available > policy ? available - policy : 0;
    struct moe_slots slots =
        moe_slots_of(&out->strategy, available, named, slot_bytes, inv->top_k, f->staging);
    uint64_t working = slots.working * slot_bytes;
    if (!named && out->strategy.cache && available > working)
        slots.cache_bytes = available - working;
    moe_pools_size(&out->pools, inv, &out->strategy, out->high, out->low, slots.cache_bytes,
                   slots.working);
    if (!named && m->total)
        add_blocks(out, inv, &f->kv, available, &slots);
    out->staging = slots.staging;
    m->experts = out->pools.bytes + policy_bytes(&out->strategy, inv, out->pools.bytes);
    uint64_t least = inv->top_k * slot_bytes;
    least = named ? m->experts : least + policy_bytes(&out->strategy, inv, least);
    m->floor = fixed - m->work + asked_work + least;
    char given[32], works[32];
    return !m->total || m->total >= fixed + least
               ? MOE_OK
               : moe_fail(err, MOE_ERR_LIMIT,
                          "a budget of %s is too small: the smallest that works is %s%s",
                          moe_format_at_most(m->total, given),
                          moe_format_at_least(fixed + least, works),
                          named ? ", with the memory that is named for experts" : "");
}

struct moe_fitter moe_fitter_of_shape(const struct moe_shape_fit *shape)
{
    return (struct moe_fitter){(void *)shape, fit_shape};
}
