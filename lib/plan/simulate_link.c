#include "plan/simulate_link.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- What lies behind ---- */

static uint32_t low_of(const struct moe_scheduler_options *o)
{
    return o->strategy->needs_low ? o->low : o->high;
}

/* The places hold what the host tier would be filled with. */
static int fill_places(struct simulate_link *l, const struct moe_scheduler_options *o,
                       struct moe_err *err)
{
    const struct moe_inventory *inv = l->inventory;
    struct moe_host_wish *wishes =
        moe_alloc(2 * (uint64_t)inv->n_layers * inv->n_experts, sizeof *wishes, err);
    if (!wishes)
        return MOE_ERR_MEMORY;
    uint32_t n = moe_host_places_assign(&l->places, inv, o->high, low_of(o), o->frequency, wishes);
    for (uint32_t i = 0; i < n; i++) {
        struct moe_host_place *x = &l->places.places[l->places.of_key[wishes[i].key]];
        x->arrived = (1u << inv->classes[x->class_index].n_segments) - 1;
    }
    moe_host_places_settle(&l->places, wishes, n);
    free(wishes);
    return MOE_OK;
}

static int open_tiers(struct simulate_link *l, const struct moe_simulation *in, struct moe_err *err)
{
    const struct moe_scheduler_options *o = &in->scheduler;
    const struct moe_inventory *inv = l->inventory;
    struct moe_host_sizes sizes;
    moe_host_sizes_of(&sizes, inv, o->pools, o->high, low_of(o), in->host_bytes);
    if (sizes.whole)
        return MOE_OK;
    l->tiers = true;
    l->storage_items = moe_alloc(l->n_items, sizeof *l->storage_items, err);
    l->waiting_items = moe_alloc(l->n_items, sizeof *l->waiting_items, err);
    int status = moe_host_places_open(&l->places, inv->n_layers * inv->n_experts * inv->n_variants,
                                      sizes.n, inv->n_classes, err);
    if (status == MOE_OK && (!l->storage_items || !l->waiting_items))
        status = MOE_ERR_MEMORY;
    if (status != MOE_OK)
        return status;
    moe_link_init(&l->storage, l->storage_items, l->n_items, l->link.piece_bytes,
                  in->pace->storage_rate);
    l->storage.costs.piece = in->pace->storage_piece_seconds;
    /* A device computes: loads take nothing of its time. Both links then have one clock. */
    l->link.costs =
        (struct moe_link_costs){.piece = in->pace->loads.piece, .latency = in->pace->loads.latency};
    moe_link_init(&l->waiting, l->waiting_items, l->n_items, MOE_LINK_PIECE_BYTES, 0);
    return fill_places(l, o, err);
}

/* ---- Opening ---- */

int simulate_link_open(struct simulate_link *l, const struct moe_simulation *in,
                       struct moe_err *err)
{
    l->inventory = in->scheduler.inventory;
    l->n_items = in->scheduler.pools->n_slots * MOE_PACK_MAX_SEGMENTS;
    if (in->scheduler.n_requests && l->n_items > in->scheduler.n_requests)
        l->n_items = in->scheduler.n_requests;
    l->items = moe_alloc(l->n_items, sizeof *l->items, err);
    l->cargo = moe_alloc(l->n_items, sizeof *l->cargo, err);
    l->free_items = moe_alloc(l->n_items, sizeof *l->free_items, err);
    if (!l->items || !l->cargo || !l->free_items)
        return MOE_ERR_MEMORY;
    while (l->n_free < l->n_items) {
        l->free_items[l->n_free] = l->n_items - 1 - l->n_free;
        l->n_free++;
    }
    moe_link_init(&l->link, l->items, l->n_items,
                  in->piece_bytes ? in->piece_bytes : MOE_LINK_PIECE_BYTES, in->pace->load_rate);
    l->link.costs = moe_strategy_loads(in->scheduler.strategy, in->pace->loads);
    return in->pace->storage_rate > 0 ? open_tiers(l, in, err) : MOE_OK;
}

