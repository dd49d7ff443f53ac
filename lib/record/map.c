#include "record/map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "record/map_file.h"

const char *moe_metric_name(enum moe_metric metric)
{
    static const char *const names[MOE_N_METRICS] = {"nll", "top1"};
    return names[metric];
}

double moe_loss_in(const struct moe_loss *loss, enum moe_metric metric)
{
    return metric == MOE_METRIC_NLL ? loss->nll_percent : loss->top1_points;
}

double moe_loss_error(const struct moe_loss *loss, enum moe_metric metric)
{
    return metric == MOE_METRIC_NLL ? loss->nll_error : loss->top1_error;
}

const char *moe_judge_name(enum moe_judge judge)
{
    static const char *const names[MOE_N_JUDGES] = {"nats", "rouge2", "accuracy"};
    return names[judge];
}

double moe_map_loss(const struct moe_map *map, const struct moe_loss *loss)
{
    return map->judge == MOE_JUDGE_ROUGE2     ? loss->rouge2_points
           : map->judge == MOE_JUDGE_ACCURACY ? loss->accuracy_points
                                              : moe_loss_in(loss, map->metric);
}

double moe_map_loss_error(const struct moe_map *map, const struct moe_loss *loss)
{
    return map->judge == MOE_JUDGE_ROUGE2     ? loss->rouge2_error
           : map->judge == MOE_JUDGE_ACCURACY ? loss->accuracy_error
                                              : moe_loss_error(loss, map->metric);
}

static bool shape_fits(uint32_t n_layers, uint32_t n_experts, uint32_t top_k)
{
    return n_layers > 0 && n_layers <= MOE_PACK_MAX_LAYERS && top_k > 0 && top_k <= n_experts &&
           n_experts <= MOE_PACK_MAX_EXPERTS &&
           (uint64_t)n_layers * n_experts <= MOE_RECORD_MAX_EXPERTS;
}

int map_set_up(struct moe_map *m, struct moe_err *err)
{
    struct moe_importances *i = &m->importances;
    uint64_t n = (uint64_t)m->n_layers * m->n_experts;
    if (!shape_fits(m->n_layers, m->n_experts, m->top_k))
        return moe_fail(err, MOE_ERR_USAGE,
                        "no bit map has %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32
                        " per token",
                        m->n_layers, m->n_experts, m->top_k);
    m->tolerance = -1;
    m->rank_correlation = 2;
    m->model_layer = moe_alloc(m->n_layers, sizeof *m->model_layer, err);
    m->choice.variant = moe_alloc(n, sizeof *m->choice.variant, err);
    i->known = moe_alloc(n, sizeof *i->known, err);
    i->estimated = moe_alloc(n, sizeof *i->estimated, err);
    i->nats = moe_alloc(n, sizeof *i->nats, err);
    i->error = moe_alloc(n, sizeof *i->error, err);
    i->changed = moe_alloc(n, sizeof *i->changed, err);
    i->visited = moe_alloc(n, sizeof *i->visited, err);
    if (!m->model_layer || !m->choice.variant || !i->known || !i->estimated || !i->nats ||
        !i->error || !i->changed || !i->visited)
        return MOE_ERR_MEMORY;
    for (uint32_t l = 0; l < m->n_layers; l++)
        m->model_layer[l] = l;
    return MOE_OK;
}

int moe_map_new(struct moe_map **out, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                struct moe_err *err)
{
    struct moe_map *m = moe_alloc(1, sizeof *m, err);
    int status = m ? MOE_OK : MOE_ERR_MEMORY;
    if (m) {
        m->n_layers = n_layers;
        m->n_experts = n_experts;
        m->top_k = top_k;
        status = map_set_up(m, err);
    }
    *out = status == MOE_OK ? m : NULL;
    if (status != MOE_OK)
        moe_map_free(m);
    return status;
}

void moe_map_free(struct moe_map *map)
{
    if (!map)
        return;
    moe_shards_release(&map->importances.shards);
    free(map->importances.known);
    free(map->importances.estimated);
    free(map->importances.nats);
    free(map->importances.error);
    free(map->importances.changed);
    free(map->importances.visited);
    free(map->choice.variant);
    free(map->model_layer);
    free(map);
}

