/* moe-plan --coe: plans for collections of expert models, and systems side by side on a task. */
#ifndef CMD_PLAN_COE_H
#define CMD_PLAN_COE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct plan_coe_options {
    const char *collection, *costs, *out; /* out NULL: it is explained on stdout */
    const char *schedule, *evict, *executors;
    uint64_t memory, device_memory, seed;
    bool casual;
    uint32_t resident, window, fitted;
    uint32_t requests; /* of the sample */
    double margin, interval;
};

/* Writes the plan to o->out, or its explanation to stdout. */
int plan_coe_make(const struct plan_coe_options *o, struct moe_err *err);

/* Prints what each system makes of a task of n requests, or that as an array of JSON objects. */
int plan_coe_simulate(const struct plan_coe_options *o, uint32_t n, bool json, struct moe_err *err);

#endif
