/* The 64-bit hash of contents (XXH3). */
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t moe_hash64(const void *data, uint64_t n_bytes)
{
    return XXH3_64bits(data, n_bytes);
}

uint64_t moe_hash64_chain(uint64_t previous, const void *data, uint64_t n_bytes)
{
    return XXH3_64bits_withSeed(data, n_bytes, previous);
}

/* Hides XXH3_state_t behind an opaque type. */
struct moe_hasher *moe_hasher_new(void)
{
    return (struct moe_hasher *)XXH3_createState();
}

void moe_hasher_free(struct moe_hasher *h)
{
    XXH3_freeState((XXH3_state_t *)h);
}

void moe_hasher_begin(struct moe_hasher *h)
{
    XXH3_64bits_reset((XXH3_state_t *)h);
}

void moe_hasher_begin_after(struct moe_hasher *h, uint64_t previous)
{
    XXH3_64bits_reset_withSeed((XXH3_state_t *)h, previous);
}

void moe_hasher_add(struct moe_hasher *h, const void *data, uint64_t n_bytes)
{
    XXH3_64bits_update((XXH3_state_t *)h, data, n_bytes);
}

uint64_t moe_hasher_end(const struct moe_hasher *h)
{
    return XXH3_64bits_digest((const XXH3_state_t *)h);
}
