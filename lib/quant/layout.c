/* Weight layouts: sizes, packing and the reference decoder. */
#include "quant/layout.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

enum { UNIT = 64, MAX_BLOCK = 64, BLOCK = 32 /* columns of a block in a span */ };

const int8_t moe_mxfp4_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t moe_iq4_numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};

static const struct {
    uint16_t kind;
    const char *name;
} names[] = {
    {MOE_LAYOUT_F32, "f32"},       {MOE_LAYOUT_F16, "f16"},     {MOE_LAYOUT_BF16, "bf16"},
    {MOE_LAYOUT_Q8, "q8"},         {MOE_LAYOUT_Q5, "q5"},       {MOE_LAYOUT_Q4, "q4"},
    {MOE_LAYOUT_Q3, "q3"},         {MOE_LAYOUT_Q2, "q2"},       {MOE_LAYOUT_MXFP4, "mxfp4"},
    {MOE_LAYOUT_Q4_0, "q4_0"},     {MOE_LAYOUT_Q5_0, "q5_0"},   {MOE_LAYOUT_Q8_0, "q8_0"},
    {MOE_LAYOUT_IQ4_NL, "iq4_nl"}, {MOE_LAYOUT_Q2_K, "q2_k"},   {MOE_LAYOUT_Q3_K, "q3_k"},
    {MOE_LAYOUT_Q4_K, "q4_k"},     {MOE_LAYOUT_Q5_K, "q5_k"},   {MOE_LAYOUT_Q6_K, "q6_k"},
    {MOE_LAYOUT_IQ4_XS, "iq4_xs"}, {MOE_LAYOUT_NVFP4, "nvfp4"}, {MOE_LAYOUT_TQ2_0, "tq2_0"},
};

enum { N_NAMES = sizeof names / sizeof names[0] };

const char *moe_layout_name(uint16_t kind)
{
    for (int i = 0; i < N_NAMES; i++)
        if (names[i].kind == kind)
            return names[i].name;
    return "?";
}

int moe_layout_bits(uint16_t kind)
{
    if (moe_layout_is_float(kind))
        return kind == MOE_LAYOUT_F32 ? 32 : 16;
    bool known = moe_layout_name(kind)[0] != '?';
    return known ? moe_kind_plane(kind) + moe_kind_high_plane(kind) : 0;
}

bool moe_layout_is_float(uint16_t kind)
{
    return kind == MOE_LAYOUT_F32 || kind == MOE_LAYOUT_F16 || kind == MOE_LAYOUT_BF16;
}

bool moe_layout_is_affine(uint16_t kind)
{
    return moe_layout_bits(kind) && !moe_layout_is_float(kind) && moe_kind_span(kind) == 0;
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
    if (!moe_layout_is_affine(layout.kind))
        return layout.group == BLOCK;
    return layout.group == 32 || layout.group % 64 == 0;
}

/* ---- Sizes ---- */

/* Columns of a full record. */
static uint32_t record_cols(struct moe_layout layout, uint32_t cols)
{
    uint32_t span = moe_kind_span(layout.kind);
    if (span)
        return moe_kind_record(layout.kind) * span;
    return layout.group ? layout.group : cols;
}

uint64_t moe_layout_block_bytes(struct moe_layout layout)
{
    return moe_kind_block_bytes(layout.kind, moe_layout_block(layout));
}

/* Bytes of a record of `cols` columns. */
static uint64_t record_bytes(struct moe_layout layout, uint32_t cols)
{
    uint32_t block = moe_layout_block(layout), blocks = (cols + block - 1) / block;
    return moe_kind_head_bytes(layout.kind, blocks) + blocks * moe_layout_block_bytes(layout);
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

/* The inverse: adds the bits to codes. */
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
    int bits = moe_kind_plane(layout.kind), high = moe_kind_high_plane(layout.kind);
    plane_store(row, codes, block, bits, 0);
    if (high)
        plane_store(row + block * (uint32_t)bits / 32 * UNIT, codes, block, high, bits);
}

