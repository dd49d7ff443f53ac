#include "jinja/parse.h"

#include <string.h>

static struct jinja_node *statements(struct jinja_parser *p, const char *const *until);

/* ---- Small things ---- */

static void end_of_tag(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_T_BLOCK_END)
        jinja_unexpected(p, "'%}'");
    p->token++;
}

/* The statements up to the tag that begins with a name of `until`, which is taken, and its name
 * given in *ended; the rest of that tag is not. */
static struct jinja_node *body(struct jinja_parser *p, const char *const *until, const char **ended)
{
    jinja_nest(p);
    struct jinja_node *first = statements(p, until);
    jinja_unnest(p);
    *ended = jinja_expect_name(p);
    return first;
}

/* ... to its only end. */
static struct jinja_node *body_to(struct jinja_parser *p, const char *end)
{
    const char *const until[] = {end, NULL}, *ended;
    struct jinja_node *first = body(p, until, &ended);
    end_of_tag(p);
    return first;
}

/* ---- Statements: each from its name on ---- */

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

/* Parameters of a macro, from "(" to ")". */
static void parameters(struct jinja_parser *p, struct jinja_node *node)
{
    jinja_expect(p, "(");
    while (!jinja_at(p, ")")) {
        uint32_t n = node->n_parameters++;
        node->parameters =
            jinja_grow(p->heap, node->parameters, n, n + 1, sizeof *node->parameters);
        node->defaults = jinja_grow(p->heap, node->defaults, n, n + 1, sizeof *node->defaults);
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

/* From "{%" on. */
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

static struct jinja_node *print(struct jinja_parser *p)
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

/* Up to the "{%" of a tag in `until` (NULL: to the template's end), which is taken. */
static struct jinja_node *statements(struct jinja_parser *p, const char *const *until)
{
    struct jinja_node *first = NULL, **last = &first;
    while (p->token->kind != JINJA_T_END) {
        if (until && ends_here(p, until)) {
            p->token++;
            return first;
        }
        *last = p->token->kind == JINJA_T_DATA          ? data(p)
                : p->token->kind == JINJA_T_PRINT_BEGIN ? print(p)
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
