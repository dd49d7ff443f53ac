/* Checkpoints: a GGUF file, or a directory of safetensors files. */
#define _POSIX_C_SOURCE 200809L /* PATH_MAX */

#include "fmt/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/gguf_internal.h"
#include "fmt/json_scan.h"
#include "fmt/safetensors.h"
#include "fmt/tensor_list.h"
#include "fmt/tensor_pairs.h"

struct moe_checkpoint {
    char *path;
    struct moe_gguf *gguf;                /* NULL for a directory */
    struct moe_tensor_files own;          /* own files, or those of the GGUF file */
    const struct moe_tensor_files *files; /* own, or those of the GGUF file */
};

/* ---- Opening ---- */

/* Refuses a file that is not a GGUF file. */
static int fail_not_checkpoint(const char *path, int fd, struct moe_err *err)
{
    static const char end[] = ".safetensors";
    size_t n = strlen(path), m = strlen(end);
    if (n >= m && strcmp(path + n - m, end) == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: give the directory that holds it, with config.json and tokenizer.json",
                        path);
    return moe_file_refuse(
        fd, path,
        "a checkpoint (a directory with config.json and model.safetensors, or a .gguf file)", err);
}

static int open_file(struct moe_checkpoint *ck, struct moe_err *err)
{
    uint64_t size;
    int fd = moe_file_open(ck->path, &size, err); /* for its error */
    if (fd < 0)
        return fd;
    bool good = !moe_path_is_unfinished(ck->path) && moe_gguf_is(ck->path);
    int status = good ? MOE_OK : fail_not_checkpoint(ck->path, fd, err);
    close(fd);
    if (status != MOE_OK)
        return status;
    MOE_TRY(moe_gguf_open(&ck->gguf, ck->path, err));
    ck->files = moe_gguf_files(ck->gguf);
    return MOE_OK;
}

static int checkpoint_open_hf(struct moe_tensor_files *out, const char *dir, struct moe_err *err);

int moe_checkpoint_open(struct moe_checkpoint **out, const char *path, struct moe_err *err)
{
    *out = NULL;
    int status = MOE_ERR_MEMORY;
    struct moe_checkpoint *ck = moe_alloc(1, sizeof *ck, err);
    if (!ck)
        return MOE_ERR_MEMORY;
    ck->files = &ck->own;
    ck->path = moe_strndup(path, strlen(path), err);
    if (ck->path)
        status = moe_path_is_directory(path) ? checkpoint_open_hf(&ck->own, path, err)
                                             : open_file(ck, err);
    if (status == MOE_OK)
        *out = ck;
    else
        moe_checkpoint_close(ck);
    return status;
}

void moe_checkpoint_close(struct moe_checkpoint *ck)
{
    if (!ck)
        return;
    moe_tensor_files_release(&ck->own);
    moe_gguf_close(ck->gguf);
    free(ck->path);
    free(ck);
}

/* ---- Asking ---- */

const char *moe_checkpoint_dir(const struct moe_checkpoint *ck)
{
    return ck->path;
}

const struct moe_gguf *moe_checkpoint_gguf(const struct moe_checkpoint *ck)
{
    return ck->gguf;
}

int moe_checkpoint_n_files(const struct moe_checkpoint *ck)
{
    return ck->files->n_files;
}

int moe_checkpoint_file(const struct moe_checkpoint *ck, int file, const char **path)
{
    *path = ck->files->files[file].path;
    return ck->files->files[file].fd;
}

void moe_checkpoint_drop_metadata(struct moe_checkpoint *ck)
{
    if (ck->gguf)
        gguf_meta_release(&ck->gguf->meta);
}

uint64_t moe_checkpoint_held_bytes(const struct moe_checkpoint *ck)
{
    uint64_t bytes = sizeof *ck;
    for (uint64_t i = 0; i < ck->files->list.n; i++)
        bytes += strlen(ck->files->list.items[i].tensor.name) + 1;
    return bytes + ck->files->list.room * sizeof *ck->files->list.items;
}

uint64_t moe_checkpoint_n_tensors(const struct moe_checkpoint *ck)
{
    return ck->files->list.n;
}

const struct moe_tensor *moe_checkpoint_at(const struct moe_checkpoint *ck, uint64_t i)
{
    return &ck->files->list.items[i].tensor;
}

