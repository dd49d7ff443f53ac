/* Bit maps, moe-map(5): merging, reading and writing. */
#include "pack/map.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/config.h" /* MOE_MAX_TOP_K */

/*
 * What the sources of bit maps share.
 */
/* Allocates the arrays that the shape, already set, needs; the rest is as moe_map_new leaves it. */
static int map_set_up(struct moe_map *m, struct moe_err *err);

/* Entries of the tables. */
#define FIELD(type, key, field) MOE_FIELD(MOE_ALWAYS, struct type, key, field)
/* A bitwidth of the dense part, or the type in its place: "dense_bits", and of a type "dense_type".
 */
static const struct moe_member_own map_dense;
#define DENSE(type, field) MOE_OWN("dense_bits", offsetof(struct type, field), map_dense)
#define SHARE(type, key, field) MOE_FIELD_IN(MOE_ALWAYS, struct type, key, field, 0, 1)
#define CHANGE(type, key, field)                                                                   \
    MOE_FIELD_IN(MOE_ALWAYS, struct type, key, field, -HUGE_VAL, HUGE_VAL)
/* A field of struct moe_map that is one of its variants, by name. */
static const struct moe_member_own map_variant_by_name;
#define VARIANT(key, field) MOE_OWN(key, offsetof(struct moe_map, field), map_variant_by_name)
/* A loss, which may be missing. */
static const struct moe_record map_loss_record;
#define LOSS(type, key, field)                                                                     \
    MOE_LINE_SECTION(MOE_IF_SET, key, offsetof(struct type, field), map_loss_record)

/* Numbers in the metric's unit have it in their key: groups of members for each. */
static bool map_is_nll(const void *map);
static bool map_is_top1(const void *map);
/* Likewise of the tolerance, which is in the judge's unit. */
static bool map_tolerates_percent(const void *map);
static bool map_tolerates_points(const void *map);
/* Finds the map's variant of that name; `node` is where errors point. */
static int map_find_variant(struct moe_record_reader *r, const struct moe_yaml_node *node,
                            const char *name, uint32_t *variant);
/* Checks that `low` is a lower variant than `high`. */
static int map_check_pair(struct moe_record_reader *r, struct moe_yaml_node *map,
                          const char *high_key, uint32_t high, const char *low_key, uint32_t low);

/* Sections of struct moe_map. */
static const struct moe_record map_choice_record, map_fate_record, map_hobbit_record,
    map_routing_record, map_savings_record;
/* `layers` of the importances: for each layer the experts that are known, and a list of as many
 * numbers for each figure. */
static const struct moe_member_own map_importance_layers;

static const char *const metric_names[MOE_N_METRICS] = {"nll", "top1"};

const char *moe_metric_name(enum moe_metric metric)
{
    return metric_names[metric];
}

double moe_loss_in(const struct moe_loss *loss, enum moe_metric metric)
{
    return metric == MOE_METRIC_NLL ? loss->nll_percent : loss->top1_points;
}

double moe_loss_error(const struct moe_loss *loss, enum moe_metric metric)
{
    return metric == MOE_METRIC_NLL ? loss->nll_error : loss->top1_error;
}

static const char *const judge_names[MOE_N_JUDGES] = {"nats", "rouge2", "accuracy"};

const char *moe_judge_name(enum moe_judge judge)
{
    return judge_names[judge];
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
    return n_layers > 0 && n_layers <= MOE_MAX_LAYERS && top_k > 0 && top_k <= n_experts &&
           n_experts <= MOE_MAX_EXPERTS && (uint64_t)n_layers * n_experts <= MOE_RECORD_MAX_EXPERTS;
}

