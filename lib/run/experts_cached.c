/*
 * Experts behind a cache: the store says which slot holds what (sched/store.h), the loader brings
 * the bytes (io/loader.h), this file moves a layer's request from one to the other.
 *
 * A request's experts that are here are pinned first, so that making room for the missing ones
 * cannot take them; missing ones are asked of the loader in the request's order, as many as slots
 * allow; the rest follow as slots are released, so a layer with more active experts than slots runs
 * in waves. An expert is given out when its first segment (gate and up) has arrived.
 */
#include "run/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sched/store.h"

enum { MAX_REQUESTS = 4096 /* loads under way; more wait for them in their turn */ };

enum entry_state { ENTRY_NO_SLOT, ENTRY_WAITING, ENTRY_GIVEN, ENTRY_RELEASED };

/* One expert of the request under way. */
struct entry {
    uint32_t slot;
    enum entry_state state;
    bool told; /* the policy knows of the miss */
};

/* The loads that fill one slot. */
struct slot_loads {
    uint32_t n_segments;
    uint32_t arrived;                        /* bit per segment */
    uint32_t in_flight;                      /* bit per segment */
    uint32_t handles[MOE_PACK_MAX_SEGMENTS]; /* of segments in flight */
    bool failed;
    double submitted; /* for the timeline */
};

struct cached {
    struct moe_experts base;
    const struct moe_pack *pack;
    uint32_t n_experts, n_slots;
    uint32_t *best_variant; /* [n_layers][n_experts] the one to use */
    struct moe_store *store;
    struct moe_loader *loader;
    uint8_t *memory;
    uint64_t memory_bytes;
    uint64_t *slot_at;        /* [n_slots] offset of a slot in memory */
    uint64_t slot_bytes;      /* of the largest */
    struct slot_loads *loads; /* [n_slots] */

    uint32_t n_requests_max, n_in_flight; /* loads that the loader takes, and has */

    struct moe_expert_request request;
    struct moe_phase_stats *phase; /* of the request; `before` until the first one */
    struct moe_phase_stats before;
    struct entry *entries;  /* [n_experts] */
    uint32_t n_open;        /* entries not released yet */
    struct moe_err failure; /* of a load that somebody waits for */

    /* What was foreseen: the experts of one layer to come, and the slots fetched for them. */
    uint32_t predicted_layer;
    uint8_t *predicted;    /* [n_experts] */
    uint32_t *prefetching; /* [n_slots] */
    uint32_t n_prefetching;

    /* Counters as last seen, for what a phase added to them. */
    uint64_t bytes_seen, evictions_seen, unused_seen, cancelled_seen;
    double read_seconds_seen, stall_bytes_seen;
};

/* ---- Sizes -------------------------------------------------------------------------------------
 */

static uint64_t class_slot_bytes(const struct moe_expert_class *class_)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < class_->n_segments; i++)
        bytes += moe_round_up(class_->segment_bytes[i], MOE_PACK_ALIGN);
    return bytes;
}

uint64_t moe_cache_slot_bytes(const struct moe_pack *pack, uint32_t variant)
{
    uint64_t most = 0;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            uint32_t v = moe_pack_usable_variant(pack, layer, e, variant);
            if (v == UINT32_MAX)
                continue;
            uint32_t c = moe_pack_expert(pack, layer, e, v)->class_index;
            uint64_t bytes = class_slot_bytes(moe_pack_class_at(pack, c));
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

/* How many of the used experts are of each class; classes differ only in packs with mixed bits. */
static void count_classes(const struct moe_pack *pack, uint32_t variant, uint64_t *n_of_class)
{
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            uint32_t v = moe_pack_usable_variant(pack, layer, e, variant);
            if (v != UINT32_MAX)
                n_of_class[moe_pack_expert(pack, layer, e, v)->class_index]++;
        }
    }
}

