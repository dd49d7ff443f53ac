/* GGUF files: their header, keys, values and tensors. */
#include "fmt/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "fmt/gguf_internal.h"

enum { MAX_PARTS = 4096, MAX_ALIGNMENT = 1 << 20 };

/* ---- One file ---- */

static uint64_t find_whole(const struct gguf_meta *meta, const char *key, uint64_t fallback)
{
    const struct gguf_value *v = gguf_find(meta, key);
    uint64_t value;
    return v && gguf_whole(meta, v, &value) ? value : fallback;
}

static int read_version(struct gguf_reader *r)
{
    uint64_t at = gguf_take(r, 4, "the magic number");
    if (r->status == MOE_OK && memcmp(r->buf.data + at, "GGUF", 4) != 0)
        r->status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: not a GGUF file", r->path);
    uint32_t version = gguf_take_u32(r, "the version");
    if (r->status != MOE_OK || version == 2 || version == 3)
        return r->status;
    if (version != 0 && version % 65536 == 0)
        return moe_fail(r->err, MOE_ERR_VERSION,
                        "%s: a big-endian GGUF file; only little-endian ones are read", r->path);
    return moe_fail(r->err, MOE_ERR_VERSION,
                    "%s: GGUF version %" PRIu32 "; versions 2 and 3 are read", r->path, version);
}

static int read_header(struct gguf_reader *r, struct gguf_meta *meta, struct moe_tensor_list *list,
                       int file)
{
    r->status = read_version(r);
    uint64_t n_tensors = gguf_take_u64(r, "the number of tensors");
    uint64_t n_values = gguf_take_u64(r, "the number of keys");
    if (r->status == MOE_OK)
        r->status = gguf_read_meta(r, meta, n_values);
    if (r->status != MOE_OK)
        return r->status;
    meta->buf = r->buf; /* for the values read here; it may still move */
    uint64_t alignment =
        gguf_find(meta, "general.alignment") ? find_whole(meta, "general.alignment", 0) : 32;
    if (alignment == 0 || alignment % 8 || alignment & (alignment - 1) || alignment > MAX_ALIGNMENT)
        gguf_fail(r, r->at, "key 'general.alignment' is not a power of 2 of at least 8");
    int status = gguf_read_tensors(r, list, file, n_tensors, alignment);
    meta->buf = r->buf;
    return status;
}

/* Opens `path` as the next part. `meta` is zeroed. */
static int open_part(struct moe_tensor_files *files, const char *path, struct gguf_meta *meta,
                     struct moe_err *err)
{
    struct moe_tensor_file *file = &files->files[files->n_files];
    file->fd = -1;
    file->path = moe_strndup(path, strlen(path), err);
    if (!file->path)
        return MOE_ERR_MEMORY;
    int number = files->n_files++;
    uint64_t size;
    int fd = moe_file_open(path, &size, err);
    if (fd < 0)
        return fd;
    file->fd = fd;
    struct gguf_reader r = {.path = path, .fd = fd, .file_bytes = size, .err = err};
    int status = read_header(&r, meta, &files->list, number);
    meta->buf = r.buf; /* also after a failure, for release */
    return status;
}

/* ---- Split files ---- */

enum { PART_ENDING = 20 }; /* "-00001-of-00003.gguf" */

