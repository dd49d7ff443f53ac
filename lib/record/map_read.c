/*
 * Reads bit maps, and believes nothing in them.
 */
#include <inttypes.h>
#include <string.h>

#include "record/map_reader.h"

enum { MAX_FILE_BYTES = 256 << 20 };

/* ---- What was calibrated, on what ---- */

static int read_model_layers(struct map_reader *r, struct moe_yaml_node *shape)
{
    uint32_t *layers = r->map->model_layer, i = 0;
    struct moe_yaml_node *list = NULL;
    int status = map_read_list(r, shape, "model_layers", r->map->n_layers, &list);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m), i++) {
        uint64_t layer = 0;
        status = moe_yaml_item_u64(r->doc, m, MOE_PACK_MAX_LAYERS - 1, &layer, r->err);
        layers[i] = (uint32_t)layer;
        if (status == MOE_OK && i && layers[i] <= layers[i - 1])
            status = moe_yaml_fail(r->doc, m, r->err, "'model_layers' must be rising");
    }
    return status;
}

static int read_shape(struct map_reader *r)
{
    struct moe_map found = {0};
    struct moe_yaml_node *shape = NULL;
    struct moe_err why = {0};
    int status = moe_yaml_get_map(r->doc, r->root, "shape", true, &shape, r->err);
    if (status == MOE_OK)
        status = map_read_members(r, shape, &map_shape, &found);
    if (status != MOE_OK)
        return status;
    status = moe_map_new(&r->map, found.n_layers, found.n_experts, found.top_k, &why);
    if (status == MOE_ERR_USAGE)
        return moe_yaml_fail(r->doc, shape, r->err, "%s", why.text);
    if (status != MOE_OK)
        return moe_fail(r->err, status, "%s", why.text);
    return read_model_layers(r, shape);
}

static int read_variant_name(struct map_reader *r, struct moe_yaml_node *item)
{
    struct moe_map *m = r->map;
    const char *name = NULL;
    uint32_t same;
    int status = moe_yaml_item_text(r->doc, item, &name, r->err);
    if (status != MOE_OK)
        return status;
    if (!name[0] || strlen(name) >= sizeof m->variants[0])
        return moe_yaml_fail(r->doc, item, r->err, "a variant's name must have 1 to %zu bytes",
                             sizeof m->variants[0] - 1);
    for (same = 0; same < m->n_variants && strcmp(name, m->variants[same]) != 0;)
        same++;
    if (same < m->n_variants)
        return moe_yaml_fail(r->doc, item, r->err, "variant '%s' is there twice", name);
    memcpy(m->variants[m->n_variants++], name, strlen(name) + 1);
    return MOE_OK;
}

static int read_variants(struct map_reader *r)
{
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    int status = moe_yaml_get_list(r->doc, r->root, "variants", true, &list, &n, r->err);
    if (status == MOE_OK && (n == 0 || n > MOE_PACK_MAX_VARIANTS))
        return moe_yaml_fail(r->doc, list, r->err, "'variants' must have 1 to %d items",
                             MOE_PACK_MAX_VARIANTS);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m))
        status = read_variant_name(r, m);
    return status;
}

static int read_metric(struct map_reader *r)
{
    const char *name = NULL;
    enum moe_metric metric = MOE_METRIC_NLL;
    int status = moe_yaml_get_text(r->doc, r->root, "metric", true, &name, r->err);
    if (status != MOE_OK)
        return status;
    while (metric < MOE_N_METRICS && strcmp(name, moe_metric_name(metric)) != 0)
        metric++;
    if (metric == MOE_N_METRICS)
        return moe_yaml_fail(r->doc, moe_yaml_get(r->root, "metric"), r->err,
                             "'%.60s' is no metric: nll or top1", name);
    r->map->metric = metric;
    const char *key = map_tolerance_keys[metric];
    return moe_yaml_get(r->root, key)
               ? map_read_double(r, r->root, key, MAP_AMOUNT, &r->map->tolerance)
               : MOE_OK;
}

