/*
 * Weight layouts: how a matrix lies in a pack, in memory and before the kernels.
 *
 * One layout serves disk and arithmetic: nothing is rearranged between them. A matrix W has `rows`
 * outputs and `cols` inputs (y = W x). Its rows are cut into panels of 16; panels follow each
 * other, the last one is filled up with rows of zeros. Within a panel, the 16 rows are interleaved
 * so that a vector lane is a row: every kernel runs down the columns and adds to one sum per row,
 * in column order, on every instruction set. That is why results are the same bit for bit
 * everywhere and why they depend neither on thread count nor on how many inputs are computed at
 * once.
 *
 * Float layouts (F32, F16, BF16): for each column c, the 16 values of W[16p .. 16p+15][c], little-
 * endian, one after the other. Panel bytes: cols * 16 * (4 or 2).
 *
 * Affine layouts (Q8, Q4, Q3, Q2): w = d * q + m, with q an unsigned code of 8, 4, 3 or 2 bits,
 * and d, m shared by `group` consecutive columns of one row, a group (group 0: by the whole row).
 * A panel is a sequence of group records, front to back:
 *
 *     d[16]  f16   scales of the group, one per row            32 bytes
 *     m[16]  f16   offsets of the group, one per row           32 bytes
 *     blocks       ceil(columns of the group / B) blocks of B columns, B = moe_layout_block()
 *
 * B is 32 when group is 32, else 64. Groups are 0, 32, 64 or a multiple of 64. The last group of a
 * row may be shorter; its last block is filled up with columns of code 0, which the kernels
 * multiply with activations of value 0 and which contribute nothing to the sums that m multiplies.
 * The codes of a block lie in units of 64 bytes; byte r*4+k of a unit (r = 0..15 the row in the
 * panel, k = 0..3) holds, least significant bits first:
 *
 *     Q8  B/4  units   unit j: column 4j+k
 *     Q4  B/8  units   unit j: bits 0-3 column 8j+k, bits 4-7 column 8j+4+k
 *     Q2  B/16 units   unit j: bits 2s,2s+1 column 16j+4s+k, s = 0..3
 *     Q3  B/16 units as Q2 with the low two bits of each code, then
 *         B/32 units   unit j: bit s the high bit of column 32j+4s+k, s = 0..7
 *
 * Every record and panel is a multiple of 64 bytes. An affine code with f16 d and m carries GGUF's
 * Q8_0 (m = -128 d), Q4_0 (m = -8 d) and Q4_1 without a second rounding.
 *
 * MXFP4 (OCP Microscaling Formats 1.0: FP4 elements, shared power of two): group is 32 and so is B.
 * A code is an e2m1 number (sign, two bits of exponent, one of mantissa): 0, 0.5, 1, 1.5, 2, 3, 4,
 * 6, and from code 8 on the negatives of these. A block of 32 columns of one row shares a scale
 * 2^(e-127), e from 0 to 254. (255 means NaN there and is not stored here.) A record holds up to
 * four blocks, so 128 columns take 4.25 bits a weight:
 *
 *     e[4][16] u8  exponents of the blocks, for each block one per row   64 bytes
 *     blocks       ceil(columns left / 32) blocks, at most 4, their codes in units as those of Q4
 *
 * The last record of a row may have fewer blocks; missing blocks have exponent 0 and missing
 * columns code 0. With v[code] = 0, 1, 2, 3, 4, 6, 8, 12 and the negatives, twice the code's
 * number, and d = 2^(e-128), a weight is d * v. It is infinite where f32 ends (e = 254, codes of 4
 * and 6); d is infinite too if a damaged matrix has e = 255.
 *
 * Arithmetic of a quantized product (the definition all kernels follow exactly): the input x is
 * quantized per block of B columns to signed bytes, x ~ s * xq (kern.h, moe_act); then, in f32 and
 * in this order,
 *
 *     y = 0
 *     for each group, for each of its blocks b:
 *         t = sum over the block of q * xq          exact, 32-bit integers
 *         y = fma(d * s_b, (float)t, y)             d * s_b rounded once
 *         y = fma(m, z_b, y)                        z_b = s_b * (float)(sum of xq in the block)
 *
 * and for MXFP4, where each block has a d of its own,
 *
 *     for each block b:
 *         t = sum over the block of v[code] * xq    exact, 32-bit integers
 *         y = fma(d_b * s_b, (float)t, y)           d_b * s_b rounded once
 */
