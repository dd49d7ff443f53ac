/*
 * Loops: layers that a pass goes through several times in a row, each time as a *visit* (Inkling-2
 * Mini). Layers of a looped model are numbered by visits, in their order. Weights and experts are
 * those of the first visit, the *owner*; all else a visit has for itself.
 */
#ifndef MOE_BASE_LOOP_H
#define MOE_BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

/* Visits [begin, begin + n * passes) are of n layers. All 0: every layer is visited once. */
struct moe_loop {
    uint32_t begin, n, passes;
};

static inline bool moe_loop_has(const struct moe_loop *l, uint32_t visit)
{
    return visit >= l->begin && visit - l->begin < l->n * l->passes;
}

/* The pass through the loop that a visit belongs to, from 0; 0 outside. */
static inline uint32_t moe_loop_pass(const struct moe_loop *l, uint32_t visit)
{
    return moe_loop_has(l, visit) ? (visit - l->begin) / l->n : 0;
}

static inline uint32_t moe_loop_owner(const struct moe_loop *l, uint32_t visit)
{
    return visit - moe_loop_pass(l, visit) * l->n;
}

/* The first visit from `from` on that has the owner; the owner where there is none in this pass
 * over all layers. */
static inline uint32_t moe_loop_next(const struct moe_loop *l, uint32_t owner, uint32_t from)
{
    uint32_t visit = owner;
    while (visit < from && moe_loop_has(l, owner) && moe_loop_has(l, visit + l->n))
        visit += l->n;
    return visit < from ? owner : visit;
}

/* Visits that are their owners, of the first `visits` ones. */
static inline uint32_t moe_loop_owners(const struct moe_loop *l, uint32_t visits)
{
    uint32_t once = l->begin + l->n;
    uint32_t again = l->passes ? (l->passes - 1) * l->n : 0;
    return visits <= once ? visits : visits - (visits - once < again ? visits - once : again);
}

#endif
