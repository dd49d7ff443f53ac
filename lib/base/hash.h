/*
 * Checksums and fingerprints: XXH3, 64 bits (the xxHash library). Fast enough to stay on: several
 * times the speed of any disk. Not a defence against forgery, only against damage.
 */
#ifndef MOE_BASE_HASH_H
#define MOE_BASE_HASH_H

#include <stdint.h>

uint64_t moe_hash64(const void *data, uint64_t n_bytes);

/* The same over bytes that come in parts: begin, add as often as needed, end. */
struct moe_hasher;
struct moe_hasher *moe_hasher_new(void);    /* NULL: out of memory */
void moe_hasher_free(struct moe_hasher *h); /* NULL is fine */
void moe_hasher_begin(struct moe_hasher *h);
/* Begins a hash that continues `previous`, as moe_hash64_chain does. */
void moe_hasher_begin_after(struct moe_hasher *h, uint64_t previous);
void moe_hasher_add(struct moe_hasher *h, const void *data, uint64_t n_bytes);
uint64_t moe_hasher_end(const struct moe_hasher *h);

/* The hash of `previous` followed by the bytes: chains pieces in order. */
uint64_t moe_hash64_chain(uint64_t previous, const void *data, uint64_t n_bytes);

#endif