/* Checks the ending of the name of part `no` of `count`; returns where the ending begins, or 0. */
static size_t split_ending(const char *path, uint64_t no, uint64_t count)
{
    char ending[64];
    size_t n = strlen(path);
    snprintf(ending, sizeof ending, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", no + 1, count);
    return n > PART_ENDING && strcmp(path + n - PART_ENDING, ending) == 0 ? n - PART_ENDING : 0;
}

static int open_split_part(struct moe_gguf *gguf, const char *stem, uint64_t no, uint64_t count,
                           struct moe_err *err)
{
    struct gguf_meta meta = {0}, *to = no == 0 ? &gguf->meta : &meta;
    size_t room = strlen(stem) + PART_ENDING + 1;
    char *path = moe_alloc(room, 1, err);
    if (!path)
        return MOE_ERR_MEMORY;
    snprintf(path, room, "%s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", stem, no + 1, count);
    int status = MOE_OK;
    if (!moe_path_exists(path))
        MOE_STEP(moe_fail(err, MOE_ERR_IO,
                          "%s: missing: part %" PRIu64 " of a GGUF file split into %" PRIu64
                          "; all parts must be in one directory",
                          path, no + 1, count));
    MOE_STEP(open_part(&gguf->files, path, to, err));
    if (find_whole(to, "split.no", UINT64_MAX) != no || find_whole(to, "split.count", 0) != count)
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT,
                          "%s: is not part %" PRIu64 " of %" PRIu64
                          " ('split.no', 'split.count'), as its name says (renamed?)",
                          path, no + 1, count));
out:
    gguf_meta_release(&meta);
    free(path);
    return status;
}

/* Opens all parts, the first included, by the names that follow from `path`, which is part `no`. */
static int open_split(struct moe_gguf *gguf, const char *path, uint64_t no, uint64_t count,
                      struct moe_err *err)
{
    size_t end = no < count && count <= MAX_PARTS ? split_ending(path, no, count) : 0;
    if (!end)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: is part %" PRIu64 " of a GGUF file split into %" PRIu64
                        " but is not named so (NAME-00001-of-00003.gguf)",
                        path, no + 1, count);
    char *stem = moe_strndup(path, end, err);
    gguf->files.files = moe_alloc(count, sizeof *gguf->files.files, err);
    int status = stem && gguf->files.files ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < count && status == MOE_OK; i++)
        status = open_split_part(gguf, stem, i, count, err);
    free(stem);
    uint64_t n = gguf->files.list.n;
    uint64_t expected = status == MOE_OK ? find_whole(&gguf->meta, "split.tensors.count", n) : n;
    if (expected != n)
        status =
            moe_fail(err, MOE_ERR_FORMAT,
                     "%s: its parts hold %" PRIu64 " tensors, 'split.tensors.count' says %" PRIu64,
                     path, n, expected);
    return status;
}

/* ---- Opening ---- */

int moe_gguf_open(struct moe_gguf **out, const char *path, struct moe_err *err)
{
    *out = NULL;
    struct moe_gguf *gguf = moe_alloc(1, sizeof *gguf, err);
    if (!gguf)
        return MOE_ERR_MEMORY;
    gguf->files.files = moe_alloc(1, sizeof *gguf->files.files, err);
    int status =
        gguf->files.files ? open_part(&gguf->files, path, &gguf->meta, err) : MOE_ERR_MEMORY;
    uint64_t count = status == MOE_OK ? find_whole(&gguf->meta, "split.count", 1) : 1;
    if (count > 1) {
        uint64_t no = find_whole(&gguf->meta, "split.no", 0);
        gguf_meta_release(&gguf->meta);
        moe_tensor_files_release(&gguf->files);
        status = open_split(gguf, path, no, count, err);
    }
    if (status == MOE_OK) {
        moe_tensor_list_sort(&gguf->files.list);
        status = moe_tensor_list_check_names(&gguf->files.list, gguf->files.files, path, err);
    }
    if (status == MOE_OK)
        *out = gguf;
    else
        moe_gguf_close(gguf);
    return status;
}

void moe_gguf_close(struct moe_gguf *gguf)
{
    if (!gguf)
        return;
    gguf_meta_release(&gguf->meta);
    moe_tensor_files_release(&gguf->files);
    free(gguf);
}

bool moe_gguf_is(const char *path)
{
    uint64_t size;
    uint8_t magic[4] = {0};
    int fd = moe_file_open(path, &size, NULL);
    if (fd < 0)
        return false;
    bool is = size >= sizeof magic &&
              moe_file_pread(fd, path, magic, sizeof magic, 0, NULL) == MOE_OK &&
              memcmp(magic, "GGUF", sizeof magic) == 0;
    close(fd);
    return is;
}

