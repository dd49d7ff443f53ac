/*
 * Conversion: checkpoint to pack, and pack to pack. Memory is bounded by one layer's largest piece
 * (a matrix of the dense part, or one expert), never by the model.
 */
#ifndef MOE_PACK_CONVERT_H
#define MOE_PACK_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "pack/map.h"
#include "quant/bits.h"
#include "quant/ggml.h"
#include "quant/quantize.h"

/* A choice of bits for each expert. Plain data; the caller frees bits. */
struct moe_expert_map {
    const char *name;             /* the file it was read from; begins error texts */
    uint64_t source_fingerprint;  /* of the model that it was made for */
    uint64_t pack_fingerprint;    /* of the pack that was calibrated; 0: of none */
    uint32_t n_layers, n_experts; /* of the model; dense layers after the last MoE layer may be
                                     left out */
    struct moe_bits *bits;        /* [n_layers][n_experts]; zeros in layers without experts */
};

/* A matrix of the model: a dense one by its role, or a part of an expert. */
struct moe_matrix_name {
    uint32_t layer;
    bool of_expert;
    int role; /* enum moe_tensor_role, or enum moe_expert_part */
    uint32_t expert;
};

/* A map and the file it was read from, for errors; borrowed. */
struct moe_map_file {
    const struct moe_map *map;
    const char *path;
};

/* The inputs of matrices, for error-aware rounding (quant/gptq.h). */
struct moe_convert_inputs {
    void *ctx;
    /* The factor of a matrix's inputs, [cols][cols], valid until the next call for another layer or
     * expert, or for the other end of a feed-forward; NULL where too little is known of them.
     * Called layer by layer, for the dense part first, then from layer 0 again for experts. */
    int (*factor)(void *ctx, const struct moe_matrix_name *matrix, const double **factor,
                  struct moe_err *err);
    /* Where the inputs come from, for the provenance; read at the end of the conversion. */
    uint64_t n_tokens, hash; /* of the texts */
    bool bundled;            /* nobody named these texts: what a pack has stays as it is */
    uint32_t least_tokens;   /* an expert with fewer is rare */
    uint32_t n_rare;         /* rare experts among those asked for, in order */
    const struct moe_convert_rare {
        uint32_t layer, expert, n_tokens;
    } * rare;
    /* Begins the list of rare experts again, before experts are rounded in order; and notes one
     * whose factor nobody asks for, since an earlier run rounded it. */
    void (*forget_rare)(void *ctx);
    void (*note_rare)(void *ctx, uint32_t layer, uint32_t expert, uint32_t n_tokens);
};

struct moe_convert_options {
    struct moe_bits experts[8]; /* variants in any order, stored best first; zeros: the map's */
    int n_experts;              /* 0 when re-packing: every variant of the pack */
    /* Above 0, of a pack and with inputs: in place of `experts` and `map` a variant "map", whose
     * bits are shared out among experts so that they take this many a weight, scales counted. */
    double mean_bits;
    /* Above 0, the same by bytes: the pack's file has this many at most. dense_bits 0: matrices of
     * the dense part get their share, too, each its own. */
    uint64_t target_bytes;
    int dense_bits; /* 0 when re-packing: as they are */
    /* dense_bits are the map's choice: of the pack that was calibrated, a matrix that has fewer of
     * them stays, as it was measured. */
    bool dense_of_map;
    /* For a checkpoint with a quantized matrix: every matrix of the experts, or of the dense part,
     * keeps at least its own precision; `experts` and `dense_bits` apply to other checkpoints. */
    bool own_experts, own_dense;
    /* With own_experts, own_dense: what no layout holds gets 16 bits, so that nothing is rounded to
     * fewer than its values need. */
    bool exact_experts, exact_dense;
    bool no_ahead; /* layers that draft (MTP; config.h, n_ahead) are left out */
    /* Re-packing: the pack has a quantized checkpoint's own codes, and floats made of others. A
     * matrix that has no more bits than it is to get keeps its codes. */
    bool of_quantized;
    const struct moe_quant_method *method;
    uint32_t group;
    int zstd_level;                          /* 0: none */
    const struct moe_expert_map *map;        /* NULL: none, or when re-packing the pack's own */
    const struct moe_map_file *maps;         /* of a pack whose variants all stay: for several */
    uint32_t n_maps;                         /* tolerances, in any order */
    const struct moe_convert_inputs *inputs; /* for error-aware rounding of packs; or NULL */
    /*
     * Long conversions of packs. `keeps`: matrices and experts that are rounded go into a file
     * beside the pack, PACK.kept, as they are done, and those that it has from an earlier run are
     * taken from there; it is removed when the pack is complete. n_shards: only experts of part
     * `shard` (1 to n_shards) are rounded, into the file PACK.SHARD-of-N, and there is no pack.
     * n_joined: experts are taken from the files of this many shards.
     */
    bool keeps;
    uint32_t shard, n_shards, n_joined;
    const struct moe_progress *progress; /* may be NULL */
};

/* Matrices of a quantized source whose values were rounded again: those that had the same type and
 * were given the same bits. */
