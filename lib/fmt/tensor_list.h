/*
 * The tensors of a checkpoint and the files that hold them, in any container. Other rooms use
 * checkpoint.h.
 */
#ifndef MOE_FMT_TENSOR_LIST_H
#define MOE_FMT_TENSOR_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "fmt/checkpoint.h"

enum { MOE_DTYPE_NAME_BYTES = 16 };

enum moe_tensor_pair {
    MOE_PAIR_NONE,  /* one tensor */
    MOE_PAIR_MXFP4, /* e2m1 in pairs, exponents */
    MOE_PAIR_FP8,   /* F8_E4M3, a factor for each block of rows and columns */
    MOE_PAIR_INT4,  /* whole numbers from -8 to 7, stored as 0 to 15, factors as for FP8 */
};

struct moe_tensor_entry {
    struct moe_tensor tensor; /* owns ->name */
    /* The type as the file spells it, truncated: for errors about tensors that cannot be read. */
    char dtype_name[MOE_DTYPE_NAME_BYTES];
    /* Values and scales as two tensors (tensor_pairs.h): tensor.file and .offset locate the values,
     * these the scales. */
    enum moe_tensor_pair pair;
    int scales_file;
    uint64_t scales_offset;
    /* Scales of FP8 and INT4: their type (OTHER: F8_E8M0), and what a scale covers. */
    enum moe_dtype scales_dtype;
    uint32_t block_rows, block_cols;
};

/* "[4096][192]", for errors. */
enum { MOE_DIMS_BYTES = 128 };
void moe_tensor_dims(const struct moe_tensor *tensor, char out[MOE_DIMS_BYTES]);

struct moe_tensor_list {
    struct moe_tensor_entry *items;
    uint64_t n, room;
};

void moe_tensor_list_release(struct moe_tensor_list *list);
/* Appends a zeroed entry with a copy of the name; NULL: out of memory. */
struct moe_tensor_entry *moe_tensor_list_add(struct moe_tensor_list *list, const char *name,
                                             uint64_t name_bytes, struct moe_err *err);
/* Checks that no two tensors from number `first` on, all of one file, share bytes. `name` begins
 * the error text. */
int moe_tensor_list_check_overlaps(const struct moe_tensor_list *list, uint64_t first,
                                   const char *name, struct moe_err *err);
/* *twin: a name that two of the tensors from number `first` on share, borrowed; NULL: none. */
int moe_tensor_list_find_twin(const struct moe_tensor_list *list, uint64_t first, const char **twin,
                              struct moe_err *err);
void moe_tensor_list_sort(struct moe_tensor_list *list); /* by name */
/* its number in a sorted list, or -1 */
int64_t moe_tensor_list_find(const struct moe_tensor_list *list, const char *name);

/* An open file of a checkpoint. */
struct moe_tensor_file {
    char *path; /* owned */
    int fd;     /* -1: not open */
};

/* Fails if two tensors of a sorted list have the same name, naming both files; `name` begins the
 * text. */
int moe_tensor_list_check_names(const struct moe_tensor_list *list,
                                const struct moe_tensor_file *files, const char *name,
                                struct moe_err *err);

/* What a container's reader fills in. */
struct moe_tensor_files {
    struct moe_tensor_file *files;
    int n_files;
    struct moe_tensor_list list; /* sorted once opened */
};
void moe_tensor_files_release(struct moe_tensor_files *files);

#endif
