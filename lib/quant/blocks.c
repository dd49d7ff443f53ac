/* Fits spans of Q2_K to Q6_K, IQ4_XS and Q8_0. */
#include "quant/blocks.h"

#include <math.h>
#include <string.h>

#include "quant/fit.h"

enum {
    WIDEST = 32, /* columns of a block */
    MOST = 16,   /* blocks of a span */
    TRIED = 12,  /* scales of a block, each way */
    PASSES = 2,  /* times that blocks choose their numbers */
    NUMBERS = 16 /* of a table */
};

/* A kind: w = d s v - m t, where v is any whole number of a range or one of a table. */
struct kind {
    uint16_t layout;
    int bits;        /* that ask for it; 0: only its name does */
    int columns;     /* of a block */
    float low, high; /* v */
    int least, most; /* s; t is from 0 to `most` */
    bool offset;
    const int8_t *numbers; /* the table, rising; NULL: the range */
};

static const struct kind kinds[] = {
    {MOE_LAYOUT_Q2_K, 2, 16, 0, 3, 0, 15, true, NULL},
    {MOE_LAYOUT_Q3_K, 3, 16, -4, 3, -32, 31, false, NULL},
    {MOE_LAYOUT_IQ4_XS, 0, 32, -127, 113, -32, 31, false, moe_iq4_numbers},
    {MOE_LAYOUT_Q4_K, 4, 32, 0, 15, 0, 63, true, NULL},
    {MOE_LAYOUT_Q5_K, 5, 32, 0, 31, 0, 63, true, NULL},
    {MOE_LAYOUT_Q6_K, 6, 16, -32, 31, -128, 127, false, NULL},
    {MOE_LAYOUT_Q8_0, 8, 32, -128, 127, 1, 1, false, NULL},
};

enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

uint16_t moe_blocks_kind(int bits)
{
    for (int i = 0; i < N_KINDS && bits; i++)
        if (kinds[i].bits == bits)
            return kinds[i].layout;
    return MOE_LAYOUT_NONE;
}

static const struct kind *find(int layout)
{
    for (int i = 0; i < N_KINDS; i++)
        if (kinds[i].layout == layout)
            return &kinds[i];
    return NULL;
}

bool moe_blocks_encodes(int kind)
{
    return find(kind) != NULL;
}

/* A block: its weights w, how much errors of each count (a), the best scale and offset, the numbers
 * that it takes of them, and what the last rounding gave: values v and sums, in all of which a term
 * counts `a` times. */
struct block {
    float w[WIDEST], a[WIDEST], v[WIDEST];
    double scale, offset;
    int s, t;
    double sum_a, sum_w, sum_v, sum_vv, sum_wv, error;
};

/* What is done for all blocks of a span once for 16 columns, once for 32. */
#define MOE_OF_COLUMNS static inline __attribute__((always_inline))

/* The sum of 16 or 32 numbers, in a fixed order. */
MOE_OF_COLUMNS double sum_of(const float *x, int n)
{
    float half[WIDEST / 2];
    for (int i = 0; i < WIDEST / 2; i++)
        half[i] = n > WIDEST / 2 ? x[i] + x[i + WIDEST / 2] : x[i];
    for (int i = 0; i < 8; i++)
        half[i] += half[i + 8];
    for (int i = 0; i < 4; i++)
        half[i] += half[i + 4];
    return (double)((half[0] + half[2]) + (half[1] + half[3]));
}

/* Gives each weight the value nearest by `inverse`, one over a scale, and an offset. */
MOE_OF_COLUMNS void round_block(const struct kind *kind, struct block *b, int n, float inverse,
                                float offset)
{
    if (!kind->numbers) {
        for (int i = 0; i < n; i++)
            b->v[i] = moe_fit_code((b->w[i] - offset) * inverse, kind->low, kind->high);
        return;
    }
    for (int i = 0; i < n; i++)
        b->v[i] = kind->low;
    for (int k = 1; k < NUMBERS; k++) {
        const float step = (float)(kind->numbers[k] - kind->numbers[k - 1]);
        const float middle = (float)kind->numbers[k] - 0.5f * step;
        for (int i = 0; i < n; i++)
            b->v[i] += (b->w[i] - offset) * inverse > middle ? step : 0;
    }
}

MOE_OF_COLUMNS void sum_up(struct block *b, int n)
{
    float av[WIDEST], vv[WIDEST], wv[WIDEST];
    for (int i = 0; i < n; i++) {
        av[i] = b->a[i] * b->v[i];
        vv[i] = av[i] * b->v[i];
        wv[i] = av[i] * b->w[i];
    }
    b->sum_v = sum_of(av, n);
    b->sum_vv = sum_of(vv, n);
    b->sum_wv = sum_of(wv, n);
}

