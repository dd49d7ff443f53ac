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
    SCHEMA_MAX_DEPTH = 200,    /* nested schemas, following references */
    SCHEMA_MAX_COUNT = 100000, /* minLength, maxItems and the like */
    SCHEMA_MEMORY = 240,       /* what an object of jansson takes, and ... */
    SCHEMA_MEMBER = 104,       /* ... each member */
    SCHEMA_APART = 1024,       /* pairs remembered */
};

/* Whether two schemas exclude each other, found out before. */
struct schema_apart {
    const json_t *a, *b;
    int depth;
    bool apart;
};

struct schema {
    const char *name; /* begins error texts */
    const json_t *root;
    struct moe_buf rules; /* whole rules */
    struct moe_buf path;  /* JSON pointer of the current schema */
    json_t *kept;         /* intermediate schemas, an array */
    json_t *references;   /* rule numbers by pointer, an object */
    json_t *written;      /* places in `rules` by the hash of the rule there, an object */
    uint32_t n_rules, depth;
    struct moe_allowance *allowance;
    uint64_t counted;           /* room of `rules` that the allowance knows of */
    struct schema_apart *apart; /* [SCHEMA_APART] */
    /* Writes a schema's values as an expression. */
    int (*value)(struct schema *s, const json_t *schema, struct moe_buf *to);
    /* enum schema_type bits: the values that are written here, where an alternative that has none
     * of them is left out; TYPE_ALL within objects and lists. */
    unsigned types;
    const char *until; /* texts are written as they are, and never hold this; NULL: as JSON */
    struct moe_err *err;
};

/* Refuses the value at `key` of the current schema (NULL: the schema). `format` says why, after
 * "SCHEMA: #/POINTER: ". */
int schema_refuse(const struct schema *s, const char *key, const char *format, ...)
    MOE_PRINTF(3, 4);
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
/* One of n texts, sorted and not empty, whatever they have in common written once. `at`: bytes of
 * each that are written already. */
int schema_choice(struct schema *s, char **texts, size_t n, size_t at, int depth,
                  struct moe_buf *to);
/* Texts with a match of the regular expression, of `least` to `most` characters. */
int schema_pattern(struct schema *s, const char *pattern, uint64_t least, uint64_t most,
                   struct moe_buf *to);

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

/* The target of a reference; NULL: not in this file. */
const json_t *schema_find(const struct schema *s, const char *reference);

#endif
