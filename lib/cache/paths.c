/* Remembers the paths of past tokens and finds those like the current one. */
#include "cache/paths.h"

#include <string.h>

#include "cache/exact_math.h"

enum { ROOM = MOE_PATHS_TOKENS, NEAREST = MOE_PATHS_NEAREST };

static const float KEEPS = 0.95f, GROWS = 1 / 0.95f;
static const float SHARP = 8 * 1.44269504f; /* of a vote's weight, in powers of 2 */

void moe_paths_carve(struct moe_paths *p, struct moe_arena *a,
                     const struct moe_follower_params *params)
{
    *p = (struct moe_paths){.n_layers = params->n_layers,
                            .n_experts = params->n_experts,
                            .top_k = params->top_k,
                            .scale = 1};
    p->chosen = moe_arena_take(a, (uint64_t)p->n_layers * ROOM * p->top_k, sizeof *p->chosen);
    p->likeness = moe_arena_take(a, ROOM, sizeof *p->likeness);
    p->is_nearest = moe_arena_take(a, ROOM, sizeof *p->is_nearest);
    p->met = moe_arena_take(a, ROOM, sizeof *p->met);
    p->is_chosen = moe_arena_take(a, p->n_experts + 1, sizeof *p->is_chosen);
}

static uint16_t *chosen_at(const struct moe_paths *p, uint32_t layer, uint32_t token)
{
    return p->chosen + ((uint64_t)layer * ROOM + token) * p->top_k;
}

static void forget(struct moe_paths *p, uint32_t layer, uint32_t token)
{
    for (uint32_t i = 0; i < p->top_k; i++)
        chosen_at(p, layer, token)[i] = (uint16_t)p->n_experts;
}

void moe_paths_begin(struct moe_paths *p)
{
    p->layer = p->n_layers; /* the first choice begins a pass */
    for (uint32_t layer = 0; layer < p->n_layers; layer++)
        for (uint32_t token = 0; token < ROOM; token++)
            forget(p, layer, token);
}

void moe_paths_begin_sequence(struct moe_paths *p)
{
    memset(p->likeness, 0, ROOM * sizeof *p->likeness);
    p->n_nearest = 0;
    p->follows = false;
}

/* The pass's tokens take the places of the oldest. */
static void begin_pass(struct moe_paths *p, uint32_t n_rows)
{
    uint32_t n = n_rows < ROOM ? n_rows : ROOM;
    for (uint32_t i = 0; i < ROOM; i++)
        p->likeness[i] /= p->scale;
    p->scale = 1;
    p->now = (p->now + n_rows) % ROOM;
    p->n_rows = n_rows;
    for (uint32_t layer = 0; layer < p->n_layers; layer++)
        for (uint32_t i = 0; i < n; i++)
            forget(p, layer, (p->now + ROOM - i) % ROOM);
}

/* Adds what tokens [first, first + n) share with the current one to their distances', from `at` on,
 * and lists those that share something and lie not below the floor. */
static uint32_t compare(struct moe_paths *p, uint32_t layer, uint32_t first, uint32_t n,
                        uint32_t at, float floor, uint32_t n_met)
{
    const uint16_t *chosen = chosen_at(p, layer, first);
    float scale = p->scale / (float)p->top_k;
    for (uint32_t i = 0; i < n; i++, chosen += p->top_k) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < p->top_k; k++)
            same += p->is_chosen[chosen[k]];
        p->likeness[at + i] += scale * (float)(int32_t)same;
        p->met[n_met] = (uint16_t)(at + i);
        n_met += same > 0 && p->likeness[at + i] >= floor;
    }
    return n_met;
}

/* Whether the first is nearer; among equals the one of the shorter distance. */
static bool is_nearer(const struct moe_paths *p, uint32_t a, uint32_t b)
{
    return p->likeness[a] > p->likeness[b] || (p->likeness[a] == p->likeness[b] && a > b);
}

