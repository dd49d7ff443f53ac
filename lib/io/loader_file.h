/*
 * The loader's own descriptors of the file: one past the page cache, where the file system allows
 * it, and one through it. Internal to io/.
 */
#ifndef MOE_IO_LOADER_FILE_H
#define MOE_IO_LOADER_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct loader_file {
    int buffered_fd; /* -1: none */
    int direct_fd;   /* -1: direct I/O is not available */
    bool owned;      /* buffered_fd is ours to close, not the caller's */
};

/* Opens the file of `fd` again. page: 4096 bytes, 4096-aligned, for a trial read. MOE_ERR_IO when
 * it cannot be read either way; errors name `path`. */
int loader_file_open(struct loader_file *f, int fd, const char *path, bool want_direct, void *page,
                     struct moe_err *err);
void loader_file_close(struct loader_file *f);
/* Drops a range from the page cache. */
void loader_file_forget(const struct loader_file *f, uint64_t offset, uint64_t n_bytes);

#endif
