/*
 * A rank other than 0 (ranks/ranks.h): it has some of a model's experts, and perhaps the attention
 * of some layers with its keys and values, or some layers as a whole, and nothing else of it. It
 * computes them for the rows that rank 0 sends. The same driver of a pass asks the same kind of
 * provider for experts as where the model runs: this rank's cache, loads and prefetches are its
 * own.
 */
#ifndef MOE_INFER_RANK_WORKER_H
#define MOE_INFER_RANK_WORKER_H

#include "infer/experts.h"
#include "infer/model.h"
#include "infer/state.h"
#include "ranks/ranks.h"

/* What messages of such a session's passes depend on, on rank 0. */
struct moe_rank_shape moe_rank_shape_of(const struct moe_model *model,
                                        const struct moe_session_options *session);
/* Memory that a rank computes in, beside its experts and its session. */
uint64_t moe_rank_worker_bytes(const struct moe_model *model, const struct moe_rank_shape *shape);

/* Says that the experts are there, and computes what rank 0 asks for until it ends. shape: as rank
 * 0 has told it. session: has the keys, values and states of layers, whose blocks rank 0 deals out,
 * and computes layers as a whole (led); NULL: of none. predicts: the experts' strategy takes
 * predictions. */
int moe_rank_work(struct moe_ranks *ranks, const struct moe_model *model,
                  struct moe_experts *experts, struct moe_session *session,
                  const struct moe_rank_shape *shape, bool predicts, struct moe_err *err);

#endif
