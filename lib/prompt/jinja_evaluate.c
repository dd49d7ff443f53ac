/* Evaluates expressions. */
#include <math.h>
#include <string.h>

#include "prompt/jinja_functions.h"
#include "prompt/jinja_render.h"
#include "prompt/jinja_value.h"

/* Enters a nested expression; the caller leaves it. */
static void go_deeper(struct jinja_run *run, const struct jinja_node *node)
{
    if (run->stack_left == 0)
        jinja_fail(&run->heap, node->at, MOE_ERR_LIMIT, "expressions are nested too deep");
    run->stack_left--;
}

/* ---- Names ---- */

struct jinja_scope *jinja_scope(struct jinja_run *run, struct jinja_scope *outer)
{
    struct jinja_scope *scope = jinja_take(&run->heap, 1, sizeof *scope);
    scope->outer = outer;
    return scope;
}

void jinja_name(struct jinja_run *run, struct jinja_scope *scope, const char *name,
                struct jinja_value value)
{
    for (uint32_t i = 0; i < scope->n; i++)
        if (strcmp(scope->names[i], name) == 0) {
            scope->values[i] = value;
            return;
        }
    if (scope->n == scope->room) {
        scope->room = scope->room ? 2 * scope->room : 4;
        scope->names =
            jinja_grow(&run->heap, scope->names, scope->n, scope->room, sizeof *scope->names);
        scope->values =
            jinja_grow(&run->heap, scope->values, scope->n, scope->room, sizeof *scope->values);
    }
    scope->names[scope->n] = name;
    scope->values[scope->n++] = value;
}

/* The value of a name; undefined if there is none. */
static struct jinja_value jinja_lookup(struct jinja_run *run, const struct jinja_scope *scope,
                                       const char *name)
{
    for (; scope; scope = scope->outer)
        for (uint32_t i = 0; i < scope->n; i++)
            if (strcmp(scope->names[i], name) == 0)
                return scope->values[i];
    for (const struct jinja_named *f = jinja_globals; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return jinja_function(run, f->name, f->call, jinja_none(), NULL);
    return jinja_undefined(name);
}

/* ---- Arithmetic ---- */

_Noreturn static void cannot(struct jinja_run *run, const struct jinja_node *node,
                             struct jinja_value a, struct jinja_value b)
{
    const struct jinja_value *missing = a.kind == JINJA_UNDEFINED   ? &a
                                        : b.kind == JINJA_UNDEFINED ? &b
                                                                    : NULL;
    if (missing)
        jinja_fail(&run->heap, node->at, MOE_ERR_FORMAT, "'%.60s' is undefined",
                   missing->as.missing ? missing->as.missing : "the value");
    jinja_fail(&run->heap, node->at, MOE_ERR_FORMAT, "'%s' has no meaning for a %s and a %s",
               node->text, jinja_kind_name(a), jinja_kind_name(b));
}

_Noreturn static void too_large(struct jinja_run *run, const struct jinja_node *node)
{
    jinja_fail(&run->heap, node->at, MOE_ERR_LIMIT, "the number is too large");
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a % b < 0) != (b < 0));
}

static int64_t whole_power(struct jinja_run *run, const struct jinja_node *node, int64_t a,
                           int64_t b)
{
    int64_t result = 1;
    if (a == 0 || a == 1 || a == -1)
        return b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a;
    for (int64_t i = 0; i < b; i++)
        if (__builtin_mul_overflow(result, a, &result))
            too_large(run, node);
    return result;
}

