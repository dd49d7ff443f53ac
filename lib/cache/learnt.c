/* Files of what policies have learnt: a header, and behind it array after array. */
#define _POSIX_C_SOURCE 200809L /* fdopen */
#include "cache/learnt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "cache/usage.h"

#define MAGIC "MOEL"
#define WRONG_SIZE "its size is not what its header says"
enum { VERSION = 2, HEADER = 48, PIECE = 64 << 10, MAX_TOKENS = 1 << 20 };
enum { MAX_LAYERS = 1 << 12, MAX_TOP_K = 64 }; /* of a file that is only described */

/* The arrays on their way, as they lie in memory. */
struct arrays {
    uint64_t bytes; /* of those so far */
    struct moe_hasher *hasher;

    struct moe_outfile *out;
    struct moe_buf piece;
    int status;
    struct moe_err *err;

    FILE *in;
    uint64_t all, check; /* bytes of all, and their checksum */
};

/* ---- The header ---- */

static void encode(uint8_t to[HEADER], const struct moe_learnt_origin *of, uint32_t n_tokens,
                   uint64_t check)
{
    const uint32_t words[] = {of->n_layers, of->n_experts, of->top_k, n_tokens};
    memcpy(to, MAGIC, 4);
    moe_put_u32(to + 4, VERSION);
    moe_put_u64(to + 8, of->source);
    for (int i = 0; i < 4; i++)
        moe_put_u32(to + 16 + 4 * i, words[i]);
    moe_put_u64(to + 32, check);
    moe_put_u64(to + 40, moe_hash64(to, 40));
}

static int damaged(const char *path, const char *what, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: the file of what was learnt is damaged: %s (without it a run writes a new "
                    "one)",
                    path, what);
}

static int check_header(const uint8_t header[HEADER], const char *path, struct moe_err *err)
{
    if (moe_get_u32(header + 4) != VERSION)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: a file of what was learnt of version %u, and this program reads "
                        "version %d",
                        path, moe_get_u32(header + 4), VERSION);
    if (moe_get_u64(header + 40) != moe_hash64(header, 40))
        return damaged(path, "the checksum of its header is wrong", err);
    return moe_get_u32(header + 28) <= MAX_TOKENS ? MOE_OK
                                                  : damaged(path, "it has impossible values", err);
}

/* Opens a file and reads its header; *fd is below 0 where that failed. */
static int open_file(const char *path, uint8_t header[HEADER], int *fd, uint64_t *size,
                     struct moe_err *err)
{
    *fd = moe_file_open(path, size, err);
    if (*fd < 0)
        return *fd;
    const size_t n = *size < HEADER ? (size_t)*size : HEADER;
    int status = moe_file_pread(*fd, path, header, n, 0, err);
    if (status == MOE_OK && memcmp(header, MAGIC, n < 4 ? n : 4) != 0)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: not a file of what was learnt (--learn makes one)", path);
    if (status == MOE_OK && n < HEADER)
        status = damaged(path, n ? "it is cut off" : "it is empty", err);
    if (status == MOE_OK)
        status = check_header(header, path, err);
    if (status != MOE_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static int decode(const uint8_t from[HEADER], const char *path, const struct moe_learnt_origin *of,
                  uint32_t *n_tokens, uint64_t *check, struct moe_err *err)
{
    const uint32_t shape[] = {of->n_layers, of->n_experts, of->top_k};
    const uint64_t source = moe_get_u64(from + 8);
    bool same = !source || !of->source || source == of->source;
    for (int i = 0; i < 3; i++)
        same &= moe_get_u32(from + 16 + 4 * i) == shape[i];
    if (!same)
        return moe_fail(
            err, MOE_ERR_USAGE,
            "%s: this was learnt from another model than %s, or with another number of layers "
            "(--learn with a new name begins anew)",
            path, of->name);
    *n_tokens = moe_get_u32(from + 28);
    *check = moe_get_u64(from + 32);
    return MOE_OK;
}

/* ---- Arrays ---- */

static bool count_array(void *ctx, void *numbers, uint64_t n, uint32_t bytes)
{
    ((struct arrays *)ctx)->bytes += n * bytes;
    return true;
}

static bool write_piece(struct arrays *a, const void *data, uint64_t n)
{
    if (n && a->status == MOE_OK)
        a->status = moe_outfile_write(a->out, data, n, a->out->size_bytes, a->err);
    return a->status == MOE_OK;
}

/* Large arrays go straight into the file. */
static bool write_array(void *ctx, void *numbers, uint64_t n, uint32_t bytes)
{
    struct arrays *a = ctx;
    const uint64_t size = n * bytes;
    moe_hasher_add(a->hasher, numbers, size);
    if (size < PIECE && a->piece.size + size < PIECE) {
        moe_buf_append(&a->piece, numbers, size);
        return !a->piece.failed;
    }
    bool good = write_piece(a, a->piece.data, a->piece.size) && write_piece(a, numbers, size);
    moe_buf_clear(&a->piece);
    return good;
}

/* After the last one all must have been as they were written. */
static bool read_array(void *ctx, void *numbers, uint64_t n, uint32_t bytes)
{
    struct arrays *a = ctx;
    const uint64_t size = n * bytes;
    if (size && fread(numbers, 1, size, a->in) != size)
        return false;
    moe_hasher_add(a->hasher, numbers, size);
    a->bytes += size;
    return a->bytes < a->all || moe_hasher_end(a->hasher) == a->check;
}

/* ---- Files ---- */

int moe_learnt_write(const char *path, const struct moe_learnt_origin *of, struct moe_follower *f,
                     struct moe_err *err)
{
    uint8_t header[HEADER] = {0};
    struct moe_outfile file = {.fd = -1};
    struct arrays a = {.out = &file, .err = err, .hasher = moe_hasher_new()};
    int status;
    MOE_STEP(a.hasher ? moe_outfile_open(&file, path, err)
                      : moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path));
    moe_outfile_keep_private(&file); /* it follows what was said */
    moe_hasher_begin(a.hasher);
    a.status = moe_outfile_write(&file, header, HEADER, 0, err);
    f->learnt(f, f->n_tokens, false, write_array, &a);
    write_piece(&a, a.piece.data, a.piece.size);
    if (a.piece.failed)
        a.status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path);
    encode(header, of, f->n_tokens, moe_hasher_end(a.hasher));
    if (a.status == MOE_OK)
        a.status = moe_outfile_write(&file, header, HEADER, 0, err);
    status = moe_outfile_end(&file, a.status, err);
out:
    moe_buf_release(&a.piece);
    moe_hasher_free(a.hasher);
    return status;
}

