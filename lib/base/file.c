/* Files read whole or exactly, with retries, and their paths. */
#define _DEFAULT_SOURCE /* pread */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum {
    MAX_INTERRUPTED = 1000, /* more than signals cause */
    MAX_IO_ERRORS = 2,      /* more tries after EIO: a path may fail over, a bus be reset */
    MAX_REFUSALS = 200,     /* with growing pauses: about four seconds */
};

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

static void sleep_for(double seconds)
{
    struct timespec length = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&length, NULL);
}

/* Decides whether to repeat a failed read, and pauses first; *n_failed counts the failures. */
static bool may_retry(int code, int *n_failed)
{
    int n = (*n_failed)++;
    switch (code) {
    case EINTR:
        return n < MAX_INTERRUPTED;
    case EIO:
        sleep_for(1e-3);
        return n < MAX_IO_ERRORS;
    case EAGAIN:
    case EBUSY:
    case ENOMEM:
        sleep_for(2e-4 * n);
        return n < MAX_REFUSALS;
    default:
        return false;
    }
}

int moe_file_pread(int fd, const char *path, void *to, uint64_t n_bytes, uint64_t offset,
                   struct moe_err *err)
{
    uint8_t *p = to;
    uint64_t done = 0;
    int n_failed = 0;
    while (done < n_bytes) {
        uint64_t want = n_bytes - done;
        ssize_t got =
            pread(fd, p + done, want > (1u << 30) ? (1u << 30) : want, (off_t)(offset + done));
        int code = errno;
        if (got < 0 && may_retry(code, &n_failed))
            continue;
        errno = code;
        if (got < 0)
            return fail_errno(err, path, "cannot read");
        if (got == 0)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: ends at byte %" PRIu64 ", %" PRIu64 " more were expected", path,
                            offset + done, n_bytes - done);
        done += (uint64_t)got;
        n_failed = 0;
    }
    return MOE_OK;
}

/* ---- Files that are something else ---- */

bool moe_path_is_unfinished(const char *path)
{
    static const char *const ends[] = {".part",  ".incomplete", ".crdownload",
                                       ".aria2", ".download",   ".partial"};
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t m = strlen(ends[i]);
        if (n > m && strcmp(path + n - m, ends[i]) == 0)
            return true;
    }
    return false;
}

/* How files begin that are taken for weights, and what they are. */
static const struct {
    const char *begin;
    const char *what;
} natures[] = {
    {"version https://git-lfs", "a Git LFS pointer, not the file that it stands for: 'git lfs "
                                "pull' in its directory fetches that"},
    {"<", "a page in HTML or XML, as servers send in place of a file: download the file again"},
    {"PK\3\4", "a zip archive or a PyTorch file: safetensors or GGUF is needed "
               "(save_pretrained(..., safe_serialization=True) makes safetensors)"},
    {"\x80\2", "a Python pickle, which is not read, as it can run programs: safetensors or GGUF is "
               "needed (save_pretrained(..., safe_serialization=True) makes safetensors)"},
    {"\x1f\x8b", "compressed by gzip: unpack it"},
    {"\xfd"
     "7zXZ",
     "compressed by xz: unpack it"},
    {"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it"},
    {"7z\xbc\xaf", "a 7z archive: unpack it"},
    {"Rar!", "a RAR archive: unpack it"},
    {"GGUF", "a GGUF file: give that file itself"},
    {"MOEP", "an expert pack: give that file itself"},
    {"tjgg", "a GGML file of before GGUF, which is not read: get the model as GGUF"},
    {"lmgg", "a GGML file of before GGUF, which is not read: get the model as GGUF"},
};

/* Whether all of n bytes are characters of a text. */
static bool is_plain_text(const uint8_t *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if ((bytes[i] < ' ' && !strchr("\t\r\n", bytes[i])) || bytes[i] == 0x7f)
            return false;
    return true;
}

const char *moe_file_nature(const uint8_t *begin, uint64_t n)
{
    uint64_t blank = 0;
    while (blank < n && begin[blank] && strchr(" \t\r\n", begin[blank]))
        blank++;
    for (size_t i = 0; i < sizeof natures / sizeof *natures; i++) {
        size_t m = strlen(natures[i].begin);
        uint64_t at = m == 1 ? blank : 0;
        if (n - at >= m && memcmp(begin + at, natures[i].begin, m) == 0)
            return natures[i].what;
    }
    return NULL;
}

int moe_file_refuse(int fd, const char *path, const char *expected, struct moe_err *err)
{
    uint8_t begin[64];
    ssize_t got = pread(fd, begin, sizeof begin, 0);
    uint64_t n = got > 0 ? (uint64_t)got : 0, zeros = 0;
    const char *what = moe_file_nature(begin, n);
    while (zeros < n && begin[zeros] == 0)
        zeros++;
    if (moe_path_is_unfinished(path))
        what = "a download that has not finished: finish it, or download the file again";
    else if (got == 0)
        what = "empty: download the file again";
    else if (n >= 16 && zeros == n)
        what = "zeros at its beginning, as of a download that has not finished: download it again";
    if (what)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: is %s", path, what);
    if (n < 8 || !is_plain_text(begin, n))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: not %s", path, expected);
    const size_t length = strlen(path);
    return moe_fail(err, MOE_ERR_FORMAT, "%s: not %s but a text: %s", path, expected,
                    length > 5 && strcmp(path + length - 5, ".json") == 0
                        ? "if it belongs to a checkpoint, give the directory"
                        : "a server's error message? Then download the file again");
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

const char *moe_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

char *moe_path_directory(const char *path, struct moe_err *err)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    return slash ? moe_strndup(path, n ? n : 1, err) : moe_strndup(".", 1, err);
}
