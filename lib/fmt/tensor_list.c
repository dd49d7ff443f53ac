/* The list of a checkpoint's tensors, and its checks. */
#include "fmt/tensor_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"

const struct moe_ggml_type *moe_dtype_block(enum moe_dtype dtype)
{
    return dtype == MOE_DTYPE_OTHER ? NULL : moe_ggml_find((uint32_t)dtype - 1);
}

void moe_tensor_dims(const struct moe_tensor *tensor, char out[MOE_DIMS_BYTES])
{
    int at = 0;
    out[0] = '\0';
    for (int i = 0; i < tensor->n_dims; i++)
        at += snprintf(out + at, MOE_DIMS_BYTES - (size_t)at, "[%" PRIu64 "]", tensor->dims[i]);
}

void moe_tensor_list_release(struct moe_tensor_list *list)
{
    for (uint64_t i = 0; i < list->n; i++)
        free((char *)list->items[i].tensor.name);
    free(list->items);
    *list = (struct moe_tensor_list){0};
}

struct moe_tensor_entry *moe_tensor_list_add(struct moe_tensor_list *list, const char *name,
                                             uint64_t name_bytes, struct moe_err *err)
{
    if (list->n == list->room) {
        uint64_t room = list->room ? 2 * list->room : 64;
        struct moe_tensor_entry *grown = moe_alloc(room, sizeof *grown, err);
        if (!grown)
            return NULL;
        if (list->n)
            memcpy(grown, list->items, list->n * sizeof *grown);
        free(list->items);
        list->items = grown;
        list->room = room;
    }
    struct moe_tensor_entry *entry = &list->items[list->n];
    entry->tensor.name = moe_strndup(name, name_bytes, err);
    if (!entry->tensor.name)
        return NULL;
    list->n++;
    return entry;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct moe_tensor *x = *(const struct moe_tensor *const *)a;
    const struct moe_tensor *y = *(const struct moe_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

int moe_tensor_list_check_overlaps(const struct moe_tensor_list *list, uint64_t first,
                                   const char *name, struct moe_err *err)
{
    uint64_t n = list->n - first;
    const struct moe_tensor **by_offset = moe_alloc(n, sizeof *by_offset, err);
    if (!by_offset)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++)
        by_offset[i] = &list->items[first + i].tensor;
    qsort(by_offset, n, sizeof *by_offset, compare_offsets);
    int status = MOE_OK;
    for (uint64_t i = 1; i < n && status == MOE_OK; i++)
        if (by_offset[i - 1]->offset + by_offset[i - 1]->bytes > by_offset[i]->offset)
            status = moe_fail(err, MOE_ERR_FORMAT, "%s: tensors '%.100s' and '%.100s' overlap",
                              name, by_offset[i - 1]->name, by_offset[i]->name);
    free(by_offset);
    return status;
}

int moe_tensor_list_find_twin(const struct moe_tensor_list *list, uint64_t first, const char **twin,
                              struct moe_err *err)
{
    uint64_t n = list->n - first;
    const char **names = moe_alloc(n, sizeof *names, err);
    *twin = NULL;
    if (!names)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++)
        names[i] = list->items[first + i].tensor.name;
    qsort(names, n, sizeof *names, moe_compare_texts);
    for (uint64_t i = 1; i < n && !*twin; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            *twin = names[i];
    free(names);
    return MOE_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct moe_tensor_entry *)a)->tensor.name,
                  ((const struct moe_tensor_entry *)b)->tensor.name);
}

void moe_tensor_list_sort(struct moe_tensor_list *list)
{
    if (list->n)
        qsort(list->items, list->n, sizeof *list->items, compare_names);
}

int64_t moe_tensor_list_find(const struct moe_tensor_list *list, const char *name)
{
    struct moe_tensor_entry key = {.tensor.name = name};
    if (!list->n)
        return -1;
    const struct moe_tensor_entry *found =
        bsearch(&key, list->items, list->n, sizeof key, compare_names);
    return found ? found - list->items : -1;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int moe_tensor_list_check_names(const struct moe_tensor_list *list,
                                const struct moe_tensor_file *files, const char *name,
                                struct moe_err *err)
{
    for (uint64_t i = 1; i < list->n; i++) {
        const struct moe_tensor *a = &list->items[i - 1].tensor, *b = &list->items[i].tensor;
        if (strcmp(a->name, b->name) != 0)
            continue;
        if (a->file == b->file)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%.120s' occurs twice", name, a->name);
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%.120s' is both in %s and in %s", name,
                        a->name, base_of(files[a->file].path), base_of(files[b->file].path));
    }
    return MOE_OK;
}

static void tensor_file_release(struct moe_tensor_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
}

void moe_tensor_files_release(struct moe_tensor_files *files)
{
    for (int i = 0; i < files->n_files; i++)
        tensor_file_release(&files->files[i]);
    moe_tensor_list_release(&files->list);
    free(files->files);
    *files = (struct moe_tensor_files){0};
}