static struct jinja_value of_whole(struct jinja_run *run, const struct jinja_node *node, int64_t a,
                                   int64_t b)
{
    const char *op = node->text;
    int64_t result = 0;
    bool overflow = false;
    if (strchr("/%", op[0]) && b == 0)
        jinja_fail(&run->heap, node->at, MOE_ERR_FORMAT, "division by zero");
    if (strcmp(op, "/") == 0)
        return jinja_float((double)a / (double)b);
    if (strcmp(op, "**") == 0 && b < 0)
        return jinja_float(pow((double)a, (double)b));
    if (strcmp(op, "+") == 0)
        overflow = __builtin_add_overflow(a, b, &result);
    else if (strcmp(op, "-") == 0)
        overflow = __builtin_sub_overflow(a, b, &result);
    else if (strcmp(op, "*") == 0)
        overflow = __builtin_mul_overflow(a, b, &result);
    else if (strcmp(op, "**") == 0)
        result = whole_power(run, node, a, b);
    else if (b == -1)
        overflow = op[0] == '/' && __builtin_sub_overflow((int64_t)0, a, &result);
    else
        result = op[0] == '/' ? floor_divide(a, b) : a - floor_divide(a, b) * b;
    if (overflow)
        too_large(run, node);
    return jinja_int(result);
}

static struct jinja_value of_float(struct jinja_run *run, const struct jinja_node *node, double a,
                                   double b)
{
    const char *op = node->text;
    if (strchr("/%", op[0]) && b == 0)
        jinja_fail(&run->heap, node->at, MOE_ERR_FORMAT, "division by zero");
    if (strcmp(op, "+") == 0)
        return jinja_float(a + b);
    if (strcmp(op, "-") == 0)
        return jinja_float(a - b);
    if (strcmp(op, "*") == 0)
        return jinja_float(a * b);
    if (strcmp(op, "/") == 0)
        return jinja_float(a / b);
    if (strcmp(op, "//") == 0)
        return jinja_float(floor(a / b));
    if (strcmp(op, "**") == 0)
        return jinja_float(pow(a, b));
    double rest = fmod(a, b);
    return jinja_float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

/* Repeats a text or a list n times. */
static struct jinja_value repeat_value(struct jinja_run *run, const struct jinja_node *node,
                                       struct jinja_value v, int64_t n)
{
    struct jinja_builder b = {0};
    if (v.kind == JINJA_TEXT) {
        for (int64_t i = 0; i < n && v.as.text->n; i++) {
            jinja_step(run, node->at, 1);
            jinja_add_text(run, &b, v.as.text);
        }
        return jinja_built(run, &b);
    }
    struct jinja_value list = jinja_list(run, v.kind, 0);
    for (int64_t i = 0; i < n && v.as.list->n; i++) {
        jinja_step(run, node->at, v.as.list->n);
        for (uint32_t k = 0; k < v.as.list->n; k++)
            jinja_append(run, list, v.as.list->items[k]);
    }
    return list;
}

static struct jinja_value add_values(struct jinja_run *run, const struct jinja_node *node,
                                     struct jinja_value a, struct jinja_value b)
{
    struct jinja_builder both = {0};
    if (a.kind == JINJA_TEXT && b.kind == JINJA_TEXT) {
        jinja_step(run, node->at, (a.as.text->n + (uint64_t)b.as.text->n) / 256);
        bool safe = a.as.text->safe || b.as.text->safe;
        a = safe && !a.as.text->safe ? jinja_escape(run, a.as.text) : a;
        b = safe && !b.as.text->safe ? jinja_escape(run, b.as.text) : b;
        jinja_add_text(run, &both, a.as.text);
        jinja_add_text(run, &both, b.as.text);
        return safe ? jinja_built_safe(run, &both) : jinja_built(run, &both);
    }
    if (a.kind != b.kind || !jinja_is_sequence(a))
        cannot(run, node, a, b);
    struct jinja_value list = jinja_list(run, a.kind, a.as.list->n + b.as.list->n);
    jinja_step(run, node->at, (a.as.list->n + (uint64_t)b.as.list->n) / 16);
    for (uint32_t i = 0; i < a.as.list->n; i++)
        jinja_append(run, list, a.as.list->items[i]);
    for (uint32_t i = 0; i < b.as.list->n; i++)
        jinja_append(run, list, b.as.list->items[i]);
    return list;
}

static struct jinja_value arithmetic(struct jinja_run *run, const struct jinja_node *node,
                                     struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return of_whole(run, node, jinja_whole(a), jinja_whole(b));
    if (jinja_is_number(a) && jinja_is_number(b))
        return of_float(run, node, jinja_number(a), jinja_number(b));
    if (strcmp(node->text, "+") == 0)
        return add_values(run, node, a, b);
    if (strcmp(node->text, "%") == 0 && a.kind == JINJA_TEXT)
        return jinja_format(run, node->at, a.as.text, b);
    bool times = strcmp(node->text, "*") == 0;
    if (times && (a.kind == JINJA_TEXT || jinja_is_sequence(a)) && jinja_is_whole(b))
        return repeat_value(run, node, a, jinja_whole(b));
    if (times && (b.kind == JINJA_TEXT || jinja_is_sequence(b)) && jinja_is_whole(a))
        return repeat_value(run, node, b, jinja_whole(a));
    cannot(run, node, a, b);
}

static struct jinja_value signed_value(struct jinja_run *run, const struct jinja_node *node,
                                       struct jinja_value v)
{
    int64_t whole;
    if (!jinja_is_number(v))
        jinja_fail(&run->heap, node->at, MOE_ERR_FORMAT, "a value of type %s has no sign",
                   jinja_kind_name(v));
    if (node->kind == JINJA_E_POSITIVE)
        return jinja_is_whole(v) ? jinja_int(jinja_whole(v)) : v;
    if (v.kind == JINJA_FLOAT)
        return jinja_float(-v.as.number);
    if (__builtin_sub_overflow((int64_t)0, jinja_whole(v), &whole))
        too_large(run, node);
    return jinja_int(whole);
}

/* ---- Comparisons ---- */

static bool compare_values(struct jinja_run *run, struct jinja_place at, const char *op,
                           struct jinja_value a, struct jinja_value b)
{
    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0)
        return jinja_equal(run, at, a, b) == (op[0] == '=');
    if (strcmp(op, "in") == 0 || strcmp(op, "not in") == 0)
        return jinja_contains(run, at, b, a) == (op[0] == 'i');
    if ((a.kind == JINJA_FLOAT && isnan(a.as.number)) ||
        (b.kind == JINJA_FLOAT && isnan(b.as.number)))
        return false;
    int order = jinja_compare(run, at, a, b);
    return op[0] == '<' ? (op[1] ? order <= 0 : order < 0) : (op[1] ? order >= 0 : order > 0);
}

