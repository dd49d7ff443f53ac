/*
 * Matrices stored as several tensors. A table says how quantizers name the tensors and what the
 * matrix is called; a function for each form sees whether they fit each other, and another reads
 * them: as blocks that a layout holds code for code where there is one, else as values.
 */
#include "fmt/tensor_pairs.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "fmt/json.h"

enum {
    MAX_CONFIG_BYTES = 16 << 20,
    MAX_STATE_BYTES = 4096,
    NAME_BYTES = 256,
    BATCH_ITEMS = 4 << 20, /* codes unpacked at a time, or one row of them */
};

/* ---- What config.json says ---- */

struct quantization {
    uint32_t rows, cols;  /* of FP8's blocks */
    uint32_t bits, group; /* of whole numbers; 0: not said, or not the same for all */
    bool ordered;         /* GPTQ: columns are in an order of their own */
    bool zeros_less;      /* GPTQ: zero points are stored less one */
};

static bool has_text(const json_t *object, const char *key, const char *part)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strstr(text, part);
}

/* The bits of all groups of compressed-tensors, where they agree. */
static uint32_t bits_of_groups(const json_t *quantization)
{
    const json_t *group;
    const char *name;
    json_int_t bits = 0;
    json_object_foreach(json_object_get(quantization, "config_groups"), name, group)
    {
        json_int_t of =
            json_integer_value(json_object_get(json_object_get(group, "weights"), "num_bits"));
        if (bits && of != bits)
            return 0;
        bits = of;
    }
    return bits > 0 && bits <= 8 ? (uint32_t)bits : 0;
}

/* Takes the sizes of FP8's blocks, 128 by 128, as everyone publishes them, if none are said. */
static int read_blocks(struct quantization *out, const json_t *quantization, const char *path,
                       struct moe_err *err)
{
    const json_t *group =
        json_object_get(json_object_get(quantization, "config_groups"), "group_0");
    const json_t *sizes = json_object_get(quantization, "weight_block_size");
    if (!json_is_array(sizes)) /* as compressed-tensors writes it */
        sizes = json_object_get(json_object_get(group, "weights"), "block_structure");
    if (!json_is_array(sizes))
        return MOE_OK;
    json_int_t rows = json_integer_value(json_array_get(sizes, 0));
    json_int_t cols = json_integer_value(json_array_get(sizes, 1));
    if (json_array_size(sizes) != 2 || rows < 1 || rows > INT32_MAX || cols < 1 || cols > INT32_MAX)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'weight_block_size' in 'quantization_config' is not two numbers "
                        "from 1 on",
                        path);
    out->rows = (uint32_t)rows;
    out->cols = (uint32_t)cols;
    return MOE_OK;
}

static int read_quantization(struct quantization *out, const char *dir, struct moe_err *err)
{
    json_t *json = NULL;
    char *path = moe_path_join(dir, "config.json", err);
    *out = (struct quantization){.rows = 128, .cols = 128, .zeros_less = true};
    int status = path ? MOE_OK : MOE_ERR_MEMORY;
    if (path && moe_path_exists(path))
        status = moe_json_read(&json, path, MAX_CONFIG_BYTES, MOE_JSON_CONFIG_MEMORY, err);
    const json_t *q = json_object_get(json, "quantization_config");
    if (!q) /* of a model that also sees images */
        q = json_object_get(json_object_get(json, "text_config"), "quantization_config");
    if (status == MOE_OK)
        status = read_blocks(out, q, path, err);
    json_int_t group = json_integer_value(json_object_get(q, "group_size"));
    out->group = group > 0 && group <= UINT32_MAX ? (uint32_t)group : 0;
    out->bits = bits_of_groups(q);
    out->ordered = json_is_true(json_object_get(q, "desc_act"));
    if (has_text(q, "checkpoint_format", "v2") || has_text(q, "packing_format", "v2") ||
        (has_text(q, "quant_method", "auto-round") && !has_text(q, "packing_format", "gptq")))
        out->zeros_less = false;
    moe_json_free(json);
    free(path);
    return status;
}

/* ---- Names ---- */

/* A name less `cut` bytes at its end, with `end` appended; false: too long. */
static bool other_name(const char *name, size_t cut, const char *end, char out[NAME_BYTES])
{
    size_t stem = strlen(name) - cut;
    if (stem + strlen(end) >= NAME_BYTES)
        return false;
    memcpy(out, name, stem);
    strcpy(out + stem, end);
    return true;
}

static const struct moe_tensor_entry *entry_beside(const struct moe_tensor_list *list,
                                                   const char *name, size_t cut, const char *end)
{
    char other[NAME_BYTES];
    int64_t i = other_name(name, cut, end, other) ? moe_tensor_list_find(list, other) : -1;
    return i < 0 ? NULL : &list->items[i];
}

static bool is_type(const struct moe_tensor_entry *entry, const char *type)
{
    return strcmp(entry->dtype_name, type) == 0;
}

/* ---- Whether the tensors fit ---- */

/* A matrix being joined. */
struct joining {
    const struct moe_tensor_files *files;
    const struct quantization *config;
    struct moe_tensor_entry *codes;
    const struct moe_tensor_entry *parts[MOE_N_PARTS], *shape, *state; /* NULL: not there */
};

/* What the functions below return that see whether a form's parts fit and set the matrix's type;
 * else the part that does not, or MOE_N_PARTS for the text that says its shape. */
enum { FITS = -1 };

static uint64_t n_blocks(uint64_t n, uint64_t block)
{
    return n / block + (n % block != 0);
}

/* Whether t is [...][rows][cols], with all but the last `n` of m's dimensions first. */
static bool follows(const struct moe_tensor *t, const struct moe_tensor *m, int n, uint64_t rows,
                    uint64_t cols)
{
    int first = m->n_dims - n;
    uint64_t kept = 1; /* dimensions beyond those kept have no known place */
    for (int i = 0; i < t->n_dims; i++)
        kept *= t->dims[i];
    return first >= 0 && t->n_items > 0 && t->n_items == kept && t->n_dims == first + 2 &&
           memcmp(t->dims, m->dims, (size_t)first * sizeof *t->dims) == 0 &&
           t->dims[first] == rows && t->dims[first + 1] == cols;
}

/* Sets what a scale covers: a block of block_rows by block_cols, a row, or the matrix; with
 * block_rows 0 a group of a row, of a size that the number of scales says. False: they do not fit.
 */
static bool fit_scales(struct moe_tensor_entry *m, const struct moe_tensor_entry *scales,
                       uint32_t block_rows, uint32_t block_cols)
{
    const struct moe_tensor *t = &m->tensor, *s = &scales->tensor;
    int rows = t->n_dims - 2, cols = t->n_dims - 1;
    const struct moe_ggml_type *type = moe_dtype_block(s->dtype);
    uint64_t kept = 1;
    for (int i = 0; i < t->n_dims; i++)
        kept *= t->dims[i];
    m->block_rows = block_rows;
    m->block_cols = block_cols;
    m->scales_dtype = s->dtype;
    if (rows < 0 || t->n_items == 0 || t->n_items != kept || s->n_items == 0 ||
        t->dims[cols] > UINT32_MAX || t->dims[rows] > UINT32_MAX)
        return false;
    bool exponents =
        is_type(scales, "F8_E8M0") || (m->form == MOE_FORM_FP8 && is_type(scales, "U8"));
    bool typed = type ? type->items == 1 : exponents;
    bool same = s->n_dims >= rows && memcmp(s->dims, t->dims, (size_t)rows * sizeof *s->dims) == 0;
    bool by_row = same && s->n_dims > rows && s->dims[rows] == t->dims[rows];
    if (same && block_rows && s->n_dims == t->n_dims &&
        s->dims[rows] == n_blocks(t->dims[rows], block_rows) &&
        s->dims[cols] == n_blocks(t->dims[cols], block_cols))
        return typed;
    if (by_row && !block_rows && s->n_dims == t->n_dims && t->dims[cols] % s->dims[cols] == 0) {
        m->block_rows = 1;
        m->block_cols = (uint32_t)(t->dims[cols] / s->dims[cols]);
        return typed;
    }
    by_row = by_row && (s->n_dims == rows + 1 || s->dims[cols] == 1);
    if (!by_row && (s->n_items != 1 || rows > 0))
        return false;
    m->block_rows = by_row ? 1 : (uint32_t)t->dims[rows];
    m->block_cols = (uint32_t)t->dims[cols];
    return typed;
}

