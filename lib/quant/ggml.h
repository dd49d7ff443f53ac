/*
 * Block types of ggml, as GGUF files store them: their sizes, their values, and which of them our
 * layouts can hold without a second rounding.
 *
 * A row of a tensor is a sequence of blocks; a block holds `items` consecutive values in `bytes`
 * bytes. Numbers and bit patterns are ggml's; values match the public gguf package (gguf.quants)
 * bit for bit, except MXFP4 blocks of exponent 255, which are NaN by their specification and not
 * finite here. Everything here is plain code on little-endian bytes.
 */
#ifndef MOE_QUANT_GGML_H
#define MOE_QUANT_GGML_H

#include <stdint.h>

#include "quant/quantize.h"

/* Type numbers as in files. Other types are known by size only. */
enum {
    MOE_GGML_F32 = 0,
    MOE_GGML_F16 = 1,
    MOE_GGML_Q4_0 = 2,
    MOE_GGML_Q4_1 = 3,
    MOE_GGML_Q5_0 = 6,
    MOE_GGML_Q5_1 = 7,
    MOE_GGML_Q8_0 = 8,
    MOE_GGML_Q2_K = 10,
    MOE_GGML_Q3_K = 11,
    MOE_GGML_Q4_K = 12,
    MOE_GGML_Q5_K = 13,
    MOE_GGML_Q6_K = 14,
    MOE_GGML_IQ4_NL = 20,
    MOE_GGML_BF16 = 30,
    MOE_GGML_MXFP4 = 39,
};

enum {
    MOE_GGML_GROUP = 32,           /* columns of a carried group */
    MOE_GGML_MAX_ITEMS = 256,      /* in a block of a type with a decoder */
    MOE_GGML_MAX_BLOCK_BYTES = 210 /* likewise */
};

struct moe_ggml_type {
    uint32_t number;
    const char *name;      /* "Q4_K" */
    uint32_t items, bytes; /* of a block */
    /* Decodes one block to `items` values; NULL: the type's values are not read. */
    void (*decode)(const uint8_t *block, float *out);
    /* Bits (4 or 8) of the narrowest affine layout that can hold this type's codes; 0: none. */
    int carry_bits;
};

/* The type of that number, or NULL. */
const struct moe_ggml_type *moe_ggml_find(uint32_t number);

/* Decodes n blocks to n * type->items values; the type has a decoder. `blocks` may lie in the last
 * bytes of out's memory, and is then overwritten. */
void moe_ggml_decode(const struct moe_ggml_type *type, const uint8_t *blocks, uint64_t n,
                     float *out);

/* ---- Carrying over ---- */

enum moe_ggml_carry {
    MOE_GGML_CARRY_NO,      /* f16 cannot hold d or m; *out has none then */
    MOE_GGML_CARRY_ROUNDED, /* the codes are the type's own, d or m had to be rounded to f16 */
    MOE_GGML_CARRY_EXACT,   /* every value is equal to the type's (a zero may change its sign) */
};

/*
 * Group `g` (of items / 32) of a block as codes, d and m of the affine layouts: w = d * q + m, 32
 * columns. The type has carry_bits, and codes fit into these. `codes` has room for 32; *out borrows
 * it.
 *
 * - Q4_1, Q5_1: their own q, d and m, always exact.
 * - Q8_0, Q4_0, Q5_0: m = -128 d, -8 d, -16 d. A power of two only raises d's exponent, so nothing
 *   is rounded, not even subnormal numbers. From |d| = 512, 8192, 4096 on m would overflow: NO.
 * - IQ4_NL: the values of its table are whole numbers of 8 bits: as Q8_0.
 * - MXFP4: 2 * e2m1 is a whole number: as Q8_0, with d = 2^(exponent - 128) where f16 has it
 *   (2^-24 .. 2^8), else NO. moe_ggml_mxfp4 carries any.
 * - Q4_K, Q5_K: scale and minimum of a group are products of an f16 and 6 bits: exact when these
 *   fit into f16, else rounded once, by at most 2^-12 of themselves (more where subnormal).
 */
enum moe_ggml_carry moe_ggml_group(const struct moe_ggml_type *type, const uint8_t *block,
                                   uint32_t g, uint8_t codes[MOE_GGML_GROUP],
                                   struct moe_group_codes *out);

/* Reads an MXFP4 block as 32 e2m1 codes (0 to 15, in column order) and the exponent byte e: a value
 * is e2m1(code) * 2^(e - 127). */
void moe_ggml_mxfp4(const uint8_t *block, uint8_t codes[MOE_GGML_GROUP], uint8_t *exponent);

/* Builds an MXFP4 block from the form in Hugging Face checkpoints: 16 bytes, byte i holding columns
 * 2i (low bits) and 2i + 1. `block` has 17 bytes. */
void moe_ggml_mxfp4_from_pairs(const uint8_t pairs[16], uint8_t exponent, uint8_t *block);

/* ---- Whole matrices ---- */

/* The fewest bits that keep the type's precision: its codes' width where a layout carries them, 4
 * for MXFP4, 8 for other block types (which adds some tenths of a percent), a float's own. */
int moe_ggml_bits(const struct moe_ggml_type *type);

/* The layout of `bits` bits that carries the type; kind MOE_LAYOUT_NONE where there is none. MXFP4
 * of 4 bits stays MXFP4. */
struct moe_layout moe_ggml_layout(const struct moe_ggml_type *type, int bits);

/* How a matrix's weights were encoded. */
struct moe_ggml_counts {
    uint64_t exact;   /* carried over as they are */
    uint64_t rounded; /* the codes carried over, scales rounded to f16 */
    uint64_t fitted;  /* quantized again: f16 cannot hold their scales */
};

/*
 * Encodes the blocks of `rows` rows of `cols` columns (whole blocks each) into `out`, zeroed memory
 * of moe_layout_bytes(layout, rows, cols); layout is that of moe_ggml_layout. Groups that cannot be
 * carried are fitted by the method. Uses all threads, with the same result for any number. Adds to
 * *error and *counts. MOE_ERR_FORMAT, naming row and column, for weights that are not finite or too
 * large for f16.
 */
int moe_ggml_encode_matrix(const struct moe_ggml_type *type, const struct moe_quant_method *method,
                           struct moe_layout layout, const uint8_t *blocks, uint32_t rows,
                           uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                           struct moe_ggml_counts *counts, struct moe_err *err);

#endif
