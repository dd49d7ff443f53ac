/* Matrices stored as two tensors: MXFP4, FP8 and INT4 values with their scales. */
#include "fmt/tensor_pairs.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "fmt/json.h"

enum { MAX_CONFIG_BYTES = 16 << 20, NAME_BYTES = 256 };

/* The name of a tensor, shortened by `cut` bytes, with `end` appended; false: too long. */
static bool other_name(const char *name, size_t cut, const char *end, char out[NAME_BYTES])
{
    size_t stem = strlen(name) - cut;
    if (stem + strlen(end) >= NAME_BYTES)
        return false;
    memcpy(out, name, stem);
    strcpy(out + stem, end);
    return true;
}

static const struct moe_tensor_entry *entry_named(const struct moe_tensor_list *list,
                                                  const char *name)
{
    int64_t i = moe_tensor_list_find(list, name);
    return i < 0 ? NULL : &list->items[i];
}

/* ---- MXFP4 ---- */

static const char blocks_end[] = "_blocks";

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_bytes(const struct moe_tensor_entry *entry)
{
    return strcmp(entry->dtype_name, "U8") == 0 && entry->tensor.n_items > 0;
}

/* Whether the two are packed values [...][groups][16] and exponents [...][groups]. */
static bool are_mxfp4(const struct moe_tensor_entry *blocks, const struct moe_tensor_entry *scales)
{
    const struct moe_tensor *b = &blocks->tensor, *s = &scales->tensor;
    return is_bytes(blocks) && is_bytes(scales) && b->n_dims >= 2 && s->n_dims == b->n_dims - 1 &&
           b->n_items == b->bytes && s->n_items == s->bytes && b->n_items == 16 * s->n_items &&
           memcmp(b->dims, s->dims, (size_t)s->n_dims * sizeof *s->dims) == 0;
}

/* Joins NAME_blocks with NAME_scales; returns the scales, or NULL: not a pair. */
static const struct moe_tensor_entry *join_mxfp4(const struct moe_tensor_list *list,
                                                 struct moe_tensor_entry *blocks)
{
    char name[NAME_BYTES], joined[NAME_BYTES];
    struct moe_tensor *t = &blocks->tensor;
    if (!ends_with(t->name, blocks_end) ||
        !other_name(t->name, strlen(blocks_end), "_scales", name) ||
        !other_name(t->name, strlen(blocks_end), "", joined))
        return NULL;
    const struct moe_tensor_entry *scales = entry_named(list, name);
    if (!scales || !are_mxfp4(blocks, scales) || moe_tensor_list_find(list, joined) >= 0)
        return NULL;
    blocks->pair = MOE_PAIR_MXFP4;
    t->dtype = MOE_DTYPE_MXFP4;
    t->n_dims--;
    t->dims[t->n_dims] = 0;
    t->dims[t->n_dims - 1] *= 32;
    t->n_items *= 2;
    return scales;
}

/* Assembles blocks from packed values and exponents. */
static int read_mxfp4(const struct moe_tensor_files *files, const struct moe_tensor_entry *entry,
                      uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    enum { STEP = 1024, PACKED = 16, BLOCK = 17 };
    const struct moe_tensor_file *values = &files->files[entry->tensor.file];
    const struct moe_tensor_file *scales = &files->files[entry->scales_file];
    uint8_t packed[STEP * PACKED], exponents[STEP];
    while (n > 0) {
        uint64_t some = n < STEP ? n : STEP;
        MOE_TRY(moe_file_pread(values->fd, values->path, packed, some * PACKED,
                               entry->tensor.offset + first * PACKED, err));
        MOE_TRY(moe_file_pread(scales->fd, scales->path, exponents, some,
                               entry->scales_offset + first, err));
        for (uint64_t i = 0; i < some; i++)
            moe_ggml_mxfp4_from_pairs(packed + i * PACKED, exponents[i], out + i * BLOCK);
        first += some;
        out += some * BLOCK;
        n -= some;
    }
    return MOE_OK;
}

/* ---- FP8 ---- */

