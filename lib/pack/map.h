/*
 * Bit map: what moe-calibrate found out. Which precision each expert deserves, what that costs, and
 * what else may be approximated. The data of moe-map(5).
 *
 * Layers are MoE layers, numbered from 0; model_layer says which of the model's they are. Variants
 * are those of the pack that was calibrated, best first. Members dense_bits are as moe_parse_width
 * has them, bitwidths or types (quant/bits.h).
 *
 * Sources: EdgeMoE III-B (importance, bounds, K), Fate 4.5 (p), HOBBIT 3.2 and 3.4 (T1, T2,
 * weights).
 */
#ifndef MOE_PACK_MAP_H
#define MOE_PACK_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "cache/policy.h" /* MOE_HOBBIT_WEIGHTS */
#include "fmt/record.h"
#include "pack/pack.h"
#include "profile/origins.h"
#include "profile/statistics.h" /* MOE_SCORE_BINS */

enum {
    MOE_MAP_VERSION = 1,
    MOE_MAP_TEXT = 256,
    MOE_MAP_MAX_UNIFORM = 32,
    MOE_MAP_MAX_POINTS = 64,
    MOE_MAP_MAX_CUTS = 16,
    MOE_MAP_MAX_PREFERENCES = 16,
    MOE_MAP_MAX_CACHES = 4,
    MOE_MAP_MAX_SAVINGS = 40,
    MOE_MAP_WAY = 128,
    MOE_MAP_MAX_TEXTS = 64,
};

enum moe_metric { MOE_METRIC_NLL = 0, MOE_METRIC_TOP1, MOE_N_METRICS };
const char *moe_metric_name(enum moe_metric metric); /* "nll", "top1" */

/* What tolerances are in: nats (or changed tokens, as the metric says); or, of pairs, answers to
 * their sources: how much of the targets these have (Rouge-2), how many equal them; in points. */
enum moe_judge { MOE_JUDGE_NATS = 0, MOE_JUDGE_ROUGE2, MOE_JUDGE_ACCURACY, MOE_N_JUDGES };
const char *moe_judge_name(enum moe_judge judge); /* "nats", "rouge2", "accuracy" */

/* What a way to run the model costs on some texts, over the pack's highest precision. */
struct moe_loss {
    uint64_t documents, tokens; /* predicted ones */
    double nll, reference_nll;  /* nats per token */
    double nll_percent;         /* increase in percent of reference_nll */
    double nll_error;           /* its standard error */
    double top1_points;         /* tokens, in percent, whose most likely next token is another */
    double top1_error;          /* its standard error */
    /* Of answers to the sources of pairs, were they generated: 0, or as many as documents. Points:
     * by how much the mean is below the reference's (0 to 1), in percent of the most there can be.
     */
    uint64_t answers;
    double reference_rouge2, rouge2_points, rouge2_error;
    double reference_accuracy, accuracy_points, accuracy_error;
};
/* In the metric's unit, percent or points; and its standard error. */
double moe_loss_in(const struct moe_loss *loss, enum moe_metric metric);
double moe_loss_error(const struct moe_loss *loss, enum moe_metric metric);

struct moe_map_text {
    char name[MOE_MAP_TEXT]; /* the file's, without its directory */
    uint64_t documents, tokens, hash;
    bool check; /* a validation text: not chosen on */
    bool known; /* `loss` is known: that of the final choice on this text */
    struct moe_loss loss;
};

/* All experts at one precision; "rungs" in the file. */
struct moe_uniform {
    char experts[MOE_NAME_BYTES]; /* a variant's name */
    uint32_t dense_bits;
    uint64_t bytes; /* of experts and dense part, stored */
    struct moe_loss loss;
};

/* Of importances that were measured where they decide, and estimated elsewhere. */
struct moe_adaptive {
    uint64_t measured, estimated; /* experts */
    uint64_t open; /* of the estimated ones: those whose bitwidth a measurement could change */
    double spread; /* standard deviation of the estimates' logarithms about measured ones */
};

/* Importance: what the text loses when one expert is at the lowest precision and all others at the
 * upper one (EdgeMoE III-B, fig. 7a). Arrays [n_layers][n_experts]. */
