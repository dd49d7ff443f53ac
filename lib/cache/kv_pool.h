/*
 * The blocks of a KV cache: whose they are, and what is known of what they hold. Pure bookkeeping:
 * a block is a number, its cells belong to the pool's user (layer/kv.h).
 *
 * Blocks are known by the ids whose keys and values they hold, and by the block before: a sequence
 * whose text begins like one that was computed before takes over what is equal. Whole blocks are
 * shared, by as many sequences as like; nobody writes into them again. Of one that is equal in part
 * it gets a copy. What ended sequences leave is remembered in blocks that are free: the one that
 * has been free longest is taken first, and of a text its end before its beginning.
 */
#ifndef MOE_CACHE_KV_POOL_H
#define MOE_CACHE_KV_POOL_H

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum { MOE_NO_BLOCK = UINT32_MAX };

struct moe_kv_block {
    uint64_t text;    /* of a full one: a number for all ids up to its end, the same in blocks of
                         the same text; else 0 */
    uint64_t before;  /* `text` of the block before; 0: it is a text's first */
    uint32_t n_known; /* its first positions are those of known ids */
    uint64_t given;   /* what else the keys and values depend on, as a number: blocks are known to
                         texts with the same one alone */
    uint32_t n_users; /* sequences that have it; 0: it is free */
    uint32_t older, newer; /* of a free one: neighbours in the order in which they will be taken */
};

/* Room for the keys and values that layers with a window have in a block (cache/kv_windows.h). */
struct moe_kv_slot {
    uint32_t block;  /* MOE_NO_BLOCK: it is free */
    uint32_t n;      /* its first positions are there */
    uint64_t needed; /* when it was last: slots go to other blocks by rising numbers */
};

/* Which blocks the sequences have: the same wherever the cache lies. */
struct moe_kv_pool {
    uint32_t n_sequences, n_blocks;
    uint32_t block_positions; /* of each */
    uint32_t per_sequence;    /* blocks that the whole context takes */
    uint32_t n_free;
    uint32_t oldest, newest;     /* free ones; MOE_NO_BLOCK: none */
    struct moe_kv_block *blocks; /* [n_blocks] */
    uint32_t *ids;               /* [n_blocks][block_positions] the known ones */
    uint32_t *table;             /* [n_sequences][per_sequence] its blocks, by rising position */
    uint32_t *n_taken;           /* [n_sequences] */
    uint64_t n_changes;          /* of the table, so far */
    uint64_t n_texts;            /* numbers of texts, so far */
    /* Where layers with a window keep fewer blocks than the others (cache/kv_windows.h): */
    uint32_t window;                 /* positions that their rows see, the own one included */
    uint32_t n_slots;                /* 0: they have all blocks */
    uint32_t *slot_of;               /* [n_blocks]; MOE_NO_BLOCK: the block has none */
    struct moe_kv_slot *slots;       /* [n_slots] */
    struct moe_kv_places *places_of; /* [n_sequences] */
    uint64_t n_passes;               /* so far */
};

/* A pool whose first four members, window and n_slots are set: takes its arrays from the arena, or
 * only counts them. All blocks are free. */
void moe_kv_pool_carve(struct moe_kv_pool *pool, struct moe_arena *arena);
/* Has the first n_positions of a sequence lie in blocks of its own. MOE_ERR_LIMIT where fewer are
 * free than that takes; none is taken then. */
int moe_kv_take(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n_positions,
                struct moe_err *err);
/* The sequence's blocks become free where no other has them; what is known of them stays so until
 * they are taken. */
void moe_kv_give_back(struct moe_kv_pool *pool, uint32_t sequence);

/* The beginning of a text. */
struct moe_kv_text {
    const uint32_t *ids;
    uint32_t n;
    uint64_t given; /* as in moe_kv_block */
};
/* What a sequence begins with. */
struct moe_kv_begun {
    uint32_t n_known;            /* positions of its text that are in its blocks */
    uint32_t copy_from, copy_to; /* blocks: the cells have to be copied; MOE_NO_BLOCK: none */
};
/* As moe_kv_take, for a sequence that has no blocks: it gets what is known of the text, at most all
 * of it, and n_positions >= text->n in all. */
int moe_kv_begin(struct moe_kv_pool *pool, uint32_t sequence, const struct moe_kv_text *text,
                 uint32_t n_positions, struct moe_kv_begun *out, struct moe_err *err);
/* `to`, which has no blocks, gets the first n_positions of `from`, which has them: whole blocks are
 * shared, and of the last, where it is part of one, it gets a copy. Nothing is known of that.
 * MOE_ERR_LIMIT: no block is free for it. */
int moe_kv_fork(struct moe_kv_pool *pool, uint32_t from, uint32_t to, uint32_t n_positions,
                struct moe_kv_begun *out, struct moe_err *err);
/* How many positions of a text moe_kv_begin would find. */
uint32_t moe_kv_find(const struct moe_kv_pool *pool, const struct moe_kv_text *text);
/* The sequence's position holds the keys and values of `id` now, of a text with that `given`.
 * Positions become known in their order, in blocks that it took or began with. */
void moe_kv_know(struct moe_kv_pool *pool, uint32_t sequence, uint32_t position, uint32_t id,
                 uint64_t given);

#endif
