/*
 * Bitwidths of experts as people write them: "4", or "4d8" where the down projection has others
 * than gate and up.
 */
#ifndef MOE_QUANT_BITS_H
#define MOE_QUANT_BITS_H

#include <stdbool.h>

/* Bits of gate and up, bits of down ("4d8": 4 and 8). Zeros: each expert has bits of its own. */
struct moe_bits {
    int gate_up, down;
};

/* What the variant is called in which every expert has bits of its own. */
#define MOE_MAP_VARIANT "map"

/* "16", "8", "4d8"; bits are 32, 16, 8, 4, 3, 2. False for anything else. */
bool moe_parse_bits(const char *text, struct moe_bits *out);
/* "4d8" or "4" into out; of zeros MOE_MAP_VARIANT. */
void moe_format_bits(struct moe_bits bits, char out[16]);
/* Orders bitwidths: of gate, up and down, which are of one size, all together. */
static inline int moe_bits_sum(struct moe_bits bits)
{
    return 2 * bits.gate_up + bits.down;
}

#endif
