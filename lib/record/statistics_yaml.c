/*
 * Statistics as YAML, moe-stats(5): every number a whole one, so that shards that are merged give
 * the very file of one run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/yaml.h"
#include "record/statistics_state.h"

enum { FORMAT_VERSION = 1, MAX_TOKENS = 1 << 24, MAX_LAYERS = 1 << 16 };
/* A file of 256 experts in 64 layers has some 30 MB. */
#define MAX_FILE_BYTES (UINT64_C(1) << 30)

static const char *const total_names[MOE_N_TOTALS] = {
    [MOE_TOTAL_DOCUMENTS] = "documents",
    [MOE_TOTAL_TOKENS] = "tokens",
    [MOE_TOTAL_SIMILAR_N] = "similarity_documents",
    [MOE_TOTAL_SIMILAR] = "similarity_sum_30bit",
    [MOE_TOTAL_DRIFT_N] = "drift_windows",
    [MOE_TOTAL_DRIFT] = "drift_sum_30bit",
    [MOE_TOTAL_NEXT_N] = "next_windows",
    [MOE_TOTAL_NEXT] = "next_sum_30bit",
    [MOE_TOTAL_HASH] = "documents_hash",
};

/* Series that are one list a layer; pairs and accuracy are tables. */
static bool is_list(enum moe_series series)
{
    return series != MOE_S_PAIRS && series != MOE_S_ACCURACY;
}

static bool is_signed(enum moe_series series)
{
    return series == MOE_S_COSINES;
}

/* ---- Writing ---- */

static void put_numbers(struct moe_buf *out, const uint64_t *numbers, uint64_t n, bool as_signed)
{
    moe_buf_text(out, "[");
    for (uint64_t i = 0; i < n; i++) {
        moe_buf_text(out, i ? ", " : "");
        if (as_signed)
            moe_buf_printf(out, "%" PRId64, (int64_t)numbers[i]);
        else
            moe_buf_printf(out, "%" PRIu64, numbers[i]);
    }
    moe_buf_text(out, "]\n");
}

static void put_layer(const struct moe_statistics *s, uint32_t layer, struct moe_buf *out)
{
    uint32_t n_experts = s->shape.n_experts;
    moe_buf_printf(out, "  - layer: %" PRIu32 "\n", layer);
    for (int i = 0; i < MOE_N_SERIES; i++) {
        if (!is_list(i))
            continue;
        moe_buf_printf(out, "    %s: ", moe_series_name(i));
        put_numbers(out, moe_series_at(s, i, layer), moe_series_length(&s->shape, i), is_signed(i));
    }
    moe_buf_printf(out, "    %s:\n", moe_series_name(MOE_S_ACCURACY));
    for (int p = 0; p < MOE_N_PREDICTORS; p++) {
        moe_buf_printf(out, "      %s: ", moe_predictor_name(p));
        put_numbers(out, moe_accuracy_at(s, layer, p), MOE_N_ACCURACIES, false);
    }
    moe_buf_printf(out, "    %s:\n", moe_series_name(MOE_S_PAIRS));
    for (uint32_t e = 0; e < n_experts; e++) {
        moe_buf_text(out, "      - ");
        put_numbers(out, moe_series_at(s, MOE_S_PAIRS, layer) + (uint64_t)e * n_experts, n_experts,
                    false);
    }
}