static int map_set_up(struct moe_map *m, struct moe_err *err)
{
    struct moe_importances *i = &m->importances;
    uint64_t n = (uint64_t)m->n_layers * m->n_experts;
    if (!shape_fits(m->n_layers, m->n_experts, m->top_k))
        return moe_fail(err, MOE_ERR_USAGE,
                        "no bit map has %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32
                        " per token",
                        m->n_layers, m->n_experts, m->top_k);
    m->tolerance = -1;
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

/* Names what differs among the things that importances depend on; NULL: nothing. */
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
    if (moe_bits_width((int)a->pack_dense_bits) != moe_bits_width((int)b->pack_dense_bits))
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
    if (moe_bits_width((int)x->dense_bits) != moe_bits_width((int)y->dense_bits))
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

int moe_map_merge(struct moe_map *sum, struct moe_map *part, struct moe_err *err)
{
    const char *differs = difference(sum, part);
    if (differs)
        return moe_fail(err, MOE_ERR_USAGE, "the bit maps do not belong together: another %s",
                        differs);
    if (!sum->importances.there || !part->importances.there)
        return moe_fail(err, MOE_ERR_USAGE, "a bit map without importances cannot be merged");
    bool exchange = part->importances.shards.held[0] < sum->importances.shards.held[0];
    MOE_TRY(moe_shards_join(&sum->importances.shards, &part->importances.shards, err));
    if (exchange) {
        struct moe_map exchanged = *sum;
        *sum = *part;
        *part = exchanged;
        struct moe_shards joined = part->importances.shards;
        part->importances.shards = sum->importances.shards;
        sum->importances.shards = joined;
    }
    return moe_map_adopt(sum, part, err);
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
    return moe_shards_check_whole(&map->importances.shards, err);
}

int moe_map_check_finished(const struct moe_map *map, struct moe_err *err)
{
    uint64_t n = (uint64_t)map->n_layers * map->n_experts, known = n_known(map);
    uint64_t all = moe_shards_items(&map->importances.shards, n);
    if (!map->importances.there || known == all)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "was left by an interrupted run, with %" PRIu64 " of %" PRIu64
                    " importances; --resume finishes it",
                    known, all);
}

/*
 * What a bit map's calibration chose: bitwidths, Fate's p, HOBBIT's thresholds and weights,
 * lambda of cache-aware routing; and what ways to load less were measured to lose.
 */

/* Shares as they are counted, divided and added up. */
static bool is_whole(double sum)
{
    return fabs(sum - 1) <= 1e-9;
}

/* ---- What was chosen: bitwidths ---- */

static int read_layer(struct moe_record_reader *r, struct moe_yaml_node *list, uint8_t *out)
{
    uint32_t n_experts = ((const struct moe_map *)r->whole)->n_experts, v = 0;
    int status = moe_yaml_item_list(r->doc, list, r->err);
    if (status == MOE_OK && moe_yaml_length(list) != n_experts)
        return moe_yaml_fail(r->doc, list, r->err,
                             "a layer must have %" PRIu32 " items, not %" PRIu64, n_experts,
                             moe_yaml_length(list));
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        const char *name = NULL;
        status = moe_yaml_item_text(r->doc, m, &name, r->err);
        if (status == MOE_OK)
            status = map_find_variant(r, m, name, &v);
        *out++ = (uint8_t)v;
    }
    return status;
}

static int read_choice_layers(struct moe_record_reader *r, struct moe_yaml_node *map,
                              const struct moe_member *m, void *record)
{
    const struct moe_map *whole = record;
    struct moe_yaml_node *layers = NULL;
    uint8_t *out = whole->choice.variant;
    MOE_TRY(moe_yaml_get_list_of(r->doc, map, m->key, whole->n_layers, &layers, r->err));
    for (struct moe_yaml_node *l = layers ? moe_yaml_first(layers) : NULL; l;
         l = moe_yaml_next(l), out += whole->n_experts)
        MOE_TRY(read_layer(r, l, out));
    return MOE_OK;
}

