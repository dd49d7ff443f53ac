/*
 * The weights of a checkpoint into a pack, one matrix or one expert at a time. Internal to
 * convert*.c.
 */
#ifndef MOE_CONVERT_CONVERT_WEIGHTS_H
#define MOE_CONVERT_CONVERT_WEIGHTS_H

#include "convert/convert_parts.h"
#include "convert/convert_source.h"

/* A checkpoint being converted. */
struct checkpoint_source {
    struct moe_checkpoint *checkpoint;
    const struct moe_gguf *gguf; /* its metadata; NULL for a directory */
    const struct moe_family *family;
    struct moe_config config;
    struct convert_source from; /* where the model's tensors lie in the checkpoint */
    bool *used;                 /* per tensor of the checkpoint */
    /* Per variant: the codes of every expert matrix can be carried over at its bits. */
    bool carried[CONVERT_MAX_VARIANTS];
    bool quantized;            /* some matrix is */
    struct moe_expert_map own; /* the bits that keep the precision of each expert; owns them */
};

/* Reads a dense tensor that the model has and writes it. */
int convert_put_dense(struct converter *c, struct checkpoint_source *s, enum moe_tensor_role role,
                      uint32_t layer, struct moe_err *err);

/* Reads an expert once and writes it in all variants. */
int convert_put_expert(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                       uint32_t number, struct moe_err *err);

#endif
