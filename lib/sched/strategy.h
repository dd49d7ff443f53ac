/*
 * Strategies: named presets, each a choice of parts. Every ablation is one argument: the strategy,
 * then the parts that differ from it, "fate+cache=lrfu+alloc=per-layer".
 *
 * Plain data: the scheduler (scheduler.h) and what it calls (select.h, placement.h, the
 * policies) act on it; the simulator drives the same code. strategy.c has the table of strategies
 * and the rules of what goes together, the table of parts, the values of each part as text, whole
 * strategies as text.
 *
 * Sources: Fate 4 and 5.1, HOBBIT 3, DAOP IV, EdgeMoE III-C, Fiddler as DAOP and HOBBIT describe
 * it; MoE-Infinity (arXiv 2401.14361), MoE-Offloading (arXiv 2312.17238), AdapMoE (arXiv
 * 2408.10284), Mixture of Cache-Conditional Experts (arXiv 2412.00099).
 */
#ifndef MOE_SCHED_STRATEGY_H
#define MOE_SCHED_STRATEGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "cache/link.h"
#include "cache/policy.h"
#include "profile/statistics.h"

/* predict: where the scores of later layers come from. */
enum moe_predict_by {
    MOE_PREDICT_BY_NOTHING = 0,
    MOE_PREDICT_BY_PREVIOUS, /* the previous token's experts in that layer */
    MOE_PREDICT_BY_TOKEN,    /* those of the same token where it was used last */
    MOE_PREDICT_BY_PATH,     /* path statistics: pairs for top-k routers, keys for top-1 */
    MOE_PREDICT_BY_KEYS,     /* path statistics: keys of two rank-1 experts, whatever the router */
    MOE_PREDICT_BY_REQUESTS, /* the earlier request whose choices are most like this one's */
    MOE_PREDICT_BY_GATE,     /* that layer's router on this layer's gate input */
    MOE_PREDICT_BY_RESIDUAL, /* ... on this layer's residual stream under that layer's norm */
    /* Before a layer's attention, on its input: */
    MOE_PREDICT_BY_ATTENTION,        /* the router of the same layer (Fate table 1, position 1) */
    MOE_PREDICT_BY_ATTENTION_BEFORE, /* ... of the next one (position 3) */
};

/* alloc: how a pool's slots are divided among the layers. */
enum moe_alloc {
    MOE_ALLOC_GLOBAL = 0, /* not at all: all layers share them */
    MOE_ALLOC_PER_LAYER,  /* equally; the first layers take the remainder */
    MOE_ALLOC_SHALLOW,    /* the first L layers whole, the rest equally (Fate 4.4) */
    MOE_ALLOC_FREQUENCY,  /* equally; the remainder by frequency (DAOP IV-A) */
};

/* init: what the cache holds before the first token. */
enum moe_init {
    MOE_INIT_EMPTY = 0,
    MOE_INIT_FREQUENCY, /* the most frequent experts of a profile */
    MOE_INIT_LAYERWISE, /* layer by layer from the first, in the order of their ids */
    MOE_INIT_ENCODER,   /* so the encoder's, then the most frequent of the decoder's (EdgeMoE
                           III-C2); without an encoder the most frequent */
};

/* on-miss: where a routed expert that is absent is computed ... */
enum moe_miss_place {
    MOE_MISS_LOAD = 0,     /* on the device, which loads it */
    MOE_MISS_COMPUTE_HOST, /* on the host, which has it in its memory */
};
/* ... and, whatever the place, at which precision. */
enum moe_miss_precision {
    MOE_MISS_BEST = 0,
    MOE_MISS_BY_SCORE,  /* a lower one where the score s (select.h) is above high_up_to */
    MOE_MISS_EMERGENCY, /* a lower one always (Fate 5.3) */
};

/* prefill: the experts of a prompt. */
enum moe_prefill {
    MOE_PREFILL_ROUTED = 0, /* in the order of their ids */
    MOE_PREFILL_POPULARITY, /* most rows first, those present before the others (Fate 4.3, fig. 6)
                             */
    MOE_PREFILL_HYBRID,     /* the same, the least popular share at low precision (Fate 4.5) */
};

