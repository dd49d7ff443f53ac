/* The pace of a machine: of a profile, of options, or measured. */
#include "plan_machine.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/par.h"
#include "cli.h"
#include "tune/device_bench.h"

/* Of the host's memory, experts behind an accelerator may take so much. */
#define HOST_SHARE 0.9

static struct moe_weights weights_of(const struct plan_inputs *in)
{
    struct moe_weights w = {
        .n_layers = in->config.n_layers ? in->config.n_layers : in->inventory->n_layers,
        .n_moe_layers = in->inventory->n_layers,
        .top_k = in->inventory->top_k,
        .attention_bytes = in->bytes.attention,
        .router_bytes = in->bytes.router,
        .shared_bytes = in->bytes.shared,
        .dense_bytes = in->bytes.dense_ff,
        .head_bytes = in->bytes.head,
        .n_variants = in->inventory->n_variants,
    };
    for (uint32_t v = 0; v < w.n_variants; v++)
        w.expert_bytes[v] = moe_inventory_mean_bytes(in->inventory, v);
    return w;
}

/* What the profile says of this model in the words of others. A pack's times are measured. */
static const struct moe_device_timed *timed(const struct plan_inputs *in)
{
    const struct moe_inventory *inv = in->inventory;
    if (in->options->pack || in->options->strategy.device.test || !in->device)
        return NULL;
    return moe_device_find_timed(in->device, inv->n_layers, inv->n_experts, inv->top_k);
}

/* Bytes per second of loads as asked for, or as the profile says of this model; 0: neither. */
static double load_rate(const struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    const struct moe_device_timed *t = timed(in);
    if (o->strategy.device.test)
        return o->strategy.device.link_rate;
    if (o->load_seconds > 0)
        return moe_inventory_mean_load(in->inventory, 0) / o->load_seconds;
    if (!(o->link_rate > 0) && t && t->load.value > 0)
        return t->load_bytes.value / t->load.value;
    return o->link_rate;
}

/* A machine known only by the time of a layer: the bandwidth is set so that reading a layer's
 * weights takes that time. */
static int pace_of_layer(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    struct moe_weights w = weights_of(in);
    uint64_t bytes = w.attention_bytes + w.shared_bytes + w.top_k * w.expert_bytes[0];
    struct moe_device *d = calloc(1, sizeof *d);
    if (!d)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    in->evidence.times_stated = true;
    snprintf(d->name, sizeof d->name, "layers of %g s", o->layer_seconds);
    d->host.memory_bytes_per_second.value =
        (double)bytes / (o->layer_seconds * MOE_PACE_BANDWIDTH_SHARE);
    in->device = d;
    return moe_pace_of_bandwidth(&in->pace, d, &w, MOE_TIER_STORAGE, load_rate(in), err);
}

/* A pack is planned for the processor that runs it (or a test device, which the processor plays)
 * where no GPU is named, and so is anything on a machine that was measured just now. A model
 * without a pack, which nothing here runs, is planned for all that a profile describes, its
 * accelerator included, unless the processor is named. */
static enum moe_device_tier tier_of(const struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    bool described = !o->pack && o->profile && !o->on_cpu && !o->strategy.device.test;
    return moe_pace_tier(in->device, described || o->strategy.device.cuda);
}

bool plan_machine_has_gpu(const struct plan_inputs *in)
{
    return tier_of(in) == MOE_TIER_HOST;
}

static int pace_of_profile(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_device *d = in->device;
    double rate = load_rate(in);
    bool measured_here = tier_of(in) == MOE_TIER_STORAGE; /* a profile times a model's layers on the
                                                             processor */
    in->evidence.times_measured = measured_here && d->has_model &&
                                  d->model.source_fingerprint != 0 &&
                                  d->model.source_fingerprint == in->source_fingerprint;
    if (in->evidence.times_measured)
        return moe_pace_of_device(&in->pace, d,
                                  (const char(*)[MOE_NAME_BYTES])in->inventory->variants,
                                  in->inventory->n_variants, rate, err);
    const struct moe_weights w = weights_of(in);
    return moe_pace_of_bandwidth(&in->pace, d, &w, tier_of(in), rate, err);
}

static int measure(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    const struct moe_device_bench_options what = {.pack = o->pack, .progress = cli_progress()};
    cli_note("measuring this machine (moe-profile --device%s%s -o DEVICE saves the result for "
             "--device-profile DEVICE)",
             o->pack ? " " : "", o->pack ? o->pack : "");
    if (o->strategy.device.test) /* one core for the device, one for the host */
        moe_par_set_threads(1);
    return moe_device_bench(&what, &in->device, err);
}

/* The time of a layer beside a profile: as asked for, or as the profile says of this model. */
static void set_layer(struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    const struct moe_device_timed *t = timed(in);
    double seconds = o->layer_seconds > 0 ? o->layer_seconds : t ? t->layer.value : 0;
    if (!o->profile || !(seconds > 0))
        return;
    moe_pace_set_layer(&in->pace, in->inventory->top_k, seconds);
    in->evidence.times_stated = true;
}

int plan_machine_open(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    if (o->strategy.device.cuda && o->pack)
        MOE_TRY(moe_config_check_gpu(&in->config, o->pack, err));
    if (o->layer_seconds > 0 && !o->profile)
        MOE_TRY(pace_of_layer(in, err));
    else {
        MOE_TRY(o->profile ? moe_device_read(&in->device, o->profile, err) : measure(in, err));
        MOE_TRY(pace_of_profile(in, err));
    }
    if (o->strategy.device.cuda && tier_of(in) != MOE_TIER_HOST)
        return moe_fail(err, MOE_ERR_USAGE,
                        "device profile '%s': no GPU with memory of its own (--device cuda)",
                        in->device->name);
    if (o->strategy.device.cuda && o->pack && !(in->pace.storage_rate > 0))
        return moe_fail(err, MOE_ERR_USAGE,
                        "device profile '%s': no rate of storage, which is behind the host's "
                        "memory (moe-profile --device measures it)",
                        in->device->name);
    const struct moe_device *d = in->device;
    double host = d->host.memory_bytes_per_second.value;
    if (o->strategy.device.test) {
        in->pace.host_slowdown = o->strategy.device.speed;
        in->pace.loads = (struct moe_link_costs){0}; /* its loads take nobody's time */
    } else if (tier_of(in) == MOE_TIER_HOST && host > 0 &&
               d->accelerator.memory_bytes_per_second.value > 0)
        in->pace.host_slowdown = d->accelerator.memory_bytes_per_second.value / host;
    in->evidence.link_stated = load_rate(in) > 0 || !moe_device_load_measured(d, tier_of(in));
    in->evidence.times_spread = moe_device_spread(d);
    set_layer(in);
    in->host_bytes = (uint64_t)(HOST_SHARE * d->host.memory_bytes.value);
    if (in->host_bytes == 0 && !o->pack) /* a pack's is named */
        in->pace.storage_rate = 0;       /* how much the host holds is not known: everything */
    snprintf(in->evidence.device, sizeof in->evidence.device, "%.*s", MOE_PLAN_TEXT - 1, d->name);
    return MOE_OK;
}
