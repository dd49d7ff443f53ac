/*
 * Sets of texts: regular expressions of characters, with what two of them share and what one of
 * them lacks, and their GBNF. Expressions are nodes of one list, equal ones the same node.
 *
 * What is a plain expression is written as it is. The others are written state by state: a state is
 * an expression, and leads by each character to the one of what may follow (Brzozowski, Derivatives
 * of Regular Expressions, 1964). Characters that no class distinguishes are tried as one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "grammar/automaton_internal.h"
#include "grammar/schema.h"

enum text_kind {
    KIND_NONE,
    KIND_EMPTY,
    KIND_CLASS,    /* one character of class a */
    KIND_CAT,      /* a, then b; a is no KIND_CAT */
    KIND_OR,       /* a or b; a is no KIND_OR, and less than what b lists */
    KIND_AND,      /* likewise: a and b */
    KIND_NOT,      /* all texts but those of a */
    KIND_REPEAT,   /* a, from least to most times */
    KIND_MULTIPLE, /* digits of a number: see texts_multiple */
    KIND_LOOK,     /* nothing, where one of a follows (b: 1) or not (b: 0) */
    KIND_BEGIN,    /* nothing, where the text begins */
    KIND_END,      /* nothing, where it ends */
};

struct text_node {
    uint32_t kind; /* enum text_kind */
    uint32_t a, b;
    uint64_t least, most;
    uint64_t shortest, longest; /* characters of its texts lie between; UINT64_MAX: no bound */
    bool empty;                 /* it has the empty text */
    bool states;                /* it is written state by state */
    bool looks, begins;         /* it holds KIND_LOOK, _BEGIN or _END; KIND_BEGIN */
    bool none;                  /* it has no text, as was found when its rule was written */
    uint32_t rule;              /* number of its rule + 1; 0: none yet */
    uint32_t round, state;      /* its state, while round is the list's; also a mark of visits */
};

struct text_class {
    uint32_t first, n; /* ascending ranges, apart from each other */
};

/* What an expression leads to by a character: remembered. */
struct text_step {
    uint32_t from, c, to;
};

struct texts {
    struct text_node *nodes;
    struct text_class *classes;
    struct range *ranges;
    uint32_t *node_slots,
        *class_slots;        /* by hash: number + 1; twice as many as there is room for */
    struct text_step *steps; /* by hash, the latest */
    uint32_t *stack;         /* lists while they are put together */
    uint32_t n_nodes, nodes_room, n_classes, classes_room, n_ranges, ranges_room;
    uint32_t n_stack, stack_room, steps_room, round;
    uint32_t all, any; /* the class of all characters; all texts */
    struct moe_allowance *allowance;
    bool failed; /* there was no memory */
};

enum { MAX_TEXT_DEPTH = 1000, MAX_LETTERS = 400 };

/* ---- Lists that grow ---- */

/* Makes room for n more items; false: none, or too much. */
static bool text_room(struct texts *t, void **items, uint32_t n, uint32_t *room, size_t bytes)
{
    if (n <= *room)
        return true;
    uint32_t wanted = *room ? 2 * *room : 64;
    wanted = wanted < n ? n : wanted;
    if (t->failed || moe_allowance_take(t->allowance, (wanted - *room) * bytes) != MOE_OK)
        return false;
    void *more = realloc(*items, wanted * bytes);
    if (!more) {
        t->failed = true;
        return false;
    }
    *items = more;
    *room = wanted;
    return true;
}

static void push(struct texts *t, uint32_t node)
{
    if (text_room(t, (void **)&t->stack, t->n_stack + 1, &t->stack_room, sizeof *t->stack))
        t->stack[t->n_stack++] = node;
}

/* ---- Nodes ---- */

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    return a == 0 || b == 0                                                     ? 0
           : a == UINT64_MAX || b == UINT64_MAX || !moe_mul_u64(a, b, &product) ? UINT64_MAX
                                                                                : product;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t node_hash(const struct text_node *n)
{
    const uint64_t key[4] = {(uint64_t)n->kind << 32 | n->a, n->b, n->least, n->most};
    return (uint32_t)moe_hash64(key, sizeof key);
}

static bool rehash_nodes(struct texts *t)
{
    if (moe_allowance_take(t->allowance, t->nodes_room * sizeof *t->node_slots) != MOE_OK)
        return false;
    free(t->node_slots);
    t->node_slots = calloc(2 * (size_t)t->nodes_room, sizeof *t->node_slots);
    t->failed |= !t->node_slots;
    for (uint32_t i = 0; i < t->n_nodes && !t->failed; i++) {
        uint32_t at = node_hash(&t->nodes[i]) % (2 * t->nodes_room);
        while (t->node_slots[at])
            at = (at + 1) % (2 * t->nodes_room);
        t->node_slots[at] = i + 1;
    }
    return !t->failed;
}

/* Fills in what follows from a node's parts. */
static void describe(const struct texts *t, struct text_node *n)
{
    static const struct text_node nothing;
    const bool has_parts = n->kind >= KIND_CAT && n->kind <= KIND_REPEAT;
    const struct text_node *a = has_parts ? &t->nodes[n->a] : &nothing;
    const struct text_node *b =
        has_parts && n->kind != KIND_NOT && n->kind != KIND_REPEAT ? &t->nodes[n->b] : &nothing;
    n->states = a->states || b->states || n->kind == KIND_AND || n->kind == KIND_NOT ||
                n->kind == KIND_MULTIPLE;
    n->looks = a->looks || b->looks || n->kind >= KIND_LOOK;
    n->begins = a->begins || b->begins || n->kind == KIND_BEGIN;
    n->shortest = 0;
    n->longest = 0;
    switch ((enum text_kind)n->kind) {
    case KIND_CLASS:
        n->shortest = n->longest = 1;
        break;
    case KIND_CAT:
        n->empty = a->empty && b->empty;
        n->shortest = plus(a->shortest, b->shortest);
        n->longest = plus(a->longest, b->longest);
        break;
    case KIND_OR:
        n->empty = a->empty || b->empty;
        n->shortest = smaller(a->shortest, b->shortest);
        n->longest = larger(a->longest, b->longest);
        break;
    case KIND_AND:
        n->empty = a->empty && b->empty;
        n->shortest = larger(a->shortest, b->shortest);
        n->longest = smaller(a->longest, b->longest);
        break;
    case KIND_NOT:
        n->empty = !a->empty;
        n->shortest = a->empty;
        n->longest = UINT64_MAX;
        break;
    case KIND_REPEAT:
        n->empty = n->least == 0 || a->empty;
        n->shortest = times(a->shortest, n->least);
        n->longest = times(a->longest, n->most);
        break;
    case KIND_MULTIPLE:
        n->longest = UINT64_MAX;
        break;
    default:
        n->empty = n->kind == KIND_EMPTY;
    }
}

