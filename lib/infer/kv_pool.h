/*
 * The blocks of a KV cache: whose they are, and what is known of what they hold. Pure bookkeeping:
 * a block is a number, its cells belong to the pool's user (infer/kv.h).
 *
 * Blocks are known by the ids whose keys and values they hold, and by the block before: a sequence
 * whose text begins like one that was computed before takes over what is equal. Whole blocks are
 * shared, by as many sequences as like; nobody writes into them again. Of one that is equal in part
 * it gets a copy. What ended sequences leave is remembered in blocks that are free: the one that
 * has been free longest is taken first, and of a text its end before its beginning.
 *
 * A model with recurrent states goes on only from positions whose states were kept: snapshots,
 * which belong to the block that holds the last of these positions.
 */
#ifndef MOE_INFER_KV_POOL_H
#define MOE_INFER_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum { MOE_NO_BLOCK = UINT32_MAX };

struct moe_kv_block {
    uint64_t text;    /* of a full one: a number for all ids up to its end, the same in blocks of
                         the same text; else 0 */
    uint64_t before;  /* `text` of the block before; 0: it is a text's first */
    uint32_t n_known; /* its first positions are those of known ids */
    uint64_t given;   /* what else the keys and values depend on, as a number: only
                         texts with the same one find the block */
    uint32_t n_users; /* sequences that have it; 0: it is free */
    bool needed;      /* marked by moe_kv_need */
    bool held;        /* it takes memory (moe_kv_hold) */
    uint32_t older, newer; /* of a free one: neighbours in the order in which they will be taken */
};

/* Kept recurrent states of a text; their memory is the pool's user's. */
struct moe_kv_snapshot {
    uint32_t block;  /* MOE_NO_BLOCK: it is free */
    uint32_t n;      /* positions of the block that the states have taken in */
    uint64_t needed; /* those of lower numbers give way first */
};

/* Room for the keys and values of one block in layers with a window (see moe_kv_windows_slots). */
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
    uint32_t n_free, n_held;
    uint32_t oldest, newest;     /* free ones; MOE_NO_BLOCK: none */
    struct moe_kv_block *blocks; /* [n_blocks] */
    uint32_t *ids;               /* [n_blocks][block_positions] the known ones */
    uint32_t *table;             /* [n_sequences][per_sequence] its blocks, by rising position */
    uint32_t *n_taken;           /* [n_sequences] */
    uint64_t n_changes;          /* of the table, and of slot_of, so far */
    uint64_t n_texts;            /* numbers of texts, so far */
    uint32_t n_snapshots;        /* 0: any position of a text can be gone on from */
    struct moe_kv_snapshot *snapshots; /* [n_snapshots] */
    uint64_t n_kept;                   /* snapshots, so far */
    /* Where layers with a window keep fewer blocks than the others: */
    uint32_t window;                 /* positions that their rows see, the own one included */
    uint32_t n_slots;                /* 0: they have all blocks */
    uint32_t *slot_of;               /* [n_blocks]; MOE_NO_BLOCK: the block has none */
    struct moe_kv_slot *slots;       /* [n_slots] */
    struct moe_kv_places *places_of; /* [n_sequences] */
    uint64_t n_passes;               /* so far */
};

/* A pool whose first four members, n_snapshots, window and n_slots are set: takes its arrays from
 * the arena, or only counts them. All blocks are free. */
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
    uint32_t n_alike;            /* ... that are in any, also where it cannot go on from them */
    uint32_t copy_from, copy_to; /* blocks: the cells have to be copied; MOE_NO_BLOCK: none */
    uint32_t snapshot;           /* of the n_known positions; MOE_NO_BLOCK: none */
};
/* As moe_kv_take, for a sequence that has no blocks: it gets what is known of the text, at most all
 * of it, and n_positions >= text->n in all. */
int moe_kv_begin(struct moe_kv_pool *pool, uint32_t sequence, const struct moe_kv_text *text,
                 uint32_t n_positions, struct moe_kv_begun *out, struct moe_err *err);
/* `to`, which has no blocks, gets the first n_positions of `from`, which has them: whole blocks are
 * shared, and of the last, where it is part of one, it gets a copy. MOE_ERR_LIMIT: no block is free
 * for it. */
int moe_kv_fork(struct moe_kv_pool *pool, uint32_t from, uint32_t to, uint32_t n_positions,
                struct moe_kv_begun *out, struct moe_err *err);
/* The snapshot to copy the states of a sequence's first n positions to, in place of the one that is
 * needed least; `likely` ones are needed longer. MOE_NO_BLOCK: there is one already, or the ids of
 * the positions are not known. */
uint32_t moe_kv_snapshot(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n, bool likely);
/* How many positions of a text moe_kv_begin would find. */
uint32_t moe_kv_find(const struct moe_kv_pool *pool, const struct moe_kv_text *text);
/* The sequence's position holds the keys and values of `id` now, of a text with that `given`.
 * Positions become known in their order, in blocks that it took or began with. */
void moe_kv_know(struct moe_kv_pool *pool, uint32_t sequence, uint32_t position, uint32_t id,
                 uint64_t given);
