/* GGUF's block types: their sizes, their values, and how they become layouts. */
#include "quant/ggml.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"

enum {
    FACTOR = 4,      /* bytes of a row's factor behind a block */
    MAX_SCALED = 448 /* the largest number of a scaled kind */
};

/* ---- Blocks of 32 ---- */

/* 2n columns: the first half in the low bits of n bytes, the second in the high ones. */
static void read_nibbles(const uint8_t *from, int n, uint8_t *codes)
{
    for (int i = 0; i < n; i++) {
        codes[i] = from[i] & 15;
        codes[n + i] = from[i] >> 4;
    }
}

/* The fifth bits of 32 columns, then their nibbles. */
static void read_five_bits(const uint8_t *from, uint8_t *codes)
{
    read_nibbles(from + 4, 16, codes);
    for (int i = 0; i < 4; i++, codes += 8) { /* a bit to each of 8 bytes */
        uint64_t high = from[i] * 0x0101010101010101u & 0x8040201008040201u;
        high = (high + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u;
        moe_put_u64(codes, moe_get_u64(codes) | high);
    }
}

/* d, signed bytes. */
static void read_q8_0(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int i = 0; i < 32; i++)
        span->codes[i] = block[2 + i] ^ 0x80;
}

static void read_q4_0(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    read_nibbles(block + 2, 16, span->codes);
}

static void read_q4_1(const uint8_t *block, struct moe_span_codes *span)
{
    read_q4_0(block, span);
    span->m = moe_get_u16(block + 2);
    read_nibbles(block + 4, 16, span->codes);
}

static void read_q5_0(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    read_five_bits(block + 2, span->codes);
}

static void read_q5_1(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    span->m = moe_get_u16(block + 2);
    read_five_bits(block + 4, span->codes);
}

/* d, 8 bytes with the two high bits of four columns eight apart, from low to high of columns i,
 * 16 + i, 8 + i and 24 + i, then nibbles: dequantize_row_q6_0 of ik_llama.cpp's ggml-quants.c. */
static void read_q6_0(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    read_nibbles(block + 10, 16, span->codes);
    for (int i = 0; i < 32; i++)
        span->codes[i] |= (uint8_t)((block[2 + i % 8] >> (i / 16 * 2 + i / 8 % 2 * 4) & 3) << 4);
}

static void read_mxfp4(const uint8_t *block, struct moe_span_codes *span)
{
    span->s[0] = block[0];
    read_nibbles(block + 1, 16, span->codes);
}

/* Four scales, then 8 bytes for the columns of each. The scale that means NaN in OCP's E4M3 counts
 * as 0 in ggml, and the sign does not count. */
static void read_nvfp4(const uint8_t *block, struct moe_span_codes *span)
{
    for (int i = 0; i < 4; i++) {
        span->s[i] = (block[i] & 0x7f) == 0x7f ? 0 : block[i] & 0x7f;
        read_nibbles(block + 4 + 8 * i, 8, span->codes + 16 * i);
    }
}

/* ---- Blocks of 256 ---- */

/* Codes of `bits` bits, 32 columns in the same bits of 32 bytes, which hold 256 / bits: added to
 * the codes, `to` bits further up. */
static void add_bits(const uint8_t *from, int bits, int to, uint8_t *codes)
{
    const int mask = (1 << bits) - 1;
    for (int part = 0; part < bits; part++, from += 32)
        for (int shift = 0; shift < 8; shift += bits, codes += 32)
            for (int i = 0; i < 32; i++)
                codes[i] |= (uint8_t)((from[i] >> shift & mask) << to);
}

/* 16 bytes of scales (low bits: scale, high bits: minimum), low bits, d, dmin. */
static void read_q2_k(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block + 80);
    span->m = moe_get_u16(block + 82);
    for (int i = 0; i < 16; i++) {
        span->s[i] = block[i] & 15;
        span->t[i] = block[i] >> 4;
    }
    add_bits(block + 16, 2, 0, span->codes);
}

/* High bits, low bits, 12 bytes of scales, d. */
static void read_q3_k(const uint8_t *block, struct moe_span_codes *span)
{
    const uint8_t *scales = block + 96;
    span->d = moe_get_u16(block + 108);
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
        span->s[i] = (uint8_t)(low | (scales[8 + i % 4] >> i / 4 * 2 & 3) << 4);
    }
    add_bits(block + 32, 2, 0, span->codes);
    add_bits(block, 1, 2, span->codes);
}

/* d, dmin, 12 bytes with 8 scales and 8 minima of 6 bits. */
static void read_k_scales(const uint8_t *block, struct moe_span_codes *span)
{
    const uint8_t *scales = block + 4;
    span->d = moe_get_u16(block);
    span->m = moe_get_u16(block + 2);
    for (int i = 0; i < 4; i++) {
        span->s[i] = scales[i] & 63;
        span->t[i] = scales[4 + i] & 63;
        span->s[4 + i] = (uint8_t)((scales[8 + i] & 15) | scales[i] >> 6 << 4);
        span->t[4 + i] = (uint8_t)(scales[8 + i] >> 4 | scales[4 + i] >> 6 << 4);
    }
}

static void read_q4_k(const uint8_t *block, struct moe_span_codes *span)
{
    read_k_scales(block, span);
    add_bits(block + 16, 4, 0, span->codes);
}

static void read_q5_k(const uint8_t *block, struct moe_span_codes *span)
{
    read_k_scales(block, span);
    add_bits(block + 48, 4, 0, span->codes);
    add_bits(block + 16, 1, 4, span->codes);
}