static const char *const scale_ends[] = {"_scale_inv", "_scale"};
enum { N_SCALE_ENDS = 2 };

/* Rows and columns of the blocks that have one factor each. */
struct fp8_blocks {
    uint32_t rows, cols;
};

bool moe_tensor_is_fp8(const struct moe_tensor_entry *entry)
{
    return strcmp(entry->dtype_name, "F8_E4M3") == 0;
}

/* The scales of a matrix in FP8 or INT4, whether they fit or not; NULL: none. */
static const struct moe_tensor_entry *tensor_pairs_scales(const struct moe_tensor_list *list,
                                                          const struct moe_tensor_entry *weights)
{
    char name[NAME_BYTES];
    const struct moe_tensor_entry *scales = NULL;
    for (int i = 0; i < N_SCALE_ENDS && !scales; i++)
        if (other_name(weights->tensor.name, 0, scale_ends[i], name))
            scales = entry_named(list, name);
    return scales;
}

/* Reads the block sizes from config.json; 128 by 128, as everyone publishes them, if it has none.
 */
static int read_blocks(struct fp8_blocks *out, const char *dir, struct moe_err *err)
{
    json_t *json = NULL;
    char *path = moe_path_join(dir, "config.json", err);
    *out = (struct fp8_blocks){128, 128};
    int status = path ? MOE_OK : MOE_ERR_MEMORY;
    if (path && moe_path_exists(path))
        status = moe_json_read(&json, path, MAX_CONFIG_BYTES, MOE_JSON_CONFIG_MEMORY, err);
    const json_t *quantization = json_object_get(json, "quantization_config");
    const json_t *group =
        json_object_get(json_object_get(quantization, "config_groups"), "group_0");
    const json_t *sizes = json_object_get(quantization, "weight_block_size");
    if (!json_is_array(sizes)) /* as compressed-tensors writes it */
        sizes = json_object_get(json_object_get(group, "weights"), "block_structure");
    if (status == MOE_OK && json_is_array(sizes)) {
        json_int_t rows = json_integer_value(json_array_get(sizes, 0));
        json_int_t cols = json_integer_value(json_array_get(sizes, 1));
        if (json_array_size(sizes) != 2 || rows < 1 || rows > INT32_MAX || cols < 1 ||
            cols > INT32_MAX)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "%s: 'weight_block_size' in 'quantization_config' is not two numbers "
                              "from 1 on",
                              path);
        else
            *out = (struct fp8_blocks){(uint32_t)rows, (uint32_t)cols};
    }
    moe_json_free(json);
    free(path);
    return status;
}

static uint64_t n_blocks(uint64_t n, uint32_t block)
{
    return n / block + (n % block != 0);
}

/* Whether there is one scale for each block, row or tensor; sets the weights' blocks. */
static bool fit_fp8(struct moe_tensor_entry *weights, const struct moe_tensor *s,
                    const struct fp8_blocks *blocks)
{
    const struct moe_tensor *t = &weights->tensor;
    int rows = t->n_dims - 2, cols = t->n_dims - 1;
    weights->block_rows = blocks->rows;
    weights->block_cols = blocks->cols;
    uint64_t kept = 1; /* dimensions beyond those kept have no known place */
    for (int i = 0; i < t->n_dims; i++)
        kept *= t->dims[i];
    if (rows < 0 || t->n_items == 0 || t->n_items != kept || s->n_items == 0 ||
        t->dims[cols] > UINT32_MAX || t->dims[rows] > UINT32_MAX)
        return false;
    bool same = s->n_dims >= rows && memcmp(s->dims, t->dims, (size_t)rows * sizeof *s->dims) == 0;
    if (same && s->n_dims == t->n_dims && s->dims[rows] == n_blocks(t->dims[rows], blocks->rows) &&
        s->dims[cols] == n_blocks(t->dims[cols], blocks->cols))
        return true;
    bool by_row = same && s->n_dims > rows && s->dims[rows] == t->dims[rows] &&
                  (s->n_dims == rows + 1 || s->dims[cols] == 1);
    if (!by_row && (s->n_items != 1 || rows > 0))
        return false;
    weights->block_rows = by_row ? 1 : (uint32_t)t->dims[rows];
    weights->block_cols = (uint32_t)t->dims[cols];
    return true;
}

