/* Blocks of the KV cache: whose they are, which recurrent states are kept of their texts, and what
 * layers with a window keep of them. */
#include "infer/kv_pool.h"

#include <stdbool.h>
#include <string.h>

enum { COPIED_LEAST = 16 /* positions: fewer are as well computed again */ };

/* ---- Whose they are ---- */

/* Free blocks in the order in which they are taken: a list. */
static void append_free(struct moe_kv_pool *p, uint32_t block)
{
    struct moe_kv_block *b = &p->blocks[block];
    b->older = p->newest;
    b->newer = MOE_NO_BLOCK;
    *(p->newest == MOE_NO_BLOCK ? &p->oldest : &p->blocks[p->newest].newer) = block;
    p->newest = block;
    p->n_free++;
}

static void prepend_free(struct moe_kv_pool *p, uint32_t block)
{
    struct moe_kv_block *b = &p->blocks[block];
    b->older = MOE_NO_BLOCK;
    b->newer = p->oldest;
    *(p->oldest == MOE_NO_BLOCK ? &p->newest : &p->blocks[p->oldest].older) = block;
    p->oldest = block;
    p->n_free++;
}

static void remove_free(struct moe_kv_pool *p, uint32_t block)
{
    struct moe_kv_block *b = &p->blocks[block];
    *(b->older == MOE_NO_BLOCK ? &p->oldest : &p->blocks[b->older].newer) = b->newer;
    *(b->newer == MOE_NO_BLOCK ? &p->newest : &p->blocks[b->newer].older) = b->older;
    p->n_free--;
}

void moe_kv_pool_carve(struct moe_kv_pool *pool, struct moe_arena *arena)
{
    pool->blocks = moe_arena_take(arena, pool->n_blocks, sizeof *pool->blocks);
    pool->ids =
        moe_arena_take(arena, (uint64_t)pool->n_blocks * pool->block_positions, sizeof *pool->ids);
    pool->table = moe_arena_take(arena, (uint64_t)pool->n_sequences * pool->per_sequence,
                                 sizeof *pool->table);
    pool->n_taken = moe_arena_take(arena, pool->n_sequences, sizeof *pool->n_taken);
    pool->snapshots = moe_arena_take(arena, pool->n_snapshots, sizeof *pool->snapshots);
    moe_kv_windows_carve(pool, arena);
    if (!pool->blocks || !pool->ids || !pool->table || !pool->n_taken)
        return;
    for (uint32_t i = 0; i < pool->n_snapshots; i++)
        pool->snapshots[i] = (struct moe_kv_snapshot){.block = MOE_NO_BLOCK};
    pool->n_free = pool->n_held = 0;
    pool->oldest = pool->newest = MOE_NO_BLOCK;
    for (uint32_t i = 0; i < pool->n_blocks; i++) {
        pool->blocks[i] = (struct moe_kv_block){0};
        append_free(pool, i);
    }
    memset(pool->n_taken, 0, pool->n_sequences * sizeof *pool->n_taken);
    moe_kv_windows_clear(pool);
}

/* A sequence has the block. */
static void retain(struct moe_kv_pool *p, uint32_t block)
{
    if (p->blocks[block].n_users++ == 0)
        remove_free(p, block);
}

/* ... no more. A block is taken first if nothing is known of it. */
static void release_block(struct moe_kv_pool *p, uint32_t block)
{
    if (--p->blocks[block].n_users > 0)
        return;
    if (p->blocks[block].n_known)
        append_free(p, block);
    else
        prepend_free(p, block);
}

/* How many of a text's next ids a block holds that follows the block `before`. */
static uint32_t match(const struct moe_kv_pool *p, uint32_t block, uint64_t before,
                      const struct moe_kv_text *text)
{
    const struct moe_kv_block *b = &p->blocks[block];
    const uint32_t *ids = p->ids + (uint64_t)block * p->block_positions;
    uint32_t most = b->n_known < text->n ? b->n_known : text->n, n = 0;
    if (b->before != before || b->given != text->given)
        return 0;
    while (n < most && ids[n] == text->ids[n])
        n++;
    return n;
}

/* Of a block's text no more than n positions are left: later snapshots go to a block that has as
 * much of it, or are free. */
