/*
 * How a variant makes its panel functions from two templates.
 *
 * A variant file writes `float_panel` and `quant_panel` once, as MOE_TEMPLATE functions whose first
 * two arguments, layout kind and tile size, are constants at every use; the macros below make one
 * function per layout and tile size of them. Constants make the loops over the tile unroll and the
 * sums live in registers.
 */
#ifndef MOE_KERN_KERN_PANEL_H
#define MOE_KERN_KERN_PANEL_H

#include <string.h>

/* The larger a function becomes, the less compilers inline into it; but a kind's constants must be
 * some, or loops divide by them. */
#define MOE_KIND_CONSTANT static inline __attribute__((always_inline))
#include "kern/kern.h"
#include "kern/kern_math.h"

#define MOE_TEMPLATE static inline __attribute__((always_inline))

/* In front of a loop with a small constant count. */
#if defined(__clang__)
#define MOE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MOE_UNROLL _Pragma("GCC unroll 16")
#endif

#define MOE_PANEL_PARAMS                                                                           \
    const uint8_t *panel, struct moe_layout layout, uint32_t cols, const struct moe_tile *tile,    \
        float *y, uint64_t y_stride
#define MOE_PANEL_ARGS panel, layout, cols, tile, y, y_stride

#define MOE_PANEL_ONE(template, kind, nt)                                                          \
    static void template##_##kind##_##nt(MOE_PANEL_PARAMS)                                         \
    {                                                                                              \
        template(MOE_LAYOUT_##kind, nt, MOE_PANEL_ARGS);                                           \
    }
#define MOE_PANEL_TILES(template, kind)                                                            \
    MOE_PANEL_ONE(template, kind, 1)                                                               \
    MOE_PANEL_ONE(template, kind, 2)                                                               \
    MOE_PANEL_ONE(template, kind, 4)                                                               \
    MOE_PANEL_ONE(template, kind, 8)
#define MOE_PANEL_ROW(template, kind)                                                              \
    {                                                                                              \
        template##_##kind##_1, template##_##kind##_2, template##_##kind##_4, template##_##kind##_8 \
    }

/* The kinds that take floats, in the order of moe_kern_layout_index. */
#define MOE_PANEL_EACH_FLOAT(each)                                                                 \
    each(F32) each(F16) each(BF16) each(F8) each(I8) each(NF4) each(FP4)
#define MOE_PANEL_FLOAT(kind) MOE_PANEL_TILES(float_panel, kind)
#define MOE_PANEL_FLOAT_ROW(kind) MOE_PANEL_ROW(float_panel, kind),
/* Defines the functions of the layouts and fill_float_panels(kern), fill_quant_panels(kern). */
#define MOE_PANEL_FLOATS                                                                           \
    MOE_PANEL_EACH_FLOAT(MOE_PANEL_FLOAT)                                                          \
    MOE_PANEL_TILES(float_panel, KEYS_Q8)                                                          \
    MOE_PANEL_TILES(float_panel, KEYS_Q4)                                                          \
    MOE_PANEL_TILES(float_panel, VALUES_Q8)                                                        \
    MOE_PANEL_TILES(float_panel, VALUES_Q4)                                                        \
    static void fill_float_panels(struct moe_kern *kern)                                           \
    {                                                                                              \
        static moe_panel_fn *const rows[MOE_N_FLOATS][MOE_N_TILES] = {                             \
            MOE_PANEL_EACH_FLOAT(MOE_PANEL_FLOAT_ROW)};                                            \
        static moe_panel_fn *const cells[MOE_N_CELLS][MOE_N_TILES] = {                             \
            MOE_PANEL_ROW(float_panel, KEYS_Q8), MOE_PANEL_ROW(float_panel, KEYS_Q4),              \
            MOE_PANEL_ROW(float_panel, VALUES_Q8), MOE_PANEL_ROW(float_panel, VALUES_Q4)};         \
        memcpy(kern->panel[0], rows, sizeof rows);                                                 \
        memcpy(kern->cells, cells, sizeof cells);                                                  \
        kern->turn = turn;                                                                         \
    }
/* Of variants that have float_few(kind, nt, MOE_PANEL_PARAMS), for nt = 1: fill_few_panels(kern).
 */
#define MOE_PANEL_FEW_ONE(kind) MOE_PANEL_ONE(float_few, kind, 1)
#define MOE_PANEL_FEW_NAME(kind) float_few_##kind##_1,
#define MOE_PANEL_FEW                                                                              \
    MOE_PANEL_EACH_FLOAT(MOE_PANEL_FEW_ONE) static void fill_few_panels(struct moe_kern *kern)     \
    {                                                                                              \
        static moe_panel_fn *const all[MOE_N_FLOATS] = {MOE_PANEL_EACH_FLOAT(MOE_PANEL_FEW_NAME)}; \
        memcpy(kern->few_panels, all, sizeof all);                                                 \
    }
/* The quantized kinds, in the order of moe_kern_layout_index: those with a grid are the last. */
#define MOE_PANEL_EACH_CODES(each)                                                                 \
    each(Q8) each(Q4) each(Q3) each(Q2) each(Q5) each(MXFP4) each(Q4_0) each(Q5_0) each(Q6_0)      \
        each(Q8_0) each(IQ4_NL) each(Q2_K) each(Q3_K) each(Q4_K) each(Q5_K) each(Q6_K)             \
            each(IQ4_XS) each(NVFP4) each(TQ2_0) each(Q1_0) each(Q2_0) each(TQ1_0) each(IQ2_K)     \
                each(IQ2_KS) each(IQ3_K) each(IQ3_KS) each(IQ4_K) each(IQ4_KS) each(IQ5_K)         \
                    each(IQ5_KS) each(IQ6_K) each(IQ1_KT) each(IQ2_KT) each(IQ3_KT) each(IQ4_KT)   \
                        each(IQ2_KL)
#define MOE_PANEL_EACH_GRID(each)                                                                  \
    each(IQ1_S) each(IQ1_M) each(IQ2_XXS) each(IQ2_XS) each(IQ2_S) each(IQ3_XXS) each(IQ3_S)
#define MOE_PANEL_EACH_QUANT(each) MOE_PANEL_EACH_CODES(each) MOE_PANEL_EACH_GRID(each)
#define MOE_PANEL_INDEX(kind) MOE_INDEX_##kind,
enum { MOE_PANEL_EACH_FLOAT(MOE_PANEL_INDEX) MOE_PANEL_EACH_QUANT(MOE_PANEL_INDEX) };
#define MOE_PANEL_QUANT(kind) MOE_PANEL_TILES(quant_panel, kind)
#define MOE_PANEL_QUANT_ROW(kind) MOE_PANEL_ROW(quant_panel, kind),
#define MOE_PANEL_GRID_ROW(kind) MOE_PANEL_ROW(grid_panel, kind),
#define MOE_PANEL_QUANTS(each)                                                                     \
    each(MOE_PANEL_QUANT) static void fill_quant_panels(struct moe_kern *kern)                     \
    {                                                                                              \
        static moe_panel_fn *const rows[][MOE_N_TILES] = {each(MOE_PANEL_QUANT_ROW)};              \
        memcpy(kern->panel[MOE_N_FLOATS], rows, sizeof rows);                                      \
    }
/* Of variants that compute kinds with a grid by grid_panel(kind, nt, MOE_PANEL_PARAMS); `defined`
 * makes the functions of a kind. */
#define MOE_PANEL_GRIDS(defined)                                                                   \
    MOE_PANEL_EACH_GRID(defined) static void fill_grid_panels(struct moe_kern *kern)               \
    {                                                                                              \
        static moe_panel_fn *const rows[][MOE_N_TILES] = {                                         \
            MOE_PANEL_EACH_GRID(MOE_PANEL_GRID_ROW)};                                              \
        memcpy(kern->panel + MOE_N_LAYOUTS - sizeof rows / sizeof rows[0], rows, sizeof rows);     \
    }

/* ---- Codes of the KV cache ---- */

/* As kinds of float panels. */
enum {
    MOE_LAYOUT_KEYS_Q8 = 256 + MOE_CELLS_KEYS_Q8,
    MOE_LAYOUT_KEYS_Q4 = 256 + MOE_CELLS_KEYS_Q4,
    MOE_LAYOUT_VALUES_Q8 = 256 + MOE_CELLS_VALUES_Q8,
    MOE_LAYOUT_VALUES_Q4 = 256 + MOE_CELLS_VALUES_Q4
};

MOE_TEMPLATE bool moe_cells_any(int kind)
{
    return kind >= MOE_LAYOUT_KEYS_Q8;
}
MOE_TEMPLATE bool moe_cells_are_keys(int kind)
{
    return kind == MOE_LAYOUT_KEYS_Q8 || kind == MOE_LAYOUT_KEYS_Q4;
}
MOE_TEMPLATE bool moe_cells_have_four(int kind)
{
    return kind == MOE_LAYOUT_KEYS_Q4 || kind == MOE_LAYOUT_VALUES_Q4;
}
/* The bytes of column c. */
MOE_TEMPLATE const uint8_t *moe_cells_at(int kind, const uint8_t *panel, uint64_t c)
{
    return panel + (kind == MOE_LAYOUT_KEYS_Q4     ? c / 2 * MOE_PANEL_ROWS
                    : kind == MOE_LAYOUT_VALUES_Q4 ? c * (MOE_PANEL_ROWS / 2)
                                                   : c * MOE_PANEL_ROWS);
}

/* ---- Scaled kinds ---- */

/* The columns from `first` on that have one scale: all of them in other kinds. */
MOE_TEMPLATE uint32_t moe_scaled_end(int kind, struct moe_layout layout, uint32_t first,
                                     uint32_t cols)
{
    const bool part = moe_kind_is_scaled(kind) && layout.group && cols - first > layout.group;
    return part ? first + layout.group : cols;
}

/* What a scale is multiplied by where e4m3 is taken as f16 with the exponent's bits in place. */
MOE_TEMPLATE float moe_scaled_unit(int kind)
{
    return kind == MOE_LAYOUT_F8 ? 256 : 1;
}

/* The bytes of column c of a float panel, rows from `first` on. */
MOE_TEMPLATE const uint8_t *moe_float_at(int kind, const uint8_t *codes, uint64_t c, int first)
{
    const int bits = kind == MOE_LAYOUT_F32 ? 32
                     : kind < MOE_LAYOUT_F8 ? 16
                                            : moe_scaled_bits(kind);
    return codes + c * (uint64_t)(MOE_PANEL_ROWS * bits / 8) +
           (bits == 4 ? first % 8 : first * bits / 8);
}

/* Pairs of neighbours: what was next to each other goes halves apart, so that the bit that tells a
 * pair's numbers apart is the lowest at each step. After all steps every number is where it was. */
static inline void turn(float *x, uint32_t n)
{
    float next[128];
    for (uint32_t w; n > 0; n -= w, x += w) {
        w = moe_math_turn_piece(n);
        const uint32_t half = w / 2;
        const float by = moe_math_turn_scale(w);
        for (uint32_t s = 1; s < w; s *= 2) {
            for (uint32_t i = 0; i < half; i++) {
                next[i] = x[2 * i] + x[2 * i + 1];
                next[i + half] = x[2 * i] - x[2 * i + 1];
            }
            memcpy(x, next, w * sizeof *x);
        }
        for (uint32_t i = 0; i < w; i++)
            x[i] *= by;
    }
}

/* ---- Geometry of records (layout.h) ---- */

enum {
    MOE_UNIT = 64,     /* bytes of a unit: 16 rows of 4 bytes */
    MOE_STEP = 32,     /* columns the vector variants take at a time; a block is 1 or 2 steps */
    MOE_STEP_QUADS = 8 /* groups of 4 columns in a step */
};

/* Bytes of a step of codes in the first plane of a block's units, and in the second. */
MOE_TEMPLATE uint32_t moe_step_bytes(int kind)
{
    return (uint32_t)moe_code_plane(kind) * MOE_UNIT;
}

MOE_TEMPLATE uint32_t moe_high_step_bytes(int kind)
{
    return (uint32_t)moe_code_high_plane(kind) * MOE_UNIT;
}

/* A position within a panel: a record and the blocks in it. */
struct moe_record {
    const uint8_t *head;
    const uint8_t *codes; /* first block */
    uint32_t blocks;
};

/* Returns the record at `at` whose first column is `first`, and moves both on to the next one.
 * `block` is the layout's; where it is a constant, records of one block need no counting. */
MOE_TEMPLATE struct moe_record moe_record_next(int kind, uint32_t group, uint32_t block,
                                               uint32_t cols, const uint8_t **at, uint32_t *first)
{
    const uint32_t span = moe_kind_span(kind);
    uint32_t left = cols - *first, full = span ? moe_kind_record(kind) * span : group;
    uint32_t n = full && full < left ? full : left;
    uint32_t blocks = !span && block == 32 ? 1 : (n + block - 1) / block;
    struct moe_record record = {*at, *at + moe_kind_head_bytes(kind, blocks), blocks};
    *at = record.codes + (uint64_t)blocks * moe_kind_block_bytes(kind, block);
    *first += n;
    return record;
}

/* A scale of a block: the head that has it, and its number there (layout.h); the block's codes. */
struct moe_place {
    const uint8_t *head;
    uint32_t i;
    const uint8_t *codes;
};

/* Scale number p of block number b of a record, which its codes have come to. */
MOE_TEMPLATE struct moe_place moe_record_scale(int kind, const struct moe_record *record,
                                               uint32_t b, uint32_t p)
{
    const uint32_t blocks = moe_kind_span_blocks(kind), n = (uint32_t)moe_kind_scales(kind);
    struct moe_place place = {record->head, 0, record->codes};
    if (blocks) {
        place.head += b / blocks * (moe_kind_head(kind) * MOE_PANEL_ROWS);
        place.i = b % blocks * n + p;
    }
    return place;
}

/* Where the numbers of a head begin, behind d and dmin. */
MOE_TEMPLATE const uint8_t *moe_place_numbers(int kind, struct moe_place place)
{
    return place.head +
           ((moe_kind_has_d(kind) ? 2 : 0) + (moe_kind_has_min(kind) ? 2 : 0)) * MOE_PANEL_ROWS;
}

/* Where the low four bits of packed number i lie behind those, where its higher ones, and how far
 * up in their bytes. */
MOE_TEMPLATE const uint8_t *moe_packed_low(const uint8_t *numbers, uint32_t i)
{
    return numbers + i / 2 * MOE_PANEL_ROWS;
}
MOE_TEMPLATE const uint8_t *moe_packed_more(int kind, const uint8_t *numbers, uint32_t i)
{
    const uint32_t n = (uint32_t)moe_kind_packed(kind), more = (uint32_t)moe_kind_packed_high(kind);
    return numbers + (n / 2 + i * more / 8) * MOE_PANEL_ROWS;
}
MOE_TEMPLATE int moe_packed_more_at(int kind, uint32_t i)
{
    return (int)(i * (uint32_t)moe_kind_packed_high(kind) % 8);
}

/* ---- Grouped kinds ---- */

/* The units that a block of a grouped kind becomes: 8 of codes of 8 bits, 4 of 4 bits, or 2 of 2
 * bits; signs. */
struct moe_code_units {
    uint32_t word[8][MOE_PANEL_ROWS];
};

/* Row by row: a table is read for each group, which vectors do no faster unless they can hold it.
 */
MOE_TEMPLATE void moe_grid_units(int kind, const uint8_t *head, const uint8_t *codes, uint32_t b,
                                 struct moe_code_units *units)
{
    const int planes = moe_kind_plane(kind), n = moe_code_plane(kind);
    const uint8_t *signs = codes + planes * MOE_UNIT;
    for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
        uint32_t words[2] = {moe_unit_word(codes, r), 0}, first[4];
        uint32_t sign = moe_kind_high_plane(kind) ? moe_unit_word(signs, r) : 0;
        __asm__("" : "+r"(words[0])); /* no vectors: gathering loads would cost more */
        if (planes == 2)
            words[1] = moe_unit_word(codes + MOE_UNIT, r);
        moe_grid_first(kind, words, moe_group_more(kind, head, b, r, sign), first);
        MOE_UNROLL
        for (int i = 0; i < n; i++)
            units->word[i][r] = first[i];
    }
    for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
        const uint32_t sign = moe_kind_high_plane(kind) ? moe_unit_word(signs, r) : 0;
        units->word[n][r] = moe_grid_second(kind, sign, moe_group_more(kind, head, b, r, sign));
    }
}