static void write_choice_layers(struct moe_record_writer *w, const struct moe_member *m,
                                const void *record)
{
    const struct moe_map *map = record;
    const uint8_t *v = map->choice.variant;
    moe_emit_open_list(&w->emit, m->key);
    for (uint32_t l = 0; l < map->n_layers; l++) {
        moe_emit_open_line_list(&w->emit, NULL);
        for (uint32_t e = 0; e < map->n_experts; e++)
            moe_emit_text(&w->emit, NULL, map->variants[*v++]);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

static const struct moe_member_own choice_layers = {read_choice_layers, write_choice_layers, NULL};

static const struct moe_member choice_nll_members[] = {
    CHANGE(moe_map, "expected_percent", choice.expected),
};
static const struct moe_member choice_top1_members[] = {
    CHANGE(moe_map, "expected_points", choice.expected),
};
static const struct moe_record choice_nll = {MOE_RECORD(choice_nll_members),
                                             .is_there = map_is_nll};
static const struct moe_record choice_top1 = {MOE_RECORD(choice_top1_members),
                                              .is_there = map_is_top1};

static const struct moe_member choice_members[] = {
    DENSE(moe_map, choice.dense_bits),
    FIELD(moe_map, "expert_bytes", choice.expert_bytes),
    FIELD(moe_map, "dense_bytes", choice.dense_bytes),
    MOE_GROUP(choice_nll),
    MOE_GROUP(choice_top1),
    LOSS(moe_map, "loss", choice.loss),
    LOSS(moe_map, "check", choice.check),
    MOE_OWN("layers", 0, choice_layers),
};

static const struct moe_record map_choice_record = {MOE_RECORD(choice_members),
                                                    MOE_FLAGGED(struct moe_map, choice.there)};

/* ---- What was chosen: Fate's p ---- */

static const struct moe_member point_members[] = {
    MOE_RISING_FIELD(struct moe_map_point, "share", share, 0, 1),
    LOSS(moe_map_point, "unpopular", unpopular),
    LOSS(moe_map_point, "popular", popular),
};
static const struct moe_record point_record = {MOE_RECORD(point_members)};

static const struct moe_member fate_members[] = {
    SHARE(moe_map, "share", fate.share),
    VARIANT("high", fate.high),
    VARIANT("low", fate.low),
    LOSS(moe_map, "loss", fate.loss),
    LOSS(moe_map, "check", fate.check),
    MOE_LIST(struct moe_map, "curve", fate.points, fate.n_points, point_record),
};

static int check_fate(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_map_fate *f = &((const struct moe_map *)record)->fate;
    return map_check_pair(r, map, "high", f->high, "low", f->low);
}

static const struct moe_record map_fate_record = {MOE_RECORD(fate_members), check_fate,
                                                  MOE_FLAGGED(struct moe_map, fate.there)};

/* ---- What was chosen: HOBBIT's thresholds and weights ---- */

static const struct moe_member cut_members[] = {
    MOE_RISING_FIELD(struct moe_map_cut, "share", share, 0, 1),
    LOSS(moe_map_cut, "low", low),
    LOSS(moe_map_cut, "skipped", skipped),
};
static const struct moe_record cut_record = {MOE_RECORD(cut_members)};

static int read_scores(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_member *m, void *record)
{
    double *scores = ((struct moe_map *)record)->hobbit.scores, sum = 0;
    struct moe_yaml_node *list = NULL;
    if (!moe_yaml_get(map, m->key))
        return MOE_OK;
    int status = moe_yaml_get_list_of(r->doc, map, m->key, MOE_SCORE_BINS, &list, r->err);
    if (status == MOE_OK)
        status = moe_yaml_list_doubles(r->doc, list, 0, scores, r->err);
    for (int i = 0; i < MOE_SCORE_BINS; i++)
        sum += scores[i];
    if (status == MOE_OK && !is_whole(sum))
        status = moe_yaml_fail(r->doc, list, r->err, "'scores' must sum to 1, not %.17g", sum);
    return status;
}

static void write_scores(struct moe_record_writer *w, const struct moe_member *m,
                         const void *record)
{
    moe_emit_doubles(&w->emit, m->key, ((const struct moe_map *)record)->hobbit.scores,
                     MOE_SCORE_BINS);
}

static bool has_scores(const struct moe_member *m, const void *record)
{
    const double *scores = ((const struct moe_map *)record)->hobbit.scores;
    bool any = false;
    (void)m;
    for (int i = 0; i < MOE_SCORE_BINS; i++)
        any |= scores[i] != 0;
    return any;
}

static const struct moe_member_own scores = {read_scores, write_scores, has_scores};

static const struct moe_member weights_members[] = {
    SHARE(moe_map, "lru", hobbit.weights[0]),
    SHARE(moe_map, "lfu", hobbit.weights[1]),
    SHARE(moe_map, "lhu", hobbit.weights[2]),
    SHARE(moe_map, "fld", hobbit.weights[3]),
};
_Static_assert(MOE_HOBBIT_WEIGHTS == 4, "a key for each weight");

static int check_weights(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_map_hobbit *h = &((const struct moe_map *)record)->hobbit;
    double sum = 0;
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        sum += h->weights[i];
    return is_whole(sum)
               ? MOE_OK
               : moe_yaml_fail(r->doc, map, r->err, "'weights' must sum to 1, not %.17g", sum);
}

static const struct moe_record weights_record = {MOE_RECORD(weights_members), check_weights,
                                                 MOE_FLAGGED(struct moe_map, hobbit.weighed)};

static const struct moe_member tuned_members[] = {
    SHARE(moe_map, "low_pool_share", hobbit.low_pool),
    FIELD(moe_map, "penalty_per_activation", hobbit.penalty),
    FIELD(moe_map, "default_penalty_per_activation", hobbit.default_penalty),
};
static const struct moe_record tuned_record = {MOE_RECORD(tuned_members),
                                               MOE_FLAGGED(struct moe_map, hobbit.weighed)};

static const struct moe_member hobbit_members[] = {
    SHARE(moe_map, "t1", hobbit.t1),
    SHARE(moe_map, "t2", hobbit.t2),
    SHARE(moe_map, "high_share", hobbit.high_share),
    SHARE(moe_map, "low_share", hobbit.low_share),
    SHARE(moe_map, "skipped_share", hobbit.skipped_share),
    VARIANT("high", hobbit.high),
    VARIANT("low", hobbit.low),
    LOSS(moe_map, "loss", hobbit.loss),
    MOE_LIST(struct moe_map, "cuts", hobbit.cuts, hobbit.n_cuts, cut_record),
    MOE_OWN("scores", 0, scores),
    MOE_LINE_SECTION(MOE_IF_SET, "weights", 0, weights_record),
    MOE_GROUP(tuned_record),
};

static int check_hobbit(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_map_hobbit *h = &((const struct moe_map *)record)->hobbit;
    double sum = h->high_share + h->low_share + h->skipped_share;
    if (h->t1 > h->t2)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "t1"), r->err,
                             "'t1' must not be above 't2'");
    if (!is_whole(sum))
        return moe_yaml_fail(
            r->doc, moe_yaml_get(map, "high_share"), r->err,
            "'high_share', 'low_share' and 'skipped_share' must sum to 1, not %.17g", sum);
    return map_check_pair(r, map, "high", h->high, "low", h->low);
}