/* The node that is like this one; TEXTS_NONE where there is no room. */
static uint32_t node_of(struct schema *s, struct text_node n)
{
    struct texts *t = s->texts;
    if (moe_allowance_step(t->allowance, 1) != MOE_OK || t->failed)
        return TEXTS_NONE;
    if (t->n_nodes == t->nodes_room &&
        !(text_room(t, (void **)&t->nodes, t->n_nodes + 1, &t->nodes_room, sizeof n) &&
          rehash_nodes(t)))
        return TEXTS_NONE;
    uint32_t at = node_hash(&n) % (2 * t->nodes_room);
    for (; t->node_slots[at]; at = (at + 1) % (2 * t->nodes_room)) {
        const struct text_node *there = &t->nodes[t->node_slots[at] - 1];
        if (there->kind == n.kind && there->a == n.a && there->b == n.b &&
            there->least == n.least && there->most == n.most)
            return t->node_slots[at] - 1;
    }
    describe(t, &n);
    t->nodes[t->n_nodes] = n;
    t->node_slots[at] = t->n_nodes + 1;
    return t->n_nodes++;
}

/* ---- Classes ---- */

static int by_low(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* Adds a range to those of the class that is being put together, behind all others. */
static void put_range(struct texts *t, uint32_t first, uint32_t low, uint32_t high)
{
    struct range *last = t->n_ranges > first ? &t->ranges[t->n_ranges - 1] : NULL;
    if (last && low <= last->high + 1)
        last->high = high > last->high ? high : last->high;
    else if (text_room(t, (void **)&t->ranges, t->n_ranges + 1, &t->ranges_room, sizeof *last))
        t->ranges[t->n_ranges++] = (struct range){low, high};
}

static uint32_t class_hash(const struct texts *t, const struct text_class *c)
{
    return (uint32_t)moe_hash64(t->ranges + c->first, c->n * sizeof *t->ranges);
}

/* The node of the class whose ranges lie behind all others. */
static uint32_t end_class(struct schema *s, uint32_t first)
{
    struct texts *t = s->texts;
    struct text_class class = {first, t->n_ranges - first};
    t->n_ranges = first;
    if (moe_allowance_step(t->allowance, 1 + class.n) != MOE_OK || t->failed || class.n == 0)
        return TEXTS_NONE;
    if (t->n_classes == t->classes_room) {
        if (!text_room(t, (void **)&t->classes, t->n_classes + 1, &t->classes_room, sizeof class) ||
            moe_allowance_take(t->allowance, t->classes_room * sizeof *t->class_slots) != MOE_OK)
            return TEXTS_NONE;
        free(t->class_slots);
        t->class_slots = calloc(2 * (size_t)t->classes_room, sizeof *t->class_slots);
        if ((t->failed = !t->class_slots))
            return TEXTS_NONE;
        for (uint32_t i = 0; i < t->n_classes; i++) {
            uint32_t at = class_hash(t, &t->classes[i]) % (2 * t->classes_room);
            while (t->class_slots[at])
                at = (at + 1) % (2 * t->classes_room);
            t->class_slots[at] = i + 1;
        }
    }
    uint32_t at = class_hash(t, &class) % (2 * t->classes_room), i;
    for (; (i = t->class_slots[at]) > 0; at = (at + 1) % (2 * t->classes_room))
        if (t->classes[i - 1].n == class.n &&
            memcmp(t->ranges + t->classes[i - 1].first, t->ranges + class.first,
                   class.n * sizeof *t->ranges) == 0)
            return node_of(s, (struct text_node){.kind = KIND_CLASS, .a = i - 1});
    t->n_ranges = first + class.n; /* kept */
    t->classes[t->n_classes] = class;
    t->class_slots[at] = t->n_classes + 1;
    return node_of(s, (struct text_node){.kind = KIND_CLASS, .a = t->n_classes++});
}

uint32_t texts_class(struct schema *s, struct range *ranges, uint32_t n, bool negated,
                     uint32_t most)
{
    struct texts *t = s->texts;
    const uint32_t first = t->n_ranges;
    uint32_t next = 1; /* NUL is never written */
    if (n > 1)
        qsort(ranges, n, sizeof *ranges, by_low);
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t low = i < n ? ranges[i].low : most + 1, high = i < n ? ranges[i].high : most;
        if (negated ? low > next : high >= next) { /* without halves of pairs */
            uint32_t from = negated || low < next ? next : low, to = negated ? low - 1 : high;
            to = to < most ? to : most;
            if (from < 0xd800 && from <= to)
                put_range(t, first, from, to < 0xd800 ? to : 0xd7ff);
            if (to > 0xdfff && from <= to)
                put_range(t, first, from > 0xdfff ? from : 0xe000, to);
        }
        next = high >= next ? high + 1 : next;
        if (!negated && i + 1 == n)
            break;
    }
    return end_class(s, first);
}

static bool class_has(const struct texts *t, uint32_t class, uint32_t c)
{
    const struct range *r = t->ranges + t->classes[class].first;
    uint32_t low = 0, n = t->classes[class].n;
    while (low < n) {
        uint32_t middle = (low + n) / 2;
        if (r[middle].high < c)
            low = middle + 1;
        else
            n = middle;
    }
    return low < t->classes[class].n && r[low].low <= c;
}

