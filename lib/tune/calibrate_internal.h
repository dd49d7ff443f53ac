/*
 * What the files of a calibration share.
 */
#ifndef MOE_TUNE_CALIBRATE_INTERNAL_H
#define MOE_TUNE_CALIBRATE_INTERNAL_H

#include "tune/calibrate.h"
#include "tune/dense_bits.h"
#include "tune/importance.h"
#include "tune/quality.h"
#include "tune/rerun.h"

/* A model with its dense part at some bitwidth, ready to be measured. */
struct bench_model {
    uint32_t dense_bits;
    uint64_t dense_bytes;    /* stored */
    struct moe_model *model; /* `derived`, or the pack's own */
    struct moe_model *derived;
    struct moe_rerun *rerun, *check_rerun; /* over the texts, over the checks (NULL: none) */
};

struct calibration {
    const struct moe_calibrate_options *options;
    struct moe_model *model;
    struct moe_dense_rounding dense;   /* how the dense part gets fewer bits */
    struct moe_experts *experts;       /* of moe_experts_open_every */
    struct moe_corpus *corpus, *check; /* check: NULL: none */
    struct bench_model own;            /* with the pack's dense part; its rerun keeps states */
    struct moe_quality reference, check_reference; /* everything at the highest precision */
    struct moe_map *map;                           /* being filled */
    uint32_t upper, lower;                         /* variants that bracket the tolerance */
    /* [MoE layers][n_experts] nats to choose by; NULL: the map's importances. */
    const double *figures;
    bool chosen; /* map->choice follows the figures and must still be judged */
};

/* What the process has, and what calibrating takes beside the experts, in bytes. */
struct calibration_need {
    uint64_t budget, taken;
    uint64_t reading; /* statistics and texts, before re-runs and experts are open */
    uint64_t least;   /* for the experts */
    uint64_t all;     /* ... with all of them in memory */
};

/* Of re-runs over texts or checks. */
struct moe_rerun_options calibrate_rerun_options(const struct calibration *c, bool keeps_states);
/* How texts and checks are read. */
struct moe_documents calibrate_documents(const struct calibration *c);
/* Looks at all texts, --check's as well, before anything is loaded. */
int calibrate_survey(struct calibration *c, const struct moe_rerun_options *rerun, uint32_t context,
                     struct calibration_need *need, struct moe_err *err);
/* The smallest budget that works. */
uint64_t calibrate_floor(const struct calibration_need *need);
/* MOE_ERR_LIMIT names the budget. Experts get what it leaves. */
int calibrate_check_budget(const struct calibration *c, const struct calibration_need *need,
                           struct moe_err *err);

/* Stored bytes of an expert at a variant, each segment rounded up to `align`; 0: it has none. Of
 * all experts at one. */
uint64_t calibrate_expert_bytes(const struct calibration *c, uint32_t layer, uint32_t expert,
                                uint32_t variant, uint32_t align);
uint64_t calibrate_all_bytes(const struct calibration *c, uint32_t variant);
/* Bytes of the file of a map's pack beside its experts, with a dense part of these bits; at most.
 */
uint64_t calibrate_file_bytes(const struct calibration *c, uint32_t dense_bits);
/* Bytes of the dense part at `bits`. */
uint64_t calibrate_dense_bytes(const struct calibration *c, uint32_t bits);

/* Sets what the dense part has and how it gets fewer bits, and says so in the map, the latter where
 * it is to get any. */
int calibrate_choose_rounding(struct calibration *c, struct moe_err *err);

/* Bits of the dense part to consider: the i-th ones, or the pack's where it has these already, and
 * where none are named (i 0). */
uint32_t calibrate_dense_bits(const struct calibration *c, uint32_t i);

/* Derives and opens; with bits equal to the pack's own it borrows from c->own. */
int calibrate_open_bench(struct bench_model *b, struct calibration *c, uint32_t dense_bits,
                         struct moe_err *err);
void calibrate_close_bench(struct bench_model *b, const struct calibration *c);

/* What the rule costs on the texts (check false) or on the checks, over the highest precision.
 * quality (may be NULL) gets the measurement itself, the caller's to release. */
int calibrate_measure(struct calibration *c, const struct bench_model *b, bool check,
                      const struct moe_rule *rule, struct moe_loss *loss,
                      struct moe_quality *quality, struct moe_err *err);

/* ... of experts at variants[MoE layers][n_experts]; NULL: all at `variant`. */
int calibrate_measure_variants(struct calibration *c, const struct bench_model *b, bool check,
                               const uint8_t *variants, uint32_t variant, struct moe_loss *loss,
                               struct moe_quality *quality, struct moe_err *err);
/* All experts at `variant`, as a reference for later measurements. */
int calibrate_reference(struct calibration *c, struct moe_rerun *rerun, uint32_t variant,
                        struct moe_quality *out, struct moe_err *err);

/* Whether a loss is within the tolerance. */
static inline bool calibrate_within(const struct calibration *c, const struct moe_loss *loss)
{
    return moe_map_loss(c->map, loss) <= c->map->tolerance;
}

/* Before anything is measured: MOE_ERR_LIMIT names the size of the smallest pack that a map can
 * give where that is more than the target. */
int calibrate_check_target(const struct calibration *c, struct moe_err *err);

/* The steps; each fills its section of the map. */
int calibrate_uniform(struct calibration *c, struct moe_err *err);
int calibrate_bounds(struct calibration *c, struct moe_err *err);
int calibrate_choice(struct calibration *c, struct moe_err *err);
/* Its first half: the bitwidths, not judged yet. distances[MoE layers][n_experts], out (may be
 * NULL): by which factor, as its logarithm, an expert's figure may be wrong before it has another
 * bitwidth, were the last step taken at the same loss per byte; HUGE_VAL: by any. */
int calibrate_choose(struct calibration *c, double *distances, struct moe_err *err);
/* Estimates all importances, then measures those that decide (calibrate_strategies.c). */
int calibrate_adaptive(struct calibration *c, const struct moe_quality *base,
                       const struct moe_importance_options *options, struct moe_err *err);
int calibrate_fate(struct calibration *c, struct moe_err *err);
int calibrate_hobbit(struct calibration *c, struct moe_err *err);
int calibrate_weights(struct calibration *c, struct moe_err *err);
int calibrate_routing(struct calibration *c, struct moe_err *err);
int calibrate_savings(struct calibration *c, struct moe_err *err);
/* Sets the passes over the texts, a token at a time, that routing and savings take at most, and
 * their time, by trying. */
int calibrate_forecast_decoding(struct calibration *c, struct moe_forecast *out,
                                struct moe_err *err);
/* Bytes that routing and savings take on some texts; 0: neither is asked for. */
uint64_t calibrate_decoding_bytes(const struct calibration *c, const struct moe_corpus *corpus);

#endif