static const struct moe_record map_hobbit_record = {MOE_RECORD(hobbit_members), check_hobbit,
                                                    MOE_FLAGGED(struct moe_map, hobbit.there)};

/* ---- What was chosen: lambda of cache-aware routing ---- */

static const struct moe_member preference_members[] = {
    MOE_RISING_FIELD(struct moe_map_preference, "lambda", lambda, 0, HUGE_VAL),
    FIELD(moe_map_preference, "bytes_per_token", bytes_per_token),
    SHARE(moe_map_preference, "replaced_share", replaced_share),
    LOSS(moe_map_preference, "loss", loss),
};
static const struct moe_record preference_record = {MOE_RECORD(preference_members)};

static const struct moe_member routing_nll_members[] = {
    FIELD(moe_map, "tolerance_percent", routing.tolerance),
};
static const struct moe_member routing_top1_members[] = {
    FIELD(moe_map, "tolerance_points", routing.tolerance),
};
static const struct moe_record routing_nll = {MOE_RECORD(routing_nll_members),
                                              .is_there = map_is_nll};
static const struct moe_record routing_top1 = {MOE_RECORD(routing_top1_members),
                                               .is_there = map_is_top1};

static const struct moe_member routing_members[] = {
    FIELD(moe_map, "lambda", routing.lambda),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_map, "keeps", routing.keeps, 1, MOE_MAX_TOP_K),
    MOE_GROUP(routing_nll),
    MOE_GROUP(routing_top1),
    FIELD(moe_map, "cache_bytes", routing.cache_bytes),
    LOSS(moe_map, "loss", routing.loss),
    LOSS(moe_map, "check", routing.check),
    MOE_LIST(struct moe_map, "curve", routing.points, routing.n_points, preference_record),
};

static const struct moe_record map_routing_record = {MOE_RECORD(routing_members),
                                                     MOE_FLAGGED(struct moe_map, routing.there)};

/* ---- What was measured: ways to load less ---- */

static const struct moe_member saving_members[] = {
    FIELD(moe_map_saving, "strategy", strategy),
    FIELD(moe_map_saving, "bytes_per_token", bytes_per_token),
    SHARE(moe_map_saving, "changed_share", changed_share),
    LOSS(moe_map_saving, "loss", loss),
    LOSS(moe_map_saving, "check", check),
};

