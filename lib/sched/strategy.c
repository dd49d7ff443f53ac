/*
 * The table of strategies, and which of their parts go together.
 */
#include "sched/strategy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/config.h" /* MOE_MAX_TOP_K */
#include "profile/statistics_figures.h"

/*
 * Values of a strategy's parts as text, of those that are more than a flag or a number: what each
 * text means, and back. The reader and the writer of a part stand side by side.
 */
struct part_codec {
    /* false: the text is not a value of the part; *s is unchanged. */
    bool (*parse)(const char *text, struct moe_strategy *s);
    /* A text that `parse` turns into exactly the same value; at most `size` bytes with NUL. */
    void (*write)(const struct moe_strategy *s, char *out, size_t size);
};

static const struct part_codec part_predict, part_prefetch, part_cache, part_cache_weights,
    part_alloc, part_init, part_on_miss, part_skip_below, part_prefer_cached, part_prefill;

/* A whole number in least..most; false leaves *out untouched. */
static bool part_count(const char *text, uint32_t least, uint32_t most, uint32_t *out);
/* A share as a text that moe_parse_share reads back exactly: "25%", or "0.123456789" where a
 * percentage is not exact. */
static void part_share_text(double share, char *out, size_t size);

/* ---- The table ---- */

/* clang-format off */
static const struct moe_strategy strategies[] = {
    {
        .name = "resident",
        .describe = "every expert in memory from the start, at its highest precision",
        .resident = true,
    }, {
        .name = "ondemand",
        .describe = "loads what the router chooses, keeps nothing beyond the layer",
    }, {
        .name = "lru",
        .describe = "caches the experts used last",
        .cache = &moe_policy_lru,
    }, {
        .name = "prefetch",
        .describe = "caches by likelihood of use, predicts the next layer: measured best",
        .predict = MOE_PREDICT_BY_GATE, .depth = 1,
        .prefetch = {.top_k = true, .measured = true},
        .cache = &moe_policy_learned,
        .prefill = MOE_PREFILL_POPULARITY,
    }, {
        .name = "host",
        .describe = "pins the most frequent, computes absent ones on the host (Fiddler)",
        .cache = &moe_policy_pinned,
        .init = MOE_INIT_FREQUENCY,
        .miss_place = MOE_MISS_COMPUTE_HOST, .host_falls_back = true,
    }, {
        /* "a caching strategy identical to Fate", and at its precision, so that the two differ
         * only in prediction (Fate 5.1). */
        .name = "eap",
        .describe = "Fate but for prediction: by the previous block's experts (Fate 5.1)",
        .predict = MOE_PREDICT_BY_PATH, .depth = 1,
        .prefetch = {.percentile = 75, .slack = true},
        .cache = &moe_policy_arc,
        .alloc = MOE_ALLOC_SHALLOW, .boundary = MOE_SHALLOW_AUTO,
        .cache_bits = 4,
        .prefill = MOE_PREFILL_HYBRID, .low_share = 0.25, .prefill_falls_back = true,
    }, {
        .name = "edgemoe",
        .describe = "path statistics, one prefetch at a time up to the router (EdgeMoE)",
        .predict = MOE_PREDICT_BY_PATH, .depth = 1,
        .prefetch = {.until_router = true},
        .cache = &moe_policy_edgemoe,
        .init = MOE_INIT_ENCODER,
        .buffer = 10, /* IV-A: "we set the expert buffer of EdgeMoE to 10x experts" */
    }, {
        /* Of STI what EdgeMoE's baseline has: layers pipelined whole, and a buffer of preloaded ones.
         * Its bits by layer are those of the pack. */
        .name = "sti",
        .describe = "streams layers whole, keeps the first ones (STI)",
        .stream = true,
        .cache = &moe_policy_pinned,
        .init = MOE_INIT_LAYERWISE,
        .buffer = 10, /* IV-A: "so that STI and EdgeMoE have the same memory footprint" */
    }, {
        .name = "moe-infinity",
        .describe = "predicts from the most similar earlier text (MoE-Infinity)",
        .predict = MOE_PREDICT_BY_REQUESTS, .depth = 3,
        .prefetch = {.until_router = true},
        .cache = &moe_policy_infinity,
    }, {
        .name = "moe-offloading",
        .describe = "an LRU cache a layer, two experts loaded ahead (MoE-Offloading)",
        .predict = MOE_PREDICT_BY_GATE, .depth = 1,
        .prefetch = {.top_k = true, .count = 2}, /* "fetching 1-2 experts", 3.2 */
        .cache = &moe_policy_lru,
        .alloc = MOE_ALLOC_PER_LAYER,
    }, {
        .name = "adapmoe",
        .describe = "decodes with fewer experts where the best weigh most (AdapMoE)",
        .predict = MOE_PREDICT_BY_GATE, .depth = 1,
        .prefetch = {.top_k = true},
        .cache = &moe_policy_lru,
        .gate_below = 0.2, /* the paper finds it by the loss that it allows */
    }, {
        .name = "fate",
        .describe = "next layer's gate, shallow-favouring ARC, hybrid prefill (Fate)",
        .predict = MOE_PREDICT_BY_GATE, .depth = 1,
        .prefetch = {.percentile = 75, .slack = true},
        .cache = &moe_policy_arc,
        .alloc = MOE_ALLOC_SHALLOW, .boundary = MOE_SHALLOW_AUTO,
        .cache_bits = 4, /* 4.5 */
        .prefill = MOE_PREFILL_HYBRID, .low_share = 0.25, .prefill_falls_back = true,
    }, {
        .name = "hobbit",
        .describe = "mixed precision by score, stacked gates, weighted priority (HOBBIT)",
        .predict = MOE_PREDICT_BY_GATE, .depth = 3, /* 5.5: "we recommend setting p in range 1 to 3" */
        .prefetch = {.top_k = true},
        .protect = true,
        .cache = &moe_policy_hobbit,
        .miss_precision = MOE_MISS_BY_SCORE, /* 3.2: T1 and T2 by the scores, 0.6 and 0.9 of Mixtral */
        .high_up_to = 0.6, .by_scores = true, .skip_below = 0.1, .skip_by_scores = true,
        .host_decodes_only = true, /* for the cooperative mode, --on-miss compute-host,load-low: 5.4 */
    }, {
        .name = "daop",
        .describe = "pins by frequency, pre-calculates on the host, degrades (DAOP)",
        .predict = MOE_PREDICT_BY_GATE, .depth = 1,
        .cache = &moe_policy_pinned,
        .alloc = MOE_ALLOC_FREQUENCY,
        .init = MOE_INIT_FREQUENCY,
        .miss_place = MOE_MISS_COMPUTE_HOST,
        .prefill_swap = true,
        .precalculate = true, .precalculate_from = MOE_PRECALCULATE_AUTO,
        .degrade = true,
    },
};
/* clang-format on */
enum { N_STRATEGIES = sizeof strategies / sizeof strategies[0] };

