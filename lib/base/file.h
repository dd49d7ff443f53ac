/*
 * Files: whole reads, exact reads, and atomic outputs.
 *
 * An output goes to a temporary name in the same directory and takes its real name only in
 * moe_outfile_commit, after fsync; an interrupted or failed run leaves the old file as it was and
 * nothing half-made. Error texts begin with the file's path.
 */
#ifndef MOE_BASE_FILE_H
#define MOE_BASE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* Opens a regular file for reading; directories and devices are refused.
 * Returns a descriptor (close() it) and the size, or a negative status. */
int moe_file_open(const char *path, uint64_t *size_bytes, struct moe_err *err);

/* Appends the whole file to `out`; more than max_bytes is an error (MOE_ERR_FORMAT: absurd size).
 */
int moe_file_read_all(const char *path, uint64_t max_bytes, struct moe_buf *out,
                      struct moe_err *err);

/* Exactly n bytes at `offset`; a shorter file is MOE_ERR_FORMAT ("ends at ..."). Retries EINTR. */
int moe_file_pread(int fd, const char *path, void *to, uint64_t n_bytes, uint64_t offset,
                   struct moe_err *err);

bool moe_path_is_directory(const char *path);
bool moe_path_exists(const char *path);
/* "DIR/NAME" freshly allocated; free() it. NULL: out of memory. */
char *moe_path_join(const char *dir, const char *name, struct moe_err *err);

struct moe_outfile {
    int fd;              /* the temporary file */
    char *path;          /* the real name */
    char *temporary;     /* the name while unfinished */
    uint64_t size_bytes; /* highest byte written + 1 */
};

/* Creates the temporary file beside `path`. A directory at `path` is refused.
 * After success exactly one of commit and abort must be called; each closes and frees all. */
int moe_outfile_open(struct moe_outfile *out, const char *path, struct moe_err *err);
int moe_outfile_write(struct moe_outfile *out, const void *data, uint64_t n_bytes, uint64_t offset,
                      struct moe_err *err);
int moe_outfile_commit(struct moe_outfile *out, struct moe_err *err);
void moe_outfile_abort(struct moe_outfile *out);
/* Commits where `status` is MOE_OK, else aborts; returns the status that results. */
int moe_outfile_end(struct moe_outfile *out, int status, struct moe_err *err);

/* Writes a whole small file atomically. */
int moe_file_write_all(const char *path, const void *data, uint64_t n_bytes, struct moe_err *err);

#endif
