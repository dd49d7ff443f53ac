#include "cache/kv_windows.h"

#include <stdbool.h>

/* What a slot was last needed for in a pass: the number of the pass, four times, and this. */
enum { FOR_MARKS /* and its successors */, FOR_ROWS = MOE_KV_MARKS + 1, USES };

/* Positions before a row that it may see, with those that its sequence may go back. */
static uint32_t reach(const struct moe_kv_pool *p)
{
    return p->window - 1 + MOE_KV_BACK;
}

uint32_t moe_kv_windows_slots(const struct moe_kv_pool *p, uint32_t batch)
{
    /* n positions lie in n / each + 2 blocks at most. All sequences need slots for what they see,
     * and together for the rows of a pass; beside them lies what marks keep. A pass counts as whole
     * blocks: small changes of a batch change nothing. */
    uint64_t each = p->block_positions, n = p->n_sequences;
    uint64_t rows = (batch + each - 1) / each * each, seen = (uint64_t)p->window - 1 + MOE_KV_BACK;
    uint64_t needed = 2 * n + (n * seen + rows) / each + n * (seen / each + 3);
    return needed < p->n_blocks ? (uint32_t)needed : 0;
}

void moe_kv_windows_carve(struct moe_kv_pool *pool, struct moe_arena *arena)
{
    bool some = pool->n_slots > 0;
    pool->slot_of = moe_arena_take(arena, some ? pool->n_blocks : 0, sizeof *pool->slot_of);
    pool->slots = moe_arena_take(arena, pool->n_slots, sizeof *pool->slots);
    pool->places_of = moe_arena_take(arena, some ? pool->n_sequences : 0, sizeof *pool->places_of);
}

void moe_kv_windows_clear(struct moe_kv_pool *pool)
{
    pool->n_passes = 0;
    for (uint32_t i = 0; i < pool->n_slots; i++)
        pool->slots[i] = (struct moe_kv_slot){.block = MOE_NO_BLOCK};
    for (uint32_t i = 0; pool->n_slots && i < pool->n_blocks; i++)
        pool->slot_of[i] = MOE_NO_BLOCK;
    for (uint32_t i = 0; pool->n_slots && i < pool->n_sequences; i++)
        pool->places_of[i] = (struct moe_kv_places){0};
}

static const uint32_t *blocks_of(const struct moe_kv_pool *p, uint32_t sequence)
{
    return p->table + (uint64_t)sequence * p->per_sequence;
}

static uint32_t before(uint32_t position, uint32_t n)
{
    return position > n ? position - n : 0;
}

/* ---- Where a text can go on ---- */

/* Whether a block's first n positions are in its slot. */
static bool holds(const struct moe_kv_pool *p, uint32_t block, uint32_t n)
{
    uint32_t slot = p->slot_of[block];
    return slot != MOE_NO_BLOCK && p->slots[slot].n >= n;
}

uint32_t moe_kv_windows_from(const struct moe_kv_pool *p, uint32_t sequence, uint32_t n)
{
    const uint32_t *blocks = blocks_of(p, sequence);
    uint64_t room = (uint64_t)p->n_taken[sequence] * p->block_positions;
    if (p->n_slots && n > room)
        n = (uint32_t)room;
    while (p->n_slots && n > 0) {
        uint32_t begin = before(n, p->window - 1), each = p->block_positions, at = n;
        while (at > begin && holds(p, blocks[(at - 1) / each], (at - 1) % each + 1))
            at = (at - 1) / each * each;
        if (at <= begin)
            return n;
        n = (at - 1) / each * each;
    }
    return n;
}

void moe_kv_windows_walk(const struct moe_kv_pool *p, struct moe_kv_walk *w, uint32_t block,
                         uint32_t n)
{
    w->n += n;
    if (p->n_slots && !holds(p, block, n))
        w->begin = w->n;
    else if (w->begin == 0 || w->n - w->begin >= p->window - 1)
        w->usable = w->n;
}

uint32_t moe_kv_windows_complete(const struct moe_kv_pool *p, uint32_t sequence, uint32_t n)
{
    const uint32_t *blocks = blocks_of(p, sequence);
    uint32_t each = p->block_positions;
    for (uint32_t at = 0, i = 0; p->n_slots && at < n; at += each, i++)
        if (i == p->n_taken[sequence] || !holds(p, blocks[i], n - at < each ? n - at : each))
            return at;
    return n;
}

/* ---- Who needs which slot ---- */

/* Slots of a sequence's positions [begin, end) are needed now. */
static void need(struct moe_kv_pool *p, uint32_t sequence, uint32_t begin, uint32_t end, int use)
{
    const uint32_t *blocks = blocks_of(p, sequence);
    uint64_t now = p->n_passes * USES + use, room = (uint64_t)p->n_taken[sequence];
    for (uint64_t i = begin / p->block_positions; begin < end && i < room; i++) {
        if (i * p->block_positions >= end)
            break;
        uint32_t slot = p->slot_of[blocks[i]];
        if (slot != MOE_NO_BLOCK && p->slots[slot].needed < now)
            p->slots[slot].needed = now;
    }
}

/* A slot that is free, or else the sequence's own that it has left behind, or else the one that was
 * needed longest ago; MOE_NO_BLOCK: all are needed now. */
