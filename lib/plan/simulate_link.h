/*
 * The simulator's channel: segments of experts on a modelled link (cache/link.h), or on two in
 * series: from storage into places of the host's memory, and from there into a device's slots, as
 * experts/experts_tiers.h moves them. Internal to the simulator.
 */
#ifndef MOE_PLAN_SIMULATE_LINK_H
#define MOE_PLAN_SIMULATE_LINK_H

#include "cache/link.h"
#include "plan/simulate.h"
#include "sched/host_places.h"

/* A segment under way. */
struct simulate_cargo {
    uint32_t slot, segment;
    struct moe_simulated_phase *phase; /* which counted its bytes */
    uint64_t bytes;
    enum moe_load_priority priority;
    float score;
    enum {
        CARGO_LOADING = 0,
        CARGO_WAITING,
        CARGO_READING
    } state;             /* over the last link; before it */
    uint32_t key, place; /* of its expert */
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

    /* What lies behind: without it (tiers false) everything is where the link begins. */
    bool tiers;
    struct moe_host_places places;
    struct moe_link storage, waiting; /* the second orders what waits for a place */
    struct moe_link_item *storage_items, *waiting_items;
    bool stirred; /* something ended: what waits may start */
};

/* The scheduler's options have their pools. */
int simulate_link_open(struct simulate_link *l, const struct moe_simulation *in,
                       struct moe_err *err);
void simulate_link_close(struct simulate_link *l);
struct moe_channel simulate_link_channel(struct simulate_link *l);
/* Computation took `seconds`: loads went on meanwhile. */
void simulate_link_advance(struct simulate_link *l, double seconds);

#endif