/* The class of what both have, or either. */
static uint32_t merge_classes(struct schema *s, uint32_t a, uint32_t b, bool both)
{
    struct texts *t = s->texts;
    const struct text_class x = t->classes[t->nodes[a].a], y = t->classes[t->nodes[b].a];
    const uint32_t first = t->n_ranges;
    for (uint32_t i = 0, k = 0; i < x.n || k < y.n;) {
        const struct range *p = i < x.n ? &t->ranges[x.first + i] : NULL;
        const struct range *q = k < y.n ? &t->ranges[y.first + k] : NULL;
        if (both && (!p || !q))
            break;
        if (!both) {
            const struct range r = !q || (p && p->low <= q->low) ? *p : *q;
            put_range(t, first, r.low, r.high);
            *(!q || (p && p->low <= q->low) ? &i : &k) += 1;
            continue;
        }
        const uint32_t low = p->low > q->low ? p->low : q->low,
                       high = p->high < q->high ? p->high : q->high;
        *(p->high < q->high ? &i : &k) += 1;
        if (low <= high)
            put_range(t, first, low, high);
    }
    return end_class(s, first);
}

/* ---- Expressions ---- */

uint32_t texts_cat(struct schema *s, uint32_t a, uint32_t b)
{
    struct texts *t = s->texts;
    const uint32_t base = t->n_stack;
    if (a == TEXTS_NONE || b == TEXTS_NONE)
        return TEXTS_NONE;
    if (a == TEXTS_EMPTY ||
        (a == t->any && (b == a || (t->nodes[b].kind == KIND_CAT && t->nodes[b].a == a))))
        return b;
    for (; t->nodes[a].kind == KIND_CAT; a = t->nodes[a].b)
        push(t, t->nodes[a].a);
    b = b == TEXTS_EMPTY ? a : node_of(s, (struct text_node){.kind = KIND_CAT, .a = a, .b = b});
    while (t->n_stack > base)
        b = node_of(s, (struct text_node){.kind = KIND_CAT, .a = t->stack[--t->n_stack], .b = b});
    return b;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Adds what an alternative (or KIND_AND) lists to the stack. */
static void push_listed(struct texts *t, uint32_t node, enum text_kind kind)
{
    for (; t->nodes[node].kind == kind; node = t->nodes[node].b)
        push(t, t->nodes[node].a);
    push(t, node);
}

/* Takes the list from `base` on off the stack: sorted, and each once. */
static uint32_t end_list(struct schema *s, uint32_t base, enum text_kind kind)
{
    struct texts *t = s->texts;
    uint32_t n = t->n_stack - base, *list = t->stack + base, kept = 0;
    t->n_stack = base;
    if (n == 0 || moe_allowance_step(t->allowance, n) != MOE_OK || t->failed)
        return TEXTS_NONE;
    if (n > 1)
        qsort(list, n, sizeof *list, by_number);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || list[i] != list[kept - 1])
            list[kept++] = list[i];
    uint32_t all = list[--kept];
    while (kept > 0)
        all = node_of(s, (struct text_node){.kind = kind, .a = t->stack[base + --kept], .b = all});
    return all;
}

/* One of the texts of what lies on the stack from `base` on. */
static uint32_t end_or(struct schema *s, uint32_t base)
{
    struct texts *t = s->texts;
    uint32_t class = TEXTS_NONE, kept = base;
    bool any = false;
    for (uint32_t i = base; i < t->n_stack; i++) {
        const uint32_t node = t->stack[i];
        any |= node == t->any;
        if (node == TEXTS_NONE)
            continue;
        if (t->nodes[node].kind == KIND_CLASS)
            class = class == TEXTS_NONE ? node : merge_classes(s, class, node, false);
        else
            t->stack[kept++] = node;
    }
    t->n_stack = any ? base : kept;
    if (any || class != TEXTS_NONE)
        push(t, any ? t->any : class);
    return end_list(s, base, KIND_OR);
}

uint32_t texts_or(struct schema *s, uint32_t a, uint32_t b)
{
    const uint32_t base = s->texts->n_stack;
    push_listed(s->texts, a, KIND_OR);
    push_listed(s->texts, b, KIND_OR);
    return end_or(s, base);
}

uint32_t texts_one_of(struct schema *s, const uint32_t *list, uint32_t n)
{
    const uint32_t base = s->texts->n_stack;
    for (uint32_t i = 0; i < n; i++)
        push_listed(s->texts, list[i], KIND_OR);
    return end_or(s, base);
}

/* Whether it is a class, or one that is repeated. */
static bool repeats_class(const struct texts *t, uint32_t node)
{
    const struct text_node *n = &t->nodes[node];
    return n->kind == KIND_CLASS || (n->kind == KIND_REPEAT && t->nodes[n->a].kind == KIND_CLASS);
}

/* The texts of all that lies on the stack from `base` on. Repeated classes become one; a length is
 * left out as far as the others keep it. */
static uint32_t end_and(struct schema *s, uint32_t base)
{
    struct texts *t = s->texts;
    uint32_t class = t->all, kept = base;
    uint64_t least = 0, most = UINT64_MAX, shortest = 0, longest = UINT64_MAX;
    bool none = false, empty = true;
    for (uint32_t i = base; i < t->n_stack; i++) {
        const uint32_t node = t->stack[i];
        const struct text_node n = t->nodes[node];
        none |= node == TEXTS_NONE;
        empty &= n.empty;
        if (node == TEXTS_EMPTY)
            most = 0;
        if (repeats_class(t, node)) {
            least = larger(least, n.kind == KIND_CLASS ? 1 : n.least);
            most = smaller(most, n.kind == KIND_CLASS ? 1 : n.most);
            if (class != TEXTS_NONE)
                class = merge_classes(s, class, n.kind == KIND_CLASS ? node : n.a, true);
        } else if (node != TEXTS_EMPTY) {
            shortest = larger(shortest, n.shortest);
            longest = smaller(longest, n.longest);
            t->stack[kept++] = node;
        }
    }
    for (uint32_t i = base; i < kept && !none; i++) /* a text that is one, and is none */
        for (uint32_t k = base; k < kept && t->nodes[t->stack[i]].kind == KIND_NOT; k++)
            none |= t->nodes[t->stack[i]].a == t->stack[k];
    moe_allowance_step(t->allowance, (uint64_t)(kept - base) * 2);
    most = class == TEXTS_NONE ? 0 : most;
    t->n_stack = kept;
    if (none || larger(shortest, least) > smaller(longest, most) || (most == 0 && !empty)) {
        t->n_stack = base;
        return TEXTS_NONE;
    }
    if (most == 0) {
        t->n_stack = base;
        return TEXTS_EMPTY;
    }
    if (kept > base && class == t->all) {
        least = shortest >= least ? 0 : least;
        most = longest <= most ? UINT64_MAX : most;
    }
    if (kept == base || class != t->all || least > 0 || most < UINT64_MAX)
        push(t, texts_repeat(s, class, least, most));
    return end_list(s, base, KIND_AND);
}

