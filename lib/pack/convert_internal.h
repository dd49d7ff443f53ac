/*
 * What conversions of checkpoints and of packs share: their state, row sources, and encoding rows
 * into matrices of a pack.
 */
#ifndef MOE_PACK_CONVERT_INTERNAL_H
#define MOE_PACK_CONVERT_INTERNAL_H

#include "fmt/checkpoint.h"
#include "fmt/emit.h"
#include "model/family.h"
#include "model/tensor_roles.h"
#include "pack/convert.h"
#include "pack/pack.h"

enum { CONVERT_MAX_VARIANTS = MOE_MAX_VARIANTS };

/* A variant to write: the bits asked for, and its place in the options. */
struct convert_variant {
    struct moe_bits bits; /* zeros: options->map's */
    double rank;          /* of what its experts take, in the mean */
    int option;           /* index into options->experts, report->error */
};

struct converter {
    const struct moe_convert_options *options;
    struct moe_convert_report *report;
    const char *source_path, *out_path; /* begin error texts */
    struct moe_pack_writer *writer;
    struct convert_variant variants[CONVERT_MAX_VARIANTS]; /* best first */
    int n_variants;
    bool no_gate; /* experts have two matrices (moe_bits_sum) */
    struct moe_pack_variant described[CONVERT_MAX_VARIANTS]; /* as the pack describes them */
    float *chunk;                                            /* rows being converted */
    uint64_t chunk_items;
    uint8_t
        *blocks; /* the same rows as blocks of the source's type, where codes are carried over */
    uint64_t blocks_bytes;
    uint64_t fingerprint; /* of the rows of the source that were read */
    uint64_t done, total; /* bytes of the source, those that take long often, for progress */
    const char *doing;    /* what progress says of it; NULL: "quantizing" */
    uint32_t n_layers;    /* the model's, without those that draft (config.h, n_ahead) */
    bool ahead;           /* the present layer drafts: it is left out of the fingerprint */
    bool quantized;       /* the source has a quantized matrix: the report says what is rounded */
    bool in_place;        /* nothing is converted or rounded: the pack has a directory only */
};

/*
 * A matrix [rows][cols] of the source (a vector: cols 1), read row by row as f32: out of a pack,
 * where `mat` is set, or out of a tensor of a checkpoint, which is seen as lines of `width` values.
 *
 * There the matrix's rows form blocks (the heads, or all rows together), `stride` lines apart.
 * Within a block, the `n_rotated` rows from `rotated_to` on are the lines from `rotated_from` on,
 * reordered from pairs to halves where `paired`; the other rows keep their order around them. Row r
 * is line first_line + step * (its block's line + its place in the block).
 *
 * Transposed, column c of block b is line first_line + b * stride + c, and a row is the column
 * first_column + step * (its place in the block) of that line.
 */
struct row_source {
    const char *name; /* of the tensor, for errors */
    const char *part; /* of the expert, where the name does not say it; or NULL */
    const char *type; /* of the values, for the report; NULL: plain ones */
    uint32_t rows, cols;
    uint64_t bytes;            /* in the source, for progress */
    uint32_t effort;           /* how often they count there; 0: once */
    uint16_t float16_kind;     /* MOE_LAYOUT_F16 or _BF16: the better of the two for its values */
    bool is_f32;               /* the values say which, if they are read once */
    bool quantized;            /* it has codes, though they may be read as values only */
    const double *inputs;      /* the factor of the matrix's inputs (quant/gptq.h); NULL: unknown */
    const struct moe_mat *mat; /* in a pack; borrowed */

    const struct moe_checkpoint *checkpoint;
    const struct moe_tensor *tensor;
    const struct moe_ggml_type *block; /* whose codes can be read; NULL: the values only */
    uint64_t width;
    bool transposed;
    uint64_t first_line, first_column;
    uint64_t expert_lines; /* from one expert to the next, where all lie in the tensor; else 0 */
    uint32_t step, block_rows, stride;
    uint32_t rotated_to, rotated_from, n_rotated;
    bool paired;
    uint32_t
        n_shards; /* of tensors that follow each other, numbered from the first; 0: it is one */
    uint32_t
        n_sides;  /* of matrices that follow each other, whose rows stand side by side; 0: one */
    bool numbers; /* a vector of whole numbers */
    enum moe_stored stored;         /* of a vector */
    const struct moe_tensor *times; /* ... and what multiplies it; NULL: nothing */
};

