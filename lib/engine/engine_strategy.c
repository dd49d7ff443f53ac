#include "engine/engine_strategy.h"

#include <stdio.h>
#include <string.h>

#include "sched/history.h"

/* The pack's variant of that name; the number of variants when there is none. */
static uint32_t find_variant(const struct moe_pack *pack, const char *name)
{
    uint32_t i = 0;
    while (i < moe_pack_n_variants(pack) && strcmp(moe_pack_variant_at(pack, i)->name, name) != 0)
        i++;
    return i;
}

/* The variants of the plan that is followed. It holds what became of the strategy, but for a
 * prefill that falls back: one that is written by hand may still say so. */
static int take_variants(struct moe_resolved *r, const struct moe_memory_inputs *in,
                         struct moe_err *err)
{
    const struct moe_plan *plan = in->options->plan;
    const struct moe_pack *pack = in->model->pack;
    r->high = find_variant(pack, plan->high);
    r->low = plan->low[0] ? find_variant(pack, plan->low) : r->high;
    if (r->high == moe_pack_n_variants(pack) || r->low == moe_pack_n_variants(pack))
        return moe_fail(err, MOE_ERR_FORMAT, "the plan's slots are not those of %s",
                        moe_pack_path(pack));
    if (r->low <= r->high)
        moe_strategy_fall_back(&r->strategy);
    r->strategy.prefill_falls_back = false;
    return moe_strategy_settle(&r->strategy, err);
}

/* The second variant, where the strategy uses one. */
static int resolve_low(struct moe_resolved *r, const struct moe_memory_inputs *in,
                       struct moe_err *err)
{
    const struct moe_pack *pack = in->model->pack;
    const char *named = in->options->low_variant;
    uint32_t n_variants = moe_pack_n_variants(pack);
    struct moe_strategy *s = &r->strategy;
    r->low = named ? find_variant(pack, named) : n_variants - 1;
    if (r->low == n_variants)
        return moe_fail(err, MOE_ERR_USAGE, "%s: no variant '%s' (see moe-quantize --list)",
                        moe_pack_path(pack), named);
    bool takes_low = s->needs_low || s->prefill == MOE_PREFILL_HYBRID;
    if (!takes_low)
        return MOE_OK;
    if (r->low > r->high) {
        s->prefill_falls_back = false;
        return moe_strategy_settle(s, err);
    }
    r->low = r->high;
    if (!s->needs_low) {
        moe_strategy_fall_back(s);
        r->fallback = "prompts at one precision: the pack has no second one";
        return MOE_OK;
    }
    return moe_fail(err, MOE_ERR_USAGE,
                    "strategy %s uses a lower precision, and %s has none below '%s' (moe-quantize "
                    "--experts 4,2 stores two)",
                    s->name, moe_pack_path(pack), moe_pack_variant_at(pack, r->high)->name);
}

static int check_statistics(const struct moe_resolved *r, const struct moe_memory_inputs *in,
                            struct moe_err *err)
{
    const struct moe_strategy *s = &r->strategy;
    const struct moe_statistics *statistics = in->options->statistics;
    /* A plan already has what frequencies decide: slots and first contents. */
    bool needs = in->options->plan ? moe_predicts_from_paths(s->predict) : s->needs_profile;
    if (!statistics && needs)
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s goes by what experts do: it needs statistics (moe-profile "
                        "PACK --text FILE -o FILE makes them)",
                        s->name);
    if (statistics && !moe_model_fits_statistics(in->model, statistics))
        return moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model than %s",
                        moe_pack_path(in->model->pack));
    return MOE_OK;
}

static int check_device(struct moe_resolved *r, const struct moe_memory_inputs *in,
                        struct moe_err *err)
{
    struct moe_strategy *s = &r->strategy;
    const struct moe_device_choice *device = &in->options->device;
    if (in->gpu && moe_predicts_from_attention(s->predict))
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s predicts by the inputs of attention, which stay on the GPU: "
                        "there --predict gate-next works",
                        s->name);
    if (s->needs_host && !device->test && !in->gpu) {
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

/* The variant that the cache keeps: the best, or (Fate 4.5) a named one where memory is short. */
static uint32_t resolve_high(const struct moe_strategy *s, const struct moe_memory_inputs *in,
                             bool all_fit)
{
    char name[16];
    if (!s->cache_bits || all_fit)
        return 0;
    snprintf(name, sizeof name, "%u", s->cache_bits);
    uint32_t variant = find_variant(in->model->pack, name);
    bool lower = variant < moe_pack_n_variants(in->model->pack) &&
                 !moe_inventory_is_best(&in->inventory, variant);
    return lower ? variant : 0;
}

static int resolve_variants(struct moe_resolved *r, const struct moe_memory_inputs *in,
                            bool all_fit, struct moe_err *err)
{
    struct moe_strategy *s = &r->strategy;
    bool planned = in->options->plan != NULL;
    if (in->options->exact && planned) /* its precision is decided */
        moe_strategy_fall_back(s);
    else if (in->options->exact)
        r->fallback = moe_strategy_make_exact(s);
    if (planned)
        return take_variants(r, in, err);
    r->high = resolve_high(s, in, all_fit);
    return resolve_low(r, in, err);
}

struct moe_terms moe_engine_terms(const struct moe_resolved *r, const struct moe_memory_inputs *in)
{
    struct moe_terms t = moe_terms_of(&r->strategy, &in->inventory, r->high);
    t.host_beside_gpu = in->gpu && r->strategy.needs_host;
    t.bf16_prompts = in->session.gpu_bf16;
    t.planned = in->options->plan != NULL;
    if (in->session.kv_kind != MOE_LAYOUT_NONE && in->session.kv_kind != MOE_LAYOUT_F32)
        t.kv = moe_layout_name(in->session.kv_kind);
    return t;
}

int moe_engine_resolve(struct moe_resolved *out, const struct moe_memory_inputs *in, bool all_fit,
                       struct moe_err *err)
{
    *out = (struct moe_resolved){.strategy = in->strategy};
    struct moe_strategy *s = &out->strategy;
    const struct moe_config *c = &in->model->config;
    int status = moe_strategy_settle(s, err);
    if (status == MOE_OK)
        status = check_predict_on(s, in, err);
    if (status == MOE_OK && !s->resident) {
        moe_strategy_fit(s, c->n_moe_layers - c->layers[c->n_encoder].moe_index,
                         in->options->statistics);
        status = resolve_variants(out, in, all_fit, err);
    }
    if (status == MOE_OK && in->options->exact) {
        struct moe_terms terms = moe_engine_terms(out, in);
        terms.kv = in->options->kv_beside ? NULL : terms.kv;
        status = moe_exactness_check(&terms, err);
    }
    if (status == MOE_OK && !s->resident)
        status = check_statistics(out, in, err);
    if (status == MOE_OK && !s->resident)
        status = check_device(out, in, err);
    if (status == MOE_OK && !s->resident)
        status = check_preference(s, in, err);
    return status;
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
    const char *other = on_gpu || o->device.test    ? "on the processor alone: take --device cpu"
                        : o->lockstep || o->follows ? "on a clock that is not modelled"
                                                    : NULL;
    return other ? moe_fail(err, MOE_ERR_USAGE, "%s: a layer that drafts (MTP) is computed %s",
                            moe_pack_path(model->pack), other)
                 : moe_model_take_ahead(model, err);
}
