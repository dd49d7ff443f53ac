/*
 * Planner: tries strategies in the simulator and makes a plan of the best, with what a person wants
 * to know about it. Pure, except that it reads the trace.
 */
#ifndef MOE_PLAN_PLANNER_H
#define MOE_PLAN_PLANNER_H

#include "base/progress.h"
#include "model/config.h"
#include "plan/fitting.h"
#include "plan/optimal.h"
#include "plan/plan.h"
#include "plan/simulate.h"
#include "sched/calibration.h"
#include "sched/strategy.h"

enum { MOE_PLANNER_BITS = 4 };

/* Bits that the model's experts could have, though it may not be stored at them. */
struct moe_planner_bits {
    char name[MOE_NAME_BYTES];
    double bytes; /* of an expert */
};

struct moe_trials; /* planner_search.c */

/* A model at other precisions than the planner's. */
struct moe_planner_model {
    const struct moe_inventory *inventory;
    struct moe_fitter fitter;
    const struct moe_pace *pace;
    char precision[MOE_NAME_BYTES]; /* as people are told */
};

struct moe_planner {
    const struct moe_inventory *inventory;
    struct moe_fitter fitter;
    struct moe_trace *trace;
    struct moe_excerpt excerpt;              /* of the trace; {0}: all */
    const struct moe_lookups *lookups;       /* of the same tokens; NULL: no optimum */
    const struct moe_statistics *statistics; /* paths, frequencies, accuracies; NULL: none */
    const struct moe_statistics *scoring;    /* what simulations go by in their place, where these
                                                count the trace's own documents (document_split.h) */
    const char *learnt;                      /* the file that caches begin with; NULL: none */
    const struct moe_pace *pace;
    /* The model as it runs in so much memory, where that decides its precisions (maps for
     * tolerances); out->inventory stays NULL: at the same ones. NULL: it always does. */
    int (*model_at)(void *ctx, uint64_t bytes, struct moe_planner_model *out, struct moe_err *err);
    void *model_ctx;
    uint64_t host_bytes;    /* for experts behind a device's slots, where the pace has a storage */
    bool exact;             /* only what cannot change results */
    bool batch_named;       /* by the user: no other is tried */
    uint32_t batch;         /* rows of a pass; 0: the fitter's choice */
    uint32_t prompt_tokens; /* that prompts have; 0: as many as the context allows */
    const struct moe_calibration *calibration; /* NULL: none */
    bool any_loss;   /* it is not asked: in other memory speeds are known, losses are not */
    uint32_t n_bits; /* for alternatives */
    struct moe_planner_bits bits[MOE_PLANNER_BITS];
    uint64_t seed;
    /* Of the trace, for each trial but those that say what a plan gives: sequences from all over
     * it; 0: as many as large models are planned with in a minute. */
    uint64_t trial_tokens;
    const struct moe_progress *progress;
    bool shows_progress;       /* of the trials of a plan, once its strategy is found */
    struct moe_trials *trials; /* side by side, and remembered; NULL: one by one, and forgotten */
};

/* Sets the bits that a model's experts could have. */
int moe_planner_set_bits(struct moe_planner *p, const struct moe_config *config,
                         struct moe_err *err);

struct moe_trial_run {
    struct moe_fitted fitted;
    struct moe_simulated simulated;
    double optimal_hit_rate; /* below 0: not known (optimal.h). No bound for a strategy that loads
                                before the first token, prefetches or uses a lower precision */
};

/* Of decoded tokens; 0 if none were decoded. */
double moe_trial_tokens_per_second(const struct moe_trial_run *t);
double moe_trial_hit_rate(const struct moe_trial_run *t);

/* Simulates one strategy in `bytes` of memory (0: as asked for), at load_rate (0: the pace's).
 * layers: [n_layers] or NULL. MOE_ERR_USAGE: it cannot run here, may change results although
 * `exact` is asked for, or does not agree with the calibration. */
int moe_planner_try(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct moe_trial_run *out,
                    struct moe_simulated_layer *layers, struct moe_err *err);

/* Machines that share out a model's experts (ranks/ranks.h); the first runs the model. */
struct moe_planner_machines {
    uint32_t n;
    const char *const *names; /* [n] */
    /* [n] as for one machine: its own experts, memory, pace. Trace, excerpt, statistics: the
     * first's. */
    const struct moe_planner *planners;
    const struct moe_wire_pace *wires; /* [n] the first is not used */
    const uint8_t *holders;            /* who has each expert, [n_keys][2] (share.h) */
    const uint8_t *attends;            /* ... and each layer's attention; NULL: the first */
    const uint8_t *owners;             /* ... and all of it; NULL: no layer is shared out so */
    uint64_t row_bytes;                /* of a row that goes there or comes back */
};

