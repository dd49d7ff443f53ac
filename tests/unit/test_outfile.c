/*
 * Outputs: where they go, what they replace, and what is left of them, on file systems with files
 * without names and on others. open, pwrite and write are this file's own, so that they can be
 * those of another system.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "../scratch_dir.h"
#include "base/buf.h"
#include "io/scratch.h"

static bool no_nameless, takes_nothing;

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    if (no_nameless && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    return takes_nothing ? 0 : syscall(SYS_pwrite64, fd, data, n, offset);
}

ssize_t write(int fd, const void *data, size_t n)
{
    return takes_nothing ? 0 : syscall(SYS_write, fd, data, n);
}

/* Each test once with files without names, once without such. */
static int with_names(void **state)
{
    no_nameless = true;
    return 0;
}

static int without_names(void **state)
{
    no_nameless = takes_nothing = false;
    return 0;
}

static void assert_holds(const char *name, const char *text)
{
    struct moe_err err = {0};
    struct moe_buf b = {0};
    assert_ok(moe_file_read_all(in_dir(name), 1000, &b, &err), &err);
    assert_string_equal((const char *)b.data, text);
    moe_buf_release(&b);
}

static void put(const char *name, const char *text)
{
    write_in_dir(name, text, strlen(text));
}

static int try_to_put(const char *name, const char *text, struct moe_err *err)
{
    return moe_file_write_all(in_dir(name), text, strlen(text), err);
}

static void drop(const char *name)
{
    assert_int_equal(unlink(in_dir(name)), 0);
}

static struct stat stat_of(const char *name)
{
    struct stat st;
    assert_int_equal(lstat(in_dir(name), &st), 0);
    return st;
}

static void links_are_followed(void **state)
{
    struct moe_err err = {0};
    assert_int_equal(mkdir(in_dir("there"), 0777), 0);
    put("there/file", "old");
    assert_int_equal(symlink("there/file", in_dir("link")), 0);
    assert_int_equal(symlink("link", in_dir("chain")), 0);
    assert_int_equal(symlink(in_dir("there/new"), in_dir("dangling")), 0);
    assert_int_equal(symlink("nowhere/new", in_dir("lost")), 0);
    assert_int_equal(symlink("loop", in_dir("loop")), 0);
    assert_int_equal(symlink("there", in_dir("a-directory")), 0);
    put("chain", "new");
    assert_true(S_ISLNK(stat_of("chain").st_mode) && S_ISLNK(stat_of("link").st_mode));
    assert_holds("there/file", "new");
    put("dangling", "made");
    assert_true(S_ISLNK(stat_of("dangling").st_mode));
    assert_holds("there/new", "made");
    assert_fails(try_to_put("lost", "", &err), MOE_ERR_IO, "lost: cannot create a file there: No",
                 &err);
    assert_fails(try_to_put("loop", "", &err), MOE_ERR_IO, "loop: is a loop of symbolic", &err);
    assert_fails(try_to_put("a-directory", "", &err), MOE_ERR_IO, "is a directory", &err);
    assert_int_equal(n_files_in_dir(), 7);
    static const char *const made[] = {"there/file", "there/new", "link",        "chain",
                                       "dangling",   "lost",      "a-directory", "loop"};
    for (size_t i = 0; i < N_ITEMS(made); i++)
        drop(made[i]);
    assert_int_equal(rmdir(in_dir("there")), 0);
}

/* What is open already, such as /dev/stdout, cannot have a file put in its place. */
static void open_files_are_refused(void **state)
{
    struct moe_err err = {0};
    char path[64];
    put("log", "so far");
    int fd = open(in_dir("log"), O_WRONLY);
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    struct moe_outfile out;
    assert_fails(moe_outfile_open(&out, path, &err), MOE_ERR_IO, "is already open", &err);
    assert_holds("log", "so far");
    close(fd);
    drop("log");
    assert_fails(moe_outfile_open(&out, "/dev/null", &err), MOE_ERR_IO, "not a regular", &err);
}

/* A text goes straight into what is open already, from where it stands; what is open for reading
 * alone, or not at all, is refused before the work. */
