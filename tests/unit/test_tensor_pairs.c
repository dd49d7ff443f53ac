/*
 * Matrices of several tensors: what each quantizer's packing holds, drawn and packed here by its
 * own description, is what is read, whole and in parts, as values and in a layout; and parts that
 * are missing or do not fit are named.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"

#include <math.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "fmt/checkpoint.h"

enum { ROWS = 32, COLS = 256, MAX_TENSORS = 8 };

enum packing { GPTQ, AWQ, PACKED, BYTES, MODELOPT, AMAX, NV_PACKED, MX_PACKED, NF4, FP8, LLM_INT8 };

static const struct container {
    const char *what;
    enum packing packing;
    uint32_t bits, group; /* 0: a row */
    bool zeros, bf16, order, nested, square, exponents;
    uint16_t kind;      /* of the layout that holds it; 0: values only */
    const char *config; /* of quantization_config */
} containers[] = {
    {"gptq 4", GPTQ, 4, 128, .zeros = true, .kind = MOE_LAYOUT_Q4_Z, .config = "\"bits\":4"},
    {"gptq 4 v2", GPTQ, 4, 32, .zeros = true, .bf16 = true, .kind = MOE_LAYOUT_Q4_Z,
     .config = "\"checkpoint_format\":\"gptq_v2\""},
    {"gptq 8 row", GPTQ, 8, 0, .zeros = true, .kind = MOE_LAYOUT_Q8_Z, .config = ""},
    {"gptq 3", GPTQ, 3, 64, .zeros = true, .kind = MOE_LAYOUT_Q3_Z, .config = ""},
    {"gptq 2 in order", GPTQ, 2, 32, .zeros = true, .order = true, .config = "\"desc_act\":true"},
    {"auto-round", GPTQ, 4, 64, .zeros = true, .kind = MOE_LAYOUT_Q4_Z,
     .config = "\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:auto_gptq\""},
    {"awq", AWQ, 4, 64, .zeros = true, .kind = MOE_LAYOUT_Q4_Z, .config = ""},
    {"int 4", PACKED, 4, 32, .bf16 = true, .kind = MOE_LAYOUT_Q4_Z, .config = ""},
    {"int 4 of 16", PACKED, 4, 16, .config = ""},
    {"int 8 row", PACKED, 8, 0, .zeros = true, .kind = MOE_LAYOUT_Q8_Z,
     .config = "\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":8}}}"},
    {"int 3", PACKED, 3, 32, .zeros = true, .kind = MOE_LAYOUT_Q3_Z,
     .config = "\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":3}}}"},
    {"int 6 by its shape", PACKED, 6, 64, .kind = MOE_LAYOUT_Q8_Z,
     .config = "\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8}},"
               "\"b\":{\"weights\":{\"num_bits\":6}}}"},
    {"int 4 in order", PACKED, 4, 64, .order = true, .config = ""},
    {"bytes", BYTES, 8, 0, .bf16 = true, .kind = MOE_LAYOUT_Q8_Z, .config = ""},
    {"bytes with zeros", BYTES, 8, 128, .zeros = true, .kind = MOE_LAYOUT_Q8_Z, .config = ""},
    {"nvfp4", MODELOPT, 4, 16, .kind = MOE_LAYOUT_NVFP4_T, .config = ""},
    {"nvfp4 by its largest", AMAX, 4, 16, .kind = MOE_LAYOUT_NVFP4_T, .config = ""},
    {"nvfp4 packed", NV_PACKED, 4, 16, .kind = MOE_LAYOUT_NVFP4_T, .config = ""},
    {"mxfp4 packed", MX_PACKED, 4, 32, .kind = MOE_LAYOUT_MXFP4, .config = ""},
    {"a table", NF4, 4, 64, .order = true, .config = ""},
    {"nf4", NF4, 4, 64, .kind = MOE_LAYOUT_NF4, .config = ""},
    {"nf4 nested", NF4, 4, 64, .nested = true, .kind = MOE_LAYOUT_NF4, .config = ""},
    {"fp4", NF4, 4, 64, .zeros = true, .kind = MOE_LAYOUT_FP4, .config = ""},
    {"fp8 blocks", FP8, 8, 128, .square = true, .kind = MOE_LAYOUT_F8_B, .config = ""},
    {"fp8 blocks of 16", FP8, 8, 64, .square = true, .bf16 = true, .kind = MOE_LAYOUT_F8_B,
     .config = "\"weight_block_size\":[16,64]"},
    {"fp8 rows", FP8, 8, 0, .kind = MOE_LAYOUT_F8, .config = ""},
    {"fp8 groups", FP8, 8, 64, .kind = MOE_LAYOUT_F8, .config = "\"weight_block_size\":[1,64]"},
    {"fp8 groups of 16", FP8, 8, 16, .config = "\"weight_block_size\":[1,16]"},
    {"mxfp8", FP8, 8, 32, .exponents = true, .kind = MOE_LAYOUT_F8, .config = ""},
    {"llm.int8", LLM_INT8, 8, 0, .kind = MOE_LAYOUT_I8, .config = ""},
};

