/*
 * Files: whole reads, exact reads, and atomic outputs.
 *
 * An output has no name until it is finished, or (where the file system has no such files) that of
 * an unfinished one in the same directory, NAME.moe-unfinished-XXXXXX, and takes its real name only
 * in moe_outfile_commit, after fsync; an interrupted or failed run leaves the old file as it was
 * and nothing half-made. What a killed run leaves of the second kind is removed by the next that
 * writes the same output: a living writer holds a lock on it. Error texts begin with the file's
 * path.
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
/* A path's directory, "." where it names none; free() it. NULL: out of memory. */
char *moe_path_directory(const char *path, struct moe_err *err);

/* Where an output to `path` is written: through symbolic links, also to a file that is not there
 * yet. free() *out. MOE_ERR_IO: a loop of links, or a file that is open already (/dev/stdout). */
int moe_path_follow(char **out, const char *path, struct moe_err *err);

struct moe_outfile {
    int fd;
    char *path;          /* as the user gave it */
    char *target;        /* where its links lead */
    char *temporary;     /* the name while unfinished, or what that begins with */
    bool nameless;       /* it has no name yet */
    bool in_place;       /* it has its own name (or will never have one) */
    bool straight;       /* a pipe or a device: takes bytes in their order, keeps what it has got */
    uint64_t size_bytes; /* highest byte written + 1 */
};

/* Creates the unfinished file beside `path`; symbolic links are followed. A directory or a special
 * file at `path` is refused. A file that is replaced gives its mode and, where that is allowed, its
 * owner and group; a new one follows the umask. After success exactly one of commit and abort must
 * be called; each closes and frees all. */
int moe_outfile_open(struct moe_outfile *out, const char *path, struct moe_err *err);
/* The same for an output that is written from its beginning to its end: a pipe, a terminal or
 * another device at `path` is written straight into, and so is what is open already ("-" and
 * /dev/stdout, /dev/stderr, /dev/fd/N), from where it stands. Waits for a pipe's reader. */
int moe_outfile_open_text(struct moe_outfile *out, const char *path, struct moe_err *err);
/* The file at `path` itself, to go on writing; it stays whatever happens. MOE_ERR_IO: not there, or
 * another process is writing it. */
int moe_outfile_continue(struct moe_outfile *out, const char *path, struct moe_err *err);
/* Whether moe_outfile_open would succeed, before the work that makes the output: MOE_OK, or its
 * error. Changes nothing. */
int moe_outfile_try(const char *path, struct moe_err *err);
int moe_outfile_try_text(const char *path, struct moe_err *err); /* ... of moe_outfile_open_text */
int moe_outfile_write(struct moe_outfile *out, const void *data, uint64_t n_bytes, uint64_t offset,
                      struct moe_err *err);
/* Flushes what is written. */
int moe_outfile_sync(struct moe_outfile *out, struct moe_err *err);
/* Flushes, and gives the file its name as it is, to be written further: from then on it stays. */
int moe_outfile_publish(struct moe_outfile *out, struct moe_err *err);
int moe_outfile_commit(struct moe_outfile *out, struct moe_err *err);
void moe_outfile_abort(struct moe_outfile *out);
/* Commits where `status` is MOE_OK, else aborts; returns the status that results. */
int moe_outfile_end(struct moe_outfile *out, int status, struct moe_err *err);

/* Writes a whole small file atomically, or straight into what moe_outfile_open_text says. */
int moe_file_write_all(const char *path, const void *data, uint64_t n_bytes, struct moe_err *err);
/* Renames a finished file to `to`, in the same directory, durably; as moe_outfile_open says of what
 * it replaces. */
int moe_file_replace(const char *from, const char *to, struct moe_err *err);

enum { MOE_DESCRIPTOR_PATH = 32 };
/* A file in `dir` that has no name: it is gone when it is closed or the process ends, however that
 * happens. Until then `path` (NULL: not wanted) names it in this process, for reading and as an
 * output. Returns a descriptor: close() it. */
int moe_file_nameless(const char *dir, char path[MOE_DESCRIPTOR_PATH], struct moe_err *err);

#endif
