/*
 * Allocation: slots per layer and pool, and what they hold at the start. Pure.
 *
 * Sources: Fate 4.4 (cache_total, cache_deep, boundary L), DAOP IV-A (equal, remainder by
 * frequency), EdgeMoE III-C2 (initial contents).
 */
#ifndef MOE_SCHED_PLACEMENT_H
#define MOE_SCHED_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h" /* MOE_MAX_TOP_K */
#include "sched/inventory.h"
#include "sched/strategy.h"

/* Divides n_slots among n_layers of n_experts each; no layer gets more than it has experts. The
 * first n_encoder layers are an encoder's, each of whose experts loads once for a source: they get
 * equal parts of what the decoder's layers, which the rest is about, have no experts for.
 * `shallow`: layers 0..boundary-1 are filled one after the other, the rest is divided equally among
 * the others, the first of them taking the remainder (Fate 4.4). `frequency`: equal parts; the
 * remainder goes, one slot each, to the layers whose best expert without a slot is the most
 * frequent, the first among equals (DAOP IV-A). frequencies: [n_layers][n_experts], needed for
 * `frequency` only. per_layer: [n_layers], out. `global` is divided like per-layer (for pictures).
 */
void moe_allocate(enum moe_alloc alloc, uint32_t boundary, uint32_t n_slots, uint32_t n_layers,
                  uint32_t n_encoder, uint32_t n_experts, const uint64_t *frequencies,
                  uint32_t *per_layer);

/* The same of an inventory's layers, by the strategy's parts: slots of later visits are their
 * owner's, and what that has no experts for goes to the first layers that have. */
void moe_allocate_owners(const struct moe_strategy *strategy, const struct moe_inventory *inventory,
                         uint32_t n_slots, const uint64_t *frequencies, uint32_t *per_layer);

/* Which experts fill the cache before the first token, in the order in which they are loaded.
 * per_layer: slots of each layer [n_layers], or NULL: n_slots for all together. `frequency`: the
 * most frequent of each layer (or of all), by falling frequency over all layers, the lower key
 * first among equals; `layerwise`: layer by layer, in the order of their
 * ids, up to the slots; `encoder`: the first n_encoder layers so, then the others by frequency.
 * frequencies: [n_layers][n_experts], needed for `frequency` and `encoder`. keys:
 * [n_slots] layer * n_experts + expert, out, never more; order: scratch [n_layers * n_experts].
 * Returns how many. */
uint32_t moe_initial(enum moe_init init, const uint32_t *per_layer, uint32_t n_slots,
                     uint32_t n_layers, uint32_t n_encoder, uint32_t n_experts,
                     const uint64_t *frequencies, uint32_t *keys, uint32_t *order);

/*
 * Placement between a host and a device: which experts change places, which replace others.
 * Pure.
 *
 * Source: DAOP IV-B, algorithm 1, which sees a prompt whole; IV-C.
 */

#define MOE_SWAP_FACTOR 1.05 /* DAOP IV-B */

struct moe_swap {
    uint32_t in, out; /* expert that comes to the device, and the one that leaves for it */
};

/* Algorithm 1 for one layer: experts on the host by falling, those on the device by rising number
 * of rows (the lower number first among equals) are paired in order; a pair swaps where the host
 * expert's rows exceed the device expert's times the factor. rows: [n] of each expert; on_device:
 * [n], 0 or 1; swaps: room for n / 2; order: [n] scratch. Returns how many. */
uint32_t moe_swaps(const uint32_t *rows, const uint8_t *on_device, uint32_t n, double factor,
                   struct moe_swap *swaps, uint32_t *order);

/* The same over a prompt that comes in parts: the exchanges that lead from where experts are `now`
 * to where algorithm 1, by the rows of all parts so far, leads from where they were `before` the
 * prompt. After the last part they are where the whole prompt at once had put them. before, now:
 * [n]; rows, swaps and order as above, in the same order; target: [n] scratch. */
uint32_t moe_swaps_so_far(const uint32_t *rows, const uint8_t *before, const uint8_t *now,
                          uint32_t n, double factor, struct moe_swap *swaps, uint32_t *order,
                          uint8_t *target);

/* What DAOP computes in a decoded token's layer: the predicted best k with their weights. */
struct moe_predicted {
    uint32_t n;                      /* top_k, or 0: nothing was predicted */
    uint32_t substituted;            /* how many were replaced */
    uint32_t experts[MOE_MAX_TOP_K]; /* by falling score; a replacement takes the position of
                                        the expert it replaces */
    float scores[MOE_MAX_TOP_K];     /* predicted probability of each */
    bool on_host[MOE_MAX_TOP_K];
};

/* What becomes of the k experts that a layer is predicted to choose, out->experts on entry, falling
 * by probability. Of those on the host at most `replaces` are replaced, from the weakest up and
 * never the strongest, by the best expert on the device that is not chosen yet; once there is none,
 * the others stay as they were predicted. (DAOP describes two chosen experts, both on the host.
 * Without a limit this leaves one on the host for any k, as its rule does; with a limit of 1 it
 * replaces one, as its rule does.) probabilities: [n], negative of experts that replace nothing;
 * on_device: [n], 0 or 1; k <= n and <= MOE_MAX_TOP_K; barred: [n] scratch. */
void moe_predicted_choice(const float *probabilities, const uint8_t *on_device, uint32_t n,
                          uint32_t k, uint32_t replaces, struct moe_predicted *out,
                          uint32_t *barred);

/* Whether a layer computes the predicted experts, and not the k that its router chose: where one of
 * either is on the host. With all of them on the device nothing is gained by a prediction, as
 * nothing is computed early or waited for. (DAOP takes the prediction there too.) */
bool moe_predicted_pays(const struct moe_predicted *f, const uint32_t *chosen, uint32_t k,
                        const uint8_t *on_device);

/* How many of the predicted experts are not among the k that the router chose. */
uint32_t moe_predicted_others(const struct moe_predicted *f, const uint32_t *chosen, uint32_t k);

#endif
