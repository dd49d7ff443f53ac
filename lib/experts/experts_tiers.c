#include "experts/experts_tiers.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "experts/experts_tiers_state.h"

/* ---- Opening ---- */

static int check_host_bytes(const struct cached *c, const struct moe_cache_options *o,
                            struct moe_err *err)
{
    const struct moe_expert_pools *p = &c->pools;
    uint64_t beside = moe_expert_pools_beside_bytes(p);
    char need[32];
    if (o->strategy && o->strategy->needs_host && !p->host.whole)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "strategy %s computes experts on the host: all of them must be in host "
                        "memory, which takes %s",
                        o->strategy->name, moe_format_bytes(p->host.all_bytes + beside, need));
    if (o->host_bytes < p->host.least_bytes + beside)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "%s: experts on their way to the GPU need at least %s of host memory",
                        moe_pack_path(c->pack),
                        moe_format_bytes(p->host.least_bytes + beside, need));
    return MOE_OK;
}

static int open_transfers(struct tiers *t, uint32_t n_slots, struct moe_err *err)
{
    uint64_t n = (uint64_t)n_slots * MOE_PACK_MAX_SEGMENTS;
    t->first_failed = MOE_LINK_NONE;
    t->transfers = moe_alloc(n, sizeof *t->transfers, err);
    t->items = moe_alloc(n, sizeof *t->items, err);
    if (!t->transfers || !t->items)
        return MOE_ERR_MEMORY;
    moe_link_init(&t->waiting, t->items, (uint32_t)n, MOE_LINK_PIECE_BYTES, 0);
    return slot_uses_open(&t->uses, t->c->gpu, n_slots, err);
}

int tiers_open(struct tiers **out, struct cached *c, const struct moe_cache_options *o,
               const uint64_t *frequency, const struct moe_progress *progress, struct moe_err *err)
{
    const struct moe_expert_pools *p = &c->pools;
    int status = check_host_bytes(c, o, err);
    if (status != MOE_OK)
        return status;
    struct tiers *t = *out = moe_alloc(1, sizeof *t, err);
    if (!t)
        return MOE_ERR_MEMORY;
    t->c = c;
    status = open_transfers(t, p->pools.n_slots, err);
    if (status == MOE_OK)
        status = moe_host_tier_open(&t->host, c->pack, &c->inventory, p, c->gpu, err);
    if (status == MOE_OK)
        status = moe_loader_open(&t->disk, &p->disk, err);
    if (status == MOE_OK)
        status = moe_host_tier_fill(&t->host, t->disk, p->disk.n_requests, p->high, p->low,
                                    frequency, progress, err);
    if (status != MOE_OK)
        return status;
    if (p->host.whole) {
        moe_loader_close(t->disk);
        t->disk = NULL;
    } else {
        t->seen = *moe_loader_stats(t->disk); /* filling is not counted */
        c->disk = t->disk;
    }
    return MOE_OK;
}

void tiers_close(struct tiers *t)
{
    if (!t)
        return;
    moe_loader_close(t->disk); /* first: it writes into the host tier */
    moe_host_tier_close(&t->host);
    slot_uses_close(&t->uses);
    free(t->transfers);
    free(t->items);
    free(t);
}

struct slot_uses *tiers_slot_uses(struct tiers *t)
{
    return &t->uses;
}

/* ---- The channel ---- */

static int submit(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                  float score, uint32_t *handle, struct moe_err *err)
{
    struct cached *c = ctx;
    struct tiers *t = c->tiers;
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    uint32_t tag = slot * MOE_PACK_MAX_SEGMENTS + segment;
    uint32_t key = moe_host_tier_key(&t->host, s->layer, s->expert, s->variant);
    if (segment == 0) {
        uint32_t place = moe_host_places_find(&t->host.places, key);
        bool hit = place != MOE_NO_PLACE && moe_host_tier_complete(&t->host, place);
        c->phase->host_hits += hit;
        c->phase->disk_loads += !hit;
        cached_loading(c, slot);
    }
    t->transfers[tag] = (struct transfer){
        .state = TRANSFER_WAITING, .key = key, .priority = priority, .score = score};
    *handle = tag;
    moe_link_add(&t->waiting, tag, 1, priority, score);
    t->stirred = true;
    transfers_go_on(t);
    return MOE_OK; /* a load that its loader refuses is reported as failed */
}

