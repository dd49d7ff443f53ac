/* Remembers the paths of past tokens and finds those like the current one. */
#include "cache/paths.h"

#include <string.h>

#include "base/cpu.h"
#include "cache/exact_math.h"

enum {
    NEAREST = MOE_PATHS_NEAREST,
    BLOCK = 32,    /* tokens that lie side by side */
    AT_ONCE = 2,   /* blocks that are compared at once */
    LEAST = 64,    /* tokens that are worth remembering */
    SHARE = 64,    /* of the memory beside which it is kept */
    GAINS = 8064,  /* what a layer adds to a likeness where everything is the same */
    FADES = 3,     /* 1 / 2^3 of a likeness with each layer */
    WHOLE = 64512, /* so what it is in the end */
    UNKNOWN = 0xffff,
};

static const float SHARP = 8 * 1.44269504f; /* of a vote's weight, in powers of 2 */

/* A block's bytes side by side; half a block's, and as many numbers of two. */
typedef uint8_t bytes_aside __attribute__((vector_size(BLOCK)));
typedef uint8_t half_aside __attribute__((vector_size(BLOCK / 2)));
typedef uint16_t words_aside __attribute__((vector_size(BLOCK)));

static uint64_t bytes_of(const struct moe_paths *p, uint32_t room)
{
    uint64_t bytes_per_token = (uint64_t)p->n_layers * p->top_k << p->wide;
    return room * (bytes_per_token + sizeof *p->likeness);
}

void moe_paths_carve(struct moe_paths *p, struct moe_arena *a,
                     const struct moe_follower_params *params)
{
    *p = (struct moe_paths){.n_layers = params->n_layers,
                            .n_experts = params->n_experts,
                            .top_k = params->top_k,
                            .room = MOE_PATHS_TOKENS,
                            .wide = params->n_experts > UINT8_MAX};
    while (params->beside && p->room && bytes_of(p, p->room) > params->beside / SHARE)
        p->room = p->room > LEAST ? p->room / 2 : 0;
    p->chosen = moe_arena_take(a, (uint64_t)p->n_layers * p->room, (uint64_t)p->top_k << p->wide);
    p->likeness = moe_arena_take(a, p->room, sizeof *p->likeness);
    p->mine = moe_arena_take(a, p->top_k, BLOCK);
    p->row = moe_arena_take(a, p->top_k, sizeof *p->row);
}

/* A layer's block with the token. */
static uint8_t *block_of(const struct moe_paths *p, uint32_t layer, uint32_t token)
{
    return p->chosen + (((uint64_t)layer * p->room + token / BLOCK * BLOCK) * p->top_k << p->wide);
}

static uint32_t chosen_at(const struct moe_paths *p, const uint8_t *block, uint32_t token,
                          uint32_t k)
{
    uint32_t at = k * BLOCK + token % BLOCK;
    uint16_t wide;
    if (!p->wide)
        return block[at] == UINT8_MAX ? UNKNOWN : block[at];
    memcpy(&wide, block + 2 * at, sizeof wide);
    return wide;
}

static void put(const struct moe_paths *p, uint8_t *block, uint32_t token, uint32_t k,
                uint32_t expert)
{
    uint32_t at = k * BLOCK + token % BLOCK;
    uint16_t wide = (uint16_t)expert;
    if (p->wide)
        memcpy(block + 2 * at, &wide, sizeof wide);
    else
        block[at] = (uint8_t)expert;
}

/* What a token has chosen in a layer; NULL: that is not known. */
static void note(struct moe_paths *p, uint32_t layer, uint32_t token, const uint32_t *chosen)
{
    uint8_t *block = block_of(p, layer, token);
    for (uint32_t k = 0; k < p->top_k; k++)
        put(p, block, token, k, chosen ? chosen[k] : UNKNOWN);
}

void moe_paths_begin(struct moe_paths *p)
{
    p->layer = p->n_layers; /* the first choice begins a pass */
    memset(p->chosen, 0xff, ((uint64_t)p->n_layers * p->room * p->top_k) << p->wide);
}

void moe_paths_begin_sequence(struct moe_paths *p)
{
    memset(p->likeness, 0, p->room * sizeof *p->likeness);
    p->near.n = 0;
    p->follows = false;
}

/* The pass's tokens take the places of the oldest; all that was alike moves on with them. */
static void begin_pass(struct moe_paths *p, uint32_t n_rows)
{
    uint32_t by = n_rows % p->room, rest = p->room - by, n = n_rows < p->room ? n_rows : p->room;
    uint16_t behind[MOE_PATHS_TOKENS];
    memcpy(behind, p->likeness + rest, by * sizeof *behind);
    memmove(p->likeness + by, p->likeness, rest * sizeof *behind);
    memcpy(p->likeness, behind, by * sizeof *behind);
    for (uint32_t i = 0; i < p->near.n; i++)
        p->near.tokens[i] = (p->near.tokens[i] + by) % p->room;
    bool wraps = n_rows >= p->room - p->now;
    p->now = (p->now + by) % p->room;
    p->n_filled = wraps ? p->room : p->now + 1 > p->n_filled ? p->now + 1 : p->n_filled;
    p->n_rows = n_rows;
    for (uint32_t layer = 0; layer < p->n_layers; layer++)
        for (uint32_t i = 0; i < n; i++)
            note(p, layer, (p->now + p->room - i) % p->room, NULL);
}