/* The squared error of the block's values by a scale and an offset. */
MOE_OF_COLUMNS double error_of(const struct block *b, int n, float scale, float offset)
{
    float squares[WIDEST];
    for (int i = 0; i < n; i++) {
        const float e = b->w[i] - (scale * b->v[i] + offset);
        squares[i] = b->a[i] * e * e;
    }
    return sum_of(squares, n);
}

/* Fits scale and offset to the block's values, and keeps them if the error is the least so far. */
MOE_OF_COLUMNS void fit_block(struct block *b, int n, bool has_offset)
{
    sum_up(b, n);
    const double spread = b->sum_a * b->sum_vv - b->sum_v * b->sum_v;
    double scale = b->sum_vv > 0 ? b->sum_wv / b->sum_vv : 0, offset = 0;
    if (has_offset && spread > 0) {
        const double both = (b->sum_a * b->sum_wv - b->sum_w * b->sum_v) / spread;
        const double at = (b->sum_w - both * b->sum_v) / b->sum_a;
        if (at < 0) { /* offsets are not positive */
            scale = both;
            offset = at;
        }
    }
    const double error = error_of(b, n, (float)scale, (float)offset);
    if (error < b->error) {
        b->error = error;
        b->scale = scale;
        b->offset = offset;
    }
}

/* Errors count by the sizes of weights. */
MOE_OF_COLUMNS void weigh_block(struct block *b, int n)
{
    float aw[WIDEST];
    for (int i = 0; i < n; i++)
        b->a[i] = fabsf(b->w[i]);
    b->sum_a = sum_of(b->a, n);
    for (int i = 0; i < n; i++) {
        b->a[i] = b->sum_a > 0 ? b->a[i] : 1;
        aw[i] = b->a[i] * b->w[i];
    }
    b->sum_a = b->sum_a > 0 ? b->sum_a : n;
    b->sum_w = sum_of(aw, n);
}

/* Finds the best scale and offset of a block by themselves. */
MOE_OF_COLUMNS void search_block(const struct kind *kind, struct block *b, int n)
{
    float low = b->w[0], high = b->w[0];
    for (int i = 1; i < n; i++) {
        low = moe_fit_min(low, b->w[i]);
        high = moe_fit_max(high, b->w[i]);
    }
    weigh_block(b, n);
    b->scale = b->offset = 0;
    b->error = INFINITY;
    if (kind->offset) {
        low = low < 0 ? low : 0;
        b->offset = (double)low; /* where all weights are the same */
        for (int i = 0; i < TRIED && high > low; i++) {
            round_block(kind, b, n, (kind->high - 0.6f + 0.1f * (float)i) / (high - low), low);
            fit_block(b, n, true);
        }
        return;
    }
    const float largest = high > -low ? high : -low;
    /* Steps of a table are wider, and so is the range of scales worth trying. */
    const float from = kind->low + (kind->numbers ? 25.0f : 1.0f);
    const float step = kind->numbers ? 4.0f : 0.1f;
    for (int i = 0; i < TRIED && largest > 0; i++) {
        const float inverse = (from - step * (float)i) / largest;
        round_block(kind, b, n, inverse, 0);
        fit_block(b, n, false);
        round_block(kind, b, n, -inverse, 0);
        fit_block(b, n, false);
    }
}

static int near_number(double of, float unit, int least, int most)
{
    const double number = unit != 0 ? nearbyint(of / (double)unit) : 0;
    return number < least ? least : number > most ? most : (int)number;
}

/* Gives a block, of the numbers about `scale` and `offset` over the span's, those that leave least;
 * its values are those of the best at the end. */
MOE_OF_COLUMNS void choose_numbers(const struct kind *kind, struct block *b, int n, float d,
                                   float m)
{
    const int near_s = near_number(b->scale, d, kind->least, kind->most);
    const int near_t = near_number(-b->offset, m, 0, kind->most);
    float best[WIDEST] = {0};
    /* Where the span's scale is too small for f16, zeros may be best. */
    b->s = kind->least > 0 ? kind->least : 0;
    b->t = 0;
    memcpy(b->v, best, sizeof best);
    b->error = error_of(b, n, 0, 0);
    for (int s = near_s - 1; s <= near_s + 1; s++)
        for (int t = near_t - 1; t <= near_t + 1; t++) {
            if (s < kind->least || s > kind->most || t < 0 || t > (kind->offset ? kind->most : 0))
                continue;
            const float scale = d * (float)s, offset = -m * (float)t;
            round_block(kind, b, n, scale != 0 ? 1 / scale : 0, offset);
            const double error = error_of(b, n, scale, offset);
            if (error < b->error) {
                b->error = error;
                b->s = s;
                b->t = t;
                memcpy(best, b->v, sizeof best);
            }
        }
    memcpy(b->v, best, sizeof best);
    sum_up(b, n);
}