/* ---- Shards ---- */

static const struct moe_map_text *next_to_choose_on(const struct moe_map *m, uint32_t *i)
{
    while (*i < m->n_texts && m->texts[*i].check)
        ++*i;
    return *i < m->n_texts ? &m->texts[(*i)++] : NULL;
}

/* Importances do not depend on validation texts. */
static bool same_texts(const struct moe_map *a, const struct moe_map *b)
{
    uint32_t i = 0, j = 0;
    const struct moe_map_text *s, *t;
    do {
        s = next_to_choose_on(a, &i);
        t = next_to_choose_on(b, &j);
        if (s && t &&
            (strcmp(s->name, t->name) != 0 || s->documents != t->documents ||
             s->tokens != t->tokens || s->hash != t->hash))
            return false;
    } while (s && t);
    return !s && !t;
}

static bool same_variants(const struct moe_map *a, const struct moe_map *b)
{
    bool same = a->n_variants == b->n_variants;
    for (uint32_t v = 0; v < a->n_variants && same; v++)
        same = strcmp(a->variants[v], b->variants[v]) == 0;
    return same;
}

static bool same_shape(const struct moe_map *a, const struct moe_map *b)
{
    return a->n_layers == b->n_layers && a->n_experts == b->n_experts && a->top_k == b->top_k &&
           memcmp(a->model_layer, b->model_layer, a->n_layers * sizeof *a->model_layer) == 0;
}

/* What differs of the things that importances depend on; NULL: nothing. */
static const char *difference(const struct moe_map *a, const struct moe_map *b)
{
    const struct moe_importances *x = &a->importances, *y = &b->importances;
    if (!same_shape(a, b))
        return "shape";
    if (a->source_fingerprint != b->source_fingerprint)
        return "model (source_fingerprint)";
    if (a->pack_fingerprint != b->pack_fingerprint)
        return "pack (pack_fingerprint)";
    if (!same_variants(a, b))
        return "set of variants";
    if (a->pack_dense_bits != b->pack_dense_bits)
        return "dense part (dense_bits)";
    if (a->metric != b->metric)
        return "metric";
    if (a->max_tokens != b->max_tokens)
        return "length of documents (max_document_tokens)";
    if (!same_texts(a, b))
        return "set of texts to choose on";
    if (!x->there || !y->there)
        return NULL;
    if (x->exact != y->exact)
        return "method of importances (exact)";
    if (x->upper != y->upper)
        return "upper variant of importances";
    if (x->lower != y->lower)
        return "lower variant of importances";
    if (x->dense_bits != y->dense_bits)
        return "dense part beside importances (dense_bits)";
    return NULL;
}

static bool same_figures(const struct moe_importances *a, const struct moe_importances *b,
                         uint64_t i)
{
    return a->nats[i] == b->nats[i] && a->error[i] == b->error[i] &&
           a->changed[i] == b->changed[i] && a->visited[i] == b->visited[i];
}

int moe_map_adopt(struct moe_map *map, const struct moe_map *part, struct moe_err *err)
{
    struct moe_importances *to = &map->importances;
    const struct moe_importances *from = &part->importances;
    const char *differs = difference(map, part);
    uint64_t n = (uint64_t)map->n_layers * map->n_experts;
    if (differs)
        return moe_fail(err, MOE_ERR_USAGE, "the bit maps do not belong together: another %s",
                        differs);
    if (!from->there)
        return MOE_OK;
    for (uint64_t i = 0; i < n; i++)
        if (to->there && to->known[i] && from->known[i] && !from->estimated[i] &&
            !same_figures(to, from, i))
            return moe_fail(err, MOE_ERR_USAGE,
                            "the bit maps do not belong together: layer %" PRIu64 " expert %" PRIu64
                            " has another importance",
                            i / map->n_experts, i % map->n_experts);
    if (!to->there) {
        to->there = true;
        to->exact = from->exact;
        to->upper = from->upper;
        to->lower = from->lower;
        to->dense_bits = from->dense_bits;
        memset(to->known, 0, n);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (!from->known[i] || from->estimated[i])
            continue;
        to->known[i] = 1;
        to->nats[i] = from->nats[i];
        to->error[i] = from->error[i];
        to->changed[i] = from->changed[i];
        to->visited[i] = from->visited[i];
    }
    return MOE_OK;
}