static int check_saving(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_map_saving *s = record;
    return s->loss.tokens ? MOE_OK
                          : moe_yaml_fail(r->doc, map, r->err, "'%s' has no 'loss'", s->strategy);
}

static const struct moe_record saving_record = {MOE_RECORD(saving_members), check_saving};

static const struct moe_member savings_members[] = {
    MOE_RISING_FIELD(struct moe_map_savings, "cache_bytes", cache_bytes, 1, HUGE_VAL),
    MOE_OWN("low", offsetof(struct moe_map_savings, low), map_variant_by_name),
    FIELD(moe_map_savings, "exact_bytes_per_token", exact_bytes_per_token),
    MOE_LIST(struct moe_map_savings, "ways", ways, n_ways, saving_record),
};
static const struct moe_record map_savings_record = {MOE_RECORD(savings_members)};

/*
 * A bit map's importances: for each layer the experts that are known, and a list of as many numbers
 * for each figure.
 */

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

/* Reads which of them are estimates; none if the file does not say. */
static int read_estimated(struct layer_reader *l)
{
    struct moe_map *map = l->r->whole;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    MOE_TRY(moe_yaml_get_list(l->r->doc, l->map, "estimated", false, &list, &n, l->r->err));
    if (!list)
        return MOE_OK;
    if (n == 0 || n > l->n_known)
        return moe_yaml_fail(l->r->doc, list, l->r->err,
                             "'estimated' must have 1 to %" PRIu32 " items", l->n_known);
    MOE_TRY(moe_yaml_list_u32s(l->r->doc, list, map->n_experts - 1, true, l->counts, l->r->err));
    for (uint64_t i = 0; i < n; i++) {
        map->importances.estimated[l->first + l->counts[i]] = 1;
        if (!map->importances.known[l->first + l->counts[i]])
            return moe_yaml_fail(l->r->doc, list, l->r->err,
                                 "'estimated' has expert %" PRIu32 ", which is not known",
                                 l->counts[i]);
    }
    return MOE_OK;
}

static int read_doubles(struct layer_reader *l, const char *key, double min, double *to)
{
    struct moe_yaml_node *list = NULL;
    MOE_TRY(moe_yaml_get_list_of(l->r->doc, l->map, key, l->n_known, &list, l->r->err));
    MOE_TRY(moe_yaml_list_doubles(l->r->doc, list, min, l->doubles, l->r->err));
    for (uint32_t i = 0; i < l->n_known; i++)
        to[l->first + l->known[i]] = l->doubles[i];
    return MOE_OK;
}

static int read_counts(struct layer_reader *l, const char *key, uint32_t *to)
{
    struct moe_yaml_node *list = NULL;
    MOE_TRY(moe_yaml_get_list_of(l->r->doc, l->map, key, l->n_known, &list, l->r->err));
    MOE_TRY(moe_yaml_list_u32s(l->r->doc, list, UINT32_MAX, false, l->counts, l->r->err));
    for (uint32_t i = 0; i < l->n_known; i++)
        to[l->first + l->known[i]] = l->counts[i];
    return MOE_OK;
}

static int read_figures(struct layer_reader *l)
{
    struct moe_importances *i = &((struct moe_map *)l->r->whole)->importances;
    MOE_TRY(read_experts(l));
    if (i->exact)
        MOE_TRY(read_estimated(l));
    MOE_TRY(read_doubles(l, "nats", -HUGE_VAL, i->nats));
    if (i->exact)
        MOE_TRY(read_doubles(l, "error_nats", 0, i->error));
    if (i->exact)
        MOE_TRY(read_counts(l, "changed_tokens", i->changed));
    return read_counts(l, "visited_documents", i->visited);
}

