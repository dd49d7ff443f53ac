/*
 * Files: whole reads, exact reads, and atomic outputs.
 *
 * An output is written to a file without a name or, where the file system has none, to
 * NAME.moe-unfinished-XXXXXX in the same directory. It takes its real name only in
 * moe_outfile_commit, after fsync, so an interrupted or failed run leaves the old file as it was
 * and nothing half-made. A killed run may leave an unfinished file of the second kind; the next run
 * that writes the same output removes it (a living writer holds a lock on it). Error texts begin
 * with the file's path.
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

/* Appends the whole file to `out`; MOE_ERR_FORMAT if it has more than max_bytes. */
int moe_file_read_all(const char *path, uint64_t max_bytes, struct moe_buf *out,
                      struct moe_err *err);

/* Reads exactly n bytes at `offset`; a shorter file is MOE_ERR_FORMAT ("ends at ..."). Retries
 * EINTR. */
int moe_file_pread(int fd, const char *path, void *to, uint64_t n_bytes, uint64_t offset,
                   struct moe_err *err);

/*
 * Bytes that are made of ranges of files, which others read: how a checkpoint that is used in place
 * takes part in loading (pack/in_place.c makes one, io/loader.c uses it).
 */
enum { MOE_MAX_RANGES = 16, MOE_RANGE_ALIGN = 4096 };

/* Bytes of one of several files. It is read with its neighbours, from one multiple of 4096 to
 * another. */
struct moe_file_range {
    uint32_t file;
    uint64_t offset, bytes;
};

static inline uint64_t moe_range_begin(const struct moe_file_range *r)
{
    return r->offset / MOE_RANGE_ALIGN * MOE_RANGE_ALIGN;
}

static inline uint64_t moe_range_read_bytes(const struct moe_file_range *r)
{
    uint64_t end = r->offset + r->bytes + MOE_RANGE_ALIGN - 1;
    return end / MOE_RANGE_ALIGN * MOE_RANGE_ALIGN - moe_range_begin(r);
}

/* All functions are thread-safe, and allocate nothing. `name` is what the pack says its bytes are
 * at. */
struct moe_arranger {
    const void *ctx;
    uint32_t n_files;
    uint64_t most_bytes; /* moe_range_read_bytes of the ranges of one name, at most */
    int (*fd)(const void *ctx, uint32_t file, const char **path);
    /* Finds what to read: *n of MOE_MAX_RANGES. MOE_ERR_IO: a file has changed since it was opened.
     */
    int (*ranges)(const void *ctx, uint64_t name, struct moe_file_range *ranges, uint32_t *n,
                  struct moe_err *err);
    /* Does step number `step` of making the bytes at `to` out of what was read of the ranges, which
     * lies one after the other; sets *more: there are further steps. A step is less than about 100
     * us of work. MOE_ERR_FORMAT: what was read is damaged. */
    int (*step)(const void *ctx, uint64_t name, const struct moe_file_range *ranges, uint32_t n,
                const uint8_t *read, uint32_t step, uint8_t *to, bool *more, struct moe_err *err);
};

/* What a file is that begins with these n bytes and is no text in YAML or JSON ("a Git LFS pointer,
 * ...": what to do is said); NULL: nothing that is known. A literal. */
const char *moe_file_nature(const uint8_t *begin, uint64_t n);
/* Refuses a file that is not what it should be: says what it is instead and what to do (a Git LFS
 * pointer, a server's page, an archive, a download that has not finished), or, where it is none of
 * these, that it is "not EXPECTED". MOE_ERR_FORMAT. */
int moe_file_refuse(int fd, const char *path, const char *expected, struct moe_err *err);
/* Whether the name is that of a download that has not finished (.part, .incomplete, ...). */
bool moe_path_is_unfinished(const char *path);

