/*
 * Block types of ggml, as GGUF files store them: their sizes, their values, and the layouts that
 * hold them.
 *
 * A row of a tensor is a sequence of blocks; a block holds `items` consecutive values in `bytes`
 * bytes. Numbers and bit patterns are those of ggml, values those of the public gguf package
 * (gguf.quants), bit for bit, except for MXFP4 blocks of exponent 255: these are NaN by their
 * specification, and not finite here. Everything here is plain code on little-endian bytes. Formats
 * are those of ggml-common.h and ggml-quants.c of llama.cpp.
 */
#ifndef MOE_QUANT_GGML_H
#define MOE_QUANT_GGML_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/quantize.h"

/* Numbers as in files. Other types are known by size only. Those from MOE_GGML_OWN on are in no
 * file: blocks of this program's that safetensors are read into. */
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
    MOE_GGML_IQ2_XXS = 16,
    MOE_GGML_IQ2_XS = 17,
    MOE_GGML_IQ3_XXS = 18,
    MOE_GGML_IQ1_S = 19,
    MOE_GGML_IQ4_NL = 20,
    MOE_GGML_IQ3_S = 21,
    MOE_GGML_IQ2_S = 22,
    MOE_GGML_IQ4_XS = 23,
    MOE_GGML_IQ1_M = 29,
    MOE_GGML_BF16 = 30,
    MOE_GGML_TQ1_0 = 34,
    MOE_GGML_TQ2_0 = 35,
    MOE_GGML_MXFP4 = 39,
    MOE_GGML_NVFP4 = 40,
    MOE_GGML_Q1_0 = 41,
    MOE_GGML_Q2_0 = 42,
    /* of ik_llama.cpp */
    MOE_GGML_Q6_0 = 133,
    MOE_GGML_IQ2_K = 137,
    MOE_GGML_IQ3_K = 138,
    MOE_GGML_IQ4_K = 139,
    MOE_GGML_IQ5_K = 140,
    MOE_GGML_IQ6_K = 141,
    MOE_GGML_IQ4_KS = 144,
    MOE_GGML_IQ2_KS = 145,
    MOE_GGML_IQ4_KSS = 146,
    MOE_GGML_IQ5_KS = 152,
    MOE_GGML_IQ2_KT = 153,
    MOE_GGML_IQ3_KT = 154,
    MOE_GGML_IQ4_KT = 155,
    MOE_GGML_IQ3_KS = 156,
    MOE_GGML_IQ2_KL = 157,
    MOE_GGML_IQ1_KT = 158,
    MOE_GGML_OWN = 1 << 16,
    MOE_GGML_NVFP4_T = MOE_GGML_OWN, /* NVFP4's block, then a factor (f32) */
    /* + 1024 * bits + items: whole numbers of 8, 4, 3 or 2 bits with a zero point, by 128, 64 or
     * 32. A block is what moe_zero_head gives (d, word: u16), then a byte for each code. */
    MOE_GGML_CODES = MOE_GGML_OWN,
    /* + 1024 * (kind - MOE_LAYOUT_F8) + items: floats of few bits with a scale for that many, or +
     * 1 for the whole row. A block is the scale (f32), then a byte for each code. */
    MOE_GGML_SCALED = MOE_GGML_OWN + (1 << 15),
};

enum {
    MOE_GGML_GROUP = 32,           /* columns of a block of MXFP4 */
    MOE_GGML_MAX_ITEMS = 256,      /* of a block of a type that is read */
    MOE_GGML_MAX_BLOCK_BYTES = 260 /* ... */
};

struct moe_ggml_type {
    uint32_t number;
    const char *name;      /* "Q4_K" */
    uint32_t items, bytes; /* of a block */
    /* The layout kind that holds its values exactly, with groups of 32 unless it is a float, or
     * affine: then of a block's items. MOE_LAYOUT_NONE: its values are not read. */
    uint16_t kind;
    /* One block of several items as a span of that layout. */
    void (*read)(const uint8_t *block, struct moe_span_codes *span);
    /* Bytes of a factor, f16 or f32, that a row of a file begins with; 0: there is none. Blocks
     * then have it as an f32 in their last 4 bytes, which they lack in the file. */
    uint8_t factor;
};

/* The type of that number, or NULL. */
const struct moe_ggml_type *moe_ggml_find(uint32_t number);

/* The number of the type whose blocks a scaled kind holds, where `group` columns of rows of `cols`
 * share a scale: of the most items that allow it. 0: there is none. */
uint32_t moe_ggml_scaled(uint16_t kind, uint64_t group, uint64_t cols);

/* The type with the same blocks in whose layout each row has its scales, of one of F8_B. */
const struct moe_ggml_type *moe_ggml_scaled_by_row(const struct moe_ggml_type *type);

/* Decodes n blocks to n * type->items values of a type whose kind is not MOE_LAYOUT_NONE. `blocks`
 * may lie in the last bytes of out's memory, and is then overwritten. */
void moe_ggml_decode(const struct moe_ggml_type *type, const uint8_t *blocks, uint64_t n,
                     float *out);

/* n bytes of codes as blocks of MXFP4 and NVFP4 have them, from those of Hugging Face checkpoints,
 * whose byte i holds columns 2i (low bits) and 2i + 1. */
void moe_ggml_from_pairs(const uint8_t *pairs, int n, uint8_t *to);

/* Bytes of a row of `items` values in a file. */
uint64_t moe_ggml_row_bytes(const struct moe_ggml_type *type, uint64_t items);

/* n blocks, from number `first` on, of a row of a file that has a factor, as `read` takes them.
 * From block 0 on the row may lie in the last bytes of out's memory. */
void moe_ggml_row_blocks(const struct moe_ggml_type *type, const uint8_t *row, uint64_t first,
                         uint64_t n, uint8_t *out);

/* ---- Whole matrices ---- */

/* The bits of the layout that holds the type; of floats their own. */
int moe_ggml_bits(const struct moe_ggml_type *type);

/* The layout that holds the type, a quantized one, if it has no more than `bits` bits and these are
 * at most 8: more bits would not make it more exact. Kind MOE_LAYOUT_NONE otherwise. */
struct moe_layout moe_ggml_layout(const struct moe_ggml_type *type, int bits);

/*
 * Blocks, those of `rows` rows of `cols` columns (whole blocks each) one after the other, into
 * `out`, zeroed memory of moe_layout_bytes(moe_ggml_layout(type, 8), rows, cols), code for code.
 * Works over all threads. Adds the squares of the weights to *error. MOE_ERR_FORMAT where weights
 * are not finite, naming row and column.
 */
int moe_ggml_carry_matrix(const struct moe_ggml_type *type, const uint8_t *blocks, uint32_t rows,
                          uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                          struct moe_err *err);

/* Carries n blocks, from block `first` on, of each of n_rows rows over into rows r, r + 1, ... of a
 * panel, zeroed at first, of a matrix of moe_ggml_layout with `cols` columns. Returns how many rows
 * were before the first one with weights that are not finite: n_rows, where all are. */
uint32_t moe_ggml_carry_blocks(const struct moe_ggml_type *type, const uint8_t *const *rows,
                               uint32_t n_rows, uint32_t first, uint32_t n, uint32_t cols,
                               uint32_t r, uint8_t *panel);

#endif