/* Presents the codes' tensor as one of n_items items, `times` as many in its last dimension. */
static void widen(struct moe_tensor *t, int n_dims, uint64_t times)
{
    t->n_dims = n_dims;
    t->dims[n_dims - 1] *= times;
    t->n_items = 1;
    for (int i = 0; i < MOE_MAX_TENSOR_DIMS; i++) {
        t->dims[i] = i < n_dims ? t->dims[i] : 0;
        t->n_items *= i < n_dims ? t->dims[i] : 1;
    }
}

/* Packed values [...][groups][16] and exponents [...][groups]. */
static int fit_mxfp4(struct joining *j)
{
    struct moe_tensor *t = &j->codes->tensor;
    const struct moe_tensor_entry *scales = j->parts[MOE_PART_SCALES];
    const struct moe_tensor *s = &scales->tensor;
    if (!is_type(scales, "U8") || t->n_dims < 2 || s->n_dims != t->n_dims - 1 || s->n_items == 0 ||
        t->n_items != t->bytes || s->n_items != s->bytes || t->n_items != 16 * s->n_items ||
        memcmp(t->dims, s->dims, (size_t)s->n_dims * sizeof *s->dims) != 0)
        return MOE_PART_SCALES;
    widen(t, t->n_dims - 1, 32);
    t->dtype = MOE_DTYPE_MXFP4;
    return FITS;
}

/* Whether a part has one number for all of n matrices, or one for each. */
static bool counts_for(const struct moe_tensor_entry *part, uint64_t n)
{
    const struct moe_ggml_type *type = part ? moe_dtype_block(part->tensor.dtype) : NULL;
    return type && type->items == 1 && (part->tensor.n_items == 1 || part->tensor.n_items == n);
}

/* Pairs of values [...][rows][cols / 2], and scales of E4M3 for 16 of them and a factor, perhaps
 * divided by another number (NVFP4), or exponents for 32. */
static int fit_fp4(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    struct moe_tensor *t = &m->tensor;
    const struct moe_tensor_entry *scales = j->parts[MOE_PART_SCALES];
    const struct moe_tensor_entry *factor = j->parts[MOE_PART_FACTOR];
    const struct moe_tensor_entry *divisor = j->parts[MOE_PART_DIVISOR];
    bool nv = is_type(scales, "F8_E4M3");
    uint64_t group = nv ? 16 : 32, block = nv ? 64 : 32;
    if (t->n_dims < 2 || t->n_items == 0 || t->dims[t->n_dims - 1] > UINT32_MAX / 2)
        return MOE_PART_SCALES;
    widen(t, t->n_dims, 2);
    uint64_t rows = t->dims[t->n_dims - 2], cols = t->dims[t->n_dims - 1];
    if (cols % block != 0 || (!nv && !is_type(scales, "U8") && !is_type(scales, "F8_E8M0")) ||
        !follows(&scales->tensor, t, 2, rows, cols / group))
        return MOE_PART_SCALES;
    if (nv && !counts_for(factor, t->n_items / rows / cols))
        return MOE_PART_FACTOR;
    if (divisor && !counts_for(divisor, t->n_items / rows / cols))
        return MOE_PART_DIVISOR;
    bool single =
        factor && factor->tensor.n_items == 1 && (!divisor || divisor->tensor.n_items == 1);
    m->block_rows = single ? 0 : (uint32_t)rows;
    m->form = nv ? MOE_FORM_NVFP4 : MOE_FORM_MXFP4;
    t->dtype = nv ? (enum moe_dtype)(1 + MOE_GGML_NVFP4_T) : MOE_DTYPE_MXFP4;
    return FITS;
}

/* The type of blocks of a scaled kind, if one holds them; else values. */
static void choose_scaled(struct moe_tensor_entry *m, uint16_t kind)
{
    struct moe_tensor *t = &m->tensor;
    uint32_t number = moe_ggml_scaled(kind, m->block_cols, t->dims[t->n_dims - 1]);
    t->dtype = number ? (enum moe_dtype)(1 + number) : MOE_DTYPE_F32;
}

/* With exponents as scales (MXFP8) these may be of groups, whatever blocks are said. */
static int fit_fp8(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    const struct moe_tensor *t = &m->tensor;
    const struct moe_tensor_entry *scales = j->parts[MOE_PART_SCALES];
    if (!fit_scales(m, scales, j->config->rows, j->config->cols) &&
        !(scales->tensor.dtype == MOE_DTYPE_OTHER && fit_scales(m, scales, 0, 0))) {
        m->block_rows = j->config->rows; /* for the message */
        m->block_cols = j->config->cols;
        return MOE_PART_SCALES;
    }
    bool by_panel = m->block_rows % MOE_PANEL_ROWS == 0 && m->block_cols < t->dims[t->n_dims - 1];
    choose_scaled(m, by_panel ? MOE_LAYOUT_F8_B : MOE_LAYOUT_F8);
    return FITS;
}

/* The type of codes' blocks, if a layout holds them: groups of a multiple of 32 columns, scales of
 * 16 bits, columns in their order. Values otherwise. */
static void choose_codes(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    struct moe_tensor *t = &m->tensor;
    uint64_t cols = t->dims[t->n_dims - 1];
    uint32_t bits = m->bits > 4 ? 8 : m->bits < 2 ? 2 : m->bits, items = 128;
    while (items > 16 && (m->block_cols % items != 0 || cols % items != 0))
        items /= 2;
    m->unsure_order =
        j->parts[MOE_PART_ORDER] && m->packing == MOE_PACKED_COLUMNS && !j->config->ordered;
    bool held = items >= 32 &&
                (m->scales_dtype == MOE_DTYPE_F16 || m->scales_dtype == MOE_DTYPE_BF16) &&
                (!j->parts[MOE_PART_ORDER] || m->unsure_order);
    t->dtype = held ? (enum moe_dtype)(1 + MOE_GGML_CODES + 1024 * bits + items) : MOE_DTYPE_F32;
}

static bool is_order(const struct moe_tensor_entry *order, uint64_t cols)
{
    return !order || (is_type(order, "I32") && order->tensor.n_items == cols);
}

/* Reads the last number of a shape. */
static uint64_t shape_cols(const struct joining *j)
{
    const struct moe_tensor *t = &j->shape->tensor;
    const struct moe_tensor_file *file = &j->files->files[t->file];
    uint64_t size = is_type(j->shape, "I64") ? 8 : is_type(j->shape, "I32") ? 4 : 0;
    uint8_t raw[8] = {0};
    struct moe_err ignored;
    if (size == 0 || t->n_items == 0 ||
        moe_file_pread(file->fd, file->path, raw, size, t->offset + t->bytes - size, &ignored) !=
            MOE_OK)
        return 0;
    return moe_get_u64(raw);
}

