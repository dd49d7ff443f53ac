/*
 * Collaboration of experts (CoServe, https://doi.org/10.1145/3676641.3715986): what scheduler and
 * expert manager know of the models of a collection, and of the processors that run them.
 * Everything on this floor decides; nothing loads or computes. Times are seconds, memory is bytes.
 */
#ifndef MOE_COE_EXPERTS_H
#define MOE_COE_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { MOE_COE_NONE = UINT32_MAX };

/* An expert is a model of its own, which requests name as a whole. */
struct moe_coe_expert {
    uint64_t bytes;     /* of memory while it is loaded */
    double probability; /* that a request uses it, 0..1 (4.5) */
    uint32_t kind;      /* its architecture: experts of one kind take the same time */
    uint32_t first_before,
        n_before;    /* those whose results lead to it; none: requests begin there */
    uint32_t not_on; /* processors that must not run it: a bit each, bit p for processor p */
};

struct moe_coe_experts {
    uint32_t n, n_kinds;
    const struct moe_coe_expert *experts; /* [n] */
    const uint32_t *before;               /* experts, by first_before */
};

/* An expert that only runs after others (a subsequent expert, 4.3). */
static inline bool moe_coe_follows(const struct moe_coe_experts *all, uint32_t expert)
{
    return all->experts[expert].n_before > 0;
}

/* What a batch of n requests to an expert of a kind takes on a processor: per_request * n +
 * per_batch (K and B of 4.2). */
struct moe_coe_cost {
    double per_request, per_batch;
    double load;            /* of the expert, from the disk */
    double load_from_host;  /* ... from the host's memory; 0: the processor has no tier below it */
    uint32_t max_batch;     /* where requests stop getting cheaper (4.5) */
    uint64_t request_bytes; /* of memory for each request of a batch, beside the expert */
};

/* All experts, [n], in falling probability, of equals in their order; free(). NULL: out of memory.
 */
uint32_t *moe_coe_rank(const struct moe_coe_experts *all, struct moe_err *err);

static inline double moe_coe_batch_seconds(const struct moe_coe_cost *cost, uint32_t n)
{
    return cost->per_request * n + cost->per_batch;
}

#endif
