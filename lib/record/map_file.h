/*
 * What the sources of bit maps share. Internal to record/map*.
 */
#ifndef MOE_RECORD_MAP_FILE_H
#define MOE_RECORD_MAP_FILE_H

#include "fmt/record.h"
#include "record/map.h"

/* Allocates what the shape, which is set, determines; as moe_map_new for the rest. */
int map_set_up(struct moe_map *m, struct moe_err *err);

/* Entries of the tables. */
enum { MAP_MAX_BITS = 32 };
#define FIELD(type, key, field) MOE_FIELD(MOE_ALWAYS, struct type, key, field)
#define BITS(type, key, field) MOE_FIELD_IN(MOE_ALWAYS, struct type, key, field, 1, MAP_MAX_BITS)
#define SHARE(type, key, field) MOE_FIELD_IN(MOE_ALWAYS, struct type, key, field, 0, 1)
#define CHANGE(type, key, field)                                                                   \
    MOE_FIELD_IN(MOE_ALWAYS, struct type, key, field, -HUGE_VAL, HUGE_VAL)
/* Of map_members.c: a field of struct moe_map that is one of its variants, by name. */
extern const struct moe_member_own map_variant_by_name;
#define VARIANT(key, field) MOE_OWN(key, offsetof(struct moe_map, field), map_variant_by_name)
/* A loss, which may be missing. */
extern const struct moe_record map_loss_record;
#define LOSS(type, key, field)                                                                     \
    MOE_LINE_SECTION(MOE_IF_SET, key, offsetof(struct type, field), map_loss_record)

/* Numbers in the metric's unit have it in their key: groups of members for each. */
bool map_is_nll(const void *map);
bool map_is_top1(const void *map);
/* Likewise of the tolerance, which is in the judge's unit. */
bool map_tolerates_percent(const void *map);
bool map_tolerates_points(const void *map);
/* The map's variant of that name; `node`: where the name stands. */
int map_find_variant(struct moe_record_reader *r, const struct moe_yaml_node *node,
                     const char *name, uint32_t *variant);
/* Two variants, the second one the lower. */
int map_check_pair(struct moe_record_reader *r, struct moe_yaml_node *map, const char *high_key,
                   uint32_t high, const char *low_key, uint32_t low);

/* Sections of struct moe_map (map_choices.c). */
extern const struct moe_record map_choice_record, map_fate_record, map_hobbit_record,
    map_routing_record;
/* `layers` of the importances: for each layer the experts that are known, and a list of as many
 * numbers for each figure (map_importances.c). */
extern const struct moe_member_own map_importance_layers;

#endif
