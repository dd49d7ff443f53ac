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
    uint32_t exponent; /* a float layout's exponent, in place */
    /* Scales of every span, in odd rows their negatives, for the numbers of some kinds have a mean;
     * of affine layouts d and m of every group. */
    struct moe_span_codes like;
    uint8_t *panel; /* one with these scales and codes of 0 */
    uint8_t *codes; /* [threads][columns of a group], for panels with an edge */
    uint32_t group; /* columns of a group; those that share a block of codes in other kinds */
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

/* Numbers below 2^bits, one in a byte; without a stream zeros. */
static void draw_codes(struct stream *r, int bits, uint8_t *codes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        codes[i] = r ? (uint8_t)(moe_random_xoshiro(r->s) >> 32 & ((1u << bits) - 1)) : 0;
}

/* Bits of what a span's `codes` have for a column, or of grouped kinds in a byte. */
static int code_bits(uint16_t kind)
{
    return moe_kind_is_grouped(kind) ? 8 : moe_layout_bits(kind);
}

/* Draws one row; codes: room for those of a group. */
static void draw_row(const struct draw *d, uint8_t *data, uint32_t row, struct stream *r,
                     uint8_t *codes)
{
    const uint32_t columns = moe_kind_span(d->layout.kind);
    struct moe_span_codes span = d->like;
    if (columns && row % 2) {
        span.d ^= 0x8000;
        span.m ^= 0x8000;
        span.factor = -span.factor;
    }
    for (uint32_t i = 0; columns && (uint64_t)i * columns < d->cols; i++) {
        draw_codes(r, code_bits(d->layout.kind), span.codes, columns);
        moe_layout_store_span(data, d->layout, d->cols, row, i, &span);
    }
    const struct moe_group_codes group = {span.d, span.m, codes};
    for (uint32_t g = 0; !columns && (uint64_t)g * d->group < d->cols; g++) {
        draw_codes(r, code_bits(d->layout.kind), codes, d->group);
        moe_layout_store_group(data, d->layout, d->cols, row, g, &group);
    }
}

/* Draws a panel without an edge: 16 rows of whole blocks. */
static void draw_whole(const struct draw *d, struct stream *r, uint8_t *at)
{
    const int kind = d->layout.kind;
    const uint32_t block = moe_layout_block(d->layout);
    const uint32_t record =
        moe_kind_span(kind) ? moe_kind_record(kind) * moe_kind_span(kind) : d->group;
    memcpy(at, d->panel, d->panel_bytes);
    at += moe_kind_front(kind);
    for (uint32_t first = 0; first < d->cols; first += record) {
        const uint32_t n = d->cols - first < record ? d->cols - first : record;
        const uint64_t bytes = n / block * moe_layout_block_bytes(d->layout);
        at += moe_kind_head_bytes(kind, n / block);
        draw_bytes(r, at, bytes);
        at += bytes;
    }
}

/* Draws a panel with an edge: its last block or rows are filled up with zeros. */
static void draw_edged(const struct draw *d, uint32_t panel, struct stream *r, uint8_t *codes)
{
    uint32_t first = panel * MOE_PANEL_ROWS;
    for (uint32_t row = first; row < d->rows && row < first + MOE_PANEL_ROWS; row++)
        draw_row(d, d->out, row, r, codes);
}

static bool has_edge(const struct draw *d, uint32_t panel)
{
    return d->cols % d->group || d->group % moe_layout_block(d->layout) ||
           d->rows - panel * MOE_PANEL_ROWS < MOE_PANEL_ROWS;
}

/* The spread of drawn numbers under these scales, of a kind with spans. */
static double spread_of(uint16_t kind, struct moe_span_codes span)
{
    enum { N_SPANS = 64 };
    struct stream r = stream_of(0, 0);
    const uint32_t columns = moe_kind_span(kind);
    float weights[MOE_MAX_SPAN];
    double squares = 0;
    for (int i = 0; i < N_SPANS; i++) {
        draw_codes(&r, code_bits(kind), span.codes, columns);
        moe_layout_span_weights(kind, &span, columns, weights);
        for (uint32_t c = 0; c < columns; c++)
            squares += (double)weights[c] * weights[c];
    }
    return sqrt(squares / N_SPANS / columns);
}

/* Sets scales under which numbers that are all equally likely have the spread. */
static void set_scales(struct draw *d, double spread)
{
    enum { SCALE = 12 }; /* a number of a scale that no kind takes for 0 */
    const uint16_t kind = d->layout.kind;
    const double levels = 1 << moe_layout_bits(kind), middle = (levels - 1) / 2;
    struct moe_span_codes *like = &d->like;
    double step = spread / sqrt((levels * levels - 1) / 12);
    if (moe_kind_span(kind)) {
        memset(like->s, SCALE, sizeof like->s);
        memset(like->t, moe_kind_shift(kind) ? 0 : SCALE, sizeof like->t); /* e, or another */
        like->factor = 1;
        like->d = moe_f32_to_f16(1);
        like->m = moe_kind_has_min(kind) ? moe_f32_to_f16((float)middle) : 0;
        step = spread / spread_of(kind, *like);
        like->factor = moe_kind_front(kind) ? (float)step : 1;
    }
    like->d = moe_f32_to_f16((float)step);
    const float m = moe_f16_to_f32(like->d) * (float)middle;
    like->m = moe_f32_to_f16(moe_kind_span(kind) ? m : -m); /* dmin is subtracted */
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
    int status = MOE_OK;
    if (moe_layout_is_float(layout.kind)) {
        d.exponent = exponent_of(layout.kind, spread);
    } else {
        set_scales(&d, spread);
        d.group = d.group < cols ? d.group : cols;
        d.codes = moe_alloc((uint64_t)d.group * (uint64_t)moe_par_threads(), 1, err);
        d.panel = moe_alloc(d.panel_bytes, 1, err);
        MOE_STEP(d.codes && d.panel ? MOE_OK : MOE_ERR_MEMORY);
        for (uint32_t row = 0; row < MOE_PANEL_ROWS; row++)
            draw_row(&d, d.panel, row, NULL, d.codes);
    }
    moe_par_for(moe_panels(rows), 4, draw_panels, &d);
out:
    free(d.codes);
    free(d.panel);
    return status;
}

void moe_drawn_vector(uint32_t n, float bound, uint64_t seed, float *out)
{
    struct stream r = stream_of(seed, 0);
    for (uint32_t i = 0; i < n; i++) {
        double share = (double)(moe_random_xoshiro(r.s) >> 11) * 0x1p-53;
        out[i] = bound * (float)(2 * share - 1);
    }
}