MOE_TEMPLATE void moe_ternary_units(const uint8_t *head, const uint8_t *codes, uint32_t b,
                                    struct moe_code_units *units)
{
    for (uint32_t s = 0; s < MOE_STEP_QUADS; s++) {
        const uint32_t digit = s < 5 ? s : 3 * b + s - 5;
        const uint8_t *unit = s < 5 ? codes : head + 2 * MOE_PANEL_ROWS + digit / 5 * MOE_UNIT;
        for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
            uint32_t four = moe_ternary_digits(moe_unit_word(unit, r), digit % 5) << 2 * (s % 4);
            units->word[s / 4][r] = s % 4 ? units->word[s / 4][r] | four : four;
        }
    }
}

/* Loops over rows are the inner ones: compilers make vectors of them. */
MOE_TEMPLATE void moe_trellis_units(int kind, const uint8_t *head, const uint8_t *codes, uint32_t b,
                                    struct moe_code_units *units)
{
    const uint32_t quads = moe_trellis_columns(kind) / 4;
    uint32_t words[4][MOE_PANEL_ROWS], more[MOE_PANEL_ROWS];
    MOE_UNROLL
    for (int j = 0; j < moe_kind_plane(kind) + moe_kind_high_plane(kind); j++)
        for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++)
            words[j][r] = moe_unit_word(codes + j * MOE_UNIT, r);
    for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++)
        more[r] = moe_trellis_more(kind, head, codes, b, r);
    MOE_UNROLL
    for (uint32_t s = 0; s < MOE_STEP_QUADS; s++) {
        const uint32_t g = s / quads, *word = words[kind == MOE_LAYOUT_IQ1_KT ? 0 : g / 2];
        for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
            const uint32_t signs = kind == MOE_LAYOUT_IQ3_KT ? words[2][r] >> s : 0;
            const uint32_t start = moe_trellis_start(kind, word[r], more[r], g);
            units->word[s][r] = moe_trellis_quad(kind, start, s % quads * 4, signs, 126);
        }
    }
}

