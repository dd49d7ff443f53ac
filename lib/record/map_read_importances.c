/*
 * A bit map's importances: for each layer the experts that are known, and a list of as many numbers
 * for each figure.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "record/map_reader.h"

struct layer_reader {
    struct map_reader *r;
    struct moe_yaml_node *map; /* the layer's */
    uint64_t first;            /* its first expert, of all layers */
    uint32_t n_known;
    uint32_t *known; /* [n_experts] rising; of the layer */
};

/* All, where the file does not say which. */
static int read_experts(struct layer_reader *l)
{
    struct map_reader *r = l->r;
    struct moe_yaml_node *list = NULL;
    uint32_t n_experts = r->map->n_experts, i = 0;
    uint64_t n = n_experts;
    int status = moe_yaml_get_list(r->doc, l->map, "experts", false, &list, &n, r->err);
    if (status == MOE_OK && (n == 0 || n > n_experts))
        return moe_yaml_fail(r->doc, list, r->err, "'experts' must have 1 to %" PRIu32 " items",
                             n_experts);
    l->n_known = (uint32_t)n;
    if (!list)
        for (; i < n_experts; i++)
            l->known[i] = i;
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m), i++) {
        uint64_t expert = 0;
        status = moe_yaml_item_u64(r->doc, m, n_experts - 1, &expert, r->err);
        l->known[i] = (uint32_t)expert;
        if (status == MOE_OK && i && l->known[i] <= l->known[i - 1])
            status = moe_yaml_fail(r->doc, m, r->err, "'experts' must be rising");
    }
    for (i = 0; i < l->n_known && status == MOE_OK; i++)
        r->map->importances.known[l->first + l->known[i]] = 1;
    return status;
}

static int read_doubles(struct layer_reader *l, const char *key, bool may_be_negative, double *to)
{
    struct map_reader *r = l->r;
    struct moe_yaml_node *list = NULL;
    uint32_t i = 0;
    int status = map_read_list(r, l->map, key, l->n_known, &list);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        double *value = &to[l->first + l->known[i++]];
        status = moe_yaml_item_double(r->doc, m, value, r->err);
        if (status == MOE_OK && *value < 0 && !may_be_negative)
            status = moe_yaml_fail(r->doc, m, r->err, "'%s' must be at least 0", key);
    }
    return status;
}

static int read_counts(struct layer_reader *l, const char *key, uint32_t *to)
{
    struct map_reader *r = l->r;
    struct moe_yaml_node *list = NULL;
    uint32_t i = 0;
    int status = map_read_list(r, l->map, key, l->n_known, &list);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        uint64_t value = 0;
        status = moe_yaml_item_u64(r->doc, m, UINT32_MAX, &value, r->err);
        to[l->first + l->known[i++]] = (uint32_t)value;
    }
    return status;
}

static int read_figures(struct layer_reader *l)
{
    struct moe_importances *i = &l->r->map->importances;
    int status = read_experts(l);
    if (status == MOE_OK)
        status = read_doubles(l, "nats", true, i->nats);
    if (status == MOE_OK && i->exact)
        status = read_doubles(l, "error_nats", false, i->error);
    if (status == MOE_OK && i->exact)
        status = read_counts(l, "changed_tokens", i->changed);
    return status == MOE_OK ? read_counts(l, "visited_documents", i->visited) : status;
}

static int read_layers(struct map_reader *r, struct moe_yaml_node *map, uint32_t *known)
{
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0, least = 0;
    int status = moe_yaml_get_list(r->doc, map, "layers", false, &list, &n, r->err);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        uint64_t layer = 0;
        status = moe_yaml_item_map(r->doc, m, r->err);
        if (status == MOE_OK)
            status =
                moe_yaml_get_u64(r->doc, m, "layer", r->map->n_layers - 1, true, &layer, r->err);
        if (status == MOE_OK && layer < least)
            status = moe_yaml_fail(r->doc, m, r->err, "'layer' must be rising");
        struct layer_reader l = {r, m, layer * r->map->n_experts, 0, known};
        if (status == MOE_OK)
            status = read_figures(&l);
        least = layer + 1;
    }
    return status;
}

int map_read_importances(struct map_reader *r)
{
    struct moe_importances *i = &r->map->importances;
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, "importances", false, &map, r->err);
    if (!map)
        return status;
    i->there = true;
    status = moe_yaml_get_bool(r->doc, map, "exact", true, &i->exact, r->err);
    if (status == MOE_OK)
        status = map_read_pair(r, map, "upper", "lower", &i->upper, &i->lower);
    if (status == MOE_OK)
        status = map_read_bits(r, map, "dense_bits", &i->dense_bits);
    uint32_t *known = status == MOE_OK ? moe_alloc(r->map->n_experts, sizeof *known, r->err) : NULL;
    if (status == MOE_OK)
        status = known ? read_layers(r, map, known) : MOE_ERR_MEMORY;
    free(known);
    return status;
}