/* ---- A drawn matrix and its tensors ---- */

struct tensor {
    const char *end, *dtype;
    uint64_t dims[2];
    int n_dims;
    bool optional; /* without it the rest is another matrix, or the same */
    struct moe_buf data;
};

struct drawn {
    const struct container *c;
    uint64_t seed;
    uint32_t group, groups;
    uint8_t codes[ROWS][COLS];
    uint32_t order[COLS];
    float values[ROWS * COLS];
    struct tensor tensors[MAX_TENSORS];
    int n;
};

static struct tensor *add(struct drawn *d, const char *end, const char *dtype, uint64_t rows,
                          uint64_t cols, uint64_t item_bytes)
{
    struct tensor *t = &d->tensors[d->n++];
    *t = (struct tensor){end, dtype, {rows, cols}, 2, false, {0}};
    for (uint64_t i = 0; i < rows * cols * item_bytes; i++)
        moe_buf_u8(&t->data, 0);
    return t;
}

/* Puts a code at bit `at` of the stream whose words are `stride` words apart. */
static void put_bits(uint8_t *words, uint64_t stride, uint64_t at, uint32_t bits, uint32_t code)
{
    for (uint32_t b = 0; b < bits; b++, at++)
        if (code >> b & 1)
            words[at / 32 * stride * 4 + at % 32 / 8] |= (uint8_t)(1 << at % 8);
}

static const int awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7}; /* row of the i-th nibble */

static uint32_t awq_nibble(uint32_t row)
{
    uint32_t i = 0;
    while (awq_order[i] != (int)(row % 8))
        i++;
    return row / 8 * 32 + 4 * i;
}

static void put_scale(const struct drawn *d, struct tensor *scales, uint64_t i, float *value)
{
    uint16_t half = d->c->bf16 ? moe_f32_to_bf16(*value) : moe_f32_to_f16(*value);
    *value = d->c->bf16 ? moe_bf16_to_f32(half) : moe_f16_to_f32(half);
    moe_put_u16(scales->data.data + 2 * i, half);
}

static void draw_codes(struct drawn *d)
{
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            d->codes[r][c] = (uint8_t)(test_random(&d->seed) % (1u << d->c->bits));
    for (uint32_t c = 0; c < COLS; c++)
        d->order[c] = c / d->group;
    for (uint32_t c = 0; d->c->order && c < COLS; c++) {
        uint32_t other = (uint32_t)(test_random(&d->seed) % COLS), kept = d->order[c];
        d->order[c] = d->order[other];
        d->order[other] = kept;
    }
}

