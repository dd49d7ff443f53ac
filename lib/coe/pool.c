#include "coe/pool.h"

#include <stdlib.h>

#include "base/mem.h"

/* A place of the list of those in the pool, by expert. */
struct place {
    uint32_t next, previous; /* towards later, earlier used (or loaded); MOE_COE_NONE at the ends */
    uint32_t holds;
    bool there;
};

struct moe_coe_pool {
    const struct moe_coe_experts *all; /* borrowed */
    const uint64_t *sizes;             /* [all->n] borrowed; NULL: as they say */
    enum moe_coe_evict evict;
    uint64_t bytes, taken;
    uint64_t held;        /* of those taken: experts that stay */
    uint32_t first, last; /* first: the earliest */
    struct place *places; /* [all->n] */
};

int moe_coe_pool_open(struct moe_coe_pool **out, const struct moe_coe_experts *all, uint64_t bytes,
                      enum moe_coe_evict evict, struct moe_err *err)
{
    *out = NULL;
    struct moe_coe_pool *p = moe_alloc(1, sizeof *p, err);
    if (!p)
        return MOE_ERR_MEMORY;
    *p = (struct moe_coe_pool){
        .all = all, .evict = evict, .bytes = bytes, .first = MOE_COE_NONE, .last = MOE_COE_NONE};
    p->places = moe_alloc(all->n, sizeof *p->places, err);
    if (!p->places) {
        moe_coe_pool_close(p);
        return MOE_ERR_MEMORY;
    }
    *out = p;
    return MOE_OK;
}

void moe_coe_pool_set_sizes(struct moe_coe_pool *p, const uint64_t *sizes)
{
    p->sizes = sizes;
}

void moe_coe_pool_close(struct moe_coe_pool *p)
{
    if (!p)
        return;
    free(p->places);
    free(p);
}

bool moe_coe_pool_has(const struct moe_coe_pool *p, uint32_t expert)
{
    return p->places[expert].there;
}

uint64_t moe_coe_pool_free_bytes(const struct moe_coe_pool *p)
{
    return p->bytes - p->taken;
}

uint64_t moe_coe_pool_size(const struct moe_coe_pool *p, uint32_t expert)
{
    return p->sizes ? p->sizes[expert] : p->all->experts[expert].bytes;
}

uint32_t moe_coe_pool_likeliest(const struct moe_coe_pool *p)
{
    const struct moe_coe_experts *all = p->all;
    uint32_t best = MOE_COE_NONE;
    for (uint32_t i = 0; i < all->n; i++)
        if (!p->places[i].there && moe_coe_pool_size(p, i) <= moe_coe_pool_free_bytes(p) &&
            (best == MOE_COE_NONE || all->experts[i].probability > all->experts[best].probability))
            best = i;
    return best;
}

/* ---- The list ---- */

static void append(struct moe_coe_pool *p, uint32_t expert)
{
    struct place *at = &p->places[expert];
    at->next = MOE_COE_NONE;
    at->previous = p->last;
    *(p->last == MOE_COE_NONE ? &p->first : &p->places[p->last].next) = expert;
    p->last = expert;
}

static void unlink_expert(struct moe_coe_pool *p, uint32_t expert)
{
    const struct place *at = &p->places[expert];
    *(at->previous == MOE_COE_NONE ? &p->first : &p->places[at->previous].next) = at->next;
    *(at->next == MOE_COE_NONE ? &p->last : &p->places[at->next].previous) = at->previous;
}

void moe_coe_pool_use(struct moe_coe_pool *p, uint32_t expert)
{
    if (p->evict != MOE_COE_LRU)
        return;
    unlink_expert(p, expert);
    append(p, expert);
}

void moe_coe_pool_hold(struct moe_coe_pool *p, uint32_t expert)
{
    if (p->places[expert].holds++ == 0)
        p->held += moe_coe_pool_size(p, expert);
}

void moe_coe_pool_release(struct moe_coe_pool *p, uint32_t expert)
{
    if (--p->places[expert].holds == 0)
        p->held -= moe_coe_pool_size(p, expert);
}

/* ---- Who leaves ---- */

/* None of the experts that lead to it is in memory: it cannot be needed before one of them is
 * loaded. */
static bool waits_for_others(const struct moe_coe_pool *p, uint32_t expert)
{
    const struct moe_coe_expert *e = &p->all->experts[expert];
    for (uint32_t i = 0; i < e->n_before; i++)
        if (p->places[p->all->before[e->first_before + i]].there)
            return false;
    return e->n_before > 0;
}

/* Stage 1, then stage 2; of equals the earliest loaded. */
static uint32_t two_stage(const struct moe_coe_pool *p)
{
    uint32_t largest = MOE_COE_NONE, rarest = MOE_COE_NONE;
    for (uint32_t e = p->first; e != MOE_COE_NONE; e = p->places[e].next) {
        if (p->places[e].holds > 0)
            continue;
        if (waits_for_others(p, e) &&
            (largest == MOE_COE_NONE || moe_coe_pool_size(p, e) > moe_coe_pool_size(p, largest)))
            largest = e;
        if (rarest == MOE_COE_NONE ||
            p->all->experts[e].probability < p->all->experts[rarest].probability)
            rarest = e;
    }
    return largest != MOE_COE_NONE ? largest : rarest;
}

/* Somebody is not held. */
static uint32_t victim(const struct moe_coe_pool *p)
{
    if (p->evict == MOE_COE_TWO_STAGE)
        return two_stage(p);
    uint32_t e = p->first;
    while (p->places[e].holds > 0)
        e = p->places[e].next;
    return e;
}

bool moe_coe_pool_admit(struct moe_coe_pool *p, uint32_t expert, uint32_t *evicted,
                        uint32_t *n_evicted)
{
    uint64_t wanted = moe_coe_pool_size(p, expert);
    *n_evicted = 0;
    if (wanted > p->bytes - p->held)
        return false;
    while (p->bytes - p->taken < wanted) {
        uint32_t e = victim(p);
        unlink_expert(p, e);
        p->places[e].there = false;
        p->taken -= moe_coe_pool_size(p, e);
        evicted[(*n_evicted)++] = e;
    }
    p->places[expert].there = true;
    p->taken += wanted;
    append(p, expert);
    return true;
}

void moe_coe_pool_drop(struct moe_coe_pool *p, uint32_t expert)
{
    struct place *at = &p->places[expert];
    if (!at->there)
        return;
    p->held -= at->holds ? moe_coe_pool_size(p, expert) : 0;
    unlink_expert(p, expert);
    at->there = false;
    at->holds = 0;
    p->taken -= moe_coe_pool_size(p, expert);
}