static struct jinja_value evaluate_comparison(struct jinja_run *run, struct jinja_scope *scope,
                                              const struct jinja_node *node)
{
    struct jinja_value left = jinja_evaluate(run, scope, node->a);
    for (uint32_t i = 0; i < node->n_items; i++) {
        struct jinja_value right = jinja_evaluate(run, scope, node->items[i]);
        if (!compare_values(run, node->at, node->texts[i], left, right))
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

/* ---- Calls ---- */

static void all_given(struct jinja_run *run, struct jinja_scope *scope, struct jinja_place at,
                      const struct jinja_given *given, struct jinja_value values)
{
    if (!given->all)
        return;
    struct jinja_value more = jinja_items(run, at, jinja_evaluate(run, scope, given->all));
    for (uint32_t i = 0; i < more.as.list->n; i++)
        jinja_append(run, values, more.as.list->items[i]);
}

/* Adds the members of **dictionary as named arguments. */
static const char **all_named(struct jinja_run *run, struct jinja_scope *scope,
                              struct jinja_place at, const struct jinja_given *given,
                              struct jinja_value values, uint32_t *n_named)
{
    const char **names = NULL;
    struct jinja_value dict =
        given->all_named ? jinja_evaluate(run, scope, given->all_named) : jinja_none();
    uint32_t n = dict.kind == JINJA_DICT ? dict.as.dict->n : 0;
    if (given->all_named && dict.kind != JINJA_DICT)
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "what follows '**' is no dictionary");
    names = jinja_grow(&run->heap, given->names, given->n_named, given->n_named + (uint64_t)n + 1,
                       sizeof *names);
    *n_named = given->n_named;
    for (uint32_t i = 0; i < n; i++) {
        struct jinja_value key = jinja_str(run, at, dict.as.dict->entries[i].key);
        char *name = jinja_take(&run->heap, key.as.text->n + 1, 1);
        memcpy(name, key.as.text->bytes, key.as.text->n);
        names[(*n_named)++] = name;
        jinja_append(run, values, dict.as.dict->entries[i].value);
    }
    return names;
}

struct jinja_args jinja_evaluate_args(struct jinja_run *run, struct jinja_scope *scope,
                                      struct jinja_place at, const struct jinja_given *given,
                                      const struct jinja_value *first)
{
    struct jinja_value values = jinja_list(run, JINJA_LIST, 0);
    struct jinja_args args = {.at = at};
    if (first)
        jinja_append(run, values, *first);
    uint32_t positional = given ? given->n - given->n_named : 0;
    for (uint32_t i = 0; i < positional; i++)
        jinja_append(run, values, jinja_evaluate(run, scope, given->values[i]));
    if (given) {
        all_given(run, scope, at, given, values);
        for (uint32_t i = positional; i < given->n; i++)
            jinja_append(run, values, jinja_evaluate(run, scope, given->values[i]));
        args.names = all_named(run, scope, at, given, values, &args.n_named);
    }
    args.n = values.as.list->n;
    args.values = values.as.list->items;
    return args;
}

struct jinja_value jinja_evaluate_filters(struct jinja_run *run, struct jinja_scope *scope,
                                          const struct jinja_node *node, struct jinja_value text)
{
    if (!node)
        return text;
    go_deeper(run, node);
    struct jinja_value of = node->a && node->a->kind != JINJA_E_FILTER
                                ? jinja_evaluate(run, scope, node->a)
                                : jinja_evaluate_filters(run, scope, node->a, text);
    run->stack_left++;
    struct jinja_args args = jinja_evaluate_args(run, scope, node->at, node->given, &of);
    return jinja_filter(run, node->text, &args);
}

static struct jinja_value evaluate_test(struct jinja_run *run, struct jinja_scope *scope,
                                        const struct jinja_node *node)
{
    struct jinja_value of = jinja_evaluate(run, scope, node->a);
    struct jinja_args args = jinja_evaluate_args(run, scope, node->at, node->given, &of);
    return jinja_bool(jinja_test(run, node->text, &args));
}

static struct jinja_value call_value(struct jinja_run *run, struct jinja_scope *scope,
                                     const struct jinja_node *node)
{
    struct jinja_value function = jinja_evaluate(run, scope, node->a);
    struct jinja_args args = jinja_evaluate_args(run, scope, node->at, node->given, NULL);
    return jinja_call(run, function, &args);
}

/* ---- Every expression ---- */

static struct jinja_value sequence(struct jinja_run *run, struct jinja_scope *scope,
                                   const struct jinja_node *node)
{
    struct jinja_value list =
        jinja_list(run, node->kind == JINJA_E_LIST ? JINJA_LIST : JINJA_TUPLE, node->n_items);
    for (uint32_t i = 0; i < node->n_items; i++)
        jinja_append(run, list, jinja_evaluate(run, scope, node->items[i]));
    return list;
}

static struct jinja_value dictionary(struct jinja_run *run, struct jinja_scope *scope,
                                     const struct jinja_node *node)
{
    struct jinja_value dict = jinja_dict(run, JINJA_DICT);
    for (uint32_t i = 0; i < node->n_items; i += 2)
        jinja_set(run, node->at, dict, jinja_evaluate(run, scope, node->items[i]),
                  jinja_evaluate(run, scope, node->items[i + 1]));
    return dict;
}

static struct jinja_value concatenate(struct jinja_run *run, struct jinja_scope *scope,
                                      const struct jinja_node *node)
{
    struct jinja_builder b = {0};
    for (uint32_t i = 0; i < node->n_items; i++)
        jinja_print(run, node->at, &b, jinja_evaluate(run, scope, node->items[i]));
    return jinja_built(run, &b);
}

static struct jinja_value jinja_slice(struct jinja_run *run, struct jinja_place at,
                                      struct jinja_value v, struct jinja_value begin,
                                      struct jinja_value end, struct jinja_value step);

static struct jinja_value slice(struct jinja_run *run, struct jinja_scope *scope,
                                const struct jinja_node *node)
{
    struct jinja_value of = jinja_evaluate(run, scope, node->a), parts[3];
    for (int i = 0; i < 3; i++)
        parts[i] = node->items[i] ? jinja_evaluate(run, scope, node->items[i]) : jinja_none();
    return jinja_slice(run, node->at, of, parts[0], parts[1], parts[2]);
}

static struct jinja_value conditional(struct jinja_run *run, struct jinja_scope *scope,
                                      const struct jinja_node *node)
{
    if (jinja_true(jinja_evaluate(run, scope, node->b)))
        return jinja_evaluate(run, scope, node->a);
    return node->c ? jinja_evaluate(run, scope, node->c)
                   : jinja_undefined("the value of an 'if' without 'else'");
}

static struct jinja_value evaluate_node(struct jinja_run *run, struct jinja_scope *scope,
                                        const struct jinja_node *node)
{
    struct jinja_value v;
    switch ((enum jinja_expression)node->kind) {
    case JINJA_E_NONE:
        return jinja_none();
    case JINJA_E_BOOL:
        return jinja_bool(node->as.truth);
    case JINJA_E_INT:
        return jinja_int(node->as.whole);
    case JINJA_E_FLOAT:
        return jinja_float(node->as.number);
    case JINJA_E_STRING:
        return jinja_text(run, node->text, node->n);
    case JINJA_E_NAME:
        return jinja_lookup(run, scope, node->text);
    case JINJA_E_LIST:
    case JINJA_E_TUPLE:
        return sequence(run, scope, node);
    case JINJA_E_DICT:
        return dictionary(run, scope, node);
    case JINJA_E_MEMBER:
        return jinja_member(run, node->at, jinja_evaluate(run, scope, node->a), node->text);
    case JINJA_E_SUBSCRIPT:
        v = jinja_evaluate(run, scope, node->a);
        return jinja_subscript(run, node->at, v, jinja_evaluate(run, scope, node->b));
    case JINJA_E_SLICE:
        return slice(run, scope, node);
    case JINJA_E_CALL:
        return call_value(run, scope, node);
    case JINJA_E_FILTER:
        return jinja_evaluate_filters(run, scope, node, jinja_none());
    case JINJA_E_TEST:
        return evaluate_test(run, scope, node);
    case JINJA_E_NOT:
        return jinja_bool(!jinja_true(jinja_evaluate(run, scope, node->a)));
    case JINJA_E_NEGATIVE:
    case JINJA_E_POSITIVE:
        return signed_value(run, node, jinja_evaluate(run, scope, node->a));
    case JINJA_E_AND:
        v = jinja_evaluate(run, scope, node->a);
        return jinja_true(v) ? jinja_evaluate(run, scope, node->b) : v;
    case JINJA_E_OR:
        v = jinja_evaluate(run, scope, node->a);
        return jinja_true(v) ? v : jinja_evaluate(run, scope, node->b);
    case JINJA_E_IF:
        return conditional(run, scope, node);
    case JINJA_E_COMPARE:
        return evaluate_comparison(run, scope, node);
    case JINJA_E_ARITHMETIC:
        v = jinja_evaluate(run, scope, node->a);
        return arithmetic(run, node, v, jinja_evaluate(run, scope, node->b));
    case JINJA_E_CONCAT:
        return concatenate(run, scope, node);
    }
    return jinja_none();
}

struct jinja_value jinja_evaluate(struct jinja_run *run, struct jinja_scope *scope,
                                  const struct jinja_node *node)
{
    jinja_step(run, node->at, 1);
    go_deeper(run, node);
    struct jinja_value v = evaluate_node(run, scope, node);
    run->stack_left++;
    return v;
}

/* Members, subscripts, slices and calls of values. */

_Noreturn static void undefined(struct jinja_run *run, struct jinja_place at, struct jinja_value v)
{
    jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "'%.60s' is undefined",
               v.as.missing ? v.as.missing : "the value");
}

