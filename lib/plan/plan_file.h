/*
 * What the sources of plans share. Internal to plan/plan*.
 */
#ifndef MOE_PLAN_PLAN_FILE_H
#define MOE_PLAN_PLAN_FILE_H

#include "fmt/record.h"
#include "plan/plan.h"

/* Entries of tables. Members of the plan itself by what is left out: 0, "" or false; figures below
 * 0. */
#define FIELD(key, field) MOE_FIELD(MOE_IF_SET, struct moe_plan, key, field)
#define NEEDED(type, key, field) MOE_FIELD(MOE_ALWAYS, struct type, key, field)
#define FIGURE(type, key, field) MOE_FIELD(MOE_IF_KNOWN, struct type, key, field)
#define SHARE(type, key, field) MOE_FIELD_IN(MOE_IF_KNOWN, struct type, key, field, 0, 1)

/* Sections of struct moe_plan (plan_strategy.c, plan_times.c). */
extern const struct moe_record plan_strategy_record, plan_times_record;
/* Slots of a size class, and the cache's first contents (plan_slots.c); the contents come after
 * all slots, shape, memory and strategy. */
extern const struct moe_record plan_pool_record;
extern const struct moe_member_own plan_contents;
/* Lists of struct moe_plan (plan_alternatives.c). */
extern const struct moe_record plan_alternative_record, plan_doubt_record;
/* All slots within the memory for experts. */
int plan_check_slots(struct moe_record_reader *r, struct moe_yaml_node *root);

#endif