bool moe_strategy_find(const char *name, struct moe_strategy *out)
{
    for (size_t i = 0; i < N_STRATEGIES; i++) {
        if (strcmp(name, strategies[i].name) == 0) {
            *out = strategies[i];
            return true;
        }
    }
    return false;
}

const char *moe_strategy_name_at(int i)
{
    return i >= 0 && (size_t)i < N_STRATEGIES ? strategies[i].name : NULL;
}

/* ---- What goes together ---- */

static bool computes_low(const struct moe_strategy *s)
{
    return s->miss_precision != MOE_MISS_BEST || s->prefill == MOE_PREFILL_HYBRID;
}

static bool predicts_routers(const struct moe_strategy *s)
{
    return s->predict == MOE_PREDICT_BY_GATE || s->predict == MOE_PREDICT_BY_RESIDUAL;
}

/* Why a part that is not off has no effect given the others; NULL: it has one. */
static const char *idle(const struct moe_strategy *s, enum moe_part part)
{
    if (s->resident)
        return "every expert is in memory already";
    switch (part) {
    case MOE_PART_PREDICT:
        return moe_strategy_has(s, MOE_PART_PREFETCH) || s->precalculate
                   ? NULL
                   : "nothing uses the prediction: --prefetch or --precalculate would";
    case MOE_PART_ASSUME_PREDICTION:
        return s->predict ? NULL
                          : "nothing is predicted whose accuracy it could be: --predict would";
    case MOE_PART_PREFETCH:
        return s->predict ? NULL : "nothing is predicted: --predict would";
    case MOE_PART_STREAM:
        return s->predict || s->miss_place == MOE_MISS_COMPUTE_HOST
                   ? "a layer that is loaded whole needs no prediction, and leaves the host nothing"
                   : NULL;
    case MOE_PART_PROTECT:
        return s->predict && s->cache ? NULL : "it needs a --predict and a --cache";
    case MOE_PART_PROTECT_TOKENS:
        return s->cache ? NULL : "nothing is kept: it needs a --cache";
    case MOE_PART_CACHE_WEIGHTS:
        return s->cache == &moe_policy_hobbit ? NULL : "only --cache hobbit has weights";
    case MOE_PART_LOW_POOL:
        return s->cache && computes_low(s)
                   ? NULL
                   : "no low-precision experts are kept: it needs a --cache, and --on-miss "
                     "load-low or emergency, or --prefill hybrid";
    case MOE_PART_KEEP_RECORDS:
    case MOE_PART_ALLOC:
    case MOE_PART_INIT:
    case MOE_PART_BUFFER:
    case MOE_PART_CACHE_BITS:
        return s->cache ? NULL : "nothing is kept: it needs a --cache";
    case MOE_PART_PREFER_CACHED:
        if (!s->cache)
            return "nothing is kept: it needs a --cache";
        return s->precalculate ? "--precalculate replaces the router's choice already" : NULL;
    case MOE_PART_PREFILL_SWAP:
        return s->cache && s->miss_place == MOE_MISS_COMPUTE_HOST
                   ? NULL
                   : "experts move between host and cache: it needs a --cache and "
                     "--on-miss compute-host";
    case MOE_PART_PRECALCULATE:
        return predicts_routers(s) ? NULL
                                   : "it needs a prediction by the router: --predict gate-next";
    case MOE_PART_PRECALCULATE_FROM:
    case MOE_PART_DEGRADE:
        return s->precalculate ? NULL : "it needs --precalculate";
    case MOE_PART_DEGRADE_MOST:
        return s->degrade ? NULL : "it needs --degrade";
    default:
        return NULL;
    }
}

static bool is_idle(const struct moe_strategy *s, enum moe_part part)
{
    return moe_strategy_has(s, part) && idle(s, part);
}

void moe_strategy_drop_idle(struct moe_strategy *s, uint32_t named)
{
    bool dropped;
    do { /* dropping one may leave others without effect */
        dropped = false;
        for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
            if (!(named >> part & 1) && is_idle(s, part)) {
                moe_strategy_set(s, part, moe_strategy_part_at(part)->off, NULL);
                dropped = true;
            }
        }
    } while (dropped);
}

/* ---- Settling ---- */

