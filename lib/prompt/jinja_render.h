/*
 * Computes a tree: expressions (jinja_evaluate.c) and statements (jinja_render.c), with scopes of
 * names.
 */
#ifndef MOE_PROMPT_JINJA_RENDER_H
#define MOE_PROMPT_JINJA_RENDER_H

#include "prompt/jinja_parse.h"
#include "prompt/jinja_value.h"

/* Names set in a block; those of surrounding blocks are visible through it. */
struct jinja_scope {
    struct jinja_scope *outer;
    uint32_t n, room;
    const char **names;
    struct jinja_value *values;
};

struct jinja_scope *jinja_scope(struct jinja_run *run, struct jinja_scope *outer);
void jinja_name(struct jinja_run *run, struct jinja_scope *scope, const char *name,
                struct jinja_value value);

struct jinja_value jinja_evaluate(struct jinja_run *run, struct jinja_scope *scope,
                                  const struct jinja_node *node);
/* The arguments of a call, after `first` unless NULL. */
struct jinja_args jinja_evaluate_args(struct jinja_run *run, struct jinja_scope *scope,
                                      struct jinja_place at, const struct jinja_given *given,
                                      const struct jinja_value *first);
/* Applies filters to a block's text. */
struct jinja_value jinja_evaluate_filters(struct jinja_run *run, struct jinja_scope *scope,
                                          const struct jinja_node *node, struct jinja_value text);

/* Executes statements; they print to run->out. */
void jinja_execute(struct jinja_run *run, struct jinja_scope *scope,
                   const struct jinja_node *first);

#endif
