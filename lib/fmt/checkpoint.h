/*
 * Checkpoint: the tensors of a model as somebody published it, whatever the container.
 *
 * Today: a Hugging Face directory with model.safetensors, or model.safetensors.index.json and its
 * shards. The container is one implementation file (safetensors.c); callers see names, shapes and
 * rows of numbers. Reading is by pread: no mapping, nothing of the checkpoint stays in memory but
 * the directory. Read-only and thread-safe after opening.
 */
#ifndef MOE_FMT_CHECKPOINT_H
#define MOE_FMT_CHECKPOINT_H

#include <stdint.h>

#include "base/err.h"

enum moe_dtype { MOE_DTYPE_F32 = 1, MOE_DTYPE_F16, MOE_DTYPE_BF16 };

enum { MOE_MAX_TENSOR_DIMS = 4 };

struct moe_tensor {
    const char *name; /* borrowed from the checkpoint */
    enum moe_dtype dtype;
    int n_dims;                         /* 1..MOE_MAX_TENSOR_DIMS */
    uint64_t dims[MOE_MAX_TENSOR_DIMS]; /* outermost first, as the file gives them; all > 0 */
    uint64_t n_items;                   /* product of dims */
    uint64_t bytes;                     /* n_items * item size */
    int file;                           /* index of the shard */
    uint64_t offset;                    /* of the data in that file */
};

struct moe_checkpoint;

/* Opens and checks every shard's header: bounds, overlaps, sizes against shapes, duplicates, known
 * dtypes of tensors (a tensor of another dtype is an error only when it is asked for).
 * Errors: MOE_ERR_IO, MOE_ERR_FORMAT (path, tensor and offset in the text). */
int moe_checkpoint_open(struct moe_checkpoint **out, const char *path, struct moe_err *err);
void moe_checkpoint_close(struct moe_checkpoint *ck);

/* The directory the checkpoint lies in, for its JSON files. */
const char *moe_checkpoint_dir(const struct moe_checkpoint *ck);

uint64_t moe_checkpoint_n_tensors(const struct moe_checkpoint *ck);
const struct moe_tensor *moe_checkpoint_at(const struct moe_checkpoint *ck, uint64_t i);
/* The tensor of that name, or NULL. Logarithmic. */
const struct moe_tensor *moe_checkpoint_find(const struct moe_checkpoint *ck, const char *name);
/* The same, but a missing tensor, an unsupported dtype or a shape other than dims[0..n_dims) is an
 * error naming tensor, expected and found. */
int moe_checkpoint_get(const struct moe_checkpoint *ck, const char *name, int n_dims,
                       const uint64_t *dims, const struct moe_tensor **out, struct moe_err *err);

/* Items [first, first + n) of a tensor, converted exactly to f32. */
int moe_checkpoint_read(const struct moe_checkpoint *ck, const struct moe_tensor *t, uint64_t first,
                        uint64_t n, float *out, struct moe_err *err);

#endif
