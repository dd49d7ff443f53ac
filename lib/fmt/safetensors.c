/* Reads the header of a safetensors file. */
#include "fmt/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/json_scan.h"

static const struct {
    const char *name;
    int bytes; /* of one item */
    enum moe_dtype dtype;
} known_dtypes[] = {
    {"F32", 4, MOE_DTYPE_F32},       {"F16", 2, MOE_DTYPE_F16},
    {"BF16", 2, MOE_DTYPE_BF16},     {"F64", 8, MOE_DTYPE_OTHER},
    {"I64", 8, MOE_DTYPE_OTHER},     {"U64", 8, MOE_DTYPE_OTHER},
    {"I32", 4, MOE_DTYPE_OTHER},     {"U32", 4, MOE_DTYPE_OTHER},
    {"I16", 2, MOE_DTYPE_OTHER},     {"U16", 2, MOE_DTYPE_OTHER},
    {"I8", 1, MOE_DTYPE_OTHER},      {"U8", 1, MOE_DTYPE_OTHER},
    {"BOOL", 1, MOE_DTYPE_OTHER},    {"F8_E4M3", 1, MOE_DTYPE_OTHER},
    {"F8_E5M2", 1, MOE_DTYPE_OTHER}, {"F8_E8M0", 1, MOE_DTYPE_OTHER},
};

/* ---- A tensor's members ---- */

/* A tensor's description, as far as it has been read. */
struct description {
    const char *where; /* "PATH: tensor 'NAME'" */
    struct moe_buf text;
    bool has_dtype, has_shape, has_offsets;
    int item_bytes;  /* 0: unknown type */
    uint64_t n_dims; /* as written, which may be more than are kept */
    uint64_t offsets[2];
};

static int read_dtype(struct moe_json_scan *s, struct moe_tensor_entry *item, struct description *d,
                      struct moe_err *err)
{
    enum moe_json_kind kind = moe_json_scan_peek(s);
    if (kind == MOE_JSON_NONE)
        return s->status;
    if (kind != MOE_JSON_TEXT)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'dtype' is %s, a text was expected", d->where,
                        moe_json_kind_name(kind));
    moe_json_scan_text(s, &d->text);
    if (s->status != MOE_OK)
        return s->status;
    const char *dtype = (const char *)d->text.data;
    if (strlen(dtype) != d->text.size)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'dtype' has a NUL character inside", d->where);
    snprintf(item->dtype_name, sizeof item->dtype_name, "%s", dtype);
    for (size_t i = 0; i < sizeof known_dtypes / sizeof known_dtypes[0]; i++)
        if (strcmp(dtype, known_dtypes[i].name) == 0) {
            d->item_bytes = known_dtypes[i].bytes;
            item->tensor.dtype = known_dtypes[i].dtype;
        }
    d->has_dtype = true;
    return MOE_OK;
}

static int read_shape(struct moe_json_scan *s, struct moe_tensor *t, struct description *d,
                      struct moe_err *err)
{
    if (moe_json_scan_peek(s) != MOE_JSON_ARRAY)
        return s->status != MOE_OK ? s->status
                                   : moe_fail(err, MOE_ERR_FORMAT,
                                              "%s: 'shape' is missing or not an array", d->where);
    t->n_items = 1;
    moe_json_scan_enter(s);
    for (; moe_json_scan_next(s, NULL); d->n_dims++) {
        uint64_t dim;
        bool possible = moe_json_scan_u64(s, &dim) && moe_mul_u64(t->n_items, dim, &t->n_items);
        if (s->status != MOE_OK)
            break;
        if (!possible)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'shape' has an impossible dimension %" PRIu64,
                            d->where, d->n_dims);
        if (d->n_dims < MOE_MAX_TENSOR_DIMS)
            t->dims[d->n_dims] = dim;
    }
    d->has_shape = true;
    return s->status;
}

static int read_offsets(struct moe_json_scan *s, struct description *d, struct moe_err *err)
{
    uint32_t n = 0;
    bool right = moe_json_scan_peek(s) == MOE_JSON_ARRAY;
    if (right)
        moe_json_scan_enter(s);
    while (right && moe_json_scan_next(s, NULL))
        right = n < 2 && moe_json_scan_u64(s, &d->offsets[n++]);
    if (s->status != MOE_OK)
        return s->status;
    if (!right || n != 2 || d->offsets[0] > d->offsets[1])
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'data_offsets' is missing or not two rising numbers", d->where);
    d->has_offsets = true;
    return MOE_OK;
}

/* Checks all members together. */
static int check_description(struct moe_tensor_entry *item, const struct description *d,
                             uint64_t data_offset, uint64_t data_bytes, struct moe_err *err)
{
    struct moe_tensor *t = &item->tensor;
    uint64_t begin = d->offsets[0], end = d->offsets[1], expected;
    if (!d->has_dtype)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'dtype' is missing", d->where);
    if (!d->has_shape)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'shape' is missing or not an array", d->where);
    if (!d->has_offsets)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'data_offsets' is missing or not two rising numbers", d->where);
    t->n_dims = d->n_dims < MOE_MAX_TENSOR_DIMS ? (int)d->n_dims : MOE_MAX_TENSOR_DIMS;
    if (d->n_dims == 0) { /* a scalar is a vector of one */
        t->n_dims = 1;
        t->dims[0] = 1;
    }
    /* Empty tensors and those of higher rank may exist; only reading them is refused. */
    if (t->n_items == 0 || d->n_dims > MOE_MAX_TENSOR_DIMS)
        t->dtype = MOE_DTYPE_OTHER;
    if (end > data_bytes)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: ends at byte %" PRIu64 " of the data, but the file has only %" PRIu64
                        " bytes of data (cut short? download it again)",
                        d->where, end, data_bytes);
    t->bytes = end - begin;
    t->offset = data_offset + begin;
    if (d->item_bytes &&
        (!moe_mul_u64(t->n_items, (uint64_t)d->item_bytes, &expected) || expected != t->bytes))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu64 " bytes do not fit its shape of %" PRIu64
                        " items of %d bytes",
                        d->where, t->bytes, t->n_items, d->item_bytes);
    return MOE_OK;
}

