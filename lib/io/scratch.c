/* Scratch files, and memory for bytes on their way. */
#define _GNU_SOURCE

#include "io/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

enum { WRITE_BYTES = 4 << 20 };

/* Marsaglia's xorshift64. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static int fail_errno(const char *path, const char *what, struct moe_err *err)
{
    char text[128];
    return moe_fail(err, MOE_ERR_IO, "%s: cannot %s a scratch file: %s", path, what,
                    moe_errno_text(errno, text, sizeof text));
}

static int write_block(int fd, const char *path, const uint8_t *block, uint64_t n_bytes,
                       struct moe_err *err)
{
    while (n_bytes > 0) {
        ssize_t n = write(fd, block, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = EIO; /* the file accepts nothing and gives no reason */
        if (n <= 0)
            return fail_errno(path, "write", err);
        block += n;
        n_bytes -= (uint64_t)n;
    }
    return MOE_OK;
}

static int fill_scratch(int fd, const char *path, uint64_t n_bytes, uint64_t *checksums,
                        uint64_t n_checksums, const struct moe_progress *progress,
                        struct moe_err *err)
{
    uint64_t random = 88172645463325252u, unit = checksums ? n_bytes / n_checksums : WRITE_BYTES;
    uint8_t *block = moe_alloc(unit + 8, 1, err);
    int status = block ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t at = 0, i = 0; at < n_bytes && status == MOE_OK; i++) {
        uint64_t n = n_bytes - at < unit ? n_bytes - at : unit;
        for (uint64_t j = 0; j < n; j += 8) {
            uint64_t x = next_random(&random);
            memcpy(block + j, &x, 8);
        }
        if (checksums)
            checksums[i] = moe_hash64(block, n);
        status = write_block(fd, path, block, n, err);
        at += n;
        moe_progress_report(progress, "writing a scratch file", at, n_bytes);
        if (status == MOE_OK && moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    free(block);
    return status;
}

int moe_scratch_open(const char *dir, uint64_t n_bytes, uint64_t *checksums, uint64_t n_checksums,
                     const struct moe_progress *progress, struct moe_err *err)
{
    int fd = moe_file_nameless(dir, NULL, err);
    if (fd < 0)
        return fd;
    int status;
    MOE_STEP(fill_scratch(fd, dir, n_bytes, checksums, n_checksums, progress, err));
    if (fsync(fd) != 0)
        MOE_STEP(fail_errno(dir, "write", err));
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
out:
    if (status != MOE_OK)
        close(fd);
    return status == MOE_OK ? fd : status;
}

/* ---- Staging ---- */

void staging_init(struct staging *s, void *base, uint64_t bytes, struct staging_range *ranges)
{
    *s = (struct staging){.base = base, .bytes = bytes, .ranges = ranges, .first = STAGING_NONE};
}

void *staging_take(struct staging *s, uint32_t owner, uint64_t bytes)
{
    uint64_t at = 0;
    uint32_t *link = &s->first;
    while (*link != STAGING_NONE && s->ranges[*link].at - at < bytes) {
        at = s->ranges[*link].at + s->ranges[*link].bytes;
        link = &s->ranges[*link].after;
    }
    if (*link == STAGING_NONE && s->bytes - at < bytes)
        return NULL;
    s->ranges[owner] = (struct staging_range){.at = at, .bytes = bytes, .after = *link};
    *link = owner;
    return s->base + at;
}

void staging_give(struct staging *s, uint32_t owner)
{
    uint32_t *link = &s->first;
    while (*link != owner)
        link = &s->ranges[*link].after;
    *link = s->ranges[owner].after;
}