/* Words [...][rows][cols * bits / 32], scales for each row, zero points packed down the columns. */
static int fit_packed(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    struct moe_tensor *t = &m->tensor;
    const struct moe_tensor_entry *zeros = j->parts[MOE_PART_ZEROS];
    uint64_t words = t->n_dims >= 2 ? t->dims[t->n_dims - 1] : 0, cols;
    if (t->n_items == 0 || words == 0 || words > UINT32_MAX / 32)
        return MOE_PART_SCALES;
    m->bits = (uint8_t)(j->config->bits ? j->config->bits : 4);
    if (!j->config->bits && j->shape && (cols = shape_cols(j)) > 0 && words * 32 % cols == 0 &&
        words * 32 / cols <= 8)
        m->bits = (uint8_t)(words * 32 / cols);
    t->dims[t->n_dims - 1] = 1;
    widen(t, t->n_dims, words * 32 / m->bits);
    cols = t->dims[t->n_dims - 1];
    if (!fit_scales(m, j->parts[MOE_PART_SCALES], 0, 0))
        return MOE_PART_SCALES;
    uint64_t rows = t->dims[t->n_dims - 2];
    if (zeros && (!is_type(zeros, "I32") || m->block_rows != 1 ||
                  !follows(&zeros->tensor, t, 2, n_blocks(rows * m->bits, 32),
                           n_blocks(cols, m->block_cols))))
        return MOE_PART_ZEROS;
    if (!is_order(j->parts[MOE_PART_ORDER], cols))
        return MOE_PART_ORDER;
    m->packing = MOE_PACKED_ROWS;
    choose_codes(j);
    return FITS;
}

/* A signed byte for each weight; without zero points and with scales in f32 as FP8. */
static int fit_bytes(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    const struct moe_tensor *t = &m->tensor;
    const struct moe_tensor_entry *zeros = j->parts[MOE_PART_ZEROS];
    if (!fit_scales(m, j->parts[MOE_PART_SCALES], 0, 0))
        return MOE_PART_SCALES;
    if (zeros && (!is_type(zeros, "I8") || m->block_rows != 1 ||
                  !follows(&zeros->tensor, t, 2, t->dims[t->n_dims - 2],
                           n_blocks(t->dims[t->n_dims - 1], m->block_cols))))
        return MOE_PART_ZEROS;
    m->bits = 8;
    m->packing = MOE_PACKED_BYTES;
    choose_codes(j);
    if (!zeros && t->dtype == MOE_DTYPE_F32) {
        m->form = MOE_FORM_BYTES;
        choose_scaled(m, MOE_LAYOUT_I8);
    }
    return FITS;
}

/* LLM.int8 of bitsandbytes: signed bytes, of each row what 127 stands for, and a number that says
 * how the bytes lie, 0: in rows. */
static int fit_llm_int8(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    const struct moe_tensor_entry *scales = j->parts[MOE_PART_SCALES];
    uint8_t format = 0;
    struct moe_err ignored;
    if (m->tensor.n_dims != 2 || scales->tensor.dtype != MOE_DTYPE_F32 ||
        !fit_scales(m, scales, 0, 0) || m->block_rows != 1)
        return MOE_PART_SCALES;
    if (j->shape) {
        const struct moe_tensor *f = &j->shape->tensor;
        const struct moe_tensor_file *file = &j->files->files[f->file];
        if (!is_type(j->shape, "U8") || f->bytes != 1 ||
            moe_file_pread(file->fd, file->path, &format, 1, f->offset, &ignored) != MOE_OK ||
            format != 0)
            return MOE_N_PARTS;
    }
    m->by_127 = true;
    choose_scaled(m, MOE_LAYOUT_I8);
    return FITS;
}

/* GPTQ: words [inputs * bits / 32][outputs]; AWQ: words [inputs][outputs / 8]. Of both scales
 * [groups][outputs], zero points [groups][outputs * bits / 32]. */
static int fit_gptq(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    struct moe_tensor *t = &m->tensor;
    const struct moe_tensor *s = &j->parts[MOE_PART_SCALES]->tensor;
    const struct moe_tensor_entry *zeros = j->parts[MOE_PART_ZEROS];
    const struct moe_ggml_type *type = moe_dtype_block(s->dtype);
    if (t->n_dims != 2 || t->n_items == 0 || s->n_dims != 2 || s->n_items == 0 || !type ||
        type->items != 1)
        return MOE_PART_SCALES;
    uint64_t outputs = s->dims[1], groups = s->dims[0], inputs = t->dims[0];
    if (!zeros || !is_type(zeros, "I32") || zeros->tensor.n_dims != 2 ||
        zeros->tensor.dims[0] != groups || zeros->tensor.dims[1] == 0 ||
        zeros->tensor.dims[1] > UINT32_MAX / 32 || zeros->tensor.dims[1] * 32 % outputs != 0)
        return MOE_PART_ZEROS;
    uint64_t bits = zeros->tensor.dims[1] * 32 / outputs;
    bool awq = t->dims[1] != outputs && bits == 4 && t->dims[1] * 8 == outputs;
    if (!awq && (bits > 8 || (bits != 8 && bits > 4) || bits < 2 || t->dims[1] != outputs))
        return bits > 8 || bits < 2 ? MOE_PART_ZEROS : MOE_PART_SCALES;
    if (inputs > UINT32_MAX / 32 || outputs > UINT32_MAX || (!awq && inputs * 32 % bits != 0))
        return MOE_PART_SCALES;
    inputs = awq ? inputs : inputs * 32 / bits;
    uint64_t group = j->config->group;
    if (group == 0 || n_blocks(inputs, group) != groups)
        group = inputs % groups == 0 ? inputs / groups : 0;
    if (group == 0)
        return MOE_PART_SCALES;
    if (!is_order(j->parts[MOE_PART_ORDER], inputs))
        return MOE_PART_ORDER;
    *t = (struct moe_tensor){t->name,          t->dtype, 2,       {outputs, inputs},
                             outputs * inputs, t->bytes, t->file, t->offset};
    m->bits = (uint8_t)bits;
    m->packing = awq ? MOE_PACKED_AWQ : MOE_PACKED_COLUMNS;
    m->zeros_less = !awq && j->config->zeros_less;
    m->block_cols = (uint32_t)group;
    m->scales_dtype = s->dtype;
    choose_codes(j);
    return FITS;
}

/* bitsandbytes: two values a byte, the first in the high bits, in rows one after the other; the
 * shape and the sizes of blocks are in a JSON text. */
static bool read_state(struct joining *j, const char *path, const json_t *json)
{
    struct moe_tensor_entry *m = j->codes;
    struct moe_tensor *t = &m->tensor;
    const json_t *shape = json_object_get(json, "shape");
    const char *nested = json_object_get(json, "nested_blocksize") ? "nested_blocksize" : NULL;
    double offset = 0;
    uint64_t n = 1, n_dims = json_array_size(shape);
    if (moe_json_get_u32(path, json, "blocksize", INT32_MAX, true, &m->block_cols, NULL) ||
        (nested && moe_json_get_u32(path, json, nested, INT32_MAX, true, &m->block_rows, NULL)) ||
        moe_json_get_double(path, json, "nested_offset", nested != NULL, &offset, NULL) ||
        m->block_cols == 0 || (nested && m->block_rows == 0) || n_dims < 2 ||
        n_dims > MOE_MAX_TENSOR_DIMS)
        return false;
    uint64_t dims[MOE_MAX_TENSOR_DIMS] = {0};
    for (uint64_t i = 0; i < n_dims; i++) {
        json_int_t dim = json_integer_value(json_array_get(shape, i));
        dims[i] = dim > 0 ? (uint64_t)dim : 0;
        if (dim <= 0 || !moe_mul_u64(n, dims[i], &n))
            return false;
    }
    if (n_blocks(n, 2) != t->n_items)
        return false;
    t->n_items = n;
    t->n_dims = (int)n_dims;
    memcpy(t->dims, dims, sizeof dims);
    m->offset = (float)offset;
    return true;
}

static bool is_table(const struct moe_tensor_entry *table, uint64_t n)
{
    return table && table->tensor.dtype == MOE_DTYPE_F32 && table->tensor.n_items == n;
}

static bool has_numbers(const struct joining *j, const float numbers[16])
{
    const struct moe_tensor *t = &j->parts[MOE_PART_TABLE]->tensor;
    const struct moe_tensor_file *file = &j->files->files[t->file];
    uint8_t table[16 * 4];
    struct moe_err ignored;
    bool same =
        moe_file_pread(file->fd, file->path, table, sizeof table, t->offset, &ignored) == MOE_OK;
    for (int i = 0; i < 16; i++)
        same = same && moe_get_u32(table + 4 * i) == moe_f32_bits(numbers[i]);
    return same;
}