uint32_t texts_and(struct schema *s, uint32_t a, uint32_t b)
{
    const uint32_t base = s->texts->n_stack;
    push_listed(s->texts, a, KIND_AND);
    push_listed(s->texts, b, KIND_AND);
    return end_and(s, base);
}

uint32_t texts_not(struct schema *s, uint32_t a)
{
    struct texts *t = s->texts;
    if (a == TEXTS_NONE || a == t->any)
        return a == TEXTS_NONE ? t->any : TEXTS_NONE;
    return t->nodes[a].kind == KIND_NOT ? t->nodes[a].a
                                        : node_of(s, (struct text_node){.kind = KIND_NOT, .a = a});
}

uint32_t texts_repeat(struct schema *s, uint32_t a, uint64_t least, uint64_t most)
{
    const struct text_node n = s->texts->nodes[a];
    if (a == TEXTS_EMPTY || most == 0 || (a == TEXTS_NONE && least == 0))
        return TEXTS_EMPTY;
    if (a == TEXTS_NONE || (least == 1 && most == 1))
        return a;
    if (n.kind == KIND_REPEAT && n.least <= 1 && n.most == UINT64_MAX && least <= 1) {
        least = least < n.least ? least : n.least;
        a = n.a;
        most = UINT64_MAX;
    }
    if (s->texts->nodes[a].empty)
        least = 0;
    return node_of(s,
                   (struct text_node){.kind = KIND_REPEAT, .a = a, .least = least, .most = most});
}

/* Digits, with at most `part` of them behind a point: a: what remains of the number so far,
 * b: digits that may still follow, and whether it was before the point (BEFORE). */
enum { BEFORE = 1 << 8 };

static uint32_t multiple_at(struct schema *s, uint64_t of, uint64_t part, uint64_t rest,
                            uint32_t at)
{
    uint64_t scaled = rest;
    moe_allowance_step(s->allowance, at & (BEFORE - 1));
    for (uint32_t i = 0; i < (at & (BEFORE - 1)); i++)
        scaled = scaled * 10 % of;
    return node_of(s, (struct text_node){.kind = KIND_MULTIPLE,
                                         .a = (uint32_t)rest,
                                         .b = at,
                                         .least = of,
                                         .most = part,
                                         .empty = scaled == 0});
}

uint32_t texts_multiple(struct schema *s, uint32_t of, uint32_t part)
{
    return multiple_at(s, of, part, 0, part | BEFORE);
}

uint32_t texts_literal(struct schema *s, const char *text)
{
    struct texts *t = s->texts;
    const uint32_t base = t->n_stack;
    uint32_t all = TEXTS_EMPTY;
    int length;
    for (size_t n = strlen(text); *text; text += length, n -= (size_t)length) {
        struct range c;
        c.low = c.high = moe_utf8_decode((const uint8_t *)text, n, &length);
        push(t, texts_class(s, &c, 1, false, 0x10ffff));
    }
    while (t->n_stack > base)
        all = texts_cat(s, t->stack[--t->n_stack], all);
    return all;
}

uint32_t texts_any(const struct schema *s)
{
    return s->texts->any;
}

uint32_t texts_of_length(struct schema *s, uint64_t least, uint64_t most)
{
    return texts_repeat(s, s->texts->all, least, most);
}

void texts_lengths(const struct schema *s, uint32_t node, uint64_t *shortest, uint64_t *longest)
{
    *shortest = s->texts->nodes[node].shortest;
    *longest = s->texts->nodes[node].longest;
}

bool texts_counts_itself(const struct schema *s, uint32_t node)
{
    return repeats_class(s->texts, node);
}

/* ---- What looks ahead ---- */

enum { MAX_LOOKS = 16 /* repetitions of what looks ahead */ };

/* The texts of a node, each before one of `then`. *fails: it looks ahead where that is not seen. */
static uint32_t texts_before(struct schema *s, uint32_t node, uint32_t then, int depth, bool *fails)
{
    struct texts *t = s->texts;
    const struct text_node n = t->nodes[node];
    const uint32_t base = t->n_stack;
    if (moe_allowance_step(t->allowance, 1) != MOE_OK)
        return TEXTS_NONE;
    *fails |= n.kind == KIND_BEGIN || depth > MAX_TEXT_DEPTH;
    if (!n.looks || *fails)
        return texts_cat(s, node, then);
    if (n.kind == KIND_END)
        return texts_and(s, then, TEXTS_EMPTY);
    if (n.kind == KIND_LOOK)
        return texts_and(s, then, n.b ? n.a : texts_not(s, n.a));
    if (n.kind == KIND_CAT) {
        for (; t->nodes[node].kind == KIND_CAT; node = t->nodes[node].b)
            push(t, t->nodes[node].a);
        for (push(t, node); t->n_stack > base;) {
            node = t->stack[--t->n_stack];
            then = texts_before(s, node, then, depth + 1, fails);
        }
        return then;
    }
    if (n.kind == KIND_OR) {
        push_listed(t, node, KIND_OR);
        for (uint32_t i = base, end = t->n_stack; i < end; i++) {
            const uint32_t one = texts_before(s, t->stack[i], then, depth + 1, fails);
            t->stack[i] = one;
        }
        uint32_t all = TEXTS_NONE; /* each may list others */
        while (t->n_stack > base)
            all = texts_or(s, all, t->stack[--t->n_stack]);
        return all;
    }
    *fails |= n.kind != KIND_REPEAT || n.most > MAX_LOOKS;
    uint32_t all = then;
    for (uint64_t i = n.most; i-- > 0 && !*fails;) {
        all = texts_before(s, n.a, all, depth + 1, fails);
        all = i < n.least ? all : texts_or(s, all, then);
    }
    return all;
}

