/*
 * The format of bit maps, moe-map(5): tables of plain members, which reader and writer follow.
 * Internal to sched/map*.
 */
#ifndef MOE_RECORD_MAP_FORMAT_H
#define MOE_RECORD_MAP_FORMAT_H

#include <stddef.h>

#include "record/map.h"

enum map_kind {
    MAP_TEXT,        /* char[], not empty */
    MAP_COUNT,       /* uint32_t */
    MAP_BITS,        /* uint32_t, 1 to 32 */
    MAP_WHOLE,       /* uint64_t that a double, and so every reader of JSON, holds exactly */
    MAP_FINGERPRINT, /* uint64_t as 16 hexadecimal digits */
    MAP_FLAG,        /* bool */
    MAP_AMOUNT,      /* double, at least 0 */
    MAP_SHARE,       /* double, 0 to 1 */
    MAP_POINTS,      /* double, 0 to 100 */
    MAP_CHANGE,      /* double, any */
};

struct map_member {
    const char *key;
    enum map_kind kind;
    size_t at;   /* in its struct */
    size_t room; /* of a text */
};

struct map_table {
    const struct map_member *members;
    size_t n;
};

/* Of struct moe_map itself, by section; a section that is there has all of them ... */
extern const struct map_table map_head, map_shape, map_choice, map_fate, map_hobbit, map_tuned;
/* ... and of the structs in it, named alike. */
extern const struct map_table map_loss, map_text, map_rung;

/* Keys with their unit, of numbers in the metric's. */
extern const char *const map_tolerance_keys[MOE_N_METRICS];
extern const char *const map_expected_keys[MOE_N_METRICS];
extern const char *const map_weight_keys[MOE_HOBBIT_WEIGHTS];

#endif
