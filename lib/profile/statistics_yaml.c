/*
 * Statistics as YAML, moe-stats(5): all numbers are whole, so that merged shards give exactly the
 * file of one run.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/record.h"
#include "profile/statistics_internal.h"

enum { FORMAT_VERSION = 1, MAX_TOKENS = 1 << 24, MAX_LAYERS = 1 << 16 };
/* A file of 256 experts in 64 layers has about 30 MB. */
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
    [MOE_TOTAL_SOURCE] = "source_tokens",
};

/* Series with one list per layer; pairs and accuracy are tables. */
static bool is_list(enum moe_series series)
{
    return series != MOE_S_PAIRS && series != MOE_S_ACCURACY;
}

static bool is_signed(enum moe_series series)
{
    return series == MOE_S_COSINES;
}

static const struct moe_member model_members[] = {
    MOE_FINGERPRINT(MOE_ALWAYS, struct moe_statistics_shape, "source_fingerprint",
                    source_fingerprint),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_statistics_shape, "moe_layers", n_layers, 0, MAX_LAYERS),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_statistics_shape, "encoder_layers", n_encoder, 0,
                 MAX_LAYERS),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_statistics_shape, "experts", n_experts, 0,
                 MOE_NO_EXPERT - 1),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_statistics_shape, "experts_per_token", top_k, 0,
                 MOE_STATISTICS_MAX_TOP_K),
};
static const struct moe_member settings_members[] = {
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_statistics_shape, "max_tokens", max_tokens, 0, MAX_TOKENS),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_statistics_shape, "prompt_percent", prompt_percent, 0, 100),
};
static const struct moe_record model_record = {MOE_RECORD(model_members)};
static const struct moe_record settings_record = {MOE_RECORD(settings_members)};

/* What comes before the numbers. */
struct head {
    struct moe_statistics_shape shape;
    struct moe_origins origins;
};
static const struct moe_member head_members[] = {
    MOE_SECTION(MOE_ALWAYS, "model", offsetof(struct head, shape), model_record),
    MOE_SECTION(MOE_ALWAYS, "settings", offsetof(struct head, shape), settings_record),
    {.type = MOE_MEMBER_GROUP,
     .presence = MOE_ALWAYS,
     .at = offsetof(struct head, origins),
     .record = &moe_origins_record},
};
static const struct moe_record head_record = {MOE_RECORD(head_members)};

/* Without an encoder there are no sources. */
static int n_totals(const struct moe_statistics_shape *shape)
{
    return shape->n_encoder ? MOE_N_TOTALS : MOE_TOTAL_SOURCE;
}

/* ---- Writing ---- */

static void put_numbers(struct moe_emit *e, const char *key, const uint64_t *numbers, uint64_t n,
                        bool as_signed)
{
    moe_emit_open_line_list(e, key);
    for (uint64_t i = 0; i < n; i++) {
        if (as_signed)
            moe_emit_i64(e, NULL, (int64_t)numbers[i]);
        else
            moe_emit_u64(e, NULL, numbers[i]);
    }
    moe_emit_close(e);
}

static void put_layer(struct moe_emit *e, const struct moe_statistics *s, uint32_t layer)
{
    uint32_t n_experts = s->shape.n_experts;
    const uint64_t *pairs = moe_series_at(s, MOE_S_PAIRS, layer);
    moe_emit_open_map(e, NULL);
    moe_emit_u64(e, "layer", layer);
    for (int i = 0; i < MOE_N_SERIES; i++)
        if (is_list(i))
            put_numbers(e, moe_series_name(i), moe_series_at(s, i, layer),
                        moe_series_length(&s->shape, i), is_signed(i));
    moe_emit_open_map(e, moe_series_name(MOE_S_ACCURACY));
    for (int p = 0; p < MOE_PREDICT_TOKEN; p++)
        put_numbers(e, moe_predictor_name(p), moe_accuracy_at(s, layer, p), MOE_N_ACCURACIES,
                    false);
    moe_emit_close(e);
    moe_emit_open_list(e, moe_series_name(MOE_S_PAIRS));
    for (uint32_t x = 0; x < n_experts; x++, pairs += n_experts)
        put_numbers(e, NULL, pairs, n_experts, false);
    moe_emit_close(e);
    moe_emit_close(e);
}

