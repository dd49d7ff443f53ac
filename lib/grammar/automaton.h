/*
 * Automaton: where an answer may be in a grammar, byte by byte. A place is the set of stacks of
 * calls that its bytes so far may have led to; places and the steps between them are made when they
 * are first wanted, and kept until they take too much memory. Then all but one are forgotten.
 * Belongs to one thread at a time.
 */
#ifndef MOE_GRAMMAR_AUTOMATON_H
#define MOE_GRAMMAR_AUTOMATON_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/machine.h"

enum {
    PLACE_DEAD = 0, /* no answer begins so */
    PLACE_UNKNOWN = UINT32_MAX,
    MAX_NODES = 1 << 15,      /* of all stacks; 24 bytes each */
    MAX_ITEMS = 1 << 16,      /* of all places: stacks; 4 bytes each */
    MAX_STEP_BYTES = 1 << 19, /* of the table of steps */
    MAX_STACKS = 4096,        /* of a place */
    MAX_VISITS = 4 << 20,     /* of states, for one mask */
};

struct automaton;

/* At the grammar's beginning; borrows it. */
int automaton_new(struct automaton **out, const struct moe_grammar *g, struct moe_err *err);
void automaton_free(struct automaton *a);
uint64_t automaton_bytes(void); /* that one takes at most */

/* The place where an answer begins. As the following: MOE_ERR_LIMIT where no room is left, or too
 * much was looked at since automaton_budget. */
int automaton_start(struct automaton *a, uint32_t *place);
/* Where a byte leads from a place; PLACE_DEAD: nowhere. */
int automaton_step(struct automaton *a, uint32_t from, uint8_t byte, uint32_t *place);
/* Begins another piece of work, with as many visits as there may be. */
void automaton_budget(struct automaton *a);
/* Whether that is what there was too little of. */
bool automaton_is_spent(const struct automaton *a);
/* Forgets all places but this, which gets another number. */
int automaton_keep(struct automaton *a, uint32_t *place);

/* Whether the answer may end here, and whether a byte can follow. */
bool automaton_ends(const struct automaton *a, uint32_t place);
bool automaton_goes_on(const struct automaton *a, uint32_t place);
/* Numbers of places are below. */
uint32_t automaton_n_places(const struct automaton *a);

#endif
