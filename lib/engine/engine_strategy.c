#include "engine/engine_strategy.h"

#include <stdio.h>
#include <string.h>

#include "sched/choice_history.h"

/* The pack's variant of that name; the number of variants when there is none. */
static uint32_t find_variant(const struct moe_pack *pack, const char *name)
{
    uint32_t i = 0;
    while (i < moe_pack_n_variants(pack) && strcmp(moe_pack_variant_at(pack, i)->name, name) != 0)
        i++;
    return i;
}

/* The second precision, where the strategy takes one. */
static int resolve_low(struct moe_engine *e, const struct moe_engine_options *o, uint32_t high,
                       uint32_t *low, struct moe_err *err)
{
    const struct moe_pack *pack = e->model->pack;
    struct moe_strategy *s = &e->strategy;
    *low = moe_pack_n_variants(pack) - 1;
    if (o->low_variant && (*low = find_variant(pack, o->low_variant)) == moe_pack_n_variants(pack))
        return moe_fail(err, MOE_ERR_USAGE, "%s: no variant '%s' (see moe-quantize --list)",
                        moe_pack_path(pack), o->low_variant);
    bool takes_low = s->needs_low || s->prefill == MOE_PREFILL_HYBRID;
    if (!takes_low)
        return MOE_OK;
    if (*low > high) {
        s->prefill_falls_back = false;
        return moe_strategy_settle(s, err);
    }
    *low = high;
    if (!s->needs_low) {
        moe_strategy_fall_back(s);
        e->fallback = "prompts at one precision: the pack has no second one";
        return MOE_OK;
    }
    return moe_fail(err, MOE_ERR_USAGE,
                    "strategy %s takes a lower precision, and %s has none below '%s' (moe-quantize "
                    "--experts 4,2 stores two)",
                    s->name, moe_pack_path(pack), moe_pack_variant_at(pack, high)->name);
}

static int check_statistics(const struct moe_engine *e, const struct moe_engine_options *o,
                            struct moe_err *err)
{
    const struct moe_statistics *statistics = o->statistics;
    /* A plan has the frequencies' part of it: slots and first contents. */
    bool needs = o->plan ? moe_predicts_from_paths(e->strategy.predict) : e->strategy.needs_profile;
    if (!statistics)
        return needs ? moe_fail(err, MOE_ERR_USAGE,
                                "strategy %s goes by what experts do: it needs statistics "
                                "(moe-profile PACK --text FILE -o FILE makes them)",
                                e->strategy.name)
                     : MOE_OK;
    if (!moe_model_fits_statistics(e->model, statistics))
        return moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model than %s",
                        moe_pack_path(e->model->pack));
    return MOE_OK;
}

static int check_device(struct moe_engine *e, const struct moe_engine_options *o,
                        struct moe_err *err)
{
    struct moe_strategy *s = &e->strategy;
    if (e->gpu && s->needs_host && o->exact)
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s computes experts on the host instead of the GPU: --exact "
                        "forbids that",
                        s->name);
    if (s->needs_host && !o->device.test && !e->gpu) {
        /* Fiddler's idea with one processor: what is missing is computed from a working slot. */
        if (s->host_falls_back && s->on_miss == MOE_MISS_COMPUTE_HOST) {
            s->on_miss = MOE_MISS_LOAD;
            moe_strategy_drop_idle(s, 0);
            e->fallback = "missing experts pass through a working slot: there is one processor";
            return moe_strategy_settle(s, err);
        }
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s computes experts beside the device: the plain CPU has nothing "
                        "beside it (--device cuda computes on a GPU, --device test:SPEED,LINK "
                        "rehearses a second device)",
                        s->name);
    }
    if (o->device.test && !(o->device.speed >= 1 && o->device.link_rate > 0))
        return moe_fail(err, MOE_ERR_USAGE,
                        "device test: its speed is at least 1 times the host's, its link above 0");
    return MOE_OK;
}

/* A place for routers ahead is named only where the strategy asks some. */
static int check_place(const struct moe_engine *e, const struct moe_engine_options *o,
                       struct moe_err *err)
{
    enum moe_predict_by by = e->strategy.predict;
    bool asks = by != MOE_PREDICT_BY_NOTHING && !moe_predicts_from_choices(by);
    if (!e->gpu || o->session.predict_on == MOE_PREDICT_ON_AUTO || asks)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "option --predict-on: strategy %s asks no routers of layers ahead (--predict "
                    "gate-next does)",
                    e->strategy.name);
}

/* The precision that the cache keeps: the best, or (Fate 4.5) a named one where memory is short. */
static uint32_t resolve_high(const struct moe_engine *e, bool fits, bool exact)
{
    char name[16];
    if (!e->strategy.cache_bits || fits || exact)
        return 0;
    snprintf(name, sizeof name, "%u", e->strategy.cache_bits);
    uint32_t variant = find_variant(e->model->pack, name);
    return variant < moe_pack_n_variants(e->model->pack) ? variant : 0;
}

int moe_engine_resolve(struct moe_engine *e, const struct moe_engine_options *o, bool fits,
                       uint32_t *high, uint32_t *low, struct moe_err *err)
{
    struct moe_strategy *s = &e->strategy;
    const struct moe_config *c = &e->model->config;
    *s = o->strategy;
    *high = *low = 0;
    int status = moe_strategy_settle(s, err);
    if (status == MOE_OK)
        status = check_place(e, o, err);
    if (status != MOE_OK || s->resident)
        return status;
    moe_strategy_fit(s, moe_config_moe_layers(c, c->n_layers));
    if (o->exact && !s->needs_low && s->prefill == MOE_PREFILL_HYBRID) {
        moe_strategy_fall_back(s);
        e->fallback = "prompts at one precision: --exact";
    }
    *high = resolve_high(e, fits, o->exact);
    status = resolve_low(e, o, *high, low, err);
    if (status == MOE_OK && o->exact)
        status = moe_strategy_check_exact(s, err);
    if (status == MOE_OK)
        status = check_statistics(e, o, err);
    if (status == MOE_OK)
        status = check_device(e, o, err);
    return status;
}