#ifndef MOE_QUANT_LAYOUT_H
#define MOE_QUANT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/float16.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codes as written in files: never renumbered. */
enum moe_layout_kind {
    MOE_LAYOUT_NONE = 0,
    MOE_LAYOUT_F32 = 1,
    MOE_LAYOUT_F16 = 2,
    MOE_LAYOUT_BF16 = 3,
    MOE_LAYOUT_Q8 = 16,
    MOE_LAYOUT_Q4 = 17,
    MOE_LAYOUT_Q3 = 18,
    MOE_LAYOUT_Q2 = 19,
    MOE_LAYOUT_MXFP4 = 20,
};

enum {
    MOE_PANEL_ROWS = 16,
    MOE_GROUP_ROW = 0, /* one scale per row */
    MOE_MAX_GROUP = 1 << 16,
    MOE_MAX_DIM = 1 << 24, /* rows or columns of one matrix */
    MOE_MX_BLOCK = 32,     /* columns that share an exponent in MXFP4 */
    MOE_MX_RECORD = 128,   /* columns of a full record of MXFP4 */
};

struct moe_layout {
    uint16_t kind; /* an enum moe_layout_kind */
    /* Columns that share d and m; 0: the whole row. 0 for float kinds, 32 for MXFP4. */
    uint32_t group;
};

/* A matrix in one of the layouts above; borrows `data` (64-byte aligned). */
struct moe_mat {
    const uint8_t *data;
    struct moe_layout layout;
    uint32_t rows, cols;
};

/* True for a known kind with a group that the rules above allow. */
bool moe_layout_valid(struct moe_layout layout);
bool moe_layout_is_float(uint16_t kind);
/* Bits of one code: 32, 16, 16, 8, 4, 3, 2, 4; 0 for an unknown kind. */
int moe_layout_bits(uint16_t kind);
/* The affine kind of `bits` bits, or MOE_LAYOUT_NONE. */
uint16_t moe_layout_kind_of_bits(int bits);
/* "f32", "f16", "bf16", "q8", "q4", "q3", "q2", "mxfp4"; "?" for an unknown kind. */
const char *moe_layout_name(uint16_t kind);

/* Columns of a block: 32 when group is 32, else 64. For quantized kinds. */
static inline MOE_DEVICE_CODE uint32_t moe_layout_block(struct moe_layout layout)
{
    return layout.group == 32 ? 32 : 64;
}

static inline MOE_DEVICE_CODE uint32_t moe_panels(uint32_t rows)
{
    return (rows + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;
}

/* Bytes of one panel, of the codes of one block of a panel, of a whole matrix.
 * The layout is valid, rows and cols are at most MOE_MAX_DIM: no overflow is possible then. */
uint64_t moe_layout_panel_bytes(struct moe_layout layout, uint32_t cols);
uint64_t moe_layout_block_bytes(struct moe_layout layout);
uint64_t moe_layout_bytes(struct moe_layout layout, uint32_t rows, uint32_t cols);

/* ---- Packing: rows of plain numbers into a layout ---- */

/* One group of one row, as an encoder returns it (quantize.h). */
struct moe_group_codes {
    uint16_t d, m;        /* f16 bits */
    const uint8_t *codes; /* one per column of the group */
};

/* Stores f32 row `row` (cols values, row-major) into a float layout at `data`. `data` is zeroed
 * memory of moe_layout_bytes(); rows may be stored in any order and by several threads. */
void moe_layout_store_row(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                          const float *values);

/* Stores group number `g` of row `row` into an affine layout at `data`, zeroed at first.
 * NOT safe for two threads storing rows of the same panel. */
void moe_layout_store_group(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                            uint32_t g, const struct moe_group_codes *codes);

/* Stores block number `b` of row `row` into an MXFP4 matrix at `data`, zeroed at first: exponent
 * `e` and the block's codes, one of 0..15 per column (32, fewer at the end of the row). False, and
 * nothing stored, when e is 255: the block is NaN, which is not stored here. NOT safe for two
 * threads storing rows of the same panel. */
bool moe_layout_store_mxfp4(uint8_t *data, uint32_t cols, uint32_t row, uint32_t b, uint8_t e,
                            const uint8_t *codes);

/* Twice the value of each MXFP4 code. */
extern const int8_t moe_mxfp4_twice[16];

/* d of an MXFP4 block with exponent e: 2^(e-128), subnormal for e = 0 and 1, infinite for 255. */
static inline MOE_DEVICE_CODE float moe_mxfp4_scale(uint8_t e)
{
    uint32_t bits = e ? (uint32_t)e << 23 : 1u << 22; /* 2^(e-127) */
    return 0.5f * moe_bits_f32(bits);
}

/* The reference decoder: row `row` of a matrix as f32, d*q+m computed in f32 without fma.
 * `out` has mat->cols values. */
void moe_layout_load_row(const struct moe_mat *mat, uint32_t row, float *out);

#ifdef __cplusplus
}
#endif

#endif
