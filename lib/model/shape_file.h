/*
 * The file of a shape: a config.json, and in it, under "moe_shape", what a plan needs to know
 * beyond it, moe-shape(5). Of models whose family runs that is only for people. Of others it says
 * which family's settings stand in for the sizes, and what their layers of attention take instead.
 */
#ifndef MOE_MODEL_SHAPE_FILE_H
#define MOE_MODEL_SHAPE_FILE_H

#include "model/shape.h"

enum { MOE_SHAPE_MAX_KINDS = 8, MOE_SHAPE_TEXT = 160 /* bytes, NUL included */ };

/* Layers that are alike, in place of those that the settings describe. */
struct moe_shape_layers {
    char kind[MOE_SHAPE_TEXT]; /* for people */
    uint32_t count;
    uint64_t attention_parameters; /* of one of them */
    uint32_t kv_values;            /* kept of a position, by one of them ... */
    uint32_t window;               /* ... of so many positions; 0: all */
    uint32_t state_values;         /* kept of a text, read and written for each token */
};

struct moe_shape_file {
    struct moe_config config;
    char name[MOE_SHAPE_TEXT]; /* "": the file says none */
    double parameters;         /* as published; 0: not said */
    bool runs;                 /* moe-run knows the family */
    char why[MOE_SHAPE_TEXT];  /* it does not run */
    uint32_t n_kinds;          /* 0: layers are as the settings say */
    struct moe_shape_layers kinds[MOE_SHAPE_MAX_KINDS];
};

/* MOE_ERR_FORMAT, MOE_ERR_UNSUPPORTED (an unknown family, and nothing that stands in for it),
 * MOE_ERR_IO. */
int moe_shape_file_read(struct moe_shape_file *out, const char *path, struct moe_err *err);

/* As moe_shape_bytes, with the layers that the file describes. */
int moe_shape_file_bytes(struct moe_shape_bytes *out, const struct moe_shape_file *shape,
                         struct moe_bits expert_bits, uint32_t dense_bits, uint32_t group,
                         struct moe_err *err);

/* Bytes that the described layers keep of a text of so many positions, f32; 0 where the file
 * describes none. */
uint64_t moe_shape_file_kv_bytes(const struct moe_shape_file *shape, uint32_t positions,
                                 uint32_t cell_bytes);

#endif
