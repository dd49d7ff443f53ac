/* Pseudo-random weights in any layout. */
#include "quant/drawn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/random.h"

struct draw {
    struct moe_layout layout;
    uint32_t rows, cols;
    uint64_t seed;
    uint8_t *out;
    uint64_t panel_bytes;
    uint16_t d, m;     /* d and m of every group of an affine layout */
    uint32_t exponent; /* a float layout's exponent, in place */
    uint8_t *codes;    /* [threads][columns of a group], for panels with an edge */
    uint32_t group;    /* columns of a group */
};

struct stream {
    uint64_t s[4];
};

static struct stream stream_of(uint64_t seed, uint64_t number)
{
    struct stream out;
    uint64_t state = seed + number * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 4; i++)
        out.s[i] = moe_random_next(&state);
    return out;
}

/* ---- Floats ---- */

/* Draws floats: random sign and mantissa, fixed exponent. */
static void draw_floats(const struct draw *d, uint32_t panel, struct stream *r, uint8_t *at)
{
    uint32_t left = d->rows - panel * MOE_PANEL_ROWS;
    bool wide = d->layout.kind == MOE_LAYOUT_F32;
    uint32_t digits = d->layout.kind == MOE_LAYOUT_F16 ? 0x83ff : wide ? 0x807fffff : 0x807f;
    for (uint64_t i = 0; i < (uint64_t)d->cols * MOE_PANEL_ROWS; i++) {
        uint32_t bits = ((uint32_t)(moe_random_xoshiro(r->s) >> 32) & digits) | d->exponent;
        if (i % MOE_PANEL_ROWS >= left)
            bits = 0;
        if (wide)
            moe_put_u32(at + 4 * i, bits);
        else
            moe_put_u16(at + 2 * i, (uint16_t)bits);
    }
}

/* The exponent bits of floats in [2^e, 2^(e+1)), whose root mean square is 2^e * sqrt(7/3). */
static uint32_t exponent_of(uint16_t kind, double spread)
{
    int e = (int)lround(log2(spread / sqrt(7.0 / 3)));
    if (kind == MOE_LAYOUT_F16)
        return (uint32_t)((e < -14 ? -14 : e) + 15) << 10;
    return (uint32_t)(e + 127) << (kind == MOE_LAYOUT_F32 ? 23 : 7);
}

/* ---- Codes ---- */

static void draw_bytes(struct stream *r, uint8_t *at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += 8) /* blocks are multiples of 64 bytes */
        moe_put_u64(at + i, moe_random_xoshiro(r->s));
}

/* Draws a panel without an edge: whole groups of whole blocks, 16 rows. */
static void draw_whole(const struct draw *d, struct stream *r, uint8_t *at)
{
    uint64_t bytes = d->group / moe_layout_block(d->layout) * moe_layout_block_bytes(d->layout);
    for (uint32_t g = 0; g < d->cols / d->group; g++) {
        for (int row = 0; row < MOE_PANEL_ROWS; row++) {
            moe_put_u16(at + 2 * row, d->d);
            moe_put_u16(at + 2 * (MOE_PANEL_ROWS + row), d->m);
        }
        at += 4 * MOE_PANEL_ROWS;
        draw_bytes(r, at, bytes);
        at += bytes;
    }
}

/* Draws a panel with an edge: its last block or rows are filled up with zeros. */
static void draw_edged(const struct draw *d, uint32_t panel, struct stream *r, uint8_t *codes)
{
    uint32_t first = panel * MOE_PANEL_ROWS, mask = (1u << moe_layout_bits(d->layout.kind)) - 1;
    for (uint32_t row = first; row < d->rows && row < first + MOE_PANEL_ROWS; row++)
        for (uint32_t g = 0; (uint64_t)g * d->group < d->cols; g++) {
            const struct moe_group_codes group = {d->d, d->m, codes};
            for (uint32_t i = 0; i < d->group; i++)
                codes[i] = (uint8_t)(moe_random_xoshiro(r->s) >> 32 & mask);
            moe_layout_store_group(d->out, d->layout, d->cols, row, g, &group);
        }
}

static bool has_edge(const struct draw *d, uint32_t panel)
{
    return d->cols % d->group || d->group % moe_layout_block(d->layout) ||
           d->rows - panel * MOE_PANEL_ROWS < MOE_PANEL_ROWS;
}

/* ---- Matrices ---- */

static void draw_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct draw *d = ctx;
    for (int64_t p = begin; p < end; p++) {
        struct stream r = stream_of(d->seed, (uint64_t)p);
        uint32_t panel = (uint32_t)p;
        uint8_t *at = d->out + (uint64_t)p * d->panel_bytes;
        if (moe_layout_is_float(d->layout.kind))
            draw_floats(d, panel, &r, at);
        else if (has_edge(d, panel))
            draw_edged(d, panel, &r, d->codes + (uint64_t)thread * d->group);
        else
            draw_whole(d, &r, at);
    }
}

/* Sets w = d * q + m, with all codes q equally likely. */
static void set_scale(struct draw *d, double spread)
{
    double levels = 1 << moe_layout_bits(d->layout.kind);
    double step = spread / sqrt((levels * levels - 1) / 12);
    d->d = moe_f32_to_f16((float)step);
    d->m = moe_f32_to_f16(-moe_f16_to_f32(d->d) * (float)((levels - 1) / 2));
}

int moe_drawn_matrix(struct moe_layout layout, uint32_t rows, uint32_t cols, double spread,
                     uint64_t seed, uint8_t *out, struct moe_err *err)
{
    struct draw d = {
        .layout = layout,
        .rows = rows,
        .cols = cols,
        .seed = seed,
        .out = out,
        .panel_bytes = moe_layout_panel_bytes(layout, cols),
        .group = layout.group ? layout.group : cols,
    };
    if (moe_layout_is_float(layout.kind)) {
        d.exponent = exponent_of(layout.kind, spread);
    } else {
        set_scale(&d, spread);
        d.group = d.group < cols ? d.group : cols;
        d.codes = moe_alloc((uint64_t)d.group * (uint64_t)moe_par_threads(), 1, err);
        if (!d.codes)
            return MOE_ERR_MEMORY;
    }
    moe_par_for(moe_panels(rows), 4, draw_panels, &d);
    free(d.codes);
    return MOE_OK;
}

void moe_drawn_vector(uint32_t n, float bound, uint64_t seed, float *out)
{
    struct stream r = stream_of(seed, 0);
    for (uint32_t i = 0; i < n; i++) {
        double share = (double)(moe_random_xoshiro(r.s) >> 11) * 0x1p-53;
        out[i] = bound * (float)(2 * share - 1);
    }
}
