/*
 * Matrices that Hugging Face checkpoints store as two tensors, values and scales: MXFP4, FP8 and
 * INT4. checkpoint.h says what other rooms see of them.
 */
#ifndef MOE_FMT_TENSOR_PAIRS_H
#define MOE_FMT_TENSOR_PAIRS_H

#include <stddef.h>

#include "fmt/tensor_list.h"

/* Presents every such pair of the sorted list as one tensor, and drops the scales. What is no pair
 * stays as it is: refused when asked for. dir: of the checkpoint; its config.json has the blocks of
 * FP8 and is read only where there are weights in it. MOE_ERR_IO, _FORMAT, _MEMORY. */
int moe_tensor_pairs_join(struct moe_tensor_list *list, const char *dir, struct moe_err *err);

/* Blocks [first, first + n) of a tensor that is a pair, as moe_checkpoint_read_blocks gives them.
 */
int moe_tensor_pairs_read(const struct moe_tensor_files *files,
                          const struct moe_tensor_entry *entry, uint64_t first, uint64_t n,
                          uint8_t *out, struct moe_err *err);

/* Why a tensor in FP8 or INT4 is no pair: the sentence of moe_checkpoint_get. MOE_ERR_FORMAT. */
int moe_tensor_pairs_refuse_fp8(const struct moe_tensor_files *files,
                                const struct moe_tensor_entry *entry, struct moe_err *err);
int moe_tensor_pairs_refuse_int4(const struct moe_tensor_files *files,
                                 const struct moe_tensor_entry *entry, struct moe_err *err);
/* Whether the file has the tensor in FP8. */
bool moe_tensor_is_fp8(const struct moe_tensor_entry *entry);

/* The scales of a matrix in FP8 or INT4, whether they fit or not; NULL: there are none. */
const struct moe_tensor_entry *moe_tensor_pairs_scales(const struct moe_tensor_list *list,
                                                       const struct moe_tensor_entry *weights);
/* What the matrix of that name, `cut` bytes shorter, has that is packed in a way that is not read:
 * zero points, an order of its columns. NULL: nothing. */
const struct moe_tensor_entry *moe_tensor_pairs_other_way(const struct moe_tensor_list *list,
                                                          const char *name, size_t cut);

#endif
