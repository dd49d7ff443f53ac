/*
 * Memory of a parse or a render: taken piece by piece, given back all at once, with a limit. And
 * the way out of both: whatever fails, however deep, leaves by jinja_fail to the one place that
 * frees the heap (jinja.c).
 */
#ifndef MOE_PROMPT_JINJA_VALUE_H
#define MOE_PROMPT_JINJA_VALUE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "prompt/jinja.h"

struct jinja_block;

struct jinja_heap {
    struct jinja_block *blocks; /* the newest first */
    uint64_t used, limit;       /* bytes */
    const char *name;           /* of the template */
    struct moe_err *err;
    int status;
    jmp_buf out;
};

/* A place in the template, from 1 on. */
struct jinja_place {
    uint32_t line, column;
};

/* Says what is wrong and where, and does not return. */
_Noreturn void jinja_fail(struct jinja_heap *heap, struct jinja_place at, int status,
                          const char *format, ...) MOE_PRINTF(4, 5);

/* Zeroed memory for n items; fails where there is none, so it is never NULL. */
void *jinja_take(struct jinja_heap *heap, uint64_t n, uint64_t item_bytes);
/* A larger array for one of n items, which are kept. */
void *jinja_grow(struct jinja_heap *heap, const void *items, uint64_t n, uint64_t room,
                 uint64_t item_bytes);
void jinja_heap_free(struct jinja_heap *heap);

/*
 * Values of a template: Python's, as far as templates meet them. They live in the heap of a render
 * and are passed by value; what they point to is never changed after it was made, but for
 * namespaces and for lists and dictionaries while they are built.
 */

struct json_t;

enum jinja_kind {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_NAMESPACE, /* a dictionary whose members a template sets */
    JINJA_LOOP,      /* a dictionary of what a loop knows of itself, and a function */
    JINJA_FUNCTION,
    JINJA_STREAM, /* items that are computed when they are asked for, once (Python's generators) */
};

/* Bytes [begin, end) of a text come from the caller. */
struct jinja_part {
    uint32_t begin, end;
};

struct jinja_text {
    const char *bytes; /* UTF-8, or what the caller gave */
    uint32_t n;
    uint32_t n_parts;
    const struct jinja_part *parts; /* in order, apart from each other */
    /* Escaped for HTML, or said to be: what is added to it is escaped as well, as Jinja does even
     * where it escapes nothing else. */
    bool safe;
};

struct jinja_list;
struct jinja_dict;
struct jinja_function;
struct jinja_stream;

struct jinja_value {
    enum jinja_kind kind;
    union {
        bool truth;
        int64_t whole;
        double number;
        const struct jinja_text *text;
        struct jinja_list *list; /* of a tuple, too */
        struct jinja_dict *dict; /* of namespaces and loops, too */
        const struct jinja_function *function;
        struct jinja_stream *stream;
        const char *missing; /* what is undefined, or NULL */
    } as;
};

struct jinja_list {
    uint32_t n, room;
    struct jinja_value *items;
};

struct jinja_entry {
    struct jinja_value key, value;
};

struct jinja_dict {
    uint32_t n, room;
    struct jinja_entry *entries;        /* as they came */
    const struct jinja_function *calls; /* of a loop: itself, called */
};

/* Arguments of a call, of a filter's and of a test's. */
struct jinja_args {
    struct jinja_place at;
    uint32_t n, n_named;
    const struct jinja_value *values;
    const char *const *names; /* [n_named] of the last ones */
};

struct jinja_run;

typedef struct jinja_value jinja_call_fn(struct jinja_run *run, const struct jinja_function *self,
                                         const struct jinja_args *args);

struct jinja_function {
    const char *name;
    jinja_call_fn *call;
    struct jinja_value of; /* of a method: its object */
    const void *data;      /* of a macro and its like */
    struct jinja_value *state;
};

struct jinja_builder;

struct jinja_stream {
    jinja_call_fn *items; /* gives a list */
    struct jinja_args args;
    bool spent;
};

/* The state of a render. */
struct jinja_run {
    struct jinja_heap heap;
    const struct moe_jinja_input *input;
    const struct jinja_names *names; /* of filters and tests (jinja_functions.h) */
    uint64_t steps_left;
    uint32_t depth_left;       /* of calls */
    uint32_t stack_left;       /* of expressions within expressions, and blocks within blocks */
    struct jinja_builder *out; /* what is printed now goes there */
};