/* The type of blocks, where the table is one that a layout has, and rows of 32 columns at least
 * share a scale. */
static void choose_table(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    uint64_t cols = m->tensor.dims[m->tensor.n_dims - 1], both = cols | m->block_cols;
    uint16_t kind = has_numbers(j, moe_nf4_numbers)   ? MOE_LAYOUT_NF4
                    : has_numbers(j, moe_fp4_numbers) ? MOE_LAYOUT_FP4
                                                      : MOE_LAYOUT_NONE;
    uint32_t number = kind ? moe_ggml_scaled(kind, both & (0 - both), cols) : 0;
    m->tensor.dtype = number ? (enum moe_dtype)(1 + number) : MOE_DTYPE_F32;
}

static int fit_table(struct joining *j)
{
    struct moe_tensor_entry *m = j->codes;
    const struct moe_tensor_entry *scales = j->parts[MOE_PART_SCALES];
    const struct moe_tensor_entry *nested = j->parts[MOE_PART_SCALE_SCALES];
    uint8_t text[MAX_STATE_BYTES];
    json_t *json = NULL;
    struct moe_err ignored;
    if (!j->state || j->state->tensor.bytes > sizeof text)
        return MOE_N_PARTS;
    const struct moe_tensor *s = &j->state->tensor;
    const struct moe_tensor_file *file = &j->files->files[s->file];
    bool good =
        moe_file_pread(file->fd, file->path, text, s->bytes, s->offset, &ignored) == MOE_OK &&
        moe_json_parse(&json, file->path, text, s->bytes, MOE_JSON_CONFIG_MEMORY, &ignored) ==
            MOE_OK &&
        read_state(j, file->path, json);
    moe_json_free(json);
    if (!good)
        return MOE_N_PARTS;
    uint64_t blocks = n_blocks(m->tensor.n_items, m->block_cols);
    bool in_table = is_type(scales, "U8");
    if ((!in_table && scales->tensor.dtype != MOE_DTYPE_F32) || scales->tensor.n_items != blocks)
        return MOE_PART_SCALES;
    if (in_table && !is_table(nested, m->block_rows ? n_blocks(blocks, m->block_rows) : 0))
        return MOE_PART_SCALE_SCALES;
    if (in_table && !is_table(j->parts[MOE_PART_SCALE_TABLE], 256))
        return MOE_PART_SCALE_TABLE;
    if (!is_table(j->parts[MOE_PART_TABLE], 16))
        return MOE_PART_TABLE;
    m->scales_dtype = scales->tensor.dtype;
    choose_table(j);
    return FITS;
}

/* ---- The table ---- */

/* How a quantizer names the tensors of a matrix. A way is taken where a tensor of this type has a
 * name that ends so, and the one that `sure` names lies beside it. */
struct tensor_way {
    const char *name;
    enum moe_tensor_form form;
    const char *type, *end;     /* of the tensor with the codes */
    const char *rest;           /* the end of the matrix's own name in place of that */
    const char *sure, *or_sure; /* or this one, with which `zeros` may not be missing */
    int (*fit)(struct joining *j);
    /* Ends of names in place of the codes', of parts and of what is left out. */
    const char *scales[2], *zeros, *order, *factor, *shape, *state[2];
    bool inverse; /* the factor divides */
};

static const struct tensor_way ways[] = {
    {.name = "MXFP4",
     .form = MOE_FORM_MXFP4,
     .type = "U8",
     .end = "_blocks",
     .rest = "",
     .sure = "_scales",
     .fit = fit_mxfp4,
     .scales = {"_scales"}},
    {.name = "compressed-tensors",
     .form = MOE_FORM_CODES,
     .type = "I32",
     .end = "_packed",
     .rest = "",
     .fit = fit_packed,
     .scales = {"_scale"},
     .zeros = "_zero_point",
     .order = "_g_idx",
     .shape = "_shape"},
    {.name = "compressed-tensors",
     .form = MOE_FORM_NVFP4,
     .type = "U8",
     .end = "_packed",
     .rest = "",
     .fit = fit_fp4,
     .scales = {"_scale"},
     .factor = "_global_scale",
     .shape = "_shape",
     .inverse = true},
    {.name = "GPTQ",
     .form = MOE_FORM_CODES,
     .type = "I32",
     .end = ".qweight",
     .rest = ".weight",
     .fit = fit_gptq,
     .scales = {".scales"},
     .zeros = ".qzeros",
     .order = ".g_idx"},
    {.name = "FP8",
     .form = MOE_FORM_FP8,
     .type = "F8_E4M3",
     .end = "",
     .rest = "",
     .fit = fit_fp8,
     .scales = {"_scale_inv", "_scale"}},
    {.name = "LLM.int8",
     .form = MOE_FORM_BYTES,
     .type = "I8",
     .end = ".weight",
     .rest = ".weight",
     .sure = ".SCB",
     .fit = fit_llm_int8,
     .scales = {".SCB"},
     .shape = ".weight_format"},
    {.name = "INT8",
     .form = MOE_FORM_CODES,
     .type = "I8",
     .end = "",
     .rest = "",
     .sure = "_scale",
     .fit = fit_bytes,
     .scales = {"_scale"},
     .zeros = "_zero_point"},
    {.name = "NVFP4",
     .form = MOE_FORM_NVFP4,
     .type = "U8",
     .end = "",
     .rest = "",
     .sure = "_scale_2",
     .fit = fit_fp4,
     .scales = {"_scale"},
     .factor = "_scale_2"},
    /* Inkling-2's experts */
    {.name = "NVFP4",
     .form = MOE_FORM_NVFP4,
     .type = "U8",
     .end = "",
     .rest = "",
     .sure = "_outer_scale_denominator",
     .or_sure = "_amax",
     .fit = fit_fp4,
     .scales = {"_scale"},
     .zeros = "_outer_scale_denominator",
     .factor = "_amax"},
    {.name = "bitsandbytes",
     .form = MOE_FORM_TABLE,
     .type = "U8",
     .end = "",
     .rest = "",
     .sure = ".absmax",
     .fit = fit_table,
     .scales = {".absmax"},
     .zeros = ".nested_absmax",
     .order = ".quant_map",
     .factor = ".nested_quant_map",
     .state = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"}},
};

enum { N_WAYS = sizeof ways / sizeof ways[0] };

/* Tensors beside a matrix NAME.weight that say how its inputs and outputs were rounded, which they
 * are not here. */
static const char *const left_out[] = {".input_scale", ".input_global_scale", ".input_zero_point",
                                       ".k_scale", ".v_scale"};

/* The end of a part's name: the first of those it may have. */
static const char *part_end(const struct tensor_way *way, int part)
{
    const char *said = way->state[0] ? way->state[0] : way->shape;
    const char *const ends[] = {way->scales[0], way->zeros, way->order, way->factor, said};
    return ends[part];
}

/* ---- Joining ---- */

static void drop_entry(const struct moe_tensor_list *list, const struct moe_tensor_entry *entry,
                       bool *dropped)
{
    if (entry)
        dropped[entry - list->items] = true;
}

static const struct tensor_way *find_way(const struct moe_tensor_list *list,
                                         const struct moe_tensor_entry *codes)
{
    const char *name = codes->tensor.name;
    for (int i = 0; i < N_WAYS; i++) {
        const struct tensor_way *way = &ways[i];
        size_t cut = strlen(way->end);
        char joined[NAME_BYTES];
        if (is_type(codes, way->type) && moe_ends_with(name, way->end) &&
            (!way->sure || entry_beside(list, name, cut, way->sure) ||
             (way->or_sure && entry_beside(list, name, cut, way->or_sure))) &&
            other_name(name, cut, way->rest, joined) &&
            (strcmp(way->end, way->rest) == 0 || moe_tensor_list_find(list, joined) < 0))
            return way;
    }
    return NULL;
}

/* Finds the parts, sees whether they fit, and notes what is dropped. */
static void join(struct joining *j, const struct tensor_way *way, bool *dropped)
{
    const struct moe_tensor_list *list = &j->files->list;
    struct moe_tensor_entry *m = j->codes;
    const char *name = m->tensor.name;
    size_t cut = strlen(way->end), weight = strlen(".weight");
    const char *const ends[] = {NULL, way->zeros, way->order, way->factor};
    for (int i = 0; i < 2 && way->scales[i] && !j->parts[MOE_PART_SCALES]; i++)
        j->parts[MOE_PART_SCALES] = entry_beside(list, name, cut, way->scales[i]);
    for (int i = 1; i < MOE_N_PARTS; i++)
        j->parts[i] = ends[i] ? entry_beside(list, name, cut, ends[i]) : NULL;
    j->shape = way->shape ? entry_beside(list, name, cut, way->shape) : NULL;
    for (int i = 0; i < 2 && way->state[i] && !j->state; i++)
        j->state = entry_beside(list, name, cut, way->state[i]);
    m->way = way;
    m->form = way->form;
    m->inverse = way->inverse;
    int misfit = !j->parts[MOE_PART_SCALES]                    ? MOE_PART_SCALES
                 : way->or_sure && !j->parts[MOE_PART_DIVISOR] ? MOE_PART_DIVISOR
                                                               : way->fit(j);
    if (misfit != FITS) {
        m->misfit = part_end(way, misfit);
        m->tensor.dtype = MOE_DTYPE_OTHER;
        return;
    }
    for (int i = 0; i < MOE_N_PARTS; i++) {
        const struct moe_tensor_entry *part = j->parts[i];
        if (!part)
            continue;
        m->parts[i].there = true;
        m->parts[i].single = part->tensor.n_items == 1;
        m->parts[i].dtype = part->tensor.dtype;
        m->parts[i].file = part->tensor.file;
        m->parts[i].offset = part->tensor.offset;
        m->tensor.bytes += part->tensor.bytes;
        drop_entry(list, part, dropped);
    }
    drop_entry(list, j->shape, dropped);
    drop_entry(list, j->state, dropped);
    char joined[NAME_BYTES];
    if (other_name(name, cut, way->rest, joined) && moe_ends_with(joined, ".weight"))
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
            drop_entry(list, entry_beside(list, joined, weight, left_out[i]), dropped);
}

/* Drops tensors, and gives matrices their own names, which are no longer than those they had. */
static void rename_and_drop(struct moe_tensor_list *list, const bool *dropped)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < list->n; i++) {
        struct moe_tensor_entry *entry = &list->items[i];
        char *name = (char *)entry->tensor.name;
        if (dropped[i]) {
            free(name);
            continue;
        }
        if (entry->way)
            strcpy(name + strlen(name) - strlen(entry->way->end), entry->way->rest);
        list->items[kept++] = *entry;
    }
    list->n = kept;
}

