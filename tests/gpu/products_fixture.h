/*
 * Random matrices and inputs for the tests of products, on the host and on the device.
 *
 * A matrix is its packed bytes drawn at random, the excess columns and rows too, which must not
 * matter; only scales are drawn with care, so that sums stay finite where they should.
 */
#ifndef TESTS_GPU_PRODUCTS_FIXTURE_H
#define TESTS_GPU_PRODUCTS_FIXTURE_H

#include <math.h>

#include "base/mem.h"
#include "gpu_fixture.h"
#include "kern/kern.h"
#include "quant/layout.h"

/* How values are drawn. */
enum flavour {
    ORDINARY,
    WORST,  /* codes at their largest, inputs of one magnitude */
    WIDE,   /* scales and inputs from subnormal to huge */
    BROKEN, /* some scales and inputs infinite or no numbers */
    N_FLAVOURS
};

static const struct moe_layout layouts[] = {
    {MOE_LAYOUT_F32, 0},      {MOE_LAYOUT_F16, 0},     {MOE_LAYOUT_BF16, 0},
    {MOE_LAYOUT_Q8, 0},       {MOE_LAYOUT_Q8, 32},     {MOE_LAYOUT_Q8, 64},
    {MOE_LAYOUT_Q8, 128},     {MOE_LAYOUT_Q4, 0},      {MOE_LAYOUT_Q4, 32},
    {MOE_LAYOUT_Q4, 64},      {MOE_LAYOUT_Q4, 192},    {MOE_LAYOUT_Q3, 0},
    {MOE_LAYOUT_Q3, 32},      {MOE_LAYOUT_Q3, 64},     {MOE_LAYOUT_Q3, 128},
    {MOE_LAYOUT_Q2, 0},       {MOE_LAYOUT_Q2, 32},     {MOE_LAYOUT_Q2, 64},
    {MOE_LAYOUT_Q2, 128},     {MOE_LAYOUT_MXFP4, 32},  {MOE_LAYOUT_Q5, 32},
    {MOE_LAYOUT_Q5, 64},      {MOE_LAYOUT_Q5, 0},      {MOE_LAYOUT_Q4_0, 32},
    {MOE_LAYOUT_Q5_0, 32},    {MOE_LAYOUT_Q6_0, 32},   {MOE_LAYOUT_Q8_0, 32},
    {MOE_LAYOUT_IQ4_NL, 32},  {MOE_LAYOUT_Q2_K, 32},   {MOE_LAYOUT_Q3_K, 32},
    {MOE_LAYOUT_Q4_K, 32},    {MOE_LAYOUT_Q5_K, 32},   {MOE_LAYOUT_Q6_K, 32},
    {MOE_LAYOUT_IQ4_XS, 32},  {MOE_LAYOUT_NVFP4, 32},  {MOE_LAYOUT_TQ2_0, 32},
    {MOE_LAYOUT_IQ1_S, 32},   {MOE_LAYOUT_IQ1_M, 32},  {MOE_LAYOUT_IQ2_XXS, 32},
    {MOE_LAYOUT_IQ2_XS, 32},  {MOE_LAYOUT_IQ2_S, 32},  {MOE_LAYOUT_IQ3_XXS, 32},
    {MOE_LAYOUT_IQ3_S, 32},   {MOE_LAYOUT_Q1_0, 32},   {MOE_LAYOUT_Q2_0, 32},
    {MOE_LAYOUT_TQ1_0, 32},   {MOE_LAYOUT_Q8_Z, 128},  {MOE_LAYOUT_Q4_Z, 32},
    {MOE_LAYOUT_Q4_Z, 128},   {MOE_LAYOUT_Q3_Z, 64},   {MOE_LAYOUT_Q2_Z, 0},
    {MOE_LAYOUT_NVFP4_T, 32}, {MOE_LAYOUT_IQ2_K, 32},  {MOE_LAYOUT_IQ2_KS, 32},
    {MOE_LAYOUT_IQ3_K, 32},   {MOE_LAYOUT_IQ1_KT, 32}, {MOE_LAYOUT_IQ2_KT, 32},
    {MOE_LAYOUT_IQ3_KT, 32},  {MOE_LAYOUT_IQ4_KT, 32}, {MOE_LAYOUT_IQ2_KL, 32},
    {MOE_LAYOUT_IQ3_KS, 32},  {MOE_LAYOUT_IQ4_K, 32},  {MOE_LAYOUT_IQ4_KS, 32},
    {MOE_LAYOUT_IQ5_K, 32},   {MOE_LAYOUT_IQ5_KS, 32}, {MOE_LAYOUT_IQ6_K, 32},
    {MOE_LAYOUT_F8, 0},       {MOE_LAYOUT_F8, 32},     {MOE_LAYOUT_F8_B, 128},
    {MOE_LAYOUT_I8, 0},       {MOE_LAYOUT_NF4, 64},    {MOE_LAYOUT_FP4, 32},
};

