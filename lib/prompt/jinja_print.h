/*
 * Values as text, as Python's str, repr and json.dumps write them.
 */
#ifndef MOE_PROMPT_JINJA_PRINT_H
#define MOE_PROMPT_JINJA_PRINT_H

#include "prompt/jinja_value.h"

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
