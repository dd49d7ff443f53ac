/*
 * JSON schemas as GBNF: shared by the parts. A schema becomes the text of rules; each part appends
 * an expression for the values that it accepts.
 */
#ifndef MOE_GRAMMAR_SCHEMA_H
#define MOE_GRAMMAR_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/allowance.h"
#include "base/buf.h"
#include "base/err.h"

enum {
    SCHEMA_MAX_REFERENCES = 64, /* that lead to each other */
    SCHEMA_MAX_DEPTH = 200,     /* nested schemas, following references */
    SCHEMA_MAX_COUNT = 100000,  /* minLength, maxItems and the like */
    SCHEMA_MEMORY = 240,        /* what an object of jansson takes, and ... */
    SCHEMA_MEMBER = 104,        /* ... each member */
    SCHEMA_APART = 1024,        /* pairs remembered */
};

/* Whether two schemas exclude each other, found out before. */
struct schema_apart {
    const json_t *a, *b;
    int depth;
    bool apart;
};

struct texts;
struct range;

struct schema {
    const char *name; /* begins error texts */
    const json_t *root;
    struct moe_buf rules; /* whole rules */
    struct moe_buf path;  /* JSON pointer of the current schema */
    json_t *kept;         /* intermediate schemas, an array */
    json_t *references;   /* rule numbers by pointer, an object */
    json_t *written;      /* places in `rules` by the hash of the rule there, an object */
    uint32_t n_rules, depth;
    bool none; /* it was refused since it accepts no value */
    struct moe_allowance *allowance;
    uint64_t counted;           /* room of `rules` that the allowance knows of */
    struct schema_apart *apart; /* [SCHEMA_APART] */
    /* Writes a schema's values as an expression. */
    int (*value)(struct schema *s, const json_t *schema, struct moe_buf *to);
    /* Adds the values that a schema takes to a list, each once, where these are listed; false: they
     * are not, or are too many. */
    bool (*few_values)(struct schema *s, const json_t *schema, json_t *list, int depth);
    /* enum schema_type bits: the values that are written here, where an alternative that has none
     * of them is left out; TYPE_ALL within objects and lists. */
    unsigned types;
    struct texts *texts;   /* sets of texts, below */
    struct moe_buf *notes; /* what is not held, a sentence each, or NULL */
    const char *until;     /* texts are written as they are, and never hold this; NULL: as JSON */
    struct moe_err *err;
};

/* Refuses the value at `key` of the current schema (NULL: the schema). `format` says why, after
 * "SCHEMA: #/POINTER: ". */
int schema_refuse(const struct schema *s, const char *key, const char *format, ...)
    MOE_PRINTF(3, 4);
/* The same, where the current schema accepts no value: who can do without leaves it out. */
int schema_refuse_all(struct schema *s, const char *key, const char *format, ...) MOE_PRINTF(3, 4);
/* Writes a schema's values. *none: it accepts none, and nothing is written. */
int schema_if_any(struct schema *s, const json_t *schema, bool *none, struct moe_buf *to);
/* Takes n steps of the allowance; refuses when they are spent, or when what is written (to: and
 * there, or NULL) becomes too long. */
int schema_step(struct schema *s, const struct moe_buf *to, uint64_t n);
/* Enters a part of the schema, and leaves it: schema_enter returns the argument of schema_leave. */
uint64_t schema_enter(struct schema *s, const char *key);
uint64_t schema_enter_item(struct schema *s, const char *key, uint64_t item);
void schema_leave(struct schema *s, uint64_t from);

/* A keyword that is present and not null; else NULL. */
const json_t *schema_get(const json_t *schema, const char *key);
/* Whether it accepts no value: false, or {"not": {}}. */
bool schema_is_nothing(const json_t *schema);
/* Reads a count; keeps *n if the keyword is missing, or a most that no answer comes to. */
int schema_count(const struct schema *s, const json_t *schema, const char *key, uint64_t *n);

/* Writes n bytes as a GBNF literal. */
void schema_literal(struct moe_buf *to, const void *text, uint64_t n);
/* The bytes of what ends a text without quotes that it may not hold: all but the blanks at its end,
 * which may be those before the end itself. */
size_t schema_end_length(const struct schema *s);
/* Writes what begins and ends a text. */
void schema_quote(const struct schema *s, struct moe_buf *to);
/* Writes JSON as a GBNF literal. */
int schema_json(struct schema *s, const json_t *value, struct moe_buf *to);
/* Makes a rule of the expression, which then holds its name; equal expressions share one. */
void schema_make_rule(struct schema *s, struct moe_buf *expression);

/* ---- The kinds of values ---- */

