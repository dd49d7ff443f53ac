#include "grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

/* ---- Lists that grow ---- */

/* Room for one more item; false, with g->status set, where there is none. */
static bool grow(struct moe_grammar *g, void **items, uint32_t n, uint32_t *room, size_t bytes,
                 uint32_t most)
{
    if (g->status != MOE_OK)
        return false;
    if (n < *room)
        return true;
    uint32_t wanted = *room ? 2 * *room : 64;
    wanted = wanted < most ? wanted : most;
    if (n >= wanted) {
        g->status = MOE_ERR_LIMIT;
        return false;
    }
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
    if (!grow(g, (void **)&g->states, g->n_states, &g->states_room, sizeof *g->states,
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
    if (!grow(g, (void **)&g->rules, g->n_rules, &g->rules_room, sizeof *g->rules,
              MOE_GRAMMAR_MAX_RULES) ||
        !grow_slots(g))
        return 0;
    uint32_t *slot = rule_slot(g, name, n);
    if (*slot)
        return *slot - 1;
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

/* A state that reads a byte of the set. */
static void add_set(struct moe_grammar *g, const struct byte_set *set)
{
    uint32_t i = g->n_sets;
    while (i > 0 && memcmp(&g->sets[i - 1], set, sizeof *set) != 0)
        i--;
    if (i == 0) {
        if (!grow(g, (void **)&g->sets, g->n_sets, &g->sets_room, sizeof *g->sets, MAX_SETS))
            return;
        g->sets[g->n_sets++] = *set;
        i = g->n_sets;
    }
    machine_add(g, STATE_BYTES, i - 1, 0);
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

/* Characters that UTF-8 writes with so many bytes, and whose bytes but the last few differ in one
 * place: a range of first bytes, then ranges of the following. */
struct alternatives {
    struct moe_grammar *g;
    uint32_t split; /* the last one's, still without a second way; 0: there is none */
    uint32_t first; /* jump to the end of each alternative: a chain through their `a` */
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
    g->states[a->split].kind = STATE_JUMP; /* the last has no other way */
    for (uint32_t at = a->first, next; at != UINT32_MAX; at = next) {
        next = g->states[at].a;
        g->states[at].a = g->n_states;
    }
}

/* The characters low..high, all of `length` bytes and beyond ASCII. */
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

/* The characters low..high, cut where UTF-8 has other lengths; surrogates are none. */
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
    uint32_t next = 0, first = g->n_states; /* the first character that is not looked at yet */
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
    if (!a.any) { /* one byte, or (an empty set) no character */
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
    free(g);
}

uint64_t moe_grammar_bytes(const struct moe_grammar *g)
{
    uint64_t bytes = sizeof *g + g->states_room * sizeof *g->states +
                     g->sets_room * sizeof *g->sets + g->rules_room * sizeof *g->rules +
                     g->n_slots * sizeof *g->rule_slots;
    for (uint32_t i = 0; i < g->n_rules; i++)
        bytes += strlen(g->rules[i].name) + 32; /* and what malloc adds */
    return bytes;
}
