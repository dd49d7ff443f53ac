/* moe-plan --simulate: strategies side by side, on one trace, at several sizes of memory. */
#ifndef CMD_PLAN_SIMULATE_H
#define CMD_PLAN_SIMULATE_H

#include "plan_inputs.h"

/* strategies: rows with their parts, with commas between them; NULL: every row of the table.
 * sizes: "10%" of all experts, "2x" a token's experts, or "4000M" of the whole process (without a
 * pack or shape: of experts), with commas. A table, or one JSON object a row. */
int plan_simulate(const struct plan_options *o, const char *strategies, const char *sizes,
                  bool json, struct moe_err *err);

#endif