/* Reads the members we need; each may occur once. */
static int read_members(struct moe_json_scan *s, struct moe_tensor_entry *item,
                        struct description *d, struct moe_buf *key, struct moe_err *err)
{
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    enum { N_NAMES = sizeof names / sizeof names[0] };
    bool seen[N_NAMES] = {false};
    moe_json_scan_enter(s);
    while (moe_json_scan_next(s, key)) {
        int i = 0;
        while (i < N_NAMES && strcmp((const char *)key->data, names[i]) != 0)
            i++;
        if (i < N_NAMES && seen[i])
            return moe_json_scan_fail(s, "duplicate key '%s'", names[i]);
        if (i < N_NAMES)
            seen[i] = true;
        if (i == N_NAMES || moe_json_scan_peek(s) == MOE_JSON_NULL)
            moe_json_scan_skip(s);
        else
            MOE_TRY(i == 0   ? read_dtype(s, item, d, err)
                    : i == 1 ? read_shape(s, &item->tensor, d, err)
                             : read_offsets(s, d, err));
    }
    return s->status;
}

/* ---- The header ---- */

static int read_tensor(struct moe_json_scan *s, struct moe_tensor_entry *item, const char *name,
                       struct moe_buf *key, uint64_t data_offset, uint64_t data_bytes,
                       struct moe_err *err)
{
    char where[384];
    struct description d = {.where = where};
    snprintf(where, sizeof where, "%.220s: tensor '%.120s'", name, item->tensor.name);
    enum moe_json_kind kind = moe_json_scan_peek(s);
    if (kind == MOE_JSON_NONE)
        return s->status;
    if (kind != MOE_JSON_OBJECT)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: an object with 'dtype' was expected", where);
    int status = read_members(s, item, &d, key, err);
    if (status == MOE_OK)
        status = check_description(item, &d, data_offset, data_bytes, err);
    moe_buf_release(&d.text);
    return status;
}

/* Enters the header's object. */
static int enter_header(struct moe_json_scan *s, const char *name, struct moe_err *err)
{
    enum moe_json_kind kind = moe_json_scan_peek(s);
    if (kind != MOE_JSON_NONE && kind != MOE_JSON_OBJECT)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: its header is not a JSON object", name);
    moe_json_scan_enter(s);
    return s->status;
}

/* Reports that `json`, the header's n bytes, names `twin` twice, and where the second time is. */
static int fail_twice(const char *name, const void *json, uint64_t n, const char *twin,
                      struct moe_err *err)
{
    struct moe_json_scan s;
    struct moe_buf key = {0};
    int times = 0;
    moe_json_scan_begin(&s, name, json, n, false, err);
    moe_json_scan_enter(&s);
    while (moe_json_scan_next(&s, &key)) {
        times += strcmp((const char *)key.data, twin) == 0;
        if (times == 2)
            moe_json_scan_fail(&s, "duplicate key '%.120s'", twin);
        moe_json_scan_skip(&s);
    }
    moe_buf_release(&key);
    return s.status;
}

int moe_safetensors_parse(struct moe_tensor_list *list, const char *name, int file,
                          const void *json, uint64_t n, uint64_t data_offset, uint64_t data_bytes,
                          struct moe_err *err)
{
    static const char metadata[] = "__metadata__";
    struct moe_json_scan s;
    struct moe_buf key = {0};
    uint64_t first = list->n;
    const char *twin = NULL;
    bool has_metadata = false;
    moe_json_scan_begin(&s, name, json, n, false, err);
    int status = enter_header(&s, name, err);
    while (status == MOE_OK && moe_json_scan_next(&s, &key)) {
        if (strcmp((const char *)key.data, metadata) == 0) {
            if (has_metadata)
                moe_json_scan_fail(&s, "duplicate key '%s'", metadata);
            has_metadata = true;
            moe_json_scan_skip(&s);
            continue;
        }
        struct moe_tensor_entry *item =
            moe_tensor_list_add(list, (const char *)key.data, key.size, err);
        if (item)
            item->tensor.file = file;
        status =
            item ? read_tensor(&s, item, name, &key, data_offset, data_bytes, err) : MOE_ERR_MEMORY;
    }
    moe_buf_release(&key);
    if (status == MOE_OK)
        status = moe_json_scan_end(&s);
    if (status == MOE_OK)
        status = moe_tensor_list_find_twin(list, first, &twin, err);
    if (status == MOE_OK && twin)
        status = fail_twice(name, json, n, twin, err);
    return status == MOE_OK ? moe_tensor_list_check_overlaps(list, first, name, err) : status;
}