/* Simulates a strategy on them; where `automatic`, a machine that holds all of its experts does so.
 * runs: [n] how it fits each, and in the first what is simulated; work: [n], what the others do.
 * MOE_ERR_USAGE, MOE_ERR_LIMIT: as moe_planner_try, with the machine. */
int moe_planner_try_machines(const struct moe_planner_machines *m,
                             const struct moe_strategy *strategy, bool automatic,
                             struct moe_trial_run *runs, struct moe_simulated_work *work,
                             struct moe_err *err);

/* Searches the strategies of the table and their parts for the fastest decoding (--strategy auto):
 * every strategy that can run here without statistics, then of the fastest of them one part after
 * the other, as long as that gains; with a calibration, also its findings. Everything tried goes to
 * plan->tried, the fastest first. MOE_ERR_LIMIT: nothing can run here. */
int moe_planner_search(const struct moe_planner *p, struct moe_plan *plan,
                       struct moe_strategy *best, struct moe_err *err);

/* Simulates a prompt of p->prompt_tokens (of MOE_PLANNER_PROMPT at most: longer ones take as long
 * for a token, but for attention), after `whole` has shown what memory and context there are.
 * *n_tokens: how many it has; 0: prompts are the trace's own, as where an encoder reads them. */
enum { MOE_PLANNER_PROMPT = 1024 };
int moe_planner_try_prompt(const struct moe_planner *p, const struct moe_strategy *strategy,
                           uint64_t bytes, double load_rate, const struct moe_trial_run *whole,
                           struct moe_simulated_phase *out, uint32_t *n_tokens,
                           struct moe_err *err);

/* Searches the batch, with the cache that it leaves, for the least time of prompts and of answers,
 * each beside what it takes by the fitter's own choice, and sets it. Neither becomes slower than
 * that: so it is no smaller than the fitter's, unless prompts are. Leaves it 0 where nothing is
 * faster. */
int moe_planner_search_batch(struct moe_planner *p, const struct moe_strategy *strategy,
                             struct moe_err *err);

/* Fills the plan for one strategy: slots, contents, boundaries, T and n, expectations, outlook,
 * alternatives, doubts (by the evidence). Outlook, alternatives and doubts of large models are
 * simulated on fewer tokens (trial_tokens), and then scaled by what the plan itself gives on these
 * and on all. What the caller sets stays: names, fingerprint, the evidence's files and what it says
 * of times and the link, what was tried. */
int moe_planner_make(const struct moe_planner *p, const struct moe_strategy *strategy,
                     struct moe_plan *plan, struct moe_err *err);

/*
 * Trials of a planner side by side, and those it made before: what the planner will try is
 * simulated ahead by as many threads as loops have, each with a reader of the trace of its own, and
 * remembered; the planner then decides in its own order, one after the other, by what is
 * remembered. So a plan is the same for every number of threads.
 */

/* What the planner will ask moe_planner_try for, with the same planner and no layers. */
struct moe_trial {
    const struct moe_strategy *strategy;
    uint64_t bytes;
    double load_rate;
    struct moe_excerpt excerpt; /* the planner's, or another of its trace */
    uint32_t batch;
    const struct moe_pace *pace;
};

/* Of a planner that tries these on its trace, with moe_par_threads() threads; set p->trials to it.
 * What the planner borrows stays as it is until it is closed. */
int moe_trials_open(struct moe_trials **out, const struct moe_planner *p, struct moe_err *err);
void moe_trials_close(struct moe_trials *t); /* NULL is fine */

/* As moe_planner_try would be asked for it with p's own excerpt, batch and pace. */
static inline struct moe_trial moe_trial_of(const struct moe_planner *p,
                                            const struct moe_strategy *strategy, uint64_t bytes,
                                            double load_rate)
{
    return (struct moe_trial){strategy, bytes, load_rate, p->excerpt, p->batch, p->pace};
}

/* Simulates those of n that were not yet, and remembers them. What cannot run here is left for
 * moe_planner_try to say. Reports `what` on the way, from `done` of `total` on; NULL: nothing.
 * Without p->trials, or with one thread, it does nothing. MOE_ERR_INTERRUPTED, MOE_ERR_MEMORY. */
int moe_trials_ahead(const struct moe_planner *p, const struct moe_trial *trials, uint32_t n,
                     const char *what, uint64_t done, uint64_t total, struct moe_err *err);

#endif
