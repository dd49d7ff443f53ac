/*
 * Strategies: rows of one table, each a choice of parts. A part is named by an option of its own,
 * so that every ablation is a command line: the row first, then the parts that differ.
 *
 * Plain data: the scheduler (scheduler.h) and what it calls (select.h, precision.h, placement.h,
 * allocate.h, the policies) act on it; the simulator drives the same code. Here are the rows, the
 * parts' texts, and the rules of what goes together.
 *
 * Sources: Fate 4 and 5.1, HOBBIT 3, DAOP IV, EdgeMoE III-C, Fiddler as DAOP and HOBBIT describe
 * it.
 */
#ifndef MOE_SCHED_STRATEGY_H
#define MOE_SCHED_STRATEGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "cache/policy.h"

/* --predict: where the scores of layers to come are from. */
enum moe_predict_by {
    MOE_PREDICT_BY_NOTHING = 0,
    MOE_PREDICT_BY_PREVIOUS, /* the experts of the token before, in that layer */
    MOE_PREDICT_BY_PATH,     /* path statistics: pairs for top-k routers, keys for top-1 */
    MOE_PREDICT_BY_KEYS,     /* path statistics: keys of two rank-1 experts, whatever the router */
    MOE_PREDICT_BY_GATE,     /* that layer's router on this layer's gate input */
    MOE_PREDICT_BY_RESIDUAL, /* ... on this layer's residual stream under that layer's norm */
};

/* --alloc: how a pool's slots are shared out among the layers. */
enum moe_alloc {
    MOE_ALLOC_GLOBAL = 0, /* not at all: one domain */
    MOE_ALLOC_PER_LAYER,  /* equal; the first layers take what is over */
    MOE_ALLOC_SHALLOW,    /* the first L layers whole, the rest equal (Fate 4.4) */
    MOE_ALLOC_FREQUENCY,  /* equal; what is over goes by frequency (DAOP IV-A) */
};

/* --init: what lies in the cache before the first token. */
enum moe_init {
    MOE_INIT_EMPTY = 0,
    MOE_INIT_FREQUENCY, /* the most frequent experts of a profile */
    MOE_INIT_LAYERWISE, /* layer by layer from the first, in the order of their numbers */
};

/* --on-miss */
enum moe_on_miss {
    MOE_MISS_LOAD = 0,
    MOE_MISS_LOAD_LOW,  /* a lower precision where the score s (precision.h) is above high_up_to */
    MOE_MISS_EMERGENCY, /* a lower precision always (Fate 5.3) */
    MOE_MISS_COMPUTE_HOST, /* not loaded: computed where it lies */
};

/* --prefill: experts of a prompt. */
enum moe_prefill {
    MOE_PREFILL_ROUTED = 0, /* in the order of their numbers */
    MOE_PREFILL_POPULARITY, /* falling by rows, those present first (Fate 4.3, fig. 6) */
    MOE_PREFILL_HYBRID,     /* the same; the least popular share at low precision (Fate 4.5) */
};

/* --prefetch: which of the predicted experts are asked for. Limits combine: all must hold. */
struct moe_prefetch_limits {
    double percentile; /* score above this percentile of the layer's scores; 0: no limit */
    uint32_t count;    /* at most so many loads a layer; 0: no limit */
    bool slack;        /* at most what the time to the next router pays for: n = T / t_expert
                          (Fate 4.3) */
    bool until_router; /* one after the other until the router speaks (EdgeMoE III-C) */
    bool top_k;        /* only the k best ("all" the predicted ones) */
    bool measured;     /* stops while it measures that it costs more than it saves */
};

enum { MOE_MAX_DEPTH = 8 };

/* Layers that the model's depth decides: moe_strategy_fit puts numbers in their place. */
enum { MOE_SHALLOW_AUTO = 0, MOE_PRECALCULATE_AUTO = 0 };

struct moe_strategy {
    const char *name; /* of the row it began as; NULL: none */
    const char *describe;
    bool resident;      /* everything in memory from the start; the parts are idle */
    bool needs_profile; /* cannot do without statistics (paths, frequencies): set from the parts by
                           moe_strategy_settle */
    bool needs_low;     /* ... without a second, lower precision in the pack */
    bool needs_host;    /* ... without a second device */
    bool inexact;       /* may change results; likewise */

    enum moe_predict_by predict;
    uint32_t depth; /* layers ahead; deeper than the next only while all predicted is present
                       (HOBBIT fig. 8) */
    struct moe_prefetch_limits prefetch;
    bool protect; /* predicted experts are not evicted (HOBBIT 3.3) */

    const struct moe_policy_ops *cache; /* NULL: nothing is kept */
    double weights[MOE_HOBBIT_WEIGHTS]; /* of hobbit's priority; their sum is 1; all 0: the
                                           policy's own (moe_strategy_weights) */
    bool keep_records;                  /* over the end of a sequence (HOBBIT resets them) */
    double low_pool;                    /* share of the cache's bytes for low-precision experts */
    enum moe_alloc alloc;
    uint32_t boundary; /* L of `shallow`, or MOE_SHALLOW_AUTO */
    enum moe_init init;
    uint32_t buffer;     /* experts in the cache where no size is named; 0: all that
                            fits */
    uint32_t cache_bits; /* keeps experts at this precision, where the pack has it, when memory does
                            not hold all of them at a better one (Fate 4.5); 0: the best */

