#include "fmt/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "fmt/json.h"
#include "fmt/safetensors.h"

enum { MAX_SHARDS = 4096, MAX_INDEX_BYTES = 256 << 20 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

struct shard {
    char *path;
    int fd;
};

struct moe_checkpoint {
    char *dir;
    struct shard *shards;
    int n_shards;
    struct moe_st_list list; /* sorted by name once opened */
};

/* ---- Opening ------------------------------------------------------------------------------- */

/* Opens DIR/NAME as the next shard and reads its header. */
static int open_shard(struct moe_checkpoint *ck, const char *name, struct moe_err *err)
{
    struct shard *shard = &ck->shards[ck->n_shards];
    shard->path = moe_path_join(ck->dir, name, err);
    if (!shard->path)
        return MOE_ERR_MEMORY;
    shard->fd = -1;
    int file = ck->n_shards++;
    uint64_t size;
    int fd = moe_file_open(shard->path, &size, err);
    if (fd < 0)
        return fd;
    shard->fd = fd;

    uint8_t length[8];
    if (size < sizeof length)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: only %" PRIu64 " bytes, too short for a safetensors file", shard->path,
                        size);
    int status = moe_file_pread(fd, shard->path, length, sizeof length, 0, err);
    if (status != MOE_OK)
        return status;
    uint64_t n = moe_get_u64(length);
    if (n > size - sizeof length || n > MOE_SAFETENSORS_MAX_HEADER)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: header of %" PRIu64 " bytes in a file of %" PRIu64
                        " (cut short, or not a safetensors file)",
                        shard->path, n, size);
    void *json = moe_alloc(n, 1, err);
    if (!json)
        return MOE_ERR_MEMORY;
    status = moe_file_pread(fd, shard->path, json, n, sizeof length, err);
    if (status == MOE_OK)
        status = moe_safetensors_parse(&ck->list, shard->path, file, json, n, sizeof length + n,
                                       size - sizeof length - n, err);
    free(json);
    return status;
}

/* A name in the index may only mean a file beside it. */
static bool plain_file_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') && strlen(name) < 200;
}

static int find_shard(const struct moe_checkpoint *ck, const char *name)
{
    for (int i = ck->n_shards - 1; i >= 0; i--) /* maps are mostly in shard order: latest first */
        if (strcmp(strrchr(ck->shards[i].path, '/') + 1, name) == 0)
            return i;
    return -1;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct moe_st_tensor *)a)->tensor.name,
                  ((const struct moe_st_tensor *)b)->tensor.name);
}

static int sort_by_name(struct moe_checkpoint *ck, struct moe_err *err)
{
    struct moe_st_tensor *items = ck->list.items;
    if (ck->list.n)
        qsort(items, ck->list.n, sizeof *items, compare_names);
    for (uint64_t i = 1; i < ck->list.n; i++)
        if (compare_names(&items[i - 1], &items[i]) == 0)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%.120s' is both in %s and in %s",
                            ck->dir, items[i].tensor.name,
                            strrchr(ck->shards[items[i - 1].tensor.file].path, '/') + 1,
                            strrchr(ck->shards[items[i].tensor.file].path, '/') + 1);
    return MOE_OK;
}

/* Opens every shard that the map names. */
static int open_mapped_shards(struct moe_checkpoint *ck, const char *path, json_t *map,
                              struct moe_err *err)
{
    const char *name;
    json_t *file;
    json_object_foreach(map, name, file)
    {
        const char *shard = json_string_value(file);
        if (!shard || strlen(shard) != json_string_length(file))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%.120s': a file name was expected", path,
                            name);
        if (!plain_file_name(shard))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: '%.120s' lies in '%.120s', which is not a plain file name", path,
                            name, shard);
        if (find_shard(ck, shard) >= 0)
            continue;
        if (ck->n_shards == MAX_SHARDS)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: more than %d files", path, MAX_SHARDS);
        int status = open_shard(ck, shard, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

/* Every tensor lies where the map says, and the map knows every tensor. */
static int check_map(const struct moe_checkpoint *ck, const char *path, json_t *map,
                     struct moe_err *err)
{
    for (uint64_t i = 0; i < ck->list.n; i++) {
        const struct moe_tensor *t = &ck->list.items[i].tensor;
        const char *found = strrchr(ck->shards[t->file].path, '/') + 1;
        const char *expected = json_string_value(json_object_get(map, t->name));
        if (!expected || strcmp(expected, found) != 0)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%.120s' lies in %s, the index says %.120s", path, t->name,
                            found, expected ? expected : "nothing of it");
    }
    const char *name;
    json_t *file;
    json_object_foreach(map, name, file)
    {
        if (!moe_checkpoint_find(ck, name))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%.120s' is not in %.120s, where the index says it is",
                            path, name, json_string_value(file));
    }
    return MOE_OK;
}