/* How many of `mine` are among the experts of each token of AT_ONCE blocks. Compiled into each of
 * compare's clones. */
static inline __attribute__((always_inline)) void
count_same(const uint8_t *blocks, const uint8_t *mine, uint32_t top_k, uint8_t *same)
{
    bytes_aside sums[AT_ONCE] = {{0}}, experts[AT_ONCE], expert;
    for (uint32_t k = 0; k < top_k; k++) {
        for (uint32_t i = 0; i < AT_ONCE; i++)
            memcpy(&experts[i], blocks + (i * top_k + k) * BLOCK, BLOCK);
        for (uint32_t j = 0; j < top_k; j++) {
            memcpy(&expert, mine + j * BLOCK, BLOCK);
            for (int i = 0; i < AT_ONCE; i++)
                sums[i] -= (bytes_aside)(experts[i] == expert);
        }
    }
    memcpy(same, sums, sizeof sums);
}

static void count_same_wide(const uint8_t *blocks, const uint32_t *mine, uint32_t top_k,
                            uint8_t *same)
{
    const uint16_t *experts = (const uint16_t *)(const void *)blocks;
    memset(same, 0, AT_ONCE * BLOCK);
    for (uint32_t block = 0; block < AT_ONCE; block++, same += BLOCK)
        for (uint32_t k = 0; k < top_k; k++, experts += BLOCK)
            for (uint32_t j = 0; j < top_k; j++)
                for (int i = 0; i < BLOCK; i++)
                    same[i] += experts[i] == mine[j];
}

/* Adds to the likeness of every token what it shares with the current one. */
static MOE_CLONES void compare(struct moe_paths *p, uint32_t layer, const uint32_t *chosen)
{
    const uint16_t gains = (uint16_t)(GAINS / p->top_k);
    for (uint32_t k = 0; k < p->top_k; k++)
        memset(p->mine + k * BLOCK, (uint8_t)chosen[k], BLOCK);
    for (uint32_t token = 0; token < p->n_filled; token += AT_ONCE * BLOCK) {
        uint8_t same[AT_ONCE * BLOCK];
        uint16_t *likeness = p->likeness + token;
        if (p->wide)
            count_same_wide(block_of(p, layer, token), chosen, p->top_k, same);
        else
            count_same(block_of(p, layer, token), p->mine, p->top_k, same);
        for (int i = 0; i < AT_ONCE * BLOCK; i += BLOCK / 2) {
            words_aside l;
            half_aside add;
            memcpy(&l, likeness + i, sizeof l);
            memcpy(&add, same + i, sizeof add);
            l += __builtin_convertvector(add, words_aside) * gains - (l >> FADES);
            memcpy(likeness + i, &l, sizeof l);
        }
    }
}

/* Whether the first is nearer; among equals the later one. */
static bool is_nearer(const struct moe_paths *p, uint32_t a, uint32_t b)
{
    return p->likeness[a] > p->likeness[b] ||
           (p->likeness[a] == p->likeness[b] && (p->now - a) % p->room < (p->now - b) % p->room);
}

/* Puts a token among the nearest, which are sorted. */
static void rank(struct moe_paths *p, uint32_t token)
{
    uint32_t at = p->near.n;
    if (at == NEAREST && !is_nearer(p, token, p->near.tokens[at - 1]))
        return;
    at -= at == NEAREST;
    for (; at > 0 && is_nearer(p, token, p->near.tokens[at - 1]); at--)
        p->near.tokens[at] = p->near.tokens[at - 1];
    p->near.tokens[at] = token;
    p->near.n += p->near.n < NEAREST;
}

/* The first token of the next block, from this one's on, that has one as alike as `floor`; n or
 * more: none has. */
static MOE_CLONES uint32_t next_block(const uint16_t *likeness, uint32_t token, uint32_t n,
                                      uint16_t floor)
{
    for (; token < n; token += BLOCK) {
        words_aside of[2];
        uint64_t reaches[sizeof of[0] / 8], any = 0;
        memcpy(of, likeness + token, sizeof of);
        of[0] = (words_aside)(of[0] >= floor) | (words_aside)(of[1] >= floor);
        memcpy(reaches, of, sizeof reaches);
        for (size_t i = 0; i < sizeof reaches / sizeof *reaches; i++)
            any |= reaches[i];
        if (any)
            break;
    }
    return token;
}

