#include "coe/coe_compare.h"

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

static uint32_t executors_of(const struct moe_coe_plan *plan, const char *device)
{
    for (uint32_t i = 0; i < plan->n_executors; i++)
        if (strcmp(plan->executors[i].device, device) == 0)
            return plan->executors[i].number;
    return 0;
}

int moe_coe_compare(const struct moe_coe_system *system, const struct moe_coe_planner *p,
                    const struct moe_coe_plan *best, const struct moe_coe_task *task,
                    struct moe_coe_simulated *out, struct moe_coe_plan **plan, struct moe_err *err)
{
    struct moe_coe_planner own = *p;
    struct moe_coe_plan *made;
    bool has_cuda = moe_coe_costs_processor(p->costs, "cuda") != MOE_COE_NONE;
    own.schedule = system->schedule;
    own.evict = system->evict;
    own.prefetch = system->prefetch;
    own.casual = system->setting != MOE_COE_AT_BEST;
    if (system->setting == MOE_COE_ONE_EXECUTOR) {
        own.cuda = has_cuda;
        own.cpu = !has_cuda;
    } else if (system->setting == MOE_COE_AT_BEST) {
        own.cuda = executors_of(best, "cuda");
        own.cpu = executors_of(best, "cpu");
        own.resident = best->window.device[0] ? best->window.chosen : p->resident;
    }
    int status = moe_coe_plan_new(&made, err);
    if (status == MOE_OK)
        status = moe_coe_planner_make(&own, made, err);
    if (status == MOE_OK)
        status = moe_coe_plan_simulate(made, p->costs, p->all, task, 0, out, err);
    if (plan && status == MOE_OK)
        *plan = made;
    else
        moe_coe_plan_free(made);
    return status;
}