MOE_TEMPLATE void moe_pairs_units(const uint8_t *head, const uint8_t *codes, uint32_t b,
                                  struct moe_code_units *units)
{
    for (uint32_t s = 0; s < MOE_STEP_QUADS; s++)
        for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++)
            units->word[s][r] = moe_pairs_quad(moe_unit_word(codes + s / 4 * MOE_UNIT, r),
                                               moe_pairs_more(head, b, s / 4, r), s,
                                               moe_kind_zero(MOE_LAYOUT_IQ2_KL));
}

/* Returns the codes of block b of a record, which its codes have come to. Of grouped kinds they are
 * made here, those of the next block, too: to be read as vectors, what is written as words must
 * have left the store buffer. */
MOE_TEMPLATE const uint8_t *moe_record_codes(int kind, const struct moe_record *record, uint32_t b,
                                             struct moe_code_units units[2])
{
    const uint8_t *codes = record->codes;
    if (!moe_kind_is_grouped(kind))
        return codes;
    for (uint32_t i = b ? b + 1 : 0; i < b + 2 && i < record->blocks; i++) {
        const uint8_t *head = moe_record_scale(kind, record, i, 0).head;
        if (i > b)
            codes = record->codes + moe_kind_block_bytes(kind, 32);
        if (kind == MOE_LAYOUT_TQ1_0)
            moe_ternary_units(head, codes, i % 8, &units[i % 2]);
        else if (kind == MOE_LAYOUT_IQ2_KL)
            moe_pairs_units(head, codes, i % 8, &units[i % 2]);
        else if (moe_kind_is_trellis(kind))
            moe_trellis_units(kind, head, codes, i % 8, &units[i % 2]);
        else
            moe_grid_units(kind, head, codes, i % 8, &units[i % 2]);
    }
    return (const uint8_t *)units[b % 2].word;
}