/* Where the encoded rows go. */
struct row_target {
    struct moe_layout layout;
    uint8_t *out;                  /* zeroed memory of moe_layout_bytes */
    struct moe_quant_error *error; /* sums to add to; may be NULL */
    int bits;                      /* asked for: a type names its method */
};

/* Takes and checks the options, which stay borrowed, and sorts the variants, best first. `strict`:
 * at least one variant and dense bits must be there, and all experts will be rounded.
 * MOE_ERR_USAGE.
 */
int convert_start(struct converter *c, const struct moe_convert_options *options, bool strict,
                  struct moe_err *err);
/* Whether the method rounds to these bits. MOE_ERR_USAGE. */
int convert_check_bits(const struct moe_convert_options *options, struct moe_bits bits,
                       struct moe_err *err);
/* Refuses an output that is the source, or that has the name of a checkpoint's file. */
int convert_check_output(const struct converter *c, struct moe_err *err);
void convert_release(struct converter *c);

/* Reads the source once, a chunk at a time, and encodes it into every target. */
int convert_rows(struct converter *c, const struct row_source *source,
                 const struct row_target *targets, int n_targets, struct moe_err *err);

/* Writes the rows as a dense matrix of the pack, in the entry's layout. */
int convert_put_matrix(struct converter *c, const struct row_source *source,
                       const struct moe_pack_tensor *entry, struct moe_err *err);

/* Sets source->inputs to the options' inputs of a matrix that gets `bits`. */
int convert_find_inputs(struct converter *c, const struct moe_matrix_name *matrix, int bits,
                        struct row_source *source, struct moe_err *err);

/* Whether one of the 16-bit layouts represents every value of a matrix of f32; sets float16_kind to
 * the better one: BF16, or F16 where only that represents them all. Reads the source. */
int convert_choose_float16(struct converter *c, struct row_source *source, bool *exact,
                           struct moe_err *err);

/* The layout that holds the source's codes, where they have as many bits or fewer, or are of the
 * kind that is named; kind MOE_LAYOUT_NONE: none does. */
struct moe_layout convert_own_layout(const struct row_source *source, int bits);

/* Whether the source's codes are carried over into that layout. */
bool convert_carries(const struct row_source *source, struct moe_layout layout);

/* Returns the layout that the options give `bits` of a matrix with so wide rows. */
struct moe_layout convert_layout(const struct converter *c, int bits, uint32_t cols,
                                 uint16_t float16_kind);

/* The same for a source: where a layout can carry its codes over, that one. */
struct moe_layout convert_source_layout(const struct converter *c, const struct row_source *source,
                                        int bits);

/* Notes in the report that a matrix was encoded in a layout of this kind and with this error, if it
 * comes from a quantized source and changed. */
void convert_note_rounding(struct converter *c, const struct row_source *source, uint16_t kind,
                           const struct moe_quant_error *error);
/* Adds up errors. */
void convert_add_error(struct moe_quant_error *sum, const struct moe_quant_error *more);

/* The bits of an expert's part in a variant of these bits; 0: a bias, which stays f32. */
static inline int convert_part_bits(struct moe_bits bits, enum moe_expert_part part)
{
    if (moe_expert_part_is_bias(part))
        return 0;
    return moe_expert_part_is_down(part) ? bits.down : bits.gate_up;
}

/* The part that a pack's role is. */
static inline enum moe_expert_part convert_part_of(uint16_t role)
{
    return (enum moe_expert_part)(role - MOE_ROLE_GATE);
}

/* Sets the matrices' offsets and the segments' sizes of a class whose other fields are set. */
void convert_place_matrices(struct moe_expert_class *class_);

