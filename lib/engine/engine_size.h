/*
 * Second step of a split: what everything but the experts takes. Internal to the engine.
 */
#ifndef MOE_ENGINE_ENGINE_SIZE_H
#define MOE_ENGINE_ENGINE_SIZE_H

#include "engine/engine_split.h"

/* A budget of these inputs with everything but the experts sized for a session of session->batch
 * rows. strategy NULL: it is not resolved yet, and takes nothing. */
struct moe_budget moe_engine_size(const struct moe_split_inputs *in,
                                  const struct moe_session_options *session,
                                  const struct moe_strategy *strategy);

/* What a process with this model's directory open takes before anything else is: computed, so that
 * every program and every run say the same. for_gpu: a program built with CUDA, whatever this one
 * is. */
uint64_t moe_engine_program_bytes(const struct moe_model *model, bool for_gpu);

/* The same with a batch: the session's, or if that is 0 the largest whose buffers take at most an
 * eighth of the budget, and what they take more than the smallest half of the experts' memory. Its
 * floor is that of a cache of least_experts bytes with the smallest batch that may be chosen.
 * *most_experts: bytes that experts get at most, so that a larger budget, which has a larger batch,
 * never has fewer of them; UINT64_MAX: what the budget leaves. */
struct moe_budget moe_engine_size_batch(const struct moe_split_inputs *in,
                                        struct moe_session_options session,
                                        const struct moe_strategy *strategy, uint64_t least_experts,
                                        uint64_t *most_experts);

/* Whether all experts have room beside everything else, with the smallest batch that may be chosen
 * and no strategy. */
bool moe_engine_all_fit(const struct moe_split_inputs *in);

/* Of what is sized: everything on the host; everything where the slots are, which is on the GPU if
 * there is one. */
uint64_t moe_budget_on_host(const struct moe_budget *b);
uint64_t moe_budget_beside_slots(const struct moe_budget *b, bool on_gpu);

/* Whether all experts have room beside so many bytes where the slots are. */
bool moe_engine_has_room_for_all(const struct moe_split_inputs *in, uint64_t beside);

#endif
