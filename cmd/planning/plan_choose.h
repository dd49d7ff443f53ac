/*
 * Choosing one of several packs of a family: the model that is run follows from the loss that the
 * user tolerates and the memory there is (EdgeMoE III-A, its P and M).
 */
#ifndef CMD_PLAN_CHOOSE_H
#define CMD_PLAN_CHOOSE_H

#include "plan_inputs.h"

/* Plans each of n packs, "PACK=LOSS", where LOSS is a share ("1.5%") or the bit map that measured
 * it (nats, in percent). Of those that fit the memory the fastest that loses no more than
 * `tolerable` percent is chosen; where there is none, or tolerable is below 0, the one that loses
 * least. Prints why each other one is not, and puts the chosen one's plan where the options say.
 * MOE_ERR_LIMIT: none fits. MOE_ERR_USAGE: the loss of one is not known. */
int plan_choose(char **packs, int n, double tolerable, const struct plan_options *options,
                struct moe_err *err);

#endif