static int open_sharded(struct moe_checkpoint *ck, struct moe_err *err)
{
    int status = MOE_ERR_FORMAT;
    json_t *index = NULL;
    char *path = moe_path_join(ck->dir, index_name, err);
    if (!path)
        return MOE_ERR_MEMORY;
    struct moe_err why = {0};
    index = moe_json_read(path, MAX_INDEX_BYTES, &why);
    if (!index) {
        status = moe_fail(err, why.status, "%s", why.text);
        goto done;
    }
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: 'weight_map' is missing, empty or no object", path);
        goto done;
    }
    status = open_mapped_shards(ck, path, map, err);
    if (status == MOE_OK)
        status = sort_by_name(ck, err);
    if (status == MOE_OK)
        status = check_map(ck, path, map, err);
done:
    moe_json_free(index);
    free(path);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The directory holds no safetensors file under the known names: say what it holds instead. */
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
        torch = torch || ends_with(e->d_name, ".bin") || ends_with(e->d_name, ".pth") ||
                ends_with(e->d_name, ".pt");
        gguf = gguf || ends_with(e->d_name, ".gguf");
        others = others || ends_with(e->d_name, ".safetensors");
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
                        "%s: its weights are in a .gguf file, which is not read yet; give a "
                        "Hugging Face checkpoint with %s",
                        dir, single_name);
    return moe_fail(err, MOE_ERR_FORMAT,
                    config ? "%s: has config.json but no weights: neither %s nor %s"
                           : "%s: not a checkpoint: no config.json, and neither %s nor %s",
                    dir, single_name, index_name);
}

/* A file was given where a checkpoint directory is expected. */
static int fail_not_directory(const char *path, struct moe_err *err)
{
    uint64_t size;
    int fd = moe_file_open(path, &size, err);
    if (fd < 0)
        return fd;
    uint8_t magic[4] = {0};
    bool readable =
        size >= sizeof magic && moe_file_pread(fd, path, magic, sizeof magic, 0, NULL) == MOE_OK;
    close(fd);
    if (readable && memcmp(magic, "GGUF", 4) == 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a .gguf file, which is not read yet; give the directory of a Hugging "
                        "Face checkpoint with safetensors weights",
                        path);
    if (ends_with(path, ".safetensors"))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: give the directory that holds it, with config.json and tokenizer.json",
                        path);
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: not a checkpoint: a directory with config.json and %s is expected", path,
                    single_name);
}

int moe_checkpoint_open(struct moe_checkpoint **out, const char *path, struct moe_err *err)
{
    *out = NULL;
    if (!moe_path_is_directory(path))
        return fail_not_directory(path, err);
    int status = MOE_ERR_MEMORY;
    char *single = NULL, *index = NULL;
    struct moe_checkpoint *ck = moe_alloc(1, sizeof *ck, err);
    if (!ck)
        return MOE_ERR_MEMORY;
    ck->dir = moe_strndup(path, strlen(path), err);
    ck->shards = moe_alloc(MAX_SHARDS, sizeof *ck->shards, err);
    single = moe_path_join(path, single_name, err);
    index = moe_path_join(path, index_name, err);
    if (!ck->dir || !ck->shards || !single || !index)
        goto done;
    if (moe_path_exists(single)) {
        status = open_shard(ck, single_name, err);
        if (status == MOE_OK)
            status = sort_by_name(ck, err);
    } else if (moe_path_exists(index)) {
        status = open_sharded(ck, err);
    } else {
        status = fail_no_weights(path, err);
    }
done:
    free(single);
    free(index);
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
    for (int i = 0; i < ck->n_shards; i++) {
        if (ck->shards[i].fd >= 0)
            close(ck->shards[i].fd);
        free(ck->shards[i].path);
    }
    moe_st_list_release(&ck->list);
    free(ck->shards);
    free(ck->dir);
    free(ck);
}