    enum moe_on_miss on_miss;
    double high_up_to; /* T1: high precision up to this score (HOBBIT 3.2) */
    double skip_below; /* 1 - T2: missing experts whose score is above T2 are left out; 0: none */
    bool host_decodes_only; /* compute-host: a prompt's missing experts are loaded all the same
                               (HOBBIT 5.4); idle otherwise */
    bool host_falls_back;   /* compute-host: where there is no second device, what is missing
                               passes through a working slot */

    enum moe_prefill prefill;
    double low_share;        /* p of `hybrid` */
    bool prefill_falls_back; /* `hybrid` becomes popularity where there is no second precision or
                                results must not change (moe_strategy_fall_back) */
    bool prefill_swap;       /* DAOP's algorithm 1 (placement.h) */

    bool precalculate;          /* DAOP IV-C */
    uint32_t precalculate_from; /* MoE layer from which on predictions replace the router's choice,
                                   at least 1, or MOE_PRECALCULATE_AUTO */
    bool degrade;
};

/* ---- Rows ---- */

/* The row of that name, ready to be settled; false: there is none ("auto" is not a row:
 * engine/engine.h resolves it). */
bool moe_strategy_row(const char *name, struct moe_strategy *out);
const char *moe_strategy_row_name(int i); /* NULL past the end */

/* ---- Parts, each by the argument of its option ---- */

/* In the order in which they are applied: flags before what they need. */
enum moe_part {
    MOE_PART_PREDICT = 0,
    MOE_PART_PREFETCH,
    MOE_PART_PROTECT,
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
    MOE_PART_HOST_DECODES_ONLY,
    MOE_PART_PREFILL,
    MOE_PART_PREFILL_SWAP,
    MOE_PART_PRECALCULATE,
    MOE_PART_PRECALCULATE_FROM,
    MOE_PART_DEGRADE,
    MOE_N_PARTS
};

enum { MOE_PART_TEXT_BYTES = 192 };

/* How a part is called and told. */
struct moe_strategy_part {
    const char *option; /* without its dashes */
    const char *arg;  /* how its argument is called; NULL: a flag, "on" or "off" for this module */
    const char *help; /* one line */
    const char *off;  /* the argument that switches it off: what a strategy of zeros has */
};
const struct moe_strategy_part *moe_strategy_part_at(enum moe_part part);
bool moe_strategy_part_find(const char *option, enum moe_part *out);
/* The arguments it takes, for people: "global, per-layer, shallow[:L] or frequency". */
void moe_strategy_part_words(enum moe_part part, char out[MOE_PART_TEXT_BYTES]);

/* Sets one part. false: `why` says what is wrong with the text, in the form that follows the text
 * in quotes ("is not ..."); *s is as it was. */
bool moe_strategy_set(struct moe_strategy *s, enum moe_part part, const char *text, char why[128]);
/* The part as an argument that moe_strategy_set turns into exactly the same. */
void moe_strategy_part_text(const struct moe_strategy *s, enum moe_part part,
                            char out[MOE_PART_TEXT_BYTES]);
bool moe_strategy_has(const struct moe_strategy *s, enum moe_part part); /* not off */

/* The parts that are not off in the words of their options, and the cache always, one line without
 * its newline: "--predict gate-next --prefetch percentile:75,slack --cache arc ...". As options on
 * top of the row lru they give the same strategy again; for resident: "--strategy resident". */
void moe_strategy_describe(const struct moe_strategy *s, struct moe_buf *out);

/* ---- Whole strategies ---- */

/* Switches off the parts that have lost their use, because others that they need are off or
 * different, but those of the set `named` (bits 1 << part): these the user asked for, and
 * moe_strategy_settle says what is wrong with them. */
void moe_strategy_drop_idle(struct moe_strategy *s, uint32_t named);

/* Derives the needs and `inexact` from the parts, and refuses combinations that make no sense
 * (MOE_ERR_USAGE, with the reason): degrade without precalculate, a prediction nobody uses, ... */
int moe_strategy_settle(struct moe_strategy *s, struct moe_err *err);

/* Whether this part, as it is set, may change results. */
bool moe_strategy_part_inexact(const struct moe_strategy *s, enum moe_part part);

/* What --exact asks of a settled strategy: MOE_ERR_USAGE names the parts that may change results,
 * and the --without that helps. */
int moe_strategy_check_exact(const struct moe_strategy *s, struct moe_err *err);

/* Does without a second precision where the row allows that: hybrid prefill that may fall back
 * becomes popularity. For a settled strategy, which stays settled. */
void moe_strategy_fall_back(struct moe_strategy *s);

/* Puts numbers in the place of MOE_SHALLOW_AUTO and MOE_PRECALCULATE_AUTO for a model of n_layers
 * MoE layers, at least 1: an eighth of them, rounded up (Fate 4.4: L = 3 of Qwen1.5-MoE's 24), and
 * 5/32 of them, rounded up (DAOP's public code begins at 5 of Mixtral's 32). */
void moe_strategy_fit(struct moe_strategy *s, uint32_t n_layers);

/* For struct moe_policy_params: NULL: the policy's own. */
static inline const double *moe_strategy_weights(const struct moe_strategy *s)
{
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        if (s->weights[i] != 0)
            return s->weights;
    return NULL;
}

#endif