static int read_rank_correlation(struct map_reader *r)
{
    static const char key[] = "rank_correlation";
    double *to = &r->map->rank_correlation;
    int status = moe_yaml_get_double(r->doc, r->root, key, false, to, r->err);
    if (status == MOE_OK && moe_yaml_get(r->root, key) && !(*to >= -1 && *to <= 1))
        status = moe_yaml_fail(r->doc, moe_yaml_get(r->root, key), r->err,
                               "'%s' must be from -1 to 1", key);
    return status;
}

/* ---- Measurements ---- */

static int read_text(struct map_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    struct moe_map_text *text = &r->map->texts[i];
    int status = map_read_members(r, item, &map_text, text);
    if (status == MOE_OK)
        status = map_read_loss(r, item, "loss", &text->loss);
    text->known = text->loss.tokens > 0;
    return status;
}

static int read_rung(struct map_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    struct moe_rung *rungs = r->map->rungs;
    uint32_t variant;
    int status = map_read_members(r, item, &map_rung, &rungs[i]);
    if (status == MOE_OK)
        status = map_find_variant(r, moe_yaml_get(item, "experts"), rungs[i].experts, &variant);
    for (uint32_t j = 0; j < i && status == MOE_OK; j++)
        if (strcmp(rungs[i].experts, rungs[j].experts) == 0 &&
            rungs[i].dense_bits == rungs[j].dense_bits)
            status = moe_yaml_fail(r->doc, item, r->err,
                                   "experts '%s' with %" PRIu32 " dense_bits are there twice",
                                   rungs[i].experts, rungs[i].dense_bits);
    return status == MOE_OK ? map_read_loss(r, item, "loss", &rungs[i].loss) : status;
}

/* ---- All ---- */

static int read_measurements(struct map_reader *r)
{
    struct moe_map *m = r->map;
    int status = map_read_items(r, r->root, "texts", MOE_MAP_MAX_TEXTS, read_text, &m->n_texts);
    if (status == MOE_OK)
        status = map_read_items(r, r->root, "rungs", MOE_MAP_MAX_RUNGS, read_rung, &m->n_rungs);
    if (status == MOE_OK)
        status = read_rank_correlation(r);
    if (status == MOE_OK)
        status = map_read_importances(r);
    moe_yaml_ignore(r->root, "structures"); /* a dropped experiment's, in older maps */
    return status;
}

static int read_map(struct map_reader *r)
{
    int status = moe_yaml_check_format(r->doc, "moe-map", MOE_MAP_VERSION, NULL, r->err);
    if (status == MOE_OK)
        status = read_shape(r);
    if (status == MOE_OK)
        status = map_read_members(r, r->root, &map_head, r->map);
    if (status == MOE_OK)
        status = read_variants(r);
    if (status == MOE_OK)
        status = read_metric(r);
    if (status == MOE_OK)
        status = read_measurements(r);
    if (status == MOE_OK)
        status = map_read_choice(r);
    if (status == MOE_OK)
        status = map_read_fate(r);
    if (status == MOE_OK)
        status = map_read_hobbit(r);
    return status == MOE_OK ? moe_yaml_check_known(r->doc, r->err) : status;
}

/* Ends the document. */
static int finish(struct moe_map **out, struct moe_yaml *doc, struct moe_err *err)
{
    struct map_reader r = {.doc = doc, .root = moe_yaml_root(doc), .err = err};
    int status = read_map(&r);
    moe_yaml_free(doc);
    if (status != MOE_OK) {
        moe_map_free(r.map);
        return status;
    }
    *out = r.map;
    return MOE_OK;
}

int moe_map_parse(struct moe_map **out, const char *name, const void *text, uint64_t n,
                  struct moe_err *err)
{
    struct moe_yaml *doc;
    *out = NULL;
    int status = moe_yaml_parse(&doc, name, text, n, err);
    return status == MOE_OK ? finish(out, doc, err) : status;
}

int moe_map_read(struct moe_map **out, const char *path, struct moe_err *err)
{
    struct moe_yaml *doc;
    *out = NULL;
    int status = moe_yaml_read(&doc, path, MAX_FILE_BYTES, err);
    return status == MOE_OK ? finish(out, doc, err) : status;
}
