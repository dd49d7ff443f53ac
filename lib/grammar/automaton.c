/* Builds a grammar's states, checks them, and runs them byte by byte (automaton_internal.h). */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "grammar/automaton_internal.h"

enum { NAME_BYTES = 32 /* malloc's overhead for a name */ };

/* ---- Lists that grow ---- */

/* Makes room for one more item; false, with g->status set, without memory. */
static bool grow_items(struct moe_grammar *g, void **items, uint32_t n, uint32_t *room,
                       size_t bytes, uint32_t most)
{
    if (g->status != MOE_OK)
        return false;
    if ((g->status = moe_allowance_step(g->allowance, 1)) != MOE_OK)
        return false;
    if (n < *room)
        return true;
    uint32_t wanted = *room ? 2 * *room : 64;
    wanted = wanted < most ? wanted : most;
    if (n >= wanted) {
        g->status = MOE_ERR_LIMIT;
        return false;
    }
    if ((g->status = moe_allowance_take(g->allowance, (wanted - *room) * bytes)) != MOE_OK)
        return false;
    void *more = realloc(*items, wanted * bytes);
    if (!more) {
        g->status = MOE_ERR_MEMORY;
        return false;
    }
    *items = more;
    *room = wanted;
    return true;
}

uint32_t machine_add(struct moe_grammar *g, enum state_kind kind, uint32_t a, uint32_t b)
{
    if (!grow_items(g, (void **)&g->states, g->n_states, &g->states_room, sizeof *g->states,
                    MOE_GRAMMAR_MAX_STATES))
        return 0;
    g->states[g->n_states] = (struct state){kind, a, b};
    return g->n_states++;
}

void machine_copy(struct moe_grammar *g, uint32_t first, uint32_t end)
{
    uint32_t offset = g->n_states - first;
    for (uint32_t i = first; i < end && g->status == MOE_OK; i++) {
        struct state s = g->states[i];
        if (s.kind == STATE_JUMP || s.kind == STATE_SPLIT) {
            s.a += offset;
            s.b += offset;
        }
        machine_add(g, (enum state_kind)s.kind, s.a, s.b);
    }
}

/* ---- Rules by name ---- */

static uint32_t *rule_slot(const struct moe_grammar *g, const char *name, uint64_t n)
{
    uint32_t at = (uint32_t)moe_hash64(name, n) & (g->n_slots - 1);
    for (; g->rule_slots[at]; at = (at + 1) & (g->n_slots - 1)) {
        const char *there = g->rules[g->rule_slots[at] - 1].name;
        if (strlen(there) == n && memcmp(there, name, n) == 0)
            break;
    }
    return &g->rule_slots[at];
}

static bool grow_slots(struct moe_grammar *g)
{
    if (2 * (g->n_rules + 1) < g->n_slots)
        return true;
    uint32_t n = g->n_slots ? 2 * g->n_slots : 64;
    if ((g->status = moe_allowance_take(g->allowance, n * sizeof(uint32_t))) != MOE_OK)
        return false;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots) {
        g->status = MOE_ERR_MEMORY;
        return false;
    }
    free(g->rule_slots);
    g->rule_slots = slots;
    g->n_slots = n;
    for (uint32_t i = 0; i < g->n_rules; i++)
        *rule_slot(g, g->rules[i].name, strlen(g->rules[i].name)) = i + 1;
    return true;
}

uint32_t machine_rule(struct moe_grammar *g, const char *name, uint64_t n, uint32_t line,
                      uint32_t column)
{
    if (!grow_items(g, (void **)&g->rules, g->n_rules, &g->rules_room, sizeof *g->rules,
                    MOE_GRAMMAR_MAX_RULES) ||
        !grow_slots(g))
        return 0;
    uint32_t *slot = rule_slot(g, name, n);
    if (*slot)
        return *slot - 1;
    if ((g->status = moe_allowance_take(g->allowance, n + NAME_BYTES)) != MOE_OK)
        return 0;
    char *copy = moe_strndup(name, n, NULL);
    if (!copy) {
        g->status = MOE_ERR_MEMORY;
        return 0;
    }
    g->rules[g->n_rules] = (struct rule){.name = copy, .line = line, .column = column};
    *slot = ++g->n_rules;
    return g->n_rules - 1;
}

