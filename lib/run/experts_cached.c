/*
 * Experts behind a cache: the scheduler decides (sched/scheduler.h), the loader brings the bytes
 * (io/loader.h), this file joins them: it moves the scheduler's loads, keeps the memory behind the
 * slots, and gives an expert out when its first segments (gate and up) have arrived.
 *
 * The scheduler counts MoE layers; here, outside of it, layers are the model's.
 */
#include "run/experts_cached.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* ---- Loads, for the scheduler ------------------------------------------------------------------
 */

static const struct moe_expert_extent *extent_of(const struct cached *c, uint32_t slot)
{
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    return moe_pack_expert(c->pack, c->model_layer[s->layer], s->expert, s->variant);
}

/* Asks for every segment of what the slot is to hold, in order. */
static int load_slot(void *ctx, uint32_t slot, enum moe_load_priority priority, float score,
                     struct moe_err *err)
{
    struct cached *c = ctx;
    const struct moe_expert_extent *x = extent_of(c, slot);
    const struct moe_expert_class *class_ = moe_pack_class_at(c->pack, x->class_index);
    struct slot_loads *l = &c->loads[slot];
    uint64_t at = c->slot_at[slot];
    *l = (struct slot_loads){.n_segments = class_->n_segments};
    if (c->base.timeline)
        l->submitted = moe_seconds();
    for (uint32_t i = 0; i < class_->n_segments; i++) {
        const struct moe_load load = {
            .offset = x->segments[i].offset,
            .stored_bytes = x->segments[i].stored_bytes,
            .raw_bytes = x->segments[i].raw_bytes,
            .checksum = x->segments[i].checksum,
            .to = c->memory + at,
            .priority = priority,
            .score = score,
            .tag = (uint64_t)slot * MOE_PACK_MAX_SEGMENTS + i,
        };
        at += moe_round_up(class_->segment_bytes[i], MOE_PACK_ALIGN);
        int status = moe_loader_submit(c->loader, &load, &l->handles[i], err);
        if (status != MOE_OK) {
            l->failed = true;
            return status;
        }
        l->in_flight |= 1u << i;
        c->n_in_flight++;
    }
    return MOE_OK;
}

static void promote_slot(void *ctx, uint32_t slot)
{
    struct cached *c = ctx;
    for (uint32_t k = 0; k < MOE_PACK_MAX_SEGMENTS; k++)
        if (c->loads[slot].in_flight & 1u << k)
            moe_loader_promote(c->loader, c->loads[slot].handles[k], MOE_LOAD_DEMAND, 0);
}

static bool cancel_slot(void *ctx, uint32_t slot)
{
    struct cached *c = ctx;
    struct slot_loads *l = &c->loads[slot];
    l->failed = true;
    for (uint32_t k = 0; k < l->n_segments; k++) {
        if ((l->in_flight & 1u << k) && moe_loader_cancel(c->loader, l->handles[k])) {
            l->in_flight &= ~(1u << k);
            c->n_in_flight--;
        }
    }
    return l->in_flight == 0;
}

static bool has_room(void *ctx)
{
    const struct cached *c = ctx;
    return c->n_in_flight + MOE_PACK_MAX_SEGMENTS <= c->pools.loader.n_requests;
}

struct moe_mover cached_mover(struct cached *c)
{
    return (struct moe_mover){c, load_slot, promote_slot, cancel_slot, has_room};
}

static void record_load(struct cached *c, uint32_t slot)
{
    char name[64];
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    if (!c->base.timeline)
        return;
    snprintf(name, sizeof name, "layer %u expert %u%s", c->model_layer[s->layer], s->expert,
             s->prefetched ? " (prefetch)" : "");
    moe_timeline_overlapping(c->base.timeline, MOE_TRACK_LOAD, name, slot, c->loads[slot].submitted,
                             moe_seconds());
}

/* Books what the loader has finished. */
static void book(struct cached *c, const struct moe_load_done *done, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = (uint32_t)(done[i].tag / MOE_PACK_MAX_SEGMENTS);
        uint32_t segment = (uint32_t)(done[i].tag % MOE_PACK_MAX_SEGMENTS);
        struct slot_loads *l = &c->loads[slot];
        l->in_flight &= ~(1u << segment);
        c->n_in_flight--;
        if (done[i].status == MOE_OK) {
            l->arrived |= 1u << segment;
        } else {
            l->failed = true;
            const struct moe_slot *s = moe_store_slot(c->store, slot);
            if (done[i].status != MOE_ERR_INTERRUPTED)
                moe_fail(&c->failure, done[i].status,
                         "layer %u expert %u variant %s segment %u: %s", c->model_layer[s->layer],
                         s->expert, moe_pack_variant_at(c->pack, s->variant)->name, segment,
                         moe_loader_error(c->loader));
            if (l->in_flight)
                moe_scheduler_spoiled(c->scheduler, slot);
        }
        if (l->in_flight)
            continue;
        record_load(c, slot);
        moe_scheduler_arrived(c->scheduler, slot, !l->failed);
    }
}