static void drop_snapshots(struct moe_kv_pool *p, uint32_t block, uint32_t n)
{
    const struct moe_kv_block *b = &p->blocks[block];
    for (uint32_t i = 0; i < p->n_snapshots; i++) {
        struct moe_kv_snapshot *s = &p->snapshots[i];
        if (s->block != block || s->n <= n)
            continue;
        const struct moe_kv_text text = {p->ids + (uint64_t)block * p->block_positions, s->n,
                                         b->given};
        s->block = MOE_NO_BLOCK;
        for (uint32_t other = 0; other < p->n_blocks && s->block == MOE_NO_BLOCK; other++)
            if (other != block && match(p, other, b->before, &text) == s->n)
                s->block = other;
        if (s->block == MOE_NO_BLOCK)
            *s = (struct moe_kv_snapshot){.block = MOE_NO_BLOCK};
    }
}

/* The free block whose turn it is, for a sequence; there is one. What it held is forgotten. */
static uint32_t take_oldest(struct moe_kv_pool *p)
{
    uint32_t block = p->oldest;
    remove_free(p, block);
    drop_snapshots(p, block, 0);
    moe_kv_windows_drop(p, block);
    p->blocks[block] = (struct moe_kv_block){.n_users = 1, .held = p->blocks[block].held};
    return block;
}

static uint32_t *row_of(const struct moe_kv_pool *p, uint32_t sequence)
{
    return p->table + (uint64_t)sequence * p->per_sequence;
}

static uint32_t n_blocks_of(const struct moe_kv_pool *p, uint32_t n_positions)
{
    return n_positions ? (n_positions - 1) / p->block_positions + 1 : 0;
}

static int full(const struct moe_kv_pool *p, uint32_t n_positions, uint32_t more, uint32_t n_free,
                struct moe_err *err)
{
    return moe_fail(
        err, MOE_ERR_LIMIT,
        "the KV cache is full: %u positions of a sequence take %u blocks more, and %u of %u are "
        "free",
        n_positions, more, n_free, p->n_blocks);
}

int moe_kv_take(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n_positions,
                struct moe_err *err)
{
    uint32_t *taken = &pool->n_taken[sequence], wanted = n_blocks_of(pool, n_positions);
    if (wanted <= *taken)
        return MOE_OK;
    if (wanted - *taken > pool->n_free)
        return full(pool, n_positions, wanted - *taken, pool->n_free, err);
    while (*taken < wanted)
        row_of(pool, sequence)[(*taken)++] = take_oldest(pool);
    pool->n_changes++;
    return MOE_OK;
}

void moe_kv_give_back(struct moe_kv_pool *pool, uint32_t sequence)
{
    uint32_t *taken = &pool->n_taken[sequence];
    while (*taken)
        release_block(pool, row_of(pool, sequence)[--*taken]);
    moe_kv_windows_ended(pool, sequence);
}

/* ---- What blocks hold ---- */

/* The block that holds most of them, one in use where there is a choice; *n: how many. */
static uint32_t longest(const struct moe_kv_pool *p, uint64_t before,
                        const struct moe_kv_text *text, uint32_t *n)
{
    uint32_t best = MOE_NO_BLOCK;
    *n = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        uint32_t held = match(p, i, before, text);
        if (held > *n || (held && held == *n && !p->blocks[best].n_users)) {
            best = i;
            *n = held;
        }
    }
    return best;
}

/* The next whole block of a text; what follows it is left in `rest`. MOE_NO_BLOCK: the longest
 * part of one is *part, *n of its positions. */
static uint32_t next_whole(const struct moe_kv_pool *p, uint64_t *before, struct moe_kv_text *rest,
                           uint32_t *part, uint32_t *n)
{
    uint32_t block = longest(p, *before, rest, n);
    if (*n < p->block_positions) {
        *part = block;
        return MOE_NO_BLOCK;
    }
    *before = p->blocks[block].text;
    rest->ids += *n;
    rest->n -= *n;
    return block;
}

/* How many of a text's ids there are in blocks that follow each other, and how many of these can be
 * gone on from. */
static uint32_t walk(const struct moe_kv_pool *p, const struct moe_kv_text *text, uint32_t *usable)
{
    struct moe_kv_text rest = *text;
    struct moe_kv_walk w = {0};
    uint64_t before = 0;
    uint32_t block, part = MOE_NO_BLOCK, n;
    while ((block = next_whole(p, &before, &rest, &part, &n)) != MOE_NO_BLOCK)
        moe_kv_windows_walk(p, &w, block, p->block_positions);
    if (n)
        moe_kv_windows_walk(p, &w, part, n);
    *usable = w.usable;
    return w.n;
}

