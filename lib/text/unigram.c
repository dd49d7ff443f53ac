#include "text/unigram.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

struct moe_unigram_node {
    uint32_t parent;
    uint32_t token; /* MOE_UNIGRAM_UNKNOWN: no token ends here */
    uint8_t byte;   /* that leads here from the parent */
};

/* ---- The trie ---- */

static uint32_t hash_step(uint32_t node, uint8_t byte)
{
    uint64_t key = ((uint64_t)node << 8 | byte) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32);
}

/* The slot of the step, empty where there is no such child. */
static uint32_t find_slot(const struct moe_unigram *u, uint32_t node, uint8_t byte)
{
    uint32_t at = hash_step(node, byte) & u->mask;
    for (; u->slots[at]; at = (at + 1) & u->mask) {
        const struct moe_unigram_node *child = &u->nodes[u->slots[at]];
        if (child->parent == node && child->byte == byte)
            break;
    }
    return at;
}

/* Twice the room: as many nodes as fill the table by half. */
static int grow(struct moe_unigram *u, struct moe_err *err)
{
    uint64_t room = u->node_room ? 2 * (uint64_t)u->node_room : 256;
    if (room > UINT32_MAX / 2)
        return moe_fail(err, MOE_ERR_FORMAT, "the tokens' texts are too long for one vocabulary");
    struct moe_unigram_node *nodes = realloc(u->nodes, room * sizeof *nodes);
    if (nodes)
        u->nodes = nodes;
    uint32_t *slots = moe_alloc(2 * room, sizeof *slots, err);
    if (!nodes || !slots) {
        free(slots);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: %llu nodes of a vocabulary",
                        (unsigned long long)room);
    }
    free(u->slots);
    u->slots = slots;
    u->mask = (uint32_t)(2 * room - 1);
    u->node_room = (uint32_t)room;
    for (uint32_t i = 1; i < u->n_nodes; i++)
        u->slots[find_slot(u, u->nodes[i].parent, u->nodes[i].byte)] = i;
    if (u->n_nodes == 0)
        u->nodes[u->n_nodes++] = (struct moe_unigram_node){.token = MOE_UNIGRAM_UNKNOWN};
    return MOE_OK;
}

int moe_unigram_add(struct moe_unigram *u, const uint8_t *text, uint64_t n, uint32_t id,
                    struct moe_err *err)
{
    uint32_t node = 0;
    for (uint64_t i = 0; i < n; i++) {
        int status = u->n_nodes == u->node_room ? grow(u, err) : MOE_OK;
        if (status != MOE_OK)
            return status;
        uint32_t slot = find_slot(u, node, text[i]);
        if (!u->slots[slot]) {
            u->nodes[u->n_nodes] = (struct moe_unigram_node){node, MOE_UNIGRAM_UNKNOWN, text[i]};
            u->slots[slot] = u->n_nodes++;
        }
        node = u->slots[slot];
    }
    u->nodes[node].token = id;
    return MOE_OK;
}

void moe_unigram_release(struct moe_unigram *u)
{
    free(u->scores);
    free(u->nodes);
    free(u->slots);
    *u = (struct moe_unigram){0};
}

/* ---- The best way ---- */

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

/* A token that begins at `from` and would end at `to`: the first of equals stays. */
static void offer(struct moe_unigram_place *to, uint32_t from, uint32_t token, double score)
{
    if (to->other == MOE_UNIGRAM_UNKNOWN || score > to->score)
        *to = (struct moe_unigram_place){score, from, token};
}

/* Offers every token that begins at `at`, the shortest first, and the character alone where it is
 * no token. */
static void offer_all(const struct moe_unigram *u, struct moe_unigram_place *places,
                      const uint8_t *text, uint64_t n, uint64_t at, int length)
{
    double score = places[at].score;
    bool alone = false;
    for (uint32_t node = 0, i = 0; u->n_nodes && i < n - at; i++) {
        node = u->slots[find_slot(u, node, text[at + i])];
        if (node == 0)
            break;
        uint32_t token = u->nodes[node].token;
        if (token == MOE_UNIGRAM_UNKNOWN)
            continue;
        offer(&places[at + i + 1], (uint32_t)at, token, u->scores[token] + score);
        alone = alone || i + 1 == (uint32_t)length;
    }
    if (!alone)
        offer(&places[at + (uint64_t)length], (uint32_t)at, MOE_UNIGRAM_UNKNOWN,
              u->unknown + score);
}

/* From the end back to the start: each place of the way gets what begins there. */
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