struct jinja_value jinja_member(struct jinja_run *run, struct jinja_place at, struct jinja_value v,
                                const char *name)
{
    const struct jinja_value *there = NULL;
    if (v.kind == JINJA_UNDEFINED)
        undefined(run, at, v);
    if (v.kind == JINJA_NAMESPACE || v.kind == JINJA_LOOP) {
        there = jinja_find_name(v.as.dict, name);
        return there ? *there : jinja_undefined(name);
    }
    if (v.kind == JINJA_FUNCTION)
        return jinja_type_member(run, at, v, name);
    struct jinja_value method = jinja_method(run, at, v, name);
    if (method.kind != JINJA_UNDEFINED)
        return method;
    if (v.kind == JINJA_DICT) {
        jinja_step(run, at, v.as.dict->n / 8);
        there = jinja_find_name(v.as.dict, name);
    }
    return there ? *there : jinja_undefined(name);
}

/* The name of a text, for errors. */
static const char *name_of(struct jinja_run *run, struct jinja_value key)
{
    if (key.kind != JINJA_TEXT)
        return NULL;
    char *name = jinja_take(&run->heap, key.as.text->n + 1, 1);
    memcpy(name, key.as.text->bytes, key.as.text->n);
    return name;
}

static struct jinja_value item_of_text(struct jinja_run *run, struct jinja_place at,
                                       const struct jinja_text *text, int64_t i)
{
    jinja_step(run, at, text->n / 64 + 1);
    int64_t place = jinja_index(i, jinja_count(text, text->n));
    if (place < 0)
        return jinja_undefined(NULL);
    uint32_t begin = jinja_byte_of(text, (uint64_t)place);
    const struct jinja_text rest = {.bytes = text->bytes + begin, .n = text->n - begin};
    return jinja_part_of(run, text, begin, begin + jinja_byte_of(&rest, 1));
}

