/* GGUF's block types: their sizes, their values, and how they become layouts. */
#include "quant/ggml.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"

/* Bit patterns of ggml's blocks, shared by decoding and carrying over. */
static const int8_t ggml_iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
/* Unpacks 16 bytes: columns 0 to 15 in their low halves, 16 to 31 in their high ones. */
static inline void ggml_nibbles(const uint8_t *from, uint8_t q[32])
{
    for (int i = 0; i < 16; i++) {
        q[i] = from[i] & 15;
        q[16 + i] = from[i] >> 4;
    }
}

/* Unpacks the fifth bits of 32 columns, then their nibbles. */
static inline void ggml_five_bits(const uint8_t *from, uint8_t q[32])
{
    uint32_t high = moe_get_u32(from);
    ggml_nibbles(from + 4, q);
    for (int i = 0; i < 32; i++)
        q[i] |= (high >> i & 1) << 4;
}

/* Group g of 8 of a Q4_K (bits 4) or Q5_K (5) block: w = d * q - m. Layout: d, dmin, 12 bytes with
 * 8 scales and 8 minima of 6 bits, [32 bytes of fifth bits, bit g for group g,] 128 bytes of
 * nibbles, two groups in 32 bytes. */
static inline void ggml_k_group(const uint8_t *block, int bits, uint32_t g, uint8_t q[32], float *d,
                                float *m)
{
    const uint8_t *scales = block + 4, *high = block + 16, *low = bits == 5 ? high + 32 : high;
    uint32_t scale, minimum;
    if (g < 4) {
        scale = scales[g] & 63;
        minimum = scales[4 + g] & 63;
    } else {
        scale = (scales[4 + g] & 15u) | (scales[g - 4] >> 6u) << 4;
        minimum = (scales[4 + g] >> 4u) | (scales[g] >> 6u) << 4;
    }
    *d = moe_f16_to_f32(moe_get_u16(block)) * (float)scale;
    *m = moe_f16_to_f32(moe_get_u16(block + 2)) * (float)minimum;
    for (uint32_t i = 0; i < 32; i++) {
        q[i] = low[g / 2 * 32 + i] >> g % 2 * 4 & 15;
        if (bits == 5)
            q[i] |= (high[i] >> g & 1) << 4;
    }
}

static float f16_at(const uint8_t *p)
{
    return moe_f16_to_f32(moe_get_u16(p));
}

/* ---- Single values ---- */

static void decode_f32(const uint8_t *block, float *out)
{
    *out = moe_bits_f32(moe_get_u32(block));
}

static void decode_f16(const uint8_t *block, float *out)
{
    *out = f16_at(block);
}

static void decode_bf16(const uint8_t *block, float *out)
{
    *out = moe_bf16_to_f32(moe_get_u16(block));
}

/* ---- Blocks of 32 ---- */

static void decode_q8_0(const uint8_t *block, float *out)
{
    float d = f16_at(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)block[2 + i];
}

static void decode_q4_0(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block);
    ggml_nibbles(block + 2, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(q[i] - 8);
}

static void decode_q4_1(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block), m = f16_at(block + 2);
    ggml_nibbles(block + 4, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)q[i] + m;
}

static void decode_q5_0(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block);
    ggml_five_bits(block + 2, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(q[i] - 16);
}

static void decode_q5_1(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block), m = f16_at(block + 2);
    ggml_five_bits(block + 4, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)q[i] + m;
}

static void decode_iq4_nl(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block);
    ggml_nibbles(block + 2, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)ggml_iq4_nl_values[q[i]];
}

static void decode_mxfp4(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = moe_mxfp4_scale(block[0]);
    ggml_nibbles(block + 1, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)moe_mxfp4_twice[q[i]];
}

/* ---- Blocks of 256 ---- */

/* scales[16] (low bits: scale, high bits: minimum), q[64], d, dmin; 16 groups of 16. */
static void decode_q2_k(const uint8_t *block, float *out)
{
    const uint8_t *q = block + 16;
    float d = f16_at(block + 80), dmin = f16_at(block + 82);
    for (int i = 0; i < 256; i++) {
        uint8_t scale = block[i / 16];
        int code = q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        out[i] = d * (float)(scale & 15) * (float)code - dmin * (float)(scale >> 4);
    }
}