/* Low bits, high bits, 16 signed scales, d. */
static void read_q6_k(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block + 208);
    memcpy(span->s, block + 192, 16);
    for (int half = 0; half < 2; half++)
        read_nibbles(block + 64 * half, 64, span->codes + 128 * half);
    add_bits(block + 128, 2, 4, span->codes);
}

/* d, high and low bits of 8 scales, nibbles. */
static void read_iq4_xs(const uint8_t *block, struct moe_span_codes *span)
{
    uint32_t high = moe_get_u16(block + 2);
    span->d = moe_get_u16(block);
    for (int i = 0; i < 8; i++) {
        span->s[i] = (uint8_t)((block[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4);
        read_nibbles(block + 8 + 16 * i, 16, span->codes + 32 * i);
    }
}

static void read_tq2_0(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block + 64);
    add_bits(block, 2, 0, span->codes);
}

/* The digit to the base of 3 that is the k-th of a byte: the byte is the number times 256 / 243,
 * rounded up. */
static uint8_t ternary_digit(uint8_t byte, int k)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    return (uint8_t)((uint8_t)(byte * powers[k]) * 3 >> 8);
}

/* Five digits in each of 48 bytes (32 and 16, whose first digits come first), four in each of 4,
 * d. */
static void read_tq1_0(const uint8_t *block, struct moe_span_codes *span)
{
    static const struct {
        int bytes, digits;
    } parts[] = {{32, 5}, {16, 5}, {4, 4}};
    uint8_t *code = span->codes;
    span->d = moe_get_u16(block + 52);
    for (int p = 0; p < 3; block += parts[p++].bytes)
        for (int k = 0; k < parts[p].digits; k++)
            for (int i = 0; i < parts[p].bytes; i++)
                *code++ = ternary_digit(block[i], k);
}

/* d, 32 numbers of 2 bits, four to a byte, or of 1 bit. */
static void read_q2_0(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int i = 0; i < 64; i++)
        span->codes[i] = block[2 + i / 4] >> i % 4 * 2 & 3;
}

static void read_q1_0(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int i = 0; i < 128; i++)
        span->codes[i] = block[2 + i / 8] >> i % 8 & 1;
}

/* ---- Blocks of ik_llama.cpp's types ---- */

/* n bits into their places t. */
static void read_shifts(uint32_t bits, int n, struct moe_span_codes *span)
{
    for (int i = 0; i < n; i++)
        span->t[i] = bits >> i & 1;
}

/* Low four bits of n scales, in pairs. */
static void read_low_scales(const uint8_t *from, int n, struct moe_span_codes *span)
{
    for (int i = 0; i < n; i++)
        span->s[i] = from[i / 2] >> i % 2 * 4 & 15;
}

/* 4 bits of 256 columns, 32 by 32 in pairs. */
static void read_pairs_of_32(const uint8_t *from, uint8_t *codes)
{
    for (int i = 0; i < 8; i++)
        read_nibbles(from + 16 * i, 16, codes + 32 * i);
}

/* d, bits e, scales, codes. */
static void read_iq2_k(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    read_shifts(moe_get_u16(block + 2), 16, span);
    read_low_scales(block + 4, 16, span);
    add_bits(block + 12, 2, 0, span->codes);
}

/* Bits e, high bits of scales, their low bits, codes; the row's factor. */
static void read_iq2_ks(const uint8_t *block, struct moe_span_codes *span)
{
    read_shifts(block[0], 8, span);
    read_low_scales(block + 2, 8, span);
    for (int i = 0; i < 8; i++)
        span->s[i] |= (uint8_t)((block[1] >> i & 1) << 4);
    add_bits(block + 6, 2, 0, span->codes);
    span->factor = moe_bits_f32(moe_get_u32(block + 70));
}

/* d, bits e, signs of scales, what else they are, low and high bits of codes. A scale 2 i + 1 or
 * -(2 i + 1) is 2 s - 31. */
static void read_iq3_k(const uint8_t *block, struct moe_span_codes *span)
{
    const uint32_t negative = moe_get_u16(block + 4);
    span->d = moe_get_u16(block);
    read_shifts(moe_get_u16(block + 2), 16, span);
    read_low_scales(block + 6, 16, span);
    for (int i = 0; i < 16; i++)
        span->s[i] = (uint8_t)(negative >> i & 1 ? 15 - span->s[i] : 16 + span->s[i]);
    add_bits(block + 14, 2, 0, span->codes);
    add_bits(block + 78, 1, 2, span->codes);
}

/* High bits of scales, bits e, low bits of scales (of the first four blocks in the low halves of
 * bytes), low and high bits of codes; the row's factor. */
static void read_iq3_ks(const uint8_t *block, struct moe_span_codes *span)
{
    read_shifts(block[1], 8, span);
    for (int i = 0; i < 8; i++)
        span->s[i] = (uint8_t)((block[2 + i % 4] >> i / 4 * 4 & 15) | (block[0] >> i & 1) << 4);
    add_bits(block + 6, 2, 0, span->codes);
    add_bits(block + 70, 1, 2, span->codes);
    span->factor = moe_bits_f32(moe_get_u32(block + 102));
}

/* d, bits e, high and low bits of 16 scales. */
static void read_six_scales(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    read_shifts(moe_get_u16(block + 2), 16, span);
    read_low_scales(block + 8, 16, span);
    for (int i = 0; i < 16; i++)
        span->s[i] |= (uint8_t)((block[4 + i / 4] >> i % 4 * 2 & 3) << 4);
}

static void read_iq4_k(const uint8_t *block, struct moe_span_codes *span)
{
    read_six_scales(block, span);
    read_pairs_of_32(block + 16, span->codes);
}

