/* moe-plan --simulate: strategies side by side, on one trace, at several sizes of memory. */
#ifndef CMD_PLAN_SIMULATE_H
#define CMD_PLAN_SIMULATE_H

#include "plan_inputs.h"

/* strategies: separated by commas, with parts; NULL: all of the table. sizes: separated by commas,
 * "10%" of all experts, "2x" the experts of one token, or "4000M" of the whole process (without a
 * pack or shape: of experts; for a GPU these alone, of its memory: the host's is o->memory). Prints
 * a table, or an array of JSON objects. */
int plan_simulate(const struct plan_options *o, const char *strategies, const char *sizes,
                  bool json, struct moe_err *err);

#endif
