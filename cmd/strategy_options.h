/*
 * The options that make a strategy: --strategy, its parts', and what they are served with. The same
 * for every program that takes one; a program puts the rows it wants into its table of options.
 *
 * The order on the command line does not matter: texts are collected, then applied, the row first.
 */
#ifndef CMD_STRATEGY_OPTIONS_H
#define CMD_STRATEGY_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cli.h"
#include "sched/calibration.h"
#include "sched/strategy.h"

/* --device: what computes the model. */
struct device_option {
    enum { DEVICE_CPU = 0, DEVICE_TEST, DEVICE_CUDA } kind;
    int index;        /* of the GPU */
    bool automatic;   /* the GPU where it can be had, else the CPU */
    double speed;     /* of a test device: how many times as fast as the host */
    double link_rate; /* ... and bytes per second from host to device */
};

struct strategy_options {
    const char *strategy;           /* NULL: auto */
    const char *parts[MOE_N_PARTS]; /* arguments; NULL: not given */
    const char *without;            /* parts to switch off, by their options, with commas */
    bool exact;                     /* refuse what may change results */
    const char *statistics;         /* file with a moe-stats(5) of the pack */
    const char *low;                /* variant of the lower precision; NULL: the pack's last */
    uint32_t staging;               /* slots for prefetched experts; 0: as many as a token visits in
                                       a layer */
    struct device_option device;
    const struct moe_map *map; /* of moe-calibrate: what it found goes before what rows have, and
                                  behind what options say; NULL: none */
};

/* Rows of a table of options; those without help are told by --strategy help alone. */
/* clang-format off */
#define STRATEGY_OPT_PART(part, n, a, t) CLI_OPT_TEXT(0, n, a, &(t).parts[part])
#define STRATEGY_OPT_FLAG(part, n, t) CLI_OPT_CUSTOM(0, n, NULL, &(t).parts[part], strategy_flag)
/* clang-format on */
bool strategy_flag(const char *text, void *to, char why[128]);   /* CLI_CUSTOM of a flag */
bool strategy_device(const char *text, void *to, char why[128]); /* ... of --device */

/* The strategy that the options make, settled. *automatic: neither row nor part was named, the
 * engine chooses (*out is the row lru, from which it may begin). A part without a row differs from
 * lru. MOE_ERR_USAGE: a text is none of its option's, parts do not go together, or --exact forbids
 * one. */
int strategy_options_apply(const struct strategy_options *o, struct moe_strategy *out,
                           bool *automatic, struct moe_err *err);

/* True for --strategy help: strategy_print_help tells rows and parts on stdout. */
bool strategy_wants_help(const struct strategy_options *o);
void strategy_print_help(void);

#endif