/* Parts a node into what begins where the text does, and the rest. */
static void part_begin(struct schema *s, uint32_t node, uint32_t *begins, uint32_t *rest, int depth,
                       bool *fails)
{
    struct texts *t = s->texts;
    const struct text_node n = t->nodes[node];
    uint32_t a_begins, a_rest, b_begins, b_rest;
    *begins = n.kind == KIND_BEGIN ? TEXTS_EMPTY : TEXTS_NONE;
    *rest = n.kind == KIND_BEGIN ? TEXTS_NONE : node;
    *fails |= depth > MAX_TEXT_DEPTH;
    if (!n.begins || n.kind == KIND_BEGIN || *fails)
        return;
    if (n.kind == KIND_OR) {
        *rest = TEXTS_NONE;
        for (bool more = true; more; node = t->nodes[node].b) {
            more = t->nodes[node].kind == KIND_OR;
            part_begin(s, more ? t->nodes[node].a : node, &a_begins, &a_rest, depth + 1, fails);
            *begins = texts_or(s, *begins, a_begins);
            *rest = texts_or(s, *rest, a_rest);
        }
    } else if (n.kind == KIND_CAT && t->nodes[n.a].kind == KIND_LOOK) {
        part_begin(s, n.b, &b_begins, &b_rest, depth + 1, fails);
        *begins = texts_cat(s, n.a, b_begins);
        *rest = texts_cat(s, n.a, b_rest);
    } else if (n.kind == KIND_CAT && !t->nodes[n.b].begins) {
        part_begin(s, n.a, &a_begins, &a_rest, depth + 1, fails);
        *begins = texts_cat(s, a_begins, n.b);
        *rest = texts_cat(s, a_rest, n.b);
    } else {
        *fails = true;
    }
}

uint32_t texts_that_match(struct schema *s, uint32_t node, uint32_t beside, bool *fails)
{
    uint32_t begins, rest;
    part_begin(s, node, &begins, &rest, 0, fails);
    begins = texts_before(s, begins, beside, 0, fails);
    rest = texts_before(s, rest, beside, 0, fails);
    return texts_or(s, begins, texts_cat(s, beside, rest));
}

uint32_t texts_looking(struct schema *s, bool follows, uint32_t node, bool *fails)
{
    return node_of(s, (struct text_node){.kind = KIND_LOOK,
                                         .a = texts_before(s, node, s->texts->any, 0, fails),
                                         .b = follows});
}

uint32_t texts_at_end(struct schema *s, bool end)
{
    return node_of(s, (struct text_node){.kind = end ? KIND_END : KIND_BEGIN});
}

/* ---- What may follow a character ---- */

static uint32_t texts_behind(struct schema *s, uint32_t node, uint32_t c, int depth)
{
    struct texts *t = s->texts;
    const struct text_node n = t->nodes[node];
    const uint32_t base = t->n_stack;
    uint32_t to = TEXTS_NONE, digit = c - '0';
    if (moe_allowance_step(t->allowance, depth > MAX_TEXT_DEPTH ? t->allowance->max_steps : 1) !=
            MOE_OK ||
        t->failed)
        return TEXTS_NONE;
    if (n.kind == KIND_CLASS)
        return class_has(t, n.a, c) ? TEXTS_EMPTY : TEXTS_NONE;
    if (n.kind == KIND_MULTIPLE && (n.b & BEFORE) && (c == '-' || (c == '.' && n.most > 0)))
        return c == '-' ? node : multiple_at(s, n.least, n.most, n.a, (uint32_t)n.most);
    if (n.kind == KIND_MULTIPLE)
        return digit > 9 || n.b == 0
                   ? TEXTS_NONE
                   : multiple_at(s, n.least, n.most, (n.a * (uint64_t)10 + digit) % n.least,
                                 n.b & BEFORE ? n.b : n.b - 1);
    const uint32_t place =
        (uint32_t)((((uint64_t)node << 21 | c) * 0x9e3779b97f4a7c15u) >> 40) % t->steps_room;
    if (t->steps[place].from == node && t->steps[place].c == c)
        return t->steps[place].to;
    switch ((enum text_kind)n.kind) {
    case KIND_CAT: /* behind each part, as long as those before may be empty */
        for (uint32_t at = node; at != UINT32_MAX;) {
            const struct text_node part = t->nodes[at];
            const bool cat = part.kind == KIND_CAT;
            to = texts_behind(s, cat ? part.a : at, c, depth + 1);
            if (to != TEXTS_NONE)
                push_listed(t, cat ? texts_cat(s, to, part.b) : to, KIND_OR);
            at = cat && t->nodes[part.a].empty ? part.b : UINT32_MAX;
        }
        to = end_or(s, base);
        break;
    case KIND_OR:
    case KIND_AND:
        for (uint32_t at = node; at != UINT32_MAX;) {
            const struct text_node part = t->nodes[at];
            const bool more = part.kind == n.kind;
            to = texts_behind(s, more ? part.a : at, c, depth + 1);
            push_listed(t, to, n.kind);
            at = more && (n.kind == KIND_OR || to != TEXTS_NONE) ? part.b : UINT32_MAX;
        }
        to = n.kind == KIND_OR ? end_or(s, base) : end_and(s, base);
        break;
    case KIND_NOT:
        to = texts_not(s, texts_behind(s, n.a, c, depth + 1));
        break;
    case KIND_REPEAT:
        to = texts_behind(s, n.a, c, depth + 1);
        if (to != TEXTS_NONE)
            to = texts_cat(s, to,
                           texts_repeat(s, n.a, n.least - (n.least > 0),
                                        n.most == UINT64_MAX ? n.most : n.most - 1));
        break;
    default:
        break;
    }
    t->steps[place] = (struct text_step){node, c, to};
    return to;
}

bool texts_take(struct schema *s, uint32_t node, const char *text)
{
    int length;
    for (size_t n = strlen(text); n > 0 && node != TEXTS_NONE; text += length, n -= (size_t)length)
        node = texts_behind(s, node, moe_utf8_decode((const uint8_t *)text, n, &length), 0);
    return s->texts->nodes[node].empty;
}

/* ---- Letters ----
 *
 * Characters that no class of an expression distinguishes are one letter. */

struct letters {
    uint32_t *low;    /* [n]: where each range begins, to the next; the last is beyond all */
    uint32_t *letter; /* [n]: UINT32_MAX: of no class */
    uint32_t n, n_letters;
    uint32_t first[MAX_LETTERS]; /* a character of each */
};