/* Counts n steps; fails where there are no more. */
void jinja_step(struct jinja_run *run, struct jinja_place at, uint64_t n);
/* One call deeper, and back. */
void jinja_enter(struct jinja_run *run, struct jinja_place at);
void jinja_leave(struct jinja_run *run);

/* ---- Making values ---- */

static inline struct jinja_value jinja_undefined(const char *what)
{
    return (struct jinja_value){JINJA_UNDEFINED, {.missing = what}};
}
static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){JINJA_NONE, {0}};
}
static inline struct jinja_value jinja_bool(bool truth)
{
    return (struct jinja_value){JINJA_BOOL, {.truth = truth}};
}
static inline struct jinja_value jinja_int(int64_t whole)
{
    return (struct jinja_value){JINJA_INT, {.whole = whole}};
}
static inline struct jinja_value jinja_float(double number)
{
    return (struct jinja_value){JINJA_FLOAT, {.number = number}};
}
/* Of n bytes that are copied, and belong to the template. */
struct jinja_value jinja_text(struct jinja_run *run, const char *bytes, uint64_t n);
struct jinja_value jinja_words(struct jinja_run *run, const char *text);
/* An empty list or tuple with room for n items, or dictionary. */
struct jinja_value jinja_list(struct jinja_run *run, enum jinja_kind kind, uint32_t room);
struct jinja_value jinja_dict(struct jinja_run *run, enum jinja_kind kind);
void jinja_append(struct jinja_run *run, struct jinja_value list, struct jinja_value item);
/* Sets a member; the place is for an error: keys are texts, numbers, None, tuples. */
void jinja_set(struct jinja_run *run, struct jinja_place at, struct jinja_value dict,
               struct jinja_value key, struct jinja_value value);
void jinja_set_name(struct jinja_run *run, struct jinja_value dict, const char *name,
                    struct jinja_value value);
struct jinja_value jinja_function(struct jinja_run *run, const char *name, jinja_call_fn *call,
                                  struct jinja_value of, const void *data);
/* The items that a call will give. */
struct jinja_value jinja_stream(struct jinja_run *run, jinja_call_fn *items,
                                const struct jinja_args *args);
/* caller: all of its texts are the caller's. */
struct jinja_value jinja_from_json(struct jinja_run *run, const struct json_t *json, bool caller);

/* ---- Looking at values ---- */

const char *jinja_kind_name(struct jinja_value v); /* as Python calls the type */
bool jinja_true(struct jinja_value v);
static inline bool jinja_is_number(struct jinja_value v)
{
    return v.kind == JINJA_BOOL || v.kind == JINJA_INT || v.kind == JINJA_FLOAT;
}
static inline bool jinja_is_whole(struct jinja_value v)
{
    return v.kind == JINJA_BOOL || v.kind == JINJA_INT;
}
static inline bool jinja_is_sequence(struct jinja_value v)
{
    return v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}
static inline bool jinja_is_dict(struct jinja_value v)
{
    return v.kind == JINJA_DICT;
}
int64_t jinja_whole(struct jinja_value v);                  /* of a whole number */
double jinja_number(struct jinja_value v);                  /* of a number */
bool jinja_is_name(struct jinja_value v, const char *name); /* a text that says this */
/* The same object, where Python can tell: values without parts are what they say. */
bool jinja_same(struct jinja_value a, struct jinja_value b);
bool jinja_equal(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                 struct jinja_value b);
/* Negative, 0, positive; fails for values that have no order. */
int jinja_compare(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                  struct jinja_value b);
/* The member, or NULL. */
const struct jinja_value *jinja_find(struct jinja_run *run, struct jinja_place at,
                                     const struct jinja_dict *dict, struct jinja_value key);
const struct jinja_value *jinja_find_name(const struct jinja_dict *dict, const char *name);
/* Whether b contains a, as `in` says. */
bool jinja_contains(struct jinja_run *run, struct jinja_place at, struct jinja_value b,
                    struct jinja_value a);
/* The items as a list: of a list, a tuple, a stream, the characters of a text, the keys of a
 * dictionary; none of what is undefined. Fails for others. */
