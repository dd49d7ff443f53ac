/*
 * Calibration: what may be approximated on a user's texts under a user's tolerance, written into a
 * bit map (pack/map.h). In order:
 *
 *   uniform bitwidths  each is measured: they bound the choice (EdgeMoE III-B)
 *   importance         of every expert (importance.h)
 *   choice             per-expert bitwidths with the fewest bytes within the tolerance
 *   fate               the share p of unpopular experts that a prompt may take at low precision
 *   hobbit             the thresholds T1 and T2; with a trace also the weights and the pools
 *   routing            lambda of cache-aware routing, where it is asked for
 *   savings            what ways to load less lose and save, where they are asked for
 *
 * Choices are made on the texts and each result is measured whole; --check texts only judge.
 */
#ifndef MOE_TUNE_CALIBRATE_H
#define MOE_TUNE_CALIBRATE_H

#include "base/err.h"
#include "base/progress.h"
#include "pack/map.h"
#include "profile/statistics.h"
#include "quant/quantize.h"
#include "show/show.h"
#include "tune/documents.h"

enum { MOE_CALIBRATE_DENSE = 8 }; /* bitwidths of the dense part to consider, at most */

/* For a tolerance that does not hold on the checks: a smaller one whose choice is measured to hold
 * the requested one there, and what that choice loses. */
struct moe_calibrate_advice {
    bool there;
    double tolerance, check; /* in the unit of the tolerance */
};

struct moe_calibrate_options {
    const char *const *texts, *const *checks; /* paths */
    uint32_t n_texts, n_checks;
    bool pairs;           /* they hold pairs (documents.h): for models with an encoder */
    uint32_t max_tokens;  /* of a document or window; of a pair, per source and per target */
    uint32_t max_windows; /* of a document; 0: all */
    enum moe_metric metric;
    enum moe_judge judge; /* of the tolerance; answers are of pairs only */
    double tolerance;     /* percent or points; below 0: measure importances only */
    /* Above 0, in place of the tolerance: the file of the map's pack takes this many at most. The
     * map's tolerance is then what the choice loses on the texts. */
    uint64_t target_bytes;
    bool exact;            /* importance measured, else estimated */
    double measured_share; /* exact: of the experts, at most, the others estimated; 0: all are
                              measured */
    uint32_t dense_bits[MOE_CALIBRATE_DENSE]; /* of the dense part, no more than the pack's; or
                                                 types (quant/bits.h) */
    uint32_t n_dense_bits;                    /* 0: only the pack's */
    const struct moe_quant_method *method;    /* of fewer dense bits; NULL: the pack's own */
    uint32_t shard, n_shards; /* of the importances; n_shards > 1: nothing is chosen */
    bool without_bits, without_fate, without_hobbit; /* bits: importances and the choice */
    double routing_tolerance; /* of cache-aware routing, in the metric; below 0: it is left out */
    uint64_t routing_cache;   /* bytes of the cache that it is measured with */
    uint64_t caches[MOE_MAP_MAX_CACHES]; /* bytes of those that savings are measured with, rising */
    uint32_t n_caches;
    const struct moe_map *from;              /* importances to use; borrowed; NULL: measure */
    const struct moe_statistics *statistics; /* how often experts are used; NULL: all alike */
    const char *trace;                       /* for hobbit's weights; NULL: none are found */
    const char *partial;                     /* file for what is done so far; NULL: none */
    bool resume;                             /* go on from `partial` where it exists */
    uint64_t memory_bytes;                   /* of the whole process; 0: what is free */
    const struct moe_progress *progress;     /* may be NULL */
    struct moe_left_out *left_out;           /* of texts and checks; may be NULL */
    struct moe_calibrate_advice *advice;     /* may be NULL */
};

/* Calibrates the pack. *out is the caller's to free. MOE_ERR_LIMIT: the tolerance cannot be met;
 * MOE_ERR_INTERRUPTED: the partial file has what is done. The caller removes that file once it has
 * saved *out. MOE_ERR_USAGE: the pack has one variant only, it takes pairs and these are texts or
 * the other way round, or `from` and `partial` are about something else. */
int moe_calibrate(struct moe_map **out, const char *pack,
                  const struct moe_calibrate_options *options, struct moe_err *err);

/* What that would take, of a few documents that are run through the model (calibrate.c).
 * Writes no file. Errors as above. */
int moe_calibrate_forecast(struct moe_forecast *out, const char *pack,
                           const struct moe_calibrate_options *options, struct moe_err *err);

#endif