/* Slots of each class: the cache's bytes are shared among classes as their experts' bytes are. */
static void share_out(const struct moe_pack *pack, uint32_t variant,
                      const struct moe_cache_options *o, struct moe_pool_params *pools)
{
    uint32_t n = moe_pack_n_classes(pack);
    uint64_t n_of_class[MOE_CACHE_MAX_CLASSES] = {0};
    double total = 0;
    count_classes(pack, variant, n_of_class);
    for (uint32_t c = 0; c < n; c++)
        total += (double)n_of_class[c] * (double)class_slot_bytes(moe_pack_class_at(pack, c));
    for (uint32_t c = 0; c < n; c++) {
        double slots = (double)o->cache_bytes * (double)n_of_class[c] / (total > 0 ? total : 1);
        pools[c] = (struct moe_pool_params){0};
        if (n_of_class[c] == 0)
            continue;
        pools[c].n_cache =
            slots < (double)n_of_class[c] ? (uint32_t)slots : (uint32_t)n_of_class[c];
        pools[c].n_working = o->n_working ? o->n_working : 1;
    }
}

static uint64_t slots_bytes(const struct moe_pack *pack, const struct moe_pool_params *pools,
                            uint32_t *n_slots)
{
    uint64_t bytes = 0;
    *n_slots = 0;
    for (uint32_t c = 0; c < moe_pack_n_classes(pack); c++) {
        uint32_t n = pools[c].n_cache + pools[c].n_working;
        bytes += n * class_slot_bytes(moe_pack_class_at(pack, c));
        *n_slots += n;
    }
    return bytes;
}

static bool has_compressed(const struct moe_pack *pack, uint32_t variant, uint64_t *largest)
{
    *largest = 0;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            uint32_t v = moe_pack_usable_variant(pack, layer, e, variant);
            if (v == UINT32_MAX)
                continue;
            const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, v);
            const struct moe_expert_class *class_ = moe_pack_class_at(pack, x->class_index);
            for (uint32_t i = 0; i < class_->n_segments; i++)
                if (x->segments[i].stored_bytes < x->segments[i].raw_bytes &&
                    x->segments[i].stored_bytes > *largest)
                    *largest = x->segments[i].stored_bytes;
        }
    }
    return *largest > 0;
}

/* The loader's options with what the pack decides. */
static struct moe_loader_options loader_options(const struct moe_pack *pack, uint32_t variant,
                                                const struct moe_cache_options *o, uint32_t n_slots)
{
    struct moe_loader_options l = o->loader;
    uint64_t largest;
    l.fd = moe_pack_fd(pack);
    l.path = moe_pack_path(pack);
    l.n_requests = n_slots < MAX_REQUESTS / MOE_PACK_MAX_SEGMENTS ? n_slots * MOE_PACK_MAX_SEGMENTS
                                                                  : MAX_REQUESTS;
    if (has_compressed(pack, variant, &largest))
        l.compressed_bytes = 4 * moe_round_up(largest, MOE_PACK_ALIGN);
    return l;
}

uint64_t moe_cache_bytes(const struct moe_pack *pack, uint32_t variant,
                         const struct moe_cache_options *options)
{
    struct moe_pool_params pools[MOE_CACHE_MAX_CLASSES];
    uint32_t n_slots;
    if (moe_pack_n_classes(pack) > MOE_CACHE_MAX_CLASSES)
        return UINT64_MAX;
    share_out(pack, variant, options, pools);
    uint64_t bytes = slots_bytes(pack, pools, &n_slots);
    struct moe_loader_options l = loader_options(pack, variant, options, n_slots);
    return bytes + moe_loader_bytes(&l);
}

/* ---- Loads -------------------------------------------------------------------------------------
 */

static uint64_t make_tag(uint32_t slot, uint32_t segment)
{
    return (uint64_t)slot * MOE_PACK_MAX_SEGMENTS + segment;
}

/* Asks for every segment of what the slot is to hold, in order. */
static int submit_slot(struct cached *c, uint32_t slot, enum moe_load_priority priority,
                       float score, struct moe_err *err)
{
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    const struct moe_expert_extent *x = moe_pack_expert(c->pack, s->layer, s->expert, s->variant);
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
            .tag = make_tag(slot, i),
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
    c->phase->loads++;
    return MOE_OK;
}

static void record_load(struct cached *c, uint32_t slot)
{
    char name[64];
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    if (!c->base.timeline)
        return;
    snprintf(name, sizeof name, "layer %u expert %u%s", s->layer, s->expert,
             s->prefetched ? " (prefetch)" : "");
    moe_timeline_overlapping(c->base.timeline, MOE_TRACK_LOAD, name, slot, c->loads[slot].submitted,
                             moe_seconds());
}

