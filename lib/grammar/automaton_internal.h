/*
 * Machine: a grammar in the form that runs. Each rule is a piece of a list of states, which read
 * bytes, split, jump, call a rule or end theirs; a state is followed by the next in the list.
 * Characters are their UTF-8, so that a token may end within one.
 */
#ifndef MOE_GRAMMAR_AUTOMATON_INTERNAL_H
#define MOE_GRAMMAR_AUTOMATON_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/constraint.h"
#include "grammar/grammar.h"

enum state_kind {
    STATE_BYTES, /* reads a byte of set a */
    STATE_SPLIT, /* continues at a and at b */
    STATE_JUMP,  /* continues at a */
    STATE_CALL,  /* calls rule a, then continues */
    STATE_END,   /* the rule ends */
};

struct state {
    uint32_t kind; /* enum state_kind */
    uint32_t a, b;
};

struct byte_set {
    uint64_t bits[4];
};

struct rule {
    char *name;
    uint32_t start;        /* its first state */
    uint32_t line, column; /* of the definition, or of the first use */
    bool defined;
};

enum { MAX_SETS = 1 << 10 };

struct moe_grammar {
    struct state *states;
    uint32_t n_states, states_room;
    struct byte_set *sets;
    uint32_t n_sets, sets_room;
    struct rule *rules;
    uint32_t n_rules, rules_room;
    uint32_t *rule_slots; /* by hash of the names: rule + 1; 0: empty */
    uint32_t n_slots;
    uint32_t root;
    uint16_t set_slots[2 * MAX_SETS]; /* by hash of the sets: set + 1; 0: empty */
    /* Bytes that no state distinguishes form one class. */
    uint8_t class_of[256], byte_of[256];
    uint32_t n_classes;
    char *notes;                     /* moe_grammar_notes */
    int status;                      /* the first failure of adding; MOE_OK: none */
    struct moe_allowance *allowance; /* while it is read */
    bool must_end;                   /* likewise: rules that can never end are refused */
};

/* Adding never fails at once: `status` tells afterwards whether everything was added. */

/* Appends a state; returns its number. */
uint32_t machine_add(struct moe_grammar *g, enum state_kind kind, uint32_t a, uint32_t b);
/* Appends a copy of the states from `first` up to `end`, with jumps among them. */
void machine_copy(struct moe_grammar *g, uint32_t first, uint32_t end);
/* The rule of that name; a new one is noted as used at line and column. */
uint32_t machine_rule(struct moe_grammar *g, const char *name, uint64_t n, uint32_t line,
                      uint32_t column);

/* Characters from low to high. */
struct range {
    uint32_t low, high;
};
/* Adds states that read one character of `ranges`, given in any order; an empty set reads none. */
void machine_add_class(struct moe_grammar *g, struct range *ranges, uint32_t n, bool negated);
void machine_add_character(struct moe_grammar *g, uint32_t c);

/* Reads GBNF of any length (moe_grammar_parse). must_end: refuses rules that can never end, as
 * MOE_ERR_UNSUPPORTED. */
int machine_read(struct moe_grammar **out, const char *name, const void *text, uint64_t n,
                 bool must_end, struct moe_allowance *allowance, struct moe_err *err);

/* Ends adding: finds the root and the classes; refuses missing rules, left recursion, and what
 * leaves too many ways open where an answer begins. `name` begins the sentences. */
int machine_finish(struct moe_grammar *g, const char *name, struct moe_err *err);

static inline bool set_has(const struct byte_set *s, uint32_t byte)
{
    return s->bits[byte / 64] >> byte % 64 & 1;
}

/*
 * Automaton: tracks an answer in a grammar, byte by byte. A place is the set of stacks of calls
 * that its bytes so far may have led to. Places and the steps between them are made on demand and
 * kept until they take too much memory; then all but one are forgotten. Used by one thread at a
 * time.
 */

enum {
    PLACE_DEAD = 0, /* no answer begins so */
    PLACE_UNKNOWN = UINT32_MAX,
    MAX_NODES = 1 << 15,      /* in all stacks; 24 bytes each */
    MAX_ITEMS = 1 << 16,      /* in all places: stacks; 4 bytes each */
    MAX_STEP_BYTES = 1 << 19, /* of the step table */
    MAX_STACKS = 4096,        /* of a place */
    MAX_VISITS = 4 << 20,     /* of states, for one mask */
};

struct automaton;

/* Starts at the grammar's beginning; borrows it. */
int automaton_new(struct automaton **out, const struct moe_grammar *g, struct moe_err *err);
void automaton_free(struct automaton *a);
uint64_t automaton_bytes(void); /* its upper bound */

/* The place where an answer begins. Like the following: MOE_ERR_LIMIT when there is no room, or
 * after too many visits since automaton_budget. */
int automaton_start(struct automaton *a, uint32_t *place);
/* The place that a byte leads to; PLACE_DEAD: none. */
int automaton_step(struct automaton *a, uint32_t from, uint8_t byte, uint32_t *place);
/* Begins another piece of work with a full budget of visits. */
void automaton_budget(struct automaton *a);
/* Whether the budget ran out. */
bool automaton_is_spent(const struct automaton *a);
/* Forgets all places but this one, which gets a new number. */
int automaton_keep(struct automaton *a, uint32_t *place);

/* Whether the answer may end here, and whether a byte can follow. */
bool automaton_ends(const struct automaton *a, uint32_t place);
bool automaton_goes_on(const struct automaton *a, uint32_t place);

#endif
