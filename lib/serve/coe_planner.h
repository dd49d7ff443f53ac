/*
 * Planner of collections: tries executors, and how each one's memory is divided among experts and
 * batches, with the simulator on a sample of requests (CoServe 4.4, 4.5).
 *
 * Memory that processors share, and the host's tier of experts above the disk if one has its own
 * memory, is divided by the requests per second that each would compute on its own; a processor
 * gets at least room for two of its largest experts and a request. On a processor whose largest
 * batch takes at most a quarter of its memory, the batch is placed first; on others the decay
 * window finds the number of experts.
 */
#ifndef MOE_SERVE_COE_PLANNER_H
#define MOE_SERVE_COE_PLANNER_H

#include "serve/coe_plan.h"
#include "serve/coe_simulate.h"

/* The casual setting: experts get this share of an executor's memory, batches the rest (5.2). */
#define MOE_COE_CASUAL 0.75

struct moe_coe_planner {
    const struct moe_coe_costs *costs;
    const struct moe_coe_experts *all;
    const struct moe_coe_task *samples; /* [n_samples] tasks like those to come, at least one: what
                                           is measured is the mean of them */
    uint32_t n_samples;
    const char *schedule, *evict; /* names; NULL: what gives more, "home" or "coserve", "queue" or
                                     "two-stage" */
    bool prefetch; /* planned with and without prefetching, and what gives more is taken; false:
                      without */
    bool casual;   /* accelerators get MOE_COE_CASUAL; executors as given, or 3 and 1 */
    uint64_t memory_bytes; /* the host's; 0: as in the costs */
    uint64_t device_bytes; /* an accelerator's own; 0: as in the costs */
    uint32_t cuda, cpu;    /* executors; UINT32_MAX: the best number */
    uint32_t resident;     /* experts instead of the window's choice; 0: the window */
    struct moe_coe_window_options window; /* without `most` */
};

/* Fills in a new plan except for the names of what it is made for. MOE_ERR_LIMIT: memory does not
 * suffice; MOE_ERR_USAGE: no such processor, schedule, eviction. */
int moe_coe_planner_make(const struct moe_coe_planner *p, struct moe_coe_plan *plan,
                         struct moe_err *err);

/* Simulates a plan on a task. schedule_seconds: as in struct moe_coe_machine. */
int moe_coe_plan_simulate(const struct moe_coe_plan *plan, const struct moe_coe_costs *costs,
                          const struct moe_coe_experts *all, const struct moe_coe_task *task,
                          double schedule_seconds, struct moe_coe_simulated *out,
                          struct moe_err *err);

/*
 * Systems side by side on one task (CoServe 5): the baselines, CoServe's parts added in turn, and
 * its settings.
 */

enum { MOE_COE_SYSTEMS = 14 };

struct moe_coe_system {
    const char *name, *what;      /* "samba"; a description for people */
    const char *schedule, *evict; /* NULL: as planned */
    bool prefetch;
    /* Executors and memory: of the casual setting, of CoServe's plan, of a plan of its own, of the
     * plan that moe_coe_planner_make chooses. */
    enum {
        MOE_COE_ONE_EXECUTOR,
        MOE_COE_CASUALLY,
        MOE_COE_AT_BEST,
        MOE_COE_OWN,
        MOE_COE_PLANNED
    } setting;
};
extern const struct moe_coe_system moe_coe_systems[MOE_COE_SYSTEMS];

/* Simulates a system on the task. p: the inputs of CoServe's plan, for those of the others. best:
 * CoServe's plan, whose executors and memory the systems at the best setting use. *plan, unless
 * NULL: what was simulated; the caller frees it. */
int moe_coe_compare(const struct moe_coe_system *system, const struct moe_coe_planner *p,
                    const struct moe_coe_plan *best, const struct moe_coe_task *task,
                    struct moe_coe_simulated *out, struct moe_coe_plan **plan, struct moe_err *err);

#endif
