/*
 * Bitwidths of experts. Command lines and files spell them "4", or "4d8" where the down projection
 * has other bits than gate and up. In place of a bitwidth, which leaves the layout to the method, a
 * kind of layout that encoders know may stand: "iq4_xs", "q4_kd8". They are parsed where they are
 * read and passed on as struct moe_bits; a layout (layout.h) says how a matrix is stored.
 */
#ifndef MOE_QUANT_BITS_H
#define MOE_QUANT_BITS_H

#include <stdbool.h>
#include <stdint.h>

/* Bits of gate and up, bits of down ("4d8": 4 and 8). Zeros: a map sets the bits of each expert.
 * Numbers above MOE_BITS_KIND name a kind of layout. */
struct moe_bits {
    int gate_up, down;
};

enum {
    MOE_BITS_KIND = 256, /* beyond all bitwidths */
    MOE_BITS_BYTES = 24, /* as text; one bitwidth, or the name of a kind: */
    MOE_WIDTH_BYTES = 12,
    MOE_BITS_KINDS_BYTES = 160,
};

/* The kind of layout that is named; MOE_LAYOUT_NONE: a bitwidth is. */
static inline uint16_t moe_bits_kind(int bits)
{
    return (uint16_t)(bits > MOE_BITS_KIND ? bits - MOE_BITS_KIND : 0);
}

/* Whether a kind can be asked for by its name: those of blocks.h and of trellis.h. */
bool moe_bits_names(uint16_t kind);
/* Writes all of these, "q8_0, q2_k, q3_k, ...". Returns `out`. */
char *moe_format_bits_kinds(char out[MOE_BITS_KINDS_BYTES]);
/* The bitwidth: that of the kind's codes where one is named. */
int moe_bits_width(int bits);
/* Whether codes of this kind have the bitwidth, or are of the kind that is named. */
bool moe_bits_match(int bits, uint16_t kind);

/* The variant whose experts each have their own bits. */
#define MOE_MAP_VARIANT "map"

/* Parses "16", "8", "4d8"; bits are 32, 16, 8, 6, 5, 4, 3, 2, 1 or a kind that is encoded
 * (moe_bits_names). False for anything else. */
bool moe_parse_bits(const char *text, struct moe_bits *out);
/* Parses a variant's name; MOE_MAP_VARIANT gives zeros. */
bool moe_parse_variant(const char *name, struct moe_bits *out);
/* One bitwidth, or the name of a kind; returns 0 for anything else. */
int moe_parse_width(const char *text);
char *moe_format_width(int bits, char out[MOE_WIDTH_BYTES]); /* returns `out` */
/* What a text says after a variant's name, or the last of a list with commas: " bits", " bit", or
 * nothing where a type is in it. */
const char *moe_bits_unit(const char *name);
/* Whether codes of a variant of that name have this bitwidth, gate, up and down: "4", "iq4_xs". */
bool moe_bits_are(const char *name, int width);
/* Writes "4d8" or "4"; for zeros MOE_MAP_VARIANT. */
void moe_format_bits(struct moe_bits bits, char out[MOE_BITS_BYTES]);
static inline bool moe_bits_equal(struct moe_bits a, struct moe_bits b)
{
    return a.gate_up == b.gate_up && a.down == b.down;
}

/* Orders bitwidths by the sum over an expert's matrices, all of one size: gate (where it has one),
 * up and down. */
static inline int moe_bits_sum(struct moe_bits bits, bool has_gate)
{
    return (has_gate ? 2 : 1) * moe_bits_width(bits.gate_up) + moe_bits_width(bits.down);
}

#endif
