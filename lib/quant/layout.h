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
 * All others hold codes, unsigned numbers of 1 to 8 bits, and scales. A block of B columns of a row
 * has codes and shares the scale of its input; B = moe_layout_block(). A panel is a sequence of
 * records, front to back, each a head of scales and then its blocks of codes; every record and
 * panel is a multiple of 64 bytes. The last record of a row may be shorter. Missing columns have
 * code 0 and inputs of value 0; a record has no room for blocks that are missing as a whole.
 *
 * Codes of a block lie in units of 64 bytes; byte r*4+k of a unit (r = 0..15 the row in the panel,
 * k = 0..3) holds, least significant bits first, in planes of 8, 4, 2 or 1 bits:
 *
 *     8 bits  B/4  units   unit j: column 4j+k
 *     4 bits  B/8  units   unit j: bits 0-3 column 8j+k, bits 4-7 column 8j+4+k
 *     2 bits  B/16 units   unit j: bits 2s,2s+1 column 16j+4s+k, s = 0..3
 *     1 bit   B/32 units   unit j: bit s column 32j+4s+k, s = 0..7
 *
 * Codes of 3, 5 and 6 bits are two planes, one after the other: the low 2 bits and then the high
 * one, the low 4 bits and then the high 1 or 2.
 *
 * Affine layouts (Q8, Q5, Q4, Q3, Q2): w = d * q + m, with d and m shared by `group` consecutive
 * columns of one row (group 0: by the whole row), which are a record. B is 32 when group is 32,
 * else 64. Groups are 0, 32, 64 or a multiple of 64. The head is
 *
 *     d[16]  f16   scales of the group, one per row            32 bytes
 *     m[16]  f16   offsets of the group, one per row           32 bytes
 *
 * Layouts of checkpoints' types hold what a block of that type holds, code for code, in as many
 * bytes. Their group is 32 and so is B. A span of columns (32, 64 or 256: a block of the type)
 * shares a head; a record has as many spans as make their heads a multiple of 64 bytes (1, 2 or 4),
 * the last of a row those that are left, their heads filled up to 64 bytes. A block has one scale
 * d, or in the kinds marked 16 two: of its first and its last 16 columns. A weight is d * v, or
 * d * q + m in the kinds with an offset. q is the code, v the code's number:
 *
 *     kind    bits   span  v           d and m of a scale           head of a span
 *     MXFP4      4     32  e2m1(q)     2^(e-128)                    e[16] u8
 *     Q4_0       4     32  q - 8       d                            d[16]
 *     Q5_0       5     32  q - 16      d                            d[16]
 *     Q6_0       6     32  q - 32      d                            d[16]
 *     Q8_0       8     32  q - 128     d                            d[16]
 *     IQ4_NL     4     32  iq4(q)      d                            d[16]
 *     NVFP4 16   4     64  e2m1(q)     ue4m3(e) / 2                 e[4][16] u8
 *     Q1_0       1    128  2q - 1      d                            d[16]
 *     Q2_0       2     64  q - 1       d                            d[16]
 *     TQ2_0      2    256  q - 1       d                            d[16]
 *     IQ4_XS     4    256  iq4(q)      d * (s - 32)                 d[16], six(8)
 *     Q3_K 16    3    256  q - 4       d * (s - 32)                 d[16], six(16)
 *     Q6_K 16    6    256  q - 32      d * s                        d[16], s[16][16] i8
 *     Q4_K, Q5_K       256             d * s, -(dmin * t)           d[16], dmin[16], six(16)
 *     Q2_K 16    2    256              d * s, -(dmin * t)           d[16], dmin[16], st[16][16] u8
 *
 * d and dmin are f16, the products exact in f32. An array [n][16] has the scales in column order,
 * for each one per row; st has s in the low four bits and t in the high ones. six(n) are n numbers
 * of 6 bits for each row: n/2 times 16 bytes, byte r of the j-th the low four bits of number 2j in
 * its low bits, those of number 2j+1 in its high bits; then n/4 times 16 bytes, bits 2s,2s+1 of
 * byte r of the j-th the high two bits of number 4j+s. Q4_K and Q5_K have s as numbers 0 to 7, t as
 * 8 to 15. e2m1(q) is twice a number of sign, two bits of exponent and one of mantissa (OCP
 * Microscaling Formats 1.0): 0, 1, 2, 3, 4, 6, 8, 12, and from code 8 on the negatives of these; so
 * an MXFP4 block has the scale 2^(e-127), e from 0 to 254. (255 means NaN there and is not stored
 * here.) An MXFP4 weight is infinite where f32 ends (e = 254, codes of 4 and 6); d is infinite too
 * if a damaged matrix has e = 255. ue4m3 is a number without a sign, four bits of exponent (bias 7)
 * and three of mantissa. iq4 is a table of 16 numbers (moe_iq4_numbers).
 *
 * Q4 and Q5 with groups of 32 hold GGUF's Q4_1 and Q5_1.
 *
 * The kinds of ik_llama.cpp have two tables of numbers; the second is the first plus a number k.
 * e, a bit of a scale, says which. A weight is d * v + m with m = d * k * e, v of the
 * first table (moe_kind_numbers). Those of KS have a factor for each row, f[16] f32 at the front of
 * a panel, as NVFP4_T below:
 *
 *     kind      bits   span   k   d of a scale       head of a span
 *     IQ2_K 16    2     256   5   d * (s - 8)        d[16], four(16), one(16)
 *     IQ2_KS      2     256   5   s - 16             five(8), one(8)
 *     IQ3_K 16    3     256   4   d * (2s - 31)      d[16], five(16), one(16)
 *     IQ3_KS      3     256   4   s - 16             five(8), one(8)
 *     IQ4_K 16    4     256   4   d * (s - 32)       d[16], six(16), one(16)
 *     IQ4_KS      4     256   4   2s - 127           se[8][16] u8
 *     IQ5_K 16    5     256   2   d * (s - 32)       d[16], six(16), one(16)
 *     IQ5_KS      5     256   2   2s - 127           se[8][16] u8
 *     IQ6_K 16    6     256   1   d * s              d[16], s[16][16] i8, one(16)
 *
 * four(n) is the part of six(n) with the low bits; five(n) has n/8 times 16 bytes behind it, bit s
 * of byte r of the j-th the high bit of number 8j+s. one(n) are the bits e in the same way. se has
 * e in its lowest bit and s above it.
 *
 * In kinds with a grid a number of 8 bits or more stands for the columns of a group, 8 or 4
 * consecutive ones of a block: it is the number of an entry of a grid (grids.h), which has a code c
 * for each. The first plane has the numbers' low 8 bits: byte r*4+k of unit j that of group 4j+k.
 * The second plane of IQ2 and IQ3 is a unit of signs: bit s of byte r*4+k is 1 where column 4s+k is
 * negative. In IQ2_XXS, IQ2_XS and IQ3_XXS the signs of 8 columns from 8g on have an even number of
 * ones, so that the last one is known; its place, bit 2g+1 of byte r*4+3, has something else: bit g
 * of s, in IQ2_XS bit 8 of the number of group g.
 *
 *     kind       bits   group  v without its sign     d of a scale     head of a span of 256
 *     IQ1_S       1      8     8 (c - 1) +- 1         d (2s + 1) / 8   d[16], h[16][16]
 *     IQ1_M 16    1      8     8 (c - 1) +- 1         d (2s + 1) / 8   d[16], three(16), h[16][16]
 *     IQ2_XXS     1 + 1  8     8, 25, 43              d (2s + 1) / 8   d[16]
 *     IQ2_XS 16   1 + 1  8     8, 25, 43              d (2s + 1) / 8   d[16], s[8][16]
 *     IQ2_S 16    1 + 1  8     8, 25, 43              d (2s + 1) / 8   d[16], s[8][16], h[8][16]
 *     IQ3_XXS     2 + 1  4     8c + 4, but 62 of 7    d (2s + 1) / 4   d[16]
 *     IQ3_S       2 + 1  4     2c + 1                 d (2s + 1)       d[16], s[4][16], h[8][16]
 *
 * A byte of s has two scales of 4 bits, the first in its low bits. h has the numbers' higher bits:
 * in IQ3_S bit g of byte b is bit 8 of group g of block b, in IQ2_S bits 2g,2g+1 are bits 8 and 9.
 * In IQ1 bytes 2b and 2b+1 have four bits for each group, the first group's in the low bits: bits 8
 * to 10 of its number and one more, which in IQ1_M says that 1 is subtracted in the group, not
 * added. In IQ1_S that bit of the last group says so for the block, and those of the others are s,
 * from bit 0 on. three(16) are 16 numbers of 3 bits for each row: 4 times 16 bytes, bits 2i,2i+1 of
 * byte r of the j-th the low two bits of number 4j+i; then 2 times 16 bytes, bit i of byte r of the
 * j-th the high bit of number 8j+i.
 *
 * A block of TQ1_0 has 32 numbers q of 0 to 2, v = q - 1, its scale is d. Five of them are digits
 * to the base of 3 of a byte: the byte is the number that has the first as its highest digit times
 * 256 / 243, rounded up. Digits i = 0..4 of byte r*4+k of a block's unit are columns 4i+k. The head
 * of a span is d[16] and 5 units more: 3 b + i counts their digits for block b, whose columns
 * 20+4i+k are digit (3 b + i) % 5 of byte r*4+k of unit (3 b + i) / 5.
 *
 * In the trellis kinds of ik_llama.cpp a number x of 13 to 16 bits stands for a group of columns, 8
 * or 4 consecutive ones of a block. v of column k of the group is the sum of the bytes of (x +
 * 4096) * 0xcbac1fed^(k+1) & 0x3f3f3f3f, computed in 32 bits, less 126; in IQ3_KT its magnitude
 * with a sign of its own. They have a factor for each row, f[16] f32 at the front of a panel, too:
 *
 *     kind    bits   group  x        d of a scale   head of a span of 256
 *     IQ1_KT  1      8      13 bits  iq4(s)         sx[8][16] u8, h[16][16]
 *     IQ2_KT  2      8      16 bits  iq4(s)         four(8)
 *     IQ3_KT  2 + 1  8      16 bits  s              four(8)
 *     IQ4_KT  4      4      15 bits  s - 64         none
 *
 * IQ1_KT: byte r*4+k of a block's unit has the low 8 bits of x of group k; bytes 2b and 2b+1 of h
 * have four bits more for each group of block b, the first group's in the low bits; sx has s in its
 * low four bits and above them bit 12 of each group's x. IQ2_KT, IQ3_KT: the row's word of unit j
 * has x of groups 2j and, 16 bits higher, 2j+1; the unit of signs is that of IQ3_S. IQ4_KT: the
 * word of unit j has x of groups 2j and, 15 bits higher, 2j+1, and in its two highest bits bits 2j
 * and 2j+1 of a byte: its lowest bit says that 32768 is added to all x of the block, the others are
 * s.
 *
 * In IQ2_KL of ik_llama.cpp a number of 5 bits stands for a pair of columns: of both it has v
 * (moe_iq2kl_numbers). A block has two units: bits 4n.. of byte r*4+k of unit j are the low four
 * bits of the number of columns 16j + 8n + 4(k%2) + 2(k/2) and the one after. d of a scale is
 * s - 32, each row has a factor as in the trellis kinds, and the head of a span of 256 is six(8)
 * and h[16][16]: bit 4n+k of byte 2b+j is the high bit of that number in block b.
 *
 * Variations of these kinds hold what safetensors have, code for code. Q8_Z, Q4_Z, Q3_Z and Q2_Z
 * are Q8 to Q2 with whole zero points, a weight is d * (q - z); in place of m the head has
 *
 *     z[16]  u16   z, 0 to 511, in the low 9 bits, and above them e, 0 to 126
 *
 * d is the head's f16 times 2^-e (so it can be any bf16 up to 65504; e = 127 makes it 0), and m is
 * -(d * z). NVFP4_T is NVFP4 with a factor for each row, f[16] f32 at the front of a panel: a
 * weight is f * (d * v), and the product's y is multiplied by f once at its end.
 *
 * Scaled kinds hold floats of few bits: a weight is v * s, rounded to f32 once, and a product is
 * that of F32 with these weights. A panel has its scales s, f32, in front: one for each `group`
 * columns (a power of two from 32 on; 0: all) of each row, [groups][16], in F8_B of all its rows,
 * [groups], filled up to 64 bytes. Codes follow column by column, of 8 bits [cols][16], of 4 bits
 * [cols][8], rows 0 to 7 in the low bits of the bytes, rows 8 to 15 in the high ones; cols is a
 * multiple of 32.
 *
 *     F8, F8_B   8 bits   e4m3: a number of sign, four bits of exponent (bias 7) and three of
 *                         mantissa; 0x7f and 0xff mean NaN and are not stored here
 *     I8         8 bits   the code as a signed byte
 *     NF4, FP4   4 bits   tables of bitsandbytes (moe_nf4_numbers, moe_fp4_numbers)
 *
 * Arithmetic of a quantized product (the definition all kernels follow exactly): the input x is
 * quantized per block of B columns to signed bytes, x ~ s * xq (kern.h, moe_act); then, in f32 and
 * in this order,
 *
 *     y = 0
 *     for each block b, for each of its scales p:
 *         t = sum of v * xq over the columns of the scale   exact, 32-bit integers
 *         y = fma(d * s_b, (float)t, y)                     d * s_b rounded once
 *         y = fma(m, z, y)                                  in kinds with an offset, where v is q;
 *                                                           z = s_b * (float)(sum of xq over
 *                                                           the columns of the scale)
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
    MOE_LAYOUT_Q5 = 21,
    MOE_LAYOUT_Q4_0 = 32,
    MOE_LAYOUT_Q5_0 = 33,
    MOE_LAYOUT_Q8_0 = 34,
    MOE_LAYOUT_IQ4_NL = 35,
    MOE_LAYOUT_Q2_K = 36,
    MOE_LAYOUT_Q3_K = 37,
    MOE_LAYOUT_Q4_K = 38,
    MOE_LAYOUT_Q5_K = 39,
    MOE_LAYOUT_Q6_K = 40,
    MOE_LAYOUT_IQ4_XS = 41,
    MOE_LAYOUT_NVFP4 = 42,
    MOE_LAYOUT_TQ2_0 = 43,
    MOE_LAYOUT_IQ1_S = 44,
    MOE_LAYOUT_IQ1_M = 45,
    MOE_LAYOUT_IQ2_XXS = 46,
    MOE_LAYOUT_IQ2_XS = 47,
    MOE_LAYOUT_IQ2_S = 48,
    MOE_LAYOUT_IQ3_XXS = 49,
    MOE_LAYOUT_IQ3_S = 50,
    MOE_LAYOUT_Q1_0 = 51,
    MOE_LAYOUT_Q2_0 = 52,
    MOE_LAYOUT_TQ1_0 = 53,
    MOE_LAYOUT_IQ2_K = 54,
    MOE_LAYOUT_IQ2_KS = 55,
    MOE_LAYOUT_IQ3_K = 56,
    MOE_LAYOUT_IQ3_KS = 57,
    MOE_LAYOUT_IQ4_K = 58,
    MOE_LAYOUT_IQ4_KS = 59,
    MOE_LAYOUT_IQ5_K = 60,
    MOE_LAYOUT_IQ5_KS = 61,
    MOE_LAYOUT_IQ6_K = 62,
    MOE_LAYOUT_Q6_0 = 63,
    MOE_LAYOUT_Q8_Z = 64,
    MOE_LAYOUT_Q4_Z = 65,
    MOE_LAYOUT_Q3_Z = 66,
    MOE_LAYOUT_Q2_Z = 67,
    MOE_LAYOUT_NVFP4_T = 68,
    MOE_LAYOUT_IQ1_KT = 72,
    MOE_LAYOUT_IQ2_KT = 73,
    MOE_LAYOUT_IQ3_KT = 74,
    MOE_LAYOUT_IQ4_KT = 75,
    MOE_LAYOUT_IQ2_KL = 76,
    MOE_LAYOUT_F8 = 80,
    MOE_LAYOUT_F8_B = 81,
    MOE_LAYOUT_I8 = 82,
    MOE_LAYOUT_NF4 = 83,
    MOE_LAYOUT_FP4 = 84,
};

