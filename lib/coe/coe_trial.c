/* A plan's executors in the simulator. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coe/coe_planner.h"
#include "coe/schedule.h"

static int find_ways(const struct moe_coe_plan *plan, struct moe_coe_options *o,
                     struct moe_err *err)
{
    const struct moe_coe_schedule *schedule = moe_coe_schedule_find(plan->schedule);
    if (!schedule || !moe_coe_evict_find(plan->evict, &o->evict))
        return moe_fail(err, MOE_ERR_USAGE, "there is no %s '%s'",
                        schedule ? "eviction" : "schedule",
                        schedule ? plan->evict : plan->schedule);
    o->assign = schedule->assign;
    o->arrange = schedule->arrange;
    return MOE_OK;
}

/* tables: [n_processors * n_kinds]; at_a_time: [n_processors]. */
static int add_executors(const struct moe_coe_plan *plan, const struct moe_coe_costs *costs,
                         struct moe_coe_cost *tables, uint32_t *at_a_time,
                         struct moe_coe_executor_options *executors, uint32_t *processor_of,
                         uint32_t *n, struct moe_err *err)
{
    for (uint32_t i = 0; i < plan->n_executors; i++) {
        const struct moe_coe_plan_executors *e = &plan->executors[i];
        uint32_t on = moe_coe_costs_processor(costs, e->device);
        uint32_t threads;
        if (on == MOE_COE_NONE)
            return moe_fail(err, MOE_ERR_USAGE, "the costs have no processor '%s'", e->device);
        moe_coe_costs_teams(costs, on, e->number, &threads, &at_a_time[on]);
        if (e->threads && threads) { /* as the plan says */
            uint32_t all = costs->processors[on].threads;
            threads = e->threads < all ? e->threads : all;
            at_a_time[on] = all / threads;
        }
        moe_coe_costs_table(costs, on, threads, &tables[on * costs->n_kinds]);
        for (uint32_t k = 0; k < e->number; k++, ++*n) {
            executors[*n] = (struct moe_coe_executor_options){&tables[on * costs->n_kinds],
                                                              e->expert_bytes, e->batch_bytes, on};
            processor_of[*n] = on;
        }
    }
    return MOE_OK;
}

int moe_coe_plan_simulate(const struct moe_coe_plan *plan, const struct moe_coe_costs *costs,
                          const struct moe_coe_experts *all, const struct moe_coe_task *task,
                          double schedule_seconds, struct moe_coe_simulated *out,
                          struct moe_err *err)
{
    struct moe_coe_executor_options executors[MOE_COE_MAX_PROCESSORS * MOE_COE_MAX_EXECUTORS];
    uint32_t processor_of[MOE_COE_MAX_PROCESSORS * MOE_COE_MAX_EXECUTORS];
    uint32_t at_a_time[MOE_COE_MAX_PROCESSORS] = {0};
    struct moe_coe_options o = {.all = all, .executors = executors};
    struct moe_coe_cost *tables =
        moe_alloc((uint64_t)costs->n_processors * costs->n_kinds, sizeof *tables, err);
    int status = tables ? find_ways(plan, &o, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = add_executors(plan, costs, tables, at_a_time, executors, processor_of,
                               &o.n_executors, err);
    const struct moe_coe_machine machine = {.n_processors = costs->n_processors,
                                            .processor_of = processor_of,
                                            .at_a_time = at_a_time,
                                            .host_bytes = plan->host_bytes,
                                            .host_evict = o.evict,
                                            .prefetch = plan->prefetch,
                                            .place = true,
                                            .schedule_seconds = schedule_seconds,
                                            .host_processor =
                                                moe_coe_costs_processor(costs, "cpu")};
    if (status == MOE_OK)
        status = moe_coe_simulate(&o, &machine, task->arrivals, task->n, out, err);
    free(tables);
    return status;
}
