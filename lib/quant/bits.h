/*
 * Bitwidths of experts. Command lines and files spell them: "4", or "4d8" where the down projection
 * has other bits than gate and up. They are parsed where they are read, and are a struct moe_bits
 * from there on, until a layout (layout.h) says how a matrix is stored.
 */
#ifndef MOE_QUANT_BITS_H
#define MOE_QUANT_BITS_H

#include <stdbool.h>

/* Bits of gate and up, bits of down ("4d8": 4 and 8). Zeros: each expert has bits of its own, as a
 * map says. */
struct moe_bits {
    int gate_up, down;
};

/* The name of the variant in which each expert has bits of its own. */
#define MOE_MAP_VARIANT "map"

/* "16", "8", "4d8"; bits are 32, 16, 8, 4, 3, 2. False for anything else. */
bool moe_parse_bits(const char *text, struct moe_bits *out);
/* The same of a variant's name, which may be MOE_MAP_VARIANT: zeros. */
bool moe_parse_variant(const char *name, struct moe_bits *out);
/* Writes "4d8" or "4", for zeros MOE_MAP_VARIANT. */
void moe_format_bits(struct moe_bits bits, char out[16]);
static inline bool moe_bits_equal(struct moe_bits a, struct moe_bits b)
{
    return a.gate_up == b.gate_up && a.down == b.down;
}

/* Orders bitwidths: the matrices of an expert, which are of one size, added up: gate, where there
 * is one, up and down. */
static inline int moe_bits_sum(struct moe_bits bits, bool has_gate)
{
    return (has_gate ? 2 : 1) * bits.gate_up + bits.down;
}

#endif