/* The span's scale and offset by which the block with the greatest has the greatest number. */
static void set_units(const struct kind *kind, const struct block *blocks, int n_blocks, double *d,
                      double *m)
{
    double scale = 0, offset = 0;
    for (int j = 0; j < n_blocks; j++) {
        scale = fabs(blocks[j].scale) > fabs(scale) ? blocks[j].scale : scale;
        offset = blocks[j].offset < offset ? blocks[j].offset : offset;
    }
    *d = scale / (kind->offset ? kind->most : kind->least);
    *m = -offset / kind->most;
}

/* Fits the span's scale and offset to what the blocks have chosen, by least squares. */
static void fit_units(const struct block *blocks, int n_blocks, double *d, double *m)
{
    double ss = 0, st = 0, tt = 0, sw = 0, tw = 0;
    for (int j = 0; j < n_blocks; j++) {
        const struct block *b = &blocks[j];
        ss += b->s * b->s * b->sum_vv;
        st += b->s * b->t * b->sum_v;
        tt += b->t * b->t * b->sum_a;
        sw += b->s * b->sum_wv;
        tw += b->t * b->sum_w;
    }
    const double both = ss * tt - st * st;
    if (tt > 0 && both > 1e-9 * ss * tt) {
        const double offset = (st * sw - ss * tw) / both;
        *d = (tt * sw - st * tw) / both;
        *m = offset > 0 ? offset : *m;
    } else if (tt == 0 && ss > 0) {
        *d = sw / ss;
    }
}

static uint8_t code_of(const struct kind *kind, float v)
{
    int code = 0;
    if (!kind->numbers)
        return (uint8_t)(v - kind->low);
    while ((float)kind->numbers[code] < v)
        code++;
    return (uint8_t)code;
}

MOE_OF_COLUMNS void fit_span(const struct kind *kind, int columns, const float *w, uint32_t n,
                             struct moe_span_codes *span)
{
    const int n_blocks = (int)((n + (uint32_t)columns - 1) / (uint32_t)columns);
    struct block blocks[MOST];
    double d, m;
    for (int j = 0; j < n_blocks; j++) {
        /* Columns that are missing are copies of those that are there. */
        const uint32_t first = (uint32_t)(j * columns), left = n - first;
        for (uint32_t i = 0; i < (uint32_t)columns; i++)
            blocks[j].w[i] = w[first + (i < left ? i : i % left)];
        search_block(kind, &blocks[j], columns);
    }
    set_units(kind, blocks, n_blocks, &d, &m);
    for (int pass = 0; pass < PASSES; pass++) {
        span->d = moe_f32_to_f16((float)d);
        span->m = moe_f32_to_f16((float)m);
        for (int j = 0; j < n_blocks; j++)
            choose_numbers(kind, &blocks[j], columns, moe_f16_to_f32(span->d),
                           moe_f16_to_f32(span->m));
        fit_units(blocks, n_blocks, &d, &m);
    }
    for (int j = 0; j < n_blocks; j++) {
        span->s[j] = (uint8_t)(blocks[j].s + moe_kind_scale_zero(kind->layout));
        span->t[j] = (uint8_t)blocks[j].t;
        for (int i = 0; i < columns; i++)
            span->codes[j * columns + i] = code_of(kind, blocks[j].v[i]);
    }
}

MOE_CLONES
static void fit_by_16(const struct kind *kind, const float *w, uint32_t n,
                      struct moe_span_codes *span)
{
    fit_span(kind, 16, w, n, span);
}

MOE_CLONES
static void fit_by_32(const struct kind *kind, const float *w, uint32_t n,
                      struct moe_span_codes *span)
{
    fit_span(kind, 32, w, n, span);
}

void moe_blocks_fit(int kind, const float *w, uint32_t n, struct moe_span_codes *span)
{
    const struct kind *of = find(kind);
    *span = (struct moe_span_codes){0};
    if (of->columns == 16)
        fit_by_16(of, w, n, span);
    else
        fit_by_32(of, w, n, span);
}
