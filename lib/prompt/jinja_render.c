/* Executes statements: loops, macros, assignments, printing. */
#include "prompt/jinja_render.h"

#include <string.h>

#include "prompt/jinja_functions.h"
#include "prompt/jinja_value.h"

/* How to continue after a statement. */
enum flow { GO_ON, BREAK, CONTINUE };

static enum flow execute_nodes(struct jinja_run *run, struct jinja_scope *scope,
                               const struct jinja_node *node);

/* ---- Texts of blocks ---- */

/* Returns what the statements print. */
static struct jinja_value text_of(struct jinja_run *run, struct jinja_scope *scope,
                                  const struct jinja_node *body)
{
    struct jinja_builder text = {0}, *outer = run->out;
    run->out = &text;
    execute_nodes(run, scope, body);
    run->out = outer;
    return jinja_built(run, &text);
}

/* ---- Assignments ---- */

static void assign_value(struct jinja_run *run, struct jinja_scope *scope,
                         const struct jinja_node *target, struct jinja_value value)
{
    if (target->kind == JINJA_E_NAME) {
        jinja_name(run, scope, target->text, value);
    } else if (target->kind == JINJA_E_MEMBER) {
        struct jinja_value of = jinja_evaluate(run, scope, target->a);
        if (of.kind != JINJA_NAMESPACE)
            jinja_fail(&run->heap, target->at, MOE_ERR_FORMAT,
                       "only a namespace's members can be set");
        jinja_set_name(run, of, target->text, value);
    } else {
        struct jinja_value list = jinja_items(run, target->at, value);
        if (list.as.list->n != target->n_items)
            jinja_fail(&run->heap, target->at, MOE_ERR_FORMAT, "%u values for %u names",
                       list.as.list->n, target->n_items);
        for (uint32_t i = 0; i < target->n_items; i++)
            assign_value(run, scope, target->items[i], list.as.list->items[i]);
    }
}

/* ---- Macros ---- */

struct macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* where it was defined */
};

/* The argument of parameter i; false: missing. */
static bool given_to(const struct macro *m, const struct jinja_args *args, uint32_t i,
                     struct jinja_value *out)
{
    uint32_t positional = args->n - args->n_named;
    if (i < positional) {
        *out = args->values[i];
        return true;
    }
    for (uint32_t k = 0; k < args->n_named; k++)
        if (strcmp(args->names[k], m->node->parameters[i]) == 0) {
            *out = args->values[positional + k];
            return true;
        }
    return false;
}

/* Sets varargs, kwargs and caller, where the macro uses them, to the remaining arguments. */
static void take_others(struct jinja_run *run, struct jinja_scope *scope, const struct macro *m,
                        const struct jinja_args *args)
{
    const struct jinja_node *node = m->node;
    uint32_t positional = args->n - args->n_named;
    struct jinja_value more = jinja_list(run, JINJA_TUPLE, 0), named = jinja_dict(run, JINJA_DICT);
    for (uint32_t i = node->n_parameters; i < positional; i++)
        jinja_append(run, more, args->values[i]);
    if (more.as.list->n && !node->uses_varargs)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "'%.60s' takes %u arguments", node->text,
                   node->n_parameters);
    for (uint32_t k = 0; k < args->n_named; k++) {
        bool taken = false;
        for (uint32_t i = 0; i < node->n_parameters; i++)
            taken |= strcmp(args->names[k], node->parameters[i]) == 0;
        if (taken)
            continue;
        if (node->uses_caller && strcmp(args->names[k], "caller") == 0)
            jinja_name(run, scope, "caller", args->values[positional + k]);
        else if (node->uses_kwargs)
            jinja_set_name(run, named, args->names[k], args->values[positional + k]);
        else
            jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "'%.60s' has no parameter '%.60s'",
                       node->text, args->names[k]);
    }
    if (node->uses_varargs)
        jinja_name(run, scope, "varargs", more);
    if (node->uses_kwargs)
        jinja_name(run, scope, "kwargs", named);
}

static struct jinja_value call_macro(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    const struct macro *m = self->data;
    struct jinja_scope *scope = jinja_scope(run, m->scope);
    for (uint32_t i = 0; i < m->node->n_parameters; i++) {
        struct jinja_value value = jinja_undefined(m->node->parameters[i]);
        if (!given_to(m, args, i, &value) && m->node->defaults[i])
            value = jinja_evaluate(run, scope, m->node->defaults[i]);
        jinja_name(run, scope, m->node->parameters[i], value);
    }
    take_others(run, scope, m, args);
    return text_of(run, scope, m->node->body);
}

