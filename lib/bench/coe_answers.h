/*
 * Usage of experts by answering sample requests: where rules look at results, and nobody says which
 * share of these passes (CoServe 4.5: "we can run the CoE routing on a small, real-world sample
 * dataset to record each expert's usage probability").
 */
#ifndef MOE_BENCH_COE_ANSWERS_H
#define MOE_BENCH_COE_ANSWERS_H

#include "bench/coe_samples.h"

/* Whether some usage is not known without answers. */
bool moe_coe_samples_unknown(const struct moe_coe_samples *s,
                             const struct moe_coe_collection *collection);

/* Serves the requests and counts who answered: usage[n_models] of s is known then. memory_bytes: of
 * the whole process; 0: what is free. */
int moe_coe_samples_answer(struct moe_coe_samples *s, const struct moe_coe_collection *collection,
                           const char *directory, const char *path, uint64_t memory_bytes,
                           const struct moe_progress *progress, struct moe_err *err);

#endif
