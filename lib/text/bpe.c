/* Byte-pair merging: a table of pairs, and merging by scan or by heap. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    /* Up to this many ids a scan for the lowest rank beats a heap: a word has about five. */
    SMALL_PIECE = 32,
    N_LINKS = 3, /* for each place */
    /* Every place but the last enters the heap once; every merge removes a key and adds at most
       two, and there are fewer merges than places. */
    N_KEYS = 2,
};

#define NO_RANK UINT32_MAX /* also means "no place" in links */

struct moe_bpe_slot {
    uint32_t left, right;
    uint32_t rank; /* NO_RANK: the slot is empty */
};

static uint32_t hash_pair(uint32_t left, uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32);
}

static uint32_t find_rank(const struct moe_bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t at = hash_pair(left, right) & bpe->mask;
    for (;; at = (at + 1) & bpe->mask) {
        const struct moe_bpe_slot *slot = &bpe->slots[at];
        if (slot->rank == NO_RANK || (slot->left == left && slot->right == right))
            return slot->rank;
    }
}

int moe_bpe_index(struct moe_bpe *bpe, const uint8_t *token_flags, uint8_t skip,
                  struct moe_err *err)
{
    uint64_t n_slots = 16;
    while (n_slots * 3 < (uint64_t)bpe->n_merges * 4)
        n_slots *= 2;
    bpe->slots = moe_alloc(n_slots, sizeof *bpe->slots, err);
    if (!bpe->slots)
        return MOE_ERR_MEMORY;
    bpe->mask = (uint32_t)(n_slots - 1);
    for (uint64_t i = 0; i < n_slots; i++)
        bpe->slots[i].rank = NO_RANK;
    for (uint32_t rank = 0; rank < bpe->n_merges; rank++) {
        const struct moe_bpe_merge *m = &bpe->merges[rank];
        if (token_flags[m->result] & skip)
            continue;
        uint32_t at = hash_pair(m->left, m->right) & bpe->mask;
        for (; bpe->slots[at].rank != NO_RANK; at = (at + 1) & bpe->mask) {
            if (bpe->slots[at].left == m->left && bpe->slots[at].right == m->right)
                return moe_fail(err, MOE_ERR_FORMAT, "merge %u has the pair of merge %u", rank,
                                bpe->slots[at].rank);
        }
        bpe->slots[at] = (struct moe_bpe_slot){m->left, m->right, rank};
    }
    return MOE_OK;
}

uint64_t moe_bpe_bytes(const struct moe_bpe *bpe)
{
    uint64_t n_slots = bpe->slots ? (uint64_t)bpe->mask + 1 : 0;
    return bpe->n_merges * sizeof *bpe->merges + n_slots * sizeof *bpe->slots;
}

void moe_bpe_release(struct moe_bpe *bpe)
{
    free(bpe->merges);
    free(bpe->slots);
    *bpe = (struct moe_bpe){0};
}

void moe_bpe_scratch_release(struct moe_bpe_scratch *scratch)
{
    free(scratch->links);
    free(scratch->heap);
    *scratch = (struct moe_bpe_scratch){0};
}

uint64_t moe_bpe_scratch_bytes(uint64_t n)
{
    return n > SMALL_PIECE ? n * (N_LINKS * sizeof(uint32_t) + N_KEYS * sizeof(uint64_t)) : 0;
}

static int scratch_grow(struct moe_bpe_scratch *scratch, uint64_t n, struct moe_err *err)
{
    if (n <= scratch->room)
        return MOE_OK;
    moe_bpe_scratch_release(scratch);
    scratch->links = moe_alloc(n, N_LINKS * sizeof *scratch->links, err);
    scratch->heap = moe_alloc(n, N_KEYS * sizeof *scratch->heap, err);
    if (!scratch->links || !scratch->heap) {
        moe_bpe_scratch_release(scratch);
        return MOE_ERR_MEMORY;
    }
    scratch->room = n;
    return MOE_OK;
}

