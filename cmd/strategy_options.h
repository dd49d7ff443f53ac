/*
 * The options that make a strategy: --strategy, an option for each of its parts, and --without,
 * --low and --staging. The same for every program that takes a strategy.
 *
 * The order on the command line does not matter: texts are collected, then applied, the strategy
 * first, then the parts, then --without.
 */
#ifndef CMD_STRATEGY_OPTIONS_H
#define CMD_STRATEGY_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cli.h"
#include "engine/engine.h"
#include "sched/calibration.h"
#include "sched/strategy.h"

struct strategy_options {
    const char *strategy;           /* NULL: auto */
    const char *parts[MOE_N_PARTS]; /* arguments; NULL: not given */
    const char *without;            /* parts to switch off, by name, with commas */
    bool exact;                     /* refuse what may change results */
    const char *statistics;         /* file with a moe-stats(5) of the pack */
    const char *low;                /* variant of the lower precision; NULL: the pack's last */
    uint32_t staging;               /* slots for prefetched experts; 0: as many as a token uses in
                                       a layer */
    struct moe_device_choice device;
    uint16_t kv_kind; /* of the KV cache (infer/kv.h); 0: as a plan says, else MOE_KV_DEFAULT */
    const struct moe_map *map; /* moe-calibrate's: overrides the strategy's own values, not those
                                  given as options; NULL: none */
};

/* For cli_program.more: an option for each part, from the table of parts, and --without, --low and
 * --staging. They set *o. The array is static: a program has one. */
const struct cli_option *strategy_part_options(struct strategy_options *o);

bool strategy_device(const char *text, void *to, struct moe_err *why); /* CLI_CUSTOM: --device */
bool strategy_kv(const char *text, void *to, struct moe_err *why);     /* CLI_CUSTOM: --kv */
/* -1, or the exit status after a message: a GPU has what --kv names, and --exact allows it. */
int strategy_check_kv(const struct strategy_options *o);
/* Words of --device and of --strategy, for cli_option.word. */
const char *strategy_device_word(int i);
const char *strategy_word(int i);

/* The strategy that the options make, settled. *automatic: neither a strategy nor a part was given,
 * the engine chooses (*out is lru). Parts without a strategy change lru. MOE_ERR_USAGE: a value
 * that its option does not take, parts that do not go together, or that --exact forbids. */
int strategy_options_apply(const struct strategy_options *o, struct moe_strategy *out,
                           bool *automatic, struct moe_err *err);

/* Says which of the pack's maps --tolerance took. */
void strategy_note_map(const struct moe_pack *pack, double tolerance);

/* True for --strategy help: strategy_print_help lists strategies and parts on stdout. */
bool strategy_wants_help(const struct strategy_options *o);
void strategy_print_help(void);

/* Who drafts, by --draft: parsed and completed by these. */
struct strategy_drafter {
    const char *name; /* as on the command line; NULL: nobody drafts */
    bool drafts;      /* someone */
    bool ahead;       /* ... a layer of the model, or */
    const char *head; /* a head that goes with it, in this file; NULL: none */
};
bool strategy_drafter(const char *text, void *to, struct moe_err *why);
const char *strategy_drafter_word(int i);
/* Says that nothing is drafted in passes of `batch` rows (0: as many as usual), where so. */
void strategy_say_drafts(const struct strategy_drafter *d, uint32_t batch);

#endif