/* prefetch: which of the predicted experts are loaded. Limits combine: all must hold. */
struct moe_prefetch_limits {
    double percentile; /* score above this percentile of the layer's scores; 0: no limit */
    uint32_t count;    /* at most this many loads per layer; 0: no limit */
    bool slack;        /* at most as many as can be loaded before the next router: n = T / t_expert
                          (Fate 4.3), none where a load takes longer than a layer */
    uint32_t slack_least; /* ... but at least this many */
    bool until_router;    /* one after the other until the router has chosen (EdgeMoE III-C) */
    bool top_k;           /* only the k best: "all" the predicted experts */
    bool measured;        /* stops as long as measurements say that it costs more than it saves */
};

enum { MOE_MAX_DEPTH = 8 };

/* Layer numbers that depend on the model: moe_strategy_fit replaces them. */
#define MOE_SHALLOW_AUTO UINT32_MAX
enum { MOE_PRECALCULATE_AUTO = 0 };

/* What decided L of `shallow`, or T1 and T2. */
enum moe_decided_by {
    MOE_DECIDED_BY_NAME = 0,   /* the strategy names it */
    MOE_DECIDED_BY_STATISTICS, /* each layer's accuracy of prediction; the scores */
    MOE_DECIDED_BY_PAPER,      /* an eighth of the layers; Mixtral's: no statistics say more */
};

struct moe_strategy {
    const char *name; /* of the table's strategy that it began as; NULL: none */
    const char *describe;
    bool resident;      /* everything in memory from the start; the parts have no effect */
    bool needs_profile; /* needs statistics (paths, frequencies). This and the next two: derived
                           from the parts by moe_strategy_settle */
    bool needs_low;     /* needs a second, lower precision in the pack */
    bool needs_host;    /* needs a second device */

    enum moe_predict_by predict;
    uint32_t depth; /* layers ahead; beyond the next one only while everything predicted so far is
                       present (HOBBIT fig. 8) */
    bool first_by_token; /* a pass's first layer is predicted by its tokens, since `predict` says
                            nothing of it */
    double assumed; /* its accuracy where a trace is replayed, which says what to predict; 0: it
                       predicts as it does */
    struct moe_prefetch_limits prefetch;
    bool protect;        /* predicted experts are not evicted (HOBBIT 3.3) */
    bool protect_tokens; /* nor are those that a decoded pass's tokens, drafted ones too, chose
                            where they were used last, until their layers have run */
    bool stream; /* every layer is loaded whole, in order, whatever its router chooses (STI, as
                    EdgeMoE IV-A describes it) */

    const struct moe_policy_ops *cache; /* NULL: nothing is kept */
    double half_life; /* of a use, in tokens, where the cache is lrfu; 0: the policy's own */
    double weights[MOE_HOBBIT_WEIGHTS]; /* of hobbit's priority, with sum 1; all 0: the policy's own
                                           (moe_strategy_weights) */
    bool keep_records;                  /* at the end of a sequence (HOBBIT resets them) */
    double low_pool;                    /* share of the cache's bytes for low-precision experts */
    enum moe_alloc alloc;
    uint32_t
        boundary; /* L of `shallow`, of the decoder's layers, 0: none is; or MOE_SHALLOW_AUTO */
    enum moe_decided_by boundary_from;
    enum moe_init init;
    uint32_t buffer;     /* experts in the cache where no size is given; 0: all that fit */
    uint32_t cache_bits; /* keeps experts at this bitwidth, where the pack has it, when memory does
                            not hold all of them at a better one (Fate 4.5); 0: the best */

