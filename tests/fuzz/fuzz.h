/* What the fuzz targets share. Needs _GNU_SOURCE (memfd_create). */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The path of a file with these bytes: one file in memory, rewritten by each call. */
static inline const char *fuzz_file(const void *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, n, 0) != (ssize_t)n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* What was accepted and written, and what was read from that and written: the same. Releases both.
 */
static inline void fuzz_same(struct moe_buf *first, struct moe_buf *second)
{
    if (first->size != second->size || memcmp(first->data, second->data, first->size) != 0)
        abort();
    moe_buf_release(first);
    moe_buf_release(second);
}

#endif