static void derive(struct moe_strategy *s)
{
    bool falls_back = s->prefill == MOE_PREFILL_HYBRID && s->prefill_falls_back;
    s->needs_profile = s->predict == MOE_PREDICT_BY_PATH || s->predict == MOE_PREDICT_BY_KEYS ||
                       s->init == MOE_INIT_FREQUENCY || s->init == MOE_INIT_ENCODER ||
                       s->alloc == MOE_ALLOC_FREQUENCY;
    s->needs_low = s->miss_precision != MOE_MISS_BEST ||
                   (s->prefill == MOE_PREFILL_HYBRID && !falls_back) ||
                   (s->low_pool > 0 && !falls_back);
    s->needs_host = s->miss_place == MOE_MISS_COMPUTE_HOST || s->precalculate;
}

int moe_strategy_settle(struct moe_strategy *s, struct moe_err *err)
{
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        if (is_idle(s, part))
            return moe_fail(err, MOE_ERR_USAGE, "option --%s has no effect here: %s",
                            moe_strategy_part_at(part)->name, idle(s, part));
    bool named = !s->by_scores && !s->skip_by_scores;
    if (named && s->miss_precision == MOE_MISS_BY_SCORE && s->high_up_to > 1 - s->skip_below) {
        char on_miss[MOE_PART_TEXT_BYTES];
        moe_strategy_part_text(s, MOE_PART_ON_MISS, on_miss);
        return moe_fail(err, MOE_ERR_USAGE,
                        "options --on-miss %s and --skip-below %g: experts above a score of %g "
                        "are skipped, which leaves none for the low precision",
                        on_miss, s->skip_below, 1 - s->skip_below);
    }
    if (s->prefer_by_map)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --prefer-cached auto: no bit map says how much (moe-calibrate "
                        "--routing-tolerance P finds it, --calibration MAP takes it): give a "
                        "number, as in --prefer-cached 0.1");
    derive(s);
    return MOE_OK;
}

void moe_strategy_fall_back(struct moe_strategy *s)
{
    if (s->prefill != MOE_PREFILL_HYBRID || !s->prefill_falls_back)
        return;
    s->prefill = MOE_PREFILL_POPULARITY;
    s->low_share = 0;
    s->prefill_falls_back = false;
    moe_strategy_drop_idle(s, 0);
    derive(s);
}

bool moe_strategy_load_instead(struct moe_strategy *s)
{
    if (s->miss_place != MOE_MISS_COMPUTE_HOST || !s->host_falls_back)
        return false;
    s->miss_place = MOE_MISS_LOAD;
    s->host_falls_back = false;
    moe_strategy_drop_idle(s, 0);
    derive(s);
    return true;
}

/* L by the statistics, or else by the depth of the model. */
static void fit_boundary(struct moe_strategy *s, uint32_t n_layers,
                         const struct moe_statistics *statistics)
{
    bool fits = statistics && statistics->shape.n_layers - statistics->shape.n_encoder == n_layers;
    uint32_t found = fits ? moe_boundary_of_statistics(statistics) : UINT32_MAX;
    bool is_found = found != UINT32_MAX;
    s->boundary = is_found ? found : n_layers / 8 + (n_layers % 8 > 0);
    s->boundary_from = is_found ? MOE_DECIDED_BY_STATISTICS : MOE_DECIDED_BY_PAPER;
}

/* The score up to which a share of all activations lies, the best expert of each row at 0. */
static double score_of_share(const struct moe_statistics *s, double share)
{
    double k = s->shape.top_k, wanted = k > 1 ? (share * k - 1) / (k - 1) : 0;
    uint32_t bin = 1;
    while (bin < MOE_SCORE_BINS &&
           moe_figure_scores_below(s, MOE_ALL_LAYERS, (double)bin / MOE_SCORE_BINS) < wanted)
        bin++;
    return (double)bin / MOE_SCORE_BINS;
}

/* HOBBIT 3.2: "we can profile the score distribution", which splits Mixtral's activations so. One
 * expert a token has no score but 0. */
static void fit_thresholds(struct moe_strategy *s, const struct moe_statistics *statistics)
{
    static const double HIGH = 0.67, LOW = 0.30;
    bool known = statistics && !isnan(moe_figure_scores_below(statistics, MOE_ALL_LAYERS, 1));
    if (known && s->by_scores)
        s->high_up_to = score_of_share(statistics, HIGH);
    if (known && s->skip_by_scores)
        s->skip_below = round((1 - score_of_share(statistics, HIGH + LOW)) * 1e9) / 1e9;
    if (s->by_scores)
        s->high_up_to = fmin(s->high_up_to, 1 - s->skip_below);
    else
        s->skip_below = fmin(s->skip_below, 1 - s->high_up_to);
    s->by_scores = s->skip_by_scores = false;
    s->thresholds_from = known ? MOE_DECIDED_BY_STATISTICS : MOE_DECIDED_BY_PAPER;
}

void moe_strategy_fit(struct moe_strategy *s, uint32_t n_layers,
                      const struct moe_statistics *statistics)
{
    if (s->by_scores || s->skip_by_scores)
        fit_thresholds(s, statistics);
    if (s->alloc == MOE_ALLOC_SHALLOW && s->boundary == MOE_SHALLOW_AUTO)
        fit_boundary(s, n_layers, statistics);
    if (s->precalculate && s->precalculate_from == MOE_PRECALCULATE_AUTO)
        s->precalculate_from = n_layers ? (uint32_t)(((uint64_t)n_layers * 5 + 31) / 32) : 1;
}

const char *moe_strategy_boundary_from(const struct moe_strategy *s)
{
    static const char *const words[] = {NULL, "from statistics", "an eighth: no statistics"};
    return s->cache && s->alloc == MOE_ALLOC_SHALLOW ? words[s->boundary_from] : NULL;
}