/* The class's segments as zeroed memory, one block for all; free() *block. */
int convert_alloc_segments(const struct moe_expert_class *class_, uint8_t **block,
                           uint8_t *segments[MOE_PACK_MAX_SEGMENTS], struct moe_err *err);

/*
 * The provenance section: a JSON object of what decides the pack's content, no dates and no paths,
 * so that the same source and options give the same bytes. First the members that all conversions
 * write, then its end.
 */
/* The bits of the dense part that the options name. */
void convert_emit_dense(const struct converter *c, struct moe_emit *e);
void convert_emit_experts(const struct converter *c, struct moe_emit *e);
bool convert_writes_map(const struct converter *c); /* among its variants is a map's */
void convert_emit_map(const struct converter *c, struct moe_emit *e);
int convert_put_provenance(struct converter *c, struct moe_emit *e, struct moe_err *err);

/* Name and method of a variant whose experts are all made from floats: the method is "copy" where
 * none has fewer than 16 bits, else the options'. */
void convert_describe_variant(const struct converter *c, int variant, struct moe_pack_variant *out);
/* Adds a method to what a variant's experts are made by, empty at first: "copy" gives way to any
 * other, two different ones become "mixed". */
void convert_mix_methods(char sum[MOE_METHOD_BYTES], const char *method);
/* The same with those that round an expert to these bits; zeros: the experts of options->map. */
void convert_add_methods(const struct converter *c, struct moe_bits bits,
                         char sum[MOE_METHOD_BYTES]);

/* ---- Bits shared out (convert_bits.c) ---- */

/* The bits that a matrix may get; a quantized one then keeps its codes. */
enum { CONVERT_RUNGS = 6, CONVERT_OWN_BITS = 8 };

/* Matrices that get the same bits: gate and up of an expert, its down projection, or one of the
 * dense part. The last rung of quantized ones is their own codes, which lose nothing. */
struct convert_sharer {
    bool there, known;          /* known: its inputs are */
    bool lacks[CONVERT_RUNGS];  /* rungs with more bits than its source has */
    double energy, weight;      /* of its outputs; what an error counts */
    double lost[CONVERT_RUNGS]; /* the part of its outputs that each rung leaves, times `of` */
    double of;
    uint64_t bytes[CONVERT_RUNGS];
    uint64_t n_weights;
    int rung;
};

/* What texts say of a matrix; zeros: nothing. */
struct convert_seen {
    bool known;            /* its inputs are */
    double energy, weight; /* of its outputs; what an error counts */
};

/* `seen` and `row` have room for a row. factor NULL: its inputs are not known. */
void convert_see_matrix(const struct moe_mat *mat, const double *factor, float *row, double *seen,
                        struct convert_seen *out);
/* Adds a matrix, whose data are not looked at, to a sharer. */
void convert_add_matrix(const struct moe_mat *mat, const struct convert_seen *seen,
                        const struct moe_convert_options *options, struct convert_sharer *to);
/* Makes the bytes those that a segment takes in the file. */
void convert_pad_sharer(struct convert_sharer *s);
/* Chooses the rungs so that what errors count is least and all take `most` bytes at most; returns
 * how many they take, which are more where even the fewest are. */
uint64_t convert_share_out(struct convert_sharer *sharers, uint64_t n, double most);
int convert_sharer_bits(const struct convert_sharer *s);

/* ---- Experts and matrices kept for later runs (convert_kept.c) ---- */

struct convert_kept;
/* In place of a layer: then `expert` is the number of a tensor of the pack, which is a class of one
 * segment, and the variant is 0. */
enum { CONVERT_TENSORS = UINT32_MAX - 2 };
/* In place of a variant: what texts say of the matrices of an expert, or of a tensor. */
enum { CONVERT_SEEN = UINT32_MAX };

/* What a run remembers of an expert beside its bytes. rare: tokens of an expert seen too rarely,
 * plus 1; else 0. */
struct convert_kept_expert {
    struct moe_quant_error error;
    uint32_t rare;
};

