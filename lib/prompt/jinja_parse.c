/* The parser of templates: statements, then expressions. */
#include "prompt/jinja_parse.h"

#include <string.h>

static struct jinja_node *jinja_expression(struct jinja_parser *p, bool with_if);
static struct jinja_node *jinja_tuple(struct jinja_parser *p, bool with_if);
static struct jinja_node *jinja_target(struct jinja_parser *p, bool with_member);

/*
 * Expressions, from the loosest operator to the tightest, nested as in Jinja's parser.
 */

/* ---- Small things ---- */

struct jinja_node *jinja_node(struct jinja_parser *p, int kind, struct jinja_place at)
{
    struct jinja_node *node = jinja_take(p->heap, 1, sizeof *node);
    node->kind = kind;
    node->at = at;
    return node;
}

/* Makes room for one item after n. Full arrays double: the heap keeps what they leave behind. */
static void *jinja_room(struct jinja_parser *p, const void *items, uint32_t n, uint64_t item_bytes)
{
    bool full = n == 0 || (n >= 4 && (n & (n - 1)) == 0);
    return full ? jinja_grow(p->heap, items, n, n ? 2 * (uint64_t)n : 4, item_bytes)
                : (void *)items;
}

static void jinja_push(struct jinja_parser *p, struct jinja_node *to, struct jinja_node *item)
{
    to->items = jinja_room(p, to->items, to->n_items, sizeof *to->items);
    to->items[to->n_items++] = item;
}

/* Whether the next token is this operator or name; `skip` also consumes it, `expect` fails without
 * it. */
static bool jinja_at(const struct jinja_parser *p, const char *text)
{
    return (p->token->kind == JINJA_T_OPERATOR || p->token->kind == JINJA_T_NAME) &&
           strcmp(p->token->text, text) == 0;
}

/* Whether the next token is this operator or name; `skip` also consumes it, `expect` fails without
 * it. */
static bool jinja_skip(struct jinja_parser *p, const char *text)
{
    bool is = jinja_at(p, text);
    p->token += is;
    return is;
}

/* Whether the next token is this operator or name; `skip` also consumes it, `expect` fails without
 * it. */
_Noreturn static void jinja_unexpected(struct jinja_parser *p, const char *wanted)
{
    static const char *const names[] = {[JINJA_T_END] = "the end of the template",
                                        [JINJA_T_DATA] = "text",
                                        [JINJA_T_BLOCK_BEGIN] = "'{%'",
                                        [JINJA_T_BLOCK_END] = "'%}'",
                                        [JINJA_T_PRINT_BEGIN] = "'{{'",
                                        [JINJA_T_PRINT_END] = "'}}'",
                                        [JINJA_T_NAME] = "",
                                        [JINJA_T_STRING] = "a string",
                                        [JINJA_T_INT] = "a number",
                                        [JINJA_T_FLOAT] = "a number",
                                        [JINJA_T_OPERATOR] = ""};
    const char *name = names[p->token->kind];
    if (*name)
        jinja_fail(p->heap, p->token->at, MOE_ERR_FORMAT, "expected %s, not %s", wanted, name);
    jinja_fail(p->heap, p->token->at, MOE_ERR_FORMAT, "expected %s, not '%.60s'", wanted,
               p->token->text);
}

static void jinja_expect(struct jinja_parser *p, const char *text)
{
    char wanted[32] = "'";
    strncat(wanted, text, sizeof wanted - 3);
    strcat(wanted, "'");
    if (!jinja_skip(p, text))
        jinja_unexpected(p, wanted);
}

static const char *jinja_expect_name(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_T_NAME)
        jinja_unexpected(p, "a name");
    return (p->token++)->text;
}

/* Enters a level of nesting, and leaves it. */
static void jinja_nest(struct jinja_parser *p)
{
    if (++p->nesting > JINJA_MAX_NESTING)
        jinja_fail(p->heap, p->token->at, MOE_ERR_LIMIT, "expressions and blocks nest too deep");
}

/* Enters a level of nesting, and leaves it. */
static void jinja_unnest(struct jinja_parser *p)
{
    p->nesting--;
}

/* ---- Literals and names ---- */

static struct jinja_node *constant(struct jinja_parser *p, int kind, bool truth)
{
    struct jinja_node *node = jinja_node(p, kind, p->token->at);
    node->as.truth = truth;
    p->token++;
    return node;
}

