/*
 * Plan: how a model runs within a memory budget on a machine, and what was expected of it when the
 * plan was made. The data of moe-plan(5): planner.h makes a plan, moe-run follows it, moe-plan
 * --explain describes it.
 */
#ifndef MOE_PLAN_PLAN_H
#define MOE_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/record.h"
#include "profile/device.h"
#include "sched/exactness.h"
#include "sched/inventory.h"
#include "sched/pace.h"
#include "sched/strategy.h"

enum {
    MOE_PLAN_VERSION = 1,
    MOE_PLAN_MAX_LAYERS = 4096,
    MOE_PLAN_TEXT = 256, /* bytes of a text, NUL included */
    MOE_PLAN_MAX_STEPS = 32,
    MOE_PLAN_MAX_TRIED = 256,
    MOE_PLAN_MAX_LOSSES = 3,
    MOE_PLAN_MAX_ALTERNATIVES = 16,
};

/* Bytes of one memory, the host's or a GPU's, by what they are for. */
struct moe_plan_memory {
    uint64_t total; /* the budget; 0: none, only the experts' share was named */
    uint64_t program, dense, kv, work;
    uint64_t experts; /* all slots, and the buffers of loading */
    uint64_t lent;    /* of slots, to passes over a prompt, at most */
    uint64_t kv_lent; /* of slots, to the KV cache as texts grow, at most; kv is what it has of its
                         own */
    uint64_t floor;   /* the smallest budget that works */
    uint64_t token;   /* experts that one token visits */
    uint64_t all;     /* all experts */
    uint32_t context, batch;
};

/* Slots of one size class. */
struct moe_plan_pool {
    uint64_t slot_bytes;
    uint32_t n_cache, n_working;
    uint32_t *per_layer; /* [n_layers], sums to n_cache; NULL: all layers share n_cache. Owned. */
};

/* One MoE layer, decoded tokens, as expected. Shares 0 to 1; below 0: not known. */
struct moe_plan_layer {
    double hit_rate;
    double accuracy;      /* of its experts, in the predicted set of as many */
    double stall_seconds; /* waited for its loads, per token */
};

/* What is expected with more or less of something. */
struct moe_plan_step {
    double amount; /* bytes of the whole budget (or of experts, where no budget was named), or
                      bytes per second */
    double decode_tokens_per_second, hit_rate;
};

struct moe_plan_tried {
    char strategy[MOE_PLAN_TEXT]; /* its name and the parts that differ: "fate+cache=lrfu" */
    double decode_tokens_per_second, hit_rate;
};

/* One thing that could be otherwise, all else as planned, by the simulator. */
enum moe_alternative {
    MOE_ALTERNATIVE_MEMORY,    /* the budget; bytes */
    MOE_ALTERNATIVE_LINK,      /* bytes per second of loads */
    MOE_ALTERNATIVE_PROCESSOR, /* how many times as fast it computes */
    MOE_ALTERNATIVE_EXPERTS,   /* of other bits; bytes of one */
    MOE_ALTERNATIVE_CONTEXT,   /* tokens; the memory that it leaves goes to experts */
    MOE_ALTERNATIVE_BATCH,     /* tokens of a prompt's pass; likewise */
    MOE_N_ALTERNATIVES
};
const char *moe_alternative_name(enum moe_alternative what); /* as in files: "memory" */

struct moe_plan_alternative {
    enum moe_alternative what;
    double amount;                  /* in its unit */
    double times;                   /* ... what is planned, or runs now */
    char precision[MOE_NAME_BYTES]; /* of experts of other bits; of memory that decides them */
    char strategy[32];              /* where it needs another one; "": the plan's */
    /* Below 0: it does not run. */
    double decode_tokens_per_second, prefill_tokens_per_second, hit_rate, bytes_per_token;
    /* What the other bits lose over the highest precision, in percent of the nats; loss_tokens 0:
     * not measured. */
    uint64_t loss_tokens;
    double loss_percent, loss_error;
};

