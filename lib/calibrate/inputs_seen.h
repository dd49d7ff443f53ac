/*
 * The inputs that a model's matrices see on given texts, for error-aware rounding (quant/gptq.h):
 * the model runs over the texts at the best precision its pack has, and of each matrix the factor
 * of its inputs' second moments is computed when conversion asks for it.
 *
 *   q, k, v, and the projections down of latent attention: the layer's normalised input
 *   o: attention's output; gate and up of dense layers and shared experts: the normalised stream;
 *   down of these: the activations
 *   gate and up of a routed expert: the stream of the tokens routed to it; down: their activations
 *
 * Embedding, head, and what lies inside latent attention have no factor; nor has an expert that
 * fewer than MOE_LEAST_INPUTS tokens were routed to.
 *
 * Memory is bounded by the texts' tokens and one layer: layers are run one after the other, and
 * five vectors of each token are kept.
 */
#ifndef MOE_CALIBRATE_INPUTS_SEEN_H
#define MOE_CALIBRATE_INPUTS_SEEN_H

#include "convert/convert.h"
#include "layer/model.h"
#include "study/corpus.h"

enum {
    MOE_LEAST_INPUTS = 32,       /* tokens that an expert must have seen */
    MOE_MOST_INPUTS = 32768,     /* tokens of all texts; more are thinned out evenly */
    MOE_INPUTS_DOC_TOKENS = 256, /* of a document, by default */
};

struct moe_inputs_options {
    const char *const *texts; /* files */
    uint32_t n_texts;
    uint32_t max_tokens;  /* of a document or window; 0: MOE_INPUTS_DOC_TOKENS */
    uint32_t max_windows; /* of a document (study/documents.h); 0: all */
    const struct moe_progress *progress;
    struct moe_left_out *left_out; /* also of what is thinned out; may be NULL */
};

struct moe_inputs_seen;

/* Bytes that it takes for texts like these, the second copy of the loaded model included. */
uint64_t moe_inputs_seen_bytes(const struct moe_model *model, const struct moe_corpus *corpus);
int moe_inputs_seen_open(struct moe_inputs_seen **out, const char *pack_path,
                         const struct moe_inputs_options *options, struct moe_err *err);
void moe_inputs_seen_close(struct moe_inputs_seen *seen); /* NULL is fine */
/* What moe_convert_pack takes; lives as long as `seen`. */
const struct moe_convert_inputs *moe_inputs_seen_of(const struct moe_inputs_seen *seen);

#endif
