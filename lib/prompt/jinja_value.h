/*
 * Memory of a parse or a render: allocated piece by piece, freed all at once, with a limit. And the
 * way out of both: any failure, however deep, leaves by jinja_fail to the one place that frees the
 * heap (jinja.c).
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
    const char *name;           /* the template's */
    struct moe_err *err;
    int status;
    jmp_buf out;
};

/* A place in the template, counted from 1. */
struct jinja_place {
    uint32_t line, column;
};

/* Reports an error with its place, and does not return. */
_Noreturn void jinja_fail(struct jinja_heap *heap, struct jinja_place at, int status,
                          const char *format, ...) MOE_PRINTF(4, 5);

/* Zeroed memory for n items; fails without memory, so it is never NULL. */
void *jinja_take(struct jinja_heap *heap, uint64_t n, uint64_t item_bytes);
/* A larger array that keeps the n items. */
void *jinja_grow(struct jinja_heap *heap, const void *items, uint64_t n, uint64_t room,
                 uint64_t item_bytes);
void jinja_heap_free(struct jinja_heap *heap);

/*
 * Values of a template: Python's, as far as templates meet them. They live in a render's heap and
 * are passed by value; what they point to never changes after creation, except namespaces,
 * lists that a template appends to, and lists and dictionaries under construction.
 */

struct json_t;

enum jinja_kind {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_LARGE, /* a whole number beyond 64 bits, which is written, not computed with */
    JINJA_FLOAT,
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_NAMESPACE, /* a dictionary whose members a template sets */
    JINJA_LOOP,      /* a loop's dictionary of its own state, also a function */
    JINJA_FUNCTION,
    JINJA_STREAM, /* items computed on demand, once (Python's generators) */
};

/* Bytes [begin, end) of a text come from the caller. */
struct jinja_part {
    uint32_t begin, end;
};

struct jinja_text {
    const char *bytes; /* UTF-8, or what the caller gave */
    uint32_t n;
    uint32_t n_parts;
    const struct jinja_part *parts; /* in order, disjoint */
    /* Escaped for HTML, or marked so: text added to it is escaped too, as in Jinja even where it
     * escapes nothing else. */
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
        const struct jinja_text *text; /* also the digits of a large number */
        struct jinja_list *list;       /* also a tuple's */
        struct jinja_dict *dict;       /* also a namespace's or a loop's */
        const struct jinja_function *function;
        struct jinja_stream *stream;
        const char *missing; /* the name of an undefined value, or NULL */
    } as;
};

struct jinja_list {
    uint32_t n, room;
    bool given; /* made of the caller's JSON: templates cannot change it */
    struct jinja_value *items;
};

struct jinja_entry {
    struct jinja_value key, value;
};

struct jinja_dict {
    uint32_t n, room;
    struct jinja_entry *entries;        /* in order of insertion */
    const struct jinja_function *calls; /* of a loop: called as a function */
};

/* Arguments of a call, a filter or a test. */
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
    struct jinja_value of; /* a method's object */
    const void *data;      /* for a macro and the like */
    struct jinja_value *state;
};

struct jinja_builder;

struct jinja_stream {
    jinja_call_fn *items; /* returns a list */
    struct jinja_args args;
    bool spent;
};

/* A render's state. */
struct jinja_run {
    struct jinja_heap heap;
    const struct moe_jinja_input *input;
    const struct jinja_names *names; /* filters and tests (jinja_functions.h) */
    uint64_t steps_left;
    uint32_t depth_left;       /* for calls */
    uint32_t stack_left;       /* for nested expressions and blocks */
    struct jinja_builder *out; /* where printing goes now */
};

/* Counts n steps; fails when none are left. */
void jinja_step(struct jinja_run *run, struct jinja_place at, uint64_t n);
/* Enters a call, and leaves it. */
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
/* Copies n bytes, as the template's. */
struct jinja_value jinja_text(struct jinja_run *run, const char *bytes, uint64_t n);
struct jinja_value jinja_words(struct jinja_run *run, const char *text);
/* An empty list or tuple with room for n items, or an empty dictionary. */
struct jinja_value jinja_list(struct jinja_run *run, enum jinja_kind kind, uint32_t room);
struct jinja_value jinja_dict(struct jinja_run *run, enum jinja_kind kind);
void jinja_append(struct jinja_run *run, struct jinja_value list, struct jinja_value item);
/* Sets a member; `at` is for errors: keys are texts, numbers, None, tuples. */
void jinja_set(struct jinja_run *run, struct jinja_place at, struct jinja_value dict,
               struct jinja_value key, struct jinja_value value);
void jinja_set_name(struct jinja_run *run, struct jinja_value dict, const char *name,
                    struct jinja_value value);
struct jinja_value jinja_function(struct jinja_run *run, const char *name, jinja_call_fn *call,
                                  struct jinja_value of, const void *data);
/* The items that a call will return. */
struct jinja_value jinja_stream(struct jinja_run *run, jinja_call_fn *items,
                                const struct jinja_args *args);
/* caller: all of its texts are the caller's. */
struct jinja_value jinja_from_json(struct jinja_run *run, const struct json_t *json, bool caller);

/* ---- Looking at values ---- */

const char *jinja_kind_name(struct jinja_value v); /* Python's name for the type */
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
int64_t jinja_whole(struct jinja_value v);                  /* a whole number's */
double jinja_number(struct jinja_value v);                  /* a number's */
bool jinja_is_name(struct jinja_value v, const char *name); /* a text equal to this */
/* Whether two values are the same object, as far as Python can tell: values without parts equal
 * themselves. */
