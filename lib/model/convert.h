/*
 * Conversion: checkpoint to pack, and pack to pack. Memory is bounded by one layer's largest piece
 * (a matrix of the dense part, or one expert), never by the model.
 */
#ifndef MOE_MODEL_CONVERT_H
#define MOE_MODEL_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "quant/ggml.h"
#include "quant/quantize.h"

/* One entry of --experts or --dense: bits of gate and up, bits of down ("4d8": 4 and 8). */
struct moe_bits {
    int gate_up, down;
};
/* "16", "8", "4d8"; bits are 32, 16, 8, 4, 3, 2. False for anything else. */
bool moe_parse_bits(const char *text, struct moe_bits *out);
/* "4d8" or "4" into out. */
void moe_format_bits(struct moe_bits bits, char out[16]);

struct moe_convert_options {
    struct moe_bits experts[8]; /* variants, any order; stored best first */
    int n_experts;              /* 0 when re-packing: every variant the pack has */
    int dense_bits;             /* 0 when re-packing: as it is */
    const struct moe_quant_method *method;
    uint32_t group;
    int zstd_level;                      /* 0: none */
    const struct moe_progress *progress; /* may be NULL */
};

/* What a conversion did, for the closing line. */
struct moe_convert_report {
    uint64_t source_bytes; /* weights read */
    uint64_t pack_bytes;   /* size of the file written */
    uint64_t expert_weights, dense_weights;
    struct moe_quant_error error[8]; /* per variant as listed in the options, over all experts */
    struct moe_quant_error dense_error;
    /* Of a source that is quantized itself (GGUF), over all variants: weights whose codes were
     * carried over, and those whose values were quantized anew. */
    struct moe_ggml_counts carried;
    uint64_t requantized;
};

enum { MOE_SOURCE_NAME_BYTES = 256 };
/* What a checkpoint is called: the last component of its path ("." and ".." resolved), without a
 * ".gguf" behind it. */
void moe_convert_source_name(const char *path, char out[MOE_SOURCE_NAME_BYTES]);

/*
 * From a Hugging Face directory or a GGUF file. Dense matrices get dense_bits, routers 16 bits (32
 * where the checkpoint has f32), vectors f32. 16 bits means as stored: F16 and BF16 stay what they
 * are; a matrix of F32 becomes BF16 when all its values are representable so, else F16 when they
 * are in that, else BF16, rounded to nearest even; quantized tensors become F16 (MXFP4: BF16).
 *
 * A matrix of a quantized type whose codes fit into the bits asked for is carried over in groups of
 * 32, whatever method and group say, without a second rounding (quant/ggml.h says of which types);
 * any other is quantized from its values. Routers of quantized types become 32 bits. A tensor that
 * the model has no place for is refused. Nothing is written on failure; the same source and options
 * give the same bytes.
 */
int moe_convert_checkpoint(const char *dir, const char *out_path,
                           const struct moe_convert_options *options,
                           struct moe_convert_report *report, struct moe_err *err);

/*
 * From a pack: a subset of its variants, other compression; a variant that the pack has is copied
 * bit for bit, one that it has not is quantized from its best (refused with MOE_ERR_USAGE when the
 * best has fewer bits than asked for).
 */
int moe_convert_pack(const char *pack_path, const char *out_path,
                     const struct moe_convert_options *options, struct moe_convert_report *report,
                     struct moe_err *err);

#endif
