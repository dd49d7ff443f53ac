/*
 * The bitwidths of a pack's experts.
 */
#ifndef MOE_PACK_PACK_BITS_H
#define MOE_PACK_PACK_BITS_H

#include "pack/pack.h"
#include "quant/bits.h"

/* The bits of an expert that is stored as this class says; false: it has other matrices than gate,
 * up and down. */
bool moe_class_bits(const struct moe_expert_class *class_, struct moe_bits *out);

/* Whether experts that are stored so have a gate beside up and down. */
bool moe_class_has_gate(const struct moe_expert_class *class_);

/* The bits that a variant is named after, zeros for a map's; false: its name is no bitwidth. */
bool moe_variant_bits(const struct moe_pack_variant *variant, struct moe_bits *out);

#endif
