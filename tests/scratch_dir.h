/* A directory for the files of a test, in memory where there is room for one: tests rewrite files
 * thousands of times. make_dir and one of remove_dir, remove_empty_dir are cmocka's set-up and
 * tear-down, of one test or of a group; without them there are no files, rather than some in /.
 * Needs _DEFAULT_SOURCE (mkdtemp). */
#ifndef TESTS_SCRATCH_DIR_H
#define TESTS_SCRATCH_DIR_H

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

#include "test.h"

static char dir[64];

static inline int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/dev/shm/moe-test-XXXXXX");
    return mkdtemp(dir) || mkdtemp(strcpy(dir, "/tmp/moe-test-XXXXXX")) ? 0 : -1;
}

static inline int remove_dir(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    dir[0] = '\0';
    return system(command);
}

/* Fails where a test left something in it. */
static inline int remove_empty_dir(void **state)
{
    (void)state;
    return rmdir(dir);
}

/* "DIR/NAME"; four may be in use at a time. */
static inline const char *in_dir(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    assert_true(dir[0]);
    snprintf(path, 256, "%s/%s", dir, name);
    return path;
}

static inline void write_in_dir(const char *name, const void *data, uint64_t n)
{
    struct moe_err err = {0};
    assert_ok(moe_file_write_all(in_dir(name), data, n, &err), &err);
}

static inline int n_files_in_dir(void)
{
    char command[160];
    snprintf(command, sizeof command, "exit $(ls -A '%s' | wc -l)", dir);
    return WEXITSTATUS(system(command));
}

#endif
