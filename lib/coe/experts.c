#include "coe/experts.h"

#include <stdlib.h>

#include "base/mem.h"

struct ranked {
    double probability;
    uint32_t expert;
};

static int by_falling_probability(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->probability != y->probability)
        return x->probability < y->probability ? 1 : -1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

uint32_t *moe_coe_rank(const struct moe_coe_experts *all, struct moe_err *err)
{
    struct ranked *by = moe_alloc(all->n, sizeof *by, err);
    uint32_t *ranked = moe_alloc(all->n, sizeof *ranked, err);
    for (uint32_t i = 0; i < all->n && by; i++)
        by[i] = (struct ranked){all->experts[i].probability, i};
    if (by)
        qsort(by, all->n, sizeof *by, by_falling_probability);
    for (uint32_t i = 0; i < all->n && by && ranked; i++)
        ranked[i] = by[i].expert;
    if (!by) {
        free(ranked);
        ranked = NULL;
    }
    free(by);
    return ranked;
}
