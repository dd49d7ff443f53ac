/*
 * Checkpoint: the tensors of a model as published, in any container.
 *
 * A Hugging Face directory with model.safetensors, or model.safetensors.index.json and its shards;
 * or a GGUF file, whole or split (gguf.h has its metadata). Callers see names, shapes and rows of
 * numbers. Reading is by pread: no mapping, nothing of the checkpoint stays in memory but the
 * directory. Read-only and thread-safe after opening.
 */
#ifndef MOE_FMT_CHECKPOINT_H
#define MOE_FMT_CHECKPOINT_H

#include <stdint.h>

#include "base/err.h"
#include "base/file.h"
#include "quant/ggml.h"

struct moe_gguf;

/* One more than the number of ggml's type. Blocks of several values lie along the last dimension,
 * which is a whole number of them. */
enum moe_dtype {
    MOE_DTYPE_OTHER = 0, /* listed, but refused when asked for (see moe_checkpoint_get) */
    MOE_DTYPE_F32 = 1 + MOE_GGML_F32,
    MOE_DTYPE_F16 = 1 + MOE_GGML_F16,
    MOE_DTYPE_BF16 = 1 + MOE_GGML_BF16,
    MOE_DTYPE_MXFP4 = 1 + MOE_GGML_MXFP4,
};

/* The block type of a dtype; F32, F16 and BF16 have blocks of one item. NULL for OTHER. */
const struct moe_ggml_type *moe_dtype_block(enum moe_dtype dtype);

enum { MOE_MAX_TENSOR_DIMS = 4 };

struct moe_tensor {
    const char *name; /* borrowed from the checkpoint */
    enum moe_dtype dtype;
    int n_dims;                         /* 1..MOE_MAX_TENSOR_DIMS; a scalar has one, of size 1 */
    uint64_t dims[MOE_MAX_TENSOR_DIMS]; /* outermost first (GGUF files: the reverse of the file) */
    uint64_t n_items;                   /* product of dims; > 0 unless dtype is OTHER */
    uint64_t bytes;                     /* in the file: n_items / block items * block bytes */
    int file;                           /* index of the shard */
    uint64_t offset;                    /* of the data in that file */
};

struct moe_checkpoint;

/* Opens a directory, or a GGUF file by any of its parts (recognized by its first bytes, not by its
 * name). Checks every shard's header: bounds, overlaps, sizes against shapes, duplicates within and
 * across shards, agreement with the index. Tensors of another dtype, of more than
 * MOE_MAX_TENSOR_DIMS dimensions, or empty ones (a dimension of 0) are listed as MOE_DTYPE_OTHER
 * and are errors only when asked for.
 *
 * Matrices that a quantizer stored as several tensors appear as one, NAME.weight or NAME, with a
 * dtype whose blocks hold the codes (quant/ggml.h: MXFP4, NVFP4_T, CODES), or as F32:
 *   MXFP4   NAME_blocks [...][cols / 32][16] and NAME_scales, as gpt-oss; NAME_packed and
 * NAME_scale of bytes, as compressed-tensors. As MXFP4. NVFP4   pairs of values, scales of F8_E4M3
 * for 16 and a factor: NAME, NAME_scale, NAME_scale_2 (ModelOpt); NAME_packed, NAME_scale,
 * NAME_global_scale, which divides (compressed-tensors); NAME, NAME_scale, NAME_amax divided by
 * NAME_outer_scale_denominator (Inkling-2). As NVFP4_T. FP8     NAME [...][rows][cols]
 * of F8_E4M3 with NAME_scale_inv or NAME_scale, which has a factor for each block of config.json's
 * weight_block_size (128 by 128 by default; the last block of a row or column may be smaller), for
 * each row ([rows][1], or [rows]), or one for all; exponents (F8_E8M0 or bytes) also for groups
 * of a row (MXFP8); as F8, or F8_B where rows of panels share them.
 * Where they are those of less than 32 columns, as F32: values times factors, rounded once. INT
 * whole numbers with scales and zero points of groups or rows: qweight, qzeros, scales and g_idx of
 * GPTQ (2, 3, 4, 8 bits; zero points less one but in its v2), those of AWQ; NAME_packed (1 to 8
 * bits), NAME_scale, NAME_zero_point and NAME_g_idx of compressed-tensors, or signed bytes NAME. As
 * CODES where scales have 16 bits, groups are a multiple of 32 columns and columns are in their
 * order; else as F32. 4 bits  of bitsandbytes (NAME, NAME.absmax, ...): places in a table; as F32.
 * Scales of activations, which are not rounded here, are left out.
 *
 * Errors: MOE_ERR_IO, MOE_ERR_FORMAT (path and tensor in the text), MOE_ERR_UNSUPPORTED (a
 * container that is not read: the text says what to do), MOE_ERR_VERSION. */