static uint32_t least_needed(const struct moe_kv_pool *p, uint32_t sequence)
{
    const uint32_t *blocks = blocks_of(p, sequence);
    uint32_t least = MOE_NO_BLOCK;
    uint64_t now = p->n_passes * USES + FOR_ROWS;
    for (uint32_t i = 0; i < p->n_slots; i++) {
        if (p->slots[i].block == MOE_NO_BLOCK)
            return i;
        if (p->slots[i].needed < now) {
            now = p->slots[i].needed;
            least = i;
        }
    }
    for (uint32_t i = 0; i < p->n_taken[sequence]; i++) {
        uint32_t slot = p->slot_of[blocks[i]];
        if (slot != MOE_NO_BLOCK && p->slots[slot].needed < p->n_passes * USES &&
            p->blocks[blocks[i]].n_users == 1)
            return slot;
    }
    return least;
}

/* A slot for a block whose first n positions come to be there. False: all are needed now. */
static bool give(struct moe_kv_pool *p, uint32_t sequence, uint32_t block, uint32_t n)
{
    uint32_t slot = p->slot_of[block];
    if (slot == MOE_NO_BLOCK) {
        if ((slot = least_needed(p, sequence)) == MOE_NO_BLOCK)
            return false;
        if (p->slots[slot].block != MOE_NO_BLOCK)
            p->slot_of[p->slots[slot].block] = MOE_NO_BLOCK;
        p->slots[slot] = (struct moe_kv_slot){block, 0, p->n_passes * USES + FOR_ROWS};
        p->slot_of[block] = slot;
    }
    if (p->slots[slot].n < n)
        p->slots[slot].n = n;
    return true;
}

/* Slots for a sequence's positions [first, end), which come to be there. */
static bool give_all(struct moe_kv_pool *p, uint32_t sequence, uint32_t first, uint32_t end)
{
    const uint32_t *blocks = blocks_of(p, sequence);
    uint32_t each = p->block_positions;
    bool given = true;
    for (uint32_t i = first / each; i <= (end - 1) / each && given; i++)
        given = give(p, sequence, blocks[i], end - i * each < each ? end - i * each : each);
    return given;
}

void moe_kv_windows_drop(struct moe_kv_pool *p, uint32_t block)
{
    if (!p->n_slots || p->slot_of[block] == MOE_NO_BLOCK)
        return;
    p->slots[p->slot_of[block]] = (struct moe_kv_slot){.block = MOE_NO_BLOCK};
    p->slot_of[block] = MOE_NO_BLOCK;
}

/* ---- Passes ---- */

void moe_kv_windows_pass(struct moe_kv_pool *pool)
{
    pool->n_passes++;
}

void moe_kv_windows_run(struct moe_kv_pool *p, uint32_t sequence, uint32_t first, uint32_t end)
{
    p->places_of[sequence].end = end;
    need(p, sequence, before(first, p->window - 1), end, FOR_ROWS);
}

void moe_kv_windows_keep(struct moe_kv_pool *p)
{
    for (uint32_t i = 0; i < p->n_sequences; i++) {
        const struct moe_kv_places *at = &p->places_of[i];
        need(p, i, before(at->end, reach(p)), at->end, FOR_ROWS);
        for (int mark = 0; mark < MOE_KV_MARKS; mark++)
            need(p, i, before(at->marks[mark], reach(p)), at->marks[mark], FOR_MARKS + mark);
    }
}

int moe_kv_windows_take(struct moe_kv_pool *p, uint32_t sequence, uint32_t first, uint32_t end,
                        struct moe_err *err)
{
    if (moe_kv_windows_from(p, sequence, first) != first)
        return moe_fail(err, MOE_ERR_USAGE,
                        "position %u of sequence %u cannot be computed: what layers with a window "
                        "see there is not kept any more (compute the text from position %u on)",
                        first, sequence, moe_kv_windows_from(p, sequence, first));
    if (give_all(p, sequence, first, end))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_LIMIT,
                    "the KV cache has no room for what layers with a window see of sequence %u at "
                    "position %u",
                    sequence, first);
}

void moe_kv_windows_hold(struct moe_kv_pool *p, uint32_t sequence, uint32_t n)
{
    if (!p->n_slots || n == 0)
        return;
    moe_kv_windows_pass(p);
    p->places_of[sequence] = (struct moe_kv_places){.end = n};
    moe_kv_windows_keep(p);
    give_all(p, sequence, before(n, reach(p)) / p->block_positions * p->block_positions, n);
}

void moe_kv_windows_mark(struct moe_kv_pool *p, uint32_t sequence, uint32_t begin, uint32_t end)
{
    if (p->n_slots) {
        p->places_of[sequence].marks[0] = begin;
        p->places_of[sequence].marks[1] = end;
    }
}

/* ---- For the pool ---- */

void moe_kv_windows_begun(struct moe_kv_pool *p, uint32_t sequence,
                          const struct moe_kv_begun *begun)
{
    if (!p->n_slots)
        return;
    moe_kv_windows_pass(p);
    p->places_of[sequence] = (struct moe_kv_places){.end = begun->n_known};
    moe_kv_windows_keep(p);
    if (begun->copy_to == MOE_NO_BLOCK || p->slot_of[begun->copy_from] == MOE_NO_BLOCK)
        return;
    struct moe_kv_slot *from = &p->slots[p->slot_of[begun->copy_from]];
    from->needed = p->n_passes * USES + FOR_ROWS;
    give(p, sequence, begun->copy_to, from->n);
}

void moe_kv_windows_ended(struct moe_kv_pool *p, uint32_t sequence)
{
    if (p->n_slots)
        p->places_of[sequence] = (struct moe_kv_places){0};
}
