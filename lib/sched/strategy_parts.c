/*
 * The parts of a strategy: their names, their help and their values, in one table.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sched/strategy_values.h"

/* ---- The table ---- */

/* What a part sets: fields that its codec knows, or a single flag or number. */
enum field { FIELD_CODEC = 0, FIELD_FLAG, FIELD_SHARE, FIELD_COUNT };

struct part {
    struct moe_strategy_part shown;
    const char *values; /* NULL: those of the cache, which its policies name */
    enum field field;
    size_t at; /* offset of the flag or number in struct moe_strategy */
    const struct moe_part_codec *codec;
};

/* clang-format off */
#define CODEC(name, text) .values = text, .codec = &moe_part_##name
#define FIELD(name)       .at = offsetof(struct moe_strategy, name)
#define FLAG(name)        .values = "on or off", .field = FIELD_FLAG, FIELD(name)
#define SHARE(name)       .values = "a share from 0 to 1 (5% or 0.05)", .field = FIELD_SHARE, FIELD(name)
#define COUNT(name, text) .values = text, .field = FIELD_COUNT, FIELD(name)

/* on-miss=compute-host is not inexact: host and device of a test device compute the same, bit by
 * bit. Where they do not (a GPU beside a host), the engine knows and says so. */
static const struct part parts[MOE_N_PARTS] = {
    [MOE_PART_PREDICT] = {
        {"predict", "HOW", "how to predict the experts of later layers", "none"},
        CODEC(predict, "none, previous, path, keys, gate-next[,token], gate-attention[-before]; "
                       "token, requests, gate-ahead, gate-residual, [:N]")},
    [MOE_PART_ASSUME_PREDICTION] = {
        {"assume-prediction", "SHARE", "of a trace's choices, so many are predicted", "0"},
        SHARE(assumed)},
    [MOE_PART_PREFETCH] = {
        {"prefetch", "LIMITS", "prefetch predicted experts, within limits", "none"},
        CODEC(prefetch, "none, or some of percentile:P, count:N, slack[:LEAST], until-router, "
                        "all, measured, with commas")},
    [MOE_PART_PROTECT] = {
        {"protect", NULL, "do not evict predicted experts", "off"}, FLAG(protect)},
    [MOE_PART_PROTECT_TOKENS] = {
        {"protect-tokens", NULL, "nor what a pass's tokens, drafts too, used last", "off"},
        FLAG(protect_tokens)},
    [MOE_PART_STREAM] = {
        {"stream", NULL, "load layers whole, whatever their routers choose", "off"},
        FLAG(stream)},
    [MOE_PART_CACHE] = {
        {"cache", "NAME", "which expert a full cache evicts", "none"}, CODEC(cache, NULL)},
    [MOE_PART_CACHE_WEIGHTS] = {
        {"cache-weights", "LIST", "weights of --cache hobbit: lru, lfu, lhu, fld", "default"},
        CODEC(cache_weights, "default, or four numbers from 0 up, not all 0, with commas")},
    [MOE_PART_KEEP_RECORDS] = {
        {"keep-records", NULL, "keep the cache's records from one text to the next", "off"},
        FLAG(keep_records)},
    [MOE_PART_LOW_POOL] = {
        {"low-pool", "SHARE", "share of the cache for low-precision experts", "0"},
        SHARE(low_pool)},
    [MOE_PART_ALLOC] = {
        {"alloc", "NAME", "how the layers share the cache", "global"},
        CODEC(alloc, "global, per-layer, shallow[:L|:auto] or frequency")},
    [MOE_PART_INIT] = {
        {"init", "NAME", "what the cache holds at the start", "empty"},
        CODEC(init, "empty, frequency, layerwise or encoder-first")},
    [MOE_PART_BUFFER] = {
        {"buffer", "N", "experts in the cache where no size is given", "0"},
        COUNT(buffer, "a whole number; 0: all that fit")},
    [MOE_PART_CACHE_BITS] = {
        {"cache-bits", "BITS", "bitwidth to keep where the best one does not fit", "0", "any"},
        COUNT(cache_bits, "a whole number; 0: the best")},
    [MOE_PART_ON_MISS] = {
        {"on-miss", "HOW", "what to do with an absent expert", "load", "load-low,emergency"},
        CODEC(on_miss, "load, load-low[:T1] or emergency; or compute-host[,or-load], alone or "
                       "with one of the two before")},
    [MOE_PART_SKIP_BELOW] = {
        {"skip-below", "SHARE", "skip absent experts in the last SHARE of weight", "0", "any"},
        SHARE(skip_below)},
    [MOE_PART_GATE_BELOW] = {
        {"gate-below", "SHARE", "decode without experts in the last SHARE of weight", "0", "any"},
        SHARE(gate_below)},
    [MOE_PART_PREFER_CACHED] = {
        {"prefer-cached", "LAMBDA", "decode by scores that are higher for cached experts", "0",
         "any", "auto"},
        CODEC(prefer_cached, "a number from 0 up, of spreads, [:N] for the strongest N to stay; or "
                             "auto")},
    [MOE_PART_HOST_DECODES_ONLY] = {
        {"host-decodes-only", NULL, "compute-host, but load the experts of a prompt", "off"},
        FLAG(host_decodes_only)},
    [MOE_PART_PREFILL] = {
        {"prefill", "HOW", "order and precision of a prompt's experts", "routed-order", "hybrid"},
        CODEC(prefill, "routed-order, popularity or hybrid[:SHARE][,or-popularity]")},
    [MOE_PART_PREFILL_SWAP] = {
        {"prefill-swap", NULL, "prompts: cache busy experts in place of idle ones", "off"},
        FLAG(prefill_swap)},
    [MOE_PART_PRECALCULATE] = {
        {"precalculate", NULL, "compute predicted experts early, on the host", "off", "any"},
        FLAG(precalculate)},
    [MOE_PART_PRECALCULATE_FROM] = {
        {"precalculate-from", "N", "... from MoE layer N on", "0"},
        COUNT(precalculate_from, "a whole number; 0: 5/32 of the layers")},
    [MOE_PART_DEGRADE] = {
        {"degrade", NULL, "replace the weaker of two experts on the host", "off", "any"},
        FLAG(degrade)},
    [MOE_PART_DEGRADE_MOST] = {
        {"degrade-most", "N", "... of more than two, no more than N", "0"},
        COUNT(degrade_most, "a whole number; 0: all but the strongest")},
};
/* clang-format on */

