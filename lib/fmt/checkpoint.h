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

enum moe_dtype {
    MOE_DTYPE_OTHER = 0, /* listed, but refused when asked for (see moe_checkpoint_get) */
    MOE_DTYPE_F32,
    MOE_DTYPE_F16,
    MOE_DTYPE_BF16
};

enum { MOE_MAX_TENSOR_DIMS = 4 };

struct moe_tensor {
    const char *name; /* borrowed from the checkpoint */
    enum moe_dtype dtype;
    int n_dims;                         /* 1..MOE_MAX_TENSOR_DIMS; a scalar has one, of size 1 */
    uint64_t dims[MOE_MAX_TENSOR_DIMS]; /* outermost first, as the file gives them */
    uint64_t n_items;                   /* product of dims; > 0 unless dtype is OTHER */
    uint64_t bytes;                     /* in the file: n_items * item size */
    int file;                           /* index of the shard */
    uint64_t offset;                    /* of the data in that file */
};

struct moe_checkpoint;

/* Opens and checks every shard's header: bounds, overlaps, sizes against shapes, duplicates within
 * and across shards, agreement with the index. Tensors of another dtype, of more than
 * MOE_MAX_TENSOR_DIMS dimensions, or empty ones (a dimension of 0) are listed as MOE_DTYPE_OTHER
 * and are errors only when asked for. `path` is the directory.
 * Errors: MOE_ERR_IO, MOE_ERR_FORMAT (path and tensor in the text), MOE_ERR_UNSUPPORTED (a
 * checkpoint in a container that is not read: the text says what to do). */
int moe_checkpoint_open(struct moe_checkpoint **out, const char *path, struct moe_err *err);
void moe_checkpoint_close(struct moe_checkpoint *ck);

/* The directory the checkpoint lies in, for its JSON files. */
const char *moe_checkpoint_dir(const struct moe_checkpoint *ck);

uint64_t moe_checkpoint_n_tensors(const struct moe_checkpoint *ck);
const struct moe_tensor *moe_checkpoint_at(const struct moe_checkpoint *ck, uint64_t i);
/* The number of a tensor that this checkpoint gave out. */
uint64_t moe_checkpoint_index(const struct moe_checkpoint *ck, const struct moe_tensor *t);
/* The tensor of that name, or NULL. Logarithmic. */
const struct moe_tensor *moe_checkpoint_find(const struct moe_checkpoint *ck, const char *name);
/* The same, but a missing tensor, an unsupported dtype or a shape other than dims[0..n_dims) is an
 * error naming tensor, expected and found. */
int moe_checkpoint_get(const struct moe_checkpoint *ck, const char *name, int n_dims,
                       const uint64_t *dims, const struct moe_tensor **out, struct moe_err *err);

/* Items [first, first + n) of a tensor of a known dtype, converted exactly to f32. Thread-safe. */
int moe_checkpoint_read(const struct moe_checkpoint *ck, const struct moe_tensor *t, uint64_t first,
                        uint64_t n, float *out, struct moe_err *err);

#endif