/* The last snapshot of a text, MOE_NO_BLOCK without one, and how many positions it has. */
static uint32_t last_snapshot(const struct moe_kv_pool *p, const struct moe_kv_text *text,
                              uint32_t *n)
{
    struct moe_kv_text rest = *text;
    uint64_t before = 0;
    uint32_t last = MOE_NO_BLOCK, block = 0, part, held;
    *n = 0;
    while (block != MOE_NO_BLOCK) {
        const uint32_t at = text->n - rest.n;
        for (uint32_t i = 0; i < p->n_snapshots; i++) {
            const struct moe_kv_snapshot *s = &p->snapshots[i];
            if (s->block == MOE_NO_BLOCK || at + s->n <= *n ||
                match(p, s->block, before, &rest) < s->n)
                continue;
            last = i;
            *n = at + s->n;
        }
        block = next_whole(p, &before, &rest, &part, &held);
    }
    return last;
}

/* The text as far as it can be gone on from. Of a shorter one other blocks may hold as much: it is
 * looked at again. A part that might not be copied is none. */
static struct moe_kv_text usable_text(const struct moe_kv_pool *p, const struct moe_kv_text *text,
                                      uint32_t *snapshot)
{
    struct moe_kv_text some = *text;
    *snapshot = MOE_NO_BLOCK;
    for (uint32_t n; p->n_slots || p->n_snapshots; some.n = n) {
        walk(p, &some, &n);
        if (p->n_snapshots)
            *snapshot = last_snapshot(p, &(struct moe_kv_text){text->ids, n, text->given}, &n);
        else if (n % p->block_positions < COPIED_LEAST)
            n -= n % p->block_positions;
        if (n == some.n)
            break;
    }
    return some;
}

uint32_t moe_kv_find(const struct moe_kv_pool *pool, const struct moe_kv_text *text)
{
    uint32_t n;
    const struct moe_kv_text some = usable_text(pool, text, &n);
    return walk(pool, &some, &n);
}

/* Forgets all but the first n positions of a block that only one sequence has. */
static void cut(struct moe_kv_pool *p, uint32_t block, uint32_t n)
{
    p->blocks[block].n_known = n;
    p->blocks[block].text = 0;
    drop_snapshots(p, block, n);
}

/* A block, just taken, will hold the first n positions of another, as far as these are known. */
static void copy_known(struct moe_kv_pool *p, uint32_t from, uint32_t to, uint32_t n)
{
    const struct moe_kv_block *b = &p->blocks[from];
    n = b->n_known < n ? b->n_known : n;
    p->blocks[to].before = b->before;
    p->blocks[to].given = b->given;
    p->blocks[to].n_known = n;
    memcpy(p->ids + (uint64_t)to * p->block_positions, p->ids + (uint64_t)from * p->block_positions,
           n * sizeof *p->ids);
}

/* A block that begins like `from`, n positions: the sequence's own from now on. Where one is free
 * besides those that it needs anyway, it is a copy; else `from` itself, if nobody has it. n 0 and
 * MOE_NO_BLOCK: neither is worth it. */
static uint32_t begin_part(struct moe_kv_pool *p, uint32_t from, uint32_t spare, uint32_t *n,
                           struct moe_kv_begun *out)
{
    const struct moe_kv_block *b = &p->blocks[from];
    bool is_free = b->n_users == 0, whole = b->n_known == *n;
    if (is_free && (whole || spare == 0)) {
        retain(p, from);
        if (!whole)
            cut(p, from, *n);
        return from;
    }
    if (*n < COPIED_LEAST && p->n_snapshots == 0) {
        *n = 0;
        return MOE_NO_BLOCK;
    }
    retain(p, from);
    uint32_t to = take_oldest(p);
    copy_known(p, from, to, *n);
    release_block(p, from);
    out->copy_from = from;
    out->copy_to = to;
    return to;
}

int moe_kv_begin(struct moe_kv_pool *pool, uint32_t sequence, const struct moe_kv_text *text,
                 uint32_t n_positions, struct moe_kv_begun *out, struct moe_err *err)
{
    uint32_t snapshot;
    const struct moe_kv_text known = usable_text(pool, text, &snapshot);
    struct moe_kv_text rest = known;
    uint64_t before = 0;
    uint32_t *row = row_of(pool, sequence), *taken = &pool->n_taken[sequence];
    uint32_t wanted = n_blocks_of(pool, n_positions), part = MOE_NO_BLOCK, n, block, parts;
    *out = (struct moe_kv_begun){.copy_from = MOE_NO_BLOCK, .copy_to = MOE_NO_BLOCK};
    out->n_alike = pool->n_slots || pool->n_snapshots ? walk(pool, text, &parts) : 0;
    while ((block = next_whole(pool, &before, &rest, &part, &n)) != MOE_NO_BLOCK) {
        retain(pool, block);
        row[(*taken)++] = block;
    }
    if (wanted - *taken > pool->n_free) {
        uint32_t more = wanted - *taken, n_free = pool->n_free;
        moe_kv_give_back(pool, sequence);
        return full(pool, n_positions, more, n_free, err);
    }
    if (n && wanted > *taken)
        block = begin_part(pool, part, pool->n_free - (wanted - *taken), &n, out);
    if (block != MOE_NO_BLOCK)
        row[(*taken)++] = block;
    out->n_known = known.n - rest.n + n;
    while (*taken < wanted)
        row[(*taken)++] = take_oldest(pool);
    out->snapshot = snapshot;
    if (snapshot != MOE_NO_BLOCK)
        pool->snapshots[snapshot].needed = ++pool->n_kept + pool->n_snapshots;
    pool->n_changes++;
    moe_kv_windows_begun(pool, sequence, out);
    return MOE_OK;
}