static void block_load(const uint8_t *row, struct moe_layout layout, uint8_t *codes)
{
    uint32_t block = moe_layout_block(layout);
    int bits = moe_kind_plane(layout.kind), high = moe_kind_high_plane(layout.kind);
    memset(codes, 0, block);
    plane_load(row, codes, block, bits, 0);
    if (high)
        plane_load(row + block * (uint32_t)bits / 32 * UNIT, codes, block, high, bits);
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

/* A group, or blocks of a span: n codes of row r of a panel, from the block at `to` on. */
static void store_codes(uint8_t *to, struct moe_layout layout, uint32_t r, const uint8_t *codes,
                        uint32_t n)
{
    uint32_t block = moe_layout_block(layout);
    to += r * 4;
    for (uint32_t c = 0; c < n; c += block, to += moe_layout_block_bytes(layout)) {
        uint8_t filled[MAX_BLOCK] = {0};
        const uint8_t *from = codes + c;
        if (n - c < block)
            from = memcpy(filled, from, n - c);
        block_store(to, layout, from);
    }
}

/* A record of a row: where it lies, and the columns it has. */
struct record {
    uint8_t *at;
    uint32_t cols;
};

static struct record record_at(const uint8_t *data, struct moe_layout layout, uint32_t cols,
                               uint32_t row, uint32_t i)
{
    uint32_t full = record_cols(layout, cols), first = i * full;
    uint64_t at = row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols) +
                  i * record_bytes(layout, full);
    return (struct record){(uint8_t *)data + at, cols - first < full ? cols - first : full};
}

/* The codes of a record, behind its head. */
static uint8_t *codes_of(struct record record, struct moe_layout layout)
{
    uint32_t block = moe_layout_block(layout);
    return record.at + moe_kind_head_bytes(layout.kind, (record.cols + block - 1) / block);
}

void moe_layout_store_group(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                            uint32_t g, const struct moe_group_codes *codes)
{
    uint32_t r = row % MOE_PANEL_ROWS;
    struct record record = record_at(data, layout, cols, row, g);
    moe_put_u16(record.at + 2 * r, codes->d);
    moe_put_u16(record.at + 2 * MOE_PANEL_ROWS + 2 * r, codes->m);
    store_codes(codes_of(record, layout), layout, r, codes->codes, record.cols);
}

static void store_six(uint8_t *sixes, int n, int i, uint32_t r, uint8_t number)
{
    sixes[i / 2 * MOE_PANEL_ROWS + (int)r] |= (uint8_t)((number & 15) << i % 2 * 4);
    sixes[(n / 2 + i / 4) * MOE_PANEL_ROWS + (int)r] |= (uint8_t)((number >> 4 & 3) << i % 4 * 2);
}

/* Scale number i of a span of row r: the inverse of moe_kind_scale. */
static void store_scale(int kind, uint8_t *head, int i, uint32_t r,
                        const struct moe_span_codes *span)
{
    int sixes = moe_kind_sixes(kind);
    if (moe_kind_is_e2m1(kind)) {
        head[i * MOE_PANEL_ROWS + (int)r] = span->s[i];
        return;
    }
    moe_put_u16(head + 2 * r, span->d);
    head += 2 * MOE_PANEL_ROWS;
    if (moe_kind_has_offset(kind)) {
        moe_put_u16(head + 2 * r, span->m);
        head += 2 * MOE_PANEL_ROWS;
    }
    if (sixes) {
        store_six(head, sixes, i, r, span->s[i]);
        if (moe_kind_has_offset(kind))
            store_six(head, sixes, 8 + i, r, span->t[i]);
    } else if (kind == MOE_LAYOUT_Q6_K || kind == MOE_LAYOUT_Q2_K) {
        head[i * MOE_PANEL_ROWS + (int)r] = (uint8_t)(span->s[i] | span->t[i] << 4);
    }
}

void moe_layout_store_span(uint8_t *data, uint16_t kind, uint32_t cols, uint32_t row, uint32_t i,
                           const struct moe_span_codes *span)
{
    const struct moe_layout layout = {kind, BLOCK};
    if (moe_layout_is_affine(kind)) {
        const struct moe_group_codes group = {span->d, span->m, span->codes};
        moe_layout_store_group(data, layout, cols, row, i, &group);
        return;
    }
    uint32_t spans = moe_kind_record(kind), columns = moe_kind_span(kind), r = row % MOE_PANEL_ROWS;
    struct record record = record_at(data, layout, cols, row, i / spans);
    uint8_t *head = record.at + i % spans * moe_kind_head(kind) * MOE_PANEL_ROWS;
    uint32_t first = i % spans * columns, left = record.cols - first;
    for (uint32_t k = 0; k < moe_kind_span_blocks(kind) * (uint32_t)moe_kind_scales(kind); k++)
        store_scale(kind, head, (int)k, r, span);
    store_codes(codes_of(record, layout) + first / BLOCK * moe_layout_block_bytes(layout), layout,
                r, span->codes, left < columns ? left : columns);
}