bool moe_path_is_directory(const char *path);
bool moe_path_exists(const char *path);
/* "DIR/NAME" freshly allocated; free() it. NULL: out of memory. */
char *moe_path_join(const char *dir, const char *name, struct moe_err *err);
/* A path without its directory, in it. */
const char *moe_path_name(const char *path);
/* A path's directory, "." where it names none; free() it. NULL: out of memory. */
char *moe_path_directory(const char *path, struct moe_err *err);

/* Resolves where an output to `path` is written: follows symbolic links, also to a file that does
 * not exist yet. free() *out. MOE_ERR_IO: a loop of links, or a file that is already open
 * (/dev/stdout). */
int moe_path_follow(char **out, const char *path, struct moe_err *err);

struct moe_outfile {
    int fd;
    char *path;          /* as the user gave it */
    char *target;        /* where its links lead */
    char *temporary;     /* the unfinished file's name, or the beginning of that name */
    bool nameless;       /* it has no name yet */
    bool in_place;       /* it has its own name (or will never have one) */
    bool is_private;     /* only its owner may read it, whatever it replaces */
    bool straight;       /* a pipe or a device: takes bytes in order, and cannot be undone */
    uint64_t size_bytes; /* highest byte written + 1 */
};

/* Creates the unfinished file beside `path`, following symbolic links. Refuses a directory or a
 * special file at `path`. A replaced file passes on its mode and, where allowed, its owner and
 * group; a new file follows the umask. After success call exactly one of commit and abort; each
 * closes and frees everything. */
int moe_outfile_open(struct moe_outfile *out, const char *path, struct moe_err *err);
/* The same for an output written from beginning to end. A pipe, a terminal or another device at
 * `path` is written directly, and so is a file that is already open ("-", /dev/stdout, /dev/stderr,
 * /dev/fd/N), from its current position. Waits for a pipe's reader. */
int moe_outfile_open_text(struct moe_outfile *out, const char *path, struct moe_err *err);
/* Before anything is written: nobody but its owner may read it, whatever it replaces. */
void moe_outfile_keep_private(struct moe_outfile *out);
/* Opens the file at `path` itself to continue writing; it stays whatever happens. MOE_ERR_IO: it
 * does not exist, or another process is writing it. */
int moe_outfile_continue(struct moe_outfile *out, const char *path, struct moe_err *err);
/* Tells before the work whether moe_outfile_open would succeed: MOE_OK, or its error. Changes
 * nothing. */
int moe_outfile_try(const char *path, struct moe_err *err);
int moe_outfile_try_text(const char *path,
                         struct moe_err *err); /* the same for moe_outfile_open_text */
int moe_outfile_write(struct moe_outfile *out, const void *data, uint64_t n_bytes, uint64_t offset,
                      struct moe_err *err);
/* Flushes the bytes written so far. */
int moe_outfile_sync(struct moe_outfile *out, struct moe_err *err);
/* Flushes, and gives the file its name while it is still being written: from then on it stays. */
int moe_outfile_publish(struct moe_outfile *out, struct moe_err *err);
int moe_outfile_commit(struct moe_outfile *out, struct moe_err *err);
void moe_outfile_abort(struct moe_outfile *out);
/* Commits if `status` is MOE_OK, else aborts; returns the resulting status. */
int moe_outfile_end(struct moe_outfile *out, int status, struct moe_err *err);

/* Writes a whole small file atomically, or directly where moe_outfile_open_text would. */
int moe_file_write_all(const char *path, const void *data, uint64_t n_bytes, struct moe_err *err);
/* Renames a finished file to `to`, in the same directory, durably. The replaced file passes on its
 * mode and owner as in moe_outfile_open. */
int moe_file_replace(const char *from, const char *to, struct moe_err *err);

enum { MOE_DESCRIPTOR_PATH = 32 };
/* Creates a file without a name in `dir`: it disappears when it is closed or the process ends,
 * however that happens. Until then `path` (may be NULL) names it in this process, for reading and
 * as an output. Returns a descriptor: close() it. */
int moe_file_nameless(const char *dir, char path[MOE_DESCRIPTOR_PATH], struct moe_err *err);

#endif
