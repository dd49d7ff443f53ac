/*
 * Tokens of a template: text between tags, and the contents of tags. White space is trimmed by
 * trim_blocks, lstrip_blocks and the marks - and +.
 */
#ifndef MOE_PROMPT_JINJA_LEX_H
#define MOE_PROMPT_JINJA_LEX_H

#include <stdbool.h>

#include "prompt/jinja_value.h"

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

#endif
