/*
 * Experts and matrices that a long conversion has rounded, in files beside the pack: a run that was
 * ended goes on from them, and shards are joined by them.
 *
 * A file is a header (magic, MOE_QUANT_VERSION, key) and then records, appended as they are done:
 * an expert of a variant with its segments one after the other, a matrix of the dense part, what
 * texts say of either before bits are shared out, or these bits. What follows the first damaged
 * record is written again. Everything is little-endian.
 */
#define _XOPEN_SOURCE 700 /* ftruncate */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "pack/convert_internal.h"

enum { MAGIC_BYTES = 12, HEAD_BYTES = 24, RECORD_BYTES = 64, SYNC_SECONDS = 5 };
static const char magic[MAGIC_BYTES] = "moe kept 1";

/* A record's head: layer, expert, variant, tokens of a rare expert plus 1 or 0 (u32 each); the four
 * sums of the error (f64); bytes of what follows, and hash_of (u64). */
enum { HASHED_BYTES = RECORD_BYTES - 8 };
enum {
    SHARED = UINT32_MAX - 1, /* the layer of a record of shared bits */
    SEEN_BYTES = 24,         /* of a matrix: known (u64), energy, weight (f64) */
};

struct place {
    int fd; /* -1: there is none */
    uint64_t at, bytes;
    uint32_t rare;
    struct moe_quant_error error;
};

struct convert_kept {
    char *paths[1 + MOE_CONVERT_MAX_SHARDS]; /* [0]: written, or NULL */
    int fds[1 + MOE_CONVERT_MAX_SHARDS];
    uint32_t n_files;
    uint64_t key;
    uint32_t n_experts, n_variants;
    /* [layer][expert][variant], then [tensor], then what was seen of these: [layer][expert],
     * [tensor] */
    struct place *places;
    uint64_t n_all_experts, n_tensors, first_seen; /* places before what was seen */
    struct place shared;
    struct moe_outfile out; /* the file at paths[0] */
    uint64_t end;           /* of its records */
    double synced;
};

/* NULL: there is no such place. */
static struct place *place_of(const struct convert_kept *k, uint32_t layer, uint32_t expert,
                              uint32_t variant)
{
    const bool tensor = layer == (uint32_t)CONVERT_TENSORS,
               seen = variant == (uint32_t)CONVERT_SEEN;
    const uint32_t n_variants = seen ? 1 : k->n_variants;
    const uint64_t n_of_experts = k->n_all_experts * n_variants;
    const uint64_t at =
        tensor ? n_of_experts + expert
               : ((uint64_t)layer * k->n_experts + expert) * n_variants + (seen ? 0 : variant);
    const bool there =
        tensor ? expert < k->n_tensors && (seen || variant == 0)
               : expert < k->n_experts && (seen || variant < n_variants) && at < n_of_experts;
    return there ? &k->places[at + (seen ? k->first_seen : 0)] : NULL;
}

/* Of a record: its head up to this, and what follows. */
static uint64_t hash_of(const uint8_t head[RECORD_BYTES], const void *data, uint64_t n)
{
    return moe_hash64(head, HASHED_BYTES) ^ moe_hash64(data, n);
}

/* ---- Reading ---- */

/* Reads the record at `at` and notes where it is; false: it is not whole. */
static bool read_record(struct convert_kept *k, int fd, const char *path, uint64_t at,
                        uint64_t size, struct moe_buf *data, uint64_t *bytes)
{
    uint8_t head[RECORD_BYTES];
    struct moe_err ignored;
    if (size - at < RECORD_BYTES ||
        moe_file_pread(fd, path, head, RECORD_BYTES, at, &ignored) != MOE_OK)
        return false;
    const uint32_t layer = moe_get_u32(head), expert = moe_get_u32(head + 4),
                   variant = moe_get_u32(head + 8);
    struct place found = {.fd = fd,
                          .at = at + RECORD_BYTES,
                          .bytes = moe_get_u64(head + 48),
                          .rare = moe_get_u32(head + 12),
                          .error = {.sum_squared_error = moe_get_f64(head + 16),
                                    .sum_squared_weight = moe_get_f64(head + 24),
                                    .output_plain = moe_get_f64(head + 32),
                                    .output_improved = moe_get_f64(head + 40)}};
    struct place *to_place =
        layer == (uint32_t)SHARED ? &k->shared : place_of(k, layer, expert, variant);
    if (!to_place || found.bytes > size - at - RECORD_BYTES)
        return false;
    moe_buf_clear(data);
    void *to = moe_buf_reserve(data, found.bytes);
    if (!to || moe_file_pread(fd, path, to, found.bytes, found.at, &ignored) != MOE_OK ||
        hash_of(head, to, found.bytes) != moe_get_u64(head + HASHED_BYTES))
        return false;
    *to_place = found;
    *bytes = RECORD_BYTES + found.bytes;
    return true;
}