static const struct moe_tensor_entry *entry_of(const struct moe_tensor *t)
{
    return (const struct moe_tensor_entry *)t; /* its first member */
}

static const struct moe_tensor_file *file_of(const struct moe_checkpoint *ck, int file)
{
    return &ck->files->files[file];
}

uint64_t moe_checkpoint_index(const struct moe_checkpoint *ck, const struct moe_tensor *t)
{
    return (uint64_t)(entry_of(t) - ck->files->list.items);
}

const struct moe_tensor *moe_checkpoint_find(const struct moe_checkpoint *ck, const char *name)
{
    int64_t i = moe_tensor_list_find(&ck->files->list, name);
    return i < 0 ? NULL : moe_checkpoint_at(ck, (uint64_t)i);
}

/* Finds the tensor of that name and shape, of any type. */
static int get_shaped(const struct moe_checkpoint *ck, const char *name, int n_dims,
                      const uint64_t *dims, const struct moe_tensor **out, struct moe_err *err)
{
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    char expected[MOE_DIMS_BYTES], found[MOE_DIMS_BYTES];
    struct moe_tensor wanted = {.n_dims = n_dims};
    memcpy(wanted.dims, dims, (size_t)n_dims * sizeof *dims);
    moe_tensor_dims(&wanted, expected);
    if (!t)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' %s is missing", ck->path, name,
                        expected);
    moe_tensor_dims(t, found);
    if (t->n_dims != n_dims || memcmp(t->dims, dims, (size_t)n_dims * sizeof *dims) != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' has the shape %s, expected %s",
                        file_of(ck, t->file)->path, name, found, expected);
    *out = t;
    return MOE_OK;
}

static int refuse_type(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                       const char *types, struct moe_err *err)
{
    char found[MOE_DIMS_BYTES];
    moe_tensor_dims(t, found);
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: tensor '%s' %s is of type %s, which is not read (%s are)",
                    file_of(ck, t->file)->path, t->name, found, entry_of(t)->dtype_name, types);
}

int moe_checkpoint_get(const struct moe_checkpoint *ck, const char *name, int n_dims,
                       const uint64_t *dims, const struct moe_tensor **out, struct moe_err *err)
{
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    if (t && entry_of(t)->misfit)
        return moe_tensor_pairs_refuse(ck->files, entry_of(t), err);
    MOE_TRY(get_shaped(ck, name, n_dims, dims, out, err));
    if ((*out)->dtype != MOE_DTYPE_OTHER)
        return MOE_OK;
    return refuse_type(
        ck, *out,
        ck->gguf
            ? "F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q6_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, MXFP4, "
              "NVFP4, TQ1_0, TQ2_0, Q1_0, Q2_0, IQ2_K to IQ6_K, IQ2_KS to IQ5_KS, IQ4_KSS, "
              "IQ1_KT to IQ4_KT, IQ2_KL"
            : "F32, F16, BF16, and quantized matrices with their scales",
        err);
}

const char *moe_checkpoint_codes(const struct moe_tensor *t)
{
    return moe_tensor_pairs_type(entry_of(t));
}

uint32_t moe_checkpoint_scale_rows(const struct moe_tensor *t)
{
    return entry_of(t)->block_rows;
}

/* Bytes of a whole number; 0: the tensor has another type. */
static uint64_t number_bytes(const struct moe_tensor *t)
{
    const char *type = entry_of(t)->dtype_name;
    return strcmp(type, "I32") == 0 ? 4 : strcmp(type, "I64") == 0 ? 8 : 0;
}

int moe_checkpoint_get_numbers(const struct moe_checkpoint *ck, const char *name, int n_dims,
                               const uint64_t *dims, const struct moe_tensor **out,
                               struct moe_err *err)
{
    int status = get_shaped(ck, name, n_dims, dims, out, err);
    return status == MOE_OK && number_bytes(*out) == 0
               ? refuse_type(ck, *out, "of whole numbers I32 and I64", err)
               : status;
}

/* ---- Reading ---- */

/* Checks that items or blocks [first, first + n) exist among `all`. */
static int check_range(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                       const char *what, uint64_t first, uint64_t n, uint64_t all,
                       struct moe_err *err)
{
    if (t->dtype != MOE_DTYPE_OTHER && first <= all && n <= all - first)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "%s: tensor '%s': %s %" PRIu64 " to %" PRIu64 " of %" PRIu64 " cannot be read",
                    file_of(ck, t->file)->path, t->name, what, first, first + n, all);
}