static inline uint32_t draw_up_to(uint64_t *seed, uint32_t most)
{
    return 1 + (uint32_t)(test_random(seed) % most);
}

static inline struct moe_layout draw_layout(uint64_t *seed)
{
    return layouts[test_random(seed) % N_ITEMS(layouts)];
}

static inline float draw(uint64_t *seed, enum flavour flavour)
{
    float v = test_uniform(seed);
    if (flavour == WORST)
        return v < 0 ? -3.0f : 3.0f;
    if (flavour == WIDE)
        return ldexpf(v, (int)(test_random(seed) % 220) - 160);
    if (flavour == BROKEN && test_random(seed) % 300 == 0)
        return test_random(seed) % 2 ? INFINITY : NAN;
    return v;
}

static inline uint16_t draw_f16(uint64_t *seed, enum flavour flavour)
{
    uint16_t bits = (uint16_t)test_random(seed);
    if (flavour == WIDE)
        return (bits & 0x7c00) == 0x7c00 ? bits & 0x83ff : bits;
    return moe_f32_to_f16(draw(seed, flavour) * 0.1f);
}

static inline uint8_t draw_exponent(uint64_t *seed, enum flavour flavour)
{
    if (flavour == WIDE)
        return (uint8_t)(test_random(seed) % (test_random(seed) % 4 ? 200 : 3));
    if (flavour == BROKEN && test_random(seed) % 50 == 0)
        return (uint8_t)(254 + test_random(seed) % 2);
    return (uint8_t)(118 + test_random(seed) % 12);
}

static inline void *take(uint64_t n, uint64_t item_bytes)
{
    struct moe_err err;
    void *p = moe_alloc(n, item_bytes, &err);
    if (!p)
        fail_msg("%s", err.text);
    return p;
}

/* ---- Matrices ---- */

struct matrix {
    struct moe_mat host, device;
    uint8_t *data; /* of the host */
};

static inline void draw_float_data(uint8_t *data, uint64_t n, uint16_t kind, uint64_t *seed,
                                   enum flavour flavour)
{
    for (uint64_t i = 0; i < n; i++) {
        float v = draw(seed, flavour);
        uint16_t half = kind == MOE_LAYOUT_F16 ? draw_f16(seed, flavour) : moe_f32_to_bf16(v);
        if (kind == MOE_LAYOUT_F32)
            memcpy(data + 4 * i, &v, sizeof v);
        else
            memcpy(data + 2 * i, &half, sizeof half);
    }
}

/* A record's head: ordinary d and dmin, any other numbers. */
static inline void draw_head(uint8_t *head, uint16_t kind, uint64_t *seed, enum flavour flavour)
{
    const uint32_t halves =
        ((moe_kind_has_d(kind) ? 1 : 0) + (moe_kind_has_min(kind) ? 1 : 0)) * MOE_PANEL_ROWS;
    for (uint32_t i = 0; i < halves; i++) {
        uint16_t half = draw_f16(seed, flavour);
        memcpy(head + 2 * i, &half, sizeof half);
    }
    for (uint32_t i = 2 * halves; i < moe_kind_head(kind) * MOE_PANEL_ROWS; i++)
        head[i] = kind == MOE_LAYOUT_MXFP4 ? draw_exponent(seed, flavour)
                  : moe_kind_is_e2m1(kind) ? (uint8_t)(test_random(seed) % 127)
                                           : (uint8_t)test_random(seed);
}

