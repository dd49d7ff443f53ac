/*
 * How a variant gets its 28 panel functions out of two templates.
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
    static void fill_quant_panels(struct moe_kern *kern)                                           \
    {                                                                                              \
        static moe_panel_fn *const rows[4][MOE_N_TILES] = {                                        \
            MOE_PANEL_ROW(quant_panel, Q8), MOE_PANEL_ROW(quant_panel, Q4),                        \
            MOE_PANEL_ROW(quant_panel, Q3), MOE_PANEL_ROW(quant_panel, Q2)};                       \
        memcpy(kern->panel[3], rows, sizeof rows);                                                 \
    }

/* ---- Geometry of records (layout.h) ---------------------------------------------------------- */

enum {
    MOE_UNIT = 64,        /* bytes of a unit: 16 rows of 4 bytes */
    MOE_RECORD_HEAD = 64, /* bytes of d and m */
    MOE_STEP = 32,        /* columns the vector variants take at a time; a block is 1 or 2 steps */
    MOE_STEP_QUADS = 8    /* groups of 4 columns in a step */
};

/* Bytes of a step in a block's units; for Q3 without the plane of high bits. */
static inline uint32_t moe_step_bytes(int kind)
{
    return kind == MOE_LAYOUT_Q8   ? 8 * MOE_UNIT
           : kind == MOE_LAYOUT_Q4 ? 4 * MOE_UNIT
                                   : 2 * MOE_UNIT;
}

/* A position within a panel: a group record and the blocks in it. */
struct moe_record {
    const uint8_t *head;  /* d[16], m[16] */
    const uint8_t *codes; /* first block */
    uint32_t blocks;
};

/* The record at `at` whose first column is `first`; moves both on to the next one. */
static inline struct moe_record moe_record_next(const uint8_t **at, uint32_t *first,
                                                struct moe_layout layout, uint32_t cols,
                                                uint32_t block, uint32_t block_bytes)
{
    uint32_t left = cols - *first;
    uint32_t n = layout.group && layout.group < left ? layout.group : left;
    /* A block is 32 or 64 columns: shifts, since a division takes as long as a block. */
    uint32_t blocks = block == 32 ? (n + 31) / 32 : (n + 63) / 64;
    struct moe_record record = {*at, *at + MOE_RECORD_HEAD, blocks};
    *at = record.codes + (uint64_t)record.blocks * block_bytes;
    *first += n;
    return record;
}

#endif
