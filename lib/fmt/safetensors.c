#include "fmt/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/json.h"

static const struct {
    const char *name;
    int bytes; /* of one item */
    enum moe_dtype dtype;
} known_dtypes[] = {
    {"F32", 4, MOE_DTYPE_F32},    {"F16", 2, MOE_DTYPE_F16},       {"BF16", 2, MOE_DTYPE_BF16},
    {"F64", 8, MOE_DTYPE_OTHER},  {"I64", 8, MOE_DTYPE_OTHER},     {"U64", 8, MOE_DTYPE_OTHER},
    {"I32", 4, MOE_DTYPE_OTHER},  {"U32", 4, MOE_DTYPE_OTHER},     {"I16", 2, MOE_DTYPE_OTHER},
    {"U16", 2, MOE_DTYPE_OTHER},  {"I8", 1, MOE_DTYPE_OTHER},      {"U8", 1, MOE_DTYPE_OTHER},
    {"BOOL", 1, MOE_DTYPE_OTHER}, {"F8_E4M3", 1, MOE_DTYPE_OTHER}, {"F8_E5M2", 1, MOE_DTYPE_OTHER},
};

/* A whole number that is not negative; sizes beyond 2^63 make no sense in a file. */
static bool whole_number(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int read_dtype(struct moe_tensor_entry *item, const char *where, const json_t *entry,
                      int *item_bytes, struct moe_err *err)
{
    const char *dtype = NULL;
    int status = moe_json_get_text(where, entry, "dtype", true, &dtype, err);
    if (status != MOE_OK)
        return status;
    snprintf(item->dtype_name, sizeof item->dtype_name, "%s", dtype);
    *item_bytes = 0;
    for (size_t i = 0; i < sizeof known_dtypes / sizeof known_dtypes[0]; i++)
        if (strcmp(dtype, known_dtypes[i].name) == 0) {
            *item_bytes = known_dtypes[i].bytes;
            item->tensor.dtype = known_dtypes[i].dtype;
        }
    return MOE_OK;
}

static int read_shape(struct moe_tensor *t, const char *where, const json_t *entry,
                      struct moe_err *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'shape' is missing or not an array", where);
    size_t n_dims = json_array_size(shape);
    t->n_items = 1;
    for (size_t i = 0; i < n_dims; i++) {
        uint64_t dim;
        if (!whole_number(json_array_get(shape, i), &dim) ||
            !moe_mul_u64(t->n_items, dim, &t->n_items))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'shape' has an impossible dimension %zu",
                            where, i);
        if (i < MOE_MAX_TENSOR_DIMS)
            t->dims[i] = dim;
    }
    t->n_dims = n_dims < MOE_MAX_TENSOR_DIMS ? (int)n_dims : MOE_MAX_TENSOR_DIMS;
    if (n_dims == 0) { /* a scalar is a vector of one */
        t->n_dims = 1;
        t->dims[0] = 1;
    }
    /* Empty tensors and those of higher rank may exist; only reading them is refused. */
    if (t->n_items == 0 || n_dims > MOE_MAX_TENSOR_DIMS)
        t->dtype = MOE_DTYPE_OTHER;
    return MOE_OK;
}

static int read_offsets(struct moe_tensor *t, const char *where, const json_t *entry,
                        int item_bytes, uint64_t data_offset, uint64_t data_bytes,
                        struct moe_err *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !whole_number(json_array_get(offsets, 0), &begin) ||
        !whole_number(json_array_get(offsets, 1), &end) || begin > end)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'data_offsets' is missing or not two rising numbers", where);
    if (end > data_bytes)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: ends at byte %" PRIu64 " of the data, of which there are %" PRIu64
                        " (file cut short?)",
                        where, end, data_bytes);
    t->bytes = end - begin;
    t->offset = data_offset + begin;
    uint64_t expected;
    if (item_bytes &&
        (!moe_mul_u64(t->n_items, (uint64_t)item_bytes, &expected) || expected != t->bytes))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu64 " bytes do not fit its shape of %" PRIu64
                        " items of %d bytes",
                        where, t->bytes, t->n_items, item_bytes);
    return MOE_OK;
}

int moe_safetensors_parse(struct moe_tensor_list *list, const char *name, int file,
                          const void *json, uint64_t n, uint64_t data_offset, uint64_t data_bytes,
                          struct moe_err *err)
{
    json_t *header = moe_json_parse(name, json, n, err);
    if (!header)
        return MOE_ERR_FORMAT;
    int status = MOE_OK;
    uint64_t first = list->n;
    if (!json_is_object(header))
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: its header is not a JSON object", name);
    void *at = status == MOE_OK ? json_object_iter(header) : NULL;
    for (; at && status == MOE_OK; at = json_object_iter_next(header, at)) {
        const char *key = json_object_iter_key(at);
        const json_t *entry = json_object_iter_value(at);
        if (strcmp(key, "__metadata__") == 0)
            continue;
        char where[384];
        snprintf(where, sizeof where, "%.220s: tensor '%.120s'", name, key);
        struct moe_tensor_entry *item = moe_tensor_list_add(list, key, strlen(key), err);
        if (!item) {
            status = MOE_ERR_MEMORY;
            break;
        }
        item->tensor.file = file;
        int item_bytes;
        status = read_dtype(item, where, entry, &item_bytes, err);
        if (status == MOE_OK)
            status = read_shape(&item->tensor, where, entry, err);
        if (status == MOE_OK)
            status =
                read_offsets(&item->tensor, where, entry, item_bytes, data_offset, data_bytes, err);
    }
    moe_json_free(header);
    if (status == MOE_OK)
        status = moe_tensor_list_check_overlaps(list, first, name, err);
    return status;
}
