/*
 * Shape files, moe-shape(5): a config.json with what a plan needs beyond it under "moe_shape". For
 * a family that runs this is only text for people. For any other it says which family's settings
 * give the sizes, and what its attention layers need instead.
 */
#ifndef MOE_MODEL_SHAPE_FILE_H
#define MOE_MODEL_SHAPE_FILE_H

#include "model/shape.h"

enum { MOE_SHAPE_MAX_KINDS = 8, MOE_SHAPE_TEXT = 160 /* bytes, NUL included */ };

/* Layers of one kind, in place of those in the settings. */
struct moe_shape_layers {
    char kind[MOE_SHAPE_TEXT]; /* for people */
    uint32_t count;
    uint64_t attention_parameters; /* per layer */
    uint32_t kv_values;            /* kept per position and layer, */
    uint32_t window;               /* for this many positions; 0: all */
    uint32_t state_values;         /* kept per text and layer, read and written for each token */
};

struct moe_shape_file {
    struct moe_config config;
    char name[MOE_SHAPE_TEXT]; /* "": not in the file */
    double parameters;         /* as published; 0: not said */
    bool runs;                 /* moe-run knows the family */
    char why[MOE_SHAPE_TEXT];  /* it does not run */
    uint32_t n_kinds;          /* 0: layers are as the settings say */
    struct moe_shape_layers kinds[MOE_SHAPE_MAX_KINDS];
};

/* MOE_ERR_FORMAT, MOE_ERR_UNSUPPORTED (an unknown family and no substitute), MOE_ERR_IO. */
int moe_shape_file_read(struct moe_shape_file *out, const char *path, struct moe_err *err);

/* As moe_shape_bytes, with the layers that the file describes. */
int moe_shape_file_bytes(struct moe_shape_bytes *out, const struct moe_shape_file *shape,
                         struct moe_bits expert_bits, uint32_t dense_bits, uint32_t group,
                         struct moe_err *err);

/* Bytes that the described layers keep of a text of this many positions; 0 where the file
 * describes no layers. cell_bytes: of a value, with its share of a scale. */
uint64_t moe_shape_file_kv_bytes(const struct moe_shape_file *shape, uint32_t positions,
                                 double cell_bytes);

#endif
