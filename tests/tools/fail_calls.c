/*
 * A library for LD_PRELOAD under which one call of a program fails (tests/torture/alloc.sh,
 * writes.sh):
 *
 *   FAIL_ALLOC=N        the Nth allocation from the program's start on: malloc, calloc, realloc,
 *                       aligned_alloc, posix_memalign, anonymous mmap
 *   FAIL_ALLOC_FROM=N   that and all after it
 *   FAIL_WRITE=N        the Nth call that makes, writes, flushes, names or closes a regular file
 *   FAIL_WRITE_FROM=N   that and all after it
 *   FAIL_WRITE_AS=HOW   ENOSPC (as it is without it), EIO; short: half is written; zero: 0 is
 *                       returned. With these two only writes count.
 *   FAIL_COUNT=FILE     where the numbers of allocations and writes are written at exit
 *   FAIL_WHERE=FILE     where the callers of a call that fails are written, for addr2line
 *
 * Calls that the C library makes for itself (of stdio's files: the write) are not seen; its malloc
 * is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t item);
void *__libc_realloc(void *old, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

struct failing {
    atomic_ulong calls;
    unsigned long at, from; /* 0: none */
};

static struct failing alloc_calls, write_calls;
static bool armed; /* the constructor has run, the destructor has not */
static const char *where;
static enum { AS_ENOSPC, AS_EIO, AS_SHORT, AS_ZERO } write_as;

static unsigned long number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void start(void)
{
    void *callers[2];
    backtrace(callers, 2); /* loads what it needs, with allocations of its own */
    alloc_calls.at = number("FAIL_ALLOC");
    alloc_calls.from = number("FAIL_ALLOC_FROM");
    write_calls.at = number("FAIL_WRITE");
    write_calls.from = number("FAIL_WRITE_FROM");
    where = getenv("FAIL_WHERE");
    const char *as = getenv("FAIL_WRITE_AS");
    if (as)
        write_as = !strcmp(as, "EIO")     ? AS_EIO
                   : !strcmp(as, "short") ? AS_SHORT
                   : !strcmp(as, "zero")  ? AS_ZERO
                                          : AS_ENOSPC;
    armed = true;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAIL_COUNT");
    armed = false;
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (fd >= 0)
        dprintf(fd, "%lu %lu\n", atomic_load(&alloc_calls.calls), atomic_load(&write_calls.calls));
}

static void say_where(void)
{
    void *callers[64];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, where, O_WRONLY | O_CREAT | O_APPEND, 0666);
    backtrace_symbols_fd(callers, backtrace(callers, 64), fd);
    syscall(SYS_close, fd);
}

static bool fails(struct failing *f)
{
    if (!armed)
        return false;
    unsigned long n = atomic_fetch_add(&f->calls, 1) + 1;
    bool it_does = n == f->at || (f->from && n >= f->from);
    if (it_does && where)
        say_where();
    return it_does;
}

/* ---- Allocations ---- */

static bool alloc_fails(void)
{
    if (!fails(&alloc_calls))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return alloc_fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t item)
{
    return alloc_fails() ? NULL : __libc_calloc(n, item);
}

void *realloc(void *old, size_t n)
{
    return alloc_fails() ? NULL : __libc_realloc(old, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return alloc_fails() ? NULL : __libc_memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    void *block = alloc_fails() ? NULL : __libc_memalign(alignment, n);
    if (block)
        *out = block;
    return block ? 0 : ENOMEM;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) && alloc_fails())
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

/* ---- Writes ---- */

/* The C library's function of this name. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static bool is_output(int fd)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    return fd > STDERR_FILENO && flags >= 0 && (flags & O_ACCMODE) != O_RDONLY &&
           fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/* A call that is no write. */
static bool call_fails(void)
{
    if (write_as == AS_SHORT || write_as == AS_ZERO || !fails(&write_calls))
        return false;
    errno = write_as == AS_EIO ? EIO : ENOSPC;
    return true;
}

/* Whether a write fails; *n: of how many bytes, which a short one halves. */
static bool write_fails(int fd, size_t *n, ssize_t *result)
{
    if (!is_output(fd) || !fails(&write_calls))
        return false;
    *result = write_as == AS_ZERO ? 0 : -1;
    if (write_as == AS_SHORT)
        *n = *n / 2 ? *n / 2 : *n;
    else if (write_as != AS_ZERO)
        errno = write_as == AS_EIO ? EIO : ENOSPC;
    return write_as != AS_SHORT;
}

ssize_t write(int fd, const void *data, size_t n)
{
    ssize_t result;
    return write_fails(fd, &n, &result) ? result : NEXT(write)(fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    ssize_t result;
    return write_fails(fd, &n, &result) ? result : NEXT(pwrite)(fd, data, n, offset);
}

int fsync(int fd)
{
    return call_fails() ? -1 : NEXT(fsync)(fd);
}

int fdatasync(int fd)
{
    return call_fails() ? -1 : NEXT(fdatasync)(fd);
}

int ftruncate(int fd, off_t size)
{
    return call_fails() ? -1 : NEXT(ftruncate)(fd, size);
}

int fallocate(int fd, int mode, off_t offset, off_t n)
{
    return call_fails() ? -1 : NEXT(fallocate)(fd, mode, offset, n);
}

int mkstemp(char *path)
{
    return call_fails() ? -1 : NEXT(mkstemp)(path);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    bool makes = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
    return makes && call_fails() ? -1 : NEXT(open)(path, flags, mode);
}

int link(const char *from, const char *to)
{
    return call_fails() ? -1 : NEXT(link)(from, to);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    return call_fails() ? -1 : NEXT(linkat)(from_dir, from, to_dir, to, flags);
}

int rename(const char *from, const char *to)
{
    return call_fails() ? -1 : NEXT(rename)(from, to);
}

int close(int fd)
{
    bool it_fails = is_output(fd) && call_fails();
    int error = errno, result = NEXT(close)(fd);
    if (!it_fails)
        return result;
    errno = error;
    return -1;
}