/* s of a scale of a kind with a grid, of n rows from `first` on. */
MOE_TEMPLATE void moe_grid_scales(int kind, struct moe_place at, uint32_t first, uint32_t n,
                                  uint8_t *s)
{
    const uint8_t *numbers = moe_place_numbers(kind, at);
    for (uint32_t r = 0; r < n; r++)
        s[r] = moe_grid_scale(kind, numbers, at.codes, (int)at.i, first + r);
}

/* Quads of 4 columns that a scale of a block has in a step. */
MOE_TEMPLATE int moe_scale_quads(int kind)
{
    return MOE_STEP_QUADS / moe_kind_scales(kind);
}

/* What a sum over the columns of scale number p of a block has too much where each number is `plus`
 * too large, negated; and z of these columns. */
MOE_TEMPLATE int32_t moe_scale_less(int kind, const struct moe_sums *sums, int p, int plus)
{
    const int32_t less = sums->less[moe_kind_scales(kind) == 1 ? 0 : 1 + p];
    return plus == 128 ? less : (less >> 7) * plus;
}

MOE_TEMPLATE float moe_scale_z(int kind, const struct moe_tile *tile, int t, int p)
{
    return moe_kind_scales(kind) == 1 ? tile->z[t] : tile->sum[t].z[p];
}