    enum moe_miss_place miss_place;
    enum moe_miss_precision miss_precision;
    double high_up_to;   /* by score: T1, high precision up to this score (HOBBIT 3.2) */
    bool by_scores;      /* T1 follows from the scores of statistics, until moe_strategy_fit has set
                            it; high_up_to is what it is without any */
    double skip_below;   /* 1 - T2: absent experts whose score is above T2 are skipped; 0: none */
    bool skip_by_scores; /* ... and the same of T2 */
    enum moe_decided_by thresholds_from; /* of those that moe_strategy_fit has set */
    double gate_below; /* a decoded token leaves out chosen experts, present or not, whose score is
                          above 1 - this, and gives their weight to the others (AdapMoE); 0: none */
    double prefer;     /* a decoded token's scores of cached experts are raised by this many
                          spreads (select.h); 0: not */
    uint32_t prefer_keeps;  /* ... and this many of its strongest experts stay, at least 1 */
    bool prefer_by_map;     /* ... both as a bit map says (moe_calibration_apply) */
    bool host_decodes_only; /* compute-host: a prompt's absent experts are loaded all the same
                               (HOBBIT 5.4); without effect otherwise */
    bool host_falls_back;   /* compute-host: where there is no second device, an absent expert
                               passes through a working slot */

    enum moe_prefill prefill;
    double low_share;        /* p of `hybrid` */
    bool prefill_falls_back; /* `hybrid` becomes popularity where there is no second precision or
                                results must not change (moe_strategy_fall_back) */
    bool prefill_swap;       /* DAOP's algorithm 1 (placement.h) */

    bool precalculate;          /* DAOP IV-C */
    uint32_t precalculate_from; /* MoE layer of the decoder from which on predictions replace the
                                   router's choice, at least 1, or MOE_PRECALCULATE_AUTO */
    bool degrade;
    uint32_t degrade_most; /* replaces at most this many experts of a layer; 0: no limit */
};

/* ---- The table of strategies ---- */

/* The strategy of that name, not yet settled; false: there is none. ("auto" is not in the table:
 * engine/engine.h resolves it.) */
bool moe_strategy_find(const char *name, struct moe_strategy *out);
const char *moe_strategy_name_at(int i); /* NULL past the end */

/* ---- Parts ---- */

/* In the order in which they are applied: flags before what they need. */
enum moe_part {
    MOE_PART_PREDICT = 0,
    MOE_PART_ASSUME_PREDICTION,
    MOE_PART_PREFETCH,
    MOE_PART_PROTECT,
    MOE_PART_PROTECT_TOKENS,
    MOE_PART_STREAM,
    MOE_PART_CACHE,
    MOE_PART_CACHE_WEIGHTS,
    MOE_PART_KEEP_RECORDS,
    MOE_PART_LOW_POOL,
    MOE_PART_ALLOC,
    MOE_PART_INIT,
    MOE_PART_BUFFER,
    MOE_PART_CACHE_BITS,
    MOE_PART_ON_MISS,
    MOE_PART_SKIP_BELOW,
    MOE_PART_GATE_BELOW,
    MOE_PART_PREFER_CACHED,
    MOE_PART_HOST_DECODES_ONLY,
    MOE_PART_PREFILL,
    MOE_PART_PREFILL_SWAP,
    MOE_PART_PRECALCULATE,
    MOE_PART_PRECALCULATE_FROM,
    MOE_PART_DEGRADE,
    MOE_PART_DEGRADE_MOST,
    MOE_N_PARTS
};

enum { MOE_PART_TEXT_BYTES = 192 };

/* All that is said about a part, in one place: options, --strategy help and "+part=value" are made
 * of it. */
struct moe_strategy_part {
    const char *name;    /* "on-miss": of the option --on-miss, and in "lru+on-miss=load-low" */
    const char *arg;     /* how help calls its value: "HOW"; NULL: a flag, whose values are "on" and
                            "off", the option without an argument being "on" */
    const char *help;    /* one line */
    const char *off;     /* the value that switches it off, which it has in a strategy of zeros */
    const char *inexact; /* the values that may change results (exactness.h), with commas:
                            "load-low,emergency"; "any": all but `off`; NULL: none */
    const char *alone;   /* the value that the name alone stands for in a strategy's text; NULL:
                            "on" */
};
const struct moe_strategy_part *moe_strategy_part_at(enum moe_part part);
bool moe_strategy_part_find(const char *name, enum moe_part *out);
/* The values it takes, for people: "global, per-layer, shallow[:L|:auto] or frequency". */
void moe_strategy_part_values(enum moe_part part, char out[MOE_PART_TEXT_BYTES]);