/* "PACK.kept", or with n > 0 "PACK.SHARD-of-N"; free() it. NULL: out of memory. */
char *convert_kept_path(const char *out_path, uint32_t shard, uint32_t n, struct moe_err *err);
/* Opens the files that c->options name; *out NULL: none. key: a hash of all that decides their
 * content. Close *out after a failure, too. MOE_ERR_USAGE: a file has another key. */
int convert_kept_open(struct convert_kept **out, const struct converter *c, uint64_t key,
                      const struct moe_pack *pack, struct moe_err *err);
bool convert_kept_has(const struct convert_kept *k, uint32_t layer, uint32_t expert,
                      uint32_t variant);
int convert_kept_read(const struct convert_kept *k, uint32_t layer, uint32_t expert,
                      uint32_t variant, const struct moe_expert_class *class_,
                      uint8_t *const *segments, struct convert_kept_expert *out,
                      struct moe_err *err);
/* Appends, where a file is written. */
int convert_kept_put(struct convert_kept *k, uint32_t layer, uint32_t expert, uint32_t variant,
                     const struct moe_expert_class *class_, uint8_t *const *segments,
                     const struct convert_kept_expert *e, struct moe_err *err);
/* The same of what texts say of n matrices. */
int convert_kept_read_seen(const struct convert_kept *k, uint32_t layer, uint32_t expert,
                           struct convert_seen *seen, uint32_t n, struct moe_err *err);
int convert_kept_put_seen(struct convert_kept *k, uint32_t layer, uint32_t expert,
                          const struct convert_seen *seen, uint32_t n, struct moe_err *err);
/* The same of bits that were shared out. */
int convert_kept_shared(const struct convert_kept *k, int32_t *bits, uint64_t n, bool *found,
                        struct moe_err *err);
int convert_kept_put_shared(struct convert_kept *k, const int32_t *bits, uint64_t n,
                            struct moe_err *err);
/* complete: the file that was written is no longer needed. Returns `status`, or what failed. */
int convert_kept_close(struct convert_kept *k, bool complete, int status, struct moe_err *err);

/* ---- Maps (convert_map.c) ---- */

/* The bits of an expert in the variant; zeros where the map has none for it. Experts of layers that
 * draft, which calibration does not know, then get the most bits of the map. */
struct moe_bits convert_bits(const struct converter *c, int variant, uint32_t layer,
                             uint32_t expert);
/* A hash of the experts' bits, in 16 hexadecimal digits. */
void convert_map_hash(const struct moe_expert_map *map, char out[17]);
/* The bits of each expert in a pack's variant, as a map, types where they have names (bits.h).
 * MOE_ERR_MEMORY; free() out->bits. */
int convert_map_of_pack(struct moe_expert_map *out, const struct moe_pack *pack, uint32_t variant,
                        struct moe_err *err);
/* MOE_ERR_FORMAT when options->map is not for a model with these experts; layers: [c->n_layers]. */
int convert_check_map(const struct converter *c, uint32_t n_experts,
                      const struct moe_layer_desc *layers, struct moe_err *err);
/* Maps of a pack that has all of their variants, as its section of them. MOE_ERR_FORMAT: one is of
 * another model, lacks a choice or names other variants; MOE_ERR_USAGE: they do not go together. */
int convert_maps(struct moe_buf *out, const struct moe_map_file *maps, uint32_t n,
                 const struct moe_pack *pack, struct moe_err *err);
/* MOE_ERR_FORMAT when options->map was made for a model with another fingerprint. */
int convert_check_map_source(const struct converter *c, uint64_t source_fingerprint,
                             struct moe_err *err);

/* Finishes the pack, which closes the writer, and reports its size. */
int convert_commit(struct converter *c, struct moe_err *err);

/* MOE_ERR_INTERRUPTED when the user asked to stop. */
int convert_check_stop(const struct converter *c, struct moe_err *err);

/*
 * Where the matrices of a pack lie in a checkpoint. Roles and families say it as data
 * (tensor_roles.h, family.h); here it becomes sources: which tensor, and which of its rows is row
 * r.
 */

