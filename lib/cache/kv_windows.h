/*
 * Layers with a window see the last positions of a text alone: of their keys and values a block
 * (kv_pool.h) need not keep what no row will see again. They lie in slots, fewer than there are
 * blocks: a block has one from when its rows are computed until another needs it more, and then it
 * has none, while the keys and values of the other layers stay in it. Pure bookkeeping, as the
 * pool.
 *
 * A sequence can always go on from its last positions, MOE_KV_BACK of them, so that what was
 * drafted in vain is taken back. It can go back further as far as slots are left; they are left
 * first where its prompt began to be another text than one that was known, and at the prompt's end:
 * answers are taken back, or written anew without their thoughts. From elsewhere it goes on from
 * the last position before where nothing is missing, at the latest from the text's beginning.
 *
 * With n_slots 0 all of this does nothing: all that was computed is there.
 */
#ifndef MOE_CACHE_KV_WINDOWS_H
#define MOE_CACHE_KV_WINDOWS_H

#include "cache/kv_pool.h"

enum {
    MOE_KV_BACK = 64, /* positions that a sequence can go back at any time */
    MOE_KV_MARKS = 2,
};

/* Of a sequence. */
struct moe_kv_places {
    uint32_t end;                 /* of the last rows that were computed; 0: there are none */
    uint32_t marks[MOE_KV_MARKS]; /* where it may go on from, the less likely one first; 0: none */
};

/* Slots that passes of so many rows need, and those that marks do; 0: as many as blocks. pool: its
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
/* The sequence will go on from position n, and what its rows see there comes from elsewhere. */
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