/* Whole numbers: codes, scales, zero points. */
static void pack_numbers(struct drawn *d)
{
    const struct container *c = d->c;
    const uint32_t bits = c->bits, groups = d->groups, middle = 1u << (bits - 1);
    const bool across = c->packing == GPTQ || c->packing == AWQ, awq = c->packing == AWQ;
    const bool stored_less = c->packing == GPTQ && !strstr(c->config, "v2");
    struct tensor *codes = c->packing == GPTQ    ? add(d, "q", "I32", COLS * bits / 32, ROWS, 4)
                           : awq                 ? add(d, "q", "I32", COLS, ROWS / 8, 4)
                           : c->packing == BYTES ? add(d, "", "I8", ROWS, COLS, 1)
                                                 : add(d, "p", "I32", ROWS, COLS * bits / 32, 4);
    codes->end = across ? "qweight" : c->packing == BYTES ? "weight" : "weight_packed";
    struct tensor *scales = add(d, across ? "scales" : "weight_scale", c->bf16 ? "BF16" : "F16",
                                across ? groups : ROWS, across ? ROWS : groups, 2);
    struct tensor *zeros = NULL;
    if (across)
        zeros = add(d, "qzeros", "I32", groups, ROWS * bits / 32, 4);
    else if (c->zeros)
        zeros = c->packing == BYTES
                    ? add(d, "weight_zero_point", "I8", ROWS, groups, 1)
                    : add(d, "weight_zero_point", "I32", ROWS * bits / 32, groups, 4);
    if (zeros)
        zeros->optional = !across;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t g = 0; g < groups; g++) {
            float scale = ldexpf(1 + test_uniform(&d->seed) / 2, -5 - (int)(g * 5 % 13));
            uint32_t zero = c->zeros ? (uint32_t)(test_random(&d->seed) % (1u << bits)) : middle;
            put_scale(d, scales, across ? g * ROWS + r : r * groups + g, &scale);
            if (awq)
                put_bits(zeros->data.data + g * ROWS / 2, 1, awq_nibble(r), 4, zero);
            else if (across)
                put_bits(zeros->data.data + g * ROWS * bits / 8, 1, (uint64_t)r * bits, bits, zero);
            else if (zeros && c->packing == BYTES)
                zeros->data.data[r * groups + g] = (uint8_t)(zero - middle);
            else if (zeros)
                put_bits(zeros->data.data + 4 * g, groups, (uint64_t)r * bits, bits, zero);
            for (uint32_t k = 0; k < COLS; k++)
                if (d->order[k] == g)
                    d->values[r * COLS + k] =
                        scale * ((float)d->codes[r][k] - (float)(zero + stored_less));
        }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < COLS; k++) {
            uint8_t *to = codes->data.data, code = d->codes[r][k];
            if (awq)
                put_bits(to + k * ROWS / 2, 1, awq_nibble(r), 4, code);
            else if (across)
                put_bits(to + 4 * r, ROWS, (uint64_t)k * bits, bits, code);
            else if (c->packing == BYTES)
                to[r * COLS + k] = (uint8_t)(code - middle);
            else
                put_bits(to + r * COLS * bits / 8, 1, (uint64_t)k * bits, bits, code);
        }
    if (c->packing == GPTQ || c->order) {
        struct tensor *order = add(d, across ? "g_idx" : "weight_g_idx", "I32", COLS, 1, 4);
        order->n_dims = 1;
        order->optional = true;
        for (uint32_t k = 0; k < COLS; k++)
            moe_put_u32(order->data.data + 4 * k, d->order[k]);
    }
    if (c->packing == PACKED) {
        struct tensor *shape = add(d, "weight_shape", "I64", 2, 1, 8);
        shape->n_dims = 1;
        shape->optional = true;
        shape->data.data[0] = ROWS;
        moe_put_u16(shape->data.data + 8, COLS);
    }
}