/* A checkpoint, and how its family names and orders its tensors; borrows everything. */
struct convert_source {
    const struct moe_checkpoint *checkpoint;
    const struct moe_config *config;
    const struct moe_family *family;
    enum moe_naming naming;
    struct stacked_part
        *stacked; /* [MOE_E_N_PARTS] which convert_find_expert found last; or NULL */
};

/* A layer's first expert's part, of a tensor that has all of them. */
struct stacked_part {
    struct row_source first; /* its tensor is NULL before one was found */
    uint32_t layer;
};

/*
 * A checkpoint in place: the plan of a conversion in which every tensor keeps its precision.
 */
struct checkpoint_source;
/* Opens a checkpoint and plans: *fd has a directory without weights (pack_end_directory).
 * MOE_ERR_UNSUPPORTED: a tensor would have to be rounded. */
int convert_plan_in_place(struct checkpoint_source **out, const char *path, int *fd,
                          uint64_t *file_bytes, struct moe_err *err);
void convert_close_source(struct checkpoint_source *s); /* NULL is fine */
const struct convert_source *convert_source_of(const struct checkpoint_source *s);
/* The caller's from then on; NULL: it was taken. */
struct moe_tokenizer *convert_take_tokenizer(struct checkpoint_source *s);
/* Reads a vector as the pack has it: `rows` values. */
int convert_read_vector(const struct checkpoint_source *s, enum moe_tensor_role role,
                        const struct row_source *source, float *out, struct moe_err *err);

/* Finds a tensor of the model, checks its shape, and describes where its rows are. A tensor that
 * has no name in the family is MOE_ERR_UNSUPPORTED, a missing one or one of another shape
 * MOE_ERR_FORMAT; errors name the tensor. */
int convert_find_dense(const struct convert_source *source, enum moe_tensor_role role,
                       uint32_t layer, struct row_source *out, struct moe_err *err);
int convert_find_expert(const struct convert_source *source, uint32_t layer, uint32_t expert,
                        enum moe_expert_part part, struct row_source *out, struct moe_err *err);

/* Shard i of a source that has several; NULL: it is not there. */
const struct moe_tensor *convert_shard(const struct row_source *source, uint32_t i);

/* The line of a checkpoint's tensor that is row `row`; the source is not transposed. */
uint64_t convert_source_line(const struct row_source *source, uint32_t row);

/* Reads rows [first, first + n) as f32, row-major, into out (n * cols values). */
int convert_read_rows(const struct row_source *source, uint32_t first, uint32_t n, float *out,
                      struct moe_err *err);

/* Reads the same rows as blocks of the tensor's type (quant/ggml.h); the source is not transposed.
 */
int convert_read_blocks(const struct row_source *source, uint32_t first, uint32_t n, uint8_t *out,
                        struct moe_err *err);

/* Whether the tensor belongs to a layer that predicts further tokens; without a source it is left
 * out. */
bool convert_is_beyond(const struct convert_source *source, const char *name);

/* Whether the tensor repeats the embedding or the head, as a layer that drafts may: the model's are
 * used. */
bool convert_is_shared(const struct convert_source *source, const char *name);

/* Whether the tensor belongs to the part of a model that sees images, which is left out. */
bool convert_sees_images(const struct convert_source *source, const char *name);

/* Whether a tensor that no source covers may be in the checkpoint nevertheless. */
bool convert_may_ignore(const struct convert_source *source, const char *name);

/* The checkpoint's tensor of a role that is no layer's; NULL: it has none. */
const struct moe_tensor *convert_look_for(const struct convert_source *source,
                                          enum moe_tensor_role role);

/* The head of a model whose head is said to be the embedding, where the checkpoint has one (NULL:
 * it has none), and whether it has the embedding's values (same NULL: nobody asks). */
int convert_compare_head(const struct convert_source *source, const struct moe_tensor **head,
                         bool *same, struct moe_err *err);

/* Whether a tensor that no source covers may repeat the embedding in this family.
 * MOE_ERR_UNSUPPORTED: it may, but has other values. */
int convert_check_copy(const struct convert_source *source, const struct moe_tensor *tensor,
                       bool *is_copy, struct moe_err *err);

#endif
