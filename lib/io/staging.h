/*
 * Staging: room for the stored bytes of compressed requests while they are read.
 *
 * A fixed area from which ranges of any size are taken, first fit. Few are taken at a time, so they
 * are a list in order of address. Internal to io/.
 */
#ifndef MOE_IO_STAGING_H
#define MOE_IO_STAGING_H

#include <stdbool.h>
#include <stdint.h>

struct staging_range {
    uint64_t at, bytes;
    uint32_t after; /* owner of the next range by address; STAGING_NONE: none */
};

#define STAGING_NONE UINT32_MAX

struct staging {
    uint8_t *base; /* 4096-aligned */
    uint64_t bytes;
    struct staging_range *ranges; /* one for each owner */
    uint32_t first;
};

/* `base` and `ranges` are borrowed. */
void staging_init(struct staging *s, void *base, uint64_t bytes, struct staging_range *ranges);
/* A range of `bytes` (a multiple of 4096) for `owner`, who has none; NULL: no room now. */
void *staging_take(struct staging *s, uint32_t owner, uint64_t bytes);
void staging_give(struct staging *s, uint32_t owner);

#endif