const char *moe_strategy_thresholds_from(const struct moe_strategy *s)
{
    static const char *const words[] = {NULL, "from the scores in statistics",
                                        "Mixtral's: no statistics have scores"};
    return words[s->thresholds_from];
}

/*
 * The parts of a strategy: their names, their help and their values, in one table.
 */

/* ---- The table ---- */

/* What a part sets: fields that its codec knows, or a single flag or number. */
enum field { FIELD_CODEC = 0, FIELD_FLAG, FIELD_SHARE, FIELD_COUNT };

struct part {
    struct moe_strategy_part shown;
    const char *values; /* NULL: those of the cache, which its policies name */
    enum field field;
    size_t at; /* offset of the flag or number in struct moe_strategy */
    const struct part_codec *codec;
};

/* clang-format off */
#define CODEC(name, text) .values = text, .codec = &part_##name
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
        {"assume-prediction", "SHARE", "the share of a trace's choices that is predicted", "0"},
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
        CODEC(on_miss, "load, load-low[:T1|:auto] or emergency; or compute-host[,or-load], alone or "
                       "with one of the two before")},
    [MOE_PART_SKIP_BELOW] = {
        {"skip-below", "SHARE", "skip absent experts in the last SHARE of weight", "0", "any"},
        CODEC(skip_below, "a share from 0 to 1 (5% or 0.05), or auto")},
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

static bool refuse_part(enum moe_part part, struct moe_err *why)
{
    char values[MOE_PART_TEXT_BYTES];
    moe_strategy_part_values(part, values);
    moe_fail(why, MOE_ERR_USAGE, "is not %s", values);
    return false;
}

bool moe_strategy_set(struct moe_strategy *s, enum moe_part part, const char *text,
                      struct moe_err *why)
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
        ok = part_count(text, 0, UINT32_MAX, at);
        break;
    }
    return ok || refuse_part(part, why);
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
            part_share_text(*(const double *)at, out, MOE_PART_TEXT_BYTES);
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

/*
 * Whole strategies as text.
 */

/* ---- In one word ---- */

static void replace(char *text, char from, char to)
{
    for (; *text; text++)
        *text = *text == from ? to : *text;
}

/* "cache=lrfu", or "protect" for a flag that is on. */
static int parse_part(const char *item, struct moe_strategy *out, uint32_t *named,
                      struct moe_err *err)
{
    char name[32], value[MOE_STRATEGY_BRIEF];
    struct moe_err why;
    enum moe_part part;
    size_t n = strcspn(item, "=");
    snprintf(name, sizeof name, "%.*s", (int)n, item);
    if (!moe_strategy_part_find(name, &part))
        return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a part (--strategy help lists them)",
                        name);
    const char *alone = moe_strategy_part_at(part)->alone;
    snprintf(value, sizeof value, "%s", item[n] ? item + n + 1 : alone ? alone : "on");
    replace(value, ';', ',');
    if (!moe_strategy_set(out, part, value, &why))
        return moe_fail(err, MOE_ERR_USAGE, "%s: '%s' %s", name, value, why.text);
    *named |= 1u << part;
    return MOE_OK;
}

int moe_strategy_parse(const char *text, struct moe_strategy *out, uint32_t *named,
                       struct moe_err *err)
{
    char item[MOE_STRATEGY_BRIEF];
    int status = MOE_OK;
    *named = 0;
    if (strlen(text) >= sizeof item)
        return moe_fail(err, MOE_ERR_USAGE, "'%.40s...' is too long for a strategy", text);
    size_t n = strcspn(text, "+");
    snprintf(item, sizeof item, "%.*s", (int)n, text);
    if (!moe_strategy_find(item, out))
        return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a strategy (--strategy help lists them)",
                        item);
    while (text[n] && status == MOE_OK) {
        text += n + 1;
        n = strcspn(text, "+");
        snprintf(item, sizeof item, "%.*s", (int)n, text);
        status = parse_part(item, out, named, err);
    }
    return status;
}

void moe_strategy_brief(const struct moe_strategy *s, char out[MOE_STRATEGY_BRIEF])
{
    struct moe_strategy preset = {0};
    char mine[MOE_PART_TEXT_BYTES], its[MOE_PART_TEXT_BYTES];
    if (s->name)
        moe_strategy_find(s->name, &preset);
    size_t n = (size_t)snprintf(out, MOE_STRATEGY_BRIEF, "%s", s->name ? s->name : "none");
    for (enum moe_part part = 0; part < MOE_N_PARTS && n < MOE_STRATEGY_BRIEF; part++) {
        moe_strategy_part_text(s, part, mine);
        moe_strategy_part_text(&preset, part, its);
        if (strcmp(mine, its) == 0)
            continue;
        replace(mine, ',', ';');
        n += (size_t)snprintf(out + n, MOE_STRATEGY_BRIEF - n, "+%s=%s",
                              moe_strategy_part_at(part)->name, mine);
    }
}

/* How far it is from the row that names it: 1 for each part that differs, 2 where one of both has
 * it off. */
static uint32_t distance_of_row(const struct moe_strategy *s)
{
    struct moe_strategy row = {0};
    char mine[MOE_PART_TEXT_BYTES], its[MOE_PART_TEXT_BYTES];
    uint32_t n = 0;
    if (s->name)
        moe_strategy_find(s->name, &row);
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        moe_strategy_part_text(s, part, mine);
        moe_strategy_part_text(&row, part, its);
        if (strcmp(mine, its) != 0)
            n += moe_strategy_has(s, part) == moe_strategy_has(&row, part) ? 1 : 2;
    }
    return n;
}