/* Books completions. A load that failed is remembered for those who wait for it. */
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
                         "layer %u expert %u variant %s segment %u: %s", s->layer, s->expert,
                         moe_pack_variant_at(c->pack, s->variant)->name, segment,
                         moe_loader_error(c->loader));
        }
        if (l->in_flight)
            continue;
        record_load(c, slot);
        if (!l->failed)
            moe_store_ready(c->store, slot);
        else if (moe_store_slot(c->store, slot)->pins == 0)
            moe_store_failed(c->store, slot);
    }
}

static void poll_loader(struct cached *c)
{
    struct moe_load_done done[32];
    book(c, done, moe_loader_poll(c->loader, done, 32));
}

/* Sleeps until something has arrived. */
static int wait_loader(struct cached *c, struct moe_err *err)
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

/* ---- Requests ----------------------------------------------------------------------------------
 */

/* Bytes and evictions since the last look go to the phase that caused them. */
static void count_traffic(struct cached *c)
{
    uint64_t bytes = moe_loader_stats(c->loader)->bytes_read;
    uint64_t cancelled = moe_loader_stats(c->loader)->cancelled_bytes;
    const struct moe_store_counts *counts = moe_store_counts(c->store);
    c->phase->bytes_read += bytes - c->bytes_seen;
    c->phase->evictions += counts->evictions - c->evictions_seen;
    c->phase->prefetch_wasted_bytes +=
        cancelled - c->cancelled_seen + (counts->staged_unused - c->unused_seen) * c->slot_bytes;
    c->phase->stall_bytes += moe_loader_stats(c->loader)->wait_bytes - c->stall_bytes_seen;
    c->stall_bytes_seen = moe_loader_stats(c->loader)->wait_bytes;
    c->phase->read_seconds += moe_loader_stats(c->loader)->read_seconds - c->read_seconds_seen;
    c->read_seconds_seen = moe_loader_stats(c->loader)->read_seconds;
    c->bytes_seen = bytes;
    c->evictions_seen = counts->evictions;
    c->cancelled_seen = cancelled;
    c->unused_seen = counts->staged_unused;
}

/* Gives up prefetches for this layer that its router did not ask for; forgets finished ones. */
static void drop_stale(struct cached *c)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n_prefetching; i++) {
        uint32_t slot = c->prefetching[i];
        const struct moe_slot *s = moe_store_slot(c->store, slot);
        struct slot_loads *l = &c->loads[slot];
        if (s->state != MOE_SLOT_LOADING || s->use != MOE_SLOT_STAGED)
            continue;
        if (s->layer != c->request.layer) {
            c->prefetching[kept++] = slot;
            continue;
        }
        l->failed = true;
        for (uint32_t k = 0; k < l->n_segments; k++) {
            if ((l->in_flight & 1u << k) && moe_loader_cancel(c->loader, l->handles[k])) {
                l->in_flight &= ~(1u << k);
                c->n_in_flight--;
            }
        }
        if (!l->in_flight)
            moe_store_failed(c->store, slot);
    }
    c->n_prefetching = kept;
}

static void release_entry(struct cached *c, struct entry *e)
{
    uint32_t slot = e->slot;
    e->state = ENTRY_RELEASED;
    c->n_open--;
    moe_store_release(c->store, slot);
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    if (s->state == MOE_SLOT_LOADING && s->pins == 0 && c->loads[slot].failed &&
        !c->loads[slot].in_flight)
        moe_store_failed(c->store, slot);
}

/* Lets go of what an earlier request (one that ended in an error) still holds. */
static void drop_request(struct cached *c)
{
    for (uint32_t i = 0; c->n_open > 0 && i < c->request.n; i++) {
        struct entry *e = &c->entries[i];
        if (e->state == ENTRY_WAITING || e->state == ENTRY_GIVEN)
            release_entry(c, e);
        else if (e->state == ENTRY_NO_SLOT)
            c->n_open--;
    }
    c->n_open = 0;
}

/* A prefetch of this very expert was given up a moment ago and its last reads are still under way:
 * lets them end, so that it can be loaded anew. */
static int settle_cancelled(struct cached *c, uint32_t i, struct moe_err *err)
{
    uint32_t layer = c->request.layer, expert = c->request.experts[i];
    uint32_t variant = c->best_variant[(uint64_t)layer * c->n_experts + expert];
    uint32_t slot = moe_store_find(c->store, layer, expert, variant);
    int status = MOE_OK;
    while (status == MOE_OK && slot != MOE_NO_SLOT && c->loads[slot].failed &&
           c->loads[slot].in_flight)
        status = wait_loader(c, err);
    return status;
}