static void note_special(struct jinja_parser *p, const char *name)
{
    if (!p->macro)
        return;
    p->macro->uses_caller |= strcmp(name, "caller") == 0;
    p->macro->uses_varargs |= strcmp(name, "varargs") == 0;
    p->macro->uses_kwargs |= strcmp(name, "kwargs") == 0;
}

static struct jinja_node *parse_name(struct jinja_parser *p)
{
    const char *text = p->token->text;
    if (strcmp(text, "true") == 0 || strcmp(text, "True") == 0)
        return constant(p, JINJA_E_BOOL, true);
    if (strcmp(text, "false") == 0 || strcmp(text, "False") == 0)
        return constant(p, JINJA_E_BOOL, false);
    if (strcmp(text, "none") == 0 || strcmp(text, "None") == 0)
        return constant(p, JINJA_E_NONE, false);
    struct jinja_node *node = jinja_node(p, JINJA_E_NAME, p->token->at);
    node->text = text;
    note_special(p, text);
    p->token++;
    return node;
}

/* Joins adjacent strings. */
static struct jinja_node *string(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node(p, JINJA_E_STRING, p->token->at);
    uint64_t n = 0;
    for (const struct jinja_token *t = p->token; t->kind == JINJA_T_STRING; t++)
        n += t->n;
    char *text = jinja_take(p->heap, n + 1, 1);
    for (; p->token->kind == JINJA_T_STRING; p->token++) {
        memcpy(text + node->n, p->token->text, p->token->n);
        node->n += p->token->n;
    }
    node->text = text;
    return node;
}

static struct jinja_node *parse_number(struct jinja_parser *p)
{
    bool whole = p->token->kind == JINJA_T_INT;
    struct jinja_node *node = jinja_node(p, whole ? JINJA_E_INT : JINJA_E_FLOAT, p->token->at);
    if (whole)
        node->as.whole = p->token->whole;
    else
        node->as.number = p->token->number;
    p->token++;
    return node;
}

static struct jinja_node *parse_list(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node(p, JINJA_E_LIST, p->token->at);
    jinja_expect(p, "[");
    while (!jinja_at(p, "]")) {
        jinja_push(p, node, jinja_expression(p, true));
        if (!jinja_skip(p, ","))
            break;
    }
    jinja_expect(p, "]");
    return node;
}

static struct jinja_node *dict(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node(p, JINJA_E_DICT, p->token->at);
    jinja_expect(p, "{");
    while (!jinja_at(p, "}")) {
        jinja_push(p, node, jinja_expression(p, true));
        jinja_expect(p, ":");
        jinja_push(p, node, jinja_expression(p, true));
        if (!jinja_skip(p, ","))
            break;
    }
    jinja_expect(p, "}");
    return node;
}

/* Parses "(", nothing or expressions, ")". */
static struct jinja_node *parentheses(struct jinja_parser *p)
{
    struct jinja_node *node;
    struct jinja_place at = p->token->at;
    jinja_expect(p, "(");
    node = jinja_at(p, ")") ? jinja_node(p, JINJA_E_TUPLE, at) : jinja_tuple(p, true);
    jinja_expect(p, ")");
    return node;
}

static struct jinja_node *primary(struct jinja_parser *p)
{
    switch (p->token->kind) {
    case JINJA_T_NAME:
        return parse_name(p);
    case JINJA_T_STRING:
        return string(p);
    case JINJA_T_INT:
    case JINJA_T_FLOAT:
        return parse_number(p);
    default:
        break;
    }
    if (jinja_at(p, "("))
        return parentheses(p);
    if (jinja_at(p, "["))
        return parse_list(p);
    if (jinja_at(p, "{"))
        return dict(p);
    jinja_unexpected(p, "a value");
}

/* ---- After a value ---- */

