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
#include "fmt/json_scan.h"
#include "fmt/safetensors.h"
#include "fmt/tensor_pairs.h"

enum { MAX_SHARDS = 4096, MAX_INDEX_BYTES = 256 << 20 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* The directory being opened. */
struct opening {
    const char *dir;
    struct moe_tensor_files *to;
};

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
        status = moe_safetensors_parse(&o->to->list, shard->path, file, json, n, sizeof length + n,
                                       size - sizeof length - n, err);
    free(json);
    return status;
}

/* A name in the index may only name a file in its directory. */
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

/* The index's text, and what is read of it. */
struct index {
    char *path; /* owned */
    struct moe_buf text, name, shard;
    struct moe_json_scan scan;
    bool *in_map; /* of each tensor of the sorted list, once that is known */
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

/* The tensor is where the map says, and said once. */
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

/* Calls `take` for every member of the map that comes next. */
static int read_map(struct opening *o, struct index *index,
                    int (*take)(struct opening *o, struct index *index, struct moe_err *err),
                    uint64_t *n, struct moe_err *err)
{
    struct moe_json_scan *s = &index->scan;
    int status = MOE_OK;
    if (moe_json_scan_peek(s) != MOE_JSON_OBJECT) {
        moe_json_scan_skip(s);
        return s->status;
    }
    moe_json_scan_enter(s);
    for (; status == MOE_OK && moe_json_scan_next(s, &index->name); (*n)++) {
        bool is_text = moe_json_scan_peek(s) == MOE_JSON_TEXT;
        if (is_text)
            moe_json_scan_text(s, &index->shard);
        if (s->status != MOE_OK)
            break;
        if (!is_text || strlen((const char *)index->shard.data) != index->shard.size)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%.120s': a file name was expected",
                            index->path, (const char *)index->name.data);
        status = take(o, index, err);
    }
    return status == MOE_OK ? s->status : status;
}

/* Reads the index and calls `take` for every member of its map. */
static int read_index(struct opening *o, struct index *index,
                      int (*take)(struct opening *o, struct index *index, struct moe_err *err),
                      struct moe_err *err)
{
    struct moe_json_scan *s = &index->scan;
    uint64_t n = 0;
    bool has_map = false;
    int status = MOE_OK;
    moe_json_scan_begin(s, index->path, index->text.data, index->text.size, true, err);
    if (moe_json_scan_peek(s) == MOE_JSON_OBJECT) {
        moe_json_scan_enter(s);
        while (status == MOE_OK && moe_json_scan_next(s, &index->name)) {
            bool is_map = strcmp((const char *)index->name.data, "weight_map") == 0;
            if (is_map && has_map)
                moe_json_scan_fail(s, "duplicate key 'weight_map'");
            has_map |= is_map;
            if (is_map)
                status = read_map(o, index, take, &n, err);
            else
                moe_json_scan_skip(s);
        }
    } else {
        moe_json_scan_skip(s);
    }
    if (status == MOE_OK)
        status = moe_json_scan_end(s);
    if (status == MOE_OK && n == 0)
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: 'weight_map' is missing, empty or no object",
                          index->path);
    return status;
}

/* Every tensor is where the map says, and the map has every tensor. */
static int check_map(struct opening *o, struct index *index, struct moe_err *err)
{
    uint64_t n = o->to->list.n;
    index->in_map = moe_alloc(n, sizeof *index->in_map, err);
    int status = index->in_map ? read_index(o, index, check_entry, err) : MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++)
        if (!index->in_map[i])
            status = fail_misplaced(o, index, &o->to->list.items[i].tensor, "nothing of it", err);
    return status;
}

static int open_sharded(struct opening *o, struct moe_err *err)
{
    struct index index = {.path = moe_path_join(o->dir, index_name, err)};
    if (!index.path)
        return MOE_ERR_MEMORY;
    int status = moe_file_read_all(index.path, MAX_INDEX_BYTES, &index.text, err);
    if (status == MOE_OK)
        status = read_index(o, &index, open_mapped_shard, err);
    if (status == MOE_OK)
        status = sort_by_name(o, err);
    if (status == MOE_OK)
        status = check_map(o, &index, err);
    moe_buf_release(&index.text);
    moe_buf_release(&index.name);
    moe_buf_release(&index.shard);
    free(index.in_map);
    free(index.path);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* ---- Opening ---- */

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
                        "%s: its weights are in a .gguf file; give that file itself", dir);
    return moe_fail(err, MOE_ERR_FORMAT,
                    config ? "%s: has config.json but no weights: neither %s nor %s"
                           : "%s: not a checkpoint: no config.json, and neither %s nor %s",
                    dir, single_name, index_name);
}

int moe_checkpoint_open_hf(struct moe_tensor_files *out, const char *dir, struct moe_err *err)
{
    struct opening o = {dir, out};
    int status = MOE_ERR_MEMORY;
    char *single = moe_path_join(dir, single_name, err);
    char *index = moe_path_join(dir, index_name, err);
    out->files = moe_alloc(MAX_SHARDS, sizeof *out->files, err);
    if (!single || !index || !out->files)
        goto done;
    if (moe_path_exists(single)) {
        status = open_shard(&o, single_name, err);
        if (status == MOE_OK)
            status = sort_by_name(&o, err);
    } else if (moe_path_exists(index)) {
        status = open_sharded(&o, err);
    } else {
        status = fail_no_weights(dir, err);
    }
    if (status == MOE_OK)
        status = moe_tensor_pairs_join(&out->list, dir, err);
done:
    free(single);
    free(index);
    return status;
}