static void read_iq5_k(const uint8_t *block, struct moe_span_codes *span)
{
    read_six_scales(block, span);
    add_bits(block + 16, 4, 0, span->codes);
    add_bits(block + 144, 1, 4, span->codes);
}

/* Bytes of a scale and, lowest, e. */
static void read_scales_with_shifts(const uint8_t *block, struct moe_span_codes *span)
{
    for (int i = 0; i < 8; i++) {
        span->s[i] = block[i] >> 1;
        span->t[i] = block[i] & 1;
    }
}

static void read_iq4_ks(const uint8_t *block, struct moe_span_codes *span)
{
    read_scales_with_shifts(block, span);
    read_pairs_of_32(block + 8, span->codes);
    span->factor = moe_bits_f32(moe_get_u32(block + 136));
}

/* As IQ4_KS, but the lowest of each 16 bits is one of the scale: the codes are the Gray code of a
 * number whose lowest bit is 0. */
static void read_iq4_kss(const uint8_t *block, struct moe_span_codes *span)
{
    for (int i = 0; i < 8; i++) {
        uint8_t pairs[16], scale = 0;
        for (int k = 0; k < 8; k++) {
            const uint32_t both = moe_get_u16(block + 16 * i + 2 * k), even = both & 0xfffe;
            moe_put_u16(pairs + 2 * k, (uint16_t)(even ^ even >> 1));
            scale |= (uint8_t)((both & 1) << k);
        }
        read_nibbles(pairs, 16, span->codes + 32 * i);
        span->s[i] = scale >> 1;
        span->t[i] = scale & 1;
    }
    span->factor = moe_bits_f32(moe_get_u32(block + 128));
}

static void read_iq5_ks(const uint8_t *block, struct moe_span_codes *span)
{
    read_scales_with_shifts(block, span);
    add_bits(block + 8, 4, 0, span->codes);
    add_bits(block + 136, 1, 4, span->codes);
    span->factor = moe_bits_f32(moe_get_u32(block + 168));
}

/* d, bits e, signed scales, low and high bits of codes. */
static void read_iq6_k(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    read_shifts(moe_get_u16(block + 2), 16, span);
    memcpy(span->s, block + 4, 16);
    add_bits(block + 20, 4, 0, span->codes);
    add_bits(block + 148, 2, 4, span->codes);
}

/* ---- Blocks of numbers of a grid ---- */

/* Where a span has the words of a block's units (layout.h). */
static uint8_t *words_of(struct moe_span_codes *span, int b)
{
    return span->codes + 32 * b;
}

/* A word of signs, from a byte for each eight columns: of column c it has bit 8 (c % 4) + c / 4. A
 * product puts the four bits of half a byte into four bytes. */
static uint32_t signs_word(const uint8_t signs[4])
{
    uint32_t word = 0;
    for (int four = 0; four < 8; four++) {
        uint32_t half = signs[four / 2] >> four % 2 * 4 & 15;
        word |= (half * 0x00204081 & 0x01010101) << four;
    }
    return word;
}

/* The same from four numbers of 7 bits, for the first seven of each eight columns. */
static uint32_t seven_signs(uint32_t sevens)
{
    const uint8_t signs[4] = {sevens & 127, sevens >> 7 & 127, sevens >> 14 & 127,
                              sevens >> 21 & 127};
    return signs_word(signs);
}

/* Four bits into the places of the last signs. */
static uint32_t beside_signs(uint32_t four)
{
    return (four & 1) << 25 | (four & 2) << 26 | (four & 4) << 27 | (four & 8) << 28;
}

/* Scales, and beside them bit 12 of numbers; the numbers' low 8 bits, then four more of those of
 * the first and of the second half of the blocks. */
static void read_iq1_kt(const uint8_t *block, struct moe_span_codes *span)
{
    for (int b = 0; b < 8; b++) {
        span->s[b] = block[b];
        memcpy(words_of(span, b), block + 8 + 4 * b, 4);
        for (int g = 0; g < 4; g++)
            span->t[2 * b + g / 2] |=
                (uint8_t)((block[40 + b % 4 * 4 + g] >> b / 4 * 4 & 15) << g % 2 * 4);
    }
    span->factor = moe_bits_f32(moe_get_u32(block + 56));
}

/* Four scales, those of the other blocks in the high bits; numbers of 16 bits. */
static void read_iq2_kt(const uint8_t *block, struct moe_span_codes *span)
{
    for (int b = 0; b < 8; b++) {
        span->s[b] = block[b % 4] >> b / 4 * 4 & 15;
        memcpy(words_of(span, b), block + 4 + 8 * b, 8);
    }
    span->factor = moe_bits_f32(moe_get_u32(block + 68));
}

/* The same, and behind it for each column of a block a byte with the signs of all blocks. */
static void read_iq3_kt(const uint8_t *block, struct moe_span_codes *span)
{
    read_iq2_kt(block, span);
    for (int b = 0; b < 8; b++) {
        uint32_t signs = 0;
        for (int c = 0; c < 32; c++)
            signs |= (uint32_t)(block[68 + c] >> b & 1) << (8 * (c % 4) + c / 4);
        moe_put_u32(words_of(span, b) + 8, signs);
    }
    span->factor = moe_bits_f32(moe_get_u32(block + 100));
}

/* For each block a word of its byte (layout.h) and the three highest bits of its eight numbers; the
 * numbers' low 8 bits, then four more of those of the first and of the second half of the blocks.
 */
