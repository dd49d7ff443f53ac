#include "io/staging.h"

#include <stddef.h>

void staging_init(struct staging *s, void *base, uint64_t bytes, struct staging_range *ranges)
{
    *s = (struct staging){.base = base, .bytes = bytes, .ranges = ranges, .first = STAGING_NONE};
}

void *staging_take(struct staging *s, uint32_t owner, uint64_t bytes)
{
    uint64_t at = 0;
    uint32_t *link = &s->first;
    while (*link != STAGING_NONE && s->ranges[*link].at - at < bytes) {
        at = s->ranges[*link].at + s->ranges[*link].bytes;
        link = &s->ranges[*link].after;
    }
    if (*link == STAGING_NONE && s->bytes - at < bytes)
        return NULL;
    s->ranges[owner] = (struct staging_range){.at = at, .bytes = bytes, .after = *link};
    *link = owner;
    return s->base + at;
}

void staging_give(struct staging *s, uint32_t owner)
{
    uint32_t *link = &s->first;
    while (*link != owner)
        link = &s->ranges[*link].after;
    *link = s->ranges[owner].after;
}
