/*
 * Batches of an expert model on a processor: what n requests side by side take (CoServe 4.2, 4.5).
 * A request here is a prompt of so many tokens and an answer of so many.
 */
#ifndef MOE_BENCH_COE_BATCHES_H
#define MOE_BENCH_COE_BATCHES_H

#include "base/progress.h"
#include "engine/engine.h"

enum { MOE_COE_BATCH_POINTS = 16, MOE_COE_BATCH_MOST = 1 << (MOE_COE_BATCH_POINTS - 1) };

struct moe_coe_batch_point {
    uint32_t requests;
    double seconds;
    uint64_t bytes; /* of memory beside the expert */
};

struct moe_coe_batch_curve {
    uint32_t n; /* points, by rising requests */
    struct moe_coe_batch_point points[MOE_COE_BATCH_POINTS];
};

/* K and B of seconds = K * requests + B, by least squares; neither is below 0: with one point, or
 * where the line would cut below, it goes through the origin or is flat. n > 0. */
void moe_coe_batch_fit(const struct moe_coe_batch_curve *c, double *per_request, double *per_batch);
/* The batch from which on requests no longer get cheaper: the smallest whose time for each is at
 * most 5% above the least of all. n > 0. */
uint32_t moe_coe_batch_level(const struct moe_coe_batch_curve *c);
/* Whether the last two points brought less than 5%: larger batches need not be tried. One alone may
 * have been measured while the machine was busy. */
bool moe_coe_batch_levelled(const struct moe_coe_batch_curve *c);
/* Memory that each request takes of the largest batch that pays, with its part of what the batch
 * takes as a whole. n > 0. */
uint64_t moe_coe_batch_request_bytes(const struct moe_coe_batch_curve *c);

struct moe_coe_batch_options {
    uint32_t prompt_tokens, answer_tokens; /* > 0 */
    uint32_t most;                         /* requests of a batch, 1..MOE_COE_BATCH_MOST */
    const struct moe_ids *text; /* what prompts consist of; n = 0: drawn from the vocabulary */
    const struct moe_progress *progress;
};

/* Batches of 1, 2, 4, ... requests, each the median of a few runs, until they level off, memory is
 * full or there are `most`. The engine's session is replaced; the engine has been opened for a
 * context of a request's tokens, with all experts in memory. */
int moe_coe_measure_batches(struct moe_engine *e, const struct moe_coe_batch_options *options,
                            struct moe_coe_batch_curve *out, struct moe_err *err);

#endif