/* ---- Bytes and characters ---- */

/* Adds a state that reads a byte of the set. */
static void add_set(struct moe_grammar *g, const struct byte_set *set)
{
    uint32_t at = (uint32_t)moe_hash64(set, sizeof *set) & (2 * MAX_SETS - 1);
    while (g->set_slots[at] && memcmp(&g->sets[g->set_slots[at] - 1], set, sizeof *set) != 0)
        at = (at + 1) & (2 * MAX_SETS - 1);
    if (!g->set_slots[at]) {
        if (!grow_items(g, (void **)&g->sets, g->n_sets, &g->sets_room, sizeof *g->sets, MAX_SETS))
            return;
        g->sets[g->n_sets++] = *set;
        g->set_slots[at] = (uint16_t)g->n_sets;
    }
    machine_add(g, STATE_BYTES, g->set_slots[at] - 1u, 0);
}

static void add_bytes(struct moe_grammar *g, uint32_t low, uint32_t high)
{
    struct byte_set set = {{0}};
    for (uint32_t b = low; b <= high; b++)
        set.bits[b / 64] |= (uint64_t)1 << b % 64;
    add_set(g, &set);
}

void machine_add_character(struct moe_grammar *g, uint32_t c)
{
    machine_add_class(g, &(struct range){c, c}, 1, false);
}

static int by_low(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* Alternatives over characters of equal length in UTF-8 that share all bytes but the last few: each
 * is a range of first bytes, then ranges of the following. */
struct alternatives {
    struct moe_grammar *g;
    uint32_t split; /* the last alternative's split, still without its second way; 0: none */
    uint32_t first; /* jumps to the end of each alternative: a chain through their `a` */
    bool any;
};

/* Begins another alternative. */
static void begin_alternative(struct alternatives *a)
{
    struct moe_grammar *g = a->g;
    if (a->any) {
        a->first = machine_add(g, STATE_JUMP, a->first, 0);
        if (g->status == MOE_OK)
            g->states[a->split].b = g->n_states;
    }
    a->split = machine_add(g, STATE_SPLIT, g->n_states + 1, 0);
    a->any = true;
}

static void end_alternatives(struct alternatives *a)
{
    struct moe_grammar *g = a->g;
    if (g->status != MOE_OK)
        return;
    g->states[a->split].kind = STATE_JUMP; /* the last one has no other way */
    for (uint32_t at = a->first, next; at != UINT32_MAX; at = next) {
        next = g->states[at].a;
        g->states[at].a = g->n_states;
    }
}

/* Adds the characters low..high, all of `length` bytes and beyond ASCII. */
static void add_sequences(struct alternatives *a, uint32_t low, uint32_t high, int length)
{
    /* Cut where the lower bytes do not take all their values. */
    for (int i = 1; i < length; i++) {
        uint32_t mask = ((uint32_t)1 << 6 * i) - 1;
        if ((low & ~mask) == (high & ~mask))
            continue;
        if (low & mask) {
            add_sequences(a, low, low | mask, length);
            add_sequences(a, (low | mask) + 1, high, length);
            return;
        }
        if ((high & mask) != mask) {
            add_sequences(a, low, (high & ~mask) - 1, length);
            add_sequences(a, high & ~mask, high, length);
            return;
        }
    }
    static const uint32_t leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    begin_alternative(a);
    add_bytes(a->g, leads[length] | low >> 6 * (length - 1),
              leads[length] | high >> 6 * (length - 1));
    for (int i = length - 2; i >= 0; i--)
        add_bytes(a->g, 0x80 | (low >> 6 * i & 0x3f), 0x80 | (high >> 6 * i & 0x3f));
}

/* Adds the characters low..high, cut where UTF-8's length changes, without surrogates. */
static void add_range(struct alternatives *a, struct byte_set *ascii, uint32_t low, uint32_t high)
{
    static const struct {
        uint32_t low, high;
        int length;
    } lengths[] = {
        {0x80, 0x7ff, 2}, {0x800, 0xd7ff, 3}, {0xe000, 0xffff, 3}, {0x10000, 0x10ffff, 4}};
    for (uint32_t c = low; c <= high && c < 0x80; c++)
        ascii->bits[c / 64] |= (uint64_t)1 << c % 64;
    for (int i = 0; i < 4; i++) {
        uint32_t from = low > lengths[i].low ? low : lengths[i].low;
        uint32_t to = high < lengths[i].high ? high : lengths[i].high;
        if (from <= to)
            add_sequences(a, from, to, lengths[i].length);
    }
}

void machine_add_class(struct moe_grammar *g, struct range *ranges, uint32_t n, bool negated)
{
    struct alternatives a = {.g = g, .first = UINT32_MAX};
    struct byte_set ascii = {{0}};
    uint32_t next = 0, first = g->n_states; /* the first character not yet covered */
    if (n > 1)
        qsort(ranges, n, sizeof *ranges, by_low);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t low = ranges[i].low > next ? ranges[i].low : next;
        if (ranges[i].high < low)
            continue;
        if (!negated)
            add_range(&a, &ascii, low, ranges[i].high);
        else if (low > next)
            add_range(&a, &ascii, next, low - 1);
        next = ranges[i].high + 1;
    }
    if (negated && next <= 0x10ffff)
        add_range(&a, &ascii, next, 0x10ffff);
    if (!a.any) { /* one byte or, for an empty set, no character */
        g->n_states = g->status == MOE_OK ? first : g->n_states;
        add_set(g, &ascii);
        return;
    }
    if (ascii.bits[0] | ascii.bits[1]) {
        begin_alternative(&a);
        add_set(g, &ascii);
    }
    end_alternatives(&a);
}