/* ---- Asking -------------------------------------------------------------------------------- */

const char *moe_checkpoint_dir(const struct moe_checkpoint *ck)
{
    return ck->dir;
}

uint64_t moe_checkpoint_n_tensors(const struct moe_checkpoint *ck)
{
    return ck->list.n;
}

const struct moe_tensor *moe_checkpoint_at(const struct moe_checkpoint *ck, uint64_t i)
{
    return &ck->list.items[i].tensor;
}

uint64_t moe_checkpoint_index(const struct moe_checkpoint *ck, const struct moe_tensor *t)
{
    return (uint64_t)((const struct moe_st_tensor *)t - ck->list.items);
}

const struct moe_tensor *moe_checkpoint_find(const struct moe_checkpoint *ck, const char *name)
{
    struct moe_st_tensor key = {.tensor.name = name};
    if (!ck->list.n)
        return NULL;
    const struct moe_st_tensor *found =
        bsearch(&key, ck->list.items, ck->list.n, sizeof key, compare_names);
    return found ? &found->tensor : NULL;
}

/* "[4096][192]" */
static void format_dims(int n_dims, const uint64_t *dims, char out[128])
{
    int at = 0;
    out[0] = '\0';
    for (int i = 0; i < n_dims; i++)
        at += snprintf(out + at, 128 - (size_t)at, "[%" PRIu64 "]", dims[i]);
}

int moe_checkpoint_get(const struct moe_checkpoint *ck, const char *name, int n_dims,
                       const uint64_t *dims, const struct moe_tensor **out, struct moe_err *err)
{
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    char expected[128], found[128];
    format_dims(n_dims, dims, expected);
    if (!t)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' %s is missing", ck->dir, name,
                        expected);
    format_dims(t->n_dims, t->dims, found);
    const char *path = ck->shards[t->file].path;
    if (t->n_dims != n_dims || memcmp(t->dims, dims, (size_t)n_dims * sizeof *dims) != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' has the shape %s, expected %s", path,
                        name, found, expected);
    if (t->dtype == MOE_DTYPE_OTHER)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: tensor '%s' %s is of type %s; F32, F16 and BF16 are read", path, name,
                        found, ((const struct moe_st_tensor *)t)->dtype_name);
    *out = t;
    return MOE_OK;
}

/* ---- Reading ------------------------------------------------------------------------------- */

int moe_checkpoint_read(const struct moe_checkpoint *ck, const struct moe_tensor *t, uint64_t first,
                        uint64_t n, float *out, struct moe_err *err)
{
    const struct shard *shard = &ck->shards[t->file];
    uint64_t item_bytes = t->dtype == MOE_DTYPE_F32 ? 4 : 2;
    if (t->dtype == MOE_DTYPE_OTHER || first > t->n_items || n > t->n_items - first)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: tensor '%s': items %" PRIu64 " to %" PRIu64 " of %" PRIu64
                        " cannot be read",
                        shard->path, t->name, first, first + n, t->n_items);
    /* The bytes are read into the end of the caller's array and widened from its front: no write
     * reaches bytes that are still to be read. */
    uint8_t *from = (uint8_t *)out + n * (4 - item_bytes);
    int status = moe_file_pread(shard->fd, shard->path, from, n * item_bytes,
                                t->offset + first * item_bytes, err);
    if (status != MOE_OK)
        return status;
    switch (t->dtype) {
    case MOE_DTYPE_F32:
        for (uint64_t i = 0; i < n; i++)
            out[i] = moe_bits_f32(moe_get_u32(from + 4 * i));
        break;
    case MOE_DTYPE_F16:
        for (uint64_t i = 0; i < n; i++)
            out[i] = moe_f16_to_f32(moe_get_u16(from + 2 * i));
        break;
    default:
        for (uint64_t i = 0; i < n; i++)
            out[i] = moe_bf16_to_f32(moe_get_u16(from + 2 * i));
    }
    return MOE_OK;
}
