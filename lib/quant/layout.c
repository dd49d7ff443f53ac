#include "quant/layout.h"

#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"

enum { UNIT = 64, SCALES_BYTES = 2 * MOE_PANEL_ROWS * 2 /* d and m of a group record */ };

int moe_layout_bits(uint16_t kind)
{
    switch (kind) {
    case MOE_LAYOUT_F32:
        return 32;
    case MOE_LAYOUT_F16:
    case MOE_LAYOUT_BF16:
        return 16;
    case MOE_LAYOUT_Q8:
        return 8;
    case MOE_LAYOUT_Q4:
        return 4;
    case MOE_LAYOUT_Q3:
        return 3;
    case MOE_LAYOUT_Q2:
        return 2;
    default:
        return 0;
    }
}

const char *moe_layout_name(uint16_t kind)
{
    switch (kind) {
    case MOE_LAYOUT_F32:
        return "f32";
    case MOE_LAYOUT_F16:
        return "f16";
    case MOE_LAYOUT_BF16:
        return "bf16";
    case MOE_LAYOUT_Q8:
        return "q8";
    case MOE_LAYOUT_Q4:
        return "q4";
    case MOE_LAYOUT_Q3:
        return "q3";
    case MOE_LAYOUT_Q2:
        return "q2";
    default:
        return "?";
    }
}

bool moe_layout_is_float(uint16_t kind)
{
    return kind == MOE_LAYOUT_F32 || kind == MOE_LAYOUT_F16 || kind == MOE_LAYOUT_BF16;
}

uint16_t moe_layout_kind_of_bits(int bits)
{
    switch (bits) {
    case 8:
        return MOE_LAYOUT_Q8;
    case 4:
        return MOE_LAYOUT_Q4;
    case 3:
        return MOE_LAYOUT_Q3;
    case 2:
        return MOE_LAYOUT_Q2;
    default:
        return MOE_LAYOUT_NONE;
    }
}

bool moe_layout_valid(struct moe_layout layout)
{
    if (moe_layout_bits(layout.kind) == 0 || layout.group > MOE_MAX_GROUP)
        return false;
    if (moe_layout_is_float(layout.kind))
        return layout.group == 0;
    return layout.group == 32 || layout.group % 64 == 0;
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

static uint32_t group_cols(struct moe_layout layout, uint32_t cols)
{
    return layout.group ? layout.group : cols;
}

uint64_t moe_layout_block_bytes(struct moe_layout layout)
{
    return (uint64_t)MOE_PANEL_ROWS * moe_layout_block(layout) *
           (uint64_t)moe_layout_bits(layout.kind) / 8;
}

/* Bytes of the record of a group with `cols` columns. */
static uint64_t record_bytes(struct moe_layout layout, uint32_t cols)
{
    uint32_t block = moe_layout_block(layout);
    return SCALES_BYTES + (uint64_t)((cols + block - 1) / block) * moe_layout_block_bytes(layout);
}

uint64_t moe_layout_panel_bytes(struct moe_layout layout, uint32_t cols)
{
    if (moe_layout_is_float(layout.kind))
        return (uint64_t)cols * MOE_PANEL_ROWS * (uint64_t)moe_layout_bits(layout.kind) / 8;
    uint32_t group = group_cols(layout, cols);
    if (group == 0)
        return 0;
    uint64_t bytes = cols / group * record_bytes(layout, group);
    if (cols % group)
        bytes += record_bytes(layout, cols % group);
    return bytes;
}

uint64_t moe_layout_bytes(struct moe_layout layout, uint32_t rows, uint32_t cols)
{
    return moe_panels(rows) * moe_layout_panel_bytes(layout, cols);
}

/* ---- Codes in a block -----------------------------------------------------------------------
 * One pair of functions knows where the bits of a code lie; storing and loading share it. */

/* Where bits of column c (within its block) of panel row r lie: byte offset and shift. `per_unit`
 * columns share a unit, each byte holding per_unit / 4 codes of `bits` bits. */
static uint32_t unit_byte(uint32_t r, uint32_t c, uint32_t per_unit, uint32_t bits, uint32_t *shift)
{
    *shift = c % per_unit / 4 * bits;
    return c / per_unit * UNIT + r * 4 + c % 4;
}

static void code_store(uint8_t *block, struct moe_layout layout, uint32_t r, uint32_t c,
                       uint8_t code)
{
    uint32_t bits = (uint32_t)moe_layout_bits(layout.kind), shift;
    uint32_t low = bits == 3 ? 2 : bits;
    uint32_t at = unit_byte(r, c, 32 / low, low, &shift);
    block[at] |= (uint8_t)((code & ((1u << low) - 1)) << shift);
    if (bits == 3) {
        uint8_t *plane = block + moe_layout_block(layout) / 16 * UNIT;
        at = unit_byte(r, c, 32, 1, &shift);
        plane[at] |= (uint8_t)((code >> 2 & 1u) << shift);
    }
}

static uint8_t code_load(const uint8_t *block, struct moe_layout layout, uint32_t r, uint32_t c)
{
    uint32_t bits = (uint32_t)moe_layout_bits(layout.kind), shift;
    uint32_t low = bits == 3 ? 2 : bits;
    uint32_t at = unit_byte(r, c, 32 / low, low, &shift);
    uint32_t code = block[at] >> shift & ((1u << low) - 1);
    if (bits == 3) {
        const uint8_t *plane = block + moe_layout_block(layout) / 16 * UNIT;
        at = unit_byte(r, c, 32, 1, &shift);
        code |= (plane[at] >> shift & 1u) << 2;
    }
    return (uint8_t)code;
}

/* ---- Rows ----------------------------------------------------------------------------------- */

void moe_layout_store_row(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                          const float *values)
{
    uint32_t item = (uint32_t)moe_layout_bits(layout.kind) / 8;
    uint8_t *at = data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols) +
                  row % MOE_PANEL_ROWS * item;
    for (uint32_t c = 0; c < cols; c++, at += MOE_PANEL_ROWS * item) {
        if (layout.kind == MOE_LAYOUT_F32)
            moe_put_u32(at, moe_f32_bits(values[c]));
        else if (layout.kind == MOE_LAYOUT_F16)
            moe_put_u16(at, moe_f32_to_f16(values[c]));
        else
            moe_put_u16(at, moe_f32_to_bf16(values[c]));
    }
}

