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