/* Documents by themselves: their hash, and a list of counts for each layer. */
static void put_requests(struct moe_emit *e, const struct moe_requests *r)
{
    if (r->n == 0)
        return;
    moe_emit_open_list(e, "requests");
    for (uint32_t i = 0; i < r->n; i++) {
        moe_emit_open_map(e, NULL);
        moe_emit_u64(e, "hash", r->hashes[i]);
        moe_emit_open_list(e, "layers");
        for (uint32_t l = 0; l < r->n_layers; l++) {
            const uint32_t *counts = moe_requests_at(r, i, l);
            moe_emit_open_line_list(e, NULL);
            for (uint32_t x = 0; x < r->n_experts; x++)
                moe_emit_u64(e, NULL, counts[x]);
            moe_emit_close(e);
        }
        moe_emit_close(e);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* Paths, each a list of its key (or the parts of the key) and its count. */
static int put_paths(struct moe_emit *e, const char *key, const struct moe_path_table *table,
                     bool has_parts, struct moe_err *err)
{
    uint64_t n;
    struct moe_path_count *list = moe_path_table_sorted(table, &n, err);
    if (!list)
        return MOE_ERR_MEMORY;
    if (n)
        moe_emit_open_list(e, key);
    else
        moe_emit_open_line_list(e, key);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t k = list[i].key;
        uint64_t parts[5] = {k >> 48, k >> 32 & 0xffff, k >> 16 & 0xffff, k & 0xffff, list[i].n};
        uint64_t whole[2] = {k, list[i].n};
        put_numbers(e, NULL, has_parts ? parts : whole, has_parts ? 5 : 2, false);
    }
    moe_emit_close(e);
    free(list);
    return MOE_OK;
}

int moe_statistics_write(const struct moe_statistics *s, struct moe_buf *out, struct moe_err *err)
{
    const struct head head = {s->shape, s->origins};
    struct moe_record_writer w = {.whole = &head};
    struct moe_emit *e = &w.emit;
    moe_emit_begin(e, out, false, "Statistics of a mixture-of-experts model: see moe-stats(5).",
                   "moe-stats", FORMAT_VERSION);
    moe_record_write_map(&w, &head_record, &head);
    moe_emit_open_map(e, "totals");
    for (int i = 0; i < n_totals(&s->shape); i++)
        moe_emit_u64(e, total_names[i], s->totals[i]);
    moe_emit_close(e);
    moe_emit_open_list(e, "layers");
    for (uint32_t l = 0; l < s->shape.n_layers; l++)
        put_layer(e, s, l);
    moe_emit_close(e);
    put_requests(e, &s->requests);
    int status = put_paths(e, "paths", s->paths, true, err);
    moe_emit_bool(e, "whole_paths_sampled", moe_path_table_sampled(s->whole));
    if (status == MOE_OK)
        status = put_paths(e, "whole_paths", s->whole, false, err);
    return status == MOE_OK ? moe_emit_end(e, err) : status;
}

/* ---- Reading ---- */

struct reading {
    struct moe_yaml *doc;
    struct moe_statistics *s;
    struct moe_err *err;
};

/* A file states its shape before the numbers: no more is allocated than the file has numbers for.
 */
static int check_claim(struct moe_yaml *doc, const struct moe_statistics_shape *shape,
                       struct moe_err *err)
{
    struct moe_yaml_node *layers = NULL, *pairs = NULL;
    uint64_t n_layers = 0, n_rows = 0;
    MOE_TRY(moe_yaml_get_list(doc, moe_yaml_root(doc), "layers", true, &layers, &n_layers, err));
    if (n_layers != shape->n_layers)
        return moe_yaml_fail(doc, layers, err, "%" PRIu64 " layers, the model has %" PRIu32,
                             n_layers, shape->n_layers);
    for (struct moe_yaml_node *m = layers ? moe_yaml_first(layers) : NULL; m;
         m = moe_yaml_next(m)) {
        MOE_TRY(moe_yaml_item_map(doc, m, err));
        MOE_TRY(
            moe_yaml_get_list(doc, m, moe_series_name(MOE_S_PAIRS), true, &pairs, &n_rows, err));
        if (n_rows != shape->n_experts)
            return moe_yaml_fail(doc, pairs, err,
                                 "%" PRIu64 " rows of pairs, the model has %" PRIu32 " experts",
                                 n_rows, shape->n_experts);
        for (struct moe_yaml_node *row = pairs ? moe_yaml_first(pairs) : NULL; row;
             row = moe_yaml_next(row)) {
            if (moe_yaml_length(row) != shape->n_experts)
                return moe_yaml_fail(doc, row, err, "a row must have %" PRIu32 " numbers",
                                     shape->n_experts);
        }
    }
    return MOE_OK;
}

/* The items of a list as n numbers; `as_signed`: of either sign, else up to UINT64_MAX. */
static int read_numbers(struct reading *r, struct moe_yaml_node *list, bool as_signed,
                        uint64_t *out, uint64_t n)
{
    int status =
        moe_yaml_length(list) == n
            ? MOE_OK
            : moe_yaml_fail(r->doc, list, r->err, "expected a list of %" PRIu64 " numbers", n);
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m), out++) {
        int64_t value = 0;
        status = as_signed ? moe_yaml_item_i64(r->doc, m, &value, r->err)
                           : moe_yaml_item_u64(r->doc, m, UINT64_MAX, out, r->err);
        if (as_signed)
            *out = (uint64_t)value;
    }
    return status;
}