int moe_tensor_pairs_join(struct moe_tensor_files *files, const char *dir, struct moe_err *err)
{
    struct moe_tensor_list *list = &files->list;
    struct quantization config = {0};
    int status = MOE_OK;
    bool read = false, *dropped = moe_alloc(list->n, sizeof *dropped, err);
    if (!dropped)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < list->n && status == MOE_OK; i++) {
        struct joining j = {.files = files, .config = &config, .codes = &list->items[i]};
        const struct tensor_way *way = find_way(list, j.codes);
        if (!way)
            continue;
        if (!read)
            status = read_quantization(&config, dir, err);
        read = true;
        if (status == MOE_OK)
            join(&j, way, dropped);
    }
    if (status == MOE_OK) {
        rename_and_drop(list, dropped);
        moe_tensor_list_sort(list); /* shorter names sort elsewhere */
    }
    free(dropped);
    return status;
}

/* ---- Reading ---- */

/* Reads n bytes of a part, from byte `first` on. */
static int read_part(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                     int part, uint64_t first, uint64_t n, void *out, struct moe_err *err)
{
    const struct moe_tensor_file *file = &files->files[m->parts[part].file];
    return moe_file_pread(file->fd, file->path, out, n, m->parts[part].offset + first, err);
}

/* Reads lines of n bytes, each from byte `first` of `stride` on; part -1: of the codes. */
static int read_lines(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                      int part, uint64_t lines, uint64_t stride, uint64_t first, uint64_t n,
                      uint8_t *out, struct moe_err *err)
{
    int number = part < 0 ? m->tensor.file : m->parts[part].file;
    const struct moe_tensor_file *file = &files->files[number];
    uint64_t offset = part < 0 ? m->tensor.offset : m->parts[part].offset;
    if (n == stride)
        return moe_file_pread(file->fd, file->path, out, lines * n, offset, err);
    for (uint64_t i = 0; i < lines; i++)
        MOE_TRY(
            moe_file_pread(file->fd, file->path, out + i * n, n, offset + i * stride + first, err));
    return MOE_OK;
}

/* E4M3 without infinities: f16's exponent, 256 times smaller. */
static float e4m3(uint8_t code)
{
    uint16_t half = (uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7);
    return (code & 0x7f) == 0x7f ? NAN : moe_f16_to_f32(half) * 256;
}

/* Assembles blocks from packed values and exponents. */
static int read_mxfp4(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                      uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    enum { STEP = 1024, PACKED = 16, BLOCK = 17 };
    const struct moe_tensor_file *values = &files->files[m->tensor.file];
    uint8_t packed[STEP * PACKED], exponents[STEP];
    for (uint64_t some; n > 0; first += some, out += some * BLOCK, n -= some) {
        some = n < STEP ? n : STEP;
        MOE_TRY(moe_file_pread(values->fd, values->path, packed, some * PACKED,
                               m->tensor.offset + first * PACKED, err));
        MOE_TRY(read_part(files, m, MOE_PART_SCALES, first, some, exponents, err));
        for (uint64_t i = 0; i < some; i++) {
            out[i * BLOCK] = exponents[i];
            moe_ggml_from_pairs(packed + i * PACKED, 16, out + i * BLOCK + 1);
        }
    }
    return MOE_OK;
}

/* A scale of 16 values may be negative, which the block's cannot: the values are, then. One that is
 * no number makes the factor none. */
static void take_nvfp4_scale(uint8_t *scale, uint8_t *pairs, float *factor)
{
    if ((*scale & 0x7f) == 0x7f)
        *factor = NAN;
    for (int i = 0; i < 8 && *scale & 0x80; i++)
        pairs[i] ^= 0x88;
    *scale &= 0x7f;
}

/* Reads the number that a part has for a matrix, of any floating type. */
static int read_number(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                       int part, uint64_t matrix, float *out, struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(m->parts[part].dtype);
    uint64_t at = m->parts[part].single ? 0 : matrix;
    uint8_t raw[8];
    MOE_TRY(read_part(files, m, part, at * type->bytes, type->bytes, raw, err));
    moe_ggml_decode(type, raw, 1, out);
    return MOE_OK;
}

/* What the scales of a matrix are multiplied by. */
static int read_factor(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                       uint64_t matrix, float *out, struct moe_err *err)
{
    float divisor = 1;
    MOE_TRY(read_number(files, m, MOE_PART_FACTOR, matrix, out, err));
    if (m->parts[MOE_PART_DIVISOR].there)
        MOE_TRY(read_number(files, m, MOE_PART_DIVISOR, matrix, &divisor, err));
    *out = m->inverse ? 1 / *out : *out / divisor;
    return MOE_OK;
}

