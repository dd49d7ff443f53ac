/*
 * A scratch file to measure reads on. It has no name and disappears when it is closed or the
 * process ends, however that happens.
 */
#ifndef MOE_IO_SCRATCH_H
#define MOE_IO_SCRATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"

/* Creates a file of n_bytes in `dir`, written, synced and dropped from the page cache where the
 * system allows it. Its bytes are random (no file system can compress them) and always the same.
 * checksums: one for each of n_checksums equal parts (base/hash.h), or NULL; n_checksums divides
 * n_bytes. Returns a descriptor: close() it. MOE_ERR_IO, MOE_ERR_INTERRUPTED. */
int moe_scratch_open(const char *dir, uint64_t n_bytes, uint64_t *checksums, uint64_t n_checksums,
                     const struct moe_progress *progress, struct moe_err *err);

/*
 * Staging: room for the stored bytes of compressed requests while they are read.
 *
 * A fixed area that hands out ranges of any size, first fit. There are few at a time, so they are a
 * list in order of address.
 */

struct staging_range {
    uint64_t at, bytes;
    uint32_t after; /* owner of the next range by address; STAGING_NONE: none */
};

#define STAGING_NONE UINT32_MAX

struct staging {
    uint8_t *base; /* 4096-aligned */
    uint64_t bytes;
    struct staging_range *ranges; /* one per owner */
    uint32_t first;
};

/* `base` and `ranges` are borrowed. */
void staging_init(struct staging *s, void *base, uint64_t bytes, struct staging_range *ranges);
/* Allocates a range of `bytes` (a multiple of 4096) for `owner`, which has none yet; NULL: no room
 * now. */
void *staging_take(struct staging *s, uint32_t owner, uint64_t bytes);
void staging_give(struct staging *s, uint32_t owner);

#endif
