/*
 * The parser's state, shared by statements (parse.c) and expressions (parse_expression.c). Private
 * to this floor.
 */
#ifndef MOE_JINJA_PARSE_H
#define MOE_JINJA_PARSE_H

#include "jinja/ast.h"
#include "jinja/lex.h"

enum { JINJA_MAX_NESTING = 150 };

struct jinja_parser {
    struct jinja_heap *heap;
    const struct jinja_token *token; /* the next one */
    uint32_t nesting;
    struct jinja_node *macro; /* that is being parsed, innermost; NULL: none */
};

struct jinja_node *jinja_node(struct jinja_parser *p, int kind, struct jinja_place at);
void jinja_push(struct jinja_parser *p, struct jinja_node *to, struct jinja_node *item);
/* Whether the next token is this operator, or this name; `skip` takes it if so, `expect` or fails.
 */
bool jinja_at(const struct jinja_parser *p, const char *text);
bool jinja_skip(struct jinja_parser *p, const char *text);
void jinja_expect(struct jinja_parser *p, const char *text);
const char *jinja_expect_name(struct jinja_parser *p);
_Noreturn void jinja_unexpected(struct jinja_parser *p, const char *wanted);
/* One level deeper, and back. */
void jinja_nest(struct jinja_parser *p);
void jinja_unnest(struct jinja_parser *p);

/* An expression; with_if: it may be "a if b else c". */
struct jinja_node *jinja_expression(struct jinja_parser *p, bool with_if);
/* ... or a tuple without parentheses. */
struct jinja_node *jinja_tuple(struct jinja_parser *p, bool with_if);
/* What can be assigned to: names, a member (of a namespace), or a tuple of names. */
struct jinja_node *jinja_target(struct jinja_parser *p, bool with_member);
/* Filters on `of`, from "|" on; NULL: of a block's text, from the first filter's name on. */
struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *of, bool begun);

#endif