/* Takes the records of an open file; *end: where the next one goes. */
static int read_records(struct convert_kept *k, int fd, const char *path, uint64_t size,
                        uint64_t *end, struct moe_err *err)
{
    uint8_t head[HEAD_BYTES] = {0};
    struct moe_buf data = {0};
    uint64_t bytes = 0;
    if (size >= HEAD_BYTES)
        MOE_TRY(moe_file_pread(fd, path, head, HEAD_BYTES, 0, err));
    if (memcmp(head, magic, MAGIC_BYTES) != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: its beginning is not that of a file of experts that moe-quantize has "
                        "kept; remove it to begin again",
                        path);
    if (moe_get_u32(head + MAGIC_BYTES) != MOE_QUANT_VERSION)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: was kept by another version of moe-quantize, which rounds otherwise; "
                        "remove it to begin again",
                        path);
    if (moe_get_u64(head + HEAD_BYTES - 8) != k->key)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: was kept by a conversion of another model, or with other options or "
                        "texts; remove it to begin again",
                        path);
    *end = HEAD_BYTES;
    while (read_record(k, fd, path, *end, size, &data, &bytes))
        *end += bytes;
    moe_buf_release(&data);
    return MOE_OK;
}

/* ---- Opening ---- */

/* Whether a file has the header alone: a run that was refused left it, whatever its options were.
 */
static bool is_empty(const char *path)
{
    struct moe_err ignored;
    uint8_t head[HEAD_BYTES];
    uint64_t size;
    const int fd = moe_file_open(path, &size, &ignored);
    const bool empty = fd >= 0 && size == HEAD_BYTES &&
                       moe_file_pread(fd, path, head, HEAD_BYTES, 0, &ignored) == MOE_OK &&
                       memcmp(head, magic, MAGIC_BYTES) == 0;
    if (fd >= 0)
        close(fd);
    return empty;
}

/* Opens the file that this run appends to, or creates it. */
static int open_own(struct convert_kept *k, const char *path, struct moe_err *err)
{
    uint8_t head[HEAD_BYTES];
    uint64_t size;
    if (moe_path_exists(path) && !is_empty(path)) {
        MOE_TRY(moe_outfile_continue(&k->out, path, err));
        k->n_files = 1;
        k->paths[0] = k->out.path;
        k->fds[0] = moe_file_open(path, &size, err);
        if (k->fds[0] < 0)
            return k->fds[0];
        return read_records(k, k->fds[0], path, size, &k->end, err);
    }
    MOE_TRY(moe_outfile_open(&k->out, path, err));
    k->n_files = 1;
    k->paths[0] = k->out.path;
    k->fds[0] = -1;
    memcpy(head, magic, MAGIC_BYTES);
    moe_put_u32(head + MAGIC_BYTES, MOE_QUANT_VERSION);
    moe_put_u64(head + HEAD_BYTES - 8, k->key);
    k->end = HEAD_BYTES;
    MOE_TRY(moe_outfile_write(&k->out, head, HEAD_BYTES, 0, err));
    return moe_outfile_publish(&k->out, err);
}

static int open_shard(struct convert_kept *k, const char *out_path, uint32_t shard, uint32_t n,
                      struct moe_err *err)
{
    char *path = convert_kept_path(out_path, shard, n, err);
    uint64_t size, end;
    if (!path)
        return MOE_ERR_MEMORY;
    const uint32_t i = k->n_files++;
    k->paths[i] = path;
    k->fds[i] = moe_file_open(path, &size, err);
    return k->fds[i] < 0 ? k->fds[i] : read_records(k, k->fds[i], path, size, &end, err);
}

char *convert_kept_path(const char *out_path, uint32_t shard, uint32_t n, struct moe_err *err)
{
    const uint64_t room = strlen(out_path) + 32;
    char *path = moe_alloc(room, 1, err);
    if (path && n)
        snprintf(path, room, "%s.%" PRIu32 "-of-%" PRIu32, out_path, shard, n);
    else if (path)
        snprintf(path, room, "%s.kept", out_path);
    return path;
}