int moe_learnt_read(const char *path, const struct moe_learnt_origin *of, struct moe_follower *f,
                    struct moe_err *err)
{
    uint8_t header[HEADER] = {0};
    uint64_t size;
    uint32_t n_tokens = 0;
    struct arrays a = {.hasher = moe_hasher_new()}, counts = {0};
    int fd, status;
    MOE_STEP(open_file(path, header, &fd, &size, err));
    MOE_STEP(decode(header, path, of, &n_tokens, &a.check, err));
    f->learnt(f, n_tokens, false, count_array, &counts);
    a.all = counts.bytes;
    if (size != HEADER + a.all)
        MOE_STEP(damaged(path, WRONG_SIZE, err));
    a.in = fdopen(fd, "rb");
    if (!a.in || !a.hasher)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path));
    moe_hasher_begin(a.hasher);
    if (fseek(a.in, HEADER, SEEK_SET) != 0 || !f->learnt(f, n_tokens, true, read_array, &a))
        MOE_STEP(damaged(path, "its checksum is wrong, or it has impossible values", err));
out:
    if (a.in)
        fclose(a.in);
    else if (fd >= 0)
        close(fd);
    moe_hasher_free(a.hasher);
    return status;
}

/* ---- What they say ---- */

bool moe_learnt_is(const char *path)
{
    uint8_t magic[4];
    uint64_t size = 0;
    const int fd = moe_file_open(path, &size, NULL);
    if (fd < 0)
        return false;
    const bool is = size >= sizeof magic &&
                    moe_file_pread(fd, path, magic, sizeof magic, 0, NULL) == MOE_OK &&
                    memcmp(magic, MAGIC, sizeof magic) == 0;
    close(fd);
    return is;
}

int moe_learnt_describe(struct moe_learnt_about *out, const char *path,
                        const struct moe_learnt_origin *wanted, struct moe_err *err)
{
    uint8_t header[HEADER] = {0};
    struct moe_usage u = {0};
    int fd, status;
    MOE_TRY(open_file(path, header, &fd, &out->bytes, err));
    close(fd);
    const struct moe_learnt_origin of = {moe_get_u64(header + 8), path, moe_get_u32(header + 16),
                                         moe_get_u32(header + 20), moe_get_u32(header + 24)};
    /* Its pairs of experts are in the file: no size of theirs is absurd. */
    const uint64_t most = out->bytes / 2;
    if (of.n_layers < 1 || of.n_layers > MAX_LAYERS || of.top_k < 1 || of.top_k > MAX_TOP_K ||
        of.top_k > of.n_experts)
        return damaged(path, "it has impossible values", err);
    if (of.n_experts > most || (uint64_t)of.n_experts * of.n_experts > most / of.n_layers)
        return damaged(path, WRONG_SIZE, err);
    MOE_STEP(moe_usage_init(&u, of.n_layers, of.n_experts, of.top_k, err));
    MOE_STEP(moe_policy_follow(moe_policy_find("learned"), &u, 0, err));
    MOE_STEP(moe_learnt_read(path, wanted ? wanted : &of, u.follower, err));
    *out = (struct moe_learnt_about){
        of.source,    out->bytes, u.follower->n_learnt(u.follower), of.n_layers,
        of.n_experts, of.top_k,   moe_get_u32(header + 28)};
out:
    moe_usage_release(&u);
    return status;
}
