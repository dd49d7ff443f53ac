/* Where outputs go: through symbolic links, under which names while unfinished; and what killed
 * writers left there. */
#define _GNU_SOURCE /* flock, getrandom */
#include "base/outfile_place.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* NAME.moe-unfinished-XXXXXX, with a NAME cut to what leaves room for the rest. */
#define MARK ".moe-unfinished-"
enum { RANDOM_LETTERS = 6, MAX_NAMED = 200, MAX_LINKS = 40 };

/* ---- Where an output goes ---- */

static const char *name_in(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether a symbolic link is one of /proc, such as /dev/stdout leads to: not a name of a file, but
 * a file that is open already. */
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
        if (bytes < 0) /* no link, or nothing there: what opens it will say what is wrong */
            break;
        link[bytes] = '\0';
        if (is_of_proc(*out))
            status = moe_fail(err, MOE_ERR_IO,
                              "%s: is a file that is open already; name the file itself", path);
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

char *outfile_unfinished(const char *target, struct moe_err *err)
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

void outfile_draw_letters(char *name, size_t n)
{
    uint8_t random[RANDOM_LETTERS] = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        random[0] = (uint8_t)getpid(); /* a name that is taken is tried again */
    for (int i = 0; i < RANDOM_LETTERS; i++)
        name[n + (size_t)i] = letters[random[i] % (sizeof letters - 1)];
    name[n + RANDOM_LETTERS] = '\0';
}

/* Removes an unfinished file unless a process holds it. Its writer locks it before it has anything
 * in it, and keeps the lock until it has its final name. */
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

void outfile_sweep(const char *target)
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
