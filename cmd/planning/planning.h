/* What moe-plan does: plans, one of several packs, budgets, simulations, collections. */
#ifndef CMD_PLANNING_H
#define CMD_PLANNING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "plan_inputs.h"

/* ---- moe-plan MODEL or --shape: one plan (plan_make.c) ---- */

/* The plan, the caller's to free. */
int plan_compute(struct moe_plan **out, const struct plan_options *o, struct moe_err *err);
/* Writes it to o->out, or without one its explanation's first screen to stdout. */
int plan_put(const struct moe_plan *plan, const struct plan_options *o, struct moe_err *err);
/* Both: writes the plan to o->out, or without one its explanation's first screen to stdout. */
int plan_make(const struct plan_options *o, struct moe_err *err);

/*
 * Several packs of a family: the model that is run follows from the loss that the user tolerates
 * and the memory there is (EdgeMoE III-A, its P and M).
 */

/* Plans each of n packs, "MODEL=LOSS", where LOSS is a share ("1.5%") or the bit map that measured
 * it (nats, in percent). Of those that fit the memory the fastest that loses no more than
 * `tolerable` percent is chosen; where there is none, or tolerable is below 0, the one that loses
 * least. Prints why each other one is not, and puts the chosen one's plan where the options say.
 * MOE_ERR_LIMIT: none fits. MOE_ERR_USAGE: the loss of one is not known. */
int plan_choose(char **packs, int n, double tolerable, const struct plan_options *options,
                struct moe_err *err);

/* ---- --shape with several budgets, or none: a line for each (plan_budgets.c) ---- */

/* What it plans where none is given. */
#define PLAN_BUDGETS "4GB,8GB,16GB,32GB"

/* budgets: sizes with commas. To stdout: which model, and whether moe-run knows it; then for each
 * size bits, cache, tokens/s and MB a token, or that it does not fit. MOE_ERR_USAGE: a size that is
 * none; MOE_ERR_LIMIT: nothing fits. */
int plan_budgets(const struct plan_options *o, const char *budgets, struct moe_err *err);

/* ---- --machines: a model shared out among several (plan_machines.c) ---- */

enum plan_shares { PLAN_SHARES_EXPERTS, PLAN_SHARES_ATTENTION /* too */, PLAN_SHARES_LAYERS };

/* machines: a file of them, see moe-device(5); shares: what they share out. Prints
 * what each has and does, tokens/s and what bounds them, and with `outlook` what other machines,
 * networks or memory would make of them. MOE_ERR_LIMIT: it does not fit. */
int plan_machines(const struct plan_options *o, const char *machines, enum plan_shares shares,
                  bool outlook, bool json, struct moe_err *err);

/* ---- --simulate: strategies side by side, on one trace, at several sizes of memory ---- */

/* strategies: separated by commas, with parts; NULL: all of the table. sizes: separated by commas,
 * "10%" of all experts, "2x" the experts of one token, or "4000M" of the whole process (without a
 * pack or shape: of experts; for a GPU, of its memory: the host's is o->memory). Prints
 * a table, or an array of JSON objects. */
int plan_simulate(const struct plan_options *o, const char *strategies, const char *sizes,
                  bool json, struct moe_err *err);

/* ---- --coe: collections of expert models, and systems side by side on a task (plan_coe.c) ---- */

struct plan_coe_options {
    const char *collection, *costs, *out;     /* out NULL: it is explained on stdout */
    const char *schedule, *evict, *executors; /* NULL: the best */
    uint64_t memory, device_memory, seed;
    bool casual, no_prefetch;
    uint32_t resident, window, fitted;
    uint32_t requests; /* of the sample; 0: 1000, or as many as the task has */
    double margin, interval;
};

/* Writes the plan to o->out, or its explanation to stdout. */
int plan_coe_make(const struct plan_coe_options *o, struct moe_err *err);

/* Prints what each system makes of a task of n requests, or that as an array of JSON objects. */
int plan_coe_simulate(const struct plan_coe_options *o, uint32_t n, bool json, struct moe_err *err);

#endif
