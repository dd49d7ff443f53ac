/*
 * Allocation: slots per layer and pool, and what they hold at the start. Pure.
 *
 * Sources: Fate 4.4 (cache_total, cache_deep, boundary L), DAOP IV-A (equal, remainder by
 * frequency), EdgeMoE III-C2 (initial contents).
 */
#ifndef MOE_SCHED_ALLOCATE_H
#define MOE_SCHED_ALLOCATE_H

#include <stdint.h>

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

#endif
