/*
 * A pack being re-packed: what each variant of each expert is made of. Internal to convert*.c.
 */
#ifndef MOE_CONVERT_CONVERT_REPACK_H
#define MOE_CONVERT_CONVERT_REPACK_H

#include "convert/convert_parts.h"

struct repack {
    struct moe_pack *pack;
    /* Per variant to write: the pack's variant it is copied from, or -1: each expert from where it
     * is stored at the bits asked for, or else quantized anew. */
    int from[CONVERT_MAX_VARIANTS];
    struct moe_expert_map own; /* what the pack's "map" is, where no other map was given */
    bool encodes;              /* something is quantized anew */
};

/* The stored form that something is made of. */
struct repack_origin {
    const struct moe_expert_extent *extent; /* NULL: there is none */
    uint32_t variant;                       /* the pack's */
    bool copied;                            /* as it is; false: quantized anew */
};

/* The stored form of an expert with the most bits: a map's variant may be better than another's for
 * one expert and worse for its neighbour. */
struct repack_origin repack_best(const struct moe_pack *pack, uint32_t layer, uint32_t expert);

/* What an expert of a variant to write is made of. */
struct repack_origin repack_origin(const struct converter *c, const struct repack *r,
                                   uint32_t layer, uint32_t expert, int variant);

/* The map that the pack was made with, for options that ask for a map's variant and give none.
 * free() r->own.bits. */
int repack_take_map(struct repack *r, struct moe_convert_options *options, struct moe_err *err);

/* Whether a map that was given is for this pack's model. */
int repack_check_map(const struct converter *c, const struct repack *r, struct moe_err *err);

/* Which of the pack's variants each wanted one is, r->from, and what the pack will call it,
 * c->described; with none wanted, all of the pack's. */
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
