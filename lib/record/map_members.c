/*
 * Members that several sections of a bit map have: variants by name, losses.
 */
#include <string.h>

#include "record/map_file.h"

int map_find_variant(struct moe_record_reader *r, const struct moe_yaml_node *node,
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
    int status = moe_yaml_get_text(r->doc, map, m->key, true, &name, r->err);
    return status == MOE_OK ? map_find_variant(r, moe_yaml_get(map, m->key), name,
                                               (uint32_t *)((char *)record + m->at))
                            : status;
}

static void write_variant(struct moe_record_writer *w, const struct moe_member *m,
                          const void *record)
{
    const struct moe_map *map = w->whole;
    moe_emit_text(&w->emit, m->key,
                  map->variants[*(const uint32_t *)((const char *)record + m->at)]);
}

const struct moe_member_own map_variant_by_name = {read_variant, write_variant, NULL};

int map_check_pair(struct moe_record_reader *r, struct moe_yaml_node *map, const char *high_key,
                   uint32_t high, const char *low_key, uint32_t low)
{
    return low > high ? MOE_OK
                      : moe_yaml_fail(r->doc, moe_yaml_get(map, low_key), r->err,
                                      "'%s' must be a lower variant than '%s'", low_key, high_key);
}

/* Numbers in the metric's unit have it in their key. */
bool map_is_nll(const void *record)
{
    return ((const struct moe_map *)record)->metric == MOE_METRIC_NLL;
}

bool map_is_top1(const void *record)
{
    return !map_is_nll(record);
}

bool map_tolerates_percent(const void *record)
{
    return map_is_nll(record) && ((const struct moe_map *)record)->judge == MOE_JUDGE_NATS;
}

bool map_tolerates_points(const void *record)
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

const struct moe_record map_loss_record = {MOE_RECORD(loss_members), check_loss, loss_is_there};
