/* Weight layouts: sizes, packing and the reference decoder. */
#include "quant/layout.h"

#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

enum { UNIT = 64, MAX_BLOCK = 64, BLOCK = 32 /* columns of a block in a span */ };

const int8_t moe_mxfp4_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t moe_iq4_numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
const int8_t moe_q1_0_numbers[16] = {-1, 1};
const int8_t moe_iq1_numbers[16] = {-7, 1, 9, 0, -9, -1, 7};
const int8_t moe_iq2_numbers[16] = {8, 25, 43, 0, -8, -25, -43};
const int8_t moe_iq3_xxs_numbers[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                        -4, -12, -20, -28, -36, -44, -52, -62};
const int8_t moe_iq3_s_numbers[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};

const float moe_nf4_numbers[16] = {MOE_NF4_NUMBERS};
const float moe_fp4_numbers[16] = {MOE_FP4_NUMBERS};

const int8_t moe_iq2k_numbers[16] = {MOE_IQ2K_NUMBERS};
const int8_t moe_iq3k_numbers[16] = {MOE_IQ3K_NUMBERS};
const int8_t moe_iq5k_numbers[32] = {MOE_IQ5K_NUMBERS};
const int8_t moe_iq6k_numbers[64] = {MOE_IQ6K_NUMBERS};
const int8_t moe_iq2kl_numbers[2][32] = MOE_IQ2KL_NUMBERS;

#define MOE_GRID_TABLE(name, n) const uint32_t moe_grid_##name[n]
#include "quant/grids.h"

static const struct {
    uint16_t kind;
    const char *name;
} names[] = {
    {MOE_LAYOUT_F32, "f32"},         {MOE_LAYOUT_F16, "f16"},       {MOE_LAYOUT_BF16, "bf16"},
    {MOE_LAYOUT_Q8, "q8"},           {MOE_LAYOUT_Q5, "q5"},         {MOE_LAYOUT_Q4, "q4"},
    {MOE_LAYOUT_Q3, "q3"},           {MOE_LAYOUT_Q2, "q2"},         {MOE_LAYOUT_MXFP4, "mxfp4"},
    {MOE_LAYOUT_Q4_0, "q4_0"},       {MOE_LAYOUT_Q5_0, "q5_0"},     {MOE_LAYOUT_Q8_0, "q8_0"},
    {MOE_LAYOUT_Q6_0, "q6_0"},       {MOE_LAYOUT_IQ4_NL, "iq4_nl"}, {MOE_LAYOUT_Q2_K, "q2_k"},
    {MOE_LAYOUT_Q3_K, "q3_k"},       {MOE_LAYOUT_Q4_K, "q4_k"},     {MOE_LAYOUT_Q5_K, "q5_k"},
    {MOE_LAYOUT_Q6_K, "q6_k"},       {MOE_LAYOUT_IQ4_XS, "iq4_xs"}, {MOE_LAYOUT_NVFP4, "nvfp4"},
    {MOE_LAYOUT_TQ2_0, "tq2_0"},     {MOE_LAYOUT_IQ1_S, "iq1_s"},   {MOE_LAYOUT_IQ1_M, "iq1_m"},
    {MOE_LAYOUT_IQ2_XXS, "iq2_xxs"}, {MOE_LAYOUT_IQ2_XS, "iq2_xs"}, {MOE_LAYOUT_IQ2_S, "iq2_s"},
    {MOE_LAYOUT_IQ3_XXS, "iq3_xxs"}, {MOE_LAYOUT_IQ3_S, "iq3_s"},   {MOE_LAYOUT_Q1_0, "q1_0"},
    {MOE_LAYOUT_Q2_0, "q2_0"},       {MOE_LAYOUT_TQ1_0, "tq1_0"},   {MOE_LAYOUT_Q8_Z, "q8_z"},
    {MOE_LAYOUT_Q4_Z, "q4_z"},       {MOE_LAYOUT_Q3_Z, "q3_z"},     {MOE_LAYOUT_Q2_Z, "q2_z"},
    {MOE_LAYOUT_NVFP4_T, "nvfp4_t"}, {MOE_LAYOUT_IQ2_K, "iq2_k"},   {MOE_LAYOUT_IQ2_KS, "iq2_ks"},
    {MOE_LAYOUT_IQ3_K, "iq3_k"},     {MOE_LAYOUT_IQ3_KS, "iq3_ks"}, {MOE_LAYOUT_IQ4_K, "iq4_k"},
    {MOE_LAYOUT_IQ4_KS, "iq4_ks"},   {MOE_LAYOUT_IQ5_K, "iq5_k"},   {MOE_LAYOUT_IQ5_KS, "iq5_ks"},
    {MOE_LAYOUT_IQ6_K, "iq6_k"},     {MOE_LAYOUT_IQ1_KT, "iq1_kt"}, {MOE_LAYOUT_IQ2_KT, "iq2_kt"},
    {MOE_LAYOUT_IQ3_KT, "iq3_kt"},   {MOE_LAYOUT_IQ4_KT, "iq4_kt"}, {MOE_LAYOUT_IQ2_KL, "iq2_kl"},
    {MOE_LAYOUT_F8, "f8"},           {MOE_LAYOUT_F8_B, "f8_b"},     {MOE_LAYOUT_I8, "i8"},
    {MOE_LAYOUT_NF4, "nf4"},         {MOE_LAYOUT_FP4, "fp4"},
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
    if (moe_kind_is_scaled(kind))
        return moe_scaled_bits(kind);
    bool known = moe_layout_name(kind)[0] != '?';
    return known ? moe_kind_plane(kind) + moe_kind_high_plane(kind) : 0;
}

