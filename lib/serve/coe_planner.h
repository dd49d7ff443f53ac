/* What each processor has of a machine's memory, and what its experts need of it: the planner's
 * own. */
#ifndef MOE_SERVE_COE_PLANNER_H
#define MOE_SERVE_COE_PLANNER_H

#include "serve/coe_plan.h"
#include "serve/coe_simulate.h"

struct moe_coe_share {
    uint64_t bytes;                           /* of memory, for all its executors */
    uint64_t largest;                         /* its largest expert */
    uint64_t request;                         /* what a request takes, at most */
    uint64_t batch;                           /* ... and the largest batch */
    double speed;                             /* requests a second of all its executors, alone */
    struct moe_coe_plan_executors *executors; /* of the plan; NULL: none */
};

struct moe_coe_shares {
    const struct moe_coe_costs *costs;
    const struct moe_coe_experts *all;
    uint64_t memory_bytes, device_bytes; /* of the host, of an accelerator; 0: the costs' */
    struct moe_coe_share of[MOE_COE_MAX_PROCESSORS];
    uint32_t *ranked; /* experts in falling probability */
};

/*
 * Planner of collections: executors, and how the memory of each goes to experts and batches, tried
 * with the simulator on a sample of requests (CoServe 4.4, 4.5).
 *
 * Memory that processors share, and the host's tier of experts above the disk where one has memory
 * of its own, is divided by the requests a second that each would compute alone; a processor gets
 * at least room for two of its largest experts and a request. On a processor whose largest batch
 * takes at most a quarter of its memory that comes first; on others the decay window finds the
 * number of experts.
 */

/* The casual setting: experts get this share of an executor's memory, batches the rest (5.2). */
#define MOE_COE_CASUAL 0.75

struct moe_coe_planner {
    const struct moe_coe_costs *costs;
    const struct moe_coe_experts *all;
    const struct moe_coe_task *sample; /* of requests */
    const char *schedule, *evict;      /* names */
    bool prefetch;
    bool casual; /* accelerators get MOE_COE_CASUAL; numbers of executors as given, or 3 and 1 */
    uint64_t memory_bytes;                /* of the host; 0: the costs' */
    uint64_t device_bytes;                /* of an accelerator's own; 0: the costs' */
    uint32_t cuda, cpu;                   /* executors; UINT32_MAX: as many as are best */
    uint32_t resident;                    /* experts where the window would find them; 0: it does */
    struct moe_coe_window_options window; /* but for `most` */
};

/* Fills a new plan but for the names of what it is made for. MOE_ERR_LIMIT: the memory does not
 * suffice; MOE_ERR_USAGE: no such processor, schedule, eviction. */
int moe_coe_planner_make(const struct moe_coe_planner *p, struct moe_coe_plan *plan,
                         struct moe_err *err);

/* What a plan makes of a task. schedule_seconds: as of struct moe_coe_machine. */
int moe_coe_plan_simulate(const struct moe_coe_plan *plan, const struct moe_coe_costs *costs,
                          const struct moe_coe_experts *all, const struct moe_coe_task *task,
                          double schedule_seconds, struct moe_coe_simulated *out,
                          struct moe_err *err);

/*
 * Systems side by side on one task (CoServe 5): the baselines, CoServe's parts added in turn, and
 * its settings.
 */

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