static void read_iq4_kt(const uint8_t *block, struct moe_span_codes *span)
{
    for (uint32_t b = 0; b < 8; b++) {
        const uint32_t word = moe_get_u32(block + 4 * b), byte = word & 255;
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t both = (byte >> 2 * j & 3) << 30;
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t g = 2 * j + i, at = 8 * b + g;
                uint32_t x = block[32 + at] | (word >> (8 + 3 * g) & 7) << 12;
                x |= (block[96 + at % 32] >> at / 32 * 4 & 15u) << 8;
                both |= x << 15 * i;
            }
            moe_put_u32(words_of(span, (int)b) + 4 * j, both);
        }
        span->s[b] = (uint8_t)byte;
    }
    span->factor = moe_bits_f32(moe_get_u32(block + 128));
}

/* High and low bits of scales; low bits of 32 numbers for 64 columns, those of the second 32 in the
 * high bits; for each number of a block a byte with the high bits of all blocks. */
static void read_iq2_kl(const uint8_t *block, struct moe_span_codes *span)
{
    const uint32_t high = moe_get_u16(block);
    for (int b = 0; b < 8; b++) {
        span->s[b] = (uint8_t)((block[2 + b % 4] >> b / 4 * 4 & 15) | (high >> 2 * b & 3) << 4);
        for (int p = 0; p < 16; p++) {
            const int j = p / 8, n = p / 4 % 2, k = p / 2 % 2 + p % 2 * 2;
            words_of(span, b)[4 * j + k] |=
                (uint8_t)((block[6 + b / 2 * 16 + p] >> b % 2 * 4 & 15) << 4 * n);
            span->t[2 * b + j] |= (uint8_t)((block[70 + p] >> b & 1) << (4 * n + k));
        }
    }
    span->factor = moe_bits_f32(moe_get_u32(block + 86));
}

/* d, then for 32 columns four numbers and a word of signs and scale. */
static void read_iq2_xxs(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int b = 0; b < 8; b++) {
        uint32_t signs = moe_get_u32(block + 2 + 8 * b + 4);
        memcpy(words_of(span, b), block + 2 + 8 * b, 4);
        span->s[b] = (uint8_t)(signs >> 28);
        moe_put_u32(words_of(span, b) + 4, seven_signs(signs) | beside_signs(signs >> 28));
    }
}

/* d, 32 times 9 bits of a number and 7 signs, a byte of scales for 32 columns. */
static void read_iq2_xs(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int b = 0; b < 8; b++) {
        uint32_t sevens = 0, high = 0;
        for (int g = 0; g < 4; g++) {
            uint32_t both = moe_get_u16(block + 2 + 8 * b + 2 * g);
            words_of(span, b)[g] = (uint8_t)both;
            high |= (both >> 8 & 1) << g;
            sevens |= both >> 9 << 7 * g;
        }
        moe_put_u32(words_of(span, b) + 4, seven_signs(sevens) | beside_signs(high));
        span->s[2 * b] = block[66 + b] & 15;
        span->s[2 * b + 1] = block[66 + b] >> 4;
    }
}

/* d, low bits of numbers, signs, high bits, scales. */
static void read_iq2_s(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int b = 0; b < 8; b++) {
        memcpy(words_of(span, b), block + 2 + 4 * b, 4);
        moe_put_u32(words_of(span, b) + 4, signs_word(block + 34 + 4 * b));
        span->t[b] = block[66 + b];
        span->s[2 * b] = block[74 + b] & 15;
        span->s[2 * b + 1] = block[74 + b] >> 4;
    }
}

/* d, 64 numbers, words of signs and scales. */
static void read_iq3_xxs(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int b = 0; b < 8; b++) {
        uint32_t signs = moe_get_u32(block + 66 + 4 * b);
        memcpy(words_of(span, b), block + 2 + 8 * b, 8);
        span->s[b] = (uint8_t)(signs >> 28);
        moe_put_u32(words_of(span, b) + 8, seven_signs(signs) | beside_signs(signs >> 28));
    }
}

/* d, low bits of 64 numbers, their high bits, signs, scales. */
static void read_iq3_s(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int b = 0; b < 8; b++) {
        memcpy(words_of(span, b), block + 2 + 8 * b, 8);
        moe_put_u32(words_of(span, b) + 8, signs_word(block + 74 + 4 * b));
        span->t[b] = block[66 + b];
        span->s[b] = block[106 + b / 2] >> b % 2 * 4 & 15;
    }
}

/* d, low bits of 32 numbers; for 32 columns their high bits, a scale, and what is subtracted. */
static void read_iq1_s(const uint8_t *block, struct moe_span_codes *span)
{
    span->d = moe_get_u16(block);
    for (int b = 0; b < 8; b++) {
        uint32_t both = moe_get_u16(block + 34 + 2 * b), four = 0;
        for (int g = 0; g < 4; g++)
            four |= (both >> 3 * g & 7) << 4 * g | (both >> (12 + g) & 1) << (4 * g + 3);
        memcpy(words_of(span, b), block + 2 + 4 * b, 4);
        moe_put_u16(span->t + 2 * b, (uint16_t)four);
        span->s[b] = both >> 12 & 7;
    }
}

/* Low bits of 32 numbers, their high bits and what is subtracted, 16 scales with d in between. */
static void read_iq1_m(const uint8_t *block, struct moe_span_codes *span)
{
    for (int i = 0; i < 4; i++) {
        uint32_t scales = moe_get_u16(block + 48 + 2 * i);
        span->d |= (uint16_t)(scales >> 12 << 4 * i);
        for (int k = 0; k < 4; k++)
            span->s[4 * i + k] = scales >> 3 * k & 7;
    }
    for (int b = 0; b < 8; b++)
        memcpy(words_of(span, b), block + 4 * b, 4);
    memcpy(span->t, block + 32, 16);
}