int schema_object(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_array(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_string(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_number(struct schema *s, const json_t *schema, bool integer, struct moe_buf *to);
/* Whether a number keeps to the bounds, and is a multiple. */
int schema_number_fits(struct schema *s, const json_t *schema, const json_t *value, bool *fits);
/* One of n texts, sorted and not empty, whatever they have in common written once. `at`: bytes of
 * each that are written already. */
int schema_choice(struct schema *s, char **texts, size_t n, size_t at, int depth,
                  struct moe_buf *to);
/* Texts that a schema of texts takes: by its pattern, format and lengths. *key: the keyword that
 * says most. */
int schema_texts_of(struct schema *s, const json_t *schema, uint32_t *out, const char **key);
/* Lets what is said of a property (*value; NULL: nothing) be also what the patterns say that its
 * name follows. */
int schema_follow_patterns(struct schema *s, const json_t *patterns, const char *name,
                           json_t **value);
/* Members of schemas that only this room writes, where several are combined. */
#define SCHEMA_PATTERNS "\1patterns" /* a list of further {"pattern"} and {"format"} */
#define SCHEMA_CHOICES "\1choices"   /* a list of {"if", "then", "else"} */

/* ---- Sets of texts ----
 *
 * Each has a number, the same for equal expressions. What cannot be made for lack of memory or
 * steps is TEXTS_NONE, and schema_texts says so. */

enum { TEXTS_NONE, TEXTS_EMPTY /* the empty text */ };

int texts_begin(struct schema *s);
void texts_end(struct schema *s);
/* One character of these ranges, which get sorted, or (negated) of the others up to `most`; never
 * NUL or half of a pair. */
uint32_t texts_class(struct schema *s, struct range *ranges, uint32_t n, bool negated,
                     uint32_t most);
uint32_t texts_literal(struct schema *s, const char *text);
uint32_t texts_any(const struct schema *s); /* all texts */
uint32_t texts_of_length(struct schema *s, uint64_t least, uint64_t most);
uint32_t texts_cat(struct schema *s, uint32_t a, uint32_t b);
uint32_t texts_or(struct schema *s, uint32_t a, uint32_t b);
uint32_t texts_one_of(struct schema *s, const uint32_t *list, uint32_t n);
uint32_t texts_and(struct schema *s, uint32_t a, uint32_t b);
uint32_t texts_not(struct schema *s, uint32_t a);
uint32_t texts_repeat(struct schema *s, uint32_t a, uint64_t least, uint64_t most);
/* Digits, with a sign and a point or without, whose number is a multiple of `of` * 10^-part: what
 * has at most `part` digits behind the point. 0 < of < 2^31; part < 256. */
uint32_t texts_multiple(struct schema *s, uint32_t of, uint32_t part);
/* Parts of a regular expression that stand for no character: its text begins or ends here; one of
 * `node` follows here, or not. */
uint32_t texts_at_end(struct schema *s, bool end);
uint32_t texts_looking(struct schema *s, bool follows, uint32_t node, bool *fails);
/* All texts with a match of an expression that may have such parts; `beside`: what may be beside
 * it. *fails is set where they are not understood: within what is repeated, or behind characters
 * where the text begins. */
uint32_t texts_that_match(struct schema *s, uint32_t node, uint32_t beside, bool *fails);
/* Their characters lie between, or are fewer; UINT64_MAX: any number. */
void texts_lengths(const struct schema *s, uint32_t node, uint64_t *shortest, uint64_t *longest);
/* Whether it is one class, repeated, so that its lengths cost nothing. */
bool texts_counts_itself(const struct schema *s, uint32_t node);
bool texts_take(struct schema *s, uint32_t node, const char *text);
/* Whether there is any; writes the rules of those that need some. */
int texts_are_there(struct schema *s, uint32_t node, bool *any);
/* Writes them, without quotes; refuses the keyword with `why` where there are none. */
int schema_texts(struct schema *s, uint32_t node, const char *key, const char *why,
                 struct moe_buf *to);
/* Reads a regular expression: texts that match it. */
int schema_pattern(struct schema *s, const char *pattern, uint32_t *out);

/* ---- Combined schemas ---- */

/* The types that keywords are about; ends with an entry without a key. */
struct schema_keyword {
    const char *key;
    unsigned types;
};
extern const struct schema_keyword schema_about[];

enum schema_type {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_OBJECT = 4,
    TYPE_ARRAY = 8,
    TYPE_STRING = 16,
    TYPE_INTEGER = 32,
    TYPE_NUMBER = 64, /* not an integer */
    TYPE_ALL = 127,
};

/* Notes what is not held: that the value at `key` of the current schema is taken in a wider sense.
 */
void schema_note(struct schema *s, const char *key, const char *format, ...) MOE_PRINTF(3, 4);

/* The target of a reference; NULL: not in this file. */
const json_t *schema_find(const struct schema *s, const char *reference);
/* Where a schema's references lead; NULL: nowhere. */
const json_t *schema_follow(const struct schema *s, const json_t *schema);

#endif