uint32_t moe_kv_snapshot(struct moe_kv_pool *p, uint32_t sequence, uint32_t n, bool likely)
{
    const uint32_t at = (n - 1) / p->block_positions, place = (n - 1) % p->block_positions + 1;
    const uint32_t block = at < p->n_taken[sequence] ? row_of(p, sequence)[at] : MOE_NO_BLOCK;
    const uint64_t needed = ++p->n_kept + (likely ? p->n_snapshots : 0);
    uint32_t least = MOE_NO_BLOCK;
    if (block == MOE_NO_BLOCK || p->blocks[block].n_known < place)
        return MOE_NO_BLOCK;
    for (uint32_t i = 0; i < p->n_snapshots; i++) {
        struct moe_kv_snapshot *s = &p->snapshots[i];
        if (s->block == block && s->n == place) {
            s->needed = needed;
            return MOE_NO_BLOCK;
        }
        if (least == MOE_NO_BLOCK || s->needed < p->snapshots[least].needed)
            least = i;
    }
    if (least != MOE_NO_BLOCK)
        p->snapshots[least] = (struct moe_kv_snapshot){block, place, needed};
    return least;
}

int moe_kv_fork(struct moe_kv_pool *pool, uint32_t from, uint32_t to, uint32_t n_positions,
                struct moe_kv_begun *out, struct moe_err *err)
{
    const uint32_t *source = row_of(pool, from);
    uint32_t *row = row_of(pool, to), *taken = &pool->n_taken[to];
    uint32_t n_whole = n_positions / pool->block_positions;
    uint32_t n_part = n_positions % pool->block_positions;
    *out =
        (struct moe_kv_begun){n_positions, n_positions, MOE_NO_BLOCK, MOE_NO_BLOCK, MOE_NO_BLOCK};
    if (n_part) {
        if (pool->n_free == 0)
            return full(pool, n_positions, 1, 0, err);
        out->copy_from = source[n_whole];
        out->copy_to = row[n_whole] = take_oldest(pool);
        copy_known(pool, out->copy_from, out->copy_to, n_part);
    }
    for (uint32_t i = 0; i < n_whole; i++) {
        retain(pool, source[i]);
        row[i] = source[i];
    }
    *taken = n_whole + (out->copy_to != MOE_NO_BLOCK);
    pool->n_changes++;
    moe_kv_windows_begun(pool, to, out);
    return MOE_OK;
}

/* A block has become full: it gets its number, that of another with the same text where there is
 * one. */
static void name(struct moe_kv_pool *p, uint32_t block)
{
    struct moe_kv_block *b = &p->blocks[block];
    const struct moe_kv_text text = {p->ids + (uint64_t)block * p->block_positions,
                                     p->block_positions, b->given};
    for (uint32_t i = 0; i < p->n_blocks && !b->text; i++)
        if (p->blocks[i].text && match(p, i, b->before, &text) == text.n)
            b->text = p->blocks[i].text;
    if (!b->text)
        b->text = ++p->n_texts;
}

void moe_kv_know(struct moe_kv_pool *pool, uint32_t sequence, uint32_t position, uint32_t id,
                 uint64_t given)
{
    const uint32_t *row = row_of(pool, sequence);
    uint32_t at = position / pool->block_positions, place = position % pool->block_positions;
    struct moe_kv_block *b = &pool->blocks[row[at]];
    uint64_t before = at ? pool->blocks[row[at - 1]].text : 0;
    if (place > b->n_known || (at && !before))
        return;
    if (place < b->n_known)
        cut(pool, row[at], place);
    if (place == 0) {
        b->before = before;
        b->given = given;
    }
    pool->ids[(uint64_t)row[at] * pool->block_positions + place] = id;
    b->n_known = place + 1;
    if (b->n_known == pool->block_positions)
        name(pool, row[at]);
}