static int read_list(struct layer_reader *l, struct moe_yaml_node *list)
{
    struct moe_record_reader *r = l->r;
    const struct moe_map *map = r->whole;
    uint64_t layer = 0, least = 0;
    for (l->map = moe_yaml_first(list); l->map; l->map = moe_yaml_next(l->map), least = layer + 1) {
        MOE_TRY(moe_yaml_item_map(r->doc, l->map, r->err));
        MOE_TRY(moe_yaml_get_u64(r->doc, l->map, "layer", map->n_layers - 1, true, &layer, r->err));
        if (layer < least)
            return moe_yaml_fail(r->doc, l->map, r->err, "'layer' must be rising");
        l->first = layer * map->n_experts;
        MOE_TRY(read_figures(l));
    }
    return MOE_OK;
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

static const struct moe_member_own map_importance_layers = {read_layers, write_layers, NULL};

/*
 * Members that several sections of a bit map have: variants by name, losses.
 */

static int map_find_variant(struct moe_record_reader *r, const struct moe_yaml_node *node,
                            const char *name, uint32_t *variant)
{
    const struct moe_map *map = r->whole;
    for (*variant = 0; *variant < map->n_variants; ++*variant)
        if (strcmp(name, map->variants[*variant]) == 0)
            return MOE_OK;
    return moe_yaml_fail(r->doc, node, r->err, "'%.60s' is none of the variants", name);
}

/* A field of struct moe_map that is one of its variants, by name. */
static int read_variant(struct moe_record_reader *r, struct moe_yaml_node *map,
                        const struct moe_member *m, void *record)
{
    const char *name = NULL;
    MOE_TRY(moe_yaml_get_text(r->doc, map, m->key, true, &name, r->err));
    return map_find_variant(r, moe_yaml_get(map, m->key), name,
                            (uint32_t *)((char *)record + m->at));
}

static void write_variant(struct moe_record_writer *w, const struct moe_member *m,
                          const void *record)
{
    const struct moe_map *map = w->whole;
    moe_emit_text(&w->emit, m->key,
                  map->variants[*(const uint32_t *)((const char *)record + m->at)]);
}

static const struct moe_member_own map_variant_by_name = {read_variant, write_variant, NULL};

static int map_check_pair(struct moe_record_reader *r, struct moe_yaml_node *map,
                          const char *high_key, uint32_t high, const char *low_key, uint32_t low)
{
    return low > high ? MOE_OK
                      : moe_yaml_fail(r->doc, moe_yaml_get(map, low_key), r->err,
                                      "'%s' must be a lower variant than '%s'", low_key, high_key);
}

static int read_dense(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const struct moe_member *m, void *record)
{
    static const char key[] = "dense_type";
    const struct moe_member width = {.key = m->key,
                                     .type = MOE_MEMBER_U32,
                                     .presence = MOE_ALWAYS,
                                     .at = m->at,
                                     .bytes = sizeof(uint32_t),
                                     .min = 1,
                                     .max = 32};
    uint32_t *bits = (uint32_t *)((char *)record + m->at);
    const char *name = NULL;
    MOE_TRY(moe_record_read_member(r, map, &width, record));
    MOE_TRY(moe_yaml_get_text(r->doc, map, key, false, &name, r->err));
    if (!name)
        return MOE_OK;
    const int type = moe_parse_width(name);
    if (!moe_bits_kind(type) || moe_bits_width(type) != (int)*bits)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, key), r->err,
                             "'%.60s' is no type of %" PRIu32 " bits", name, *bits);
    *bits = (uint32_t)type;
    return MOE_OK;
}

static void write_dense(struct moe_record_writer *w, const struct moe_member *m, const void *record)
{
    const int bits = (int)*(const uint32_t *)((const char *)record + m->at);
    char name[MOE_WIDTH_BYTES];
    moe_emit_u64(&w->emit, m->key, (uint64_t)moe_bits_width(bits));
    if (moe_bits_kind(bits))
        moe_emit_text(&w->emit, "dense_type", moe_format_width(bits, name));
}

static const struct moe_member_own map_dense = {read_dense, write_dense, NULL};

/* Numbers in the metric's unit have it in their key. */
static bool map_is_nll(const void *record)
{
    return ((const struct moe_map *)record)->metric == MOE_METRIC_NLL;
}

static bool map_is_top1(const void *record)
{
    return !map_is_nll(record);
}

static bool map_tolerates_percent(const void *record)
{
    return map_is_nll(record) && ((const struct moe_map *)record)->judge == MOE_JUDGE_NATS;
}

static bool map_tolerates_points(const void *record)
{
    return !map_tolerates_percent(record);
}

/* Points of 100, in either direction. */
#define POINTS(key, field) MOE_FIELD_IN(MOE_ALWAYS, struct moe_loss, key, field, -100, 100)

static bool has_answers(const void *record)
{
    return ((const struct moe_loss *)record)->answers > 0;
}