/* Parses a call's arguments, from "(" to ")". */
static struct jinja_given *arguments(struct jinja_parser *p)
{
    struct jinja_given *given = jinja_take(p->heap, 1, sizeof *given);
    struct jinja_node values = {0};
    const char **names = NULL;
    jinja_expect(p, "(");
    while (!jinja_at(p, ")")) {
        struct jinja_place at = p->token->at;
        bool named = p->token->kind == JINJA_T_NAME && p->token[1].kind == JINJA_T_OPERATOR &&
                     strcmp(p->token[1].text, "=") == 0;
        if (jinja_skip(p, "**")) {
            given->all_named = jinja_expression(p, true);
        } else if (jinja_skip(p, "*")) {
            given->all = jinja_expression(p, true);
        } else if (named) {
            names = jinja_room(p, names, given->n_named, sizeof *names);
            names[given->n_named++] = jinja_expect_name(p);
            jinja_expect(p, "=");
            jinja_push(p, &values, jinja_expression(p, true));
        } else if (given->n_named || given->all || given->all_named) {
            jinja_fail(p->heap, at, MOE_ERR_FORMAT, "arguments with names come last");
        } else {
            jinja_push(p, &values, jinja_expression(p, true));
        }
        if (!jinja_skip(p, ","))
            break;
    }
    jinja_expect(p, ")");
    given->n = values.n_items;
    given->values = values.items;
    given->names = names;
    return given;
}

static struct jinja_node *call(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *node = jinja_node(p, JINJA_E_CALL, p->token->at);
    node->a = of;
    node->given = arguments(p);
    return node;
}

static struct jinja_node *parse_member(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_place at = p->token->at;
    jinja_expect(p, ".");
    struct jinja_node *node =
        jinja_node(p, p->token->kind == JINJA_T_NAME ? JINJA_E_MEMBER : JINJA_E_SUBSCRIPT, at);
    node->a = of;
    if (p->token->kind == JINJA_T_INT)
        node->b = parse_number(p);
    else
        node->text = jinja_expect_name(p);
    return node;
}

/* Parses one of the expressions between colons; NULL: omitted. */
static struct jinja_node *slice_part(struct jinja_parser *p)
{
    return jinja_at(p, ":") || jinja_at(p, "]") || jinja_at(p, ",") ? NULL
                                                                    : jinja_expression(p, true);
}

static struct jinja_node *subscript(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_place at = p->token->at;
    jinja_expect(p, "[");
    struct jinja_node *first = slice_part(p), *node;
    if (jinja_at(p, ":")) {
        node = jinja_node(p, JINJA_E_SLICE, at);
        jinja_push(p, node, first);
        jinja_expect(p, ":");
        jinja_push(p, node, slice_part(p));
        jinja_push(p, node, jinja_skip(p, ":") ? slice_part(p) : NULL);
    } else {
        if (!first)
            jinja_unexpected(p, "a subscript");
        node = jinja_node(p, JINJA_E_SUBSCRIPT, at);
        node->b = first;
    }
    node->a = of;
    jinja_expect(p, "]");
    return node;
}

static struct jinja_node *postfix(struct jinja_parser *p, struct jinja_node *of)
{
    for (;;) {
        if (jinja_at(p, "."))
            of = parse_member(p, of);
        else if (jinja_at(p, "["))
            of = subscript(p, of);
        else if (jinja_at(p, "("))
            of = call(p, of);
        else
            return of;
    }
}

/* Parses the name of a filter or test, which may have dots. */
static const char *dotted(struct jinja_parser *p)
{
    const char *first = jinja_expect_name(p);
    if (jinja_at(p, "."))
        jinja_fail(p->heap, p->token->at, MOE_ERR_FORMAT, "there is no such filter or test");
    return first;
}

/* Parses filters on `of`, from "|" on; NULL: on a block's text, from the first filter's name on. */
static struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *of, bool begun)
{
    while (begun || jinja_skip(p, "|")) {
        struct jinja_node *node = jinja_node(p, JINJA_E_FILTER, p->token->at);
        begun = false;
        node->a = of;
        node->text = dotted(p);
        if (jinja_at(p, "("))
            node->given = arguments(p);
        of = node;
    }
    return of;
}

