#define _DEFAULT_SOURCE /* fchmod */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* A file system that interrupts every read without a signal is broken. */
enum { MAX_INTERRUPTED = 1000 };

static int fail_errno(struct moe_err *err, const char *path, const char *what)
{
    char text[128];
    return moe_fail(err, MOE_ERR_IO, "%s: %s: %s", path, what,
                    moe_errno_text(errno, text, sizeof text));
}

int moe_file_open(const char *path, uint64_t *size_bytes, struct moe_err *err)
{
    /* Without O_NONBLOCK, opening a named pipe waits for a writer before it can be refused. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_errno(err, path, "cannot open");
    struct stat st;
    int status = MOE_OK;
    if (fstat(fd, &st) != 0)
        status = fail_errno(err, path, "cannot stat");
    else if (S_ISDIR(st.st_mode))
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: is a directory, a file was expected", path);
    else if (!S_ISREG(st.st_mode))
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: is not a regular file", path);
    if (status != MOE_OK) {
        close(fd);
        return status;
    }
    *size_bytes = (uint64_t)st.st_size;
    return fd;
}

int moe_file_read_all(const char *path, uint64_t max_bytes, struct moe_buf *out,
                      struct moe_err *err)
{
    uint64_t size = 0;
    int fd = moe_file_open(path, &size, err);
    if (fd < 0)
        return fd;
    int status = MOE_OK;
    if (size > max_bytes) {
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: has %" PRIu64 " bytes, more than the %" PRIu64
                          " that such a file may have",
                          path, size, max_bytes);
    } else {
        uint8_t *to = moe_buf_reserve(out, size);
        if (!to)
            status =
                moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: %" PRIu64 " bytes", path, size);
        else
            status = moe_file_pread(fd, path, to, size, 0, err);
        if (status == MOE_OK) {
            out->size += size;
            out->data[out->size] = '\0';
        }
    }
    close(fd);
    return status;
}

int moe_file_pread(int fd, const char *path, void *to, uint64_t n_bytes, uint64_t offset,
                   struct moe_err *err)
{
    uint8_t *p = to;
    uint64_t done = 0;
    int n_interrupted = 0;
    while (done < n_bytes) {
        uint64_t want = n_bytes - done;
        ssize_t got =
            pread(fd, p + done, want > (1u << 30) ? (1u << 30) : want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR && n_interrupted++ < MAX_INTERRUPTED)
            continue;
        if (got < 0)
            return fail_errno(err, path, "cannot read");
        if (got == 0)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: ends at byte %" PRIu64 ", %" PRIu64 " more were expected", path,
                            offset + done, n_bytes - done);
        done += (uint64_t)got;
    }
    return MOE_OK;
}

bool moe_path_is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool moe_path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

char *moe_path_join(const char *dir, const char *name, struct moe_err *err)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t bytes = n + strlen(name) + 2;
    char *path = malloc(bytes);
    if (!path) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: %zu bytes", bytes);
        return NULL;
    }
    snprintf(path, bytes, "%.*s/%s", (int)n, dir, name);
    return path;
}

static void outfile_forget(struct moe_outfile *out)
{
    free(out->path);
    free(out->temporary);
    *out = (struct moe_outfile){.fd = -1};
}

int moe_outfile_open(struct moe_outfile *out, const char *path, struct moe_err *err)
{
    *out = (struct moe_outfile){.fd = -1};
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* the rename would put a file in its place */
        return moe_fail(err, MOE_ERR_IO, "%s: is %s, cannot write a file there", path,
                        S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    size_t bytes = strlen(path) + sizeof ".XXXXXX";
    out->path = moe_strndup(path, strlen(path), err);
    out->temporary = malloc(bytes);
    if (!out->path || !out->temporary) {
        outfile_forget(out);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: %zu bytes", bytes);
    }
    snprintf(out->temporary, bytes, "%s.XXXXXX", path);
    out->fd = mkstemp(out->temporary);
    if (out->fd < 0) {
        int status = fail_errno(err, path, "cannot create a file there");
        outfile_forget(out);
        return status;
    }
    /* mkstemp makes the file private; an ordinary output follows the user's umask. */
    mode_t mask = umask(0);
    umask(mask);
    fchmod(out->fd, 0666 & ~mask);
    return MOE_OK;
}

int moe_outfile_write(struct moe_outfile *out, const void *data, uint64_t n_bytes, uint64_t offset,
                      struct moe_err *err)
{
    const uint8_t *p = data;
    uint64_t done = 0;
    while (done < n_bytes) {
        ssize_t put = pwrite(out->fd, p + done, n_bytes - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return fail_errno(err, out->path, "cannot write");
        done += (uint64_t)put;
    }
    if (offset + n_bytes > out->size_bytes)
        out->size_bytes = offset + n_bytes;
    return MOE_OK;
}

/* The rename is durable only once the directory that holds the name is. */
static int sync_directory_of(const char *path, struct moe_err *err)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    char *dir = slash ? moe_strndup(path, n ? n : 1, err) : moe_strndup(".", 1, err);
    if (!dir)
        return MOE_ERR_MEMORY;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0)
        return MOE_OK; /* the file is in place; some file systems do not let a directory be opened
                        */
    fsync(fd);
    close(fd);
    return MOE_OK;
}

int moe_outfile_commit(struct moe_outfile *out, struct moe_err *err)
{
    int status = MOE_OK;
    if (fsync(out->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        status = fail_errno(err, out->path, "cannot flush");
    if (close(out->fd) != 0 && status == MOE_OK)
        status = fail_errno(err, out->path, "cannot close");
    out->fd = -1;
    if (status == MOE_OK && rename(out->temporary, out->path) != 0)
        status = fail_errno(err, out->path, "cannot put the finished file in place");
    if (status == MOE_OK)
        status = sync_directory_of(out->path, err);
    else
        unlink(out->temporary);
    outfile_forget(out);
    return status;
}

void moe_outfile_abort(struct moe_outfile *out)
{
    if (out->fd >= 0)
        close(out->fd);
    if (out->temporary)
        unlink(out->temporary);
    outfile_forget(out);
}

int moe_outfile_end(struct moe_outfile *out, int status, struct moe_err *err)
{
    if (status == MOE_OK)
        return moe_outfile_commit(out, err);
    moe_outfile_abort(out);
    return status;
}

int moe_file_write_all(const char *path, const void *data, uint64_t n_bytes, struct moe_err *err)
{
    struct moe_outfile out;
    int status = moe_outfile_open(&out, path, err);
    if (status != MOE_OK)
        return status;
    return moe_outfile_end(&out, moe_outfile_write(&out, data, n_bytes, 0, err), err);
}
