/*
 * JSON schemas as GBNF: shared by the parts. A schema becomes the text of rules; each part appends
 * an expression for the values that it accepts.
 */
#ifndef MOE_GRAMMAR_SCHEMA_H
#define MOE_GRAMMAR_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum {
    SCHEMA_MAX_DEPTH = 200,    /* nested schemas, following references */
    SCHEMA_MAX_STEPS = 100000, /* schemas visited */
    SCHEMA_MAX_COUNT = 100000, /* minLength, maxItems and the like */
};

struct schema {
    const char *name; /* begins error texts */
    const json_t *root;
    struct moe_buf rules; /* whole rules */
    struct moe_buf path;  /* JSON pointer of the current schema */
    json_t *kept;         /* intermediate schemas, an array */
    json_t *references;   /* rule numbers by pointer, an object */
    uint32_t n_rules, depth, n_steps;
    /* Writes a schema's values as an expression. */
    int (*value)(struct schema *s, const json_t *schema, struct moe_buf *to);
    struct moe_err *err;
};

/* Refuses the value at `key` of the current schema (NULL: the schema). `format` says why, after
 * "SCHEMA: #/POINTER: ". */
int schema_refuse(const struct schema *s, const char *key, const char *format, ...)
    MOE_PRINTF(3, 4);
/* Enters a part of the schema, and leaves it: schema_enter returns the argument of schema_leave. */
uint64_t schema_enter(struct schema *s, const char *key);
uint64_t schema_enter_item(struct schema *s, const char *key, uint64_t item);
void schema_leave(struct schema *s, uint64_t from);

/* A keyword that is present and not null; else NULL. */
const json_t *schema_get(const json_t *schema, const char *key);
/* Reads a count; keeps *n if the keyword is missing. */
int schema_count(const struct schema *s, const json_t *schema, const char *key, uint64_t *n);

/* Writes n bytes as a GBNF literal. */
void schema_literal(struct moe_buf *to, const void *text, uint64_t n);
/* Writes JSON as a GBNF literal. */
int schema_json(struct schema *s, const json_t *value, struct moe_buf *to);
/* Makes a rule of the expression, which then holds its name. */
void schema_make_rule(struct schema *s, struct moe_buf *expression);

/* ---- The kinds of values ---- */

int schema_object(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_array(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_string(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_number(struct schema *s, const json_t *schema, bool integer, struct moe_buf *to);
/* Texts in quotation marks in which the regular expression matches something. */
int schema_pattern(struct schema *s, const char *pattern, struct moe_buf *to);

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
