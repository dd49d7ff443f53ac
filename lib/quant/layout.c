#include "quant/layout.h"

#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"

enum {
    UNIT = 64,
    MAX_BLOCK = 64,
    SCALES_BYTES = 2 * MOE_PANEL_ROWS * 2 /* d and m of a group record */
};

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
 * A row's share of a unit is one 4-byte word at r * 4: four consecutive columns in its lowest bits,
 * the next four above them, and so on. So codes are moved four at a time as words of one code a
 * byte; no bit crosses a byte, and the byte order of the machine does not matter. */

static uint32_t word_at(const uint8_t *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* Packs `bits` bits from `shift` up of the codes of a block of one row into units at `row`. */
static void plane_store(uint8_t *row, const uint8_t *codes, uint32_t block, int bits, int shift)
{
    uint32_t mask = 0x01010101u * ((1u << bits) - 1);
    for (uint32_t c = 0; c < block; row += UNIT) {
        uint32_t word = 0;
        for (int at = 0; at < 8; at += bits, c += 4)
            word |= (word_at(codes + c) >> shift & mask) << at;
        memcpy(row, &word, sizeof word);
    }
}

/* The opposite: adds the bits to codes. */
static void plane_load(const uint8_t *row, uint8_t *codes, uint32_t block, int bits, int shift)
{
    uint32_t mask = 0x01010101u * ((1u << bits) - 1);
    for (uint32_t c = 0; c < block; row += UNIT)
        for (int at = 0; at < 8; at += bits, c += 4) {
            uint32_t word = word_at(codes + c) | (word_at(row) >> at & mask) << shift;
            memcpy(codes + c, &word, sizeof word);
        }
}

/* One block of one row; `row` is where its first unit holds it. */
static void block_store(uint8_t *row, struct moe_layout layout, const uint8_t *codes)
{
    uint32_t block = moe_layout_block(layout);
    int bits = moe_layout_bits(layout.kind);
    plane_store(row, codes, block, bits == 3 ? 2 : bits, 0);
    if (bits == 3)
        plane_store(row + block / 16 * UNIT, codes, block, 1, 2);
}

static void block_load(const uint8_t *row, struct moe_layout layout, uint8_t *codes)
{
    uint32_t block = moe_layout_block(layout);
    int bits = moe_layout_bits(layout.kind);
    memset(codes, 0, block);
    plane_load(row, codes, block, bits == 3 ? 2 : bits, 0);
    if (bits == 3)
        plane_load(row + block / 16 * UNIT, codes, block, 1, 2);
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
    uint8_t *to = record + SCALES_BYTES + r * 4;
    for (uint32_t c = 0; c < n; c += block, to += moe_layout_block_bytes(layout)) {
        uint8_t filled[MAX_BLOCK] = {0};
        const uint8_t *from = codes->codes + c;
        if (n - c < block)
            from = memcpy(filled, from, n - c);
        block_store(to, layout, from);
    }
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
        const uint8_t *from = record + SCALES_BYTES + r * 4;
        for (uint32_t c = 0; c < n; c += block, from += moe_layout_block_bytes(layout)) {
            uint8_t codes[MAX_BLOCK];
            block_load(from, layout, codes);
            for (uint32_t i = 0; i < block && i < n - c; i++)
                out[first + c + i] = d * (float)codes[i] + m;
        }
        record += record_bytes(layout, n);
    }
}
