/*
 * Pool: the experts that an executor has in memory, and which of them leave when another is needed
 * (expert management, 4.3). Memory is counted in bytes.
 */
#ifndef MOE_COE_POOL_H
#define MOE_COE_POOL_H

#include "base/err.h"
#include "coe/experts.h"

enum moe_coe_evict {
    MOE_COE_LRU,
    MOE_COE_FIFO,
    /* First experts that only follow others while none of these is in memory, the largest first;
     * then by rising probability. */
    MOE_COE_TWO_STAGE,
};

struct moe_coe_pool;

/* An empty pool of so many bytes over experts that are borrowed. */
int moe_coe_pool_open(struct moe_coe_pool **out, const struct moe_coe_experts *all, uint64_t bytes,
                      enum moe_coe_evict evict, struct moe_err *err);
/* What experts take in this pool, [n], borrowed, where that is not what they say themselves: before
 * any is in it. One that is larger than the pool never gets there. */
void moe_coe_pool_set_sizes(struct moe_coe_pool *p, const uint64_t *sizes);
void moe_coe_pool_close(struct moe_coe_pool *p); /* NULL is fine */

bool moe_coe_pool_has(const struct moe_coe_pool *p, uint32_t expert);
uint64_t moe_coe_pool_free_bytes(const struct moe_coe_pool *p);
/* What it takes, or would take. */
uint64_t moe_coe_pool_size(const struct moe_coe_pool *p, uint32_t expert);
/* The likeliest expert that is not there, and for which there is room; MOE_COE_NONE. */
uint32_t moe_coe_pool_likeliest(const struct moe_coe_pool *p);

/* An expert in the pool is used. */
void moe_coe_pool_use(struct moe_coe_pool *p, uint32_t expert);
/* Held experts stay: one that computes, or is being loaded. Holds count. */
void moe_coe_pool_hold(struct moe_coe_pool *p, uint32_t expert);
void moe_coe_pool_release(struct moe_coe_pool *p, uint32_t expert);

/* Makes room for an expert that is not in the pool and puts it there, as used now. Those that left
 * are evicted[0..*n_evicted), room for as many as there are experts. False, and nothing changes:
 * even without all that are not held there is no room. */
bool moe_coe_pool_admit(struct moe_coe_pool *p, uint32_t expert, uint32_t *evicted,
                        uint32_t *n_evicted);

/* An expert leaves the pool, held or not: it could not be loaded. */
void moe_coe_pool_drop(struct moe_coe_pool *p, uint32_t expert);

#endif