static int read_series(struct reading *r, struct moe_yaml_node *map, const char *key,
                       bool as_signed, uint64_t *out, uint64_t n)
{
    struct moe_yaml_node *list = NULL;
    MOE_TRY(moe_yaml_get_list_of(r->doc, map, key, n, &list, r->err));
    return read_numbers(r, list, as_signed, out, n);
}

static int read_layer(struct reading *r, struct moe_yaml_node *map, uint32_t layer)
{
    const struct moe_statistics *s = r->s;
    uint64_t number = 0, n_rows = 0, e = 0;
    struct moe_yaml_node *accuracy = NULL, *pairs = NULL;
    MOE_TRY(moe_yaml_get_u64(r->doc, map, "layer", UINT32_MAX, true, &number, r->err));
    if (number != layer)
        return moe_yaml_fail(r->doc, map, r->err, "found layer %" PRIu64 ", expected %" PRIu32,
                             number, layer);
    for (int i = 0; i < MOE_N_SERIES; i++) {
        if (!is_list(i))
            continue;
        MOE_TRY(read_series(r, map, moe_series_name(i), is_signed(i), moe_series_at(s, i, layer),
                            moe_series_length(&s->shape, i)));
    }
    MOE_TRY(
        moe_yaml_get_map(r->doc, map, moe_series_name(MOE_S_ACCURACY), true, &accuracy, r->err));
    for (int p = 0; p < MOE_PREDICT_TOKEN; p++)
        MOE_TRY(read_series(r, accuracy, moe_predictor_name(p), false, moe_accuracy_at(s, layer, p),
                            MOE_N_ACCURACIES));
    MOE_TRY(moe_yaml_get_list(r->doc, map, moe_series_name(MOE_S_PAIRS), true, &pairs, &n_rows,
                              r->err));
    for (struct moe_yaml_node *m = pairs ? moe_yaml_first(pairs) : NULL; m;
         m = moe_yaml_next(m), e++)
        MOE_TRY(read_numbers(r, m, false,
                             moe_series_at(s, MOE_S_PAIRS, layer) + e * s->shape.n_experts,
                             s->shape.n_experts));
    return MOE_OK;
}

