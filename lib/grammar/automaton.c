#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

/* A state with the stack of calls below it; 0: there is none, the answer ends with the rule. */
struct node {
    uint32_t state, below;
};

struct place {
    uint32_t first, n; /* its nodes, ascending; all of them read bytes */
    bool ends;
};

struct automaton {
    const struct moe_grammar *g;
    struct node *nodes;    /* [MAX_NODES]; 0 is none */
    uint32_t *stamps;      /* [MAX_NODES]: the visit that saw the node last */
    uint32_t *slots;       /* [2 * MAX_NODES]: by the node's hash */
    struct place *places;  /* [max_places]; 0 is dead */
    uint32_t *place_slots; /* [2 * max_places], rounded up to a power of two */
    uint32_t *steps;       /* [max_places][n_classes]; PLACE_UNKNOWN */
    uint32_t *items;       /* [MAX_ITEMS]: nodes of the places */
    uint32_t *stack;       /* [MAX_NODES]: nodes to look at */
    uint32_t n_nodes, n_places, n_items, n_stack, max_places, place_mask, visit;
    uint64_t visits;  /* left */
    bool ends;        /* of the place that is found */
    uint32_t n_found; /* its nodes, behind `items` */
    int status;
    void *block;
};

enum { MAX_PLACES = 4096 };

/* ---- Memory ---- */

static void carve(struct automaton *a, struct moe_arena *arena, uint32_t n_classes)
{
    uint32_t most = MAX_STEP_BYTES / (4 * n_classes);
    a->max_places = most < MAX_PLACES ? most : MAX_PLACES;
    a->place_mask = 2 * MAX_PLACES - 1;
    a->nodes = moe_arena_take(arena, MAX_NODES, sizeof *a->nodes);
    a->stamps = moe_arena_take(arena, MAX_NODES, sizeof *a->stamps);
    a->slots = moe_arena_take(arena, 2 * MAX_NODES, sizeof *a->slots);
    a->places = moe_arena_take(arena, MAX_PLACES, sizeof *a->places);
    a->place_slots = moe_arena_take(arena, 2 * MAX_PLACES, sizeof *a->place_slots);
    a->steps = moe_arena_take(arena, MAX_STEP_BYTES, 1);
    a->items = moe_arena_take(arena, MAX_ITEMS, sizeof *a->items);
    a->stack = moe_arena_take(arena, MAX_NODES, sizeof *a->stack);
}

uint64_t automaton_bytes(void)
{
    struct automaton a;
    struct moe_arena arena = {0};
    carve(&a, &arena, 256);
    return arena.used + sizeof a;
}

static void forget(struct automaton *a)
{
    memset(a->slots, 0, 2 * MAX_NODES * sizeof *a->slots);
    memset(a->place_slots, 0, 2 * MAX_PLACES * sizeof *a->place_slots);
    a->n_nodes = 1;
    a->n_places = 1;
    a->n_items = 0;
    a->places[0] = (struct place){0};
}

int automaton_new(struct automaton **out, const struct moe_grammar *g, struct moe_err *err)
{
    struct moe_arena arena = {0};
    *out = NULL;
    struct automaton *a = moe_alloc(1, sizeof *a, err);
    if (!a)
        return MOE_ERR_MEMORY;
    a->g = g;
    carve(a, &arena, g->n_classes);
    a->block = arena.base = moe_alloc(1, arena.size = arena.used, err);
    if (!arena.base) {
        free(a);
        return MOE_ERR_MEMORY;
    }
    arena.used = 0;
    carve(a, &arena, g->n_classes);
    forget(a);
    automaton_budget(a);
    *out = a;
    return MOE_OK;
}

void automaton_free(struct automaton *a)
{
    if (!a)
        return;
    free(a->block);
    free(a);
}

void automaton_budget(struct automaton *a)
{
    a->visits = MAX_VISITS;
}

bool automaton_is_spent(const struct automaton *a)
{
    return a->visits == 0;
}

/* ---- Nodes ---- */

static uint32_t hash_pair(uint32_t x, uint32_t y)
{
    uint64_t key = ((uint64_t)x << 32 | y) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 40) ^ (uint32_t)(key >> 20);
}

/* The node of a state on a stack; 0 where there is no room. */
static uint32_t node_of(struct automaton *a, uint32_t state, uint32_t below)
{
    uint32_t at = hash_pair(state, below) & (2 * MAX_NODES - 1);
    for (; a->slots[at]; at = (at + 1) & (2 * MAX_NODES - 1)) {
        const struct node *n = &a->nodes[a->slots[at]];
        if (n->state == state && n->below == below)
            return a->slots[at];
    }
    if (a->n_nodes == MAX_NODES) {
        a->status = MOE_ERR_LIMIT;
        return 0;
    }
    a->nodes[a->n_nodes] = (struct node){state, below};
    a->stamps[a->n_nodes] = 0;
    a->slots[at] = a->n_nodes;
    return a->n_nodes++;
}

/* ---- What can be read next ---- */

static uint32_t after_jumps(const struct moe_grammar *g, uint32_t state)
{
    while (g->states[state].kind == STATE_JUMP)
        state = g->states[state].a;
    return state;
}

/* To be looked at: a state on a stack. */
static void look_at(struct automaton *a, uint32_t state, uint32_t below)
{
    uint32_t node = node_of(a, after_jumps(a->g, state), below);
    if (a->status != MOE_OK || a->stamps[node] == a->visit)
        return;
    if (a->visits == 0) {
        a->status = MOE_ERR_LIMIT;
        return;
    }
    a->visits--;
    a->stamps[node] = a->visit;
    a->stack[a->n_stack++] = node;
}

/* A call with nothing behind it leaves nothing on the stack: rules that end with themselves do not
 * make it grow. */
