/* GBNF's text: places, blanks, characters. */
#ifndef MOE_GRAMMAR_GBNF_TEXT_H
#define MOE_GRAMMAR_GBNF_TEXT_H

#include "grammar/automaton_internal.h"

struct reader {
    struct moe_grammar *g;
    const char *name;
    const char *text, *end, *at;
    const char *seen; /* a place with known line and column; NULL: none */
    uint32_t line, column;
    struct range *ranges; /* of the class being read */
    uint32_t ranges_room;
    int depth;
    struct moe_err *err;
};

/* Line and column, in characters, of a place in the text, both from 1. */
void gbnf_place(struct reader *r, const char *at, uint32_t *line, uint32_t *column);
/* Fails with that place in front; gbnf_wrong: with the reader's place, or that the text ends. */
int gbnf_fail(struct reader *r, const char *at, int status, const char *what);
int gbnf_wrong(struct reader *r, const char *what);
/* Skips blanks and comments; also newlines if a rule may continue after them. */
void gbnf_skip(struct reader *r, bool newlines);
/* Reads a character of a literal or a class, perhaps escaped. */
int gbnf_character(struct reader *r, uint32_t *c);

static inline bool is_at(const struct reader *r, char c)
{
    return r->at < r->end && *r->at == c;
}

#endif