static int put_paths(const struct moe_statistics *s, struct moe_buf *out, struct moe_err *err)
{
    uint64_t n;
    struct moe_path_count *list = moe_path_table_sorted(s->paths, &n, err);
    if (!list)
        return MOE_ERR_MEMORY;
    moe_buf_text(out, n ? "paths:\n" : "paths: []\n");
    for (uint64_t i = 0; i < n; i++) {
        uint64_t key = list[i].key;
        uint64_t row[5] = {key >> 48, key >> 32 & 0xffff, key >> 16 & 0xffff, key & 0xffff,
                           list[i].n};
        moe_buf_text(out, "  - ");
        put_numbers(out, row, 5, false);
    }
    free(list);
    list = moe_path_table_sorted(s->whole, &n, err);
    if (!list)
        return MOE_ERR_MEMORY;
    moe_buf_printf(out, "whole_paths_sampled: %s\n",
                   moe_path_table_sampled(s->whole) ? "true" : "false");
    moe_buf_text(out, n ? "whole_paths:\n" : "whole_paths: []\n");
    for (uint64_t i = 0; i < n; i++) {
        uint64_t row[2] = {list[i].key, list[i].n};
        moe_buf_text(out, "  - ");
        put_numbers(out, row, 2, false);
    }
    free(list);
    return MOE_OK;
}

int moe_statistics_write(const struct moe_statistics *s, struct moe_buf *out, struct moe_err *err)
{
    const struct moe_statistics_shape *shape = &s->shape;
    moe_buf_printf(out,
                   "# Statistics of a mixture-of-experts model: see moe-stats(5).\n"
                   "format: moe-stats\nversion: %d\n"
                   "model:\n  source_fingerprint: \"%016" PRIx64 "\"\n  moe_layers: %" PRIu32
                   "\n  experts: %" PRIu32 "\n  experts_per_token: %" PRIu32 "\n"
                   "settings:\n  max_tokens: %" PRIu32 "\n  prompt_percent: %" PRIu32 "\n"
                   "totals:\n",
                   FORMAT_VERSION, shape->source_fingerprint, shape->n_layers, shape->n_experts,
                   shape->top_k, shape->max_tokens, shape->prompt_percent);
    for (int i = 0; i < MOE_N_TOTALS; i++)
        moe_buf_printf(out, "  %s: %" PRIu64 "\n", total_names[i], s->totals[i]);
    moe_buf_text(out, "layers:\n");
    for (uint32_t l = 0; l < shape->n_layers; l++)
        put_layer(s, l, out);
    int status = put_paths(s, out, err);
    if (status == MOE_OK && out->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory while writing statistics");
    return status;
}

/* ---- Reading ---- */

struct reading {
    struct moe_yaml *doc;
    struct moe_statistics *s;
    struct moe_err *err;
};

static int read_shape(struct moe_yaml *doc, struct moe_statistics_shape *shape, struct moe_err *err)
{
    struct moe_yaml_node *root = moe_yaml_root(doc), *model = NULL, *settings = NULL;
    *shape = (struct moe_statistics_shape){0};
    int status = moe_yaml_get_map(doc, root, "model", true, &model, err);
    if (status == MOE_OK)
        status = moe_yaml_get_map(doc, root, "settings", true, &settings, err);
    if (status == MOE_OK)
        status = moe_yaml_get_fingerprint(doc, model, "source_fingerprint", true,
                                          &shape->source_fingerprint, err);
    if (status == MOE_OK)
        status =
            moe_yaml_get_u32(doc, model, "moe_layers", MAX_LAYERS, true, &shape->n_layers, err);
    if (status == MOE_OK)
        status = moe_yaml_get_u32(doc, model, "experts", MOE_NO_EXPERT - 1, true, &shape->n_experts,
                                  err);
    if (status == MOE_OK)
        status = moe_yaml_get_u32(doc, model, "experts_per_token", MOE_STATISTICS_MAX_TOP_K, true,
                                  &shape->top_k, err);
    if (status == MOE_OK)
        status = moe_yaml_get_u32(doc, settings, "max_tokens", MAX_TOKENS, true, &shape->max_tokens,
                                  err);
    if (status == MOE_OK)
        status = moe_yaml_get_u32(doc, settings, "prompt_percent", 100, true,
                                  &shape->prompt_percent, err);
    return status;
}

/* A file claims its shape before it shows the numbers: what they would take must be in the file. */
static int check_claim(struct moe_yaml *doc, const struct moe_statistics_shape *shape,
                       struct moe_err *err)
{
    struct moe_yaml_node *layers = NULL, *pairs = NULL;
    uint64_t n_layers = 0, n_rows = 0;
    int status =
        moe_yaml_get_list(doc, moe_yaml_root(doc), "layers", true, &layers, &n_layers, err);
    if (status == MOE_OK && n_layers != shape->n_layers)
        status = moe_yaml_fail(doc, layers, err, "%" PRIu64 " layers, the model has %" PRIu32,
                               n_layers, shape->n_layers);
    for (struct moe_yaml_node *m = layers ? moe_yaml_first(layers) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        status = moe_yaml_item_map(doc, m, err);
        if (status == MOE_OK)
            status =
                moe_yaml_get_list(doc, m, moe_series_name(MOE_S_PAIRS), true, &pairs, &n_rows, err);
        if (status == MOE_OK && n_rows != shape->n_experts)
            status = moe_yaml_fail(doc, pairs, err,
                                   "%" PRIu64 " rows of pairs, the model has %" PRIu32 " experts",
                                   n_rows, shape->n_experts);
        for (struct moe_yaml_node *row = pairs && status == MOE_OK ? moe_yaml_first(pairs) : NULL;
             row && status == MOE_OK; row = moe_yaml_next(row))
            if (moe_yaml_length(row) != shape->n_experts)
                status = moe_yaml_fail(doc, row, err, "a row must have %" PRIu32 " numbers",
                                       shape->n_experts);
    }
    return status;
}

static int read_signed(struct reading *r, struct moe_yaml_node *map, const char *key, uint64_t *out,
                       uint64_t n)
{
    struct moe_yaml_node *list = NULL;
    uint64_t found = 0, i = 0;
    int status = moe_yaml_get_list(r->doc, map, key, true, &list, &found, r->err);
    if (status == MOE_OK && found != n)
        status = moe_yaml_fail(r->doc, list, r->err, "'%s' must have %" PRIu64 " items", key, n);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        int64_t value = 0;
        status = moe_yaml_item_i64(r->doc, m, &value, r->err);
        out[i++] = (uint64_t)value;
    }
    return status;
}

