/*
 * Systems side by side on one task (CoServe 5): the baselines, CoServe's parts added in turn, and
 * its settings.
 */
#ifndef MOE_COE_COMPARE_H
#define MOE_COE_COMPARE_H

#include "coe/coe_planner.h"

enum { MOE_COE_SYSTEMS = 10 };

struct moe_coe_system {
    const char *name, *what; /* "samba"; what it is, for people */
    const char *schedule, *evict;
    bool prefetch;
    enum { MOE_COE_ONE_EXECUTOR, MOE_COE_CASUALLY, MOE_COE_AT_BEST } setting;
};
extern const struct moe_coe_system moe_coe_systems[MOE_COE_SYSTEMS];

/* What a system makes of the task. p: what CoServe's plan was made of, for the casual setting.
 * best: CoServe's plan, whose executors and memory systems at the best setting have. *plan, where
 * not NULL: what was simulated, the caller's to free. */
int moe_coe_compare(const struct moe_coe_system *system, const struct moe_coe_planner *p,
                    const struct moe_coe_plan *best, const struct moe_coe_task *task,
                    struct moe_coe_simulated *out, struct moe_coe_plan **plan, struct moe_err *err);

#endif