/* Joins the weights with their scales; returns these, or NULL: not a pair. */
static const struct moe_tensor_entry *join_fp8(const struct moe_tensor_list *list,
                                               struct moe_tensor_entry *weights,
                                               const struct fp8_blocks *blocks)
{
    const struct moe_tensor_entry *scales = tensor_pairs_scales(list, weights);
    if (!scales || !fit_fp8(weights, &scales->tensor, blocks))
        return NULL;
    const struct moe_ggml_type *type = moe_dtype_block(scales->tensor.dtype);
    if (type ? type->items != 1 : strcmp(scales->dtype_name, "F8_E8M0") != 0)
        return NULL;
    weights->pair = MOE_PAIR_FP8;
    weights->scales_dtype = scales->tensor.dtype;
    weights->tensor.dtype = MOE_DTYPE_F32;
    return scales;
}

/* ---- INT4 ---- */

static const char packed_end[] = "_packed";

static const struct moe_tensor_entry *entry_beside(const struct moe_tensor_list *list,
                                                   const char *name, size_t cut, const char *end)
{
    char other[NAME_BYTES];
    return other_name(name, cut, end, other) ? entry_named(list, other) : NULL;
}

/* Tensors of matrices packed in other ways, which are not read. */
static const char *const other_ways[] = {"_zero_point", "_g_idx"};

/* A tensor beside the matrix (its name shortened by `cut` bytes) that shows a packing we do not
 * read: zero points, an order of its columns. NULL: none. */
static const struct moe_tensor_entry *tensor_pairs_other_way(const struct moe_tensor_list *list,
                                                             const char *name, size_t cut)
{
    const struct moe_tensor_entry *found = entry_beside(list, name, cut, other_ways[0]);
    return found ? found : entry_beside(list, name, cut, other_ways[1]);
}

/* Presents NAME_packed as NAME; returns its scales, or NULL: they do not fit, or it is not packed.
 */
static const struct moe_tensor_entry *join_int4(const struct moe_tensor_list *list,
                                                struct moe_tensor_entry *packed)
{
    struct moe_tensor *t = &packed->tensor;
    size_t cut = strlen(packed_end);
    if (!ends_with(t->name, packed_end) || strcmp(packed->dtype_name, "I32") != 0 ||
        t->n_dims != 2 || t->n_items == 0 || t->dims[0] > UINT32_MAX ||
        t->dims[1] > UINT32_MAX / 8 || entry_beside(list, t->name, cut, ""))
        return NULL;
    const struct moe_tensor_entry *scales = entry_beside(list, t->name, cut, "_scale");
    packed->pair = MOE_PAIR_INT4;
    t->dims[1] *= 8;
    t->n_items *= 8;
    if (!scales || tensor_pairs_other_way(list, t->name, cut) || scales->tensor.n_dims != 2 ||
        scales->tensor.dims[0] != t->dims[0] || scales->tensor.n_items == 0 ||
        t->dims[1] % scales->tensor.dims[1] != 0)
        return NULL;
    const struct moe_ggml_type *type = moe_dtype_block(scales->tensor.dtype);
    if (!type || type->items != 1)
        return NULL;
    packed->block_rows = 1;
    packed->block_cols = (uint32_t)(t->dims[1] / scales->tensor.dims[1]);
    packed->scales_dtype = scales->tensor.dtype;
    t->dtype = MOE_DTYPE_F32;
    return scales;
}

/* ---- FP8 and INT4 ---- */

/* E4M3 without infinities: f16's exponent, 256 times smaller. */
static float e4m3(uint8_t code)
{
    uint16_t half = (uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7);
    return (code & 0x7f) == 0x7f ? NAN : moe_f16_to_f32(half) * 256;
}

enum { MAX_SCALES = 1024 };

