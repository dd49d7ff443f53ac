/* Files being written: without a name where the file system can, else under a name of their own. */
#define _GNU_SOURCE /* O_TMPFILE, mkostemp */
#define _GNU_SOURCE /* flock, getrandom */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

/*
 * Places and names of unfinished outputs.
 */

enum { MAX_TRIES = 100 /* names, each of 56 thousand million */ };

/* Where outputs go (through symbolic links), the names of unfinished ones, and what killed writers
 * left. */

/* NAME.moe-unfinished-XXXXXX, with NAME cut to leave room for the rest. */
#define MARK ".moe-unfinished-"
enum { RANDOM_LETTERS = 6, MAX_NAMED = 200, MAX_LINKS = 40 };

/* ---- Where an output goes ---- */

static const char *name_in(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether a symbolic link belongs to /proc, as /dev/stdout leads to: it names no file but one that
 * is already open. */
static bool is_of_proc(const char *path)
{
    struct statfs fs;
    char *dir = moe_path_directory(path, NULL);
    bool is = dir && statfs(dir, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
    free(dir);
    return is;
}

/* Where the symbolic link at `path` points, relative to the same directory as `path`; NULL: out of
 * memory. */
static char *joined_link(const char *path, const char *link, struct moe_err *err)
{
    if (link[0] == '/')
        return moe_strndup(link, strlen(link), err);
    char *dir = moe_path_directory(path, err), *joined = dir ? moe_path_join(dir, link, err) : NULL;
    free(dir);
    return joined;
}

int moe_path_follow(char **out, const char *path, struct moe_err *err)
{
    char link[PATH_MAX];
    int status = MOE_OK;
    *out = moe_strndup(path, strlen(path), err);
    for (int n = 0; *out && status == MOE_OK; n++) {
        ssize_t bytes = readlink(*out, link, sizeof link - 1);
        if (bytes < 0) /* no link, or nothing there: the later open reports the error */
            break;
        link[bytes] = '\0';
        if (is_of_proc(*out))
            status = moe_fail(err, MOE_ERR_IO,
                              "%s: is a file that is already open; name the file itself", path);
        else if (n == MAX_LINKS)
            status = moe_fail(err, MOE_ERR_IO, "%s: is a loop of symbolic links", path);
        if (status != MOE_OK)
            break;
        char *next = joined_link(*out, link, err);
        free(*out);
        *out = next;
    }
    if (!*out)
        return MOE_ERR_MEMORY;
    if (status != MOE_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

/* ---- Names of unfinished files ---- */

/* "DIR/NAME.moe-unfinished-" for an output DIR/NAME, with room for the letters after it; free() it.
 * NULL: out of memory. */
static char *outfile_unfinished(const char *target, struct moe_err *err)
{
    const char *name = name_in(target);
    size_t dir = (size_t)(name - target), n = strlen(name), bytes;
    n = n < MAX_NAMED ? n : MAX_NAMED;
    bytes = dir + n + sizeof MARK + RANDOM_LETTERS;
    char *prefix = moe_alloc(bytes, 1, err);
    if (prefix)
        snprintf(prefix, bytes, "%.*s%s", (int)(dir + n), target, MARK);
    return prefix;
}

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/* Writes random letters after the first n bytes of such a name. */
static void outfile_draw_letters(char *name, size_t n)
{
    uint8_t random[RANDOM_LETTERS] = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        random[0] = (uint8_t)getpid(); /* a name that is taken is drawn again */
    for (int i = 0; i < RANDOM_LETTERS; i++)
        name[n + (size_t)i] = letters[random[i] % (sizeof letters - 1)];
    name[n + RANDOM_LETTERS] = '\0';
}

/* Removes an unfinished file unless a process holds it. Its writer locks it before writing and
 * keeps the lock until the file has its final name. */
static void remove_if_left(const char *path)
{
    struct stat by_fd, by_name;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &by_fd) == 0 && S_ISREG(by_fd.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        lstat(path, &by_name) == 0 && by_fd.st_dev == by_name.st_dev &&
        by_fd.st_ino == by_name.st_ino)
        unlink(path);
    close(fd);
}

/* Removes unfinished files of the same output that killed writers left. */
static void outfile_sweep(const char *target)
{
    char *dir = moe_path_directory(target, NULL), *prefix = outfile_unfinished(target, NULL);
    DIR *d = dir && prefix ? opendir(dir) : NULL;
    size_t n = prefix ? strlen(name_in(prefix)) : 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, name_in(prefix), n) == 0 &&
            strspn(e->d_name + n, letters) == RANDOM_LETTERS &&
            e->d_name[n + RANDOM_LETTERS] == '\0') {
            char *path = moe_path_join(dir, e->d_name, NULL);
            if (path)
                remove_if_left(path);
            free(path);
        }
    if (d)
        closedir(d);
    free(prefix);
    free(dir);
}

static int fail_errno(struct moe_err *err, const char *path, const char *what)
{
    char text[128];
    return moe_fail(err, MOE_ERR_IO, "%s: %s: %s", path, what,
                    moe_errno_text(errno, text, sizeof text));
}

/* ---- Opening ---- */

static void outfile_forget(struct moe_outfile *out)
{
    free(out->path);
    free(out->target);
    free(out->temporary);
    *out = (struct moe_outfile){.fd = -1};
}

static void descriptor_path(int fd, char path[MOE_DESCRIPTOR_PATH])
{
    snprintf(path, MOE_DESCRIPTOR_PATH, "/proc/self/fd/%d", fd);
}

/* Opens a file without a name that can be given one later; -1 where the file system cannot. */
static int open_nameless(const char *target, mode_t mode)
{
    char self[MOE_DESCRIPTOR_PATH], *dir = moe_path_directory(target, NULL);
    int fd = dir ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, mode) : -1;
    free(dir);
    if (fd < 0)
        return -1;
    descriptor_path(fd, self);
    if (access(self, F_OK) == 0) {
        flock(fd, LOCK_EX | LOCK_NB); /* held while the file has the name of an unfinished one */
        return fd;
    }
    close(fd); /* without /proc the file could not be named */
    return -1;
}