/* Sets one part. false: `why` says what is wrong with the text, in the form that follows the text
 * in quotes ("is not ..."); *s is unchanged. */
bool moe_strategy_set(struct moe_strategy *s, enum moe_part part, const char *text,
                      struct moe_err *why);
/* The part's value as a text that moe_strategy_set turns into exactly the same. */
void moe_strategy_part_text(const struct moe_strategy *s, enum moe_part part,
                            char out[MOE_PART_TEXT_BYTES]);
bool moe_strategy_has(const struct moe_strategy *s, enum moe_part part); /* not off */
/* Whether the part, as it is set, may change results on some pack; what it comes to on one, and all
 * else that may: exactness.h. */
bool moe_strategy_part_inexact(const struct moe_strategy *s, enum moe_part part);

/* ---- Whole strategies ---- */

/* Switches off the parts that have no effect, because others that they need are off or different,
 * but those of the set `named` (bits 1 << part): these the user asked for, and moe_strategy_settle
 * says what is wrong with them. */
void moe_strategy_drop_idle(struct moe_strategy *s, uint32_t named);

/* Derives the needs from the parts, and refuses combinations that make no sense
 * (MOE_ERR_USAGE, with the reason): degrade without precalculate, a prediction that nothing uses.
 */
int moe_strategy_settle(struct moe_strategy *s, struct moe_err *err);

/* Does without a second precision where the strategy allows that: a hybrid prefill that may fall
 * back becomes popularity. For a settled strategy, which stays settled. */
void moe_strategy_fall_back(struct moe_strategy *s);
/* Does without a second device where the strategy allows that: absent experts are loaded, at the
 * same precision as on the host. For a settled strategy, which stays settled; true: it changed. */
bool moe_strategy_load_instead(struct moe_strategy *s);

/* Replaces MOE_SHALLOW_AUTO, MOE_PRECALCULATE_AUTO and T1 and T2 by_scores for a model of n_layers
 * MoE layers, those of its decoder: by the boundary that its statistics show (Fate 4.4; NULL, of
 * another number of layers, or without predictions: by an eighth of the layers, rounded up, as L =
 * 3 is of Qwen1.5-MoE's 24), by 5/32 of them, rounded up (DAOP's public code begins at 5 of
 * Mixtral's 32), and so that of all activations 67% are high, 30% low and 3% skipped, as HOBBIT
 * splits Mixtral's (3.2; NULL, or without scores: by Mixtral's thresholds). T1 is never above T2:
 * the one that is named stays. */
void moe_strategy_fit(struct moe_strategy *s, uint32_t n_layers,
                      const struct moe_statistics *statistics);

/* Of a fitted strategy, in a few words for people: what decided L ("from statistics"); NULL where
 * it has none, or names it. */
const char *moe_strategy_boundary_from(const struct moe_strategy *s);
/* ... what decided T1 and T2, or the one of them that is not named. */
const char *moe_strategy_thresholds_from(const struct moe_strategy *s);

/* ---- Strategies as text ---- */

enum { MOE_STRATEGY_BRIEF = 256 }; /* bytes, NUL included */

/* Reads a strategy and the parts that differ from it: "fate+cache=lrfu"; a flag that is on needs no
 * value: "lru+protect". The commas of a value may be written as semicolons, so that commas can
 * separate strategies: "lru,fate+prefetch=percentile:75;slack". *out is not settled, and keeps
 * parts that have no effect; *named gets the parts in the text (bits 1 << part). MOE_ERR_USAGE. */
int moe_strategy_parse(const char *text, struct moe_strategy *out, uint32_t *named,
                       struct moe_err *err);