static float e2m1(uint8_t code)
{
    static const float numbers[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -numbers[code & 7] : numbers[code & 7];
}

/* A code of E4M3 that is a number. */
static float e4m3(uint8_t code)
{
    float v =
        code % 128 < 8 ? ldexpf(code % 8, -9) : ldexpf((float)(8 + code % 8), code % 128 / 8 - 10);
    return code & 128 ? -v : v;
}

/* Pairs of e2m1, scales, a factor. */
static void pack_fp4(struct drawn *d)
{
    const struct container *c = d->c;
    const bool mx = c->packing == MX_PACKED, amax = c->packing == AMAX;
    const bool modelopt = c->packing == MODELOPT;
    struct tensor *codes =
        add(d, modelopt || amax ? "weight" : "weight_packed", "U8", ROWS, COLS / 2, 1);
    struct tensor *scales = add(d, "weight_scale", mx ? "U8" : "F8_E4M3", ROWS, d->groups, 1);
    float factor = 0.3f;
    if (!mx) {
        struct tensor *f = add(d,
                               modelopt ? "weight_scale_2"
                               : amax   ? "weight_amax"
                                        : "weight_global_scale",
                               "F32", 1, 1, 4);
        f->n_dims = 1;
        moe_put_u32(f->data.data, moe_f32_bits(factor));
        factor = modelopt || amax ? factor : 1 / factor;
    }
    if (amax) {
        struct tensor *f = add(d, "weight_outer_scale_denominator", "BF16", 1, 1, 2);
        f->n_dims = 1;
        moe_put_u16(f->data.data, moe_f32_to_bf16(2688));
        factor /= moe_bf16_to_f32(moe_f32_to_bf16(2688));
    }
    struct tensor *inputs = add(d, "input_scale", "F32", 1, 1, 4); /* left out */
    inputs->optional = true;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t g = 0; g < d->groups; g++) {
            uint8_t *s = &scales->data.data[r * d->groups + g];
            *s = (uint8_t)(mx ? 110 + test_random(&d->seed) % 20 : test_random(&d->seed));
            *s = !mx && *s % 128 == 127 ? 1 : *s;
            for (uint32_t k = g * d->group; k < (g + 1) * d->group; k++) {
                float v = e2m1(d->codes[r][k]);
                d->values[r * COLS + k] = mx ? ldexpf(v, *s - 127) : factor * (e4m3(*s) * v);
                codes->data.data[(r * COLS + k) / 2] |=
                    (uint8_t)(d->codes[r][k] << (k % 2 ? 4 : 0));
            }
        }
}

/* bitsandbytes: a table of 16 numbers, and of 256 for the scales. */
static void pack_table(struct drawn *d)
{
    enum { BLOCKS = ROWS * COLS / 64, OF_SCALES = 16 };
    const struct container *c = d->c;
    float table[16], of_scales[256], offset = 0.25f;
    char state[160];
    struct tensor *codes = add(d, "weight", "U8", ROWS * COLS / 2, 1, 1);
    struct tensor *scales =
        add(d, "weight.absmax", c->nested ? "U8" : "F32", BLOCKS, 1, c->nested ? 1 : 4);
    struct tensor *map = add(d, "weight.quant_map", "F32", 16, 1, 4);
    struct tensor *own =
        c->nested ? add(d, "weight.nested_absmax", "F32", BLOCKS / OF_SCALES, 1, 4) : NULL;
    struct tensor *nested = c->nested ? add(d, "weight.nested_quant_map", "F32", 256, 1, 4) : NULL;
    snprintf(state, sizeof state, "{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[%d,%d]%s}",
             ROWS, COLS, c->nested ? ",\"nested_blocksize\":16,\"nested_offset\":0.25" : "");
    struct tensor *said = add(d, "weight.quant_state.bitsandbytes__nf4", "U8", strlen(state), 1, 0);
    moe_buf_text(&said->data, state);
    for (int i = 1; i < d->n; i++)
        d->tensors[i].n_dims = 1;
    for (int i = 0; i < 16; i++) {
        table[i] = c->order   ? test_uniform(&d->seed)
                   : c->zeros ? moe_fp4_numbers[i]
                              : moe_nf4_numbers[i];
        moe_put_u32(map->data.data + 4 * i, moe_f32_bits(table[i]));
    }
    for (int i = 0; nested && i < 256; i++) {
        of_scales[i] = test_uniform(&d->seed);
        moe_put_u32(nested->data.data + 4 * i, moe_f32_bits(of_scales[i]));
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        float scale = test_uniform(&d->seed), of = 1 + (float)(b / OF_SCALES);
        if (c->nested) {
            uint8_t place = (uint8_t)test_random(&d->seed);
            scales->data.data[b] = place;
            moe_put_u32(own->data.data + 4 * (b / OF_SCALES), moe_f32_bits(of));
            scale = of_scales[place] * of;
            scale += offset;
        } else {
            moe_put_u32(scales->data.data + 4 * b, moe_f32_bits(scale));
        }
        for (uint32_t i = 64 * b; i < 64 * (b + 1); i++) {
            uint8_t code = d->codes[i / COLS][i % COLS];
            d->values[i] = table[code] * scale;
            codes->data.data[i / 2] |= (uint8_t)(code << (i % 2 ? 0 : 4));
        }
    }
}