/* What a block of scale s, whose bytes have these sums, has in a tile. */
MOE_TEMPLATE struct moe_sums moe_sums_of(int32_t all, int32_t half, float s)
{
    return (struct moe_sums){{-128 * all, -128 * half, -128 * (all - half)},
                             {s * (float)half, s * (float)(all - half)}};
}

/* Moves a byte tile of nt inputs on by a block. */
MOE_TEMPLATE void moe_tile_step(struct moe_tile *tile, int nt, uint32_t block)
{
    tile->q += block * (uint32_t)nt;
    tile->s += nt;
    tile->z += nt;
    tile->sum += nt;
}

/* ---- Panels unpacked for many inputs ---- */

/* A variant writes unpack(kind, panel, cols, blocks), MOE_TEMPLATE as moe_kern.unpack says, for
 * kinds whose numbers take several instructions and most of those with two scales for a block. For
 * others the products of panels are as fast, or faster. */
#define MOE_UNPACK_EACH(each)                                                                      \
    each(Q3_K) each(Q6_K) each(NVFP4) each(TQ1_0) each(IQ2_K) each(IQ2_KS) each(IQ3_K)             \
        each(IQ3_KS) each(IQ4_K) each(IQ5_K) each(IQ5_KS) each(IQ6_K) each(IQ1_KT) each(IQ2_KT)    \
            each(IQ3_KT) each(IQ4_KT) each(IQ2_KL)