static struct jinja_value make_macro(struct jinja_run *run, struct jinja_scope *scope,
                                     const struct jinja_node *node)
{
    struct macro *m = jinja_take(&run->heap, 1, sizeof *m);
    *m = (struct macro){node, scope};
    return jinja_function(run, node->text, call_macro, jinja_none(), m);
}

/* {% call %}: makes the call, with the block as its argument "caller". */
static void call_block(struct jinja_run *run, struct jinja_scope *scope,
                       const struct jinja_node *node)
{
    const struct jinja_node *call = node->a;
    struct jinja_value function = jinja_evaluate(run, scope, call->a);
    struct jinja_args args = jinja_evaluate_args(run, scope, call->at, call->given, NULL);
    const char **names =
        jinja_grow(&run->heap, args.names, args.n_named, args.n_named + 1, sizeof *names);
    struct jinja_value *values =
        jinja_grow(&run->heap, args.values, args.n, args.n + 1, sizeof *values);
    names[args.n_named++] = "caller";
    values[args.n++] = make_macro(run, scope, node);
    args.names = names;
    args.values = values;
    jinja_print(run, node->at, run->out, jinja_call(run, function, &args));
}

/* ---- Loops ---- */

struct loop {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* around it */
    uint32_t depth;
};

static void run_loop(struct jinja_run *run, const struct loop *loop, struct jinja_value over);

/* loop.cycle(a, b, ...) */
static struct jinja_value cycle(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    const struct jinja_value *at = jinja_find_name(self->of.as.dict, "index0");
    if (args->n == 0)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there is nothing to cycle through");
    return args->values[at->as.whole % args->n];
}

/* loop.changed(a, ...): whether it was called with other values before. */
static struct jinja_value loop_changed(struct jinja_run *run, const struct jinja_function *self,
                                       const struct jinja_args *args)
{
    struct jinja_value now = jinja_list(run, JINJA_TUPLE, args->n);
    for (uint32_t i = 0; i < args->n; i++)
        jinja_append(run, now, args->values[i]);
    bool is = self->state->kind != JINJA_TUPLE || !jinja_equal(run, args->at, *self->state, now);
    *self->state = now;
    return jinja_bool(is);
}

/* loop(items), in a recursive loop. */
static struct jinja_value call_loop(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct loop inner = *(const struct loop *)self->data;
    struct jinja_builder text = {0}, *outer = run->out;
    inner.depth++;
    run->out = &text;
    run_loop(run, &inner, jinja_need(run, args, 0, NULL));
    run->out = outer;
    return jinja_built(run, &text);
}

/* The items that pass the loop's condition. */
static struct jinja_value filtered(struct jinja_run *run, const struct loop *loop,
                                   struct jinja_value items)
{
    const struct jinja_node *node = loop->node;
    if (!node->b)
        return items;
    struct jinja_value kept = jinja_list(run, JINJA_LIST, 0);
    for (uint32_t i = 0; i < items.as.list->n; i++) {
        struct jinja_scope *scope = jinja_scope(run, loop->scope);
        assign_value(run, scope, node->target, items.as.list->items[i]);
        if (jinja_true(jinja_evaluate(run, scope, node->b)))
            jinja_append(run, kept, items.as.list->items[i]);
    }
    return kept;
}

/* Makes the variable "loop" before its first turn. */
static struct jinja_value loop_variable(struct jinja_run *run, const struct loop *loop, uint32_t n)
{
    struct jinja_value v = jinja_dict(run, JINJA_LOOP);
    struct jinja_value has_changed = jinja_function(run, "changed", loop_changed, v, NULL);
    ((struct jinja_function *)has_changed.as.function)->state =
        jinja_take(&run->heap, 1, sizeof(struct jinja_value));
    jinja_set_name(run, v, "length", jinja_int(n));
    jinja_set_name(run, v, "depth", jinja_int(loop->depth + 1));
    jinja_set_name(run, v, "depth0", jinja_int(loop->depth));
    jinja_set_name(run, v, "cycle", jinja_function(run, "cycle", cycle, v, NULL));
    jinja_set_name(run, v, "changed", has_changed);
    if (loop->node->as.recursive) {
        struct loop *copy = jinja_take(&run->heap, 1, sizeof *copy);
        *copy = *loop;
        v.as.dict->calls = jinja_function(run, "loop", call_loop, jinja_none(), copy).as.function;
    }
    return v;
}

