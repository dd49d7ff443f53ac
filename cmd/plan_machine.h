/* How fast moe-plan's machine is: by a profile, by what the user says of it, or measured now. */
#ifndef CMD_PLAN_MACHINE_H
#define CMD_PLAN_MACHINE_H

#include "plan_inputs.h"

/* Sets in->device, in->pace and what in->evidence says of them; the model is there. */
int plan_machine_open(struct plan_inputs *in, struct moe_err *err);

#endif