/* Parts the letters of a class from the others; digits: parts these instead. */
static void part_letters(const struct texts *t, struct letters *l, uint32_t class, uint32_t digit)
{
    uint32_t inside[MAX_LETTERS + 2], n = l->n_letters;
    bool outside[MAX_LETTERS + 2] = {false};
    if (n > MAX_LETTERS)
        return;
    memset(inside, 0xff, sizeof inside);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i + 1 < l->n; i++) {
            const bool is_in = digit ? l->low[i] == digit : class_has(t, class, l->low[i]);
            const uint32_t letter = l->letter[i];
            if (letter >= n || pass == 0)
                outside[letter < n ? letter : MAX_LETTERS + 1] |= !is_in;
            else if (is_in && outside[letter]) {
                if (inside[letter] == UINT32_MAX)
                    inside[letter] = l->n_letters++;
                l->letter[i] = inside[letter];
            }
        }
}

static int find_letters(struct schema *s, uint32_t root, struct letters *l)
{
    struct texts *t = s->texts;
    const uint32_t base = t->n_stack;
    uint32_t room = 0, n_classes = 1, round = ++t->round;
    bool digits = false;
    uint32_t *classes = NULL, classes_room = 0;
    *l = (struct letters){.n_letters = 1};
    push(t, t->all);
    push(t, root);
    n_classes = 0;
    while (t->n_stack > base && !t->failed && t->allowance->status == MOE_OK) {
        const uint32_t node = t->stack[--t->n_stack];
        const struct text_node n = t->nodes[node];
        if (n.round == round)
            continue;
        t->nodes[node].round = round;
        moe_allowance_step(t->allowance, 1);
        digits |= n.kind == KIND_MULTIPLE;
        if (n.kind >= KIND_CAT && n.kind <= KIND_REPEAT)
            push(t, n.a);
        if (n.kind == KIND_CAT || n.kind == KIND_OR || n.kind == KIND_AND)
            push(t, n.b);
        if (n.kind != KIND_CLASS ||
            !text_room(t, (void **)&classes, n_classes + 1, &classes_room, sizeof *classes))
            continue;
        const struct text_class c = t->classes[n.a];
        classes[n_classes++] = n.a;
        if (!text_room(t, (void **)&l->low, l->n + 2 * c.n + 12, &room, sizeof *l->low))
            continue;
        for (uint32_t i = 0; i < c.n; i++) {
            l->low[l->n++] = t->ranges[c.first + i].low;
            l->low[l->n++] = t->ranges[c.first + i].high + 1;
        }
    }
    t->n_stack = base;
    for (uint32_t c = '0'; digits && c <= '9' + 1 && l->low; c++)
        l->low[l->n++] = c;
    moe_allowance_step(t->allowance, (uint64_t)l->n * (4 + n_classes));
    if (t->allowance->status == MOE_OK && !t->failed) {
        uint32_t kept = 0;
        qsort(l->low, l->n, sizeof *l->low, by_number);
        for (uint32_t i = 0; i < l->n; i++)
            if (i == 0 || l->low[i] != l->low[kept - 1])
                l->low[kept++] = l->low[i];
        l->n = kept;
        l->letter = calloc(kept, sizeof *l->letter);
        t->failed |= !l->letter;
    }
    for (uint32_t i = 0; i < n_classes && l->letter; i++)
        part_letters(t, l, classes[i], 0);
    for (uint32_t c = '0'; digits && c <= '9' && l->letter; c++)
        part_letters(t, l, 0, c);
    for (uint32_t i = l->n; i-- > 0 && l->letter && l->n_letters <= MAX_LETTERS;) {
        bool is_in = false;
        for (uint32_t k = 0; k < n_classes && !is_in; k++)
            is_in = class_has(t, classes[k], l->low[i]);
        if (is_in)
            l->first[l->letter[i]] = l->low[i];
        else
            l->letter[i] = UINT32_MAX;
    }
    free(classes);
    t->allowance->bytes -= (uint64_t)(room + classes_room) * sizeof(uint32_t);
    return l->n_letters > MAX_LETTERS
               ? schema_refuse(s, "pattern", "it tells more than %d kinds of characters apart",
                               MAX_LETTERS)
               : schema_step(s, NULL, 0);
}

/* ---- States ---- */

struct text_state {
    uint32_t node, first; /* its edges: up to the next state's */
    bool alive;           /* it leads to an end */
};

struct text_edge {
    uint32_t state, class;
};

struct text_states {
    struct text_state *states;
    struct text_edge *edges;
    uint32_t n, states_room, n_edges, edges_room;
};

/* Whether it is written as an expression, and not as states: what is counted is shared by them. */
static bool is_plain(const struct text_node *n)
{
    enum { FEW = 4 };
    return !n->states && (n->longest == UINT64_MAX || n->longest <= FEW);
}

static uint32_t state_of(struct texts *t, struct text_states *all, uint32_t node)
{
    if (t->nodes[node].round == t->round)
        return t->nodes[node].state;
    if (!text_room(t, (void **)&all->states, all->n + 1, &all->states_room, sizeof *all->states))
        return 0;
    t->nodes[node].round = t->round;
    t->nodes[node].state = all->n;
    all->states[all->n] = (struct text_state){.node = node};
    return all->n++;
}

/* Finds where a state leads, by classes. */
static void find_edges(struct schema *s, struct text_states *all, uint32_t state,
                       const struct letters *l)
{
    struct texts *t = s->texts;
    const uint32_t first = all->n_edges, node = all->states[state].node;
    uint32_t edge_of[MAX_LETTERS];
    for (uint32_t i = 0; i < l->n_letters; i++) {
        edge_of[i] = UINT32_MAX;
        const uint32_t to = l->first[i] ? texts_behind(s, node, l->first[i], 0) : TEXTS_NONE;
        if (to == TEXTS_NONE || !text_room(t, (void **)&all->edges, all->n_edges + 1,
                                           &all->edges_room, sizeof *all->edges))
            continue;
        const uint32_t target = state_of(t, all, to);
        uint32_t at = first;
        while (at < all->n_edges && all->edges[at].state != target)
            at++;
        if (at == all->n_edges)
            all->edges[all->n_edges++] = (struct text_edge){target, TEXTS_NONE};
        edge_of[i] = at;
        moe_allowance_step(t->allowance, 1 + (at - first) / 4);
    }
    for (uint32_t at = first; at < all->n_edges; at++) {
        const uint32_t class = t->n_ranges;
        for (uint32_t i = 0; i + 1 < l->n; i++)
            if (l->letter[i] < l->n_letters && edge_of[l->letter[i]] == at)
                put_range(t, class, l->low[i], l->low[i + 1] - 1);
        moe_allowance_step(t->allowance, l->n / 8);
        all->edges[at].class = end_class(s, class);
    }
}