static const struct moe_member answers_members[] = {
    SHARE(moe_loss, "reference_rouge2", reference_rouge2),
    POINTS("rouge2_points", rouge2_points),
    FIELD(moe_loss, "rouge2_error_points", rouge2_error),
    SHARE(moe_loss, "reference_accuracy", reference_accuracy),
    POINTS("accuracy_points", accuracy_points),
    FIELD(moe_loss, "accuracy_error_points", accuracy_error),
};
static const struct moe_record answers_record = {MOE_RECORD(answers_members),
                                                 .is_there = has_answers};

static const struct moe_member loss_members[] = {
    FIELD(moe_loss, "documents", documents),
    FIELD(moe_loss, "tokens", tokens),
    FIELD(moe_loss, "nats_per_token", nll),
    FIELD(moe_loss, "reference_nats_per_token", reference_nll),
    CHANGE(moe_loss, "nll_percent", nll_percent),
    FIELD(moe_loss, "nll_error_percent", nll_error),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_loss, "top1_points", top1_points, 0, 100),
    FIELD(moe_loss, "top1_error_points", top1_error),
    MOE_FIELD(MOE_IF_SET, struct moe_loss, "answers", answers),
    MOE_GROUP(answers_record),
};

static int check_loss(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_loss *loss = record;
    if (loss->tokens == 0 || loss->documents > loss->tokens)
        return moe_yaml_fail(r->doc, map, r->err,
                             "'%s' must have 'tokens', and at least as many as 'documents'",
                             moe_yaml_key(map));
    if (loss->answers && loss->answers != loss->documents)
        return moe_yaml_fail(r->doc, map, r->err, "'%s' must have as many 'answers' as 'documents'",
                             moe_yaml_key(map));
    return MOE_OK;
}

/* Without tokens nothing was measured. */
static bool loss_is_there(const void *record)
{
    return ((const struct moe_loss *)record)->tokens > 0;
}

static const struct moe_record map_loss_record = {MOE_RECORD(loss_members), check_loss,
                                                  loss_is_there};

/*
 * The file of a bit map, moe-map(5): its tables, and what must hold across their members.
 */

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
    return status == MOE_OK ? moe_yaml_list_u32s(r->doc, list, MOE_MAX_LAYERS - 1, true,
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
    MOE_TRY(moe_yaml_get_list(r->doc, root, m->key, true, &list, &n, r->err));
    if (n == 0 || n > MOE_MAX_VARIANTS)
        return moe_yaml_fail(r->doc, list, r->err, "'variants' must have 1 to %d items",
                             MOE_MAX_VARIANTS);
    for (struct moe_yaml_node *item = list ? moe_yaml_first(list) : NULL; item;
         item = moe_yaml_next(item)) {
        const char *name = NULL;
        uint32_t same = 0;
        MOE_TRY(moe_yaml_item_text(r->doc, item, &name, r->err));
        if (!name[0] || strlen(name) >= sizeof map->variants[0])
            return moe_yaml_fail(r->doc, item, r->err, "a variant's name must have 1 to %zu bytes",
                                 sizeof map->variants[0] - 1);
        while (same < map->n_variants && strcmp(name, map->variants[same]) != 0)
            same++;
        if (same < map->n_variants)
            return moe_yaml_fail(r->doc, item, r->err, "variant '%s' occurs twice", name);
        memcpy(map->variants[map->n_variants++], name, strlen(name) + 1);
    }
    return MOE_OK;
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

static int read_methods(struct moe_record_reader *r, struct moe_yaml_node *root,
                        const struct moe_member *m, void *record)
{
    struct moe_map *map = record;
    struct moe_yaml_node *list = NULL;
    if (!moe_yaml_get(root, m->key))
        return MOE_OK;
    MOE_TRY(moe_yaml_get_list_of(r->doc, root, m->key, map->n_variants, &list, r->err));
    struct moe_yaml_node *item = moe_yaml_first(list);
    for (uint32_t v = 0; v < map->n_variants; v++, item = moe_yaml_next(item)) {
        const char *name = NULL;
        MOE_TRY(moe_yaml_item_text(r->doc, item, &name, r->err));
        if (!name[0] || strlen(name) >= sizeof map->methods[v])
            return moe_yaml_fail(r->doc, item, r->err, "a method's name must have 1 to %zu bytes",
                                 sizeof map->methods[v] - 1);
        memcpy(map->methods[v], name, strlen(name) + 1);
    }
    return MOE_OK;
}

static void write_methods(struct moe_record_writer *w, const struct moe_member *m,
                          const void *record)
{
    const struct moe_map *map = record;
    if (!map->methods[0][0])
        return;
    moe_emit_open_line_list(&w->emit, m->key);
    for (uint32_t v = 0; v < map->n_variants; v++)
        moe_emit_text(&w->emit, NULL, map->methods[v]);
    moe_emit_close(&w->emit);
}

static const struct moe_member_own methods = {read_methods, write_methods, NULL};

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
    DENSE(moe_uniform, dense_bits),
    FIELD(moe_uniform, "bytes", bytes),
    LOSS(moe_uniform, "loss", loss),
};