/* ---- Keys ---- */

enum {
    READ_AHEAD = 1 << 20,
    MAX_HEADER_BYTES = 512 << 20, /* half a million texts take about 20 MiB */
    MAX_KEYS = 1 << 16,
    MAX_TEXTS = 1 << 24,   /* elements of an array: vocabularies have a million */
    MAX_KEY_BYTES = 65535, /* the specification's limit */
};

/* ---- Reading forward ---- */

int gguf_fail(struct gguf_reader *r, uint64_t at, const char *format, ...)
{
    char text[384];
    va_list args;
    if (r->status != MOE_OK)
        return r->status;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: byte %" PRIu64 ": %s", r->path, at, text);
    return r->status;
}

/* Reads on until the buffer holds `end` bytes of the file, which is long enough. */
static bool fill_buffer(struct gguf_reader *r, uint64_t end)
{
    uint64_t have = r->buf.size, want = end - have;
    if (want < READ_AHEAD)
        want = r->file_bytes - have < READ_AHEAD ? r->file_bytes - have : READ_AHEAD;
    uint8_t *to = moe_buf_reserve(&r->buf, want);
    if (!to)
        r->status = moe_fail(r->err, MOE_ERR_MEMORY,
                             "%s: out of memory: a header of over %" PRIu64 " bytes", r->path, end);
    else
        r->status = moe_file_pread(r->fd, r->path, to, want, have, r->err);
    if (r->status == MOE_OK)
        r->buf.size += want;
    return r->status == MOE_OK;
}

uint64_t gguf_take(struct gguf_reader *r, uint64_t n, const char *what)
{
    uint64_t at = r->at;
    if (r->status != MOE_OK)
        return UINT64_MAX;
    if (n > r->file_bytes - at) {
        gguf_fail(r, at,
                  "%s of %" PRIu64
                  " bytes goes past the end of the file (cut short? download it again)",
                  what, n);
        return UINT64_MAX;
    }
    if (n > MAX_HEADER_BYTES || at + n > MAX_HEADER_BYTES) {
        gguf_fail(r, at, "%s of %" PRIu64 " bytes: no header is that long", what, n);
        return UINT64_MAX;
    }
    if (at + n > r->buf.size && !fill_buffer(r, at + n))
        return UINT64_MAX;
    r->at += n;
    return at;
}

uint32_t gguf_take_u32(struct gguf_reader *r, const char *what)
{
    uint64_t at = gguf_take(r, 4, what);
    return at == UINT64_MAX ? 0 : moe_get_u32(r->buf.data + at);
}

uint64_t gguf_take_u64(struct gguf_reader *r, const char *what)
{
    uint64_t at = gguf_take(r, 8, what);
    return at == UINT64_MAX ? 0 : moe_get_u64(r->buf.data + at);
}

uint64_t gguf_take_text(struct gguf_reader *r, uint64_t max, const char *what, uint64_t *n)
{
    uint64_t at = r->at;
    *n = gguf_take_u64(r, what);
    if (r->status == MOE_OK && *n > max)
        gguf_fail(r, at, "%s of %" PRIu64 " bytes is longer than any can be (%" PRIu64 ")", what,
                  *n, max);
    return gguf_take(r, *n, what);
}

/* ---- Values ---- */