static int read_nvfp4(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                      uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    enum { STEP = 512, PACKED = 32, SCALES = 4, BLOCK = 40 };
    const struct moe_tensor *t = &m->tensor;
    const struct moe_tensor_file *values = &files->files[t->file];
    uint64_t per_row = t->dims[t->n_dims - 1] / 64;
    uint8_t packed[STEP * PACKED], scales[STEP * SCALES];
    float whole;
    for (uint64_t some; n > 0; first += some, n -= some) {
        uint64_t matrix = m->block_rows ? first / per_row / m->block_rows : 0;
        uint64_t left = m->block_rows ? (matrix + 1) * m->block_rows * per_row - first : n;
        some = n < STEP ? n : STEP;
        some = some < left ? some : left;
        MOE_TRY(moe_file_pread(values->fd, values->path, packed, some * PACKED,
                               t->offset + first * PACKED, err));
        MOE_TRY(read_part(files, m, MOE_PART_SCALES, first * SCALES, some * SCALES, scales, err));
        MOE_TRY(read_factor(files, m, matrix, &whole, err));
        for (uint64_t i = 0; i < some; i++, out += BLOCK) {
            float factor = whole;
            for (int k = 0; k < SCALES; k++) {
                uint8_t *pairs = packed + i * PACKED + 8 * k;
                take_nvfp4_scale(&scales[i * SCALES + (uint64_t)k], pairs, &factor);
                moe_ggml_from_pairs(pairs, 8, out + 4 + 8 * k);
            }
            memcpy(out, scales + i * SCALES, SCALES);
            moe_put_u32(out + 36, moe_f32_bits(factor));
        }
    }
    return MOE_OK;
}

enum { MAX_SCALES = 1024 };

/* v of a code that has no place in a block. */
static float scaled_value(const struct moe_tensor_entry *m, uint8_t code)
{
    return m->form == MOE_FORM_FP8 ? e4m3(code) : (float)(int8_t)code;
}

/* Scales as f32, from `raw`. */
static void decode_scales(const struct moe_tensor_entry *m, const uint8_t *raw, uint64_t n,
                          float *out)
{
    const struct moe_ggml_type *type = moe_dtype_block(m->scales_dtype);
    if (type)
        moe_ggml_decode(type, raw, n, out);
    for (uint64_t i = 0; i < n && !type; i++)
        out[i] = raw[i] == 0xff ? NAN : ldexpf(1, raw[i] - 127);
    for (uint64_t i = 0; i < n && m->by_127; i++)
        out[i] *= 1.0f / 127;
}

static uint64_t scale_bytes(const struct moe_tensor_entry *m)
{
    const struct moe_ggml_type *type = moe_dtype_block(m->scales_dtype);
    return type ? type->bytes : 1;
}

/* Blocks, or values, of a scaled kind: codes a byte each, and a scale for each block of rows and
 * columns. */
static int read_scaled(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                       uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    const struct moe_tensor *t = &m->tensor;
    const struct moe_tensor_file *file = &files->files[t->file];
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    uint64_t rows = t->dims[t->n_dims - 2], cols = t->dims[t->n_dims - 1], size = scale_bytes(m);
    uint64_t row_blocks = n_blocks(rows, m->block_rows), items = type->items;
    uint64_t col_blocks = n_blocks(cols, m->block_cols), held = UINT64_MAX, n_held = 0;
    float scales[MAX_SCALES];
    uint8_t raw[MAX_SCALES * sizeof(float)];
    uint8_t *codes = out + n * type->bytes - n * items; /* the end: blocks grow towards it */
    MOE_TRY(moe_file_pread(file->fd, file->path, codes, n * items, t->offset + first * items, err));
    for (uint64_t done = 0, some; done < n * items; done += some) {
        uint64_t row = (first * items + done) / cols, col = (first * items + done) % cols;
        uint64_t block = col / m->block_cols;
        uint64_t here = col_blocks - block < MAX_SCALES ? col_blocks - block : MAX_SCALES;
        uint64_t end =
            (block + here) * m->block_cols < cols ? (block + here) * m->block_cols : cols;
        uint64_t scale =
            (row / rows * row_blocks + row % rows / m->block_rows) * col_blocks + block;
        some = end - col < n * items - done ? end - col : n * items - done;
        if (scale != held || here != n_held) {
            MOE_TRY(read_part(files, m, MOE_PART_SCALES, scale * size, here * size, raw, err));
            decode_scales(m, raw, here, scales);
        }
        held = scale;
        n_held = here;
        for (uint64_t i = 0; i < some; i += items, out += type->bytes) {
            float of = scales[(col + i) / m->block_cols - block];
            if (items == 1)
                of *= scaled_value(m, codes[done + i]);
            else
                memmove(out + 4, codes + done + i, items);
            memcpy(out, &of, sizeof of);
        }
    }
    return MOE_OK;
}

/* ---- Whole numbers ---- */

/* Rows [row, row + n) of one matrix, unpacked. */
struct rows {
    const struct moe_tensor_entry *m;
    uint64_t row, n, cols, groups;
    uint8_t *words, *codes; /* as in the file; [n][cols] */
    uint8_t *raw;           /* scales or zero points as in the file */
    uint32_t *order;        /* the group of a column; NULL: in turn */
    float *scales;          /* [n][groups] */
    uint16_t *zeros;        /* likewise */
};

/* The code of `bits` bits at bit `at` of a stream of words that lie `stride` words apart. */
static inline uint32_t code_at(const uint8_t *words, uint64_t stride, uint64_t at, uint32_t bits)
{
    uint64_t i = at / 32;
    uint32_t from = at % 32, code = moe_get_u32(words + 4 * i * stride) >> from;
    if (from + bits > 32)
        code |= moe_get_u32(words + 4 * (i + 1) * stride) << (32 - from);
    return code & ((1u << bits) - 1);
}

/* AWQ's place of a row in its word of eight. */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Words of a line that hold rows [row, row + n), `bits` bits each: the first, and how many. */
static uint64_t words_of(const struct rows *r, uint32_t bits, uint64_t *first)
{
    *first = r->row * bits / 32;
    return n_blocks((r->row + r->n) * bits, 32) - *first;
}

static void unpack_row(const struct rows *r, uint64_t i, uint8_t *codes)
{
    const struct moe_tensor_entry *m = r->m;
    uint32_t bits = m->bits;
    uint64_t first, n_words = words_of(r, 4, &first), row = r->row + i;
    switch (m->packing) {
    case MOE_PACKED_ROWS: {
        const uint8_t *words = r->words + i * n_blocks(r->cols * bits, 32) * 4;
        for (uint64_t c = 0; c < r->cols; c++)
            codes[c] = (uint8_t)code_at(words, 1, c * bits, bits);
        break;
    }
    case MOE_PACKED_COLUMNS:
        for (uint64_t c = 0; c < r->cols; c++)
            codes[c] = (uint8_t)code_at(r->words + 4 * i, r->n, c * bits, bits);
        break;
    case MOE_PACKED_AWQ:
        for (uint64_t c = 0; c < r->cols; c++)
            codes[c] = moe_get_u32(r->words + 4 * (c * n_words + row / 8 - first)) >>
                           4 * awq_place[row % 8] &
                       15;
        break;
    case MOE_PACKED_BYTES:
        for (uint64_t c = 0; c < r->cols; c++)
            codes[c] = r->words[i * r->cols + c] ^ 0x80;
        break;
    }
}

static void unpack_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct rows *r = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        unpack_row(r, (uint64_t)i, r->codes + (uint64_t)i * r->cols);
}

/* Bytes of the file that hold the codes of n rows. */
static uint64_t packed_bytes(const struct moe_tensor_entry *m, uint64_t n, uint64_t cols)
{
    switch (m->packing) {
    case MOE_PACKED_COLUMNS:
        return n_blocks(cols * m->bits, 32) * n * 4;
    case MOE_PACKED_AWQ:
        return cols * (n / 8 + 2) * 4;
    case MOE_PACKED_ROWS:
        return n * n_blocks(cols * m->bits, 32) * 4;
    default:
        return n * cols;
    }
}

