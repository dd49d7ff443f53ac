/*
 * The table of strategies, and which of their parts go together.
 */
#include "sched/strategy.h"

#include <string.h>

#include "sched/boundary.h"

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
        .describe = "caches by fading frequency, predicts the next layer: measured best",
        .predict = MOE_PREDICT_BY_GATE, .depth = 1,
        .prefetch = {.top_k = true},
        .cache = &moe_policy_lrfu,
        .prefill = MOE_PREFILL_POPULARITY,
    }, {
        .name = "host",
        .describe = "pins the most frequent, computes absent ones on the host (Fiddler)",
        .cache = &moe_policy_pinned,
        .init = MOE_INIT_FREQUENCY,
        .miss_place = MOE_MISS_COMPUTE_HOST, .host_falls_back = true,
    }, {
        /* "a caching strategy identical to Fate", and at its precision, so that the two differ in
         * prediction alone (Fate 5.1). */
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
        .low_pool = 0.2, /* 3.4 says no more than that the high pool is "typically larger" */
        .miss_precision = MOE_MISS_BY_SCORE, .high_up_to = 0.6, .skip_below = 0.1, /* 3.2: T1 0.6, T2 0.9 */
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

static bool prefetches(const struct moe_strategy *s)
{
    return moe_strategy_has(s, MOE_PART_PREFETCH);
}

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
        return prefetches(s) || s->precalculate
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
    char why[128];
    bool dropped;
    do { /* dropping one may leave others without effect */
        dropped = false;
        for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
            if (!(named >> part & 1) && is_idle(s, part)) {
                moe_strategy_set(s, part, moe_strategy_part_at(part)->off, why);
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
    if (s->miss_precision == MOE_MISS_BY_SCORE && s->high_up_to > 1 - s->skip_below) {
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
    s->boundary_from = is_found ? MOE_BOUNDARY_STATISTICS : MOE_BOUNDARY_EIGHTH;
}

void moe_strategy_fit(struct moe_strategy *s, uint32_t n_layers,
                      const struct moe_statistics *statistics)
{
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