static const struct {
    const char *name;
    uint32_t bytes;
} types[GGUF_N_TYPES] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_TEXT] = {"text", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

uint32_t gguf_type_bytes(uint32_t type)
{
    return type < GGUF_N_TYPES ? types[type].bytes : 0;
}

const char *gguf_type_name(uint32_t type)
{
    return type < GGUF_N_TYPES ? types[type].name : "unknown";
}

/* n numbers of one type. */
static void read_numbers(struct gguf_reader *r, struct gguf_value *v, uint32_t type, uint64_t n)
{
    uint64_t bytes;
    if (!moe_mul_u64(n, gguf_type_bytes(type), &bytes)) {
        gguf_fail(r, r->at, "key '%.100s': an array of %" PRIu64 " elements is impossible", v->key,
                  n);
        return;
    }
    v->at = gguf_take(r, bytes, "a value");
    for (uint64_t i = 0; type == GGUF_BOOL && r->status == MOE_OK && i < n; i++)
        if (r->buf.data[v->at + i] > 1)
            gguf_fail(r, v->at + i, "key '%.100s': %d is neither true nor false", v->key,
                      r->buf.data[v->at + i]);
}

static void read_texts(struct gguf_reader *r, struct gguf_value *v)
{
    uint64_t n = v->n;
    if (n > (r->file_bytes - r->at) / 8) { /* each text has its length */
        gguf_fail(r, r->at,
                  "key '%.100s': %" PRIu64
                  " texts do not fit into the file (cut short? download it again)",
                  v->key, n);
        return;
    }
    if (n > MAX_TEXTS) { /* a sparse file costs nothing to make, what we keep of it costs memory */
        gguf_fail(r, r->at, "key '%.100s': %" PRIu64 " texts: no file has that many", v->key, n);
        return;
    }
    v->at = 0;
    v->offsets = moe_alloc(n + 1, sizeof *v->offsets, r->err);
    if (!v->offsets)
        r->status = MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n && r->status == MOE_OK; i++) {
        uint64_t bytes;
        v->offsets[i] = gguf_take_text(r, MAX_HEADER_BYTES, "a text", &bytes);
    }
    if (r->status == MOE_OK)
        v->offsets[n] = r->at + 8;
}

static void read_array(struct gguf_reader *r, struct gguf_value *v)
{
    uint64_t at = r->at;
    v->element_type = gguf_take_u32(r, "an array's type");
    v->n = gguf_take_u64(r, "an array's length");
    if (r->status != MOE_OK)
        return;
    if (v->element_type == GGUF_ARRAY)
        gguf_fail(r, at, "key '%.100s': arrays of arrays are not read", v->key);
    else if (v->element_type >= GGUF_N_TYPES)
        gguf_fail(r, at, "key '%.100s': unknown type %" PRIu32 " of an array's elements", v->key,
                  v->element_type);
    else if (v->element_type == GGUF_TEXT)
        read_texts(r, v);
    else
        read_numbers(r, v, v->element_type, v->n);
}