/* Creates and locks a new file under an unfinished name. */
static int open_named(struct moe_outfile *out, mode_t mode, struct moe_err *err)
{
    size_t n = strlen(out->temporary);
    for (int i = 0; i < MAX_TRIES; i++) {
        struct stat st;
        outfile_draw_letters(out->temporary, n);
        out->fd = open(out->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (out->fd < 0 && errno == EEXIST)
            continue;
        if (out->fd < 0)
            break;
        /* Another process may have swept it before it was locked. */
        if ((flock(out->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
            fstat(out->fd, &st) == 0 && st.st_nlink > 0)
            return MOE_OK;
        close(out->fd);
        out->fd = -1;
        errno = EEXIST;
    }
    return fail_errno(err, out->path, "cannot create a file there");
}

/* Opens the unfinished file beside the target, with or without a name. */
static int open_beside(struct moe_outfile *out, struct moe_err *err)
{
    struct stat st;
    MOE_TRY(moe_path_follow(&out->target, out->path, err));
    bool replaces = stat(out->target, &st) == 0;
    /* A private file is replaced by one that is private from the start; a new one follows the
     * umask. */
    mode_t mode = replaces ? 0600 : 0666;
    if (!replaces && errno != ENOENT)
        return fail_errno(err, out->path, "cannot create a file there");
    if (!(out->temporary = outfile_unfinished(out->target, err)))
        return MOE_ERR_MEMORY;
    outfile_sweep(out->target);
    out->nameless = (out->fd = open_nameless(out->target, mode)) >= 0;
    return out->nameless ? MOE_OK : open_named(out, mode, err);
}

int moe_outfile_open(struct moe_outfile *out, const char *path, struct moe_err *err)
{
    *out = (struct moe_outfile){.fd = -1};
    struct stat st;
    bool there = stat(path, &st) == 0;
    if (there && !S_ISREG(st.st_mode)) /* the rename would put a file in its place */
        return moe_fail(err, MOE_ERR_IO, "%s: is %s, cannot write a file there", path,
                        S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    int status = MOE_OK;
    if (!(out->path = moe_strndup(path, strlen(path), err))) {
        status = MOE_ERR_MEMORY;
    } else if (there && st.st_nlink == 0) { /* moe_file_nameless: nothing to put in place */
        out->in_place = true;
        if ((out->fd = open(path, O_RDWR | O_TRUNC | O_CLOEXEC)) < 0)
            status = fail_errno(err, path, "cannot open");
    } else {
        status = open_beside(out, err);
    }
    if (status != MOE_OK)
        outfile_forget(out);
    return status;
}

void moe_outfile_keep_private(struct moe_outfile *out)
{
    out->is_private = fchmod(out->fd, S_IRUSR | S_IWUSR) == 0;
}

int moe_outfile_continue(struct moe_outfile *out, const char *path, struct moe_err *err)
{
    *out = (struct moe_outfile){.fd = -1, .in_place = true};
    int status = MOE_OK;
    if (!(out->path = moe_strndup(path, strlen(path), err)))
        return MOE_ERR_MEMORY;
    if ((out->fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        status = fail_errno(err, path, "cannot open");
    else if (flock(out->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        status = moe_fail(err, MOE_ERR_IO, "%s: another process is writing it", path);
    if (status != MOE_OK)
        moe_outfile_abort(out);
    return status;
}

int moe_outfile_try(const char *path, struct moe_err *err)
{
    struct moe_outfile out;
    MOE_TRY(moe_outfile_open(&out, path, err));
    moe_outfile_abort(&out);
    return MOE_OK;
}

/* ---- Pipes, devices, and what is open already ---- */

/* The descriptor of this process that the path names; -1: none. */
static int named_descriptor(const char *path)
{
    static const char *const directories[] = {"/dev/fd/", "/proc/self/fd/"};
    uint64_t n;
    if (strcmp(path, "-") == 0 || strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    for (size_t i = 0; i < sizeof directories / sizeof directories[0]; i++) {
        size_t prefix = strlen(directories[i]);
        if (strncmp(path, directories[i], prefix) == 0 && moe_parse_u64(path + prefix, &n) &&
            n < INT_MAX)
            return (int)n;
    }
    return -1;
}

/* Tells whether the output at `path` is written directly, in order. *fd: the descriptor that the
 * path names, or -1. False for a regular file with a name and for a directory. */
static bool is_straight(const char *path, int *fd)
{
    struct stat st;
    *fd = named_descriptor(path);
    if (*fd >= 0) /* a nameless regular file is written from its start, like one with a name */
        return fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink > 0;
    return stat(path, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode));
}

static bool may_write(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY) {
        errno = EBADF;
        return false;
    }
    return flags >= 0;
}

int moe_outfile_open_text(struct moe_outfile *out, const char *path, struct moe_err *err)
{
    int named;
    if (!is_straight(path, &named))
        return moe_outfile_open(out, path, err);
    *out = (struct moe_outfile){.fd = -1, .in_place = true, .straight = true};
    if (!(out->path = moe_strndup(path, strlen(path), err)))
        return MOE_ERR_MEMORY;
    out->fd =
        named < 0 ? open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC) : fcntl(named, F_DUPFD_CLOEXEC, 0);
    if (out->fd >= 0 && may_write(out->fd))
        return MOE_OK;
    int status = fail_errno(err, path, "cannot open for writing");
    moe_outfile_abort(out);
    return status;
}

int moe_outfile_try_text(const char *path, struct moe_err *err)
{
    int named;
    if (!is_straight(path, &named))
        return moe_outfile_try(path, err);
    if (named < 0 ? access(path, W_OK) == 0 : may_write(named))
        return MOE_OK;
    return fail_errno(err, path, "cannot open for writing");
}

/* ---- Writing, and the end ---- */

/* Writes once at the offset; waits while the descriptor is not ready. */
static ssize_t put_bytes(const struct moe_outfile *out, const void *data, uint64_t n,
                         uint64_t offset)
{
    struct pollfd file = {.fd = out->fd, .events = POLLOUT};
    if (!out->straight)
        return pwrite(out->fd, data, n, (off_t)offset);
    ssize_t put = write(out->fd, data, n);
    if (put < 0 && errno == EAGAIN && poll(&file, 1, -1) >= 0)
        errno = EINTR;
    return put;
}

int moe_outfile_write(struct moe_outfile *out, const void *data, uint64_t n_bytes, uint64_t offset,
                      struct moe_err *err)
{
    const uint8_t *p = data;
    uint64_t done = 0;
    if (out->straight && offset != out->size_bytes)
        return moe_fail(err, MOE_ERR_USAGE, "%s: can only be written in order", out->path);
    while (done < n_bytes) {
        ssize_t put = put_bytes(out, p + done, n_bytes - done, offset + done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return fail_errno(err, out->path, "cannot write");
        if (put == 0) /* repeating it would loop forever */
            return moe_fail(err, MOE_ERR_IO, "%s: cannot write: the system takes no bytes",
                            out->path);
        done += (uint64_t)put;
    }
    if (offset + n_bytes > out->size_bytes)
        out->size_bytes = offset + n_bytes;
    return MOE_OK;
}

/* Makes the rename durable by syncing the directory. Cannot fail: the file is already in place, and
 * some file systems do not let a directory be opened. */
static void sync_directory_of(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    snprintf(dir, sizeof dir, "%.*s", slash && n ? (int)n : 1, slash ? path : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

/* Copies mode, owner and group of the replaced file as far as allowed. If the group cannot be set,
 * it gets no more rights than everybody. */
static void take_after(int fd, const char *replaced)
{
    struct stat old, new;
    if (stat(replaced, &old) != 0 || fstat(fd, &new) != 0)
        return;
    mode_t mode = old.st_mode & 0777;
    if ((old.st_uid != new.st_uid || old.st_gid != new.st_gid) &&
        fchown(fd, old.st_uid, old.st_gid) != 0 && old.st_gid != new.st_gid &&
        fchown(fd, (uid_t)-1, old.st_gid) != 0)
        mode = (mode & ~(mode_t)070) | (mode & 07) << 3;
    fchmod(fd, mode);
}

int moe_outfile_sync(struct moe_outfile *out, struct moe_err *err)
{
    return fsync(out->fd) != 0 && errno != EINVAL && errno != ENOTSUP
               ? fail_errno(err, out->path, "cannot flush")
               : MOE_OK;
}

/* Gives a nameless file an unfinished name first: a link cannot replace a file. */
static int give_name(struct moe_outfile *out, struct moe_err *err)
{
    char self[MOE_DESCRIPTOR_PATH];
    size_t n = strlen(out->temporary);
    descriptor_path(out->fd, self);
    for (int i = 0; i < MAX_TRIES; i++) {
        outfile_draw_letters(out->temporary, n);
        if (linkat(AT_FDCWD, self, AT_FDCWD, out->temporary, AT_SYMLINK_FOLLOW) == 0) {
            out->nameless = false;
            return MOE_OK;
        }
        if (errno != EEXIST)
            break;
    }
    return fail_errno(err, out->path, "cannot put the finished file in place");
}

int moe_outfile_publish(struct moe_outfile *out, struct moe_err *err)
{
    MOE_TRY(moe_outfile_sync(out, err));
    if (out->in_place)
        return MOE_OK;
    take_after(out->fd, out->target);
    if (out->is_private)
        moe_outfile_keep_private(out);
    if (out->nameless)
        MOE_TRY(give_name(out, err));
    if (rename(out->temporary, out->target) != 0)
        return fail_errno(err, out->path, "cannot put the finished file in place");
    out->in_place = true;
    sync_directory_of(out->target);
    return MOE_OK;
}

int moe_outfile_commit(struct moe_outfile *out, struct moe_err *err)
{
    int status = moe_outfile_publish(out, err);
    moe_outfile_abort(out); /* a file in place is flushed: how its close ends changes nothing */
    return status;
}

void moe_outfile_abort(struct moe_outfile *out)
{
    if (out->fd >= 0 && !out->in_place && !out->nameless)
        unlink(out->temporary);
    if (out->fd >= 0)
        close(out->fd);
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
    MOE_TRY(moe_outfile_open_text(&out, path, err));
    return moe_outfile_end(&out, moe_outfile_write(&out, data, n_bytes, 0, err), err);
}

/* ---- Whole files ---- */

int moe_file_replace(const char *from, const char *to, struct moe_err *err)
{
    int fd = open(from, O_RDONLY | O_CLOEXEC), status = MOE_OK;
    if (fd < 0)
        return fail_errno(err, from, "cannot open");
    take_after(fd, to);
    if (rename(from, to) != 0)
        status = fail_errno(err, to, "cannot put the finished file in place");
    close(fd);
    if (status == MOE_OK)
        sync_directory_of(to);
    return status;
}

int moe_file_nameless(const char *dir, char path[MOE_DESCRIPTOR_PATH], struct moe_err *err)
{
    int fd = open(dir, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd <
        0) { /* the file system has no nameless files: create one and remove its name at once */
        char *name = moe_path_join(dir, "moe-scratch.XXXXXX", err);
        if (!name)
            return MOE_ERR_MEMORY;
        fd = mkostemp(name, O_CLOEXEC);
        if (fd >= 0)
            unlink(name);
        free(name);
    }
    if (fd < 0)
        return fail_errno(err, dir, "cannot make a scratch file");
    if (path)
        descriptor_path(fd, path);
    return fd;
}