/* The text, without commas, that moe_strategy_parse turns into the same strategy, cut off where
 * MOE_STRATEGY_BRIEF bytes do not suffice. s->name is of the table. */
void moe_strategy_brief(const struct moe_strategy *s, char out[MOE_STRATEGY_BRIEF]);
/* Names it by the strategy of the table that it differs from in the fewest parts, where one that
 * only one of both has counts twice; among equals by its own, then the first. */
void moe_strategy_name_nearest(struct moe_strategy *s);

/* The parts that are not off as options, and the cache always, one line without its newline:
 * "--predict gate-next --prefetch percentile:75,slack --cache arc ...". As options on top of the
 * strategy lru they give the same strategy again; for resident: "--strategy resident". */
void moe_strategy_describe(const struct moe_strategy *s, struct moe_buf *out);

/* Whether some experts are taken at a lower precision, where the pack has one. */
static inline bool moe_strategy_takes_low(const struct moe_strategy *s)
{
    return s->needs_low || s->prefill == MOE_PREFILL_HYBRID;
}

/* Whether a pass's first layer is predicted, which only its tokens can. */
static inline bool moe_strategy_predicts_first(const struct moe_strategy *s)
{
    return s->predict == MOE_PREDICT_BY_TOKEN || s->first_by_token;
}

/* Whether it goes by what tokens chose where they were used last. */
static inline bool moe_strategy_recalls(const struct moe_strategy *s)
{
    return moe_strategy_predicts_first(s) || s->protect_tokens;
}

/* How many predicted experts of a layer may be replaced. */
static inline uint32_t moe_strategy_replaces(const struct moe_strategy *s)
{
    return !s->degrade ? 0 : s->degrade_most ? s->degrade_most : UINT32_MAX;
}

/* Where routers stand before attention: whether predictions, too, need nothing of it. Routers ahead
 * are asked about the stream behind it, which says more of what they will take in than the stream
 * before (tests/bench/RESULTS.md), and pre-calculation computes on what experts take in. */
static inline bool moe_strategy_predicts_early(const struct moe_strategy *s)
{
    return s->predict != MOE_PREDICT_BY_RESIDUAL && s->predict != MOE_PREDICT_BY_GATE &&
           !s->precalculate;
}

/* What loads cost under the strategy: prefetches that stop once the router has chosen are asked for
 * one after the other. */
static inline struct moe_link_costs moe_strategy_loads(const struct moe_strategy *s,
                                                       struct moe_link_costs costs)
{
    if (s->prefetch.until_router && costs.prefetches_in_flight > 1)
        costs.prefetches_in_flight = 1;
    return costs;
}

/* The weights for struct moe_policy_params; NULL: the policy's own. */
static inline const double *moe_strategy_weights(const struct moe_strategy *s)
{
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        if (s->weights[i] != 0)
            return s->weights;
    return NULL;
}

/*
 * Boundary: how many of the first layers are shallow (Fate 4.4). Pure.
 */

/* Fate reads L off a figure of the layers' prediction accuracies: shallow layers are those before
 * the step. Here it is the split whose two means explain the accuracies best (least squares), among
 * those whose first mean is the lower one. Layers whose accuracy is not known (below 0) at the
 * beginning, since nothing is before the first, are shallow whatever the others are, and take no
 * part in that; further on they count as 0. 0: there is no step, or nothing is known. accuracy:
 * [n_layers]. */
uint32_t moe_boundary(const double *accuracy, uint32_t n_layers);

/* The same by the accuracies of statistics: of the next layer's router on this layer's gate input,
 * as many experts as are chosen (Fate fig. 7). With an encoder, of the decoder's layers, from its
 * first on. UINT32_MAX: they predicted nothing. */
uint32_t moe_boundary_of_statistics(const struct moe_statistics *s);

/* Each layer's accuracy of a predictor: the share of its experts among as many predicted; -1 where
 * nothing was predicted. accuracy: [n_layers]. */
void moe_layer_accuracies(const struct moe_statistics *s, enum moe_predictor predictor,
                          double *accuracy);

#endif