static void read_value(struct gguf_reader *r, struct gguf_value *v)
{
    uint64_t begin = r->at, bytes;
    uint64_t at = gguf_take_text(r, MAX_KEY_BYTES, "a key", &bytes);
    if (r->status != MOE_OK)
        return;
    const char *key = (const char *)r->buf.data + at;
    if (bytes == 0 || memchr(key, '\0', bytes)) {
        gguf_fail(r, begin, "a key is empty or has a zero byte");
        return;
    }
    if (!(v->key = moe_strndup(key, bytes, r->err))) {
        r->status = MOE_ERR_MEMORY;
        return;
    }
    at = r->at;
    v->type = gguf_take_u32(r, "a value's type");
    if (r->status != MOE_OK)
        return;
    if (v->type >= GGUF_N_TYPES) {
        gguf_fail(r, at, "key '%.100s': unknown type %" PRIu32 " of a value", v->key, v->type);
    } else if (v->type == GGUF_ARRAY) {
        read_array(r, v);
    } else if (v->type == GGUF_TEXT) {
        at = gguf_take_text(r, MAX_HEADER_BYTES, "a text", &v->text_bytes);
        if (r->status != MOE_OK)
            return;
        v->text = moe_strndup((const char *)r->buf.data + at, v->text_bytes, r->err);
        if (!v->text)
            r->status = MOE_ERR_MEMORY;
    } else {
        read_numbers(r, v, v->type, 1);
    }
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

int gguf_read_meta(struct gguf_reader *r, struct gguf_meta *meta, uint64_t n)
{
    if (r->status == MOE_OK && n > MAX_KEYS)
        gguf_fail(r, r->at, "%" PRIu64 " keys: no file has that many", n);
    if (r->status != MOE_OK)
        return r->status;
    meta->values = moe_alloc(n, sizeof *meta->values, r->err);
    if (!meta->values)
        return MOE_ERR_MEMORY;
    while (meta->n < n && r->status == MOE_OK)
        read_value(r, &meta->values[meta->n++]);
    if (r->status != MOE_OK)
        return r->status;
    if (n)
        qsort(meta->values, n, sizeof *meta->values, compare_keys);
    for (uint64_t i = 1; i < n && r->status == MOE_OK; i++)
        if (compare_keys(&meta->values[i - 1], &meta->values[i]) == 0)
            gguf_fail(r, r->at, "key '%.100s' occurs twice", meta->values[i].key);
    return r->status;
}

void gguf_meta_release(struct gguf_meta *meta)
{
    for (uint64_t i = 0; i < meta->n; i++) {
        free(meta->values[i].key);
        free(meta->values[i].text);
        free(meta->values[i].offsets);
    }
    free(meta->values);
    moe_buf_release(&meta->buf);
    *meta = (struct gguf_meta){0};
}

/* ---- Tensors ---- */

enum {
    MAX_TENSORS = 1 << 20,
    MAX_NAME_BYTES = 255,
    INFO_BYTES = 8 + 1 + 4 + 4 + 8, /* the shortest info */
};

/* Reads the dimensions, innermost first in the file. */
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
    const struct moe_ggml_type *type = number < MOE_GGML_OWN ? moe_ggml_find(number) : NULL;
    if (!type) {
        r->status = moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                             "%s: tensor '%.100s' is of an unknown type, number %" PRIu32, r->path,
                             t->name, number);
        return;
    }
    snprintf(entry->dtype_name, sizeof entry->dtype_name, "%s", type->name);
    t->dtype = t->n_items && type->kind ? (enum moe_dtype)(number + 1) : MOE_DTYPE_OTHER;
    if (inner % type->items != 0)
        gguf_fail(r, begin,
                  "tensor '%.100s': rows of %" PRIu64 " are no whole %s blocks of %" PRIu32,
                  t->name, inner, type->name, type->items);
    else if (!moe_mul_u64(t->n_items / type->items, type->bytes - (type->factor ? 4 : 0),
                          &t->bytes))
        gguf_fail(r, begin, "tensor '%.100s' has an impossible shape", t->name);
    else if (t->n_items) /* no overflow: a block has more values than bytes */
        t->bytes += t->n_items / inner * type->factor;
}

/* Sets offsets, which count from the beginning of the data, known only now. */
static void place_tensor(struct gguf_reader *r, struct moe_tensor *t, uint64_t data,
                         uint64_t alignment)
{
    uint64_t room = r->file_bytes > data ? r->file_bytes - data : 0;
    if (t->offset % alignment != 0)
        gguf_fail(r, data, "tensor '%.100s' begins at %" PRIu64 ", not a multiple of %" PRIu64,
                  t->name, t->offset, alignment);
    else if (t->offset > room || t->bytes > room - t->offset)
        gguf_fail(r, data,
                  "tensor '%.100s' (%" PRIu64 " bytes at %" PRIu64
                  ") goes past the end of the data "
                  "of %" PRIu64 " bytes (file cut short? download it again)",
                  t->name, t->bytes, t->offset, room);
    else
        t->offset += data;
}