/* Blocks of a tensor whose rows begin with a factor. */
static int read_factored(const struct moe_tensor_file *file, const struct moe_tensor *t,
                         uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    const uint64_t items = t->dims[t->n_dims - 1], of_row = items / type->items;
    const uint64_t row_bytes = moe_ggml_row_bytes(type, items);
    while (n > 0) {
        const uint64_t skip = first % of_row, left = of_row - skip, rows = skip ? 0 : n / of_row;
        const uint64_t some = rows ? rows * of_row : left < n ? left : n;
        const uint64_t of_part = rows ? of_row : some; /* of a row */
        const uint64_t bytes = moe_ggml_row_bytes(type, of_part * type->items);
        const uint64_t at = t->offset + first / of_row * row_bytes;
        uint8_t *read = out + some * type->bytes - (rows ? rows : 1) * bytes;
        MOE_TRY(moe_file_pread(file->fd, file->path, read, (rows ? rows : 1) * bytes, at, err));
        if (skip) /* behind the factor, blocks of further on */
            MOE_TRY(moe_file_pread(file->fd, file->path, read + type->factor, bytes - type->factor,
                                   at + moe_ggml_row_bytes(type, skip * type->items), err));
        for (uint64_t done = 0; done < some; done += of_part, read += bytes)
            moe_ggml_row_blocks(type, read, 0, of_part, out + done * type->bytes);
        first += some;
        n -= some;
        out += some * type->bytes;
    }
    return MOE_OK;
}

int moe_checkpoint_read_blocks(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                               uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    MOE_TRY(check_range(ck, t, "blocks", first, n, type ? t->n_items / type->items : 0, err));
    if (entry_of(t)->form != MOE_FORM_PLAIN)
        return moe_tensor_pairs_read(ck->files, entry_of(t), first, n, out, err);
    const struct moe_tensor_file *file = file_of(ck, t->file);
    if (type->factor)
        return read_factored(file, t, first, n, out, err);
    return moe_file_pread(file->fd, file->path, out, n * type->bytes,
                          t->offset + first * type->bytes, err);
}

int moe_checkpoint_locate(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                          uint64_t first, uint64_t n, struct moe_file_range out[2])
{
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    const struct moe_tensor_entry *entry = entry_of(t);
    out[0] = (struct moe_file_range){(uint32_t)t->file, t->offset, 1};
    if (!type || (entry->form != MOE_FORM_PLAIN && entry->form != MOE_FORM_MXFP4))
        return 0;
    bool pair = entry->form == MOE_FORM_MXFP4;
    uint64_t bytes = pair ? 16 : type->bytes;
    out[0] = (struct moe_file_range){(uint32_t)t->file, t->offset + first * bytes, n * bytes};
    if (type->factor) { /* whole rows */
        const uint64_t items = t->dims[t->n_dims - 1], of_row = items / type->items;
        bytes = moe_ggml_row_bytes(type, items);
        out[0].offset = t->offset + first / of_row * bytes;
        out[0].bytes = n / of_row * bytes;
    }
    out[1] = (struct moe_file_range){(uint32_t)entry->parts[MOE_PART_SCALES].file,
                                     entry->parts[MOE_PART_SCALES].offset + first, n};
    return pair ? 2 : 1;
}

int moe_checkpoint_read_numbers(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                                uint64_t first, uint64_t n, int64_t *out, struct moe_err *err)
{
    enum { STEP = 1024 };
    const struct moe_tensor_file *file = file_of(ck, t->file);
    uint64_t size = number_bytes(t);
    uint8_t raw[STEP * sizeof(int64_t)];
    for (uint64_t done = 0, some; done < n; done += some) {
        some = n - done < STEP ? n - done : STEP;
        MOE_TRY(moe_file_pread(file->fd, file->path, raw, some * size,
                               t->offset + (first + done) * size, err));
        for (uint64_t i = 0; i < some; i++)
            out[done + i] =
                size == 4 ? (int32_t)moe_get_u32(raw + 4 * i) : (int64_t)moe_get_u64(raw + 8 * i);
    }
    return MOE_OK;
}

