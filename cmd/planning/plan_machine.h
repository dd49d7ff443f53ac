/* The speed of moe-plan's machine: from a profile, from options, or measured now. */
#ifndef CMD_PLAN_MACHINE_H
#define CMD_PLAN_MACHINE_H

#include "plan_inputs.h"

/* Sets in->device, in->pace and their part of in->evidence. The model must be open. */
int plan_machine_open(struct plan_inputs *in, struct moe_err *err);
/* Whether a GPU with memory of its own computes. The machine must be open. */
bool plan_machine_has_gpu(const struct plan_inputs *in);

#endif