/* Reads scales [first, first + n) of the tensor, which has at most MAX_SCALES. */
static int read_scales(const struct moe_tensor_files *files, const struct moe_tensor_entry *entry,
                       uint64_t first, uint64_t n, float out[MAX_SCALES], struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(entry->scales_dtype);
    const struct moe_tensor_file *file = &files->files[entry->scales_file];
    uint8_t raw[MAX_SCALES * sizeof(float)];
    uint64_t size = type ? type->bytes : 1;
    MOE_TRY(moe_file_pread(file->fd, file->path, raw, n * size, entry->scales_offset + first * size,
                           err));
    if (type)
        moe_ggml_decode(type, raw, n, out);
    for (uint64_t i = 0; i < n && !type; i++)
        out[i] = raw[i] == 0xff ? NAN : ldexpf(1, raw[i] - 127);
    return MOE_OK;
}

static int read_scaled(const struct moe_tensor_files *files, const struct moe_tensor_entry *entry,
                       uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    const struct moe_tensor *t = &entry->tensor;
    const struct moe_tensor_file *file = &files->files[t->file];
    uint64_t rows = t->dims[t->n_dims - 2], cols = t->dims[t->n_dims - 1];
    uint64_t row_blocks = n_blocks(rows, entry->block_rows);
    uint64_t col_blocks = n_blocks(cols, entry->block_cols), held = UINT64_MAX, n_held = 0;
    float scales[MAX_SCALES];
    uint64_t a_byte = entry->pair == MOE_PAIR_INT4 ? 2 : 1, skipped = first % a_byte;
    uint64_t bytes = (skipped + n + a_byte - 1) / a_byte;
    uint8_t *codes = out + 4 * n - bytes; /* the end of the values' memory: they grow towards it */
    MOE_TRY(moe_file_pread(file->fd, file->path, codes, bytes, t->offset + first / a_byte, err));
    for (uint64_t done = 0, some; done < n; done += some) {
        uint64_t row = (first + done) / cols, col = (first + done) % cols;
        uint64_t block = col / entry->block_cols;
        uint64_t here = col_blocks - block < MAX_SCALES ? col_blocks - block : MAX_SCALES;
        uint64_t end =
            (block + here) * entry->block_cols < cols ? (block + here) * entry->block_cols : cols;
        uint64_t scale =
            (row / rows * row_blocks + row % rows / entry->block_rows) * col_blocks + block;
        some = end - col < n - done ? end - col : n - done;
        if (scale != held || here != n_held)
            MOE_TRY(read_scales(files, entry, scale, here, scales, err));
        held = scale;
        n_held = here;
        for (uint64_t i = 0; i < some; i++) {
            uint64_t at = skipped + done + i;
            float value = a_byte == 1 ? e4m3(codes[at]) : (codes[at / 2] >> at % 2 * 4 & 15) - 8;
            value *= scales[(col + i) / entry->block_cols - block];
            memcpy(out + 4 * (done + i), &value, sizeof value);
        }
    }
    return MOE_OK;
}

/* ---- All ---- */

static void drop(struct moe_tensor_list *list, const bool *dropped)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < list->n; i++) {
        struct moe_tensor_entry *entry = &list->items[i];
        char *name = (char *)entry->tensor.name;
        if (dropped[i]) {
            free(name);
            continue;
        }
        if (entry->pair == MOE_PAIR_MXFP4)
            name[strlen(name) - strlen(blocks_end)] = '\0';
        if (entry->pair == MOE_PAIR_INT4)
            name[strlen(name) - strlen(packed_end)] = '\0';
        list->items[kept++] = *entry;
    }
    list->n = kept;
}

