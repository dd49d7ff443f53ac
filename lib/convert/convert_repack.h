/*
 * Re-packing: which stored form each variant of each expert is made of. Internal to convert*.c.
 */
#ifndef MOE_CONVERT_CONVERT_REPACK_H
#define MOE_CONVERT_CONVERT_REPACK_H

#include "convert/convert_parts.h"

struct repack {
    struct moe_pack *pack;
    /* Per variant to write: the pack's variant that it copies, or -1: each expert is copied from
     * any variant that stores it at the bits asked for, else quantized. */
    int from[CONVERT_MAX_VARIANTS];
    struct moe_expert_map own; /* the bits of the pack's variant "map", where no map was given */
    bool encodes;              /* some expert is quantized */
};

/* The stored form that an expert is made of. */
struct repack_origin {
    const struct moe_expert_extent *extent; /* NULL: there is none */
    uint32_t variant;                       /* the pack's */
    bool copied;                            /* false: quantized */
};

/* The stored form of an expert with the most bits. A map's variant may be better than another one
 * for one expert and worse for its neighbour. */
struct repack_origin repack_best(const struct moe_pack *pack, uint32_t layer, uint32_t expert);

/* The stored form that an expert of a variant to write is made of. */
struct repack_origin repack_origin(const struct converter *c, const struct repack *r,
                                   uint32_t layer, uint32_t expert, int variant);

/* Sets options->map to the pack's own where a variant asks for a map and none is given. free()
 * r->own.bits. */
int repack_take_map(struct repack *r, struct moe_convert_options *options, struct moe_err *err);

/* Checks that a given map was made for this pack's model. */
int repack_check_map(const struct converter *c, const struct repack *r, struct moe_err *err);

/* Sets r->from and c->described: which of the pack's variants each wanted one is, and how the new
 * pack describes it. With no variants wanted, all of the pack's are. */
int repack_choose(struct converter *c, struct repack *r, struct moe_err *err);

/* The rows of a stored matrix that becomes `bits`; it must stay. `name` is for errors. */
int repack_source(struct converter *c, const char *name, const struct moe_mat *mat, int bits,
                  struct row_source *out, struct moe_err *err);

/* MOE_ERR_USAGE: more bits are wanted than `what` has. */
int repack_refuse_more_bits(const struct converter *c, const char *what, int has, int wanted,
                            struct moe_err *err);

/* Writes every expert in all variants (convert_pack_experts.c). */
int repack_put_experts(struct converter *c, const struct repack *r, struct moe_err *err);

#endif
