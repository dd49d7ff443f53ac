/*
 * Why two tensors are not values and their scales, in words.
 */
#include <inttypes.h>

#include "fmt/tensor_pairs.h"

int moe_tensor_pairs_refuse_fp8(const struct moe_tensor_files *files,
                                const struct moe_tensor_entry *entry, struct moe_err *err)
{
    const char *path = files->files[entry->tensor.file].path, *name = entry->tensor.name;
    const struct moe_tensor_entry *scales = moe_tensor_pairs_scales(&files->list, entry);
    char weights_dims[MOE_DIMS_BYTES], scales_dims[MOE_DIMS_BYTES];
    moe_tensor_dims(&entry->tensor, weights_dims);
    if (!scales)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s' %s is in FP8 (F8_E4M3), and its scales "
                        "'%.200s_scale_inv' are missing",
                        path, name, weights_dims, name);
    moe_tensor_dims(&scales->tensor, scales_dims);
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: tensor '%.200s' %s, of type %s, does not fit '%.200s' %s, whose scales it "
                    "should have: one for each block of %" PRIu32 " rows and %" PRIu32
                    " columns, each row, or all",
                    files->files[scales->tensor.file].path, scales->tensor.name, scales_dims,
                    scales->dtype_name, name, weights_dims, entry->block_rows, entry->block_cols);
}

int moe_tensor_pairs_refuse_int4(const struct moe_tensor_files *files,
                                 const struct moe_tensor_entry *entry, struct moe_err *err)
{
    const char *path = files->files[entry->tensor.file].path, *name = entry->tensor.name;
    const struct moe_tensor_entry *scales = moe_tensor_pairs_scales(&files->list, entry);
    const struct moe_tensor_entry *other = moe_tensor_pairs_other_way(&files->list, name, 0);
    char weights_dims[MOE_DIMS_BYTES], scales_dims[MOE_DIMS_BYTES];
    moe_tensor_dims(&entry->tensor, weights_dims);
    if (other)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s' %s is packed in 4 bits with '%.200s', which is not "
                        "read",
                        path, name, weights_dims, other->tensor.name);
    if (!scales)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor '%.200s' %s is packed in 4 bits, and its scales '%.200s_scale' "
                        "are missing",
                        path, name, weights_dims, name);
    moe_tensor_dims(&scales->tensor, scales_dims);
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: tensor '%.200s' %s, of type %s, does not fit '%.200s' %s, packed in 4 "
                    "bits, whose scales it should have: as many for each row, of F32, F16 or BF16",
                    files->files[scales->tensor.file].path, scales->tensor.name, scales_dims,
                    scales->dtype_name, name, weights_dims);
}