/* ---- Blocks that safetensors are read into ---- */

static void read_nvfp4_t(const uint8_t *block, struct moe_span_codes *span)
{
    read_nvfp4(block, span);
    span->factor = moe_bits_f32(moe_get_u32(block + 36));
}

#define READ_CODES(n)                                                                              \
    static void read_codes_##n(const uint8_t *block, struct moe_span_codes *span)                  \
    {                                                                                              \
        span->d = moe_get_u16(block);                                                              \
        span->m = moe_get_u16(block + 2);                                                          \
        memcpy(span->codes, block + 4, n);                                                         \
    }
READ_CODES(32)
READ_CODES(64)
READ_CODES(128)

#define READ_SCALED(n)                                                                             \
    static void read_scaled_##n(const uint8_t *block, struct moe_span_codes *span)                 \
    {                                                                                              \
        span->factor = moe_bits_f32(moe_get_u32(block));                                           \
        memcpy(span->codes, block + 4, n);                                                         \
    }
READ_SCALED(32)
READ_SCALED(64)
READ_SCALED(128)
READ_SCALED(256)

/* ---- The table ---- */

#define CODES(bits, n)                                                                             \
    {                                                                                              \
        MOE_GGML_CODES + 1024 * (bits) + (n), "INT" #bits, n, 4 + (n), MOE_LAYOUT_Q##bits##_Z,     \
            read_codes_##n, 0                                                                      \
    }
#define CODES_OF(bits) CODES(bits, 128), CODES(bits, 64), CODES(bits, 32)

enum { OF_ROW = 1 /* added to a scaled type's number */ };

