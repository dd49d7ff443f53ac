/* Which rank has which experts or layers, and which of those that have one computes it. Pure. */
#ifndef MOE_RANKS_SHARE_H
#define MOE_RANKS_SHARE_H

#include "sched/inventory.h"
#include "sched/layer_request.h"

enum { MOE_NO_RANK = 255 };

/* The ranks that have an expert: [MOE_HOLDERS] for each, its owner and a second one or MOE_NO_RANK.
 */
enum { MOE_HOLDERS = 2 };

static inline bool moe_rank_holds(const uint8_t *holders, uint64_t key, uint8_t rank)
{
    return holders[MOE_HOLDERS * key] == rank || holders[MOE_HOLDERS * key + 1] == rank;
}

/* Gives each expert to one of n_ranks <= MOE_MAX_RANKS: holders[n_keys][MOE_HOLDERS], MOE_NO_RANK
 * where a key is no expert's. room:
 * [n_ranks] bytes of memory that each has for experts. Where all experts fit, ranks get equal
 * parts, as far as each has room; else parts in proportion to their room. Within these, each
 * layer's work is spread: its experts, the most frequent first, go to the rank that has least of
 * the layer so far. frequency: [n_keys] uses of each expert; NULL: all alike, and no expert has a
 * second rank. Otherwise, where all fit, the most frequent half of the experts get one, as far as
 * there is room. MOE_ERR_MEMORY. */
int moe_share_experts(const struct moe_inventory *inventory, const uint64_t *room, uint32_t n_ranks,
                      const uint64_t *frequency, uint8_t *holders, struct moe_err *err);

/* Gives whole layers to the ranks, to each at least one and those that follow each other: owners,
 * [n_layers] of the model; experts are their layers' owner's, those of layers that draft rank 0's.
 * bytes: [n_layers] of each, without its experts; parts: [n_layers] whether a rank's layers can
 * begin with it, true for n_ranks - 1 of them at least, the first not counted; room: [n_ranks].
 * Where all fit, ranks get equal parts, as far as each has room; else parts in proportion to that.
 * MOE_ERR_MEMORY. */
int moe_share_layers(const struct moe_inventory *inventory, const uint64_t *bytes,
                     const bool *parts, uint32_t n_layers, const uint64_t *room, uint32_t n_ranks,
                     uint8_t *owners, uint8_t *holders, struct moe_err *err);

/* Sets request->ranks: which holder computes each entry. Every rank comes to the same: entries that
 * only one rank has are counted first, each of the others goes to the holder with less to do.
 * holders: of the layer, [n_experts][MOE_HOLDERS]. */
void moe_share_request(struct moe_layer_request *request, const uint8_t *holders);

#endif
