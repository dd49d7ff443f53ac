/*
 * The file of a bit map, moe-map(5): its tables, and what must hold across their members.
 */
#include "record/map_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_FILE_BYTES = 256 << 20 };

/* ---- What was calibrated ---- */

static int read_model_layers(struct moe_record_reader *r, struct moe_yaml_node *shape,
                             const struct moe_member *m, void *record)
{
    struct moe_map *map = record;
    struct moe_yaml_node *list = NULL;
    struct moe_err why = {0};
    int status = map_set_up(map, &why);
    if (status == MOE_ERR_USAGE)
        return moe_yaml_fail(r->doc, shape, r->err, "%s", why.text);
    if (status != MOE_OK)
        return moe_fail(r->err, status, "%s", why.text);
    status = moe_yaml_get_list_of(r->doc, shape, m->key, map->n_layers, &list, r->err);
    return status == MOE_OK ? moe_yaml_list_u32s(r->doc, list, MOE_PACK_MAX_LAYERS - 1, true,
                                                 map->model_layer, r->err)
                            : status;
}

static void write_model_layers(struct moe_record_writer *w, const struct moe_member *m,
                               const void *record)
{
    const struct moe_map *map = record;
    moe_emit_u32s(&w->emit, m->key, map->model_layer, map->n_layers);
}

static const struct moe_member_own model_layers = {read_model_layers, write_model_layers, NULL};

static const struct moe_member shape_members[] = {
    FIELD(moe_map, "moe_layers", n_layers),
    FIELD(moe_map, "experts", n_experts),
    FIELD(moe_map, "experts_per_token", top_k),
    MOE_OWN("model_layers", 0, model_layers),
};
static const struct moe_record shape_record = {MOE_RECORD(shape_members)};

static int read_variants(struct moe_record_reader *r, struct moe_yaml_node *root,
                         const struct moe_member *m, void *record)
{
    struct moe_map *map = record;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    int status = moe_yaml_get_list(r->doc, root, m->key, true, &list, &n, r->err);
    if (status == MOE_OK && (n == 0 || n > MOE_PACK_MAX_VARIANTS))
        return moe_yaml_fail(r->doc, list, r->err, "'variants' must have 1 to %d items",
                             MOE_PACK_MAX_VARIANTS);
    for (struct moe_yaml_node *item = list ? moe_yaml_first(list) : NULL; item && status == MOE_OK;
         item = moe_yaml_next(item)) {
        const char *name = NULL;
        uint32_t same = 0;
        status = moe_yaml_item_text(r->doc, item, &name, r->err);
        if (status != MOE_OK)
            return status;
        if (!name[0] || strlen(name) >= sizeof map->variants[0])
            return moe_yaml_fail(r->doc, item, r->err, "a variant's name must have 1 to %zu bytes",
                                 sizeof map->variants[0] - 1);
        while (same < map->n_variants && strcmp(name, map->variants[same]) != 0)
            same++;
        if (same < map->n_variants)
            return moe_yaml_fail(r->doc, item, r->err, "variant '%s' is there twice", name);
        memcpy(map->variants[map->n_variants++], name, strlen(name) + 1);
    }
    return status;
}

static void write_variants(struct moe_record_writer *w, const struct moe_member *m,
                           const void *record)
{
    const struct moe_map *map = record;
    moe_emit_open_line_list(&w->emit, m->key);
    for (uint32_t v = 0; v < map->n_variants; v++)
        moe_emit_text(&w->emit, NULL, map->variants[v]);
    moe_emit_close(&w->emit);
}

static const struct moe_member_own variants = {read_variants, write_variants, NULL};

/* The number of a name among n; n: it is none of them. */
static uint32_t find_name(const char *name, const char *(*of)(uint32_t), uint32_t n)
{
    uint32_t i = 0;
    while (i < n && strcmp(name, of(i)) != 0)
        i++;
    return i;
}

static const char *metric_at(uint32_t i)
{
    return moe_metric_name((enum moe_metric)i);
}

static const char *judge_at(uint32_t i)
{
    return moe_judge_name((enum moe_judge)i);
}

static int read_metric(struct moe_record_reader *r, struct moe_yaml_node *root,
                       const struct moe_member *m, void *record)
{
    const char *name = NULL;
    int status = moe_yaml_get_text(r->doc, root, m->key, true, &name, r->err);
    if (status != MOE_OK)
        return status;
    uint32_t metric = find_name(name, metric_at, MOE_N_METRICS);
    if (metric == MOE_N_METRICS)
        return moe_yaml_fail(r->doc, moe_yaml_get(root, m->key), r->err,
                             "'%.60s' is no metric: nll or top1", name);
    ((struct moe_map *)record)->metric = (enum moe_metric)metric;
    return MOE_OK;
}

static void write_metric(struct moe_record_writer *w, const struct moe_member *m,
                         const void *record)
{
    moe_emit_text(&w->emit, m->key, moe_metric_name(((const struct moe_map *)record)->metric));
}