bool moe_layout_store_mxfp4(uint8_t *data, uint32_t cols, uint32_t row, uint32_t b, uint8_t e,
                            const uint8_t *codes)
{
    struct moe_span_codes span = {.s = {e}};
    if (e == 255)
        return false;
    memcpy(span.codes, codes, cols - b * BLOCK < BLOCK ? cols - b * BLOCK : BLOCK);
    moe_layout_store_span(data, MOE_LAYOUT_MXFP4, cols, row, b, &span);
    return true;
}

int32_t moe_layout_number(int kind, int32_t code)
{
    return moe_kind_is_e2m1(kind)  ? moe_mxfp4_twice[code]
           : moe_kind_is_iq4(kind) ? moe_iq4_numbers[code]
                                   : code - moe_kind_zero(kind);
}

static float weight(int kind, struct moe_scales scale, int32_t code)
{
    float w = scale.d * (float)moe_layout_number(kind, code);
    return moe_kind_has_offset(kind) ? w + scale.m : w;
}

void moe_layout_span_weights(uint16_t kind, const struct moe_span_codes *span, uint32_t n,
                             float *out)
{
    const uint32_t columns = BLOCK / (uint32_t)moe_kind_scales(kind);
    float d = moe_f16_to_f32(span->d), m = moe_f16_to_f32(span->m), number[256];
    for (int code = 0; code < 1 << moe_layout_bits(kind); code++)
        number[code] = (float)moe_layout_number(kind, code);
    for (uint32_t first = 0, i = 0; first < n; first += columns, i++) {
        struct moe_scales scale = moe_kind_scales_of(kind, d, m, span->s[i], span->t[i]);
        float offset = moe_kind_has_offset(kind) ? scale.m : -0.0f;
        for (uint32_t c = first; c < first + columns && c < n; c++)
            out[c] = scale.d * number[span->codes[c]] + offset;
    }
}

static void load_floats(const uint8_t *at, struct moe_layout layout, uint32_t cols, float *out)
{
    uint32_t stride = MOE_PANEL_ROWS * (uint32_t)moe_layout_bits(layout.kind) / 8;
    for (uint32_t c = 0; c < cols; c++, at += stride)
        out[c] = layout.kind == MOE_LAYOUT_F32   ? moe_bits_f32(moe_get_u32(at))
                 : layout.kind == MOE_LAYOUT_F16 ? moe_f16_to_f32(moe_get_u16(at))
                                                 : moe_bf16_to_f32(moe_get_u16(at));
}

void moe_layout_load_row(const struct moe_mat *mat, uint32_t row, float *out)
{
    struct moe_layout layout = mat->layout;
    const int kind = layout.kind;
    uint32_t cols = mat->cols, r = row % MOE_PANEL_ROWS, block = moe_layout_block(layout);
    if (moe_layout_is_float(layout.kind)) {
        uint32_t item = (uint32_t)moe_layout_bits(layout.kind) / 8;
        load_floats(mat->data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols) +
                        r * item,
                    layout, cols, out);
        return;
    }
    uint32_t full = record_cols(layout, cols), span = moe_kind_span(kind);
    uint32_t per_scale = span ? BLOCK / (uint32_t)moe_kind_scales(kind) : full;
    span = span ? span : full;
    for (uint32_t first = 0; first < cols; first += full) {
        struct record record = record_at(mat->data, layout, cols, row, first / full);
        const uint8_t *at = codes_of(record, layout) + r * 4;
        uint8_t codes[MAX_BLOCK];
        struct moe_scales scale = {0, 0};
        for (uint32_t c = 0; c < record.cols; c++) {
            const uint8_t *head = record.at + c / span * moe_kind_head(kind) * MOE_PANEL_ROWS;
            if (c % per_scale == 0)
                scale = moe_kind_scale(kind, head, (int)(c % span / per_scale), r);
            if (c % block == 0)
                block_load(at + c / block * moe_layout_block_bytes(layout), layout, codes);
            out[first + c] = weight(kind, scale, codes[c % block]);
        }
    }
}