static bool is_listed(const uint32_t *tokens, uint32_t n, uint32_t token)
{
    bool found = false;
    for (uint32_t i = 0; i < n; i++)
        found |= tokens[i] == token;
    return found;
}

/* The last of the nearest: no others less alike are among them. */
static uint16_t floor_of(const struct moe_paths *p)
{
    return p->near.n < NEAREST ? 1 : p->likeness[p->near.tokens[NEAREST - 1]];
}

/* Those that were the nearest come first: most of them still are, and few others are more alike. */
static void find_nearest(struct moe_paths *p)
{
    const uint32_t n = p->near.n;
    uint32_t before[NEAREST];
    memcpy(before, p->near.tokens, n * sizeof *before);
    p->near.n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (p->likeness[before[i]])
            rank(p, before[i]);
    for (uint32_t token = 0; token < p->n_filled; token += BLOCK) {
        token = next_block(p->likeness, token, p->n_filled, floor_of(p));
        for (uint32_t i = 0; token < p->n_filled && i < BLOCK; i++)
            if (p->likeness[token + i] >= floor_of(p) && !is_listed(before, n, token + i))
                rank(p, token + i);
    }
    for (uint32_t i = 0; i < p->near.n; i++)
        p->near.weights[i] =
            moe_exact_exp2((float)p->likeness[p->near.tokens[i]] * (SHARP / WHOLE));
}

static bool is_one_text(const struct moe_choices *c)
{
    for (uint32_t i = 1; c->sequences && i < c->n_rows; i++)
        if (c->sequences[i] != c->sequences[0])
            return false;
    return true;
}

bool moe_paths_add(struct moe_paths *p, const struct moe_choices *c,
                   const struct moe_paths_nearest *known)
{
    uint32_t sequence = c->sequences ? c->sequences[0] : 0;
    bool begins = c->layer <= p->layer, one = is_one_text(c);
    p->layer = c->layer;
    if (!one || (p->follows && p->sequence != sequence))
        moe_paths_begin_sequence(p);
    if (!one || !p->room)
        return false;
    if (begins || p->n_rows != c->n_rows)
        begin_pass(p, c->n_rows);
    p->sequence = sequence;
    p->follows = true;
    const uint32_t *last = c->chosen + (uint64_t)(c->n_rows - 1) * p->top_k;
    uint32_t n = c->n_rows < p->room ? c->n_rows : p->room;
    for (uint32_t i = 1; i < n; i++)
        note(p, c->layer, (p->now + p->room - i) % p->room, last - (uint64_t)i * p->top_k);
    if (!known)
        compare(p, c->layer, last);
    note(p, c->layer, p->now, last);
    if (known)
        p->near = *known;
    else
        find_nearest(p);
    return p->near.n > 0;
}

uint32_t moe_paths_votes(const struct moe_paths *p, uint32_t layer, uint32_t later, float *votes,
                         uint16_t *voted)
{
    uint32_t n = 0, then = later + (layer <= p->layer);
    for (uint32_t i = 0; i < p->near.n; i++) {
        uint32_t before = (p->now + p->room - p->near.tokens[i]) % p->room;
        uint32_t token = (p->near.tokens[i] + then) % p->room;
        const uint8_t *block = block_of(p, layer, token);
        if (then > before || chosen_at(p, block, token, 0) == UNKNOWN)
            continue;
        for (uint32_t k = 0; k < p->top_k; k++) {
            uint32_t expert =
                p->wide ? chosen_at(p, block, token, k) : block[k * BLOCK + token % BLOCK];
            voted[n] = (uint16_t)expert;
            n += votes[expert] == 0;
            votes[expert] += p->near.weights[i];
        }
    }
    return n;
}

bool moe_paths_visit(struct moe_paths *p, uint32_t n_tokens, bool reads, moe_part_fn visit,
                     void *ctx)
{
    bool goes = true;
    for (uint32_t layer = 0; layer < p->n_layers; layer++)
        for (uint32_t i = 0; i < n_tokens && goes; i++) {
            bool kept = i < p->room, known = kept;
            uint32_t token = kept ? (p->now + p->room - i) % p->room : 0;
            uint8_t *block = block_of(p, layer, token);
            for (uint32_t k = 0; k < p->top_k && !reads; k++)
                p->row[k] = (uint16_t)(kept ? chosen_at(p, block, token, k) : UNKNOWN);
            goes = visit(ctx, p->row, p->top_k, sizeof *p->row);
            for (uint32_t k = 0; k < p->top_k && reads; k++)
                known &= p->row[k] < p->n_experts;
            for (uint32_t k = 0; k < p->top_k && reads && kept; k++)
                put(p, block, token, k, known ? p->row[k] : UNKNOWN);
        }
    p->n_filled = reads ? p->room : p->n_filled; /* from the current token on, backwards */
    return goes;
}
