/*
 * Matrices that Hugging Face checkpoints store as several tensors: codes, scales and what else
 * their quantizer needs. checkpoint.h says how other rooms see them.
 */
#ifndef MOE_FMT_TENSOR_PAIRS_H
#define MOE_FMT_TENSOR_PAIRS_H

#include "fmt/tensor_list.h"

/* Presents every such matrix of the sorted list as one tensor, and drops the others that belong to
 * it. One that cannot be read is refused when asked for. dir: the checkpoint's; what its
 * config.json says of the quantization is read only if there are such matrices. MOE_ERR_IO,
 * _FORMAT, _MEMORY. */
int moe_tensor_pairs_join(struct moe_tensor_files *files, const char *dir, struct moe_err *err);

/* Reads blocks [first, first + n) of a joined tensor, as moe_checkpoint_read_blocks returns them.
 */
int moe_tensor_pairs_read(const struct moe_tensor_files *files,
                          const struct moe_tensor_entry *entry, uint64_t first, uint64_t n,
                          uint8_t *out, struct moe_err *err);

/* Explains why a matrix of several tensors, whose `misfit` is set, cannot be read: the sentence of
 * moe_checkpoint_get. MOE_ERR_FORMAT. */
int moe_tensor_pairs_refuse(const struct moe_tensor_files *files,
                            const struct moe_tensor_entry *entry, struct moe_err *err);

/* How the file has the codes of a matrix of several tensors, "FP8" or "INT4"; NULL: it is one
 * tensor.
 */
const char *moe_tensor_pairs_type(const struct moe_tensor_entry *entry);

#endif