#define MOE_UNPACK_ONE(kind)                                                                       \
    static const uint8_t *unpack_##kind(const uint8_t *panel, uint32_t cols,                       \
                                        struct moe_unpacked *blocks)                               \
    {                                                                                              \
        return unpack(MOE_LAYOUT_##kind, panel, cols, blocks);                                     \
    }
#define MOE_UNPACK_ENTER(kind) kern->unpack[MOE_INDEX_##kind] = unpack_##kind;
#define MOE_UNPACK_LEAVE(kind) kern->unpack[MOE_INDEX_##kind] = NULL;

/* The functions of products with unpacked blocks, of a variant that writes
 * unpacked(scales, nt, MOE_UNPACKED_PARAMS). */
#define MOE_UNPACKED_PARAMS                                                                        \
    const struct moe_unpacked *blocks, uint32_t n, struct moe_numbers numbers,                     \
        const struct moe_tile *tile, float *y, uint64_t y_stride
#define MOE_UNPACKED_ARGS blocks, n, numbers, tile, y, y_stride
#define MOE_UNPACKED_ONE(scales, nt)                                                               \
    static void unpacked_##scales##_##nt(MOE_UNPACKED_PARAMS)                                      \
    {                                                                                              \
        unpacked(scales, nt, MOE_UNPACKED_ARGS);                                                   \
    }
#define MOE_UNPACKED_ALL                                                                           \
    MOE_UNPACKED_ONE(1, 4)                                                                         \
    MOE_UNPACKED_ONE(1, 8)                                                                         \
    MOE_UNPACKED_ONE(2, 4)                                                                         \
    MOE_UNPACKED_ONE(2, 8)                                                                         \
    static void fill_unpacked(struct moe_kern *kern)                                               \
    {                                                                                              \
        static moe_unpacked_fn *const all[2][2] = {{unpacked_1_4, unpacked_1_8},                   \
                                                   {unpacked_2_4, unpacked_2_8}};                  \
        memcpy(kern->unpacked, all, sizeof all);                                                   \
    }

/*
 * To make the block size a constant, too, a variant writes
 * quant_body(kind, nt, block, MOE_PANEL_PARAMS), and a panel function is both sizes of it.
 */
#define MOE_PANEL_BLOCKS                                                                           \
    MOE_TEMPLATE void quant_panel(int kind, int nt, MOE_PANEL_PARAMS)                              \
    {                                                                                              \
        if (moe_kind_span(kind) || layout.group == 32)                                             \
            quant_body(kind, nt, 32, MOE_PANEL_ARGS);                                              \
        else                                                                                       \
            quant_body(kind, nt, 64, MOE_PANEL_ARGS);                                              \
    }

#endif
