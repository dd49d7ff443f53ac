/*
 * Layers that draft (multi-token prediction, MTP): a layer behind the model's says, from the state
 * of a position and the token after it, what the token after that may be. Of position i
 *
 *   x = join . [norm_t(embedding of token i + 1) | norm_s(norm_l(h_i))]
 *
 * goes through one decoder layer with keys, values and experts of its own; a norm, and the model's
 * head, make logits of the result. h_i is the state after the model's last layer and norm_l its
 * last norm; or, to draft one token further, the layer's own result for the position before and the
 * norm after it.
 *
 * Equations: DeepSeek-V3 (arXiv:2412.19437), 2.2, which has the two halves the other way round.
 * That published weights have the token's half first, and that the state is taken after its last
 * norm, is from vLLM's deepseek_mtp.py, glm4_moe_mtp.py and qwen3_next_mtp.py, which get it from
 * models that end with that norm; that a result is normed before it is fed back from SGLang's
 * deepseek_nextn.py. They leave out the token's half at position 0; here no position is special.
 * A draft is judged by the model, so that none of this can change a text.
 */
#ifndef MOE_RUN_AHEAD_H
#define MOE_RUN_AHEAD_H

#include "layer/session.h"

/* Computes the layer for n_rows rows, whose tokens are those after their positions. Row i is made
 * of the state that row from[i] of the last pass (through all layers, or of this) has left, which
 * rise (NULL: of row i), and leaves its own as row i: moe_logits then gives what comes after the
 * rows' tokens. Counted in the phase of the last moe_forward, but for tokens. The model was opened
 * with such a layer (moe_model_take_ahead), and computes on the processor. */
int moe_ahead(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
              const uint32_t *from, struct moe_err *err);

#endif