static const struct moe_member_own metric = {read_metric, write_metric, NULL};

/* Missing: nats. */
static int read_judge(struct moe_record_reader *r, struct moe_yaml_node *root,
                      const struct moe_member *m, void *record)
{
    const char *name = NULL;
    int status = moe_yaml_get_text(r->doc, root, m->key, false, &name, r->err);
    uint32_t judge =
        status == MOE_OK && name ? find_name(name, judge_at, MOE_N_JUDGES) : MOE_JUDGE_NATS;
    if (judge == MOE_N_JUDGES)
        return moe_yaml_fail(r->doc, moe_yaml_get(root, m->key), r->err,
                             "'%.60s' is no judge: nats, rouge2 or accuracy", name);
    ((struct moe_map *)record)->judge = (enum moe_judge)judge;
    return status;
}

static void write_judge(struct moe_record_writer *w, const struct moe_member *m, const void *record)
{
    enum moe_judge judge = ((const struct moe_map *)record)->judge;
    if (judge != MOE_JUDGE_NATS)
        moe_emit_text(&w->emit, m->key, moe_judge_name(judge));
}

static const struct moe_member_own judge = {read_judge, write_judge, NULL};

static const struct moe_member percent_members[] = {
    MOE_FIELD(MOE_IF_KNOWN, struct moe_map, "tolerance_percent", tolerance),
};
static const struct moe_member points_members[] = {
    MOE_FIELD(MOE_IF_KNOWN, struct moe_map, "tolerance_points", tolerance),
};
static const struct moe_record percent_record = {MOE_RECORD(percent_members),
                                                 .is_there = map_tolerates_percent};
static const struct moe_record points_record = {MOE_RECORD(points_members),
                                                .is_there = map_tolerates_points};

/* ---- Measurements ---- */

static const struct moe_member text_members[] = {
    FIELD(moe_map_text, "name", name),
    FIELD(moe_map_text, "documents", documents),
    FIELD(moe_map_text, "tokens", tokens),
    MOE_FINGERPRINT(MOE_ALWAYS, struct moe_map_text, "hash", hash),
    FIELD(moe_map_text, "check", check),
    LOSS(moe_map_text, "loss", loss),
};

static int check_text(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_map_text *text = record;
    (void)r, (void)map;
    text->known = text->loss.tokens > 0;
    return MOE_OK;
}

static const struct moe_record text_record = {MOE_RECORD(text_members), check_text};

static const struct moe_member uniform_members[] = {
    FIELD(moe_uniform, "experts", experts),
    BITS(moe_uniform, "dense_bits", dense_bits),
    FIELD(moe_uniform, "bytes", bytes),
    LOSS(moe_uniform, "loss", loss),
};

static int check_uniform(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_map *m = r->whole;
    const struct moe_uniform *u = record;
    uint32_t variant;
    int status = map_find_variant(r, moe_yaml_get(map, "experts"), u->experts, &variant);
    for (const struct moe_uniform *other = m->uniform; other < u && status == MOE_OK; other++)
        if (strcmp(u->experts, other->experts) == 0 && u->dense_bits == other->dense_bits)
            status = moe_yaml_fail(r->doc, map, r->err,
                                   "experts '%s' with %" PRIu32 " dense_bits are there twice",
                                   u->experts, u->dense_bits);
    return status;
}

static const struct moe_record uniform_record = {MOE_RECORD(uniform_members), check_uniform};

static const struct moe_member correlation_member =
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_map, "rank_correlation", rank_correlation, -1, 1);

static int read_correlation(struct moe_record_reader *r, struct moe_yaml_node *root,
                            const struct moe_member *m, void *record)
{
    return moe_yaml_get(root, m->key) ? moe_record_read_member(r, root, &correlation_member, record)
                                      : MOE_OK;
}

static void write_correlation(struct moe_record_writer *w, const struct moe_member *m,
                              const void *record)
{
    const struct moe_map *map = record;
    if (map->rank_correlation <= 1)
        moe_emit_double(&w->emit, m->key, map->rank_correlation);
}

static const struct moe_member_own correlation = {read_correlation, write_correlation, NULL};

static const struct moe_member adaptive_members[] = {
    FIELD(moe_adaptive, "measured", measured),
    FIELD(moe_adaptive, "estimated", estimated),
    FIELD(moe_adaptive, "could_change", open),
    FIELD(moe_adaptive, "spread", spread),
};

static bool is_adaptive(const void *record)
{
    return ((const struct moe_adaptive *)record)->estimated > 0;
}

static const struct moe_record adaptive_record = {MOE_RECORD(adaptive_members),
                                                  .is_there = is_adaptive};

