/*
 * Conversion: checkpoint to pack, and pack to pack. Memory is bounded by one layer's largest piece
 * (a matrix of the dense part, or one expert), never by the model.
 */
#ifndef MOE_CONVERT_CONVERT_H
#define MOE_CONVERT_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "quant/bits.h"
#include "quant/ggml.h"
#include "quant/quantize.h"

/* A choice of bits for each expert. Plain data; whoever made it frees bits. */
struct moe_expert_map {
    const char *name;             /* of the file it was read from: begins error texts */
    uint64_t source_fingerprint;  /* of the model that it was made for */
    uint32_t n_layers, n_experts; /* of the model; layers without experts behind the last that has
                                     them may be left out */
    struct moe_bits *bits;        /* [n_layers][n_experts]; zeros in layers without experts */
};

/* A matrix of the model: a dense one by its role, or a part of an expert. */
struct moe_matrix_name {
    uint32_t layer;
    bool of_expert;
    int role; /* enum moe_tensor_role, or enum moe_expert_part */
    uint32_t expert;
};

/* What error-aware rounding is told of the inputs that matrices see (quant/gptq.h). */
struct moe_convert_inputs {
    void *ctx;
    /* The factor of a matrix's inputs, [cols][cols], valid until the next call for another layer,
     * expert or end of a feed-forward; NULL where too little or nothing is known of them. Asked
     * layer by layer, for the dense part first, then from layer 0 again for experts. */
    int (*factor)(void *ctx, const struct moe_matrix_name *matrix, const double **factor,
                  struct moe_err *err);
    /* Where they come from, for the provenance; may change until the conversion's end. */
    uint64_t n_tokens, hash; /* of the texts */
    uint32_t least_tokens;   /* of an expert: those seen in fewer are rare */
    uint32_t n_rare;         /* among the experts asked for, in order */
    const struct moe_convert_rare {
        uint32_t layer, expert, n_tokens;
    } * rare;
};

struct moe_convert_options {
    struct moe_bits experts[8]; /* variants, any order; stored best first; zeros: the map's */
    int n_experts;              /* 0 when re-packing: every variant the pack has */
    int dense_bits;             /* 0 when re-packing: as it is */
    const struct moe_quant_method *method;
    uint32_t group;
    int zstd_level;                          /* 0: none */
    const struct moe_expert_map *map;        /* NULL: none, or re-packing the one of the pack */
    const struct moe_convert_inputs *inputs; /* for methods that compensate, from packs; or NULL */
    const struct moe_progress *progress;     /* may be NULL */
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
 * the model has no place for is refused. A map made for another model is refused too
 * (MOE_ERR_FORMAT), one of its shape only when all weights are read. Nothing is written on failure;
 * the same source and options give the same bytes.
 */
int moe_convert_checkpoint(const char *dir, const char *out_path,
                           const struct moe_convert_options *options,
                           struct moe_convert_report *report, struct moe_err *err);

/*
 * From a pack: a subset of its variants, other compression; a variant that the pack has is copied
 * bit for bit. Of one that it has not, and of a new map, an expert is copied from where it is
 * stored at the bits asked for, and else quantized from its best (refused with MOE_ERR_USAGE when
 * the best has fewer bits). With inputs, what the pack has quantized by another method is made anew
 * from the best; refused where it is the best.
 */
int moe_convert_pack(const char *pack_path, const char *out_path,
                     const struct moe_convert_options *options, struct moe_convert_report *report,
                     struct moe_err *err);

/*
 * A dense matrix in memory as re-packing stores it with options->dense_bits, which are fewer than
 * its own; of the other options method, group and progress count. out: zeroed memory of
 * moe_layout_bytes at those bits; *layout is then what it holds. path and name begin error texts.
 */
int moe_convert_matrix(const struct moe_mat *mat, const char *path, const char *name,
                       const struct moe_convert_options *options, uint8_t *out,
                       struct moe_layout *layout, struct moe_err *err);

#endif