/* The items of a row as n numbers up to UINT64_MAX. */
static int read_row(struct reading *r, struct moe_yaml_node *row, uint64_t *out, uint64_t n)
{
    uint64_t i = 0;
    int status = MOE_OK;
    for (struct moe_yaml_node *m = moe_yaml_first(row); m && i < n && status == MOE_OK;
         m = moe_yaml_next(m), i++)
        status = moe_yaml_item_u64(r->doc, m, UINT64_MAX, &out[i], r->err);
    if (status == MOE_OK && (i != n || moe_yaml_length(row) != n))
        status = moe_yaml_fail(r->doc, row, r->err, "a row must have %" PRIu64 " numbers", n);
    return status;
}

static int read_layer(struct reading *r, struct moe_yaml_node *map, uint32_t layer)
{
    const struct moe_statistics *s = r->s;
    uint64_t number = 0, n_rows = 0, e = 0;
    struct moe_yaml_node *accuracy = NULL, *pairs = NULL;
    int status = moe_yaml_get_u64(r->doc, map, "layer", UINT32_MAX, true, &number, r->err);
    if (status == MOE_OK && number != layer)
        status = moe_yaml_fail(r->doc, map, r->err, "layer %" PRIu64 " where %" PRIu32 " belongs",
                               number, layer);
    for (int i = 0; i < MOE_N_SERIES && status == MOE_OK; i++) {
        if (!is_list(i))
            continue;
        uint64_t n = moe_series_length(&s->shape, i), *to = moe_series_at(s, i, layer);
        status = is_signed(i) ? read_signed(r, map, moe_series_name(i), to, n)
                              : moe_yaml_get_u64s(r->doc, map, moe_series_name(i), UINT64_MAX, to,
                                                  n, r->err);
    }
    if (status == MOE_OK)
        status =
            moe_yaml_get_map(r->doc, map, moe_series_name(MOE_S_ACCURACY), true, &accuracy, r->err);
    for (int p = 0; p < MOE_N_PREDICTORS && status == MOE_OK; p++)
        status = moe_yaml_get_u64s(r->doc, accuracy, moe_predictor_name(p), UINT64_MAX,
                                   moe_accuracy_at(s, layer, p), MOE_N_ACCURACIES, r->err);
    if (status == MOE_OK)
        status = moe_yaml_get_list(r->doc, map, moe_series_name(MOE_S_PAIRS), true, &pairs, &n_rows,
                                   r->err);
    for (struct moe_yaml_node *m = pairs ? moe_yaml_first(pairs) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m), e++)
        status = read_row(r, m, moe_series_at(s, MOE_S_PAIRS, layer) + e * s->shape.n_experts,
                          s->shape.n_experts);
    return status;
}

