/*
 * Exactness: whether a run may change results and whether one did, for every program.
 *
 * A run is exact when its logits are bit for bit those of strategy `resident` on the same pack and
 * the same kind of device. For that, each token's experts are those that its router chose, with the
 * weights and on the input that the router saw; each is computed at the best variant that the pack
 * has of it, which is the first in the pack's order (so where a bit map decided the pack's first
 * variant, it is the map's); and all of it by the arithmetic of that device.
 *
 * It is judged twice: by what was asked for (terms, before anything runs), and by what was done
 * (counts). `--exact` forbids the former and checks the latter.
 */
#ifndef MOE_SCHED_EXACTNESS_H
#define MOE_SCHED_EXACTNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sched/inventory.h"
#include "sched/scheduler.h"
#include "sched/strategy.h"

/* ---- As asked ---- */

/* What a strategy comes to where it runs. */
struct moe_terms {
    const struct moe_strategy *strategy; /* settled */
    /* The pack is not known yet: what the strategy does on some pack counts. Else it is resolved
     * (without what falls back), and where `kept` is named, experts are kept at that variant though
     * the pack has a better one of some: `best`, or one that is not known (NULL). */
    bool any_pack;
    const char *kept, *best;
    bool host_beside_gpu; /* experts are computed on the host, the others on a GPU */
    bool bf16_prompts;
    const char *kv; /* how keys and values are kept; NULL: not known */
    bool planned;   /* all of it is a plan's: errors say what to do about that */
};

/* ... where it is used at variant `high` (inventory.h) of a pack; nothing but the strategy and its
 * precision is set. Borrows both. */
struct moe_terms moe_terms_of(const struct moe_strategy *strategy,
                              const struct moe_inventory *inventory, uint32_t high);

/* Whether keys and values that are kept so, by name, may change results: codes with scales may. */
bool moe_kv_is_inexact(const char *name);

enum { MOE_EXACTNESS_WHY = 384 };

struct moe_exactness {
    bool exact;
    uint32_t parts;              /* bits 1 << part: those of the strategy that may change results */
    char why[MOE_EXACTNESS_WHY]; /* all that may, as options where there is one; "": nothing */
};

struct moe_exactness moe_exactness_of(const struct moe_terms *terms);

/* What --exact requires: MOE_ERR_USAGE names what may change results, and what to do. */
int moe_exactness_check(const struct moe_terms *terms, struct moe_err *err);

/* Makes a settled strategy do without what may change results, where it allows that: a hybrid
 * prefill that may fall back becomes popularity, and experts are kept at their best precision. It
 * stays settled. Returns what changed, for people; NULL: nothing. */
const char *moe_strategy_make_exact(struct moe_strategy *s);

/* ---- As done ---- */

/* What may have changed results: kinds of activations, and rows of prompts. */
enum moe_change {
    MOE_CHANGE_LOW_PRECISION,
    MOE_CHANGE_SKIPPED,
    MOE_CHANGE_PRECALCULATED, /* from an earlier state */
    MOE_CHANGE_SUBSTITUTED,   /* not the router's choice */
    MOE_CHANGE_ON_HOST,       /* beside a GPU */
    MOE_CHANGE_BF16_ROWS,
    MOE_CHANGE_KV_ROWS, /* keys and values were kept with fewer bits than they had */
    MOE_N_CHANGES
};

struct moe_changes {
    uint64_t activations; /* all */
    uint64_t of[MOE_N_CHANGES];
};

const char *moe_change_key(enum moe_change change); /* in files: "low_precision" */

/* Adds what was counted. on_gpu: experts that the host computed count, since others were not. */
void moe_changes_add_counts(struct moe_changes *sum, const struct moe_counts *counts, bool on_gpu);
void moe_changes_add(struct moe_changes *sum, const struct moe_changes *part);
/* What came since `before`. */
struct moe_changes moe_changes_since(const struct moe_changes *now,
                                     const struct moe_changes *before);
bool moe_changes_none(const struct moe_changes *c);
/* What --exact promises of a run that is over: MOE_ERR_LIMIT with the counts where something was
 * done that may have changed results, whatever had let it. */
int moe_changes_check(const struct moe_changes *c, struct moe_err *err);

#endif