#define SCALED(kind, name, n, row)                                                                 \
    {                                                                                              \
        MOE_GGML_SCALED + 1024 * (MOE_LAYOUT_##kind - MOE_LAYOUT_F8) + (n) + (row), name, n,       \
            4 + (n), MOE_LAYOUT_##kind, read_scaled_##n, 0                                         \
    }
#define SCALED_OF(kind, name)                                                                      \
    SCALED(kind, name, 32, OF_ROW), SCALED(kind, name, 32, 0), SCALED(kind, name, 64, 0),          \
        SCALED(kind, name, 128, 0), SCALED(kind, name, 256, 0)

static const struct moe_ggml_type types[] = {
    {MOE_GGML_F32, "F32", 1, 4, MOE_LAYOUT_F32, NULL, 0},
    {MOE_GGML_F16, "F16", 1, 2, MOE_LAYOUT_F16, NULL, 0},
    {MOE_GGML_BF16, "BF16", 1, 2, MOE_LAYOUT_BF16, NULL, 0},
    {MOE_GGML_Q8_0, "Q8_0", 32, 34, MOE_LAYOUT_Q8_0, read_q8_0, 0},
    {MOE_GGML_Q4_0, "Q4_0", 32, 18, MOE_LAYOUT_Q4_0, read_q4_0, 0},
    {MOE_GGML_Q4_1, "Q4_1", 32, 20, MOE_LAYOUT_Q4, read_q4_1, 0},
    {MOE_GGML_Q5_0, "Q5_0", 32, 22, MOE_LAYOUT_Q5_0, read_q5_0, 0},
    {MOE_GGML_Q5_1, "Q5_1", 32, 24, MOE_LAYOUT_Q5, read_q5_1, 0},
    {MOE_GGML_Q2_K, "Q2_K", 256, 84, MOE_LAYOUT_Q2_K, read_q2_k, 0},
    {MOE_GGML_Q3_K, "Q3_K", 256, 110, MOE_LAYOUT_Q3_K, read_q3_k, 0},
    {MOE_GGML_Q4_K, "Q4_K", 256, 144, MOE_LAYOUT_Q4_K, read_q4_k, 0},
    {MOE_GGML_Q5_K, "Q5_K", 256, 176, MOE_LAYOUT_Q5_K, read_q5_k, 0},
    {MOE_GGML_Q6_K, "Q6_K", 256, 210, MOE_LAYOUT_Q6_K, read_q6_k, 0},
    {MOE_GGML_IQ4_NL, "IQ4_NL", 32, 18, MOE_LAYOUT_IQ4_NL, read_q4_0, 0},
    {MOE_GGML_IQ4_XS, "IQ4_XS", 256, 136, MOE_LAYOUT_IQ4_XS, read_iq4_xs, 0},
    {MOE_GGML_MXFP4, "MXFP4", 32, 17, MOE_LAYOUT_MXFP4, read_mxfp4, 0},
    {MOE_GGML_NVFP4, "NVFP4", 64, 36, MOE_LAYOUT_NVFP4, read_nvfp4, 0},
    {MOE_GGML_TQ1_0, "TQ1_0", 256, 54, MOE_LAYOUT_TQ1_0, read_tq1_0, 0},
    {MOE_GGML_TQ2_0, "TQ2_0", 256, 66, MOE_LAYOUT_TQ2_0, read_tq2_0, 0},
    {MOE_GGML_IQ1_S, "IQ1_S", 256, 50, MOE_LAYOUT_IQ1_S, read_iq1_s, 0},
    {MOE_GGML_IQ1_M, "IQ1_M", 256, 56, MOE_LAYOUT_IQ1_M, read_iq1_m, 0},
    {MOE_GGML_IQ2_XXS, "IQ2_XXS", 256, 66, MOE_LAYOUT_IQ2_XXS, read_iq2_xxs, 0},
    {MOE_GGML_IQ2_XS, "IQ2_XS", 256, 74, MOE_LAYOUT_IQ2_XS, read_iq2_xs, 0},
    {MOE_GGML_IQ2_S, "IQ2_S", 256, 82, MOE_LAYOUT_IQ2_S, read_iq2_s, 0},
    {MOE_GGML_IQ3_XXS, "IQ3_XXS", 256, 98, MOE_LAYOUT_IQ3_XXS, read_iq3_xxs, 0},
    {MOE_GGML_IQ3_S, "IQ3_S", 256, 110, MOE_LAYOUT_IQ3_S, read_iq3_s, 0},
    {MOE_GGML_Q1_0, "Q1_0", 128, 18, MOE_LAYOUT_Q1_0, read_q1_0, 0},
    {MOE_GGML_Q2_0, "Q2_0", 64, 18, MOE_LAYOUT_Q2_0, read_q2_0, 0},
    {MOE_GGML_NVFP4_T, "NVFP4", 64, 40, MOE_LAYOUT_NVFP4_T, read_nvfp4_t, 0},
    CODES_OF(8),
    CODES_OF(4),
    CODES_OF(3),
    CODES_OF(2),
    SCALED_OF(F8, "FP8"),
    SCALED_OF(F8_B, "FP8"),
    SCALED_OF(I8, "INT8"),
    SCALED_OF(NF4, "NF4"),
    SCALED_OF(FP4, "FP4"),
    {MOE_GGML_Q6_0, "Q6_0", 32, 26, MOE_LAYOUT_Q6_0, read_q6_0, 0},
    {MOE_GGML_IQ2_K, "IQ2_K", 256, 76, MOE_LAYOUT_IQ2_K, read_iq2_k, 0},
    {MOE_GGML_IQ3_K, "IQ3_K", 256, 110, MOE_LAYOUT_IQ3_K, read_iq3_k, 0},
    {MOE_GGML_IQ4_K, "IQ4_K", 256, 144, MOE_LAYOUT_IQ4_K, read_iq4_k, 0},
    {MOE_GGML_IQ5_K, "IQ5_K", 256, 176, MOE_LAYOUT_IQ5_K, read_iq5_k, 0},
    {MOE_GGML_IQ6_K, "IQ6_K", 256, 212, MOE_LAYOUT_IQ6_K, read_iq6_k, 0},
    {MOE_GGML_IQ2_KS, "IQ2_KS", 256, 70 + 4, MOE_LAYOUT_IQ2_KS, read_iq2_ks, 2},
    {MOE_GGML_IQ3_KS, "IQ3_KS", 256, 102 + 4, MOE_LAYOUT_IQ3_KS, read_iq3_ks, 2},
    {MOE_GGML_IQ4_KS, "IQ4_KS", 256, 136 + 4, MOE_LAYOUT_IQ4_KS, read_iq4_ks, 4},
    {MOE_GGML_IQ4_KSS, "IQ4_KSS", 256, 128 + 4, MOE_LAYOUT_IQ4_KS, read_iq4_kss, 4},
    {MOE_GGML_IQ5_KS, "IQ5_KS", 256, 168 + 4, MOE_LAYOUT_IQ5_KS, read_iq5_ks, 4},
    {MOE_GGML_IQ1_KT, "IQ1_KT", 256, 56 + 4, MOE_LAYOUT_IQ1_KT, read_iq1_kt, 4},
    {MOE_GGML_IQ2_KT, "IQ2_KT", 256, 68 + 4, MOE_LAYOUT_IQ2_KT, read_iq2_kt, 4},
    {MOE_GGML_IQ3_KT, "IQ3_KT", 256, 100 + 4, MOE_LAYOUT_IQ3_KT, read_iq3_kt, 4},
    {MOE_GGML_IQ4_KT, "IQ4_KT", 256, 128 + 4, MOE_LAYOUT_IQ4_KT, read_iq4_kt, 4},
    {MOE_GGML_IQ2_KL, "IQ2_KL", 256, 86 + 4, MOE_LAYOUT_IQ2_KL, read_iq2_kl, 2},
    /* By size only, so that files that hold one are listed and checked. */
    {9, "Q8_1", 32, 40, MOE_LAYOUT_NONE, NULL, 0},
    {15, "Q8_K", 256, 292, MOE_LAYOUT_NONE, NULL, 0},
    {24, "I8", 1, 1, MOE_LAYOUT_NONE, NULL, 0},
    {25, "I16", 1, 2, MOE_LAYOUT_NONE, NULL, 0},
    {26, "I32", 1, 4, MOE_LAYOUT_NONE, NULL, 0},
    {27, "I64", 1, 8, MOE_LAYOUT_NONE, NULL, 0},
    {28, "F64", 1, 8, MOE_LAYOUT_NONE, NULL, 0},
    /* Of ik_llama.cpp, which also rearranges rows by 4, 8 or 16 (R). */
    {134, "IQ1_BN", 64, 13 + 4, MOE_LAYOUT_NONE, NULL, 2},
    {135, "IQ2_BN", 64, 16 + 4, MOE_LAYOUT_NONE, NULL, 4},
    {202, "Q4_0_R8", 32, 18, MOE_LAYOUT_NONE, NULL, 0},
    {206, "Q5_0_R4", 32, 22, MOE_LAYOUT_NONE, NULL, 0},
    {208, "Q8_0_R8", 32, 34, MOE_LAYOUT_NONE, NULL, 0},
    {210, "Q2_K_R4", 256, 84, MOE_LAYOUT_NONE, NULL, 0},
    {211, "Q3_K_R4", 256, 110, MOE_LAYOUT_NONE, NULL, 0},
    {212, "Q4_K_R4", 256, 144, MOE_LAYOUT_NONE, NULL, 0},
    {213, "Q5_K_R4", 256, 176, MOE_LAYOUT_NONE, NULL, 0},
    {214, "Q6_K_R4", 256, 210, MOE_LAYOUT_NONE, NULL, 0},
    {216, "IQ2_XXS_R4", 256, 66, MOE_LAYOUT_NONE, NULL, 0},
    {217, "IQ2_XS_R4", 256, 74, MOE_LAYOUT_NONE, NULL, 0},
    {218, "IQ3_XXS_R4", 256, 98, MOE_LAYOUT_NONE, NULL, 0},
    {219, "IQ1_S_R4", 32, 6 + 4, MOE_LAYOUT_NONE, NULL, 2},
    {220, "IQ4_NL_R4", 32, 18, MOE_LAYOUT_NONE, NULL, 0},
    {221, "IQ3_S_R4", 256, 110, MOE_LAYOUT_NONE, NULL, 0},
    {222, "IQ2_S_R4", 256, 82, MOE_LAYOUT_NONE, NULL, 0},
    {223, "IQ4_XS_R8", 256, 136, MOE_LAYOUT_NONE, NULL, 0},
    {229, "IQ1_M_R4", 32, 7 + 4, MOE_LAYOUT_NONE, NULL, 2},
    {230, "BF16_R16", 1, 2, MOE_LAYOUT_NONE, NULL, 0},
    {233, "Q6_0_R4", 32, 26, MOE_LAYOUT_NONE, NULL, 0},
    {335, "IQ2_BN_R4", 64, 16 + 4, MOE_LAYOUT_NONE, NULL, 4},
    {337, "IQ2_K_R4", 256, 76, MOE_LAYOUT_NONE, NULL, 0},
    {338, "IQ3_K_R4", 256, 110, MOE_LAYOUT_NONE, NULL, 0},
    {339, "IQ4_K_R4", 256, 144, MOE_LAYOUT_NONE, NULL, 0},
    {340, "IQ5_K_R4", 256, 176, MOE_LAYOUT_NONE, NULL, 0},
    {344, "IQ4_KS_R4", 256, 136 + 4, MOE_LAYOUT_NONE, NULL, 4},
    {352, "IQ5_KS_R4", 256, 168 + 4, MOE_LAYOUT_NONE, NULL, 4},
    {353, "MXFP4_R8", 32, 17, MOE_LAYOUT_NONE, NULL, 0},
};

enum { N_TYPES = sizeof types / sizeof types[0] };

const struct moe_ggml_type *moe_ggml_find(uint32_t number)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}

