/* Weight layouts: sizes, packing and the reference decoder. */
#include "quant/layout.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

enum {
    UNIT = 64,
    MAX_BLOCK = 64,
    HEAD_BYTES = 64 /* of a record: d and m, or the exponents of four blocks */
};

const int8_t moe_mxfp4_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

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
    case MOE_LAYOUT_MXFP4:
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
    case MOE_LAYOUT_MXFP4:
        return "mxfp4";
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
    if (layout.kind == MOE_LAYOUT_MXFP4)
        return layout.group == MOE_MX_BLOCK;
    return layout.group == 32 || layout.group % 64 == 0;
}

/* ---- Sizes ---- */

/* Columns of a full record. */
static uint32_t record_cols(struct moe_layout layout, uint32_t cols)
{
    if (layout.kind == MOE_LAYOUT_MXFP4)
        return MOE_MX_RECORD;
    return layout.group ? layout.group : cols;
}

uint64_t moe_layout_block_bytes(struct moe_layout layout)
{
    return (uint64_t)MOE_PANEL_ROWS * moe_layout_block(layout) *
           (uint64_t)moe_layout_bits(layout.kind) / 8;
}

/* Bytes of a record of `cols` columns. */
static uint64_t record_bytes(struct moe_layout layout, uint32_t cols)
{
    uint32_t block = moe_layout_block(layout);
    return HEAD_BYTES + (uint64_t)((cols + block - 1) / block) * moe_layout_block_bytes(layout);
}

uint64_t moe_layout_panel_bytes(struct moe_layout layout, uint32_t cols)
{
    if (moe_layout_is_float(layout.kind))
        return (uint64_t)cols * MOE_PANEL_ROWS * (uint64_t)moe_layout_bits(layout.kind) / 8;
    uint32_t record = record_cols(layout, cols);
    if (record == 0)
        return 0;
    uint64_t bytes = cols / record * record_bytes(layout, record);
    if (cols % record)
        bytes += record_bytes(layout, cols % record);
    return bytes;
}

uint64_t moe_layout_bytes(struct moe_layout layout, uint32_t rows, uint32_t cols)
{
    return moe_panels(rows) * moe_layout_panel_bytes(layout, cols);
}

/* ---- Codes in a block ----
 * A row's share of a unit is one 4-byte word at r * 4: four consecutive columns in its lowest bits,
 * the next four above them, and so on. So codes move four at a time as words of one code a byte; no
 * bit crosses a byte, and the byte order of the machine does not matter. */

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

/* Adds the same bits back to codes. */
static void plane_load(const uint8_t *row, uint8_t *codes, uint32_t block, int bits, int shift)
{
    uint32_t mask = 0x01010101u * ((1u << bits) - 1);
    for (uint32_t c = 0; c < block; row += UNIT)
        for (int at = 0; at < 8; at += bits, c += 4) {
            uint32_t word = word_at(codes + c) | (word_at(row) >> at & mask) << shift;
            memcpy(codes + c, &word, sizeof word);
        }
}

/* One block of one row; `row` points to the row's word in the first unit. */
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

/* ---- Rows ---- */

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

/* Where record `i` of a row's panel begins. */
static uint8_t *record_at(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                          uint32_t i)
{
    return data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols) +
           i * record_bytes(layout, record_cols(layout, cols));
}

void moe_layout_store_group(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                            uint32_t g, const struct moe_group_codes *codes)
{
    uint32_t group = record_cols(layout, cols), r = row % MOE_PANEL_ROWS;
    uint32_t first = g * group, n = cols - first < group ? cols - first : group;
    uint32_t block = moe_layout_block(layout);
    uint8_t *record = record_at(data, layout, cols, row, g);
    moe_put_u16(record + 2 * r, codes->d);
    moe_put_u16(record + 2 * MOE_PANEL_ROWS + 2 * r, codes->m);
    uint8_t *to = record + HEAD_BYTES + r * 4;
    for (uint32_t c = 0; c < n; c += block, to += moe_layout_block_bytes(layout)) {
        uint8_t filled[MAX_BLOCK] = {0};
        const uint8_t *from = codes->codes + c;
        if (n - c < block)
            from = memcpy(filled, from, n - c);
        block_store(to, layout, from);
    }
}

bool moe_layout_store_mxfp4(uint8_t *data, uint32_t cols, uint32_t row, uint32_t b, uint8_t e,
                            const uint8_t *codes)
{
    const struct moe_layout layout = {MOE_LAYOUT_MXFP4, MOE_MX_BLOCK};
    const uint32_t blocks = MOE_MX_RECORD / MOE_MX_BLOCK, r = row % MOE_PANEL_ROWS;
    uint32_t first = b * MOE_MX_BLOCK;
    uint8_t filled[MOE_MX_BLOCK] = {0};
    if (e == 255)
        return false;
    uint8_t *record = record_at(data, layout, cols, row, b / blocks);
    record[b % blocks * MOE_PANEL_ROWS + r] = e;
    memcpy(filled, codes, cols - first < MOE_MX_BLOCK ? cols - first : MOE_MX_BLOCK);
    block_store(record + HEAD_BYTES + b % blocks * moe_layout_block_bytes(layout) + r * 4, layout,
                filled);
    return true;
}

/* Reads n weights of row r of a panel; `b` is the number of their block in the record. */
static void load_block(const uint8_t *record, struct moe_layout layout, uint32_t r, uint32_t b,
                       uint32_t n, float *out)
{
    uint8_t codes[MAX_BLOCK];
    block_load(record + HEAD_BYTES + b * moe_layout_block_bytes(layout) + r * 4, layout, codes);
    if (layout.kind == MOE_LAYOUT_MXFP4) {
        float d = moe_mxfp4_scale(record[b * MOE_PANEL_ROWS + r]);
        for (uint32_t i = 0; i < n; i++)
            out[i] = d * (float)moe_mxfp4_twice[codes[i]];
        return;
    }
    float d = moe_f16_to_f32(moe_get_u16(record + 2 * r));
    float m = moe_f16_to_f32(moe_get_u16(record + 2 * MOE_PANEL_ROWS + 2 * r));
    for (uint32_t i = 0; i < n; i++)
        out[i] = d * (float)codes[i] + m;
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
    uint32_t full = record_cols(layout, cols), block = moe_layout_block(layout);
    const uint8_t *record = panel;
    for (uint32_t first = 0; first < cols; first += full) {
        uint32_t n = cols - first < full ? cols - first : full;
        for (uint32_t c = 0; c < n; c += block)
            load_block(record, layout, r, c / block, n - c < block ? n - c : block,
                       out + first + c);
        record += record_bytes(layout, n);
    }
}