void moe_layout_store_group(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                            uint32_t g, const struct moe_group_codes *codes)
{
    uint32_t group = group_cols(layout, cols), r = row % MOE_PANEL_ROWS;
    uint32_t first = g * group, n = cols - first < group ? cols - first : group;
    uint32_t block = moe_layout_block(layout);
    uint8_t *record = data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols) +
                      g * record_bytes(layout, group);
    moe_put_u16(record + 2 * r, codes->d);
    moe_put_u16(record + 2 * MOE_PANEL_ROWS + 2 * r, codes->m);
    for (uint32_t c = 0; c < n; c++)
        code_store(record + SCALES_BYTES + c / block * moe_layout_block_bytes(layout), layout, r,
                   c % block, codes->codes[c]);
}

void moe_layout_load_row(const struct moe_mat *mat, uint32_t row, float *out)
{
    struct moe_layout layout = mat->layout;
    uint32_t cols = mat->cols, r = row % MOE_PANEL_ROWS;
    const uint8_t *panel = mat->data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols);
    if (moe_layout_is_float(layout.kind)) {
        uint32_t item = (uint32_t)moe_layout_bits(layout.kind) / 8;
        const uint8_t *at = panel + r * item;
        for (uint32_t c = 0; c < cols; c++, at += MOE_PANEL_ROWS * item)
            out[c] = layout.kind == MOE_LAYOUT_F32   ? moe_bits_f32(moe_get_u32(at))
                     : layout.kind == MOE_LAYOUT_F16 ? moe_f16_to_f32(moe_get_u16(at))
                                                     : moe_bf16_to_f32(moe_get_u16(at));
        return;
    }
    uint32_t group = group_cols(layout, cols), block = moe_layout_block(layout);
    const uint8_t *record = panel;
    for (uint32_t first = 0; first < cols; first += group) {
        uint32_t n = cols - first < group ? cols - first : group;
        float d = moe_f16_to_f32(moe_get_u16(record + 2 * r));
        float m = moe_f16_to_f32(moe_get_u16(record + 2 * MOE_PANEL_ROWS + 2 * r));
        for (uint32_t c = 0; c < n; c++) {
            const uint8_t *codes =
                record + SCALES_BYTES + c / block * moe_layout_block_bytes(layout);
            out[first + c] = d * (float)code_load(codes, layout, r, c % block) + m;
        }
        record += record_bytes(layout, n);
    }
}