int gguf_read_tensors(struct gguf_reader *r, struct moe_tensor_list *list, int file, uint64_t n,
                      uint64_t alignment)
{
    uint64_t first = list->n;
    if (r->status == MOE_OK && (n > MAX_TENSORS || n > (r->file_bytes - r->at) / INFO_BYTES))
        gguf_fail(r, r->at,
                  "%" PRIu64 " tensors: more than the file can hold (cut short? download it again)",
                  n);
    for (uint64_t i = 0; i < n && r->status == MOE_OK; i++)
        read_info(r, list, file);
    uint64_t data = moe_round_up(r->at, alignment);
    for (uint64_t i = first; i < list->n && r->status == MOE_OK; i++)
        place_tensor(r, &list->items[i].tensor, data, alignment);
    if (r->status == MOE_OK)
        r->status = moe_tensor_list_check_overlaps(list, first, r->path, r->err);
    return r->status;
}

/* Values by key. */

/* ---- Numbers ---- */

static int64_t sign_extended(uint64_t bits, uint32_t bytes)
{
    uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
    return (int64_t)((bits ^ sign) - sign);
}

/* A number as stored: whole, or a double. */
struct number {
    bool whole, negative;
    uint64_t value; /* if whole and not negative */
    double real;
};

static struct number number_at(const uint8_t *p, uint32_t type)
{
    uint32_t bytes = gguf_type_bytes(type);
    uint64_t bits = 0;
    for (uint32_t i = 0; i < bytes; i++)
        bits |= (uint64_t)p[i] << 8 * i;
    struct number n = {.whole = true, .value = bits, .real = (double)bits};
    switch (type) {
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        n.real = (double)sign_extended(bits, bytes);
        n.negative = n.real < 0;
        break;
    case GGUF_F32:
        n.whole = false;
        n.real = (double)moe_bits_f32((uint32_t)bits);
        break;
    case GGUF_F64:
        n.whole = false;
        memcpy(&n.real, &bits, sizeof n.real);
        break;
    }
    return n;
}

static bool is_number(uint32_t type)
{
    return gguf_type_bytes(type) > 0 && type != GGUF_BOOL;
}

bool gguf_whole(const struct gguf_meta *meta, const struct gguf_value *v, uint64_t *out)
{
    if (!is_number(v->type))
        return false;
    struct number n = number_at(meta->buf.data + v->at, v->type);
    *out = n.value;
    return n.whole && !n.negative;
}

/* ---- By key ---- */

const struct gguf_value *gguf_find(const struct gguf_meta *meta, const char *key)
{
    uint64_t low = 0, high = meta->n;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = strcmp(meta->values[middle].key, key);
        if (order == 0)
            return &meta->values[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const char *moe_gguf_path(const struct moe_gguf *gguf)
{
    return gguf->files.files[0].path;
}

bool moe_gguf_has(const struct moe_gguf *gguf, const char *key)
{
    return gguf_find(&gguf->meta, key) != NULL;
}

/* Finds a value; NULL with *status set if it is missing, an error only where it is required. */
static const struct gguf_value *find_value(const struct moe_gguf *gguf, const char *key,
                                           bool required, int *status, struct moe_err *err)
{
    const struct gguf_value *v = gguf_find(&gguf->meta, key);
    *status = MOE_OK;
    if (!v && required)
        *status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is missing", moe_gguf_path(gguf), key);
    return v;
}

static int fail_type(const struct moe_gguf *gguf, const struct gguf_value *v, const char *expected,
                     struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is of type %s%s, %s was expected",
                    moe_gguf_path(gguf), v->key, gguf_type_name(v->type),
                    v->type == GGUF_ARRAY && v->n == 0 ? " (empty)" : "", expected);
}

int moe_gguf_get_u32(const struct moe_gguf *gguf, const char *key, uint32_t max, bool required,
                     uint32_t *out, struct moe_err *err)
{
    int status;
    const struct gguf_value *v = find_value(gguf, key, required, &status, err);
    if (!v)
        return status;
    bool list = v->type == GGUF_ARRAY && v->n > 0;
    uint32_t type = list ? v->element_type : v->type;
    if (!is_number(type) || type == GGUF_F32 || type == GGUF_F64)
        return fail_type(gguf, v, "a whole number", err);
    const uint8_t *data = gguf->meta.buf.data + v->at;
    uint32_t bytes = gguf_type_bytes(type);
    for (uint64_t i = 1; list && i < v->n; i++)
        if (memcmp(data, data + i * bytes, bytes) != 0)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: key '%.100s' has different numbers for different layers",
                            moe_gguf_path(gguf), key);
    struct number n = number_at(data, type);
    if (n.negative || n.value > max)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' is %.17g, 0 to %" PRIu32 " is possible",
                        moe_gguf_path(gguf), key, n.real, max);
    *out = (uint32_t)n.value;
    return MOE_OK;
}

