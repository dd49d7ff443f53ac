/*
 * A plan beside another plan, or beside the run that followed it.
 */
#ifndef MOE_SHOW_COMPARE_H
#define MOE_SHOW_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "plan/plan.h"
#include "profile/device.h"
#include "show/draw.h"

/*
 * What moe-run --stats-json wrote (moe-run-stats(5)), read back: the figures that a plan has too.
 */

/* Decoded tokens, or those of prompts. Below 0: the file does not say. */
struct moe_run_phase {
    double tokens, tokens_per_second;
    struct moe_components components; /* of one token */
    double hit_rate, bytes_per_token, loads_per_token, link_seconds;
    double displaced_seconds; /* other programs had the processor (infer/run_stats.h) */
};

/* What the file does not say is -1 or "". */
struct moe_run_figures {
    char strategy[64], parts[512], kv[8], precision[MOE_NAME_BYTES];
    char model[MOE_PLAN_TEXT], learnt[MOE_PLAN_TEXT]; /* files' names; "": not known; nothing */
    uint64_t fingerprint;                             /* of the model's pack; 0: not known */
    double memory_bytes;                              /* the budget; 0: none was given */
    double context, batch, threads, cache_slots;
    double answers; /* that were begun */
    double learnt_tokens;
    struct moe_run_phase decode, prefill;
};

/* Whether the file is an object like one of moe-run's, by its beginning. */
bool moe_run_figures_is(const char *path);
/* MOE_ERR_FORMAT: damaged, or without a strategy, a prefill and a decode; MOE_ERR_IO. */
int moe_run_figures_read(struct moe_run_figures *out, const char *path, struct moe_err *err);

/*
 * Two plans side by side, or a plan and what its run measured: component by component. The figures
 * first, then how they are drawn.
 */

enum moe_compared_unit {
    MOE_COMPARED_SPEED,   /* tokens per second */
    MOE_COMPARED_SECONDS, /* of a token */
    MOE_COMPARED_SHARE,
    MOE_COMPARED_BYTES,
    MOE_COMPARED_NUMBER,
};

/* One figure of both; below 0: not known. */
struct moe_compared {
    const char *name; /* for people */
    const char *key;  /* for scripts */
    enum moe_compared_unit unit;
    bool component; /* one of those that add up to a token's time */
    double values[2];
};

enum { MOE_COMPARED_FIGURES = 24, MOE_COMPARED_SETTINGS = 16, MOE_COMPARED_TEXT = 512 };

/* What was decided or given, as text. */
struct moe_compared_setting {
    const char *name;
    char values[2][MOE_COMPARED_TEXT];
};

struct moe_comparison {
    bool measured;            /* the second is a run */
    bool same_plan;           /* all settings but the number of slots agree, where both are known */
    bool first;               /* what was planned is a first answer, as the run's was */
    double tokens;            /* that the run decoded */
    double displaced_seconds; /* of a token that it decoded; 0: little, or not known */
    double prompt_tokens[2];  /* of one prompt; 0: not known */
    uint32_t n_settings, n_decode, n;
    struct moe_compared_setting settings[MOE_COMPARED_SETTINGS];
    /* The first n_decode are of answers, the rest of prompts. */
    struct moe_compared figures[MOE_COMPARED_FIGURES];
};

void moe_compare_plans(const struct moe_plan *a, const struct moe_plan *b,
                       struct moe_comparison *out);
void moe_compare_run(const struct moe_plan *plan, const struct moe_run_figures *run,
                     struct moe_comparison *out);
/* Relative change from the first to the second; NAN where either is not known or the first is 0. */
double moe_compared_change(const struct moe_compared *c);
/* The component of an answer's token with the largest difference in seconds, or NULL. */
const struct moe_compared *moe_compared_most(const struct moe_comparison *c);

/* A table of what differs, with a sentence that sums it up. */
void moe_draw_comparison(const struct moe_comparison *c, struct moe_screen screen,
                         struct moe_buf *out);
int moe_comparison_json(const struct moe_comparison *c, struct moe_buf *out, struct moe_err *err);

#endif