static const struct moe_member importances_members[] = {
    FIELD(moe_map, "exact", importances.exact),
    VARIANT("upper", importances.upper),
    VARIANT("lower", importances.lower),
    BITS(moe_map, "dense_bits", importances.dense_bits),
    MOE_OWN("shards", offsetof(struct moe_map, importances.shards), moe_shards_member),
    MOE_LINE_SECTION(MOE_IF_SET, "adaptive", offsetof(struct moe_map, importances.adaptive),
                     adaptive_record),
    MOE_OWN("layers", 0, map_importance_layers),
};

static int check_importances(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_map *m = record;
    const struct moe_importances *i = &m->importances;
    const struct moe_adaptive *a = &i->adaptive;
    uint64_t n_known = 0, n_estimated = 0;
    int status = map_check_pair(r, map, "upper", i->upper, "lower", i->lower);
    for (uint64_t e = 0; e < (uint64_t)m->n_layers * m->n_experts; e++) {
        n_known += i->known[e];
        n_estimated += i->estimated[e];
    }
    if (status == MOE_OK &&
        (a->estimated != n_estimated || (n_estimated && a->measured != n_known - n_estimated) ||
         a->open > n_estimated))
        status = moe_yaml_fail(r->doc, map, r->err,
                               "'adaptive' does not count the experts that 'layers' have");
    for (uint64_t e = 0; e < (uint64_t)m->n_layers * m->n_experts; e++)
        if (status == MOE_OK && i->shards.n && i->known[e] &&
            !moe_shards_hold(&i->shards, (uint32_t)(e % i->shards.n)))
            status = moe_yaml_fail(r->doc, moe_yaml_get(map, "layers"), r->err,
                                   "layer %" PRIu64 " expert %" PRIu64 " is of another shard",
                                   e / m->n_experts, e % m->n_experts);
    return status;
}

static const struct moe_record importances_record = {
    MOE_RECORD(importances_members), check_importances,
    MOE_FLAGGED(struct moe_map, importances.there)};

/* ---- The file ---- */

static const struct moe_member map_members[] = {
    MOE_FINGERPRINT(MOE_ALWAYS, struct moe_map, "source_fingerprint", source_fingerprint),
    MOE_FINGERPRINT(MOE_ALWAYS, struct moe_map, "pack_fingerprint", pack_fingerprint),
    BITS(moe_map, "dense_bits", pack_dense_bits),
    MOE_FIELD(MOE_IF_SET, struct moe_map, "dense_method", dense_method),
    MOE_FIELD(MOE_IF_SET, struct moe_map, "dense_group", dense_group),
    FIELD(moe_map, "max_document_tokens", max_tokens),
    MOE_SECTION(MOE_ALWAYS, "shape", 0, shape_record),
    MOE_OWN("variants", 0, variants),
    MOE_OWN("metric", 0, metric),
    MOE_OWN("judge", 0, judge),
    MOE_GROUP(percent_record),
    MOE_GROUP(points_record),
    MOE_LIST(struct moe_map, "texts", texts, n_texts, text_record),
    MOE_LIST(struct moe_map, "rungs", uniform, n_uniform, uniform_record),
    MOE_OWN("rank_correlation", 0, correlation),
    MOE_SECTION(MOE_IF_SET, "importances", 0, importances_record),
    MOE_SECTION(MOE_IF_SET, "choice", 0, map_choice_record),
    MOE_SECTION(MOE_IF_SET, "fate", 0, map_fate_record),
    MOE_SECTION(MOE_IF_SET, "hobbit", 0, map_hobbit_record),
    MOE_SECTION(MOE_IF_SET, "routing", 0, map_routing_record),
    MOE_IGNORED("structures"), /* of a dropped experiment, in older maps */
};
static const struct moe_record map_record = {MOE_RECORD(map_members)};
static const struct moe_record_format map_format = {"moe-map",      "Bit map",   MOE_MAP_VERSION,
                                                    MAX_FILE_BYTES, &map_record, NULL};

int moe_map_write(const struct moe_map *map, struct moe_buf *out, struct moe_err *err)
{
    return moe_record_write(&map_format, map, false, out, err);
}

int moe_map_write_json(const struct moe_map *map, struct moe_buf *out, struct moe_err *err)
{
    return moe_record_write(&map_format, map, true, out, err);
}

static int finish(struct moe_map **out, struct moe_map *map, int status)
{
    *out = status == MOE_OK ? map : NULL;
    if (status != MOE_OK)
        moe_map_free(map);
    return status;
}

int moe_map_parse(struct moe_map **out, const char *name, const void *text, uint64_t n,
                  struct moe_err *err)
{
    struct moe_map *map = moe_alloc(1, sizeof *map, err);
    return finish(out, map,
                  map ? moe_record_parse(&map_format, map, name, text, n, err) : MOE_ERR_MEMORY);
}

int moe_map_read(struct moe_map **out, const char *path, struct moe_err *err)
{
    struct moe_map *map = moe_alloc(1, sizeof *map, err);
    return finish(out, map, map ? moe_record_read(&map_format, map, path, err) : MOE_ERR_MEMORY);
}
