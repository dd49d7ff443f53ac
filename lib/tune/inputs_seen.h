/*
 * Inputs that matrices see on texts, and what rounding makes of them (moe-quantize --text).
 */
#ifndef MOE_TUNE_INPUTS_SEEN_H
#define MOE_TUNE_INPUTS_SEEN_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "infer/expert_compute.h"
#include "infer/model.h"
#include "kern/matmul.h"
#include "pack/convert.h"
#include "tune/documents.h"

/*
 * Activations: what a feed-forward's down projection is given, as second moments over many tokens.
 */

/* Memory for a few hundred tokens' activations at a time. */
struct moe_activations {
    const struct moe_config *config; /* borrowed */
    uint8_t *block;
    uint64_t ff_stride;
    float *gate, *up; /* [tokens at a time][ff_stride] */
    struct moe_inputs inputs;
};

/* The matrices of a feed-forward. */
struct moe_ffn {
    struct moe_mat gate, up;            /* gate.data NULL: the activation has no gate */
    const struct moe_expert_view *view; /* of an expert, with its biases; NULL: not an expert's */
    uint32_t layer;
};

/*
 * The inputs that a model's matrices see on given texts, for error-aware rounding (quant/gptq.h):
 * the model runs over the texts at the best precision its pack has, and of each matrix the factor
 * of its inputs' second moments is computed when conversion asks for it.
 *
 *   q, k, v, and the projections down of latent attention: the layer's normalized input
 *   o: attention's output; gate and up of dense layers and shared experts: the normalized stream;
 *   down of these: the activations
 *   gate and up of a routed expert: the stream of the tokens routed to it; down: their activations
 *
 * Embedding, head, and what lies inside latent attention have no factor; nor has an expert that
 * fewer than MOE_LEAST_INPUTS tokens were routed to.
 *
 * Memory is bounded by the texts' tokens and one layer: layers are run one after the other, and
 * five vectors of each token are kept.
 */

enum {
    MOE_LEAST_INPUTS = 32,       /* tokens that an expert must have seen */
    MOE_MOST_INPUTS = 32768,     /* tokens of all texts; more are thinned out evenly */
    MOE_INPUTS_DOC_TOKENS = 256, /* of a document, by default */
};

struct moe_inputs_options {
    const char *const *texts; /* files */
    uint32_t n_texts;
    uint32_t max_tokens;  /* of a document or window; 0: MOE_INPUTS_DOC_TOKENS */
    uint32_t max_windows; /* of a document (tune/documents.h); 0: all */
    const struct moe_progress *progress;
    struct moe_left_out *left_out; /* [2] by max_windows, then what is thinned out; may be NULL */
    /* The toolkit's own texts, of MOE_BUNDLED_SEPARATOR, taken where nobody named others: where the
     * model cannot run over them, conversion goes on without, and what a pack has stays. */
    bool bundled;
};
#define MOE_BUNDLED_SEPARATOR "<|endoftext|>"

struct moe_inputs_seen;

/* Bytes that it takes for texts like these, the second copy of the loaded model included. */
uint64_t moe_inputs_seen_bytes(const struct moe_model *model, const struct moe_corpus *corpus);
int moe_inputs_seen_open(struct moe_inputs_seen **out, const char *pack_path,
                         const struct moe_inputs_options *options, struct moe_err *err);
void moe_inputs_seen_close(struct moe_inputs_seen *seen); /* NULL is fine */
/* What moe_convert_pack takes; lives as long as `seen`. */
const struct moe_convert_inputs *moe_inputs_seen_of(const struct moe_inputs_seen *seen);

/*
 * Conversion with error-aware rounding: moe_convert_pack with the inputs that matrices see on given
 * texts. A checkpoint becomes a pack of 16 bits first, a file without a name beside the output,
 * since only packs can be run.
 */

/* As moe_convert_checkpoint and moe_convert_pack, with a method that compensates; the options'
 * `inputs` are set here. note (may be NULL) gets a line appended, without its newline: how many
 * tokens were seen, and which experts saw too few, or why bundled texts were not used. */
int moe_convert_error_aware(const char *source, bool is_checkpoint, const char *out_path,
                            const struct moe_convert_options *options,
                            const struct moe_inputs_options *inputs,
                            struct moe_convert_report *report, struct moe_buf *note,
                            struct moe_err *err);

#endif