void moe_strategy_name_nearest(struct moe_strategy *s)
{
    const struct moe_strategy from = *s;
    uint32_t least = distance_of_row(s);
    for (int i = 0; moe_strategy_name_at(i); i++) {
        struct moe_strategy row = {0}, named = from;
        moe_strategy_find(moe_strategy_name_at(i), &row);
        named.name = row.name;
        named.describe = row.describe;
        /* What is no part must be the row's, too: a file has nothing else to tell it by. */
        bool alike = row.resident == from.resident && row.host_falls_back == from.host_falls_back &&
                     row.host_decodes_only == from.host_decodes_only &&
                     row.prefill_falls_back == from.prefill_falls_back;
        if (alike && distance_of_row(&named) < least) {
            least = distance_of_row(&named);
            *s = named;
        }
    }
}

/* ---- As options ---- */

void moe_strategy_describe(const struct moe_strategy *s, struct moe_buf *out)
{
    if (s->resident) {
        moe_buf_text(out, "--strategy resident");
        return;
    }
    uint64_t began = out->size;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        char text[MOE_PART_TEXT_BYTES];
        if (!moe_strategy_has(s, part) && part != MOE_PART_CACHE)
            continue;
        moe_strategy_part_text(s, part, text);
        const struct moe_strategy_part *shown = moe_strategy_part_at(part);
        moe_buf_printf(out, "%s--%s%s%s", out->size > began ? " " : "", shown->name,
                       shown->arg ? " " : "", shown->arg ? text : "");
    }
}

/*
 * Values of parts as text.
 */

enum {
    LEAST_EXPONENT = -5, /* of 10: beyond these people write exponents */
    MOST_EXPONENT = 15,
    PERCENT_DIGITS = 6, /* a share of more digits is shorter without the percent sign */
};

/* ---- Words ---- */

/* Whether `text` is `word`, alone or followed by a colon and an argument: *arg, NULL for none. */
static bool is_word(const char *text, const char *word, const char **arg)
{
    size_t n = strlen(word);
    if (strncmp(text, word, n) != 0 || (text[n] && text[n] != ':'))
        return false;
    *arg = text[n] ? text + n + 1 : NULL;
    return true;
}

static int find_word(const char *const *words, int n, const char *text, const char **arg)
{
    for (int i = 0; i < n; i++)
        if (is_word(text, words[i], arg))
            return i;
    return -1;
}

/* Cuts the next item off a list with commas; false at its end, or when an item is too long to be
 * valid. */
static bool next_item(const char **list, char item[64])
{
    size_t n = *list ? strcspn(*list, ",") : 64;
    if (n >= 64)
        return false;
    memcpy(item, *list, n);
    item[n] = 0;
    *list = (*list)[n] ? *list + n + 1 : NULL;
    return true;
}

static bool part_count(const char *text, uint32_t least, uint32_t most, uint32_t *out)
{
    uint64_t n;
    if (!moe_parse_u64(text, &n) || n < least || n > most)
        return false;
    *out = (uint32_t)n;
    return true;
}

/* A number to `digits` significant ones, without an exponent unless it is very large or small. */
static void write_digits(double x, int digits, char *out, size_t size)
{
    snprintf(out, size, "%.*e", digits - 1, x);
    int exponent = atoi(strchr(out, 'e') + 1), decimals = digits - 1 - exponent;
    if (exponent >= LEAST_EXPONENT && exponent <= MOST_EXPONENT)
        snprintf(out, size, "%.*f", decimals > 0 ? decimals : 0, x);
}

/* The shortest text that reads back as the same number. */
static void number_text(double x, char *out, size_t size)
{
    double back = NAN;
    for (int digits = 1; digits <= 17 && back != x; digits++) {
        write_digits(x, digits, out, size);
        if (!moe_parse_double(out, &back))
            break;
    }
}

static void part_share_text(double x, char *out, size_t size)
{
    char percent[32];
    double back = NAN;
    for (int digits = 1; digits <= PERCENT_DIGITS && back != x; digits++) {
        write_digits(100 * x, digits, percent, sizeof percent);
        snprintf(out, size, "%s%%", percent);
        if (!moe_parse_share(out, &back))
            break;
    }
    if (back != x)
        number_text(x, out, size);
}

/* ---- Values of the parts ---- */

static const struct {
    const char *word;
    enum moe_predict_by by;
    uint32_t depth; /* where the text has none */
    bool takes_depth;
    bool first_by_token;
} predictors[] = {
    {"none", MOE_PREDICT_BY_NOTHING, 0, false, false},
    {"previous", MOE_PREDICT_BY_PREVIOUS, 1, false, false},
    {"token", MOE_PREDICT_BY_TOKEN, 1, true, false},
    {"path", MOE_PREDICT_BY_PATH, 1, false, false},
    {"keys", MOE_PREDICT_BY_KEYS, 1, false, false},
    {"requests", MOE_PREDICT_BY_REQUESTS, 1, true, false},
    {"gate-next", MOE_PREDICT_BY_GATE, 1, false, false},
    {"gate-next,token", MOE_PREDICT_BY_GATE, 1, false, true},
    {"gate-ahead", MOE_PREDICT_BY_GATE, 3, true, false},
    {"gate-residual", MOE_PREDICT_BY_RESIDUAL, 1, true, false},
    {"gate-attention", MOE_PREDICT_BY_ATTENTION, 1, false, false},
    {"gate-attention-before", MOE_PREDICT_BY_ATTENTION_BEFORE, 1, false, false},
};

