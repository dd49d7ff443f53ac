/* moe-plan --explain: what is in a file that the programs hand each other, for a person or as JSON;
 * --compare: two plans, or a plan and its run. */
#ifndef CMD_PLAN_EXPLAIN_H
#define CMD_PLAN_EXPLAIN_H

#include <stdbool.h>

#include "base/err.h"

/* other: NULL, or what `path`, a plan, is compared with. */
int plan_explain(const char *path, const char *other, bool json, struct moe_err *err);
/* --html: as a page, with the events of a run (NULL: none). */
int plan_page(const char *path, const char *timeline, const char *html, struct moe_err *err);

#endif
