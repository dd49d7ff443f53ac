/*
 * Machine: a grammar as what runs it. Each rule is a piece of a list of states, which read bytes,
 * split, jump, call a rule or end theirs; the one after a state is the next in the list. Characters
 * are their UTF-8, so that a token may end within one. Private to the floor.
 */
#ifndef MOE_GRAMMAR_MACHINE_H
#define MOE_GRAMMAR_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/grammar.h"

enum state_kind {
    STATE_BYTES, /* reads a byte of set a */
    STATE_SPLIT, /* goes on at a and at b */
    STATE_JUMP,  /* goes on at a */
    STATE_CALL,  /* rule a, then goes on */
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
    uint32_t *rule_slots; /* by the names' hash: rule + 1; 0: empty */
    uint32_t n_slots;
    uint32_t root;
    /* Bytes that no state tells apart are one class. */
    uint8_t class_of[256], byte_of[256];
    uint32_t n_classes;
    int status; /* the first failure of adding; MOE_OK: none */
};

/* Adding never fails at once: `status` says afterwards whether all was added. */

/* A state at the end of the list; returns its number. */
uint32_t machine_add(struct moe_grammar *g, enum state_kind kind, uint32_t a, uint32_t b);
/* Copies the states from `first` up to `end` to the end, with jumps among them. */
void machine_copy(struct moe_grammar *g, uint32_t first, uint32_t end);
/* The rule of that name, noted as used at line and column where it is new. */
uint32_t machine_rule(struct moe_grammar *g, const char *name, uint64_t n, uint32_t line,
                      uint32_t column);

/* Characters from low to high. */
struct range {
    uint32_t low, high;
};
/* States that read one character of `ranges`, in any order. None at all is no character. */
void machine_add_class(struct moe_grammar *g, struct range *ranges, uint32_t n, bool negated);
void machine_add_character(struct moe_grammar *g, uint32_t c);

/* Once all is added: finds the root and the classes; refuses rules that are missing and left
 * recursion. `name` begins the sentences. */
int machine_finish(struct moe_grammar *g, const char *name, struct moe_err *err);

static inline bool set_has(const struct byte_set *s, uint32_t byte)
{
    return s->bits[byte / 64] >> byte % 64 & 1;
}

#endif
