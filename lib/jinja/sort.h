/*
 * Sorting values, stably, as Python's sorted does. Private to this floor.
 */
#ifndef MOE_JINJA_SORT_H
#define MOE_JINJA_SORT_H

#include "jinja/value.h"

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
