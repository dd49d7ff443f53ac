#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sched/strategy_parse.h"

/* ---- The table ---- */

/* What a part sets: something of its own, or a single number or flag of the struct. */
enum field { FIELD_OWN = 0, FIELD_FLAG, FIELD_SHARE, FIELD_COUNT };

struct part {
    struct moe_strategy_part shown;
    const char *words;
    enum field field;
    size_t at; /* of the struct */
    const struct moe_part_codec *codec;
};

#define FLAG(name)                                                                                 \
    .words = "on or off", .field = FIELD_FLAG, .at = offsetof(struct moe_strategy, name)
#define SHARE(name)                                                                                \
    .words = "a share from 0 to 1 (5% or 0.05)", .field = FIELD_SHARE,                             \
    .at = offsetof(struct moe_strategy, name)
#define COUNT(name, text)                                                                          \
    .words = text, .field = FIELD_COUNT, .at = offsetof(struct moe_strategy, name)

/* clang-format off */
static const struct part parts[MOE_N_PARTS] = {
    [MOE_PART_PREDICT] = {
        {"predict", "HOW", "predict the experts of layers to come", "none"},
        .words = "none, previous, path, keys, gate-next, gate-ahead[:DEPTH] or "
                 "gate-residual[:DEPTH]",
        .codec = &moe_part_predict},
    [MOE_PART_PREFETCH] = {
        {"prefetch", "LIMITS", "load predicted experts ahead, within limits", "none"},
        .words = "none, or some of percentile:P, count:N, slack, until-router, all, measured, with "
                 "commas",
        .codec = &moe_part_prefetch},
    [MOE_PART_PROTECT] = {
        {"protect", NULL, "predicted experts are not evicted", "off"}, FLAG(protect)},
    [MOE_PART_CACHE] = {
        {"cache", "NAME", "which expert leaves a full cache", "none"},
        .codec = &moe_part_cache},
    [MOE_PART_CACHE_WEIGHTS] = {
        {"cache-weights", "LIST", "of --cache hobbit, for lru, lfu, lhu, fld",
         "default"},
        .words = "default, or four numbers from 0 up, not all 0, with commas",
        .codec = &moe_part_cache_weights},
    [MOE_PART_KEEP_RECORDS] = {
        {"keep-records", NULL, "the cache's records outlast the end of a text", "off"},
        FLAG(keep_records)},
    [MOE_PART_LOW_POOL] = {
        {"low-pool", "SHARE", "share of the cache for low-precision experts", "0"},
        SHARE(low_pool)},
    [MOE_PART_ALLOC] = {
        {"alloc", "NAME", "how layers share the cache", "global"},
        .words = "global, per-layer, shallow[:L] or frequency",
        .codec = &moe_part_alloc},
    [MOE_PART_INIT] = {
        {"init", "NAME", "what lies in the cache at the start", "empty"},
        .words = "empty, frequency or layerwise",
        .codec = &moe_part_init},
    [MOE_PART_BUFFER] = {
        {"buffer", "N", "experts in the cache where no size is named", "0"},
        COUNT(buffer, "a whole number; 0: all that fits")},
    [MOE_PART_CACHE_BITS] = {
        {"cache-bits", "BITS", "precision kept where memory does not hold the best", "0"},
        COUNT(cache_bits, "a whole number; 0: the best")},
    [MOE_PART_ON_MISS] = {
        {"on-miss", "HOW", "what becomes of an absent expert", "load"},
        .words = "load, load-low[:T1], emergency or compute-host[,or-load]",
        .codec = &moe_part_on_miss},
    [MOE_PART_SKIP_BELOW] = {
        {"skip-below", "SHARE", "leave out absent ones in the last SHARE of weight", "0"},
        SHARE(skip_below)},
    [MOE_PART_HOST_DECODES_ONLY] = {
        {"host-decodes-only", NULL, "compute-host, but a prompt's experts are loaded", "off"},
        FLAG(host_decodes_only)},
    [MOE_PART_PREFILL] = {
        {"prefill", "HOW", "in which order, and how well, prompts are computed", "routed-order"},
        .words = "routed-order, popularity or hybrid[:SHARE][,or-popularity]",
        .codec = &moe_part_prefill},
    [MOE_PART_PREFILL_SWAP] = {
        {"prefill-swap", NULL, "prompts: busy host experts replace idle ones", "off"},
        FLAG(prefill_swap)},
    [MOE_PART_PRECALCULATE] = {
        {"precalculate", NULL, "the host computes predicted experts a layer early", "off"},
        FLAG(precalculate)},
    [MOE_PART_PRECALCULATE_FROM] = {
        {"precalculate-from", "N", "... from MoE layer N on", "0"},
        COUNT(precalculate_from, "a whole number; 0: 5/32 of the layers")},
    [MOE_PART_DEGRADE] = {
        {"degrade", NULL, "of two predicted on the host, replace the weaker", "off"},
        FLAG(degrade)},
};
/* clang-format on */

