/*
 * A bit map's importances: for each layer the experts that are known, and a list of as many numbers
 * for each figure.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "record/map_file.h"

/* ---- Reading ---- */

struct layer_reader {
    struct moe_record_reader *r;
    struct moe_yaml_node *map; /* the layer's */
    uint64_t first;            /* its first expert, of all layers */
    uint32_t n_known;
    uint32_t *known;  /* [n_experts] rising; of the layer */
    uint32_t *counts; /* [n_experts] scratch */
    double *doubles;  /* [n_experts] scratch */
};

/* All, where the file does not say which. */
static int read_experts(struct layer_reader *l)
{
    struct moe_map *map = l->r->whole;
    struct moe_yaml_node *list = NULL;
    uint32_t n_experts = map->n_experts;
    uint64_t n = n_experts;
    int status = moe_yaml_get_list(l->r->doc, l->map, "experts", false, &list, &n, l->r->err);
    if (status == MOE_OK && (n == 0 || n > n_experts))
        status = moe_yaml_fail(l->r->doc, list, l->r->err,
                               "'experts' must have 1 to %" PRIu32 " items", n_experts);
    for (uint32_t e = 0; e < n_experts; e++)
        l->known[e] = e;
    if (list && status == MOE_OK)
        status = moe_yaml_list_u32s(l->r->doc, list, n_experts - 1, true, l->known, l->r->err);
    l->n_known = (uint32_t)n;
    for (uint32_t i = 0; i < l->n_known && status == MOE_OK; i++)
        map->importances.known[l->first + l->known[i]] = 1;
    return status;
}

/* Those of them that are estimates; none, where the file does not say which. */
static int read_estimated(struct layer_reader *l)
{
    struct moe_map *map = l->r->whole;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    int status = moe_yaml_get_list(l->r->doc, l->map, "estimated", false, &list, &n, l->r->err);
    if (!list || status != MOE_OK)
        return status;
    if (n == 0 || n > l->n_known)
        return moe_yaml_fail(l->r->doc, list, l->r->err,
                             "'estimated' must have 1 to %" PRIu32 " items", l->n_known);
    status = moe_yaml_list_u32s(l->r->doc, list, map->n_experts - 1, true, l->counts, l->r->err);
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        map->importances.estimated[l->first + l->counts[i]] = 1;
        if (!map->importances.known[l->first + l->counts[i]])
            status = moe_yaml_fail(l->r->doc, list, l->r->err,
                                   "'estimated' has expert %" PRIu32 ", which is not known",
                                   l->counts[i]);
    }
    return status;
}

static int read_doubles(struct layer_reader *l, const char *key, double min, double *to)
{
    struct moe_yaml_node *list = NULL;
    int status = moe_yaml_get_list_of(l->r->doc, l->map, key, l->n_known, &list, l->r->err);
    if (status == MOE_OK)
        status = moe_yaml_list_doubles(l->r->doc, list, min, l->doubles, l->r->err);
    for (uint32_t i = 0; i < l->n_known && status == MOE_OK; i++)
        to[l->first + l->known[i]] = l->doubles[i];
    return status;
}

static int read_counts(struct layer_reader *l, const char *key, uint32_t *to)
{
    struct moe_yaml_node *list = NULL;
    int status = moe_yaml_get_list_of(l->r->doc, l->map, key, l->n_known, &list, l->r->err);
    if (status == MOE_OK)
        status = moe_yaml_list_u32s(l->r->doc, list, UINT32_MAX, false, l->counts, l->r->err);
    for (uint32_t i = 0; i < l->n_known && status == MOE_OK; i++)
        to[l->first + l->known[i]] = l->counts[i];
    return status;
}

static int read_figures(struct layer_reader *l)
{
    struct moe_importances *i = &((struct moe_map *)l->r->whole)->importances;
    int status = read_experts(l);
    if (status == MOE_OK && i->exact)
        status = read_estimated(l);
    if (status == MOE_OK)
        status = read_doubles(l, "nats", -HUGE_VAL, i->nats);
    if (status == MOE_OK && i->exact)
        status = read_doubles(l, "error_nats", 0, i->error);
    if (status == MOE_OK && i->exact)
        status = read_counts(l, "changed_tokens", i->changed);
    return status == MOE_OK ? read_counts(l, "visited_documents", i->visited) : status;
}

