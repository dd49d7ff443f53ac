/*
 * The format of plans, moe-plan(5): tables of plain members, which reader and writer follow.
 * Internal to sched/plan*.
 */
#ifndef MOE_PLAN_PLAN_FORMAT_H
#define MOE_PLAN_PLAN_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "plan/plan.h"

/* What is left out of the file, and what a member is where the file has none. */
enum plan_kind {
    PLAN_TEXT,        /* char[]; "" */
    PLAN_COUNT,       /* uint32_t; 0 */
    PLAN_LAYERS,      /* uint32_t, at most as many as there are; UINT32_MAX */
    PLAN_WHOLE,       /* uint64_t; 0 */
    PLAN_AMOUNT,      /* double; 0 */
    PLAN_FIGURE,      /* double; below 0 */
    PLAN_SHARE,       /* double, at most 1; below 0 */
    PLAN_CHANGE,      /* double of either sign, always there */
    PLAN_FLAG,        /* bool; false */
    PLAN_FINGERPRINT, /* uint64_t as 16 hexadecimal digits; 0 */
};

struct plan_member {
    const char *key;
    enum plan_kind kind;
    size_t at;   /* in its struct */
    size_t room; /* of a text */
    bool required;
};

struct plan_table {
    const struct plan_member *members;
    size_t n;
};

/* Of struct moe_plan itself, by section ... */
extern const struct plan_table plan_pack, plan_shape, plan_memory, plan_precision, plan_prefetch,
    plan_boundary, plan_times, plan_evidence, plan_expected;
/* ... and of the items of its lists; those of moe_plan_step by what their amount is. */
extern const struct plan_table plan_pool, plan_layer, plan_memory_step, plan_rate_step, plan_tried,
    plan_loss;

/* Whether the value is one that the file has. */
bool plan_is_there(const struct plan_member *m, const void *value);
bool plan_any_there(const struct plan_table *table, const void *from);
/* Sets what a struct has where the file says nothing. */
void plan_forget(const struct plan_table *table, void *to);

#endif