int convert_kept_open(struct convert_kept **out, const struct converter *c, uint64_t key,
                      const struct moe_pack *pack, struct moe_err *err)
{
    const struct moe_convert_options *o = c->options;
    *out = NULL;
    if (!o->keeps && !o->n_shards && !o->n_joined)
        return MOE_OK;
    struct convert_kept *k = moe_alloc(1, sizeof *k, err);
    char *own = NULL;
    int status;
    if (!k)
        return MOE_ERR_MEMORY;
    k->key = key;
    k->n_experts = moe_pack_n_experts(pack);
    k->n_variants = o->n_experts ? (uint32_t)o->n_experts : 1;
    k->n_all_experts = (uint64_t)moe_pack_n_layers(pack) * k->n_experts;
    k->n_tensors = moe_pack_n_tensors(pack);
    k->first_seen = k->n_all_experts * k->n_variants + k->n_tensors;
    const uint64_t n_places = k->first_seen + k->n_all_experts + k->n_tensors;
    k->places = moe_alloc(n_places, sizeof *k->places, err);
    MOE_STEP(k->places ? MOE_OK : MOE_ERR_MEMORY);
    for (uint64_t i = 0; i < n_places; i++)
        k->places[i].fd = -1;
    k->shared.fd = -1;
    if (o->keeps || o->n_shards) {
        own = convert_kept_path(c->out_path, o->shard, o->n_shards, err);
        MOE_STEP(own ? MOE_OK : MOE_ERR_MEMORY);
        MOE_STEP(open_own(k, own, err));
    }
    for (uint32_t i = 1; i <= o->n_joined; i++)
        MOE_STEP(open_shard(k, c->out_path, i, o->n_joined, err));
out:
    free(own);
    *out = k;
    return status;
}

/* ---- What is there ---- */

bool convert_kept_has(const struct convert_kept *k, uint32_t layer, uint32_t expert,
                      uint32_t variant)
{
    return k && place_of(k, layer, expert, variant)->fd >= 0;
}

/* Whether a record has these bytes. *path: its file. MOE_ERR_FORMAT. */
static int check_record(const struct convert_kept *k, const struct place *p, uint32_t layer,
                        uint32_t expert, uint64_t bytes, const char **path, struct moe_err *err)
{
    *path = "";
    for (uint32_t i = 0; i < k->n_files; i++)
        *path = k->fds[i] == p->fd ? k->paths[i] : *path;
    return bytes == p->bytes
               ? MOE_OK
               : moe_fail(err, MOE_ERR_FORMAT,
                          "%s: record %" PRIu32 "/%" PRIu32 " has %" PRIu64 " bytes instead of "
                          "%" PRIu64 "; remove the file to begin again",
                          *path, layer, expert, p->bytes, bytes);
}

int convert_kept_read(const struct convert_kept *k, uint32_t layer, uint32_t expert,
                      uint32_t variant, const struct moe_expert_class *class_,
                      uint8_t *const *segments, struct convert_kept_expert *out,
                      struct moe_err *err)
{
    const struct place *p = place_of(k, layer, expert, variant);
    const char *path;
    uint64_t at = p->at, bytes = 0;
    for (uint32_t s = 0; s < class_->n_segments; s++)
        bytes += class_->segment_bytes[s];
    MOE_TRY(check_record(k, p, layer, expert, bytes, &path, err));
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        MOE_TRY(moe_file_pread(p->fd, path, segments[s], class_->segment_bytes[s], at, err));
        at += class_->segment_bytes[s];
    }
    *out = (struct convert_kept_expert){p->error, p->rare};
    return MOE_OK;
}

int convert_kept_read_seen(const struct convert_kept *k, uint32_t layer, uint32_t expert,
                           struct convert_seen *seen, uint32_t n, struct moe_err *err)
{
    const struct place *p = place_of(k, layer, expert, CONVERT_SEEN);
    uint8_t record[SEEN_BYTES];
    const char *path;
    MOE_TRY(check_record(k, p, layer, expert, (uint64_t)n * SEEN_BYTES, &path, err));
    for (uint32_t i = 0; i < n; i++) {
        MOE_TRY(moe_file_pread(p->fd, path, record, SEEN_BYTES, p->at + i * SEEN_BYTES, err));
        seen[i] = (struct convert_seen){moe_get_u64(record) != 0, moe_get_f64(record + 8),
                                        moe_get_f64(record + 16)};
    }
    return MOE_OK;
}

int convert_kept_shared(const struct convert_kept *k, int32_t *bits, uint64_t n, bool *found,
                        struct moe_err *err)
{
    *found = k && k->shared.fd >= 0 && k->shared.bytes == n * sizeof *bits;
    if (!*found)
        return MOE_OK;
    MOE_TRY(moe_file_pread(k->shared.fd, k->paths[0], bits, k->shared.bytes, k->shared.at, err));
    for (uint64_t i = 0; i < n; i++)
        bits[i] = (int32_t)moe_get_u32((const uint8_t *)&bits[i]);
    return MOE_OK;
}

