#include "plan/simulate_link.h"

#include <stdlib.h>

#include "base/mem.h"

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
    l->link.costs = in->pace->loads;
    return MOE_OK;
}

void simulate_link_close(struct simulate_link *l)
{
    free(l->items);
    free(l->cargo);
    free(l->free_items);
}

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
    l->cargo[item] = (struct simulate_cargo){slot, segment, l->phase};
    moe_link_add(&l->link, item, bytes, priority, score);
    l->phase->bytes += bytes;
    *handle = item;
    return MOE_OK;
}

static void promote(void *ctx, uint32_t handle)
{
    moe_link_promote(&((struct simulate_link *)ctx)->link, handle, MOE_LOAD_DEMAND, 0);
}

/* The bytes not moved yet are never moved. */
static bool cancel(void *ctx, uint32_t handle)
{
    struct simulate_link *l = ctx;
    const struct moe_link_item *x = &l->link.items[handle];
    l->cargo[handle].phase->bytes -= x->bytes - x->started;
    l->phase->experts.prefetch_wasted_bytes += x->started;
    moe_link_drop(&l->link, handle);
    l->free_items[l->n_free++] = handle;
    return true;
}

static uint32_t reap(void *ctx, bool wait, struct moe_arrival *done, uint32_t max)
{
    struct simulate_link *l = ctx;
    uint32_t n = 0, item;
    if (wait) {
        double before = l->link.clock, worked = l->link.worked_seconds;
        double passed = moe_link_wait(&l->link) - before;
        l->stalled += passed - (l->link.worked_seconds - worked);
    }
    while (n < max && (item = moe_link_take_arrived(&l->link)) != MOE_LINK_NONE) {
        done[n++] = (struct moe_arrival){l->cargo[item].slot, l->cargo[item].segment, MOE_OK};
        l->free_items[l->n_free++] = item;
    }
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
