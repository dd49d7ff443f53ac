/*
 * A disk with faults: shows a directory at another place (FUSE), and reads from there fail, are
 * short, slow or stuck as a control file says at that moment. For tests/torture/disk.sh.
 *
 *     bad_disk DIRECTORY MOUNTPOINT CONTROL        stays in the foreground; fusermount3 -u ends it
 *
 * CONTROL holds words and numbers, in any order, and may be replaced at any time; empty: a sound
 * disk.
 *
 *     error N         every Nth read fails (at random; 1: each)
 *     errno N         ... with this code; EIO
 *     short N         every Nth read is short
 *     stall N         every Nth read takes `seconds` (-1: until the control file changes), unless
 * it is seconds S       interrupted rate N          bytes per second latency S       seconds of
 * each read after N         ... all of these from the Nth read on, counted anew when the control
 * file changes nodirect 1      opening with O_DIRECT fails (EINVAL) gone 1          the device is
 * no longer there (ENODEV), whatever is asked restless 1      files seem to change all the time
 *     nowrite 1       writes take nothing and give no reason
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    ERROR_EVERY,
    ERROR_CODE,
    SHORT_EVERY,
    STALL_EVERY,
    STALL_SECONDS,
    RATE,
    LATENCY,
    AFTER,
    NO_DIRECT,
    GONE,
    RESTLESS,
    NO_WRITE,
    N_WORDS
};

static const char *const words[N_WORDS] = {"error",    "errno", "short",    "stall",
                                           "seconds",  "rate",  "latency",  "after",
                                           "nodirect", "gone",  "restless", "nowrite"};

struct control {
    double value[N_WORDS];
};

static const char *control_path;
static int root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the rest */
static struct control last;
static unsigned long n_reads; /* since the control file changed */
static unsigned long long state = 88172645463325252u;

static struct control read_control(void)
{
    struct control c = {{[ERROR_CODE] = EIO}};
    char word[32];
    double value;
    FILE *f = fopen(control_path, "r");
    while (f && fscanf(f, "%31s %lf", word, &value) == 2)
        for (int i = 0; i < N_WORDS; i++)
            if (strcmp(word, words[i]) == 0)
                c.value[i] = value;
    if (f)
        fclose(f);
    return c;
}

/* Marsaglia's xorshift64: whether one of `every` falls here. */
static bool falls(double every)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return every > 0 && state % (unsigned long long)every == 0;
}

static void nap(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR && !fuse_interrupted())
        ;
}

struct fate {
    bool fails, is_short, stalls;
};

/* What happens to the next read under this control. */
static struct fate draw(const struct control *c)
{
    struct fate f = {0};
    pthread_mutex_lock(&lock);
    if (memcmp(c, &last, sizeof last) != 0)
        n_reads = 0;
    last = *c;
    if (n_reads++ >= (unsigned long)c->value[AFTER])
        f = (struct fate){falls(c->value[ERROR_EVERY]), falls(c->value[SHORT_EVERY]),
                          falls(c->value[STALL_EVERY])};
    pthread_mutex_unlock(&lock);
    return f;
}

/* False: interrupted. */
static bool stall(const struct control *c)
{
    for (double passed = 0; c->value[STALL_SECONDS] < 0 || passed < c->value[STALL_SECONDS];
         passed += 0.02) {
        struct control now = read_control();
        if (memcmp(&now, c, sizeof now) != 0)
            break;
        nap(0.02);
        if (fuse_interrupted())
            return false;
    }
    return true;
}

static int bad_read(const char *path, char *to, size_t n, off_t at, struct fuse_file_info *info)
{
    struct control c = read_control();
    struct fate f = draw(&c);
    if (c.value[GONE] > 0)
        return -ENODEV;
    if (f.stalls && !stall(&c))
        return -EINTR;
    if (c.value[LATENCY] > 0)
        nap(c.value[LATENCY]);
    if (f.fails)
        return -(int)c.value[ERROR_CODE];
    if (f.is_short && n > 1)
        n = 1 + (size_t)(at / 4096 * 2654435761u) % (n - 1);
    ssize_t got = pread((int)info->fh, to, n, at);
    if (c.value[RATE] > 0 && got > 0) {
        pthread_mutex_lock(&lock); /* one disk: the others wait */
        nap((double)got / c.value[RATE]);
        pthread_mutex_unlock(&lock);
    }
    return got < 0 ? -errno : (int)got;
}

