/*
 * What the models of a collection cost on this machine (expert performance metrics, CoServe 4.5):
 * seconds of batches, loading, memory, once for every architecture and processor.
 */
#ifndef MOE_BENCH_COE_BENCH_H
#define MOE_BENCH_COE_BENCH_H

#include "base/progress.h"
#include "bench/coe_samples.h"
#include "coe/costs.h"
#include "layer/model.h"

struct moe_coe_bench_options {
    const struct moe_coe_collection *collection;
    const char *directory;                   /* where paths of packs begin */
    uint32_t prompt_tokens, answer_tokens;   /* of a request, > 0 */
    uint32_t max_batch;                      /* to be tried, 1..MOE_COE_BATCH_MOST */
    const struct moe_coe_samples *samples;   /* usage and prompts; NULL: there are none */
    uint64_t memory_bytes, gpu_memory_bytes; /* of the whole process; 0: what is free */
    const struct moe_progress *progress;
};

/* The path of an expert's pack; free() it. NULL: out of memory. */
char *moe_coe_pack_path(const char *directory, const struct moe_coe_model *model,
                        struct moe_err *err);

/* Packs of equal shape are of one architecture: those whose collection calls them so, else the
 * packs themselves say. The processors are this machine's, as far as experts may run there. *out is
 * the caller's to free. Errors of packs name the expert; MOE_ERR_LIMIT: one does not fit the
 * memory; MOE_ERR_FORMAT: experts of one architecture have different shapes. */
int moe_coe_bench(struct moe_coe_costs **out, const struct moe_coe_bench_options *options,
                  struct moe_err *err);

#endif