/* Puts a distance among the nearest, which are sorted. */
static void rank(struct moe_paths *p, uint32_t distance)
{
    uint32_t at = p->n_nearest;
    if (at == NEAREST && !is_nearer(p, distance, p->nearest[at - 1]))
        return;
    at -= at == NEAREST;
    for (; at > 0 && is_nearer(p, distance, p->nearest[at - 1]); at--)
        p->nearest[at] = p->nearest[at - 1];
    p->nearest[at] = distance;
    p->n_nearest += p->n_nearest < NEAREST;
}

/* Distances that share nothing keep their order, so that the nearest are among those that were and
 * those that share something. */
static void find_nearest(struct moe_paths *p, uint32_t layer)
{
    uint32_t before[NEAREST], n = p->n_nearest, n_met;
    float floor = n == NEAREST ? p->likeness[p->nearest[n - 1]] : 0;
    p->scale *= GROWS;
    /* Distance ROOM - i lies at i, beside token now + i: from the oldest to the last. */
    uint32_t n_behind = ROOM - 1 - p->now;
    n_met = compare(p, layer, p->now + 1, n_behind, 1, floor, 0);
    n_met = compare(p, layer, 0, p->now, 1 + n_behind, floor, n_met);
    memcpy(before, p->nearest, n * sizeof *before);
    p->n_nearest = 0;
    for (uint32_t i = 0; i < n; i++) {
        rank(p, before[i]);
        p->is_nearest[before[i]] = 1;
    }
    for (uint32_t i = 0; i < n_met; i++)
        if (!p->is_nearest[p->met[i]])
            rank(p, p->met[i]);
    for (uint32_t i = 0; i < n; i++)
        p->is_nearest[before[i]] = 0;
    float per = (1 - KEEPS) * SHARP / p->scale;
    for (uint32_t i = 0; i < p->n_nearest; i++)
        p->weights[i] = moe_exact_exp2(p->likeness[p->nearest[i]] * per);
}

static bool is_one_text(const struct moe_choices *c)
{
    for (uint32_t i = 1; c->sequences && i < c->n_rows; i++)
        if (c->sequences[i] != c->sequences[0])
            return false;
    return true;
}

bool moe_paths_add(struct moe_paths *p, const struct moe_choices *c)
{
    uint32_t sequence = c->sequences ? c->sequences[0] : 0;
    bool begins = c->layer <= p->layer;
    p->layer = c->layer;
    if (!is_one_text(c) || (p->follows && p->sequence != sequence))
        moe_paths_begin_sequence(p);
    if (!is_one_text(c))
        return false;
    if (begins || p->n_rows != c->n_rows)
        begin_pass(p, c->n_rows);
    p->sequence = sequence;
    p->follows = true;
    uint32_t n = c->n_rows < ROOM ? c->n_rows : ROOM;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *row = c->chosen + (uint64_t)(c->n_rows - 1 - i) * p->top_k;
        uint16_t *out = chosen_at(p, c->layer, (p->now + ROOM - i) % ROOM);
        for (uint32_t k = 0; k < p->top_k; k++)
            out[k] = (uint16_t)row[k];
    }
    const uint32_t *last = c->chosen + (uint64_t)(c->n_rows - 1) * p->top_k;
    for (uint32_t k = 0; k < p->top_k; k++)
        p->is_chosen[last[k]] = 1;
    find_nearest(p, c->layer);
    for (uint32_t k = 0; k < p->top_k; k++)
        p->is_chosen[last[k]] = 0;
    return p->n_nearest > 0;
}

uint32_t moe_paths_votes(const struct moe_paths *p, uint32_t layer, float *votes, uint16_t *voted)
{
    uint32_t n = 0, then = p->now + (layer <= p->layer);
    for (uint32_t i = 0; i < p->n_nearest; i++) {
        const uint16_t *chosen = chosen_at(p, layer, (then + p->nearest[i]) % ROOM);
        if (chosen[0] == p->n_experts)
            continue;
        for (uint32_t k = 0; k < p->top_k; k++) {
            voted[n] = chosen[k];
            n += votes[chosen[k]] == 0;
            votes[chosen[k]] += p->weights[i];
        }
    }
    return n;
}