static uint64_t merge_small(const struct moe_bpe *bpe, uint32_t *ids, uint64_t n)
{
    uint32_t ranks[SMALL_PIECE];
    for (uint64_t i = 0; i + 1 < n; i++)
        ranks[i] = find_rank(bpe, ids[i], ids[i + 1]);
    while (n > 1) {
        uint64_t best = 0;
        for (uint64_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best])
                best = i;
        }
        if (ranks[best] == NO_RANK)
            break;
        ids[best] = bpe->merges[ranks[best]].result;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best) * sizeof *ranks);
        if (best + 1 < n)
            ranks[best] = find_rank(bpe, ids[best], ids[best + 1]);
        if (best > 0)
            ranks[best - 1] = find_rank(bpe, ids[best - 1], ids[best]);
    }
    return n;
}

/* ---- Long pieces: a linked list of places and a heap of candidate pairs ---- */

struct heap {
    uint64_t *keys;
    uint64_t n;
};

static void sift_down(struct heap *heap, uint64_t at)
{
    uint64_t key = heap->keys[at];
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= heap->n)
            break;
        if (child + 1 < heap->n && heap->keys[child + 1] < heap->keys[child])
            child++;
        if (heap->keys[child] >= key)
            break;
        heap->keys[at] = heap->keys[child];
        at = child;
    }
    heap->keys[at] = key;
}

static void heap_push(struct heap *heap, uint64_t key)
{
    uint64_t at = heap->n++;
    while (at > 0 && heap->keys[(at - 1) / 2] > key) {
        heap->keys[at] = heap->keys[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->keys[at] = key;
}

static uint64_t heap_pop(struct heap *heap)
{
    uint64_t top = heap->keys[0];
    heap->keys[0] = heap->keys[--heap->n];
    if (heap->n)
        sift_down(heap, 0);
    return top;
}

struct piece {
    uint32_t *ids;
    uint32_t *next, *previous;
    uint32_t *rank; /* rank of the pair that begins here: identifies stale heap entries */
    struct heap heap;
};

static void consider(const struct moe_bpe *bpe, struct piece *p, uint32_t at)
{
    p->rank[at] =
        p->next[at] == NO_RANK ? NO_RANK : find_rank(bpe, p->ids[at], p->ids[p->next[at]]);
    if (p->rank[at] != NO_RANK)
        heap_push(&p->heap, (uint64_t)p->rank[at] << 32 | at);
}

static uint64_t merge_large(const struct moe_bpe *bpe, struct moe_bpe_scratch *scratch,
                            uint32_t *ids, uint32_t n)
{
    struct piece p = {.ids = ids,
                      .next = scratch->links,
                      .previous = scratch->links + n,
                      .rank = scratch->links + 2 * (uint64_t)n,
                      .heap = {.keys = scratch->heap}};
    for (uint32_t i = 0; i < n; i++) {
        p.next[i] = i + 1 < n ? i + 1 : NO_RANK;
        p.previous[i] = i > 0 ? i - 1 : NO_RANK;
    }
    for (uint32_t i = 0; i < n; i++)
        consider(bpe, &p, i);
    while (p.heap.n) {
        uint64_t top = heap_pop(&p.heap);
        uint32_t at = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (p.rank[at] != rank)
            continue;
        uint32_t gone = p.next[at];
        ids[at] = bpe->merges[rank].result;
        p.rank[gone] = NO_RANK;
        p.next[at] = p.next[gone];
        if (p.next[at] != NO_RANK)
            p.previous[p.next[at]] = at;
        consider(bpe, &p, at);
        if (p.previous[at] != NO_RANK)
            consider(bpe, &p, p.previous[at]);
    }
    uint64_t kept = 0;
    for (uint32_t at = 0; at != NO_RANK; at = p.next[at])
        ids[kept++] = ids[at];
    return kept;
}

int moe_bpe_merge(const struct moe_bpe *bpe, struct moe_bpe_scratch *scratch, uint32_t *ids,
                  uint64_t *n, struct moe_err *err)
{
    if (*n <= SMALL_PIECE) {
        *n = merge_small(bpe, ids, *n);
        return MOE_OK;
    }
    if (*n >= UINT32_MAX / 4)
        return moe_fail(err, MOE_ERR_LIMIT, "a piece of %llu bytes is too long to tokenize",
                        (unsigned long long)*n);
    MOE_TRY(scratch_grow(scratch, *n, err));
    *n = merge_large(bpe, scratch, ids, (uint32_t)*n);
    return MOE_OK;
}
