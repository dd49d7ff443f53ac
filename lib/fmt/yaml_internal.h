/*
 * The tree of a YAML document.
 */
#ifndef MOE_FMT_YAML_INTERNAL_H
#define MOE_FMT_YAML_INTERNAL_H

#include <stddef.h>

#include "fmt/yaml.h"

enum moe_yaml_kind { MOE_YAML_SCALAR, MOE_YAML_MAP, MOE_YAML_LIST };

/* Statistics have half a million scalars: these are allocated without the last three members. */
struct moe_yaml_node {
    enum moe_yaml_kind kind;
    bool quoted, known;
    uint32_t line, column;
    const char *key; /* of a mapping's member */
    struct moe_yaml_node *next;
    const char *text; /* a scalar's */
    uint64_t n;       /* members of a mapping or sequence */
    struct moe_yaml_node *first, *last;
};

/* Nodes and texts are allocated in blocks that are freed together. */
struct moe_yaml_block {
    struct moe_yaml_block *before;
    char bytes[];
};

struct moe_yaml {
    char *name;
    struct moe_yaml_node *root;
    struct moe_yaml_block *block; /* the last one */
    uint64_t used, room;          /* bytes of the last block */
    uint64_t taken;               /* by the text and all blocks */
};

static inline struct moe_yaml_node *moe_yaml_members(const struct moe_yaml_node *node)
{
    return node->kind == MOE_YAML_SCALAR ? NULL : node->first;
}

#endif
