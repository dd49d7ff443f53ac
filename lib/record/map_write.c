/*
 * Bit maps as YAML, a line for each layer's figures of a kind; or on one line as JSON.
 */
#include <math.h>

#include "fmt/emit.h"
#include "record/map_format.h"

struct writer {
    struct moe_emit emit;
    const struct moe_map *map;
    const char *not_finite; /* key of a number that cannot be written; NULL: none so far */
};

static double checked(struct writer *w, const char *key, double value)
{
    if (isfinite(value))
        return value;
    w->not_finite = key;
    return 0;
}

static void put_double(struct writer *w, const char *key, double value)
{
    moe_emit_double(&w->emit, key, checked(w, key, value));
}

static void put_member(struct writer *w, const struct map_member *m, const void *value)
{
    switch (m->kind) {
    case MAP_TEXT:
        moe_emit_text(&w->emit, m->key, value);
        break;
    case MAP_COUNT:
    case MAP_BITS:
        moe_emit_u64(&w->emit, m->key, *(const uint32_t *)value);
        break;
    case MAP_WHOLE:
        moe_emit_u64(&w->emit, m->key, *(const uint64_t *)value);
        break;
    case MAP_FINGERPRINT:
        moe_emit_fingerprint(&w->emit, m->key, *(const uint64_t *)value);
        break;
    case MAP_FLAG:
        moe_emit_bool(&w->emit, m->key, *(const bool *)value);
        break;
    case MAP_AMOUNT:
    case MAP_SHARE:
    case MAP_POINTS:
    case MAP_CHANGE:
        put_double(w, m->key, *(const double *)value);
        break;
    }
}

static void put_members(struct writer *w, const struct map_table *table, const void *from)
{
    for (size_t i = 0; i < table->n; i++)
        put_member(w, &table->members[i], (const char *)from + table->members[i].at);
}

/* Without tokens nothing was measured. */
static void put_loss(struct writer *w, const char *key, const struct moe_loss *loss)
{
    if (loss->tokens == 0)
        return;
    moe_emit_open_line_map(&w->emit, key);
    put_members(w, &map_loss, loss);
    moe_emit_close(&w->emit);
}

static void put_variant(struct writer *w, const char *key, uint32_t variant)
{
    moe_emit_text(&w->emit, key, w->map->variants[variant]);
}

/* ---- What was calibrated, on what ---- */

static void put_shape(struct writer *w)
{
    moe_emit_open_map(&w->emit, "shape");
    put_members(w, &map_shape, w->map);
    moe_emit_u32s(&w->emit, "model_layers", w->map->model_layer, w->map->n_layers);
    moe_emit_close(&w->emit);
}

static void put_variants(struct writer *w)
{
    moe_emit_open_line_list(&w->emit, "variants");
    for (uint32_t v = 0; v < w->map->n_variants; v++)
        put_variant(w, NULL, v);
    moe_emit_close(&w->emit);
}