int moe_tensor_pairs_join(struct moe_tensor_list *list, const char *dir, struct moe_err *err)
{
    struct fp8_blocks blocks = {0};
    bool has_fp8 = false;
    for (uint64_t i = 0; i < list->n; i++)
        has_fp8 |= moe_tensor_is_fp8(&list->items[i]);
    if (has_fp8)
        MOE_TRY(read_blocks(&blocks, dir, err));
    bool *dropped = moe_alloc(list->n, sizeof *dropped, err);
    if (!dropped)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < list->n; i++) {
        struct moe_tensor_entry *entry = &list->items[i];
        const struct moe_tensor_entry *scales =
            moe_tensor_is_fp8(entry) ? join_fp8(list, entry, &blocks) : join_mxfp4(list, entry);
        if (!scales)
            scales = join_int4(list, entry);
        if (!scales)
            continue;
        if (entry->pair == MOE_PAIR_INT4) {
            const struct moe_tensor_entry *shape =
                entry_beside(list, entry->tensor.name, strlen(packed_end), "_shape");
            if (shape)
                dropped[shape - list->items] = true;
        }
        entry->scales_file = scales->tensor.file;
        entry->scales_offset = scales->tensor.offset;
        entry->tensor.bytes += scales->tensor.bytes;
        dropped[scales - list->items] = true;
    }
    drop(list, dropped);
    free(dropped);
    moe_tensor_list_sort(list); /* shorter names sort elsewhere */
    return MOE_OK;
}

int moe_tensor_pairs_read(const struct moe_tensor_files *files,
                          const struct moe_tensor_entry *entry, uint64_t first, uint64_t n,
                          uint8_t *out, struct moe_err *err)
{
    return entry->pair == MOE_PAIR_MXFP4 ? read_mxfp4(files, entry, first, n, out, err)
                                         : read_scaled(files, entry, first, n, out, err);
}

/*
 * Explains why two tensors are not values and their scales.
 */

int moe_tensor_pairs_refuse_fp8(const struct moe_tensor_files *files,
                                const struct moe_tensor_entry *entry, struct moe_err *err)
{
    const char *path = files->files[entry->tensor.file].path, *name = entry->tensor.name;
    const struct moe_tensor_entry *scales = tensor_pairs_scales(&files->list, entry);
    char weights_dims[MOE_DIMS_BYTES], scales_dims[MOE_DIMS_BYTES];
    moe_tensor_dims(&entry->tensor, weights_dims);
    if (!scales)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s' %s is in FP8 (F8_E4M3), and its scales "
                        "'%.200s_scale_inv' are missing",
                        path, name, weights_dims, name);
    moe_tensor_dims(&scales->tensor, scales_dims);
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: tensor '%.200s' %s, of type %s, does not fit '%.200s' %s, whose scales it "
                    "should have: one for each block of %" PRIu32 " rows and %" PRIu32
                    " columns, each row, or all",
                    files->files[scales->tensor.file].path, scales->tensor.name, scales_dims,
                    scales->dtype_name, name, weights_dims, entry->block_rows, entry->block_cols);
}

int moe_tensor_pairs_refuse_int4(const struct moe_tensor_files *files,
                                 const struct moe_tensor_entry *entry, struct moe_err *err)
{
    const char *path = files->files[entry->tensor.file].path, *name = entry->tensor.name;
    const struct moe_tensor_entry *scales = tensor_pairs_scales(&files->list, entry);
    const struct moe_tensor_entry *other = tensor_pairs_other_way(&files->list, name, 0);
    char weights_dims[MOE_DIMS_BYTES], scales_dims[MOE_DIMS_BYTES];
    moe_tensor_dims(&entry->tensor, weights_dims);
    if (other)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s' %s is packed in 4 bits with '%.200s', which is not "
                        "read",
                        path, name, weights_dims, other->tensor.name);
    if (!scales)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s' %s is packed in 4 bits, and its scales '%.200s_scale' "
                        "are missing",
                        path, name, weights_dims, name);
    moe_tensor_dims(&scales->tensor, scales_dims);
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: tensor '%.200s' %s, of type %s, does not fit '%.200s' %s, packed in 4 "
                    "bits, whose scales it should have: as many for each row, of F32, F16 or BF16",
                    files->files[scales->tensor.file].path, scales->tensor.name, scales_dims,
                    scales->dtype_name, name, weights_dims);
}
