/*
 * Machine: a grammar as what runs it. Each rule is a piece of a list of states, which read bytes,
 * split, jump, call a rule or end theirs; the one after a state is the next in the list. Characters
 * are their UTF-8, so that a token may end within one.
 */
#ifndef MOE_GRAMMAR_AUTOMATON_INTERNAL_H
#define MOE_GRAMMAR_AUTOMATON_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/constraint.h"
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

/*
 * Automaton: where an answer may be in a grammar, byte by byte. A place is the set of stacks of
 * calls that its bytes so far may have led to; places and the steps between them are made when they
 * are first wanted, and kept until they take too much memory. Then all but one are forgotten.
 * Belongs to one thread at a time.
 */

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

/*
 * Masks: which tokens may come next at a place of the automaton. Kept by place, the latest that fit
 * into what memory there is.
 */

struct mask {
    uint64_t *bits;     /* of ids, as many as there are logits */
    uint32_t n_allowed; /* tokens with text */
    uint32_t place;     /* PLACE_DEAD: it holds none */
};

struct masks {
    const struct moe_vocabulary *vocabulary;
    struct mask *masks; /* [n] */
    uint64_t *bits;     /* [n][words] */
    uint32_t *of_place; /* [MAX_OF_PLACE]: mask + 1 by the place's number; checked */
    uint32_t *at;       /* [longest + 1]: places along a token */
    uint32_t n, next, words;
};

int masks_open(struct masks *m, const struct moe_vocabulary *vocabulary, struct moe_err *err);
void masks_close(struct masks *m);
uint64_t masks_bytes(uint32_t n_logits); /* that they take at most */

/* The one of a place that is kept; NULL: it is to be made. */
const struct mask *masks_find(const struct masks *m, uint32_t place);
/* Makes that of a place. first: nothing of the answer was said, which is a text by itself
 * (moe_tokenizer_said). Statuses as of automaton_step. */
int masks_make(struct masks *m, struct automaton *a, uint32_t place, bool first,
               const struct mask **out);
/* Places have other numbers now. */
void masks_forget(struct masks *m);

#endif