/* Reads items [from, from + n) of one block. */
static int read_part(const struct moe_checkpoint *ck, const struct moe_tensor *t, uint64_t block,
                     uint64_t from, uint64_t n, float *out, struct moe_err *err)
{
    uint8_t raw[MOE_GGML_MAX_BLOCK_BYTES];
    float values[MOE_GGML_MAX_ITEMS];
    MOE_TRY(moe_checkpoint_read_blocks(ck, t, block, 1, raw, err));
    moe_ggml_decode(moe_dtype_block(t->dtype), raw, 1, values);
    memcpy(out, values + from, n * sizeof *out);
    return MOE_OK;
}

int moe_checkpoint_read(const struct moe_checkpoint *ck, const struct moe_tensor *t, uint64_t first,
                        uint64_t n, float *out, struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    MOE_TRY(check_range(ck, t, "items", first, n, t->n_items, err));
    if (n == 0)
        return MOE_OK;
    uint64_t items = type->items, skip = first % items, block = first / items;
    if (skip) { /* the rest of a block that begins earlier */
        uint64_t head = items - skip < n ? items - skip : n;
        MOE_TRY(read_part(ck, t, block++, skip, head, out, err));
        out += head;
        n -= head;
    }
    /* Whole blocks are read into the end of their values' memory and decoded from its front. */
    uint64_t whole = n / items;
    uint8_t *raw = (uint8_t *)(out + whole * items) - whole * type->bytes;
    if (whole) {
        MOE_TRY(moe_checkpoint_read_blocks(ck, t, block, whole, raw, err));
        moe_ggml_decode(type, raw, whole, out);
    }
    if (n % items)
        MOE_TRY(read_part(ck, t, block + whole, 0, n % items, out + whole * items, err));
    return MOE_OK;
}

/* ---- Hugging Face directories ---- */

enum { MAX_SHARDS = 4096, MAX_INDEX_BYTES = 256 << 20 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* A directory being opened. */
struct opening {
    const char *dir;
    struct moe_tensor_files *to;
};

/* Whether an unfinished download of the file lies beside where it should be. */
static bool is_being_downloaded(const char *path)
{
    static const char *const ends[] = {".part", ".incomplete", ".crdownload", ".aria2"};
    char other[4096];
    bool found = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int n = snprintf(other, sizeof other, "%s%s", path, ends[i]);
        found = found || (n < (int)sizeof other && moe_path_exists(other));
    }
    return found;
}

/* Opens DIR/NAME as the next shard and reads its header. */
static int open_shard(struct opening *o, const char *name, struct moe_err *err)
{
    struct moe_tensor_file *shard = &o->to->files[o->to->n_files];
    shard->path = moe_path_join(o->dir, name, err);
    if (!shard->path)
        return MOE_ERR_MEMORY;
    shard->fd = -1;
    int file = o->to->n_files++;
    uint64_t size;
    int fd = moe_file_open(shard->path, &size, err);
    if (fd == MOE_ERR_IO && is_being_downloaded(shard->path))
        return moe_fail(err, MOE_ERR_IO,
                        "%s: is not there, but a part of it is: finish the download", shard->path);
    if (fd < 0)
        return fd;
    shard->fd = fd;

    uint8_t length[8];
    if (size < sizeof length)
        return moe_file_refuse(fd, shard->path, "a safetensors file: it is too short", err);
    int status = moe_file_pread(fd, shard->path, length, sizeof length, 0, err);
    if (status != MOE_OK)
        return status;
    uint64_t n = moe_get_u64(length);
    if (n > size - sizeof length || n > MOE_SAFETENSORS_MAX_HEADER || n < 2) {
        char expected[96];
        snprintf(expected, sizeof expected,
                 "a whole safetensors file: its header would have %" PRIu64 " of %" PRIu64 " bytes",
                 n, size);
        return moe_file_refuse(fd, shard->path, expected, err);
    }
    void *json = moe_alloc(n, 1, err);
    if (!json)
        return MOE_ERR_MEMORY;
    status = moe_file_pread(fd, shard->path, json, n, sizeof length, err);
    if (status == MOE_OK)
        status = moe_safetensors_parse(&o->to->list, shard->path, file, json, n, sizeof length + n,
                                       size - sizeof length - n, err);
    free(json);
    return status;
}