/* What is taken for granted. */
enum moe_assumption {
    MOE_ASSUME_ROUTING = 0, /* synthetic trace, drawn with the bundled model's statistics */
    MOE_ASSUME_BANDWIDTH,   /* times from memory bandwidth alone */
    MOE_ASSUME_NOMINAL,     /* the link has the rate that was stated, not one that was measured */
    MOE_ASSUME_FIGURES,     /* synthetic trace, drawn with statistics of a real model */
    MOE_ASSUME_QUIET,       /* runs of a measurement differed: something else was running */
    MOE_ASSUME_FEW_TOKENS,  /* the error of the hit rate is above MOE_FEW_TOKENS_ERROR */
    MOE_ASSUME_NO_STATISTICS,
    MOE_ASSUME_ALIKE, /* other texts use the experts as the trace does: always */
    MOE_N_ASSUMPTIONS
};
#define MOE_FEW_TOKENS_ERROR 0.02
#define MOE_QUIET_SPREAD 0.1 /* runs that differ by no more are those of a quiet machine */
const char *moe_assumption_name(enum moe_assumption what); /* as in files: "texts-alike" */

/* What becomes of the speed when an assumption does not hold by so much. */
struct moe_plan_doubt {
    enum moe_assumption what;
    double
        by; /* share: of experts found less; by which computing takes longer, the link is slower */
    double decode_tokens_per_second;
};

/* What a plan rests on. */
struct moe_plan_evidence {
    char trace[MOE_PLAN_TEXT]; /* file; "": synthetic */
    uint64_t trace_sequences, trace_tokens, trace_prompt_tokens;
    uint32_t prompt_tokens; /* of the prompt that was simulated; 0: those of the trace were */
    char statistics[MOE_PLAN_TEXT]; /* file; "": none */
    uint64_t statistics_tokens;
    char learnt[MOE_PLAN_TEXT]; /* file that the cache begins with; "": it has learnt nothing */
    uint64_t learnt_tokens;     /* that it has learnt from */
    char device[MOE_PLAN_TEXT]; /* the profile's name */
    uint32_t threads;           /* that its times were measured with; 0: not known */
    bool times_measured;        /* with this model; else from memory bandwidth alone */
    bool times_stated;          /* a layer's time was given, which is then in their place */
    bool link_stated;           /* its rate was not measured */
    bool loads_over_bus;        /* from main memory to a GPU; else from storage */
    double times_spread;        /* of the profile's runs (moe_device_spread); 0: not known */
    bool manner_known;          /* of a synthetic trace: from statistics or another trace; else
                                   the bundled model's figures */
    char calibration[MOE_PLAN_TEXT];       /* file of a bit map; "": none */
    char calibration_texts[MOE_PLAN_TEXT]; /* that losses are of, with commas */
    double
        tolerance; /* that was allowed of its ways to load less, in its metric; 0: none is used */
    /* Of the pack's map that gives experts their precision (moe_pack_map_at), and what it lost on
     * its texts; 0: none does. map_unit: "percent" (of the nats a token) or "points". */
    double map_tolerance, map_loss;
    char map_unit[8];
};

/* The most that a part of the strategy costs in quality, from a bit map (map.h). */
struct moe_plan_loss {
    char part[64]; /* its option */
    uint64_t tokens;
    double nll_percent, nll_error, top1_points, top1_error; /* errors: -1: not known */
};

/* Of decoded tokens unless said. */
struct moe_plan_expected {
    double decode_tokens_per_second, prefill_tokens_per_second;
    double hit_rate;         /* cache and prefetch hits */
    double optimal_hit_rate; /* of any cache that loads only on demand (optimal.h) */
    double accuracy;         /* of predictions; below 0: none were made */
    double skipped_rate;     /* absent and left out; 0: none */
    double bytes_per_token;  /* loaded */
    /* Components but for `handling_seconds`, below (device.h): per token, all four together
     * 1 / decode_tokens_per_second. */
    double compute_seconds, stall_seconds, host_seconds;
    double link_seconds;          /* the link was busy, per token */
    double compute_limit_seconds; /* with every expert in memory */
    double link_limit_seconds;    /* bytes that must move at the optimal hit rate, over the rate */
    double handling_seconds;
    double loads_per_token;
    /* The components of a prompt's token: together 1 / prefill_tokens_per_second. */
    double prefill_compute_seconds, prefill_handling_seconds, prefill_stall_seconds,
        prefill_host_seconds;
    /* How far other texts are off: the standard deviation of decode_tokens_per_second over parts of
     * the trace. */
    double decode_error;
};

