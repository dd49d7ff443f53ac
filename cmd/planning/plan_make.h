/* moe-plan PACK or --shape: makes a plan. */
#ifndef CMD_PLAN_MAKE_H
#define CMD_PLAN_MAKE_H

#include "plan_inputs.h"

/* The plan, the caller's to free. */
int plan_compute(struct moe_plan **out, const struct plan_options *o, struct moe_err *err);
/* Writes it to o->out, or without one its explanation's first screen to stdout. */
int plan_put(const struct moe_plan *plan, const struct plan_options *o, struct moe_err *err);
/* Both: writes the plan to o->out, or without one its explanation's first screen to stdout. */
int plan_make(const struct plan_options *o, struct moe_err *err);

#endif