/* Whether a name in the index names a file in its own directory. */
static bool plain_file_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') && strlen(name) < 200;
}

static int find_shard(const struct opening *o, const char *name)
{
    for (int i = o->to->n_files - 1; i >= 0; i--) /* maps are mostly in shard order: latest first */
        if (strcmp(strrchr(o->to->files[i].path, '/') + 1, name) == 0)
            return i;
    return -1;
}

static int sort_by_name(struct opening *o, struct moe_err *err)
{
    moe_tensor_list_sort(&o->to->list);
    return moe_tensor_list_check_names(&o->to->list, o->to->files, o->dir, err);
}

/* ---- The index ---- */

/* The index's text, and its reader. */
struct index {
    char *path; /* owned */
    struct moe_buf text, name, shard;
    struct moe_json_scan scan;
    bool *in_map; /* [tensor of the sorted list] once that exists */
};

/* Opens the shard that the map names for a tensor, unless it is open. */
static int open_mapped_shard(struct opening *o, struct index *index, struct moe_err *err)
{
    const char *name = (const char *)index->name.data, *shard = (const char *)index->shard.data;
    if (!plain_file_name(shard))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: '%.120s' is in '%.120s', which is not a plain file name", index->path,
                        name, shard);
    if (find_shard(o, shard) >= 0)
        return MOE_OK;
    if (o->to->n_files == MAX_SHARDS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: more than %d files", index->path, MAX_SHARDS);
    return open_shard(o, shard, err);
}

static int fail_misplaced(const struct opening *o, const struct index *index,
                          const struct moe_tensor *t, const char *said, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%.120s' is in %s, the index says %.120s",
                    index->path, t->name, strrchr(o->to->files[t->file].path, '/') + 1, said);
}

/* Checks that the tensor is where the map says, and is named once. */
static int check_entry(struct opening *o, struct index *index, struct moe_err *err)
{
    const char *name = (const char *)index->name.data, *shard = (const char *)index->shard.data;
    int64_t i = moe_tensor_list_find(&o->to->list, name);
    if (i < 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.120s' is not in %.120s, where the index says it is",
                        index->path, name, shard);
    const struct moe_tensor *t = &o->to->list.items[i].tensor;
    if (strcmp(strrchr(o->to->files[t->file].path, '/') + 1, shard) != 0)
        return fail_misplaced(o, index, t, shard, err);
    if (index->in_map[i])
        return moe_json_scan_fail(&index->scan, "duplicate key '%.120s'", name);
    index->in_map[i] = true;
    return MOE_OK;
}

/* Calls `take` for every member of the map that follows. */
static int read_map(struct opening *o, struct index *index,
                    int (*take)(struct opening *o, struct index *index, struct moe_err *err),
                    uint64_t *n, struct moe_err *err)
{
    struct moe_json_scan *s = &index->scan;
    if (moe_json_scan_peek(s) != MOE_JSON_OBJECT) {
        moe_json_scan_skip(s);
        return s->status;
    }
    moe_json_scan_enter(s);
    for (; moe_json_scan_next(s, &index->name); (*n)++) {
        bool is_text = moe_json_scan_peek(s) == MOE_JSON_TEXT;
        if (is_text)
            moe_json_scan_text(s, &index->shard);
        if (s->status != MOE_OK)
            break;
        if (!is_text || strlen((const char *)index->shard.data) != index->shard.size)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%.120s': a file name was expected",
                            index->path, (const char *)index->name.data);
        while (strncmp((const char *)index->shard.data, "./", 2) == 0) { /* as some write it */
            memmove(index->shard.data, index->shard.data + 2, index->shard.size - 1);
            index->shard.size -= 2;
        }
        MOE_TRY(take(o, index, err));
    }
    return s->status;
}

/* Reads the index and calls `take` for every member of its map. */
static int read_index(struct opening *o, struct index *index,
                      int (*take)(struct opening *o, struct index *index, struct moe_err *err),
                      struct moe_err *err)
{
    struct moe_json_scan *s = &index->scan;
    uint64_t n = 0;
    bool has_map = false;
    moe_json_scan_begin(s, index->path, index->text.data, index->text.size, true, err);
    if (moe_json_scan_peek(s) == MOE_JSON_OBJECT) {
        moe_json_scan_enter(s);
        while (moe_json_scan_next(s, &index->name)) {
            bool is_map = strcmp((const char *)index->name.data, "weight_map") == 0;
            if (is_map && has_map)
                moe_json_scan_fail(s, "duplicate key 'weight_map'");
            has_map |= is_map;
            if (is_map)
                MOE_TRY(read_map(o, index, take, &n, err));
            else
                moe_json_scan_skip(s);
        }
    } else
        moe_json_scan_skip(s);
    MOE_TRY(moe_json_scan_end(s));
    if (n == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'weight_map' is missing, empty or not an object",
                        index->path);
    return MOE_OK;
}