static int read_packed(const struct moe_tensor_files *files, struct rows *r, struct moe_err *err)
{
    const struct moe_tensor_entry *m = r->m;
    const struct moe_tensor_file *file = &files->files[m->tensor.file];
    uint64_t outputs = m->tensor.dims[0], first, n_words = words_of(r, 4, &first);
    uint64_t row_bytes = packed_bytes(m, 1, r->cols);
    int status = MOE_OK;
    if (m->packing == MOE_PACKED_COLUMNS)
        status = read_lines(files, m, -1, n_blocks(r->cols * m->bits, 32), outputs * 4, r->row * 4,
                            r->n * 4, r->words, err);
    else if (m->packing == MOE_PACKED_AWQ)
        status =
            read_lines(files, m, -1, r->cols, outputs / 2, first * 4, n_words * 4, r->words, err);
    else
        status = moe_file_pread(file->fd, file->path, r->words, r->n * row_bytes,
                                m->tensor.offset + r->row * row_bytes, err);
    if (status == MOE_OK)
        moe_par_for((int64_t)r->n, MOE_PANEL_ROWS, unpack_rows, r);
    return status;
}

/* Scales of the rows: [rows][groups], one for all, or [groups][rows]. */
static int read_row_scales(const struct moe_tensor_files *files, struct rows *r,
                           struct moe_err *err)
{
    const struct moe_tensor_entry *m = r->m;
    uint64_t size = scale_bytes(m), rows = m->tensor.dims[0], n = r->n * r->groups;
    bool across = m->packing == MOE_PACKED_COLUMNS || m->packing == MOE_PACKED_AWQ;
    if (across) {
        MOE_TRY(read_lines(files, m, MOE_PART_SCALES, r->groups, rows * size, r->row * size,
                           r->n * size, r->raw, err));
        for (uint64_t g = 0; g < r->groups; g++)
            for (uint64_t i = 0; i < r->n; i++)
                decode_scales(m, r->raw + (g * r->n + i) * size, 1, &r->scales[i * r->groups + g]);
        return MOE_OK;
    }
    if (m->block_rows == 1) {
        MOE_TRY(
            read_part(files, m, MOE_PART_SCALES, r->row * r->groups * size, n * size, r->raw, err));
        decode_scales(m, r->raw, n, r->scales);
        return MOE_OK;
    }
    MOE_TRY(read_part(files, m, MOE_PART_SCALES, 0, size, r->raw, err));
    decode_scales(m, r->raw, 1, r->scales);
    for (uint64_t i = 1; i < n; i++)
        r->scales[i] = r->scales[0];
    return MOE_OK;
}

/* Zero points of the rows; where there are none, of signed numbers. */
static int read_zeros(const struct moe_tensor_files *files, struct rows *r, struct moe_err *err)
{
    const struct moe_tensor_entry *m = r->m;
    const uint32_t bits = m->bits;
    uint64_t all = m->tensor.dims[m->tensor.n_dims - 2], n = r->n * r->groups, first;
    uint64_t in = r->row % all, line = n_blocks(all * bits, 32); /* words of a line of rows */
    struct rows local = *r;
    local.row = in; /* in its matrix of a stack */
    uint64_t n_words = words_of(&local, bits, &first);
    if (!m->parts[MOE_PART_ZEROS].there) {
        for (uint64_t i = 0; i < n; i++)
            r->zeros[i] = (uint16_t)(1u << (bits - 1));
        return MOE_OK;
    }
    if (m->packing == MOE_PACKED_BYTES) {
        MOE_TRY(read_part(files, m, MOE_PART_ZEROS, r->row * r->groups, n, r->raw, err));
        for (uint64_t i = 0; i < n; i++)
            r->zeros[i] = r->raw[i] ^ 0x80;
        return MOE_OK;
    }
    bool down = m->packing == MOE_PACKED_ROWS;
    if (down)
        MOE_TRY(read_part(files, m, MOE_PART_ZEROS, (r->row / all * line + first) * r->groups * 4,
                          n_words * r->groups * 4, r->raw, err));
    else
        MOE_TRY(read_lines(files, m, MOE_PART_ZEROS, r->groups, line * 4, first * 4, n_words * 4,
                           r->raw, err));
    for (uint64_t i = 0; i < r->n; i++)
        for (uint64_t g = 0; g < r->groups; g++) {
            uint64_t at = (in + i) * bits - first * 32;
            uint32_t zero = 0;
            if (m->packing == MOE_PACKED_AWQ)
                zero = moe_get_u32(r->raw + 4 * (g * n_words + at / 32)) >>
                           4 * awq_place[(in + i) % 8] &
                       15;
            else
                zero = down ? code_at(r->raw + 4 * g, r->groups, at, bits)
                            : code_at(r->raw + 4 * g * n_words, 1, at, bits);
            r->zeros[i * r->groups + g] = (uint16_t)(zero + m->zeros_less);
        }
    return MOE_OK;
}

/* Reads which group each column belongs to. */
static int read_order(const struct moe_tensor_files *files, struct rows *r, struct moe_err *err)
{
    const struct moe_tensor_entry *m = r->m;
    if (!m->parts[MOE_PART_ORDER].there)
        return MOE_OK;
    MOE_TRY(read_part(files, m, MOE_PART_ORDER, 0, 4 * r->cols, r->order, err));
    bool good = true, in_turn = true;
    for (uint64_t c = 0; c < r->cols; c++) {
        r->order[c] = moe_get_u32((const uint8_t *)&r->order[c]);
        good = good && r->order[c] < r->groups;
        in_turn = in_turn && r->order[c] == c / m->block_cols;
    }
    const char *path = files->files[m->parts[MOE_PART_ORDER].file].path;
    if (!good)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s': its 'g_idx' names a group that it does not have",
                        path, m->tensor.name);
    if (m->unsure_order && !in_turn)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s': its columns are in an order of their own ('g_idx'), "
                        "which config.json does not say (\"desc_act\": true in "
                        "'quantization_config')",
                        path, m->tensor.name);
    return MOE_OK;
}

static int rows_alloc(struct rows *r, uint64_t n, struct moe_err *err)
{
    const struct moe_tensor_entry *m = r->m;
    bool ordered = m->parts[MOE_PART_ORDER].there;
    r->words = moe_alloc(packed_bytes(m, n, r->cols), 1, err);
    r->codes = moe_alloc(n, r->cols, err);
    r->raw = moe_alloc(n + 64, r->groups * sizeof(float), err);
    r->scales = moe_alloc(n, r->groups * sizeof *r->scales, err);
    r->zeros = moe_alloc(n, r->groups * sizeof *r->zeros, err);
    r->order = ordered ? moe_alloc(r->cols, sizeof *r->order, err) : NULL;
    return r->words && r->codes && r->raw && r->scales && r->zeros && (!ordered || r->order)
               ? MOE_OK
               : MOE_ERR_MEMORY;
}

static void rows_release(struct rows *r)
{
    free(r->words);
    free(r->codes);
    free(r->raw);
    free(r->scales);
    free(r->zeros);
    free(r->order);
}

/* Blocks, or values, [first, first + n) of row i of the batch. */
static void put_codes(const struct rows *r, const struct moe_ggml_type *type, uint64_t i,
                      uint64_t first, uint64_t n, uint8_t *out)
{
    const uint8_t *codes = r->codes + i * r->cols;
    const float *scales = r->scales + i * r->groups;
    const uint16_t *zeros = r->zeros + i * r->groups;
    for (uint64_t b = first; b < first + n; b++, out += type->bytes) {
        uint64_t c = b * type->items, group = r->order ? r->order[c] : c / r->m->block_cols;
        if (type->items == 1) {
            float value = scales[group] * (float)((int)codes[c] - (int)zeros[group]);
            memcpy(out, &value, sizeof value);
            continue;
        }
        uint16_t d, word;
        if (!moe_zero_head(scales[group], zeros[group], &d, &word)) {
            d = 0x7e00; /* not a number, which conversion refuses */
            word = zeros[group];
        }
        moe_put_u16(out, d);
        moe_put_u16(out + 2, word);
        memcpy(out + 4, codes + c, type->items);
    }
}

