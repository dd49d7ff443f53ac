/* Costs of teams of threads. */
#include <string.h>

#include "coe/costs.h"

/* The smallest team of at least so many threads; NULL: none is that large. */
static const struct moe_coe_kind_cost *above(const struct moe_coe_costs *c, uint32_t kind,
                                             uint32_t on, uint32_t threads)
{
    const struct moe_coe_kind_cost *best = NULL;
    for (uint32_t i = 0; i < c->n_costs; i++) {
        const struct moe_coe_kind_cost *k = &c->costs[i];
        if (k->kind == kind && k->on == on && k->threads >= threads &&
            (!best || k->threads < best->threads))
            best = k;
    }
    return best;
}

/* ... the largest of fewer. */
static const struct moe_coe_kind_cost *below(const struct moe_coe_costs *c, uint32_t kind,
                                             uint32_t on, uint32_t threads)
{
    const struct moe_coe_kind_cost *best = NULL;
    for (uint32_t i = 0; i < c->n_costs; i++) {
        const struct moe_coe_kind_cost *k = &c->costs[i];
        if (k->kind == kind && k->on == on && k->threads < threads &&
            (!best || k->threads > best->threads))
            best = k;
    }
    return best;
}

/* What takes `more` with more threads and `fewer` with fewer. */
static double between(double more, double fewer, double share)
{
    return more + share * (fewer - more);
}

/* Loading and memory are those of the larger team: sessions have scratch for each thread. */
static struct moe_coe_cost cost_of(const struct moe_coe_costs *c, uint32_t kind, uint32_t on,
                                   uint32_t threads)
{
    const struct moe_coe_kind_cost *more = above(c, kind, on, threads);
    const struct moe_coe_kind_cost *fewer = below(c, kind, on, threads);
    if (!more)
        return (struct moe_coe_cost){0};
    struct moe_coe_cost cost = more->cost;
    if (more->threads == threads)
        return cost;
    double at = 1.0 / threads, most = 1.0 / more->threads;
    if (fewer) {
        double share = (at - most) / (1.0 / fewer->threads - most);
        cost.per_request = between(cost.per_request, fewer->cost.per_request, share);
        cost.per_batch = between(cost.per_batch, fewer->cost.per_batch, share);
    } else {
        cost.per_request *= at / most;
        cost.per_batch *= at / most;
    }
    return cost;
}

void moe_coe_costs_table(const struct moe_coe_costs *c, uint32_t processor, uint32_t threads,
                         struct moe_coe_cost *table)
{
    uint32_t all = c->processors[processor].threads;
    threads = threads == 0 || threads > all ? all : threads;
    for (uint32_t kind = 0; kind < c->n_kinds; kind++)
        table[kind] = cost_of(c, kind, processor, threads);
}

void moe_coe_costs_teams(const struct moe_coe_costs *c, uint32_t processor, uint32_t n,
                         uint32_t *threads, uint32_t *at_a_time)
{
    uint32_t all = c->processors[processor].threads;
    *threads = all > n ? all / n : all > 0;
    *at_a_time = all == 0 ? 1 : n < all ? n : all;
}
