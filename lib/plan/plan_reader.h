/*
 * What the readers of a plan's sections share: members by the tables of plan_format.h, lists.
 * Internal to sched/plan*. All fail with MOE_ERR_FORMAT.
 */
#ifndef MOE_PLAN_PLAN_READER_H
#define MOE_PLAN_PLAN_READER_H

#include "fmt/yaml.h"
#include "plan/plan_format.h"

struct plan_reader {
    struct moe_yaml *doc;
    struct moe_yaml_node *root;
    struct moe_plan *plan; /* from its shape on */
    struct moe_err *err;
};

int plan_read_text(struct plan_reader *r, struct moe_yaml_node *map, const struct plan_member *m,
                   char *to);
int plan_read_members(struct plan_reader *r, struct moe_yaml_node *map,
                      const struct plan_table *table, void *to);
/* A section of the plan that may be missing. */
int plan_read_section(struct plan_reader *r, const char *key, const struct plan_table *table);
/* Calls for each mapping of a list that may be missing; *n: how many there are, at most max. */
int plan_read_items(struct plan_reader *r, struct moe_yaml_node *map, const char *key, uint32_t max,
                    int (*read)(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i),
                    uint32_t *n);
/* The numbers of a list, each at most max; out: as many. */
int plan_read_numbers(struct plan_reader *r, struct moe_yaml_node *list, uint64_t max,
                      uint32_t *out);

/* Both sections, after shape, memory and strategy (plan_read_slots.c). */
int plan_read_slots(struct plan_reader *r);
int plan_read_contents(struct plan_reader *r);

#endif