struct moe_plan {
    uint64_t pack_fingerprint;           /* 0: made for a shape or a trace; nothing runs it */
    char pack[MOE_PLAN_TEXT];            /* its name, for people */
    uint32_t n_layers, n_experts, top_k; /* MoE layers */
    uint32_t n_repeated; /* of the layers, those that have an earlier one's experts (base/loop.h) */
    char kv[8];          /* how keys and values are kept, as --kv names it; "": f32 */
    struct moe_plan_memory memory; /* where the slots are: of a GPU its own */
    struct moe_plan_memory host;   /* main memory behind a GPU; total 0: no GPU computes it. Its
                                      experts are those that wait there */
    struct moe_strategy strategy;  /* settled and fitted */
    char high[MOE_NAME_BYTES];     /* variant in use, and the lower one where one is taken ("") */
    char low[MOE_NAME_BYTES];
    uint32_t n_pools;
    struct moe_plan_pool pools[MOE_MAX_CLASSES]; /* by class; none: everything is resident */
    uint32_t n_contents;                         /* loaded before the first token, in this order */
    uint32_t *contents;                          /* layer * n_experts + expert; owned */
    /* Fate 4.3: T, t_expert and n = T / t_expert. */
    double layer_seconds, load_seconds;
    uint32_t slack_loads;
    /* Fate 4.4: L by the layers' accuracies, L by least stall; UINT32_MAX: not known. */
    uint32_t boundary_accuracy, boundary_stall;
    char variants[MOE_MAX_VARIANTS][MOE_NAME_BYTES]; /* of the pace */
    struct moe_pace pace;
    struct moe_plan_evidence evidence;
    uint32_t n_losses;
    struct moe_plan_loss losses[MOE_PLAN_MAX_LOSSES]; /* that were measured */
    struct moe_plan_expected expected;                /* of answers one after the other */
    /* ... and of a first one, from the cache's first contents: of decoded tokens, no bounds. */
    struct moe_plan_expected first;
    struct moe_plan_layer *layers; /* [n_layers]; owned */
    uint32_t n_memory_steps, n_rate_steps, n_tried;
    struct moe_plan_step memory_steps[MOE_PLAN_MAX_STEPS]; /* rising */
    struct moe_plan_step rate_steps[MOE_PLAN_MAX_STEPS];
    struct moe_plan_tried *tried; /* [n_tried], the fastest first; owned */
    uint32_t n_alternatives, n_doubts;
    struct moe_plan_alternative alternatives[MOE_PLAN_MAX_ALTERNATIVES];
    struct moe_plan_doubt doubts[MOE_N_ASSUMPTIONS]; /* what weighs most first */
};

/* Whether a plan can be about this many MoE layers, experts of each (no more than
 * MOE_RECORD_MAX_EXPERTS of all together) and experts per token. */
bool moe_plan_shape_fits(uint32_t n_layers, uint32_t n_experts, uint32_t top_k);
/* A plan that only has its shape: figures of `expected` and `layers` are -1, boundaries
 * UINT32_MAX, everything else 0. MOE_ERR_USAGE: a shape that does not fit. */
int moe_plan_new(struct moe_plan **out, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                 struct moe_err *err);
void moe_plan_free(struct moe_plan *plan); /* NULL is fine */

/* What a decoded token, or a token of prompts, is expected to take; below 0: not known. */
struct moe_components moe_plan_components(const struct moe_plan_expected *e, bool prompts);

/* What following it comes to, for exactness.h. Borrows the plan. */
struct moe_terms moe_plan_terms(const struct moe_plan *plan);

/* ---- The file: YAML, moe-plan(5) ---- */

/* How far the hit rate may be off because the trace is short: two standard errors,
 * 2 sqrt(h (1 - h) / n), where each decoded token counts as one draw. 1 where there were none. */
double moe_plan_hit_rate_error(const struct moe_plan *plan);

/* What is not known (figures of expected, layers, steps and tried that are below 0; boundaries of
 * UINT32_MAX; everything else that is 0 or "") is left out, and so is a double that is not finite.
 */
int moe_plan_write(const struct moe_plan *plan, bool json, struct moe_buf *out,
                   struct moe_err *err);
/* Checks every number against the shape, sums included; the strategy is settled and fitted.
 * MOE_ERR_FORMAT with line and column, MOE_ERR_VERSION, MOE_ERR_IO. */
int moe_plan_read(struct moe_plan **out, const char *path, struct moe_err *err);
extern const struct moe_record_format moe_plan_format;

#endif
