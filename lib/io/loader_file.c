#define _GNU_SOURCE /* O_DIRECT */
#include "io/loader_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens the file of fd again with other flags: through /proc, which works even when the name is
 * gone, else by name if that still names the same file. */
static int reopen(int fd, const char *path, int flags)
{
    char self[64];
    struct stat want, got;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int again = open(self, flags);
    if (again >= 0 || !path)
        return again;
    again = open(path, flags);
    if (again >= 0 && (fstat(fd, &want) != 0 || fstat(again, &got) != 0 ||
                       want.st_dev != got.st_dev || want.st_ino != got.st_ino)) {
        close(again);
        again = -1;
    }
    return again;
}

static ssize_t try_read(int fd, void *page)
{
    ssize_t got;
    int n_tries = 0;
    do
        got = pread(fd, page, 4096, 0);
    while (got < 0 && errno == EINTR && n_tries++ < 1000);
    return got;
}

int loader_file_open(struct loader_file *f, int fd, const char *path, bool want_direct, void *page,
                     struct moe_err *err)
{
    *f = (struct loader_file){.buffered_fd = -1, .direct_fd = -1};
    if (want_direct)
        f->direct_fd = reopen(fd, path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->direct_fd >= 0 && try_read(f->direct_fd, page) < 0) {
        close(f->direct_fd); /* some file systems accept the flag and refuse the reads */
        f->direct_fd = -1;
    }
    f->buffered_fd = reopen(fd, path, O_RDONLY | O_CLOEXEC);
    f->owned = f->buffered_fd >= 0;
    if (f->owned) /* pieces are read whole: readahead would only cost */
        posix_fadvise(f->buffered_fd, 0, 0, POSIX_FADV_RANDOM);
    else
        f->buffered_fd = fd;
    if (f->direct_fd < 0 && try_read(f->buffered_fd, page) < 0) {
        char text[128];
        int status = moe_fail(err, MOE_ERR_IO, "%s: cannot read: %s", path ? path : "file",
                              moe_errno_text(errno, text, sizeof text));
        loader_file_close(f);
        return status;
    }
    return MOE_OK;
}

void loader_file_close(struct loader_file *f)
{
    if (f->direct_fd >= 0)
        close(f->direct_fd);
    if (f->owned)
        close(f->buffered_fd);
    *f = (struct loader_file){.buffered_fd = -1, .direct_fd = -1};
}

void loader_file_forget(const struct loader_file *f, uint64_t offset, uint64_t n_bytes)
{
    if (f->buffered_fd >= 0)
        posix_fadvise(f->buffered_fd, (off_t)offset, (off_t)n_bytes, POSIX_FADV_DONTNEED);
}