/* ---- Life ---- */

void moe_grammar_free(struct moe_grammar *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_rules; i++)
        free(g->rules[i].name);
    free(g->rules);
    free(g->rule_slots);
    free(g->sets);
    free(g->states);
    free(g->notes);
    free(g);
}

const char *moe_grammar_notes(const struct moe_grammar *g)
{
    return g->notes;
}

void moe_grammar_note(struct moe_grammar *g, const struct moe_buf *notes)
{
    struct moe_buf all = {0};
    if (notes->size == 0 || notes->failed)
        return;
    moe_buf_printf(&all, "%s%s%.*s", g->notes ? g->notes : "", g->notes ? "; " : "",
                   (int)notes->size, (const char *)notes->data);
    moe_buf_u8(&all, 0);
    if (!all.failed) {
        free(g->notes);
        g->notes = (char *)all.data;
        return;
    }
    moe_buf_release(&all);
}

uint64_t moe_grammar_bytes(const struct moe_grammar *g)
{
    uint64_t bytes = sizeof *g + g->states_room * sizeof *g->states +
                     g->sets_room * sizeof *g->sets + g->rules_room * sizeof *g->rules +
                     g->n_slots * sizeof *g->rule_slots;
    for (uint32_t i = 0; i < g->n_rules; i++)
        bytes += strlen(g->rules[i].name) + NAME_BYTES;
    return bytes + (g->notes ? strlen(g->notes) + NAME_BYTES : 0);
}

/* ---- The automaton ---- */

