/*
 * Places of experts in host memory before they go to a GPU: how many there are, which experts they
 * hold at first, which expert is where, which one is evicted, and what the next step of a segment
 * on its way through them is. Pure bookkeeping, without the bytes: the tiers of a GPU
 * (infer/experts_tiers.h) and the simulator (plan/simulate.c) keep theirs by the same code.
 *
 * A place has room for one expert of its size class. What comes from disk takes the place that was
 * least recently copied to the GPU, of those that are not being read or written: an expert that is
 * cached on the GPU is not requested again, so the places come to hold what the GPU lacks.
 */
#ifndef MOE_SCHED_HOST_PLACES_H
#define MOE_SCHED_HOST_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/link.h"
#include "sched/inventory.h"

enum { MOE_NO_PLACE = UINT32_MAX, MOE_PLACE_EMPTY = UINT32_MAX };

struct moe_host_place {
    uint32_t class_index;
    uint32_t copy;             /* of an expert (cache/store.h), or MOE_PLACE_EMPTY */
    uint32_t pins;             /* transfers that read or write it */
    uint32_t arrived, loading; /* bit per segment: what is there, what is being written */
    uint32_t older, newer;     /* private: by when it was copied, in its class */
};

struct moe_host_places {
    struct moe_host_place *places; /* those of one class follow each other */
    uint32_t n_places, n_copies;
    uint32_t *of_copy; /* [n_copies] */
    struct {
        uint32_t oldest, newest;
    } classes[MOE_MAX_CLASSES];
};

/* ---- How many, and for which experts ---- */

/* The variant of an expert that is loaded at low precision; UINT32_MAX: it is loaded only at
 * `high`. */
uint32_t moe_expert_low_variant(const struct moe_inventory *inventory, uint32_t key, uint32_t high,
                                uint32_t low);

struct moe_host_sizes {
    uint32_t n[MOE_MAX_CLASSES];     /* places of each class */
    uint64_t bytes;                  /* of all places */
    uint64_t least_bytes, all_bytes; /* of as few as it works with; of all experts in use */
    bool whole;                      /* the places are all */
};

/* The places that `room` bytes give behind the slots of `pools`: as many of each class as it has
 * working slots, even where that is more; the rest in proportion to the experts' bytes. low: high
 * where the strategy takes no other. */
void moe_host_sizes_of(struct moe_host_sizes *out, const struct moe_inventory *inventory,
                       const struct moe_pools *pools, uint32_t high, uint32_t low, uint64_t room);

struct moe_host_wish {
    uint64_t frequency;
    uint32_t turn, copy;
};

/* ---- Places ---- */

/* n_in: places of each of n_classes; none holds anything. MOE_ERR_MEMORY. Closed also after that.
 */
int moe_host_places_open(struct moe_host_places *p, uint32_t n_copies, const uint32_t *n_in,
                         uint32_t n_classes, struct moe_err *err);
void moe_host_places_close(struct moe_host_places *p);

/* The place that holds the expert or will; MOE_NO_PLACE. */
uint32_t moe_host_places_find(const struct moe_host_places *p, uint32_t copy);
/* Whether a place holds all segments of the expert. */
bool moe_host_places_complete(const struct moe_host_places *p,
                              const struct moe_inventory *inventory, uint32_t copy);
/* A place for an expert that has none: an empty one, or that of an evicted one. MOE_NO_PLACE while
 * all of its class are pinned. */
uint32_t moe_host_places_take(struct moe_host_places *p, uint32_t class_index, uint32_t copy);

/* Takes and pins places for experts at `high`, then at `low` where the strategy takes that, as far
 * as there are places: by falling frequency ([layer][expert]; NULL: the first of every layer, the
 * second of every layer and so on). All places are empty. wishes: room for 2 x layers x experts;
 * returns how many got a place, these first in their order. */
uint32_t moe_host_places_assign(struct moe_host_places *p, const struct moe_inventory *inventory,
                                uint32_t high, uint32_t low, const uint64_t *frequency,
                                struct moe_host_wish *wishes);
/* They have arrived: unpins them, so that the most wanted are evicted last. */
void moe_host_places_settle(struct moe_host_places *p, const struct moe_host_wish *wishes,
                            uint32_t n);

void moe_host_places_pin(struct moe_host_places *p, uint32_t place);
/* A place without pins in which nothing has arrived is empty again. */
void moe_host_places_unpin(struct moe_host_places *p, uint32_t place);
/* Its expert was copied to the GPU just now. */
void moe_host_places_copied(struct moe_host_places *p, uint32_t place);

/* ---- Transfers: from storage into places, from there into slots ----
 * A segment that its place holds is copied to its slot; any other is read into a place first. While
 * transfers take all places, the most urgent one that waits gets the first that becomes free. */

struct moe_transfer {
    enum {
        MOE_TRANSFER_NONE = 0,
        MOE_TRANSFER_WAITING, /* for a place, or for another transfer that reads the same */
        MOE_TRANSFER_READING,
        MOE_TRANSFER_COPYING,
        MOE_TRANSFER_FAILED, /* until its owner has reported it and sets it to NONE */
    } state;
    uint32_t copy, segment, place;
    enum moe_load_priority priority;
    float score;
};

/* What moves the bytes. */
struct moe_transfer_ops {
    /* Begins to read a segment into its place, or to copy it from there to its slot, at the
     * transfer's urgency. False: refused, and noted by the owner as failed. */
    bool (*read)(void *ctx, uint32_t transfer);
    bool (*copy)(void *ctx, uint32_t transfer);
    /* Takes back what was begun. False: too late, it will end. */
    bool (*drop)(void *ctx, uint32_t transfer);
    /* What was begun has become a demand. */
    void (*promote)(void *ctx, uint32_t transfer);
};

struct moe_transfers {
    const struct moe_transfer_ops *ops; /* these four are the owner's */
    void *ctx;
    const struct moe_inventory *inventory;
    struct moe_host_places *places;
    struct moe_transfer *transfers; /* [n] numbered by the owner */
    struct moe_link waiting;        /* orders those that wait */
    struct moe_link_item *items;
    bool stirred; /* something ended: what waits may start */
};

/* Room for n transfers. MOE_ERR_MEMORY; closed also after that. */
int moe_transfers_open(struct moe_transfers *t, uint32_t n, struct moe_err *err);
void moe_transfers_close(struct moe_transfers *t);

/* Begins one that is NONE, or lets it wait. */
void moe_transfers_add(struct moe_transfers *t, uint32_t transfer, uint32_t copy, uint32_t segment,
                       enum moe_load_priority priority, float score);
/* Begins what waits as far as possible, the most urgent first. */
void moe_transfers_go_on(struct moe_transfers *t);
/* It has become a demand. */
void moe_transfers_promote(struct moe_transfers *t, uint32_t transfer);
/* True: it is over; false: it will be reported. */
bool moe_transfers_cancel(struct moe_transfers *t, uint32_t transfer);
/* What was read is copied next, unless reading failed. */
void moe_transfers_read(struct moe_transfers *t, uint32_t transfer, bool ok);
/* It is over. */
void moe_transfers_copied(struct moe_transfers *t, uint32_t transfer, bool ok);

#endif