static int add_path(struct reading *r, struct moe_yaml_node *row, const uint64_t *numbers)
{
    const struct moe_statistics_shape *shape = &r->s->shape;
    uint64_t layer = numbers[0];
    uint64_t no_expert = layer == 1 ? MOE_NO_EXPERT : shape->n_experts;
    bool fits = layer >= 1 && layer < shape->n_layers && numbers[2] < shape->n_experts &&
                numbers[3] < shape->n_experts &&
                (layer == 1 ? numbers[1] == no_expert : numbers[1] < no_expert);
    if (!fits)
        return moe_yaml_fail(r->doc, row, r->err, "a path that this model cannot have");
    return moe_path_table_add(r->s->paths,
                              moe_path_key((uint32_t)layer, (uint32_t)numbers[1],
                                           (uint32_t)numbers[2], (uint32_t)numbers[3]),
                              numbers[4], r->err);
}

static int add_whole_path(struct reading *r, struct moe_yaml_node *row, const uint64_t *numbers)
{
    (void)row;
    return moe_path_table_add(r->s->whole, numbers[0], numbers[1], r->err);
}

static int read_rows(struct reading *r, const char *key, uint64_t width,
                     int (*add)(struct reading *r, struct moe_yaml_node *row,
                                const uint64_t *numbers))
{
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0, numbers[5], before[5] = {0};
    bool first = true;
    int status = moe_yaml_get_list(r->doc, moe_yaml_root(r->doc), key, true, &list, &n, r->err);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m), first = false) {
        status = read_row(r, m, numbers, width);
        bool rises = first;
        for (uint64_t i = 0; i + 1 < width && !rises && numbers[i] >= before[i]; i++)
            rises = numbers[i] > before[i];
        if (status == MOE_OK && (!rises || numbers[width - 1] == 0))
            status = moe_yaml_fail(r->doc, m, r->err, "'%s' must rise, and count something", key);
        if (status == MOE_OK)
            status = add(r, m, numbers);
        memcpy(before, numbers, sizeof before);
    }
    return status;
}

static int read_all(struct reading *r)
{
    struct moe_yaml_node *root = moe_yaml_root(r->doc), *totals = NULL, *layers = NULL;
    uint64_t n = 0;
    uint32_t layer = 0;
    bool sampled = false;
    int status = moe_yaml_get_map(r->doc, root, "totals", true, &totals, r->err);
    for (int i = 0; i < MOE_N_TOTALS && status == MOE_OK; i++)
        status = moe_yaml_get_u64(r->doc, totals, total_names[i], UINT64_MAX, true,
                                  &r->s->totals[i], r->err);
    if (status == MOE_OK)
        status = moe_yaml_get_list(r->doc, root, "layers", true, &layers, &n, r->err);
    for (struct moe_yaml_node *m = layers ? moe_yaml_first(layers) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m))
        status = read_layer(r, m, layer++);
    if (status == MOE_OK)
        status = read_rows(r, "paths", 5, add_path);
    if (status == MOE_OK)
        status = moe_yaml_get_bool(r->doc, root, "whole_paths_sampled", true, &sampled, r->err);
    if (status == MOE_OK)
        status = read_rows(r, "whole_paths", 2, add_whole_path);
    if (status == MOE_OK && sampled)
        moe_path_table_set_sampled(r->s->whole);
    return status == MOE_OK ? moe_yaml_check_known(r->doc, r->err) : status;
}