static int bad_write(const char *path, const char *from, size_t n, off_t at,
                     struct fuse_file_info *info)
{
    struct control c = read_control();
    if (c.value[GONE] > 0)
        return -ENODEV;
    if (c.value[NO_WRITE] > 0)
        return 0;
    ssize_t put = pwrite((int)info->fh, from, n, at);
    return put < 0 ? -errno : (int)put;
}

static const char *below(const char *path)
{
    return path[1] ? path + 1 : ".";
}

static int bad_getattr(const char *path, struct stat *st, struct fuse_file_info *info)
{
    struct control c = read_control();
    if (c.value[GONE] > 0)
        return -ENODEV;
    int got = info ? fstat((int)info->fh, st) : fstatat(root, below(path), st, AT_SYMLINK_NOFOLLOW);
    if (got != 0)
        return -errno;
    if (c.value[RESTLESS] > 0)
        clock_gettime(CLOCK_REALTIME, &st->st_mtim);
    return 0;
}

static int open_below(const char *path, int flags, mode_t mode, struct fuse_file_info *info)
{
    struct control c = read_control();
    if (c.value[GONE] > 0)
        return -ENODEV;
    if (c.value[NO_DIRECT] > 0 && (flags & O_DIRECT))
        return -EINVAL;
    int fd = openat(root, below(path), flags & ~O_DIRECT, mode);
    if (fd < 0)
        return -errno;
    info->fh = (uint64_t)fd;
    info->direct_io = 1; /* every read comes here */
    return 0;
}

static int bad_open(const char *path, struct fuse_file_info *info)
{
    return open_below(path, info->flags & ~O_CREAT, 0, info);
}

static int bad_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
    return open_below(path, info->flags | O_CREAT, mode, info);
}

static int bad_release(const char *path, struct fuse_file_info *info)
{
    close((int)info->fh);
    return 0;
}

static int bad_fsync(const char *path, int data, struct fuse_file_info *info)
{
    return fsync((int)info->fh) == 0 ? 0 : -errno;
}

static int bad_unlink(const char *path)
{
    return unlinkat(root, below(path), 0) == 0 ? 0 : -errno;
}

static int bad_rename(const char *from, const char *to, unsigned flags)
{
    return renameat2(root, below(from), root, below(to), flags) == 0 ? 0 : -errno;
}

static int bad_truncate(const char *path, off_t n, struct fuse_file_info *info)
{
    return info && ftruncate((int)info->fh, n) == 0 ? 0 : -EIO;
}

static int bad_chmod(const char *path, mode_t mode, struct fuse_file_info *info)
{
    return fchmodat(root, below(path), mode, 0) == 0 ? 0 : -errno;
}

static int bad_readdir(const char *path, void *to, fuse_fill_dir_t fill, off_t at,
                       struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
    int fd = openat(root, below(path), O_RDONLY | O_DIRECTORY);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return -errno;
    for (struct dirent *entry; (entry = readdir(dir));)
        fill(to, entry->d_name, NULL, 0, 0);
    closedir(dir);
    return 0;
}

static void *bad_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    config->intr = 1; /* a reader that is killed need not wait for its read */
    config->attr_timeout = config->entry_timeout = 0;
    config->hard_remove = config->nullpath_ok = 1; /* open files are known by their descriptors */
    return NULL;
}

static const struct fuse_operations operations = {
    .init = bad_init,
    .getattr = bad_getattr,
    .open = bad_open,
    .create = bad_create,
    .read = bad_read,
    .write = bad_write,
    .release = bad_release,
    .fsync = bad_fsync,
    .readdir = bad_readdir,
    .unlink = bad_unlink,
    .rename = bad_rename,
    .truncate = bad_truncate,
    .chmod = bad_chmod,
};

static void on_wake(int signal_number)
{
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: bad_disk DIRECTORY MOUNTPOINT CONTROL\n");
        return 2;
    }
    root = open(argv[1], O_RDONLY | O_DIRECTORY);
    control_path = realpath(argv[3], NULL);
    if (root < 0 || !control_path) {
        fprintf(stderr, "bad_disk: %s: %s\n", root < 0 ? argv[1] : argv[3], strerror(errno));
        return 1;
    }
    struct sigaction wake = {.sa_handler = on_wake};
    sigaction(SIGUSR1, &wake, NULL); /* libfuse sends it, and has no action for it here */
    char *const fuse_argv[] = {argv[0], argv[2], (char[]){"-f"}, NULL};
    return fuse_main(3, (char **)fuse_argv, &operations, NULL);
}