/* The first expert that a map is to know, of those that no other shard knows. */
static uint64_t first_expert(const struct moe_map *m)
{
    const struct moe_importances *i = &m->importances;
    uint64_t n = (uint64_t)m->n_layers * m->n_experts;
    if (i->shards.n)
        return i->shards.held[0];
    const uint8_t *known = i->there ? memchr(i->known, 1, n) : NULL;
    return known ? (uint64_t)(known - i->known) : n;
}

/* Maps of earlier versions do not say their shards, but an expert is never of two. */
static int join_shards(struct moe_map *sum, const struct moe_map *part, struct moe_err *err)
{
    struct moe_importances *to = &sum->importances;
    const struct moe_importances *from = &part->importances;
    uint64_t n = (uint64_t)sum->n_layers * sum->n_experts;
    if (to->shards.n && from->shards.n)
        return moe_shards_join(&to->shards, &from->shards, err);
    for (uint64_t i = 0; i < n && to->there && from->there; i++)
        if (to->known[i] && from->known[i])
            return moe_fail(err, MOE_ERR_USAGE,
                            "the importance of layer %" PRIu64 " expert %" PRIu64
                            " is there already",
                            i / sum->n_experts, i % sum->n_experts);
    moe_shards_release(&to->shards);
    return MOE_OK;
}

int moe_map_merge(struct moe_map *sum, struct moe_map *part, struct moe_err *err)
{
    const char *differs = difference(sum, part);
    if (differs)
        return moe_fail(err, MOE_ERR_USAGE, "the bit maps do not belong together: another %s",
                        differs);
    uint64_t first = first_expert(sum), other = first_expert(part);
    int status = join_shards(sum, part, err);
    if (status != MOE_OK)
        return status;
    if (other < first) {
        struct moe_map exchanged = *sum;
        *sum = *part;
        *part = exchanged;
        struct moe_shards joined = part->importances.shards;
        part->importances.shards = sum->importances.shards;
        sum->importances.shards = joined;
    }
    status = moe_map_adopt(sum, part, err);
    if (status == MOE_OK && sum->importances.shards.n == 0 && moe_map_complete(sum))
        status = moe_shards_set(&sum->importances.shards, 0, 1, err);
    return status;
}

bool moe_map_complete(const struct moe_map *map)
{
    uint64_t n = (uint64_t)map->n_layers * map->n_experts;
    return map->importances.there && !memchr(map->importances.known, 0, n);
}

static uint64_t n_known(const struct moe_map *map)
{
    uint64_t n = (uint64_t)map->n_layers * map->n_experts, sum = 0;
    for (uint64_t i = 0; i < n && map->importances.there; i++)
        sum += map->importances.known[i];
    return sum;
}

int moe_map_check_whole(const struct moe_map *map, struct moe_err *err)
{
    uint64_t n = (uint64_t)map->n_layers * map->n_experts;
    if (map->importances.shards.n)
        return moe_shards_check_whole(&map->importances.shards, err);
    if (moe_map_complete(map))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "the importances of %" PRIu64 " of %" PRIu64
                    " experts are missing (--partial merges those there are)",
                    n - n_known(map), n);
}

int moe_map_check_finished(const struct moe_map *map, struct moe_err *err)
{
    uint64_t n = (uint64_t)map->n_layers * map->n_experts, known = n_known(map);
    uint64_t all = moe_shards_items(&map->importances.shards, n);
    if (!map->importances.there || map->importances.shards.n == 0 || known == all)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "was left by an interrupted run, with %" PRIu64 " of %" PRIu64
                    " importances; --resume finishes it",
                    known, all);
}