/* How many of n ids the blocks of a sequence are known to begin with. */
uint32_t moe_kv_common(const struct moe_kv_pool *pool, uint32_t sequence, const uint32_t *ids,
                       uint32_t n);
/* Where the sequence may write to its blocks, to go on from position n: there, or where the block
 * begins that holds it and is others' too. */
uint32_t moe_kv_writable(const struct moe_kv_pool *pool, uint32_t sequence, uint32_t n);
/* It will write from such a position on: what is known of the blocks behind it is forgotten, and
 * those that are others' too are given back. */
void moe_kv_rewind(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n);

/*
 * Where the memory of blocks is lent while nothing is in them, they are held as they are needed: a
 * sequence may have taken more, for what it is going to compute.
 */

/* Marks blocks: those of the sequence's first n positions. */
void moe_kv_need(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n);
/* ... and the n that sequences gave back last with something known in them. */
void moe_kv_need_known(struct moe_kv_pool *pool, uint32_t n);
/* Goes through the blocks from *block on: the next one that is marked and not held, and is held
 * from here on; or, with `drops`, one that is held and not marked: it is held no more, and
 * forgotten. MOE_NO_BLOCK after the last, and then no block is marked. */
uint32_t moe_kv_hold(struct moe_kv_pool *pool, uint32_t *block, bool drops);

/*
 * Layers with a window see only the last positions of a text: of their keys and values a block need
 * not keep what no row will see again. They lie in slots, fewer than there are blocks: a block has
 * one from when its rows are computed until another needs it more, and then it has none, while the
 * keys and values of the other layers stay in it. Pure bookkeeping, as the pool.
 *
 * A sequence can always go on from its last positions, MOE_KV_BACK of them, so that what was
 * drafted in vain is taken back. It can go back further as far as slots are left; they are left
 * first where its prompt began to be another text than one that was known, and at the prompt's end:
 * answers are taken back, or written anew without their thoughts. From elsewhere it goes on from
 * the last position before where nothing is missing, at the latest from the text's beginning.
 *
 * With n_slots 0 all of this does nothing: all that was computed is there.
 */

enum {
    MOE_KV_BACK = 64, /* positions that a sequence can go back at any time */
    MOE_KV_MARKS = 2,
};

/* Of a sequence. */
struct moe_kv_places {
    uint32_t end;                 /* of the last rows that were computed; 0: there are none */
    uint32_t marks[MOE_KV_MARKS]; /* where it may go on from, the less likely one first; 0: none */
};

/* Slots that passes of `batch` rows need, and those that marks do; 0: as many as blocks. pool: its
 * first four members and window are set. */
uint32_t moe_kv_windows_slots(const struct moe_kv_pool *pool, uint32_t batch);
void moe_kv_windows_carve(struct moe_kv_pool *pool, struct moe_arena *arena);
void moe_kv_windows_clear(struct moe_kv_pool *pool);

/* From where a sequence that has blocks of n positions can go on, to compute position n. */
uint32_t moe_kv_windows_from(const struct moe_kv_pool *pool, uint32_t sequence, uint32_t n);
/* The same of blocks that are looked at one after the other, each with n positions. */
struct moe_kv_walk {
    uint32_t n;      /* positions so far */
    uint32_t begin;  /* of the last of these, all that have slots */
    uint32_t usable; /* where a text could go on from */
};
void moe_kv_windows_walk(const struct moe_kv_pool *pool, struct moe_kv_walk *w, uint32_t block,
                         uint32_t n);

/* Positions of the sequence's first n whose blocks have slots, up to the first that has none. */
uint32_t moe_kv_windows_complete(const struct moe_kv_pool *pool, uint32_t sequence, uint32_t n);

/* A pass: it begins, has runs of rows at positions [first, end), and then all the sequences keep
 * what they need. After that each run gets slots for what it computes. MOE_ERR_USAGE: what its rows
 * see is gone. */
void moe_kv_windows_pass(struct moe_kv_pool *pool);
void moe_kv_windows_run(struct moe_kv_pool *pool, uint32_t sequence, uint32_t first, uint32_t end);
void moe_kv_windows_keep(struct moe_kv_pool *pool);
int moe_kv_windows_take(struct moe_kv_pool *pool, uint32_t sequence, uint32_t first, uint32_t end,
                        struct moe_err *err);
/* Has the sequence go on from position n; what its rows see there is filled in from elsewhere. */
void moe_kv_windows_hold(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n);
/* Where the sequence may go on from later: where its prompt began, and where that ends. */
void moe_kv_windows_mark(struct moe_kv_pool *pool, uint32_t sequence, uint32_t begin, uint32_t end);

/* What the pool does: a sequence has begun so; its blocks are given back; a block is to be
 * another's.
 */
void moe_kv_windows_begun(struct moe_kv_pool *pool, uint32_t sequence,
                          const struct moe_kv_begun *begun);
void moe_kv_windows_ended(struct moe_kv_pool *pool, uint32_t sequence);
void moe_kv_windows_drop(struct moe_kv_pool *pool, uint32_t block);

#endif