static bool parse_predict(const char *text, struct moe_strategy *s)
{
    const char *arg;
    for (size_t i = 0; i < sizeof predictors / sizeof predictors[0]; i++) {
        if (!is_word(text, predictors[i].word, &arg))
            continue;
        uint32_t depth = predictors[i].depth;
        if (arg && (!predictors[i].takes_depth || !part_count(arg, 1, MOE_MAX_DEPTH, &depth)))
            return false;
        s->predict = predictors[i].by;
        s->depth = depth;
        s->first_by_token = predictors[i].first_by_token;
        return true;
    }
    return false;
}

static void write_predict(const struct moe_strategy *s, char *out, size_t size)
{
    for (size_t i = 0; i < sizeof predictors / sizeof predictors[0]; i++) {
        if (predictors[i].by != s->predict || predictors[i].first_by_token != s->first_by_token)
            continue;
        if (predictors[i].takes_depth)
            snprintf(out, size, "%s:%u", predictors[i].word, s->depth);
        else
            snprintf(out, size, "%s", predictors[i].word);
        if (predictors[i].depth == s->depth)
            return;
    }
}

static bool parse_limit(const char *text, struct moe_prefetch_limits *limits)
{
    static const char *const words[] = {"percentile",   "count", "slack",
                                        "until-router", "all",   "measured"};
    const char *arg;
    int word = find_word(words, 6, text, &arg);
    bool needs_arg = word == 0 || word == 1, takes_arg = needs_arg || word == 2;
    if ((needs_arg && !arg) || (arg && !takes_arg))
        return false;
    switch (word) {
    case 0:
        return moe_parse_double(arg, &limits->percentile) && limits->percentile > 0 &&
               limits->percentile < 100;
    case 1:
        return part_count(arg, 1, UINT32_MAX, &limits->count);
    case 2:
        limits->slack = true;
        return !arg || part_count(arg, 1, UINT32_MAX, &limits->slack_least);
    case 3:
        return limits->until_router = true;
    case 4:
        return limits->top_k = true;
    case 5:
        return limits->measured = true;
    default:
        return false;
    }
}

static bool parse_prefetch(const char *text, struct moe_strategy *s)
{
    struct moe_prefetch_limits limits = {0};
    char item[64];
    bool ok = true;
    if (strcmp(text, "none") != 0)
        while (ok && text)
            ok = next_item(&text, item) && parse_limit(item, &limits);
    if (ok)
        s->prefetch = limits;
    return ok;
}

static void write_prefetch(const struct moe_strategy *s, char *out, size_t size)
{
    const struct moe_prefetch_limits *p = &s->prefetch;
    char number[32], percentile[48] = "", count[32] = "", least[16] = "";
    if (p->percentile > 0) {
        number_text(p->percentile, number, sizeof number);
        snprintf(percentile, sizeof percentile, ",percentile:%s", number);
    }
    if (p->count)
        snprintf(count, sizeof count, ",count:%u", p->count);
    if (p->slack && p->slack_least)
        snprintf(least, sizeof least, ":%u", p->slack_least);
    char all[MOE_PART_TEXT_BYTES];
    snprintf(all, sizeof all, "%s%s%s%s%s%s%s", percentile, count, p->slack ? ",slack" : "", least,
             p->until_router ? ",until-router" : "", p->top_k ? ",all" : "",
             p->measured ? ",measured" : "");
    snprintf(out, size, "%s", all[0] ? all + 1 : "none");
}

/* Tokens: of less a use is forgotten before the next one. */
static const double LEAST_HALF_LIFE = 0.1, MOST_HALF_LIFE = 1e6;

static bool parse_cache(const char *text, struct moe_strategy *s)
{
    const char *arg = strchr(text, ':');
    char name[MOE_PART_TEXT_BYTES];
    double half_life = 0;
    snprintf(name, sizeof name, "%.*s", (int)(arg ? arg - text : (long)strlen(text)), text);
    const struct moe_policy_ops *policy = moe_policy_find(name);
    if (!policy && strcmp(text, "none") != 0)
        return false;
    if (arg && (policy != &moe_policy_lrfu || !moe_parse_double(arg + 1, &half_life) ||
                !(half_life >= LEAST_HALF_LIFE && half_life <= MOST_HALF_LIFE)))
        return false;
    s->cache = policy;
    s->half_life = half_life;
    return true;
}

static void write_cache(const struct moe_strategy *s, char *out, size_t size)
{
    char half_life[64];
    if (!s->cache || !(s->half_life > 0)) {
        snprintf(out, size, "%s", s->cache ? s->cache->name : "none");
        return;
    }
    number_text(s->half_life, half_life, sizeof half_life);
    snprintf(out, size, "%s:%s", s->cache->name, half_life);
}

static bool parse_weights(const char *text, struct moe_strategy *s)
{
    double weights[MOE_HOBBIT_WEIGHTS] = {0}, sum = 0;
    char item[64];
    if (strcmp(text, "default") != 0) {
        for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++) {
            if (!next_item(&text, item) || !moe_parse_double(item, &weights[i]) || weights[i] < 0)
                return false;
            sum += weights[i];
        }
        if (text || !(sum > 0) || !isfinite(sum))
            return false;
        if (fabs(sum - 1) > 1e-12) /* weights that sum to 1 stay exactly as they are */
            for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
                weights[i] /= sum;
    }
    memcpy(s->weights, weights, sizeof weights);
    return true;
}

static void write_weights(const struct moe_strategy *s, char *out, size_t size)
{
    char w[MOE_HOBBIT_WEIGHTS][32];
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        number_text(s->weights[i], w[i], sizeof w[i]);
    if (moe_strategy_weights(s))
        snprintf(out, size, "%s,%s,%s,%s", w[0], w[1], w[2], w[3]);
    else
        snprintf(out, size, "default");
}

static const char *const allocations[] = {"global", "per-layer", "shallow", "frequency"};

