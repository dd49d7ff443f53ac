/*
 * Bitwidths of experts. Command lines and files spell them "4", or "4d8" where the down projection
 * has other bits than gate and up. They are parsed where they are read and passed on as struct
 * moe_bits; a layout (layout.h) says how a matrix is stored.
 */
#ifndef MOE_QUANT_BITS_H
#define MOE_QUANT_BITS_H

#include <stdbool.h>

/* Bits of gate and up, bits of down ("4d8": 4 and 8). Zeros: a map sets the bits of each expert. */
struct moe_bits {
    int gate_up, down;
};

/* The variant whose experts each have their own bits. */
#define MOE_MAP_VARIANT "map"

/* Parses "16", "8", "4d8"; bits are 32, 16, 8, 6, 5, 4, 3, 2, 1. False for anything else. */
bool moe_parse_bits(const char *text, struct moe_bits *out);
/* Parses a variant's name; MOE_MAP_VARIANT gives zeros. */
bool moe_parse_variant(const char *name, struct moe_bits *out);
/* Writes "4d8" or "4"; for zeros MOE_MAP_VARIANT. */
void moe_format_bits(struct moe_bits bits, char out[16]);
static inline bool moe_bits_equal(struct moe_bits a, struct moe_bits b)
{
    return a.gate_up == b.gate_up && a.down == b.down;
}

/* Orders bitwidths by the sum over an expert's matrices, all of one size: gate (where it has one),
 * up and down. */
static inline int moe_bits_sum(struct moe_bits bits, bool has_gate)
{
    return (has_gate ? 2 : 1) * bits.gate_up + bits.down;
}

#endif