bool moe_layout_is_float(uint16_t kind)
{
    return kind == MOE_LAYOUT_F32 || kind == MOE_LAYOUT_F16 || kind == MOE_LAYOUT_BF16;
}

bool moe_layout_is_affine(uint16_t kind)
{
    return moe_layout_bits(kind) && !moe_layout_takes_floats(kind) && moe_kind_span(kind) == 0;
}

bool moe_layout_takes_floats(uint16_t kind)
{
    return moe_layout_is_float(kind) || moe_kind_is_scaled(kind);
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
    if (moe_kind_is_scaled(layout.kind))
        return layout.group == 0 ||
               (layout.group >= 32 && (layout.group & (layout.group - 1)) == 0);
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
    if (moe_kind_is_scaled(layout.kind))
        return moe_scaled_front(layout, cols) +
               moe_round_up((uint64_t)cols * MOE_PANEL_ROWS *
                                (uint64_t)moe_layout_bits(layout.kind) / 8,
                            UNIT);
    uint32_t record = record_cols(layout, cols);
    if (record == 0)
        return 0;
    uint64_t bytes = moe_kind_front(layout.kind) + cols / record * record_bytes(layout, record);
    if (cols % record)
        bytes += record_bytes(layout, cols % record);
    return bytes;
}

uint64_t moe_layout_bytes(struct moe_layout layout, uint32_t rows, uint32_t cols)
{
    return moe_panels(rows) * moe_layout_panel_bytes(layout, cols);
}

