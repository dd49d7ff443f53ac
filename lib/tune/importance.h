/*
 * Importance of experts: what a text loses when one expert runs at the lowest bitwidth.
 */
#ifndef MOE_TUNE_IMPORTANCE_H
#define MOE_TUNE_IMPORTANCE_H

#include "model/config.h"
#include "pack/map.h"
#include "tune/documents.h"
#include "tune/quality.h"
#include "tune/rerun.h"

/*
 * What measuring importances costs, in passes of one row through a MoE layer: for progress while it
 * is done, and for a forecast before.
 */

struct moe_importance_cost {
    const struct moe_config *config; /* both borrowed */
    const struct moe_corpus *corpus;
    double *row; /* [n_layers] of a row from there to its stack's end, the head included */
};

/* MOE_ERR_MEMORY. Close also after an error. */
int moe_importance_cost_open(struct moe_importance_cost *c, const struct moe_config *config,
                             const struct moe_corpus *corpus, struct moe_err *err);
void moe_importance_cost_close(struct moe_importance_cost *c);

/* Of a job that begins at the layer. */
double moe_importance_job_cost(const struct moe_importance_cost *c, uint32_t document,
                               uint32_t layer);
/* Of looking at a layer: all rows of the texts through it. */
double moe_importance_look_cost(const struct moe_importance_cost *c, uint32_t layer);
/* Of all documents through all layers and the head: one pass over the texts. */
double moe_importance_pass_cost(const struct moe_importance_cost *c);

/*
 * Importance of every expert: what a text loses when it alone runs at the lowest precision and the
 * rest at the upper one (EdgeMoE III-B, fig. 7a).
 *
 * exact: measured. The states before the changed layer are those of the upper precision, computed
 * once and kept; only documents whose tokens visit the expert are re-run, from that layer on, many
 * to a pass (rerun.h). Sums are taken in the order of the documents, so every digit is the same for
 * any number of threads, shards and interruptions.
 *
 * proxy: estimated from one pass over the text (importance.c says how).
 *
 * Shards are experts, not documents: a sum of documents' figures that were summed apart differs in
 * its last digits from the sum in their order, and the error needs every document's figure.
 */

struct moe_importance_options {
    uint32_t upper, lower;    /* variants of the pack */
    uint32_t shard, n_shards; /* experts shard, shard + n_shards, ... counted over all layers */
    const uint8_t *asked;     /* [n_layers][n_experts]: 1: to be measured; NULL: all of the shard */
    const struct moe_progress *progress;
    /* Called after each expert that became known, to save what is done; may be NULL. */
    int (*saved)(void *ctx, struct moe_err *err);
    void *ctx;
};

/* Bytes that measuring or estimating takes beside a re-run with `rows` rows in a pass, if the
 * experts of a layer take at most layer_bytes. */
uint64_t moe_importance_bytes(const struct moe_config *config, const struct moe_corpus *corpus,
                              uint32_t batch, uint64_t layer_bytes);

/* Fills map->importances: all that is not known yet there and belongs to the shard. base: quality
 * with all experts at `upper`, with `best` (a reference). The error of an expert's sum over n
 * documents is sqrt(n * their sample variance), documents that do not visit it counting as zeros.
 * MOE_ERR_USAGE: map, texts, options or what the map holds already do not belong together.
 * MOE_ERR_INTERRUPTED: what is known stays. */
int moe_importance_exact(struct moe_map *map, struct moe_rerun *r, const struct moe_quality *base,
                         const struct moe_importance_options *options, struct moe_err *err);

/* Estimates all experts, of every shard, into map->importances (exact false); `saved` is not
 * called. Errors as above; MOE_ERR_INTERRUPTED: nothing is known. */
int moe_importance_proxy(struct moe_map *map, struct moe_rerun *r, const struct moe_quality *base,
                         const struct moe_importance_options *options, struct moe_err *err);

#endif