enum {
    MOE_PANEL_ROWS = 16,
    MOE_GROUP_ROW = 0, /* one scale per row */
    MOE_MAX_GROUP = 1 << 16,
    MOE_MAX_DIM = 1 << 24, /* rows or columns of one matrix */
    MOE_MX_BLOCK = 32,     /* columns that share an exponent in MXFP4 */
    MOE_MAX_SPAN = 256,    /* columns that share a head */
};

struct moe_layout {
    uint16_t kind; /* an enum moe_layout_kind */
    /* Of affine and scaled kinds the columns that share d and m, or s; 0: the whole row. 0 for
     * float kinds, 32 for those of checkpoints' types. */
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
bool moe_layout_is_affine(uint16_t kind);
/* Whether products take inputs as f32: of float and scaled kinds. */
bool moe_layout_takes_floats(uint16_t kind);
/* Bits of one code, of floats those of a value; 0 for an unknown kind. */
int moe_layout_bits(uint16_t kind);
/* The affine kind of `bits` bits that methods round to (8, 4, 3, 2), or MOE_LAYOUT_NONE. */
uint16_t moe_layout_kind_of_bits(int bits);
/* "f32", "q8", "mxfp4", "q4_k"; "?" for an unknown kind. */
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

/* ---- What kinds consist of: constants where the kind is one, in device code too ---- */

#ifdef __cplusplus
#define MOE_KIND_CONSTANT static constexpr MOE_DEVICE_CODE
#elif !defined(MOE_KIND_CONSTANT) /* kernels have their own */
#define MOE_KIND_CONSTANT static inline
#endif

MOE_KIND_CONSTANT bool moe_kind_is_scaled(int kind)
{
    return kind >= MOE_LAYOUT_F8 && kind <= MOE_LAYOUT_FP4;
}

/* Whether the codes of a scaled kind are e4m3; their bits. */
MOE_KIND_CONSTANT bool moe_kind_is_f8(int kind)
{
    return kind == MOE_LAYOUT_F8 || kind == MOE_LAYOUT_F8_B;
}

MOE_KIND_CONSTANT int moe_scaled_bits(int kind)
{
    return kind <= MOE_LAYOUT_I8 ? 8 : 4;
}

MOE_KIND_CONSTANT bool moe_kind_is_iq1(int kind)
{
    return kind == MOE_LAYOUT_IQ1_S || kind == MOE_LAYOUT_IQ1_M;
}

MOE_KIND_CONSTANT bool moe_kind_is_iq2(int kind)
{
    return kind == MOE_LAYOUT_IQ2_XXS || kind == MOE_LAYOUT_IQ2_XS || kind == MOE_LAYOUT_IQ2_S;
}

MOE_KIND_CONSTANT bool moe_kind_is_iq3(int kind)
{
    return kind == MOE_LAYOUT_IQ3_XXS || kind == MOE_LAYOUT_IQ3_S;
}

/* Of ik_llama.cpp's kinds, those of 2, 3, 5 and 6 bits (those of 4 are iq4, below), and whether
 * their scale for 32 columns is a byte with e. */
MOE_KIND_CONSTANT bool moe_kind_is_iq2k(int kind)
{
    return kind == MOE_LAYOUT_IQ2_K || kind == MOE_LAYOUT_IQ2_KS;
}

MOE_KIND_CONSTANT bool moe_kind_is_iq3k(int kind)
{
    return kind == MOE_LAYOUT_IQ3_K || kind == MOE_LAYOUT_IQ3_KS;
}

MOE_KIND_CONSTANT bool moe_kind_is_iq5k(int kind)
{
    return kind == MOE_LAYOUT_IQ5_K || kind == MOE_LAYOUT_IQ5_KS;
}

MOE_KIND_CONSTANT bool moe_kind_scale_has_e(int kind)
{
    return kind == MOE_LAYOUT_IQ4_KS || kind == MOE_LAYOUT_IQ5_KS;
}

MOE_KIND_CONSTANT bool moe_kind_is_trellis(int kind)
{
    return kind >= MOE_LAYOUT_IQ1_KT && kind <= MOE_LAYOUT_IQ4_KT;
}

/* Whether d is a number for each row, in front of the panel. */
MOE_KIND_CONSTANT bool moe_kind_has_row_scale(int kind)
{
    return kind == MOE_LAYOUT_IQ2_KS || kind == MOE_LAYOUT_IQ3_KS || moe_kind_scale_has_e(kind) ||
           moe_kind_is_trellis(kind) || kind == MOE_LAYOUT_IQ2_KL;
}

/* k: what is added to the numbers of a scale whose e is 1; 0 in kinds without e. */
MOE_KIND_CONSTANT int moe_kind_shift(int kind)
{
    return moe_kind_is_iq2k(kind)                                  ? 5
           : moe_kind_is_iq3k(kind)                                ? 4
           : kind == MOE_LAYOUT_IQ4_K || kind == MOE_LAYOUT_IQ4_KS ? 4
           : moe_kind_is_iq5k(kind)                                ? 2
           : kind == MOE_LAYOUT_IQ6_K                              ? 1
                                                                   : 0;
}

/* Whether numbers stand for groups of columns. */
MOE_KIND_CONSTANT bool moe_kind_is_grouped(int kind)
{
    return moe_kind_is_iq1(kind) || moe_kind_is_iq2(kind) || moe_kind_is_iq3(kind) ||
           kind == MOE_LAYOUT_TQ1_0 || moe_kind_is_trellis(kind) || kind == MOE_LAYOUT_IQ2_KL;
}

/* Whether s is in the second plane. */
MOE_KIND_CONSTANT bool moe_kind_signs_have_scale(int kind)
{
    return kind == MOE_LAYOUT_IQ2_XXS || kind == MOE_LAYOUT_IQ3_XXS;
}

/* The kind that a variation is one of, itself if it is none: their codes and their kernels are the
 * same, and the functions below take either where they do not say otherwise. */
MOE_KIND_CONSTANT int moe_kind_base(int kind)
{
    switch (kind) {
    case MOE_LAYOUT_Q8_Z:
        return MOE_LAYOUT_Q8;
    case MOE_LAYOUT_Q4_Z:
        return MOE_LAYOUT_Q4;
    case MOE_LAYOUT_Q3_Z:
        return MOE_LAYOUT_Q3;
    case MOE_LAYOUT_Q2_Z:
        return MOE_LAYOUT_Q2;
    case MOE_LAYOUT_NVFP4_T:
        return MOE_LAYOUT_NVFP4;
    default:
        return kind;
    }
}

/* Whether the head has zero points in place of m. */
MOE_KIND_CONSTANT bool moe_kind_has_zeros(int kind)
{
    return kind >= MOE_LAYOUT_Q8_Z && kind <= MOE_LAYOUT_Q2_Z;
}

/* Bytes at the front of a panel: factors of its rows, or none. */
MOE_KIND_CONSTANT uint32_t moe_kind_front(int kind)
{
    return kind == MOE_LAYOUT_NVFP4_T || moe_kind_has_row_scale(kind) ? 4 * MOE_PANEL_ROWS : 0;
}

/* Whether the kind or a variation of it has them. */
MOE_KIND_CONSTANT bool moe_kind_may_have_front(int kind)
{
    return kind == MOE_LAYOUT_NVFP4 || moe_kind_has_row_scale(kind);
}

/* Bits of the first plane of codes. */
MOE_KIND_CONSTANT int moe_kind_plane(int kind)
{
    switch (moe_kind_base(kind)) {
    case MOE_LAYOUT_Q8:
    case MOE_LAYOUT_Q8_0:
        return 8;
    case MOE_LAYOUT_Q3:
    case MOE_LAYOUT_Q2:
    case MOE_LAYOUT_Q3_K:
    case MOE_LAYOUT_Q2_K:
    case MOE_LAYOUT_TQ2_0:
    case MOE_LAYOUT_IQ3_XXS:
    case MOE_LAYOUT_IQ3_S:
    case MOE_LAYOUT_Q2_0:
    case MOE_LAYOUT_IQ2_K:
    case MOE_LAYOUT_IQ2_KS:
    case MOE_LAYOUT_IQ3_K:
    case MOE_LAYOUT_IQ3_KS:
    case MOE_LAYOUT_IQ2_KT:
    case MOE_LAYOUT_IQ3_KT:
    case MOE_LAYOUT_IQ2_KL:
        return 2;
    case MOE_LAYOUT_IQ1_KT:
    case MOE_LAYOUT_IQ1_S:
    case MOE_LAYOUT_IQ1_M:
    case MOE_LAYOUT_IQ2_XXS:
    case MOE_LAYOUT_IQ2_XS:
    case MOE_LAYOUT_IQ2_S:
    case MOE_LAYOUT_Q1_0:
    case MOE_LAYOUT_TQ1_0:
        return 1;
    default:
        return 4;
    }
}

/* Bits of the second plane; 0: there is none. */
MOE_KIND_CONSTANT int moe_kind_high_plane(int kind)
{
    switch (moe_kind_base(kind)) {
    case MOE_LAYOUT_Q3:
    case MOE_LAYOUT_Q3_K:
    case MOE_LAYOUT_Q5:
    case MOE_LAYOUT_Q5_0:
    case MOE_LAYOUT_Q5_K:
    case MOE_LAYOUT_IQ2_XXS:
    case MOE_LAYOUT_IQ2_XS:
    case MOE_LAYOUT_IQ2_S:
    case MOE_LAYOUT_IQ3_XXS:
    case MOE_LAYOUT_IQ3_S:
    case MOE_LAYOUT_IQ3_K:
    case MOE_LAYOUT_IQ3_KS:
    case MOE_LAYOUT_IQ3_KT:
    case MOE_LAYOUT_IQ5_K:
    case MOE_LAYOUT_IQ5_KS:
        return 1;
    case MOE_LAYOUT_Q6_0:
    case MOE_LAYOUT_Q6_K:
    case MOE_LAYOUT_IQ6_K:
        return 2;
    default:
        return 0;
    }
}

/* The planes of codes that a block becomes before it is computed with: in grouped kinds a code for
 * each column (moe_group_codes), else what it has. Bits of the first plane, of the second, and
 * where the bits of the second belong in a code. */
MOE_KIND_CONSTANT int moe_code_plane(int kind)
{
    return moe_kind_is_trellis(kind) || kind == MOE_LAYOUT_IQ2_KL ? 8
           : moe_kind_is_iq3(kind)                                ? 4
           : moe_kind_is_grouped(kind)                            ? 2
                                                                  : moe_kind_plane(kind);
}

MOE_KIND_CONSTANT int moe_code_high_plane(int kind)
{
    return moe_kind_is_iq1(kind) ? 1 : moe_kind_is_trellis(kind) ? 0 : moe_kind_high_plane(kind);
}

MOE_KIND_CONSTANT int moe_code_high_at(int kind)
{
    return moe_kind_is_iq3(kind) ? 3 : moe_code_plane(kind);
}

/* The code whose number is 0, in kinds where v is the code less that; else 0. */
MOE_KIND_CONSTANT int moe_kind_zero(int kind)
{
    switch (kind) {
    case MOE_LAYOUT_Q8_0:
        return 128;
    case MOE_LAYOUT_IQ1_KT:
    case MOE_LAYOUT_IQ2_KT:
    case MOE_LAYOUT_IQ3_KT:
    case MOE_LAYOUT_IQ4_KT:
        return 126;
    case MOE_LAYOUT_IQ2_KL:
        return 63;
    case MOE_LAYOUT_Q6_0:
    case MOE_LAYOUT_Q6_K:
        return 32;
    case MOE_LAYOUT_Q5_0:
        return 16;
    case MOE_LAYOUT_Q4_0:
        return 8;
    case MOE_LAYOUT_Q3_K:
        return 4;
    case MOE_LAYOUT_TQ2_0:
    case MOE_LAYOUT_Q2_0:
    case MOE_LAYOUT_TQ1_0:
        return 1;
    default:
        return 0;
    }
}

/* Whether v is e2m1(q), or iq4(q). */
MOE_KIND_CONSTANT bool moe_kind_is_e2m1(int kind)
{
    return kind == MOE_LAYOUT_MXFP4 || moe_kind_base(kind) == MOE_LAYOUT_NVFP4;
}

MOE_KIND_CONSTANT bool moe_kind_is_iq4(int kind)
{
    return kind == MOE_LAYOUT_IQ4_NL || kind == MOE_LAYOUT_IQ4_XS || kind == MOE_LAYOUT_IQ4_K ||
           kind == MOE_LAYOUT_IQ4_KS;
}

/* Columns that share a head; 0 in affine kinds, where these are the group. */
MOE_KIND_CONSTANT uint32_t moe_kind_span(int kind)
{
    switch (moe_kind_base(kind)) {
    case MOE_LAYOUT_MXFP4:
    case MOE_LAYOUT_Q4_0:
    case MOE_LAYOUT_Q5_0:
    case MOE_LAYOUT_Q6_0:
    case MOE_LAYOUT_Q8_0:
    case MOE_LAYOUT_IQ4_NL:
        return 32;
    case MOE_LAYOUT_NVFP4:
    case MOE_LAYOUT_Q2_0:
        return 64;
    case MOE_LAYOUT_Q1_0:
        return 128;
    case MOE_LAYOUT_Q2_K:
    case MOE_LAYOUT_Q3_K:
    case MOE_LAYOUT_Q4_K:
    case MOE_LAYOUT_Q5_K:
    case MOE_LAYOUT_Q6_K:
    case MOE_LAYOUT_IQ4_XS:
    case MOE_LAYOUT_TQ2_0:
        return 256;
    default:
        return moe_kind_is_grouped(kind) || moe_kind_shift(kind) ? 256 : 0;
    }
}

/* Scales of a block. */
MOE_KIND_CONSTANT int moe_kind_scales(int kind)
{
    return kind == MOE_LAYOUT_Q2_K || kind == MOE_LAYOUT_Q3_K || kind == MOE_LAYOUT_Q6_K ||
                   moe_kind_base(kind) == MOE_LAYOUT_NVFP4 || kind == MOE_LAYOUT_IQ1_M ||
                   kind == MOE_LAYOUT_IQ2_XS || kind == MOE_LAYOUT_IQ2_S ||
                   (moe_kind_shift(kind) && !moe_kind_has_row_scale(kind))
               ? 2
               : 1;
}

/* Whether the head has m or dmin. */
MOE_KIND_CONSTANT bool moe_kind_has_min(int kind)
{
    return moe_kind_span(kind) == 0 || kind == MOE_LAYOUT_Q2_K || kind == MOE_LAYOUT_Q4_K ||
           kind == MOE_LAYOUT_Q5_K;
}

/* Whether scales have an m. */
MOE_KIND_CONSTANT bool moe_kind_has_offset(int kind)
{
    return moe_kind_has_min(kind) || moe_kind_shift(kind);
}

/* Whether the head has a d. */
MOE_KIND_CONSTANT bool moe_kind_has_d(int kind)
{
    return !moe_kind_is_e2m1(kind) && !moe_kind_has_row_scale(kind);
}

/* Numbers of 4 to 6 bits in a head, four(n) to six(n): none, 8 or 16. */
MOE_KIND_CONSTANT int moe_kind_packed(int kind)
{
    switch (kind) {
    case MOE_LAYOUT_IQ4_XS:
    case MOE_LAYOUT_IQ2_KS:
    case MOE_LAYOUT_IQ3_KS:
    case MOE_LAYOUT_IQ2_KT:
    case MOE_LAYOUT_IQ3_KT:
    case MOE_LAYOUT_IQ2_KL:
        return 8;
    case MOE_LAYOUT_Q3_K:
    case MOE_LAYOUT_Q4_K:
    case MOE_LAYOUT_Q5_K:
    case MOE_LAYOUT_IQ2_K:
    case MOE_LAYOUT_IQ3_K:
    case MOE_LAYOUT_IQ4_K:
    case MOE_LAYOUT_IQ5_K:
        return 16;
    default:
        return 0;
    }
}

/* Their bits but four. */
MOE_KIND_CONSTANT int moe_kind_packed_high(int kind)
{
    return kind == MOE_LAYOUT_IQ2_K || moe_kind_is_trellis(kind) ? 0
           : kind == MOE_LAYOUT_IQ2_KS || moe_kind_is_iq3k(kind) ? 1
                                                                 : 2;
}

/* Numbers of 8 bits. */
MOE_KIND_CONSTANT int moe_kind_byte_scales(int kind)
{
    return kind == MOE_LAYOUT_Q6_K || kind == MOE_LAYOUT_Q2_K || kind == MOE_LAYOUT_IQ6_K ? 16
           : moe_kind_scale_has_e(kind) || kind == MOE_LAYOUT_IQ1_KT                      ? 8
                                                                                          : 0;
}

/* Where one(n) begins behind the head's numbers, in 16 bytes. */
MOE_KIND_CONSTANT int moe_kind_shifts_at(int kind)
{
    return moe_kind_byte_scales(kind) +
           moe_kind_packed(kind) * (4 + moe_kind_packed_high(kind)) / 8;
}

/* Bytes of a head for a row of a panel: a span's, or of affine kinds a record's. */
MOE_KIND_CONSTANT uint32_t moe_kind_head(int kind)
{
    switch (moe_kind_base(kind)) {
    case MOE_LAYOUT_MXFP4:
        return 1;
    case MOE_LAYOUT_NVFP4:
        return 4;
    case MOE_LAYOUT_IQ1_S:
    case MOE_LAYOUT_IQ2_S:
        return 2 + 16;
    case MOE_LAYOUT_IQ1_M:
        return 2 + 6 + 16;
    case MOE_LAYOUT_IQ1_KT:
        return 8 + 16;
    case MOE_LAYOUT_IQ2_XS:
        return 2 + 8;
    case MOE_LAYOUT_IQ3_S:
        return 2 + 4 + 8;
    case MOE_LAYOUT_TQ1_0:
        return 2 + 20;
    case MOE_LAYOUT_IQ2_KL:
        return 6 + 16;
    default:
        return (moe_kind_has_d(kind) ? 2u : 0) + (moe_kind_has_min(kind) ? 2u : 0) +
               (uint32_t)moe_kind_shifts_at(kind) +
               (moe_kind_shift(kind) && !moe_kind_scale_has_e(kind)
                    ? (uint32_t)moe_kind_scales(kind)
                    : 0);
    }
}

/* Spans of a full record. */
MOE_KIND_CONSTANT uint32_t moe_kind_record(int kind)
{
    return moe_kind_head(kind) % 4 == 0 ? 1 : moe_kind_head(kind) % 2 == 0 ? 2 : 4;
}

/* Blocks of a span. */
MOE_KIND_CONSTANT uint32_t moe_kind_span_blocks(int kind)
{
    return moe_kind_span(kind) / 32;
}

/* Bytes of the head of a record of `blocks` blocks. */
MOE_KIND_CONSTANT uint32_t moe_kind_head_bytes(int kind, uint32_t blocks)
{
    return moe_kind_span(kind) == 0
               ? 64
               : ((blocks + moe_kind_span_blocks(kind) - 1) / moe_kind_span_blocks(kind) *
                      moe_kind_head(kind) * MOE_PANEL_ROWS +
                  63) /
                     64 * 64;
}

/* Bytes of the codes of a block of a panel. */
MOE_KIND_CONSTANT uint32_t moe_kind_block_bytes(int kind, uint32_t block)
{
    return block * (uint32_t)(moe_kind_plane(kind) + moe_kind_high_plane(kind)) *
           (MOE_PANEL_ROWS / 8);
}

/* ---- Scaled kinds ---- */

/* Bytes of the scales in front of a panel. */
static inline MOE_DEVICE_CODE uint64_t moe_scaled_front(struct moe_layout layout, uint32_t cols)
{
    uint64_t n = layout.group ? (cols + layout.group - 1) / layout.group : 1;
    return layout.kind == MOE_LAYOUT_F8_B ? (4 * n + 63) / 64 * 64 : 64 * n;
}

/* Which of them is that of row r in column c, or in the group of columns that begins there. */
static inline MOE_DEVICE_CODE uint32_t moe_scaled_place(struct moe_layout layout, uint32_t c,
                                                        uint32_t r)
{
    uint32_t g = layout.group ? c / layout.group : 0;
    return layout.kind == MOE_LAYOUT_F8_B ? g : g * MOE_PANEL_ROWS + r;
}

/* The code of row r in column c. */
static inline MOE_DEVICE_CODE uint8_t moe_scaled_code(int kind, const uint8_t *codes, uint64_t c,
                                                      uint32_t r)
{
    if (moe_scaled_bits(kind) == 8)
        return codes[c * MOE_PANEL_ROWS + r];
    return codes[c * (MOE_PANEL_ROWS / 2) + r % 8] >> r / 8 * 4 & 15;
}

#define MOE_NF4_NUMBERS                                                                            \
    -1.0f, -0x1.647362p-1f, -0x1.0cd66p-1f, -0x1.94654p-2f, -0x1.23449ap-2f, -0x1.7a6a7ep-3f,      \
        -0x1.74f0e2p-4f, 0.0f, 0x1.45f5fep-4f, 0x1.4995c6p-3f, 0x1.f809bap-3f, 0x1.5a0674p-2f,     \
        0x1.c34970p-2f, 0x1.200f56p-1f, 0x1.722766p-1f, 1.0f
#define MOE_FP4_NUMBERS                                                                            \
    0.0f, 0x1.555556p-8f, 0x1.555556p-1f, 1.0f, 0x1.555556p-2f, 0.5f, 0x1.555556p-3f, 0.25f, 0.0f, \
        -0x1.555556p-8f, -0x1.555556p-1f, -1.0f, -0x1.555556p-2f, -0.5f, -0x1.555556p-3f, -0.25f
extern const float moe_nf4_numbers[16];
extern const float moe_fp4_numbers[16];
#ifdef __CUDACC__
static __device__ const float dev_nf4_numbers[16] = {MOE_NF4_NUMBERS};
static __device__ const float dev_fp4_numbers[16] = {MOE_FP4_NUMBERS};
#endif
#ifdef __CUDA_ARCH__
#define MOE_FOUR_BITS(name) dev_##name##_numbers
#else
#define MOE_FOUR_BITS(name) moe_##name##_numbers
#endif

/* E4M3: f16's exponent, 256 times as small. Codes of NaN give 480. */
static inline MOE_DEVICE_CODE float moe_e4m3_to_f32(uint8_t code)
{
    return moe_f16_to_f32((uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7)) * 256;
}

/* v of a code. */
static inline MOE_DEVICE_CODE float moe_scaled_number(int kind, uint8_t code)
{
    return moe_kind_is_f8(kind)     ? moe_e4m3_to_f32(code)
           : kind == MOE_LAYOUT_I8  ? (float)(int8_t)code
           : kind == MOE_LAYOUT_NF4 ? MOE_FOUR_BITS(nf4)[code]
                                    : MOE_FOUR_BITS(fp4)[code];
}

/* ---- Numbers of codes and scales ---- */

/* v of every code, in kinds where a table has it: e2m1, iq4, 2q - 1, and of grouped kinds, whose
 * second plane is the sign, or in IQ1 what is subtracted. */
extern const int8_t moe_mxfp4_twice[16];
extern const int8_t moe_iq4_numbers[16];
extern const int8_t moe_q1_0_numbers[16];
extern const int8_t moe_iq1_numbers[16];
extern const int8_t moe_iq2_numbers[16];
extern const int8_t moe_iq3_xxs_numbers[16];
extern const int8_t moe_iq3_s_numbers[16];
extern const int8_t moe_iq2k_numbers[16];
extern const int8_t moe_iq3k_numbers[16];
extern const int8_t moe_iq5k_numbers[32];
extern const int8_t moe_iq6k_numbers[64];

/* The numbers of the kinds of ik_llama.cpp: facts of the file format, taken from the first halves
 * of the tables iq2nl_values, iq3nl_values, iq5nl_values and iq6nl_values of its ggml-common.h. */
#define MOE_IQ2K_NUMBERS -31, -13, 1, 17
#define MOE_IQ3K_NUMBERS -63, -40, -23, -10, 1, 13, 28, 47
#define MOE_IQ5K_NUMBERS                                                                           \
    -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6, -1, 5, 11,   \
        17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121
#define MOE_IQ6K_NUMBERS                                                                           \
    -127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54, -51, -47, \
        -44, -40, -37, -34, -31, -28, -25, -22, -19, -16, -13, -11, -8, -5, -2, 0, 3, 6, 9, 12,    \
        14, 17, 20, 23, 27, 30, 33, 36, 40, 44, 47, 51, 55, 59, 63, 68, 72, 77, 82, 87, 92, 98,    \
        103, 109, 115, 121

/* Of the kind that has pairs of numbers, the first ones and the second ones: iq2kl_values. */
#define MOE_IQ2KL_NUMBERS                                                                          \
    {                                                                                              \
        {-63, -63, -40, -40, -40, -40, -23, -23, -23, -23, -23, -10, -10, -10, -10, 1,             \
         1,   1,   1,   1,   13,  13,  13,  13,  13,  28,  28,  28,  28,  28,  47,  47},           \
        {                                                                                          \
            -23, 13, -63, -10, 13, 47, -40, -23, 1, 13, 28, -63, 1, 13, 47, -23, -10, 1, 13, 28,   \
                -40, -23, -10, 1, 13, -63, -23, 1, 28, 47, -23, 13                                 \
        }                                                                                          \
    }
extern const int8_t moe_iq2kl_numbers[2][32];
#ifdef __CUDACC__
static __device__ const int8_t dev_iq2kl_numbers[2][32] = MOE_IQ2KL_NUMBERS;
#endif
#ifdef __CUDA_ARCH__
#define MOE_PAIRS dev_iq2kl_numbers
#else
#define MOE_PAIRS moe_iq2kl_numbers
#endif

/* The table of a kind, or NULL. */
static inline const int8_t *moe_kind_numbers(int kind)
{
    return moe_kind_is_e2m1(kind)       ? moe_mxfp4_twice
           : moe_kind_is_iq4(kind)      ? moe_iq4_numbers
           : kind == MOE_LAYOUT_Q1_0    ? moe_q1_0_numbers
           : moe_kind_is_iq1(kind)      ? moe_iq1_numbers
           : moe_kind_is_iq2(kind)      ? moe_iq2_numbers
           : kind == MOE_LAYOUT_IQ3_XXS ? moe_iq3_xxs_numbers
           : kind == MOE_LAYOUT_IQ3_S   ? moe_iq3_s_numbers
           : moe_kind_is_iq2k(kind)     ? moe_iq2k_numbers
           : moe_kind_is_iq3k(kind)     ? moe_iq3k_numbers
           : moe_kind_is_iq5k(kind)     ? moe_iq5k_numbers
           : kind == MOE_LAYOUT_IQ6_K   ? moe_iq6k_numbers
                                        : (const int8_t *)0;
}

/* d of an MXFP4 block with exponent e: 2^(e-128), subnormal for e = 0 and 1, infinite for 255. */
static inline MOE_DEVICE_CODE float moe_mxfp4_scale(uint8_t e)
{
    uint32_t bits = e ? (uint32_t)e << 23 : 1u << 22; /* 2^(e-127) */
    return 0.5f * moe_bits_f32(bits);
}

/* d of an NVFP4 scale: ue4m3(e) / 2; its bits in their places of an f32, whose bias is 120 more.
 * Subnormals are multiplied as integers: as floats they take processors a hundred cycles and more.
 */
static inline MOE_DEVICE_CODE float moe_nvfp4_scale(uint8_t e)
{
    return e < 8 ? (float)e * 0x1p-10f : moe_bits_f32(((uint32_t)e << 20) + (119u << 23));
}

struct moe_scales {
    float d, m;
};

/* The least number of the table; 0 where there is none. */
MOE_KIND_CONSTANT int moe_kind_least(int kind)
{
    return moe_kind_is_e2m1(kind)       ? -12
           : moe_kind_is_iq4(kind)      ? -127
           : kind == MOE_LAYOUT_Q1_0    ? -1
           : moe_kind_is_iq1(kind)      ? -9
           : moe_kind_is_iq2(kind)      ? -43
           : kind == MOE_LAYOUT_IQ3_XXS ? -62
           : kind == MOE_LAYOUT_IQ3_S   ? -15
           : moe_kind_is_iq2k(kind)     ? -31
           : moe_kind_is_iq3k(kind)     ? -63
           : moe_kind_is_iq5k(kind)     ? -126
           : kind == MOE_LAYOUT_IQ6_K   ? -127
                                        : 0;
}

/* What d (2s + 1) is multiplied by in kinds with a grid; 0 in others. */
MOE_KIND_CONSTANT float moe_kind_scale_unit(int kind)
{
    return moe_kind_is_iq1(kind) || moe_kind_is_iq2(kind) ? 0.125f
           : kind == MOE_LAYOUT_IQ3_XXS                   ? 0.25f
           : kind == MOE_LAYOUT_IQ3_S                     ? 1.0f
                                                          : 0.0f;
}

/* What d is multiplied by where s is a number of a head: step * s - zero. */
MOE_KIND_CONSTANT int moe_kind_scale_step(int kind)
{
    return kind == MOE_LAYOUT_IQ3_K || moe_kind_scale_has_e(kind) ? 2 : 1;
}

MOE_KIND_CONSTANT int moe_kind_scale_zero(int kind)
{
    return moe_kind_is_trellis(kind)  ? (kind == MOE_LAYOUT_IQ4_KT ? 64 : 0)
           : kind == MOE_LAYOUT_IQ2_K ? 8
           : kind == MOE_LAYOUT_IQ2_KS || kind == MOE_LAYOUT_IQ3_KS ? 16
           : kind == MOE_LAYOUT_IQ3_K                               ? 31
           : moe_kind_scale_has_e(kind)                             ? 127
           : moe_kind_packed(kind) && !moe_kind_has_min(kind)       ? 32
                                                                    : 0;
}

/* d and m of a head with zero points: its f16 as f32, and the word that has z and e. */
static inline MOE_DEVICE_CODE struct moe_scales moe_zero_scales(float d, uint16_t word)
{
    struct moe_scales of = {d * moe_bits_f32((127u - (word >> 9)) << 23), 0};
    of.m = -(of.d * (float)(word & 511));
    return of;
}

/* The inverse: the f16 and the word that make d = scale with this zero point. False where none do:
 * scale has more than 11 significant bits or is too large, zero is above 511. */
bool moe_zero_head(float scale, uint32_t zero, uint16_t *d, uint16_t *word);

/* iq4(s), on devices too. */
static inline MOE_DEVICE_CODE int moe_iq4_number(uint32_t s)
{
    const uint64_t half = s & 8 ? UINT64_C(0x7159453526190d01) : UINT64_C(0xf6eaddcfbfad9881);
    return (int8_t)(half >> 8 * (s & 7));
}

/* d of a scale of a trellis kind. */
static inline MOE_DEVICE_CODE int moe_trellis_scale(int kind, uint8_t s)
{
    return kind == MOE_LAYOUT_IQ3_KT   ? s
           : kind == MOE_LAYOUT_IQ4_KT ? (s >> 1) - 64
                                       : moe_iq4_number(s);
}

/* d and m of a scale, from what the head says: d and dmin (m of affine kinds), s and t; the
 * exponent is s, e is t. Not of kinds with zero points. */
static inline MOE_DEVICE_CODE struct moe_scales moe_kind_scales_of(int kind, float d, float dmin,
                                                                   uint8_t s, uint8_t t)
{
    struct moe_scales of = {d, dmin};
    switch (moe_kind_base(kind)) {
    case MOE_LAYOUT_MXFP4:
        of.d = moe_mxfp4_scale(s);
        break;
    case MOE_LAYOUT_NVFP4:
        of.d = moe_nvfp4_scale(s);
        break;
    case MOE_LAYOUT_Q6_K:
    case MOE_LAYOUT_IQ6_K:
        of.d = d * (float)(int8_t)s;
        of.m = of.d * (float)(moe_kind_shift(kind) * t);
        break;
    case MOE_LAYOUT_Q2_K:
    case MOE_LAYOUT_Q4_K:
    case MOE_LAYOUT_Q5_K:
        of.d = d * (float)s;
        of.m = -(dmin * (float)t);
        break;
    default:
        if (moe_kind_is_trellis(kind))
            of.d = (float)moe_trellis_scale(kind, s);
        else if (moe_kind_scale_unit(kind) > 0)
            of.d = d * ((float)(2 * s + 1) * moe_kind_scale_unit(kind));
        else if (moe_kind_scale_zero(kind))
            of.d = (moe_kind_has_row_scale(kind) ? 1 : d) *
                   (float)(moe_kind_scale_step(kind) * s - moe_kind_scale_zero(kind));
        if (moe_kind_shift(kind))
            of.m = of.d * (float)(moe_kind_shift(kind) * t);
        break;
    }
    return of;
}

/* Number i of those of four(n) to six(n) at `numbers`, of row r. */
static inline MOE_DEVICE_CODE uint8_t moe_kind_packed_number(int kind, const uint8_t *numbers,
                                                             int i, uint32_t r)
{
    const int n = moe_kind_packed(kind), more = moe_kind_packed_high(kind);
    int number = numbers[i / 2 * MOE_PANEL_ROWS + (int)r] >> i % 2 * 4 & 15;
    if (more) {
        const int of_byte = 8 / more;
        number |= (numbers[(n / 2 + i / of_byte) * MOE_PANEL_ROWS + (int)r] >> i % of_byte * more &
                   ((1 << more) - 1))
                  << 4;
    }
    return (uint8_t)number;
}

static inline MOE_DEVICE_CODE float moe_f16_at(const uint8_t *p)
{
    return moe_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* A row's 4 bytes of a unit as a number. */
static inline MOE_DEVICE_CODE uint32_t moe_unit_word(const uint8_t *unit, uint32_t r)
{
    const uint8_t *p = unit + 4 * r;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The s in a row's word of signs: every other bit of its last byte. */
static inline MOE_DEVICE_CODE uint8_t moe_signs_scale(uint32_t signs)
{
    uint32_t s = signs >> 25 & 0x55;
    s = (s | s >> 1) & 0x33;
    return (uint8_t)((s | s >> 2) & 15);
}

/* s of scale number i of a kind with a grid: `numbers` are those of its span's head, `codes` its
 * block's. */
static inline MOE_DEVICE_CODE uint8_t moe_grid_scale(int kind, const uint8_t *numbers,
                                                     const uint8_t *codes, int i, uint32_t r)
{
    const uint8_t *bytes = numbers + r, *unit = codes + 64 * moe_kind_plane(kind);
    switch (kind) {
    case MOE_LAYOUT_IQ2_XS:
    case MOE_LAYOUT_IQ2_S:
    case MOE_LAYOUT_IQ3_S:
        return bytes[i / 2 * MOE_PANEL_ROWS] >> i % 2 * 4 & 15;
    case MOE_LAYOUT_IQ1_S:
        bytes += 2 * i * MOE_PANEL_ROWS;
        return (uint8_t)((bytes[0] >> 3 & 1) | (bytes[0] >> 6 & 2) |
                         (bytes[MOE_PANEL_ROWS] >> 1 & 4));
    case MOE_LAYOUT_IQ1_M:
        return (uint8_t)((bytes[i / 4 * MOE_PANEL_ROWS] >> i % 4 * 2 & 3) |
                         (bytes[(4 + i / 8) * MOE_PANEL_ROWS] >> i % 8 & 1) << 2);
    default:
        return moe_signs_scale(moe_unit_word(unit, r));
    }
}

/* The byte of a block of IQ4_KT that its units' words have two bits each of. */
static inline MOE_DEVICE_CODE uint8_t moe_iq4_kt_byte(const uint8_t *codes, uint32_t r)
{
    uint32_t byte = 0;
    for (uint32_t j = 0; j < 4; j++)
        byte |= (uint32_t)(codes[4 * MOE_PANEL_ROWS * j + 4 * r + 3] >> 6) << 2 * j;
    return (uint8_t)byte;
}

/* Scale number i of a span, of row r; `head` is the span's, or of affine kinds the record's,
 * `codes` are its block's. */
static inline MOE_DEVICE_CODE struct moe_scales
moe_kind_scale(int kind, const uint8_t *head, const uint8_t *codes, int i, uint32_t r)
{
    float d = 0, dmin = 0;
    uint8_t s = 0, t = 0;
    if (moe_kind_is_e2m1(kind))
        return moe_kind_scales_of(kind, d, dmin, head[i * MOE_PANEL_ROWS + (int)r], t);
    if (moe_kind_has_d(kind)) {
        d = moe_f16_at(head + 2 * r);
        head += 2 * MOE_PANEL_ROWS;
    }
    if (moe_kind_has_zeros(kind))
        return moe_zero_scales(d, (uint16_t)(head[2 * r] | head[2 * r + 1] << 8));
    if (moe_kind_has_min(kind)) {
        dmin = moe_f16_at(head + 2 * r);
        head += 2 * MOE_PANEL_ROWS;
    }
    if (moe_kind_shift(kind) && !moe_kind_scale_has_e(kind))
        t = head[(moe_kind_shifts_at(kind) + i / 8) * MOE_PANEL_ROWS + (int)r] >> i % 8 & 1;
    if (moe_kind_packed(kind)) {
        s = moe_kind_packed_number(kind, head, i, r);
        if (moe_kind_has_min(kind))
            t = moe_kind_packed_number(kind, head, 8 + i, r);
    } else if (moe_kind_byte_scales(kind)) {
        s = head[i * MOE_PANEL_ROWS + (int)r];
        if (moe_kind_scale_has_e(kind)) {
            t = s & 1;
            s >>= 1;
        } else if (kind == MOE_LAYOUT_Q2_K) {
            t = s >> 4;
            s &= 15;
        }
    } else if (moe_kind_scale_unit(kind) > 0) {
        s = moe_grid_scale(kind, head, codes, i, r);
    } else if (kind == MOE_LAYOUT_IQ4_KT) {
        s = moe_iq4_kt_byte(codes, r);
    }
    return moe_kind_scales_of(kind, d, dmin, s, t);
}

/* The code at `codes` of row r, column c of a block of `block` columns in two planes: `bits` bits,
 * and `more`, which are moved up by `at`. */
static inline MOE_DEVICE_CODE int32_t moe_planes_code(const uint8_t *codes, uint32_t block,
                                                      uint32_t bits, uint32_t more, int at,
                                                      uint32_t r, uint32_t c)
{
    const uint32_t unit = 4 * MOE_PANEL_ROWS, byte = r * 4 + c % 4;
    const uint32_t in_unit = 32 / bits; /* columns */
    int32_t code = codes[c / in_unit * unit + byte] >> c % in_unit / 4 * bits & ((1 << bits) - 1);
    if (more) {
        const uint8_t *plane = codes + block / in_unit * unit;
        const uint32_t columns = 32 / more;
        code |= (plane[c / columns * unit + byte] >> c % columns / 4 * more & ((1 << more) - 1))
                << at;
    }
    return code;
}

/* ---- Grouped kinds: from numbers of groups to codes ---- */

extern const uint32_t moe_grid_iq2_xxs[256];
extern const uint32_t moe_grid_iq2_xs[512];
extern const uint32_t moe_grid_iq2_s[1024];
extern const uint32_t moe_grid_iq1[2048];
extern const uint32_t moe_grid_iq3_xxs[256];
extern const uint32_t moe_grid_iq3_s[512];

/* A kind's grid, and entry `number` of it; in device code dev_grid_ tables are these. */
#ifdef __CUDA_ARCH__
#define MOE_GRID(name) dev_grid_##name
#else
#define MOE_GRID(name) moe_grid_##name
#endif
#ifdef __CUDACC__
#define MOE_GRID_TABLE(name, n) static __device__ const uint32_t dev_grid_##name[n]
#include "quant/grids.h"
#endif
static inline MOE_DEVICE_CODE const uint32_t *moe_kind_grid(int kind)
{
    return kind == MOE_LAYOUT_IQ2_XXS   ? MOE_GRID(iq2_xxs)
           : kind == MOE_LAYOUT_IQ2_XS  ? MOE_GRID(iq2_xs)
           : kind == MOE_LAYOUT_IQ2_S   ? MOE_GRID(iq2_s)
           : kind == MOE_LAYOUT_IQ3_XXS ? MOE_GRID(iq3_xxs)
           : kind == MOE_LAYOUT_IQ3_S   ? MOE_GRID(iq3_s)
                                        : MOE_GRID(iq1);
}

static inline MOE_DEVICE_CODE uint32_t moe_grid_entry(int kind, uint32_t number)
{
    return moe_kind_grid(kind)[number];
}

/* A row's word of signs, the last sign of every eight columns put back in its place. */
static inline MOE_DEVICE_CODE uint32_t moe_signs_whole(int kind, uint32_t signs)
{
    if (kind == MOE_LAYOUT_IQ2_S || kind == MOE_LAYOUT_IQ3_S)
        return signs;
    uint32_t known = signs & 0x55ffffffu, odd = known ^ known >> 8;
    odd ^= odd >> 16;
    return known | ((odd ^ odd >> 1) & 0x55u) << 25;
}

/* Where a group's higher bits begin in what moe_group_more returns, from group to group. */
MOE_KIND_CONSTANT int moe_group_stride(int kind)
{
    return moe_kind_is_iq1(kind)                                   ? 4
           : kind == MOE_LAYOUT_IQ2_S || kind == MOE_LAYOUT_IQ2_XS ? 2
                                                                   : 1;
}

/* Bits of a group's number but the low 8. */
MOE_KIND_CONSTANT int moe_group_bits(int kind)
{
    return moe_kind_is_iq1(kind)                                   ? 3
           : kind == MOE_LAYOUT_IQ2_S                              ? 2
           : kind == MOE_LAYOUT_IQ2_XS || kind == MOE_LAYOUT_IQ3_S ? 1
                                                                   : 0;
}

/* The numbers' higher bits: of block b of a span of row r, whose word of signs is given. */
static inline MOE_DEVICE_CODE uint32_t moe_group_more(int kind, const uint8_t *head, uint32_t b,
                                                      uint32_t r, uint32_t signs)
{
    const uint8_t *bytes = head + 2 * MOE_PANEL_ROWS + r;
    switch (kind) {
    case MOE_LAYOUT_IQ1_S:
        bytes += 2 * b * MOE_PANEL_ROWS;
        return bytes[0] | (uint32_t)bytes[MOE_PANEL_ROWS] << 8;
    case MOE_LAYOUT_IQ1_M:
        bytes += (6 + 2 * b) * MOE_PANEL_ROWS;
        return bytes[0] | (uint32_t)bytes[MOE_PANEL_ROWS] << 8;
    case MOE_LAYOUT_IQ2_XS:
        return signs >> 25;
    case MOE_LAYOUT_IQ2_S:
        return bytes[(8 + b) * MOE_PANEL_ROWS];
    case MOE_LAYOUT_IQ3_S:
        return bytes[(4 + b) * MOE_PANEL_ROWS];
    default:
        return 0;
    }
}

/* The entry of group g, of whose number `low` are the low 8 bits. */
static inline MOE_DEVICE_CODE uint32_t moe_group_entry(int kind, uint32_t low, uint32_t more,
                                                       uint32_t g)
{
    const uint32_t mask = (1u << moe_group_bits(kind)) - 1;
    uint32_t high = more >> g * (uint32_t)moe_group_stride(kind) & mask;
    return moe_grid_entry(kind, low | high << 8);
}

/* Digit k of the four of TQ1_0 that the bytes of `word` begin with, in their low bits. */
static inline MOE_DEVICE_CODE uint32_t moe_ternary_digits(uint32_t word, uint32_t k)
{
    const uint32_t bytes = 0x00ff00ffu;
    const uint32_t power = k == 0 ? 1 : k == 1 ? 3 : k == 2 ? 9 : k == 3 ? 27 : 81;
    uint32_t even = (word & bytes) * power & bytes, odd = (word >> 8 & bytes) * power & bytes;
    return (even * 3 >> 8 & bytes) | (odd * 3 & ~bytes);
}

/* The four codes of columns 4s .. of a block of TQ1_0; `word` is its own, block b of a span. */
static inline MOE_DEVICE_CODE uint32_t moe_ternary_quad(const uint8_t *head, uint32_t b, uint32_t r,
                                                        uint32_t word, uint32_t s)
{
    uint32_t digit = s < 5 ? s : 3 * b + s - 5;
    if (s >= 5)
        word = moe_unit_word(head + 2 * MOE_PANEL_ROWS + digit / 5 * (4 * MOE_PANEL_ROWS), r);
    return moe_ternary_digits(word, digit % 5);
}

/* ---- Trellis kinds ---- */

/* Columns of a group. */
MOE_KIND_CONSTANT uint32_t moe_trellis_columns(int kind)
{
    return kind == MOE_LAYOUT_IQ4_KT ? 4 : 8;
}

/* What the groups of block b of row r have beside their words: IQ1_KT's higher bits of numbers, the
 * last bits 16 up; IQ4_KT's lowest bit of the block's byte. */
static inline MOE_DEVICE_CODE uint32_t moe_trellis_more(int kind, const uint8_t *head,
                                                        const uint8_t *codes, uint32_t b,
                                                        uint32_t r)
{
    const uint8_t *h = head + (8 + 2 * b) * MOE_PANEL_ROWS + r;
    if (kind == MOE_LAYOUT_IQ1_KT)
        return h[0] | (uint32_t)h[MOE_PANEL_ROWS] << 8 |
               (uint32_t)(head[b * MOE_PANEL_ROWS + r] >> 4) << 16;
    return kind == MOE_LAYOUT_IQ4_KT ? codes[4 * r + 3] >> 6 & 1 : 0;
}

/* x + 4096 of group g, from the row's word of the unit that has it. */
static inline MOE_DEVICE_CODE uint32_t moe_trellis_start(int kind, uint32_t word, uint32_t more,
                                                         uint32_t g)
{
    if (kind == MOE_LAYOUT_IQ1_KT)
        return 4096 +
               ((word >> 8 * g & 255) | (more >> 4 * g & 15) << 8 | (more >> (16 + g) & 1) << 12);
    if (kind == MOE_LAYOUT_IQ4_KT)
        return 4096 + ((word >> 15 * (g % 2) & 0x7fff) | more << 15);
    return 4096 + (word >> 16 * (g % 2) & 0xffff);
}

/* What a start is multiplied by for columns 0 to 7. */
#define MOE_TRELLIS_POWERS                                                                         \
    {                                                                                              \
        0xcbac1fedu, 0xc8734169u, 0xbd2b4535u, 0xe50c7d11u, 0x1220d7bdu, 0x94839cf9u, 0x58267985u, \
            0x60b19b21u                                                                            \
    }

/* Bytes v + `plus` of columns first.. of four of a group; the lowest bits of the bytes of `signs`
 * are their signs in IQ3_KT. */
static inline MOE_DEVICE_CODE uint32_t moe_trellis_quad(int kind, uint32_t start, uint32_t first,
                                                        uint32_t signs, uint32_t plus)
{
    const uint32_t powers[8] = MOE_TRELLIS_POWERS;
    uint32_t quad = 0;
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t sum = (start * powers[first + k] & 0x3f3f3f3fu) * 0x01010101u >> 24;
        if (kind == MOE_LAYOUT_IQ3_KT) {
            const uint32_t less = sum < 126, wanted = signs >> 8 * k & 1;
            sum = less == wanted ? sum : 252 - sum;
        }
        quad |= ((sum - 126 + plus) & 255) << 8 * k;
    }
    return quad;
}

/* The code, v + 126, of column c of a block: `word` is that of the unit that has its group, `signs`
 * the row's. */
static inline MOE_DEVICE_CODE int32_t moe_trellis_code(int kind, uint32_t word, uint32_t more,
                                                       uint32_t signs, uint32_t c)
{
    const uint32_t columns = moe_trellis_columns(kind);
    const uint32_t start = moe_trellis_start(kind, word, more, c / columns);
    uint32_t quad = moe_trellis_quad(kind, start, c % columns / 4 * 4, signs >> c / 4, 126);
    return (int32_t)(quad >> 8 * (c % 4) & 255);
}

/* The unit that has the group of column c. */
static inline MOE_DEVICE_CODE uint32_t moe_trellis_unit(int kind, uint32_t c)
{
    return kind == MOE_LAYOUT_IQ1_KT ? 0 : c / moe_trellis_columns(kind) / 2;
}

/* ---- IQ2_KL ---- */

/* Bytes v + `plus` of quad s of a block: `word` is the row's of unit s / 4, `more` its byte of h.
 */
static inline MOE_DEVICE_CODE uint32_t moe_pairs_quad(uint32_t word, uint32_t more, uint32_t s,
                                                      int plus)
{
    const uint32_t n = s / 2 % 2;
    uint32_t quad = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t k = s % 2 + 2 * i;
        const uint32_t x = (word >> (8 * k + 4 * n) & 15) | (more >> (4 * n + k) & 1) << 4;
        quad |= (uint32_t)((MOE_PAIRS[0][x] + plus) & 255) << 16 * i;
        quad |= (uint32_t)((MOE_PAIRS[1][x] + plus) & 255) << (16 * i + 8);
    }
    return quad;
}

/* The byte of h of unit j of block b of a span with this head. */
static inline MOE_DEVICE_CODE uint32_t moe_pairs_more(const uint8_t *head, uint32_t b, uint32_t j,
                                                      uint32_t r)
{
    return head[(6 + 2 * b + j) * MOE_PANEL_ROWS + r];
}

/* A row's words of the units of codes that a block of a grouped kind becomes: of the first plane,
 * in order, and of the second. */
struct moe_code_words {
    uint32_t first[4], second;
};

/* In kinds with a grid those of the first plane, from the row's words of the units of numbers. */
static inline MOE_DEVICE_CODE void moe_grid_first(int kind, const uint32_t *words, uint32_t more,
                                                  uint32_t first[4])
{
    const uint32_t groups = moe_kind_is_iq3(kind) ? 8 : 4;
    for (uint32_t g = 0; g < groups; g += 2)
        first[g / 2] = moe_group_entry(kind, words[g / 4] >> 8 * (g % 4) & 255, more, g) |
                       moe_group_entry(kind, words[g / 4] >> 8 * (g % 4 + 1) & 255, more, g + 1)
                           << 4;
}

/* That of the second, from its word of signs or, in IQ1, the numbers' higher bits. */
static inline MOE_DEVICE_CODE uint32_t moe_grid_second(int kind, uint32_t signs, uint32_t more)
{
    if (!moe_kind_is_iq1(kind))
        return moe_signs_whole(kind, signs);
    if (kind == MOE_LAYOUT_IQ1_S)
        return more >> 15 & 1 ? 0xffffffffu : 0;
    return ((more >> 3 & 1) * 0x03 | (more >> 7 & 1) * 0x0c | (more >> 11 & 1) * 0x30 |
            (more >> 15 & 1) * 0xc0) *
           0x01010101u;
}

/* Of block b of a span with this head, whose codes lie at `codes`. */
static inline MOE_DEVICE_CODE struct moe_code_words
moe_grouped_codes(int kind, const uint8_t *head, const uint8_t *codes, uint32_t b, uint32_t r)
{
    const int units = moe_kind_plane(kind) + moe_kind_high_plane(kind);
    struct moe_code_words of = {{0, 0, 0, 0}, 0};
    uint32_t words[3];
    for (int i = 0; i < units; i++)
        words[i] = moe_unit_word(codes + 4 * MOE_PANEL_ROWS * i, r);
    if (kind != MOE_LAYOUT_TQ1_0) {
        const uint32_t signs = words[units - 1], more = moe_group_more(kind, head, b, r, signs);
        moe_grid_first(kind, words, more, of.first);
        of.second = moe_grid_second(kind, signs, more);
        return of;
    }
    for (uint32_t s = 0; s < 8; s++)
        of.first[s / 4] |= moe_ternary_quad(head, b, r, words[0], s) << 2 * (s % 4);
    return of;
}

/* The code of row r, column c of a block of `block` columns whose codes lie at `codes`; of grouped
 * kinds of block b of a span with this head. */
static inline MOE_DEVICE_CODE int32_t moe_kind_code(int kind, const uint8_t *head, uint32_t b,
                                                    const uint8_t *codes, uint32_t block,
                                                    uint32_t r, uint32_t c)
{
    const uint32_t bits = (uint32_t)moe_code_plane(kind), in_unit = 32 / bits;
    if (!moe_kind_is_grouped(kind))
        return moe_planes_code(codes, block, bits, (uint32_t)moe_kind_high_plane(kind), (int)bits,
                               r, c);
    if (kind == MOE_LAYOUT_IQ2_KL) {
        const uint32_t word = moe_unit_word(codes + 4 * MOE_PANEL_ROWS * (c / 16), r);
        uint32_t quad = moe_pairs_quad(word, moe_pairs_more(head, b, c / 16, r), c / 4, 63);
        return (int32_t)(quad >> 8 * (c % 4) & 255);
    }
    if (moe_kind_is_trellis(kind)) {
        const uint8_t *unit = codes + 4 * MOE_PANEL_ROWS * moe_trellis_unit(kind, c);
        const uint32_t more = moe_trellis_more(kind, head, codes, b, r);
        const uint32_t signs =
            kind == MOE_LAYOUT_IQ3_KT ? moe_unit_word(codes + 2 * 4 * MOE_PANEL_ROWS, r) : 0;
        return moe_trellis_code(kind, moe_unit_word(unit, r), more, signs, c);
    }
    struct moe_code_words of = moe_grouped_codes(kind, head, codes, b, r);
    uint32_t byte = of.first[c / in_unit] >> 8 * (c % 4);
    uint32_t code = byte >> c % in_unit / 4 * bits & ((1u << bits) - 1);
    return (int32_t)(code | (of.second >> (8 * (c % 4) + c / 4) & 1) << moe_code_high_at(kind));
}

/* ---- Packing: rows of plain numbers into a layout ---- */

/* One group of one row, from an encoder (quantize.h). */
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

/* A span of one row in the terms of the table above, from a checkpoint's block (ggml.h). Of affine
 * kinds a group: d, m and its codes. */
struct moe_span_codes {
    uint16_t d, m;        /* f16 bits; m is dmin, or the word of a zero point */
    uint8_t s[16], t[16]; /* one per scale; of grouped kinds t is h */
    /* One per column. Of grouped kinds from 32 b on a row's bytes of the units of block b, with the
     * second plane behind the first; of TQ1_0 a digit per column. */
    uint8_t codes[MOE_MAX_SPAN];
    float factor; /* of the row, in kinds that have one; of scaled kinds s */
};

/* Stores span number `i` of row `row` into a matrix at `data`, zeroed at first, of a kind that has
 * spans, or affine with groups of MOE_MAX_SPAN at most, or scaled: then a group, or of whole rows
 * 32 columns; where rows share a scale, they have the same. NOT safe for two threads storing rows
 * of the same panel. */
void moe_layout_store_span(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                           uint32_t i, const struct moe_span_codes *span);
/* The same for n_rows rows from `row` on, all in one panel: span number i of each. */
void moe_layout_store_spans(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                            uint32_t n_rows, uint32_t i, const struct moe_span_codes *spans);

/* The weights of n columns of a span. */
void moe_layout_span_weights(uint16_t kind, const struct moe_span_codes *span, uint32_t n,
                             float *out);

/* Stores block number `b` of row `row` into an MXFP4 matrix at `data`, zeroed at first: exponent
 * `e` and the block's codes, one of 0..15 per column (32, fewer at the end of the row). False, and
 * nothing stored, when e is 255: the block is NaN, which is not stored here. NOT safe for two
 * threads storing rows of the same panel. */
bool moe_layout_store_mxfp4(uint8_t *data, uint32_t cols, uint32_t row, uint32_t b, uint8_t e,
                            const uint8_t *codes);

/* The number of a code (moe_kind_code): v, or q in kinds with an offset. Not of scaled kinds. */
int32_t moe_layout_number(int kind, int32_t code);

/* The reference decoder: row `row` of a matrix as f32, d*v, d*q+m, without fma unless m is d*k*e.
 * `out` has mat->cols values. */
void moe_layout_load_row(const struct moe_mat *mat, uint32_t row, float *out);

#ifdef __cplusplus
}
#endif

#endif
