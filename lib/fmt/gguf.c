#include "fmt/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "fmt/gguf_file.h"

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
    meta->buf = r->buf; /* for the values asked for here; it may still move */
    uint64_t alignment =
        gguf_find(meta, "general.alignment") ? find_whole(meta, "general.alignment", 0) : 32;
    if (alignment == 0 || alignment % 8 || alignment & (alignment - 1) || alignment > MAX_ALIGNMENT)
        gguf_fail(r, r->at, "key 'general.alignment' is no power of 2 from 8 on");
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
    meta->buf = r.buf; /* also where it failed: for release */
    return status;
}

/* ---- Split files ---- */

enum { PART_ENDING = 20 }; /* "-00001-of-00003.gguf" */

/* Checks that the name of part `no` of `count` ends as it must; returns where its ending begins, or
 * 0. */
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
        status = moe_fail(err, MOE_ERR_IO,
                          "%s: missing: part %" PRIu64 " of a GGUF file split into %" PRIu64
                          "; all parts must be in one directory",
                          path, no + 1, count);
    if (status == MOE_OK)
        status = open_part(&gguf->files, path, to, err);
    if (status == MOE_OK &&
        (find_whole(to, "split.no", UINT64_MAX) != no || find_whole(to, "split.count", 0) != count))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: is not part %" PRIu64 " of %" PRIu64
                          " ('split.no', 'split.count'), as its name says (renamed?)",
                          path, no + 1, count);
    gguf_meta_release(&meta);
    free(path);
    return status;
}

/* All parts, the first included, by the names that follow from `path`, that of part `no`. */
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
