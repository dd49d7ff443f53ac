/*
 * How a variant makes its 32 panel functions from two templates.
 *
 * A variant file writes `float_panel` and `quant_panel` once, as MOE_TEMPLATE functions whose first
 * two arguments, layout kind and tile size, are constants at every use; the macros below make one
 * function per layout and tile size of them. Constants make the loops over the tile unroll and the
 * sums live in registers.
 */
#ifndef MOE_KERN_KERN_PANEL_H
#define MOE_KERN_KERN_PANEL_H

#include <string.h>

#include "kern/kern.h"

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

/* Defines the functions of the layouts and fill_float_panels(kern), fill_quant_panels(kern). */
#define MOE_PANEL_FLOATS                                                                           \
    MOE_PANEL_TILES(float_panel, F32)                                                              \
    MOE_PANEL_TILES(float_panel, F16)                                                              \
    MOE_PANEL_TILES(float_panel, BF16)                                                             \
    static void fill_float_panels(struct moe_kern *kern)                                           \
    {                                                                                              \
        static moe_panel_fn *const rows[3][MOE_N_TILES] = {MOE_PANEL_ROW(float_panel, F32),        \
                                                           MOE_PANEL_ROW(float_panel, F16),        \
                                                           MOE_PANEL_ROW(float_panel, BF16)};      \
        memcpy(kern->panel[0], rows, sizeof rows);                                                 \
    }
#define MOE_PANEL_QUANTS                                                                           \
    MOE_PANEL_TILES(quant_panel, Q8)                                                               \
    MOE_PANEL_TILES(quant_panel, Q4)                                                               \
    MOE_PANEL_TILES(quant_panel, Q3)                                                               \
    MOE_PANEL_TILES(quant_panel, Q2)                                                               \
    MOE_PANEL_TILES(quant_panel, MXFP4)                                                            \
    static void fill_quant_panels(struct moe_kern *kern)                                           \
    {                                                                                              \
        static moe_panel_fn *const rows[5][MOE_N_TILES] = {                                        \
            MOE_PANEL_ROW(quant_panel, Q8), MOE_PANEL_ROW(quant_panel, Q4),                        \
            MOE_PANEL_ROW(quant_panel, Q3), MOE_PANEL_ROW(quant_panel, Q2),                        \
            MOE_PANEL_ROW(quant_panel, MXFP4)};                                                    \
        memcpy(kern->panel[3], rows, sizeof rows);                                                 \
    }

/* ---- Geometry of records (layout.h) ---- */

enum {
    MOE_UNIT = 64,        /* bytes of a unit: 16 rows of 4 bytes */
    MOE_RECORD_HEAD = 64, /* bytes of d and m, or of exponents */
    MOE_STEP = 32,        /* columns the vector variants take at a time; a block is 1 or 2 steps */
    MOE_STEP_QUADS = 8    /* groups of 4 columns in a step */
};

/* Bytes of a step in a block's units; for Q3 without the plane of high bits. */
static inline uint32_t moe_step_bytes(int kind)
{
    return kind == MOE_LAYOUT_Q8                               ? 8 * MOE_UNIT
           : kind == MOE_LAYOUT_Q4 || kind == MOE_LAYOUT_MXFP4 ? 4 * MOE_UNIT
                                                               : 2 * MOE_UNIT;
}

/* Bytes of a block's codes in a panel. */
MOE_TEMPLATE uint32_t moe_block_bytes(int kind, uint32_t block)
{
    uint32_t steps = block / MOE_STEP;
    return steps * moe_step_bytes(kind) + (kind == MOE_LAYOUT_Q3 ? steps * MOE_UNIT : 0);
}

/* A position within a panel: a record and the blocks in it. */
struct moe_record {
    const uint8_t *head;  /* d[16], m[16], or e[4][16] */
    const uint8_t *codes; /* first block */
    uint32_t blocks;
};

/* Returns the record at `at` whose first column is `first`, and moves both on to the next one.
 * `block` is the layout's; where it is a constant, records of one block need no counting. */
MOE_TEMPLATE struct moe_record moe_record_next(int kind, uint32_t group, uint32_t block,
                                               uint32_t cols, const uint8_t **at, uint32_t *first)
{
    uint32_t left = cols - *first, full = kind == MOE_LAYOUT_MXFP4 ? MOE_MX_RECORD : group;
    uint32_t n = full && full < left ? full : left;
    uint32_t blocks = kind != MOE_LAYOUT_MXFP4 && block == 32 ? 1 : (n + block - 1) / block;
    struct moe_record record = {*at, *at + MOE_RECORD_HEAD, blocks};
    *at = record.codes + (uint64_t)blocks * moe_block_bytes(kind, block);
    *first += n;
    return record;
}

/* Moves a byte tile of nt inputs on by a block. */
MOE_TEMPLATE void moe_tile_step(struct moe_tile *tile, int nt, uint32_t block)
{
    tile->q += block * (uint32_t)nt;
    tile->s += nt;
    tile->z += nt;
    tile->sum += nt;
}

/*
 * To make the block size a constant, too, a variant writes
 * quant_body(kind, nt, block, MOE_PANEL_PARAMS), and a panel function is both sizes of it.
 */
#define MOE_PANEL_BLOCKS                                                                           \
    MOE_TEMPLATE void quant_panel(int kind, int nt, MOE_PANEL_PARAMS)                              \
    {                                                                                              \
        if (kind == MOE_LAYOUT_MXFP4 || layout.group == 32)                                        \
            quant_body(kind, nt, 32, MOE_PANEL_ARGS);                                              \
        else                                                                                       \
            quant_body(kind, nt, 64, MOE_PANEL_ARGS);                                              \
    }

#endif