/* Whether a test has an argument without parentheses. */
static bool bare_argument(const struct jinja_parser *p)
{
    switch (p->token->kind) {
    case JINJA_T_STRING:
    case JINJA_T_INT:
    case JINJA_T_FLOAT:
        return true;
    case JINJA_T_NAME:
        return !jinja_at(p, "else") && !jinja_at(p, "or") && !jinja_at(p, "and") &&
               !jinja_at(p, "is") && !jinja_at(p, "if") && !jinja_at(p, "not") &&
               !jinja_at(p, "in");
    default:
        return jinja_at(p, "[") || jinja_at(p, "{");
    }
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *node = jinja_node(p, JINJA_E_TEST, p->token->at), *not_ = NULL;
    jinja_expect(p, "is");
    if (jinja_at(p, "not")) {
        not_ = jinja_node(p, JINJA_E_NOT, p->token->at);
        p->token++;
    }
    node->a = of;
    node->text = dotted(p);
    if (jinja_at(p, "(")) {
        node->given = arguments(p);
    } else if (bare_argument(p)) {
        struct jinja_node values = {0};
        jinja_push(p, &values, postfix(p, primary(p)));
        node->given = jinja_take(p->heap, 1, sizeof *node->given);
        *node->given = (struct jinja_given){.n = 1, .values = values.items};
    }
    if (!not_)
        return node;
    not_->a = node;
    return not_;
}

/* ---- Operators ---- */

static struct jinja_node *unary(struct jinja_parser *p, bool with_filters)
{
    struct jinja_node *node;
    jinja_nest(p);
    if (jinja_at(p, "-") || jinja_at(p, "+")) {
        node = jinja_node(p, jinja_at(p, "-") ? JINJA_E_NEGATIVE : JINJA_E_POSITIVE, p->token->at);
        p->token++;
        node->a = unary(p, false);
    } else {
        node = primary(p);
    }
    node = postfix(p, node);
    while (with_filters && (jinja_at(p, "|") || jinja_at(p, "is") || jinja_at(p, "(")))
        node = jinja_at(p, "|")    ? jinja_filters(p, node, false)
               : jinja_at(p, "is") ? parse_test(p, node)
                                   : call(p, node);
    jinja_unnest(p);
    return node;
}

/* Parses a OP b OP c, from the left; `operators` ends with NULL. */
static struct jinja_node *left_to_right(struct jinja_parser *p, const char *const *operators,
                                        struct jinja_node *(*operand)(struct jinja_parser *))
{
    struct jinja_node *left = operand(p);
    for (int i = 0; operators[i]; i++) {
        if (!jinja_at(p, operators[i]))
            continue;
        struct jinja_node *node = jinja_node(p, JINJA_E_ARITHMETIC, p->token->at);
        node->text = operators[i];
        p->token++;
        node->a = left;
        node->b = operand(p);
        left = node;
        i = -1;
    }
    return left;
}

static struct jinja_node *operand_of_power(struct jinja_parser *p)
{
    return unary(p, true);
}

static struct jinja_node *parse_power(struct jinja_parser *p)
{
    static const char *const operators[] = {"**", NULL};
    return left_to_right(p, operators, operand_of_power);
}

static struct jinja_node *product(struct jinja_parser *p)
{
    static const char *const operators[] = {"*", "/", "//", "%", NULL};
    return left_to_right(p, operators, parse_power);
}

static struct jinja_node *concatenation(struct jinja_parser *p)
{
    struct jinja_node *first = product(p);
    if (!jinja_at(p, "~"))
        return first;
    struct jinja_node *node = jinja_node(p, JINJA_E_CONCAT, p->token->at);
    jinja_push(p, node, first);
    while (jinja_skip(p, "~"))
        jinja_push(p, node, product(p));
    return node;
}

static struct jinja_node *parse_sum(struct jinja_parser *p)
{
    static const char *const operators[] = {"+", "-", NULL};
    return left_to_right(p, operators, concatenation);
}

/* Consumes a comparison operator and returns it; NULL: none. */
static const char *comparison_operator(struct jinja_parser *p)
{
    static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">", "in", NULL};
    for (int i = 0; operators[i]; i++)
        if (jinja_skip(p, operators[i]))
            return operators[i];
    if (jinja_at(p, "not") && p->token[1].kind == JINJA_T_NAME &&
        strcmp(p->token[1].text, "in") == 0) {
        p->token += 2;
        return "not in";
    }
    return NULL;
}

static struct jinja_node *comparison(struct jinja_parser *p)
{
    struct jinja_place at = p->token->at;
    struct jinja_node *first = parse_sum(p), *node = NULL;
    const char *operator;
    while ((operator= comparison_operator(p)) != NULL) {
        if (!node) {
            node = jinja_node(p, JINJA_E_COMPARE, at);
            node->a = first;
        }
        node->texts = jinja_room(p, node->texts, node->n_items, sizeof *node->texts);
        node->texts[node->n_items] = operator;
        jinja_push(p, node, parse_sum(p));
    }
    return node ? node : first;
}