int moe_gguf_get_double(const struct moe_gguf *gguf, const char *key, bool required, double *out,
                        struct moe_err *err)
{
    int status;
    const struct gguf_value *v = find_value(gguf, key, required, &status, err);
    if (!v)
        return status;
    if (!is_number(v->type))
        return fail_type(gguf, v, "a number", err);
    struct number n = number_at(gguf->meta.buf.data + v->at, v->type);
    if (!isfinite(n.real))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is not a finite number",
                        moe_gguf_path(gguf), key);
    *out = n.real;
    return MOE_OK;
}

int moe_gguf_get_bool(const struct moe_gguf *gguf, const char *key, bool required, bool *out,
                      struct moe_err *err)
{
    int status;
    const struct gguf_value *v = find_value(gguf, key, required, &status, err);
    if (!v)
        return status;
    if (v->type != GGUF_BOOL)
        return fail_type(gguf, v, "true or false", err);
    *out = gguf->meta.buf.data[v->at] != 0;
    return MOE_OK;
}

int moe_gguf_get_text(const struct moe_gguf *gguf, const char *key, bool required, const char **out,
                      struct moe_err *err)
{
    int status;
    const struct gguf_value *v = find_value(gguf, key, required, &status, err);
    if (!v)
        return status;
    if (v->type != GGUF_TEXT)
        return fail_type(gguf, v, "a text", err);
    if (memchr(v->text, '\0', v->text_bytes))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s': its text has a zero byte",
                        moe_gguf_path(gguf), key);
    *out = v->text;
    return MOE_OK;
}

/* ---- Arrays ---- */

int moe_gguf_get_array(const struct moe_gguf *gguf, const char *key, bool required,
                       struct moe_gguf_array *out, struct moe_err *err)
{
    int status;
    const struct gguf_value *v = find_value(gguf, key, required, &status, err);
    *out = (struct moe_gguf_array){0};
    if (!v)
        return status;
    if (v->type != GGUF_ARRAY)
        return fail_type(gguf, v, "an array", err);
    *out = (struct moe_gguf_array){v->element_type, v->n, gguf->meta.buf.data + v->at, v->offsets};
    return MOE_OK;
}

bool moe_gguf_array_is_text(const struct moe_gguf_array *array)
{
    return array->type == GGUF_TEXT;
}

double moe_gguf_array_number(const struct moe_gguf_array *array, uint64_t i)
{
    return number_at(array->data + i * gguf_type_bytes(array->type), array->type).real;
}

bool moe_gguf_array_whole(const struct moe_gguf_array *array, uint64_t i, uint64_t *out)
{
    const struct number n = number_at(array->data + i * gguf_type_bytes(array->type), array->type);
    *out = n.value;
    return is_number(array->type) && n.whole && !n.negative;
}

const char *moe_gguf_array_text(const struct moe_gguf_array *array, uint64_t i, uint64_t *n)
{
    *n = array->offsets[i + 1] - 8 - array->offsets[i];
    return (const char *)array->data + array->offsets[i];
}
