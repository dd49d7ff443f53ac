/*
 * A rank other than 0 (ranks/ranks.h): it has some of a model's experts and nothing else of it, and
 * computes them for the rows that rank 0 sends. The same driver of a pass asks the same kind of
 * provider for them as where the model runs: this rank's cache, loads and prefetches are its own.
 */
#ifndef MOE_INFER_RANK_WORKER_H
#define MOE_INFER_RANK_WORKER_H

#include "infer/experts.h"
#include "infer/model.h"
#include "ranks/ranks.h"

/* What messages of passes of at most `batch` rows depend on. */
struct moe_rank_shape moe_rank_shape_of(const struct moe_model *model, uint32_t batch);
/* Memory that a rank computes in, beside its experts. */
uint64_t moe_rank_worker_bytes(const struct moe_model *model, uint32_t batch);

/* Says that the experts are there, and computes what rank 0 asks for until it ends. predicts: the
 * experts' strategy takes predictions. */
int moe_rank_work(struct moe_ranks *ranks, const struct moe_model *model,
                  struct moe_experts *experts, uint32_t batch, bool predicts, struct moe_err *err);

#endif