static inline void draw_panel(uint8_t *panel, struct moe_layout layout, uint32_t cols,
                              uint64_t *seed, enum flavour flavour)
{
    const uint16_t kind = layout.kind;
    uint32_t block = moe_layout_block(layout), span = moe_kind_span(kind);
    uint32_t full = span ? moe_kind_record(kind) * span : layout.group;
    if (moe_kind_is_scaled(kind)) {
        const uint64_t front = moe_scaled_front(layout, cols);
        draw_float_data(panel, front / 4, MOE_LAYOUT_F32, seed, flavour);
        for (uint64_t i = front; i < moe_layout_panel_bytes(layout, cols); i++)
            panel[i] = flavour == WORST ? 0xff : (uint8_t)test_random(seed);
        return;
    }
    if (moe_kind_front(kind))
        draw_float_data(panel, MOE_PANEL_ROWS, MOE_LAYOUT_F32, seed, flavour);
    panel += moe_kind_front(kind);
    for (uint32_t first = 0; first < cols;) {
        uint32_t n = full && full < cols - first ? full : cols - first;
        uint64_t blocks = (n + block - 1) / block, bytes = blocks * moe_layout_block_bytes(layout);
        for (uint32_t i = 0; i < (span ? (n + span - 1) / span : 1); i++)
            draw_head(panel + i * moe_kind_head(kind) * MOE_PANEL_ROWS, kind, seed, flavour);
        panel += moe_kind_head_bytes(kind, (uint32_t)blocks);
        for (uint64_t i = 0; i < bytes; i++)
            *panel++ = flavour == WORST ? 0xff : (uint8_t)test_random(seed);
        first += n;
    }
}

/* As many columns as a matrix of that layout can have. */
static inline uint32_t fitting_cols(struct moe_layout layout, uint32_t cols)
{
    return moe_kind_is_scaled(layout.kind) ? (uint32_t)moe_round_up(cols, 32) : cols;
}

/* t NULL: of the host alone. */
static inline struct matrix matrix_new(struct gpu_taken *t, struct moe_layout layout, uint32_t rows,
                                       uint32_t cols, uint64_t *seed, enum flavour flavour)
{
    struct matrix m = {.host = {.layout = layout, .rows = rows, .cols = cols}};
    uint64_t bytes = moe_layout_bytes(layout, rows, cols);
    assert_true(moe_layout_valid(layout));
    m.host.data = m.data = take(bytes, 1);
    if (moe_layout_is_float(layout.kind))
        draw_float_data(m.data, (uint64_t)moe_panels(rows) * MOE_PANEL_ROWS * cols, layout.kind,
                        seed, flavour);
    else
        for (uint32_t p = 0; p < moe_panels(rows); p++)
            draw_panel(m.data + p * moe_layout_panel_bytes(layout, cols), layout, cols, seed,
                       flavour);
    m.device = m.host;
    m.device.data = gpu_take(t, m.data, bytes);
    return m;
}

/* ---- Inputs ---- */

/* [n][stride] values; the columns from `cols` on hold what must not be looked at. */
static inline float *draw_rows(uint32_t n, uint32_t cols, uint64_t stride, uint64_t *seed,
                               enum flavour flavour)
{
    float *x = take(n * stride, sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t c = 0; c < stride; c++)
            x[i * stride + c] = c < cols ? draw(seed, flavour) : NAN;
    return x;
}

/* Room for n inputs of `cols` columns in both byte forms. x: of the device. */
static inline struct moe_gpu_act act_room(struct gpu_taken *t, uint32_t n, uint32_t cols, float *x,
                                          uint64_t x_stride)
{
    struct moe_gpu_act act = {.cols = cols, .x = x, .x_stride = x_stride};
    for (int form = 0; form < MOE_GPU_N_BLOCKS; form++) {
        uint64_t block = form == MOE_GPU_BLOCK_32 ? 32 : 64, blocks = (cols + block - 1) / block;
        act.bytes[form].q = gpu_take(t, NULL, n * blocks * block);
        act.bytes[form].s = gpu_take(t, NULL, n * blocks * sizeof(float));
        act.bytes[form].z = gpu_take(t, NULL, n * blocks * sizeof(float));
    }
    return act;
}

/* The rows on the device, prepared. */
static inline struct moe_gpu_act act_new(struct gpu_taken *t, const float *x, uint32_t n,
                                         uint32_t cols, uint64_t stride)
{
    struct moe_gpu_act act = act_room(t, n, cols, gpu_take(t, x, n * stride * sizeof *x), stride);
    moe_gpu_prepare(t->g, act.x, stride, n, 1, 0, &act);
    return act;
}

#endif