uint32_t moe_ggml_scaled(uint16_t kind, uint64_t group, uint64_t cols)
{
    const uint32_t first = MOE_GGML_SCALED + 1024u * (uint32_t)(kind - MOE_LAYOUT_F8);
    uint32_t items = 256;
    if (group >= cols)
        return cols % 32 == 0 ? first + 32 + OF_ROW : 0;
    while (items > 16 && (group % items != 0 || cols % items != 0))
        items /= 2;
    return items >= 32 ? first + items : 0;
}

const struct moe_ggml_type *moe_ggml_scaled_by_row(const struct moe_ggml_type *type)
{
    return moe_ggml_find(type->number - 1024 * (MOE_LAYOUT_F8_B - MOE_LAYOUT_F8));
}

/* The block's values, and itself as a span. */
static void decode_block(const struct moe_ggml_type *type, const uint8_t *block,
                         struct moe_span_codes *span, float *out)
{
    memset(span, 0, sizeof *span);
    type->read(block, span);
    moe_layout_span_weights(type->kind, span, type->items, out);
}

void moe_ggml_decode(const struct moe_ggml_type *type, const uint8_t *blocks, uint64_t n,
                     float *out)
{
    /* No block is longer than its values: while block i is copied out first, writing its values
     * cannot reach block i + 1. */
    uint8_t block[MOE_GGML_MAX_BLOCK_BYTES];
    struct moe_span_codes span;
    for (uint64_t i = 0; i < n; i++)
        switch (type->number) {
        case MOE_GGML_F32:
            out[i] = moe_bits_f32(moe_get_u32(blocks + 4 * i));
            break;
        case MOE_GGML_F16:
            out[i] = moe_f16_to_f32(moe_get_u16(blocks + 2 * i));
            break;
        case MOE_GGML_BF16:
            out[i] = moe_bf16_to_f32(moe_get_u16(blocks + 2 * i));
            break;
        default:
            memcpy(block, blocks + i * type->bytes, type->bytes);
            decode_block(type, block, &span, out + i * type->items);
        }
}

void moe_ggml_from_pairs(const uint8_t *pairs, int n, uint8_t *to)
{
    for (int i = 0; i < n; i++) {
        int low = pairs[i / 2] >> i % 2 * 4 & 15, high = pairs[(n + i) / 2] >> i % 2 * 4 & 15;
        to[i] = (uint8_t)(low | high << 4);
    }
}

uint64_t moe_ggml_row_bytes(const struct moe_ggml_type *type, uint64_t items)
{
    return type->factor + items / type->items * (type->bytes - (type->factor ? FACTOR : 0));
}

