/* The unigram model: a trie over pieces, and the likeliest way to cut a text. */
#include "text/unigram.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"

struct moe_trie_node {
    uint32_t parent;
    uint32_t token; /* MOE_TRIE_NONE: no token ends here */
    uint8_t byte;   /* leads here from the parent */
};

static uint32_t hash_step(uint32_t node, uint8_t byte)
{
    uint64_t key = ((uint64_t)node << 8 | byte) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32);
}

/* The slot of the child, empty if there is none. */
static uint32_t find_slot(const struct moe_trie *t, uint32_t node, uint8_t byte)
{
    uint32_t at = hash_step(node, byte) & t->mask;
    for (; t->slots[at]; at = (at + 1) & t->mask) {
        const struct moe_trie_node *child = &t->nodes[t->slots[at]];
        if (child->parent == node && child->byte == byte)
            break;
    }
    return at;
}

/* Doubles the room: as many nodes as fill the table by half. */
static int trie_grow(struct moe_trie *t, struct moe_err *err)
{
    uint64_t room = t->node_room ? 2 * (uint64_t)t->node_room : 256;
    if (room > UINT32_MAX / 2)
        return moe_fail(err, MOE_ERR_FORMAT, "the tokens' texts are too long for one vocabulary");
    struct moe_trie_node *nodes = realloc(t->nodes, room * sizeof *nodes);
    if (nodes)
        t->nodes = nodes;
    uint32_t *slots = moe_alloc(2 * room, sizeof *slots, err);
    if (!nodes || !slots) {
        free(slots);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: %llu nodes of a vocabulary",
                        (unsigned long long)room);
    }
    free(t->slots);
    t->slots = slots;
    t->mask = (uint32_t)(2 * room - 1);
    t->node_room = (uint32_t)room;
    for (uint32_t i = 1; i < t->n_nodes; i++)
        t->slots[find_slot(t, t->nodes[i].parent, t->nodes[i].byte)] = i;
    if (t->n_nodes == 0)
        t->nodes[t->n_nodes++] = (struct moe_trie_node){.token = MOE_TRIE_NONE};
    return MOE_OK;
}

int moe_trie_add(struct moe_trie *t, const uint8_t *text, uint64_t n, uint32_t id,
                 struct moe_err *err)
{
    uint32_t node = 0;
    for (uint64_t i = 0; i < n; i++) {
        int status = t->n_nodes == t->node_room ? trie_grow(t, err) : MOE_OK;
        if (status != MOE_OK)
            return status;
        uint32_t slot = find_slot(t, node, text[i]);
        if (!t->slots[slot]) {
            t->nodes[t->n_nodes] = (struct moe_trie_node){node, MOE_TRIE_NONE, text[i]};
            t->slots[slot] = t->n_nodes++;
        }
        node = t->slots[slot];
    }
    t->nodes[node].token = id;
    return MOE_OK;
}

uint32_t moe_trie_child(const struct moe_trie *t, uint32_t node, uint8_t byte)
{
    return t->n_nodes ? t->slots[find_slot(t, node, byte)] : 0;
}

uint32_t moe_trie_token(const struct moe_trie *t, uint32_t node)
{
    return t->nodes[node].token;
}

uint64_t moe_trie_bytes(const struct moe_trie *t)
{
    uint64_t n_slots = t->slots ? (uint64_t)t->mask + 1 : 0;
    return t->node_room * sizeof *t->nodes + n_slots * sizeof *t->slots;
}

void moe_trie_release(struct moe_trie *t)
{
    free(t->nodes);
    free(t->slots);
    *t = (struct moe_trie){0};
}

/* ---- The likeliest pieces ---- */

void moe_unigram_release(struct moe_unigram *u)
{
    moe_trie_release(&u->trie);
    free(u->scores);
    *u = (struct moe_unigram){0};
}

void moe_unigram_scratch_release(struct moe_unigram_scratch *scratch)
{
    free(scratch->places);
    *scratch = (struct moe_unigram_scratch){0};
}

uint64_t moe_unigram_scratch_bytes(uint64_t n)
{
    return (n + 1) * sizeof(struct moe_unigram_place);
}

static int scratch_grow(struct moe_unigram_scratch *scratch, uint64_t n, struct moe_err *err)
{
    if (n < scratch->room)
        return MOE_OK;
    if (n >= UINT32_MAX)
        return moe_fail(err, MOE_ERR_LIMIT, "a piece of text has 4 GiB or more");
    moe_unigram_scratch_release(scratch);
    scratch->places = moe_alloc(n + 1, sizeof *scratch->places, err);
    scratch->room = scratch->places ? n + 1 : 0;
    return scratch->places ? MOE_OK : MOE_ERR_MEMORY;
}

/* Offers a token from `from` to `to`: the first of equals stays. */
static void offer(struct moe_unigram_place *to, uint32_t from, uint32_t token, double score)
{
    if (to->other == MOE_UNIGRAM_UNKNOWN || score > to->score)
        *to = (struct moe_unigram_place){score, from, token};
}

/* Offers every token that begins at `at`, the shortest first, and the character itself if it is not
 * a token. */
static void offer_all(const struct moe_unigram *u, struct moe_unigram_place *places,
                      const uint8_t *text, uint64_t n, uint64_t at, int length)
{
    double score = places[at].score;
    bool alone = false;
    for (uint32_t node = 0, i = 0; i < n - at; i++) {
        node = moe_trie_child(&u->trie, node, text[at + i]);
        if (node == 0)
            break;
        uint32_t token = moe_trie_token(&u->trie, node);
        if (token == MOE_UNIGRAM_UNKNOWN)
            continue;
        offer(&places[at + i + 1], (uint32_t)at, token, u->scores[token] + score);
        alone = alone || i + 1 == (uint32_t)length;
    }
    if (!alone)
        offer(&places[at + (uint64_t)length], (uint32_t)at, MOE_UNIGRAM_UNKNOWN,
              u->unknown + score);
}

/* Reverses the way: each of its places gets the token that begins there. */
static void turn_round(struct moe_unigram_place *places, uint64_t n)
{
    struct moe_unigram_place last = places[n];
    for (uint64_t end = n; end > 0;) {
        uint32_t start = last.other;
        struct moe_unigram_place before = places[start];
        places[start].other = (uint32_t)end;
        places[start].token = last.token;
        last = before;
        end = start;
    }
}

int moe_unigram_best(const struct moe_unigram *u, struct moe_unigram_scratch *scratch,
                     const uint8_t *text, uint64_t n, double *score, struct moe_err *err)
{
    int length, status = scratch_grow(scratch, n, err);
    if (status != MOE_OK)
        return status;
    struct moe_unigram_place *places = scratch->places;
    for (uint64_t i = 0; i <= n; i++)
        places[i] = (struct moe_unigram_place){.other = MOE_UNIGRAM_UNKNOWN};
    places[0].score = *score;
    for (uint64_t at = 0; at < n; at += (uint64_t)length) {
        moe_utf8_decode(text + at, n - at, &length);
        offer_all(u, places, text, n, at, length);
    }
    *score = places[n].score;
    turn_round(places, n);
    return MOE_OK;
}