static bool parse_alloc(const char *text, struct moe_strategy *s)
{
    const char *arg;
    uint32_t boundary = 0;
    int word = find_word(allocations, 4, text, &arg);
    if (word < 0 || (arg && word != MOE_ALLOC_SHALLOW))
        return false;
    if (word == MOE_ALLOC_SHALLOW && (!arg || strcmp(arg, "auto") == 0))
        boundary = MOE_SHALLOW_AUTO;
    else if (arg && !part_count(arg, 0, MOE_SHALLOW_AUTO - 1, &boundary))
        return false;
    s->alloc = (enum moe_alloc)word;
    s->boundary = boundary;
    s->boundary_from = MOE_DECIDED_BY_NAME;
    return true;
}

static void write_alloc(const struct moe_strategy *s, char *out, size_t size)
{
    if (s->alloc == MOE_ALLOC_SHALLOW && s->boundary != MOE_SHALLOW_AUTO)
        snprintf(out, size, "shallow:%u", s->boundary);
    else
        snprintf(out, size, "%s", allocations[s->alloc]);
}

static const char *const initials[] = {"empty", "frequency", "layerwise", "encoder-first"};

static bool parse_init(const char *text, struct moe_strategy *s)
{
    const char *arg;
    int word = find_word(initials, 4, text, &arg);
    if (word < 0 || arg)
        return false;
    s->init = (enum moe_init)word;
    return true;
}

static void write_init(const struct moe_strategy *s, char *out, size_t size)
{
    snprintf(out, size, "%s", initials[s->init]);
}

/* An absent expert's place and precision, in any order; by default it is loaded at the best one. */
enum { ON_LOAD = 0, ON_COMPUTE_HOST, ON_OR_LOAD, ON_LOAD_LOW, ON_EMERGENCY, N_ON_MISS };
static const char *const misses[N_ON_MISS] = {"load", "compute-host", "or-load", "load-low",
                                              "emergency"};

static bool parse_on_miss(const char *text, struct moe_strategy *s)
{
    char item[64];
    const char *arg;
    bool has[N_ON_MISS] = {false}, named = false;
    double high_up_to = 0.6; /* HOBBIT 3.2 */
    while (text) {
        int word = next_item(&text, item) ? find_word(misses, N_ON_MISS, item, &arg) : -1;
        bool automatic = word == ON_LOAD_LOW && (!arg || strcmp(arg, "auto") == 0);
        if (word < 0 || has[word] ||
            (arg && !automatic &&
             (word != ON_LOAD_LOW || !moe_parse_double(arg, &high_up_to) || high_up_to < 0 ||
              high_up_to > 1)))
            return false;
        named |= arg && !automatic;
        has[word] = true;
    }
    if ((has[ON_LOAD] && has[ON_COMPUTE_HOST]) || (has[ON_LOAD_LOW] && has[ON_EMERGENCY]) ||
        (has[ON_OR_LOAD] && !has[ON_COMPUTE_HOST]))
        return false;
    s->miss_place = has[ON_COMPUTE_HOST] ? MOE_MISS_COMPUTE_HOST : MOE_MISS_LOAD;
    s->miss_precision = has[ON_LOAD_LOW]    ? MOE_MISS_BY_SCORE
                        : has[ON_EMERGENCY] ? MOE_MISS_EMERGENCY
                                            : MOE_MISS_BEST;
    s->high_up_to = has[ON_LOAD_LOW] ? high_up_to : 0;
    s->by_scores = has[ON_LOAD_LOW] && !named;
    s->thresholds_from = MOE_DECIDED_BY_NAME;
    s->host_falls_back = has[ON_OR_LOAD];
    return true;
}

/* "load" is written only by itself: beside a precision it goes without saying. */
static void write_on_miss(const struct moe_strategy *s, char *out, size_t size)
{
    char number[32], precision[64] = "";
    number_text(s->high_up_to, number, sizeof number);
    if (s->miss_precision == MOE_MISS_BY_SCORE)
        snprintf(precision, sizeof precision, ",%s:%s", misses[ON_LOAD_LOW],
                 s->by_scores ? "auto" : number);
    else if (s->miss_precision == MOE_MISS_EMERGENCY)
        snprintf(precision, sizeof precision, ",%s", misses[ON_EMERGENCY]);
    if (s->miss_place == MOE_MISS_COMPUTE_HOST)
        snprintf(out, size, "%s%s%s%s", misses[ON_COMPUTE_HOST], s->host_falls_back ? "," : "",
                 s->host_falls_back ? misses[ON_OR_LOAD] : "", precision);
    else
        snprintf(out, size, "%s", precision[0] ? precision + 1 : misses[ON_LOAD]);
}

static bool parse_skip_below(const char *text, struct moe_strategy *s)
{
    double share = 0.1; /* HOBBIT 3.2 */
    bool by_scores = strcmp(text, "auto") == 0;
    if (!by_scores && (!moe_parse_share(text, &share) || share > 1))
        return false;
    s->skip_below = share;
    s->skip_by_scores = by_scores;
    return true;
}

static void write_skip_below(const struct moe_strategy *s, char *out, size_t size)
{
    if (s->skip_by_scores || s->skip_below == 0)
        snprintf(out, size, "%s", s->skip_by_scores ? "auto" : "0");
    else
        part_share_text(s->skip_below, out, size);
}