/* ... and sets it to item i. */
static void set_turn(struct jinja_run *run, struct jinja_value v, const struct jinja_list *list,
                     uint32_t i)
{
    uint32_t n = list->n;
    jinja_set_name(run, v, "index", jinja_int((int64_t)i + 1));
    jinja_set_name(run, v, "index0", jinja_int(i));
    jinja_set_name(run, v, "revindex", jinja_int(n - i));
    jinja_set_name(run, v, "revindex0", jinja_int(n - i - 1));
    jinja_set_name(run, v, "first", jinja_bool(i == 0));
    jinja_set_name(run, v, "last", jinja_bool(i + 1 == n));
    jinja_set_name(run, v, "previtem",
                   i > 0 ? list->items[i - 1] : jinja_undefined("there is no previous item"));
    jinja_set_name(run, v, "nextitem",
                   i + 1 < n ? list->items[i + 1] : jinja_undefined("there is no next item"));
}

static void run_loop(struct jinja_run *run, const struct loop *loop, struct jinja_value over)
{
    const struct jinja_node *node = loop->node;
    struct jinja_value items = filtered(run, loop, jinja_items(run, node->at, over));
    uint32_t n = items.as.list->n;
    struct jinja_value variable = loop_variable(run, loop, n);
    for (uint32_t i = 0; i < n; i++) {
        struct jinja_scope *scope = jinja_scope(run, loop->scope);
        jinja_step(run, node->at, 4);
        set_turn(run, variable, items.as.list, i);
        jinja_name(run, scope, "loop", variable);
        assign_value(run, scope, node->target, items.as.list->items[i]);
        if (execute_nodes(run, scope, node->body) == BREAK)
            break;
    }
    if (n == 0 && node->else_body)
        execute_nodes(run, jinja_scope(run, loop->scope), node->else_body);
}

/* ---- Every statement ---- */

static void with_block(struct jinja_run *run, struct jinja_scope *scope,
                       const struct jinja_node *node)
{
    struct jinja_scope *inner = jinja_scope(run, scope);
    for (uint32_t i = 0; i < node->n_items; i += 2)
        assign_value(run, inner, node->items[i], jinja_evaluate(run, scope, node->items[i + 1]));
    execute_nodes(run, inner, node->body);
}

static enum flow statement(struct jinja_run *run, struct jinja_scope *scope,
                           const struct jinja_node *node)
{
    struct jinja_value v;
    switch ((enum jinja_statement)node->kind) {
    case JINJA_S_DATA:
        jinja_add(run, run->out, node->text, node->n, false);
        break;
    case JINJA_S_PRINT:
        jinja_print(run, node->at, run->out, jinja_evaluate(run, scope, node->a));
        break;
    case JINJA_S_IF:
        return execute_nodes(run, scope,
                             jinja_true(jinja_evaluate(run, scope, node->a)) ? node->body
                                                                             : node->else_body);
    case JINJA_S_FOR: {
        const struct loop loop = {node, scope, 0};
        run_loop(run, &loop, jinja_evaluate(run, scope, node->a));
        break;
    }
    case JINJA_S_SET:
        assign_value(run, scope, node->target, jinja_evaluate(run, scope, node->a));
        break;
    case JINJA_S_CAPTURE:
        v = text_of(run, jinja_scope(run, scope), node->body);
        assign_value(run, scope, node->target, jinja_evaluate_filters(run, scope, node->a, v));
        break;
    case JINJA_S_MACRO:
        jinja_name(run, scope, node->text, make_macro(run, scope, node));
        break;
    case JINJA_S_CALL:
        call_block(run, scope, node);
        break;
    case JINJA_S_FILTER:
        v = text_of(run, jinja_scope(run, scope), node->body);
        jinja_print(run, node->at, run->out, jinja_evaluate_filters(run, scope, node->a, v));
        break;
    case JINJA_S_WITH:
        with_block(run, scope, node);
        break;
    case JINJA_S_SCOPE:
        return execute_nodes(run, jinja_scope(run, scope), node->body);
    case JINJA_S_BREAK:
        return BREAK;
    case JINJA_S_CONTINUE:
        return CONTINUE;
    }
    return GO_ON;
}

static enum flow execute_nodes(struct jinja_run *run, struct jinja_scope *scope,
                               const struct jinja_node *node)
{
    enum flow flow = GO_ON;
    for (; node && flow == GO_ON; node = node->next) {
        jinja_step(run, node->at, 1);
        flow = statement(run, scope, node);
    }
    return flow;
}

void jinja_execute(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *first)
{
    execute_nodes(run, scope, first);
}
