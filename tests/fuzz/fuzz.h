/* What the fuzz targets share. Needs _GNU_SOURCE (memfd_create). */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "fmt/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* ---- Allocations that fail ---- */

/*
 * Of the allocations that the calls within FUZZ_TRY make one fails, where an input ends with its
 * number (u16, from 1) and the byte FUZZ_FAILS, which no text has. Replaying fails each in turn,
 * whatever the input ends with. A call that fails for lack of memory must say so; what is accepted
 * nevertheless must hold like anything else.
 */
enum { FUZZ_FAILS = 0xfe };
extern uint64_t fuzz_fails,
    fuzz_fails_always;                 /* _always: in place of what inputs say; 0: nothing */
extern bool fuzz_failed;               /* since the input began */
extern uint64_t fuzz_bytes, fuzz_peak; /* allocated now, and at most since a target set it */
/* Begins an input; its bytes without those about failing. */
size_t fuzz_begin(const uint8_t *data, size_t n);
void fuzz_try_begin(void);
int fuzz_try_end(int status);
#define FUZZ_TRY(call) (fuzz_try_begin(), fuzz_try_end(call))

/* Of what must succeed, but where an allocation failed: whether it did. */
static inline bool fuzz_must(int status)
{
    if (status != MOE_OK && !fuzz_failed)
        abort();
    return status == MOE_OK;
}

/* ---- Files and texts ---- */

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

/* A path in a directory of this process's own, in memory where there is such a place; what lies
 * there is removed by who put it there. */
static char fuzz_dir[40];
static inline void fuzz_remove_dir(void)
{
    rmdir(fuzz_dir);
}
static inline void fuzz_path(const char *name, char path[96])
{
    char *dir = fuzz_dir;
    if (!dir[0]) {
        snprintf(dir, sizeof fuzz_dir, "%s/moe-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(dir) || atexit(fuzz_remove_dir) != 0)
            abort();
    }
    snprintf(path, 96, "%s%s%.40s", dir, *name ? "/" : "", name);
}

static inline void fuzz_put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "w");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        abort();
}

/* A text of these bytes, up to the first NUL; free(). */
static inline char *fuzz_text(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1);
    if (!text)
        abort();
    memcpy(text, data, n);
    text[n] = '\0';
    return text;
}

/* What was accepted and written, and what was read from that and written: the same. Releases both.
 */
static inline void fuzz_same(struct moe_buf *first, struct moe_buf *second)
{
    if (first->size != second->size ||
        (first->size && memcmp(first->data, second->data, first->size) != 0))
        abort();
    moe_buf_release(first);
    moe_buf_release(second);
}

/* The text is JSON, as scripts read it. */
static inline void fuzz_check_json(const struct moe_buf *text)
{
    struct moe_err err;
    struct json_t *json;
    if (moe_json_parse(&json, "fuzz", text->data, text->size, MOE_JSON_TOKENIZER_MEMORY, &err) !=
        MOE_OK)
        abort();
    moe_json_free(json);
}

#endif