/* Reads one document: counts of experts in each layer, k for each token. */
static int read_request(struct reading *r, struct moe_yaml_node *map, uint64_t *numbers)
{
    struct moe_requests *all = &r->s->requests;
    struct moe_yaml_node *layers = NULL;
    uint32_t k = r->s->shape.top_k;
    uint64_t hash = 0, n_layers = 0, tokens = 0, l = 0;
    MOE_TRY(moe_yaml_item_map(r->doc, map, r->err));
    MOE_TRY(moe_yaml_get_u64(r->doc, map, "hash", UINT64_MAX, true, &hash, r->err));
    MOE_TRY(moe_yaml_get_list(r->doc, map, "layers", true, &layers, &n_layers, r->err));
    if (n_layers != all->n_layers)
        return moe_yaml_fail(r->doc, map, r->err, "%" PRIu64 " layers, the model has %" PRIu32,
                             n_layers, all->n_layers);
    if (all->n > 0 && hash < all->hashes[all->n - 1])
        return moe_yaml_fail(r->doc, map, r->err, "hashes must be in ascending order");
    uint32_t *to = moe_requests_add(all, hash);
    for (struct moe_yaml_node *m = moe_yaml_first(layers); m; m = moe_yaml_next(m), l++) {
        uint64_t sum = 0;
        MOE_TRY(read_numbers(r, m, false, numbers, all->n_experts));
        for (uint32_t e = 0; e < all->n_experts; e++) {
            bool small = numbers[e] <= r->s->shape.max_tokens;
            sum += small ? numbers[e] : UINT32_MAX;
            *to++ = small ? (uint32_t)numbers[e] : 0;
        }
        tokens = l == 0 || l == r->s->shape.n_encoder ? sum / k : tokens;
        if (sum != tokens * k || tokens > r->s->shape.max_tokens)
            return moe_yaml_fail(r->doc, m, r->err, "the counts of a document do not add up");
    }
    return MOE_OK;
}

static int read_requests(struct reading *r)
{
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    int status =
        moe_yaml_get_list(r->doc, moe_yaml_root(r->doc), "requests", false, &list, &n, r->err);
    if (status != MOE_OK || !list)
        return status;
    uint64_t documents = r->s->totals[MOE_TOTAL_DOCUMENTS];
    uint64_t most = documents < MOE_REQUESTS_KEPT ? documents : MOE_REQUESTS_KEPT;
    if (n > most)
        return moe_yaml_fail(r->doc, list, r->err,
                             "%" PRIu64 " per-document records, at most %" PRIu64 " are allowed", n,
                             most);
    uint64_t *numbers = moe_alloc(r->s->shape.n_experts, sizeof *numbers, r->err);
    status = numbers ? MOE_OK : MOE_ERR_MEMORY;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m))
        status = read_request(r, m, numbers);
    free(numbers);
    return status;
}

static int add_path(struct reading *r, struct moe_yaml_node *row, const uint64_t *numbers)
{
    const struct moe_statistics_shape *shape = &r->s->shape;
    uint64_t layer = numbers[0], second = shape->n_encoder + UINT64_C(1);
    uint64_t no_expert = layer == second ? MOE_NO_EXPERT : shape->n_experts;
    bool fits = layer >= second && layer < shape->n_layers && numbers[2] < shape->n_experts &&
                numbers[3] < shape->n_experts &&
                (layer == second ? numbers[1] == no_expert : numbers[1] < no_expert);
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

/* Rows that become keys of the table. */
static int
read_rows(struct reading *r, const char *key, uint64_t width, struct moe_path_table *table,
          int (*add)(struct reading *r, struct moe_yaml_node *row, const uint64_t *numbers))
{
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0, numbers[5], before[5] = {0};
    bool first = true;
    int status = moe_yaml_get_list(r->doc, moe_yaml_root(r->doc), key, true, &list, &n, r->err);
    if (status == MOE_OK)
        status = moe_path_table_reserve(table, n, r->err);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m), first = false) {
        status = read_numbers(r, m, false, numbers, width);
        bool rises = first;
        for (uint64_t i = 0; i + 1 < width && !rises && numbers[i] >= before[i]; i++)
            rises = numbers[i] > before[i];
        if (status == MOE_OK && (!rises || numbers[width - 1] == 0))
            status =
                moe_yaml_fail(r->doc, m, r->err,
                              "'%s': rows must be in ascending order with counts above 0", key);
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
    MOE_TRY(moe_yaml_get_map(r->doc, root, "totals", true, &totals, r->err));
    for (int i = 0; i < n_totals(&r->s->shape); i++)
        MOE_TRY(moe_yaml_get_u64(r->doc, totals, total_names[i], UINT64_MAX, true, &r->s->totals[i],
                                 r->err));
    MOE_TRY(moe_yaml_get_list(r->doc, root, "layers", true, &layers, &n, r->err));
    for (struct moe_yaml_node *m = layers ? moe_yaml_first(layers) : NULL; m; m = moe_yaml_next(m))
        MOE_TRY(read_layer(r, m, layer++));
    MOE_TRY(read_requests(r));
    MOE_TRY(read_rows(r, "paths", 5, r->s->paths, add_path));
    MOE_TRY(moe_yaml_get_bool(r->doc, root, "whole_paths_sampled", true, &sampled, r->err));
    MOE_TRY(read_rows(r, "whole_paths", 2, r->s->whole, add_whole_path));
    if (sampled)
        moe_path_table_set_sampled(r->s->whole);
    return moe_yaml_check_known(r->doc, r->err);
}