struct moe_importances {
    bool there;
    bool exact;            /* measured; false: estimated */
    uint32_t upper, lower; /* variants */
    uint32_t dense_bits;
    struct moe_shards shards; /* which experts, counted over all layers, are measured */
    uint8_t *known;           /* 1: measured; a shard knows only its own */
    uint8_t *estimated;       /* 1: known by an estimate, though `exact`; then, and only then, there
                                 is `adaptive` */
    struct moe_adaptive adaptive; /* estimated 0: all were measured */
    double *nats;                 /* increase of the text's sum; may be negative */
    double *error;                /* its standard error over documents; of estimates 0 */
    uint32_t *changed; /* tokens whose most likely next token is another than with all at the upper
                          one; of estimates 0 */
    uint32_t *visited; /* documents that visit the expert */
};

struct moe_map_choice {
    bool there;
    uint8_t *variant; /* [n_layers][n_experts]; owned */
    uint32_t dense_bits;
    uint64_t expert_bytes, dense_bytes; /* stored */
    double expected;                    /* loss that the sum of importances predicts, in the metric,
                                           whatever the judge */
    struct moe_loss loss, check;        /* on all texts to choose on, on all --check texts; check:
                                           tokens 0: none were named */
};

struct moe_map_point {
    double share; /* of each layer's active experts at the low precision */
    struct moe_loss unpopular,
        popular; /* the least, the most popular ones; tokens 0: not measured */
};

struct moe_map_fate {
    bool there;
    double share;                /* p */
    struct moe_loss loss, check; /* at p, on the texts to choose on, on all --check texts; check:
                                    tokens 0: none were named */
    uint32_t high, low;          /* variants */
    uint32_t n_points;
    struct moe_map_point points[MOE_MAP_MAX_POINTS]; /* rising */
};

/* A share of all activations, those with the highest scores, at low precision or left out (HOBBIT
 * fig. 3b). */
struct moe_map_cut {
    double share; /* as it came out: activations have few different scores */
    struct moe_loss low, skipped;
};

struct moe_map_hobbit {
    bool there;
    double t1, t2;
    double high_share, low_share, skipped_share; /* of activations, were nothing cached */
    struct moe_loss loss;                        /* likewise: every activation a miss */
    uint32_t high, low;                          /* variants */
    uint32_t n_cuts;
    struct moe_map_cut cuts[MOE_MAP_MAX_CUTS]; /* rising */
    double scores[MOE_SCORE_BINS]; /* share of activations of rank 2 on with a score in the bin */
    bool weighed;                  /* the policy's weights, found on a trace */
    double weights[MOE_HOBBIT_WEIGHTS];
    double low_pool;        /* share of the cache's bytes for the low precision */
    double penalty;         /* mean miss penalty per activation there, a high miss being 1 */
    double default_penalty; /* with the policy's own weights and the strategy's pools */
};

/* Cache-aware routing (sched/select.h) with one lambda. */
struct moe_map_preference {
    double lambda;
    double bytes_per_token; /* loaded */
    double replaced_share;  /* of the router's choices */
    struct moe_loss loss;
};

/* Measured with experts at the best variant in a cache of cache_bytes, empty at first. */
struct moe_map_routing {
    bool there;
    double lambda;
    uint32_t keeps;   /* of the strongest experts */
    double tolerance; /* in the metric: percent or points */
    uint64_t cache_bytes;
    struct moe_loss loss, check; /* at lambda; tokens 0: not measured */
    uint32_t n_points;
    struct moe_map_preference points[MOE_MAP_MAX_PREFERENCES]; /* rising */
};

/* A way to load less than routers ask for, and what it loses. */
struct moe_map_saving {
    char strategy[MOE_MAP_WAY];  /* as --strategy takes it: "lru+skip-below=0.1" */
    double bytes_per_token;      /* loaded */
    double changed_share;        /* of activations: replaced, left out, at low precision */
    struct moe_loss loss, check; /* check: on all --check texts; tokens 0: none were named */
};