struct jinja_value jinja_items(struct jinja_run *run, struct jinja_place at, struct jinja_value v);
uint32_t jinja_length(struct jinja_run *run, struct jinja_place at, struct jinja_value v);
/* Item i of n, counted from the end if negative; -1: there is none. */
int64_t jinja_index(int64_t i, uint32_t n);

/*
 * Texts: building them, and taking parts of them, with the memory of which bytes come from the
 * caller. Places in a text are bytes here; Python counts characters (jinja_count,
 * jinja_byte_of).
 */

/* A text that grows. Start from a zeroed struct. */
struct jinja_builder {
    char *bytes;
    uint32_t n, room;
    uint32_t n_parts, parts_room;
    struct jinja_part *parts;
};

/* Appends n bytes, the caller's or not. */
void jinja_add(struct jinja_run *run, struct jinja_builder *b, const char *bytes, uint64_t n,
               bool caller);
static inline void jinja_add_char(struct jinja_run *run, struct jinja_builder *b, char c)
{
    jinja_add(run, b, &c, 1, false);
}
void jinja_add_words(struct jinja_run *run, struct jinja_builder *b, const char *words);
/* Appends bytes [begin, end) of a text. */
void jinja_add_part(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text,
                    uint32_t begin, uint32_t end);
void jinja_add_text(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text);
/* The text so far; the builder is not to be used any more. */
struct jinja_value jinja_built(struct jinja_run *run, struct jinja_builder *b);
/* ... that is marked as escaped. */
struct jinja_value jinja_built_safe(struct jinja_run *run, struct jinja_builder *b);
/* The text with &, <, >, ' and " as HTML writes them, marked so. */
struct jinja_value jinja_escape(struct jinja_run *run, const struct jinja_text *text);

/* Whether byte i of a text comes from the caller. */
bool jinja_is_callers(const struct jinja_text *text, uint32_t i);
/* Bytes [begin, end) as a text of its own. */
struct jinja_value jinja_part_of(struct jinja_run *run, const struct jinja_text *text,
                                 uint32_t begin, uint32_t end);
/* Characters among the first n bytes. */
uint32_t jinja_count(const struct jinja_text *text, uint32_t n);
/* The byte at which character i begins; text->n past the last. */
uint32_t jinja_byte_of(const struct jinja_text *text, uint64_t i);
/* Where `what` is in the text, from byte `from` on; -1: nowhere. */
int64_t jinja_find_text(const struct jinja_text *text, uint32_t from,
                        const struct jinja_text *what);
/* ... the last place that ends at `to` or before. */
int64_t jinja_find_last(const struct jinja_text *text, uint32_t to, const struct jinja_text *what);

/*
 * Characters as Python classifies and changes them, by Unicode's tables.
 */

bool jinja_is_space(uint32_t c);
bool jinja_is_printable(uint32_t c); /* repr shows it as it is */
bool jinja_is_alpha(uint32_t c);
bool jinja_is_digit(uint32_t c);
bool jinja_is_numeric(uint32_t c);
bool jinja_is_upper(uint32_t c);
bool jinja_is_lower(uint32_t c);
bool jinja_ends_line(uint32_t c); /* of splitlines */

struct jinja_value jinja_lower(struct jinja_run *run, const struct jinja_text *text);
struct jinja_value jinja_upper(struct jinja_run *run, const struct jinja_text *text);
/* The first character in upper case, the others in lower case. */
struct jinja_value jinja_capitalize(struct jinja_run *run, const struct jinja_text *text);
/* Each word so. Words begin after what is no letter, or (words true, as Jinja's filter has it)
 * after white space and -([{< alone. */
struct jinja_value jinja_title(struct jinja_run *run, const struct jinja_text *text, bool words);

/*
 * Sorting values, stably, as Python's sorted does.
 */

/* Sorts n items by their keys. fold: texts are compared without case (Jinja's sort does unless it
 * is told otherwise). */
void jinja_sort(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items, uint32_t n,
                bool fold, bool reverse);
/* A dictionary's entries, sorted by key, or by value. */
struct jinja_entry *jinja_sorted_entries(struct jinja_run *run, struct jinja_place at,
                                         const struct jinja_dict *dict, bool by_value, bool fold);
/* A text in lower case; any other value as it is. */
struct jinja_value jinja_folded(struct jinja_run *run, struct jinja_value v);

#endif