static int check_uniform(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_map *m = r->whole;
    const struct moe_uniform *u = record;
    char dense[MOE_WIDTH_BYTES];
    uint32_t variant;
    MOE_TRY(map_find_variant(r, moe_yaml_get(map, "experts"), u->experts, &variant));
    for (const struct moe_uniform *other = m->uniform; other < u; other++) {
        if (strcmp(u->experts, other->experts) == 0 && u->dense_bits == other->dense_bits)
            return moe_yaml_fail(r->doc, map, r->err,
                                 "experts '%s' with %s dense_bits are there twice", u->experts,
                                 moe_format_width((int)u->dense_bits, dense));
    }
    return MOE_OK;
}

static const struct moe_record uniform_record = {MOE_RECORD(uniform_members), check_uniform};

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
    DENSE(moe_map, importances.dense_bits),
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
        if (status == MOE_OK && i->known[e] &&
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
    DENSE(moe_map, pack_dense_bits),
    MOE_FIELD(MOE_IF_SET, struct moe_map, "dense_method", dense_method),
    MOE_FIELD(MOE_IF_SET, struct moe_map, "dense_group", dense_group),
    FIELD(moe_map, "max_document_tokens", max_tokens),
    MOE_SECTION(MOE_ALWAYS, "shape", 0, shape_record),
    MOE_OWN("variants", 0, variants),
    MOE_OWN("methods", 0, methods),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_map, "expert_group", expert_group, 0, MOE_MAX_GROUP),
    MOE_NAME(MOE_ALWAYS, struct moe_map, "metric", metric, metric_names),
    MOE_NAME(MOE_IF_SET, struct moe_map, "judge", judge, judge_names),
    MOE_GROUP(percent_record),
    MOE_GROUP(points_record),
    MOE_FIELD(MOE_IF_SET, struct moe_map, "target_bytes", target_bytes),
    MOE_LIST(struct moe_map, "texts", texts, n_texts, text_record),
    MOE_LIST(struct moe_map, "rungs", uniform, n_uniform, uniform_record),
    MOE_SECTION(MOE_IF_SET, "importances", 0, importances_record),
    MOE_SECTION(MOE_IF_SET, "choice", 0, map_choice_record),
    MOE_SECTION(MOE_IF_SET, "fate", 0, map_fate_record),
    MOE_SECTION(MOE_IF_SET, "hobbit", 0, map_hobbit_record),
    MOE_SECTION(MOE_IF_SET, "routing", 0, map_routing_record),
    MOE_LIST(struct moe_map, "savings", savings, n_savings, map_savings_record),
};
static const struct moe_record map_record = {MOE_RECORD(map_members)};

static void release_map(void *whole)
{
    struct moe_map *map = whole;
    moe_shards_release(&map->importances.shards);
    free(map->importances.known);
    free(map->importances.estimated);
    free(map->importances.nats);
    free(map->importances.error);
    free(map->importances.changed);
    free(map->importances.visited);
    free(map->choice.variant);
    free(map->model_layer);
}

const struct moe_record_format moe_map_format = {.name = "moe-map",
                                                 .title = "Bit map",
                                                 .version = MOE_MAP_VERSION,
                                                 .max_bytes = MAX_FILE_BYTES,
                                                 .record = &map_record,
                                                 .bytes = sizeof(struct moe_map),
                                                 .release = release_map};

int moe_map_write(const struct moe_map *map, bool json, struct moe_buf *out, struct moe_err *err)
{
    return moe_record_write(&moe_map_format, map, json, out, err);
}

int moe_map_read(struct moe_map **out, const char *path, struct moe_err *err)
{
    return moe_record_read(&moe_map_format, out, path, err);
}

void moe_map_free(struct moe_map *map)
{
    moe_record_free(&moe_map_format, map);
}
