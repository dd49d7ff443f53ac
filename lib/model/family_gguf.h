/*
 * What all architectures in GGUF share: the metadata keys that stand under the architecture's name
 * ("qwen2moe.block_count"), and the tensors' names.
 */
#ifndef MOE_MODEL_FAMILY_GGUF_H
#define MOE_MODEL_FAMILY_GGUF_H

#include "base/err.h"
#include "fmt/gguf.h"
#include "model/family.h"

/* "ARCH.NAME", for the moe_gguf_get functions; room for any key we ask for. */
struct moe_gguf_key {
    char text[128];
};
struct moe_gguf_key moe_gguf_arch_key(const struct moe_gguf *gguf, const char *name);

/* Fills config from a GGUF file through the family that its "general.architecture" names. An
 * unknown architecture, or a setting that the family does not implement, is MOE_ERR_UNSUPPORTED and
 * named. */
int moe_config_read_gguf(struct moe_config *config, const struct moe_gguf *gguf,
                         struct moe_err *err);

/* Names that architectures share: fused experts ("blk.%u.ffn_gate_exps.weight"), and what older
 * files have instead (a tensor per expert). */
extern const struct moe_source_names moe_gguf_names, moe_gguf_names_old;

#endif
