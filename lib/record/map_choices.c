/*
 * What a bit map's calibration chose: bitwidths, Fate's p, HOBBIT's thresholds and weights,
 * lambda of cache-aware routing.
 */
#include <inttypes.h>

#include "model/config.h" /* MOE_MAX_TOP_K */
#include "record/map_file.h"

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
    int status = moe_yaml_get_list_of(r->doc, map, m->key, whole->n_layers, &layers, r->err);
    for (struct moe_yaml_node *l = layers ? moe_yaml_first(layers) : NULL; l && status == MOE_OK;
         l = moe_yaml_next(l), out += whole->n_experts)
        status = read_layer(r, l, out);
    return status;
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
    BITS(moe_map, "dense_bits", choice.dense_bits),
    FIELD(moe_map, "expert_bytes", choice.expert_bytes),
    FIELD(moe_map, "dense_bytes", choice.dense_bytes),
    MOE_GROUP(choice_nll),
    MOE_GROUP(choice_top1),
    LOSS(moe_map, "loss", choice.loss),
    LOSS(moe_map, "check", choice.check),
    MOE_OWN("layers", 0, choice_layers),
};

const struct moe_record map_choice_record = {MOE_RECORD(choice_members),
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

const struct moe_record map_fate_record = {MOE_RECORD(fate_members), check_fate,
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

const struct moe_record map_hobbit_record = {MOE_RECORD(hobbit_members), check_hobbit,
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

const struct moe_record map_routing_record = {MOE_RECORD(routing_members),
                                              MOE_FLAGGED(struct moe_map, routing.there)};