/* E4M3 with a scale of f32 or bf16 for each block of rows and columns; or bytes and, of rows, what
 * 127 stands for. */
static void pack_scaled(struct drawn *d)
{
    const struct container *c = d->c;
    const bool fp8 = c->packing == FP8;
    const uint32_t rows = !c->square ? 1 : c->config[0] ? 16 : ROWS;
    struct tensor *codes = add(d, "weight", fp8 ? "F8_E4M3" : "I8", ROWS, COLS, 1);
    struct tensor *scales = add(d,
                                !fp8        ? "SCB"
                                : c->square ? "weight_scale_inv"
                                            : "weight_scale",
                                c->exponents ? "U8"
                                : c->bf16    ? "BF16"
                                             : "F32",
                                ROWS / rows, d->groups,
                                c->exponents ? 1
                                : c->bf16    ? 2
                                             : 4);
    struct tensor *format = fp8 ? NULL : add(d, "weight_format", "U8", 1, 1, 1);
    if (format)
        format->optional = true;
    scales->n_dims = fp8 ? 2 : 1;
    for (uint32_t i = 0; i < ROWS / rows * d->groups; i++) {
        float scale = 0.25f + test_uniform(&d->seed) / 8;
        if (c->exponents)
            scale = ldexpf(1, (scales->data.data[i] = 120 + test_random(&d->seed) % 10) - 127);
        else if (c->bf16)
            put_scale(d, scales, i, &scale);
        else
            moe_put_u32(scales->data.data + 4 * i, moe_f32_bits(scale));
        scale = fp8 ? scale : scale * (1.0f / 127);
        for (uint32_t r = i / d->groups * rows; r < (i / d->groups + 1) * rows; r++)
            for (uint32_t k = i % d->groups * d->group; k < (i % d->groups + 1) * d->group; k++) {
                uint8_t code = d->codes[r][k];
                code = fp8 && code % 128 == 127 ? 1 : code;
                codes->data.data[r * COLS + k] = code;
                d->values[r * COLS + k] = (fp8 ? e4m3(code) : (float)(int8_t)code) * scale;
            }
    }
}

static struct drawn *draw(const struct container *c, uint64_t seed)
{
    struct drawn *d = moe_alloc(1, sizeof *d, NULL);
    d->c = c;
    d->seed = seed;
    d->group = c->group ? c->group : COLS;
    d->groups = COLS / d->group;
    draw_codes(d);
    if (c->packing == NF4)
        pack_table(d);
    else if (c->packing >= FP8)
        pack_scaled(d);
    else if (c->packing >= MODELOPT)
        pack_fp4(d);
    else
        pack_numbers(d);
    return d;
}

static void drawn_free(struct drawn *d)
{
    for (int i = 0; i < d->n; i++)
        moe_buf_release(&d->tensors[i].data);
    free(d);
}

/* The files: `missing` is left out of the tensors, `short_` has a last row less. */
static void make_files(const struct drawn *d, int missing, int short_, struct moe_buf *file,
                       struct moe_buf *config)
{
    struct moe_buf header = {0}, data = {0};
    for (int i = 0; i < d->n; i++) {
        const struct tensor *t = &d->tensors[i];
        if (i == missing)
            continue;
        uint64_t rows = t->dims[0] - (i == short_), bytes = t->data.size / t->dims[0] * rows;
        moe_buf_printf(&header, "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[%u",
                       header.size ? "," : "{", t->end, t->dtype, (unsigned)rows);
        if (t->n_dims == 2)
            moe_buf_printf(&header, ",%u", (unsigned)t->dims[1]);
        moe_buf_printf(&header, "],\"data_offsets\":[%u,%u]}", (unsigned)data.size,
                       (unsigned)(data.size + bytes));
        moe_buf_append(&data, t->data.data, bytes);
    }
    moe_buf_text(&header, "}");
    moe_buf_u64(file, header.size);
    moe_buf_append(file, header.data, header.size);
    moe_buf_append(file, data.data, data.size);
    moe_buf_printf(config, "{\"quantization_config\":{%s}}", d->c->config);
    moe_buf_release(&header);
    moe_buf_release(&data);
}