void simulate_link_close(struct simulate_link *l)
{
    free(l->items);
    free(l->cargo);
    free(l->free_items);
    free(l->storage_items);
    free(l->waiting_items);
    moe_host_places_close(&l->places);
}

/* ---- From storage, through places, as experts_transfers.c ---- */

static void release_place(struct simulate_link *l, uint32_t item)
{
    moe_host_places_unpin(&l->places, l->cargo[item].place);
    l->stirred = true;
}

static void load(struct simulate_link *l, uint32_t item)
{
    struct simulate_cargo *x = &l->cargo[item];
    x->state = CARGO_LOADING;
    moe_link_add(&l->link, item, x->bytes, x->priority, x->score);
}

/* Starts what waits for a place, if that is possible. */
static void go_on(struct simulate_link *l, uint32_t item)
{
    struct simulate_cargo *x = &l->cargo[item];
    uint32_t bit = 1u << x->segment, place = moe_host_places_find(&l->places, x->key);
    if (place == MOE_NO_PLACE)
        place = moe_host_places_take(&l->places, moe_store_slot(l->store, x->slot)->class_index,
                                     x->key);
    if (place == MOE_NO_PLACE || l->places.places[place].loading & bit)
        return;
    moe_link_drop(&l->waiting, item);
    moe_host_places_pin(&l->places, place);
    x->place = place;
    if (l->places.places[place].arrived & bit) {
        load(l, item);
        return;
    }
    x->state = CARGO_READING;
    l->places.places[place].loading |= bit;
    x->phase->storage_bytes += x->bytes;
    moe_link_add(&l->storage, item, x->bytes, x->priority, x->score);
}

static void all_go_on(struct simulate_link *l)
{
    while (l->stirred) {
        l->stirred = false;
        for (uint32_t i = moe_link_first(&l->waiting), after; i != MOE_LINK_NONE; i = after) {
            after = moe_link_after(&l->waiting, i);
            go_on(l, i);
        }
    }
}

/* What has come from storage goes on. */
static void attend(struct simulate_link *l)
{
    uint32_t item;
    while ((item = moe_link_take_arrived(&l->storage)) != MOE_LINK_NONE) {
        struct moe_host_place *place = &l->places.places[l->cargo[item].place];
        place->loading &= ~(1u << l->cargo[item].segment);
        place->arrived |= 1u << l->cargo[item].segment;
        l->stirred = true;
        load(l, item);
    }
    all_go_on(l);
}

/* Advances both links to the end of the next piece from storage, or by `most`; returns how far. */
static double step(struct simulate_link *l, double most)
{
    double seconds = fmin(moe_link_next_piece(&l->storage), most);
    moe_link_advance(&l->storage, seconds);
    moe_link_advance(&l->link, seconds);
    return seconds;
}

void simulate_link_advance(struct simulate_link *l, double seconds)
{
    if (!l->tiers) {
        moe_link_advance(&l->link, seconds);
        return;
    }
    while (seconds > 0) {
        seconds -= step(l, seconds);
        attend(l);
    }
}

/* Until something arrives in a slot, or nothing is under way. */
static void wait_for_arrival(struct simulate_link *l)
{
    if (!l->tiers) {
        moe_link_wait(&l->link);
        return;
    }
    attend(l);
    for (double next; (next = moe_link_next_piece(&l->link)) > 0; attend(l)) {
        if (isinf(next) && isinf(moe_link_next_piece(&l->storage)))
            return;
        step(l, next);
    }
}

/* ---- The channel ---- */

