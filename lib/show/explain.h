/*
 * Explanations of plans, statistics and packs, in plain words, for someone who has not read the
 * papers, and as JSON for scripts.
 *
 * Every figure of a plan follows from it by the formulas here; seconds are per decoded token.
 */
#ifndef MOE_SHOW_EXPLAIN_H
#define MOE_SHOW_EXPLAIN_H

#include "base/buf.h"
#include "base/err.h"
#include "plan/plan.h"
#include "record/statistics.h"

/* ---- A plan ---- */

/* What is in the way of a faster token. */
enum moe_bound {
    MOE_BOUND_COMPUTATION = 0, /* with every expert in memory it would still take so long */
    MOE_BOUND_LINK,            /* further, what must be loaded even where a cache knows the future:
                                  link_limit_seconds - compute_limit_seconds, not below 0 */
    MOE_BOUND_FORESIGHT,       /* the rest: what knowing the future would save */
    MOE_N_BOUNDS
};
struct moe_plan_bounds {
    double total;                 /* compute + stall + host seconds */
    double seconds[MOE_N_BOUNDS]; /* add up to the total */
    enum moe_bound largest;
};
struct moe_plan_bounds moe_plan_bounds(const struct moe_plan *plan);

/* How far the hit rate may be off for the trace's shortness alone: two standard errors,
 * 2 sqrt(h (1 - h) / n), where each decoded token counts as one draw. 1 where there were none. */
double moe_plan_hit_rate_error(const struct moe_plan *plan);

/* The first step above `amount` (by more than a thousandth); NULL: none. */
const struct moe_plan_step *moe_plan_next_step(const struct moe_plan_step *steps, uint32_t n,
                                               double amount);

/* What a plan assumes, the weakest first. */
enum moe_assumption {
    MOE_ASSUME_ROUTING = 0, /* synthetic trace, in the bundled model's manner */
    MOE_ASSUME_BANDWIDTH,   /* times from memory bandwidth alone */
    MOE_ASSUME_FIGURES,     /* synthetic trace, in the manner of the model's statistics */
    MOE_ASSUME_FEW_TOKENS,  /* the error of the hit rate is above MOE_FEW_TOKENS_ERROR */
    MOE_ASSUME_NO_STATISTICS,
    MOE_ASSUME_ALIKE, /* other texts use the experts as the trace does: always */
    MOE_N_ASSUMPTIONS
};
#define MOE_FEW_TOKENS_ERROR 0.02
uint32_t moe_plan_assumptions(const struct moe_plan *plan,
                              enum moe_assumption out[MOE_N_ASSUMPTIONS]);

/* At most two screens, 2 x 50 lines of 80 columns. blocks: as of show/draw.h. */
void moe_explain_plan(const struct moe_plan *plan, bool blocks, struct moe_buf *out);
/* The first screen alone: what is planned, memory, what bounds the speed. */
void moe_explain_plan_briefly(const struct moe_plan *plan, bool blocks, struct moe_buf *out);
/* {"plan": as moe_plan_write_json has it, "bounds": ..., ...}: all that the text says. */
int moe_explain_plan_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err);

/* Which parts a strategy has, as sentences, one paragraph of ASCII without its newline. n_slots:
 * that keep experts. */
void moe_explain_strategy(const struct moe_strategy *s, uint64_t n_slots, struct moe_buf *out);

/* ---- Statistics ---- */

/* What they say for planning. */
int moe_explain_statistics(const struct moe_statistics *s, bool blocks, struct moe_buf *out,
                           struct moe_err *err);
int moe_explain_statistics_json(const struct moe_statistics *s, struct moe_buf *out,
                                struct moe_err *err);

/* ---- A pack ---- */

/* What running it takes at least, for a person or as one JSON object. Opens the pack at `path`.
 * MOE_ERR_USAGE: a model without experts; errors of reading it. */
int moe_explain_pack(const char *path, bool json, struct moe_buf *out, struct moe_err *err);

#endif
