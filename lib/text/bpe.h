/*
 * Byte-pair merging by rank: merges the pair with the lowest rank first, the leftmost among equals,
 * until no two neighbours are in the table.
 *
 * Knows ids only, not their texts. A piece of n ids costs O(n log n) whatever it holds.
 */
#ifndef MOE_TEXT_BPE_H
#define MOE_TEXT_BPE_H

#include <stdint.h>

#include "base/err.h"

struct moe_bpe_merge {
    uint32_t left, right, result; /* token ids */
};

struct moe_bpe_slot; /* in the hash table from (left, right) to rank */

struct moe_bpe {
    struct moe_bpe_merge *merges; /* in rank order; owned */
    uint32_t n_merges;
    struct moe_bpe_slot *slots; /* owned; built by moe_bpe_index */
    uint32_t mask;              /* number of slots - 1 */
};

/* Builds the table over `merges`. A merge whose result has one of the bits `skip` in token_flags
 * keeps its rank but is never made. A pair that occurs twice is MOE_ERR_FORMAT. */
int moe_bpe_index(struct moe_bpe *bpe, const uint8_t *token_flags, uint8_t skip,
                  struct moe_err *err);
void moe_bpe_release(struct moe_bpe *bpe);
uint64_t moe_bpe_bytes(const struct moe_bpe *bpe); /* bytes it owns */

/* One thread's working memory, reused from piece to piece. Start from a zeroed struct. */
struct moe_bpe_scratch {
    uint32_t *links; /* next, previous and rank for each place */
    uint64_t *heap;  /* rank << 32 | place */
    uint64_t room;   /* places that both have room for */
};
void moe_bpe_scratch_release(struct moe_bpe_scratch *scratch);
/* Bytes of scratch for pieces of at most n ids. */
uint64_t moe_bpe_scratch_bytes(uint64_t n);

/* Merges ids[0..*n) in place and sets *n to the number left. */
int moe_bpe_merge(const struct moe_bpe *bpe, struct moe_bpe_scratch *scratch, uint32_t *ids,
                  uint64_t *n, struct moe_err *err);

#endif