static int submit(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                  float score, uint32_t *handle, struct moe_err *err)
{
    struct simulate_link *l = ctx;
    const struct moe_slot *x = moe_store_slot(l->store, slot);
    if (l->n_free == 0)
        return moe_fail(err, MOE_ERR_LIMIT, "more loads under way than there is room for");
    uint32_t item = l->free_items[--l->n_free];
    uint64_t bytes =
        moe_inventory_load_bytes(l->inventory, x->layer, x->expert, x->variant, segment);
    l->cargo[item] = (struct simulate_cargo){
        .slot = slot,
        .segment = segment,
        .phase = l->phase,
        .bytes = bytes,
        .priority = priority,
        .score = score,
        .key = moe_host_key(l->inventory, x->layer, x->expert, x->variant),
    };
    l->phase->bytes += bytes;
    *handle = item;
    if (!l->tiers) {
        load(l, item);
        return MOE_OK;
    }
    if (segment == 0) {
        uint32_t place = moe_host_places_find(&l->places, l->cargo[item].key);
        const struct moe_size_class *c = &l->inventory->classes[x->class_index];
        bool hit =
            place != MOE_NO_PLACE && l->places.places[place].arrived == (1u << c->n_segments) - 1;
        l->phase->host_hits += hit;
        l->phase->disk_loads += !hit;
    }
    l->cargo[item].state = CARGO_WAITING;
    moe_link_add(&l->waiting, item, 1, priority, score);
    l->stirred = true;
    all_go_on(l);
    return MOE_OK;
}

static void promote(void *ctx, uint32_t handle)
{
    struct simulate_link *l = ctx;
    struct simulate_cargo *x = &l->cargo[handle];
    x->priority = MOE_LOAD_DEMAND;
    x->score = 0;
    moe_link_promote(x->state == CARGO_WAITING   ? &l->waiting
                     : x->state == CARGO_READING ? &l->storage
                                                 : &l->link,
                     handle, MOE_LOAD_DEMAND, 0);
}

/* The bytes not moved yet are never moved. */
static bool cancel(void *ctx, uint32_t handle)
{
    struct simulate_link *l = ctx;
    struct simulate_cargo *x = &l->cargo[handle];
    uint64_t moved = x->state == CARGO_LOADING ? l->items[handle].started : 0;
    if (x->state == CARGO_WAITING) {
        moe_link_drop(&l->waiting, handle);
    } else if (x->state == CARGO_READING) {
        uint64_t read = l->storage_items[handle].started;
        x->phase->storage_bytes -= x->bytes - read;
        x->phase->experts.prefetch_wasted_bytes += read;
        l->places.places[x->place].loading &= ~(1u << x->segment);
        moe_link_drop(&l->storage, handle);
    } else {
        moe_link_drop(&l->link, handle);
    }
    if (l->tiers && x->state != CARGO_WAITING)
        release_place(l, handle);
    x->phase->bytes -= x->bytes - moved;
    x->phase->experts.prefetch_wasted_bytes += moved;
    l->free_items[l->n_free++] = handle;
    return true;
}

static uint32_t reap(void *ctx, bool wait, struct moe_arrival *done, uint32_t max)
{
    struct simulate_link *l = ctx;
    uint32_t n = 0, item;
    if (l->tiers)
        attend(l);
    if (wait) {
        double before = l->link.clock, worked = l->link.worked_seconds;
        wait_for_arrival(l);
        l->stalled += l->link.clock - before - (l->link.worked_seconds - worked);
    }
    while (n < max && (item = moe_link_take_arrived(&l->link)) != MOE_LINK_NONE) {
        done[n++] = (struct moe_arrival){l->cargo[item].slot, l->cargo[item].segment, MOE_OK};
        l->free_items[l->n_free++] = item;
        if (l->tiers) {
            moe_host_places_copied(&l->places, l->cargo[item].place);
            release_place(l, item);
        }
    }
    if (l->tiers)
        all_go_on(l);
    return n;
}

/* Nothing fails on a modelled link. */
static int failure(void *ctx, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_IO, "a modelled load failed");
}

struct moe_channel simulate_link_channel(struct simulate_link *l)
{
    return (struct moe_channel){l, submit, promote, cancel, reap, NULL, failure};
}
