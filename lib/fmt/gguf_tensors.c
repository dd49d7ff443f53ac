#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/gguf_file.h"

enum {
    MAX_TENSORS = 1 << 20,
    MAX_NAME_BYTES = 255,
    INFO_BYTES = 8 + 1 + 4 + 4 + 8, /* the shortest there can be */
};

static enum moe_dtype dtype_of(const struct moe_ggml_type *type)
{
    for (int dtype = MOE_DTYPE_OTHER + 1; dtype < MOE_DTYPE_N; dtype++)
        if (moe_dtype_block(dtype) == type)
            return dtype;
    return MOE_DTYPE_OTHER;
}

/* The dimensions, innermost first in the file. */
static void read_dims(struct gguf_reader *r, struct moe_tensor *t, uint64_t *inner)
{
    uint64_t at = r->at;
    uint32_t n_dims = gguf_take_u32(r, "a tensor's rank");
    if (r->status == MOE_OK && n_dims > MOE_MAX_TENSOR_DIMS)
        gguf_fail(r, at, "tensor '%.100s' has %" PRIu32 " dimensions; %d are possible", t->name,
                  n_dims, MOE_MAX_TENSOR_DIMS);
    t->n_dims = n_dims ? (int)n_dims : 1; /* a scalar is a vector of one */
    t->dims[0] = 1;
    t->n_items = 1;
    *inner = 1;
    for (uint32_t i = 0; i < n_dims && r->status == MOE_OK; i++) {
        uint64_t dim = gguf_take_u64(r, "a tensor's shape");
        t->dims[n_dims - 1 - i] = dim;
        if (i == 0)
            *inner = dim;
        if (!moe_mul_u64(t->n_items, dim, &t->n_items))
            gguf_fail(r, at, "tensor '%.100s' has an impossible shape", t->name);
    }
}

static void read_info(struct gguf_reader *r, struct moe_tensor_list *list, int file)
{
    uint64_t begin = r->at, name_bytes, inner;
    uint64_t name_at = gguf_take_text(r, MAX_NAME_BYTES, "a tensor's name", &name_bytes);
    if (r->status != MOE_OK)
        return;
    const char *name = (const char *)r->buf.data + name_at;
    if (name_bytes == 0 || memchr(name, '\0', name_bytes)) {
        gguf_fail(r, begin, "a tensor's name is empty or has a zero byte");
        return;
    }
    struct moe_tensor_entry *entry = moe_tensor_list_add(list, name, name_bytes, r->err);
    if (!entry) {
        r->status = MOE_ERR_MEMORY;
        return;
    }
    struct moe_tensor *t = &entry->tensor;
    t->file = file;
    read_dims(r, t, &inner);
    uint32_t number = gguf_take_u32(r, "a tensor's type");
    t->offset = gguf_take_u64(r, "a tensor's offset");
    if (r->status != MOE_OK)
        return;
    const struct moe_ggml_type *type = moe_ggml_find(number);
    if (!type) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "%s: tensor '%.100s' is of an unknown type, number %" PRIu32, r->path,
                             t->name, number);
        return;
    }
    snprintf(entry->dtype_name, sizeof entry->dtype_name, "%s", type->name);
    t->dtype = t->n_items ? dtype_of(type) : MOE_DTYPE_OTHER;
    if (inner % type->items != 0)
        gguf_fail(r, begin,
                  "tensor '%.100s': rows of %" PRIu64 " are no whole %s blocks of %" PRIu32,
                  t->name, inner, type->name, type->items);
    else if (!moe_mul_u64(t->n_items / type->items, type->bytes, &t->bytes))
        gguf_fail(r, begin, "tensor '%.100s' has an impossible shape", t->name);
}

/* Offsets count from the beginning of the data, which is known only now. */
static void place(struct gguf_reader *r, struct moe_tensor *t, uint64_t data, uint64_t alignment)
{
    uint64_t room = r->file_bytes > data ? r->file_bytes - data : 0;
    if (t->offset % alignment != 0)
        gguf_fail(r, data, "tensor '%.100s' begins at %" PRIu64 ", not a multiple of %" PRIu64,
                  t->name, t->offset, alignment);
    else if (t->offset > room || t->bytes > room - t->offset)
        gguf_fail(r, data,
                  "tensor '%.100s' (%" PRIu64 " bytes at %" PRIu64
                  ") goes past the end of the data "
                  "of %" PRIu64 " bytes (file cut short?)",
                  t->name, t->bytes, t->offset, room);
    else
        t->offset += data;
}

int gguf_read_tensors(struct gguf_reader *r, struct moe_tensor_list *list, int file, uint64_t n,
                      uint64_t alignment)
{
    uint64_t first = list->n;
    if (r->status == MOE_OK && (n > MAX_TENSORS || n > (r->file_bytes - r->at) / INFO_BYTES))
        gguf_fail(r, r->at, "%" PRIu64 " tensors: the file cannot hold so many (cut short?)", n);
    for (uint64_t i = 0; i < n && r->status == MOE_OK; i++)
        read_info(r, list, file);
    uint64_t data = moe_round_up(r->at, alignment);
    for (uint64_t i = first; i < list->n && r->status == MOE_OK; i++)
        place(r, &list->items[i].tensor, data, alignment);
    if (r->status == MOE_OK)
        r->status = moe_tensor_list_check_overlaps(list, first, r->path, r->err);
    return r->status;
}
