/*
 * Names that templates can call: filters, tests, functions, and the methods of values.
 */
#ifndef MOE_PROMPT_JINJA_FUNCTIONS_H
#define MOE_PROMPT_JINJA_FUNCTIONS_H

#include "prompt/jinja_value.h"

/* ---- Arguments ---- */

/* Argument number i (from 0), or the one of that name (NULL: unnamed); `otherwise` if missing. */
struct jinja_value jinja_arg(const struct jinja_args *args, uint32_t i, const char *name,
                             struct jinja_value otherwise);
/* The same with a required kind. */
struct jinja_value jinja_need(struct jinja_run *run, const struct jinja_args *args, uint32_t i,
                              const char *name);
const struct jinja_text *jinja_need_text(struct jinja_run *run, const struct jinja_args *args,
                                         uint32_t i, const char *name);
int64_t jinja_whole_arg(struct jinja_run *run, const struct jinja_args *args, uint32_t i,
                        const char *name, int64_t otherwise);
/* Fails for more than `most` unnamed arguments. */
void jinja_at_most(struct jinja_run *run, const struct jinja_args *args, uint32_t most);
_Noreturn void jinja_wrong(struct jinja_run *run, const struct jinja_args *args, const char *what,
                           struct jinja_value v);

/* ---- By name ---- */

struct jinja_named {
    const char *name;
    jinja_call_fn *call;
};

/* Names that a render can call; some filters and tests look up others. */
struct jinja_names {
    const struct jinja_named *filters[2], *tests;
};

/* Each ends with NULL. The first argument of a filter or test is the value it is applied to. */
extern const struct jinja_named jinja_filters_of_values[], jinja_filters_of_lists[];
extern const struct jinja_named jinja_test_table[];
extern const struct jinja_named jinja_globals[];

struct jinja_value jinja_filter(struct jinja_run *run, const char *name,
                                const struct jinja_args *args);
bool jinja_test(struct jinja_run *run, const char *name, const struct jinja_args *args);
/* The filter or test of that name; NULL: none. */
jinja_call_fn *jinja_find_filter(const struct jinja_run *run, const char *name);
jinja_call_fn *jinja_find_test(const struct jinja_run *run, const char *name);

/* ---- Of values ---- */

/* v.name and v[key] as in a template; undefined if missing. */
struct jinja_value jinja_member(struct jinja_run *run, struct jinja_place at, struct jinja_value v,
                                const char *name);
struct jinja_value jinja_subscript(struct jinja_run *run, struct jinja_place at,
                                   struct jinja_value v, struct jinja_value key);
/* The method of a value, bound to it; undefined if it has none of that name. */
struct jinja_value jinja_method(struct jinja_run *run, struct jinja_place at, struct jinja_value v,
                                const char *name);
/* f.name and f[key] of a function: defined only for dict, a type that is called as one. */
struct jinja_value jinja_type_member(struct jinja_run *run, struct jinja_place at,
                                     struct jinja_value v, const char *name);
struct jinja_value jinja_type_item(struct jinja_run *run, struct jinja_value v);
/* v[begin:end:step]; each may be None. */
struct jinja_value jinja_call(struct jinja_run *run, struct jinja_value function,
                              const struct jinja_args *args);

/* ---- Of texts ---- */

enum jinja_side { JINJA_LEFT = 1, JINJA_RIGHT = 2, JINJA_BOTH = 3 };
/* Strips characters of `which` (NULL: white space) at these sides. */
struct jinja_value jinja_strip(struct jinja_run *run, const struct jinja_text *text,
                               const struct jinja_text *which, enum jinja_side sides);
/* most: replacements; negative: all. */
struct jinja_value jinja_replace(struct jinja_run *run, struct jinja_place at,
                                 const struct jinja_text *text, const struct jinja_text *from,
                                 const struct jinja_text *to, int64_t most);
struct jinja_value jinja_join(struct jinja_run *run, struct jinja_place at, struct jinja_value list,
                              const struct jinja_text *between);
/* "%s" % x and the like. */
struct jinja_value jinja_format(struct jinja_run *run, struct jinja_place at,
                                const struct jinja_text *format, struct jinja_value values);

#endif