const struct moe_strategy_part *moe_strategy_part_at(enum moe_part part)
{
    return &parts[part].shown;
}

bool moe_strategy_part_find(const char *option, enum moe_part *out)
{
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        if (strcmp(option, parts[part].shown.option) == 0) {
            *out = part;
            return true;
        }
    }
    return false;
}

void moe_strategy_part_words(enum moe_part part, char out[MOE_PART_TEXT_BYTES])
{
    if (parts[part].words) {
        snprintf(out, MOE_PART_TEXT_BYTES, "%s", parts[part].words);
        return;
    }
    size_t n = (size_t)snprintf(out, MOE_PART_TEXT_BYTES, "none"); /* the cache's policies */
    for (int i = 0; moe_policy_at(i) && n < MOE_PART_TEXT_BYTES; i++)
        n += (size_t)snprintf(out + n, MOE_PART_TEXT_BYTES - n, "%s%s",
                              moe_policy_at(i + 1) ? ", " : " or ", moe_policy_at(i)->name);
}

static bool refuse(enum moe_part part, char why[128])
{
    char words[MOE_PART_TEXT_BYTES];
    moe_strategy_part_words(part, words);
    snprintf(why, 128, "is not %.118s", words);
    return false;
}

bool moe_strategy_set(struct moe_strategy *s, enum moe_part part, const char *text, char why[128])
{
    const struct part *p = &parts[part];
    void *at = (char *)s + p->at;
    double share;
    bool ok = false;
    switch (p->field) {
    case FIELD_OWN:
        ok = p->codec->parse(text, s);
        break;
    case FIELD_FLAG:
        ok = strcmp(text, "on") == 0 || strcmp(text, "off") == 0;
        if (ok)
            *(bool *)at = strcmp(text, "on") == 0;
        break;
    case FIELD_SHARE:
        ok = moe_parse_share(text, &share) && share <= 1;
        if (ok)
            *(double *)at = share;
        break;
    case FIELD_COUNT:
        ok = moe_part_count(text, 0, UINT32_MAX, at);
        break;
    }
    return ok || refuse(part, why);
}

void moe_strategy_part_text(const struct moe_strategy *s, enum moe_part part,
                            char out[MOE_PART_TEXT_BYTES])
{
    const struct part *p = &parts[part];
    const void *at = (const char *)s + p->at;
    switch (p->field) {
    case FIELD_OWN:
        p->codec->write(s, out, MOE_PART_TEXT_BYTES);
        break;
    case FIELD_FLAG:
        snprintf(out, MOE_PART_TEXT_BYTES, "%s", *(const bool *)at ? "on" : "off");
        break;
    case FIELD_SHARE:
        if (*(const double *)at > 0)
            moe_part_share_text(*(const double *)at, out, MOE_PART_TEXT_BYTES);
        else
            snprintf(out, MOE_PART_TEXT_BYTES, "0");
        break;
    case FIELD_COUNT:
        snprintf(out, MOE_PART_TEXT_BYTES, "%u", *(const uint32_t *)at);
        break;
    }
}

bool moe_strategy_has(const struct moe_strategy *s, enum moe_part part)
{
    char text[MOE_PART_TEXT_BYTES];
    moe_strategy_part_text(s, part, text);
    return strcmp(text, parts[part].shown.off) != 0;
}