/* ---- Appending ---- */

static int append(struct convert_kept *k, const uint8_t head[RECORD_BYTES],
                  const struct moe_buf *data, struct moe_err *err)
{
    MOE_TRY(moe_outfile_write(&k->out, data->data, data->size, k->end + RECORD_BYTES, err));
    MOE_TRY(moe_outfile_write(&k->out, head, RECORD_BYTES, k->end, err));
    k->end += RECORD_BYTES + data->size;
    if (moe_seconds() - k->synced > SYNC_SECONDS) {
        MOE_TRY(moe_outfile_sync(&k->out, err));
        k->synced = moe_seconds();
    }
    return MOE_OK;
}

static int put_record(struct convert_kept *k, const uint32_t what[3],
                      const struct convert_kept_expert *e, struct moe_buf *data,
                      struct moe_err *err)
{
    uint8_t head[RECORD_BYTES];
    if (data->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", k->paths[0]);
    for (int i = 0; i < 3; i++)
        moe_put_u32(head + 4 * i, what[i]);
    moe_put_u32(head + 12, e->rare);
    moe_put_f64(head + 16, e->error.sum_squared_error);
    moe_put_f64(head + 24, e->error.sum_squared_weight);
    moe_put_f64(head + 32, e->error.output_plain);
    moe_put_f64(head + 40, e->error.output_improved);
    moe_put_u64(head + 48, data->size);
    moe_put_u64(head + HASHED_BYTES, hash_of(head, data->data, data->size));
    return append(k, head, data, err);
}

int convert_kept_put(struct convert_kept *k, uint32_t layer, uint32_t expert, uint32_t variant,
                     const struct moe_expert_class *class_, uint8_t *const *segments,
                     const struct convert_kept_expert *e, struct moe_err *err)
{
    struct moe_buf data = {0};
    if (!k || !k->end)
        return MOE_OK;
    for (uint32_t s = 0; s < class_->n_segments; s++)
        moe_buf_append(&data, segments[s], class_->segment_bytes[s]);
    int status = put_record(k, (const uint32_t[]){layer, expert, variant}, e, &data, err);
    moe_buf_release(&data);
    return status;
}

int convert_kept_put_seen(struct convert_kept *k, uint32_t layer, uint32_t expert,
                          const struct convert_seen *seen, uint32_t n, struct moe_err *err)
{
    struct moe_buf data = {0};
    if (!k || !k->end)
        return MOE_OK;
    for (uint32_t i = 0; i < n; i++) {
        moe_buf_u64(&data, seen[i].known);
        moe_buf_f64(&data, seen[i].energy);
        moe_buf_f64(&data, seen[i].weight);
    }
    int status = put_record(k, (const uint32_t[]){layer, expert, CONVERT_SEEN},
                            &(struct convert_kept_expert){0}, &data, err);
    moe_buf_release(&data);
    return status;
}

int convert_kept_put_shared(struct convert_kept *k, const int32_t *bits, uint64_t n,
                            struct moe_err *err)
{
    struct moe_buf data = {0};
    if (!k || !k->end)
        return MOE_OK;
    for (uint64_t i = 0; i < n; i++)
        moe_buf_u32(&data, (uint32_t)bits[i]);
    int status = put_record(k, (const uint32_t[]){SHARED, 0, 0}, &(struct convert_kept_expert){0},
                            &data, err);
    moe_buf_release(&data);
    return status;
}

/* ---- The end ---- */

int convert_kept_close(struct convert_kept *k, bool complete, int status, struct moe_err *err)
{
    if (!k)
        return status;
    const bool own = k->n_files && k->paths[0] == k->out.path; /* also one that was refused */
    if (k->end) {
        struct moe_err ignored;
        const int synced = moe_outfile_sync(&k->out, status == MOE_OK ? err : &ignored);
        status = status == MOE_OK ? synced : status;
        char *target = NULL; /* where a link to another disk leads */
        if (complete && status == MOE_OK) {
            if (moe_path_follow(&target, k->paths[0], &ignored) == MOE_OK)
                unlink(target);
            unlink(k->paths[0]);
        }
        free(target);
    }
    for (uint32_t i = 0; i < k->n_files; i++)
        if (k->fds[i] >= 0)
            close(k->fds[i]);
    for (uint32_t i = own ? 1 : 0; i < k->n_files; i++)
        free(k->paths[i]);
    if (own)
        moe_outfile_abort(&k->out);
    free(k->places);
    free(k);
    return status;
}
