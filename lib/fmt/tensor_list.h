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

/* How a checkpoint stores a matrix (tensor_pairs.h). */
enum moe_tensor_form {
    MOE_FORM_PLAIN,
    MOE_FORM_MXFP4, /* e2m1 in pairs, exponents */
    MOE_FORM_NVFP4, /* e2m1 in pairs, scales of 16 in E4M3, a factor */
    MOE_FORM_FP8,   /* F8_E4M3, a scale for each block of rows and columns */
    MOE_FORM_BYTES, /* the same with signed bytes */
    MOE_FORM_CODES, /* whole numbers, scales and zero points of groups */
    MOE_FORM_TABLE, /* places in a table of 16, scales in a table of 256 or in f32 */
};

/* How the codes of MOE_FORM_CODES are packed: as a stream of bits in words of 32, lowest first,
 * along a row or down a column, in AWQ's order of eight columns of rows, or a signed byte each. */
enum moe_packing { MOE_PACKED_ROWS, MOE_PACKED_COLUMNS, MOE_PACKED_AWQ, MOE_PACKED_BYTES };

/* Tensors beside that of the codes. Of MOE_FORM_TABLE: the scales' own scales, the table, and the
 * scales' table. */
enum moe_tensor_part {
    MOE_PART_SCALES,
    MOE_PART_ZEROS,
    MOE_PART_ORDER, /* of each column its group */
    MOE_PART_FACTOR,
    MOE_N_PARTS,
    MOE_PART_SCALE_SCALES = MOE_PART_ZEROS,
    MOE_PART_DIVISOR = MOE_PART_ZEROS, /* of MOE_FORM_NVFP4's factor */
    MOE_PART_TABLE = MOE_PART_ORDER,
    MOE_PART_SCALE_TABLE = MOE_PART_FACTOR,
};

struct moe_tensor_entry {
    struct moe_tensor tensor; /* owns ->name */
    /* The type as the file spells it, truncated: for errors about tensors that cannot be read. */
    char dtype_name[MOE_DTYPE_NAME_BYTES];
    /* Of a matrix of several tensors: tensor.file and .offset locate the codes, these the others.
     */
    enum moe_tensor_form form;
    struct {
        bool there, single; /* single: one number */
        int file;
        enum moe_dtype dtype;
        uint64_t offset;
    } parts[MOE_N_PARTS];
    const struct tensor_way *way; /* how it is named */
    const char *misfit;          /* the end of the name of a tensor that keeps it from being read */
    enum moe_dtype scales_dtype; /* OTHER: F8_E8M0 */
    uint32_t block_rows,
        block_cols; /* what a scale covers; of a table, its and its scale's items */
    enum moe_packing packing;
    uint8_t bits;                  /* of a code */
    bool zeros_less, unsure_order; /* zero points are stored less one; columns may be in an order */
    bool inverse;                  /* the factor divides */
    float offset;                  /* of scales in a table */
    bool by_127;                   /* scales are those of 127 */
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