enum { MOE_ROUNDINGS = 24, MOE_ROUNDED_NAMES = 8 };
struct moe_rounding {
    char from[16]; /* the type: "Q6_K"; "q8" of a pack */
    uint16_t kind; /* of the layout that it was rounded to */
    struct moe_quant_error error;
    uint32_t n_names, n_others; /* others: matrices that found no room in `names` */
    struct moe_rounded_name {
        char name[48]; /* without layer and expert: "ffn_down_exps"; of a pack's experts "expert
                          down" */
        uint64_t last; /* a hash of the last one's whole name: experts may share a tensor */
        uint32_t n;
    } names[MOE_ROUNDED_NAMES];
};

/* What a conversion did, for the closing lines. */
struct moe_convert_report {
    bool kept_experts, kept_dense; /* own_experts, own_dense took effect */
    uint64_t source_bytes;         /* weights read */
    uint64_t pack_bytes;           /* size of the file written */
    uint32_t n_missing;            /* experts that were in none of n_joined shards: rounded here */
    uint32_t n_kept_experts, n_kept_matrices; /* taken from an earlier run or from shards */
    uint64_t expert_weights, dense_weights;
    struct moe_quant_error error[8]; /* per variant in the options' order, over all experts */
    struct moe_quant_error dense_error;
    /* Of a quantized source (GGUF), over all variants: weights whose codes were carried over, and
     * weights whose values were quantized again. */
    uint64_t carried, requantized;
    /* In the order they were met; those that found no room share the last entry. */
    struct moe_rounding roundings[MOE_ROUNDINGS];
    uint32_t n_roundings;
    /* Tensors of a checkpoint that were left out because their layers predict tokens beyond the
     * next (MTP). */
    uint64_t n_beyond;
    uint64_t n_visual; /* ... and of the part that sees images */
};

enum { MOE_SOURCE_NAME_BYTES = 256, MOE_CONVERT_MAX_SHARDS = 64 };
/* The name of a checkpoint: the last component of its path ("." and ".." resolved) without
 * ".gguf". */
void moe_convert_source_name(const char *path, char out[MOE_SOURCE_NAME_BYTES]);

/* Checks that the options suit a model with n_experts experts in a layer. Without any,
 * MOE_ERR_USAGE where bits are to be shared out among them or they are to be rounded in parts, with
 * what to do instead; MOE_ERR_FORMAT where a map has bits for them. */
int moe_convert_check_experts(const char *source, uint32_t n_experts,
                              const struct moe_convert_options *options, struct moe_err *err);

/*
 * From a Hugging Face directory or a GGUF file. Dense matrices get dense_bits, routers 16 bits (32
 * where the checkpoint has F32), vectors F32. 16 bits means as stored: F16 and BF16 stay as they
 * are; a matrix of F32 becomes BF16 when that represents all its values, else F16 when that does,
 * else BF16, rounded to nearest even; quantized tensors become F16 (MXFP4: BF16).
 *
 * A matrix of a quantized type whose codes fit into the bits asked for is carried over in groups of
 * 32, whatever method and group say, without a second rounding (quant/ggml.h lists the types); any
 * other is quantized from its values. Routers of quantized types become 32 bits. With own_experts
 * and own_dense the bits are those that lose nothing, or where no layout does, 8 (moe_ggml_bits),
 * and of floats their own. Experts get one variant, named after their bits, or "map" where these
 * differ between experts.
 *
 * A tensor that the model has no place for is refused. So is a map made for another model
 * (MOE_ERR_FORMAT); where that has the same shape, only after all weights have been read. Nothing
 * is written on failure; the same source and options give the same bytes.
 */
int moe_convert_checkpoint(const char *dir, const char *out_path,
                           const struct moe_convert_options *options,
                           struct moe_convert_report *report, struct moe_err *err);

/*
 * From a pack: a subset of its variants, new variants, other compression. A variant of the pack is
 * copied bit for bit. For a new variant or a new map, each expert is copied from any variant that
 * stores it at the bits asked for, else quantized from its most precise one (MOE_ERR_USAGE when
 * that has fewer bits). MOE_ERR_USAGE where mean_bits are fewer than the fewest. With inputs,
 * variants quantized by another method are made again from the most precise one; MOE_ERR_USAGE
 * where they are the most precise.
 */
int moe_convert_pack(const char *pack_path, const char *out_path,
                     const struct moe_convert_options *options, struct moe_convert_report *report,
                     struct moe_err *err);

/* Whether that rounds anything, with options that give bits: else it only copies. The errors of
 * moe_convert_pack that show before it writes. */
int moe_convert_rounds(const char *pack_path, const char *out_path,
                       const struct moe_convert_options *options, bool *any, struct moe_err *err);

/*
 * A dense matrix in memory, as re-packing would store it with options->dense_bits, which are fewer
 * than its own; of the other options only method, group, inputs and progress matter. out: zeroed
 * memory of moe_layout_bytes at those bits; *layout is set to its layout. path begins error texts.
 */
int moe_convert_matrix(const struct moe_mat *mat, const char *path,
                       const struct moe_matrix_name *name,
                       const struct moe_convert_options *options, uint8_t *out,
                       struct moe_layout *layout, struct moe_err *err);

/*
 * A map's choice as a conversion takes it: bits instead of variants of the calibrated pack.
 */

/* path: of the map's file, kept in out->name. free() out->bits, also after a failure.
 * MOE_ERR_FORMAT: the map has no choice, or the name of a chosen variant is no bitwidth. */
int moe_map_bits(struct moe_expert_map *out, const struct moe_map *map, const char *path,
                 struct moe_err *err);

#endif
