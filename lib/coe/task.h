/* Tasks: requests as a collection's quantities and shares have them come, drawn by a seed. */
#ifndef MOE_COE_TASK_H
#define MOE_COE_TASK_H

#include "coe/collection.h"
#include "coe/simulate.h"

struct moe_coe_task {
    uint32_t n; /* requests */
    struct moe_coe_arrival *arrivals;
    uint32_t *steps; /* what their paths point into */
};

/* n requests, one each `interval` seconds. Where they begin follows the routes' quantities or,
 * where not all say theirs, the probabilities of the experts that no result leads to; where results
 * go on follows the shares of the rules, in their order (one that says none takes all that is
 * left). The same inputs always give the same task. MOE_ERR_USAGE: neither quantities nor
 * probabilities. */
int moe_coe_task_draw(struct moe_coe_task *t, const struct moe_coe_collection *c,
                      const struct moe_coe_experts *all, uint32_t n, double interval, uint64_t seed,
                      struct moe_err *err);
void moe_coe_task_release(struct moe_coe_task *t);

#endif
