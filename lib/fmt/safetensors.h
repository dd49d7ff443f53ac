/*
 * One safetensors file's header: the table of tensors, checked. Other rooms use checkpoint.h.
 *
 * Format: u64 length of the header, JSON {name: {dtype, shape, data_offsets}}, then the data.
 */
#ifndef MOE_FMT_SAFETENSORS_H
#define MOE_FMT_SAFETENSORS_H

#include <stdint.h>

#include "base/err.h"
#include "fmt/tensor_list.h"

/* The format's own bound. */
enum { MOE_SAFETENSORS_MAX_HEADER = 100 * 1000 * 1000 };

/*
 * Checks the n header bytes (the JSON text) of a file whose data part begins at data_offset and has
 * data_bytes, and appends its tensors, with file number `file`. `name` (the path) begins error
 * texts. MOE_ERR_FORMAT, or MOE_ERR_MEMORY.
 */
int moe_safetensors_parse(struct moe_tensor_list *list, const char *name, int file,
                          const void *json, uint64_t n, uint64_t data_offset, uint64_t data_bytes,
                          struct moe_err *err);

#endif
