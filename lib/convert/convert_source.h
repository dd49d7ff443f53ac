/*
 * Where the matrices of a pack lie in a checkpoint. Roles and families say it as data
 * (tensor_roles.h, family.h); here it becomes views: which tensor, and which of its rows is row r.
 * Internal to convert*.c.
 */
#ifndef MOE_CONVERT_CONVERT_SOURCE_H
#define MOE_CONVERT_CONVERT_SOURCE_H

#include "family/family.h"
#include "fmt/checkpoint.h"

/* A checkpoint, and how its family names and orders its tensors; borrows everything. */
struct convert_source {
    const struct moe_checkpoint *checkpoint;
    const struct moe_config *config;
    const struct moe_family *family;
    enum moe_naming naming;
};

/*
 * A matrix [rows][cols] of the pack (a vector: cols 1) as it lies in a tensor, which is seen as
 * lines of `width` values.
 *
 * The matrix's rows form blocks (the heads, or all rows together), `stride` lines apart. Within a
 * block, the `n_rotated` rows from `rotated_to` on are the lines from `rotated_from` on, reordered
 * from pairs to halves where `paired`; the other rows keep their order around them. Row r is line
 * first_line + step * (its block's line + its place in the block).
 *
 * Transposed, column c of block b is line first_line + b * stride + c, and a row is the column
 * first_column + step * (its place in the block) of that line.
 */
struct convert_view {
    const struct moe_checkpoint *checkpoint;
    const struct moe_tensor *tensor;
    uint32_t rows, cols;
    uint64_t width;
    bool transposed;
    uint64_t first_line, first_column;
    uint32_t step, block, stride;
    uint32_t rotated_to, rotated_from, n_rotated;
    bool paired;
    enum moe_stored stored; /* of a vector */
};

/* Finds a tensor of the model, checks its shape, and describes where its rows are. A tensor that
 * has no name in the family is MOE_ERR_UNSUPPORTED, a missing one or one of another shape
 * MOE_ERR_FORMAT; errors name the tensor. */
int convert_view_dense(const struct convert_source *source, enum moe_tensor_role role,
                       uint32_t layer, struct convert_view *out, struct moe_err *err);
int convert_view_expert(const struct convert_source *source, uint32_t layer, uint32_t expert,
                        enum moe_expert_part part, struct convert_view *out, struct moe_err *err);

/* Bytes of the tensor that the view covers. */
uint64_t convert_view_bytes(const struct convert_view *view);

/* The line of the tensor that is row `row`; the view is not transposed. */
uint64_t convert_view_line(const struct convert_view *view, uint32_t row);

/* Reads rows [first, first + n) as f32, row-major, into out (n * cols values). */
int convert_view_read(const struct convert_view *view, uint32_t first, uint32_t n, float *out,
                      struct moe_err *err);

/* Reads the same rows as blocks of the tensor's type (quant/ggml.h), which has several items to a
 * block; the view is not transposed. */
int convert_view_read_blocks(const struct convert_view *view, uint32_t first, uint32_t n,
                             uint8_t *out, struct moe_err *err);

/* Whether the tensor is of a layer that predicts further tokens: where no view covers it, it is
 * left out. */
bool convert_is_beyond(const struct convert_source *source, const char *name);

/* Whether the tensor is the embedding or the head once more, as a layer that drafts and is kept may
 * have them: it shares the model's. */
bool convert_is_shared(const struct convert_source *source, const char *name);

/* Whether the tensor is of the part of a model that sees images, which is left out. */
bool convert_sees_images(const struct convert_source *source, const char *name);

/* Whether a tensor that no view covers may be in the checkpoint nevertheless. */
bool convert_may_ignore(const struct convert_source *source, const char *name);

/* The head of a model whose head is said to be the embedding, where the checkpoint has one (NULL:
 * it has none), and whether it has the embedding's values. */
int convert_compare_head(const struct convert_source *source, const struct moe_tensor **head,
                         bool *same, struct moe_err *err);

/* Whether a tensor that no view covers is one that the family may have as the embedding once more.
 * MOE_ERR_UNSUPPORTED: it is, and has other values. */
int convert_check_copy(const struct convert_source *source, const struct moe_tensor *tensor,
                       bool *is_copy, struct moe_err *err);

#endif
