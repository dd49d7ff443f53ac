/*
 * The channel between an expert cache and the loader: segments of experts into the memory behind
 * their slots.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "run/experts_cached.h"

static uint32_t model_layer(const struct cached *c, const struct moe_slot *s)
{
    return c->inventory.model_layer[s->layer];
}

static int submit(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                  float score, uint32_t *handle, struct moe_err *err)
{
    struct cached *c = ctx;
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    const struct moe_size_class *class_ = &c->inventory.classes[s->class_index];
    const struct moe_extent *x =
        &moe_pack_expert(c->pack, model_layer(c, s), s->expert, s->variant)->segments[segment];
    uint64_t at = c->slot_at[slot];
    for (uint32_t i = 0; i < segment; i++)
        at += moe_round_up(class_->segment_bytes[i], MOE_PACK_ALIGN);
    const struct moe_load load = {
        .offset = x->offset,
        .stored_bytes = x->stored_bytes,
        .raw_bytes = x->raw_bytes,
        .checksum = x->checksum,
        .to = c->memory + at,
        .priority = priority,
        .score = score,
        .tag = (uint64_t)slot * MOE_PACK_MAX_SEGMENTS + segment,
    };
    if (c->base.timeline && segment == 0)
        c->submitted[slot] = moe_seconds();
    return moe_loader_submit(c->loader, &load, handle, err);
}

static void promote(void *ctx, uint32_t handle)
{
    moe_loader_promote(((struct cached *)ctx)->loader, handle, MOE_LOAD_DEMAND, 0);
}

static bool cancel(void *ctx, uint32_t handle)
{
    return moe_loader_cancel(((struct cached *)ctx)->loader, handle);
}

/* What became of one load; remembers a failure. */
static struct moe_arrival arrival_of(struct cached *c, const struct moe_load_done *done)
{
    const struct moe_arrival a = {
        .slot = (uint32_t)(done->tag / MOE_PACK_MAX_SEGMENTS),
        .segment = (uint32_t)(done->tag % MOE_PACK_MAX_SEGMENTS),
        .status = done->status,
    };
    const struct moe_slot *s = moe_store_slot(c->store, a.slot);
    if (a.status != MOE_OK && a.status != MOE_ERR_INTERRUPTED)
        moe_fail(&c->failure, a.status, "layer %u expert %u variant %s segment %u: %s",
                 model_layer(c, s), s->expert, moe_pack_variant_at(c->pack, s->variant)->name,
                 a.segment, moe_loader_error(c->loader));
    return a;
}

static uint32_t reap(void *ctx, bool wait, struct moe_arrival *arrivals, uint32_t max)
{
    enum { AT_ONCE = 32 };
    struct cached *c = ctx;
    struct moe_load_done done[AT_ONCE];
    uint32_t n;
    max = max < AT_ONCE ? max : AT_ONCE;
    if (wait) {
        double started = moe_experts_clock(&c->base);
        double began = moe_seconds();
        n = moe_loader_wait(c->loader, done, max);
        c->phase->stall_seconds += moe_experts_clock(&c->base) - started;
        moe_timeline_span(c->base.timeline, MOE_TRACK_STALL, "wait", began, moe_seconds());
    } else {
        n = moe_loader_poll(c->loader, done, max);
    }
    for (uint32_t i = 0; i < n; i++)
        arrivals[i] = arrival_of(c, &done[i]);
    return n;
}

/* For the timeline. */
static void loaded(void *ctx, uint32_t slot)
{
    struct cached *c = ctx;
    char name[64];
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    if (!c->base.timeline)
        return;
    snprintf(name, sizeof name, "layer %u expert %u%s", model_layer(c, s), s->expert,
             s->prefetched ? " (prefetch)" : "");
    moe_timeline_overlapping(c->base.timeline, MOE_TRACK_LOAD, name, slot, c->submitted[slot],
                             moe_seconds());
}

static int failure(void *ctx, struct moe_err *err)
{
    return cached_failure(ctx, err);
}

struct moe_channel cached_channel(struct cached *c)
{
    return (struct moe_channel){c, submit, promote, cancel, reap, loaded, failure};
}

int cached_failure(struct cached *c, struct moe_err *err)
{
    if (!c->failure.status)
        return moe_fail(err, MOE_ERR_IO, "%s: a load was given up that an expert waits for",
                        moe_pack_path(c->pack));
    if (err)
        *err = c->failure;
    return c->failure.status;
}

void cached_count_traffic(struct cached *c)
{
    const struct moe_loader_stats *now = moe_loader_stats(c->loader);
    c->phase->bytes_read += now->bytes_read - c->seen.bytes_read;
    c->phase->experts.prefetch_wasted_bytes += now->cancelled_bytes - c->seen.cancelled_bytes;
    c->phase->stall_bytes += now->wait_bytes - c->seen.wait_bytes;
    c->phase->read_seconds += now->read_seconds - c->seen.read_seconds;
    c->seen = *now;
}
