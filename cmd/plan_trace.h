/* moe-plan's trace: a file's, or one drawn at random where there is none. */
#ifndef CMD_PLAN_TRACE_H
#define CMD_PLAN_TRACE_H

#include "plan_inputs.h"

/* Sets in->trace and what in->evidence says of it; in->own and statistics are there. MOE_ERR_USAGE:
 * the trace is another model's. */
int plan_trace_open(struct plan_inputs *in, struct moe_err *err);

#endif