static struct moe_checkpoint *write_and_open(const struct drawn *d, int missing, int short_)
{
    struct moe_buf file = {0}, config = {0};
    struct moe_checkpoint *ck;
    struct moe_err err = {0};
    make_files(d, missing, short_, &file, &config);
    write_in_dir("model.safetensors", file.data, file.size);
    write_in_dir("config.json", config.data, config.size);
    moe_buf_release(&file);
    moe_buf_release(&config);
    assert_ok(moe_checkpoint_open(&ck, dir, &err), &err);
    return ck;
}

static int get(const struct moe_checkpoint *ck, const struct moe_tensor **t, struct moe_err *err)
{
    return moe_checkpoint_get(ck, "m.weight", 2, (uint64_t[]){ROWS, COLS}, t, err);
}

static void expect_values(const struct drawn *d, const float *got, uint64_t first, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (got[i] != d->values[first + i])
            fail_msg("%s: row %u column %u: %a, should be %a", d->c->what,
                     (unsigned)((first + i) / COLS), (unsigned)((first + i) % COLS), (double)got[i],
                     (double)d->values[first + i]);
}

/* ---- Tests ---- */

static void matrices_have_their_values(void **state)
{
    for (size_t i = 0; i < N_ITEMS(containers); i++) {
        struct drawn *d = draw(&containers[i], i + 1);
        struct moe_checkpoint *ck = write_and_open(d, -1, -1);
        struct moe_err err = {0};
        const struct moe_tensor *t;
        float *values = moe_alloc(ROWS * COLS, sizeof *values, NULL);
        assert_int_equal(moe_checkpoint_n_tensors(ck), 1);
        assert_ok(get(ck, &t, &err), &err);
        const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
        assert_int_equal(type->kind, d->c->kind ? d->c->kind : MOE_LAYOUT_F32);
        assert_ok(moe_checkpoint_read(ck, t, 0, ROWS * COLS, values, &err), &err);
        expect_values(d, values, 0, ROWS * COLS);
        for (int k = 0; k < 40; k++) {
            uint64_t first = test_random(&d->seed) % (ROWS * COLS);
            uint64_t n = 1 + test_random(&d->seed) % (ROWS * COLS - first);
            assert_ok(moe_checkpoint_read(ck, t, first, n, values, &err), &err);
            expect_values(d, values, first, n);
        }
        moe_checkpoint_close(ck);
        free(values);
        drawn_free(d);
    }
}