/* ---- GBNF ---- */

/* Appends a character as its literal holds it. */
static void put_character(const struct schema *s, uint32_t c, struct moe_buf *to)
{
    static const char shorts[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    uint8_t utf8[4];
    const char *e = shorts;
    while (*e && (uint32_t)*e != c)
        e += 2;
    if (!s->until && *e)
        moe_buf_printf(to, "\\%c", e[1]);
    else if (!s->until && c < 0x20)
        moe_buf_printf(to, "\\u00%02X", c);
    else
        moe_buf_append(to, utf8, (uint64_t)moe_utf8_encode(c, utf8));
}

static void put_class_end(struct moe_buf *to, uint32_t c)
{
    if (c < 0x7f && c > 0x20 && !strchr("\\]^-\"[", (int)c))
        moe_buf_u8(to, (uint8_t)c);
    else
        moe_buf_printf(to, "\\U%08X", c);
}

/* Writes one character of a class: the few that JSON escapes each as a text of its own. */
static void put_class(struct schema *s, uint32_t node, struct moe_buf *to)
{
    const struct texts *t = s->texts;
    const struct text_class c = t->classes[t->nodes[node].a];
    struct moe_buf all = {0}, literal = {0};
    bool open = false, any = false;
    if (node == t->all) {
        moe_buf_text(to, s->until ? "[^\\x00]" : "char");
        return;
    }
    for (int escaped = 0; escaped < 2; escaped++) {
        for (uint32_t i = 0; i < c.n; i++) {
            struct range r = t->ranges[c.first + i];
            for (uint32_t low = r.low, high; low <= r.high; low = high + 1) {
                const bool is = !s->until && (low < 0x20 || low == '"' || low == '\\');
                high = s->until || low > '\\' ? r.high : is ? low : low < '"' ? '"' - 1 : '\\' - 1;
                high = high < r.high ? high : r.high;
                if (is != (escaped > 0))
                    continue;
                if (escaped) {
                    moe_buf_clear(&literal);
                    put_character(s, low, &literal);
                    moe_buf_text(&all, any ? " | " : "");
                    schema_literal(&all, literal.data, literal.size);
                } else {
                    moe_buf_text(&all, open ? "" : "[");
                    open = true;
                    put_class_end(&all, low);
                    moe_buf_text(&all, high > low ? "-" : "");
                    if (high > low)
                        put_class_end(&all, high);
                }
                any = true;
            }
        }
        moe_buf_text(&all, open && !escaped ? "]" : "");
    }
    if (all.size > 24)
        schema_make_rule(s, &all);
    const bool group = all.size && memchr(all.data, '|', all.size);
    moe_buf_text(to, group ? "( " : "");
    moe_buf_append(to, all.data, all.size);
    moe_buf_text(to, group ? " )" : "");
    to->failed |= all.failed;
    moe_buf_release(&literal);
    moe_buf_release(&all);
}

/* The one character of a class; 0: there are more. */
static uint32_t only_character(const struct texts *t, uint32_t node)
{
    if (t->nodes[node].kind != KIND_CLASS || t->classes[t->nodes[node].a].n > 1)
        return 0;
    const struct range r = t->ranges[t->classes[t->nodes[node].a].first];
    return r.low == r.high ? r.low : 0;
}

/* Writes a plain expression, as one item where it is repeated. */
static int put_plain(struct schema *s, uint32_t node, bool item, struct moe_buf *to)
{
    const struct texts *t = s->texts;
    const struct text_node n = t->nodes[node];
    struct moe_buf literal = {0};
    MOE_TRY(schema_step(s, to, 1));
    if (n.kind == KIND_EMPTY) {
        moe_buf_text(to, "\"\"");
    } else if (only_character(t, node)) {
        put_character(s, only_character(t, node), &literal);
        schema_literal(to, literal.data, literal.size);
        moe_buf_release(&literal);
    } else if (n.kind == KIND_CLASS) {
        put_class(s, node, to);
    } else if (n.kind == KIND_REPEAT) {
        const bool again = t->nodes[n.a].kind == KIND_REPEAT;
        moe_buf_text(to, again ? "( " : "");
        MOE_TRY(put_plain(s, n.a, true, to));
        moe_buf_text(to, again ? " )" : "");
        if (n.most == UINT64_MAX && n.least <= 1)
            moe_buf_text(to, n.least ? "+" : "*");
        else if (n.least == 0 && n.most == 1)
            moe_buf_text(to, "?");
        else if (n.most == UINT64_MAX)
            moe_buf_printf(to, "{%llu,}", (unsigned long long)n.least);
        else
            moe_buf_printf(to, "{%llu,%llu}", (unsigned long long)n.least,
                           (unsigned long long)n.most);
    } else if (n.kind == KIND_OR) {
        moe_buf_text(to, "( ");
        for (; t->nodes[node].kind == KIND_OR; node = t->nodes[node].b) {
            MOE_TRY(put_plain(s, t->nodes[node].a, false, to));
            moe_buf_text(to, " | ");
        }
        MOE_TRY(put_plain(s, node, false, to));
        moe_buf_text(to, " )");
    } else if (n.kind == KIND_CAT) {
        moe_buf_text(to, item ? "( " : "");
        int status = MOE_OK;
        for (bool more = true, begun = false; more && status == MOE_OK; begun = true) {
            more = t->nodes[node].kind == KIND_CAT;
            const uint32_t part = more ? t->nodes[node].a : node;
            const uint32_t next = more ? t->nodes[node].b : TEXTS_NONE;
            const uint32_t c = only_character(t, part);
            node = next;
            if (c) {
                put_character(s, c, &literal);
                status = schema_step(s, NULL, 1);
                if (more &&
                    only_character(t, t->nodes[next].kind == KIND_CAT ? t->nodes[next].a : next))
                    continue;
            }
            moe_buf_text(to, begun && to->size && to->data[to->size - 1] != ' ' ? " " : "");
            if (c) {
                schema_literal(to, literal.data, literal.size);
                moe_buf_clear(&literal);
            } else {
                status = put_plain(s, part, false, to);
            }
        }
        moe_buf_release(&literal);
        moe_buf_text(to, item ? " )" : "");
        return status;
    }
    return MOE_OK;
}

/* Writes a state's rule. */
static int put_state(struct schema *s, const struct text_states *all, uint32_t state, uint32_t rule)
{
    const struct texts *t = s->texts;
    const struct text_state *at = &all->states[state];
    struct moe_buf own = {0}, one = {0};
    int status = MOE_OK;
    moe_buf_printf(&own, "r%u-%u ::=%s", rule, state, t->nodes[at->node].empty ? " \"\"" : "");
    bool any = t->nodes[at->node].empty;
    const uint32_t end = state + 1 < all->n ? all->states[state + 1].first : all->n_edges;
    for (uint32_t i = at->first; i < end && status == MOE_OK; i++) {
        const struct text_state *to = &all->states[all->edges[i].state];
        if (!to->alive)
            continue;
        moe_buf_text(&own, any ? " | " : " ");
        any = true;
        status = put_plain(s, all->edges[i].class, true, &own);
        if (!is_plain(&t->nodes[to->node])) {
            moe_buf_printf(&own, " r%u-%u", rule, all->edges[i].state);
        } else if (to->node != TEXTS_EMPTY && status == MOE_OK) {
            moe_buf_clear(&one);
            status = put_plain(s, to->node, true, &one);
            if (one.size > 24)
                schema_make_rule(s, &one);
            moe_buf_text(&own, " ");
            moe_buf_append(&own, one.data, one.size);
            own.failed |= one.failed;
        }
    }
    moe_buf_text(&own, "\n");
    moe_buf_append(&s->rules, own.data, own.size);
    s->rules.failed |= own.failed;
    moe_buf_release(&own);
    moe_buf_release(&one);
    return status == MOE_OK ? schema_step(s, NULL, 4) : status;
}

/* Marks what leads to an end: what is found later is nearer to it, as a rule. */
static void find_alive(struct texts *t, struct text_states *all)
{
    for (bool changed = true; changed && t->allowance->status == MOE_OK;) {
        changed = false;
        for (uint32_t i = all->n; i-- > 0;) {
            struct text_state *at = &all->states[i];
            const uint32_t end = i + 1 < all->n ? all->states[i + 1].first : all->n_edges;
            if (at->alive)
                continue;
            at->alive = t->nodes[at->node].empty || is_plain(&t->nodes[at->node]);
            for (uint32_t e = at->first; e < end && !at->alive; e++)
                at->alive = all->states[all->edges[e].state].alive;
            changed |= at->alive;
            moe_allowance_step(t->allowance, 1);
        }
    }
}

/* Writes states, where the node has any text. */
static int put_states(struct schema *s, uint32_t node)
{
    struct texts *t = s->texts;
    struct text_states all = {0};
    struct letters l;
    const uint32_t rule = s->n_rules++;
    int status = find_letters(s, node, &l);
    t->round++;
    if (status == MOE_OK)
        state_of(t, &all, node);
    for (uint32_t i = 0; i < all.n && status == MOE_OK; i++) {
        all.states[i].first = all.n_edges;
        if (!is_plain(&t->nodes[all.states[i].node]))
            find_edges(s, &all, i, &l);
        status = schema_step(s, NULL, 1);
    }
    if (status == MOE_OK)
        find_alive(t, &all);
    const bool none = all.n == 0 || !all.states[0].alive;
    for (uint32_t i = 0; i < all.n && status == MOE_OK && !none; i++)
        if (all.states[i].alive && !is_plain(&t->nodes[all.states[i].node]))
            status = put_state(s, &all, i, rule);
    t->nodes[node].rule = rule + 1;
    t->nodes[node].none = none;
    t->allowance->bytes -= all.states_room * sizeof *all.states;
    t->allowance->bytes -= all.edges_room * sizeof *all.edges;
    free(all.states);
    free(all.edges);
    free(l.low);
    free(l.letter);
    return status;
}

int texts_are_there(struct schema *s, uint32_t node, bool *any)
{
    struct texts *t = s->texts;
    MOE_TRY(schema_step(s, NULL, 1));
    if (t->failed)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: texts of a schema");
    if (t->nodes[node].states && !t->nodes[node].rule)
        MOE_TRY(put_states(s, node));
    *any = node != TEXTS_NONE && !t->nodes[node].none;
    return MOE_OK;
}

int schema_texts(struct schema *s, uint32_t node, const char *key, const char *why,
                 struct moe_buf *to)
{
    bool any = false;
    MOE_TRY(texts_are_there(s, node, &any));
    MOE_TRY(schema_step(s, to, 1));
    if (!any)
        return schema_refuse_all(s, key, "%s", why);
    if (!s->texts->nodes[node].states)
        return put_plain(s, node, true, to);
    moe_buf_printf(to, "r%u-0", s->texts->nodes[node].rule - 1);
    return MOE_OK;
}

/* ---- Life ---- */

int texts_begin(struct schema *s)
{
    enum { STEPS = 1 << 12 };
    struct texts *t = s->texts = moe_alloc(1, sizeof *t, s->err);
    if (!t || !(t->steps = moe_alloc(STEPS, sizeof *t->steps, s->err)))
        return MOE_ERR_MEMORY;
    t->allowance = s->allowance;
    t->steps_room = STEPS;
    node_of(s, (struct text_node){.kind = KIND_NONE});
    node_of(s, (struct text_node){.kind = KIND_EMPTY});
    MOE_TRY(schema_step(s, NULL, 0));
    if (t->failed)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: texts of a schema");
    t->all = texts_class(s, NULL, 0, true, 0x10ffff);
    t->any = texts_repeat(s, t->all, 0, UINT64_MAX);
    return t->failed ? moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: texts of a schema")
                     : schema_step(s, NULL, 0);
}

void texts_end(struct schema *s)
{
    struct texts *t = s->texts;
    if (!t)
        return;
    free(t->nodes);
    free(t->classes);
    free(t->ranges);
    free(t->node_slots);
    free(t->class_slots);
    free(t->steps);
    free(t->stack);
    free(t);
}
