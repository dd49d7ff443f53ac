/*
 * Matrices that Hugging Face checkpoints store as two tensors, values and scales: MXFP4, FP8 and
 * INT4. checkpoint.h says how other rooms see them.
 */
#ifndef MOE_FMT_TENSOR_PAIRS_H
#define MOE_FMT_TENSOR_PAIRS_H

#include <stddef.h>

#include "fmt/tensor_list.h"

/* Presents every such pair of the sorted list as one tensor, and drops the scales. Other tensors
 * stay as they are and are refused when asked for. dir: the checkpoint's; its config.json has the
 * block sizes of FP8 and is read only if there are such weights. MOE_ERR_IO, _FORMAT, _MEMORY. */
int moe_tensor_pairs_join(struct moe_tensor_list *list, const char *dir, struct moe_err *err);

/* Reads blocks [first, first + n) of a joined tensor, as moe_checkpoint_read_blocks returns them.
 */
int moe_tensor_pairs_read(const struct moe_tensor_files *files,
                          const struct moe_tensor_entry *entry, uint64_t first, uint64_t n,
                          uint8_t *out, struct moe_err *err);

/* Explains why a tensor in FP8 or INT4 has no pair: the sentence of moe_checkpoint_get.
 * MOE_ERR_FORMAT. */
int moe_tensor_pairs_refuse_fp8(const struct moe_tensor_files *files,
                                const struct moe_tensor_entry *entry, struct moe_err *err);
int moe_tensor_pairs_refuse_int4(const struct moe_tensor_files *files,
                                 const struct moe_tensor_entry *entry, struct moe_err *err);
/* Whether the file has the tensor in FP8. */
bool moe_tensor_is_fp8(const struct moe_tensor_entry *entry);

#endif
