/* A grammar once all is read: what is missing, what would never end, which bytes are alike. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/machine.h"

enum { MAX_STEPS = 50 << 20 }; /* of looking at states */

/* ---- What can be reached without reading ---- */

struct reach {
    const struct moe_grammar *g;
    const bool *nullable; /* by rule: it may be empty */
    uint32_t *stamp;      /* by state: the visit that saw it last */
    uint32_t *stack;      /* states to look at */
    uint32_t visit, n_stack;
    uint64_t steps;
};

static void look_at(struct reach *r, uint32_t state)
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
    look_at(r, r->g->rules[rule].start);
}

/* The next state that calls or ends, from where the visit began; NULL: none is left. */
static const struct state *next_reached(struct reach *r)
{
    while (r->n_stack > 0) {
        uint32_t at = r->stack[--r->n_stack];
        const struct state *s = &r->g->states[at];
        r->steps++;
        if (s->kind == STATE_SPLIT) {
            look_at(r, s->a);
            look_at(r, s->b);
        } else if (s->kind == STATE_JUMP) {
            look_at(r, s->a);
        } else if (s->kind == STATE_CALL) {
            if (r->nullable[s->a])
                look_at(r, at + 1);
            return s;
        } else if (s->kind == STATE_END) {
            return s;
        }
    }
    return NULL;
}

static bool may_be_empty(struct reach *r, uint32_t rule)
{
    const struct state *s;
    begin_visit(r, rule);
    while ((s = next_reached(r)))
        if (s->kind == STATE_END)
            return true;
    return false;
}

static int too_much(const char *name, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_LIMIT, "%s: the grammar's rules lean on each other too much",
                    name);
}

/* Both ways in turn, so that long chains of rules do not take a round for each. */
static int find_nullable(struct reach *r, bool *nullable, const char *name, struct moe_err *err)
{
    uint32_t n = r->g->n_rules;
    bool changed = true;
    for (bool up = true; changed; up = !up) {
        changed = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t rule = up ? i : n - 1 - i;
            if (nullable[rule] || !may_be_empty(r, rule))
                continue;
            nullable[rule] = changed = true;
        }
        if (r->steps > MAX_STEPS)
            return too_much(name, err);
    }
    return MOE_OK;
}

/* ---- Left recursion ---- */

struct edge {
    uint32_t from, to;
};

/* The calls that rules may begin with, counted in n_left by who is called. */
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

/* A rule that begins, perhaps by way of others, with itself; UINT32_MAX: none does. Takes away,
 * again and again, rules that none begins with; then each that is left has one before it. */
static uint32_t find_recursion(uint32_t n_rules, const struct edge *edges, uint32_t n_edges,
                               uint32_t *n_left, uint32_t *begins, uint32_t *queue)
{
    uint32_t n_queue = 0;
    for (uint32_t i = 0, at = 0; i < n_rules; i++) { /* edges lie in the order of `from` */
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

static int check_rules(const struct moe_grammar *g, const char *name, struct moe_err *err)
{
    bool *nullable = moe_alloc(g->n_rules, sizeof *nullable, err);
    struct reach r = {.g = g, .nullable = nullable};
    r.stamp = nullable ? moe_alloc(g->n_states, sizeof *r.stamp, err) : NULL;
    r.stack = r.stamp ? moe_alloc(g->n_states, sizeof *r.stack, err) : NULL;
    int status = r.stack ? find_nullable(&r, nullable, name, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = refuse_left_recursion(&r, name, err);
    free(r.stack);
    free(r.stamp);
    free(nullable);
    return status;
}

/* ---- Jumps ---- */

/* Those that lead to jumps lead where these do. Backwards they go to splits alone (gbnf.c). */
static void shorten_jumps(struct moe_grammar *g)
{
    for (uint32_t i = g->n_states; i-- > 0;) {
        struct state *s = &g->states[i];
        if (s->kind == STATE_JUMP && s->a > i && g->states[s->a].kind == STATE_JUMP)
            s->a = g->states[s->a].a;
    }
}

/* ---- Classes of bytes ---- */

/* Each set cuts the classes that it has a part of in two. */
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
