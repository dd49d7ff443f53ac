/*
 * What the readers of a bit map's sections share. Internal to sched/map*. All fail with
 * MOE_ERR_FORMAT.
 */
#ifndef MOE_RECORD_MAP_READER_H
#define MOE_RECORD_MAP_READER_H

#include "fmt/yaml.h"
#include "record/map_format.h"

struct map_reader {
    struct moe_yaml *doc;
    struct moe_yaml_node *root;
    struct moe_map *map; /* from its shape on */
    struct moe_err *err;
};

/* All members of the table, each required. */
int map_read_members(struct map_reader *r, struct moe_yaml_node *map, const struct map_table *table,
                     void *to);
/* A loss that may be missing. */
int map_read_loss(struct map_reader *r, struct moe_yaml_node *map, const char *key,
                  struct moe_loss *loss);
/* A required number of the kind. */
int map_read_double(struct map_reader *r, struct moe_yaml_node *map, const char *key,
                    enum map_kind kind, double *to);
/* A required bitwidth. */
int map_read_bits(struct map_reader *r, struct moe_yaml_node *map, const char *key, uint32_t *to);
/* Two of the map's variants by their names, the second one the lower. */
int map_read_pair(struct map_reader *r, struct moe_yaml_node *map, const char *high_key,
                  const char *low_key, uint32_t *high, uint32_t *low);
/* The map's variant of that name; `node`: where the name stands. */
int map_find_variant(struct map_reader *r, const struct moe_yaml_node *node, const char *name,
                     uint32_t *variant);
/* Calls for each mapping of a list that may be missing; *n: how many there are, at most max. */
int map_read_items(struct map_reader *r, struct moe_yaml_node *map, const char *key, uint32_t max,
                   int (*read)(struct map_reader *r, struct moe_yaml_node *item, uint32_t i),
                   uint32_t *n);
/* A required list of exactly n items. */
int map_read_list(struct map_reader *r, struct moe_yaml_node *map, const char *key, uint64_t n,
                  struct moe_yaml_node **list);

/* Sections that may be missing, after the shape, the metric and the variants: importances
 * (map_read_importances.c), choice, fate and hobbit (map_read_choices.c). */
int map_read_importances(struct map_reader *r);
int map_read_choice(struct map_reader *r);
int map_read_fate(struct map_reader *r);
int map_read_hobbit(struct map_reader *r);

#endif
