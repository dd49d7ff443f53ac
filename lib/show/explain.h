/*
 * Explanations of plans, statistics, traces, bit maps, device profiles and packs, in plain words,
 * for someone who has not read the papers, and as JSON for scripts.
 */
#ifndef MOE_SHOW_EXPLAIN_H
#define MOE_SHOW_EXPLAIN_H

#include "base/buf.h"
#include "base/err.h"
#include "plan/plan.h"
#include "record/device.h"
#include "record/map.h"
#include "record/statistics.h"
#include "sched/exactness.h"
#include "show/draw.h"
#include "show/heat.h"
#include "trace/trace.h"

/* ---- A plan ---- */

/* At most two screens, 2 x 50 lines, of 80 columns or more; 20 lines on top for alternatives. */
void moe_explain_plan(const struct moe_plan *plan, struct moe_screen screen, struct moe_buf *out);
/* The first screen alone: what is planned, memory, what limits the speed. */
void moe_explain_plan_briefly(const struct moe_plan *plan, struct moe_screen screen,
                              struct moe_buf *out);
/* {"plan": as moe_plan_write_json has it, "bounds": ..., ...}: all that the text says. */
int moe_explain_plan_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err);

/* "twice the memory, 60.00 MiB". */
void moe_explain_alternative(enum moe_alternative what, double amount, double times,
                             const char *precision, char out[80]);
/* What is taken for granted, in ASCII, and what the speed would be without it. */
void moe_explain_assumption(const struct moe_plan *plan, enum moe_assumption what,
                            struct moe_buf *out);

/* Which parts a strategy has and whether it may change results, as sentences, one paragraph of
 * ASCII without its newline. n_slots: that keep experts; n_experts: of a layer. */
void moe_explain_strategy(const struct moe_terms *terms, uint64_t n_slots, uint32_t n_experts,
                          struct moe_buf *out);
/* The last of them: whether, and through what, one may change what the model says. */
void moe_explain_exactness(const struct moe_exactness *x, struct moe_buf *out);

/* ---- Statistics ---- */

/* What they say for planning. The map that ends it, which may have terminal sequences but has no
 * names from files, goes to `picture`, here and below. */
int moe_explain_statistics(const struct moe_statistics *s, struct moe_screen screen,
                           struct moe_buf *out, struct moe_buf *picture, struct moe_err *err);
int moe_explain_statistics_json(const struct moe_statistics *s, struct moe_buf *out,
                                struct moe_err *err);

/* A map of use, and how to read it. */
void moe_explain_heat(const struct moe_heat *heat, struct moe_screen screen, struct moe_buf *out);

/* ---- A trace, a bit map, a device profile ---- */

/* How its experts are used, with a map; reads the trace to its end. Errors of its reader. */
int moe_explain_trace(struct moe_trace *t, bool json, struct moe_screen screen, struct moe_buf *out,
                      struct moe_buf *picture, struct moe_err *err);
/* What was found out, in words; then what moe-calibrate --show says. */
void moe_explain_map(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out);
/* What the machine is good for, in words; then what moe-profile --show says. */
void moe_explain_device(const struct moe_device *d, struct moe_screen screen, struct moe_buf *out);

/* ---- A pack ---- */

/* What running it takes at least, for a person or as one JSON object. Opens the pack at `path`.
 * MOE_ERR_USAGE: a model without experts; errors of reading it. */
int moe_explain_pack(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                     struct moe_err *err);

#endif