/* Each token has its k experts in each layer, one of them best, and a path through those of the
 * decoder; layers with static routing have no paths. */
static int check_layer_sums(struct reading *r, uint32_t l, uint64_t paths)
{
    const struct moe_statistics *s = r->s;
    uint32_t first = s->shape.n_encoder;
    bool decodes = l >= first;
    uint64_t tokens = moe_statistics_tokens(s, l), k = s->shape.top_k;
    uint64_t before = !decodes ? 0 : l > first ? tokens : tokens - s->totals[MOE_TOTAL_DOCUMENTS];
    uint64_t decoded = 0, decoded_first = 0;
    bool within = true;
    uint64_t active = 0, best = 0, pairs = 0, n_pairs = moe_series_length(&s->shape, MOE_S_PAIRS);
    for (uint32_t e = 0; e < s->shape.n_experts; e++) {
        active += moe_series_at(s, MOE_S_ACTIVATIONS, l)[e];
        best += moe_series_at(s, MOE_S_RANK1, l)[e];
        decoded += moe_series_at(s, MOE_S_DECODED, l)[e];
        decoded_first += moe_series_at(s, MOE_S_DECODED, first)[e];
        within &=
            moe_series_at(s, MOE_S_DECODED, l)[e] <= moe_series_at(s, MOE_S_ACTIVATIONS, l)[e];
    }
    for (uint64_t i = 0; i < n_pairs; i++)
        pairs += moe_series_at(s, MOE_S_PAIRS, l)[i];
    if (within && decoded == (decodes ? decoded_first : 0) && decoded % k == 0 && best == tokens &&
        active == tokens * k && (paths == 0 || (l > first && paths == tokens)) &&
        pairs == before * k * k)
        return MOE_OK;
    return moe_yaml_fail(r->doc, moe_yaml_root(r->doc), r->err,
                         "layer %" PRIu32 ": activations, pairs or paths of %" PRIu64
                         " tokens do not add up",
                         l, tokens);
}

static int check_sums(struct reading *r)
{
    const struct moe_statistics *s = r->s;
    uint64_t whole = moe_path_table_total(s->whole, NULL);
    uint64_t most = moe_origins_documents(&s->origins);
    if (s->totals[MOE_TOTAL_DOCUMENTS] > most)
        return moe_yaml_fail(r->doc, moe_yaml_root(r->doc), r->err,
                             "%" PRIu64 " documents, its shards have %" PRIu64,
                             s->totals[MOE_TOTAL_DOCUMENTS], most);
    uint64_t *paths = moe_alloc(s->shape.n_layers, sizeof *paths, r->err);
    int status = paths ? MOE_OK : MOE_ERR_MEMORY;
    if (paths)
        moe_path_table_total(s->paths, paths);
    for (uint32_t l = 0; l < s->shape.n_layers && status == MOE_OK; l++)
        status = check_layer_sums(r, l, paths[l]);
    free(paths);
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
    struct head head = {0};
    *out = NULL;
    int status;
    MOE_STEP(moe_yaml_read(&r.doc, path, MAX_FILE_BYTES, err));
    MOE_STEP(moe_yaml_check_format(r.doc, "moe-stats", FORMAT_VERSION, err));
    MOE_STEP(moe_record_read_map(&(struct moe_record_reader){r.doc, &head, err},
                                 moe_yaml_root(r.doc), &head_record, &head));
    MOE_STEP(check_claim(r.doc, &head.shape, err));
    MOE_STEP(moe_statistics_new(&r.s, &head.shape, err));
    r.s->origins = head.origins;
    head.origins = (struct moe_origins){0};
    MOE_STEP(read_all(&r));
    MOE_STEP(check_sums(&r));
out:
    if (status == MOE_OK) {
        r.s->read_bytes = moe_yaml_bytes(r.doc);
        *out = r.s;
    } else {
        moe_statistics_free(r.s);
    }
    moe_origins_release(&head.origins);
    moe_yaml_free(r.doc);
    return status;
}