/* What a table counts: of each layer's paths, or (layers NULL) in all. */
static int sum_paths(const struct moe_path_table *table, uint64_t *layers, uint64_t *all,
                     struct moe_err *err)
{
    uint64_t n;
    struct moe_path_count *list = moe_path_table_sorted(table, &n, err);
    *all = 0;
    for (uint64_t i = 0; i < n; i++)
        *(layers ? &layers[list[i].key >> 48] : all) += list[i].n;
    free(list);
    return list ? MOE_OK : MOE_ERR_MEMORY;
}

/* Each token has its k experts in each layer, one of them best, and a path through them. */
static int check_layer_sums(struct reading *r, uint32_t l, uint64_t paths)
{
    const struct moe_statistics *s = r->s;
    uint64_t tokens = s->totals[MOE_TOTAL_TOKENS], k = s->shape.top_k;
    uint64_t active = 0, best = 0, pairs = 0, n_pairs = moe_series_length(&s->shape, MOE_S_PAIRS);
    for (uint32_t e = 0; e < s->shape.n_experts; e++) {
        active += moe_series_at(s, MOE_S_ACTIVATIONS, l)[e];
        best += moe_series_at(s, MOE_S_RANK1, l)[e];
    }
    for (uint64_t i = 0; i < n_pairs; i++)
        pairs += moe_series_at(s, MOE_S_PAIRS, l)[i];
    if (best == tokens && active == tokens * k && paths == (l ? tokens : 0) &&
        pairs == (l ? tokens : tokens - s->totals[MOE_TOTAL_DOCUMENTS]) * k * k)
        return MOE_OK;
    return moe_yaml_fail(r->doc, moe_yaml_root(r->doc), r->err,
                         "layer %" PRIu32 ": activations, pairs or paths of %" PRIu64
                         " tokens do not add up",
                         l, tokens);
}

static int check_sums(struct reading *r)
{
    const struct moe_statistics *s = r->s;
    uint64_t whole = 0, unused;
    uint64_t *paths = moe_alloc(s->shape.n_layers, sizeof *paths, r->err);
    int status = paths ? sum_paths(s->paths, paths, &unused, r->err) : MOE_ERR_MEMORY;
    for (uint32_t l = 0; l < s->shape.n_layers && status == MOE_OK; l++)
        status = check_layer_sums(r, l, paths[l]);
    free(paths);
    if (status == MOE_OK)
        status = sum_paths(s->whole, NULL, &whole, r->err);
    if (status == MOE_OK && !moe_path_table_sampled(s->whole) &&
        whole != s->totals[MOE_TOTAL_TOKENS])
        status = moe_yaml_fail(r->doc, moe_yaml_root(r->doc), r->err,
                               "the whole paths of %" PRIu64 " tokens do not add up",
                               s->totals[MOE_TOTAL_TOKENS]);
    return status;
}

int moe_statistics_read(struct moe_statistics **out, const char *path, struct moe_err *err)
{
    struct reading r = {.err = err};
    struct moe_statistics_shape shape;
    *out = NULL;
    int status = moe_yaml_read(&r.doc, path, MAX_FILE_BYTES, err);
    if (status == MOE_OK)
        status = moe_yaml_check_format(r.doc, "moe-stats", FORMAT_VERSION, NULL, err);
    if (status == MOE_OK)
        status = read_shape(r.doc, &shape, err);
    if (status == MOE_OK)
        status = check_claim(r.doc, &shape, err);
    if (status == MOE_OK)
        status = moe_statistics_new(&r.s, &shape, err);
    if (status == MOE_OK)
        status = read_all(&r);
    if (status == MOE_OK)
        status = check_sums(&r);
    if (status == MOE_OK)
        *out = r.s;
    else
        moe_statistics_free(r.s);
    moe_yaml_free(r.doc);
    return status;
}
