/*
 * A strategy in one word, for lists: the row, then the parts that differ, "fate+cache=lrfu". The
 * commas of an argument are written as semicolons, so that commas can separate strategies:
 * "lru,fate+prefetch=percentile:75;slack".
 */
#ifndef MOE_SCHED_STRATEGY_BRIEF_H
#define MOE_SCHED_STRATEGY_BRIEF_H

#include "sched/strategy.h"

enum { MOE_STRATEGY_BRIEF = 256 }; /* bytes, NUL included */

/* Not settled, and without dropping what has lost its use: *named gets the parts that the text
 * names (bits 1 << part). MOE_ERR_USAGE. */
int moe_strategy_parse(const char *text, struct moe_strategy *out, uint32_t *named,
                       struct moe_err *err);

/* The text that moe_strategy_parse turns into the same strategy; out: MOE_STRATEGY_BRIEF bytes,
 * cut off where they do not suffice. s->name is a row's. */
void moe_strategy_brief(const struct moe_strategy *s, char *out);

#endif