/* A state with the stack of calls below it; 0: the bottom, where the answer ends with the rule. */
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
    uint32_t *stamps;      /* [MAX_NODES]: the last visit that saw the node */
    uint32_t *slots;       /* [2 * MAX_NODES]: by the node's hash */
    struct place *places;  /* [max_places]; 0 is dead */
    uint32_t *place_slots; /* [2 * max_places], rounded up to a power of two */
    uint32_t *steps;       /* [max_places][n_classes]; PLACE_UNKNOWN */
    uint32_t *items;       /* [MAX_ITEMS]: nodes of the places */
    uint32_t *stack;       /* [MAX_NODES]: nodes to visit */
    uint32_t n_nodes, n_places, n_items, n_stack, max_places, place_mask, visit;
    uint64_t visits;  /* left */
    bool ends;        /* of the place being found */
    uint32_t n_found; /* its nodes, after `items` */
    int status;
    void *block;
};

enum { MAX_PLACES = 4096 };

/* ---- Memory ---- */

static void carve_automaton(struct automaton *a, struct moe_arena *arena, uint32_t n_classes)
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
    carve_automaton(&a, &arena, 256);
    return arena.used + sizeof a;
}

static void automaton_forget(struct automaton *a)
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
    carve_automaton(a, &arena, g->n_classes);
    a->block = arena.base = moe_alloc(1, arena.size = arena.used, err);
    if (!arena.base) {
        free(a);
        return MOE_ERR_MEMORY;
    }
    arena.used = 0;
    carve_automaton(a, &arena, g->n_classes);
    automaton_forget(a);
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

/* The node of a state on a stack; 0 if there is no room. */
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

/* Queues a state on a stack for a visit. */
static void visit_state(struct automaton *a, uint32_t state, uint32_t below)
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

/* Visits a call. If nothing follows it, it leaves nothing on the stack: rules that end with
 * themselves do not make it grow. */
static void look_at_call(struct automaton *a, uint32_t rule, uint32_t behind, uint32_t below)
{
    behind = after_jumps(a->g, behind);
    if (a->g->states[behind].kind != STATE_END)
        below = node_of(a, behind, below);
    if (a->status == MOE_OK)
        visit_state(a, a->g->rules[rule].start, below);
}