int moe_checkpoint_open(struct moe_checkpoint **out, const char *path, struct moe_err *err);
void moe_checkpoint_close(struct moe_checkpoint *ck);

/* The checkpoint's directory, for its JSON files; the path of a GGUF file. */
const char *moe_checkpoint_dir(const struct moe_checkpoint *ck);
/* The metadata of a GGUF file, borrowed; NULL for a directory. */
const struct moe_gguf *moe_checkpoint_gguf(const struct moe_checkpoint *ck);

/* Its files that hold tensors: the descriptor of each, and its path, borrowed. */
int moe_checkpoint_n_files(const struct moe_checkpoint *ck);
int moe_checkpoint_file(const struct moe_checkpoint *ck, int file, const char **path);
/* Frees the metadata of a GGUF file, which is then without any. */
void moe_checkpoint_drop_metadata(struct moe_checkpoint *ck);
/* What it holds in memory without metadata, about. */
uint64_t moe_checkpoint_held_bytes(const struct moe_checkpoint *ck);

uint64_t moe_checkpoint_n_tensors(const struct moe_checkpoint *ck);
const struct moe_tensor *moe_checkpoint_at(const struct moe_checkpoint *ck, uint64_t i);
/* The index of a tensor that this checkpoint returned. */
uint64_t moe_checkpoint_index(const struct moe_checkpoint *ck, const struct moe_tensor *t);
/* The tensor of that name, or NULL. Logarithmic. */
const struct moe_tensor *moe_checkpoint_find(const struct moe_checkpoint *ck, const char *name);
/* The same, but a missing tensor, an unsupported dtype or a shape other than dims[0..n_dims) is an
 * error naming tensor, expected and found. */
int moe_checkpoint_get(const struct moe_checkpoint *ck, const char *name, int n_dims,
                       const uint64_t *dims, const struct moe_tensor **out, struct moe_err *err);

/* Reads items [first, first + n) of a tensor of a known dtype, converted exactly to f32.
 * Thread-safe. */
int moe_checkpoint_read(const struct moe_checkpoint *ck, const struct moe_tensor *t, uint64_t first,
                        uint64_t n, float *out, struct moe_err *err);

/* The same as moe_checkpoint_get and _read for a tensor of whole numbers (I32 or I64), which those
 * refuse. */
int moe_checkpoint_get_numbers(const struct moe_checkpoint *ck, const char *name, int n_dims,
                               const uint64_t *dims, const struct moe_tensor **out,
                               struct moe_err *err);
int moe_checkpoint_read_numbers(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                                uint64_t first, uint64_t n, int64_t *out, struct moe_err *err);

/* The type of the codes of a matrix that is stored as several tensors ("FP8", "INT4"), also where
 * its dtype is F32, as no layout holds them; NULL: it is one tensor. */
const char *moe_checkpoint_codes(const struct moe_tensor *t);

/* The rows that share a scale in a matrix that is stored as several tensors; 0: not known. */
uint32_t moe_checkpoint_scale_rows(const struct moe_tensor *t);

/* Reads blocks [first, first + n) of a tensor of a known dtype as quant/ggml.h describes them, also
 * of a matrix of several tensors: n * moe_dtype_block(t->dtype)->bytes bytes. Thread-safe. */
int moe_checkpoint_read_blocks(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                               uint64_t first, uint64_t n, uint8_t *out, struct moe_err *err);

/* Finds where those blocks lie as they are: returns 1, and a range of a file; or 2, for MXFP4 in
 * two tensors, the range of the values and that of the exponents; or 0: they are computed out of
 * several tensors when they are read, and the range has the first one's first byte. */
int moe_checkpoint_locate(const struct moe_checkpoint *ck, const struct moe_tensor *t,
                          uint64_t first, uint64_t n, struct moe_file_range out[2]);

#endif