const struct moe_strategy_part *moe_strategy_part_at(enum moe_part part)
{
    return &parts[part].shown;
}

bool moe_strategy_part_find(const char *name, enum moe_part *out)
{
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        if (strcmp(name, parts[part].shown.name) == 0) {
            *out = part;
            return true;
        }
    }
    return false;
}

void moe_strategy_part_values(enum moe_part part, char out[MOE_PART_TEXT_BYTES])
{
    if (parts[part].values) {
        snprintf(out, MOE_PART_TEXT_BYTES, "%s", parts[part].values);
        return;
    }
    size_t n = (size_t)snprintf(out, MOE_PART_TEXT_BYTES, "none");
    for (int i = 0; moe_policy_at(i) && n < MOE_PART_TEXT_BYTES; i++)
        n += (size_t)snprintf(out + n, MOE_PART_TEXT_BYTES - n, "%s%s%s",
                              moe_policy_at(i + 1) ? ", " : " or ", moe_policy_at(i)->name,
                              moe_policy_at(i) == &moe_policy_lrfu ? "[:N]" : "");
}

static bool refuse(enum moe_part part, char why[128])
{
    char values[MOE_PART_TEXT_BYTES];
    moe_strategy_part_values(part, values);
    snprintf(why, 128, "is not %.120s", values);
    return false;
}

bool moe_strategy_set(struct moe_strategy *s, enum moe_part part, const char *text, char why[128])
{
    const struct part *p = &parts[part];
    void *at = (char *)s + p->at;
    double share;
    bool ok = false;
    switch (p->field) {
    case FIELD_CODEC:
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
    case FIELD_CODEC:
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

static const char *after_comma(const char *list)
{
    const char *comma = strchr(list, ',');
    return comma ? comma + 1 : NULL;
}

bool moe_strategy_part_inexact(const struct moe_strategy *s, enum moe_part part)
{
    char text[MOE_PART_TEXT_BYTES];
    const char *inexact = parts[part].shown.inexact;
    if (!inexact || !moe_strategy_has(s, part))
        return false;
    moe_strategy_part_text(s, part, text);
    for (const char *item = text; item; item = after_comma(item)) {
        size_t n = strcspn(item, ":,"); /* the word without its argument */
        for (const char *at = inexact; at; at = after_comma(at))
            if (strcspn(at, ",") == n && memcmp(at, item, n) == 0)
                return true;
    }
    return strcmp(inexact, "any") == 0;
}