/* "0.5", or "0.5:2" where more than the strongest expert stays. */
static bool parse_prefer_cached(const char *text, struct moe_strategy *s)
{
    char number[64];
    size_t n = strcspn(text, ":");
    double lambda = 0;
    uint32_t keeps = 1;
    bool by_map = strcmp(text, "auto") == 0;
    if (n >= sizeof number)
        return false;
    memcpy(number, text, n);
    number[n] = 0;
    if (!by_map && (!moe_parse_double(number, &lambda) || !(lambda >= 0) || !isfinite(lambda)))
        return false;
    if (text[n] && !part_count(text + n + 1, 1, MOE_MAX_TOP_K, &keeps))
        return false;
    s->prefer = lambda;
    s->prefer_keeps = lambda > 0 ? keeps : 0;
    s->prefer_by_map = by_map;
    return true;
}

static void write_prefer_cached(const struct moe_strategy *s, char *out, size_t size)
{
    char number[32], keeps[16] = "";
    number_text(s->prefer, number, sizeof number);
    if (s->prefer_keeps > 1)
        snprintf(keeps, sizeof keeps, ":%u", s->prefer_keeps);
    snprintf(out, size, "%s%s", s->prefer_by_map ? "auto" : number, s->prefer_by_map ? "" : keeps);
}

static const char *const prefills[] = {"routed-order", "popularity", "hybrid"};
static const char OR_POPULARITY[] = ",or-popularity";

static bool parse_prefill(const char *text, struct moe_strategy *s)
{
    char first[64];
    const char *rest = text, *arg;
    if (!next_item(&rest, first))
        return false;
    int word = find_word(prefills, 3, first, &arg);
    bool hybrid = word == MOE_PREFILL_HYBRID;
    double share = hybrid ? 0.25 : 0; /* Fate 4.5 */
    if (word < 0 || (rest && (!hybrid || strcmp(rest, OR_POPULARITY + 1) != 0)) ||
        (arg && (!hybrid || !moe_parse_share(arg, &share) || share > 1)))
        return false;
    s->prefill = (enum moe_prefill)word;
    s->low_share = share;
    s->prefill_falls_back = rest != NULL;
    return true;
}

static void write_prefill(const struct moe_strategy *s, char *out, size_t size)
{
    char share[32];
    part_share_text(s->low_share, share, sizeof share);
    bool hybrid = s->prefill == MOE_PREFILL_HYBRID;
    snprintf(out, size, "%s%s%s%s", prefills[s->prefill], hybrid ? ":" : "", hybrid ? share : "",
             s->prefill_falls_back ? OR_POPULARITY : "");
}

static const struct part_codec part_predict = {parse_predict, write_predict};
static const struct part_codec part_prefetch = {parse_prefetch, write_prefetch};
static const struct part_codec part_cache = {parse_cache, write_cache};
static const struct part_codec part_cache_weights = {parse_weights, write_weights};
static const struct part_codec part_alloc = {parse_alloc, write_alloc};
static const struct part_codec part_init = {parse_init, write_init};
static const struct part_codec part_on_miss = {parse_on_miss, write_on_miss};
static const struct part_codec part_skip_below = {parse_skip_below, write_skip_below};
static const struct part_codec part_prefer_cached = {parse_prefer_cached, write_prefer_cached};
static const struct part_codec part_prefill = {parse_prefill, write_prefill};

/* ---- Shallow layers and deep ones ---- */

/* Relative differences below this are rounding. */
static const double ROUNDING = 1e-9;

/* Accuracies of layers; below 0: not known. */
struct accuracies {
    double (*at)(const void *of, uint32_t layer);
    const void *of;
};

static double known(const struct accuracies *a, uint32_t layer)
{
    double accuracy = a->at(a->of, layer);
    return accuracy > 0 ? accuracy : 0;
}

static uint32_t find_boundary(const struct accuracies *a, uint32_t n_layers)
{
    double total = 0, before = 0, best = 0;
    uint32_t first = 0;
    while (first < n_layers && a->at(a->of, first) < 0)
        first++;
    uint32_t n_known = n_layers - first, boundary = n_known ? first : 0;
    for (uint32_t i = first; i < n_layers; i++)
        total += known(a, i);
    for (uint32_t n = 1; n < n_known; n++) {
        before += known(a, first + n - 1);
        double n_after = n_known - n, after = total - before;
        double rise = after / n_after - before / n;
        /* How much smaller the sum of squares is with two means than with one. */
        double gain = rise * rise * n * n_after / n_known;
        if (rise > ROUNDING && gain > best * (1 + ROUNDING)) {
            best = gain;
            boundary = first + n;
        }
    }
    return boundary;
}

static double in_list(const void *of, uint32_t layer)
{
    return ((const double *)of)[layer];
}

uint32_t moe_boundary(const double *accuracy, uint32_t n_layers)
{
    return find_boundary(&(struct accuracies){in_list, accuracy}, n_layers);
}

/* ---- Of statistics ---- */

static double accuracy_at(const struct moe_statistics *s, enum moe_predictor predictor,
                          uint32_t layer)
{
    double share = moe_figure_accuracy(s, layer, predictor).in_k;
    return isnan(share) ? -1 : share;
}

/* Of the decoder's layers, counted from its first. */
static double by_gate(const void *of, uint32_t layer)
{
    const struct moe_statistics *s = of;
    return accuracy_at(s, MOE_PREDICT_GATE_1, s->shape.n_encoder + layer);
}

uint32_t moe_boundary_of_statistics(const struct moe_statistics *s)
{
    uint32_t n_layers = s->shape.n_layers - s->shape.n_encoder;
    bool any = false;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        any |= by_gate(s, layer) >= 0;
    return any ? find_boundary(&(struct accuracies){by_gate, s}, n_layers) : UINT32_MAX;
}

void moe_layer_accuracies(const struct moe_statistics *s, enum moe_predictor predictor,
                          double *accuracy)
{
    for (uint32_t layer = 0; layer < s->shape.n_layers; layer++)
        accuracy[layer] = accuracy_at(s, predictor, layer);
}
