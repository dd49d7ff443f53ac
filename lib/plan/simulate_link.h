/*
 * The simulator's channel: segments of experts on a modelled link (cache/link.h). Internal to the
 * simulator.
 */
#ifndef MOE_PLAN_SIMULATE_LINK_H
#define MOE_PLAN_SIMULATE_LINK_H

#include "cache/link.h"
#include "plan/simulate.h"

/* A segment under way. */
struct simulate_cargo {
    uint32_t slot, segment;
    struct moe_simulated_phase *phase; /* which counted its bytes */
};

struct simulate_link {
    const struct moe_inventory *inventory;
    const struct moe_store *store;     /* set once there is one, before the first load */
    struct moe_simulated_phase *phase; /* which counts the bytes */
    struct moe_link link;
    struct moe_link_item *items;
    struct simulate_cargo *cargo; /* [n_items] */
    uint32_t *free_items, n_free, n_items;
    double stalled; /* seconds waited so far */
};

int simulate_link_open(struct simulate_link *l, const struct moe_simulation *in,
                       struct moe_err *err);
void simulate_link_close(struct simulate_link *l);
struct moe_channel simulate_link_channel(struct simulate_link *l);

#endif