uint32_t moe_kv_common(const struct moe_kv_pool *pool, uint32_t sequence, const uint32_t *ids,
                       uint32_t n)
{
    const uint32_t *row = row_of(pool, sequence);
    const uint32_t each = pool->block_positions;
    uint32_t same = 0;
    for (uint32_t i = 0; i < pool->n_taken[sequence] && same == i * each; i++) {
        const uint32_t *known = pool->ids + (uint64_t)row[i] * each;
        uint32_t end = i * each + pool->blocks[row[i]].n_known;
        while (same < end && same < n && known[same % each] == ids[same])
            same++;
    }
    return same;
}

uint32_t moe_kv_writable(const struct moe_kv_pool *pool, uint32_t sequence, uint32_t n)
{
    uint32_t at = n / pool->block_positions;
    bool others =
        at < pool->n_taken[sequence] && pool->blocks[row_of(pool, sequence)[at]].n_users > 1;
    return others ? at * pool->block_positions : n;
}

void moe_kv_rewind(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n)
{
    const uint32_t *row = row_of(pool, sequence), each = pool->block_positions;
    uint32_t *taken = &pool->n_taken[sequence];
    for (uint32_t i = n / each; i < *taken; i++) {
        uint32_t place = i == n / each ? n % each : 0;
        if (pool->blocks[row[i]].n_users > 1)
            while (*taken > i)
                release_block(pool, row[--*taken]);
        else if (pool->blocks[row[i]].n_known > place)
            cut(pool, row[i], place);
    }
}

/* ---- Memory that is lent ---- */

void moe_kv_need(struct moe_kv_pool *pool, uint32_t sequence, uint32_t n)
{
    const uint32_t *row = row_of(pool, sequence);
    for (uint32_t i = n_blocks_of(pool, n); i-- > 0;)
        pool->blocks[row[i]].needed = true;
}

void moe_kv_need_known(struct moe_kv_pool *pool, uint32_t n)
{
    for (uint32_t i = pool->newest; i != MOE_NO_BLOCK && n > 0; i = pool->blocks[i].older)
        if (pool->blocks[i].held && pool->blocks[i].n_known > 0) {
            pool->blocks[i].needed = true;
            n--;
        }
}

/* Nothing of a block is left. A free one is taken before those that something is known of. */
static void forget(struct moe_kv_pool *p, uint32_t block)
{
    cut(p, block, 0);
    moe_kv_windows_drop(p, block);
    if (p->blocks[block].n_users > 0)
        return;
    remove_free(p, block);
    prepend_free(p, block);
}

uint32_t moe_kv_hold(struct moe_kv_pool *pool, uint32_t *block, bool drops)
{
    while (*block < pool->n_blocks) {
        struct moe_kv_block *b = &pool->blocks[*block];
        const bool needed = b->needed, changes = needed ? !b->held : b->held && drops;
        b->needed = false;
        ++*block;
        if (!changes)
            continue;
        b->held = needed;
        pool->n_held += needed ? 1 : -1;
        if (!needed)
            forget(pool, *block - 1);
        return *block - 1;
    }
    return MOE_NO_BLOCK;
}

/* ---- Windows ---- */

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
static bool block_holds(const struct moe_kv_pool *p, uint32_t block, uint32_t n)
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
        while (at > begin && block_holds(p, blocks[(at - 1) / each], (at - 1) % each + 1))
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
    if (p->n_slots && !block_holds(p, block, n))
        w->begin = w->n;
    else if (w->begin == 0 || w->n - w->begin >= p->window - 1)
        w->usable = w->n;
}

uint32_t moe_kv_windows_complete(const struct moe_kv_pool *p, uint32_t sequence, uint32_t n)
{
    const uint32_t *blocks = blocks_of(p, sequence);
    uint32_t each = p->block_positions;
    for (uint32_t at = 0, i = 0; p->n_slots && at < n; at += each, i++)
        if (i == p->n_taken[sequence] || !block_holds(p, blocks[i], n - at < each ? n - at : each))
            return at;
    return n;
}

/* ---- Who needs which slot ---- */

/* Marks the slots of a sequence's positions [begin, end) as needed now. */
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

/* Gives a block, whose first n positions will be written, a slot. False: all are needed now. */
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
        p->n_changes++;
    }
    if (p->slots[slot].n < n)
        p->slots[slot].n = n;
    return true;
}

/* Gives slots to a sequence's positions [first, end), which will be written. */
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
    p->n_changes++;
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
                        "see there is no longer kept (compute the text from position %u on)",
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