static struct jinja_node *negation(struct jinja_parser *p)
{
    if (!jinja_at(p, "not"))
        return comparison(p);
    struct jinja_node *node = jinja_node(p, JINJA_E_NOT, p->token->at);
    p->token++;
    jinja_nest(p);
    node->a = negation(p);
    jinja_unnest(p);
    return node;
}

static struct jinja_node *both(struct jinja_parser *p)
{
    struct jinja_node *left = negation(p);
    while (jinja_at(p, "and")) {
        struct jinja_node *node = jinja_node(p, JINJA_E_AND, p->token->at);
        p->token++;
        node->a = left;
        node->b = negation(p);
        left = node;
    }
    return left;
}

static struct jinja_node *either(struct jinja_parser *p)
{
    struct jinja_node *left = both(p);
    while (jinja_at(p, "or")) {
        struct jinja_node *node = jinja_node(p, JINJA_E_OR, p->token->at);
        p->token++;
        node->a = left;
        node->b = both(p);
        left = node;
    }
    return left;
}

/* Parses an expression; with_if: it may be "a if b else c". */
static struct jinja_node *jinja_expression(struct jinja_parser *p, bool with_if)
{
    jinja_nest(p);
    struct jinja_node *value = either(p);
    while (with_if && jinja_at(p, "if")) {
        struct jinja_node *node = jinja_node(p, JINJA_E_IF, p->token->at);
        p->token++;
        node->a = value;
        node->b = either(p);
        if (jinja_skip(p, "else"))
            node->c = jinja_expression(p, true);
        value = node;
    }
    jinja_unnest(p);
    return value;
}

/* Whether no expression can begin here. */
static bool ends(const struct jinja_parser *p)
{
    return p->token->kind == JINJA_T_BLOCK_END || p->token->kind == JINJA_T_PRINT_END ||
           jinja_at(p, ")") || jinja_at(p, "]") || jinja_at(p, "}");
}

/* ... or a tuple without parentheses. */
static struct jinja_node *jinja_tuple(struct jinja_parser *p, bool with_if)
{
    struct jinja_place at = p->token->at;
    struct jinja_node *first = jinja_expression(p, with_if);
    if (!jinja_at(p, ","))
        return first;
    struct jinja_node *node = jinja_node(p, JINJA_E_TUPLE, at);
    jinja_push(p, node, first);
    while (jinja_skip(p, ",") && !ends(p))
        jinja_push(p, node, jinja_expression(p, with_if));
    return node;
}

static struct jinja_node *one_target(struct jinja_parser *p)
{
    if (jinja_at(p, "(")) {
        p->token++;
        struct jinja_node *inner = jinja_target(p, false);
        jinja_expect(p, ")");
        return inner;
    }
    struct jinja_node *node = jinja_node(p, JINJA_E_NAME, p->token->at);
    node->text = jinja_expect_name(p);
    return node;
}

/* Parses what can be assigned to: names, a member (of a namespace), or a tuple of names. */
static struct jinja_node *jinja_target(struct jinja_parser *p, bool with_member)
{
    struct jinja_place at = p->token->at;
    jinja_nest(p);
    struct jinja_node *first = one_target(p), *node = first;
    if (with_member && jinja_at(p, ".")) {
        node = parse_member(p, first);
        if (node->kind != JINJA_E_MEMBER)
            jinja_fail(p->heap, at, MOE_ERR_FORMAT, "this cannot be assigned to");
    } else if (jinja_at(p, ",")) {
        node = jinja_node(p, JINJA_E_TUPLE, at);
        jinja_push(p, node, first);
        while (jinja_skip(p, ",") && !jinja_at(p, "in") && !jinja_at(p, "=") && !ends(p))
            jinja_push(p, node, one_target(p));
    }
    jinja_unnest(p);
    return node;
}

/* ---- Small things ---- */

static void end_of_tag(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_T_BLOCK_END)
        jinja_unexpected(p, "'%}'");
    p->token++;
}

static struct jinja_node *statements(struct jinja_parser *p, const char *const *until);

/* Parses statements up to the tag that begins with a name of `until`, consumes that name and
 * returns it in *ended; the rest of the tag remains. */