bool moe_zero_head(float scale, uint32_t zero, uint16_t *d, uint16_t *word)
{
    int exponent = 0, e = 0;
    if (!isfinite(scale) || zero > 511)
        return false;
    frexpf(scale, &exponent);
    if (scale != 0 && exponent < -13) /* below f16's normal numbers */
        e = -13 - exponent < 126 ? -13 - exponent : 126;
    *d = moe_f32_to_f16(ldexpf(scale, e));
    *word = (uint16_t)(e << 9 | (int)zero);
    return moe_f32_bits(moe_zero_scales(moe_f16_to_f32(*d), *word).d) == moe_f32_bits(scale);
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

/* Codes of rows: each row's first `stride` bytes behind that of the row before. */
struct codes_of_rows {
    const uint8_t *first;
    uint64_t stride;
    uint32_t rows;
};

/* Packs `bits` bits from `shift` up of the codes of a block into units; `to` points to the first
 * row's word in the first of them. */
static void plane_store(uint8_t *to, struct codes_of_rows from, uint32_t block, int bits, int shift)
{
    uint32_t mask = 0x01010101u * ((1u << bits) - 1), step = 32 / (uint32_t)bits;
    for (uint32_t c = 0; c < block; c += step, to += UNIT) {
        const uint8_t *codes = from.first + c;
        for (uint32_t r = 0; r < from.rows; r++, codes += from.stride) {
            uint32_t word = 0;
            for (int at = 0; at < 8; at += bits)
                word |= (word_at(codes + at / bits * 4) >> shift & mask) << at;
            memcpy(to + r * 4, &word, sizeof word);
        }
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

/* One block; `to` points to the first row's word in the first unit. */
static void block_store(uint8_t *to, struct moe_layout layout, struct codes_of_rows from)
{
    uint32_t block = moe_layout_block(layout);
    int bits = moe_kind_plane(layout.kind), high = moe_kind_high_plane(layout.kind);
    plane_store(to, from, block, bits, 0);
    if (high)
        plane_store(to + block * (uint32_t)bits / 32 * UNIT, from, block, high, bits);
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

/* A group, or blocks of a span: n codes of rows from row r of a panel on, from the block at `to`
 * on. */
static void store_codes(uint8_t *to, struct moe_layout layout, uint32_t r,
                        struct codes_of_rows from, uint32_t n)
{
    const uint32_t block = moe_layout_block(layout);
    const uint64_t bytes = moe_layout_block_bytes(layout);
    to += r * 4;
    for (uint32_t c = 0; c < n; c += block, to += bytes, from.first += block) {
        if (moe_kind_is_grouped(layout.kind)) {
            for (uint64_t unit = 0; unit < bytes / UNIT; unit++)
                for (uint32_t k = 0; k < from.rows; k++)
                    memcpy(to + unit * UNIT + k * 4, from.first + k * from.stride + unit * 4, 4);
        } else if (n - c >= block) {
            block_store(to, layout, from);
        } else {
            uint8_t filled[MAX_BLOCK] = {0};
            for (uint32_t k = 0; k < from.rows; k++) {
                memcpy(filled, from.first + k * from.stride, n - c);
                block_store(to + k * 4, layout, (struct codes_of_rows){filled, 0, 1});
            }
        }
    }
}

/* The bytes of row r of a unit of TQ1_0: digit number `digit` of byte k from the digits at
 * digits[4 digit + k], as far as there are some. */
static void store_ternary(uint8_t *unit, uint32_t r, const uint8_t *const digits[5])
{
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t number = 0;
        for (int i = 0; i < 5; i++)
            number = 3 * number + (digits[i] ? digits[i][k] : 0);
        unit[4 * r + k] = (uint8_t)((number * 256 + 242) / 243);
    }
}

/* A span of TQ1_0, `n` columns. */
static void store_ternary_span(uint8_t *head, uint8_t *codes, uint32_t r, const uint8_t *digits,
                               uint32_t n)
{
    uint8_t all[MOE_MAX_SPAN] = {0};
    const uint8_t *quad[5];
    memcpy(all, digits, n);
    for (uint32_t b = 0; b < (n + BLOCK - 1) / BLOCK; b++, codes += UNIT) {
        for (uint32_t i = 0; i < 5; i++)
            quad[i] = all + b * BLOCK + 4 * i;
        store_ternary(codes, r, quad);
    }
    for (uint32_t unit = 0; unit < 5; unit++, head += UNIT) {
        for (uint32_t i = 0, at = 5 * unit; i < 5; i++, at++)
            quad[i] = at < 24 ? all + at / 3 * BLOCK + 20 + 4 * (at % 3) : NULL;
        store_ternary(head, r, quad);
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
                  moe_kind_front(layout.kind) + i * record_bytes(layout, full);
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
    store_codes(codes_of(record, layout), layout, r, (struct codes_of_rows){codes->codes, 0, 1},
                record.cols);
}

/* The inverse of moe_kind_packed_number. */
static void pack_number(int kind, uint8_t *numbers, int i, uint8_t number)
{
    const int n = moe_kind_packed(kind), more = moe_kind_packed_high(kind);
    numbers[i / 2] |= (uint8_t)((number & 15) << i % 2 * 4);
    if (more)
        numbers[n / 2 + i * more / 8] |=
            (uint8_t)((number >> 4 & ((1 << more) - 1)) << i * more % 8);
}

/* Scale number i of a span of a kind with a grid: s and h. Where s has no place of its own, it
 * is in h or in the signs. */
static void pack_grid_scale(int kind, uint8_t *numbers, int i, const struct moe_span_codes *span)
{
    const uint8_t s = span->s[i];
    if (kind == MOE_LAYOUT_IQ2_XS || kind == MOE_LAYOUT_IQ2_S || kind == MOE_LAYOUT_IQ3_S) {
        numbers[i / 2] |= (uint8_t)(s << i % 2 * 4);
        if (kind == MOE_LAYOUT_IQ2_S && i % 2 == 0)
            numbers[8 + i / 2] = span->t[i / 2];
        else if (kind == MOE_LAYOUT_IQ3_S)
            numbers[4 + i] = span->t[i];
    } else if (kind == MOE_LAYOUT_IQ1_S) {
        numbers[2 * i] = span->t[2 * i];
        numbers[2 * i + 1] = span->t[2 * i + 1];
    } else if (kind == MOE_LAYOUT_IQ1_M) {
        numbers[i / 4] |= (uint8_t)((s & 3) << i % 4 * 2);
        numbers[4 + i / 8] |= (uint8_t)((s >> 2) << i % 8);
        numbers[6 + i] = span->t[i];
    }
}

/* Scale number i of a span, behind d and m: the inverse of moe_kind_scale. */
static void pack_scale(int kind, uint8_t *numbers, int i, const struct moe_span_codes *span)
{
    if (moe_kind_is_e2m1(kind)) {
        numbers[i] = span->s[i];
        return;
    }
    if (moe_kind_shift(kind) && !moe_kind_scale_has_e(kind))
        numbers[moe_kind_shifts_at(kind) + i / 8] |= (uint8_t)(span->t[i] << i % 8);
    if (moe_kind_packed(kind)) {
        pack_number(kind, numbers, i, span->s[i]);
        if (moe_kind_has_min(kind))
            pack_number(kind, numbers, 8 + i, span->t[i]);
        if (kind == MOE_LAYOUT_IQ2_KL) {
            numbers[6 + 2 * i] = span->t[2 * i];
            numbers[7 + 2 * i] = span->t[2 * i + 1];
        }
    } else if (moe_kind_scale_has_e(kind)) {
        numbers[i] = (uint8_t)(span->s[i] << 1 | span->t[i]);
    } else if (kind == MOE_LAYOUT_IQ1_KT) {
        numbers[i] = span->s[i];
        numbers[8 + 2 * i] = span->t[2 * i];
        numbers[9 + 2 * i] = span->t[2 * i + 1];
    } else if (moe_kind_byte_scales(kind)) {
        numbers[i] = kind == MOE_LAYOUT_Q2_K ? (uint8_t)(span->s[i] | span->t[i] << 4) : span->s[i];
    } else if (moe_kind_scale_unit(kind) > 0) {
        pack_grid_scale(kind, numbers, i, span);
    }
}

/* The head of a span of row r; of TQ1_0 without its digits. */
static void store_head(int kind, uint8_t *head, uint32_t r, const struct moe_span_codes *span)
{
    enum { MOST = 32 };
    uint8_t numbers[MOST] = {0};
    const int scales = (int)moe_kind_span_blocks(kind) * moe_kind_scales(kind);
    const uint32_t before = (moe_kind_has_d(kind) ? 2u : 0) + (moe_kind_has_min(kind) ? 2u : 0);
    for (int i = 0; i < scales; i++)
        pack_scale(kind, numbers, i, span);
    if (moe_kind_has_d(kind))
        moe_put_u16(head + 2 * r, span->d);
    if (moe_kind_has_min(kind))
        moe_put_u16(head + 2 * MOE_PANEL_ROWS + 2 * r, span->m);
    head += before * MOE_PANEL_ROWS + r;
    for (uint32_t i = 0; kind != MOE_LAYOUT_TQ1_0 && i < moe_kind_head(kind) - before; i++)
        head[i * MOE_PANEL_ROWS] = numbers[i];
}

/* A group of a scaled kind, or a block of one whose scale is that of the row. */
static void store_scaled(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                         uint32_t i, const struct moe_span_codes *span)
{
    uint32_t step = layout.group ? layout.group : BLOCK, first = i * step, r = row % MOE_PANEL_ROWS;
    uint32_t n = cols - first < step ? cols - first : step;
    uint8_t *panel = data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols);
    uint8_t *codes = panel + moe_scaled_front(layout, cols);
    moe_put_u32(panel + 4 * (uint64_t)moe_scaled_place(layout, first, r),
                moe_f32_bits(span->factor));
    if (moe_scaled_bits(layout.kind) == 8) {
        codes += (uint64_t)first * MOE_PANEL_ROWS + r;
        for (uint32_t c = 0; c < n; c++)
            codes[c * MOE_PANEL_ROWS] = span->codes[c];
        return;
    }
    codes += (uint64_t)first * (MOE_PANEL_ROWS / 2) + r % 8;
    for (uint32_t c = 0; c < n; c++)
        codes[c * (MOE_PANEL_ROWS / 2)] |= (uint8_t)(span->codes[c] << r / 8 * 4);
}

static inline void store_spans(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                               uint32_t n_rows, uint32_t i, const struct moe_span_codes *spans)
{
    const uint16_t kind = layout.kind;
    const uint32_t r = row % MOE_PANEL_ROWS;
    for (uint32_t k = 0; moe_kind_is_scaled(kind) && k < n_rows; k++)
        store_scaled(data, layout, cols, row + k, i, &spans[k]);
    if (moe_kind_is_scaled(kind))
        return;
    const uint32_t columns = moe_kind_span(kind), per_record = columns ? moe_kind_record(kind) : 1;
    const struct codes_of_rows from = {spans->codes, sizeof *spans, n_rows};
    struct record record = record_at(data, layout, cols, row, i / per_record);
    uint8_t *codes = codes_of(record, layout), *head = record.at;
    uint32_t left = record.cols;
    if (columns == 0) { /* affine */
        for (uint32_t k = 0; k < n_rows; k++) {
            moe_put_u16(head + 2 * (r + k), spans[k].d);
            moe_put_u16(head + 2 * (MOE_PANEL_ROWS + r + k), spans[k].m);
        }
    } else {
        const uint32_t first = i % per_record * columns;
        codes += first / BLOCK * moe_layout_block_bytes(layout);
        head += i % per_record * moe_kind_head(kind) * MOE_PANEL_ROWS;
        left = left - first < columns ? left - first : columns;
        for (uint32_t k = 0; k < n_rows; k++)
            store_head(kind, head, r + k, &spans[k]);
    }
    for (uint32_t k = 0; kind == MOE_LAYOUT_TQ1_0 && k < n_rows; k++)
        store_ternary_span(head + 2 * MOE_PANEL_ROWS, codes, r + k, spans[k].codes, left);
    if (kind != MOE_LAYOUT_TQ1_0)
        store_codes(codes, layout, r, from, left);
    if (moe_kind_front(kind)) {
        uint8_t *factors = record_at(data, layout, cols, row, 0).at - moe_kind_front(kind);
        for (uint32_t k = 0; k < n_rows; k++)
            moe_put_u32(factors + 4 * (r + k), moe_f32_bits(spans[k].factor));
    }
}

/* What arranging a checkpoint in place spends its time in: the code of each frequent kind by
 * itself, with everything inlined, is two to five times as fast (measured). Sanitizers would take a
 * minute to compile that. */
__attribute__((flatten)) void moe_layout_store_spans(uint8_t *data, struct moe_layout layout,
                                                     uint32_t cols, uint32_t row, uint32_t n_rows,
                                                     uint32_t i, const struct moe_span_codes *spans)
{
    struct moe_layout own = layout;
#define OF_KIND(constant)                                                                          \
    case constant:                                                                                 \
        own.kind = constant;                                                                       \
        if (moe_kind_span(constant))                                                               \
            own.group = BLOCK;                                                                     \
        store_spans(data, own, cols, row, n_rows, i, spans);                                       \
        return
    switch (layout.kind) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        OF_KIND(MOE_LAYOUT_Q4_0);
        OF_KIND(MOE_LAYOUT_Q4);
        OF_KIND(MOE_LAYOUT_Q5_0);
        OF_KIND(MOE_LAYOUT_Q5);
        OF_KIND(MOE_LAYOUT_Q6_0);
        OF_KIND(MOE_LAYOUT_Q8_0);
        OF_KIND(MOE_LAYOUT_Q2_K);
        OF_KIND(MOE_LAYOUT_Q3_K);
        OF_KIND(MOE_LAYOUT_Q4_K);
        OF_KIND(MOE_LAYOUT_Q5_K);
        OF_KIND(MOE_LAYOUT_Q6_K);
        OF_KIND(MOE_LAYOUT_IQ4_NL);
        OF_KIND(MOE_LAYOUT_IQ4_XS);
        OF_KIND(MOE_LAYOUT_MXFP4);
        OF_KIND(MOE_LAYOUT_NVFP4);
        OF_KIND(MOE_LAYOUT_NVFP4_T);
        OF_KIND(MOE_LAYOUT_TQ1_0);
        OF_KIND(MOE_LAYOUT_TQ2_0);
        OF_KIND(MOE_LAYOUT_Q8_Z);
        OF_KIND(MOE_LAYOUT_Q4_Z);
        OF_KIND(MOE_LAYOUT_IQ1_S);
        OF_KIND(MOE_LAYOUT_IQ1_M);
        OF_KIND(MOE_LAYOUT_IQ2_XXS);
        OF_KIND(MOE_LAYOUT_IQ2_XS);
        OF_KIND(MOE_LAYOUT_IQ2_S);
        OF_KIND(MOE_LAYOUT_IQ3_XXS);
        OF_KIND(MOE_LAYOUT_IQ3_S);
        OF_KIND(MOE_LAYOUT_IQ2_K);
        OF_KIND(MOE_LAYOUT_IQ2_KS);
        OF_KIND(MOE_LAYOUT_IQ2_KL);
        OF_KIND(MOE_LAYOUT_IQ3_K);
        OF_KIND(MOE_LAYOUT_IQ3_KS);
        OF_KIND(MOE_LAYOUT_IQ4_K);
        OF_KIND(MOE_LAYOUT_IQ4_KS);
        OF_KIND(MOE_LAYOUT_IQ5_K);
        OF_KIND(MOE_LAYOUT_IQ5_KS);
        OF_KIND(MOE_LAYOUT_IQ6_K);
        OF_KIND(MOE_LAYOUT_IQ2_KT);
        OF_KIND(MOE_LAYOUT_IQ3_KT);
        OF_KIND(MOE_LAYOUT_IQ4_KT);
#endif
    default:
        store_spans(data, own, cols, row, n_rows, i, spans);
    }
#undef OF_KIND
}

void moe_layout_store_span(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                           uint32_t i, const struct moe_span_codes *span)
{
    moe_layout_store_spans(data, layout, cols, row, 1, i, span);
}

bool moe_layout_store_mxfp4(uint8_t *data, uint32_t cols, uint32_t row, uint32_t b, uint8_t e,
                            const uint8_t *codes)
{
    struct moe_span_codes span = {.s = {e}};
    if (e == 255)
        return false;
    memcpy(span.codes, codes, cols - b * BLOCK < BLOCK ? cols - b * BLOCK : BLOCK);
    moe_layout_store_span(data, (struct moe_layout){MOE_LAYOUT_MXFP4, BLOCK}, cols, row, b, &span);
    return true;
}

int32_t moe_layout_number(int kind, int32_t code)
{
    const int8_t *numbers = moe_kind_numbers(kind);
    return numbers ? numbers[code] : code - moe_kind_zero(kind);
}

static float weight(int kind, struct moe_scales scale, int32_t code)
{
    float number = (float)moe_layout_number(kind, code), w = scale.d * number;
    if (moe_kind_shift(kind)) /* d times the number of the second table, rounded once */
        return fmaf(scale.d, number, scale.m);
    return moe_kind_has_offset(kind) ? w + scale.m : w;
}

/* The codes of the columns of block b of a span of a kind with a grid. */
static void grid_block_codes(int kind, const struct moe_span_codes *span, uint32_t b,
                             uint8_t *codes)
{
    const int units = moe_kind_plane(kind) + moe_kind_high_plane(kind), bits = moe_code_plane(kind);
    uint32_t words[3], more = span->t[b];
    for (int i = 0; i < units; i++)
        words[i] = moe_get_u32(span->codes + b * BLOCK + 4 * (uint32_t)i);
    if (moe_kind_is_iq1(kind))
        more = moe_get_u16(span->t + 2 * b);
    else if (kind == MOE_LAYOUT_IQ2_XS)
        more = words[units - 1] >> 25;
    struct moe_code_words of;
    moe_grid_first(kind, words, more, of.first);
    of.second = moe_grid_second(kind, words[units - 1], more);
    memset(codes, 0, BLOCK);
    for (uint32_t i = 0, c = 0; c < BLOCK; i++)
        for (int at = 0; at < 8; at += bits, c += 4) {
            uint32_t four = of.first[i] >> at & 0x01010101u * ((1u << bits) - 1);
            four |= (of.second >> c / 4 & 0x01010101u) << moe_code_high_at(kind);
            moe_put_u32(codes + c, four);
        }
}

/* The same of a trellis kind. */
static void trellis_block_codes(int kind, const struct moe_span_codes *span, uint32_t b,
                                uint8_t *codes)
{
    const uint8_t *words = span->codes + b * BLOCK;
    const uint32_t signs = kind == MOE_LAYOUT_IQ3_KT ? moe_get_u32(words + 8) : 0;
    uint32_t more = 0;
    if (kind == MOE_LAYOUT_IQ1_KT)
        more = moe_get_u16(span->t + 2 * b) | (uint32_t)(span->s[b] >> 4) << 16;
    else if (kind == MOE_LAYOUT_IQ4_KT)
        more = words[3] >> 6 & 1;
    for (uint32_t c = 0; c < BLOCK; c++) {
        const uint32_t word = moe_get_u32(words + 4 * moe_trellis_unit(kind, c));
        codes[c] = (uint8_t)moe_trellis_code(kind, word, more, signs, c);
    }
}

static void pairs_block_codes(int kind, const struct moe_span_codes *span, uint32_t b,
                              uint8_t *codes)
{
    for (uint32_t s = 0; s < BLOCK / 4; s++) {
        const uint32_t word = moe_get_u32(span->codes + b * BLOCK + 4 * (s / 4));
        moe_put_u32(codes + 4 * s,
                    moe_pairs_quad(word, span->t[2 * b + s / 4], s, moe_kind_zero(kind)));
    }
}

void moe_layout_span_weights(uint16_t kind, const struct moe_span_codes *span, uint32_t n,
                             float *out)
{
    const uint32_t columns = BLOCK / (uint32_t)moe_kind_scales(kind);
    const int bits = moe_code_high_at(kind) + moe_code_high_plane(kind);
    float d = moe_f16_to_f32(span->d), m = moe_f16_to_f32(span->m), number[256];
    uint8_t block[BLOCK];
    if (moe_kind_is_scaled(kind)) {
        const bool f8 = moe_kind_is_f8(kind);
        for (uint32_t c = 0; c < n; c++)
            out[c] = f8 && (span->codes[c] & 0x7f) == 0x7f
                         ? NAN
                         : moe_scaled_number(kind, span->codes[c]) * span->factor;
        return;
    }
    for (int code = 0; code < 1 << bits; code++)
        number[code] = (float)moe_layout_number(kind, code);
    for (uint32_t first = 0, i = 0; first < n; first += columns, i++) {
        struct moe_scales scale = moe_kind_has_zeros(kind)
                                      ? moe_zero_scales(d, span->m)
                                      : moe_kind_scales_of(kind, d, m, span->s[i], span->t[i]);
        float offset = moe_kind_has_min(kind) ? scale.m : -0.0f;
        const float shift = moe_kind_shift(kind) ? (float)(moe_kind_shift(kind) * span->t[i]) : 0;
        const uint8_t *codes = span->codes + first;
        if (moe_kind_is_grouped(kind) && kind != MOE_LAYOUT_TQ1_0) {
            if (first % BLOCK == 0)
                (moe_kind_is_trellis(kind)   ? trellis_block_codes
                 : kind == MOE_LAYOUT_IQ2_KL ? pairs_block_codes
                                             : grid_block_codes)(kind, span, first / BLOCK, block);
            codes = block + first % BLOCK;
        }
        for (uint32_t c = 0; c < columns && first + c < n; c++)
            out[first + c] = scale.d * (number[codes[c]] + shift) + offset;
    }
    for (uint32_t c = 0; moe_kind_front(kind) && c < n; c++)
        out[c] *= span->factor;
}

static void load_floats(const uint8_t *at, struct moe_layout layout, uint32_t cols, float *out)
{
    uint32_t stride = MOE_PANEL_ROWS * (uint32_t)moe_layout_bits(layout.kind) / 8;
    for (uint32_t c = 0; c < cols; c++, at += stride)
        out[c] = layout.kind == MOE_LAYOUT_F32   ? moe_bits_f32(moe_get_u32(at))
                 : layout.kind == MOE_LAYOUT_F16 ? moe_f16_to_f32(moe_get_u16(at))
                                                 : moe_bf16_to_f32(moe_get_u16(at));
}

static void load_scaled(const uint8_t *panel, struct moe_layout layout, uint32_t cols, uint32_t r,
                        float *out)
{
    const uint8_t *codes = panel + moe_scaled_front(layout, cols);
    for (uint32_t c = 0; c < cols; c++)
        out[c] = moe_scaled_number(layout.kind, moe_scaled_code(layout.kind, codes, c, r)) *
                 moe_bits_f32(moe_get_u32(panel + 4 * moe_scaled_place(layout, c, r)));
}

void moe_layout_load_row(const struct moe_mat *mat, uint32_t row, float *out)
{
    struct moe_layout layout = mat->layout;
    const int kind = layout.kind;
    uint32_t cols = mat->cols, r = row % MOE_PANEL_ROWS, block = moe_layout_block(layout);
    if (moe_kind_is_scaled(kind)) {
        load_scaled(mat->data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols), layout,
                    cols, r, out);
        return;
    }
    if (moe_layout_is_float(layout.kind)) {
        uint32_t item = (uint32_t)moe_layout_bits(layout.kind) / 8;
        load_floats(mat->data + row / MOE_PANEL_ROWS * moe_layout_panel_bytes(layout, cols) +
                        r * item,
                    layout, cols, out);
        return;
    }
    uint32_t full = record_cols(layout, cols), span = moe_kind_span(kind);
    uint32_t per_scale = span ? BLOCK / (uint32_t)moe_kind_scales(kind) : full;
    const uint64_t bytes = moe_layout_block_bytes(layout);
    span = span ? span : full;
    for (uint32_t first = 0; first < cols; first += full) {
        struct record record = record_at(mat->data, layout, cols, row, first / full);
        const uint8_t *at = codes_of(record, layout);
        uint8_t codes[MAX_BLOCK];
        struct moe_scales scale = {0, 0};
        for (uint32_t c = 0; c < record.cols; c++) {
            const uint8_t *head = record.at + c / span * moe_kind_head(kind) * MOE_PANEL_ROWS;
            const uint8_t *of_block = at + c / block * bytes;
            if (c % per_scale == 0)
                scale = moe_kind_scale(kind, head, of_block, (int)(c % span / per_scale), r);
            if (moe_kind_is_grouped(kind))
                codes[c % block] = (uint8_t)moe_kind_code(kind, head, c % span / block, of_block,
                                                          block, r, c % block);
            else if (c % block == 0)
                block_load(of_block + r * 4, layout, codes);
            out[first + c] = weight(kind, scale, codes[c % block]);
        }
    }
    if (moe_kind_front(kind)) {
        const uint8_t *factors =
            record_at(mat->data, layout, cols, row, 0).at - moe_kind_front(kind);
        for (uint32_t c = 0; c < cols; c++)
            out[c] *= moe_bits_f32(moe_get_u32(factors + 4 * r));
    }
}
