/*
 * Explanations of files for people, as text and as JSON: plans, statistics, traces, bit maps,
 * device profiles, packs.
 */
#ifndef MOE_SHOW_EXPLAIN_H
#define MOE_SHOW_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/emit.h"
#include "pack/map.h"
#include "plan/plan.h"
#include "profile/device.h"
#include "profile/statistics.h"
#include "profile/trace.h"
#include "sched/exactness.h"
#include "serve/coe_plan.h"
#include "show/draw.h"

/*
 * Heat maps: an amount for each expert, layers down, experts across, in shades of a usual amount.
 */

struct moe_heat {
    uint32_t n_layers, n_experts;
    double *values; /* [n_layers][n_experts]; NAN: not known, drawn "?"; below 0: "-" */
    double usual;
    const uint32_t *names; /* [n_layers] how layers are called; NULL: from 0 on */
};

/* All values 0. Released with moe_heat_release, also after a failure. */
int moe_heat_init(struct moe_heat *heat, uint32_t n_layers, uint32_t n_experts,
                  struct moe_err *err);
void moe_heat_release(struct moe_heat *heat);
/* Of counts: each expert's share of its layer's activations; usual: all alike. */
int moe_heat_of_counts(struct moe_heat *heat, const uint64_t *counts, uint32_t n_layers,
                       uint32_t n_experts, struct moe_err *err);

/* How many experts a column and layers a line hold on this screen: a cell is the mean of its known
 * values. A map has at most MOE_HEAT_LINES lines. */
enum { MOE_HEAT_LINES = 96 };
uint32_t moe_heat_experts(const struct moe_heat *heat, struct moe_screen screen);
uint32_t moe_heat_layers(const struct moe_heat *heat);
/* The mean of the known values in a rectangle of layers and experts; NAN: none is known. */
double moe_heat_cell(const struct moe_heat *heat, uint32_t layer, uint32_t n_layers,
                     uint32_t expert, uint32_t n_experts);
/* With the colours of a terminal, from cold to warm, where it has any. */
void moe_draw_heat(const struct moe_heat *heat, struct moe_screen screen, struct moe_buf *out);
/* A list of the layers' lists; null for what is not known. */
void moe_heat_json(struct moe_emit *e, const char *key, const struct moe_heat *heat);

/*
 * Explanations of plans, statistics, traces, bit maps, device profiles and packs, in plain words,
 * for someone who has not read the papers, and as JSON for scripts.
 */

/* ---- A plan ---- */

/* The answer first, the strategy's spelling last. At most two screens, 2 x 50 lines, of 80 columns
 * or more; 20 lines on top for alternatives. */
void moe_explain_plan(const struct moe_plan *plan, struct moe_screen screen, struct moe_buf *out);
/* The first screen: the answer, memory, a token's time, the weakest assumption, the strategy. */
void moe_explain_plan_briefly(const struct moe_plan *plan, struct moe_screen screen,
                              struct moe_buf *out);
/* {"plan": as its file has it in JSON, "bounds": ..., ...}: all that the text says. */
int moe_explain_plan_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err);

/* Its parts, for text and for pages alike. */

/* Why it is as fast as it is, and what more memory or less would give: a paragraph. */
void moe_explain_answer(const struct moe_plan *plan, struct moe_buf *out);
/* "about 1100 tokens/s, 730 if the machine is busy"; of prompts: "..., for a prompt of 512 tokens".
 */
void moe_explain_speed(const struct moe_plan *plan, bool prompts, struct moe_buf *out);
/* Likewise of a first answer, where the plan says it. */
void moe_explain_first(const struct moe_plan *plan, struct moe_buf *out);
/* What is taken for granted, and what the speed would be without it. */
void moe_explain_assumption(const struct moe_plan *plan, enum moe_assumption what,
                            struct moe_screen screen, struct moe_buf *out);

/* Parts of a whole, without those that are 0: memory (of a GPU, or of the host behind it), the time
 * of a token by cause. Returns how many. */
enum { MOE_EXPLAINED_PARTS = 8 };
struct moe_explained_part {
    char name[48];
    double amount;
};
uint32_t moe_explain_memory(const struct moe_plan *plan, const struct moe_plan_memory *m,
                            struct moe_explained_part out[MOE_EXPLAINED_PARTS]);
uint32_t moe_explain_time(const struct moe_plan *plan,
                          struct moe_explained_part out[MOE_EXPLAINED_PARTS]);

/* Tables; false: there is nothing to say. At most `most` rows, the present one among them. */
bool moe_explain_memory_steps(const struct moe_plan *plan, uint32_t most, struct moe_table *t);
bool moe_explain_link_steps(const struct moe_plan *plan, uint32_t most, struct moe_table *t);
/* What would be otherwise if one thing were; *same: the things that change nothing, in words. */
bool moe_explain_alternatives(const struct moe_plan *plan, struct moe_table *t,
                              struct moe_buf *same);
bool moe_explain_layers(const struct moe_plan *plan, uint32_t most, struct moe_table *t);

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
 * Errors of reading it. */
int moe_explain_pack(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                     struct moe_err *err);

/* A plan of a collection of expert models (moe-coe(5)) for a person. */

/* What each executor has, why, and what was tried. */
void moe_explain_coe_plan(const struct moe_coe_plan *plan, struct moe_screen screen,
                          struct moe_buf *out);

/*
 * Explaining whatever file it is given: a plan (of a model or a collection), statistics, a trace, a
 * bit map, a device profile, a pack; and a plan beside another or beside its run.
 */

/* For a person, or as JSON; picture: what follows `out` and may have terminal sequences, though no
 * names from the file. MOE_ERR_FORMAT: damaged, or nothing that is known; errors of reading
 * it. */
int moe_explain_file(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                     struct moe_buf *picture, struct moe_err *err);
/* `path`: a plan; `other`: a plan, or what moe-run --stats-json wrote. */
int moe_compare_files(const char *path, const char *other, bool json, struct moe_screen screen,
                      struct moe_buf *out, struct moe_err *err);

#endif