/* Checks that every tensor is where the map says, and that the map has every tensor. */
static int check_map(struct opening *o, struct index *index, struct moe_err *err)
{
    uint64_t n = o->to->list.n;
    index->in_map = moe_alloc(n, sizeof *index->in_map, err);
    if (!index->in_map)
        return MOE_ERR_MEMORY;
    MOE_TRY(read_index(o, index, check_entry, err));
    for (uint64_t i = 0; i < n; i++) {
        if (!index->in_map[i])
            return fail_misplaced(o, index, &o->to->list.items[i].tensor, "nothing of it", err);
    }
    return MOE_OK;
}

static int open_sharded(struct opening *o, struct moe_err *err)
{
    struct index index = {.path = moe_path_join(o->dir, index_name, err)};
    if (!index.path)
        return MOE_ERR_MEMORY;
    int status;
    MOE_STEP(moe_file_read_all(index.path, MAX_INDEX_BYTES, &index.text, err));
    MOE_STEP(read_index(o, &index, open_mapped_shard, err));
    MOE_STEP(sort_by_name(o, err));
    MOE_STEP(check_map(o, &index, err));
out:
    moe_buf_release(&index.text);
    moe_buf_release(&index.name);
    moe_buf_release(&index.shard);
    free(index.in_map);
    free(index.path);
    return status;
}

/* ---- Opening ---- */

/* Explains that the directory has no safetensors file under the known names, and what it has
 * instead. */
static int fail_no_weights(const char *dir, struct moe_err *err)
{
    bool config = false, torch = false, gguf = false, others = false;
    DIR *d = opendir(dir);
    if (!d) {
        char text[128];
        return moe_fail(err, MOE_ERR_IO, "%s: cannot open: %s", dir,
                        moe_errno_text(errno, text, sizeof text));
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        config = config || strcmp(e->d_name, "config.json") == 0;
        torch = torch || moe_ends_with(e->d_name, ".bin") || moe_ends_with(e->d_name, ".pth") ||
                moe_ends_with(e->d_name, ".pt");
        gguf = gguf || moe_ends_with(e->d_name, ".gguf");
        others = others || moe_ends_with(e->d_name, ".safetensors");
    }
    closedir(d);
    if (others)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: has safetensors files but neither %s nor %s that lists them", dir,
                        single_name, index_name);
    if (torch)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: its weights are PyTorch files (.bin, .pt); safetensors is needed "
                        "(save_pretrained(..., safe_serialization=True) makes them)",
                        dir);
    if (gguf)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: its weights are in a .gguf file; give that file itself", dir);
    return moe_fail(err, MOE_ERR_FORMAT,
                    config ? "%s: has config.json but no weights: neither %s nor %s"
                           : "%s: not a checkpoint: no config.json, and neither %s nor %s",
                    dir, single_name, index_name);
}

/* Opens a directory of Hugging Face files. */
static int checkpoint_open_hf(struct moe_tensor_files *out, const char *dir, struct moe_err *err)
{
    struct opening o = {dir, out};
    int status = MOE_ERR_MEMORY;
    char *single = moe_path_join(dir, single_name, err);
    char *index = moe_path_join(dir, index_name, err);
    out->files = moe_alloc(MAX_SHARDS, sizeof *out->files, err);
    if (!single || !index || !out->files)
        goto out;
    if (moe_path_exists(single)) {
        MOE_STEP(open_shard(&o, single_name, err));
        MOE_STEP(sort_by_name(&o, err));
    } else {
        MOE_STEP(moe_path_exists(index) ? open_sharded(&o, err) : fail_no_weights(dir, err));
    }
    MOE_STEP(moe_tensor_pairs_join(out, dir, err));
out:
    free(single);
    free(index);
    return status;
}