static void poll_loader(struct cached *c)
{
    struct moe_load_done done[32];
    book(c, done, moe_loader_poll(c->loader, done, 32));
}

int cached_wait(struct cached *c, struct moe_err *err)
{
    struct moe_load_done done[32];
    double started = moe_seconds();
    uint32_t n = moe_loader_wait(c->loader, done, 32);
    double ended = moe_seconds();
    c->phase->stall_seconds += ended - started;
    moe_timeline_span(c->base.timeline, MOE_TRACK_STALL, "wait", started, ended);
    if (n == 0)
        return moe_fail(err, MOE_ERR_IO, "%s: an expert is awaited that nobody loads",
                        moe_pack_path(c->pack));
    book(c, done, n);
    return MOE_OK;
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

/* ---- Requests ----------------------------------------------------------------------------------
 */

static void begin_sequence(struct moe_experts *self)
{
    moe_scheduler_begin_sequence(((struct cached *)self)->scheduler);
}

static void begin_tokens(struct moe_experts *self, uint32_t n, bool prefill,
                         struct moe_phase_stats *phase)
{
    struct cached *c = (struct cached *)self;
    cached_count_traffic(c);
    c->phase = phase;
    moe_scheduler_begin_tokens(c->scheduler, n, prefill, &phase->experts);
}

/* Means of a layer's computation and of a load, over the tokens decoded so far. */
static void end_tokens(struct moe_experts *self, double seconds)
{
    struct cached *c = (struct cached *)self;
    cached_count_traffic(c);
    if (c->phase->tokens == 0) /* the first one feels what came before */
        goto seen;
    double stalled = c->phase->stall_seconds - c->stall_seen;
    uint64_t loads = c->phase->experts.loads - c->loads_seen;
    if (seconds > stalled)
        moe_fading_add(&c->layer_seconds, (seconds - stalled) / c->n_layers);
    if (loads)
        moe_fading_add(&c->load_seconds, (c->phase->read_seconds - c->read_seen) / (double)loads);
    moe_scheduler_tell_times(c->scheduler, c->layer_seconds.value, c->load_seconds.value);
    moe_scheduler_tell_token(c->scheduler, seconds);
seen:
    c->stall_seen = c->phase->stall_seconds;
    c->read_seen = c->phase->read_seconds;
    c->loads_seen = c->phase->experts.loads;
}

static int begin(struct moe_experts *self, const struct moe_expert_request *request,
                 struct moe_phase_stats *phase, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    uint32_t n;
    c->layer = request->layer;
    c->failure = (struct moe_err){0};
    memset(c->given, 0, request->n);
    poll_loader(c);
    int status = moe_scheduler_request(c->scheduler, c->moe_layer[request->layer], request->needs,
                                       request->n, err);
    const struct moe_entry *entries = moe_scheduler_entries(c->scheduler, &n);
    for (uint32_t i = 0; i < n; i++)
        request->kinds[i] = (uint8_t)entries[i].kind;
    return status;
}

/* Whether the segments that the first half of an expert's work needs are there. */
static bool can_begin(const struct cached *c, uint32_t slot)
{
    const struct slot_loads *l = &c->loads[slot];
    uint32_t first = l->n_segments > 1 ? (1u << (l->n_segments - 1)) - 1 : 1;
    return (l->arrived & first) == first;
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

/* The expert that the view names, where it lies in the copy of the pack; not for compressed ones.
 */
static void view_copy(const struct cached *c, struct moe_expert_view *view)
{
    const struct moe_expert_extent *x =
        moe_pack_expert(c->pack, view->layer, view->expert, view->variant);
    const struct moe_expert_class *class_ = moe_pack_class_at(c->pack, x->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    for (uint32_t i = 0; i < class_->n_segments; i++)
        segments[i] = (const uint8_t *)c->pools.loader.copy + x->segments[i].offset;
    moe_expert_view_set(view, class_, segments);
}

/* Every class was checked against the model when it was opened. */
static void view_slot(const struct cached *c, uint32_t slot, struct moe_expert_view *view)
{
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    uint32_t layer = c->model_layer[s->layer];
    *view = (struct moe_expert_view){.layer = layer, .expert = s->expert, .variant = s->variant};
    if (c->pools.loader.in_place) {
        view_copy(c, view);
        return;
    }
    const struct moe_expert_class *class_ = moe_pack_class_at(c->pack, s->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    uint64_t at = c->slot_at[slot];
    for (uint32_t i = 0; i < class_->n_segments; i++) {
        segments[i] = c->memory + at;
        at += moe_round_up(class_->segment_bytes[i], MOE_PACK_ALIGN);
    }
    moe_expert_view_set(view, class_, segments);
}

static int poll(struct moe_experts *self, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    if (c->n_in_flight == 0)
        return MOE_OK;
    poll_loader(c);
    return moe_scheduler_feed(c->scheduler, err);
}

static int next(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    uint32_t n_entries;
    const struct moe_entry *entries = moe_scheduler_entries(c->scheduler, &n_entries);
    const uint32_t *order = moe_scheduler_order(c->scheduler);
    for (*n = 0;;) {
        int status = poll(self, err);
        if (status == MOE_OK)
            status = moe_scheduler_feed(c->scheduler, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t i = 0; i < n_entries && *n < max; i++) {
            const struct moe_entry *e = &entries[order[i]];
            if (e->state != MOE_ENTRY_HAS_SLOT || c->given[order[i]])
                continue;
            if (c->loads[e->slot].failed)
                return cached_failure(c, err);
            if (!can_begin(c, e->slot))
                continue;
            view_slot(c, e->slot, &views[*n]);
            which[(*n)++] = order[i];
            c->given[order[i]] = 1;
        }
        if (*n > 0)
            return MOE_OK;
        status = cached_wait(c, err);
        if (status != MOE_OK)
            return status;
    }
}

static int complete(struct moe_experts *self, uint32_t which, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    uint32_t n, slot = moe_scheduler_entries(c->scheduler, &n)[which].slot;
    while (moe_store_slot(c->store, slot)->state != MOE_SLOT_READY) {
        if (c->loads[slot].failed)
            return cached_failure(c, err);
        int status = cached_wait(c, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

static void release(struct moe_experts *self, uint32_t which)
{
    struct cached *c = (struct cached *)self;
    moe_scheduler_release(c->scheduler, which);
}

/* ---- Ahead of the router, beside the device ----------------------------------------------------
 */

static uint32_t wants_prediction(struct moe_experts *self, uint32_t layer)
{
    const struct cached *c = (const struct cached *)self;
    return moe_scheduler_wants_prediction(c->scheduler, c->moe_layer[layer]);
}

static int foresee(struct moe_experts *self, const struct moe_prediction *predictions, uint32_t n,
                   struct moe_err *err)
{
    return moe_scheduler_foresee(((struct cached *)self)->scheduler, predictions, n, err);
}

static void present(struct moe_experts *self, uint32_t layer, uint8_t *out)
{
    const struct cached *c = (const struct cached *)self;
    moe_scheduler_present(c->scheduler, c->moe_layer[layer], out);
}

static void host_view(struct moe_experts *self, uint32_t which, uint32_t layer, uint32_t expert,
                      struct moe_expert_view *view)
{
    const struct cached *c = (const struct cached *)self;
    uint32_t n, variant = c->high[c->moe_layer[layer] * c->n_experts + expert];
    const struct moe_entry *entries = moe_scheduler_entries(c->scheduler, &n);
    if (which < n)
        variant = entries[which].variant;
    *view = (struct moe_expert_view){.layer = layer, .expert = expert, .variant = variant};
    view_copy(c, view);
}

static void close_cached(struct moe_experts *self)
{
    struct cached *c = (struct cached *)self;
    if (c->loader)
        moe_loader_close(c->loader); /* first: it writes into the slots */
    moe_scheduler_close(c->scheduler);
    moe_pages_free(c->memory, c->pools.bytes);
    free(c->model_layer);
    free(c->moe_layer);
    free(c->best);
    free(c->high);
    free(c->low);
    free(c->class_of);
    free(c->slot_at);
    free(c->loads);
    free(c->given);
    free(c);
}

const struct moe_experts_ops cached_ops = {
    .name = "cached",
    .begin_sequence = begin_sequence,
    .begin_tokens = begin_tokens,
    .end_tokens = end_tokens,
    .begin = begin,
    .next = next,
    .complete = complete,
    .release = release,
    .poll = poll,
    .host_view = host_view,
    .wants_prediction = wants_prediction,
    .foresee = foresee,
    .present = present,
    .close = close_cached,
};
