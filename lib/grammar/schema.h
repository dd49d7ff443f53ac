/*
 * JSON schemas as GBNF: what the parts share. A schema becomes the text of rules; each part appends
 * an expression that stands for the values which it takes.
 */
#ifndef MOE_GRAMMAR_SCHEMA_H
#define MOE_GRAMMAR_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum {
    SCHEMA_MAX_DEPTH = 200,    /* of schemas within each other, references followed */
    SCHEMA_MAX_STEPS = 100000, /* schemas looked at */
    SCHEMA_MAX_COUNT = 100000, /* minLength, maxItems and their like */
};

struct schema {
    const char *name; /* begins the sentences */
    const json_t *root;
    struct moe_buf rules; /* whole rules */
    struct moe_buf path;  /* JSON pointer of what is looked at */
    json_t *kept;         /* what was made on the way, an array */
    json_t *references;   /* rule numbers by pointer, an object */
    uint32_t n_rules, depth, n_steps;
    /* The values of a schema, as an expression. */
    int (*value)(struct schema *s, const json_t *schema, struct moe_buf *to);
    struct moe_err *err;
};

/* Refuses what stands at `key` of the schema that is looked at (NULL: this itself). `format` says
 * why, after "SCHEMA: #/POINTER: ". */
int schema_refuse(const struct schema *s, const char *key, const char *format, ...)
    MOE_PRINTF(3, 4);
/* Goes to a part of the schema and back: schema_enter returns what schema_leave wants. */
uint64_t schema_enter(struct schema *s, const char *key);
uint64_t schema_enter_item(struct schema *s, const char *key, uint64_t item);
void schema_leave(struct schema *s, uint64_t from);

/* A keyword that is there, and not null; else NULL. */
const json_t *schema_get(const json_t *schema, const char *key);
/* A count of things; where the keyword is missing *n stays. */
int schema_count(const struct schema *s, const json_t *schema, const char *key, uint64_t *n);

/* n bytes as a GBNF literal. */
void schema_literal(struct moe_buf *to, const void *text, uint64_t n);
/* JSON, as a GBNF literal. */
int schema_json(struct schema *s, const json_t *value, struct moe_buf *to);
/* A rule of its own for the expression, which is emptied: its name takes its place. */
void schema_make_rule(struct schema *s, struct moe_buf *expression);

/* ---- The kinds of values ---- */

int schema_object(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_array(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_string(struct schema *s, const json_t *schema, struct moe_buf *to);
int schema_number(struct schema *s, const json_t *schema, bool integer, struct moe_buf *to);
/* The texts, between quotation marks, that the regular expression finds something in. */
int schema_pattern(struct schema *s, const char *pattern, struct moe_buf *to);

/* ---- Schemas together ---- */

int schema_all_of(struct schema *s, const json_t *schema, struct moe_buf *to);
/* key: anyOf or oneOf. */
int schema_any_of(struct schema *s, const json_t *schema, const char *key, struct moe_buf *to);
/* enum, const. */
int schema_given(struct schema *s, const json_t *schema, struct moe_buf *to);

/* Which types keywords are about, up to one without a key. */
struct schema_keyword {
    const char *key;
    unsigned types;
};
extern const struct schema_keyword schema_about[];
/* Whether anything but the named keyword says what values are taken. */
bool schema_says_more(const json_t *schema, const char *but);
/* The schema without a keyword, and two put together; both are kept until the end. */
int schema_without(struct schema *s, const json_t *schema, const char *key, json_t **out);
int schema_merge_kept(struct schema *s, const json_t *a, const json_t *b, json_t **out);

enum schema_type {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_OBJECT = 4,
    TYPE_ARRAY = 8,
    TYPE_STRING = 16,
    TYPE_INTEGER = 32,
    TYPE_NUMBER = 64, /* one that is no integer */
    TYPE_ALL = 127,
};

/* The types that it takes: by "type", "enum" or "const"; TYPE_ALL: it says nothing of them. */
int schema_types(const struct schema *s, const json_t *schema, unsigned *types);
/* What both take, as a new reference in *out. */
int schema_merge(struct schema *s, const json_t *a, const json_t *b, json_t **out);
/* Whether no value that is written for one is taken by the other, as far as that is seen. */
bool schema_exclude(const struct schema *s, const json_t *a, const json_t *b);
bool schema_equal(const json_t *a, const json_t *b); /* as JSON schemas compare: 1 is 1.0 */
/* Where a reference leads; NULL: nowhere in this file. */
const json_t *schema_find(const struct schema *s, const char *reference);

#endif
