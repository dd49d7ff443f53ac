/* moe-plan --explain: what is in a plan, in statistics, in a pack, for a person or as JSON. */
#ifndef CMD_PLAN_EXPLAIN_H
#define CMD_PLAN_EXPLAIN_H

#include <stdbool.h>

#include "base/err.h"

int plan_explain(const char *path, bool json, struct moe_err *err);

#endif
