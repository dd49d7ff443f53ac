#include "coe/coe_compare.h"

#include <stdio.h>
#include <string.h>

/* 5.1 for the baselines, 5.3 for the parts. The paper does not say that CoServe loads the next
 * expert while the present one computes: that is a row of its own. */
const struct moe_coe_system moe_coe_systems[MOE_COE_SYSTEMS] = {
    {"samba", "Samba-CoE: one executor, first come first served, LRU", "fcfs", "lru", false,
     MOE_COE_ONE_EXECUTOR},
    {"samba-fifo", "... with FIFO", "fcfs", "fifo", false, MOE_COE_ONE_EXECUTOR},
    {"samba-parallel", "... on as many executors as CoServe, in turn", "round-robin", "lru", false,
     MOE_COE_AT_BEST},
    {"none", "CoServe without its parts: FIFO, executors in turn", "round-robin", "fifo", false,
     MOE_COE_AT_BEST},
    {"em", "... with expert management", "round-robin", "two-stage", false, MOE_COE_AT_BEST},
    {"em+ra", "... and request arranging", "arrange", "two-stage", false, MOE_COE_AT_BEST},
    {"casual", "CoServe at its casual setting", "coserve", "two-stage", false, MOE_COE_CASUALLY},
    {"coserve", "CoServe at its best setting: arranging and assigning", "coserve", "two-stage",
     false, MOE_COE_AT_BEST},
    {"coserve+next", "... and the next expert loads meanwhile", "coserve", "two-stage", true,
     MOE_COE_AT_BEST},
    {"fcfs+two-stage", "expert management alone, one executor", "fcfs", "two-stage", false,
     MOE_COE_ONE_EXECUTOR},
};

/* CoServe's executors and memory under another schedule. */
static void copy(const struct moe_coe_plan *best, struct moe_coe_plan *plan)
{
    memcpy(plan->executors, best->executors, best->n_executors * sizeof *best->executors);
    plan->n_executors = best->n_executors;
    plan->memory_bytes = best->memory_bytes;
    plan->host_bytes = best->host_bytes;
}

int moe_coe_compare(const struct moe_coe_system *system, const struct moe_coe_planner *p,
                    const struct moe_coe_plan *best, const struct moe_coe_task *task,
                    struct moe_coe_simulated *out, struct moe_coe_plan **plan, struct moe_err *err)
{
    struct moe_coe_planner casual = *p;
    struct moe_coe_plan *made;
    bool has_cuda = moe_coe_costs_processor(p->costs, "cuda") != MOE_COE_NONE;
    bool alone = system->setting == MOE_COE_ONE_EXECUTOR;
    casual.casual = true;
    casual.resident = 0;
    casual.cuda = alone ? has_cuda : UINT32_MAX;
    casual.cpu = alone ? !has_cuda : UINT32_MAX;
    int status = moe_coe_plan_new(&made, err);
    if (status == MOE_OK && system->setting == MOE_COE_AT_BEST)
        copy(best, made);
    else if (status == MOE_OK)
        status = moe_coe_planner_make(&casual, made, err);
    if (status == MOE_OK) {
        snprintf(made->schedule, sizeof made->schedule, "%s", system->schedule);
        snprintf(made->evict, sizeof made->evict, "%s", system->evict);
        made->prefetch = system->prefetch;
        status = moe_coe_plan_simulate(made, p->costs, p->all, task, 0, out, err);
    }
    if (plan && status == MOE_OK)
        *plan = made;
    else
        moe_coe_plan_free(made);
    return status;
}