static struct jinja_node *body(struct jinja_parser *p, const char *const *until, const char **ended)
{
    jinja_nest(p);
    struct jinja_node *first = statements(p, until);
    jinja_unnest(p);
    *ended = jinja_expect_name(p);
    return first;
}

/* ... to a single end. */
static struct jinja_node *body_to(struct jinja_parser *p, const char *end)
{
    const char *const until[] = {end, NULL}, *ended;
    struct jinja_node *first = body(p, until, &ended);
    end_of_tag(p);
    return first;
}

/* ---- Statements, after their name ---- */

/* {% if a %} body {% elif b %} ... {% else %} ... {% endif %} */
static struct jinja_node *if_statement(struct jinja_parser *p, struct jinja_place at)
{
    static const char *const until[] = {"elif", "else", "endif", NULL};
    struct jinja_node *node = jinja_node(p, JINJA_S_IF, at);
    const char *ended;
    node->a = jinja_tuple(p, false);
    if (node->a->kind != JINJA_E_TUPLE && jinja_at(p, "if"))
        jinja_unexpected(p, "'%}'");
    end_of_tag(p);
    node->body = body(p, until, &ended);
    if (strcmp(ended, "elif") == 0) {
        jinja_nest(p);
        node->else_body = if_statement(p, p->token->at);
        jinja_unnest(p);
        return node;
    }
    end_of_tag(p);
    if (strcmp(ended, "else") == 0)
        node->else_body = body_to(p, "endif");
    return node;
}

/* {% for target in a if b recursive %} body {% else %} ... {% endfor %} */
static struct jinja_node *for_statement(struct jinja_parser *p, struct jinja_place at)
{
    static const char *const until[] = {"else", "endfor", NULL};
    struct jinja_node *node = jinja_node(p, JINJA_S_FOR, at);
    const char *ended;
    node->target = jinja_target(p, false);
    jinja_expect(p, "in");
    node->a = jinja_tuple(p, false);
    if (jinja_skip(p, "if"))
        node->b = jinja_expression(p, true);
    node->as.recursive = jinja_skip(p, "recursive");
    end_of_tag(p);
    node->body = body(p, until, &ended);
    end_of_tag(p);
    if (strcmp(ended, "else") == 0)
        node->else_body = body_to(p, "endfor");
    return node;
}

/* {% set target = a %}, or {% set target | filters %} body {% endset %} */
static struct jinja_node *set_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *target = jinja_target(p, true);
    bool assigned = jinja_skip(p, "=");
    struct jinja_node *node = jinja_node(p, assigned ? JINJA_S_SET : JINJA_S_CAPTURE, at);
    node->target = target;
    if (assigned)
        node->a = jinja_tuple(p, true);
    else if (jinja_at(p, "|"))
        node->a = jinja_filters(p, NULL, false);
    end_of_tag(p);
    if (!assigned)
        node->body = body_to(p, "endset");
    return node;
}

/* Parses a macro's parameters, from "(" to ")". */
static void parameters(struct jinja_parser *p, struct jinja_node *node)
{
    jinja_expect(p, "(");
    while (!jinja_at(p, ")")) {
        uint32_t n = node->n_parameters++;
        node->parameters = jinja_room(p, node->parameters, n, sizeof *node->parameters);
        node->defaults = jinja_room(p, node->defaults, n, sizeof *node->defaults);
        node->parameters[n] = jinja_expect_name(p);
        if (jinja_skip(p, "="))
            node->defaults[n] = jinja_expression(p, true);
        else if (n > 0 && node->defaults[n - 1])
            jinja_unexpected(p, "a default");
        if (!jinja_skip(p, ","))
            break;
    }
    jinja_expect(p, ")");
}

static void macro_body(struct jinja_parser *p, struct jinja_node *node, const char *end)
{
    struct jinja_node *outer = p->macro;
    p->macro = node;
    end_of_tag(p);
    node->body = body_to(p, end);
    p->macro = outer;
}

static struct jinja_node *macro_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_MACRO, at);
    node->text = jinja_expect_name(p);
    parameters(p, node);
    macro_body(p, node, "endmacro");
    return node;
}

/* {% call(parameters) macro(...) %} body {% endcall %} */
static struct jinja_node *call_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_CALL, at);
    node->text = "caller";
    if (jinja_at(p, "("))
        parameters(p, node);
    node->a = jinja_expression(p, false);
    if (node->a->kind != JINJA_E_CALL)
        jinja_fail(p->heap, at, MOE_ERR_FORMAT, "'call' expects a call");
    macro_body(p, node, "endcall");
    return node;
}