static void put_texts(struct writer *w)
{
    if (w->map->n_texts == 0)
        return;
    moe_emit_open_list(&w->emit, "texts");
    for (uint32_t i = 0; i < w->map->n_texts; i++) {
        const struct moe_map_text *text = &w->map->texts[i];
        moe_emit_open_map(&w->emit, NULL);
        put_members(w, &map_text, text);
        if (text->known)
            put_loss(w, "loss", &text->loss);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

static void put_rungs(struct writer *w)
{
    if (w->map->n_rungs == 0)
        return;
    moe_emit_open_list(&w->emit, "rungs");
    for (uint32_t i = 0; i < w->map->n_rungs; i++) {
        moe_emit_open_map(&w->emit, NULL);
        put_members(w, &map_rung, &w->map->rungs[i]);
        put_loss(w, "loss", &w->map->rungs[i].loss);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

/* ---- Importances ---- */

/* Figures of a layer's known experts. */
static void put_doubles(struct writer *w, const char *key, const double *values,
                        const uint8_t *known)
{
    moe_emit_open_line_list(&w->emit, key);
    for (uint32_t e = 0; e < w->map->n_experts; e++)
        if (known[e])
            moe_emit_double(&w->emit, NULL, checked(w, key, values[e]));
    moe_emit_close(&w->emit);
}

static void put_counts(struct writer *w, const char *key, const uint32_t *values,
                       const uint8_t *known)
{
    moe_emit_open_line_list(&w->emit, key);
    for (uint32_t e = 0; e < w->map->n_experts; e++)
        if (known[e])
            moe_emit_u64(&w->emit, NULL, values[e]);
    moe_emit_close(&w->emit);
}

static void put_experts(struct writer *w, const uint8_t *known)
{
    moe_emit_open_line_list(&w->emit, "experts");
    for (uint32_t e = 0; e < w->map->n_experts; e++)
        if (known[e])
            moe_emit_u64(&w->emit, NULL, e);
    moe_emit_close(&w->emit);
}

static uint64_t count_known(const uint8_t *known, uint64_t n)
{
    uint64_t found = 0;
    for (uint64_t i = 0; i < n; i++)
        found += known[i] != 0;
    return found;
}

static void put_importances_of(struct writer *w, uint32_t layer)
{
    const struct moe_importances *i = &w->map->importances;
    uint64_t first = (uint64_t)layer * w->map->n_experts;
    const uint8_t *known = i->known + first;
    uint64_t n_known = count_known(known, w->map->n_experts);
    if (n_known == 0)
        return;
    moe_emit_open_map(&w->emit, NULL);
    moe_emit_u64(&w->emit, "layer", layer);
    if (n_known < w->map->n_experts)
        put_experts(w, known);
    put_doubles(w, "nats", i->nats + first, known);
    if (i->exact) {
        put_doubles(w, "error_nats", i->error + first, known);
        put_counts(w, "changed_tokens", i->changed + first, known);
    }
    put_counts(w, "visited_documents", i->visited + first, known);
    moe_emit_close(&w->emit);
}

static void put_importances(struct writer *w)
{
    const struct moe_importances *i = &w->map->importances;
    if (!i->there)
        return;
    moe_emit_open_map(&w->emit, "importances");
    moe_emit_bool(&w->emit, "exact", i->exact);
    put_variant(w, "upper", i->upper);
    put_variant(w, "lower", i->lower);
    moe_emit_u64(&w->emit, "dense_bits", i->dense_bits);
    if (count_known(i->known, (uint64_t)w->map->n_layers * w->map->n_experts) > 0) {
        moe_emit_open_list(&w->emit, "layers");
        for (uint32_t l = 0; l < w->map->n_layers; l++)
            put_importances_of(w, l);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

/* ---- What was chosen ---- */

static void put_choice(struct writer *w)
{
    const struct moe_map *m = w->map;
    if (!m->choice.there)
        return;
    moe_emit_open_map(&w->emit, "choice");
    put_members(w, &map_choice, m);
    put_double(w, map_expected_keys[m->metric], m->choice.expected);
    put_loss(w, "loss", &m->choice.loss);
    put_loss(w, "check", &m->choice.check);
    moe_emit_open_list(&w->emit, "layers");
    for (uint32_t l = 0; l < m->n_layers; l++) {
        moe_emit_open_line_list(&w->emit, NULL);
        for (uint32_t e = 0; e < m->n_experts; e++)
            put_variant(w, NULL, m->choice.variant[(uint64_t)l * m->n_experts + e]);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
    moe_emit_close(&w->emit);
}

/* An item: what so large a share costs in two ways. */
static void put_share(struct writer *w, double share, const char *one_key,
                      const struct moe_loss *one, const char *other_key,
                      const struct moe_loss *other)
{
    moe_emit_open_map(&w->emit, NULL);
    put_double(w, "share", share);
    put_loss(w, one_key, one);
    put_loss(w, other_key, other);
    moe_emit_close(&w->emit);
}

static void put_fate(struct writer *w)
{
    const struct moe_map_fate *f = &w->map->fate;
    if (!f->there)
        return;
    moe_emit_open_map(&w->emit, "fate");
    put_members(w, &map_fate, w->map);
    put_variant(w, "high", f->high);
    put_variant(w, "low", f->low);
    put_loss(w, "loss", &f->loss);
    if (f->n_points) {
        moe_emit_open_list(&w->emit, "curve");
        for (uint32_t i = 0; i < f->n_points; i++)
            put_share(w, f->points[i].share, "unpopular", &f->points[i].unpopular, "popular",
                      &f->points[i].popular);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

static void put_scores(struct writer *w, const double *scores)
{
    bool any = false;
    for (uint32_t i = 0; i < MOE_SCORE_BINS; i++)
        any |= scores[i] != 0;
    if (!any)
        return;
    moe_emit_open_line_list(&w->emit, "scores");
    for (uint32_t i = 0; i < MOE_SCORE_BINS; i++)
        moe_emit_double(&w->emit, NULL, checked(w, "scores", scores[i]));
    moe_emit_close(&w->emit);
}

static void put_hobbit(struct writer *w)
{
    const struct moe_map_hobbit *h = &w->map->hobbit;
    if (!h->there)
        return;
    moe_emit_open_map(&w->emit, "hobbit");
    put_members(w, &map_hobbit, w->map);
    put_variant(w, "high", h->high);
    put_variant(w, "low", h->low);
    put_loss(w, "loss", &h->loss);
    if (h->n_cuts) {
        moe_emit_open_list(&w->emit, "cuts");
        for (uint32_t i = 0; i < h->n_cuts; i++)
            put_share(w, h->cuts[i].share, "low", &h->cuts[i].low, "skipped", &h->cuts[i].skipped);
        moe_emit_close(&w->emit);
    }
    put_scores(w, h->scores);
    if (h->weighed) {
        moe_emit_open_line_map(&w->emit, "weights");
        for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
            put_double(w, map_weight_keys[i], h->weights[i]);
        moe_emit_close(&w->emit);
        put_members(w, &map_tuned, w->map);
    }
    moe_emit_close(&w->emit);
}

static int put_map(const struct moe_map *map, struct moe_buf *out, bool json, struct moe_err *err)
{
    struct writer w = {.map = map};
    moe_emit_begin(&w.emit, out, json, "Bit map: see moe-map(5).", "moe-map", MOE_MAP_VERSION);
    put_members(&w, &map_head, map);
    put_shape(&w);
    put_variants(&w);
    moe_emit_text(&w.emit, "metric", moe_metric_name(map->metric));
    if (!(map->tolerance < 0))
        put_double(&w, map_tolerance_keys[map->metric], map->tolerance);
    put_texts(&w);
    put_rungs(&w);
    if (map->rank_correlation <= 1)
        put_double(&w, "rank_correlation", map->rank_correlation);
    put_importances(&w);
    put_choice(&w);
    put_fate(&w);
    put_hobbit(&w);
    int status = moe_emit_end(&w.emit, err);
    if (status == MOE_OK && w.not_finite)
        status =
            moe_fail(err, MOE_ERR_USAGE, "bit map: a number of '%s' is not finite", w.not_finite);
    return status;
}

int moe_map_write(const struct moe_map *map, struct moe_buf *out, struct moe_err *err)
{
    return put_map(map, out, false, err);
}

int moe_map_write_json(const struct moe_map *map, struct moe_buf *out, struct moe_err *err)
{
    return put_map(map, out, true, err);
}
