/* Makes a tampered pack look written: recomputes section checksums, fingerprint and header checksum
 * of the bytes in memory, as far as the header's own numbers lead to bytes that are there. For
 * tests and the fuzzer, which want past the checksums. */
#ifndef TESTS_PACK_FORGE_H
#define TESTS_PACK_FORGE_H

#include "base/bytes.h"
#include "base/hash.h"
#include "pack/pack_internal.h"

static inline void pack_forge(uint8_t *file, uint64_t n)
{
    if (n < MOE_PACK_HEADER_BYTES)
        return;
    uint32_t n_sections = moe_get_u32(file + 12);
    if (n_sections > PACK_MAX_SECTIONS)
        n_sections = PACK_MAX_SECTIONS;
    for (uint32_t i = 0; i < n_sections; i++) {
        uint8_t *entry = file + PACK_TABLE_AT + i * PACK_SECTION_ENTRY_BYTES;
        uint64_t offset = moe_get_u64(entry + 8), bytes = moe_get_u64(entry + 16);
        if (offset <= n && bytes <= n - offset)
            moe_put_u64(entry + 24, moe_hash64(file + offset, bytes));
    }
    moe_put_u64(file + 40, moe_hash64_chain(moe_get_u64(file + 48), file + PACK_TABLE_AT,
                                            (uint64_t)n_sections * PACK_SECTION_ENTRY_BYTES));
    moe_put_u64(file + PACK_CHECKSUM_AT, moe_hash64(file, PACK_CHECKSUM_AT));
}

#endif