struct jinja_value jinja_subscript(struct jinja_run *run, struct jinja_place at,
                                   struct jinja_value v, struct jinja_value key)
{
    const struct jinja_value *there = NULL;
    struct jinja_value item;
    int64_t i;
    switch (v.kind) {
    case JINJA_UNDEFINED:
        undefined(run, at, v);
    case JINJA_DICT:
        there = jinja_find(run, at, v.as.dict, key);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        i = jinja_is_whole(key) ? jinja_index(jinja_whole(key), v.as.list->n) : -1;
        there = i < 0 ? NULL : &v.as.list->items[i];
        break;
    case JINJA_TEXT:
        if (jinja_is_whole(key))
            return item_of_text(run, at, v.as.text, jinja_whole(key));
        break;
    case JINJA_FUNCTION:
        item = jinja_type_item(run, v);
        there = item.kind == JINJA_UNDEFINED ? NULL : &item;
        break;
    default:
        break;
    }
    if (there || key.kind != JINJA_TEXT)
        return there ? *there : jinja_undefined(NULL);
    const char *name = name_of(run, key);
    if (v.kind == JINJA_DICT) { /* it can only be a method */
        struct jinja_value method = jinja_method(run, at, v, name);
        return method.kind == JINJA_UNDEFINED ? jinja_undefined(name) : method;
    }
    return jinja_member(run, at, v, name);
}

