/*
 * In the file of a plan: what else could be, and what is taken for granted, each with the speed
 * that the simulator found for it.
 */
#include <string.h>

#include "plan/plan_file.h"

/* ---- Names ---- */

const char *moe_alternative_name(enum moe_alternative what)
{
    static const char *const names[MOE_N_ALTERNATIVES] = {"memory",  "link",    "processor",
                                                          "experts", "context", "batch"};
    return names[what];
}

const char *moe_assumption_name(enum moe_assumption what)
{
    static const char *const names[MOE_N_ASSUMPTIONS] = {
        [MOE_ASSUME_ROUTING] = "routing-of-another-model",
        [MOE_ASSUME_BANDWIDTH] = "times-from-bandwidth",
        [MOE_ASSUME_NOMINAL] = "link-as-stated",
        [MOE_ASSUME_FIGURES] = "routing-drawn",
        [MOE_ASSUME_QUIET] = "machine-quiet",
        [MOE_ASSUME_FEW_TOKENS] = "few-tokens",
        [MOE_ASSUME_NO_STATISTICS] = "no-statistics",
        [MOE_ASSUME_ALIKE] = "texts-alike",
    };
    return names[what];
}

static const char *alternative_at(uint32_t i)
{
    return moe_alternative_name((enum moe_alternative)i);
}

static const char *assumption_at(uint32_t i)
{
    return moe_assumption_name((enum moe_assumption)i);
}

/* One of n names as its number. */
static int read_name(struct moe_record_reader *r, struct moe_yaml_node *map,
                     const struct moe_member *m, const char *(*name_at)(uint32_t), uint32_t n,
                     uint32_t *out)
{
    const char *name = NULL;
    int status = moe_yaml_get_text(r->doc, map, m->key, true, &name, r->err);
    if (status != MOE_OK)
        return status;
    for (*out = 0; *out < n && strcmp(name, name_at(*out)) != 0; ++*out)
        ;
    return *out < n ? MOE_OK
                    : moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err,
                                    "'%.60s' is nothing that '%s' can be", name, m->key);
}

/* ---- Alternatives ---- */

static int read_what(struct moe_record_reader *r, struct moe_yaml_node *map,
                     const struct moe_member *m, void *record)
{
    uint32_t what = 0;
    int status = read_name(r, map, m, alternative_at, MOE_N_ALTERNATIVES, &what);
    ((struct moe_plan_alternative *)record)->what = (enum moe_alternative)what;
    return status;
}

static void write_what(struct moe_record_writer *w, const struct moe_member *m, const void *record)
{
    const struct moe_plan_alternative *a = record;
    moe_emit_text(&w->emit, m->key, moe_alternative_name(a->what));
}

static const struct moe_member_own what = {read_what, write_what, NULL};

static const struct moe_member alternative_members[] = {
    MOE_OWN("what", 0, what),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_alternative, "amount", amount, MOE_ABOVE_0, HUGE_VAL),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_alternative, "times", times, MOE_ABOVE_0, HUGE_VAL),
    MOE_FIELD(MOE_IF_SET, struct moe_plan_alternative, "precision", precision),
    MOE_FIELD(MOE_IF_SET, struct moe_plan_alternative, "strategy", strategy),
    FIGURE(moe_plan_alternative, "decode_tokens_per_second", decode_tokens_per_second),
    FIGURE(moe_plan_alternative, "prefill_tokens_per_second", prefill_tokens_per_second),
    SHARE(moe_plan_alternative, "hit_rate", hit_rate),
    FIGURE(moe_plan_alternative, "bytes_per_token", bytes_per_token),
    MOE_FIELD(MOE_IF_SET, struct moe_plan_alternative, "loss_tokens", loss_tokens),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_plan_alternative, "loss_percent", loss_percent, -HUGE_VAL,
                 HUGE_VAL),
    MOE_FIELD(MOE_IF_SET, struct moe_plan_alternative, "loss_error_percent", loss_error),
};
const struct moe_record plan_alternative_record = {MOE_RECORD(alternative_members)};

/* ---- Doubts ---- */

static int read_assumption(struct moe_record_reader *r, struct moe_yaml_node *map,
                           const struct moe_member *m, void *record)
{
    uint32_t found = 0;
    int status = read_name(r, map, m, assumption_at, MOE_N_ASSUMPTIONS, &found);
    ((struct moe_plan_doubt *)record)->what = (enum moe_assumption)found;
    return status;
}

static void write_assumption(struct moe_record_writer *w, const struct moe_member *m,
                             const void *record)
{
    const struct moe_plan_doubt *d = record;
    moe_emit_text(&w->emit, m->key, moe_assumption_name(d->what));
}

static const struct moe_member_own assumption = {read_assumption, write_assumption, NULL};

static const struct moe_member doubt_members[] = {
    MOE_OWN("assumption", 0, assumption),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_doubt, "by", by, MOE_ABOVE_0, HUGE_VAL),
    FIGURE(moe_plan_doubt, "decode_tokens_per_second", decode_tokens_per_second),
};

/* Each assumption once: what explains them has room for no more. */
static int check_doubt(struct moe_record_reader *r, struct moe_yaml_node *item, void *record)
{
    const struct moe_plan *p = r->whole;
    const struct moe_plan_doubt *d = record;
    for (const struct moe_plan_doubt *other = p->doubts; other < d; other++)
        if (other->what == d->what)
            return moe_yaml_fail(r->doc, item, r->err, "assumption '%s' is there twice",
                                 moe_assumption_name(d->what));
    return MOE_OK;
}

const struct moe_record plan_doubt_record = {MOE_RECORD(doubt_members), check_doubt};