static void look_at_call(struct automaton *a, uint32_t rule, uint32_t behind, uint32_t below)
{
    behind = after_jumps(a->g, behind);
    if (a->g->states[behind].kind != STATE_END)
        below = node_of(a, behind, below);
    if (a->status == MOE_OK)
        look_at(a, a->g->rules[rule].start, below);
}

static void look_at_all(struct automaton *a)
{
    while (a->n_stack > 0 && a->status == MOE_OK) {
        uint32_t at = a->stack[--a->n_stack];
        struct node n = a->nodes[at];
        struct state s = a->g->states[n.state];
        switch ((enum state_kind)s.kind) {
        case STATE_SPLIT:
            look_at(a, s.a, n.below);
            look_at(a, s.b, n.below);
            break;
        case STATE_CALL:
            look_at_call(a, s.a, n.state + 1, n.below);
            break;
        case STATE_END:
            if (n.below)
                look_at(a, a->nodes[n.below].state, a->nodes[n.below].below);
            else
                a->ends = true;
            break;
        case STATE_BYTES:
            if (a->n_found == MAX_STACKS || a->n_items + a->n_found == MAX_ITEMS)
                a->status = MOE_ERR_LIMIT;
            else
                a->items[a->n_items + a->n_found++] = at;
            break;
        case STATE_JUMP:
            break; /* none is looked at */
        }
    }
    a->n_stack = 0;
}

/* ---- Places ---- */

static void begin_place(struct automaton *a)
{
    a->status = MOE_OK;
    a->ends = false;
    a->n_found = 0;
    if (++a->visit == 0) { /* after 2^32 */
        memset(a->stamps, 0, MAX_NODES * sizeof *a->stamps);
        a->visit = 1;
    }
}

static int ascending(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

/* The place whose nodes lie behind `items`. */
static int end_place(struct automaton *a, uint32_t *place)
{
    if (a->status != MOE_OK)
        return a->status;
    *place = PLACE_DEAD;
    if (a->n_found == 0 && !a->ends)
        return MOE_OK;
    uint32_t *found = a->items + a->n_items;
    if (a->n_found > 1)
        qsort(found, a->n_found, sizeof *found, ascending);
    uint32_t at = (uint32_t)moe_hash64(found, a->n_found * sizeof *found) + a->ends;
    for (at &= a->place_mask; a->place_slots[at]; at = (at + 1) & a->place_mask) {
        const struct place *p = &a->places[a->place_slots[at]];
        if (p->n == a->n_found && p->ends == a->ends &&
            memcmp(a->items + p->first, found, p->n * sizeof *found) == 0) {
            *place = a->place_slots[at];
            return MOE_OK;
        }
    }
    if (a->n_places == a->max_places)
        return a->status = MOE_ERR_LIMIT;
    a->places[a->n_places] = (struct place){a->n_items, a->n_found, a->ends};
    for (uint32_t i = 0; i < a->g->n_classes; i++)
        a->steps[(uint64_t)a->n_places * a->g->n_classes + i] = PLACE_UNKNOWN;
    a->n_items += a->n_found;
    *place = a->place_slots[at] = a->n_places++;
    return MOE_OK;
}

int automaton_start(struct automaton *a, uint32_t *place)
{
    begin_place(a);
    look_at(a, a->g->rules[a->g->root].start, 0);
    look_at_all(a);
    return end_place(a, place);
}

int automaton_step(struct automaton *a, uint32_t from, uint8_t byte, uint32_t *place)
{
    uint32_t *step = &a->steps[(uint64_t)from * a->g->n_classes + a->g->class_of[byte]];
    *place = PLACE_DEAD;
    if (from == PLACE_DEAD || *step != PLACE_UNKNOWN) {
        *place = from == PLACE_DEAD ? PLACE_DEAD : *step;
        return MOE_OK;
    }
    const struct place p = a->places[from];
    begin_place(a);
    for (uint32_t i = 0; i < p.n && a->status == MOE_OK; i++) {
        struct node n = a->nodes[a->items[p.first + i]];
        if (set_has(&a->g->sets[a->g->states[n.state].a], byte))
            look_at(a, n.state + 1, n.below);
        look_at_all(a);
    }
    int status = end_place(a, place);
    if (status == MOE_OK)
        *step = *place;
    return status;
}

bool automaton_ends(const struct automaton *a, uint32_t place)
{
    return a->places[place].ends;
}

bool automaton_goes_on(const struct automaton *a, uint32_t place)
{
    return a->places[place].n > 0;
}

uint32_t automaton_n_places(const struct automaton *a)
{
    return a->n_places;
}

/* ---- Forgetting ---- */

/* Of the nodes those that the place stands on move to the front, in their order: what lies below a
 * node has a smaller number. The scratch stack holds where they went. */
int automaton_keep(struct automaton *a, uint32_t *place)
{
    struct place kept = a->places[*place];
    uint32_t *went = a->stack, n_nodes = a->n_nodes;
    memmove(a->items, a->items + kept.first, kept.n * sizeof *a->items);
    memset(went, 0, n_nodes * sizeof *went);
    for (uint32_t i = 0; i < kept.n; i++)
        went[a->items[i]] = 1;
    for (uint32_t i = n_nodes; i-- > 1;)
        if (went[i])
            went[a->nodes[i].below] = 1;
    forget(a);
    a->status = MOE_OK;
    went[0] = 0;
    for (uint32_t i = 1; i < n_nodes; i++)
        if (went[i])
            went[i] = node_of(a, a->nodes[i].state, went[a->nodes[i].below]);
    a->n_found = kept.n;
    a->ends = kept.ends;
    for (uint32_t i = 0; i < kept.n; i++)
        a->items[i] = went[a->items[i]];
    return end_place(a, place);
}