static void texts_go_into_open_files(void **state)
{
    struct moe_err err = {0};
    char path[64];
    put("log", "so far, overwritten");
    int fd = open(in_dir("log"), O_RDWR);
    assert_int_equal(lseek(fd, 6, SEEK_SET), 6);
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    assert_ok(moe_outfile_try_text(path, &err), &err);
    assert_ok(moe_file_write_all(path, ", more", 6, &err), &err);
    assert_ok(moe_file_write_all(path, " and more", 9, &err), &err);
    assert_holds("log", "so far, more and more");
    assert_int_equal(write(fd, "!", 1), 1); /* it is still open */
    close(fd);
    assert_fails(moe_outfile_try_text(path, &err), MOE_ERR_IO, "Bad file descriptor", &err);
    assert_fails(moe_file_write_all(path, "x", 1, &err), MOE_ERR_IO, "Bad file", &err);
    fd = open(in_dir("log"), O_RDONLY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_fails(moe_outfile_try_text(path, &err), MOE_ERR_IO, "cannot open for writing", &err);
    assert_fails(moe_file_write_all(path, "x", 1, &err), MOE_ERR_IO, "cannot open", &err);
    close(fd);
    drop("log");
}

/* Pipes and devices stay what they are and get the bytes in their order alone. */
static void texts_go_into_pipes_and_devices(void **state)
{
    struct moe_err err = {0};
    struct moe_outfile out;
    struct stat st;
    char got[16] = {0};
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    int reader = open(in_dir("pipe"), O_RDONLY | O_NONBLOCK);
    assert_ok(moe_outfile_try_text(in_dir("pipe"), &err), &err);
    assert_ok(moe_outfile_open_text(&out, in_dir("pipe"), &err), &err);
    assert_ok(moe_outfile_write(&out, "one ", 4, 0, &err), &err);
    assert_fails(moe_outfile_write(&out, "x", 1, 9, &err), MOE_ERR_USAGE, "in order", &err);
    assert_ok(moe_outfile_write(&out, "two", 3, 4, &err), &err);
    assert_ok(moe_outfile_end(&out, MOE_OK, &err), &err);
    assert_int_equal(read(reader, got, sizeof got), 7);
    assert_string_equal(got, "one two");
    close(reader);
    assert_int_equal(stat(in_dir("pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(n_files_in_dir(), 1);
    drop("pipe");
    assert_ok(moe_outfile_try_text("/dev/null", &err), &err);
    assert_ok(moe_file_write_all("/dev/null", "x", 1, &err), &err);
    assert_fails(moe_file_write_all("/dev/full", "x", 1, &err), MOE_ERR_IO, "No space left", &err);
}

static void a_file_keeps_its_mode(void **state)
{
    static const mode_t modes[] = {0600, 0640, 0664, 0444, 0755};
    put("f", "");
    for (size_t i = 0; i < N_ITEMS(modes); i++) {
        assert_int_equal(chmod(in_dir("f"), modes[i]), 0);
        put("f", "again");
        assert_int_equal(stat_of("f").st_mode & 07777, modes[i]);
    }
    drop("f");
    static const mode_t masks[] = {0, 022, 027, 077};
    mode_t before = umask(0);
    for (size_t i = 0; i < N_ITEMS(masks); i++) {
        umask(masks[i]);
        put("f", "new");
        assert_int_equal(stat_of("f").st_mode & 07777, 0666 & ~masks[i]);
        drop("f");
    }
    umask(before);
}

/* Root keeps the owner; who may not gives the group no more than everybody has. */
static void a_file_keeps_its_owner(void **state)
{
    enum { SOMEBODY = 12345, A_GROUP = 23456 };
    if (geteuid() != 0)
        return;
    put("f", "");
    assert_int_equal(chmod(in_dir("f"), 0660), 0);
    assert_int_equal(chown(in_dir("f"), SOMEBODY, A_GROUP), 0);
    put("f", "by root");
    assert_true(stat_of("f").st_uid == SOMEBODY && stat_of("f").st_gid == A_GROUP);
    assert_int_equal(stat_of("f").st_mode & 07777, 0660);
    assert_int_equal(chmod(dir, 0777), 0);
    pid_t child = fork();
    if (child == 0) {
        struct moe_err err = {0};
        bool done = setgid(SOMEBODY) == 0 && setuid(SOMEBODY + 1) == 0 &&
                    try_to_put("f", "by another", &err) == MOE_OK;
        _exit(done ? 0 : 1);
    }
    int status;
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_holds("f", "by another");
    assert_true(stat_of("f").st_uid == SOMEBODY + 1 && stat_of("f").st_gid == SOMEBODY);
    assert_int_equal(stat_of("f").st_mode & 07777, 0600);
    drop("f");
}

/* A child begins the output and is killed when it has written, with the file open. */
static void kill_a_writer(const char *name)
{
    int ready[2], status;
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct moe_err err;
        struct moe_outfile out;
        if (moe_outfile_open(&out, in_dir(name), &err) == MOE_OK &&
            moe_outfile_write(&out, "half", 4, 0, &err) == MOE_OK)
            syscall(SYS_write, ready[1], "", 1);
        pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ready[0]);
    close(ready[1]);
}

static void what_killed_writers_leave_is_swept(void **state)
{
    static const char *const others[] = {
        "out.moe-backup",      "out.moe-unfinished-abcde",    "out.moe-unfinished-abcdefg",
        "out.moe-unfinished-", "other.moe-unfinished-abcdef", "out.moe-unfinished-ab.def"};
    struct moe_err err = {0};
    struct moe_outfile living;
    put("out", "old");
    for (size_t i = 0; i < N_ITEMS(others); i++) /* of users, or of another output */
        put(others[i], "mine");
    int n = 1 + (int)N_ITEMS(others);
    kill_a_writer("out");
    kill_a_writer("out");
    assert_int_equal(n_files_in_dir(), n + no_nameless); /* the second swept the first's */
    assert_holds("out", "old");
    assert_ok(moe_outfile_open(&living, in_dir("out"), &err), &err);
    assert_int_equal(n_files_in_dir(), n + no_nameless);
    assert_ok(moe_outfile_try(in_dir("out"), &err), &err);
    put("out", "new"); /* sweeps, but nothing that a process holds */
    assert_int_equal(n_files_in_dir(), n + no_nameless);
    assert_ok(moe_outfile_write(&living, "newest", 6, 0, &err), &err);
    assert_ok(moe_outfile_commit(&living, &err), &err);
    assert_holds("out", "newest");
    assert_int_equal(n_files_in_dir(), n);
    put("other", "");
    assert_int_equal(n_files_in_dir(), n); /* of it one was left: one more, one less */
    drop("other");
    drop("out");
    for (size_t i = 0; i < N_ITEMS(others); i++)
        if (strncmp(others[i], "other.", 6) != 0)
            drop(others[i]);
}

static void outputs_are_tried(void **state)
{
    struct moe_err err = {0};
    char longest[256] = {0}, longer[257] = {0};
    memset(longest, 'n', 255);
    memset(longer, 'n', 256);
    assert_ok(moe_outfile_try(in_dir("new"), &err), &err);
    assert_int_equal(n_files_in_dir(), 0);
    assert_fails(moe_outfile_try(dir, &err), MOE_ERR_IO, "is a directory", &err);
    assert_fails(moe_outfile_try(in_dir("no/where"), &err), MOE_ERR_IO, "cannot create", &err);
    put("file", "kept");
    assert_fails(moe_outfile_try(in_dir("file/below"), &err), MOE_ERR_IO, "cannot create", &err);
    assert_ok(moe_outfile_try(in_dir("file"), &err), &err);
    assert_holds("file", "kept");
    drop("file");
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_fails(moe_outfile_try(in_dir("pipe"), &err), MOE_ERR_IO, "not a regular file", &err);
    drop("pipe");
    char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, longest);
    assert_ok(moe_file_write_all(path, "x", 1, &err), &err);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/%s", dir, longer);
    assert_fails(moe_outfile_try(path, &err), MOE_ERR_IO, "File name too long", &err);
    assert_int_equal(n_files_in_dir(), 0);
}

static void failed_writes_leave_the_old_file(void **state)
{
    struct moe_err err = {0};
    struct rlimit small = {.rlim_cur = 1000, .rlim_max = RLIM_INFINITY}, before;
    char data[2000] = {0};
    put("out", "old");
    takes_nothing = true;
    assert_fails(try_to_put("out", "new", &err), MOE_ERR_IO, "out: cannot write: the system takes",
                 &err);
    assert_fails(moe_scratch_open(dir, 4096, NULL, 0, NULL, &err), MOE_ERR_IO, "cannot write a",
                 &err);
    takes_nothing = false;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int status = moe_file_write_all(in_dir("out"), data, sizeof data, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_fails(status, MOE_ERR_IO, "out: cannot write: File too large", &err);
    assert_holds("out", "old");
    assert_int_equal(n_files_in_dir(), 1);
    drop("out");
}

/* Published, a file grows under its name and stays. */
static void published_files_stay(void **state)
{
    struct moe_err err = {0};
    struct moe_outfile out, second;
    assert_ok(moe_outfile_open(&out, in_dir("out"), &err), &err);
    assert_ok(moe_outfile_write(&out, "one", 3, 0, &err), &err);
    assert_ok(moe_outfile_publish(&out, &err), &err);
    assert_holds("out", "one");
    assert_ok(moe_outfile_write(&out, " two", 4, 3, &err), &err);
    assert_holds("out", "one two");
    assert_fails(moe_outfile_continue(&second, in_dir("out"), &err), MOE_ERR_IO,
                 "another process is writing it", &err);
    moe_outfile_abort(&out);
    assert_holds("out", "one two");
    assert_ok(moe_outfile_continue(&out, in_dir("out"), &err), &err);
    assert_ok(moe_outfile_write(&out, " three", 6, 7, &err), &err);
    assert_ok(moe_outfile_commit(&out, &err), &err);
    assert_holds("out", "one two three");
    put("final", "old");
    assert_int_equal(chmod(in_dir("final"), 0600), 0);
    assert_ok(moe_file_replace(in_dir("out"), in_dir("final"), &err), &err);
    assert_holds("final", "one two three");
    assert_int_equal(stat_of("final").st_mode & 07777, 0600);
    assert_fails(moe_outfile_continue(&out, in_dir("out"), &err), MOE_ERR_IO, "No such file", &err);
    drop("final");
    assert_int_equal(n_files_in_dir(), 0);
}

static void nameless_files_are_outputs(void **state)
{
    struct moe_err err = {0};
    struct moe_buf b = {0};
    char path[MOE_DESCRIPTOR_PATH];
    int fd = moe_file_nameless(dir, path, &err);
    assert_true(fd >= 0);
    assert_ok(moe_file_write_all(path, "longer", 6, &err), &err);
    assert_ok(moe_file_write_all(path, "text", 4, &err), &err);
    assert_ok(moe_file_read_all(path, 100, &b, &err), &err);
    assert_string_equal((const char *)b.data, "text");
    assert_int_equal(n_files_in_dir(), 0);
    moe_buf_release(&b);
    close(fd);
    assert_fails(moe_file_nameless(in_dir("no"), NULL, &err), MOE_ERR_IO, "no: cannot make", &err);
}

#define BOTH(test)                                                                                 \
    {#test, test, without_names, NULL, NULL},                                                      \
    {                                                                                              \
#test " (under names)", test, with_names, without_names, NULL                              \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(links_are_followed),
        BOTH(a_file_keeps_its_mode),
        BOTH(a_file_keeps_its_owner),
        BOTH(what_killed_writers_leave_is_swept),
        BOTH(outputs_are_tried),
        BOTH(failed_writes_leave_the_old_file),
        BOTH(published_files_stay),
        BOTH(nameless_files_are_outputs),
        cmocka_unit_test(open_files_are_refused),
        cmocka_unit_test(texts_go_into_open_files),
        cmocka_unit_test(texts_go_into_pipes_and_devices),
    };
    return cmocka_run_group_tests_name("outfile", tests, make_dir, remove_empty_dir);
}
