/*
 * Strategies: rows of one table, each a choice of parts. A part is named by an option of its own,
 * so that every ablation is a command line: the row first, then the parts that differ.
 *
 * Plain data, no behaviour: the scheduler (scheduler.h) and what it calls (select.h, precision.h,
 * placement.h, allocate.h, the policies) act on it; the simulator drives the same code.
 *
 * Sources: Fate 4 and 5.1, HOBBIT 3, DAOP IV, EdgeMoE III-C, Fiddler as DAOP and HOBBIT describe
 * it.
 */
#ifndef MOE_SCHED_STRATEGY_H
#define MOE_SCHED_STRATEGY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "sched/policy.h"

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

enum { MOE_HOBBIT_WEIGHTS = 4 };
enum moe_hobbit_weight { MOE_WEIGHT_LRU = 0, MOE_WEIGHT_LFU, MOE_WEIGHT_LHU, MOE_WEIGHT_FLD };

enum { MOE_MAX_DEPTH = 8 };

struct moe_strategy {
    const char *name; /* of the row it began as */
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
    double weights[MOE_HOBBIT_WEIGHTS]; /* of hobbit's priority; their sum is 1 */
    bool keep_records;                  /* over the end of a sequence (HOBBIT resets them) */
    double low_pool;                    /* share of the cache's bytes for low-precision experts */
    enum moe_alloc alloc;
    uint32_t boundary; /* L of `shallow` */
    enum moe_init init;
    uint32_t buffer; /* experts in the cache where no size is named; 0: all that
                        fits */

    enum moe_on_miss on_miss;
    double high_up_to; /* T1: high precision up to this score (HOBBIT 3.2) */
    double skip_below; /* 1 - T2: missing experts whose score is above T2 are left out; 0: none */

    enum moe_prefill prefill;
    double low_share; /* p of `hybrid` */
    bool prefill_swap;

    bool precalculate; /* DAOP IV-C */
    uint32_t
        precalculate_from; /* MoE layer from which on predictions replace the router's choice */
    bool degrade;
};

/* The row of that name; false: there is none ("auto" is not a row: run/engine.h resolves it). */
bool moe_strategy_row(const char *name, struct moe_strategy *out);
const char *moe_strategy_row_name(int i); /* NULL past the end */

/* Parts by their options' arguments. false: `why` says what is wrong with the text, in the form
 * that follows the text in quotes ("is not ..."). */
bool moe_strategy_parse_predict(const char *text, struct moe_strategy *s, char why[128]);
bool moe_strategy_parse_prefetch(const char *text, struct moe_strategy *s, char why[128]);
bool moe_strategy_parse_cache(const char *text, struct moe_strategy *s, char why[128]);
bool moe_strategy_parse_weights(const char *text, struct moe_strategy *s, char why[128]);
bool moe_strategy_parse_alloc(const char *text, struct moe_strategy *s, char why[128]);
bool moe_strategy_parse_init(const char *text, struct moe_strategy *s, char why[128]);
bool moe_strategy_parse_on_miss(const char *text, struct moe_strategy *s, char why[128]);
bool moe_strategy_parse_prefill(const char *text, struct moe_strategy *s, char why[128]);

/* Derives the needs and `inexact` from the parts, and refuses combinations that make no sense
 * (MOE_ERR_USAGE, with the reason): degrade without precalculate, a prediction nobody uses, ... */
int moe_strategy_settle(struct moe_strategy *s, struct moe_err *err);

/* The parts in the words of their options, one line without its newline: "--predict gate-next
 * --prefetch percentile:75,slack --cache arc ...". */
void moe_strategy_describe(const struct moe_strategy *s, struct moe_buf *out);

#endif