static int read_list(struct layer_reader *l, struct moe_yaml_node *list)
{
    struct moe_record_reader *r = l->r;
    const struct moe_map *map = r->whole;
    uint64_t layer = 0, least = 0;
    int status = MOE_OK;
    for (l->map = moe_yaml_first(list); l->map && status == MOE_OK;
         l->map = moe_yaml_next(l->map), least = layer + 1) {
        status = moe_yaml_item_map(r->doc, l->map, r->err);
        if (status == MOE_OK)
            status =
                moe_yaml_get_u64(r->doc, l->map, "layer", map->n_layers - 1, true, &layer, r->err);
        if (status == MOE_OK && layer < least)
            status = moe_yaml_fail(r->doc, l->map, r->err, "'layer' must be rising");
        l->first = layer * map->n_experts;
        if (status == MOE_OK)
            status = read_figures(l);
    }
    return status;
}

static int read_layers(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_member *m, void *record)
{
    uint32_t n_experts = ((const struct moe_map *)record)->n_experts;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    int status = moe_yaml_get_list(r->doc, map, m->key, false, &list, &n, r->err);
    if (!list)
        return status;
    struct layer_reader l = {.r = r};
    l.known = moe_alloc(n_experts, sizeof *l.known, r->err);
    l.counts = moe_alloc(n_experts, sizeof *l.counts, r->err);
    l.doubles = moe_alloc(n_experts, sizeof *l.doubles, r->err);
    status = l.known && l.counts && l.doubles ? read_list(&l, list) : MOE_ERR_MEMORY;
    free(l.known);
    free(l.counts);
    free(l.doubles);
    return status;
}

/* ---- Writing ---- */

static uint64_t count_known(const uint8_t *known, uint64_t n)
{
    uint64_t found = 0;
    for (uint64_t i = 0; i < n; i++)
        found += known[i] != 0;
    return found;
}

/* The figures of a layer's known experts: one of the two arrays; neither: the experts themselves.
 */
static void write_figures(struct moe_emit *e, const char *key, const uint8_t *known, uint32_t n,
                          const double *doubles, const uint32_t *counts)
{
    moe_emit_open_line_list(e, key);
    for (uint32_t i = 0; i < n; i++) {
        if (known[i] && doubles)
            moe_emit_double(e, NULL, doubles[i]);
        else if (known[i])
            moe_emit_u64(e, NULL, counts ? counts[i] : i);
    }
    moe_emit_close(e);
}

static void write_layer(struct moe_emit *e, const struct moe_map *map, uint32_t layer)
{
    const struct moe_importances *i = &map->importances;
    uint32_t n = map->n_experts;
    uint64_t first = (uint64_t)layer * n;
    const uint8_t *known = i->known + first;
    uint64_t n_known = count_known(known, n);
    if (n_known == 0)
        return;
    moe_emit_open_map(e, NULL);
    moe_emit_u64(e, "layer", layer);
    if (n_known < n)
        write_figures(e, "experts", known, n, NULL, NULL);
    if (count_known(i->estimated + first, n) > 0)
        write_figures(e, "estimated", i->estimated + first, n, NULL, NULL);
    write_figures(e, "nats", known, n, i->nats + first, NULL);
    if (i->exact) {
        write_figures(e, "error_nats", known, n, i->error + first, NULL);
        write_figures(e, "changed_tokens", known, n, NULL, i->changed + first);
    }
    write_figures(e, "visited_documents", known, n, NULL, i->visited + first);
    moe_emit_close(e);
}

static void write_layers(struct moe_record_writer *w, const struct moe_member *m,
                         const void *record)
{
    const struct moe_map *map = record;
    if (count_known(map->importances.known, (uint64_t)map->n_layers * map->n_experts) == 0)
        return;
    moe_emit_open_list(&w->emit, m->key);
    for (uint32_t l = 0; l < map->n_layers; l++)
        write_layer(&w->emit, map, l);
    moe_emit_close(&w->emit);
}

const struct moe_member_own map_importance_layers = {read_layers, write_layers, NULL};