bool jinja_same(struct jinja_value a, struct jinja_value b);
bool jinja_equal(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                 struct jinja_value b);
/* Negative, 0 or positive; fails for values without an order. */
int jinja_compare(struct jinja_run *run, struct jinja_place at, struct jinja_value a,
                  struct jinja_value b);
/* The member, or NULL. */
const struct jinja_value *jinja_find(struct jinja_run *run, struct jinja_place at,
                                     const struct jinja_dict *dict, struct jinja_value key);
const struct jinja_value *jinja_find_name(const struct jinja_dict *dict, const char *name);
/* Whether b contains a, as `in` does. */
bool jinja_contains(struct jinja_run *run, struct jinja_place at, struct jinja_value b,
                    struct jinja_value a);
/* The items as a list: of a list, a tuple, a stream, the characters of a text, the keys of a
 * dictionary; none for undefined. Fails for others. */
struct jinja_value jinja_items(struct jinja_run *run, struct jinja_place at, struct jinja_value v);
uint32_t jinja_length(struct jinja_run *run, struct jinja_place at, struct jinja_value v);
/* The index of item i of n, counted from the end if negative; -1: none. */
int64_t jinja_index(int64_t i, uint32_t n);

/*
 * Texts: builds them and takes their parts, tracking which bytes come from the caller. Places in a
 * text are bytes here; Python counts characters (jinja_count, jinja_byte_of).
 */

/* A growing text. Start from a zeroed struct. */
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
/* The finished text; ends the builder. */
struct jinja_value jinja_built(struct jinja_run *run, struct jinja_builder *b);
/* ... marked as escaped. */
struct jinja_value jinja_built_safe(struct jinja_run *run, struct jinja_builder *b);
/* The text with &, <, >, ' and " escaped for HTML, marked so. */
struct jinja_value jinja_escape(struct jinja_run *run, const struct jinja_text *text);

/* Whether byte i of a text comes from the caller. */
bool jinja_is_callers(const struct jinja_text *text, uint32_t i);
/* Copies bytes [begin, end) as a new text. */
struct jinja_value jinja_part_of(struct jinja_run *run, const struct jinja_text *text,
                                 uint32_t begin, uint32_t end);
/* Counts characters among the first n bytes. */
uint32_t jinja_count(const struct jinja_text *text, uint32_t n);
/* The byte where character i begins; text->n past the last. */
uint32_t jinja_byte_of(const struct jinja_text *text, uint64_t i);
/* Finds `what` in the text, from byte `from` on; -1: nowhere. */
int64_t jinja_find_text(const struct jinja_text *text, uint32_t from,
                        const struct jinja_text *what);
/* ... at the last place that ends at `to` or before. */
int64_t jinja_find_last(const struct jinja_text *text, uint32_t to, const struct jinja_text *what);

/*
 * Characters as Python classifies and changes them, by Unicode's tables.
 */

bool jinja_is_space(uint32_t c);
bool jinja_is_printable(uint32_t c); /* repr shows it unchanged */
bool jinja_is_alpha(uint32_t c);
bool jinja_is_digit(uint32_t c);
bool jinja_is_numeric(uint32_t c);
bool jinja_is_upper(uint32_t c);
bool jinja_is_lower(uint32_t c);
bool jinja_ends_line(uint32_t c); /* for splitlines */

struct jinja_value jinja_lower(struct jinja_run *run, const struct jinja_text *text);
struct jinja_value jinja_upper(struct jinja_run *run, const struct jinja_text *text);
/* The first character in upper case, the others in lower case. */
struct jinja_value jinja_capitalize(struct jinja_run *run, const struct jinja_text *text);
/* Capitalizes each word. Words begin after anything that is not a letter or, if `words`, as in
 * Jinja's filter, only after white space and -([{<. */
struct jinja_value jinja_title(struct jinja_run *run, const struct jinja_text *text, bool words);

/*
 * Sorts values stably, like Python's sorted.
 */

/* Sorts n items by their keys. fold: compares texts without case (Jinja's default). */
void jinja_sort(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items, uint32_t n,
                bool fold, bool reverse);
/* A dictionary's entries, sorted by key, or by value. */
struct jinja_entry *jinja_sorted_entries(struct jinja_run *run, struct jinja_place at,
                                         const struct jinja_dict *dict, bool by_value, bool fold);
/* A text in lower case; any other value unchanged. */
struct jinja_value jinja_folded(struct jinja_run *run, struct jinja_value v);

/*
 * Values as text, as Python's str, repr and json.dumps write them (jinja_print.c).
 */

/* Prints like str: texts unchanged, nothing for undefined. */
void jinja_print(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                 struct jinja_value v);
/* Prints like repr: texts in quotes. */
void jinja_print_quoted(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                        struct jinja_value v);
/* str as a value, without copying texts. */
struct jinja_value jinja_str(struct jinja_run *run, struct jinja_place at, struct jinja_value v);

/* Options of json.dumps. */
struct jinja_json_style {
    bool ascii;         /* escapes characters beyond ASCII */
    bool sorted;        /* sorts keys */
    const char *indent; /* NULL: all on one line */
    const struct jinja_text *item_separator, *key_separator;
};
void jinja_print_json(struct jinja_run *run, struct jinja_place at, struct jinja_builder *b,
                      struct jinja_value v, const struct jinja_json_style *style);

#endif
