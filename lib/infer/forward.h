/*
 * Passes over sources (encoders), prompts whose rows see each other, and layers that draft, on top
 * of moe_forward (infer/session.h).
 */
#ifndef MOE_INFER_FORWARD_H
#define MOE_INFER_FORWARD_H

#include "infer/session.h"
#include "infer/state.h"

/*
 * Texts whose rows see each other. Sources: those that a model's encoder computes once each, and
 * whose output the decoder's rows attend to. Prompts of a model with prefix_lm.
 *
 * A row's result there depends on all rows of its own source or prompt (attention goes both ways,
 * and an expert takes expert_capacity of these rows, in their order), and on nothing else.
 */

/*
 * Computes the encoder over whole sources and keeps the keys and values that the decoder attends
 * to, in place of what these sources were before. rows: n_rows <= batch, any number of sources one
 * after the other, each with its positions from 0 on: `sequence` is the source (0..n_sources-1),
 * `length` its number of positions. output: the encoder's normalized output [n_rows][hidden], or
 * NULL. Statistics go to the phase `encode`.
 */
int moe_encode(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows, float *output,
               struct moe_err *err);

/* The two halves of moe_encode, for passes that begin or end within the encoder, or look at its
 * states: first moe_forward in the phase MOE_ENCODE through layers of [0, n_encoder), with which
 * the sources are not encoded any more; then, after the last of these layers and for the same rows,
 * this, which keeps the pass's states. */
int moe_encode_keep(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                    float *output, struct moe_err *err);

/* The sequence attends to that source from its next row, at position 0, on; until this is called,
 * to the one of its own number (modulo n_sources). Several may share one (beams). */
void moe_sequence_attend(struct moe_session *s, uint32_t sequence, uint32_t source);

/* With prefix_lm: the sequence's first n positions are a prompt, whose rows are in one pass, and
 * the first `prefix` of these see each other. n 0, as until this is called and after
 * moe_sequence_rewind to 0: there is none; rows see what comes before them, and no expert's
 * capacity is counted. */
void moe_sequence_prompt(struct moe_session *s, uint32_t sequence, uint32_t n, uint32_t prefix);

/* Checks that rows of a pass over layers [begin, end) are whole sources for an encoder's layers, or
 * that their sequences attend to encoded ones in a decoder's, and prompts are there whole; notes
 * the sources in the pass. Called by moe_forward. */
int moe_sources_check(struct moe_session *s, bool encode, const struct moe_row *rows,
                      uint32_t n_rows, uint32_t begin, uint32_t end, struct moe_err *err);

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
 *
 * A head that drafts (EAGLE-3, arXiv:2503.01840; moe_model_take_drafter) is a layer of the same use
 * out of a file of its own. In place of h_i it takes the streams that came into three of the
 * model's layers, side by side and perhaps under a norm, and a matrix makes one vector v of them;
 * or, to draft one token further, v is the layer's own result for the position before. Its
 * attention takes in [norm_t(embedding of token i + 1) | norm_v(v)], twice as wide, and adds to v
 * (or norm_v(v)); its feed-forward is dense; a norm and its own head make logits of the result,
 * perhaps of some of the model's tokens only. That v is fed back before that norm, and what
 * checkpoints' switches mean, is from llama.cpp's eagle3.cpp; vLLM's llama_eagle3.py agrees. Its
 * attention may be latent, whatever the model's is (vLLM's and SpecForge's deepseek_eagle3.py).
 *
 * A head that drafts blocks (DFlash, arXiv:2602.06036) has several dense layers. Of the streams
 * that came into some of the model's layers a matrix and a norm make one vector v for each
 * position, and of v, as it is, every layer makes the position's key and value. A block is the
 * text's last token, whose position the model has not computed, and masks behind it; its rows go
 * through the layers as a model's do, see all positions before the block and all of the block
 * (unless the head is causal), and each mask's logits say what stands in its place. Their own keys
 * and values count in that pass only: those of v take their place. Equations: z-lab's
 * dflash/model.py; llama.cpp's dflash.cpp agrees.
 * In a block of DSpark the logits of a place depend on the token before it, which is known or was
 * drafted: a matrix makes a summand for each token of its vector (llama.cpp's dflash.cpp,
 * build_dspark_markov_head). The heads' measure of their own confidence is not read.
 *
 * A draft is judged by the model, so that none of this can change a text.
 */

/* Computes the layer for n_rows rows, whose tokens are those after their positions; of a head that
 * drafts blocks only the keys and values, and no logits follow. Row i is made
 * of the state that row from[i] of the last pass (through all layers, or of this) has left, which
 * rise (NULL: of row i), and leaves its own as row i: moe_logits then gives what comes after the
 * rows' tokens. Counted in the phase of the last moe_forward, but for tokens. The model was opened
 * with such a layer (moe_model_take_ahead, moe_model_take_drafter), and computes on the processor.
 */
int moe_ahead(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
              const uint32_t *from, struct moe_err *err);

/* Computes blocks of a head that drafts such, rows of a sequence after each other; `length` is the
 * end of a row's block. The positions before a block have been read by moe_ahead. moe_logits then
 * gives what stands in a row's place. */
int moe_ahead_block(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                    struct moe_err *err);
/* Where the head's tokens depend on the ones before them (markov_rank): adds what follows from that
 * token to logits of one row of a block [vocab]. */
int moe_ahead_follow(struct moe_session *s, uint32_t token, float *logits, struct moe_err *err);

#endif