static void promote(void *ctx, uint32_t handle)
{
    struct cached *c = ctx;
    struct transfer *x = &c->tiers->transfers[handle];
    x->priority = MOE_LOAD_DEMAND;
    x->score = 0;
    if (x->state == TRANSFER_WAITING)
        moe_link_promote(&c->tiers->waiting, handle, MOE_LOAD_DEMAND, 0);
    else if (x->state == TRANSFER_READING)
        moe_loader_promote(c->tiers->disk, x->handle, MOE_LOAD_DEMAND, 0);
    else if (x->state == TRANSFER_COPYING)
        moe_loader_promote(c->loader, x->handle, MOE_LOAD_DEMAND, 0);
}

static bool cancel(void *ctx, uint32_t handle)
{
    struct cached *c = ctx;
    struct tiers *t = c->tiers;
    struct transfer *x = &t->transfers[handle];
    switch (x->state) {
    case TRANSFER_NONE:
        return true;
    case TRANSFER_FAILED:
        return false;
    case TRANSFER_WAITING:
        moe_link_drop(&t->waiting, handle);
        break;
    case TRANSFER_READING:
        if (!moe_loader_cancel(t->disk, x->handle))
            return false;
        t->n_reading--;
        t->host.places.places[x->place].loading &= ~(1u << handle % MOE_PACK_MAX_SEGMENTS);
        transfers_release_place(t, x);
        break;
    case TRANSFER_COPYING:
        if (!moe_loader_cancel(c->loader, x->handle))
            return false;
        t->n_copying--;
        transfers_release_place(t, x);
        break;
    }
    x->state = TRANSFER_NONE;
    return true;
}

static uint32_t reap(void *ctx, bool wait, struct moe_arrival *arrivals, uint32_t max)
{
    struct cached *c = ctx;
    max = max < TIERS_AT_ONCE ? max : TIERS_AT_ONCE;
    if (!wait)
        return transfers_poll(c->tiers, arrivals, max);
    const struct cached_stall stall = cached_stall_begin(c);
    uint32_t n = transfers_wait(c->tiers, arrivals, max);
    cached_stall_end(c, &stall);
    return n;
}

struct moe_channel tiers_channel(struct cached *c)
{
    return (struct moe_channel){c, submit, promote, cancel, reap, cached_loaded, cached_failure};
}

/* ---- Views and counters ---- */

void tiers_host_view(const struct tiers *t, struct moe_expert_view *view)
{
    const struct moe_expert_extent *x =
        moe_pack_expert(t->c->pack, view->layer, view->expert, view->variant);
    const struct moe_expert_class *class_ = moe_pack_class_at(t->c->pack, x->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    uint32_t key =
        moe_host_tier_key(&t->host, t->c->moe_layer[view->layer], view->expert, view->variant);
    uint32_t place = moe_host_places_find(&t->host.places, key);
    for (uint32_t i = 0; i < class_->n_segments; i++)
        segments[i] = moe_host_tier_at(&t->host, place, i);
    moe_expert_view_set(view, class_, segments);
}

void tiers_count_traffic(struct tiers *t)
{
    struct moe_phase_stats *phase = t->c->phase;
    if (!t->disk)
        return;
    const struct moe_loader_stats *now = moe_loader_stats(t->disk);
    phase->bytes_read += now->bytes_read - t->seen.bytes_read;
    phase->experts.prefetch_wasted_bytes += now->cancelled_bytes - t->seen.cancelled_bytes;
    phase->read_seconds += now->read_seconds - t->seen.read_seconds;
    phase->handling_seconds += now->work_seconds - t->seen.work_seconds;
    t->seen = *now;
}
