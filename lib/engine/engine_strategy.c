/* What becomes of a strategy on a pack and a device. */
#include "engine/engine_strategy.h"

#include "sched/history.h"

/* The variants of the plan that is followed. It holds what became of the strategy, but for a
 * prefill that falls back: one that is written by hand may still say so. */
static int take_variants(struct moe_resolved *r, const struct moe_memory_inputs *in,
                         struct moe_err *err)
{
    const struct moe_plan *plan = in->options->plan;
    const struct moe_inventory *inv = &in->inventory;
    if (in->options->exact) /* its precision is decided */
        moe_strategy_fall_back(&r->strategy);
    r->high = moe_inventory_variant(inv, plan->high);
    r->low = plan->low[0] ? moe_inventory_variant(inv, plan->low) : r->high;
    if (r->high == inv->n_variants || r->low == inv->n_variants)
        return moe_fail(err, MOE_ERR_FORMAT, "the plan's slots are not those of %s",
                        moe_pack_path(in->model->pack));
    if (r->low <= r->high)
        moe_strategy_fall_back(&r->strategy);
    r->strategy.prefill_falls_back = false;
    return moe_strategy_settle(&r->strategy, err);
}

static int check_device(const struct moe_strategy *s, const struct moe_memory_inputs *in,
                        struct moe_err *err)
{
    const struct moe_device_choice *device = &in->options->device;
    if (in->gpu && moe_predicts_from_attention(s->predict))
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s predicts by the inputs of attention, which stay on the GPU: "
                        "there --predict gate-next works",
                        s->name);
    if (device->test && !(device->speed >= 1 && device->link_rate > 0))
        return moe_fail(err, MOE_ERR_USAGE,
                        "device test: its speed is at least 1 times the host's, its link above 0");
    return MOE_OK;
}

/* Cache-aware routing needs more to choose from than what stays. */
static int check_preference(const struct moe_strategy *s, const struct moe_memory_inputs *in,
                            struct moe_err *err)
{
    const struct moe_config *c = &in->model->config;
    if (!(s->prefer > 0))
        return MOE_OK;
    if (in->gpu)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --prefer-cached: on a GPU routers choose by themselves; the "
                        "processor computes with it (--device cpu)");
    if (s->prefer_keeps >= c->top_k)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --prefer-cached: its strongest %u experts stay, and a router of %s "
                        "chooses %u: nothing is left to change",
                        s->prefer_keeps, moe_pack_path(in->model->pack), c->top_k);
    return MOE_OK;
}

/* Where to predict is a choice only for a strategy that asks routers of later layers. */
static int check_predict_on(const struct moe_strategy *s, const struct moe_memory_inputs *in,
                            struct moe_err *err)
{
    bool asks = s->predict != MOE_PREDICT_BY_NOTHING && !moe_predicts_from_choices(s->predict);
    if (!in->gpu || in->session.predict_on == MOE_PREDICT_ON_AUTO || asks)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "option --predict-on: strategy %s asks no routers of later layers (--predict "
                    "gate-next does)",
                    s->name);
}

struct moe_terms moe_engine_terms(const struct moe_resolved *r, const struct moe_memory_inputs *in)
{
    struct moe_terms t = moe_terms_of(&r->strategy, &in->inventory, r->high);
    t.host_beside_gpu = in->gpu && r->strategy.needs_host;
    t.bf16_prompts = in->session.gpu_bf16;
    t.planned = in->options->plan != NULL;
    t.kv = moe_kv_kind_name(in->session.kv_kind);
    return t;
}

static int check_exactness(const struct moe_resolved *r, const struct moe_memory_inputs *in,
                           struct moe_err *err)
{
    struct moe_terms terms = moe_engine_terms(r, in);
    terms.kv = in->options->kv_beside ? NULL : terms.kv;
    return in->options->exact ? moe_exactness_check(&terms, err) : MOE_OK;
}

/* One that caches experts, settled. */
static int resolve_cached(struct moe_resolved *out, const struct moe_memory_inputs *in,
                          bool all_fit, struct moe_err *err)
{
    const struct moe_engine_options *o = in->options;
    const struct moe_config *c = &in->model->config;
    struct moe_strategy *s = &out->strategy;
    moe_strategy_fit(s, c->n_moe_layers - c->layers[c->n_encoder].moe_index, o->statistics);
    struct moe_fit_facts facts = {
        .name = moe_pack_path(in->model->pack),
        .inventory = &in->inventory,
        .low = o->low_variant,
        .all_fit = all_fit,
        .exact = o->exact,
        .has_host = in->gpu || o->device.test,
    };
    MOE_TRY(o->plan ? take_variants(out, in, err) : moe_fit_variants(out, &facts, err));
    MOE_TRY(check_exactness(out, in, err));
    if (o->statistics && !moe_model_fits_statistics(in->model, o->statistics))
        return moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model than %s",
                        facts.name);
    /* A plan already has what frequencies decide: slots and first contents. */
    facts.needs_statistics =
        !o->statistics && (o->plan ? moe_predicts_from_paths(s->predict) : s->needs_profile);
    MOE_TRY(moe_fit_needs(out, &facts, err));
    MOE_TRY(check_device(s, in, err));
    return check_preference(s, in, err);
}

int moe_engine_resolve(struct moe_resolved *out, const struct moe_memory_inputs *in, bool all_fit,
                       struct moe_err *err)
{
    *out = (struct moe_resolved){.strategy = in->strategy};
    MOE_TRY(moe_strategy_settle(&out->strategy, err));
    MOE_TRY(check_predict_on(&out->strategy, in, err));
    return out->strategy.resident ? check_exactness(out, in, err)
                                  : resolve_cached(out, in, all_fit, err);
}

int moe_engine_take_trace(struct moe_model *model, const struct moe_engine_options *o,
                          struct moe_err *err)
{
    const struct moe_trace_shape *t = o->follows;
    struct moe_config *c = &model->config;
    const char *pack = moe_pack_path(model->pack);
    uint32_t layers = c->n_moe_layers;
    bool fixed = moe_config_has_static(c, 0, c->n_layers) || c->n_groups ||
                 c->router_kind == MOE_ROUTER_SPARSEMIXER;
    if (o->device.cuda)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a trace is followed by the processor, not with --device cuda",
                        o->follows_name);
    if (t->n_layers != layers || t->n_experts != c->n_experts ||
        t->n_encoder != c->layers[c->n_encoder].moe_index)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a trace of %u layers of %u experts; %s has %u of %u and cannot follow",
                        o->follows_name, t->n_layers, t->n_experts, pack, layers, c->n_experts);
    if (t->top_k > MOE_MAX_TOP_K || (t->top_k != c->top_k && fixed))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: its tokens choose %u experts, those of %s can only choose %u",
                        o->follows_name, t->top_k, pack, c->top_k);
    c->top_k = t->top_k;
    return MOE_OK;
}

int moe_engine_take_ahead(struct moe_model *model, const struct moe_engine_options *o, bool on_gpu,
                          struct moe_err *err)
{
    const char *other = on_gpu || o->device.test    ? "only on the processor: take --device cpu"
                        : o->lockstep || o->follows ? "on a clock that is not modelled"
                                                    : NULL;
    if (other)
        return moe_fail(err, MOE_ERR_USAGE, "%s: a %s is computed %s", moe_pack_path(model->pack),
                        o->drafter ? "head that drafts" : "layer that drafts (MTP)", other);
    return o->drafter ? moe_model_take_drafter(model, o->drafter, err)
                      : moe_model_take_ahead(model, err);
}
