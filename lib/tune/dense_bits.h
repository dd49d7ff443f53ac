/*
 * The dense part at fewer bits, in memory: what moe-quantize --dense would have stored, so that its
 * cost can be measured before a pack is written.
 */
#ifndef MOE_TUNE_DENSE_BITS_H
#define MOE_TUNE_DENSE_BITS_H

#include "infer/model.h"
#include "pack/convert.h"

/* How its matrices are rounded to fewer bits; these are a bitwidth or a type (quant/bits.h). */
struct moe_dense_rounding {
    const struct moe_quant_method *method;
    uint32_t group;
    const struct moe_convert_inputs *inputs; /* for a method that compensates; or NULL */
};

/* As the pack's own codes were, by its provenance; hqq in groups of 64 where that does not say.
 * Without inputs. MOE_ERR_MEMORY. */
int moe_dense_rounding_of(const struct moe_pack *pack, struct moe_dense_rounding *out,
                          struct moe_err *err);

/* Bits of the loaded model's dense matrices; the largest where they differ. */
uint32_t moe_dense_bits(const struct moe_model *model);
/* The same of a pack, or the type that all were asked to have, by its provenance. MOE_ERR_MEMORY.
 */
int moe_dense_bits_of_pack(const struct moe_pack *pack, uint32_t *bits, struct moe_err *err);
/* Whether the dense part has these bits already: deriving it would change no matrix. */
bool moe_dense_has(const struct moe_model *model, const struct moe_dense_rounding *how,
                   uint32_t bits);

/* Bytes of the loaded model's dense tensors, routers and vectors included, without compression, if
 * its matrices had `bits` bits (no more than they have; those with fewer stay), each a multiple of
 * `align`: 1, or MOE_PACK_ALIGN in a pack. */
uint64_t moe_dense_bytes(const struct moe_model *model, const struct moe_dense_rounding *how,
                         uint32_t bits, uint32_t align);
/* What the same tensors take of the pack's file. */
uint64_t moe_dense_file_bytes(const struct moe_model *model);

/* A loaded model whose dense matrices are quantized from those of `model` (loaded), bit for bit as
 * re-packing it with --dense would (pack/convert.h). Routers, vectors and matrices with no more
 * bits stay as they are. It shares these, pack, tokenizer, description and tables with `model`,
 * which must outlive it; its weights are only the re-quantized matrices. MOE_ERR_USAGE: more bits
 * than there are, or a layout that cannot be. */
int moe_dense_derive(struct moe_model **out, const struct moe_model *model,
                     const struct moe_dense_rounding *how, uint32_t bits, struct moe_err *err);
void moe_dense_release(struct moe_model *derived); /* NULL is fine */

#endif
