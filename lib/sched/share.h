/* Which rank has which experts. Pure. */
#ifndef MOE_RANKS_SHARE_H
#define MOE_RANKS_SHARE_H

#include "sched/inventory.h"

/* Gives each expert to one of n_ranks <= MOE_MAX_RANKS: owner[key] is its rank. room: [n_ranks]
 * bytes of memory that each has for experts. Where all experts fit, ranks get equal parts, as far
 * as each has room; else parts in proportion to their room. Within these, each layer's work is
 * spread: its experts, the most frequent first, go to the rank that has least of the layer so far.
 * frequency: [n_keys] uses of each expert; NULL: all alike. MOE_ERR_MEMORY. */
int moe_share_experts(const struct moe_inventory *inventory, const uint64_t *room, uint32_t n_ranks,
                      const uint64_t *frequency, uint8_t *owner, struct moe_err *err);

#endif