static void look_at_all(struct automaton *a)
{
    while (a->n_stack > 0 && a->status == MOE_OK) {
        uint32_t at = a->stack[--a->n_stack];
        struct node n = a->nodes[at];
        struct state s = a->g->states[n.state];
        switch ((enum state_kind)s.kind) {
        case STATE_SPLIT:
            visit_state(a, s.a, n.below);
            visit_state(a, s.b, n.below);
            break;
        case STATE_CALL:
            look_at_call(a, s.a, n.state + 1, n.below);
            break;
        case STATE_END:
            if (n.below)
                visit_state(a, a->nodes[n.below].state, a->nodes[n.below].below);
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
            break; /* none is visited */
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

/* Finds or adds the place whose nodes lie after `items`. */
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
    visit_state(a, a->g->rules[a->g->root].start, 0);
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
            visit_state(a, n.state + 1, n.below);
        look_at_all(a);
    }
    MOE_TRY(end_place(a, place));
    *step = *place;
    return MOE_OK;
}

bool automaton_ends(const struct automaton *a, uint32_t place)
{
    return a->places[place].ends;
}

bool automaton_goes_on(const struct automaton *a, uint32_t place)
{
    return a->places[place].n > 0;
}

/* ---- Forgetting ---- */

/* Moves the nodes that the place uses to the front, in order: the node below another has a smaller
 * number. The scratch stack maps old numbers to new ones. */
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
    automaton_forget(a);
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

/* Checks a grammar after reading: missing rules, rules that would never end; finds classes of
 * bytes. */

/* ---- States reached without reading ---- */

struct reach {
    const struct moe_grammar *g;
    const bool *nullable; /* by rule: whether it can be empty, or */
    bool reads;           /* ... whether it can end: visits also go on behind bytes */
    uint32_t *stamp;      /* by state: the last visit that saw it */
    uint32_t *stack;      /* states to visit */
    uint32_t visit, n_stack;
    struct moe_allowance *allowance;
};

static void reach_state(struct reach *r, uint32_t state)
{
    if (r->stamp[state] == r->visit)
        return;
    r->stamp[state] = r->visit;
    r->stack[r->n_stack++] = state;
}

static void begin_visit(struct reach *r, uint32_t rule)
{
    r->visit++;
    r->n_stack = 0;
    reach_state(r, r->g->rules[rule].start);
}

/* The next state that calls or ends, from where the visit began; NULL: none left. */
static const struct state *next_reached(struct reach *r)
{
    while (r->n_stack > 0) {
        uint32_t at = r->stack[--r->n_stack];
        const struct state *s = &r->g->states[at];
        if (moe_allowance_step(r->allowance, 1) != MOE_OK)
            return NULL;
        if (s->kind == STATE_SPLIT) {
            reach_state(r, s->a);
            reach_state(r, s->b);
        } else if (s->kind == STATE_JUMP) {
            reach_state(r, s->a);
        } else if (s->kind == STATE_BYTES && r->reads) {
            reach_state(r, at + 1);
        } else if (s->kind == STATE_CALL) {
            if (r->nullable[s->a])
                reach_state(r, at + 1);
            return s;
        } else if (s->kind == STATE_END) {
            return s;
        }
    }
    return NULL;
}

static bool reaches_end(struct reach *r, uint32_t rule)
{
    const struct state *s;
    begin_visit(r, rule);
    while ((s = next_reached(r)))
        if (s->kind == STATE_END)
            return true;
    return false;
}

/* Finds the rules that reach their end. Goes in both directions in turn, so that long chains of
 * rules do not need a round each. */
static int find_nullable(struct reach *r, bool *nullable, const char *name, struct moe_err *err)
{
    uint32_t n = r->g->n_rules;
    bool changed = true;
    for (bool up = true; changed && r->allowance->status == MOE_OK; up = !up) {
        changed = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t rule = up ? i : n - 1 - i;
            if (nullable[rule] || !reaches_end(r, rule))
                continue;
            nullable[rule] = changed = true;
        }
    }
    return r->allowance->status == MOE_OK ? MOE_OK : moe_allowance_say(r->allowance, name, err);
}

/* ---- Left recursion ---- */

struct edge {
    uint32_t from, to;
};

/* Lists the calls that rules may begin with, counted in n_left by the rule called. */
static struct edge *left_edges(struct reach *r, uint32_t *n_edges, uint32_t *n_left,
                               struct moe_err *err)
{
    uint32_t room = 0;
    struct edge *edges = NULL;
    *n_edges = 0;
    for (uint32_t i = 0; i < r->g->n_rules; i++) {
        const struct state *s;
        begin_visit(r, i);
        while ((s = next_reached(r))) {
            if (s->kind != STATE_CALL)
                continue;
            if (*n_edges == room) {
                room = room ? 2 * room : 256;
                struct edge *more = realloc(edges, room * sizeof *edges);
                if (!more) {
                    free(edges);
                    moe_fail(err, MOE_ERR_MEMORY, "out of memory: %u calls of rules", room);
                    return NULL;
                }
                edges = more;
            }
            edges[(*n_edges)++] = (struct edge){i, s->a};
            n_left[s->a]++;
        }
    }
    return edges ? edges : moe_alloc(1, sizeof *edges, err);
}

/* Finds a rule that begins, perhaps through others, with itself; UINT32_MAX: none. Repeatedly
 * removes rules that no other begins with; each remaining rule then has one before it. */