/* Pins what is here or on its way, and says what it was. */
static void take_present(struct cached *c, uint32_t i)
{
    uint32_t layer = c->request.layer, expert = c->request.experts[i];
    uint32_t variant = c->best_variant[(uint64_t)layer * c->n_experts + expert];
    uint32_t slot = moe_store_find(c->store, layer, expert, variant);
    uint64_t rows = c->request.n_rows[i];
    if (c->predicted_layer == layer) {
        c->phase->predicted += rows;
        c->phase->predicted_right += c->predicted[expert] ? rows : 0;
    }
    c->entries[i] = (struct entry){.slot = slot};
    c->phase->expert_activations += rows;
    if (slot == MOE_NO_SLOT) {
        c->phase->misses += rows;
        return;
    }
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    if (s->state == MOE_SLOT_LOADING) {
        c->phase->prefetch_late += rows;
        for (uint32_t k = 0; k < MOE_PACK_MAX_SEGMENTS; k++)
            if (c->loads[slot].in_flight & 1u << k)
                moe_loader_promote(c->loader, c->loads[slot].handles[k], MOE_LOAD_DEMAND, 0);
    } else if (s->prefetched) {
        c->phase->prefetch_hits += rows;
    } else {
        c->phase->cache_hits += rows;
    }
    moe_store_use(c->store, slot);
    c->entries[i].state = ENTRY_WAITING;
}

