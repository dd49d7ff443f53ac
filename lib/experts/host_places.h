/*
 * Places of experts in host memory before they go to a GPU: which expert is where, and which one
 * is evicted. Pure bookkeeping, without the bytes.
 *
 * A place has room for one expert of its size class. What comes from disk takes the place that was
 * least recently copied to the GPU, of those that are not being read or written: an expert that is
 * cached on the GPU is not requested again, so the places come to hold what the GPU lacks.
 */
#ifndef MOE_EXPERTS_HOST_PLACES_H
#define MOE_EXPERTS_HOST_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sched/inventory.h"

enum { MOE_NO_PLACE = UINT32_MAX, MOE_PLACE_EMPTY = UINT32_MAX };

struct moe_host_place {
    uint32_t class_index;
    uint32_t key;  /* of an expert at a variant, as the owner numbers them; MOE_PLACE_EMPTY */
    uint32_t pins; /* transfers that read or write it */
    uint32_t arrived, loading; /* bit per segment: what is there, what is being written */
    uint32_t older, newer;     /* private: by when it was copied, in its class */
};

struct moe_host_places {
    struct moe_host_place *places; /* those of one class follow each other */
    uint32_t n_places, n_keys;
    uint32_t *of_key; /* [n_keys] */
    struct {
        uint32_t oldest, newest;
    } classes[MOE_MAX_CLASSES];
};

/* n_in: places of each of n_classes; none holds anything. MOE_ERR_MEMORY. Closed also after that.
 */
int moe_host_places_open(struct moe_host_places *p, uint32_t n_keys, const uint32_t *n_in,
                         uint32_t n_classes, struct moe_err *err);
void moe_host_places_close(struct moe_host_places *p);

/* The place that holds the expert or will; MOE_NO_PLACE. */
uint32_t moe_host_places_find(const struct moe_host_places *p, uint32_t key);
/* A place for an expert that has none: an empty one, or that of an evicted one. MOE_NO_PLACE while
 * all of its class are pinned. */
uint32_t moe_host_places_take(struct moe_host_places *p, uint32_t class_index, uint32_t key);

void moe_host_places_pin(struct moe_host_places *p, uint32_t place);
/* A place without pins in which nothing has arrived is empty again. */
void moe_host_places_unpin(struct moe_host_places *p, uint32_t place);
/* Its expert was copied to the GPU just now. */
void moe_host_places_copied(struct moe_host_places *p, uint32_t place);

#endif
