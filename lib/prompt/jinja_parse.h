/*
 * A template as tokens (jinja_lex.c), and as a tree (jinja_parse.c).
 */
#ifndef MOE_PROMPT_JINJA_PARSE_H
#define MOE_PROMPT_JINJA_PARSE_H

#include <stdbool.h>
#include <stdint.h>

#include "prompt/jinja_value.h"

/*
 * Tokens of a template: text between tags, and the contents of tags. White space is trimmed by
 * trim_blocks, lstrip_blocks and the marks - and +.
 */

enum jinja_token_kind {
    JINJA_T_END, /* of the template */
    JINJA_T_DATA,
    JINJA_T_BLOCK_BEGIN, /* {% */
    JINJA_T_BLOCK_END,
    JINJA_T_PRINT_BEGIN, /* {{ */
    JINJA_T_PRINT_END,
    JINJA_T_NAME,
    JINJA_T_STRING,
    JINJA_T_INT,
    JINJA_T_FLOAT,
    JINJA_T_OPERATOR, /* its characters are the token's text */
};

struct jinja_token {
    enum jinja_token_kind kind;
    struct jinja_place at;
    const char *text; /* NUL-terminated; a string's without quotes and escapes */
    uint64_t n;
    double number;
    int64_t whole;
};

/* All tokens, ending with JINJA_T_END, in memory of the heap. */
struct jinja_token *jinja_lex(struct jinja_heap *heap, const char *source, uint64_t n);

/*
 * The tree.
 */

struct jinja_node;

/* Arguments as written. */
struct jinja_given {
    uint32_t n, n_named; /* all; named ones, which come last */
    struct jinja_node *const *values;
    const char *const *names;           /* [n_named] */
    struct jinja_node *all, *all_named; /* *list and **dictionary, or NULL */
};

enum jinja_expression {
    JINJA_E_NONE,
    JINJA_E_BOOL,
    JINJA_E_INT,
    JINJA_E_FLOAT,
    JINJA_E_STRING,
    JINJA_E_NAME,
    JINJA_E_LIST,      /* items */
    JINJA_E_TUPLE,     /* items */
    JINJA_E_DICT,      /* items: key, value, key, value, ... */
    JINJA_E_MEMBER,    /* a.text */
    JINJA_E_SUBSCRIPT, /* a[b] */
    JINJA_E_SLICE,     /* a[items 0:1:2]; each may be NULL */
    JINJA_E_CALL,      /* a(given) */
    JINJA_E_FILTER,    /* a|text(given); a NULL: applied to a block's text */
    JINJA_E_TEST,      /* a is text(given) */
    JINJA_E_NOT,
    JINJA_E_NEGATIVE,
    JINJA_E_POSITIVE,
    JINJA_E_AND,
    JINJA_E_OR,
    JINJA_E_IF,         /* a if b else c, which may be NULL */
    JINJA_E_COMPARE,    /* a, then (operator, item) ... : items, texts */
    JINJA_E_ARITHMETIC, /* a text b */
    JINJA_E_CONCAT,     /* items joined as texts */
};

enum jinja_statement {
    JINJA_S_DATA,    /* text */
    JINJA_S_PRINT,   /* a */
    JINJA_S_IF,      /* a: body, else_body */
    JINJA_S_FOR,     /* target in a if b: body, else_body */
    JINJA_S_SET,     /* target = a */
    JINJA_S_CAPTURE, /* target = the text of body, filtered by a (or NULL) */
    JINJA_S_MACRO,   /* text, parameters: body */
    JINJA_S_CALL,    /* a, a call that gets the body as its caller, with parameters */
    JINJA_S_FILTER,  /* body filtered by a */
    JINJA_S_WITH,    /* items: target, value, ...: body */
    JINJA_S_SCOPE,   /* body in a scope (generation) */
    JINJA_S_BREAK,
    JINJA_S_CONTINUE,
};

/* An expression or a statement; comments at its kind say which members it uses. */
struct jinja_node {
    int kind; /* enum jinja_expression or enum jinja_statement */
    struct jinja_place at;
    struct jinja_node *a, *b, *c;
    const char *text;
    uint64_t n; /* of text */
    union {
        bool truth;
        int64_t whole;
        double number;
        bool recursive; /* a loop's */
    } as;
    uint32_t n_items;
    struct jinja_node **items;
    const char **texts; /* a comparison's operators, one per item */
    struct jinja_given *given;
    struct jinja_node *target;           /* of a loop or an assignment: a name, a member, a tuple */
    struct jinja_node *body, *else_body; /* the first statement */
    struct jinja_node *next;             /* the statement after this one */
    uint32_t n_parameters;
    const char **parameters;
    struct jinja_node **defaults;                /* [n_parameters], NULL: none */
    bool uses_caller, uses_varargs, uses_kwargs; /* a macro's */
};

/* Parses a template into its first statement; NULL: it is empty. */
struct jinja_node *jinja_parse(struct jinja_heap *heap, const char *source, uint64_t n);

/* ---- The parser's state ---- */

enum { JINJA_MAX_NESTING = 150 };

struct jinja_parser {
    struct jinja_heap *heap;
    const struct jinja_token *token; /* the next one */
    uint32_t nesting;
    struct jinja_node *macro; /* the innermost macro being parsed; NULL: none */
};

struct jinja_node *jinja_node(struct jinja_parser *p, int kind, struct jinja_place at);

#endif