/* Finds slots for missing experts, in order, as far as there are any. */
static int pump(struct cached *c, struct moe_err *err)
{
    for (uint32_t i = 0; i < c->request.n; i++) {
        struct entry *e = &c->entries[i];
        if (e->state != ENTRY_NO_SLOT)
            continue;
        uint32_t layer = c->request.layer, expert = c->request.experts[i];
        uint32_t variant = c->best_variant[(uint64_t)layer * c->n_experts + expert];
        if (c->n_in_flight + MOE_PACK_MAX_SEGMENTS > c->n_requests_max)
            return MOE_OK;
        e->slot = moe_store_miss(c->store, layer, expert, variant, e->told);
        e->told = true;
        if (e->slot == MOE_NO_SLOT)
            return MOE_OK;
        e->state = ENTRY_WAITING;
        int status = submit_slot(c, e->slot, MOE_LOAD_DEMAND, 0, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

static int begin(struct moe_experts *self, const struct moe_expert_request *request,
                 struct moe_phase_stats *phase, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    drop_request(c);
    c->request = *request;
    c->phase = phase;
    c->n_open = request->n;
    poll_loader(c);
    for (uint32_t i = 0; i < request->n; i++) {
        int status = settle_cancelled(c, i, err);
        if (status != MOE_OK)
            return status;
    }
    for (uint32_t i = 0; i < request->n; i++)
        take_present(c, i);
    drop_stale(c);
    c->predicted_layer = UINT32_MAX;
    return pump(c, err);
}

/* Whether the segments that the first half of an expert's work needs are there. */
static bool can_begin(const struct cached *c, uint32_t slot)
{
    const struct slot_loads *l = &c->loads[slot];
    uint32_t first = l->n_segments > 1 ? (1u << (l->n_segments - 1)) - 1 : 1;
    return (l->arrived & first) == first;
}

static int failure(struct cached *c, struct moe_err *err)
{
    if (err)
        *err = c->failure;
    return c->failure.status ? c->failure.status : MOE_ERR_IO;
}

static void view_slot(const struct cached *c, uint32_t slot, struct moe_expert_view *view)
{
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    const struct moe_expert_class *class_ = moe_pack_class_at(c->pack, s->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    uint64_t at = c->slot_at[slot];
    for (uint32_t i = 0; i < class_->n_segments; i++) {
        segments[i] = c->memory + at;
        at += moe_round_up(class_->segment_bytes[i], MOE_PACK_ALIGN);
    }
    *view = (struct moe_expert_view){.layer = s->layer, .expert = s->expert, .variant = s->variant};
    /* Every class was checked against the model when it was opened. */
    moe_expert_view_set(view, class_, segments);
}

static int next(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    for (*n = 0;;) {
        poll_loader(c);
        int status = pump(c, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t i = 0; i < c->request.n && *n < max; i++) {
            struct entry *e = &c->entries[i];
            if (e->state != ENTRY_WAITING)
                continue;
            if (c->loads[e->slot].failed)
                return failure(c, err);
            if (!can_begin(c, e->slot))
                continue;
            view_slot(c, e->slot, &views[*n]);
            which[(*n)++] = i;
            e->state = ENTRY_GIVEN;
        }
        if (*n > 0)
            return MOE_OK;
        status = wait_loader(c, err);
        if (status != MOE_OK)
            return status;
    }
}

static int complete(struct moe_experts *self, uint32_t which, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    uint32_t slot = c->entries[which].slot;
    while (moe_store_slot(c->store, slot)->state != MOE_SLOT_READY) {
        if (c->loads[slot].failed)
            return failure(c, err);
        int status = wait_loader(c, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

static void release(struct moe_experts *self, uint32_t which)
{
    struct cached *c = (struct cached *)self;
    release_entry(c, &c->entries[which]);
    if (c->n_open == 0)
        count_traffic(c);
}

static void prefetch(struct moe_experts *self, uint32_t layer, const uint32_t *experts,
                     const float *scores, uint32_t n)
{
    struct cached *c = (struct cached *)self;
    c->predicted_layer = layer;
    memset(c->predicted, 0, c->n_experts);
    for (uint32_t i = 0; i < n; i++)
        c->predicted[experts[i]] = 1;
    for (uint32_t i = 0; i < n && c->n_in_flight + MOE_PACK_MAX_SEGMENTS <= c->n_requests_max;
         i++) {
        uint32_t variant = c->best_variant[(uint64_t)layer * c->n_experts + experts[i]];
        if (moe_store_find(c->store, layer, experts[i], variant) != MOE_NO_SLOT)
            continue;
        uint32_t slot = moe_store_stage(c->store, layer, experts[i], variant, true);
        if (slot == MOE_NO_SLOT)
            return;
        if (submit_slot(c, slot, MOE_LOAD_PREFETCH, scores[i], NULL) != MOE_OK &&
            !c->loads[slot].in_flight)
            moe_store_failed(c->store, slot);
        else if (c->n_prefetching < c->n_slots)
            c->prefetching[c->n_prefetching++] = slot;
    }
}

/* ---- Open and close ----------------------------------------------------------------------------
 */

static void close_cached(struct moe_experts *self)
{
    struct cached *c = (struct cached *)self;
    if (c->loader)
        moe_loader_close(c->loader); /* first: it writes into the slots */
    moe_store_close(c->store);
    moe_pages_free(c->memory, c->memory_bytes);
    free(c->best_variant);
    free(c->slot_at);
    free(c->loads);
    free(c->entries);
    free(c->predicted);
    free(c->prefetching);
    free(c);
}

static const struct moe_experts_ops cached_ops = {
    .name = "cached",
    .begin = begin,
    .next = next,
    .complete = complete,
    .release = release,
    .prefetch = prefetch,
    .close = close_cached,
};

/* An equal share of each pool for every layer that has experts; the first ones take what is over.
 */
static void share_layers(const struct moe_pack *pack, const struct moe_pool_params *pools,
                         uint32_t *per_layer)
{
    uint32_t n_layers = moe_pack_n_layers(pack), n_moe = 0, k = 0;
    for (uint32_t i = 0; i < n_layers; i++)
        n_moe += moe_pack_usable_variant(pack, i, 0, 0) != UINT32_MAX;
    for (uint32_t c = 0; c < moe_pack_n_classes(pack); c++, k = 0)
        for (uint32_t i = 0; i < n_layers; i++)
            if (moe_pack_usable_variant(pack, i, 0, 0) != UINT32_MAX)
                per_layer[c * n_layers + i] =
                    pools[c].n_cache / n_moe + (k++ < pools[c].n_cache % n_moe);
}

/* The class of every expert at every variant, as the store wants it. */
static void list_classes(const struct moe_pack *pack, uint32_t *class_of)
{
    uint64_t i = 0;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++)
            for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++, i++) {
                const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, v);
                class_of[i] = x->present ? x->class_index : UINT32_MAX;
            }
}

static int open_store(struct cached *c, const struct moe_cache_options *o,
                      struct moe_pool_params *pools, struct moe_err *err)
{
    const struct moe_pack *pack = c->pack;
    uint32_t n_layers = moe_pack_n_layers(pack), n_classes = moe_pack_n_classes(pack);
    uint32_t *class_of = moe_alloc((uint64_t)n_layers * c->n_experts * moe_pack_n_variants(pack),
                                   sizeof *class_of, err);
    uint32_t *per_layer = moe_alloc((uint64_t)n_classes * n_layers, sizeof *per_layer, err);
    int status = class_of && per_layer ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        list_classes(pack, class_of);
        share_layers(pack, pools, per_layer);
        for (uint32_t i = 0; o->per_layer && i < n_classes; i++)
            pools[i].per_layer = per_layer + (uint64_t)i * n_layers;
        const struct moe_store_params params = {
            .n_layers = n_layers,
            .n_experts = c->n_experts,
            .n_variants = moe_pack_n_variants(pack),
            .n_classes = n_classes,
            .pools = pools,
            .class_of = class_of,
            .policy = o->policy,
            .seed = o->seed,
        };
        status = moe_store_open(&c->store, &params, err);
    }
    free(class_of);
    free(per_layer);
    return status;
}

static int place_slots(struct cached *c, const struct moe_pool_params *pools, struct moe_err *err)
{
    c->memory_bytes = slots_bytes(c->pack, pools, &c->n_slots);
    c->memory = moe_pages_alloc(c->memory_bytes, err);
    c->slot_at = moe_alloc(c->n_slots, sizeof *c->slot_at, err);
    c->loads = moe_alloc(c->n_slots, sizeof *c->loads, err);
    c->prefetching = moe_alloc(c->n_slots, sizeof *c->prefetching, err);
    if (!c->memory || !c->slot_at || !c->loads || !c->prefetching)
        return MOE_ERR_MEMORY;
    uint64_t at = 0;
    for (uint32_t i = 0; i < c->n_slots; i++) {
        c->slot_at[i] = at;
        at +=
            class_slot_bytes(moe_pack_class_at(c->pack, moe_store_slot(c->store, i)->class_index));
    }
    c->base.resident_bytes = c->base.resident_bytes_max = c->memory_bytes;
    return MOE_OK;
}

int moe_experts_open_cached(struct moe_experts **out, const struct moe_pack *pack, uint32_t variant,
                            const struct moe_cache_options *o, struct moe_err *err)
{
    *out = NULL;
    if (moe_pack_n_classes(pack) > MOE_CACHE_MAX_CLASSES)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: more than %d classes of experts",
                        moe_pack_path(pack), MOE_CACHE_MAX_CLASSES);
    struct cached *c = moe_alloc(1, sizeof *c, err);
    if (!c)
        return MOE_ERR_MEMORY;
    struct moe_pool_params pools[MOE_CACHE_MAX_CLASSES];
    c->base.ops = &cached_ops;
    c->pack = pack;
    c->n_experts = moe_pack_n_experts(pack);
    c->slot_bytes = moe_cache_slot_bytes(pack, variant);
    c->phase = &c->before;
    c->predicted_layer = UINT32_MAX;
    share_out(pack, variant, o, pools);
    int status = MOE_ERR_MEMORY;
    c->entries = moe_alloc(c->n_experts, sizeof *c->entries, err);
    c->best_variant =
        moe_alloc((uint64_t)moe_pack_n_layers(pack) * c->n_experts, sizeof *c->best_variant, err);
    c->predicted = moe_alloc(c->n_experts, 1, err);
    if (!c->entries || !c->best_variant || !c->predicted)
        goto fail;
    for (uint32_t i = 0; i < moe_pack_n_layers(pack) * c->n_experts; i++)
        c->best_variant[i] =
            moe_pack_usable_variant(pack, i / c->n_experts, i % c->n_experts, variant);
    status = open_store(c, o, pools, err);
    if (status == MOE_OK)
        status = place_slots(c, pools, err);
    if (status != MOE_OK)
        goto fail;
    struct moe_loader_options l = loader_options(pack, variant, o, c->n_slots);
    c->n_requests_max = l.n_requests;
    status = moe_loader_open(&c->loader, &l, err);
    if (status != MOE_OK)
        goto fail;
    *out = &c->base;
    return MOE_OK;
fail:
    close_cached(&c->base);
    return status;
}
