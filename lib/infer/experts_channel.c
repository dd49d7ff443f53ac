/*
 * The channel between the scheduler and the loader: segments of experts into the memory of their
 * slots.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "infer/experts_cached.h"

/* ---- What both channels do ---- */

static struct moe_expert_segment segment_of(const struct cached *c, uint32_t slot, uint32_t segment)
{
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    return moe_expert_segment_of(&c->inventory, s->key, s->variant, segment);
}

uint8_t *cached_segment_at(const struct cached *c, uint32_t slot, uint32_t segment)
{
    const struct moe_size_class *class_ =
        &c->inventory.classes[moe_store_slot(c->store, slot)->class_index];
    return c->memory + c->slot_at[slot] + moe_size_class_offset(class_, segment);
}

void cached_fail(struct cached *c, uint32_t slot, uint32_t segment, int status, const char *why)
{
    const struct moe_expert_segment which = segment_of(c, slot, segment);
    moe_expert_load_failed(&c->failure, status, c->pack, &which, why);
}

int cached_failure(void *ctx, struct moe_err *err)
{
    struct cached *c = ctx;
    if (!c->failure.status)
        return moe_fail(err, MOE_ERR_IO, "%s: a load was cancelled that an expert waits for",
                        moe_pack_path(c->pack));
    if (err)
        *err = c->failure;
    return c->failure.status;
}

void cached_hold(void *ctx, bool holds)
{
    struct cached *c = ctx;
    if (holds)
        moe_loader_hold(c->loader);
    else
        moe_loader_let_go(c->loader);
}

void cached_limit_prefetches(void *ctx, double bytes)
{
    moe_loader_limit_prefetches(((struct cached *)ctx)->loader, bytes);
}

void cached_loading(struct cached *c, uint32_t slot)
{
    if (c->base.timeline)
        c->submitted[slot] = moe_seconds();
}

void cached_loaded(void *ctx, uint32_t slot)
{
    struct cached *c = ctx;
    char name[64];
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    if (!c->base.timeline)
        return;
    snprintf(name, sizeof name, "layer %u expert %u%s",
             moe_inventory_model_layer(&c->inventory, s->key),
             moe_inventory_expert(&c->inventory, s->key), s->prefetched ? " (prefetch)" : "");
    moe_timeline_overlapping(c->base.timeline, MOE_TRACK_LOAD, name, slot, c->submitted[slot],
                             moe_seconds());
}

static double work_of_loaders(const struct cached *c)
{
    return moe_loader_stats(c->loader)->work_seconds +
           (c->disk ? moe_loader_stats(c->disk)->work_seconds : 0);
}

struct cached_stall cached_stall_begin(struct cached *c)
{
    return (struct cached_stall){moe_experts_clock(&c->base), moe_seconds(), work_of_loaders(c)};
}

void cached_stall_end(struct cached *c, const struct cached_stall *s)
{
    double worked = work_of_loaders(c) - s->work;
    c->phase->stall_seconds += moe_experts_clock(&c->base) - s->clock - worked;
    moe_timeline_span(c->base.timeline, MOE_TRACK_STALL, "wait", s->began, moe_seconds());
}

/* ---- From the pack into memory ---- */

static int channel_submit(void *ctx, uint32_t slot, uint32_t segment,
                          enum moe_load_priority priority, float score, uint32_t *handle,
                          struct moe_err *err)
{
    struct cached *c = ctx;
    const struct moe_expert_segment which = segment_of(c, slot, segment);
    struct moe_load load = moe_expert_load(c->pack, &which);
    load.to = cached_segment_at(c, slot, segment);
    load.priority = priority;
    load.score = score;
    load.tag = moe_load_tag(slot, segment);
    if (segment == 0)
        cached_loading(c, slot);
    return moe_loader_submit(c->loader, &load, handle, err);
}

static void channel_promote(void *ctx, uint32_t handle)
{
    moe_loader_promote(((struct cached *)ctx)->loader, handle, MOE_LOAD_DEMAND, 0);
}

static bool channel_cancel(void *ctx, uint32_t handle)
{
    return moe_loader_cancel(((struct cached *)ctx)->loader, handle);
}

/* What became of one load; remembers a failure. */
static struct moe_arrival arrival_of(struct cached *c, const struct moe_load_done *done)
{
    const struct moe_arrival a = {
        .slot = moe_tag_slot(done->tag),
        .segment = moe_tag_segment(done->tag),
        .status = done->status,
    };
    if (a.status != MOE_OK && a.status != MOE_ERR_INTERRUPTED)
        cached_fail(c, a.slot, a.segment, a.status, moe_loader_error(c->loader));
    return a;
}

static uint32_t channel_reap(void *ctx, bool wait, struct moe_arrival *arrivals, uint32_t max)
{
    enum { AT_ONCE = 32 };
    struct cached *c = ctx;
    struct moe_load_done done[AT_ONCE];
    uint32_t n;
    max = max < AT_ONCE ? max : AT_ONCE;
    if (wait) {
        const struct cached_stall stall = cached_stall_begin(c);
        n = moe_loader_wait(c->loader, done, max);
        cached_stall_end(c, &stall);
    } else {
        n = moe_loader_poll(c->loader, done, max);
    }
    for (uint32_t i = 0; i < n; i++)
        arrivals[i] = arrival_of(c, &done[i]);
    return n;
}

static void channel_lend(void *ctx, uint32_t slot, bool lent)
{
    struct cached *c = ctx;
    const uint64_t bytes =
        c->inventory.classes[moe_store_slot(c->store, slot)->class_index].slot_bytes;
    if (lent)
        moe_pages_drop(c->memory + c->slot_at[slot], bytes);
    else
        moe_pages_take_back(c->memory + c->slot_at[slot], bytes);
}

struct moe_channel cached_channel(struct cached *c)
{
    return (struct moe_channel){.ctx = c,
                                .submit = channel_submit,
                                .promote = channel_promote,
                                .cancel = channel_cancel,
                                .reap = channel_reap,
                                .loaded = cached_loaded,
                                .failure = cached_failure,
                                .lend = channel_lend,
                                .hold = cached_hold,
                                .limit_prefetches = cached_limit_prefetches};
}