/* Inkling-2's experts, all of a layer in a tensor: each has its factor. */
static void stacks_have_a_factor_each(void **state)
{
    size_t i = 0;
    while (containers[i].packing != AMAX)
        i++;
    struct drawn *d[2] = {draw(&containers[i], 1), draw(&containers[i], 2)};
    struct moe_buf file = {0}, header = {0}, data = {0};
    struct moe_checkpoint *ck;
    struct moe_err err = {0};
    const struct moe_tensor *t;
    float *values = moe_alloc(2ull * ROWS * COLS, sizeof *values, NULL);
    for (int k = 0; k < d[0]->n - 1; k++) { /* the last is left out */
        const struct tensor *part = &d[0]->tensors[k];
        bool shared = strstr(part->end, "denominator") != NULL;
        uint64_t begin = data.size;
        if (strcmp(part->end, "weight_amax") == 0)
            moe_put_u32(d[1]->tensors[k].data.data, moe_f32_bits(2 * 0.3f));
        for (int s = 0; s < (shared ? 1 : 2); s++)
            moe_buf_append(&data, d[s]->tensors[k].data.data, d[s]->tensors[k].data.size);
        moe_buf_printf(&header, "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[", k ? "," : "{",
                       part->end, part->dtype);
        if (part->n_dims == 2)
            moe_buf_printf(&header, "2,%u,%u", (unsigned)part->dims[0], (unsigned)part->dims[1]);
        else
            moe_buf_printf(&header, "%d", shared ? 1 : 2);
        moe_buf_printf(&header, "],\"data_offsets\":[%u,%u]}", (unsigned)begin,
                       (unsigned)data.size);
    }
    moe_buf_text(&header, "}");
    moe_buf_u64(&file, header.size);
    moe_buf_append(&file, header.data, header.size);
    moe_buf_append(&file, data.data, data.size);
    write_in_dir("model.safetensors", file.data, file.size);
    write_in_dir("config.json", "{}", 2);
    assert_ok(moe_checkpoint_open(&ck, dir, &err), &err);
    assert_ok(moe_checkpoint_get(ck, "m.weight", 3, (uint64_t[]){2, ROWS, COLS}, &t, &err), &err);
    assert_ok(moe_checkpoint_read(ck, t, 0, 2ull * ROWS * COLS, values, &err), &err);
    for (int k = 0; k < ROWS * COLS; k++)
        d[1]->values[k] *= 2;
    expect_values(d[0], values, 0, ROWS * COLS);
    expect_values(d[1], values + ROWS * COLS, 0, ROWS * COLS);
    moe_checkpoint_close(ck);
    free(values);
    moe_buf_release(&file);
    moe_buf_release(&header);
    moe_buf_release(&data);
    drawn_free(d[0]);
    drawn_free(d[1]);
}

/* Code for code in the layout of their kind, and in no more than 8% more bytes than in the file. */
static void layouts_hold_the_codes(void **state)
{
    for (size_t i = 0; i < N_ITEMS(containers); i++) {
        if (!containers[i].kind)
            continue;
        struct drawn *d = draw(&containers[i], i + 1);
        struct moe_checkpoint *ck = write_and_open(d, -1, -1);
        struct moe_err err = {0};
        struct moe_quant_error error = {0};
        const struct moe_tensor *t;
        assert_ok(get(ck, &t, &err), &err);
        const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
        struct moe_layout layout = moe_ggml_layout(type, 8);
        assert_true(moe_layout_valid(layout));
        assert_int_equal(layout.kind, d->c->kind);
        uint64_t n = t->n_items / type->items;
        uint8_t *blocks = moe_alloc(n, type->bytes, NULL);
        uint8_t *data = moe_alloc(moe_layout_bytes(layout, ROWS, COLS), 1, NULL);
        assert_ok(moe_checkpoint_read_blocks(ck, t, 0, n, blocks, &err), &err);
        assert_ok(moe_ggml_carry_matrix(type, blocks, ROWS, COLS, data, &error, &err), &err);
        const struct moe_mat mat = {data, layout, ROWS, COLS};
        for (uint32_t r = 0; r < ROWS; r++) {
            float row[COLS];
            moe_layout_load_row(&mat, r, row);
            expect_values(d, row, (uint64_t)r * COLS, COLS);
        }
        moe_checkpoint_close(ck);
        free(blocks);
        free(data);
        drawn_free(d);
    }
}

/* Where a part is missing, or has a row less, one line says which tensor; where the rest could be a
 * matrix without it, it is read. */
static void parts_that_do_not_fit_are_named(void **state)
{
    for (size_t i = 0; i < N_ITEMS(containers); i++) {
        struct drawn *d = draw(&containers[i], i + 1);
        for (int part = 1; part < d->n; part++)
            for (int less = 0; less < 2; less++) {
                const struct tensor *p = &d->tensors[part];
                struct moe_checkpoint *ck = write_and_open(d, less ? -1 : part, less ? part : -1);
                struct moe_err err = {0};
                const struct moe_tensor *t;
                int status = get(ck, &t, &err);
                const bool exact = !less && (d->c->packing == FP8 || d->c->packing == AMAX);
                char named[64];
                snprintf(named, sizeof named, "'m.%s'", p->end);
                moe_checkpoint_close(ck);
                if (p->optional && status == MOE_OK)
                    continue;
                if (status == MOE_OK || !strstr(err.text, exact ? named : "m.") ||
                    strchr(err.text, '\n'))
                    fail_msg("%s, %s %s: status %d, %s", d->c->what, p->end,
                             less ? "cut short" : "missing", status, err.text);
            }
        drawn_free(d);
    }
}