/* ---- Slices ---- */

static int64_t bound(struct jinja_run *run, struct jinja_place at, struct jinja_value v, int64_t n,
                     int64_t low, int64_t high, int64_t otherwise)
{
    if (v.kind == JINJA_NONE)
        return otherwise;
    if (!jinja_is_whole(v))
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a slice has whole numbers");
    int64_t i = jinja_whole(v);
    i = i < 0 ? i + n : i;
    return i < low ? low : i > high ? high : i;
}

/* A slice of a text or a list. */
struct slice {
    int64_t begin, end, step;
};

static struct jinja_value slice_text(struct jinja_run *run, struct jinja_place at,
                                     const struct jinja_text *text, const struct slice *s)
{
    struct jinja_builder b = {0};
    if (s->step == 1) {
        uint32_t begin = jinja_byte_of(text, (uint64_t)s->begin);
        uint32_t end = s->end > s->begin ? jinja_byte_of(text, (uint64_t)s->end) : begin;
        return jinja_part_of(run, text, begin, end);
    }
    struct jinja_value all = jinja_items(run, at, (struct jinja_value){JINJA_TEXT, {.text = text}});
    for (int64_t i = s->begin; s->step > 0 ? i < s->end : i > s->end; i += s->step)
        jinja_add_text(run, &b, all.as.list->items[i].as.text);
    return jinja_built(run, &b);
}