static uint32_t find_recursion(uint32_t n_rules, const struct edge *edges, uint32_t n_edges,
                               uint32_t *n_left, uint32_t *begins, uint32_t *queue)
{
    uint32_t n_queue = 0;
    for (uint32_t i = 0, at = 0; i < n_rules; i++) { /* edges are ordered by `from` */
        begins[i] = at;
        while (at < n_edges && edges[at].from == i)
            at++;
        begins[i + 1] = at;
    }
    for (uint32_t i = 0; i < n_rules; i++)
        if (n_left[i] == 0)
            queue[n_queue++] = i;
    for (uint32_t done = 0; done < n_queue; done++)
        for (uint32_t e = begins[queue[done]]; e < begins[queue[done] + 1]; e++)
            if (--n_left[edges[e].to] == 0)
                queue[n_queue++] = edges[e].to;
    if (n_queue == n_rules)
        return UINT32_MAX;
    uint32_t *before = queue, at = 0;
    for (uint32_t e = 0; e < n_edges; e++)
        if (n_left[edges[e].from] > 0)
            before[edges[e].to] = edges[e].from;
    while (n_left[at] == 0)
        at++;
    for (uint32_t i = 0; i < n_rules; i++)
        at = before[at];
    return at;
}

static int refuse_left_recursion(struct reach *r, const char *name, struct moe_err *err)
{
    const struct moe_grammar *g = r->g;
    uint32_t n = g->n_rules, n_edges = 0;
    uint32_t *block = moe_alloc(3 * (uint64_t)n + 1, sizeof *block, err);
    struct edge *edges = block ? left_edges(r, &n_edges, block, err) : NULL;
    int status = edges ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        uint32_t rule = find_recursion(n, edges, n_edges, block, block + n, block + 2 * n + 1);
        if (rule != UINT32_MAX)
            status =
                moe_fail(err, MOE_ERR_UNSUPPORTED,
                         "%s: line %u, column %u: the rule '%s' is left-recursive: it begins "
                         "with itself, so put what it begins with first",
                         name, g->rules[rule].line, g->rules[rule].column, g->rules[rule].name);
    }
    free(edges);
    free(block);
    return status;
}

/* Refuses rules whose every way leads to themselves again; `ends` has room for all rules. */
static int refuse_endless(struct reach *r, bool *ends, const char *name, struct moe_err *err)
{
    const struct moe_grammar *g = r->g;
    struct reach behind = {.g = g,
                           .nullable = ends,
                           .reads = true,
                           .stamp = r->stamp,
                           .stack = r->stack,
                           .visit = r->visit,
                           .allowance = r->allowance};
    memset(ends, 0, g->n_rules * sizeof *ends);
    MOE_TRY(find_nullable(&behind, ends, name, err));
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (!ends[i])
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: line %u, column %u: the rule '%s' can never end", name,
                            g->rules[i].line, g->rules[i].column, g->rules[i].name);
    return MOE_OK;
}

/* ---- Where an answer begins ---- */

/* States that may read the first byte. */
static uint32_t ways_to_begin(struct reach *r)
{
    const struct moe_grammar *g = r->g;
    uint32_t n = 0;
    begin_visit(r, g->root);
    while (r->n_stack > 0 && moe_allowance_step(r->allowance, 1) == MOE_OK) {
        uint32_t at = r->stack[--r->n_stack];
        const struct state *s = &g->states[at];
        n += s->kind == STATE_BYTES;
        if (s->kind == STATE_SPLIT || s->kind == STATE_JUMP)
            reach_state(r, s->a);
        if (s->kind == STATE_SPLIT)
            reach_state(r, s->b);
        if (s->kind == STATE_CALL)
            reach_state(r, g->rules[s->a].start);
        if (s->kind == STATE_CALL && r->nullable[s->a])
            reach_state(r, at + 1);
    }
    return n;
}

/* ---- Rules ---- */