void moe_ggml_row_blocks(const struct moe_ggml_type *type, const uint8_t *row, uint64_t first,
                         uint64_t n, uint8_t *out)
{
    const uint32_t bytes = type->bytes - FACTOR;
    const uint32_t factor =
        type->factor == 2 ? moe_f32_bits(moe_f16_to_f32(moe_get_u16(row))) : moe_get_u32(row);
    row += type->factor + first * bytes;
    for (uint64_t b = 0; b < n; b++, row += bytes, out += type->bytes) {
        memmove(out, row, bytes);
        moe_put_u32(out + bytes, factor);
    }
}

/* ---- Whole matrices ---- */

int moe_ggml_bits(const struct moe_ggml_type *type)
{
    return type->items == 1 ? 8 * (int)type->bytes : moe_layout_bits(type->kind);
}

struct moe_layout moe_ggml_layout(const struct moe_ggml_type *type, int bits)
{
    bool holds = type->read && bits >= moe_ggml_bits(type) && bits <= 8;
    bool by_items = moe_layout_is_affine(type->kind) || moe_kind_is_scaled(type->kind);
    uint32_t group = by_items ? type->items : MOE_GGML_GROUP;
    if (moe_kind_is_scaled(type->kind) && type->number % 32 == OF_ROW)
        group = MOE_GROUP_ROW;
    return holds ? (struct moe_layout){type->kind, group} : (struct moe_layout){0};
}

/* The result of one panel. Results are added up in order, whichever thread computed what. */
struct panel_result {
    double sum_squared_weight;
    bool refused; /* because of the block at row, col */
    uint32_t row, col;
};

struct job {
    const struct moe_ggml_type *type;
    const uint8_t *blocks;
    uint32_t rows, cols;
    uint8_t *out;
    struct panel_result *results; /* [panels] */
};

static bool add_squares(const float *values, uint32_t n, double *sum)
{
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && isfinite(values[i]);
        *sum += (double)values[i] * (double)values[i];
    }
    return finite;
}

static void carry_row(const struct job *job, uint32_t row, struct panel_result *result)
{
    const struct moe_ggml_type *type = job->type;
    uint32_t n = job->cols / type->items;
    const uint8_t *block = job->blocks + (uint64_t)row * n * type->bytes;
    for (uint32_t b = 0; b < n && !result->refused; b++, block += type->bytes) {
        float values[MOE_GGML_MAX_ITEMS];
        struct moe_span_codes span;
        decode_block(type, block, &span, values);
        if (add_squares(values, type->items, &result->sum_squared_weight))
            moe_layout_store_span(job->out, moe_ggml_layout(type, 8), job->cols, row, b, &span);
        else
            *result = (struct panel_result){0, true, row, b * type->items};
    }
}

static void carry_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *job = ctx;
    (void)thread;
    for (int64_t p = begin; p < end; p++) {
        uint32_t row = (uint32_t)p * MOE_PANEL_ROWS;
        uint32_t last = job->rows - row < MOE_PANEL_ROWS ? job->rows : row + MOE_PANEL_ROWS;
        for (; row < last && !job->results[p].refused; row++)
            carry_row(job, row, &job->results[p]);
    }
}

int moe_ggml_carry_matrix(const struct moe_ggml_type *type, const uint8_t *blocks, uint32_t rows,
                          uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                          struct moe_err *err)
{
    struct job job = {type, blocks, rows, cols, out, NULL};
    uint32_t panels = moe_panels(rows);
    int status = MOE_OK;
    job.results = moe_alloc(panels, sizeof *job.results, err);
    if (!job.results)
        return MOE_ERR_MEMORY;
    moe_par_for(panels, 1, carry_panels, &job);
    for (uint32_t p = 0; p < panels && status == MOE_OK; p++) {
        const struct panel_result *r = &job.results[p];
        if (r->refused)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "the weights at row %" PRIu32 ", columns %" PRIu32 " to %" PRIu32
                              " are not finite (damaged checkpoint?)",
                              r->row, r->col, r->col + type->items - 1);
        error->sum_squared_weight += r->sum_squared_weight;
    }
    free(job.results);
    return status;
}

/* Whether the scales of a span are finite: where they are, so are its weights. */
static bool is_finite(const struct moe_ggml_type *type, const struct moe_span_codes *span)
{
    if (type->kind == MOE_LAYOUT_MXFP4)
        return span->s[0] != 255;
    if (moe_kind_is_scaled(type->kind)) {
        bool numbers = true;
        for (uint32_t c = 0; moe_kind_is_f8(type->kind) && c < type->items; c++)
            numbers &= (span->codes[c] & 0x7f) != 0x7f;
        return numbers && isfinite(span->factor * MAX_SCALED);
    }
    if (moe_kind_front(type->kind))
        return isfinite(span->factor);
    return (span->d & 0x7c00) != 0x7c00 &&
           (moe_kind_has_zeros(type->kind) || (span->m & 0x7c00) != 0x7c00);
}

uint32_t moe_ggml_carry_blocks(const struct moe_ggml_type *type, const uint8_t *const *rows,
                               uint32_t n_rows, uint32_t first, uint32_t n, uint32_t cols,
                               uint32_t r, uint8_t *panel)
{
    const struct moe_layout layout = moe_ggml_layout(type, 8);
    struct moe_span_codes spans[MOE_PANEL_ROWS];
    uint32_t finite = n_rows;
    for (uint32_t b = 0; b < n; b++) {
        for (uint32_t k = 0; k < finite; k++) {
            memset(&spans[k], 0, offsetof(struct moe_span_codes, codes) + type->items);
            type->read(rows[k] + (uint64_t)b * type->bytes, &spans[k]);
            if (!is_finite(type, &spans[k]))
                finite = k;
        }
        if (finite)
            moe_layout_store_spans(panel, layout, cols, r, finite, first + b, spans);
    }
    return finite;
}
