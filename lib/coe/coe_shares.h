/* What each processor has of a machine's memory, and what its experts need of it: the planner's
 * own. */
#ifndef MOE_COE_SHARES_H
#define MOE_COE_SHARES_H

#include "coe/coe_plan.h"

struct moe_coe_share {
    uint64_t bytes;                           /* of memory, for all its executors */
    uint64_t largest;                         /* its largest expert */
    uint64_t request;                         /* what a request takes, at most */
    uint64_t batch;                           /* ... and the largest batch */
    double speed;                             /* requests a second of all its executors, alone */
    struct moe_coe_plan_executors *executors; /* of the plan; NULL: none */
};

struct moe_coe_shares {
    const struct moe_coe_costs *costs;
    const struct moe_coe_experts *all;
    uint64_t memory_bytes, device_bytes; /* of the host, of an accelerator; 0: the costs' */
    struct moe_coe_share of[MOE_COE_MAX_PROCESSORS];
    uint32_t *ranked; /* experts in falling probability */
};

/* By costs and all, which are set. */
int moe_coe_shares_open(struct moe_coe_shares *s, struct moe_err *err);
void moe_coe_shares_close(struct moe_coe_shares *s);

/* What experts need of a processor that has so many executors, `plan->number`, from now on; NULL:
 * it has none. Says how many threads each has. */
void moe_coe_shares_set(struct moe_coe_shares *s, uint32_t on, struct moe_coe_plan_executors *plan);

/* Divides the memory among processors that have executors. Memory of its own goes to a processor
 * whole; the host's by speed, where those with memory of their own count for the tier of experts
 * above the disk. *tier: its bytes; *whole: of all together. */
void moe_coe_shares_divide(struct moe_coe_shares *s, uint64_t *tier, uint64_t *whole);

/* Divides a processor's memory between experts and batches: so many bytes for experts, at least its
 * largest one for each executor. */
void moe_coe_shares_split(struct moe_coe_shares *s, uint32_t on, uint64_t expert_bytes);

/* Memory of so many of its likeliest experts; how many of these fit. */
uint64_t moe_coe_shares_bytes_of(const struct moe_coe_shares *s, uint32_t on, uint32_t n);
uint32_t moe_coe_shares_fit(const struct moe_coe_shares *s, uint32_t on, uint64_t bytes);

#endif