static int check_rules(const struct moe_grammar *g, const char *name, struct moe_err *err)
{
    uint64_t bytes = g->n_states * 2 * sizeof(uint32_t) + g->n_rules * 4 * sizeof(uint32_t);
    if (moe_allowance_take(g->allowance, bytes) != MOE_OK)
        return moe_allowance_say(g->allowance, name, err);
    bool *nullable = moe_alloc(g->n_rules, sizeof *nullable, err);
    struct reach r = {.g = g, .nullable = nullable, .allowance = g->allowance};
    r.stamp = nullable ? moe_alloc(g->n_states, sizeof *r.stamp, err) : NULL;
    r.stack = r.stamp ? moe_alloc(g->n_states, sizeof *r.stack, err) : NULL;
    int status;
    MOE_STEP(r.stack ? find_nullable(&r, nullable, name, err) : MOE_ERR_MEMORY);
    MOE_STEP(refuse_left_recursion(&r, name, err));
    if (ways_to_begin(&r) > MAX_STACKS)
        MOE_STEP(moe_fail(err, MOE_ERR_LIMIT,
                          "%s: the grammar leaves more than %d ways open where an answer begins: "
                          "put together what begins alike",
                          name, MAX_STACKS));
    if (r.allowance->status != MOE_OK)
        MOE_STEP(moe_allowance_say(r.allowance, name, err));
    if (g->must_end)
        MOE_STEP(refuse_endless(&r, nullable, name, err));
out:
    free(r.stack);
    free(r.stamp);
    free(nullable);
    g->allowance->bytes -= bytes;
    return status;
}

/* ---- Jumps ---- */

/* Lets jumps to jumps lead where these do. Backward jumps only lead to splits (gbnf.c). */
static void shorten_jumps(struct moe_grammar *g)
{
    for (uint32_t i = g->n_states; i-- > 0;) {
        struct state *s = &g->states[i];
        if (s->kind == STATE_JUMP && s->a > i && g->states[s->a].kind == STATE_JUMP)
            s->a = g->states[s->a].a;
    }
}

/* ---- Classes of bytes ---- */

/* Splits each class that a set covers only partly. */
static void find_classes(struct moe_grammar *g)
{
    g->n_classes = 1;
    for (uint32_t i = 0; i < g->n_sets; i++) {
        int inside[256], n = (int)g->n_classes;
        bool outside[256] = {false};
        for (int c = 0; c < n; c++)
            inside[c] = -1;
        for (uint32_t b = 0; b < 256; b++)
            if (!set_has(&g->sets[i], b))
                outside[g->class_of[b]] = true;
        for (uint32_t b = 0; b < 256; b++) {
            uint8_t *c = &g->class_of[b];
            if (!set_has(&g->sets[i], b) || !outside[*c])
                continue;
            if (inside[*c] < 0)
                inside[*c] = (int)g->n_classes++;
            *c = (uint8_t)inside[*c];
        }
    }
    for (uint32_t b = 256; b-- > 0;)
        g->byte_of[g->class_of[b]] = (uint8_t)b;
}

/* ---- All ---- */

int machine_finish(struct moe_grammar *g, const char *name, struct moe_err *err)
{
    if (g->status == MOE_ERR_MEMORY)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a grammar of %u states", g->n_states);
    if (g->allowance->status != MOE_OK)
        return moe_allowance_say(g->allowance, name, err);
    if (g->status != MOE_OK)
        return moe_fail(err, g->status,
                        "%s: the grammar is too large: more than %d states, %d rules or %d sets of "
                        "characters (repetitions count as often as they may be)",
                        name, MOE_GRAMMAR_MAX_STATES, MOE_GRAMMAR_MAX_RULES, MAX_SETS);
    g->root = UINT32_MAX;
    for (uint32_t i = 0; i < g->n_rules; i++) {
        const struct rule *r = &g->rules[i];
        if (!r->defined)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: line %u, column %u: the rule '%s' is not defined", name, r->line,
                            r->column, r->name);
        if (strcmp(r->name, "root") == 0)
            g->root = i;
    }
    if (g->root == UINT32_MAX)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: there is no rule 'root', which a whole answer follows", name);
    shorten_jumps(g);
    find_classes(g);
    return check_rules(g, name, err);
}