/* v[begin:end:step]; each may be None. */
static struct jinja_value jinja_slice(struct jinja_run *run, struct jinja_place at,
                                      struct jinja_value v, struct jinja_value begin,
                                      struct jinja_value end, struct jinja_value step)
{
    if (v.kind == JINJA_UNDEFINED)
        undefined(run, at, v);
    if (v.kind != JINJA_TEXT && !jinja_is_sequence(v)) /* unlike a subscript: Python slices it */
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "a value of type %s has no slices",
                   jinja_kind_name(v));
    int64_t n = jinja_length(run, at, v), by = 1;
    jinja_step(run, at, (uint64_t)n / 8 + 1);
    if (step.kind != JINJA_NONE)
        by = bound(run, at, step, 0, INT32_MIN, INT32_MAX, 1);
    if (by == 0)
        jinja_fail(&run->heap, at, MOE_ERR_FORMAT, "the step of a slice is zero");
    int64_t low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
    struct slice s = {.begin = bound(run, at, begin, n, low, high, by > 0 ? low : high),
                      .end = bound(run, at, end, n, low, high, by > 0 ? high : low),
                      .step = by};
    if (v.kind == JINJA_TEXT)
        return slice_text(run, at, v.as.text, &s);
    struct jinja_value list = jinja_list(run, v.kind, 0);
    for (int64_t i = s.begin; by > 0 ? i < s.end : i > s.end; i += by)
        jinja_append(run, list, v.as.list->items[i]);
    return list;
}

/* ---- Calls ---- */

struct jinja_value jinja_call(struct jinja_run *run, struct jinja_value function,
                              const struct jinja_args *args)
{
    const struct jinja_function *f = NULL;
    if (function.kind == JINJA_FUNCTION)
        f = function.as.function;
    else if (function.kind == JINJA_LOOP)
        f = function.as.dict->calls;
    if (function.kind == JINJA_UNDEFINED)
        undefined(run, args->at, function);
    if (!f)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "a value of type %s cannot be called",
                   jinja_kind_name(function));
    jinja_enter(run, args->at);
    jinja_step(run, args->at, 1);
    struct jinja_value result = f->call(run, f, args);
    jinja_leave(run);
    return result;
}
