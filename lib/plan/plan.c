#include "plan/plan.h"

#include <stdlib.h>

#include "base/mem.h"
#include "plan/plan_format.h"
#include "record/trace.h"

static int fill(struct moe_plan *p, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                struct moe_err *err)
{
    p->n_layers = n_layers;
    p->n_experts = n_experts;
    p->top_k = top_k;
    plan_forget(&plan_boundary, p);
    plan_forget(&plan_expected, p);
    p->layers = moe_alloc(n_layers, sizeof *p->layers, err);
    if (!p->layers)
        return MOE_ERR_MEMORY;
    for (uint32_t l = 0; l < n_layers; l++)
        plan_forget(&plan_layer, &p->layers[l]);
    return MOE_OK;
}

int moe_plan_new(struct moe_plan **out, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                 struct moe_err *err)
{
    *out = NULL;
    if (!moe_plan_shape_fits(n_layers, n_experts, top_k))
        return moe_fail(err, MOE_ERR_USAGE,
                        "no plan can be made for %u layers of %u experts, %u per token", n_layers,
                        n_experts, top_k);
    struct moe_plan *p = moe_alloc(1, sizeof *p, err);
    int status = p ? fill(p, n_layers, n_experts, top_k, err) : MOE_ERR_MEMORY;
    if (status != MOE_OK) {
        moe_plan_free(p);
        return status;
    }
    *out = p;
    return MOE_OK;
}

bool moe_plan_shape_fits(uint32_t n_layers, uint32_t n_experts, uint32_t top_k)
{
    return n_layers > 0 && n_layers <= MOE_PLAN_MAX_LAYERS && top_k > 0 && top_k <= n_experts &&
           (uint64_t)n_layers * n_experts <= MOE_TRACE_MAX_EXPERTS;
}

void moe_plan_free(struct moe_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < MOE_MAX_CLASSES; i++)
        free(plan->pools[i].per_layer);
    free(plan->contents);
    free(plan->layers);
    free(plan->tried);
    free(plan);
}
