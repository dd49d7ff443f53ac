/*
 * What a bit map's calibration chose: bitwidths, Fate's p, HOBBIT's thresholds and weights.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "record/map_reader.h"

/* ---- Bitwidths ---- */

static int read_layer(struct map_reader *r, struct moe_yaml_node *list, uint8_t *variants)
{
    uint32_t n_experts = r->map->n_experts;
    int status = moe_yaml_item_list(r->doc, list, r->err);
    if (status == MOE_OK && moe_yaml_length(list) != n_experts)
        return moe_yaml_fail(r->doc, list, r->err,
                             "a layer must have %" PRIu32 " items, not %" PRIu64, n_experts,
                             moe_yaml_length(list));
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        const char *name = NULL;
        uint32_t variant = 0;
        status = moe_yaml_item_text(r->doc, m, &name, r->err);
        if (status == MOE_OK)
            status = map_find_variant(r, m, name, &variant);
        *variants++ = (uint8_t)variant;
    }
    return status;
}

int map_read_choice(struct map_reader *r)
{
    struct moe_map_choice *c = &r->map->choice;
    struct moe_yaml_node *map = NULL, *layers = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, "choice", false, &map, r->err);
    if (!map)
        return status;
    c->there = true;
    status = map_read_members(r, map, &map_choice, r->map);
    if (status == MOE_OK)
        status =
            map_read_double(r, map, map_expected_keys[r->map->metric], MAP_CHANGE, &c->expected);
    if (status == MOE_OK)
        status = map_read_loss(r, map, "loss", &c->loss);
    if (status == MOE_OK)
        status = map_read_loss(r, map, "check", &c->check);
    if (status == MOE_OK)
        status = map_read_list(r, map, "layers", r->map->n_layers, &layers);
    uint8_t *variants = c->variant;
    for (struct moe_yaml_node *m = layers ? moe_yaml_first(layers) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m), variants += r->map->n_experts)
        status = read_layer(r, m, variants);
    return status;
}

/* `before`: of the item before; NULL: none. */
static int read_share(struct map_reader *r, struct moe_yaml_node *item, const double *before,
                      double *share)
{
    int status = map_read_double(r, item, "share", MAP_SHARE, share);
    if (status == MOE_OK && before && *share <= *before)
        status = moe_yaml_fail(r->doc, item, r->err, "'share' must be rising");
    return status;
}

/* ---- Fate ---- */

static int read_point(struct map_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    struct moe_map_point *p = &r->map->fate.points[i];
    int status = read_share(r, item, i ? &p[-1].share : NULL, &p->share);
    if (status == MOE_OK)
        status = map_read_loss(r, item, "unpopular", &p->unpopular);
    return status == MOE_OK ? map_read_loss(r, item, "popular", &p->popular) : status;
}

int map_read_fate(struct map_reader *r)
{
    struct moe_map_fate *f = &r->map->fate;
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, "fate", false, &map, r->err);
    if (!map)
        return status;
    f->there = true;
    status = map_read_members(r, map, &map_fate, r->map);
    if (status == MOE_OK)
        status = map_read_pair(r, map, "high", "low", &f->high, &f->low);
    if (status == MOE_OK)
        status = map_read_loss(r, map, "loss", &f->loss);
    return status == MOE_OK
               ? map_read_items(r, map, "curve", MOE_MAP_MAX_POINTS, read_point, &f->n_points)
               : status;
}

/* ---- HOBBIT ---- */

/* Shares as they are counted, divided and added up. */
static bool is_whole(double sum)
{
    return fabs(sum - 1) <= 1e-9;
}

static int read_cut(struct map_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    struct moe_map_cut *c = &r->map->hobbit.cuts[i];
    int status = read_share(r, item, i ? &c[-1].share : NULL, &c->share);
    if (status == MOE_OK)
        status = map_read_loss(r, item, "low", &c->low);
    return status == MOE_OK ? map_read_loss(r, item, "skipped", &c->skipped) : status;
}

static int read_scores(struct map_reader *r, struct moe_yaml_node *map)
{
    double *scores = r->map->hobbit.scores, sum = 0;
    struct moe_yaml_node *list = NULL;
    if (!moe_yaml_get(map, "scores"))
        return MOE_OK;
    int status = map_read_list(r, map, "scores", MOE_SCORE_BINS, &list);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m), scores++) {
        status = moe_yaml_item_double(r->doc, m, scores, r->err);
        if (status == MOE_OK && *scores < 0)
            status = moe_yaml_fail(r->doc, m, r->err, "a share must be at least 0");
        sum += *scores;
    }
    if (status == MOE_OK && !is_whole(sum))
        status = moe_yaml_fail(r->doc, list, r->err, "'scores' must sum to 1, not %.17g", sum);
    return status;
}

static int read_weights(struct map_reader *r, struct moe_yaml_node *map)
{
    struct moe_map_hobbit *h = &r->map->hobbit;
    struct moe_yaml_node *weights = NULL;
    double sum = 0;
    int status = moe_yaml_get_map(r->doc, map, "weights", false, &weights, r->err);
    if (!weights)
        return status;
    h->weighed = true;
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS && status == MOE_OK; i++) {
        status = map_read_double(r, weights, map_weight_keys[i], MAP_SHARE, &h->weights[i]);
        sum += h->weights[i];
    }
    if (status == MOE_OK && !is_whole(sum))
        status = moe_yaml_fail(r->doc, weights, r->err, "'weights' must sum to 1, not %.17g", sum);
    return status == MOE_OK ? map_read_members(r, map, &map_tuned, r->map) : status;
}

static int check_thresholds(struct map_reader *r, struct moe_yaml_node *map)
{
    const struct moe_map_hobbit *h = &r->map->hobbit;
    double sum = h->high_share + h->low_share + h->skipped_share;
    if (h->t1 > h->t2)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "t1"), r->err,
                             "'t1' must not be above 't2'");
    if (!is_whole(sum))
        return moe_yaml_fail(
            r->doc, moe_yaml_get(map, "high_share"), r->err,
            "'high_share', 'low_share' and 'skipped_share' must sum to 1, not %.17g", sum);
    return MOE_OK;
}

int map_read_hobbit(struct map_reader *r)
{
    struct moe_map_hobbit *h = &r->map->hobbit;
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, "hobbit", false, &map, r->err);
    if (!map)
        return status;
    h->there = true;
    status = map_read_members(r, map, &map_hobbit, r->map);
    if (status == MOE_OK)
        status = check_thresholds(r, map);
    if (status == MOE_OK)
        status = map_read_pair(r, map, "high", "low", &h->high, &h->low);
    if (status == MOE_OK)
        status = map_read_loss(r, map, "loss", &h->loss);
    if (status == MOE_OK)
        status = map_read_items(r, map, "cuts", MOE_MAP_MAX_CUTS, read_cut, &h->n_cuts);
    if (status == MOE_OK)
        status = read_scores(r, map);
    return status == MOE_OK ? read_weights(r, map) : status;
}