/* high bits[32], q[64], scales[12], d; 16 groups of 16. */
static void decode_q3_k(const uint8_t *block, float *out)
{
    const uint8_t *high = block, *q = block + 32, *scales = block + 96;
    float d = f16_at(block + 108);
    for (int i = 0; i < 256; i++) {
        int g = i / 16;
        int low4 = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
        int scale = (low4 | (scales[8 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
        int code = q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        code -= (high[i % 32] >> i / 32 & 1) ? 0 : 4;
        out[i] = d * (float)scale * (float)code;
    }
}

static void decode_q4_or_5_k(const uint8_t *block, int bits, float *out)
{
    for (uint32_t g = 0; g < 8; g++) {
        uint8_t q[32];
        float d, m;
        ggml_k_group(block, bits, g, q, &d, &m);
        for (int i = 0; i < 32; i++)
            out[32 * g + i] = d * (float)q[i] - m;
    }
}

static void decode_q4_k(const uint8_t *block, float *out)
{
    decode_q4_or_5_k(block, 4, out);
}

static void decode_q5_k(const uint8_t *block, float *out)
{
    decode_q4_or_5_k(block, 5, out);
}

/* low bits[128], high bits[64], scales[16], d; 16 groups of 16. */
static void decode_q6_k(const uint8_t *block, float *out)
{
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    float d = f16_at(block + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, at = i % 128;
        int code = low[64 * half + at % 64] >> at / 64 * 4 & 15;
        code |= (high[32 * half + at % 32] >> at / 32 * 2 & 3) << 4;
        out[i] = d * (float)(int8_t)scales[i / 16] * (float)(code - 32);
    }
}

/* ---- The table ---- */

static const struct moe_ggml_type types[] = {
    {MOE_GGML_F32, "F32", 1, 4, decode_f32, 0},
    {MOE_GGML_F16, "F16", 1, 2, decode_f16, 0},
    {MOE_GGML_BF16, "BF16", 1, 2, decode_bf16, 0},
    {MOE_GGML_Q8_0, "Q8_0", 32, 34, decode_q8_0, 8},
    {MOE_GGML_Q4_0, "Q4_0", 32, 18, decode_q4_0, 4},
    {MOE_GGML_Q4_1, "Q4_1", 32, 20, decode_q4_1, 4},
    {MOE_GGML_Q5_0, "Q5_0", 32, 22, decode_q5_0, 8},
    {MOE_GGML_Q5_1, "Q5_1", 32, 24, decode_q5_1, 8},
    {MOE_GGML_Q2_K, "Q2_K", 256, 84, decode_q2_k, 0},
    {MOE_GGML_Q3_K, "Q3_K", 256, 110, decode_q3_k, 0},
    {MOE_GGML_Q4_K, "Q4_K", 256, 144, decode_q4_k, 4},
    {MOE_GGML_Q5_K, "Q5_K", 256, 176, decode_q5_k, 8},
    {MOE_GGML_Q6_K, "Q6_K", 256, 210, decode_q6_k, 0},
    {MOE_GGML_IQ4_NL, "IQ4_NL", 32, 18, decode_iq4_nl, 8},
    {MOE_GGML_MXFP4, "MXFP4", 32, 17, decode_mxfp4, 8},
    /* known by size only, so that files that hold one can be listed and checked */
    {9, "Q8_1", 32, 40, NULL, 0},
    {15, "Q8_K", 256, 292, NULL, 0},
    {16, "IQ2_XXS", 256, 66, NULL, 0},
    {17, "IQ2_XS", 256, 74, NULL, 0},
    {18, "IQ3_XXS", 256, 98, NULL, 0},
    {19, "IQ1_S", 256, 50, NULL, 0},
    {21, "IQ3_S", 256, 110, NULL, 0},
    {22, "IQ2_S", 256, 82, NULL, 0},
    {23, "IQ4_XS", 256, 136, NULL, 0},
    {24, "I8", 1, 1, NULL, 0},
    {25, "I16", 1, 2, NULL, 0},
    {26, "I32", 1, 4, NULL, 0},
    {27, "I64", 1, 8, NULL, 0},
    {28, "F64", 1, 8, NULL, 0},
    {29, "IQ1_M", 256, 56, NULL, 0},
    {34, "TQ1_0", 256, 54, NULL, 0},
    {35, "TQ2_0", 256, 66, NULL, 0},
    {40, "NVFP4", 64, 36, NULL, 0},
    {41, "Q1_0", 128, 18, NULL, 0},
};

enum { N_TYPES = sizeof types / sizeof types[0] };

const struct moe_ggml_type *moe_ggml_find(uint32_t number)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}

void moe_ggml_decode(const struct moe_ggml_type *type, const uint8_t *blocks, uint64_t n,
                     float *out)
{
    switch (type->number) { /* the most common and smallest, without a call for each */
    case MOE_GGML_F32:
        for (uint64_t i = 0; i < n; i++)
            decode_f32(blocks + 4 * i, out + i);
        return;
    case MOE_GGML_F16:
        for (uint64_t i = 0; i < n; i++)
            decode_f16(blocks + 2 * i, out + i);
        return;
    case MOE_GGML_BF16:
        for (uint64_t i = 0; i < n; i++)
            decode_bf16(blocks + 2 * i, out + i);
        return;
    }
    /* No block is longer than its values: while block i is copied out first, writing its values
     * cannot reach block i + 1. */
    uint8_t block[MOE_GGML_MAX_BLOCK_BYTES];
    for (uint64_t i = 0; i < n; i++) {
        memcpy(block, blocks + i * type->bytes, type->bytes);
        type->decode(block, out + i * type->items);
    }
}

/* ---- Codes carried over as they are ---- */

/* Sets d and m, rounded to f16 where necessary. */
static enum moe_ggml_carry set_scales(struct moe_group_codes *out, float d, float m)
{
    uint16_t d16 = moe_f32_to_f16(d), m16 = moe_f32_to_f16(m);
    float d_back = moe_f16_to_f32(d16), m_back = moe_f16_to_f32(m16);
    if (!isfinite(d_back) || !isfinite(m_back))
        return MOE_GGML_CARRY_NO;
    out->d = d16;
    out->m = m16;
    return d_back == d && m_back == m ? MOE_GGML_CARRY_EXACT : MOE_GGML_CARRY_ROUNDED;
}

/* Shifts signed values up to make them codes. */
static enum moe_ggml_carry set_signed(struct moe_group_codes *out, uint8_t *codes,
                                      const int8_t *values, float d)
{
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        codes[i] = (uint8_t)(values[i] + 128);
    return set_scales(out, d, -128 * d);
}

static enum moe_ggml_carry set_table(struct moe_group_codes *out, uint8_t *codes,
                                     const uint8_t *nibbles, const int8_t table[16], float d)
{
    int8_t values[MOE_GGML_GROUP];
    uint8_t q[MOE_GGML_GROUP];
    ggml_nibbles(nibbles, q);
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        values[i] = table[q[i]];
    return set_signed(out, codes, values, d);
}

enum moe_ggml_carry moe_ggml_group(const struct moe_ggml_type *type, const uint8_t *block,
                                   uint32_t g, uint8_t codes[MOE_GGML_GROUP],
                                   struct moe_group_codes *out)
{
    float d = moe_f16_to_f32(moe_get_u16(block)), m;
    enum moe_ggml_carry carry;
    out->codes = codes;
    switch (type->number) {
    case MOE_GGML_Q8_0:
        return set_signed(out, codes, (const int8_t *)block + 2, d);
    case MOE_GGML_IQ4_NL:
        return set_table(out, codes, block + 2, ggml_iq4_nl_values, d);
    case MOE_GGML_MXFP4: /* an exponent below f16's would lose everything */
        carry = set_table(out, codes, block + 1, moe_mxfp4_twice, moe_mxfp4_scale(block[0]));
        return carry == MOE_GGML_CARRY_EXACT ? carry : MOE_GGML_CARRY_NO;
    case MOE_GGML_Q4_0:
        ggml_nibbles(block + 2, codes);
        return set_scales(out, d, -8 * d);
    case MOE_GGML_Q5_0:
        ggml_five_bits(block + 2, codes);
        return set_scales(out, d, -16 * d);
    case MOE_GGML_Q4_1:
        ggml_nibbles(block + 4, codes);
        return set_scales(out, d, moe_f16_to_f32(moe_get_u16(block + 2)));
    case MOE_GGML_Q5_1:
        ggml_five_bits(block + 4, codes);
        return set_scales(out, d, moe_f16_to_f32(moe_get_u16(block + 2)));
    case MOE_GGML_Q4_K:
    case MOE_GGML_Q5_K:
        ggml_k_group(block, type->number == MOE_GGML_Q5_K ? 5 : 4, g, codes, &d, &m);
        return set_scales(out, d, -m);
    default:
        return MOE_GGML_CARRY_NO;
    }
}

void moe_ggml_mxfp4(const uint8_t *block, uint8_t codes[MOE_GGML_GROUP], uint8_t *exponent)
{
    *exponent = block[0];
    ggml_nibbles(block + 1, codes);
}

void moe_ggml_mxfp4_from_pairs(const uint8_t pairs[16], uint8_t exponent, uint8_t *block)
{
    block[0] = exponent;
    for (int i = 0; i < 16; i++) {
        int low = pairs[i / 2] >> i % 2 * 4 & 15, high = pairs[8 + i / 2] >> i % 2 * 4 & 15;
        block[1 + i] = (uint8_t)(low | high << 4);
    }
}

/* ---- Whole matrices ---- */

struct moe_layout moe_ggml_layout(const struct moe_ggml_type *type, int bits)
{
    if (type->number == MOE_GGML_MXFP4 && bits == 4)
        return (struct moe_layout){MOE_LAYOUT_MXFP4, MOE_MX_BLOCK};
    bool carried = type->carry_bits && bits >= type->carry_bits && (bits == 4 || bits == 8);
    if (!carried)
        return (struct moe_layout){0};
    return (struct moe_layout){moe_layout_kind_of_bits(bits), MOE_GGML_GROUP};
}

int moe_ggml_bits(const struct moe_ggml_type *type)
{
    if (type->items == 1)
        return 8 * (int)type->bytes;
    if (type->number == MOE_GGML_MXFP4)
        return 4;
    return type->carry_bits ? type->carry_bits : 8;
}

/* The result of one panel. Results are added up in order, whichever thread computed them. */
struct panel_result {
    struct moe_quant_error error;
    struct moe_ggml_counts counts;
    bool refused; /* the weight at row, col cannot be stored */
    uint32_t row, col;
};

struct job {
    const struct moe_ggml_type *type;
    const struct moe_quant_method *method;
    struct moe_layout layout;
    const uint8_t *blocks;
    uint32_t rows, cols;
    uint8_t *out;
    struct panel_result *results; /* [panels] */
};

static void add_errors(const float *values, const struct moe_group_codes *group,
                       struct moe_quant_error *sum)
{
    float d = moe_f16_to_f32(group->d), m = moe_f16_to_f32(group->m);
    for (int i = 0; i < MOE_GGML_GROUP; i++) {
        double e = (double)(d * (float)group->codes[i] + m) - (double)values[i];
        sum->sum_squared_error += e * e;
        sum->sum_squared_weight += (double)values[i] * (double)values[i];
    }
}

/* Fits a group that cannot be carried over; false where that fails too. */
static bool fit_group(const struct job *job, const float *values, uint8_t *codes,
                      struct moe_group_codes *group)
{
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        if (!(fabsf(values[i]) <= 65504))
            return false;
    group->codes = codes;
    job->method->fit(values, MOE_GGML_GROUP, moe_layout_bits(job->layout.kind), &group->d,
                     &group->m, codes);
    return isfinite(moe_f16_to_f32(group->d)) && isfinite(moe_f16_to_f32(group->m));
}

/* Encodes a block in its own layout; false if it is NaN or has infinite weights. */
static bool encode_mxfp4(const struct job *job, const uint8_t *block, const float *values,
                         uint32_t row, uint32_t b, struct panel_result *result)
{
    uint8_t codes[MOE_GGML_GROUP], exponent;
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        if (!isfinite(values[i]))
            return false;
    moe_ggml_mxfp4(block, codes, &exponent);
    if (!moe_layout_store_mxfp4(job->out, job->cols, row, b, exponent, codes))
        return false;
    result->counts.exact += MOE_GGML_GROUP;
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        result->error.sum_squared_weight += (double)values[i] * (double)values[i];
    return true;
}

static bool encode_group(const struct job *job, const uint8_t *block, uint32_t g,
                         const float *values, uint32_t row, uint32_t group_number,
                         struct panel_result *result)
{
    uint8_t codes[MOE_GGML_GROUP];
    struct moe_group_codes group;
    if (job->layout.kind == MOE_LAYOUT_MXFP4)
        return encode_mxfp4(job, block, values, row, group_number, result);
    switch (moe_ggml_group(job->type, block, g, codes, &group)) {
    case MOE_GGML_CARRY_EXACT:
        result->counts.exact += MOE_GGML_GROUP;
        break;
    case MOE_GGML_CARRY_ROUNDED:
        result->counts.rounded += MOE_GGML_GROUP;
        break;
    case MOE_GGML_CARRY_NO:
        if (!fit_group(job, values, codes, &group))
            return false;
        result->counts.fitted += MOE_GGML_GROUP;
        break;
    }
    moe_layout_store_group(job->out, job->layout, job->cols, row, group_number, &group);
    add_errors(values, &group, &result->error);
    return true;
}

static void encode_row(const struct job *job, uint32_t row, struct panel_result *result)
{
    uint32_t n = job->cols / job->type->items, groups = job->type->items / MOE_GGML_GROUP;
    for (uint32_t b = 0; b < n; b++) {
        float values[MOE_GGML_MAX_ITEMS];
        const uint8_t *block = job->blocks + ((uint64_t)row * n + b) * job->type->bytes;
        moe_ggml_decode(job->type, block, 1, values);
        for (uint32_t g = 0; g < groups; g++)
            if (!encode_group(job, block, g, values + g * MOE_GGML_GROUP, row, b * groups + g,
                              result)) {
                result->refused = true;
                result->row = row;
                result->col = (b * groups + g) * MOE_GGML_GROUP;
                return;
            }
    }
}

static void encode_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *job = ctx;
    (void)thread;
    for (int64_t p = begin; p < end; p++) {
        uint32_t row = (uint32_t)p * MOE_PANEL_ROWS;
        uint32_t last = job->rows - row < MOE_PANEL_ROWS ? job->rows : row + MOE_PANEL_ROWS;
        for (; row < last && !job->results[p].refused; row++)
            encode_row(job, row, &job->results[p]);
    }
}

int moe_ggml_encode_matrix(const struct moe_ggml_type *type, const struct moe_quant_method *method,
                           struct moe_layout layout, const uint8_t *blocks, uint32_t rows,
                           uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                           struct moe_ggml_counts *counts, struct moe_err *err)
{
    struct job job = {type, method, layout, blocks, rows, cols, out, NULL};
    uint32_t panels = moe_panels(rows);
    int status = MOE_OK;
    job.results = moe_alloc(panels, sizeof *job.results, err);
    if (!job.results)
        return MOE_ERR_MEMORY;
    moe_par_for(panels, 1, encode_panels, &job);
    for (uint32_t p = 0; p < panels && status == MOE_OK; p++) {
        const struct panel_result *r = &job.results[p];
        if (r->refused)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "the weights at row %" PRIu32 ", columns %" PRIu32 " to %" PRIu32
                              " are not finite or too large for f16",
                              r->row, r->col, r->col + MOE_GGML_GROUP - 1);
        error->sum_squared_error += r->error.sum_squared_error;
        error->sum_squared_weight += r->error.sum_squared_weight;
        counts->exact += r->counts.exact;
        counts->rounded += r->counts.rounded;
        counts->fitted += r->counts.fitted;
    }
    free(job.results);
    return status;
}
