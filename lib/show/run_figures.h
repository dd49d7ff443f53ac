/*
 * What moe-run --stats-json wrote (moe-run-stats(5)), read back: of it what a plan can be held
 * against.
 */
#ifndef MOE_SHOW_RUN_FIGURES_H
#define MOE_SHOW_RUN_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "record/components.h"

/* Decoded tokens, or those of prompts. Below 0: the file does not say. */
struct moe_run_phase {
    double tokens, tokens_per_second;
    struct moe_components components; /* of one token */
    double hit_rate, bytes_per_token, loads_per_token, link_seconds;
};

struct moe_run_figures {
    char strategy[64];
    double memory_bytes; /* the budget; 0: none was given */
    struct moe_run_phase decode, prefill;
};

/* Whether the file is an object like one of moe-run's, by its beginning. */
bool moe_run_figures_is(const char *path);
/* MOE_ERR_FORMAT: damaged, or without a strategy, a prefill and a decode; MOE_ERR_IO. */
int moe_run_figures_read(struct moe_run_figures *out, const char *path, struct moe_err *err);

#endif