/* Measured as routing is, through a cache of one size. */
struct moe_map_savings {
    uint64_t cache_bytes;
    uint32_t low;                 /* variant, where one is taken */
    double exact_bytes_per_token; /* of lru without any */
    uint32_t n_ways;
    struct moe_map_saving ways[MOE_MAP_MAX_SAVINGS];
};

struct moe_map {
    uint32_t n_layers, n_experts, top_k;
    uint32_t *model_layer; /* [n_layers] rising; owned */
    uint64_t source_fingerprint, pack_fingerprint;
    uint32_t n_variants;
    char variants[MOE_MAX_VARIANTS][MOE_NAME_BYTES];
    /* How the pack's variants were rounded, by its names for methods; "": older maps do not say. */
    char methods[MOE_MAX_VARIANTS][MOE_METHOD_BYTES];
    uint32_t expert_group; /* likewise; weights of a scale, 0: a row, or methods without groups */
    uint32_t pack_dense_bits;
    char dense_method[MOE_METHOD_BYTES]; /* the method that gave the dense part fewer bits; "": none
                                            were tried */
    uint32_t dense_group;                /* likewise; 0: a row */
    enum moe_metric metric;
    enum moe_judge judge; /* of the tolerance */
    double tolerance;     /* percent or points; below 0: nothing was chosen */
    /* Of the pack that was asked for in place of a tolerance, which is then what the choice loses
     * on the texts; 0: none was. */
    uint64_t target_bytes;
    uint32_t max_tokens;
    uint32_t n_texts;
    struct moe_map_text texts[MOE_MAP_MAX_TEXTS];
    uint32_t n_uniform;
    struct moe_uniform uniform[MOE_MAP_MAX_UNIFORM];
    struct moe_importances importances;
    struct moe_map_choice choice;
    struct moe_map_fate fate;
    struct moe_map_hobbit hobbit;
    struct moe_map_routing routing;
    uint32_t n_savings;
    struct moe_map_savings savings[MOE_MAP_MAX_CACHES]; /* by size of the cache, rising */
};

/* Nothing known yet: arrays of importances and choice are allocated, model_layer counts from 0,
 * the tolerance is -1. MOE_ERR_USAGE: a shape that cannot be. */
int moe_map_new(struct moe_map **out, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                struct moe_err *err);
void moe_map_free(struct moe_map *map); /* NULL is fine */

/* Takes over what another map knows of importances: same model, pack, variants, metric and texts to
 * choose on (those to judge on may differ); an expert that both know must have the same figures to
 * the last digit. Estimates among measurements are left. Otherwise MOE_ERR_USAGE, which names what
 * differs, and `map` stays as it was. */
int moe_map_adopt(struct moe_map *map, const struct moe_map *from, struct moe_err *err);
/* The same for shards of one calibration, which must not overlap (MOE_ERR_USAGE). What does not
 * depend on the shard comes from the one with the lowest number, whatever the order: the two maps
 * may be exchanged. */
int moe_map_merge(struct moe_map *sum, struct moe_map *part, struct moe_err *err);
/* A loss as the map's judge has it, in the unit of its tolerance; and its standard error. */
double moe_map_loss(const struct moe_map *map, const struct moe_loss *loss);
double moe_map_loss_error(const struct moe_map *map, const struct moe_loss *loss);
/* Whether all experts' importances are known. */
bool moe_map_complete(const struct moe_map *map);
/* MOE_ERR_USAGE: shards are missing; an interrupted run left it, and it lacks experts of its own
 * shards. */
int moe_map_check_whole(const struct moe_map *map, struct moe_err *err);
int moe_map_check_finished(const struct moe_map *map, struct moe_err *err);

/* YAML, moe-map(5); JSON with the same members. Losses without tokens are left out.
 * MOE_ERR_USAGE: a number is not finite. */
int moe_map_write(const struct moe_map *map, bool json, struct moe_buf *out, struct moe_err *err);
/* MOE_ERR_FORMAT with line and column, MOE_ERR_VERSION, MOE_ERR_IO. */
int moe_map_read(struct moe_map **out, const char *path, struct moe_err *err);
extern const struct moe_record_format moe_map_format;

#endif
