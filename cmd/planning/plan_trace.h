/* moe-plan's trace: read from a file, or drawn at random. */
#ifndef CMD_PLAN_TRACE_H
#define CMD_PLAN_TRACE_H

#include "plan_inputs.h"

/* Sets in->trace and its part of in->evidence. in->own and statistics must be set. MOE_ERR_USAGE:
 * the trace is of another model. */
int plan_trace_open(struct plan_inputs *in, struct moe_err *err);

#endif