static int read_codes(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                      uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    const struct moe_tensor *t = &m->tensor;
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    struct rows r = {.m = m, .cols = t->dims[t->n_dims - 1]};
    uint64_t per_row = r.cols / type->items, end = n_blocks(first + n, per_row);
    uint64_t in_matrix = t->dims[t->n_dims - 2];
    uint64_t most = BATCH_ITEMS / r.cols < end ? BATCH_ITEMS / r.cols : end;
    r.groups = n_blocks(r.cols, m->block_cols);
    r.row = first / per_row;
    most = most < end - r.row ? most : end - r.row;
    most = most ? most : 1;
    int status;
    MOE_STEP(rows_alloc(&r, most, err));
    MOE_STEP(read_order(files, &r, err));
    for (; r.row < end; r.row += r.n) {
        uint64_t here = in_matrix - r.row % in_matrix; /* left of a matrix of a stack */
        r.n = end - r.row < most ? end - r.row : most;
        r.n = r.n < here ? r.n : here;
        MOE_STEP(read_packed(files, &r, err));
        MOE_STEP(read_row_scales(files, &r, err));
        MOE_STEP(read_zeros(files, &r, err));
        for (uint64_t i = 0; i < r.n; i++) {
            uint64_t from = i == 0 && first > r.row * per_row ? first - r.row * per_row : 0;
            uint64_t row_end =
                (r.row + i + 1) * per_row < first + n ? per_row : first + n - (r.row + i) * per_row;
            put_codes(&r, type, i, from, row_end - from, out);
            out += (row_end - from) * type->bytes;
        }
    }
out:
    rows_release(&r);
    return status;
}

/* ---- Tables ---- */

/* Reads f32 numbers of a part. */
static int read_floats(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                       int part, uint64_t first, uint64_t n, float *out, struct moe_err *err)
{
    MOE_TRY(read_part(files, m, part, 4 * first, 4 * n, out, err));
    for (uint64_t i = 0; i < n; i++)
        out[i] = moe_bits_f32(moe_get_u32((const uint8_t *)&out[i]));
    return MOE_OK;
}

/* Scale of block b. */
static int read_table_scale(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                            const float table[256], uint64_t b, float *out, struct moe_err *err)
{
    uint8_t place;
    float own;
    if (m->scales_dtype == MOE_DTYPE_F32)
        return read_floats(files, m, MOE_PART_SCALES, b, 1, out, err);
    MOE_TRY(read_part(files, m, MOE_PART_SCALES, b, 1, &place, err));
    MOE_TRY(read_floats(files, m, MOE_PART_SCALE_SCALES, b / m->block_rows, 1, &own, err));
    *out = table[place] * own;
    *out += m->offset;
    return MOE_OK;
}

static int read_table(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                      uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    const struct moe_tensor_file *file = &files->files[m->tensor.file];
    const struct moe_ggml_type *type = moe_dtype_block(m->tensor.dtype);
    const uint64_t begin = first * type->items, end = (first + n) * type->items;
    float table[16], of_scales[256] = {0}, scale = 0;
    uint64_t held = UINT64_MAX, bytes = n_blocks(end, 2) - begin / 2;
    uint8_t *codes = out + n * type->bytes - bytes; /* the end of the blocks' memory */
    MOE_TRY(read_floats(files, m, MOE_PART_TABLE, 0, 16, table, err));
    if (m->scales_dtype != MOE_DTYPE_F32)
        MOE_TRY(read_floats(files, m, MOE_PART_SCALE_TABLE, 0, 256, of_scales, err));
    MOE_TRY(moe_file_pread(file->fd, file->path, codes, bytes, m->tensor.offset + begin / 2, err));
    for (uint64_t at = begin; at < end; at++) {
        uint64_t block = at / m->block_cols;
        uint8_t code = codes[at / 2 - begin / 2] >> (at % 2 ? 0 : 4) & 15;
        if (block != held)
            MOE_TRY(read_table_scale(files, m, of_scales, block, &scale, err));
        held = block;
        float value = type->items > 1 ? scale : table[code] * scale;
        if (at % type->items == 0) {
            memcpy(out, &value, sizeof value);
            out += sizeof value;
        }
        if (type->items > 1)
            *out++ = code;
    }
    return MOE_OK;
}

int moe_tensor_pairs_read(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                          uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    if (n == 0)
        return MOE_OK;
    switch (m->form) {
    case MOE_FORM_MXFP4:
        return read_mxfp4(files, m, first, n, out, err);
    case MOE_FORM_NVFP4:
        return read_nvfp4(files, m, first, n, out, err);
    case MOE_FORM_FP8:
    case MOE_FORM_BYTES:
        return read_scaled(files, m, first, n, out, err);
    case MOE_FORM_TABLE:
        return read_table(files, m, first, n, out, err);
    default:
        return read_codes(files, m, first, n, out, err);
    }
}

/* ---- Saying it ---- */

const char *moe_tensor_pairs_type(const struct moe_tensor_entry *m)
{
    static const char *const whole[] = {"INT1", "INT2", "INT3", "INT4",
                                        "INT5", "INT6", "INT7", "INT8"};
    switch (m->form) {
    case MOE_FORM_PLAIN:
        return NULL;
    case MOE_FORM_CODES:
        return whole[m->bits - 1];
    case MOE_FORM_BYTES:
        return "INT8";
    case MOE_FORM_TABLE:
        return m->tensor.dtype == MOE_DTYPE_F32 ? "NF4 or FP4"
                                                : moe_dtype_block(m->tensor.dtype)->name;
    case MOE_FORM_NVFP4:
        return "NVFP4";
    case MOE_FORM_MXFP4:
        return "MXFP4";
    default:
        return "FP8";
    }
}

int moe_tensor_pairs_refuse(const struct moe_tensor_files *files, const struct moe_tensor_entry *m,
                            struct moe_err *err)
{
    const char *path = files->files[m->tensor.file].path, *name = m->tensor.name;
    const struct tensor_way *way = m->way;
    size_t cut = strlen(way->rest);
    const struct moe_tensor_entry *part = entry_beside(&files->list, name, cut, m->misfit);
    char other[NAME_BYTES] = "?", either[NAME_BYTES] = "", dims[MOE_DIMS_BYTES],
         part_dims[MOE_DIMS_BYTES];
    if (!part && m->misfit == way->scales[0] && way->scales[1]) {
        part = entry_beside(&files->list, name, cut, way->scales[1]);
        other_name(name, cut, way->scales[1], either);
    }
    other_name(name, cut, m->misfit, other);
    moe_tensor_dims(&m->tensor, dims);
    if (!part)
        return moe_fail(
            err, MOE_ERR_FORMAT,
            "%s: tensor '%.200s' %s is quantized (%s), and its %s '%.200s'%s%.200s%s are "
            "missing",
            path, name, dims, way->name, m->misfit == way->scales[0] ? "scales" : "numbers", other,
            *either ? " or '" : "", either, *either ? "'" : "");
    moe_tensor_dims(&part->tensor, part_dims);
    if (m->form == MOE_FORM_FP8)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s' %s, of type %s, does not fit '%.200s' %s, whose "
                        "scales it should have: one for each block of %" PRIu32 " rows and %" PRIu32
                        " columns, each row, or all",
                        files->files[part->tensor.file].path, part->tensor.name, part_dims,
                        part->dtype_name, name, dims, m->block_rows, m->block_cols);
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: tensor '%.200s' %s, of type %s, does not fit '%.200s' %s, whose "
                    "quantization (%s) it belongs to",
                    files->files[part->tensor.file].path, part->tensor.name, part_dims,
                    part->dtype_name, name, dims, way->name);
}