static struct jinja_node *filter_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_FILTER, at);
    node->a = jinja_filters(p, NULL, true);
    end_of_tag(p);
    node->body = body_to(p, "endfilter");
    return node;
}

static struct jinja_node *with_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_WITH, at);
    while (p->token->kind != JINJA_T_BLOCK_END) {
        if (node->n_items)
            jinja_expect(p, ",");
        struct jinja_node *target = jinja_node(p, JINJA_E_NAME, p->token->at);
        target->text = jinja_expect_name(p);
        jinja_expect(p, "=");
        jinja_push(p, node, target);
        jinja_push(p, node, jinja_expression(p, true));
    }
    end_of_tag(p);
    node->body = body_to(p, "endwith");
    return node;
}

static struct jinja_node *generation_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_SCOPE, at);
    end_of_tag(p);
    node->body = body_to(p, "endgeneration");
    return node;
}

static struct jinja_node *break_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_BREAK, at);
    end_of_tag(p);
    return node;
}

static struct jinja_node *continue_statement(struct jinja_parser *p, struct jinja_place at)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_CONTINUE, at);
    end_of_tag(p);
    return node;
}

static const struct {
    const char *name;
    struct jinja_node *(*parse)(struct jinja_parser *p, struct jinja_place at);
} kinds[] = {
    {"if", if_statement},       {"for", for_statement},
    {"set", set_statement},     {"macro", macro_statement},
    {"call", call_statement},   {"filter", filter_statement},
    {"with", with_statement},   {"generation", generation_statement},
    {"break", break_statement}, {"continue", continue_statement},
};

/* Parses a block from "{%" on. */
static struct jinja_node *block(struct jinja_parser *p)
{
    struct jinja_place at = p->token->at;
    p->token++;
    const char *name = p->token->kind == JINJA_T_NAME ? p->token->text : "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(name, kinds[i].name) == 0) {
            p->token++;
            return kinds[i].parse(p, at);
        }
    static const char *const refused[] = {"include", "import",     "from", "extends", "block",
                                          "trans",   "autoescape", "do",   "debug",   NULL};
    for (int i = 0; refused[i]; i++)
        if (strcmp(name, refused[i]) == 0)
            jinja_fail(p->heap, at, MOE_ERR_UNSUPPORTED, "chat templates cannot have '%s'", name);
    jinja_unexpected(p, "the name of a statement");
}

static bool ends_here(const struct jinja_parser *p, const char *const *until)
{
    if (p->token->kind != JINJA_T_BLOCK_BEGIN || p->token[1].kind != JINJA_T_NAME)
        return false;
    for (int i = 0; until[i]; i++)
        if (strcmp(p->token[1].text, until[i]) == 0)
            return true;
    return false;
}

static struct jinja_node *parse_print(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_PRINT, p->token->at);
    p->token++;
    node->a = jinja_tuple(p, true);
    if (p->token->kind != JINJA_T_PRINT_END)
        jinja_unexpected(p, "'}}'");
    p->token++;
    return node;
}

static struct jinja_node *data(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node(p, JINJA_S_DATA, p->token->at);
    node->text = p->token->text;
    node->n = p->token->n;
    p->token++;
    return node;
}

/* Parses up to the "{%" of a tag in `until` (NULL: to the template's end) and consumes it. */
static struct jinja_node *statements(struct jinja_parser *p, const char *const *until)
{
    struct jinja_node *first = NULL, **last = &first;
    while (p->token->kind != JINJA_T_END) {
        if (until && ends_here(p, until)) {
            p->token++;
            return first;
        }
        *last = p->token->kind == JINJA_T_DATA          ? data(p)
                : p->token->kind == JINJA_T_PRINT_BEGIN ? parse_print(p)
                                                        : block(p);
        last = &(*last)->next;
    }
    if (until)
        jinja_fail(p->heap, p->token->at, MOE_ERR_FORMAT,
                   "the template ends where '{%% %s %%}' is expected", until[0]);
    return first;
}

struct jinja_node *jinja_parse(struct jinja_heap *heap, const char *source, uint64_t n)
{
    struct jinja_parser p = {.heap = heap, .token = jinja_lex(heap, source, n)};
    return statements(&p, NULL);
}