/* Columns in an order that config.json does not speak of are not read as if they were in turn. */
static void an_order_must_be_said(void **state)
{
    struct container c = containers[4];
    c.config = "\"desc_act\":false";
    struct drawn *d = draw(&c, 3);
    struct moe_checkpoint *ck = write_and_open(d, -1, -1);
    struct moe_err err = {0};
    const struct moe_tensor *t;
    float value;
    assert_ok(get(ck, &t, &err), &err);
    assert_fails(moe_checkpoint_read(ck, t, 0, 1, &value, &err), MOE_ERR_FORMAT, "'g_idx'", &err);
    moe_checkpoint_close(ck);
    drawn_free(d);
}

/* Changes some bytes, of the header mostly, or cuts the end off. */
static void damage(struct moe_buf *file, uint64_t *seed)
{
    uint64_t header = 8 + moe_get_u64(file->data);
    if (test_random(seed) % 8 == 0)
        file->size = test_random(seed) % file->size;
    for (uint64_t n = test_random(seed) % 4; n > 0 && file->size > 0; n--) {
        uint64_t most = test_random(seed) % 4 && header < file->size ? header : file->size;
        uint8_t *byte = &file->data[test_random(seed) % most];
        *byte = (uint8_t)(test_random(seed) % 3 ? '0' + test_random(seed) % 10 : test_random(seed));
    }
}

static void expect_one_line(const struct container *c, const struct moe_err *err)
{
    if (!strstr(err->text, dir) || strchr(err->text, '\n'))
        fail_msg("%s: %s", c->what, err->text);
}

/* DAMAGED (4) files of each kind are read or refused in one line that names the file. */
static void damaged_files_are_refused_in_one_line(void **state)
{
    const char *asked = getenv("DAMAGED");
    int n = asked ? atoi(asked) : 4, refused = 0;
    float *values = moe_alloc(ROWS * COLS, sizeof *values, NULL);
    for (size_t i = 0; i < N_ITEMS(containers); i++)
        for (int k = 0; k < n; k++) {
            struct drawn *d = draw(&containers[i], i + 1);
            struct moe_buf file = {0}, config = {0};
            struct moe_err err = {0};
            struct moe_checkpoint *ck;
            uint64_t seed = (uint64_t)k * 100 + i;
            make_files(d, -1, -1, &file, &config);
            damage(&file, &seed);
            write_in_dir("model.safetensors", file.data, file.size);
            write_in_dir("config.json", config.data, config.size);
            int status = moe_checkpoint_open(&ck, dir, &err);
            for (uint64_t t = 0; status == MOE_OK && t < moe_checkpoint_n_tensors(ck); t++) {
                const struct moe_tensor *tensor = moe_checkpoint_at(ck, t), *got;
                status =
                    moe_checkpoint_get(ck, tensor->name, tensor->n_dims, tensor->dims, &got, &err);
                uint64_t some = tensor->n_items < ROWS * COLS ? tensor->n_items : ROWS * COLS;
                if (status == MOE_OK)
                    status = moe_checkpoint_read(ck, got, 0, some, values, &err);
            }
            if (status != MOE_OK)
                expect_one_line(d->c, &err);
            refused += status != MOE_OK;
            moe_checkpoint_close(ck);
            moe_buf_release(&file);
            moe_buf_release(&config);
            drawn_free(d);
        }
    print_message("# %d damaged files, %d refused\n", n * (int)N_ITEMS(containers), refused);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matrices_have_their_values),
                                       cmocka_unit_test(layouts_hold_the_codes),
                                       cmocka_unit_test(stacks_have_a_factor_each),
                                       cmocka_unit_test(parts_that_do_not_fit_are_named),
                                       cmocka_unit_test(an_order_must_be_said),
                                       cmocka_unit_test(damaged_files_are_refused_in_one_line)};
    return cmocka_run_group_tests_name("tensor pairs", tests, make_dir, remove_dir);
}
